//! Aggregates of the tensor surface in a cell block.
//!
//! | written | becomes |
//! |---|---|
//! | `quantile(x, 0.9)`, `percentile(x, 90)` | `percentile_cont(x, 0.9)`, `percentile_cont(x, 90 / 100.0)` |
//! | `ptp(x)` | `max(x) - min(x)` |
//! | `nanmean(x)`, `nanmax(x)`, … | `avg(y)`, `max(y)`, … of y, which is x with NULL for NaN |
//! | `nanstd(x)`, `nanvar(x)` | `stddev_pop(y)`, `var_pop(y)` |
//!
//! And aggregates of DuckDB:
//!
//! | written | becomes |
//! |---|---|
//! | `arg_max(x, y)`, `max_by(x, y)` | `first_value(x ORDER BY y DESC) FILTER (WHERE x IS NOT NULL AND y IS NOT NULL)` |
//! | `arg_min(x, y)`, `min_by(x, y)` | the same with `ORDER BY y` |
//! | `max(x, n)`, `arg_max(x, y, n)` | `tessera_top_max(x, n)`, `tessera_top_max(x, y, n)`: lists |
//! | `count_if(c)`, `countif(c)` | `count(*) FILTER (WHERE c)` |
//! | `listagg(s, '-')`, `group_concat(s)`, `string_agg(s)` | `string_agg(s, '-')`, `string_agg(s, ',')` |
//! | `arg_max(x, y) OVER …` | `tessera_arg_max(x, y) OVER …`, as no order is possible there |

use sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArguments, Ident, ObjectName, OrderByExpr, OrderByOptions, Value,
};
use sqlparser::tokenizer::Span;
use tessera_frontend::ast::null;
use tessera_frontend::functions::is_aggregate;
use tessera_frontend::surface::walk;

use super::super::functions::WITHOUT_NAN;

/// `arg_max` and `arg_min` with OVER.
pub(in crate::lift) const ARG_MAX: &str = "tessera_arg_max";
pub(in crate::lift) const ARG_MIN: &str = "tessera_arg_min";

/// `max(x, n)` and `arg_max(x, y, n)`, `min(x, n)` and `arg_min(x, y, n)`.
pub(in crate::lift) const TOP_MAX: &str = "tessera_top_max";
pub(in crate::lift) const TOP_MIN: &str = "tessera_top_min";

/// Aggregates that ignore NaN, without their prefix `nan`, and the SQL aggregates for them. SQL lacks them, so their
/// meaning is NumPy's: the standard deviation is that of a population.
const NAN: [(&str, &str); 9] = [
    ("max", "max"),
    ("mean", "avg"),
    ("median", "median"),
    ("min", "min"),
    ("percentile", "percentile"),
    ("quantile", "quantile"),
    ("std", "stddev_pop"),
    ("sum", "sum"),
    ("var", "var_pop"),
];

/// The replacement of a call of the function `name` (in lower case); `None` for other functions.
pub(super) fn rewritten(function: &Function, name: &str) -> Option<Expr> {
    let known = name.strip_prefix("nan").and_then(|rest| NAN.iter().find(|(own, _)| *own == rest));
    let plain = known.map_or(name, |(_, sql)| *sql);
    if let Some(new) = several(function, name) {
        return Some(new);
    }
    if matches!(name, "arg_max" | "arg_min" | "max_by" | "min_by") {
        let args = <[Expr; 2]>::try_from(arguments(function)?).ok()?;
        return value_at(function, args, name.contains("max"));
    }
    if matches!(name, "count_if" | "countif") {
        let [condition] = <[Expr; 1]>::try_from(arguments(function)?).ok()?;
        return count_if(function, condition);
    }
    if matches!(name, "group_concat" | "listagg" | "string_agg") {
        return joined(function, name);
    }
    if known.is_none() && !matches!(plain, "percentile" | "ptp" | "quantile") {
        return None;
    }
    let mut args = arguments(function)?;
    if known.is_some()
        && let Some(x) = args.first_mut()
    {
        *x = without_nan(std::mem::replace(x, null()));
    }
    let called = |name: &str, args: Vec<Expr>| Expr::Function(with(function, name, args));
    match (plain, args.len()) {
        ("ptp", 1) if !has_aggregate(&args) => {
            let (left, right) = (called("max", args.clone()), called("min", args));
            let (left, right) = (Box::new(left), Box::new(right));
            let range = Expr::BinaryOp { left, op: BinaryOperator::Minus, right };
            Some(Expr::Nested(Box::new(range)))
        }
        ("quantile", 2) if !is_list(&args[1]) => Some(called("percentile_cont", args)),
        ("percentile", 2) if !is_list(&args[1]) => {
            let q = Box::new(Expr::Nested(Box::new(args.pop()?)));
            let hundred = Expr::Value(Value::Number("100.0".to_string(), false).into());
            let (op, right) = (BinaryOperator::Divide, Box::new(hundred));
            args.push(Expr::BinaryOp { left: q, op, right });
            Some(called("percentile_cont", args))
        }
        ("ptp" | "quantile" | "percentile", _) => None,
        (sql, 1) => Some(called(sql, args)),
        _ => None,
    }
}

