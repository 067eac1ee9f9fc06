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
