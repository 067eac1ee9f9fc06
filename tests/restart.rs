//! Servers that are killed and started again on the same warehouse: acknowledged statements end as if no server had
//! been killed.

use crate::common::{SERVE, names, tessera};
use crate::http::Server;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Takes some seconds in a debug build.
const LONG: &str = "SELECT sum(sin(arange(20000000)::float64)) AS s";

pub(crate) struct Place {
    pub(crate) directory: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(place.directory.path().join("spill")).unwrap();
        place
    }

    pub(crate) fn warehouse(&self) -> PathBuf {
        self.directory.path().join("warehouse")
    }

    fn tessera(&self) -> Command {
        let mut command = tessera();
        command
            .arg("--warehouse")
            .arg(self.warehouse())
            .arg("--spill-dir")
            .arg(self.directory.path().join("spill"));
        command
    }

    pub(crate) fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    pub(crate) fn serve_with(&self, environment: &[(&str, &str)]) -> Server {
        let mut command = self.tessera();
        command.args(SERVE).args(["--listen", "127.0.0.1:0", "--threads", "2"]);
        command.envs(environment.iter().copied());
        let server = Server::spawn(command);
        until("the server is ready", || server.get("/readyz").status == 200);
        server
    }

    /// The answer of a process that is not killed.
    pub(crate) fn query(&self, sql: &str) -> String {
        let out = self.tessera().args(["query", "--format", "json", sql]).output().unwrap();
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn records(&self) -> usize {
        let all = names(&self.warehouse().join("statements"));
        all.iter().filter(|n| n.ends_with(".json")).count()
    }
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(90), "not within 90 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The id of a statement that is to survive, whether it is over or not.
pub(crate) fn accepted(s: &Server, header: &str, sql: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let request_id = NEXT.fetch_add(1, Relaxed).to_string();
    let body = json!({"sql": sql, "wait_ms": 0, "request_id": request_id}).to_string();
    let mut told = Value::Null;
    // A server that has just started does not know yet which request ids it had accepted before.
    until("the server has started", || {
        told = s.ask("POST", "/v1/statements", header, body.as_bytes()).json();
        told["error"]["code"] != "starting"
    });
    let id = told["id"].as_str().or(told["error"]["statement_id"].as_str());
    id.unwrap_or_else(|| panic!("{sql}: {told}")).to_string()
}

pub(crate) fn submit(s: &Server, sql: &str) -> String {
    accepted(s, "", sql)
}

/// Waits for the end of a statement, and returns its status.
pub(crate) fn end(s: &Server, id: &str) -> Value {
    let mut status = Value::Null;
    until(id, || {
        status = s.get(&format!("/v1/statements/{id}?wait_ms=5000")).json();
        is_over(&status)
    });
    status
}

/// True if a status is the last one of a statement.
pub(crate) fn is_over(status: &Value) -> bool {
    matches!(status["state"].as_str(), Some("FINISHED" | "FAILED" | "CANCELLED"))
}

pub(crate) fn result(s: &Server, id: &str) -> String {
    let status = end(s, id);
    assert_eq!(status["state"], "FINISHED", "{status}");
    let r = s.get(&format!("/v1/statements/{id}/result?format=json"));
    assert_eq!(r.status, 200, "{}", r.text());
    r.text()
}

fn data(warehouse: &Path) -> Vec<String> {
    let all = names(&warehouse.join("data"));
    all.into_iter().filter(|n| n.ends_with(".zarr")).collect()
}

#[test]
fn what_was_acknowledged_is_finished_by_the_next_server() {
    let p = Place::new();
    p.query("CREATE TENSOR t AS SELECT arange(1000) AS v");
    let s = p.serve();
    let ids = [
        submit(&s, LONG),
        submit(&s, &format!("CREATE TENSOR made AS {LONG}")),
        submit(&s, &format!("{LONG}; SELECT sum(v) AS s FROM t; DROP TENSOR t")),
        submit(&s, "SELECT nope FROM t"),
    ];
    // The failure was reported, so it must not change.
    let failed = end(&s, &ids[3]);
    assert_eq!(
        (&failed["state"], &failed["error"]["code"]),
        (&json!("FAILED"), &json!("unknown_name"))
    );
    drop(s);
    let s = p.serve();
    let long = p.query(LONG);
    assert_eq!(result(&s, &ids[0]), long);
    assert!(result(&s, &ids[1]).contains("created tensor made"));
    let several: Vec<Value> = serde_json::Deserializer::from_str(&result(&s, &ids[2]))
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(several.len(), 3, "{several:?}");
    assert_eq!(several[0], serde_json::from_str::<Value>(&long).unwrap());
    assert_eq!(several[1]["tensors"][0]["data"], 499_500);
    assert_eq!(end(&s, &ids[3])["error"], failed["error"]);
    assert_eq!(p.query("SELECT s FROM made"), long);
    // Nothing is left of them once they are forgotten.
    assert_eq!(data(&p.warehouse()).len(), 2, "`t` can be read until its statement is forgotten");
    for id in &ids {
        s.ask("DELETE", &format!("/v1/statements/{id}"), "", b"");
    }
    drop(s);
    // All are expired when it starts.
    std::thread::sleep(Duration::from_millis(1100));
    let s = p.serve_with(&[("TESSERA_RESULT_TTL", "1")]);
    until("the records are gone", || p.records() == 0);
    until("`t` is gone", || data(&p.warehouse()).len() == 1);
    drop(s);
}

#[test]
fn finished_results_stay_readable_and_changes_are_not_made_twice() {
    let p = Place::new();
    let s = p.serve();
    // Seeds and the moment are drawn once.
    let drawn = submit(&s, "SELECT random_normal([7]) AS r");
    let now = submit(&s, "SELECT now() AS n");
    let made = submit(&s, "CREATE TENSOR t AS SELECT arange(5) AS v");
    let before = [result(&s, &drawn), result(&s, &now), result(&s, &made)];
    assert_eq!(s.submit(&json!({"sql": "DROP TENSOR t"})).status, 200);
    drop(s);
    let s = p.serve();
    assert_eq!(s.get(&format!("/v1/statements/{drawn}")).json()["state"], "FINISHED");
    assert_eq!(result(&s, &drawn), before[0]);
    assert_eq!(result(&s, &now), before[1]);
    assert_eq!(result(&s, &made), before[2]);
    let r = s.submit(&json!({"sql": "SELECT v FROM t"}));
    assert_eq!(r.json()["error"]["code"], "unknown_name", "{}", r.text());
}

#[test]
fn a_request_id_is_the_same_statement_after_a_restart() {
    let p = Place::new();
    let s = p.serve();
    let body =
        json!({"sql": "CREATE TENSOR t AS SELECT random_normal([3]) AS v", "request_id": "a"});
    let first = s.submit(&body);
    assert_eq!(first.status, 200, "{}", first.text());
    let cells = p.query("SELECT v FROM t");
    drop(s);
    let s = p.serve();
    let again = s.submit(&body);
    assert_eq!(again.status, 200, "{}", again.text());
    assert_eq!(again.json()["id"], first.json()["id"]);
    assert_eq!(p.query("SELECT v FROM t"), cells);
    let other = s.submit(&json!({"sql": "SELECT 1", "request_id": "a"}));
    assert_eq!(other.json()["error"]["code"], "request_id_reused");
}

#[test]
fn temp_tensors_and_settings_of_the_session_are_made_again() {
    let p = Place::new();
    let s = p.serve();
    let session = s.ask("POST", "/v1/sessions", "", b"").json()["id"].as_str().unwrap().to_string();
    let header = format!("Tessera-Session: {session}\r\n");
    let run = |sql: &str| accepted(&s, &header, sql);
    for sql in [
        "SET tessera.chunk_bytes_target = '64KiB'",
        "CREATE TEMP TENSOR a AS SELECT random_normal([100000]) AS v",
        "CREATE TEMP TENSOR b AS SELECT v * 2 AS w FROM a",
        "CREATE OR REPLACE TEMP TENSOR a AS SELECT random_normal([10]) AS v",
    ] {
        end(&s, &run(sql));
    }
    let id = run("SELECT sum(w) AS s FROM b; SELECT sum(v) AS s FROM a");
    let before = result(&s, &id);
    drop(s);
    let s = p.serve();
    assert_eq!(result(&s, &id), before);
}

#[test]
fn a_statement_reads_the_versions_of_its_start() {
    let p = Place::new();
    p.query("CREATE TENSOR t AS SELECT arange(10) AS v");
    let s = p.serve();
    let id = submit(&s, &format!("SELECT sum(v) + ({LONG}) AS s FROM t"));
    // The statement is bound once it runs.
    until("it runs", || s.get(&format!("/v1/statements/{id}")).json()["state"] == "RUNNING");
    assert_eq!(
        s.submit(&json!({"sql": "CREATE OR REPLACE TENSOR t AS SELECT arange(3) AS v"})).status,
        200
    );
    assert_eq!(data(&p.warehouse()).len(), 2);
    drop(s);
    let s = p.serve();
    let long: Value = serde_json::from_str(&p.query(LONG)).unwrap();
    let got: Value = serde_json::from_str(&result(&s, &id)).unwrap();
    let of = |v: &Value| v["tensors"][0]["data"].as_f64().unwrap();
    assert_eq!(of(&got), 45.0 + of(&long));
}

#[test]
fn a_later_server_takes_the_warehouse_over() {
    let p = Place::new();
    let first = p.serve();
    let id = submit(&first, "SELECT arange(3) AS x");
    result(&first, &id);
    let second = p.serve();
    let r = first.submit(&json!({"sql": "SELECT arange(3) AS x", "request_id": "late"}));
    assert_eq!((r.status, &r.json()["error"]["code"]), (503, &json!("fenced")), "{}", r.text());
    let r = first.submit(&json!({"sql": "CREATE TENSOR t AS SELECT arange(3) AS x"}));
    assert_eq!(r.json()["error"]["code"], "fenced", "{}", r.text());
    assert!(result(&second, &id).contains("[0,1,2]"));
    assert!(data(&p.warehouse()).is_empty());
}

#[test]
fn cells_that_only_failed_statements_read_go_with_the_next_server() {
    let p = Place::new();
    let s = p.serve();
    s.submit(&json!({"sql": "CREATE TENSOR t AS SELECT arange(10) AS v"}));
    let id = submit(&s, "SELECT sum(v) AS s FROM t; SELECT nope FROM t");
    assert_eq!(end(&s, &id)["state"], "FAILED");
    assert_eq!(s.submit(&json!({"sql": "DROP TENSOR t"})).status, 200);
    assert_eq!(data(&p.warehouse()).len(), 1, "the statement is known, so it has a hold on them");
    drop(s);
    let s = p.serve();
    until("`t` is gone", || data(&p.warehouse()).is_empty());
    assert_eq!(end(&s, &id)["error"]["code"], "unknown_name");
}

#[test]
fn a_statement_that_ended_too_many_servers_has_failed_for_good() {
    let p = Place::new();
    let mut s = p.serve();
    let id = submit(&s, "SELECT sum(sin(arange(1000000000000)::float64)) AS s");
    for _ in 0..3 {
        drop(s);
        s = p.serve();
        assert_eq!(s.get(&format!("/v1/statements/{id}")).json()["error"], Value::Null);
    }
    drop(s);
    let s = p.serve();
    let failed = end(&s, &id);
    assert_eq!(failed["error"]["code"], "poison", "{failed}");
    let record = p.warehouse().join("statements").join(format!("{id}.json"));
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let (how, when) = (&record["end"][0]["failed"]["error"], &record["end"][1]);
    assert_eq!(how["code"], "poison", "{record}");
    drop(s);
    // Its age counts from its end, not from the last restart.
    let s = p.serve();
    let again = end(&s, &id);
    assert_eq!(again["error"], failed["error"]);
    let record = p.warehouse().join("statements").join(format!("{id}.json"));
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!(&record["end"][1], when);
}

#[test]
fn statements_that_cannot_be_recorded_are_not_acknowledged() {
    let p = Place::new();
    std::fs::create_dir_all(p.warehouse()).unwrap();
    let s = p.serve();
    // A file takes the place of the directory of records.
    std::fs::write(p.warehouse().join("statements"), b"").unwrap();
    let r = s.submit(&json!({"sql": LONG, "wait_ms": 0}));
    assert!(r.status >= 400 && r.text().contains("statements"), "{} {}", r.status, r.text());
    until("it was cancelled", || s.metric("tessera_statements_running") == 0.0);
    assert_eq!(s.submit(&json!({"sql": "SELECT 1"})).status, 200);
}

#[test]
fn a_statement_that_runs_again_uses_what_it_had_kept() {
    let p = Place::new();
    let s = p.serve();
    let query = "SELECT sum(median(random_normal([2000, 10000], seed => 3, chunks => [10, 10000]), 1)) AS s";
    let id = submit(&s, &format!("SET tessera.durability = 'all'; {query}"));
    let mut written = 0;
    until("some chunks are kept", || {
        let status = s.get(&format!("/v1/statements/{id}")).json();
        assert_ne!(status["state"], "FINISHED", "the machine is too fast for this test");
        written = status["durable"]["written"].as_u64().unwrap_or(0);
        written >= 10
    });
    drop(s);
    let kept = p.warehouse().join("statements").join(&id);
    assert!(kept.is_dir());
    // Chunks of an unknown statement, written a moment ago and long ago.
    let strange = |id: &str| {
        let chunks = p.warehouse().join("statements").join(id).join("chunks/key");
        std::fs::create_dir_all(&chunks).unwrap();
        std::fs::write(chunks.join("1.chunk"), b"cells").unwrap();
        chunks.join("1.chunk")
    };
    let (new, old) = (strange("new"), strange("old"));
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(7200);
    let old_file = std::fs::File::options().write(true).open(&old).unwrap();
    old_file.set_modified(long_ago).unwrap();
    let s = p.serve_with(&[("TESSERA_DURABLE_TTL", "3600")]);
    until("what is old is removed", || !old.exists());
    assert!(new.exists() && s.metric("tessera_durable_removed_total") == 1.0);
    let status = end(&s, &id);
    let durable = &status["durable"];
    // Of stored chunks that were computed for other stored chunks, only the last ones are read.
    assert!(durable["reused"].as_u64() >= Some(written / 3), "{written} written, {status}");
    assert!(durable["seconds_reused"].as_f64() > Some(0.0), "{durable}");
    assert_eq!(durable["corrupt"], 0, "{durable}");
    let reused = durable["reused"].as_f64().unwrap();
    // Chunks that were found did not run again. (A chunk that is read twice is found twice.)
    let (total, ran) =
        (status["progress"]["operands"]["total"].as_f64(), s.metric("tessera_operands_run_total"));
    assert!(ran < total.unwrap(), "{ran} ran and {reused} were found of {status}");
    assert_eq!(s.metric("tessera_durable_reused_total"), reused);
    assert_eq!(
        s.metric("tessera_durable_reused_bytes_total"),
        durable["bytes_reused"].as_f64().unwrap()
    );
    assert_eq!(s.metric("tessera_durable_corrupt_total"), 0.0);
    assert_eq!(
        s.metric("tessera_durable_written_total"),
        durable["written"].as_f64().unwrap(),
        "{durable}"
    );
    let answers = result(&s, &id);
    assert!(answers.ends_with(&p.query(query)), "{answers}");
    assert!(!kept.exists(), "chunks go with the end of their statement");
}
