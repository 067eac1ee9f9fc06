//! Items of several columns: `COLUMNS(…)` in expressions, and `*` that renames or replaces columns.
//!
//! | written | becomes, over `t(a, b, c)` |
//! |---|---|
//! | `COLUMNS('a\|b')`, `COLUMNS(['a', 'b'])`, `COLUMNS(lambda n: n < 'c')` | `t.a, t.b` |
//! | `min(COLUMNS(* EXCLUDE (c)))` | `min(t.a) AS a, min(t.b) AS b` |
//! | `COLUMNS('a\|b') AS 'x_\0'` | `t.a AS x_a, t.b AS x_b` |
//! | `* EXCLUDE (c) REPLACE (a + 1 AS a) RENAME (b AS x)` | `t.a + 1 AS a, t.b AS x` |
//! | `WHERE COLUMNS(['a', 'b']) > 0` | `WHERE t.a > 0 AND t.b > 0` |
//!
//! DataFusion evaluates the condition of a lambda: it plans `SELECT 'a' < 'c', 'b' < 'c', 'c' < 'c'` and simplifies it.

mod keys;
mod spread;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::{self, LogicalPlan};
use regex::Regex;
use sqlparser::ast::{
    BinaryOperator, Distinct, ExcludeSelectItem, Expr, FunctionArg, FunctionArgExpr, GroupByExpr,
    Ident, JoinConstraint, LambdaFunction, ObjectName, OneOrManyWithParens, Query,
    RenameSelectItem, Select, SelectItem, SelectItemQualifiedWildcardKind, Spanned, Value,
    VisitorMut, WildcardAdditionalOptions,
};
use sqlparser::tokenizer::Span;
use tessera_frontend::ast;
use tessera_frontend::error::{BindError, Error, Position, nearest};
use tessera_frontend::only_excludes;
use tessera_frontend::scope::innermost_mut;
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::walk_mut;

use super::super::names::{OWN_NAME, constraint, has_columns};
use super::super::parts::Parts;
use super::super::{error, go_on, logical};
use super::Pass;
use super::columns::{Column, binary};
use super::names::named;
use super::repeated::qualifier;
use crate::walk::counts_queries;
pub(super) use keys::{are_ordered, check_order};

/// A column that an item stands for.
struct Chosen {
    column: Column,
    /// The expression of REPLACE, which takes the column's place.
    value: Option<Expr>,
    /// The name that RENAME gives it.
    name: Option<Ident>,
    /// What the groups of a regular expression match in its name; the first one is the whole match.
    groups: Vec<String>,
}

impl Chosen {
    fn of(column: &Column) -> Self {
        let groups = vec![column.name.clone()];
        Chosen { column: column.clone(), value: None, name: None, groups }
    }

    /// The item of the column alone.
    fn item(self) -> SelectItem {
        let Chosen { column, value, name, .. } = self;
        if value.is_none() && name.is_none() {
            return named(column.expr, &column.name);
        }
        SelectItem::ExprWithAlias {
            expr: value.unwrap_or(column.expr),
            alias: name.unwrap_or_else(|| Ident::with_quote('"', column.name)),
        }
    }

    /// An expression with the column in place of the calls of COLUMNS.
    fn put(&self, expr: &Expr) -> Expr {
        let value = match &self.value {
            Some(value) => Expr::Nested(Box::new(value.clone())),
            None => self.column.expr.clone(),
        };
        let mut expr = expr.clone();
        let _ = walk_mut(&mut expr, &mut Put { value, depth: 0 });
        expr
    }

    /// The name of an item with COLUMNS: `\1` in its alias is what the first group matches.
    fn alias(&self, alias: &Ident) -> Ident {
        if alias.value == OWN_NAME {
            let own = || Ident::with_quote('"', self.column.name.as_str());
            return self.name.clone().unwrap_or_else(own);
        }
        let mut name = String::new();
        let mut chars = alias.value.chars().peekable();
        while let Some(c) = chars.next() {
            match chars.peek().and_then(|next| next.to_digit(10)).filter(|_| c == '\\') {
                Some(group) => {
                    chars.next();
                    name.extend(self.groups.get(group as usize).map(String::as_str));
                }
                None => name.push(c),
            }
        }
        Ident::with_quote('"', name)
    }
}

