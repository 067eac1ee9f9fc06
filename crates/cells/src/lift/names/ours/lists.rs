//! Functions of lists, structs and maps with DuckDB's meaning, as calls of others.
//!
//! | written | becomes |
//! |---|---|
//! | `list_first(l)`, `list_last(l)` | `array_element(l, 1)`, `array_element(l, -1)` |
//! | `list_aggregate(l, 'sum')` | `list_sum(l)` |
//! | `list_distinct(l)`, `list_intersect(l, m)` | the same without NULL: `array_compact(array_distinct(l))` |
//! | `list_has_any(l, m)`, `list_has_all(l, m)` | the same without the NULLs of `m` |
//! | `l @> m`, `m <@ l`, `l && m` | `list_has_all(l, m)`, the same, `list_has_any(l, m)` |
//! | `s ^@ 'a'` | `starts_with(s, 'a')` |
//! | `list_sort(l)`, `list_sort(l, 'DESC')` | `array_sort(l, 'ASC', 'NULLS LAST')`, … |
//! | `list_reverse_sort(l)` | `array_sort(l, 'DESC', 'NULLS LAST')` |
//! | `array_push_front(l, x)` | `array_prepend(x, l)` |
//! | `string_to_array(s, ',')` | `string_split(s, ',')` |
//! | `generate_subscripts(l, 1)` | `unnest(generate_series(1, array_length(l)))` |
//! | `struct_pack(a => 1)`, `struct_pack(a := 1)` | `named_struct('a', 1)` |
//! | `struct_insert(s, a := 1)` | `struct_insert(s, 'a', 1)` |
//! | `map_contains(m, k)` | `array_has(map_keys(m), k)` |
//! | `map_extract(m, k)` | `array_slice(map_extract(m, k), 1, 1)`, or `…, 1, 0)` if `m` has no such key |
//! | `map_extract_value(m, k)` | `array_element(map_extract(m, k), 1)` |

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    BinaryOperator, CaseWhen, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
    UnaryOperator, Value,
};
use tessera_frontend::ast::null;

use super::super::super::functions::STRUCT_INSERT;
use super::super::aggregates::{arguments, with};
use super::call;

/// The functions of this module that a statement may call, with their arguments and descriptions.
pub(in crate::lift) const WRITTEN: [(&str, &str, &str); 28] = [
    ("aggregate", "aggregate(list, 'name')", "The same as `list_aggregate`."),
    ("array_aggr", "array_aggr(list, 'name')", "The same as `list_aggregate`."),
    ("array_aggregate", "array_aggregate(list, 'name')", "The same as `list_aggregate`."),
    ("array_distinct", "array_distinct(list)", "The different elements that are not NULL."),
    ("array_has_all", "array_has_all(list, other)", "The same as `list_has_all`."),
    ("array_has_any", "array_has_any(list, other)", "The same as `list_has_any`."),
    ("array_intersect", "array_intersect(list, other)", "The same as `list_intersect`."),
    ("array_push_front", "array_push_front(list, x)", "The list with x before its elements."),
    ("array_reverse_sort", "array_reverse_sort(list)", "The same as `list_reverse_sort`."),
    ("array_sort", "array_sort(list[, 'ASC'[, 'NULLS LAST']])", "The same as `list_sort`."),
    ("element_at", "element_at(map, key)", "The same as `map_extract`."),
    (
        "generate_subscripts",
        "generate_subscripts(list, 1)",
        "The positions of the elements of a list, each as a row.",
    ),
    ("list_aggr", "list_aggr(list, 'name')", "The same as `list_aggregate`."),
    (
        "list_aggregate",
        "list_aggregate(list, 'name'[, …])",
        "The aggregate of that name of the elements of a list.",
    ),
    ("list_distinct", "list_distinct(list)", "The same as `array_distinct`."),
    ("list_first", "list_first(list)", "The first element of a list."),
    ("list_has_all", "list_has_all(list, other)", "True if a list has all elements of another."),
    ("list_has_any", "list_has_any(list, other)", "True if a list has an element of another."),
    (
        "list_intersect",
        "list_intersect(list, other)",
        "The different elements that two lists have in common and that are not NULL.",
    ),
    ("list_last", "list_last(list)", "The last element of a list."),
    (
        "list_reverse_sort",
        "list_reverse_sort(list[, 'NULLS LAST'])",
        "The elements of a list in descending order.",
    ),
    (
        "list_sort",
        "list_sort(list[, 'ASC'[, 'NULLS LAST']])",
        "The elements of a list in their order.",
    ),
    ("map_contains", "map_contains(map, key)", "True if a map has a key."),
    ("map_extract", "map_extract(map, key)", "A list with the value of a key, empty without it."),
    ("map_extract_value", "map_extract_value(map, key)", "The value of a key of a map."),
    ("string_to_array", "string_to_array(s, separator)", "The same as `string_split`."),
    ("string_to_list", "string_to_list(s, separator)", "The same as `string_split`."),
    (STRUCT_PACK, "struct_pack(name => x, …)", "A struct with fields of those names."),
];

/// The function whose arguments have the names of fields.
pub(in crate::lift::names) const STRUCT_PACK: &str = "struct_pack";

