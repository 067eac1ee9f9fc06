//! Every error has a code, one sentence and, if known, a position.
use super::planned;

fn code(sql: &str) -> String {
    let e = planned(sql).unwrap_err();
    format!(
        "{}: {e} | {:?} | {}",
        e.code(),
        e.position().map(|p| (p.line, p.column)),
        e.hint().unwrap_or_default()
    )
}

#[test]
fn errors() {
    let all: Vec<String> = [
        "SELECT lat, avg(t2n) FROM era5 GROUP BY lat",
        "SELECT level, avg(t2m) FROM era5 GROUP BY level",
        "SELECT lat, avg(t2m) FROM era5 WHERE level > 3 GROUP BY lat",
        "SELECT lat, lon, avg(t2m) FROM era5 GROUP BY lat",
        "SELECT frobnicate(t2m) FROM era5 WHERE lat > 0",
        "SELECT t2m FROM era5 WHERE time > 'soon'",
        "SELECT t2m[0] FROM era5 ORDER BY lat",
        "SELECT cumsum(t2m, axis => 'time') FROM era5 LIMIT 3",
        "SELECT a @ b FROM era5 a JOIN era5 b USING (time)",
        "SELECT lat FROM era5 a JOIN era5 b USING (time)",
        "SELECT count(*) FROM two",
        "SELECT avg(x) FROM nowhere GROUP BY y",
        "SELECT [lat], avg(t2m) FROM era5 GROUP BY lat",
        "SELECT sum(avg(t2m)) FROM era5 GROUP BY lat",
    ]
    .iter()
    .map(|sql| code(sql))
    .collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn an_error_in_a_view_names_the_view_and_has_the_position_of_the_reference() {
    for sql in ["SELECT t2m FROM broken", "SELECT t2m FROM above", "SELECT * FROM above AS a"] {
        let error = planned(sql).unwrap_err();
        assert_eq!(error.to_string(), "view `broken`: unknown relation `nowhere`", "{sql}");
        assert_eq!(error.code(), "unknown_name", "{sql}");
        let column = sql.find("FROM ").unwrap() as u64 + 6;
        assert_eq!(error.position().map(|p| (p.line, p.column)), Some((1, column)), "{sql}");
    }
}

#[test]
fn calls_that_fit_no_signature_are_placed_and_named_as_written() {
    let told = code("SELECT std(t2m > 3) FROM era5 WHERE lat > 0");
    assert!(told.starts_with("type_error: `std` is not defined for bool | Some((1, 8))"), "{told}");
    assert!(told.contains("convert it: `std(x::int)`"), "{told}");
    let told = code("SELECT mean(t2m, 'time') FROM era5 WHERE lat > 0");
    assert!(told.starts_with("type_error: `mean` is not defined for float64 and text"), "{told}");
    assert!(told.contains("Some((1, 8)) | over rows, `mean` takes one column"), "{told}");
}

#[test]
fn constants_of_calls_are_checked_by_planning() {
    for (call, told) in [
        (
            "format('{:d}', place)",
            "invalid_argument: `format`: the format 'd' does not take a text | Some((1, 8)) | `{}` takes any value",
        ),
        (
            "printf('%s %d', t2m)",
            "invalid_argument: `printf`: '%s %d' has no value 2 | Some((1, 8)) | `%s` takes any value",
        ),
        (
            "printf('%d', [1])",
            "type_error: argument 2 of `printf` must be a number or a text, not list | Some((1, 8)) | `x::text` is the text of any value",
        ),
        (
            "max(t2m, flag)",
            "plan_error: `max(x, n)` takes a constant n, not a column | Some((1, 8)) | `max(x, 3)` is a list",
        ),
        (
            "Min(t2m, t2m)",
            "type_error: `min(x, n)` takes an integer n, not float64 | Some((1, 8)) | `min(x, 3)` is a list",
        ),
        (
            "arg_min(t2m, lat, -1)",
            "plan_error: `arg_min(x, y, n)` takes an n from 1 to 999999, not -1 | Some((1, 8)) | ",
        ),
    ] {
        let got = code(&format!("SELECT {call} FROM era5 WHERE lat > 0"));
        assert!(got.starts_with(told), "{call}: {got}");
    }
    assert!(planned("SELECT format('{:d}', NULL) FROM era5 WHERE lat > 0").is_ok());
}

#[test]
fn calls_of_functions_of_tensors_are_placed() {
    for (call, told) in [
        ("Clip(place, 0, 1)", "dtype_mismatch: `clip` is not defined for text | Some((1, 8))"),
        ("clip(t2m)", "argument_count: "),
        (
            "reciprocal(flag)",
            "dtype_mismatch: `reciprocal` is not defined for int16 | Some((1, 8))",
        ),
        ("isclose(t2m, 1, rtol => t2m)", "invalid_argument: "),
        ("nanmean(place)", "dtype_mismatch: `isnan` is not defined for text"),
        ("cumsum(t2m)", "wrong_surface: "),
        ("quantile(t2m, [0.5, 0.9])", "wrong_surface: "),
        ("digitize(t2m, [1, 3, 2])", "invalid_argument: `digitize` in a cell block"),
    ] {
        let got = code(&format!("SELECT {call} FROM era5 WHERE lat > 0"));
        assert!(got.starts_with(told), "{call}: {got}");
    }
}

#[test]
fn subscripts_of_tensors_are_refused_in_cell_blocks() {
    for sql in ["SELECT t2m[0] FROM era5 LIMIT 1", "SELECT lat FROM era5 WHERE t2m['a'] > 1"] {
        assert!(code(sql).starts_with("wrong_surface: a subscript"), "{}", code(sql));
    }
    let told = code("SELECT lat FROM era5 WHERE lat > $1");
    assert!(
        told.contains("the parameter `$1` has no value") && told.contains("--param 1=…"),
        "{told}"
    );
}

/// Two rows of an integer, a text and a decimal.
const T: &str = "(VALUES (1, 'a', 1.5), (2, 'b', 2.5)) AS t(k, s, v)";

#[test]
fn errors_are_placed_at_the_expression_at_fault() {
    for (sql, at, told) in [
        (
            "SELECT k, v FROM {t} ORDER BY 5",
            "5",
            "plan_error: ORDER BY 5 is out of range: the query has 2 items",
        ),
        (
            "SELECT k, count(*) AS n FROM {t} GROUP BY 7",
            "7",
            "plan_error: GROUP BY 7 is out of range: the query has 2 items",
        ),
        ("SELECT k FROM {t} LIMIT 'x'", "'x'", "type_error: LIMIT must be an integer, not text"),
        ("SELECT k FROM {t} WHERE 1 < sum(v)", "sum", "plan_error: WHERE cannot contain"),
        ("SELECT count(*) AS n FROM {t} GROUP BY max(v)", "max", "plan_error: GROUP BY cannot"),
        (
            "SELECT t.k FROM {t} JOIN (VALUES (1)) AS u(n) ON min(t.k) = u.n",
            "min",
            "plan_error: ON cannot contain an aggregate",
        ),
        (
            "SELECT k FROM {t} GROUP BY k HAVING k > ntile(2) OVER (ORDER BY k)",
            "ntile",
            "plan_error: HAVING cannot contain a function with OVER",
        ),
        (
            "SELECT s FROM {t} HAVING v > 1",
            "v",
            "not_grouped: HAVING refers to `t.v`, and the block has neither",
        ),
        ("SELECT k FROM {t} QUALIFY v > 1", "v", "plan_error: QUALIFY needs a function with OVER"),
        (
            "SELECT s // 2 AS x FROM {t} WHERE v > 1",
            "s // 2",
            "type_error: `//` is not defined for text and int64",
        ),
        (
            "SELECT v, k + s AS x FROM {t}",
            "k + s",
            "type_error: `+` is not defined for int64 and text",
        ),
        (
            "SELECT abs(1 + (k - s)) AS x FROM {t} WHERE v > 1",
            "k - s",
            "type_error: `-` is not defined for int64 and text",
        ),
        (
            "SELECT k FROM {t} WHERE k IN (SELECT k * s FROM {t} ORDER BY v)",
            "k * s",
            "type_error: `*` is not defined for int64 and text",
        ),
        (
            "SELECT lower(s) AS a, lower(s, s) AS b FROM {t}",
            "lower",
            "argument_count: `lower` takes 1 argument, not 2",
        ),
        (
            "SELECT k FROM {t} WHERE s",
            "s",
            "type_error: a condition must be of type bool, not text",
        ),
        (
            "SELECT k, CAST('abc' AS INT) AS x FROM {t}",
            "'abc'",
            "type_error: cannot convert 'abc' to int",
        ),
        (
            "SELECT k, (300)::tinyint AS x FROM {t}",
            "300",
            "type_error: 300 is out of range of tinyint",
        ),
        (
            "SELECT v, k IN (SELECT t.k, t.s FROM {t}) AS x FROM {t} ORDER BY v",
            "k",
            "plan_error: a subquery in an expression has one column, and this one has 2: `k`, `s`",
        ),
        (
            "SELECT s FROM {t} JOIN (VALUES (1)) AS u(k) USING (v)",
            "v",
            "unknown_name: the right side of the join has no column `v`",
        ),
    ] {
        let sql = sql.replace("{t}", T);
        let error = planned(&sql).unwrap_err();
        let got = format!("{}: {error}", error.code());
        assert!(got.starts_with(told), "{sql}: {got}");
        assert!(error.hint().is_some(), "{sql}: {got}");
        let place = error.position().unwrap_or_else(|| panic!("{sql}: no position"));
        let start = place.column as usize - 1;
        assert!(sql[start..].starts_with(at), "{sql}: {:?} at {}", place, &sql[start..]);
    }
}

#[test]
fn sides_of_set_operations_are_counted_and_the_second_one_is_underlined() {
    for (operator, counts) in [("UNION ALL", "UNION"), ("EXCEPT", "EXCEPT")] {
        let sql = format!("SELECT k FROM {T} {operator} SELECT k, s FROM {T}");
        let told = code(&sql);
        let column = sql.find("SELECT k, s").unwrap() + 1;
        let want = format!(
            "plan_error: the sides of {counts} must have the same number of columns: the left one has 1, the right one 2 | Some((1, {column}))"
        );
        assert!(told.starts_with(&want), "{told}");
    }
}

#[test]
fn positions_in_a_view_are_not_reported() {
    let sql = "SELECT celsius + place AS x FROM warm";
    let place = planned(sql).unwrap_err().position();
    assert_eq!(place.map(|p| (p.column, p.length)), Some((8, 15)), "{}", code(sql));
}

#[test]
fn columns_of_one_name_are_numbered() {
    let u = "(VALUES (1, 10)) AS u(k, n)";
    for (sql, names) in [
        ("SELECT k, k FROM {t}", "k k_1"),
        ("SELECT k AS x, v AS x, s AS x FROM {t}", "x x_1 x_2"),
        ("SELECT k, t.k FROM {t}", "k k_1"),
        ("SELECT *, k FROM {t}", "k s v k_1"),
        ("SELECT v AS k, * FROM {t}", "k k_1 s v"),
        ("SELECT *, v + 1 AS k FROM {t}", "k s v k_1"),
        ("SELECT * FROM {t} JOIN {u} ON t.k = u.k", "k s v k_1 n"),
        ("SELECT t.k, u.k FROM {t} JOIN {u} ON t.k = u.k", "k k_1"),
        ("SELECT *, n AS s FROM {t} JOIN {u} USING (k)", "k s v n s_1"),
        ("SELECT * FROM (SELECT k, k, s AS k_1 FROM {t}) q", "k k_1 k_1_1"),
        ("SELECT k_1 FROM (SELECT * FROM {t} JOIN {u} ON t.k = u.k) q", "k_1"),
        ("WITH d AS (SELECT k, v AS k FROM {t}) SELECT k_1, k FROM d", "k_1 k"),
        ("SELECT k, k FROM {t} UNION SELECT n, n FROM {u}", "k k_1"),
    ] {
        let sql = sql.replace("{t}", T).replace("{u}", u);
        let plan = planned(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let schema = plan.schema();
        let got: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(got.join(" "), names, "{sql}");
    }
}
