#![expect(unsafe_code, reason = "tiles are passed by pointer; each block says why it is sound")]
//! Reductions that keep whole rows, several rows at a time.
//!
//! ```text
//!   rows of 5 tiles      state                 walked    1 4 7 …
//!   a a a a a            s s s s s                       2 5 8 …
//!   b b b b b                                            3 6 9 …
//!   c c c c c
//! ```
//! The state of a row is read and written for each row that is accumulated into it. With bands, a few tiles at a time,
//! it comes from the outer caches once per band instead of once per row, while each row is still read from its first
//! cell to its last. Every cell of the state accumulates its cells in the same order, so no bit depends on the bands.
//!
//! Tiles begin at row starts, so the last one of a row may be short: its end holds cells of the next row, which are
//! ignored.

use super::StridedInput;
use super::compile::{Compiled, InputSource};
use super::run::{Reduction, TILE_BYTES};
use super::steady::{Loop, check};
use crate::KernelError;
use crate::ops::{IotaFn, N};
use crate::partial::{Piece, PieceFn};
use tessera_planner::region::Region;

/// Upper bound on the rows of a band.
pub(super) const ROWS: usize = 8;
/// Rows that are read at a time over all inputs: the processor prefetches this many streams.
const STREAMS: usize = 16;
/// Tiles of a row that are accumulated together: calling each operation for one tile costs as much as a cheap
/// operation.
const GROUP: usize = 4;
/// Bytes of the buffer of a repeated cell.
const SPARE_BYTES: usize = GROUP * TILE_BYTES;
/// Cells between two polls for cancellation.
const CANCEL_CELLS: usize = 1 << 16;

/// Layout of an input in a row.
enum Lie {
    /// Base address, size of a cell, and end of the input's memory.
    Moves { base: *const u8, size: usize, end: *const u8 },
    /// One cell for the whole row: base address and size.
    Still { base: *const u8, size: usize },
    /// An index: the function that writes it, and the increment.
    Counts { f: IotaFn, step: i64 },
}

/// An input that has the same layout in all rows.
struct RowInput {
    slot: usize,
    lie: Lie,
    /// Byte offset (or index) of the first cell of the region's first row.
    first: i64,
    /// Bytes (or index increment) per step along the outer axes.
    steps: Vec<i64>,
}

/// A row of a band.
struct Row {
    /// Address of each slot's tile.
    ptr: Vec<*mut u8>,
    /// Indices: slot, function that writes it, value, increment.
    counts: Vec<(usize, IotaFn, i64, i64)>,
    /// Slots that move, with their steps in bytes.
    moves: Vec<(usize, usize)>,
    entries: Vec<RowPart>,
}

/// A part of a reduction in a row.
struct RowPart {
    f: PieceFn,
    piece: Piece,
    value: usize,
    valid: Option<usize>,
}

/// A region whose rows are kept by all reductions.
pub(super) struct Rows<'a> {
    compiled: &'a Compiled,
    inputs: Vec<RowInput>,
    /// Lengths of the outer axes.
    outer: Vec<u64>,
    /// Number of cells of a row.
    len: usize,
    /// Upper bound on the rows of a band.
    band: usize,
    /// Tile buffers for repeated cells and short tiles, one per input and row of a band.
    spare: *mut u8,
}

/// Bytes of tile buffers that rows need besides those of the program.
pub(super) fn spare_bytes(compiled: &Compiled) -> usize {
    compiled.inputs.len() * ROWS * SPARE_BYTES
}

