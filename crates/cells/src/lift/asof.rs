//! `ASOF JOIN`: for each row of the left side the nearest one of the right side.
//!
//! ```text
//! Left Join: tessera_asof(l.k = r.k AND l.ts >= r.ts)
//!   l
//!   r
//! ⇒
//! Sort: row                                       the order of l
//!   Left Join: l.k = r.k, nth = number
//!     Filter: row IS NOT NULL                     rows of l, each behind the nth row of r
//!       Window: count(one) PARTITION BY k ORDER BY ts NULLS FIRST, side ROWS UNBOUNDED PRECEDING AS nth
//!         Union
//!           l, the number of its rows as row, NULL as one, 1 as side
//!           NULL for l and row, 1 as one, 0 as side from r
//!     Window: row_number() PARTITION BY k ORDER BY ts AS number
//!       r without NULL in ts
//! ```
//! So the join costs as much as sorting both sides. Of rows of r with equal `ts` the last one is the nearest; the
//! window functions order them as r does. For `l.ts <= r.ts` both orders are descending; for `>` and `<`, rows of l
//! come before equal rows of r. A row of l with NULL in `ts` comes before all rows of r: its `nth` is 0, which matches
//! no row of r.

use std::sync::Arc;

use crate::walk::WalkPlan;
use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    DFSchema, DataFusionError, JoinConstraint, NullEquality, Result, ScalarValue,
};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::FieldMetadata;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, Filter, Join, LogicalPlan, Operator, Projection, Sort, Union,
    lit,
};
use tessera_frontend::error::{Error, Position};

use super::error;
use super::markers::ASOF;
use super::numbered::{column, counted, numbered};

/// Columns of the union: the row number of the left side, the compared value, the side, and 1 for rows of the right
/// side.
const ROW: &str = "__asof_row";
const AT: &str = "__asof_at";
const SIDE: &str = "__asof_side";
const ONE: &str = "__asof_one";
/// The number of rows of the right side up to a row.
const NTH: &str = "__asof_nth";
/// The number of a row of the right side.
const NUMBER: &str = "__asof_number";
/// Prefixes of the left side's columns, the right side's, and the keys of both.
const LEFT: &str = "__asof_left_";
const RIGHT: &str = "__asof_right_";
const KEY: &str = "__asof_key_";
/// The right side's keys and its value, beside those of the left one.
const RIGHT_KEY: &str = "__asof_right_key_";
const RIGHT_AT: &str = "__asof_right_at";

/// Rewrites the joins of a plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Join(join) => match condition(&join) {
            Some(condition) => {
                let condition = Condition::of(condition, &join)?;
                nearest(join, condition, state).map(Transformed::yes)
            }
            None => Ok(Transformed::no(LogicalPlan::Join(join))),
        },
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

fn condition(join: &Join) -> Option<&Expr> {
    match &join.filter {
        Some(Expr::ScalarFunction(call)) if call.func.name() == ASOF => call.args.first(),
        _ => None,
    }
}

/// The condition of a join, the left side's expressions first.
struct Condition {
    /// Pairs of expressions that must be equal.
    keys: Vec<(Expr, Expr)>,
    /// The pair of expressions that `op` compares.
    at: (Expr, Expr),
    /// The comparison of the left expression with the right one: `>=`, `>`, `<=` or `<`.
    op: Operator,
}

impl Condition {
    fn of(condition: &Expr, join: &Join) -> Result<Self> {
        let (mut keys, mut near) = (Vec::new(), Vec::new());
        for part in split_conjunction(condition) {
            let Some((left, op, right)) = sides(part, join) else {
                return Err(refused(part, "a condition that compares no column of each side"));
            };
            match op {
                Operator::Eq => keys.push((left, right)),
                Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
                    near.push(((left, right), op));
                }
                _ => return Err(refused(part, "a comparison that is not =, <, <=, > or >=")),
            }
        }
        match (near.pop(), near.pop()) {
            (Some((at, op)), None) => Ok(Condition { keys, at, op }),
            (None, _) => Err(refused(condition, "no inequality")),
            (Some(_), Some(_)) => Err(refused(condition, "several inequalities")),
        }
    }

    /// True if the nearest row has the smallest value.
    fn is_descending(&self) -> bool {
        matches!(self.op, Operator::Lt | Operator::LtEq)
    }

    /// True if equal values do not match.
    fn is_strict(&self) -> bool {
        matches!(self.op, Operator::Lt | Operator::Gt)
    }
}

