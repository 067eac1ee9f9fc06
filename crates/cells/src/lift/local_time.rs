//! `t AT TIME ZONE 'Europe/Berlin'` converts a time with a zone to the local time there, and a time without a zone from
//! the local time there to an instant.
//!
//! DataFusion casts either to a time with the zone, which is the same instant as before. Here a function carries the
//! construct through DataFusion's planner, and stays in the plan if it makes an instant of a time. Runs before types
//! are coerced.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use arrow::util::display::array_value_to_string;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    DFSchema, DataFusionError, Result, ScalarValue, exec_err, internal_err, plan_err,
};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility, cast,
};
use tessera_frontend::error::Error;
use tessera_planner::dtype::Calendar;

use super::functions::{columnar, scalar};
use super::table::calendar;
use crate::clock;
use crate::type_name;

/// Name of the function, which no text can produce.
pub(super) const NAME: &str = "tessera_at_time_zone";

/// The function of that name: `tessera_at_time_zone(time, zone)`.
pub(super) fn function(name: &str) -> Option<ScalarUDF> {
    let signature = Signature::any(2, Volatility::Immutable);
    (name == NAME).then(|| ScalarUDF::new_from_impl(AtTimeZone { signature }))
}

/// Replaces a call of the function, but one that makes an instant of a time or a date.
pub(super) fn one(
    expr: Expr,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Transformed<Expr>> {
    let ScalarFunction { func, args } = match expr {
        Expr::ScalarFunction(call) if call.func.name() == NAME => call,
        other => return Ok(Transformed::no(other)),
    };
    let Ok([time, Expr::Literal(zone, metadata)]) = <[Expr; 2]>::try_from(args) else {
        return internal_err!("{NAME} takes a time and a zone");
    };
    let (_, field) = time.to_field(schema)?;
    let name = zone_of(Some(&zone))?;
    let kind = result(&field, name)?;
    let is_text =
        !matches!(field.data_type(), DataType::Date32 | DataType::Date64 | DataType::Timestamp(..));
    Ok(Transformed::yes(match (&kind, state.scalar_functions().get("to_local_time")) {
        (DataType::Timestamp(unit, None), Some(to_local_time)) => {
            let there = DataType::Timestamp(*unit, Some(name.into()));
            to_local_time.call(vec![cast(time, there)])
        }
        (DataType::Timestamp(_, Some(_)), _) if is_text => cast(time, kind),
        (DataType::Timestamp(unit, Some(_)), _) => {
            let shown = cast(time, DataType::Timestamp(*unit, None));
            let args = vec![shown, Expr::Literal(zone, metadata)];
            Expr::ScalarFunction(ScalarFunction { func, args })
        }
        _ => return internal_err!("no such function: to_local_time"),
    }))
}

fn zone_of(zone: Option<&ScalarValue>) -> Result<&str> {
    let Some(zone) = zone.and_then(|zone| zone.try_as_str().flatten()) else {
        return refused(
            Error::unsupported("AT TIME ZONE with a zone that is not a text of the query", None)
                .with_hint("write its name, as in `AT TIME ZONE 'Europe/Berlin'`"),
        );
    };
    match Tz::from_str(zone) {
        Ok(_) => Ok(zone),
        Err(_) => refused(
            Error::cells("invalid_argument", format!("`{zone}` is not a time zone"), None)
                .with_hint("write a name such as 'Europe/Berlin', or an offset as '+02:00'"),
        ),
    }
}

/// The type of a time AT TIME ZONE.
fn result(time: &Field, zone: &str) -> Result<DataType> {
    let unit = match time.data_type() {
        DataType::Timestamp(unit, Some(_)) => return Ok(DataType::Timestamp(*unit, None)),
        DataType::Timestamp(unit, None) => *unit,
        DataType::Date32 | DataType::Date64 => TimeUnit::Microsecond,
        DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            TimeUnit::Nanosecond
        }
        other => {
            let what = match calendar(time).filter(|calendar| *calendar != Calendar::Standard) {
                Some(calendar) => format!("a time of the calendar {}", calendar.name()),
                None => type_name(other),
            };
            return refused(Error::Cells {
                code: "type_error",
                message: format!("AT TIME ZONE takes a time or a date, not {what}"),
                position: None,
                hint: None,
            });
        }
    };
    Ok(DataType::Timestamp(unit, Some(zone.into())))
}

fn refused<T>(error: Error) -> Result<T> {
    Err(DataFusionError::External(Box::new(error)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AtTimeZone {
    signature: Signature,
}

impl ScalarUDFImpl for AtTimeZone {
    scalar!(name NAME, signature, type_by_field);

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let ([time, _], [_, zone]) = (args.arg_fields, args.scalar_arguments) else {
            return plan_err!("{NAME} takes two arguments");
        };
        let kind = result(time, zone_of(*zone)?)?;
        Ok(Arc::new(Field::new(NAME, kind, time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kind = args.return_field.data_type();
        let ([time, _], DataType::Timestamp(unit, Some(zone))) = (args.args.as_slice(), kind)
        else {
            return exec_err!("{NAME} stands for a part of a query and has no value");
        };
        let (zone, is_scalar) = (Tz::from_str(zone)?, matches!(time, ColumnarValue::Scalar(_)));
        let times = time.to_array(1)?;
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let instants = match cast_with_options(&times, kind, &strict) {
            Ok(instants) => instants,
            // Arrow has no result at daylight saving transitions.
            Err(_) => {
                clock::mapped(&times, kind, |row, time| match clock::instant(time, *unit, zone) {
                    Some(instant) => Ok(Some(instant)),
                    None => exec_err!(
                        "{} AT TIME ZONE is beyond the range of times",
                        array_value_to_string(&times, row)?
                    ),
                })?
            }
        };
        columnar(instants, is_scalar)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn at_time_zone_adds_and_removes_zones() {
        use DataType::{Date32, Int64, Timestamp};
        use TimeUnit::{Microsecond, Millisecond};
        let of = |kind: DataType| result(&Field::new("t", kind, true), "Europe/Berlin").ok();
        let there = |unit| Some(Timestamp(unit, Some("Europe/Berlin".into())));
        assert_eq!(of(Timestamp(Millisecond, None)), there(Millisecond));
        let zoned = Timestamp(Millisecond, Some("UTC".into()));
        assert_eq!(of(zoned), Some(Timestamp(Millisecond, None)));
        assert_eq!(of(Date32), there(Microsecond));
        assert_eq!(of(Int64), None);
        for (zone, want) in
            [("Europe/Berlin", true), ("+02:00", true), ("UTC", true), ("nowhere", false)]
        {
            let zone = ScalarValue::from(zone);
            assert_eq!(zone_of(Some(&zone)).is_ok(), want, "{zone}");
        }
        assert!(zone_of(None).is_err());
    }
}
