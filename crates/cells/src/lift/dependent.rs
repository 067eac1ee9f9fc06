//! Correlated subqueries of forms for which DataFusion makes no join, or a wrong one. [`singular`](super::singular)
//! rewrites some of them first.
//!
//! ```text
//! Projection: o.i, (<subquery>)        Projection: o.i, value
//!   Subquery:                            Left Join: o.i IS NOT DISTINCT FROM k
//!     Limit: skip=1, fetch=1               TableScan: o
//!       Projection: q.j                    Projection: k, q.j AS value
//!         Filter: q.i = outer o.i            Filter: number > 1 AND number <= 2
//!           TableScan: q           ⇒           Window: row_number() PARTITION BY k AS number
//!   TableScan: o                                 Filter: q.i = k
//!                                                  Cross Join
//!                                                    Distinct: o.i AS k
//!                                                      TableScan: o
//!                                                    TableScan: q
//! ```
//! The subquery runs once for all distinct combinations of the outer columns that it uses: [`rows`] puts its operators
//! over these. The results are joined to the outer rows, where NULL equals NULL. This is the dependent join of Neumann
//! and Kemper, "Unnesting Arbitrary Queries" (2015). IN, ANY and ALL need the greatest of false, NULL and true over all
//! rows, so their left side is an outer column too. A subquery in FROM behind LATERAL is rewritten in the same way,
//! with all of its columns. A nested subquery is rewritten after the one around it: by then, the columns of the
//! outermost row are columns of the relation between.
//!
//! The outer rows are computed twice, so they must be the same each time ([`settled`]). [`form`] finds the subqueries
//! that are left to DataFusion.
//!
//! Runs on the analysed plan, whose types are coerced.

mod bind;
mod form;
mod rows;
mod settled;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{
    DFSchema, DataFusionError, JoinType, NullEquality, Result, ScalarValue, internal_err,
};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Case, Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, Cast, Distinct, Expr, ExprSchemable, FetchType, Filter, Join, JoinConstraint,
    LogicalPlan, Projection, Subquery, SubqueryAlias, Window, lit, not,
};
use tessera_frontend::error::Error;

use super::elements::{self, Kind, Question};
use super::functions::opaque;
use super::numbered::column;
use super::{marks, maybe, membership};
use bind::{Binder, Numbers, Outside, has_outside, is_of, subquery_of};
use form::Place;
use rows::{Rows, joined, project};

/// The name of a subquery's column without a name.
const ITEM: &str = "__item";

/// Rewrites such subqueries of a plan; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    if !has_outside(&plan)? {
        return Ok(plan);
    }
    let numbers = Numbers::default();
    let plan = plan.map_all_up(|node| super::map_parts(node, item_apart))?.data;
    let new = plan.map_all_down(|node| one(node, state, &numbers))?;
    if !new.transformed {
        return Ok(new.data);
    }
    // A subquery without rows is NULL, so the columns of all nodes above may be NULL.
    let new = new
        .data
        .map_all_up(|node| Ok(Transformed::yes(maybe::of_inputs(node.recompute_schema()?)?)))?;
    Ok(new.data)
}

/// Gives the column of a subquery of IN, ANY and ALL an alias: DataFusion names a cast like its column, and the join
/// may add a column of that name. Removes the columns of EXISTS if several have one name, as for `SELECT *` over a
/// join.
fn item_apart(expr: Expr) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::InSubquery(list) => match named(&list.subquery)? {
            Some(subquery) => Transformed::yes(Expr::InSubquery(InSubquery { subquery, ..list })),
            None => Transformed::no(Expr::InSubquery(list)),
        },
        Expr::SetComparison(of) => match named(&of.subquery)? {
            Some(subquery) => {
                Transformed::yes(Expr::SetComparison(SetComparison { subquery, ..of }))
            }
            None => Transformed::no(Expr::SetComparison(of)),
        },
        Expr::Exists(exists) => match without_columns(&exists)? {
            Some(subquery) => Transformed::yes(Expr::Exists(Exists { subquery, ..exists })),
            None => Transformed::no(Expr::Exists(exists)),
        },
        other => Transformed::no(other),
    })
}

