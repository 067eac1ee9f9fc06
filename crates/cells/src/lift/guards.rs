//! A condition before an expression that can fail guards it.
//!
//! ```text
//! s ~ '^[0-9]+$' AND s::int > 5   ⇒   s ~ '^[0-9]+$' AND tessera_where(s, s ~ '^[0-9]+$')::int > 5
//! x = 0 OR 6 / x > 1              ⇒   x = 0 OR 6 / tessera_where(x, (x = 0) IS NOT TRUE) > 1
//! ```
//! DataFusion orders the parts of a condition by their costs, moves each of them by itself, and evaluates the right side
//! of AND and OR for all rows unless few need it. So the operand itself is NULL in rows that the parts before exclude: a
//! cast or a division of NULL does not fail, and the part does not count there. That holds wherever the part goes, also
//! on a worker. DataFusion evaluates the first part once, as a common subexpression, and other guards again wherever they
//! guard something, so [`seen`] leaves out those that are not needed.
//!
//! | where | an expression is guarded by |
//! |---|---|
//! | WHERE, HAVING, ON, FILTER, WHEN | parts of AND before it that are true, parts of OR before it that are not |
//! | values: `SELECT a AND b` | the same, but NULL before AND guards nothing: `NULL AND false` is false |
//! | arguments of an aggregate with FILTER | its FILTER |
//! | a condition that has columns of one relation alone | the parts before it that have no columns of others |
//! | an equality of two relations, which may be a key | for each side, the parts before it that have columns of it alone |
//!
//! [`rewrite`] runs before DataFusion's optimiser, in the order of the text. [`merged`] runs where a condition meets that
//! of a subquery, which comes first. [`settled`] runs after the optimiser: `CASE` of Booleans is AND and OR, and joins
//! have keys. There the parts that cannot fail come first. A subquery, a random number and a column of an outer query are
//! no guards.

mod fallible;
mod function;
mod seen;

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, TableReference};
use datafusion::logical_expr::expr::{AggregateFunction, Case, ScalarFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, Join, LogicalPlan, Operator, ScalarUDF, binary_expr, lit,
};
pub(super) use fallible::is_safe_cast;
use fallible::{is_constant, may_fail};
pub(super) use function::function;
use seen::{Seen, risks};

use super::always;
use super::casts::bare;

/// Maximum parts of a guard that can fail itself. It has the guards before it inside, so a long chain would grow without
/// bounds: later expressions are guarded by those parts of it that are smaller or cannot fail.
const FALLIBLE_MAX: usize = 256;

/// Maximum parts of all guards of a node of a plan; later expressions are evaluated for all rows.
const PARTS_MAX: usize = 1 << 14;

pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    of_plan(plan, false)
}

/// Guards the expressions of an optimised plan.
pub(crate) fn settled(plan: LogicalPlan) -> Result<LogicalPlan> {
    of_plan(plan, true)
}

/// Guards the condition of a filter that was merged from several: rows that the lower ones exclude fail in no other.
pub(super) fn merged(filter: Filter) -> Result<Filter> {
    let Filter { predicate, input, .. } = filter;
    let schema = input.schema().clone();
    let guards = Guards::new(&schema, false);
    let predicate = match guards.fails(&predicate)? {
        true => guards.visit(predicate, &[], Counts::True)?,
        false => predicate,
    };
    Ok(Filter::new(predicate, input))
}

/// The expression without `tessera_where`: the same in rows that count, but it may fail in others.
pub(super) fn unguarded(expr: Expr) -> Result<Expr> {
    let unguarded = expr.map_up(|e| {
        Ok(match e {
            Expr::ScalarFunction(mut call)
                if call.func.name() == function::NAME && !call.args.is_empty() =>
            {
                Transformed::yes(call.args.swap_remove(0))
            }
            e => Transformed::no(e),
        })
    });
    Ok(unguarded?.data)
}

