//! A server of files over HTTP for tests: `GET` and `HEAD`, with ranges or without.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of the server's responses.
#[derive(Default)]
pub(crate) struct Answered {
    pub(crate) requests: AtomicU64,
    /// Bytes of files.
    pub(crate) bytes: AtomicU64,
    /// True if it ignores ranges.
    pub(crate) is_whole: AtomicBool,
    /// Requests wait as long as this is true.
    pub(crate) is_held: AtomicBool,
}

impl Answered {
    /// Requests and bytes since the last call.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.requests.swap(0, Relaxed), self.bytes.swap(0, Relaxed))
    }
}

/// Serves the files below a directory; it ends with the process.
pub(crate) fn serve(directory: PathBuf) -> (SocketAddr, Arc<Answered>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answered = Arc::new(Answered::default());
    let shared = answered.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (directory, shared) = (directory.clone(), shared.clone());
            std::thread::spawn(move || while answer(&stream, &directory, &shared).is_some() {});
        }
    });
    (address, answered)
}

/// Answers one request; `None` at the end of the connection.
fn answer(mut stream: &TcpStream, directory: &std::path::Path, answered: &Answered) -> Option<()> {
    let mut lines = BufReader::new(stream);
    let mut first = String::new();
    lines.read_line(&mut first).ok().filter(|n| *n > 0)?;
    let mut range = None;
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(text) = line.strip_prefix("range: bytes=") {
            range = Some(text.to_string());
        }
    }
    answered.requests.fetch_add(1, Relaxed);
    while answered.is_held.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next()?, words.next()?.trim_start_matches('/'));
    let file = std::fs::File::open(directory.join(path)).ok();
    let Some((mut file, len)) = file.and_then(|f| {
        let meta = f.metadata().ok().filter(|m| m.is_file())?;
        Some((f, meta.len()))
    }) else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").ok();
    };
    let range = range.filter(|_| !answered.is_whole.load(Relaxed));
    let (start, end) = match range.as_deref().and_then(|r| r.split_once('-')) {
        None => (0, len),
        Some(("", n)) => (len - n.parse::<u64>().ok()?.min(len), len),
        Some((a, "")) => (a.parse().ok()?, len),
        Some((a, b)) => (a.parse().ok()?, len.min(b.parse::<u64>().ok()? + 1)),
    };
    let status = match range {
        Some(_) => format!("206 Partial Content\r\ncontent-range: bytes {start}-{}/{len}", end - 1),
        None => "200 OK".into(),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"{len}\"\r\n\
         last-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\naccept-ranges: bytes\r\n\r\n",
        end - start
    );
    stream.write_all(head.as_bytes()).ok()?;
    if method == "GET" {
        let mut part = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start)).ok()?;
        file.read_exact(&mut part).ok()?;
        answered.bytes.fetch_add(end - start, Relaxed);
        stream.write_all(&part).ok()?;
    }
    Some(())
}
