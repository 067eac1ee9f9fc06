//! Memory of a writer: reserved whole before the plan starts.
//!
//! ```text
//!   budget ├─ encode: padded copy + encoded ─┼─ upload: encoded ─┤ … ┤
//! ```
//! A thread reserves the peak of encoding a chunk, keeps the size of the encoded chunk until it is stored, and
//! releases the rest. A holder of a part of the budget waits for nothing but storage, whose requests have time-outs,
//! so waiting for the budget ends.

use super::{Memory, Reserved, SinkError};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of one permit: a semaphore counts to `u32::MAX`.
const PERMIT_BYTES: u64 = 4096;

/// The writer reserves at most one part in this many of the memory limit, unless one chunk needs more.
const SHARE: u64 = 4;

/// Memory for chunks that are being encoded and stored.
#[derive(Debug)]
pub(super) struct Budget {
    permits: Arc<Semaphore>,
    /// Upper bound on the permits of one chunk.
    each: u32,
    _reserved: Reserved,
}

impl Budget {
    /// Reserves memory for up to `threads` concurrent chunks of up to `each` bytes.
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

    /// Takes the permits of one chunk; `None` once the budget is closed.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_many_owned(self.each).await.ok()
    }

    /// Keeps the permits for `bytes` and releases the rest.
    pub(super) fn shrink(permit: &mut OwnedSemaphorePermit, bytes: usize) {
        let keep = (bytes as u64).div_ceil(PERMIT_BYTES) as usize;
        let rest = permit.num_permits().saturating_sub(keep);
        drop(permit.split(rest));
    }

    /// Takes the permits for `bytes` out of those of a chunk.
    pub(super) fn part(
        permit: &mut OwnedSemaphorePermit,
        bytes: usize,
    ) -> Option<OwnedSemaphorePermit> {
        permit.split((bytes as u64).div_ceil(PERMIT_BYTES) as usize)
    }

    /// Closes the budget: current and later waiters get `None`.
    pub(super) fn close(&self) {
        self.permits.close();
    }
}
