//! `percentile_disc`, also called `quantile_disc`: the first value for which at least a part of the values is not
//! greater. It is a value of the column, so columns of any type that has an order have it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, concat, filter, is_not_null, sort_to_indices};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, Signature, Volatility,
};

use super::inner::scalar;
use super::percentile::part_of;
use super::recomputed;
use crate::lift::error::spoken;

const NAME: &str = "percentile_disc";

/// Approximate bytes of an array without its values.
const PART_BYTES: usize = 128;

/// Maximum rows of an array that is made of smaller ones.
const PART_ROWS_MAX: usize = 8192;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Discrete {
    signature: Signature,
    aliases: Vec<String>,
    documentation: Documentation,
}

impl Discrete {
    pub(super) fn new() -> Self {
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
            aliases: vec!["quantile_disc".to_string()],
            documentation: super::documented(
                "percentile_disc(part) WITHIN GROUP (ORDER BY x)",
                "The first value of x for which at least that part of the values is not greater. `quantile_disc(x, part)` is the same.",
            ),
        }
    }
}

/// True for types whose values have an order.
pub(super) fn has_order(of: &DataType) -> bool {
    !of.is_nested()
}

/// The error for values of a type without an order.
pub(super) fn unordered<T>(name: &str, of: &DataType) -> Result<T> {
    let of = spoken(&of.to_string());
    plan_err!("`{name}` takes values that can be ordered, not {of}")
}

/// The field of a value of the argument.
pub(super) fn field_of(name: &str, args: &[FieldRef]) -> Result<FieldRef> {
    let Some(arg) = args.first() else { return internal_err!("`{name}` has no argument") };
    let field = Field::new(name, arg.data_type().clone(), true);
    Ok(Arc::new(field.with_metadata(arg.metadata().clone())))
}

/// The values as a list of one row.
pub(super) fn list_of(values: ArrayRef) -> Result<ScalarValue> {
    if i32::try_from(values.len()).is_err() {
        return exec_err!("a group has {} values, and at most {}", values.len(), i32::MAX);
    }
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths([values.len()]);
    Ok(ScalarValue::List(Arc::new(ListArray::try_new(field, offsets, values, None)?)))
}

impl AggregateUDFImpl for Discrete {
    scalar!(name NAME, aliases, documentation, signature, type_of_first);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [of, part] if has_order(of) && (part.is_numeric() || part.is_null()) => {
                Ok(vec![of.clone(), DataType::Float64])
            }
            [of, _] if !has_order(of) => unordered(NAME, of),
            _ => plan_err!("`{NAME}` takes a column and one number from 0 to 1"),
        }
    }

    fn return_field(&self, args: &[FieldRef]) -> Result<FieldRef> {
        field_of(NAME, args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let of = args.return_field.data_type().clone();
        let values = Field::new_list_field(of, true);
        Ok(vec![Arc::new(Field::new_list("values", values, true))])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return not_impl_err!("DISTINCT in `{NAME}`");
        }
        let part = match part_of(&args)? {
            Some(part) if (0.0..=1.0).contains(&part) => part,
            Some(part) => return plan_err!("`{NAME}` takes a fraction from 0 to 1, not {part}"),
            None => return plan_err!("`{NAME}` takes a constant fraction from 0 to 1"),
        };
        let is_descending = args.order_bys.first().is_some_and(|sort| sort.options.descending);
        let of = args.return_type().clone();
        Ok(Box::new(Sorted { of, parts: Vec::new(), bytes: 0, part, is_descending }))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(recomputed::anew(Arc::new(Discrete::new().into()), args))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }
}

/// The values of a group, sorted at the end.
#[derive(Debug)]
struct Sorted {
    of: DataType,
    parts: Vec<ArrayRef>,
    bytes: usize,
    part: f64,
    is_descending: bool,
}

/// Bytes of an array. Groups share the buffers of a batch: each counts its own rows.
fn bytes_of(values: &ArrayRef) -> usize {
    let rows = values.to_data().get_slice_memory_size();
    PART_BYTES + rows.unwrap_or_else(|_| values.get_array_memory_size())
}

/// True if two arrays are merged.
fn is_small(last: &ArrayRef, next: &ArrayRef) -> bool {
    last.len() <= 2 * next.len() && last.len() + next.len() <= PART_ROWS_MAX
}

impl Sorted {
    /// Adds values. Where a batch has few rows of each group, arrays of few rows become one.
    fn push(&mut self, mut values: ArrayRef) -> Result<()> {
        while let Some(last) = self.parts.pop_if(|last| is_small(last, &values)) {
            self.bytes = self.bytes.saturating_sub(bytes_of(&last));
            values = concat(&[&*last, &*values])?;
        }
        self.bytes += bytes_of(&values);
        self.parts.push(values);
        Ok(())
    }

    fn all(&self) -> Result<Option<ArrayRef>> {
        let parts: Vec<&dyn Array> = self.parts.iter().map(|part| &**part).collect();
        if parts.is_empty() { Ok(None) } else { Ok(Some(concat(&parts)?)) }
    }
}

impl Accumulator for Sorted {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        let values = match values.null_count() {
            0 => values.clone(),
            _ => filter(values, &is_not_null(values)?)?,
        };
        if values.is_empty() { Ok(()) } else { self.push(values) }
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let Some(values) = self.all()? else { return ScalarValue::try_from(&self.of) };
        let wanted = self.part * values.len() as f64;
        // 100 * 0.07 is a little more than 7, and 100 * 0.29 a little less than 29.
        let nearest = wanted.round();
        let is_whole = (wanted - nearest).abs() <= 4.0 * f64::EPSILON * nearest;
        let rank = if is_whole { nearest } else { wanted.ceil() };
        let place = (rank as usize).clamp(1, values.len()) - 1;
        let options = SortOptions { descending: self.is_descending, nulls_first: false };
        let sorted = sort_to_indices(&values, Some(options), Some(place + 1))?;
        ScalarValue::try_from_array(&values, sorted.value(place) as usize)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = match self.all()? {
            Some(values) => values,
            None => arrow::array::new_empty_array(&self.of),
        };
        Ok(vec![list_of(values)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [lists] = states else { return internal_err!("`{NAME}`: a broken state") };
        for values in lists.as_list::<i32>().iter().flatten() {
            self.update_batch(&[values])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::Float64Array;

    #[test]
    fn groups_of_one_batch_count_their_own_rows() {
        let batch: ArrayRef = Arc::new(Float64Array::from_iter_values((0..4096).map(f64::from)));
        let of = DataType::Float64;
        let mut group = Sorted { of, parts: Vec::new(), bytes: 0, part: 0.5, is_descending: false };
        group.update_batch(&[batch.slice(7, 3)]).unwrap();
        assert!(group.size() < 1024, "{}", group.size());
        assert_eq!(group.evaluate().unwrap(), ScalarValue::from(8.0));
        for row in 10..1007 {
            group.update_batch(&[batch.slice(row, 1)]).unwrap();
        }
        assert!(group.parts.len() < 12 && group.size() < 12_000, "{}", group.size());
        assert_eq!(group.evaluate().unwrap(), ScalarValue::from(506.0));
    }
}
