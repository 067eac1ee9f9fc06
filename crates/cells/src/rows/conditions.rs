//! `d >= a AND d < b AND s LIKE c`: neighbouring comparisons are evaluated for all rows of a batch.
//!
//! ```text
//! d >= a AND d < b AND s LIKE c   ⇒   tessera_all(d >= a, d < b) AND s LIKE c
//! ```
//! If few rows fulfil the conditions before one, DataFusion evaluates it for these alone. It copies the rows and
//! spreads the results over the batch, which takes longer than a comparison of all rows.
//!
//! Conditions keep their order, and only those that cannot fail are evaluated for more rows than before. Equations stay
//! as they are: the orders of a plan depend on its constants.

use crate::lift::all_of;
use crate::walk::Walk;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{Operator, ScalarUDF};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, InListExpr, Literal};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use std::sync::Arc;

/// Rewrites the conditions of a plan's filters.
pub(super) fn with_comparisons_together(
    plan: Arc<dyn ExecutionPlan>,
    options: &Arc<ConfigOptions>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let all = Arc::new(all_of::function());
    plan.replace_up(|node| {
        let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
        let together = Together { all: &all, schema: &filter.input().schema(), options };
        let Some(condition) = together.rewritten(filter.predicate())? else { return Ok(None) };
        let filter = FilterExecBuilder::from(filter).with_predicate(condition).build()?;
        Ok(Some(Arc::new(filter)))
    })
}

struct Together<'a> {
    all: &'a Arc<ScalarUDF>,
    schema: &'a Schema,
    options: &'a Arc<ConfigOptions>,
}

impl Together<'_> {
    /// The condition with neighbouring comparisons together; `None` if there are none.
    fn rewritten(
        &self,
        condition: &Arc<dyn PhysicalExpr>,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let parts = split_conjunction(condition);
        if !parts.windows(2).any(|two| two.iter().all(|part| self.is_comparison(part))) {
            return Ok(None);
        }
        let mut conjunction: Option<Arc<dyn PhysicalExpr>> = None;
        for group in parts.chunk_by(|a, b| self.is_comparison(a) && self.is_comparison(b)) {
            let part: Arc<dyn PhysicalExpr> = match group {
                [one] => Arc::clone(one),
                many => {
                    let many = many.iter().map(|part| Arc::clone(part)).collect();
                    let (all, options) = (self.all.clone(), self.options.clone());
                    Arc::new(ScalarFunctionExpr::try_new(all, many, self.schema, options)?)
                }
            };
            conjunction = Some(match conjunction {
                Some(before) => Arc::new(BinaryExpr::new(before, Operator::And, part)),
                None => part,
            });
        }
        Ok(conjunction)
    }

    /// True for a comparison that takes a few cycles for each row and cannot fail.
    fn is_comparison(&self, condition: &Arc<dyn PhysicalExpr>) -> bool {
        if let Some(list) = condition.downcast_ref::<InListExpr>() {
            return self.is_operand(list.expr()) && list.list().iter().all(|v| v.is::<Literal>());
        }
        let Some(compared) = condition.downcast_ref::<BinaryExpr>() else { return false };
        let is_range = matches!(
            compared.op(),
            Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq
        );
        is_range && self.is_operand(compared.left()) && self.is_operand(compared.right())
    }

    /// True for a column, or a literal, with values of a fixed width.
    fn is_operand(&self, value: &Arc<dyn PhysicalExpr>) -> bool {
        let is_fixed = |kind: DataType| kind.is_primitive() || kind == DataType::Boolean;
        if value.is::<Column>() || value.is::<Literal>() {
            return value.data_type(self.schema).is_ok_and(is_fixed);
        }
        value.downcast_ref::<ScalarFunctionExpr>().is_some_and(|call| {
            let is_plain = matches!(call.name(), "one_nan" | "one_zero");
            let is_number = value.data_type(self.schema).is_ok_and(is_fixed);
            is_plain && is_number && call.args().iter().all(|argument| argument.is::<Column>())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    #[tokio::test]
    async fn neighbouring_comparisons_are_one_call_with_the_same_rows() {
        let config = SessionConfig::new().with_target_partitions(1);
        let context = SessionContext::new_with_config(config);
        let number = |i: i64, step: i64| (i % 7 != 3).then_some(i * step % 101);
        let of = |step| (0..1000).map(|i| number(i, step)).collect::<Int64Array>();
        let texts: StringArray = (0..1000).map(|i| Some(format!("{i}"))).collect();
        let batch = RecordBatch::try_from_iter([
            ("a", Arc::new(of(17)) as _),
            ("b", Arc::new(of(29)) as _),
            ("s", Arc::new(texts) as _),
        ])
        .unwrap();
        context.register_batch("t", batch).unwrap();
        for (condition, is_changed) in [
            ("a > 5 AND b < 90", true),
            ("a > 90 AND a < 95 AND s LIKE '%1%' AND b <> 7", true),
            ("s LIKE '%1%' AND a IN (1, 5, 9, 11, 13) AND b >= a", true),
            ("a > 5 AND s < '5' AND b < 9", false),
            ("a = 5 AND b >= 0", false),
            ("a > 5 AND 100 / (b + 1) > 2", false),
        ] {
            let sql = format!("SELECT a, b, s FROM t WHERE {condition}");
            let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
            let options = Arc::new(ConfigOptions::default());
            let together = with_comparisons_together(plan.clone(), &options).unwrap();
            let shown = displayable(together.as_ref()).indent(false).to_string();
            assert_eq!(shown.contains("tessera_all("), is_changed, "{condition}: {shown}");
            let rows = |plan| datafusion::physical_plan::collect(plan, context.task_ctx());
            let (rows, want) = (rows(together).await.unwrap(), rows(plan).await.unwrap());
            assert!(rows == want && !want.is_empty(), "{condition}");
        }
    }
}
