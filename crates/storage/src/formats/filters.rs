//! Codecs of chunks in files, each bounded by the size that the metadata imply.

use crate::source::cells::swap_bytes;
use crate::source::codecs::bounded;
use crate::source::inflate;
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tessera_kernels::shuffle::{unshuffle, unshuffle_reversed};

/// A codec that decodes a chunk.
pub(crate) trait Filter: fmt::Debug + Send + Sync {
    /// Decodes `bytes` to at most `limit` bytes. The error describes the damage.
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String>;

    /// Decodes to `out`, which has exactly the decoded length. Returns false if it has no faster way than
    /// [`Filter::undo`].
    fn undo_to(&self, _bytes: &[u8], _out: &mut [u8]) -> Result<bool, String> {
        Ok(false)
    }

    /// Bytes of an item, if all that it does is to group the bytes of items by their place in the item.
    fn shuffled(&self) -> Option<usize> {
        None
    }

    /// Encodes `bytes`; `None` if the codec is not written.
    fn encode(&self, _bytes: Vec<u8>) -> Option<Vec<u8>> {
        None
    }
}

/// The codecs of a chunk, in the order in which a writer applied them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filters {
    list: Vec<Arc<dyn Filter>>,
    /// Bytes of a decoded chunk.
    bytes: usize,
    /// Bytes of a number whose highest byte comes first; 0 if the lowest does.
    swapped: usize,
}

/// Upper bound on the memory that a thread retains for the bytes between two codecs.
const SPARE_MAX: usize = 16 << 20;

thread_local! {
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Memory of `bytes` bytes, with any content.
fn spare(bytes: usize) -> Vec<u8> {
    let mut out = SPARE.take();
    out.resize(bytes, 0);
    out
}

/// Keeps memory for the next chunk.
pub(crate) fn give_back(cells: Cow<'_, [u8]>) {
    if let Cow::Owned(cells) = cells
        && cells.capacity() <= SPARE_MAX
    {
        SPARE.set(cells);
    }
}

/// The bytes of a chunk in the order of their places in items, and the bytes of an item.
pub(crate) type Shuffled<'a> = (Cow<'a, [u8]>, usize);

impl Filters {
    /// Codecs of chunks of `bytes` bytes, with numbers of `swapped` bytes with the highest one first (0: none).
    pub(crate) fn new(list: Vec<Arc<dyn Filter>>, bytes: u64, swapped: usize) -> Filters {
        Filters { list, bytes: bytes as usize, swapped }
    }

    /// The same codecs for chunks of `bytes` bytes.
    pub(crate) fn resized(&self, bytes: u64) -> Filters {
        Filters { bytes: bytes as usize, ..self.clone() }
    }

    /// The same codecs after another one, which a writer would have applied first.
    pub(crate) fn after(mut self, first: Arc<dyn Filter>) -> Filters {
        self.list.insert(0, first);
        self
    }

    /// True if a stored chunk has its cells in their form in memory.
    pub(crate) fn is_raw(&self) -> bool {
        self.list.is_empty() && self.swapped == 0
    }

    /// True if a stored chunk has its cells in their form in memory but for the order of their bytes.
    pub(crate) fn is_order(&self) -> bool {
        self.list.is_empty() && self.swapped != 0
    }

    /// Decodes a chunk to `out`, which has its decoded size. Bit `i` of `skipped`: codec `i` was not applied.
    pub(crate) fn decode_to(
        &self,
        bytes: &[u8],
        skipped: u32,
        out: &mut [u8],
    ) -> Result<(), String> {
        if out.len() == self.bytes
            && let Some((shuffled, item)) = self.shuffled(bytes, skipped)?
        {
            self.join(&shuffled, item, 0..self.bytes, out);
            give_back(shuffled);
            return Ok(());
        }
        let mut cells = Cow::Borrowed(bytes);
        let applied: Vec<&Arc<dyn Filter>> = self.applied(skipped).collect();
        for (i, filter) in applied.iter().enumerate().rev() {
            // The last one to be undone may write its output into place.
            if i == 0 && filter.undo_to(&cells, out)? {
                give_back(cells);
                self.swap(out);
                return Ok(());
            }
            cells = filter.undo(cells, self.limit())?;
        }
        self.fit(&cells, out)?;
        give_back(cells);
        self.swap(out);
        Ok(())
    }

