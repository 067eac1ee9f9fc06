//! Window functions that are computed for all rows of some partitions at a time: `sum`, `avg`, `count` and others over
//! whole partitions, sums, means and counts of floats over frames of rows, numbers and ranks of rows.
//!
//! The sums are those of DataFusion's operator to the bit where it computes them for frames; over whole partitions they
//! are those of GROUP BY.

use crate::lift::MovingSum;
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::{partition, sum, take};
use datafusion::arrow::datatypes::{DataType, Float64Type, Schema, SchemaRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{EmitTo, WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr,
};
use datafusion::physical_plan::windows::WindowUDFExpr;
use std::ops::Range;
use std::sync::Arc;

/// Aggregates that have an accumulator for groups.
const WHOLE: [&str; 9] =
    ["sum", "avg", "count", "min", "max", "var", "var_pop", "stddev", "stddev_pop"];

/// The calls of a window operator.
#[derive(Debug)]
pub(super) struct Calls {
    calls: Vec<Call>,
    /// The columns by which rows are of one partition, for the partitions that are the largest.
    partition: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
}

#[derive(Debug)]
struct Call {
    kind: Kind,
    partition: Vec<Arc<dyn PhysicalExpr>>,
    order: Vec<Arc<dyn PhysicalExpr>>,
}

#[derive(Debug)]
enum Kind {
    /// An aggregate of each partition.
    Whole(Box<AggregateFunctionExpr>),
    /// An aggregate of the rows up to the current one, with its peers if they count.
    Running {
        what: What,
        argument: Arc<dyn PhysicalExpr>,
        with_peers: bool,
    },
    /// An aggregate of the rows around the current one.
    Moving {
        what: What,
        argument: Arc<dyn PhysicalExpr>,
        before: usize,
        after: usize,
    },
    RowNumber,
    Rank,
    DenseRank,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Sum,
    Mean,
    Count,
}

impl Calls {
    /// The calls, if all of them can be computed here.
    pub(super) fn new(exprs: &[Arc<dyn WindowExpr>], input: &Schema) -> Result<Option<Self>> {
        let mut calls = Vec::with_capacity(exprs.len());
        let mut fields: Vec<_> = input.fields().iter().cloned().collect();
        for expr in exprs {
            let Some(kind) = kind(expr, input)? else { return Ok(None) };
            let order = expr.order_by().iter().map(|key| key.expr.clone()).collect();
            calls.push(Call { kind, partition: expr.partition_by().to_vec(), order });
            fields.push(expr.field()?);
        }
        let largest = calls.iter().map(|call| &call.partition).min_by_key(|keys| keys.len());
        let partition = largest.cloned().unwrap_or_default();
        let schema = Arc::new(Schema::new_with_metadata(fields, input.metadata().clone()));
        Ok(Some(Calls { calls, partition, schema }))
    }

    /// The first row of the last partition.
    pub(super) fn start_of_last(&self, rows: &RecordBatch) -> Result<usize> {
        Ok(ranges(&self.partition, rows)?.last().map_or(0, |last| last.start))
    }

    /// The rows, sorted and of whole partitions, with the results of the calls.
    pub(super) fn with_results(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = rows.columns().to_vec();
        for call in &self.calls {
            columns.push(call.result(rows)?);
        }
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}

/// How a call is computed here, or `None`.
fn kind(expr: &Arc<dyn WindowExpr>, input: &Schema) -> Result<Option<Kind>> {
    let any = expr.as_any();
    if let Some(standard) = any.downcast_ref::<StandardWindowExpr>() {
        let function = standard.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>();
        return Ok(match function.map(|function| function.fun().name()) {
            Some("row_number") => Some(Kind::RowNumber),
            Some("rank") => Some(Kind::Rank),
            Some("dense_rank") => Some(Kind::DenseRank),
            _ => None,
        });
    }
    let plain = any.downcast_ref::<PlainAggregateWindowExpr>();
    let sliding = any.downcast_ref::<SlidingAggregateWindowExpr>();
    let aggregate = plain.map(PlainAggregateWindowExpr::get_aggregate_expr);
    let aggregate = aggregate.or_else(|| sliding.map(|call| call.get_aggregate_expr()));
    let Some(aggregate) = aggregate else { return Ok(None) };
    // DataFusion does not tell whether there is a FILTER in another way.
    if aggregate.is_distinct() || !format!("{expr:?}").ends_with("filter: None }") {
        return Ok(None);
    }
    let frame = expr.get_window_frame();
    let name = aggregate.fun().name();
    if is_whole(frame, expr.order_by().is_empty()) {
        let is_known = WHOLE.contains(&name) && aggregate.groups_accumulator_supported();
        return Ok(is_known.then(|| Kind::Whole(Box::new(aggregate.clone()))));
    }
    let what = match name {
        "sum" => What::Sum,
        "avg" => What::Mean,
        "count" => What::Count,
        _ => return Ok(None),
    };
    let arguments = aggregate.expressions();
    let [argument] = arguments.as_slice() else { return Ok(None) };
    if what != What::Count && argument.data_type(input)? != DataType::Float64 {
        return Ok(None);
    }
    Ok(framed(frame, what, argument.clone()))
}

/// True if the frame of each row is its partition.
fn is_whole(frame: &WindowFrame, is_unordered: bool) -> bool {
    let is_end = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => frame.units == WindowFrameUnits::Range && is_unordered,
        bound => bound.is_unbounded(),
    };
    is_end(&frame.start_bound) && is_end(&frame.end_bound)
}

fn framed(frame: &WindowFrame, what: What, argument: Arc<dyn PhysicalExpr>) -> Option<Kind> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let rows = |value: &ScalarValue| match value {
        ScalarValue::UInt64(Some(rows)) => usize::try_from(*rows).ok(),
        _ => None,
    };
    let is_first = frame.start_bound.is_unbounded();
    match (frame.units, &frame.start_bound, &frame.end_bound) {
        (WindowFrameUnits::Rows, _, CurrentRow) if is_first => {
            Some(Kind::Running { what, argument, with_peers: false })
        }
        (WindowFrameUnits::Range, _, CurrentRow) if is_first => {
            Some(Kind::Running { what, argument, with_peers: true })
        }
        (WindowFrameUnits::Rows, start, end) => {
            let before = match start {
                Preceding(value) => rows(value)?,
                CurrentRow => 0,
                Following(_) => return None,
            };
            let after = match end {
                Following(value) => rows(value)?,
                CurrentRow => 0,
                Preceding(_) => return None,
            };
            Some(Kind::Moving { what, argument, before, after })
        }
        _ => None,
    }
}

