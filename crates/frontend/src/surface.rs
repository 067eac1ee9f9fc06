//! Decides whether a query block is a tensor block or a cell block.
//!
//! A block is a cell block if it has any of the clauses that [`Reason`] lists, or a relation that
//! is rows; otherwise it is a tensor block. Only the syntax and the kinds of the relations decide,
//! not types or sizes, so the same text always has the same meaning.

use std::fmt;

use sqlparser::ast::{
    Cte, Distinct, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, GroupByExpr, ObjectName, Query, Select, SelectItem,
    SetExpr, Spanned, TableFactor, Value,
};
use sqlparser::tokenizer::Span;

use crate::ast::{self, Relation, UrlKind};
use crate::error::Position;
use crate::functions;
use crate::tokens;

pub mod walk;

/// The two surfaces of the dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Surface {
    /// Expressions over whole tensors; each item is one tensor.
    Tensor,
    /// SQL over cells; dimensions and variables are columns.
    Cell,
}

impl fmt::Display for Surface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tensor => "tensor",
            Self::Cell => "cell",
        })
    }
}

/// The kind of a relation of `FROM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelationKind {
    /// Rows: a plain table or a cell query.
    Rows,
    /// A tensor or a dataset.
    Tensor,
}

/// Name lookups that the surface rule needs.
pub trait Names {
    /// The kind of a catalog relation; never called for CTEs. An unknown name is
    /// [`RelationKind::Tensor`]: the binder reports it.
    fn relation(&self, name: &ObjectName) -> RelationKind;

    /// True if a function returns or takes whole tensors, such as `arange`; called for blocks without
    /// `FROM` only.
    fn is_tensor_function(&self, name: &str) -> bool;
}

/// The clause that decided the surface, in the order of checking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// `UNION`, `EXCEPT` or `INTERSECT`
    SetOperation,
    /// `VALUES`
    Values,
    /// `DISTINCT`
    Distinct,
    /// `*` or `x.*`
    Wildcard,
    /// An item `[dim]`, with the name of the dimension
    BracketDim(String),
    /// `count(*)`
    CountStar,
    /// `COLUMNS(…)`
    Columns,
    /// `OVER`
    Over,
    /// An aggregate that only rows have, by its form or its name: `count(DISTINCT x)`, `FILTER`, `corr`
    RowAggregate(String),
    /// `JOIN`
    Join,
    /// `FROM CELLS(x)`
    Cells,
    /// A relation that is rows, as written, or its alias
    Rows(String),
    /// `WHERE`
    Where,
    /// `GROUP BY`
    GroupBy,
    /// `HAVING`
    Having,
    /// `QUALIFY`, which needs `OVER`
    Qualify,
    /// `ORDER BY`
    OrderBy,
    /// `LIMIT`, `OFFSET` or `FETCH`
    Limit,
    /// A block without `FROM` and without a tensor function or literal: one row. Its numeric items still follow
    /// NumPy's rules
    NoFrom,
    /// A tensor block: relations and none of the above
    OnlyTensors,
    /// A tensor block without `FROM`, with the tensor function or literal that makes it one
    TensorItem(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetOperation => f.write_str("a set operation"),
            Self::Values => f.write_str("VALUES"),
            Self::Distinct => f.write_str("DISTINCT"),
            Self::Wildcard => f.write_str("the item *"),
            Self::BracketDim(dim) => write!(f, "the item [{dim}]"),
            Self::CountStar => f.write_str("count(*)"),
            Self::Columns => f.write_str("COLUMNS(…)"),
            Self::Over => f.write_str("OVER"),
            Self::RowAggregate(what) => f.write_str(what),
            Self::Join => f.write_str("JOIN"),
            Self::Cells => f.write_str("FROM CELLS(…)"),
            Self::Rows(name) => write!(f, "the relation of rows {name}"),
            Self::Where => f.write_str("WHERE"),
            Self::GroupBy => f.write_str("GROUP BY"),
            Self::Having => f.write_str("HAVING"),
            Self::Qualify => f.write_str("QUALIFY"),
            Self::OrderBy => f.write_str("ORDER BY"),
            Self::Limit => f.write_str("LIMIT"),
            Self::NoFrom => f.write_str("no FROM and no tensor function or literal"),
            Self::OnlyTensors => f.write_str("no clause that refers to cells"),
            Self::TensorItem(name) => write!(f, "{name}, without FROM"),
        }
    }
}

/// The surface of a block and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The surface.
    pub surface: Surface,
    /// The clause that decided it.
    pub reason: Reason,
    /// The clause's position. sqlparser does not store the span of every keyword, so it is the position of
    /// the clause's contents, or `None`.
    pub position: Option<Position>,
}

