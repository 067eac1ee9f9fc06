//! Results on their way to a client, with back-pressure.
//!
//! A writer runs on a thread for blocking work and gives pieces to a channel that holds two; it waits when the client
//! does not read. What a stream holds beside the result (windows, pieces) is charged to the quota before it begins.
//! Plans are over by then, so a slow client holds up nobody: its result waits in memory that is charged, or in a file.
//!
//! The first piece decides the status: what a format cannot hold is an error with its own status, not a broken stream.

use super::{Parameters, Shared};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer, native, row_bytes};
use tessera_exec::quota::Charge;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// Bytes of a piece.
const PIECE: usize = 256 << 10;
/// Pieces that wait for the client.
const PIECES: usize = 2;
/// What a stream may hold beside the result: a window of each tensor and its text, and the pieces.
const STREAM_BYTES: u64 = 4 << 20;
/// Bytes of answers, and how many of them, that are written where they are asked for.
const SMALL_BYTES: u64 = 16 << 10;
const SMALL_REPLIES: usize = 16;
/// Streams together hold at most one part of this many of the memory.
const STREAMS_SHARE: u64 = 4;
/// Streams at a time, if memory allows; and how many there may be in any case.
const STREAMS_MAX: u64 = 128;
const STREAMS_MIN: u64 = 4;
/// A client that takes nothing for this time is gone.
const STALL: Duration = Duration::from_secs(60);
/// How long a stream waits for memory before the client is sent away.
const MEMORY_WAIT: Duration = Duration::from_secs(5);

/// How many streams there may be at a time with so much memory: slow clients must leave enough for others.
pub(super) fn streams_max(limit_bytes: u64) -> usize {
    (limit_bytes / STREAMS_SHARE / STREAM_BYTES).clamp(STREAMS_MIN, STREAMS_MAX) as usize
}

/// What a client may ask for: a format, or the engine's own form for another Tessera.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    Format(Format),
    /// Arrow, with a row for each chunk.
    Chunks,
    Native,
}

impl Out {
    /// The format of that name.
    pub(super) fn parse(name: &str) -> Result<Self, Error> {
        if name == native::NAME {
            return Ok(Out::Native);
        }
        let format = Format::parse(name)?;
        // Known before anything runs: some formats are not there yet.
        Writer::new(format, Options::default(), io::sink())?;
        Ok(Out::Format(format))
    }

    /// What `format=` and `layout=` ask for, else `Accept`, else JSON.
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

    /// The same, or JSON where statements only did something: `{"ok": …}` tells it, and nothing failed.
    fn of(self, replies: &[Reply]) -> Self {
        let only_done = replies.iter().all(|r| matches!(r.answer, Answer::Done(_)));
        match self {
            Out::Format(f) if f.holds_one() && only_done => Out::Format(Format::Json),
            Out::Chunks if only_done => Out::Format(Format::Json),
            other => other,
        }
    }

    /// Writes all answers.
    pub(super) fn write<W: Write>(self, replies: Vec<Reply>, out: W) -> Result<W, Error> {
        let (format, arrow_chunks) = match self {
            Out::Format(format) => (format, false),
            Out::Chunks => (Format::Arrow, true),
            Out::Native => return native::write(&replies, out),
        };
        let options = Options { arrow_chunks, ..Options::default() };
        let mut writer = Writer::new(format, options, out)?;
        replies.into_iter().try_for_each(|r| writer.push(r))?;
        writer.finish()
    }

    /// Bytes that writing holds at a time beside windows and pieces: chunks, where they are asked for whole.
    fn held_bytes(self, replies: &[Reply]) -> u64 {
        let tensors = replies.iter().filter_map(|r| r.answer.tensors());
        match self {
            Out::Chunks => tensors.map(|t| row_bytes(&t)).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// What a stream keeps until its end.
struct StreamPermit {
    _permit: OwnedSemaphorePermit,
    _charge: Option<Charge>,
}

/// True for answers that are written in less time than it takes to have another thread do it.
pub(super) fn is_small(replies: &[Reply]) -> bool {
    let (memory, disk) =
        replies.iter().map(|r| r.answer.bytes()).fold((0, 0), |(m, d), (n, e)| (m + n, d + e));
    // Rows on disk are as long there as in memory.
    memory + disk <= SMALL_BYTES && replies.len() <= SMALL_REPLIES && words(replies) <= SMALL_BYTES
}

/// Labels, and lists of lists, that are written of tensors beside their cells: a tensor without cells may have many.
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
    if is_small(&replies) {
        let written = Bytes::from(out.write(replies, Vec::new())?);
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
        let sink = Pieces { sender, runtime, piece: Vec::with_capacity(PIECE), shared: metrics };
        out.write(replies, sink).and_then(Pieces::close)
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
        // A piece that is not full is the last: the client is told its length.
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
            // A writer that failed breaks the stream off: the client must not take it for whole.
            let e = failed((&mut writing).await)?;
            tracing::warn!(code = e.code(), "a result broke off: {e}");
            Some((Err(io::Error::other(e.to_string())), (pieces, None)))
        }
    });
    let stream = futures::StreamExt::chain(futures::stream::iter([Ok(first)]), rest);
    Ok((StatusCode::OK, head, Body::from_stream(stream)).into_response())
}

/// Memory for a stream, and `more` bytes; it waits a little for others to end.
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

/// Gathers pieces and waits for the client.
struct Pieces {
    sender: mpsc::Sender<Bytes>,
    runtime: tokio::runtime::Handle,
    piece: Vec<u8>,
    shared: Arc<Shared>,
}

impl Pieces {
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

impl Write for Pieces {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = buf.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&buf[..n]);
        if self.piece.len() >= PIECE {
            self.send()?;
        }
        Ok(n)
    }

    /// Writers flush after each answer; a piece goes when it is full, or at the end.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
