//! Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_engine::Handle;
use tokio::runtime::Runtime;

/// What a query has to come to its end before the process goes.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked whether it did.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Hands Ctrl-C to the query that runs.
///
/// At the prompt the terminal is in raw mode and Ctrl-C is a key; a signal then comes from somewhere else and is left
/// alone, unless the input is no terminal: then it ends the process, as it would any program that reads a pipe.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    state: Arc<Mutex<InterruptState>>,
}

#[derive(Debug, Default)]
struct InterruptState {
    running: Option<Handle>,
    /// Presses for the query that runs.
    presses: usize,
    /// True while a pager has the terminal: Ctrl-C is its.
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
        // The line editor puts its own handler in this one's place while it reads, and then this one back: so this one
        // has to be there first. Should that fail, the loop below fails in the same way.
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
        // A terminal that is gone, or SIGTERM: nothing goes on for nobody, here or at a server.
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

    /// Cancels the query that runs, whoever has the terminal; false if none does.
    fn stop(&self) -> bool {
        let state = self.lock();
        state.running.as_ref().is_some_and(|statement| {
            statement.cancel();
            true
        })
    }

    /// Cancels the query that runs; false if none does.
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

    /// How often Ctrl-C came since the query began.
    pub fn presses(&self) -> usize {
        self.lock().presses
    }

    /// From now on Ctrl-C is for a query.
    pub fn start(&self) -> Running<'_> {
        let statement = Handle::new();
        let mut state = self.lock();
        state.running = Some(statement.clone());
        state.presses = 0;
        Running { interrupt: self, statement }
    }

    /// From now on Ctrl-C is for another program.
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
        // Whatever still runs for this query must not outlive it.
        self.statement.cancel();
        self.interrupt.lock().running = None;
    }
}

impl Drop for InterruptHold<'_> {
    fn drop(&mut self) {
        self.0.lock().held = false;
    }
}
