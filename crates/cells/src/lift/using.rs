//! Rewrites that need the columns of relations: `JOIN … USING (x)` and `NATURAL JOIN`, where x is one merged column,
//! `ASOF JOIN`, `ORDER BY ALL`, columns of one name, `COLUMNS(…)`, `* RENAME`, UNNEST of structs.
//!
//! ```text
//! SELECT x, sum(v) FROM a FULL JOIN b USING (x) WHERE x > 1 GROUP BY x
//!   ⇒  SELECT coalesce(a.x, b.x) AS x, sum(v) FROM a FULL JOIN b ON a.x = b.x
//!      WHERE coalesce(a.x, b.x) > 1 GROUP BY coalesce(a.x, b.x)
//! ```
//! The merged column is the left side's in an inner and a left join, the right side's in a right join, and the first
//! non-NULL one in a full join. `*` lists it once, at its position among the left side's columns; `a.x` and `b.x` are
//! unchanged. DataFusion would use the left side's everywhere, and report x as ambiguous in WHERE.
//!
//! To find a relation's columns, DataFusion plans `SELECT * FROM relation`. Columns of one name are numbered.

mod asof;
mod chosen;
mod columns;
mod names;
mod order_all;
mod repeated;
mod structs;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use tessera_frontend::walk::{column_names, walk_mut};

use datafusion::execution::SessionState;
use sqlparser::ast::{Cte, Expr, Query, Select, SetExpr, TableFactor, VisitorMut};

use super::names::Prepared;
use super::parts::Written;
use super::row_values;
use columns::Column;
pub(super) use names::replace_in;
use repeated::Renamed;
pub(super) use repeated::numbered;
use tessera_frontend::error::Error;

/// The treatment of `*` beside other items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stars {
    /// `*` stays, which is correct unless another item has the name of one of its columns.
    Kept,
    Listed,
}

/// Rewrites all blocks of a prepared query. `as_tensors`: its columns become tensors, of which no two have one name.
pub(super) fn rewrite(
    query: &mut Query,
    prepared: &Prepared,
    state: &SessionState,
    stars: Stars,
    as_tensors: bool,
) -> Result<(), Error> {
    let written = Cell::default();
    let levels = Vec::new();
    let mut pass = Pass { prepared, state, levels, aliases: 0, written, stars, as_tensors };
    match walk_mut(query, &mut pass) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

#[derive(Default)]
struct Level {
    ctes: Vec<Cte>,
    /// The remaining CTEs, in the order of visits.
    waiting: VecDeque<Cte>,
    is_recursive: bool,
    /// True if its blocks are sides of a set operation.
    is_set: bool,
    /// The names in the ORDER BY of its one block.
    ordered: BTreeSet<String>,
    /// The merged names of its one block.
    merged: Merged,
    /// True if its ORDER BY has COLUMNS.
    has_chosen_keys: bool,
    /// The columns of its one block's relations, if the keys choose some of them.
    columns: Vec<Column>,
    /// The columns of its one block that have another name.
    renamed: Renamed,
    /// The names that several of its items have, with different expressions.
    differing: BTreeSet<String>,
}

/// The expressions of merged names.
pub(super) type Merged = BTreeMap<String, Expr>;

struct Pass<'a> {
    prepared: &'a Prepared,
    state: &'a SessionState,
    levels: Vec<Level>,
    /// Number of generated aliases of subqueries.
    aliases: usize,
    written: Cell<Written>,
    stars: Stars,
    as_tensors: bool,
}

