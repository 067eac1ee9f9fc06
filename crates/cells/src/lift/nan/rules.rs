//! Rewrites one expression to clear the signs of NaN and zero.

use std::sync::Arc;

use crate::walk::Walk;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, Case, Cast, InList, ScalarFunction, TryCast};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, Operator, ScalarUDF, ScalarUDFImpl, SortExpr,
};

use super::super::functions::{excluding, nullable};
use super::super::negated;
use super::intervals;
use super::member;
use super::plain::{Each, Member, Plain, holds_floats};

/// The functions used by the rewrite.
pub(super) struct Rules {
    nan: Arc<ScalarUDF>,
    zero: Arc<ScalarUDF>,
    member: Arc<ScalarUDF>,
    each: Arc<ScalarUDF>,
    length: Arc<ScalarUDF>,
}

/// Functions of single numbers whose result for NaN does not depend on its sign.
const OF_NUMBERS: [&str; 34] = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "degrees",
    "exp",
    "floor",
    "isnan",
    "iszero",
    "ln",
    "log",
    "log10",
    "log2",
    "pow",
    "power",
    "radians",
    "round",
    "signum",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tessera_floor_divide",
    "tessera_power",
    "trunc",
];

/// Functions that return one of their arguments.
const CHOICES: [&str; 9] = [
    "coalesce",
    "greatest",
    "least",
    "nullif",
    "nvl",
    "nvl2",
    "tessera_maybe",
    "tessera_opaque",
    "tessera_operand",
];

/// Functions that compare nested values, or elements of lists, by their bits. Those that return some of them return 0.0
/// for both zeros.
const OF_LISTS: [&str; 11] = [
    "array_distinct",
    "array_has_all",
    "array_has_any",
    "array_intersect",
    "array_position",
    "array_positions",
    "list_max",
    "list_min",
    "list_mode",
    "list_unique",
    "tessera_order",
];

/// Aggregates and window functions that return one of their input values.
const OF_VALUES: [&str; 11] = [
    "min",
    "max",
    "first_value",
    "last_value",
    "nth_value",
    "any_value",
    "lag",
    "lead",
    "percentile_disc",
    // These divide row counts, which are at least one.
    "percent_rank",
    "cume_dist",
];

impl Rules {
    pub(super) fn new() -> Self {
        Self {
            nan: Arc::new(Plain::udf(false)),
            zero: Arc::new(Plain::udf(true)),
            member: Arc::new(Member::udf()),
            each: Arc::new(Each::udf()),
            length: Arc::new(intervals::length()),
        }
    }

    /// Clears the sign of NaN.
    pub(super) fn one_nan(&self, expr: Expr) -> Expr {
        self.nan.call(vec![expr])
    }

    /// As [`Self::one_nan`], and replaces -0.0 by 0.0.
    pub(super) fn one_zero(&self, expr: Expr) -> Expr {
        self.zero.call(vec![expr])
    }

