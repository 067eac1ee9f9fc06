//! A server and its workers as processes, on which everything happens that happens to processes.

mod chaos;

use crate::chaos::work::logs;
use crate::common::{Certified, Flow, Hold, SERVE, binary, carry, number, until};
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The longest that a statement may take, whatever happens to workers.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Party {
    pub(crate) child: Child,
    pub(crate) name: String,
}

impl Drop for Party {
    fn drop(&mut self) {
        // One that is stopped does not die of anything else.
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
    /// What a worker may take.
    memory: &'static str,
    /// What all parties find in their environment.
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

    /// Starts a worker that joins at an address, and fails where it is told to.
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

    /// Where the server answers.
    pub(crate) fn http(&self) -> String {
        self.http.clone()
    }

    /// Starts a worker whose process may map so many KiB.
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

    /// Starts a worker with a supervisor; it fails where it is told to.
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

    /// What a statement answers without the workers.
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

    /// Waits until so many workers or more run orders of a statement, which must not be over before: one that is not
    /// held up may be, as workers say only with their next beat that they work.
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

    /// Waits until each worker has told twice how it is: the second time it told what is so by now.
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

    /// Waits until workers have nothing of any statement, but what they retain for later ones.
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

/// What workers have of statements, but what they retain for later ones.
pub(crate) fn left_on(workers: &[Value]) -> u64 {
    let of = |w: &Value| {
        // With what the allocator adds to each chunk.
        let retained = w["retained_bytes"].as_u64().unwrap() / 2 * 3;
        w["orders"].as_u64().unwrap()
            + w["row_tasks"].as_u64().unwrap()
            + w["chunks"].as_u64().unwrap()
            + w["memory_used_bytes"].as_u64().unwrap().saturating_sub(retained)
    };
    workers.iter().map(of).sum()
}

/// What a server answers.
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
    // Chunks that workers retain of the statement before would hide what it does.
    let sql = format!("SET tessera.spread = 'all'; SET tessera.reuse = 'none'; {sql}");
    ask_at(http, "POST", "/v1/query?format=csv", &sql).unwrap()
}

/// Which operands ran for a statement, on all workers.
#[derive(Debug, Clone)]
struct Ran {
    /// Operands by stage.
    stages: Vec<u64>,
    /// The most that ran on one worker.
    most: u64,
    workers: u64,
    /// Workers that were lost.
    lost: u64,
    /// Operands that were told again as their chunks were lost.
    again: u64,
    /// Operands whose chunks workers that left handed over.
    handed_over: u64,
    /// Orders that were given to a second worker.
    copies: u64,
}

impl Ran {
    fn of(measured: &Value) -> Ran {
        let number = |v: &Value| v.as_u64().unwrap_or_default();
        let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
        let (stages, cluster) = (list(&measured["stages"]), &measured["cluster"]);
        Ran {
            stages: stages.iter().map(|s| number(&s["operands"])).collect(),
            most: list(&cluster["each"]).iter().map(|w| number(&w["operands"])).max().unwrap_or(0),
            workers: number(&cluster["workers"]),
            lost: number(&cluster["lost"]),
            again: number(&cluster["operands_again"]),
            handed_over: number(&cluster["operands_handed_over"]),
            copies: number(&cluster["copies"]),
        }
    }

    fn operands(&self) -> u64 {
        self.stages.iter().sum()
    }

