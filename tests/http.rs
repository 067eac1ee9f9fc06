//! The server as clients see it: statements, sessions, slow and broken clients, and `--connect`.

use crate::common::{SERVE, tessera};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

mod inline;
mod malformed;

/// Never ends by itself.
const ENDLESS: &str = "SELECT sum(sin(arange(1000000000000)::float64))";

/// A server on a port of its own; ended when the test is over.
pub(crate) struct Server {
    child: Child,
    address: String,
    _warehouse: Option<tempfile::TempDir>,
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.body
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

impl Server {
    pub(crate) fn start(flags: &[&str], environment: &[(&str, &str)]) -> Server {
        Server::start_as(&[&SERVE, flags].concat(), environment)
    }

    /// One that is started with these arguments alone.
    pub(crate) fn start_as(arguments: &[&str], environment: &[(&str, &str)]) -> Server {
        let warehouse = tempfile::tempdir().unwrap();
        let mut command = tessera();
        command
            .arg("--warehouse")
            .arg(warehouse.path())
            .args(arguments)
            .args(["--listen", "127.0.0.1:0"])
            .envs(environment.iter().copied());
        let mut server = Server::spawn(command);
        server._warehouse = Some(warehouse);
        server
    }

    /// One that a command starts, with directories of its own.
    pub(crate) fn spawn(mut command: Command) -> Server {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.split("http://").nth(1).unwrap().split(' ').next().unwrap().to_string();
        // The rest of its messages must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address, _warehouse: None }
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until its process has ended.
    pub(crate) fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses the head may hang up before it has the body.
        let _ = stream.write_all(body);
        stream
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        read(self.send(method, path, headers, body)).expect("an answer")
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", b"")
    }

    /// As [`Server::get`]; `None` if the server hangs up, as one does whose role changes.
    pub(crate) fn try_get(&self, path: &str) -> Option<Reply> {
        TcpStream::connect(&self.address).ok()?;
        read(self.send("GET", path, "", b""))
    }

    pub(crate) fn submit(&self, body: &Value) -> Reply {
        self.ask("POST", "/v1/statements", "", body.to_string().as_bytes())
    }

    /// A value of `/metrics`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find(|l| l.starts_with(name) && l[name.len()..].starts_with(' '));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Whether its process runs.
    pub(crate) fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // Behind the name stands the state; Z is one that ended and was not waited for.
        stat.is_ok_and(|s| !s.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
    }

    /// From now on [`Server::resident_most`] is that of what comes.
    pub(crate) fn forget_most(&self) {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
    }

    /// Resident bytes.
    pub(crate) fn resident(&self) -> u64 {
        self.memory("VmRSS:")
    }

    /// The most that was resident.
    pub(crate) fn resident_most(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, what: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(what)).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    }

