//! Typed views of the parsed tensor syntax, so that no later stage looks at marker names.
//!
//! All views borrow from sqlparser's AST. An empty span belongs to a synthesised node;
//! [`crate::Position::of_span`] turns a span into a place for an error.

pub(crate) mod marker;
mod relation;
mod text;

use sqlparser::ast::{
    AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Query,
    SelectItem, Spanned, Value,
};
use sqlparser::tokenizer::Span;

pub use marker::null;
pub use relation::{Relation, TENSOR_FORMATS, UrlKind, relation};
pub use text::text;

/// `base[axes, …]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Subscript<'a> {
    /// The subscripted expression.
    pub base: &'a Expr,
    /// The axes in the order they were written; at least one.
    pub axes: Vec<Axis<'a>>,
    /// From `[` to `]`.
    pub span: Span,
}

/// One item between the brackets of a subscript.
#[derive(Debug, Clone, PartialEq)]
pub enum Axis<'a> {
    /// A position, or a tensor of positions or booleans.
    Index(&'a Expr),
    /// `lo:hi:step`: positions, 0-based, end-exclusive.
    Slice(Slice<'a>),
    /// `...`: all axes that have no subscript of their own.
    Ellipsis(Span),
    /// `NEWAXIS`: a new axis of length 1.
    NewAxis(Span),
    /// `dim => label` or `dim => lo:hi`: labels, inclusive.
    Named {
        /// The dimension.
        dim: &'a Ident,
        /// The selection along it.
        selection: Selection<'a>,
    },
}

/// The selection along a named axis.
#[derive(Debug, Clone, PartialEq)]
pub enum Selection<'a> {
    /// One label, or a tensor of labels.
    Index(&'a Expr),
    /// A range of labels.
    Slice(Slice<'a>),
}

/// `lo:hi:step`; an omitted bound, or `NULL`, is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice<'a> {
    /// The first position or label.
    pub lo: Option<&'a Expr>,
    /// The end, exclusive for positions and inclusive for labels.
    pub hi: Option<&'a Expr>,
    /// The step.
    pub step: Option<&'a Expr>,
    /// The whole slice.
    pub span: Span,
}

/// Reads `base[…]`; `None` for any other expression.
pub fn subscript(expr: &Expr) -> Option<Subscript<'_>> {
    let (args, span) = marker::read(expr, marker::INDEX)?;
    let (base, axes) = args.split_first()?;
    let axes = axes.iter().map(axis).collect::<Option<Vec<_>>>()?;
    Some(Subscript { base: value(base)?, axes, span })
}

fn axis(arg: &FunctionArg) -> Option<Axis<'_>> {
    let expr = value(arg)?;
    if let FunctionArg::Named { name, .. } = arg {
        let selection = match slice(expr) {
            Some(slice) => Selection::Slice(slice),
            None => Selection::Index(expr),
        };
        return Some(Axis::Named { dim: name, selection });
    }
    if let Some((_, span)) = marker::read(expr, marker::ELLIPSIS) {
        return Some(Axis::Ellipsis(span));
    }
    if let Some((_, span)) = marker::read(expr, marker::NEWAXIS) {
        return Some(Axis::NewAxis(span));
    }
    Some(slice(expr).map_or(Axis::Index(expr), Axis::Slice))
}

fn slice(expr: &Expr) -> Option<Slice<'_>> {
    let (args, span) = marker::read(expr, marker::SLICE)?;
    let [lo, hi, step] = args else { return None };
    Some(Slice { lo: bound(lo), hi: bound(hi), step: bound(step), span })
}

fn bound(arg: &FunctionArg) -> Option<&Expr> {
    value(arg).filter(|expr| !matches!(expr, Expr::Value(value) if value.value == Value::Null))
}