    /// What may have run after losses, by what ran without any: an operand that a lost worker had, and no other, is
    /// told again. So are at most as many as one worker had, for each loss; and as many run beyond those of the plan,
    /// and once more where a worker that comes back makes for itself what is made of nothing. The inputs of a lost
    /// operand may have been freed when it had run: they are made of theirs again. So a stage before one of which
    /// operands ran again may run once more for each loss.
    fn is_bounded(&self, calm: &Ran, losses: u64, comes_back: bool) {
        assert!(calm.operands() > 0 && self.stages.len() == calm.stages.len(), "{self:?} {calm:?}");
        assert!(self.again <= losses * calm.most, "{self:?}; without a loss {calm:?}");
        if self.copies > 0 || calm.copies > 0 {
            return;
        }
        let times = losses + u64::from(comes_back);
        let more =
            self.stages.iter().zip(&calm.stages).map(|(ran, calm)| ran.saturating_sub(*calm));
        let more: Vec<u64> = more.collect();
        let last = more.iter().rposition(|more| *more > 0).unwrap_or(0);
        let is_freed = self.again > 0;
        for (stage, (more_now, of)) in more.iter().zip(&calm.stages).enumerate() {
            let of = if is_freed && stage < last { *of.max(&calm.most) } else { calm.most };
            assert!(*more_now <= of * times, "stage {stage}: {self:?}; without a loss {calm:?}");
        }
        if !is_freed {
            let most = calm.operands() + calm.most * times;
            assert!(self.operands() <= most, "{self:?}; without a loss {calm:?}");
        }
    }
}

#[test]
fn a_plan_that_runs_twice_is_out_of_bounds() {
    let ran = |stages: &[u64], again| {
        let (stages, most) = (stages.to_vec(), 16);
        Ran { stages, most, workers: 3, lost: 1, again, handed_over: 0, copies: 0 }
    };
    let calm = ran(&[24, 24, 1], 0);
    // Eight blocks were lost, and are made again.
    ran(&[32, 24, 1], 8).is_bounded(&calm, 1, false);
    // Its result was lost, after its inputs and theirs were freed.
    let all_of_one = Ran { most: 18, ..ran(&[16, 1, 1, 1, 1], 0) };
    ran(&[32, 2, 2, 2, 2], 1).is_bounded(&all_of_one, 1, false);
    for twice in [ran(&[48, 24, 1], 8), ran(&[32, 24, 1], 24), ran(&[48, 48, 2], 0)] {
        let is_bounded = || twice.is_bounded(&calm, 1, false);
        assert!(std::panic::catch_unwind(is_bounded).is_err(), "{twice:?}");
    }
    for more in [ran(&[48, 2, 2, 2, 2], 1), ran(&[32, 2, 2, 2, 2], 0)] {
        let is_bounded = || more.is_bounded(&all_of_one, 1, false);
        assert!(std::panic::catch_unwind(is_bounded).is_err(), "{more:?}");
    }
}

/// A port that nobody listens on. It is below those that the system gives to whoever asks for any, and each test has
/// another one: nobody takes it before its owner listens there.
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

/// A way to an address, on which bytes can be held up or lost.
struct Wire {
    address: String,
    state: Arc<AtomicU8>,
}

/// Bytes go through; they wait; connections break and none is made.
const OPEN: u8 = 0;
const HELD: u8 = 1;
const CUT: u8 = 2;
const GONE: u8 = 3;

impl Wire {
    fn new(to: String) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let state = Arc::new(AtomicU8::new(OPEN));
        let watched = state.clone();
        std::thread::spawn(move || {
            while watched.load(SeqCst) != GONE {
                match listener.accept() {
                    Ok((near, _)) if watched.load(SeqCst) != CUT => {
                        let Ok(far) = TcpStream::connect(&to) else { continue };
                        near.set_nonblocking(false).unwrap();
                        let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                        let (a, b) = (watched.clone(), watched.clone());
                        std::thread::spawn(move || carry(near, far, || flow(&a)));
                        std::thread::spawn(move || carry(ends.1, ends.0, || flow(&b)));
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        Wire { address, state }
    }

    fn set(&self, state: u8) {
        self.state.store(state, SeqCst);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.set(GONE);
    }
}

fn flow(state: &AtomicU8) -> Flow {
    match state.load(SeqCst) {
        OPEN => Flow::On,
        HELD => Flow::Wait,
        _ => Flow::End,
    }
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

/// What the statements answer on one machine, and how long that takes.
fn alone(cluster: &Cluster) -> Vec<(String, Duration)> {
    STATEMENTS.iter().map(|sql| timed(cluster, sql)).collect()
}

/// What a statement answers on one machine, and how long that takes.
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
    // What a worker ran is told with its next beat.
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
    // A user's error is told at once, with what is to be done.
    let wrong = cluster.query("SELECT sum(x * x * x) AS s FROM (SELECT arange(4000000) AS x) t");
    assert!(wrong.status == 400, "{}", wrong.body);
    assert_eq!(wrong.code(), "integer_overflow", "{}", wrong.body);
    assert!(wrong.body.contains("operand `combine sum`, chunk ["), "{}", wrong.body);
    // Arrays in memory, uploaded or kept, are the server's: workers have them from there.
    let temp = "CREATE TEMP TENSOR t AS SELECT random_normal([500, 300], seed => 7, chunks => [50, 300]) AS x; \
                SELECT sum(sin(x), 0)[0:3] AS s FROM t";
    let spread = cluster.query(temp);
    let embedded = cluster.ask(
        "POST",
        "/v1/query?format=csv",
        &format!("SET tessera.spread = 'none'; {temp}"),
    );
    assert_eq!((spread.status, spread.body), (200, embedded.unwrap().body));
    // One worker leaves, and nobody misses it.
    signal(&cluster.workers[0], nix::sys::signal::Signal::SIGTERM);
    assert!(cluster.workers.remove(0).child.wait().unwrap().success());
    cluster.wait_for(1);
    assert_eq!(cluster.query(STATEMENTS[0]).body, want[0]);
    assert!(cluster.events().contains(&"left".to_owned()), "{:?}", cluster.events());
    // Both are tables too; what docs/cluster.md asks is answered.
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

/// A server with sound workers and such that fail where they are told to; `None` if the binary is no debug build.
/// True, and said, if the binary has no fail-points.
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

/// The same, of workers that may take so much memory.
fn failing_with(memory: &'static str, sound: usize, failing: usize, fail: &str) -> Option<Cluster> {
    failing_in(Vec::new(), memory, sound, failing, fail)
}

/// For tests in which no worker may be lost: one that is silent for less is only slow.
pub(crate) fn patient() -> Vec<(String, String)> {
    lost_after(30)
}

/// For tests that lose workers and count them: one that is silent for fewer seconds is only slow.
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

#[test]
fn a_statement_that_kills_workers_is_ended_and_no_other() {
    let Some(cluster) = failing(0, 5, "operand.sort=abort") else { return };
    let want = alone(&cluster);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(SeqCst) || n < 4 {
                let (sql, (want, _)) = (STATEMENTS[n % 4], &want[n % 4]);
                let got = cluster.query(sql);
                assert_eq!((got.status, &got.body), (200, want), "{sql}");
                n += 1;
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let poison = cluster.query(
            "SELECT sort(x)[0] AS s FROM (SELECT random_normal([9000], seed => 1, chunks => [9000]) AS x) t",
        );
        is_over.store(true, SeqCst);
        assert!(poison.status >= 400, "{}", poison.body);
        assert_eq!(poison.code(), "poison", "{}", poison.body);
        assert!(poison.body.contains("3 workers died"), "{}", poison.body);
        others.join().unwrap();
    });
    assert_eq!(cluster.alive().len(), 2, "{}", cluster.told());
    assert!(cluster.events().contains(&"poison".to_owned()));
    cluster.is_quiet("what a poisonous statement left");
}

#[test]
fn a_statement_that_every_worker_dies_of_is_ended() {
    let Some(mut cluster) = failing(0, 0, "") else { return };
    (0..3).for_each(|_| cluster.start_supervised("operand.sort=abort"));
    cluster.wait_for(3);
    let sound = "SELECT sum(sin(x) * cos(x)) AS s FROM (SELECT random_uniform([30000000], seed => 1, chunks => [500000]) AS x) t";
    let want = cluster.alone(sound);
    let poison = "SELECT sum(sort(x, axis => 1)[:, 0]) AS s FROM (SELECT random_normal([960, 3000], seed => 1, chunks => [30, 3000]) AS x) t";
    let lost = |cluster: &Cluster| cluster.events().iter().filter(|kind| *kind == "lost").count();
    // By itself, and while all workers work for another statement too, which need not kill any more to be innocent.
    for beside in [false, true] {
        let before = lost(&cluster);
        std::thread::scope(|scope| {
            let other = beside.then(|| scope.spawn(|| cluster.query(sound)));
            std::thread::sleep(Duration::from_millis(400));
            let got = cluster.query(poison);
            assert_eq!(got.code(), "poison", "{}", got.body);
            assert!(got.body.contains(" workers died"), "{}", got.body);
            if let Some(other) = other {
                let got = other.join().unwrap();
                assert_eq!((got.status, &got.body), (200, &want));
            }
        });
        // All three at once may be a rack that restarts; two more are no accident.
        let died = lost(&cluster) - before;
        assert!((3..=7).contains(&died), "{died}: {:?}", cluster.events());
        cluster.wait_for(3);
    }
    cluster.is_quiet("what two poisonous statements left");
}

/// 120 operands, and ten that put their results together.
const FUSED: &str = "SELECT sum(sin(x)) AS s FROM (SELECT random_uniform([12000000], seed => 1, \
    chunks => [100000]) AS x) t";

#[test]
fn how_far_workers_are_is_told_while_they_run() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start_in(patient(), 0);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    // Each has half of the 120 operands. One stands still in the middle, and the other one too if it runs them instead.
    for n in [40, 100] {
        let fail = format!("{}@{n}", hold.at("operand.fused"));
        cluster.start_worker_at(&join, &[], &fail);
    }
    cluster.wait_for(2);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| cluster.query(FUSED));
        let is_told = || {
            let shown = cluster.ask("POST", "/v1/query?format=json", "SHOW QUERIES").unwrap().body;
            shown.contains(" of 130\"") && !shown.contains("\"0 of 130\"")
        };
        until("progress is told", PATIENCE, || asked.is_finished() || is_told());
        // And the states of operands on workers.
        let are_counted = || {
            let all = cluster.ask("GET", "/v1/statements", "").unwrap().json();
            let mut all = all["statements"].as_array().unwrap().iter();
            let count = |s: &Value, state| s["progress"]["operands"]["states"][state].as_u64();
            all.any(|s| count(s, "RUNNING") > Some(0) && count(s, "FREED") > Some(0))
        };
        until("states are counted", PATIENCE, || asked.is_finished() || are_counted());
        assert!(!asked.is_finished(), "nobody let it end");
        hold.let_go();
        assert_eq!(asked.join().unwrap().status, 200);
    });
}

#[test]
fn what_takes_long_is_run_by_others_too() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start_in(lost_after(5), 2);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    cluster.start_worker_at(&join, &[], &hold.at("operand.fused"));
    cluster.wait_for(3);
    let want = cluster.alone(FUSED);
    let copied = || cluster.events().iter().filter(|kind| *kind == "copied").count();
    // A third of the operands never end on the worker that has them.
    let answer = |sql: &str| {
        let before = copied();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.query(sql));
            until("it runs elsewhere", PATIENCE, || asked.is_finished() || copied() > before);
            // What puts all together may have its place there.
            hold.let_go();
            asked.join().unwrap()
        })
    };
    let got = answer(FUSED);
    assert_eq!((got.status, got.body), (200, want));
    assert!(copied() > 0, "{:?}", cluster.events());
    hold.close();
    let told = answer(&format!("EXPLAIN ANALYZE {FUSED}")).body;
    assert!(told.contains(" orders copied") && !told.contains(" 0 orders copied"), "{told}");
    cluster.is_quiet("what copies left");
}

