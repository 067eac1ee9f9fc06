//! `hex` and `bin` of integers, texts and bytes, as in DuckDB: the digits of a negative integer are those of its 64 bits,
//! those of a text have two, or eight, for each byte. `bit_count` counts the ones among the bits of an integer's type.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int8Array, StringArray};
use arrow::datatypes::{
    DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::ScalarUDF;

use super::{OfArrays, hashes};
use crate::lift::error::spoken;

pub(super) fn functions() -> [ScalarUDF; 3] {
    let hex = OfArrays::taking("hex", taken, DataType::Utf8, |arrays| {
        digits(arrays, |number| format!("{number:X}"), |byte| format!("{byte:02X}"))
    });
    let bin = OfArrays::taking("bin", taken, DataType::Utf8, |arrays| {
        digits(arrays, |number| format!("{number:b}"), |byte| format!("{byte:08b}"))
    });
    let ones = OfArrays::taking("bit_count", integer, DataType::Int8, ones);
    let about = "Hexadecimal digits of an integer, a text or bytes.";
    [
        hex.alias("to_hex").documented("hex(x)", about).udf(),
        bin.alias("to_binary")
            .documented("bin(x)", "Binary digits of an integer, a text or bytes.")
            .udf(),
        ones.documented("bit_count(x)", "The number of ones among the bits of an integer.").udf(),
    ]
}

fn taken(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [DataType::UInt64] => Ok(types.to_vec()),
        [of] if of.is_integer() => Ok(vec![DataType::Int64]),
        _ => hashes::taken(name, types),
    }
}

fn integer(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [of] if of.is_integer() => Ok(types.to_vec()),
        [of] if of.is_null() => Ok(vec![DataType::Int64]),
        [other] => {
            let of = spoken(&other.to_string());
            plan_err!("`{name}` takes an integer, not {of}")
        }
        _ => plan_err!("`{name}` takes one argument"),
    }
}

fn ones(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [values] = arrays else { return internal_err!("the bits of {} arrays", arrays.len()) };
    macro_rules! of {
        ($($of:ident => $t:ident),*) => {
            match values.data_type() {
                // A number has at most 64.
                $(DataType::$of => values.as_primitive::<$t>().unary(|v| v.count_ones() as i8),)*
                other => return internal_err!("the bits of {other}"),
            }
        };
    }
    let counts: Int8Array = of!(Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
        UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type);
    Ok(Arc::new(counts))
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
    use arrow::array::{Int16Array, Int64Array, UInt64Array};
    use datafusion::common::ScalarValue;
    use datafusion::common::config::ConfigOptions;
    use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs};

    /// The digits are those of DuckDB.
    #[test]
    fn digits_of_numbers_and_texts() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![255, -1, 0, 5]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("abc"), None, Some("ä")]));
        let [hex, bin, _] = functions();
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

    /// The counts are those of DuckDB.
    #[test]
    fn ones_among_the_bits_of_a_type() {
        let of = |values: ArrayRef| -> Vec<Option<i8>> {
            ones(&[values]).unwrap().as_primitive::<Int8Type>().iter().collect()
        };
        let numbers = vec![Some(255), Some(-1), None, Some(0)];
        assert_eq!(of(Arc::new(Int64Array::from(numbers))), [Some(8), Some(64), None, Some(0)]);
        assert_eq!(of(Arc::new(Int16Array::from(vec![-1, 5]))), [Some(16), Some(2)]);
        assert_eq!(of(Arc::new(UInt64Array::from(vec![u64::MAX]))), [Some(64)]);
    }
}
