//! Functions that carry constructs through DataFusion's planner, which lacks them. Rewrites replace the functions
//! before the plan is optimised.

use super::functions::scalar;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// `(a, b) IN (SELECT …)`: the equalities of its columns. See [`row_values`](super::row_values).
pub(super) const ROW_IN: &str = "tessera_row_in";
/// `ASOF JOIN`: its condition. See [`asof`](super::asof).
pub(super) const ASOF: &str = "tessera_asof";

/// EXCLUDE of a frame, and the order of an aggregate's arguments. See [`excluding`](super::functions::excluding).
pub(super) const FRAME: &str = "tessera_frame";

/// The marker of that name.
pub(super) fn function(name: &str) -> Option<ScalarUDF> {
    let name = [ROW_IN, ASOF, FRAME].into_iter().find(|known| *known == name)?;
    let signature = Signature::variadic_any(Volatility::Immutable);
    Some(ScalarUDF::new_from_impl(Marker { name, signature }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Marker {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Marker {
    scalar!(name, signature, returns DataType::Boolean);

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("{} stands for a part of a query and has no value", self.name)
    }
}
