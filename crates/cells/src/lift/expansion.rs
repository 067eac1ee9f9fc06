//! Bounds the size of a query of rows after its references are expanded.
//!
//! DataFusion plans a CTE again at every reference, so CTEs that reference each other twice double with each step. So
//! do columns: its optimizer substitutes the expressions of columns.
//! ```text
//! a1 AS (SELECT x || x AS x FROM a0), a2 AS (SELECT x || x AS x FROM a1), …      2, 4, … times the x of a0
//! ```
//! Its checks of a plan visit a subquery of an expression three times, once for each path to it, and again for
//! its inner subqueries: the work triples with each level of nesting.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use tessera_frontend::walk::walk;

use crate::walk::Walk;
use datafusion::common::JoinType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use sqlparser::ast::{ObjectName, Query, TableFactor, Visitor};

use tessera_frontend::error::Error;

const RELATIONS_MAX: u64 = 1024;

/// Visits of a subquery of an expression per visit of the enclosing query.
const WALKS: u64 = 3;

/// Maximum visits of queries to check one query of rows: fourteen levels of nesting.
const WALKED_MAX: u64 = 5_000_000;

/// Maximum nodes of one expression after substitution of the columns that it references.
pub(super) const PARTS_MAX: u64 = 20_000;

/// Rejects a prepared query with too many relations, or with too deeply nested subqueries.
pub(super) fn check(query: &Query) -> Result<(), Error> {
    let total = Count::of(query);
    let (what, limit) = if total.relations > RELATIONS_MAX {
        let relations = total.relations;
        let what = format!("the query reads {relations} relations once its CTEs are written out");
        (what, RELATIONS_MAX)
    } else if total.walked > WALKED_MAX {
        let walked = total.walked;
        let what = format!(
            "subqueries are nested inside expressions so deeply that planning checks {walked} queries"
        );
        (what, WALKED_MAX)
    } else {
        return Ok(());
    };
    Err(Error::TooComplex { what, limit: limit as usize, position: None })
}

/// Rejects a plan with an expression that becomes too large.
pub(super) fn check_expressions(plan: &LogicalPlan) -> Result<(), Error> {
    parts_of_columns(plan).map(drop)
}

/// For each column, the nodes of its expression in terms of base columns.
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
        // Columns that the node adds to those of its inputs are base columns.
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

/// True for joins that return only rows of the right side.
fn only_right(kind: JoinType) -> bool {
    matches!(kind, JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark)
}

fn parts(expr: &Expr, input: &LogicalPlan, known: &[u64]) -> Result<u64, Error> {
    let mut total = 0u64;
    let walk = expr.each(|e| {
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

/// The cost of a query, with everything inside it.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) relations: u64,
    /// Visits of queries.
    pub(super) walked: u64,
}

impl Size {
    pub(super) const RELATION: Self = Size { relations: 1, walked: 0 };
}

/// The size of a query that sees CTEs of these sizes.
pub(super) fn size_beside(query: &Query, ctes: &mut BTreeMap<String, Size>) -> Size {
    let outer = OpenQuery { ctes: std::mem::take(ctes), ..OpenQuery::default() };
    let mut count = Count { levels: vec![outer], ..Count::default() };
    let _ = walk(query, &mut count);
    let Some(level) = count.levels.pop() else { return count.total };
    *ctes = level.ctes;
    level.size
}

#[derive(Default)]
struct OpenQuery {
    /// Its CTEs in the order of visits, reversed; the last is next.
    next: Vec<String>,
    ctes: BTreeMap<String, Size>,
    size: Size,
    /// Number of enclosing expressions.
    expressions: usize,
}

impl OpenQuery {
    fn add(&mut self, inner: Size) {
        let walks = if self.expressions > 0 { WALKS } else { 1 };
        self.size.relations = self.size.relations.saturating_add(inner.relations);
        self.size.walked = self.size.walked.saturating_add(inner.walked.saturating_mul(walks));
    }
}

#[derive(Default)]
struct Count {
    levels: Vec<OpenQuery>,
    total: Size,
}

impl Count {
    fn of(query: &Query) -> Size {
        let mut count = Count::default();
        let _ = walk(query, &mut count);
        count.total
    }
}

impl Visitor for Count {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        let mut next: Vec<String> = ctes.map(|cte| cte.alias.name.value.clone()).collect();
        next.reverse();
        let size = Size { relations: 0, walked: 1 };
        self.levels.push(OpenQuery { next, size, ..OpenQuery::default() });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        let Some(level) = self.levels.pop() else { return ControlFlow::Continue(()) };
        // A query without FROM has one row.
        let size = Size { relations: level.size.relations.max(1), ..level.size };
        match self.levels.last_mut() {
            Some(outer) => match outer.next.pop() {
                Some(name) => drop(outer.ctes.insert(name, size)),
                None => outer.add(size),
            },
            None => self.total = size,
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, _: &sqlparser::ast::Expr) -> ControlFlow<()> {
        if let Some(level) = self.levels.last_mut() {
            level.expressions += 1;
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &sqlparser::ast::Expr) -> ControlFlow<()> {
        if let Some(level) = self.levels.last_mut() {
            level.expressions -= 1;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, .. } = factor else { return ControlFlow::Continue(()) };
        let known = self.levels.iter().rev().find_map(|level| level.ctes.get(&name_of(name)?));
        let size = known.copied().unwrap_or(Size::RELATION);
        if let Some(level) = self.levels.last_mut() {
            level.add(size);
        }
        ControlFlow::Continue(())
    }
}

/// The name of a relation, if it is one word.
pub(super) fn name_of(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [part] => part.as_ident().map(|ident| ident.value.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn size(sql: &str) -> Size {
        Count::of(&tessera_frontend::query_of(sql).unwrap().unwrap())
    }

    fn count(sql: &str) -> u64 {
        size(sql).relations
    }

    #[test]
    fn subqueries_in_expressions_are_walked_three_times_a_level() {
        assert_eq!(size("SELECT x FROM (SELECT x FROM (SELECT x FROM t) a) b").walked, 3);
        assert_eq!(size("SELECT (SELECT (SELECT 1))").walked, 1 + 3 * (1 + 3));
        assert_eq!(size("SELECT 1 WHERE 1 IN (SELECT 1) AND EXISTS (SELECT 1)").walked, 7);
        // A subquery inside a CTE is visited where the CTE is referenced.
        let sql = "WITH u AS (SELECT (SELECT 1) AS x) SELECT (SELECT max(x) FROM u), x FROM u";
        assert_eq!(size(sql).walked, 1 + 3 * (1 + 4) + 4);
        let deep = format!("SELECT {}1{}", "(SELECT ".repeat(90), ")".repeat(90));
        assert_eq!(size(&deep).walked, u64::MAX);
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
