//! `corr` in groups by co-moments: DataFusion's groups keep sums of squares, which cancel when values are far from zero.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, UInt64Array};
use arrow::datatypes::{Float64Type, UInt64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator};

use super::inner::of_inner;

/// DataFusion's `corr`, except for its groups.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Correlation {
    inner: Arc<AggregateUDF>,
}

impl Correlation {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Correlation {
    of_inner!(
        name,
        documentation,
        aliases,
        signature,
        coerce_types,
        return_type,
        state_fields,
        accumulator,
        groups_accumulator_supported,
        create_sliding_accumulator
    );

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Groups(Vec::new())))
    }
}

/// Moments of the pairs of a group about their means. Means are counted from the first pair, so that rounding is in
/// proportion to the spread of the values and not to their distance from zero.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: u64,
    first_x: f64,
    first_y: f64,
    mean_x: f64,
    /// Sum of the squared deviations.
    square_x: f64,
    mean_y: f64,
    square_y: f64,
    /// Sum of the products of the deviations.
    product: f64,
}

impl Moments {
    fn one(x: f64, y: f64) -> Self {
        // NaN and infinite values have no deviation.
        let mean = |v: f64| if v.is_finite() { 0.0 } else { f64::NAN };
        let (mean_x, mean_y) = (mean(x), mean(y));
        Moments { count: 1, first_x: x, first_y: y, mean_x, mean_y, ..Moments::default() }
    }

    /// Adds the pairs of another part of the group (Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for
    /// computing sample variances, 1979).
    fn add(&mut self, other: Moments) {
        if self.count == 0 || other.count == 0 {
            if self.count == 0 {
                *self = other;
            }
            return;
        }
        let (n, m) = (self.count as f64, other.count as f64);
        let dx = (other.first_x - self.first_x) + (other.mean_x - self.mean_x);
        let dy = (other.first_y - self.first_y) + (other.mean_y - self.mean_y);
        let (share, weight) = (m / (n + m), n * m / (n + m));
        self.count += other.count;
        self.mean_x += dx * share;
        self.mean_y += dy * share;
        self.square_x += other.square_x + dx * dx * weight;
        self.square_y += other.square_y + dy * dy * weight;
        self.product += other.product + dx * dy * weight;
    }

    /// As DataFusion without groups: NaN if both columns have one, NULL if one has, or if a deviation is 0.
    fn correlation(&self) -> Option<f64> {
        let (nan_x, nan_y) = (self.mean_x.is_nan(), self.mean_y.is_nan());
        if nan_x && nan_y {
            return Some(f64::NAN);
        }
        if nan_x || nan_y || self.count < 2 || self.square_x == 0.0 || self.square_y == 0.0 {
            return None;
        }
        Some(self.product / (self.square_x.sqrt() * self.square_y.sqrt()))
    }
}

/// The moments of each group.
#[derive(Debug)]
struct Groups(Vec<Moments>);

impl Groups {
    /// The state of moments, column by column.
    fn columns(moments: &[Moments]) -> Vec<ArrayRef> {
        let floats = |of: fn(&Moments) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(moments.iter().map(of)))
        };
        vec![
            Arc::new(UInt64Array::from_iter_values(moments.iter().map(|m| m.count))),
            floats(|m| m.first_x + m.mean_x),
            floats(|m| m.square_x),
            floats(|m| m.first_y + m.mean_y),
            floats(|m| m.square_y),
            floats(|m| m.product),
        ]
    }
}

