//! Reductions over any axes.

mod average;
mod reduction;
pub(super) mod times;

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, types};
use average::average;
use reduction::reduction_name;

pub(super) use reduction::{Reduction, reduction};

const SKIPS: &str =
    "masked cells are skipped, NULL if all are masked; NaN propagates unless `skipna => true`";
const COUNTS: &str = "masked cells are not counted";
const TRUTH: &str = "masked cells are skipped, NULL if all are masked; NaN is true";
const PLACES: &str = "masked cells and NaN are skipped, NULL if no cell is left";
const SUMS: &str = "masked cells and NaN are skipped, NULL if all are masked; nothing but NaN is 0, or 1 of `nanprod`";
const NAN: &str = "masked cells and NaN are skipped; NaN if all cells that are not masked are NaN, NULL if all are masked";

/// The row of a reduction: its name, its result, and its parameters between `axis` and `keepdims`.
macro_rules! reduction {
    ($name:literal, $doc:literal $(, $more:literal)*) => {
        row(
            concat!(
                $name, "(x, axis => NULL", $(", ", $more,)*
                ", keepdims => false, skipna => false)"
            ),
            call,
            $doc,
        )
        .missing(SKIPS)
        .example(concat!("SELECT ", $name, "(t2m, axis => 'time') FROM era5"))
    };
}

/// As `reduction`, for a reduction that skips NaN.
macro_rules! without_nan {
    ($name:literal, $doc:literal $(, $more:literal)*) => {
        row(concat!($name, "(x, axis => NULL", $(", ", $more,)* ", keepdims => false)"), call, $doc)
            .also(&["skipna"])
            .missing(NAN)
            .example(concat!("SELECT ", $name, "(t2m, axis => 'time') FROM era5"))
    };
}

