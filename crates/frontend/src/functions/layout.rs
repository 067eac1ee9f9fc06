//! Functions that rearrange tensors without changing cells.

mod join;

use std::sync::Arc;
use tessera_planner::catalog::Coord;
use tessera_planner::program::ScalarOp;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;

use super::{Bound, Open, Row, row, scan};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, span_of};
use join::{concat, stack};
pub(super) use join::{joined, list};

const MOVE: &str = "masks move with their cells";

pub(super) const ROWS: &[Row] = &[
    row(
        "transpose(x, axes => reversed)",
        transpose,
        "Dimensions in another order, by position or name; also `x.T`.",
    )
    .missing(MOVE)
    .example("SELECT transpose(x, [2, 0, 1]) FROM x"),
    row("swapaxes(x, axis1, axis2)", swapaxes, "Two dimensions exchanged.")
        .missing(MOVE)
        .example("SELECT swapaxes(x, 0, 1) FROM x"),
    row(
        "moveaxis(x, source, destination)",
        moveaxis,
        "A dimension, or each of a list, at another place; the others in their order.",
    )
    .missing(MOVE)
    .example("SELECT moveaxis(x, 0, -1) FROM x"),
    row(
        "reshape(x, shape, dims => NULL)",
        reshape,
        "The cells in row-major order under another shape; one length may be -1.",
    )
    .missing(MOVE)
    .example("SELECT reshape(x, [-1, 7]) FROM x"),
    row("ravel(x)", ravel, "The cells in row-major order along one dimension.").missing(MOVE),
    row("flatten(x)", ravel, "As ravel.").missing(MOVE).numpy("numpy.ndarray.flatten"),
    row(
        "expand_dims(x, axis => 0, dim => NULL)",
        expand_dims,
        "A new dimension of length 1, with a name if `dim` gives one.",
    )
    .missing(MOVE)
    .example("SELECT expand_dims(x, 0) FROM x"),
    row(
        "squeeze(x, axis => NULL)",
        squeeze,
        "Without the dimensions of length 1, or those that are named.",
    )
    .missing(MOVE),
    row(
        "broadcast_to(x, shape)",
        broadcast_to,
        "The cells repeated to a shape, by trailing position.",
    )
    .missing(MOVE)
    .example("SELECT broadcast_to(v, [3, 7]) FROM v"),
    row(
        "flip(x, axis => NULL)",
        flip,
        "Backwards along the dimensions, all of them if none is named.",
    )
    .missing(MOVE)
    .example("SELECT flip(x, axis => 0) FROM x"),
    row(
        "concat([x, y, …], axis => 0)",
        concat,
        "One after the other along a dimension; its labels too, if all have them in one type.",
    )
    .dtypes("NumPy's promotion")
    .missing(MOVE)
    .example("SELECT concat([a, b], axis => 'time') FROM a, b")
    .numpy("numpy.concatenate, xarray.concat"),
    row("concatenate([x, y, …], axis => 0)", concat, "As concat.")
        .dtypes("NumPy's promotion")
        .missing(MOVE)
        .example("SELECT concatenate([a, b]) FROM a, b"),
    row("stack([x, y, …], axis => 0, dim => NULL)", stack, "Side by side along a new dimension.")
        .dtypes("NumPy's promotion")
        .missing(MOVE)
        .example("SELECT stack([a, b], dim => 'member') FROM a, b"),
    row(
        "rechunk(x, dim => n, … | chunks => [n, …])",
        rechunk,
        "The same cells in chunks of other lengths; dimensions without one keep theirs.",
    )
    .takes(&["x", "chunks"], 1, Open::Dims)
    .missing(MOVE)
    .example("SELECT rechunk(t2m, time => 365) FROM era5")
    .numpy("dask.array.rechunk"),
    row(
        "rename(x, old => 'new', …)",
        rename,
        "Dimensions (and their coordinates) under other names.",
    )
    .missing(MOVE)
    .example("SELECT rename(x, lat => 'y') FROM x")
    .numpy("xarray.DataArray.rename"),
    row("tril(x, k => 0)", triangle, "Zero above the k-th diagonal of the last two dimensions.")
        .dtypes("numeric and bool")
        .missing(MOVE),
    row("triu(x, k => 0)", triangle, "Zero below the k-th diagonal of the last two dimensions.")
        .dtypes("numeric and bool")
        .missing(MOVE),
];

