//! Codec chains run backwards, on the caller's thread alone, within bounds.
//!
//! zarrs decompresses whatever comes: a small damaged or hostile chunk could fill the memory. So the general
//! compressors run here with the size that the metadata imply as their bound; all other codecs are zarrs'.

use crate::formats::filters::Filters;
use crate::manifest::TRAILER;
use crate::source::tail::Tail;
use crate::source::{blosc, inflate, unpack};
use std::borrow::Cow;
use std::io::Read;
use std::num::NonZeroU64;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use zarrs::array::codec::api::{
    ArrayToBytesCodecTraits, BytesToBytesCodecTraits, CodecError, CodecOptions,
};
use zarrs::array::codec::{
    BloscCodec, BytesCodec, Bz2Codec, CodecChain, Crc32cCodec, GzipCodec, ZlibCodec, ZstdCodec,
};
use zarrs::array::{ArrayBytes, BytesRepresentation, DataType, FillValue};

/// The codecs of an array's chunks.
#[derive(Debug)]
pub(crate) enum Codecs {
    Zarr(Box<Chain>),
    /// Of a file of another format.
    File(Filters),
}

impl Default for Codecs {
    fn default() -> Self {
        Codecs::File(Filters::default())
    }
}

impl Codecs {
    /// Verifies and strips the checksum at the end of a chunk, if it has one. The other functions take the rest.
    pub(crate) fn opened<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        match self {
            Codecs::Zarr(chain) => chain.opened(bytes),
            Codecs::File(_) => Ok(bytes),
        }
    }

    /// True if a chunk is stored as its cells in memory order.
    pub(crate) fn is_raw(&self) -> bool {
        match self {
            Codecs::Zarr(chain) => chain.is_raw(),
            Codecs::File(filters) => filters.is_raw(),
        }
    }

    /// True if parts of a chunk are decoded without the bytes before them.
    pub(crate) fn is_in_parts(&self) -> bool {
        match self {
            Codecs::Zarr(chain) => chain.is_in_parts(),
            Codecs::File(filters) => filters.is_raw(),
        }
    }

    /// True if the begin of a chunk is decoded without memory for the rest.
    pub(crate) fn is_from_begin(&self) -> bool {
        match self {
            Codecs::Zarr(chain) => chain.is_from_begin(),
            Codecs::File(filters) => filters.is_raw(),
        }
    }

    /// The codecs of a file's chunks, if they are no more than the order of bytes.
    pub(crate) fn order(&self) -> Option<&Filters> {
        match self {
            Codecs::File(filters) if filters.is_order() => Some(filters),
            _ => None,
        }
    }

    /// Decodes the cells of a chunk straight to `out`, which has their size, and returns the number of bytes written;
    /// `None` if these codecs need intermediate steps. `skipped`: see [`Filters::decode_to`].
    pub(crate) fn decode_to(
        &self,
        bytes: &[u8],
        skipped: u32,
        out: &mut [u8],
    ) -> Result<Option<usize>, String> {
        match self {
            Codecs::Zarr(chain) => chain.decode_to(bytes, out),
            Codecs::File(filters) => {
                filters.decode_to(bytes, skipped, out).map(|()| Some(out.len()))
            }
        }
    }

    /// Decodes the bytes `range` of the cells of a chunk to `out`, which has that length, without decoding the bytes
    /// after (and, with Blosc, before) them, or with no more work than for these; false if these codecs decode a chunk
    /// as a whole.
    pub(crate) fn decode_part(
        &self,
        bytes: &[u8],
        range: Range<usize>,
        out: &mut [u8],
    ) -> Result<bool, String> {
        match self {
            Codecs::Zarr(chain) => chain.decode_part(bytes, range, out),
            Codecs::File(filters) if filters.is_raw() => copy_part(bytes, range, out),
            Codecs::File(_) => Ok(false),
        }
    }

    /// The filters of a file's chunks.
    pub(crate) fn filters(&self) -> Option<&Filters> {
        match self {
            Codecs::File(filters) => Some(filters),
            Codecs::Zarr(_) => None,
        }
    }

    /// Returns the cells of a chunk, native-endian; the error describes the damage.
    pub(crate) fn decode<'a>(
        &self,
        bytes: &'a [u8],
        skipped: u32,
    ) -> Result<ArrayBytes<'a>, String> {
        match self {
            Codecs::Zarr(chain) => chain.decode(bytes),
            Codecs::File(filters) => filters.decode(bytes, skipped).map(ArrayBytes::Fixed),
        }
    }
}

