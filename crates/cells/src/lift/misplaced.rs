//! Rejects aggregates and functions with OVER in clauses that are computed before them, sets of groups that are no item of
//! GROUP BY, DISTINCT in statistics of pairs, numbers of greatest values that are not constant, and casts to structs of
//! values that are no such structs.
//!
//! DataFusion rejects aggregates in WHERE. It plans the others, which no operator can compute, and ignores such a
//! DISTINCT.

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::{DataType, FieldRef, Fields};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};

use super::error::spoken;
use super::functions::{TOP_COUNT_MAX, top_call};
use super::names::{TOP_MAX, TOP_MIN};
use tessera_frontend::error::Error;

/// Checks all nodes of a plan before types are coerced.
///
/// # Errors
/// `plan_error` or `unsupported`, without a position.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.each_of_all(|node| {
        let error = match has_misplaced_sets(node)? {
            true => Some(error(
                "CUBE, ROLLUP and GROUPING SETS cannot be part of an expression, or of each other",
                "write them as items of GROUP BY: `GROUP BY a, CUBE (b, c)`",
            )),
            false => match refused(node) {
                Some(error) => Some(error),
                None => match uncounted(node)? {
                    Some(error) => Some(error),
                    None => of_casts(node)?,
                },
            },
        };
        match error {
            Some(error) => Err(DataFusionError::External(Box::new(error))),
            None => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(())
}

fn has_misplaced_sets(node: &LogicalPlan) -> Result<bool> {
    let is_sets = |e: &Expr| matches!(e, Expr::GroupingSet(_));
    node.any_expr(|expr| {
        let mut sets = 0;
        expr.each(|e| {
            sets += usize::from(is_sets(e));
            Ok(TreeNodeRecursion::Continue)
        })?;
        let is_item = matches!(node, LogicalPlan::Aggregate(_)) && is_sets(expr);
        Ok(sets > usize::from(is_item))
    })
}

fn refused(node: &LogicalPlan) -> Option<Error> {
    match node {
        LogicalPlan::Aggregate(groups) if groups.aggr_expr.iter().any(has_distinct_pairs) => {
            Some(
                Error::unsupported("DISTINCT in `corr`, `covar_…` and `regr_…`", None)
                    .with_hint("read them from a subquery: `SELECT corr(x, y) FROM (SELECT DISTINCT x, y FROM t)`"),
            )
        }
        LogicalPlan::Aggregate(groups) => {
            groups.group_expr.iter().find_map(Call::of).map(|call| match call {
                Call::Aggregate => error(
                    "GROUP BY cannot contain an aggregate: groups exist before it is computed",
                    "group the rows of a subquery: `SELECT m, count(*) FROM (SELECT k, avg(v) AS m FROM t GROUP BY k) GROUP BY m`",
                ),
                Call::Window => error(
                    "GROUP BY cannot contain a function with OVER: groups exist before it is computed",
                    "group the rows of a subquery: `FROM (SELECT *, ntile(4) OVER (ORDER BY v) AS q FROM t) GROUP BY q`",
                ),
            })
        }
        LogicalPlan::Join(join) => {
            let keys = join.on.iter().flat_map(|(left, right)| [left, right]);
            keys.chain(&join.filter).find_map(Call::of).map(|call| match call {
                Call::Aggregate => error(
                    "ON cannot contain an aggregate: joins are computed before it",
                    "join the groups of a subquery: `JOIN (SELECT k, max(v) AS m FROM b GROUP BY k) c ON c.m = a.v`",
                ),
                Call::Window => error(
                    "ON cannot contain a function with OVER: joins are computed before it",
                    "join a subquery that computes it: `JOIN (SELECT *, row_number() OVER (ORDER BY v) AS n FROM b) c ON c.n = a.n`",
                ),
            })
        }
        LogicalPlan::Window(window) if window.window_expr.iter().any(is_grouping) => Some(error(
            "`grouping` cannot have OVER: it describes a group of GROUP BY, not a window",
            "write `grouping(x)` without OVER in a block with GROUP BY; it may be an argument or a key: `rank() OVER (PARTITION BY grouping(x) ORDER BY sum(v))`",
        )),
        // WHERE is checked before, and names stand for the functions of QUALIFY.
        LogicalPlan::Filter(filter) if Call::of(&filter.predicate) == Some(Call::Window) => {
            Some(error(
                "HAVING cannot contain a function with OVER, which is computed after it",
                "filter with QUALIFY: `QUALIFY row_number() OVER (ORDER BY sum(v)) <= 3`",
            ))
        }
        _ => None,
    }
}

/// The error for the first `max(x, n)` or `arg_max(x, y, n)` of a node whose n is a column or out of range.
fn uncounted(node: &LogicalPlan) -> Result<Option<Error>> {
    let mut found = None;
    node.each_expr(|expr| {
        expr.each(|e| {
            let (name, args) = match e {
                Expr::AggregateFunction(call) => (call.func.name(), &call.params.args),
                Expr::WindowFunction(call) => (call.fun.name(), &call.params.args),
                _ => return Ok(TreeNodeRecursion::Continue),
            };
            if [TOP_MAX, TOP_MIN].contains(&name)
                && let Some((n, columns)) = args.split_last()
            {
                found = found.take().or(of_count(n, columns.len(), name == TOP_MAX)?);
            }
            Ok(match found {
                Some(_) => TreeNodeRecursion::Stop,
                None => TreeNodeRecursion::Continue,
            })
        })
    })?;
    Ok(found)
}

