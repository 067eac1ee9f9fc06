//! Every function of `SHOW FUNCTIONS` is called in a golden script.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Scripts with answers from NumPy, xarray and pandas: all scripts except those of errors, and those that no test runs.
fn scripts() -> Vec<PathBuf> {
    let mut out = Vec::new();
    for folder in fs::read_dir("sql").unwrap().map(|e| e.unwrap().path()) {
        let is_golden = !["errors", "later"].iter().any(|other| folder.ends_with(other));
        if folder.is_dir() && is_golden {
            let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
            out.extend(files.filter(|p| p.extension().is_some_and(|e| e == "slt")));
        }
    }
    out
}

/// The queries of a script that have an answer.
fn queries(script: &Path) -> Vec<String> {
    let text = fs::read_to_string(script).unwrap();
    let mut out = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("query ") {
            let sql: Vec<&str> = lines.by_ref().take_while(|l| *l != "----").collect();
            out.push(sql.join(" "));
        }
    }
    out
}

/// Names that stand before a bracket, in lower case; texts do not count.
fn calls(sql: &str, into: &mut BTreeSet<String>) {
    for part in sql.split('\'').step_by(2) {
        let mut rest = part;
        while let Some(at) = rest.find('(') {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let before = rest[..at].trim_end();
            let name = &before[before.trim_end_matches(is_name).len()..];
            into.insert(name.to_ascii_lowercase());
            rest = &rest[at + 1..];
        }
    }
}

/// Functions of a table that none of the queries calls.
fn uncalled(table: &[&'static str], queries: &[String]) -> Vec<&'static str> {
    let mut called = BTreeSet::new();
    queries.iter().for_each(|sql| calls(sql, &mut called));
    table.iter().copied().filter(|name| !called.contains(*name)).collect()
}

#[test]
fn every_function_is_called_in_a_golden_query() {
    let table: Vec<&str> = tessera_frontend::functions().iter().map(|row| row.name).collect();
    let all: Vec<String> = scripts().iter().flat_map(|script| queries(script)).collect();
    assert!(table.len() > 200 && all.len() > 1000, "{} {}", table.len(), all.len());
    let missing = uncalled(&table, &all);
    assert!(
        missing.is_empty(),
        "no golden query calls {}; add cases to sql/goldens/coverage.py",
        missing.join(", ")
    );
}

#[test]
fn calls_are_found_and_nothing_else() {
    let queries = [
        "SELECT SUM (x), a.mean(x + abs(-1)) FROM 'max(x)'".to_string(),
        "SELECT nansum(x) FROM min".to_string(),
    ];
    let table = ["sum", "mean", "abs", "max", "min", "nan", "nansum"];
    assert_eq!(uncalled(&table, &queries), ["max", "min", "nan"]);
}
