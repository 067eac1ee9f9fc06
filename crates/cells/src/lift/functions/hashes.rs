//! `md5` and `sha256` of a text or of bytes, as hexadecimal digits.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::inner::scalar;
use crate::lift::error::spoken;

pub(super) fn functions() -> [ScalarUDF; 2] {
    [Kind::Md5, Kind::Sha256].map(|kind| Hashed::new(kind).into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Md5,
    Sha256,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Hashed {
    kind: Kind,
    signature: Signature,
    documentation: Documentation,
}

impl Hashed {
    fn new(kind: Kind) -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        let (name, about) = match kind {
            Kind::Md5 => ("md5(s)", "The MD5 hash of a text or of bytes, as 32 digits."),
            Kind::Sha256 => ("sha256(s)", "The SHA-256 hash of a text or of bytes, as 64 digits."),
        };
        Self { kind, signature, documentation: super::documented(name, about) }
    }

    fn digits(&self, bytes: &[u8]) -> String {
        match self.kind {
            Kind::Md5 => hexadecimal(&<md5::Md5 as md5::Digest>::digest(bytes)),
            Kind::Sha256 => hexadecimal(&<sha2::Sha256 as sha2::Digest>::digest(bytes)),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

impl ScalarUDFImpl for Hashed {
    scalar!(documentation, signature, returns DataType::Utf8);

    fn name(&self) -> &str {
        match self.kind {
            Kind::Md5 => "md5",
            Kind::Sha256 => "sha256",
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [of] if is_text(of) || of.is_null() => Ok(vec![DataType::Utf8]),
            [
                DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_),
            ] => Ok(vec![DataType::Binary]),
            [other] => {
                let (name, of) = (self.name(), spoken(&other.to_string()));
                plan_err!("`{name}` takes a text or bytes, not {of}")
            }
            _ => plan_err!("`{}` takes one argument", self.name()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [values] = arrays.as_slice() else {
            return exec_err!("`{}` takes one argument", self.name());
        };
        let out: StringArray = match values.data_type() {
            DataType::Binary => {
                values.as_binary::<i32>().iter().map(|v| v.map(|v| self.digits(v))).collect()
            }
            DataType::Utf8 => {
                let texts = values.as_string::<i32>().iter();
                texts.map(|v| v.map(|v| self.digits(v.as_bytes()))).collect()
            }
            other => return exec_err!("`{}` of {other}", self.name()),
        };
        super::columnar(Arc::new(out) as ArrayRef, is_scalar)
    }
}

/// True for texts of any encoding.
pub(super) fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}
