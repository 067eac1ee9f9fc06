//! Compressed files of tables, unpacked as they are read: `.gz`, `.bz2` and `.zst`.

use bytes::Bytes;
use bzip2::Decompress;
use flate2::write::MultiGzDecoder;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{Error, Result};
use std::collections::VecDeque;
use std::io::{self, Write};
use zstd::stream::raw::Decoder as ZstdDecoder;
use zstd::stream::zio::Writer as ZstdWriter;

/// Packed bytes that are unpacked at a time: a few may become thousands of times as many.
const PACKED_BYTES: usize = 1 << 10;

/// Unpacked bytes after which they are passed on.
const UNPACKED_BYTES: usize = 1 << 20;

/// Room for the output of bzip2.
const ROOM_BYTES: usize = 64 << 10;

/// A compression, by the ending of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// RFC 1952, one or several members.
    Gzip,
    /// bzip2, one or several streams.
    Bzip2,
    /// RFC 8878, one or several frames.
    Zstd,
}

impl Packing {
    /// The compression of a file of that name; `None` if it is not compressed.
    pub fn of(name: &str) -> Option<Self> {
        let ending = name.rsplit_once('.')?.1;
        let is = |of: &str| ending.eq_ignore_ascii_case(of);
        match () {
            () if is("gz") => Some(Packing::Gzip),
            () if is("bz2") => Some(Packing::Bzip2),
            () if is("zst") => Some(Packing::Zstd),
            () => None,
        }
    }

    fn unpacker(self) -> io::Result<Unpacker> {
        Ok(match self {
            Packing::Gzip => Unpacker::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            Packing::Bzip2 => Unpacker::Bzip2(Bzip2::new()),
            Packing::Zstd => Unpacker::Zstd(ZstdWriter::new(Vec::new(), ZstdDecoder::new()?)),
        })
    }
}

enum Unpacker {
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Bzip2(Bzip2),
    Zstd(ZstdWriter<Vec<u8>, ZstdDecoder<'static>>),
}

impl Unpacker {
    fn push(&mut self, packed: &[u8]) -> io::Result<()> {
        match self {
            Unpacker::Gzip(to) => to.write_all(packed),
            Unpacker::Bzip2(to) => to.push(packed),
            Unpacker::Zstd(to) => to.write_all(packed),
        }
    }

    /// Checks that the packed bytes are complete.
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Unpacker::Gzip(to) => to.try_finish(),
            Unpacker::Bzip2(to) => to.finish(),
            Unpacker::Zstd(to) => to.finish(),
        }
    }

    fn unpacked(&mut self) -> &mut Vec<u8> {
        match self {
            Unpacker::Gzip(to) => to.get_mut(),
            Unpacker::Bzip2(to) => &mut to.unpacked,
            Unpacker::Zstd(to) => to.writer_mut(),
        }
    }
}

struct Bzip2 {
    stream: Decompress,
    /// True between two streams.
    is_between: bool,
    unpacked: Vec<u8>,
}

impl Bzip2 {
    fn new() -> Self {
        Bzip2 { stream: Decompress::new(false), is_between: true, unpacked: Vec::new() }
    }

