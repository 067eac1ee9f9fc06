//! Streams results to clients, with backpressure.
//!
//! A writer runs on a thread for blocking work and sends pieces to a channel that holds two; it waits while the client
//! does not read. The memory of a stream beside the result (windows, pieces) is charged to the quota before it begins.
//! Plans are over by then, so a slow client blocks no one: its result waits in charged memory, or in a file.
//!
//! The first piece decides the status: a result that the format cannot hold is an error with its own status, not a
//! broken stream.

use super::{Parameters, Shared};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::answer::scratch::Scratch;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer, native, row_bytes};
use tessera_exec::quota::Charge;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Size of a piece in bytes.
const PIECE: usize = 256 << 10;
/// Upper bound on pieces that wait for the client.
const PIECES: usize = 2;
/// Memory of a stream beside the result: a window of each tensor and its text, and the pieces.
const STREAM_BYTES: u64 = 4 << 20;
/// Limits of small answers, in bytes and in number, that are written on the request's own task.
const SMALL_BYTES: u64 = 16 << 10;
const SMALL_REPLIES: usize = 16;
/// Streams together hold at most one part in this many of the memory.
const STREAMS_SHARE: u64 = 4;
/// Upper bound on concurrent streams, and the number that is allowed with any amount of memory.
const STREAMS_MAX: u64 = 128;
const STREAMS_MIN: u64 = 4;
/// A client that reads nothing for this time counts as disconnected.
const STALL: Duration = Duration::from_secs(60);
/// How long a stream waits for memory before it is refused.
const MEMORY_WAIT: Duration = Duration::from_secs(5);

/// Upper bound on concurrent streams with this memory limit: slow clients must leave enough for others.
pub(super) fn streams_max(limit_bytes: u64) -> usize {
    (limit_bytes / STREAMS_SHARE / STREAM_BYTES).clamp(STREAMS_MIN, STREAMS_MAX) as usize
}

/// The format of a response, or the engine's own form for another Tessera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    Format(Format),
    /// Arrow, with a row for each chunk.
    Chunks,
    Native,
}

impl Out {
    pub(super) fn parse(name: &str) -> Result<Self, Error> {
        if name == native::NAME {
            return Ok(Out::Native);
        }
        let format = Format::parse(name)?;
        // Fails before anything runs if the format cannot be written.
        Writer::new(format, Options::default(), io::sink())?;
        Ok(Out::Format(format))
    }

    /// The format of `format=` and `layout=`, else of `Accept`, else JSON.
    pub(super) fn choose(asked: &Parameters, headers: &HeaderMap) -> Result<Self, Error> {
        let out = Out::by_name(asked.text("format"), headers)?;
        match (asked.text("layout"), out) {
            (None | Some("long"), out) => Ok(out),
            (Some("chunks"), Out::Format(Format::Arrow)) => Ok(Out::Chunks),
            (Some("chunks"), _) => {
                Err(Error::Request { reason: "`layout=chunks` is for `format=arrow`".into() })
            }
            (Some(other), _) => {
                let reason = format!("`layout` is `long` or `chunks`, not `{other}`");
                Err(Error::Request { reason })
            }
        }
    }

    fn by_name(name: Option<&str>, headers: &HeaderMap) -> Result<Self, Error> {
        if let Some(name) = name {
            return Out::parse(name);
        }
        let accept = match headers.get(header::ACCEPT) {
            Some(v) => {
                v.to_str().map_err(|_| Error::Request { reason: "`Accept` is not ASCII".into() })?
            }
            None => "",
        };
        let format = Format::from_accept(accept)?.unwrap_or(Format::Json);
        Out::parse(format.name())
    }

    fn content_type(self) -> &'static str {
        match self {
            Out::Format(f) => f.content_type(),
            Out::Chunks => Format::Arrow.content_type(),
            Out::Native => native::CONTENT_TYPE,
        }
    }

    /// The same, or JSON if no statement had a result: `{"ok": …}` reports success.
    fn of(self, replies: &[Reply]) -> Self {
        let only_done = replies.iter().all(|r| matches!(r.answer, Answer::Done(_)));
        match self {
            Out::Format(f) if f.holds_one() && only_done => Out::Format(Format::Json),
            Out::Chunks if only_done => Out::Format(Format::Json),
            other => other,
        }
    }

    /// Writes answers. `scratch` is for formats that cannot write sequentially.
    pub(super) fn write<W: Write>(
        self,
        replies: Vec<Reply>,
        scratch: Option<Arc<Scratch>>,
        out: W,
    ) -> Result<W, Error> {
        let (format, arrow_chunks) = match self {
            Out::Format(format) => (format, false),
            Out::Chunks => (Format::Arrow, true),
            Out::Native => return native::write(&replies, out),
        };
        let options = Options { arrow_chunks, scratch, ..Options::default() };
        let mut writer = Writer::new(format, options, out)?;
        replies.into_iter().try_for_each(|r| writer.push(r))?;
        writer.finish()
    }

    /// Memory that writing needs beside windows and pieces: chunks and tiles that are read as a whole.
    fn held_bytes(self, replies: &[Reply]) -> u64 {
        let tensors = replies.iter().filter_map(|r| r.answer.tensors());
        match self {
            Out::Chunks => tensors.map(|t| row_bytes(&t)).max().unwrap_or(0),
            Out::Format(f) => tensors.map(|t| f.working_bytes(&t)).max().unwrap_or(0),
            Out::Native => 0,
        }
    }
}

/// Resources that a stream holds until its end.
struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _charge: Option<Charge>,
}