impl Decision {
    fn cell(reason: Reason, span: Span) -> Self {
        Self { surface: Surface::Cell, reason, position: Position::of_span(span) }
    }

    fn tensor(reason: Reason, span: Span) -> Self {
        Self { surface: Surface::Tensor, reason, position: Position::of_span(span) }
    }
}

/// The name of the CTE with the tensors that `INSERT INTO` adds: it is tensors whatever its query is, as `COPY` takes
/// one.
pub const INSERTED: &str = "__inserted";

/// True if a CTE has this name.
pub(crate) fn is_inserted(cte: &Cte) -> bool {
    cte.alias.name.value == INSERTED
}

/// Decides the surface of a query's outermost block. Its subqueries are decided only if
/// they are relations of it.
pub fn decide(query: &Query, names: &dyn Names) -> Decision {
    in_scope(query, names, &Scope::default())
}

/// The kind of a query as a relation of another one: a tensor block and a block with `[dim]` items
/// are tensors, other cell blocks rows.
pub fn kind(query: &Query, names: &dyn Names) -> RelationKind {
    kind_in_scope(query, names, &Scope::default())
}

/// As [`kind()`], for a query whose relations are not known: those by name are taken for tensors.
pub fn kind_of_text(query: &Query) -> RelationKind {
    struct Unknown;
    impl Names for Unknown {
        fn relation(&self, _: &ObjectName) -> RelationKind {
            RelationKind::Tensor
        }

        fn is_tensor_function(&self, name: &str) -> bool {
            crate::functions::is_tensor_function(name)
        }
    }
    kind(query, &Unknown)
}

/// The CTEs in scope, innermost first.
#[derive(Default)]
struct Scope<'a> {
    ctes: Vec<(&'a str, RelationKind)>,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// The CTEs of `query` inside `outer`; each sees those before it.
    fn of(query: &'a Query, names: &dyn Names, outer: &'a Scope<'a>) -> Self {
        let mut scope = Scope { ctes: Vec::new(), outer: Some(outer) };
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            let kind = match is_inserted(cte) {
                true => RelationKind::Tensor,
                false => kind_in_scope(&cte.query, names, &scope),
            };
            scope.ctes.push((&cte.alias.name.value, kind));
        }
        scope
    }

    fn find(&self, name: &str) -> Option<RelationKind> {
        let known = self.ctes.iter().rev().find(|(cte, _)| cte.eq_ignore_ascii_case(name));
        known.map(|(_, kind)| *kind).or_else(|| self.outer.and_then(|outer| outer.find(name)))
    }
}

fn kind_in_scope(query: &Query, names: &dyn Names, outer: &Scope<'_>) -> RelationKind {
    let brackets =
        |select: &Select| select.projection.iter().any(|i| ast::bracket_dim(i).is_some());
    let decision = in_scope(query, names, outer);
    let labelled = innermost_select(&query.body).is_some_and(brackets);
    match decision.surface {
        Surface::Tensor => RelationKind::Tensor,
        Surface::Cell if labelled => RelationKind::Tensor,
        Surface::Cell => RelationKind::Rows,
    }
}

fn innermost_select(body: &SetExpr) -> Option<&Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => innermost_select(&query.body),
        _ => None,
    }
}

fn in_scope(query: &Query, names: &dyn Names, outer: &Scope<'_>) -> Decision {
    let scope = Scope::of(query, names, outer);
    let body = match &*query.body {
        SetExpr::Select(select) => block(select, names, &scope),
        SetExpr::Query(inner) => in_scope(inner, names, &scope),
        SetExpr::SetOperation { .. } => Decision::cell(Reason::SetOperation, query.body.span()),
        _ => Decision::cell(Reason::Values, query.body.span()),
    };
    if body.surface == Surface::Cell && body.reason != Reason::NoFrom {
        return body;
    }
    if let Some(order_by) = &query.order_by {
        return Decision::cell(Reason::OrderBy, order_by.span());
    }
    if let Some(limit) = &query.limit_clause {
        return Decision::cell(Reason::Limit, limit.span());
    }
    if query.fetch.is_some() {
        return Decision::cell(Reason::Limit, Span::empty());
    }
    body
}

