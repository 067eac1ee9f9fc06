//! Rewrites of the IR that preserve its meaning.
//!
//! Every pass is a pure function from a graph to a graph, listed in [`PASSES`]. [`crate::verify`] checks the result of
//! each pass, so a broken rewrite fails at once.

mod fold;
mod halve;
mod push;
mod share;

pub(crate) use push::repeats;

use crate::build::Builder;
use crate::config::Config;
use crate::error::Error;
use crate::interrupt;
use crate::ir::{Graph, MapOp, Node, NodeId, Op};
use crate::program::ScalarOp;
use crate::verify::verify;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// A rewrite of a graph.
pub struct Pass {
    /// Name in EXPLAIN VERBOSE.
    pub name: &'static str,
    /// Returns the pass's rewrite with fresh state.
    start: fn() -> Rewrite,
}

/// Rewrites one node, given its rewritten inputs.
type Rewrite = Box<dyn FnMut(&mut Builder, &Node, &[NodeId]) -> Result<NodeId, Error>>;

/// The passes, in the order in which they run. The list repeats until nothing changes, at most eight times.
pub const PASSES: [Pass; 3] = [
    Pass { name: "fold", start: || Box::new(fold::rewrite) },
    Pass { name: "push_slice", start: || Box::new(push::rewrite) },
    Pass { name: "share", start: || Box::new(share::rewrite()) },
];

/// Passes that run once after the others. Views sink no further, so both sides of a product may view one node. Grids
/// change no more, so a rechunk to the current grid is removed.
const LAST: [Pass; 2] = [
    Pass { name: "settle", start: || Box::new(settle) },
    Pass { name: "halve", start: || Box::new(halve::rewrite) },
];

fn settle(b: &mut Builder, node: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    match node.op {
        Op::Rechunk if b.node(inputs[0]).grid == node.grid => Ok(inputs[0]),
        _ => rebuild(b, node, inputs),
    }
}

/// Upper bound on repetitions of the list: views sink one operation per round, and deeper chains gain little.
const ROUNDS_MAX: usize = 8;

/// A graph with its root nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rooted {
    /// The graph.
    pub graph: Graph,
    /// The requested nodes, in the order of the query's items.
    pub roots: Vec<NodeId>,
}

impl Rooted {
    /// Returns a node of a graph with its ancestors. Time and memory grow with these, not with the graph.
    pub fn of(graph: &Graph, root: NodeId) -> Rooted {
        let (mut needed, mut next) = (BTreeSet::from([root]), vec![root]);
        while let Some(id) = next.pop() {
            next.extend(graph.node(id).inputs.iter().copied().filter(|i| needed.insert(*i)));
        }
        let (mut part, mut new) = (Graph::new(), BTreeMap::new());
        let mut root = NodeId(0);
        // Inputs precede their users, and the root is last.
        for id in needed {
            let mut node = graph.node(id).clone();
            for input in &mut node.inputs {
                *input = new.get(input).copied().unwrap_or(*input);
            }
            root = part.push(node);
            new.insert(id, root);
        }
        Rooted { graph: part, roots: vec![root] }
    }

    /// Returns the graph without the nodes that no root needs: equal computations give equal graphs.
    pub fn pruned(&self) -> Rooted {
        prune(self)
    }
}

