//! Functions that create tensors: constants, ranges, random numbers.
//!
//! None allocates: a constant is one cell broadcast, the others are elementwise functions of the cell's
//! index.

use tessera_planner::dtype::DType;
use tessera_planner::ir::NodeId;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::row::Lower;
use super::{Bound, Open, Row, row};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Binary, Lowerer, fail};

const NONE: &str = "no cell is masked";
const ANY: &str = "of type `dtype`, float64 if none is given";

/// The row of a function that creates tensors from none.
const fn made(signature: &'static str, lower: Lower, doc: &'static str) -> Row {
    row(signature, lower, doc).dtypes(ANY).missing(NONE)
}

pub(super) const ROWS: &[Row] = &[
    made("zeros(shape, dtype => 'float64', chunks => NULL, dims => NULL)", filled, "Zeros.")
        .example("SELECT zeros([2, 3])"),
    made("ones(shape, dtype => 'float64', chunks => NULL, dims => NULL)", filled, "Ones.")
        .example("SELECT ones([2, 3], dims => ['y', 'x'])"),
    made(
        "empty(shape, dtype => 'float64', chunks => NULL, dims => NULL)",
        filled,
        "Zeros: no cell is left to chance.",
    )
    .example("SELECT empty([2])")
    .numpy("numpy.zeros"),
    row(
        "full(shape, value, dtype => NULL, chunks => NULL, dims => NULL)",
        full,
        "One value in every cell.",
    )
    .dtypes("of the value's type, or `dtype`")
    .missing("NULL masks every cell")
    .example("SELECT full([2, 2], 7)"),
    row("zeros_like(x, dtype => NULL)", like, "Zeros in the shape of x, with its labels.")
        .dtypes("of the type of x, or `dtype`")
        .missing(NONE),
    row("ones_like(x, dtype => NULL)", like, "Ones in the shape of x, with its labels.")
        .dtypes("of the type of x, or `dtype`")
        .missing(NONE),
    row(
        "full_like(x, value, dtype => NULL)",
        like,
        "One value in the shape of x, with its labels.",
    )
    .dtypes("of the type of x, or `dtype`")
    .missing("NULL masks every cell")
    .example("SELECT full_like(x, 7) FROM x"),
    row(
        "arange(start, stop => NULL, step => 1, dtype => NULL, chunks => NULL, dims => NULL)",
        arange,
        "Numbers from start up to but without stop; of one argument it is stop, and start is \
         0.",
    )
    .dtypes("int64, float64 if an argument is a float, or `dtype`")
    .missing(NONE)
    .example("SELECT arange(2, 9, 3)"),
    made(
        "linspace(start, stop, num => 50, endpoint => true, dtype => 'float64', chunks => \
         NULL, dims => NULL)",
        linspace,
        "Evenly spaced numbers from start to stop.",
    )
    .example("SELECT linspace(0, 1, 5)"),
    made(
        "eye(n, m => n, k => 0, dtype => 'float64', chunks => NULL, dims => NULL)",
        eye,
        "Ones on a diagonal (k above the main one), else zeros.",
    )
    .example("SELECT eye(3)"),
    made(
        "identity(n, dtype => 'float64', chunks => NULL, dims => NULL)",
        eye,
        "The square matrix with ones on its diagonal.",
    )
    .example("SELECT identity(3)"),
    made(
        "random(shape, seed => NULL, dtype => 'float64', chunks => NULL, dims => NULL)",
        random,
        "Uniform random numbers in [0, 1); the same for a seed, whatever the chunks.",
    )
    .example("SELECT random([3, 4], seed => 42)")
    .numpy("numpy.random.random"),
    made(
        "random_uniform(shape, low => 0, high => 1, seed => NULL, dtype => 'float64', chunks \
         => NULL, dims => NULL)",
        random,
        "Uniform random numbers in [low, high).",
    )
    .example("SELECT random_uniform([3, 4], seed => 42)")
    .numpy("numpy.random.uniform"),
    made(
        "random_normal(shape, loc => 0, scale => 1, seed => NULL, dtype => 'float64', chunks \
         => NULL, dims => NULL)",
        random,
        "Normal random numbers.",
    )
    .example("SELECT random_normal([3, 4], seed => 42)")
    .numpy("numpy.random.normal"),
    row(
        "uniform(low => 0, high => 1, size => NULL, seed => NULL, dtype => 'float64', chunks \
         => NULL, dims => NULL)",
        random,
        "Uniform random numbers in [low, high), with NumPy's order of arguments.",
    )
    .takes(&["low", "high", "shape", "seed", "dtype", "chunks", "dims", "size"], 0, Open::No)
    .dtypes(ANY)
    .missing(NONE)
    .example("SELECT uniform(-1, 1, [3, 4], seed => 42)")
    .numpy("numpy.random.uniform"),
    row(
        "normal(loc => 0, scale => 1, size => NULL, seed => NULL, dtype => 'float64', chunks \
         => NULL, dims => NULL)",
        random,
        "Normal random numbers, with NumPy's order of arguments.",
    )
    .takes(&["loc", "scale", "shape", "seed", "dtype", "chunks", "dims", "size"], 0, Open::No)
    .dtypes(ANY)
    .missing(NONE)
    .example("SELECT normal(0, 2, [3, 4], seed => 42)")
    .numpy("numpy.random.normal"),
];

