//! `string_agg` with any orders in one block.
//!
//! DataFusion's `string_agg` sorts the values of a group itself, like `array_agg`, but still requires ordered rows, so
//! two calls with different orders are refused. This one requires no order of the rows.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl};

use super::inner::of_inner;
use super::recomputed;

/// DataFusion's `string_agg`, without its requirement.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Joined {
    inner: Arc<AggregateUDF>,
}

impl Joined {
    pub(super) fn new(inner: Arc<AggregateUDF>) -> Self {
        Self { inner }
    }
}

impl AggregateUDFImpl for Joined {
    of_inner!(name, aliases, documentation, signature, return_type, accumulator, state_fields);
    of_inner!(groups_accumulator_supported, create_groups_accumulator);

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        recomputed::sliding(&self.inner, args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::SoftRequirement
    }

    fn with_beneficial_ordering(
        self: Arc<Self>,
        _: bool,
    ) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        // It sorts its values whether the rows are ordered or not.
        Ok(Some(self))
    }
}