fn without_columns(exists: &Exists) -> Result<Option<Subquery>> {
    let of = &exists.subquery;
    let LogicalPlan::Projection(items) = &*of.subquery else { return Ok(None) };
    let fields = items.schema.fields();
    let names: BTreeSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let is_plain = items.expr.iter().all(|item| matches!(item, Expr::Column(_)));
    if of.outer_ref_columns.is_empty()
        || names.len() == fields.len()
        || !is_plain
        || membership::row_looked_for(exists).is_some()
    {
        return Ok(None);
    }
    let new = project(vec![lit(1i64).alias(ITEM)], LogicalPlan::clone(&items.input))?;
    Ok(Some(Subquery { subquery: Arc::new(new), ..of.clone() }))
}

fn named(of: &Subquery) -> Result<Option<Subquery>> {
    let LogicalPlan::Projection(items) = &*of.subquery else { return Ok(None) };
    let [item] = items.expr.as_slice() else { return Ok(None) };
    if of.outer_ref_columns.is_empty() || matches!(item, Expr::Column(_) | Expr::Alias(_)) {
        return Ok(None);
    }
    let item = item.clone().alias(ITEM);
    let new = Projection::try_new(vec![item], Arc::clone(&items.input))?;
    Ok(Some(Subquery { subquery: Arc::new(LogicalPlan::Projection(new)), ..of.clone() }))
}

fn one(
    node: LogicalPlan,
    state: &SessionState,
    numbers: &Numbers,
) -> Result<Transformed<LogicalPlan>> {
    super::go_on()?;
    if let LogicalPlan::Join(join) = &node {
        return Ok(match lateral(join, state, numbers)? {
            Some(new) => Transformed::yes(new),
            None => Transformed::no(node),
        });
    }
    let Some(first) = only_input(&node)? else { return Ok(Transformed::no(node)) };
    let mut found: Vec<(Expr, Taken)> = Vec::new();
    node.each_expr(|expr| {
        expr.each(|e| {
            if found.iter().any(|(known, _)| known == e) {
                return Ok(TreeNodeRecursion::Jump);
            }
            Ok(match taken(e, first.schema(), numbers)? {
                Some(one) => {
                    found.push((e.clone(), one));
                    TreeNodeRecursion::Jump
                }
                None => TreeNodeRecursion::Continue,
            })
        })
    })?;
    if found.is_empty() {
        return Ok(Transformed::no(node));
    }
    let mut input = first.clone();
    let mut values = Vec::with_capacity(found.len());
    for (expr, taken) in found {
        let (plan, value) = taken.joined(input, &first, state, numbers)?;
        input = plan;
        values.push((expr, value));
    }
    over(node, input, &values)
}

/// The input of a node whose expressions may have such subqueries. A filter's input has only the rows that fulfil its
/// other conditions.
fn only_input(node: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let input = match node {
        LogicalPlan::Projection(projection) => &projection.input,
        LogicalPlan::Filter(filter) => {
            let mut plain = Vec::new();
            for part in split_conjunction(&filter.predicate) {
                let has_subquery = part.any(|e| Ok(subquery_of(e).is_some()))?;
                if !has_subquery && settled::is_condition_settled(part, &filter.input)? {
                    plain.push(part.clone());
                }
            }
            if let Some(condition) = conjunction(plain) {
                let rows = Filter::try_new(condition, Arc::clone(&filter.input))?;
                return Ok(Some(LogicalPlan::Filter(rows)));
            }
            &filter.input
        }
        LogicalPlan::Aggregate(aggregate) => &aggregate.input,
        LogicalPlan::Window(window) => &window.input,
        _ => return Ok(None),
    };
    Ok(Some(LogicalPlan::clone(input)))
}

struct Taken {
    question: Question,
    outside: Vec<Outside>,
}

