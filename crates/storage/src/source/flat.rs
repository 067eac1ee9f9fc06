//! Arrays whose cells are contiguous in one file: `.npy`, and uncompressed members of `.npz`.
//!
//! ```text
//!   file axes (slowest first)        a region is split at its slowest axes until each part is nearly contiguous
//!   . . . . . . . .                  . . . . . . . .
//!   . # # # # . . .      ─▶          . 1 1 1 1 . . .
//!   . # # # # . . .                  . 2 2 2 2 . . .
//! ```

use crate::source::boxes::{copy_strided, typical_box};
use crate::source::cells::{Raw, swap_bytes};
use crate::source::error::SourceError;
use crate::source::reader::{ArrayReader, Fetched, Piece};
use crate::source::store::LocalFile;
use crate::source::sum::Sum;
use crate::source::texts;
use bytes::Bytes;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, Region, strides};

/// A stretch up to this long is read whole: if most of it is not wanted, and if at least half of it is.
const STRETCH_BYTES: [u64; 2] = [256 << 10, 4 << 20];

/// Like [`STRETCH_BYTES`], for a local file. Plans reserve this much scratch for each operand.
const LOCAL_STRETCH_BYTES: [u64; 2] = [8 << 10, 256 << 10];

/// Lines of a local file from this length on are read one by one.
const DIRECT_BYTES: u64 = 16 << 10;

/// Bytes of the slabs in which flat files are offered as chunks. Part of the logical grid, so never changed lightly.
pub(crate) const SLAB_BYTES: u64 = 8 << 20;

/// Location and layout of the cells in a flat file.
#[derive(Debug, Clone)]
pub(crate) struct Flat {
    /// The file, as a key of the store.
    pub(crate) key: String,
    pub(crate) raw: Raw,
    /// True if cells are not in native byte order.
    pub(crate) swapped: bool,
    /// True if the first axis is the fastest.
    pub(crate) fortran: bool,
    /// Offset of the first cell.
    pub(crate) offset: u64,
    /// The file's content, if it was unpacked into memory.
    pub(crate) memory: Option<Bytes>,
    /// The checksum of the cells, if there is one.
    pub(crate) sum: Option<Arc<Sum>>,
}

/// The logical grid of cells that are contiguous in a file or in memory: slabs of about 8 MiB along the slowest axes.
/// `fortran`: the first axis is the fastest.
pub fn slabs(shape: &[u64], cell_bytes: u64, fortran: bool) -> Grid {
    let mut chunk: Dims = shape.into();
    let mut bytes = shape.iter().fold(cell_bytes, |n, &d| n.saturating_mul(d.max(1)));
    let axes: SmallVec<[usize; 6]> =
        if fortran { (0..shape.len()).rev().collect() } else { (0..shape.len()).collect() };
    for a in axes {
        if bytes <= SLAB_BYTES {
            break;
        }
        let row = bytes / shape[a].max(1);
        chunk[a] = (SLAB_BYTES / row.max(1)).clamp(1, shape[a].max(1));
        bytes = row * chunk[a];
    }
    Grid::regular(shape, &chunk)
}

impl Flat {
    /// True if cells in the file have the same bytes as in memory.
    pub(crate) fn is_verbatim(&self) -> bool {
        self.raw.is_verbatim() && !self.swapped
    }

    /// The same layout without state of earlier reads.
    pub(crate) fn fresh(&self) -> Flat {
        Flat { sum: self.sum.as_ref().map(|sum| Arc::new(sum.fresh())), ..self.clone() }
    }

    pub(crate) async fn fetch(
        &self,
        reader: &ArrayReader,
        region: &Region,
    ) -> Result<Vec<Piece>, SourceError> {
        let parts = self.parts(reader, region);
        reader.store.counters().chunks.fetch_add(parts.len() as u64, Ordering::Relaxed);
        if reader.is_local() || self.memory.is_some() {
            return Ok(parts
                .into_iter()
                .map(|p| Piece { len: p.shape(), ..Piece::at(p.start) })
                .collect());
        }
        let shape = self.file_order(&reader.source.shape);
        let ranges: Vec<Range<u64>> = parts.iter().map(|p| self.stretch(p, &shape)).collect();
        let bytes = reader
            .store
            .get_ranges(&self.key, &ranges)
            .await?
            .ok_or_else(|| SourceError::Changed { what: reader.store.show(&self.key) })?;
        Ok(parts
            .into_iter()
            .zip(bytes)
            .map(|(p, b)| Piece { len: p.shape(), bytes: Some(b), ..Piece::at(p.start) })
            .collect())
    }

