//! Decodes chunks in place.
//!
//! ```text
//!   region  ┌─────────┐     * rows of a chunk (along its first axis) that are rows of the region are decoded, or
//!           │ 1 1│2 2 │       read, straight into it;
//!           │ 1 1│2 2 │     * else the smallest part that the codecs can read alone, from the first wanted cell to the
//!           └─────────┘       last one or row by row, is decoded into the thread's buffer, and the box copied;
//!                           * long lines of chunks without codecs are read straight to their target, one by one, or
//!                             several at once: see [`lines`].
//! ```

pub(super) mod lines;

use super::Chunked;
use crate::formats::filters::{Filters, Shuffled, give_back};
use crate::source::boxes::{copy_box, fill_box, walk};
use crate::source::cut::{Cut, CutsOf};
use crate::source::error::SourceError;
use crate::source::look;
use crate::source::meta::show;
use crate::source::reader::{ArrayReader, Fetched};
use crate::source::store::LocalFile;
use crate::source::unpack::{at_least, forget_large};
use futures::FutureExt;
use lines::Held;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;
use tessera_planner::region::{Dims, Region};

/// If the unwanted bytes between the wanted parts of two rows exceed this, each row is decoded by itself.
const GAP_BYTES_MIN: usize = 64 << 10;

thread_local! {
    /// The chunk that the thread decodes: new pages for each one would cost more than the decoding.
    static UNIT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The file that the thread reads.
    static FILE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// An encoded chunk, and the codecs that were not applied to it.
type Encoded<'a> = (&'a [u8], u32);

/// Target of the cells of a chunk.
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
    /// True once all its cells are written and were seen not to be NaN.
    is_without_nan: bool,
}

impl Chunked {
    /// See [`ArrayReader::decode_and_look`].
    pub(crate) fn decode(
        &self,
        reader: &ArrayReader,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        let shape = region.shape();
        let expected = self.units(region);
        if fetched.pieces.len() as u64 != expected.cells() {
            return Err(reader.internal(format!(
                "{} chunks were fetched for {region}, expected {}",
                fetched.pieces.len(),
                expected.cells()
            )));
        }
        let (mut absent, mut is_without_nan) = (false, true);
        // Chunks of a shard are adjacent: it is opened once.
        let mut held = Held::default();
        for (i, piece) in fetched.pieces.iter().enumerate() {
            let at = &piece.at;
            let origin: Dims = at.iter().zip(&self.meta.unit).map(|(i, n)| i * n).collect();
            let Some(part) = Region::at(&origin, &self.meta.unit).intersect(region) else {
                return Err(reader.internal(format!("chunk {} is not in {region}", show(at))));
            };
            let mut goal = Goal {
                out,
                shape: &shape,
                to: part.relative_to(&region.start).start,
                from: part.relative_to(&origin).start,
                len: part.shape(),
                is_without_nan: false,
            };
            if self.put_retained(reader, at, &mut goal)? {
                is_without_nan &= goal.is_without_nan;
                continue;
            }
            let there = match (&piece.bytes, &piece.range) {
                (Some(bytes), _) => {
                    self.put(reader, at, (bytes, piece.skipped), &mut goal).map(|()| true)?
                }
                (None, None) if self.is_in_parts() => false,
                (None, range) if fetched.later => {
                    let rest = (&fetched.pieces[i..], &goal.len[..]);
                    match self.read_together(reader, rest, &mut held)? {
                        Some(bytes) => {
                            let encoded = (bytes, piece.skipped);
                            self.put(reader, at, encoded, &mut goal).map(|()| true)?
                        }
                        None => {
                            let part = (range.clone(), piece.skipped);
                            self.read_and_put(reader, at, part, &mut held.file, &mut goal)?
                        }
                    }
                }
                (None, _) => false,
            };
            is_without_nan &= goal.is_without_nan;
            if !there {
                absent |= fetched.later && !self.is_listed();
                fill_box(goal.out, (&shape, &goal.to), &goal.len, &self.meta.fill);
            }
        }
        if absent {
            reader.rests.meets();
            // A check of a local directory does not wait.
            match reader.store.check_there().now_or_never() {
                Some(there) => there?,
                None => return Err(reader.internal("a local directory did not answer at once")),
            }
        }
        Ok(is_without_nan)
    }