    /// Undoes all codecs except one that groups the bytes of items, and returns the bytes of an item, too. `None` if
    /// another codec has to be undone last.
    pub(crate) fn shuffled<'a>(
        &self,
        bytes: &'a [u8],
        skipped: u32,
    ) -> Result<Option<Shuffled<'a>>, String> {
        let applied: Vec<&Arc<dyn Filter>> = self.applied(skipped).collect();
        let Some((first, others)) = applied.split_first() else { return Ok(None) };
        let Some(item) = first.shuffled() else { return Ok(None) };
        let mut cells = Cow::Borrowed(bytes);
        for (i, filter) in others.iter().enumerate().rev() {
            // Shuffled bytes are as long as the chunk: no more memory is cleared for them.
            cells = filter.undo(cells, if i == 0 { self.bytes } else { self.limit() })?;
        }
        match cells.len() == self.bytes {
            true => Ok(Some((cells, item.max(1)))),
            false => Err(format!("shuffle: {} bytes, expected {}", cells.len(), self.bytes)),
        }
    }

    /// Writes the bytes `part` of a [shuffled](Filters::shuffled) chunk to `out`, which has that length; false, and
    /// nothing, if the part begins or ends within an item.
    pub(crate) fn join(
        &self,
        shuffled: &[u8],
        item: usize,
        part: Range<usize>,
        out: &mut [u8],
    ) -> bool {
        let is_within = |at: usize| !at.is_multiple_of(item) && at != shuffled.len();
        if is_within(part.start) || is_within(part.end) {
            return false;
        }
        if self.swapped == item && cfg!(target_endian = "little") {
            unshuffle_reversed(shuffled, item, part, out);
        } else {
            unshuffle(shuffled, item, part, out);
            self.swap(out);
        }
        true
    }

    /// Decodes like [`Filters::decode_to`], to memory of its own.
    pub(crate) fn decode<'a>(
        &self,
        bytes: &'a [u8],
        skipped: u32,
    ) -> Result<Cow<'a, [u8]>, String> {
        if self.is_raw() && bytes.len() == self.bytes {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut out = vec![0; self.bytes];
        self.decode_to(bytes, skipped, &mut out)?;
        Ok(Cow::Owned(out))
    }

    fn applied(&self, skipped: u32) -> impl Iterator<Item = &Arc<dyn Filter>> {
        let is = move |i: usize| i >= 32 || skipped >> i & 1 == 0;
        self.list.iter().enumerate().filter(move |(i, _)| is(*i)).map(|(_, f)| f)
    }

    /// Upper bound on the output of a codec in the middle: some add a checksum or a header to their input.
    fn limit(&self) -> usize {
        self.bytes.saturating_add(self.bytes / 8).saturating_add(4096)
    }

    fn fit(&self, cells: &[u8], out: &mut [u8]) -> Result<(), String> {
        if cells.len() == out.len() {
            out.copy_from_slice(cells);
            return Ok(());
        }
        Err(format!("it decodes to {} bytes, expected {}", cells.len(), out.len()))
    }

    /// Turns the bytes of whole cells around, if they are stored that way.
    pub(crate) fn swap(&self, out: &mut [u8]) {
        if self.swapped > 1 && cfg!(target_endian = "little") {
            swap_bytes(out, self.swapped);
        }
    }
}

/// zlib's deflate.
#[derive(Debug)]
pub(crate) struct Deflate;

impl Filter for Deflate {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let mut out = spare(limit);
        if let Some(n) = inflate::zlib(&bytes, &mut out) {
            out.truncate(n);
            return Ok(Cow::Owned(out));
        }
        give_back(Cow::Owned(out));
        let stream = flate2::read::ZlibDecoder::new(&*bytes);
        bounded("deflate", stream, limit as u64).map(Cow::Owned)
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        let all = out.len();
        match inflate::zlib_until_full(bytes, out)? {
            (n, true) if n == all => Ok(true),
            (n, true) => Err(format!("deflate: it decodes to {n} bytes, expected {all}")),
            (n, false) if n == all => {
                Err(format!("deflate: it decodes to more than the {n} bytes expected"))
            }
            (n, false) => Err(format!("deflate: it ends after {n} of {all} bytes")),
        }
    }
}

/// A stream of another compressor, or with another header, which is decoded from its begin on.
#[derive(Debug)]
pub(crate) enum Stream {
    Bzip2,
    /// Of one or several members.
    Gzip,
    Zlib,
}

