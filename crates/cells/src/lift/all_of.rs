//! `tessera_all(a, b, …)`: the conjunction of conditions that are evaluated for all rows.

use super::functions::OfArrays;
use arrow::array::{ArrayRef, AsArray};
use arrow::compute::and_kleene;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ScalarUDF, Signature, Volatility};
use std::sync::Arc;

/// The function; NULL AND false is false, as for `AND`.
pub(crate) fn function() -> ScalarUDF {
    let signature = Signature::variadic(vec![DataType::Boolean], Volatility::Immutable);
    OfArrays::new("tessera_all", signature, DataType::Boolean, all_of).udf()
}

fn all_of(conditions: &[ArrayRef]) -> Result<ArrayRef> {
    let Some((first, others)) = conditions.split_first() else {
        return exec_err!("tessera_all takes at least one argument");
    };
    let mut all = first.clone();
    for condition in others {
        all = Arc::new(and_kleene(all.as_boolean(), condition.as_boolean())?);
    }
    Ok(all)
}
