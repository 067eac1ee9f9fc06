//! Marker calls that represent tensor syntax inside sqlparser's closed `Expr`.
//!
//! A marker's name has the quote `[`, which no text can produce: `__index(a, 0)` written by a
//! user is a call of an unknown function and never a subscript.

use sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgOperator, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, Value,
};
use sqlparser::tokenizer::Span;

pub(crate) const INDEX: &str = "__index";
pub(crate) const SLICE: &str = "__slice";
pub(crate) const ELLIPSIS: &str = "__ellipsis";
pub(crate) const NEWAXIS: &str = "__newaxis";
pub(crate) const NUMBERS: &str = "__numbers";
/// The match condition of `ASOF JOIN … ON`.
pub(crate) const ASOF: &str = "__asof";
/// The match condition of `ASOF LEFT JOIN … ON`.
pub(crate) const ASOF_LEFT: &str = "__asof_left";

/// The columns of `GROUP BY` of a `PIVOT`.
pub(crate) const KEYS: &str = "__keys";

/// The several columns of `PIVOT … ON`, of which some are `IN` a list of values.
pub(crate) const PIVOTED: &str = "__pivoted";

/// The columns of `COLUMNS` as arguments: `*COLUMNS(…)`.
pub(crate) const SPREAD: &str = "__spread";
/// The names of these columns as arguments.
pub(crate) const NAMES: &str = "__names";
/// All columns but the arguments.
pub(crate) const OTHERS: &str = "__others";

/// The exclusion of a frame.
pub(crate) const EXCLUDE: &str = "__exclude";

pub(crate) const QUOTE: char = '[';

/// The name of a marker; its span is that of the syntax it represents.
pub(crate) fn name(text: &str, span: Span) -> Ident {
    Ident::with_quote_and_span(QUOTE, span, text)
}

pub(crate) fn call(name: Ident, args: Vec<FunctionArg>) -> Expr {
    let list = FunctionArgumentList { duplicate_treatment: None, args, clauses: vec![] };
    Expr::Function(Function {
        name: ObjectName::from(vec![name]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(list),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

pub(crate) fn positional(expr: Expr) -> FunctionArg {
    FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))
}

pub(crate) fn named(name: Ident, expr: Expr) -> FunctionArg {
    let operator = FunctionArgOperator::RightArrow;
    FunctionArg::Named { name, arg: FunctionArgExpr::Expr(expr), operator }
}

/// The literal `NULL`, which also represents an omitted bound of a slice.
pub fn null() -> Expr {
    Expr::Value(Value::Null.into())
}

/// The arguments and the span of a marker called `text`.
pub(super) fn read<'a>(expr: &'a Expr, text: &str) -> Option<(&'a [FunctionArg], Span)> {
    let Expr::Function(function) = expr else { return None };
    let [part] = function.name.0.as_slice() else { return None };
    let ident = part.as_ident()?;
    let FunctionArguments::List(list) = &function.args else { return None };
    (ident.quote_style == Some(QUOTE) && ident.value == text)
        .then_some((list.args.as_slice(), ident.span))
}
