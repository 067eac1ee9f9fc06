//! Values of one column, and values that are compared, are times of one calendar.
//!
//! Times of calendars that Arrow does not know are `int64` with the calendar in the field's metadata. SQL knows only the
//! integers, so without these checks the numbers of one calendar would be read in another one. Runs before types are
//! coerced, from [`super::time`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError, Result};
use datafusion::logical_expr::expr::{Between, InList, InSubquery, ScalarFunction, SetComparison};
use datafusion::logical_expr::{Case, Expr, ExprSchemable, LogicalPlan, Operator};
use tessera_frontend::error::{Error, Position};
use tessera_planner::dtype::Calendar;

use super::functions::InCalendar;
use super::table::calendar;
use super::time::meet;

/// How to compare times of a calendar.
const COMPARED: &str = "compare times with dates as texts, as in `time >= '2000-01-30'`, or parts of dates: `date_part('year', time)`";

/// How to bring times of several calendars together.
const AS_TEXTS: &str = "make them texts, which are dates of their own calendars: `time::text`; or parts of dates: `year(time)`";

/// Aggregates that compute with numbers.
const OF_NUMBERS: [&str; 15] = [
    "approx_median",
    "approx_percentile_cont",
    "avg",
    "histogram",
    "kurtosis",
    "kurtosis_pop",
    "median",
    "percentile_cont",
    "product",
    "skewness",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
];

pub(super) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

pub(super) fn calendar_of(expr: &Expr, schema: &DFSchema) -> Option<Calendar> {
    // An error here is not lost: later planning of the same expression reports it.
    let (_, field) = expr.to_field(schema).ok()?;
    calendar(&field)
}

/// The calendar of a time that Arrow does not know.
pub(super) fn other_calendar_of(expr: &Expr, schema: &DFSchema) -> Option<Calendar> {
    calendar_of(expr, schema).filter(|c| *c != Calendar::Standard)
}

/// Rejects an operator between times of calendars that Arrow does not know and incompatible values.
pub(super) fn meets(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Result<()> {
    alike(&op, &fields([left, right], schema), COMPARED)
}

/// Rejects columns of a plan's node that would have times of several calendars.
pub(super) fn check_node(node: &LogicalPlan) -> Result<()> {
    let inputs: Vec<&Arc<LogicalPlan>> = match node {
        LogicalPlan::Union(union) => union.inputs.iter().collect(),
        LogicalPlan::RecursiveQuery(query) => vec![&query.static_term, &query.recursive_term],
        _ => return Ok(()),
    };
    let columns = inputs.iter().map(|input| input.schema().fields().len()).min().unwrap_or(0);
    for i in 0..columns {
        let of_input = inputs.iter().map(|input| input.schema().fields()[i].clone());
        alike(&"UNION", &of_input.collect::<Vec<_>>(), AS_TEXTS)?;
    }
    Ok(())
}

/// Rejects an expression in which times of several calendars are compared or become one value.
pub(super) fn check(expr: &Expr, schema: &DFSchema) -> Result<()> {
    match expr {
        Expr::Between(Between { expr, low, high, .. }) => {
            alike(&"BETWEEN", &fields([&**expr, &**low, &**high], schema), COMPARED)
        }
        Expr::InList(InList { expr, list, .. }) => {
            alike(&"IN", &fields([&**expr].into_iter().chain(list), schema), COMPARED)
        }
        Expr::InSubquery(InSubquery { expr, subquery, .. }) => {
            let mut all = fields([&**expr], schema);
            all.extend(subquery.subquery.schema().fields().first().cloned());
            alike(&"IN", &all, AS_TEXTS)
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, .. }) => {
            let mut all = fields([&**expr], schema);
            all.extend(subquery.subquery.schema().fields().first().cloned());
            alike(op, &all, AS_TEXTS)
        }
        Expr::Case(case) => {
            if let Some(base) = &case.expr {
                let whens = case.when_then_expr.iter().map(|(when, _)| &**when);
                alike(&"CASE", &fields([&**base].into_iter().chain(whens), schema), COMPARED)?;
            }
            alike(&"CASE", &fields(results(case), schema), AS_TEXTS)
        }
        Expr::ScalarFunction(ScalarFunction { func, args }) => match of_one_kind(func.name(), args)
        {
            Some(args) => alike(&func.name(), &fields(args, schema), AS_TEXTS),
            None => Ok(()),
        },
        Expr::AggregateFunction(call) => no_numbers(call.func.name(), &call.params.args, schema),
        Expr::WindowFunction(call) => no_numbers(call.fun.name(), &call.params.args, schema),
        _ => Ok(()),
    }
}

