//! `mode`: the most frequent value. Of several the smallest one, or with `WITHIN GROUP (ORDER BY x DESC)` the greatest
//! one, so that it does not depend on the order of the rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array, new_empty_array};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, UInt64Type};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDFImpl, Documentation, Signature, Volatility,
};

use super::discrete::{field_of, has_order, list_of};
use crate::lift::error::spoken;

const NAME: &str = "mode";

/// About the bytes of an entry without its key.
const ENTRY_BYTES: usize = 64;

/// The aggregate.
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
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            // Equal texts of two dictionaries may have different keys.
            [DataType::Dictionary(_, values)] if has_order(values) => Ok(vec![*values.clone()]),
            [of] if has_order(of) => Ok(vec![of.clone()]),
            [of] => {
                let of = spoken(&of.to_string());
                plan_err!("`{NAME}` takes values that have an order, and this is {of}")
            }
            _ => plan_err!("`{NAME}` takes one column"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field(&self, args: &[FieldRef]) -> Result<FieldRef> {
        field_of(NAME, args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let list = |name: &str, of: DataType| {
            Arc::new(Field::new_list(name, Field::new_list_field(of, true), true))
        };
        let values = list("values", args.return_field.data_type().clone());
        Ok(vec![values, list("counts", DataType::UInt64)])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if args.is_distinct {
            return not_impl_err!("DISTINCT in `{NAME}`");
        }
        let of = args.return_type().clone();
        let is_descending = args.order_bys.first().is_some_and(|sort| sort.options.descending);
        let rows = RowConverter::new(vec![SortField::new(of.clone())])?;
        Ok(Box::new(Counts { of, rows, counts: BTreeMap::new(), bytes: 0, is_descending }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// How often each value of a group occurs.
#[derive(Debug)]
struct Counts {
    of: DataType,
    rows: RowConverter,
    /// By values as rows of Arrow's row format, in their order.
    counts: BTreeMap<Box<[u8]>, u64>,
    /// Bytes of the entries.
    bytes: usize,
    is_descending: bool,
}

impl Counts {
    /// Adds values, each as often as `times` has it, or once.
    fn add(&mut self, values: &ArrayRef, times: Option<&UInt64Array>) -> Result<()> {
        let rows = self.rows.convert_columns(&[equal_bits(values)])?;
        for row in (0..values.len()).filter(|&row| values.is_valid(row)) {
            let more = times.map_or(1, |times| times.value(row));
            let key = rows.row(row).data();
            match self.counts.get_mut(key) {
                Some(count) => *count += more,
                None => {
                    self.bytes += key.len() + ENTRY_BYTES;
                    self.counts.insert(key.into(), more);
                }
            }
        }
        Ok(())
    }

    /// The values of some entries.
    fn values<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Result<ArrayRef> {
        let parser = self.rows.parser();
        let columns = self.rows.convert_rows(keys.map(|key| parser.parse(key)))?;
        match columns.into_iter().next() {
            Some(values) => Ok(values),
            None => Ok(new_empty_array(&self.of)),
        }
    }
}

/// The values with one zero and one NaN, which are equal.
fn equal_bits(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float64 => {
            let one = |v: f64| if v.is_nan() { f64::NAN } else { v + 0.0 };
            Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        DataType::Float32 => {
            let one = |v: f32| if v.is_nan() { f32::NAN } else { v + 0.0 };
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        _ => values.clone(),
    }
}

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        self.add(values, None)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut best: Option<(&[u8], u64)> = None;
        for (key, &count) in &self.counts {
            let is_better =
                best.is_none_or(|(_, most)| count > most || (self.is_descending && count == most));
            if is_better {
                best = Some((&**key, count));
            }
        }
        match best {
            Some((key, _)) => ScalarValue::try_from_array(&self.values(std::iter::once(key))?, 0),
            None => ScalarValue::try_from(&self.of),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.rows.size() + self.bytes
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = self.values(self.counts.keys().map(|key| &**key))?;
        let counts: UInt64Array = self.counts.values().copied().collect();
        Ok(vec![list_of(values)?, list_of(Arc::new(counts))?])
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        let rows = self.rows.convert_columns(&[equal_bits(values)])?;
        for row in (0..values.len()).filter(|&row| values.is_valid(row)) {
            let key = rows.row(row).data();
            match self.counts.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) => {
                    self.bytes -= key.len() + ENTRY_BYTES;
                    self.counts.remove(key);
                }
                None => return internal_err!("`{NAME}`: a value leaves that did not come"),
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, counts] = states else { return internal_err!("`{NAME}`: a broken state") };
        let (values, counts) = (values.as_list::<i32>(), counts.as_list::<i32>());
        for (values, counts) in values.iter().zip(counts.iter()) {
            let (Some(values), Some(counts)) = (values, counts) else { continue };
            self.add(&values, Some(counts.as_primitive::<UInt64Type>()))?;
        }
        Ok(())
    }
}
