//! Functions over a column that has few distinct values.
//!
//! ```text
//! upper(trim(s)) of a batch    s: ' a', 'b', ' a', NULL, 'b', …     distinct values: ' a', 'b', NULL
//!                              upper(trim(…)) of these three, and of the results one for each row
//! ```
//! Texts of tables repeat: a column of kinds, of places or of codes has some hundred values in millions of rows. An
//! expression that reads one column and nothing else is evaluated for the distinct values of a batch, if it takes
//! longer than the search for them. Where values are many, the search ends within the batch, and the next batches go
//! without one.
//!
//! Invariant: results, their types and the first error are those of the expression.

mod distinct;
mod rule;
#[cfg(test)]
pub(super) mod tests;

pub(super) use rule::PerValueRule;

use super::wrapped::{Evaluates, Wrapped};
use crate::walk::Walk;
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::kernels::length::length;
use arrow::compute::{cast, max, take};
use arrow::datatypes::{DataType, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr,
    Literal, NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use distinct::{Distinct, distinct};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Rows of batches that are searched.
const ROWS: RangeInclusive<usize> = 64..=u32::MAX as usize;

/// Upper bound on the batches between two searches.
const PAUSE_MAX: u32 = 63;

/// Upper bound on the bytes of the longest result times the rows. Beyond it each row is evaluated: functions limit the
/// bytes that they return for a batch.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// An expression that is evaluated for each distinct value of its column.
pub(super) type PerValueExpr = Wrapped<PerValue>;

/// The expression, evaluated for each distinct value of its column. It stays as it is if it reads no column or several,
/// or depends on more than their values.
pub(super) fn per_value(expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    with(expr, Arc::default())
}

fn with(expr: Arc<dyn PhysicalExpr>, searches: Arc<Searches>) -> Result<Arc<dyn PhysicalExpr>> {
    // A rule may have put such an expression in the place of the column.
    let inner = expr.map_up(|part| match part.downcast_ref::<PerValueExpr>() {
        Some(part) => Ok(Transformed::yes(part.inner().clone())),
        None => Ok(Transformed::no(part)),
    })?;
    let inner = inner.data;
    let mut column = None;
    let has_other = inner.any(|part| {
        Ok(match part.downcast_ref::<Column>() {
            Some(found) => {
                column.replace(found.index()).is_some_and(|other| other != found.index())
            }
            None => !is_plain(part),
        })
    })?;
    let Some(column) = column.filter(|_| !has_other) else { return Ok(inner) };
    let alone = inner.clone().map_up(|part| match part.downcast_ref::<Column>() {
        Some(found) if found.index() > 0 => {
            let alone: Arc<dyn PhysicalExpr> = Arc::new(Column::new(found.name(), 0));
            Ok(Transformed::yes(alone))
        }
        _ => Ok(Transformed::no(part)),
    })?;
    let how = PerValue { column, alone: alone.data, searches };
    Ok(Arc::new(PerValueExpr::new(inner, how)))
}

/// True for an operator or a function whose result depends on the values of its arguments alone.
fn is_plain(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let is_known = expr.is::<Literal>()
        || expr.is::<BinaryExpr>()
        || expr.is::<CaseExpr>()
        || expr.is::<CastExpr>()
        || expr.is::<InListExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<LikeExpr>()
        || expr.is::<NegativeExpr>()
        || expr.is::<NotExpr>()
        || expr.is::<ScalarFunctionExpr>()
        || expr.is::<TryCastExpr>();
    is_known && !expr.is_volatile_node()
}

/// Evaluates expressions over one column.
pub(super) struct PerValue {
    /// The column's place in a batch.
    column: usize,
    /// The expression over a batch that has only this column.
    alone: Arc<dyn PhysicalExpr>,
    /// Shared by the copies of an expression: a scan makes one for each file.
    searches: Arc<Searches>,
}

impl Evaluates for PerValue {
    fn evaluate(
        &self,
        inner: &Arc<dyn PhysicalExpr>,
        batch: &RecordBatch,
    ) -> Result<ColumnarValue> {
        let column = batch.columns().get(self.column).filter(|column| ROWS.contains(&column.len()));
        let Some(column) = column.filter(|_| self.searches.is_due()) else {
            return inner.evaluate(batch);
        };
        let result = match distinct(column)? {
            Some(distinct) => self.of_values(batch, &distinct)?,
            None => None,
        };
        self.searches.ended(result.is_some());
        match result {
            Some(result) => Ok(result),
            None => inner.evaluate(batch),
        }
    }

    fn around(&self, inner: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        with(inner, self.searches.clone())
    }
}

impl PerValue {
    /// The results of a batch with these values; `None` if they are too large.
    fn of_values(&self, batch: &RecordBatch, distinct: &Distinct) -> Result<Option<ColumnarValue>> {
        let field = batch.schema_ref().fields()[self.column].clone();
        let values = take(batch.column(self.column), &distinct.rows, None)?;
        let values = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![values])?;
        let results = match self.alone.evaluate(&values)? {
            ColumnarValue::Array(results) => results,
            scalar => return Ok(Some(scalar)),
        };
        if longest(&results)?.saturating_mul(batch.num_rows() as u64) > TEXT_BYTES_MAX {
            return Ok(None);
        }
        Ok(Some(ColumnarValue::Array(take(&results, &distinct.places, None)?)))
    }
}

/// Bytes of the longest text; 0 for other values.
fn longest(values: &ArrayRef) -> Result<u64> {
    if !values.data_type().is_string() {
        return Ok(0);
    }
    let lengths = cast(&length(values)?, &DataType::Int64)?;
    Ok(max(lengths.as_primitive::<Int64Type>()).unwrap_or(0).unsigned_abs())
}

/// Decides which batches are searched for distinct values: after an unsuccessful search, the next batches are not
/// searched, each time for longer. Threads share it and may overwrite each other's updates, which changes no result.
#[derive(Debug, Default)]
struct Searches {
    /// Batches that will not be searched.
    left: AtomicU32,
    /// The value of `left` after the last search.
    pause: AtomicU32,
}

impl Searches {
    /// True if the next batch is to be searched.
    fn is_due(&self) -> bool {
        let left = self.left.load(Relaxed);
        self.left.store(left.saturating_sub(1), Relaxed);
        left == 0
    }

    fn ended(&self, was_useful: bool) {
        let longer = (2 * self.pause.load(Relaxed) + 1).min(PAUSE_MAX);
        let pause = if was_useful { 0 } else { longer };
        self.pause.store(pause, Relaxed);
        self.left.store(pause, Relaxed);
    }
}
