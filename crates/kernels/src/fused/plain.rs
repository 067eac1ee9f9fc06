#![expect(unsafe_code, reason = "cells are passed by pointer; each block says why it is sound")]
//! Reductions of inputs in place: nothing is computed, so no tile is needed.
//!
//! ```text
//!   [t, y, x] of 100 × 125 × 125, over x    lines of 125 cells, one call for all contiguous ones
//!                                 over y    bands of up to 8 rows of 125 cells that enter the same row of the state
//!                                 over t    bands of up to 8 rows of 15,625 cells
//!        groups of 4 and 4 along y and x    31 lines of 4 cells and one of 1 in each row
//! ```
//! Tiles would cut rows and lines that are not multiples of 64 cells into pieces. Each cell is accumulated in the same
//! order as with tiles, so no bit depends on the path.

use super::StridedInput;
use super::compile::{Compiled, InputSource, Ins};
use super::rows::{ROWS, even, next};
use super::run::{Part, Reduction};
use super::walk::Run;
use crate::KernelError;
use crate::ops::N;
use crate::partial::{LANE_RUN, PairFn};
use smallvec::SmallVec;
use tessera_planner::region::Region;

/// Cells that all parts accumulate, one part after the other, before the next: they stay in the first-level cache.
const BLOCK: usize = 1 << 12;
/// Smallest average number of cells of a stretch.
const STRETCH: usize = 8;
/// Cells between two polls for cancellation.
const CANCEL_CELLS: usize = 1 << 16;

/// An input whose runs are contiguous in memory.
struct Input {
    slot: usize,
    size: usize,
    /// Address of the region's first cell.
    first: *const u8,
    /// Bytes per step along the outer axes.
    steps: SmallVec<[i64; 6]>,
}

/// Cells of a run that belong to groups with consecutive numbers, the same number of cells each: each group is a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    /// The first cell.
    from: usize,
    /// The first group, in cells of the state.
    group: usize,
    /// Cells per group.
    len: usize,
    /// Number of groups.
    many: usize,
}

/// A region whose runs are contiguous in memory and the same for all reductions.
pub(super) struct Plain {
    inputs: SmallVec<[Input; 2]>,
    /// Lengths of the axes outside the runs; axes along which all inputs step evenly are merged.
    outer: SmallVec<[u64; 6]>,
    run: Run,
    /// Stretches of a run with groups.
    stretches: SmallVec<[Stretch; 4]>,
    /// Number of cells of a run.
    len: usize,
    /// Number of contiguous runs with contiguous cells of the state.
    many: usize,
}

impl Plain {
    /// Returns `None` if something is computed or masked, if the reductions do not share their runs, or if these are
    /// not contiguous in memory.
    pub(super) fn find(
        compiled: &Compiled,
        code: &[Ins],
        region: &Region,
        inputs: &[StridedInput<'_>],
        reductions: &[Reduction],
    ) -> Option<Plain> {
        let walk = &reductions.first()?.walk;
        let computes = !code.is_empty() || !compiled.checks.is_empty();
        if computes || region.is_empty() || !reductions.iter().all(|r| r.walk.goes_with(walk)) {
            return None;
        }
        let run = walk.run();
        let takes = |p: &Part| {
            // A constant is not an input.
            compiled.inputs.iter().any(|i| i.slot as usize == p.value)
                && match run {
                    Run::Kept => true,
                    Run::Reduced { .. } => p.fns.lines.is_some(),
                    // The lines of groups are accumulated directly into the state, whatever tiles they lie in.
                    Run::Grouped => {
                        p.fns.lines.is_some() && !p.fns.by_tiles && !p.fns.has_positions
                    }
                }
        };
        let mut parts = reductions.iter().flat_map(|r| &r.parts);
        if !parts.all(|p| p.valid.is_none() && p.tail.is_none() && takes(p)) {
            return None;
        }
        let shape = region.shape();
        let (len, several) = (walk.run_len(), walk.lines());
        let stretches = match run {
            Run::Grouped => stretches(walk.codes().get(..len as usize)?)?,
            _ => SmallVec::new(),
        };
        let mut found = None;
        // All contiguous runs at once, or each run by itself.
        for many in [several, 1] {
            let inner = inner_axes(&shape, len * many)?;
            let places = compiled
                .inputs
                .iter()
                .map(|i| {
                    let InputSource::Field(f, _) = &i.source else { return None };
                    input(i.slot as usize, &inputs[*f], &shape, inner)
                })
                .collect::<Option<SmallVec<_>>>();
            if let Some(mut inputs) = places {
                let outer = merge(&shape[..inner], &mut inputs);
                let (len, many) = (len as usize, many as usize);
                found = Some(Plain { inputs, outer, run, stretches, len, many });
                break;
            }
        }
        found
    }

    /// Runs all reductions.
    pub(super) fn run(
        &self,
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let at = SmallVec::from_elem(0, self.outer.len());
        let mut runs = Runs { plain: self, at, turn: 0, done: 0 };
        let mut left = self.outer.iter().product::<u64>();
        while left > 0 {
            left -= match self.run {
                Run::Kept => runs.band(reductions, cancel)?,
                Run::Grouped => runs.groups(reductions, cancel)?,
                Run::Reduced { .. } => runs.lines(reductions, cancel)?,
            };
        }
        Ok(())
    }

    fn input(&self, part: &Part) -> usize {
        // Every part reads an input, as was checked before.
        self.inputs.iter().position(|i| i.slot == part.value).unwrap_or(0)
    }
}

/// The state of a pass over the runs.
struct Runs<'a> {
    plain: &'a Plain,
    /// Position on the outer axes.
    at: SmallVec<[u64; 6]>,
    /// Place of the next line in its tile.
    turn: usize,
    /// Cells since the last poll for cancellation.
    done: usize,
}

