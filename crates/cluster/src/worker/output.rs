//! Chunks of results that a worker writes to the output of a plan.

use super::Worker;
use super::plans::Known;
use crate::wire::{Learned, Said};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_exec::order::Discard;
use tessera_exec::schedule::{Outcome, Sink};
use tessera_storage::sink::{Memory, PartBatch, PartWriter, SharedOutput};
use tokio::runtime::Handle;

/// Upper bound on the chunks that a message reports.
const REPORTED_MAX: usize = 4096;

impl Worker {
    /// Opens the output of a plan. If this process does not see it, or may not write there, others write.
    pub(super) async fn output(
        &self,
        shared: Option<&SharedOutput>,
    ) -> (Option<Arc<PartWriter>>, Learned) {
        let Some(shared) = shared else { return (None, Learned::default()) };
        let quota: Arc<dyn Memory> = self.runtime.quota().clone();
        let threads = self.runtime.config().threads;
        let io = Handle::current();
        match PartWriter::open(shared, &self.stores, &quota, &io, threads).await {
            Ok(output) => (Some(output), Learned::default()),
            Err(error) => {
                tracing::warn!(output = shared.display(), %error, "this worker cannot write the output: the other workers or the server do");
                (None, Learned { no_output: Some(error.to_string()) })
            }
        }
    }
}

/// The chunks that an order writes.
pub(super) fn begin(known: &Known, writes: bool) -> Option<Arc<PartBatch>> {
    known.output().filter(|_| writes).map(|output| output.batch())
}

/// The sink of an order.
pub(super) fn sink(output: &Option<Arc<PartBatch>>) -> Arc<dyn Sink> {
    match output {
        Some(batch) => batch.clone(),
        None => Arc::new(Discard),
    }
}

/// Waits until the chunks of an order are stored, and returns the messages that report them.
pub(super) async fn finish(
    output: Option<&PartBatch>,
    outcome: &mut Outcome,
    by_all: &AtomicU64,
) -> VecDeque<Said> {
    let mut said = VecDeque::new();
    let Some(batch) = output.filter(|_| outcome.result.is_ok()) else { return said };
    match batch.finish().await {
        Ok(entries) => {
            by_all.fetch_add(entries.iter().map(|entry| entry.amount().1).sum(), Relaxed);
            said.extend(entries.chunks(REPORTED_MAX).map(|some| Said::Wrote(some.to_vec())));
        }
        Err(error) => outcome.result = Err(error.into()),
    }
    said
}
