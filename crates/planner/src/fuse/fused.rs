//! Stages of elementwise values and of reductions, with the trees that combine their partial states.

use super::lower::Lowering;
use super::spans::Span;
use super::{Fuser, batch, space, spans, value_fields};
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::{AxisGrid, Grid};
use crate::ir::{AxisReduce, NodeId, Op};
use crate::plan::{Access, Fused, FusedOutput, Input, Output, OutputRef, Task};
use crate::program::Arg;
use crate::reduce::ReduceKind;
use crate::scalar::Scalar;
use crate::view::View;
use smallvec::{SmallVec, smallvec};

impl Fuser<'_> {
    pub(super) fn emit_fused(&mut self, group: &[NodeId]) -> Result<(), Error> {
        let grid = space(self.graph, self.graph.node(group[0])).clone();
        let mut low = Lowering::new(self, grid.shape());
        let mut fused_outputs = Vec::new();
        let mut outputs: SmallVec<[Output; 1]> = SmallVec::new();
        let mut reduced: SmallVec<[(DType, bool); 2]> = SmallVec::new();
        for &id in group {
            let node = self.graph.node(id);
            let identity = View::identity(grid.rank());
            match &node.op {
                Op::Reduce { kind, axes } => {
                    let input = self.graph.node(node.inputs[0]);
                    let v = low.value(node.inputs[0], &identity)?;
                    let fields = kind.state(input.dtype, input.nullable);
                    outputs.push(Output { fields, grid: partial_grid(&grid, axes) });
                    reduced.push((input.dtype, input.nullable));
                    fused_outputs.push(FusedOutput::Reduce {
                        kind: *kind,
                        axes: axes.clone(),
                        value: v.value,
                        valid: if input.nullable { v.valid } else { None },
                    });
                }
                Op::Certain { operation } => {
                    let v = low.value(node.inputs[0], &identity)?;
                    outputs.push(Output { fields: value_fields(node), grid: grid.clone() });
                    fused_outputs.push(FusedOutput::Certain {
                        value: v.value,
                        valid: v.valid.unwrap_or(Arg::Const(Scalar::bool(true))),
                        operation: operation.clone(),
                    });
                }
                _ => {
                    let v = low.stored(id, &identity)?;
                    outputs.push(Output { fields: value_fields(node), grid: grid.clone() });
                    fused_outputs.push(FusedOutput::Store { value: v.value, valid: v.valid });
                }
            }
        }
        let (program, fused_inputs, inputs) = low.finish();
        let mut fused =
            Fused { program, inputs: fused_inputs, outputs: fused_outputs, batch: None };
        let batch = one_reduction(&fused.outputs).and_then(|over| {
            batch::batch(&grid, &mut outputs, &over, &reduced, &fused, self.config)
        });
        let (grid, spans) = match batch {
            Some((batch, coarse)) => {
                fused.batch = Some(Box::new(batch));
                (coarse, vec![None; group.len()])
            }
            None => {
                let spans = spans::narrow(&grid, &mut fused.outputs, &mut outputs);
                (grid, spans)
            }
        };
        let stage = self.stage(Task::Fused(fused), inputs, grid, outputs);
        for (i, (&id, span)) in group.iter().zip(spans).enumerate() {
            let from = OutputRef { stage, output: i as u32 };
            let node = self.graph.node(id);
            let from = match &node.op {
                Op::Reduce { kind, axes } => self.emit_tree(from, *kind, axes, span, id),
                _ => from,
            };
            self.made.insert(id, (from, View::identity(node.shape.len())));
        }
        Ok(())
    }

    /// Emits the combining tree over partial states.
    ///
    /// ```text
    ///   partials  o o o o o o o ...     along every reduced axis, at most FAN (or FAN_LARGE) in a box of the fan
    ///   level 1   o     o     o
    ///   finish       o
    /// ```
    fn emit_tree(
        &mut self,
        from: OutputRef,
        kind: ReduceKind,
        axes: &[AxisReduce],
        span: Option<Span>,
        id: NodeId,
    ) -> OutputRef {
        let node = self.graph.node(id);
        let input = self.graph.node(node.inputs[0]);
        let reduced: SmallVec<[bool; 6]> = axes.iter().map(|a| *a != AxisReduce::Keep).collect();
        let goal = Output { fields: value_fields(node), grid: node.grid.clone() };
        self.combine(from, kind, (input.dtype, input.nullable), &reduced, span, goal)
    }

    pub(super) fn combine(
        &mut self,
        mut from: OutputRef,
        kind: ReduceKind,
        (dtype, nullable): (DType, bool),
        reduced: &[bool],
        mut span: Option<Span>,
        goal: Output,
    ) -> OutputRef {
        loop {
            let below = self.plan.output(from).clone();
            let (fan, mut grid) = batch::climb(&below, reduced);
            let spans = span.as_mut().map(|s| s.climb(fan[s.axis], &mut grid));
            let finish = (0..reduced.len()).all(|a| !reduced[a] || grid.axes[a].count() == 1);
            let output = if finish {
                goal.clone()
            } else {
                Output { fields: below.fields, grid: grid.clone() }
            };
            let inputs = smallvec![Input { from, access: Access::Fan(fan) }];
            let task = Task::Combine { kind, dtype, nullable, finish, spans };
            let stage = self.stage(task, inputs, output.grid.clone(), smallvec![output]);
            from = OutputRef { stage, output: 0 };
            if finish {
                return from;
            }
        }
    }
}

/// The axes along which all outputs are reduced; `None` if they differ or one is stored.
fn one_reduction(outputs: &[FusedOutput]) -> Option<SmallVec<[bool; 6]>> {
    let mut over = outputs.iter().map(|o| match o {
        FusedOutput::Reduce { axes, .. } => {
            Some(axes.iter().map(|a| *a != AxisReduce::Keep).collect::<SmallVec<[bool; 6]>>())
        }
        FusedOutput::Store { .. } | FusedOutput::Certain { .. } => None,
    });
    let first = over.next()??;
    over.all(|o| o.as_ref() == Some(&first)).then_some(first)
}

/// The grid of partial states: one cell (or one per group) in each chunk along reduced axes.
fn partial_grid(grid: &Grid, axes: &[AxisReduce]) -> Grid {
    Grid {
        axes: grid
            .axes
            .iter()
            .zip(axes)
            .map(|(g, r)| match r {
                AxisReduce::Keep => *g,
                AxisReduce::All => AxisGrid::regular(g.count(), 1),
                AxisReduce::Group(codes) => {
                    AxisGrid::regular(g.count() * u64::from(codes.count), u64::from(codes.count))
                }
            })
            .collect(),
    }
}