    /// A condition of WHERE: only true counts, so its lists of plain values may be merged
    /// with others, and pushed down to files.
    pub(super) fn filter(
        &self,
        expr: Expr,
        schema: &DFSchema,
        is_changed: &mut bool,
    ) -> Result<Expr> {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
                let left = Box::new(self.filter(*left, schema, is_changed)?);
                let right = Box::new(self.filter(*right, schema, is_changed)?);
                let both = Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right });
                Ok(without_circle(both, is_changed))
            }
            list if member::is_plain(&list, schema) => Ok(list),
            other => {
                let seen = self.visit(other, schema, false, is_changed)?;
                Ok(without_circle(seen, is_changed))
            }
        }
    }

    /// A sort key, for which zeros are equal.
    pub(super) fn key(&self, expr: Expr, schema: &DFSchema, is_changed: &mut bool) -> Result<Expr> {
        let expr = self.visit(expr, schema, true, is_changed)?;
        Ok(self.of_key(expr, schema, is_changed))
    }

    fn of_key(&self, expr: Expr, schema: &DFSchema, is_changed: &mut bool) -> Expr {
        if !is_wrapped(&expr, schema) {
            return expr;
        }
        *is_changed = true;
        self.compared(expr, schema)
    }

    /// The expression that is compared in place of a float, a nested value with floats, or an interval.
    pub(super) fn compared(&self, expr: Expr, schema: &DFSchema) -> Expr {
        match is_interval(&expr, schema) {
            true => self.length.call(vec![expr]),
            false => self.plain_zero(expr),
        }
    }

    /// `inside` is true for an argument of a function that clears the sign itself.
    pub(super) fn visit(
        &self,
        expr: Expr,
        schema: &DFSchema,
        inside: bool,
        is_changed: &mut bool,
    ) -> Result<Expr> {
        // Already rewritten.
        if is_call_of::<Member>(&expr) {
            return Ok(expr);
        }
        let makes = makes_floats(&expr, schema);
        let is_inside = is_call_of::<Plain>(&expr) || (makes && is_of_numbers(&expr));
        let expr = expr
            .map_below(|child| {
                Ok(Transformed::yes(self.visit(child, schema, is_inside, is_changed)?))
            })?
            .data;
        let expr = match expr {
            Expr::InList(mut list) => {
                *is_changed = true;
                self.items(&mut list.list);
                let list = self.wrapped(list, schema);
                self.member.call(vec![Expr::InList(list)])
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
                match member::joined(&left, &right) {
                    Some(list) => {
                        *is_changed = true;
                        let list = self.wrapped(list, schema);
                        self.member.call(vec![Expr::InList(list)])
                    }
                    None => Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }),
                }
            }
            Expr::ScalarFunction(mut f) if OF_LISTS.contains(&f.func.name()) => {
                for arg in &mut f.args {
                    *arg = self.of_key(std::mem::take(arg), schema, is_changed);
                }
                Expr::ScalarFunction(f)
            }
            Expr::Case(Case { expr: Some(base), when_then_expr, else_expr })
                if has_floats(&base, schema) =>
            {
                *is_changed = true;
                let when_then_expr = when_then_expr
                    .into_iter()
                    .map(|(when, then)| (Box::new(self.plain_zero(*when)), then))
                    .collect();
                let base = Some(Box::new(self.plain_zero(*base)));
                Expr::Case(Case { expr: base, when_then_expr, else_expr })
            }
            Expr::ScalarFunction(f)
                if f.func.name() == "nullif"
                    && f.args.iter().all(|a| is_float(a, schema) && !a.is_volatile()) =>
            {
                *is_changed = true;
                null_if(f, schema)?
            }
            // The optimiser makes a list of IN of these.
            Expr::ScalarFunction(mut f) if f.func.name() == "array_has" => {
                if let Some(first) = f.args.first_mut()
                    && let Expr::ScalarFunction(list) = &mut *first
                    && list.func.name() == "make_array"
                {
                    // `x IN (1, NULL)` may be NULL; a list with a NULL has x or not.
                    if !list.args.iter().all(is_null) {
                        let count = list.args.len();
                        list.args.retain(|item| !is_null(item));
                        *is_changed |= list.args.len() < count;
                    }
                    *is_changed |= self.items(&mut list.args);
                    if list.args.iter().any(|item| item.nullable(schema).unwrap_or(true)) {
                        *is_changed = true;
                        let list = std::mem::take(first);
                        *first = nullable().call(vec![list]);
                    }
                }
                Expr::ScalarFunction(f)
            }
            Expr::Negative(inner) => negated::of(inner, schema, is_changed),
            other => self.call(self.comparison(other, schema, is_changed), schema, is_changed),
        };
        if makes && !inside {
            *is_changed = true;
            return Ok(self.one_nan(expr));
        }
        Ok(expr)
    }

    /// A comparison of nested values or of intervals.
    fn comparison(&self, expr: Expr, schema: &DFSchema, is_changed: &mut bool) -> Expr {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right })
                if is_equality(op) && (is_nested(&left, schema) || is_nested(&right, schema)) =>
            {
                *is_changed = true;
                let (left, right) = (self.plain_zero(*left), self.plain_zero(*right));
                Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right })
                if is_comparison(op)
                    && is_interval(&left, schema)
                    && is_interval(&right, schema) =>
            {
                *is_changed = true;
                let (left, right) = (self.compared(*left, schema), self.compared(*right, schema));
                Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))
            }
            Expr::Between(Between { expr, negated, low, high }) if is_interval(&expr, schema) => {
                *is_changed = true;
                let [expr, low, high] =
                    [expr, low, high].map(|e| Box::new(self.compared(*e, schema)));
                Expr::Between(Between { expr, negated, low, high })
            }
            other => other,
        }
    }

    /// An aggregate or a window function: the arguments and keys that it compares.
    fn call(&self, expr: Expr, schema: &DFSchema, is_changed: &mut bool) -> Expr {
        match expr {
            Expr::AggregateFunction(mut call) => {
                let is_count = matches!(call.func.name(), "approx_distinct" | "count");
                let is_of_different = call.params.distinct || call.func.name() == "approx_distinct";
                // Others return their arguments.
                let is_extreme = matches!(call.func.name(), "min" | "max");
                let is_seen = |arg: &Expr| match is_of_different {
                    true => is_count || !is_interval(arg, schema),
                    false => is_extreme && is_nested(arg, schema),
                };
                for arg in call.params.args.iter_mut().filter(|arg| is_seen(arg)) {
                    *arg = self.of_key(std::mem::take(arg), schema, is_changed);
                }
                // With DISTINCT, keys of ORDER BY are arguments.
                let is_distinct = call.params.distinct;
                let is_kept = |key: &Expr| is_distinct && is_interval(key, schema);
                for key in &mut call.params.order_by {
                    if !is_kept(&key.expr) {
                        key.expr = self.of_key(std::mem::take(&mut key.expr), schema, is_changed);
                    }
                }
                Expr::AggregateFunction(call)
            }
            Expr::WindowFunction(mut call) => {
                let is_extreme = matches!(call.fun.name(), "min" | "max");
                let is_seen = |arg: &Expr| is_extreme && is_nested(arg, schema);
                for arg in call.params.args.iter_mut().filter(|arg| is_seen(arg)) {
                    *arg = self.of_key(std::mem::take(arg), schema, is_changed);
                }
                for key in &mut call.params.partition_by {
                    *key = self.of_key(std::mem::take(key), schema, is_changed);
                }
                self.keys(&mut call.params.order_by, schema, is_changed);
                Expr::WindowFunction(call)
            }
            other => other,
        }
    }

    fn keys(&self, keys: &mut [SortExpr], schema: &DFSchema, is_changed: &mut bool) {
        for key in keys {
            key.expr = self.of_key(std::mem::take(&mut key.expr), schema, is_changed);
        }
    }

    /// Prevents DataFusion from taking an item of IN for a constant that is none; true if there is one.
    fn items(&self, items: &mut [Expr]) -> bool {
        let mut is_changed = false;
        for item in items.iter_mut().filter(|item| !member::is_seen_through(item)) {
            *item = self.each.call(vec![std::mem::take(item)]);
            is_changed = true;
        }
        is_changed
    }

    /// Canonicalizes both sides of IN, which compares bits.
    fn wrapped(&self, list: InList, schema: &DFSchema) -> InList {
        if !is_wrapped(&list.expr, schema) {
            return list;
        }
        let items = list.list.into_iter().map(|item| self.compared(item, schema)).collect();
        let expr = Box::new(self.compared(*list.expr, schema));
        InList { expr, list: items, negated: list.negated }
    }

    fn plain_zero(&self, expr: Expr) -> Expr {
        match expr {
            Expr::Literal(ScalarValue::Float64(Some(v)), m) => {
                let v = if v.is_nan() { f64::NAN } else { v + 0.0 };
                Expr::Literal(ScalarValue::Float64(Some(v)), m)
            }
            Expr::Literal(ScalarValue::Float32(Some(v)), m) => {
                let v = if v.is_nan() { f32::NAN } else { v + 0.0 };
                Expr::Literal(ScalarValue::Float32(Some(v)), m)
            }
            Expr::Literal(value, m) if value.is_null() || !holds_floats(&value.data_type()) => {
                Expr::Literal(value, m)
            }
            known if matches!(&known, Expr::ScalarFunction(f) if f.func == self.zero) => known,
            other => self.zero.call(vec![other]),
        }
    }
}