fn value(arg: &FunctionArg) -> Option<&Expr> {
    match arg {
        FunctionArg::Unnamed(arg)
        | FunctionArg::Named { arg, .. }
        | FunctionArg::ExprNamed { arg, .. } => match arg {
            FunctionArgExpr::Expr(expr) => Some(expr),
            _ => None,
        },
    }
}

/// `name(positional, …, name => value, …)` with expressions only: the shape of every tensor
/// function, and of `a @ b` (`matmul`) and `a ^ b` (`power`).
#[derive(Debug, Clone, PartialEq)]
pub struct Call<'a> {
    /// The function's name; its span is the operator's for `@` and `^`.
    pub name: &'a Ident,
    /// Positional arguments.
    pub positional: Vec<&'a Expr>,
    /// Named arguments as written; duplicates and unknown names are not checked here.
    pub named: Vec<(&'a Ident, &'a Expr)>,
}

/// Reads a plain call. Returns `None` for other expressions, for subscripts, and for calls with
/// more than arguments (`DISTINCT`, `*`, `FILTER`, `OVER`, `WITHIN GROUP`, a subquery, a qualified
/// name).
pub fn call(expr: &Expr) -> Option<Call<'_>> {
    let Expr::Function(function) = expr else { return None };
    if subscript(expr).is_some() || has_clauses(function) {
        return None;
    }
    let [part] = function.name.0.as_slice() else { return None };
    let mut call = Call { name: part.as_ident()?, positional: Vec::new(), named: Vec::new() };
    match &function.args {
        FunctionArguments::None => {}
        FunctionArguments::Subquery(_) => return None,
        FunctionArguments::List(list) => {
            if list.duplicate_treatment.is_some() || !list.clauses.is_empty() {
                return None;
            }
            for arg in &list.args {
                let expr = value(arg)?;
                match arg {
                    FunctionArg::Unnamed(_) => call.positional.push(expr),
                    FunctionArg::Named { name, .. } => call.named.push((name, expr)),
                    FunctionArg::ExprNamed { .. } => return None,
                }
            }
        }
    }
    Some(call)
}

fn has_clauses(function: &Function) -> bool {
    function.filter.is_some()
        || function.over.is_some()
        || function.null_treatment.is_some()
        || !function.within_group.is_empty()
        || function.uses_odbc_syntax
        || !matches!(function.parameters, FunctionArguments::None)
}

/// The query of `tensor(SELECT …)`, also of `tensor((SELECT …))`.
pub fn tensor_of(function: &Function) -> Option<&Query> {
    let [part] = function.name.0.as_slice() else { return None };
    let name = part.as_ident()?;
    if !name.value.eq_ignore_ascii_case("tensor") || has_clauses(function) {
        return None;
    }
    match &function.args {
        FunctionArguments::Subquery(query) => Some(query),
        FunctionArguments::List(list) => match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Subquery(query)))] => Some(query),
            _ => None,
        },
        FunctionArguments::None => None,
    }
}

/// The arguments of `COLUMNS(…)`, which stands for several columns, and the span of its name.
pub fn columns(expr: &Expr) -> Option<(&[FunctionArg], Span)> {
    let Expr::Function(function) = expr else { return None };
    let [part] = function.name.0.as_slice() else { return None };
    let name = part.as_ident()?;
    let FunctionArguments::List(list) = &function.args else { return None };
    let is_columns = name.quote_style.is_none() && name.value.eq_ignore_ascii_case("columns");
    (is_columns && !has_clauses(function)).then_some((list.args.as_slice(), name.span))
}

/// What a call makes of the columns that `COLUMNS` among its arguments stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// `*COLUMNS(…)`: they are arguments of the call around it.
    Columns,
    /// Their names are arguments of the call around it.
    Names,
    /// All columns but the arguments.
    Others,
}

/// Reads such a call.
pub fn spread(expr: &Expr) -> Option<(Spread, &[FunctionArg])> {
    let kinds = [
        (marker::SPREAD, Spread::Columns),
        (marker::NAMES, Spread::Names),
        (marker::OTHERS, Spread::Others),
    ];
    kinds.into_iter().find_map(|(name, kind)| Some((kind, marker::read(expr, name)?.0)))
}

