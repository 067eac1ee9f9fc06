//! Stages of factorisations: one stage for all requested parts of one factorisation.

use super::{Fuser, view_base};
use crate::error::Error;
use crate::factor::Factor;
use crate::grid::Grid;
use crate::ir::{NodeId, Op};
use crate::plan::{Access, Input, Output, OutputRef, Task};
use crate::region::Dims;
use crate::view::{AxisView, View};
use smallvec::{SmallVec, smallvec};

impl Fuser<'_> {
    /// Emits the stage of the parts in `group`, which belong to one factorisation.
    pub(super) fn emit_factor(&mut self, kind: Factor, group: &[NodeId]) -> Result<(), Error> {
        let first = self.graph.node(group[0]);
        let dtype = first.dtype;
        let sources: SmallVec<[NodeId; 3]> = first.inputs.clone();
        let grids: Vec<&Grid> = sources.iter().map(|&i| &self.graph.node(i).grid).collect();
        let space = kind.space(&grids, dtype, self.config.chunk_bytes_target);
        let mut inputs = SmallVec::new();
        for (k, &source) in sources.iter().enumerate() {
            inputs.push(match kind {
                Factor::QrApply { .. } if k == 1 => {
                    let from = self.exact(source)?;
                    Input { from, access: Access::Fan(Dims::from_elem(1, space.rank())) }
                }
                _ => {
                    let (base, inner) = view_base(self.graph, source);
                    let (from, outer) = self.find(base)?;
                    let view = cells_of(kind, k, space.rank());
                    Input { from, access: Access::View(view.then(&inner).then(&outer)) }
                }
            });
        }
        let mut members: Vec<(usize, NodeId)> = group
            .iter()
            .filter_map(|&id| match self.graph.node(id).op {
                Op::Factor { part, .. } => Some((part, id)),
                _ => None,
            })
            .collect();
        members.sort_unstable();
        let parts = members.iter().map(|(part, _)| *part).collect();
        let outputs = members
            .iter()
            .map(|&(_, id)| {
                let grid = kind.grid(&space, &self.graph.node(id).shape);
                Output { fields: smallvec![dtype], grid }
            })
            .collect();
        let stage = self.stage(Task::Factor { kind, parts, dtype }, inputs, space, outputs);
        for (output, &(_, id)) in members.iter().enumerate() {
            let from = OutputRef { stage, output: output as u32 };
            let rank = self.graph.node(id).shape.len();
            self.made.insert(id, (from, View::identity(rank)));
        }
        Ok(())
    }
}

/// The view from stage cells to an input: [b.., m, n], and for stage cells [b.., m, n, k] the second input as [b.., m,
/// k].
fn cells_of(kind: Factor, input: usize, rank: usize) -> View {
    let lead = rank - kind.trailing();
    let last = if input == 0 { lead + 1 } else { lead + 2 };
    let axes = (0..lead + 1).chain([last]);
    View { axes: axes.map(|a| AxisView { axis: Some(a), start: 0, step: 1 }).collect() }
}
