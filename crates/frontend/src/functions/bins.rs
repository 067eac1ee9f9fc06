//! Counts of cells by bins and codes: histograms and `bincount`.

use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, ConstArray, MapOp, NodeId};
use tessera_planner::lookup::LookupKind;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;

use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::{Record, Tensor, Value};
use crate::lower::{At, Lowerer, evaluate, fail, unsupported};

/// Maximum bins and codes: every chunk of cells has a count for each.
const BINS_MAX: u64 = 1 << 24;

pub(super) const ROWS: &[Row] = &[
    row(
        "histogram(x, bins => 10 | [edge, …], range => NULL, weights => NULL, density => \
         false)",
        histogram,
        "Cells by bins: a record of `counts` and `edges`. Each bin has its lower edge, the \
         last one both. Of a number of bins the edges are even from the least to the greatest \
         cell, or over `range`.",
    )
    .dtypes("numeric; counts are int64, or float64 with `weights` or `density`")
    .missing(
        "masked cells, NaN and what lies beyond the edges are left out; without `range` NaN is \
         an error",
    )
    .example("SELECT histogram(x, bins => 100, range => [-5.0, 5.0]).counts FROM x"),
    row(
        "histogram2d(x, y, bins => 10 | [nx, ny], range => NULL, weights => NULL)",
        histogram2d,
        "Cells of two tensors by bins of both: a record of `counts` [x, y], `x_edges` and \
         `y_edges`; `range` is [[x_lo, x_hi], [y_lo, y_hi]].",
    )
    .dtypes("numeric; counts are float64")
    .missing("as histogram")
    .example("SELECT histogram2d(u, v, bins => 20) FROM wind"),
    row(
        "bincount(x, weights => NULL, minlength => 0)",
        bincount,
        "How many cells have each value 0, 1, …, or the sums of their weights; a negative \
         value is an error. The length is that of the greatest value, at least `minlength`.",
    )
    .dtypes("integers give int64, or float64 with weights")
    .missing("masked cells are left out")
    .example("SELECT bincount(k) FROM x"),
];

/// Even edges over a known range, with NumPy's formula.
fn even(lo: f64, hi: f64, bins: u64) -> Vec<f64> {
    let step = (hi - lo) / bins as f64;
    (0..=bins).map(|i| if i == bins { hi } else { i as f64 * step + lo }).collect()
}

fn check_bins(a: &Bound<'_>, bins: i128) -> Result<u64, Error> {
    match u64::try_from(bins) {
        Ok(n) if (1..=BINS_MAX).contains(&n) => Ok(n),
        _ => a.refuse("bins", format!("is {bins}; it must be 1 to {BINS_MAX}")),
    }
}

/// The two ends of a range, finite and ascending.
fn ends(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, value: Value) -> Result<Option<(f64, f64)>, Error> {
    let place = a.place("range");
    let tensor = match value {
        Value::Null => return Ok(None),
        value => l.tensor(value, place)?,
    };
    let known = l.cells(&tensor, "the range of a histogram", place)?;
    let (lo, hi) = match known[..] {
        [Some(lo), Some(hi)] => (lo.as_f64(), hi.as_f64()),
        _ => return fail(a.invalid("`range`", "must be a list of two numbers"), place),
    };
    if !lo.is_finite() || !hi.is_finite() || lo > hi {
        let reason = format!("is {lo} to {hi}; it must be finite and rise");
        return fail(a.invalid("`range`", reason), place);
    }
    // NumPy widens an empty range.
    Ok(Some(if lo == hi { (lo - 0.5, hi + 0.5) } else { (lo, hi) }))
}

/// The number of bins, or their edges.
enum Bins {
    Even(u64),
    Edges(NodeId, u64),
}

