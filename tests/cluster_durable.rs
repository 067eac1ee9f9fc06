//! Chunks that workers store outlive the workers and the server.

use crate::cluster::{Cluster, never_fails};
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Each of 60 sorts takes a tenth of a second where workers sleep.
const SQL: &str = "SELECT sum(sort(x, axis => 1)[:, 0]) AS s FROM \
     (SELECT random_normal([600, 300], seed => 1, chunks => [10, 300]) AS x) t";
const SORTS: u64 = 60;

/// Begins a statement that is run again after a failure, and returns its id.
fn begin(cluster: &Cluster, durability: &str) -> String {
    let sql = format!("SET tessera.spread = 'all'; SET tessera.durability = '{durability}'; {SQL}");
    let body = json!({"sql": sql, "wait_ms": 0, "request_id": format!("{durability} request")});
    let reply = cluster.ask("POST", "/v1/statements", &body.to_string()).unwrap();
    assert_eq!(reply.status, 202, "{}", reply.body);
    reply.json()["id"].as_str().unwrap().to_owned()
}

/// The number of chunks that are stored for a statement, by stage.
fn stored(warehouse: &Path, id: &str) -> Vec<u64> {
    let below = warehouse.join("statements").join(id).join("chunks");
    let entries = |at: PathBuf| std::fs::read_dir(at).into_iter().flatten();
    let is_chunk = |file: &PathBuf| file.extension().is_some_and(|e| e == "chunk");
    let count =
        |stage: PathBuf| entries(stage).map(|file| file.unwrap().path()).filter(is_chunk).count();
    entries(below).map(|stage| count(stage.unwrap().path()) as u64).collect()
}