/// A comparison of one expression of each side, the left side's first.
fn sides(part: &Expr, join: &Join) -> Option<(Expr, Operator, Expr)> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = part else { return None };
    let is_of = |expr: &Expr, side: &LogicalPlan| {
        let columns = expr.column_refs();
        let mut all = columns.iter();
        !columns.is_empty() && all.all(|c| side.schema().maybe_index_of_column(c).is_some())
    };
    let (left, right) = (left.as_ref().clone(), right.as_ref().clone());
    if is_of(&left, &join.left) && is_of(&right, &join.right) {
        return Some((left, *op, right));
    }
    let is_swapped = is_of(&left, &join.right) && is_of(&right, &join.left);
    op.swap().filter(|_| is_swapped).map(|op| (right, op, left))
}

fn refused(part: &Expr, what: &str) -> DataFusionError {
    unsupported(
        format!("ASOF JOIN with {what}"),
        error::position_of(part),
        "it takes one inequality and any equalities, as in `ON t.k = q.k AND t.ts >= q.ts`; write other conditions in WHERE, or in a subquery: `ASOF JOIN (SELECT * FROM q WHERE …) q ON …`",
    )
}

fn unsupported(construct: String, position: Option<Position>, hint: &str) -> DataFusionError {
    let hint = Some(hint.to_string());
    DataFusionError::External(Box::new(Error::Unsupported { construct, position, hint }))
}

/// The join of each row of the left side with the nearest one of the right side.
fn nearest(join: Join, condition: Condition, state: &SessionState) -> Result<LogicalPlan> {
    let schema = join.schema.clone();
    let right = Arc::unwrap_or_clone(join.right);
    if is_volatile(&right)? {
        return Err(unsupported(
            "ASOF JOIN with a right side whose rows differ each time it is read".to_string(),
            None,
            "store it first: `CREATE TEMP TENSOR`, or COPY to Parquet",
        ));
    }
    let left = Arc::unwrap_or_clone(join.left);
    let left_schema = left.schema().clone();
    let right = right_rows(right, &left_schema, &condition)?;
    let both = united(left, &right, &condition, state)?;
    let order = |at: &str| column(at).sort(!condition.is_descending(), true);
    let keys = |prefix: &str| -> Vec<Expr> {
        (0..condition.keys.len()).map(|i| column(format!("{prefix}{i}"))).collect()
    };
    let by_side = vec![order(AT), column(SIDE).sort(true, false)];
    let both = counted(both, column(ONE), keys(KEY), by_side, NTH, state)?;
    let rows = Filter::try_new(column(ROW).is_not_null(), Arc::new(both))?;
    let right = numbered(right, keys(RIGHT_KEY), vec![order(RIGHT_AT)], NUMBER, state)?;
    let number = column(NUMBER).cast_to(&DataType::Int64, right.schema())?;
    let on = keys(KEY).into_iter().zip(keys(RIGHT_KEY)).chain([(column(NTH), number)]).collect();
    let joined = Join::try_new(
        Arc::new(LogicalPlan::Filter(rows)),
        Arc::new(right),
        on,
        None,
        join.join_type,
        JoinConstraint::On,
        NullEquality::NullEqualsNothing,
        false,
    )?;
    let sorted = Sort {
        expr: vec![column(ROW).sort(true, false)],
        input: Arc::new(LogicalPlan::Join(joined)),
        fetch: None,
    };
    let before = left_schema.fields().len();
    let columns = schema.iter().enumerate().map(|(i, (relation, field))| {
        let name = match i.checked_sub(before) {
            Some(i) => format!("{RIGHT}{i}"),
            None => format!("{LEFT}{i}"),
        };
        column(name).alias_qualified(relation.cloned(), field.name())
    });
    let columns = columns.collect();
    let plan = Projection::try_new(columns, Arc::new(LogicalPlan::Sort(sorted)))?;
    Ok(LogicalPlan::Projection(plan))
}