impl Filter for Stream {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let limit = limit as u64;
        let out = match self {
            Stream::Bzip2 => bounded("bzip2", bzip2::read::BzDecoder::new(&*bytes), limit),
            Stream::Gzip => bounded("gzip", flate2::read::MultiGzDecoder::new(&*bytes), limit),
            Stream::Zlib => bounded("zlib", flate2::read::ZlibDecoder::new(&*bytes), limit),
        };
        out.map(Cow::Owned)
    }
}

/// Bytes of numbers of `size` bytes, grouped by their place in the number.
#[derive(Debug)]
pub(crate) struct Shuffle {
    pub(crate) size: usize,
}

impl Filter for Shuffle {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, _: usize) -> Result<Cow<'a, [u8]>, String> {
        if self.size < 2 {
            return Ok(bytes);
        }
        let mut out = vec![0; bytes.len()];
        unshuffle(&bytes, self.size, 0..bytes.len(), &mut out);
        give_back(bytes);
        Ok(Cow::Owned(out))
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        if bytes.len() != out.len() {
            return Err(format!("shuffle: {} bytes, expected {}", bytes.len(), out.len()));
        }
        unshuffle(bytes, self.size.max(1), 0..bytes.len(), out);
        Ok(true)
    }

    fn shuffled(&self) -> Option<usize> {
        Some(self.size)
    }
}

/// The checksum of bytes.
type Sum = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// A checksum of 32 bits, the lowest byte first, before or after the bytes.
pub(crate) struct Checksum {
    name: &'static str,
    sum: Sum,
    is_first: bool,
    /// True if the bytes of each half may be swapped.
    may_be_swapped: bool,
}

impl Checksum {
    pub(crate) fn new(name: &'static str, sum: Sum, is_first: bool) -> Checksum {
        Checksum { name, sum, is_first, may_be_swapped: false }
    }

    /// HDF5's checksum.
    ///
    /// # Source
    /// HDF5's `H5_checksum_fletcher32`; writers before 1.6.3 swapped the bytes of each half, which is accepted, too.
    pub(crate) fn fletcher32() -> Checksum {
        let new = Checksum::new("fletcher32", Box::new(fletcher32), false);
        Checksum { may_be_swapped: true, ..new }
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({}, {})", self.name, self.is_first)
    }
}

impl Filter for Checksum {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, _: usize) -> Result<Cow<'a, [u8]>, String> {
        let name = self.name;
        let parts = match self.is_first {
            true => bytes.split_first_chunk::<4>(),
            false => bytes.split_last_chunk::<4>().map(|(payload, told)| (told, payload)),
        };
        let Some((told, payload)) = parts else {
            return Err(format!("{name}: {} bytes, expected at least 4", bytes.len()));
        };
        let (told, is) = (u32::from_le_bytes(*told), (self.sum)(payload));
        let swapped = (is & 0x00ff_00ff) << 8 | is >> 8 & 0x00ff_00ff;
        if told != is && !(self.may_be_swapped && told == swapped) {
            return Err(format!("{name}: its checksum is {is:08x}, expected {told:08x}"));
        }
        let (from, n) = (if self.is_first { 4 } else { 0 }, payload.len());
        Ok(match bytes {
            Cow::Borrowed(all) => Cow::Borrowed(&all[from..from + n]),
            Cow::Owned(mut all) => {
                all.drain(..from);
                all.truncate(n);
                Cow::Owned(all)
            }
        })
    }

    fn encode(&self, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        let sum = (self.sum)(&bytes).to_le_bytes();
        let at = if self.is_first { 0 } else { bytes.len() };
        bytes.splice(at..at, sum);
        Some(bytes)
    }
}

fn fletcher32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (0u32, 0u32);
    let (words, rest) = bytes.as_chunks::<2>();
    // Sums of 360 words fit 32 bits.
    for part in words.chunks(360) {
        for w in part {
            a += u32::from(u16::from_be_bytes(*w));
            b += a;
        }
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    if let [last] = rest {
        a += u32::from(*last) << 8;
        b += a;
        a = (a & 0xffff) + (a >> 16);
        b = (b & 0xffff) + (b >> 16);
    }
    a = (a & 0xffff) + (a >> 16);
    b = (b & 0xffff) + (b >> 16);
    b << 16 | a
}

/// Zstandard frames.
#[derive(Debug)]
pub(crate) struct Zstd;

