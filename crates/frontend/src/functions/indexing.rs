//! Cells by computed positions and masks, and the distinct values of a tensor: lengths are known only after a part of
//! the statement has run.

use std::sync::Arc;

use sqlparser::tokenizer::Span;
use tessera_planner::catalog::{Coord, CoordValues};
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{ConstArray, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::region::{cells, strides};
use tessera_planner::scalar::Scalar;

use super::scan::flat;
use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, Pick, fail, misshapen, normal_position, types};

pub(super) const ROWS: &[Row] = &[
    row(
        "take(x, indices, axis => NULL)",
        take,
        "Positions along an axis, in any order and shape; without `axis` of all cells in \
         row-major order.",
    )
    .dtypes("any; integer positions, negative ones from the end")
    .missing("masks go with their cells; a masked position is an error, as is one out of range")
    .example("SELECT take(x, [2, 0], axis => 1) FROM x"),
    row(
        "gather(x, indices, axis)",
        gather,
        "For each cell of `indices` the cell of `x` at that position along the axis, and at \
         the cell's own place along the others.",
    )
    .dtypes("any; integer positions, negative ones from the end")
    .missing("masks go with their cells; a masked position is an error, as is one out of range")
    .example("SELECT gather(x, expand_dims(argmax(x, axis => 1), 1), axis => 1) FROM x")
    .numpy("numpy.take_along_axis"),
    row(
        "compress(condition, x, axis => NULL)",
        compress,
        "Positions along an axis for which a 1-d condition is true; without `axis` of all \
         cells in row-major order.",
    )
    .dtypes("any; the condition is bool, or true where it is not 0")
    .missing("a masked condition is false")
    .example("SELECT compress(r > 0, x, axis => 0) FROM x, r"),
    row(
        "nonzero(x)",
        nonzero,
        "Positions of the cells that are not 0 (or true), in row-major order: one row for each \
         dimension.",
    )
    .dtypes("numbers and bool → int64")
    .missing("masked cells are not counted, NaN is not 0")
    .example("SELECT nonzero(x > 2) FROM x")
    .numpy("numpy.stack(numpy.nonzero(x))"),
    row(
        "argwhere(x)",
        argwhere,
        "Positions of the cells that are not 0 (or true), in row-major order: one row for each \
         cell.",
    )
    .dtypes("numbers and bool → int64")
    .missing("masked cells are not counted, NaN is not 0")
    .example("SELECT argwhere(x > 2) FROM x"),
    row("unique(x)", unique, "The different values in ascending order, as one dimension.")
        .missing("masked cells are skipped; NaN stands once, last"),
    row(
        "value_counts(x)",
        value_counts,
        "How often each value occurs, along a dimension `value` of the values: the most \
         frequent first, of equally frequent ones the smallest.",
    )
    .dtypes("any → int64")
    .missing("masked cells are skipped; NaN is a value")
    .numpy("pandas.Series.value_counts(dropna=False)"),
];

fn take(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let axis = match a.axis(l, &t, "axis")? {
        Some(axis) => axis,
        None => {
            t = ravel(l, t, a.span)?;
            0
        }
    };
    let place = a.place("indices");
    let value = match a.value(l, "indices")? {
        Value::List(items) if !items.is_empty() => Value::Tensor(l.array(&items, place)?),
        Value::Tensor(t) if l.b.dtype(t.node) == DType::Bool => {
            return fail(types("take", vec!["bool positions".into()]), place);
        }
        value => value,
    };
    let pick = l.position(&t, axis, value, place)?;
    let mut picks = vec![Pick::All; t.dims.len()];
    picks[axis] = pick;
    l.pick(t, &picks, a.span).map(Value::Tensor)
}

