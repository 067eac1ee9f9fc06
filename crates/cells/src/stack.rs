//! Releases unused memory of thread stacks.
//!
//! Planning recurses and touches megabytes of its thread's stack, which stay resident as long as the thread
//! lives. A server has dozens of threads that plan in turn, so each one releases its unused pages.

#![allow(unsafe_code, reason = "calls of the C library")]

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Minimum time between two releases by a thread: the kernel zeroes the pages again when they are touched.
const EVERY: Duration = Duration::from_secs(1);
/// Bytes below the caller's frame that are retained: more than the calls here need.
const MARGIN: usize = 64 << 10;

/// Releases the unused part of the thread's stack to the system, at most once per second.
pub(crate) fn give_back() {
    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    if LAST.get().is_some_and(|at| at.elapsed() < EVERY) {
        return;
    }
    LAST.set(Some(Instant::now()));
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if let Some((low, high)) = bounds() {
        let here = std::hint::black_box(&low) as *const usize as usize;
        let end = here.saturating_sub(MARGIN) & !(PAGE - 1);
        // A deep recursion may have moved the thread to another stack: then nothing can be released.
        if (low..high).contains(&here) && end > low {
            // SAFETY: the range lies inside the mapping of this thread's stack and ends MARGIN bytes below a local
            // variable of this frame; the stack grows down, so that no live frame, nor the red zone of one, is in it.
            // What is discarded is never read: frames are written before they are read.
            unsafe { libc::madvise(low as *mut libc::c_void, end - low, libc::MADV_DONTNEED) };
        }
    }
}

/// A multiple of every page size, to align the ends of ranges.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const PAGE: usize = 64 << 10;

/// The bounds of this thread's stack; `None` for the main thread, whose stack is mapped as it grows.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn bounds() -> Option<(usize, usize)> {
    // SAFETY: `attr` is initialised by pthread_getattr_np before it is read, and destroyed once. The calls write to
    // locals that outlive them.
    unsafe {
        if libc::gettid() == libc::getpid() {
            return None;
        }
        let mut attr = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
        if libc::pthread_getattr_np(libc::pthread_self(), attr.as_mut_ptr()) != 0 {
            return None;
        }
        let (mut low, mut size) = (std::ptr::null_mut(), 0);
        let found = libc::pthread_attr_getstack(attr.as_ptr(), &mut low, &mut size) == 0;
        libc::pthread_attr_destroy(attr.as_mut_ptr());
        found.then(|| ((low as usize).next_multiple_of(PAGE), low as usize + size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deep(levels: usize) -> usize {
        let frame = std::hint::black_box([levels as u8; 4096]);
        if levels == 0 { 0 } else { deep(levels - 1) + usize::from(frame[7] != 0) }
    }

    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
        line.and_then(|l| l.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_thread_releases_its_stack_and_continues() {
        let thread = std::thread::Builder::new().stack_size(128 << 20);
        let run = thread.spawn(|| {
            let kept = std::hint::black_box([7u8; 8192]);
            let found = deep(12_000);
            let before = resident();
            give_back();
            let after = resident();
            let again = deep(12_000);
            (found == again, before, after, kept.iter().all(|&x| x == 7))
        });
        let run = run.ok().and_then(|run| run.join().ok());
        let (same, before, after, kept) = run.unwrap_or_default();
        assert!(same && kept);
        assert!(before > after + (30 << 10), "{before} kB, then {after} kB");
    }
}
