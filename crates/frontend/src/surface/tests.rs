#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use sqlparser::ast::ObjectName;

use super::{Names, RelationKind, decide};
use crate::{Statement, parse};

/// A catalog in which `t…` are tables, and `arange` and `eye` tensor functions.
struct Catalog;

impl Names for Catalog {
    fn relation(&self, name: &ObjectName) -> RelationKind {
        match name.to_string().starts_with('t') {
            true => RelationKind::Rows,
            false => RelationKind::Tensor,
        }
    }

    fn is_tensor_function(&self, name: &str) -> bool {
        matches!(name, "arange" | "eye")
    }
}

fn surface(sql: &str) -> String {
    let parsed = parse(sql).unwrap_or_else(|error| panic!("{}", error.render(sql)));
    let Statement::Query(query) = &parsed[0].statement else { panic!("{sql}") };
    let decision = decide(query, &Catalog);
    let place = decision.position.map_or(String::new(), |p| format!(" at {}", p.column));
    format!("{}: {}{place}", decision.surface, decision.reason)
}

#[test]
fn the_deciding_clause_is_named() {
    let cases = [
        ("SELECT x + 1 FROM x", "tensor: no clause that refers to cells"),
        ("SELECT a @ b FROM a, b", "tensor: no clause that refers to cells"),
        ("SELECT v FROM 'a.zarr'", "tensor: no clause that refers to cells"),
        ("SELECT v FROM read_npy('a')", "tensor: no clause that refers to cells"),
        ("SELECT avg(v) FROM x WHERE lat > 3", "cell: WHERE at 28"),
        ("SELECT avg(v) FROM x GROUP BY lat", "cell: GROUP BY at 31"),
        ("SELECT min(COLUMNS('v')) FROM x", "cell: COLUMNS(…) at 12"),
        ("SELECT x.* LIKE 'v%' FROM x", "cell: COLUMNS(…) at 10"),
        ("SELECT avg(v) FROM x HAVING avg(v) > 0", "cell: HAVING at 29"),
        ("SELECT v FROM x ORDER BY v", "cell: ORDER BY at 26"),
        ("SELECT v FROM x LIMIT 3", "cell: LIMIT at 23"),
        ("SELECT DISTINCT v FROM x", "cell: DISTINCT at 1"),
        ("SELECT v FROM x JOIN y USING (lat)", "cell: JOIN at 22"),
        ("SELECT 1 + sum(v) OVER () FROM x", "cell: OVER at 12"),
        ("SELECT v FROM x UNION SELECT v FROM y", "cell: a set operation at 1"),
        ("SELECT * FROM x", "cell: the item * at 8"),
        ("SELECT 2 * count(*) FROM x", "cell: count(*) at 12"),
        ("SELECT count(DISTINCT v) FROM x", "cell: count(DISTINCT …) at 8"),
        ("SELECT 1 + sum(v) FILTER (WHERE lat > 3) FROM x", "cell: FILTER at 12"),
        ("SELECT mode() WITHIN GROUP (ORDER BY v) FROM x", "cell: WITHIN GROUP at 8"),
        ("SELECT array_agg(v ORDER BY lat) FROM x", "cell: array_agg(… ORDER BY …) at 8"),
        ("SELECT corr(v, w) FROM x", "cell: the aggregate corr at 8"),
        ("SELECT corr(x.v, y.v) FROM x, y", "tensor: no clause that refers to cells"),
        ("SELECT (SELECT corr(v, w) FROM x) + v FROM x", "tensor: no clause that refers to cells"),
        ("SELECT [lat], avg(v) FROM x", "cell: the item [lat] at 9"),
        ("SELECT v FROM CELLS(x)", "cell: FROM CELLS(…) at 15"),
        ("SELECT v FROM t", "cell: the relation of rows t at 15"),
        ("SELECT v FROM x, t", "cell: the relation of rows t at 18"),
        ("SELECT v FROM read_parquet('a')", "cell: the relation of rows read_parquet at 15"),
        ("SELECT v FROM 'a.parquet'", "cell: the relation of rows 'a.parquet' at 15"),
        ("VALUES (1)", "cell: VALUES at 8"),
    ];
    for (sql, expected) in cases {
        assert_eq!(surface(sql), expected, "{sql}");
    }
}

#[test]
fn a_relation_that_is_a_query_is_decided_by_its_own_clauses() {
    let tensor = "tensor: no clause that refers to cells";
    let cases = [
        ("SELECT v FROM (SELECT v + 1 AS v FROM x) y", tensor),
        ("SELECT v FROM (SELECT [lat], avg(v) AS v FROM x GROUP BY lat) y", tensor),
        ("WITH t AS (SELECT v FROM x) SELECT v FROM t", tensor),
        ("WITH a AS (SELECT v FROM x), b AS (SELECT v FROM a) SELECT v FROM b", tensor),
        ("SELECT (SELECT count(*) FROM x) + v FROM x", tensor),
        ("SELECT v FROM (SELECT * FROM x) y", "cell: the relation of rows y at 15"),
        (
            "WITH a AS (SELECT v FROM x LIMIT 1), b AS (SELECT v FROM a) SELECT v FROM b",
            "cell: the relation of rows b at 75",
        ),
    ];
    for (sql, expected) in cases {
        let found = surface(sql);
        let found = found.split(" at ").next().unwrap();
        assert_eq!(found, expected.split(" at ").next().unwrap(), "{sql}");
    }
}

#[test]
fn without_from_a_tensor_must_be_named() {
    let cases = [
        ("SELECT 1 + 1", "cell: no FROM and no tensor function or literal at 1"),
        ("SELECT sqrt(2) AS r", "cell: no FROM and no tensor function or literal at 1"),
        ("SELECT 1, sum(arange(3))", "tensor: the function arange, without FROM at 15"),
        ("SELECT [1, 2] + 1", "tensor: an array literal, without FROM at 9"),
        ("SELECT sum([1, 2])", "tensor: an array literal, without FROM at 13"),
        ("SELECT list_sort([1, 2])[1]", "cell: no FROM and no tensor function or literal at 1"),
        ("SELECT list_sum([1, 2])", "cell: no FROM and no tensor function or literal at 1"),
        ("SELECT array_equal([1], [2])", "tensor: an array literal, without FROM at 21"),
        ("SELECT list_sum([1, 2]), eye(3)", "tensor: the function eye, without FROM at 26"),
        ("SELECT eye(3)[0] LIMIT 1", "cell: LIMIT at 24"),
        ("SELECT eye(3)[0]", "tensor: a subscript, without FROM at 14"),
    ];
    for (sql, expected) in cases {
        assert_eq!(surface(sql), expected, "{sql}");
    }
}
