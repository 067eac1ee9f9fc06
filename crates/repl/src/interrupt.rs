//! Ctrl-C.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_server::engine::CancelToken;
use tokio::runtime::Runtime;

/// Hands Ctrl-C to the query that runs.
///
/// At the prompt the terminal is in raw mode and Ctrl-C is a key; a signal then comes from somewhere else and is left
/// alone, unless the input is no terminal: then it ends the process, as it would any program that reads a pipe.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    running: Arc<Mutex<Option<CancelToken>>>,
}

/// Marks a query as running until it is dropped.
#[derive(Debug)]
pub struct Running<'a> {
    interrupt: &'a Interrupt,
    /// Fired by Ctrl-C.
    pub token: CancelToken,
}

impl Interrupt {
    /// Listens for SIGINT in the runtime.
    pub fn new(runtime: &Runtime, idle_exits: bool) -> Self {
        let interrupt = Interrupt::default();
        let fire = interrupt.clone();
        runtime.spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if !fire.fire() && idle_exits {
                    std::process::exit(130);
                }
            }
        });
        interrupt
    }

    /// Cancels the query that runs; false if none does.
    pub fn fire(&self) -> bool {
        match &*self.lock() {
            Some(token) => {
                token.cancel();
                true
            }
            None => false,
        }
    }

    /// From now on Ctrl-C is for a query.
    pub fn start(&self) -> Running<'_> {
        let token = CancelToken::new();
        *self.lock() = Some(token.clone());
        Running { interrupt: self, token }
    }

    fn lock(&self) -> MutexGuard<'_, Option<CancelToken>> {
        // The value is replaced whole, so a panic cannot leave it half done.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // Whatever still runs for this query must not outlive it.
        self.token.cancel();
        *self.interrupt.lock() = None;
    }
}
