//! `SELECT *` of subqueries, CTEs and views of the same form: one block over the relation inside of them.
//!
//! ```text
//! WITH d AS (SELECT * EXCLUDE (b) FROM x WHERE lat > 0) SELECT * FROM d q WHERE q.lon < 5
//!   ⇒  SELECT * EXCLUDE (b) FROM x WHERE lon < 5 AND lat > 0
//! ```
//! The inner block is `*`, which may leave columns out, and its conditions become conditions on the relation's columns.

use std::ops::ControlFlow;

use sqlparser::ast::{
    BinaryOperator, Cte, ExcludeSelectItem, Expr, Ident, ObjectName, Query, SelectItem, SetExpr,
    TableFactor, VisitorMut,
};

use super::Lowerer;
use super::all::{excluded, is_of_columns, star};
use crate::bind;
use crate::scope::{innermost, innermost_mut};
use crate::surface::{self, RelationKind};
use crate::walk::{column_names, walk_mut};

impl Lowerer<'_, '_> {
    /// The one block of such a query; `None` for any other query, and if there is no block inside.
    pub(super) fn flat(&self, query: &Query) -> Option<Query> {
        if !is_of_columns(query) {
            return None;
        }
        let whole = self.scope.close(query);
        let ctes = ctes(&whole)?;
        let mut flat = query.clone();
        let select = innermost_mut(&mut flat)?;
        let mut relation = select.from.first()?.relation.clone();
        let mut conditions = own(select.selection.take(), &relation)?;
        let (mut visible, mut left_out, mut is_flat) = (ctes.len(), Vec::<Ident>::new(), true);
        while let Some((inner, sees)) = self.inside(&relation, &ctes[..visible]) {
            let block = innermost(&inner)?;
            let gone = excluded(star(&inner)?);
            let is_gone = |name: &String| gone.iter().any(|g| g.value.eq_ignore_ascii_case(name));
            let outside = [column_names(&conditions), column_names(&select.projection)];
            if outside.iter().flatten().any(is_gone) {
                return None;
            }
            relation = block.from.first()?.relation.clone();
            conditions.extend(own(block.selection.clone(), &relation)?);
            left_out.extend(gone);
            (visible, is_flat) = (sees, false);
        }
        // The name would refer to another relation here.
        if is_flat || place(&relation, &ctes) != place(&relation, &ctes[..visible]) {
            return None;
        }
        select.from.first_mut()?.relation = relation;
        select.selection = conditions.into_iter().reduce(|left, right| Expr::BinaryOp {
            left: Box::new(left),
            op: BinaryOperator::And,
            right: Box::new(right),
        });
        for item in &mut select.projection {
            if let SelectItem::Wildcard(options) = item {
                let all = excluded(options).into_iter().chain(left_out.drain(..));
                let all: Vec<ObjectName> = all.map(|name| ObjectName::from(vec![name])).collect();
                options.opt_except = None;
                options.opt_exclude = (!all.is_empty()).then_some(ExcludeSelectItem::Multiple(all));
            }
        }
        Some(flat)
    }

    /// The query of a relation that is such a block, and the number of CTEs that it sees.
    fn inside(&self, relation: &TableFactor, ctes: &[&Cte]) -> Option<(Query, usize)> {
        let (TableFactor::Derived { lateral: false, alias, .. }
        | TableFactor::Table { args: None, alias, .. }) = relation
        else {
            return None;
        };
        if alias.as_ref().is_some_and(|alias| !alias.columns.is_empty()) {
            return None;
        }
        let (query, sees) = match (relation, place(relation, ctes)) {
            (TableFactor::Derived { subquery, .. }, _) => (Query::clone(subquery), ctes.len()),
            (_, Some(at)) if ctes[at].alias.columns.is_empty() => {
                (Query::clone(&ctes[at].query), at)
            }
            (_, Some(_)) => return None,
            (_, None) => {
                let reference = bind::reference(relation).ok().flatten()?;
                (self.context.catalog.view(&reference)?.query.clone(), 0)
            }
        };
        is_plain(&query).then_some((query, sees))
    }
}

/// The CTEs that the innermost block of a query sees, in the order of their definition; `None` if one may see itself.
fn ctes(query: &Query) -> Option<Vec<&Cte>> {
    let (mut all, mut at) = (Vec::new(), query);
    loop {
        if let Some(with) = &at.with {
            if with.recursive {
                return None;
            }
            all.extend(&with.cte_tables);
        }
        let SetExpr::Query(inner) = &*at.body else { return Some(all) };
        at = inner;
    }
}

fn place(relation: &TableFactor, ctes: &[&Cte]) -> Option<usize> {
    let TableFactor::Table { name, args: None, .. } = relation else { return None };
    let [part] = name.0.as_slice() else { return None };
    let name = part.as_ident().filter(|name| name.quote_style != Some('\''))?;
    ctes.iter().rposition(|cte| cte.alias.name.value.eq_ignore_ascii_case(&name.value))
}

/// True if a query is `*` of one relation, which may leave columns out, without other clauses than WHERE.
fn is_plain(query: &Query) -> bool {
    if star(query).is_none() || ctes(query).is_none_or(|ctes| !ctes.is_empty()) {
        return false;
    }
    let mut rest = query.clone();
    let Some(select) = innermost_mut(&mut rest) else { return false };
    let Ok(Some(template)) = crate::query_of("SELECT x FROM x") else { return false };
    let Some(of_name) = innermost(&template) else { return false };
    select.selection = None;
    select.projection.clone_from(&of_name.projection);
    select.from.clone_from(&of_name.from);
    // Any other clause makes it a block of cells.
    surface::kind_of_text(&rest) == RelationKind::Tensor
}

/// The condition of a block over one relation, without the name of this relation; `None` if it has a subquery.
fn own(condition: Option<Expr>, relation: &TableFactor) -> Option<Vec<Expr>> {
    let Some(mut condition) = condition else { return Some(Vec::new()) };
    let name = match relation {
        TableFactor::Derived { alias: Some(alias), .. }
        | TableFactor::Table { alias: Some(alias), .. } => Some(alias.name.value.clone()),
        TableFactor::Table { name, .. } => {
            name.0.last().and_then(|part| part.as_ident()).map(|name| name.value.clone())
        }
        _ => None,
    };
    let is_alone = walk_mut(&mut condition, &mut Alone(name)).is_continue();
    is_alone.then(|| vec![condition])
}

/// Removes the name of a relation before its columns, and stops at a subquery.
struct Alone(Option<String>);

impl VisitorMut for Alone {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let (Expr::CompoundIdentifier(parts), Some(name)) = (&*expr, &self.0)
            && let [relation, column] = parts.as_slice()
            && relation.value.eq_ignore_ascii_case(name)
        {
            *expr = Expr::Identifier(column.clone());
        }
        ControlFlow::Continue(())
    }
}