/// `nullif(a, b)`: `CASE WHEN a = b THEN NULL ELSE a END`, whose `=` treats zeros as equal.
fn null_if(mut f: ScalarFunction, schema: &DFSchema) -> Result<Expr> {
    let (Some(b), Some(a), true) = (f.args.pop(), f.args.pop(), f.args.is_empty()) else {
        return datafusion::common::plan_err!("nullif takes two arguments");
    };
    let null = ScalarValue::try_from(&a.get_type(schema)?)?;
    let same = Expr::BinaryExpr(BinaryExpr::new(Box::new(a.clone()), Operator::Eq, Box::new(b)));
    let arms = vec![(Box::new(same), Box::new(Expr::Literal(null, None)))];
    Ok(Expr::Case(Case::new(None, arms, Some(Box::new(a)))))
}

fn is_call_of<T: ScalarUDFImpl>(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(f) if f.func.inner().is::<T>())
}

/// True for arithmetic and similar functions.
fn is_of_numbers(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(f) => OF_NUMBERS.contains(&f.func.name()),
        _ => true,
    }
}

/// True if the expression produces floats, possibly a NaN that none of its operands is.
fn makes_floats(expr: &Expr, schema: &DFSchema) -> bool {
    use Operator::{Divide, Minus, Modulo, Multiply, Plus};
    let makes = match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => {
            matches!(op, Plus | Minus | Multiply | Divide | Modulo)
        }
        Expr::Negative(_) => true,
        // A text may be `-NaN`.
        Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) => {
            matches!(
                expr.get_type(schema),
                Ok(DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
            )
        }
        Expr::ScalarFunction(f) => {
            !f.func.inner().is::<Plain>() && !CHOICES.contains(&f.func.name())
        }
        _ => false,
    };
    makes && is_float(expr, schema)
}

