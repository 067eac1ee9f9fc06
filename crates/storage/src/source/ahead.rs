//! Telling the system what will be read soon of local files that are read in small pieces.
//!
//! ```text
//!   lines that are read     ▪     ▪     ▪     ▪     ▪      each alone, anywhere in the file
//!   blocks asked for       [──────────────][──────────────]  in the file's order, while the lines before are read
//! ```
//! A disk gives a block in the time in which it finds a few lines one by one, and what other pieces want of it is in the
//! system's memory then. A block is asked for once by a reader.

use crate::source::store::LocalFile;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Bytes that are asked for at a time.
const BLOCK_BYTES: u64 = 4 << 20;

/// Blocks that a reader remembers.
const BLOCKS_MAX: usize = 1 << 16;

/// The blocks that a reader asked for.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    asked: Mutex<HashSet<(String, u64)>>,
}

impl Ahead {
    /// Lines of a file will be read from its byte `offset` on. `last` is the block that the caller named before.
    pub(crate) fn lines_at(&self, file: &LocalFile, offset: u64, last: &mut Option<u64>) {
        let block = offset / BLOCK_BYTES;
        if last.replace(block) == Some(block) {
            return;
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.len() >= BLOCKS_MAX {
            asked.clear();
        }
        if asked.insert((file.key.clone(), block)) {
            drop(asked);
            file.will_read(block * BLOCK_BYTES, BLOCK_BYTES);
        }
    }
}
