//! Expressions whose evaluation is wrapped. In all other respects, also for statistics, they are the inner expression.

use arrow::datatypes::{DataType, FieldRef, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A way to evaluate expressions.
pub(super) trait Evaluates: Send + Sync + Sized + 'static {
    /// Evaluates the inner expression over a batch.
    fn evaluate(&self, inner: &Arc<dyn PhysicalExpr>, batch: &RecordBatch)
    -> Result<ColumnarValue>;

    /// Another expression, evaluated in this way.
    fn around(&self, inner: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>>;
}

/// An expression that is evaluated in another way.
pub(super) struct Wrapped<E> {
    inner: Arc<dyn PhysicalExpr>,
    how: E,
}

impl<E> Wrapped<E> {
    pub(super) fn new(inner: Arc<dyn PhysicalExpr>, how: E) -> Self {
        Wrapped { inner, how }
    }

    pub(super) fn inner(&self) -> &Arc<dyn PhysicalExpr> {
        &self.inner
    }
}

type Evaluate = dyn Fn(&dyn PhysicalExpr, &RecordBatch) -> Result<ColumnarValue> + Send + Sync;

/// Evaluates expressions by a function.
struct By(Arc<Evaluate>);

impl Evaluates for By {
    fn evaluate(
        &self,
        inner: &Arc<dyn PhysicalExpr>,
        batch: &RecordBatch,
    ) -> Result<ColumnarValue> {
        (self.0)(&**inner, batch)
    }

    fn around(&self, inner: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Wrapped::new(inner, By(self.0.clone()))))
    }
}

/// The expression, evaluated by `evaluate`.
pub(super) fn wrapped(
    inner: Arc<dyn PhysicalExpr>,
    evaluate: impl Fn(&dyn PhysicalExpr, &RecordBatch) -> Result<ColumnarValue> + Send + Sync + 'static,
) -> Arc<dyn PhysicalExpr> {
    Arc::new(Wrapped::new(inner, By(Arc::new(evaluate))))
}

impl<E> fmt::Debug for Wrapped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.inner, f)
    }
}

impl<E> fmt::Display for Wrapped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

impl<E> PartialEq for Wrapped<E> {
    fn eq(&self, other: &Self) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl<E> Eq for Wrapped<E> {}

impl<E> Hash for Wrapped<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl<E: Evaluates> PhysicalExpr for Wrapped<E> {
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
        self.how.evaluate(&self.inner, batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next().unwrap_or_else(|| self.inner.clone());
        self.how.around(inner)
    }

    /// The expression that is compared with statistics, which recognise expressions by their types.
    fn snapshot(&self) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        Ok(Some(self.inner.clone()))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}
