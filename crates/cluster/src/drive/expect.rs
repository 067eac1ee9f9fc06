//! The expected work of workers for a plan, for EXPLAIN.

use super::round::Job;
use super::{Drive, Has, RoundState, SERVER};
use std::collections::{BTreeMap, BTreeSet};
use tessera_exec::error::Error;
use tessera_exec::order::Order;
use tessera_planner::recover::{Bitmap, Recovery};

/// The expected work of workers for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Workers that get orders.
    pub workers: usize,
    /// Number of orders.
    pub orders: usize,
    /// Number of steps, each of which waits for the one before.
    pub steps: usize,
    /// Bytes of chunks that workers fetch from each other.
    pub bytes_moved: u64,
}

impl Drive {
    /// The work that the current workers would be assigned; `None` without workers.
    ///
    /// # Errors
    /// The plan cannot be placed.
    pub fn expected(&self) -> Result<Option<Expected>, Error> {
        let members = self.here();
        if members.is_empty() {
            return Ok(None);
        }
        let mut state = RoundState::default();
        let jobs = self.jobs(&mut state, &members, &Recovery::default())?;
        Ok(Some(Expected {
            workers: jobs.iter().map(|j| j.worker).collect::<BTreeSet<u32>>().len(),
            orders: jobs.len(),
            steps: jobs.iter().map(|j| j.step).collect::<BTreeSet<u32>>().len(),
            bytes_moved: self.moved(&jobs)?,
        }))
    }

    /// Bytes that workers fetch from each other if jobs run one after the other and nothing fails.
    pub(super) fn moved(&self, jobs: &[Job]) -> Result<u64, Error> {
        let plan = self.tiling.plan();
        let mut own: BTreeMap<u32, Has> = BTreeMap::new();
        let (mut all, server) = {
            let holders = self.holders();
            (holders.all(), holders.of(SERVER).cloned().unwrap_or_default())
        };
        let mut bytes = 0;
        for job in jobs {
            let none = || vec![Bitmap::default(); plan.stages.len()];
            let has = own.entry(job.worker).or_insert_with(none);
            let mut there = all.clone();
            there.iter_mut().zip(has.iter()).for_each(|(there, has)| there.extend(has));
            let order = Order::new(self.tiling.clone(), job.message.run.clone(), &there)?;
            for (stage, number) in order.loads() {
                let s = stage.0 as usize;
                if !has[s].contains(number) && !server[s].contains(number) {
                    let index = plan.stage(stage).grid.unravel(number);
                    bytes += self.tiling.output_bytes(stage, &index);
                }
            }
            for (stage, numbers) in &job.message.run {
                has[stage.0 as usize].extend(numbers);
                all[stage.0 as usize].extend(numbers);
            }
            for (stage, numbers) in &job.message.hold {
                let s = stage.0 as usize;
                let made = numbers.iter().filter(|n| order.runs()[s].contains(*n));
                has[s].extend(&made.collect());
            }
        }
        Ok(bytes)
    }
}
