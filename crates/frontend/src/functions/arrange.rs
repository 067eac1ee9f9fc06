//! Functions that move cells: padding, repeating, flipping, stacking, diagonals.

use std::sync::Arc;

use sqlparser::tokenizer::Span;
use tessera_planner::error::Error as PlanError;
use tessera_planner::program::ScalarOp;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;

use super::layout::{joined, list};
use super::{Bound, Open, Row, row};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, Pick, fail, misshapen, span_of};

/// Maximum positions of a list in a plan.
const POSITIONS_MAX: u64 = 1 << 24;

const MOVE: &str = "masks move with their cells";

pub(super) const ROWS: &[Row] = &[
    row(
        "pad(x, width, mode => 'constant', value => 0) | pad(x, dim => [before, after], …)",
        pad,
        "More cells at both ends: `width` is a number, [before, after], or one pair for each \
         dimension. Modes 'constant', 'edge', 'reflect', 'symmetric', 'wrap'. Padded \
         dimensions lose their labels.",
    )
    .takes(&["x", "width", "mode", "value"], 1, Open::Dims)
    .missing("masks move with their cells; `value => NULL` pads with masked cells")
    .example("SELECT pad(x, 1, mode => 'edge') FROM x"),
    row(
        "tile(x, reps)",
        tile,
        "The tensor again and again: `reps` is a number for the last dimension, or one for \
         each; more make new dimensions.",
    )
    .missing(MOVE)
    .example("SELECT tile(x, [2, 3]) FROM x"),
    row(
        "repeat(x, n, axis => NULL)",
        repeat,
        "Each cell n times along a dimension, or as often as a list has it for each; of all cells in \
         row-major order without `axis`.",
    )
    .missing(MOVE)
    .example("SELECT repeat(x, 3, axis => 0) FROM x"),
    row(
        "rot90(x, k => 1, axes => [0, 1])",
        rot90,
        "Turned k times by 90 degrees, from the first toward the second of two dimensions.",
    )
    .missing(MOVE),
    row("fliplr(x)", mirrored, "Backwards along the second dimension.").missing(MOVE),
    row("flipud(x)", mirrored, "Backwards along the first dimension.").missing(MOVE),
    row("hstack([x, y, …])", stacked, "Side by side: along the second dimension, or the only one.")
        .dtypes("NumPy's promotion")
        .missing(MOVE)
        .example("SELECT hstack([a, b]) FROM a, b"),
    row(
        "vstack([x, y, …])",
        stacked,
        "One below the other: along the first dimension; 1-d tensors are rows.",
    )
    .dtypes("NumPy's promotion")
    .missing(MOVE)
    .example("SELECT vstack([a, b]) FROM a, b"),
    row("dstack([x, y, …])", stacked, "One behind the other: along the third dimension.")
        .dtypes("NumPy's promotion")
        .missing(MOVE)
        .example("SELECT dstack([a, b]) FROM a, b"),
    row(
        "diag(x, k => 0)",
        diag,
        "A matrix with the cells of a 1-d tensor on its k-th diagonal and zeros elsewhere; or \
         the k-th diagonal of a matrix.",
    )
    .dtypes("numeric and bool")
    .missing(MOVE)
    .example("SELECT diag(v) FROM v"),
];

/// Pad widths at both ends of each axis.
fn widths(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor) -> Result<Vec<(u64, u64)>, Error> {
    let rank = t.dims.len();
    let mut out = vec![(0, 0); rank];
    let pair = |a: &Bound<'_>, value: &Value, place: Span| -> Result<(u64, u64), Error> {
        let one = |v: &Value| match v {
            Value::Int(n) => u64::try_from(*n).ok().filter(|n| *n <= 1 << 40),
            _ => None,
        };
        let found = match value {
            Value::List(items) => match &items[..] {
                [n] => one(n).map(|n| (n, n)),
                [p, q] => one(p).zip(one(q)),
                _ => None,
            },
            n => one(n).map(|n| (n, n)),
        };
        match found {
            Some(pair) => Ok(pair),
            None => fail(a.invalid("a width", "must be 0 or more, or a pair of such"), place),
        }
    };
    match a.value(l, "width")? {
        Value::Null if a.dims.is_empty() => {
            return fail(a.invalid("`width`", "must be given"), a.span);
        }
        Value::Null => {}
        Value::List(items) if items.iter().any(|i| matches!(i, Value::List(_))) => {
            if items.len() != rank {
                let reason = format!("has {} pairs; the tensor has {rank} dimensions", items.len());
                return a.refuse("width", reason);
            }
            for (axis, item) in items.iter().enumerate() {
                out[axis] = pair(a, item, a.place("width"))?;
            }
        }
        value => out.fill(pair(a, &value, a.place("width"))?),
    }
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(t, name)?;
        let value = l.expr(expr)?;
        out[axis] = pair(a, &value, span_of(expr))?;
    }
    Ok(out)
}

