//! Obligations of a server that is killed or replaced: a statement that it reported as stopped does not start again,
//! work that it began on workers continues there, and it does not report that it is ready.

use crate::cluster::{Cluster, lost_after, never_fails, signal};
use crate::common::{Hold, until};
use crate::restart::{Place, accepted, end, is_over, result, submit};
use nix::sys::signal::Signal::SIGKILL;
use serde_json::{Value, json};
use std::time::Duration;

/// Never ends by itself.
const ENDLESS: &str = "SELECT sum(sin(arange(1000000000000)::float64)) AS s";

#[test]
fn stopped_statements_stay_stopped() {
    if !cfg!(debug_assertions) {
        // The release build has no fail-points.
        return;
    }
    let p = Place::new();
    let s = p.serve();
    let finished = submit(&s, "SELECT arange(3) AS x");
    assert!(result(&s, &finished).contains("[0,1,2]"));
    drop(s);
    // A record takes a second and a half to be on the device.
    let slow = ["statements.put=sleep"; 15].join(";");
    let s = p.serve_with(&[("TESSERA_FAIL", &slow)]);
    let session = s.ask("POST", "/v1/sessions", "", b"").json()["id"].as_str().unwrap().to_owned();
    let header = format!("Tessera-Session: {session}\r\n");
    let ids: Vec<String> = std::thread::scope(|scope| {
        let ask = |header: String| {
            let s = &s;
            scope.spawn(move || accepted(s, &header, ENDLESS))
        };
        let asked = [ask(String::new()), ask(String::new()), ask(header.clone())];
        asked.map(|asked| asked.join().unwrap()).into()
    });
    let state = |id: &str| s.get(&format!("/v1/statements/{id}")).json()["state"].clone();
    until("all run", Duration::from_secs(60), || ids.iter().all(|id| state(id) == "RUNNING"));
    std::thread::scope(|scope| {
        let ask = |method: &'static str, path: String, body: String| {
            let s = &s;
            scope.spawn(move || s.ask(method, &path, "", body.as_bytes()))
        };
        let asked = [
            ask("DELETE", format!("/v1/statements/{}", ids[0]), String::new()),
            ask("DELETE", format!("/v1/statements/{finished}"), String::new()),
            ask("POST", "/v1/query".into(), format!("CANCEL QUERY '{}'", ids[1])),
            ask("DELETE", format!("/v1/sessions/{session}"), String::new()),
        ];
        for reply in asked.map(|asked| asked.join().unwrap()) {
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    });
    // Killed as soon as it has answered.
    drop(s);
    let s = p.serve();
    for id in &ids {
        let status = s.get(&format!("/v1/statements/{id}")).json();
        assert_eq!(status["state"], "CANCELLED", "{status}");
    }
    let gone = s.get(&format!("/v1/statements/{finished}/result"));
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("result_gone")));
}

#[test]
fn a_delete_that_cannot_be_written_down_is_no_delete() {
    let p = Place::new();
    let s = p.serve();
    let id = submit(&s, ENDLESS);
    let state = || s.get(&format!("/v1/statements/{id}")).json()["state"].clone();
    until("it runs", Duration::from_secs(60), || state() == "RUNNING");
    // A file takes the place of the directory of records.
    let records = p.warehouse().join("statements");
    std::fs::rename(&records, p.warehouse().join("aside")).unwrap();
    std::fs::write(&records, b"").unwrap();
    let told = s.ask("DELETE", &format!("/v1/statements/{id}"), "", b"");
    assert!(told.status >= 400 && told.json()["error"]["statement_id"] == *id, "{}", told.text());
    std::fs::remove_file(&records).unwrap();
    std::fs::rename(p.warehouse().join("aside"), &records).unwrap();
    // Asked again it is.
    let told = s.ask("DELETE", &format!("/v1/statements/{id}"), "", b"");
    assert_eq!((told.status, &told.json()["state"]), (200, &json!("CANCELLED")), "{}", told.text());
    drop(s);
    let s = p.serve();
    assert_eq!(end(&s, &id)["state"], "CANCELLED");
}

#[test]
fn a_server_whose_place_is_taken_is_not_ready() {
    let p = Place::new();
    let first = p.serve();
    result(&first, &submit(&first, "SELECT arange(3) AS x"));
    assert_eq!(first.get("/readyz").status, 200);
    let second = p.serve();
    until("it is not ready", Duration::from_secs(60), || {
        first.try_get("/readyz").is_some_and(|reply| reply.status == 503)
    });
    assert_eq!(first.get("/readyz").json()["error"]["code"], "fenced");
    assert_eq!((first.get("/healthz").status, second.get("/readyz").status), (200, 200));
}

#[test]
fn a_server_that_starts_again_waits_for_its_workers() {
    if never_fails() {
        return;
    }
    // The next server waits as long as that for the second worker once the first one has joined.
    let mut cluster = Cluster::start_in(lost_after(5), 0);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    (0..2).for_each(|_| cluster.start_worker_at(&join, &[], &hold.at("operand.fused")));
    cluster.wait_for(2);
    let sql = "SELECT sum(sin(x) * cos(x)) AS s FROM (SELECT random_uniform([12000000], seed => 1, \
        chunks => [500000]) AS x) t";
    let want = cluster.alone(sql);
    let sql = format!("SET tessera.spread = 'all'; {sql}");
    let body = json!({"sql": sql, "wait_ms": 0, "request_id": "a"}).to_string();
    let id = cluster.ask("POST", "/v1/statements", &body).unwrap().json()["id"].clone();
    let path = format!("/v1/statements/{}", id.as_str().unwrap());
    let status = |cluster: &Cluster| cluster.ask("GET", &path, "").unwrap().json();
    cluster.until_some_work(2, || is_over(&status(&cluster)));
    signal(cluster.server.as_ref().unwrap(), SIGKILL);
    cluster.server = None;
    cluster.start_server();
    hold.let_go();
    until("it is over", Duration::from_secs(90), || is_over(&status(&cluster)));
    let ended = status(&cluster);
    assert_eq!(ended["state"], "FINISHED", "{ended}");
    let got = cluster.ask("GET", &format!("{path}/result?format=csv"), "").unwrap();
    assert!(got.status == 200 && got.body.ends_with(&want), "{}", got.body);
    let plan: Value = cluster.ask("GET", &format!("{path}/plan"), "").unwrap().json();
    assert_eq!(plan["measured"]["cluster"]["workers"], 2, "{plan}");
    cluster.is_quiet("what is left on workers");
}
