//! From the IR to stages: selects the nodes that are computed together.
//!
//! Elementwise nodes, views and generators do not become stages of their own: they are inlined into the programs of the
//! nodes that need memory for their result. These are
//! * results of the query and inputs of tasks that move cells (`Copy`, `Scan`, `Contract`): *stored*,
//! * reductions: a partial state for each chunk, then a combining tree,
//! * elementwise values that a view repeats: computed once, not once per repetition.
//!
//! Values of one level (the number of stages below them) over the same cells and chunks that read a common input become
//! outputs of one stage: `SELECT sum(x), mean(x), std(x)` passes over `x` once.
//!
//! ```text
//!   (x - mean(x, 0)) / std(x, 0)
//!   level 0   Load x
//!   level 1   Fused: partial mean, partial var ──▶ Combine … finish
//!   level 2   Fused: sqrt(var)                            (it is repeated below)
//!   level 3   Fused: (x - mean) / sqrt(var) ──▶ result
//! ```

mod batch;
mod columns;
mod contract;
mod cut;
mod factor;
mod fused;
mod in_place;
mod lower;
mod needs;
mod sorted;
mod spans;

use crate::config::Config;
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::{AxisGrid, Grid};
use crate::interrupt;
use crate::ir::{Graph, Node, NodeId, Op};
use crate::lookup::LookupKind;
use crate::optimize::Rooted;
use crate::plan::{Access, Input, Output, OutputRef, Plan, Stage, StageId, Task};
use crate::reduce::ReduceKind;
use crate::region::{Dims, Region};
use crate::sort::{SortOrder, SortWhat};
use crate::view::{AxisView, View};
pub use columns::program;
use needs::Needs;
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

/// Fan-in of a combining tree: a trade-off between partials held at once and levels of the tree.
const FAN: u64 = 16;

/// Fan-in of states of [`LARGE_STATE_BYTES`] or more. Of N states up to `(fan - 1) log N / log fan` are held while a tree
/// is computed: 30 of 256 with a fan of 16, 12 with a fan of 4. Merging them costs little compared with the chunks that
/// they are made of.
const FAN_LARGE: u64 = 4;

/// Bytes from which on a state is large. More than a batch holds: all levels of a batch have the same fan.
const LARGE_STATE_BYTES: u64 = 256 << 10;

/// Turns an optimised graph into a plan.
///
/// # Errors
/// [`Error::Broken`] if the graph is not sound, [`Error::Stopped`].
pub fn fuse(rooted: &Rooted, config: &Config) -> Result<Plan, Error> {
    let rooted = in_place::in_place(cut::cut(rooted, config));
    let graph = &rooted.graph;
    let uses = uses(&rooted);
    let needs = Needs::find(graph, &rooted.roots, &uses);
    let mut f = Fuser { graph, config, uses: &uses, plan: Plan::default(), made: BTreeMap::new() };
    for group in needs.groups(graph)? {
        interrupt::check()?;
        f.emit(&group)?;
    }
    for &root in &rooted.roots {
        // The view of a product drops trailing axes of length 1, which changes no byte of a chunk.
        let (out, _) = f.find(root)?;
        f.plan.results.push(out);
    }
    Ok(f.plan)
}

/// Number of nodes and roots that read each node.
fn uses(rooted: &Rooted) -> Vec<u32> {
    let mut uses = vec![0; rooted.graph.len()];
    let inputs = rooted.graph.nodes().flat_map(|(_, node)| node.inputs.iter());
    inputs.chain(&rooted.roots).for_each(|id| uses[id.0 as usize] += 1);
    uses
}

