//! Expressions whose evaluation is wrapped. Otherwise, also for statistics, they are the expression within.

use arrow::datatypes::{DataType, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Evaluates the expression within over a batch.
type Evaluate = Arc<dyn Fn(&dyn PhysicalExpr, &RecordBatch) -> Result<ColumnarValue> + Send + Sync>;

struct Wrapped {
    inner: Arc<dyn PhysicalExpr>,
    evaluate: Evaluate,
}

/// The expression, evaluated by `evaluate`.
pub(super) fn wrapped(
    inner: Arc<dyn PhysicalExpr>,
    evaluate: impl Fn(&dyn PhysicalExpr, &RecordBatch) -> Result<ColumnarValue> + Send + Sync + 'static,
) -> Arc<dyn PhysicalExpr> {
    Arc::new(Wrapped { inner, evaluate: Arc::new(evaluate) })
}

impl fmt::Debug for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl PartialEq for Wrapped {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for Wrapped {}

impl Hash for Wrapped {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl PhysicalExpr for Wrapped {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.inner.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.inner.nullable(schema)
    }

    fn return_field(&self, schema: &Schema) -> Result<FieldRef> {
        self.inner.return_field(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        (self.evaluate)(&*self.inner, batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next().unwrap_or_else(|| self.inner.clone());
        Ok(Arc::new(Wrapped { inner, evaluate: self.evaluate.clone() }))
    }

    /// What is compared with statistics, which know an expression by its type.
    fn snapshot(&self) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        Ok(Some(self.inner.clone()))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