pub(super) const ROWS: &[Row] = &[
    reduction!("sum", "Sum.", "dtype => NULL").dtypes(
        "bool and integers give 64 bits (overflow is an error); floats stay, added in float64",
    ),
    reduction!("prod", "Product.", "dtype => NULL")
        .dtypes("bool and integers give 64 bits; floats stay"),
    reduction!("mean", "Arithmetic mean.", "dtype => NULL")
        .dtypes("bool and integers give float64; floats and datetimes stay"),
    reduction!("avg", "Arithmetic mean; SQL's name.", "dtype => NULL")
        .dtypes("as mean")
        .numpy("numpy.mean"),
    row(
        "average(x, axis => NULL, weights => NULL, keepdims => false, skipna => false)",
        average,
        "Arithmetic mean, each cell counting as its weight; weights of one dimension lie along \
         a single `axis`.",
    )
    .dtypes("as mean")
    .missing(SKIPS)
    .example("SELECT average(t2m, axis => ['lat', 'lon'], weights => cos(radians(lat))) FROM era5")
    .numpy("numpy.average, xarray.DataArray.weighted"),
    reduction!("var", "Variance.", "dtype => NULL", "ddof => 0")
        .dtypes("bool and integers give float64; floats stay"),
    reduction!("std", "Standard deviation.", "dtype => NULL", "ddof => 0").dtypes("as var"),
    reduction!("var_pop", "Variance of a population; SQL's name.")
        .dtypes("as var")
        .numpy("numpy.var"),
    reduction!("var_samp", "Variance of a sample; SQL's name.")
        .dtypes("as var")
        .numpy("numpy.var(x, ddof=1)"),
    reduction!("stddev", "Standard deviation of a sample; SQL's name.")
        .dtypes("as var")
        .numpy("numpy.std(x, ddof=1)"),
    reduction!("stddev_samp", "Standard deviation of a sample; SQL's name.")
        .dtypes("as var")
        .numpy("numpy.std(x, ddof=1)"),
    reduction!("stddev_pop", "Standard deviation of a population; SQL's name.")
        .dtypes("as var")
        .numpy("numpy.std"),
    reduction!("min", "Least value."),
    reduction!("max", "Greatest value."),
    reduction!("ptp", "Greatest less least value.")
        .dtypes("numeric; datetimes give seconds in float64"),
    reduction!("any", "Is any cell true, or not zero?")
        .dtypes("bool and numeric give bool")
        .missing(TRUTH),
    reduction!("all", "Are all cells true, or not zero?")
        .dtypes("bool and numeric give bool")
        .missing(TRUTH),
    reduction!("bool_and", "Are all cells true? SQL's name.")
        .dtypes("bool")
        .missing("masked cells are skipped, NULL if all are masked")
        .example("SELECT bool_and(t2m > 273.15, axis => 'time') FROM era5")
        .numpy("numpy.all"),
    reduction!("bool_or", "Is any cell true? SQL's name.")
        .dtypes("bool")
        .missing("masked cells are skipped, NULL if all are masked")
        .example("SELECT bool_or(t2m > 273.15, axis => 'time') FROM era5")
        .numpy("numpy.any"),
    reduction!("count", "Number of cells that are not masked.")
        .dtypes("any give int64")
        .missing(COUNTS)
        .numpy("xarray.DataArray.count, numpy.ma.count"),
    reduction!("count_nonzero", "Number of cells that are true, or not zero.")
        .dtypes("bool and numeric give int64")
        .missing(COUNTS),
    reduction!(
        "argmin",
        "Position of the first least value; of all cells in row-major order without `axis`."
    )
    .dtypes("any give int64"),
    reduction!(
        "argmax",
        "Position of the first greatest value; of all cells in row-major order without `axis`."
    )
    .dtypes("any give int64"),
    without_nan!("nansum", "Sum without NaN.", "dtype => NULL").dtypes("as sum").missing(SUMS),
    without_nan!("nanprod", "Product without NaN.", "dtype => NULL")
        .dtypes("as prod")
        .missing(SUMS),
    without_nan!("nanmean", "Mean without NaN.", "dtype => NULL").dtypes("as mean"),
    without_nan!("nanvar", "Variance without NaN.", "dtype => NULL", "ddof => 0").dtypes("as var"),
    without_nan!("nanstd", "Standard deviation without NaN.", "dtype => NULL", "ddof => 0")
        .dtypes("as var"),
    without_nan!("nanmin", "Least value but NaN."),
    without_nan!("nanmax", "Greatest value but NaN."),
    without_nan!("nanargmin", "Position of the first least value but NaN; NULL if all are NaN.")
        .dtypes("any give int64")
        .missing(PLACES),
    without_nan!("nanargmax", "Position of the first greatest value but NaN; NULL if all are NaN.")
        .dtypes("any give int64")
        .missing(PLACES),
];

fn call(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let ddof = ddof(l, a)?;
    let (name, nan) = match a.name.strip_prefix("nan") {
        Some(name) => (name, true),
        None => (a.name, false),
    };
    let Some(kind) = reduction(name, ddof) else {
        return crate::lower::unsupported(a.name, a.span);
    };
    let skipna = a.flag(l, "skipna")? || nan;
    let keepdims = a.flag(l, "keepdims")?;
    let dtype = a.dtype(l)?;
    let rank = t.dims.len();
    let axes = match kind {
        Reduction::ArgMin | Reduction::ArgMax => a.axis(l, &t, "axis")?.map(|axis| vec![axis]),
        _ => a.axes(l, &t, "axis")?,
    };
    let axes = axes.unwrap_or_else(|| (0..rank).collect());
    let how: Vec<AxisReduce> = (0..rank)
        .map(|axis| if axes.contains(&axis) { AxisReduce::All } else { AxisReduce::Keep })
        .collect();
    let dims = t.dims.clone();
    let node = reduce(l, &t, kind, &how, dtype, skipna, a.span)?;
    Ok(Value::Tensor(reduced(l, Tensor::new(node, dims), &axes, keepdims, a.span)?))
}