/// Runs all passes. `trace` sees the graph after each pass that changed it.
///
/// # Errors
/// [`Error::Broken`] if a pass broke the graph, [`Error::Stopped`] if planning was stopped. Constructors cannot fail on
/// a sound graph.
pub fn optimize(
    start: Rooted,
    config: &Config,
    trace: &mut dyn FnMut(&'static str, &Rooted),
) -> Result<Rooted, Error> {
    verify(&start.graph, "build")?;
    let mut now = start;
    for _ in 0..ROUNDS_MAX {
        let before = now.clone();
        for pass in &PASSES {
            now = run(pass, now, config, trace)?;
        }
        if now == before {
            break;
        }
    }
    for pass in &LAST {
        now = run(pass, now, config, trace)?;
    }
    Ok(now)
}

/// Runs a pass and calls `trace` if the graph changed.
fn run(
    pass: &Pass,
    now: Rooted,
    config: &Config,
    trace: &mut dyn FnMut(&'static str, &Rooted),
) -> Result<Rooted, Error> {
    let next = apply(pass, &now, config)?;
    verify(&next.graph, pass.name)?;
    if next != now {
        trace(pass.name, &next);
    }
    Ok(next)
}

/// Rebuilds the graph from the roots' ancestors, node by node; nodes that no root needs are dropped.
fn apply(pass: &Pass, old: &Rooted, config: &Config) -> Result<Rooted, Error> {
    let needed = needed(old);
    let mut b = Builder::new(config.clone());
    let mut new: Vec<Option<NodeId>> = vec![None; old.graph.len()];
    let at = |new: &[Option<NodeId>], id: NodeId| {
        new[id.0 as usize]
            .ok_or_else(|| Error::Broken { pass: pass.name, reason: "an input was lost".into() })
    };
    let mut rewrite = (pass.start)();
    for (id, node) in old.graph.nodes() {
        if needed[id.0 as usize] {
            interrupt::check()?;
            let inputs: SmallVec<[NodeId; 3]> =
                node.inputs.iter().map(|&i| at(&new, i)).collect::<Result<_, _>>()?;
            new[id.0 as usize] = Some(rewrite(&mut b, node, &inputs)?);
        }
    }
    let roots = old.roots.iter().map(|&r| at(&new, r)).collect::<Result<_, _>>()?;
    Ok(prune(&Rooted { graph: b.graph, roots }))
}

/// For each node, true if it is a root or an ancestor of one.
fn needed(of: &Rooted) -> Vec<bool> {
    let mut needed = vec![false; of.graph.len()];
    for r in &of.roots {
        needed[r.0 as usize] = true;
    }
    for (id, node) in of.graph.nodes().rev() {
        if needed[id.0 as usize] {
            for i in &node.inputs {
                needed[i.0 as usize] = true;
            }
        }
    }
    needed
}

/// Returns the graph without the nodes that no root needs.
fn prune(old: &Rooted) -> Rooted {
    let needed = needed(old);
    let mut graph = Graph::new();
    let mut new = vec![NodeId(0); old.graph.len()];
    for (id, node) in old.graph.nodes() {
        if needed[id.0 as usize] {
            let mut node = node.clone();
            for i in &mut node.inputs {
                *i = new[i.0 as usize];
            }
            new[id.0 as usize] = graph.push(node);
        }
    }
    Rooted { graph, roots: old.roots.iter().map(|r| new[r.0 as usize]).collect() }
}

impl Builder {
    /// Adds the nodes that the roots of another graph need and returns the ids of the roots in this graph. Grids are
    /// derived again under this builder's configuration.
    ///
    /// # Errors
    /// Errors of the constructors; none for a graph that was built under the same configuration.
    pub fn import(&mut self, from: &Rooted) -> Result<Vec<NodeId>, Error> {
        let from = prune(from);
        let mut new: Vec<NodeId> = Vec::with_capacity(from.graph.len());
        for (_, node) in from.graph.nodes() {
            let inputs: SmallVec<[NodeId; 3]> =
                node.inputs.iter().map(|i| new[i.0 as usize]).collect();
            new.push(rebuild(self, node, &inputs)?);
        }
        Ok(from.roots.iter().map(|r| new[r.0 as usize]).collect())
    }
}

/// Rebuilds a node over rewritten inputs and derives its grid again.
pub(crate) fn rebuild(b: &mut Builder, node: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    match &node.op {
        Op::Load { source, region } => b.load_region(source.clone(), region.clone()),
        Op::Const(c) => b.array(c.clone()),
        Op::Iota => Ok(b.graph.push(node.clone())),
        Op::Map(MapOp::Scalar(ScalarOp::Cast)) => b.cast(inputs[0], node.dtype),
        Op::Map(op) => b.map_op(*op, inputs),
        Op::View(v) => b.view(inputs[0], v.clone(), &node.shape),
        Op::Reshape => b.reshape(inputs[0], &node.shape),
        Op::Concat { axis } => b.concat(inputs, *axis),
        // `verify` looks at the positions of each graph.
        Op::Take { axis, positions } => b.taken(inputs[0], *axis, positions.clone()),
        Op::Reduce { kind, axes } => b.reduce(inputs[0], *kind, axes),
        Op::Scan { kind, axis } => b.scan(inputs[0], *kind, *axis),
        Op::Window { axis, frame, kind, min_count } => {
            b.window(inputs[0], *axis, *frame, *kind, *min_count)
        }
        Op::Sort { axis, what, order, limit } => b.sort(inputs[0], *axis, *what, *order, *limit),
        Op::Quantile { axis, quantiles } => b.quantile(inputs[0], *axis, quantiles.clone()),
        Op::Lookup { kind } => b.lookup(inputs[0], &inputs[1..], *kind),
        Op::Bin { count, strict } => b.bin(inputs[0], inputs.get(1).copied(), *count, *strict),
        Op::Contract(axes) => b.contract_axes(inputs[0], inputs[1], *axes),
        Op::Factor { kind, part } => b.factor(*kind, *part, inputs),
        Op::Certain { operation } => b.certain(inputs[0], operation),
        Op::Rechunk => {
            let chunks: Vec<u64> = node.grid.axes.iter().map(|a| a.chunk).collect();
            b.rechunk(inputs[0], &chunks)
        }
    }
}
