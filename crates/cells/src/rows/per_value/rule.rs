//! Selects the expressions of a plan that are evaluated for each distinct value.
//!
//! ```text
//! a > 5 AND upper(trim(s)) LIKE 'X_Z' AND s <> t || 'x'     upper(trim(s)) LIKE 'X_Z', and t || 'x'
//! ```
//! These are the largest parts of the conditions, items, keys and arguments of filters, projections and aggregates that
//! read one column and take longer, for a row, than the search for its value. The rule comes before those of
//! DataFusion, so an expression has the same form in each operator that they move it to.

use super::distinct::is_searched;
use super::{is_plain, per_value};
use crate::walk::Walk;
use arrow::datatypes::{DataType, Schema};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, LikeExpr, Literal, NegativeExpr,
    TryCastExpr,
};
use datafusion::physical_expr::utils::{conjunction, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, PhysicalGroupBy};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use std::sync::Arc;

/// Functions of texts that take less time than the search. Over five million texts of some 12 bytes, each took up to
/// 7 ns and a comparison 4 ns, but `upper`, `trim`, `IN` and casts to numbers 15 ns and `LIKE '%a%'` 35 ns.
const CHEAP: [&str; 11] = [
    "ascii",
    "bit_length",
    "character_length",
    "coalesce",
    "len",
    "nullif",
    "nvl",
    "nvl2",
    "octet_length",
    "starts_with",
    "struct",
];

/// Branches of a CASE that compares some texts in that time.
const CHEAP_BRANCHES: usize = 2;

/// Puts expressions into [`per_value`].
#[derive(Debug)]
pub(in crate::rows) struct PerValueRule;

impl PhysicalOptimizerRule for PerValueRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.replace_up(of_node)
    }

    fn name(&self) -> &str {
        "per_value"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The operator with such expressions; `None` if it has none.
fn of_node(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        return of_filter(filter);
    }
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        return of_projection(projection);
    }
    match node.downcast_ref::<AggregateExec>() {
        Some(aggregate) => of_aggregate(aggregate),
        None => Ok(None),
    }
}

/// Each condition by itself: rules look for them below AND.
fn of_filter(filter: &FilterExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = filter.input().schema();
    let mut parts = Parts::over(&schema);
    let conditions = split_conjunction(filter.predicate()).into_iter();
    let conditions = conditions.map(|condition| parts.of(condition)).collect::<Result<Vec<_>>>()?;
    if !parts.are_changed {
        return Ok(None);
    }
    let condition = conjunction(conditions);
    let filter = FilterExecBuilder::from(filter).with_predicate(condition).build()?;
    Ok(Some(Arc::new(filter)))
}

fn of_projection(projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = projection.input().schema();
    let mut parts = Parts::over(&schema);
    let mut items = Vec::with_capacity(projection.expr().len());
    for item in projection.expr() {
        let expr = parts.of(&item.expr)?;
        items.push(ProjectionExpr { expr, alias: item.alias.clone() });
    }
    if !parts.are_changed {
        return Ok(None);
    }
    let input = projection.input().clone();
    let new = ProjectionExec::try_new_with_schema_metadata(items, input, &projection.schema())?;
    Ok(Some(Arc::new(new)))
}

/// Arguments are the same in both halves of an aggregate, which are merged if they are equal.
fn of_aggregate(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let (schema, input_schema) = (aggregate.input().schema(), aggregate.input_schema());
    let group = aggregate.group_expr();
    let mut keys = Parts::over(&schema);
    let mut exprs = Vec::with_capacity(group.expr().len());
    for (expr, name) in group.expr() {
        exprs.push((keys.of(expr)?, name.clone()));
    }
    let mut arguments = Parts::over(&input_schema);
    let calls = aggregate.aggr_expr().iter().map(|call| of_call(call, &mut arguments));
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let mut conditions = Vec::with_capacity(calls.len());
    for condition in aggregate.filter_expr() {
        conditions.push(condition.as_ref().map(|c| arguments.of(c)).transpose()?);
    }
    if !keys.are_changed && !arguments.are_changed {
        return Ok(None);
    }
    let (nulls, groups) = (group.null_expr().to_vec(), group.groups().to_vec());
    let group = PhysicalGroupBy::new(exprs, nulls, groups, group.has_grouping_set());
    let (mode, input) = (*aggregate.mode(), aggregate.input().clone());
    let new = AggregateExec::try_new(mode, group, calls, conditions, input, input_schema)?;
    Ok(Some(Arc::new(new.with_limit_options(aggregate.limit_options()))))
}

