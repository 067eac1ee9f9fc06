//! A warehouse, and servers on it that are killed and started again while clients ask.

use crate::common::{Random, SERVE, files, names};
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The longest that a statement, or a server on its way, may take before a test calls it lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Upper bound on the time until leftovers are removed.
const LEFT_MAX: Duration = Duration::from_secs(60);

/// A server that runs.
pub(super) struct Live {
    child: Child,
    address: String,
}

/// Directories, or a bucket, that outlive servers.
pub(super) struct World {
    directory: tempfile::TempDir,
    s3: Option<S3>,
    live: Mutex<Option<Live>>,
    binary: PathBuf,
    /// Requests that wait for their answer.
    asking: AtomicU64,
    figures: Mutex<Figures>,
}

/// Events of the servers of a world.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Figures {
    /// Statements that were acknowledged.
    acknowledged: u64,
    /// Servers that were killed under their clients.
    kills: u64,
    /// Killed servers that had not answered all requests.
    kills_amid_requests: u64,
    /// Requests to the bucket that failed.
    pub(super) faults: u64,
}

impl Figures {
    pub(super) fn add(&mut self, more: Figures) {
        self.acknowledged += more.acknowledged;
        self.kills += more.kills;
        self.kills_amid_requests += more.kills_amid_requests;
        self.faults += more.faults;
    }
}

/// The program of these tests, which has fail-points.
pub(super) fn own_binary() -> PathBuf {
    env!("CARGO_BIN_EXE_tessera").into()
}

/// A response of a server.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_string()
    }
}

