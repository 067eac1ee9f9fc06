//! Workers write the results of `COPY` and `CREATE TENSOR`; the server commits them.

use crate::cluster::{Cluster, Reply, failing, never_fails, signal};
use crate::common::{contents, files, names, until};
use crate::s3::{KEY, S3, SECRET};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Cells that do not compress, 4 MiB a chunk.
const LARGE: &str =
    "SELECT random_normal([8192, 1024], seed => 1, chunks => [512, 1024], dims => ['r', 'c']) AS x";
/// The same with chunks of a few KiB: 64 objects of 16 KiB.
const SMALL: &str =
    "SELECT random_normal([1024, 128], seed => 1, chunks => [16, 128], dims => ['r', 'c']) AS x";

/// Fails with the names of the files that differ.
fn is_same(got: &Path, want: &Path, what: &str) {
    let (got, want) = (contents(got), contents(want));
    let list = |t: &BTreeMap<PathBuf, Vec<u8>>| t.keys().cloned().collect::<Vec<_>>();
    assert_eq!(list(&got), list(&want), "{what}");
    let other: Vec<_> = want.iter().filter(|(name, bytes)| got[*name] != **bytes).collect();
    let other: Vec<_> = other.into_iter().map(|(name, _)| name).collect();
    assert!(!want.is_empty() && other.is_empty(), "{what}: {other:?}");
}

fn size(at: &Path) -> u64 {
    files(at).iter().map(|f| f.metadata().unwrap().len()).sum()
}

fn copy(query: &str, to: &Path, options: &str) -> String {
    format!("COPY ({query}) TO '{}' STORED AS ZARR OPTIONS (overwrite true{options})", to.display())
}

fn is_ok(reply: &Reply, what: &str) {
    assert_eq!(reply.status, 200, "{what}: {}", reply.body);
}

/// A directory for outputs.
fn out(cluster: &Cluster) -> PathBuf {
    let out = cluster.path("out");
    std::fs::create_dir_all(&out).unwrap();
    out
}

/// Begins a statement that is run again after a failure, and returns its id.
fn begin(cluster: &Cluster, sql: &str) -> String {
    begin_as(cluster, sql, "the request")
}

/// The measurements of a statement on the cluster, once it has finished.
fn finished(cluster: &Cluster, id: &str) -> Value {
    let path = format!("/v1/statements/{id}");
    let state = || {
        let reply = cluster.ask("GET", &format!("{path}?wait_ms=1000"), "").ok();
        let status = reply.and_then(|r| serde_json::from_str::<Value>(&r.body).ok());
        let status = status.unwrap_or_default();
        let state = status["state"].as_str().unwrap_or_default().to_owned();
        assert!(state != "FAILED" && state != "CANCELLED", "{status}");
        state
    };
    until("the statement ends", PATIENCE, || state() == "FINISHED");
    let plan = cluster.ask("GET", &format!("{path}/plan"), "").unwrap().json();
    plan["measured"]["cluster"].clone()
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"))
}

/// A counter of all workers.
fn counted(cluster: &Cluster, name: &str) -> u64 {
    cluster.alive().iter().map(|w| number(w, name)).sum()
}

