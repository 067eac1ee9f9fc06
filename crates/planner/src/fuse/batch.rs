//! Batches: several small chunks per operand.
//!
//! The logical grid decides bits, and a user may choose a grid with a hundred cells per chunk. As an operand has a
//! fixed cost, an operand whose work is less than that cost computes the first levels of the combining tree itself:
//!
//! ```text
//!   leaves    o o o o  o o o o  o o o o       one state for each chunk of the logical grid
//!   level 1   └─ o ─┘  └─ o ─┘  └─ o ─┘       the tree of `combine`
//!   operand   ╰───────────────────────╯       all of this, in the order of the tree
//! ```
//! Each chunk is still reduced separately and states are merged in the same order, so no bit depends on the size of a
//! batch.

use super::{FAN, FAN_LARGE, LARGE_STATE_BYTES};
use crate::config::Config;
use crate::cost::{HERE_NS, OPERAND_NS, batched_ns};
use crate::dtype::DType;
use crate::grid::{AxisGrid, Grid};
use crate::plan::{Batch, Fused, Output};
use crate::region::Dims;
use smallvec::SmallVec;

/// Upper bound on the bytes of the states that an operand holds while it combines; part of every operand's fixed
/// scratch.
const STATES_BYTES_MAX: u64 = 64 << 10;

/// One level of a combining tree: the number of states of `below` combined along each axis, and the grid of the
/// resulting states.
pub(super) fn climb(below: &Output, reduced: &[bool]) -> (Dims, Grid) {
    let grid = &below.grid;
    let is_large = grid.chunk_bytes_max(below.cell_bytes()) >= LARGE_STATE_BYTES;
    let mut room = if is_large { FAN_LARGE } else { FAN };
    let mut fan: Dims = SmallVec::from_elem(1, reduced.len());
    let mut above = grid.clone();
    for a in (0..reduced.len()).rev() {
        if reduced[a] {
            let count = grid.axes[a].count();
            fan[a] = count.min(room).max(1);
            room /= fan[a];
            let cell = grid.axes[a].chunk;
            above.axes[a] = AxisGrid::regular(count.div_ceil(fan[a]) * cell, cell);
        }
    }
    (fan, above)
}

