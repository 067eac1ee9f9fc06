#![expect(unsafe_code, reason = "cells are passed by pointer; each block says why it is sound")]
//! Reductions of inputs as they lie in memory: nothing is computed, so that no tile is needed.
//!
//! ```text
//!   [t, y, x] of 100 × 125 × 125, over x    lines of 125 cells, a call for as many as follow one another
//!                                 over y    bands of up to 8 rows of 125 cells that enter the same row of the state
//!                                 over t    bands of up to 8 rows of 15,625 cells
//! ```
//! Rows and lines that are no multiple of a tile's 64 cells would be cut into pieces tile by tile. Each cell meets its
//! state in the same order as it would there, so no bit depends on the way.

use super::StridedInput;
use super::compile::{Compiled, InputSource, Ins};
use super::rows::{ROWS, even, next};
use super::run::{Part, Reduction};
use super::walk::Run;
use crate::kernels::KernelError;
use crate::kernels::ops::N;
use smallvec::SmallVec;
use tessera_planner::region::Region;

/// Cells that all parts take in, one part after the other, before the next cells: they stay in the first-level cache.
const BLOCK: usize = 1 << 12;
/// Cells between two questions whether to stop.
const CANCEL_CELLS: usize = 1 << 16;

/// An input whose runs lie in memory.
struct Input {
    slot: usize,
    size: usize,
    /// The region's first cell.
    first: *const u8,
    /// Bytes from position to position of the outer axes.
    steps: SmallVec<[i64; 6]>,
}

/// A region of runs that lie in memory, and are the same for all reductions.
pub(super) struct Plain {
    inputs: SmallVec<[Input; 2]>,
    /// Lengths of the axes outside the runs.
    outer: SmallVec<[u64; 6]>,
    run: Run,
    /// Cells of a run.
    len: usize,
    /// Runs that lie one after the other, as do their cells of the state.
    many: usize,
}

impl Plain {
    /// `None` where something is computed or masked, where the reductions do not share their runs, or where these do not
    /// lie in memory as they are.
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
            // A constant is no input.
            compiled.inputs.iter().any(|i| i.slot as usize == p.value)
                && match run {
                    Run::Kept => true,
                    Run::Reduced { .. } => p.fns.lines.is_some(),
                    Run::Grouped => false,
                }
        };
        let mut parts = reductions.iter().flat_map(|r| &r.parts);
        if !parts.all(|p| p.valid.is_none() && p.tail.is_none() && takes(p)) {
            return None;
        }
        let shape = region.shape();
        let (len, several) = (walk.run_len(), walk.lines());
        let mut found = None;
        // As many runs as lie together, or each by itself.
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
            if let Some(places) = places {
                let outer = shape[..inner].into();
                let (len, many) = (len as usize, many as usize);
                found = Some(Plain { inputs: places, outer, run, len, many });
                break;
            }
        }
        found
    }

    /// Runs everything.
    pub(super) fn run(
        &self,
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let mut runs = Runs { plain: self, at: SmallVec::from_elem(0, self.outer.len()), done: 0 };
        let mut left = self.outer.iter().product::<u64>();
        while left > 0 {
            left -= match self.run {
                Run::Kept => runs.band(reductions, left, cancel)?,
                _ => runs.lines(reductions, cancel)?,
            };
        }
        Ok(())
    }

    /// The input of a part.
    fn input(&self, part: &Part) -> usize {
        // Every part reads an input, as was made sure.
        self.inputs.iter().position(|i| i.slot == part.value).unwrap_or(0)
    }
}

