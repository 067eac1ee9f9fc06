//! DataFusion's aggregates over sliding frames, also for accumulators that cannot remove values.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ReversedUDAF, SetMonotonicity,
};

use super::inner::of_inner;
use super::recomputed;

/// Aggregates of DataFusion (55.2) that get sliding frames here, with or without DISTINCT.
pub(super) const NAMES: [&str; 10] = [
    "any_value",
    "approx_distinct",
    "approx_median",
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
];

/// DataFusion's aggregate, over any frame.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Framed {
    inner: Arc<AggregateUDF>,
}

impl Framed {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Framed {
    of_inner!(name, aliases, documentation, signature, coerce_types, return_type, accumulator);
    of_inner!(state_fields, order_sensitivity, groups_accumulator_supported);
    of_inner!(create_groups_accumulator);

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        // DataFusion (55.2) returns 0, not NULL, once all values have left the frame.
        match self.inner.name() {
            "bit_xor" => Ok(recomputed::anew(Arc::clone(&self.inner), args)),
            _ => recomputed::sliding(&self.inner, args),
        }
    }

    fn return_field(&self, args: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(args)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn with_beneficial_ordering(
        self: Arc<Self>,
        is_beneficial: bool,
    ) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        Arc::clone(self.inner.inner()).with_beneficial_ordering(is_beneficial)
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_udf()
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }
}
