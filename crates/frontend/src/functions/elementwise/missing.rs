//! Functions that test, replace or choose masked cells, NaN and out-of-bounds values.

use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{MEET, tensor};
use crate::error::Error;
use crate::functions::{Bound, Row, row};
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Binary, Lowerer, fail, types};

pub(in crate::functions) const ROWS: &[Row] = &[
    row("isnull(x)", masked, "Is the cell masked?")
        .dtypes("any gives bool")
        .missing("never masked")
        .numpy("numpy.ma.getmaskarray"),
    row("notnull(x)", masked, "Is the cell not masked?")
        .dtypes("any gives bool")
        .missing("never masked")
        .numpy("~numpy.ma.getmaskarray(x)"),
    row(
        "nan_to_num(x, nan => 0, posinf => NULL, neginf => NULL)",
        nan_to_num,
        "NaN and infinities as numbers; infinities as the type's largest without an argument.",
    )
    .dtypes("type stays")
    .missing("masked cells stay masked"),
    row(
        "clip(x, lo, hi => NULL)",
        clip,
        "Cells below lo as lo, above hi as hi; NULL means no bound, and so does an integer \
         literal that no cell of the type can pass.",
    )
    .dtypes(MEET)
    .example("SELECT clip(x, -1, 1) FROM x"),
    row("coalesce(x, y, …)", coalesce, "The first argument that is not masked.")
        .dtypes(MEET)
        .missing("masked where all are")
        .example("SELECT coalesce(x, 0) FROM x")
        .numpy("numpy.ma.filled"),
    row("ifnull(x, y)", coalesce, "x where it is not masked, else y.")
        .dtypes(MEET)
        .missing("masked where both are")
        .example("SELECT ifnull(x, 0) FROM x")
        .numpy("numpy.ma.filled"),
    row("nullif(x, y)", nullif, "x, masked where it equals y.")
        .dtypes("type of x")
        .missing("masked where x is, and where it equals y")
        .example("SELECT nullif(x, -999) FROM x")
        .numpy("numpy.ma.masked_equal"),
    row(
        "greatest(x, y, …)",
        extreme,
        "The greatest of the arguments as SQL orders them: NaN is above every number. \
         `maximum` is NumPy's.",
    )
    .dtypes(MEET)
    .missing("masked arguments are skipped; masked where all are")
    .example("SELECT greatest(x, 0) FROM x")
    .numpy("numpy.ma: maximum of what is not masked"),
    row(
        "least(x, y, …)",
        extreme,
        "The least of the arguments as SQL orders them: NaN is above every number. `minimum` \
         is NumPy's.",
    )
    .dtypes(MEET)
    .missing("masked arguments are skipped; masked where all are")
    .example("SELECT least(x, 0) FROM x")
    .numpy("numpy.fmin, skipping masked cells"),
];

fn masked(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let mut node = l.b.map_op(MapOp::IsValid, &[t.node]).at(a.span)?;
    if a.name == "isnull" {
        node = l.b.map(ScalarOp::Not, &[node]).at(a.span)?;
    }
    Ok(tensor(l, node, t))
}

fn nan_to_num(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let dtype = l.b.dtype(t.node);
    if !dtype.is_float() {
        let node = t.node;
        return match dtype.is_datetime() {
            true => fail(types(a.name, vec![dtype.name()]), a.span),
            false => Ok(tensor(l, node, t)),
        };
    }
    let largest = if dtype == DType::Float32 { f64::from(f32::MAX) } else { f64::MAX };
    let replace = [
        (f64::NAN, a.float(l, "nan")?.unwrap_or(0.0)),
        (f64::INFINITY, a.float(l, "posinf")?.unwrap_or(largest)),
        (f64::NEG_INFINITY, a.float(l, "neginf")?.unwrap_or(-largest)),
    ];
    let mut node = t.node;
    for (odd, value) in replace {
        let is = if odd.is_nan() {
            l.b.map(ScalarOp::IsNan, &[t.node]).at(a.span)?
        } else {
            let odd = l.b.constant(Scalar::from_f64(dtype, odd)).at(a.span)?;
            l.b.map(ScalarOp::Eq, &[t.node, odd]).at(a.span)?
        };
        let value = l.b.constant(Scalar::from_f64(dtype, value)).at(a.span)?;
        node = l.b.map(ScalarOp::Where, &[is, value, node]).at(a.span)?;
    }
    Ok(tensor(l, node, t))
}

