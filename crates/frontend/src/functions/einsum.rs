//! Sums of products over named axes: `einsum`, and the functions that are special cases of it.
//!
//! ```text
//!   einsum('bij,bjk->bik', p, q)
//!     1. letters become labels, `...` the axes that have none
//!     2. a label twice in one operand is its diagonal; a label of one operand alone is summed at once
//!     3. the cheapest order of pairs is searched
//!     4. a pair is `[b.., m.., k..] @ [b.., k.., n..]` after transposes, or, where nothing but sums is left, a product
//!        and a sum in one pass
//! ```

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::{AxisReduce, Contraction, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::RANK_MAX;
use tessera_planner::scalar::Scalar;

use super::{Bound, Function, Open, row};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, unique, unsupported};

const TYPES: &str = "numeric, NumPy's promotion; integers wrap";
const MASKS: &str = "products with a masked factor are skipped; NaN propagates";

pub(super) const ROWS: &[Function] = &[
    row(
        "einsum",
        "einsum(subscripts, x, y, …)",
        &["subscripts"],
        1,
        Open::Many,
        einsum,
        "Sum of products over the letters that the result has not: any number of operands, repeated letters, `...`, and without `->` the letters that occur once, in order. The cheapest order of products is searched.",
        TYPES,
        MASKS,
        "SELECT einsum('bij,bjk->bik', p, q) FROM p, q",
        "numpy.einsum",
    ),
    row(
        "tensordot",
        "tensordot(x, y, axes => 2)",
        &["x", "y", "axes"],
        2,
        Open::No,
        tensordot,
        "Sum of products over the last n dimensions of x and the first n of y, or over the pairs of dimensions of two lists.",
        TYPES,
        MASKS,
        "SELECT tensordot(x, y, axes => [[1, 0], [0, 1]]) FROM x, y",
        "numpy.tensordot",
    ),
    row(
        "inner",
        "inner(x, y)",
        &["x", "y"],
        2,
        Open::No,
        inner,
        "Sum of products over the last dimensions of both.",
        TYPES,
        MASKS,
        "SELECT inner(x, y) FROM x, y",
        "numpy.inner",
    ),
    row(
        "kron",
        "kron(x, y)",
        &["x", "y"],
        2,
        Open::No,
        kron,
        "Kronecker product: blocks of y, each times a cell of x.",
        TYPES,
        "masked where either is",
        "SELECT kron(eye(3), x) FROM x",
        "numpy.kron",
    ),
    row(
        "trace",
        "trace(x, offset => 0, axis1 => 0, axis2 => 1)",
        &["x", "offset", "axis1", "axis2"],
        1,
        Open::No,
        trace,
        "Sum along a diagonal of two dimensions.",
        "as sum",
        "masked cells are skipped; NaN propagates",
        "SELECT trace(x) FROM x",
        "numpy.trace",
    ),
    row(
        "diagonal",
        "diagonal(x, offset => 0, axis1 => 0, axis2 => 1)",
        &["x", "offset", "axis1", "axis2"],
        1,
        Open::No,
        diagonal,
        "A diagonal of two dimensions, as the last dimension.",
        "any",
        "masks move with their cells",
        "SELECT diagonal(x) FROM x",
        "numpy.diagonal",
    ),
];

/// An axis of a sum of products: equal labels have equal positions.
type Label = u32;

/// A tensor whose axes have labels; in the search every label once.
#[derive(Debug, Clone)]
struct Term {
    node: NodeId,
    labels: Vec<Label>,
}

/// A sum of products while it is lowered.
struct Sum<'s> {
    /// The function.
    name: &'s str,
    span: Span,
    dtype: DType,
    /// Length and dimension of each label.
    axes: Vec<(Label, u64, Dim)>,
}

/// The tensors of some arguments, in one type that has products.
fn factors(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    values: Vec<Value>,
) -> Result<(Vec<Tensor>, DType), Error> {
    let values = l.settle(values, a.span)?;
    let dtype = l.meet(a.name, &values, a.span)?;
    if dtype == DType::Bool {
        return unsupported(&format!("`{}` of bools (convert with `x::int64`)", a.name), a.span);
    }
    let mut out = Vec::with_capacity(values.len());
    for value in values {
        out.push(l.typed(value, dtype, a.name, a.span)?);
    }
    if !dtype.is_numeric() {
        return fail(crate::lower::types(a.name, vec![dtype.name()]), a.span);
    }
    Ok((out, dtype))
}

