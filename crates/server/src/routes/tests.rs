#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use arrow::buffer::Buffer;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use tessera_engine::answer::{Answer, Reply, Surface, Tensor};
use tessera_engine::{Handle, Replies};
use tessera_planner::catalog::DimLabel;
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;

/// Answers `two` with a tensor; `wait` hangs until cancelled; `panic` panics.
#[derive(Default)]
struct Fake {
    started: AtomicUsize,
    cancelled: AtomicUsize,
}

/// Counts a wait that is dropped or cancelled before its end.
struct Waiting<'a>(&'a Fake);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

impl Engine for Fake {
    fn run<'a>(&'a self, sql: &'a str, cancel: Handle) -> Replies<'a> {
        let statements = sql.split(';').map(str::trim).filter(|s| !s.is_empty());
        futures::stream::iter(statements)
            .then(move |s| {
                let cancel = cancel.clone();
                async move {
                    match s {
                        "two" => Ok(Reply {
                            surface: Some(Surface::Tensor),
                            ..Answer::Tensors(vec![two()]).into()
                        }),
                        "wait" => {
                            let _waiting = Waiting(self);
                            self.started.fetch_add(1, Ordering::SeqCst);
                            cancel.cancelled().await;
                            Err(Error::Cancelled)
                        }
                        "ddl" => Ok(Answer::Done("created x".into()).into()),
                        "panic" => panic!("boom"),
                        _ => Err(Error::stage(tessera_planner::error::Error::Axis {
                            operation: s.into(),
                            axis: 3,
                            rank: 2,
                        })),
                    }
                }
            })
            .boxed()
    }
}

struct Fakes(Arc<Fake>);

impl Backend for Fakes {
    fn session(&self) -> Arc<dyn Engine> {
        self.0.clone()
    }
    fn host(&self) -> Option<&Arc<Host>> {
        None
    }
}

fn two() -> Tensor {
    Tensor::new(
        "v",
        DType::Float32,
        vec![DimLabel { name: Some("x".into()), coord: None }],
        Grid::single(&[2]),
        Buffer::from_vec(vec![0.1f32, f32::NAN]),
        None,
        Default::default(),
    )
    .unwrap()
}

struct Running {
    address: SocketAddr,
    fake: Arc<Fake>,
    leave: CancellationToken,
    thread: Option<std::thread::JoinHandle<Result<(), Error>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.leave.cancel();
        if let Some(t) = self.thread.take() {
            t.join().unwrap().unwrap();
        }
    }
}

