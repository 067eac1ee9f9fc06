//! A standby beside a live server: it waits, takes over, and finishes the statements that the other one had accepted.

use crate::cluster::{free_port, never_fails};
use crate::common::{Hold, SERVE, tessera, until, until_or_told};
use crate::http::Server;
use crate::restart::{accepted, end, is_over, result};
use crate::s3::{KEY, S3, SECRET};
use nix::sys::signal::Signal::{self, SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Takes some seconds in a debug build.
const LONG: &str = "SELECT sum(sin(arange(20000000)::float64)) AS s";
/// The longest that a standby may take on a busy machine; on an idle one it takes less than five seconds.
const TAKES_OVER: Duration = Duration::from_secs(30);
/// The longest that anything else may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// A warehouse, in a directory or in a bucket, and the configuration of its servers.
pub(crate) struct World {
    directory: tempfile::TempDir,
    s3: Option<S3>,
}

impl World {
    pub(crate) fn new(remote: bool) -> World {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("spill")).unwrap();
        // Behind the proxy conditions hold as in a real bucket.
        World { directory, s3: remote.then(|| S3::failing(|_, _| None)) }
    }

    fn tessera(&self) -> Command {
        let at = |name: &str| self.directory.path().join(name).display().to_string();
        let warehouse = match self.s3 {
            Some(_) => "s3://bkt/warehouse".to_string(),
            None => at("warehouse"),
        };
        let environment = self.s3.as_ref().map(|s3| s3.environment(Some((KEY, SECRET))));
        let mut command = tessera();
        command
            .envs(environment.unwrap_or_default())
            .env("TESSERA_CLUSTER_SECRET_FILE", at("cluster.secret"))
            .args(["--warehouse", &warehouse, "--spill-dir", &at("spill")])
            .args(["--memory-limit", "256MiB"]);
        command
    }

    fn serve(&self, flags: &[&str]) -> Server {
        let mut command = self.tessera();
        command.args(["--threads", "1"]).args(SERVE).args(["--listen", "127.0.0.1:0"]).args(flags);
        Server::spawn(command)
    }

    /// A live server, and a standby that waits for its end.
    pub(crate) fn pair(&self, flags: &[&str]) -> [Server; 2] {
        let live = self.serve(flags);
        is_ready(&live, PATIENCE);
        let standby = self.serve(&[&["--standby"], flags].concat());
        stands_by(&standby, &live);
        [live, standby]
    }

    /// The answer of a process that is not killed.
    fn query(&self, sql: &str) -> String {
        let out = self.tessera().args(["query", "--format", "json", sql]).output().unwrap();
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
}

pub(crate) fn url(s: &Server) -> String {
    format!("http://{}", s.address())
}

fn error(s: &Server, path: &str) -> Value {
    s.get(path).json()["error"].clone()
}

/// Waits until a server is live.
fn is_ready(s: &Server, most: Duration) {
    until("the server is ready", most, || {
        s.try_get("/readyz").is_some_and(|reply| reply.status == 200)
    });
}

/// Waits until a server waits for the end of another.
fn stands_by(standby: &Server, live: &Server) {
    let url = url(live);
    until("it stands by", PATIENCE, || {
        let Some(reply) = standby.try_get("/readyz") else { return false };
        let error = reply.json()["error"].clone();
        // Before that it may be fenced, or about to leave.
        reply.status == 503 && error["code"] == "standby" && error["server"] == *url
    });
}

fn send(s: &Server, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(s.id() as i32), signal).unwrap();
}

/// Waits until a statement runs. One that is over never will.
fn runs(s: &Server, id: &str) {
    until("it runs", PATIENCE, || {
        let status = s.get(&format!("/v1/statements/{id}")).json();
        assert!(!is_over(&status), "it is over already: {status}");
        status["state"] == "RUNNING"
    });
}