#[test]
fn who_comes_in_the_middle_gets_work() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start_in(lost_after(5), 0);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    // In the first of several steps.
    let fail = format!("{}@10", hold.at("operand.fused"));
    (0..2).for_each(|_| cluster.start_worker_at(&join, &[], &fail));
    cluster.wait_for(2);
    let sql = "SELECT sum((x - mean(x, 0)) / std(x, 0), 1)[0:600:100] AS s FROM (SELECT random_normal([600, 1600], seed => 2, chunks => [100, 100]) AS x) t";
    let want = cluster.alone(sql);
    let http = cluster.http();
    let asked = std::thread::spawn(move || query_at(&http, sql));
    cluster.until_some_work(2, || asked.is_finished());
    cluster.start_worker(&[]);
    cluster.wait_for(3);
    hold.let_go();
    let got = asked.join().unwrap();
    assert_eq!((got.status, got.body), (200, want));
    let late = cluster.workers[2].name.clone();
    until("who came has worked", PATIENCE, || {
        let alive = cluster.alive();
        alive.iter().any(|w| w["name"] == *late && w["operands"].as_u64().unwrap() > 0)
    });
}

#[test]
fn what_a_lost_worker_had_is_made_again_and_nothing_else() {
    // Lines are sorted twice, and what is sorted second is made of all that was sorted first. A worker has eight of the
    // first 24 blocks; it dies at the fourth of those that come after them, when the others still need what it had.
    let sql = "SELECT sum(sort(rechunk(transpose(sort(x, axis => 1)), chunks => [20, 480]), axis => 1)[:, 0]) AS s FROM (SELECT random_normal([480, 480], seed => 1, chunks => [20, 480]) AS x) t";
    let (_, want, calm) = Cluster::start_in(patient(), 3).watched(sql).unwrap();
    assert_eq!((calm.workers, calm.lost, calm.again), (3, 0, 0), "{calm:?}");
    let fails = failing_in(lost_after(5), "128MiB", 2, 1, "operand.sort=abort@12");
    let Some(cluster) = fails else { return };
    let (state, answer, ran) = cluster.watched(sql).unwrap();
    assert_eq!((&*state, &answer), ("FINISHED", &want));
    assert_eq!(ran.lost, 1, "{ran:?}");
    assert!(ran.again > 0, "{ran:?}");
    ran.is_bounded(&calm, 1, false);
    for (stage, (ran_now, calm_now)) in ran.stages.iter().zip(&calm.stages).enumerate() {
        // Of each stage a third was lost at most. Both others make it again if their orders needed it at that moment.
        let most = calm_now + 2 * (calm_now.div_ceil(3) + 1);
        assert!(*ran_now <= most, "stage {stage}: {ran_now} of {calm_now}; {ran:?} {calm:?}");
    }
    cluster.is_quiet("what is left on workers");
}