/// Rejects an aggregate of numbers over times of calendars that Arrow does not know: it would compute with integers.
fn no_numbers(function: &str, args: &[Expr], schema: &DFSchema) -> Result<()> {
    if !OF_NUMBERS.contains(&function) {
        return Ok(());
    }
    match args.iter().find_map(|arg| other_calendar_of(arg, schema)) {
        Some(calendar) => Err(DataFusionError::External(Box::new(Error::Cells {
            code: "type_error",
            message: format!(
                "`{function}` is not defined for times of the calendar {}",
                calendar.name()
            ),
            position: None,
            hint: Some(
                "take it of seconds since 1970: `epoch(time)`; `min`, `max` and `count` take times"
                    .to_string(),
            ),
        }))),
        None => Ok(()),
    }
}

/// Makes the result of CASE, and of functions that return one of their arguments, a time of the arguments' calendar.
/// Texts beside such a time are dates of the calendar. Sets `has_kept` for a new time.
pub(super) fn kept(
    expr: Expr,
    schema: &DFSchema,
    texts: &BTreeMap<String, Position>,
    has_kept: &mut bool,
) -> Result<Transformed<Expr>> {
    let is_known = |e: &&Expr| other_calendar_of(e, schema).is_some();
    let (new, calendar, is_changed) = match expr {
        Expr::Case(mut case) => {
            let mut is_changed = false;
            if let Some(base) = case.expr.as_deref().filter(is_known) {
                for (when, _) in &mut case.when_then_expr {
                    if let Some(moment) = meet(base, when, schema, texts)? {
                        **when = moment;
                        is_changed = true;
                    }
                }
            }
            let calendar = result_calendar(results(&case), schema);
            (Expr::Case(case), calendar, is_changed)
        }
        Expr::ScalarFunction(ScalarFunction { func, mut args }) => {
            let of_kind = of_one_kind(func.name(), &args).unwrap_or_default();
            let time = of_kind.iter().find(is_known).cloned();
            let mut is_changed = false;
            if let Some(time) = &time {
                for arg in &mut args {
                    if let Some(moment) = meet(time, arg, schema, texts)? {
                        *arg = moment;
                        is_changed = true;
                    }
                }
            }
            let of_kind = of_one_kind(func.name(), &args).unwrap_or_default();
            let calendar = result_calendar(of_kind, schema);
            (Expr::ScalarFunction(ScalarFunction { func, args }), calendar, is_changed)
        }
        other => return Ok(Transformed::no(other)),
    };
    let Some(calendar) = calendar else {
        return Ok(Transformed::new_transformed(new, is_changed));
    };
    *has_kept = true;
    let function = Arc::new(InCalendar::new(calendar).into());
    Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![new]))))
}

/// The common calendar of values, some of which may be NULL; `None` if one is a text: all become texts then.
fn result_calendar<'a>(
    values: impl IntoIterator<Item = &'a Expr>,
    schema: &DFSchema,
) -> Option<Calendar> {
    let fields = fields(values, schema);
    let has_texts = fields.iter().any(|field| is_text(field.data_type()));
    let calendars = fields.iter().filter_map(|field| calendar(field));
    let mut others = calendars.filter(|c| *c != Calendar::Standard);
    if has_texts { None } else { others.next() }
}

/// The values of which CASE returns one.
fn results(case: &Case) -> impl Iterator<Item = &Expr> {
    let thens = case.when_then_expr.iter().map(|(_, then)| &**then);
    thens.chain(case.else_expr.as_deref())
}

/// The arguments of a function that returns one of them, or compares them.
pub(super) fn of_one_kind<'a>(name: &str, args: &'a [Expr]) -> Option<&'a [Expr]> {
    match name {
        "coalesce" | "greatest" | "least" | "nullif" | "nvl" => Some(args),
        "nvl2" => args.get(1..),
        _ => None,
    }
}

/// The fields of expressions whose types are known: later planning reports the others.
fn fields<'a>(exprs: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) -> Vec<FieldRef> {
    exprs.into_iter().filter_map(|e| e.to_field(schema).ok().map(|(_, field)| field)).collect()
}

/// Fails if times of a calendar that Arrow does not know meet values that are neither times of it, texts nor NULL.
fn alike(what: &dyn fmt::Display, fields: &[FieldRef], hint: &str) -> Result<()> {
    let mut known =
        fields.iter().filter(|field| !field.data_type().is_null() && !is_text(field.data_type()));
    let Some(first) = known.next() else { return Ok(()) };
    for field in known {
        if calendar(first) != calendar(field) && (is_other(first) || is_other(field)) {
            return Err(DataFusionError::External(Box::new(Error::Cells {
                code: "type_error",
                message: format!(
                    "`{what}` is not defined for {} and {}",
                    spoken(first),
                    spoken(field)
                ),
                position: None,
                hint: Some(hint.to_string()),
            })));
        }
    }
    Ok(())
}

fn is_other(field: &Field) -> bool {
    calendar(field).is_some_and(|c| c != Calendar::Standard)
}

fn spoken(field: &Field) -> String {
    match calendar(field) {
        Some(calendar) => format!("a time of the calendar {}", calendar.name()),
        None => super::error::spoken(&field.data_type().to_string()),
    }
}
