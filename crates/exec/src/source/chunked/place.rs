//! Encoded chunks become cells in place.
//!
//! ```text
//!   region  ┌─────────┐     of each chunk the rows that the region wants, along its first axis:
//!           │ 1 1│2 2 │       * rows of the chunk that are rows of the region: decoded straight into it,
//!           │ 1 1│2 2 │       * else decoded into the thread's buffer, and the box copied
//!           └─────────┘
//! ```

use super::Chunked;
use crate::source::boxes::{copy_box, fill_box};
use crate::source::error::SourceError;
use crate::source::meta::show;
use crate::source::reader::{ArrayReader, Fetched};
use crate::source::unpack::{at_least, forget_large};
use futures::FutureExt;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use tessera_planner::region::{Dims, Region};

thread_local! {
    /// The chunk that the thread decodes: new pages for each one would cost more than the decoding.
    static UNIT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The file that the thread reads.
    static FILE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Where the cells of a chunk go.
struct Goal<'a> {
    out: &'a mut [u8],
    /// Lengths of the region.
    shape: &'a [u64],
    /// First cell in the region.
    to: Dims,
    /// First cell in the chunk.
    from: Dims,
    /// Cells along each axis.
    len: Dims,
}

impl Chunked {
    pub(crate) fn decode(
        &self,
        reader: &ArrayReader,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let shape = region.shape();
        let expected = self.units(region);
        if fetched.pieces.len() as u64 != expected.cells() {
            return Err(reader.internal(format!(
                "{} chunks were fetched for {region}, expected {}",
                fetched.pieces.len(),
                expected.cells()
            )));
        }
        let fill = self.meta.raw.convert(Cow::Borrowed(self.meta.array.fill_value().as_ne_bytes()));
        let mut absent = false;
        for piece in fetched.pieces {
            let at = piece.at;
            let origin: Dims = at.iter().zip(&self.meta.unit).map(|(i, n)| i * n).collect();
            let Some(part) = Region::at(&origin, &self.meta.unit).intersect(region) else {
                return Err(reader.internal(format!("chunk {} is not in {region}", show(&at))));
            };
            let mut goal = Goal {
                out,
                shape: &shape,
                to: part.relative_to(&region.start).start,
                from: part.relative_to(&origin).start,
                len: part.shape(),
            };
            let there = match &piece.bytes {
                Some(bytes) => self.put(reader, &at, bytes, &mut goal).map(|()| true)?,
                None if fetched.later => self.read_and_put(reader, &at, &mut goal)?,
                None => false,
            };
            if !there {
                absent |= fetched.later;
                fill_box(goal.out, (&shape, &goal.to), &goal.len, &fill);
            }
        }
        if absent {
            // A local directory answers without waiting.
            match reader.store.check_there().now_or_never() {
                Some(there) => there?,
                None => return Err(reader.internal("a local directory did not answer at once")),
            }
        }
        Ok(())
    }

    /// Reads a local chunk and decodes it; false if it is absent.
    fn read_and_put(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        goal: &mut Goal<'_>,
    ) -> Result<bool, SourceError> {
        FILE.with_borrow_mut(|file| {
            let read = reader.store.read_local(&self.key(at), self.encoded_max(), file)?;
            let result = match read {
                None => Ok(false),
                Some(n) => self.put(reader, at, &file[..n], goal).map(|()| true),
            };
            forget_large(file);
            result
        })
    }

    /// Decodes a chunk to where its cells go.
    fn put(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        bytes: &[u8],
        goal: &mut Goal<'_>,
    ) -> Result<(), SourceError> {
        if self.meta.raw.is_verbatim()
            && !self.meta.delta
            && self.put_plain(reader, at, bytes, goal)?
        {
            return Ok(());
        }
        let cells = self.decode_unit(reader, at, bytes)?;
        let size = reader.source.dtype.size();
        let whole = (&self.meta.unit[..], &goal.from[..]);
        copy_box(&cells, whole, goal.out, (goal.shape, &goal.to), &goal.len, size);
        Ok(())
    }

    /// The same of cells that lie in a decoded chunk as they do in memory; false if the codecs need steps in between.
    fn put_plain(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        bytes: &[u8],
        goal: &mut Goal<'_>,
    ) -> Result<bool, SourceError> {
        let (unit, all) = (&self.meta.unit, self.meta.unit_bytes() as usize);
        let rows = unit.first().copied().unwrap_or(1);
        let row = all / rows.max(1) as usize;
        let first = |p: &Dims| p.first().copied().unwrap_or(0) as usize;
        let count = goal.len.first().copied().unwrap_or(1) as usize;
        let start = first(&goal.from) * row;
        let wanted = start..start + count * row;
        let in_place = (1..unit.len()).all(|a| goal.len[a] == unit[a] && goal.shape[a] == unit[a]);
        if in_place {
            let to = first(&goal.to) * row;
            let out = &mut goal.out[to..to + wanted.len()];
            if self.decode_rows(reader, at, bytes, wanted.clone(), out)? {
                return Ok(true);
            }
        }
        let size = reader.source.dtype.size();
        UNIT.with_borrow_mut(|buffer| {
            at_least(buffer, all);
            let mut part: Dims = unit.clone();
            let mut from = goal.from.clone();
            let mut decoded = wanted.len() < all;
            if decoded {
                let n = wanted.len();
                decoded = self.decode_rows(reader, at, bytes, wanted, &mut buffer[..n])?;
                if decoded && let (Some(len), Some(at)) = (part.first_mut(), from.first_mut()) {
                    (*len, *at) = (count as u64, 0);
                }
            }
            if !decoded {
                decoded = self.decode_rows(reader, at, bytes, 0..all, &mut buffer[..all])?;
            }
            if decoded {
                let to = (goal.shape, &goal.to[..]);
                copy_box(buffer, (&part, &from), goal.out, to, &goal.len, size);
            }
            forget_large(buffer);
            Ok(decoded)
        })
    }

    /// Writes a range of a chunk's bytes to `out`, which has its length; false if the codecs do not allow it.
    fn decode_rows(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        bytes: &[u8],
        wanted: Range<usize>,
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        let damaged = |reason| self.damaged(reader, at, reason);
        if wanted != (0..self.meta.unit_bytes() as usize) {
            return self.meta.codecs.decode_part(bytes, wanted, out).map_err(damaged);
        }
        match self.meta.codecs.decode_to(bytes, out).map_err(damaged)? {
            None => Ok(false),
            Some(n) if n == out.len() => Ok(true),
            Some(n) => Err(self.damaged(reader, at, format!("{n} bytes, expected {}", out.len()))),
        }
    }

    /// All cells of a unit, in the reader's type.
    fn decode_unit<'a>(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        bytes: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, SourceError> {
        let cells = self
            .meta
            .codecs
            .decode(bytes)
            .and_then(|cells| cells.into_fixed().map_err(|e| e.to_string()))
            .map_err(|reason| self.damaged(reader, at, reason))?;
        if cells.len() as u64 != self.meta.unit_bytes() {
            return Err(self.damaged(
                reader,
                at,
                format!("{} bytes, expected {}", cells.len(), self.meta.unit_bytes()),
            ));
        }
        Ok(self.meta.raw.convert(if self.meta.delta { self.meta.raw.sum_up(cells) } else { cells }))
    }
}