#[test]
fn copied_chunks_do_not_move_through_the_server() {
    let cluster = Cluster::start(2);
    let out = out(&cluster);
    cluster.alone(&copy(LARGE, &out.join("alone.zarr"), ""));
    let explained = cluster.query(&format!("EXPLAIN {}", copy(LARGE, &out.join("x"), "")));
    assert!(explained.body.contains("; they write the output"), "{}", explained.body);
    let measured = finished(&cluster, &begin(&cluster, &copy(LARGE, &out.join("spread.zarr"), "")));
    is_same(&out.join("spread.zarr"), &out.join("alone.zarr"), "64 MiB");
    let bytes = size(&out.join("spread.zarr"));
    assert!(bytes > 60_000_000, "{bytes}");
    assert!(number(&measured, "bytes_home") < bytes / 100, "{measured}");
    assert_eq!(number(&measured, "objects_written"), 16, "{measured}");
    assert!(number(&measured, "bytes_written") > bytes / 100 * 99, "{measured}");
    // The counters of the workers say the same, with their next beats.
    until("the workers report what they wrote", PATIENCE, || {
        counted(&cluster, "written_bytes") == number(&measured, "bytes_written")
    });
    assert!(counted(&cluster, "served_bytes") < bytes / 100, "{:?}", cluster.alive());
    let share = |w: &Value| number(w, "written_bytes") > bytes / 4;
    assert!(cluster.alive().iter().all(share), "{:?}", cluster.alive());
    let metrics = cluster.ask("GET", "/metrics", "").unwrap().body;
    assert!(metrics.contains("tessera_worker_written_bytes_total{worker=\"1\"}"), "{metrics}");
    // The output reads back as the computed cells.
    let read = |from: &str| {
        let sql = format!("SELECT min(x) AS lo, max(x) AS hi, count(x) AS n FROM {from}");
        let reply = cluster.query(&sql);
        is_ok(&reply, from);
        reply.body
    };
    let spread = read(&format!("'{}'", out.join("spread.zarr").display()));
    assert_eq!(spread, read(&format!("({LARGE}) t")));
    assert_eq!(names(&out), ["alone.zarr", "spread.zarr"]);
    cluster.is_quiet("the statements are over");
}

/// Each kind of output, as options of COPY and a query.
fn kinds(stored: &Path) -> Vec<(&'static str, String, &'static str)> {
    let x = format!("SELECT x FROM '{}'", stored.display());
    let cells = "arange(1048576, chunks => [16384])";
    vec![
        ("cells of a store", x.clone(), ""),
        ("a program over it", format!("SELECT x * 2 + 1 AS y FROM ({x})"), ""),
        ("Zarr 2", x.clone(), ", zarr_format 2"),
        ("other codecs", x.clone(), ", codec 'blosc:lz4:5'"),
        ("shards", x.clone(), ", chunks '[16, 64]', shards '[256, 128]'"),
        ("other chunks", x.clone(), ", chunks '[1024, 3]'"),
        ("masked cells", format!("SELECT where(x > 0, x, NULL) AS y FROM ({x})"), ""),
        (
            "masked cells without a value for them",
            format!("SELECT where({cells} > 5000, ({cells} % 65536 - 32768)::smallint, NULL) AS y"),
            "",
        ),
        (
            "masked cells in Zarr 2",
            format!("SELECT where({cells} > 5000, ({cells} % 65536 - 32768)::smallint, NULL) AS y"),
            ", zarr_format 2",
        ),
        (
            "chunks of the fill value alone",
            format!("SELECT where({cells} < 600000, 0.0, {cells}::double) AS y"),
            "",
        ),
        (
            "results that others read, and small ones",
            format!("SELECT x, mean(x, 0) AS m, x - mean(x, 0) AS d, 1.5 AS one FROM ({x})"),
            "",
        ),
        ("a result twice", format!("SELECT x + 1 AS y, x + 1 AS z FROM ({x})"), ""),
    ]
}

#[test]
fn outputs_of_workers_are_those_of_one_process() {
    let cluster = Cluster::start(2);
    let out = out(&cluster);
    let stored = out.join("stored.zarr");
    cluster.alone(&copy(SMALL, &stored, ""));
    for (what, query, options) in kinds(&stored) {
        let (alone, spread) = (out.join("alone"), out.join("spread"));
        cluster.alone(&copy(&query, &alone, options));
        is_ok(&cluster.query(&copy(&query, &spread, options)), what);
        is_same(&spread, &alone, what);
    }
    // A script: its last statement is measured. Workers also write masks, and results that other stages read.
    for (what, query, options) in &kinds(&stored)[6..] {
        let measured = finished(
            &cluster,
            &begin_as(&cluster, &copy(query, &out.join("spread"), options), what),
        );
        let (written, home) = (number(&measured, "bytes_written"), number(&measured, "bytes_home"));
        assert!(written > 100_000 && home < 10_000, "{what}: {measured}");
    }
    assert_eq!(names(&out), ["alone", "spread", "stored.zarr"]);
    cluster.is_quiet("the statements are over");
}

