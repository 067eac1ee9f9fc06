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
        // A list may have millions of positions. Equal nodes mostly share one list, which is compared by its address.
        Op::Take { axis, positions } => {
            (axis, positions.len(), positions.first(), positions.last()).hash(&mut state);
            (&node.inputs, &node.shape, node.dtype).hash(&mut state);
        }
        _ => node.hash(&mut state),
    }
    state.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Config;
    use crate::ir::ConstArray;

    #[test]
    fn takes_are_shared_if_all_of_their_positions_are_equal() {
        let mut old = Builder::new(Config::default());
        let x = old.array(ConstArray::from_i64(&[5, 6, 7, 8])).unwrap();
        // Only the ends and the number of positions are hashed.
        for positions in [[0u64, 1, 2, 3], [0, 2, 1, 3], [0, 1, 2, 3]] {
            old.take(x, 0, positions.into()).unwrap();
        }
        let (mut b, mut share) = (Builder::new(Config::default()), rewrite());
        let mut new: Vec<NodeId> = Vec::new();
        for (_, node) in old.graph.nodes() {
            let inputs: Vec<NodeId> = node.inputs.iter().map(|i| new[i.0 as usize]).collect();
            new.push(share(&mut b, node, &inputs).unwrap());
        }
        assert_ne!(new[1], new[2]);
        assert_eq!(new[1], new[3]);
    }
}
