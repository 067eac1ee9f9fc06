//! Common subexpressions: the first of equal nodes replaces the others.

use super::rebuild;
use crate::build::Builder;
use crate::error::Error;
use crate::ir::{Node, NodeId};
use std::collections::HashMap;

pub(super) fn rewrite() -> impl FnMut(&mut Builder, &Node, &[NodeId]) -> Result<NodeId, Error> {
    let mut first: HashMap<Node, NodeId> = HashMap::new();
    let mut known = 0;
    move |b, node, inputs| {
        let id = rebuild(b, node, inputs)?;
        for (id, node) in b.graph.nodes().skip(known) {
            first.entry(node.clone()).or_insert(id);
        }
        known = b.graph.len();
        Ok(first.get(b.node(id)).copied().unwrap_or(id))
    }
}