#[test]
fn who_leaves_in_the_middle_hands_over_and_nothing_is_made_again() {
    // As above: what is sorted second is made of all that was sorted first. Each sort takes a tenth of a second more, so
    // that the worker leaves while the others sort what they fetch from it.
    let sql = "SELECT sum(sort(rechunk(transpose(sort(x, axis => 1)), chunks => [20, 480]), axis => 1)[:, 0]) AS s FROM (SELECT random_normal([480, 480], seed => 1, chunks => [20, 480]) AS x) t";
    let fails = failing_in(patient(), "128MiB", 0, 3, "operand.sort=sleep");
    let Some(mut cluster) = fails else { return };
    let (_, want, calm) = cluster.watched(sql).unwrap();
    assert_eq!((calm.workers, calm.lost, calm.again), (3, 0, 0), "{calm:?}");
    let (state, answer, ran) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| cluster.watched(sql).unwrap());
        // The first half of the operands are the first sorts.
        let is_half_done = || {
            let all = cluster.ask("GET", "/v1/statements", "").unwrap().json();
            let mut all = all["statements"].as_array().unwrap().iter();
            all.any(|s| {
                let of = |what: &str| s["progress"]["operands"][what].as_u64().unwrap_or(0);
                s["state"] == "RUNNING" && of("total") > 0 && 2 * of("done") >= of("total")
            })
        };
        until("half is done", PATIENCE, || asked.is_finished() || is_half_done());
        signal(&cluster.workers[0], nix::sys::signal::Signal::SIGTERM);
        asked.join().unwrap()
    });
    assert_eq!((&*state, &answer), ("FINISHED", &want));
    assert_eq!((ran.lost, ran.again), (0, 0), "{ran:?}");
    assert!(ran.handed_over > 0, "{ran:?}; {:?}", cluster.events());
    // It did not wait for its 30 s.
    let left = Instant::now();
    assert!(cluster.workers.remove(0).child.wait().unwrap().success());
    assert!(left.elapsed() < Duration::from_secs(15), "{:?}", left.elapsed());
    for kind in ["draining", "handed_over", "left"] {
        assert!(cluster.events().contains(&kind.to_owned()), "{:?}", cluster.events());
    }
    assert!(!cluster.events().contains(&"lost".to_owned()), "{:?}", cluster.events());
    cluster.is_quiet("what is left on workers");
}

