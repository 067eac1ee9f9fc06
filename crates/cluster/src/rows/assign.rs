//! Finds a worker for a task, at the moment that the task starts.

use super::figures::Waits;
use super::slots::{Candidate, Slot};
use super::{RowsLost, RowsPlan, Task};
use crate::registry::{Member, WorkerState};
use crate::worker_slots::Stay;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_exec::error::Error;
use tessera_storage::lock;

/// Interval of attempts to find a worker.
const LOOK: Duration = Duration::from_millis(250);
/// How long a task waits for suspects of another statement, or of its own, on a worker before it looks for another one.
const GATE: Duration = Duration::from_millis(500);
/// How long a suspect waits until it has a worker for itself before it looks for another one.
const ALONE: Duration = Duration::from_secs(30);
/// How long a task waits for other tasks or statements to show that deaths were not theirs.
const OTHERS: Duration = Duration::from_secs(30);
/// Wait of a task after which tasks that are not read give way to it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The outcome of earlier attempts at a task.
#[derive(Debug, Default)]
pub(super) struct Tried {
    /// True if any worker has been sent the task.
    pub(super) any: bool,
    /// Workers on which the task failed: they get it again if no other worker has room.
    pub(super) avoid: BTreeSet<u32>,
}

/// A place for a task on a worker, until it is dropped.
pub(super) struct Place {
    pub(super) worker: u32,
    pub(super) address: String,
    /// True if the worker runs nothing else.
    pub(super) alone: bool,
    _turn: Option<AloneTurn>,
    _stay: Stay,
    /// The last field is dropped last: a task that waits for the slot finds the turn and the stay released.
    pub(super) slot: Slot,
}

/// A suspect that has a worker for itself, or waits for it.
struct AloneTurn(Arc<RowsPlan>);

impl Drop for AloneTurn {
    fn drop(&mut self) {
        lock(&self.0.state).alone -= 1;
    }
}

/// The permission of a task to start.
enum May {
    /// The task gets a worker of its own.
    Alone(AloneTurn),
    Beside,
    NotYet,
}

/// The wait of a task for a worker.
struct Search {
    begun: Instant,
    /// Since when no worker is left.
    empty: Option<Instant>,
    /// A worker that suspects have for themselves.
    taken: Option<u32>,
}

