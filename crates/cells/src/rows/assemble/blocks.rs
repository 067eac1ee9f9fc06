//! Buffers rows until all labels are known, in memory or in a file when memory is short.
//!
//! ```text
//!   block   codes of key 0 │ codes of key 1 │ values of column 0 │ its validity │ values of column 1 │ …
//! ```
//! A code has 4 bytes, a validity one. The rows of one batch are one block.

use super::heap::Heap;
use tessera_exec::error::Error;
use tessera_exec::quota::Charge;
use tessera_exec::select::Room;

/// Rows stay in memory up to the limit divided by this.
const SHARE: u64 = 16;

#[derive(Debug)]
pub(super) struct Blocks {
    room: Room,
    keys: usize,
    /// Bytes per value of each column.
    sizes: Vec<usize>,
    blocks: Vec<Block>,
    heap: Option<Heap>,
    rows: u64,
    /// Bytes of the blocks in memory.
    in_memory: u64,
}

#[derive(Debug)]
struct Block {
    /// The number of its first row.
    start: u64,
    rows: usize,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Memory { bytes: Vec<u8>, _charge: Charge },
    File(u64),
}

impl Blocks {
    pub(super) fn new(room: Room, keys: usize, sizes: Vec<usize>) -> Self {
        Blocks { room, keys, sizes, blocks: Vec::new(), heap: None, rows: 0, in_memory: 0 }
    }

    /// Adds the rows of a batch.
    ///
    /// # Errors
    /// [`Error::ResultTooLarge`] if they do not fit memory and spilling is not allowed, or the store's errors.
    pub(super) fn push(&mut self, rows: usize, bytes: Vec<u8>) -> Result<(), Error> {
        if rows == 0 {
            return Ok(());
        }
        let (room, n) = (&self.room, bytes.len() as u64);
        // Nothing can reclaim these bytes, so they stay a small part.
        let short = room.quota.used().saturating_add(n) > room.quota.limit() / 2
            || self.in_memory.saturating_add(n) > room.quota.limit() / SHARE;
        let bytes = if room.store.is_on() && short {
            let heap = match &mut self.heap {
                Some(heap) => heap,
                None => self.heap.insert(Heap::new(&room.store)?),
            };
            Bytes::File(heap.append(&bytes)?)
        } else {
            let charge = room.reserve(n)?;
            self.in_memory += n;
            Bytes::Memory { bytes, _charge: charge }
        };
        self.blocks.push(Block { start: self.rows, rows, bytes });
        self.rows += rows as u64;
        Ok(())
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The number of a block's first row, and its number of rows.
    pub(super) fn span(&self, block: usize) -> (u64, usize) {
        let b = &self.blocks[block];
        (b.start, b.rows)
    }

    /// Codes of all keys of a block, key by key.
    pub(super) fn codes<'a>(
        &'a self,
        block: usize,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Error> {
        let rows = self.blocks[block].rows;
        self.part(block, 0, 4 * rows * self.keys, buffer)
    }

    /// Values and validity of a column of a block.
    pub(super) fn column<'a>(
        &'a self,
        block: usize,
        column: usize,
        buffer: &'a mut Vec<u8>,
    ) -> Result<(&'a [u8], &'a [u8]), Error> {
        let rows = self.blocks[block].rows;
        let before: usize = self.sizes[..column].iter().map(|s| (s + 1) * rows).sum();
        let size = self.sizes[column];
        let at = 4 * rows * self.keys + before;
        Ok(self.part(block, at, (size + 1) * rows, buffer)?.split_at(size * rows))
    }

    fn part<'a>(
        &'a self,
        block: usize,
        at: usize,
        len: usize,
        buffer: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Error> {
        match (&self.blocks[block].bytes, &self.heap) {
            (Bytes::Memory { bytes, .. }, _) => Ok(&bytes[at..at + len]),
            (Bytes::File(start), Some(heap)) => {
                buffer.resize(len, 0);
                heap.read(start + at as u64, buffer)?;
                Ok(buffer)
            }
            (Bytes::File(_), None) => Err(Error::Broken { what: "rows without a file".into() }),
        }
    }
}
