//! `IN (SELECT …)` in places where NULL and false differ.
//!
//! DataFusion makes a join of each IN. Only one form of the join handles NULL: `WHERE v NOT IN (SELECT …)` over an
//! uncorrelated subquery, which is unchanged. Also unchanged are `v IN (SELECT …)` below AND and OR alone, where NULL
//! and false are the same, and lists without NULL on either side. All others become EXISTS:
//!
//! ```text
//! WHERE v NOT IN (SELECT w …)    ⇒    WHERE NOT EXISTS (SELECT … WHERE (v = w) IS NOT FALSE)
//! … v IN (SELECT w …) …          ⇒    … CASE WHEN v IN (SELECT w …) THEN true
//!                                            WHEN EXISTS (SELECT … WHERE (v = w) IS NULL) THEN NULL
//!                                            ELSE false END …
//! ```
//! [`rows`] has the rules for rows of values on the left.
//!
//! The column of such a subquery, and of one behind ANY and ALL, gets a name that no other column has: DataFusion takes
//! two columns of one name for the same.

mod rows;

use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Case, Exists, InSubquery};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Projection,
    Subquery, lit, not,
};
use rows::RowIn;

/// The name of a subquery's column.
const MEMBER: &str = "__member";

/// Rewrites the conditions of a plan; the schema stays the same. [`marks`](super::marks) rewrites other expressions.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Filter(mut filter) if has_member(&filter.predicate)? => {
            let condition = std::mem::take(&mut filter.predicate);
            let rules = Rules { schema: filter.input.schema(), state };
            let condition = rules.condition(condition, true)?;
            let is_changed = condition.transformed;
            filter.predicate = condition.data;
            Ok(Transformed::new_transformed(LogicalPlan::Filter(filter), is_changed))
        }
        // The optimiser moves conditions of joins to filters where it can.
        LogicalPlan::Join(mut join) if has_row(join.filter.as_ref())? => {
            let rules = Rules { schema: &join.schema, state };
            let condition = join.filter.take().map(|condition| rules.condition(condition, true));
            join.filter = condition.transpose()?.map(|condition| condition.data);
            Ok(Transformed::yes(LogicalPlan::Join(join)))
        }
        node => Ok(Transformed::no(node)),
    })
    .map(|t| t.data)
}

/// An expression over columns of `schema` for which NULL and false differ.
pub(super) fn value(
    expr: Expr,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Transformed<Expr>> {
    Rules { schema, state }.value(expr)
}

fn has_member(condition: &Expr) -> Result<bool> {
    condition.any(|e| {
        Ok(match e {
            Expr::InSubquery(_) | Expr::SetComparison(_) => true,
            Expr::Exists(exists) => RowIn::of(exists).is_some(),
            _ => false,
        })
    })
}

fn has_row(condition: Option<&Expr>) -> Result<bool> {
    let Some(condition) = condition else { return Ok(false) };
    condition.any(|e| Ok(matches!(e, Expr::Exists(exists) if RowIn::of(exists).is_some())))
}

/// The rules for a condition over columns of `schema`.
struct Rules<'a> {
    schema: &'a DFSchema,
    state: &'a SessionState,
}