impl World {
    /// A warehouse in a directory, or in a bucket, and the program of its servers.
    pub(super) fn new(binary: PathBuf, s3: Option<S3>) -> World {
        let directory = tempfile::tempdir().unwrap();
        for name in ["spill", "output"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        World {
            directory,
            s3,
            live: Mutex::default(),
            binary,
            asking: AtomicU64::new(0),
            figures: Mutex::default(),
        }
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

    fn command(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .arg("--spill-dir")
            .arg(self.path("spill"))
            .args(["--memory-limit", "49MiB", "--threads", "2", "--warehouse"])
            .envs(environment.iter().copied());
        match &self.s3 {
            Some(s3) => command.arg("s3://bkt/warehouse").envs(s3.environment(Some((KEY, SECRET)))),
            None => command.arg(self.path("warehouse")),
        };
        command.args(SERVE).args(["--listen", "127.0.0.1:0"]);
        command
    }

    /// Starts a server; false if it ended before it listened.
    pub(super) fn start(&self, environment: &[(&str, &str)]) -> bool {
        let mut child = self.command(environment).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("http://")?.1.split(' ').next()?.to_string()));
        let Some(address) = address else {
            child.wait().unwrap();
            return false;
        };
        // The rest of its messages must not fill the pipe; on request they are printed.
        let shown = std::env::var_os("TESSERA_CHAOS_SHOW").is_some();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).filter(|_| shown).for_each(|l| eprintln!("{l}"))
        });
        *self.live.lock().unwrap() = Some(Live { child, address });
        true
    }

    /// Kills the server, as `kill -9` does.
    pub(super) fn kill(&self) {
        if let Some(mut live) = self.live.lock().unwrap().take() {
            live.child.kill().unwrap();
            live.child.wait().unwrap();
        }
    }

    /// True if the server ended by itself.
    pub(super) fn is_dead(&self) -> bool {
        match &mut *self.live.lock().unwrap() {
            Some(live) => live.child.try_wait().unwrap().is_some(),
            None => true,
        }
    }

    /// Asks the server that runs now; `None` if it did not answer, or not to the end.
    pub(super) fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Option<Reply> {
        self.asking.fetch_add(1, Relaxed);
        let reply = self.asked(method, path, headers, body);
        self.asking.fetch_sub(1, Relaxed);
        reply
    }

    fn asked(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Option<Reply> {
        let address = self.live.lock().unwrap().as_ref()?.address.clone();
        asked_at(&address, PATIENCE, method, path, headers, body)
    }

    /// The same until a server answers that has no reason to be asked later.
    pub(super) fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let start = Instant::now();
        loop {
            let reply = self.try_ask(method, path, headers, body);
            let later = |r: &Reply| matches!(r.status, 429 | 503);
            if let Some(reply) = reply.filter(|r| !later(r) || start.elapsed() > PATIENCE) {
                return reply;
            }
            assert!(start.elapsed() < PATIENCE, "no answer: {method} {path}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(super) fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", b"")
    }

    /// Submits a statement under a name of its own, as often as it takes; its id.
    pub(super) fn submit(&self, sql: &str, name: &str) -> String {
        let body = json!({"sql": sql, "wait_ms": 0, "request_id": name}).to_string();
        let reply = self.ask("POST", "/v1/statements", "", body.as_bytes());
        let v = reply.json();
        // A statement that ends at once returns its error with its id.
        let id = v["id"].as_str().or(v["error"]["statement_id"].as_str());
        self.figures.lock().unwrap().acknowledged += 1;
        id.unwrap_or_else(|| panic!("{sql}: {} {}", reply.status, reply.text())).to_string()
    }

    /// How a statement ended.
    pub(super) fn end(&self, id: &str) -> Value {
        let start = Instant::now();
        loop {
            let reply = self.get(&format!("/v1/statements/{id}?wait_ms=2000"));
            let status = reply.json();
            assert_eq!(reply.status, 200, "{id} was acknowledged: {}", reply.text());
            if matches!(status["state"].as_str(), Some("FINISHED" | "FAILED" | "CANCELLED")) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it hangs: {status}");
        }
    }

    /// The answer of a statement that has to be finished.
    pub(super) fn result(&self, id: &str) -> String {
        let status = self.end(id);
        assert_eq!(status["state"], "FINISHED", "{status}");
        let start = Instant::now();
        loop {
            let reply = self.get(&format!("/v1/statements/{id}/result?format=json"));
            if reply.status == 200 {
                return reply.text();
            }
            // A server that was started since computes it again.
            assert!(reply.code() == "not_finished", "{id}: {}", reply.text());
            assert!(start.elapsed() < PATIENCE, "{id}: {}", reply.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a statement to its good end.
    pub(super) fn run(&self, sql: &str, name: &str) -> (String, String) {
        let id = self.submit(sql, name);
        let result = self.result(&id);
        (id, result)
    }

    /// Names of the catalog.
    pub(super) fn tensors(&self) -> Vec<String> {
        let all = self.get("/v1/tensors").json();
        let all = all["tensors"].as_array().unwrap_or_else(|| panic!("{all}")).clone();
        let mut all: Vec<String> =
            all.iter().map(|t| t["name"].as_str().unwrap().to_string()).collect();
        all.sort();
        all
    }

    /// Files of the warehouse and of the output, and of spilled chunks.
    pub(super) fn left(&self) -> Vec<String> {
        let root = match &self.s3 {
            Some(s3) => s3.path(""),
            None => self.directory.path().to_path_buf(),
        };
        left_below(&root, self.directory.path())
    }

    /// Forgets all statements, drops all tensors and starts a last server. Then only `kept` is left.
    pub(super) fn is_clean(&self, kept: &[String]) {
        for s in self.get("/v1/statements").json()["statements"].as_array().unwrap() {
            let id = s["id"].as_str().unwrap();
            self.ask("DELETE", &format!("/v1/statements/{id}"), "", b"");
        }
        for name in self.tensors() {
            let reply = self.ask("DELETE", &format!("/v1/tensors/{name}"), "", b"");
            assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        }
        self.kill();
        let others = || but_for_epochs(self.left());
        // One server forgets the statements; the next one finds that no entry names their cells.
        let forgotten = || !self.left().iter().any(|f| f.starts_with("warehouse/statements/"));
        for is_done in [&forgotten as &dyn Fn() -> bool, &|| others() == kept] {
            assert!(self.start(&[("TESSERA_RESULT_TTL", "1")]));
            let start = Instant::now();
            while !is_done() {
                let left = others();
                assert!(
                    start.elapsed() < LEFT_MAX,
                    "left: {left:#?}\nand only these belong there: {kept:#?}"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            self.kill();
        }
    }

    /// Requests that the bucket has answered.
    pub(super) fn answered(&self) -> u64 {
        self.s3.as_ref().map_or(0, S3::answered)
    }

    /// The file of an object of the bucket.
    pub(super) fn object(&self, key: &str) -> PathBuf {
        self.s3.as_ref().unwrap().path(key)
    }

    /// The events so far.
    pub(super) fn figures(&self) -> Figures {
        let faults = self.s3.as_ref().map_or(0, S3::faults);
        Figures { faults, ..*self.figures.lock().unwrap() }
    }

    /// Kills the server after a while, and starts the next one, `times` times, unless all is over before.
    pub(super) fn torment(&self, r: &mut Random, times: u64, is_over: impl Fn() -> bool) {
        for _ in 0..times {
            let (start, wait) = (Instant::now(), Duration::from_millis(r.next() % 600));
            while start.elapsed() < wait {
                if is_over() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            {
                let figures = &mut *self.figures.lock().unwrap();
                figures.kills += 1;
                figures.kills_amid_requests += (self.asking.load(Relaxed) > 0) as u64;
            }
            self.kill();
            assert!(self.start(&[]));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Files of a warehouse and of outputs below a root, of outputs below a directory, and of spilled chunks there.
pub(crate) fn left_below(root: &Path, directory: &Path) -> Vec<String> {
    let (output, spill) = (directory.join("output"), directory.join("spill"));
    let mut all: Vec<PathBuf> = files(&root.join("warehouse"));
    all.extend(files(&root.join("output")));
    all.extend(files(&output));
    let mut left: Vec<String> =
        all.iter().map(|f| f.strip_prefix(root).unwrap_or(f).display().to_string()).collect();
    // The lock and the directory of the server that lives may be there.
    let spilled = files(&spill);
    left.extend(spilled.iter().filter(|f| !f.ends_with("lock")).map(|f| f.display().to_string()));
    if names(&spill).len() > 1 {
        left.push(format!("{:?}", names(&spill)));
    }
    left.sort();
    left.dedup();
    left
}

/// The files without those of a warehouse that has no statements and tensors.
pub(crate) fn but_for_epochs(left: Vec<String>) -> Vec<String> {
    let (epochs, rest): (Vec<String>, Vec<String>) =
        left.into_iter().partition(|f| f.starts_with("warehouse/epochs/"));
    let rest = rest.into_iter().filter(|f| f != "warehouse/warehouse.json");
    let numbers = epochs.iter().filter(|f| f.ends_with(".json")).count();
    rest.chain((numbers > 1).then(|| format!("{epochs:?}"))).collect()
}

/// The response of a server; `None` if the response is not complete in time.
pub(crate) fn asked_at(
    address: &str,
    most: Duration,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(most)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    whole(&bytes)
}

/// A response, if it is complete.
fn whole(bytes: &[u8]) -> Option<Reply> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.get(9..12)?.parse().ok()?;
    let mut rest = &bytes[end + 4..];
    if !head.contains("transfer-encoding: chunked") {
        let length = head.lines().find_map(|l| l.strip_prefix("content-length: "))?;
        let is_whole = rest.len() == length.trim().parse::<usize>().ok()?;
        return is_whole.then(|| Reply { status, body: rest.to_vec() });
    }
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let size =
            usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?.trim(), 16).ok()?;
        if size == 0 {
            return Some(Reply { status, body });
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 4 + size..)?;
    }
}
