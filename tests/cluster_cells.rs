//! Cell queries on the workers of a cluster: their tensor plans are spread like all others.

use crate::cluster::{Cluster, failing};
use serde_json::Value;

/// A labelled cube of 600,000 cells in twelve chunks, in the server's memory.
const CUBE: &str = "CREATE OR REPLACE TEMP TENSOR t AS SELECT random_normal([60, 100, 100], seed => 7, chunks => [10, 50, 100]) AS v;";

/// Answered by a dense plan, whose results workers make.
const DENSE: [&str; 3] = [
    "SELECT dim_0, avg(v) AS m, max(v) AS most FROM t GROUP BY dim_0 ORDER BY dim_0",
    "SELECT dim_1, sum(v * v) AS s FROM t WHERE dim_0 >= 5 AND v > 0 GROUP BY dim_1 HAVING count(*) > 20 ORDER BY s",
    "SELECT a.dim_2, a.m - b.m AS d FROM (SELECT dim_2, avg(v) AS m FROM t WHERE dim_0 < 30 GROUP BY dim_2) a \
     JOIN (SELECT dim_2, avg(v) AS m FROM t WHERE dim_0 >= 30 GROUP BY dim_2) b USING (dim_2) ORDER BY 1",
];

/// Rows that stream out of a plan, below which means have to be whole first.
const STREAMED: &str = "SELECT count(*) AS n, max(d) AS d, max(r) AS r FROM \
     (SELECT v - avg(v) OVER (PARTITION BY dim_0) AS d, row_number() OVER (ORDER BY v) AS r FROM t WHERE dim_1 < 30) x";

/// The document of EXPLAIN ANALYZE for a cell query.
fn explained(cluster: &Cluster, sql: &str) -> Value {
    let sql = format!(
        "SET tessera.spread = 'all'; SET tessera.reuse = 'none'; {CUBE} EXPLAIN ANALYZE (FORMAT json) {sql}"
    );
    let reply = cluster.ask("POST", "/v1/query?format=json", &sql).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    // A line for each statement of the script.
    serde_json::from_str(reply.body.lines().last().unwrap()).unwrap()
}

/// The runs of tensor plans, anywhere in an explanation.
fn runs(explained: &Value, found: &mut Vec<Value>) {
    match explained {
        Value::Object(map) => map.iter().for_each(|(key, value)| match (key.as_str(), value) {
            ("measured", Value::Array(runs)) => found.extend(runs.iter().cloned()),
            _ => runs_in(value, found),
        }),
        Value::Array(list) => list.iter().for_each(|value| runs_in(value, found)),
        _ => {}
    }
}

fn runs_in(explained: &Value, found: &mut Vec<Value>) {
    runs(explained, found);
}

/// The operands that each worker ran for the plans of a cell query.
fn by_worker(cluster: &Cluster, sql: &str) -> Vec<Vec<u64>> {
    let (explained, mut found) = (explained(cluster, sql), Vec::new());
    runs(&explained, &mut found);
    assert!(!found.is_empty(), "{sql}: {explained}");
    let operands = |run: &Value| {
        let each = run["cluster"]["each"].as_array().cloned().unwrap_or_default();
        each.iter().map(|worker| worker["operands"].as_u64().unwrap()).collect()
    };
    found.iter().map(operands).collect()
}

#[test]
fn cell_queries_are_spread() {
    let cluster = Cluster::start(2);
    for sql in DENSE.iter().chain([&STREAMED]) {
        let whole = format!("{CUBE} {sql}");
        let got = cluster.query(&whole);
        assert_eq!((got.status, got.body), (200, cluster.alone(&whole)), "{sql}");
        let ran = by_worker(&cluster, sql);
        assert!(ran.iter().all(|run| run.iter().sum::<u64>() > 0), "{sql}: {ran:?}");
    }
    for sql in [DENSE[0], STREAMED] {
        let ran = by_worker(&cluster, sql);
        let both = |run: &Vec<u64>| run.len() == 2 && run.iter().all(|operands| *operands > 0);
        assert!(ran.iter().all(both), "{sql}: {ran:?}");
    }
    // Rows that are cells of an array as it is are made where they are read.
    let rows =
        "SELECT dim_0, v, row_number() OVER (ORDER BY v) AS r FROM t WHERE dim_1 = 3 LIMIT 2";
    assert!(by_worker(&cluster, rows).iter().all(Vec::is_empty));
    cluster.is_quiet("cell queries that are over");
}

#[test]
fn a_worker_that_dies_costs_a_cell_query_time_only() {
    let Some(cluster) = failing(1, 1, "operand.fused=abort@3") else { return };
    for sql in [DENSE[0], STREAMED] {
        let whole = format!("{CUBE} {sql}");
        let got = cluster.query(&whole);
        assert_eq!((got.status, got.body), (200, cluster.alone(&whole)), "{sql}");
    }
    assert!(cluster.events().contains(&"lost".to_owned()), "{:?}", cluster.events());
    cluster.is_quiet("cell queries that are over");
}
