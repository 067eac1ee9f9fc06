//! Functions that return floats: roots, exponentials, logarithms, trigonometry, angles.

use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{FLOAT, op_of, tensor};
use crate::error::Error;
use crate::functions::{Bound, Row, row};
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, types};

pub(in crate::functions) const ROWS: &[Row] = &[
    row("sqrt(x)", float1, "Square root; NaN below 0.").dtypes(FLOAT),
    row("cbrt(x)", float1, "Cube root.").dtypes(FLOAT),
    row("exp(x)", float1, "e to the power x.").dtypes(FLOAT),
    row("exp2(x)", float1, "2 to the power x.").dtypes(FLOAT),
    row("expm1(x)", float1, "e to the power x, less 1.").dtypes(FLOAT),
    row("log(x)", float1, "Natural logarithm.").dtypes(FLOAT),
    row("log2(x)", float1, "Logarithm to base 2.").dtypes(FLOAT),
    row("log10(x)", float1, "Logarithm to base 10.").dtypes(FLOAT),
    row("log1p(x)", float1, "Natural logarithm of 1 + x.").dtypes(FLOAT),
    row("sin(x)", float1, "Sine of radians.").dtypes(FLOAT),
    row("cos(x)", float1, "Cosine of radians.").dtypes(FLOAT),
    row("tan(x)", float1, "Tangent of radians.").dtypes(FLOAT),
    row("arcsin(x)", float1, "Arc sine in radians.").dtypes(FLOAT),
    row("arccos(x)", float1, "Arc cosine in radians.").dtypes(FLOAT),
    row("arctan(x)", float1, "Arc tangent in radians.").dtypes(FLOAT),
    row("sinh(x)", float1, "Hyperbolic sine.").dtypes(FLOAT),
    row("cosh(x)", float1, "Hyperbolic cosine.").dtypes(FLOAT),
    row("tanh(x)", float1, "Hyperbolic tangent.").dtypes(FLOAT),
    row("arcsinh(x)", float1, "Inverse hyperbolic sine.").dtypes(FLOAT),
    row("arccosh(x)", float1, "Inverse hyperbolic cosine.").dtypes(FLOAT),
    row("arctanh(x)", float1, "Inverse hyperbolic tangent.").dtypes(FLOAT),
    row(
        "erf(x)",
        float1,
        "Error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.",
    )
    .dtypes(FLOAT)
    .numpy("scipy.special.erf"),
    row("erfc(x)", float1, "1 - erf(x), exact where that cancels.")
        .dtypes(FLOAT)
        .numpy("scipy.special.erfc"),
    row("asin(x)", float1, "Arc sine in radians.").dtypes(FLOAT).numpy("numpy.arcsin"),
    row("acos(x)", float1, "Arc cosine in radians.").dtypes(FLOAT).numpy("numpy.arccos"),
    row("atan(x)", float1, "Arc tangent in radians.").dtypes(FLOAT).numpy("numpy.arctan"),
    row("asinh(x)", float1, "Inverse hyperbolic sine.").dtypes(FLOAT).numpy("numpy.arcsinh"),
    row("acosh(x)", float1, "Inverse hyperbolic cosine.").dtypes(FLOAT).numpy("numpy.arccosh"),
    row("atanh(x)", float1, "Inverse hyperbolic tangent.").dtypes(FLOAT).numpy("numpy.arctanh"),
    row("degrees(x)", float1, "Radians as degrees.").dtypes(FLOAT),
    row("radians(x)", float1, "Degrees as radians.").dtypes(FLOAT),
    row("rad2deg(x)", float1, "Radians as degrees.").dtypes(FLOAT),
    row("deg2rad(x)", float1, "Degrees as radians.").dtypes(FLOAT),
    row("sinc(x)", float1, "sin(pi x) / (pi x), 1 at 0.")
        .dtypes("floats stay; all else gives float64"),
    row("arctan2(x, y)", float2, "Angle of the point with the ordinate x and the abscissa y.")
        .dtypes(FLOAT),
    row("atan2(x, y)", float2, "As arctan2.").dtypes(FLOAT),
    row("hypot(x, y)", float2, "Square root of x² + y².").dtypes(FLOAT),
    row("copysign(x, y)", float2, "Size of x with the sign of y.").dtypes(FLOAT),
    row("nextafter(x, y)", float2, "The next float after x toward y.").dtypes(FLOAT),
    row("logaddexp(x, y)", float2, "log(e^x + e^y).").dtypes(FLOAT),
];

