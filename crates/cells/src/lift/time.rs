//! Converts texts compared with times to instants of the time's calendar.
//!
//! It runs on the plan before types are coerced, because coercion would read `'2020-01'` as text. A text compared with
//! a time is its first instant: `time >= '2020'` begins with the year. [`calendars`], [`unsigned`], [`float32`],
//! [`local_time`], [`zones`], [`operators`] and [`escape`] run in the same traversal. `time - '2020'` has no type with a
//! text, so [`Since`]
//! converts it while the plan is built.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Between, Cast, InList, ScalarFunction, TryCast};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator};
use sqlparser::ast::BinaryOperator;
use tessera_planner::dtype::Calendar;
use tessera_planner::time::parse_period;

use super::calendars::{calendar_of, is_text, meets};
use super::functions::{NestedText, TimeText, readable, texts_with_seconds};
use super::{calendars, clocks, escape, float32, local_time, operators, unsigned, zones};
use tessera_frontend::error::{Error, Position};

pub(crate) fn rewrite(
    plan: LogicalPlan,
    texts: &BTreeMap<String, Position>,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let mut has_kept = false;
    plan.map_all_up(|node| {
        let schema = merge_schema(&node.inputs());
        calendars::check_node(&node)?;
        if let LogicalPlan::Join(join) = &node {
            for (left, right) in &join.on {
                meets(left, Operator::Eq, right, &schema)?;
            }
        }
        let names = NamePreserver::new(&node);
        let new = node.map_exprs(|expr| {
            super::go_on()?;
            let name = names.save(&expr);
            expr.map_up(|e| {
                one(e, &schema, texts)?
                    .transform_data(|e| calendars::kept(e, &schema, texts, &mut has_kept))?
                    .transform_data(|e| unsigned::one(e, &schema))?
                    .transform_data(|e| float32::one(e, &schema))?
                    .transform_data(|e| local_time::one(e, &schema, state))?
                    .transform_data(|e| zones::one(e, &schema))?
                    .transform_data(|e| operators::one(e, &schema, state))?
                    .transform_data(|e| escape::one(e, state))
            })?
            .map_data(|e| Ok(name.restore(e)))
        })?;
        // Nodes above see the calendars of the new columns.
        if has_kept { new.map_data(LogicalPlan::recompute_schema) } else { Ok(new) }
    })
    .map(|t| t.data)
}

fn one(
    expr: Expr,
    schema: &DFSchema,
    texts: &BTreeMap<String, Position>,
) -> Result<Transformed<Expr>> {
    calendars::check(&expr, schema)?;
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if is_comparison(op) || op == Operator::Minus =>
        {
            let l = meet(&left, &right, schema, texts)?;
            let r = meet(&right, &left, schema, texts)?;
            let is_changed = l.is_some() || r.is_some();
            if !is_changed {
                meets(&left, op, &right, schema)?;
            }
            let new = BinaryExpr::new(r.map_or(left, Box::new), op, l.map_or(right, Box::new));
            Ok(Transformed::new_transformed(Expr::BinaryExpr(new), is_changed))
        }
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::Plus | Operator::Minus),
            right,
        }) => {
            meets(&left, op, &right, schema)?;
            Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            let l = meet(&expr, &low, schema, texts)?;
            let h = meet(&expr, &high, schema, texts)?;
            let is_changed = l.is_some() || h.is_some();
            let new =
                Between::new(expr, negated, l.map_or(low, Box::new), h.map_or(high, Box::new));
            Ok(Transformed::new_transformed(Expr::Between(new), is_changed))
        }
        Expr::InList(InList { expr, mut list, negated }) => {
            let mut is_changed = false;
            for item in &mut list {
                if let Some(new) = meet(&expr, item, schema, texts)? {
                    *item = new;
                    is_changed = true;
                }
            }
            Ok(Transformed::new_transformed(
                Expr::InList(InList { expr, list, negated }),
                is_changed,
            ))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Casts of times in non-standard calendars to text yield dates of their calendar, not SQL's integers; casts to the
/// times of SQL yield the same dates there, and NULL or an error for a date that SQL's calendar does not have. Casts of
/// texts to times read `2020-01-05 10:30` and `2020/01/05`, too. Casts of lists, structs and maps to text are DuckDB's.
///
/// Runs on the analysed plan, which has the implicit casts too.
pub(crate) fn as_texts(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.map_all_up(|node| {
        let schema = merge_schema(&node.inputs());
        super::map_parts(node, |e| {
            let (inner, field, is_tried) = match &e {
                Expr::Cast(Cast { expr, field }) => (expr, field, false),
                Expr::TryCast(TryCast { expr, field }) => (expr, field, true),
                _ => return Ok(Transformed::no(e)),
            };
            let cast_to = |value: Expr, field: FieldRef| match is_tried {
                true => Expr::TryCast(TryCast::new_from_field(Box::new(value), field)),
                false => Expr::Cast(Cast::new_from_field(Box::new(value), field)),
            };
            if let DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 = field.data_type()
                && let Some(text) = readable_text(inner, &schema)
            {
                return Ok(Transformed::yes(cast_to(text, field.clone())));
            }
            // A type that is not known here is reported by later planning.
            if is_text(field.data_type()) && inner.get_type(&schema).is_ok_and(|of| of.is_nested())
            {
                let function = Arc::new(NestedText::default().into());
                let text = ScalarFunction::new_udf(function, vec![Expr::clone(inner)]);
                let text = Expr::ScalarFunction(text);
                return Ok(Transformed::yes(match field.data_type() {
                    DataType::Utf8 => text,
                    _ => cast_to(text, field.clone()),
                }));
            }
            let (is_text, is_moment) = (is_text(field.data_type()), is_moment(field.data_type()));
            let is_other = |c| c != Calendar::Standard;
            if !(is_text || is_moment) || !calendar_of(inner, &schema).is_some_and(is_other) {
                return Ok(Transformed::no(e));
            }
            let text = Expr::ScalarFunction(ScalarFunction::new_udf(
                Arc::new(TimeText::default().into()),
                vec![Expr::clone(inner)],
            ));
            Ok(Transformed::yes(match field.data_type() {
                DataType::Utf8 => text,
                DataType::Timestamp(..) => cast_to(text, field.clone()),
                _ if is_moment => {
                    // A date or a clock is no text of both.
                    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
                    let moment = cast_to(text, Arc::new(Field::new("", micros, true)));
                    cast_to(moment, field.clone())
                }
                _ => cast_to(text, field.clone()),
            }))
        })
    })
    .map(|t| t.data)
}

/// The text of a time that Arrow reads, if the expression is a text that it may not read.
fn readable_text(text: &Expr, schema: &DFSchema) -> Option<Expr> {
    if let Expr::Literal(value, _) = text {
        let text = readable(value.try_as_str().flatten()?)?;
        return Some(Expr::Literal(ScalarValue::from(text), None));
    }
    // Later planning of the expression reports an error.
    let is_text = text.get_type(schema).is_ok_and(|data_type| is_text(&data_type));
    is_text.then(|| {
        let function = Arc::new(texts_with_seconds());
        Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![text.clone()]))
    })
}

