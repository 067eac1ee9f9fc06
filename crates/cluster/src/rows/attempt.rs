//! One attempt at a task on a worker.

use super::assign::Place;
use super::figures::Runs;
use super::pieces::{Pieces, Said, Unusable};
use super::slots::Slot;
use super::{CALL, Item, Items, RowsPlan, Task};
use crate::drive::calls::{forgotten, of_worker};
use crate::net::{Answers, Fault};
use crate::wire::{RowsOrder, to_postcard};
use bytes::Bytes;
use futures::StreamExt;
use std::time::Duration;
use tessera_exec::error::{Error, ErrorReport};
use tessera_exec::rows::{ROWS_HOLDER_LOST, ROWS_REFUSED, RowsDone};
use tessera_planner::error::Class;
use tessera_storage::lock;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::Instant;

/// Time after which tasks no longer wait for the task that brings a worker the plan of their stage.
const TEACH: Duration = Duration::from_secs(10);

/// Codes of errors whose cause may be the worker's machine: files that it cannot reach or may not read, its memory, its
/// disk. The server may succeed where the worker failed. If it fails too, its error is the one that is reported.
const PLACES: [&str; 18] = [
    ROWS_REFUSED,
    "unsupported",
    "memory_exceeded",
    "no_space",
    "scratch_full",
    "scratch_unusable",
    "scratch_corrupt",
    "not_found",
    "permission_denied",
    "not_allowed",
    "unreachable",
    "storage_timeout",
    "storage_error",
    "corrupt",
    "corrupt_chunk",
    "corrupt_file",
    "invalid_metadata",
    "not_a_table",
];

/// How an attempt ended.
pub(super) enum Ended {
    /// All batches and `Done` were delivered.
    Done,
    NoReader,
    /// The task gave way to another one; its reader has read on.
    Evicted,
    Died,
    /// Another worker, at this address, does not give it the rows that it keeps.
    HolderLost {
        address: String,
        reason: String,
    },
    /// The worker cannot run it; another place may.
    Cannot(Error),
    /// A failure that may not repeat.
    Failed(Error),
    /// A failure that will repeat.
    Over(Error),
}

/// Held while a worker gets the plan of a stage.
type Teaching = OwnedMutexGuard<bool>;

/// The outcome of reading the answers of a worker.
enum Heard {
    Ended(Ended),
    /// The worker does not know the stage.
    Lacks,
    Fault(Fault),
}

/// An attempt at a task.
pub(super) struct Attempt<'a> {
    plan: &'a RowsPlan,
    task: &'a Task,
    items: &'a Items,
    /// Batches that all attempts have delivered, and below, batches that this attempt has received.
    delivered: &'a mut u64,
    received: u64,
    worker: u32,
    address: String,
    /// `None` once it was given up.
    place: Option<Place>,
    runs: Runs<'a>,
}

impl<'a> Attempt<'a> {
    /// An attempt that skips the batches that were `delivered` and counts those that it delivers.
    pub(super) fn new(
        plan: &'a RowsPlan,
        task: &'a Task,
        place: Place,
        items: &'a Items,
        delivered: &'a mut u64,
    ) -> Self {
        let (worker, address) = (place.worker, place.address.clone());
        let runs = Runs::new(plan, worker);
        let place = Some(place);
        Attempt { plan, task, items, delivered, received: 0, worker, address, place, runs }
    }

    pub(super) async fn run(mut self) -> Ended {
        let known = {
            let key = (self.worker, self.task.stage);
            lock(&self.plan.known).entry(key).or_default().clone()
        };
        let has_it = known.clone().lock_owned().await;
        let mut teaching = (!*has_it).then_some(has_it);
        loop {
            let brought_plan = teaching.is_some();
            let fault = match self.talk(&mut teaching).await {
                Heard::Ended(ended) => return ended,
                Heard::Lacks if brought_plan => {
                    Fault::NotFound("the stage, whose plan it was sent".into())
                }
                Heard::Lacks => {
                    let mut has_it = known.clone().lock_owned().await;
                    *has_it = false;
                    teaching = Some(has_it);
                    continue;
                }
                Heard::Fault(fault) => fault,
            };
            return self.failed(fault).await;
        }
    }

