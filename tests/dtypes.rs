//! The types that elementwise functions give, beside NumPy's for all pairs of types and for literals.
//!
//! `sql/make_dtypes.py` wrote NumPy's answers into `sql/random/dtypes.txt`.

use crate::common::Place;

#[test]
fn of_every_ufunc_are_numpys() {
    let place = Place::open(&[]);
    let answer = |sql: &str| place.lines(sql);
    answer("CREATE EXTERNAL TABLE cases STORED AS ZARR LOCATION 'tests/data/cases.zarr'").unwrap();
    let text = std::fs::read_to_string("sql/random/dtypes.txt").unwrap();
    let (mut failures, mut all) = (Vec::new(), 0);
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (calls, dtype) = line.split_once(": ").unwrap();
        let calls: Vec<&str> = calls.split("; ").collect();
        all += calls.len();
        // A call that fails ends its statement, so each one runs alone.
        for calls in calls.chunks(if dtype == "error" { 1 } else { 32 }) {
            let found = answer(&format!("SELECT {} FROM cases", calls.join(", ")));
            let heads: Vec<&str> = match &found {
                Ok(lines) => {
                    lines.iter().map(String::as_str).filter(|l| l.starts_with('v')).collect()
                }
                Err(e) if dtype == "error" && e.starts_with("dtype_mismatch") => continue,
                Err(e) => vec![e; calls.len()],
            };
            for (call, head) in calls.iter().zip(heads) {
                if head.split(' ').nth(1) != Some(dtype) {
                    failures.push(format!("{call}: {head}, wanted {dtype}"));
                }
            }
        }
    }
    let wrong = failures.len();
    failures.truncate(60);
    assert!(all > 2000 && wrong == 0, "{wrong} of {all} are wrong\n{}", failures.join("\n"));
}
