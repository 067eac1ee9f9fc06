//! Sums, means, variances and statistics of pairs of floats over moving frames, without subtraction. Means of Booleans, and
//! of times.
//!
//! DataFusion's accumulators subtract a value that leaves the frame from a running sum: after a NaN or an infinity
//! has left, the sum stays NaN, and a large value leaves its rounding error behind. Here the frame is two stacks:
//! values are pushed to one and popped from the other, which holds the sums of its suffixes.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Float64Type, UInt64Type};
use datafusion::common::types::logical_float64;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF, Signature,
};

use super::booleans::with_booleans;
use super::inner::{hashed_by, of_frame, of_inner, scalar};
use super::moments::{Blocks, Column, Summary};
use super::recomputed;
use super::temporal::{self, is_temporal, with_times};

/// A partial aggregate of some values of a frame.
pub(super) trait Partial: Copy + Default + std::fmt::Debug + Send + Sync + 'static {
    type Value: Copy + Send + Sync;

    /// The aggregate of one value.
    fn of(value: Self::Value) -> Self;

    fn with(self, other: Self) -> Self;

    /// The values of rows without NULL.
    fn values(columns: &[ArrayRef]) -> Result<Vec<Self::Value>>;
}

fn floats(columns: &[ArrayRef]) -> Result<Vec<f64>> {
    let Some(values) = columns.first() else { return internal_err!("a frame of nothing") };
    let values = cast(values, &DataType::Float64)?;
    Ok(values.as_primitive::<Float64Type>().iter().flatten().collect())
}

impl Partial for f64 {
    type Value = f64;

    fn of(value: f64) -> Self {
        value
    }

    fn with(self, other: Self) -> Self {
        self + other
    }

    fn values(columns: &[ArrayRef]) -> Result<Vec<f64>> {
        floats(columns)
    }
}

/// Computes the result from the number of values and their aggregate.
type Finish<P> = Box<dyn Fn(usize, P) -> Option<f64> + Send + Sync>;

pub(super) struct Frame<P: Partial> {
    finish: Finish<P>,
    /// Pushed values, and the aggregate of all of them.
    came: Vec<P::Value>,
    part: P,
    /// The aggregates of the suffixes of older values; the last is that of all of them.
    old: Vec<P>,
}

impl<P: Partial> Frame<P> {
    pub(super) fn new(finish: impl Fn(usize, P) -> Option<f64> + Send + Sync + 'static) -> Self {
        Self { finish: Box::new(finish), came: Vec::new(), part: P::default(), old: Vec::new() }
    }
}

impl<P: Partial> Frame<P> {
    fn push(&mut self, value: P::Value) {
        self.came.push(value);
        self.part = self.part.with(P::of(value));
    }

    /// Removes the oldest value; `false` if there is none.
    fn pop(&mut self) -> bool {
        if self.old.is_empty() {
            let mut part = P::default();
            while let Some(v) = self.came.pop() {
                part = part.with(P::of(v));
                self.old.push(part);
            }
            self.part = P::default();
        }
        self.old.pop().is_some()
    }

    /// The number of values and their aggregate.
    fn all(&self) -> (usize, P) {
        let all = self.old.last().copied().unwrap_or_default().with(self.part);
        (self.came.len() + self.old.len(), all)
    }
}

pub(crate) struct MovingSum(Frame<f64>);

impl MovingSum {
    pub(crate) fn new() -> Self {
        MovingSum(Frame::new(|_, sum| Some(sum)))
    }

    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Removes the value at the start of the frame.
    pub(crate) fn pop(&mut self) {
        self.0.pop();
    }

    /// The number of values and their sum.
    pub(crate) fn all(&self) -> (usize, f64) {
        self.0.all()
    }
}

impl<P: Partial> std::fmt::Debug for Frame<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.came.len() + self.old.len();
        f.debug_struct("Frame").field("values", &count).finish_non_exhaustive()
    }
}

