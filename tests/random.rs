//! Random cell queries beside DuckDB.
//!
//! `sql/make_random.py` wrote 2,000 queries with DuckDB's answers into `sql/random/queries.txt`. Each runs dense and
//! with its cells as rows. Integers, order, NULLs and extremes agree to the letter, floats within 1e-12.
//! `RANDOM=path` runs another file of that form, `RANDOM_ONLY=text` the queries that contain the text.

use crate::common::Place;
use crate::slt::same;

const TABLES: [&str; 5] = ["wx", "gr", "st", "xs", "one"];

/// Each query with its expected lines.
fn cases() -> Vec<(String, Vec<String>)> {
    let path = std::env::var("RANDOM").unwrap_or_else(|_| "sql/random/queries.txt".into());
    let mut out: Vec<(String, Vec<String>)> = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().lines().filter(|l| !l.starts_with('#')) {
        match line.strip_prefix("? ") {
            Some(sql) => out.push((sql.to_string(), Vec::new())),
            None => out.last_mut().unwrap().1.push(line.to_string()),
        }
    }
    if let Ok(only) = std::env::var("RANDOM_ONLY") {
        out.retain(|(sql, _)| sql.contains(&only));
    }
    out
}

/// Runs every `step`-th query.
fn run(settings: &[&str], step: usize) {
    let place = Place::open(&[("memory-limit", "1GiB")]);
    let answer = |sql: &str| place.lines(sql);
    for name in TABLES {
        let location = format!("tests/data/random/{name}.zarr");
        answer(&format!("CREATE EXTERNAL TABLE {name} STORED AS ZARR LOCATION '{location}'"))
            .unwrap();
    }
    for setting in settings {
        answer(setting).unwrap();
    }
    let cases: Vec<_> = cases().into_iter().step_by(step).collect();
    let mut failures = Vec::new();
    for (sql, expected) in &cases {
        match answer(sql) {
            Err(e) => failures.push(format!("{sql}\n  {e}")),
            Ok(lines) => {
                // A zero's sign is not DuckDB's to tell.
                let actual: Vec<Vec<String>> =
                    lines.iter().map(|l| vec![l.replace("-0.0 ", "0.0 ")]).collect();
                if !same(Some(1e-12), &actual, expected) {
                    let (was, wanted) = (lines.join("\n    "), expected.join("\n    "));
                    failures.push(format!("{sql}\n  was\n    {was}\n  wanted\n    {wanted}"));
                }
            }
        }
    }
    let (wrong, all) = (failures.len(), cases.len());
    assert!(wrong == 0, "{wrong} of {all} answers are wrong\n\n{}", failures.join("\n\n"));
}

#[test]
fn dense() {
    run(&[], 1);
}

#[test]
fn rows() {
    run(&["SET tessera.lift = 'off'"], 1);
}

#[test]
fn tiny_chunks() {
    run(&["SET tessera.chunk_bytes_target = '64'"], 5);
}