/// Decides a block by its own clauses, in the order in which they are written.
fn block(select: &Select, names: &dyn Names, scope: &Scope<'_>) -> Decision {
    if let Some(distinct) = &select.distinct
        && !matches!(distinct, Distinct::All)
    {
        return Decision::cell(Reason::Distinct, select.select_token.0.span);
    }
    let found = select
        .projection
        .iter()
        .find_map(|found| item(found, select.from.len()))
        .or_else(|| select.from.iter().find_map(|from| relation(from, names, scope)));
    if let Some(decision) = found {
        return decision;
    }
    if let Some(condition) = &select.selection {
        return Decision::cell(Reason::Where, condition.span());
    }
    match &select.group_by {
        GroupByExpr::All(_) => return Decision::cell(Reason::GroupBy, Span::empty()),
        GroupByExpr::Expressions(keys, modifiers) if !keys.is_empty() || !modifiers.is_empty() => {
            return Decision::cell(Reason::GroupBy, select.group_by.span());
        }
        GroupByExpr::Expressions(..) => {}
    }
    if let Some(condition) = &select.having {
        return Decision::cell(Reason::Having, condition.span());
    }
    if let Some(condition) = &select.qualify {
        return Decision::cell(Reason::Qualify, condition.span());
    }
    if !select.from.is_empty() {
        return Decision::tensor(Reason::OnlyTensors, Span::empty());
    }
    let of_lists = |expr: &Expr| is_of_lists(expr).then_some(());
    let has_lists =
        select.projection.iter().filter_map(item_expr).any(|e| walk::find(e, &of_lists).is_some());
    let is_tensor = |expr: &Expr| match expr {
        Expr::Array(_) if has_lists => None,
        expr => tensor_item(expr, names),
    };
    match select.projection.iter().find_map(|item| walk::find(item_expr(item)?, &is_tensor)) {
        Some((name, span)) => Decision::tensor(Reason::TensorItem(name), span),
        None => Decision::cell(Reason::NoFrom, select.span()),
    }
}

fn item_expr(item: &SelectItem) -> Option<&Expr> {
    match item {
        SelectItem::UnnamedExpr(expr)
        | SelectItem::ExprWithAlias { expr, .. }
        | SelectItem::ExprWithAliases { expr, .. } => Some(expr),
        SelectItem::QualifiedWildcard(..) | SelectItem::Wildcard(_) => None,
    }
}

/// The decision of one select item of a block over `relations` relations, if it makes the block one of cells.
fn item(item: &SelectItem, relations: usize) -> Option<Decision> {
    let Some(expr) = item_expr(item) else {
        return Some(Decision::cell(Reason::Wildcard, item.span()));
    };
    if let Some((dim, _)) = ast::bracket_dim(item) {
        return Some(Decision::cell(Reason::BracketDim(dim.value.clone()), dim.span));
    }
    walk::find(expr, &|expr| match expr {
        Expr::Function(function) => {
            if let Some((_, span)) = ast::columns(expr) {
                return Some(Decision::cell(Reason::Columns, span));
            }
            let reason = match function.over {
                Some(_) => Reason::Over,
                None if has_star(function) => Reason::CountStar,
                None => Reason::RowAggregate(row_aggregate(function, relations)?),
            };
            Some(Decision::cell(reason, function.name.span()))
        }
        _ => None,
    })
}

/// Describes a call that only rows have, in a block over `relations` relations.
///
/// A name alone decides over one relation only: cells of two tensors are pairs of all with all, which
/// `corr(a.v, b.v)` does not ask for. The form decides as the clauses of a block do.
fn row_aggregate(function: &Function, relations: usize) -> Option<String> {
    if relations == 0 {
        return None;
    }
    let name = &function.name;
    if function.filter.is_some() {
        return Some("FILTER".to_string());
    }
    if !function.within_group.is_empty() {
        return Some("WITHIN GROUP".to_string());
    }
    if let FunctionArguments::List(list) = &function.args {
        if list.duplicate_treatment == Some(DuplicateTreatment::Distinct) {
            return Some(format!("{name}(DISTINCT …)"));
        }
        let is_order =
            |clause: &FunctionArgumentClause| matches!(clause, FunctionArgumentClause::OrderBy(_));
        if list.clauses.iter().any(is_order) {
            return Some(format!("{name}(… ORDER BY …)"));
        }
    }
    let [part] = name.0.as_slice() else { return None };
    let is_known = relations == 1 && functions::is_row_aggregate(&part.as_ident()?.value);
    is_known.then(|| format!("the aggregate {name}"))
}

/// True if an argument is `*`.
pub(crate) fn has_star(function: &Function) -> bool {
    let FunctionArguments::List(list) = &function.args else { return false };
    list.args.iter().any(|arg| {
        matches!(
            arg,
            FunctionArg::Unnamed(FunctionArgExpr::Wildcard | FunctionArgExpr::QualifiedWildcard(_))
        )
    })
}

