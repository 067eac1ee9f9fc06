//! Bounds the memory of large constants, which are materialized per row.
//!
//! DataFusion stores a constant once, and materializes it for all rows of a batch where a projection, an aggregate or
//! a sort needs a column. A text of a megabyte then takes eight gigabytes. So batches of plans with large constants
//! have fewer rows. Arguments of window functions are materialized for a whole partition: there a large constant is
//! an error.

use super::remote::RemoteExec;
use super::splits::{PartsExec, WindowsExec};
use crate::walk::Walk;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ExecutionPlan, PhysicalExpr};
use std::sync::Arc;

/// Constants up to this many bytes are ignored.
const SMALL_BYTES: u64 = 64;

/// Rows per batch, at most `usual`, so that the plan's constants take at most `most` bytes when they are
/// materialized.
///
/// # Errors
/// `ResourcesExhausted` if `usual` rows of a window function's constant take more than `most` bytes.
pub(super) fn rows_of_batches(
    plan: &Arc<dyn ExecutionPlan>,
    usual: usize,
    most: u64,
) -> Result<usize> {
    let row_bytes = row_bytes(plan, usual, most)?;
    if row_bytes == 0 {
        return Ok(usual);
    }
    Ok(usize::try_from(most / row_bytes).unwrap_or(usual).clamp(1, usual))
}

/// Bytes of the constants of all operators, including those on workers: batches are the same there.
fn row_bytes(plan: &Arc<dyn ExecutionPlan>, usual: usize, most: u64) -> Result<u64> {
    let mut row_bytes = 0u64;
    plan.each(|node| {
        if let Some(remote) = node.downcast_ref::<RemoteExec>() {
            // Constants of further inputs are counted in the first one.
            if !remote.is_second() {
                row_bytes = row_bytes.saturating_add(self::row_bytes(remote.template(), usual, most)?);
            }
            return Ok(TreeNodeRecursion::Jump);
        }
        if node.downcast_ref::<PartsExec>().is_some_and(|parts| parts.order().is_some()) {
            // The sort or the windows above have the same constants.
            return Ok(TreeNodeRecursion::Continue);
        }
        let mut own = 0u64;
        node.apply_expressions(&mut |expr| {
            own = own.saturating_add(constant_bytes(expr)?);
            Ok(TreeNodeRecursion::Continue)
        })?;
        let is_window = node.is::<WindowAggExec>()
            || node.is::<BoundedWindowAggExec>()
            || node.is::<WindowsExec>();
        if is_window && own.saturating_mul(usual as u64) > most {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "the constants of a window function take {own} bytes in each row, and the limit is {} bytes",
                most / usual.max(1) as u64
            )));
        }
        row_bytes = row_bytes.saturating_add(own);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(row_bytes)
}

/// Bytes of the largest constant of an expression; the list of an IN is not materialized and does not count.
pub(super) fn constant_bytes(expr: &Arc<dyn PhysicalExpr>) -> Result<u64> {
    let mut bytes = 0u64;
    expr.each(|part| {
        if let Some(constant) = part.downcast_ref::<Literal>() {
            let own = size(constant.value());
            bytes = bytes.max(if own > SMALL_BYTES { own } else { 0 });
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(bytes)
}

/// Bytes of the text, list or other value behind a constant. A dictionary counts like its value, of which an array has
/// one copy.
fn size(constant: &ScalarValue) -> u64 {
    match constant {
        ScalarValue::Dictionary(_, value) => size(value),
        constant => constant.size().saturating_sub(size_of::<ScalarValue>()) as u64,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::datatypes::DataType;
    use datafusion::prelude::SessionContext;

    #[tokio::test]
    async fn batches_have_fewer_rows_where_constants_are_large() {
        let context = SessionContext::new();
        let rows = async |sql: &str| {
            let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            rows_of_batches(&plan, 8192, 1 << 20)
        };
        let long = "x".repeat(10_000);
        let table = "(VALUES (1), (2)) AS t(a)";
        assert_eq!(rows(&format!("SELECT a + 1, 'short' FROM {table}")).await.unwrap(), 8192);
        let few = rows(&format!("SELECT a, '{long}' FROM {table}")).await.unwrap();
        assert!((50..110).contains(&few), "{few}");
        let one = rows(&format!("SELECT a, '{}' FROM {table}", "y".repeat(3 << 20))).await.unwrap();
        assert_eq!(one, 1);
        let over = format!("SELECT max('{long}') OVER (ORDER BY a) FROM {table}");
        let refused = rows(&over).await.unwrap_err();
        assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)), "{refused}");
        let names: Vec<String> = (0..1000).map(|i| format!("'{i:0>100}'")).collect();
        let listed = format!("SELECT a FROM {table} WHERE a::text IN ({})", names.join(", "));
        assert!(rows(&listed).await.unwrap() > 4000);
        let over = format!("SELECT lag(a, 1, 0) OVER (ORDER BY a) FROM {table}");
        assert_eq!(rows(&over).await.unwrap(), 8192);
        let keys = "coalesce(a::text, 'Rome'), coalesce(a::text, 'a')";
        let over = format!("SELECT rank() OVER (PARTITION BY {keys} ORDER BY a) FROM {table}");
        assert_eq!(rows(&over).await.unwrap(), 8192);
    }

    #[test]
    fn a_dictionary_counts_like_its_value() {
        let text = ScalarValue::Utf8(Some("key2".into()));
        let (key, value) = (Box::new(DataType::Int32), Box::new(text.clone()));
        assert_eq!(size(&ScalarValue::Dictionary(key, value)), size(&text));
    }
}
