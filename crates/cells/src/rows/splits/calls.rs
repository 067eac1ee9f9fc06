//! Window functions that are computed for all rows of some partitions at a time: `sum`, `avg`, `count` and others over
//! whole partitions, those with [kernels] over frames, numbers and ranks of rows.
//!
//! Sums over frames have the bits of DataFusion's operator; sums over whole partitions have those of GROUP BY.

mod frames;
mod kernels;

use super::windows::chain::{exprs, input_of, with_exprs};
use crate::lift::MovingSum;
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, Int64Array, NullBufferBuilder, RecordBatch,
    UInt32Array, UInt64Array,
};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::compute::{concat, partition, sum, take};
use datafusion::arrow::datatypes::{Float64Type, Schema, SchemaRef};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{EmitTo, WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::window::{
    PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::WindowUDFExpr;
use frames::{Frames, Spans};
use kernels::Fold;
use std::ops::Range;
use std::sync::Arc;

/// Aggregates that have an accumulator for groups.
const WHOLE: [&str; 9] =
    ["sum", "avg", "count", "min", "max", "var", "var_pop", "stddev", "stddev_pop"];

/// The calls of a window operator.
#[derive(Debug)]
pub(super) struct Calls {
    /// `None` for calls that are left to DataFusion.
    calls: Vec<Option<Call>>,
    /// DataFusion's operator for the calls that are left to it.
    others: Option<Arc<dyn ExecutionPlan>>,
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
    /// An aggregate of any frames.
    Framed(Box<Framed>),
    RowNumber,
    Rank,
    DenseRank,
}

#[derive(Debug)]
struct Framed {
    fold: Fold,
    argument: Arc<dyn PhysicalExpr>,
    frames: Frames,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Sum,
    Mean,
    Count,
}

impl Calls {
    pub(super) fn new(window: &Arc<dyn ExecutionPlan>) -> Result<Self> {
        let input = input_of(window)?.schema();
        let (mut calls, mut others) = (Vec::new(), Vec::new());
        for expr in exprs(window) {
            let kind = kind(expr, &input)?;
            if kind.is_none() {
                others.push(expr.clone());
            }
            let order = expr.order_by().iter().map(|key| key.expr.clone()).collect();
            let partition = expr.partition_by().to_vec();
            calls.push(kind.map(|kind| Call { kind, partition, order }));
        }
        let others = match others.is_empty() {
            true => None,
            false => Some(with_exprs(window, others)?),
        };
        Ok(Calls { calls, others, schema: window.schema() })
    }

    /// True if some calls are computed here.
    pub(super) fn has_own(&self) -> bool {
        self.calls.iter().any(Option::is_some)
    }

    /// DataFusion's operator for the other calls.
    pub(super) fn others(&self) -> Option<&Arc<dyn ExecutionPlan>> {
        self.others.as_ref()
    }

    /// True if some are aggregates of whole partitions, of which DataFusion's operator may compute other bits.
    pub(super) fn has_whole(&self) -> bool {
        self.calls.iter().flatten().any(|call| matches!(call.kind, Kind::Whole(_)))
    }

    /// The number of calls.
    pub(super) fn count(&self) -> usize {
        self.calls.len()
    }

    /// The memory of the calls as a multiple of the memory of the rows.
    pub(super) fn copies(&self) -> usize {
        let is_framed = |call: &Call| matches!(call.kind, Kind::Framed(_));
        let own = if self.calls.iter().flatten().any(is_framed) { 3 } else { 1 };
        own + if self.others.is_some() { 2 } else { 0 }
    }

    /// The rows, sorted and of whole partitions, with the results of the calls; `others` has those of the other calls.
    pub(super) fn with_results(
        &self,
        batches: Vec<RecordBatch>,
        others: Vec<ArrayRef>,
    ) -> Result<Vec<RecordBatch>> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let mut others = others.into_iter();
        let results = self.calls.iter().map(|call| match call {
            Some(call) => call.result(&batches),
            None => match others.next().filter(|results| results.len() == rows) {
                Some(results) => Ok(results),
                None => internal_err!("a window has no results for {rows} rows"),
            },
        });
        let results = results.collect::<Result<Vec<ArrayRef>>>()?;
        let mut with_results = Vec::with_capacity(batches.len());
        let mut start = 0;
        for batch in batches {
            let rows = batch.num_rows();
            let mut columns = batch.columns().to_vec();
            columns.extend(results.iter().map(|result| result.slice(start, rows)));
            with_results.push(RecordBatch::try_new(self.schema.clone(), columns)?);
            start += rows;
        }
        Ok(with_results)
    }
}

/// Where the last partition of sorted rows begins: batch and row. No batch is empty.
pub(super) fn start_of_last(
    partition: &[Arc<dyn PhysicalExpr>],
    batches: &[RecordBatch],
) -> Result<(usize, usize)> {
    if partition.is_empty() {
        return Ok((0, 0));
    }
    for (at, batch) in batches.iter().enumerate().rev() {
        let partitions = ranges(partition, std::slice::from_ref(batch))?;
        let row = partitions.last().map_or(0, |last| last.start);
        if row > 0 {
            return Ok((at, row));
        }
        // The rows are of one partition, which may begin in a batch before.
        if let Some(before) = at.checked_sub(1).and_then(|before| batches.get(before)) {
            let edge = [before.slice(before.num_rows() - 1, 1), batch.slice(0, 1)];
            if ranges(partition, &edge)?.len() > 1 {
                return Ok((at, 0));
            }
        }
    }
    Ok((0, 0))
}

/// The aggregate of a call; `None` for other functions.
pub(super) fn aggregate_of(call: &Arc<dyn WindowExpr>) -> Option<&AggregateFunctionExpr> {
    let call = call.as_any();
    let plain = call.downcast_ref::<PlainAggregateWindowExpr>();
    let sliding = call.downcast_ref::<SlidingAggregateWindowExpr>();
    let aggregate = plain.map(PlainAggregateWindowExpr::get_aggregate_expr);
    aggregate.or_else(|| sliding.map(|call| call.get_aggregate_expr()))
}

/// True for aggregates with a FILTER, which only their debug text shows.
pub(super) fn has_filter(call: &Arc<dyn WindowExpr>) -> bool {
    aggregate_of(call).is_some() && !format!("{call:?}").ends_with("filter: None }")
}

/// The kind of a call; `None` if it is left to DataFusion.
fn kind(expr: &Arc<dyn WindowExpr>, input: &Schema) -> Result<Option<Kind>> {
    if let Some(standard) = expr.as_any().downcast_ref::<StandardWindowExpr>() {
        let function = standard.get_standard_func_expr().as_any().downcast_ref::<WindowUDFExpr>();
        return Ok(match function.map(|function| function.fun().name()) {
            Some("row_number") => Some(Kind::RowNumber),
            Some("rank") => Some(Kind::Rank),
            Some("dense_rank") => Some(Kind::DenseRank),
            _ => None,
        });
    }
    let Some(aggregate) = aggregate_of(expr) else { return Ok(None) };
    if aggregate.is_distinct() || has_filter(expr) {
        return Ok(None);
    }
    let frame = expr.get_window_frame();
    let name = aggregate.fun().name();
    if is_whole(frame, expr.order_by().is_empty()) {
        let is_known = WHOLE.contains(&name) && aggregate.groups_accumulator_supported();
        return Ok(is_known.then(|| Kind::Whole(Box::new(aggregate.clone()))));
    }
    let Some(fold) = Fold::of(aggregate, input)? else { return Ok(None) };
    let Some(argument) = aggregate.expressions().into_iter().next() else { return Ok(None) };
    if let Fold::Floats(what) = fold
        && let Some(kind) = framed(frame, what, &argument)
    {
        return Ok(Some(kind));
    }
    let frames = Frames::of(frame, expr.order_by(), input)?.filter(|frames| fold.takes(frames));
    Ok(frames.map(|frames| Kind::Framed(Box::new(Framed { fold, argument, frames }))))
}

/// True if the frame of each row is its partition.
fn is_whole(frame: &WindowFrame, is_unordered: bool) -> bool {
    let is_end = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => frame.units == WindowFrameUnits::Range && is_unordered,
        bound => bound.is_unbounded(),
    };
    is_end(&frame.start_bound) && is_end(&frame.end_bound)
}

