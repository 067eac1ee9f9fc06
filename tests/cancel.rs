//! Whole statements that are cancelled at random moments leave nothing behind.
//!
//! `TESSERA_CANCELS=1000` cancels this number of statements (104 without it), `TESSERA_SEED` draws other moments,
//! `TESSERA_CANCELS_SHOW=1` prints for each statement how long it takes and which outcome came how soon.

use crate::common::{Place, Random, number};
use futures::StreamExt;
use std::io::Write;
use std::time::{Duration, Instant};
use tessera_engine::answer::{Answer, Reply, windows};
use tessera_engine::{Engine, Handle};

/// Statements over every path that holds something. `{out}` is a path that nothing has.
const STATEMENTS: [&str; 28] = [
    // Tensor plans: results in memory, in a file, spilled on the way.
    "SELECT sum(sin(arange(1500000)::float64)) AS s",
    "SELECT arange(1500000) * 2 AS x",
    "SELECT random_normal([2000, 1500], seed => 1, chunks => [250, 1500]) AS x",
    "SELECT rechunk(random_normal([2400, 2000], seed => 2, chunks => [100, 2000], dims => ['r', 'c']), r => 2400, c => 100) AS x",
    "SELECT sum(random_normal([700, 700], seed => 3) @ random_normal([700, 700], seed => 4)) AS p",
    // One block of work each.
    "SELECT svd(random_normal([140, 140], seed => 5)).s AS s",
    "SELECT eigh(random_normal([160, 160], seed => 5)).w AS w",
    "SELECT inv(random_normal([400, 400], seed => 5)) AS i",
    "SELECT sort(random_normal([600000], seed => 6)) AS s",
    "SELECT median(v, axis => 't') AS m FROM cube",
    // Cells: dense, and rows with DataFusion's hash tables and sorts.
    "SELECT y, avg(v) AS m, max(v) AS x FROM cube GROUP BY y ORDER BY m",
    "SET tessera.lift = 'off'; SELECT y, avg(v) AS m FROM cube GROUP BY y; SET tessera.lift = 'auto'",
    "SET tessera.lift = 'off'; SELECT t, y, x, v FROM cube ORDER BY v; SET tessera.lift = 'auto'",
    "SET tessera.lift = 'off'; SELECT round(v * 1000) AS k, count(*) AS n FROM cube GROUP BY round(v * 1000); SET tessera.lift = 'auto'",
    // Parts that have to run before the rest is known.
    "SELECT v[v > 0] * 2 AS p FROM cube",
    "SELECT unique(round(v * 100)) AS u FROM cube",
    "SELECT sum(tensor(SELECT [t], [y], max(v) AS m FROM cube GROUP BY t, y)) AS s",
    "SET tessera.lift = 'off'; SELECT tensor(SELECT [t], [y], [x], v FROM cube WHERE v > 0.5) AS s; SET tessera.lift = 'auto'",
    // Tensors that are stored.
    "CREATE OR REPLACE TENSOR kept AS SELECT random_normal([2000, 1000], seed => 7, chunks => [250, 250]) AS kept",
    "CREATE OR REPLACE TEMP TENSOR held AS SELECT random_normal([3000, 1500], seed => 8, chunks => [250, 1500]) AS held",
    "COPY (SELECT v * 2 AS v FROM cube) TO '{out}' STORED AS ZARR",
    "COPY (SELECT random_normal([4000, 1000], seed => 9) AS v) TO '{out}' STORED AS NPY",
    "COPY (SELECT random_normal([1500, 1000], seed => 10) AS v) TO '{out}' STORED AS TIFF",
    "COPY (SELECT v, where(v > 0, v, NULL) AS w FROM cube) TO '{out}' STORED AS NETCDF",
    "COPY (SELECT v FROM cube) TO '{out}' STORED AS PARQUET",
    "COPY (SELECT v FROM cube) TO '{out}' STORED AS CSV",
    "SET tessera.lift = 'off'; COPY (SELECT t, y, x, v FROM cube ORDER BY v) TO '{out}' STORED AS PARQUET; SET tessera.lift = 'auto'",
    "EXPLAIN ANALYZE SELECT mean(v, axis => 't') FROM cube",
];

/// How a statement is stopped.
#[derive(Debug, Clone, Copy)]
enum Stop {
    /// By its handle, as Ctrl-C and DELETE do.
    Handle,
    /// By name, from another session.
    Named,
    /// Whoever wanted the answer is gone.
    Dropped,
}

struct Figures {
    cancelled: u64,
    finished: u64,
    soonest_s: f64,
    latest_s: f64,
}

