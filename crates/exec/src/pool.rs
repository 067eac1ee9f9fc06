//! A pool of reused buffers.
//!
//! A buffer is written as a [`PooledBuf`], frozen into an Arrow [`Buffer`] and shared; when the last holder drops it,
//! its memory returns here. All memory is initialised (zero when it is new, old values when it is reused) and aligned
//! to 64 bytes; parts of a [`SharedBuf`] begin where their cells do. From 128 KiB on it is cut from regions with huge
//! pages, as page faults would otherwise cost more than the kernels.
//!
//! If the system refuses memory, the operand that asked for it ends, by a panic with [`NoMemory`]; the process does
//! not.
#![expect(unsafe_code, reason = "raw allocations and the Arrow buffers that own them")]

mod region;
mod shared;

pub use shared::SharedBuf;

use crate::error::Error;
use crate::quota::Quota;
use arrow::buffer::Buffer;
use region::{Cut, Cutter};
use shared::Part;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};
use tessera_kernels::Plain;
use tessera_storage::lock;

/// Alignment of every buffer.
const ALIGNMENT: usize = 64;
/// Buffers of this size or larger are cut from regions of huge pages.
const HUGE: usize = 128 << 10;
const HUGE_PAGE: usize = 2 << 20;
/// Below this size the allocator is as fast as a pool.
const POOLED_MIN: usize = 32 << 10;
/// Sizes per power of two: a buffer is at most an eighth larger than requested.
const STEPS: usize = 8;

/// Payload of the panic when the system refuses memory: a limit of the process (`ulimit -v`), or a machine that does
/// not overcommit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory {
    /// Bytes that were requested.
    pub bytes: usize,
}

impl NoMemory {
    /// Ends the operand. It is not a fault of the code, so nothing is printed.
    fn raise(self) -> ! {
        resume_unwind(Box::new(self))
    }
}

impl From<NoMemory> for Error {
    fn from(refused: NoMemory) -> Self {
        Error::MemoryRefused { operand: "a result".into(), wanted_bytes: refused.bytes as u64 }
    }
}

/// A pool of buffers by size.
#[derive(Debug)]
pub struct Pool {
    quota: Arc<Quota>,
    keep_max: u64,
    /// Free memory by size class. Each class is a stack: the memory freed last is still in a CPU cache.
    free: Vec<Mutex<Vec<Memory>>>,
    regions: Cutter,
}

impl Pool {
    /// Creates a pool that retains at most `keep_max` bytes of free memory, and none that `quota` needs.
    pub fn new(quota: Arc<Quota>, keep_max: u64) -> Arc<Self> {
        let classes = class_of(1 << 47) + 1;
        let pool = Arc::new(Pool {
            quota: quota.clone(),
            keep_max,
            free: (0..classes).map(|_| Mutex::new(Vec::new())).collect(),
            regions: Cutter::default(),
        });
        let weak: Weak<Pool> = Arc::downgrade(&pool);
        let hooked = quota.set_trim(Box::new(move |keep| {
            if let Some(pool) = weak.upgrade() {
                pool.trim(keep);
            }
        }));
        debug_assert!(hooked, "a quota has one pool");
        pool
    }

    /// The budget whose free memory it retains.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Returns a buffer of `len` bytes with unspecified, initialised contents.
    pub fn take(self: &Arc<Self>, len: usize) -> PooledBuf {
        self.try_take(len).unwrap_or_else(|e| e.raise())
    }

    /// Like [`Pool::take`], for callers that are not operands.
    ///
    /// # Errors
    /// [`NoMemory`] if the system refuses memory.
    pub fn try_take(self: &Arc<Self>, len: usize) -> Result<PooledBuf, NoMemory> {
        let size = rounded(len);
        let reused = (size >= POOLED_MIN)
            .then(|| self.list(class_of(size)).pop())
            .flatten()
            .inspect(|m| self.quota.uncache(m.size as u64));
        let memory = reused.map_or_else(|| self.allocate(size), Ok)?;
        Ok(self.buffer(memory, len))
    }

    /// Returns a buffer of `len` zeros.
    pub fn take_zeroed(self: &Arc<Self>, len: usize) -> PooledBuf {
        let size = rounded(len);
        if size < POOLED_MIN || self.list(class_of(size)).is_empty() {
            // New memory is already zero.
            let memory = self.allocate(size).unwrap_or_else(|e| e.raise());
            return self.buffer(memory, len);
        }
        let mut buf = self.take(len);
        buf.as_mut_slice().fill(0);
        buf
    }

    fn buffer(self: &Arc<Self>, memory: Memory, len: usize) -> PooledBuf {
        let from = FromPool { memory: Some(memory), pool: self.clone() };
        PooledBuf { owner: Owner::Pool(from), len }
    }

    /// Allocates new memory. If the system refuses, the pool frees its cache and tries again.
    fn allocate(&self, size: usize) -> Result<Memory, NoMemory> {
        Memory::new(size, &self.regions)
            .or_else(|| {
                self.trim(0);
                Memory::new(size, &self.regions)
            })
            .ok_or(NoMemory { bytes: size })
    }