/// The value of `x` in the first row with the greatest `y`, or the smallest one; `None` for calls with an order of their
/// own.
fn value_at(function: &Function, args: [Expr; 2], is_greatest: bool) -> Option<Expr> {
    if !function.within_group.is_empty() {
        return None;
    }
    if function.over.is_some() {
        let name = if is_greatest { ARG_MAX } else { ARG_MIN };
        let new = with(function, name, args.into());
        // One of several equal rows has the same value.
        let is_plain =
            matches!(&new.args, FunctionArguments::List(list) if list.clauses.is_empty());
        return is_plain.then_some(Expr::Function(new));
    }
    // An aggregate inside is an error, which needs no condition: one in another would be copied at each level.
    let is_nested = has_aggregate(&args);
    let [x, y] = args;
    let mut new = with(function, "first_value", vec![x.clone()]);
    let FunctionArguments::List(list) = &mut new.args else { return None };
    if !list.clauses.is_empty() || list.duplicate_treatment.is_some() {
        return None;
    }
    let options = OrderByOptions { asc: Some(!is_greatest), nulls_first: Some(false) };
    let key = OrderByExpr { expr: y.clone(), options, with_fill: None };
    list.clauses.push(FunctionArgumentClause::OrderBy(vec![key]));
    if is_nested {
        return Some(Expr::Function(new));
    }
    let has_both = and(Expr::IsNotNull(Box::new(x)), Expr::IsNotNull(Box::new(y)));
    let condition = match new.filter.take() {
        Some(own) => and(Expr::Nested(own), has_both),
        None => has_both,
    };
    new.filter = Some(Box::new(condition));
    Some(Expr::Function(new))
}

/// The greatest or smallest values as a list; `None` for other calls. A text is the name of a dimension of a tensor.
fn several(function: &Function, name: &str) -> Option<Expr> {
    let count = match name {
        "max" | "min" => 2,
        "arg_max" | "arg_min" | "max_by" | "min_by" => 3,
        _ => return None,
    };
    let FunctionArguments::List(list) = &function.args else { return None };
    let is_plain = list.clauses.is_empty() && list.duplicate_treatment.is_none();
    let args = arguments(function).filter(|args| is_plain && args.len() == count)?;
    let is_text = matches!(args.last(), Some(Expr::Value(last)) if matches!(last.value, Value::SingleQuotedString(_)));
    if is_text || args.last().is_some_and(is_list) {
        return None;
    }
    let name = if name.contains("max") { TOP_MAX } else { TOP_MIN };
    Some(Expr::Function(with(function, name, args)))
}

/// `string_agg` with a separator; `None` if it has one already.
fn joined(function: &Function, name: &str) -> Option<Expr> {
    let mut args = arguments(function)?;
    if args.len() == 1 {
        args.push(Expr::Value(Value::SingleQuotedString(",".to_string()).into()));
    } else if name == "string_agg" {
        return None;
    }
    Some(Expr::Function(with(function, "string_agg", args)))
}

/// The number of rows for which a condition is true; `None` with DISTINCT and clauses of arguments.
fn count_if(function: &Function, condition: Expr) -> Option<Expr> {
    let mut new = with(function, "count", Vec::new());
    let FunctionArguments::List(list) = &mut new.args else { return None };
    if !list.clauses.is_empty() || list.duplicate_treatment.is_some() {
        return None;
    }
    list.args.push(FunctionArg::Unnamed(FunctionArgExpr::Wildcard));
    let condition = match new.filter.take() {
        Some(own) => and(Expr::Nested(own), Expr::Nested(Box::new(condition))),
        None => condition,
    };
    new.filter = Some(Box::new(condition));
    Some(Expr::Function(new))
}

fn and(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::And, right: Box::new(right) }
}

/// The arguments of a call, if they are expressions without names.
pub(super) fn arguments(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let arg = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().map(arg).collect()
}

/// The same call, with its clauses, of another function.
pub(super) fn with(function: &Function, name: &str, args: Vec<Expr>) -> Function {
    let mut new = function.clone();
    let span = function.name.0.first().and_then(|part| part.as_ident()).map(|own| own.span);
    let name = Ident::with_span(span.unwrap_or_else(Span::empty), name);
    new.name = ObjectName::from(vec![name]);
    if let FunctionArguments::List(list) = &mut new.args {
        list.args =
            args.into_iter().map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e))).collect();
    }
    new
}

/// `x`, and NULL for NaN.
fn without_nan(x: Expr) -> Expr {
    let text = Value::SingleQuotedString("where(isnan(x0), NULL, x0)".to_string());
    super::call(WITHOUT_NAN, vec![Expr::Value(text.into()), x])
}

/// True if an argument has an aggregate itself: nested rewrites would double it at each level.
fn has_aggregate(args: &[Expr]) -> bool {
    let found = |expr: &Expr| match expr {
        Expr::Function(function) => is_aggregate(&function.name.to_string()).then_some(()),
        _ => None,
    };
    args.iter().any(|arg| walk::find(arg, &found).is_some())
}

fn is_list(expr: &Expr) -> bool {
    matches!(expr, Expr::Array(_))
}
