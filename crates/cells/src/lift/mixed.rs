//! Floats beside decimals: the decimal becomes a float, and a number of the query becomes a decimal.
//!
//! ```text
//! d = x                            ⇒   CAST(d AS DOUBLE) = x        d: DECIMAL, x: DOUBLE
//! d BETWEEN 0.06 - 0.01 AND 0.07   ⇒   d BETWEEN 0.05 AND 0.07      numbers as decimals, without rounding
//! ```
//! DataFusion compares and combines the two as decimals with 15 digits after the point: there 1e-20 is 0, and NaN,
//! infinity and large numbers are errors. Runs before types are coerced.

use std::sync::Arc;

use crate::walk::WalkPlan;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, Case};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::expr_schema::cast_subquery;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Projection, Subquery, Union, cast,
};

use super::casts::bare;
use super::time::is_comparison;

/// Functions that return one of their arguments, or compare them.
const FUNCTIONS: [&str; 7] =
    ["coalesce", "nvl", "nvl2", "nullif", "greatest", "least", "make_array"];

/// Maximum nesting of operators in a number that is written as an expression.
const DEPTH: usize = 16;

/// Rewrites all expressions, joins and unions of a plan; names stay the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut is_changed = false;
    plan.map_all_up(|node| {
        super::go_on()?;
        let schema = merge_schema(&node.inputs());
        let node = match node {
            LogicalPlan::Join(mut join) => {
                for (left, right) in &mut join.on {
                    is_changed |= meet(&mut [left, right], &schema);
                }
                LogicalPlan::Join(join)
            }
            LogicalPlan::Union(union) => {
                let new = of_union(union)?;
                is_changed |= new.transformed;
                LogicalPlan::Union(new.data)
            }
            node => node,
        };
        let node = super::map_parts(node, |expr| one(expr, &schema))?;
        is_changed |= node.transformed;
        if !is_changed {
            return Ok(node);
        }
        // Nodes above see the new types.
        Ok(Transformed::yes(match node.data {
            LogicalPlan::Union(union) => {
                LogicalPlan::Union(Union::try_new_with_loose_types(union.inputs)?)
            }
            node => node.recompute_schema()?,
        }))
    })
    .map(|t| t.data)
}

