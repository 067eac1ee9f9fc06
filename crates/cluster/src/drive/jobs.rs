//! Assigns the rest of a plan as jobs to the current workers.

use super::holders::Moment;
use super::round::Job;
use super::{Drive, Has, RoundState};
use crate::wire::{News, OrderMessage};
use std::collections::{BTreeMap, BTreeSet};
use tessera_exec::error::Error;
use tessera_planner::place::{Rates, Share, Strategy, Worker, place};
use tessera_planner::plan::StageId;
use tessera_planner::recover::{Bitmap, reached};
use tessera_planner::tile::{Tiling, insert_box};
use tessera_storage::lock;

/// Measured rates: moving a chunk from one worker's shelf to another's memory on one machine, with checksums and
/// copies, and the overhead of a step.
const RATES: Rates = Rates {
    bytes_per_s: 500_000_000,
    thread_bytes_per_s: 1_500_000_000,
    latency_us: 200,
    round_us: 2_000,
};

impl Drive {
    /// The jobs of each worker for the operands that are `left`. Workers of the placement keep their operands. If other
    /// workers joined, all share the rest; if none of the placed workers is left, everything is placed again.
    pub(super) fn jobs(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
        left: &Has,
    ) -> Result<Vec<Job>, Error> {
        let tiling = &*self.tiling;
        let is_first = self.placed(state, members, left)?;
        state.suspects.retain(left);
        let Some((numbers, placement)) = &state.placed else { return Ok(Vec::new()) };
        let mut jobs: Vec<Job> = Vec::new();
        let mut places: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
        let mut made = self.available();
        for order in placement.orders(tiling)? {
            // Suspect operands, and the rest.
            let mut parts = [(true, Vec::new()), (false, Vec::new())];
            for share in &order.run {
                let mut assigned = operands(tiling, share).and(&left[share.stage.0 as usize]);
                let suspect = state.suspects.among(share.stage, &assigned);
                assigned.remove_all(&suspect);
                for ((_, run), numbers) in parts.iter_mut().zip([suspect, assigned]) {
                    if !numbers.is_empty() {
                        run.push((share.stage, numbers));
                    }
                }
            }
            let hold = order.hold.iter().map(|share| (share.stage, operands(tiling, share)));
            let hold: Vec<(StageId, Bitmap)> = hold.collect();
            let before = order.after.iter().filter_map(|key| places.get(key)).flatten().copied();
            let mut after: Vec<usize> = before.collect();
            let own = places.entry((order.step, order.worker)).or_default();
            for (alone, run) in parts {
                if run.is_empty() {
                    continue;
                }
                let alone = alone || self.makes_suspects(state, &run, &made);
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
                    writes: self.writes(),
                };
                let worker = numbers[order.worker as usize];
                own.push(jobs.len());
                jobs.push(Job { step: order.step, worker, after: after.clone(), message, alone });
                after.push(jobs.len() - 1);
            }
        }
        let mut lost = lock(&self.lost);
        let again: u64 = lost.iter().zip(left).map(|(lost, left)| lost.and(left).len()).sum();
        lost.iter_mut().for_each(|lost| *lost = Bitmap::default());
        self.count(|t| t.again += again);
        if is_first {
            let moved = self.moved(&jobs);
            let workers: BTreeSet<u32> = jobs.iter().map(|j| j.worker).collect();
            self.count(|t| (t.bytes_expected, t.workers) = (moved, workers.len() as u64));
        }
        Ok(jobs)
    }

    /// True if an order of these operands would run a suspect.
    fn makes_suspects(&self, state: &RoundState, run: &[(StageId, Bitmap)], made: &Has) -> bool {
        if state.suspects.is_empty() {
            return false;
        }
        let found = reached(&self.tiling, run, &[made]);
        let mut ran = (0..).map(StageId).zip(&found.runs);
        ran.any(|(stage, ran)| !state.suspects.among(stage, ran).is_empty())
    }

    /// The operands of an order: those assigned, and their inputs that were not available when it was sent.
    pub(super) fn ran(
        &self,
        message: &OrderMessage,
        sent: Moment,
    ) -> Result<Vec<(StageId, Bitmap)>, Error> {
        let there = lock(&self.holders).all_at(sent);
        let there = there.map_err(|e| Error::Broken { what: e.to_string() })?;
        let found = reached(&self.tiling, &message.run, &[&there]);
        Ok((0..).map(StageId).zip(found.runs).filter(|(_, ran)| !ran.is_empty()).collect())
    }

    /// Updates the placement to the current workers; true if it is the first placement.
    fn placed(
        &self,
        state: &mut RoundState,
        members: &BTreeMap<u32, Worker>,
        left: &Has,
    ) -> Result<bool, Error> {
        let tiling = &*self.tiling;
        let runs = |stage: StageId, number: u64| left[stage.0 as usize].contains(number);
        if let Some((numbers, placement)) = &mut state.placed {
            let is_here = |number: &u32| members.contains_key(number);
            let came: Vec<u32> = members.keys().filter(|n| !numbers.contains(n)).copied().collect();
            if !numbers.iter().any(is_here) {
                state.placed = None;
            } else if !came.is_empty() {
                numbers.extend(came);
                let worker = |number| members.get(number).cloned().unwrap_or_default();
                let workers = numbers.iter().map(worker).collect();
                *placement = placement.among(tiling, workers, &runs)?;
                return Ok(false);
            } else {
                let gone = (0..).zip(numbers.iter()).filter(|(w, number)| {
                    !is_here(number) && placement.workers[*w as usize].threads > 0
                });
                let gone: Vec<u32> = gone.map(|(w, _)| w).collect();
                if !gone.is_empty() {
                    *placement = placement.without(tiling, &gone, Some(&runs))?;
                }
                return Ok(false);
            }
        }
        let (numbers, workers): (Vec<u32>, Vec<Worker>) =
            members.iter().map(|(n, w)| (*n, w.clone())).unzip();
        let mut placement = place(tiling, &workers, &RATES, Strategy::Split)?;
        let wanted = reached(tiling, &self.unwritten(), &[]).runs;
        let mut stages = tiling.plan().stages.iter().zip(&wanted);
        if stages.any(|(s, wanted)| wanted.len() < s.grid.count()) {
            // Balances the wanted operands across the workers.
            placement = placement.among(tiling, workers, &runs)?;
        }
        let totals = self.totals();
        let is_first = state.placed.is_none() && (totals.lost, totals.orders) == (0, 0);
        state.placed = Some((numbers, placement));
        Ok(is_first)
    }
}

fn operands(tiling: &Tiling, share: &Share) -> Bitmap {
    let counts = tiling.plan().stage(share.stage).grid.counts();
    let mut all = Bitmap::default();
    share.operands.iter().for_each(|part| insert_box(&counts, part, &mut all));
    all
}
