//! Statistics of pairs by co-moments. DataFusion's grouped `corr` adds squares, which cancel when values are far from
//! zero; its other statistics have no grouped form.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, UInt64Type};
use datafusion::common::{Result, internal_datafusion_err, internal_err, not_impl_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator,
};

use super::inner::{holds, of_inner};
use super::moments::{Blocks, Column, Summary};
use super::sliding::{Frame, Partial};

type Finish = fn(&Moments) -> Option<f64>;

/// Statistics by name. Regressions take (y, x), so the `x` of their moments is y.
pub(super) static STATISTICS: [(&str, Finish); 9] = [
    ("corr", Moments::correlation),
    ("covar_samp", |m| (m.count > 1).then(|| m.product / (m.count - 1) as f64)),
    ("covar_pop", |m| (m.count > 0).then(|| m.product / m.count as f64)),
    ("regr_slope", Moments::slope),
    ("regr_intercept", |m| {
        let slope = m.slope().filter(|slope| !slope.is_nan())?;
        Some((m.first_x + m.mean_x) - slope * (m.first_y + m.mean_y))
    }),
    ("regr_r2", |m| {
        let slope = m.slope().filter(|_| m.count > 1 && m.square_y != 0.0)?;
        // A line through equal values has no residue.
        Some(if m.square_x == 0.0 { 1.0 } else { slope * (m.product / m.square_x) })
    }),
    ("regr_sxx", |m| (m.count > 0).then_some(m.square_y)),
    ("regr_syy", |m| (m.count > 0).then_some(m.square_x)),
    ("regr_sxy", |m| (m.count > 0).then_some(m.product)),
];

/// The function of one of these names, with the signature of DataFusion's.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Correlation {
    inner: Arc<AggregateUDF>,
}

impl Correlation {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }

    fn finish(&self, args: &AccumulatorArgs) -> Result<Finish> {
        let name = self.inner.name();
        if args.is_distinct {
            return not_impl_err!("DISTINCT in `{name}`");
        }
        let known = STATISTICS.iter().find(|(known, _)| *known == name);
        known.map(|(_, finish)| *finish).ok_or_else(|| {
            internal_datafusion_err!("`{name}` is not one of the statistics of pairs")
        })
    }
}

impl AggregateUDFImpl for Correlation {
    of_inner!(name, documentation, aliases, signature, coerce_types, return_type);

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |part, of| Arc::new(Field::new(format_state_name(args.name, part), of, true));
        let floats = ["first_x", "mean_x", "square_x", "first_y", "mean_y", "square_y", "product"];
        let floats = floats.map(|part| field(part, DataType::Float64));
        Ok([field("count", DataType::UInt64)].into_iter().chain(floats).collect())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let finish = self.finish(&args)?;
        Ok(Box::new(Blocks::<2, Moments>::new(move |all| finish(&all))))
    }

    fn groups_accumulator_supported(&self, _: AccumulatorArgs) -> bool {
        true
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Groups { moments: Vec::new(), finish: self.finish(&args)? }))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let finish = self.finish(&args)?;
        Ok(Box::new(Frame::new(move |_, all: Moments| finish(&all))))
    }
}

/// A quotient; NaN without a sign, which that of zeros has.
fn ratio(x: f64, y: f64) -> f64 {
    let quotient = x / y;
    if quotient.is_nan() { f64::NAN } else { quotient }
}

/// Moments of the pairs of a group about their means. Means are counted from the first pair, so that rounding is in
/// proportion to the spread of the values and not to their distance from zero.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
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
        // The deviations are 0; NaN and infinite values have none.
        let mean = |v: f64| if v.is_finite() { 0.0 } else { f64::NAN };
        let (mean_x, mean_y) = (mean(x), mean(y));
        Moments {
            count: 1,
            first_x: x,
            first_y: y,
            mean_x,
            square_x: mean_x,
            mean_y,
            square_y: mean_y,
            product: mean_x + mean_y,
        }
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

    /// NULL of no pairs, NaN if a column has a value that is not finite, or only equal values.
    fn correlation(&self) -> Option<f64> {
        (self.count > 0).then(|| ratio(self.product, self.square_x.sqrt() * self.square_y.sqrt()))
    }

    /// The slope of x over y: NULL of no pairs, NaN if a value is not finite, or if all y are equal.
    fn slope(&self) -> Option<f64> {
        (self.count > 0).then(|| ratio(self.product, self.square_y))
    }
}

impl Partial for Moments {
    type Value = Moments;

    fn of(pair: Moments) -> Self {
        pair
    }