    /// Reads a local chunk, or the part `range` of a shard or file, and decodes it; false if it is absent. `skipped`:
    /// see [`crate::formats::Place`].
    fn read_and_put(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        (range, skipped): (Option<Range<u64>>, u32),
        last: &mut Option<LocalFile>,
        goal: &mut Goal<'_>,
    ) -> Result<bool, SourceError> {
        if self.is_absent(at) {
            return Ok(false);
        }
        let (store, key) = (&reader.store, self.object(at));
        if last.as_ref().is_none_or(|l| l.key != key) {
            *last = store.local_file(&key)?;
        }
        let Some(local) = last else {
            return match (range, self.seal(at)) {
                // Its index existed.
                (Some(_), _) => Err(SourceError::Changed { what: store.show(&key) }),
                // A check of a local directory does not wait.
                (None, Some(seal)) => match self.lost(reader, at, seal).now_or_never() {
                    Some(lost) => Err(lost),
                    None => Err(reader.internal("a local directory did not answer at once")),
                },
                (None, None) => Ok(false),
            };
        };
        let (start, bytes) = match range {
            Some(r) if r.end > local.len => {
                let reason = format!(
                    "the index says bytes {} to {}, the object ends at {}",
                    r.start, r.end, local.len
                );
                return Err(self.damaged(reader, at, reason));
            }
            Some(r) => (r.start, r.end - r.start),
            None => (0, local.len),
        };
        let limit = self.encoded_max();
        if let Some(seal) = self.seal(at).filter(|seal| seal.bytes != bytes) {
            return Err(store.corrupt(&key, seal, format!("{bytes} bytes")));
        }
        if bytes > limit {
            return Err(SourceError::ObjectTooLarge { what: store.show(&local.key), bytes, limit });
        }
        if self.meta.is_plain() {
            return self.read_raw(reader, at, local, start..start + bytes, goal).map(|()| true);
        }
        if self.read_swapped(reader, local, start..start + bytes, goal)? {
            return Ok(true);
        }
        FILE.with_borrow_mut(|kept| {
            let room = at_least(kept, bytes as usize);
            let result = store
                .read_exact_at(local, room, start)
                .and_then(|()| store.check_same(local))
                .and_then(|()| self.put(reader, at, (room, skipped), goal));
            forget_large(kept);
            result.map(|()| true)
        })
    }

    /// Reads the wanted part of a chunk without codecs, straight into place if that is rows of the goal.
    fn read_raw(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        local: &LocalFile,
        stored: Range<u64>,
        goal: &mut Goal<'_>,
    ) -> Result<(), SourceError> {
        let all = self.meta.unit_bytes();
        if stored.end - stored.start != all {
            let reason = format!("{} bytes, expected {all}", stored.end - stored.start);
            return Err(self.damaged(reader, at, reason));
        }
        let read = |wanted: Range<usize>, out: &mut [u8]| {
            let offset = stored.start + wanted.start as u64;
            reader.store.read_exact_at(local, out, offset)
        };
        if let Some((wanted, place)) = self.in_place(goal) {
            read(wanted, &mut goal.out[place])?;
            return reader.store.check_same(local);
        }
        let lines = reader.source.lines(goal.shape);
        if lines.is_alone() {
            self.read_lines(reader, (local, stored.start), lines.is_ahead(), goal)?;
            return reader.store.check_same(local);
        }
        UNIT.with_borrow_mut(|kept| {
            // A chunk may end beyond the array. Memory for all of it would exceed the reservation.
            let end = self.wanted(goal).map(|w| w.end).max().unwrap_or(0);
            let room = at_least(kept, end);
            let mut wanted = self.wanted(goal);
            let done = wanted
                .try_for_each(|w| read(w.clone(), &mut room[w]))
                .and_then(|()| reader.store.check_same(local));
            if done.is_ok() {
                self.copy(reader, room, goal);
            }
            forget_large(kept);
            done
        })
    }