/// The boxes of a concatenation, each with the node that has its cells. A nested concatenation without other readers,
/// such as the corners and edges of a margin, is flattened.
fn parts(graph: &Graph, uses: &[u32], id: NodeId) -> Vec<(Region, NodeId)> {
    let origin = Dims::from_elem(0, graph.node(id).shape.len());
    let (mut found, mut next) = (Vec::new(), vec![(origin, id)]);
    while let Some((mut at, node_id)) = next.pop() {
        let node = graph.node(node_id);
        match node.op {
            Op::Concat { axis } if node_id == id || uses[node_id.0 as usize] == 1 => {
                let before = next.len();
                for &input in &node.inputs {
                    next.push((at.clone(), input));
                    at[axis] += graph.node(input).shape[axis];
                }
                next[before..].reverse();
            }
            _ => found.push((Region::at(&at, &node.shape), node_id)),
        }
    }
    found
}

/// The cells and the edges of a count by bins, so that the bin numbers need no memory.
fn bins(graph: &Graph, node: &Node) -> Option<[NodeId; 2]> {
    let codes = matches!(node.op, Op::Bin { .. }).then(|| graph.node(node.inputs[0]))?;
    match (&codes.op, &codes.inputs[..]) {
        (Op::Lookup { kind: LookupKind::Bins }, &[cells, edges]) if !graph.node(edges).nullable => {
            Some([cells, edges])
        }
        _ => None,
    }
}

fn is_fused(node: &Node) -> bool {
    matches!(node.op, Op::Map(_) | Op::View(_) | Op::Iota | Op::Rechunk | Op::Reduce { .. })
}

/// The cells and chunks over which a fused node runs.
fn space<'a>(graph: &'a Graph, node: &'a Node) -> &'a Grid {
    match node.op {
        Op::Reduce { .. } => &graph.node(node.inputs[0]).grid,
        _ => &node.grid,
    }
}

/// The node behind a view that a task can read in place, and the view.
fn view_base(graph: &Graph, id: NodeId) -> (NodeId, View) {
    let node = graph.node(id);
    if let Op::View(view) = &node.op {
        let child = graph.node(node.inputs[0]);
        if !matches!(child.op, Op::Map(_) | Op::Iota | Op::Rechunk) {
            return (node.inputs[0], view.clone());
        }
    }
    (id, View::identity(node.shape.len()))
}

/// The nodes that the sides of a product read in place, with the views. A node that both sides view is computed once,
/// even if it is elementwise: `transpose(x - mean(x, 0)) @ (x - mean(x, 0))`.
fn sides(graph: &Graph, product: &Node) -> [(NodeId, View); 2] {
    let inputs = [product.inputs[0], product.inputs[1]];
    let both = inputs.map(|i| graph.behind_view(i));
    if both[0].0 == both[1].0 { both } else { inputs.map(|i| view_base(graph, i)) }
}

/// The stages so far, and the outputs of the materialised nodes.
struct Fuser<'a> {
    graph: &'a Graph,
    config: &'a Config,
    uses: &'a [u32],
    plan: Plan,
    /// The output that stores a node, and the view from the node's cells to the output's.
    made: BTreeMap<NodeId, (OutputRef, View)>,
}