fn of_plan(plan: LogicalPlan, is_settled: bool) -> Result<LogicalPlan> {
    plan.map_all_up(|node| {
        super::go_on()?;
        // Filters of a scan only skip data: a node above evaluates them again.
        if matches!(node, LogicalPlan::TableScan(_)) || !has_guard(&node)? {
            return Ok(Transformed::no(node));
        }
        let schema = merge_schema(&node.inputs());
        let guards = Guards::new(&schema, is_settled);
        match guards.any_fails(&node)? {
            true => guards.of_node(node).map(Transformed::yes),
            false => Ok(Transformed::no(node)),
        }
    })
    .map(|t| t.data)
}

/// True if a part of the node may guard another one.
fn has_guard(node: &LogicalPlan) -> Result<bool> {
    let is_join =
        matches!(node, LogicalPlan::Join(join) if !join.on.is_empty() && join.filter.is_some());
    Ok(is_join || node.any_expr(|expr| expr.any(|e| Ok(is_guard(e))))?)
}

fn is_guard(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(e) => matches!(e.op, Operator::And | Operator::Or),
        Expr::AggregateFunction(call) => call.params.filter.is_some(),
        Expr::WindowFunction(call) => call.params.filter.is_some(),
        _ => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// Rows for which the expression is true: NULL and false are the same.
    True,
    /// All rows.
    Each,
}

struct Guards<'a> {
    schema: &'a DFSchema,
    function: Arc<ScalarUDF>,
    is_settled: bool,
    /// Parts that guards may still have.
    left: Cell<usize>,
}

impl<'a> Guards<'a> {
    fn new(schema: &'a DFSchema, is_settled: bool) -> Self {
        Guards { schema, function: Arc::new(function()), is_settled, left: Cell::new(PARTS_MAX) }
    }

    fn any_fails(&self, node: &LogicalPlan) -> Result<bool> {
        node.any_expr(|expr| self.fails(expr))
    }

    fn of_node(&self, node: LogicalPlan) -> Result<LogicalPlan> {
        match node {
            LogicalPlan::Filter(Filter { predicate, input, .. }) => {
                let condition = self.visit(predicate, &[], Counts::True)?;
                Ok(LogicalPlan::Filter(Filter::new(condition, input)))
            }
            LogicalPlan::Join(join) => self.of_join(join).map(LogicalPlan::Join),
            node => {
                let names = NamePreserver::new(&node);
                let new = node.map_exprs(|expr| {
                    let name = names.save(&expr);
                    let new = self.visit(expr, &[], Counts::Each)?;
                    Ok(Transformed::yes(name.restore(new)))
                })?;
                Ok(new.data)
            }
        }
    }

    fn of_join(&self, mut join: Join) -> Result<Join> {
        let condition =
            join.filter.take().map(|condition| self.visit(condition, &[], Counts::True));
        join.filter = condition.transpose()?;
        // In `NOT IN`, a key that is NULL counts.
        let Some(condition) = join.filter.as_ref().filter(|_| !join.null_aware) else {
            return Ok(join);
        };
        let mut guards = Vec::new();
        for part in split_conjunction(condition) {
            if !self.fails(part)? && is_usable(part)? {
                guards.push(part.clone());
            }
        }
        let of_side = |side: &LogicalPlan| -> Vec<Expr> {
            let schema = side.schema();
            let is_of = |guard: &&Expr| guard.column_refs().iter().all(|c| schema.has_column(c));
            guards.iter().filter(is_of).cloned().collect()
        };
        let (of_left, of_right) = (of_side(&join.left), of_side(&join.right));
        for (left, right) in &mut join.on {
            *left = self.visit(std::mem::take(left), &of_left, Counts::Each)?;
            *right = self.visit(std::mem::take(right), &of_right, Counts::Each)?;
        }
        Ok(join)
    }

