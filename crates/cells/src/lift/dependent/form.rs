//! The forms of subqueries for which DataFusion makes a correct join.
//!
//! DataFusion moves conditions on outer columns up to the join, past every operator above them. The rows stay the same
//! if these operators handle each row, or each group of equal columns, by itself. The columns of the conditions must
//! keep their names.

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchema, JoinType, Result};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Cast, Distinct, Expr, FetchType, LogicalPlan, Operator, SkipType,
};

use super::bind::{Numbers, names_one, subquery_of, uses};
use super::{is_lateral_taken, taken};

/// The place of a subquery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Value,
    /// Behind EXISTS.
    Exists,
    /// Behind IN, ANY or ALL.
    Member,
    Lateral,
}

/// True for a subquery that DataFusion joins correctly; `names` are its outer columns.
pub(super) fn is_simple(
    plan: &LogicalPlan,
    place: Place,
    names: &[String],
    numbers: &Numbers,
) -> Result<bool> {
    let pulled = Form { place, names, numbers }.pulled(plan, true)?;
    Ok(pulled.is_some_and(|pulled| {
        let columns = &pulled.columns;
        let is_twice = |column: &Column| {
            columns.iter().any(|other| other.name == column.name && other != column)
        };
        !columns.iter().any(is_twice)
    }))
}

struct Form<'a> {
    place: Place,
    names: &'a [String],
    numbers: &'a Numbers,
}

/// The conditions that move up.
struct Pulled {
    /// The inner columns of the conditions.
    columns: Vec<Column>,
    /// True if each condition is `inner = outer`.
    are_equal: bool,
    /// True above an aggregate without GROUP BY.
    is_one: bool,
}

impl Form<'_> {
    /// The conditions of a plan that move up; `None` if they cannot move, or if moving them changes the rows. `is_top`:
    /// only items are above the plan.
    fn pulled(&self, plan: &LogicalPlan, is_top: bool) -> Result<Option<Pulled>> {
        if !uses(plan, self.names)? {
            return Ok(Some(Pulled { columns: Vec::new(), are_equal: true, is_one: false }));
        }
        if !self.leaves_subqueries(plan)? {
            return Ok(None);
        }
        if let LogicalPlan::Filter(filter) = plan {
            let Some(below) = self.pulled(&filter.input, false)? else { return Ok(None) };
            return self.of_condition(&filter.predicate, filter.input.schema(), below);
        }
        if plan.any_expr(|expr| names_one(expr, self.names))? {
            return Ok(None);
        }
        match plan {
            LogicalPlan::Projection(projection) => {
                let below = self.pulled(&projection.input, is_top)?;
                Ok(below.filter(|below| are_kept(below, &projection.expr, &projection.schema)))
            }
            LogicalPlan::Aggregate(aggregate) => {
                let below = self.pulled(&aggregate.input, false)?;
                Ok(below.and_then(|below| self.of_groups(aggregate, below)))
            }
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let below = self.pulled(input, false)?;
                Ok(below.filter(|below| !below.is_one && self.place != Place::Lateral))
            }
            LogicalPlan::Limit(limit) if is_top && self.place == Place::Exists => {
                let keeps_first = matches!(limit.get_skip_type()?, SkipType::Literal(0))
                    && matches!(limit.get_fetch_type()?, FetchType::Literal(_));
                if keeps_first { self.pulled(&limit.input, false) } else { Ok(None) }
            }
            LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
                if is_lateral_taken(join, self.numbers)? {
                    return Ok(None);
                }
                let left = self.pulled(&join.left, false)?;
                let right = self.pulled(&join.right, false)?;
                let (Some(left), Some(right)) = (left, right) else { return Ok(None) };
                if left.is_one || right.is_one {
                    return Ok(None);
                }
                Ok(Some(Pulled {
                    columns: left.columns.into_iter().chain(right.columns).collect(),
                    are_equal: left.are_equal && right.are_equal,
                    is_one: false,
                }))
            }
            _ => Ok(None),
        }
    }

    /// True if no subquery in a node's expressions uses an outer column, or needs a join that DataFusion does not make.
    fn leaves_subqueries(&self, node: &LogicalPlan) -> Result<bool> {
        let schema = merge_schema(&node.inputs());
        let mut are_left = true;
        node.each_expr(|expr| {
            expr.each(|e| {
                if let Some(inner) = subquery_of(e) {
                    are_left &= !uses(&inner.subquery, self.names)?
                        && taken(e, &schema, self.numbers)?.is_none();
                }
                Ok(if are_left { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
            })
        })?;
        Ok(are_left)
    }

    fn of_condition(
        &self,
        condition: &Expr,
        schema: &DFSchema,
        mut below: Pulled,
    ) -> Result<Option<Pulled>> {
        for part in split_conjunction(condition) {
            if !names_one(part, self.names)? {
                continue;
            }
            if below.is_one {
                return Ok(None);
            }
            below.are_equal &= is_equality(part, schema);
            let mut columns: Vec<&Column> = part.column_refs().into_iter().collect();
            columns.sort();
            for column in columns {
                if !below.columns.contains(column) {
                    below.columns.push(column.clone());
                }
            }
        }
        // HAVING without GROUP BY may drop the one row that an aggregate of no rows returns.
        Ok(Some(below).filter(|below| !below.is_one || self.place == Place::Value))
    }

    fn of_groups(&self, aggregate: &Aggregate, below: Pulled) -> Option<Pulled> {
        let is_one = match aggregate.group_expr.as_slice() {
            [] => true,
            [Expr::GroupingSet(_)] => return None,
            _ => false,
        };
        // DataFusion does not plan groups behind LATERAL; a condition that is no equality would repeat them.
        let is_row_known = match is_one {
            true => matches!(self.place, Place::Value | Place::Lateral),
            false => self.place != Place::Lateral,
        };
        let is_moved = below.are_equal || aggregate.aggr_expr.is_empty();
        let exprs = aggregate.group_expr.iter().chain(&aggregate.aggr_expr);
        let exprs: Vec<Expr> = exprs.cloned().collect();
        let is_right = is_row_known
            && is_moved
            && !below.is_one
            && are_kept(&below, &exprs, &aggregate.schema);
        is_right.then_some(Pulled { is_one, ..below })
    }
}

/// True if no other expression has the name of a column of the conditions.
fn are_kept(pulled: &Pulled, items: &[Expr], schema: &DFSchema) -> bool {
    items.iter().zip(schema.fields()).all(|(item, field)| {
        let is_same = matches!(item, Expr::Column(column) if pulled.columns.contains(column));
        is_same || pulled.columns.iter().all(|column| column.name != *field.name())
    })
}

/// True for `inner = outer`: all rows with equal inner columns fulfil it, or none. The inner column may have a cast
/// that maps different values to different ones: for `t::date = outer` DataFusion would make a group for each `t`.
fn is_equality(condition: &Expr, schema: &DFSchema) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else {
        return false;
    };
    let kind = |side: &Expr| match side {
        Expr::Column(column) => {
            let at = schema.maybe_index_of_column(column)?;
            Some(schema.field(at).data_type().clone())
        }
        _ => None,
    };
    let is_column = |side: &Expr| match side {
        // Lists and structs of -0.0 and 0.0 are two groups.
        Expr::Column(_) => kind(side).is_some_and(|of| !of.is_nested()),
        Expr::Cast(Cast { expr, field }) => {
            kind(expr).is_some_and(|from| is_one_to_one(&from, field.data_type()))
        }
        _ => false,
    };
    let is_outside = |side: &Expr| side.column_refs().is_empty();
    (is_column(left) && is_outside(right)) || (is_outside(left) && is_column(right))
}

