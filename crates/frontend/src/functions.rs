//! The functions of the tensor surface: one row each, and how each is lowered.
//!
//! A function is a row, not a kernel: all lower to the few primitives of the IR.

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
mod scan;
mod selection;
mod statistics;
mod tables;
mod window;

use std::sync::LazyLock;

use sqlparser::ast::Ident;
use sqlparser::tokenizer::Span;

use crate::ast::Call;
use crate::error::{Error, Position, nearest};
use crate::lower::value::Value;
use crate::lower::{Lowerer, unsupported};
pub(crate) use args::Bound;

/// What `SHOW FUNCTIONS` and the help say of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionRow {
    /// The name, in lower case.
    pub name: &'static str,
    /// The call with all arguments, optional ones with their defaults.
    pub signature: &'static str,
    /// What it gives, in a sentence.
    pub doc: &'static str,
    /// The types that it takes, and the type that it gives.
    pub dtypes: &'static str,
    /// What masked cells and NaN do.
    pub missing: &'static str,
    /// A call.
    pub example: &'static str,
    /// The same in NumPy or xarray.
    pub numpy: &'static str,
}

/// Arguments beyond the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// None.
    No,
    /// Any number without a name.
    Many,
    /// Named by the dimensions of the first argument.
    Dims,
}

/// How a call is lowered.
type Lower = fn(&mut Lowerer<'_, '_>, &Bound<'_>) -> Result<Value, Error>;

/// A function.
struct Function {
    row: FunctionRow,
    params: &'static [&'static str],
    required: usize,
    open: Open,
    lower: Lower,
}

/// The groups, in the order in which they are listed.
const GROUPS: &[&[Function]] = &[
    creation::ROWS,
    elementwise::floats::ROWS,
    elementwise::rounding::ROWS,
    elementwise::arithmetic::ROWS,
    elementwise::logic::ROWS,
    elementwise::missing::ROWS,
    elementwise::ROWS,
    dates::ROWS,
    reduce::ROWS,
    scan::ROWS,
    window::ROWS,
    order::ROWS,
    bins::ROWS,
    tables::ROWS,
    neighbours::ROWS,
    resample::ROWS,
    arrange::ROWS,
    compare::ROWS,
    grouping::ROWS,
    layout::ROWS,
    coords::ROWS,
    selection::ROWS,
    indexing::ROWS,
    linalg::ROWS,
    einsum::ROWS,
    factor::ROWS,
    statistics::ROWS,
];

/// Groups whose functions give or take whole tensors and are unknown to plain SQL.
const TENSOR_ONLY: &[&[Function]] = &[
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

/// All functions of the tensor surface.
pub fn functions() -> &'static [FunctionRow] {
    static ALL: LazyLock<Vec<FunctionRow>> = LazyLock::new(|| {
        let mut rows: Vec<FunctionRow> = all().map(|f| f.row).collect();
        rows.sort_by_key(|row| row.name);
        rows
    });
    &ALL
}

/// Whether a block without `FROM` that calls this function is one of tensors: true for functions
/// that make or rearrange tensors, false for those that SQL has for cells too (`sqrt`, `sum`).
pub fn is_tensor_function(name: &str) -> bool {
    let is = |f: &Function| f.row.name.eq_ignore_ascii_case(name);
    TENSOR_ONLY.iter().any(|group| group.iter().any(is))
        || planned::is_planned(name)
        || name.eq_ignore_ascii_case("tensor")
}

fn all() -> impl Iterator<Item = &'static Function> {
    GROUPS.iter().chain([&elementwise::TENSOR_ROWS]).flat_map(|group| group.iter())
}

/// Aggregates that cells have and tensors have not, or under other names.
const SQL_AGGREGATES: [&str; 22] = [
    "approx_distinct",
    "approx_median",
    "approx_percentile_cont",
    "array_agg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "corr",
    "covar",
    "covar_pop",
    "covar_samp",
    "first_value",
    "last_value",
    "nth_value",
    "percentile_cont",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "var_pop",
];

/// Whether SQL aggregates rows with a function of that name.
pub fn is_aggregate(name: &str) -> bool {
    let known = SQL_AGGREGATES.iter().any(|known| known.eq_ignore_ascii_case(name));
    let groups = [reduce::ROWS, order::ROWS];
    known || groups.iter().any(|rows| rows.iter().any(|f| f.row.name.eq_ignore_ascii_case(name)))
}

/// Lowers a call.
pub(crate) fn lower(
    lowerer: &mut Lowerer<'_, '_>,
    call: &Call<'_>,
    span: Span,
) -> Result<Value, Error> {
    let found = all().find(|f| f.row.name == call.name.value);
    let found = found.or_else(|| all().find(|f| f.row.name.eq_ignore_ascii_case(&call.name.value)));
    let Some(function) = found else { return unknown(call.name, span) };
    let bound = Bound::new(function, call, span)?;
    (function.lower)(lowerer, &bound)
}

fn unknown(name: &Ident, span: Span) -> Result<Value, Error> {
    if planned::is_planned(&name.value) {
        return unsupported(&format!("the function `{}`", name.value), span);
    }
    if SQL_AGGREGATES.iter().any(|known| known.eq_ignore_ascii_case(&name.value)) {
        return Err(Error::Cells {
            code: "wrong_surface",
            message: format!(
                "the function {name} belongs to the cell surface, and this is a tensor block: it has no clause that speaks of cells"
            ),
            position: Position::of_span(name.span),
            hint: Some("write FROM CELLS(x), or add GROUP BY or WHERE".to_string()),
        });
    }
    let names: Vec<&str> = functions().iter().map(|row| row.name).collect();
    Err(Error::UnknownName {
        kind: "function",
        name: name.value.clone(),
        candidates: nearest(&name.value, &names)
            .map(|name| vec![name.to_string()])
            .unwrap_or_default(),
        position: Position::of_span(name.span),
    })
}

/// A row: name, signature, parameters, how many are required, what else is taken, how it is
/// lowered; then the words of its help.
#[expect(clippy::too_many_arguments, reason = "a table's row")]
const fn row(
    name: &'static str,
    signature: &'static str,
    params: &'static [&'static str],
    required: usize,
    open: Open,
    lower: Lower,
    doc: &'static str,
    dtypes: &'static str,
    missing: &'static str,
    example: &'static str,
    numpy: &'static str,
) -> Function {
    let row = FunctionRow { name, signature, doc, dtypes, missing, example, numpy };
    Function { row, params, required, open, lower }
}

#[cfg(test)]
#[path = "functions/tests.rs"]
mod tests;
