//! A server and its workers as processes, on which everything happens that happens to processes.

mod chaos;
mod faults;
mod ran;
mod secrets;
mod wires;
mod work;

use crate::chaos::work::logs;
use crate::common::{Certified, SERVE, binary, until};
use ran::Ran;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use wires::Wire;

/// The longest that a statement may take, whatever happens to workers.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Party {
    pub(crate) child: Child,
    pub(crate) name: String,
}

impl Drop for Party {
    fn drop(&mut self) {
        // A stopped process dies only of SIGKILL.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server and its workers.
pub(crate) struct Cluster {
    directory: tempfile::TempDir,
    pub(crate) server: Option<Party>,
    pub(crate) workers: Vec<Party>,
    http: String,
    pub(crate) join: String,
    started: usize,
    /// The memory limit of a worker.
    memory: &'static str,
    /// The environment of all parties.
    pub(crate) environment: Vec<(String, String)>,
    /// The warehouse, unless it is a directory of its own.
    warehouse: Option<String>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().into()
    }
}

impl Cluster {
    pub(crate) fn start(workers: usize) -> Cluster {
        Cluster::start_in(Vec::new(), workers)
    }

    /// Starts all of them with something in their environment.
    pub(crate) fn start_in(environment: Vec<(String, String)>, workers: usize) -> Cluster {
        Cluster::start_over(None, environment, workers)
    }

    /// Starts all of them over a warehouse.
    pub(crate) fn start_over(
        warehouse: Option<String>,
        environment: Vec<(String, String)>,
        workers: usize,
    ) -> Cluster {
        let mut cluster = Cluster::none_yet(warehouse, environment, "127.0.0.1:0");
        cluster.start_server();
        for _ in 0..workers {
            cluster.start_worker(&[]);
        }
        cluster.wait_for(workers);
        cluster
    }

