//! `generate_series` and `range` as tables, whose rows are computed as they are read.
//!
//! ```text
//! integers, times by a fixed step      row i is start + i × step: cut into splits
//! times by months, or in a zone        each row from the one before: one partition
//! ```
//! A step of months is added to the row before, which may have lost days: 31 January, 29 February, 29 March. So do
//! DuckDB and PostgreSQL.

use super::single::{self, shown, usual};
use super::splits::SplitSize;
use crate::clock;
use arrow::array::timezone::Tz;
use arrow::array::{
    ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, Schema, SchemaRef, TimeUnit};
use arrow::util::display::array_value_to_string;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{Statistics, exec_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use futures::stream;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug, Clone)]
pub(crate) enum SeriesRows {
    /// `start`, `start + step`, …
    Strided {
        /// The first value: an integer, or microseconds since 1970.
        start: i64,
        /// The difference of neighbours, not 0.
        step: i64,
        rows: u64,
    },
    /// Times in microseconds since 1970, by steps of a calendar.
    Calendar {
        /// The first time.
        start: i64,
        /// The bound of the times.
        stop: i64,
        /// True if `stop` may be a row.
        with_stop: bool,
        /// The difference of neighbours: no part of it has another sign than the others, and it is not 0.
        step: IntervalMonthDayNano,
        /// The zone whose days are counted.
        zone: Tz,
    },
}

impl SeriesRows {
    /// The values from `start` to `stop`; `step` is not 0.
    pub(crate) fn strided(start: i64, stop: i64, step: i64, with_stop: bool) -> Self {
        let (distance, by) = match step > 0 {
            true => (i128::from(stop) - i128::from(start), i128::from(step)),
            false => (i128::from(start) - i128::from(stop), -i128::from(step)),
        };
        // Without `stop` the last row is at least one before it.
        let last = if with_stop { distance } else { distance - 1 };
        let rows = if last < 0 { 0 } else { last / by + 1 };
        SeriesRows::Strided { start, step, rows: u64::try_from(rows).unwrap_or(u64::MAX) }
    }

    /// The number of rows; about, for steps of a calendar.
    fn rows(&self) -> Precision<usize> {
        const DAY_US: i128 = 86_400_000_000;
        match self {
            // A count that an int64 cannot have is not taken from here.
            SeriesRows::Strided { rows, .. } => match i64::try_from(*rows) {
                Ok(rows) => usize::try_from(rows).map_or(Precision::Absent, Precision::Exact),
                Err(_) => Precision::Absent,
            },
            SeriesRows::Calendar { start, stop, step, .. } => {
                let days = i128::from(step.months) * 30 + i128::from(step.days);
                let by = days * DAY_US + i128::from(step.nanoseconds) / 1000;
                let rows = (i128::from(*stop) - i128::from(*start)) / if by == 0 { 1 } else { by };
                usize::try_from(rows.max(0)).map_or(Precision::Absent, Precision::Inexact)
            }
        }
    }
}

/// True for a step backwards.
fn is_negative(step: &IntervalMonthDayNano) -> bool {
    step.months < 0 || step.days < 0 || step.nanoseconds < 0
}

#[derive(Debug, Clone)]
pub(crate) struct Series {
    function: &'static str,
    values: SeriesRows,
    schema: SchemaRef,
}

impl Series {
    pub(crate) fn of_integers(function: &'static str, column: &str, values: SeriesRows) -> Self {
        Series::new(function, column, values, DataType::Int64)
    }

    /// A table of times in microseconds.
    pub(crate) fn of_times(
        function: &'static str,
        column: &str,
        values: SeriesRows,
        zone: Option<Arc<str>>,
    ) -> Self {
        Series::new(function, column, values, DataType::Timestamp(TimeUnit::Microsecond, zone))
    }

    fn new(function: &'static str, column: &str, values: SeriesRows, of: DataType) -> Self {
        let schema = Arc::new(Schema::new(vec![Field::new(column, of, false)]));
        Series { function, values, schema }
    }

    fn array(&self, values: Vec<i64>) -> ArrayRef {
        match self.schema.field(0).data_type() {
            DataType::Timestamp(_, zone) => {
                let times = TimestampMicrosecondArray::from(values);
                Arc::new(times.with_timezone_opt(zone.clone()))
            }
            _ => Arc::new(Int64Array::from(values)),
        }
    }
}

#[async_trait::async_trait]
impl TableProvider for Series {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let is_read = projection.is_none_or(|columns| !columns.is_empty());
        Ok(Arc::new(SeriesExec::new(self.clone(), is_read, limit)))
    }
}

/// The physical node: rows in their order, in one partition or in splits of some rows each.
#[derive(Debug)]
pub(super) struct SeriesExec {
    series: Arc<Series>,
    /// False if only the rows are counted, which then have no columns.
    is_read: bool,
    limit: Option<usize>,
    split_rows: u64,
    properties: Arc<PlanProperties>,
}

impl SeriesExec {
    fn new(series: Series, is_read: bool, limit: Option<usize>) -> Self {
        let schema = if is_read { series.schema.clone() } else { Arc::new(Schema::empty()) };
        let properties = single::properties(schema);
        SeriesExec { series: Arc::new(series), is_read, limit, split_rows: u64::MAX, properties }
    }