fn one(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(mut binary) if is_comparison(binary.op) => {
            let is_changed = meet(&mut [binary.left.as_mut(), binary.right.as_mut()], schema);
            Ok(Transformed::new_transformed(Expr::BinaryExpr(binary), is_changed))
        }
        Expr::Between(mut between) => {
            let Between { expr: value, low, high, .. } = &mut between;
            let is_changed = meet(&mut [value.as_mut(), low.as_mut(), high.as_mut()], schema);
            Ok(Transformed::new_transformed(Expr::Between(between), is_changed))
        }
        Expr::InList(mut list) => {
            let value = std::iter::once(list.expr.as_mut());
            let mut sides: Vec<&mut Expr> = value.chain(list.list.iter_mut()).collect();
            let is_changed = meet(&mut sides, schema);
            Ok(Transformed::new_transformed(Expr::InList(list), is_changed))
        }
        Expr::Case(mut case) => {
            let is_changed = of_case(&mut case, schema);
            Ok(Transformed::new_transformed(Expr::Case(case), is_changed))
        }
        Expr::ScalarFunction(mut call) if FUNCTIONS.contains(&call.func.name()) => {
            // The first argument of `nvl2` is only compared with NULL.
            let skipped = usize::from(call.func.name() == "nvl2");
            let mut sides: Vec<&mut Expr> = call.args.iter_mut().skip(skipped).collect();
            let is_changed = meet(&mut sides, schema);
            Ok(Transformed::new_transformed(Expr::ScalarFunction(call), is_changed))
        }
        Expr::InSubquery(mut within) => {
            let is_changed = meet_subquery(&mut within.expr, &mut within.subquery, schema)?;
            Ok(Transformed::new_transformed(Expr::InSubquery(within), is_changed))
        }
        Expr::SetComparison(mut within) => {
            let is_changed = meet_subquery(&mut within.expr, &mut within.subquery, schema)?;
            Ok(Transformed::new_transformed(Expr::SetComparison(within), is_changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

fn of_case(case: &mut Case, schema: &DFSchema) -> bool {
    let mut whens: Vec<&mut Expr> = Vec::new();
    let mut thens: Vec<&mut Expr> = Vec::new();
    for (when, then) in &mut case.when_then_expr {
        whens.push(when.as_mut());
        thens.push(then.as_mut());
    }
    if let Some(otherwise) = &mut case.else_expr {
        thens.push(otherwise.as_mut());
    }
    let mut is_changed = meet(&mut thens, schema);
    if let Some(value) = &mut case.expr {
        whens.push(value.as_mut());
        is_changed |= meet(&mut whens, schema);
    }
    is_changed
}

/// Casts decimals to floats, or numbers of the query to decimals, if `sides` has decimals and floats.
fn meet(sides: &mut [&mut Expr], schema: &DFSchema) -> bool {
    // An error here is not lost: later planning of the same expression reports it.
    let types: Vec<Option<DataType>> =
        sides.iter().map(|side| side.get_type(schema).ok()).collect();
    let decimals = decimals_of(types.iter().flatten());
    let Some(float) = float_of(types.iter().flatten()) else { return false };
    if decimals.is_empty() {
        return false;
    }
    let is_float = |kind: &Option<DataType>| kind.as_ref().is_some_and(DataType::is_floating);
    let is_decimal = |kind: &Option<DataType>| kind.as_ref().is_some_and(DataType::is_decimal);
    let floats = types.iter().zip(sides.iter()).filter(|(kind, _)| is_float(kind));
    let numbers: Option<Vec<Number>> = floats.map(|(_, side)| Number::of(side, DEPTH)).collect();
    match numbers.filter(|numbers| are_exact(numbers, &decimals)) {
        Some(numbers) => {
            let written = sides.iter_mut().zip(&types).filter(|(_, kind)| is_float(kind));
            for ((side, _), number) in written.zip(numbers) {
                **side = number.literal();
            }
        }
        None => {
            for (side, _) in sides.iter_mut().zip(&types).filter(|(_, kind)| is_decimal(kind)) {
                let side: &mut Expr = side;
                *side = cast(std::mem::take(side), float.clone());
            }
        }
    }
    true
}

/// As [`meet`], for a value that is compared with those of a subquery.
fn meet_subquery(value: &mut Expr, subquery: &mut Subquery, schema: &DFSchema) -> Result<bool> {
    let Ok(kind) = value.get_type(schema) else { return Ok(false) };
    let Some(field) = subquery.subquery.schema().fields().first() else { return Ok(false) };
    let other = field.data_type().clone();
    let Some(float) = float_of([&kind, &other]) else { return Ok(false) };
    if kind.is_decimal() {
        *value = cast(std::mem::take(value), float);
        return Ok(true);
    }
    if !other.is_decimal() {
        return Ok(false);
    }
    match Number::of(value, DEPTH).filter(|number| are_exact(&[*number], &[&other])) {
        Some(number) => *value = number.literal(),
        None => *subquery = cast_subquery(subquery.clone(), &float)?,
    }
    Ok(true)
}

/// As [`meet`], for each column of a union.
fn of_union(union: Union) -> Result<Transformed<Union>> {
    let Union { mut inputs, schema } = union;
    let mut casts: Vec<Option<DataType>> = Vec::new();
    let mut is_changed = false;
    for at in 0..schema.fields().len() {
        let fields = inputs.iter().filter_map(|input| input.schema().fields().get(at));
        let types: Vec<DataType> = fields.map(|field| field.data_type().clone()).collect();
        let decimals = decimals_of(&types);
        let float = float_of(&types).filter(|_| !decimals.is_empty());
        let is_exact = float.is_some() && make_exact(&mut inputs, at, &decimals)?;
        is_changed |= float.is_some();
        casts.push(float.filter(|_| !is_exact));
    }
    if casts.iter().any(Option::is_some) {
        let cast = inputs.into_iter().map(|input| as_floats(input, &casts));
        inputs = cast.collect::<Result<_>>()?;
    }
    Ok(Transformed::new_transformed(Union { inputs, schema }, is_changed))
}

/// Makes the floats of a column decimals, if all of them are numbers of the query.
fn make_exact(inputs: &mut [Arc<LogicalPlan>], at: usize, decimals: &[&DataType]) -> Result<bool> {
    let mut numbers = Vec::with_capacity(inputs.len());
    for input in inputs.iter() {
        let is_float =
            input.schema().fields().get(at).is_some_and(|field| field.data_type().is_floating());
        let number = match &**input {
            LogicalPlan::Projection(items) if is_float => {
                items.expr.get(at).and_then(|item| Number::of(bare(item), DEPTH))
            }
            _ => None,
        };
        if is_float && number.is_none() {
            return Ok(false);
        }
        numbers.push(number);
    }
    let known: Vec<Number> = numbers.iter().copied().flatten().collect();
    if !are_exact(&known, decimals) {
        return Ok(false);
    }
    let names = NamePreserver::new_for_projection();
    for (input, number) in inputs.iter_mut().zip(numbers) {
        let (Some(number), LogicalPlan::Projection(items)) = (number, &**input) else { continue };
        let mut exprs = items.expr.clone();
        let name = names.save(&exprs[at]);
        exprs[at] = name.restore(number.literal());
        let new = Projection::try_new(exprs, items.input.clone())?;
        *input = Arc::new(LogicalPlan::Projection(new));
    }
    Ok(true)
}

/// Casts the decimals among the columns that have a type here.
fn as_floats(input: Arc<LogicalPlan>, casts: &[Option<DataType>]) -> Result<Arc<LogicalPlan>> {
    let columns = input.schema().iter().zip(casts);
    let items = columns.map(|((relation, field), float)| {
        let column = Expr::from((relation, field));
        match float {
            Some(float) if field.data_type().is_decimal() => {
                cast(column, float.clone()).alias_qualified(relation.cloned(), field.name())
            }
            _ => column,
        }
    });
    let items: Vec<Expr> = items.collect();
    Ok(Arc::new(LogicalPlan::Projection(Projection::try_new(items, input)?)))
}

fn decimals_of<'a>(types: impl IntoIterator<Item = &'a DataType>) -> Vec<&'a DataType> {
    types.into_iter().filter(|kind| kind.is_decimal()).collect()
}

/// The widest of the floats.
fn float_of<'a>(types: impl IntoIterator<Item = &'a DataType>) -> Option<DataType> {
    let mut float = None;
    for kind in types {
        match kind {
            DataType::Float64 => return Some(DataType::Float64),
            DataType::Float32 | DataType::Float16 => float = Some(DataType::Float32),
            _ => {}
        }
    }
    float
}

/// True if a type of decimals holds the numbers and all values of the other types.
fn are_exact(numbers: &[Number], decimals: &[&DataType]) -> bool {
    let is_wide = decimals.iter().any(|kind| matches!(kind, DataType::Decimal256(..)));
    let most = if is_wide { DECIMAL256_MAX_PRECISION } else { DECIMAL128_MAX_PRECISION };
    let shapes = decimals.iter().filter_map(|kind| shape_of(kind));
    let (mut whole, mut scale) = (0, 0);
    for (w, s) in shapes.chain(numbers.iter().map(Number::shape)) {
        (whole, scale) = (whole.max(w), scale.max(s));
    }
    whole + scale <= i32::from(most)
}

/// The digits of a type of decimals before and after the point.
fn shape_of(kind: &DataType) -> Option<(i32, i32)> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    let (Decimal32(precision, scale)
    | Decimal64(precision, scale)
    | Decimal128(precision, scale)
    | Decimal256(precision, scale)) = kind
    else {
        return None;
    };
    let (precision, scale) = (i32::from(*precision), i32::from(*scale));
    Some((precision - scale, scale.max(0)))
}

