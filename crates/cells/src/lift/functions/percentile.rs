//! `percentile_cont` with the exact weight (DataFusion's rounds the weight of the upper value to six digits). It
//! merges all states, where DataFusion's (55.2) merges only the first of several. `percentile_cont` and `median` of times,
//! spans and intervals; dates are times here. Values of groups are [`Collected`], those of a whole table or of a frame
//! [`Exact`]. DataFusion would compute the percentiles 0 and 1 by its `min` and `max`, which lose NaN in groups.

mod collected;
mod exact;
mod selected;

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, PrimitiveArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowNativeType, ArrowPrimitiveType, DataType, Field, FieldRef, Float64Type, Int64Type,
    IntervalMonthDayNano, IntervalMonthDayNanoType,
};
use datafusion::common::types::{NativeType, logical_float64};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Coercion, ColumnarValue, GroupsAccumulator,
    Signature, TypeSignatureClass,
};

use super::inner::{hashed_by, of_inner, scalar};
use super::recomputed;
use super::temporal::{is_temporal, with_times};
use collected::Collected;
use exact::Exact;

const MEDIAN: &str = "median";

/// DataFusion's `percentile_cont`, except for the interpolation of floats, and `median`; both also of times.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Percentile {
    inner: Arc<AggregateUDF>,
    signature: Signature,
}

hashed_by!(Percentile, function => function.inner.name());

impl Percentile {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        let part = Coercion::new_implicit(
            TypeSignatureClass::Native(logical_float64()),
            vec![TypeSignatureClass::Numeric],
            NativeType::Float64,
        );
        let others = if inner.name() == MEDIAN { vec![] } else { vec![part] };
        let signature = with_times(inner.signature(), &others);
        Self { inner, signature }
    }

    fn is_median(&self) -> bool {
        self.inner.name() == MEDIAN
    }
}