fn finishes_what_was_accepted(remote: bool) {
    let world = World::new(remote);
    let want = world.query(LONG);
    let [live, standby] = world.pair(&[]);
    let long = accepted(&live, "", LONG);
    runs(&live, &long);
    let ids = [
        long,
        accepted(&live, "", &format!("CREATE TENSOR made AS {LONG}")),
        accepted(&live, "", "SELECT arange(3) AS x"),
    ];
    assert!(result(&live, &ids[2]).contains("[0,1,2]"));
    // SIGKILL.
    drop(live);
    is_ready(&standby, TAKES_OVER);
    assert_eq!(result(&standby, &ids[0]), want);
    assert!(result(&standby, &ids[1]).contains("created tensor made"));
    assert!(result(&standby, &ids[2]).contains("[0,1,2]"));
    assert_eq!(world.query("SELECT s FROM made"), want);
    assert_eq!(standby.metric("tessera_live"), 1.0);
    assert_eq!(standby.get("/v1/cluster").json()["role"], "live");
}

#[test]
fn a_standby_finishes_what_the_live_server_accepted() {
    finishes_what_was_accepted(false);
}

#[test]
fn a_standby_finishes_statements_of_a_bucket_that_the_live_server_accepted() {
    finishes_what_was_accepted(true);
}

#[test]
fn a_standby_refuses_the_work_of_the_live_server() {
    let world = World::new(false);
    let [live, standby] = world.pair(&[]);
    let sql = json!({"sql": "SELECT 1 AS a", "request_id": "a"}).to_string();
    for (method, path, body) in [
        ("POST", "/v1/statements", sql.as_bytes()),
        ("GET", "/v1/statements", b""),
        ("GET", "/v1/statements/0", b""),
        ("POST", "/v1/query", b"SELECT 1 AS a"),
        ("POST", "/v1/sessions", b""),
        ("GET", "/v1/tensors", b""),
        ("PUT", "/v1/tensors/x", b""),
        ("GET", "/readyz", b""),
    ] {
        let reply = standby.ask(method, path, "", body);
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["code"]), (503, &json!("standby")), "{path}: {error}");
        assert_eq!((&error["class"], &error["server"]), (&json!("retry"), &json!(url(&live))));
        assert!(reply.head.contains("retry-after: 1"), "{path}: {}", reply.head);
    }
    assert_eq!((standby.get("/healthz").status, live.get("/readyz").status), (200, 200));
    assert_eq!((standby.metric("tessera_live"), live.metric("tessera_live")), (0.0, 1.0));
    let told = standby.get("/v1/cluster").json();
    assert_eq!((&told["role"], &told["server"]), (&json!("standby"), &json!(url(&live))));
    assert_eq!(live.get("/v1/cluster").json()["role"], "live");
    // The standby waits while the live server lives.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(live.get("/readyz").status, 200);
    assert_eq!(error(&standby, "/readyz")["code"], "standby");
}

fn stopped_server_is_fenced(remote: bool) {
    let world = World::new(remote);
    let [first, second] = world.pair(&[]);
    let id = accepted(&first, "", LONG);
    runs(&first, &id);
    send(&first, SIGSTOP);
    is_ready(&second, TAKES_OVER);
    let made = second.submit(&json!({"sql": "CREATE TENSOR t AS SELECT arange(3) AS x"}));
    assert_eq!(made.status, 200, "{}", made.text());
    // A statement that the other server accepted is not reported as unknown, even before this server learns of that
    // one.
    let path = format!("/v1/statements/{}", accepted(&second, "", "SELECT 1 AS a"));
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| first.get(&path));
        std::thread::sleep(Duration::from_millis(200));
        send(&first, SIGCONT);
        asked.join().unwrap()
    });
    assert_eq!((asked.status, &asked.json()["error"]["code"]), (503, &json!("fenced")));
    until("it is fenced", PATIENCE, || {
        let told = first.try_get("/readyz");
        told.is_some_and(|reply| reply.json()["error"]["code"] == "fenced")
    });
    for sql in ["CREATE OR REPLACE TENSOR t AS SELECT 7 AS x", "DROP TENSOR t", "SELECT 1 AS a"] {
        let reply = first.submit(&json!({"sql": sql, "request_id": sql}));
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status, &error["code"]), (503, &json!("fenced")), "{sql}: {error}");
        assert_eq!(error["server"], url(&second), "{sql}: {error}");
    }
    assert_eq!(first.get(&format!("/v1/statements/{id}")).status, 503);
    assert_eq!(result(&second, &id), world.query(LONG));
    assert!(world.query("SELECT x FROM t").contains("[0,1,2]"));
    // The server does not take over again, because it was not started as a standby.
    assert_eq!(first.get("/v1/cluster").json()["role"], "fenced");
    assert_eq!((first.get("/healthz").status, second.get("/readyz").status), (200, 200));
}