#[test]
fn whole_statements_cancelled_at_any_moment_leave_nothing() {
    let count = number("TESSERA_CANCELS").unwrap_or(104);
    let seed = number("TESSERA_SEED").unwrap_or(20_261_120);
    let show = number("TESSERA_CANCELS_SHOW").is_some();
    let mut random = Random(seed);
    let p = Place::open(&[("memory-limit", "32MiB"), ("spill-limit", "1GiB")]);
    p.run("CREATE TENSOR cube AS SELECT random_normal([40, 60, 50], seed => 1, dims => ['t', 'y', 'x'], chunks => [10, 30, 50]) AS v");
    p.is_quiet("a tensor was made");
    // Each as a whole, to know how long it takes and that it works at all.
    let (mut took, mut refused) = (Vec::new(), Vec::new());
    for sql in STATEMENTS {
        let start = Instant::now();
        let done = p.try_run(&sql.replace("{out}", &p.shown("out")));
        took.push(start.elapsed());
        refused.extend(done.err().map(|e| e.render(sql)));
        p.clear();
        p.is_quiet(sql);
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    let mut figures: Vec<Figures> = took
        .iter()
        .map(|_| Figures { cancelled: 0, finished: 0, soonest_s: f64::MAX, latest_s: 0.0 })
        .collect();
    for i in 0..count {
        let which = (i % STATEMENTS.len() as u64) as usize;
        let sql = STATEMENTS[which].replace("{out}", &p.shown("out"));
        let after = took[which].mul_f64(random.unit() * 1.1);
        let stop = [Stop::Handle, Stop::Named, Stop::Dropped][(random.next() % 3) as usize];
        let (over, waited) = stopped(&p, &sql, after, stop);
        let f = &mut figures[which];
        match over {
            Some(Ok(replies)) => {
                f.finished += 1;
                replies.iter().for_each(half);
            }
            Some(Err(code)) => {
                assert_eq!(code, "cancelled", "seed {seed}, number {i}: {sql}");
                f.cancelled += 1;
            }
            None => f.cancelled += 1,
        }
        p.clear();
        let back = p.is_quiet(&format!("seed {seed}, number {i}, {stop:?} after {after:?}: {sql}"));
        f.soonest_s = f.soonest_s.min(waited.as_secs_f64());
        f.latest_s = f.latest_s.max((waited + back).as_secs_f64());
        // A setting that a script did not come to set back.
        p.run("SET tessera.lift = 'auto'");
    }
    if show {
        for ((sql, took), f) in STATEMENTS.iter().zip(&took).zip(&figures) {
            writeln!(
                std::io::stdout(),
                "{:7.3} s, {} cancelled, {} finished, quiet after at most {:.3} s: {sql}",
                took.as_secs_f64(),
                f.cancelled,
                f.finished,
                f.latest_s
            )
            .unwrap();
        }
    }
    let cancelled: u64 = figures.iter().map(|f| f.cancelled).sum();
    assert!(2 * cancelled > count, "{cancelled} of {count} were cancelled before their end");
    assert!(p.host.runtime().store().figures().spilled_bytes > 0, "nothing was spilled");
    assert!(p.host.scratch().written() > 0, "no result went to a file");
    match p.run("SELECT sum(arange(5)) AS s").pop().unwrap().whole().unwrap().answer {
        Answer::Tensors(t) => assert_eq!(t[0].scalar(0).as_f64(), 10.0),
        other => panic!("{other:?}"),
    }
}

/// Runs a script and stops it after a time. Returns its answers or the code of its error (`None` if no client waited),
/// and the time from the cancel to the end.
fn stopped(
    p: &Place,
    sql: &str,
    after: Duration,
    stop: Stop,
) -> (Option<Result<Vec<Reply>, String>>, Duration) {
    let handle = Handle::new();
    p.runtime.block_on(async {
        let mut replies = p.session.run(sql, handle.clone());
        let mut got = Vec::new();
        let all = async {
            while let Some(reply) = replies.next().await {
                got.push(reply.map_err(|e| e.code().to_string())?);
            }
            Ok::<_, String>(())
        };
        tokio::pin!(all);
        let fire = tokio::spawn({
            let (handle, queries) = (handle.clone(), p.host.queries().clone());
            async move {
                tokio::time::sleep(after).await;
                match stop {
                    Stop::Handle => handle.cancel(),
                    // A statement that has ended is no longer known.
                    Stop::Named => queries.find(handle.id()).iter().for_each(|h| h.cancel()),
                    Stop::Dropped => {}
                }
                Instant::now()
            }
        });
        let over = match stop {
            Stop::Dropped => tokio::select! {
                over = &mut all => Some(over),
                () = tokio::time::sleep(after) => None,
            },
            _ => Some(all.await),
        };
        let waited = match fire.is_finished() {
            true => fire.await.unwrap().elapsed(),
            false => Duration::ZERO,
        };
        (over.map(|o| o.map(|()| got)), waited)
    })
}

/// Reads the first half of an answer and lets it go.
fn half(reply: &Reply) {
    if let Some(tensors) = reply.answer.tensors() {
        for t in tensors {
            let all: Vec<_> = windows(&t.head().grid.shape(), 10_000).collect();
            all[..all.len() / 2].iter().for_each(|w| drop(t.window(w).unwrap()));
        }
    }
    if let Some((_, batches)) = reply.answer.rows() {
        drop(batches.take(3).collect::<Result<Vec<_>, _>>().unwrap());
    }
}
