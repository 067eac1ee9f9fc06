//! Random subscripts beside NumPy.
//!
//! `sql/make_subscripts.py` wrote a sample of them with NumPy's answers into `sql/random/subscripts.txt`;
//! `SUBSCRIPTS=path` runs another file of that form.

use crate::common::Place;

/// `2x3` as lengths; nothing is a 0-d tensor.
fn lengths(text: &str) -> Vec<u64> {
    text.split('x').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect()
}

#[test]
fn as_numpy() {
    let path =
        std::env::var("SUBSCRIPTS").unwrap_or_else(|_| "sql/random/subscripts.txt".to_string());
    let place = Place::open(&[]);
    let answer = |sql: &str| place.lines(sql);
    let (mut failures, mut all) = (Vec::new(), 0);
    for line in std::fs::read_to_string(path).unwrap().lines().filter(|l| !l.starts_with('#')) {
        all += 1;
        let parts: Vec<&str> = line.split(';').collect();
        let (shape, text) = (lengths(parts[0]), parts[1]);
        let cells: u64 = shape.iter().product();
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let sql = format!("SELECT reshape(arange({cells}), [{}])[{text}]", shape.join(", "));
        let found = answer(&sql);
        let is_right = match (&found, &parts[2..]) {
            (Err(e), ["error"]) => !e.contains("unsupported") && !e.contains("internal"),
            (Ok(lines), &[of, cells]) => {
                let dims: Vec<String> = lengths(of)
                    .iter()
                    .enumerate()
                    .map(|(axis, n)| format!("dim_{axis}={n}"))
                    .collect();
                let head = format!("v0 int64 [{}]", dims.join(", "));
                lines[0] == head && lines[1..].join(" ") == cells
            }
            _ => false,
        };
        if !is_right {
            failures.push(format!("{sql}\n  was    {found:?}\n  wanted {:?}", &parts[2..]));
        }
    }
    let wrong = failures.len();
    failures.truncate(20);
    assert!(all > 0 && wrong == 0, "{wrong} of {all} are wrong\n\n{}", failures.join("\n"));
}
