//! Functions of cells.

use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{Bound, Function, Open, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Binary, Lowerer, fail, types};

const MASKS: &str = "masked where an argument is; NaN propagates";
const FLOAT: &str = "floats stay; 16-bit integers give float32, all else float64";
const NUMERIC: &str = "numeric, type stays";
const MEET: &str = "NumPy's promotion of the arguments";
const BOOL: &str = "gives bool";

macro_rules! float1 {
    ($name:literal, $doc:literal) => {
        float1!($name, $doc, concat!("numpy.", $name))
    };
    ($name:literal, $doc:literal, $numpy:expr) => {
        row(
            $name,
            concat!($name, "(x)"),
            &["x"],
            1,
            Open::No,
            float1,
            $doc,
            FLOAT,
            MASKS,
            concat!("SELECT ", $name, "(x) FROM x"),
            $numpy,
        )
    };
}

macro_rules! one {
    ($name:literal, $lower:expr, $doc:literal, $dtypes:expr) => {
        row(
            $name,
            concat!($name, "(x)"),
            &["x"],
            1,
            Open::No,
            $lower,
            $doc,
            $dtypes,
            MASKS,
            concat!("SELECT ", $name, "(x) FROM x"),
            concat!("numpy.", $name),
        )
    };
}

macro_rules! two {
    ($name:literal, $lower:expr, $doc:literal, $dtypes:expr) => {
        row(
            $name,
            concat!($name, "(x, y)"),
            &["x", "y"],
            2,
            Open::No,
            $lower,
            $doc,
            $dtypes,
            MASKS,
            concat!("SELECT ", $name, "(x, y) FROM x, y"),
            concat!("numpy.", $name),
        )
    };
}

