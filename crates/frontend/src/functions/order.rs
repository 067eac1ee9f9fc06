//! Sorting and order statistics.

use std::sync::Arc;

use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Attrs, Coord, CoordValues};
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{AxisReduce, NodeId};
use tessera_planner::region::cells;
use tessera_planner::sort::{QuantileMethod, Quantiles, SortOrder, SortWhat};

use super::reduce::times;
use super::{Bound, Row, reduce, row, scan};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail};

const LAST: &str = "NaN come after the numbers, masked cells after those, in either direction";
const INTERPOLATES: &str =
    "bool and integers give float64 where the method interpolates; floats and datetimes stay";
const PROPAGATES: &str =
    "masked cells are skipped, NULL if all are masked; NaN propagates unless `skipna => true`";
const SKIPPED: &str = "masked cells and NaN are skipped; NaN if all cells that are not masked are NaN, NULL if all are masked";

pub(super) const ROWS: &[Row] = &[
    row(
        "sort(x, axis => -1, descending => false)",
        sort,
        "Each line along a dimension in order; with `axis => NULL` all cells as one line. \
         Labels of the dimension go.",
    )
    .missing(LAST)
    .example("SELECT sort(x, axis => 0) FROM x"),
    row(
        "argsort(x, axis => -1, descending => false)",
        sort,
        "The positions that bring each line in order; equal cells keep theirs.",
    )
    .dtypes("any give int64")
    .missing(LAST)
    .example("SELECT argsort(x, axis => 0) FROM x")
    .numpy("numpy.argsort(x, kind='stable')"),
    row(
        "topk(x, k, axis => -1, largest => true)",
        sort,
        "The k greatest cells of each line from the greatest on, or the least from the least \
         on; all if there are fewer.",
    )
    .missing(LAST)
    .example("SELECT topk(x, 3, axis => 0) FROM x")
    .numpy("numpy.sort(x)[..., ::-1][..., :k]"),
    row(
        "argtopk(x, k, axis => -1, largest => true)",
        sort,
        "The positions of the k greatest (or least) cells of each line, in the order of topk.",
    )
    .dtypes("any give int64")
    .missing(LAST)
    .example("SELECT argtopk(x, 3, axis => 0) FROM x")
    .numpy("numpy.argsort(-x, kind='stable')[..., :k]"),
    row(
        "partition(x, kth, axis => -1)",
        sort,
        "Each line so that the cell at `kth` is the one that a sort puts there, with none \
         greater before it and none less after it: here a sort, so the others are in order \
         too.",
    )
    .missing(LAST)
    .example("SELECT partition(x, 2, axis => 0) FROM x"),
    row(
        "argpartition(x, kth, axis => -1)",
        sort,
        "The positions that bring each line into the order of partition.",
    )
    .dtypes("any give int64")
    .missing(LAST)
    .example("SELECT argpartition(x, 2, axis => 0) FROM x"),
    row(
        "median(x, axis => NULL, keepdims => false, skipna => false)",
        quantile,
        "The middle cell, or the mean of the two in the middle; exact.",
    )
    .dtypes("bool and integers give float64; floats and datetimes stay")
    .missing(PROPAGATES)
    .example("SELECT median(t2m, axis => 'time') FROM era5"),
    row("nanmedian(x, axis => NULL, keepdims => false)", quantile, "Median without NaN.")
        .also(&["skipna"])
        .dtypes("as median")
        .missing(SKIPPED)
        .example("SELECT nanmedian(t2m, axis => 'time') FROM era5"),
    row(
        "quantile(x, q, axis => NULL, method => 'linear', keepdims => false, skipna => false)",
        quantile,
        "The cell below which the part `q` of the cells lies, exact; of a list of q one for \
         each along a new first dimension `quantile`. `method` is one of NumPy's thirteen.",
    )
    .dtypes(INTERPOLATES)
    .missing(PROPAGATES)
    .example("SELECT quantile(t2m, [0.05, 0.5, 0.95], axis => 'time') FROM era5")
    .numpy("numpy.quantile, xarray.DataArray.quantile"),
    row(
        "percentile(x, q, axis => NULL, method => 'linear', keepdims => false, skipna => \
         false)",
        quantile,
        "Quantile with `q` from 0 to 100.",
    )
    .dtypes(INTERPOLATES)
    .missing(PROPAGATES)
    .example("SELECT percentile(t2m, 95, axis => 'time') FROM era5"),
    row(
        "nanquantile(x, q, axis => NULL, method => 'linear', keepdims => false, skipna => \
         false)",
        quantile,
        "Quantile without NaN.",
    )
    .dtypes(INTERPOLATES)
    .missing(SKIPPED)
    .example("SELECT nanquantile(t2m, 0.9, axis => 'time') FROM era5"),
    row(
        "nanpercentile(x, q, axis => NULL, method => 'linear', keepdims => false, skipna => \
         false)",
        quantile,
        "Percentile without NaN.",
    )
    .dtypes(INTERPOLATES)
    .missing(SKIPPED)
    .example("SELECT nanpercentile(t2m, 90, axis => 'time') FROM era5"),
];