/// True for the times of SQL.
fn is_moment(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Timestamp(..)
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
    )
}

/// Converts texts in subtractions with times, dates beside hours, and times of day in comparisons.
#[derive(Debug)]
pub(super) struct Since {
    pub(super) texts: BTreeMap<String, Position>,
}

impl ExprPlanner for Since {
    fn plan_binary_op(
        &self,
        mut expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        super::go_on()?;
        clocks::one(&mut expr, schema);
        zones::compared(&mut expr, schema);
        if expr.op == BinaryOperator::Minus {
            let (left, right) = (&expr.left, &expr.right);
            if let Some(moment) = moment(left, right, schema, &self.texts)? {
                expr.right = moment;
            } else if let Some(moment) = moment(right, left, schema, &self.texts)? {
                expr.left = moment;
            }
        }
        Ok(PlannerResult::Original(expr))
    }
}

/// The time that replaces a text beside a time, with or without a zone.
fn moment(
    time: &Expr,
    text: &Expr,
    schema: &DFSchema,
    texts: &BTreeMap<String, Position>,
) -> Result<Option<Expr>> {
    Ok(meet(time, text, schema, texts)?.or_else(|| zones::instant(time, text, schema)))
}

/// Operators that compare two values.
pub(super) fn is_comparison(op: Operator) -> bool {
    use Operator::*;
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// The literal that replaces a text compared with a time.
pub(super) fn meet(
    time: &Expr,
    text: &Expr,
    schema: &DFSchema,
    texts: &BTreeMap<String, Position>,
) -> Result<Option<Expr>> {
    let Expr::Literal(
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)),
        _,
    ) = text
    else {
        return Ok(None);
    };
    if matches!(time, Expr::Literal(..)) {
        return Ok(None);
    }
    let Some(calendar) = calendar_of(time, schema) else { return Ok(None) };
    let Some((first, _)) = parse_period(text.trim(), calendar) else {
        return Err(DataFusionError::External(Box::new(Error::Cells {
            code: "type_error",
            message: format!("`{text}` is not a date of the {} calendar", calendar.name()),
            position: texts.get(text).copied(),
            hint: Some(
                "write it as `2020`, `2020-01`, `2020-01-31` or `2020-01-31T12:00`; a span of time is `INTERVAL '3 days'`"
                    .into(),
            ),
        })));
    };
    let value = match calendar {
        Calendar::Standard => ScalarValue::TimestampMicrosecond(Some(first), None),
        _ => ScalarValue::Int64(Some(first)),
    };
    debug_assert!(matches!(
        value.data_type(),
        DataType::Int64 | DataType::Timestamp(TimeUnit::Microsecond, None)
    ));
    Ok(Some(Expr::Literal(value, None)))
}
