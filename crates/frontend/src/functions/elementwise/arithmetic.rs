//! Named arithmetic and comparison functions, and the maximum and minimum of two values.

use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{BOOL, MEET, NUMERIC, op_of, tensor};
use crate::error::Error;
use crate::functions::{Bound, Row, row};
use crate::lower::value::Value;
use crate::lower::{At, Binary, Lowerer, fail, types};

pub(in crate::functions) const ROWS: &[Row] = &[
    row("abs(x)", numeric1, "Absolute value.").dtypes(NUMERIC),
    row("absolute(x)", numeric1, "Absolute value.").dtypes(NUMERIC),
    row("sign(x)", numeric1, "-1, 0 or 1.").dtypes(NUMERIC),
    row("negative(x)", numeric1, "-x.").dtypes(NUMERIC),
    row("positive(x)", numeric1, "x.").dtypes(NUMERIC),
    row("square(x)", numeric1, "x times x.").dtypes(NUMERIC),
    row("reciprocal(x)", numeric1, "1 / x.").dtypes("floats; type stays"),
    row("add(x, y)", arithmetic, "x + y.").dtypes(MEET),
    row("subtract(x, y)", arithmetic, "x - y.").dtypes(MEET),
    row("multiply(x, y)", arithmetic, "x * y.").dtypes(MEET),
    row("divide(x, y)", arithmetic, "x / y.")
        .dtypes("floats of NumPy's promotion; integers give float64"),
    row("true_divide(x, y)", arithmetic, "x / y.").dtypes("as divide"),
    row("floor_divide(x, y)", arithmetic, "x // y, rounded down.").dtypes(MEET),
    row("remainder(x, y)", arithmetic, "Remainder with the sign of y.").dtypes(MEET),
    row("mod(x, y)", arithmetic, "Remainder with the sign of y.").dtypes(MEET),
    row(
        "power(x, y)",
        arithmetic,
        "x to the power y; integers wrap, a negative integer exponent is an error.",
    )
    .dtypes(MEET),
    row("pow(x, y)", arithmetic, "x to the power y.").dtypes(MEET),
    row("fmod(x, y)", meet2, "Remainder with the sign of x.").dtypes(MEET),
    row("maximum(x, y)", meet2, "The greater; NaN if either is.").dtypes(MEET),
    row("minimum(x, y)", meet2, "The lesser; NaN if either is.").dtypes(MEET),
    row("fmax(x, y)", meet2, "The greater; NaN only if both are.").dtypes(MEET),
    row("fmin(x, y)", meet2, "The lesser; NaN only if both are.").dtypes(MEET),
    row("equal(x, y)", arithmetic, "x = y.").dtypes(BOOL),
    row("not_equal(x, y)", arithmetic, "x <> y.").dtypes(BOOL),
    row("less(x, y)", arithmetic, "x < y.").dtypes(BOOL),
    row("less_equal(x, y)", arithmetic, "x <= y.").dtypes(BOOL),
    row("greater(x, y)", arithmetic, "x > y.").dtypes(BOOL),
    row("greater_equal(x, y)", arithmetic, "x >= y.").dtypes(BOOL),
];

fn numeric1(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let dtype = l.b.dtype(t.node);
    let node = match a.name {
        "abs" | "absolute" if dtype == DType::Bool => t.node,
        "abs" | "absolute" => l.b.map(ScalarOp::Abs, &[t.node]).at(a.span)?,
        "sign" => l.b.map(ScalarOp::Sign, &[t.node]).at(a.span)?,
        "negative" => l.b.map(ScalarOp::Neg, &[t.node]).at(a.span)?,
        "positive" if dtype.is_numeric() => t.node,
        "positive" => return fail(types(a.name, vec![dtype.name()]), a.span),
        "square" => {
            // NumPy treats bools as `int8` where bools have no meaning of their own.
            let to = if dtype == DType::Bool { DType::Int8 } else { dtype };
            let x = l.b.cast(t.node, to).at(a.span)?;
            l.b.map(ScalarOp::Mul, &[x, x]).at(a.span)?
        }
        _ => {
            if !dtype.is_float() {
                return fail(types(a.name, vec![dtype.name()]), a.span);
            }
            let one = l.b.constant(Scalar::from_f64(dtype, 1.0)).at(a.span)?;
            l.b.map(ScalarOp::Div, &[one, t.node]).at(a.span)?
        }
    };
    Ok(tensor(l, node, t))
}

/// Named forms of the operators.
pub(super) fn arithmetic(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let op = match a.name {
        "add" => Binary::Add,
        "subtract" => Binary::Sub,
        "multiply" => Binary::Mul,
        "divide" | "true_divide" => Binary::Div,
        "floor_divide" => Binary::FloorDiv,
        "remainder" | "mod" => Binary::Rem,
        "power" | "pow" => Binary::Pow,
        "equal" => Binary::Compare(ScalarOp::Eq),
        "not_equal" => Binary::Compare(ScalarOp::Ne),
        "less" => Binary::Compare(ScalarOp::Lt),
        "less_equal" => Binary::Compare(ScalarOp::Le),
        "greater" => Binary::Compare(ScalarOp::Gt),
        "greater_equal" => Binary::Compare(ScalarOp::Ge),
        "bitwise_and" => Binary::Bits(ScalarOp::And),
        "bitwise_or" => Binary::Bits(ScalarOp::Or),
        "bitwise_xor" => Binary::Bits(ScalarOp::Xor),
        "left_shift" => Binary::Bits(ScalarOp::ShiftLeft),
        _ => Binary::Bits(ScalarOp::ShiftRight),
    };
    let (x, y) = (a.value(l, "x")?, a.value(l, "y")?);
    l.binary(op, x, y, a.span)
}

fn meet2(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y) = (a.value(l, "x")?, a.value(l, "y")?);
    let values = l.settle(vec![x, y], a.span)?;
    let dtype = l.meet(a.name, &values, a.span)?;
    let op = match (op_of(a)?, dtype.is_float()) {
        (ScalarOp::Fmax, false) => ScalarOp::Maximum,
        (ScalarOp::Fmin, false) => ScalarOp::Minimum,
        (op, _) => op,
    };
    let to = |d| if op == ScalarOp::Fmod && d == DType::Bool { DType::Int8 } else { d };
    l.map_values(op, a.name, values, to, a.span).map(Value::Tensor)
}
