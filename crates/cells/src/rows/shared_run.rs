//! One run of a tensor plan for the splits of its rows.
//!
//! ```text
//! run ──▶ piece [0, 2^20) ──▶ cut at the bounds of splits ──▶ split 0, split 1: read when they want more
//! ```
//! A split that needs a piece reads the run until one of its own arrives; pieces of other splits are buffered. The last
//! split to end reads the run to its end.

use super::{BoxError, Piece};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::VecDeque;
use std::fmt;
use std::result::Result;
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};
use tokio::sync::Mutex;

type Pieces = BoxStream<'static, Result<Piece, BoxError>>;

/// A run and the buffered pieces of its splits.
pub(super) struct SharedRun {
    run: Mutex<Pieces>,
    splits: SyncMutex<Vec<Split>>,
    rows: u64,
}

struct Split {
    is_taken: bool,
    has_ended: bool,
    /// Cells of all roots that were not read.
    left: u64,
    pieces: VecDeque<Piece>,
}

impl fmt::Debug for SharedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRun").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl SharedRun {
    /// Shares a run of `roots` roots with `total` rows between splits of `rows` rows.
    pub(super) fn new(run: Pieces, roots: usize, total: u64, rows: u64) -> Arc<Self> {
        let split = |start: u64| {
            let left = rows.min(total - start) * roots as u64;
            Split { is_taken: false, has_ended: false, left, pieces: VecDeque::new() }
        };
        let splits = (0..total).step_by(rows as usize).map(split).collect();
        Arc::new(SharedRun { run: Mutex::new(run), splits: SyncMutex::new(splits), rows })
    }

    /// The pieces of a split; `None` if they were taken before.
    pub(super) fn pieces(self: &Arc<Self>, split: usize) -> Option<Pieces> {
        {
            let mut splits = self.lock();
            let split = splits.get_mut(split)?;
            if std::mem::replace(&mut split.is_taken, true) {
                return None;
            }
        }
        // Dropping the pieces ends the split, too.
        let end = End { run: self.clone(), split };
        let next = |end: End| async { end.run.next(end.split).await.map(|piece| (piece, end)) };
        Some(stream::unfold(end, next).boxed())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Split>> {
        self.splits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffered piece of the split; `Err` if all of its pieces have been read.
    fn arrived(&self, split: usize) -> Result<Option<Piece>, AllRead> {
        let mut splits = self.lock();
        let Some(own) = splits.get_mut(split) else { return Err(AllRead { by_all: false }) };
        if own.left == 0 {
            own.has_ended = true;
            return Err(AllRead { by_all: splits.iter().all(|split| split.left == 0) });
        }
        let piece = own.pieces.pop_front();
        own.left -= piece.as_ref().map_or(0, |piece| (piece.cells.len() as u64).min(own.left));
        Ok(piece)
    }

    async fn next(&self, split: usize) -> Option<Result<Piece, BoxError>> {
        loop {
            match self.arrived(split) {
                Ok(Some(piece)) => return Some(Ok(piece)),
                Ok(None) => {}
                Err(AllRead { by_all: false }) => return None,
                Err(AllRead { by_all: true }) => {
                    // Its end reports the plan's statistics.
                    let mut run = self.run.lock().await;
                    while let Some(piece) = run.next().await {
                        if let Err(e) = piece {
                            return Some(Err(e));
                        }
                    }
                    return None;
                }
            }
            let mut run = self.run.lock().await;
            // Another split may have read it in between.
            match self.arrived(split) {
                Ok(None) => {}
                Ok(Some(piece)) => return Some(Ok(piece)),
                Err(_) => continue,
            }
            match run.next().await? {
                Ok(piece) => self.distribute(&piece),
                Err(e) => return Some(Err(e)),
            }
        }
    }

    /// Cuts a piece at the bounds of splits.
    fn distribute(&self, piece: &Piece) {
        let mut splits = self.lock();
        let (mut at, end) = (piece.start, piece.start + piece.cells.len() as u64);
        while at < end {
            let split = at / self.rows;
            let until = ((split + 1) * self.rows).min(end);
            let from = (at - piece.start) as usize;
            let cells = piece.cells.slice(from, (until - at) as usize);
            if let Some(split) = splits.get_mut(split as usize)
                && !split.has_ended
            {
                split.pieces.push_back(Piece { root: piece.root, start: at, cells });
            }
            at = until;
        }
    }
}

/// All pieces of a split were read, maybe those of all splits.
struct AllRead {
    by_all: bool,
}

/// Ends a split when its pieces are dropped.
struct End {
    run: Arc<SharedRun>,
    split: usize,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut splits = self.run.lock();
        if let Some(split) = splits.get_mut(self.split) {
            split.has_ended = true;
            split.pieces.clear();
        }
    }
}
