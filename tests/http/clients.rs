//! Clients that watch, leave, keep sessions and read slowly.

use super::{ENDLESS, Server, until};
use serde_json::json;
use std::io::Read;
use std::net::Shutdown;
use std::time::Duration;

#[test]
fn long_statements_are_watched_and_cancelled() {
    let s = Server::start(
        &["--memory-limit", "64MiB"],
        &[("TESSERA_MAX_QUERIES", "2"), ("TESSERA_MAX_QUEUED", "1")],
    );
    let submit = || s.submit(&json!({"sql": ENDLESS, "wait_ms": 0}));
    let mut ids: Vec<String> =
        (0..3).map(|_| submit().json()["id"].as_str().unwrap().to_string()).collect();
    let full = submit();
    assert_eq!((full.status, &full.json()["error"]["code"]), (429, &json!("busy")));
    assert!(full.head.contains("retry-after: 1"), "{}", full.head);
    // The statement that is planned first starts first. From here on the one that waits is the last.
    let state = |id: &String| s.get(&format!("/v1/statements/{id}")).json()["state"].clone();
    until("two run and one waits", || {
        ids.sort_by_key(|id| state(id) == "QUEUED");
        ids.iter().map(&state).eq(["RUNNING", "RUNNING", "QUEUED"])
    });
    let path = |i: usize| format!("/v1/statements/{}", ids[i]);
    until("an operand is done", || {
        s.get(&path(0)).json()["progress"]["operands"]["done"].as_u64() > Some(0)
    });
    let v = s.get(&format!("{}?wait_ms=300", path(0))).json();
    assert_eq!(v["state"], "RUNNING");
    assert!(v["progress"]["eta_s"].as_f64().unwrap() > 0.0, "{v}");
    assert!(
        v["progress"]["operands"]["total"].as_u64() > v["progress"]["operands"]["done"].as_u64()
    );
    assert_eq!(s.get(&path(2)).json()["state"], "QUEUED");
    let r = s.get(&format!("{}/result", path(0)));
    assert_eq!((r.status, &r.json()["error"]["code"]), (409, &json!("not_finished")));
    // One statement is stopped by DELETE, one by SQL, and one while it waits. The free slot is used for the SQL.
    s.ask("DELETE", &path(0), "", b"");
    s.ask("DELETE", &path(2), "", b"");
    let shown = s.ask("POST", "/v1/query?format=csv", "", b"SHOW QUERIES").text();
    assert!(shown.contains(&ids[1]) && shown.contains("RUNNING"), "{shown}");
    let cancel = format!("CANCEL QUERY '{}'", ids[1]);
    let r = s.ask("POST", "/v1/query", "", cancel.as_bytes());
    assert_eq!(r.status, 200, "{}", r.text());
    for i in 0..3 {
        let v = s.get(&format!("{}?wait_ms=30000", path(i))).json();
        assert_eq!(v["state"], "CANCELLED", "{v}");
        assert_eq!(s.get(&format!("{}/result", path(i))).status, 409);
    }
    let r = s.submit(&json!({"sql": ENDLESS, "wait_ms": 100, "on_timeout": "cancel"}));
    assert_eq!((r.status, &r.json()["error"]["code"]), (503, &json!("timeout")));
    // A client that leaves takes its query with it.
    let client = s.send("POST", "/v1/query", "", ENDLESS.as_bytes());
    until("it runs", || s.metric("tessera_statements_running") > 0.0);
    client.shutdown(Shutdown::Both).unwrap();
    until("all is free", || {
        s.metric("tessera_statements_running") == 0.0 && s.metric("tessera_quota_used_bytes") == 0.0
    });
    assert!(s.metric("tessera_statements_total{state=\"CANCELLED\"}") >= 4.0);
}