/// The subquery that an expression over rows with this schema is, if it is rewritten here.
fn taken(expr: &Expr, schema: &DFSchema, numbers: &Numbers) -> Result<Option<Taken>> {
    let Some(inner) = subquery_of(expr) else { return Ok(None) };
    if !has_outside(&inner.subquery)? {
        return Ok(None);
    }
    let place = match expr {
        Expr::ScalarSubquery(_) => Place::Value,
        Expr::Exists(_) => Place::Exists,
        _ => Place::Member,
    };
    let mut binder = Binder::new(schema, numbers);
    let plan = binder.plan(&inner.subquery, &[])?;
    let has_one = place != Place::Value || has_one_row(&plan)?;
    if binder.known.is_empty()
        || !has_one
        || form::is_simple(&plan, place, &binder.names(), numbers)?
    {
        return Ok(None);
    }
    let Some(question) = elements::question(expr, schema)? else { return Ok(None) };
    let mut binder = Binder::new(schema, numbers);
    let rows = Arc::new(binder.plan(&question.rows, &[])?);
    let question = Question { rows, ..question };
    Ok(Some(Taken { question, outside: binder.known }))
}

/// True if a plan has at most one row.
fn has_one_row(plan: &LogicalPlan) -> Result<bool> {
    Ok(match plan {
        LogicalPlan::Projection(projection) => has_one_row(&projection.input)?,
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input)?,
        LogicalPlan::Subquery(inner) => has_one_row(&inner.subquery)?,
        LogicalPlan::Filter(filter) => has_one_row(&filter.input)?,
        LogicalPlan::Sort(sort) => has_one_row(&sort.input)?,
        LogicalPlan::Distinct(Distinct::All(input)) => has_one_row(input)?,
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Values(values) => values.values.len() <= 1,
        LogicalPlan::Limit(limit) => {
            matches!(limit.get_fetch_type()?, FetchType::Literal(Some(0 | 1)))
                || has_one_row(&limit.input)?
        }
        _ => false,
    })
}

impl Taken {
    /// The rows of `plan` joined with the subquery's result, and the expression of its value. `first` is the plan whose
    /// columns the subquery uses; `plan` has them too.
    fn joined(
        self,
        plan: LogicalPlan,
        first: &LogicalPlan,
        state: &SessionState,
        numbers: &Numbers,
    ) -> Result<(LogicalPlan, Expr)> {
        let Taken { question: Question { kind, rows, negated }, outside } = self;
        let names: Vec<String> = outside.iter().map(|outside| outside.name.clone()).collect();
        let domain = domain(first, &outside)?;
        let over = Rows { domain: &domain, names: &names, numbers, state };
        let rows = over.plan(&rows)?;
        let own = over.own(&rows).into_iter().next().map(Expr::Column);
        let name = format!("[value {}]", numbers.next());
        let keys = || names.iter().map(|name| column(name.as_str()));
        let (answers, value) = match (kind, own) {
            (Kind::Exists, _) => {
                // DataFusion (55.2) would drop a DISTINCT over groups of more keys.
                let rows = Aggregate::try_new(Arc::new(rows), keys().collect(), Vec::new())?;
                let rows = LogicalPlan::Aggregate(rows);
                (project(keys().chain([found(state)?.alias(&name)]).collect(), rows)?, {
                    let found = column(name.as_str());
                    if negated { found.is_null() } else { found.is_not_null() }
                })
            }
            (Kind::Value, Some(value)) => {
                let items = keys().chain([value.alias(&name)]).collect();
                (project(items, rows)?, column(name.as_str()))
            }
            (Kind::Any, Some(test)) => {
                let test = match test.get_type(rows.schema())? {
                    DataType::Boolean => test,
                    _ => Expr::Cast(Cast::new(Box::new(test), DataType::Boolean)),
                };
                let Some(max) = state.aggregate_functions().get("max") else {
                    return internal_err!("no such function: max");
                };
                let greatest = vec![max.call(vec![rank(test)])];
                let groups = Aggregate::try_new(Arc::new(rows), keys().collect(), greatest)?;
                let groups = LogicalPlan::Aggregate(groups);
                let items = over.own(&groups).into_iter().map(|of| Expr::Column(of).alias(&name));
                let items = keys().chain(items).collect();
                let value = of_rank(column(name.as_str()));
                (project(items, groups)?, if negated { not(value) } else { value })
            }
            (_, None) => return internal_err!("a subquery has no column"),
        };
        let plan = joined(plan, answers, pairs(first, &outside), JoinType::Left)?;
        Ok((plan, value))
    }
}

