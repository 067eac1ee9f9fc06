#![expect(unsafe_code, reason = "threads write parts of one buffer; blocks say why this is sound")]
//! A buffer that several threads write at once.
//!
//! ```text
//!   | part 0      | part 1      | part 2      | …        a lock for each part, one buffer in the end
//!     thread a      free          thread b
//! ```
//! A thread copies its bytes to a part, or is lent the part as a [`PooledBuf`] and makes them there.

use super::{Owner, PooledBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tessera_storage::lock;

/// The longest that the whole waits for its parts. They are dropped by threads that have no more to do with them.
const PARTS_WAIT: Duration = Duration::from_secs(10);

/// A buffer in parts. A thread has a part for itself while it writes.
#[derive(Debug)]
pub struct SharedBuf(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    /// `None` once it was taken. Nobody refers to its bytes but through a part.
    buf: RwLock<Option<PooledBuf>>,
    start: Start,
    /// The end of each part. Ends ascend, and the last one is the length of the buffer.
    ends: Vec<usize>,
    /// For each part, whether it is lent.
    lent: Vec<Mutex<bool>>,
    /// Number of lent parts.
    count: Mutex<usize>,
    returned: Condvar,
}

/// The address of a buffer.
#[derive(Debug, Clone, Copy)]
struct Start(NonNull<u8>);

// SAFETY: an address is not tied to a thread; what is read and written through it is guarded by the locks of `Parts`.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

impl SharedBuf {
    /// Splits a buffer into parts that end at these offsets; the remaining bytes form a last part. Offsets that descend
    /// or exceed the buffer are clamped.
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
        SharedBuf(Arc::new(Parts {
            start: Start(buf.owner.ptr()),
            buf: RwLock::new(Some(buf)),
            lent: ends.iter().map(|_| Mutex::default()).collect(),
            ends,
            count: Mutex::default(),
            returned: Condvar::new(),
        }))
    }

    /// Calls `write` with the bytes of a part, once no other thread writes them. Returns false, and calls nothing, if there
    /// is no such part, if it is lent, or after [`SharedBuf::take`].
    #[must_use]
    pub fn write(&self, part: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let parts = &*self.0;
        let buf = parts.buf.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(_), Some((at, len)), Some(lent)) =
            (buf.as_ref(), parts.part(part), parts.lent.get(part))
        else {
            return false;
        };
        let lent = lock(lent);
        if *lent {
            return false;
        }
        // SAFETY: the part lies in the buffer by the constructor, which is initialised and lives as long as the read guard
        // of `buf`. No other reference to these bytes exists: parts do not overlap, the lock of this one is held, it is
        // not lent, and nothing else reads or writes the buffer while it is in `self`.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), len) };
        write(bytes);
        true
    }

    /// A part as a buffer of its own; `None` if no such part exists, if it is lent, or after [`SharedBuf::take`]. The
    /// part keeps its bytes when the buffer is dropped.
    pub fn lend(&self, part: usize) -> Option<PooledBuf> {
        let parts = &self.0;
        let buf = parts.buf.read().unwrap_or_else(PoisonError::into_inner);
        let ((at, len), lent) = (parts.part(part)?, parts.lent.get(part)?);
        let mut lent = lock(lent);
        if buf.is_none() || *lent {
            return None;
        }
        *lent = true;
        *lock(&parts.count) += 1;
        let owner = Owner::Shared(Part { parts: parts.clone(), number: part, at: Start(at) });
        Some(PooledBuf { owner, len })
    }

    /// Are these the bytes of a part?
    pub fn holds(&self, part: usize, bytes: &[u8]) -> bool {
        self.0.part(part).is_some_and(|(at, len)| {
            at.as_ptr().cast_const() == bytes.as_ptr() && len == bytes.len()
        })
    }

    /// Takes the buffer, once no thread writes and no part is lent; `None` if it was taken before, or if a part is
    /// not returned within 10 s.
    pub fn take(&self) -> Option<PooledBuf> {
        let mut buf = self.0.buf.write().unwrap_or_else(PoisonError::into_inner);
        let count = lock(&self.0.count);
        let waited = self.0.returned.wait_timeout_while(count, PARTS_WAIT, |count| *count > 0);
        let (count, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *count > 0 { None } else { buf.take() }
    }
}