/// Bytes of answers in memory and on disk.
pub(super) fn bytes(replies: &[Reply]) -> (u64, u64) {
    replies.iter().map(|r| r.answer.bytes()).fold((0, 0), |(m, d), (n, e)| (m + n, d + e))
}

/// True for answers that take less time to write than to pass to another thread.
pub(super) fn is_small(replies: &[Reply]) -> bool {
    let (memory, disk) = bytes(replies);
    // Rows on disk are as long as in memory.
    memory + disk <= SMALL_BYTES && replies.len() <= SMALL_REPLIES && words(replies) <= SMALL_BYTES
}

/// Number of labels, and of nested lists, that are written beside the cells of tensors: a tensor without cells may have
/// many.
pub(super) fn words(replies: &[Reply]) -> u64 {
    let tensors = replies.iter().filter_map(|r| r.answer.tensors()).flatten();
    tensors.map(|t| words_of(&t.head().shape())).fold(0, u64::saturating_add)
}

fn words_of(shape: &[u64]) -> u64 {
    let labels = shape.iter().fold(0u64, |n, &len| n.saturating_add(len));
    let lists =
        shape.iter().take_while(|len| **len > 0).fold(1u64, |n, &len| n.saturating_mul(len));
    labels.saturating_add(if shape.contains(&0) { lists } else { 0 })
}

/// Streams answers.
///
/// # Errors
/// Too many streams, no memory for one more, answers that the format cannot hold.
pub(super) async fn respond(
    shared: &Arc<Shared>,
    replies: Vec<Reply>,
    out: Out,
) -> Result<Response, Error> {
    let out = out.of(&replies);
    let head = [(header::CONTENT_TYPE, out.content_type())];
    let scratch = shared.backend.host().map(|host| host.scratch().clone());
    if is_small(&replies) {
        let written = Bytes::from(out.write(replies, scratch, Vec::new())?);
        shared.metrics.sent(written.len());
        return Ok((StatusCode::OK, head, written).into_response());
    }
    let permit = shared.streams.clone().try_acquire_owned().map_err(|_| Error::TooManyStreams {
        limit: streams_max(shared.config.memory_limit_bytes),
    })?;
    let more = out.held_bytes(&replies);
    let held = StreamPermit { _permit: permit, _charge: reserve(shared, more).await? };
    let (sender, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    let runtime = tokio::runtime::Handle::current();
    let metrics = shared.clone();
    let mut writing = tokio::task::spawn_blocking(move || {
        let _held = held;
        let sink =
            PieceSender { sender, runtime, piece: Vec::with_capacity(PIECE), shared: metrics };
        out.write(replies, scratch, sink).and_then(PieceSender::close)
    });
    // The first piece, or the end of a writer that had nothing or failed.
    let first = pieces.recv().await;
    let failed = |r: Result<Result<(), Error>, tokio::task::JoinError>| match r {
        Ok(Err(e)) => Some(e),
        Ok(Ok(())) => None,
        Err(_) => Some(Error::Internal { what: "writing the result panicked".into() }),
    };
    let Some(first) = first else {
        return match failed((&mut writing).await) {
            Some(e) => Err(e),
            None => Ok((StatusCode::OK, head).into_response()),
        };
    };
    if first.len() < PIECE {
        // A piece that is not full is the last: the response gets a length.
        return match failed((&mut writing).await) {
            Some(e) => Err(e),
            None => Ok((StatusCode::OK, head, first).into_response()),
        };
    }
    let rest = futures::stream::unfold((pieces, Some(writing)), move |(mut pieces, writing)| {
        async move {
            let mut writing = writing?;
            if let Some(piece) = pieces.recv().await {
                return Some((Ok(piece), (pieces, Some(writing))));
            }
            // A failed writer breaks off the stream, so that the client does not take it for complete.
            let e = failed((&mut writing).await)?;
            tracing::warn!(code = e.code(), "a result broke off: {e}");
            Some((Err(io::Error::other(e.to_string())), (pieces, None)))
        }
    });
    let stream = futures::StreamExt::chain(futures::stream::iter([Ok(first)]), rest);
    Ok((StatusCode::OK, head, Body::from_stream(stream)).into_response())
}

/// Reserves memory for a stream, and `more` bytes; waits a little for others to end.
async fn reserve(shared: &Shared, more: u64) -> Result<Option<Charge>, Error> {
    let Some(host) = shared.backend.host() else { return Ok(None) };
    let quota = host.runtime().quota();
    let bytes = STREAM_BYTES.min(quota.limit() / STREAMS_SHARE / STREAMS_MIN).saturating_add(more);
    let account = quota.account();
    let until = tokio::time::Instant::now() + MEMORY_WAIT;
    loop {
        if let Some(charge) = account.try_reserve(bytes) {
            return Ok(Some(charge));
        }
        if tokio::time::Instant::now() >= until {
            return Err(Error::MemoryBusy { wanted_bytes: bytes, limit_bytes: quota.limit() });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Collects pieces and waits for the client.
struct PieceSender {
    sender: mpsc::Sender<Bytes>,
    runtime: tokio::runtime::Handle,
    piece: Vec<u8>,
    shared: Arc<Shared>,
}

impl PieceSender {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE)));
        self.shared.metrics.sent(piece.len());
        let sent = self.sender.send(piece);
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        match self.runtime.block_on(async { tokio::time::timeout(STALL, sent).await }) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(gone()),
        }
    }

    fn close(mut self) -> Result<(), Error> {
        self.send().map_err(|e| Error::io("write", "the output", e))
    }
}

impl Write for PieceSender {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&buf[..n]);
        if self.piece.len() >= PIECE {
            self.send()?;
        }
        Ok(n)
    }

    /// Writers flush after each answer; a piece is sent when it is full, or at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