/// A number that the query contains: `digits` divided by ten to the power of `scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    digits: i128,
    /// At most the precision of a decimal of 128 bits.
    scale: u8,
}

impl Number {
    fn new(digits: i128, scale: u32) -> Option<Self> {
        let number = Number { digits, scale: u8::try_from(scale).ok()? };
        (number.precision() <= DECIMAL128_MAX_PRECISION).then_some(number)
    }

    /// The number of an expression of literals with at most `depth` operators inside each other; `None` for others.
    fn of(expr: &Expr, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        match expr {
            Expr::Literal(ScalarValue::Float64(Some(value)), _) => Self::of_float(*value),
            Expr::Literal(ScalarValue::Int64(Some(value)), _) => Self::new(i128::from(*value), 0),
            Expr::Negative(inner) => {
                let Number { digits, scale } = Self::of(inner, depth)?;
                Some(Number { digits: -digits, scale })
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (l, r) = (Self::of(left, depth)?, Self::of(right, depth)?);
                let scale = l.scale.max(r.scale);
                let digits = match op {
                    Operator::Plus => l.digits_at(scale)?.checked_add(r.digits_at(scale)?)?,
                    Operator::Minus => l.digits_at(scale)?.checked_sub(r.digits_at(scale)?)?,
                    Operator::Multiply => {
                        let digits = l.digits.checked_mul(r.digits)?;
                        return Self::new(digits, u32::from(l.scale) + u32::from(r.scale));
                    }
                    _ => return None,
                };
                Self::new(digits, u32::from(scale))
            }
            _ => None,
        }
    }

