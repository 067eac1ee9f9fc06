//! Canonical NaN and zero: floats that the row path computes have no sign on NaN, and keys have one zero.
//!
//! Arrow orders floats by their bits: a negative NaN is below all numbers, a positive one above them. The
//! processor decides the sign of `0.0 / 0` or `inf - inf`. So a function clears the sign wherever a NaN may arise, and
//! NaN is equal to itself and above all numbers, as in the dense path, PostgreSQL and DuckDB:
//!
//! | source | |
//! |---|---|
//! | arithmetic, functions | `WHERE -v > 100` ⇒ `WHERE one_nan(-v) > 100` |
//! | sums, means, variances, also OVER | a projection above the aggregate: `one_nan(avg(v))` |
//! | extremes, also OVER, which may return either zero | the same: `one_zero(max(v))` |
//! | tables of files | a projection above the scan |
//! | cells of tensors, labels | have none |
//!
//! -0.0 and 0.0 have different bits too. DataFusion's comparisons, joins and groups treat them as equal. Everything
//! else that compares gets `one_zero(v)`: IN, `CASE v WHEN`, `nullif`, `DISTINCT` in an aggregate, `ORDER BY`, the keys
//! of OVER. Floats in lists, structs and maps are compared by their bits everywhere, so `=`, `<`, extremes, groups,
//! DISTINCT and joins of these get it, too. [`intervals`] are compared by their length, except as keys of groups and of
//! DISTINCT, which are values of the result. [`member`] prevents the optimiser from merging lists of IN. DataFusion
//! takes a CASE in such a list for a constant, so it becomes `tessera_each(CASE …)`.

mod intervals;
mod member;
mod plain;
mod rules;

use std::sync::Arc;

use crate::walk::WalkPlan;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result};
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Aggregate, Distinct, Expr, LogicalPlan, Projection, ScalarUDF};

use self::rules::{Rules, is_extreme, is_interval, is_nested, makes_result};
use super::casts::bare;
use super::scan::ScanSource;
use super::table::CellSource;

/// Wraps expressions that produce floats; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let rules = Rules::new();
    plan.map_all_up(|node| keys(node, &rules)?.transform_data(|node| wrapped(node, &rules)))
        .map(|t| t.data)
}

/// The node with its expressions wrapped.
fn wrapped(node: LogicalPlan, rules: &Rules) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&node.inputs());
    let names = NamePreserver::new(&node);
    let is_filter = matches!(node, LogicalPlan::Filter(_));
    let is_sort = matches!(node, LogicalPlan::Sort(_));
    node.map_exprs(|expr| {
        let name = names.save(&expr);
        let mut is_changed = false;
        let expr = match (is_filter, is_sort) {
            (true, _) => rules.filter(expr, &schema, &mut is_changed)?,
            (_, true) => rules.key(expr, &schema, &mut is_changed)?,
            _ => rules.visit(expr, &schema, false, &mut is_changed)?,
        };
        Ok(match is_changed {
            // Sort keys have no names.
            true if is_sort => Transformed::yes(expr),
            true => Transformed::yes(name.restore(expr)),
            false => Transformed::no(expr),
        })
    })?
    .map_data(LogicalPlan::recompute_schema)?
    .transform_data(|node| results(node, rules))
}

