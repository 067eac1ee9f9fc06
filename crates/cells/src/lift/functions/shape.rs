//! `product`, `skewness`, `kurtosis` and `kurtosis_pop` of numbers, as in DuckDB; NaN where a value is NaN, and where the
//! moments of infinite values are undefined.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Signature, Volatility,
};

use super::inner::scalar;
use super::recomputed;
use crate::lift::error::spoken;

/// The functions: name, arguments, description, and the result of the moments of all values.
static STATISTICS: [(&str, &str, &str, Finish); 4] = [
    ("kurtosis", "kurtosis(x)", "The excess kurtosis of a sample.", Moments::kurtosis),
    ("kurtosis_pop", "kurtosis_pop(x)", "The excess kurtosis of a population.", |m| {
        (m.count > 1.0 && m.squares != 0.0).then(|| m.peak() - 3.0)
    }),
    ("product", "product(x)", "The product of all values.", |m| {
        (m.count > 0.0).then_some(m.product)
    }),
    ("skewness", "skewness(x)", "The skewness of a sample.", Moments::skewness),
];

type Finish = fn(&Moments) -> Option<f64>;

pub(super) fn functions() -> impl Iterator<Item = AggregateUDF> {
    (0..STATISTICS.len()).map(|of| Shape::new(of).into())
}

/// The function in that place of [`STATISTICS`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct Shape {
    of: usize,
    signature: Signature,
    documentation: Documentation,
}

impl Shape {
    fn new(of: usize) -> Self {
        let (_, syntax, about, _) = STATISTICS[of];
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { of, signature, documentation: super::documented(syntax, about) }
    }
}

impl AggregateUDFImpl for Shape {
    scalar!(documentation, signature);

    fn name(&self) -> &str {
        STATISTICS[self.of].0
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [of] if of.is_numeric() || of.is_null() => Ok(vec![DataType::Float64]),
            [of] => {
                let of = spoken(&of.to_string());
                plan_err!("`{}` takes numbers, not {of}", self.name())
            }
            _ => plan_err!("`{}` takes one column", self.name()),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn state_fields(&self, _: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let names = ["count", "first", "mean", "squares", "cubes", "fourths", "product"];
        let field = |name| Arc::new(Field::new(name, DataType::Float64, true));
        Ok(names.map(field).into())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return not_impl_err!("DISTINCT in `{}`", self.name());
        }
        let (.., finish) = STATISTICS[self.of];
        Ok(Box::new(All { moments: Moments::default(), finish }))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(recomputed::anew(Arc::new(Shape::new(self.of).into()), args))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Moments of values about their mean. The mean is counted from the first value, so that rounding is in proportion to
/// the spread of the values and not to their distance from zero.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    count: f64,
    first: f64,
    mean: f64,
    /// Sums of the second, third and fourth powers of the deviations.
    squares: f64,
    cubes: f64,
    fourths: f64,
    product: f64,
}

impl Moments {
    fn of(x: f64) -> Self {
        Moments { count: 1.0, first: x, product: x, ..Moments::default() }
    }

    /// Adds the values of another part (Pébay: Formulas for robust, one-pass parallel computation of covariances and
    /// arbitrary-order statistical moments, 2008).
    fn add(&mut self, other: Moments) {
        if self.count == 0.0 || other.count == 0.0 {
            if self.count == 0.0 {
                *self = other;
            }
            return;
        }
        let (a, b) = (self.count, other.count);
        let n = a + b;
        let d = (other.first - self.first) + (other.mean - self.mean);
        let share = d / n;
        self.fourths += other.fourths
            + d * share * share * share * a * b * (a * a - a * b + b * b)
            + 6.0 * share * share * (a * a * other.squares + b * b * self.squares)
            + 4.0 * share * (a * other.cubes - b * self.cubes);
        self.cubes += other.cubes
            + d * share * share * a * b * (a - b)
            + 3.0 * share * (a * other.squares - b * self.squares);
        self.squares += other.squares + d * share * a * b;
        self.mean += share * b;
        self.count = n;
        self.product *= other.product;
    }

    /// The fourth moment over the square of the second one.
    fn peak(&self) -> f64 {
        self.count * self.fourths / (self.squares * self.squares)
    }

    fn kurtosis(&self) -> Option<f64> {
        let n = self.count;
        let scale = (n - 1.0) / ((n - 2.0) * (n - 3.0));
        (n > 3.0 && self.squares != 0.0)
            .then(|| scale * ((n + 1.0) * self.peak() - 3.0 * (n - 1.0)))
    }

