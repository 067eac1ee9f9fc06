//! Products of two tensors: `tensordot`, `inner` and `kron`.

use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;

use super::sum::sum_of_products;
use super::{Label, factors};
use crate::error::Error;
use crate::functions::Bound;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, unsupported};

/// Assigns distinct labels 0, 1, … to the axes of two tensors.
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

pub(super) fn tensordot(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
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
        return misshapen(
            a.name,
            &[shapes.0, shapes.1],
            "the dimensions that are summed must have equal lengths",
            a.span,
        );
    }
    let output: Vec<Label> = (0..rank_x)
        .filter(|i| !of_x.contains(i))
        .map(|i| labels_x[i])
        .chain((0..rank_y).filter(|j| !of_y.contains(j)).map(|j| labels_y[j]))
        .collect();
    let operands = vec![(x, labels_x), (y, labels_y)];
    sum_of_products(l, a.name, a.span, dtype, operands, &output).map(Value::Tensor)
}

pub(super) fn inner(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y, dtype) = two(l, a)?;
    let (labels_x, mut labels_y) = numbered(&x, &y);
    let mut output: Vec<Label> = labels_x.clone();
    if let (Some(of_x), Some(of_y)) = (labels_x.last(), labels_y.last_mut()) {
        let (nx, ny) = (l.b.shape(x.node), l.b.shape(y.node));
        if nx.last() != ny.last() {
            return misshapen(
                a.name,
                &[nx, ny],
                "the last dimensions must have equal lengths",
                a.span,
            );
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

pub(super) fn kron(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (x, y, _) = two(l, a)?;
    let rank = x.dims.len().max(y.dims.len());
    let mut shape = Vec::with_capacity(rank);
    let mut nodes = Vec::with_capacity(2);
    for (at, t) in [&x, &y].into_iter().enumerate() {
        let own = l.b.shape(t.node);
        let lead = rank - own.len();
        let mut node = t.node;
        for axis in 0..rank {
            // The new axis of length 1 follows each axis of x and precedes each axis of y.
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