#[test]
fn work_that_waits_for_workers_is_measured() {
    let fails = failing_in(patient(), "128MiB", 0, 1, "operand.fused=sleep");
    let Some(cluster) = fails else { return };
    let metric = |name: &str| -> f64 {
        let metrics = cluster.ask("GET", "/metrics", "").unwrap().body;
        let line = metrics.lines().find_map(|l| l.strip_prefix(&format!("tessera_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    };
    let waiting = || {
        ["operands", "seconds", "operand_seconds_total"]
            .map(|n| metric(&format!("cluster_waiting_{n}")))
    };
    assert_eq!(waiting(), [0.0; 3]);
    // Sixty operands of a tenth of a second and more, on one thread.
    let sql = "SELECT sum(sin(x)) AS s FROM (SELECT random_uniform([6000000], seed => 1, chunks => [100000]) AS x) t";
    let (early, late) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| cluster.query(sql));
        until("operands wait", PATIENCE, || waiting()[0] > 0.0);
        let early = waiting();
        std::thread::sleep(Duration::from_millis(1500));
        let late = waiting();
        assert_eq!(asked.join().unwrap().status, 200);
        (early, late)
    });
    assert!(early[0] <= 200.0 && late[0] < early[0], "{early:?} {late:?}");
    // By now it is known how long operands take.
    let each = late[1] / late[0];
    assert!(each > 0.05 && each < 10.0, "{each} s; {late:?}");
    assert!(late[2] > early[2], "{early:?} {late:?}");
    let idle = waiting();
    assert_eq!(idle[..2], [0.0; 2]);
    assert!(idle[2] >= late[2], "{idle:?} {late:?}");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(waiting(), idle, "what is over does not wait");
    assert_eq!(cluster.told()["waiting_operands"], 0);
}

#[test]
fn wires_that_are_cut_cost_time_only() {
    let mut cluster = Cluster::start(1);
    let wires = cluster.start_wired_worker();
    cluster.wait_for(2);
    let want = alone(&cluster);
    for (state, cut, sql) in [(CUT, &wires[..], 1), (HELD, &wires[..], 2), (CUT, &wires[..1], 3)] {
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.query(STATEMENTS[sql]));
            std::thread::sleep(want[sql].1.mul_f64(0.5));
            cut.iter().for_each(|w| w.set(state));
            let got = asked.join().unwrap();
            assert_eq!((got.status, &got.body), (200, &want[sql].0), "{}", STATEMENTS[sql]);
            // Whoever is not reached is nobody's, though it may be heard.
            until("the worker is lost", PATIENCE, || cluster.alive().len() == 1);
            let got = cluster.query(STATEMENTS[0]);
            assert_eq!((got.status, &got.body), (200, &want[0].0));
        });
        wires.iter().for_each(|w| w.set(OPEN));
        cluster.wait_for(2);
    }
}

