//! Common subexpressions: of equal nodes the first stands for all.

use super::rebuild;
use crate::build::Builder;
use crate::error::Error;
use crate::ir::{Node, NodeId};

pub(super) fn rewrite(b: &mut Builder, node: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    let before = b.graph.len();
    let id = rebuild(b, node, inputs)?;
    if b.graph.len() == before {
        return Ok(id);
    }
    // Graphs have tens of nodes; a scan needs no hash that would have to agree with equality.
    let made = b.node(id);
    let first =
        b.graph.nodes().find(|(other, n)| *other < id && *n == made).map(|(other, _)| other);
    Ok(first.unwrap_or(id))
}