fn config(settings: &[(&'static str, &str)]) -> Config {
    let mut flags: BTreeMap<&'static str, String> = BTreeMap::new();
    flags.insert("listen", "127.0.0.1:0".into());
    flags.insert("max-request", "1000".into());
    flags.extend(settings.iter().map(|(k, v)| (*k, v.to_string())));
    Config::load(&flags, [], None).unwrap()
}

fn start(settings: &[(&'static str, &str)]) -> Running {
    start_with_grace(settings, GRACE)
}

fn start_with_grace(settings: &[(&'static str, &str)], grace: Duration) -> Running {
    let fake = Arc::new(Fake::default());
    let config = config(settings);
    let server = Server::new(Arc::new(Fakes(fake.clone())), config.clone()).unwrap();
    let server = server.with_grace(grace);
    let leave = CancellationToken::new();
    let (tell, address) = std::sync::mpsc::channel();
    let thread = {
        let leave = leave.clone();
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap()
                .block_on(async {
                    let listener = Server::listen(&config).await?;
                    tell.send(listener.local_addr().unwrap()).unwrap();
                    server.serve(&listener, leave).await.map(drop)
                })
        })
    };
    Running { address: address.recv().unwrap(), fake, leave, thread: Some(thread) }
}

impl Running {
    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut s = TcpStream::connect(self.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let host = if headers.contains("Host:") {
            String::new()
        } else {
            format!("Host: {}\r\n", self.address)
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        s.write_all(head.as_bytes()).unwrap();
        // A server that refuses the head may disconnect before it has the body.
        let _ = s.write_all(body);
        s
    }

    /// Status, head and body.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        read(self.send(method, path, headers, body))
    }

    fn sql(&self, sql: &str) -> (u16, String) {
        let (status, _, body) = self.ask("POST", "/v1/query", "", sql.as_bytes());
        (status, String::from_utf8(body).unwrap())
    }
}

fn read(mut s: TcpStream) -> (u16, String, Vec<u8>) {
    let mut bytes = Vec::new();
    s.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_ascii_lowercase();
    (head[9..12].parse().unwrap(), head, bytes[end + 4..].to_vec())
}

fn until(what: impl Fn() -> bool) {
    for _ in 0..2000 {
        if what() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it never happened");
}

const TWO: &str = "{\"tensors\":[{\"name\":\"v\",\"dtype\":\"float32\",\"dims\":[\"x\"],\"shape\":[2],\"coords\":{},\"data\":[0.1,\"NaN\"]}],\"surface\":\"tensor\"}\n";

#[test]
fn queries_are_answered_in_every_format() {
    let s = start(&[]);
    assert_eq!(s.sql("two"), (200, TWO.to_string()));
    assert_eq!(s.sql("ddl; two"), (200, format!("{{\"ok\":\"created x\"}}\n{TWO}")));
    let get = |path: &str, headers: &str| s.ask("POST", path, headers, b"ddl; two");
    let (status, head, body) = get("/v1/query?format=npy", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/x-npy"), "{head}");
    assert_eq!((&body[..6], body.len()), (&b"\x93NUMPY"[..], 136));
    let (_, head, body) = get("/v1/query", "Accept: text/html;q=0.9, text/csv\r\n");
    assert!(head.contains("content-type: text/csv"), "{head}");
    assert_eq!(body, b"x,v\n0,0.1\n1,NaN\n");
    assert_eq!(get("/v1/query", "Accept: image/png\r\n").0, 406);
    assert_eq!(get("/v1/query?format=gif", "").0, 400);
    let (status, head, body) = get("/v1/query?format=parquet", "");
    assert_eq!((status, &body[..4]), (200, &b"PAR1"[..]), "{head}");
    assert_eq!(s.ask("GET", "/healthz", "", b"").0, 200);
    assert_eq!(s.ask("GET", "/readyz", "", b"").0, 200);
}

#[test]
fn statements_without_results_report_in_every_format() {
    let s = start(&[]);
    for format in ["arrow", "npy", "npz", "netcdf", "tiff", "safetensors", "parquet", "json"] {
        let path = format!("/v1/query?format={format}");
        let (status, head, body) = s.ask("POST", &path, "", b"ddl; ddl");
        assert_eq!(
            (status, &*body),
            (200, &b"{\"ok\":\"created x\"}\n{\"ok\":\"created x\"}\n"[..])
        );
        assert!(head.contains("content-type: application/json"), "{format}: {head}");
    }
}

fn error(body: &[u8]) -> serde_json::Value {
    serde_json::from_slice::<serde_json::Value>(body).unwrap()["error"].take()
}

#[test]
fn contradictory_requests_are_refused() {
    let s = start(&[]);
    let (status, _, body) = s.ask("POST", "/v1/query?format=csv&format=json", "", b"two");
    assert_eq!(status, 400);
    assert!(error(&body)["message"].to_string().contains("`format` is given twice"));
    // A compressed body is not misread.
    for (method, path) in [("POST", "/v1/query"), ("POST", "/v1/statements")] {
        let (status, _, body) = s.ask(method, path, "Content-Encoding: gzip\r\n", b"two");
        assert_eq!((status, &error(&body)["code"]), (415, &"unsupported_encoding".into()));
        assert!(error(&body)["message"].to_string().contains("`gzip`"));
    }
    assert_eq!(s.ask("POST", "/v1/query", "Content-Encoding: identity\r\n", b"two").0, 200);
    for body in [&b"[\"two\",null,null,null,null,null]"[..], b"[]", b"null", b"\"two\"", b""] {
        let (status, _, answer) = s.ask("POST", "/v1/statements", "", body);
        assert_eq!(status, 400);
        let message = error(&answer)["message"].to_string();
        assert!(message.contains("send a JSON object with `sql`"), "{message}");
    }
}

#[test]
fn every_failure_has_its_status_and_leaves_the_server_serving() {
    let s = start(&[]);
    let (status, body) = s.sql("two; mean");
    let error: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 400);
    assert_eq!(error["error"]["code"], "axis_out_of_range");
    assert_eq!(error["error"]["class"], "user");
    assert_eq!(error["error"]["hint"], "axes are 0 to 1 or -2 to -1");
    for (method, path, body, want, code) in [
        ("POST", "/v1/query", &b"panic"[..], 500, "internal"),
        ("POST", "/v1/query", b"", 400, "bad_request"),
        ("POST", "/v1/query", b"\xff", 400, "bad_request"),
        ("POST", "/v1/query", &[b' '; 1001], 413, "request_too_large"),
        ("GET", "/v1/query", b"", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", b"", 404, "not_found"),
        ("POST", "/v1/query?format=npy", b"two; two", 400, "format"),
    ] {
        let (status, _, body) = s.ask(method, path, "", body);
        let error: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &error["error"]["code"]), (want, &code.into()), "{method} {path}");
        assert!(!error["error"]["message"].to_string().contains("boom"));
    }
    assert_eq!(s.sql("two").0, 200);
}

#[test]
fn a_client_that_leaves_cancels_its_query() {
    let s = start(&[]);
    let client = s.send("POST", "/v1/query", "", b"wait");
    until(|| s.fake.started.load(Ordering::SeqCst) == 1);
    assert_eq!(s.fake.cancelled.load(Ordering::SeqCst), 0);
    client.shutdown(Shutdown::Both).unwrap();
    drop(client);
    until(|| s.fake.cancelled.load(Ordering::SeqCst) == 1);
}

#[test]
fn queries_beyond_the_places_wait_elsewhere() {
    let s = start(&[("max-queries", "1"), ("max-queued", "0")]);
    let first = s.send("POST", "/v1/query", "", b"wait");
    until(|| s.fake.started.load(Ordering::SeqCst) == 1);
    let (status, head, _) = s.ask("POST", "/v1/query", "", b"two");
    assert_eq!(status, 429);
    assert!(head.contains("retry-after: 1"), "{head}");
    assert_eq!(s.ask("GET", "/healthz", "", b"").0, 200);
    drop(first);
    until(|| s.sql("two").0 == 200);
}

#[test]
fn a_long_query_is_cancelled() {
    let s = start(&[("query-timeout", "1")]);
    let (status, body) = s.sql("wait");
    assert_eq!(status, 503);
    assert!(body.contains("\"code\":\"timeout\",\"class\":\"limit\""), "{body}");
    until(|| s.fake.cancelled.load(Ordering::SeqCst) == 1);
}

#[test]
fn strangers_are_refused() {
    let s = start(&[]);
    let ask = |headers: &str| s.ask("POST", "/v1/query", headers, b"two").0;
    assert_eq!(ask("Origin: http://evil.example\r\n"), 403);
    assert_eq!(ask("Origin: null\r\n"), 403);
    assert_eq!(ask("Host: evil.example\r\n"), 403);
    assert_eq!(ask("Host: 127.0.0.1.evil.example:80\r\n"), 403);
    assert_eq!(ask("Host: localhost:80\r\nOrigin: http://localhost:80\r\n"), 200);
    assert_eq!(ask("Host: [::1]:80\r\n"), 200);
    assert_eq!(ask("Host: [::1].evil.example\r\n"), 400);
    assert_eq!(ask("Host: [::1]:80\r\nHost: evil.example\r\n"), 400);
    assert_eq!(ask("Sec-Fetch-Site: cross-site\r\n"), 403);
    assert_eq!(ask("Sec-Fetch-Site: same-site\r\n"), 403);
    assert_eq!(ask("Sec-Fetch-Site: same-origin\r\n"), 200);
    assert_eq!(ask("Sec-Fetch-Site: none\r\n"), 200);

    let mut with_token = config(&[("listen", "0.0.0.0:0")]);
    let refused = Server::new(Arc::new(Fakes(Arc::default())), with_token.clone()).err().unwrap();
    assert_eq!(refused.to_string(), "will not listen on 0.0.0.0:0 without TLS and a token");
    assert!(refused.hint().unwrap().contains("--no-token --insecure"));
    with_token = Config::load(
        &BTreeMap::from([("listen", "0.0.0.0:0".to_string())]),
        [("TESSERA_TOKEN".to_string(), "abc".to_string())],
        None,
    )
    .unwrap();
    let refused = Server::may_listen(&with_token).unwrap_err();
    assert_eq!(refused.to_string(), "will not listen on 0.0.0.0:0 without TLS");
    let insecure = Config { insecure: true, ..with_token.clone() };
    assert!(Server::may_listen(&insecure).is_ok());
    let file = Some("certificate.pem".into());
    let secure = Config { certificate: file.clone(), key: file, ..with_token };
    assert!(Server::may_listen(&secure).is_ok());
    let refused = Server::may_listen(&Config { token: None, ..secure }).unwrap_err();
    assert_eq!(refused.to_string(), "will not listen on 0.0.0.0:0 without a token");

    let s = start(&[("token", "abc")]);
    let ask = |headers: &str| s.ask("POST", "/v1/query", headers, b"two").0;
    assert_eq!(ask(""), 401);
    assert_eq!(ask("Authorization: Bearer abd\r\n"), 401);
    assert_eq!(ask("Authorization: Basic abc\r\n"), 401);
    let told = |headers: &str| {
        error(&s.ask("POST", "/v1/query", headers, b"two").2)["message"].to_string()
    };
    assert!(told("").contains("authentication token required"));
    assert!(told("Authorization: Bearer abd\r\n").contains("wrong authentication token"));
    assert_eq!(ask("Authorization: Bearer abc\r\nHost: any.example\r\n"), 200);
    assert_eq!(ask("Authorization: Bearer abc\r\nAuthorization: Bearer abc\r\n"), 400);
    assert_eq!(ask("Authorization: Bearer abc\r\nHost: [::1].evil.example\r\n"), 400);
    assert_eq!(ask("Authorization: Bearer abc\r\nSec-Fetch-Site: cross-site\r\n"), 403);
    assert_eq!(s.ask("GET", "/v1/statements?token=abc", "", b"").0, 200);
    assert_eq!(s.ask("POST", "/v1/query?token=abc", "", b"two").0, 401);
    assert_eq!(s.ask("GET", "/healthz", "", b"").0, 200);
}

#[test]
fn a_server_that_leaves_lets_queries_end() {
    let s = start(&[]);
    let idle = s.send("POST", "/v1/query", "", b"wait");
    until(|| s.fake.started.load(Ordering::SeqCst) == 1);
    s.leave.cancel();
    // The query may run for the grace period; its client disconnects before.
    assert_eq!(s.fake.cancelled.load(Ordering::SeqCst), 0);
    drop(idle);
    until(|| s.fake.cancelled.load(Ordering::SeqCst) == 1);
    until(|| TcpStream::connect(s.address).is_err());
}

#[test]
fn a_leaving_server_answers_waiting_clients() {
    let s = start(&[]);
    let submit = |sql: &str| {
        let body = format!("{{\"sql\": \"{sql}\", \"wait_ms\": 0, \"format\": \"npy\"}}");
        let (status, _, body) = s.ask("POST", "/v1/statements", "", body.as_bytes());
        assert_eq!(status, 202);
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()["id"]
            .as_str()
            .unwrap()
            .to_string()
    };
    let get = |path: &str| s.ask("GET", path, "", b"");
    let done = submit("two");
    let runs = submit("wait");
    until(|| s.fake.started.load(Ordering::SeqCst) == 1);
    s.leave.cancel();
    until(|| get("/readyz").0 == 503);
    // Nothing new is accepted, with a time to retry.
    for (method, path, body) in [
        ("POST", "/v1/query", &b"two"[..]),
        ("POST", "/v1/statements", b"{\"sql\": \"two\"}"),
        ("POST", "/v1/sessions", b""),
        ("PUT", "/v1/tensors/x", b"x"),
        ("GET", "/v1/tensors/x", b""),
    ] {
        let (status, head, answer) = s.ask(method, path, "", body);
        assert_eq!((status, &error(&answer)["code"]), (503, &"shutting_down".into()), "{path}");
        assert!(head.contains("retry-after: 1"), "{head}");
    }
    // Accepted statements can be watched, read and cancelled.
    assert_eq!(get(&format!("/v1/statements/{done}/result")).0, 200);
    let (status, _, body) = get(&format!("/v1/statements/{runs}"));
    assert_eq!(status, 200);
    assert!(String::from_utf8(body).unwrap().contains("\"RUNNING\""));
    assert_eq!(s.ask("DELETE", &format!("/v1/statements/{runs}"), "", b"").0, 200);
    // Then the server ends.
    until(|| TcpStream::connect(s.address).is_err());
}

#[test]
fn a_query_that_a_leaving_server_cuts_may_be_tried_again() {
    let s = start_with_grace(&[], Duration::from_millis(500));
    let cut = s.send("POST", "/v1/query", "", b"wait");
    let body = b"{\"sql\": \"wait\", \"wait_ms\": 60000}";
    let waits = s.send("POST", "/v1/statements", "", body);
    until(|| s.fake.started.load(Ordering::SeqCst) == 2);
    s.leave.cancel();
    for client in [cut, waits] {
        let (status, head, body) = read(client);
        assert_eq!((status, &error(&body)["code"]), (503, &"shutting_down".into()));
        assert!(head.contains("retry-after: 1"), "{head}");
    }
}

#[test]
fn a_statement_that_a_leaving_server_leaves_to_the_next_one_has_not_failed() {
    let s = start_with_grace(&[], Duration::from_millis(500));
    let body = b"{\"sql\": \"wait\", \"wait_ms\": 0}";
    let (status, _, body) = s.ask("POST", "/v1/statements", "", body);
    assert_eq!(status, 202);
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let path = format!("/v1/statements/{}", told["id"].as_str().unwrap());
    let waits = s.send("GET", &format!("{path}?wait_ms=60000"), "", b"");
    let events = s.send("GET", &format!("{path}/events"), "", b"");
    until(|| s.fake.started.load(Ordering::SeqCst) == 1);
    s.leave.cancel();
    let (status, head, body) = read(waits);
    assert_eq!((status, &error(&body)["code"]), (503, &"shutting_down".into()));
    assert!(head.contains("retry-after: 1"), "{head}");
    let (status, _, body) = read(events);
    let body = String::from_utf8(body).unwrap();
    assert!(status == 200 && body.contains("event: progress"), "{body}");
    assert!(!body.contains("event: end") && !body.contains("FAILED"), "{body}");
}
