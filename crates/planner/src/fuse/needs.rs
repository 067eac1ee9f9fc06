//! Selects the nodes to materialise, and groups nodes that share a stage.

use super::{bins, is_fused, parts, sides, space, view_base};
use crate::error::Error;
use crate::factor::Factor;
use crate::interrupt;
use crate::ir::{Graph, MapOp, Node, NodeId, Op};
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};

/// Upper bound on the outputs of one stage: beyond it, registers and write streams cost more than another pass.
const OUTPUTS_MAX: usize = 16;

/// The nodes to materialise, with their levels.
pub(super) struct Needs<'a> {
    uses: &'a [u32],
    level: BTreeMap<NodeId, u32>,
    /// For each materialised node, the materialised nodes and generators that it reads.
    leaves: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl<'a> Needs<'a> {
    pub(super) fn find(graph: &Graph, roots: &[NodeId], uses: &'a [u32]) -> Needs<'a> {
        let mut needs = Needs { uses, level: BTreeMap::new(), leaves: BTreeMap::new() };
        for &r in roots {
            // A result is a whole output of a stage, not a view of an output.
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

    /// `seen` contains the nodes whose leaves are already collected: there may be exponentially many paths to a node.
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

    /// Returns the materialised nodes in the order of their stages; nodes that share a stage are adjacent.
    pub(super) fn groups(&self, graph: &Graph) -> Result<Vec<Vec<NodeId>>, Error> {
        let mut order: Vec<NodeId> = self.level.keys().copied().collect();
        order.sort_by_key(|id| (self.level[id], *id));
        let mut groups: Vec<Vec<NodeId>> = Vec::new();
        // Groups of a level that have room, by the nodes that they read: nodes that share a stage have a common input.
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

/// True if both nodes are parts of one factorisation.
fn is_same_factor(a: &Node, b: &Node) -> bool {
    match (&a.op, &b.op) {
        (Op::Factor { kind: x, .. }, Op::Factor { kind: y, .. }) => x == y && a.inputs == b.inputs,
        _ => false,
    }
}

/// True if inlining the child would compute its cells more than once.
pub(super) fn is_repeated_work(graph: &Graph, view: &View, shape: &[u64], child: NodeId) -> bool {
    let node = graph.node(child);
    matches!(node.op, Op::Map(op) if op != MapOp::IsValid)
        && graph.scalar(child).is_none()
        && crate::optimize::repeats(view, shape)
}
