//! Expressions with Tessera's own meaning in a cell block.
//!
//! | written | becomes |
//! |---|---|
//! | `a // b`, `a ^ b` | functions of this crate |
//! | `month(t)`, `EXTRACT(MONTH FROM t)` | `date_part('month', t)` |
//! | `season(t)`, `dayofweek(t)` | `date_part('month', t) % 12 / 3`, `(date_part('dow', t) + 6) % 7` |
//! | `t AT TIME ZONE 'UTC'` | a function: see [`local_time`] |
//! | `INTERVAL (n) DAY`, `INTERVAL '1 quarter'` | `to_days(n)`, `INTERVAL '3 months'`: see [`intervals`] |
//! | `date_add(t, i)`, `age(t)` | `t + i`, `age(CURRENT_DATE, t)` |
//! | `now()`, `CURRENT_DATE` | the time at which the statement was accepted, the same throughout the statement |
//! | `xor(a, b)`, `a ^@ b` | `a # b`, `starts_with(a, b)` |
//! | `where(c, x, y)`, `if(c, x, y)` | `CASE WHEN c THEN x ELSE y END` |
//! | `e()`, `nan()`, `inf()` | the `float64` |
//! | `std(x)`, `sign(x)` | DataFusion's names: `stddev(x)`, `signum(x)` |
//! | `quantile(x, 0.9)`, `nanmean(x)` | SQL's aggregates: see [`aggregates`] |
//! | `a < all(b)` | SQL's quantifier over a list |
//! | `a = any(b)` | `NOT (a <> ALL(b))` |
//! | `list_transform(l, (x, i) -> x + i)` | a lambda of pairs: see [`numbered`] |
//! | `x -> x.b`, `[t.a, 3]` | calls: see [`fields`] |
//! | `MAP {'a': 1}` | `map(make_array('a'), make_array(1))` |
//! | `list_first(l)`, `struct_pack(a => 1)` | functions of lists and structs: see [`lists`] |

mod lists;
mod numbered;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    BinaryOperator, CaseWhen, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentList, FunctionArguments, Ident, Map, ObjectName, UnaryOperator, Value,
};

use tessera_frontend::ast::null;

use super::super::local_time;
use super::{FLOOR_DIVIDE, POWER, aggregates, fields, intervals, span_is_operator};
pub(in crate::lift) use lists::WRITTEN;
pub(super) use lists::{STRUCT_PACK, integer};

/// Rewrites one expression whose operands are already rewritten.
pub(super) fn rewrite(expr: &mut Expr, now_us: i64) {
    match expr {
        Expr::BinaryOp { left, op: BinaryOperator::DuckIntegerDivide, right } => {
            *expr = call(FLOOR_DIVIDE, vec![take(left), take(right)]);
        }
        Expr::BinaryOp { op, right, .. } if is_quantifier(op, right) => {
            quantify(expr);
        }
        Expr::BinaryOp { left, op, right } if lists::is_operator(op) => {
            *expr = lists::operated(op, take(left), take(right));
        }
        Expr::AtTimeZone { timestamp, time_zone } => {
            *expr = call(local_time::NAME, vec![take(timestamp), take(time_zone)]);
        }
        Expr::Extract { field, expr: time, .. } => {
            let part = Value::SingleQuotedString(field.to_string().to_lowercase());
            *expr = call("date_part", vec![Expr::Value(part.into()), take(time)]);
        }
        Expr::Interval(interval) => {
            if let Some(new) = intervals::rewritten(interval) {
                *expr = new;
            }
        }
        Expr::Cast { expr: text, data_type: DataType::Interval { .. }, .. } => {
            intervals::spell(text);
        }
        Expr::Function(function) => {
            if let Some(new) = numbered::rewritten(function) {
                *expr = new;
                return;
            }
            let [part] = function.name.0.as_mut_slice() else { return };
            let sqlparser::ast::ObjectNamePart::Identifier(name) = part else { return };
            let lower = name.value.to_lowercase();
            if matches!(lower.as_str(), "now" | "current_timestamp" | "current_date")
                && !has_arguments(&function.args)
            {
                *expr = now(now_us, lower == "current_date");
            } else if let Some(value) = constant(&lower)
                && !has_arguments(&function.args)
            {
                *expr = value;
            } else if matches!(lower.as_str(), "where" | "if")
                && let Some([condition, then, otherwise]) = three(&mut function.args)
            {
                *expr = Expr::Case {
                    case_token: AttachedToken::empty(),
                    end_token: AttachedToken::empty(),
                    operand: None,
                    conditions: vec![CaseWhen { condition, result: then }],
                    else_result: Some(Box::new(otherwise)),
                };
            } else if let Some((_, known)) = RENAMED.iter().find(|(ours, _)| *ours == lower) {
                *name = Ident::with_span(name.span, *known);
            } else if lower == "power" && span_is_operator(name) {
                *name = Ident::with_span(name.span, POWER);
            } else if let Some(part) = date_part(&lower)
                && let FunctionArguments::List(list) = &mut function.args
                && list.args.len() == 1
            {
                let text = Expr::Value(Value::SingleQuotedString(part.to_string()).into());
                list.args.insert(0, FunctionArg::Unnamed(FunctionArgExpr::Expr(text)));
                *name = Ident::with_span(name.span, "date_part");
                let part = std::mem::replace(expr, null());
                *expr = counted(part, &lower);
            } else if lower == "age"
                && let FunctionArguments::List(list) = &mut function.args
                && list.args.len() == 1
            {
                let today = FunctionArgExpr::Expr(now(now_us, true));
                list.args.insert(0, FunctionArg::Unnamed(today));
            } else if let Some(new) = other(function, &lower) {
                *expr = new;
            } else if lower == "date_add"
                && let FunctionArguments::List(list) = &function.args
                && let [
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(time)),
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(by)),
                ] = list.args.as_slice()
            {
                let [left, right] = [time, by].map(|e| Box::new(Expr::Nested(Box::new(e.clone()))));
                let sum = Expr::BinaryOp { left, op: BinaryOperator::Plus, right };
                *expr = Expr::Nested(Box::new(sum));
            } else if let Some(new) = aggregates::rewritten(function, &lower) {
                *expr = new;
            } else if let Some(new) = lists::rewritten(function, &lower) {
                *expr = new;
            }
        }
        Expr::Lambda(lambda) => fields::of_parameters(lambda),
        Expr::Array(array) => {
            if let Some(new) = fields::of_list(array) {
                *expr = new;
            }
        }
        Expr::Map(map) => *expr = of_entries(map),
        _ => {}
    }
}