/// Waits until a third of the chunks of the sorts are stored, and returns the number of stored chunks. The inputs of
/// the sorts are stored earlier.
fn until_a_third_is_stored(warehouse: &Path, id: &str) -> u64 {
    let begun = Instant::now();
    loop {
        let stages = stored(warehouse, id);
        if let [a, b] = stages[..]
            && a.min(b) >= SORTS / 3
        {
            return a.min(b);
        }
        assert!(begun.elapsed() < PATIENCE, "{stages:?} chunks are stored");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The answer of a statement, and the durable chunks in its status.
fn finished(cluster: &Cluster, id: &str) -> (String, Value) {
    let begun = Instant::now();
    let status = loop {
        let status = cluster.ask("GET", &format!("/v1/statements/{id}?wait_ms=1000"), "");
        let status = status.map(|reply| reply.json()).unwrap_or_default();
        match status["state"].as_str() {
            Some("FINISHED") => break status,
            Some("FAILED" | "CANCELLED") => panic!("{status}"),
            _ => assert!(begun.elapsed() < PATIENCE, "{status}"),
        }
    };
    let answer = cluster.ask("GET", &format!("/v1/statements/{id}/result?format=csv"), "");
    (answer.unwrap().body, status["durable"].clone())
}

/// A cluster over a directory or a bucket, whose warehouse is files in either case.
fn cluster_over(s3: Option<&S3>) -> (Cluster, PathBuf) {
    match s3 {
        Some(s3) => {
            let environment = s3.environment(Some((KEY, SECRET)));
            let cluster = Cluster::start_over(Some("s3://bkt/warehouse".into()), environment, 0);
            (cluster, s3.directory.path().join("bkt/warehouse"))
        }
        None => {
            let cluster = Cluster::start(0);
            let warehouse = cluster.path("warehouse");
            (cluster, warehouse)
        }
    }
}

fn chunks_outlive_workers_and_servers(remote: bool) {
    for (workers_die, server_dies) in [(true, false), (false, true), (true, true)] {
        let what = format!("workers die: {workers_die}, the server: {server_dies}");
        let s3 = remote.then(S3::start);
        let (mut cluster, warehouse) = cluster_over(s3.as_ref());
        let join = cluster.join.clone();
        (0..3).for_each(|_| cluster.start_worker_at(&join, &[], "operand.sort=sleep"));
        cluster.wait_for(3);
        let want = cluster.alone(SQL);
        let id = begin(&cluster, "all");
        let stored_before = until_a_third_is_stored(&warehouse, &id);
        if workers_die {
            cluster.kill_workers();
        }
        if server_dies {
            cluster.kill_server();
            cluster.start_server();
        }
        if workers_die {
            (0..3).for_each(|_| cluster.start_worker(&[]));
        }
        let (answer, durable) = finished(&cluster, &id);
        assert_eq!(answer, want, "{what}");
        // No sort whose chunk was stored ran again.
        let (ran, measured) = sorts(&cluster, &id);
        assert!(
            ran > 0 && ran <= SORTS - stored_before,
            "{what}: {ran}, {stored_before} stored; {measured}"
        );
        let retained = measured["operands_retained"].as_u64().unwrap();
        let reused = durable["reused"].as_u64().unwrap() + retained;
        assert!(reused >= stored_before, "{what}: {retained} retained; {durable}");
        if workers_die {
            assert_eq!(retained, 0, "{what}");
        }
        assert_eq!(durable["corrupt"], 0, "{what}: {durable}");
        let begun = Instant::now();
        while stored(&warehouse, &id).iter().sum::<u64>() > 0 {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", stored(&warehouse, &id));
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster.is_quiet(&what);
    }
}

#[test]
fn chunks_in_a_directory_outlive_workers_and_servers() {
    if !never_fails() {
        chunks_outlive_workers_and_servers(false);
    }
}

#[test]
fn chunks_in_a_bucket_outlive_workers_and_servers() {
    if !never_fails() {
        chunks_outlive_workers_and_servers(true);
    }
}

#[test]
fn nothing_is_stored_if_nothing_is_to_be_durable() {
    let cluster = Cluster::start(2);
    let id = begin(&cluster, "none");
    let (_, durable) = finished(&cluster, &id);
    let stages = stored(&cluster.path("warehouse"), &id).len();
    assert_eq!((&durable["written"], stages), (&json!(0), 0), "{durable}");
}

/// The measurements of a stage of a finished statement.
fn sorts(cluster: &Cluster, id: &str) -> (u64, Value) {
    let plan = cluster.ask("GET", &format!("/v1/statements/{id}/plan"), "").unwrap().json();
    let stages = plan["measured"]["stages"].as_array().unwrap();
    let sort = stages.iter().find(|stage| stage["name"] == "sort").unwrap();
    (sort["operands"].as_u64().unwrap(), plan["measured"]["cluster"].clone())
}

#[test]
fn workers_keep_their_chunks_for_the_next_server() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start(0);
    let join = cluster.join.clone();
    (0..2).for_each(|_| cluster.start_worker_at(&join, &[], "operand.sort=sleep"));
    cluster.wait_for(2);
    let want = cluster.alone(SQL);
    // Only the chunks on the shelves are available.
    let id = begin(&cluster, "none");
    let begun = Instant::now();
    let on_shelves = loop {
        let cluster = cluster.ask("GET", "/v1/cluster", "").unwrap().json();
        let workers = cluster["workers"].as_array().unwrap();
        let chunks: u64 = workers.iter().map(|w| w["chunks"].as_u64().unwrap()).sum();
        if chunks >= SORTS / 3 {
            break chunks;
        }
        assert!(begun.elapsed() < PATIENCE, "{cluster}");
        std::thread::sleep(Duration::from_millis(20));
    };
    cluster.kill_server();
    cluster.start_server();
    let (answer, _) = finished(&cluster, &id);
    assert_eq!(answer, want);
    let (ran, measured) = sorts(&cluster, &id);
    let retained = measured["operands_retained"].as_u64().unwrap();
    assert!(retained >= on_shelves / 2, "{retained} of {on_shelves}: {measured}");
    assert!(ran <= SORTS - retained, "{ran} of {SORTS}: {measured}");
    cluster.is_quiet("the server died");
}

#[test]
fn a_second_statement_over_the_warehouse_uses_chunks_of_workers() {
    let cluster = Cluster::start(2);
    let answer = |sql: &str| {
        let reply = cluster.query(&format!("SET tessera.reuse = 'auto'; {sql}"));
        assert_eq!(reply.status, 200, "{sql}: {}", reply.body);
        reply.body
    };
    let make =
        "CREATE TENSOR w AS SELECT random_normal([600, 300], seed => 1, chunks => [10, 300])";
    answer(make);
    let first = "SELECT sum(sort(w, axis => 1)[:, 0]) AS s FROM w";
    let want = answer(first);
    // Workers retain chunks once they have forgotten the statement, so a report from before does not show them.
    cluster.is_heard();
    cluster.is_quiet("the first statement");
    let retained = |sql: &str| {
        let analyzed = answer(&format!("EXPLAIN ANALYZE {sql}"));
        analyzed.contains("workers had retained their chunks")
    };
    assert!(retained(first), "the same cells");
    assert_eq!(answer(first), want);
    assert!(!retained("SELECT sum(sort(w + 1, axis => 1)[:, 0]) AS s FROM w"), "other cells");
    // A tensor of the same name is another one.
    answer(&make.replace("CREATE", "CREATE OR REPLACE").replace("seed => 1", "seed => 2"));
    assert!(!retained(first), "another tensor");
    assert_ne!(answer(first), want);
    assert_eq!(answer(first), cluster.alone(first));
}
