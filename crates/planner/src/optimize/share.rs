//! Common subexpressions: the first of equal nodes replaces the others.

use super::rebuild;
use crate::build::Builder;
use crate::error::Error;
use crate::ir::{Node, NodeId, Op};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) fn rewrite() -> impl FnMut(&mut Builder, &Node, &[NodeId]) -> Result<NodeId, Error> {
    // The different nodes of each hash.
    let mut first: HashMap<u64, Vec<NodeId>> = HashMap::new();
    let mut known = 0;
    move |b, node, inputs| {
        let id = rebuild(b, node, inputs)?;
        for (id, node) in b.graph.nodes().skip(known) {
            let alike = first.entry(hash(node)).or_default();
            if !alike.iter().any(|other| b.node(*other) == node) {
                alike.push(id);
            }
        }
        known = b.graph.len();
        let node = b.node(id);
        let mut alike = first.get(&hash(node)).into_iter().flatten();
        Ok(alike.find(|other| b.node(**other) == node).copied().unwrap_or(id))
    }
}

fn hash(node: &Node) -> u64 {
    let mut state = DefaultHasher::new();
    match &node.op {
        // There may be millions of positions. Equal nodes mostly share one list, which is compared by its address.
        Op::Take { axis, positions } => {
            (axis, positions.len(), positions.first(), positions.last()).hash(&mut state);
            (&node.inputs, &node.shape, node.dtype).hash(&mut state);
        }
        _ => node.hash(&mut state),
    }
    state.finish()
}
