//! A warehouse with two servers, of which one is live, and their workers.

use crate::chaos::world::{Reply, asked_at, but_for_epochs, left_below};
use crate::cluster::{free_port, left_on};
use crate::common::{SERVE, binary, names, until};
use crate::s3::{KEY, S3, SECRET};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The longest that a statement, or a server on its way, may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);
/// Upper bound on the time for a response; a stopped server sends none.
const ANSWER: Duration = Duration::from_secs(10);
/// Upper bound on the time until leftovers are removed.
const LEFT_MAX: Duration = Duration::from_secs(90);

/// A process, which dies with this.
struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL also ends a stopped process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server, and where clients reach it.
struct Server {
    process: Process,
    address: String,
}

pub(super) struct World {
    directory: tempfile::TempDir,
    s3: Option<S3>,
    /// The addresses at which workers join each server.
    joins: [String; 2],
    servers: [Mutex<Option<Server>>; 2],
    workers: Mutex<Vec<Process>>,
    started: AtomicUsize,
}

impl World {
    pub(super) fn new(s3: Option<S3>) -> World {
        let directory = tempfile::tempdir().unwrap();
        for name in ["spill", "output", "logs"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let joins = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
        let (servers, started) = (Default::default(), AtomicUsize::new(0));
        World { directory, s3, joins, servers, workers: Mutex::default(), started }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The path of an output of that name, as a SQL text.
    pub(super) fn output(&self, name: &str) -> String {
        match &self.s3 {
            Some(_) => format!("s3://bkt/output/{name}"),
            None => self.path("output").join(name).display().to_string(),
        }
    }

    /// The directory of the outputs.
    pub(super) fn outputs(&self) -> PathBuf {
        match &self.s3 {
            Some(s3) => s3.path("output"),
            None => self.path("output"),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .env("TESSERA_CLUSTER_SECRET_FILE", self.path("cluster.secret"))
            // On a busy machine workers are slow, and not dead.
            .env("TESSERA_WORKER_TIMEOUT", "10")
            .arg("--spill-dir")
            .arg(self.path("spill"))
            .args(["--threads", "1", "--warehouse"]);
        match &self.s3 {
            Some(s3) => command.arg("s3://bkt/warehouse").envs(s3.environment(Some((KEY, SECRET)))),
            None => command.arg(self.path("warehouse")),
        };
        command
    }

    /// Starts a process that logs into a file.
    fn spawn(&self, mut command: Command, name: String) -> Process {
        let log = self.path("logs").join(format!("{name}.log"));
        command.stderr(File::create(&log).unwrap());
        Process { child: command.spawn().unwrap(), name, log }
    }

    fn number(&self) -> usize {
        self.started.fetch_add(1, Relaxed)
    }

    /// Starts the first or the second server, and waits until it listens.
    pub(super) fn serve(&self, at: usize, flags: &[&str], environment: &[(&str, &str)]) {
        let mut command = self.command();
        command.args(["--memory-limit", "256MiB"]).args(SERVE);
        command.args(["--listen", "127.0.0.1:0", "--cluster", "--cluster-listen", &self.joins[at]]);
        command.args(flags).envs(environment.iter().copied());
        let name = format!("{:03}-server-{at}", self.number());
        let mut process = self.spawn(command, name);
        let begun = Instant::now();
        let address = loop {
            let text = std::fs::read_to_string(&process.log).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let word = whole.split("listening on http://").nth(1).and_then(|l| l.split(' ').next());
            if let Some(word) = word {
                break word.to_owned();
            }
            assert!(!process.has_ended() && begun.elapsed() < PATIENCE, "{}: {text}", process.name);
            std::thread::sleep(Duration::from_millis(5));
        };
        *self.servers[at].lock().unwrap() = Some(Server { process, address });
    }

    /// Starts a worker that knows both servers.
    pub(super) fn start_worker(&self) {
        let number = self.number();
        let [a, b] = &self.joins;
        let list = if number.is_multiple_of(2) { format!("{a},{b}") } else { format!("{b},{a}") };
        let (mut command, name) = (self.command(), format!("{number:03}-worker"));
        command.args(["--memory-limit", "128MiB", "worker", "--no-supervisor"]);
        command.args(["--scheduler", &list, "--name", &name]);
        let worker = self.spawn(command, name);
        self.workers.lock().unwrap().push(worker);
    }

    /// Kills one of the workers, or all; returns how many that were.
    pub(super) fn kill_workers(&self, one: Option<u64>) -> usize {
        let mut workers = self.workers.lock().unwrap();
        let killed: Vec<Process> = match one {
            Some(which) if !workers.is_empty() => {
                let at = which as usize % workers.len();
                vec![workers.remove(at)]
            }
            _ => workers.drain(..).collect(),
        };
        killed.len()
    }

    /// Kills a server, as `kill -9` does.
    pub(super) fn kill(&self, at: usize) {
        drop(self.servers[at].lock().unwrap().take());
    }

    pub(super) fn signal(&self, at: usize, signal: Signal) {
        if let Some(server) = &*self.servers[at].lock().unwrap() {
            server.process.signal(signal);
        }
    }

    fn address(&self, at: usize) -> Option<String> {
        self.servers[at].lock().unwrap().as_ref().map(|s| s.address.clone())
    }

    /// True if there is no such process any more.
    pub(super) fn has_ended(&self, at: usize) -> bool {
        self.servers[at].lock().unwrap().as_mut().is_none_or(|s| s.process.has_ended())
    }

    /// The response of one of the servers, if it responds.
    pub(super) fn ask_at(&self, at: usize, method: &str, path: &str, body: &[u8]) -> Option<Reply> {
        asked_at(&self.address(at)?, ANSWER, method, path, "", body)
    }

    /// The response of the live server; both servers are asked until one does not refuse.
    pub(super) fn ask(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        let begun = Instant::now();
        let mut last = String::new();
        for at in [0, 1].into_iter().cycle() {
            if let Some(reply) = self.ask_at(at, method, path, body) {
                if !matches!(reply.status, 429 | 503) {
                    return reply;
                }
                last = format!("{} {}", reply.status, reply.text());
            }
            assert!(begun.elapsed() < PATIENCE, "no answer: {method} {path}; the last one {last}");
            std::thread::sleep(Duration::from_millis(10));
        }
        unreachable!("the loop ends with an answer")
    }

    /// Submits a statement under a name of its own until it is acknowledged; its id.
    pub(super) fn submit(&self, sql: &str, name: &str) -> String {
        let body = json!({"sql": sql, "wait_ms": 0, "request_id": name}).to_string();
        let reply = self.ask("POST", "/v1/statements", body.as_bytes());
        let v = reply.json();
        let id = v["id"].as_str().or(v["error"]["statement_id"].as_str());
        id.unwrap_or_else(|| panic!("{sql}: {} {}", reply.status, reply.text())).to_string()
    }

    /// The answer of an acknowledged statement, which has to be finished.
    pub(super) fn result(&self, id: &str) -> String {
        let begun = Instant::now();
        loop {
            let reply = self.ask("GET", &format!("/v1/statements/{id}?wait_ms=1000"), b"");
            let status = reply.json();
            assert_eq!(reply.status, 200, "{id} was acknowledged: {}", reply.text());
            let state = status["state"].as_str().unwrap_or_default();
            assert!(!matches!(state, "FAILED" | "CANCELLED"), "{status}");
            if state == "FINISHED" {
                let reply =
                    self.ask("GET", &format!("/v1/statements/{id}/result?format=json"), b"");
                if reply.status == 200 {
                    return reply.text();
                }
                // A server that took over since computes it again.
                assert_eq!(reply.code(), "not_finished", "{id}: {}", reply.text());
            }
            assert!(begun.elapsed() < PATIENCE, "it hangs: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a statement to its good end.
    pub(super) fn run(&self, sql: &str, name: &str) -> String {
        self.result(&self.submit(sql, name))
    }

    fn is_live(&self, at: usize) -> bool {
        self.ask_at(at, "GET", "/readyz", b"").is_some_and(|r| r.status == 200)
    }

    /// Waits until one server is live, and no other.
    pub(super) fn live(&self) -> usize {
        let begun = Instant::now();
        loop {
            match [self.is_live(0), self.is_live(1)] {
                [true, false] => return 0,
                [false, true] => return 1,
                both => assert!(begun.elapsed() < PATIENCE, "live: {both:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Fails unless a server that is no longer live refuses changes, and names the live one.
    pub(super) fn refuses(&self, former: usize, live: usize) {
        let body = json!({"sql": "CREATE TENSOR late AS SELECT 7 AS x", "request_id": "late"});
        let url = format!("http://{}", self.address(live).unwrap());
        until("the former server refuses", PATIENCE, || {
            let submitted =
                self.ask_at(former, "POST", "/v1/statements", body.to_string().as_bytes());
            let Some(reply) = submitted else { return false };
            let refused = matches!(&*reply.code(), "fenced" | "standby");
            assert!(reply.status == 503 && refused, "{}: {}", reply.status, reply.text());
            reply.json()["error"]["server"] == *url
        });
        assert!(!self.is_live(former));
    }

    /// Starts a standby where a server is dead, or is fenced for good.
    pub(super) fn repair(&self) {
        for at in [0, 1] {
            let cluster = self.ask_at(at, "GET", "/v1/cluster", b"");
            if self.has_ended(at) || cluster.is_some_and(|r| r.json()["role"] == "fenced") {
                self.kill(at);
                self.serve(at, &["--standby"], &[]);
            }
        }
    }

    fn alive(&self) -> Vec<Value> {
        let told = self.ask_at(self.live(), "GET", "/v1/cluster", b"");
        let told = told.map_or(Value::Null, |r| r.json());
        let all = told["workers"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|w| w["state"] == "alive").collect()
    }

    /// Waits until all workers have joined.
    pub(super) fn wait_for_workers(&self) {
        let begun = Instant::now();
        let workers = self.workers.lock().unwrap().len();
        while self.alive().len() != workers {
            let late = begun.elapsed() > PATIENCE;
            assert!(!late, "of {workers} workers there are {:#?}", self.alive());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until workers have nothing of any statement.
    pub(super) fn is_quiet(&self) {
        let begun = Instant::now();
        while left_on(&self.alive()) > 0 {
            assert!(begun.elapsed() < PATIENCE, "left on workers: {:#?}", self.alive());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn left(&self) -> Vec<String> {
        let root = match &self.s3 {
            Some(s3) => s3.path(""),
            None => self.directory.path().to_path_buf(),
        };
        left_below(&root, self.directory.path())
    }

    /// Forgets all statements and drops all tensors, and ends all processes: then nothing is left but these outputs.
    pub(super) fn is_clean(&self, outputs: &[String]) {
        let told = self.ask("GET", "/v1/statements", b"").json();
        for s in told["statements"].as_array().unwrap() {
            let id = s["id"].as_str().unwrap();
            self.ask("DELETE", &format!("/v1/statements/{id}"), b"");
        }
        let told = self.ask("GET", "/v1/tensors", b"").json();
        for t in told["tensors"].as_array().unwrap() {
            let name = t["name"].as_str().unwrap();
            let reply = self.ask("DELETE", &format!("/v1/tensors/{name}"), b"");
            assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        }
        self.kill_workers(None);
        [0, 1].into_iter().for_each(|at| self.kill(at));
        // One server forgets the statements; the next one finds that no entry names their cells.
        let is_forgotten =
            |w: &World| !w.left().iter().any(|f| f.starts_with("warehouse/statements/"));
        let is_output = |f: &String| f.starts_with("output/");
        let is_bare = |w: &World| but_for_epochs(w.left()).iter().all(is_output);
        for is_done in [&is_forgotten as &dyn Fn(&World) -> bool, &is_bare] {
            self.serve(0, &[], &[("TESSERA_RESULT_TTL", "1")]);
            let begun = Instant::now();
            while !is_done(self) {
                assert!(begun.elapsed() < LEFT_MAX, "left: {:#?}", but_for_epochs(self.left()));
                std::thread::sleep(Duration::from_millis(20));
            }
            self.kill(0);
        }
        assert_eq!(names(&self.outputs()), outputs, "outputs");
    }
}