fn clip(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut result = a.value(l, "x")?;
    for (param, op) in [("lo", ScalarOp::Maximum), ("hi", ScalarOp::Minimum)] {
        let bound = a.value(l, param)?;
        if !matches!(bound, Value::Null) && !is_beyond(l, &result, param, &bound) {
            let pair = vec![result, bound];
            result = Value::Tensor(l.map_values(op, a.name, pair, |d| d, a.span)?);
        }
    }
    // Without a bound the result is the argument, but without its name.
    let t = l.tensor(result, a.span)?;
    Ok(Value::Tensor(Tensor { name: None, is_coordinate: false, ..t }))
}

/// True of an integer literal that lies outside the type of integer cells where it bounds none of them, as in NumPy.
fn is_beyond(l: &Lowerer<'_, '_>, cells: &Value, param: &str, bound: &Value) -> bool {
    let (Value::Tensor(t), Value::Int(v)) = (cells, bound) else { return false };
    let dtype = l.b.dtype(t.node);
    let is_outward = if param == "lo" { *v < 0 } else { *v > 0 };
    dtype.is_integer() && is_outward && Scalar::from_i128(dtype, *v).is_none()
}

/// The arguments in one type.
fn several(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Vec<Tensor>, Error> {
    let mut values = vec![a.value(l, "x")?];
    if a.expr("y").is_some() {
        values.push(a.value(l, "y")?);
    }
    for expr in &a.rest {
        values.push(l.expr(expr)?);
    }
    let values = l.settle(values, a.span)?;
    let dtype = l.meet(a.name, &values, a.span)?;
    values.into_iter().map(|value| l.typed(value, dtype, a.name, a.span)).collect()
}

fn coalesce(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    folded(several(l, a)?, |x, y| l.map(MapOp::Coalesce, a.name, vec![x, y], a.span))
}

/// `greatest` and `least`, in SQL's order.
fn extreme(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    folded(several(l, a)?, |x, y| {
        let is_float = l.b.dtype(x.node).is_float();
        let op = match (a.name, is_float) {
            ("greatest", _) => ScalarOp::Maximum,
            (_, true) => ScalarOp::Fmin,
            (_, false) => ScalarOp::Minimum,
        };
        let (nodes, dims) = l.align(a.name, vec![x, y], a.span)?;
        let mut node = l.b.map(op, &nodes).at(a.span)?;
        if l.b.node(node).nullable {
            // Where one of them is masked, take the other.
            let other = l.b.map_op(MapOp::Coalesce, &nodes).at(a.span)?;
            node = l.b.map_op(MapOp::Coalesce, &[node, other]).at(a.span)?;
        }
        Ok(Tensor::new(node, dims))
    })
}

/// Folds the tensors from the left.
fn folded(
    tensors: Vec<Tensor>,
    mut join: impl FnMut(Tensor, Tensor) -> Result<Tensor, Error>,
) -> Result<Value, Error> {
    let mut result: Option<Tensor> = None;
    for next in tensors {
        result = Some(match result {
            None => next,
            Some(first) => join(first, next)?,
        });
    }
    Ok(result.map_or(Value::Null, Value::Tensor))
}

fn nullif(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.tensor(l, "x")?;
    let y = a.value(l, "y")?;
    let differs = l.binary(Binary::Compare(ScalarOp::Ne), Value::Tensor(x.clone()), y, a.span)?;
    let differs = l.boolean(differs, a.name, a.span)?;
    // Nothing equals a masked y.
    let node = match l.b.node(differs.node).nullable {
        true => {
            let yes = l.b.constant(Scalar::bool(true)).at(a.span)?;
            l.b.map_op(MapOp::Coalesce, &[differs.node, yes]).at(a.span)?
        }
        false => differs.node,
    };
    let keep = Tensor::new(node, differs.dims);
    l.map(MapOp::Mask, a.name, vec![x, keep], a.span).map(Value::Tensor)
}