/// `shape`, which must be given.
fn shape(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Vec<u64>, Error> {
    match a.lengths(l, "shape")? {
        Some(shape) => Ok(shape),
        None => a.refuse("shape", "must be a list of lengths"),
    }
}

/// `chunks`: one length per dimension, or one for all.
fn chunks(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    shape: &[u64],
) -> Result<Option<Vec<u64>>, Error> {
    let Some(mut chunks) = a.lengths(l, "chunks")? else { return Ok(None) };
    if chunks.len() == 1 && shape.len() > 1 {
        chunks = vec![chunks[0]; shape.len()];
    }
    if chunks.len() != shape.len() || chunks.contains(&0) {
        return a.refuse("chunks", format!("must be {} lengths of at least 1", shape.len()));
    }
    // A chunk longer than the dimension covers all of it.
    Ok(Some(chunks.iter().zip(shape).map(|(&c, &n)| c.min(n.max(1))).collect()))
}

fn finish(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, node: NodeId) -> Result<Value, Error> {
    let rank = l.b.shape(node).len();
    let dims = a.names(l, "dims", rank)?.unwrap_or_else(|| vec![Dim::default(); rank]);
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

fn filled(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let shape = shape(l, a)?;
    let dtype = a.dtype(l)?.unwrap_or(DType::Float64);
    let chunks = chunks(l, a, &shape)?;
    let value = Scalar::i64(i64::from(a.name == "ones")).cast(dtype);
    let node = l.b.full(Some(value), dtype, &shape, chunks.as_deref()).at(a.span)?;
    finish(l, a, node)
}

fn full(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let shape = shape(l, a)?;
    let dtype = a.dtype(l)?;
    let chunks = chunks(l, a, &shape)?;
    let value = a.value(l, "value")?;
    let mut one = l.tensor(value, a.place("value"))?;
    if !one.dims.is_empty() {
        return a.refuse("value", "must be one value");
    }
    if let Some(dtype) = dtype {
        one = l.cast(Value::Tensor(one), dtype, a.span)?;
    }
    let mut node = l.b.broadcast_to(one.node, &shape).at(a.span)?;
    if let Some(chunks) = chunks {
        node = l.b.rechunk(node, &chunks).at(a.span)?;
    }
    finish(l, a, node)
}

fn like(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.tensor(l, "x")?;
    let dtype = a.dtype(l)?.unwrap_or(l.b.dtype(x.node));
    let value = match a.name {
        "zeros_like" => Value::Int(0),
        "ones_like" => Value::Int(1),
        _ => a.value(l, "value")?,
    };
    let one = match value {
        Value::Null => l.typed(Value::Null, dtype, a.name, a.span)?,
        value => l.cast(value, dtype, a.span)?,
    };
    if !one.dims.is_empty() {
        return a.refuse("value", "must be one value");
    }
    let shape = l.b.shape(x.node);
    let node = l.b.broadcast_to(one.node, &shape).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, x.dims)))
}

/// A number as written: integers stay exact.
enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    fn float(&self) -> f64 {
        match self {
            Number::Int(v) => *v as f64,
            Number::Float(v) => *v,
        }
    }
}

fn number(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, param: &str) -> Result<Option<Number>, Error> {
    Ok(match a.value(l, param)? {
        Value::Null => None,
        Value::Int(v) => Some(Number::Int(v)),
        Value::Float(v) => Some(Number::Float(v)),
        Value::Tensor(t) if l.b.dtype(t.node).is_integer() => a.int(l, param)?.map(Number::Int),
        Value::Tensor(_) => a.float(l, param)?.map(Number::Float),
        other => return a.refuse(param, format!("must be a number, not {}", other.kind())),
    })
}

