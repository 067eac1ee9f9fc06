//! The functions of the tensor surface: one row each, with the function that lowers it.
//!
//! A function is a row, not a kernel: all functions lower to the few primitives of the IR.

mod args;
mod arrange;
mod bins;
mod compare;
mod coords;
mod creation;
mod dates;
mod einsum;
mod elementwise;
mod factor;
mod grouping;
mod indexing;
mod layout;
mod linalg;
mod neighbours;
mod order;
mod planned;
mod reduce;
mod resample;
mod row;
mod scan;
mod selection;
mod statistics;
mod tables;
mod window;

use std::sync::LazyLock;

use sqlparser::ast::{BinaryOperator, Expr, Ident};
use sqlparser::tokenizer::Span;

use crate::ast::{self, Call};
use crate::error::{Error, Position, nearest};
use crate::lower::value::Value;
use crate::lower::{Lowerer, unsupported};
pub(crate) use args::Bound;
pub use row::Function;
use row::{Open, Row, row};

/// Groups of functions that plain SQL also has for cells, besides elementwise ones.
const CELL_GROUPS: &[&[Row]] = &[dates::ROWS, reduce::ROWS];

/// Groups of functions that return or take whole tensors and are unknown to plain SQL.
const TENSOR_GROUPS: &[&[Row]] = &[
    creation::ROWS,
    scan::ROWS,
    window::ROWS,
    order::ROWS,
    bins::ROWS,
    tables::ROWS,
    neighbours::ROWS,
    resample::ROWS,
    arrange::ROWS,
    compare::ROWS,
    compare::CELL_ROWS,
    grouping::ROWS,
    layout::ROWS,
    coords::ROWS,
    selection::ROWS,
    indexing::ROWS,
    linalg::ROWS,
    einsum::ROWS,
    factor::ROWS,
    statistics::ROWS,
    elementwise::TENSOR_ROWS,
];

/// Groups of functions that compute each cell from the cells of their arguments at the same place, and that plain SQL
/// also has.
const ELEMENTWISE_GROUPS: &[&[Row]] = &[
    elementwise::floats::ROWS,
    elementwise::rounding::ROWS,
    elementwise::arithmetic::ROWS,
    elementwise::logic::ROWS,
    elementwise::missing::ROWS,
    elementwise::ROWS,
];

/// All functions of the tensor surface, by name.
pub fn functions() -> &'static [Function] {
    static ALL: LazyLock<Vec<Function>> = LazyLock::new(|| {
        let groups = ELEMENTWISE_GROUPS.iter().chain(CELL_GROUPS).chain(TENSOR_GROUPS);
        let mut all: Vec<Function> = groups.flat_map(|rows| *rows).map(Row::function).collect();
        all.sort_by_key(|f| f.name);
        all
    });
    &ALL
}

/// The elementwise functions of numbers, by name. Parts of dates are not among them.
pub fn elementwise() -> impl Iterator<Item = &'static Function> {
    const OTHERS: &[&[Row]] = &[elementwise::TENSOR_ROWS, compare::CELL_ROWS];
    functions().iter().filter(|f| has(ELEMENTWISE_GROUPS, f.name) || has(OTHERS, f.name))
}

/// True if a block without `FROM` that calls this function is a tensor block: true for functions
/// that create or rearrange tensors, false for those that SQL also has for cells (`sqrt`, `sum`).
pub fn is_tensor_function(name: &str) -> bool {
    has(TENSOR_GROUPS, name) || planned::is_planned(name) || name.eq_ignore_ascii_case("tensor")
}

/// True if one of the groups has a function of that name.
fn has(groups: &[&[Row]], name: &str) -> bool {
    groups.iter().flat_map(|rows| *rows).any(|row| row.name().eq_ignore_ascii_case(name))
}

/// Aggregates that cells have and tensors lack, or have under other names.
const SQL_AGGREGATES: [&str; 44] = [
    "approx_count_distinct",
    "approx_distinct",
    "approx_median",
    "approx_percentile_cont",
    "approx_quantile",
    "arg_max",
    "arg_min",
    "array_agg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "corr",
    "count_if",
    "countif",
    "covar",
    "covar_pop",
    "covar_samp",
    "first",
    "first_value",
    "group_concat",
    "histogram",
    "kurtosis",
    "kurtosis_pop",
    "last",
    "last_value",
    "list",
    "listagg",
    "max_by",
    "min_by",
    "mode",
    "nth_value",
    "percentile_cont",
    "percentile_disc",
    "product",
    "quantile_cont",
    "quantile_disc",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "skewness",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "var_pop",
];

/// True if SQL has an aggregate function of that name.
pub fn is_aggregate(name: &str) -> bool {
    SQL_AGGREGATES.iter().any(|known| known.eq_ignore_ascii_case(name))
        || has(&[reduce::ROWS, order::ROWS], name)
}

/// True if cells have an aggregate of that name and tensors have no function of that name.
pub(crate) fn is_row_aggregate(name: &str) -> bool {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    SQL_AGGREGATES.iter().any(|known| is(known)) && !functions().iter().any(|f| is(f.name))
}

pub(crate) fn lower(
    lowerer: &mut Lowerer<'_, '_>,
    call: &Call<'_>,
    span: Span,
) -> Result<Value, Error> {
    let found = functions().iter().find(|f| f.name.eq_ignore_ascii_case(&call.name.value));
    let Some(function) = found else { return unknown(call.name, span) };
    let lowered = Bound::new(function, call, span).and_then(|b| (function.lower)(lowerer, &b));
    lowered.map_err(|error| equals(error, function, call))
}

/// Adds the spelling of named arguments to the error of a call such as `mean(x, axis = 0)`.
fn equals(error: Error, function: &Function, call: &Call<'_>) -> Error {
    let found = call.positional.iter().skip(1).find_map(|arg| match arg {
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => match &**left {
            Expr::Identifier(name) => Some((name, ast::text(right)?)),
            _ => None,
        },
        _ => None,
    });
    let Some((name, value)) = found else { return error };
    let parameters = &function.parameters;
    let is_argument = parameters.open == Open::Dims
        || parameters.names.iter().any(|known| known.eq_ignore_ascii_case(&name.value));
    let is_about = match &error {
        Error::UnknownName { name: unknown, .. } => *unknown == name.value,
        Error::Bind { .. } => is_argument && error.hint().is_none(),
        _ => false,
    };
    if !is_about {
        return error;
    }
    Error::Cells {
        code: error.code(),
        message: error.to_string(),
        position: error.position(),
        hint: Some(format!("named arguments are written `{name} => {value}`")),
    }
}

fn unknown(name: &Ident, span: Span) -> Result<Value, Error> {
    if planned::is_planned(&name.value) {
        return unsupported(&format!("the function `{}`", name.value), span);
    }
    if is_row_aggregate(&name.value) {
        return Err(Error::Cells {
            code: "wrong_surface",
            message: format!(
                "the function {name} belongs to the cell surface, and this is a tensor block: it has no clause that refers to cells"
            ),
            position: Position::of_span(name.span),
            hint: Some(
                "over one relation it needs nothing else; join several by their labels: `FROM a JOIN b USING (lat, lon)`"
                    .to_string(),
            ),
        });
    }
    let names: Vec<&str> = functions().iter().map(|f| f.name).collect();
    Err(Error::UnknownName {
        kind: "function",
        name: name.value.clone(),
        candidates: nearest(&name.value, &names)
            .map(|name| vec![name.to_string()])
            .unwrap_or_default(),
        position: Position::of_span(name.span),
    })
}

#[cfg(test)]
#[path = "functions/tests.rs"]
mod tests;