/// The ranges of rows with equal keys.
fn ranges(keys: &[Arc<dyn PhysicalExpr>], rows: &RecordBatch) -> Result<Vec<Range<usize>>> {
    if keys.is_empty() {
        return Ok(std::iter::once(0..rows.num_rows()).collect());
    }
    let columns = keys.iter().map(|key| key.evaluate(rows)?.into_array(rows.num_rows()));
    Ok(partition(&columns.collect::<Result<Vec<ArrayRef>>>()?)?.ranges())
}

impl Call {
    fn result(&self, rows: &RecordBatch) -> Result<ArrayRef> {
        let partitions = ranges(&self.partition, rows)?;
        let peers = || {
            let keys: Vec<_> = self.partition.iter().chain(&self.order).cloned().collect();
            ranges(&keys, rows)
        };
        let evaluated = |argument: &Arc<dyn PhysicalExpr>| -> Result<ArrayRef> {
            argument.evaluate(rows)?.into_array(rows.num_rows())
        };
        Ok(match &self.kind {
            Kind::Whole(aggregate) => whole(aggregate, rows, &partitions)?,
            Kind::Running { what, argument, with_peers } => {
                let values = evaluated(argument)?;
                let mut out = Results::new(*what, values.len());
                match with_peers {
                    true => running(&values, &partitions, &peers()?, &mut out),
                    false => {
                        let each: Vec<_> = (0..values.len()).map(|row| row..row + 1).collect();
                        running(&values, &partitions, &each, &mut out);
                    }
                }
                out.array()
            }
            Kind::Moving { what, argument, before, after } => {
                let values = evaluated(argument)?;
                let mut out = Results::new(*what, values.len());
                for partition in partitions {
                    moving(&values, partition, *before, *after, &mut out);
                }
                out.array()
            }
            Kind::RowNumber => {
                let numbers = partitions.iter().flat_map(|rows| 1..=rows.len() as u64);
                Arc::new(UInt64Array::from_iter_values(numbers))
            }
            Kind::Rank => ranked(&partitions, &peers()?, |start, _| start as u64 + 1),
            Kind::DenseRank => ranked(&partitions, &peers()?, |_, nth| nth as u64 + 1),
        })
    }
}