/// False, NULL and true as numbers in this order.
fn rank(test: Expr) -> Expr {
    let arms = vec![
        (Box::new(test.clone().is_true()), Box::new(lit(2i64))),
        (Box::new(test.is_null()), Box::new(lit(1i64))),
    ];
    Expr::Case(Case::new(None, arms, Some(Box::new(lit(0i64)))))
}

/// The value of such a number; false for NULL.
fn of_rank(rank: Expr) -> Expr {
    let null = Expr::Literal(ScalarValue::Boolean(None), None);
    let arms = vec![
        (Box::new(rank.clone().eq(lit(2i64))), Box::new(lit(true))),
        (Box::new(rank.eq(lit(1i64))), Box::new(null)),
    ];
    Expr::Case(Case::new(None, arms, Some(Box::new(lit(false)))))
}

/// True, hidden from the optimiser: it would substitute a constant also where a join adds NULL.
fn found(state: &SessionState) -> Result<Expr> {
    let Some(random) = state.scalar_functions().get("random") else {
        return internal_err!("no such function: random");
    };
    Ok(opaque().call(vec![lit(true), random.call(vec![])]))
}

/// The distinct combinations of the outer columns that are used.
fn domain(first: &LogicalPlan, outside: &[Outside]) -> Result<LogicalPlan> {
    let places: Vec<usize> = outside.iter().map(|outside| outside.at).collect();
    if !settled::is_settled(first, &places)? {
        return Err(DataFusionError::External(Box::new(Error::Unsupported {
            construct: "a subquery of this form over rows that may differ when they are computed again"
                .to_string(),
            position: None,
            hint: Some(
                "rows below LIMIT, `random()`, `row_number()` or a sum of floats may differ; store them first: `COPY (SELECT …) TO 'rows.parquet'`"
                    .to_string(),
            ),
        })));
    }
    let columns = first.schema().columns();
    let items = outside.iter().map(|outside| {
        let column = columns[outside.at].clone();
        Expr::Column(column).alias(&outside.name)
    });
    let rows = project(items.collect(), first.clone())?;
    Ok(LogicalPlan::Distinct(Distinct::All(Arc::new(rows))))
}

/// Pairs of an outer column and the column of the results with its values.
fn pairs(first: &LogicalPlan, outside: &[Outside]) -> Vec<(Expr, Expr)> {
    let columns = first.schema().columns();
    let pair = |outside: &Outside| {
        (Expr::Column(columns[outside.at].clone()), column(outside.name.as_str()))
    };
    outside.iter().map(pair).collect()
}

/// The node over another input, with values for some of its expressions; the schema stays the same.
fn over(
    node: LogicalPlan,
    input: LogicalPlan,
    values: &[(Expr, Expr)],
) -> Result<Transformed<LogicalPlan>> {
    let replaced = |expr: Expr| -> Result<Expr> {
        let new = expr.map_down(|e| {
            let value = values.iter().find(|(known, _)| *known == e);
            Ok(match value.map(|(_, value)| value.clone()) {
                Some(value) => Transformed::new(value, true, TreeNodeRecursion::Jump),
                None => Transformed::no(e),
            })
        })?;
        Ok(new.data)
    };
    let all = |exprs: Vec<Expr>| exprs.into_iter().map(&replaced).collect::<Result<Vec<_>>>();
    let input = Arc::new(input);
    match node {
        LogicalPlan::Projection(projection) => {
            let names = NamePreserver::new_for_projection();
            let saved: Vec<_> = projection.expr.iter().map(|expr| names.save(expr)).collect();
            let items = all(projection.expr)?.into_iter().zip(saved);
            let items = items.map(|(item, name)| name.restore(item)).collect();
            let plan = Projection::try_new(items, input)?;
            Ok(Transformed::yes(LogicalPlan::Projection(plan)))
        }
        LogicalPlan::Filter(filter) => {
            let schema = filter.input.schema().clone();
            let new = Filter::try_new(replaced(filter.predicate)?, input)?;
            let columns = 0..schema.fields().len();
            marks::renamed(LogicalPlan::Filter(new), columns, &schema)
        }
        LogicalPlan::Aggregate(aggregate) => {
            let (groups, calls) = (all(aggregate.group_expr)?, all(aggregate.aggr_expr)?);
            let new = Aggregate::try_new(input, groups, calls)?;
            let columns = 0..new.schema.fields().len();
            marks::renamed(LogicalPlan::Aggregate(new), columns, &aggregate.schema)
        }
        LogicalPlan::Window(window) => {
            let before = window.input.schema().fields().len();
            let wide = input.schema().fields().len();
            let new = Window::try_new(all(window.window_expr)?, input)?;
            let columns = (0..before).chain(wide..new.schema.fields().len());
            marks::renamed(LogicalPlan::Window(new), columns, &window.schema)
        }
        other => internal_err!("{} has no subqueries", other.display()),
    }
}

