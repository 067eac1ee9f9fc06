//! `tessera_all(a, b, …)`: the conjunction of conditions that are evaluated for all rows.

use super::functions::scalar;
use arrow::array::{ArrayRef, AsArray};
use arrow::compute::and_kleene;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;

/// The function; NULL AND false is false, as for `AND`.
pub(crate) fn function() -> ScalarUDF {
    let signature = Signature::variadic(vec![DataType::Boolean], Volatility::Immutable);
    ScalarUDF::new_from_impl(AllOf { signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AllOf {
    signature: Signature,
}

impl ScalarUDFImpl for AllOf {
    scalar!(name "tessera_all", signature, returns DataType::Boolean);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let mut all: Option<ArrayRef> = None;
        for condition in &args.args {
            let condition = condition.to_array(args.number_rows)?;
            all = Some(match all {
                Some(all) => Arc::new(and_kleene(all.as_boolean(), condition.as_boolean())?),
                None => condition,
            });
        }
        match all {
            Some(all) => Ok(ColumnarValue::Array(all)),
            None => exec_err!("tessera_all takes at least one argument"),
        }
    }
}