fn sort(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let axis = match a.axis(l, &t, "axis")? {
        Some(axis) => axis,
        None if a.expr("axis").is_some() => {
            t = scan::flat(l, t, a.span)?;
            0
        }
        None if t.dims.is_empty() => {
            return Err(PlanError::Axis { operation: a.name.into(), axis: -1, rank: 0 }).at(a.span);
        }
        None => t.dims.len() - 1,
    };
    let length = l.b.shape(t.node)[axis];
    let (what, name) = match a.name.strip_prefix("arg") {
        Some(name) => (SortWhat::Positions, name),
        None => (SortWhat::Values, a.name),
    };
    let mut limit = None;
    let descending = match name {
        "topk" => {
            let k = a.int(l, "k")?.unwrap_or(-1);
            match u64::try_from(k) {
                Ok(k) => limit = Some(k),
                Err(_) => return a.refuse("k", format!("is {k}; it must be 0 or more")),
            }
            a.expr("largest").is_none() || a.flag(l, "largest")?
        }
        "partition" => {
            for k in a.ints(l, "kth")?.unwrap_or_default() {
                let n = i128::from(length);
                if k < -n || k >= n {
                    let reason = format!("is {k}; it must be a position among {length}");
                    return a.refuse("kth", reason);
                }
            }
            false
        }
        _ => a.flag(l, "descending")?,
    };
    let order = SortOrder { descending, ..SortOrder::default() };
    let node = l.b.sort(t.node, axis, what, order, limit).at(a.span)?;
    let mut dims = t.dims;
    dims[axis] = dims[axis].bare();
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

fn quantile(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let (name, nan) = match a.name.strip_prefix("nan") {
        Some(name) => (name, true),
        None => (a.name, false),
    };
    let skipna = a.flag(l, "skipna")? || nan;
    let keepdims = a.flag(l, "keepdims")?;
    let rank = t.dims.len();
    let axes = a.axes(l, &t, "axis")?.unwrap_or_else(|| (0..rank).collect());
    let (probabilities, several) = match name {
        "median" => (vec![0.5], false),
        "percentile" => probabilities(l, a, 100.0)?,
        _ => probabilities(l, a, 1.0)?,
    };
    let method = match a.text(l, "method")? {
        None => QuantileMethod::Linear,
        Some(name) => match QuantileMethod::parse(&name) {
            Some(method) => method,
            None => {
                let known: Vec<String> =
                    QuantileMethod::names().map(|n| format!("'{n}'")).collect();
                let reason = format!("is '{name}'; it must be one of {}", known.join(", "));
                return a.refuse("method", reason);
            }
        },
    };
    let quantiles = Quantiles::new(&probabilities, method);
    // The last axis now has one position per probability.
    let mut node = statistics(l, &t, &axes, quantiles, skipna, a.span)?;
    let mut dims: Vec<Dim> =
        (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| t.dims[axis].clone()).collect();
    let last = dims.len();
    if several {
        let mut order: Vec<usize> = (0..last).collect();
        order.insert(0, last);
        node = l.b.transpose(node, &order).at(a.span)?;
    } else {
        node = l.b.squeeze(node, &[last]).at(a.span)?;
    }
    let lead = usize::from(several);
    if keepdims {
        for axis in 0..rank {
            if axes.contains(&axis) {
                node = l.b.expand_dims(node, lead + axis).at(a.span)?;
                dims.insert(axis, t.dims[axis].bare());
            }
        }
    }
    if several {
        let label: Arc<str> = "quantile".into();
        let coord = Coord {
            name: label.clone(),
            dim: label.clone(),
            values: CoordValues::Float(DType::Float64, probabilities.into()),
            attrs: Attrs::new(),
        };
        dims.insert(0, Dim { name: Some(label), coord: Some(Arc::new(coord)), group: None });
        dims = crate::lower::unique(dims);
    }
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

/// A quantile over some axes, which are dropped.
pub(super) fn quantile_over(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    axes: &[usize],
    q: f64,
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let quantiles = Quantiles::new(&[q], QuantileMethod::Linear);
    let node = statistics(l, t, axes, quantiles, skipna, span)?;
    let last = l.b.shape(node).len() - 1;
    l.b.squeeze(node, &[last]).at(span)
}

/// Order statistics over some axes. The others keep their order; a new last axis has one position per probability.
fn statistics(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    axes: &[usize],
    quantiles: Quantiles,
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let mut x = t.node;
    let from = l.b.dtype(x);
    let skip = skipna && from.is_float();
    if skip {
        x = reduce::without_nan(l, x, span)?;
    }
    if !quantiles.method.is_discrete() && !from.is_float() && !from.is_datetime() {
        x = l.b.cast(x, DType::Float64).at(span)?;
    }
    let rank = t.dims.len();
    if from.is_datetime() && !quantiles.method.is_discrete() {
        let mut how = vec![AxisReduce::Keep; rank];
        axes.iter().for_each(|&axis| how[axis] = AxisReduce::All);
        let (since, least) = times::since_least(l, x, &how, span)?;
        let since = Tensor::new(since, t.dims.clone());
        let result = statistics(l, &since, axes, quantiles, false, span)?;
        let least = l.b.squeeze(least, axes).at(span)?;
        let least = l.b.expand_dims(least, rank - axes.len()).at(span)?;
        return times::after_least(l, result, least, from, span);
    }
    let kept: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
    x = lines_of(l, x, &order, kept.len(), span)?;
    let result = l.b.quantile(x, kept.len(), quantiles).at(span)?;
    if !skip {
        return Ok(result);
    }
    // The original cells, in the same lines.
    let mut how = vec![AxisReduce::Keep; kept.len()];
    how.push(AxisReduce::All);
    let whole = lines_of(l, t.node, &order, kept.len(), span)?;
    reduce::nan_of_nothing(l, result, whole, &how, span)
}

/// Lines of cells along a last axis: transposes to `order` and merges the axes from `kept` on.
fn lines_of(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    order: &[usize],
    kept: usize,
    span: Span,
) -> Result<NodeId, Error> {
    let shape = l.b.shape(x);
    let x = l.b.transpose(x, order).at(span)?;
    if order.len() == kept + 1 {
        return Ok(x);
    }
    let mut flat: Vec<u64> = order[..kept].iter().map(|&axis| shape[axis]).collect();
    let lengths: Vec<u64> = order[kept..].iter().map(|&axis| shape[axis]).collect();
    match cells(&lengths) {
        Some(n) => flat.push(n),
        None => return Err(PlanError::TooLarge { shape: shape.to_vec() }).at(span),
    }
    l.b.reshape(x, &flat).at(span)
}

/// The probabilities, and true if they are a list.
fn probabilities(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    whole: f64,
) -> Result<(Vec<f64>, bool), Error> {
    let value = a.value(l, "q")?;
    let place = a.place("q");
    let tensor = match value {
        Value::Null => return fail(a.invalid("`q`", "must be given"), place),
        value => l.tensor(value, place)?,
    };
    if tensor.dims.len() > 1 {
        return fail(a.invalid("`q`", "must be a number or a list of numbers"), place);
    }
    let known = l.cells(&tensor, "the probabilities of a quantile", place)?;
    let mut out = Vec::with_capacity(known.len());
    for cell in known.iter() {
        match cell.map(|v| v.as_f64()) {
            Some(q) if (0.0..=whole).contains(&q) => out.push(q / whole),
            Some(q) => {
                let reason = format!("is {q}; it must be 0 to {whole}");
                return fail(a.invalid("`q`", reason), place);
            }
            None => return fail(a.invalid("`q`", "must not be NULL"), place),
        }
    }
    Ok((out, !tensor.dims.is_empty()))
}
