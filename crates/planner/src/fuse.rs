//! From the IR to stages: what is computed together.
//!
//! Elementwise nodes, views and generators never become stages of their own: they are inlined into the programs of the
//! nodes that need memory for their result. Those are
//! * results of the query and inputs of tasks that move cells (`Copy`, `Scan`, `Contract`): *stored*,
//! * reductions: a partial state for each chunk, then a combining tree,
//! * elementwise values that a view repeats: computed once, not once for each repetition.
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
mod cut;
mod factor;
mod lower;
mod sorted;
mod spans;

use crate::config::Config;
use crate::dtype::DType;
use crate::error::Error;
use crate::factor::Factor;
use crate::grid::{AxisGrid, Grid};
use crate::interrupt;
use crate::ir::{AxisReduce, Contraction, Graph, MapOp, Node, NodeId, Op};
use crate::lookup::LookupKind;
use crate::optimize::Rooted;
use crate::plan::{
    Access, Fused, FusedOutput, Input, Output, OutputRef, Plan, Stage, StageId, Task,
};
use crate::program::Arg;
use crate::reduce::ReduceKind;
use crate::region::{Dims, Region};
use crate::scalar::Scalar;
use crate::sort::{SortOrder, SortWhat};
use crate::view::{AxisView, View};
use lower::Lowering;
use smallvec::{SmallVec, smallvec};
use spans::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Fan-in of a combining tree: partials held at once, against levels of the tree.
const FAN: u64 = 16;

/// Cells along k that one contraction sums before its blocks are combined.
const K_BLOCK: u64 = 4096;

/// Most outputs of one stage: beyond it, registers and write streams cost more than another pass.
const OUTPUTS_MAX: usize = 16;

/// Turns an optimised graph into a plan.
///
/// # Errors
/// [`Error::Broken`] if the graph is not sound, [`Error::Stopped`].
pub fn fuse(rooted: &Rooted, config: &Config) -> Result<Plan, Error> {
    let rooted = cut::cut(rooted, config);
    let graph = &rooted.graph;
    let uses = uses(&rooted);
    let needs = Needs::find(graph, &rooted.roots, &uses);
    let mut f = Fuser { graph, config, uses: &uses, plan: Plan::default(), made: BTreeMap::new() };
    for group in needs.groups(graph)? {
        interrupt::check()?;
        f.emit(&group)?;
    }
    for &root in &rooted.roots {
        // The view of a product drops last axes of length 1, which changes no byte of a chunk.
        let (out, _) = f.find(root)?;
        f.plan.results.push(out);
    }
    Ok(f.plan)
}

/// How many nodes and roots read each node.
fn uses(rooted: &Rooted) -> Vec<u32> {
    let mut uses = vec![0; rooted.graph.len()];
    let inputs = rooted.graph.nodes().flat_map(|(_, node)| node.inputs.iter());
    inputs.chain(&rooted.roots).for_each(|id| uses[id.0 as usize] += 1);
    uses
}