/// The way through the runs.
struct Runs<'a> {
    plain: &'a Plain,
    /// Position on the outer axes.
    at: SmallVec<[u64; 6]>,
    /// Cells since the last question whether to stop.
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

    /// Where the current run of an input is.
    fn place(&self, i: &Input) -> *const u8 {
        let moved = self.at.iter().zip(&i.steps);
        // In bounds: the view was checked against its memory.
        i.first.wrapping_offset(moved.fold(0, |s, (p, step)| s + step * *p as i64) as isize)
    }

    /// The next rows that enter the same cells; how many they are.
    fn band(
        &mut self,
        reductions: &mut [Reduction],
        left: u64,
        cancel: &dyn Fn() -> bool,
    ) -> Result<u64, KernelError> {
        let plain = self.plain;
        let inputs = plain.inputs.len();
        let mut rows: SmallVec<[*const u8; 2 * ROWS]> =
            SmallVec::from_elem(std::ptr::null(), inputs * ROWS);
        let mut positions = [0; ROWS];
        let out = reductions[0].walk.out();
        let mut many = 0;
        while many < ROWS && many < left as usize && reductions[0].walk.out() == out {
            for (k, i) in plain.inputs.iter().enumerate() {
                rows[k * ROWS + many] = self.place(i);
            }
            positions[many] = reductions[0].walk.position().0;
            next(&mut self.at, &plain.outer);
            reductions.iter_mut().for_each(|r| r.walk.next_run());
            many += 1;
        }
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
                    // SAFETY: fields were given at the start for this state, the walk stays in it, and the rows lie in
                    // memory that was checked.
                    Some(f) => unsafe { f(piece, &values[..many]) },
                    None => {
                        for (v, position) in values[..many].iter().zip(positions) {
                            (piece.values, piece.position) = (*v, position);
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

    /// The runs that lie together here.
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
                continue;
            }
            for r in reductions.iter_mut() {
                let out = r.walk.out() + from;
                for part in &mut r.parts {
                    let i = &plain.inputs[plain.input(part)];
                    part.piece.values = self.place(i).wrapping_add(from * plain.len * i.size);
                    part.piece.out = out;
                    if let Some(f) = part.fns.lines {
                        // SAFETY: fields were given at the start for this state, the walk stays in it, and the runs lie
                        // in memory that was checked.
                        unsafe { f(&part.piece, plain.len, many) };
                    }
                }
            }
            self.count(many * plain.len, cancel)?;
        }
        next(&mut self.at, &plain.outer);
        reductions.iter_mut().for_each(|r| r.walk.next_lines(plain.many));
        Ok(1)
    }

    /// A run so long that all parts take in a block of it after the other.
    fn line(
        &mut self,
        reductions: &mut [Reduction],
        number: usize,
        block: usize,
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let plain = self.plain;
        let cut = plain.len / N * N;
        let blocks = (0..cut).step_by(block).map(|from| (from, block.min(cut - from)));
        // The last cells are less than a tile: none of their lanes is met twice.
        for (from, cells) in blocks.chain((cut < plain.len).then_some((cut, plain.len - cut))) {
            for r in reductions.iter_mut() {
                let out = r.walk.out() + number;
                for part in &mut r.parts {
                    let i = &plain.inputs[plain.input(part)];
                    let at = (number * plain.len + from) * i.size;
                    part.piece.values = self.place(i).wrapping_add(at);
                    part.piece.valid = std::ptr::null();
                    (part.piece.out, part.piece.from, part.piece.to) = (out, 0, cells);
                    // SAFETY: as for other lines.
                    unsafe { (part.fns.lanes)(&part.piece) };
                }
            }
            self.count(cells, cancel)?;
        }
        for part in reductions.iter_mut().flat_map(|r| &mut r.parts) {
            part.piece.from = 0;
            // SAFETY: as for other lines.
            unsafe { (part.fns.fold)(&part.piece) };
        }
        Ok(())
    }
}

/// The first of the inner axes that have so many cells; `None` if none have.
fn inner_axes(shape: &[u64], cells: u64) -> Option<usize> {
    let (mut inner, mut n) = (shape.len(), 1);
    while n < cells {
        inner = inner.checked_sub(1)?;
        n *= shape[inner];
    }
    (n == cells).then_some(inner)
}