impl Rules<'_> {
    /// A condition for which NULL and false are the same. `is_whole` is true if no row is kept where it is false.
    fn condition(&self, expr: Expr, is_whole: bool) -> Result<Transformed<Expr>> {
        match expr {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: op @ (Operator::And | Operator::Or),
                right,
            }) => {
                let is_whole = is_whole && op == Operator::And;
                let left = self.condition(*left, is_whole)?;
                let right = self.condition(*right, is_whole)?;
                let is_changed = left.transformed || right.transformed;
                let both = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
                Ok(Transformed::new_transformed(Expr::BinaryExpr(both), is_changed))
            }
            Expr::Not(inner) => match *inner {
                Expr::InSubquery(list) => {
                    let negated = !list.negated;
                    self.condition(Expr::InSubquery(InSubquery { negated, ..list }), is_whole)
                }
                Expr::Exists(exists) => match RowIn::of(&exists) {
                    Some(row) => Ok(Transformed::yes(row.condition(true, self.state)?)),
                    None => Ok(Transformed::no(not(Expr::Exists(exists)))),
                },
                inner => self.value(not(inner)),
            },
            Expr::Exists(exists) => match RowIn::of(&exists) {
                Some(row) => Ok(Transformed::yes(row.condition(false, self.state)?)),
                None => Ok(Transformed::no(Expr::Exists(exists))),
            },
            Expr::InSubquery(list) if !list.negated && is_whole => {
                Ok(Transformed::no(Expr::InSubquery(list)))
            }
            Expr::InSubquery(list) if !list.negated => {
                Ok(named_apart(list)?.update_data(Expr::InSubquery))
            }
            Expr::InSubquery(list) if is_whole => self.absent(list),
            other => self.value(other),
        }
    }

    /// An expression that may be true, false or NULL.
    fn value(&self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.map_down(|expr| match expr {
            Expr::InSubquery(list) => self.three_valued(list),
            Expr::Exists(exists) => match RowIn::of(&exists) {
                Some(row) => {
                    let new = row.value(self.state)?;
                    Ok(Transformed::new(new, true, TreeNodeRecursion::Jump))
                }
                None => Ok(Transformed::no(Expr::Exists(exists))),
            },
            Expr::SetComparison(mut comparison) => {
                let inner = &comparison.subquery;
                comparison.subquery = subquery(inner, LogicalPlan::Projection(named(inner)?));
                Ok(Transformed::yes(Expr::SetComparison(comparison)))
            }
            other => Ok(Transformed::no(other)),
        })
    }

    /// `NOT IN` that keeps only rows for which it is true.
    fn absent(&self, list: InSubquery) -> Result<Transformed<Expr>> {
        let is_joined = !is_correlated(&list.subquery) && !list.expr.column_refs().is_empty();
        if is_joined || list.expr.contains_outer() {
            return Ok(Transformed::no(Expr::InSubquery(list)));
        }
        let equal = self.equal(&list)?;
        let wanted = if self.has_null(&list)? { equal.is_not_false() } else { equal };
        let found = filtered(&list.subquery, wanted)?;
        Ok(Transformed::yes(exists(subquery(&list.subquery, found), true)))
    }

    /// `IN` or `NOT IN` that is true, false or NULL.
    fn three_valued(&self, list: InSubquery) -> Result<Transformed<Expr>> {
        let jump = |expr, is_changed| Transformed::new(expr, is_changed, TreeNodeRecursion::Jump);
        let Transformed { data: list, transformed, .. } = named_apart(list)?;
        if !self.has_null(&list)? || list.expr.contains_outer() {
            return Ok(jump(Expr::InSubquery(list), transformed));
        }
        let is_null = if is_correlated(&list.subquery) {
            let null = filtered(&list.subquery, self.equal(&list)?.is_null())?;
            exists(subquery(&list.subquery, null), false)
        } else {
            self.has_null_member(&list)?
        };
        let negated = list.negated;
        let found = Expr::InSubquery(InSubquery { negated: false, ..list });
        Ok(jump(answers(found, is_null, negated), true))
    }

    /// For an uncorrelated subquery: true if it has NULL, or if the left side is NULL and it has rows.
    fn has_null_member(&self, list: &InSubquery) -> Result<Expr> {
        let first = |plan: LogicalPlan| -> Result<Expr> {
            let plan = LogicalPlanBuilder::from(plan).limit(0, Some(1))?.build()?;
            Ok(exists(subquery(&list.subquery, plan), false))
        };
        let of_member = filtered(&list.subquery, member().is_null())?;
        let of_left = LogicalPlan::Projection(named(&list.subquery)?);
        let left = list.expr.as_ref().clone().is_null();
        Ok(first(of_member)?.or(left.and(first(of_left)?)))
    }

    /// True if either side may be NULL.
    fn has_null(&self, list: &InSubquery) -> Result<bool> {
        let of_member = list.subquery.subquery.schema().fields().first();
        Ok(of_member.is_none_or(|field| field.is_nullable()) || list.expr.nullable(self.schema)?)
    }

    /// `v = w` as a condition of the subquery.
    fn equal(&self, list: &InSubquery) -> Result<Expr> {
        Ok(outside(&list.expr, self.schema)?.eq(member()))
    }
}

/// An expression over columns of `schema` as a subquery sees it.
pub(super) fn outside(expr: &Expr, schema: &DFSchema) -> Result<Expr> {
    let outside = expr.clone().map_up(|expr| match expr {
        Expr::Column(column) => {
            let field = schema.field_from_column(&column)?.clone();
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(outside.data)
}

/// The rows in which an EXISTS looks for a row of values, and the condition for it; `None` if it looks for none.
pub(super) fn row_looked_for(exists: &Exists) -> Option<(&Arc<LogicalPlan>, Option<Expr>)> {
    RowIn::of(exists).map(|row| row.equality())
}

/// The value of IN or NOT IN.
fn answers(found: Expr, is_null: Expr, negated: bool) -> Expr {
    let arms = vec![
        (Box::new(found), Box::new(lit(!negated))),
        (Box::new(is_null), Box::new(Expr::Literal(ScalarValue::Boolean(None), None))),
    ];
    Expr::Case(Case::new(None, arms, Some(Box::new(lit(negated)))))
}

fn member() -> Expr {
    Expr::Column(Column::new_unqualified(MEMBER))
}

fn is_correlated(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
}

/// The subquery's column under its name here.
fn named(subquery: &Subquery) -> Result<Projection> {
    let columns = subquery.subquery.schema().columns();
    let member = columns.into_iter().take(1).map(|column| Expr::Column(column).alias(MEMBER));
    Projection::try_new(member.collect(), subquery.subquery.clone())
}

/// Renames the column of a list if it has no qualifier, as for a union: the name would occur twice in the join that
/// DataFusion makes of a value.
fn named_apart(mut list: InSubquery) -> Result<Transformed<InSubquery>> {
    let inner = &list.subquery;
    let columns = inner.subquery.schema().columns();
    let is_bare = columns.first().is_some_and(|column| column.relation.is_none());
    if !is_bare || is_correlated(inner) || matches!(&*inner.subquery, LogicalPlan::Projection(_)) {
        return Ok(Transformed::no(list));
    }
    list.subquery = subquery(inner, LogicalPlan::Projection(named(inner)?));
    Ok(Transformed::yes(list))
}

/// The subquery's rows that fulfil a condition.
fn filtered(subquery: &Subquery, condition: Expr) -> Result<LogicalPlan> {
    let named = Arc::new(LogicalPlan::Projection(named(subquery)?));
    Ok(LogicalPlan::Filter(Filter::try_new(condition, named)?))
}

/// Another plan in the place of a subquery's.
fn subquery(of: &Subquery, plan: LogicalPlan) -> Subquery {
    Subquery {
        outer_ref_columns: plan.all_out_ref_exprs(),
        subquery: Arc::new(plan),
        spans: of.spans.clone(),
    }
}

fn exists(subquery: Subquery, negated: bool) -> Expr {
    Expr::Exists(Exists { subquery, negated })
}
