//! Reductions over neighbouring cells: sliding windows and fixed blocks.

use std::sync::Arc;

use sqlparser::ast::Expr;
use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues, NAT, NoLabels, Unreadable};
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, ConstArray, Groups, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;
use tessera_planner::window::Frame;

use super::grouping::{self, Operation};
use super::reduce::Reduction;
use super::scan::known_int;
use super::{Bound, Row, order, reduce, row};
use crate::error::{BindError, Error};
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, span_of, unsupported};

pub(super) const ROWS: &[Row] = &[
    row(
        "rolling(x, op, dim => n, …, center => false, min_periods => n, ddof => 0, skipna => \
         false, q => NULL)",
        rolling,
        "A reduction ('sum', 'mean', 'min', 'max', 'var', 'std', 'prod', 'count', 'any', \
         'all', 'median', 'quantile' with `q`) of the n cells that end at each cell, or lie around \
         it with `center` (n // 2 of them before it). Along times at equal distances n may be a duration such \
         as '30 days', which means the cells of that time. The window of several dimensions is \
         a box. 'median' and 'quantile' take windows of at most 4096 cells, and of boxes of at most 128, as 'var' and 'std' \
         of boxes do.",
    )
    .dtypes("as the reduction")
    .missing(
        "masked cells are skipped; NULL where fewer than `min_periods` cells are left (the \
         whole window if it is not given); NaN stays within its windows, and is skipped with \
         `skipna`",
    )
    .example("SELECT rolling(t2m, 'mean', time => 7, center => true, min_periods => 1) FROM era5")
    .numpy("xarray.DataArray.rolling"),
    row(
        "coarsen(x, op, dim => n, …, boundary => 'exact', ddof => 0, skipna => false, q => NULL)",
        coarsen,
        "A reduction ('sum', 'mean', 'min', 'max', 'var', 'std', 'prod', 'count', 'any', \
         'all', 'median', 'quantile' with `q`) of blocks of n cells; a coordinate becomes the mean of each block. \
         Where n does not divide a length: 'exact' is an error, 'trim' leaves the rest out, \
         'pad' makes a shorter last block of it.",
    )
    .dtypes("as the reduction")
    .missing("as the reduction")
    .example("SELECT coarsen(t2m, 'mean', lat => 4, lon => 4, boundary => 'trim') FROM era5")
    .numpy("xarray.DataArray.coarsen"),
];

/// The lengths of the arguments named by dimensions, each at least 1.
fn lengths(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor) -> Result<Vec<(usize, u64)>, Error> {
    if a.dims.is_empty() {
        return fail(a.invalid("a dimension", "must be given, as in `time => 7`"), a.span);
    }
    let mut out: Vec<(usize, u64)> = Vec::new();
    for &(name, expr) in &a.dims {
        let axis = l.named_axis(t, name)?;
        let n = match l.expr(expr)? {
            Value::Str(text) if a.name == "rolling" => steps(a, t, axis, &name.value, &text, expr)?,
            _ => known_int(l, a, &name.value, expr)?,
        };
        if out.iter().any(|(known, _)| *known == axis) {
            let reason = format!("names dimension `{}` twice", t.dim_name(axis));
            return fail(a.invalid(&format!("`{}`", name.value), reason), name.span);
        }
        match u64::try_from(n) {
            Ok(n) if (1..=i64::MAX as u64 / 4).contains(&n) => out.push((axis, n)),
            _ => return too_short(a, &name.value, n, expr),
        }
    }
    Ok(out)
}