fn einsum(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let Some(text) = a.text(l, "subscripts")? else {
        return fail(a.invalid("the first argument", "must be a text"), a.place("subscripts"));
    };
    let values = a.rest.iter().map(|expr| l.expr(expr)).collect::<Result<Vec<_>, _>>()?;
    if values.is_empty() {
        return fail(a.invalid("`subscripts`", "has no tensors after it"), a.span);
    }
    let (tensors, dtype) = factors(l, a, values)?;
    let place = a.place("subscripts");
    let wrong = |reason: String| fail(a.invalid("`subscripts`", reason), place);
    let (terms, output) = match read(&text, &tensors) {
        Ok(read) => read,
        Err(reason) => return wrong(reason),
    };
    let operands = tensors.into_iter().zip(terms).collect();
    sum_of_products(l, a.name, a.span, dtype, operands, &output).map(Value::Tensor)
}

/// First label of the axes that `...` stands for: the last of them, then those before it.
const ELLIPSIS: Label = 1 << 16;

/// The labels of each operand and of the result, or what is wrong with the text.
fn read(text: &str, tensors: &[Tensor]) -> Result<(Vec<Vec<Label>>, Vec<Label>), String> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != tensors.len() {
        return Err(format!("has {} operands for {} tensors", parts.len(), tensors.len()));
    }
    let mut free = 0;
    let mut terms = Vec::with_capacity(parts.len());
    for (part, tensor) in parts.iter().zip(tensors) {
        let rank = tensor.dims.len();
        let (before, after) = letters(part)?;
        let named = before.len() + after.as_ref().map_or(0, Vec::len);
        let open = rank.checked_sub(named).filter(|&open| open == 0 || after.is_some());
        let Some(open) = open else {
            return Err(format!(
                "gives {named} letters to a tensor of {rank} dimensions: `{part}`"
            ));
        };
        free = free.max(open);
        let mut labels = before;
        labels.extend((0..open as Label).rev().map(|i| ELLIPSIS + i));
        labels.extend(after.unwrap_or_default());
        terms.push(labels);
    }
    let open = (0..free as Label).rev().map(|i| ELLIPSIS + i);
    let output: Vec<Label> = match right {
        None => {
            let mut all: Vec<Label> = terms.iter().flatten().copied().collect();
            all.sort_unstable();
            let once = |l: &Label| all.iter().filter(|other| *other == l).count() == 1;
            let single = all.iter().filter(|l| **l < ELLIPSIS && once(l)).copied();
            open.chain(single).collect()
        }
        Some(part) => {
            let (before, after) = letters(part)?;
            if after.is_none() && free > 0 {
                return Err("has `...` in an operand and not in the result".into());
            }
            match after {
                None => before,
                Some(after) => before.into_iter().chain(open).chain(after).collect(),
            }
        }
    };
    for (at, label) in output.iter().enumerate() {
        if output[..at].contains(label) {
            return Err(format!("names `{}` twice in the result", show(*label)));
        }
        if !terms.iter().any(|t| t.contains(label)) {
            return Err(format!("names `{}` in the result, which no operand has", show(*label)));
        }
    }
    Ok((terms, output))
}

/// The letters before `...`, and those after it if it is there.
fn letters(part: &str) -> Result<(Vec<Label>, Option<Vec<Label>>), String> {
    let read = |text: &str| -> Result<Vec<Label>, String> {
        text.chars()
            .map(|c| match c.is_ascii_alphabetic() {
                true => Ok(c as Label),
                false => Err(format!("has `{c}`; axes are letters, and `...`")),
            })
            .collect()
    };
    match part.split_once("...") {
        None => Ok((read(part)?, None)),
        Some((before, after)) => Ok((read(before)?, Some(read(after)?))),
    }
}

fn show(label: Label) -> String {
    if label >= ELLIPSIS {
        return "...".into();
    }
    char::from_u32(label).map_or_else(|| format!("axis {label}"), String::from)
}

/// The labels 0, 1, … for the axes of two tensors, all different.
fn numbered(x: &Tensor, y: &Tensor) -> (Vec<Label>, Vec<Label>) {
    let n = x.dims.len() as Label;
    ((0..n).collect(), (n..n + y.dims.len() as Label).collect())
}