    fn skewness(&self) -> Option<f64> {
        let n = self.count;
        let variance = self.squares / n;
        let scale = (n * (n - 1.0)).sqrt() / (n - 2.0);
        (n > 2.0 && self.squares != 0.0)
            .then(|| scale * (self.cubes / n) / (variance * variance.sqrt()))
    }

    fn parts(&self) -> [f64; 7] {
        let Moments { count, first, mean, squares, cubes, fourths, product } = *self;
        [count, first, mean, squares, cubes, fourths, product]
    }
}

#[derive(Debug)]
struct All {
    moments: Moments,
    finish: Finish,
}

impl Accumulator for All {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first().and_then(|v| v.as_primitive_opt::<Float64Type>()) else {
            return internal_err!("moments of {} columns", values.len());
        };
        values.iter().flatten().for_each(|x| self.moments.add(Moments::of(x)));
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let result = (self.finish)(&self.moments);
        // NaN without a sign.
        Ok(ScalarValue::Float64(result.map(|x| if x.is_nan() { f64::NAN } else { x })))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(self.moments.parts().map(ScalarValue::from).into())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let columns: Option<Vec<_>> =
            states.iter().map(|column| column.as_primitive_opt::<Float64Type>()).collect();
        let Some([count, first, mean, squares, cubes, fourths, product]) = columns.as_deref()
        else {
            return internal_err!("moments with a broken state of {} columns", states.len());
        };
        for row in 0..count.values().len() {
            self.moments.add(Moments {
                count: count.value(row),
                first: first.value(row),
                mean: mean.value(row),
                squares: squares.value(row),
                cubes: cubes.value(row),
                fourths: fourths.value(row),
                product: product.value(row),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use arrow::array::Float64Array;

    fn of(name: &str, parts: &[&[Option<f64>]]) -> Option<f64> {
        let (.., finish) = STATISTICS.iter().find(|(known, ..)| *known == name).unwrap();
        let new = || All { moments: Moments::default(), finish: *finish };
        let mut all = new();
        for values in parts {
            let mut part = new();
            part.update_batch(&[Arc::new(Float64Array::from(values.to_vec()))]).unwrap();
            let state = part.state().unwrap();
            let state: Vec<ArrayRef> = state.iter().map(|of| of.to_array().unwrap()).collect();
            all.merge_batch(&state).unwrap();
        }
        match all.evaluate().unwrap() {
            ScalarValue::Float64(value) => value,
            other => panic!("{other}"),
        }
    }

    /// The values are those of DuckDB. Far from zero they are the same, where DuckDB's sums of powers lose digits.
    #[test]
    fn moments_are_those_of_all_parts() {
        let [a, b, c, d] = [31.0, 4.0, 5.0, 9.0].map(Some);
        for (name, want) in [
            ("skewness", 1.833780252690545),
            ("kurtosis", 3.3767795790612487),
            ("kurtosis_pop", -0.7497627227918335),
            ("product", 5580.0),
        ] {
            for parts in [&[&[a, b, c, d][..]][..], &[&[a], &[], &[None, b, c], &[d]]] {
                let got = of(name, parts).unwrap();
                assert!((got - want).abs() < 1e-12 * want.abs(), "{name}: {got}");
            }
            if name != "product" {
                let far = [a, b, c, d].map(|x| x.map(|x| x + 1e9));
                let got = of(name, &[&far[..1], &far[1..]]).unwrap();
                assert!((got - want).abs() < 1e-12 * want.abs(), "{name}: {got}");
            }
        }
    }

    #[test]
    fn few_or_equal_values_have_no_shape() {
        let one = Some(1.0);
        assert_eq!(of("product", &[&[None]]), None);
        assert_eq!(of("skewness", &[&[one, Some(2.0)]]), None);
        assert_eq!(of("kurtosis", &[&[one, Some(2.0), Some(4.0)]]), None);
        assert_eq!(of("kurtosis_pop", &[&[one]]), None);
        for name in ["skewness", "kurtosis", "kurtosis_pop"] {
            assert_eq!(of(name, &[&[one; 5]]), None, "{name}");
            for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                for values in [[one, Some(2.0), Some(odd), one], [Some(odd), one, one, one]] {
                    assert!(of(name, &[&values]).unwrap().is_nan(), "{name} {odd}");
                }
            }
        }
    }
}