fn transpose(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let order = match a.axes(l, &t, "axes")? {
        Some(order) => order,
        None => (0..t.dims.len()).rev().collect(),
    };
    l.transposed(t, &order, a.span).map(Value::Tensor)
}

fn swapaxes(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let mut order: Vec<usize> = (0..t.dims.len()).collect();
    if let (Some(i), Some(j)) = (a.axis(l, &t, "axis1")?, a.axis(l, &t, "axis2")?) {
        order.swap(i, j);
    }
    l.transposed(t, &order, a.span).map(Value::Tensor)
}

fn moveaxis(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let from = a.axes(l, &t, "source")?.unwrap_or_default();
    let to = a.axes(l, &t, "destination")?.unwrap_or_default();
    if from.len() != to.len() {
        let reason = format!("has {} axes, and `source` has {}", to.len(), from.len());
        return a.refuse("destination", reason);
    }
    let mut order: Vec<usize> = (0..t.dims.len()).filter(|axis| !from.contains(axis)).collect();
    let mut moves: Vec<(usize, usize)> = to.into_iter().zip(from).collect();
    moves.sort_unstable();
    for (to, from) in moves {
        order.insert(to, from);
    }
    l.transposed(t, &order, a.span).map(Value::Tensor)
}

fn reshape(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let from = l.b.shape(t.node);
    let Some(asked) = a.ints(l, "shape")? else {
        return a.refuse("shape", "must be a list of lengths");
    };
    if asked.iter().filter(|&&n| n == -1).count() > 1 || asked.iter().any(|&n| n < -1) {
        return a.refuse("shape", "may have one -1, all other lengths must be 0 or more");
    }
    let known = asked.iter().filter(|&&n| n >= 0).try_fold(1i128, |n, &m| n.checked_mul(m));
    let total = i128::from(cells(&from).unwrap_or(u64::MAX));
    let missing = match known {
        Some(known) if known > 0 && total % known == 0 => total / known,
        // The node's constructor reports the error.
        _ => 0,
    };
    let shape: Vec<u64> = asked
        .iter()
        .map(|&n| u64::try_from(if n == -1 { missing } else { n }).unwrap_or(u64::MAX))
        .collect();
    let node = l.b.reshape(t.node, &shape).at(a.span)?;
    let same = from[..] == *shape;
    let dims = match a.names(l, "dims", shape.len())? {
        Some(dims) => dims,
        None if same => t.dims,
        None => vec![Dim::default(); shape.len()],
    };
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

fn ravel(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let flat = scan::flat(l, t, a.span)?;
    Ok(Value::Tensor(Tensor { name: None, ..flat }))
}

fn expand_dims(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let rank = t.dims.len() + 1;
    let mut name = a.text(l, "dim")?;
    let axis = match a.value(l, "axis")? {
        Value::Null => 0,
        // xarray's form: the name of the new dimension.
        Value::Str(text) if name.is_none() => {
            name = Some(text);
            0
        }
        value => a.one_axis(l, &t, "axis", value, rank)?,
    };
    let dim = match name {
        Some(name) => {
            if t.axis(&name).is_some_and(|axis| t.dims[axis].name.is_some()) {
                let reason = format!("is `{name}`, which the tensor has already");
                return fail(a.invalid("`dim`", reason), a.span);
            }
            Dim::named(name)
        }
        None => Dim::default(),
    };
    t.node = l.b.expand_dims(t.node, axis).at(a.span)?;
    t.dims.insert(axis, dim);
    Ok(Value::Tensor(Tensor { name: None, ..t }))
}

fn squeeze(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let shape = l.b.shape(t.node);
    let axes = match a.axes(l, &t, "axis")? {
        Some(axes) => axes,
        None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
    };
    t.node = l.b.squeeze(t.node, &axes).at(a.span)?;
    let dims = t.dims.iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
    t.dims = dims.map(|(_, dim)| dim.clone()).collect();
    Ok(Value::Tensor(Tensor { name: None, ..t }))
}

fn broadcast_to(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let Some(shape) = a.lengths(l, "shape")? else {
        return a.refuse("shape", "must be a list of lengths");
    };
    let from = l.b.shape(t.node);
    let node = l.b.broadcast_to(t.node, &shape).at(a.span)?;
    let mut dims = vec![Dim::default(); shape.len() - from.len()];
    for (axis, dim) in t.dims.iter().enumerate() {
        let same = from[axis] == shape[dims.len()];
        dims.push(if same { dim.clone() } else { dim.bare() });
    }
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

fn flip(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let axes = a.axes(l, &t, "axis")?.unwrap_or_else(|| (0..t.dims.len()).collect());
    let shape = l.b.shape(t.node);
    let picks: Vec<crate::lower::Pick> = (0..shape.len())
        .map(|axis| match axes.contains(&axis) && shape[axis] > 0 {
            true => crate::lower::Pick::Range {
                start: shape[axis] as i64 - 1,
                step: -1,
                len: shape[axis],
            },
            false => crate::lower::Pick::All,
        })
        .collect();
    l.pick(t, &picks, a.span).map(Value::Tensor)
}

fn rechunk(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let shape = l.b.shape(t.node);
    let mut chunks: Vec<u64> =
        l.b.node(t.node).grid.axes.iter().map(|axis| axis.chunk.max(1)).collect();
    if let Some(given) = a.lengths(l, "chunks")? {
        if given.len() != shape.len() || given.contains(&0) {
            return a.refuse("chunks", format!("must be {} lengths of at least 1", shape.len()));
        }
        chunks = given;
    }
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(&t, name)?;
        let length = scan::known_int(l, a, &name.value, expr)?;
        match u64::try_from(length) {
            Ok(length) if length > 0 => chunks[axis] = length,
            _ => {
                let reason = format!("is {length}; it must be at least 1");
                return fail(a.invalid(&format!("`{}`", name.value), reason), span_of(expr));
            }
        }
    }
    // A chunk longer than the dimension covers all of it.
    let chunks: Vec<u64> = chunks.iter().zip(&shape).map(|(&c, &n)| c.min(n.max(1))).collect();
    let node = l.b.rechunk(t.node, &chunks).at(a.span)?;
    Ok(Value::Tensor(Tensor { node, ..t }))
}

fn rename(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let mut dims = t.dims.clone();
    for &(old, expr) in &a.dims {
        let axis = l.named_axis(&t, old)?;
        let new: Arc<str> = match l.expr(expr)? {
            Value::Str(name) => name.into(),
            other => {
                let reason = format!("must be a text, not {}", other.kind());
                return fail(a.invalid(&format!("`{}`", old.value), reason), span_of(expr));
            }
        };
        let coord = dims[axis].coord.as_ref().map(|coord| {
            Arc::new(Coord { name: new.clone(), dim: new.clone(), ..(**coord).clone() })
        });
        dims[axis] = Dim { name: Some(new), coord, group: None };
    }
    for (at, dim) in dims.iter().enumerate() {
        if dim.name.is_some() && dims[..at].iter().any(|d| d.name == dim.name) {
            let name = dim.name.as_deref().unwrap_or_default();
            let reason = format!("makes two dimensions `{name}`");
            return fail(a.invalid("a new name", reason), a.span);
        }
    }
    Ok(Value::Tensor(Tensor { dims, ..t }))
}

fn triangle(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let shape = l.b.shape(t.node);
    let k = a.int(l, "k")?.unwrap_or(0).clamp(-(1 << 62), 1 << 62) as i64;
    let rank = shape.len();
    if rank < 2 {
        return misshapen(a.name, &[shape], "it takes at least 2 dimensions", a.span);
    }
    let rows = l.b.iota(&[shape[rank - 2]], None).at(a.span)?;
    let rows = l.b.expand_dims(rows, 1).at(a.span)?;
    let shift = l.b.constant(Scalar::i64(k)).at(a.span)?;
    let rows = l.b.map(ScalarOp::Add, &[rows, shift]).at(a.span)?;
    let columns = l.b.iota(&[shape[rank - 1]], None).at(a.span)?;
    let op = if a.name == "tril" { ScalarOp::Le } else { ScalarOp::Ge };
    let keep = l.b.map(op, &[columns, rows]).at(a.span)?;
    let zero = l.b.constant(Scalar::zero(l.b.dtype(t.node))).at(a.span)?;
    let node = l.b.map(ScalarOp::Where, &[keep, t.node, zero]).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}
