//! `arg_max(x, y) OVER …` and `arg_min`: the x of the first row with the greatest or the smallest y. Rows in which x or
//! y is NULL do not count. Without OVER they are `first_value` with an order.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, make_comparator};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Signature, Volatility};

use super::discrete::field_of;
use super::inner::scalar;
use super::recomputed;
use crate::lift::labels::canonical;
use crate::lift::names::{ARG_MAX, ARG_MIN};
use crate::lift::nested::ORDER;

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ValueAt {
    is_max: bool,
    signature: Signature,
}

impl ValueAt {
    pub(super) fn new(is_max: bool) -> Self {
        Self { is_max, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for ValueAt {
    scalar!(signature, type_of_first);

    fn name(&self) -> &str {
        if self.is_max { ARG_MAX } else { ARG_MIN }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [_, _] => Ok(types.to_vec()),
            _ => plan_err!("`arg_max` and `arg_min` take two columns"),
        }
    }

    fn return_field(&self, args: &[FieldRef]) -> Result<FieldRef> {
        field_of(self.name(), args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let [value, key] = args.input_fields else {
            return internal_err!("{} takes two arguments", self.name());
        };
        let field =
            |name: &str, of: &FieldRef| Arc::new(Field::new(name, of.data_type().clone(), true));
        Ok(vec![field("value", value), field("key", key)])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let [value, key] = args.expr_fields else {
            return internal_err!("{} takes two arguments", self.name());
        };
        Ok(Box::new(Best {
            is_max: self.is_max,
            value: ScalarValue::try_from(value.data_type())?,
            key: ScalarValue::try_from(key.data_type())?,
        }))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(recomputed::anew(Arc::new(ValueAt::new(self.is_max).into()), args))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// The first row with the greatest key, or the least one, among those with a value and a key; `None` if that key is not
/// beyond `best`.
pub(super) fn better_row(
    values: &ArrayRef,
    keys: &ArrayRef,
    is_max: bool,
    best: &ScalarValue,
) -> Result<Option<usize>> {
    let wanted = if is_max { Ordering::Greater } else { Ordering::Less };
    let compare = make_comparator(keys.as_ref(), keys.as_ref(), ORDER)?;
    let mut first: Option<usize> = None;
    for row in (0..keys.len()).filter(|&row| keys.is_valid(row) && values.is_valid(row)) {
        if first.is_none_or(|first| compare(row, first) == wanted) {
            first = Some(row);
        }
    }
    let Some(row) = first.filter(|_| !best.is_null()) else { return Ok(first) };
    let best = best.to_array()?;
    let is_better = make_comparator(keys.as_ref(), best.as_ref(), ORDER)?(row, 0) == wanted;
    Ok(is_better.then_some(row))
}

/// The best row so far; its key is NULL if there is none.
#[derive(Debug)]
struct Best {
    is_max: bool,
    value: ScalarValue,
    key: ScalarValue,
}

impl Accumulator for Best {
    fn update_batch(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let [values, keys] = columns else { return internal_err!("a value without a key") };
        // -0.0 equals 0.0, as in ORDER BY.
        let keys = &canonical(keys);
        if let Some(row) = better_row(values, keys, self.is_max, &self.key)? {
            // Slices would keep the whole batch in memory.
            self.value = ScalarValue::try_from_array(values, row)?.compacted();
            self.key = ScalarValue::try_from_array(keys, row)?.compacted();
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size() + self.key.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.value.clone(), self.key.clone()])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}
