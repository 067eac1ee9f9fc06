//! A real S3 server for tests, and a proxy before it whose answers may fail.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

pub(crate) const KEY: &str = "AKIATESSERATEST";
pub(crate) const SECRET: &str = "the-secret-of-the-test";

/// Faults of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// 500 instead of doing it.
    Broken,
    /// 503 instead of doing it.
    SlowDown,
    /// The server takes a while.
    Late,
    /// The server executes the request, and half of the response arrives.
    Truncated,
    /// The connection is reset instead of doing it.
    Reset,
    /// The server executes the request, and the connection is reset instead of a response.
    LostAnswer,
    /// The server executes the request, and the connection is closed instead of a response.
    Closed,
    /// The answer comes in pieces, with time between them.
    Slow,
}

impl Fault {
    pub(crate) const ALL: [Fault; 8] = [
        Fault::Broken,
        Fault::SlowDown,
        Fault::Late,
        Fault::Truncated,
        Fault::Reset,
        Fault::LostAnswer,
        Fault::Closed,
        Fault::Slow,
    ];
}

/// Selects the fault of a request by its number and first line.
type Plan = Arc<dyn Fn(u64, &str) -> Option<Fault> + Send + Sync>;

/// A server with the empty bucket `bkt`; it ends with its runtime.
pub(crate) struct S3 {
    /// The address for clients.
    pub(crate) address: SocketAddr,
    pub(crate) directory: tempfile::TempDir,
    /// Requests that failed.
    faults: Arc<AtomicU64>,
    /// Requests for a version that is no more.
    refused: Arc<AtomicU64>,
    /// Requests that the server has answered.
    answered: Arc<AtomicU64>,
    _runtime: tokio::runtime::Runtime,
}

impl S3 {
    /// Starts a server without faults.
    pub(crate) fn start() -> S3 {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("bkt")).unwrap();
        let service = {
            let mut b = S3ServiceBuilder::new(s3s_fs::FileSystem::new(directory.path()).unwrap());
            b.set_auth(SimpleAuth::from_single(KEY, SECRET));
            b.build()
        };
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    // A client that goes away is no fault of the server.
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        let (faults, refused, answered) = Default::default();
        S3 { address, directory, faults, refused, answered, _runtime: runtime }
    }

    /// Starts a server whose requests meet the faults of `plan`.
    pub(crate) fn failing(plan: impl Fn(u64, &str) -> Option<Fault> + Send + Sync + 'static) -> S3 {
        let mut s3 = S3::start();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (server, plan): (_, Plan) = (s3.address, Arc::new(plan));
        s3.address = listener.local_addr().unwrap();
        let (faults, mut number) = (s3.faults.clone(), 0);
        let turns = Arc::new(Turns {
            server,
            refused: s3.refused.clone(),
            answered: s3.answered.clone(),
            one: RwLock::default(),
        });
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (plan, faults, turns) = (plan.clone(), faults.clone(), turns.clone());
                number += 1;
                std::thread::spawn(move || {
                    // A client that goes away is no fault of the proxy.
                    let _ = pass(client, &turns, |line| {
                        let fault = plan(number, line);
                        faults.fetch_add(fault.is_some() as u64, Relaxed);
                        fault
                    });
                });
            }
        });
        s3
    }

    /// One where `rate` of the requests meet a fault, drawn from `seed`.
    pub(crate) fn random(seed: u64, rate: f64) -> S3 {
        S3::failing(move |n, _| {
            let mut z = seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut draw = || {
                z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let x = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                x ^ (x >> 31)
            };
            let unit = (draw() >> 11) as f64 / (1u64 << 53) as f64;
            (unit < rate).then(|| Fault::ALL[draw() as usize % Fault::ALL.len()])
        })
    }

    /// Requests that failed so far.
    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Relaxed)
    }

    /// Requests so far for a version that was no more: they came through the proxy.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Requests so far that came through the proxy and that the server answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    /// `AWS_*` variables for this server.
    pub(crate) fn environment(&self, key: Option<(&str, &str)>) -> Vec<(String, String)> {
        let mut out = vec![
            ("AWS_ENDPOINT_URL".to_string(), format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP".into(), "true".into()),
            ("AWS_REGION".into(), "us-east-1".into()),
        ];
        if let Some((id, secret)) = key {
            out.push(("AWS_ACCESS_KEY_ID".into(), id.into()));
            out.push(("AWS_SECRET_ACCESS_KEY".into(), secret.into()));
        }
        out
    }

    /// The file of an object.
    pub(crate) fn path(&self, key: &str) -> PathBuf {
        self.directory.path().join("bkt").join(key)
    }
}