    /// Sends the task, with the plan if this attempt is to bring it, and delivers the worker's answers.
    async fn talk(&mut self, teaching: &mut Option<Teaching>) -> Heard {
        let registry = self.plan.cluster.registry().clone();
        let mut changes = registry.changes();
        let alone = self.place.as_ref().is_some_and(|place| place.alone);
        let order = RowsOrder {
            query: self.plan.query,
            stage: self.task.stage,
            task: self.task.number,
            header: self.task.header.clone(),
            plan: teaching.is_some().then(|| self.task.plan.clone()),
            holders: self.plan.holders(self.task, (self.worker, self.address.as_str()), alone),
        };
        let mut answers = match self.call(&order, &mut changes).await {
            Ok(answers) => answers,
            Err(fault) => return Heard::Fault(fault),
        };
        let mut pieces = Pieces::default();
        let taught_by = Instant::now() + TEACH;
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                _ = changes.changed() => {
                    if !registry.is_here(self.worker) {
                        return Heard::Fault(self.lost());
                    }
                    continue;
                }
                () = tokio::time::sleep_until(taught_by), if teaching.is_some() => {
                    // Others bring the plan themselves.
                    *teaching = None;
                    continue;
                }
            };
            let said = match answer {
                Some(Ok(message)) => pieces.add(message),
                Some(Err(fault)) => return Heard::Fault(fault),
                None => return Heard::Fault(Fault::Unreachable("it ended without `Done`".into())),
            };
            match said {
                Ok(Said::Lacks) => return Heard::Lacks,
                Ok(said) => {
                    if let Some(mut has_it) = teaching.take() {
                        *has_it = true;
                    }
                    match self.take(said, answers).await {
                        Ok(open) => answers = open,
                        Err(ended) => return Heard::Ended(ended),
                    }
                }
                Err(Unusable::Broken(fault)) => return Heard::Fault(fault),
                Err(Unusable::Large(error)) => return Heard::Ended(Ended::Cannot(error)),
            }
        }
    }

    /// Calls the worker. Stops waiting once it is lost.
    async fn call(
        &self,
        order: &RowsOrder,
        changes: &mut watch::Receiver<u64>,
    ) -> Result<Answers, Fault> {
        let cluster = &self.plan.cluster;
        let call = cluster.peers().action(&self.address, "rows", to_postcard(order)?, CALL);
        tokio::pin!(call);
        loop {
            tokio::select! {
                answers = &mut call => return answers,
                _ = changes.changed() => {
                    if !cluster.registry().is_here(self.worker) {
                        return Err(self.lost());
                    }
                }
            }
        }
    }

    /// Handles a message of a worker, and returns its answers if more are to come.
    async fn take(&mut self, said: Said, answers: Answers) -> Result<Answers, Ended> {
        match said {
            Said::Begun | Said::Lacks => Ok(answers),
            Said::Runs(runs) => {
                lock(&self.plan.figures).runs(self.runs.number, runs);
                Ok(answers)
            }
            Said::Batch(messages) => {
                let bytes = messages.iter().map(|message| message.len() as u64).sum();
                lock(&self.plan.figures).arrived(self.worker, bytes);
                self.received += 1;
                if self.received <= *self.delivered {
                    // The reader has it from an earlier attempt.
                    return Ok(answers);
                }
                let answers = self.deliver(messages, answers).await?;
                answers.ok_or(Ended::Evicted)
            }
            Said::Done(done, message) => {
                drop(answers);
                Err(self.done(&done, message).await)
            }
        }
    }

    /// Gives the reader a batch. If another task needs the place while the reader does not read, the answers and the
    /// place are given up; the reader gets the batch nevertheless.
    async fn deliver(
        &mut self,
        messages: Vec<Bytes>,
        answers: Answers,
    ) -> Result<Option<Answers>, Ended> {
        let item = match self.items.try_send(Ok(Item::Batch(messages))) {
            Ok(()) => {
                *self.delivered += 1;
                return Ok(Some(answers));
            }
            Err(TrySendError::Closed(_)) => return Err(Ended::NoReader),
            Err(TrySendError::Full(item)) => item,
        };
        let mut answers = Some(answers);
        let evicted = self.place.as_ref().map(|place| place.slot.evicted.clone());
        let evicted = evicted.unwrap_or_default();
        self.set_unread(true);
        let items = self.items;
        let room = items.reserve();
        tokio::pin!(room);
        let room = loop {
            tokio::select! {
                room = &mut room => break room,
                () = evicted.cancelled(), if answers.is_some() => {
                    answers = None;
                    self.place = None;
                }
            }
        };
        let Ok(room) = room else { return Err(Ended::NoReader) };
        room.send(item);
        *self.delivered += 1;
        self.set_unread(false);
        Ok(answers)
    }

    fn set_unread(&self, unread: bool) {
        let slot: Option<&Slot> = self.place.as_ref().map(|place| &place.slot);
        if let Some(slot) = slot {
            slot.set_unread(unread);
        }
    }

    /// The worker has sent all batches.
    async fn done(&mut self, done: &RowsDone, message: Bytes) -> Ended {
        let (received, task) = (self.received, self.task);
        if received != done.batches || received < *self.delivered {
            let what = format!(
                "task {} of stage {} of rows: worker {} ({}) sent {received} batches, where {} were made \
                 and {} had come before",
                task.number, task.stage, self.worker, self.address, done.batches, self.delivered
            );
            return Ended::Over(Error::Broken { what });
        }
        lock(&self.plan.figures).done(self.runs.number, task.stage, self.worker, done);
        // The worker is free, whether or not the reader reads on.
        self.place = None;
        match self.items.send(Ok(Item::Done(message))).await {
            Ok(()) => Ended::Done,
            Err(_) => Ended::NoReader,
        }
    }

    fn lost(&self) -> Fault {
        Fault::Unreachable(self.plan.cluster.lost_error(self.worker, &self.address).to_string())
    }

    /// How the attempt ends with a fault.
    async fn failed(self, fault: Fault) -> Ended {
        let (cluster, worker, address) = (&self.plan.cluster, self.worker, &self.address);
        let party = || format!("worker {worker} at {address}");
        match fault {
            Fault::Unreachable(reason) => {
                if cluster.is_gone(worker, address, &reason).await {
                    // The place is held until here: the task that handles the death first sees the operands that ran.
                    cluster.posts().died(worker);
                    return Ended::Died;
                }
                Ended::Failed(Error::PartyLost { party: party(), reason })
            }
            Fault::Failed(words) => match serde_json::from_str::<ErrorReport>(&words) {
                Ok(ErrorReport { code, message: reason, hint, .. }) if code == ROWS_HOLDER_LOST => {
                    Ended::HolderLost { address: hint.unwrap_or_default(), reason }
                }
                Ok(report) => of_report(report, worker, address),
                Err(_) => Ended::Over(Error::Broken { what: format!("{address} said: {words}") }),
            },
            Fault::NotFound(reason) => {
                Ended::Failed(forgotten(format!("{address} does not know: {reason}")))
            }
            fault => Ended::Over(Error::PartyLost { party: party(), reason: fault.to_string() }),
        }
    }
}