fn copy_part(bytes: &[u8], range: Range<usize>, out: &mut [u8]) -> Result<bool, String> {
    let part = bytes
        .get(range.clone())
        .ok_or_else(|| format!("{} bytes, expected at least {}", bytes.len(), range.end))?;
    out.copy_from_slice(part);
    Ok(true)
}

/// Codecs of Zarr.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Array-to-array and array-to-bytes codecs.
    inner: CodecChain,
    /// Bytes-to-bytes codecs, in the order of encoding, each with the representation of its input.
    outer: Vec<(Arc<dyn BytesToBytesCodecTraits>, BytesRepresentation)>,
    shape: Vec<NonZeroU64>,
    dtype: DataType,
    fill: FillValue,
    /// Upper bound on the decoded size of a stage whose own size is not known.
    limit: u64,
    /// True if the compressors decode to the cells in memory order.
    plain: bool,
    /// Codecs of numcodecs that come after all these.
    tail: Tail,
    /// Upper bound on the output of one of them when it is undone.
    tail_limit: usize,
    /// True if the output of these codecs is followed by its CRC-32C: see [`Chain::opened`].
    checked: bool,
}

impl Chain {
    /// The codecs of chunks of `shape`, without a length of 0.
    pub(crate) fn new(
        chain: &CodecChain,
        shape: &[u64],
        dtype: &DataType,
        fill: &FillValue,
        limit: u64,
        tail: Tail,
    ) -> Result<Chain, String> {
        let shape: Vec<NonZeroU64> = shape.iter().filter_map(|&n| NonZeroU64::new(n)).collect();
        let fence = catch_unwind(AssertUnwindSafe(|| {
            let inner = CodecChain::new(
                chain.array_to_array_codecs().to_vec(),
                chain.array_to_bytes_codec().clone(),
                vec![],
            );
            let mut encoded = inner.encoded_representation(&shape, dtype, fill)?;
            let mut outer = Vec::new();
            for codec in chain.bytes_to_bytes_codecs() {
                outer.push((codec.clone(), encoded));
                encoded = codec.encoded_representation(&encoded);
            }
            let checked =
                tail.is_empty() && outer.last().is_some_and(|(codec, _)| ends_with_crc32c(codec));
            if checked {
                outer.pop();
            }
            Ok::<_, CodecError>((inner, outer, checked, encoded.size()))
        }));
        let (inner, outer, checked, encoded) = match fence {
            Ok(made) => made.map_err(|e| e.to_string())?,
            Err(_) => return Err("the codecs do not go together".into()),
        };
        let plain = is_plain(&inner, dtype, fill);
        let (dtype, fill) = (dtype.clone(), fill.clone());
        // Codecs add a header or a checksum to bytes that they cannot compress.
        let encoded = encoded.unwrap_or(limit).min(limit) as usize;
        let tail_limit = encoded.saturating_add(encoded / 8).saturating_add(4096);
        Ok(Chain { inner, outer, shape, dtype, fill, limit, plain, tail, tail_limit, checked })
    }

