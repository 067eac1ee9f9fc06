//! Arrays and tables of the client's program, which its statements name, at the server.
//!
//! ```text
//!   SELECT mean(x, 0) FROM x ─▶ x is a local, and unknown to the server
//!     POST /v1/sessions                            a session for the uploads of this script
//!     PUT /v1/tensors/x?temp=true                  piece by piece, from where the array is
//!     POST /v1/statements {…, "locals": session}   the statement finds x there, after the names of the catalog
//!   end of the script ─▶ DELETE /v1/sessions/…     removes all of them
//! ```
//! The session has nothing else in it. So the uploads hide no name of the catalog, scripts that run at the same time
//! have their own, and nothing is left of them after an error. An array is sent once for each script: it may have
//! changed before the next one.
//!
//! Uploads end with their server. A statement that only reads runs again then, after they were sent again, at most
//! [`REPEATS`] times. Any other statement fails with `uploads_gone`: the server that ended may have done it.

use super::{ATTEMPTS, Connection, Failure, PAUSE, PAUSE_SEVERAL, READ_TIMEOUT, RESTART};
use axum::body::Bytes;
use http_body::Frame;
use reqwest::{Method, StatusCode, header};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tessera_engine::Handle;
use tessera_engine::error::Error;
use tessera_engine::locals::Local;
use tessera_engine::session::Failure::UploadsGone;
use tessera_frontend::statement::Described;
use tessera_frontend::{Parsed, RelationRef, Statement};
use tokio::sync::mpsc;

/// The code of a statement whose uploads ended.
pub(super) const GONE: &str = "uploads_gone";
/// Runs of a statement whose uploads ended with their server.
pub(super) const REPEATS: u32 = 3;
/// Bytes of a piece of a body, and pieces that wait to be sent.
const PIECE: usize = 1 << 20;
const PIECES: usize = 4;
/// Time that a server may take to store an upload whose last piece it has.
const KEEPS: Duration = Duration::from_secs(600);
/// Time between two looks at the progress of an upload.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long the removal of the uploads may delay the end of a script.
const END: Duration = Duration::from_secs(2);

/// The uploads of a script.
pub(super) struct Uploads {
    connection: Arc<Connection>,
    /// The session of the uploads, once it exists.
    session: Option<String>,
    /// Names that were sent, and names that the catalog has.
    sent: BTreeSet<String>,
}

impl Uploads {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Uploads { connection, session: None, sent: BTreeSet::new() }
    }

    /// Sends the locals that a statement names and the catalog lacks, unless they were sent. Returns the session that
    /// has them; `None` without locals.
    pub(super) async fn send(
        &mut self,
        parsed: &Parsed,
        handle: &Handle,
    ) -> Result<Option<String>, Error> {
        if handle.locals().is_empty() {
            return Ok(None);
        }
        let started = Instant::now();
        loop {
            let connection = self.connection.clone();
            let server = connection.servers.current();
            let sent = tokio::select! {
                biased;
                () = handle.cancelled() => return Err(Error::Cancelled),
                sent = self.send_all(parsed, handle) => sent,
            };
            let Err(error) = sent else { return Ok(self.session.clone()) };
            let is_gone = error.code() == GONE;
            let goes_on = connection.servers.may_go_on(server, &error) || is_gone;
            if !goes_on || started.elapsed() > RESTART {
                return Err(error);
            }
            tracing::debug!(%error, "uploads are sent again");
            self.forget();
            tokio::time::sleep(PAUSE_SEVERAL).await;
        }
    }

    async fn send_all(&mut self, parsed: &Parsed, handle: &Handle) -> Result<(), Error> {
        let locals = handle.locals();
        for relation in relations(&parsed.statement) {
            let Some((name, local)) = locals.named(&relation) else { continue };
            if self.sent.contains(name) {
                continue;
            }
            let has = self.connection.has(name).await?;
            if has && local.goes_first() {
                return Err(Error::Unsupported {
                    construct: format!(
                        "`{name}`, which the server's catalog has, as a name of this program"
                    ),
                    hint: Some("give it another name".into()),
                });
            }
            if !has {
                let session = match self.session.clone() {
                    Some(session) => session,
                    None => {
                        let session = self.connection.new_session().await?;
                        self.session.insert(session).clone()
                    }
                };
                self.connection.upload(&session, name, local).await?;
            }
            self.sent.insert(name.to_owned());
        }
        Ok(())
    }

    /// Sends everything again for the next statement.
    pub(super) fn forget(&mut self) {
        self.session = None;
        self.sent.clear();
    }

    /// Removes the uploads, in the background if that takes long. A server that does not respond removes them when
    /// their session has been idle for long.
    pub(super) async fn end(&mut self) {
        if let Some(session) = self.session.take() {
            let ended = tokio::spawn(self.connection.clone().end_session(session));
            if tokio::time::timeout(END, ended).await.is_err() {
                tracing::debug!("uploads were not removed in time");
            }
        }
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        // Without a runtime no request can be sent.
        if let Some(session) = self.session.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(self.connection.clone().end_session(session));
        }
    }
}

