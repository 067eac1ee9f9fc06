//! Views and reshapes sink towards the sources, so that a slice reads only the cells it needs.
//!
//! ```text
//!   View(Map(a, b))            →  Map(View(a), View(b))        unless the view repeats cells or only turns axes
//!   View(Load[region])         →  View'(Load[smaller region])
//!   Reshape(Map(a))            →  Map(Reshape(a)),  Reshape(Iota) → Iota
//! ```

use super::rebuild;
use crate::build::Builder;
use crate::error::Error;
use crate::grid::Grid;
use crate::ir::{MapOp, Node, NodeId, Op};
use crate::program::ScalarOp;
use crate::region::{Region, cells};
use crate::view::{AxisView, View};
use smallvec::SmallVec;
use std::collections::BTreeSet;

pub(super) fn rewrite(b: &mut Builder, node: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    match &node.op {
        Op::View(view) => push_view(b, node, view, inputs[0]),
        Op::Reshape => push_reshape(b, node, inputs[0]),
        _ => rebuild(b, node, inputs),
    }
}

fn push_view(b: &mut Builder, node: &Node, view: &View, input: NodeId) -> Result<NodeId, Error> {
    let child = b.node(input).clone();
    match &child.op {
        Op::Map(op)
            if cells(&node.shape) <= cells(&child.shape)
                && !repeats(view, &node.shape)
                && !turns(view, &child.shape, &node.shape) =>
        {
            let inputs: SmallVec<[NodeId; 3]> = child
                .inputs
                .iter()
                .map(|&i| b.view(i, view.clone(), &node.shape))
                .collect::<Result<_, _>>()?;
            map_again(b, *op, &child, &inputs)
        }
        Op::Load { source, region } => {
            let image = view.image(&Region::whole(&node.shape));
            if image.is_empty() || image.shape() == child.shape {
                return rebuild(b, node, &[input]);
            }
            let mut inner = view.clone();
            let mut target = region.clone();
            for (d, a) in inner.axes.iter_mut().enumerate() {
                a.start -= image.start[d] as i64;
                target.end[d] = region.start[d] + image.end[d];
                target.start[d] = region.start[d] + image.start[d];
            }
            let load = b.load_region(source.clone(), target)?;
            b.view(load, inner, &node.shape)
        }
        _ => rebuild(b, node, &[input]),
    }
}

/// True if an output axis longer than 1 reads no input axis, so that cells are repeated.
pub(crate) fn repeats(view: &View, shape: &[u64]) -> bool {
    (0..shape.len()).any(|o| shape[o] > 1 && !view.axes.iter().any(|a| a.axis == Some(o)))
}

/// True if the view only permutes whole axes. Sinking it would not reduce reads, and a consumer that reads views in
/// place (a product with its own transpose: `cov`) shares the cells with readers of the unpermuted input.
fn turns(view: &View, from: &[u64], to: &[u64]) -> bool {
    let whole = |(a, n): (&AxisView, &u64)| {
        a.start == 0 && a.step == 1 && a.axis.is_some_and(|o| to[o] == *n)
    };
    from.len() == to.len() && view.axes.iter().zip(from).all(whole) && !repeats(view, to)
}

fn push_reshape(b: &mut Builder, node: &Node, input: NodeId) -> Result<NodeId, Error> {
    let child = b.node(input).clone();
    match &child.op {
        Op::Iota => {
            // Chunks requested by the user applied to the old shape.
            let grid = Grid::auto(&node.shape, node.dtype.size(), b.config.chunk_bytes_target);
            let chunks: Vec<u64> = grid.axes.iter().map(|a| a.chunk).collect();
            b.iota(&node.shape, Some(&chunks))
        }
        Op::Reshape => b.reshape(child.inputs[0], &node.shape),
        Op::Map(op) if is_generated(b, input) => {
            let inputs: SmallVec<[NodeId; 3]> = child
                .inputs
                .iter()
                .map(|&i| b.reshape(i, &node.shape))
                .collect::<Result<_, _>>()?;
            map_again(b, *op, &child, &inputs)
        }
        Op::View(_) => match b.graph.scalar(input) {
            Some(value) => b.full(value, node.dtype, &node.shape, None),
            None => rebuild(b, node, &[input]),
        },
        _ => rebuild(b, node, &[input]),
    }
}

/// True if every cell is computed from its number alone. Reshaping stored cells costs a copy; one copy is better than
/// several.
fn is_generated(b: &Builder, id: NodeId) -> bool {
    // Visits each node once: there may be exponentially many paths to it.
    let (mut seen, mut open) = (BTreeSet::from([id]), vec![id]);
    while let Some(id) = open.pop() {
        let node = b.node(id);
        match &node.op {
            Op::Iota => {}
            Op::Map(_) | Op::Reshape => {
                open.extend(node.inputs.iter().copied().filter(|&i| seen.insert(i)));
            }
            _ if b.graph.scalar(id).is_some() => {}
            _ => return false,
        }
    }
    true
}

fn map_again(b: &mut Builder, op: MapOp, child: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    match op {
        MapOp::Scalar(ScalarOp::Cast) => b.cast(inputs[0], child.dtype),
        op => b.map_op(op, inputs),
    }
}
