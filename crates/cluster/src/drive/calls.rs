//! Calls that assign orders to workers, and their failures.

use super::holders::Moment;
use super::round::{Death, Stop};
use super::{CALL, Drive, add};
use crate::net::Fault;
use crate::wire::{Done, OrderMessage, Said, from_postcard, to_postcard};
use bytes::Bytes;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use tessera_exec::error::{Error, ErrorReport};
use tessera_planner::error::Class;
use tessera_planner::place::Worker;
use tessera_storage::lock;
use tessera_storage::sink::PartEntry;

impl Drive {
    /// Records an order that is done: others may fetch its chunks from now on.
    pub(super) fn finished(
        &self,
        worker: u32,
        address: &str,
        message: &OrderMessage,
        done: &Done,
    ) -> Result<(), Stop> {
        let retained = self.wrote(message, done).map_err(Stop::Over)?;
        let added = lock(&self.holders).add(worker, address, retained);
        added.map_err(|e| Stop::Over(Error::Broken { what: e.to_string() }))?;
        self.holds(worker, message);
        if let Some(stored) = &self.stored {
            stored.durable().add(&done.durable);
        }
        self.count(|t| {
            add(t, &done.progress);
            t.requests += done.requests;
            t.bytes_read += done.bytes_read;
            t.bytes_moved += done.bytes_moved;
            t.bytes_relayed += done.bytes_relayed;
            let of = t.each.entry(worker).or_default();
            of.orders += 1;
            of.operands += done.progress.stages.iter().map(|(operands, _)| operands).sum::<u64>();
            of.seconds += done.progress.stages.iter().map(|(_, seconds)| seconds).sum::<f64>();
            of.peak_bytes = of.peak_bytes.max(done.peak_bytes);
            of.bytes_moved += done.bytes_moved;
            t.spills += done.spills;
            t.bytes_spilled += done.bytes_spilled;
            t.orders += 1;
        });
        Ok(())
    }

    /// Runs one order once the worker is free for it.
    pub(super) async fn order(
        &self,
        worker: u32,
        address: &str,
        mut message: OrderMessage,
        alone: bool,
    ) -> Result<(Done, Moment), Stop> {
        let _stay = self.cluster.enter(worker, &self.id, alone).await;
        if !self.cluster.registry().is_here(worker) {
            // The worker died of something else.
            return Err(Stop::Failed(self.lost_error(worker, address)));
        }
        let (mut said, mut sent, mut parts) =
            self.assign(worker, address, &mut message, alone, false).await?;
        if matches!(said, Said::Behind) {
            // The worker lacks log entries of an order that did not arrive, or that arrives later.
            (said, sent, parts) = self.assign(worker, address, &mut message, alone, true).await?;
        }
        let Said::Done(mut done) = said else {
            let reason = "an order had no end".into();
            return Err(Stop::Failed(Error::PartyLost { party: address.into(), reason }));
        };
        match done.error.take() {
            None => {
                done.parts = parts;
                Ok((*done, sent))
            }
            Some(report) => Err(of_report(report, worker, address)),
        }
    }

    /// Sends an order with the chunks that the worker does not know of yet, or with all of them (`whole`), and waits
    /// for its end. Returns its last message, and the chunks of the output that it wrote.
    async fn assign(
        &self,
        worker: u32,
        address: &str,
        message: &mut OrderMessage,
        alone: bool,
        whole: bool,
    ) -> Result<(Said, Moment, Vec<PartEntry>), Stop> {
        let broken = |e: Fault| Stop::Over(Error::Broken { what: format!("an order: {e}") });
        let (news, sent) = lock(&self.holders).news(worker, whole).map_err(broken)?;
        message.news = news;
        let body = to_postcard(message).map_err(broken)?;
        self.order_bytes.fetch_add(body.len() as u64, Relaxed);
        let order = Counted { drive: self, number: self.next_order.fetch_add(1, Relaxed) };
        let parts = Mutex::new(Ok(Vec::new()));
        let heard = |answer: &Bytes| {
            let mut parts = lock(&parts);
            match from_postcard(answer) {
                Ok(Said::Runs(progress)) => {
                    drop(lock(&self.running).insert(order.number, progress))
                }
                Ok(Said::Wrote(more)) => {
                    if let Ok(parts) = &mut *parts {
                        parts.extend(more);
                    }
                }
                // The last message is read below.
                Ok(Said::Behind | Said::Done(_)) => {}
                Err(fault) => *parts = Err(fault),
            }
        };
        match self.ask(worker, address, "order", body, &heard).await {
            Err(Stop::Died(_)) => {
                self.cluster.posts().died(worker);
                let ran = self.ran(message, sent).map_err(Stop::Over)?;
                Err(Stop::Died(vec![Death { worker, alone, ran }]))
            }
            Err(stop) => Err(stop),
            Ok(last) => {
                let failed = |e| self.failed(worker, address, e);
                let parts = parts.into_inner().unwrap_or_else(PoisonError::into_inner);
                let parts = parts.map_err(failed)?;
                Ok((from_postcard(&last).map_err(failed)?, sent, parts))
            }
        }
    }