/// Names of relations in a statement. Faults of the statement are left to the server.
fn relations(statement: &Statement) -> Vec<String> {
    let names = |relation| match relation {
        RelationRef::Name(name) => Some(name),
        RelationRef::Url { .. } => None,
    };
    match (statement, statement.query()) {
        (Statement::Describe(Described::Name(name)), _) => vec![name.to_string()],
        (_, Some(query)) => {
            let found = tessera_frontend::relations(query).unwrap_or_default();
            found.into_iter().filter_map(names).collect()
        }
        _ => Vec::new(),
    }
}

/// True if a statement may run twice.
pub(super) fn only_reads(statement: &Statement) -> bool {
    match statement {
        Statement::Query(_)
        | Statement::Show(_)
        | Statement::Describe(_)
        | Statement::Summarize(_) => true,
        Statement::Explain(explain) => only_reads(&explain.statement),
        _ => false,
    }
}

/// The path of a name, in which all other bytes than letters and digits are escaped.
fn path_of(name: &str) -> String {
    let mut path = String::from("/v1/tensors/");
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' => path.push(char::from(byte)),
            other => path.push_str(&format!("%{other:02X}")),
        }
    }
    path
}

impl Connection {
    /// True if the catalog, or this client's session, has a relation of this name.
    async fn has(&self, name: &str) -> Result<bool, Error> {
        match self.ask::<()>(Method::GET, &path_of(name), None).await {
            Ok(()) => Ok(true),
            Err(e) if e.code() == "not_found" => Ok(false),
            Err(e) if matches!(e.code(), "connect" | "unknown_session") => Err(e),
            // The relation exists but cannot be described: the statement that reads it reports the reason.
            Err(e) if e.class() == tessera_engine::error::Class::User => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Ends a session, with what is in it.
    pub(super) async fn end_session(self: Arc<Self>, session: String) {
        let path = format!("/v1/sessions/{session}");
        let server = self.servers.current();
        if let Err(error) = self.send(server, Method::DELETE, &path, None).await {
            tracing::debug!(%error, "a session was not ended");
        }
    }

    /// Sends a local to a session. A busy server is asked again.
    async fn upload(&self, session: &str, name: &str, local: &Local) -> Result<(), Error> {
        let path = format!("{}?temp=true", path_of(name));
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (status, text) = self.put(session, &path, local).await?;
            if status.is_success() {
                return Ok(());
            }
            if status != StatusCode::TOO_MANY_REQUESTS || attempts >= ATTEMPTS {
                let failure = Failure::read(status.as_u16(), &text);
                // The session of the uploads ended with its server; the session of this client may still exist.
                return Err(match failure.is("unknown_session") {
                    true => Error::stage(UploadsGone),
                    false => Error::stage(failure),
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Sends a local once.
    async fn put(
        &self,
        session: &str,
        path: &str,
        local: &Local,
    ) -> Result<(StatusCode, String), Error> {
        let server = self.servers.current();
        let (pieces, body) = BodyPieces::new();
        let taken = body.taken.clone();
        let mut request = self
            .sends
            .put(server.url(path))
            .header("Tessera-Session", session)
            .header(header::CONTENT_TYPE, local.media_type())
            .body(reqwest::Body::wrap(body));
        let counted = local.clone();
        let bytes = tokio::task::spawn_blocking(move || counted.sent_bytes());
        if let Some(bytes) = bytes.await.map_err(broken)?? {
            request = request.header(header::CONTENT_LENGTH, bytes);
        }
        if let Some(token) = server.token() {
            request = request.bearer_auth(token);
        }
        let local = local.clone();
        let mut writing = tokio::task::spawn_blocking(move || pieces.write(&local));
        let answer = async {
            let response = request.send().await.map_err(|e| server.unreachable(&e))?;
            let status = response.status();
            Ok((status, response.text().await.map_err(|e| server.unreachable(&e))?))
        };
        tokio::pin!(answer);
        let (mut seen, mut moved) = (0, Instant::now());
        let mut is_written = false;
        loop {
            let limit = if is_written { KEEPS } else { READ_TIMEOUT };
            tokio::select! {
                written = &mut writing, if !is_written => {
                    // A body that cannot be written is no fault of the server.
                    written.map_err(broken)??;
                    is_written = true;
                }
                // Before the end of the body it is a refusal.
                answer = &mut answer => {
                    if answer.is_err()
                        && !is_written
                        && let Ok(written) = tokio::time::timeout(END, &mut writing).await
                    {
                        written.map_err(broken)??;
                    }
                    return answer;
                }
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let now = taken.load(Relaxed);
                    if now != seen {
                        (seen, moved) = (now, Instant::now());
                    } else if moved.elapsed() > limit {
                        return Err(server.silent(limit));
                    }
                }
            }
        }
    }
}

fn broken(e: tokio::task::JoinError) -> Error {
    Error::Internal { what: format!("writing an upload ended: {e}") }
}

/// A body whose pieces come from another thread.
struct BodyPieces {
    pieces: mpsc::Receiver<Result<Bytes, CutOff>>,
    /// Number of pieces that the connection has taken.
    taken: Arc<AtomicU64>,
}

/// The body ends before it is complete.
#[derive(Debug)]
struct CutOff;

impl std::fmt::Display for CutOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the upload was not completed")
    }
}

impl std::error::Error for CutOff {}

impl http_body::Body for BodyPieces {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        let next = self.pieces.poll_recv(cx);
        next.map(|piece| {
            self.taken.fetch_add(1, Relaxed);
            piece.map(|piece| piece.map(Frame::data))
        })
    }
}

/// The end of a [`BodyPieces`] that is written to.
struct PieceWriter {
    pieces: mpsc::Sender<Result<Bytes, CutOff>>,
    piece: Vec<u8>,
}

impl BodyPieces {
    fn new() -> (PieceWriter, BodyPieces) {
        let (sender, pieces) = mpsc::channel(PIECES);
        let writer = PieceWriter { pieces: sender, piece: Vec::with_capacity(PIECE) };
        (writer, BodyPieces { pieces, taken: Arc::default() })
    }
}

impl PieceWriter {
    /// Writes a local. Ends early if its pieces have no receiver any more.
    fn write(mut self, local: &Local) -> Result<(), Error> {
        let written = local.send(&mut self);
        let last = match &written {
            Ok(()) => Ok(Bytes::from(std::mem::take(&mut self.piece))),
            Err(_) => Err(CutOff),
        };
        match self.pieces.blocking_send(last) {
            Ok(()) => written,
            // Whoever took the pieces reports why it stopped.
            Err(_) => Ok(()),
        }
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
            let sent = self.pieces.blocking_send(Ok(piece.into()));
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
