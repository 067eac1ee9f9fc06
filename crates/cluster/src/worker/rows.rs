//! Tasks of rows on a worker: their calls, and the statements that have tasks here.
//!
//! The code that computes rows is passed to the worker ([`RowsRunner`]). A server that disconnected, or that has lost
//! sight of this worker, no longer reads answers, so their messages are dropped.

use super::{Worker, to_fault};
use crate::net::{Answers, Fault, Peers};
use crate::wire::{RowsAsk, RowsOrder, from_postcard, to_postcard};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tessera_exec::error::Error;
use tessera_exec::rows::ROWS_LACKS;
use tessera_planner::error::Class;
use tessera_storage::lock;

/// Upper bound on the statements that have rows on a worker, and on the forgotten ones that it remembers.
const QUERIES_MAX: usize = 1024;

/// Timeout for the first response of another worker.
const CALL: Duration = Duration::from_secs(30);

/// Runs tasks of rows on a worker.
pub trait RowsRunner: Send + Sync {
    /// Runs a task and yields the messages of its answer. It stops when the stream is dropped. The stream may be polled
    /// on any runtime of tokio.
    fn start(&self, order: RowsOrder) -> BoxStream<'static, Result<Bytes, Error>>;

    /// Yields a part of the rows that this worker keeps, or samples, as [`RowsRunner::start`] yields the rows of a task.
    fn part(&self, ask: RowsAsk) -> BoxStream<'static, Result<Bytes, Error>>;

    /// Ends the tasks of a statement that is over, and drops its stages. Unknown statements are ignored.
    fn forget(&self, query: [u8; 16]);

    /// The current load and the counters.
    fn load(&self) -> RowsLoad;

    /// True if a task of the stage needs no plan.
    fn knows(&self, query: [u8; 16], stage: u32) -> bool;
}

/// The load of a [`RowsRunner`], and its counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowsLoad {
    /// Running tasks.
    pub running: u64,
    /// Tasks that ended well.
    pub done: u64,
    /// Rows sent.
    pub rows: u64,
    /// Bytes of these rows.
    pub bytes: u64,
    /// Stages whose rows this worker keeps for other workers.
    pub kept: u64,
}

/// The runner of rows on a worker, and the statements that have tasks.
#[derive(Default)]
pub(super) struct Rows {
    runner: OnceLock<Arc<dyn RowsRunner>>,
    queries: Mutex<Queries>,
}

#[derive(Default)]
struct Queries {
    known: BTreeSet<[u8; 16]>,
    /// Recently forgotten ones: a task of one of them may arrive late.
    forgotten: VecDeque<[u8; 16]>,
}

impl Rows {
    pub(super) fn load(&self) -> RowsLoad {
        self.runner.get().map(|runner| runner.load()).unwrap_or_default()
    }

    /// Notes that a statement has tasks here.
    fn begin(&self, query: [u8; 16]) -> Result<(), Fault> {
        let mut queries = lock(&self.queries);
        if queries.forgotten.contains(&query) {
            return Err(Fault::NotFound("rows of a statement that is over".into()));
        }
        if queries.known.len() >= QUERIES_MAX && !queries.known.contains(&query) {
            let what = format!("too many statements have rows on the worker (limit {QUERIES_MAX})");
            return Err(to_fault(&unsupported(what)));
        }
        queries.known.insert(query);
        Ok(())
    }

    /// Forgets a statement that is over.
    pub(super) fn forget(&self, query: [u8; 16]) {
        {
            let mut queries = lock(&self.queries);
            queries.known.remove(&query);
            queries.forgotten.push_back(query);
            if queries.forgotten.len() > QUERIES_MAX {
                queries.forgotten.pop_front();
            }
        }
        if let Some(runner) = self.runner.get() {
            runner.forget(query);
        }
    }

    /// Drops the rows of all statements, because the server that sent them disconnected, or has lost sight of this
    /// worker. Their tasks may be sent again.
    pub(super) fn drop_all(&self) {
        let known = std::mem::take(&mut lock(&self.queries).known);
        if let Some(runner) = self.runner.get() {
            known.into_iter().for_each(|query| runner.forget(query));
        }
    }

    /// Starts a task; its end is the last message of the stream.
    pub(super) fn start(&self, body: &[u8]) -> Result<Answers, Fault> {
        let order: RowsOrder = from_postcard(body)?;
        let runner = self.runner_of(order.query)?;
        if order.plan.is_none() && !runner.knows(order.query, order.stage) {
            return Ok(lacks());
        }
        let what = format!("rows, task {} of stage {}", order.task, order.stage);
        Ok(faults(what, runner.start(order)))
    }

    /// Returns a part of the rows that are kept here to another worker.
    pub(super) fn part(&self, body: &[u8]) -> Result<Answers, Fault> {
        let ask: RowsAsk = from_postcard(body)?;
        let runner = self.runner_of(ask.query)?;
        if ask.plan.is_none() && !runner.knows(ask.query, ask.stage) {
            return Ok(lacks());
        }
        let what = match ask.part {
            Some(part) => format!("rows, part {part} of stage {}", ask.stage),
            None => format!("rows, samples of stage {}", ask.stage),
        };
        Ok(faults(what, runner.part(ask)))
    }

    /// The runner for the rows of a statement.
    fn runner_of(&self, query: [u8; 16]) -> Result<&Arc<dyn RowsRunner>, Fault> {
        let none = || to_fault(&unsupported("the worker runs no rows".into()));
        let runner = self.runner.get().ok_or_else(none)?;
        self.begin(query)?;
        Ok(runner)
    }
}

fn lacks() -> Answers {
    let lacks = Ok(Bytes::from_static(&[ROWS_LACKS]));
    stream::once(std::future::ready(lacks)).boxed()
}

/// The answers, with faults for errors. A panic is an error, never the end of the rows.
fn faults(what: String, answers: BoxStream<'static, Result<Bytes, Error>>) -> Answers {
    let answers = AssertUnwindSafe(answers).catch_unwind();
    let answers = answers.map(move |answer| match answer {
        Ok(answer) => answer.map_err(|e| to_fault(&e)),
        Err(payload) => Err(to_fault(&Error::of_panic(what.clone(), payload.as_ref()))),
    });
    answers.boxed()
}

/// Asks the worker at an address for a part of the rows that it keeps. Dropping the stream ends the call. Must be
/// called on the runtime of the cluster.
///
/// # Errors
/// The errors of [`Peers::action`].
pub async fn ask_rows(peers: &Peers, address: &str, ask: &RowsAsk) -> Result<Answers, Fault> {
    peers.action(address, "rows_part", to_postcard(ask)?, CALL).await
}

impl Worker {
    /// Sets the runner of tasks of rows. Without it the worker refuses them. Only the first call counts.
    pub fn runs_rows(&self, runner: Arc<dyn RowsRunner>) {
        self.rows.runner.get_or_init(|| runner);
    }
}

/// The error of a task that another place has to run.
fn unsupported(message: String) -> Error {
    Error::reported("unsupported", Class::User, message, None)
}
