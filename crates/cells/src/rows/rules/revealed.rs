//! Columns of grouping sets that were hidden from DataFusion's optimizer.
//!
//! ```text
//! AggregateExec: ROLLUP (k)                          AggregateExec: ROLLUP (k)
//!   ProjectionExec: tessera_opaque(k, random())  ⇒     ProjectionExec: k
//! ```
//! The optimizer takes a constant or an order of the rows for one of the groups, although those of smaller sets have
//! neither ([`crate::lift`] hides them therefore). Once it is done, the columns are what they are: `random` would keep the
//! rows on one thread.

use crate::lift::OPAQUE;
use crate::walk::Walk;
use datafusion::error::Result;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use std::sync::Arc;

/// The plan, whose grouping sets read such columns as they are, unless the rows have constants or an order, or columns that
/// are constants or equal: those of smaller sets are not.
pub(super) fn with_revealed(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.replace_up(|node| {
        let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
        if aggregate.group_expr().is_single() {
            return Ok(None);
        }
        let Some(hidden) = aggregate.input().downcast_ref::<ProjectionExec>() else {
            return Ok(None);
        };
        let rows = hidden.input();
        let known = rows.equivalence_properties();
        if rows.output_ordering().is_some() || !known.constants().is_empty() {
            return Ok(None);
        }
        let items = hidden.expr().iter().map(|item| {
            let expr = within(&item.expr).unwrap_or(&item.expr).clone();
            ProjectionExpr::new(expr, item.alias.clone())
        });
        let items: Vec<ProjectionExpr> = items.collect();
        if items.iter().zip(hidden.expr()).all(|(new, old)| Arc::ptr_eq(&new.expr, &old.expr)) {
            return Ok(None);
        }
        let revealed = ProjectionExec::try_new(items, rows.clone())?;
        // A column that cannot be NULL has another field than what hid it.
        if revealed.schema() != hidden.schema() {
            return Ok(None);
        }
        // The aggregate would pass on that a column is a literal, or equals another one.
        if !revealed.properties().equivalence_properties().eq_group().is_empty() {
            return Ok(None);
        }
        replace_children_if_necessary(node.clone(), vec![Arc::new(revealed)]).map(Some)
    })
}

/// The first argument of a call of [`OPAQUE`].
fn within(expr: &Arc<dyn PhysicalExpr>) -> Option<&Arc<dyn PhysicalExpr>> {
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    (call.name() == OPAQUE).then(|| call.args().first()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::lift::session_state;
    use crate::rows::physical::in_order;
    use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use datafusion::arrow::datatypes::DataType;
    use datafusion::datasource::MemTable;
    use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;

    /// True if the aggregate reads the columns `a` and `b` as they are.
    async fn is_revealed(columns: &str, groups: &str) -> bool {
        let state = session_state(1 << 30).unwrap();
        let context = SessionContext::new_with_state(in_order(&state));
        let first = |args: &[ColumnarValue]| Ok(args[0].clone());
        let kinds = vec![DataType::Int64, DataType::Float64];
        let kind = DataType::Int64;
        context.register_udf(create_udf(
            OPAQUE,
            kinds,
            kind,
            Volatility::Volatile,
            Arc::new(first),
        ));
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None, Some(8)]));
        let rows = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        let table = MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap();
        context.register_table("t", Arc::new(table)).unwrap();
        let hidden = ["a", "b"].map(|name| format!("{OPAQUE}({name}, random()) AS {name}"));
        let sql = format!(
            "SELECT a, b, count(*) AS n FROM (SELECT {} FROM (SELECT {columns} FROM t) q) r GROUP BY {groups}",
            hidden.join(", ")
        );
        let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let revealed = with_revealed(plan).unwrap();
        !displayable(revealed.as_ref()).indent(false).to_string().contains(OPAQUE)
    }

    #[tokio::test]
    async fn columns_without_constants_and_equals_are_revealed() {
        let sets = "ROLLUP (a, b)";
        assert!(is_revealed("id % 5 AS a, id % 7 AS b", sets).await);
        // Subtotals have NULL where rows have the literal, or the other column's value.
        assert!(!is_revealed("1 AS a, id % 7 AS b", sets).await);
        assert!(!is_revealed("CAST(NULL AS BIGINT) AS a, id % 7 AS b", sets).await);
        assert!(!is_revealed("id AS a, id AS b", sets).await);
        assert!(!is_revealed("id % 5 AS a, id % 7 AS b", "a, b").await);
    }
}
