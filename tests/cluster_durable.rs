//! Chunks that workers store outlive the workers and the server.

use crate::cluster::{Cluster, never_fails};
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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

/// Waits until a third of the chunks of the sorts are stored, and returns how many are: those that they read are stored
/// before.
fn until_a_third_is_stored(warehouse: &Path, id: &str) -> u64 {
    let begun = Instant::now();
    loop {
        let stages = stored(warehouse, id);
        if let [a, b] = stages[..]
            && a.min(b) >= SORTS / 3
        {
            return a.min(b);
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{stages:?} chunks are stored");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The answer of a statement, and what its status says of durable chunks.
fn finished(cluster: &Cluster, id: &str) -> (String, Value) {
    let begun = Instant::now();
    let status = loop {
        let status = cluster.ask("GET", &format!("/v1/statements/{id}?wait_ms=1000"), "");
        let status = status.map(|reply| reply.json()).unwrap_or_default();
        match status["state"].as_str() {
            Some("FINISHED") => break status,
            Some("FAILED" | "CANCELLED") => panic!("{status}"),
            _ => assert!(begun.elapsed() < Duration::from_secs(60), "{status}"),
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
        let plan = cluster.ask("GET", &format!("/v1/statements/{id}/plan"), "").unwrap().json();
        let stages = plan["measured"]["stages"].as_array().unwrap();
        let sort = stages.iter().find(|stage| stage["name"] == "sort").unwrap();
        let ran = sort["operands"].as_u64().unwrap();
        assert!(
            ran > 0 && ran <= SORTS - stored_before,
            "{what}: {ran}, {stored_before} stored; {plan}"
        );
        assert!(durable["reused"].as_u64().unwrap() >= stored_before, "{what}: {durable}");
        assert_eq!(durable["corrupt"], 0, "{what}: {durable}");
        let begun = Instant::now();
        while stored(&warehouse, &id).iter().sum::<u64>() > 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{what}: {:?}",
                stored(&warehouse, &id)
            );
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