impl AggregateUDFImpl for Percentile {
    of_inner!(name, documentation, aliases, coerce_types);
    scalar!(signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of, ..] if is_temporal(of) => Ok(of.clone()),
            _ => self.inner.return_type(types),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let of = args.return_field.data_type();
        if !is_temporal(of) {
            return self.inner.state_fields(args);
        }
        let values = Field::new_list_field(of.clone(), true);
        Ok(vec![Arc::new(Field::new_list("values", values, true))])
    }

    /// The accumulator for whole tables, for frames, and for groups that are not [`Collected`].
    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if is_temporal(args.return_type()) {
            return of_times(&args, self.is_median());
        }
        if self.is_median() {
            return match is_collected(&args) {
                true => Ok(Box::new(Exact::<f64>::new(0.5, mean, DataType::Float64))),
                false => self.inner.accumulator(args),
            };
        }
        let exact = exact(&args)?;
        // Rejects a percentile that is not from 0 to 1.
        let inner = self.inner.accumulator(args)?;
        match exact {
            Some(exact) => Ok(Box::new(exact)),
            None => Ok(inner),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match self.is_median() && !is_temporal(args.return_type()) {
            true => recomputed::sliding(&self.inner, args),
            false => self.accumulator(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        is_collected(&args)
            || (self.is_median()
                && !is_temporal(args.return_type())
                && self.inner.groups_accumulator_supported(args))
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        if !is_collected(&args) {
            return self.inner.create_groups_accumulator(args);
        }
        let (of, is_median) = (args.return_type().clone(), self.is_median());
        let at = if is_median { Some(0.5) } else { percentile(&args)? };
        if !is_temporal(&of) {
            // Rejects a percentile that is not from 0 to 1.
            self.inner.accumulator(args)?;
        }
        let at = checked(at)?;
        Ok(match of {
            DataType::Interval(_) => {
                Box::new(Collected::<IntervalMonthDayNano>::new(at, between, of))
            }
            DataType::Float64 if is_median => Box::new(Collected::<f64>::new(at, mean, of)),
            DataType::Float64 => Box::new(Collected::<f64>::new(at, between, of)),
            _ => Box::new(Collected::<i64>::new(at, between, of)),
        })
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }
}

/// The accumulator for floats; `None` for values that are left to DataFusion.
fn exact(args: &AccumulatorArgs) -> Result<Option<Exact<f64>>> {
    let has_values = args.expr_fields.first().is_some_and(|field| !field.data_type().is_null());
    if args.is_distinct || !has_values || !args.return_type().is_floating() {
        return Ok(None);
    }
    Ok(percentile(args)?.map(|at| Exact::new(at, between, args.return_type().clone())))
}

fn of_times(args: &AccumulatorArgs, is_median: bool) -> Result<Box<dyn Accumulator>> {
    let at = checked(if is_median { Some(0.5) } else { percentile(args)? })?;
    let (of, is_distinct) = (args.return_type().clone(), args.is_distinct);
    Ok(match of {
        DataType::Interval(_) => {
            Box::new(Exact::<IntervalMonthDayNano>::new(at, between, of).with_distinct(is_distinct))
        }
        _ => Box::new(Exact::<i64>::new(at, between, of).with_distinct(is_distinct)),
    })
}

/// The mean of two neighbours, as DataFusion's median of floats.
fn mean(lower: f64, upper: f64, _: f64) -> f64 {
    (lower + upper) / 2.0
}

/// True for calls whose groups are [`Collected`].
fn is_collected(args: &AccumulatorArgs) -> bool {
    let of = args.return_type();
    let is_same = args.expr_fields.first().is_some_and(|field| field.data_type() == of);
    is_same && !args.is_distinct && (*of == DataType::Float64 || is_temporal(of))
}

/// The percentile, which is from 0 to 1.
fn checked(at: Option<f64>) -> Result<f64> {
    match at.filter(|at| (0.0..=1.0).contains(at)) {
        Some(at) => Ok(at),
        None => plan_err!("`percentile_cont` takes a constant fraction from 0 to 1"),
    }
}

/// The percentile in ascending order; `None` if it is not a number, which is rejected elsewhere.
fn percentile(args: &AccumulatorArgs) -> Result<Option<f64>> {
    let descending = args.order_bys.first().is_some_and(|sort| sort.options.descending);
    Ok(part_of(args)?.map(|at| if descending { 1.0 - at } else { at }))
}

/// The second argument; `None` if it is not a number.
pub(super) fn part_of(args: &AccumulatorArgs) -> Result<Option<f64>> {
    let Some(expr) = args.exprs.get(1) else { return Ok(None) };
    let nothing = RecordBatch::new_empty(Arc::new(args.schema.clone()));
    let ColumnarValue::Scalar(value) = expr.evaluate(&nothing)? else { return Ok(None) };
    Ok(match value.cast_to(&DataType::Float64)? {
        ScalarValue::Float64(part) => part,
        _ => None,
    })
}

/// A value that can be interpolated.
pub(crate) trait Value:
    ArrowNativeType + Copy + std::fmt::Debug + Send + Sync + 'static
{
    type Arrow: ArrowPrimitiveType<Native = Self>;

    /// True if values have keys. Without them, `key` and `of_key` have no meaning.
    const HAS_KEYS: bool = false;

    /// A total order.
    fn order(&self, other: &Self) -> Ordering;

    /// A number in the order of values. Different values have different keys.
    fn key(self) -> u64 {
        0
    }

    /// The value of a key.
    fn of_key(_: u64) -> Self {
        Self::default()
    }

    /// The value between two, of which the first one is smaller, in proportion to a weight.
    fn between(self, upper: Self, weight: f64) -> Self;

    fn scalar(value: Option<Self>) -> ScalarValue;
}

/// The first bit of a number, which is the sign.
const SIGN: u64 = 1 << 63;

impl Value for f64 {
    type Arrow = Float64Type;

    const HAS_KEYS: bool = true;

    fn order(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }

    /// Of negative values all bits are inverted, of others the sign alone.
    fn key(self) -> u64 {
        let bits = self.to_bits();
        bits ^ ((bits as i64 >> 63) as u64 | SIGN)
    }

    fn of_key(key: u64) -> Self {
        f64::from_bits(if key < SIGN { !key } else { key ^ SIGN })
    }

    fn between(self, upper: Self, weight: f64) -> Self {
        // Two infinities would give NaN, and two zeros might change their sign.
        if self == upper { self } else { self + (upper - self) * weight }
    }

    fn scalar(value: Option<Self>) -> ScalarValue {
        ScalarValue::Float64(value)
    }
}

impl Value for i64 {
    type Arrow = Int64Type;

    const HAS_KEYS: bool = true;

    fn order(&self, other: &Self) -> Ordering {
        self.cmp(other)
    }

    fn key(self) -> u64 {
        self as u64 ^ SIGN
    }

    fn of_key(key: u64) -> Self {
        (key ^ SIGN) as i64
    }

    /// To the nearest unit, as in DuckDB.
    fn between(self, upper: Self, weight: f64) -> Self {
        let distance = (i128::from(upper) - i128::from(self)) as f64 * weight;
        self.saturating_add(distance.round() as i64)
    }

    fn scalar(value: Option<Self>) -> ScalarValue {
        ScalarValue::Int64(value)
    }
}

impl Value for IntervalMonthDayNano {
    type Arrow = IntervalMonthDayNanoType;

    /// By their length; those of the same length by their parts.
    fn order(&self, other: &Self) -> Ordering {
        let length = |of: &Self| {
            let days = i128::from(of.months) * 30 + i128::from(of.days);
            days * 86_400_000_000_000 + i128::from(of.nanoseconds)
        };
        length(self).cmp(&length(other)).then_with(|| self.cmp(other))
    }

    /// A part of a month is days of 30 in a month, a part of a day hours.
    fn between(self, upper: Self, weight: f64) -> Self {
        let part = |from: i32, to: i32| (f64::from(to) - f64::from(from)) * weight;
        let months = part(self.months, upper.months);
        let days = part(self.days, upper.days) + months.fract() * 30.0;
        let ns = (i128::from(upper.nanoseconds) - i128::from(self.nanoseconds)) as f64 * weight;
        let us = (ns / 1e3 + days.fract() * 86_400e6).round();
        IntervalMonthDayNano {
            months: self.months.saturating_add(months as i32),
            days: self.days.saturating_add(days as i32),
            nanoseconds: self.nanoseconds.saturating_add((us as i64).saturating_mul(1000)),
        }
    }

    fn scalar(value: Option<Self>) -> ScalarValue {
        ScalarValue::IntervalMonthDayNano(value)
    }
}

fn values_of<V: Value>(values: &ArrayRef) -> Result<PrimitiveArray<V::Arrow>> {
    Ok(cast(values, &V::Arrow::DATA_TYPE)?.as_primitive::<V::Arrow>().clone())
}

/// The place of a percentile of some values: that of the value below, and the part of the distance to the next one;
/// `None` if there are no values.
fn place_of(values: usize, at: f64) -> Option<(usize, f64)> {
    let place = at.clamp(0.0, 1.0) * values.checked_sub(1)? as f64;
    let low = place.floor();
    Some((low as usize, place - low))
}

/// The value at a place in the order, and the next one.
fn neighbours<V: Value>(values: &mut [V], place: usize) -> (V, Option<V>) {
    let (_, &mut lower, above) = values.select_nth_unstable_by(place, V::order);
    (lower, above.iter().copied().min_by(V::order))
}

/// The value at this part of the distance between two neighbours, which is the lower one without the other.
fn at_weight<V: Value>(
    (lower, upper): (V, Option<V>),
    weight: f64,
    between: fn(V, V, f64) -> V,
) -> V {
    match upper {
        Some(upper) if weight > 0.0 => between(lower, upper, weight),
        _ => lower,
    }
}

/// The value between two neighbours at this part of their distance.
pub(crate) fn between<V: Value>(lower: V, upper: V, weight: f64) -> V {
    match weight > 0.0 && upper.order(&lower) != Ordering::Equal {
        true => lower.between(upper, weight),
        false => lower,
    }
}