    fn with(mut self, other: Self) -> Self {
        self.add(other);
        self
    }

    fn values(columns: &[ArrayRef]) -> Result<Vec<Moments>> {
        Ok(pairs(columns, None)?.flatten().collect())
    }
}

impl Summary<2> for Moments {
    fn of_block([x, y]: [&[f64]; 2]) -> Self {
        let count = x.len() as u64;
        let (x, y) = (Column::of(x), Column::of(y));
        // The mean of a column with a value that is not finite is NaN, as for one pair.
        let mean = |column: &Column| if column.mean.is_finite() { column.mean } else { f64::NAN };
        Moments {
            count,
            first_x: x.first,
            first_y: y.first,
            mean_x: mean(&x),
            square_x: x.product(&x),
            mean_y: mean(&y),
            square_y: y.product(&y),
            product: x.product(&y),
        }
    }

    fn merged(self, behind: Self) -> Self {
        self.with(behind)
    }

    fn state(all: &[Self]) -> Vec<ArrayRef> {
        let floats = |of: fn(&Moments) -> f64| -> ArrayRef {
            Arc::new(Float64Array::from_iter_values(all.iter().map(of)))
        };
        vec![
            Arc::new(UInt64Array::from_iter_values(all.iter().map(|m| m.count))),
            floats(|m| m.first_x),
            floats(|m| m.mean_x),
            floats(|m| m.square_x),
            floats(|m| m.first_y),
            floats(|m| m.mean_y),
            floats(|m| m.square_y),
            floats(|m| m.product),
        ]
    }

    fn of_state(columns: &[ArrayRef]) -> Result<Vec<Self>> {
        let [count, floats @ ..] = columns else {
            return internal_err!("a statistic of pairs without a state");
        };
        let count = count.as_primitive_opt::<UInt64Type>();
        let floats: Option<Vec<_>> =
            floats.iter().map(|column| column.as_primitive_opt::<Float64Type>()).collect();
        let (Some(count), Some([first_x, mean_x, square_x, first_y, mean_y, square_y, product])) =
            (count, floats.as_deref())
        else {
            return internal_err!(
                "a statistic of pairs with a broken state of {} columns",
                columns.len()
            );
        };
        let of = |row: usize| Moments {
            count: count.value(row),
            first_x: first_x.value(row),
            first_y: first_y.value(row),
            mean_x: mean_x.value(row),
            square_x: square_x.value(row),
            mean_y: mean_y.value(row),
            square_y: square_y.value(row),
            product: product.value(row),
        };
        Ok((0..count.len()).map(of).collect())
    }
}