impl<P: Partial> Accumulator for Frame<P> {
    of_frame!();

    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in P::values(values)? {
            self.push(value);
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for _ in P::values(values)? {
            if !self.pop() {
                return internal_err!("more values leave a frame than came");
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (count, all) = self.all();
        Ok(ScalarValue::Float64((self.finish)(count, all)))
    }

    fn size(&self) -> usize {
        size_of_val(self)
            + size_of::<P::Value>() * self.came.capacity()
            + size_of::<P>() * self.old.capacity()
    }
}

pub(super) fn sum() -> Box<dyn Accumulator> {
    Box::new(Frame::new(|count, sum: f64| (count > 0).then_some(sum)))
}

fn mean() -> Box<dyn Accumulator> {
    Box::new(Frame::new(|count, sum: f64| (count > 0).then_some(sum / count as f64)))
}

/// DataFusion's `avg`, except for Booleans, times and moving frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mean {
    inner: Arc<AggregateUDF>,
    signature: Signature,
}

hashed_by!(Mean, function => function.inner.name());

impl Mean {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        let signature = with_times(&with_booleans(inner.signature(), logical_float64()), &[]);
        Self { inner, signature }
    }
}

impl AggregateUDFImpl for Mean {
    of_inner!(name, documentation, aliases, coerce_types, create_groups_accumulator);
    scalar!(signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of] if is_temporal(of) => Ok(of.clone()),
            _ => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match temporal::total(&args, true)? {
            Some(mean) => Ok(Box::new(mean)),
            None => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        match is_temporal(args.return_field.data_type()) {
            true => Ok(temporal::state_fields()),
            false => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !is_temporal(args.return_type()) && self.inner.groups_accumulator_supported(args)
    }

    /// Insensitive: the inner order requirement is not forwarded, as the accumulators do not support it.
    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if is_temporal(args.return_type()) {
            return self.accumulator(args);
        }
        if *args.return_type() == DataType::Float64 && !args.is_distinct {
            return Ok(mean());
        }
        recomputed::sliding(&self.inner, args)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// Count, mean and sum of squared deviations of some values. The mean is counted from the first value, so that rounding is
/// in proportion to the spread of the values and not to their distance from zero.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: f64,
    first: f64,
    mean: f64,
    squares: f64,
}

impl Partial for Moments {
    type Value = f64;

    fn of(value: f64) -> Self {
        // The deviation of an infinity is NaN.
        let squares = if value.is_finite() { 0.0 } else { f64::NAN };
        Moments { count: 1.0, first: value, mean: 0.0, squares }
    }

    /// Combines both parts.
    ///
    /// # Source
    /// Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances (1979).
    fn with(self, other: Self) -> Self {
        if self.count == 0.0 {
            return other;
        }
        if other.count == 0.0 {
            return self;
        }
        let count = self.count + other.count;
        let delta = (other.first - self.first) + (other.mean - self.mean);
        Moments {
            count,
            first: self.first,
            mean: self.mean + delta * (other.count / count),
            squares: self.squares
                + other.squares
                + delta * delta * (self.count * other.count / count),
        }
    }

    fn values(columns: &[ArrayRef]) -> Result<Vec<f64>> {
        floats(columns)
    }
}

impl Summary<1> for Moments {
    fn of_block([values]: [&[f64]; 1]) -> Self {
        let column = Column::of(values);
        let (count, squares) = (values.len() as f64, column.product(&column));
        Moments { count, first: column.first, mean: column.mean, squares }
    }

    fn merged(self, behind: Self) -> Self {
        self.with(behind)
    }

