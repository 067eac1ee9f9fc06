//! Sums of products over named axes: `einsum`, and the functions that are special cases of it.
//!
//! ```text
//!   einsum('bij,bjk->bik', p, q)
//!     1. letters become labels, `...` becomes the axes without letters
//!     2. a repeated label in one operand is its diagonal; a label of one operand alone is summed at once
//!     3. a search finds the cheapest order of pairs
//!     4. a pair is `[b.., m.., k..] @ [b.., k.., n..]` after transposes, or, where only sums remain, a product
//!        and a sum in one pass
//! ```

mod diagonal;
mod order;
mod products;
mod subscripts;
mod sum;

use tessera_planner::dtype::DType;

use super::{Bound, Open, Row, row};
use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{Lowerer, fail, types, unsupported};
use diagonal::{diagonal, trace};
use products::{inner, kron, tensordot};

pub(super) use diagonal::take_diagonal;
pub(super) use sum::sum_of_products;

const TYPES: &str = "numeric, NumPy's promotion; integers wrap";
const MASKS: &str = "products with a masked factor are skipped; NaN propagates";

pub(super) const ROWS: &[Row] = &[
    row(
        "einsum(subscripts, x, y, …)",
        einsum,
        "Sum of products over the letters that the result has not: any number of operands, \
         repeated letters, `...`, and without `->` the letters that occur once, in order. The \
         cheapest order of products is searched.",
    )
    .takes(&["subscripts"], 1, Open::Many)
    .dtypes(TYPES)
    .missing(MASKS)
    .example("SELECT einsum('bij,bjk->bik', p, q) FROM p, q"),
    row(
        "tensordot(x, y, axes => 2)",
        tensordot,
        "Sum of products over the last n dimensions of x and the first n of y, or over the \
         pairs of dimensions of two lists.",
    )
    .dtypes(TYPES)
    .missing(MASKS)
    .example("SELECT tensordot(x, y, axes => [[1, 0], [0, 1]]) FROM x, y"),
    row("inner(x, y)", inner, "Sum of products over the last dimensions of both.")
        .dtypes(TYPES)
        .missing(MASKS),
    row("kron(x, y)", kron, "Kronecker product: blocks of y, each times a cell of x.")
        .dtypes(TYPES)
        .missing("masked where either is")
        .example("SELECT kron(eye(3), x) FROM x"),
    row(
        "trace(x, offset => 0, axis1 => 0, axis2 => 1)",
        trace,
        "Sum along a diagonal of two dimensions.",
    )
    .dtypes("as sum")
    .missing("masked cells are skipped; NaN propagates"),
    row(
        "diagonal(x, offset => 0, axis1 => 0, axis2 => 1)",
        diagonal,
        "A diagonal of two dimensions, as the last dimension.",
    )
    .missing("masks move with their cells"),
];

/// An axis of a sum of products; axes with equal labels are iterated together.
type Label = u32;

/// The tensors of some arguments, in one type that supports products.
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
        return fail(types(a.name, vec![dtype.name()]), a.span);
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
    let (terms, output) = match subscripts::read(&text, &tensors) {
        Ok(read) => read,
        Err(reason) => return wrong(reason),
    };
    let operands = tensors.into_iter().zip(terms).collect();
    sum_of_products(l, a.name, a.span, dtype, operands, &output).map(Value::Tensor)
}

#[cfg(test)]
#[path = "einsum/tests.rs"]
mod tests;
