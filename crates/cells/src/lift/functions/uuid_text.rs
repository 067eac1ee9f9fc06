//! The text of a UUID of 16 bytes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::inner::scalar;

const NAME: &str = "tessera_uuid_text";

/// The function, whose name no text can produce.
pub(crate) fn uuid_text() -> ScalarUDF {
    let signature = Signature::exact(vec![DataType::FixedSizeBinary(16)], Volatility::Immutable);
    UuidText { signature }.into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct UuidText {
    signature: Signature,
}

impl ScalarUDFImpl for UuidText {
    scalar!(name NAME, signature, returns DataType::Utf8);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(NAME, DataType::Utf8, is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [values] = arrays.as_slice() else { return exec_err!("a UUID is one value") };
        let Some(values) = values.as_fixed_size_binary_opt() else {
            return exec_err!("a UUID has 16 bytes, not {}", values.data_type());
        };
        let mut out = StringBuilder::with_capacity(values.len(), values.len() * Hyphenated::LENGTH);
        let mut text = [0; Hyphenated::LENGTH];
        for value in values {
            match value.map(Uuid::from_slice).transpose() {
                Ok(Some(uuid)) => out.append_value(uuid.hyphenated().encode_lower(&mut text)),
                Ok(None) => out.append_null(),
                Err(e) => return exec_err!("a UUID: {e}"),
            }
        }
        super::columnar(Arc::new(out.finish()) as ArrayRef, is_scalar)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::FixedSizeBinaryArray;
    use datafusion::common::config::ConfigOptions;

    #[test]
    fn bytes_are_hexadecimal_digits_in_five_groups() {
        let bytes = [Some((0..16).collect::<Vec<u8>>()), None];
        let bytes = FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes.into_iter(), 16);
        let args = ScalarFunctionArgs {
            args: vec![ColumnarValue::Array(Arc::new(bytes.unwrap()))],
            arg_fields: vec![Arc::new(Field::new("x", DataType::FixedSizeBinary(16), true))],
            number_rows: 2,
            return_field: Arc::new(Field::new("u", DataType::Utf8, true)),
            config_options: Arc::new(ConfigOptions::default()),
        };
        let texts = uuid_text().invoke_with_args(args).unwrap().to_array(2).unwrap();
        let texts: Vec<Option<&str>> = texts.as_string::<i32>().iter().collect();
        assert_eq!(texts, [Some("00010203-0405-0607-0809-0a0b0c0d0e0f"), None]);
    }
}
