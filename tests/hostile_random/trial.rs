//! A server with little memory, the requests to it, and a client that asks `SELECT 1` all the time.

use crate::common::{SERVE, number};
use crate::http::Server;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Upper bound on the memory of the process.
pub(super) const MOST: u64 = 400 * MIB;
/// Seconds that a statement may take.
const TIMEOUT_S: u64 = 2;
/// Seconds that an answer is waited for, unless `TESSERA_HOSTILE_SILENCE_S` says otherwise.
const SILENCE_S: u64 = 40;
/// Bytes of an answer that are read before the client hangs up.
const READ: u64 = 256 << 10;

/// A request: a path, a body.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// A script, answered in a format.
    pub(super) fn query(sql: impl Into<Vec<u8>>, format: &str) -> Request {
        Request { path: format!("/v1/query?format={format}"), body: sql.into() }
    }

    /// A statement with values for its parameters.
    pub(super) fn statement(sql: &str, params: &Value) -> Request {
        let body = serde_json::json!({"sql": sql, "params": params, "wait_ms": 60_000});
        Request { path: "/v1/statements".into(), body: body.to_string().into_bytes() }
    }

    /// Its beginning, for people.
    pub(super) fn shown(&self) -> String {
        let most = number("TESSERA_HOSTILE_SHOW").map_or(600, |n| n as usize);
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(most)]).into_owned();
        match self.body.len() > most {
            true => format!("{text} … ({} bytes)", self.body.len()),
            false => text,
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone)]
pub(super) struct End {
    /// 0 if the server hung up.
    pub(super) status: u16,
    /// The code of an error.
    pub(super) code: String,
    pub(super) message: String,
    /// Until the first byte of the answer.
    pub(super) took: Duration,
    /// The longest time of a `SELECT 1` during the request.
    pub(super) others: Duration,
    /// The status of a `SELECT 1` that had no answer.
    pub(super) refused: Option<u16>,
    /// The most bytes that were resident during the request.
    pub(super) most: u64,
    /// True if the process has ended.
    pub(super) died: bool,
}

impl End {
    /// The faults of the outcome, in a few words; empty without faults.
    pub(super) fn faults(&self, patience: Duration) -> Vec<String> {
        let mut faults = Vec::new();
        if self.died {
            faults.push("the server died".to_string());
        } else if self.status == 0 {
            faults.push("no answer".to_string());
        }
        // 503: it took its time.
        if self.status >= 500 && (self.status, self.code.as_str()) != (503, "timeout") {
            faults.push(format!("{} {}: {}", self.status, self.code, self.message));
        }
        if self.took > Duration::from_secs(TIMEOUT_S) + patience {
            faults.push(format!("took {:.1} s", self.took.as_secs_f64()));
        }
        if self.others > patience {
            faults.push(format!("SELECT 1 took {:.1} s", self.others.as_secs_f64()));
        }
        if let (Some(status), false) = (self.refused, self.died) {
            faults.push(format!("SELECT 1 was answered with {status}"));
        }
        if self.most > MOST {
            faults.push(format!("{} MiB were resident", self.most / MIB));
        }
        faults
    }

    /// In a line.
    pub(super) fn shown(&self) -> String {
        format!(
            "{} {} after {:.2} s, SELECT 1 in {:.2} s, {} MiB",
            self.status,
            self.code,
            self.took.as_secs_f64(),
            self.others.as_secs_f64(),
            self.most / MIB
        )
    }
}

/// A control group of its own that bounds memory; gone with it.
struct Group(PathBuf);