    /// The state of DataFusion's groups.
    fn state(all: &[Self]) -> Vec<ArrayRef> {
        let floats = |of: fn(&Moments) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(all.iter().map(of)))
        };
        let counts = UInt64Array::from_iter_values(all.iter().map(|all| all.count as u64));
        vec![Arc::new(counts), floats(|all| all.first + all.mean), floats(|all| all.squares)]
    }

    fn of_state(columns: &[ArrayRef]) -> Result<Vec<Self>> {
        let [counts, means, squares] = columns else {
            return internal_err!("a variance with a state of {} columns", columns.len());
        };
        let (Some(counts), Some(means), Some(squares)) = (
            counts.as_primitive_opt::<UInt64Type>(),
            means.as_primitive_opt::<Float64Type>(),
            squares.as_primitive_opt::<Float64Type>(),
        ) else {
            return internal_err!("a variance with a broken state");
        };
        let of = |row: usize| Moments {
            count: counts.value(row) as f64,
            first: means.value(row),
            mean: 0.0,
            squares: squares.value(row),
        };
        Ok((0..counts.len()).map(of).collect())
    }
}

/// DataFusion's `var`, `var_pop`, `stddev` and `stddev_pop`, except for all rows at once and for moving frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spread {
    inner: Arc<AggregateUDF>,
}

hashed_by!(Spread, function => function.inner.name());

impl Spread {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }

    fn finish(&self) -> impl Fn(Moments) -> Option<f64> + Send + Sync + use<> {
        spread(self.inner.name())
    }
}

/// The function of that name: a variance or its root.
fn spread(name: &str) -> impl Fn(Moments) -> Option<f64> + Send + Sync + use<> {
    let ddof = if name.ends_with("_pop") { 0.0 } else { 1.0 };
    let is_root = name.starts_with("stddev");
    move |all: Moments| {
        // One value has no sample variance, no values have no variance: NULL.
        let variance = (all.count > ddof).then(|| all.squares / (all.count - ddof))?;
        Some(if is_root { variance.sqrt() } else { variance })
    }
}

/// The variance, or its root, of a moving frame of floats.
pub(crate) struct MovingSpread(Frame<Moments>);

impl MovingSpread {
    /// By the name of the function: `var`, `var_pop`, `stddev` or `stddev_pop`.
    pub(crate) fn new(name: &str) -> Self {
        let finish = spread(name);
        MovingSpread(Frame::new(move |_, all| finish(all)))
    }

    /// Adds a value at the end of the frame.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// Removes the value at the start of the frame.
    pub(crate) fn pop(&mut self) {
        self.0.pop();
    }

    pub(crate) fn value(&self) -> Option<f64> {
        let (count, all) = self.0.all();
        (self.0.finish)(count, all)
    }
}

impl AggregateUDFImpl for Spread {
    of_inner!(name, documentation, aliases, signature, coerce_types, return_type, state_fields);
    of_inner!(groups_accumulator_supported, create_groups_accumulator);

    /// Insensitive: the inner order requirement is not forwarded, as the accumulators do not support it.
    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match args.is_distinct {
            true => self.inner.accumulator(args),
            false => Ok(Box::new(Blocks::<1, Moments>::new(self.finish()))),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return recomputed::sliding(&self.inner, args);
        }
        let finish = self.finish();
        Ok(Box::new(Frame::new(move |_, all: Moments| finish(all))))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `numpy.var` of numbers whose sums are exact, wherever they lie.
    #[test]
    fn variances_far_from_zero_keep_their_digits() {
        for offset in [0.0, 1_073_741_824.0] {
            let values = (0..100_000).map(|i| f64::from(i * 7919 % 1009) / 1024.0 + offset);
            let values: ArrayRef = Arc::new(Float64Array::from_iter_values(values));
            let mut all = Blocks::<1, Moments>::new(|all: Moments| Some(all.squares / all.count));
            all.update_batch(&[values]).unwrap();
            let ScalarValue::Float64(Some(got)) = all.evaluate().unwrap() else { panic!() };
            assert!((got - 0.08091077168679771).abs() < 1e-15, "{offset}: {got}");
        }
    }
}
