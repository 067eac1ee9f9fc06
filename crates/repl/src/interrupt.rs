//! Handling of Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_engine::Handle;
use tokio::runtime::Runtime;

/// How long a query may take to end before the process exits.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between checks for its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Passes Ctrl-C to the running query.
///
/// At the prompt the terminal is in raw mode and Ctrl-C is a key. A signal then comes from elsewhere and is ignored,
/// unless the input is not a terminal: then it ends the process, like any program that reads a pipe.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    state: Arc<Mutex<InterruptState>>,
}

#[derive(Debug, Default)]
struct InterruptState {
    running: Option<Handle>,
    /// Number of presses during the running query.
    presses: usize,
    /// True while a pager has the terminal and receives Ctrl-C.
    held: bool,
}

/// Marks a query as running until it is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    interrupt: &'a Interrupt,
    /// Cancelled by Ctrl-C.
    pub statement: Handle,
}

/// Leaves Ctrl-C to another program until it is dropped.
#[derive(Debug)]
pub struct InterruptHold<'a>(&'a Interrupt);

impl Interrupt {
    /// Listens for SIGINT in the runtime.
    pub fn new(runtime: &Runtime, idle_exits: bool) -> Self {
        let interrupt = Interrupt::default();
        let fire = interrupt.clone();
        // The line editor replaces this handler while it reads, and then restores it, so this one has to be installed
        // first. If that fails, the loop below fails in the same way.
        #[cfg(unix)]
        let _registered = {
            let _inside = runtime.enter();
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
        };
        runtime.spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if !fire.fire() && idle_exits {
                    std::process::exit(130);
                }
            }
        });
        // On SIGHUP or SIGTERM: no query continues, here or on a server.
        let last = interrupt.clone();
        runtime.spawn(async move {
            let status = tessera_server::cli::asked_to_end().await;
            let since = std::time::Instant::now();
            while last.stop() && since.elapsed() < PATIENCE {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            std::process::exit(status);
        });
        interrupt
    }

    /// Cancels the running query, even if a pager has the terminal; false if no query runs.
    fn stop(&self) -> bool {
        let state = self.lock();
        state.running.as_ref().is_some_and(|statement| {
            statement.cancel();
            true
        })
    }

    /// Cancels the running query; false if no query runs.
    pub fn fire(&self) -> bool {
        let mut state = self.lock();
        if state.held {
            return true;
        }
        state.presses += 1;
        match &state.running {
            Some(statement) => {
                statement.cancel();
                true
            }
            None => false,
        }
    }

    /// Number of Ctrl-C presses since the query began.
    pub fn presses(&self) -> usize {
        self.lock().presses
    }

    /// Directs Ctrl-C to a new query.
    pub fn start(&self) -> Running<'_> {
        let statement = Handle::new();
        let mut state = self.lock();
        state.running = Some(statement.clone());
        state.presses = 0;
        Running { interrupt: self, statement }
    }

    /// Leaves Ctrl-C to another program.
    pub fn hold(&self) -> InterruptHold<'_> {
        self.lock().held = true;
        InterruptHold(self)
    }

    fn lock(&self) -> MutexGuard<'_, InterruptState> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Work for this query must not outlive it.
        self.statement.cancel();
        self.interrupt.lock().running = None;
    }
}

impl Drop for InterruptHold<'_> {
    fn drop(&mut self) {
        self.0.lock().held = false;
    }
}
