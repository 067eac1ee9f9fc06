//! Functions that give floats: roots, exponentials, logarithms, trigonometry, angles.

use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{FLOAT, MASKS, op_of, tensor};
use crate::error::Error;
use crate::functions::{Bound, Function, Open, row};
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, types};

pub(in crate::functions) const ROWS: &[Function] = &[
    float1!("sqrt", "Square root; NaN below 0."),
    float1!("cbrt", "Cube root."),
    float1!("exp", "e to the power x."),
    float1!("exp2", "2 to the power x."),
    float1!("expm1", "e to the power x, less 1."),
    float1!("log", "Natural logarithm."),
    float1!("log2", "Logarithm to base 2."),
    float1!("log10", "Logarithm to base 10."),
    float1!("log1p", "Natural logarithm of 1 + x."),
    float1!("sin", "Sine of radians."),
    float1!("cos", "Cosine of radians."),
    float1!("tan", "Tangent of radians."),
    float1!("arcsin", "Arc sine in radians."),
    float1!("arccos", "Arc cosine in radians."),
    float1!("arctan", "Arc tangent in radians."),
    float1!("sinh", "Hyperbolic sine."),
    float1!("cosh", "Hyperbolic cosine."),
    float1!("tanh", "Hyperbolic tangent."),
    float1!("arcsinh", "Inverse hyperbolic sine."),
    float1!("arccosh", "Inverse hyperbolic cosine."),
    float1!("arctanh", "Inverse hyperbolic tangent."),
    float1!(
        "erf",
        "Error function: 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x.",
        "scipy.special.erf"
    ),
    float1!("erfc", "1 - erf(x), exact where that cancels.", "scipy.special.erfc"),
    float1!("asin", "Arc sine in radians.", "numpy.arcsin"),
    float1!("acos", "Arc cosine in radians.", "numpy.arccos"),
    float1!("atan", "Arc tangent in radians.", "numpy.arctan"),
    float1!("asinh", "Inverse hyperbolic sine.", "numpy.arcsinh"),
    float1!("acosh", "Inverse hyperbolic cosine.", "numpy.arccosh"),
    float1!("atanh", "Inverse hyperbolic tangent.", "numpy.arctanh"),
    float1!("degrees", "Radians as degrees."),
    float1!("radians", "Degrees as radians."),
    float1!("rad2deg", "Radians as degrees."),
    float1!("deg2rad", "Degrees as radians."),
    float1!("sinc", "sin(pi x) / (pi x), 1 at 0."),
    two!("arctan2", float2, "Angle of the point with the ordinate x and the abscissa y.", FLOAT),
    two!("atan2", float2, "As arctan2.", FLOAT),
    two!("hypot", float2, "Square root of x² + y².", FLOAT),
    two!("copysign", float2, "Size of x with the sign of y.", FLOAT),
    two!("nextafter", float2, "The next float after x toward y.", FLOAT),
    two!("logaddexp", float2, "log(e^x + e^y).", FLOAT),
];

/// x as a float tensor.
fn float_of(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Tensor, Error> {
    let value = a.value(l, "x")?;
    let t = l.tensor(value, a.place("x"))?;
    let from = l.b.dtype(t.node);
    if from.is_datetime() {
        return fail(types(a.name, vec![from.name()]), a.span);
    }
    l.typed(Value::Tensor(t), from.to_float(), a.name, a.span)
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

/// Whether float32 holds every operand exactly: NumPy asks that of each, not of the integer in which they would meet.
/// Of 8-bit integers alone it would make float16, which is float64 here.
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
