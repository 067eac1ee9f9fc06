//! The server as clients see it: statements, sessions, slow and broken clients, and `--connect`.

use crate::common::{SERVE, tessera};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

mod clients;
mod connect;
mod inline;
mod malformed;
mod uploads;

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

    /// Starts a server with these arguments only.
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

    /// Starts a server by a command, with directories of its own.
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

    /// Like [`Server::get`]; `None` if the server hangs up, as one does whose role changes.
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

    /// True if its process runs.
    pub(crate) fn is_alive(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // The state follows the name; Z is a process that ended and was not waited for.
        stat.is_ok_and(|s| !s.rsplit(") ").next().unwrap_or_default().starts_with('Z'))
    }

    /// From now on [`Server::resident_most`] starts from the current memory.
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
    // A reset after the answer is no fault.
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
    // A client that does not wait asks later.
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

/// The paths and methods of `/openapi.json` are those that the server answers: it knows each of them, and no other.
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

#[test]
fn secrets_of_statements_are_not_shown() {
    let s = Server::start(&[], &[]);
    let sql = "SELECT 1 AS x; COPY (SELECT 1 AS x) TO '/no/such/place.csv' OPTIONS ('aws.secret_access_key' 'TOPSECRET')";
    let r = s.submit(&json!({"sql": sql}));
    assert!(!r.text().contains("TOPSECRET"), "{}", r.text());
    let r = s.get("/v1/statements");
    assert!(!r.text().contains("TOPSECRET") && r.text().contains("(hidden)"), "{}", r.text());
}