    /// Reads the wanted part of a chunk whose only codec is the order of bytes; false for other codecs, or if it is most
    /// of the chunk.
    fn read_swapped(
        &self,
        reader: &ArrayReader,
        local: &LocalFile,
        stored: Range<u64>,
        goal: &mut Goal<'_>,
    ) -> Result<bool, SourceError> {
        let all = self.meta.unit_bytes();
        let is_whole = stored.end - stored.start == all && self.meta.is_in_memory_order();
        let Some(order) = self.meta.codecs.order().filter(|_| is_whole) else { return Ok(false) };
        let wanted = self.wanted(goal).next().filter(|w| w.len() as u64 <= all / 2);
        let Some(wanted) = wanted else { return Ok(false) };
        let Goal { out, shape, to, from, len, .. } = goal;
        UNIT.with_borrow_mut(|kept| {
            // Memory for all of a large record would cost more than the read.
            let room = at_least(kept, wanted.len());
            let offset = stored.start + wanted.start as u64;
            let done = reader.store.read_exact_at(local, room, offset);
            let done = done.and_then(|()| reader.store.check_same(local));
            if done.is_ok() {
                order.swap(room);
                let (from, to) = ((&self.meta.unit[..], &from[..]), (&shape[..], &to[..]));
                walk(from, to, len, reader.source.dtype.size(), |s, d, n| {
                    let first = s - wanted.start;
                    out[d..d + n].copy_from_slice(&room[first..first + n]);
                });
            }
            forget_large(kept);
            done.map(|()| true)
        })
    }

    /// Returns the wanted bytes of a decoded chunk and their target, if both are whole rows.
    fn in_place(&self, goal: &Goal<'_>) -> Option<(Range<usize>, Range<usize>)> {
        let unit = &self.meta.unit;
        let whole = (1..unit.len()).all(|a| goal.len[a] == unit[a] && goal.shape[a] == unit[a]);
        let first = |p: &Dims| p.first().copied().unwrap_or(0) as usize * self.row();
        let bytes = goal.len.first().copied().unwrap_or(1) as usize * self.row();
        let (from, to) = (first(&goal.from), first(&goal.to));
        whole.then(|| (from..from + bytes, to..to + bytes))
    }

    /// Ranges of a decoded chunk that cover all wanted cells: from the first cell to the last, or one range for each
    /// row, where ranges can be decoded separately and skip much.
    fn wanted(&self, goal: &Goal<'_>) -> impl Iterator<Item = Range<usize>> + use<> {
        let unit = &self.meta.unit;
        let cell = self.meta.unit_bytes() / unit.iter().product::<u64>().max(1);
        // The first and the last cell within a row.
        let at = |last: bool| {
            (1..unit.len()).fold(0, |n, a| {
                let end = if last { goal.len[a] - 1 } else { 0 };
                n * unit[a] + goal.from[a] + end
            })
        };
        let row = self.row();
        let (low, high) = ((at(false) * cell) as usize, ((at(true) + 1) * cell) as usize);
        let first = goal.from.first().copied().unwrap_or(0) as usize;
        let count = goal.len.first().copied().unwrap_or(1) as usize;
        let apart = self.meta.codecs.is_in_parts() && row - (high - low) >= GAP_BYTES_MIN;
        let (steps, rows) = if apart { (count, 1) } else { (1, count) };
        (0..steps).map(move |i| {
            let start = (first + i) * row;
            start + low..start + (rows - 1) * row + high
        })
    }

    fn row(&self) -> usize {
        let count = self.meta.unit.first().copied().unwrap_or(1).max(1);
        self.meta.unit_bytes() as usize / count as usize
    }

    /// Copies the wanted box out of a decoded chunk.
    fn copy(&self, reader: &ArrayReader, cells: &[u8], goal: &mut Goal<'_>) {
        let (from, to) = ((&self.meta.unit[..], &goal.from[..]), (goal.shape, &goal.to[..]));
        copy_box(cells, from, goal.out, to, &goal.len, reader.source.dtype.size());
    }