fn bins(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, value: Value) -> Result<Bins, Error> {
    let place = a.place("bins");
    match value {
        Value::Null => Ok(Bins::Even(10)),
        Value::Int(n) => check_bins(a, n).map(Bins::Even),
        Value::Str(name) => {
            unsupported(&format!("the rule '{name}' for the number of bins"), place)
        }
        other => {
            let t = l.tensor(other, place)?;
            match l.b.shape(t.node)[..] {
                [] => match l.known_scalar(&t, "the number of bins", place)? {
                    Some(n) if l.b.dtype(t.node).is_integer() => {
                        check_bins(a, n.as_i128()).map(Bins::Even)
                    }
                    _ => fail(a.invalid("`bins`", "must be an integer or edges"), place),
                },
                [n] if (2..=BINS_MAX).contains(&n) => Ok(Bins::Edges(t.node, n)),
                _ => fail(a.invalid("`bins`", "must be at least two edges, in a list"), place),
            }
        }
    }
}

/// Cells and edges in one type, and the number of bins.
fn edges_for(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    x: NodeId,
    bins: Bins,
    range: Option<(f64, f64)>,
) -> Result<(NodeId, NodeId, u64), Error> {
    let from = l.b.dtype(x);
    if !from.is_numeric() && from != DType::Bool {
        return fail(crate::lower::types(a.name, vec![from.name()]), a.span);
    }
    let real = if from.is_float() { from } else { DType::Float64 };
    let n = match bins {
        Bins::Edges(edges, n) => {
            let known = l.b.dtype(edges);
            let Some(both) = from.promote(known) else {
                return fail(crate::lower::types(a.name, vec![from.name(), known.name()]), a.span);
            };
            let x = l.b.cast(x, both).at(a.span)?;
            let edges = l.b.cast(edges, both).at(a.span)?;
            return Ok((x, edges, n - 1));
        }
        Bins::Even(n) => n,
    };
    let wide = l.b.cast(x, real).at(a.span)?;
    let empty = cells(&l.b.shape(x)) == Some(0);
    if let Some((lo, hi)) = range.or(empty.then_some((0.0, 1.0))) {
        let edges: Vec<Option<Scalar>> =
            even(lo, hi, n).into_iter().map(|e| Some(Scalar::from_f64(real, e))).collect();
        let edges = l.b.array(ConstArray::new(real, &[n + 1], &edges)).at(a.span)?;
        return Ok((wide, edges, n));
    }
    // The range of the data, known only when the data is read.
    let all = vec![AxisReduce::All; l.b.shape(wide).len()];
    let mut ends = Vec::with_capacity(2);
    for (kind, without) in [(ReduceKind::Min, 0.0), (ReduceKind::Max, 1.0)] {
        let end = l.b.reduce(wide, kind, &all).at(a.span)?;
        let end = l.b.reshape(end, &[]).at(a.span)?;
        let without = l.b.constant(Scalar::from_f64(real, without)).at(a.span)?;
        ends.push(l.b.map_op(MapOp::Coalesce, &[end, without]).at(a.span)?);
    }
    let constant = |l: &mut Lowerer<'_, '_>, v: f64| l.b.constant(Scalar::from_f64(real, v));
    let same = l.b.map(ScalarOp::Eq, &[ends[0], ends[1]]).at(a.span)?;
    let half = constant(l, 0.5).at(a.span)?;
    let below = l.b.map(ScalarOp::Sub, &[ends[0], half]).at(a.span)?;
    let above = l.b.map(ScalarOp::Add, &[ends[1], half]).at(a.span)?;
    let lo = l.b.map(ScalarOp::Where, &[same, below, ends[0]]).at(a.span)?;
    let hi = l.b.map(ScalarOp::Where, &[same, above, ends[1]]).at(a.span)?;
    let parts = constant(l, n as f64).at(a.span)?;
    let length = l.b.map(ScalarOp::Sub, &[hi, lo]).at(a.span)?;
    let step = l.b.map(ScalarOp::Div, &[length, parts]).at(a.span)?;
    let index = l.b.iota(&[n + 1], None).at(a.span)?;
    let place = l.b.cast(index, real).at(a.span)?;
    let moved = l.b.map(ScalarOp::Mul, &[place, step]).at(a.span)?;
    let edges = l.b.map(ScalarOp::Add, &[moved, lo]).at(a.span)?;
    let last = l.b.constant(Scalar::i64(n as i64)).at(a.span)?;
    let is_last = l.b.map(ScalarOp::Eq, &[index, last]).at(a.span)?;
    let edges = l.b.map(ScalarOp::Where, &[is_last, hi, edges]).at(a.span)?;
    Ok((wide, edges, n))
}