/// Computes the batch of an operand over chunks of `grid`, with its grid and those of its outputs; `None` for one chunk
/// per operand.
///
/// `outputs` are states of reductions over the axes that `over` marks, one for each chunk of `grid`; `reduced`
/// describes the reduced cells ([`Batch::reduced`]). Unless the configuration sets a number of cells, a level is added
/// if the fixed cost of an operand exceeds a tenth of its work, or if the larger operand takes no longer than handing
/// work to another thread.
pub(super) fn batch(
    grid: &Grid,
    outputs: &mut [Output],
    over: &[bool],
    reduced: &[(DType, bool)],
    fused: &Fused,
    config: &Config,
) -> Option<(Batch, Grid)> {
    let cells = grid.longest().iter().fold(1u64, |n, &d| n.saturating_mul(d));
    let chunk_ns = batched_ns(fused, cells);
    let is_worth_it = |now: u64, then: u64| match config.batch_cells {
        Some(most) => cells.saturating_mul(then) <= most,
        None => chunk_ns * (now as f64) < OPERAND_NS * 10.0 || chunk_ns * (then as f64) <= HERE_NS,
    };
    let state: u64 = outputs
        .iter()
        .map(|o| o.grid.longest().iter().fold(o.cell_bytes() as u64, |n, &d| n.saturating_mul(d)))
        .fold(0, u64::saturating_add);
    let mut fans: SmallVec<[Dims; 2]> = SmallVec::new();
    let (mut taken, mut held) = (1u64, 0u64);
    loop {
        let (fan, _) = climb(outputs.first()?, over);
        let several = fan.iter().product::<u64>();
        let more = taken.saturating_mul(several);
        held = held.saturating_add(several.saturating_mul(state));
        if several <= 1 || held > STATES_BYTES_MAX || !is_worth_it(taken, more) {
            break;
        }
        taken = more;
        for o in outputs.iter_mut() {
            o.grid = climb(o, over).1;
        }
        fans.push(fan);
    }
    if fans.is_empty() {
        return None;
    }
    let joined = |a: usize, g: &AxisGrid| {
        let n = fans.iter().map(|f| f[a]).product::<u64>();
        match g.count() <= n {
            true => AxisGrid::regular(g.len, g.len),
            false => {
                AxisGrid { len: g.len, first: g.first + (n - 1) * g.chunk, chunk: n * g.chunk }
            }
        }
    };
    let coarse = Grid { axes: grid.axes.iter().enumerate().map(|(a, g)| joined(a, g)).collect() };
    Some((Batch { grid: grid.clone(), fans, reduced: reduced.into() }, coarse))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::FusedInput;
    use crate::program::{Arg, Inst, Program, ScalarOp};
    use smallvec::smallvec;

    fn states(grid: &Grid, reduced: &[bool]) -> Output {
        let axes = grid.axes.iter().zip(reduced);
        let axes = axes.map(|(g, r)| if *r { AxisGrid::regular(g.count(), 1) } else { *g });
        Output { fields: smallvec![DType::Float64], grid: Grid { axes: axes.collect() } }
    }

    /// A program that passes a `float64` input through.
    fn reading() -> Fused {
        let program = Program { inputs: vec![DType::Float64], insts: vec![] };
        let inputs = vec![FusedInput::Field { input: 0, field: 0 }];
        Fused { program, inputs, ..Fused::default() }
    }

    #[test]
    fn an_operand_has_as_many_chunks_as_its_output() {
        let config = Config { batch_cells: Some(1 << 12), ..Config::default() };
        for (grid, reduced) in [
            (Grid::regular(&[100_000], &[10]), &[true][..]),
            (Grid::regular(&[7, 1000, 90], &[1, 3, 4]), &[false, true, true]),
            (Grid::regular(&[50, 1000], &[50, 1]), &[false, true]),
            (Grid { axes: smallvec![AxisGrid { len: 999, first: 2, chunk: 5 }] }, &[true]),
        ] {
            let mut outputs = [states(&grid, reduced)];
            let (batch, coarse) =
                batch(&grid, &mut outputs, reduced, &[], &reading(), &config).unwrap();
            assert_eq!(coarse.counts(), outputs[0].grid.counts(), "{grid}");
            assert_eq!(coarse.shape(), grid.shape());
            // Cuts of the coarse grid are cuts of the logical one.
            for (a, (c, g)) in coarse.axes.iter().zip(&grid.axes).enumerate() {
                let n: u64 = batch.fans.iter().map(|f| f[a]).product();
                for i in 0..c.count() {
                    let (lo, hi) = (i * n, ((i + 1) * n).min(g.count()));
                    assert_eq!(c.interval(i), (g.interval(lo).0, g.interval(hi - 1).1));
                }
            }
            assert!(coarse.longest().iter().product::<u64>() <= 1 << 12);
        }
    }

    #[test]
    fn an_operand_takes_as_many_chunks_as_are_worth_it() {
        let chunks = |chunk: u64, exponentials: usize| {
            let grid = Grid::regular(&[chunk * 100_000], &[chunk]);
            let mut fused = reading();
            let args = vec![Arg::Input(0)];
            let exp = Inst { op: ScalarOp::Exp, args: args.into(), dtype: DType::Float64 };
            fused.program.insts = vec![exp; exponentials];
            let mut outputs = [states(&grid, &[true])];
            let batch = batch(&grid, &mut outputs, &[true], &[], &fused, &Config::default());
            batch.map_or(1, |(batch, _)| batch.along(0))
        };
        assert_eq!([chunks(100, 0), chunks(20_000, 0), chunks(1 << 20, 0)], [256, 16, 1]);
        // With a longer program fewer chunks are enough work.
        assert_eq!([chunks(100, 4), chunks(1000, 4), chunks(20_000, 4)], [16, 16, 1]);
    }

    #[test]
    fn fewer_large_states_are_combined_at_once() {
        let fan = |cells: u64, reduced: [bool; 3]| {
            let grid = Grid::regular(&[1000, 1000, cells], &[1, 1, cells]);
            climb(&states(&grid, &reduced), &reduced)
        };
        // States of `float64`: 262,136 and 262,144 bytes.
        let (fans, grid) = fan(32_767, [true, false, false]);
        assert_eq!(
            (&fans[..], grid.to_string()),
            (&[16, 1, 1][..], "[63/1, 1000/1, 32767/32767]".into())
        );
        let (fans, grid) = fan(32_768, [true, false, false]);
        assert_eq!(
            (&fans[..], grid.to_string()),
            (&[4, 1, 1][..], "[250/1, 1000/1, 32768/32768]".into())
        );
        assert_eq!(fan(32_768, [true, true, false]).0[..], [1, 4, 1]);
        // The state is one cell, however large the chunks are.
        assert_eq!(fan(32_768, [true; 3]).0[..], [1, 16, 1]);
    }

    #[test]
    fn large_chunks_and_large_states_stay_alone() {
        let config = Config::default();
        let grid = Grid::regular(&[1 << 30], &[1 << 20]);
        let mut outputs = [states(&grid, &[true])];
        assert!(batch(&grid, &mut outputs, &[true], &[], &reading(), &config).is_none());
        let grid = Grid::regular(&[1000, 10_000], &[1, 10_000]);
        let mut outputs = [states(&grid, &[true, false])];
        assert!(batch(&grid, &mut outputs, &[true, false], &[], &reading(), &config).is_none());
        let off = Config { batch_cells: Some(0), ..config };
        let grid = Grid::regular(&[1000], &[1]);
        let mut outputs = [states(&grid, &[true])];
        assert!(batch(&grid, &mut outputs, &[true], &[], &reading(), &off).is_none());
    }
}
