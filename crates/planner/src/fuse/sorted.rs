//! Stages for lines that are longer than a chunk.

use super::Fuser;
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::Grid;
use crate::ir::{Node, NodeId};
use crate::plan::{Access, Input, Output, OutputRef, Task};
use crate::runs::Runs;
use crate::sort::{SortOrder, SortWhat};
use crate::view::{AxisView, View};
use smallvec::{SmallVec, smallvec};

impl Fuser<'_> {
    /// True if the lines along an axis of the node's input lie in several chunks.
    pub(super) fn is_cut(&self, node: &Node, axis: usize) -> bool {
        self.graph.node(node.inputs[0]).grid.axes[axis].count() > 1
    }

    /// Emits the stage that sorts each chunk of lines along an axis and retains `kept` cells, or marks them for order
    /// statistics. Returns the layout of the runs, and the inputs of the stage that merges them.
    pub(super) fn emit_runs(
        &mut self,
        input: NodeId,
        axis: usize,
        what: SortWhat,
        order: SortOrder,
        kept: Option<u64>,
    ) -> Result<(Runs, SmallVec<[Input; 3]>), Error> {
        let (from, inner) = self.find(input)?;
        let node = self.graph.node(input);
        let rank = node.shape.len();
        // Lines lie along the last axis of the runs, so that a part of a line is one contiguous read.
        let place = |a: usize| match a.cmp(&axis) {
            std::cmp::Ordering::Less => a,
            std::cmp::Ordering::Equal => rank - 1,
            std::cmp::Ordering::Greater => a - 1,
        };
        let moved = |a| AxisView { axis: Some(place(a)), start: 0, step: 1 };
        let view = View { axes: (0..rank).map(moved).collect() };
        let others = (0..rank).filter(|&a| a != axis);
        let mut grid = Grid { axes: others.map(|a| node.grid.axes[a]).collect() };
        let line = node.grid.axes[axis];
        let (mut kept_grid, mut index_grid) = (grid.clone(), grid.clone());
        grid.axes.push(line);
        let runs = match kept {
            Some(kept) => Runs::new(what, line.longest().min(kept)),
            None => {
                let room = self.config.chunk_bytes_target / node.dtype.size() as u64;
                Runs::marked(line.longest(), line.count(), room)
            }
        };
        let kept = kept.unwrap_or(u64::MAX);
        let kept_axis = runs.axis(line, kept);
        kept_grid.axes.push(kept_axis);
        index_grid.axes.push(runs.index(kept_axis));
        let outputs = smallvec![
            Output { fields: runs.fields(node.dtype), grid: kept_grid },
            Output { fields: smallvec![DType::UInt64], grid: index_grid },
        ];
        let inputs = smallvec![Input { from, access: Access::View(view.then(&inner)) }];
        let stage = self.stage(Task::Runs { runs, order, kept }, inputs, grid, outputs);
        let read =
            |output| Input { from: OutputRef { stage, output }, access: Access::Runs { axis } };
        Ok((runs, smallvec![read(0), read(1)]))
    }
}