pub(super) const ROWS: &[Function] = &[
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
    float1!("rint", "Nearest whole number, halves to even."),
    one!("floor", whole, "Largest whole number not above x.", NUMERIC),
    one!("ceil", whole, "Smallest whole number not below x.", NUMERIC),
    one!("trunc", whole, "Whole part, toward zero.", NUMERIC),
    row(
        "round",
        "round(x, decimals => 0)",
        &["x", "decimals"],
        1,
        Open::No,
        round,
        "Rounded to decimals, halves to even.",
        NUMERIC,
        MASKS,
        "SELECT round(x, 2) FROM x",
        "numpy.round",
    ),
    one!("abs", numeric1, "Absolute value.", NUMERIC),
    one!("absolute", numeric1, "Absolute value.", NUMERIC),
    one!("sign", numeric1, "-1, 0 or 1.", NUMERIC),
    one!("negative", numeric1, "-x.", NUMERIC),
    one!("positive", numeric1, "x.", NUMERIC),
    one!("square", numeric1, "x times x.", NUMERIC),
    one!("reciprocal", numeric1, "1 / x.", "floats; type stays"),
    two!("add", arithmetic, "x + y.", MEET),
    two!("subtract", arithmetic, "x - y.", MEET),
    two!("multiply", arithmetic, "x * y.", MEET),
    two!("divide", arithmetic, "x / y.", "floats of NumPy's promotion; integers give float64"),
    two!("true_divide", arithmetic, "x / y.", "as divide"),
    two!("floor_divide", arithmetic, "x // y, rounded down.", MEET),
    two!("remainder", arithmetic, "Remainder with the sign of y.", MEET),
    two!("mod", arithmetic, "Remainder with the sign of y.", MEET),
    two!(
        "power",
        arithmetic,
        "x to the power y; integers wrap, a negative integer exponent is an error.",
        MEET
    ),
    two!("pow", arithmetic, "x to the power y.", MEET),
    two!("fmod", meet2, "Remainder with the sign of x.", MEET),
    two!("maximum", meet2, "The greater; NaN if either is.", MEET),
    two!("minimum", meet2, "The lesser; NaN if either is.", MEET),
    two!("fmax", meet2, "The greater; NaN only if both are.", MEET),
    two!("fmin", meet2, "The lesser; NaN only if both are.", MEET),
    two!("arctan2", float2, "Angle of the point with the ordinate x and the abscissa y.", FLOAT),
    two!("atan2", float2, "As arctan2.", FLOAT),
    two!("hypot", float2, "Square root of x² + y².", FLOAT),
    two!("copysign", float2, "Size of x with the sign of y.", FLOAT),
    two!("nextafter", float2, "The next float after x toward y.", FLOAT),
    two!("logaddexp", float2, "log(e^x + e^y).", FLOAT),
    two!("equal", arithmetic, "x = y.", BOOL),
    two!("not_equal", arithmetic, "x <> y.", BOOL),
    two!("less", arithmetic, "x < y.", BOOL),
    two!("less_equal", arithmetic, "x <= y.", BOOL),
    two!("greater", arithmetic, "x > y.", BOOL),
    two!("greater_equal", arithmetic, "x >= y.", BOOL),
    two!("logical_and", logical, "Are both true, or not zero? False wins over NULL.", BOOL),
    two!("logical_or", logical, "Is either true, or not zero? True wins over NULL.", BOOL),
    two!("logical_xor", logical, "Is just one true, or not zero?", BOOL),
    one!("logical_not", logical, "Is it false, or zero?", BOOL),
    two!("bitwise_and", arithmetic, "Bitwise and.", "integers and bool"),
    two!("bitwise_or", arithmetic, "Bitwise or.", "integers and bool"),
    two!("bitwise_xor", arithmetic, "Bitwise exclusive or.", "integers and bool"),
    two!("left_shift", arithmetic, "Bits moved to the left.", "integers"),
    two!("right_shift", arithmetic, "Bits moved to the right; the sign stays.", "integers"),
    one!("bitwise_not", invert, "Bitwise not; of bools the logical one.", "integers and bool"),
    one!("invert", invert, "Bitwise not; of bools the logical one.", "integers and bool"),
    one!("isnan", predicate, "Is it NaN?", BOOL),
    one!("isinf", predicate, "Is it an infinity?", BOOL),
    one!("isfinite", predicate, "Is it neither NaN nor infinite?", BOOL),
    one!("signbit", predicate, "Is the sign set?", BOOL),
    row(
        "isnull",
        "isnull(x)",
        &["x"],
        1,
        Open::No,
        masked,
        "Is the cell masked?",
        "any gives bool",
        "never masked",
        "SELECT isnull(x) FROM x",
        "numpy.ma.getmaskarray",
    ),
    row(
        "notnull",
        "notnull(x)",
        &["x"],
        1,
        Open::No,
        masked,
        "Is the cell not masked?",
        "any gives bool",
        "never masked",
        "SELECT notnull(x) FROM x",
        "~numpy.ma.getmaskarray(x)",
    ),
    row(
        "nan_to_num",
        "nan_to_num(x, nan => 0, posinf => NULL, neginf => NULL)",
        &["x", "nan", "posinf", "neginf"],
        1,
        Open::No,
        nan_to_num,
        "NaN and infinities as numbers; infinities as the type's largest without an argument.",
        "type stays",
        "masked cells stay masked",
        "SELECT nan_to_num(x) FROM x",
        "numpy.nan_to_num",
    ),
    row(
        "clip",
        "clip(x, lo, hi)",
        &["x", "lo", "hi"],
        3,
        Open::No,
        clip,
        "Cells below lo as lo, above hi as hi; NULL is no bound.",
        MEET,
        MASKS,
        "SELECT clip(x, -1, 1) FROM x",
        "numpy.clip",
    ),
    row(
        "coalesce",
        "coalesce(x, y, …)",
        &["x"],
        1,
        Open::Many,
        coalesce,
        "The first argument that is not masked.",
        MEET,
        "masked where all are",
        "SELECT coalesce(x, 0) FROM x",
        "numpy.ma.filled",
    ),
    row(
        "ifnull",
        "ifnull(x, y)",
        &["x", "y"],
        2,
        Open::No,
        coalesce,
        "x where it is not masked, else y.",
        MEET,
        "masked where both are",
        "SELECT ifnull(x, 0) FROM x",
        "numpy.ma.filled",
    ),
    row(
        "nullif",
        "nullif(x, y)",
        &["x", "y"],
        2,
        Open::No,
        nullif,
        "x, masked where it equals y.",
        "type of x",
        "masked where x is, and where it equals y",
        "SELECT nullif(x, -999) FROM x",
        "numpy.ma.masked_equal",
    ),
    row(
        "greatest",
        "greatest(x, y, …)",
        &["x"],
        1,
        Open::Many,
        extreme,
        "The greatest of the arguments as SQL orders them: NaN is above every number. `maximum` is NumPy's.",
        MEET,
        "masked arguments are skipped; masked where all are",
        "SELECT greatest(x, 0) FROM x",
        "numpy.ma: maximum of what is not masked",
    ),
    row(
        "least",
        "least(x, y, …)",
        &["x"],
        1,
        Open::Many,
        extreme,
        "The least of the arguments as SQL orders them: NaN is above every number. `minimum` is NumPy's.",
        MEET,
        "masked arguments are skipped; masked where all are",
        "SELECT least(x, 0) FROM x",
        "numpy.fmin, skipping masked cells",
    ),
    row(
        "pi",
        "pi()",
        &[],
        0,
        Open::No,
        constant,
        "π.",
        "gives a float literal",
        "never masked",
        "SELECT x * pi() FROM x",
        "numpy.pi",
    ),
];