impl Fuser<'_> {
    fn find(&self, id: NodeId) -> Result<(OutputRef, View), Error> {
        self.made.get(&id).cloned().ok_or_else(|| Error::Broken {
            pass: "fuse",
            reason: format!("node {} was not made", id.0),
        })
    }

    fn stage(
        &mut self,
        task: Task,
        inputs: SmallVec<[Input; 3]>,
        grid: Grid,
        outputs: SmallVec<[Output; 1]>,
    ) -> StageId {
        self.plan.stages.push(Stage { task, inputs, grid, outputs });
        StageId(self.plan.stages.len() as u32 - 1)
    }

    fn emit(&mut self, group: &[NodeId]) -> Result<(), Error> {
        let id = group[0];
        let node = self.graph.node(id);
        let whole = smallvec![Output { fields: value_fields(node), grid: node.grid.clone() }];
        let identity = View::identity(node.shape.len());
        let stage = match &node.op {
            Op::Map(_)
            | Op::View(_)
            | Op::Iota
            | Op::Rechunk
            | Op::Reduce { .. }
            | Op::Certain { .. } => {
                return self.emit_fused(group);
            }
            Op::Load { source, region } => {
                let task = Task::Load { source: source.clone(), origin: region.start.clone() };
                self.stage(task, smallvec![], node.grid.clone(), whole)
            }
            Op::Const(c) => {
                self.stage(Task::Const(c.clone()), smallvec![], node.grid.clone(), whole)
            }
            Op::Contract(axes) => return self.emit_contract(id, *axes),
            Op::Factor { kind, .. } => return self.emit_factor(*kind, group),
            Op::Bin { count, strict } => return self.emit_bin(id, *count, *strict),
            Op::Scan { kind, axis } => {
                let (from, view) = self.find(node.inputs[0])?;
                let itself = OutputRef { stage: StageId(self.plan.stages.len() as u32), output: 0 };
                let inputs = smallvec![
                    Input { from, access: Access::View(view) },
                    Input { from: itself, access: Access::Previous { axis: *axis } }
                ];
                self.stage(
                    Task::Scan { kind: *kind, axis: *axis },
                    inputs,
                    node.grid.clone(),
                    whole,
                )
            }
            Op::Window { axis, frame, kind, min_count } => {
                let (axis, frame) = (*axis, *frame);
                let (from, view) = self.find(node.inputs[0])?;
                let access = Access::Window { axis, frame, view };
                let task = Task::Window { axis, frame, kind: *kind, min_count: *min_count };
                self.stage(task, smallvec![Input { from, access }], node.grid.clone(), whole)
            }
            Op::Sort { axis, what, order, .. } if self.is_cut(node, *axis) => {
                let (from, kept) = (node.inputs[0], node.shape[*axis]);
                let dtype = self.graph.node(from).dtype;
                let (runs, inputs) = self.emit_runs(from, *axis, *what, *order, Some(kept))?;
                let task = Task::Merge { axis: *axis, runs, order: *order, dtype };
                self.stage(task, inputs, node.grid.clone(), whole)
            }
            Op::Quantile { axis, quantiles } if self.is_cut(node, *axis) => {
                let (order, from) = (SortOrder::default(), node.inputs[0]);
                let (runs, inputs) = self.emit_runs(from, *axis, SortWhat::Values, order, None)?;
                let task = Task::Select { axis: *axis, runs, quantiles: quantiles.clone() };
                self.stage(task, inputs, node.grid.clone(), whole)
            }
            Op::Sort { axis, what, order, .. } => {
                let task = Task::Sort { axis: *axis, what: *what, order: *order };
                self.emit_lines(node, task, whole)?
            }
            Op::Quantile { axis, quantiles } => {
                let task = Task::Quantile { axis: *axis, quantiles: quantiles.clone() };
                self.emit_lines(node, task, whole)?
            }
            Op::Lookup { kind } => {
                let (from, view) = self.find(node.inputs[0])?;
                let mut inputs = smallvec![Input { from, access: Access::View(view) }];
                for &table in &node.inputs[1..] {
                    inputs.push(self.table(table)?);
                }
                self.stage(Task::Lookup { kind: *kind }, inputs, node.grid.clone(), whole)
            }
            Op::Reshape => {
                let from = self.exact(node.inputs[0])?;
                let shape = self.graph.node(node.inputs[0]).shape.clone();
                let inputs = smallvec![Input { from, access: Access::Reshape(shape) }];
                self.stage(Task::Copy, inputs, node.grid.clone(), whole)
            }
            Op::Take { axis, positions } => {
                let from = self.exact(node.inputs[0])?;
                let access = Access::Take { axis: *axis, positions: positions.clone() };
                self.stage(Task::Copy, smallvec![Input { from, access }], node.grid.clone(), whole)
            }
            Op::Concat { .. } => {
                let mut inputs = SmallVec::new();
                for (part, i) in parts(self.graph, self.uses, id) {
                    let (base, view) = view_base(self.graph, i);
                    let (from, outer) = self.find(base)?;
                    let access = Access::Part { part, view: view.then(&outer) };
                    inputs.push(Input { from, access });
                }
                self.stage(Task::Copy, inputs, node.grid.clone(), whole)
            }
        };
        self.made.insert(id, (OutputRef { stage, output: 0 }, identity));
        Ok(())
    }

    /// An input for a sorted table, which lies in one chunk: a view of its first cell.
    fn table(&mut self, id: NodeId) -> Result<Input, Error> {
        let from = self.exact(id)?;
        let first = AxisView { axis: None, start: 0, step: 1 };
        Ok(Input { from, access: Access::View(View { axes: smallvec![first] }) })
    }

    /// Emits the counts of each chunk of codes, then a tree that adds them.
    fn emit_bin(&mut self, id: NodeId, count: u64, strict: bool) -> Result<(), Error> {
        let node = self.graph.node(id);
        let bins = bins(self.graph, node);
        let cells = bins.map_or(node.inputs[0], |[cells, _]| cells);
        let mut inputs: SmallVec<[Input; 3]> = SmallVec::new();
        for &i in [cells].iter().chain(&node.inputs[1..]) {
            let (from, view) = self.find(i)?;
            inputs.push(Input { from, access: Access::View(view) });
        }
        if let Some([_, edges]) = bins {
            inputs.insert(1, self.table(edges)?);
        }
        let grid = self.graph.node(cells).grid.clone();
        let mut partial: SmallVec<[AxisGrid; 6]> =
            grid.axes.iter().map(|g| AxisGrid::regular(g.count(), 1)).collect();
        if let Some(last) = partial.last_mut() {
            *last = AxisGrid::regular(last.len * count, count);
        }
        let fields = smallvec![node.dtype];
        let output = Output { fields, grid: Grid { axes: partial } };
        let stage = self.stage(
            Task::Bin { strict, edges: bins.is_some() },
            inputs,
            grid,
            smallvec![output],
        );
        let reduced: SmallVec<[bool; 6]> = SmallVec::from_elem(true, node.shape.len());
        let goal = Output { fields: value_fields(node), grid: node.grid.clone() };
        let from = OutputRef { stage, output: 0 };
        let from = self.combine(from, ReduceKind::Add, (node.dtype, false), &reduced, None, goal);
        self.made.insert(id, (from, View::identity(node.shape.len())));
        Ok(())
    }

    /// Emits a stage over the cells of its input whose lines along some axis lie in one chunk.
    fn emit_lines(
        &mut self,
        node: &Node,
        task: Task,
        outputs: SmallVec<[Output; 1]>,
    ) -> Result<StageId, Error> {
        let (from, view) = self.find(node.inputs[0])?;
        let grid = self.graph.node(node.inputs[0]).grid.clone();
        Ok(self.stage(task, smallvec![Input { from, access: Access::View(view) }], grid, outputs))
    }

    /// The output that stores a node cell by cell; a node behind a view is copied first.
    fn exact(&mut self, id: NodeId) -> Result<OutputRef, Error> {
        let (from, view) = self.find(id)?;
        if view.is_identity() && self.plan.output(from).grid.rank() == view.axes.len() {
            return Ok(from);
        }
        let node = self.graph.node(id);
        let outputs = smallvec![Output { fields: value_fields(node), grid: node.grid.clone() }];
        let access = Access::Part { part: Region::whole(&node.shape), view };
        let stage =
            self.stage(Task::Copy, smallvec![Input { from, access }], node.grid.clone(), outputs);
        let out = OutputRef { stage, output: 0 };
        self.made.insert(id, (out, View::identity(node.shape.len())));
        Ok(out)
    }
}

/// Fields of a value: the value, and its validity if it can be masked.
fn value_fields(node: &Node) -> SmallVec<[DType; 4]> {
    let mut fields = smallvec![node.dtype];
    if node.nullable {
        fields.push(DType::Bool);
    }
    fields
}