fn arange(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let first = number(l, a, "start")?.unwrap_or(Number::Int(0));
    let (start, stop) = match number(l, a, "stop")? {
        Some(stop) => (first, stop),
        None => (Number::Int(0), first),
    };
    let step = number(l, a, "step")?.unwrap_or(Number::Int(1));
    let dtype = a.dtype(l)?;
    let too_many = |a: &Bound<'_>| fail(a.invalid("the range", "has too many numbers"), a.span);
    if step.float() == 0.0 {
        return a.refuse("step", "must not be 0");
    }
    let integers = match (&start, &stop, &step) {
        (Number::Int(start), Number::Int(stop), Number::Int(step)) => Some((*start, *stop, *step)),
        _ => None,
    };
    let natural = if integers.is_some() { DType::Int64 } else { DType::Float64 };
    let len = match integers {
        Some((start, stop, step)) => {
            let distance = if step > 0 { stop - start } else { start - stop };
            if distance <= 0 { 0 } else { (distance - 1) / step.abs() + 1 }
        }
        None => {
            let n = ((stop.float() - start.float()) / step.float()).ceil();
            if n.is_nan() || n > 1e18 {
                return too_many(a);
            }
            n.max(0.0) as i128
        }
    };
    let Ok(len) = u64::try_from(len) else { return too_many(a) };
    let shape = [len];
    let chunks = chunks(l, a, &shape)?;
    let mut node = l.b.iota(&shape, chunks.as_deref()).at(a.span)?;
    match integers {
        Some((start, stop, step)) => {
            let all = [start, stop, step];
            let Some(scalars) = all
                .into_iter()
                .map(|v| Scalar::from_i128(DType::Int64, v))
                .collect::<Option<Vec<Scalar>>>()
            else {
                return too_many(a);
            };
            if step != 1 {
                let step = l.b.constant(scalars[2]).at(a.span)?;
                node = l.b.map(ScalarOp::Mul, &[node, step]).at(a.span)?;
            }
            if start != 0 {
                let start = l.b.constant(scalars[0]).at(a.span)?;
                node = l.b.map(ScalarOp::Add, &[node, start]).at(a.span)?;
            }
        }
        None => {
            // NumPy's step is the difference of the first two numbers after rounding.
            let delta = (start.float() + step.float()) - start.float();
            node = affine(l, a, node, delta, start.float())?;
        }
    }
    node = l.b.cast(node, dtype.unwrap_or(natural)).at(a.span)?;
    finish(l, a, node)
}

/// `float64(node) * scale + offset`.
fn affine(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    node: NodeId,
    scale: f64,
    offset: f64,
) -> Result<NodeId, Error> {
    let mut node = l.b.cast(node, DType::Float64).at(a.span)?;
    let scale = l.b.constant(Scalar::f64(scale)).at(a.span)?;
    node = l.b.map(ScalarOp::Mul, &[node, scale]).at(a.span)?;
    let offset = l.b.constant(Scalar::f64(offset)).at(a.span)?;
    l.b.map(ScalarOp::Add, &[node, offset]).at(a.span)
}

fn linspace(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let start = a.float(l, "start")?.unwrap_or(0.0);
    let stop = a.float(l, "stop")?.unwrap_or(0.0);
    let num = a.int(l, "num")?.unwrap_or(50);
    let Ok(num) = u64::try_from(num) else {
        return a.refuse("num", format!("is {num}; it must be 0 or more"));
    };
    let endpoint = a.expr("endpoint").is_none() || a.flag(l, "endpoint")?;
    let dtype = a.dtype(l)?.unwrap_or(DType::Float64);
    let shape = [num];
    let chunks = chunks(l, a, &shape)?;
    let index = l.b.iota(&shape, chunks.as_deref()).at(a.span)?;
    let parts = if endpoint { num.saturating_sub(1) } else { num };
    let mut node = if parts == 0 {
        affine(l, a, index, stop - start, start)?
    } else {
        let step = (stop - start) / parts as f64;
        if step == 0.0 {
            // The step underflows a float: NumPy divides first.
            let scaled = affine(l, a, index, 1.0 / parts as f64, 0.0)?;
            affine(l, a, scaled, stop - start, start)?
        } else {
            affine(l, a, index, step, start)?
        }
    };
    if endpoint && num > 1 {
        let last = l.b.constant(Scalar::i64(num as i64 - 1)).at(a.span)?;
        let is_last = l.b.map(ScalarOp::Eq, &[index, last]).at(a.span)?;
        let stop = l.b.constant(Scalar::f64(stop)).at(a.span)?;
        node = l.b.map(ScalarOp::Where, &[is_last, stop, node]).at(a.span)?;
    }
    if dtype.is_integer() {
        node = l.b.map(ScalarOp::Floor, &[node]).at(a.span)?;
    }
    node = l.b.cast(node, dtype).at(a.span)?;
    finish(l, a, node)
}