/// Elementwise functions that plain SQL does not have.
pub(super) const TENSOR_ROWS: &[Function] = &[
    row(
        "e",
        "e()",
        &[],
        0,
        Open::No,
        constant,
        "Euler's number.",
        "gives a float literal",
        "never masked",
        "SELECT x * e() FROM x",
        "numpy.e",
    ),
    row(
        "nan",
        "nan()",
        &[],
        0,
        Open::No,
        constant,
        "Not a number.",
        "gives a float literal",
        "never masked",
        "SELECT where(x > 0, x, nan()) FROM x",
        "numpy.nan",
    ),
    row(
        "inf",
        "inf()",
        &[],
        0,
        Open::No,
        constant,
        "Infinity.",
        "gives a float literal",
        "never masked",
        "SELECT x < inf() FROM x",
        "numpy.inf",
    ),
    row(
        "where",
        "where(condition, x, y)",
        &["condition", "x", "y"],
        3,
        Open::No,
        choose,
        "x where the condition is true, else y; NULL masks.",
        "bool, then NumPy's promotion of x and y",
        "masked where the condition or the chosen branch is",
        "SELECT where(t2m > 273.15, t2m, NULL) FROM era5",
        "numpy.where",
    ),
    row(
        "astype",
        "astype(x, dtype)",
        &["x", "dtype"],
        2,
        Open::No,
        astype,
        "x in another type; floats truncate toward zero, integers wrap.",
        "any",
        "masked cells stay masked",
        "SELECT astype(x, 'float32') FROM x",
        "numpy.ndarray.astype",
    ),
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

fn tensor(l: &Lowerer<'_, '_>, node: tessera_planner::ir::NodeId, like: Tensor) -> Value {
    debug_assert_eq!(l.b.shape(node).len(), like.dims.len(), "labels follow the node");
    Value::Tensor(Tensor::new(node, like.dims))
}

fn float1(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
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

/// `floor` and its kin: integers and bools are whole already.
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
        return fail(a.invalid("`decimals`", "must be -308 to 308"), a.place("decimals"));
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
    // NumPy's way: scaled, rounded, scaled back.
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
            // NumPy counts bools as `int8` where they have no meaning of their own.
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

/// Operators by their names.
fn arithmetic(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
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
    let defined = dtype.is_float() || (op == ScalarOp::SignBit && dtype.is_signed());
    if !defined && !dtype.is_datetime() {
        // Integers are all finite numbers; their sign bit is that of a float.
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
        if !matches!(bound, Value::Null) {
            let pair = vec![result, bound];
            result = Value::Tensor(l.map_values(op, a.name, pair, |d| d, a.span)?);
        }
    }
    l.tensor(result, a.span).map(Value::Tensor)
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
            // Where one of them is masked, the other.
            let other = l.b.map_op(MapOp::Coalesce, &nodes).at(a.span)?;
            node = l.b.map_op(MapOp::Coalesce, &[node, other]).at(a.span)?;
        }
        Ok(Tensor::new(node, dims))
    })
}

/// Tensors put together from the left.
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
    // Beside a masked y nothing equals it.
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
        None => fail(a.invalid("`dtype`", "must be the name of a type"), a.place("dtype")),
    }
}