impl Runs<'_> {
    fn count(&mut self, cells: usize, cancel: &dyn Fn() -> bool) -> Result<(), KernelError> {
        self.done += cells;
        if self.done >= CANCEL_CELLS {
            self.done = 0;
            if cancel() {
                return Err(KernelError::Cancelled);
            }
        }
        Ok(())
    }

    /// Address of the current run of an input.
    fn place(&self, i: &Input) -> *const u8 {
        let moved = self.at.iter().zip(&i.steps);
        // In bounds: the view was checked against its memory.
        i.first.wrapping_offset(moved.fold(0, |s, (p, step)| s + step * *p as i64) as isize)
    }

    /// Number of rows from here on, at least one, that are evenly spaced and enter the same cells.
    fn alike(&self, reductions: &[Reduction]) -> u64 {
        let there = match (self.plain.outer.last(), self.at.last()) {
            (Some(n), Some(at)) => n - at,
            _ => 1,
        };
        reductions.iter().fold(there, |n, r| n.min(r.walk.alike()))
    }

    /// Moves past `many` runs that are alike.
    fn past(&mut self, many: u64, reductions: &mut [Reduction]) {
        if let Some(at) = self.at.last_mut() {
            *at += many - 1;
        }
        next(&mut self.at, &self.plain.outer);
        reductions.iter_mut().for_each(|r| r.walk.next_alike(many));
    }

    /// Collects the next rows that enter the same cells; returns their number.
    fn band(
        &mut self,
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<u64, KernelError> {
        let plain = self.plain;
        let mut rows: SmallVec<[*const u8; 2 * ROWS]> =
            SmallVec::from_elem(std::ptr::null(), plain.inputs.len() * ROWS);
        let out = reductions[0].walk.out();
        let (first, step) = (reductions[0].walk.position().0, reductions[0].walk.run_step());
        let many = self.alike(reductions).min(ROWS as u64) as usize;
        for (k, i) in plain.inputs.iter().enumerate() {
            let (from, step) = (self.place(i), i.steps.last().map_or(0, |s| *s as isize));
            for (n, row) in rows[k * ROWS..k * ROWS + many].iter_mut().enumerate() {
                // In bounds: the view was checked against its memory.
                *row = from.wrapping_offset(step * n as isize);
            }
        }
        self.past(many as u64, reductions);
        let several = reductions.iter().map(|r| r.parts.len()).sum::<usize>() > 1;
        let block = if several { BLOCK / ROWS } else { plain.len };
        for from in (0..plain.len).step_by(block) {
            let cells = block.min(plain.len - from);
            for part in reductions.iter_mut().flat_map(|r| &mut r.parts) {
                let k = plain.input(part);
                let size = plain.inputs[k].size;
                let mut values = [std::ptr::null::<u8>(); ROWS];
                for (v, row) in values.iter_mut().zip(&rows[k * ROWS..k * ROWS + many]) {
                    *v = row.wrapping_add(from * size);
                }
                let piece = &mut part.piece;
                (piece.out, piece.from, piece.to) = (out + from, 0, cells);
                piece.valid = std::ptr::null();
                match part.fns.rows {
                    // SAFETY: the fields are those that were checked for this state, the walk stays within it, and the
                    // rows lie in checked memory.
                    Some(f) => unsafe { f(piece, &values[..many]) },
                    None => {
                        for (n, v) in values[..many].iter().enumerate() {
                            piece.values = *v;
                            piece.position = first.wrapping_add(step.wrapping_mul(n as i64));
                            // SAFETY: as above.
                            unsafe { (part.fns.row)(piece) };
                        }
                    }
                }
            }
        }
        self.count(many * plain.len, cancel)?;
        Ok(many as u64)
    }

    /// Accumulates a run whose cells belong to groups.
    fn groups(
        &mut self,
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<u64, KernelError> {
        let plain = self.plain;
        for r in reductions.iter_mut() {
            let out = r.walk.out();
            for part in &mut r.parts {
                let i = &plain.inputs[plain.input(part)];
                let run = self.place(i);
                let Some(f) = part.fns.lines else { continue };
                for s in &plain.stretches {
                    // A longer line would use lanes, which those of a group do not.
                    for from in (0..s.len).step_by(LANE_RUN as usize - 1) {
                        let len = (s.len - from).min(LANE_RUN as usize - 1);
                        part.piece.values = run.wrapping_add((s.from + from) * i.size);
                        part.piece.out = out + s.group;
                        // SAFETY: the fields are those that were checked for this state, the walk stays within it,
                        // codes were checked to be below the number of groups, and the runs lie in checked memory.
                        unsafe { f(&part.piece, len, s.many) };
                    }
                }
            }
        }
        self.count(plain.len, cancel)?;
        self.past(1, reductions);
        Ok(1)
    }

    /// Accumulates the contiguous runs from here on.
    fn lines(
        &mut self,
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<u64, KernelError> {
        let plain = self.plain;
        let several = reductions.iter().map(|r| r.parts.len()).sum::<usize>() > 1;
        let most = if several { BLOCK } else { CANCEL_CELLS };
        let block = (most / plain.len).max(1);
        for from in (0..plain.many).step_by(block) {
            let many = block.min(plain.many - from);
            if plain.len > most {
                self.line(reductions, from, most, cancel)?;
                self.turn = (self.turn + plain.len) % N;
                continue;
            }
            for r in reductions.iter_mut() {
                let out = r.walk.out() + from;
                let (position, step) = r.walk.position();
                for part in &mut r.parts {
                    let i = &plain.inputs[plain.input(part)];
                    part.piece.values = self.place(i).wrapping_add(from * plain.len * i.size);
                    (part.piece.out, part.piece.from) = (out, self.turn);
                    (part.piece.position, part.piece.step) = (position, step);
                    if let Some(f) = part.fns.lines {
                        // SAFETY: the fields are those that were checked for this state, the walk stays within it, and
                        // the runs lie in checked memory.
                        unsafe { f(&part.piece, plain.len, many) };
                    }
                }
            }
            self.turn = (self.turn + many * plain.len) % N;
            self.count(many * plain.len, cancel)?;
        }
        next(&mut self.at, &plain.outer);
        reductions.iter_mut().for_each(|r| r.walk.next_lines(plain.many));
        Ok(1)
    }

    /// Accumulates a run that is so long that all parts process one block of it before the next.
    fn line(
        &mut self,
        reductions: &mut [Reduction],
        number: usize,
        block: usize,
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let plain = self.plain;
        let mut parts: SmallVec<[&mut Part; 4]> = SmallVec::new();
        for r in reductions {
            let out = r.walk.out() + number;
            let (position, step) = r.walk.position();
            for part in &mut r.parts {
                (part.piece.out, part.piece.valid) = (out, std::ptr::null());
                (part.piece.position, part.piece.step) = (position, step);
                parts.push(part);
            }
        }
        // Tiles are the same for both only if the run begins at a tile boundary.
        let pair = if self.turn == 0 { pair(&parts) } else { None };
        let mut tile = [0u64; N];
        for number_of_block in 0..plain.len.div_ceil(block) {
            for k in 0..parts.len() {
                let beside = match pair {
                    Some((sum, _, _)) if sum == k => continue,
                    Some((sum, variance, f)) if variance == k => Some((parts[sum].piece, f)),
                    _ => None,
                };
                let part = &mut *parts[k];
                let i = &plain.inputs[plain.input(part)];
                let run = self.place(i).wrapping_add(number * plain.len * i.size);
                // Cells before the first block's first whole tile, if lanes are numbered by tiles.
                let turn = if part.fns.by_tiles { self.turn } else { 0 };
                let head = (N - turn) % N;
                let end = (head + (number_of_block + 1) * block).min(plain.len);
                let mut from = if number_of_block > 0 { head + number_of_block * block } else { 0 };
                while from < end {
                    let at = run.wrapping_add(from * i.size);
                    let first = if from == 0 { turn } else { 0 };
                    let whole = (end - from) / N * N;
                    if first == 0 && whole > 0 {
                        part.piece.values = at;
                        (part.piece.from, part.piece.to) = (0, whole);
                    } else {
                        // Less than a tile: copied into one.
                        let n = (end - from).min(N - first);
                        let to = tile.as_mut_ptr().cast::<u8>().wrapping_add(first * i.size);
                        // SAFETY: the run has n more cells of at most 8 bytes, the tile's room per cell.
                        unsafe { std::ptr::copy_nonoverlapping(at, to, n * i.size) };
                        part.piece.values = tile.as_ptr().cast();
                        (part.piece.from, part.piece.to) = (first, first + n);
                    }
                    match beside {
                        Some((mut sum, f)) => {
                            sum.values = part.piece.values;
                            (sum.from, sum.to) = (part.piece.from, part.piece.to);
                            // SAFETY: as for other lines; both read the same cells.
                            unsafe { f(&part.piece, &sum) };
                        }
                        None => {
                            let mut piece = part.piece;
                            let moved = piece.step.wrapping_mul(from as i64);
                            piece.position = piece.position.wrapping_add(moved);
                            // SAFETY: as for other lines.
                            unsafe { (part.fns.lanes)(&piece) }
                        }
                    }
                    from += part.piece.to - part.piece.from;
                }
            }
            self.count(block, cancel)?;
        }
        for part in parts {
            part.piece.from = 0;
            // SAFETY: as for other lines.
            unsafe { (part.fns.fold)(&part.piece) };
        }
        Ok(())
    }
}

/// Finds a sum and a variance of the same cells that can share a pass: the indices of their parts, and the function.
fn pair(parts: &[&mut Part]) -> Option<(usize, usize, PairFn)> {
    parts.iter().enumerate().find_map(|(v, variance)| {
        let f = variance.fns.with_sum?;
        let sum = parts.iter().position(|p| p.fns.is_sum && p.value == variance.value)?;
        Some((sum, v, f))
    })
}

/// The stretches of a run's groups; `None` if they are so short that cells are better accumulated one by one.
fn stretches(codes: &[u32]) -> Option<SmallVec<[Stretch; 4]>> {
    let mut found: SmallVec<[Stretch; 4]> = SmallVec::new();
    let mut from = 0;
    while from < codes.len() {
        let group = codes[from] as usize;
        let len = codes[from..].iter().take_while(|c| **c as usize == group).count();
        match found.last_mut() {
            // Long groups are processed in parts, one group at a time.
            Some(s) if s.len == len && s.group + s.many == group && len < LANE_RUN as usize => {
                s.many += 1;
            }
            _ => found.push(Stretch { from, group, len, many: 1 }),
        }
        from += len;
    }
    (found.len() * STRETCH <= codes.len()).then_some(found)
}

/// Returns the outer axes without those of length 1, merging axes along which every input steps evenly.
fn merge(shape: &[u64], inputs: &mut [Input]) -> SmallVec<[u64; 6]> {
    let mut outer: SmallVec<[u64; 6]> = SmallVec::new();
    let mut steps: SmallVec<[SmallVec<[i64; 6]>; 2]> =
        inputs.iter().map(|_| SmallVec::new()).collect();
    for (a, &n) in shape.iter().enumerate().filter(|(_, n)| **n != 1) {
        let even = |(i, steps): (&Input, &SmallVec<[i64; 6]>)| {
            i.steps[a].checked_mul(n as i64).is_some_and(|over| steps.last() == Some(&over))
        };
        let joins = outer.last().is_some() && inputs.iter().zip(&steps).all(even);
        for (i, steps) in inputs.iter().zip(&mut steps) {
            if joins {
                steps.pop();
            }
            steps.push(i.steps[a]);
        }
        match outer.last_mut() {
            Some(last) if joins => *last *= n,
            _ => outer.push(n),
        }
    }
    for (i, steps) in inputs.iter_mut().zip(steps) {
        i.steps = steps;
    }
    outer
}

/// The first of the inner axes that together have `cells` cells; `None` if no axes have.
fn inner_axes(shape: &[u64], cells: u64) -> Option<usize> {
    let (mut inner, mut n) = (shape.len(), 1);
    while n < cells {
        inner = inner.checked_sub(1)?;
        n *= shape[inner];
    }
    (n == cells).then_some(inner)
}

/// An input that is contiguous along the inner axes.
fn input(slot: usize, i: &StridedInput<'_>, shape: &[u64], inner: usize) -> Option<Input> {
    let size = i.dtype.size();
    let base = i.bytes.as_ptr();
    // A single cell is always contiguous.
    let in_a_row = shape[inner..].iter().all(|n| *n == 1)
        || even(&shape[inner..], &i.strides[inner..]) == Some(1);
    if !in_a_row || base.align_offset(size) != 0 {
        return None;
    }
    let steps = i.strides[..inner].iter().map(|s| s * size as i64).collect();
    // In bounds: the view was checked against its memory.
    let first = base.wrapping_offset((i.offset * size as i64) as isize);
    Some(Input { slot, size, first, steps })
}

#[cfg(test)]
mod tests;