    /// The series in splits, or `None` if it has only one.
    pub(super) fn split(&self, size: SplitSize) -> Option<Arc<dyn ExecutionPlan>> {
        let SeriesRows::Strided { rows: total, .. } = self.series.values else { return None };
        if self.limit.is_some() {
            return None;
        }
        let (split_rows, properties) = size.split(total, &self.properties)?;
        Some(Arc::new(SeriesExec {
            series: self.series.clone(),
            is_read: self.is_read,
            limit: None,
            split_rows,
            properties,
        }))
    }

    fn splits(&self) -> usize {
        self.properties.output_partitioning().partition_count()
    }

    fn rows_of(&self, split: usize) -> Range<u64> {
        let all = match &self.series.values {
            SeriesRows::Strided { rows, .. } => *rows,
            // The last time ends them.
            SeriesRows::Calendar { .. } => u64::MAX,
        };
        let all = all.min(self.limit.map_or(u64::MAX, |limit| limit as u64));
        let start = self.split_rows.saturating_mul(split as u64).min(all);
        start..start.saturating_add(self.split_rows).min(all)
    }
}

shown!(SeriesExec, |node, f| {
    write!(f, "SeriesExec: {}", node.series.function)?;
    if let SeriesRows::Strided { rows, .. } = node.series.values {
        write!(f, ", {rows} rows")?;
    }
    node.limit.map_or(Ok(()), |n| write!(f, ", limit {n}"))
});

impl ExecutionPlan for SeriesExec {
    usual!(name, properties, no_inputs, no_expressions);

    /// The number of rows, by which a join chooses the side that it keeps in memory.
    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        _: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        statistics.num_rows = match (self.series.values.rows(), self.limit) {
            (Precision::Exact(rows), Some(limit)) => Precision::Exact(rows.min(limit)),
            (Precision::Inexact(rows), Some(limit)) => Precision::Inexact(rows.min(limit)),
            (rows, _) => rows,
        };
        Ok(Arc::new(statistics))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let splits = self.splits();
        if partition >= splits {
            return internal_err!("SeriesExec has {splits} partitions, not {partition}");
        }
        let most = context.session_config().batch_size().max(1) as u64;
        let mut values = Batches::new(self.series.clone(), self.rows_of(partition), most);
        let (is_read, schema) = (self.is_read, self.schema());
        let batches = std::iter::from_fn(move || values.next_batch(is_read).transpose());
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter(batches))))
    }
}

/// The rows of a part of a series that are still to be computed.
struct Batches {
    series: Arc<Series>,
    rows: Range<u64>,
    most: u64,
    /// The next time by steps of a calendar.
    time: i64,
}

impl Batches {
    fn new(series: Arc<Series>, rows: Range<u64>, most: u64) -> Self {
        let (SeriesRows::Strided { start, .. } | SeriesRows::Calendar { start, .. }) =
            series.values;
        Batches { series, rows, most, time: start }
    }

    /// The next batch; `None` after the last one, and after an error.
    fn next_batch(&mut self, is_read: bool) -> Result<Option<RecordBatch>> {
        let count = (self.rows.end - self.rows.start).min(self.most);
        let values: Vec<i64> = match &self.series.values {
            SeriesRows::Strided { start, step, .. } => {
                // Wrapping: the product may overflow, but the sum is a value of the series.
                let value = |row: u64| start.wrapping_add((row as i64).wrapping_mul(*step));
                (self.rows.start..self.rows.start + count).map(value).collect()
            }
            SeriesRows::Calendar { .. } => self.times(count).inspect_err(|_| {
                self.rows.start = self.rows.end;
            })?,
        };
        if values.is_empty() {
            return Ok(None);
        }
        self.rows.start += values.len() as u64;
        if is_read {
            let columns = vec![self.series.array(values)];
            return Ok(Some(RecordBatch::try_new(self.series.schema.clone(), columns)?));
        }
        let rows = RecordBatchOptions::new().with_row_count(Some(values.len()));
        let schema = Arc::new(Schema::empty());
        Ok(Some(RecordBatch::try_new_with_options(schema, vec![], &rows)?))
    }

    /// The next times, at most `count`.
    fn times(&mut self, count: u64) -> Result<Vec<i64>> {
        let mut times = Vec::new();
        let SeriesRows::Calendar { stop, with_stop, step, zone, .. } = &self.series.values else {
            return Ok(times);
        };
        let is_back = is_negative(step);
        while (times.len() as u64) < count {
            let time = self.time;
            let is_inside = match (is_back, *with_stop) {
                (false, true) => time <= *stop,
                (false, false) => time < *stop,
                (true, true) => time >= *stop,
                (true, false) => time > *stop,
            };
            if !is_inside {
                break;
            }
            times.push(time);
            let next = clock::moved(time, TimeUnit::Microsecond, *step, *zone);
            self.time = next.ok_or_else(|| {
                let shown = self.series.array(vec![time]);
                let shown = array_value_to_string(&shown, 0).unwrap_or_default();
                let function = self.series.function;
                exec_datafusion_err!("`{function}`: no time is one step after {shown}")
            })?;
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests;
