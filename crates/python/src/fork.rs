//! Forks of the process.
//!
//! A child has the memory of its parent, and of its threads only the one that forked. tokio's locks are those of
//! `parking_lot`, which lists the threads that wait in a table of the process, by pointers into their own memory. The C
//! library gives that memory to the threads that the child starts, so that a child that uses such a lock follows
//! pointers into anything. Therefore no thread may wait there when the process forks: [`hold`] has all threads of all
//! runtimes wait at a gate of the standard library, whose waiters only the kernel knows, until the process has forked.
//!
//! A thread that runs other work cannot wait at the gate. Then the child cannot start threads of this library, which
//! the package reports.

use crate::engine::Engine;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};

/// How long a fork waits for threads that end their work.
const HOLD_MAX: Duration = Duration::from_secs(1);

/// Runtimes whose threads may be alive.
static RUNTIMES: AtomicUsize = AtomicUsize::new(0);

/// The threads of a runtime.
pub(crate) struct Threads {
    workers: usize,
    /// Workers and those for blocking work.
    live: AtomicUsize,
}

impl Threads {
    /// The threads of the runtime that `builder` builds.
    pub(crate) fn of(builder: &mut Builder, workers: usize) -> Arc<Threads> {
        RUNTIMES.fetch_add(1, Ordering::SeqCst);
        let threads = Arc::new(Threads { workers, live: AtomicUsize::new(0) });
        let (started, stopped) = (threads.clone(), threads.clone());
        builder.worker_threads(workers);
        builder.on_thread_start(move || _ = started.live.fetch_add(1, Ordering::SeqCst));
        builder.on_thread_stop(move || _ = stopped.live.fetch_sub(1, Ordering::SeqCst));
        threads
    }

    /// Has all threads wait at a gate. True if they do so in time.
    fn hold(&self, handle: &Handle, gate: &Arc<Gate>, until: Instant) -> bool {
        for _ in 0..self.workers {
            let gate = gate.clone();
            handle.spawn(async move { gate.pass() });
        }
        let mut sent = self.workers;
        loop {
            // The runtime starts a thread for a task that no idle thread takes.
            while sent < self.live.load(Ordering::SeqCst) {
                let gate = gate.clone();
                handle.spawn_blocking(move || gate.pass());
                sent += 1;
            }
            if !gate.wait_for(sent, until) {
                return false;
            }
            if self.live.load(Ordering::SeqCst) <= sent {
                return true;
            }
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        RUNTIMES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The place where threads wait until it opens.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    waiting: usize,
    is_open: bool,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) {
        let mut state = self.lock();
        state.waiting += 1;
        self.changed.notify_all();
        while !state.is_open {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until this number of threads wait. False if they do not in time.
    fn wait_for(&self, threads: usize, until: Instant) -> bool {
        let mut state = self.lock();
        while state.waiting < threads {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn open(&self) {
        self.lock().is_open = true;
        self.changed.notify_all();
    }
}

/// Threads that wait while the process forks.
#[pyclass(frozen)]
pub(crate) struct Held {
    gates: Vec<Arc<Gate>>,
    /// True if these are all threads of the engine.
    #[pyo3(get)]
    is_whole: bool,
    process: u32,
}

#[pymethods]
impl Held {
    /// Lets them go on. Does nothing in a child, which does not have them.
    fn release(&self) {
        if self.process == std::process::id() {
            self.gates.iter().for_each(|gate| gate.open());
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// Holds the threads of all engines, to fork.
#[pyfunction]
pub(crate) fn hold(py: Python<'_>, engines: Vec<Bound<'_, Engine>>) -> Held {
    let process = std::process::id();
    let idle: Option<Vec<_>> = engines.iter().map(|engine| engine.get().idle()).collect();
    let idle: Option<Vec<_>> = idle.map(|all| all.into_iter().flatten().collect());
    // An engine that is being opened or closed, or that runs a statement, has threads that cannot wait.
    let idle = idle.filter(|all| all.len() == RUNTIMES.load(Ordering::SeqCst));
    let Some(idle) = idle else { return Held { gates: Vec::new(), is_whole: false, process } };
    py.detach(|| {
        let until = Instant::now() + HOLD_MAX;
        let (mut gates, mut is_whole) = (Vec::new(), true);
        for (handle, threads) in idle {
            let gate = Arc::new(Gate::default());
            is_whole = threads.hold(&handle, &gate, until) && is_whole;
            gates.push(gate);
        }
        Held { gates, is_whole, process }
    })
}

/// Forgets the threads of the parent, in a child.
#[pyfunction]
pub(crate) fn forked() {
    RUNTIMES.store(0, Ordering::SeqCst);
}