impl Group {
    /// `None` where this process may not make one.
    fn new(most: u64) -> Option<Group> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let name = format!("tessera-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
        let root = Path::new("/sys/fs/cgroup");
        for (below, limit) in [("", "memory.max"), ("memory", "memory.limit_in_bytes")] {
            let group = root.join(below).join(&name);
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Group(group);
            // Else it is a directory like others: where the controllers of the first version are mounted.
            if !group.0.join("cgroup.procs").exists() {
                continue;
            }
            if fs::write(group.0.join(limit), most.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed leaves it a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The server, in a control group if one can be made, and the client that asks besides.
pub(super) struct Trial {
    server: Option<Server>,
    group: Option<Group>,
    probe: Option<Probe>,
    /// The first statements of each server.
    prologue: Vec<String>,
    /// The directory that statements may write to.
    pub(super) scratch: tempfile::TempDir,
    /// Upper bound on the delay of a statement and of a `SELECT 1`.
    pub(super) patience: Duration,
}

impl Trial {
    pub(super) fn new() -> Trial {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["out", "spill", "files"] {
            fs::create_dir(scratch.path().join(name)).unwrap();
        }
        // A second on a machine that does nothing else; the tests of an ordinary run share theirs.
        let patience = number("TESSERA_HOSTILE_PATIENCE_MS").unwrap_or(30_000);
        let patience = Duration::from_millis(patience);
        let (server, group, probe, prologue) = Default::default();
        let mut trial = Trial { server, group, probe, prologue, scratch, patience };
        trial.start();
        trial
    }

    /// The bound on the memory of the process, in words.
    pub(super) fn bound(&self) -> String {
        match &self.group {
            Some(group) => format!("{} of {} MiB", group.0.display(), MOST / MIB),
            None => "VmHWM alone".into(),
        }
    }

    fn start(&mut self) {
        self.probe = None;
        self.server = None;
        // Not beside other tests: the pages of a debug build go in and out of so small a group, and all takes long.
        let is_long = ["TESSERA_HOSTILE_RANDOM", "TESSERA_HOSTILE_FILES", "TESSERA_HOSTILE_ONLY"];
        let is_long = is_long.iter().any(|name| number(name).is_some());
        self.group = is_long.then(|| Group::new(MOST)).flatten();
        let binary = crate::common::binary();
        let at = |name: &str| self.scratch.path().join(name).display().to_string();
        let mut command = match &self.group {
            Some(group) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]);
                command.arg(&group.0).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        let warehouse = tempfile::tempdir_in(self.scratch.path()).unwrap();
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .args([SERVE[0], SERVE[1], "--warehouse"])
            .arg(warehouse.keep())
            .args(["--allow-read", "tests/data", "--allow-read", &at("files")])
            .args(["--allow-write", &at("out"), "--spill-dir", &at("spill")])
            .env("TESSERA_DURABLE_LIMIT", "256MiB")
            .env("TESSERA_QUERY_TIMEOUT", TIMEOUT_S.to_string())
            .args(["--spill-limit", "1GiB", "--memory-limit", "64MiB", "--threads", "2"])
            .args(["--listen", "127.0.0.1:0"]);
        let server = Server::spawn(command);
        for sql in &self.prologue {
            let path = "/v1/query?format=json";
            drop(ask(server.address(), "POST", path, sql.as_bytes(), READ));
        }
        self.probe = Some(Probe::new(server.address().to_string()));
        self.server = Some(server);
    }

    /// Starts a new server, with these first statements.
    pub(super) fn begin(&mut self, prologue: Vec<String>) {
        self.prologue = prologue;
        self.start();
    }

    /// Sends a request, and returns its outcome. A server that died is started again.
    pub(super) fn ask(&mut self, request: &Request) -> End {
        let server = self.server.as_ref().unwrap();
        server.forget_most();
        let probe = self.probe.as_ref().unwrap();
        probe.take();
        let began = Instant::now();
        let answer = ask(server.address(), "POST", &request.path, &request.body, READ);
        let (others, refused) = probe.worst();
        let died = !server.is_alive();
        let mut end = End {
            status: 0,
            code: String::new(),
            message: String::new(),
            took: began.elapsed(),
            others,
            refused,
            most: if died { 0 } else { server.resident_most() },
            died,
        };
        if let Some(answer) = answer {
            (end.status, end.took) = (answer.status, answer.first - began);
            if answer.status != 200 {
                let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                let text = |key: &str| json["error"][key].as_str().unwrap_or_default().to_string();
                (end.code, end.message) = (text("code"), text("message"));
            }
        }
        // Bytes that one statement left are not the next one's fault.
        if died || end.status == 0 || end.most > MOST {
            self.start();
        }
        end
    }

    /// Asks for something that needs no statement.
    pub(super) fn get(&self, path: &str) -> u16 {
        let address = self.server.as_ref().unwrap().address();
        ask(address, "GET", path, b"", READ).map_or(0, |a| a.status)
    }

    /// The complete answer of a request that is sent before all others.
    pub(super) fn whole(&self, sql: &str, format: &str) -> Vec<u8> {
        let address = self.server.as_ref().unwrap().address();
        let path = format!("/v1/query?format={format}");
        let answer = ask(address, "POST", &path, sql.as_bytes(), u64::MAX).unwrap();
        assert_eq!(answer.status, 200, "{sql}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.probe = None;
        self.server = None;
    }
}

struct Answered {
    status: u16,
    first: Instant,
    body: Vec<u8>,
}

/// The status, and at most `most` bytes of the body; `None` without a response.
fn ask(address: &str, method: &str, path: &str, body: &[u8], most: u64) -> Option<Answered> {
    let mut stream = TcpStream::connect(address).ok()?;
    let silence = number("TESSERA_HOSTILE_SILENCE_S").unwrap_or(SILENCE_S);
    stream.set_read_timeout(Some(Duration::from_secs(silence))).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(60))).ok()?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    // A server that refuses the head may hang up before it has the body.
    let _ = stream.write_all(body);
    let mut bytes = vec![0; 512];
    let n = stream.read(&mut bytes).ok()?;
    let first = Instant::now();
    bytes.truncate(n);
    let _ = stream.take(most).read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.get(9..12)?.parse().ok()?;
    let mut body = bytes.split_off(end + 4);
    if head.contains("transfer-encoding: chunked") && most == u64::MAX {
        body = crate::http::unchunked(&body);
    }
    Some(Answered { status, first, body })
}

/// Asks `SELECT 1` again and again, and knows the longest that it took.
struct Probe {
    is_over: Arc<AtomicBool>,
    state: Arc<Mutex<Waited>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Waited {
    /// Since when one has been waiting.
    since: Option<Instant>,
    worst: Duration,
    /// An answer that was not right: its status.
    wrong: Option<u16>,
}

impl Probe {
    fn new(address: String) -> Probe {
        let (is_over, state) = <(Arc<AtomicBool>, Arc<Mutex<Waited>>)>::default();
        let (over, seen) = (is_over.clone(), state.clone());
        let thread = std::thread::spawn(move || {
            while !over.load(Relaxed) {
                let began = Instant::now();
                seen.lock().unwrap().since = Some(began);
                let answer = ask(&address, "POST", "/v1/query?format=csv", b"SELECT 1", READ);
                let status = answer.map_or(0, |a| a.status);
                {
                    let mut seen = seen.lock().unwrap();
                    seen.since = None;
                    seen.worst = seen.worst.max(began.elapsed());
                    if status != 200 {
                        seen.wrong = Some(status);
                    }
                }
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        Probe { is_over, state, thread: Some(thread) }
    }

    /// Begins a new observation.
    fn take(&self) {
        let mut state = self.state.lock().unwrap();
        (state.worst, state.wrong) = (Duration::ZERO, None);
    }

    /// The longest time since `take`, of requests that ended or still wait, and the status of a wrong answer.
    fn worst(&self) -> (Duration, Option<u16>) {
        let state = self.state.lock().unwrap();
        let waits = state.since.map_or(Duration::ZERO, |s| s.elapsed());
        (state.worst.max(waits), state.wrong)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
