//! Hostile input: each gives an answer or one clear error, on a small stack and at once.

use std::thread;
use std::time::{Duration, Instant};

use tessera_frontend::limits::with_stack;
use tessera_frontend::{Class, parse};

/// The stack of a Rust thread by default.
const STACK_BYTES: usize = 2 << 20;

/// Runs what parses and drops on a small stack; gives the error's code or `ok`.
///
/// The generous time is there to tell quadratic from exponential, not fast from slow.
fn outcome(script: String) -> &'static str {
    let begin = Instant::now();
    let code = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || match parse(&script) {
            Ok(parsed) => {
                let copy = with_stack(|| parsed.clone());
                drop(parsed);
                drop(copy);
                "ok"
            }
            Err(error) => {
                assert!(error.render(&script).len() < 2000);
                if error.code() == "nesting_too_deep" {
                    assert_eq!(error.class(), Class::Limit);
                    assert!(error.hint().is_some());
                }
                error.code()
            }
        })
        .unwrap()
        .join()
        .unwrap();
    assert!(begin.elapsed() < Duration::from_secs(60));
    code
}

fn nested(open: &str, inner: &str, close: &str, depth: usize) -> String {
    format!("SELECT {}{inner}{} FROM t", open.repeat(depth), close.repeat(depth))
}

/// Ways to nest, closed properly.
const NESTS: [(&str, &str); 17] = [
    ("(", ")"),
    ("[", "]"),
    ("f(", ")"),
    ("a[", "]"),
    ("a[x => ", ":]"),
    ("NOT ", ""),
    ("- ", ""),
    ("+", ""),
    ("~ ", ""),
    ("2^", ""),
    ("CASE WHEN a THEN ", " END"),
    ("CASE ", " WHEN 1 THEN 2 END"),
    ("(SELECT ", ")"),
    ("CAST(", " AS int)"),
    ("x -> ", ""),
    ("{'k': ", "}"),
    ("a IN (", ")"),
];