/// An aggregate of each partition, for each of its rows.
fn whole(
    aggregate: &AggregateFunctionExpr,
    rows: &RecordBatch,
    partitions: &[Range<usize>],
) -> Result<ArrayRef> {
    let arguments = aggregate.expressions();
    let arguments = arguments.iter().map(|a| a.evaluate(rows)?.into_array(rows.num_rows()));
    let arguments = arguments.collect::<Result<Vec<_>>>()?;
    let of: Vec<usize> = partitions
        .iter()
        .enumerate()
        .flat_map(|(i, rows)| std::iter::repeat_n(i, rows.len()))
        .collect();
    let mut groups = aggregate.create_groups_accumulator()?;
    groups.update_batch(&arguments, &of, None, partitions.len())?;
    let results = groups.evaluate(EmitTo::All)?;
    let of: UInt32Array = of.into_iter().map(|i| i as u32).collect();
    Ok(take(&results, &of, None)?)
}

/// Sums, means or counts, as they arise.
struct Results {
    what: What,
    floats: Vec<Option<f64>>,
    counts: Vec<i64>,
}

impl Results {
    fn new(what: What, rows: usize) -> Self {
        let (floats, counts) = match what {
            What::Count => (0, rows),
            _ => (rows, 0),
        };
        Results { what, floats: Vec::with_capacity(floats), counts: Vec::with_capacity(counts) }
    }

    fn push(&mut self, count: usize, sum: f64) {
        match self.what {
            What::Count => self.counts.push(count as i64),
            What::Sum => self.floats.push((count > 0).then_some(sum)),
            What::Mean => self.floats.push((count > 0).then_some(sum / count as f64)),
        }
    }

    fn array(self) -> ArrayRef {
        match self.what {
            What::Count => Arc::new(Int64Array::from(self.counts)),
            _ => Arc::new(Float64Array::from(self.floats)),
        }
    }
}

/// Aggregates from the start of each partition to the end of each range of its rows.
fn running(
    values: &ArrayRef,
    partitions: &[Range<usize>],
    steps: &[Range<usize>],
    out: &mut Results,
) {
    let mut steps = steps.iter();
    let floats = values.as_primitive_opt::<Float64Type>().filter(|_| out.what != What::Count);
    for partition in partitions {
        let (mut count, mut total, mut at) = (0, 0.0, partition.start);
        while at < partition.end
            && let Some(step) = steps.next()
        {
            let rows = values.slice(step.start, step.len());
            count += step.len() - rows.null_count();
            if let Some(floats) = floats {
                match step.len() {
                    1 if floats.is_valid(step.start) => total += floats.value(step.start),
                    1 => {}
                    _ => total += sum(&floats.slice(step.start, step.len())).unwrap_or(0.0),
                }
            }
            step.clone().for_each(|_| out.push(count, total));
            at = step.end;
        }
    }
}

/// Aggregates of the rows from `before` the current one to `after` it.
fn moving(values: &ArrayRef, rows: Range<usize>, before: usize, after: usize, out: &mut Results) {
    let floats = values.as_primitive_opt::<Float64Type>().filter(|_| out.what != What::Count);
    let mut frame = MovingSum::new();
    let (mut count, mut first, mut next) = (0, rows.start, rows.start);
    for row in rows.clone() {
        let end = row.saturating_add(after).saturating_add(1).min(rows.end);
        while next < end {
            if values.is_valid(next) {
                count += 1;
                if let Some(floats) = floats {
                    frame.push(floats.value(next));
                }
            }
            next += 1;
        }
        while first < row.saturating_sub(before) {
            if values.is_valid(first) {
                count -= 1;
                if floats.is_some() {
                    frame.pop();
                }
            }
            first += 1;
        }
        out.push(count, frame.all().1);
    }
}

/// The rank of each row: of its peers' first row in the partition, or of the peers among the others.
fn ranked(
    partitions: &[Range<usize>],
    peers: &[Range<usize>],
    rank: impl Fn(usize, usize) -> u64,
) -> ArrayRef {
    let mut ranks = Vec::with_capacity(partitions.last().map_or(0, |last| last.end));
    let mut peers = peers.iter().peekable();
    for partition in partitions {
        let mut nth = 0;
        while let Some(rows) = peers.next_if(|rows| rows.start < partition.end) {
            let rank = rank(rows.start - partition.start, nth);
            ranks.resize(rows.end, rank);
            nth += 1;
        }
    }
    Arc::new(UInt64Array::from(ranks))
}
