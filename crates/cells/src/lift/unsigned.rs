//! Casts unsigned 64-bit numbers to signed in mixed arithmetic: `row_number() OVER (…) - 1` is an integer.
//!
//! DataFusion has no integer type for both and takes a decimal, whose `/` does not truncate. Runs before types are
//! coerced; a number beyond the signed range is an error of the cast.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, cast};

/// Casts the expression's unsigned side, if it is mixed arithmetic.
pub(super) fn one(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else {
        return Ok(Transformed::no(expr));
    };
    let keep = |left, right| Expr::BinaryExpr(BinaryExpr::new(left, op, right));
    if !matches!(op, Plus | Minus | Multiply | Divide | Modulo) {
        return Ok(Transformed::no(keep(left, right)));
    }
    // An error here is not lost: later planning of the same expression reports it.
    let (Ok(l), Ok(r)) = (left.get_type(schema), right.get_type(schema)) else {
        return Ok(Transformed::no(keep(left, right)));
    };
    let signed = |e: Box<Expr>| Box::new(cast(*e, DataType::Int64));
    Ok(match (l, r) {
        (DataType::UInt64, r) if r.is_signed_integer() => {
            Transformed::yes(keep(signed(left), right))
        }
        (l, DataType::UInt64) if l.is_signed_integer() => {
            Transformed::yes(keep(left, signed(right)))
        }
        _ => Transformed::no(keep(left, right)),
    })
}