/// True if a block has such items, or COLUMNS in its conditions.
pub(super) fn occur(select: &Select) -> bool {
    let stands_for_several = |item: &SelectItem| match item {
        SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) => {
            changes(options)
        }
        item => ast::expr_of(item).is_some_and(|(expr, _)| has_columns(expr)),
    };
    let conditions = [&select.selection, &select.having, &select.qualify];
    select.projection.iter().any(stands_for_several)
        || conditions.into_iter().flatten().any(has_columns)
}

/// Refuses COLUMNS in the clauses of a block that take no list of columns.
///
/// # Errors
/// `unsupported`.
pub(super) fn check(select: &Select) -> Result<(), Error> {
    if let GroupByExpr::Expressions(keys, _) = &select.group_by {
        refuse(keys, "GROUP BY", "write `GROUP BY ALL`, or name the columns")?;
    }
    if let Some(Distinct::On(keys)) = &select.distinct {
        refuse(keys, "DISTINCT ON", "name the columns")?;
    }
    for join in select.from.iter().flat_map(|from| &from.joins) {
        if let Some(JoinConstraint::On(condition)) = constraint(&join.join_operator) {
            refuse([condition], "ON", "name the columns, or write `USING (…)`")?;
        }
    }
    Ok(())
}

fn refuse<'e>(
    exprs: impl IntoIterator<Item = &'e Expr>,
    clause: &str,
    hint: &str,
) -> Result<(), Error> {
    let span = |expr: &Expr| ast::columns(expr).map(|(_, span)| span);
    match exprs.into_iter().find_map(|expr| find(expr, &span)) {
        None => Ok(()),
        Some(span) => Err(Error::Unsupported {
            construct: format!("COLUMNS in {clause}"),
            position: Position::of_span(span),
            hint: Some(hint.to_string()),
        }),
    }
}

/// True if a `*` does more than leave columns of some names out.
fn changes(options: &WildcardAdditionalOptions) -> bool {
    !only_excludes(options) || excluded(options).iter().any(|parts| parts.len() > 1)
}

/// The names that a `*` leaves out, each with the relations before it.
fn excluded(options: &WildcardAdditionalOptions) -> Vec<Vec<Ident>> {
    let parts = |name: &ObjectName| -> Vec<Ident> {
        name.0.iter().filter_map(|part| part.as_ident()).cloned().collect()
    };
    let mut out: Vec<Vec<Ident>> = match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => vec![parts(name)],
        Some(ExcludeSelectItem::Multiple(names)) => names.iter().map(parts).collect(),
        None => Vec::new(),
    };
    if let Some(except) = &options.opt_except {
        let names = std::iter::once(&except.first_element).chain(&except.additional_elements);
        out.extend(names.map(|name| vec![name.clone()]));
    }
    out
}

/// The columns of a block's relations, or of one of them.
fn of_relation(all: &[Column], relation: Option<&ObjectName>) -> Vec<Chosen> {
    let relation = relation.and_then(|name| name.0.last()?.as_ident());
    let is_of = |column: &&Column| {
        relation.is_none_or(|relation| {
            qualifier(&column.expr).is_some_and(|own| own.eq_ignore_ascii_case(&relation.value))
        })
    };
    all.iter().filter(is_of).map(Chosen::of).collect()
}

/// The columns that a `*` with options stands for.
///
/// # Errors
/// `unknown_name` for a name in an option that none of them has.
fn starred(
    all: &[Column],
    relation: Option<&ObjectName>,
    options: &WildcardAdditionalOptions,
) -> Result<Vec<Chosen>, Error> {
    let mut chosen = of_relation(all, relation);
    let mut out = BTreeSet::new();
    for parts in excluded(options) {
        out.extend(called(&chosen, &parts)?);
    }
    let mut at = 0;
    chosen.retain(|_| {
        at += 1;
        !out.contains(&(at - 1))
    });
    for element in options.opt_replace.iter().flat_map(|replace| &replace.items) {
        for at in called(&chosen, std::slice::from_ref(&element.column_name))? {
            chosen[at].value = Some(element.expr.clone());
        }
    }
    let renamed = match &options.opt_rename {
        Some(RenameSelectItem::Single(one)) => std::slice::from_ref(one),
        Some(RenameSelectItem::Multiple(several)) => several.as_slice(),
        None => &[],
    };
    for element in renamed {
        for at in called(&chosen, std::slice::from_ref(&element.ident))? {
            chosen[at].name = Some(element.alias.clone());
        }
    }
    Ok(chosen)
}

