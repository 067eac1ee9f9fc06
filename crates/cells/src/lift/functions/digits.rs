//! `hex` and `bin` of integers, texts and bytes, as in DuckDB: the digits of a negative integer are those of its 64 bits,
//! those of a text have two, or eight, for each byte.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, StringArray};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::ScalarUDF;

use super::{OfArrays, hashes};

pub(super) fn functions() -> [ScalarUDF; 2] {
    let hex = OfArrays::taking("hex", taken, DataType::Utf8, |arrays| {
        digits(arrays, |number| format!("{number:X}"), |byte| format!("{byte:02X}"))
    });
    let bin = OfArrays::taking("bin", taken, DataType::Utf8, |arrays| {
        digits(arrays, |number| format!("{number:b}"), |byte| format!("{byte:08b}"))
    });
    let about = "Hexadecimal digits of an integer, a text or bytes.";
    [
        hex.alias("to_hex").documented("hex(x)", about).udf(),
        bin.alias("to_binary")
            .documented("bin(x)", "Binary digits of an integer, a text or bytes.")
            .udf(),
    ]
}

fn taken(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [DataType::UInt64] => Ok(types.to_vec()),
        [of] if of.is_integer() => Ok(vec![DataType::Int64]),
        _ => hashes::taken(name, types),
    }
}

fn digits(
    arrays: &[ArrayRef],
    of_number: fn(u64) -> String,
    of_byte: fn(u8) -> String,
) -> Result<ArrayRef> {
    let [values] = arrays else { return internal_err!("digits of {} arrays", arrays.len()) };
    let of_bytes = |bytes: &[u8]| bytes.iter().map(|byte| of_byte(*byte)).collect::<String>();
    let texts: StringArray = match values.data_type() {
        DataType::UInt64 => {
            values.as_primitive::<UInt64Type>().iter().map(|v| v.map(of_number)).collect()
        }
        DataType::Int64 => {
            let bits = values.as_primitive::<Int64Type>().iter().map(|v| v.map(i64::cast_unsigned));
            bits.map(|v| v.map(of_number)).collect()
        }
        DataType::Binary => values.as_binary::<i32>().iter().map(|v| v.map(of_bytes)).collect(),
        DataType::Utf8 => {
            values.as_string::<i32>().iter().map(|v| v.map(|v| of_bytes(v.as_bytes()))).collect()
        }
        other => return internal_err!("digits of {other}"),
    };
    Ok(Arc::new(texts))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::Int64Array;
    use datafusion::common::ScalarValue;
    use datafusion::common::config::ConfigOptions;
    use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs};

    /// The digits are those of DuckDB.
    #[test]
    fn digits_of_numbers_and_texts() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![255, -1, 0, 5]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("abc"), None, Some("ä")]));
        let [hex, bin] = functions();
        for (function, values, want) in [
            (&hex, &numbers, "FF|FFFFFFFFFFFFFFFF|0|5"),
            (&hex, &texts, "616263|NULL|C3A4"),
            (&bin, &numbers.slice(3, 1), "101"),
            (&bin, &texts.slice(2, 1), "1100001110100100"),
        ] {
            let field = arrow::datatypes::Field::new("x", values.data_type().clone(), true);
            let fields = [Arc::new(field)];
            let none: [Option<&ScalarValue>; 1] = [None];
            let types = ReturnFieldArgs { arg_fields: &fields, scalar_arguments: &none };
            let args = ScalarFunctionArgs {
                number_rows: values.len(),
                args: vec![ColumnarValue::Array(Arc::clone(values))],
                arg_fields: fields.to_vec(),
                return_field: function.return_field_from_args(types).unwrap(),
                config_options: Arc::new(ConfigOptions::default()),
            };
            let got = function.invoke_with_args(args).unwrap().to_array(values.len()).unwrap();
            let got = got.as_string::<i32>().iter().map(|v| v.unwrap_or("NULL").to_string());
            assert_eq!(got.collect::<Vec<_>>().join("|"), want);
        }
    }
}
