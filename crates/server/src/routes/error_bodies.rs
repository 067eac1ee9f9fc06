//! Error responses of the HTTP library, rewritten in the form of this API.
//!
//! Requests that are not HTTP, or whose head is too large, never reach our code: the library responds with a status and
//! no body. All errors of this server have a body, so the library's response is recognised on its way out, and gets
//! one.

use super::lines::Line;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tessera_engine::error::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The begin of a client error's response, and the header that marks one of the library.
const FAULT: &[u8] = b"HTTP/1.1 4";
const EMPTY: &str = "content-length: 0";

/// A connection that adds a body to error responses of the library.
pub(super) struct ErrorBodies<S> {
    stream: S,
    line: Arc<Line>,
    /// The replacement for a response of `for_bytes`, and how much of it is written.
    instead: Option<Instead>,
}

struct Instead {
    bytes: Vec<u8>,
    written: usize,
    for_bytes: usize,
}

impl<S> ErrorBodies<S> {
    pub(super) fn new(stream: S, line: Arc<Line>) -> Self {
        ErrorBodies { stream, line, instead: None }
    }
}

/// The response with a body, if it comes from the library.
fn with_body(answer: &[u8]) -> Option<Vec<u8>> {
    if !answer.starts_with(FAULT) {
        return None;
    }
    let head = std::str::from_utf8(answer).ok()?.strip_suffix("\r\n\r\n")?;
    let status = head.get(9..12)?.parse::<u16>().ok()?;
    if !head.split("\r\n").any(|line| line == EMPTY) {
        return None;
    }
    let reason = match status {
        413 | 414 | 431 => "its head is too large",
        _ => "it is not an HTTP/1.1 request",
    };
    let body = format!("{}\n", Error::Request { reason: reason.into() }.to_json(None));
    let length = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    let head = head.replacen(EMPTY, &length, 1);
    Some(format!("{head}\r\n\r\n{body}").into_bytes())
}

impl<S: AsyncRead + Unpin> AsyncRead for ErrorBodies<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if read.is_ready() {
            self.line.moves();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ErrorBodies<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none()
            && let Some(answer) = with_body(bytes)
        {
            this.instead = Some(Instead { bytes: answer, written: 0, for_bytes: bytes.len() });
        }
        let Some(instead) = &mut this.instead else {
            let written = Pin::new(&mut this.stream).poll_write(context, bytes);
            if written.is_ready() {
                this.line.moves();
            }
            return written;
        };
        while instead.written < instead.bytes.len() {
            let rest = &instead.bytes[instead.written..];
            match ready!(Pin::new(&mut this.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => instead.written += n,
            }
        }
        let for_bytes = instead.for_bytes;
        this.instead = None;
        Poll::Ready(Ok(for_bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let is_ours = parts.first().is_none_or(|head| with_body(head).is_none());
        if is_ours && self.instead.is_none() {
            let this = self.get_mut();
            let written = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
            if written.is_ready() {
                this.line.moves();
            }
            return written;
        }
        self.poll_write(context, parts.first().map_or(&[], |head| &**head))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_answers_of_the_library_get_a_body() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        for bare in [bare, "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"] {
            let told = String::from_utf8(with_body(bare.as_bytes()).unwrap()).unwrap();
            let (head, body) = told.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
            assert!(!head.contains("length: 0") && head.contains("application/json"), "{head}");
            let error: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(error["error"]["code"], "bad_request");
        }
        for ours in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\n{\"content-length: 0\"}",
        ] {
            assert!(with_body(ours.as_bytes()).is_none(), "{ours}");
        }
    }
}
