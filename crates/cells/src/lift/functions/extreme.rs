//! `min` and `max`: DataFusion's, except that the result for a time in a calendar unknown to Arrow is a time of that
//! calendar, that grouped floats use SQL's order, and that nested values have one: DataFusion's (55.2) fails for those
//! that have NULL inside, and for maps.

mod groups;
mod nested;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, SetMonotonicity,
};

use super::inner::{hashed_by, of_inner};
use super::recomputed::Recomputed;
use groups::Floats;
use nested::Nested;

/// An aggregate that returns one of its argument's values, with the metadata of the argument's field.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extreme {
    inner: Arc<AggregateUDF>,
}

hashed_by!(Extreme, function => function.inner.name());

impl Extreme {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }

    fn is_min(&self) -> bool {
        self.inner.name() == "min"
    }
}

impl AggregateUDFImpl for Extreme {
    of_inner!(name, documentation, signature, coerce_types, return_type, state_fields);
    of_inner!(order_sensitivity);

    fn return_field(&self, args: &[FieldRef]) -> Result<FieldRef> {
        let field = self.inner.return_field(args)?;
        match args.first() {
            Some(arg) if !arg.metadata().is_empty() => {
                let field = Field::clone(&field).with_metadata(arg.metadata().clone());
                Ok(Arc::new(field))
            }
            _ => Ok(field),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.return_type().is_nested() {
            return Ok(Box::new(Nested::new(args.return_type(), self.is_min())?));
        }
        self.inner.accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if !args.return_type().is_nested() {
            return self.inner.create_sliding_accumulator(args);
        }
        let (of, is_min) = (args.return_type().clone(), self.is_min());
        Ok(Box::new(Recomputed::new(move || Ok(Box::new(Nested::new(&of, is_min)?)))))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.return_type().is_nested() && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let is_min = self.is_min();
        match args.return_type() {
            DataType::Float64 => Ok(Box::new(Floats::<Float64Type>::new(is_min, f64::total_cmp))),
            DataType::Float32 => Ok(Box::new(Floats::<Float32Type>::new(is_min, f32::total_cmp))),
            _ => self.inner.create_groups_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }
}
