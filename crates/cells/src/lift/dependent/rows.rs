//! Rewrites the operators of a subquery to run for all outer rows.
//!
//! Each operator keeps the columns of the outer row, and so handles the rows of each outer row separately.

use std::sync::Arc;

use crate::walk::Walk;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    Column, DFSchema, JoinType, NullEquality, Result, ScalarValue, TableReference,
};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Aggregate, Distinct, EmptyRelation, Expr, ExprSchemable, FetchType, Filter, Join,
    JoinConstraint, Limit, LogicalPlan, Projection, SkipType, SortExpr, Union, Unnest, Values,
    Window, lit,
};

use super::super::functions::opaque;
use super::super::numbered::{column, numbered};
use super::bind::{Numbers, is_of, subquery_of, uses};
use super::{found, is_lateral, refused};

/// The number of a row among the rows of one outer row.
const NUMBER: &str = "[number]";

/// True in rows of groups.
const FOUND: &str = "[found]";

/// Rewrites a subquery; see the module.
pub(super) struct Rows<'a> {
    /// The outer rows, each once.
    pub(super) domain: &'a LogicalPlan,
    /// The names of their columns.
    pub(super) names: &'a [String],
    pub(super) numbers: &'a Numbers,
    pub(super) state: &'a SessionState,
}

