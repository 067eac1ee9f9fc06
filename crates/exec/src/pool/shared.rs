#![expect(
    unsafe_code,
    reason = "several threads write parts of one buffer; each block says why it is sound"
)]
//! A buffer that several threads write at once.
//!
//! ```text
//!   | part 0      | part 1      | part 2      | …        a lock for each part, one buffer in the end
//!     thread a      free          thread b
//! ```

use super::PooledBuf;
use std::sync::{Mutex, PoisonError, RwLock};

/// A buffer in parts. A thread has a part for itself while it writes.
#[derive(Debug)]
pub struct SharedBuf {
    /// `None` once it was taken.
    buf: RwLock<Option<PooledBuf>>,
    /// Where each part ends. Ends ascend, and the last one is the length of the buffer.
    ends: Vec<usize>,
    locks: Vec<Mutex<()>>,
}

impl SharedBuf {
    /// Splits a buffer into parts that end at these offsets; what they leave is a last part. Offsets that descend or
    /// exceed the buffer are cut to what is left.
    pub fn new(buf: PooledBuf, ends: impl IntoIterator<Item = usize>) -> Self {
        let len = buf.len();
        let mut last = 0;
        let mut ends: Vec<usize> = ends
            .into_iter()
            .map(|end| {
                last = end.clamp(last, len);
                last
            })
            .collect();
        if last < len || ends.is_empty() {
            ends.push(len);
        }
        let locks = ends.iter().map(|_| Mutex::default()).collect();
        SharedBuf { buf: RwLock::new(Some(buf)), ends, locks }
    }

    /// Calls `write` with the bytes of a part, once no other thread has them. Returns false, and calls nothing, if there is
    /// no such part, or after [`SharedBuf::take`].
    #[must_use]
    pub fn write(&self, part: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let buf = self.buf.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(buf), Some(&end), Some(lock)) =
            (buf.as_ref(), self.ends.get(part), self.locks.get(part))
        else {
            return false;
        };
        let start = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        // Bytes have no state that a panic could leave half changed.
        let _own = lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `start <= end <= len` by the constructor, so the slice lies in the buffer, which is initialised and
        // lives as long as the read guard of `buf`. No other reference to these bytes exists: parts do not overlap, the
        // lock of this one is held, and nothing else reads or writes the buffer while it is in `self`.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(buf.owner.ptr().as_ptr().add(start), end - start)
        };
        write(bytes);
        true
    }

    /// Takes the buffer, once no thread writes; `None` if it was taken before.
    pub fn take(&self) -> Option<PooledBuf> {
        self.buf.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::pool::Pool;
    use crate::quota::Quota;

    #[test]
    fn threads_fill_parts_of_one_buffer() {
        let pool = Pool::new(Quota::new(1 << 20), 0);
        let shared = SharedBuf::new(pool.take(10_000), (1..100).map(|i| i * 97));
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let shared = &shared;
                scope.spawn(move || {
                    for turn in 0..100 {
                        let part = (turn + thread * 25) % 100;
                        let written = shared.write(part, |bytes| {
                            // A part that another thread writes at the same time would lose steps.
                            for byte in bytes {
                                *byte = byte.wrapping_add(1);
                            }
                        });
                        assert!(written);
                    }
                });
            }
        });
        let buf = shared.take().unwrap();
        assert!(buf.as_slice().iter().all(|&b| b == 4));
        assert!(shared.take().is_none());
        assert!(!shared.write(0, |_| unreachable!("the buffer is gone")));
    }

    #[test]
    fn parts_cover_the_buffer_whatever_their_ends() {
        let pool = Pool::new(Quota::new(1 << 20), 0);
        for ends in [&[][..], &[4], &[4, 2, 8], &[100], &[10], &[0, 0, 3]] {
            let mut zeros = pool.take(10);
            zeros.as_mut_slice().fill(0);
            let shared = SharedBuf::new(zeros, ends.iter().copied());
            for part in 0..ends.len() + 2 {
                // There may be one part more than ends.
                let _ = shared.write(part, |bytes| bytes.iter_mut().for_each(|b| *b += 1));
            }
            assert_eq!(shared.take().unwrap().as_slice(), [1; 10], "{ends:?}");
        }
    }
}
