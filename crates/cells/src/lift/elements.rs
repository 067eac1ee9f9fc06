//! Values of subqueries and EXISTS over the elements of lists that a row outside has.
//!
//! ```text
//! SELECT (SELECT sum(x) FROM unnest(t.list) u(x) WHERE x > t.k) FROM t
//!   ⇒  SELECT tessera_elements(t.list, t.k) FROM t
//! ```
//! DataFusion makes a join of a subquery that has columns outside, and here no relation can be joined. The function
//! computes the subquery for all rows of a batch. Its plan is a chain of [`steps`]. Runs on the analysed plan, whose
//! types are coerced.

mod steps;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use arrow::array::{ArrayRef, BooleanArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, exec_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Exists;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::functions::scalar;
use steps::Steps;

const NAME: &str = "tessera_elements";

/// Replaces such subqueries of a plan by calls of the function.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    plan.map_all_up(|node| {
        if !has_subquery(&node)? {
            return Ok(Transformed::no(node));
        }
        let schema = merge_schema(&node.inputs());
        super::map_parts(node, |expr| {
            let (body, is_exists, negated) = match &expr {
                Expr::ScalarSubquery(inner) => (&inner.subquery, false, false),
                Expr::Exists(Exists { subquery, negated }) => (&subquery.subquery, true, *negated),
                _ => return Ok(Transformed::no(expr)),
            };
            Ok(match call(body, is_exists, &schema, state)? {
                Some(call) if negated => Transformed::yes(Expr::Not(Box::new(call))),
                Some(call) => Transformed::yes(call),
                None => Transformed::no(expr),
            })
        })
    })
    .map(|t| t.data)
}

fn has_subquery(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.each_expr(|expr| {
        found = expr.any(|e| Ok(matches!(e, Expr::ScalarSubquery(_) | Expr::Exists(_))))?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// The call that replaces a subquery over rows with this schema; `None` for another subquery.
fn call(
    body: &LogicalPlan,
    is_exists: bool,
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
    let result = match is_exists {
        true => Field::new(NAME, DataType::Boolean, false),
        false => Field::clone(body.schema().field(0)).with_name(NAME),
    };
    // A row without a value has NULL.
    if !is_exists && !steps.has_each_row && !result.is_nullable() {
        return Ok(None);
    }
    let signature = Signature::any(outside.len(), Volatility::Immutable);
    let function =
        Elements { body: body.clone(), is_exists, steps, result: Arc::new(result), signature };
    let columns = outside.into_iter().map(Expr::Column).collect();
    Ok(Some(ScalarUDF::new_from_impl(function).call(columns)))
}

/// The columns outside that a subquery has, each once.
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

/// The subquery as a function of the columns outside.
#[derive(Debug)]
struct Elements {
    body: LogicalPlan,
    is_exists: bool,
    steps: Steps,
    result: FieldRef,
    signature: Signature,
}

impl PartialEq for Elements {
    fn eq(&self, other: &Self) -> bool {
        self.is_exists == other.is_exists && self.body == other.body
    }
}

impl Eq for Elements {}

impl Hash for Elements {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_exists.hash(state);
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
        let value: ArrayRef = match self.is_exists {
            true => {
                let mut found = vec![false; count];
                rows.outside.values().iter().for_each(|&row| found[row as usize] = true);
                Arc::new(BooleanArray::from(found))
            }
            false => one_each(&rows.columns[0], &rows.outside, count)?,
        };
        Ok(ColumnarValue::Array(value))
    }
}

/// The value of each row outside; NULL for those without one.
fn one_each(values: &ArrayRef, outside: &UInt32Array, count: usize) -> Result<ArrayRef> {
    let mut places: Vec<Option<u32>> = vec![None; count];
    for (at, &row) in outside.values().iter().enumerate() {
        if places[row as usize].replace(at as u32).is_some() {
            return exec_err!("Scalar subquery returned more than one row");
        }
    }
    Ok(take(values, &UInt32Array::from(places), None)?)
}