/// Calls that become one other expression.
fn other(function: &Function, name: &str) -> Option<Expr> {
    full_match(function, name).or_else(|| exclusive(function, name))
}

/// `regexp_full_match(s, 'p')` as `regexp_like(s, '^(?:p)$')`; `None` for other calls and patterns.
fn full_match(function: &Function, name: &str) -> Option<Expr> {
    if name != "regexp_full_match" {
        return None;
    }
    let mut args = aggregates::arguments(function)?;
    let Some(Expr::Value(pattern)) = args.get_mut(1) else { return None };
    let Value::SingleQuotedString(pattern) = &mut pattern.value else { return None };
    *pattern = format!("^(?:{pattern})$");
    Some(Expr::Function(aggregates::with(function, "regexp_like", args)))
}

/// `xor(a, b)` as `(a # b)`; `None` for other calls.
fn exclusive(function: &Function, name: &str) -> Option<Expr> {
    if name != "xor" {
        return None;
    }
    let args = <[Expr; 2]>::try_from(aggregates::arguments(function)?).ok()?;
    let [left, right] = args.map(|arg| Box::new(Expr::Nested(Box::new(arg))));
    let bits = Expr::BinaryOp { left, op: BinaryOperator::PGBitwiseXor, right };
    Some(Expr::Nested(Box::new(bits)))
}

fn of_entries(map: &mut Map) -> Expr {
    let entries = std::mem::take(&mut map.entries).into_iter();
    let (keys, values) = entries.map(|entry| (*entry.key, *entry.value)).unzip();
    call("map", vec![call("make_array", keys), call("make_array", values)])
}

fn take(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, null())
}

/// True if a comparison with a call of `any` or `all` is a quantifier over a list: neither is a function of cells.
fn is_quantifier(op: &BinaryOperator, right: &Expr) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    let Expr::Function(function) = right else { return false };
    let FunctionArguments::List(list) = &function.args else { return false };
    let is_one = matches!(
        list.args.as_slice(),
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(_))] if list.clauses.is_empty()
    );
    let name = function.name.to_string();
    is_one
        && (name.eq_ignore_ascii_case("any") || name.eq_ignore_ascii_case("all"))
        && matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq)
}

/// Rewrites that comparison to SQL's quantifier.
fn quantify(expr: &mut Expr) {
    let Expr::BinaryOp { left, op, right } = expr else { return };
    let Expr::Function(function) = &mut **right else { return };
    let is_all = function.name.to_string().eq_ignore_ascii_case("all");
    let FunctionArguments::List(list) = &mut function.args else { return };
    let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(list))) = list.args.pop() else { return };
    let (left, right) = (std::mem::replace(left, Box::new(null())), Box::new(list));
    let compare_op = op.clone();
    *expr = if is_all {
        Expr::AllOp { left, compare_op, right }
    } else if is_known(&right) {
        Expr::AnyOp { left, compare_op, right, is_some: false }
    } else {
        // In DataFusion, NULL counts in a list for ALL only.
        let none = Expr::AllOp { left, compare_op: opposite(compare_op), right };
        let none = Box::new(Expr::Nested(Box::new(none)));
        Expr::UnaryOp { op: UnaryOperator::Not, expr: none }
    };
}