fn of_call(
    call: &Arc<AggregateFunctionExpr>,
    parts: &mut Parts<'_>,
) -> Result<Arc<AggregateFunctionExpr>> {
    let all = call.all_expressions();
    // An order may have to be that of an argument. A reversed call loses its mark with new arguments.
    if !all.order_by_exprs.is_empty() || call.is_reversed() {
        return Ok(call.clone());
    }
    let mut own = Parts::over(parts.schema);
    let arguments = all.args.iter().map(|argument| own.of(argument)).collect::<Result<Vec<_>>>()?;
    let new = match own.are_changed {
        true => call.with_new_expressions(arguments, all.order_by_exprs),
        false => None,
    };
    parts.are_changed |= new.is_some();
    Ok(new.map_or_else(|| call.clone(), Arc::new))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Nothing,
    Column(usize),
    /// Reads several columns, or depends on more than their values.
    More,
}

impl Reads {
    fn and(self, other: Reads) -> Reads {
        match (self, other) {
            (Reads::Nothing, reads) | (reads, Reads::Nothing) => reads,
            (Reads::Column(a), Reads::Column(b)) if a == b => self,
            _ => Reads::More,
        }
    }
}

struct Part {
    /// The part; if it reads more than one column, with parts of it changed.
    expr: Arc<dyn PhysicalExpr>,
    reads: Reads,
    is_text: bool,
    is_costly: bool,
    may_fail: bool,
}

/// Changes the parts of expressions over a schema.
struct Parts<'a> {
    schema: &'a Schema,
    are_changed: bool,
}

impl<'a> Parts<'a> {
    fn over(schema: &'a Schema) -> Self {
        Parts { schema, are_changed: false }
    }

    /// The expression with its largest parts changed.
    fn of(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
        let part = self.part(expr)?;
        let new = self.ended(part)?;
        self.are_changed |= !Arc::ptr_eq(&new, expr);
        Ok(new)
    }

