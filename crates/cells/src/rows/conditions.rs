//! Conditions that a scan of Parquet evaluates.
//!
//! The reader turns an error of a condition into a text. So the scan keeps the first error of its conditions, and its
//! stream ends with that one.

use super::wrapped::wrapped;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NotExpr,
};
use datafusion::physical_expr::utils::{conjunction, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use std::sync::{Arc, OnceLock};

/// Functions of ours that have a result for each value.
const TOTAL: [&str; 4] = ["member", "one_nan", "one_zero", "tessera_like"];

const COMPARISONS: [Operator; 8] = [
    Operator::Eq,
    Operator::NotEq,
    Operator::Lt,
    Operator::LtEq,
    Operator::Gt,
    Operator::GtEq,
    Operator::IsDistinctFrom,
    Operator::IsNotDistinctFrom,
];

/// The first error of a scan's conditions.
#[derive(Debug, Default)]
pub(super) struct Failure(OnceLock<Arc<DataFusionError>>);

impl Failure {
    /// The error, if a condition has failed.
    pub(super) fn get(&self) -> Option<DataFusionError> {
        self.0.get().cloned().map(DataFusionError::Shared)
    }

    fn of(&self, error: DataFusionError) -> DataFusionError {
        DataFusionError::Shared(self.0.get_or_init(|| Arc::new(error)).clone())
    }
}

/// The condition; the error of a part that may fail goes to `failure`. Parts that cannot fail are
/// unchanged: the reader compares them with statistics.
pub(super) fn remembering(
    condition: &Arc<dyn PhysicalExpr>,
    failure: &Arc<Failure>,
) -> Arc<dyn PhysicalExpr> {
    let parts = split_conjunction(condition).into_iter().map(|part| {
        if is_total(part) {
            return part.clone();
        }
        let failure = failure.clone();
        wrapped(part.clone(), move |part, batch| part.evaluate(batch).map_err(|e| failure.of(e)))
    });
    conjunction(parts)
}

/// True if the expression has a value for each row.
fn is_total(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let is_known = match expr.downcast_ref::<BinaryExpr>() {
        Some(binary) => COMPARISONS.contains(binary.op()) || binary.op().is_logic_operator(),
        None => {
            expr.is::<Column>()
                || expr.is::<Literal>()
                || expr.is::<DynamicFilterPhysicalExpr>()
                || expr.is::<NotExpr>()
                || expr.is::<IsNullExpr>()
                || expr.is::<IsNotNullExpr>()
                || expr.is::<InListExpr>()
                || expr.is::<LikeExpr>()
                || expr
                    .downcast_ref::<ScalarFunctionExpr>()
                    .is_some_and(|function| TOTAL.contains(&function.fun().name()))
        }
    };
    is_known && expr.children().into_iter().all(is_total)
}