impl Parts {
    /// Address and length of a part.
    fn part(&self, part: usize) -> Option<(NonNull<u8>, usize)> {
        let end = *self.ends.get(part)?;
        let start = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some((NonNull::new(self.start.0.as_ptr().wrapping_add(start))?, end - start))
    }
}

/// A lent part. The buffer is not taken while it lives.
#[derive(Debug)]
pub(super) struct Part {
    parts: Arc<Parts>,
    number: usize,
    at: Start,
}

impl Part {
    pub(super) fn ptr(&self) -> NonNull<u8> {
        self.at.0
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(lent) = self.parts.lent.get(self.number) {
            *lock(lent) = false;
        }
        *lock(&self.parts.count) -= 1;
        self.parts.returned.notify_all();
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
        assert!(shared.lend(0).is_none());
    }

    #[test]
    fn parts_cover_the_buffer_whatever_their_ends() {
        let pool = Pool::new(Quota::new(1 << 20), 0);
        for ends in [&[][..], &[4], &[4, 2, 8], &[100], &[10], &[0, 0, 3]] {
            let mut zeros = pool.take(10);
            zeros.as_mut_slice().fill(0);
            let shared = SharedBuf::new(zeros, ends.iter().copied());
            for part in 0..ends.len() + 2 {
                // The buffer may have one part more than ends were passed.
                let _ = shared.write(part, |bytes| bytes.iter_mut().for_each(|b| *b += 1));
            }
            assert_eq!(shared.take().unwrap().as_slice(), [1; 10], "{ends:?}");
        }
    }

    #[test]
    fn a_lent_part_is_written_in_its_place_and_awaited() {
        let pool = Pool::new(Quota::new(1 << 20), 0);
        let shared = SharedBuf::new(pool.take(1000), (1..10).map(|i| i * 100));
        let mut three = shared.lend(3).unwrap();
        assert!(shared.lend(3).is_none() && !shared.write(3, |_| unreachable!("it is lent")));
        assert!(shared.lend(10).is_none());
        assert_eq!(three.typed::<u32>().len(), 25);
        three.as_mut_slice().fill(3);
        let frozen = three.freeze();
        assert!(shared.holds(3, &frozen) && !shared.holds(2, &frozen));
        assert!(!shared.holds(3, &frozen[..99]));
        // A part whose loan was dropped may be lent again.
        shared.lend(4).unwrap().as_mut_slice().fill(9);
        shared.lend(4).unwrap().as_mut_slice().fill(4);
        for part in [0, 1, 2, 5, 6, 7, 8, 9] {
            assert!(shared.write(part, |bytes| bytes.fill(part as u8)));
        }
        let whole = std::thread::scope(|scope| {
            let whole = scope.spawn(|| shared.take().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!whole.is_finished());
            drop(frozen);
            whole.join().unwrap()
        });
        let of = |(i, byte): (usize, &u8)| usize::from(*byte) == i / 100;
        assert!(whole.as_slice().iter().enumerate().all(of));
    }

    #[test]
    fn a_lent_part_outlives_the_whole() {
        let pool = Pool::new(Quota::new(1 << 20), 1 << 20);
        let shared = SharedBuf::new(pool.take(100_000), [50_000]);
        let mut last = shared.lend(1).unwrap();
        drop(shared);
        last.as_mut_slice().fill(1);
        assert_eq!(pool.quota().cached(), 0);
        drop(last.freeze());
        assert!(pool.quota().cached() >= 100_000);
    }
}
