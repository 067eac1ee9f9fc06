//! Conditions that are evaluated for each value of a dictionary.
//!
//! ```text
//! FilterExec: replace(s) LIKE '%a%', without s     ⇒     FilterExec: replace(CAST(s)) LIKE '%a%', without s
//!   DataSourceExec: s                                      DataSourceExec: s as a dictionary
//! ```
//! Such a condition casts the values of the indices that a batch has, and evaluates the function for these.

use super::{Scans, columns_of, read_below};
use crate::rows::per_value::PerValueExpr;
use crate::walk::Walk;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::{CastExpr, Column, LikeExpr, Literal};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The filter over dictionaries of the columns that it reads in such conditions alone and does not return; `None` if it
/// has none.
pub(super) fn over_dictionaries(
    filter: &FilterExec,
    scans: Scans<'_>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(returned) = filter.projection() else { return Ok(None) };
    let (mut wanted, mut others) = (BTreeSet::new(), BTreeSet::new());
    others.extend(returned.iter().copied());
    for part in split_conjunction(filter.predicate()) {
        let of = if part.is::<PerValueExpr>() { &mut wanted } else { &mut others };
        of.extend(columns_of(part));
    }
    let Some(below) = read_below(filter.input(), &(&wanted - &others), scans)? else {
        return Ok(None);
    };
    let schema = filter.input().schema();
    let predicate = filter.predicate().clone().map_up(|part| {
        let column = part.downcast_ref::<Column>().map(Column::index);
        Ok(match column.filter(|column| below.texts.contains(column)) {
            Some(column) => {
                let of = schema.field(column).data_type().clone();
                Transformed::yes(Arc::new(CastExpr::new(part, of, None)) as Arc<dyn PhysicalExpr>)
            }
            None => Transformed::no(part),
        })
    })?;
    let filter = FilterExecBuilder::from(filter)
        .with_input(below.plan)
        .with_predicate(predicate.data)
        .build()?;
    Ok(Some(Arc::new(filter)))
}

/// True for a condition whose columns a reader may compare with statistics.
pub(super) fn is_compared(part: &Arc<dyn PhysicalExpr>) -> bool {
    match part.downcast_ref::<PerValueExpr>() {
        Some(part) => reaches_column(part.inner()),
        None => true,
    }
}

/// True if an expression reads a column outside of functions, of which readers know nothing.
fn reaches_column(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if expr.is::<ScalarFunctionExpr>() {
        return false;
    }
    if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        // A pattern that begins with any text has no bounds.
        let pattern = like.pattern().downcast_ref::<Literal>();
        let pattern = pattern.and_then(|pattern| pattern.value().try_as_str().flatten());
        if pattern.is_some_and(|pattern| pattern.starts_with('%')) {
            return false;
        }
    }
    expr.is::<Column>() || expr.children().into_iter().any(reaches_column)
}
