//! Functions of a text that return numbers, such as its length: plain numbers, also for dictionary-encoded texts.
//!
//! DataFusion's results are dictionary-encoded like the texts, and writers take a dictionary for text. `length` and
//! `len` are also the number of elements of a list.

use std::sync::Arc;

use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::inner::{hashed_by, of_inner, scalar};

const NAMES: [&str; 4] = ["ascii", "bit_length", "character_length", "octet_length"];

/// The alias of [`Len`], which DataFusion has for `character_length`.
const LENGTH: &str = "length";

pub(super) fn functions(state: &SessionState) -> Vec<ScalarUDF> {
    let mut all = Vec::new();
    for name in NAMES {
        let Some(inner) = state.scalar_functions().get(name) else { continue };
        let function = ScalarUDF::from(Length::new(Arc::clone(inner)));
        if name == "character_length" {
            all.push(function.clone());
            all.push(Len::new(Arc::new(function)).into());
        } else {
            all.push(function);
        }
    }
    all
}

/// DataFusion's function, whose results are not dictionary-encoded.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Length {
    inner: Arc<ScalarUDF>,
    aliases: Vec<String>,
}

impl Length {
    pub(super) fn new(inner: Arc<ScalarUDF>) -> Self {
        // [`Len`] has this name.
        let is_own = |alias: &&String| *alias != LENGTH;
        let aliases = inner.aliases().iter().filter(is_own).cloned().collect();
        Self { inner, aliases }
    }
}

impl ScalarUDFImpl for Length {
    of_inner!(name, documentation, signature);
    scalar!(aliases);

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match self.inner.return_type(types)? {
            DataType::Dictionary(_, values) => *values,
            plain => plain,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let wanted = args.return_field.data_type().clone();
        // Not the function itself, which in tests compares the type of the result with the wanted one.
        self.inner.inner().invoke_with_args(args)?.cast_to(&wanted, None)
    }
}

/// The number of elements of a list, or of characters of a text.
#[derive(Debug, PartialEq, Eq)]
struct Len {
    of_text: Arc<ScalarUDF>,
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(Len, function => function.aliases);

impl Len {
    fn new(of_text: Arc<ScalarUDF>) -> Self {
        let about = "The number of characters of a text, or of elements of a list.";
        Self {
            of_text,
            aliases: vec![LENGTH.to_string()],
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: super::documented("len(x)", about),
        }
    }
}

fn is_list(of: &DataType) -> bool {
    matches!(of, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..))
}

impl ScalarUDFImpl for Len {
    scalar!(name "len", aliases, documentation, signature);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [of] if is_list(of) => Ok(vec![of.clone()]),
            [of] => {
                let field = Arc::new(Field::new("x", of.clone(), true));
                let taken = fields_with_udf(&[field], &*self.of_text)?;
                Ok(taken.iter().map(|field| field.data_type().clone()).collect())
            }
            _ => plan_err!("`len` takes one text or list"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of] if is_list(of) => Ok(DataType::Int64),
            _ => self.of_text.return_type(types),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.as_slice() {
            [list] if is_list(&list.data_type()) => {
                let is_scalar = matches!(list, ColumnarValue::Scalar(_));
                let lists = list.to_array(if is_scalar { 1 } else { args.number_rows })?;
                super::columnar(cast(&length(&lists)?, &DataType::Int64)?, is_scalar)
            }
            _ => self.of_text.invoke_with_args(args),
        }
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