/// Sums, means or counts of the usual frames.
fn framed(frame: &WindowFrame, what: What, argument: &Arc<dyn PhysicalExpr>) -> Option<Kind> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let rows = |value: &ScalarValue| match value {
        ScalarValue::UInt64(Some(rows)) => usize::try_from(*rows).ok(),
        _ => None,
    };
    let is_first = frame.start_bound.is_unbounded();
    let argument = argument.clone();
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

/// The values of an expression for all rows. Other columns are not copied.
fn evaluated(expr: &Arc<dyn PhysicalExpr>, batches: &[RecordBatch]) -> Result<ArrayRef> {
    let values = batches.iter().map(|rows| expr.evaluate(rows)?.into_array(rows.num_rows()));
    let values = values.collect::<Result<Vec<ArrayRef>>>()?;
    let values: Vec<&dyn Array> = values.iter().map(|values| values.as_ref()).collect();
    Ok(concat(&values)?)
}

/// The ranges of rows with equal keys.
fn ranges(keys: &[Arc<dyn PhysicalExpr>], batches: &[RecordBatch]) -> Result<Vec<Range<usize>>> {
    if keys.is_empty() {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        return Ok(std::iter::once(0..rows).collect());
    }
    let columns = keys.iter().map(|key| evaluated(key, batches));
    Ok(partition(&columns.collect::<Result<Vec<ArrayRef>>>()?)?.ranges())
}