    /// Starts none of them; workers are to join at an address.
    pub(crate) fn none_yet(
        warehouse: Option<String>,
        environment: Vec<(String, String)>,
        join: &str,
    ) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        for name in ["spill", "logs"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        Cluster {
            directory,
            server: None,
            workers: Vec::new(),
            http: "127.0.0.1:0".into(),
            join: join.into(),
            started: 0,
            memory: "128MiB",
            environment,
            warehouse,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("TESSERA_CLUSTER_SECRET_FILE", self.path("cluster.secret"))
            .envs(self.environment.iter().cloned())
            .arg("--warehouse")
            .arg(self.warehouse.as_ref().map_or_else(|| self.path("warehouse"), PathBuf::from))
            .arg("--spill-dir")
            .arg(self.path("spill"))
            .args(["--threads", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// Starts a server: where the one before was.
    pub(crate) fn start_server(&mut self) {
        let mut command = self.command();
        command
            .args(["--memory-limit", "256MiB"])
            .args(SERVE)
            .args(["--cluster", "--listen", &self.http, "--cluster-listen", &self.join])
            .env("TESSERA_WORKER_TIMEOUT", "2")
            .envs(self.environment.iter().cloned())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let second = lines.next().unwrap().unwrap();
        let word = |line: &str, at: &str| {
            line.split(at)
                .nth(1)
                .unwrap_or_else(|| panic!("{line}"))
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        };
        self.http = word(&first, "http://");
        self.join = word(&second, "--scheduler ").trim_end_matches('`').to_owned();
        // The rest of its messages must not fill the pipe.
        let log = self.path("logs").join(format!("server-{}.log", child.id()));
        let mut log = std::fs::File::create(log).unwrap();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| drop(writeln!(log, "{line}")));
        });
        self.server = Some(Party { child, name: "server".into() });
    }

    pub(crate) fn start_worker(&mut self, flags: &[&str]) {
        let join = self.join.clone();
        self.start_worker_at(&join, flags, "");
    }

    /// Starts a worker that joins at an address, and fails at the given fail-point.
    pub(crate) fn start_worker_at(&mut self, join: &str, flags: &[&str], fail: &str) {
        self.started += 1;
        let name = format!("w{}", self.started);
        let log = std::fs::File::create(self.path("logs").join(format!("{name}.log"))).unwrap();
        let child = self
            .command()
            .args(["--memory-limit", self.memory, "worker", "--scheduler", join])
            .args(["--name", &name, "--no-supervisor"])
            .args(flags)
            .env("TESSERA_FAIL", fail)
            .stderr(log)
            .spawn()
            .unwrap();
        self.workers.push(Party { child, name });
    }

    /// Starts a worker that finds something else in its environment.
    pub(crate) fn start_worker_in(&mut self, environment: &[(String, String)]) {
        let before = std::mem::replace(&mut self.environment, environment.to_vec());
        self.start_worker(&[]);
        self.environment = before;
    }

    /// Starts a worker by a program that is given the worker's command as arguments; it logs into a file.
    pub(crate) fn start_worker_by(&mut self, by: &[&str], flags: &[&str]) {
        self.started += 1;
        let (name, whole) = (format!("w{}", self.started), self.command());
        let log = std::fs::File::create(self.path("logs").join(format!("{name}.log"))).unwrap();
        let mut command = Command::new(by[0]);
        command
            .args(&by[1..])
            .arg(whole.get_program())
            .args(whole.get_args())
            .args(["--memory-limit", self.memory, "worker", "--scheduler", &self.join])
            .args(["--name", &name, "--no-supervisor"])
            .args(flags)
            .envs(whole.get_envs().filter_map(|(key, value)| Some((key, value?))))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .stderr(log);
        self.workers.push(Party { child: command.spawn().unwrap(), name });
    }

    /// Starts a worker that others reach, and that reaches the server, by wires that can be cut.
    fn start_wired_worker(&mut self) -> [Wire; 2] {
        let port = free_port();
        let wires = [Wire::new(format!("127.0.0.1:{port}")), Wire::new(self.join.clone())];
        let (listen, join) = (format!("127.0.0.1:{port}"), wires[1].address.clone());
        let flags = ["--listen", &listen, "--advertise", &wires[0].address];
        self.start_worker_at(&join, &flags, "");
        wires
    }

    /// Kills all workers.
    pub(crate) fn kill_workers(&mut self) {
        self.workers.clear();
    }

    pub(crate) fn kill_server(&mut self) {
        self.server = None;
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<Reply> {
        ask_at(&self.http, method, path, body)
    }

    /// The address of the server for clients.
    pub(crate) fn http(&self) -> String {
        self.http.clone()
    }

    /// Starts a worker whose process may map this number of KiB.
    pub(crate) fn start_narrow(&mut self, kib: u64, memory: &str) {
        self.started += 1;
        let (name, whole) = (format!("w{}", self.started), self.command());
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("ulimit -v {kib} && exec \"$@\""), "sh"])
            .arg(whole.get_program())
            .args(whole.get_args())
            .args(["--memory-limit", memory, "worker", "--scheduler", &self.join])
            .args(["--name", &name, "--no-supervisor"])
            .envs(whole.get_envs().filter_map(|(key, value)| Some((key, value?))))
            // Threads want addresses, and there may be one for each of many cores.
            .env("TOKIO_WORKER_THREADS", "2")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        self.workers.push(Party { child: command.spawn().unwrap(), name });
    }

    /// Starts a worker with a supervisor; it fails at the given fail-point.
    pub(crate) fn start_supervised(&mut self, fail: &str) {
        self.started += 1;
        let name = format!("w{}", self.started);
        let mut command = self.command();
        command
            .args(["--memory-limit", self.memory, "worker", "--scheduler", &self.join])
            .args(["--name", &name])
            .env("TESSERA_FAIL", fail)
            .stderr(Stdio::null());
        self.workers.push(Party { child: command.spawn().unwrap(), name });
    }

    /// Runs a script whose last statement answers, spread over the workers.
    pub(crate) fn query(&self, sql: &str) -> Reply {
        query_at(&self.http, sql)
    }

    /// The answer of a statement without the workers.
    pub(crate) fn alone(&self, sql: &str) -> String {
        let sql = format!("SET tessera.spread = 'none'; {sql}");
        let reply = self.ask("POST", "/v1/query?format=csv", &sql).unwrap();
        assert_eq!(reply.status, 200, "{sql}: {}", reply.body);
        reply.body
    }

    /// Runs a statement over the workers: its end, its answer, and which operands ran for it.
    fn watched(&self, sql: &str) -> std::io::Result<(String, String, Ran)> {
        let sql = format!("SET tessera.spread = 'all'; SET tessera.reuse = 'none'; {sql}");
        let body = json!({"sql": sql, "wait_ms": 60_000}).to_string();
        // A server that is killed may leave an answer in the middle.
        let ask = |method: &str, path: &str, body: &str| {
            let reply = self.ask(method, path, body)?;
            serde_json::from_str::<Value>(&reply.body).map_err(std::io::Error::other)
        };
        let mut status = ask("POST", "/v1/statements", &body)?;
        let path = format!("/v1/statements/{}", status["id"].as_str().unwrap_or_default());
        let begun = Instant::now();
        while ["QUEUED", "PLANNING", "RUNNING"].iter().any(|s| status["state"] == *s) {
            assert!(begun.elapsed() < PATIENCE, "{status}");
            status = ask("GET", &format!("{path}?wait_ms=60000"), "")?;
        }
        let answer = self.ask("GET", &format!("{path}/result?format=csv"), "")?.body;
        let measured = ask("GET", &format!("{path}/plan"), "")?["measured"].clone();
        Ok((status["state"].as_str().unwrap_or_default().into(), answer, Ran::of(&measured)))
    }

