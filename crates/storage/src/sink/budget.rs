//! Memory of a writer: reserved whole before the plan starts.
//!
//! ```text
//!   budget ├─ encode: padded copy + encoded ─┼─ upload: encoded ─┤ … ┤
//! ```
//! A thread takes what encoding a chunk may need, keeps what the encoded chunk has until it is stored, and gives the
//! rest back. Whoever holds a part of the budget needs nothing else to come to its end but storage, whose requests
//! have time-outs, so waiting for the budget ends.

use super::{Memory, Reserved, SinkError};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one permit: a semaphore counts to `u32::MAX`.
const PERMIT_BYTES: u64 = 4096;

/// No more than this part of the memory limit, unless one chunk needs it.
const SHARE: u64 = 4;

/// The bytes that chunks on their way to the store may take.
#[derive(Debug)]
pub(super) struct Budget {
    permits: Arc<Semaphore>,
    /// Permits that one chunk takes at most.
    each: u32,
    _reserved: Reserved,
}

impl Budget {
    /// Room for up to `threads` chunks at a time, each of which needs up to `each` bytes.
    pub(super) fn new(
        quota: &Arc<dyn Memory>,
        chunk_bytes: u64,
        each: u64,
        threads: usize,
    ) -> Result<Self, SinkError> {
        let permits_each = each.div_ceil(PERMIT_BYTES).max(1);
        let share = quota.limit() / SHARE / (permits_each * PERMIT_BYTES);
        let mut chunks = share.clamp(1, threads.max(1) as u64);
        loop {
            let permits = permits_each * chunks;
            if let (Some(r), Ok(n), Ok(each)) = (
                quota.clone().try_reserve(permits * PERMIT_BYTES),
                usize::try_from(permits),
                u32::try_from(permits_each),
            ) {
                return Ok(Budget {
                    permits: Arc::new(Semaphore::new(n.min(Semaphore::MAX_PERMITS))),
                    each,
                    _reserved: r,
                });
            }
            if chunks == 1 {
                return Err(SinkError::Memory {
                    chunk_bytes,
                    needed_bytes: each,
                    free_bytes: quota.limit().saturating_sub(quota.used()),
                    limit_bytes: quota.limit(),
                });
            }
            chunks /= 2;
        }
    }

    /// Room for one chunk; `None` once the budget is closed.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_many_owned(self.each).await.ok()
    }

    /// Keeps what `bytes` need and gives the rest back.
    pub(super) fn shrink(permit: &mut OwnedSemaphorePermit, bytes: usize) {
        let keep = (bytes as u64).div_ceil(PERMIT_BYTES) as usize;
        let rest = permit.num_permits().saturating_sub(keep);
        drop(permit.split(rest));
    }

    /// Whoever waits, or comes later, gets nothing.
    pub(super) fn close(&self) {
        self.permits.close();
    }
}