/// Number of cells in a window of a duration along evenly spaced times: those later than the cell's
/// own time less the duration, as in pandas.
fn steps(
    a: &Bound<'_>,
    t: &Tensor,
    axis: usize,
    name: &str,
    text: &str,
    expr: &Expr,
) -> Result<i128, Error> {
    let invalid = |reason: String| fail(a.invalid(&format!("`{name}`"), reason), span_of(expr));
    let Some(length) = super::resample::period(text) else {
        return invalid(format!(
            "is '{text}'; it must be a number of cells, or a duration such as '30 days' or '6 hours'"
        ));
    };
    let Some(length) = length.micros() else {
        return invalid(format!(
            "is '{text}', which has no fixed length; give it in days or weeks"
        ));
    };
    if let Some(error) = t.dims[axis].coord.as_deref().and_then(BindError::no_labels) {
        return fail(error, span_of(expr));
    }
    let coord = t.dims[axis].coord.as_ref().map(|coord| &coord.values);
    let Some(CoordValues::Time(_, times)) = coord else {
        return invalid(format!("is '{text}', and the dimension has no coordinate of times"));
    };
    if times.contains(&NAT) {
        return invalid(format!("is '{text}', and a label of the dimension is missing"));
    }
    let step = times.windows(2).next().map_or(length, |pair| pair[1] - pair[0]);
    let odd = times.windows(2).position(|pair| pair[1] - pair[0] != step || step <= 0);
    if let Some(at) = odd {
        return invalid(format!(
            "is '{text}', and the times are not at equal distances (from position {at} to {}); use `resample` first, or give a number of cells",
            at + 1
        ));
    }
    Ok(i128::from(length).div_euclid(step.into()) + i128::from(length % step != 0))
}

fn too_short<T>(a: &Bound<'_>, name: &str, n: i128, expr: &Expr) -> Result<T, Error> {
    let reason = format!("is {n}; a window has at least 1 cell");
    fail(a.invalid(&format!("`{name}`"), reason), span_of(expr))
}

/// The names of the operations of windows and blocks.
const OPERATIONS: &str = "'sum', 'mean', 'median', 'quantile', 'min', 'max', 'var', 'std', 'prod', 'count', 'any' or \
                          'all'";

fn operation(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor) -> Result<Operation, Error> {
    grouping::check_dimensions(a, t)?;
    let how = grouping::operation(l, a, t, OPERATIONS)?;
    let is_of_groups = matches!(
        how,
        Operation::First
            | Operation::Last
            | Operation::Reduce(Reduction::Ptp | Reduction::CountNonzero)
    );
    match is_of_groups {
        false => Ok(how),
        true => a.refuse("op", format!("must be one of {OPERATIONS}")),
    }
}

