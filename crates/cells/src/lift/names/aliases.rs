//! Aliases of items as names in WHERE and in later items, if no column has the name.
//!
//! ```text
//! SELECT t2m - 273.15 AS c, c * 1.8 + 32 AS f FROM era5 WHERE c > 20
//!   ⇒  SELECT t2m - 273.15 AS c, (t2m - 273.15) * 1.8 + 32 AS f FROM era5 WHERE (t2m - 273.15) > 20
//! ```
//! DataFusion knows aliases in GROUP BY, HAVING, QUALIFY and ORDER BY. An alias of an expression that has another value
//! each time (`random()`) is no name here.
//!
//! In HAVING, DataFusion takes a name that is both a column and an alias for the column, which has no value in a group
//! unless it is a key:
//!
//! ```text
//! SELECT k, sum(v) AS v FROM t GROUP BY k HAVING v > 3
//!   ⇒  SELECT k, sum(v) AS v FROM t GROUP BY k HAVING (sum(v)) > 3
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Function, GroupByExpr, Select, SelectItem, Value, VisitorMut};
use tessera_frontend::ast::{expr_of, function_name};
use tessera_frontend::error::Error;
use tessera_frontend::functions::is_aggregate;
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::walk_mut;

use super::super::parts::{Parts, Written};
use super::super::using::replace_in;
use super::columns::Columns;
use crate::walk::counts_queries;

/// Functions that have another value at each call.
const VOLATILE: [&str; 2] = ["random", "uuid"];

/// Replaces aliases in a block; `columns` has the names of its relations' columns.
///
/// # Errors
/// `too_complex` if an expression becomes too large.
pub(super) fn replace(
    select: &mut Select,
    columns: impl Fn(&Select) -> Columns,
    written: &mut Written,
) -> Result<(), Error> {
    replace_in_having(select, &columns, written)?;
    let names = mentioned(select);
    if names.is_empty() {
        return Ok(());
    }
    let Some(columns) = columns(select) else { return Ok(()) };
    let mut known =
        Known { exprs: BTreeMap::new(), sizes: BTreeMap::new(), written, added: BTreeSet::new() };
    for item in &mut select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => known.replace(expr)?,
            SelectItem::ExprWithAlias { expr, alias } => {
                known.replace(expr)?;
                let is_column = columns.contains(&alias.value.to_lowercase());
                if !is_column && !is_volatile(expr) {
                    known.add(&alias.value, expr, &names);
                }
            }
            _ => {}
        }
    }
    match &mut select.selection {
        Some(condition) => known.replace(condition),
        None => Ok(()),
    }
}

/// Aliases, in all spellings that occur, with their expressions and the sizes of these.
struct Known<'a> {
    exprs: BTreeMap<String, Expr>,
    sizes: BTreeMap<String, Parts>,
    written: &'a mut Written,
    /// The aliases: of equal ones the first one is a name.
    added: BTreeSet<String>,
}

impl Known<'_> {
    fn add(&mut self, alias: &str, expr: &Expr, names: &BTreeSet<String>) {
        if !self.added.insert(alias.to_string()) {
            return;
        }
        let expr = Expr::Nested(Box::new(expr.clone()));
        let size = Parts::of(&expr, &BTreeMap::new());
        for name in names.iter().filter(|name| name.eq_ignore_ascii_case(alias)) {
            self.exprs.insert(name.clone(), expr.clone());
            self.sizes.insert(name.clone(), size);
        }
    }

    fn replace(&mut self, expr: &mut Expr) -> Result<(), Error> {
        if self.exprs.is_empty() {
            return Ok(());
        }
        self.written.add(Parts::of(expr, &self.sizes), expr)?;
        replace_in(expr, &self.exprs);
        Ok(())
    }
}

/// The names in WHERE, and in items behind one with such an alias, that are aliases of items.
fn mentioned(select: &Select) -> BTreeSet<String> {
    let mut aliases: BTreeSet<String> = BTreeSet::new();
    let mut found = BTreeSet::new();
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => found.extend(names_of(expr, &aliases)),
            SelectItem::ExprWithAlias { expr, alias } => {
                found.extend(names_of(expr, &aliases));
                aliases.insert(alias.value.to_lowercase());
            }
            _ => {}
        }
    }
    found.extend(select.selection.iter().flat_map(|condition| names_of(condition, &aliases)));
    found
}

/// The names in an expression that are aliases.
fn names_of(expr: &Expr, aliases: &BTreeSet<String>) -> BTreeSet<String> {
    let found = RefCell::new(BTreeSet::new());
    if !aliases.is_empty() {
        let _: Option<()> = find(expr, &|expr| {
            if let Expr::Identifier(name) = expr
                && aliases.contains(&name.value.to_lowercase())
            {
                found.borrow_mut().insert(name.value.clone());
            }
            None
        });
    }
    found.into_inner()
}