/// Which nodes get memory of their own, and their levels.
struct Needs<'a> {
    uses: &'a [u32],
    /// Level of each node that is materialised.
    level: BTreeMap<NodeId, u32>,
    /// For each of them, the materialised nodes and generators it reads.
    leaves: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl<'a> Needs<'a> {
    fn find(graph: &Graph, roots: &[NodeId], uses: &'a [u32]) -> Needs<'a> {
        let mut needs = Needs { uses, level: BTreeMap::new(), leaves: BTreeMap::new() };
        for &r in roots {
            // A result is a whole output of a stage, not a view of one.
            needs.materialise(graph, r);
        }
        needs
    }

    fn materialise(&mut self, graph: &Graph, id: NodeId) -> u32 {
        if let Some(&l) = self.level.get(&id) {
            return l;
        }
        let node = graph.node(id);
        let (mut leaves, mut seen) = (BTreeSet::new(), BTreeSet::new());
        match &node.op {
            Op::Load { .. } | Op::Const(_) => {}
            Op::Reduce { .. } | Op::Certain { .. } => {
                self.inline(graph, node.inputs[0], &mut leaves, &mut seen)
            }
            Op::Scan { .. }
            | Op::Reshape
            | Op::Take { .. }
            | Op::Window { .. }
            | Op::Sort { .. }
            | Op::Quantile { .. } => {
                self.materialise(graph, node.inputs[0]);
                leaves.insert(node.inputs[0]);
            }
            Op::Lookup { .. } | Op::Bin { .. } => {
                let inputs = match bins(graph, node) {
                    Some([cells, edges]) => [&[cells, edges], &node.inputs[1..]].concat(),
                    None => node.inputs.to_vec(),
                };
                for i in inputs {
                    self.materialise(graph, i);
                    leaves.insert(i);
                }
            }
            Op::Factor { kind: Factor::QrApply { .. }, .. } => {
                let base = self.behind_view(graph, node.inputs[0]);
                self.materialise(graph, node.inputs[1]);
                leaves.extend([base, node.inputs[1]]);
            }
            Op::Contract(_) => {
                for (base, _) in sides(graph, node) {
                    self.materialise(graph, base);
                    leaves.insert(base);
                }
            }
            Op::Concat { .. } => {
                for (_, i) in parts(graph, self.uses, id) {
                    let base = self.behind_view(graph, i);
                    leaves.insert(base);
                }
            }
            Op::Factor { .. } => {
                for &i in &node.inputs {
                    let base = self.behind_view(graph, i);
                    leaves.insert(base);
                }
            }
            Op::Map(_) | Op::View(_) | Op::Iota | Op::Rechunk => {
                self.inline_node(graph, node, id, &mut leaves, &mut seen)
            }
        }
        let below = leaves.iter().filter_map(|l| self.level.get(l)).max().copied();
        let level = match node.op {
            Op::Load { .. } | Op::Const(_) => 0,
            _ => below.map_or(1, |l| l + 1),
        };
        self.level.insert(id, level);
        self.leaves.insert(id, leaves);
        level
    }

    /// Materialises the node behind a view (or the node itself, if its view cannot be read in place).
    fn behind_view(&mut self, graph: &Graph, id: NodeId) -> NodeId {
        let base = view_base(graph, id).0;
        self.materialise(graph, base);
        base
    }

    /// `seen` has the nodes whose leaves are there already: a node may be reached by exponentially many ways.
    fn inline(
        &mut self,
        graph: &Graph,
        id: NodeId,
        leaves: &mut BTreeSet<NodeId>,
        seen: &mut BTreeSet<NodeId>,
    ) {
        if !seen.insert(id) {
            return;
        }
        let node = graph.node(id);
        match &node.op {
            Op::Map(_) | Op::View(_) | Op::Iota | Op::Rechunk => {
                self.inline_node(graph, node, id, leaves, seen)
            }
            Op::Const(c) if c.len() == 1 => {}
            _ => {
                self.materialise(graph, id);
                leaves.insert(id);
            }
        }
    }

    fn inline_node(
        &mut self,
        graph: &Graph,
        node: &Node,
        id: NodeId,
        leaves: &mut BTreeSet<NodeId>,
        seen: &mut BTreeSet<NodeId>,
    ) {
        match &node.op {
            Op::Iota => {
                leaves.insert(id);
            }
            Op::View(view) => {
                let child = node.inputs[0];
                if is_repeated_work(graph, view, &node.shape, child) {
                    self.materialise(graph, child);
                    leaves.insert(child);
                } else {
                    self.inline(graph, child, leaves, seen);
                }
            }
            _ => {
                for &i in &node.inputs {
                    self.inline(graph, i, leaves, seen);
                }
            }
        }
    }

    /// The materialised nodes in the order in which they become stages; nodes that share a stage stand together.
    fn groups(&self, graph: &Graph) -> Result<Vec<Vec<NodeId>>, Error> {
        let mut order: Vec<NodeId> = self.level.keys().copied().collect();
        order.sort_by_key(|id| (self.level[id], *id));
        let mut groups: Vec<Vec<NodeId>> = Vec::new();
        // Groups of a level that have room, by what their nodes read: nodes that share a stage read something together.
        let mut open: BTreeMap<(u32, NodeId), Vec<usize>> = BTreeMap::new();
        for id in order {
            interrupt::check()?;
            let (level, node) = (self.level[&id], graph.node(id));
            let reads: BTreeSet<NodeId> = match node.op {
                Op::Factor { .. } => node.inputs.iter().copied().collect(),
                _ if is_fused(node) => self.leaves[&id].clone(),
                _ => BTreeSet::new(),
            };
            let mut candidates = BTreeSet::new();
            for &read in &reads {
                let Some(known) = open.get_mut(&(level, read)) else { continue };
                known.retain(|&g| groups[g].len() < OUTPUTS_MAX);
                candidates.extend(known.iter().copied());
            }
            let fits = |&g: &usize| {
                let first = graph.node(groups[g][0]);
                is_same_factor(first, node)
                    || is_fused(first)
                        && is_fused(node)
                        && space(graph, first) == space(graph, node)
            };
            let group = candidates.into_iter().find(fits).unwrap_or_else(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group].push(id);
            for read in reads {
                let known = open.entry((level, read)).or_default();
                if !known.contains(&group) {
                    known.push(group);
                }
            }
        }
        Ok(groups)
    }
}

/// The boxes of a concatenation, each with the node whose cells it has: what is concatenated for nobody else, as corners
/// and edges of a margin are, is put at its place at once.
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

/// The cells and the edges that a node counts by bins, so that the bins' numbers need no memory.
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

/// Are these parts of one factorisation?
fn is_same_factor(a: &Node, b: &Node) -> bool {
    match (&a.op, &b.op) {
        (Op::Factor { kind: x, .. }, Op::Factor { kind: y, .. }) => x == y && a.inputs == b.inputs,
        _ => false,
    }
}

/// The cells and chunks over which a fused node runs.
fn space<'a>(graph: &'a Graph, node: &'a Node) -> &'a Grid {
    match node.op {
        Op::Reduce { .. } => &graph.node(node.inputs[0]).grid,
        _ => &node.grid,
    }
}

/// Would inlining the child compute its cells more than once?
fn is_repeated_work(graph: &Graph, view: &View, shape: &[u64], child: NodeId) -> bool {
    let node = graph.node(child);
    matches!(node.op, Op::Map(op) if op != MapOp::IsValid)
        && graph.scalar(child).is_none()
        && crate::optimize::repeats(view, shape)
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

/// The nodes that the sides of a product read in place, and the views. What both view is made once, also where it is
/// elementwise: `transpose(x - mean(x, 0)) @ (x - mean(x, 0))`.
fn sides(graph: &Graph, product: &Node) -> [(NodeId, View); 2] {
    let inputs = [product.inputs[0], product.inputs[1]];
    let both = inputs.map(|i| graph.behind_view(i));
    if both[0].0 == both[1].0 { both } else { inputs.map(|i| view_base(graph, i)) }
}

/// Stages so far, and where each materialised node is.
struct Fuser<'a> {
    graph: &'a Graph,
    config: &'a Config,
    uses: &'a [u32],
    plan: Plan,
    /// The output that holds a node, and how the node's cells see it.
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

    /// A sorted table, which lies in one chunk, by a view of its first cell.
    fn table(&mut self, id: NodeId) -> Result<Input, Error> {
        let from = self.exact(id)?;
        let first = AxisView { axis: None, start: 0, step: 1 };
        Ok(Input { from, access: Access::View(View { axes: smallvec![first] }) })
    }

    /// Counts for each chunk of codes, then a tree that adds them.
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

    /// A stage over the cells of its input, whose lines along some axis lie in one chunk.
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

    /// The output that holds a node cell by cell; a node that is seen through a view is copied first.
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

    fn emit_fused(&mut self, group: &[NodeId]) -> Result<(), Error> {
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

    /// The combining tree over partial states.
    ///
    /// ```text
    ///   partials  o o o o o o o ...     along every reduced axis, at most FAN in a box of the fan
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

    fn combine(
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
            let (fan, mut grid) = batch::climb(&below.grid, reduced);
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

    /// `[b.., m.., k..] @ [b.., k.., n..]` as stage cells `[b.., m.., n.., k..]`.
    fn emit_contract(&mut self, id: NodeId, product: Contraction) -> Result<(), Error> {
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

/// The blocks along summed axes, which come near [`K_BLOCK`] cells together.
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

/// The length of the blocks of a summed axis, which follow the cuts of the left side: several chunks joined, or parts of
/// one that is so much longer than `aim` that its products would be too few for all threads, and need too much memory
/// each.
fn k_block(k: AxisGrid, aim: u64) -> u64 {
    let chunk = k.chunk.max(1);
    let parts = chunk / aim;
    if parts < 2 {
        return (chunk * (aim / chunk).max(1)).min(k.len).max(1);
    }
    if k.count() == 1 {
        return k.len.div_ceil(parts).max(1);
    }
    // No block lies in two chunks.
    (parts..=2 * chunk / aim).find(|n| chunk.is_multiple_of(*n)).map_or(chunk, |n| chunk / n)
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

/// Fields of a value: itself, and its validity if it can be masked.
fn value_fields(node: &Node) -> SmallVec<[DType; 4]> {
    let mut fields = smallvec![node.dtype];
    if node.nullable {
        fields.push(DType::Bool);
    }
    fields
}

/// The grid of partial states: one cell (one for each group) a chunk along reduced axes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_contracted_axis_join_short_chunks_and_cut_long_ones() {
        let block = |len, chunk| k_block(AxisGrid::regular(len, chunk), K_BLOCK);
        assert_eq!([block(0, 1), block(1, 1), block(700, 100), block(700, 700)], [1, 1, 700, 700]);
        // As many chunks as stay within a block.
        assert_eq!(block(100_000, 300), 13 * 300);
        assert_eq!(block(100_000, 8000), 8000);
        // Parts of one chunk, all about as long; of several, such that none lies in two.
        assert_eq!(block(90_000, 90_000), 90_000_u64.div_ceil(21));
        assert_eq!(block(100_000, 20_000), 5000);
        assert_eq!(block(100_000, 8209), 8209);
        // Along several axes from the last on: whole, then as many as fit.
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
