//! The work of workers for the rows of a statement, as EXPLAIN ANALYZE shows it.
//!
//! ```text
//! measured: 24 of 24 tasks of rows ran on workers, 0 on the server; 0 workers lost
//!    worker 1: 12 tasks, 84 rows, 10.1 KiB received, 0.402113 s, 0 run again
//! ```

use serde_json::{Value, json};
use std::fmt::Write as _;
use tessera_cluster::RowsTotals;
use tessera_planner::explain;

/// Tasks, rows, bytes, seconds and retries of each worker.
pub(in crate::session) fn ran(totals: &RowsTotals) -> String {
    let RowsTotals { tasks, done, here, lost, each, .. } = totals;
    let mut text = format!(
        "measured: {done} of {tasks} tasks of rows ran on workers, {here} on the server; {lost} workers lost\n"
    );
    for (worker, of) in each {
        let bytes = explain::bytes(of.bytes);
        let _ = writeln!(
            text,
            "   worker {worker}: {} tasks, {} rows, {bytes} received, {:.6} s, {} run again",
            of.tasks, of.rows, of.seconds, of.retries
        );
    }
    text
}

/// The same as JSON.
pub(in crate::session) fn ran_json(totals: &RowsTotals) -> Value {
    let each = totals.each.iter().map(|(worker, of)| {
        json!({
            "worker": worker,
            "tasks": of.tasks,
            "rows": of.rows,
            "bytes": of.bytes,
            "seconds": of.seconds,
            "retries": of.retries,
        })
    });
    json!({
        "tasks": totals.tasks,
        "done": totals.done,
        "here": totals.here,
        "lost": totals.lost,
        "seconds": totals.seconds,
        "each": each.collect::<Vec<_>>(),
    })
}