#[test]
fn sessions_keep_their_state_and_expire() {
    let s = Server::start(&[], &[("TESSERA_SESSION_TIMEOUT", "5"), ("TESSERA_RESULT_TTL", "2")]);
    let session =
        || s.ask("POST", "/v1/sessions", "", b"").json()["id"].as_str().unwrap().to_string();
    let (a, b) = (session(), session());
    let run = |id: &str, sql: &str| {
        s.ask("POST", "/v1/query?format=csv", &format!("Tessera-Session: {id}\r\n"), sql.as_bytes())
    };
    assert_eq!(run(&a, "CREATE TEMP TENSOR t AS SELECT arange(3) AS x").status, 200);
    assert_eq!(run(&a, "SELECT sum(x) AS s FROM t").text(), "s\n3\n");
    assert_eq!(run(&b, "SELECT sum(x) FROM t").status, 400);
    assert_eq!(s.ask("POST", "/v1/query", "", b"SELECT sum(x) FROM t").status, 400);
    assert_eq!(run("nope", "SELECT 1").status, 404);
    assert_eq!(s.ask("DELETE", &format!("/v1/sessions/{b}"), "", b"").status, 200);
    assert_eq!(run(&b, "SELECT 1").status, 404);
    assert!(s.metric("tessera_quota_used_bytes") > 0.0);
    let id = s.submit(&json!({"sql": "SELECT 1 AS x"})).json()["id"].as_str().unwrap().to_string();
    // Looking at the metrics does not use the session.
    until("the session is over", || s.metric("tessera_sessions") == 0.0);
    assert_eq!(run(&a, "SELECT 1").status, 404);
    until("its tensors are gone", || s.metric("tessera_quota_used_bytes") == 0.0);
    until("it is forgotten", || s.get(&format!("/v1/statements/{id}")).status == 404);
}

#[test]
fn a_slow_reader_slows_nobody() {
    let s = Server::start(&["--memory-limit", "64MiB", "--threads", "2"], &[]);
    // 160 MB: more than the memory limit.
    let mut slow =
        s.send("POST", "/v1/query?format=npy", "", b"SELECT arange(20000000)::float64 AS x");
    let mut first = [0; 1024];
    slow.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&first));
    assert!(s.metric("tessera_scratch_used_bytes") >= 160e6);
    let mut took = 0;
    for _ in 0..10 {
        // About a megabyte a second.
        let mut piece = vec![0; 100_000];
        slow.read_exact(&mut piece).unwrap();
        took += piece.len();
        std::thread::sleep(Duration::from_millis(100));
        let r =
            s.ask("POST", "/v1/query?format=csv", "", b"SELECT sum(arange(1000000)::float64) AS s");
        assert_eq!((r.status, r.text().as_str()), (200, "s\n499999500000.0\n"));
    }
    // The response is still being sent, and the bytes held for it are bounded.
    assert!(took < 2_000_000 && s.metric("tessera_streams") == 1.0);
    assert!(
        s.metric("tessera_quota_used_bytes") <= 16e6,
        "{}",
        s.metric("tessera_quota_used_bytes")
    );
    let resident = s.resident();
    assert!(resident < 400 << 20, "{resident}");
    drop(slow);
    until("what it held is free", || {
        s.metric("tessera_scratch_used_bytes") == 0.0
            && s.metric("tessera_quota_used_bytes") == 0.0
            && s.metric("tessera_streams") == 0.0
    });
    // A client that reads all of a result gets all of it.
    let all = s.ask("POST", "/v1/query?format=npy", "", b"SELECT arange(20000000)::float64 AS x");
    assert_eq!(all.body.len(), 128 + 160_000_000);
    let last = &all.body[all.body.len() - 8..];
    assert_eq!(f64::from_le_bytes(last.try_into().unwrap()), 19_999_999.0);
    let rows = "SELECT x FROM (SELECT arange(300000) AS x) AS q WHERE x >= 0";
    let csv = s.ask("POST", "/v1/query?format=csv", "", rows.as_bytes());
    assert_eq!(csv.text().lines().count(), 300_001, "{}", csv.head);
}