/// Rewrites `e / 2 = e` so that DataFusion infers no equivalence from it: it would treat both sides as equal
/// everywhere, and then not recognize an order by `e`.
fn without_circle(condition: Expr, is_changed: &mut bool) -> Expr {
    let holds = |whole: &Expr, part: &Expr| {
        !matches!(part, Expr::Literal(..)) && whole.any(|e| Ok(e == part)).unwrap_or(false)
    };
    let Some((left, right)) = equal_sides(&condition) else { return condition };
    let part = match (holds(left, right), holds(right, left)) {
        (true, _) => right.clone(),
        (_, true) => left.clone(),
        _ => return condition,
    };
    *is_changed = true;
    let (left, right) = (Box::new(left.clone()), Box::new(right.clone()));
    let same = Expr::BinaryExpr(BinaryExpr::new(left, Operator::IsNotDistinctFrom, right));
    same.and(part.is_not_null())
}

/// The sides of `a = b`, also where the simplifier makes it of `a BETWEEN b AND b` or `a >= b AND a <= b`.
fn equal_sides(condition: &Expr) -> Option<(&Expr, &Expr)> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => Some((left, right)),
        Expr::Between(Between { expr, negated: false, low, high }) if low == high => {
            Some((expr, low))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            let (Expr::BinaryExpr(one), Expr::BinaryExpr(other)) = (&**left, &**right) else {
                return None;
            };
            let is_pair = matches!(
                (one.op, other.op),
                (Operator::GtEq, Operator::LtEq) | (Operator::LtEq, Operator::GtEq)
            );
            let is_same = is_pair && one.left == other.left && one.right == other.right;
            is_same.then_some((&*one.left, &*one.right))
        }
        _ => None,
    }
}

