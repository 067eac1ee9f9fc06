//! Assigns the rest of a plan as jobs to the current workers.

use super::holders::Moment;
use super::round::Job;
use super::{Drive, Has, RoundState};
use crate::wire::{News, OrderMessage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use tessera_exec::error::Error;
use tessera_exec::order::Order;
use tessera_planner::place::{Rates, Share, Strategy, Worker, place};
use tessera_planner::plan::StageId;
use tessera_planner::recover::{Bitmap, Recovery};
use tessera_planner::tile::{Tiling, for_each_index};

/// Measured rates: moving a chunk from one worker's shelf to another's memory on one machine, with checksums and
/// copies, and the overhead of a step.
const RATES: Rates = Rates {
    bytes_per_s: 500_000_000,
    thread_bytes_per_s: 1_500_000_000,
    latency_us: 200,
    round_us: 2_000,
};

impl Drive {
    /// The jobs of each worker for the rest of the plan. Workers of the placement keep their operands. If other workers
    /// joined, all share the rest; if none of the placed workers is left, everything is placed again.
    pub(super) fn jobs(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
        recovery: &Recovery,
    ) -> Result<Vec<Job>, Error> {
        let tiling = &*self.tiling;
        let runs = |stage: StageId, number: u64| {
            self.wanted[stage.0 as usize].contains(number) && recovery.runs(stage, number)
        };
        let is_first = self.placed(state, members, recovery, &runs)?;
        state.suspects.retain(runs);
        let Some((numbers, placement)) = &state.placed else { return Ok(Vec::new()) };
        let mut jobs: Vec<Job> = Vec::new();
        let mut places: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
        let mut made = self.available();
        for order in placement.orders(tiling)? {
            // Suspect operands, and the rest.
            let mut parts = [(true, Vec::new()), (false, Vec::new())];
            for share in &order.run {
                let mut assigned = [Bitmap::default(), Bitmap::default()];
                each(tiling, share, &mut |number| {
                    if runs(share.stage, number) {
                        let is_suspect = state.suspects.has(share.stage, number);
                        assigned[usize::from(!is_suspect)].insert(number);
                    }
                });
                for ((_, run), numbers) in parts.iter_mut().zip(assigned) {
                    if !numbers.is_empty() {
                        run.push((share.stage, numbers));
                    }
                }
            }
            let held = order.hold.iter().map(|share| {
                let mut numbers = Bitmap::default();
                each(tiling, share, &mut |number| {
                    numbers.insert(number);
                });
                (share.stage, numbers)
            });
            let hold: Vec<(StageId, Bitmap)> = held.collect();
            let before = order.after.iter().filter_map(|key| places.get(key)).flatten().copied();
            let mut after: Vec<usize> = before.collect();
            let own = places.entry((order.step, order.worker)).or_default();
            for (alone, run) in parts {
                if run.is_empty() {
                    continue;
                }
                let alone = alone || self.makes_suspects(state, &run, &made)?;
                for (stage, numbers) in &run {
                    made[stage.0 as usize].extend(numbers);
                }
                let message = OrderMessage {
                    plan: self.id.clone(),
                    run,
                    hold: hold.clone(),
                    news: News::default(),
                    begun: false,
                    threads: self.threads,
                };
                let worker = numbers[order.worker as usize];
                own.push(jobs.len());
                jobs.push(Job { step: order.step, worker, after: after.clone(), message, alone });
                after.push(jobs.len() - 1);
            }
        }
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let again = (0..)
            .map(StageId)
            .zip(lost.iter())
            .map(|(stage, lost)| lost.iter().filter(|number| runs(stage, *number)).count() as u64);
        let again: u64 = again.sum();
        lost.iter_mut().for_each(|lost| *lost = Bitmap::default());
        self.count(|t| t.again += again);
        if is_first {
            let moved = self.moved(&jobs)?;
            let workers: BTreeSet<u32> = jobs.iter().map(|j| j.worker).collect();
            self.count(|t| (t.bytes_expected, t.workers) = (moved, workers.len() as u64));
        }
        Ok(jobs)
    }

    /// True if an order of these operands would run a suspect.
    fn makes_suspects(
        &self,
        state: &RoundState,
        run: &[(StageId, Bitmap)],
        made: &Has,
    ) -> Result<bool, Error> {
        if state.suspects.is_empty() {
            return Ok(false);
        }
        let order = Order::new(self.tiling.clone(), run.to_vec(), made)?;
        let mut ran = (0..).map(StageId).zip(order.runs());
        Ok(ran.any(|(stage, ran)| ran.iter().any(|number| state.suspects.has(stage, number))))
    }

    /// The operands of an order: those assigned, and their inputs that were not available when it was sent.
    pub(super) fn ran(
        &self,
        message: &OrderMessage,
        sent: Moment,
    ) -> Result<Vec<(StageId, Bitmap)>, Error> {
        let there = self.holders().all_at(sent);
        let there = there.map_err(|e| Error::Broken { what: e.to_string() })?;
        let order = Order::new(self.tiling.clone(), message.run.clone(), &there)?;
        let ran = (0..).map(StageId).zip(order.runs()).filter(|(_, ran)| !ran.is_empty());
        Ok(ran.map(|(stage, ran)| (stage, ran.clone())).collect())
    }

    /// Updates the placement to the current workers; true if it is the first placement.
    fn placed(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
        recovery: &Recovery,
        runs: &dyn Fn(StageId, u64) -> bool,
    ) -> Result<bool, Error> {
        let tiling = &*self.tiling;
        if let Some((numbers, placement)) = &mut state.placed {
            let is_here = |number: &u32| members.contains_key(number);
            let came: Vec<u32> = members.keys().filter(|n| !numbers.contains(n)).copied().collect();
            if !numbers.iter().any(is_here) {
                state.placed = None;
            } else if !came.is_empty() {
                numbers.extend(came);
                let worker = |number| members.get(number).cloned().unwrap_or_default();
                let workers = numbers.iter().map(worker).collect();
                *placement = placement.among(tiling, workers, runs)?;
                return Ok(false);
            } else {
                let gone = (0..).zip(numbers.iter()).filter(|(w, number)| {
                    !is_here(number) && placement.workers[*w as usize].threads > 0
                });
                let gone: Vec<u32> = gone.map(|(w, _)| w).collect();
                if !gone.is_empty() {
                    *placement = placement.without(tiling, &gone, Some(recovery))?;
                }
                return Ok(false);
            }
        }
        let (numbers, workers): (Vec<u32>, Vec<Worker>) =
            members.iter().map(|(n, w)| (*n, w.clone())).unzip();
        let mut placement = place(tiling, &workers, &RATES, Strategy::Split)?;
        let stages = tiling.plan().stages.iter().zip(self.wanted.iter());
        if stages.clone().any(|(s, wanted)| wanted.len() < s.grid.count()) {
            // Balances the wanted operands across the workers.
            placement = placement.among(tiling, workers, runs)?;
        }
        let totals = self.totals();
        let is_first = state.placed.is_none() && (totals.lost, totals.orders) == (0, 0);
        state.placed = Some((numbers, placement));
        Ok(is_first)
    }
}

/// Calls `f` with the number of each operand of a share.
fn each(tiling: &Tiling, share: &Share, f: &mut dyn FnMut(u64)) {
    let grid = &tiling.plan().stage(share.stage).grid;
    for operands in &share.operands {
        for_each_index(operands, &mut |index: &[u64]| f(grid.ravel(index)));
    }
}
