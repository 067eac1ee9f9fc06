//! The connections that are open, and which of them makes room: one that asks for nothing, and has done so longest.
//!
//! Whoever opens all connections that there may be, and is silent, would shut others out until they time out. So a
//! connection that comes when there is no place takes that of an idle one.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// All that are open.
#[derive(Debug)]
pub(super) struct Lines {
    open: Mutex<BTreeMap<u64, Arc<Line>>>,
    next: AtomicU64,
    start: Instant,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Line {
    start: Instant,
    /// When a byte came or went last, in milliseconds after `start`.
    last_ms: AtomicU64,
    /// Requests that are being answered.
    asked: AtomicUsize,
    /// Fired when it makes room.
    pub(super) close: CancellationToken,
}

/// A line in the list, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenLine {
    lines: Arc<Lines>,
    number: u64,
    pub(super) line: Arc<Line>,
}

impl Drop for OpenLine {
    fn drop(&mut self) {
        self.lines.lock().remove(&self.number);
    }
}

impl Lines {
    pub(super) fn new() -> Arc<Self> {
        let (open, next) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Lines { open, next, start: Instant::now() })
    }

    /// Another one is open.
    pub(super) fn add(self: &Arc<Self>) -> OpenLine {
        let line = Arc::new(Line {
            start: self.start,
            last_ms: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
            close: CancellationToken::new(),
        });
        line.moves();
        let number = self.next.fetch_add(1, Relaxed);
        self.lock().insert(number, line.clone());
        OpenLine { lines: self.clone(), number, line }
    }

    /// Closes the one that has been silent longest of those that ask for nothing, if there is one.
    pub(super) fn make_room(&self) {
        let open = self.lock();
        let idle = open.values().filter(|l| l.is_idle() && !l.close.is_cancelled());
        if let Some(line) = idle.min_by_key(|l| l.last_ms.load(Relaxed)) {
            line.close.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Line>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Bytes came or went.
    pub(super) fn moves(&self) {
        self.last_ms.store(self.start.elapsed().as_millis() as u64, Relaxed);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.asked.load(Relaxed) == 0
    }
}

/// A request that is being answered.
struct Asked(Arc<Line>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.asked.fetch_sub(1, Relaxed);
    }
}

/// Counts a request as long as it is being answered; what its answer brings after that are bytes that go.
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
        assert!(lines.lock().is_empty());
    }
}