fn rolling(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let how = operation(l, a, &t)?;
    let windows = lengths(l, a, &t)?;
    let center = a.flag(l, "center")?;
    let size = windows.iter().fold(1u64, |n, (_, w)| n.saturating_mul(*w));
    let min_count = match a.int(l, "min_periods")? {
        None => size,
        Some(n) => match u64::try_from(n) {
            Ok(n) if n <= size => n,
            _ => {
                let reason = format!("is {n}; it must be 0 to {size}, the cells of a window");
                return a.refuse("min_periods", reason);
            }
        },
    };
    let frames: Vec<(usize, Frame)> = windows
        .iter()
        .map(|&(axis, n)| {
            let n = n as i64;
            let before = if center { n / 2 } else { n - 1 };
            (axis, Frame { before, after: n - 1 - before })
        })
        .collect();
    let mut x = t.node;
    let from = l.b.dtype(x);
    if a.flag(l, "skipna")? && from.is_float() {
        x = reduce::without_nan(l, x, a.span)?;
    }
    let x = match how {
        Operation::Quantile(_)
        | Operation::Reduce(Reduction::Mean | Reduction::Var(_) | Reduction::Std(_))
            if !from.is_float() =>
        {
            l.b.cast(x, DType::Float64).at(a.span)?
        }
        Operation::Reduce(Reduction::Any | Reduction::All) => reduce::truth(l, x, a.name, a.span)?,
        _ => x,
    };
    let node = match how {
        Operation::Reduce(kind)
            if frames.len() == 1 || !matches!(kind, Reduction::Var(_) | Reduction::Std(_)) =>
        {
            moving(l, x, kind, &frames, min_count, a.span)?
        }
        Operation::Quantile(q) if frames.len() == 1 && size <= SORTED_MAX => {
            let (axis, frame) = frames[0];
            let kind = ReduceKind::Quantile(q.to_bits());
            l.b.window(x, axis, frame, kind, min_count).at(a.span)?
        }
        Operation::Quantile(_) if frames.len() == 1 => return too_long(a, size, SORTED_MAX),
        _ if size > STACK_MAX => return too_long(a, size, STACK_MAX),
        how => side_by_side(l, x, how, &frames, min_count, a.span)?,
    };
    let dims = t.dims.iter().map(|d| Dim { group: None, ..d.clone() }).collect();
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

/// Sliding windows over a box, one dimension after the other.
fn moving(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    kind: Reduction,
    frames: &[(usize, Frame)],
    min_count: u64,
    span: Span,
) -> Result<NodeId, Error> {
    let one = |kind: Reduction| match kind {
        Reduction::Sum => Some(ReduceKind::Sum),
        Reduction::Prod => Some(ReduceKind::Prod),
        Reduction::Mean => Some(ReduceKind::Mean),
        Reduction::Var(ddof) | Reduction::Std(ddof) => Some(ReduceKind::Var { ddof }),
        Reduction::Min => Some(ReduceKind::Min),
        Reduction::Max => Some(ReduceKind::Max),
        Reduction::Any => Some(ReduceKind::Any),
        Reduction::All => Some(ReduceKind::All),
        Reduction::Count => Some(ReduceKind::Count),
        _ => None,
    };
    let Some(op) = one(kind) else { return unsupported("`rolling` with this operation", span) };
    if let [(axis, frame)] = frames {
        let node = l.b.window(x, *axis, *frame, op, min_count).at(span)?;
        return match kind {
            Reduction::Std(_) => l.b.map(ScalarOp::Sqrt, &[node]).at(span),
            _ => Ok(node),
        };
    }
    let along = |l: &mut Lowerer<'_, '_>, mut node: NodeId, op: ReduceKind, least: u64| {
        for &(axis, frame) in frames {
            node = l.b.window(node, axis, frame, op, least).at(span)?;
        }
        Ok::<NodeId, Error>(node)
    };
    let count = match kind {
        Reduction::Count => None,
        _ => counts(l, x, frames, span)?,
    };
    let count = match count {
        Some(count) => count,
        None => {
            // Unmasked cells, counted along the first dimension and summed along the others.
            let (axis, frame) = frames[0];
            let mut count = l.b.window(x, axis, frame, ReduceKind::Count, 0).at(span)?;
            for &(axis, frame) in &frames[1..] {
                count = l.b.window(count, axis, frame, ReduceKind::Sum, 0).at(span)?;
            }
            count
        }
    };
    let value = match kind {
        Reduction::Count => count,
        Reduction::Mean => {
            // Sums of float32 stay in float64 until they are divided.
            let wide = l.b.cast(x, DType::Float64).at(span)?;
            let sum = along(l, wide, ReduceKind::Sum, 0)?;
            let n = l.b.cast(count, DType::Float64).at(span)?;
            let mean = l.b.map(ScalarOp::Div, &[sum, n]).at(span)?;
            l.b.cast(mean, l.b.dtype(x)).at(span)?
        }
        Reduction::Min | Reduction::Max => along(l, x, op, 1)?,
        _ => along(l, x, op, 0)?,
    };
    let least = match kind {
        Reduction::Mean | Reduction::Min | Reduction::Max => min_count.max(1),
        _ => min_count,
    };
    if least == 0 {
        return Ok(value);
    }
    let least = l.b.constant(Scalar::i64(least as i64)).at(span)?;
    let enough = l.b.map(ScalarOp::Ge, &[count, least]).at(span)?;
    l.b.map_op(MapOp::Mask, &[value, enough]).at(span)
}

/// Maximum length of a dimension whose numbers of cells stand in the plan.
const COUNTS_MAX: u64 = 1 << 16;

/// Number of cells in the window around each cell, if none of them can be masked: the product of those along each
/// dimension, which repeat along the others.
fn counts(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    frames: &[(usize, Frame)],
    span: Span,
) -> Result<Option<NodeId>, Error> {
    let shape = l.b.shape(x);
    if l.b.node(x).nullable || frames.iter().any(|&(axis, _)| shape[axis] > COUNTS_MAX) {
        return Ok(None);
    }
    let mut product: Option<NodeId> = None;
    for &(axis, frame) in frames {
        let len = shape[axis];
        let frame = frame.clipped(len);
        let of: Vec<i64> = (0..len).map(|i| frame.count(i, len) as i64).collect();
        let mut along = vec![1; shape.len()];
        along[axis] = len;
        let of = ConstArray { shape: along.as_slice().into(), ..ConstArray::from_i64(&of) };
        let node = l.b.array(of).at(span)?;
        product = match product {
            Some(others) => Some(l.b.map(ScalarOp::Mul, &[others, node]).at(span)?),
            None => Some(node),
        };
    }
    Ok(product)
}

fn too_long<T>(a: &Bound<'_>, size: u64, most: u64) -> Result<T, Error> {
    let reason = format!("makes windows of {size} cells; here they may have {most}");
    fail(a.invalid("a dimension", reason), a.span)
}

/// Maximum cells of a window along one dimension that are kept sorted: a step takes time that grows with them.
const SORTED_MAX: u64 = 4096;

/// Maximum cells of a window whose cells are stacked along a new axis.
const STACK_MAX: u64 = 128;

/// Bytes of a chunk that is not divided for windows.
const CHUNK_MIN: u64 = 256 << 10;

/// Cells in chunks that are small enough for their windows: an operand reads a chunk for each cell of a window.
fn divided(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    frames: &[(usize, Frame)],
    span: Span,
) -> Result<NodeId, Error> {
    let size = frames.iter().fold(1u64, |n, (_, f)| n.saturating_mul(f.width().max(1) as u64));
    let node = l.b.node(x);
    let bytes = (l.b.config.chunk_bytes_target / size).max(CHUNK_MIN);
    let room = (bytes / node.dtype.size() as u64).max(1);
    let own: Vec<u64> = node.grid.axes.iter().map(|axis| axis.chunk.max(1)).collect();
    let mut chunks = own.clone();
    while cells(&chunks).is_none_or(|n| n > room) {
        match chunks.iter_mut().max() {
            Some(longest) if *longest > 1 => *longest = longest.div_ceil(2),
            _ => break,
        }
    }
    if chunks == own { Ok(x) } else { l.b.rechunk(x, &chunks).at(span) }
}

/// Stacks the cells of each window along a new axis, for reductions without a sliding form (quantiles and variances
/// of boxes).
fn side_by_side(
    l: &mut Lowerer<'_, '_>,
    x: NodeId,
    how: Operation,
    frames: &[(usize, Frame)],
    min_count: u64,
    span: Span,
) -> Result<NodeId, Error> {
    let x = divided(l, x, frames, span)?;
    let shape = l.b.shape(x);
    let mut padded = x;
    for &(axis, frame) in frames {
        let mut parts = Vec::with_capacity(3);
        for (width, own) in [(frame.before, None), (1, Some(padded)), (frame.after, None)] {
            let mut gap = l.b.shape(padded);
            gap[axis] = width as u64;
            match own {
                Some(own) => parts.push(own),
                None if width > 0 => {
                    parts.push(l.b.full(None, l.b.dtype(x), &gap, None).at(span)?);
                }
                None => {}
            }
        }
        padded = l.b.concat(&parts, axis).at(span)?;
    }
    let mut cells = vec![padded];
    for &(axis, frame) in frames {
        let mut moved = Vec::new();
        for &cell in &cells {
            for k in 0..frame.width() {
                moved.push(l.b.slice(cell, axis, k, 1, shape[axis]).at(span)?);
            }
        }
        cells = moved;
    }
    let rank = shape.len();
    for cell in &mut cells {
        *cell = l.b.expand_dims(*cell, rank).at(span)?;
    }
    let lines = l.b.concat(&cells, rank).at(span)?;
    let lines = Tensor::unnamed(lines, rank + 1);
    let value = over(l, &lines, how, &[rank], false, span)?;
    let count = l.b.reduce_axes(lines.node, ReduceKind::Count, &[rank]).at(span)?;
    let count = l.b.squeeze(count, &[rank]).at(span)?;
    let least = l.b.constant(Scalar::i64(min_count.max(1) as i64)).at(span)?;
    let enough = l.b.map(ScalarOp::Ge, &[count, least]).at(span)?;
    l.b.map_op(MapOp::Mask, &[value, enough]).at(span)
}

fn coarsen(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let how = operation(l, a, &t)?;
    let blocks = lengths(l, a, &t)?;
    let skipna = a.flag(l, "skipna")?;
    let boundary = a.text(l, "boundary")?.unwrap_or_else(|| "exact".into());
    if !["exact", "trim", "pad"].contains(&boundary.as_str()) {
        let reason = format!("is '{boundary}'; it must be 'exact', 'trim' or 'pad'");
        return a.refuse("boundary", reason);
    }
    for &(axis, n) in &blocks {
        let length = l.b.shape(t.node)[axis];
        let rest = length % n;
        if rest > 0 && boundary == "exact" {
            let reason = format!(
                "is {n}, which does not divide the {length} cells of `{}`; use `boundary => 'trim'` or 'pad'",
                t.dim_name(axis)
            );
            return fail(a.invalid(&format!("`{}`", t.dim_name(axis)), reason), a.span);
        }
        if rest > 0 && boundary == "trim" {
            t.node = l.b.slice(t.node, axis, 0, 1, length - rest).at(a.span)?;
            t.dims[axis] = t.dims[axis].slice(0, 1, length - rest);
        }
    }
    let shape = l.b.shape(t.node);
    let count = |axis: usize, n: u64| shape[axis].div_ceil(n);
    // A partial state covers every block of its lines. With many chunks that exceeds the input; then each block
    // becomes a dimension of its own.
    let grid = &l.b.node(t.node).grid;
    let states = blocks.iter().fold(1u64, |s, &(axis, n)| {
        s.saturating_mul(count(axis, n).saturating_mul(grid.axes[axis].count()))
    });
    let inputs = blocks.iter().fold(1u64, |s, &(axis, _)| s.saturating_mul(shape[axis]));
    let groups = blocks.iter().all(|&(axis, n)| u32::try_from(count(axis, n)).is_ok());
    let node = match how {
        Operation::Reduce(kind) if groups && states <= inputs.saturating_mul(2) => {
            let mut how = vec![AxisReduce::Keep; t.dims.len()];
            for &(axis, n) in &blocks {
                let codes = (0..shape[axis]).map(|i| (i / n) as u32).collect();
                how[axis] = AxisReduce::Group(Groups { codes, count: count(axis, n) as u32 });
            }
            reduce::reduce(l, &t, kind, &how, None, skipna, a.span)?
        }
        how => {
            let (split, axes) = split_blocks(l, &t, &blocks, a.span)?;
            let split = Tensor::unnamed(split, l.b.shape(split).len());
            over(l, &split, how, &axes, skipna, a.span)?
        }
    };
    let mut dims = t.dims.clone();
    for &(axis, n) in &blocks {
        dims[axis] = match &t.dims[axis].coord {
            Some(coord) if n > 1 => Dim { coord: block_means(coord, n), ..t.dims[axis].bare() },
            _ if n > 1 => t.dims[axis].bare(),
            _ => t.dims[axis].clone(),
        };
    }
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

/// A quantile or a reduction over some axes, which are dropped.
fn over(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    how: Operation,
    axes: &[usize],
    skipna: bool,
    span: Span,
) -> Result<NodeId, Error> {
    let kind = match how {
        Operation::Quantile(q) => return order::quantile_over(l, t, axes, q, skipna, span),
        Operation::Reduce(kind) => kind,
        Operation::First | Operation::Last => return unsupported("an end of a window", span),
    };
    let how: Vec<AxisReduce> = (0..t.dims.len())
        .map(|axis| if axes.contains(&axis) { AxisReduce::All } else { AxisReduce::Keep })
        .collect();
    let node = reduce::reduce(l, t, kind, &how, None, skipna, span)?;
    l.b.squeeze(node, axes).at(span)
}

/// Splits an axis into blocks with a new axis directly behind it; masked cells pad a short last block. The second part
/// of the result are the new axes.
fn split_blocks(
    l: &mut Lowerer<'_, '_>,
    t: &Tensor,
    blocks: &[(usize, u64)],
    span: Span,
) -> Result<(NodeId, Vec<usize>), Error> {
    let mut node = t.node;
    for &(axis, n) in blocks {
        let mut gap = l.b.shape(node);
        let rest = gap[axis] % n;
        if rest > 0 {
            gap[axis] = n - rest;
            let masked = l.b.full(None, l.b.dtype(node), &gap, None).at(span)?;
            node = l.b.concat(&[node, masked], axis).at(span)?;
        }
    }
    let (mut shape, mut new) = (Vec::new(), Vec::new());
    for (axis, &length) in l.b.shape(node).iter().enumerate() {
        match blocks.iter().find(|(of, _)| *of == axis) {
            Some(&(_, n)) => {
                shape.push(length / n);
                new.push(shape.len());
                shape.push(n);
            }
            None => shape.push(length),
        }
    }
    if cells(&shape).is_none() {
        return unsupported("`coarsen` of so many cells", span);
    }
    Ok((l.b.reshape(node, &shape).at(span)?, new))
}

/// A coordinate whose labels are the means of blocks; `None` for texts.
fn block_means(coord: &Coord, n: u64) -> Option<Arc<Coord>> {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    let values = match &coord.values {
        CoordValues::Float(dtype, v) => {
            let means = v.chunks(n).map(|b| b.iter().sum::<f64>() / b.len() as f64);
            // Rounded to the stored type: the mean of float32 labels is float32.
            let narrow = |m: f64| if *dtype == DType::Float32 { f64::from(m as f32) } else { m };
            CoordValues::Float(*dtype, means.map(narrow).collect())
        }
        CoordValues::Int(d, v) => {
            let number = |x: &i64| CoordValues::integer(*d, *x) as f64;
            let mean = |b: &[i64]| b.iter().map(number).sum::<f64>() / b.len() as f64;
            CoordValues::Float(DType::Float64, v.chunks(n).map(mean).collect())
        }
        CoordValues::Time(calendar, v) => {
            // Relative to the first label, so that no digits are lost.
            let mean = |b: &[i64]| {
                if b.contains(&NAT) {
                    return NAT;
                }
                let sum: i128 = b.iter().map(|x| i128::from(*x) - i128::from(b[0])).sum();
                b[0] + (sum / b.len() as i128) as i64
            };
            CoordValues::Time(*calendar, v.chunks(n).map(mean).collect())
        }
        CoordValues::Unreadable(none) => {
            // A new `Arc` makes them differ from the labels of any other tensor.
            let of = Arc::new(Unreadable::clone(&none.of));
            CoordValues::Unreadable(NoLabels::new(of, coord.values.len().div_ceil(n)))
        }
        CoordValues::Text(_) => return None,
    };
    Some(Arc::new(Coord { values, ..coord.clone() }))
}