impl<'a> Rows<'a> {
    /// Returns `None` if rows are too short, not kept by every reduction, or not contiguous in memory.
    pub(super) fn find(
        compiled: &'a Compiled,
        region: &Region,
        inputs: &[StridedInput<'_>],
        reductions: &[Reduction],
        spare: *mut u8,
    ) -> Option<Rows<'a>> {
        let len = reductions.first()?.walk.kept_run()?;
        if len < N as u64 || reductions.iter().any(|r| r.walk.kept_run() != Some(len)) {
            return None;
        }
        let shape = region.shape();
        let (mut inner, mut cells) = (shape.len(), 1);
        while cells < len {
            inner = inner.checked_sub(1)?;
            cells *= shape[inner];
        }
        if cells != len || shape[..inner].iter().product::<u64>() < 2 {
            return None;
        }
        let mut rows = Rows {
            compiled,
            inputs: Vec::with_capacity(compiled.inputs.len()),
            outer: shape[..inner].to_vec(),
            len: len as usize,
            band: ROWS,
            spare,
        };
        for i in &compiled.inputs {
            let (lie, first, steps) = match &i.source {
                InputSource::Field(f, _) => {
                    let input = &inputs[*f];
                    let size = input.dtype.size();
                    let base = input.bytes.as_ptr();
                    let lie = match even(&shape[inner..], &input.strides[inner..])? {
                        0 => Lie::Still { base, size },
                        1 if base.align_offset(size) == 0 => {
                            Lie::Moves { base, size, end: input.bytes.as_ptr_range().end }
                        }
                        _ => return None,
                    };
                    let bytes = |n: i64| n * size as i64;
                    let steps = input.strides[..inner].iter().map(|s| bytes(*s)).collect();
                    (lie, bytes(input.offset), steps)
                }
                InputSource::Index(index) => {
                    let step = even(&shape[inner..], &index.strides[inner..])?;
                    let lie = Lie::Counts { f: index.count, step };
                    (lie, index.first(region), index.strides[..inner].to_vec())
                }
            };
            rows.inputs.push(RowInput { slot: i.slot as usize, lie, first, steps });
        }
        let moving = rows.inputs.iter().filter(|i| matches!(i.lie, Lie::Moves { .. })).count();
        rows.band = (STREAMS / moving.max(1)).clamp(2, ROWS);
        Some(rows)
    }

    /// Runs all rows.
    pub(super) fn run(
        &self,
        inner: &Loop,
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let mut left = self.outer.iter().product::<u64>();
        let mut at = vec![0u64; self.outer.len()];
        let mut band: Vec<Row> = (0..self.band).map(|_| Row::new(inner, &self.inputs)).collect();
        let mut done = CANCEL_CELLS;
        while left > 0 {
            if done >= CANCEL_CELLS {
                done = 0;
                if cancel() {
                    return Err(KernelError::Cancelled);
                }
            }
            let many = (self.band as u64).min(left) as usize;
            for (k, row) in band[..many].iter_mut().enumerate() {
                self.place(k, &at, row);
                row.enter(reductions, self.len);
                next(&mut at, &self.outer);
            }
            self.tiles(inner, &mut band[..many])?;
            left -= many as u64;
            done += many * self.len;
        }
        Ok(())
    }

    /// Points a row's inputs at their first cells.
    fn place(&self, k: usize, at: &[u64], row: &mut Row) {
        row.counts.clear();
        for (number, i) in self.inputs.iter().enumerate() {
            let moved = at.iter().zip(&i.steps);
            let first =
                moved.fold(i.first, |s, (p, step)| s.wrapping_add(step.wrapping_mul(*p as i64)));
            match i.lie {
                // In bounds: the view was checked against its memory.
                Lie::Moves { base, .. } => {
                    row.ptr[i.slot] = base.wrapping_offset(first as isize).cast_mut();
                }
                Lie::Still { base, size } => {
                    let to = self.spare(number, k);
                    // SAFETY: the cell is in checked memory; the buffer has GROUP * N cells.
                    unsafe { repeat(base.wrapping_offset(first as isize), to, size) };
                    row.ptr[i.slot] = to;
                }
                Lie::Counts { f, step } => row.counts.push((i.slot, f, first, step)),
            }
        }
    }

    /// Returns an input's own buffer for a row of a band.
    fn spare(&self, input: usize, row: usize) -> *mut u8 {
        self.spare.wrapping_add((input * ROWS + row) * SPARE_BYTES)
    }

    fn tiles(&self, inner: &Loop, band: &mut [Row]) -> Result<(), KernelError> {
        let (mut whole, rest) = (self.len / N, self.len % N);
        while whole > 0 {
            let tiles = whole.min(inner.most(GROUP));
            whole -= tiles;
            for row in &mut *band {
                row.tiles(self.compiled, inner, tiles, tiles * N)?;
            }
        }
        if rest > 0 {
            for (k, row) in band.iter_mut().enumerate() {
                self.shorten(k, rest, row);
                row.tiles(self.compiled, inner, 1, rest)?;
            }
        }
        Ok(())
    }