/// The replacement of a call of the function `name` (in lower case); `None` for other functions.
pub(super) fn rewritten(function: &Function, name: &str) -> Option<Expr> {
    let called = |name: &str, args: Vec<Expr>| Some(Expr::Function(with(function, name, args)));
    if name == STRUCT_INSERT {
        return called(STRUCT_INSERT, inserted(function)?);
    }
    if !WRITTEN.iter().any(|(written, ..)| *written == name) {
        return None;
    }
    if name == STRUCT_PACK {
        return called("named_struct", fields(function)?);
    }
    let mut args = arguments(function)?;
    let short = name.strip_prefix("list_").or_else(|| name.strip_prefix("array_"));
    match (short.unwrap_or(name), args.as_mut_slice()) {
        ("first", [_]) => called("array_element", vec![args.pop()?, integer(1)]),
        ("last", [_]) => called("array_element", vec![args.pop()?, integer(-1)]),
        ("aggr" | "aggregate", [_, Expr::Value(of), ..]) => {
            let Value::SingleQuotedString(of) = &of.value else { return None };
            let of = of.to_ascii_lowercase();
            args.remove(1);
            match of.as_str() {
                "first" => called("array_element", vec![args.pop()?, integer(1)]),
                "last" => called("array_element", vec![args.pop()?, integer(-1)]),
                "mean" => called("list_avg", args),
                "stddev" | "std" => called("list_stddev_samp", args),
                "var" | "variance" => called("list_var_samp", args),
                _ => called(&format!("list_{of}"), args),
            }
        }
        ("distinct", [_]) => Some(without_null(called("array_distinct", args)?)),
        ("intersect", [_, _]) => Some(without_null(called("array_intersect", args)?)),
        ("has_any" | "has_all", [_, of]) => {
            *of = without_null(of.clone());
            called(if name.ends_with("any") { "array_has_any" } else { "array_has_all" }, args)
        }
        ("sort", [_] | [_, _]) => {
            if args.len() == 1 {
                args.push(text("ASC"));
            }
            args.push(text("NULLS LAST"));
            called("array_sort", args)
        }
        ("reverse_sort", [_] | [_, _]) => {
            if args.len() == 1 {
                args.push(text("NULLS LAST"));
            }
            args.insert(1, text("DESC"));
            called("array_sort", args)
        }
        ("push_front", [_, _]) => {
            args.reverse();
            called("array_prepend", args)
        }
        ("string_to_array" | "string_to_list", [_, _]) => called("string_split", args),
        ("generate_subscripts", [_, _]) => {
            let last = call("array_length", args);
            called("unnest", vec![call("generate_series", vec![integer(1), last])])
        }
        ("map_contains", [map, _]) => {
            *map = call("map_keys", vec![map.clone()]);
            called("array_has", args)
        }
        ("element_at" | "map_extract", [map, key]) => {
            let keys = call("map_keys", vec![map.clone()]);
            let count = Expr::Case {
                case_token: AttachedToken::empty(),
                end_token: AttachedToken::empty(),
                operand: None,
                conditions: vec![
                    CaseWhen { condition: Expr::IsNull(Box::new(map.clone())), result: null() },
                    CaseWhen {
                        condition: call("array_has", vec![keys, key.clone()]),
                        result: integer(1),
                    },
                ],
                else_result: Some(Box::new(integer(0))),
            };
            called("array_slice", vec![call("map_extract", args), integer(1), count])
        }
        ("map_extract_value", [_, _]) => {
            called("array_element", vec![call("map_extract", args), integer(1)])
        }
        _ => None,
    }
}

/// True for an operator that is a function here: those between lists, and `^@` between texts.
pub(super) fn is_operator(op: &BinaryOperator) -> bool {
    use BinaryOperator::{ArrowAt, AtArrow, PGOverlap, PGStartsWith};
    matches!(op, AtArrow | ArrowAt | PGOverlap | PGStartsWith)
}

/// The replacement of such an operator.
pub(super) fn operated(op: &BinaryOperator, left: Expr, right: Expr) -> Expr {
    match op {
        BinaryOperator::PGStartsWith => call("starts_with", vec![left, right]),
        BinaryOperator::PGOverlap => call("array_has_any", vec![left, without_null(right)]),
        BinaryOperator::ArrowAt => call("array_has_all", vec![right, without_null(left)]),
        _ => call("array_has_all", vec![left, without_null(right)]),
    }
}

/// A struct, and the names and values of the arguments behind it.
fn inserted(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let (FunctionArg::Unnamed(FunctionArgExpr::Expr(of)), rest) = list.args.split_first()? else {
        return None;
    };
    let mut all = vec![of.clone()];
    all.extend(named(rest)?);
    Some(all)
}

/// The names and values of arguments that all have names.
fn fields(function: &Function) -> Option<Vec<Expr>> {
    let FunctionArguments::List(list) = &function.args else { return None };
    named(&list.args)
}

fn named(args: &[FunctionArg]) -> Option<Vec<Expr>> {
    let mut all = Vec::with_capacity(args.len() * 2);
    for arg in args {
        let FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. } = arg else {
            return None;
        };
        all.extend([text(&name.value), value.clone()]);
    }
    Some(all)
}

fn without_null(list: Expr) -> Expr {
    call("array_compact", vec![list])
}

fn text(value: &str) -> Expr {
    Expr::Value(Value::SingleQuotedString(value.to_string()).into())
}

pub(in crate::lift::names) fn integer(value: i64) -> Expr {
    let digits = Value::Number(value.unsigned_abs().to_string(), false);
    let number = Expr::Value(digits.into());
    match value < 0 {
        true => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(number) },
        false => number,
    }
}
