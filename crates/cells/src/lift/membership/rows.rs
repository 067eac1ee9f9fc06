//! `(a, b) IN (SELECT x, y …)`, which [`row_values`](super::super::row_values) writes as an EXISTS whose condition is
//! `tessera_row_in(a = x, b = y)`.
//!
//! A row is found if all equalities are true; IN is NULL if none is found, and for some row they are true or NULL. Then
//! that row or the left side has a NULL. Each case is a subquery, so that joins have keys:
//!
//! ```text
//! … (a, b) IN (…) …   ⇒   CASE WHEN EXISTS (… WHERE a = x AND b = y) THEN true
//!                              WHEN EXISTS (… WHERE (x IS NULL OR y IS NULL) AND (a = x AND b = y) IS NULL)
//!                                OR EXISTS (… WHERE CASE WHEN a IS NULL OR b IS NULL THEN 0 END = __zero
//!                                                   AND (a = x AND b = y) IS NULL) THEN NULL
//!                              ELSE false END
//! ```
//! `__zero` is a column of zeros that the optimiser does not know as constant: almost no row on the left has that key.

use std::sync::Arc;

use datafusion::common::{DFSchema, Result, internal_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Case, Exists};
use datafusion::logical_expr::utils::{conjunction, disjunction};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, Filter, LogicalPlan, Operator, Projection, Subquery, lit,
};

use super::super::functions::opaque;
use super::super::markers::ROW_IN;
use super::super::numbered::column;
use super::{answers, exists, subquery};

/// The name of the column of zeros.
const ZERO: &str = "__zero";

/// A row that is looked for in a subquery.
pub(super) struct RowIn<'a> {
    of: &'a Subquery,
    negated: bool,
    /// The equality of each value.
    equal: &'a [Expr],
    /// The rows of the subquery.
    rows: &'a Arc<LogicalPlan>,
}

impl<'a> RowIn<'a> {
    /// Reads an EXISTS; `None` if it looks for no row.
    pub(super) fn of(exists: &'a Exists) -> Option<Self> {
        let mut plan = &exists.subquery.subquery;
        loop {
            match &**plan {
                LogicalPlan::Filter(filter) => {
                    let equal = match &filter.predicate {
                        Expr::ScalarFunction(call) if call.func.name() == ROW_IN => &call.args,
                        _ => return None,
                    };
                    let (of, negated) = (&exists.subquery, exists.negated);
                    return Some(RowIn { of, negated, equal, rows: &filter.input });
                }
                // An EXISTS has no use for items and their order.
                LogicalPlan::Projection(projection) => plan = &projection.input,
                LogicalPlan::Sort(sort) => plan = &sort.input,
                _ => return None,
            }
        }
    }

    /// The rows of the subquery, and the condition for the row that is looked for.
    pub(super) fn equality(&self) -> (&'a Arc<LogicalPlan>, Option<Expr>) {
        (self.rows, conjunction(self.equal.iter().cloned()))
    }

    /// A condition for which NULL and false are the same. `negated` inverts the condition of the query.
    pub(super) fn condition(&self, negated: bool, state: &SessionState) -> Result<Expr> {
        let found = self.found()?;
        if self.negated == negated {
            return Ok(exists(found, false));
        }
        let unknown = self.unknown(state)?.into_iter().map(|unknown| exists(unknown, true));
        Ok(unknown.fold(exists(found, true), Expr::and))
    }

    /// True, false or NULL.
    pub(super) fn value(&self, state: &SessionState) -> Result<Expr> {
        let found = self.found()?;
        let unknown = self.unknown(state)?.into_iter().map(|unknown| exists(unknown, false));
        Ok(match disjunction(unknown) {
            Some(unknown) => answers(exists(found, false), unknown, self.negated),
            None => exists(found, self.negated),
        })
    }

    fn found(&self) -> Result<Subquery> {
        let (rows, equal) = self.equality();
        self.filtered(rows.clone(), equal)
    }

    /// Where no row is found: the rows for which IN is NULL and not false. None of these exist if it is false.
    fn unknown(&self, state: &SessionState) -> Result<Vec<Subquery>> {
        let schema = self.rows.schema();
        let is_null = || conjunction(self.equal.iter().cloned()).map(Expr::is_null);
        let Some(sides) = self.equal.iter().map(sides).collect::<Option<Vec<_>>>() else {
            return Ok(vec![self.filtered(self.rows.clone(), is_null())?]);
        };
        let (outside, inside): (Vec<Expr>, Vec<Expr>) = sides.into_iter().unzip();
        let mut unknown = Vec::new();
        if let Some(has_null) = some_null(inside, schema)? {
            let condition = is_null().map(|is_null| has_null.and(is_null));
            unknown.push(self.filtered(self.rows.clone(), condition)?);
        }
        if let Some(has_null) = some_null(outside, schema)? {
            let arms = vec![(Box::new(has_null), Box::new(lit(0i64)))];
            let key = Expr::Case(Case::new(None, arms, None)).eq(column(ZERO));
            let condition = is_null().map(|is_null| key.and(is_null));
            unknown.push(self.filtered(self.with_zeros(schema, state)?, condition)?);
        }
        Ok(unknown)
    }

    /// The rows of the subquery with a column of zeros.
    fn with_zeros(&self, schema: &DFSchema, state: &SessionState) -> Result<Arc<LogicalPlan>> {
        let Some(random) = state.scalar_functions().get("random") else {
            return internal_err!("no such function: random");
        };
        let zero = opaque().call(vec![lit(0i64), random.call(vec![])]).alias(ZERO);
        let columns = schema.columns().into_iter().map(Expr::Column).chain([zero]).collect();
        Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(columns, self.rows.clone())?)))
    }

    fn filtered(&self, rows: Arc<LogicalPlan>, condition: Option<Expr>) -> Result<Subquery> {
        let condition = condition.unwrap_or_else(|| lit(true));
        let filter = Filter::try_new(condition, rows)?;
        Ok(subquery(self.of, LogicalPlan::Filter(filter)))
    }
}

/// True if one of some expressions is NULL; `None` if none can be.
fn some_null(exprs: Vec<Expr>, schema: &DFSchema) -> Result<Option<Expr>> {
    let mut nulls = Vec::new();
    for expr in exprs {
        if expr.nullable(schema)? {
            nulls.push(expr.is_null());
        }
    }
    Ok(disjunction(nulls))
}

/// The outer side of an equality, and the side inside of the subquery.
fn sides(equal: &Expr) -> Option<(Expr, Expr)> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = equal else { return None };
    let is_outside = |side: &Expr| side.column_refs().is_empty();
    match (is_outside(left), is_outside(right)) {
        (true, false) => Some((left.as_ref().clone(), right.as_ref().clone())),
        (false, true) => Some((right.as_ref().clone(), left.as_ref().clone())),
        _ => None,
    }
}