    /// Frees cached memory until no more than `keep` bytes are left, the largest buffers first.
    pub fn trim(&self, keep: u64) {
        for class in (0..self.free.len()).rev() {
            while self.quota.cached() > keep {
                let Some(memory) = self.list(class).pop() else { break };
                self.quota.uncache(memory.size as u64);
                drop(memory);
            }
        }
    }

    fn put(&self, memory: Memory) {
        if memory.size >= POOLED_MIN && self.quota.try_cache(memory.size as u64, self.keep_max) {
            self.list(class_of(memory.size)).push(memory);
        }
    }

    fn list(&self, class: usize) -> std::sync::MutexGuard<'_, Vec<Memory>> {
        lock(&self.free[class])
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim(0);
    }
}

/// The class of a rounded size: eight for each power of two.
fn class_of(size: usize) -> usize {
    let size = size.max(STEPS);
    let octave = size.ilog2() as usize;
    octave * STEPS + ((size >> (octave - 3)) & (STEPS - 1))
}

/// The smallest class size that holds `len` bytes.
fn rounded(len: usize) -> usize {
    let len = len.max(ALIGNMENT);
    let step = (1usize << len.ilog2()) / STEPS;
    len.next_multiple_of(step.max(ALIGNMENT))
}

/// Initialised memory with one owner.
#[derive(Debug)]
struct Memory {
    ptr: NonNull<u8>,
    size: usize,
    /// The region that it was cut from; `None` for memory of the allocator.
    cut: Option<Cut>,
}

// SAFETY: `Memory` is the only owner of plain bytes; nothing in it is tied to a thread.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` gives only its address; reads and writes go through the borrow rules of its owners.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns `None` if the system refuses memory.
    fn new(size: usize, regions: &Cutter) -> Option<Self> {
        let cut = if size >= HUGE { regions.cut(size) } else { None };
        let ptr = match &cut {
            Some(cut) => cut.ptr(),
            None => {
                let layout = layout(size)?;
                // SAFETY: `rounded` gives at least 64 bytes, so the layout's size is not zero.
                NonNull::new(unsafe { alloc_zeroed(layout) })?
            }
        };
        Some(Memory { ptr, size, cut })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.cut.is_none()
            && let Some(layout) = layout(self.size)
        {
            // SAFETY: it was allocated with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

/// Returns `None` if the size overflows the address space.
fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, ALIGNMENT).ok()
}

/// Memory that returns to where it came from on drop.
#[derive(Debug)]
enum Owner {
    Pool(FromPool),
    Shared(Part),
}

impl Owner {
    fn ptr(&self) -> NonNull<u8> {
        match self {
            Owner::Pool(from) => from.memory.as_ref().map_or(NonNull::dangling(), |m| m.ptr),
            Owner::Shared(part) => part.ptr(),
        }
    }
}

/// Memory of a pool.
#[derive(Debug)]
struct FromPool {
    memory: Option<Memory>,
    pool: Arc<Pool>,
}

impl Drop for FromPool {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.put(memory);
        }
    }
}

/// A writable buffer.
#[derive(Debug)]
pub struct PooledBuf {
    owner: Owner,
    len: usize,
}

