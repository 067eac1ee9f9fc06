//! Sums, means and variances of floats over moving frames, without subtraction.
//!
//! DataFusion's accumulators take a value that leaves the frame away from a running sum: after a NaN or an infinity
//! has gone the sum stays NaN, and a large value leaves its rounding behind. Here the frame is two stacks: values come
//! onto one, and leave from the other, which holds the sums of its suffixes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF};

use super::inner::of_inner;

/// The sum or the mean of a frame of floats.
#[derive(Debug, Default)]
pub(super) struct Frame {
    is_mean: bool,
    /// Values that came, and their sum from the first on.
    came: Vec<f64>,
    sum: f64,
    /// Sums of the suffixes of older values; the last is that of all of them.
    old: Vec<f64>,
}

impl Frame {
    pub(super) fn new(is_mean: bool) -> Self {
        Self { is_mean, ..Self::default() }
    }

    fn floats(values: &[ArrayRef]) -> Result<ArrayRef> {
        match values.first() {
            Some(values) => Ok(cast(values, &DataType::Float64)?),
            None => internal_err!("a frame of nothing"),
        }
    }
}

impl Accumulator for Frame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = Self::floats(values)?;
        for v in values.as_primitive::<Float64Type>().iter().flatten() {
            self.came.push(v);
            self.sum += v;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("a frame of nothing") };
        for _ in 0..values.len() - values.null_count() {
            if self.old.is_empty() {
                let mut sum = 0.0;
                while let Some(v) = self.came.pop() {
                    sum += v;
                    self.old.push(sum);
                }
                self.sum = 0.0;
            }
            if self.old.pop().is_none() {
                return internal_err!("more values leave a frame than came");
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let count = self.came.len() + self.old.len();
        if count == 0 {
            return Ok(ScalarValue::Float64(None));
        }
        let sum = self.old.last().copied().unwrap_or(0.0) + self.sum;
        Ok(ScalarValue::Float64(Some(if self.is_mean { sum / count as f64 } else { sum })))
    }

    fn size(&self) -> usize {
        size_of_val(self) + 8 * (self.came.capacity() + self.old.capacity())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame is not put together from parts")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame is not put together from parts")
    }
}

/// DataFusion's `avg`, but for moving frames.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Mean {
    inner: Arc<AggregateUDF>,
}

impl Mean {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Mean {
    of_inner!(
        name,
        aliases,
        signature,
        coerce_types,
        return_type,
        accumulator,
        state_fields,
        groups_accumulator_supported,
        create_groups_accumulator
    );

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if *args.return_type() == DataType::Float64 && !args.is_distinct {
            return Ok(Box::new(Frame::new(true)));
        }
        self.inner.create_sliding_accumulator(args)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// Count, mean and sum of squared deviations of some values.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn of(value: f64) -> Self {
        // Of an infinity there is no deviation: NaN.
        let squares = if value.is_finite() { 0.0 } else { f64::NAN };
        Moments { count: 1.0, mean: value, squares }
    }

    /// Both together.
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
        let delta = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + delta * (other.count / count),
            squares: self.squares
                + other.squares
                + delta * delta * (self.count * other.count / count),
        }
    }
}

/// The variance of a frame of floats, or its root.
#[derive(Debug)]
struct Deviations {
    ddof: f64,
    is_root: bool,
    /// Values that came, and their moments from the first on.
    came: Vec<f64>,
    moments: Moments,
    /// Moments of the suffixes of older values; the last are those of all of them.
    old: Vec<Moments>,
}

impl Accumulator for Deviations {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = Frame::floats(values)?;
        for v in values.as_primitive::<Float64Type>().iter().flatten() {
            self.came.push(v);
            self.moments = self.moments.with(Moments::of(v));
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("a frame of nothing") };
        for _ in 0..values.len() - values.null_count() {
            if self.old.is_empty() {
                let mut moments = Moments::default();
                while let Some(v) = self.came.pop() {
                    moments = moments.with(Moments::of(v));
                    self.old.push(moments);
                }
                self.moments = Moments::default();
            }
            if self.old.pop().is_none() {
                return internal_err!("more values leave a frame than came");
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let all = self.old.last().copied().unwrap_or_default().with(self.moments);
        // Of one value there is no sample variance, of none there is no variance: NULL.
        if all.count <= self.ddof {
            return Ok(ScalarValue::Float64(None));
        }
        let variance = all.squares / (all.count - self.ddof);
        Ok(ScalarValue::Float64(Some(if self.is_root { variance.sqrt() } else { variance })))
    }

    fn size(&self) -> usize {
        size_of_val(self) + 8 * self.came.capacity() + size_of::<Moments>() * self.old.capacity()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame is not put together from parts")
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame is not put together from parts")
    }
}

/// DataFusion's `var`, `var_pop`, `stddev` and `stddev_pop`, but for moving frames.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Spread {
    inner: Arc<AggregateUDF>,
}

impl Spread {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Spread {
    of_inner!(
        name,
        aliases,
        signature,
        coerce_types,
        return_type,
        accumulator,
        state_fields,
        groups_accumulator_supported,
        create_groups_accumulator
    );

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return self.inner.create_sliding_accumulator(args);
        }
        let name = self.inner.name();
        Ok(Box::new(Deviations {
            ddof: if name.ends_with("_pop") { 0.0 } else { 1.0 },
            is_root: name.starts_with("stddev"),
            came: Vec::new(),
            moments: Moments::default(),
            old: Vec::new(),
        }))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}