/// True for `[1, 2]`, which has values and no NULL, and for the rows of a subquery.
fn is_known(list: &Expr) -> bool {
    let is_value = |e: &Expr| matches!(e, Expr::Value(v) if !matches!(v.value, Value::Null));
    match list {
        Expr::Array(list) => !list.elem.is_empty() && list.elem.iter().all(is_value),
        Expr::Nested(list) => is_known(list),
        list => matches!(list, Expr::Subquery(_)),
    }
}

/// The comparison that is true where this one is false.
fn opposite(op: BinaryOperator) -> BinaryOperator {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    match op {
        Eq => NotEq,
        NotEq => Eq,
        Lt => GtEq,
        LtEq => Gt,
        Gt => LtEq,
        GtEq => Lt,
        other => other,
    }
}

/// A constant without a function in SQL, as `float64`.
fn constant(function: &str) -> Option<Expr> {
    let text = match function {
        "e" => std::f64::consts::E.to_string(),
        "nan" => "NaN".to_string(),
        "inf" => "Infinity".to_string(),
        _ => return None,
    };
    Some(Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(Expr::Value(Value::SingleQuotedString(text).into())),
        data_type: DataType::DoublePrecision,
        array: false,
        format: None,
    })
}

/// The part of a date that a function of one argument returns.
fn date_part(function: &str) -> Option<&'static str> {
    Some(match function {
        "millennium" => "millennium",
        "century" => "century",
        "decade" => "decade",
        "year" => "year",
        "quarter" => "quarter",
        "month" | "season" => "month",
        "week" | "weekofyear" => "week",
        "day" | "dayofmonth" => "day",
        "dayofyear" => "doy",
        // `dow` counts from Sunday as 0.
        "dayofweek" => "dow",
        "hour" => "hour",
        "minute" => "minute",
        "second" => "second",
        "epoch" => "epoch",
        // Sunday is 0, as in DuckDB; Monday is that of `dayofweek`.
        "weekday" => "dow",
        "isodow" => "isodow",
        "isoyear" => "isoyear",
        _ => return None,
    })
}

/// Adjusts a part of a date to the function's numbering: winter is the first season, Monday the first day of the week.
fn counted(part: Expr, function: &str) -> Expr {
    use BinaryOperator::{Divide, Modulo, Plus};
    let number = |n: u32| Box::new(Expr::Value(Value::Number(n.to_string(), false).into()));
    let binary = |left, op, n| {
        let inner = Expr::BinaryOp { left: Box::new(left), op, right: number(n) };
        Expr::Nested(Box::new(inner))
    };
    match function {
        "season" => binary(binary(part, Modulo, 12), Divide, 3),
        "dayofweek" => binary(binary(part, Plus, 6), Modulo, 7),
        _ => part,
    }
}

pub(in crate::lift) fn call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|e| FunctionArg::Unnamed(FunctionArgExpr::Expr(e))).collect();
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    })
}

/// Functions with another name in DataFusion.
pub(in crate::lift) const RENAMED: [(&str, &str); 26] = [
    ("approx_count_distinct", "approx_distinct"),
    ("approx_quantile", "approx_percentile_cont"),
    ("first", "first_value"),
    ("grouping_id", "grouping"),
    ("last", "last_value"),
    ("lcase", "lower"),
    ("ucase", "upper"),
    ("std", "stddev"),
    ("sign", "signum"),
    ("ceiling", "ceil"),
    ("arctan2", "atan2"),
    ("list", "array_agg"),
    ("array_apply", "array_transform"),
    ("array_unique", "list_unique"),
    ("list_apply", "array_transform"),
    ("list_dot_product", "inner_product"),
    ("list_inner_product", "inner_product"),
    ("list_pack", "make_array"),
    ("list_value", "make_array"),
    ("ord", "ascii"),
    ("prefix", "starts_with"),
    ("struct_extract", "get_field"),
    ("regexp_matches", "regexp_like"),
    ("strlen", "octet_length"),
    ("suffix", "ends_with"),
    ("unicode", "ascii"),
];

fn has_arguments(args: &FunctionArguments) -> bool {
    match args {
        FunctionArguments::None => false,
        FunctionArguments::List(list) => !list.args.is_empty(),
        FunctionArguments::Subquery(_) => true,
    }
}

/// Takes the three positional arguments of a call.
fn three(args: &mut FunctionArguments) -> Option<[Expr; 3]> {
    let FunctionArguments::List(list) = args else { return None };
    let [
        FunctionArg::Unnamed(FunctionArgExpr::Expr(a)),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(b)),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(c)),
    ] = list.args.as_mut_slice()
    else {
        return None;
    };
    Some([a, b, c].map(|e| std::mem::replace(e, null())))
}

/// Microseconds since 1970 as a timestamp or a date.
fn now(us: i64, is_date: bool) -> Expr {
    let number = Expr::Value(Value::Number(us.to_string(), false).into());
    let text = Value::SingleQuotedString("Timestamp(Microsecond, None)".to_string());
    let moment = call("arrow_cast", vec![number, Expr::Value(text.into())]);
    if !is_date {
        return moment;
    }
    Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(moment),
        data_type: DataType::Date,
        array: false,
        format: None,
    }
}