/// Float cells with NaN masked.
pub(super) fn without_nan(l: &mut Lowerer<'_, '_>, x: NodeId, span: Span) -> Result<NodeId, Error> {
    let nan = l.b.map(ScalarOp::IsNan, &[x]).at(span)?;
    let number = l.b.map(ScalarOp::Not, &[nan]).at(span)?;
    l.b.map_op(MapOp::Mask, &[x, number]).at(span)
}

/// The truth value of each cell: true if it is true or not zero.
pub(super) fn truth(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    name: &str,
    span: Span,
) -> Result<NodeId, Error> {
    let from = l.b.dtype(x);
    if from == DType::Bool {
        return Ok(x);
    }
    if !from.is_numeric() {
        return fail(types(name, vec![from.name()]), span);
    }
    let zero = l.b.constant(Scalar::zero(from)).at(span)?;
    l.b.map(ScalarOp::Ne, &[x, zero]).at(span)
}

/// The result of a reduction: its axes are dropped, or have length 1 and no labels.
fn reduced(
    l: &mut Lowerer<'_, '_>,
    mut t: Tensor,
    axes: &[usize],
    keepdims: bool,
    span: Span,
) -> Result<Tensor, Error> {
    if keepdims {
        for &axis in axes {
            t.dims[axis] = t.dims[axis].bare();
        }
        return Ok(t);
    }
    t.node = l.b.squeeze(t.node, axes).at(span)?;
    let mut axis = 0;
    t.dims.retain(|_| {
        axis += 1;
        !axes.contains(&(axis - 1))
    });
    Ok(t)
}

