//! Chunks of results that workers write to the output of a statement.
//!
//! ```text
//!   worker: chunk ─▶ encoded, stored ─▶ the order ends: what was stored ─▶ ZarrWriter::add ─▶ the server commits
//! ```
//! Each operand of a result makes one object of the output: the plan has the grid of the store. So an order that runs
//! operands of results writes their objects, and an order that runs again writes them again: the same bytes under the
//! same names. What an order wrote counts when it has ended, with its sources unchanged.
//!
//! Results that are available and not written (retained from an earlier plan, durable, made by a worker that does not
//! see the output) do not run: workers get orders that load and write them. The rest (constants, arrays in the memory
//! of the server, everything if no worker sees the output) is written by the server.

use super::holders::is_permanent;
use super::round::{Job, Stop};
use super::{DURABLE, Drive, Has, RoundState, apart};
use crate::wire::{Done, Learned, News, OrderMessage};
use crate::worker::read;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tessera_exec::error::Error;
use tessera_exec::order::{Order, only_results};
use tessera_planner::place::Worker;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tessera_planner::tile::Tiling;
use tessera_storage::lock;
use tessera_storage::sink::{Other, ZarrWriter};

/// The store that workers write the chunks of results to.
pub(super) struct Output {
    writer: Arc<ZarrWriter>,
    /// Stages of results that no stage reads: workers do not retain their chunks.
    only: BTreeSet<StageId>,
    results: BTreeSet<StageId>,
    parts: Mutex<WrittenParts>,
    /// Workers that cannot write to the output.
    without: Mutex<BTreeSet<u32>>,
    /// Dropped when no worker writes any more.
    other: Arc<Other>,
}

/// The chunks that workers wrote.
struct WrittenParts {
    /// The operands of results whose chunks are written.
    written: Has,
    /// True once the server writes the rest: nothing that workers write counts any more, and a worker that makes a
    /// result again retains it.
    is_over: bool,
}

impl Output {
    pub(super) fn new(writer: Arc<ZarrWriter>, tiling: &Tiling) -> Self {
        let plan = tiling.plan();
        let written = vec![Bitmap::default(); plan.stages.len()];
        Output {
            other: Arc::new(writer.other()),
            writer,
            only: only_results(tiling),
            results: plan.results.iter().map(|of| of.stage).collect(),
            parts: Mutex::new(WrittenParts { written, is_over: false }),
            without: Mutex::default(),
        }
    }

    /// While this lives, a worker may write.
    pub(super) fn other(&self) -> Arc<Other> {
        self.other.clone()
    }
}

impl Drive {
    /// True if orders write the chunks of results.
    pub(super) fn writes(&self) -> bool {
        self.output.as_ref().is_some_and(|output| !lock(&output.parts).is_over)
    }

    /// From now on the server loads results.
    pub(super) fn loads_now(&self) {
        if let Some(output) = &self.output {
            lock(&output.parts).is_over = true;
        }
    }

    /// True if workers wrote a chunk of a result.
    pub(super) fn is_written(&self) -> bool {
        let is_any = |written: &Has| written.iter().any(|operands| !operands.is_empty());
        self.output.as_ref().is_some_and(|output| is_any(&lock(&output.parts).written))
    }

    /// Removes the operands that are written.
    pub(super) fn remove_written(&self, results: &mut BTreeMap<StageId, Bitmap>) {
        let Some(output) = &self.output else { return };
        let parts = lock(&output.parts);
        for (stage, operands) in results {
            operands.remove_all(&parts.written[stage.0 as usize]);
        }
    }

    /// Number of operands of a result that are written, or among the available ones.
    pub(super) fn has_result(&self, stage: StageId, available: &Bitmap) -> u64 {
        let Some(output) = &self.output else { return available.len() };
        let mut has = available.clone();
        has.extend(&lock(&output.parts).written[stage.0 as usize]);
        has.len()
    }

