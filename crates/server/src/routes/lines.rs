//! Open connections, and the choice of one to close: the one that has been idle longest.
//!
//! A client that opens all connections and stays silent would block other clients until the timeout. So a new
//! connection that finds no place takes the place of an idle one.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tessera_storage::lock;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Lines {
    open: Mutex<BTreeMap<u64, Arc<Line>>>,
    next: AtomicU64,
    start: Instant,
}

#[derive(Debug)]
pub(super) struct Line {
    start: Instant,
    /// Time of the last byte sent or received, in milliseconds after `start`.
    last_ms: AtomicU64,
    /// Number of requests in progress.
    asked: AtomicUsize,
    /// Fired to close the connection.
    pub(super) close: CancellationToken,
}

/// An entry in the list, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenLine {
    lines: Arc<Lines>,
    number: u64,
    pub(super) line: Arc<Line>,
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        lock(&self.lines.open).remove(&self.number);
    }
}

impl Lines {
    pub(super) fn new() -> Arc<Self> {
        let (open, next) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Lines { open, next, start: Instant::now() })
    }

    pub(super) fn add(self: &Arc<Self>) -> OpenLine {
        let line = Arc::new(Line {
            start: self.start,
            last_ms: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
            close: CancellationToken::new(),
        });
        line.moves();
        let number = self.next.fetch_add(1, Relaxed);
        lock(&self.open).insert(number, line.clone());
        OpenLine { lines: self.clone(), number, line }
    }

    /// Closes the connection that has been idle longest, if one is idle.
    pub(super) fn make_room(&self) {
        let open = lock(&self.open);
        let idle = open.values().filter(|l| l.is_idle() && !l.close.is_cancelled());
        if let Some(line) = idle.min_by_key(|l| l.last_ms.load(Relaxed)) {
            line.close.cancel();
        }
    }
}

impl Line {
    /// Records that bytes were sent or received.
    pub(super) fn moves(&self) {
        self.last_ms.store(self.start.elapsed().as_millis() as u64, Relaxed);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.asked.load(Relaxed) == 0
    }
}

/// A request in progress.
struct Asked(Arc<Line>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(1, Relaxed);
    }
}

/// Counts a request until its response begins; bytes of the body count as activity.
pub(super) async fn asks(State(line): State<Arc<Line>>, request: Request, next: Next) -> Response {
    line.asked.fetch_add(1, Relaxed);
    let _asked = Asked(line);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_silent_one_makes_room() {
        let lines = Lines::new();
        let all: Vec<OpenLine> = (0..4).map(|_| lines.add()).collect();
        for (held, ms) in all.iter().zip([30, 10, 20, 40]) {
            held.line.last_ms.store(ms, Relaxed);
        }
        all[1].line.asked.fetch_add(1, Relaxed);
        let closed = || -> Vec<bool> { all.iter().map(|h| h.line.close.is_cancelled()).collect() };
        lines.make_room();
        assert_eq!(closed(), [false, false, true, false], "the oldest is being answered");
        lines.make_room();
        assert_eq!(closed(), [true, false, true, false]);
        for _ in 0..3 {
            lines.make_room();
        }
        assert_eq!(closed(), [true, false, true, true]);
        drop(all);
        assert!(lock(&lines.open).is_empty());
    }
}