/// The error for a number of values that is a column or out of range; `columns` is the number of arguments before it.
fn of_count(n: &Expr, columns: usize, is_max: bool) -> Result<Option<Error>> {
    let (call, hint) = top_call(is_max, columns);
    let of_column = |e: &Expr| matches!(e, Expr::Column(_) | Expr::OuterReferenceColumn(..));
    let message = if n.any(|e| Ok(of_column(e)))? {
        format!("`{call}` takes a constant n, not a column")
    } else if let Some(value) = written(n)
        && !(1..=TOP_COUNT_MAX).contains(&value)
    {
        format!("`{call}` takes an n from 1 to {TOP_COUNT_MAX}, not {value}")
    } else {
        return Ok(None);
    };
    Ok(Some(error(&message, &hint)))
}

/// An integer that is written out.
fn written(n: &Expr) -> Option<i64> {
    match n {
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => Some(*value),
        Expr::Negative(inner) => written(inner)?.checked_neg(),
        _ => None,
    }
}

/// The error for the first cast of a node to a struct that the value cannot become.
fn of_casts(node: &LogicalPlan) -> Result<Option<Error>> {
    if !node.any_expr(|expr| expr.any(|e| Ok(struct_of(e).is_some())))? {
        return Ok(None);
    }
    let schema = merge_schema(&node.inputs());
    let mut found = None;
    node.each_expr(|expr| {
        expr.each(|e| {
            // The type of a column of an outer query is unknown here.
            if let Some((value, fields)) = struct_of(e)
                && let Ok(of) = value.get_type(&schema)
            {
                found = found.take().or(of_struct(&of, fields));
            }
            Ok(match found {
                Some(_) => TreeNodeRecursion::Stop,
                None => TreeNodeRecursion::Continue,
            })
        })
    })?;
    Ok(found)
}

/// The operand and the fields of a cast to a struct.
fn struct_of(expr: &Expr) -> Option<(&Expr, &Fields)> {
    let (Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field })) = expr else {
        return None;
    };
    match field.data_type() {
        DataType::Struct(fields) => Some((&**expr, fields)),
        _ => None,
    }
}

fn of_struct(of: &DataType, to: &Fields) -> Option<Error> {
    let own = match of {
        DataType::Null => return None,
        DataType::Struct(own) => own,
        other => {
            let message = format!("cannot convert {} to struct", spoken(&other.to_string()));
            return Some(
                Error::cells("type_error", message, None)
                    .with_hint("a struct is `{'a': x}` or `struct_pack(a := x)`"),
            );
        }
    };
    let mut has_one = false;
    for field in to {
        if let Some((_, found)) = own.find(field.name()) {
            has_one = true;
            let inner = match field.data_type() {
                DataType::Struct(inner) => of_struct(found.data_type(), inner),
                _ => None,
            };
            if inner.is_some() {
                return inner;
            }
        } else if let Some(other) = in_other_case(own, field.name()) {
            let (name, other) = (field.name(), other.name());
            let message = format!("the struct has the field `{other}`, and the type `{name}`");
            return Some(Error::cells("type_error", message, None).with_hint(format!(
                "fields are matched by name, in the same case: write `{other}` in the type"
            )));
        }
    }
    if has_one {
        return None;
    }
    let names = |fields: &Fields| {
        let names = fields.iter().take(5).map(|field| format!("`{}`", field.name()));
        names.collect::<Vec<_>>().join(", ")
    };
    let message = format!(
        "the struct has no field of the type: it has {}, and the type {}",
        names(own),
        names(to)
    );
    Some(
        Error::cells("type_error", message, None)
            .with_hint("fields are matched by name; `struct_pack(b := x.a)` renames one"),
    )
}

/// The field with a name in other letters, large or small.
fn in_other_case<'a>(fields: &'a Fields, name: &str) -> Option<&'a FieldRef> {
    fields.iter().find(|field| field.name().to_lowercase() == name.to_lowercase())
}

fn has_distinct_pairs(call: &Expr) -> bool {
    let is_of_pairs =
        |name: &str| name == "corr" || name.starts_with("covar_") || name.starts_with("regr_");
    let is_one = |e: &Expr| matches!(e, Expr::AggregateFunction(f) if f.params.distinct && is_of_pairs(f.func.name()));
    call.any(|e| Ok(is_one(e))).unwrap_or(false)
}

fn is_grouping(call: &Expr) -> bool {
    let is_one = |e: &Expr| matches!(e, Expr::WindowFunction(f) if f.fun.name() == "grouping");
    call.any(|e| Ok(is_one(e))).unwrap_or(false)
}

/// A call that reads several rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Aggregate,
    Window,
}

impl Call {
    /// The first such call in an expression.
    fn of(expr: &Expr) -> Option<Self> {
        let mut found = None;
        let walked = expr.each(|e| {
            found = match e {
                Expr::AggregateFunction(_) => Some(Self::Aggregate),
                Expr::WindowFunction(_) => Some(Self::Window),
                _ => return Ok(TreeNodeRecursion::Continue),
            };
            Ok(TreeNodeRecursion::Stop)
        });
        walked.ok().and(found)
    }
}

fn error(message: &str, hint: &str) -> Error {
    Error::cells("plan_error", message.to_string(), None).with_hint(hint.to_string())
}