    /// Verifies and strips the checksum at the end of a chunk, if it has one. The other functions take the rest.
    fn opened<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        if !self.checked {
            return Ok(bytes);
        }
        let (payload, told) = bytes
            .split_last_chunk::<TRAILER>()
            .ok_or_else(|| format!("crc32c: {} bytes, expected at least 4", bytes.len()))?;
        let (told, is) = (u32::from_le_bytes(*told), crc32c::crc32c(payload));
        match told == is {
            true => Ok(payload),
            false => Err(format!("crc32c: its checksum is {is:08x}, expected {told:08x}")),
        }
    }

    /// True if a chunk is stored as its cells in memory order.
    fn is_raw(&self) -> bool {
        self.plain && self.outer.is_empty() && self.tail.is_empty() && !self.checked
    }

    /// True if parts of a chunk are decoded without the bytes before them.
    fn is_in_parts(&self) -> bool {
        self.plain
            && self.tail.is_empty()
            && match &self.outer[..] {
                [] => true,
                [(codec, _)] => codec.as_any().is::<BloscCodec>(),
                _ => false,
            }
    }

    /// True if the begin of a chunk is decoded without memory for the rest. Blosc may have items that are larger than cells:
    /// it decodes the whole chunk then.
    fn is_from_begin(&self) -> bool {
        self.plain
            && self.tail.is_empty()
            && match &self.outer[..] {
                [] => true,
                [(codec, _)] => codec.as_any().is::<ZstdCodec>(),
                _ => false,
            }
    }

    /// Decodes the cells of a chunk straight to `out`, which has their size, and returns the number of bytes written;
    /// `None` if these codecs need intermediate steps.
    fn decode_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<Option<usize>, String> {
        match &self.outer[..] {
            [] if self.plain && self.tail.len() == 1 => {
                Ok(self.tail[0].undo_to(bytes, out)?.then_some(out.len()))
            }
            _ if !self.tail.is_empty() => Ok(None),
            [(codec, _)] if self.plain && codec.as_any().is::<ZstdCodec>() => {
                unpack::whole(bytes, out).map(Some)
            }
            [(codec, _)] if self.plain && codec.as_any().is::<BloscCodec>() => {
                blosc::Buffer::new(bytes, out.len() as u64)?.decode(out).map(Some)
            }
            [] if self.plain => {
                if let Some(to) = out.get_mut(..bytes.len()) {
                    to.copy_from_slice(bytes);
                }
                Ok(Some(bytes.len()))
            }
            _ => Ok(None),
        }
    }

    /// Decodes the bytes `range` of the cells of a chunk to `out`, which has that length, without decoding the bytes
    /// after (and, with Blosc, before) them; false if these codecs decode a chunk as a whole.
    fn decode_part(
        &self,
        bytes: &[u8],
        range: Range<usize>,
        out: &mut [u8],
    ) -> Result<bool, String> {
        match &self.outer[..] {
            _ if !self.tail.is_empty() => Ok(false),
            [(codec, decoded)] if self.plain && codec.as_any().is::<BloscCodec>() => {
                let limit = decoded.size().unwrap_or(self.limit).min(self.limit);
                blosc::Buffer::new(bytes, limit)?.decode_part(range, out)
            }
            [(codec, decoded)] if self.plain && codec.as_any().is::<ZstdCodec>() => {
                // Near the end, decoding the whole chunk is faster: cells are then decoded straight into place.
                let all = decoded.size().unwrap_or(self.limit).min(self.limit);
                match (range.end as u64) < all - all / 8 {
                    true if unpack::part(bytes, range.clone(), out)? => Ok(true),
                    true => Err(format!("zstd: fewer than the {} bytes wanted", range.end)),
                    false => Ok(false),
                }
            }
            [] if self.plain => copy_part(bytes, range, out),
            _ => Ok(false),
        }
    }

    /// Returns the cells of a chunk, native-endian; the error describes the damage.
    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<ArrayBytes<'a>, String> {
        let mut bytes = Cow::Borrowed(bytes);
        for filter in self.tail.iter().rev() {
            bytes = filter.undo(bytes, self.tail_limit)?;
        }
        for (codec, decoded) in self.outer.iter().rev() {
            bytes = self.undo(codec, decoded, bytes)?;
        }
        run(&self.inner, bytes, &self.shape, &self.dtype, &self.fill)
    }

    fn undo<'a>(
        &self,
        codec: &Arc<dyn BytesToBytesCodecTraits>,
        decoded: &BytesRepresentation,
        bytes: Cow<'a, [u8]>,
    ) -> Result<Cow<'a, [u8]>, String> {
        let limit = decoded.size().unwrap_or(self.limit).min(self.limit);
        let any = codec.as_any();
        if any.is::<ZstdCodec>() {
            return match zstd::bulk::decompress(&bytes, limit as usize) {
                Ok(v) => Ok(Cow::Owned(v)),
                Err(e) => Err(format!("zstd: {e} (expected at most {limit} bytes)")),
            };
        }
        let is_gzip = any.is::<GzipCodec>();
        if decoded.size().is_some() && (is_gzip || any.is::<ZlibCodec>()) {
            let mut out = vec![0; limit as usize];
            let n = match is_gzip {
                // The stream may have another member.
                true => inflate::gzip(&bytes, &mut out).filter(|n| *n == out.len()),
                false => inflate::zlib(&bytes, &mut out),
            };
            if let Some(n) = n {
                out.truncate(n);
                return Ok(Cow::Owned(out));
            }
        }
        if is_gzip {
            let stream = flate2::read::MultiGzDecoder::new(&*bytes);
            return bounded("gzip", stream, limit).map(Cow::Owned);
        }
        if any.is::<ZlibCodec>() {
            let stream = flate2::read::ZlibDecoder::new(&*bytes);
            return bounded("zlib", stream, limit).map(Cow::Owned);
        }
        if any.is::<Bz2Codec>() {
            let stream = bzip2::read::MultiBzDecoder::new(&*bytes);
            return bounded("bz2", stream, limit).map(Cow::Owned);
        }
        if any.is::<BloscCodec>() {
            // Its header has the decoded size; zarrs would allocate that.
            blosc::check(&bytes, limit)?;
        }
        match catch_unwind(AssertUnwindSafe(|| codec.decode(bytes, decoded, &options()))) {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err("its codec failed".into()),
        }
    }
}

