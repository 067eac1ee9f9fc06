//! `md5` and `sha256` of a text or of bytes, as hexadecimal digits.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::ScalarUDF;

use super::OfArrays;
use crate::lift::error::spoken;

pub(super) fn functions() -> [ScalarUDF; 2] {
    let md5 = OfArrays::taking("md5", taken, DataType::Utf8, |arrays| {
        hashed(arrays, |bytes| hexadecimal(&<md5::Md5 as md5::Digest>::digest(bytes)))
    });
    let sha256 = OfArrays::taking("sha256", taken, DataType::Utf8, |arrays| {
        hashed(arrays, |bytes| hexadecimal(&<sha2::Sha256 as sha2::Digest>::digest(bytes)))
    });
    let about = "The SHA-256 hash of a text or of bytes, as 64 digits.";
    [
        md5.documented("md5(s)", "The MD5 hash of a text or of bytes, as 32 digits.").udf(),
        sha256.documented("sha256(s)", about).udf(),
    ]
}

fn hexadecimal(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// A text or bytes.
pub(super) fn taken(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [of] if is_text(of) || of.is_null() => Ok(vec![DataType::Utf8]),
        [
            DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
            | DataType::FixedSizeBinary(_),
        ] => Ok(vec![DataType::Binary]),
        [other] => {
            let of = spoken(&other.to_string());
            plan_err!("`{name}` takes a text or bytes, not {of}")
        }
        _ => plan_err!("`{name}` takes one argument"),
    }
}

fn hashed(arrays: &[ArrayRef], digits: fn(&[u8]) -> String) -> Result<ArrayRef> {
    let [values] = arrays else { return internal_err!("a hash of {} arrays", arrays.len()) };
    let hashes: StringArray = match values.data_type() {
        DataType::Binary => values.as_binary::<i32>().iter().map(|v| v.map(digits)).collect(),
        DataType::Utf8 => {
            let texts = values.as_string::<i32>().iter();
            texts.map(|v| v.map(|v| digits(v.as_bytes()))).collect()
        }
        other => return internal_err!("a hash of {other}"),
    };
    Ok(Arc::new(hashes))
}

/// True for texts of any encoding.
pub(super) fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}
