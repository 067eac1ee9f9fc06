//! Logical and bitwise functions, and tests for NaN, infinities and signs.

use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::arithmetic::arithmetic;
use super::{BOOL, op_of, tensor};
use crate::error::Error;
use crate::functions::{Bound, Row, row};
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, types};

pub(in crate::functions) const ROWS: &[Row] = &[
    row("logical_and(x, y)", logical, "Are both true, or not zero? False wins over NULL.")
        .dtypes(BOOL),
    row("logical_or(x, y)", logical, "Is either true, or not zero? True wins over NULL.")
        .dtypes(BOOL),
    row("logical_xor(x, y)", logical, "Is just one true, or not zero?").dtypes(BOOL),
    row("logical_not(x)", logical, "Is it false, or zero?").dtypes(BOOL),
    row("bitwise_and(x, y)", arithmetic, "Bitwise and.").dtypes("integers and bool"),
    row("bitwise_or(x, y)", arithmetic, "Bitwise or.").dtypes("integers and bool"),
    row("bitwise_xor(x, y)", arithmetic, "Bitwise exclusive or.").dtypes("integers and bool"),
    row("left_shift(x, y)", arithmetic, "Bits moved to the left.").dtypes("integers"),
    row("right_shift(x, y)", arithmetic, "Bits moved to the right; the sign stays.")
        .dtypes("integers"),
    row("bitwise_not(x)", invert, "Bitwise not; of bools the logical one.")
        .dtypes("integers and bool"),
    row("invert(x)", invert, "Bitwise not; of bools the logical one.").dtypes("integers and bool"),
    row("isnan(x)", predicate, "Is it NaN, or a time that is missing?").dtypes(BOOL),
    row("isinf(x)", predicate, "Is it an infinity?").dtypes(BOOL),
    row("isfinite(x)", predicate, "Is it neither NaN nor infinite?").dtypes(BOOL),
    row("signbit(x)", predicate, "Is the sign set?").dtypes(BOOL),
];

/// True where a cell is not zero.
fn truth(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, param: &str) -> Result<Tensor, Error> {
    let mut t = a.tensor(l, param)?;
    let dtype = l.b.dtype(t.node);
    if dtype == DType::Bool {
        return Ok(t);
    }
    if !dtype.is_numeric() {
        return fail(types(a.name, vec![dtype.name()]), a.place(param));
    }
    let zero = l.b.constant(Scalar::zero(dtype)).at(a.span)?;
    t.node = l.b.map(ScalarOp::Ne, &[t.node, zero]).at(a.span)?;
    Ok(t)
}

fn logical(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = truth(l, a, "x")?;
    if a.name == "logical_not" {
        return l.negate(x, a.span).map(Value::Tensor);
    }
    let y = truth(l, a, "y")?;
    let result = match a.name {
        "logical_xor" => l.map(MapOp::Scalar(ScalarOp::Xor), a.name, vec![x, y], a.span)?,
        name => l.logic(name == "logical_and", x, y, a.span)?,
    };
    Ok(Value::Tensor(result))
}

fn invert(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    l.negate(t, a.span).map(Value::Tensor)
}

fn predicate(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let dtype = l.b.dtype(t.node);
    let op = op_of(a)?;
    if dtype.is_datetime() && op == ScalarOp::IsNan {
        // A time that is missing, NaT, is masked.
        let valid = l.b.map_op(MapOp::IsValid, &[t.node]).at(a.span)?;
        let node = l.b.map(ScalarOp::Not, &[valid]).at(a.span)?;
        return Ok(tensor(l, node, t));
    }
    let defined = dtype.is_float() || (op == ScalarOp::SignBit && dtype.is_signed());
    if !defined && !dtype.is_datetime() {
        // Integers are all finite; their sign bit is that of a float.
        let node = match op {
            ScalarOp::SignBit | ScalarOp::IsNan | ScalarOp::IsInf | ScalarOp::IsFinite => {
                let answer = Scalar::bool(op == ScalarOp::IsFinite);
                let shape = l.b.shape(t.node);
                let all = l.b.full(Some(answer), DType::Bool, &shape, None).at(a.span)?;
                match l.b.node(t.node).nullable {
                    false => all,
                    true => {
                        let valid = l.b.map_op(MapOp::IsValid, &[t.node]).at(a.span)?;
                        l.b.map_op(MapOp::Mask, &[all, valid]).at(a.span)?
                    }
                }
            }
            op => l.b.map(op, &[t.node]).at(a.span)?,
        };
        return Ok(tensor(l, node, t));
    }
    let node = l.b.map(op, &[t.node]).at(a.span)?;
    Ok(tensor(l, node, t))
}