/// Sums by code, 1-d.
fn counted(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    codes: NodeId,
    weights: Option<NodeId>,
    count: u64,
    strict: bool,
) -> Result<NodeId, Error> {
    let node = l.b.bin(codes, weights, count, strict).at(a.span)?;
    let lead: Vec<usize> = (0..l.b.shape(node).len() - 1).collect();
    l.b.squeeze(node, &lead).at(a.span)
}

fn histogram(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.tensor(l, "x")?;
    let value = a.value(l, "bins")?;
    let how = bins(l, a, value)?;
    let range = a.value(l, "range")?;
    let range = ends(l, a, range)?;
    let density = a.flag(l, "density")?;
    let (x, weights) = weighed(l, a, x)?;
    let (cells, edges, n) = edges_for(l, a, x, how, range)?;
    let codes = l.b.lookup(cells, &[edges], LookupKind::Bins).at(a.span)?;
    let mut counts = counted(l, a, codes, weights, n, false)?;
    if density {
        let wide = l.b.cast(counts, DType::Float64).at(a.span)?;
        let edges = l.b.cast(edges, DType::Float64).at(a.span)?;
        let upper = l.b.slice(edges, 0, 1, 1, n).at(a.span)?;
        let lower = l.b.slice(edges, 0, 0, 1, n).at(a.span)?;
        let width = l.b.map(ScalarOp::Sub, &[upper, lower]).at(a.span)?;
        let total = l.b.reduce_axes(wide, ReduceKind::Sum, &[0]).at(a.span)?;
        let part = l.b.map(ScalarOp::Div, &[wide, width]).at(a.span)?;
        counts = l.b.map(ScalarOp::Div, &[part, total]).at(a.span)?;
    }
    Ok(Value::Record(Record {
        of: "histogram".into(),
        named: false,
        fields: vec![
            ("counts".into(), Tensor::unnamed(counts, 1)),
            ("edges".into(), Tensor::unnamed(edges, 1)),
        ],
    }))
}

/// Cells and their weights, in one shape.
fn weighed(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    x: Tensor,
) -> Result<(NodeId, Option<NodeId>), Error> {
    let weights = match a.value(l, "weights")? {
        Value::Null => return Ok((x.node, None)),
        value => l.tensor(value, a.place("weights"))?,
    };
    let (nodes, _) = l.align(a.name, vec![x, weights], a.span)?;
    let shapes = [l.b.shape(nodes[0]), l.b.shape(nodes[1])];
    let both = tessera_planner::build::broadcast_shapes(a.name, &shapes).at(a.span)?;
    let x = l.b.broadcast_to(nodes[0], &both).at(a.span)?;
    let weights = l.b.broadcast_to(nodes[1], &both).at(a.span)?;
    let weights = l.b.cast(weights, DType::Float64).at(a.span)?;
    Ok((x, Some(weights)))
}

