//! Keeps filters above projections below which they would become large: see [`crate::grown`].
//!
//! The rules of logical plans have left them there. `FilterPushdown` pushes each filter down to the next one, whatever is
//! between them. While it runs, projections are below a node that lets only the other filters through.

use crate::grown::Size;
use crate::rows::single::{over, shown_by_name, usual};
use crate::walk::Walk;
use datafusion::common::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal, NotExpr};
use datafusion::physical_expr::utils::{collect_columns, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase,
};
use datafusion::physical_plan::projection::ProjectionExec;
use std::collections::HashSet;
use std::sync::Arc;

/// The plan with its projections below a [`GrownExec`], if a filter has a condition that may stay above one.
pub(super) fn hidden(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if !plan.any(|node| Ok(has_grown(node)))? {
        return Ok(plan);
    }
    plan.replace_up(|node| {
        let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(None) };
        let items = projection.expr().iter().map(|item| size(&item.expr, &|_| Size::COLUMN));
        let items = items.collect();
        Ok(Some(Arc::new(GrownExec { input: node.clone(), items })))
    })
}

/// The node below one that nothing is moved through.
pub(super) fn above(node: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    Arc::new(GrownExec { input: Arc::clone(node), items: Vec::new().into() })
}

/// The input of a node that [`hidden`] or [`above`] adds; `None` for other nodes.
pub(super) fn input(node: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    node.downcast_ref::<GrownExec>().map(|grown| &grown.input)
}

/// True for a filter with a condition that may stay above a projection.
fn has_grown(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.downcast_ref::<FilterExec>().is_some_and(|filter| {
        let conditions = split_conjunction(filter.predicate());
        conditions.into_iter().any(|condition| size(condition, &|_| Size::COLUMN).may_stay())
    })
}

/// The size of an expression, whose columns have the sizes of `of_column`.
fn size(expr: &Arc<dyn PhysicalExpr>, of_column: &dyn Fn(usize) -> Size) -> Size {
    if let Some(column) = expr.downcast_ref::<Column>() {
        return of_column(column.index());
    }
    let operands = expr.children().into_iter().map(|operand| size(operand, of_column));
    let all = operands.fold(Size::default(), Size::beside);
    let is_both = expr
        .downcast_ref::<BinaryExpr>()
        .is_some_and(|both| matches!(both.op(), Operator::And | Operator::Or));
    if expr.is::<Literal>() {
        all
    } else if is_both || expr.is::<NotExpr>() {
        all.in_logic()
    } else {
        all.in_operator()
    }
}

#[derive(Debug)]
struct GrownExec {
    /// A projection, or a reader.
    input: Arc<dyn ExecutionPlan>,
    items: Arc<[Size]>,
}

shown_by_name!(GrownExec);

impl ExecutionPlan for GrownExec {
    usual!(name, properties of input, input, in_order, rows_of_input, no_expressions);

    over!(|node, input| GrownExec { input, items: node.items.clone() });

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let below = |at: usize| self.items.get(at).copied().unwrap_or(Size::COLUMN);
        // Conditions are refused by their columns. Those that are not computed may be in others, which go below.
        let is_computed = |at: &usize| below(*at).parts > Size::COLUMN.parts;
        let mut refused = HashSet::new();
        for filter in &filters {
            if size(filter, &|_| Size::COLUMN).stays_above(size(filter, &below)) {
                let columns = collect_columns(filter);
                refused.extend(columns.iter().map(Column::index).filter(is_computed));
            }
        }
        let others = (0..self.schema().fields().len()).filter(|at| !refused.contains(at)).collect();
        let input =
            ChildFilterDescription::from_child_with_allowed_indices(&filters, others, &self.input)?;
        Ok(FilterDescription::new().with_child(input))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::grown::tests::DEPTH;
    use crate::lift::session_state;
    use crate::rows::physical::in_order;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::tree_node::TreeNodeRecursion;
    use datafusion::physical_expr::expressions::lit;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::physical_plan::filter_pushdown::PushedDown;
    use datafusion::prelude::SessionContext;
    use tessera_frontend::limits::THREAD_STACK_BYTES;

    /// A chain of blocks, each with a condition and a computed column.
    fn chain(blocks: usize) -> String {
        let first = "WITH c0 AS (SELECT column1 AS v FROM (VALUES (1), (2), (3)) t)".to_string();
        let next = |sql: String, i: usize| {
            let before = i - 1;
            sql + &format!(", c{i} AS (SELECT v + {i} AS v FROM c{before} WHERE v > {i})")
        };
        (1..=blocks).fold(first, next) + &format!(" SELECT sum(v) AS s FROM c{blocks}")
    }

    /// The sizes of the conditions of a physical plan.
    fn conditions(sql: String) -> Vec<Size> {
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let state = session_state(1 << 30).unwrap();
                let context = SessionContext::new_with_state(in_order(&state));
                let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
                let mut sizes = Vec::new();
                plan.each(|node| {
                    if let Some(filter) = node.downcast_ref::<FilterExec>() {
                        let all = split_conjunction(filter.predicate());
                        sizes.extend(all.into_iter().map(|c| size(c, &|_| Size::COLUMN)));
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
                .unwrap();
                sizes
            })
        };
        let thread = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(work);
        thread.unwrap().join().unwrap()
    }

    #[test]
    fn the_conditions_of_a_chain_of_blocks_stay_small() {
        let deepest = |sizes: &[Size]| sizes.iter().map(|size| size.depth).max().unwrap();
        // All of a short chain are at its begin.
        let few = conditions(chain(8));
        assert!(few.len() == 8 && deepest(&few) > 5, "{few:?}");
        let many = conditions(chain(60));
        assert!(many.len() == 60 && deepest(&many) <= DEPTH, "{many:?}");
    }

    #[test]
    fn conditions_on_plain_columns_are_pushed_down() {
        type Condition = Arc<dyn PhysicalExpr>;
        let field = |name| Field::new(name, DataType::Int64, true);
        let schema = Arc::new(Schema::new(vec![field("v"), field("k")]));
        let computed = Size { parts: 300, depth: 20 };
        let items: Arc<[Size]> = Arc::from([computed, Size::COLUMN]);
        let grown = GrownExec { input: Arc::new(EmptyExec::new(schema)), items };
        let (v, k): (Condition, Condition) =
            (Arc::new(Column::new("v", 0)), Arc::new(Column::new("k", 1)));
        let both = |left: Condition, op, right: &Condition| -> Condition {
            Arc::new(BinaryExpr::new(left, op, right.clone()))
        };
        let sum = (0..9).fold(v.clone(), |sum, _| both(sum, Operator::Plus, &k));
        let filters = [sum, k, v].map(|side| both(side, Operator::Gt, &lit(1i64)));
        let options = ConfigOptions::default();
        let phase = FilterPushdownPhase::Pre;
        let found = grown.gather_filters_for_pushdown(phase, filters.to_vec(), &options).unwrap();
        let goes: Vec<bool> = found.parent_filters()[0]
            .iter()
            .map(|filter| matches!(filter.discriminant, PushedDown::Yes))
            .collect();
        assert_eq!(goes, [false, true, false]);
    }
}