fn two(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<(Tensor, Tensor, DType), Error> {
    let values = vec![a.value(l, "x")?, a.value(l, "y")?];
    let (mut tensors, dtype) = factors(l, a, values)?;
    match (tensors.pop(), tensors.pop()) {
        (Some(y), Some(x)) => Ok((x, y, dtype)),
        _ => unsupported(a.name, a.span),
    }
}

fn tensordot(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y, dtype) = two(l, a)?;
    let place = a.place("axes");
    let wrong = |reason: &str| fail(a.invalid("`axes`", reason), place);
    let (rank_x, rank_y) = (x.dims.len(), y.dims.len());
    let (of_x, of_y): (Vec<usize>, Vec<usize>) = match a.value(l, "axes")? {
        Value::List(lists) => {
            let [left, right] = &lists[..] else {
                return wrong("must be a number or two lists of dimensions");
            };
            let mut axes = |t: &Tensor, value: &Value| -> Result<Vec<usize>, Error> {
                let items = match value {
                    Value::List(items) => items.clone(),
                    one => vec![one.clone()],
                };
                let rank = t.dims.len();
                items.into_iter().map(|item| a.one_axis(l, t, "axes", item, rank)).collect()
            };
            (axes(&x, left)?, axes(&y, right)?)
        }
        Value::Null => ((rank_x.saturating_sub(2)..rank_x).collect(), (0..2).collect()),
        Value::Int(n) => match usize::try_from(n) {
            Ok(n) if n <= rank_x && n <= rank_y => {
                ((rank_x - n..rank_x).collect(), (0..n).collect())
            }
            _ => return wrong("is more than the dimensions of a tensor"),
        },
        _ => return wrong("must be a number or two lists of dimensions"),
    };
    if of_x.len() != of_y.len() || of_y.iter().any(|&axis| axis >= rank_y) || of_x.len() > rank_x {
        return wrong("must name as many dimensions of x as of y");
    }
    let (labels_x, mut labels_y) = numbered(&x, &y);
    for (i, j) in of_x.iter().zip(&of_y) {
        labels_y[*j] = labels_x[*i];
    }
    let repeated = |axes: &[usize]| (1..axes.len()).any(|i| axes[..i].contains(&axes[i]));
    if repeated(&of_x) || repeated(&of_y) {
        return wrong("names a dimension twice");
    }
    let shapes = (l.b.shape(x.node), l.b.shape(y.node));
    if of_x.iter().zip(&of_y).any(|(&i, &j)| shapes.0[i] != shapes.1[j]) {
        return Err(PlanError::Shapes {
            operation: a.name.into(),
            shapes_: vec![shapes.0.to_vec(), shapes.1.to_vec()],
            hint: Some("the dimensions that are summed must have equal lengths".into()),
        })
        .at(a.span);
    }
    let output: Vec<Label> = (0..rank_x)
        .filter(|i| !of_x.contains(i))
        .map(|i| labels_x[i])
        .chain((0..rank_y).filter(|j| !of_y.contains(j)).map(|j| labels_y[j]))
        .collect();
    let operands = vec![(x, labels_x), (y, labels_y)];
    sum_of_products(l, a.name, a.span, dtype, operands, &output).map(Value::Tensor)
}

fn inner(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y, dtype) = two(l, a)?;
    let (labels_x, mut labels_y) = numbered(&x, &y);
    let mut output: Vec<Label> = labels_x.clone();
    if let (Some(of_x), Some(of_y)) = (labels_x.last(), labels_y.last_mut()) {
        let (nx, ny) = (l.b.shape(x.node), l.b.shape(y.node));
        if nx.last() != ny.last() {
            return Err(PlanError::Shapes {
                operation: a.name.into(),
                shapes_: vec![nx.to_vec(), ny.to_vec()],
                hint: Some("the last dimensions must have equal lengths".into()),
            })
            .at(a.span);
        }
        *of_y = *of_x;
        output.pop();
        output.extend(&labels_y[..labels_y.len() - 1]);
    } else {
        output.extend(&labels_y);
    }
    let operands = vec![(x, labels_x), (y, labels_y)];
    sum_of_products(l, a.name, a.span, dtype, operands, &output).map(Value::Tensor)
}