/// True if a codec is Zarr's `crc32c` with the checksum at the end. The test encodes one byte, as numcodecs' codec of
/// that name may have it in front and zarrs does not tell.
fn ends_with_crc32c(codec: &Arc<dyn BytesToBytesCodecTraits>) -> bool {
    let byte = [0x5a];
    codec.as_any().is::<Crc32cCodec>()
        && codec.encode(Cow::Borrowed(&byte), &options()).is_ok_and(|out| {
            out.strip_prefix(&byte) == Some(&crc32c::crc32c(&byte).to_le_bytes()[..])
        })
}

/// True if the chain leaves the bytes of cells unchanged. The test decodes one cell, as zarrs does not expose the
/// byte order.
fn is_plain(chain: &CodecChain, dtype: &DataType, fill: &FillValue) -> bool {
    if !chain.array_to_array_codecs().is_empty() {
        return false;
    }
    if !chain.array_to_bytes_codec().as_any().is::<BytesCodec>() {
        return false;
    }
    let cell: Vec<u8> = (0..fill.size() as u8).collect();
    run(chain, Cow::Borrowed(&cell), &[NonZeroU64::MIN], dtype, fill)
        .and_then(|c| c.into_fixed().map_err(|e| e.to_string()))
        .is_ok_and(|c| *c == cell[..])
}

/// Runs a chain backwards; a panic of a codec means damaged data.
pub(crate) fn run<'a>(
    chain: &CodecChain,
    bytes: Cow<'a, [u8]>,
    shape: &[NonZeroU64],
    dtype: &DataType,
    fill: &FillValue,
) -> Result<ArrayBytes<'a>, String> {
    match catch_unwind(AssertUnwindSafe(|| chain.decode(bytes, shape, dtype, fill, &options()))) {
        Ok(Ok(cells)) => Ok(cells),
        Ok(Err(e)) => Err(e.to_string()),
        Err(_) => Err("its codec failed".into()),
    }
}

/// One thread: the scheduler counts threads, zarrs' own pool would escape it.
fn options() -> CodecOptions {
    CodecOptions::default().with_concurrent_target(1).with_chunk_concurrent_minimum(1)
}

/// Reads all bytes of `from`, if there are at most `limit`.
pub(crate) fn bounded(what: &str, from: impl Read, limit: u64) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(limit.min(64 << 20) as usize);
    from.take(limit.saturating_add(1)).read_to_end(&mut out).map_err(|e| format!("{what}: {e}"))?;
    if out.len() as u64 > limit {
        return Err(format!("{what}: it decodes to more than the {limit} bytes expected"));
    }
    Ok(out)
}