    /// Guards an expression that counts only for rows that fulfil all `guards`.
    fn visit(&self, expr: Expr, guards: &[Expr], counts: Counts) -> Result<Expr> {
        match expr {
            Expr::BinaryExpr(BinaryExpr { op: op @ (Operator::And | Operator::Or), .. }) => {
                self.of_logic(expr, op, guards, counts)
            }
            Expr::Alias(mut alias) => {
                *alias.expr = self.visit(std::mem::take(&mut *alias.expr), guards, counts)?;
                Ok(Expr::Alias(alias))
            }
            Expr::Case(case) if case.expr.is_none() => self.of_case(case, guards),
            Expr::ScalarFunction(call) if call.func.name() == function::NAME => {
                self.of_guarded(call, guards)
            }
            Expr::AggregateFunction(call) => {
                self.of_aggregate(call, guards).map(Expr::AggregateFunction)
            }
            Expr::WindowFunction(call) => self.of_window(call, guards).map(Expr::WindowFunction),
            // DataFusion finds the keys of the sets by their names.
            Expr::GroupingSet(_) => Ok(expr),
            // A lambda is over other rows: those of the elements.
            Expr::Lambda(_) => {
                let body = |e| self.visit(e, &[], Counts::Each).map(Transformed::yes);
                Ok(expr.map_below(body)?.data)
            }
            expr => {
                let is_guarded = !guards.is_empty() && may_fail(&expr, self.schema);
                let operand = |e| self.visit(e, guards, Counts::Each).map(Transformed::yes);
                let expr = expr.map_below(operand)?.data;
                if is_guarded { self.guarded(expr, guards) } else { Ok(expr) }
            }
        }
    }

    /// A conjunction or disjunction.
    fn of_logic(&self, expr: Expr, op: Operator, guards: &[Expr], counts: Counts) -> Result<Expr> {
        let is_random = expr.is_volatile();
        let mut parts = Vec::new();
        for part in parts_of(expr, op) {
            parts.push((self.fails(&part)?, part));
        }
        let is_condition = op == Operator::And && counts == Counts::True;
        if self.is_settled && is_condition && !is_random {
            parts.sort_by_key(|(fails, _)| *fails);
        }
        let mut known = guards.to_vec();
        let mut seen = Seen::default();
        let mut done = Vec::with_capacity(parts.len());
        for (fails, part) in parts {
            let is_key = is_condition && is_of_two_relations(&part);
            // It becomes a part of a join, which has only the columns that it names.
            let is_outer = part.contains_outer();
            let is_plain = fails && !is_random && !is_key && !is_outer && self.left.get() > 0;
            let risks = if is_plain { risks(&part, self.schema)? } else { Vec::new() };
            let before = seen.guards(&risks);
            let is_new = before.is_none();
            let mut sufficient = before.unwrap_or_else(|| known.clone());
            if is_condition && fails {
                // Guards of other relations would keep it above their join.
                let of = relations(&part);
                sufficient.retain(|guard| relations(guard).is_subset(&of));
            }
            let has_all = is_new && sufficient.len() == known.len();
            let part = match part {
                part if is_outer => part,
                Expr::BinaryExpr(equality) if is_key => self.of_equality(equality, &known)?,
                part => self.visit(part, &sufficient, counts)?,
            };
            if is_new {
                seen.add(risks, sufficient, has_all);
            }
            let guard = bare(&part);
            let is_small = !fails || size(guard)? <= FALLIBLE_MAX;
            if is_small && is_usable(guard)? {
                // It is true only where all guards before it are.
                let implies_all = is_condition && has_all && !is_key && is_null_if_excluded(guard);
                if implies_all && self.left.get() > 0 {
                    known.clear();
                }
                known.push(match op {
                    Operator::And if is_condition => guard.clone(),
                    Operator::And => Expr::IsNotFalse(Box::new(guard.clone())),
                    _ => Expr::IsNotTrue(Box::new(guard.clone())),
                });
            }
            done.push(part);
        }
        Ok(joined(done, op))
    }

    /// `l = r` of two relations: guards of both would keep it from being the key of a join.
    fn of_equality(&self, equality: BinaryExpr, known: &[Expr]) -> Result<Expr> {
        let BinaryExpr { left, op, right } = equality;
        let side = |side: Expr| -> Result<Expr> {
            let mut guards = known.to_vec();
            guards.retain(|guard| relations(guard).is_subset(&relations(&side)));
            self.visit(side, &guards, Counts::Each)
        };
        Ok(binary_expr(side(*left)?, op, side(*right)?))
    }