/// All cells along one dimension; a 0-d tensor becomes 1-d.
fn ravel(l: &mut Lowerer<'_, '_>, t: Tensor, span: Span) -> Result<Tensor, Error> {
    let mut flat = flat(l, t, span)?;
    if flat.dims.is_empty() {
        flat = Tensor::unnamed(l.b.reshape(flat.node, &[1]).at(span)?, 1);
    }
    Ok(flat)
}

fn gather(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let Some(axis) = a.axis(l, &t, "axis")? else {
        return a.refuse("axis", "must not be NULL");
    };
    let place = a.place("indices");
    let indices = a.tensor(l, "indices")?;
    let dtype = l.b.dtype(indices.node);
    if !dtype.is_integer() {
        return fail(types("gather", vec![dtype.name()]), place);
    }
    let (from, to) = (l.b.shape(t.node), l.b.shape(indices.node));
    let fits = from.len() == to.len()
        && (0..from.len()).all(|d| d == axis || from[d] == to[d] || to[d] == 1 || from[d] == 1);
    if !fits {
        return misshapen(
            "gather",
            &[from, to],
            "all lengths but that along the axis must be equal or 1",
            place,
        );
    }
    let known = l.cells(&indices, "positions of `gather`", place)?;
    let mut shape = to.clone();
    for d in (0..shape.len()).filter(|&d| d != axis) {
        shape[d] = if from[d] == 1 { to[d] } else { from[d] };
    }
    let Some(count) = cells(&shape).filter(|&n| n <= crate::island::VALUES_MAX) else {
        return Err(PlanError::TooLarge { shape: shape.to_vec() }).at(place);
    };
    let (of_out, of_x, of_indices) = (strides(&shape), strides(&from), strides(&to));
    let mut positions = Vec::with_capacity(count as usize);
    for i in 0..count as i64 {
        let (mut in_x, mut in_indices) = (0i64, 0i64);
        for d in 0..shape.len() {
            let at = i / of_out[d] % shape[d] as i64;
            in_indices += if to[d] == 1 { 0 } else { at * of_indices[d] };
            in_x += if d == axis || from[d] == 1 { 0 } else { at * of_x[d] };
        }
        let Some(index) = known[in_indices as usize] else {
            return fail(types("gather", vec!["NULL".into()]), place);
        };
        let at = normal_position(&t, axis, from[axis], index.as_i128(), place)?;
        positions.push((in_x + at as i64 * of_x[axis]) as u64);
    }
    let whole = ravel(l, t.clone(), a.span)?;
    let node = l.b.take(whole.node, 0, positions.into()).at(a.span)?;
    let node = l.b.reshape(node, &shape).at(a.span)?;
    let dims = (0..shape.len())
        .map(|d| match d != axis && from[d] == shape[d] {
            true => t.dims[d].clone(),
            false => t.dims[d].bare(),
        })
        .collect();
    Ok(Value::Tensor(Tensor { node, dims, name: None, ..t }))
}

fn compress(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let place = a.place("condition");
    let condition = a.tensor(l, "condition")?;
    let condition = l.truthy(condition, place)?;
    let mut t = a.tensor(l, "x")?;
    let axis = a.axis(l, &t, "axis")?;
    if axis.is_none() {
        t = ravel(l, t, a.span)?;
    }
    let axis = axis.unwrap_or(0);
    let length = l.b.shape(t.node)[axis];
    let shape = l.b.shape(condition.node);
    let &[given] = shape.as_slice() else {
        return misshapen("compress", &[&shape], "the condition has one dimension", place);
    };
    if given > length {
        return misshapen(
            "compress",
            &[&shape[..], &[length]],
            "the condition is at most as long as what it selects from",
            place,
        );
    }
    if t.dims.len() == 1 && t.dims[0].coord.is_none() {
        // A shorter condition selects from the first cells, as in NumPy.
        t.node = l.b.slice(t.node, 0, 0, 1, given).at(a.span)?;
        return l.masked(t, condition, a.span).map(Value::Tensor);
    }
    let known = l.cells(&condition, "the condition of `compress`", place)?;
    let kept: Vec<u64> =
        (0..given).filter(|&i| known[i as usize].is_some_and(|v| v.as_i128() != 0)).collect();
    let mut picks = vec![Pick::All; t.dims.len()];
    picks[axis] = Pick::list(kept);
    l.pick(t, &picks, a.span).map(Value::Tensor)
}

