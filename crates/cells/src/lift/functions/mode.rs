//! `mode`: the most frequent value. Of several the smallest one, or with `WITHIN GROUP (ORDER BY x DESC)` the greatest
//! one, so that it does not depend on the order of the rows.

mod counts;
mod near;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, GroupsAccumulator, Signature, Volatility,
};

use super::discrete::{field_of, has_order, unordered};
use super::inner::{of_frame, scalar};
use super::occurrences::Occurrences;
use counts::{Groups, Whole, kept_as};

const NAME: &str = "mode";

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Mode {
    signature: Signature,
    documentation: Documentation,
}

impl Mode {
    pub(super) fn new() -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        let about = "The most frequent value of x; of several the smallest one.";
        Self { signature, documentation: super::documented("mode(x)", about) }
    }
}

impl AggregateUDFImpl for Mode {
    scalar!(name NAME, documentation, signature, type_of_first);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            // Equal texts of two dictionaries may have different keys.
            [DataType::Dictionary(_, values)] if has_order(values) => Ok(vec![*values.clone()]),
            [of] if has_order(of) => Ok(vec![of.clone()]),
            [of] => unordered(NAME, of),
            _ => plan_err!("`{NAME}` takes one column"),
        }
    }

    fn return_field(&self, args: &[FieldRef]) -> Result<FieldRef> {
        field_of(NAME, args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let list = |name: &str, of: DataType| {
            Arc::new(Field::new_list(name, Field::new_list_field(of, true), true))
        };
        let values = list("values", kept_as(args.return_field.data_type()));
        Ok(vec![values, list("counts", DataType::UInt64)])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let (of, order) = of_call(&args)?;
        Ok(Box::new(Whole::new(of, order)?))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let (of, order) = of_call(&args)?;
        Ok(Box::new(Groups::new(of, order)?))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let (of, order) = of_call(&args)?;
        let (counts, is_descending) = (Occurrences::new(&of)?, order.descending);
        Ok(Box::new(Frame { of, counts, is_descending }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }
}

/// The type of the values of a call, and the order of those that are equally frequent.
fn of_call(args: &AccumulatorArgs) -> Result<(DataType, SortOptions)> {
    if args.is_distinct {
        return not_impl_err!("DISTINCT in `{NAME}`");
    }
    let descending = args.order_bys.first().is_some_and(|sort| sort.options.descending);
    Ok((args.return_type().clone(), SortOptions { descending, nulls_first: false }))
}

/// The most frequent value of a frame that slides.
#[derive(Debug)]
struct Frame {
    of: DataType,
    counts: Occurrences,
    is_descending: bool,
}

impl Accumulator for Frame {
    of_frame!();

    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        self.counts.add(values, None)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut best: Option<(&[u8], u64)> = None;
        for (key, count) in self.counts.iter() {
            let is_better =
                best.is_none_or(|(_, most)| count > most || (self.is_descending && count == most));
            if is_better {
                best = Some((key, count));
            }
        }
        match best {
            Some((key, _)) => ScalarValue::try_from_array(&self.counts.values([key])?, 0),
            None => ScalarValue::try_from(&self.of),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.size()
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        self.counts.remove(values)
    }
}