fn kron(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y, _) = two(l, a)?;
    let rank = x.dims.len().max(y.dims.len());
    let mut shape = Vec::with_capacity(rank);
    let mut nodes = Vec::with_capacity(2);
    for (at, t) in [&x, &y].into_iter().enumerate() {
        let own = l.b.shape(t.node);
        let lead = rank - own.len();
        let mut node = t.node;
        for axis in 0..rank {
            // x has its cells before, y after a new axis of length 1.
            let place = 2 * axis + (1 - at);
            if axis < lead {
                node = l.b.expand_dims(node, 2 * axis).at(a.span)?;
            }
            node = l.b.expand_dims(node, place).at(a.span)?;
        }
        let padded = std::iter::repeat_n(1, lead).chain(own.iter().copied());
        match at {
            0 => shape.extend(padded),
            _ => {
                for (n, m) in shape.iter_mut().zip(padded) {
                    *n = u64::saturating_mul(*n, m);
                }
            }
        }
        nodes.push(node);
    }
    let node = l.b.map(ScalarOp::Mul, &nodes).at(a.span)?;
    let node = l.b.reshape(node, &shape).at(a.span)?;
    Ok(Value::Tensor(Tensor::unnamed(node, rank)))
}

/// The two axes of a diagonal and its offset.
fn diagonal_of(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
) -> Result<(Tensor, usize, usize, i64), Error> {
    let t = a.tensor(l, "x")?;
    if t.dims.len() < 2 {
        return Err(PlanError::Shapes {
            operation: a.name.into(),
            shapes_: vec![l.b.shape(t.node).to_vec()],
            hint: Some("it takes at least 2 dimensions".into()),
        })
        .at(a.span);
    }
    let first = a.axis(l, &t, "axis1")?.unwrap_or(0);
    let second = a.axis(l, &t, "axis2")?.unwrap_or(1);
    if first == second {
        return fail(a.invalid("`axis2`", "is the same as `axis1`"), a.place("axis2"));
    }
    let offset = a.int(l, "offset")?.unwrap_or(0).clamp(-(1 << 62), 1 << 62) as i64;
    Ok((t, first, second, offset))
}

fn trace(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (t, first, second, offset) = diagonal_of(l, a)?;
    let t = take_diagonal(l, t, first, second, offset, a.span)?;
    let axis = t.dims.len() - 1;
    let node = l.b.reduce_axes(t.node, ReduceKind::Sum, &[axis]).at(a.span)?;
    let node = l.b.squeeze(node, &[axis]).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, t.dims[..axis].to_vec())))
}

fn diagonal(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (t, first, second, offset) = diagonal_of(l, a)?;
    take_diagonal(l, t, first, second, offset, a.span).map(Value::Tensor)
}

/// The cells at `[.., i, .., i + offset, ..]` as a last axis. Of each row all cells but one are masked and the greatest
/// of what is left is taken: one pass that stores nothing but the diagonal.
pub(super) fn take_diagonal(
    l: &mut Lowerer<'_, '_>,
    t: Tensor,
    first: usize,
    second: usize,
    offset: i64,
    span: Span,
) -> Result<Tensor, Error> {
    let shape = l.b.shape(t.node);
    let (dtype, rank) = (l.b.dtype(t.node), shape.len());
    // Rows and columns are cut to where the diagonal runs, so that it starts at (0, 0).
    let (down, right) = if offset < 0 { (offset.unsigned_abs(), 0) } else { (0, offset as u64) };
    let len = shape[first].saturating_sub(down).min(shape[second].saturating_sub(right));
    let mut node = l.b.slice(t.node, first, down as i64, 1, len).at(span)?;
    node = l.b.slice(node, second, right as i64, 1, len).at(span)?;
    let mut order: Vec<usize> =
        (0..rank).filter(|axis| *axis != first && *axis != second).collect();
    order.extend([first, second]);
    node = l.b.transpose(node, &order).at(span)?;
    let mut dims: Vec<Dim> = order[..rank - 2].iter().map(|&axis| t.dims[axis].clone()).collect();
    dims.push(Dim::default());
    let was_nullable = l.b.node(node).nullable;
    if len > 0 {
        let rows = l.b.iota(&[len, 1], None).at(span)?;
        let columns = l.b.iota(&[len], None).at(span)?;
        let keep = l.b.map(ScalarOp::Eq, &[rows, columns]).at(span)?;
        node = l.b.map_op(MapOp::Mask, &[node, keep]).at(span)?;
        node = l.b.reduce_axes(node, ReduceKind::Max, &[rank - 1]).at(span)?;
        if !was_nullable {
            let any = l.b.constant(Scalar::zero(dtype)).at(span)?;
            node = l.b.map_op(MapOp::Coalesce, &[node, any]).at(span)?;
        }
        node = l.b.squeeze(node, &[rank - 1]).at(span)?;
    } else {
        let mut empty: Vec<u64> = order[..rank - 2].iter().map(|&axis| shape[axis]).collect();
        empty.push(0);
        node = l.b.reshape(node, &empty).at(span)?;
    }
    Ok(Tensor::new(node, dims))
}

