//! Lets a concatenation read the caller's arrays in place.
//!
//! ```text
//!   Concat(Load x[.., 330:360], Load x[.., 0:30])   ─▶   Concat(View(Load x), View(Load x))
//! ```
//! A load of a box copies the cells out of the chunks of an array in memory, and the concatenation copies them once more.
//! A load of whole chunks copies nothing. The logical grid of the concatenation is the same, so no bit changes.

use crate::catalog::SourceRef;
use crate::ir::{Graph, Node, NodeId, Op};
use crate::optimize::Rooted;
use crate::region::Region;
use crate::view::View;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// Returns the graph in which concatenations read whole chunks of such arrays.
pub(super) fn in_place(rooted: Cow<'_, Rooted>) -> Cow<'_, Rooted> {
    let graph = &rooted.graph;
    let is_read = |id: &NodeId| part_of_chunks(graph, *id).is_some();
    let reads =
        |node: &Node| matches!(node.op, Op::Concat { .. }) && node.inputs.iter().any(is_read);
    if !graph.nodes().any(|(_, node)| reads(node)) {
        return rooted;
    }
    let (mut new, mut ids) = (Graph::new(), Vec::with_capacity(graph.len()));
    let mut whole = HashMap::new();
    for (_, node) in graph.nodes() {
        let mut node = node.clone();
        let inputs = node.inputs.iter().map(|id| match (&node.op, part_of_chunks(graph, *id)) {
            (Op::Concat { .. }, Some(part)) => viewed(&mut new, &mut whole, graph.node(*id), part),
            _ => ids[id.0 as usize],
        });
        node.inputs = inputs.collect();
        ids.push(new.push(node));
    }
    let roots = rooted.roots.iter().map(|id| ids[id.0 as usize]).collect();
    Cow::Owned(Rooted { graph: new, roots }.pruned())
}

/// Cells of an array of the caller, seen through a view.
struct Part<'a> {
    source: &'a Arc<SourceRef>,
    region: &'a Region,
    view: View,
}

/// The box that a node reads, if it copies it out of chunks of the caller's memory.
fn part_of_chunks(graph: &Graph, id: NodeId) -> Option<Part<'_>> {
    let (base, view) = graph.behind_view(id);
    match &graph.node(base).op {
        Op::Load { source, region }
            if source.is_resident()
                && source.plain
                && !region.is_empty()
                && chunks_of(source, region) != *region =>
        {
            Some(Part { source, region, view })
        }
        _ => None,
    }
}

/// The cells of all chunks that a box touches.
fn chunks_of(source: &SourceRef, region: &Region) -> Region {
    source.grid.cells(&source.grid.overlapping(region))
}

/// A view of whole chunks that has the cells of `node`.
fn viewed(
    new: &mut Graph,
    whole: &mut HashMap<(Arc<SourceRef>, Region), NodeId>,
    node: &Node,
    Part { source, region, mut view }: Part<'_>,
) -> NodeId {
    let chunks = chunks_of(source, region);
    for (axis, (from, at)) in view.axes.iter_mut().zip(region.start.iter().zip(&chunks.start)) {
        axis.start += (from - at) as i64;
    }
    let load = *whole.entry((source.clone(), chunks.clone())).or_insert_with(|| {
        new.push(Node {
            shape: chunks.shape(),
            grid: source.grid.slice(&chunks),
            op: Op::Load { source: source.clone(), region: chunks },
            inputs: SmallVec::new(),
            dtype: source.dtype,
            nullable: source.nullable,
        })
    });
    let inputs = SmallVec::from_slice(&[load]);
    new.push(Node { op: Op::View(view), inputs, ..node.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::compile;
    use crate::config::Config;
    use crate::dtype::DType;
    use crate::grid::Grid;
    use crate::plan::{Access, Task};
    use crate::region::Dims;

    fn days(url: &str, plain: bool) -> SourceRef {
        SourceRef {
            url: url.into(),
            path: String::new(),
            dtype: DType::Float32,
            shape: Dims::from_slice(&[365, 360]),
            grid: Grid::regular(&[365, 360], &[100, 360]),
            nullable: false,
            version: None,
            plain,
        }
    }

    /// Lengths of each load of `concat(x[120:180, 330:], x[120:180, :30])`, and the positions where its parts begin.
    fn loads(source: SourceRef) -> (Vec<Dims>, Vec<Vec<i64>>) {
        let config = Config::default();
        let mut b = Builder::new(config.clone());
        let x = b.load(Arc::new(source)).unwrap();
        let x = b.slice(x, 0, 120, 1, 60).unwrap();
        let (east, west) = (b.slice(x, 1, 330, 1, 30).unwrap(), b.slice(x, 1, 0, 1, 30).unwrap());
        let both = b.concat(&[east, west], 1).unwrap();
        let rooted = Rooted { graph: b.graph, roots: vec![both] };
        let tiling = compile(rooted, &config, &mut |_, _| {}).unwrap();
        let stages = &tiling.plan().stages;
        let loads = stages.iter().filter(|s| matches!(s.task, Task::Load { .. }));
        let inputs = stages.iter().flat_map(|s| &s.inputs);
        let starts = inputs.filter_map(|i| match &i.access {
            Access::Part { view, .. } => Some(view.axes.iter().map(|a| a.start).collect()),
            _ => None,
        });
        (loads.map(|s| s.grid.shape()).collect(), starts.collect())
    }

    #[test]
    fn parts_of_an_array_of_the_caller_are_read_from_its_chunks() {
        let chunk = Dims::from_slice(&[100, 360]);
        assert_eq!(loads(days("temp:x@1", true)), (vec![chunk], vec![vec![20, 330], vec![20, 0]]));
        // A stored array is read in boxes, and so is one that may have been spilled.
        let boxes = vec![Dims::from_slice(&[60, 30]); 2];
        for stored in [days("days", true), days("temp:x@1", false)] {
            assert_eq!(loads(stored), (boxes.clone(), vec![vec![0, 0]; 2]));
        }
    }
}