fn pad(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let widths = widths(l, a, &t)?;
    let mode = a.text(l, "mode")?.unwrap_or_else(|| "constant".into());
    let dtype = l.b.dtype(t.node);
    let fill = match (mode.as_str(), a.expr("value")) {
        ("constant", None) => Some(l.b.constant(Scalar::zero(dtype)).at(a.span)?),
        ("constant", Some(_)) => {
            let value = a.value(l, "value")?;
            Some(l.typed(value, dtype, "pad", a.place("value"))?.node)
        }
        ("edge" | "reflect" | "symmetric" | "wrap", _) => None,
        (other, _) => {
            let reason = format!(
                "is '{other}'; it must be 'constant', 'edge', 'reflect', 'symmetric' or 'wrap'"
            );
            return a.refuse("mode", reason);
        }
    };
    for (axis, &(before, after)) in widths.iter().enumerate() {
        if before == 0 && after == 0 {
            continue;
        }
        let shape = l.b.shape(t.node);
        let n = shape[axis];
        t.node = match fill {
            Some(value) => {
                let mut parts = Vec::with_capacity(3);
                for (width, part) in [(before, None), (n, Some(t.node)), (after, None)] {
                    let mut gap = shape.clone();
                    gap[axis] = width;
                    match part {
                        Some(node) => parts.push(node),
                        None if width > 0 => {
                            parts.push(l.b.broadcast_to(value, &gap).at(a.span)?);
                        }
                        None => {}
                    }
                }
                l.b.concat(&parts, axis).at(a.span)?
            }
            None => {
                if n == 0 {
                    return Err(PlanError::Empty { operation: "pad".into(), axis }).at(a.span);
                }
                let total = n.saturating_add(before).saturating_add(after);
                check_positions(l, a, total)?;
                let mirrored = |i| mirror(&mode, i as i64 - before as i64, n as i64);
                l.b.take(t.node, axis, (0..total).map(mirrored).collect()).at(a.span)?
            }
        };
        t.dims[axis] = t.dims[axis].bare();
    }
    Ok(Value::Tensor(Tensor::new(t.node, t.dims)))
}

/// The source position for position `i` of an axis of length `n`; `i` may lie beyond either end.
fn mirror(mode: &str, i: i64, n: i64) -> u64 {
    let at = match mode {
        "edge" => i.clamp(0, n - 1),
        "wrap" => i.rem_euclid(n),
        "symmetric" => {
            let p = i.rem_euclid(2 * n);
            if p < n { p } else { 2 * n - 1 - p }
        }
        _ if n == 1 => 0,
        _ => {
            let p = i.rem_euclid(2 * n - 2);
            if p < n { p } else { 2 * n - 2 - p }
        }
    };
    at as u64
}

fn check_positions(l: &Lowerer<'_, '_>, a: &Bound<'_>, n: u64) -> Result<(), Error> {
    if n <= POSITIONS_MAX {
        return l.b.list_bytes(n).map(|_| ()).at(a.span);
    }
    let reason = format!("makes a dimension of {n} cells; it may have {POSITIONS_MAX}");
    fail(a.invalid("a length", reason), a.span)
}