/// More than three workers of 16 MiB hold, and what it comes to.
const LARGE: &str = "SELECT sum(abs(x + transpose(x))) AS s FROM (SELECT cumsum(random_uniform([3000, 3000], \
    seed => 5, chunks => [500, 500]), 1) AS x) t";

#[test]
fn disks_that_are_slow_or_full() {
    let all = [("spill.write=sleep", 1), ("spill.write=enospc", 1), ("spill.write=enospc", 3)];
    let mut want = None;
    for (fail, of) in all {
        let Some(cluster) = failing_with("16MiB", 3 - of, of, fail) else { return };
        let want = want.get_or_insert_with(|| cluster.alone(LARGE));
        let (is_over, mut spilled) = (AtomicBool::new(false), false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let got = cluster.query(LARGE);
                is_over.store(true, SeqCst);
                // A disk that is full ends the statement as it does on one machine, if it is needed.
                let is_right = got.status == 200 && got.body == *want && of < 3;
                let is_told = got.status >= 400
                    && fail.ends_with("enospc")
                    && got.code() == "scratch_full"
                    && got.body.contains("(worker ");
                assert!(is_right || is_told, "{fail} on {of}: {}", got.body);
            });
            while !is_over.load(SeqCst) {
                let bytes = |w: &Value| w["spilled_bytes"].as_u64().unwrap();
                spilled |= cluster.alive().iter().any(|w| bytes(w) > 0);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(spilled, of < 3, "{fail} on {of}");
        assert_eq!(cluster.query(STATEMENTS[1]).status, 200);
        cluster.is_quiet("what is left on workers");
    }
}