/// The stores of a warehouse, the locks aside.
fn stores(warehouse: &Path) -> Vec<PathBuf> {
    let data = warehouse.join("data");
    let all = names(&data).into_iter().filter(|n| n.ends_with(".zarr"));
    all.map(|n| data.join(n)).collect()
}

fn tensors_of_workers_are_those_of_one_process(s3: Option<&S3>) {
    let (cluster, warehouse) = over(s3, 2);
    cluster.alone(&format!("CREATE TENSOR a AS {SMALL}"));
    let alone = stores(&warehouse).remove(0);
    is_ok(&cluster.query(&format!("CREATE TENSOR b AS {SMALL}")), "CREATE TENSOR");
    let spread = stores(&warehouse).into_iter().find(|s| *s != alone).unwrap();
    is_same(&spread, &alone, "CREATE TENSOR");
    until("the workers report what they wrote", PATIENCE, || {
        counted(&cluster, "written_bytes") > size(&spread) / 2
    });
    assert_eq!(counted(&cluster, "served_bytes"), 0);
    // Its checksums are those of the files.
    let sum = |name: &str| cluster.query(&format!("SELECT sum(x) AS s FROM {name}")).body;
    assert_eq!(sum("a"), sum("b"));
    is_ok(
        &cluster.query(&format!("CREATE OR REPLACE TENSOR b AS SELECT x + 1 AS x FROM ({SMALL})")),
        "replaced",
    );
    let (a, b) = (sum("a"), sum("b"));
    assert!(a != b && b.starts_with("s\n"), "{a} {b}");
    is_ok(&cluster.query("DROP TENSOR a; DROP TENSOR b"), "dropped");
    until("nothing is left", PATIENCE, || files(&warehouse.join("data")).is_empty());
}

/// A cluster over a directory or a bucket, whose warehouse is files in either case.
fn over(s3: Option<&S3>, workers: usize) -> (Cluster, PathBuf) {
    match s3 {
        Some(s3) => {
            let environment = s3.environment(Some((KEY, SECRET)));
            let at = Some("s3://bkt/warehouse".into());
            (Cluster::start_over(at, environment, workers), s3.path("warehouse"))
        }
        None => {
            let cluster = Cluster::start(workers);
            let warehouse = cluster.path("warehouse");
            (cluster, warehouse)
        }
    }
}

#[test]
fn tensors_in_a_directory_are_written_by_workers() {
    tensors_of_workers_are_those_of_one_process(None);
}

#[test]
fn tensors_in_a_bucket_are_written_by_workers() {
    tensors_of_workers_are_those_of_one_process(Some(&S3::start()));
}

#[test]
fn copies_to_a_bucket_are_written_by_workers() {
    let s3 = S3::start();
    let cluster = Cluster::start_over(None, s3.environment(Some((KEY, SECRET))), 2);
    let out = out(&cluster);
    let url = Path::new("s3://bkt/out/x.zarr");
    // The second replaces the first.
    for (at, query) in [
        ("one", SMALL),
        ("two", "SELECT random_uniform([600, 300], seed => 2, chunks => [100, 100]) AS x"),
    ] {
        cluster.alone(&copy(query, &out.join(at), ""));
        let measured = finished(&cluster, &begin_as(&cluster, &copy(query, url, ""), at));
        is_same(&s3.path("out/x.zarr"), &out.join(at), at);
        assert_eq!(number(&measured, "bytes_home"), 0, "{measured}");
        assert!(number(&measured, "bytes_written") > 500_000, "{measured}");
    }
    let told =
        cluster.query("COPY (SELECT arange(3) AS x) TO 's3://bkt/out/x.zarr' STORED AS ZARR");
    assert_eq!(told.code(), "already_exists", "{}", told.body);
    assert_eq!(names(&s3.path("out")), ["x.zarr"]);
}

