//! Items and columns of one name: the second one called `a` becomes `a_1`, the third one `a_2`.
//!
//! ```text
//! SELECT a, b AS a FROM t            ⇒  SELECT a, b AS a_1 FROM t
//! FROM (SELECT * FROM t, u) q        ⇒  FROM (SELECT t.a, t.b, u.a AS a_1 FROM t, u) q
//! SELECT b AS a, * FROM t            ⇒  SELECT b AS a, t.a AS a_1, t.b FROM t
//! ```
//! DataFusion distinguishes columns of several relations, but no others. So the outermost block keeps `t.a` and `u.a`,
//! which the plan's last step numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::{self, LogicalPlan, Projection};
use sqlparser::ast::{
    Expr, Ident, OrderBy, OrderByKind, Select, SelectItem, SelectItemQualifiedWildcardKind,
    Spanned, TableFactor, TableWithJoins,
};

use super::columns::{self, Column};
use super::{Pass, Stars};
use tessera_frontend::error::{BindError, Error, Position};
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::column_names;
use tessera_frontend::{excluded, only_excludes};

/// Columns `relation.column` of items, and the new names of these items.
pub(super) type Renamed = Vec<(Expr, Ident)>;

impl Pass<'_> {
    /// Gives the items of a block names that its readers can distinguish.
    pub(super) fn repeated(&mut self, select: &mut Select) -> Result<(), Error> {
        let is_read = self.levels.len() > 1 || self.levels.last().is_some_and(|level| level.is_set);
        let stars = select.projection.iter().filter(|item| is_star(item)).count();
        let is_mixed = stars > 1 || stars == 1 && select.projection.len() > 1;
        if self.stars == Stars::Listed && is_mixed {
            let all = self.all(select)?;
            list(select, &all);
        } else if stars > 0 && is_read && joins(select) {
            let mut listed = select.clone();
            // Planning reports the errors of a relation.
            if let Ok(all) = self.all(&mut listed)
                && has_repeated(&all)
            {
                list(&mut listed, &all);
                *select = listed;
            }
        }
        // An alias hides a column of the relations there.
        let mut used = match self.levels.last_mut() {
            Some(level) => std::mem::take(&mut level.ordered),
            None => BTreeSet::new(),
        };
        used.extend(column_names(&select.having));
        used.extend(column_names(&select.qualify));
        used.extend(column_names(&select.distinct));
        let are_tensors = self.as_tensors && self.levels.len() == 1;
        let (renamed, differing) = number(select, is_read, are_tensors, &used)?;
        if let Some(level) = self.levels.last_mut().filter(|level| !level.is_set) {
            level.renamed = renamed;
            level.differing = differing;
        }
        Ok(())
    }

    /// The columns of a block's relations, each of which has a name then.
    fn all(&mut self, select: &mut Select) -> Result<Vec<Column>, Error> {
        let mut all = Vec::new();
        for from in &mut select.from {
            self.name(&mut from.relation);
            from.joins.iter_mut().for_each(|join| self.name(&mut join.relation));
            all.extend(columns::joined(from, self)?);
        }
        Ok(all)
    }
}

fn is_star(item: &SelectItem) -> bool {
    matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..))
}

/// True if a block has several relations.
fn joins(select: &Select) -> bool {
    let has_several = |from: &TableWithJoins| {
        !from.joins.is_empty() || matches!(from.relation, TableFactor::NestedJoin { .. })
    };
    select.from.len() > 1 || select.from.iter().any(has_several)
}

fn has_repeated(all: &[Column]) -> bool {
    let mut seen = BTreeSet::new();
    all.iter().any(|column| !seen.insert(column.name.as_str()))
}

/// Replaces `*` and `x.*` by columns; stars that change columns stay.
fn list(select: &mut Select, all: &[Column]) {
    for item in std::mem::take(&mut select.projection) {
        match columns_of(&item, all) {
            Some(columns) => select.projection.extend(columns),
            None => select.projection.push(item),
        }
    }
}

/// The columns of `*` or `x.*`.
fn columns_of(item: &SelectItem, all: &[Column]) -> Option<Vec<SelectItem>> {
    let (options, relation) = match item {
        SelectItem::Wildcard(options) => (options, None),
        SelectItem::QualifiedWildcard(
            SelectItemQualifiedWildcardKind::ObjectName(name),
            options,
        ) => match name.0.as_slice() {
            [part] => (options, Some(part.as_ident()?.value.as_str())),
            _ => return None,
        },
        _ => return None,
    };
    if !only_excludes(options) {
        return None;
    }
    let excluded = excluded(options);
    let is_meant = |column: &&Column| {
        let is_of = match (relation, qualifier(&column.expr)) {
            (None, _) => true,
            (Some(relation), own) => own.is_some_and(|own| own.eq_ignore_ascii_case(relation)),
        };
        is_of && !excluded.iter().any(|name| name.value == column.name)
    };
    let columns = all.iter().filter(is_meant);
    Some(columns.map(|column| SelectItem::UnnamedExpr(column.expr.clone())).collect())
}

pub(super) fn qualifier(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::CompoundIdentifier(parts) => match parts.as_slice() {
            [.., relation, _] => Some(&relation.value),
            _ => None,
        },
        _ => None,
    }
}