#[test]
fn a_client_that_waits_at_a_server_that_loses_its_turn_hears_of_no_failure() {
    let world = World::new(false);
    let [first, second] = world.pair(&[]);
    let ids = [LONG.to_string(), format!("CREATE TENSOR made AS {LONG}")];
    let ids = ids.map(|sql| accepted(&first, "", &sql));
    runs(&first, &ids[0]);
    std::thread::scope(|scope| {
        let wait = |id: &String| format!("/v1/statements/{id}?wait_ms=60000");
        let first = &first;
        let waits = ids.each_ref().map(|id| scope.spawn(move || first.get(&wait(id))));
        std::thread::sleep(Duration::from_millis(200));
        send(first, SIGSTOP);
        is_ready(&second, TAKES_OVER);
        send(first, SIGCONT);
        for reply in waits.map(|waits| waits.join().unwrap()) {
            let error = reply.json()["error"].clone();
            assert_eq!((reply.status, &error["code"]), (503, &json!("fenced")), "{}", reply.text());
            // The server may have learned that it is not live before it has read the address of the live one.
            let server = &error["server"];
            assert!(server.is_null() || *server == url(&second), "{error}");
        }
    });
    for id in &ids {
        assert_eq!(end(&second, id)["state"], "FINISHED");
    }
}

#[test]
fn a_stopped_server_is_fenced_and_changes_nothing() {
    stopped_server_is_fenced(false);
}

#[test]
fn a_stopped_server_of_a_bucket_is_fenced_and_changes_nothing() {
    stopped_server_is_fenced(true);
}

#[test]
fn a_fenced_server_that_is_a_standby_stands_by_again() {
    let world = World::new(false);
    // Without a live server a standby leads at once.
    let first = world.serve(&["--standby"]);
    is_ready(&first, PATIENCE);
    let second = world.serve(&["--standby"]);
    stands_by(&second, &first);
    send(&first, SIGSTOP);
    is_ready(&second, TAKES_OVER);
    let id = accepted(&second, "", LONG);
    send(&first, SIGCONT);
    stands_by(&first, &second);
    runs(&second, &id);
    drop(second);
    is_ready(&first, TAKES_OVER);
    assert_eq!(result(&first, &id), world.query(LONG));
}

fn cells_outlive_their_server(ends: Signal) {
    let world = World::new(false);
    let mut first = world.serve(&["--standby"]);
    is_ready(&first, PATIENCE);
    let second = world.serve(&["--standby"]);
    stands_by(&second, &first);
    // The answer is computed again by the next server, of cells that have no name any more.
    let script =
        "CREATE TENSOR t AS SELECT arange(1000) AS v; SELECT sum(v) AS s FROM t; DROP TENSOR t";
    let id = accepted(&first, "", script);
    let before = result(&first, &id);
    assert!(before.contains("499500"), "{before}");
    send(&first, ends);
    is_ready(&second, TAKES_OVER);
    match ends {
        SIGSTOP => {
            send(&first, SIGCONT);
            // The server drops its state, in the same process.
            stands_by(&first, &second);
            std::thread::sleep(Duration::from_secs(1));
        }
        _ => first.wait(),
    }
    assert_eq!(result(&second, &id), before);
}

