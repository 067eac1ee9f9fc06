//! Random cell queries with the lift and without it: `SET tessera.lift` changes no answer.
//!
//! The queries are composed here, clause upon clause: relations are tensors, blocks, groups, windows, joins of every
//! kind and set operations of these, over floats that are NaN, infinite, of both zeros or NULL. Each runs in two
//! sessions, dense and with every cell as a row; their rows are equal to the letter, and as floats are written with the
//! shortest digits that give them back, equal to the bit. Sums are exact in any order, as the numbers are quarters.
//!
//! `TESSERA_LIFT_RANDOM=20000` runs that many, `TESSERA_LIFT_SEED=7` others, `TESSERA_LIFT_ONLY=123` one of them.

use crate::common::{Place, number};
use std::fmt::Write;

mod compose;
mod tables;

use compose::Composer;

/// Queries of an ordinary run.
const COUNT: u64 = 250;

/// The tables of the queries: cells of `tests/data/random`, some replaced by floats that are hard to handle.
const TABLES: [&str; 9] = [
    "CREATE EXTERNAL TABLE wx STORED AS ZARR LOCATION 'tests/data/random/wx.zarr'",
    "CREATE EXTERNAL TABLE gr STORED AS ZARR LOCATION 'tests/data/random/gr.zarr'",
    "CREATE EXTERNAL TABLE xs STORED AS ZARR LOCATION 'tests/data/random/xs.zarr'",
    "CREATE EXTERNAL TABLE st STORED AS ZARR LOCATION 'tests/data/random/st.zarr'",
    "CREATE TEMP TENSOR air AS SELECT where(k = 5, nan(), where(k = 4, inf(), where(k = -5, -inf(), where(k = 0, -0.0, where(k = 2, 0.0, t))))) AS v, where(n = 3, nan()::real, where(n = -4, (-0.0)::real, where(n = 2, inf()::real, r))) AS f, n, k, b, s, o FROM wx",
    "CREATE TEMP TENSOR grid AS SELECT where(m = 3, nan(), where(m % 5 = 0, -0.0, where(m % 7 = 0, 0.0, where(m > 16, inf(), where(m < -15, -inf(), v))))) AS v, w, m, h, fs * 0::real AS z FROM gr",
    "CREATE TEMP TENSOR line AS SELECT where(a = 2, nan(), where(a = -2, -0.0, where(a = 3, inf(), c))) AS c, a, ie FROM xs",
    "CREATE TEMP TENSOR belt AS SELECT where(g = 0, -q, q * 0) AS q, g FROM st",
    "CREATE TEMP TENSOR few AS SELECT [-0.0, nan(), NULL, 0.0, inf(), -inf(), 1.5, -2.25] AS e, [3, 1, NULL, 0, 2, 2, 9, -1] AS d",
];

struct World(Place);

impl World {
    fn new(lift: &str) -> Self {
        let world = World(Place::open(&[("memory-limit", "1GiB")]));
        for sql in TABLES {
            if let Err(e) = world.answer(sql) {
                panic!("{sql}\n{e}");
            }
        }
        world.answer(&format!("SET tessera.lift = '{lift}'")).unwrap();
        world
    }

    /// The rows, or the code of the error with its message behind.
    fn answer(&self, sql: &str) -> Result<Vec<String>, String> {
        self.0.lines(sql)
    }
}

fn code(error: &str) -> &str {
    error.split(':').next().unwrap_or_default()
}

#[test]
fn lift_changes_no_answer() {
    let seed = number("TESSERA_LIFT_SEED").unwrap_or(1);
    let only = number("TESSERA_LIFT_ONLY");
    let count = number("TESSERA_LIFT_RANDOM").unwrap_or(COUNT);
    let (dense, rows) = (World::new("auto"), World::new("off"));
    let (mut differ, mut failed, mut run) = (String::new(), 0u64, 0u64);
    let mut codes = std::collections::BTreeMap::<String, (u64, String)>::new();
    for at in only.map_or(0..count, |at| at..at + 1) {
        let sql = Composer::new(seed, at).query();
        if only.is_some() {
            println!("{sql}");
        }
        run += 1;
        let (a, b) = (dense.answer(&sql), rows.answer(&sql));
        match (&a, &b) {
            (Ok(a), Ok(b)) if a == b => {}
            (Err(a), Err(b)) if code(a) == code(b) => {
                failed += 1;
                let known =
                    codes.entry(code(a).to_string()).or_insert((0, format!("{sql}\n  {a}")));
                known.0 += 1;
            }
            _ => {
                let show = |x: &Result<Vec<String>, String>| match x {
                    Ok(lines) => lines.join("\n    "),
                    Err(e) => e.clone(),
                };
                write!(
                    differ,
                    "\n\n{at}: {sql}\n  dense\n    {}\n  rows\n    {}",
                    show(&a),
                    show(&b)
                )
                .unwrap();
            }
        }
        if count >= 1000 && (at + 1) % 500 == 0 {
            println!("{} queries, {failed} without an answer", at + 1);
        }
    }
    for (code, (times, example)) in &codes {
        println!("{times} times {code}, as in\n{example}");
    }
    let wrong = differ.matches("\n  dense\n").count();
    assert!(wrong == 0, "{wrong} of {run} answers differ{differ}");
    // Queries without an answer test nothing.
    assert!(only.is_some() || failed * 20 <= run, "{failed} of {run} queries have no answer");
}
