//! `histogram(x)`: how often each value occurs, as a map with the values in their order, as in DuckDB; NULL without
//! values. Of tensors it counts bins.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, MapArray, StructArray, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, Signature, Volatility,
};

use super::discrete::{has_order, list_of, unordered};
use super::inner::scalar;
use super::maps::map_of;
use super::occurrences::Occurrences;

const NAME: &str = "histogram";

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Histogram {
    signature: Signature,
    documentation: Documentation,
}

impl Histogram {
    pub(super) fn new() -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        let about = "How often each value of x occurs, as a map from the values to their counts.";
        Self { signature, documentation: super::documented("histogram(x)", about) }
    }
}

impl AggregateUDFImpl for Histogram {
    scalar!(name NAME, documentation, signature);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [DataType::Dictionary(_, values)] if has_order(values) => Ok(vec![*values.clone()]),
            [DataType::Null] => Ok(vec![DataType::Int64]),
            [of] if has_order(of) => Ok(vec![of.clone()]),
            [of] => unordered(NAME, of),
            _ => plan_err!("`{NAME}` of rows takes one column"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let key = types.first().cloned().unwrap_or(DataType::Null);
        let entries = [("key", key), ("value", DataType::UInt64)];
        let entries = entries.map(|(name, of)| Field::new(name, of, true));
        match map_of(&Fields::from(entries.to_vec())) {
            Some(map) => Ok(map),
            None => internal_err!("`{NAME}` has two columns"),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let [value] = args.input_fields else {
            return internal_err!("`{NAME}` takes one argument");
        };
        let list = |name: &str, of: DataType| {
            Arc::new(Field::new_list(name, Field::new_list_field(of, true), true))
        };
        let values = list("values", value.data_type().clone());
        Ok(vec![values, list("counts", DataType::UInt64)])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Counted::new(&args)?))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Counted::new(&args)?))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

#[derive(Debug)]
struct Counted {
    of: DataType,
    counts: Occurrences,
}

impl Counted {
    fn new(args: &AccumulatorArgs) -> Result<Self> {
        if args.is_distinct {
            return not_impl_err!("DISTINCT in `{NAME}`");
        }
        let Some(value) = args.expr_fields.first() else {
            return internal_err!("`{NAME}` of nothing");
        };
        let counts = Occurrences::new(value.data_type())?;
        Ok(Self { of: args.return_type().clone(), counts })
    }

    /// The values and their counts.
    fn columns(&self) -> Result<(ArrayRef, ArrayRef)> {
        // Texts of one array have at most so many bytes.
        if i32::try_from(self.counts.size()).is_err() {
            let (bytes, most) = (self.counts.size(), i32::MAX);
            return exec_err!("the values of a `{NAME}` have {bytes} bytes, and at most {most}");
        }
        let counts = self.counts.iter().map(|(_, count)| count);
        let counts = Arc::new(UInt64Array::from_iter_values(counts));
        Ok((self.counts.values(self.counts.iter().map(|(key, _)| key))?, counts))
    }
}

impl Accumulator for Counted {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        self.counts.add(values, None)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        self.counts.remove(values)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let (values, counts) = self.columns()?;
        if values.is_empty() {
            return ScalarValue::try_from(&self.of);
        }
        let DataType::Map(field, is_ordered) = &self.of else {
            return internal_err!("`{NAME}` as {}", self.of);
        };
        let DataType::Struct(fields) = field.data_type() else {
            return internal_err!("`{NAME}` as {}", self.of);
        };
        let offsets = OffsetBuffer::from_lengths([values.len()]);
        let entries = StructArray::try_new(fields.clone(), vec![values, counts], None)?;
        let map = MapArray::try_new(Arc::clone(field), offsets, entries, None, *is_ordered)?;
        Ok(ScalarValue::Map(Arc::new(map)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let (values, counts) = self.columns()?;
        Ok(vec![list_of(values)?, list_of(counts)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, counts] = states else { return internal_err!("`{NAME}`: a broken state") };
        let (values, counts) = (values.as_list::<i32>(), counts.as_list::<i32>());
        for (values, counts) in values.iter().zip(counts.iter()) {
            let (Some(values), Some(counts)) = (values, counts) else { continue };
            self.counts.add(&values, Some(counts.as_primitive::<UInt64Type>()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Array, Float64Array, StringArray};

    fn counted(of: DataType) -> Counted {
        let map = Histogram::new().return_type(std::slice::from_ref(&of)).unwrap();
        Counted { counts: Occurrences::new(&of).unwrap(), of: map }
    }

    fn shown(counted: &mut Counted) -> String {
        counted.evaluate().unwrap().to_string()
    }

    #[test]
    fn values_are_counted_in_their_order() {
        let values: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a")]));
        let mut all = counted(DataType::Utf8);
        assert_eq!(all.evaluate().unwrap(), ScalarValue::try_from(&all.of).unwrap());
        all.update_batch(&[Arc::clone(&values)]).unwrap();
        let state: Vec<ArrayRef> =
            all.state().unwrap().iter().map(|of| of.to_array().unwrap()).collect();
        all.merge_batch(&state).unwrap();
        assert_eq!(shown(&mut all), "[{a:2,b:2}]");
        all.retract_batch(&[values.slice(0, 2)]).unwrap();
        assert_eq!(shown(&mut all), "[{a:2,b:1}]");
        all.retract_batch(&[values.slice(0, 1)]).unwrap();
        assert_eq!(shown(&mut all), "[{a:2}]");
    }

    #[test]
    fn zeros_and_nans_are_one_value_each() {
        let values = Float64Array::from(vec![f64::NAN, -0.0, 0.0, -f64::NAN, 1.0]);
        let mut all = counted(DataType::Float64);
        all.update_batch(&[Arc::new(values)]).unwrap();
        let ScalarValue::Map(map) = all.evaluate().unwrap() else { unreachable!() };
        let counts: Vec<u64> = map.values().as_primitive::<UInt64Type>().values().to_vec();
        let keys = map.keys().as_primitive::<arrow::datatypes::Float64Type>().values().to_vec();
        assert_eq!(counts, [2, 1, 2]);
        assert!(keys[..2] == [0.0, 1.0] && keys[2].is_nan());
    }
}
