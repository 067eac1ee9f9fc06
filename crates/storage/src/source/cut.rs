//! Decoded chunks of joined files that two regions share.
//!
//! ```text
//!   regions    |=========|=========|=========|
//!   files      [..][..][..][.|.][..][..][..][|...]     years do not end where a region does:
//!                      └─ cut ─┘                       the chunk is decoded once and retained for the other region
//! ```

use crate::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tessera_planner::region::Dims;

/// Upper bound on the bytes that are retained for a variable of a statement, with those for reuse.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// The retained chunks of a joined array, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Cuts(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    chunks: VecDeque<RetainedChunk>,
    /// Memory of chunks that are no longer needed: new pages for each chunk would cost more than a copy.
    free: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct RetainedChunk {
    part: usize,
    at: Dims,
    cut: Cut,
}

/// A chunk, decoded as far as it is decoded as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) bytes: Vec<u8>,
    /// Bytes of an item, if the bytes are [shuffled]; `None` if they are cells.
    ///
    /// [shuffled]: crate::formats::filters::Filters::shuffled
    pub(crate) item: Option<usize>,
}

/// The retained chunks of one part of a joined array.
#[derive(Debug, Clone)]
pub(crate) struct CutsOf {
    pub(crate) cuts: Arc<Cuts>,
    pub(crate) part: usize,
}

impl Kept {
    fn bytes(&self) -> usize {
        let chunks = self.chunks.iter().map(|kept| kept.cut.bytes.capacity());
        chunks.chain(self.free.iter().map(Vec::capacity)).sum()
    }

    fn take(&mut self, part: usize, at: &Dims) -> Option<Cut> {
        let i = self.chunks.iter().position(|k| k.part == part && k.at == *at)?;
        self.chunks.remove(i).map(|k| k.cut)
    }

    fn reuse(&mut self, bytes: Vec<u8>) {
        if self.bytes() + bytes.capacity() <= KEPT_BYTES_MAX {
            self.free.push(bytes);
        }
    }
}

impl CutsOf {
    /// Takes a chunk, if it was retained.
    pub(crate) fn take(&self, at: &Dims) -> Option<Cut> {
        lock(&self.cuts.0).take(self.part, at)
    }

    /// Keeps a chunk, in place of the oldest ones if there are too many. A chunk that is already retained was decoded by
    /// two threads at the same time, one for each region, so neither is needed any more.
    pub(crate) fn keep(&self, at: &Dims, cut: Cut) {
        let mut kept = lock(&self.cuts.0);
        if let Some(same) = kept.take(self.part, at) {
            kept.reuse(same.bytes);
            kept.reuse(cut.bytes);
            return;
        }
        kept.chunks.push_back(RetainedChunk { part: self.part, at: at.clone(), cut });
        while kept.bytes() > KEPT_BYTES_MAX
            && (kept.free.pop().is_some() || kept.chunks.pop_front().is_some())
        {}
    }

    /// Keeps the memory of a chunk that is not needed any more.
    pub(crate) fn reuse(&self, bytes: Vec<u8>) {
        lock(&self.cuts.0).reuse(bytes);
    }

    /// Memory for the next chunk, with any content and length.
    pub(crate) fn room(&self) -> Vec<u8> {
        lock(&self.cuts.0).free.pop().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(i: u64) -> Dims {
        [i].as_slice().into()
    }

    fn cut(bytes: Vec<u8>) -> Cut {
        Cut { bytes, item: Some(4) }
    }

    #[test]
    fn a_chunk_is_taken_once_by_its_part_and_index() {
        let cuts = Arc::new(Cuts::default());
        let [a, b] = [0, 1].map(|part| CutsOf { cuts: cuts.clone(), part });
        a.keep(&at(3), cut(vec![1, 2]));
        assert_eq!(b.take(&at(3)), None);
        assert_eq!(a.take(&at(4)), None);
        assert_eq!(a.take(&at(3)), Some(cut(vec![1, 2])));
        assert_eq!(a.take(&at(3)), None);
    }

    #[test]
    fn a_chunk_that_both_regions_have_decoded_is_not_retained() {
        let of = CutsOf { cuts: Arc::default(), part: 0 };
        of.keep(&at(3), cut(vec![0; 8]));
        of.keep(&at(3), cut(vec![0; 16]));
        assert_eq!(of.take(&at(3)), None);
        assert_eq!([of.room(), of.room(), of.room()].map(|r| r.capacity()), [16, 8, 0]);
    }

    #[test]
    fn the_oldest_chunks_go_first() {
        let of = CutsOf { cuts: Arc::default(), part: 0 };
        for i in 0..3 {
            of.keep(&at(i), cut(vec![0; KEPT_BYTES_MAX / 2]));
        }
        assert_eq!(of.take(&at(0)), None);
        assert!(of.take(&at(1)).is_some() && of.take(&at(2)).is_some());
        of.keep(&at(9), cut(vec![0; KEPT_BYTES_MAX + 1]));
        assert_eq!(of.take(&at(9)), None);
    }

    #[test]
    fn memory_is_reused_within_the_bound() {
        let of = CutsOf { cuts: Arc::default(), part: 0 };
        assert_eq!(of.room().capacity(), 0);
        of.reuse(vec![0; KEPT_BYTES_MAX / 2]);
        of.reuse(vec![0; KEPT_BYTES_MAX / 2 + 1]);
        assert_eq!(lock(&of.cuts.0).free.len(), 1);
        // A chunk is worth more than free memory.
        of.keep(&at(1), cut(vec![0; KEPT_BYTES_MAX / 2 + 1]));
        assert_eq!(of.room().capacity(), 0);
        assert!(of.take(&at(1)).is_some());
        of.reuse(vec![0; 8]);
        assert_eq!(of.room().capacity(), 8);
    }
}