    /// The number with the fewest digits that is nearest to this float: the one of the text, if it has at most 15 digits.
    fn of_float(value: f64) -> Option<Self> {
        if !value.is_finite() {
            return None;
        }
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e')?;
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = i32::try_from(fraction.len()).ok()? - exponent.parse::<i32>().ok()?;
        match u32::try_from(scale) {
            Ok(scale) => Self::new(digits, scale),
            Err(_) => Self::new(digits.checked_mul(power(scale.unsigned_abs())?)?, 0),
        }
    }

    fn digits_at(&self, scale: u8) -> Option<i128> {
        self.digits.checked_mul(power(u32::from(scale.checked_sub(self.scale)?))?)
    }

    fn precision(&self) -> u8 {
        let digits = self.digits.unsigned_abs().checked_ilog10().map_or(1, |last| last + 1);
        // 128 bits have at most 39 digits.
        self.scale.max(digits as u8)
    }

    /// Its digits before and after the point.
    fn shape(&self) -> (i32, i32) {
        let (precision, scale) = (i32::from(self.precision()), i32::from(self.scale));
        (precision - scale, scale)
    }

    fn literal(self) -> Expr {
        let (precision, scale) = (self.precision(), self.scale as i8);
        Expr::Literal(ScalarValue::Decimal128(Some(self.digits), precision, scale), None)
    }
}

fn power(exponent: u32) -> Option<i128> {
    10_i128.checked_pow(exponent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::prelude::lit;

    fn number(value: f64) -> Option<(i128, u8, u8)> {
        Number::of_float(value).map(|n| (n.digits, n.precision(), n.scale))
    }

    #[test]
    fn floats_are_the_numbers_of_their_text() {
        for (value, want) in [
            (0.0, (0, 1, 0)),
            (-0.0, (0, 1, 0)),
            (0.05, (5, 2, 2)),
            (-12.5, (-125, 3, 1)),
            (24.0, (24, 2, 0)),
            (1e20, (10_i128.pow(20), 21, 0)),
            (1.5e-30, (15, 31, 31)),
            (0.1 + 0.2, (30_000_000_000_000_004, 17, 17)),
        ] {
            assert_eq!(number(value), Some(want), "{value}");
        }
        for value in [f64::NAN, f64::INFINITY, 1e38, 1e300, 1e-39] {
            assert_eq!(number(value), None, "{value}");
        }
        assert_eq!(number(1e37), Some((10_i128.pow(37), 38, 0)));
    }

    #[test]
    fn expressions_of_numbers_are_computed_without_rounding() {
        let of = |expr: Expr| Number::of(&expr, DEPTH).map(|n| (n.digits, n.scale));
        assert_eq!(of(lit(0.06) - lit(0.01)), Some((5, 2)));
        assert_eq!(of(lit(0.06) + lit(0.01)), Some((7, 2)));
        assert_eq!(of(-(lit(1.5) * lit(3_i64))), Some((-45, 1)));
        assert_eq!(of(lit(1_i64) - lit(0.25)), Some((75, 2)));
        assert_eq!(of(lit(1.0) / lit(3.0)), None);
        assert_eq!(of(datafusion::prelude::col("x") + lit(1.0)), None);
        let long = (0..100).fold(lit(1.0), |sum, _| sum + lit(1.0));
        assert_eq!(of(long), None);
    }

    #[test]
    fn a_type_holds_the_numbers_or_they_stay_floats() {
        let are_exact = |value: f64, precision, scale| {
            let kind = DataType::Decimal128(precision, scale);
            are_exact(&[Number::of_float(value).unwrap()], &[&kind])
        };
        assert!(are_exact(0.055, 15, 2));
        assert!(are_exact(1e30, 15, 2));
        assert!(are_exact(0.5, 37, 0));
        assert!(!are_exact(0.5, 38, 0));
        assert!(!are_exact(1e37, 15, 2));
        assert!(are_exact(300.0, 38, 4));
    }
}