    fn query(&self, arguments: &[&str]) -> Output {
        let url = format!("http://{}", self.address);
        tessera().arg("query").args(arguments).args(["--connect", &url]).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Status, head and body; `None` if the server hung up without an answer.
fn read(mut stream: TcpStream) -> Option<Reply> {
    let mut bytes = Vec::new();
    // A reset after the answer is none of ours.
    let _ = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let status = head.get(9..12)?.parse().ok()?;
    let mut body = bytes[end + 4..].to_vec();
    if head.contains("transfer-encoding: chunked") {
        body = unchunked(&body);
    }
    Some(Reply { status, head, body })
}

pub(crate) fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = &bytes[end + 4 + size..];
    }
    out
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "it never happened: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_statement_from_its_start_to_its_end() {
    let s = Server::start(&[], &[]);
    // Small results come at once.
    let r = s.submit(&json!({"sql": "SELECT sum(arange(5)) AS s"}));
    assert_eq!(r.status, 200, "{}", r.text());
    let v = r.json();
    assert_eq!((&v["state"], &v["result"]["tensors"][0]["data"]), (&json!("FINISHED"), &json!(10)));
    // Who does not wait looks later.
    let r = s.submit(&json!({"sql": "SELECT arange(6) AS x", "wait_ms": 0}));
    let id = r.json()["id"].as_str().unwrap().to_string();
    let path = format!("/v1/statements/{id}");
    let v = s.get(&format!("{path}?wait_ms=30000")).json();
    assert_eq!((&v["state"], &v["next"]), (&json!("FINISHED"), &json!(format!("{path}/result"))));
    assert_eq!(v["progress"]["operands"]["done"], v["progress"]["operands"]["total"]);
    let csv = s.get(&format!("{path}/result?format=csv"));
    assert_eq!(csv.text(), "dim_0,x\n0,0\n1,1\n2,2\n3,3\n4,4\n5,5\n");
    let npy = s.ask("GET", &format!("{path}/result"), "Accept: application/x-npy\r\n", b"");
    assert!(npy.head.contains("content-type: application/x-npy"), "{}", npy.head);
    assert_eq!((&npy.body[..6], npy.body.len()), (&b"\x93NUMPY"[..], 128 + 48));
    assert_eq!(s.get(&format!("{path}/result?format=nope")).status, 400);
    let plan = s.get(&format!("{path}/plan")).json();
    assert_eq!((&plan["surface"], &plan["state"]), (&json!("tensor"), &json!("FINISHED")));
    assert!(plan["measured"]["stages"][0]["operands"].as_u64().unwrap() > 0, "{plan}");
    let events = s.get(&format!("{path}/events"));
    assert!(events.text().starts_with("event: end\ndata: {"), "{}", events.text());
    // Its result goes when it is deleted, twice if need be.
    for _ in 0..2 {
        assert_eq!(s.ask("DELETE", &path, "", b"").status, 200);
    }
    assert_eq!(s.get(&format!("{path}/result")).json()["error"]["code"], "result_gone");
    assert_eq!(s.get("/v1/statements/nope").json()["error"]["code"], "unknown_statement");
    // A failure is the answer.
    let r = s.submit(&json!({"sql": "SELECT nope FROM 'tests/data/cf/air.zarr'"}));
    let e = &r.json()["error"];
    assert_eq!(
        (r.status, &e["code"], &e["position"]["column"]),
        (400, &json!("unknown_name"), &json!(8))
    );
    assert!(e["statement_id"].is_string());
    // Text formats inline, others by `next`.
    let r = s.submit(&json!({"sql": "SELECT arange(2) AS x", "format": "csv"})).json();
    assert_eq!(r["result"], "dim_0,x\n0,0\n1,1\n");
    assert_eq!(s.submit(&json!({"sql": "SELECT arange(2) AS x", "format": "npy"})).status, 202);
    let r = s.submit(&json!({"sql": "SELECT arange(2) AS x; SELECT 3 AS y"})).json();
    assert_eq!(r["result"][1]["rows"][0][0], 3);
}

/// `layout=chunks`: a row for each chunk, with where it begins; together they are the tensor.
#[test]
fn arrow_comes_in_chunks() {
    use arrow::array::AsArray;
    use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
    let s = Server::start(&[], &[]);
    let ask = |path: &str, sql: &str| s.ask("POST", path, "", sql.as_bytes());
    let chunks = "/v1/query?format=arrow&layout=chunks";
    // On a grid of its own, and in one piece.
    let cut = "SELECT rechunk(reshape(arange(35), [5, 7]) + 0.0, chunks => [2, 3]) AS v";
    for sql in [cut, "SELECT reshape(arange(35), [5, 7]) + 0.0 AS v"] {
        let r = ask(chunks, sql);
        assert_eq!(r.status, 200, "{}", r.text());
        assert!(r.head.contains("application/vnd.apache.arrow.stream"), "{}", r.head);
        let stream = arrow::ipc::reader::StreamReader::try_new(&r.body[..], None).unwrap();
        let schema = stream.schema();
        let marks = schema.field(1).metadata();
        assert_eq!(marks["ARROW:extension:name"], "arrow.variable_shape_tensor");
        assert!(marks["ARROW:extension:metadata"].contains("dim_names"));
        let mut seen = [false; 35];
        for batch in stream {
            let batch = batch.unwrap();
            for row in 0..batch.num_rows() {
                let origin = batch.column(0).as_list::<i32>().value(row);
                let origin = origin.as_primitive::<Int64Type>().values().to_vec();
                let both = batch.column(1).as_struct();
                let cells = both.column(0).as_list::<i32>().value(row);
                let shape = both.column(1).as_fixed_size_list().value(row);
                let shape = shape.as_primitive::<Int32Type>().values().to_vec();
                for (i, v) in cells.as_primitive::<Float64Type>().values().iter().enumerate() {
                    let (y, x) = (i as i64 / i64::from(shape[1]), i as i64 % i64::from(shape[1]));
                    let number = (origin[0] + y) * 7 + origin[1] + x;
                    assert_eq!(*v, number as f64);
                    assert!(!std::mem::replace(&mut seen[number as usize], true));
                }
            }
        }
        assert!(seen.iter().all(|s| *s), "{sql}");
    }
    assert!(ask(chunks, "DROP TENSOR IF EXISTS nothing").json()["ok"].is_string());
    for (path, sql, reason) in [
        (chunks, "SELECT * FROM CELLS(arange(3))", "the result is rows"),
        ("/v1/query?format=npy&layout=chunks", "SELECT 1", "`layout=chunks` is for"),
        ("/v1/query?format=arrow&layout=tall", "SELECT 1", "`long` or `chunks`"),
    ] {
        let r = ask(path, sql);
        assert_eq!(r.status, 400, "{}", r.text());
        assert!(r.json()["error"]["message"].as_str().unwrap().contains(reason), "{}", r.text());
    }
}

