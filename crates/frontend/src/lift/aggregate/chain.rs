//! The way from an aggregate down to its one table, with all expressions brought to the table's columns.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::split_conjunction_owned;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan};

use super::super::lower::Reason;
use super::super::table::{CellSource, CellTable};

/// An aggregate over one table of cells.
pub(super) struct Chain {
    pub(super) table: Arc<CellTable>,
    /// Conjuncts of all filters.
    pub(super) filters: Vec<Expr>,
    pub(super) groups: Vec<Expr>,
    pub(super) aggregates: Vec<AggregateFunction>,
    /// For each output field the metadata that it inherits.
    pub(super) metadata: Vec<HashMap<String, String>>,
}

impl Chain {
    pub(super) fn read(aggregate: &Aggregate) -> Result<Self, Reason> {
        let mut groups: Vec<Expr> = aggregate.group_expr.clone();
        if groups.iter().any(|g| matches!(g, Expr::GroupingSet(_))) {
            return Err("GROUPING SETS has no dense form".to_string());
        }
        let mut calls: Vec<Expr> = aggregate.aggr_expr.clone();
        let mut filters: Vec<Expr> = Vec::new();
        let mut plan: &LogicalPlan = &aggregate.input;
        let scan = loop {
            let inner = match plan {
                LogicalPlan::TableScan(scan) => break scan,
                LogicalPlan::SubqueryAlias(alias) => {
                    let from = Expr::Column;
                    let inner = alias.input.schema();
                    let exprs: Vec<Expr> = inner.columns().into_iter().map(from).collect();
                    substitute(
                        &mut [&mut groups, &mut calls, &mut filters],
                        &alias.schema,
                        &exprs,
                    )?;
                    &alias.input
                }
                LogicalPlan::Projection(projection) => {
                    substitute(
                        &mut [&mut groups, &mut calls, &mut filters],
                        &projection.schema,
                        &projection.expr,
                    )?;
                    &projection.input
                }
                LogicalPlan::Filter(filter) => {
                    filters.extend(split_conjunction_owned(filter.predicate.clone()));
                    &filter.input
                }
                other => {
                    let text = other.display().to_string();
                    let name = text.split(':').next().unwrap_or_default().to_string();
                    return Err(format!("{name} stands between GROUP BY and the tensor"));
                }
            };
            plan = inner;
        };
        let is_plain = scan.projection.is_none() && scan.filters.is_empty() && scan.fetch.is_none();
        let source = scan.source.downcast_ref::<CellSource>().filter(|_| is_plain);
        let source = source.ok_or_else(|| format!("{} is a table of rows", scan.table_name))?;
        let schema = &scan.projected_schema;
        let mut metadata = Vec::new();
        for group in &groups {
            metadata.push(inherited(group, schema));
        }
        let aggregates: Vec<AggregateFunction> = calls
            .into_iter()
            .map(|call| match call.unalias_nested().data {
                Expr::AggregateFunction(f) => Ok(f),
                other => Err(format!("`{other}` is not a plain aggregate")),
            })
            .collect::<Result<_, Reason>>()?;
        for call in &aggregates {
            metadata.push(match (call.func.name(), call.params.args.first()) {
                ("min" | "max", Some(arg)) => inherited(arg, schema),
                _ => HashMap::new(),
            });
        }
        Ok(Self { table: source.table.clone(), filters, groups, aggregates, metadata })
    }
}

/// Metadata of the value of an expression.
fn inherited(expr: &Expr, schema: &DFSchema) -> HashMap<String, String> {
    // An expression that has no type was refused when the plan was analysed.
    expr.to_field(schema).map(|(_, f)| f.metadata().clone()).unwrap_or_default()
}

/// Replaces columns of `schema` by the expressions that stand for its fields.
fn substitute(
    lists: &mut [&mut Vec<Expr>],
    schema: &DFSchema,
    exprs: &[Expr],
) -> Result<(), Reason> {
    let find = |column: &Column| -> Option<Expr> {
        let i = schema.maybe_index_of_column(column)?;
        let mut expr = exprs.get(i)?.clone();
        while let Expr::Alias(alias) = expr {
            expr = *alias.expr;
        }
        Some(expr)
    };
    for list in lists {
        for expr in list.iter_mut() {
            let mut lost = None;
            let new = expr.clone().transform_up(|e| match e {
                Expr::Column(column) => match find(&column) {
                    Some(inner) => Ok(Transformed::yes(inner)),
                    None => {
                        lost = Some(column.clone());
                        Ok(Transformed::no(Expr::Column(column)))
                    }
                },
                e => Ok(Transformed::no(e)),
            });
            *expr = new.map_err(|e| e.strip_backtrace())?.data;
            if let Some(column) = lost {
                return Err(format!("`{column}` comes from an outer query"));
            }
        }
    }
    Ok(())
}