/// The positions of the columns of a name, in its spelling or else in any case.
///
/// # Errors
/// `unknown_name` if no column has it.
fn called(chosen: &[Chosen], parts: &[Ident]) -> Result<BTreeSet<usize>, Error> {
    let Some((name, relation)) = parts.split_last() else { return Ok(BTreeSet::new()) };
    let is_of = |column: &Column| {
        relation.last().is_none_or(|relation| {
            qualifier(&column.expr).is_some_and(|own| own.eq_ignore_ascii_case(&relation.value))
        })
    };
    let with = |is: &dyn Fn(&str) -> bool| -> BTreeSet<usize> {
        let found = chosen.iter().enumerate();
        let found = found.filter(|(_, of)| is_of(&of.column) && is(&of.column.name));
        found.map(|(at, _)| at).collect()
    };
    let mut found = with(&|known| known == name.value);
    if found.is_empty() {
        found = with(&|known| known.eq_ignore_ascii_case(&name.value));
    }
    if found.is_empty() {
        return Err(unknown(chosen, &name.value, name.span));
    }
    Ok(found)
}

fn unknown(chosen: &[Chosen], name: &str, span: Span) -> Error {
    let names: Vec<&str> = chosen.iter().map(|of| of.column.name.as_str()).collect();
    let near = nearest(name, &names).map(String::from);
    Error::UnknownName {
        kind: "column",
        name: name.to_string(),
        candidates: near.into_iter().collect(),
        position: Position::of_span(span),
    }
}