#[test]
fn a_fenced_server_removes_no_cells_that_the_next_one_reads() {
    cells_outlive_their_server(SIGSTOP);
}

#[test]
fn a_server_that_ends_removes_no_cells_that_the_next_one_reads() {
    cells_outlive_their_server(SIGTERM);
}

#[test]
fn a_server_that_leaves_hands_over_at_once() {
    let world = World::new(false);
    let [mut live, standby] = world.pair(&[]);
    let id = accepted(&live, "", LONG);
    runs(&live, &id);
    let begun = Instant::now();
    send(&live, SIGTERM);
    is_ready(&standby, TAKES_OVER);
    assert_eq!(result(&standby, &id), world.query(LONG));
    // The server waits neither for the statement nor for its client: both now belong to the other server.
    live.wait();
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(end(&standby, &id)["state"], "FINISHED");
}

fn one_of_two_standbys_takes_over(remote: bool) {
    let world = World::new(remote);
    let [live, second] = world.pair(&[]);
    let third = world.serve(&["--standby"]);
    stands_by(&third, &live);
    let id = accepted(&live, "", "SELECT arange(3) AS x");
    result(&live, &id);
    drop(live);
    let is_live = |s: &Server| s.try_get("/readyz").is_some_and(|reply| reply.status == 200);
    until("one leads", TAKES_OVER, || is_live(&second) || is_live(&third));
    let (winner, other) = if is_live(&second) { (second, third) } else { (third, second) };
    stands_by(&other, &winner);
    // For good: each would fence the other.
    std::thread::sleep(Duration::from_secs(4));
    assert!(is_live(&winner));
    assert_eq!(error(&other, "/readyz")["code"], "standby");
    drop(winner);
    is_ready(&other, TAKES_OVER);
    assert!(result(&other, &id).contains("[0,1,2]"));
}

#[test]
fn of_two_standbys_one_takes_over() {
    one_of_two_standbys_takes_over(false);
}

#[test]
fn of_two_standbys_of_a_bucket_one_takes_over() {
    one_of_two_standbys_takes_over(true);
}

