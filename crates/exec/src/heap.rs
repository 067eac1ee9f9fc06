//! The system's allocator in a long-running process.
//!
//! glibc retains freed memory for the next allocation, in arenas that threads share. A server with little memory would
//! retain several times its use. So it has few arenas, and returns memory to the system once much of it is unused.

#![allow(unsafe_code, reason = "calls of the C library")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Upper bound on the bytes that a process holds beyond its accounted memory.
const UNUSED_MAX: u64 = 64 << 20;
/// Time between two measurements of the heap.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Below this memory limit each large block is its own mapping.
const SMALL_LIMIT: u64 = 1 << 30;
const LARGE_BLOCK: libc::c_int = 1 << 20;

/// Configures the allocator for a process that computes with `threads` threads within a memory limit.
///
/// There are no more arenas than threads; eight for each core are usual. With a small limit, large blocks return to the
/// system when they are freed. By default glibc raises the size of such blocks to that of the largest one freed so far,
/// up to 32 MiB, and smaller ones fragment the arenas.
pub fn configure(threads: usize, limit: u64) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: mallopt takes two integers and may be called at any time; it refuses an unknown value.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, threads.max(2));
            if limit < SMALL_LIMIT {
                libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
            }
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = (threads, limit, SMALL_LIMIT, LARGE_BLOCK);
}

/// True if the process holds much more memory than the `used` accounted bytes of a quota of `limit` bytes, so that
/// [`give_back`] is worth its time. Measures at most twice a second.
pub fn is_large(used: u64, limit: u64) -> bool {
    static LOOKED: Mutex<Option<Instant>> = Mutex::new(None);
    let Ok(mut looked) = LOOKED.try_lock() else { return false };
    if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
        return false;
    }
    *looked = Some(Instant::now());
    anonymous_bytes().is_some_and(|held| held > used.saturating_add(UNUSED_MAX.min(limit / 2)))
}

/// Returns unused memory of the allocator to the system. Takes some milliseconds.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: malloc_trim takes an integer, locks what it reads, and may be called at any time.
        unsafe { libc::malloc_trim(0) };
    }
}

/// Bytes of memory that belong to no file; `None` where the system does not report it.
fn anonymous_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_is_given_back() {
        // Small blocks come from the heap; the last one holds its top.
        let blocks: Vec<Vec<u8>> = (0..200_000).map(|_| vec![1; 1024]).collect();
        let last = vec![1u8; 1024];
        let held = anonymous_bytes().unwrap_or_default();
        assert!(held > UNUSED_MAX && is_large(0, u64::MAX) && !is_large(0, u64::MAX), "{held}");
        drop(blocks);
        give_back();
        let after = anonymous_bytes().unwrap_or_default();
        assert!(after + (100 << 20) < held, "{held}, then {after}: {}", last.len());
    }
}