#[test]
fn parameters_are_values() {
    let s = Server::start(&[], &[]);
    let data = |body: Value| {
        let r = s.submit(&body);
        let v = r.json();
        if r.status == 200 { v["result"]["rows"][0][0].clone() } else { v["error"]["code"].clone() }
    };
    assert_eq!(data(json!({"sql": "SELECT ? - ? AS x", "params": [3, -4]})), 7);
    assert_eq!(data(json!({"sql": "SELECT $b * $a AS x", "params": {"a": 2, "b": 2.5}})), 5.0);
    assert_eq!(data(json!({"sql": "SELECT ? AS x", "params": []})), "syntax");
    // NULL is null, without a type as well.
    assert_eq!(data(json!({"sql": "SELECT ? AS x", "params": [null]})), Value::Null);
    assert_eq!(data(json!({"sql": "SELECT ? AS x", "params": [[1]]})), "bad_request");
}

#[test]
fn the_same_request_is_the_same_statement() {
    let s = Server::start(&[], &[]);
    let body = json!({"sql": "SELECT random_uniform([2]) AS x", "request_id": "a"});
    let (one, two) = (s.submit(&body).json(), s.submit(&body).json());
    assert_eq!((&one["id"], &one["result"]), (&two["id"], &two["result"]));
    let r = s.submit(&json!({"sql": "SELECT 1", "request_id": "a"}));
    assert_eq!((r.status, &r.json()["error"]["code"]), (409, &json!("request_id_reused")));
}

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
    // Who is planned first has a place first; the one that waits is the last from here on.
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
    // One by DELETE, one by SQL, one that waits; the place that is free is used for the SQL.
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
fn sessions_keep_what_is_theirs_and_expire() {
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
    // The result is still on its way, and what is held for it is bounded.
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
    // Who reads all of it gets all of it.
    let all = s.ask("POST", "/v1/query?format=npy", "", b"SELECT arange(20000000)::float64 AS x");
    assert_eq!(all.body.len(), 128 + 160_000_000);
    let last = &all.body[all.body.len() - 8..];
    assert_eq!(f64::from_le_bytes(last.try_into().unwrap()), 19_999_999.0);
    let rows = "SELECT x FROM (SELECT arange(300000) AS x) AS q WHERE x >= 0";
    let csv = s.ask("POST", "/v1/query?format=csv", "", rows.as_bytes());
    assert_eq!(csv.text().lines().count(), 300_001, "{}", csv.head);
}

