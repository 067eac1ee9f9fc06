//! Chunks of a plan that workers retain from earlier plans, and chunks that they need no longer retain.

use super::{Drive, RoundState};
use crate::net::Fault;
use crate::wire::{OrderMessage, Retained, RetainedQuery, Unread};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tessera_exec::task::Sources;
use tessera_planner::key::Keys;
use tessera_planner::place::Worker;
use tessera_planner::plan::{Plan, StageId, Task};
use tessera_planner::recover::Bitmap;
use tessera_storage::lock;
use tessera_storage::source::Versions;

/// Timeout of a request for retained chunks. Without a response the chunks are recomputed.
const LOOK_UP: Duration = Duration::from_secs(5);

/// The statement of a plan, by which workers find the chunks of its earlier run.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its id and the number of its part, if it is journalled.
    pub statement: Option<(String, usize)>,
    /// True if another server may have run it before.
    pub is_again: bool,
    /// True if it may use chunks of other statements, and they its chunks.
    pub shares: bool,
    /// The versions that it has read.
    pub versions: Arc<Versions>,
}

/// The stages whose cells never change: their sources are in the warehouse, or in memory under a version.
pub(super) fn lasting(plan: &Plan, sources: &Sources) -> Bitmap {
    let mut lasting = Bitmap::default();
    for (number, stage) in (0..).zip(&plan.stages) {
        let reads_lasting = stage.inputs.iter().all(|i| {
            let from = u64::from(i.from.stage.0);
            // A stage may read its own chunks.
            from == number || lasting.contains(from)
        });
        let lasts = reads_lasting
            && match &stage.task {
                Task::Load { source, .. } if source.is_resident() => source.version.is_some(),
                Task::Load { source, .. } => {
                    sources.location(source).is_some_and(|location| location.options.is_warehouse())
                }
                _ => true,
            };
        if lasts {
            lasting.insert(number);
        }
    }
    lasting
}

impl Drive {
    /// Asks workers, each once, for chunks that they retain of earlier plans.
    pub(super) async fn find_retained(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
    ) {
        let new: Vec<(u32, String)> = members
            .iter()
            .filter(|(worker, _)| state.asked.insert(**worker))
            .map(|(worker, member)| (*worker, member.name.clone()))
            .collect();
        if new.is_empty() {
            return;
        }
        let reuse = &self.message.reuse;
        let lasts = |stage: StageId| reuse.lasting.contains(u64::from(stage.0));
        let stages: Vec<_> = Keys::of(self.tiling.plan())
            .keyed()
            .map(|(stage, key)| (stage, key, lasts(stage)))
            .filter(|(_, _, lasts)| *lasts || self.identity.is_again)
            .collect();
        if stages.is_empty() {
            return;
        }
        let statement = reuse.statement.clone().filter(|_| self.identity.is_again);
        let query = RetainedQuery { statement, stages };
        let answers = new.into_iter().map(|(worker, address)| {
            let query = &query;
            async move {
                let peers = self.cluster.peers();
                let answer: Result<Retained, Fault> =
                    peers.call(&address, "retained", query, LOOK_UP).await;
                (worker, address, answer)
            }
        });
        let mut found = Vec::new();
        for (worker, address, answer) in futures::future::join_all(answers).await {
            match answer {
                Ok(retained) => found.push((worker, address, self.usable(state, retained))),
                Err(fault) => {
                    tracing::warn!(address, %fault, "a worker does not say what it retains");
                }
            }
        }
        for (worker, address, operands) in found {
            let one = BTreeSet::from([worker]);
            if operands.is_empty() || self.inform(state, one, members).await.is_err() {
                continue;
            }
            let count = operands.iter().map(|(_, numbers)| numbers.len()).sum::<u64>();
            match lock(&self.holders).add(worker, &address, operands) {
                Ok(()) => self.count(|t| t.retained += count),
                Err(fault) => tracing::warn!(address, %fault, "retained chunks are not used"),
            }
        }
    }

    /// The retained chunks that the plan may use. Those of the statement's earlier run bind it to the versions that it
    /// had read, for all workers.
    fn usable(&self, state: &mut RoundState, retained: Retained) -> Vec<(StageId, Bitmap)> {
        let Retained { mut lasting, own, versions } = retained;
        let known: BTreeMap<u64, u64> = self.identity.versions.all().into_iter().collect();
        let agrees = versions.iter().all(|(object, version)| match known.get(object) {
            Some(known) => known == version,
            // Workers that have the plan do not learn of other versions.
            None => lock(&self.encoded).is_none(),
        });
        if agrees && !own.is_empty() {
            self.identity.versions.expect(&versions);
            state.is_bound = true;
            lasting.extend(own);
        }
        lasting
    }

    /// Notes which chunks a worker may retain of the operands that an order made on the way.
    pub(super) fn holds(&self, worker: u32, message: &OrderMessage) {
        let stages = self.tiling.plan().stages.len();
        let mut held = lock(&self.held);
        let has = held.entry(worker).or_insert_with(|| vec![Bitmap::default(); stages]);
        for (stage, numbers) in &message.hold {
            has[stage.0 as usize].extend(numbers);
        }
    }

    /// Lets workers free the chunks that nothing of the plan reads any more. Runs in the background, one at a time: a
    /// chunk that is freed later costs memory only.
    pub(super) fn sweep(&self) {
        let (Some(io), Some(drive)) = (&self.io, self.this.upgrade()) else { return };
        if self.sweeps.fetch_add(1, SeqCst) > 0 {
            return;
        }
        io.spawn(async move {
            loop {
                let requests = drive.sweeps.load(SeqCst);
                drive.free_unread().await;
                if drive.sweeps.fetch_sub(requests, SeqCst) == requests {
                    return;
                }
            }
        });
    }

    async fn free_unread(&self) {
        let available = self.available();
        let Ok(rest) = self.rest(available).await else { return };
        let mut frees: BTreeMap<u32, Vec<(StageId, Bitmap)>> = BTreeMap::new();
        {
            let mut holders = lock(&self.holders);
            let mut held = lock(&self.held);
            let on_workers = holders.workers().chain(held.iter_mut().map(|(w, has)| (*w, has)));
            for (worker, has) in on_workers {
                let free = frees.entry(worker).or_default();
                for (has, (s, loads)) in has.iter_mut().zip(rest.loads.iter().enumerate()) {
                    let mut unread = has.clone();
                    unread.remove_all(loads);
                    // Chunks that a worker computed on the way do not count as available.
                    unread.remove_all(&rest.runs[s]);
                    if !unread.is_empty() {
                        has.remove_all(&unread);
                        free.push((StageId(s as u32), unread));
                    }
                }
            }
        }
        for (worker, operands) in frees.into_iter().filter(|(_, operands)| !operands.is_empty()) {
            let Some(address) = self.cluster.registry().address(worker) else { continue };
            let unread = Unread { plan: self.id.clone(), operands };
            let freed: Result<(), Fault> =
                self.cluster.peers().call(&address, "free", &unread, super::CALL).await;
            if let Err(fault) = freed {
                tracing::warn!(address, %fault, "a worker retains chunks that nothing reads any more");
            }
        }
    }
}
