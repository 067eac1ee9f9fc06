//! Scalar subqueries, EXISTS, IN, ANY and ALL over the elements of lists of an outer row.
//!
//! ```text
//! SELECT (SELECT sum(x) FROM unnest(t.list) u(x) WHERE x > t.k) FROM t
//!   ⇒  SELECT tessera_elements(t.list, t.k) FROM t
//! ```
//! `t.k IN (SELECT x …)` is true if `SELECT t.k = x …` has true, and NULL if it has NULL and no true.
//!
//! DataFusion turns a correlated subquery into a join, but here is no relation to join. So a function computes the
//! subquery for all rows of a batch. Its plan is a chain of [`steps`]. Runs on the analysed plan, whose types are
//! coerced.

mod steps;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use arrow::array::{ArrayRef, AsArray, BooleanArray, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, exec_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{SetComparison, SetQuantifier};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Distinct, Expr, LogicalPlan, Operator, Projection, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Subquery, Volatility, not,
};

use super::functions::scalar;
use super::{maybe, membership};
use steps::Steps;

const NAME: &str = "tessera_elements";

/// Replaces such subqueries of a plan by calls of the function; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    let mut is_changed = false;
    plan.map_all_up(|node| {
        let node = if has_subquery(&node)? {
            let schema = merge_schema(&node.inputs());
            super::map_parts(node, |expr| {
                Ok(match replaced(&expr, &schema, state)? {
                    Some(call) => Transformed::yes(call),
                    None => Transformed::no(expr),
                })
            })?
        } else {
            Transformed::no(node)
        };
        is_changed |= node.transformed;
        if !is_changed {
            return Ok(node);
        }
        // A subquery without rows is NULL, so the columns of all nodes above may be NULL.
        Ok(Transformed::yes(maybe::of_inputs(node.data.recompute_schema()?)?))
    })
    .map(|t| t.data)
}

fn has_subquery(node: &LogicalPlan) -> Result<bool> {
    let is_one = |e: &Expr| {
        matches!(
            e,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
        )
    };
    node.any_expr(|expr| expr.any(|e| Ok(is_one(e))))
}

/// The result that is computed from the rows of a subquery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// The value of the only row.
    Value,
    /// True if there is a row.
    Exists,
    /// True if the column is true in a row; else NULL if it is NULL in a row.
    Any,
}

/// The rows of a subquery, and the result that an expression computes from them.
pub(super) struct Question {
    pub(super) kind: Kind,
    pub(super) rows: Arc<LogicalPlan>,
    /// True if the expression negates the result.
    pub(super) negated: bool,
}

/// The [`Question`] of an expression over rows with this schema; `None` if it has none, and for IN, ANY and ALL over an
/// uncorrelated subquery.
pub(super) fn question(expr: &Expr, schema: &DFSchema) -> Result<Option<Question>> {
    let (kind, rows, negated) = match expr {
        Expr::ScalarSubquery(subquery) => (Kind::Value, Some(subquery.subquery.clone()), false),
        Expr::Exists(exists) => match membership::row_looked_for(exists) {
            Some((rows, condition)) => (Kind::Any, tested(rows, condition)?, exists.negated),
            None => {
                let rows = members(&exists.subquery.subquery).clone();
                (Kind::Exists, Some(rows), exists.negated)
            }
        },
        Expr::InSubquery(list) => {
            let equal = compared(&list.expr, Operator::Eq, &list.subquery, schema)?;
            (Kind::Any, tested(members(&list.subquery.subquery), equal)?, list.negated)
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
            let condition = compared(expr, *op, subquery, schema)?;
            // ALL is true if no row fulfils the opposite.
            let (condition, negated) = match quantifier {
                SetQuantifier::Any => (condition, false),
                SetQuantifier::All => (condition.map(not), true),
            };
            (Kind::Any, tested(members(&subquery.subquery), condition)?, negated)
        }
        _ => return Ok(None),
    };
    Ok(rows.map(|rows| Question { kind, rows, negated }))
}

/// The replacement of an expression over rows with this schema; `None` if it is not a subquery of this form.
fn replaced(expr: &Expr, schema: &DFSchema, state: &SessionState) -> Result<Option<Expr>> {
    let rows: &LogicalPlan = match expr {
        Expr::ScalarSubquery(subquery) => &subquery.subquery,
        Expr::Exists(exists) => &exists.subquery.subquery,
        Expr::InSubquery(list) => &list.subquery.subquery,
        Expr::SetComparison(comparison) => &comparison.subquery.subquery,
        _ => return Ok(None),
    };
    if rows.any(|node| Ok(matches!(node, LogicalPlan::TableScan(_))))? {
        return Ok(None);
    }
    let Some(Question { kind, rows, negated }) = question(expr, schema)? else { return Ok(None) };
    let call = call(kind, &rows, schema, state)?;
    Ok(call.map(|call| if negated { not(call) } else { call }))
}

/// The plan without sorts and DISTINCT, which do not change the set of values.
fn members(mut plan: &Arc<LogicalPlan>) -> &Arc<LogicalPlan> {
    loop {
        plan = match &**plan {
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => &sort.input,
            LogicalPlan::Distinct(Distinct::All(input)) => input,
            _ => return plan,
        };
    }
}