    /// Decodes a chunk into its goal.
    fn put(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        (bytes, skipped): Encoded<'_>,
        goal: &mut Goal<'_>,
    ) -> Result<(), SourceError> {
        let bytes = self.opened(reader, at, bytes)?;
        if let Some(cuts) = self.cuts_of(reader, at, goal) {
            let cut = self.cut(reader, at, (bytes, skipped), cuts)?;
            self.put_cut(reader, &cut, goal)?;
            cuts.keep(at, cut);
            return Ok(());
        }
        if let Some((filters, (shuffled, item))) = self.shuffled(reader, at, (bytes, skipped))? {
            let done = self.put_shuffled(reader, (filters, &shuffled, item), goal);
            give_back(shuffled);
            return done;
        }
        let rows = |part, out: &mut [u8]| self.decode_rows(reader, at, (bytes, skipped), part, out);
        if self.meta.is_in_memory_order() && self.put_by(reader, goal, rows)? {
            return Ok(());
        }
        let cells = self.decode_unit(reader, at, (bytes, skipped))?;
        self.copy(reader, &cells, goal);
        Ok(())
    }

    /// Puts a chunk into its goal that was decoded and retained for another region, so that it is not read again; false
    /// if there is none.
    fn put_retained(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        goal: &mut Goal<'_>,
    ) -> Result<bool, SourceError> {
        let Some(cuts) = self.cuts_of(reader, at, goal) else { return Ok(false) };
        let Some(cut) = cuts.take(at) else { return Ok(false) };
        self.put_cut(reader, &cut, goal)?;
        cuts.reuse(cut.bytes);
        Ok(true)
    }

    /// The retained chunks, if this one is shared with another region.
    fn cuts_of(&self, reader: &ArrayReader, at: &Dims, goal: &Goal<'_>) -> Option<&CutsOf> {
        self.cuts.as_ref().filter(|_| self.is_cut(reader, at, goal))
    }

    /// True if another region needs the other cells of a chunk, which has to be decoded whole.
    fn is_cut(&self, reader: &ArrayReader, at: &Dims, goal: &Goal<'_>) -> bool {
        let (unit, shape) = (&self.meta.unit, &reader.source.shape);
        let whole = |a: usize| goal.len[a] == unit[a].min(shape[a] - at[a] * unit[a]);
        !self.meta.codecs.is_in_parts() && !(0..unit.len()).all(whole)
    }

    /// Decodes a chunk of which other regions have parts, too, as far as it is decoded as a whole.
    fn cut(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        (bytes, skipped): Encoded<'_>,
        cuts: &CutsOf,
    ) -> Result<Cut, SourceError> {
        if let Some((_, (shuffled, item))) = self.shuffled(reader, at, (bytes, skipped))? {
            // In place of the memory that the chunk takes along.
            give_back(Cow::Owned(cuts.room()));
            return Ok(Cut { bytes: shuffled.into_owned(), item: Some(item) });
        }
        if self.meta.is_in_memory_order() {
            let (all, mut cells) = (self.meta.unit_bytes() as usize, cuts.room());
            cells.resize(all, 0);
            if self.decode_rows(reader, at, (bytes, skipped), 0..all, &mut cells)? {
                return Ok(Cut { bytes: cells, item: None });
            }
        }
        let cells = self.decode_unit(reader, at, (bytes, skipped))?.into_owned();
        Ok(Cut { bytes: cells, item: None })
    }

    /// Puts the wanted part of such a chunk into its goal.
    fn put_cut(
        &self,
        reader: &ArrayReader,
        cut: &Cut,
        goal: &mut Goal<'_>,
    ) -> Result<(), SourceError> {
        let (Some(item), Some(filters)) = (cut.item, self.meta.codecs.filters()) else {
            self.copy(reader, &cut.bytes, goal);
            return Ok(());
        };
        self.put_shuffled(reader, (filters, &cut.bytes, item), goal)
    }

