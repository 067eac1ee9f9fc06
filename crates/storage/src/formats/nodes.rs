//! Cached parts of local files for lookups of chunks: nodes of trees and parts of lists, which each operand would read
//! again.

use crate::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Upper bound on the cached bytes of a file.
const BYTES_MAX: usize = 4 << 20;

/// Bytes that a part costs besides its own: its entry and its allocation.
const ENTRY_BYTES: usize = 96;

/// Larger parts are not cached.
const PART_BYTES_MAX: usize = 64 << 10;

/// The parts of one version of a file.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    version: String,
    /// By offset and length.
    parts: BTreeMap<(u64, u64), Vec<u8>>,
    bytes: usize,
}

impl Nodes {
    /// A part of this version, if it is cached.
    pub(crate) fn get(&self, version: &str, offset: u64, bytes: u64) -> Option<Vec<u8>> {
        let kept = lock(&self.0);
        let part = kept.parts.get(&(offset, bytes))?;
        (kept.version == version).then(|| part.clone())
    }

    /// Keeps a part of that version, and forgets those of others.
    pub(crate) fn keep(&self, version: &str, offset: u64, part: &[u8]) {
        if part.len() > PART_BYTES_MAX {
            return;
        }
        let mut kept = lock(&self.0);
        if kept.version != version || kept.bytes + part.len() + ENTRY_BYTES > BYTES_MAX {
            *kept = Kept { version: version.into(), ..Kept::default() };
        }
        if kept.parts.insert((offset, part.len() as u64), part.to_vec()).is_none() {
            kept.bytes += part.len() + ENTRY_BYTES;
        }
    }

    /// Forgets all parts.
    pub(crate) fn forget(&self) {
        *lock(&self.0) = Kept::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_kept_within_bounds_and_for_one_version() {
        let nodes = Nodes::default();
        nodes.keep("a", 8, &[1, 2, 3]);
        assert_eq!(nodes.get("a", 8, 3), Some(vec![1, 2, 3]));
        assert_eq!((nodes.get("a", 8, 2), nodes.get("b", 8, 3)), (None, None));
        nodes.keep("b", 0, &[4]);
        assert_eq!((nodes.get("a", 8, 3), nodes.get("b", 8, 3)), (None, None));
        let large = vec![0; PART_BYTES_MAX + 1];
        nodes.keep("b", 0, &large);
        assert_eq!(nodes.get("b", 0, large.len() as u64), None);
        let each = PART_BYTES_MAX + ENTRY_BYTES;
        for i in 0..=(BYTES_MAX / each) as u64 {
            nodes.keep("c", i, &large[1..]);
        }
        let count = |nodes: &Nodes| {
            let kept = lock(&nodes.0);
            (kept.parts.len(), kept.bytes)
        };
        assert_eq!(count(&nodes), (1, each));
        nodes.forget();
        assert_eq!(nodes.get("c", 0, PART_BYTES_MAX as u64), None);
        assert_eq!(count(&nodes), (0, 0));
        // Many small parts are bounded, too.
        for i in 0..100_000 {
            nodes.keep("d", i, &[0]);
        }
        assert!(lock(&nodes.0).parts.len() <= BYTES_MAX / ENTRY_BYTES);
    }
}