/// `ddof`, if it is given.
pub(super) fn ddof(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Option<u32>, Error> {
    match a.int(l, "ddof")? {
        None => Ok(None),
        Some(v) => match u32::try_from(v) {
            Ok(v) => Ok(Some(v)),
            Err(_) => a.refuse("ddof", format!("is {v}; it must be 0 or more")),
        },
    }
}

/// A reduction; reduced axes have length 1 (or one position per group).
pub(super) fn reduce(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    kind: Reduction,
    how: &[AxisReduce],
    dtype: Option<DType>,
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let from = l.b.dtype(t.node);
    if from.is_datetime()
        && let Some(result) = times::reduce(l, t.node, kind, how, dtype, span)?
    {
        return Ok(result);
    }
    let skip = skipna && from.is_float();
    let mut x = t.node;
    if skip {
        // NumPy's sum of only NaN is 0: NaN counts as the neutral value.
        x = match kind {
            Reduction::Sum | Reduction::Prod => {
                let nan = l.b.map(ScalarOp::IsNan, &[x]).at(span)?;
                let neutral = if kind == Reduction::Sum { 0.0 } else { 1.0 };
                let neutral = l.b.constant(Scalar::from_f64(from, neutral)).at(span)?;
                l.b.map(ScalarOp::Where, &[nan, neutral, x]).at(span)?
            }
            _ => without_nan(l, x, span)?,
        };
    }
    let name = reduction_name(kind);
    let float = |l: &mut Lowerer<'_, '_>, x| {
        let to = match dtype {
            Some(d) if d.is_float() => d,
            Some(d) => return fail(types(name, vec![d.name()]), span),
            None if from.is_float() => from,
            None => DType::Float64,
        };
        l.b.cast(x, to).at(span)
    };
    let result = match kind {
        Reduction::Sum | Reduction::Prod => {
            let op = if kind == Reduction::Sum { ReduceKind::Sum } else { ReduceKind::Prod };
            match dtype {
                None => l.b.reduce(x, op, how).at(span)?,
                Some(d) => {
                    let x = l.b.cast(x, d).at(span)?;
                    let total = l.b.reduce(x, op, how).at(span)?;
                    l.b.cast(total, d).at(span)?
                }
            }
        }
        Reduction::Mean => {
            let x = float(l, x)?;
            l.b.reduce(x, ReduceKind::Mean, how).at(span)?
        }
        Reduction::Var(ddof) => {
            let x = float(l, x)?;
            l.b.reduce(x, ReduceKind::Var { ddof }, how).at(span)?
        }
        Reduction::Std(ddof) => {
            let x = float(l, x)?;
            let var = l.b.reduce(x, ReduceKind::Var { ddof }, how).at(span)?;
            l.b.map(ScalarOp::Sqrt, &[var]).at(span)?
        }
        Reduction::Min => l.b.reduce(x, ReduceKind::Min, how).at(span)?,
        Reduction::Max => l.b.reduce(x, ReduceKind::Max, how).at(span)?,
        Reduction::Ptp => {
            let high = l.b.reduce(x, ReduceKind::Max, how).at(span)?;
            let low = l.b.reduce(x, ReduceKind::Min, how).at(span)?;
            l.b.map(ScalarOp::Sub, &[high, low]).at(span)?
        }
        Reduction::Any | Reduction::All => {
            let x = truth(l, x, name, span)?;
            let op = if kind == Reduction::Any { ReduceKind::Any } else { ReduceKind::All };
            let answer = l.b.reduce(x, op, how).at(span)?;
            // Skipped NaN are not masked cells.
            let nullable = l.b.node(t.node).nullable;
            if nullable { no_rows(l, answer, t.node, how, span)? } else { answer }
        }
        Reduction::BoolOr => bools(l, x, ReduceKind::Any, name, how, span)?,
        Reduction::BoolAnd => bools(l, x, ReduceKind::All, name, how, span)?,
        Reduction::Count => l.b.reduce(x, ReduceKind::Count, how).at(span)?,
        Reduction::CountNonzero => {
            let mut x = truth(l, x, name, span)?;
            if l.b.node(x).nullable {
                let no = l.b.constant(Scalar::bool(false)).at(span)?;
                x = l.b.map_op(MapOp::Coalesce, &[x, no]).at(span)?;
            }
            l.b.reduce(x, ReduceKind::Sum, how).at(span)?
        }
        Reduction::ArgMin => l.b.reduce(x, ReduceKind::ArgMin, how).at(span)?,
        Reduction::ArgMax => l.b.reduce(x, ReduceKind::ArgMax, how).at(span)?,
    };
    match skip && !matches!(kind, Reduction::Sum | Reduction::Prod) {
        true => nan_of_nothing(l, result, t.node, how, span),
        false => Ok(result),
    }
}

/// SQL's `bool_or` and `bool_and`, whose result for no rows is NULL.
fn bools(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    op: ReduceKind,
    name: &str,
    how: &[AxisReduce],
    span: Span,
) -> Result<NodeId, Error> {
    if l.b.dtype(x) != DType::Bool {
        return fail(types(name, vec![l.b.dtype(x).name()]), span);
    }
    let answer = l.b.reduce(x, op, how).at(span)?;
    no_rows(l, answer, x, how, span)
}

/// The results, NULL where `x` has no cells, or only masked ones.
fn no_rows(
    l: &mut Lowerer<'_, '_>,
    answer: NodeId,
    x: NodeId,
    how: &[AxisReduce],
    span: Span,
) -> Result<NodeId, Error> {
    let there = l.b.map_op(MapOp::IsValid, &[x]).at(span)?;
    let some = l.b.reduce(there, ReduceKind::Any, how).at(span)?;
    l.b.map_op(MapOp::Mask, &[answer, some]).at(span)
}

/// Replaces NULL by NaN in a result over the cells without NaN, where unmasked cells exist: all of those were NaN.
/// `x` are the cells with NaN.
pub(super) fn nan_of_nothing(
    l: &mut Lowerer<'_, '_>,
    result: NodeId,
    x: NodeId,
    how: &[AxisReduce],
    span: Span,
) -> Result<NodeId, Error> {
    let d = l.b.dtype(result);
    if !d.is_float() || !l.b.node(result).nullable {
        return Ok(result);
    }
    let mut nan = l.b.constant(Scalar::from_f64(d, f64::NAN)).at(span)?;
    if l.b.node(x).nullable {
        nan = no_rows(l, nan, x, how, span)?;
    }
    l.b.map_op(MapOp::Coalesce, &[result, nan]).at(span)
}