/// How an attempt ends with an error of the worker.
fn of_report(report: ErrorReport, worker: u32, address: &str) -> Ended {
    let is_of_place = PLACES.contains(&report.code.as_str());
    match of_worker(report, worker, address) {
        Ok(error) if is_of_place => Ended::Cannot(error),
        Ok(error) if error.class() != Class::Retry => Ended::Over(error),
        Ok(error) | Err(error) => Ended::Failed(error),
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    fn reported(code: &str, class: Class) -> Ended {
        let message = "it went wrong".into();
        let report = ErrorReport { code: code.into(), class, message, hint: None, may_fit: false };
        of_report(report, 1, "a:1")
    }

    #[test]
    fn errors_decide_who_continues() {
        let Ended::Failed(error) = reported("cancelled", Class::User) else { panic!("not again") };
        assert_eq!((error.code(), error.class()), ("not_found", Class::Retry));
        assert_eq!(error.to_string(), "it went wrong (worker 1, a:1)");
        for (code, class) in [
            ("memory_exceeded", Class::Limit),
            ("storage_timeout", Class::Retry),
            ("not_found", Class::User),
            (ROWS_REFUSED, Class::User),
        ] {
            assert!(matches!(reported(code, class), Ended::Cannot(e) if e.code() == code));
        }
        // A file that changed is another one everywhere.
        assert!(matches!(reported("source_changed", Class::Retry), Ended::Failed(_)));
        assert!(matches!(reported("division_by_zero", Class::User), Ended::Over(_)));
        assert!(matches!(reported("internal", Class::Internal), Ended::Over(_)));
    }
}