fn histogram2d(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.tensor(l, "x")?;
    let y = a.tensor(l, "y")?;
    let mut sides = vec![x, y];
    let weights = match a.value(l, "weights")? {
        Value::Null => None,
        value => Some(l.tensor(value, a.place("weights"))?),
    };
    sides.extend(weights);
    let (nodes, _) = l.align(a.name, sides, a.span)?;
    let shapes: Vec<_> = nodes.iter().map(|&n| l.b.shape(n)).collect();
    let both = tessera_planner::build::broadcast_shapes(a.name, &shapes).at(a.span)?;
    let mut wide = Vec::with_capacity(nodes.len());
    for node in nodes {
        wide.push(l.b.broadcast_to(node, &both).at(a.span)?);
    }
    let how = match a.value(l, "bins")? {
        Value::List(items) if items.len() == 2 => items,
        one => vec![one.clone(), one],
    };
    let ranges = match a.value(l, "range")? {
        Value::Null => vec![Value::Null, Value::Null],
        Value::List(items) if items.len() == 2 => items,
        _ => return a.refuse("range", "must be two pairs"),
    };
    let (mut codes, mut edges, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for ((&node, how), range) in wide.iter().zip(how).zip(ranges) {
        let how = bins(l, a, how)?;
        let range = ends(l, a, range)?;
        // Edges are float64 for any type of cells, as in NumPy.
        let node = l.b.cast(node, DType::Float64).at(a.span)?;
        let (cells, table, n) = edges_for(l, a, node, how, range)?;
        codes.push(l.b.lookup(cells, &[table], LookupKind::Bins).at(a.span)?);
        edges.push(table);
        counts.push(n);
    }
    if counts[0].saturating_mul(counts[1]) > BINS_MAX {
        let reason =
            format!("are {} by {}; together at most {BINS_MAX} are allowed", counts[0], counts[1]);
        return a.refuse("bins", reason);
    }
    // A pair with one value out of range is out of range.
    let zero = l.b.constant(Scalar::i64(0)).at(a.span)?;
    let columns = l.b.constant(Scalar::i64(counts[1] as i64)).at(a.span)?;
    let row = l.b.map(ScalarOp::Mul, &[codes[0], columns]).at(a.span)?;
    let cell = l.b.map(ScalarOp::Add, &[row, codes[1]]).at(a.span)?;
    let inside_y = l.b.map(ScalarOp::Ge, &[codes[1], zero]).at(a.span)?;
    let outside = l.b.constant(Scalar::i64(-1)).at(a.span)?;
    let cell = l.b.map(ScalarOp::Where, &[inside_y, cell, outside]).at(a.span)?;
    let inside_x = l.b.map(ScalarOp::Ge, &[codes[0], zero]).at(a.span)?;
    let cell = l.b.map(ScalarOp::Where, &[inside_x, cell, outside]).at(a.span)?;
    let flat = counted(l, a, cell, wide.get(2).copied(), counts[0] * counts[1], false)?;
    let node = l.b.reshape(flat, &[counts[0], counts[1]]).at(a.span)?;
    let node = l.b.cast(node, DType::Float64).at(a.span)?;
    Ok(Value::Record(Record {
        of: "histogram2d".into(),
        named: false,
        fields: vec![
            ("counts".into(), Tensor::unnamed(node, 2)),
            ("x_edges".into(), Tensor::unnamed(edges[0], 1)),
            ("y_edges".into(), Tensor::unnamed(edges[1], 1)),
        ],
    }))
}

fn bincount(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let x = a.tensor(l, "x")?;
    let from = l.b.dtype(x.node);
    if !from.is_integer() && from != DType::Bool {
        return fail(crate::lower::types(a.name, vec![from.name()]), a.place("x"));
    }
    let least = match a.int(l, "minlength")?.map(u64::try_from) {
        None => 0,
        Some(Ok(n)) if n <= BINS_MAX => n,
        Some(_) => return a.refuse("minlength", format!("must be 0 to {BINS_MAX}")),
    };
    // The length follows from the greatest value: if the values are stored, an island reads them first.
    let greatest = if cells(&l.b.shape(x.node)) == Some(0) {
        None
    } else {
        let all = vec![AxisReduce::All; l.b.shape(x.node).len()];
        match evaluate(&l.b.graph, x.node) {
            Some(known) => known.iter().flatten().map(|v| v.as_i128()).max(),
            None => {
                let top = l.b.reduce(x.node, ReduceKind::Max, &all).at(a.span)?;
                let top = l.b.reshape(top, &[]).at(a.span)?;
                let what = "the greatest value, which is the length of `bincount`";
                let known = l.cells(&Tensor::unnamed(top, 0), what, a.span)?;
                known.first().copied().flatten().map(|v| v.as_i128())
            }
        }
    };
    let greatest = greatest.unwrap_or(-1);
    let length = match u64::try_from(greatest.saturating_add(1).max(0)) {
        Ok(n) if n <= BINS_MAX => n.max(least),
        _ => {
            let reason = format!("has the value {greatest}; at most {BINS_MAX} are counted");
            return a.refuse("x", reason);
        }
    };
    let (x, weights) = weighed(l, a, x)?;
    let codes = l.b.cast(x, DType::Int64).at(a.span)?;
    let node = counted(l, a, codes, weights, length, true)?;
    Ok(Value::Tensor(Tensor::unnamed(node, 1)))
}