    /// Notes the chunks that an order wrote, and returns the operands whose chunks the worker retained.
    pub(super) fn wrote(
        &self,
        message: &OrderMessage,
        done: &Done,
    ) -> Result<Vec<(StageId, Bitmap)>, Error> {
        let run = &message.run;
        let Some(output) = self.output.as_ref().filter(|_| done.wrote) else {
            return Ok(run.clone());
        };
        let retained = run.iter().filter(|(stage, _)| !output.only.contains(stage)).cloned();
        let retained = retained.collect();
        let mut parts = lock(&output.parts);
        if parts.is_over {
            // The server writes these results.
            return Ok(retained);
        }
        output.writer.add(&done.parts)?;
        for (stage, numbers) in run.iter().filter(|(stage, _)| output.results.contains(stage)) {
            parts.written[stage.0 as usize].extend(numbers);
        }
        drop(parts);
        let (objects, bytes) = done.parts.iter().fold((0, 0), |(objects, bytes), part| {
            let (n, b) = part.amount();
            (objects + n, bytes + b)
        });
        self.count(|t| {
            t.objects_written += objects;
            t.bytes_written += bytes;
        });
        Ok(retained)
    }

    /// Notes the response of a worker to the plan.
    pub(super) fn learned(&self, worker: u32, address: &str, answer: &[u8]) -> Result<(), Stop> {
        let learned: Learned = read(answer).map_err(|e| self.failed(worker, address, e))?;
        let (Some(output), Some(reason)) = (&self.output, learned.no_output) else { return Ok(()) };
        if lock(&output.without).insert(worker) {
            let what = format!("it cannot write the output of a statement: {reason}");
            self.cluster.registry().note("no_output", Some(worker), Some(&self.id), what);
            self.count(|t| t.no_output += 1);
        }
        Ok(())
    }

    /// Orders that load and write the available results, one for each worker that may write: the worker that has a
    /// chunk writes it, if it can. Returns no orders if the last ones wrote nothing.
    pub(super) fn writing_jobs(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
    ) -> Vec<Job> {
        let Some(output) = &self.output else { return Vec::new() };
        let holders = lock(&self.holders);
        let parts = lock(&output.parts);
        let written = parts.written.iter().map(Bitmap::len).sum();
        let without = lock(&output.without);
        let workers: Vec<u32> = members.keys().copied().filter(|w| !without.contains(w)).collect();
        if parts.is_over || workers.is_empty() || state.wrote.replace(written) == Some(written) {
            return Vec::new();
        }
        let mut runs: BTreeMap<u32, Vec<(StageId, Bitmap)>> = BTreeMap::new();
        let mut shared = 0;
        for stage in &output.results {
            let s = stage.0 as usize;
            let mut each: BTreeMap<u32, Bitmap> = BTreeMap::new();
            let mut met = parts.written[s].clone();
            let is_able = |party: &u32| workers.contains(party);
            let (able, others): (Vec<_>, Vec<_>) = holders
                .parties()
                .filter(|(party, _)| *party == DURABLE || !is_permanent(*party))
                .partition(|(party, _)| is_able(party));
            for (worker, has) in able {
                let mut numbers = has[s].clone();
                numbers.remove_all(&met);
                met.extend(&numbers);
                each.entry(worker).or_default().extend(&numbers);
            }
            for number in others.iter().flat_map(|(_, has)| has[s].iter()) {
                if met.insert(number) {
                    each.entry(workers[shared % workers.len()]).or_default().insert(number);
                    shared += 1;
                }
            }
            for (worker, numbers) in each.into_iter().filter(|(_, numbers)| !numbers.is_empty()) {
                runs.entry(worker).or_default().push((*stage, numbers));
            }
        }
        let job = |(worker, run)| {
            let message = OrderMessage {
                plan: self.id.clone(),
                run,
                hold: Vec::new(),
                news: News::default(),
                begun: false,
                threads: self.threads,
                writes: true,
            };
            Job { step: 0, worker, after: Vec::new(), message, alone: false }
        };
        runs.into_iter().map(job).collect()
    }

    /// The rest of a plan for the server, if workers wrote chunks of its results: the other chunks of them.
    ///
    /// # Errors
    /// [`Order::new`]'s.
    pub async fn rest_for_server(&self, whole: &Arc<Tiling>) -> Result<Option<Order>, Error> {
        if !self.is_written() {
            return Ok(None);
        }
        let (whole, available, left) = (whole.clone(), self.for_server(), self.unwritten());
        apart(move || Order::new(whole, left, &available)).await?.map(Some)
    }
}
