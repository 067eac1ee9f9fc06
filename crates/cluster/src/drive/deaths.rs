//! Workers that die while they run orders, and the statements that kill them.

use super::round::Death;
use super::suspects::{Died, poison_detail, poisoned};
use super::{Drive, RoundState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tessera_exec::error::Error;
use tessera_planner::place::Worker;

impl Drive {
    /// Handles workers that died while they ran orders.
    pub(super) async fn died(
        &self,
        state: &mut RoundState,
        deaths: Vec<Death>,
        members: &BTreeMap<u32, Worker>,
    ) -> Result<(), Error> {
        if deaths.iter().any(|death| death.alone) {
            // Workers that ran nothing of the plan may have died unnoticed.
            self.missing(members, "another worker died").await;
        }
        let registry = self.cluster.registry();
        let (dead_after, now) = (registry.limits().dead_after, Instant::now());
        let moments = deaths.iter().map(|death| {
            let member = registry.member(death.worker);
            member.and_then(|m| m.ended).unwrap_or(now)
        });
        let moments: Vec<Instant> = moments.collect();
        let others_live = moments.iter().min().is_some_and(|first| registry.has_since(*first));
        let mut counted: BTreeSet<u32> = BTreeSet::new();
        for (death, at) in deaths.into_iter().zip(moments) {
            // Two workers that die at the same time are both detected within this time.
            if let Some(died) = Died::of(registry, death.worker, at, death.alone, others_live) {
                state.suspects.died(died, &death.ran, dead_after);
            }
            if !counted.insert(death.worker) {
                continue;
            }
            self.count(|t| t.lost += 1);
            let what = "it was lost; the others make what it had".into();
            registry.note("recovering", Some(death.worker), Some(&self.id), what);
        }
        self.judge(state)
    }

    /// Fails a statement that is known to have killed workers.
    pub(super) fn judge(&self, state: &mut RoundState) -> Result<(), Error> {
        let (posts, registry) = (self.cluster.posts(), self.cluster.registry());
        posts.acquit(state.suspects.closed(), &self.id);
        let is_to_blame = |worker| posts.is_to_blame(worker, &self.id);
        let Some(deaths) = state.suspects.poison(is_to_blame) else { return Ok(()) };
        registry.note("poison", None, Some(&self.id), poison_detail(deaths));
        Err(poisoned(deaths))
    }
}