    fn told(&self) -> Value {
        self.ask("GET", "/v1/cluster", "").unwrap().json()
    }

    pub(crate) fn alive(&self) -> Vec<Value> {
        let told = self.told();
        let all = told["workers"].as_array().unwrap();
        all.iter().filter(|w| w["state"] == "alive").cloned().collect()
    }

    pub(crate) fn wait_for(&self, workers: usize) {
        let begun = Instant::now();
        while self.alive().len() != workers {
            let late = begun.elapsed() > PATIENCE;
            let there = || self.alive().iter().map(|w| w["name"].clone()).collect::<Vec<_>>();
            let logs = || logs(&self.path("logs"));
            assert!(!late, "of {workers} workers there are {:?}\n{}", there(), logs());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until at least this number of workers run orders of a statement. The statement must not end before, so it
    /// has to be held up: workers report only with their next beat that they work.
    pub(crate) fn until_some_work(&self, workers: usize, is_over: impl Fn() -> bool) {
        let work = |w: &&Value| w["orders"].as_u64() > Some(0);
        let told = || {
            let statements = self.ask("GET", "/v1/statements", "").map(|reply| reply.body);
            format!("{}\n{statements:?}\n{}", self.told(), logs(&self.path("logs")))
        };
        let begun = Instant::now();
        while self.alive().iter().filter(work).count() < workers {
            assert!(!is_over(), "it is over before {workers} workers work:\n{}", told());
            assert!(begun.elapsed() < PATIENCE, "{workers} workers do not work:\n{}", told());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for two heartbeats of each worker: the second one was sent after this call began.
    pub(crate) fn is_heard(&self) {
        for _ in 0..2 {
            let since = Instant::now();
            let is_new = || {
                let passed = since.elapsed().as_secs_f64();
                self.alive().iter().all(|w| w["heard_s"].as_f64().unwrap() < passed)
            };
            until("workers are heard", PATIENCE, is_new);
        }
    }

    /// Waits until workers hold nothing of any statement, except chunks that they retain for later ones.
    pub(crate) fn is_quiet(&self, what: &str) {
        let begun = Instant::now();
        while left_on(&self.alive()) > 0 {
            assert!(begun.elapsed() < PATIENCE, "not in time: {what}: {:#?}", self.alive());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn events(&self) -> Vec<String> {
        let told = self.told();
        let events = told["events"].as_array().unwrap();
        events.iter().map(|e| e["kind"].as_str().unwrap().to_owned()).collect()
    }
}

/// Orders, chunks and memory of statements that workers still hold, except chunks that they retain for later
/// statements.
pub(crate) fn left_on(workers: &[Value]) -> u64 {
    let of = |w: &Value| {
        // Includes the overhead of the allocator for each chunk.
        let retained = w["retained_bytes"].as_u64().unwrap() / 2 * 3;
        w["orders"].as_u64().unwrap()
            + w["row_tasks"].as_u64().unwrap()
            + w["chunks"].as_u64().unwrap()
            + w["memory_used_bytes"].as_u64().unwrap().saturating_sub(retained)
    };
    workers.iter().map(of).sum()
}

/// The reply of a server.
fn ask_at(http: &str, method: &str, path: &str, body: &str) -> std::io::Result<Reply> {
    let mut stream = TcpStream::connect(http)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let n = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\nContent-Length: {n}\r\n\r\n{body}"
    )?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let text = String::from_utf8_lossy(&all).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    Ok(Reply { status, body })
}

/// Runs a script whose last statement answers, spread over the workers.
pub(crate) fn query_at(http: &str, sql: &str) -> Reply {
    // Chunks that workers retain of the statement before would hide the work of this one.
    let sql = format!("SET tessera.spread = 'all'; SET tessera.reuse = 'none'; {sql}");
    ask_at(http, "POST", "/v1/query?format=csv", &sql).unwrap()
}

/// A port that no process listens on. The system assigns other ports to processes that ask for any port, and each test
/// gets another port, so no other process takes it.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 14_000;
    const COUNT: u32 = 16_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests of another process begin elsewhere.
    let first = std::process::id().wrapping_mul(97);
    for _ in 0..COUNT {
        let number = first.wrapping_add(NEXT.fetch_add(1, SeqCst)) % COUNT;
        let port = u16::try_from(FIRST + number).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} to {} is free", FIRST + COUNT);
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let n = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if n == 0 || rest.len() < n {
            break;
        }
        out.push_str(&rest[..n]);
        body = rest[n..].trim_start_matches("\r\n");
    }
    out
}

pub(crate) fn signal(party: &Party, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(party.child.id() as i32);
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// Statements in which workers meet, and that take some time.
pub(crate) const STATEMENTS: [&str; 6] = [
    "SELECT sum(sin(arange(3000000)::float64)) AS s",
    "SELECT std(x, 0)[0:5] AS s FROM (SELECT random_normal([1500, 300], seed => 1, chunks => [100, 100]) AS x) t",
    "SELECT sum((x - mean(x, 0)) / std(x, 0), 1)[0:9] AS s FROM (SELECT random_normal([900, 300], seed => 2, chunks => [100, 100]) AS x) t",
    "SELECT sum(x @ transpose(x)) AS s FROM (SELECT random_normal([400, 400], seed => 3, chunks => [100, 100]) AS x) t",
    "SELECT sum(abs(x + transpose(x)), 0)[0:7] AS s FROM (SELECT random_normal([600, 600], seed => 4, chunks => [100, 60]) AS x) t",
    "SELECT max(cumsum(cumsum(x, 0), 1), 0)[0:5] AS s FROM (SELECT random_normal([500, 500], seed => 5, chunks => [100, 50]) AS x) t",
];

/// The answers of the statements on one machine, and their times.
fn alone(cluster: &Cluster) -> Vec<(String, Duration)> {
    STATEMENTS.iter().map(|sql| timed(cluster, sql)).collect()
}

/// The answer of a statement on one machine, and its time.
fn timed(cluster: &Cluster, sql: &str) -> (String, Duration) {
    let begun = Instant::now();
    (cluster.alone(sql), begun.elapsed())
}

#[test]
fn a_server_and_its_workers() {
    let mut cluster = Cluster::start_in(lost_after(5), 2);
    let want: Vec<String> = alone(&cluster).into_iter().map(|(want, _)| want).collect();
    for (sql, want) in STATEMENTS.iter().zip(&want) {
        let got = cluster.query(sql);
        assert_eq!((got.status, &got.body), (200, want), "{sql}");
    }
    // A worker reports its operands with its next beat.
    let operands = |w: &Value| w["operands"].as_u64().unwrap();
    until("both workers ran operands", PATIENCE, || {
        cluster.alive().iter().all(|w| operands(w) > 0)
    });
    cluster.is_quiet("statements that are over");
    let shown = cluster.query("SHOW WORKERS");
    assert_eq!(shown.body.lines().count(), 3, "{}", shown.body);
    let columns = ",chunks,row_tasks,row_tasks_done,rows_sent,row_bytes,heard,why";
    assert!(shown.body.lines().next().unwrap().ends_with(columns), "{}", shown.body);
    let explained = cluster.query(&format!("EXPLAIN ANALYZE {}", STATEMENTS[2]));
    assert!(explained.body.contains("workers: 2"), "{}", explained.body);
    let metrics = cluster.ask("GET", "/metrics", "").unwrap().body;
    for line in ["up{worker=\"1\"} 1", "row_tasks_total{", "rows_total{", "row_bytes_total{"] {
        assert!(metrics.contains(&format!("tessera_worker_{line}")), "no {line} in {metrics}");
    }
    // A user's error is reported at once, with a hint.
    let wrong = cluster.query("SELECT sum(x * x * x) AS s FROM (SELECT arange(4000000) AS x) t");
    assert!(wrong.status == 400, "{}", wrong.body);
    assert_eq!(wrong.code(), "integer_overflow", "{}", wrong.body);
    assert!(wrong.body.contains("operand `combine sum`, chunk ["), "{}", wrong.body);
    // Arrays in memory, uploaded or temp, belong to the server: workers fetch them from it.
    let temp = "CREATE TEMP TENSOR t AS SELECT random_normal([500, 300], seed => 7, chunks => [50, 300]) AS x; \
                SELECT sum(sin(x), 0)[0:3] AS s FROM t";
    let spread = cluster.query(temp);
    let embedded = cluster.ask(
        "POST",
        "/v1/query?format=csv",
        &format!("SET tessera.spread = 'none'; {temp}"),
    );
    assert_eq!((spread.status, spread.body), (200, embedded.unwrap().body));
    // One worker leaves, and no statement needs it.
    signal(&cluster.workers[0], nix::sys::signal::Signal::SIGTERM);
    assert!(cluster.workers.remove(0).child.wait().unwrap().success());
    cluster.wait_for(1);
    assert_eq!(cluster.query(STATEMENTS[0]).body, want[0]);
    assert!(cluster.events().contains(&"left".to_owned()), "{:?}", cluster.events());
    // Both are tables too; the queries of docs/cluster.md are answered.
    let told = cluster.query(
        "SELECT time, kind, worker, detail FROM system.events WHERE kind <> 'joined' ORDER BY number",
    );
    // Workers are numbered in the order in which they join, not in the one in which they are started.
    let is_left =
        [",left,1,it left\n", ",left,2,it left\n"].iter().any(|row| told.body.ends_with(row));
    assert!(told.status == 200 && is_left, "{}", told.body);
    let events = cluster.query(
        "SELECT kind, count(*) AS n FROM system.events WHERE worker IN (1, 2) GROUP BY kind ORDER BY kind",
    );
    assert_eq!(events.body, "kind,n\njoined,2\nleft,1\n");
    let workers = cluster.query(
        "SELECT w.state, w.memory_limit_bytes AS bytes, e.kind FROM system.workers w \
         LEFT JOIN system.events e ON e.worker = w.worker AND e.kind = 'left' ORDER BY 1",
    );
    assert_eq!(workers.body, "state,bytes,kind\nalive,134217728,\nleft,134217728,left\n");
    // A server that starts again has its workers back.
    cluster.server = None;
    cluster.start_server();
    cluster.wait_for(1);
    assert_eq!(cluster.query(STATEMENTS[1]).body, want[1]);
    // Without any worker the server does it all.
    cluster.workers.clear();
    cluster.wait_for(0);
    assert_eq!(cluster.query(STATEMENTS[1]).body, want[1]);
}

/// True if the binary has no fail-points, as no release build has. Prints that the test is not run.
pub(crate) fn never_fails() -> bool {
    let never = std::env::var_os("TESSERA_TEST_BINARY").is_some() || !cfg!(debug_assertions);
    if never {
        println!("not run: a release build has no fail-points");
    }
    never
}

pub(crate) fn failing(sound: usize, failing: usize, fail: &str) -> Option<Cluster> {
    failing_with("128MiB", sound, failing, fail)
}

/// The same, with workers that have this memory limit.
fn failing_with(memory: &'static str, sound: usize, failing: usize, fail: &str) -> Option<Cluster> {
    failing_in(Vec::new(), memory, sound, failing, fail)
}

/// For tests in which no worker may be lost: a worker that is silent for less time counts as slow.
pub(crate) fn patient() -> Vec<(String, String)> {
    lost_after(30)
}

/// For tests that lose workers and count them: a worker that is silent for fewer seconds counts as slow.
pub(crate) fn lost_after(seconds: u32) -> Vec<(String, String)> {
    vec![("TESSERA_WORKER_TIMEOUT".into(), seconds.to_string())]
}

fn failing_in(
    environment: Vec<(String, String)>,
    memory: &'static str,
    sound: usize,
    failing: usize,
    fail: &str,
) -> Option<Cluster> {
    if never_fails() {
        return None;
    }
    let mut cluster = Cluster::start_in(environment, 0);
    cluster.memory = memory;
    (0..sound).for_each(|_| cluster.start_worker(&[]));
    let join = cluster.join.clone();
    for _ in 0..failing {
        cluster.start_worker_at(&join, &[], fail);
    }
    cluster.wait_for(sound + failing);
    Some(cluster)
}

/// The certificate of a party, as variables of its environment.
pub(crate) fn environment_of(
    certified: Certified,
    directory: &std::path::Path,
    name: &str,
) -> Vec<(String, String)> {
    let Certified { certificate, key, authority } = certified;
    let files = [("CERTIFICATE", certificate), ("KEY", key), ("AUTHORITY", authority)];
    files
        .map(|(what, pem)| {
            let path = directory.join(format!("{name}.{what}.pem"));
            std::fs::write(&path, pem).unwrap();
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, permissions).unwrap();
            (format!("TESSERA_CLUSTER_{what}"), path.display().to_string())
        })
        .into()
}
