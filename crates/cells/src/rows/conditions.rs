//! `d >= a AND d < b AND s LIKE c`: neighbouring comparisons are evaluated for all rows of a batch.
//!
//! ```text
//! d >= a AND d < b AND s LIKE c   ⇒   tessera_all(d >= a, d < b) AND s LIKE c
//! ```
//! DataFusion evaluates a condition only for the rows that fulfil those before it, if these are few. For that it copies
//! the rows and spreads the answers over the batch, which takes longer than a comparison of all of them.
//!
//! Conditions keep their order, and only those that cannot fail are evaluated for more rows than before. Equations stay
//! as they are: the orders of a plan depend on its constants.

use crate::lift::all_of;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
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
///
/// # Errors
/// DataFusion's.
pub(super) fn with_comparisons_together(
    plan: Arc<dyn ExecutionPlan>,
    options: &Arc<ConfigOptions>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let all = Arc::new(all_of::function());
    plan.transform_up(|node| {
        let Some(filter) = node.downcast_ref::<FilterExec>() else {
            return Ok(Transformed::no(node));
        };
        let together = Together { all: &all, schema: &filter.input().schema(), options };
        let Some(condition) = together.rewritten(filter.predicate())? else {
            return Ok(Transformed::no(node));
        };
        let filter = FilterExecBuilder::from(filter).with_predicate(condition).build()?;
        Ok(Transformed::yes(Arc::new(filter)))
    })
    .map(|t| t.data)
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
            is_plain && call.args().iter().all(|argument| argument.is::<Column>())
        })
    }
}