impl PooledBuf {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a part of a [`SharedBuf`].
    pub fn is_lent(&self) -> bool {
        matches!(self.owner, Owner::Shared(_))
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is initialised, at least `len` long and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.owner.ptr().as_ptr(), self.len) }
    }

    /// The bytes, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is the only owner and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.owner.ptr().as_ptr(), self.len) }
    }

    /// The bytes as whole values; a remainder shorter than a value is left out.
    ///
    /// # Panics
    /// A part of a [`SharedBuf`] that does not begin at a whole value.
    pub fn typed<T: Plain>(&self) -> &[T] {
        let cells: NonNull<T> = self.owner.ptr().cast();
        assert!(cells.is_aligned(), "a buffer is not aligned for its values");
        // SAFETY: as `as_slice`; the address is aligned, and any bits are a `T`.
        unsafe { std::slice::from_raw_parts(cells.as_ptr(), self.len / size_of::<T>()) }
    }

    /// The bytes as whole values, writable.
    ///
    /// # Panics
    /// The panics of [`PooledBuf::typed`].
    pub fn typed_mut<T: Plain>(&mut self) -> &mut [T] {
        let cells: NonNull<T> = self.owner.ptr().cast();
        assert!(cells.is_aligned(), "a buffer is not aligned for its values");
        // SAFETY: as `typed`, and `self` is the only owner and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(cells.as_ptr(), self.len / size_of::<T>()) }
    }

    /// Returns the finished buffer; its memory returns to the pool with the last clone.
    pub fn freeze(self) -> Buffer {
        let (ptr, len) = (self.owner.ptr(), self.len);
        // SAFETY: `ptr` is valid for `len` bytes as long as the owner lives, which the buffer keeps; nothing writes to
        // them any more, as `self` is consumed.
        unsafe { Buffer::from_custom_allocation(ptr, len, Arc::new(self.owner)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_round_up_by_at_most_an_eighth_and_have_one_class() {
        for len in [0, 1, 64, 65, 1000, 32 << 10, (32 << 10) + 1, 5_000_000, 8 << 20, (1 << 30) + 7]
        {
            let size = rounded(len);
            assert!(size >= len && size.is_multiple_of(ALIGNMENT), "{len} {size}");
            assert!(size <= (len + len / 8).max(len + ALIGNMENT), "{len} {size}");
            assert_eq!(rounded(size), size);
            assert_ne!(class_of(size), class_of(rounded(size + 1)), "{len}");
        }
    }

    #[test]
    fn memory_is_aligned_zero_and_comes_back() {
        let quota = Quota::new(64 << 20);
        let pool = Pool::new(quota.clone(), 32 << 20);
        for len in [0, 1, 100, 40_000, 5 << 20] {
            let mut buf = pool.take(len);
            assert_eq!(buf.as_slice().as_ptr().align_offset(ALIGNMENT), 0);
            assert!(buf.as_slice().iter().all(|&b| b == 0));
            buf.as_mut_slice().fill(7);
            assert_eq!(buf.typed::<f64>().len(), len / 8);
            let frozen = buf.freeze();
            let clone = frozen.clone();
            drop(frozen);
            assert!(clone.iter().all(|&b| b == 7));
        }
        assert_eq!(quota.cached(), (rounded(40_000) + (5 << 20)) as u64);
        let mut again = pool.take(5 << 20);
        assert_eq!(again.typed_mut::<u8>()[0], 7);
        drop(again);
        assert!(pool.take_zeroed(5 << 20).as_slice().iter().all(|&b| b == 0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn neighbours_share_a_region_and_outlive_each_other() {
        let pool = Pool::new(Quota::new(1 << 30), 0);
        let sizes = [200 << 10, 3 << 20, (3 << 20) + 1, 10 << 20, 15 << 20, 30 << 20, 40 << 20];
        let mut bufs: Vec<PooledBuf> = (0..4).flat_map(|_| sizes).map(|n| pool.take(n)).collect();
        let start = |b: &PooledBuf| b.as_slice().as_ptr() as usize;
        assert_eq!(start(&bufs[1]) - start(&bufs[0]), rounded(200 << 10));
        // A buffer of 30 MiB has its own region.
        assert!(start(&bufs[5]).is_multiple_of(HUGE_PAGE));
        for (i, b) in bufs.iter_mut().enumerate() {
            assert!(b.as_slice().iter().all(|x| *x == 0));
            b.as_mut_slice().fill(i as u8 + 1);
        }
        // Every second buffer is dropped; its pages are freed, and no others.
        let mut i = 0;
        bufs.retain(|_| {
            i += 1;
            i % 2 == 0
        });
        for (k, b) in bufs.iter().enumerate() {
            assert!(b.as_slice().iter().all(|x| *x == 2 * k as u8 + 2), "{k}");
        }
        assert!(pool.take(12 << 20).as_slice().iter().all(|x| *x == 0));
    }

    #[test]
    fn refused_memory_fails_only_its_caller() {
        let quota = Quota::new(64 << 20);
        let pool = Pool::new(quota.clone(), 32 << 20);
        drop(pool.take(5 << 20));
        assert_eq!(quota.cached(), 5 << 20);
        // Exceeds the address space.
        for take in [Pool::take, Pool::take_zeroed] {
            let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                drop(take(&pool, 1 << 47));
            }));
            let payload = taken.unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&NoMemory { bytes: 1 << 47 }));
            assert_eq!(quota.cached(), 0, "what lay unused was given back first");
            let error = crate::error::Error::of_panic("operand `sort`".into(), payload.as_ref());
            assert_eq!((error.code(), error.may_fit()), ("memory_exceeded", true), "{error}");
        }
        let refused = pool.try_take(1 << 47).unwrap_err();
        assert_eq!(crate::error::Error::from(refused).code(), "memory_exceeded");
        assert_eq!(pool.take(100).as_slice(), [0; 100]);
    }

    #[test]
    fn free_memory_yields_to_reservations() {
        let quota = Quota::new(10 << 20);
        let pool = Pool::new(quota.clone(), 100 << 20);
        drop((pool.take(5 << 20), pool.take(4 << 20)));
        assert_eq!(quota.cached(), 9 << 20);
        let held = quota.account().try_reserve(6 << 20);
        assert!(held.is_some());
        assert_eq!(quota.cached(), 4 << 20);
        drop(pool.take(1 << 20));
        assert_eq!(quota.cached(), 4 << 20, "no room is left to keep more");
        drop(pool);
        assert_eq!(quota.cached(), 0);
    }
}