    /// Decodes a chunk up to the order of the bytes of its cells, and returns the bytes of an item, too. `None` if its
    /// codecs end with another one.
    fn shuffled<'a>(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        (bytes, skipped): Encoded<'a>,
    ) -> Result<Option<(&Filters, Shuffled<'a>)>, SourceError> {
        let filters = self.meta.codecs.filters().filter(|_| self.meta.is_in_memory_order());
        let Some(filters) = filters else { return Ok(None) };
        let shuffled = filters.shuffled(bytes, skipped);
        let shuffled = shuffled.map_err(|reason| self.damaged(reader, at, reason))?;
        Ok(shuffled.map(|shuffled| (filters, shuffled)))
    }

    /// Puts the wanted part of a shuffled chunk into its goal, block by block.
    fn put_shuffled(
        &self,
        reader: &ArrayReader,
        (filters, shuffled, item): (&Filters, &[u8], usize),
        goal: &mut Goal<'_>,
    ) -> Result<(), SourceError> {
        let dtype = reader.source.dtype;
        let step = (look::BLOCK_BYTES / item).max(1) * item;
        // Blocks of items of another size may begin within a cell.
        let mut is_without_nan = item == dtype.size();
        let join = |part: Range<usize>, out: &mut [u8]| -> Result<bool, SourceError> {
            let mut from = part.start;
            for out in out.chunks_mut(step) {
                let to = from + out.len();
                if !filters.join(shuffled, item, from..to, out) {
                    return Ok(false);
                }
                is_without_nan = is_without_nan && look::is_without_nan(out, dtype);
                from = to;
            }
            Ok(true)
        };
        if !self.put_by(reader, goal, join)? {
            return Err(reader.internal("a chunk was not put together"));
        }
        goal.is_without_nan = is_without_nan;
        Ok(())
    }

    /// Puts the wanted cells of a chunk into its goal. `decode` writes a range of the bytes of its cells, or returns false
    /// if it cannot write this range alone; false if it cannot write all of them, either.
    fn put_by(
        &self,
        reader: &ArrayReader,
        goal: &mut Goal<'_>,
        mut decode: impl FnMut(Range<usize>, &mut [u8]) -> Result<bool, SourceError>,
    ) -> Result<bool, SourceError> {
        let all = self.meta.unit_bytes() as usize;
        if let Some((wanted, place)) = self.in_place(goal)
            && decode(wanted, &mut goal.out[place])?
        {
            return Ok(true);
        }
        UNIT.with_borrow_mut(|kept| {
            let end = self.wanted(goal).map(|w| w.end).max().unwrap_or(0);
            let room = at_least(kept, end);
            let mut decoded = true;
            for wanted in self.wanted(goal) {
                decoded &= decode(wanted.clone(), &mut room[wanted])?;
                if !decoded {
                    break;
                }
            }
            if !decoded {
                decoded = decode(0..all, at_least(kept, all))?;
            }
            if decoded {
                self.copy(reader, kept, goal);
            }
            forget_large(kept);
            Ok(decoded)
        })
    }

    /// Writes a range of a chunk's bytes to `out`, which has its length; false if the codecs do not allow it.
    fn decode_rows(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        (bytes, skipped): Encoded<'_>,
        wanted: Range<usize>,
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        let damaged = |reason| self.damaged(reader, at, reason);
        if wanted != (0..self.meta.unit_bytes() as usize) {
            return self.meta.codecs.decode_part(bytes, wanted, out).map_err(damaged);
        }
        match self.meta.codecs.decode_to(bytes, skipped, out).map_err(damaged)? {
            None => Ok(false),
            Some(n) if n == out.len() => Ok(true),
            Some(n) => Err(self.damaged(reader, at, format!("{n} bytes, expected {}", out.len()))),
        }
    }

    /// Decodes all cells of a unit, in the reader's type.
    fn decode_unit<'a>(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        (bytes, skipped): Encoded<'a>,
    ) -> Result<Cow<'a, [u8]>, SourceError> {
        let cells = self
            .meta
            .codecs
            .decode(bytes, skipped)
            .and_then(|cells| cells.into_fixed().map_err(|e| e.to_string()))
            .map_err(|reason| self.damaged(reader, at, reason))?;
        let all = self.meta.decoded_bytes();
        if cells.len() as u64 != all {
            return Err(self.damaged(reader, at, format!("{} bytes, expected {all}", cells.len())));
        }
        self.meta.finish(cells).map_err(|reason| self.damaged(reader, at, reason))
    }
}
