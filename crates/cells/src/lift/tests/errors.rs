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
fn an_error_in_a_view_names_it_and_is_where_the_text_names_it() {
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
