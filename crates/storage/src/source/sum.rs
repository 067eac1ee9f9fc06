//! The CRC-32 of a stretch of a file that is read in parts, in any order and by several threads.

use crate::lock;
use crc32fast::Hasher;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

/// Upper bound on the parts that are remembered. Parts beyond it are not, so the stretch is not checked.
const PARTS_MAX: usize = 4096;

/// Checks a stretch once all of its bytes were read in parts that do not overlap. A part that overlaps an earlier one is
/// left out, its new bytes too; the stretch is then not checked.
#[derive(Debug)]
pub(crate) struct Sum {
    /// The state after the bytes before the stretch.
    before: Hasher,
    /// The stretch, as offsets in the file.
    range: Range<u64>,
    want: u32,
    parts: Mutex<Parts>,
}

/// States of parts by their first byte. No two overlap or touch.
type Parts = BTreeMap<u64, Hasher>;

impl Sum {
    /// The checksum `want` of the bytes `before` and those at `range` of a file, which follow.
    pub(crate) fn new(before: &[u8], range: Range<u64>, want: u32) -> Sum {
        let mut state = Hasher::new();
        state.update(before);
        Sum { before: state, range, want, parts: Mutex::default() }
    }

    /// The same checksum, of which no part was read.
    pub(crate) fn fresh(&self) -> Sum {
        let (before, range) = (self.before.clone(), self.range.clone());
        Sum { before, range, want: self.want, parts: Mutex::default() }
    }

    /// Adds the bytes at an offset of the file.
    ///
    /// # Errors
    /// The reason, if the stretch is complete and its checksum is another one.
    pub(crate) fn add(&self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let end = at + bytes.len() as u64;
        if bytes.is_empty() || overlaps(&lock(&self.parts), at, end) {
            return Ok(());
        }
        let mut state = Hasher::new();
        state.update(bytes);
        let mut parts = lock(&self.parts);
        // Another thread may have read the same bytes in the meantime.
        if overlaps(&parts, at, end) {
            return Ok(());
        }
        let mut start = at;
        let previous = parts.range(..at).next_back().map(|(s, p)| (*s, s + p.total_len()));
        if let Some((s, _)) = previous.filter(|(_, e)| *e == at)
            && let Some(mut joined) = parts.remove(&s)
        {
            joined.combine(&state);
            (start, state) = (s, joined);
        }
        if let Some(next) = parts.remove(&end) {
            state.combine(&next);
        }
        if (start, start + state.total_len()) == (self.range.start, self.range.end) {
            let mut all = self.before.clone();
            all.combine(&state);
            let is = all.finalize();
            if is != self.want {
                return Err(format!("its checksum is {is:08x}, expected {:08x}", self.want));
            }
        }
        if parts.len() < PARTS_MAX {
            parts.insert(start, state);
        }
        Ok(())
    }
}

fn overlaps(parts: &Parts, at: u64, end: u64) -> bool {
    parts.range(..end).next_back().is_some_and(|(start, part)| start + part.total_len() > at)
}

#[cfg(test)]
mod tests {
    use super::Sum;

    #[test]
    fn parts_are_checked_when_all_are_read() {
        // zlib.crc32(b"123456789")
        let want = 0xcbf4_3926;
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]] {
            let parts: [(u64, &[u8]); 3] = [(10, b"34"), (12, b"5"), (13, b"6789")];
            let sum = Sum::new(b"12", 10..17, want);
            for i in order {
                assert_eq!(sum.add(parts[i].0, parts[i].1), Ok(()));
                assert_eq!(sum.add(parts[i].0, parts[i].1), Ok(()), "again");
            }
            let sum = Sum::new(b"12", 10..17, want ^ 1);
            let read: Vec<_> = order.iter().map(|i| sum.add(parts[*i].0, parts[*i].1)).collect();
            assert!(read[0].is_ok() && read[1].is_ok(), "{read:?}");
            assert_eq!(read[2], Err("its checksum is cbf43926, expected cbf43927".to_string()));
        }
    }
}