    fn push(&mut self, mut packed: &[u8]) -> io::Result<()> {
        while !packed.is_empty() {
            self.unpacked.reserve(ROOM_BYTES);
            let (read, made) = (self.stream.total_in(), self.unpacked.len());
            let status = self.stream.decompress_vec(packed, &mut self.unpacked)?;
            let read = (self.stream.total_in() - read) as usize;
            packed = &packed[read..];
            self.is_between = status == bzip2::Status::StreamEnd;
            if self.is_between {
                self.stream = Decompress::new(false);
            } else if read == 0 && self.unpacked.len() == made {
                return Err(io::Error::other("it does not go on"));
            }
        }
        // Bytes that are left inside the decoder come with the next input, unless this was the last one.
        while !self.is_between {
            self.unpacked.reserve(ROOM_BYTES);
            let made = self.unpacked.len();
            self.is_between =
                self.stream.decompress_vec(&[], &mut self.unpacked)? == bzip2::Status::StreamEnd;
            if self.is_between {
                self.stream = Decompress::new(false);
            }
            if self.unpacked.len() == made {
                break;
            }
        }
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        if self.is_between { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The bytes of a file, unpacked. A file that ends too early, or has other bytes, is an error.
pub(super) fn unpacked(
    packing: Packing,
    at: &Path,
    packed: BoxStream<'static, Result<Bytes>>,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let failed = {
        let at = at.clone();
        move |e: io::Error| {
            let reason = match e.kind() {
                io::ErrorKind::UnexpectedEof => "its compressed data end too early".to_string(),
                _ => format!("its compressed data are damaged: {e}"),
            };
            Error::Generic { store: "compressed files", source: format!("`{at}`: {reason}").into() }
        }
    };
    let unpacker = packing.unpacker().map_err(&failed)?;
    let state = (Some(packed), unpacker, VecDeque::new(), failed);
    let all =
        stream::try_unfold(state, |(mut packed, mut unpacker, mut waiting, failed)| async move {
            loop {
                while unpacker.unpacked().len() < UNPACKED_BYTES
                    && let Some(bytes) = waiting.pop_front()
                {
                    let mut bytes: Bytes = bytes;
                    let piece = bytes.split_to(bytes.len().min(PACKED_BYTES));
                    unpacker.push(&piece).map_err(&failed)?;
                    if !bytes.is_empty() {
                        waiting.push_front(bytes);
                    }
                }
                let made = std::mem::take(unpacker.unpacked());
                if !made.is_empty() {
                    return Ok(Some((Bytes::from(made), (packed, unpacker, waiting, failed))));
                }
                let Some(more) = &mut packed else { return Ok(None) };
                match more.next().await.transpose()? {
                    Some(bytes) => waiting.push_back(bytes),
                    None => {
                        packed = None;
                        unpacker.finish().map_err(&failed)?;
                    }
                }
            }
        });
    Ok(all.boxed())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures::TryStreamExt;
    use std::io::Read;

    fn packed(packing: Packing, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match packing {
            Packing::Gzip => flate2::read::GzEncoder::new(bytes, flate2::Compression::fast())
                .read_to_end(&mut out)
                .map(drop),
            Packing::Bzip2 => bzip2::read::BzEncoder::new(bytes, bzip2::Compression::fast())
                .read_to_end(&mut out)
                .map(drop),
            Packing::Zstd => zstd::stream::copy_encode(bytes, &mut out, 1),
        }
        .unwrap();
        out
    }

    async fn read(packing: Packing, packed: &[u8], chunk: usize) -> Result<Vec<u8>> {
        let chunks: Vec<_> = packed.chunks(chunk).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        let all = unpacked(packing, &Path::from("a/b.csv"), stream::iter(chunks).boxed())?;
        let all: Vec<Bytes> = all.try_collect().await?;
        Ok(all.concat())
    }

    #[tokio::test]
    async fn packed_bytes_are_unpacked_and_missing_bytes_are_an_error() {
        let text: Vec<u8> =
            (0..300_000u32).flat_map(|i| format!("{},", i * 7).into_bytes()).collect();
        for packing in [Packing::Gzip, Packing::Bzip2, Packing::Zstd] {
            let once = packed(packing, &text);
            // Several members, as `cat a.gz b.gz` makes them.
            let twice = [once.clone(), once.clone()].concat();
            for chunk in [1000, 1 << 20] {
                assert!(read(packing, &once, chunk).await.unwrap() == text, "{packing:?}");
                assert!(
                    read(packing, &twice, chunk).await.unwrap() == text.repeat(2),
                    "{packing:?}"
                );
            }
            let cut = read(packing, &once[..once.len() / 2], 1000).await.unwrap_err().to_string();
            assert!(cut.contains("`a/b.csv`: its compressed data"), "{packing:?}: {cut}");
            assert!(
                read(packing, b"no compressed data at all", 1000).await.is_err(),
                "{packing:?}"
            );
            // A megabyte of zeros is a few bytes.
            let zeros = vec![0; 20 << 20];
            assert!(read(packing, &packed(packing, &zeros), 1 << 20).await.unwrap() == zeros);
        }
        assert_eq!(Packing::of("a.csv.GZ"), Some(Packing::Gzip));
        assert_eq!(Packing::of("a.csv"), None);
    }
}