    /// Calls a worker and returns its last message. Stops waiting once the worker is lost.
    pub(super) async fn ask(
        &self,
        worker: u32,
        address: &str,
        kind: &str,
        body: Bytes,
        heard: &(dyn Fn(&Bytes) + Sync),
    ) -> Result<Bytes, Stop> {
        let registry = self.cluster.registry();
        let mut changes = registry.changes();
        let talk = async {
            let mut answers = self.cluster.peers().action(address, kind, body, CALL).await?;
            let mut last = Err(Fault::Unreachable("it ended without an answer".into()));
            while let Some(answer) = answers.next().await {
                let answer = answer?;
                heard(&answer);
                last = Ok(answer);
            }
            last
        };
        tokio::pin!(talk);
        let fault = loop {
            tokio::select! {
                answer = &mut talk => match answer {
                    Ok(last) => return Ok(last),
                    Err(fault) => break fault,
                },
                _ = changes.changed() => {
                    if !registry.is_here(worker) {
                        return Err(Stop::Died(Vec::new()));
                    }
                }
            }
        };
        match fault {
            Fault::Unreachable(reason) => {
                if self.cluster.is_gone(worker, address, &reason).await {
                    return Err(Stop::Died(Vec::new()));
                }
                Err(Stop::Failed(Error::PartyLost { party: address.into(), reason }))
            }
            fault => Err(self.failed(worker, address, fault)),
        }
    }

    pub(super) fn failed(&self, worker: u32, address: &str, fault: Fault) -> Stop {
        match fault {
            Fault::Failed(words) => match serde_json::from_str::<ErrorReport>(&words) {
                Ok(report) => of_report(report, worker, address),
                Err(_) => Stop::Over(Error::Broken { what: format!("{address} said: {words}") }),
            },
            Fault::NotFound(reason) => {
                Stop::Failed(forgotten(format!("{address} does not know: {reason}")))
            }
            fault => {
                Stop::Over(Error::PartyLost { party: address.into(), reason: fault.to_string() })
            }
        }
    }

    pub(super) fn lost_error(&self, worker: u32, address: &str) -> Error {
        self.cluster.lost_error(worker, address)
    }

    /// Probes all workers; true if one does not respond.
    pub(super) async fn missing(&self, members: &BTreeMap<u32, Worker>, why: &str) -> bool {
        let members = members.iter().map(|(worker, place)| (*worker, place.name.clone()));
        let gone = self.cluster.missing(members.collect(), why).await;
        self.count(|t| t.lost += gone);
        gone > 0
    }
}

/// The error that a worker reported. The message names the worker: its resources or its files may be the cause. The
/// server cancels by hanging up, so a worker that reports that it was cancelled has forgotten the work: `Err`.
pub(crate) fn of_worker(
    mut report: ErrorReport,
    worker: u32,
    address: &str,
) -> Result<Error, Error> {
    report.message = format!("{} (worker {worker}, {address})", report.message);
    match report.code.as_str() {
        "cancelled" => Err(forgotten(report.message)),
        _ => Ok(Error::Reported(Box::new(report))),
    }
}

/// The outcome of a round in which a worker reported an error.
fn of_report(report: ErrorReport, worker: u32, address: &str) -> Stop {
    match of_worker(report, worker, address) {
        Ok(error) if error.class() != Class::Retry => Stop::Over(error),
        Ok(error) | Err(error) => Stop::Failed(error),
    }
}

/// The error of a worker that has forgotten the requested plan because it left or joined again.
pub(crate) fn forgotten(message: String) -> Error {
    Error::reported("not_found", Class::Retry, message, None)
}

/// Counts an order while it runs.
struct Counted<'a> {
    drive: &'a Drive,
    number: u64,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        lock(&self.drive.running).remove(&self.number);
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    fn reported(code: &str, class: Class) -> ErrorReport {
        let message = "writing was cancelled".into();
        ErrorReport { code: code.into(), class, message, hint: None, may_fit: false }
    }

    #[test]
    fn an_order_that_a_worker_ends_by_itself_runs_again() {
        match of_report(reported("cancelled", Class::User), 1, "a:1") {
            Stop::Failed(error) => {
                assert_eq!((error.code(), error.class()), ("not_found", Class::Retry));
                assert_eq!(error.to_string(), "writing was cancelled (worker 1, a:1)");
            }
            _ => panic!("the statement ends"),
        }
        let stop = of_report(reported("division_by_zero", Class::User), 1, "a:1");
        assert!(matches!(stop, Stop::Over(error) if error.code() == "division_by_zero"));
    }
}