#[test]
fn another_tessera_shows_what_this_one_would() {
    let s = Server::start(&[], &[]);
    let embedded = |arguments: &[&str]| {
        let warehouse = tempfile::tempdir().unwrap();
        tessera()
            .arg("--warehouse")
            .arg(warehouse.path())
            .arg("query")
            .args(arguments)
            .output()
            .unwrap()
    };
    let scripts = [
        "SELECT t2m FROM 'tests/data/cf/air.zarr'",
        "CREATE TEMP TENSOR m AS SELECT mean(t2m, axis => 'time') AS m FROM 'tests/data/cf/air.zarr'; SELECT m - 270 AS d FROM m",
        "SELECT lat, count(*) AS n, avg(t2m) AS a FROM 'tests/data/cf/air.zarr' GROUP BY lat ORDER BY lat",
        "SELECT zeros([0, 3]) AS e",
        "SELECT 1.5 AS x",
        "EXPLAIN SELECT sum(arange(10))",
        "SHOW FUNCTIONS",
    ];
    for script in scripts {
        for format in [
            "table",
            "json",
            "ndjson",
            "csv",
            "arrow",
            "npy",
            "npz",
            "netcdf",
            "tiff",
            "safetensors",
        ] {
            let (here, there) =
                (embedded(&[script, "--format", format]), s.query(&[script, "--format", format]));
            assert_eq!(
                here.status.code(),
                there.status.code(),
                "{script} {format}: {}",
                String::from_utf8_lossy(&there.stderr)
            );
            assert!(here.stdout == there.stdout, "{script} as {format}");
            assert_eq!(
                String::from_utf8_lossy(&here.stderr),
                String::from_utf8_lossy(&there.stderr)
            );
        }
    }
    for bad in [
        "SELEC 1",
        "SELECT 1;\n SELECT nope FROM 'tests/data/cf/air.zarr'",
        "SELECT ones([2]) + ones([3])",
    ] {
        let (here, there) = (embedded(&[bad]), s.query(&[bad]));
        assert_eq!(String::from_utf8_lossy(&here.stderr), String::from_utf8_lossy(&there.stderr));
        assert_eq!((here.status.code(), there.status.code()), (Some(1), Some(1)));
    }
    // Sessions of calls that are over are gone.
    assert_eq!(s.metric("tessera_sessions"), 0.0);
    assert_eq!(s.metric("tessera_result_bytes{place=\"memory\"}"), 0.0);
    let nobody =
        tessera().args(["query", "SELECT 1", "--connect", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{}", String::from_utf8_lossy(&nobody.stderr));
    let shell = tessera().args(["--connect", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(shell.status.code(), Some(3));
    let odd = tessera().args(["query", "SELECT 1", "--connect", "ftp://x"]).output().unwrap();
    assert_eq!(odd.status.code(), Some(2));
}

#[test]
fn ctrl_c_cancels_at_the_server() {
    let s = Server::start(&[], &[]);
    let url = format!("http://{}", s.address);
    let child = tessera()
        .args(["query", ENDLESS, "--connect", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("it runs there", || s.metric("tessera_statements_running") == 1.0);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
    until("it ended there", || s.metric("tessera_statements_running") == 0.0);
    assert_eq!(s.metric("tessera_statements_total{state=\"CANCELLED\"}"), 1.0);
    // A terminal that goes, or a process that is ended, leaves nothing running there either; nor does a shell.
    // Where these tests run under `nohup`, children ignore the first.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1;
    let hang_up = if ignored { "-TERM" } else { "-HUP" };
    for (signal, shell) in [(hang_up, false), ("-TERM", false), ("-TERM", true)] {
        let mut command = tessera();
        match shell {
            true => command.args(["--connect", &url]).stdin(Stdio::piped()),
            false => command.args(["query", ENDLESS, "--connect", &url]),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if shell {
            let text = format!("{ENDLESS};\n");
            child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        }
        until("it runs there", || s.metric("tessera_statements_running") > 0.0);
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert!(!child.wait_with_output().unwrap().status.success());
        until("it ended there", || s.metric("tessera_statements_running") == 0.0);
    }
}

#[test]
fn tokens_are_asked_for_and_sent() {
    let s = Server::start(&[], &[("TESSERA_TOKEN", "secret-7")]);
    assert_eq!(s.get("/v1/statements").status, 401);
    assert_eq!(s.get("/metrics").status, 401);
    assert_eq!(s.get("/healthz").status, 200);
    assert_eq!(s.get("/openapi.json").json()["openapi"], "3.1.0");
    let without = s.query(&["SELECT 1"]);
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stderr).starts_with("error[unauthorized]"));
    let with = s.query(&["SELECT 1 AS x", "--format", "csv", "--token", "secret-7"]);
    assert_eq!(String::from_utf8_lossy(&with.stdout), "x\n1\n");
}

/// The paths and methods of `/openapi.json` are what the server answers: none is unknown, and what is not there is.
#[test]
fn the_document_is_true() {
    let s = Server::start(&[], &[]);
    let document = s.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "nope").replace("{name}", "nope");
        for method in ["get", "post", "put", "delete"] {
            let r = s.ask(&method.to_ascii_uppercase(), &path, "", b"");
            let known = methods.get(method).is_some();
            assert_eq!(r.status != 405, known, "{method} {path}: {} {}", r.status, r.text());
        }
    }
    assert_eq!(s.get("/v1/nope").status, 404);
}

/// A stream of Arrow's messages.
fn arrow(columns: Vec<(&str, arrow::array::ArrayRef)>) -> Vec<u8> {
    use arrow::datatypes::{Field, Schema};
    let fields: Vec<Field> =
        columns.iter().map(|(n, a)| Field::new(*n, a.data_type().clone(), true)).collect();
    let schema = std::sync::Arc::new(Schema::new(fields));
    let columns = columns.into_iter().map(|(_, a)| a).collect();
    let batch = arrow::array::RecordBatch::try_new(schema.clone(), columns).unwrap();
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn uploads_that_would_change_are_refused_in_the_words_of_the_client() {
    use arrow::array::{ArrayRef, Int64Array, TimestampNanosecondArray, UInt64Array};
    use std::sync::Arc;
    let s = Server::start(&[], &[]);
    let put = |path: &str, body: &[u8]| {
        let r = s.ask("PUT", &format!("/v1/tensors/{path}"), "", body);
        (r.status, r.json()["error"].clone())
    };
    let v = || -> ArrayRef { Arc::new(Int64Array::from(vec![10, 20])) };
    let labels = |k: Vec<u64>| arrow(vec![("k", Arc::new(UInt64Array::from(k))), ("v", v())]);
    // Labels that would become positions.
    let (status, e) = put("ar?dims=k", &labels(vec![3, 1 << 63]));
    assert_eq!(status, 400);
    assert!(e["message"].to_string().contains("label 9223372036854775808 of dimension `k`"), "{e}");
    assert_eq!(s.get("/v1/tensors/ar").status, 404);
    assert_eq!(put("ar?dims=k", &labels(vec![3, (1 << 63) - 1])).0, 201);
    let r = s.ask("POST", "/v1/query?format=csv", "", b"SELECT * FROM ar");
    assert_eq!(r.text(), "k,v\n3,10\n9223372036854775807,20\n");
    // Moments between microseconds.
    let times = |t: Vec<i64>| {
        arrow(vec![("t", Arc::new(TimestampNanosecondArray::from(t)) as ArrayRef), ("v", v())])
    };
    let (status, e) = put("at?dims=t", &times(vec![1000, 2001]));
    assert_eq!(status, 400);
    assert!(e["message"].to_string().contains("the column `t` has a moment of 2001 ns"), "{e}");
    assert_eq!(put("at?dims=t", &times(vec![1000, 2000])).0, 201);
    let npy = |cells: [i64; 2]| {
        let header = "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }\n";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(cells.iter().flat_map(|c| c.to_le_bytes()));
        bytes
    };
    let (status, e) = put("an", &npy([0, 57]));
    assert_eq!(status, 400);
    assert!(e["message"].to_string().contains("57 ns"), "{e}");
    assert_eq!(put("an", &npy([i64::MIN, 57_000])).0, 201);
    // Nothing of what the server made of the request is told.
    let whole = npy([0, 0]);
    for (path, body, reason) in [
        ("x?dims=k,k", labels(vec![1, 2]), "`dims=k,k` names `k` twice"),
        ("x?dims=k,", labels(vec![1, 2]), "`dims=k,` has an empty name"),
        ("x?dims=k", arrow(vec![("k", v()), ("a", v()), ("a", v())]), "two columns `a`"),
        ("x?dims=k,v", labels(vec![1, 2]), "leave some"),
        ("x", whole[..whole.len() - 1].to_vec(), "in the upload: the shape [2] needs 16 bytes"),
        ("x?dims=k", labels(vec![1, 1]), "k = 1"),
        (".x", whole.clone(), "begins with a dot"),
    ] {
        let (status, e) = put(path, &body);
        assert_eq!((status, &e["position"]), (400, &Value::Null), "{path}: {e}");
        assert!(e["message"].as_str().unwrap().contains(reason), "{path}: {e}");
        assert!(!e.to_string().contains("tessera-spill"), "{path}: {e}");
    }
    let r = s.ask("PUT", "/v1/tensors/x", "Content-Encoding: gzip\r\n", &whole);
    assert_eq!((r.status, &r.json()["error"]["code"]), (415, &json!("unsupported_encoding")));
    assert_eq!(s.get("/v1/tensors/x").status, 404);
    // NumPy ignores what follows the cells, and so does an upload.
    let trailing = std::fs::read("tests/data/bad/npy_trailing.npy").unwrap();
    assert_eq!(put("x", &trailing).0, 201);
}

#[test]
fn secrets_of_statements_are_not_shown() {
    let s = Server::start(&[], &[]);
    let sql = "SELECT 1 AS x; COPY (SELECT 1 AS x) TO '/no/such/place.csv' OPTIONS ('aws.secret_access_key' 'TOPSECRET')";
    let r = s.submit(&json!({"sql": sql}));
    assert!(!r.text().contains("TOPSECRET"), "{}", r.text());
    let r = s.get("/v1/statements");
    assert!(!r.text().contains("TOPSECRET") && r.text().contains("(hidden)"), "{}", r.text());
}

#[test]
fn uploads_are_kept_whole_or_not_at_all() {
    let s = Server::start(&["--memory-limit", "64MiB"], &[]);
    // 160 MB through a server of 64 MiB.
    let n = 20_000_000u64;
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({n},), }}");
    let pad = 128 - 10 - header.len() - 1;
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend_from_slice(&118u16.to_le_bytes());
    npy.extend_from_slice(header.as_bytes());
    npy.extend(std::iter::repeat_n(b' ', pad));
    npy.push(b'\n');
    let small = |cells: &[f64], shape: u64| {
        let text = String::from_utf8(npy[10..128].to_vec()).unwrap();
        let text = text.replace(&format!("({n},)"), &format!("({shape:08},)"));
        let mut out = npy[..10].to_vec();
        out.extend_from_slice(text.as_bytes());
        out.extend(cells.iter().flat_map(|c| c.to_le_bytes()));
        out
    };
    let put =
        |body: &[u8]| s.ask("PUT", "/v1/tensors/up", "Content-Type: application/x-npy\r\n", body);
    let r = put(&small(&[1.0, 2.5], 2));
    assert_eq!(r.status, 201, "{}", r.text());
    let sum = || s.ask("POST", "/v1/query?format=csv", "", b"SELECT sum(up) AS s FROM up").text();
    assert_eq!(sum(), "s\n3.5\n");
    // Truncated, malformed, broken off: what was there stays.
    for bad in [&small(&[1.0], 2)[..], b"hello world", b"\x93NUMPY", &npy[..100], b""] {
        let r = put(bad);
        assert_eq!(r.status, 400, "{}", r.text());
    }
    let mut broken = s.connect();
    let head = format!(
        "PUT /v1/tensors/up HTTP/1.1\r\nHost: {}\r\nContent-Length: 100000\r\n\r\n",
        s.address
    );
    broken.write_all(head.as_bytes()).unwrap();
    broken.write_all(&npy[..128]).unwrap();
    drop(broken);
    assert_eq!(sum(), "s\n3.5\n");
    let mut large = s.connect();
    let head = format!(
        "PUT /v1/tensors/up HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        s.address,
        128 + n * 8
    );
    large.write_all(head.as_bytes()).unwrap();
    large.write_all(&npy).unwrap();
    let mut at = 0u64;
    while at < n {
        let piece: Vec<u8> =
            (at..(at + 100_000).min(n)).flat_map(|i| (i as f64).to_le_bytes()).collect();
        large.write_all(&piece).unwrap();
        at += 100_000;
        assert!(s.resident() < 400 << 20);
    }
    let r = read(large).unwrap();
    assert_eq!(r.status, 201, "{}", r.text());
    assert_eq!(sum(), "s\n199999990000000.0\n");
    let fields = s.get("/v1/tensors/up").json();
    assert_eq!(fields["fields"][0]["dtype"], "float64", "{fields}");
    assert!(s.get("/v1/tensors").text().contains("\"up\""));
    assert_eq!(s.ask("DELETE", "/v1/tensors/up", "", b"").status, 200);
    assert_eq!(s.get("/v1/tensors/up").status, 404);
    until("all is free", || s.metric("tessera_quota_used_bytes") == 0.0);
}
