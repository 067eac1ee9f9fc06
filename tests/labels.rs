//! Random selections by label, compared with xarray.
//!
//! `sql/make_labels.py` wrote 2,000 of them with xarray's answers into `sql/random/labels.txt`: scalars, slices, lists,
//! the nearest labels, ascending and descending, of floats, integers, times and calendars, partial dates, labels that
//! are missing. Every fourth runs; `LABELS=path` runs all selections of another file, `LABELS_ONLY=text` those that
//! contain the text.

use crate::common::Place;
use tessera_engine::answer::{Answer, Reply};

/// Each selection with xarray's answer: `dims|positions`, or `!`.
fn cases() -> Vec<(String, String)> {
    let (path, step) = match std::env::var("LABELS") {
        Ok(path) => (path, 1),
        Err(_) => ("sql/random/labels.txt".into(), 4),
    };
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut cases: Vec<(String, String)> = lines
        .step_by(step)
        .map(|line| {
            let (expression, answer) = line.split_once('\t').unwrap();
            (expression.to_string(), answer.to_string())
        })
        .collect();
    if let Ok(only) = std::env::var("LABELS_ONLY") {
        cases.retain(|(expression, _)| expression.contains(&only));
    }
    cases
}

/// Cells that are positions, as xarray's answers are written.
fn shown(reply: Reply) -> String {
    let Answer::Tensors(tensors) = reply.whole().unwrap().answer else { panic!("rows") };
    let [t] = &tensors[..] else { panic!("{} tensors", tensors.len()) };
    let dims: Vec<String> = t
        .dims()
        .iter()
        .zip(t.shape())
        .map(|(d, n)| format!("{}={n}", d.name.as_deref().unwrap_or("?")))
        .collect();
    let cells: Vec<String> = (0..t.len()).map(|i| t.scalar(i).to_string()).collect();
    format!("{}|{}", dims.join(", "), cells.join(" "))
}

#[test]
fn selections_equal_xarrays() {
    let place = Place::open(&[]);
    let mut wrong = Vec::new();
    let all = cases();
    for (expression, answer) in &all {
        let sql = format!("SELECT {expression} FROM 'tests/data/labels.zarr'");
        let got = match place.try_run(&sql) {
            Ok(mut replies) => shown(replies.pop().unwrap()),
            // An error about a label is always the user's.
            Err(e) if ["label_not_found", "invalid_label"].contains(&e.code()) => "!".into(),
            Err(e) => e.render(&sql),
        };
        if got != *answer {
            wrong.push(format!("{expression}\n  was    {got}\n  wanted {answer}"));
        }
    }
    let (some, many) = (wrong.len(), all.len());
    assert!(some == 0, "{some} of {many} selections are wrong\n\n{}", wrong.join("\n\n"));
}
