//! Expressions that fail for some values.

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::{Cast, ScalarFunction};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator};
use std::cmp::Ordering;

use super::super::functions::is_elementwise;
use super::super::sites::DIVIDE;
use super::function::NAME;
use crate::walk::Walk;

/// Functions that fail for no values, whatever their arguments are.
const SAFE: [&str; 74] = [
    NAME,
    "array_length",
    "ascii",
    "atan2",
    "bit_length",
    "btrim",
    "cardinality",
    "cbrt",
    "ceil",
    "character_length",
    "coalesce",
    "concat",
    "concat_ws",
    "contains",
    "cos",
    "date_part",
    "degrees",
    "ends_with",
    "exp",
    "floor",
    "get_field",
    "greatest",
    "isnan",
    "iszero",
    "least",
    "len",
    "ln",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "make_array",
    "md5",
    "member",
    "named_struct",
    "nullif",
    "nvl",
    "nvl2",
    "octet_length",
    "one_nan",
    "one_zero",
    "radians",
    "replace",
    "reverse",
    "rtrim",
    "sha256",
    "signum",
    "sin",
    "sqrt",
    "starts_with",
    "strpos",
    "struct",
    "tan",
    "tanh",
    "tessera_all",
    "tessera_always",
    "tessera_concat",
    "tessera_each",
    "tessera_in_calendar",
    "tessera_join_key",
    "tessera_join_key_32",
    "tessera_length",
    "tessera_like",
    "tessera_maybe",
    "tessera_opaque",
    "tessera_operand",
    "tessera_order",
    "tessera_rank",
    "tessera_shift_left",
    "tessera_shift_right",
    "tessera_time_text",
    "tessera_uuid_text",
    "tessera_with_seconds",
    "upper",
];

/// Functions that fail for no value of their first argument (of `date_trunc`: the last) if the others are constant, or
/// fail for all.
const SAFE_BESIDE_CONSTANTS: [&str; 12] = [
    "date_trunc",
    "left",
    "regexp_like",
    "regexp_replace",
    "right",
    "round",
    "split_part",
    "substr",
    "tessera_at_time_zone",
    "tessera_time_minus",
    "tessera_time_plus",
    "trunc",
];

/// True if the expression fails for some values of its operands, whether or not these fail themselves. An expression
/// without columns fails for all rows or none.
pub(super) fn may_fail(expr: &Expr, schema: &DFSchema) -> bool {
    let fails = match expr {
        Expr::BinaryExpr(e) => of_operator(e, expr, schema),
        Expr::Cast(Cast { expr: value, field }) => {
            // The type of a column of an outer query is unknown here.
            !value.get_type(schema).is_ok_and(|from| is_safe_cast(&from, field.data_type()))
        }
        Expr::ScalarFunction(call) => !is_safe_call(call, expr, schema),
        Expr::SimilarTo(like) => !is_constant(&like.pattern),
        Expr::HigherOrderFunction(_) => true,
        _ => false,
    };
    fails && !is_constant(expr)
}

