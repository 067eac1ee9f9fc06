//! Read-ahead hints to the system for local files that are read in small pieces.
//!
//! ```text
//!   lines that are read     ▪     ▪     ▪     ▪     ▪      each alone, anywhere in the file
//!   blocks prefetched      [──────────────][──────────────]  in the file's order, while the lines before are read
//! ```
//! A disk reads a block in the time of a few separate lines, and the block is then in the system's memory for other
//! pieces. A reader requests each block once.

use crate::lock;
use crate::source::store::LocalFile;
use std::collections::HashSet;
use std::sync::Mutex;

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4 << 20;

/// Upper bound on the blocks that a reader remembers.
const BLOCKS_MAX: usize = 1 << 16;

/// The blocks that a reader requested.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    asked: Mutex<HashSet<(String, u64)>>,
}

impl Ahead {
    /// Announces reads of a file's lines from byte `offset` on. `last` is the previous block of the caller.
    pub(crate) fn lines_at(&self, file: &LocalFile, offset: u64, last: &mut Option<u64>) {
        let block = offset / BLOCK_BYTES;
        if last.replace(block) == Some(block) {
            return;
        }
        let mut asked = lock(&self.asked);
        if asked.len() >= BLOCKS_MAX {
            asked.clear();
        }
        if asked.insert((file.key.clone(), block)) {
            drop(asked);
            file.will_read(block * BLOCK_BYTES, BLOCK_BYTES);
        }
    }
}