    /// `CASE WHEN …`: DataFusion evaluates its parts for their rows alone.
    fn of_case(&self, case: Case, guards: &[Expr]) -> Result<Expr> {
        let value = |e: Box<Expr>| self.visit(*e, guards, Counts::Each).map(Box::new);
        let mut branches = Vec::with_capacity(case.when_then_expr.len());
        for (when, then) in case.when_then_expr {
            branches.push((Box::new(self.visit(*when, guards, Counts::True)?), value(then)?));
        }
        let otherwise = case.else_expr.map(value).transpose()?;
        Ok(Expr::Case(Case::new(None, branches, otherwise)))
    }

    /// An aggregate evaluates its arguments for all rows, also for those that its FILTER excludes.
    fn of_aggregate(
        &self,
        mut call: AggregateFunction,
        guards: &[Expr],
    ) -> Result<AggregateFunction> {
        let known = self.of_filter(call.params.filter.as_deref_mut(), guards)?;
        for value in &mut call.params.args {
            *value = self.visit(std::mem::take(value), &known, Counts::Each)?;
        }
        for key in &mut call.params.order_by {
            key.expr = self.visit(std::mem::take(&mut key.expr), &known, Counts::Each)?;
        }
        Ok(call)
    }

    fn of_window(
        &self,
        mut call: Box<WindowFunction>,
        guards: &[Expr],
    ) -> Result<Box<WindowFunction>> {
        let known = self.of_filter(call.params.filter.as_deref_mut(), guards)?;
        for value in &mut call.params.args {
            *value = self.visit(std::mem::take(value), &known, Counts::Each)?;
        }
        let keys = call.params.order_by.iter_mut().map(|key| &mut key.expr);
        for key in call.params.partition_by.iter_mut().chain(keys) {
            *key = self.visit(std::mem::take(key), guards, Counts::Each)?;
        }
        Ok(call)
    }

    /// Guards a FILTER, and returns the guards of the arguments.
    fn of_filter(&self, filter: Option<&mut Expr>, guards: &[Expr]) -> Result<Vec<Expr>> {
        let mut known = guards.to_vec();
        let Some(filter) = filter else { return Ok(known) };
        *filter = self.visit(std::mem::take(filter), guards, Counts::True)?;
        for part in split_conjunction(bare(filter)) {
            if is_usable(part)? {
                known.push(bare(part).clone());
            }
        }
        Ok(known)
    }

    /// `tessera_where(…)`: its guards that are among these are guarded themselves.
    fn of_guarded(&self, mut call: ScalarFunction, guards: &[Expr]) -> Result<Expr> {
        let known: HashSet<&Expr> = guards.iter().collect();
        for (at, part) in call.args.iter_mut().enumerate() {
            if at == 0 || !known.contains(&*part) {
                *part = self.visit(std::mem::take(part), guards, Counts::Each)?;
            }
        }
        Ok(Expr::ScalarFunction(call))
    }

    /// An expression that fails for no row that the guards exclude.
    fn guarded(&self, expr: Expr, guards: &[Expr]) -> Result<Expr> {
        match expr {
            // One operand that is NULL suffices.
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => Ok(match is_constant(&right) {
                true => binary_expr(self.only(*left, guards)?, op, *right),
                false => binary_expr(*left, op, self.only(*right, guards)?),
            }),
            expr => {
                let operand = |e: Expr| match matches!(e, Expr::Lambda(_)) || is_constant(&e) {
                    true => Ok(Transformed::no(e)),
                    false => self.only(e, guards).map(Transformed::yes),
                };
                Ok(expr.map_below(operand)?.data)
            }
        }
    }