/// The sum of the products of all operands over the labels that `output` has not.
pub(super) fn sum_of_products(
    l: &mut Lowerer<'_, '_>,
    name: &str,
    span: Span,
    dtype: DType,
    operands: Vec<(Tensor, Vec<Label>)>,
    output: &[Label],
) -> Result<Tensor, Error> {
    let mut sum = Sum { name, span, dtype, axes: Vec::new() };
    let mut terms = Vec::with_capacity(operands.len());
    for (t, labels) in operands {
        let (mut t, mut labels) = (t, labels);
        // A label twice is a diagonal.
        while let Some((i, j)) = repeated(&labels) {
            let shape = l.b.shape(t.node);
            if shape[i] != shape[j] {
                return Err(PlanError::Shapes {
                    operation: name.into(),
                    shapes_: vec![shape.to_vec()],
                    hint: Some(format!(
                        "`{}` stands for two lengths of one operand",
                        show(labels[i])
                    )),
                })
                .at(span);
            }
            let label = labels[i];
            let dim = t.dims[i].clone();
            t = take_diagonal(l, t, i, j, 0, span)?;
            // The diagonal is the last axis now; a third axis of the label is met next.
            let rest = labels.iter().enumerate().filter(|(at, _)| *at != i && *at != j);
            labels = rest.map(|(_, other)| *other).chain([label]).collect();
            if let Some(last) = t.dims.last_mut() {
                *last = dim;
            }
        }
        let shape = l.b.shape(t.node);
        for (axis, &label) in labels.iter().enumerate() {
            sum.meet(l, label, shape[axis], &t.dims[axis])?;
        }
        terms.push(Term { node: t.node, labels });
    }
    // An axis of length 1 is repeated where the label is longer elsewhere: it drops out of the products.
    for term in &mut terms {
        let shape = l.b.shape(term.node);
        let gone: Vec<usize> = (0..shape.len())
            .filter(|&axis| shape[axis] == 1 && sum.len(term.labels[axis]) != 1)
            .collect();
        term.node = l.b.squeeze(term.node, &gone).at(span)?;
        let mut axis = 0;
        term.labels.retain(|_| {
            axis += 1;
            !gone.contains(&(axis - 1))
        });
    }
    let order = sum.order(&terms, output);
    let mut made: Vec<Option<Term>> = terms.into_iter().map(Some).collect();
    for at in 0..made.len() {
        let needed = needed(&made, at, at, output);
        if let Some(term) = made[at].take() {
            made[at] = Some(sum.without(l, term, &needed)?);
        }
    }
    for (i, j) in order {
        let needed = needed(&made, i, j, output);
        if let (Some(x), Some(y)) = (made[i].take(), made[j].take()) {
            made.push(Some(sum.pair(l, x, y, &needed)?));
        }
    }
    let Some(last) = made.into_iter().flatten().next_back() else {
        return unsupported("a sum of no products", span);
    };
    sum.finish(l, last, output)
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|j| Some((labels[..j].iter().position(|l| *l == labels[j])?, j)))
}

/// The labels that the result or a term other than `i` and `j` has.
fn needed(terms: &[Option<Term>], i: usize, j: usize, output: &[Label]) -> Vec<Label> {
    let others = terms.iter().enumerate().filter(|(at, _)| *at != i && *at != j);
    let others = others.flat_map(|(_, t)| t.iter().flat_map(|t| t.labels.iter().copied()));
    output.iter().copied().chain(others).collect()
}

