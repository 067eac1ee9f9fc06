//! Stages of products: blocks along the summed axes, then a tree that adds them.

use super::{Fuser, sides};
use crate::error::Error;
use crate::grid::{AxisGrid, Grid};
use crate::ir::{Contraction, NodeId};
use crate::plan::{Access, Input, Output, OutputRef, Task};
use crate::reduce::ReduceKind;
use crate::view::{AxisView, View};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Cells along k that one contraction sums before its blocks are combined.
const K_BLOCK: u64 = 4096;

impl Fuser<'_> {
    /// Emits `[b.., m.., k..] @ [b.., k.., n..]` with stage cells `[b.., m.., n.., k..]`.
    pub(super) fn emit_contract(&mut self, id: NodeId, product: Contraction) -> Result<(), Error> {
        let node = self.graph.node(id);
        let rank = node.shape.len();
        let summed = &self.graph.node(node.inputs[0]).grid.axes;
        let summed = &summed[summed.len() - product.summed..];
        let mut axes = node.grid.axes.clone();
        axes.extend(k_blocks(summed));
        let grid = Grid { axes };
        let cells_rank = grid.rank();
        let [m, n, k] = product.ranges(cells_rank);
        let blocks = k.clone().any(|a| grid.axes[a].count() > 1);
        // Left reads stage axes (b.., m.., k..), right (b.., k.., n..).
        let side = |first: Range<usize>, last: Range<usize>| View {
            axes: (0..m.start)
                .chain(first)
                .chain(last)
                .map(|axis| AxisView { axis: Some(axis), start: 0, step: 1 })
                .collect(),
        };
        let mut inputs = SmallVec::new();
        let views = [side(m.clone(), k.clone()), side(k.clone(), n)];
        for ((base, inner), view) in sides(self.graph, node).into_iter().zip(views) {
            let (from, outer) = self.find(base)?;
            inputs.push(Input { from, access: Access::View(view.then(&inner).then(&outer)) });
        }
        let mut out_grid = grid.clone();
        for axis in &mut out_grid.axes[k.clone()] {
            *axis = AxisGrid::regular(axis.count(), 1);
        }
        let output = Output { fields: smallvec![node.dtype], grid: out_grid };
        let stage = self.stage(
            Task::Contract { dtype: node.dtype, axes: product },
            inputs,
            grid,
            smallvec![output.clone()],
        );
        let mut from = OutputRef { stage, output: 0 };
        if blocks {
            let mut goal = output;
            goal.grid.axes[k.clone()].fill(AxisGrid::regular(1, 1));
            let mut reduced: SmallVec<[bool; 6]> = smallvec![false; cells_rank];
            reduced[k.clone()].fill(true);
            from = self.combine(from, ReduceKind::Add, (node.dtype, false), &reduced, None, goal);
        }
        let mut view = View::identity(rank);
        view.axes.extend(k.map(|_| AxisView { axis: None, start: 0, step: 1 }));
        self.made.insert(id, (from, view));
        Ok(())
    }
}

/// The blocks along summed axes, near [`K_BLOCK`] cells in total.
fn k_blocks(axes: &[AxisGrid]) -> SmallVec<[AxisGrid; 2]> {
    let mut room = K_BLOCK;
    let mut blocks: SmallVec<[AxisGrid; 2]> = axes
        .iter()
        .rev()
        .map(|axis| {
            let block = k_block(*axis, room);
            room = (room / block).max(1);
            AxisGrid::regular(axis.len, block)
        })
        .collect();
    blocks.reverse();
    blocks
}

/// Length of the blocks of a summed axis, which follow the cuts of the left side: several chunks joined, or parts of
/// one chunk. A chunk is split if it is so much longer than `aim` that its products would be too few for all threads
/// and need too much memory each.
fn k_block(k: AxisGrid, aim: u64) -> u64 {
    let chunk = k.chunk.max(1);
    let parts = chunk / aim;
    if parts < 2 {
        return (chunk * (aim / chunk).max(1)).min(k.len).max(1);
    }
    if k.count() == 1 {
        return k.len.div_ceil(parts).max(1);
    }
    // No block spans two chunks.
    (parts..=2 * chunk / aim).find(|n| chunk.is_multiple_of(*n)).map_or(chunk, |n| chunk / n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_contracted_axis_join_short_chunks_and_cut_long_ones() {
        let block = |len, chunk| k_block(AxisGrid::regular(len, chunk), K_BLOCK);
        assert_eq!([block(0, 1), block(1, 1), block(700, 100), block(700, 700)], [1, 1, 700, 700]);
        // A block holds as many chunks as fit.
        assert_eq!(block(100_000, 300), 13 * 300);
        assert_eq!(block(100_000, 8000), 8000);
        // Parts of one chunk of nearly equal length; of several chunks such that no part spans two.
        assert_eq!(block(90_000, 90_000), 90_000_u64.div_ceil(21));
        assert_eq!(block(100_000, 20_000), 5000);
        assert_eq!(block(100_000, 8209), 8209);
        // Of several axes the last ones whole, then as many cells as fit.
        let blocks = |axes: [(u64, u64); 2]| {
            let axes = axes.map(|(len, chunk)| AxisGrid::regular(len, chunk));
            k_blocks(&axes).iter().map(|a| a.chunk).collect::<Vec<_>>()
        };
        assert_eq!(blocks([(300, 100), (300, 100)]), [10, 300]);
        assert_eq!(blocks([(4, 1), (9000, 9000)]), [1, 4500]);
        assert_eq!(blocks([(700, 700), (5, 2)]), [700, 5]);
        assert_eq!(blocks([(0, 1), (8209, 8209)]), [1, 4105]);
    }
}