struct Groups {
    moments: Vec<Moments>,
    finish: Finish,
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
    let pair = move |row: usize| {
        let is_pair = x.is_valid(row) && y.is_valid(row) && holds(filter, row);
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
        self.moments.resize(total_num_groups, Moments::default());
        for (group, pair) in group_indices.iter().zip(pairs(values, opt_filter)?) {
            if let Some(pair) = pair {
                self.moments[*group].add(pair);
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = emit_to.take_needed(&mut self.moments);
        Ok(Arc::new(groups.iter().map(self.finish).collect::<Float64Array>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(Moments::state(&emit_to.take_needed(&mut self.moments)))
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.moments.resize(total_num_groups, Moments::default());
        for (group, behind) in group_indices.iter().zip(Moments::of_state(values)?) {
            self.moments[*group].add(behind);
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
        Ok(Moments::state(&moments))
    }

    fn size(&self) -> usize {
        self.moments.capacity() * size_of::<Moments>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::common::ScalarValue;

    fn of(name: &str) -> Groups {
        let (_, finish) = STATISTICS.iter().find(|(known, _)| *known == name).unwrap();
        Groups { moments: Vec::new(), finish: *finish }
    }

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
            let mut whole = of("corr");
            whole.update_batch(&columns(offset, 0..5), &[1; 5], None, 2).unwrap();
            // In parts, as other splits would have them.
            let mut part = of("corr");
            part.update_batch(&columns(offset, 0..2), &[0, 0], None, 1).unwrap();
            let state = part.state(EmitTo::All).unwrap();
            let mut merged = of("corr");
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
        let mut groups = of("corr");
        groups.update_batch(&[x, y], &[0; 4], Some(&filter), 1).unwrap();
        assert!((correlation(&mut groups)[0].unwrap() - 1.0).abs() < 1e-15);
        let nan: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, 1.0]));
        let one: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0]));
        for pair in [[nan.clone(), one], [nan.clone(), nan]] {
            let mut groups = of("corr");
            groups.update_batch(&pair, &[0, 0], None, 1).unwrap();
            assert!(correlation(&mut groups)[0].is_some_and(f64::is_nan));
        }
        for name in ["covar_pop", "regr_syy", "regr_sxy"] {
            let pair: [ArrayRef; 2] =
                [f64::NAN, 1.0].map(|v| Arc::new(Float64Array::from(vec![v])) as ArrayRef);
            let mut groups = of(name);
            let finish = groups.finish;
            groups.update_batch(&pair, &[0], None, 1).unwrap();
            assert!(correlation(&mut groups)[0].unwrap().is_nan(), "{name}");
            let mut all = Blocks::<2, Moments>::new(move |all| finish(&all));
            all.update_batch(&pair).unwrap();
            let ScalarValue::Float64(Some(got)) = all.evaluate().unwrap() else { panic!("{name}") };
            assert!(got.is_nan(), "{name}: {got}");
        }
    }

    #[test]
    fn equal_values_have_no_line_and_a_line_through_them_has_no_residue() {
        let column =
            |values: [f64; 2]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
        let (rising, flat) = (column([1.0, 2.0]), column([7.0, 7.0]));
        // DuckDB's values of y, x.
        for (name, of_flat_y, of_flat_x) in [
            ("corr", Some(f64::NAN), Some(f64::NAN)),
            ("regr_slope", Some(0.0), Some(f64::NAN)),
            ("regr_intercept", Some(7.0), None),
            ("regr_r2", Some(1.0), None),
        ] {
            for (pair, want) in [([&flat, &rising], of_flat_y), ([&rising, &flat], of_flat_x)] {
                let mut groups = of(name);
                groups.update_batch(&pair.map(Arc::clone), &[0, 0], None, 1).unwrap();
                let got = correlation(&mut groups)[0];
                assert_eq!(got.map(f64::to_bits), want.map(f64::to_bits), "{name}: {got:?}");
            }
        }
    }

    /// Expected values are those of `numpy.corrcoef`, `numpy.cov` and `scipy.stats.linregress` of y = [2, 1, 4, 3, 7] over
    /// x = [1, 2, 3, 4, 5].
    #[test]
    fn statistics_of_all_rows_and_of_groups() {
        let ys: ArrayRef = Arc::new(Float64Array::from(vec![2.0, 1.0, 4.0, 3.0, 7.0]));
        let xs: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 3.0, 4.0, 5.0]));
        for (name, want) in [
            ("corr", 0.8241633836921342),
            ("covar_samp", 3.0),
            ("covar_pop", 2.4),
            ("regr_slope", 1.2),
            ("regr_intercept", -0.2),
            ("regr_r2", 0.679245283018868),
            ("regr_sxx", 10.0),
            ("regr_syy", 21.2),
            ("regr_sxy", 12.0),
        ] {
            let mut groups = of(name);
            let finish = groups.finish;
            groups.update_batch(&[ys.clone(), xs.clone()], &[0; 5], None, 1).unwrap();
            let got = correlation(&mut groups)[0].unwrap();
            assert!((got - want).abs() < 1e-14, "{name}: {got}");
            let mut all = Blocks::<2, Moments>::new(move |all| finish(&all));
            assert!(all.evaluate().unwrap().is_null(), "{name} of nothing");
            all.update_batch(&[ys.clone(), xs.clone()]).unwrap();
            let ScalarValue::Float64(Some(got)) = all.evaluate().unwrap() else { panic!("{name}") };
            assert!((got - want).abs() < 1e-14, "{name}: {got}");
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_ends_of_batches() {
        let xs: Float64Array =
            (0..3000).map(|i| (i % 13 != 5).then(|| 1e6 + f64::from(i * i % 997))).collect();
        let ys: Float64Array =
            (0..3000).map(|i| (i % 7 != 2).then(|| f64::from(i).sqrt())).collect();
        let columns: [ArrayRef; 2] = [Arc::new(xs), Arc::new(ys)];
        let of_batches = |rows: usize| {
            let mut all = Blocks::<2, Moments>::new(|all| all.correlation());
            for start in (0..3000).step_by(rows) {
                let rows = rows.min(3000 - start);
                all.update_batch(&columns.each_ref().map(|c| c.slice(start, rows))).unwrap();
            }
            all.state().unwrap()
        };
        let whole = of_batches(3000);
        for rows in [1, 255, 256, 1000] {
            assert_eq!(of_batches(rows), whole, "batches of {rows}");
        }
    }
}