/// The columns of the right side, its keys, and its value where that is not NULL.
fn right_rows(right: LogicalPlan, left: &DFSchema, condition: &Condition) -> Result<LogicalPlan> {
    let schema = right.schema().clone();
    let mut exprs = named(&schema, RIGHT);
    // Both sides have the left side's types.
    for (i, (ours, theirs)) in condition.keys.iter().enumerate() {
        let key = theirs.clone().cast_to(&ours.get_type(left)?, &schema)?;
        exprs.push(key.alias(format!("{RIGHT_KEY}{i}")));
    }
    let (ours, theirs) = &condition.at;
    let at = theirs.clone().cast_to(&ours.get_type(left)?, &schema)?;
    exprs.push(at.alias(RIGHT_AT));
    let rows = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(right))?);
    let filter = Filter::try_new(column(RIGHT_AT).is_not_null(), Arc::new(rows))?;
    Ok(LogicalPlan::Filter(filter))
}

/// The rows of both sides, with the columns of the left one.
fn united(
    left: LogicalPlan,
    right: &LogicalPlan,
    condition: &Condition,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let schema = left.schema().clone();
    let (first, second) = if condition.is_strict() { (0i64, 1i64) } else { (1i64, 0i64) };
    let (mut ours, mut theirs) = (named(&schema, LEFT), Vec::new());
    for (i, field) in schema.fields().iter().enumerate() {
        theirs.push(null_of(field)?.alias(format!("{LEFT}{i}")));
    }
    for (i, (key, _)) in condition.keys.iter().enumerate() {
        ours.push(key.clone().alias(format!("{KEY}{i}")));
        theirs.push(column(format!("{RIGHT_KEY}{i}")).alias(format!("{KEY}{i}")));
    }
    ours.push(condition.at.0.clone().alias(AT));
    theirs.push(column(RIGHT_AT).alias(AT));
    ours.push(column(ROW));
    theirs.push(Expr::Literal(ScalarValue::UInt64(None), None).alias(ROW));
    ours.push(Expr::Literal(ScalarValue::Int64(None), None).alias(ONE));
    theirs.push(lit(1i64).alias(ONE));
    ours.push(lit(first).alias(SIDE));
    theirs.push(lit(second).alias(SIDE));
    let left = numbered(left, Vec::new(), Vec::new(), ROW, state)?;
    let left = Projection::try_new(ours, Arc::new(left))?;
    let right = Projection::try_new(theirs, Arc::new(right.clone()))?;
    let both = [left, right].map(|side| Arc::new(LogicalPlan::Projection(side)));
    Ok(LogicalPlan::Union(Union::try_new(both.into())?))
}

/// The columns of a schema under other names.
fn named(schema: &DFSchema, prefix: &str) -> Vec<Expr> {
    let columns = schema.columns().into_iter().enumerate();
    columns.map(|(i, column)| Expr::Column(column).alias(format!("{prefix}{i}"))).collect()
}

/// NULL of a field's type, with its metadata: a column of a union has only the metadata that all sides share.
fn null_of(field: &Field) -> Result<Expr> {
    let metadata = (!field.metadata().is_empty()).then(|| FieldMetadata::from(field));
    Ok(Expr::Literal(ScalarValue::try_from(field.data_type())?, metadata))
}

/// True if a plan may return other rows each time it runs.
fn is_volatile(plan: &LogicalPlan) -> Result<bool> {
    plan.any_of_all(|node| node.any_expr(|expr| Ok(expr.is_volatile())))
}