/// The join with a LATERAL subquery, if it is rewritten here.
fn lateral(join: &Join, state: &SessionState, numbers: &Numbers) -> Result<Option<LogicalPlan>> {
    if !is_lateral_taken(join, numbers)? {
        return Ok(None);
    }
    let mut binder = Binder::new(join.left.schema(), numbers);
    let rows = binder.plan(&join.right, &[])?;
    let names = binder.names();
    let first = LogicalPlan::clone(&join.left);
    let domain = domain(&first, &binder.known)?;
    let rows = Rows { domain: &domain, names: &names, numbers, state }.plan(&rows)?;
    let keys = pairs(&first, &binder.known);
    let lefts = first.schema().fields().len();
    let columns = rows.schema().columns().into_iter().enumerate();
    let own: Vec<usize> =
        columns.filter(|(_, column)| !is_of(column, &names)).map(|(at, _)| lefts + at).collect();
    let new = Join::try_new(
        Arc::new(first),
        Arc::new(rows),
        keys,
        join.filter.clone(),
        join.join_type,
        JoinConstraint::On,
        NullEquality::NullEqualsNull,
        false,
    )?;
    let new = marks::renamed(LogicalPlan::Join(new), (0..lefts).chain(own), &join.schema)?;
    Ok(Some(new.data))
}

/// True if the second side of a join refers to columns of the first one.
fn is_lateral(join: &Join, numbers: &Numbers) -> Result<bool> {
    let mut binder = Binder::new(join.left.schema(), numbers);
    binder.plan(&join.right, &[])?;
    Ok(!binder.known.is_empty())
}

/// True for a join with a LATERAL subquery that is rewritten here.
fn is_lateral_taken(join: &Join, numbers: &Numbers) -> Result<bool> {
    let is_known = matches!(join.join_type, JoinType::Inner | JoinType::Left) && join.on.is_empty();
    if !is_known || !has_outside(&join.right)? {
        return Ok(false);
    }
    let mut binder = Binder::new(join.left.schema(), numbers);
    let rows = binder.plan(&join.right, &[])?;
    if binder.known.is_empty() {
        return Ok(false);
    }
    let inner = match &rows {
        LogicalPlan::SubqueryAlias(SubqueryAlias { input, .. }) => &**input,
        other => other,
    };
    let LogicalPlan::Subquery(inner) = inner else { return Ok(true) };
    Ok(!form::is_simple(&inner.subquery, Place::Lateral, &binder.names(), numbers)?)
}

/// The error for a subquery with an operator that cannot run over the outer rows.
fn refused<T>(what: &str) -> Result<T> {
    Err(DataFusionError::External(Box::new(
        Error::unsupported(format!("{what} in a correlated subquery"), None)
            .with_hint("join and aggregate: `SELECT a.x, count(b.x) FROM a LEFT JOIN b ON b.x < a.x GROUP BY a.x`"),
    )))
}
