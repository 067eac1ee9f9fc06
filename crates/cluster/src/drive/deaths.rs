//! Workers that die while they run orders, and the statements that kill them.

use super::round::Death;
use super::suspects::Died;
use super::{Drive, RoundState};
use crate::registry::WorkerState;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tessera_exec::error::{Error, ErrorReport};
use tessera_planner::error::Class;
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
            let member = registry.member(death.worker);
            let has_left = member.as_ref().is_some_and(|m| m.state == WorkerState::Left);
            // A worker that left, or was asked to restart, did not die of the statement.
            if !has_left {
                let is_silent = member.as_ref().is_none_or(|m| m.heard.elapsed() > dead_after);
                let died = Died {
                    worker: death.worker,
                    at,
                    joined: member.map_or(at, |m| m.joined),
                    is_crash: death.alone || !is_silent,
                    is_single: death.alone && others_live,
                };
                // Two workers that die at the same time are both detected within this time.
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
        state.suspects.closed().into_iter().for_each(|worker| posts.acquit(worker, &self.id));
        let is_to_blame = |worker| posts.is_to_blame(worker, &self.id);
        let Some(deaths) = state.suspects.poison(is_to_blame) else { return Ok(()) };
        let detail = format!("{deaths} workers died while they worked for it");
        registry.note("poison", None, Some(&self.id), detail.clone());
        Err(Error::Reported(Box::new(ErrorReport {
            code: "poison".into(),
            class: Class::Limit,
            message: format!("{detail}; it is not tried again"),
            hint: Some("see why they died (memory?): `GET /v1/cluster` has the events".into()),
            may_fit: false,
        })))
    }
}
