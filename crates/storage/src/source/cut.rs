//! Decoded chunks of joined files that two regions share.
//!
//! ```text
//!   regions    |=========|=========|=========|
//!   files      [..][..][..][.|.][..][..][..][|...]     years do not end where a region does:
//!                      └─ cut ─┘                       the chunk is decoded once and retained for the other region
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use tessera_planner::region::Dims;

/// Upper bound on the bytes that are retained for a variable of a statement.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// The retained chunks of a joined array, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    kept: Mutex<VecDeque<RetainedChunk>>,
}

#[derive(Debug)]
struct RetainedChunk {
    part: usize,
    at: Dims,
    cells: Vec<u8>,
}

/// The retained chunks of one part of a joined array.
#[derive(Debug, Clone)]
pub(crate) struct CutsOf {
    pub(crate) cuts: Arc<Cuts>,
    pub(crate) part: usize,
}

impl CutsOf {
    /// Takes the cells of a chunk, if it was retained.
    pub(crate) fn take(&self, at: &Dims) -> Option<Vec<u8>> {
        let mut kept = self.cuts.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let i = kept.iter().position(|k| k.part == self.part && k.at == *at)?;
        kept.remove(i).map(|k| k.cells)
    }

    /// Keeps the cells of a chunk, in place of the oldest ones if there are too many.
    pub(crate) fn keep(&self, at: &Dims, cells: Vec<u8>) {
        let mut kept = self.cuts.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(RetainedChunk { part: self.part, at: at.clone(), cells });
        let mut bytes: usize = kept.iter().map(|k| k.cells.len()).sum();
        while bytes > KEPT_BYTES_MAX
            && let Some(oldest) = kept.pop_front()
        {
            bytes -= oldest.cells.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(i: u64) -> Dims {
        [i].as_slice().into()
    }

    #[test]
    fn a_chunk_is_taken_once_by_its_part_and_index() {
        let cuts = Arc::new(Cuts::default());
        let [a, b] = [0, 1].map(|part| CutsOf { cuts: cuts.clone(), part });
        a.keep(&at(3), vec![1, 2]);
        assert_eq!(b.take(&at(3)), None);
        assert_eq!(a.take(&at(4)), None);
        assert_eq!(a.take(&at(3)), Some(vec![1, 2]));
        assert_eq!(a.take(&at(3)), None);
    }

    #[test]
    fn the_oldest_chunks_go_first() {
        let of = CutsOf { cuts: Arc::default(), part: 0 };
        for i in 0..3 {
            of.keep(&at(i), vec![0; KEPT_BYTES_MAX / 2]);
        }
        assert_eq!(of.take(&at(0)), None);
        assert!(of.take(&at(1)).is_some() && of.take(&at(2)).is_some());
        of.keep(&at(9), vec![0; KEPT_BYTES_MAX + 1]);
        assert_eq!(of.take(&at(9)), None);
    }
}
