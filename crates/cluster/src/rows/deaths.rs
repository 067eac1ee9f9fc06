//! Workers that die while they run tasks, and the statements that kill them.

use super::{RowsLost, RowsPlan, State, Task};
use crate::drive::suspects::{Died, poison_detail, poisoned};
use std::time::Instant;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tessera_storage::lock;

impl Task {
    /// The task, as suspects know it.
    fn ran(&self) -> [(StageId, Bitmap); 1] {
        [(StageId(self.stage), [u64::from(self.number)].into_iter().collect())]
    }
}

impl State {
    pub(super) fn is_suspect(&self, task: &Task) -> bool {
        let [(stage, number)] = task.ran();
        !self.suspects.among(stage, &number).is_empty()
    }
}

impl RowsPlan {
    pub(super) fn is_suspect(&self, task: &Task) -> bool {
        lock(&self.state).is_suspect(task)
    }

    /// Handles the death of a worker while it ran a task, with nothing else if it was `alone`. Fails if the statement is
    /// known to have killed workers.
    pub(super) async fn died(&self, task: &Task, worker: u32, alone: bool) -> Result<(), RowsLost> {
        let registry = self.cluster.registry();
        if alone {
            // Workers that ran nothing of the statement may have died unnoticed.
            let alive = registry.alive().into_iter().map(|m| (m.number, m.hello.address));
            self.cluster.missing(alive.collect(), "another worker died").await;
        }
        lock(&self.known).retain(|(of, _), _| *of != worker);
        let at = registry.member(worker).and_then(|m| m.ended).unwrap_or_else(Instant::now);
        let others_live = registry.has_since(at);
        let died = Died::of(registry, worker, at, alone, others_live);
        let has_died = died.is_some();
        let mut state = lock(&self.state);
        if let Some(died) = died {
            state.suspects.died(died, &task.ran(), registry.limits().dead_after);
        }
        if has_died && state.lost.insert(worker) {
            let what = "it was lost; its rows are computed elsewhere".into();
            registry.note("recovering", Some(worker), Some(&self.statement), what);
        }
        self.judge(&mut state)
    }

    /// Fails a statement that is known to have killed workers.
    pub(super) fn judge(&self, state: &mut State) -> Result<(), RowsLost> {
        let posts = self.cluster.posts();
        posts.acquit(state.suspects.closed(), &self.id);
        let is_to_blame = |worker| posts.is_to_blame(worker, &self.id);
        let deaths = match state.poison {
            Some(deaths) => deaths,
            None => {
                let Some(deaths) = state.suspects.poison(is_to_blame) else { return Ok(()) };
                state.poison = Some(deaths);
                let detail = poison_detail(deaths);
                self.cluster.registry().note("poison", None, Some(&self.statement), detail);
                deaths
            }
        };
        Err(RowsLost::Failed(poisoned(deaths)))
    }

    /// A task has ended well: it is no suspect any more.
    pub(super) fn acquit(&self, task: &Task) {
        let mut state = lock(&self.state);
        if !state.suspects.is_empty() {
            state.suspects.acquit(&task.ran());
            let posts = self.cluster.posts();
            posts.acquit(state.suspects.closed(), &self.id);
        }
    }

    /// Nobody wants a task any more: whether workers died of it will not be known, so no other statement is blamed.
    fn withdraw(&self, task: &Task) {
        let mut state = lock(&self.state);
        if state.suspects.is_empty() {
            return;
        }
        let posts = self.cluster.posts();
        posts.acquit(state.suspects.closed(), &self.id);
        state.suspects.acquit(&task.ran());
        state.suspects.closed().into_iter().for_each(|worker| posts.close(worker));
    }

    /// Ends the search for causes when the statement is over.
    pub(super) fn close(&self) {
        let posts = self.cluster.posts();
        let mut state = lock(&self.state);
        posts.acquit(state.suspects.closed(), &self.id);
        state.suspects.open().for_each(|worker| posts.close(worker));
        posts.prune(self.cluster.registry());
    }
}

/// Withdraws a task when it is dropped, unless it ended well.
pub(super) struct Withdrawn<'a> {
    plan: &'a RowsPlan,
    task: &'a Task,
    is_well: bool,
}

impl<'a> Withdrawn<'a> {
    pub(super) fn new(plan: &'a RowsPlan, task: &'a Task) -> Self {
        Withdrawn { plan, task, is_well: false }
    }

    pub(super) fn not(&mut self) {
        self.is_well = true;
    }
}

impl Drop for Withdrawn<'_> {
    fn drop(&mut self) {
        if !self.is_well {
            self.plan.withdraw(self.task);
        }
    }
}
