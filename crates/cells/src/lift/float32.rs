//! Literals compared with `float32` become `float32`: `latitude = 52.3` finds the label 52.3 of a `float32` grid.
//!
//! ```text
//! latitude BETWEEN 52.3 AND 52.5   ⇒   latitude BETWEEN CAST(52.3 AS FLOAT) AND CAST(52.5 AS FLOAT)
//! a.lat = b.lat, b in float64      ⇒   a.lat = CAST(b.lat AS FLOAT)
//! ```
//! SQL would widen the column, whose 52.3 is then 52.29999923706055. A literal is compared as the
//! nearest `float32`, as in `t[latitude => 52.3]` and xarray. Two columns are narrowed where they must be equal, so
//! that labels of one grid match however they are stored. Everything else widens. Runs before types are coerced.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, Case, InList};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, cast};

use super::time::is_comparison;

/// Narrows the numbers of the expression if it compares them with `float32`.
pub(super) fn one(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_narrow = |e: &Expr| type_of(e, schema) == Some(DataType::Float32);
    match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right }) if is_comparison(op) => {
            let mut is_changed = false;
            if is_narrow(&left) {
                is_changed |= narrow(&mut right);
            } else if is_narrow(&right) {
                is_changed |= narrow(&mut left);
            }
            use Operator::{Eq, IsDistinctFrom, IsNotDistinctFrom, NotEq};
            let is_equal = matches!(op, Eq | NotEq | IsDistinctFrom | IsNotDistinctFrom);
            if is_equal && is_column(&left) && is_column(&right) {
                let types = (type_of(&left, schema), type_of(&right, schema));
                let side = match types {
                    (Some(DataType::Float32), Some(DataType::Float64)) => Some(&mut right),
                    (Some(DataType::Float64), Some(DataType::Float32)) => Some(&mut left),
                    _ => None,
                };
                if let Some(side) = side {
                    **side = cast(std::mem::take(&mut **side), DataType::Float32);
                    is_changed = true;
                }
            }
            let new = Expr::BinaryExpr(BinaryExpr { left, op, right });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::Between(Between { expr, negated, mut low, mut high }) if is_narrow(&expr) => {
            let is_changed = narrow(&mut low) | narrow(&mut high);
            let new = Expr::Between(Between { expr, negated, low, high });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::InList(InList { expr, mut list, negated }) if is_narrow(&expr) => {
            let mut is_changed = false;
            for item in &mut list {
                is_changed |= narrow(item);
            }
            let new = Expr::InList(InList { expr, list, negated });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::Case(Case { expr: Some(base), mut when_then_expr, else_expr })
            if is_narrow(&base) =>
        {
            let mut is_changed = false;
            for (when, _) in &mut when_then_expr {
                is_changed |= narrow(when);
            }
            let new = Expr::Case(Case { expr: Some(base), when_then_expr, else_expr });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::ScalarFunction(mut f) if f.func.name() == "nullif" => {
            let is_changed = match f.args.as_mut_slice() {
                [x, y] if is_narrow(x) => narrow(y),
                _ => false,
            };
            Ok(Transformed::new_transformed(Expr::ScalarFunction(f), is_changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// The type, if it is known. An error here is not lost: later planning of the same expression reports it.
fn type_of(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    expr.get_type(schema).ok()
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Column(_) | Expr::OuterReferenceColumn(..))
}

/// Makes a literal number a `float32`.
fn narrow(expr: &mut Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => match value {
            ScalarValue::Float64(Some(v)) => {
                *value = ScalarValue::Float32(Some(*v as f32));
                true
            }
            _ => false,
        },
        Expr::Negative(inner) => narrow(inner),
        _ => false,
    }
}
