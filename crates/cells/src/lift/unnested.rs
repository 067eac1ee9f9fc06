//! UNNEST over columns of the relations before it, and LATERAL subqueries without FROM, or over one row of VALUES.
//!
//! ```text
//! Cross join                                Projection: t.*, x AS u.x
//!   TableScan: t                              Unnest: x
//!   SubqueryAlias: u                    ⇒       Projection: t.*, t.list AS x
//!     Subquery                                    TableScan: t
//!       Unnest: x
//!         Projection: outer t.list AS x
//!           EmptyRelation
//! ```
//! DataFusion plans UNNEST in FROM as LATERAL, and makes a join only of conditions on outer columns. Here the operators
//! of the subquery run over the rows of the first side, and pass on its columns under other names, because columns of
//! the subquery have no qualifiers. DataFusion assumes that a key of groups occurs once, also above UNNEST, where it
//! occurs several times: a function hides it. In a LEFT JOIN without a condition a row without elements stays, with
//! NULL. So the subquery of such a join may only have elements, and no columns computed beside or from them, which
//! would have values in this row.
//!
//! Runs on the plan of the SQL, before types are coerced.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    Column, DFSchema, JoinType, NullHandling, Result, ScalarValue, TableReference, UnnestOptions,
};
use datafusion::logical_expr::{
    Expr, Filter, Join, LogicalPlan, Projection, SubqueryAlias, Unnest, lit,
};

use super::functions::opaque;

pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.replace_all_up(|node| match node {
        LogicalPlan::Join(join) => unnested(join),
        _ => Ok(None),
    })
}

/// The join as the operators of its second side over its first one; `None` for other joins.
fn unnested(join: &Join) -> Result<Option<LogicalPlan>> {
    let (body, alias) = match &*join.right {
        LogicalPlan::Subquery(inner) => (&inner.subquery, None),
        LogicalPlan::SubqueryAlias(SubqueryAlias { input, alias, .. }) => match &**input {
            LogicalPlan::Subquery(inner) => (&inner.subquery, Some(alias)),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let is_outer = match join.join_type {
        JoinType::Inner => false,
        JoinType::Left if is_always(join.filter.as_ref()) => true,
        _ => return Ok(None),
    };
    if !join.on.is_empty() {
        return Ok(None);
    }
    let first = join.left.schema();
    let over = Over { first: &join.left, unnests: 0, is_outer, elements: None };
    let Some((plan, unnests)) = over.graft(body)? else { return Ok(None) };
    // With several lists it is unknown which of them had no elements.
    if is_outer && unnests > 1 {
        return Ok(None);
    }
    let kept = first.columns().into_iter().enumerate();
    let kept = kept
        .map(|(at, column)| Expr::Column(passed(at)).alias_qualified(column.relation, column.name));
    let names = plan.schema().columns();
    let plan = renamed(plan, first.fields().len(), "own")?;
    let own = plan.schema().columns().into_iter().zip(names).skip(first.fields().len());
    let own = own.map(|(column, named)| {
        let qualifier: Option<TableReference> = alias.cloned().or(named.relation);
        Expr::Column(column).alias_qualified(qualifier, named.name)
    });
    let items = kept.chain(own).collect();
    let all = LogicalPlan::Projection(Projection::try_new(items, Arc::new(plan))?);
    Ok(Some(match &join.filter {
        Some(condition) if !is_outer => {
            LogicalPlan::Filter(Filter::try_new(condition.clone(), Arc::new(all))?)
        }
        _ => all,
    }))
}

/// True without a condition, and for `ON true`.
fn is_always(condition: Option<&Expr>) -> bool {
    matches!(condition, None | Some(Expr::Literal(ScalarValue::Boolean(Some(true)), _)))
}

/// The name under which a column of the first side is passed on. No text can produce it.
fn passed(at: usize) -> Column {
    Column::new_unqualified(format!("[passed {at}]"))
}

/// The plan with names that no text can produce for the columns behind the first `kept` ones, if it is a projection.
/// Above it the columns get a qualifier, and the optimiser copies a field of theirs into a projection that has the
/// columns of both: `v` beside `t.v` would be ambiguous. Neighbouring projections need different prefixes.
fn renamed(plan: LogicalPlan, kept: usize, prefix: &str) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(projection) = plan else { return Ok(plan) };
    let items = projection.expr.into_iter().enumerate().map(|(at, item)| match at < kept {
        true => item,
        false => item.unalias().alias(format!("[{prefix} {at}]")),
    });
    let projection = Projection::try_new(items.collect(), projection.input)?;
    Ok(LogicalPlan::Projection(projection))
}

/// The operators of a subquery, over the rows of the first side.
struct Over<'a> {
    first: &'a LogicalPlan,
    unnests: usize,
    is_outer: bool,
    /// The columns that are elements of lists; `None` below UNNEST of lists.
    elements: Option<BTreeSet<usize>>,
}

