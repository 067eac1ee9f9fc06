//! `generate_series` and `range` in FROM: their arguments, which are evaluated before the query is planned.
//!
//! ```text
//! FROM range(stop) · range(start, stop[, step])              integers, int64
//! FROM range(start, stop, step), with times and INTERVAL     timestamps in microseconds
//! ```
//! `range` ends before its stop, `generate_series` at it. A NULL among the arguments leaves no rows.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalUnit, Schema};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use sqlparser::ast::{FunctionArg, FunctionArgExpr, ObjectName, Query, SetExpr};

use super::labels::physical;
use super::{CellTables, Density, error, names};
use crate::rows::{Series, SeriesRows};
use tessera_frontend::error::{Error, Position};

const DAY_US: i64 = 86_400_000_000;

/// A call in FROM.
pub(super) struct Call<'a> {
    function: &'static str,
    with_stop: bool,
    /// The name of the column, if it differs from the function's.
    pub(super) column: Option<&'a str>,
    args: &'a [FunctionArg],
    position: Option<Position>,
}

impl<'a> Call<'a> {
    /// The call, if it is one of these functions.
    pub(super) fn of(
        name: &ObjectName,
        args: &'a [FunctionArg],
        column: Option<&'a str>,
    ) -> Option<Self> {
        let (function, with_stop) = match name.to_string().to_ascii_lowercase().as_str() {
            "generate_series" => ("generate_series", true),
            "range" => ("range", false),
            _ => return None,
        };
        Some(Call { function, with_stop, column, args, position: Position::of(name) })
    }

