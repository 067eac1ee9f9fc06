#![expect(unsafe_code, reason = "maps memory and gives it back; each block says why it is sound")]
//! Mappings from which buffers are cut.
//!
//! ```text
//!   region of 64 MiB, aligned to 2 MiB   | 3 MB | 3 MB | 800 KB | 6 MB | …  not touched yet |
//! ```
//! A page fault costs more than the arithmetic on the cells of a page: 400 MB in new chunks of 3 MB took 0.20 s of the
//! system's time in pages of 4 KiB, 0.07 s in pages of 2 MiB. Such a page is larger than many chunks, so neighbouring
//! buffers share pages. Every byte is cut once: a dropped buffer returns its pages to the system, and the last buffer
//! the region.

use super::HUGE_PAGE;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tessera_storage::lock;

const REGION: usize = 64 << 20;
/// Larger buffers have a region of their own.
const SHARED_MAX: usize = REGION / 4;
/// The page size of the system.
const PAGE: usize = 4096;

/// A mapping aligned to 2 MiB; bytes not yet written are zero.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is an address and a length; only the owners of its cuts access the bytes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Returns `None` where the call does not exist or the system refuses memory.
    fn new(len: usize) -> Option<Region> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let whole = len + HUGE_PAGE;
        // SAFETY: a new anonymous private mapping at an address of the system's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let head = base.cast::<u8>().align_offset(HUGE_PAGE);
        // SAFETY: `head < HUGE_PAGE`, so head, body and tail lie in the mapping of `len + HUGE_PAGE` bytes, at page
        // boundaries; head and tail are unmapped once and not used.
        unsafe {
            let start = base.cast::<u8>().add(head);
            if head > 0 {
                libc::munmap(base, head);
            }
            if head < HUGE_PAGE {
                libc::munmap(start.add(len).cast(), HUGE_PAGE - head);
            }
            // If the advice is refused, small pages remain, which is slower but correct.
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE);
            Some(Region { base: NonNull::new(start)?, len })
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping has this address and length, and every buffer cut from it is dropped.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A part of a region: whole pages with one owner ever.
#[derive(Debug)]
pub(super) struct Cut {
    region: Arc<Region>,
    at: usize,
    len: usize,
}

impl Cut {
    pub(super) fn ptr(&self) -> NonNull<u8> {
        // SAFETY: `at` lies in the region.
        unsafe { self.region.base.add(self.at) }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if Arc::strong_count(&self.region) > 1 {
            // SAFETY: the pages lie in the region, and only this cut covers them.
            unsafe {
                libc::madvise(self.ptr().as_ptr().cast(), self.len, libc::MADV_DONTNEED);
            }
        }
    }
}

/// The current region, and the offset of its uncut part.
#[derive(Debug, Default)]
pub(super) struct Cutter(Mutex<Option<(Arc<Region>, usize)>>);

impl Cutter {
    /// Returns zeroed memory of at least `size` bytes; `None` if the system refuses the mapping.
    pub(super) fn cut(&self, size: usize) -> Option<Cut> {
        let len = size.next_multiple_of(PAGE);
        if len > SHARED_MAX {
            return Some(Cut { region: Arc::new(Region::new(len)?), at: 0, len });
        }
        let mut current = lock(&self.0);
        let (region, at) = match current.take() {
            Some((region, at)) if at + len <= region.len => (region, at),
            _ => (Arc::new(Region::new(REGION)?), 0),
        };
        *current = Some((region.clone(), at + len));
        Some(Cut { region, at, len })
    }
}
