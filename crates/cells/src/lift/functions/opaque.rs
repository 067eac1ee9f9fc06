//! Functions that return their first argument, which the optimiser cannot see through.

use super::inner::scalar;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use std::sync::Arc;

/// The name of [`opaque`].
pub(crate) const OPAQUE: &str = "tessera_opaque";

/// `tessera_opaque(x, r)`: returns x for any r.
///
/// Under GROUPING SETS DataFusion treats a column that WHERE fixed as a constant, although the rolled-up groups have
/// NULL there, and drops it from ORDER BY. A call with a non-constant argument is not a constant:
/// `r` is a random number.
pub(in crate::lift) fn opaque() -> ScalarUDF {
    same(OPAQUE, Signature::any(2, Volatility::Volatile), false)
}

/// `tessera_operand(x)`: x.
pub(in crate::lift) fn operand() -> ScalarUDF {
    same("tessera_operand", Signature::any(1, Volatility::Immutable), false)
}

/// `tessera_maybe(x)`: x, which may be NULL.
pub(in crate::lift) fn nullable() -> ScalarUDF {
    same("tessera_maybe", Signature::any(1, Volatility::Immutable), true)
}

fn same(name: &'static str, signature: Signature, is_nullable: bool) -> ScalarUDF {
    ScalarUDF::new_from_impl(Same { name, signature, is_nullable })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Same {
    name: &'static str,
    signature: Signature,
    /// True if the result may be NULL even if the argument is never NULL.
    is_nullable: bool,
}

impl ScalarUDFImpl for Same {
    scalar!(name, signature, type_by_field);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields.first() {
            Some(x) if self.is_nullable => Ok(Arc::new(x.as_ref().clone().with_nullable(true))),
            Some(x) => Ok(x.clone()),
            None => plan_err!("{} has no arguments", self.name),
        }
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        match inputs {
            [x] => Ok((*x).clone()),
            _ => Interval::make_unbounded(&DataType::Null),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(x) => Ok(x),
            None => exec_err!("{} has no arguments", self.name),
        }
    }
}