impl RowsPlan {
    /// Waits for a worker with room. Fails if the task is to run on the server, or if the statement ends.
    pub(super) async fn assign(
        self: &Arc<Self>,
        task: &Task,
        tried: &Tried,
    ) -> Result<Place, RowsLost> {
        let _waits = Waits::new(self);
        let mut workers = self.cluster.registry().changes();
        let mut slots = self.cluster.rows().changes();
        let mut search = Search { begun: Instant::now(), empty: None, taken: None };
        loop {
            workers.mark_unchanged();
            slots.mark_unchanged();
            let members = self.able(task, tried, &mut search)?;
            let place = match self.may(task, &search)? {
                _ if members.is_empty() => None,
                May::Alone(turn) => self.place_alone(&members, tried, turn).await,
                May::Beside => self.place_beside(&members, tried, &mut search).await,
                May::NotYet => {
                    // The reader of a suspect may wait for this task.
                    if search.begun.elapsed() >= PATIENCE {
                        members.iter().for_each(|m| self.cluster.rows().evict(m.number, true));
                    }
                    None
                }
            };
            if let Some(place) = place {
                return Ok(place);
            }
            // The senders cannot be dropped: the cluster is held here.
            tokio::select! {
                _ = workers.changed() => {}
                _ = slots.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// The workers that may get the task; none while the statement waits for workers.
    fn able(
        &self,
        task: &Task,
        tried: &Tried,
        search: &mut Search,
    ) -> Result<Vec<Member>, RowsLost> {
        let registry = self.cluster.registry();
        let mut members = registry.alive();
        let mut state = lock(&self.state);
        let is_suspect = state.is_suspect(task);
        if members.is_empty() {
            if !is_suspect && !tried.any && state.lost.is_empty() {
                return Err(RowsLost::Here("no worker is left".into()));
            }
            let most = registry.limits().wait;
            if !std::mem::replace(&mut state.waits, true) {
                let most_s = most.as_secs();
                let what =
                    format!("no worker is left; the statement waits up to {most_s} s for workers");
                registry.note("waiting", None, Some(&self.statement), what);
            }
            let since = *search.empty.get_or_insert_with(Instant::now);
            if since.elapsed() >= most {
                let most_s = most.as_secs();
                let reason = format!("no worker is left, and none came for {most_s} s");
                return Err(RowsLost::Failed(lost(reason)));
            }
            return Ok(members);
        }
        (search.empty, state.waits) = (None, false);
        members.retain(|m| !state.left_out.contains_key(&m.number));
        if members.is_empty() {
            let why = state.left_out.values().next_back().cloned().unwrap_or_default();
            let reason = format!("none of the workers that are left can run its rows: {why}");
            return Err(match is_suspect {
                true => RowsLost::Failed(lost(reason)),
                false => RowsLost::Here(reason),
            });
        }
        Ok(members)
    }

    /// Decides if the task may start. Suspects run one after the other. They run before the other tasks once the next
    /// death may be the last one.
    fn may(self: &Arc<Self>, task: &Task, search: &Search) -> Result<May, RowsLost> {
        let mut state = lock(&self.state);
        self.judge(&mut state)?;
        let is_early = search.begun.elapsed() < OTHERS;
        if !state.is_suspect(task) {
            let waits = is_early && !state.suspects.is_empty() && state.suspects.are_first();
            return Ok(if waits { May::NotYet } else { May::Beside });
        }
        let posts = self.cluster.posts();
        // The next death would make the statement poison, unless another statement shows that these deaths were not its
        // own.
        let waits = state.suspects.is_full()
            && is_early
            && !state.suspects.open().all(|worker| posts.is_first(worker, &self.id));
        if waits || state.alone >= state.suspects.at_a_time() {
            return Ok(May::NotYet);
        }
        state.alone += 1;
        Ok(May::Alone(AloneTurn(self.clone())))
    }

    /// A place beside other tasks.
    async fn place_beside(
        &self,
        members: &[Member],
        tried: &Tried,
        search: &mut Search,
    ) -> Option<Place> {
        let candidate = |m: &Member| Candidate {
            worker: m.number,
            threads: m.hello.threads,
            is_last_choice: tried.avoid.contains(&m.number) || search.taken == Some(m.number),
        };
        let candidates: Vec<Candidate> = members.iter().map(candidate).collect();
        let slots = self.cluster.rows();
        let Some(slot) = slots.take(&candidates) else {
            if search.begun.elapsed() >= PATIENCE {
                slots.evict_from_full(&candidates);
            }
            return None;
        };
        let worker = slot.worker();
        let address = members.iter().find(|m| m.number == worker)?.hello.address.clone();
        let entered = self.cluster.enter(worker, &self.id, false);
        let Ok(stay) = tokio::time::timeout(GATE, entered).await else {
            search.taken = Some(worker);
            return None;
        };
        self.may_send(worker).then_some(Place {
            worker,
            address,
            alone: false,
            _turn: None,
            _stay: stay,
            slot,
        })
    }

    /// A place on a worker that runs nothing else, of any statement.
    async fn place_alone(
        &self,
        members: &[Member],
        tried: &Tried,
        turn: AloneTurn,
    ) -> Option<Place> {
        let (posts, slots) = (self.cluster.posts(), self.cluster.rows());
        let order =
            |m: &&Member| (tried.avoid.contains(&m.number), posts.orders(m.number), m.number);
        let member = members.iter().min_by_key(order)?;
        let (worker, address) = (member.number, member.hello.address.clone());
        let slot = slots.take_alone(worker);
        let begun = Instant::now();
        let entered = self.cluster.enter(worker, &self.id, true);
        tokio::pin!(entered);
        let stay = loop {
            if let Ok(stay) = tokio::time::timeout(LOOK, &mut entered).await {
                break stay;
            }
            if !self.is_alive(worker) || begun.elapsed() >= ALONE {
                return None;
            }
        };
        self.may_send(worker).then_some(Place {
            worker,
            address,
            alone: true,
            _turn: Some(turn),
            _stay: stay,
            slot,
        })
    }

    /// True if a task may still be sent to a worker on which it has a place.
    fn may_send(&self, worker: u32) -> bool {
        // Other tasks may have killed workers in the meantime: no further death may follow.
        self.is_alive(worker) && lock(&self.state).poison.is_none()
    }

    /// True if the worker gets tasks: it is neither lost nor about to leave.
    fn is_alive(&self, worker: u32) -> bool {
        let member = self.cluster.registry().member(worker);
        member.is_some_and(|m| m.state == WorkerState::Alive)
    }
}

fn lost(reason: String) -> Error {
    Error::PartyLost { party: "the cluster".into(), reason }
}