#[test]
fn shallow_nesting_is_parsed() {
    for (open, close) in NESTS {
        assert_eq!(outcome(nested(open, "1", close, 60)), "ok", "{open}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    for depth in [1_100, 10_000, 100_000] {
        for (open, close) in NESTS {
            assert_eq!(outcome(nested(open, "1", close, depth)), "nesting_too_deep", "{open}");
            assert_eq!(outcome(nested(open, "1", "", depth)), "nesting_too_deep", "{open}");
        }
    }
}

#[test]
fn faults_inside_nesting_are_found_at_once() {
    let opens = [
        "(",
        "f(",
        "NOT (",
        "CASE (",
        "CAST(",
        "TRY_CAST(",
        "EXTRACT(",
        "FLOOR(",
        "CEIL(",
        "LEFT(",
        "POSITION(",
        "SUBSTRING(",
        "OVERLAY(",
        "TRIM(",
        "INTERVAL ",
        "INTERVAL (",
        "INTERVAL(",
        "ARRAY[",
        "ARRAY(",
        "EXISTS(",
        "MAP(",
        "MAP {",
        "STRUCT(",
        "MATCH(",
        "CUBE((",
        "ROLLUP(",
        "GROUPING SETS ((",
        "LAMBDA x : ",
        "CONVERT(",
        "a.f(",
        "a.(",
        "f(x => ",
        "f(x -> ",
        "(a, ",
        "[a, ",
        "{'a': ",
        "a[b => ",
        "a IN (",
        "a IN ((SELECT b), ",
        "a = ANY(",
        "ARRAY<",
        "a::ARRAY<",
        "STRUCT<",
        "a::MAP(",
        "DATE ",
        "(SELECT * FROM ",
        "(SELECT * FROM (SELECT * FROM ",
        "x OPERATOR(",
        "a BETWEEN ",
    ];
    for open in opens {
        for depth in [20, 60, 120] {
            let code = outcome(nested(open, "!", "", depth));
            assert!(["syntax", "nesting_too_deep", "unsupported"].contains(&code), "{open} {code}");
        }
    }
}

#[test]
fn nesting_in_from_is_answered() {
    let froms = [
        ("(", ")"),
        ("(SELECT * FROM ", ") a"),
        ("((SELECT * FROM ", ") a JOIN b)"),
        ("(((SELECT * FROM ", ")) JOIN b USING (c))"),
        ("(b JOIN ", " USING (c))"),
        ("LATERAL (SELECT * FROM ", ")"),
        ("f(SELECT * FROM ", ")"),
        ("CELLS(", ")"),
    ];
    for (open, close) in froms {
        for depth in [2, 8, 30, 100, 10_000] {
            for close in [close, ""] {
                let script =
                    format!("SELECT * FROM {}t{}", open.repeat(depth), close.repeat(depth));
                let code = outcome(script);
                assert!(["ok", "syntax", "nesting_too_deep"].contains(&code), "{open} {depth}");
            }
        }
    }
    assert_eq!(outcome("SELECT * FROM ((SELECT 1) a JOIN ((SELECT 2)) b)".to_string()), "ok");
}

/// `terms` operands in a row.
fn chain(operator: &str, terms: usize) -> String {
    format!("SELECT {} FROM t", vec!["a"; terms].join(operator))
}

const OPERATORS: [&str; 15] = [
    " + ",
    "*",
    "@",
    "^",
    "//",
    " - ",
    " AND ",
    " OR ",
    " = ",
    "[0] + ",
    " || ",
    "::int + ",
    ".",
    " IS NULL = ",
    " COLLATE x + ",
];

#[test]
fn short_chains_are_parsed() {
    for operator in OPERATORS {
        assert_eq!(outcome(chain(operator, 240)), "ok", "{operator}");
    }
    // A long condition is the one chain that programs write.
    let condition = vec!["a BETWEEN 1 AND 2 OR b = 3"; 200].join(" OR ");
    assert_eq!(outcome(format!("SELECT a FROM t WHERE {condition}")), "ok");
}

#[test]
fn long_chains_are_refused() {
    for operator in OPERATORS {
        for terms in [10_000, 100_000] {
            assert_eq!(outcome(chain(operator, terms)), "nesting_too_deep", "{operator}");
        }
    }
    let selects = vec!["SELECT 1"; 10_000].join(" UNION ALL ");
    assert_eq!(outcome(selects), "nesting_too_deep");
    let suffixes = ["[0]", ".T", "::int", " IS NULL", "::int[]", "(1)", "[0].T"];
    for suffix in suffixes {
        let script = format!("SELECT a{} FROM t", suffix.repeat(10_000));
        assert_eq!(outcome(script), "nesting_too_deep", "{suffix}");
    }
}

#[test]
fn wide_input_is_no_deep_input() {
    let items = vec!["a + b[0]"; 100_000].join(", ");
    assert_eq!(outcome(format!("SELECT {items} FROM t")), "ok");
    let rows = vec!["[1, 2]"; 20_000].join(", ");
    assert_eq!(outcome(format!("SELECT [{rows}] FROM t")), "ok");
    assert_eq!(outcome("SELECT 1;".repeat(20_000)), "ok");
}

#[test]
fn strange_text_is_answered() {
    let megabyte = "x".repeat(1 << 20);
    let cases = [
        (format!("SELECT {megabyte} FROM t"), "ok"),
        (format!("SELECT '{megabyte}' FROM t"), "ok"),
        (format!("SELECT \"{megabyte}\" FROM {megabyte}"), "ok"),
        (format!("SELECT {} FROM t", "1".repeat(1 << 20)), "ok"),
        (format!("{megabyte} 1"), "syntax"),
        (format!("SELECT a b {megabyte}"), "syntax"),
        (format!("SELECT '{megabyte}"), "token"),
        (format!("SELECT 1 {}", "/*".repeat(100_000)), "token"),
        ("\0".to_string(), "syntax"),
        ("SELECT '\0'".to_string(), "ok"),
        ("SELECT \u{202e}".to_string(), "syntax"),
        ("SELECT 'ß', µ FROM 数据".to_string(), "ok"),
        (")".repeat(100_000), "syntax"),
        ("END ".repeat(10_000), "syntax"),
        ("$".to_string(), "syntax"),
        ("SELECT $1".to_string(), "ok"),
        ("SELECT U&'\\zzzz'".to_string(), "token"),
        ("SELECT E'\\u0'".to_string(), "token"),
        ("SELECT ._".to_string(), "token"),
        ("SELECT 1e999999".to_string(), "ok"),
    ];
    for (script, expected) in cases {
        let start: String = script.chars().take(30).collect();
        assert_eq!(outcome(script), expected, "{start}");
    }
}