fn tile(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let Some(mut reps) = a.lengths(l, "reps")? else {
        return fail(a.invalid("`reps`", "must be given"), a.span);
    };
    let (mut node, mut dims) = (t.node, t.dims);
    while dims.len() < reps.len() {
        node = l.b.expand_dims(node, 0).at(a.span)?;
        dims.insert(0, Dim::default());
    }
    while reps.len() < dims.len() {
        reps.insert(0, 1);
    }
    for (axis, &times) in reps.iter().enumerate() {
        if times == 1 {
            continue;
        }
        let n = l.b.shape(node)[axis];
        let total = n.saturating_mul(times);
        check_positions(l, a, total)?;
        node = l.b.take(node, axis, (0..total).map(|i| i % n).collect()).at(a.span)?;
        dims[axis] = dims[axis].bare();
    }
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

fn repeat(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let times: Option<Vec<u64>> = match a.ints(l, "n")? {
        Some(times) => times.into_iter().map(|n| u64::try_from(n).ok()).collect(),
        None => None,
    };
    let Some(times) = times else {
        return a.refuse("n", "must be 0 or more");
    };
    let (mut t, axis) = match a.axis(l, &t, "axis")? {
        Some(axis) => (t, axis),
        None => (super::scan::flat(l, t, a.span)?, 0),
    };
    let n = l.b.shape(t.node)[axis];
    if times.len() != 1 && times.len() as u64 != n {
        let reason = format!("has {} numbers for {n} cells of `{}`", times.len(), t.dim_name(axis));
        return a.refuse("n", reason);
    }
    let total = match times[..] {
        [every] => n.saturating_mul(every),
        _ => times.iter().fold(0u64, |total, &n| total.saturating_add(n)),
    };
    check_positions(l, a, total)?;
    let positions: Arc<[u64]> = match times[..] {
        [every] => (0..total).map(|i| i / every).collect(),
        _ => (0..n).zip(&times).flat_map(|(i, &n)| (0..n).map(move |_| i)).collect(),
    };
    t.dims[axis] = t.dims[axis].take(&positions);
    let node = l.b.take(t.node, axis, positions).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}

/// Reverses the tensor along some dimensions.
fn flip(l: &mut Lowerer<'_, '_>, t: Tensor, axes: &[usize], span: Span) -> Result<Tensor, Error> {
    let shape = l.b.shape(t.node);
    let picks: Vec<Pick> = (0..shape.len())
        .map(|axis| match axes.contains(&axis) && shape[axis] > 0 {
            true => Pick::Range { start: shape[axis] as i64 - 1, step: -1, len: shape[axis] },
            false => Pick::All,
        })
        .collect();
    l.pick(t, &picks, span)
}

fn rank_at_least(l: &Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor, n: usize) -> Result<(), Error> {
    if t.dims.len() >= n {
        return Ok(());
    }
    misshapen(a.name, &[l.b.shape(t.node)], format!("it takes at least {n} dimensions"), a.span)
}

fn mirrored(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let axis = usize::from(a.name == "fliplr");
    rank_at_least(l, a, &t, axis + 1)?;
    flip(l, t, &[axis], a.span).map(Value::Tensor)
}

fn rot90(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    rank_at_least(l, a, &t, 2)?;
    let turns = a.int(l, "k")?.unwrap_or(1).rem_euclid(4);
    let axes = a.axes(l, &t, "axes")?.unwrap_or_else(|| vec![0, 1]);
    let [from, to] = axes[..] else {
        return a.refuse("axes", "must be two dimensions");
    };
    let mut order: Vec<usize> = (0..t.dims.len()).collect();
    order.swap(from, to);
    let turned = match turns {
        0 => t,
        2 => flip(l, t, &[from, to], a.span)?,
        1 => {
            let back = flip(l, t, &[to], a.span)?;
            l.transposed(back, &order, a.span)?
        }
        _ => {
            let turned = l.transposed(t, &order, a.span)?;
            flip(l, turned, &[to], a.span)?
        }
    };
    Ok(Value::Tensor(Tensor { name: None, ..turned }))
}

fn stacked(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut parts = list(l, a)?;
    // NumPy's atleast_1d, atleast_2d and atleast_3d.
    let least = match a.name {
        "hstack" => 1,
        "vstack" => 2,
        _ => 3,
    };
    for t in &mut parts {
        while t.dims.len() < least {
            // A row gets its first dimension in front, a matrix its third behind.
            let axis = if t.dims.len() == 2 || least == 1 { t.dims.len() } else { 0 };
            t.node = l.b.expand_dims(t.node, axis).at(a.span)?;
            t.dims.insert(axis, Dim::default());
        }
    }
    let axis = match a.name {
        "hstack" => usize::from(parts[0].dims.len() > 1),
        "vstack" => 0,
        _ => 2,
    };
    joined(l, a, parts, axis).map(Value::Tensor)
}

fn diag(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let shape = l.b.shape(t.node);
    let k = a.int(l, "k")?.unwrap_or(0).clamp(-(1 << 31), 1 << 31) as i64;
    match shape[..] {
        [n] => {
            let size = n + k.unsigned_abs();
            // Row i has its cell at column i + k; a column without a cell is zero.
            let zero = l.b.constant(Scalar::zero(l.b.dtype(t.node))).at(a.span)?;
            let gap = l.b.broadcast_to(zero, &[k.unsigned_abs()]).at(a.span)?;
            let rows = match k {
                0 => t.node,
                1.. => l.b.concat(&[t.node, gap], 0).at(a.span)?,
                _ => l.b.concat(&[gap, t.node], 0).at(a.span)?,
            };
            let rows = l.b.expand_dims(rows, 1).at(a.span)?;
            let row = l.b.iota(&[size], None).at(a.span)?;
            let column = l.b.iota(&[size], None).at(a.span)?;
            let row = l.b.expand_dims(row, 1).at(a.span)?;
            let shift = l.b.constant(Scalar::i64(k)).at(a.span)?;
            let row = l.b.map(ScalarOp::Add, &[row, shift]).at(a.span)?;
            let on = l.b.map(ScalarOp::Eq, &[column, row]).at(a.span)?;
            let node = l.b.map(ScalarOp::Where, &[on, rows, zero]).at(a.span)?;
            Ok(Value::Tensor(Tensor::unnamed(node, 2)))
        }
        [rows, columns] => {
            let (row, column) = if k < 0 { (k.unsigned_abs(), 0) } else { (0, k as u64) };
            let len = rows.saturating_sub(row).min(columns.saturating_sub(column));
            let n = cells(&shape).unwrap_or(0);
            let flat = l.b.reshape(t.node, &[n]).at(a.span)?;
            let start = row * columns + column;
            let node = l.b.slice(flat, 0, start as i64, columns as i64 + 1, len).at(a.span)?;
            Ok(Value::Tensor(Tensor::unnamed(node, 1)))
        }
        _ => misshapen("diag", &[&shape], "it takes one or two dimensions", a.span),
    }
}