/// `x` as a float tensor.
fn float_of(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Tensor, Error> {
    let value = a.value(l, "x")?;
    let t = l.tensor(value, a.place("x"))?;
    let from = l.b.dtype(t.node);
    if from.is_datetime() {
        return fail(types(a.name, vec![from.name()]), a.span);
    }
    // NumPy multiplies by pi first, which makes float64 of every integer.
    let to = if a.name == "sinc" && !from.is_float() { DType::Float64 } else { from.to_float() };
    l.typed(Value::Tensor(t), to, a.name, a.span)
}

pub(super) fn float1(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = float_of(l, a)?;
    let dtype = l.b.dtype(t.node);
    let factor = match a.name {
        "degrees" | "rad2deg" => Some(180.0 / std::f64::consts::PI),
        "radians" | "deg2rad" => Some(std::f64::consts::PI / 180.0),
        _ => None,
    };
    if let Some(factor) = factor {
        let factor = l.b.constant(Scalar::from_f64(dtype, factor)).at(a.span)?;
        let node = l.b.map(ScalarOp::Mul, &[t.node, factor]).at(a.span)?;
        return Ok(tensor(l, node, t));
    }
    if a.name == "sinc" {
        let pi = l.b.constant(Scalar::from_f64(dtype, std::f64::consts::PI)).at(a.span)?;
        let zero = l.b.constant(Scalar::zero(dtype)).at(a.span)?;
        let one = l.b.constant(Scalar::from_f64(dtype, 1.0)).at(a.span)?;
        let angle = l.b.map(ScalarOp::Mul, &[t.node, pi]).at(a.span)?;
        let sine = l.b.map(ScalarOp::Sin, &[angle]).at(a.span)?;
        let ratio = l.b.map(ScalarOp::Div, &[sine, angle]).at(a.span)?;
        let at_zero = l.b.map(ScalarOp::Eq, &[t.node, zero]).at(a.span)?;
        let node = l.b.map(ScalarOp::Where, &[at_zero, one, ratio]).at(a.span)?;
        return Ok(tensor(l, node, t));
    }
    let node = l.b.map(op_of(a)?, &[t.node]).at(a.span)?;
    Ok(tensor(l, node, t))
}

fn float2(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let values = vec![a.value(l, "x")?, a.value(l, "y")?];
    let values = l.settle(values, a.span)?;
    let met = l.meet(a.name, &values, a.span)?;
    let dtype = match met {
        d if d.is_datetime() => return fail(types(a.name, vec![d.name()]), a.span),
        d if d.is_integer() && narrow(l, &values) => DType::Float32,
        d if d.is_integer() => DType::Float64,
        d => d.to_float(),
    };
    l.map_values(op_of(a)?, a.name, values, |_| dtype, a.span).map(Value::Tensor)
}

/// True if float32 represents every operand exactly: NumPy checks each operand, not their common integer type.
/// For 8-bit integers alone NumPy would use float16, which is float64 here.
fn narrow(l: &Lowerer<'_, '_>, values: &[Value]) -> bool {
    let sizes: Vec<usize> = values
        .iter()
        .filter_map(|value| match value {
            Value::Tensor(t) => Some(l.b.dtype(t.node).size()),
            _ => None,
        })
        .collect();
    sizes.iter().all(|&size| size <= 2) && sizes.contains(&2)
}