fn eye(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let length = |l: &mut Lowerer<'_, '_>, param: &str| match a.int(l, param)? {
        None => Ok(None),
        Some(v) => match u64::try_from(v) {
            Ok(v) => Ok(Some(v)),
            Err(_) => {
                let name = format!("`{param}`");
                fail(a.invalid(&name, format!("is {v}; it must be 0 or more")), a.place(param))
            }
        },
    };
    let n = length(l, "n")?.unwrap_or(0);
    let m = length(l, "m")?.unwrap_or(n);
    let k = a.int(l, "k")?.unwrap_or(0).clamp(-(1 << 62), 1 << 62);
    let dtype = a.dtype(l)?.unwrap_or(DType::Float64);
    let chunks = chunks(l, a, &[n, m])?;
    let rows = l.b.iota(&[n], None).at(a.span)?;
    let rows = l.b.expand_dims(rows, 1).at(a.span)?;
    let shift = l.b.constant(Scalar::i64(k as i64)).at(a.span)?;
    let rows = l.b.map(ScalarOp::Add, &[rows, shift]).at(a.span)?;
    let columns = l.b.iota(&[m], None).at(a.span)?;
    let on = l.b.map(ScalarOp::Eq, &[rows, columns]).at(a.span)?;
    let mut node = l.b.cast(on, dtype).at(a.span)?;
    if let Some(chunks) = chunks {
        node = l.b.rechunk(node, &chunks).at(a.span)?;
    }
    finish(l, a, node)
}

fn random(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let shape = match a.lengths(l, "shape")? {
        Some(shape) => shape,
        None => match a.name {
            "uniform" | "normal" => a.lengths(l, "size")?.unwrap_or_default(),
            _ => shape(l, a)?,
        },
    };
    let dtype = a.dtype(l)?.unwrap_or(DType::Float64);
    if !dtype.is_float() {
        return a.refuse("dtype", "must be float32 or float64");
    }
    let chunks = chunks(l, a, &shape)?;
    let seed = match a.int(l, "seed")? {
        None => l.seed(a.span),
        Some(v) => match u64::try_from(v) {
            Ok(v) => v,
            Err(_) => return a.refuse("seed", format!("is {v}; it must be 0 to 2^64 - 1")),
        },
    };
    let index = l.b.iota(&shape, chunks.as_deref()).at(a.span)?;
    let normal = matches!(a.name, "normal" | "random_normal");
    let op = match normal {
        true => ScalarOp::RandomNormal { seed },
        false => ScalarOp::RandomUniform { seed },
    };
    let drawn = l.b.map(op, &[index]).at(a.span)?;
    let mut value = Value::Tensor(Tensor::unnamed(drawn, shape.len()));
    let (offset, scale) = if normal {
        (a.value(l, "loc")?, a.value(l, "scale")?)
    } else {
        let (low, high) = (a.value(l, "low")?, a.value(l, "high")?);
        let scale = match (&low, high) {
            (Value::Null, high) => high,
            (low, Value::Null) => l.binary(Binary::Sub, Value::Int(1), low.clone(), a.span)?,
            (low, high) => l.binary(Binary::Sub, high, low.clone(), a.span)?,
        };
        (low, scale)
    };
    if !matches!(scale, Value::Null | Value::Int(1)) {
        value = l.binary(Binary::Mul, value, scale, a.span)?;
    }
    if !matches!(offset, Value::Null | Value::Int(0)) {
        value = l.binary(Binary::Add, value, offset, a.span)?;
    }
    let drawn = l.cast(value, dtype, a.span)?;
    finish(l, a, drawn.node)
}