/// Most operands whose order is searched exactly; of more, the pair that costs least is taken again and again.
const EXACT: usize = 8;

impl Sum<'_> {
    /// Takes in an axis of an operand: lengths are equal or 1, labels of equal names align.
    fn meet(
        &mut self,
        l: &mut Lowerer<'_, '_>,
        label: Label,
        length: u64,
        dim: &Dim,
    ) -> Result<(), Error> {
        let Some((_, known, own)) = self.axes.iter_mut().find(|(other, _, _)| *other == label)
        else {
            self.axes.push((label, length, dim.clone()));
            return Ok(());
        };
        if *known != length && *known != 1 && length != 1 {
            return Err(PlanError::Shapes {
                operation: self.name.into(),
                shapes_: vec![vec![*known], vec![length]],
                hint: Some(match label {
                    label if label < 256 && (label as u8).is_ascii_alphabetic() => {
                        format!("`{}` stands for both lengths", show(label))
                    }
                    _ => "lengths of dimensions that meet must be equal".into(),
                }),
            })
            .at(self.span);
        }
        if *known == length
            && let (Some(x), Some(y)) = (&own.coord, &dim.coord)
            && x.name == y.name
        {
            l.same_labels(x, y, self.span)?;
        }
        if own.name.is_none() || *known == 1 && length != 1 {
            *own = dim.clone();
        }
        // 1 gives way to every length, 0 among them.
        if *known == 1 {
            *known = length;
        }
        Ok(())
    }

    fn len(&self, label: Label) -> u64 {
        self.axes.iter().find(|(other, _, _)| *other == label).map_or(1, |(_, n, _)| *n)
    }

    /// The pairs to multiply, by their numbers; the product of a pair gets the next number.
    fn order(&self, terms: &[Term], output: &[Label]) -> Vec<(usize, usize)> {
        let n = terms.len();
        if n < 2 {
            return Vec::new();
        }
        match n <= EXACT {
            true => self.exact_order(terms, output),
            false => self.greedy_order(terms, output),
        }
    }

    fn size(&self, labels: impl IntoIterator<Item = Label>) -> u128 {
        labels.into_iter().fold(1, |n, label| n.saturating_mul(u128::from(self.len(label)).max(1)))
    }

    /// The labels that are left of a set of terms: those that others or the result need.
    fn left_of(terms: &[Term], set: usize, output: &[Label]) -> Vec<Label> {
        let mut inside: Vec<Label> = Vec::new();
        for (at, term) in terms.iter().enumerate() {
            if set & (1 << at) != 0 {
                inside
                    .extend(term.labels.iter().filter(|l| !inside.contains(l)).collect::<Vec<_>>());
            }
        }
        let outside = |label: &Label| {
            output.contains(label)
                || terms
                    .iter()
                    .enumerate()
                    .any(|(at, t)| set & (1 << at) == 0 && t.labels.contains(label))
        };
        inside.retain(outside);
        inside
    }

    /// What a product of two terms costs: multiplications and cells of the result.
    fn cost(&self, x: &[Label], y: &[Label], result: &[Label]) -> u128 {
        let both = x.iter().chain(y.iter().filter(|label| !x.contains(label))).copied();
        self.size(both).saturating_add(self.size(result.iter().copied()))
    }

    /// The cheapest tree of pairs, by way of the cheapest tree of every subset.
    fn exact_order(&self, terms: &[Term], output: &[Label]) -> Vec<(usize, usize)> {
        let n = terms.len();
        let all = (1usize << n) - 1;
        let left: Vec<Vec<Label>> =
            (0..=all).map(|set| Self::left_of(terms, set, output)).collect();
        // Of each subset the cost and one half of its last pair.
        let mut best: Vec<(u128, usize)> = vec![(0, 0); all + 1];
        for set in 1..=all {
            if set.count_ones() < 2 {
                continue;
            }
            let mut found: Option<(u128, usize)> = None;
            let mut half = (set - 1) & set;
            while half > 0 {
                let rest = set & !half;
                // Each split once: the half that holds the first term.
                if half & (set & set.wrapping_neg()) != 0 {
                    let cost = best[half].0.saturating_add(best[rest].0).saturating_add(self.cost(
                        &left[half],
                        &left[rest],
                        &left[set],
                    ));
                    if found.is_none_or(|(known, _)| cost <= known) {
                        found = Some((cost, half));
                    }
                }
                half = (half - 1) & set;
            }
            best[set] = found.unwrap_or((0, 0));
        }
        let mut order = Vec::with_capacity(n - 1);
        tree(all, &best, n, &mut order);
        order
    }

    /// The cheapest pair of those that are left, again and again.
    fn greedy_order(&self, terms: &[Term], output: &[Label]) -> Vec<(usize, usize)> {
        let mut live: Vec<(usize, Vec<Label>)> =
            terms.iter().enumerate().map(|(at, t)| (at, t.labels.clone())).collect();
        let mut order = Vec::with_capacity(terms.len());
        let mut next = terms.len();
        while live.len() > 1 {
            let mut found: Option<(u128, usize, usize, Vec<Label>)> = None;
            for i in 0..live.len() {
                for j in i + 1..live.len() {
                    let (x, y) = (&live[i].1, &live[j].1);
                    let mut result: Vec<Label> = x
                        .iter()
                        .chain(y.iter().filter(|label| !x.contains(label)))
                        .copied()
                        .collect();
                    let others = |label: &Label| {
                        output.contains(label)
                            || live
                                .iter()
                                .enumerate()
                                .any(|(at, (_, other))| at != i && at != j && other.contains(label))
                    };
                    result.retain(others);
                    let cost = self.cost(x, y, &result);
                    if found.as_ref().is_none_or(|(known, ..)| cost < *known) {
                        found = Some((cost, i, j, result));
                    }
                }
            }
            let Some((_, i, j, result)) = found else { break };
            let (second, first) = (live.remove(j), live.remove(i));
            order.push((first.0, second.0));
            live.push((next, result));
            next += 1;
        }
        order
    }

    /// A term, summed over the labels that nobody needs.
    fn without(
        &self,
        l: &mut Lowerer<'_, '_>,
        term: Term,
        needed: &[Label],
    ) -> Result<Term, Error> {
        let axes: Vec<usize> =
            (0..term.labels.len()).filter(|&axis| !needed.contains(&term.labels[axis])).collect();
        if axes.is_empty() {
            return Ok(term);
        }
        let node = self.total(l, term.node, &axes)?;
        let labels = term.labels.into_iter().filter(|label| needed.contains(label)).collect();
        Ok(Term { node, labels })
    }

    /// A sum over axes, which go, in the type of the products.
    fn total(
        &self,
        l: &mut Lowerer<'_, '_>,
        node: NodeId,
        axes: &[usize],
    ) -> Result<NodeId, Error> {
        let mut how = vec![AxisReduce::Keep; l.b.shape(node).len()];
        for &axis in axes {
            how[axis] = AxisReduce::All;
        }
        let node = l.b.reduce(node, ReduceKind::Sum, &how).at(self.span)?;
        let node = l.b.cast(node, self.dtype).at(self.span)?;
        l.b.squeeze(node, axes).at(self.span)
    }

    /// The term with its axes in the order of `labels`; those that it has not have length 1.
    fn arranged(
        &self,
        l: &mut Lowerer<'_, '_>,
        term: &Term,
        labels: &[Label],
    ) -> Result<NodeId, Error> {
        let at = |label: &Label| term.labels.iter().position(|own| own == label);
        let order: Vec<usize> = labels.iter().filter_map(at).collect();
        let mut node = l.b.transpose(term.node, &order).at(self.span)?;
        for (axis, label) in labels.iter().enumerate() {
            if at(label).is_none() {
                node = l.b.expand_dims(node, axis).at(self.span)?;
            }
        }
        Ok(node)
    }

    /// The product of two terms, summed over the labels that both have and nobody needs.
    fn pair(
        &self,
        l: &mut Lowerer<'_, '_>,
        x: Term,
        y: Term,
        needed: &[Label],
    ) -> Result<Term, Error> {
        let pick = |of: &Term, keep: &dyn Fn(&Label) -> bool| -> Vec<Label> {
            of.labels.iter().copied().filter(|label| keep(label)).collect()
        };
        let stack = pick(&x, &|label| y.labels.contains(label) && needed.contains(label));
        // In the order of the larger side, which is read in place then.
        let [x_cells, y_cells] = [&x, &y].map(|t| self.size(t.labels.iter().copied()));
        let (larger, other) = if x_cells >= y_cells { (&x, &y) } else { (&y, &x) };
        let summed = pick(larger, &|l| other.labels.contains(l) && !needed.contains(l));
        let rows = pick(&x, &|label| !y.labels.contains(label));
        let columns = pick(&y, &|label| !x.labels.contains(label));
        let labels: Vec<Label> = stack.iter().chain(&rows).chain(&columns).copied().collect();
        if summed.is_empty() || rows.is_empty() && columns.is_empty() {
            let all: Vec<Label> = labels.iter().chain(&summed).copied().collect();
            let sides = [self.arranged(l, &x, &all)?, self.arranged(l, &y, &all)?];
            let mut node = l.b.map(ScalarOp::Mul, &sides).at(self.span)?;
            if !summed.is_empty() {
                let axes: Vec<usize> = (labels.len()..all.len()).collect();
                node = self.total(l, node, &axes)?;
            }
            return Ok(Term { node, labels });
        }
        let lengths = |labels: &[Label]| -> Vec<u64> {
            labels.iter().map(|&label| self.len(label)).collect()
        };
        let all = |parts: [&[Label]; 2]| -> Vec<Label> {
            stack.iter().chain(parts[0]).chain(parts[1]).copied().collect()
        };
        let left = self.arranged(l, &x, &all([&rows, &summed]))?;
        let right = self.arranged(l, &y, &all([&summed, &columns]))?;
        let (first, many) = (stack.len(), rows.len() + columns.len() + summed.len());
        let node = if first + many >= RANK_MAX {
            // More axes than there may be, joined to those of matrices.
            let joined =
                |labels: &[Label]| lengths(labels).into_iter().fold(1, u64::saturating_mul);
            let mut matrices = |node: NodeId, parts: [&[Label]; 2]| {
                let shape = [lengths(&stack), parts.map(joined).to_vec()].concat();
                l.b.reshape(node, &shape).at(self.span)
            };
            let left = matrices(left, [&rows, &summed])?;
            let right = matrices(right, [&summed, &columns])?;
            let node = l.b.contract(left, right).at(self.span)?;
            l.b.reshape(node, &lengths(&labels)).at(self.span)?
        } else {
            // A side that has no axes of its own gets one of length 1.
            let (mut left, mut right) = (left, right);
            if rows.is_empty() {
                left = l.b.expand_dims(left, first).at(self.span)?;
            }
            if columns.is_empty() {
                right = l.b.expand_dims(right, first + summed.len()).at(self.span)?;
            }
            let axes = Contraction {
                rows: rows.len().max(1),
                columns: columns.len().max(1),
                summed: summed.len(),
            };
            let node = l.b.contract_axes(left, right, axes).at(self.span)?;
            let extra = [(rows.is_empty(), first), (columns.is_empty(), first + axes.rows)];
            let extra: Vec<usize> = extra.into_iter().filter(|e| e.0).map(|e| e.1).collect();
            l.b.squeeze(node, &extra).at(self.span)?
        };
        Ok(Term { node, labels })
    }

    /// The last term as the result.
    fn finish(
        &self,
        l: &mut Lowerer<'_, '_>,
        term: Term,
        output: &[Label],
    ) -> Result<Tensor, Error> {
        let term = self.without(l, term, output)?;
        let node = self.arranged(l, &term, output)?;
        let dims = output
            .iter()
            .map(|label| {
                let found = self.axes.iter().find(|(other, _, _)| other == label);
                found.map_or_else(Dim::default, |(_, _, dim)| dim.clone())
            })
            .collect();
        Ok(Tensor::new(node, unique(dims)))
    }
}

/// The pairs of the best tree of a set, innermost first; gives the number of its product.
fn tree(
    set: usize,
    best: &[(u128, usize)],
    terms: usize,
    order: &mut Vec<(usize, usize)>,
) -> usize {
    if set.count_ones() == 1 {
        return set.trailing_zeros() as usize;
    }
    let half = best[set].1;
    let x = tree(half, best, terms, order);
    let y = tree(set & !half, best, terms, order);
    order.push((x, y));
    terms + order.len() - 1
}

#[cfg(test)]
#[path = "einsum/tests.rs"]
mod tests;