/// For each dimension the positions of the nonzero cells, 1-d.
fn places(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<(Vec<NodeId>, u64), Error> {
    let t = a.tensor(l, "x")?;
    if t.dims.is_empty() {
        return misshapen(a.name, &[l.b.shape(t.node)], "a 0-d tensor has no positions", a.span);
    }
    let keep = l.truthy(t, a.place("x"))?;
    let keep = l.certain(keep, a.span)?;
    let shape = l.b.shape(keep.node);
    let numbers = l.b.iota(&shape, None).at(a.span)?;
    let what = "the positions of the cells that are not zero";
    let found = l.compressed(numbers, keep.node, what, a.span)?;
    let count = l.b.shape(found)[0];
    let steps = strides(&shape);
    let mut out = Vec::with_capacity(shape.len());
    for d in 0..shape.len() {
        let step = l.b.constant(Scalar::i64(steps[d].max(1))).at(a.span)?;
        let length = l.b.constant(Scalar::i64(shape[d].max(1) as i64)).at(a.span)?;
        let row = l.b.map(ScalarOp::FloorDiv, &[found, step]).at(a.span)?;
        out.push(l.b.map(ScalarOp::Rem, &[row, length]).at(a.span)?);
    }
    Ok((out, count))
}

fn nonzero(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    beside(l, a, 0)
}

fn argwhere(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    beside(l, a, 1)
}

fn beside(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, axis: usize) -> Result<Value, Error> {
    let (places, _) = places(l, a)?;
    let parts = places.into_iter().map(|node| Tensor::unnamed(node, 1)).collect();
    l.stack(parts, axis, Dim::default(), a.span).map(Value::Tensor)
}

fn unique(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let [values, _] = l.distinct(t.node, "the different values of a tensor", a.span)?;
    Ok(Value::Tensor(Tensor::unnamed(values, 1)))
}

fn value_counts(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = a.tensor(l, "x")?;
    let [values, counts] = l.distinct(t.node, "the different values of a tensor", a.span)?;
    let known = |l: &mut Lowerer<'_, '_>, node| {
        let t = Tensor::unnamed(node, 1);
        let cells = l.cells(&t, "the values of `value_counts`", a.span)?;
        Ok::<Vec<Scalar>, Error>(cells.iter().flatten().copied().collect())
    };
    let (values, counts) = (known(l, values)?, known(l, counts)?);
    let mut order: Vec<usize> = (0..values.len()).collect();
    // A stable sort: the values are in ascending order already.
    order.sort_by_key(|&i| std::cmp::Reverse(counts[i].as_i128()));
    let ints = || -> Arc<[i64]> { order.iter().map(|&i| values[i].as_i128() as i64).collect() };
    let labels = match l.b.dtype(t.node) {
        DType::Datetime(calendar) => CoordValues::Time(calendar, ints()),
        d if d.is_float() => {
            CoordValues::Float(d, order.iter().map(|&i| values[i].as_f64()).collect())
        }
        d => CoordValues::Int(d, ints()),
    };
    let counts: Vec<i64> = order.iter().map(|&i| counts[i].as_i128() as i64).collect();
    let node = l.b.array(ConstArray::from_i64(&counts)).at(a.span)?;
    let name: Arc<str> = "value".into();
    let coord =
        Coord { name: name.clone(), dim: name.clone(), values: labels, attrs: Default::default() };
    let dim = Dim { name: Some(name), coord: Some(Arc::new(coord)), group: None };
    Ok(Value::Tensor(Tensor::new(node, vec![dim])))
}