    pub(crate) fn decode(
        &self,
        reader: &ArrayReader,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let raw_size = self.raw.size() as usize;
        if raw_size == reader.source.dtype.size() {
            self.gather(reader, fetched, region, out)?;
            if self.swapped {
                swap_bytes(out, raw_size);
            }
            match self.raw.convert(Cow::Borrowed(&*out)) {
                Cow::Borrowed(_) => {}
                Cow::Owned(converted) => out.copy_from_slice(&converted),
            }
            return Ok(());
        }
        let mut cells = vec![0u8; region.cells() as usize * raw_size];
        self.gather(reader, fetched, region, &mut cells)?;
        if self.swapped {
            swap_bytes(&mut cells, raw_size);
        }
        out.copy_from_slice(&self.raw.convert(Cow::Owned(cells)));
        Ok(())
    }

    /// Reads the texts of an array of texts.
    pub(crate) async fn texts(
        &self,
        reader: &ArrayReader,
        region: &Region,
    ) -> Result<Vec<String>, SourceError> {
        texts::check(&reader.name, texts::bytes_of(region.cells(), self.raw.size()))?;
        let fetched = Fetched::new(self.fetch(reader, region).await?);
        let mut cells = vec![0; (region.cells() * self.raw.size()) as usize];
        self.gather(reader, fetched, region, &mut cells)?;
        self.raw.texts(&cells).map_err(|reason| SourceError::Metadata {
            array: reader.name.clone(),
            path: reader.store.show(&self.key),
            reason,
        })
    }

    pub(crate) fn estimate(&self, reader: &ArrayReader, region: &Region) -> u64 {
        let parts = self.parts(reader, region);
        let shape = self.file_order(&reader.source.shape);
        let lengths = parts.iter().map(|p| {
            let r = self.stretch(p, &shape);
            r.end - r.start
        });
        let converted = match self.is_verbatim() {
            true => 0,
            false => region.cells().saturating_mul(self.raw.size()),
        };
        let held: u64 = if reader.is_local() { lengths.max().unwrap_or(0) } else { lengths.sum() };
        held.saturating_add(converted)
    }

    /// Number of requests of operands that read the boxes of `grid`, extrapolated from a typical one.
    pub(crate) fn requests(&self, reader: &ArrayReader, grid: &Grid, origin: &[u64]) -> u64 {
        if self.memory.is_some() {
            return 0;
        }
        let region = typical_box(grid, origin);
        grid.count().saturating_mul(self.parts(reader, &region).len() as u64)
    }

    /// Copies the raw cells of `region`, row-major, in the file's type.
    fn gather(
        &self,
        reader: &ArrayReader,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let size = self.raw.size() as usize;
        let shape = self.file_order(&reader.source.shape);
        let wanted = self.file_order_region(region);
        // Strides of `out`, in the file's order of axes.
        let out_strides = self.file_order(&strides(&region.shape()));
        let file_strides = strides(&shape);
        let file = match self.memory {
            Some(_) => None,
            None => reader.store.local_file(&self.key)?,
        };
        let (mut scratch, mut last) = (Vec::new(), None);
        let lines = reader.source.lines(&region.shape());
        for piece in fetched.pieces {
            let part = Region::at(&piece.at, &piece.len);
            if !wanted.contains(&part) {
                return Err(reader.internal(format!("the part {part} is not in {wanted}")));
            }
            let range = self.stretch(&part, &shape);
            let n = (range.end - range.start) as usize;
            let first = part.start.iter().zip(&wanted.start).zip(&out_strides);
            let first: i64 = first.map(|((p, s), o)| (p - s) as i64 * o).sum();
            let to = first as usize * size;
            let in_order = is_in_order(&piece.len, &file_strides, &out_strides);
            if let (Some(file), true, None) = (&file, in_order, &piece.bytes) {
                if reader.source.plain && lines.is_ahead() {
                    reader.ahead.lines_at(file, range.start, &mut last);
                }
                reader.store.read_exact_at(file, &mut out[to..to + n], range.start)?;
                self.check(reader, &part, range.start, &out[to..to + n])?;
                continue;
            }
            let bytes: &[u8] = match (&piece.bytes, &self.memory, &file) {
                (Some(b), _, _) => b,
                (None, Some(m), _) => {
                    m.get(range.start as usize..range.end as usize).unwrap_or_default()
                }
                (None, None, Some(f)) => read_scratch(reader, f, &mut scratch, &range)?,
                (None, None, None) => {
                    return Err(SourceError::Changed { what: reader.store.show(&self.key) });
                }
            };
            if bytes.len() != n {
                return Err(SourceError::Chunk {
                    array: reader.name.clone(),
                    chunk: part.to_string(),
                    path: reader.store.show(&self.key),
                    reason: format!("the file ends within it: {} of {n} bytes", bytes.len()),
                });
            }
            self.check(reader, &part, range.start, bytes)?;
            let to = (&mut out[to..], &out_strides[..]);
            copy_strided((bytes, &file_strides), to, &piece.len, size)
                .map_err(|reason| reader.internal(reason))?;
        }
        file.map_or(Ok(()), |file| reader.store.check_same(&file))
    }

