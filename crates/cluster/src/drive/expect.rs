//! The expected work of workers for a plan, for EXPLAIN.

use super::round::Job;
use super::{Drive, Has, RoundState, SERVER};
use std::collections::{BTreeMap, BTreeSet};
use tessera_exec::error::Error;
use tessera_planner::plan::StageId;
use tessera_planner::recover::{Bitmap, reached};
use tessera_storage::lock;

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
        let left = reached(&self.tiling, &self.unwritten(), &[&self.available()]).runs;
        let jobs = self.jobs(&mut state, &members, &left)?;
        Ok(Some(Expected {
            workers: jobs.iter().map(|j| j.worker).collect::<BTreeSet<u32>>().len(),
            orders: jobs.len(),
            steps: jobs.iter().map(|j| j.step).collect::<BTreeSet<u32>>().len(),
            bytes_moved: self.moved(&jobs),
        }))
    }

    /// Bytes that workers fetch from each other if jobs run one after the other and nothing fails.
    pub(super) fn moved(&self, jobs: &[Job]) -> u64 {
        let none = vec![Bitmap::default(); self.tiling.plan().stages.len()];
        let mut own: BTreeMap<u32, Has> = BTreeMap::new();
        let (mut all, server) = {
            let holders = lock(&self.holders);
            (holders.all(), holders.of(SERVER).cloned().unwrap_or_else(|| none.clone()))
        };
        let mut bytes = 0u64;
        for job in jobs {
            let has = own.entry(job.worker).or_insert_with(|| none.clone());
            let found = reached(&self.tiling, &job.message.run, &[&all, has]);
            for (s, mut loads) in found.loads.into_iter().enumerate() {
                loads.remove_all(&has[s]);
                loads.remove_all(&server[s]);
                let moved = self.tiling.bytes_of(StageId(s as u32), &loads);
                bytes = bytes.saturating_add(moved);
            }
            for (stage, numbers) in &job.message.run {
                has[stage.0 as usize].extend(numbers);
                all[stage.0 as usize].extend(numbers);
            }
            for (stage, numbers) in &job.message.hold {
                let s = stage.0 as usize;
                has[s].extend(&numbers.and(&found.runs[s]));
            }
        }
        bytes
    }
}
