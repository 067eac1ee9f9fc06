//! Executable grammar of the IR: the invariants of every graph between two passes.

use crate::build::{map_dtype, map_nullable, whole};
use crate::catalog::SourceRef;
use crate::dtype::DType;
use crate::error::Error;
use crate::factor::Factor;
use crate::ir::{AxisReduce, ConstArray, Contraction, Graph, MapOp, Node, Op};
use crate::lookup::LookupKind;
use crate::program::ScalarOp;
use crate::reduce::ReduceKind;
use crate::region::{Region, cells};
use crate::sort::{Quantiles, SortWhat};
use crate::view::View;
use crate::window::{Frame, is_windowed};

/// Checks every node against its inputs.
///
/// # Errors
/// [`Error::Broken`] naming `pass` and the first rule that does not hold.
pub fn verify(graph: &Graph, pass: &'static str) -> Result<(), Error> {
    for (id, node) in graph.nodes() {
        if let Err(reason) = check(graph, id.0, node) {
            return Err(Error::Broken { pass, reason: format!("node {}: {reason}", id.0) });
        }
    }
    Ok(())
}

type Check = Result<(), String>;

fn ensure(ok: bool, what: &str) -> Check {
    if ok { Ok(()) } else { Err(what.to_string()) }
}

/// Checks a node: the invariants of all nodes, then those of its operation.
fn check(graph: &Graph, id: u32, node: &Node) -> Check {
    ensure(node.inputs.iter().all(|i| i.0 < id), "an input stands after its user")?;
    ensure(node.grid.shape() == node.shape, "the grid has another shape")?;
    ensure(cells(&node.shape).is_some(), "the shape has too many cells")?;
    let inputs: Vec<&Node> = node.inputs.iter().map(|&i| graph.node(i)).collect();
    ensure(arity(&node.op).is_none_or(|n| n == inputs.len()), "wrong number of inputs")?;
    match &node.op {
        Op::Load { source, region } => load(node, source, region),
        Op::Const(c) => constant(node, c),
        Op::Iota => ensure(inputs.is_empty() && !node.nullable, "numbers are never masked"),
        Op::Map(op) => map(node, *op, &inputs),
        Op::View(v) => view(node, v, inputs[0]),
        Op::Reshape => ensure(
            cells(&node.shape) == cells(&inputs[0].shape),
            "reshape changes the number of cells",
        ),
        Op::Concat { axis } => {
            let total: u64 = inputs.iter().map(|i| i.shape[*axis]).sum();
            ensure(total == node.shape[*axis], "the parts do not fill the axis")
        }
        Op::Take { axis, positions } => ensure(
            positions.iter().all(|&p| p < inputs[0].shape[*axis]),
            "a position leaves the input",
        ),
        Op::Reduce { kind, axes } => reduce(node, *kind, axes, inputs[0]),
        Op::Scan { axis, .. } => ensure(
            *axis < node.shape.len() && inputs[0].shape == node.shape,
            "a scan keeps its shape",
        ),
        Op::Window { axis, frame, kind, .. } => window(node, *axis, *frame, *kind, inputs[0]),
        Op::Sort { axis, what, limit, .. } => sort(node, *axis, *what, *limit, inputs[0]),
        Op::Quantile { axis, quantiles } => quantile(node, *axis, quantiles, inputs[0]),
        Op::Lookup { kind } => lookup(node, *kind, &inputs),
        Op::Bin { count, .. } => bin(node, *count, &inputs),
        Op::Contract(axes) => contract(node, *axes, inputs[0], inputs[1]),
        Op::Factor { kind, part } => factor(node, *kind, *part, &inputs),
        Op::Certain { .. } => ensure(
            inputs[0].shape == node.shape && inputs[0].dtype == node.dtype && !node.nullable,
            "cells that are certain are the input's, without a mask",
        ),
        Op::Rechunk => ensure(inputs[0].shape == node.shape, "rechunk keeps its shape"),
    }
}

/// Number of inputs of an operation; `None` if it varies.
fn arity(op: &Op) -> Option<usize> {
    match op {
        Op::Load { .. } | Op::Const(_) | Op::Iota => Some(0),
        Op::Map(MapOp::Scalar(s)) => Some(s.arity()),
        Op::Map(MapOp::IsValid) => Some(1),
        Op::Map(_) | Op::Contract(_) => Some(2),
        Op::Factor { kind, .. } => Some(kind.arity()),
        Op::Lookup { kind } => Some(1 + kind.tables()),
        Op::Concat { .. } | Op::Bin { .. } => None,
        _ => Some(1),
    }
}

/// A region of a source with the node's cells.
fn load(node: &Node, source: &SourceRef, region: &Region) -> Check {
    ensure(Region::whole(&source.shape).contains(region), "the box leaves the source")?;
    ensure(
        region.shape() == node.shape && source.dtype == node.dtype,
        "shape or type differ from the source",
    )
}

/// An array stored in the plan.
fn constant(node: &Node, c: &ConstArray) -> Check {
    ensure(c.shape == node.shape && c.dtype == node.dtype, "shape or type differ from the array")?;
    ensure(cells(&c.shape) == Some(c.len() as u64), "the array has another number of cells")?;
    ensure(c.valid.is_some() == node.nullable, "mask flag differs from the array")
}

/// An elementwise operation on inputs of one shape.
fn map(node: &Node, op: MapOp, inputs: &[&Node]) -> Check {
    ensure(inputs.iter().all(|i| i.shape == node.shape), "an input has another shape")?;
    if op != MapOp::Scalar(ScalarOp::Cast) {
        let dtypes: Vec<_> = inputs.iter().map(|i| i.dtype).collect();
        ensure(
            map_dtype(op, &dtypes) == Some(node.dtype),
            "the operation does not give this type",
        )?;
    }
    let nullable: Vec<_> = inputs.iter().map(|i| i.nullable).collect();
    ensure(map_nullable(op, &nullable) == node.nullable, "mask flag differs from the operation's")
}

