//! Small chunks, several to an operand.
//!
//! The logical grid decides bits, and a user may choose one of a hundred cells a chunk. An operand has a price of its
//! own, so one that runs for less than that price climbs the first levels of the combining tree by itself:
//!
//! ```text
//!   leaves    o o o o  o o o o  o o o o       one state for each chunk of the logical grid
//!   level 1   └─ o ─┘  └─ o ─┘  └─ o ─┘       the tree of `combine`
//!   operand   ╰───────────────────────╯       all of this, in the order of the tree
//! ```
//! Each chunk is still reduced by itself and states are merged in the same order, so no bit depends on how many an
//! operand takes.

use super::FAN;
use crate::config::Config;
use crate::dtype::DType;
use crate::grid::{AxisGrid, Grid};
use crate::plan::{Batch, Output};
use crate::program::Program;
use crate::region::Dims;
use smallvec::SmallVec;

/// Bytes of states that an operand holds while it climbs; a part of the fixed scratch of every operand.
const STATES_BYTES_MAX: u64 = 64 << 10;

/// Instructions of a program that cost as much as reading a cell.
const INSTS_A_CELL: u64 = 8;

/// One level of a combining tree: how many chunks of `below` meet along each axis, and the chunks that result.
pub(super) fn climb(below: &Grid, reduced: &[bool]) -> (Dims, Grid) {
    let mut room = FAN;
    let mut fan: Dims = SmallVec::from_elem(1, reduced.len());
    let mut above = below.clone();
    for a in (0..reduced.len()).rev() {
        if reduced[a] {
            let count = below.axes[a].count();
            fan[a] = count.min(room).max(1);
            room /= fan[a];
            let cell = below.axes[a].chunk;
            above.axes[a] = AxisGrid::regular(count.div_ceil(fan[a]) * cell, cell);
        }
    }
    (fan, above)
}

/// How many chunks of `grid` an operand takes, with its grid and those of its outputs; `None` if it takes one.
///
/// `outputs` are states of reductions over the axes that `over` marks, one for each chunk of `grid`; `reduced` says of
/// what ([`Batch::reduced`]).
pub(super) fn batch(
    grid: &Grid,
    outputs: &mut [Output],
    over: &[bool],
    reduced: &[(DType, bool)],
    program: &Program,
    config: &Config,
) -> Option<(Batch, Grid)> {
    let weight = 1 + program.insts.len() as u64 / INSTS_A_CELL;
    let cells = grid.longest().iter().fold(weight, |n, &d| n.saturating_mul(d));
    let state: u64 = outputs
        .iter()
        .map(|o| o.grid.longest().iter().fold(o.cell_bytes() as u64, |n, &d| n.saturating_mul(d)))
        .fold(0, u64::saturating_add);
    let mut fans: SmallVec<[Dims; 2]> = SmallVec::new();
    let (mut taken, mut held) = (1u64, 0u64);
    loop {
        let (fan, _) = climb(&outputs.first()?.grid, over);
        let several = fan.iter().product::<u64>();
        taken = taken.saturating_mul(several);
        held = held.saturating_add(several.saturating_mul(state));
        if several <= 1
            || cells.saturating_mul(taken) > config.batch_cells
            || held > STATES_BYTES_MAX
        {
            break;
        }
        for o in outputs.iter_mut() {
            o.grid = climb(&o.grid, over).1;
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
    use smallvec::smallvec;

    fn states(grid: &Grid, reduced: &[bool]) -> Output {
        let axes = grid.axes.iter().zip(reduced);
        let axes = axes.map(|(g, r)| if *r { AxisGrid::regular(g.count(), 1) } else { *g });
        Output { fields: smallvec![DType::Float64], grid: Grid { axes: axes.collect() } }
    }

    #[test]
    fn an_operand_has_as_many_chunks_as_its_output() {
        let config = Config { batch_cells: 1 << 12, ..Config::default() };
        for (grid, reduced) in [
            (Grid::regular(&[100_000], &[10]), &[true][..]),
            (Grid::regular(&[7, 1000, 90], &[1, 3, 4]), &[false, true, true]),
            (Grid::regular(&[50, 1000], &[50, 1]), &[false, true]),
            (Grid { axes: smallvec![AxisGrid { len: 999, first: 2, chunk: 5 }] }, &[true]),
        ] {
            let mut outputs = [states(&grid, reduced)];
            let (batch, coarse) =
                batch(&grid, &mut outputs, reduced, &[], &Program::default(), &config).unwrap();
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
    fn large_chunks_and_large_states_stay_alone() {
        let config = Config::default();
        let grid = Grid::regular(&[1 << 30], &[1 << 20]);
        let mut outputs = [states(&grid, &[true])];
        assert!(batch(&grid, &mut outputs, &[true], &[], &Program::default(), &config).is_none());
        let grid = Grid::regular(&[1000, 10_000], &[1, 10_000]);
        let mut outputs = [states(&grid, &[true, false])];
        assert!(
            batch(&grid, &mut outputs, &[true, false], &[], &Program::default(), &config).is_none()
        );
        let off = Config { batch_cells: 0, ..config };
        let grid = Grid::regular(&[1000], &[1]);
        let mut outputs = [states(&grid, &[true])];
        assert!(batch(&grid, &mut outputs, &[true], &[], &Program::default(), &off).is_none());
    }
}