    /// Adds bytes that were read to the checksum.
    fn check(
        &self,
        reader: &ArrayReader,
        part: &Region,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), SourceError> {
        let Some(sum) = &self.sum else { return Ok(()) };
        sum.add(at, bytes).map_err(|reason| SourceError::Chunk {
            array: reader.name.clone(),
            chunk: part.to_string(),
            path: reader.store.show(&self.key),
            reason: format!("all cells of the array were read: {reason}"),
        })
    }

    /// The parts to read, in the file's order of axes.
    fn parts(&self, reader: &ArrayReader, region: &Region) -> Vec<Region> {
        let mut out = Vec::new();
        if !region.is_empty() {
            let shape = self.file_order(&reader.source.shape);
            let region = self.file_order_region(region);
            let [sparse, dense] = LOCAL_STRETCH_BYTES;
            let bytes = match (reader.is_local(), self.line(&region, &shape)) {
                (false, _) => STRETCH_BYTES,
                // A read of a line straight to its place costs less than a copy of it.
                (true, line) if line >= DIRECT_BYTES => [sparse; 2],
                (true, _) => [sparse, dense],
            };
            self.split(region, &shape, bytes, &mut out);
        }
        out
    }

    fn split(&self, part: Region, shape: &Dims, bytes: [u64; 2], out: &mut Vec<Region>) {
        let range = self.stretch(&part, shape);
        let stretch = range.end - range.start;
        let wanted = part.cells() * self.raw.size();
        let [sparse, dense] = bytes;
        let min = if wanted >= stretch / 2 { dense } else { sparse };
        let axis = (0..part.rank()).find(|&a| part.len(a) > 1);
        match axis {
            Some(a) if stretch > min && stretch > wanted => {
                let middle = part.start[a] + part.len(a) / 2;
                let (mut low, mut high) = (part.clone(), part);
                low.end[a] = middle;
                high.start[a] = middle;
                self.split(low, shape, bytes, out);
                self.split(high, shape, bytes, out);
            }
            _ => out.push(part),
        }
    }

    /// Bytes of a region that lie together.
    fn line(&self, region: &Region, shape: &Dims) -> u64 {
        let mut bytes = self.raw.size();
        for a in (0..region.rank()).rev() {
            bytes = bytes.saturating_mul(region.len(a));
            if region.len(a) < shape[a] {
                break;
            }
        }
        bytes
    }

    /// The bytes from the first to the last cell of a non-empty part.
    fn stretch(&self, part: &Region, shape: &Dims) -> Range<u64> {
        let (steps, size) = (strides(shape), self.raw.size());
        let at = |p: &mut dyn Iterator<Item = u64>| -> u64 {
            p.zip(&steps).map(|(p, s)| p * *s as u64).sum()
        };
        let first = at(&mut part.start.iter().copied());
        let last = at(&mut part.end.iter().map(|e| e - 1));
        self.offset + first * size..self.offset + (last + 1) * size
    }

    fn file_order<T: Copy>(&self, axes: &[T]) -> SmallVec<[T; 6]> {
        if self.fortran { axes.iter().rev().copied().collect() } else { SmallVec::from(axes) }
    }

    fn file_order_region(&self, region: &Region) -> Region {
        Region { start: self.file_order(&region.start), end: self.file_order(&region.end) }
    }
}

fn read_scratch<'a>(
    reader: &ArrayReader,
    file: &LocalFile,
    scratch: &'a mut Vec<u8>,
    range: &Range<u64>,
) -> Result<&'a [u8], SourceError> {
    scratch.resize((range.end - range.start) as usize, 0);
    reader.store.read_exact_at(file, scratch, range.start)?;
    Ok(scratch)
}

/// True if a part is contiguous on both sides, in the same order.
fn is_in_order(len: &[u64], file: &[i64], out: &[i64]) -> bool {
    let mut run = 1;
    (0..len.len()).rev().all(|a| {
        let fits = len[a] == 1 || (file[a] == run && out[a] == run);
        run *= len[a] as i64;
        fits
    })
}
