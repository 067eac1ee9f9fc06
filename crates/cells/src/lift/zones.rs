//! Times with a zone are instants: compared with a time without one, which is UTC here, they are converted to UTC.
//!
//! Arrow would compare the zone's local time with the other side, and read a text without an offset as local time.
//! Times of day of different units, which DataFusion does not compare, are converted to nanoseconds. Runs before types
//! are coerced.

use std::sync::Arc;

use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::planner::RawBinaryExpr;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Projection, cast,
};
use sqlparser::ast::BinaryOperator;
use tessera_planner::dtype::Calendar;
use tessera_planner::time::parse_period;

use super::calendars::{is_text, of_one_kind};
use super::time::is_comparison;

/// Removes the zones of the expression, if times with and without one meet in it.
pub(super) fn one(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { mut left, op, mut right })
            if is_comparison(op) || op == Operator::Minus =>
        {
            let is_changed = meet(&mut left, &mut right, schema);
            let new = Expr::BinaryExpr(BinaryExpr { left, op, right });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::Between(Between { mut expr, negated, mut low, mut high }) => {
            let mut is_changed = false;
            // Twice, because the second side may have changed the value.
            for _ in 0..2 {
                is_changed |= meet(&mut expr, &mut low, schema);
                is_changed |= meet(&mut expr, &mut high, schema);
            }
            let new = Expr::Between(Between { expr, negated, low, high });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::InList(InList { mut expr, mut list, negated }) => {
            let mut is_changed = false;
            // A later item may change the value.
            for _ in 0..2 {
                for item in &mut list {
                    is_changed |= meet(&mut expr, item, schema);
                }
            }
            let new = Expr::InList(InList { expr, list, negated });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        Expr::InSubquery(InSubquery { mut expr, mut subquery, negated }) => {
            let own = subquery.subquery.schema().clone();
            let Some(first) = own.columns().into_iter().next() else {
                let same = Expr::InSubquery(InSubquery { expr, subquery, negated });
                return Ok(Transformed::no(same));
            };
            let first = Expr::Column(first);
            match (time(&expr, schema), time(&first, &own)) {
                (Some((unit, true)), Some((_, false))) => to_utc(&mut expr, unit),
                (Some((_, false)), Some((unit, true))) => {
                    let mut utc = first;
                    to_utc(&mut utc, unit);
                    let plan = Projection::try_new(vec![utc], subquery.subquery)?;
                    subquery.subquery = Arc::new(LogicalPlan::Projection(plan));
                }
                _ => {
                    let same = Expr::InSubquery(InSubquery { expr, subquery, negated });
                    return Ok(Transformed::no(same));
                }
            }
            Ok(Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery, negated })))
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args }) => {
            let is_zoned = |arg: &&Expr| time(arg, schema).is_some_and(|(_, zoned)| zoned);
            let of_kind = of_one_kind(func.name(), &args).unwrap_or_default();
            let mut is_changed = false;
            if let Some(zoned) = of_kind.iter().find(is_zoned).cloned() {
                for arg in &mut args {
                    if let Some(instant) = instant(&zoned, arg, schema) {
                        *arg = instant;
                        is_changed = true;
                    }
                }
            }
            let new = Expr::ScalarFunction(ScalarFunction { func, args });
            Ok(Transformed::new_transformed(new, is_changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// The instant that replaces a text beside a time with a zone: without an offset it is in UTC.
pub(super) fn instant(zoned: &Expr, text: &Expr, schema: &DFSchema) -> Option<Expr> {
    let Expr::Literal(value, _) = text else { return None };
    let text = value.try_as_str()??.trim();
    let DataType::Timestamp(_, Some(zone)) = zoned.get_type(schema).ok()? else { return None };
    let value = match string_to_timestamp_nanos(text) {
        Ok(ns) if ns % 1000 == 0 => ScalarValue::TimestampMicrosecond(Some(ns / 1000), Some(zone)),
        Ok(ns) => ScalarValue::TimestampNanosecond(Some(ns), Some(zone)),
        // `2020-01`, and years that nanoseconds do not reach.
        Err(_) => {
            let (first, _) = parse_period(text, Calendar::Standard)?;
            ScalarValue::TimestampMicrosecond(Some(first), Some(zone))
        }
    };
    Some(Expr::Literal(value, None))
}

/// Makes a text beside a time with a zone an instant.
fn meet_text(zoned: &mut Expr, text: &mut Expr, unit: TimeUnit, schema: &DFSchema) -> bool {
    if let Some(instant) = instant(zoned, text, schema) {
        *text = instant;
        return true;
    }
    // A column of texts is read without a zone. A literal that is no time is an error in later planning.
    let is_column = !matches!(text, Expr::Literal(..));
    if is_column && text.get_type(schema).is_ok_and(|data_type| is_text(&data_type)) {
        to_utc(zoned, unit);
        return true;
    }
    false
}

/// Removes the zone of one of two times if the other has none; gives two times of day one unit.
fn meet(a: &mut Expr, b: &mut Expr, schema: &DFSchema) -> bool {
    match (time(a, schema), time(b, schema)) {
        (Some((unit, true)), Some((_, false))) => to_utc(a, unit),
        (Some((_, false)), Some((unit, true))) => to_utc(b, unit),
        (Some((unit, true)), None) => return meet_text(a, b, unit, schema),
        (None, Some((unit, true))) => return meet_text(b, a, unit, schema),
        _ => {
            // Later planning of the expression reports an error.
            let (Ok(of_a), Ok(of_b)) = (a.get_type(schema), b.get_type(schema)) else {
                return false;
            };
            return of_one_unit([a, b], [&of_a, &of_b]);
        }
    }
    true
}

/// Gives the sides of a comparison one unit, if they are times of day. Their types must fit while the plan is built.
pub(super) fn compared(expr: &mut RawBinaryExpr, schema: &DFSchema) {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    if matches!(expr.op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
        && let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema))
    {
        of_one_unit([&mut expr.left, &mut expr.right], [&left, &right]);
    }
}

fn of_one_unit(sides: [&mut Expr; 2], kinds: [&DataType; 2]) -> bool {
    let are_times =
        kinds.iter().all(|kind| matches!(kind, DataType::Time32(_) | DataType::Time64(_)));
    if !are_times || kinds[0] == kinds[1] {
        return false;
    }
    for side in sides {
        *side = cast(std::mem::take(side), DataType::Time64(TimeUnit::Nanosecond));
    }
    true
}

/// The unit of a time, and true if it has a zone. Later planning of the expression reports an error.
fn time(expr: &Expr, schema: &DFSchema) -> Option<(TimeUnit, bool)> {
    match expr.get_type(schema).ok()? {
        DataType::Timestamp(unit, zone) => Some((unit, zone.is_some())),
        _ => None,
    }
}

fn to_utc(expr: &mut Expr, unit: TimeUnit) {
    let zoned = std::mem::take(expr);
    let utc = cast(zoned, DataType::Timestamp(unit, Some("+00:00".into())));
    *expr = cast(utc, DataType::Timestamp(unit, None));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;
    use arrow::datatypes::{Field, Schema};
    use datafusion::logical_expr::{col, lit};

    fn schema(unit: TimeUnit) -> DFSchema {
        let zoned = DataType::Timestamp(unit, Some("Europe/Oslo".into()));
        let fields = [("at", zoned), ("t", DataType::Timestamp(unit, None)), ("s", DataType::Utf8)];
        let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true));
        DFSchema::try_from(Schema::new(fields.to_vec())).unwrap()
    }

    #[test]
    fn a_text_beside_a_zone_is_in_utc() {
        let schema = schema(TimeUnit::Microsecond);
        let micros = |text: &str| match instant(&col("at"), &lit(text), &schema)? {
            Expr::Literal(ScalarValue::TimestampMicrosecond(value, zone), None) => {
                assert_eq!(zone.as_deref(), Some("Europe/Oslo"));
                value
            }
            other => panic!("{other}"),
        };
        let start = 1_577_836_800_000_000; // 2020-01-01T00:00:00Z
        assert_eq!(micros("2020"), Some(start));
        assert_eq!(micros("2020-01"), Some(start));
        assert_eq!(micros("2020-01-01"), Some(start));
        assert_eq!(micros(" 2020-01-01 00:00:00 "), Some(start));
        assert_eq!(micros("2020-01-01T00:00:00Z"), Some(start));
        assert_eq!(micros("2020-01-01T01:00:00+01:00"), Some(start));
        assert_eq!(micros("0001-01-01"), Some(-62_135_596_800_000_000));
        assert_eq!(micros("soon"), None);
        // Beside a time without a zone, and beside a text, it stays.
        assert_eq!(instant(&col("t"), &lit("2020"), &schema), None);
        assert_eq!(instant(&col("s"), &lit("2020"), &schema), None);
        let fine = instant(&col("at"), &lit("2020-01-01T00:00:00.000000001"), &schema).unwrap();
        let want = Some(start * 1000 + 1);
        assert!(
            matches!(fine, Expr::Literal(ScalarValue::TimestampNanosecond(ns, _), _) if ns == want)
        );
    }

    #[test]
    fn all_of_a_list_meet_alike() {
        let schema = schema(TimeUnit::Microsecond);
        let list = vec![lit("2020-01-01"), col("t"), lit("2020-01-02")];
        let new = one(col("at").in_list(list, false), &schema).unwrap().data;
        let Expr::InList(InList { expr, list, .. }) = new else { panic!("{new}") };
        let is_zoned = |e: &Expr| time(e, &schema).unwrap().1;
        assert!(!is_zoned(&expr));
        // Texts that follow are read without a zone, those before are instants without one.
        assert!(!is_zoned(&list[0]) && !is_zoned(&list[1]), "{list:?}");
    }
}