/// The path or URL of `CELLS('url')`.
pub fn url_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(url) => Some(url),
            _ => None,
        },
        Expr::Nested(inner) => url_of(inner),
        _ => None,
    }
}

/// The name of any function call (also with `OVER`, `DISTINCT`, `*`), unless it is qualified.
pub fn function_name(expr: &Expr) -> Option<&Ident> {
    let Expr::Function(function) = expr else { return None };
    match function.name.0.as_slice() {
        [part] if subscript(expr).is_none() => part.as_ident(),
        _ => None,
    }
}

/// Reads a numeric item of a block without `FROM`, which the lift marks so that the block is a tensor block.
pub(crate) fn numbers(expr: &Expr) -> Option<&Expr> {
    match marker::read(expr, marker::NUMBERS)? {
        ([arg], _) => value(arg),
        _ => None,
    }
}

/// Marks a numeric item.
pub fn numbers_of(expr: Expr) -> Expr {
    let name = marker::name(marker::NUMBERS, expr.span());
    marker::call(name, vec![marker::positional(expr)])
}

/// The exclusion of a window's frame (`TIES`), if the key of its partitions is the marker for it.
pub fn exclusion(key: &Expr) -> Option<&str> {
    match marker::read(key, marker::EXCLUDE)? {
        ([arg], _) => value(arg).and_then(url_of),
        _ => None,
    }
}

/// The columns of `GROUP BY` of a `PIVOT`, if its `DEFAULT ON NULL` is the marker for them.
pub(crate) fn pivot_keys(default: &Expr) -> Option<Vec<&Expr>> {
    let (args, _) = marker::read(default, marker::KEYS)?;
    args.iter().map(value).collect()
}

/// The columns of `PIVOT … ON a, b`, if its column is the marker for several.
pub(crate) fn pivot_columns(column: &Expr) -> Option<Vec<&Expr>> {
    let (args, _) = marker::read(column, marker::PIVOTED)?;
    args.iter().map(value).collect()
}

/// One of several columns of a `PIVOT` that has a list of values, and the list.
pub(crate) fn pivot_list(column: &Expr) -> Option<(&Expr, &[Expr])> {
    match column {
        Expr::InList { expr, list, negated: false } => Some((expr, list)),
        _ => None,
    }
}

/// `base.field`, where `base` is not a name: `svd(a).u`, `x[0].T`.
///
/// Names joined by dots are `Expr::CompoundIdentifier` and not matched here. Several fields in a
/// row (`f(x).a.b`) are returned in the order they apply.
pub fn field(expr: &Expr) -> Option<(&Expr, Vec<&Ident>)> {
    let Expr::CompoundFieldAccess { root, access_chain } = expr else { return None };
    let fields = access_chain
        .iter()
        .map(|access| match access {
            AccessExpr::Dot(Expr::Identifier(field)) => Some(field),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()?;
    Some((root, fields))
}

/// The expression of a select item, with its alias.
pub fn expr_of(item: &SelectItem) -> Option<(&Expr, Option<&Ident>)> {
    match item {
        SelectItem::UnnamedExpr(expr) => Some((expr, None)),
        SelectItem::ExprWithAlias { expr, alias } => Some((expr, Some(alias))),
        _ => None,
    }
}

/// The dimension of a select item `[dim]`, with its alias: an array literal of one bare name.
pub fn bracket_dim(item: &SelectItem) -> Option<(&Ident, Option<&Ident>)> {
    let (expr, alias) = expr_of(item)?;
    match expr {
        Expr::Array(array) if !array.named => match array.elem.as_slice() {
            [Expr::Identifier(dim)] => Some((dim, alias)),
            _ => None,
        },
        _ => None,
    }
}