impl Pass<'_> {
    /// Replaces such items by items of one column each; `all` has the columns of the block's relations.
    ///
    /// # Errors
    /// `unknown_name` if a name or a pattern fits no column, `invalid_argument` for an argument of another form,
    /// `too_complex` or `nesting_too_deep` for more than a query may have.
    pub(super) fn expand(&self, select: &mut Select, all: &[Column]) -> Result<(), Error> {
        for item in std::mem::take(&mut select.projection) {
            match &item {
                SelectItem::Wildcard(options) if changes(options) => {
                    select.projection.extend(self.items_of_star(all, None, options)?);
                }
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(name),
                    options,
                ) if changes(options) => {
                    select.projection.extend(self.items_of_star(all, Some(name), options)?);
                }
                SelectItem::ExprWithAlias { expr, alias } if has_columns(expr) => {
                    select.projection.extend(self.items_of(expr, alias, all)?);
                }
                _ => select.projection.push(item),
            }
        }
        let conditions = [&mut select.selection, &mut select.having, &mut select.qualify];
        for condition in conditions.into_iter().flatten().filter(|of| has_columns(of)) {
            *condition = self.unpacked(condition, all)?;
            let parts = self.chosen_in(condition, all)?;
            // They become one chain of AND.
            let Parts { count, depth } = Parts::of(condition, &BTreeMap::new());
            let chained = parts.len() as u64;
            let size = Parts {
                count: count.saturating_mul(chained),
                depth: depth.saturating_add(chained),
            };
            self.add(size, condition)?;
            let parts = parts.iter().map(|of| Expr::Nested(Box::new(of.put(condition))));
            if let Some(both) = parts.reduce(|all, part| binary(all, BinaryOperator::And, part)) {
                *condition = both;
            }
        }
        Ok(())
    }

    fn items_of_star(
        &self,
        all: &[Column],
        relation: Option<&ObjectName>,
        options: &WildcardAdditionalOptions,
    ) -> Result<Vec<SelectItem>, Error> {
        let chosen = starred(all, relation, options)?;
        chosen.iter().try_for_each(|of| self.count(&of.column.expr, 1))?;
        Ok(chosen.into_iter().map(Chosen::item).collect())
    }

    /// Counts copies of an expression before they are made.
    ///
    /// # Errors
    /// `too_complex` if the query would be too large.
    fn count(&self, expr: &Expr, copies: usize) -> Result<(), Error> {
        let size = Parts::of(expr, &BTreeMap::new());
        (0..copies).try_for_each(|_| self.add(size, expr))
    }

    fn add(&self, size: Parts, expr: &Expr) -> Result<(), Error> {
        let mut written = self.written.get();
        written.add(size, expr)?;
        self.written.set(written);
        Ok(())
    }

    /// The columns that the calls of COLUMNS in an expression stand for.
    ///
    /// # Errors
    /// `cancelled`, `unsupported` for calls that differ, and those of [`Self::expand`].
    fn chosen_in(&self, expr: &Expr, all: &[Column]) -> Result<Vec<Chosen>, Error> {
        let calls: RefCell<Vec<Expr>> = RefCell::default();
        let _: Option<()> = find(expr, &|expr| {
            if ast::columns(expr).is_some() {
                calls.borrow_mut().push(expr.clone());
            }
            None
        });
        let calls = calls.into_inner();
        let mut chosen = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            let Some((args, span)) = ast::columns(call) else { continue };
            if at == 0 {
                chosen = self.chosen(args, span, all)?;
            } else if call.to_string() != calls[0].to_string() {
                return Err(Error::Unsupported {
                    construct: "several different COLUMNS in one expression".to_string(),
                    position: Position::of_span(span),
                    hint: Some("name the columns of one of them".to_string()),
                });
            }
        }
        Ok(chosen)
    }

    fn chosen(
        &self,
        args: &[FunctionArg],
        span: Span,
        all: &[Column],
    ) -> Result<Vec<Chosen>, Error> {
        use FunctionArgExpr::{QualifiedWildcard, Wildcard, WildcardWithOptions};
        let position = Position::of_span(span);
        go_on().map_err(error::plan)?;
        if all.is_empty() {
            return Err(Error::Cells {
                code: "plan_error",
                message: "COLUMNS stands for columns of FROM, and the block has no FROM".into(),
                position,
                hint: Some("add FROM with a relation".into()),
            });
        }
        let (relation, rest) = match args {
            [FunctionArg::Unnamed(QualifiedWildcard(name)), rest @ ..] => (Some(name), rest),
            rest => (None, rest),
        };
        let mut chosen = of_relation(all, relation);
        match rest {
            [] if relation.is_some() => {}
            [FunctionArg::Unnamed(Wildcard)] => {}
            [FunctionArg::Unnamed(WildcardWithOptions(options))] => {
                chosen = starred(all, relation, options)?;
            }
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Lambda(lambda)))] => {
                let is_kept = self.fulfil(lambda, &chosen, position)?;
                let mut is_kept = is_kept.into_iter();
                chosen.retain(|_| is_kept.next() == Some(true));
            }
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))] => match listed(expr) {
                Some(names) => {
                    let mut kept = BTreeSet::new();
                    for name in names {
                        kept.extend(called(&chosen, &[name])?);
                    }
                    let mut at = 0;
                    chosen.retain(|_| {
                        at += 1;
                        kept.contains(&(at - 1))
                    });
                }
                None => match_names(&mut chosen, expr, position)?,
            },
            _ => return Err(no_choice(position)),
        }
        if chosen.is_empty() {
            let names: Vec<String> = all.iter().map(|of| format!("`{}`", of.name)).collect();
            let shown = names.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>();
            let more = if names.len() > NAMES_MAX { ", …" } else { "" };
            return Err(Error::Cells {
                code: "unknown_name",
                message: "no column has a name that COLUMNS chooses".to_string(),
                position,
                hint: Some(format!("the columns are {}{more}", shown.join(", "))),
            });
        }
        Ok(chosen)
    }

    /// For each column whether its name fulfils the condition of a lambda.
    ///
    /// # Errors
    /// Errors of the condition; `invalid_argument` if it depends on more than the name.
    fn fulfil(
        &self,
        lambda: &LambdaFunction,
        chosen: &[Chosen],
        position: Option<Position>,
    ) -> Result<Vec<bool>, Error> {
        let parameter = match &lambda.params {
            OneOrManyWithParens::One(one) => &one.name,
            OneOrManyWithParens::Many(several) => match several.as_slice() {
                [one] => &one.name,
                _ => return Err(no_choice(position)),
            },
        };
        let item = |(at, of): (usize, &Chosen)| {
            let mut expr = lambda.body.as_ref().clone();
            let mut named = Parameter { parameter, name: &of.column.name };
            let _ = walk_mut(&mut expr, &mut named);
            SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', format!("__{at}")) }
        };
        let items: Vec<SelectItem> = chosen.iter().enumerate().map(item).collect();
        let constant = || {
            let argument = "the condition of its lambda".to_string();
            let reason = "must depend on the name of the column alone, and be true or false";
            invalid(argument, reason.to_string(), position)
        };
        let query = select_of(items).ok_or_else(constant)?;
        let plan = logical(query, self.prepared, self.state);
        let plan = plan.and_then(|plan| self.state.optimize(&plan)).map_err(error::plan)?;
        let LogicalPlan::Projection(items) = &plan else { return Err(constant()) };
        let value = |expr: &logical_expr::Expr| match value_of(expr) {
            Some(ScalarValue::Boolean(value)) => Ok(value.unwrap_or(false)),
            Some(ScalarValue::Null) => Ok(false),
            _ => Err(constant()),
        };
        items.expr.iter().map(value).collect()
    }
}