impl VisitorMut for Pass<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let is_set = matches!(&*query.body, SetExpr::SetOperation { .. });
        let mut level = Level { is_set, ..Level::default() };
        if !is_set {
            level.ordered.extend(column_names(&query.order_by));
            level.has_chosen_keys = chosen::are_ordered(query.order_by.as_ref());
        }
        if let Some(with) = &query.with {
            level.waiting = with.cte_tables.iter().cloned().collect();
            level.is_recursive = with.recursive;
        }
        self.levels.push(level);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if let Some(level) = self.levels.pop()
            && let SetExpr::Select(select) = &*query.body
            && let Some(order) = &mut query.order_by
        {
            if level.has_chosen_keys
                && let Err(error) = self.keys(order, &level.columns)
            {
                return ControlFlow::Break(error);
            }
            if let Err(error) = repeated::check_order(order, &level.differing) {
                return ControlFlow::Break(error);
            }
            if !level.merged.is_empty() {
                names::replace_in_order(order, select, &level.merged);
            }
            repeated::replace_in_order(order, &level.renamed);
        }
        if let Err(error) = self.order(query) {
            return ControlFlow::Break(error);
        }
        // The queries of WITH are visited before all others.
        if let Some(outer) = self.levels.last_mut()
            && let Some(mut cte) = outer.waiting.pop_front()
        {
            cte.query = Box::new(query.clone());
            outer.ctes.push(cte);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        let joined = self.joins(select);
        self.structs(select);
        let named = joined.and_then(|()| self.repeated(select));
        match named.and_then(|()| row_values::rewrite(select, self.written.get_mut())) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl Pass<'_> {
    /// Gives a subquery an alias to qualify its columns with.
    fn name(&mut self, factor: &mut TableFactor) {
        match factor {
            TableFactor::Derived { alias: alias @ None, .. } => {
                self.aliases += 1;
                let name = sqlparser::ast::Ident::new(format!("__relation_{}", self.aliases));
                *alias = Some(sqlparser::ast::TableAlias {
                    explicit: true,
                    name,
                    columns: vec![],
                    at: None,
                });
            }
            TableFactor::NestedJoin { table_with_joins, .. } => {
                self.name(&mut table_with_joins.relation);
                let joins = table_with_joins.joins.iter_mut();
                joins.for_each(|join| self.name(&mut join.relation));
            }
            _ => {}
        }
    }

    /// Rewrites the joins of a block, the names that they merge, and items of several columns.
    fn joins(&mut self, select: &mut Select) -> Result<(), Error> {
        chosen::check(select)?;
        let has_chosen_keys = self.levels.last().is_some_and(|level| level.has_chosen_keys);
        let merges = || select.from.iter().any(columns::merges);
        if !has_chosen_keys && !chosen::occur(select) && !merges() {
            return Ok(());
        }
        for from in &mut select.from {
            self.name(&mut from.relation);
            from.joins.iter_mut().for_each(|join| self.name(&mut join.relation));
        }
        let (merged, all) = self.block(select)?;
        if let Some(level) = self.levels.last_mut() {
            level.merged = merged;
            if has_chosen_keys {
                level.columns = all;
            }
        }
        Ok(())
    }

    /// Rewrites the ORDER BY of a query whose blocks are rewritten.
    fn order(&mut self, query: &mut Query) -> Result<(), Error> {
        if let Some(order) = &mut query.order_by {
            chosen::check_order(order)?;
            row_values::rewrite(order, self.written.get_mut())?;
        }
        self.order_all(query)
    }

    /// The merged names of a block, and the columns of its relations.
    fn block(&self, select: &mut Select) -> Result<(Merged, Vec<Column>), Error> {
        let mut all = Vec::new();
        for from in &mut select.from {
            all.extend(columns::joined(from, self)?);
        }
        self.expand(select, &all)?;
        let mut merged = Merged::new();
        for column in all.iter().filter(|c| c.is_merged) {
            let same = all.iter().filter(|c| c.name == column.name).count();
            // A third relation may have a column of that name, which is then ambiguous.
            if same == 1 {
                merged.insert(column.name.clone(), column.expr.clone());
            }
        }
        if all.iter().any(|column| column.is_merged) {
            names::replace(select, &merged, &all);
        }
        Ok((merged, all))
    }
}
