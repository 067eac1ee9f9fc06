//! An identity function that the optimiser cannot see through.

use super::inner::scalar;
use arrow::datatypes::FieldRef;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// `tessera_opaque(x, r)`: returns x for any r.
///
/// Under GROUPING SETS DataFusion treats a column that WHERE fixed as a constant, although the rolled-up groups have
/// NULL there, and drops it from ORDER BY. A call with a non-constant argument is not a constant:
/// `r` is a random number.
pub(in crate::lift) fn opaque() -> ScalarUDF {
    ScalarUDF::new_from_impl(Opaque { signature: Signature::any(2, Volatility::Volatile) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Opaque {
    signature: Signature,
}

impl ScalarUDFImpl for Opaque {
    scalar!(name "tessera_opaque", signature, type_by_field);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields {
            [field, _] => Ok(field.clone()),
            _ => plan_err!("tessera_opaque takes two arguments"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(value) => Ok(value),
            None => exec_err!("tessera_opaque takes two arguments"),
        }
    }
}
