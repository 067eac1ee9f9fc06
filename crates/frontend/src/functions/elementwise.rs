//! Elementwise functions: constants, `where` and `astype` here, the other families in submodules.

pub(super) mod arithmetic;
pub(super) mod floats;
pub(super) mod logic;
pub(super) mod missing;
pub(super) mod rounding;

use tessera_planner::ir::NodeId;
use tessera_planner::program::ScalarOp;

use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::Lowerer;
use crate::lower::value::{Tensor, Value};

const FLOAT: &str = "floats stay; 16-bit integers give float32, all else float64";
const NUMERIC: &str = "numeric, type stays";
const MEET: &str = "NumPy's promotion of the arguments";
const BOOL: &str = "gives bool";

pub(super) const ROWS: &[Row] = &[row("pi()", constant, "π.")
    .dtypes("gives a float literal")
    .missing("never masked")
    .example("SELECT x * pi() FROM x")];

/// Elementwise functions that plain SQL does not have.
pub(super) const TENSOR_ROWS: &[Row] = &[
    row("e()", constant, "Euler's number.")
        .dtypes("gives a float literal")
        .missing("never masked")
        .example("SELECT x * e() FROM x"),
    row("nan()", constant, "Not a number.")
        .dtypes("gives a float literal")
        .missing("never masked")
        .example("SELECT where(x > 0, x, nan()) FROM x"),
    row("inf()", constant, "Infinity.")
        .dtypes("gives a float literal")
        .missing("never masked")
        .example("SELECT x < inf() FROM x"),
    row("where(condition, x, y)", choose, "x where the condition is true, else y; NULL masks.")
        .dtypes("bool, then NumPy's promotion of x and y")
        .missing("masked where the condition or the chosen branch is")
        .example("SELECT where(t2m > 273.15, t2m, NULL) FROM era5"),
    row(
        "astype(x, dtype)",
        astype,
        "x in another type; floats truncate toward zero, integers wrap.",
    )
    .missing("masked cells stay masked")
    .example("SELECT astype(x, 'float32') FROM x")
    .numpy("numpy.ndarray.astype"),
];

fn scalar_op(name: &str) -> Option<ScalarOp> {
    Some(match name {
        "sqrt" => ScalarOp::Sqrt,
        "cbrt" => ScalarOp::Cbrt,
        "exp" => ScalarOp::Exp,
        "exp2" => ScalarOp::Exp2,
        "expm1" => ScalarOp::Expm1,
        "log" => ScalarOp::Log,
        "log2" => ScalarOp::Log2,
        "log10" => ScalarOp::Log10,
        "log1p" => ScalarOp::Log1p,
        "sin" => ScalarOp::Sin,
        "cos" => ScalarOp::Cos,
        "tan" => ScalarOp::Tan,
        "arcsin" | "asin" => ScalarOp::Arcsin,
        "arccos" | "acos" => ScalarOp::Arccos,
        "arctan" | "atan" => ScalarOp::Arctan,
        "sinh" => ScalarOp::Sinh,
        "cosh" => ScalarOp::Cosh,
        "tanh" => ScalarOp::Tanh,
        "arcsinh" | "asinh" => ScalarOp::Arcsinh,
        "arccosh" | "acosh" => ScalarOp::Arccosh,
        "arctanh" | "atanh" => ScalarOp::Arctanh,
        "erf" => ScalarOp::Erf,
        "erfc" => ScalarOp::Erfc,
        "rint" => ScalarOp::Rint,
        "floor" => ScalarOp::Floor,
        "ceil" => ScalarOp::Ceil,
        "trunc" => ScalarOp::Trunc,
        "fmod" => ScalarOp::Fmod,
        "maximum" => ScalarOp::Maximum,
        "minimum" => ScalarOp::Minimum,
        "fmax" => ScalarOp::Fmax,
        "fmin" => ScalarOp::Fmin,
        "arctan2" | "atan2" => ScalarOp::Arctan2,
        "hypot" => ScalarOp::Hypot,
        "copysign" => ScalarOp::Copysign,
        "nextafter" => ScalarOp::Nextafter,
        "logaddexp" => ScalarOp::Logaddexp,
        "isnan" => ScalarOp::IsNan,
        "isinf" => ScalarOp::IsInf,
        "isfinite" => ScalarOp::IsFinite,
        "signbit" => ScalarOp::SignBit,
        _ => return None,
    })
}

fn op_of(a: &Bound<'_>) -> Result<ScalarOp, Error> {
    match scalar_op(a.name) {
        Some(op) => Ok(op),
        None => crate::lower::unsupported(a.name, a.span),
    }
}

fn tensor(l: &Lowerer<'_, '_>, node: NodeId, like: Tensor) -> Value {
    debug_assert_eq!(l.b.shape(node).len(), like.dims.len(), "labels follow the node");
    Value::Tensor(Tensor::new(node, like.dims))
}

fn constant(_: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    Ok(Value::Float(match a.name {
        "pi" => std::f64::consts::PI,
        "e" => std::f64::consts::E,
        "nan" => f64::NAN,
        _ => f64::INFINITY,
    }))
}

fn choose(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let condition = a.value(l, "condition")?;
    let condition = l.boolean(condition, a.name, a.place("condition"))?;
    let (x, y) = (a.value(l, "x")?, a.value(l, "y")?);
    l.choose(condition, x, y, a.name, a.span).map(Value::Tensor)
}

fn astype(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.value(l, "x")?;
    match a.dtype(l)? {
        Some(dtype) => l.cast(x, dtype, a.span).map(Value::Tensor),
        None => a.refuse("dtype", "must be the name of a type"),
    }
}
