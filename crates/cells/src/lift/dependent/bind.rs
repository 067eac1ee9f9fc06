//! Renames the outer columns that a subquery uses.

use std::cell::Cell;
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, Subquery};

/// Numbers for names that occur once in a plan.
#[derive(Debug, Default)]
pub(super) struct Numbers(Cell<usize>);

impl Numbers {
    pub(super) fn next(&self) -> usize {
        let number = self.0.get();
        self.0.set(number + 1);
        number
    }
}

#[derive(Debug, Clone)]
pub(super) struct Outside {
    pub(super) at: usize,
    /// Its new name, which no text can produce.
    pub(super) name: String,
}

/// Renames outer columns wherever a subquery refers to them, also in nested subqueries, unless a relation between has
/// that column.
pub(super) struct Binder<'a> {
    outer: &'a DFSchema,
    number: usize,
    pub(super) known: Vec<Outside>,
}

impl<'a> Binder<'a> {
    pub(super) fn new(outer: &'a DFSchema, numbers: &Numbers) -> Self {
        Binder { outer, number: numbers.next(), known: Vec::new() }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.known.iter().map(|outside| outside.name.clone()).collect()
    }

    /// The plan with the new names; `hidden` has the relations between.
    pub(super) fn plan(
        &mut self,
        plan: &LogicalPlan,
        hidden: &[DFSchemaRef],
    ) -> Result<LogicalPlan> {
        if !has_outside(plan)? {
            return Ok(plan.clone());
        }
        let below = Arc::new(merge_schema(&plan.inputs()));
        let node = match plan {
            LogicalPlan::Subquery(inner) => {
                return Ok(LogicalPlan::Subquery(self.subquery(inner, hidden)?));
            }
            LogicalPlan::Join(join) => {
                let left = Arc::new(self.plan(&join.left, hidden)?);
                // A LATERAL subquery refers to the relations before it.
                let right = self.plan(&join.right, &more(hidden, join.left.schema()))?;
                LogicalPlan::Join(Join { left, right: Arc::new(right), ..join.clone() })
            }
            other => {
                let new = other.clone().map_below(|input| {
                    let input = self.plan(&input, hidden)?;
                    Ok(Transformed::yes(input))
                });
                new?.data
            }
        };
        Ok(node.map_exprs(|expr| self.expr(expr, hidden, &below))?.data)
    }

    fn subquery(&mut self, of: &Subquery, hidden: &[DFSchemaRef]) -> Result<Subquery> {
        let plan = self.plan(&of.subquery, hidden)?;
        Ok(Subquery {
            outer_ref_columns: plan.all_out_ref_exprs(),
            subquery: Arc::new(plan),
            spans: of.spans.clone(),
        })
    }

    /// An expression over rows of `below`.
    fn expr(
        &mut self,
        expr: Expr,
        hidden: &[DFSchemaRef],
        below: &DFSchemaRef,
    ) -> Result<Transformed<Expr>> {
        let inside = more(hidden, below);
        expr.map_up(|e| {
            Ok(match e {
                Expr::OuterReferenceColumn(field, column) => match self.name(&column, hidden) {
                    Some(name) => {
                        let column = Column::new_unqualified(name);
                        Transformed::yes(Expr::OuterReferenceColumn(field, column))
                    }
                    None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
                },
                Expr::ScalarSubquery(of) => {
                    Transformed::yes(Expr::ScalarSubquery(self.subquery(&of, &inside)?))
                }
                Expr::Exists(of) => {
                    let subquery = self.subquery(&of.subquery, &inside)?;
                    Transformed::yes(Expr::Exists(Exists { subquery, negated: of.negated }))
                }
                Expr::InSubquery(of) => {
                    let subquery = self.subquery(&of.subquery, &inside)?;
                    Transformed::yes(Expr::InSubquery(InSubquery { subquery, ..of }))
                }
                Expr::SetComparison(of) => {
                    let subquery = self.subquery(&of.subquery, &inside)?;
                    Transformed::yes(Expr::SetComparison(SetComparison { subquery, ..of }))
                }
                other => Transformed::no(other),
            })
        })
    }

    fn name(&mut self, column: &Column, hidden: &[DFSchemaRef]) -> Option<String> {
        if hidden.iter().any(|schema| schema.has_column(column)) {
            return None;
        }
        let at = self.outer.maybe_index_of_column(column)?;
        if let Some(known) = self.known.iter().find(|known| known.at == at) {
            return Some(known.name.clone());
        }
        let name = format!("[outside {} {at}]", self.number);
        self.known.push(Outside { at, name: name.clone() });
        Some(name)
    }
}

fn more(hidden: &[DFSchemaRef], schema: &DFSchemaRef) -> Vec<DFSchemaRef> {
    hidden.iter().chain([schema]).cloned().collect()
}

/// The subquery of an expression that is one.
pub(super) fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery) => Some(subquery),
        Expr::Exists(exists) => Some(&exists.subquery),
        Expr::InSubquery(list) => Some(&list.subquery),
        Expr::SetComparison(comparison) => Some(&comparison.subquery),
        _ => None,
    }
}

/// True if a plan, or a subquery inside of it, refers to an outer column.
pub(super) fn has_outside(plan: &LogicalPlan) -> Result<bool> {
    refers(plan, |_| true)
}

/// True if a plan, or a subquery inside of it, refers to a column of these names.
pub(super) fn uses(plan: &LogicalPlan, names: &[String]) -> Result<bool> {
    refers(plan, |column| is_of(column, names))
}

/// True if an expression refers to a column of these names; subqueries inside of it do not count.
pub(super) fn names_one(expr: &Expr, names: &[String]) -> Result<bool> {
    expr.any(|e| Ok(matches!(e, Expr::OuterReferenceColumn(_, column) if is_of(column, names))))
}

/// True for a column that has one of these names.
pub(super) fn is_of(column: &Column, names: &[String]) -> bool {
    column.relation.is_none() && names.contains(&column.name)
}

fn refers(plan: &LogicalPlan, is_one: impl Fn(&Column) -> bool) -> Result<bool> {
    let is_one = |e: &Expr| matches!(e, Expr::OuterReferenceColumn(_, column) if is_one(column));
    plan.any_of_all(|node| node.any_expr(|expr| expr.any(|e| Ok(is_one(e)))))
}
