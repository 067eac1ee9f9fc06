//! Subscripts of lists and structs.
//!
//! | written | becomes |
//! |---|---|
//! | `li[1]`, `li[-1]` | `array_element(li, 1)`, `array_element(li, -1)` |
//! | `li[2:3]`, `li[:2]`, `li[-2:]` | `array_slice(li, 2, 3)`, `array_slice(li, 1, 2)`, `array_slice(li, -2, -1)` |
//! | `li[1:5:2]`, `li[::-1]` | `array_slice(li, 1, 5, 2)`, `array_slice(li, -1, 1, -1)` |
//! | `st['a']` | `get_field(st, 'a')` |
//!
//! Types are known only when the query is planned. So a subscript of a column of a tensor is rewritten, too, and refused
//! once the tables of the query are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::logical_expr::TableSource;
use sqlparser::ast::{Expr, ObjectNamePart, UnaryOperator, Value};
use tessera_frontend::ast::{self, Axis, Slice};
use tessera_frontend::error::Error;
use tessera_frontend::functions::is_tensor_function;

use super::super::table::CellSource;
use super::ours::integer;
use super::{call, intervals};

/// A rewritten subscript of a column, with the error for a column of a tensor.
pub(super) struct Subscript {
    pub(super) column: String,
    pub(super) error: Error,
}

/// The call with the meaning of a subscript of one position, slice or field; `None` for other expressions.
pub(super) fn element(expr: &Expr) -> Option<Expr> {
    let subscript = ast::subscript(expr)?;
    let [axis] = subscript.axes.as_slice() else { return None };
    let is_base = match subscript.base {
        Expr::Function(_) => {
            !ast::function_name(subscript.base).is_some_and(|name| is_tensor_function(&name.value))
                || intervals::of_list(subscript.base).is_some()
        }
        Expr::Identifier(_)
        | Expr::CompoundIdentifier(_)
        | Expr::CompoundFieldAccess { .. }
        | Expr::Nested(_)
        | Expr::Array(_) => true,
        _ => false,
    };
    if !is_base {
        return None;
    }
    let base = subscript.base.clone();
    let mut selected = match axis {
        Axis::Index(Expr::Value(field)) if matches!(field.value, Value::SingleQuotedString(_)) => {
            call("get_field", vec![base, Expr::Value(field.clone())])
        }
        Axis::Index(index) => call("array_element", vec![base, (*index).clone()]),
        Axis::Slice(slice) => call("array_slice", sliced(base, slice)),
        _ => return None,
    };
    if let Expr::Function(function) = &mut selected
        && let Some(ObjectNamePart::Identifier(name)) = function.name.0.first_mut()
    {
        name.span = subscript.span;
    }
    Some(selected)
}

/// A list with the bounds of a slice, which include both ends, and its step. A slice without bounds has all elements.
fn sliced(list: Expr, slice: &Slice<'_>) -> Vec<Expr> {
    let is_back = matches!(slice.step, Some(Expr::UnaryOp { op: UnaryOperator::Minus, .. }));
    let (first, last) = if is_back { (-1, 1) } else { (1, -1) };
    let lo = slice.lo.cloned().unwrap_or_else(|| integer(first));
    let hi = slice.hi.cloned().unwrap_or_else(|| integer(last));
    [list, lo, hi].into_iter().chain(slice.step.cloned()).collect()
}

/// The column that a subscript selects from, if it is one.
pub(super) fn column(expr: &Expr) -> Option<String> {
    match ast::subscript(expr)?.base {
        Expr::Identifier(name) => Some(name.value.clone()),
        Expr::CompoundIdentifier(parts) => parts.last().map(|name| name.value.clone()),
        _ => None,
    }
}

/// The error for the first subscript of a column that only tensors have.
pub(super) fn of_tensors(
    subscripts: Vec<Subscript>,
    tables: &BTreeMap<String, Arc<dyn TableSource>>,
) -> Option<Error> {
    let has = |column: &str, is_tensor: bool| {
        tables.values().any(|table| {
            let schema = table.schema();
            let mut fields = schema.fields().iter();
            table.is::<CellSource>() == is_tensor
                && fields.any(|field| field.name().eq_ignore_ascii_case(column))
        })
    };
    let mut subscripts = subscripts.into_iter();
    subscripts.find(|of| has(&of.column, true) && !has(&of.column, false)).map(|of| of.error)
}