/// Upper bound on the names in an error.
const NAMES_MAX: usize = 20;

fn value_of(expr: &logical_expr::Expr) -> Option<&ScalarValue> {
    match expr {
        logical_expr::Expr::Alias(alias) => value_of(&alias.expr),
        logical_expr::Expr::Literal(value, _) => Some(value),
        _ => None,
    }
}

fn invalid(argument: String, reason: String, position: Option<Position>) -> Error {
    let error = BindError::InvalidArgument { function: "COLUMNS".into(), argument, reason };
    Error::Bind { error, position }
}

fn no_choice(position: Option<Position>) -> Error {
    let reason = "must be `*`, a text with a regular expression, a list of texts with names, or a lambda, as in `COLUMNS(lambda name: name LIKE 't%')`";
    invalid("the argument".to_string(), reason.to_string(), position)
}

/// The names of `['a', 'b']`.
fn listed(expr: &Expr) -> Option<Vec<Ident>> {
    let Expr::Array(list) = expr else { return None };
    let name = |expr: &Expr| ast::url_of(expr).map(|name| Ident::with_span(expr.span(), name));
    list.elem.iter().map(name).collect()
}

/// Keeps the columns in whose names a regular expression matches a part.
fn match_names(
    chosen: &mut Vec<Chosen>,
    pattern: &Expr,
    position: Option<Position>,
) -> Result<(), Error> {
    let Some(text) = ast::url_of(pattern) else { return Err(no_choice(position)) };
    let regex = Regex::new(text).map_err(|error| {
        let error = error.to_string();
        let last = error.lines().next_back().unwrap_or_default();
        let last = last.strip_prefix("error: ").unwrap_or(last);
        let position = Position::of_span(pattern.span()).or(position);
        invalid(format!("`{text}`"), format!("is not a regular expression: {last}"), position)
    })?;
    chosen.retain_mut(|of| {
        let Some(found) = regex.captures(&of.column.name) else { return false };
        let groups = found.iter().map(|group| group.map_or("", |group| group.as_str()));
        of.groups = groups.map(String::from).collect();
        true
    });
    Ok(())
}

/// `SELECT items`.
fn select_of(items: Vec<SelectItem>) -> Option<Query> {
    let mut query = tessera_frontend::query_of("SELECT 1").ok()??;
    innermost_mut(&mut query)?.projection = items;
    Some(*query)
}

/// Replaces the calls of COLUMNS in an expression, without those in subqueries.
struct Put {
    value: Expr,
    depth: usize,
}

impl VisitorMut for Put {
    type Break = ();

    counts_queries!(depth);

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0 && ast::columns(expr).is_some() {
            expr.clone_from(&self.value);
        }
        ControlFlow::Continue(())
    }
}

/// Replaces the parameter of a lambda by the name of a column.
struct Parameter<'a> {
    parameter: &'a Ident,
    name: &'a str,
}

impl VisitorMut for Parameter<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expr
            && name.value.eq_ignore_ascii_case(&self.parameter.value)
        {
            *expr = Expr::Value(Value::SingleQuotedString(self.name.to_string()).into());
        }
        ControlFlow::Continue(())
    }
}
