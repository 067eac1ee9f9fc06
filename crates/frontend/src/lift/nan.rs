//! One NaN: whatever floats the row path computes, NaN has no sign.
//!
//! Arrow orders floats by their bits, where a NaN with a sign is below all numbers and one without above them. Which of
//! the two `0.0 / 0` gives is up to the processor. So what may make a NaN is wrapped in a function that takes the sign
//! away, and NaN is equal to itself and above all numbers, as in the dense path, PostgreSQL and DuckDB. Cells of
//! tensors come without it.
//!
//! ```text
//! WHERE -v > 100   ⇒   WHERE one_nan(-v) > 100
//! v IN (0, 1)      ⇒   one_zero(v) IN (0, 1)          IN compares bits, and -0.0 is 0
//! ```

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

/// Wraps what makes floats, under the same names.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let (nan, zero) = (Arc::new(Plain::udf(false)), Arc::new(Plain::udf(true)));
    let rules = Rules { nan, zero };
    plan.transform_up_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let mut is_changed = false;
            let expr = rules.visit(expr, &schema, false, &mut is_changed)?;
            Ok(match is_changed {
                true => Transformed::yes(name.restore(expr)),
                false => Transformed::no(expr),
            })
        })?
        .map_data(LogicalPlan::recompute_schema)
    })
    .map(|t| t.data)
}

struct Rules {
    nan: Arc<ScalarUDF>,
    zero: Arc<ScalarUDF>,
}

impl Rules {
    /// `inside` is true for an argument of something that is wrapped itself.
    fn visit(
        &self,
        expr: Expr,
        schema: &DFSchema,
        inside: bool,
        is_changed: &mut bool,
    ) -> Result<Expr> {
        let makes = makes_floats(&expr, schema);
        let expr = expr.map_children(|child| {
            Ok(Transformed::yes(self.visit(child, schema, makes, is_changed)?))
        })?;
        match expr.data {
            Expr::InList(list) if is_float(&list.expr, schema) => {
                *is_changed = true;
                let list = InList {
                    expr: Box::new(self.plain_zero(*list.expr)),
                    list: list.list.into_iter().map(|item| self.plain_zero(item)).collect(),
                    negated: list.negated,
                };
                Ok(Expr::InList(list))
            }
            expr if makes && !inside => {
                *is_changed = true;
                Ok(self.nan.call(vec![expr]))
            }
            expr => Ok(expr),
        }
    }

    fn plain_zero(&self, expr: Expr) -> Expr {
        match expr {
            Expr::Literal(ScalarValue::Float64(Some(v)), m) => {
                Expr::Literal(ScalarValue::Float64(Some(v + 0.0)), m)
            }
            Expr::Literal(ScalarValue::Float32(Some(v)), m) => {
                Expr::Literal(ScalarValue::Float32(Some(v + 0.0)), m)
            }
            literal @ Expr::Literal(..) => literal,
            other => self.zero.call(vec![other]),
        }
    }
}

/// Is it arithmetic or a function whose result is a float?
fn makes_floats(expr: &Expr, schema: &DFSchema) -> bool {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};
    let makes = match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => {
            matches!(op, Plus | Minus | Multiply | Divide | Modulo)
        }
        Expr::Negative(_) => true,
        Expr::ScalarFunction(f) => !f.func.inner().is::<Plain>(),
        _ => false,
    };
    makes && is_float(expr, schema)
}

/// A type that cannot be told is no float: whoever runs the plan meets the same expression.
fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Float64 | DataType::Float32))
}

/// `one_nan(x)`: x, or NaN without a sign; `one_zero(x)`: the same, and -0.0 is 0.0.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Plain {
    zero: bool,
    signature: Signature,
}

impl Plain {
    fn udf(zero: bool) -> ScalarUDF {
        let floats = vec![DataType::Float64, DataType::Float32];
        let signature = Signature::uniform(1, floats, Volatility::Immutable);
        ScalarUDF::new_from_impl(Plain { zero, signature })
    }
}

impl ScalarUDFImpl for Plain {
    fn name(&self) -> &str {
        if self.zero { "one_zero" } else { "one_nan" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Float64))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(value) = args.args.into_iter().next() else {
            return exec_err!("{} takes one argument", self.name());
        };
        Ok(match value {
            ColumnarValue::Array(array) => ColumnarValue::Array(self.plain(array)),
            ColumnarValue::Scalar(scalar) => {
                let array = self.plain(scalar.to_array()?);
                ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)
            }
        })
    }
}

impl Plain {
    fn plain(&self, array: ArrayRef) -> ArrayRef {
        // Adding 0.0 takes the sign of -0.0.
        let zero = if self.zero { 0.0 } else { -0.0 };
        match array.data_type() {
            DataType::Float64 => {
                let x = array.as_primitive::<Float64Type>();
                Arc::new(
                    x.unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + zero }),
                )
            }
            DataType::Float32 => {
                let x = array.as_primitive::<Float32Type>();
                let zero = zero as f32;
                Arc::new(
                    x.unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + zero }),
                )
            }
            _ => array,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Float64Array;

    #[test]
    fn signs_of_nan_and_zero_go() {
        let x: ArrayRef = Arc::new(Float64Array::from(vec![Some(-f64::NAN), Some(-0.0), None]));
        let signs = |zero: bool| {
            let signature = Signature::any(1, Volatility::Immutable);
            let out = Plain { zero, signature }.plain(x.clone());
            let out = out.as_primitive::<Float64Type>();
            (out.value(0).is_sign_negative(), out.value(1).is_sign_negative(), out.is_null(2))
        };
        assert_eq!(signs(false), (false, true, true));
        assert_eq!(signs(true), (false, false, true));
    }
}