/// The pair of each row; `None` where a value is NULL or the filter does not hold.
fn pairs<'a>(
    values: &'a [ArrayRef],
    filter: Option<&'a BooleanArray>,
) -> Result<impl Iterator<Item = Option<Moments>> + 'a> {
    let [x, y] = values else { return internal_err!("corr of {} columns", values.len()) };
    let (Some(x), Some(y)) =
        (x.as_primitive_opt::<Float64Type>(), y.as_primitive_opt::<Float64Type>())
    else {
        return internal_err!("corr of {} and {}", x.data_type(), y.data_type());
    };
    let holds = move |row: usize| filter.is_none_or(|f| f.is_valid(row) && f.value(row));
    let pair = move |row: usize| {
        let is_pair = x.is_valid(row) && y.is_valid(row) && holds(row);
        is_pair.then(|| Moments::one(x.value(row), y.value(row)))
    };
    Ok((0..x.len()).map(pair))
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.0.resize(total_num_groups, Moments::default());
        for (group, pair) in group_indices.iter().zip(pairs(values, opt_filter)?) {
            if let Some(pair) = pair {
                self.0[*group].add(pair);
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = emit_to.take_needed(&mut self.0);
        Ok(Arc::new(groups.iter().map(Moments::correlation).collect::<Float64Array>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(Groups::columns(&emit_to.take_needed(&mut self.0)))
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.0.resize(total_num_groups, Moments::default());
        let [count, floats @ ..] = values else { return internal_err!("corr: no state") };
        let count = count.as_primitive_opt::<UInt64Type>();
        let floats: Option<Vec<_>> =
            floats.iter().map(|column| column.as_primitive_opt::<Float64Type>()).collect();
        let (Some(count), Some([mean_x, square_x, mean_y, square_y, product])) =
            (count, floats.as_deref())
        else {
            return internal_err!("corr: a broken state of {} columns", values.len());
        };
        for (row, group) in group_indices.iter().enumerate() {
            self.0[*group].add(Moments {
                count: count.value(row),
                square_x: square_x.value(row),
                square_y: square_y.value(row),
                product: product.value(row),
                ..Moments::one(mean_x.value(row), mean_y.value(row))
            });
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let moments: Vec<Moments> =
            pairs(values, opt_filter)?.map(Option::unwrap_or_default).collect();
        Ok(Groups::columns(&moments))
    }

    fn size(&self) -> usize {
        self.0.capacity() * size_of::<Moments>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn correlation(groups: &mut Groups) -> Vec<Option<f64>> {
        let all = groups.evaluate(EmitTo::All).unwrap();
        all.as_primitive::<Float64Type>().iter().collect()
    }

    /// `numpy.corrcoef([1, 2, 3, 4, 5], [2, 1, 4, 3, 7])[0, 1]` is 0.8241633836921342, wherever the values lie.
    #[test]
    fn groups_far_from_zero_keep_their_digits() {
        let (xs, ys) = ([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 7.0]);
        let columns = |offset: f64, rows: std::ops::Range<usize>| -> [ArrayRef; 2] {
            [xs, ys].map(|v| {
                let moved = v[rows.clone()].iter().map(|v| v + offset);
                Arc::new(Float64Array::from_iter_values(moved)) as ArrayRef
            })
        };
        for offset in [0.0, 1e4, -1e8] {
            let mut whole = Groups(Vec::new());
            whole.update_batch(&columns(offset, 0..5), &[1; 5], None, 2).unwrap();
            // In parts, as other splits would have them.
            let mut part = Groups(Vec::new());
            part.update_batch(&columns(offset, 0..2), &[0, 0], None, 1).unwrap();
            let state = part.state(EmitTo::All).unwrap();
            let mut merged = Groups(Vec::new());
            merged.merge_batch(&state, &[1], 2).unwrap();
            let rows = merged.convert_to_state(&columns(offset, 2..5), None).unwrap();
            merged.merge_batch(&rows, &[1, 1, 1], 2).unwrap();
            for groups in [&mut whole, &mut merged] {
                let got = correlation(groups);
                assert_eq!(got[0], None);
                assert!((got[1].unwrap() - 0.8241633836921342).abs() < 1e-14, "{offset}: {got:?}");
            }
        }
    }

    #[test]
    fn nulls_and_filtered_rows_are_left_out() {
        let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), None, Some(2.0), Some(9.0)]));
        let y: ArrayRef =
            Arc::new(Float64Array::from(vec![Some(3.0), Some(0.0), Some(5.0), Some(1.0)]));
        let filter = BooleanArray::from(vec![Some(true), Some(true), Some(true), None]);
        let mut groups = Groups(Vec::new());
        groups.update_batch(&[x, y], &[0; 4], Some(&filter), 1).unwrap();
        assert!((correlation(&mut groups)[0].unwrap() - 1.0).abs() < 1e-15);
        let nan: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, 1.0]));
        let one: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0]));
        for (pair, want) in [([nan.clone(), one.clone()], false), ([nan.clone(), nan], true)] {
            let mut groups = Groups(Vec::new());
            groups.update_batch(&pair, &[0, 0], None, 1).unwrap();
            assert_eq!(correlation(&mut groups)[0].is_some_and(f64::is_nan), want);
        }
        let mut flat = Groups(Vec::new());
        flat.update_batch(
            &[one.clone(), Arc::new(Float64Array::from(vec![7.0, 7.0]))],
            &[0, 0],
            None,
            1,
        )
        .unwrap();
        assert_eq!(correlation(&mut flat), [None]);
    }
}