    /// Copies a row's last cells to a buffer from which a whole tile can be read.
    fn shorten(&self, k: usize, n: usize, row: &mut Row) {
        for (number, i) in self.inputs.iter().enumerate() {
            let Lie::Moves { size, end, .. } = i.lie else { continue };
            let from = row.ptr[i.slot].cast_const();
            if from.wrapping_add(N * size) <= end {
                continue;
            }
            let to = self.spare(number, k);
            // SAFETY: n cells are left of the row, and the buffer has N.
            unsafe { std::ptr::copy_nonoverlapping(from, to, n * size) };
            row.ptr[i.slot] = to;
        }
    }
}

impl Row {
    fn new(inner: &Loop, inputs: &[RowInput]) -> Row {
        let moves = inputs.iter().filter_map(|i| match i.lie {
            Lie::Moves { size, .. } => Some((i.slot, size * N)),
            _ => None,
        });
        Row {
            ptr: inner.ptr.clone(),
            moves: moves.collect(),
            counts: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Takes the states of the current row, and moves the reductions to the next one.
    fn enter(&mut self, reductions: &mut [Reduction], len: usize) {
        self.entries.clear();
        for r in reductions {
            let (position, step) = r.walk.position();
            for part in &r.parts {
                let mut piece = part.piece;
                (piece.out, piece.from, piece.to) = (r.walk.out(), 0, N);
                (piece.position, piece.step) = (position, step);
                piece.codes = std::ptr::null();
                let (f, value, valid) = part.enters(true);
                self.entries.push(RowPart { f, piece, value, valid });
            }
            r.walk.advance(len as u64);
            r.ended();
        }
    }

    /// Runs the row's next tiles, at most [`Loop::most`], of which `n` cells are used.
    #[inline]
    fn tiles(
        &mut self,
        compiled: &Compiled,
        inner: &Loop,
        tiles: usize,
        n: usize,
    ) -> Result<(), KernelError> {
        for (slot, f, value, step) in &mut self.counts {
            // SAFETY: the buffer of an index has TILES tiles of 8 aligned bytes per cell.
            unsafe { f(self.ptr[*slot], *value, *step, tiles) };
            *value = value.wrapping_add(step.wrapping_mul((tiles * N) as i64));
        }
        // SAFETY: moving inputs have this many whole tiles left in their row (or one in a buffer of their own), still
        // ones have GROUP tiles, the program's own slots TILES.
        unsafe { inner.tiles_at(&self.ptr, tiles) };
        if !compiled.checks.is_empty() {
            check(&compiled.checks, &self.ptr, n)?;
        }
        for e in &mut self.entries {
            e.piece.to = n;
            e.piece.values = self.ptr[e.value];
            e.piece.valid = e.valid.map_or(std::ptr::null(), |v| self.ptr[v].cast_const());
            // SAFETY: the fields are those that were checked for this state, the walk stays within it, and the tiles
            // are valid.
            unsafe { (e.f)(&e.piece) };
            e.piece.out += n;
        }
        for (slot, step) in &self.moves {
            self.ptr[*slot] = self.ptr[*slot].wrapping_add(*step * tiles);
        }
        Ok(())
    }
}

/// Advances to the next position, row-major; wraps around at the end.
pub(super) fn next(at: &mut [u64], shape: &[u64]) {
    for (p, n) in at.iter_mut().zip(shape).rev() {
        *p += 1;
        if *p < *n {
            return;
        }
        *p = 0;
    }
}

/// The common step of axes that form one run; `None` if they do not.
pub(super) fn even(shape: &[u64], steps: &[i64]) -> Option<i64> {
    let mut run: Option<(u64, i64)> = None;
    for (&n, &step) in shape.iter().zip(steps).rev().filter(|(n, _)| **n != 1) {
        run = match run {
            None => Some((n, step)),
            Some((len, inner)) if inner.checked_mul(len as i64) == Some(step) => {
                Some((len * n, inner))
            }
            Some(_) => return None,
        };
    }
    Some(run.map_or(0, |(_, step)| step))
}

/// Fills the tiles of a group with one cell.
///
/// # Safety
/// `from` is valid for a cell of `size` bytes, `to` for GROUP * N of them.
unsafe fn repeat(from: *const u8, to: *mut u8, size: usize) {
    for i in 0..GROUP * N {
        // SAFETY: `i` is below GROUP * N, for which `to` has room; `from` is one cell.
        unsafe { std::ptr::copy_nonoverlapping(from, to.add(i * size), size) };
    }
}