/// An input whose cells along the inner axes lie one after the other.
fn input(slot: usize, i: &StridedInput<'_>, shape: &[u64], inner: usize) -> Option<Input> {
    let size = i.dtype.size();
    let base = i.bytes.as_ptr();
    // A single cell lies wherever it lies.
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::tests::{bytes_of, dense, field, lcg, run, typed};
    use crate::kernels::fused::{Fused, StridedInput};
    use tessera_planner::dtype::DType;
    use tessera_planner::ir::{AxisReduce, Groups};
    use tessera_planner::plan::FusedOutput;
    use tessera_planner::program::{Arg, Program};
    use tessera_planner::reduce::ReduceKind;
    use tessera_planner::region::{Region, strides};
    use tessera_planner::scalar::Scalar;

    /// Reductions by each kind together and alone, of cells where they lie, and of the same ones a byte further on, which
    /// go through tiles.
    fn case(shape: &[u64], how: &[u8], dtype: DType, cells: &[u8]) {
        let axes: Vec<AxisReduce> = how
            .iter()
            .zip(shape)
            .map(|(h, n)| match h {
                0 => AxisReduce::Keep,
                1 => AxisReduce::All,
                _ => AxisReduce::Group(Groups {
                    codes: (0..*n).map(|i| (i / 3 % 4) as u32).collect::<Vec<_>>().into(),
                    count: 4,
                }),
            })
            .collect();
        let kinds = [
            ReduceKind::Sum,
            ReduceKind::Mean,
            ReduceKind::Prod,
            ReduceKind::Min,
            ReduceKind::MaxTotal,
            ReduceKind::Var { ddof: 0 },
            ReduceKind::ArgMax,
        ];
        let mut shifted = vec![0; cells.len() + 9];
        // No type of more than a byte is aligned there.
        let odd = 1 + shifted.as_ptr().align_offset(8);
        shifted[odd..odd + cells.len()].copy_from_slice(cells);
        let step = strides(shape);
        let input = |bytes| StridedInput { bytes, offset: 0, strides: &step, dtype };
        let known: Vec<ReduceKind> =
            kinds.into_iter().filter(|k| k.result(dtype).is_some()).collect();
        // Those without a variance and positions, which take other ways, and all of them.
        let without = &known[..known.iter().position(|k| k.name() == "var").unwrap_or(4).min(5)];
        for kinds in known.chunks(1).chain([without, &known]) {
            let output = |k: &ReduceKind| FusedOutput::Reduce {
                kind: *k,
                axes: axes.iter().cloned().collect(),
                value: Arg::Input(0),
                valid: None,
            };
            let fused = Fused {
                program: Program { inputs: vec![dtype], insts: vec![] },
                inputs: vec![field(0)],
                outputs: kinds.iter().map(output).collect(),
                batch: None,
            };
            let region = Region::whole(shape);
            let there = run(&fused, &region, shape, &[input(cells)]).unwrap();
            let tiles = run(&fused, &region, shape, &[input(&shifted[odd..])]).unwrap();
            assert_eq!(there, tiles, "{kinds:?} {dtype} {shape:?} {how:?}");
        }
    }

    #[test]
    fn constants_beside_cells_are_counted_too() {
        let cells: Vec<f64> = (0..300).map(f64::from).collect();
        let two = Arg::Const(Scalar::from_f64(DType::Float64, 2.0));
        let output = |value| FusedOutput::Reduce {
            kind: ReduceKind::Sum,
            axes: [AxisReduce::All, AxisReduce::All].into_iter().collect(),
            value,
            valid: None,
        };
        let fused = Fused {
            program: Program { inputs: vec![DType::Float64], insts: vec![] },
            inputs: vec![field(0)],
            outputs: vec![output(Arg::Input(0)), output(two)],
            batch: None,
        };
        let input = dense(&cells, &[100, 1], DType::Float64);
        let out = run(&fused, &Region::whole(&[3, 100]), &[3, 100], &[input]).unwrap();
        let sums = [&out[0][0], &out[1][0]].map(|f| typed::<f64>(f, 1)[0]);
        assert_eq!(sums, [299.0 * 150.0, 600.0]);
    }

    #[test]
    fn cells_where_they_lie_give_the_bits_of_tiles() {
        let shapes: [&[u64]; 6] =
            [&[9000], &[7, 125], &[3, 5, 125], &[2, 11, 3, 4], &[21, 200], &[5, 1, 31]];
        for shape in shapes {
            let n: u64 = shape.iter().product();
            let mut r = lcg(n);
            let f: Vec<f64> = (0..n).map(|_| r() * 4.0 - 2.0).collect();
            let single: Vec<f32> = f.iter().map(|x| *x as f32).collect();
            let wide: Vec<i64> = f.iter().map(|x| (x * 4e18) as i64).collect();
            let half: Vec<i32> = f.iter().map(|x| (x * 1e9) as i32).collect();
            let narrow: Vec<i8> = f.iter().map(|x| (x * 64.0) as i8).collect();
            for number in 0..3u32.pow(shape.len() as u32) {
                let how: Vec<u8> =
                    (0..shape.len() as u32).map(|a| (number / 3u32.pow(a) % 3) as u8).collect();
                case(shape, &how, DType::Float64, bytes_of(&f));
                case(shape, &how, DType::Float32, bytes_of(&single));
                case(shape, &how, DType::Int64, bytes_of(&wide));
                case(shape, &how, DType::UInt64, bytes_of(&wide));
                case(shape, &how, DType::Int32, bytes_of(&half));
                case(shape, &how, DType::Int8, bytes_of(&narrow));
            }
        }
    }
}