/// True if an aggregate or window function computes floats from its inputs.
pub(super) fn makes_result(call: &Expr) -> bool {
    name_of_call(call).is_some_and(|name| !OF_VALUES.contains(&name))
}

/// True if the result is an extreme value, which may be either zero.
pub(super) fn is_extreme(call: &Expr) -> bool {
    matches!(name_of_call(call), Some("min" | "max"))
}

fn name_of_call(call: &Expr) -> Option<&str> {
    match super::super::casts::bare(call) {
        Expr::AggregateFunction(call) => Some(call.func.name()),
        Expr::WindowFunction(call) => Some(excluding::name_of(&call.fun)),
        _ => None,
    }
}

/// True for a constant NULL.
fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(Cast { expr, .. }) => is_null(expr),
        _ => false,
    }
}

/// True for float types. An unknown type is no float: later planning reports the error.
pub(super) fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Float64 | DataType::Float32))
}

/// True for floats, and for nested values with floats in them.
fn has_floats(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|kind| holds_floats(&kind))
}

/// True for nested values with floats in them.
pub(super) fn is_nested(expr: &Expr, schema: &DFSchema) -> bool {
    has_floats(expr, schema) && !is_float(expr, schema)
}

pub(super) fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|kind| intervals::is_interval(&kind))
}

/// True for values that [`Rules::compared`] replaces.
pub(super) fn is_wrapped(expr: &Expr, schema: &DFSchema) -> bool {
    has_floats(expr, schema) || is_interval(expr, schema)
}

fn is_comparison(op: Operator) -> bool {
    use Operator::{Gt, GtEq, Lt, LtEq};
    is_equality(op) || matches!(op, Gt | GtEq | Lt | LtEq)
}

fn is_equality(op: Operator) -> bool {
    use Operator::{Eq, IsDistinctFrom, IsNotDistinctFrom, NotEq};
    matches!(op, Eq | NotEq | IsDistinctFrom | IsNotDistinctFrom)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::logical_expr::{cast, when};
    use datafusion::prelude::{col, lit};

    #[test]
    fn items_that_differ_from_row_to_row_are_no_constants() {
        let case = || when(col("a").gt(lit(1)), lit(2)).when(col("a").gt(lit(0)), lit(3)).end();
        let mut items = vec![
            col("a"),
            lit(1),
            cast(col("a"), DataType::Int64),
            case().unwrap(),
            cast(case().unwrap(), DataType::Int64),
        ];
        assert!(Rules::new().items(&mut items));
        let are_hidden: Vec<bool> = items.iter().map(is_call_of::<Each>).collect();
        assert_eq!(are_hidden, [false, false, false, true, true]);
        assert!(!Rules::new().items(&mut items[..3]));
    }

    #[test]
    fn no_side_of_an_equality_is_a_part_of_the_other() {
        let (a, whole) = (|| col("a"), || col("a") / lit(2));
        for (condition, want) in [
            (whole().eq(a()), true),
            (a().eq(whole()), true),
            (whole().between(a(), a()), true),
            (whole().gt_eq(a()).and(whole().lt_eq(a())), true),
            (whole().lt_eq(a()).and(whole().gt_eq(a())), true),
            (whole().between(a(), lit(7)), false),
            (whole().not_between(a(), a()), false),
            (whole().gt_eq(a()).and(whole().lt(a())), false),
            (whole().eq(col("b")), false),
            (whole().eq(lit(2)), false),
        ] {
            let mut is_changed = false;
            let shown = condition.to_string();
            let new = without_circle(condition, &mut is_changed);
            assert_eq!(is_changed, want, "{shown}");
            if want {
                assert!(new.to_string().ends_with("AND a IS NOT NULL"), "{new}");
            } else {
                assert_eq!(new.to_string(), shown);
            }
        }
    }
}