/// True for an expression that has one value in all rows.
pub(super) fn is_constant(expr: &Expr) -> bool {
    let mut varies = false;
    let walk = expr.each(|e| {
        varies = matches!(
            e,
            Expr::Column(_)
                | Expr::LambdaVariable(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::ScalarSubquery(_)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
        );
        Ok(if varies { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    debug_assert!(walk.is_ok(), "the walk has no error of its own");
    !varies
}

/// True for an operator that fails for some values.
fn of_operator(e: &BinaryExpr, expr: &Expr, schema: &DFSchema) -> bool {
    use Operator::{
        And, BitwiseAnd, BitwiseOr, BitwiseShiftLeft, BitwiseShiftRight, BitwiseXor, Divide, Eq,
        Gt, GtEq, ILikeMatch, IntegerDivide, IsDistinctFrom, IsNotDistinctFrom, LikeMatch, Lt,
        LtEq, Minus, Modulo, Multiply, NotEq, NotILikeMatch, NotLikeMatch, Or, Plus, RegexIMatch,
        RegexMatch, RegexNotIMatch, RegexNotMatch, StringConcat,
    };
    match e.op {
        And | Or | Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom => false,
        LikeMatch | ILikeMatch | NotLikeMatch | NotILikeMatch | StringConcat => false,
        BitwiseAnd | BitwiseOr | BitwiseXor | BitwiseShiftLeft | BitwiseShiftRight => false,
        Plus | Minus | Multiply => !is_safe_number(expr, schema) && !is_moved_time(e, schema),
        Divide | IntegerDivide | Modulo => {
            let is_float = |side: &Expr| side.get_type(schema).is_ok_and(|of| of.is_floating());
            let are_floats = is_float(&e.left) && is_float(&e.right);
            !are_floats && !is_positive(&e.right)
        }
        RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch => !is_constant(&e.right),
        _ => true,
    }
}

/// True for a sum, difference or product that does not fail: integers wrap, and a decimal has its digits.
fn is_safe_number(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|kind| match kind {
        DataType::Decimal128(precision, _) => precision < DECIMAL128_MAX_PRECISION,
        kind => kind.is_integer() || kind.is_floating(),
    })
}

/// True for a time and an interval that is written out.
fn is_moved_time(e: &BinaryExpr, schema: &DFSchema) -> bool {
    let is_time = |side: &Expr| {
        let kind = side.get_type(schema);
        kind.is_ok_and(|kind| matches!(kind, DataType::Timestamp(..) | DataType::Date32))
    };
    is_time(&e.left) && is_constant(&e.right) || is_time(&e.right) && is_constant(&e.left)
}

/// True for a positive number that is written out: no division by it fails.
fn is_positive(divisor: &Expr) -> bool {
    match divisor {
        Expr::Literal(value, _) => ScalarValue::new_zero(&value.data_type())
            .is_ok_and(|zero| value.partial_cmp(&zero) == Some(Ordering::Greater)),
        Expr::Cast(cast) => is_positive(&cast.expr),
        _ => false,
    }
}

fn is_safe_call(call: &ScalarFunction, expr: &Expr, schema: &DFSchema) -> bool {
    let name = call.func.name();
    let is_float = || expr.get_type(schema).is_ok_and(|kind| kind.is_floating());
    SAFE.contains(&name)
        || SAFE_BESIDE_CONSTANTS.contains(&name) && only_the_value_varies(call)
        || name.starts_with("tessera_decimal_") && is_safe_number(expr, schema)
        || DIVIDE.contains(&name) && (is_float() || call.args.last().is_some_and(is_positive))
        || is_elementwise(name) && !DIVIDE.contains(&name)
}

/// True if the arguments beside the value that the function takes are constant.
fn only_the_value_varies(call: &ScalarFunction) -> bool {
    let value = usize::from(call.func.name() == "date_trunc");
    let mut arguments = call.args.iter().enumerate();
    arguments.all(|(at, argument)| at == value || is_constant(argument))
}

/// True for a cast that fails for no value.
pub(in crate::lift) fn is_safe_cast(from: &DataType, to: &DataType) -> bool {
    use DataType::{Boolean, Date32, Decimal128, Float16, Float32, Float64, Null, Timestamp};
    match (from, to) {
        _ if from == to => true,
        (Null, _) => true,
        (of, to) if to.is_string() => {
            of.is_string() || of.is_numeric() || of.is_temporal() || *of == Boolean
        }
        (of, Float16 | Float32 | Float64) => of.is_numeric() || *of == Boolean,
        (Boolean, to) => to.is_integer(),
        (of, Decimal128(precision, scale)) => {
            let digits = i16::from(*precision) - i16::from(*scale);
            match of {
                Decimal128(own, own_scale) => {
                    let own = i16::from(*own) - i16::from(*own_scale);
                    // Rounding may add a digit.
                    digits > own || (digits == own && own_scale <= scale)
                }
                of => bits(of).is_some_and(|(bits, _)| digits >= digits_of(bits)),
            }
        }
        (Timestamp(..), Date32) => true,
        (Date32, Timestamp(unit, None)) => *unit != TimeUnit::Nanosecond,
        (Timestamp(own, of), Timestamp(unit, to)) => of == to && unit <= own,
        (of, to) => match (bits(of), bits(to)) {
            (Some((own, is_signed)), Some((bits, to_signed))) => {
                own < bits && (to_signed || !is_signed)
            }
            _ => false,
        },
    }
}

/// The bits of a type of integers, and whether it is signed.
fn bits(kind: &DataType) -> Option<(u32, bool)> {
    kind.is_integer().then_some(())?;
    let bytes = kind.primitive_width()?;
    Some((u32::try_from(bytes).ok()? * 8, kind.is_signed_integer()))
}

/// The decimal digits of integers of `bits` bits.
fn digits_of(bits: u32) -> i16 {
    match bits {
        8 => 3,
        16 => 5,
        32 => 10,
        _ => 20,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::{Field, Schema};
    use datafusion::logical_expr::{cast, lit, try_cast};
    use datafusion::prelude::{col, lower, repeat, split_part, substr};

    fn schema() -> DFSchema {
        let field = |name: &str, kind| Field::new(name, kind, true);
        let fields = vec![
            field("s", DataType::Utf8),
            field("i", DataType::Int64),
            field("j", DataType::Int32),
            field("f", DataType::Float64),
            field("d", DataType::Decimal128(15, 2)),
            field("e", DataType::Decimal128(38, 2)),
            field("t", DataType::Timestamp(TimeUnit::Nanosecond, None)),
        ];
        DFSchema::try_from(Schema::new(fields)).unwrap()
    }

    #[test]
    fn fallible_expressions_are_known() {
        let regex = |of: Expr, by: Expr| {
            Expr::BinaryExpr(BinaryExpr::new(Box::new(of), Operator::RegexMatch, Box::new(by)))
        };
        for (expr, fails) in [
            (cast(col("s"), DataType::Int64), true),
            (try_cast(col("s"), DataType::Int64), false),
            (cast(lit("x"), DataType::Int64), false),
            (cast(col("i"), DataType::Utf8), false),
            (cast(col("j"), DataType::Int64), false),
            (cast(col("i"), DataType::Int32), true),
            (cast(col("i"), DataType::UInt64), true),
            (cast(col("j"), DataType::Decimal128(12, 2)), false),
            (cast(col("j"), DataType::Decimal128(11, 2)), true),
            (cast(col("d"), DataType::Decimal128(20, 4)), false),
            (cast(col("d"), DataType::Decimal128(14, 2)), true),
            (cast(col("f"), DataType::Int64), true),
            (cast(col("t"), DataType::Date32), false),
            (col("i") / col("j"), true),
            (col("i") % lit(3i64), false),
            (col("i") / lit(0i64), true),
            (col("i") / lit(-1i64), true),
            (col("f") / col("f"), false),
            (col("d") / col("d"), true),
            (col("i") + col("j") * col("i"), false),
            (col("d") * col("d"), false),
            (col("e") + col("e"), true),
            (regex(col("s"), lit("a+")), false),
            (regex(col("s"), col("s")), true),
            (lower(col("s")), false),
            (substr(col("s"), lit(1i64)), false),
            (substr(col("s"), col("i")), true),
            (split_part(col("s"), lit(","), lit(1i64)), false),
            (split_part(lit("a,b"), lit(","), col("i")), true),
            (repeat(col("s"), col("i")), true),
            (repeat(lit("a"), lit(3i64)), false),
            (col("s").like(lit("a%")), false),
        ] {
            assert_eq!(may_fail(&expr, &schema()), fails, "{expr:?}");
        }
    }
}
