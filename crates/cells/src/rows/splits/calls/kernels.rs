//! Aggregates of frames whose values are read from columns: no object is created for the value of a row.
//!
//! Rows enter and leave a frame in their order. Totals of integers and decimals are exact, so they may be subtracted.
//! Sums and variances of floats are computed as DataFusion's operator computes them with our accumulators. For minima
//! and maxima, the rows that may become one are retained. The values of a percentile are ranked once for each
//! partition, and a tree counts the values of each rank in the frame.

use super::frames::{Frames, Spans};
use super::{Results, Values, What};
use crate::lift::MovingSum;
use crate::lift::functions::{MovingSpread, WideTotal, between, checked_decimal, too_large_total};
use crate::rows::go_on;
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float64Array, PrimitiveArray, PrimitiveBuilder,
};
use datafusion::arrow::datatypes::{
    ArrowNativeTypeOp, ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, DecimalType,
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Literal;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Rows between two checks for cancellation.
pub(super) const CHECKED: usize = 1 << 14;

/// Variances and their roots.
const SPREADS: [&str; 4] = ["var", "var_pop", "stddev", "stddev_pop"];

/// An aggregate of frames.
#[derive(Debug)]
pub(super) enum Fold {
    /// Sums and means of floats, and counts.
    Floats(What),
    /// The total of integers or decimals, of that type.
    Total(DataType),
    /// The mean of decimals, of that type; totals are multiplied by the factor before.
    Mean { result: DataType, factor: i128 },
    /// The least value, or the greatest one.
    Extreme { is_min: bool, result: DataType },
    /// The variance or its root, by the name of the function.
    Spread(&'static str),
    /// The value at that part of the sorted ones.
    Percentile { at: f64, is_median: bool },
}

impl Fold {
    /// `None` for aggregates that are left to DataFusion.
    pub(super) fn of(aggregate: &AggregateFunctionExpr, input: &Schema) -> Result<Option<Self>> {
        let arguments = aggregate.expressions();
        let Some((argument, rest)) = arguments.split_first() else { return Ok(None) };
        let (of, field) = (argument.data_type(input)?, aggregate.field());
        let result = field.data_type();
        let is_float = of == DataType::Float64 && *result == DataType::Float64;
        Ok(match (aggregate.fun().name(), rest) {
            ("count", []) => Some(Fold::Floats(What::Count)),
            ("sum", []) if is_float => Some(Fold::Floats(What::Sum)),
            ("avg", []) if is_float => Some(Fold::Floats(What::Mean)),
            ("sum", []) if has_total(&of, result) => Some(Fold::Total(result.clone())),
            ("avg", []) => {
                more_digits(&of, result).map(|factor| Fold::Mean { result: result.clone(), factor })
            }
            (name @ ("min" | "max"), []) if of == *result && has_extremes(&of) => {
                Some(Fold::Extreme { is_min: name == "min", result: of })
            }
            ("median", []) if is_float => Some(Fold::Percentile { at: 0.5, is_median: true }),
            ("percentile_cont", [at]) if is_float && aggregate.order_bys().is_empty() => {
                let at = part(at)?.filter(|at| (0.0..=1.0).contains(at));
                at.map(|at| Fold::Percentile { at, is_median: false })
            }
            (name, []) if is_float => {
                SPREADS.into_iter().find(|spread| *spread == name).map(Fold::Spread)
            }
            _ => None,
        })
    }

    /// True if it can compute such frames. Variances over frames that grow are made of blocks of values.
    pub(super) fn takes(&self, frames: &Frames) -> bool {
        !matches!(self, Fold::Spread(_)) || !frames.is_growing()
    }

    /// The aggregate of the frame of each row.
    pub(super) fn over(
        &self,
        values: &ArrayRef,
        frames: &Frames,
        spans: &Spans<'_>,
    ) -> Result<ArrayRef> {
        match self {
            Fold::Floats(what) => floats(*what, values, frames.is_growing(), spans),
            Fold::Total(result @ DataType::Int64) => {
                totals::<Int64Type>(values, result, spans, |total, _| {
                    let fits = total.value().and_then(|total| i64::try_from(total).ok());
                    fits.ok_or_else(|| too_large_total(total.value().unwrap_or(i128::MAX), result))
                })
            }
            Fold::Total(result @ DataType::UInt64) => {
                totals::<UInt64Type>(values, result, spans, |total, _| {
                    let fits = total.value().and_then(|total| u64::try_from(total).ok());
                    fits.ok_or_else(|| too_large_total(total.value().unwrap_or(i128::MAX), result))
                })
            }
            Fold::Total(result) => totals::<Decimal128Type>(values, result, spans, |total, _| {
                checked_decimal(total.value())
            }),
            Fold::Mean { result, factor } => {
                totals::<Decimal128Type>(values, result, spans, |total, count| {
                    mean(total, count, *factor, result)
                })
            }
            Fold::Extreme { is_min, result } => extreme(values, *is_min, result, spans),
            Fold::Spread(name) => spreads(values, name, spans),
            Fold::Percentile { at, is_median } => percentiles(values, *at, *is_median, spans),
        }
    }
}

/// The value of a constant; `None` if it is not a number.
fn part(at: &Arc<dyn PhysicalExpr>) -> Result<Option<f64>> {
    let Some(constant) = at.downcast_ref::<Literal>() else { return Ok(None) };
    Ok(match constant.value().cast_to(&DataType::Float64)? {
        ScalarValue::Float64(at) => at,
        _ => None,
    })
}

fn has_total(of: &DataType, result: &DataType) -> bool {
    match (of, result) {
        (DataType::Decimal128(_, own), DataType::Decimal128(_, scale)) => own == scale,
        (DataType::Int64 | DataType::UInt64, result) => of == result,
        _ => false,
    }
}

/// The power of ten between a decimal and the mean of decimals of its type.
fn more_digits(of: &DataType, mean: &DataType) -> Option<i128> {
    match (of, mean) {
        (DataType::Decimal128(_, own @ 0..), DataType::Decimal128(_, scale)) => {
            10_i128.checked_pow(u32::try_from(scale.checked_sub(*own)?).ok()?)
        }
        _ => None,
    }
}

fn has_extremes(of: &DataType) -> bool {
    let is_other = matches!(
        of,
        DataType::Float32
            | DataType::Float64
            | DataType::Date32
            | DataType::Timestamp(..)
            | DataType::Decimal128(..)
    );
    is_other || of.is_integer()
}

/// For each frame the rows that enter it, and the rows that then leave it. Before an empty frame, all rows leave. If a
/// frame begins or ends before the last one does, all its rows enter, and all rows of the last one leave.
fn slide(
    first: usize,
    starts: &[usize],
    ends: &[usize],
    mut each: impl FnMut(Range<usize>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut last = first..first;
    for (nth, (&start, &end)) in starts.iter().zip(ends).enumerate() {
        if nth % CHECKED == CHECKED - 1 {
            go_on()?;
        }
        let is_back = start < last.start || end < last.end;
        let (came, gone, next) = match start < end {
            false => (0..0, last, start..start),
            true if is_back && last.is_empty() => (start..end, 0..0, start..end),
            true if is_back => (start..end, last, start..end),
            true => (last.end..end, last.start..start, start..end),
        };
        each(came, gone)?;
        last = next;
    }
    Ok(())
}

fn floats(what: What, values: &ArrayRef, is_growing: bool, spans: &Spans<'_>) -> Result<ArrayRef> {
    let values = Values::new(what, values);
    let mut out = Results::new(what, spans.rows());
    spans.each(|rows, starts, ends| {
        let (mut count, mut total) = (0, 0.0);
        if is_growing {
            let mut next = rows.start;
            for &end in ends {
                if end < next {
                    (count, total, next) = (0, 0.0, rows.start);
                }
                if end > next {
                    let more = values.count(&(next..end));
                    total += values.sum(&(next..end), more);
                    (count, next) = (count + more, end);
                }
                out.push(count, total);
            }
            return Ok(());
        }
        let mut frame = MovingSum::new();
        slide(rows.start, starts, ends, |came, gone| {
            values.moved(came, gone, &mut frame, &mut count);
            out.push(count, frame.all().1);
            Ok(())
        })
    })?;
    out.array()
}

/// The mean of decimals, with the digits and the error of DataFusion's.
fn mean(total: &WideTotal, count: usize, factor: i128, result: &DataType) -> Result<i128> {
    let &DataType::Decimal128(precision, scale) = result else {
        return internal_err!("a mean of decimals as {result}");
    };
    let fits =
        |mean: &i128| Decimal128Type::validate_decimal_precision(*mean, precision, scale).is_ok();
    match total.mean(count, factor).filter(fits) {
        Some(mean) => Ok(mean),
        None => exec_err!("Arithmetic Overflow in AvgAccumulator"),
    }
}

/// Applies `finish` to the total and the number of the values of each frame that has some.
fn totals<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    result: &DataType,
    spans: &Spans<'_>,
    finish: impl Fn(&WideTotal, usize) -> Result<T::Native>,
) -> Result<ArrayRef>
where
    i128: From<T::Native>,
{
    let values = primitive::<T>(values)?;
    let mut out = PrimitiveBuilder::<T>::with_capacity(spans.rows());
    spans.each(|rows, starts, ends| {
        let (mut count, mut total) = (0_usize, WideTotal::default());
        slide(rows.start, starts, ends, |came, gone| {
            for row in came.filter(|&row| values.is_valid(row)) {
                total.add(i128::from(values.value(row)));
                count += 1;
            }
            for row in gone.filter(|&row| values.is_valid(row)) {
                total.subtract(i128::from(values.value(row)));
                count -= 1;
            }
            match count {
                0 => out.append_null(),
                _ => out.append_value(finish(&total, count)?),
            }
            Ok(())
        })
    })?;
    Ok(Arc::new(out.finish().with_data_type(result.clone())))
}

fn primitive<T: ArrowPrimitiveType>(values: &ArrayRef) -> Result<&PrimitiveArray<T>> {
    match values.as_primitive_opt::<T>() {
        Some(values) => Ok(values),
        None => internal_err!("an aggregate of {} as {}", values.data_type(), T::DATA_TYPE),
    }
}

fn extreme(
    values: &ArrayRef,
    is_min: bool,
    result: &DataType,
    spans: &Spans<'_>,
) -> Result<ArrayRef> {
    macro_rules! of {
        ($type:ty) => {
            extremes::<$type>(values, is_min, result, spans)
        };
    }
    match result {
        DataType::Int8 => of!(Int8Type),
        DataType::Int16 => of!(Int16Type),
        DataType::Int32 => of!(Int32Type),
        DataType::Int64 => of!(Int64Type),
        DataType::UInt8 => of!(UInt8Type),
        DataType::UInt16 => of!(UInt16Type),
        DataType::UInt32 => of!(UInt32Type),
        DataType::UInt64 => of!(UInt64Type),
        DataType::Float32 => of!(Float32Type),
        DataType::Float64 => of!(Float64Type),
        DataType::Date32 => of!(Date32Type),
        DataType::Decimal128(..) => of!(Decimal128Type),
        DataType::Timestamp(TimeUnit::Second, _) => of!(TimestampSecondType),
        DataType::Timestamp(TimeUnit::Millisecond, _) => of!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => of!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => of!(TimestampNanosecondType),
        other => internal_err!("no least value of {other}"),
    }
}

/// Extremes in the total order of floats, in which NaN is the greatest.
fn extremes<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    is_min: bool,
    result: &DataType,
    spans: &Spans<'_>,
) -> Result<ArrayRef> {
    let values = primitive::<T>(values)?;
    let is_better = |a: T::Native, b: T::Native| if is_min { a.is_lt(b) } else { a.is_gt(b) };
    let mut out = PrimitiveBuilder::<T>::with_capacity(spans.rows());
    // The best row, the best one of those behind it, and so on.
    let mut best: VecDeque<usize> = VecDeque::new();
    spans.each(|rows, starts, ends| {
        best.clear();
        let mut next = rows.start;
        slide(rows.start, starts, ends, |came, gone| {
            let is_back = came.start < next;
            if is_back {
                best.clear();
            }
            next = came.end;
            for row in came.filter(|&row| values.is_valid(row)) {
                let value = values.value(row);
                while best.back().is_some_and(|&last| !is_better(values.value(last), value)) {
                    best.pop_back();
                }
                best.push_back(row);
            }
            while !is_back && best.front().is_some_and(|&first| first < gone.end) {
                best.pop_front();
            }
            out.append_option(best.front().map(|&row| values.value(row)));
            Ok(())
        })
    })?;
    Ok(Arc::new(out.finish().with_data_type(result.clone())))
}

fn spreads(values: &ArrayRef, name: &str, spans: &Spans<'_>) -> Result<ArrayRef> {
    let values = primitive::<Float64Type>(values)?;
    let mut out = PrimitiveBuilder::<Float64Type>::with_capacity(spans.rows());
    spans.each(|rows, starts, ends| {
        let mut frame = MovingSpread::new(name);
        slide(rows.start, starts, ends, |came, gone| {
            came.filter(|&row| values.is_valid(row)).for_each(|row| frame.push(values.value(row)));
            gone.filter(|&row| values.is_valid(row)).for_each(|_| frame.pop());
            out.append_option(frame.value());
            Ok(())
        })
    })?;
    Ok(Arc::new(out.finish()))
}

fn percentiles(values: &ArrayRef, at: f64, is_median: bool, spans: &Spans<'_>) -> Result<ArrayRef> {
    let values = primitive::<Float64Type>(values)?;
    let mut out = PrimitiveBuilder::<Float64Type>::with_capacity(spans.rows());
    spans.each(|rows, starts, ends| {
        let Ranked { sorted, ranks } = Ranked::new(values, &rows);
        let mut tree = Tree::new(sorted.len());
        let mut count = 0_usize;
        slide(rows.start, starts, ends, |came, gone| {
            for row in came.filter(|&row| values.is_valid(row)) {
                tree.add(ranks[row - rows.start] as usize, 1);
                count += 1;
            }
            for row in gone.filter(|&row| values.is_valid(row)) {
                tree.add(ranks[row - rows.start] as usize, -1);
                count -= 1;
            }
            let Some(last) = count.checked_sub(1) else {
                out.append_null();
                return Ok(());
            };
            let place = at * last as f64;
            let low = place.floor() as usize;
            let weight = place - low as f64;
            let lower = sorted[tree.nth(low)];
            out.append_value(match weight > 0.0 {
                false => lower,
                true if is_median => (lower + sorted[tree.nth(low + 1)]) / 2.0,
                true => between(lower, sorted[tree.nth(low + 1)], weight),
            });
            Ok(())
        })
    })?;
    Ok(Arc::new(out.finish()))
}

/// The values of a partition that are not NULL, in their order, and the place of the value of each row among them.
struct Ranked {
    sorted: Vec<f64>,
    ranks: Vec<u32>,
}

impl Ranked {
    fn new(values: &Float64Array, rows: &Range<usize>) -> Self {
        let valid = rows.clone().filter(|&row| values.is_valid(row));
        let mut order: Vec<u32> = valid.map(|row| (row - rows.start) as u32).collect();
        let value = |row: u32| values.value(rows.start + row as usize);
        order.sort_unstable_by(|&a, &b| value(a).total_cmp(&value(b)).then(a.cmp(&b)));
        let mut ranks = vec![0; rows.len()];
        for (rank, &row) in order.iter().enumerate() {
            ranks[row as usize] = rank as u32;
        }
        Ranked { sorted: order.into_iter().map(value).collect(), ranks }
    }
}

/// The number of values of each rank in a frame, as a Fenwick tree: each sum covers a power of two of ranks.
struct Tree {
    sums: Vec<i32>,
    /// The greatest power of two that is not above the number of ranks.
    top: usize,
}

impl Tree {
    fn new(ranks: usize) -> Self {
        Tree { sums: vec![0; ranks + 1], top: ranks.checked_ilog2().map_or(0, |log| 1 << log) }
    }

    fn add(&mut self, rank: usize, by: i32) {
        let mut at = rank + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum += by;
            at += at & at.wrapping_neg();
        }
    }

    /// The rank of the frame's value at a place among its sorted ones. The frame has more values than that.
    fn nth(&self, mut place: usize) -> usize {
        let (mut at, mut step) = (0, self.top);
        while step > 0 {
            if let Some(&sum) = self.sums.get(at + step)
                && place >= sum as usize
            {
                at += step;
                place -= sum as usize;
            }
            step /= 2;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_finds_the_values_of_a_frame_by_their_place() {
        for ranks in [1, 2, 3, 7, 8, 9, 100] {
            let mut tree = Tree::new(ranks);
            let mut kept: Vec<usize> = Vec::new();
            for (i, rank) in (0..ranks).map(|i| i * 37 % ranks).enumerate() {
                tree.add(rank, 1);
                kept.push(rank);
                if i % 3 == 2 {
                    tree.add(kept.remove(0), -1);
                }
                let mut sorted = kept.clone();
                sorted.sort_unstable();
                let found: Vec<usize> = (0..sorted.len()).map(|place| tree.nth(place)).collect();
                assert_eq!(found, sorted, "{ranks} {i}");
            }
        }
    }
}