impl Call {
    /// The results for sorted rows of whole partitions.
    fn result(&self, batches: &[RecordBatch]) -> Result<ArrayRef> {
        let partitions = ranges(&self.partition, batches)?;
        let peers = || {
            let keys: Vec<_> = self.partition.iter().chain(&self.order).cloned().collect();
            ranges(&keys, batches)
        };
        let rows = partitions.last().map_or(0, |last| last.end);
        Ok(match &self.kind {
            Kind::Whole(aggregate) => whole(aggregate, batches, &partitions)?,
            Kind::Running { what, argument, with_peers } => {
                let values = Values::new(*what, &evaluated(argument, batches)?);
                let mut out = Results::new(*what, rows);
                match with_peers {
                    true => running_with_peers(&values, &partitions, &peers()?, &mut out),
                    false => running(&values, &partitions, &mut out),
                }
                out.array()?
            }
            Kind::Moving { what, argument, before, after } => {
                let values = Values::new(*what, &evaluated(argument, batches)?);
                let mut out = Results::new(*what, rows);
                for partition in partitions {
                    moving(&values, partition, *before, *after, &mut out);
                }
                out.array()?
            }
            Kind::Framed(call) => {
                let Framed { fold, argument, frames } = &**call;
                let peers = if frames.has_groups() { peers()? } else { Vec::new() };
                let key = match self.order.first().filter(|_| frames.has_distance()) {
                    Some(key) => Some(evaluated(key, batches)?),
                    None => None,
                };
                let spans = Spans::new(frames, &partitions, &peers, key.as_ref())?;
                fold.over(&evaluated(argument, batches)?, frames, &spans)?
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
    batches: &[RecordBatch],
    partitions: &[Range<usize>],
) -> Result<ArrayRef> {
    let arguments = aggregate.expressions();
    let arguments = arguments.iter().map(|argument| evaluated(argument, batches));
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

/// The values of an argument.
struct Values {
    /// `None` if values are only counted.
    floats: Option<Float64Array>,
    /// `None` if no value is NULL.
    nulls: Option<NullBuffer>,
}

impl Values {
    fn new(what: What, values: &ArrayRef) -> Self {
        let floats = values.as_primitive_opt::<Float64Type>().filter(|_| what != What::Count);
        let nulls = values.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        Values { floats: floats.cloned(), nulls }
    }

    fn is_valid(&self, row: usize) -> bool {
        self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row))
    }

    /// The sum of some rows, of which `count` are not NULL.
    fn sum(&self, rows: &Range<usize>, count: usize) -> f64 {
        match (&self.floats, rows.len()) {
            (Some(floats), 1) if count == 1 => floats.value(rows.start),
            (Some(floats), 2..) => sum(&floats.slice(rows.start, rows.len())).unwrap_or(0.0),
            _ => 0.0,
        }
    }

    /// Adds the rows that enter a frame, and the number of their values, and removes those that leave it.
    fn moved(
        &self,
        came: Range<usize>,
        gone: Range<usize>,
        frame: &mut MovingSum,
        count: &mut usize,
    ) {
        for row in came.filter(|&row| self.is_valid(row)) {
            *count += 1;
            if let Some(floats) = &self.floats {
                frame.push(floats.value(row));
            }
        }
        for _ in gone.filter(|&row| self.is_valid(row)) {
            *count -= 1;
            if self.floats.is_some() {
                frame.pop();
            }
        }
    }

    /// The number of values in some rows that are not NULL.
    fn count(&self, rows: &Range<usize>) -> usize {
        match &self.nulls {
            None => rows.len(),
            Some(nulls) => rows.len() - nulls.slice(rows.start, rows.len()).null_count(),
        }
    }
}

/// Results of sums, means or counts, row by row.
struct Results {
    what: What,
    floats: Vec<f64>,
    /// Which of the floats are not NULL.
    valid: NullBufferBuilder,
    counts: Vec<i64>,
}

impl Results {
    fn new(what: What, rows: usize) -> Self {
        let (floats, counts) = match what {
            What::Count => (0, rows),
            _ => (rows, 0),
        };
        Results {
            what,
            floats: Vec::with_capacity(floats),
            valid: NullBufferBuilder::new(floats),
            counts: Vec::with_capacity(counts),
        }
    }

    fn push(&mut self, count: usize, sum: f64) {
        match self.what {
            What::Count => self.counts.push(count as i64),
            _ if count == 0 => {
                self.floats.push(0.0);
                self.valid.append_null();
            }
            what => {
                self.floats.push(if what == What::Mean { sum / count as f64 } else { sum });
                self.valid.append_non_null();
            }
        }
    }

    fn array(self) -> Result<ArrayRef> {
        if self.what == What::Count {
            return Ok(Arc::new(Int64Array::from(self.counts)));
        }
        Ok(Arc::new(Float64Array::try_new(self.floats.into(), self.valid.build())?))
    }
}

/// Aggregates from the start of each partition to each of its rows.
fn running(values: &Values, partitions: &[Range<usize>], out: &mut Results) {
    for partition in partitions {
        let (mut count, mut total) = (0_usize, 0.0_f64);
        if let (Some(floats), None) = (&values.floats, &values.nulls) {
            for &value in &floats.values()[partition.clone()] {
                count += 1;
                total += value;
                out.push(count, total);
            }
            continue;
        }
        for row in partition.clone() {
            if values.is_valid(row) {
                count += 1;
                if let Some(floats) = &values.floats {
                    total += floats.value(row);
                }
            }
            out.push(count, total);
        }
    }
}

/// Aggregates from the start of each partition to the last peer of each of its rows.
fn running_with_peers(
    values: &Values,
    partitions: &[Range<usize>],
    peers: &[Range<usize>],
    out: &mut Results,
) {
    let mut peers = peers.iter();
    for partition in partitions {
        let (mut count, mut total, mut at) = (0_usize, 0.0_f64, partition.start);
        while at < partition.end
            && let Some(rows) = peers.next()
        {
            let more = values.count(rows);
            count += more;
            total += values.sum(rows, more);
            rows.clone().for_each(|_| out.push(count, total));
            at = rows.end;
        }
    }
}

/// Aggregates of the rows from `before` the current one to `after` it.
fn moving(values: &Values, rows: Range<usize>, before: usize, after: usize, out: &mut Results) {
    let mut frame = MovingSum::new();
    let mut count = 0_usize;
    if let (Some(floats), None) = (&values.floats, &values.nulls) {
        let floats = &floats.values()[..];
        return around(rows, before, after, |came, gone| {
            count = count + came.len() - gone.len();
            floats[came].iter().for_each(|&value| frame.push(value));
            gone.for_each(|_| frame.pop());
            out.push(count, frame.all().1);
        });
    }
    around(rows, before, after, |came, gone| {
        values.moved(came, gone, &mut frame, &mut count);
        out.push(count, frame.all().1);
    });
}

/// For each row, the rows that enter its frame, and those that then leave it.
fn around(
    rows: Range<usize>,
    before: usize,
    after: usize,
    mut each: impl FnMut(Range<usize>, Range<usize>),
) {
    let (mut first, mut next) = (rows.start, rows.start);
    for row in rows.clone() {
        let end = row.saturating_add(after).saturating_add(1).min(rows.end);
        let start = row.saturating_sub(before).max(first);
        each(next..end, first..start);
        (first, next) = (start, end);
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

#[cfg(test)]
mod tests;
