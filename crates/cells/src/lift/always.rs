//! `tessera_always(a, b, …)`: true for any arguments. DataFusion draws no conclusions from a condition with a function
//! that it does not know.

use super::functions::scalar;
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

pub(super) const NAME: &str = "tessera_always";

pub(crate) fn function() -> ScalarUDF {
    let signature = Signature::variadic_any(Volatility::Immutable);
    ScalarUDF::new_from_impl(Always { signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Always {
    signature: Signature,
}

impl ScalarUDFImpl for Always {
    scalar!(name NAME, signature, returns DataType::Boolean);

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))))
    }
}
