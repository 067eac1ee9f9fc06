//! `percentile_cont` with the exact weight (DataFusion's rounds the weight of the upper value to six digits). It
//! merges all states, where DataFusion's (55.2) merges only the first of several.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue};

use super::inner::of_inner;

/// DataFusion's `percentile_cont`, except for the interpolation of floats.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Percentile {
    inner: Arc<AggregateUDF>,
}

impl Percentile {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Percentile {
    // A frame is evaluated more than once, which this accumulator does not support.
    of_inner!(
        name,
        documentation,
        aliases,
        signature,
        coerce_types,
        return_type,
        state_fields,
        create_sliding_accumulator
    );

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let is_float = args.return_type().is_floating();
        let Some(at) = percentile(&args)?.filter(|_| is_float && !args.is_distinct) else {
            return self.inner.accumulator(args);
        };
        let result = args.return_type().clone();
        Ok(Box::new(Exact { inner: self.inner.accumulator(args)?, at, result }))
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
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

/// DataFusion's accumulator, whose state is the list of the values.
#[derive(Debug)]
struct Exact {
    inner: Box<dyn Accumulator>,
    at: f64,
    result: DataType,
}

impl Accumulator for Exact {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let state = self.inner.state()?;
        let [ScalarValue::List(list)] = state.as_slice() else {
            return internal_err!("percentile_cont: a broken state");
        };
        let mut values: Vec<f64> = Vec::new();
        for part in list.iter().flatten() {
            let part = cast(&part, &DataType::Float64)?;
            values.extend(part.as_primitive::<Float64Type>().iter().flatten());
        }
        let value = ScalarValue::Float64(interpolated(&mut values, self.at));
        value.cast_to(&self.result)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.inner.update_batch(&[values])?;
        }
        Ok(())
    }
}

/// The value at `at · (n - 1)` of the sorted values, between two of them in proportion; NaN is the greatest.
fn interpolated(values: &mut [f64], at: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let place = at.clamp(0.0, 1.0) * last as f64;
    let low = place.floor() as usize;
    let (_, &mut lower, above) = values.select_nth_unstable_by(low, f64::total_cmp);
    let weight = place - low as f64;
    let upper = above.iter().copied().min_by(f64::total_cmp);
    Some(match upper {
        Some(upper) if weight > 0.0 && upper != lower => lower + (upper - lower) * weight,
        _ => lower,
    })
}