/// Ends a process when it drops.
struct Worker(std::process::Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn workers_join_the_server_that_takes_over() {
    if never_fails() {
        return;
    }
    let world = World::new(false);
    let hold = Hold::new(world.directory.path());
    let ports = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    let flags = |port: &'static str| ["--cluster", "--cluster-listen", port];
    let at: [&'static str; 2] = ports.clone().map(|port| &*port.leak());
    let live = world.serve(&flags(at[0]));
    is_ready(&live, PATIENCE);
    let standby = world.serve(&[&["--standby"][..], &flags(at[1])].concat());
    stands_by(&standby, &live);
    // The standby comes first in their list.
    let list = format!("{},{}", at[1], at[0]);
    let start = |_| {
        let mut command = world.tessera();
        command.args(["--threads", "1", "worker", "--no-supervisor", "--scheduler", &list]);
        command.env("TESSERA_FAIL", hold.at("operand.fused"));
        Worker(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let _workers: Vec<Worker> = (0..2).map(start).collect();
    let alive = |s: &Server| {
        let told = s.get("/v1/cluster").json();
        let workers = told["workers"].as_array().unwrap().clone();
        workers.into_iter().filter(|w| w["state"] == "alive").collect::<Vec<Value>>()
    };
    until("both have joined", PATIENCE, || alive(&live).len() == 2);
    assert!(alive(&standby).is_empty());
    let sql = "SELECT sum(sin(x) * cos(x)) AS s FROM (SELECT random_uniform([12000000], seed => 1, \
        chunks => [500000]) AS x) t";
    let id = accepted(&live, "", &format!("SET tessera.spread = 'all'; {sql}"));
    let works = |w: &Value| w["orders"].as_u64() > Some(0);
    let told = || {
        let status = live.get(&format!("/v1/statements/{id}")).text();
        format!("{status} {}", live.get("/v1/cluster").text())
    };
    let both_work = || {
        let status = live.get(&format!("/v1/statements/{id}")).json();
        assert!(!is_over(&status), "nobody let it end: {}", told());
        alive(&live).iter().filter(|w| works(w)).count() == 2
    };
    until_or_told("both work", PATIENCE, both_work, told);
    drop(live);
    is_ready(&standby, TAKES_OVER);
    let told = || standby.get("/v1/cluster").text();
    let both_are_there = || alive(&standby).len() == 2;
    until_or_told("both have joined again", PATIENCE, both_are_there, told);
    hold.let_go();
    let want: Value = serde_json::from_str(&world.query(sql)).unwrap();
    let got = result(&standby, &id);
    assert!(got.contains(&want["tensors"][0]["data"].to_string()), "{got}, {want}");
    let plan = standby.get(&format!("/v1/statements/{id}/plan")).json();
    assert_eq!(plan["measured"]["cluster"]["workers"], 2, "{plan}");
}

/// A client of two servers, whose live one is killed while the client's script runs.
fn asked_of_two(script: &str) -> (World, std::process::Output) {
    let world = World::new(false);
    let [live, standby] = world.pair(&[]);
    // The standby is asked first.
    let servers = format!("{},{}", url(&standby), url(&live));
    let mut command = world.tessera();
    command.args(["query", "--connect", &servers, "--format", "json", script]);
    let client = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let state = |s: &Value| s["sql"].as_str().unwrap().contains("sin") && s["state"] == "RUNNING";
    until("it runs", PATIENCE, || {
        let all = live.get("/v1/statements").json();
        all["statements"].as_array().unwrap().iter().any(state)
    });
    drop(live);
    let out = client.wait_with_output().unwrap();
    (world, out)
}

#[test]
fn a_client_of_two_servers_sees_a_delay_only() {
    let script = format!("CREATE TENSOR made AS {LONG}; SELECT s FROM made; SELECT 1 + 1 AS two");
    let (world, out) = asked_of_two(&script);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let want: Value = serde_json::from_str(&world.query(LONG)).unwrap();
    assert!(text.contains("created tensor made"), "{text}");
    assert!(text.contains(&want["tensors"][0]["data"].to_string()), "{text}, {want}");
}

#[test]
fn a_session_ends_with_its_server_and_its_accepted_statements_do_not() {
    let script = format!("SET tessera.spread = 'none'; {LONG}; SELECT 1 + 1 AS two");
    let (world, out) = asked_of_two(&script);
    let (text, told) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let want: Value = serde_json::from_str(&world.query(LONG)).unwrap();
    assert!(text.contains(&want["tensors"][0]["data"].to_string()), "{text}, {want}");
    // The session's settings are lost, so a later statement could mean something else.
    assert_eq!(out.status.code(), Some(1), "{text}{told}");
    assert!(told.contains("unknown_session"), "{told}");
}

/// From the signal to the first statement that the standby answers.
fn takeover(remote: bool, sent: Signal) -> Duration {
    let world = World::new(remote);
    let [live, standby] = world.pair(&[]);
    let id = accepted(&live, "", LONG);
    // At another moment between two renewals each time.
    let moment = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_millis();
    std::thread::sleep(Duration::from_millis(1000 + u64::from(moment)));
    let begun = Instant::now();
    send(&live, sent);
    let asked = json!({"sql": "SELECT 1 + 1 AS two"});
    until("it answers", TAKES_OVER, || standby.submit(&asked).status == 200);
    let took = begun.elapsed();
    assert_eq!(end(&standby, &id)["state"], "FINISHED");
    took
}

#[test]
#[ignore = "takes minutes; docs/recovery.md has the figures"]
fn how_long_a_takeover_takes() {
    for remote in [false, true] {
        for sent in [SIGKILL, SIGSTOP, SIGTERM] {
            let mut took: Vec<Duration> = (0..10).map(|_| takeover(remote, sent)).collect();
            took.sort();
            println!("in a bucket: {remote}, {sent}: median {:?}, all {took:?}", took[5]);
        }
    }
}