#[test]
fn chunks_are_compressed_by_choice() {
    let sql = "SELECT max(x * transpose(x)) AS s FROM (SELECT cumsum(reshape(arange(1000000), [1000, 1000]), 1) AS x) t";
    let sql = format!("SET tessera.chunk_bytes_target = '64KiB'; {sql}");
    let mut all = Vec::new();
    for codec in ["none", "lz4", "zstd"] {
        let environment = vec![("TESSERA_CHUNK_COMPRESSION".into(), codec.into())];
        let cluster = Cluster::start_in(environment, 2);
        let got = cluster.query(&sql);
        assert_eq!((got.status, &got.body), (200, &cluster.alone(&sql)), "{codec}");
        let count =
            |what: &str| -> u64 { cluster.alive().iter().map(|w| w[what].as_u64().unwrap()).sum() };
        cluster.is_heard();
        // Half of the chunks of 8 MB are fetched, whatever they have on the wire.
        assert!(count("fetched_bytes") > 4_000_000, "{codec}: {:#?}", cluster.alive());
        all.push(count("served_bytes"));
    }
    assert!(all[0] > 4_000_000 && all[1..].iter().all(|n| *n < all[0] * 3 / 4), "{all:?}");
}

#[test]
fn who_has_no_secret_is_nobody() {
    let mut cluster = Cluster::start(0);
    let other = cluster.path("other.secret");
    std::fs::write(&other, "another secret of many bytes").unwrap();
    let set = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&other, permissions).unwrap();
    };
    let worker = |secret: &std::path::Path| {
        let out = cluster
            .command()
            .env("TESSERA_CLUSTER_SECRET_FILE", secret)
            .args(["worker", "--scheduler", &cluster.join])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    set(0o644);
    let (status, error) = worker(&other);
    assert!(status == Some(2) && error.contains("chmod 600"), "{status:?} {error}");
    let (status, error) = worker(&cluster.path("none.secret"));
    assert!(status == Some(2) && error.contains("--cluster"), "{status:?} {error}");
    set(0o600);
    let out = cluster
        .command()
        .env("TESSERA_CLUSTER_SECRET_FILE", &other)
        .args(["worker", "--no-supervisor", "--scheduler", &cluster.join])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.contains("secret is not that"), "{error}");
    assert!(cluster.alive().is_empty());
    cluster.start_worker(&[]);
    cluster.wait_for(1);
}