/// Renames the items whose name an earlier item has. Returns the columns among them with their new names, and the names
/// of several different expressions. A new name is none of those that the block's other clauses have `used`. Where
/// nothing reads the items by their names, columns of several relations keep theirs.
///
/// # Errors
/// `duplicate_name` if the items become tensors: those of one dataset are named, not numbered.
fn number(
    select: &mut Select,
    is_read: bool,
    are_tensors: bool,
    used: &BTreeSet<String>,
) -> Result<(Renamed, BTreeSet<String>), Error> {
    let (mut renamed, mut numbers) = (Renamed::new(), Numbers::default());
    // The first expression of each name, and the names that have several ones.
    let (mut first, mut differing) = (BTreeMap::<String, Expr>::new(), BTreeSet::new());
    // For each name the relations of its columns.
    let mut known: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    for item in &mut select.projection {
        let (name, relation, value) = match &*item {
            SelectItem::ExprWithAlias { expr, alias } => (alias.value.clone(), None, expr.clone()),
            SelectItem::UnnamedExpr(expr) => {
                let name = match expr {
                    Expr::Identifier(name) => name.value.clone(),
                    Expr::CompoundIdentifier(parts) => match parts.last() {
                        Some(name) => name.value.clone(),
                        None => continue,
                    },
                    other => other.to_string(),
                };
                (name, qualifier(expr).map(String::from), expr.clone())
            }
            _ => continue,
        };
        let is_other =
            |own: &Option<String>| own.is_some() && relation.is_some() && *own != relation;
        let is_taken = known.get(&name).is_some_and(|same| is_read || !same.iter().all(is_other));
        if !is_taken {
            first.entry(name.clone()).or_insert(value);
            known.entry(name).or_default().push(relation);
            continue;
        }
        if first.get(&name).is_some_and(|first| !is_same(first, &value)) {
            differing.insert(name.clone());
        }
        if are_tensors {
            let position = Position::of_span(item.span());
            let error = BindError::DuplicateName { kind: "item", name };
            return Err(Error::Bind { error, position });
        }
        let is_in_use = |name: &str| known.contains_key(name) || used.contains(name);
        let free = numbers.free_name(&name, is_in_use);
        known.insert(free.clone(), vec![None]);
        match item {
            SelectItem::ExprWithAlias { alias, .. } => alias.value = free,
            SelectItem::UnnamedExpr(expr) => {
                let expr = std::mem::replace(expr, tessera_frontend::ast::null());
                let alias = Ident::with_quote('"', free);
                if matches!(expr, Expr::CompoundIdentifier(_)) {
                    renamed.push((expr.clone(), alias.clone()));
                }
                *item = SelectItem::ExprWithAlias { expr, alias };
            }
            _ => {}
        }
    }
    Ok((renamed, differing))
}

/// True if two items are the same expression, or a column with and without its relation.
fn is_same(one: &Expr, other: &Expr) -> bool {
    if let (Expr::Nested(inner), outer) | (outer, Expr::Nested(inner)) = (one, other) {
        return is_same(inner, outer);
    }
    match (parts(one), parts(other)) {
        (Some(one), Some(other)) => {
            one.iter().rev().zip(other.iter().rev()).all(|(a, b)| a.value == b.value)
        }
        _ => one == other,
    }
}

/// The parts of the name of a column.
fn parts(expr: &Expr) -> Option<&[Ident]> {
    match expr {
        Expr::Identifier(name) => Some(std::slice::from_ref(name)),
        Expr::CompoundIdentifier(parts) => Some(parts),
        _ => None,
    }
}

/// Refuses a key of ORDER BY with a name that `differing` items have.
pub(super) fn check_order(order: &OrderBy, differing: &BTreeSet<String>) -> Result<(), Error> {
    let OrderByKind::Expressions(keys) = &order.kind else { return Ok(()) };
    let ambiguous = |expr: &Expr| match expr {
        Expr::Identifier(name) if differing.contains(&name.value) => Some(name.clone()),
        _ => None,
    };
    let Some(name) = keys.iter().find_map(|key| find(&key.expr, &ambiguous)) else { return Ok(()) };
    Err(Error::Cells {
        code: "ambiguous_name",
        message: format!("ORDER BY {name}: several items have this name, with different values"),
        position: Position::of_span(name.span),
        hint: Some(
            "give each item a name of its own with `AS`, or write its number, as in `ORDER BY 1`"
                .to_string(),
        ),
    })
}

/// Replaces columns by the names of the items that they became: beside an item `k AS i`, DataFusion would report
/// `ORDER BY t.i` as ambiguous.
pub(super) fn replace_in_order(order: &mut OrderBy, renamed: &[(Expr, Ident)]) {
    let OrderByKind::Expressions(keys) = &mut order.kind else { return };
    for key in keys {
        if let Some((_, name)) = renamed.iter().find(|(expr, _)| *expr == key.expr) {
            key.expr = Expr::Identifier(name.clone());
        }
    }
}

/// The last number of each name.
#[derive(Default)]
struct Numbers(BTreeMap<String, usize>);

impl Numbers {
    /// The first of `a_1`, `a_2`, … that is not taken. Names stay taken, so the search goes on from the last number.
    fn free_name(&mut self, name: &str, is_taken: impl Fn(&str) -> bool) -> String {
        let number = self.0.entry(name.to_string()).or_default();
        loop {
            *number += 1;
            let free = format!("{name}_{number}");
            if !is_taken(&free) {
                return free;
            }
        }
    }
}

/// The plan with a name of its own for each column.
pub(in crate::lift) fn numbered(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let schema = plan.schema().clone();
    let (mut names, mut numbers) = (Vec::new(), Numbers::default());
    for field in schema.fields() {
        let name = match seen.contains(field.name()) {
            true => numbers.free_name(field.name(), |name| seen.contains(name)),
            false => field.name().clone(),
        };
        seen.insert(name.clone());
        names.push(name);
    }
    if schema.fields().iter().zip(&names).all(|(field, name)| field.name() == name) {
        return Ok(plan);
    }
    let columns = schema.columns().into_iter().zip(names);
    let columns =
        columns.map(|(column, name)| logical_expr::Expr::Column(column).alias(name)).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}