    fn part(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Part> {
        if let Some(column) = expr.downcast_ref::<Column>() {
            let of = column.data_type(self.schema)?;
            let reads = if is_searched(&of) { Reads::Column(column.index()) } else { Reads::More };
            let (is_text, is_costly, may_fail) = (is_text(&of), false, false);
            return Ok(Part { expr: expr.clone(), reads, is_text, is_costly, may_fail });
        }
        let is_plain = is_plain(expr);
        // Parts of lambdas, for example, are evaluated over other rows.
        let has_parts = is_plain || expr.is::<ScalarFunctionExpr>();
        let parts = if has_parts { expr.children() } else { Vec::new() };
        let parts = parts.into_iter().map(|part| self.part(part)).collect::<Result<Vec<_>>>()?;
        let is_text = returns_text(expr, &parts);
        let is_costly =
            parts.iter().any(|part| part.is_costly) || takes_long(expr, &parts, is_text);
        let may_fail = parts.iter().any(|part| part.may_fail) || has_errors(expr);
        let is_whole = is_plain && !is_lazy(expr, &parts);
        let alone = if is_whole { Reads::Nothing } else { Reads::More };
        let reads = parts.iter().fold(alone, |reads, part| reads.and(part.reads));
        let mut expr = expr.clone();
        if reads == Reads::More && has_parts {
            let parts = parts.into_iter().map(|part| self.ended(part));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            let old = expr.children().into_iter();
            let is_same = old.zip(&parts).all(|(old, new)| Arc::ptr_eq(old, new));
            if !is_same {
                expr = expr.with_new_children(parts)?;
            }
        }
        Ok(Part { expr, reads, is_text, is_costly, may_fail })
    }

    /// A part that is not in a larger one, changed if that is worth it.
    fn ended(&self, part: Part) -> Result<Arc<dyn PhysicalExpr>> {
        if !part.is_costly || !matches!(part.reads, Reads::Column(_)) {
            return Ok(part.expr);
        }
        let of = part.expr.data_type(self.schema)?;
        match of.is_string() || of.is_primitive() || of == DataType::Boolean {
            true => per_value(part.expr),
            false => Ok(part.expr),
        }
    }
}

/// True for AND and OR whose second part may fail. Whether that part is evaluated for rows that the first one decides
/// depends on their share of the rows, which is not their share of the values.
fn is_lazy(expr: &Arc<dyn PhysicalExpr>, parts: &[Part]) -> bool {
    let is_logic =
        expr.downcast_ref::<BinaryExpr>().is_some_and(|binary| binary.op().is_logic_operator());
    is_logic && parts.last().is_some_and(|part| part.may_fail)
}

/// True for an operator or a function that fails for some values.
fn has_errors(expr: &Arc<dyn PhysicalExpr>) -> bool {
    match expr.downcast_ref::<BinaryExpr>() {
        Some(binary) => !matches!(
            binary.op(),
            Operator::And
                | Operator::Or
                | Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom
        ),
        None => {
            expr.is::<CastExpr>() || expr.is::<NegativeExpr>() || expr.is::<ScalarFunctionExpr>()
        }
    }
}

fn is_text(of: &DataType) -> bool {
    match of {
        DataType::Dictionary(_, values) => values.is_string(),
        of => of.is_string(),
    }
}

fn returns_text(expr: &Arc<dyn PhysicalExpr>, parts: &[Part]) -> bool {
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        is_text(call.return_type())
    } else if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        is_text(cast.cast_type())
    } else if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
        is_text(cast.cast_type())
    } else if let Some(literal) = expr.downcast_ref::<Literal>() {
        is_text(&literal.value().data_type())
    } else if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        *binary.op() == Operator::StringConcat
    } else {
        // The last part of a CASE is a result.
        expr.is::<CaseExpr>() && parts.last().is_some_and(|part| part.is_text)
    }
}

/// True if an operator or a function takes longer than the search for a value: it reads texts, or writes them.
fn takes_long(expr: &Arc<dyn PhysicalExpr>, parts: &[Part], is_text: bool) -> bool {
    let reads_text = parts.iter().any(|part| part.is_text && part.reads != Reads::Nothing);
    if let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() {
        return (reads_text || is_text) && !CHEAP.contains(&call.fun().name());
    }
    if let Some(case) = expr.downcast_ref::<CaseExpr>() {
        return reads_text && case.when_then_expr().len() > CHEAP_BRANCHES;
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return matches!(
            binary.op(),
            Operator::StringConcat
                | Operator::RegexMatch
                | Operator::RegexIMatch
                | Operator::RegexNotMatch
                | Operator::RegexNotIMatch
                | Operator::LikeMatch
                | Operator::ILikeMatch
                | Operator::NotLikeMatch
                | Operator::NotILikeMatch
        );
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        return like.case_insensitive() || !is_of_an_end(like.pattern());
    }
    let is_cast = expr.is::<CastExpr>() || expr.is::<TryCastExpr>();
    (expr.is::<InListExpr>() && reads_text) || (is_cast && reads_text != is_text)
}

/// True for a pattern that is compared with the beginning or the end of a text: `'a%'`, `'%a'`, `'a'`.
fn is_of_an_end(pattern: &Arc<dyn PhysicalExpr>) -> bool {
    let literal =
        pattern.downcast_ref::<Literal>().and_then(|literal| literal.value().try_as_str());
    let Some(Some(pattern)) = literal else { return false };
    let rest = pattern.strip_suffix('%').or_else(|| pattern.strip_prefix('%')).unwrap_or(pattern);
    !rest.contains(['%', '_', '\\'])
}