impl Over<'_> {
    /// The operators, and the number of UNNESTs among them. The columns of the first side come first. `None` for
    /// unsupported operators, and for columns of a query further outside; in an outer join also for columns that would
    /// have values in a row without elements.
    fn graft(mut self, body: &LogicalPlan) -> Result<Option<(LogicalPlan, usize)>> {
        let Some(plan) = self.operator(body)? else { return Ok(None) };
        let mut own = self.first.schema().fields().len()..plan.schema().fields().len();
        let is_null = |elements: &BTreeSet<usize>| own.all(|at| elements.contains(&at));
        if self.is_outer && !self.elements.as_ref().is_none_or(is_null) {
            return Ok(None);
        }
        Ok(Some((plan, self.unnests)))
    }

    fn operator(&mut self, body: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        match body {
            LogicalPlan::EmptyRelation(one) if one.produce_one_row => self.first_side().map(Some),
            LogicalPlan::Values(values) => {
                let [row] = values.values.as_slice() else { return Ok(None) };
                let mut items: Vec<Expr> = self.kept().collect();
                for (value, field) in row.iter().zip(values.schema.fields()) {
                    match inside(value, self.first.schema())? {
                        Some(value) => items.push(value.alias(field.name())),
                        None => return Ok(None),
                    }
                }
                let plan = Projection::try_new(items, Arc::new(self.first_side()?))?;
                Ok(Some(LogicalPlan::Projection(plan)))
            }
            LogicalPlan::Subquery(inner) => self.operator(&inner.subquery),
            LogicalPlan::Projection(projection) => {
                let Some(input) = self.operator(&projection.input)? else { return Ok(None) };
                let mut items: Vec<Expr> = self.kept().collect();
                for item in &projection.expr {
                    match inside(item, self.first.schema())? {
                        Some(item) => items.push(item),
                        None => return Ok(None),
                    }
                }
                if let Some(elements) = &self.elements {
                    let is_element = |item: &Expr| {
                        let Expr::Column(column) = item.clone().unalias_nested().data else {
                            return false;
                        };
                        let at = input.schema().maybe_index_of_column(&column);
                        at.is_some_and(|at| elements.contains(&at))
                    };
                    let found = items.iter().enumerate().filter(|(_, item)| is_element(item));
                    self.elements = Some(found.map(|(at, _)| at).collect());
                }
                let plan = Projection::try_new(items, Arc::new(input))?;
                Ok(Some(LogicalPlan::Projection(plan)))
            }
            // In a LEFT JOIN, a row that the filter drops would stay with NULL.
            LogicalPlan::Filter(filter) if !self.is_outer => {
                let Some(input) = self.operator(&filter.input)? else { return Ok(None) };
                let condition = inside(&filter.predicate, self.first.schema())?;
                let Some(condition) = condition else { return Ok(None) };
                let plan = Filter::try_new(condition, Arc::new(input))?;
                Ok(Some(LogicalPlan::Filter(plan)))
            }
            LogicalPlan::Unnest(unnest) => {
                let Some(input) = self.operator(&unnest.input)? else { return Ok(None) };
                self.unnests += 1;
                let options = match self.is_outer {
                    true => UnnestOptions {
                        null_handling: NullHandling::PreserveAndExpandEmpty,
                        ..unnest.options.clone()
                    },
                    false => unnest.options.clone(),
                };
                let columns = unnest.exec_columns.clone();
                let plan = Unnest::try_new(Arc::new(input), columns, options)?;
                let lists: BTreeSet<usize> =
                    plan.list_type_columns.iter().map(|(at, _)| *at).collect();
                if !lists.is_empty() {
                    let from = plan.dependency_indices.iter().enumerate();
                    let found = from.filter(|(_, input)| lists.contains(*input));
                    self.elements = Some(found.map(|(at, _)| at).collect());
                }
                Ok(Some(LogicalPlan::Unnest(plan)))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                // Its columns are referred to with its name.
                let Some(input) = self.operator(&alias.input)? else { return Ok(None) };
                let count = self.first.schema().fields().len();
                let names = input.schema().columns();
                let input = renamed(input, count, alias.alias.table())?;
                let own = input.schema().columns().into_iter().zip(names).skip(count);
                let own = own.map(|(column, named)| {
                    Expr::Column(column).alias_qualified(Some(alias.alias.clone()), named.name)
                });
                let items = self.kept().chain(own).collect();
                let plan = Projection::try_new(items, Arc::new(input))?;
                Ok(Some(LogicalPlan::Projection(plan)))
            }
            _ => Ok(None),
        }
    }

    /// The rows of the first side, with its columns as they are passed on.
    fn first_side(&self) -> Result<LogicalPlan> {
        let schema = self.first.schema();
        let keys: BTreeSet<usize> = schema
            .functional_dependencies()
            .iter()
            .flat_map(|known| known.source_indices.iter().copied())
            .collect();
        let items = schema.columns().into_iter().enumerate().map(|(at, column)| {
            let column = Expr::Column(column);
            let column = match keys.contains(&at) {
                true => opaque().call(vec![column, lit(0i64)]),
                false => column,
            };
            column.alias(passed(at).name)
        });
        let plan = Projection::try_new(items.collect(), Arc::new(self.first.clone()))?;
        Ok(LogicalPlan::Projection(plan))
    }

    /// The columns of the first side.
    fn kept(&self) -> impl Iterator<Item = Expr> + use<> {
        (0..self.first.schema().fields().len()).map(|at| Expr::Column(passed(at)))
    }
}

/// The expression with the columns of the first side as they are passed on; `None` if it has columns of other
/// relations, or a correlated subquery.
fn inside(expr: &Expr, first: &DFSchema) -> Result<Option<Expr>> {
    let mut is_inside = true;
    let new = expr.clone().map_up(|e| {
        Ok(match &e {
            Expr::OuterReferenceColumn(_, column) => match first.maybe_index_of_column(column) {
                Some(at) => Transformed::yes(Expr::Column(passed(at))),
                None => {
                    is_inside = false;
                    Transformed::no(e)
                }
            },
            Expr::ScalarSubquery(inner) if !inner.outer_ref_columns.is_empty() => {
                is_inside = false;
                Transformed::no(e)
            }
            Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => {
                is_inside = false;
                Transformed::no(e)
            }
            _ => Transformed::no(e),
        })
    })?;
    Ok(is_inside.then_some(new.data))
}