/// The decision of one entry of `FROM`, if it makes the block one of cells.
fn relation(
    from: &sqlparser::ast::TableWithJoins,
    names: &dyn Names,
    scope: &Scope<'_>,
) -> Option<Decision> {
    if let Some(join) = from.joins.first() {
        return Some(Decision::cell(Reason::Join, join.relation.span()));
    }
    factor(&from.relation, names, scope)
}

fn factor(factor: &TableFactor, names: &dyn Names, scope: &Scope<'_>) -> Option<Decision> {
    let rows = |name: String, span| Some(Decision::cell(Reason::Rows(name), span));
    match ast::relation(factor) {
        Relation::Name { name, .. } => {
            let cte = match name.0.as_slice() {
                [part] => part.as_ident().and_then(|ident| scope.find(&ident.value)),
                _ => None,
            };
            match cte.unwrap_or_else(|| names.relation(name)) {
                RelationKind::Rows => rows(name.to_string(), name.span()),
                RelationKind::Tensor => None,
            }
        }
        Relation::Url { url, .. } => match UrlKind::of(&url.value) {
            UrlKind::Rows => rows(url.to_string(), url.span),
            UrlKind::Tensor => None,
        },
        Relation::Cells { name, .. } => Some(Decision::cell(Reason::Cells, name.span)),
        Relation::Function { name, .. } => {
            let function = name.to_string().to_ascii_lowercase();
            match function.strip_prefix("read_") {
                Some(format) if ast::TENSOR_FORMATS.contains(&format) => None,
                _ if function == tokens::READ_FILES => None,
                _ => rows(name.to_string(), name.span()),
            }
        }
        Relation::Subquery { query, alias } => match kind_in_scope(query, names, scope) {
            RelationKind::Tensor => None,
            RelationKind::Rows => {
                let name =
                    alias.map_or_else(|| "(subquery)".to_string(), |alias| alias.name.to_string());
                rows(name, query.span())
            }
        },
        Relation::Other(TableFactor::NestedJoin { table_with_joins, .. }) => {
            relation(table_with_joins, names, scope)
        }
        Relation::Other(other) => rows("in FROM".to_string(), other.span()),
    }
}

/// True for a call of a function of lists or maps, which makes the `[1, 2]` of its block lists.
fn is_of_lists(expr: &Expr) -> bool {
    let Some(name) = ast::function_name(expr) else { return false };
    let name = name.value.to_ascii_lowercase();
    let is_known = ["list_", "array_", "map_"].iter().any(|start| name.starts_with(start))
        || matches!(
            name.as_str(),
            "cardinality" | "generate_subscripts" | "len" | "length" | "map" | "unnest"
        );
    is_known && !functions::functions().iter().any(|of_tensors| of_tensors.name == name)
}

/// True for `repeat` and `concat` of a text, which are functions of texts, too. `concat` of tensors begins with a list.
fn is_of_text(expr: &Expr) -> bool {
    let Expr::Function(function) = expr else { return false };
    let is = |known: &str| {
        ast::function_name(expr).is_some_and(|name| name.value.eq_ignore_ascii_case(known))
    };
    let FunctionArguments::List(list) = &function.args else { return false };
    let is_text = |arg: &FunctionArg| {
        matches!(arg, FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value)))
            if matches!(value.value, Value::SingleQuotedString(_)))
    };
    match list.args.first() {
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Array(_)))) | None => false,
        Some(first) if is("repeat") => is_text(first),
        Some(_) => is("concat") && list.args.iter().any(is_text),
    }
}

/// Describes `expr` if it is a tensor function, operator or literal.
fn tensor_item(expr: &Expr, names: &dyn Names) -> Option<(String, Span)> {
    if let Some(subscript) = ast::subscript(expr) {
        let is_tensor = !is_of_lists(subscript.base);
        return is_tensor.then(|| ("a subscript".to_string(), subscript.span));
    }
    if ast::numbers(expr).is_some() {
        return Some(("numbers".to_string(), expr.span()));
    }
    if let Expr::Array(_) = expr {
        return Some(("an array literal".to_string(), expr.span()));
    }
    if is_of_text(expr) {
        return None;
    }
    let name = ast::function_name(expr)?;
    let known = name.value == "matmul" || names.is_tensor_function(&name.value);
    known.then(|| (format!("the function {}", name.value), name.span))
}

#[cfg(test)]
#[path = "surface/tests.rs"]
mod tests;