/// True if a cast between these types gives different values for different values.
fn is_one_to_one(from: &DataType, to: &DataType) -> bool {
    use DataType::{
        Date32, Date64, Decimal128, Dictionary, Float32, Float64, Int8, Int16, Int32, Int64,
        LargeUtf8, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    match (from, to) {
        (Dictionary(_, from), to) => is_one_to_one(from, to),
        (from, to) if from == to => !from.is_nested(),
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View)
        | (Int8 | UInt8, Int16 | UInt16)
        | (Int8 | Int16 | UInt8 | UInt16, Int32 | UInt32 | Float32)
        | (Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32, Int64 | UInt64 | Float64)
        | (Int64, UInt64)
        | (UInt64, Int64)
        | (Float32, Float64)
        | (Date32, Date64 | Timestamp(_, _)) => true,
        (from, Decimal128(_, scale)) if from.is_integer() => *scale >= 0,
        (Decimal128(_, from), Decimal128(_, to)) => from <= to,
        (Timestamp(from, zone), Timestamp(to, other)) => from <= to && zone == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::TimeUnit::{Microsecond, Nanosecond};

    #[test]
    fn casts_that_are_not_one_to_one_are_no_equality() {
        use DataType::{
            Date32, Decimal128, Float64, Int32, Int64, List, Timestamp, Utf8, Utf8View,
        };
        let list = || List(std::sync::Arc::new(arrow::datatypes::Field::new("item", Int32, true)));
        let (micros, nanos) = (Timestamp(Microsecond, None), Timestamp(Nanosecond, None));
        for (from, to, want) in [
            (Int32, Int64, true),
            (Int32, Float64, true),
            (Int64, Float64, false),
            (Float64, Int64, false),
            (Date32, nanos.clone(), true),
            (nanos.clone(), Date32, false),
            (micros.clone(), nanos.clone(), true),
            (nanos, micros, false),
            (Decimal128(5, 2), Decimal128(9, 4), true),
            (Decimal128(9, 4), Decimal128(9, 2), false),
            (Utf8, Utf8View, true),
            (Utf8, Int32, false),
            (list(), list(), false),
        ] {
            assert_eq!(is_one_to_one(&from, &to), want, "{from} as {to}");
        }
    }
}