/// Like [`begin`], for another request.
fn begin_as(cluster: &Cluster, sql: &str, request: &str) -> String {
    let sql = format!("SET tessera.spread = 'all'; {sql}");
    let body = json!({"sql": sql, "wait_ms": 0, "request_id": request}).to_string();
    let reply = cluster.ask("POST", "/v1/statements", &body).unwrap();
    assert_eq!(reply.status, 202, "{}", reply.body);
    reply.json()["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_worker_that_dies_while_it_writes_costs_time_only() {
    let Some(cluster) = failing(1, 1, "zarr.object=abort@3") else { return };
    let out = out(&cluster);
    cluster.alone(&copy(SMALL, &out.join("alone"), ""));
    is_ok(&cluster.query(&copy(SMALL, &out.join("spread"), "")), "COPY");
    is_same(&out.join("spread"), &out.join("alone"), "COPY");
    assert_eq!(names(&out), ["alone", "spread"]);
    cluster.wait_for(1);
    assert!(cluster.events().contains(&"recovering".to_owned()), "{:?}", cluster.events());

    let Some(cluster) = failing(1, 1, "zarr.object=abort@3") else { return };
    cluster.alone(&format!("CREATE TENSOR a AS {SMALL}"));
    let alone = stores(&cluster.path("warehouse")).remove(0);
    is_ok(&cluster.query(&format!("CREATE TENSOR b AS {SMALL}")), "CREATE TENSOR");
    let spread = stores(&cluster.path("warehouse")).into_iter().find(|s| *s != alone).unwrap();
    is_same(&spread, &alone, "CREATE TENSOR");
    cluster.wait_for(1);
}

/// The directories in which outputs are written.
fn parts(out: &Path) -> Vec<PathBuf> {
    let is_part = |n: &String| n.starts_with('.') && n.ends_with(".part");
    names(out).into_iter().filter(is_part).map(|n| out.join(n)).collect()
}

/// Waits until some chunks are written to an output that is being made.
fn until_some_are_written(out: &Path) {
    until("chunks are written", PATIENCE, || {
        let chunks = parts(out).into_iter().flat_map(|part| files(&part.join("x/c")));
        chunks.count() > 4
    });
}

#[test]
fn a_server_that_dies_while_workers_write_leaves_nothing_and_finishes() {
    if never_fails() {
        return;
    }
    for durability in ["none", "all"] {
        let mut cluster = Cluster::start(0);
        let out = out(&cluster);
        let join = cluster.join.clone();
        (0..2).for_each(|_| cluster.start_worker_at(&join, &[], "zarr.object=sleep"));
        cluster.wait_for(2);
        cluster.alone(&copy(SMALL, &out.join("alone"), ""));
        let sql = format!(
            "SET tessera.durability = '{durability}'; {}",
            copy(SMALL, &out.join("spread"), "")
        );
        let id = begin(&cluster, &sql);
        until_some_are_written(&out);
        cluster.kill_server();
        assert!(!out.join("spread").exists());
        cluster.start_server();
        finished(&cluster, &id);
        is_same(&out.join("spread"), &out.join("alone"), durability);
        assert_eq!(names(&out), ["alone", "spread"], "{durability}");

        let created = begin_as(&cluster, &format!("CREATE TENSOR t AS {SMALL}"), "create");
        let data = cluster.path("warehouse/data");
        until("chunks are written", PATIENCE, || files(&data).len() > 8);
        cluster.kill_server();
        cluster.start_server();
        finished(&cluster, &created);
        let sum = |from: &str| cluster.query(&format!("SELECT sum(x) AS s FROM {from}")).body;
        assert_eq!(sum("t"), sum(&format!("'{}'", out.join("alone").display())), "{durability}");
        until("one store is left", PATIENCE, || stores(&cluster.path("warehouse")).len() == 1);
    }
}

#[test]
fn without_room_the_error_names_the_file_and_nothing_is_left() {
    let Some(cluster) = failing(0, 2, "zarr.object=enospc@3") else { return };
    let out = out(&cluster);
    let told = cluster.query(&copy(SMALL, &out.join("x.zarr"), ""));
    assert_eq!((told.status, told.code().as_str()), (413, "no_space"), "{}", told.body);
    let error = told.json()["error"].clone();
    let message = error["message"].as_str().unwrap();
    let file = format!("`{}/x/c/", out.join("x.zarr").display());
    assert!(message.contains(&file) && message.contains("(after "), "{message}");
    assert!(message.contains("worker") && error["hint"].is_string(), "{error}");
    until("nothing is left", PATIENCE, || names(&out).is_empty());
    let told = cluster.query(&format!("CREATE TENSOR t AS {SMALL}"));
    // The other worker has its third object now.
    if told.status != 200 {
        assert_eq!((told.status, told.code().as_str()), (413, "no_space"), "{}", told.body);
        until("nothing is left", PATIENCE, || files(&cluster.path("warehouse/data")).is_empty());
    }
    is_ok(&cluster.query(&copy(SMALL, &out.join("x.zarr"), "")), "there is room");
    assert_eq!(names(&out), ["x.zarr"]);
}

#[test]
fn other_workers_write_chunks_that_a_worker_cannot() {
    // Workers that see the output. Without them the server writes.
    for able in [1, 0] {
        let (s3, other) = (S3::start(), S3::start());
        let mut cluster = Cluster::start_over(None, s3.environment(Some((KEY, SECRET))), able);
        cluster.start_worker_in(&other.environment(Some((KEY, SECRET))));
        cluster.wait_for(able + 1);
        let out = out(&cluster);
        cluster.alone(&copy(SMALL, &out.join("alone"), ""));
        let sql = copy(SMALL, Path::new("s3://bkt/x.zarr"), "");
        let measured = finished(&cluster, &begin(&cluster, &sql));
        is_same(&s3.path("x.zarr"), &out.join("alone"), &format!("{able} workers"));
        assert_eq!(names(&other.path("")), Vec::<String>::new());
        let home = number(&measured, "bytes_home");
        assert_eq!(number(&measured, "no_output"), 1, "{measured}");
        assert_eq!(number(&measured, "objects_written"), 64 * able as u64, "{measured}");
        assert_eq!(home > size(&s3.path("x.zarr")) / 2, able == 0, "{measured}");
        assert!(cluster.events().contains(&"no_output".to_owned()), "{:?}", cluster.events());
    }
}

#[test]
fn a_worker_that_wakes_up_late_changes_no_output() {
    if never_fails() {
        return;
    }
    for remote in [false, true] {
        let s3 = S3::start();
        let mut cluster = Cluster::start_over(None, s3.environment(Some((KEY, SECRET))), 1);
        let out = out(&cluster);
        let join = cluster.join.clone();
        cluster.start_worker_at(&join, &[], "zarr.object=sleep");
        cluster.wait_for(2);
        let (to, at) = match remote {
            true => (PathBuf::from("s3://bkt/x.zarr"), s3.path("x.zarr")),
            false => (out.join("x.zarr"), out.join("x.zarr")),
        };
        let next = format!("SELECT x * 2 AS x FROM ({SMALL})");
        cluster.alone(&copy(&next, &out.join("next"), ""));
        let id = begin(&cluster, &copy(SMALL, &to, ""));
        match remote {
            true => until("chunks are written", PATIENCE, || files(&at).len() > 4),
            false => until_some_are_written(&out),
        }
        let late = &cluster.workers[1];
        signal(late, Signal::SIGSTOP);
        finished(&cluster, &id);
        // Another output takes the name.
        let id = begin_as(&cluster, &copy(&next, &to, ""), "next");
        finished(&cluster, &id);
        is_same(&at, &out.join("next"), "before the worker wakes up");
        signal(late, Signal::SIGCONT);
        cluster.wait_for(2);
        std::thread::sleep(Duration::from_millis(500));
        // Its last object may arrive, where no reader looks.
        let is_part = |f: &PathBuf| f.starts_with("__parts");
        let (late, cells): (Vec<PathBuf>, Vec<PathBuf>) =
            contents(&at).into_keys().partition(is_part);
        assert!(late.len() < if remote { 4 } else { 1 }, "{late:?}");
        assert_eq!(cells, contents(&out.join("next")).into_keys().collect::<Vec<_>>());
        for file in cells {
            let read = |at: &Path| std::fs::read(at.join(&file)).unwrap();
            assert!(read(&at) == read(&out.join("next")), "{}", file.display());
        }
        // The next output removes that too.
        finished(&cluster, &begin_as(&cluster, &copy(&next, &to, ""), "again"));
        is_same(&at, &out.join("next"), "written again");
        assert!(parts(&out).is_empty(), "{:?}", names(&out));
    }
}