/// Wraps the keys of groups, of DISTINCT and of joins that are nested values with floats in them: their bits are
/// compared.
fn keys(node: LogicalPlan, rules: &Rules) -> Result<Transformed<LogicalPlan>> {
    let mut is_changed = false;
    Ok(match node {
        LogicalPlan::Aggregate(mut aggregate) => {
            for key in &mut aggregate.group_expr {
                if is_nested(key, aggregate.input.schema()) {
                    is_changed = true;
                    let (relation, name) = key.qualified_name();
                    let plain = rules.one_zero(std::mem::take(key));
                    *key = plain.alias_qualified(relation, name);
                }
            }
            for call in &mut aggregate.aggr_expr {
                if let Some(first) = extreme_interval(call, aggregate.input.schema(), rules) {
                    is_changed = true;
                    *call = first;
                }
            }
            if !is_changed {
                return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
            }
            let Aggregate { input, group_expr, aggr_expr, .. } = aggregate;
            let plan = Aggregate::try_new(input, group_expr, aggr_expr)?;
            Transformed::yes(LogicalPlan::Aggregate(plan))
        }
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let schema = input.schema().clone();
            let exprs = schema.iter().map(|(relation, field)| {
                let column = Expr::Column(Column::from((relation, field)));
                if !is_nested(&column, &schema) {
                    return column;
                }
                is_changed = true;
                rules.one_zero(column).alias_qualified(relation.cloned(), field.name())
            });
            let exprs: Vec<Expr> = exprs.collect();
            if !is_changed {
                return Ok(Transformed::no(LogicalPlan::Distinct(Distinct::All(input))));
            }
            let input = LogicalPlan::Projection(Projection::try_new(exprs, input)?);
            Transformed::yes(LogicalPlan::Distinct(Distinct::All(Arc::new(input))))
        }
        LogicalPlan::Join(mut join) => {
            for (left, right) in &mut join.on {
                let (first, second) = (join.left.schema(), join.right.schema());
                let are_intervals = is_interval(left, first) && is_interval(right, second);
                if are_intervals || is_nested(left, first) || is_nested(right, second) {
                    is_changed = true;
                    *left = rules.compared(std::mem::take(left), first);
                    *right = rules.compared(std::mem::take(right), second);
                }
            }
            Transformed::new_transformed(LogicalPlan::Join(join), is_changed)
        }
        other => Transformed::no(other),
    })
}

/// The least or greatest interval: the first one by length; `None` for other calls.
fn extreme_interval(call: &Expr, schema: &DFSchema, rules: &Rules) -> Option<Expr> {
    let Expr::AggregateFunction(function) = bare(call) else { return None };
    let is_max = match function.func.name() {
        "max" => true,
        "min" => false,
        _ => return None,
    };
    let [interval] = function.params.args.as_slice() else { return None };
    if !is_interval(interval, schema) {
        return None;
    }
    let mut params = function.params.clone();
    params.distinct = false;
    params.order_by = vec![rules.compared(interval.clone(), schema).sort(!is_max, false)];
    let first = AggregateFunction { func: first_value_udaf(), params };
    Some(Expr::AggregateFunction(first).alias(call.schema_name().to_string()))
}

/// `one_nan`, `one_zero`, `member`, `tessera_each` and `tessera_length`.
pub(super) fn functions() -> [ScalarUDF; 5] {
    let [nan, zero] = [false, true].map(plain::Plain::udf);
    [nan, zero, plain::Member::udf(), plain::Each::udf(), intervals::length()]
}

pub(super) fn expression(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    Rules::new().visit(expr, schema, false, &mut false)
}

/// Adds a projection above nodes that yield floats without an expression.
fn results(node: LogicalPlan, rules: &Rules) -> Result<Transformed<LogicalPlan>> {
    let schema = node.schema().clone();
    let is_float =
        |i: usize| matches!(schema.field(i).data_type(), DataType::Float64 | DataType::Float32);
    let columns = schema.fields().len();
    let calls = match &node {
        LogicalPlan::Aggregate(aggregate) => aggregate.aggr_expr.as_slice(),
        LogicalPlan::Window(window) => window.window_expr.as_slice(),
        LogicalPlan::TableScan(scan)
            if !scan.source.is::<CellSource>() && !scan.source.is::<ScanSource>() =>
        {
            &[]
        }
        _ => return Ok(Transformed::no(node)),
    };
    let is_table = matches!(node, LogicalPlan::TableScan(_));
    let before = columns.saturating_sub(calls.len());
    let mut is_changed = false;
    let exprs = schema
        .iter()
        .enumerate()
        .map(|(i, (relation, field))| {
            let column = Expr::Column(Column::from((relation, field)));
            let call = i.checked_sub(before).and_then(|k| calls.get(k));
            let plain = match is_float(i) {
                true if call.is_some_and(is_extreme) => rules.one_zero(column),
                true if is_table || call.is_some_and(makes_result) => rules.one_nan(column),
                _ => return column,
            };
            is_changed = true;
            plain.alias_qualified(relation.cloned(), field.name())
        })
        .collect();
    if !is_changed {
        return Ok(Transformed::no(node));
    }
    let plan = Projection::try_new(exprs, Arc::new(node))?;
    Ok(Transformed::yes(LogicalPlan::Projection(plan)))
}
