//! Numbers of a text, such as its length: of dictionary-encoded texts they are plain numbers.
//!
//! DataFusion's are dictionary-encoded like the texts, and a dictionary is taken for text where it is written.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
};

use super::inner::of_inner;

pub(super) const NAMES: [&str; 4] = ["ascii", "bit_length", "character_length", "octet_length"];

/// DataFusion's function, whose results are not dictionary-encoded.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Length {
    inner: Arc<ScalarUDF>,
}

impl Length {
    pub(super) fn new(inner: Arc<ScalarUDF>) -> Self {
        Self { inner }
    }
}

impl ScalarUDFImpl for Length {
    of_inner!(name, aliases, signature);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match self.inner.return_type(types)? {
            DataType::Dictionary(_, values) => *values,
            plain => plain,
        })
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let wanted = args.return_field.data_type().clone();
        // Not by the function itself, which in tests compares the type of the result with the one that is wanted.
        self.inner.inner().invoke_with_args(args)?.cast_to(&wanted, None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, StringArray};
    use arrow::datatypes::{Field, Int32Type};
    use datafusion::common::ScalarValue;
    use datafusion::common::config::ConfigOptions;
    use datafusion::functions::{string, unicode};

    #[test]
    fn lengths_of_dictionaries_are_integers() {
        let texts = [Some("abc"), None, Some("é"), Some("abc")];
        let dictionary: ArrayRef =
            Arc::new(texts.into_iter().collect::<DictionaryArray<Int32Type>>());
        let plain: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
        for (inner, want) in [
            (unicode::character_length(), [3, 1, 3]),
            (string::octet_length(), [3, 2, 3]),
            (string::bit_length(), [24, 16, 24]),
            (string::ascii(), [97, 233, 97]),
        ] {
            let function = ScalarUDF::from(Length::new(inner));
            for texts in [&dictionary, &plain] {
                let kind = function.return_type(&[texts.data_type().clone()]).unwrap();
                assert_eq!(kind, DataType::Int32, "{}", function.name());
                let field = Arc::new(Field::new("x", texts.data_type().clone(), true));
                let call = |value| {
                    let args = ScalarFunctionArgs {
                        args: vec![value],
                        arg_fields: vec![field.clone()],
                        number_rows: texts.len(),
                        return_field: Arc::new(Field::new("n", kind.clone(), true)),
                        config_options: Arc::new(ConfigOptions::default()),
                    };
                    function.invoke_with_args(args).unwrap().to_array(1).unwrap()
                };
                let got = call(ColumnarValue::Array(texts.clone()));
                let got: Vec<Option<i32>> = got.as_primitive::<Int32Type>().iter().collect();
                assert_eq!(got, [Some(want[0]), None, Some(want[1]), Some(want[2])]);
                let scalar = ScalarValue::try_from_array(texts, 2).unwrap();
                let got = call(ColumnarValue::Scalar(scalar));
                assert_eq!(got.as_primitive::<Int32Type>().value(0), want[1]);
            }
        }
    }
}