fn is_volatile(expr: &Expr) -> bool {
    let is_call = |expr: &Expr| {
        let name = function_name(expr)?.value.to_lowercase();
        VOLATILE.contains(&name.as_str()).then_some(())
    };
    find(expr, &is_call).is_some()
}

/// Replaces names in HAVING that are aliases of aggregates and columns, but no keys of GROUP BY.
fn replace_in_having(
    select: &mut Select,
    columns: &dyn Fn(&Select) -> Columns,
    written: &mut Written,
) -> Result<(), Error> {
    let Some(condition) = &select.having else { return Ok(()) };
    let mut known: BTreeMap<String, Expr> = BTreeMap::new();
    for item in &select.projection {
        let SelectItem::ExprWithAlias { expr, alias } = item else { continue };
        if is_of_groups(expr) {
            let name = alias.value.to_lowercase();
            known.entry(name).or_insert_with(|| Expr::Nested(Box::new(expr.clone())));
        }
    }
    let names = names_of(condition, &known.keys().cloned().collect());
    if names.is_empty() {
        return Ok(());
    }
    let Some(columns) = columns(select) else { return Ok(()) };
    let keys = keys(&select.group_by, &select.projection, &columns);
    known.retain(|name, _| columns.contains(name) && !keys.contains(name));
    let size = |name: &String| {
        let expr = known.get(&name.to_lowercase())?;
        Some((name.clone(), Parts::of(expr, &BTreeMap::new())))
    };
    let sizes: BTreeMap<String, Parts> = names.iter().filter_map(size).collect();
    if let Some(condition) = &mut select.having {
        written.add(Parts::of(condition, &sizes), condition)?;
        let _ = walk_mut(condition, &mut InHaving { known: &known, queries: 0, closed: 0 });
    }
    Ok(())
}

/// The names of the columns that are keys of groups, in lower case; `columns` has those of the relations.
fn keys(
    group_by: &GroupByExpr,
    items: &[SelectItem],
    columns: &BTreeSet<String>,
) -> BTreeSet<String> {
    let GroupByExpr::Expressions(keys, _) = group_by else {
        // `GROUP BY ALL` has the items without aggregates.
        return items.iter().filter_map(|item| name(expr_of(item)?.0)).collect();
    };
    let all = keys.iter().flat_map(|key| match key {
        Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) => {
            sets.iter().flatten().collect::<Vec<_>>()
        }
        key => vec![key],
    });
    all.filter_map(|key| column(key, items, columns)).collect()
}

/// The column that a key is, perhaps by the number or the alias of an item.
fn column(key: &Expr, items: &[SelectItem], columns: &BTreeSet<String>) -> Option<String> {
    if let Expr::Value(number) = key {
        let Value::Number(text, _) = &number.value else { return None };
        let item = items.get(text.parse::<usize>().ok()?.checked_sub(1)?)?;
        return name(expr_of(item)?.0);
    }
    let found = name(key)?;
    if columns.contains(&found) {
        return Some(found);
    }
    let of_alias = items.iter().find_map(|item| match item {
        SelectItem::ExprWithAlias { expr, alias } if alias.value.to_lowercase() == found => {
            Some(expr)
        }
        _ => None,
    });
    name(of_alias?)
}

/// The name of a column, in lower case; `None` for other expressions.
fn name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(name.value.to_lowercase()),
        Expr::CompoundIdentifier(parts) => Some(parts.last()?.value.to_lowercase()),
        Expr::Nested(inner) => name(inner),
        _ => None,
    }
}

/// True for an expression over aggregates, without functions with OVER.
fn is_of_groups(expr: &Expr) -> bool {
    let has = |is_one: fn(&Function) -> bool| {
        let look = |e: &Expr| match e {
            Expr::Function(function) => is_one(function).then_some(()),
            _ => None,
        };
        find(expr, &look).is_some()
    };
    has(aggregates) && !has(|function| function.over.is_some())
}

fn aggregates(function: &Function) -> bool {
    function.over.is_none() && is_aggregate(&function.name.to_string())
}

struct InHaving<'a> {
    /// The expressions of aliases, by their names in lower case.
    known: &'a BTreeMap<String, Expr>,
    queries: usize,
    /// Number of open aggregates and lambdas, whose names are columns and parameters.
    closed: usize,
}

impl InHaving<'_> {
    fn closes(expr: &Expr) -> usize {
        usize::from(match expr {
            Expr::Function(function) => aggregates(function),
            other => matches!(other, Expr::Lambda(_)),
        })
    }
}

impl VisitorMut for InHaving<'_> {
    type Break = ();

    counts_queries!(queries);

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.closed += Self::closes(expr);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.closed -= Self::closes(expr);
        if self.queries == 0
            && self.closed == 0
            && let Expr::Identifier(name) = &*expr
            && let Some(new) = self.known.get(&name.value.to_lowercase())
        {
            *expr = new.clone();
        }
        ControlFlow::Continue(())
    }
}
