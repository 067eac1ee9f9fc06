//! The elements of a list with their numbers, for lambdas of both: `list_transform(l, (x, i) -> x + i)`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, ListArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use super::inner::scalar;
use crate::lift::error::spoken;

pub(in crate::lift) const NUMBERED: &str = "tessera_numbered";

/// The fields of an element and of its number, from 1.
pub(in crate::lift) const PAIR: [&str; 2] = ["1", "2"];

/// A list of pairs.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Numbered {
    signature: Signature,
}

impl Default for Numbered {
    fn default() -> Self {
        Self { signature: Signature::user_defined(Volatility::Immutable) }
    }
}

fn fields(element: &FieldRef) -> Fields {
    let element = Field::clone(element).with_name(PAIR[0]).with_nullable(true);
    Fields::from(vec![element, Field::new(PAIR[1], DataType::Int64, false)])
}

impl ScalarUDFImpl for Numbered {
    scalar!(name NUMBERED, signature, type_by_field);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [list @ DataType::List(_)] => Ok(vec![list.clone()]),
            [
                DataType::LargeList(of)
                | DataType::FixedSizeList(of, _)
                | DataType::ListView(of)
                | DataType::LargeListView(of),
            ] => Ok(vec![DataType::List(Arc::clone(of))]),
            [DataType::Null] => Ok(vec![DataType::new_list(DataType::Null, true)]),
            [other] => plan_err!(
                "a lambda is applied to the elements of a list, not to {}",
                spoken(&other.to_string())
            ),
            _ => plan_err!("a lambda is applied to the elements of one list"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let [list] = args.arg_fields else {
            return internal_err!("{NUMBERED} of {} arguments", args.arg_fields.len());
        };
        let DataType::List(element) = list.data_type() else {
            return internal_err!("{NUMBERED} of {}", list.data_type());
        };
        let pairs = DataType::new_list(DataType::Struct(fields(element)), false);
        Ok(Arc::new(Field::new(self.name(), pairs, list.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let ([list], DataType::List(pair)) = (args.args.as_slice(), args.return_field.data_type())
        else {
            return internal_err!("{NUMBERED} of {} arguments", args.args.len());
        };
        let DataType::Struct(fields) = pair.data_type() else {
            return internal_err!("{NUMBERED} as {}", pair.data_type());
        };
        let is_scalar = matches!(list, ColumnarValue::Scalar(_));
        let lists = list.to_array(if is_scalar { 1 } else { args.number_rows })?;
        let Some(lists) = lists.as_list_opt::<i32>() else {
            return internal_err!("{NUMBERED} of {}", lists.data_type());
        };
        let offsets = lists.value_offsets();
        let (first, last) = (offsets[0], offsets[lists.len()]);
        let elements = lists.values().slice(first as usize, (last - first) as usize);
        let numbers: Int64Array =
            offsets.windows(2).flat_map(|ends| 1..=i64::from(ends[1] - ends[0])).collect();
        let columns: Vec<ArrayRef> = vec![elements, Arc::new(numbers)];
        let pairs = StructArray::try_new(fields.clone(), columns, None)?;
        let offsets: Vec<i32> = offsets.iter().map(|offset| offset - first).collect();
        let offsets = OffsetBuffer::new(offsets.into());
        let nulls = lists.nulls().cloned();
        let lists = ListArray::try_new(Arc::clone(pair), offsets, Arc::new(pairs), nulls)?;
        super::columnar(Arc::new(lists), is_scalar)
    }
}