    pub(super) fn function(&self) -> &'static str {
        self.function
    }

    /// The table. `text` contains the call.
    ///
    /// # Errors
    /// `type_error` for arguments that the function does not take, and the errors of planning for them.
    pub(super) fn table(
        &self,
        tables: &dyn CellTables,
        state: &SessionState,
        text: u64,
    ) -> Result<Series, Error> {
        let args = self.evaluated(tables, state, text)?;
        let types: Vec<DataType> = args.iter().map(ScalarValue::data_type).collect();
        let is = |of: fn(&DataType) -> bool, at: usize| types[at].is_null() || of(&types[at]);
        match args.as_slice() {
            [_] | [_, _] | [_, _, _] if (0..args.len()).all(|at| is(is_integer, at)) => {
                self.integers(&args)
            }
            [start, stop, step] if is(is_time, 0) && is(is_time, 1) && is(is_interval, 2) => {
                self.times(start, stop, step)
            }
            _ => {
                let types: Vec<String> =
                    types.iter().map(|one| error::spoken(&one.to_string())).collect();
                Err(self.refused(format!("is not defined for {}", types.join(", "))))
            }
        }
    }

    fn evaluated(
        &self,
        tables: &dyn CellTables,
        state: &SessionState,
        text: u64,
    ) -> Result<Vec<ScalarValue>, Error> {
        let mut written = Vec::new();
        for arg in self.args {
            match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => written.push(expr.clone()),
                _ => return Err(self.refused("takes no named arguments".to_string())),
            }
        }
        if written.is_empty() || written.len() > 3 {
            return Err(self.refused(format!("does not take {} arguments", written.len())));
        }
        let Some(query) = values(written) else {
            return Err(self.refused("cannot be read".to_string()));
        };
        let (query, prepared) = names::prepare(&query, tables, "VALUES", Density::Auto, text)?;
        let plan = super::logical(query, &prepared, state);
        let plan =
            plan.map_err(|e| self.placed(error::of_text(error::plan(e), &prepared.texts)))?;
        let LogicalPlan::Values(row) = plan else {
            return Err(self.refused("takes constants".to_string()));
        };
        let empty = Arc::new(Schema::empty());
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let one = RecordBatch::try_new_with_options(empty, vec![], &options);
        let one = one.map_err(|e| self.placed(error::plan(e.into())))?;
        let value = |expr| {
            let expr = physical(state, expr, &DFSchema::empty())?;
            ScalarValue::try_from_array(&expr.evaluate(&one)?.into_array(1)?, 0)
        };
        let row = row.values.into_iter().flatten().map(value);
        let row: datafusion::error::Result<Vec<ScalarValue>> = row.collect();
        row.map_err(|e| self.placed(error::plan(e)))
    }

    fn integers(&self, args: &[ScalarValue]) -> Result<Series, Error> {
        let mut numbers = Vec::new();
        for arg in args {
            let number = arg.cast_to(&DataType::Int64);
            match number.map_err(|e| self.placed(error::plan(e)))? {
                ScalarValue::Int64(Some(number)) => numbers.push(number),
                _ => return Ok(self.series(SeriesRows::strided(0, 0, 1, false))),
            }
        }
        let (start, stop, step) = match numbers.as_slice() {
            [stop] => (0, *stop, 1),
            [start, stop] => (*start, *stop, 1),
            [start, stop, step, ..] => (*start, *stop, *step),
            [] => (0, 0, 1),
        };
        if step == 0 {
            return Err(self.refused("has a step of 0".to_string()));
        }
        Ok(self.series(SeriesRows::strided(start, stop, step, self.with_stop)))
    }

    fn times(
        &self,
        start: &ScalarValue,
        stop: &ScalarValue,
        step: &ScalarValue,
    ) -> Result<Series, Error> {
        let zone = match (zone_of(start), zone_of(stop)) {
            (Some(zone), Some(_)) => Some(zone),
            (None, None) => None,
            _ if start.is_null() || stop.is_null() => None,
            _ => {
                let what = "has a time with a zone and one without";
                return Err(self.refused(what.to_string()));
            }
        };
        let column = self.column.unwrap_or(self.function);
        let table = |rows| Ok(Series::of_times(self.function, column, rows, zone.clone()));
        let (start, stop, step) = (self.us(start)?, self.us(stop)?, self.step(step)?);
        let (Some(start), Some(stop), Some(step)) = (start, stop, step) else {
            return table(SeriesRows::strided(0, 0, 1, false));
        };
        let is_utc = zone.as_deref().is_none_or(|zone| matches!(zone, "UTC" | "+00:00" | "Z"));
        let days = i64::from(step.days);
        if step.months == 0
            && (days == 0 || is_utc)
            && let Some(days) = days.checked_mul(DAY_US)
            && let Some(by) = days.checked_add(step.nanoseconds / 1000)
        {
            return table(SeriesRows::strided(start, stop, by, self.with_stop));
        }
        let name = zone.as_deref().unwrap_or("+00:00");
        let Ok(zone) = Tz::from_str(name) else {
            return Err(self.refused(format!("does not know the time zone `{name}`")));
        };
        table(SeriesRows::Calendar { start, stop, with_stop: self.with_stop, step, zone })
    }

    /// Microseconds of a time; `None` for NULL.
    fn us(&self, time: &ScalarValue) -> Result<Option<i64>, Error> {
        let (value, per_us, us_per) = match time {
            ScalarValue::TimestampNanosecond(value, _) => (*value, 1000, 1),
            ScalarValue::TimestampMicrosecond(value, _) => (*value, 1, 1),
            ScalarValue::TimestampMillisecond(value, _) => (*value, 1, 1000),
            ScalarValue::TimestampSecond(value, _) => (*value, 1, 1_000_000),
            ScalarValue::Date32(value) => (value.map(i64::from), 1, DAY_US),
            ScalarValue::Date64(value) => (*value, 1, 1000),
            _ => return Ok(None),
        };
        let Some(value) = value else { return Ok(None) };
        if value % per_us != 0 {
            return Err(self.refused("takes times of whole microseconds".to_string()));
        }
        let us = (value / per_us).checked_mul(us_per);
        us.map(Some).ok_or_else(|| self.refused("takes no time so far from 1970".to_string()))
    }

    /// The step; `None` for NULL.
    fn step(&self, step: &ScalarValue) -> Result<Option<IntervalMonthDayNano>, Error> {
        let step = step.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano));
        let step = step.map_err(|e| self.placed(error::plan(e)))?;
        let ScalarValue::IntervalMonthDayNano(Some(step)) = step else { return Ok(None) };
        let signs = [step.months.signum(), step.days.signum(), step.nanoseconds.signum() as i32];
        let refused = |what: &str| Err(self.refused(what.to_string()));
        match (signs.contains(&1), signs.contains(&-1)) {
            (false, false) => refused("has a step of 0"),
            (true, true) => refused("has a step with parts forward and backward"),
            _ if step.nanoseconds % 1000 != 0 => refused("takes steps of whole microseconds"),
            _ => Ok(Some(step)),
        }
    }

    fn series(&self, rows: SeriesRows) -> Series {
        Series::of_integers(self.function, self.column.unwrap_or(self.function), rows)
    }

    fn refused(&self, what: String) -> Error {
        let name = self.function;
        Error::cells("type_error", format!("`{name}` in FROM {what}"), self.position)
            .with_hint(format!("`{name}(stop)`, `{name}(start, stop)` and `{name}(start, stop, step)` take integers; `{name}(t0, t1, INTERVAL '1 day')` takes dates or timestamps"))
    }

    fn placed(&self, error: Error) -> Error {
        match error.position() {
            Some(_) => error,
            None => error.moved(self.position),
        }
    }
}

fn is_integer(of: &DataType) -> bool {
    of.is_integer()
}

fn is_time(of: &DataType) -> bool {
    matches!(of, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
}

fn is_interval(of: &DataType) -> bool {
    matches!(of, DataType::Interval(_))
}

fn zone_of(time: &ScalarValue) -> Option<Arc<str>> {
    match time {
        ScalarValue::TimestampNanosecond(_, zone)
        | ScalarValue::TimestampMicrosecond(_, zone)
        | ScalarValue::TimestampMillisecond(_, zone)
        | ScalarValue::TimestampSecond(_, zone) => zone.clone(),
        _ => None,
    }
}

/// `VALUES (a, b, …)`.
fn values(row: Vec<sqlparser::ast::Expr>) -> Option<Query> {
    let mut query = tessera_frontend::query_of("VALUES (0)").ok()??;
    let SetExpr::Values(values) = &mut *query.body else { return None };
    values.rows.first_mut()?.content = row;
    Some(*query)
}