    /// `tessera_where(value, guards…)`, each guard once.
    fn only(&self, value: Expr, guards: &[Expr]) -> Result<Expr> {
        let mut args = match value {
            Expr::ScalarFunction(call) if call.func.name() == function::NAME => call.args,
            value => vec![value],
        };
        let known: HashSet<&Expr> = args.iter().skip(1).collect();
        let new: Vec<Expr> = guards.iter().filter(|g| !known.contains(g)).cloned().collect();
        let mut parts = 0;
        for guard in &new {
            parts += size(guard)?;
        }
        match self.left.get().checked_sub(parts) {
            Some(left) => {
                self.left.set(left);
                args.extend(new);
            }
            None => self.left.set(0),
        }
        match args.len() {
            1 => Ok(args.swap_remove(0)),
            _ => Ok(Expr::ScalarFunction(ScalarFunction::new_udf(self.function.clone(), args))),
        }
    }

    /// True if a part of the expression may fail.
    fn fails(&self, expr: &Expr) -> Result<bool> {
        expr.any(|e| Ok(may_fail(e, self.schema)))
    }
}

/// The parts of nested conjunctions, or disjunctions, in their order.
fn parts_of(expr: Expr, op: Operator) -> Vec<Expr> {
    let (mut parts, mut rest) = (Vec::new(), vec![expr]);
    while let Some(next) = rest.pop() {
        match next {
            Expr::BinaryExpr(both) if both.op == op => rest.extend([*both.right, *both.left]),
            part => parts.push(part),
        }
    }
    parts
}

/// The parts as one expression, of a depth that many of them do not increase much.
fn joined(mut parts: Vec<Expr>, op: Operator) -> Expr {
    if parts.len() < 2 {
        return parts.pop().unwrap_or_else(|| lit(op == Operator::And));
    }
    let right = parts.split_off(parts.len().div_ceil(2));
    binary_expr(joined(parts, op), op, joined(right, op))
}

fn relations(expr: &Expr) -> BTreeSet<Option<&TableReference>> {
    expr.column_refs().into_iter().map(|column| column.relation.as_ref()).collect()
}

/// True for an equality whose sides have columns of different relations.
fn is_of_two_relations(part: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = part else { return false };
    if !matches!(op, Operator::Eq | Operator::IsNotDistinctFrom) {
        return false;
    }
    let (left, right) = (relations(left), relations(right));
    !left.is_empty() && !right.is_empty() && left.is_disjoint(&right)
}

/// True for a condition that may be evaluated a second time, as a guard.
fn is_usable(guard: &Expr) -> Result<bool> {
    if is_constant(guard) {
        return Ok(false);
    }
    let refused = guard.any(|e| {
        Ok(match e {
            Expr::ScalarFunction(call) => e.is_volatile_node() || call.func.name() == always::NAME,
            Expr::Exists(_)
            | Expr::InSubquery(_)
            | Expr::SetComparison(_)
            | Expr::ScalarSubquery(_)
            | Expr::OuterReferenceColumn(..)
            | Expr::AggregateFunction(_)
            | Expr::WindowFunction(_)
            | Expr::Unnest(_) => true,
            _ => false,
        })
    })?;
    Ok(!refused)
}

/// True if the expression is NULL in the rows that its `tessera_where` excludes.
fn is_null_if_excluded(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(call) => call.func.name() == function::NAME,
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let takes_null = matches!(
                op,
                Operator::And
                    | Operator::Or
                    | Operator::IsDistinctFrom
                    | Operator::IsNotDistinctFrom
            );
            !takes_null && (is_null_if_excluded(left) || is_null_if_excluded(right))
        }
        Expr::Cast(cast) => is_null_if_excluded(&cast.expr),
        Expr::Not(of) | Expr::Negative(of) => is_null_if_excluded(of),
        Expr::Between(between) => is_null_if_excluded(&between.expr),
        Expr::InList(list) => !list.list.is_empty() && is_null_if_excluded(&list.expr),
        Expr::Like(like) => is_null_if_excluded(&like.expr),
        _ => false,
    }
}

fn size(expr: &Expr) -> Result<usize> {
    let mut parts = 0;
    expr.each(|_| {
        parts += 1;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(parts)
}

#[cfg(test)]
mod tests;