/// A view whose reads lie within its input.
fn view(node: &Node, v: &View, child: &Node) -> Check {
    ensure(v.axes.len() == child.shape.len(), "the view has another rank")?;
    let moved: Vec<usize> = v.axes.iter().filter_map(|a| a.axis).collect();
    ensure(
        moved.iter().all(|&a| a < node.shape.len()),
        "the view names an axis that is not there",
    )?;
    ensure(
        (1..moved.len()).all(|i| !moved[..i].contains(&moved[i])),
        "the view names an axis twice",
    )?;
    ensure(v.axes.iter().all(|a| a.axis.is_none() || a.step != 0), "the view does not move")?;
    if cells(&node.shape) != Some(0) {
        let inside = v.axes.iter().zip(&child.shape).all(|(a, &n)| {
            let last = a.axis.map_or(a.start, |o| a.start + a.step * (node.shape[o] as i64 - 1));
            let (lo, hi) = (a.start.min(last), a.start.max(last));
            lo >= 0 && (hi as u64) < n
        });
        ensure(inside, "the view leaves its input")?;
    }
    ensure(node.dtype == child.dtype && node.nullable == child.nullable, "a view changes the type")
}

fn reduce(node: &Node, kind: ReduceKind, axes: &[AxisReduce], input: &Node) -> Check {
    ensure(kind.result(input.dtype) == Some(node.dtype), "the reduction does not give this type")?;
    ensure(axes.len() == input.shape.len(), "axes of another rank")?;
    let fits = axes.iter().enumerate().all(|(a, r)| match r {
        AxisReduce::Keep => node.shape[a] == input.shape[a],
        AxisReduce::All => node.shape[a] == 1,
        AxisReduce::Group(g) => node.shape[a] == u64::from(g.count),
    });
    ensure(fits, "the reduced shape is another")?;
    let known = match kind {
        ReduceKind::MeanOf(n) => whole(&input.shape, axes) == Some(n) && !input.nullable,
        _ => true,
    };
    ensure(known, "the mean is of other cells")?;
    ensure(!matches!(kind, ReduceKind::Quantile(_)), "a quantile has no state")
}

fn window(node: &Node, axis: usize, frame: Frame, kind: ReduceKind, input: &Node) -> Check {
    ensure(axis < node.shape.len() && input.shape == node.shape, "a window keeps its shape")?;
    ensure(frame.width() >= 1, "the window is empty")?;
    ensure(
        is_windowed(kind) && kind.result(input.dtype) == Some(node.dtype),
        "the window does not give this type",
    )
}

/// Sorted lines, or their first cells.
fn sort(node: &Node, axis: usize, what: SortWhat, limit: Option<u64>, input: &Node) -> Check {
    let len = input.shape[axis];
    ensure(
        node.shape[axis] == limit.unwrap_or(len).min(len),
        "the sorted axis has another length",
    )?;
    let positions = what == SortWhat::Positions;
    ensure(
        node.dtype == if positions { DType::Int64 } else { input.dtype },
        "a sort changes the type",
    )
}

fn quantile(node: &Node, axis: usize, quantiles: &Quantiles, input: &Node) -> Check {
    ensure(node.shape[axis] == quantiles.bits.len() as u64, "one position for each probability")?;
    ensure(quantiles.result(input.dtype) == Some(node.dtype), "the method does not give this type")
}

/// Positions of cells in tables.
fn lookup(node: &Node, kind: LookupKind, inputs: &[&Node]) -> Check {
    ensure(inputs[0].shape == node.shape, "a lookup keeps its shape")?;
    let table = |t: &Node| t.shape.len() == 1 && t.grid.count() == 1;
    ensure(inputs[1..].iter().all(|t| table(t)), "a table is not in one chunk")?;
    ensure(kind.result(inputs[0].dtype) == Some(node.dtype), "the lookup does not give this type")
}

/// Counts of cells by code.
fn bin(node: &Node, count: u64, inputs: &[&Node]) -> Check {
    ensure((1..=2).contains(&inputs.len()), "wrong number of inputs")?;
    ensure(
        node.shape.last() == Some(&count) && node.shape.len() == inputs[0].shape.len(),
        "codes have another number of places",
    )?;
    ensure(inputs.iter().all(|i| i.shape == inputs[0].shape), "each cell has one weight")
}

/// A product with matching axes.
fn contract(node: &Node, axes: Contraction, left: &Node, right: &Node) -> Check {
    let Contraction { rows, columns, summed } = axes;
    let (left, right) = (&left.shape, &right.shape);
    let stack = node.shape.len().checked_sub(rows + columns);
    ensure(
        stack.is_some_and(|stack| {
            left.len() == stack + rows + summed
                && right.len() == stack + summed + columns
                && left[stack + rows..] == right[stack..stack + summed]
                && left[..stack + rows] == node.shape[..stack + rows]
                && right[..stack] == node.shape[..stack]
                && rows.min(columns) > 0
                && right[stack + summed..] == node.shape[stack + rows..]
        }),
        "the lengths of a product do not fit",
    )
}

fn factor(node: &Node, kind: Factor, part: usize, inputs: &[&Node]) -> Check {
    let shapes: Vec<&[u64]> = inputs.iter().map(|i| &i.shape[..]).collect();
    ensure(
        kind.shape(part, &shapes).is_some_and(|s| s == node.shape),
        "the factor has another shape",
    )?;
    ensure(
        inputs.iter().all(|i| i.dtype == node.dtype && !i.nullable) && !node.nullable,
        "a factor keeps its type and has no masks",
    )
}