impl Filter for Zstd {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        match zstd::bulk::decompress(&bytes, limit) {
            Ok(out) => Ok(Cow::Owned(out)),
            Err(e) => Err(format!("zstd: {e} (expected at most {limit} bytes)")),
        }
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        match crate::source::unpack::whole(bytes, out)? {
            n if n == out.len() => Ok(true),
            n => Err(format!("zstd: it decodes to {n} bytes, expected {}", out.len())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;

    /// 1,000 cells of 4 bytes with the highest byte first, and the chunk of them with shuffle and deflate.
    fn chunk(level: u32) -> (Vec<u8>, Vec<u8>) {
        let cells: Vec<u8> = (0..1_000u32).flat_map(|i| (i * i).to_be_bytes()).collect();
        let shuffled: Vec<u8> =
            (0..4).flat_map(|b| cells.iter().skip(b).step_by(4).copied()).collect();
        let mut packed =
            flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
        packed.write_all(&shuffled).unwrap();
        (cells, packed.finish().unwrap())
    }

    fn filters(bytes: u64, swapped: usize) -> Filters {
        Filters::new(vec![Arc::new(Shuffle { size: 4 }), Arc::new(Deflate)], bytes, swapped)
    }

    #[test]
    fn parts_of_a_shuffled_chunk_are_those_of_the_whole() {
        let (cells, packed) = chunk(6);
        let native: Vec<u8> = (0..1_000u32).flat_map(|i| (i * i).to_ne_bytes()).collect();
        for (swapped, want) in [(0, &cells), (4, &native)] {
            let filters = filters(4_000, swapped);
            let mut out = vec![0; 4_000];
            filters.decode_to(&packed, 0, &mut out).unwrap();
            assert!(out == *want, "{swapped}");
            let (shuffled, item) = filters.shuffled(&packed, 0).unwrap().unwrap();
            for part in [0..4, 4..2_000, 3_996..4_000, 8..8, 0..4_000] {
                let mut out = vec![0; part.len()];
                assert!(filters.join(&shuffled, item, part.clone(), &mut out));
                assert!(out == want[part.clone()], "{swapped} {part:?}");
            }
            // Half an item.
            assert!(!filters.join(&shuffled, item, 2..8, &mut [0; 6]));
        }
        // Numbers of another size than the items.
        let pairs = filters(4_000, 2);
        let mut out = vec![0; 4_000];
        pairs.decode_to(&packed, 0, &mut out).unwrap();
        let mut want = cells.clone();
        pairs.swap(&mut want);
        assert!(out == want);
        // Without shuffle a chunk is decoded as a whole.
        assert!(pairs.shuffled(&packed, 1).unwrap().is_none());
    }

    #[test]
    fn a_shuffled_chunk_has_the_length_of_its_cells() {
        let (_, packed) = chunk(6);
        for (bytes, said) in
            [(3_996, "more than the 3996 bytes"), (4_004, "4000 bytes, expected 4004")]
        {
            let mut out = vec![0; bytes];
            let e = filters(bytes as u64, 0).decode_to(&packed, 0, &mut out).unwrap_err();
            assert!(e.contains(said), "{e}");
        }
        assert!(filters(4_000, 0).shuffled(&packed[..40], 0).is_err());
    }

    #[test]
    fn memory_of_a_chunk_is_that_of_the_next_one() {
        let (_, packed) = chunk(1);
        let (filters, mut out) = (filters(4_000, 0), vec![0; 4_000]);
        filters.decode_to(&packed, 0, &mut out).unwrap();
        let first = SPARE.take();
        assert_eq!(first.len(), 4_000);
        let at = first.as_ptr();
        SPARE.set(first);
        filters.decode_to(&packed, 0, &mut out).unwrap();
        let second = SPARE.take();
        assert_eq!((second.as_ptr(), second.len()), (at, 4_000));
    }

    #[test]
    fn shuffled_bytes_return_to_their_numbers() {
        let numbers: Vec<u8> = (0..24).collect();
        for size in [1, 2, 3, 4, 8, 12] {
            let count = 24 / size;
            let shuffled: Vec<u8> =
                (0..size).flat_map(|b| (0..count).map(move |i| (i * size + b) as u8)).collect();
            let undone = Shuffle { size }.undo(Cow::Borrowed(&shuffled), 24).unwrap();
            assert_eq!(*undone, numbers[..], "{size}");
        }
    }
}
