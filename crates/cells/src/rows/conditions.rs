//! Conditions that a scan of Parquet evaluates.
//!
//! The reader turns an error of a condition into a text. So a condition that may fail remembers its error, and whoever
//! reads the scan returns that one.

use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NotExpr,
};
use datafusion::physical_expr::utils::{conjunction, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use std::fmt;
use std::hash::{Hash, Hasher};
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

/// The condition, whose parts that may fail remember their error. The others are as they were: the reader compares
/// them with statistics.
pub(super) fn remembering(
    condition: &Arc<dyn PhysicalExpr>,
    failure: &Arc<Failure>,
) -> Arc<dyn PhysicalExpr> {
    let parts = split_conjunction(condition).into_iter().map(|part| match is_total(part) {
        true => part.clone(),
        false => Arc::new(Fallible { inner: part.clone(), failure: failure.clone() }) as _,
    });
    conjunction(parts)
}

/// True if the expression has a value for each row.
fn is_total(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if expr.is::<DynamicFilterPhysicalExpr>() {
        return true;
    }
    let is_known = match expr.downcast_ref::<BinaryExpr>() {
        Some(binary) => COMPARISONS.contains(binary.op()) || binary.op().is_logic_operator(),
        None => {
            expr.is::<Column>()
                || expr.is::<Literal>()
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

/// A condition that remembers its error.
struct Fallible {
    inner: Arc<dyn PhysicalExpr>,
    failure: Arc<Failure>,
}

impl fmt::Debug for Fallible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Display for Fallible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PartialEq for Fallible {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for Fallible {}

impl Hash for Fallible {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl PhysicalExpr for Fallible {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.inner.evaluate(batch).map_err(|e| self.failure.of(e))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next().unwrap_or_else(|| self.inner.clone());
        Ok(Arc::new(Fallible { inner, failure: self.failure.clone() }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