/// `expr op x`, where x is the subquery's column; `None` if `expr` refers to an outer query.
fn compared(
    expr: &Expr,
    op: Operator,
    subquery: &Subquery,
    schema: &DFSchema,
) -> Result<Option<Expr>> {
    let column = subquery.subquery.schema().columns().into_iter().next();
    let Some(column) = column.filter(|_| !expr.contains_outer()) else { return Ok(None) };
    let left = Box::new(membership::outside(expr, schema)?);
    let comparison = BinaryExpr::new(left, op, Box::new(Expr::Column(column)));
    Ok(Some(Expr::BinaryExpr(comparison)))
}

/// The value of a condition for each row of a subquery; `None` if the subquery is not correlated: DataFusion makes a
/// join of it.
fn tested(rows: &Arc<LogicalPlan>, condition: Option<Expr>) -> Result<Option<Arc<LogicalPlan>>> {
    let Some(condition) = condition else { return Ok(None) };
    if columns_outside(rows)?.is_empty() {
        return Ok(None);
    }
    let items = vec![condition.alias(NAME)];
    Ok(Some(Arc::new(LogicalPlan::Projection(Projection::try_new(items, Arc::clone(rows))?))))
}

/// The call that replaces a subquery over rows with this schema; `None` for another subquery.
fn call(
    kind: Kind,
    body: &LogicalPlan,
    schema: &DFSchema,
    state: &SessionState,
) -> Result<Option<Expr>> {
    let outside = columns_outside(body)?;
    let mut fields = Vec::with_capacity(outside.len());
    for column in &outside {
        let Some(at) = schema.maybe_index_of_column(column) else { return Ok(None) };
        fields.push(Arc::clone(&schema.fields()[at]));
    }
    if outside.is_empty() {
        return Ok(None);
    }
    let Some(steps) = Steps::of(body, &outside, &fields, state)? else { return Ok(None) };
    let result = match kind {
        Kind::Value => {
            let field = Field::clone(body.schema().field(0)).with_name(NAME);
            let is_nullable = field.is_nullable() || !steps.has_each_row;
            field.with_nullable(is_nullable)
        }
        Kind::Exists => Field::new(NAME, DataType::Boolean, false),
        Kind::Any => Field::new(NAME, DataType::Boolean, true),
    };
    let signature = Signature::any(outside.len(), Volatility::Immutable);
    let function =
        Elements { body: body.clone(), kind, steps, result: Arc::new(result), signature };
    let columns = outside.into_iter().map(Expr::Column).collect();
    Ok(Some(ScalarUDF::new_from_impl(function).call(columns)))
}

/// The outer columns of a subquery, each once.
fn columns_outside(body: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found: Vec<Column> = Vec::new();
    body.each_of_all(|node| {
        node.each_expr(|expr| {
            expr.each(|e| {
                if let Expr::OuterReferenceColumn(_, column) = e
                    && !found.contains(column)
                {
                    found.push(column.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// The subquery as a function of the outer columns.
#[derive(Debug)]
struct Elements {
    body: LogicalPlan,
    kind: Kind,
    steps: Steps,
    result: FieldRef,
    signature: Signature,
}

impl PartialEq for Elements {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.body == other.body
    }
}

impl Eq for Elements {}

impl Hash for Elements {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.body.hash(state);
    }
}

impl ScalarUDFImpl for Elements {
    scalar!(name NAME, signature, type_by_field);

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(self.result.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let count = args.number_rows;
        let outside = args.args.iter().map(|arg| arg.to_array(count));
        let rows = self.steps.run(&outside.collect::<Result<Vec<ArrayRef>>>()?, count)?;
        let value: ArrayRef = match self.kind {
            Kind::Value => one_each(&rows.columns[0], &rows.outside, count)?,
            Kind::Exists => {
                let mut found = vec![false; count];
                rows.outside.values().iter().for_each(|&row| found[row as usize] = true);
                Arc::new(BooleanArray::from(found))
            }
            Kind::Any => Arc::new(any_each(&rows.columns[0], &rows.outside, count)?),
        };
        Ok(ColumnarValue::Array(value))
    }
}

/// The value of each outer row; NULL if it has none.
fn one_each(values: &ArrayRef, outside: &UInt32Array, count: usize) -> Result<ArrayRef> {
    let mut places: Vec<Option<u32>> = vec![None; count];
    for (at, &row) in outside.values().iter().enumerate() {
        if places[row as usize].replace(at as u32).is_some() {
            return exec_err!("Scalar subquery returned more than one row");
        }
    }
    Ok(take(values, &UInt32Array::from(places), None)?)
}

/// For each outer row: true if one of its values is true, else NULL if one is NULL.
fn any_each(values: &ArrayRef, outside: &UInt32Array, count: usize) -> Result<BooleanArray> {
    let mut any = vec![Some(false); count];
    // NULL has no type.
    let values = cast(values, &DataType::Boolean)?;
    for (&row, value) in outside.values().iter().zip(values.as_boolean()) {
        let any = &mut any[row as usize];
        *any = match (*any, value) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (None, _) | (_, None) => None,
            (Some(false), Some(false)) => Some(false),
        };
    }
    Ok(BooleanArray::from(any))
}
