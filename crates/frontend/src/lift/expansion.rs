//! How large a query of rows becomes once what it names is written out.
//!
//! DataFusion plans a CTE again wherever it is named, so CTEs that name each other twice double with each step. So do
//! columns: its optimizer puts the expression of a column in the place of the column.
//! ```text
//! a1 AS (SELECT x || x AS x FROM a0), a2 AS (SELECT x || x AS x FROM a1), …      2, 4, … times the x of a0
//! ```

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use datafusion::common::JoinType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use sqlparser::ast::{ObjectName, Query, TableFactor, Visit, Visitor};

use crate::error::Error;

/// The most relations that one query of rows is planned with.
const RELATIONS_MAX: u64 = 1024;

/// The most parts of one expression with those of the columns that it names.
const PARTS_MAX: u64 = 20_000;

/// Refuses a prepared query that has too many relations.
///
/// # Errors
/// [`Error::TooComplex`].
pub(super) fn check(query: &Query) -> Result<(), Error> {
    let mut count = Count { levels: Vec::new(), total: 0 };
    let _ = query.visit(&mut count);
    if count.total <= RELATIONS_MAX {
        return Ok(());
    }
    Err(Error::TooComplex {
        what: format!("the query reads {} relations once its CTEs are written out", count.total),
        limit: RELATIONS_MAX as usize,
        position: None,
    })
}

/// Refuses a plan with an expression that becomes too large.
///
/// # Errors
/// [`Error::TooComplex`].
pub(super) fn check_expressions(plan: &LogicalPlan) -> Result<(), Error> {
    parts_of_columns(plan).map(drop)
}

/// For each column the parts of its expression over columns that are no expressions.
fn parts_of_columns(plan: &LogicalPlan) -> Result<Vec<u64>, Error> {
    let mut inside = Ok(());
    let walk = plan.apply_subqueries(|subquery| {
        inside = check_expressions(subquery);
        Ok(if inside.is_ok() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    debug_assert!(walk.is_ok(), "the walk has no error of its own");
    inside?;
    let inputs = plan.inputs().into_iter().map(parts_of_columns);
    let inputs = inputs.collect::<Result<Vec<Vec<u64>>, Error>>()?;
    let columns = plan.schema().fields().len();
    Ok(match plan {
        LogicalPlan::Projection(projection) => {
            let input = inputs.into_iter().next().unwrap_or_default();
            let parts = |expr| parts(expr, &projection.input, &input);
            projection.expr.iter().map(parts).collect::<Result<_, _>>()?
        }
        LogicalPlan::Join(join) if only_right(join.join_type) => inputs
            .into_iter()
            .nth(1)
            .unwrap_or_default()
            .into_iter()
            .chain(std::iter::repeat(1))
            .take(columns)
            .collect(),
        // What the node adds to the columns of its inputs is a column of its own.
        LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Window(_) => {
            let known = inputs.into_iter().flatten().chain(std::iter::repeat(1));
            known.take(columns).collect()
        }
        _ => vec![1; columns],
    })
}

/// True for joins whose rows are those of the right side alone.
fn only_right(kind: JoinType) -> bool {
    matches!(kind, JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark)
}

fn parts(expr: &Expr, input: &LogicalPlan, known: &[u64]) -> Result<u64, Error> {
    let mut total = 0u64;
    let walk = expr.apply(|e| {
        let own = match e {
            Expr::Column(column) => {
                let at = input.schema().maybe_index_of_column(column);
                at.and_then(|at| known.get(at)).copied().unwrap_or(1)
            }
            _ => 1,
        };
        total = total.saturating_add(own);
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walk.is_ok(), "the walk has no error of its own");
    if total <= PARTS_MAX {
        return Ok(total);
    }
    Err(Error::TooComplex {
        what: format!(
            "an expression has {total} parts once the columns that it names are written out"
        ),
        limit: PARTS_MAX as usize,
        position: None,
    })
}

/// An open query.
#[derive(Default)]
struct Level {
    /// Its CTEs, in the order in which they are visited; the last is next.
    next: Vec<String>,
    /// The relations of those that were visited.
    ctes: BTreeMap<String, u64>,
    relations: u64,
}

struct Count {
    levels: Vec<Level>,
    total: u64,
}

impl Visitor for Count {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        let mut next: Vec<String> = ctes.map(|cte| cte.alias.name.value.clone()).collect();
        next.reverse();
        self.levels.push(Level { next, ..Level::default() });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        let Some(mut level) = self.levels.pop() else { return ControlFlow::Continue(()) };
        // A query without FROM has one row.
        level.relations = level.relations.max(1);
        match self.levels.last_mut() {
            Some(outer) => match outer.next.pop() {
                Some(name) => drop(outer.ctes.insert(name, level.relations)),
                None => outer.relations = outer.relations.saturating_add(level.relations),
            },
            None => self.total = level.relations,
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, .. } = factor else { return ControlFlow::Continue(()) };
        let known = self.levels.iter().rev().find_map(|level| level.ctes.get(&name_of(name)?));
        let relations = known.copied().unwrap_or(1);
        if let Some(level) = self.levels.last_mut() {
            level.relations = level.relations.saturating_add(relations);
        }
        ControlFlow::Continue(())
    }
}

fn name_of(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(|ident| ident.value.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    fn count(sql: &str) -> u64 {
        let crate::Statement::Query(query) = crate::parse(sql).unwrap().remove(0).statement else {
            panic!("no query")
        };
        let mut count = Count { levels: Vec::new(), total: 0 };
        let _ = query.visit(&mut count);
        count.total
    }

    #[test]
    fn ctes_count_as_often_as_they_are_named() {
        assert_eq!(count("SELECT 1"), 1);
        assert_eq!(count("SELECT x FROM a, b JOIN c ON true WHERE x > (SELECT max(y) FROM d)"), 4);
        assert_eq!(count("WITH u AS (SELECT x FROM a, b) SELECT x FROM u, u v, c"), 5);
        assert_eq!(
            count("WITH u AS (SELECT x FROM a), v AS (SELECT x FROM u, u w) SELECT x FROM v, v w"),
            4
        );
        let inner = "SELECT x FROM (WITH u AS (SELECT x FROM b, c) SELECT x FROM u) q, u";
        assert_eq!(count(&format!("WITH u AS (SELECT x FROM a) {inner}")), 3);
        let mut sql = "WITH a0 AS (SELECT x FROM t)".to_string();
        for i in 1..80 {
            sql += &format!(", a{i} AS (SELECT x FROM a{0} l, a{0} r)", i - 1);
        }
        assert_eq!(count(&(sql + " SELECT x FROM a79")), u64::MAX);
    }
}
