//! `tessera_where(x, a, b, …)`: x where all conditions are true, else NULL.

use arrow::array::{Array, AsArray, BooleanArray};
use arrow::compute::{and, not, nullif, prep_null_mask_filter};
use arrow::datatypes::FieldRef;
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use std::sync::Arc;

use super::super::functions::scalar;

/// The name, which no text can produce.
pub(super) const NAME: &str = "tessera_where";

pub(in crate::lift) fn function() -> ScalarUDF {
    ScalarUDF::new_from_impl(Where { signature: Signature::variadic_any(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Where {
    signature: Signature,
}

impl ScalarUDFImpl for Where {
    scalar!(name NAME, signature, type_by_field);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields {
            [field, ..] => Ok(Arc::new(field.as_ref().clone().with_nullable(true))),
            [] => plan_err!("{NAME} takes a value"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kind = args.return_field.data_type();
        let mut operands = args.args.into_iter();
        let Some(value) = operands.next() else { return exec_err!("{NAME} takes a value") };
        let mut all: Option<BooleanArray> = None;
        for condition in operands {
            let condition = match condition {
                ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))) => continue,
                ColumnarValue::Scalar(_) => {
                    return Ok(ColumnarValue::Scalar(ScalarValue::try_new_null(kind)?));
                }
                ColumnarValue::Array(array) => match array.as_boolean() {
                    some if some.null_count() > 0 => prep_null_mask_filter(some),
                    whole => whole.clone(),
                },
            };
            all = Some(match all {
                Some(all) => and(&all, &condition)?,
                None => condition,
            });
        }
        match all {
            Some(all) if all.has_false() => {
                let value = value.to_array(args.number_rows)?;
                Ok(ColumnarValue::Array(nullif(&value, &not(&all)?)?))
            }
            _ => Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{ArrayRef, StringArray};
    use arrow::datatypes::{DataType, Field};

    fn texts(of: [Option<&str>; 4]) -> ArrayRef {
        Arc::new(StringArray::from(of.to_vec()))
    }

    fn of(conditions: Vec<ColumnarValue>) -> ArrayRef {
        let value = ColumnarValue::Array(texts([Some("a"), Some("b"), None, Some("d")]));
        let args: Vec<_> = std::iter::once(value).chain(conditions).collect();
        let field = Arc::new(Field::new("x", DataType::Utf8, true));
        let function = function();
        let args = ScalarFunctionArgs {
            arg_fields: vec![field.clone(); args.len()],
            args,
            number_rows: 4,
            return_field: field,
            config_options: Arc::default(),
        };
        function.invoke_with_args(args).unwrap().to_array(4).unwrap()
    }

    fn conditions(of: [Option<bool>; 4]) -> ColumnarValue {
        ColumnarValue::Array(Arc::new(BooleanArray::from(of.to_vec())))
    }

    #[test]
    fn rows_without_all_conditions_are_null() {
        let all = || conditions([Some(true); 4]);
        let some = || conditions([Some(true), Some(false), Some(true), None]);
        let last = || conditions([None, Some(true), Some(true), Some(true)]);
        let scalar = |is| ColumnarValue::Scalar(ScalarValue::Boolean(is));
        let whole = texts([Some("a"), Some("b"), None, Some("d")]);
        assert_eq!(&of(vec![]), &whole);
        assert_eq!(&of(vec![all(), scalar(Some(true))]), &whole);
        assert_eq!(&of(vec![some()]), &texts([Some("a"), None, None, None]));
        assert_eq!(&of(vec![last()]), &texts([None, Some("b"), None, Some("d")]));
        assert_eq!(&of(vec![some(), last()]), &texts([None; 4]));
        assert_eq!(&of(vec![all(), scalar(Some(false))]), &texts([None; 4]));
        assert_eq!(&of(vec![scalar(None)]), &texts([None; 4]));
    }
}
