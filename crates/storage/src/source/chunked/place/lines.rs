//! Reads of local chunks that are cheaper together.
//!
//! ```text
//!   a chunk without codecs    . # # . . # # . . # # .     lines with small gaps are one read, see [`Reads`]
//!   small chunks in a file    [a0] b  [a1] b  [a2] b      and so are chunks, such as records of NetCDF
//! ```

use super::{Chunked, Goal};
use crate::source::boxes::{byte_strides, walk};
use crate::source::error::SourceError;
use crate::source::reader::{ArrayReader, Piece};
use crate::source::store::LocalFile;
use crate::source::unpack::at_least;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::ops::Range;
use tessera_planner::catalog::Reads;
use tessera_planner::region::Dims;

/// Upper bound on the size of chunks that are read together with the following chunks. Larger ones cost more than a
/// read.
const SMALL_BYTES: u64 = 16 << 10;

/// Upper bound on the bytes of chunks that are read at once.
pub(in crate::source::chunked) const TOGETHER_BYTES: u64 = Reads::SCRATCH_BYTES;

thread_local! {
    /// The lines that the thread copies to their target.
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file that a region is read from, and the part of it that is in memory.
#[derive(Default)]
pub(super) struct Held {
    pub(super) file: Option<LocalFile>,
    range: Range<u64>,
    bytes: Vec<u8>,
}

impl Chunked {
    /// Reads the wanted lines of a chunk without codecs that begins at byte `first` of a file. The caller checks that
    /// the file is unchanged.
    pub(super) fn read_lines(
        &self,
        reader: &ArrayReader,
        (local, first): (&LocalFile, u64),
        is_ahead: bool,
        goal: &mut Goal<'_>,
    ) -> Result<(), SourceError> {
        let size = reader.source.dtype.size();
        let unit = &self.meta.unit[..];
        let Goal { out, shape, to, from, len, .. } = goal;
        let (shape, to, from, len) = (&shape[..], &to[..], &from[..], &len[..]);
        let reads = reader.source.reads(unit, len, shape);
        let (unit_strides, strides) = (byte_strides(unit, size), byte_strides(shape, size));
        let byte = |at: &[u64], strides: &[usize]| -> usize {
            at.iter().zip(strides).map(|(&p, s)| p as usize * s).sum()
        };
        let plus = |a: &[u64], b: &[u64]| -> Dims { a.iter().zip(b).map(|(a, b)| a + b).collect() };
        let mut last = None;
        LINES.with_borrow_mut(|kept| {
            each(&reads, len, |at, part| {
                let (from, to) = (plus(from, at), plus(to, at));
                let ends: Dims = part.iter().map(|n| n - 1).collect();
                let low = byte(&from, &unit_strides);
                let bytes = byte(&ends, &unit_strides) + size;
                let offset = first + low as u64;
                if is_ahead {
                    reader.ahead.lines_at(local, offset, &mut last);
                }
                if reads.is_direct {
                    let d = byte(&to, &strides);
                    return reader.store.read_exact_at(local, &mut out[d..d + bytes], offset);
                }
                let room = at_least(kept, bytes);
                reader.store.read_exact_at(local, room, offset)?;
                walk((unit, &from[..]), (shape, &to[..]), part, size, |s, d, n| {
                    out[d..d + n].copy_from_slice(&room[s - low..s - low + n]);
                });
                Ok(())
            })
        })
    }

    /// True if chunks of which a box of `len` cells is wanted are read whole, together with chunks that follow closely.
    pub(in crate::source::chunked) fn is_read_together(&self, len: &[u64]) -> bool {
        let bytes = self.meta.unit_bytes();
        let wanted = len.iter().fold(self.meta.raw.size(), |n, &d| n.saturating_mul(d));
        // Few cells of a chunk without codecs are read alone.
        bytes <= SMALL_BYTES && (!self.meta.is_plain() || wanted >= bytes / 2)
    }

    /// The bytes of the first one of `pieces`, of which a box of `len` cells is wanted, if it is small and others follow
    /// closely in its file: these are read with it. `None` if it is to be read by itself.
    pub(super) fn read_together<'h>(
        &self,
        reader: &ArrayReader,
        (pieces, len): (&[Piece], &[u64]),
        held: &'h mut Held,
    ) -> Result<Option<&'h [u8]>, SourceError> {
        let Some((piece, next)) = pieces.split_first() else { return Ok(None) };
        let (Some(range), Some(file)) = (&piece.range, &self.file) else { return Ok(None) };
        if !self.is_read_together(len) {
            return Ok(None);
        }
        if range.start < held.range.start || held.range.end < range.end {
            let end = end_of_close(range, next);
            if end == range.end {
                return Ok(None);
            }
            let (store, key) = (&reader.store, file.pages.key());
            if held.file.as_ref().is_none_or(|f| f.key != key) {
                held.file = store.local_file(key)?;
            }
            // A file that is gone or too short is the error of the usual way.
            let Some(local) = held.file.as_ref().filter(|f| end <= f.len) else { return Ok(None) };
            held.range = 0..0;
            held.bytes.resize((end - range.start) as usize, 0);
            store.read_exact_at(local, &mut held.bytes, range.start)?;
            store.check_same(local)?;
            held.range = range.start..end;
        }
        let first = (range.start - held.range.start) as usize;
        let bytes = (range.end - range.start) as usize;
        Ok(held.bytes.get(first..first + bytes))
    }
}

/// The end of the pieces that lie closely one after another from `range` on.
fn end_of_close(range: &Range<u64>, next: &[Piece]) -> u64 {
    let mut end = range.end;
    for next in next.iter().filter_map(|p| p.range.as_ref()) {
        let is_close = end <= next.start && next.start - end <= Reads::GAP_BYTES;
        if !is_close || next.end - range.start > TOGETHER_BYTES {
            break;
        }
        end = next.end;
    }
    end
}

/// Calls `read` with each part of a box of `len` cells that is read at once: its first cell in the box, and its lengths.
fn each(
    reads: &Reads,
    len: &[u64],
    mut read: impl FnMut(&[u64], &[u64]) -> Result<(), SourceError>,
) -> Result<(), SourceError> {
    let mut at: Dims = Dims::from_elem(0, len.len());
    loop {
        let part =
            len.iter().zip(&at).enumerate().map(|(a, (&n, &at))| match a.cmp(&reads.apart) {
                Ordering::Less => 1,
                Ordering::Equal => reads.step.min(n - at),
                Ordering::Greater => n,
            });
        let part: Dims = part.collect();
        read(&at, &part)?;
        let mut axis = (reads.apart + 1).min(len.len());
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            at[axis] += if axis == reads.apart { reads.step } else { 1 };
            if at[axis] < len[axis] {
                break;
            }
            at[axis] = 0;
        }
    }
}