impl Rows<'_> {
    /// The rows of a plan for each outer row, with the columns of both.
    pub(super) fn plan(&self, node: &LogicalPlan) -> Result<LogicalPlan> {
        crate::lift::go_on()?;
        if !uses(node, self.names)? {
            return match node {
                LogicalPlan::EmptyRelation(one) if one.produce_one_row => Ok(self.domain.clone()),
                other => joined(self.domain.clone(), other.clone(), Vec::new(), JoinType::Inner),
            };
        }
        match node {
            LogicalPlan::Filter(filter) => {
                let input = self.plan(&filter.input)?;
                kept(self.inside(filter.predicate.clone())?.data, input)
            }
            LogicalPlan::Projection(items) => self.projected(items, self.plan(&items.input)?),
            LogicalPlan::SubqueryAlias(alias) => {
                self.named(self.plan(&alias.input)?, &alias.schema)
            }
            LogicalPlan::Subquery(inner) => self.plan(&inner.subquery),
            LogicalPlan::Aggregate(aggregate) => self.aggregated(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                Ok(LogicalPlan::Distinct(Distinct::All(Arc::new(self.plan(input)?))))
            }
            // An order matters only below LIMIT.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.plan(&sort.input),
            LogicalPlan::Limit(limit) => self.first_rows(limit),
            LogicalPlan::Window(window) => self.windowed(window),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Union(all) => self.union(all),
            LogicalPlan::Values(values) => self.values(values),
            LogicalPlan::Unnest(unnest) => {
                let input = self.hidden(self.plan(&unnest.input)?)?;
                let (columns, options) = (unnest.exec_columns.clone(), unnest.options.clone());
                Ok(LogicalPlan::Unnest(Unnest::try_new(Arc::new(input), columns, options)?))
            }
            LogicalPlan::Distinct(Distinct::On(_)) => refused("DISTINCT ON"),
            _ => refused("an operator of this kind"),
        }
    }

    fn outside(&self) -> impl Iterator<Item = Expr> + '_ {
        self.names.iter().map(|name| column(name.as_str()))
    }

    /// The other columns of a plan.
    pub(super) fn own(&self, plan: &LogicalPlan) -> Vec<Column> {
        let columns = plan.schema().columns().into_iter();
        columns.filter(|column| !is_of(column, self.names)).collect()
    }

    /// Hides from DataFusion that each outer row occurs once: it would still assume so above UNNEST.
    fn hidden(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let own = self.own(&plan).into_iter().map(Expr::Column);
        let outside = self
            .names
            .iter()
            .map(|name| opaque().call(vec![column(name.as_str()), lit(0i64)]).alias(name));
        project(outside.chain(own).collect(), plan)
    }

    /// An expression of the subquery, with its outer columns as plain columns.
    fn inside(&self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.map_up(|e| match e {
            Expr::OuterReferenceColumn(_, column) if is_of(&column, self.names) => {
                Ok(Transformed::yes(Expr::Column(column)))
            }
            other => Ok(Transformed::no(other)),
        })
    }

    fn all_inside(&self, exprs: &[Expr]) -> Result<Vec<Expr>> {
        exprs.iter().map(|expr| Ok(self.inside(expr.clone())?.data)).collect()
    }

    /// The plan's own columns under the names of a schema.
    fn named(&self, plan: LogicalPlan, schema: &DFSchema) -> Result<LogicalPlan> {
        let own = self.own(&plan).into_iter().map(Expr::Column).zip(schema.iter());
        let own = own.map(|(column, (relation, field))| as_named(column, relation, field.name()));
        let items = self.outside().chain(own).collect();
        project(items, plan)
    }

    fn projected(&self, of: &Projection, input: LogicalPlan) -> Result<LogicalPlan> {
        let mut items: Vec<Expr> = self.outside().collect();
        for (item, (relation, field)) in of.expr.iter().zip(of.schema.iter()) {
            let new = self.inside(item.clone())?;
            items.push(match new.transformed {
                true => as_named(new.data, relation, field.name()),
                false => new.data,
            });
        }
        project(items, input)
    }

    fn aggregated(&self, of: &Aggregate) -> Result<LogicalPlan> {
        if matches!(of.group_expr.as_slice(), [Expr::GroupingSet(_)]) {
            return refused("GROUPING SETS, ROLLUP or CUBE");
        }
        let input = Arc::new(self.plan(&of.input)?);
        let own = self.all_inside(&of.group_expr)?.into_iter().enumerate();
        // A key that is an outer column occurs twice.
        let own = own.map(|(at, key)| match &key {
            Expr::Column(column) if is_of(column, self.names) => key.alias(format!("[key {at}]")),
            _ => key,
        });
        let groups = self.outside().chain(own).collect();
        let plan = Aggregate::try_new(input, groups, self.all_inside(&of.aggr_expr)?)?;
        let plan = self.named(LogicalPlan::Aggregate(plan), &of.schema)?;
        if of.group_expr.is_empty() { self.with_empty(of, plan) } else { Ok(plan) }
    }

    /// The rows of an aggregate without GROUP BY: `groups`, and its values over no rows for the other outer rows.
    fn with_empty(&self, of: &Aggregate, groups: LogicalPlan) -> Result<LogicalPlan> {
        let calls = of.aggr_expr.iter().map(|call| self.of_null(call.clone()));
        let calls = calls.collect::<Result<Vec<_>>>()?;
        let rows = EmptyRelation { produce_one_row: false, schema: of.input.schema().clone() };
        let rows = Arc::new(LogicalPlan::EmptyRelation(rows));
        let none = LogicalPlan::Aggregate(Aggregate::try_new(rows, Vec::new(), calls)?);
        let items = renamed(none.schema().columns(), "none").collect();
        let none = project(items, none)?;
        let left = joined(self.domain.clone(), none, Vec::new(), JoinType::Inner)?;

        let (mut items, keys) = self.apart("group");
        items.extend(renamed(self.own(&groups), "some"));
        items.push(found(self.state)?.alias(FOUND));
        let groups = project(items, groups)?;
        let plan = joined(left, groups, keys, JoinType::Left)?;

        let own = of.schema.iter().enumerate().map(|(at, (relation, field))| {
            let none = column(format!("[none {at}]"));
            let some = column(format!("[some {at}]"));
            let arms = vec![(Box::new(column(FOUND).is_null()), Box::new(none))];
            let value = Expr::Case(Case::new(None, arms, Some(Box::new(some))));
            as_named(value, relation, field.name())
        });
        let items = self.outside().chain(own).collect();
        project(items, plan)
    }

    /// The call of an aggregate with NULL for each outer column: over no rows its arguments are not computed.
    fn of_null(&self, call: Expr) -> Result<Expr> {
        if call.any(|e| Ok(subquery_of(e).is_some()))? {
            return refused("a subquery in an aggregate without GROUP BY");
        }
        let new = call.map_up(|e| match e {
            Expr::OuterReferenceColumn(field, column) if is_of(&column, self.names) => {
                let null = ScalarValue::try_from(field.data_type())?;
                Ok(Transformed::yes(Expr::Literal(null, None)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(new.data)
    }

    /// The outer columns under other names, and the keys that join both.
    fn apart(&self, of: &str) -> (Vec<Expr>, Vec<(Expr, Expr)>) {
        let renamed = |name: &String| format!("{name} {of}");
        let items = self.names.iter().map(|name| column(name.as_str()).alias(renamed(name)));
        let keys = self.names.iter().map(|name| (column(name.as_str()), column(renamed(name))));
        (items.collect(), keys.collect())
    }

    fn first_rows(&self, of: &Limit) -> Result<LogicalPlan> {
        match (of.get_skip_type()?, of.get_fetch_type()?) {
            (SkipType::Literal(skip), FetchType::Literal(fetch)) => {
                self.limited(&of.input, skip, fetch)
            }
            _ => refused("LIMIT or OFFSET of an expression"),
        }
    }

    fn limited(
        &self,
        node: &LogicalPlan,
        skip: usize,
        fetch: Option<usize>,
    ) -> Result<LogicalPlan> {
        let (rows, order) = match node {
            LogicalPlan::Projection(items) => {
                return self.projected(items, self.limited(&items.input, skip, fetch)?);
            }
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                let mut order = Vec::with_capacity(sort.expr.len());
                for key in &sort.expr {
                    let expr = self.inside(key.expr.clone())?.data;
                    order.push(SortExpr { expr, ..key.clone() });
                }
                (self.plan(&sort.input)?, order)
            }
            other => (self.plan(other)?, Vec::new()),
        };
        let columns = rows.schema().columns().into_iter().map(Expr::Column).collect();
        let plan = numbered(rows, self.outside().collect(), order, NUMBER, self.state)?;
        let mut condition = column(NUMBER).gt(lit(skip as u64));
        if let Some(fetch) = fetch {
            condition = condition.and(column(NUMBER).lt_eq(lit(skip.saturating_add(fetch) as u64)));
        }
        project(columns, kept(condition, plan)?)
    }

    fn windowed(&self, of: &Window) -> Result<LogicalPlan> {
        let input = Arc::new(self.plan(&of.input)?);
        let mut calls = Vec::with_capacity(of.window_expr.len());
        for call in self.all_inside(&of.window_expr)? {
            let call = call.map_up(|e| match e {
                Expr::WindowFunction(mut function) => {
                    let mut keys: Vec<Expr> = self.outside().collect();
                    keys.append(&mut function.params.partition_by);
                    function.params.partition_by = keys;
                    Ok(Transformed::yes(Expr::WindowFunction(function)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            calls.push(call.data);
        }
        self.named(LogicalPlan::Window(Window::try_new(calls, input)?), &of.schema)
    }

    fn join(&self, of: &Join) -> Result<LogicalPlan> {
        use JoinType::{Inner, Left, LeftAnti, LeftSemi};
        if !matches!(of.join_type, Inner | Left | LeftSemi | LeftAnti) {
            return refused("RIGHT JOIN or FULL JOIN");
        }
        // The subquery behind LATERAL refers to the first side, which has the outer columns.
        if is_lateral(of, self.numbers)? || !uses(&of.right, self.names)? {
            let right = LogicalPlan::clone(&of.right);
            return self.of_sides(of, self.plan(&of.left)?, right, Vec::new());
        }
        if of.join_type == Inner && !uses(&of.left, self.names)? {
            let left = LogicalPlan::clone(&of.left);
            return self.of_sides(of, left, self.plan(&of.right)?, Vec::new());
        }
        let left = self.plan(&of.left)?;
        let right = self.plan(&of.right)?;
        let (mut items, keys) = self.apart("right");
        let others: Vec<Column> = self.own(&right);
        let columns = match of.join_type {
            Inner | Left => self.own(&left).into_iter().chain(others.clone()).collect(),
            _ => self.own(&left),
        };
        items.extend(others.into_iter().map(Expr::Column));
        let plan = self.of_sides(of, left, project(items, right)?, keys)?;
        let columns = self.outside().chain(columns.into_iter().map(Expr::Column)).collect();
        project(columns, plan)
    }

    /// The join of these sides, where `keys` are equal or both NULL.
    fn of_sides(
        &self,
        of: &Join,
        left: LogicalPlan,
        right: LogicalPlan,
        keys: Vec<(Expr, Expr)>,
    ) -> Result<LogicalPlan> {
        let mut on = Vec::with_capacity(of.on.len());
        for (left, right) in &of.on {
            on.push((self.inside(left.clone())?.data, self.inside(right.clone())?.data));
        }
        let mut filter = match &of.filter {
            Some(filter) => Some(self.inside(filter.clone())?.data),
            None => None,
        };
        let rule = if keys.is_empty() { of.null_equality } else { NullEquality::NullEqualsNull };
        // A join has one rule for NULL. Set operations have that of `keys`, and their sides may have equal names.
        if rule != of.null_equality {
            let equal = std::mem::take(&mut on).into_iter().map(|(left, right)| left.eq(right));
            filter = conjunction(filter.into_iter().chain(equal));
        }
        on.extend(keys);
        let (left, right) = (Arc::new(left), Arc::new(right));
        let (kind, constraint) = (of.join_type, of.join_constraint);
        let join = Join::try_new(left, right, on, filter, kind, constraint, rule, of.null_aware)?;
        Ok(LogicalPlan::Join(join))
    }

    fn union(&self, of: &Union) -> Result<LogicalPlan> {
        let mut inputs = Vec::with_capacity(of.inputs.len());
        for input in &of.inputs {
            let plan = self.plan(input)?;
            let own = self.own(&plan).into_iter().map(Expr::Column);
            let items = self.outside().chain(own).collect();
            inputs.push(Arc::new(project(items, plan)?));
        }
        self.named(LogicalPlan::Union(Union::try_new(inputs)?), &of.schema)
    }

    fn values(&self, of: &Values) -> Result<LogicalPlan> {
        let mut rows = Vec::with_capacity(of.values.len());
        for row in &of.values {
            let mut items: Vec<Expr> = self.outside().collect();
            for (value, (relation, field)) in row.iter().zip(of.schema.iter()) {
                let value = self.inside(value.clone())?.data;
                let value = value.cast_to(field.data_type(), self.domain.schema())?;
                items.push(as_named(value, relation, field.name()));
            }
            rows.push(Arc::new(project(items, self.domain.clone())?));
        }
        if let [one] = rows.as_slice() {
            return Ok(LogicalPlan::clone(one));
        }
        self.named(LogicalPlan::Union(Union::try_new(rows)?), &of.schema)
    }
}

/// Columns under names that no text can produce.
fn renamed(columns: Vec<Column>, kind: &str) -> impl Iterator<Item = Expr> {
    let columns = columns.into_iter().enumerate();
    columns.map(move |(at, column)| Expr::Column(column).alias(format!("[{kind} {at}]")))
}

/// An expression as the column of that name.
fn as_named(expr: Expr, relation: Option<&TableReference>, name: &str) -> Expr {
    let is_named = matches!(&expr, Expr::Column(column) if column.relation.as_ref() == relation && column.name == name);
    if is_named { expr } else { expr.alias_qualified(relation.cloned(), name) }
}

pub(super) fn project(items: Vec<Expr>, input: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Projection(Projection::try_new(items, Arc::new(input))?))
}

fn kept(condition: Expr, input: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(input))?))
}

/// A join in which `keys` are equal or both NULL.
pub(super) fn joined(
    left: LogicalPlan,
    right: LogicalPlan,
    keys: Vec<(Expr, Expr)>,
    kind: JoinType,
) -> Result<LogicalPlan> {
    let rule = match keys.is_empty() {
        true => NullEquality::NullEqualsNothing,
        false => NullEquality::NullEqualsNull,
    };
    let (left, right) = (Arc::new(left), Arc::new(right));
    let join = Join::try_new(left, right, keys, None, kind, JoinConstraint::On, rule, false)?;
    Ok(LogicalPlan::Join(join))
}
