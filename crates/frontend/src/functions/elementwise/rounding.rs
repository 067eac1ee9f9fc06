//! Rounding functions.

use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::floats::float1;
use super::{FLOAT, NUMERIC, op_of, tensor};
use crate::error::Error;
use crate::functions::{Bound, Row, row};
use crate::lower::value::Value;
use crate::lower::{At, Lowerer, fail, types};

pub(in crate::functions) const ROWS: &[Row] = &[
    row("rint(x)", float1, "Nearest whole number, halves to even.").dtypes(FLOAT),
    row("floor(x)", whole, "Largest whole number not above x.").dtypes(NUMERIC),
    row("ceil(x)", whole, "Smallest whole number not below x.").dtypes(NUMERIC),
    row("trunc(x)", whole, "Whole part, toward zero.").dtypes(NUMERIC),
    row("round(x, decimals => 0)", round, "Rounded to decimals, halves to even.")
        .dtypes(NUMERIC)
        .example("SELECT round(x, 2) FROM x"),
];

/// `floor` and similar functions; integers and bools are returned unchanged.
fn whole(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let dtype = l.b.dtype(t.node);
    if dtype.is_integer() || dtype == DType::Bool {
        let node = t.node;
        return Ok(tensor(l, node, t));
    }
    let node = l.b.map(op_of(a)?, &[t.node]).at(a.span)?;
    Ok(tensor(l, node, t))
}

fn round(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let decimals = a.int(l, "decimals")?.unwrap_or(0);
    let from = l.b.dtype(t.node);
    if !(-308..=308).contains(&decimals) {
        return a.refuse("decimals", "must be -308 to 308");
    }
    if !from.is_numeric() && from != DType::Bool {
        return fail(types(a.name, vec![from.name()]), a.span);
    }
    if !from.is_float() && decimals >= 0 {
        let node = t.node;
        return Ok(tensor(l, node, t));
    }
    let work = if from.is_float() { from } else { DType::Float64 };
    let mut node = l.b.cast(t.node, work).at(a.span)?;
    // As in NumPy: scale, round, scale back.
    let power = 10f64.powi(decimals.unsigned_abs() as i32);
    let power = l.b.constant(Scalar::from_f64(work, power)).at(a.span)?;
    let (there, back) = match decimals {
        0 => {
            node = l.b.map(ScalarOp::Rint, &[node]).at(a.span)?;
            return Ok(tensor(l, node, t));
        }
        d if d > 0 => (ScalarOp::Mul, ScalarOp::Div),
        _ => (ScalarOp::Div, ScalarOp::Mul),
    };
    node = l.b.map(there, &[node, power]).at(a.span)?;
    node = l.b.map(ScalarOp::Rint, &[node]).at(a.span)?;
    node = l.b.map(back, &[node, power]).at(a.span)?;
    node = l.b.cast(node, from).at(a.span)?;
    Ok(tensor(l, node, t))
}
