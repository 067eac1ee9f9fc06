//! Functions that the rewrite inserts into a plan; no text can produce their names.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, StructArray,
};
use arrow::datatypes::{DataType, FieldRef, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::super::functions::{hashed_by, scalar};

/// True for floats, and for lists, structs and maps that hold some.
pub(super) fn holds_floats(kind: &DataType) -> bool {
    match kind {
        DataType::Float64 | DataType::Float32 => true,
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::FixedSizeList(of, _)
        | DataType::Map(of, _) => holds_floats(of.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| holds_floats(field.data_type())),
        _ => false,
    }
}

/// `one_nan(x)`: x, or NaN without a sign; `one_zero(x)`: the same, and -0.0 is 0.0. Both also inside of nested values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plain {
    zero: bool,
    signature: Signature,
}

hashed_by!(Plain, function => function.zero);

impl Plain {
    pub(super) fn udf(zero: bool) -> ScalarUDF {
        let signature = Signature::any(1, Volatility::Immutable);
        ScalarUDF::new_from_impl(Plain { zero, signature })
    }
}

/// The field of the only argument, which these functions return.
fn kept(args: &ReturnFieldArgs<'_>) -> Result<FieldRef> {
    match args.arg_fields {
        [field] => Ok(field.clone()),
        _ => internal_err!("a function of one argument has {}", args.arg_fields.len()),
    }
}

impl ScalarUDFImpl for Plain {
    scalar!(signature);

    fn name(&self) -> &str {
        if self.zero { "one_zero" } else { "one_nan" }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Float64))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        kept(&args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(value) = args.args.into_iter().next() else {
            return exec_err!("{} takes one argument", self.name());
        };
        Ok(match value {
            ColumnarValue::Array(array) => ColumnarValue::Array(self.plain(array)?),
            ColumnarValue::Scalar(scalar) => {
                let array = self.plain(scalar.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)
            }
        })
    }
}

impl Plain {
    fn plain(&self, array: ArrayRef) -> Result<ArrayRef> {
        // Adding 0.0 clears the sign of -0.0.
        let zero = if self.zero { 0.0 } else { -0.0 };
        Ok(match array.data_type() {
            DataType::Float64 => {
                let x = array.as_primitive::<Float64Type>();
                if self.is_plain(x.values()) {
                    array
                } else {
                    Arc::new(
                        x.unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + zero }),
                    )
                }
            }
            DataType::Float32 => {
                let x = array.as_primitive::<Float32Type>();
                let zero = zero as f32;
                if self.is_plain(x.values()) {
                    array
                } else {
                    Arc::new(
                        x.unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + zero }),
                    )
                }
            }
            kind if holds_floats(kind) => self.inside(&array)?,
            _ => array,
        })
    }

    /// A nested value with plain floats in it.
    fn inside(&self, array: &ArrayRef) -> Result<ArrayRef> {
        let plain: ArrayRef = match array.data_type() {
            DataType::List(_) => {
                let (field, offsets, values, nulls) = array.as_list::<i32>().clone().into_parts();
                Arc::new(ListArray::try_new(field, offsets, self.plain(values)?, nulls)?)
            }
            DataType::LargeList(_) => {
                let (field, offsets, values, nulls) = array.as_list::<i64>().clone().into_parts();
                Arc::new(LargeListArray::try_new(field, offsets, self.plain(values)?, nulls)?)
            }
            // The length of an array of lists without elements is that of its NULLs.
            DataType::FixedSizeList(_, size) if *size > 0 => {
                let (field, size, values, nulls) = array.as_fixed_size_list().clone().into_parts();
                let values = self.plain(values)?;
                Arc::new(FixedSizeListArray::try_new(field, size, values, nulls)?)
            }
            DataType::Map(..) => {
                let (field, offsets, entries, nulls, ordered) = array.as_map().clone().into_parts();
                let entries = self.fields(entries)?;
                Arc::new(MapArray::try_new(field, offsets, entries, nulls, ordered)?)
            }
            DataType::Struct(_) => Arc::new(self.fields(array.as_struct().clone())?),
            _ => array.clone(),
        };
        Ok(plain)
    }

    fn fields(&self, of: StructArray) -> Result<StructArray> {
        let (fields, arrays, nulls) = of.into_parts();
        let arrays = arrays.into_iter().map(|array| self.plain(array)).collect::<Result<_>>()?;
        Ok(StructArray::try_new(fields, arrays, nulls)?)
    }

    /// True if there is no NaN, and no zero where its sign counts. No branch, so that the loop is vectorised.
    fn is_plain<T: Copy + PartialEq + Default>(&self, values: &[T]) -> bool {
        #[expect(clippy::eq_op, reason = "a NaN is not equal to itself")]
        let is_nan = |v: T| v != v;
        match self.zero {
            true => !values.iter().fold(false, |any, &v| any | is_nan(v) | (v == T::default())),
            false => !values.iter().fold(false, |any, &v| any | is_nan(v)),
        }
    }
}

/// `member(x IN (…))`: returns its argument, which the optimiser then does not merge with another list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Member {
    signature: Signature,
}

hashed_by!(Member, function => function.name());

impl Member {
    pub(super) fn udf() -> ScalarUDF {
        let signature = Signature::uniform(1, vec![DataType::Boolean], Volatility::Immutable);
        ScalarUDF::new_from_impl(Member { signature })
    }
}

impl ScalarUDFImpl for Member {
    scalar!(name "member", signature, returns DataType::Boolean);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        kept(&args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(value) => Ok(value),
            None => exec_err!("member takes one argument"),
        }
    }
}

/// `tessera_each(x)`: its argument as one value for each row, also where that is no row.
///
/// DataFusion evaluates the items of IN over no rows, and takes items that return one value then for constants. CASE
/// returns one NULL then, whatever it returns over rows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Each {
    signature: Signature,
}

hashed_by!(Each, function => function.name());

impl Each {
    pub(super) fn udf() -> ScalarUDF {
        ScalarUDF::new_from_impl(Each { signature: Signature::any(1, Volatility::Immutable) })
    }
}

impl ScalarUDFImpl for Each {
    scalar!(name "tessera_each", signature, type_by_field);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        kept(&args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(value) => Ok(ColumnarValue::Array(value.into_array(args.number_rows)?)),
            None => exec_err!("tessera_each takes one argument"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::Float64Array;
    use arrow::datatypes::Field;

    #[test]
    fn signs_are_cleared_in_nested_values() {
        let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(-f64::NAN), Some(-0.0), None]));
        let field = Arc::new(Field::new("x", DataType::Float64, true));
        let rows: ArrayRef = Arc::new(StructArray::from(vec![(field, x)]));
        let out = Plain { zero: true, signature: Signature::any(1, Volatility::Immutable) };
        let out = out.plain(rows).unwrap();
        let x = out.as_struct().column(0).as_primitive::<Float64Type>();
        assert!(!x.value(0).is_sign_negative() && !x.value(1).is_sign_negative() && x.is_null(2));
    }

    #[test]
    fn signs_of_nan_and_zero_are_cleared() {
        let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(-f64::NAN), Some(-0.0), None]));
        let signs = |zero: bool| {
            let signature = Signature::any(1, Volatility::Immutable);
            let out = Plain { zero, signature }.plain(x.clone()).unwrap();
            let out = out.as_primitive::<Float64Type>();
            (out.value(0).is_sign_negative(), out.value(1).is_sign_negative(), out.is_null(2))
        };
        assert_eq!(signs(false), (false, true, true));
        assert_eq!(signs(true), (false, false, true));
    }
}