/// An authority, and where a certificate of it for this machine lies.
fn certified(directory: &std::path::Path, name: &str) -> Vec<(String, String)> {
    environment_of(crate::common::certified(), directory, name)
}

/// Where a certificate lies, as parties find it in their environment.
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

#[test]
fn who_has_no_certificate_of_the_authority_is_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_in(certified(directory.path(), "ours"), 2);
    let want = cluster.alone(STATEMENTS[1]);
    assert_eq!(cluster.query(STATEMENTS[1]).body, want);
    // Neither one with another authority's certificate nor one without any comes in; both are told, or ask again.
    for environment in [certified(directory.path(), "theirs"), Vec::new()] {
        let ours = std::mem::replace(&mut cluster.environment, environment);
        cluster.start_worker(&[]);
        cluster.environment = ours;
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(cluster.alive().len(), 2);
        drop(cluster.workers.pop());
    }
    assert_eq!(cluster.query(STATEMENTS[1]).body, want);
    cluster.is_quiet("what is left on workers");
}

#[test]
fn a_store_that_fails_now_and_then_costs_time_only() {
    let s3 = S3::random(number("TESSERA_SEED").unwrap_or(20_261_123), 0.1);
    crate::slt::copy(std::path::Path::new("tests/data/cf"), &s3.path("cf"));
    let cluster = Cluster::start_in(s3.environment(Some((KEY, SECRET))), 3);
    for sql in [
        "SELECT mean(t2m, 0)[0, 0:4] AS m FROM 'AT/air.zarr'",
        "SELECT sum((precip - mean(precip, 0)) / std(precip, 0), 0)[0, 0:4] AS m FROM 'AT/air.zarr'",
        "SELECT max(precip + t2m, [1, 2])[0:4] AS m FROM 'AT/air.zarr'",
    ] {
        let want = cluster.alone(&sql.replace("AT", "tests/data/cf"));
        let got = cluster.query(&sql.replace("AT", "s3://bkt/cf"));
        assert_eq!((got.status, &got.body), (200, &want), "{sql}");
    }
    assert!(s3.faults() > 0);
    cluster.is_quiet("what is left on workers");
}

#[test]
fn a_supervisor_starts_what_dies() {
    let cluster = Cluster::start(0);
    let child = cluster
        .command()
        .args(["worker", "--scheduler", &cluster.join, "--name", "w"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut supervisor = Party { child, name: "supervisor".into() };
    cluster.wait_for(1);
    let pid = |cluster: &Cluster| cluster.alive()[0]["pid"].as_i64().unwrap() as i32;
    let first = pid(&cluster);
    assert_ne!(first, supervisor.child.id() as i32);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    let is_another = |cluster: &Cluster, than: i32| {
        cluster.alive().first().is_some_and(|w| w["pid"].as_i64() != Some(than.into()))
    };
    until("another worker is there", PATIENCE, || is_another(&cluster, first));
    // By a call too.
    let second = pid(&cluster);
    let told = cluster.ask("POST", "/v1/cluster/restart", "").unwrap();
    assert_eq!(told.json()["restarted"], 1, "{}", told.body);
    until("one more is there", PATIENCE, || is_another(&cluster, second));
    signal(&supervisor, nix::sys::signal::Signal::SIGTERM);
    assert!(supervisor.child.wait().unwrap().success());
    cluster.wait_for(0);
    assert!(cluster.events().contains(&"left".to_owned()), "{:?}", cluster.events());
}