/// The server behind the proxy.
struct Turns {
    server: SocketAddr,
    refused: Arc<AtomicU64>,
    answered: Arc<AtomicU64>,
    /// The server writes an object's bytes, its metadata and its etag one after the other. So a writer excludes all
    /// others, and conditions hold as in a real bucket.
    one: RwLock<()>,
}

impl Turns {
    fn ask(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let reads = request.starts_with(b"GET") || request.starts_with(b"HEAD");
        let ask = || -> io::Result<Vec<u8>> {
            let mut server = TcpStream::connect(self.server)?;
            server.write_all(request)?;
            let mut answer = Vec::new();
            server.read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = match reads {
            true => {
                let _others = self.one.read().unwrap_or_else(PoisonError::into_inner);
                ask()
            }
            false => {
                let _alone = self.one.write().unwrap_or_else(PoisonError::into_inner);
                ask()
            }
        };
        self.answered.fetch_add(1, Relaxed);
        answer
    }
}

/// Passes one request on, and its answer back, each connection being for one.
fn pass(
    mut client: TcpStream,
    server: &Turns,
    fault: impl FnOnce(&str) -> Option<Fault>,
) -> io::Result<()> {
    // The last byte is peeked, not read: closing a connection with unread bytes resets it.
    let mut request = head(&mut client)?;
    let text = String::from_utf8_lossy(&request).into_owned();
    let length: usize = field(&text, "content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    let begin = request.len();
    request.resize(begin + length, 0);
    client.read_exact(&mut request[begin..])?;
    let mut last = [0];
    client.peek(&mut last)?;
    request.push(last[0]);
    let fault = fault(text.lines().next().unwrap_or_default());
    if fault == Some(Fault::Reset) {
        return Ok(());
    }
    let answer = match fault {
        Some(Fault::Broken) => refusal("500 Internal Server Error", "InternalError"),
        Some(Fault::SlowDown) => refusal("503 Service Unavailable", "SlowDown"),
        _ => {
            if fault == Some(Fault::Late) {
                std::thread::sleep(Duration::from_millis(200));
            }
            let line = text.find("\r\n").map_or(0, |at| at + 2);
            request.splice(line..line, *b"connection: close\r\n");
            let mut answer = server.ask(&request)?;
            // The server supports `If-Match` only for writes.
            let is_other = field(&text, "if-match").is_some_and(|wanted| {
                field(&String::from_utf8_lossy(&answer), "etag").is_some_and(|is| is != wanted)
            });
            if is_other && text.starts_with("GET") {
                server.refused.fetch_add(1, Relaxed);
                answer = refusal("412 Precondition Failed", "PreconditionFailed");
            }
            answer
        }
    };
    if fault == Some(Fault::LostAnswer) {
        return Ok(());
    }
    client.read_exact(&mut last)?;
    match fault {
        Some(Fault::Closed) => {}
        Some(Fault::Truncated) => {
            let body = answer.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |at| at + 4);
            let end = if body < answer.len() { (body + answer.len()) / 2 } else { body / 2 };
            client.write_all(&answer[..end])?;
        }
        Some(Fault::Slow) => {
            for piece in answer.chunks(answer.len().div_ceil(4).max(1)) {
                client.write_all(piece)?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        _ => client.write_all(&answer)?,
    }
    client.shutdown(Shutdown::Write)
}

/// Reads the head of a request but for its last byte.
fn head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(head)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let line = head
        .lines()
        .find(|l| l.split_once(':').is_some_and(|(k, _)| k.eq_ignore_ascii_case(name)))?;
    line.split_once(':').map(|(_, v)| v.trim())
}

fn refusal(status: &str, code: &str) -> Vec<u8> {
    let body = format!("<Error><Code>{code}</Code><Message>a fault of the test</Message></Error>");
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
