//! `-x` of an integer as `0 - x`.
//!
//! DataFusion's simplifier takes `-` beside `&`, `|` and `^` for the complement: `-(a & b)` becomes `-a | -b`, and
//! `a & -a` 0. Integers wrap, so both forms are equal for every x. The optimiser may bring the operators together later
//! (columns of subqueries, CASE), so this does not depend on what is beside the `-`.

use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};

/// The negation of an expression.
pub(super) fn of(inner: Box<Expr>, schema: &DFSchema, is_changed: &mut bool) -> Expr {
    // An unknown type is no integer: later planning reports the error.
    let kind = inner.get_type(schema).ok().filter(|kind| kind.is_signed_integer());
    match kind.and_then(|kind| ScalarValue::new_zero(&kind).ok()) {
        Some(zero) => {
            *is_changed = true;
            let zero = Box::new(Expr::Literal(zero, None));
            Expr::BinaryExpr(BinaryExpr::new(zero, Operator::Minus, inner))
        }
        None => Expr::Negative(inner),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::prelude::col;

    #[test]
    fn only_integers_are_subtracted() {
        for (kind, want) in [
            (DataType::Int64, "Int64(0) - v"),
            (DataType::Int8, "Int8(0) - v"),
            (DataType::Float64, "(- v)"),
            (DataType::Decimal128(10, 2), "(- v)"),
        ] {
            let field = Field::new("v", kind, true);
            let schema = DFSchema::try_from(Schema::new(vec![field])).unwrap();
            let mut is_changed = false;
            let new = of(Box::new(col("v")), &schema, &mut is_changed);
            assert_eq!(new.to_string(), want);
            assert_eq!(is_changed, !matches!(new, Expr::Negative(_)));
        }
    }
}
