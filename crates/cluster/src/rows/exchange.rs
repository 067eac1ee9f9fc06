//! The workers that keep rows for the tasks of a stage that read them by parts.
//!
//! ```text
//!   splits   0 ──────── 4 ──────── 8 ──────── 12
//!            │ worker 1 │ worker 2 │ worker 3 │        cut by threads, when the first task starts
//!            │ worker 1 │ worker 2 │  1  │  2 │        worker 3 is lost: the others compute its rows again
//! ```
//! A task gets the list with its order. Rows do not depend on the worker that keeps them, so the list may differ from
//! task to task. A suspect reads from its own worker alone: if that worker dies, the suspect is the only possible
//! cause.

use super::{FAILURES_MAX, RowsLost, RowsPlan, Task};
use crate::registry::Member;
use crate::wire::RowsHolder;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tessera_exec::error::Error;
use tessera_storage::lock;

/// The workers that keep the rows of a stage.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// In the order of the splits.
    ranges: Vec<KeptRange>,
    /// All workers that have kept rows, by address.
    keepers: BTreeMap<String, u32>,
    /// Workers whose rows other workers do not get.
    left_out: BTreeSet<u32>,
    /// Why the server groups the rows of all tasks that have not begun.
    here: Option<String>,
}

/// The rows of some splits, and the worker that keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeptRange {
    from: u32,
    to: u32,
    worker: u32,
    address: String,
}

/// A worker that may keep rows.
#[derive(Debug, Clone)]
struct Keeper {
    worker: u32,
    address: String,
    threads: u32,
}

impl From<Member> for Keeper {
    fn from(member: Member) -> Self {
        let Member { number: worker, hello, .. } = member;
        Keeper { worker, address: hello.address, threads: hello.threads }
    }
}

impl Exchange {
    /// Assigns the splits that no present worker keeps to `others`, or to the worker that asks if `others` is empty.
    fn cut(
        &mut self,
        splits: u32,
        is_here: impl Fn(u32) -> bool,
        mut others: Vec<Keeper>,
        asking: Keeper,
    ) {
        let left_out = &self.left_out;
        self.ranges.retain(|kept| is_here(kept.worker) && !left_out.contains(&kept.worker));
        others.retain(|keeper| !left_out.contains(&keeper.worker));
        if others.is_empty() {
            others.push(asking);
        }
        let (mut gaps, mut next) = (Vec::new(), 0);
        for kept in &self.ranges {
            gaps.push((next, kept.from));
            next = kept.to;
        }
        gaps.push((next, splits));
        let threads = |keeper: &Keeper| u64::from(keeper.threads.max(1));
        let all: u64 = others.iter().map(threads).sum();
        for (from, to) in gaps {
            let (mut before, mut next) = (0, from);
            for keeper in &others {
                before += threads(keeper);
                let end = from + (u64::from(to - from) * before / all) as u32;
                if next < end {
                    let Keeper { worker, address, .. } = keeper.clone();
                    self.keepers.insert(address.clone(), worker);
                    self.ranges.push(KeptRange { from: next, to: end, worker, address });
                }
                next = end;
            }
        }
        self.ranges.sort_by_key(|kept| kept.from);
    }
}

impl RowsPlan {
    /// The workers that keep the rows that a task reads by parts. The task runs on the given worker, possibly `alone`.
    pub(super) fn holders(
        &self,
        task: &Task,
        (worker, address): (u32, &str),
        alone: bool,
    ) -> Vec<RowsHolder> {
        if task.kept == 0 {
            return Vec::new();
        }
        if alone {
            return vec![RowsHolder { from: 0, to: task.kept, address: None }];
        }
        let registry = self.cluster.registry();
        let mut others = registry.alive();
        let asking = Keeper { worker, address: address.to_owned(), threads: 1 };
        let ranges = {
            let mut state = lock(&self.state);
            others.retain(|m| !state.left_out.contains_key(&m.number));
            let others = others.into_iter().map(Keeper::from).collect();
            let exchange = state.exchanges.entry(task.stage).or_default();
            exchange.cut(task.kept, |worker| registry.is_here(worker), others, asking);
            exchange.ranges.clone()
        };
        let mut known = lock(&self.known);
        for kept in &ranges {
            // These workers forget the rows with the statement.
            known.entry((kept.worker, task.stage)).or_default();
        }
        drop(known);
        let holder = |KeptRange { from, to, worker: keeper, address }| RowsHolder {
            from,
            to,
            address: (keeper != worker).then_some(address),
        };
        ranges.into_iter().map(holder).collect()
    }

    /// Handles the loss of rows that another worker kept for a task. Fails if the statement ends, or if the server is
    /// to run the task.
    pub(super) async fn holder_lost(
        &self,
        task: &Task,
        address: &str,
        reason: String,
        failures: &mut u32,
    ) -> Result<(), RowsLost> {
        let keeper = {
            let state = lock(&self.state);
            let exchange = state.exchanges.get(&task.stage);
            exchange.and_then(|exchange| exchange.keepers.get(address).copied())
        };
        if let Some(keeper) = keeper {
            if self.cluster.is_gone(keeper, address, &reason).await {
                self.cluster.posts().died(keeper);
                return self.died(task, keeper, false).await;
            }
            if lock(&self.state).exchanges.entry(task.stage).or_default().left_out.insert(keeper) {
                let registry = self.cluster.registry();
                registry.note("no_rows", Some(keeper), Some(&self.statement), reason.clone());
            }
        }
        *failures += 1;
        if *failures < FAILURES_MAX {
            tokio::time::sleep(Duration::from_millis(50 << *failures)).await;
            return Ok(());
        }
        if self.is_suspect(task) {
            let party = format!("the worker at {address}");
            return Err(RowsLost::Failed(Error::PartyLost { party, reason }));
        }
        self.group_here(task, &reason);
        Err(RowsLost::Here(reason))
    }

    /// Leaves the tasks of a stage that have not begun to the server, which then distributes the rows of all splits.
    pub(super) fn group_here(&self, task: &Task, reason: &str) {
        let before = {
            let mut state = lock(&self.state);
            let exchange = state.exchanges.entry(task.stage).or_default();
            exchange.here.replace(reason.to_owned())
        };
        if before.is_none() {
            let what = format!("the server computes its parts: {reason}");
            self.cluster.registry().note("no_rows", None, Some(&self.statement), what);
        }
    }

    /// Why the server runs a task; `None` if workers do.
    pub(super) fn grouped_here(&self, task: &Task) -> Option<String> {
        let state = lock(&self.state);
        let exchange = state.exchanges.get(&task.stage).filter(|_| !state.is_suspect(task));
        exchange.and_then(|exchange| exchange.here.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(worker: u32, threads: u32) -> Keeper {
        Keeper { worker, address: format!("w{worker}:1"), threads }
    }

    fn ranges(exchange: &Exchange) -> Vec<(u32, u32, u32)> {
        exchange.ranges.iter().map(|kept| (kept.from, kept.to, kept.worker)).collect()
    }

    #[test]
    fn splits_are_cut_by_threads_and_lost_ones_go_to_others() {
        let mut exchange = Exchange::default();
        let all = vec![keeper(1, 1), keeper(2, 1), keeper(3, 2)];
        exchange.cut(12, |_| true, all.clone(), keeper(1, 1));
        assert_eq!(ranges(&exchange), [(0, 3, 1), (3, 6, 2), (6, 12, 3)]);
        // A worker that joins later gets none of the splits that others keep.
        let with_fourth = [all.clone(), vec![keeper(4, 1)]].concat();
        exchange.cut(12, |_| true, with_fourth, keeper(4, 1));
        assert_eq!(ranges(&exchange), [(0, 3, 1), (3, 6, 2), (6, 12, 3)]);
        exchange.cut(12, |worker| worker != 2, vec![keeper(1, 1), keeper(3, 2)], keeper(1, 1));
        assert_eq!(ranges(&exchange), [(0, 3, 1), (3, 4, 1), (4, 6, 3), (6, 12, 3)]);
        // Others do not get the rows of the third one.
        exchange.left_out.insert(3);
        exchange.cut(12, |worker| worker != 2, vec![keeper(1, 1), keeper(3, 2)], keeper(3, 2));
        assert_eq!(ranges(&exchange), [(0, 3, 1), (3, 4, 1), (4, 12, 1)]);
        // Only the worker that asks is left.
        exchange.cut(12, |worker| worker == 3, vec![keeper(3, 2)], keeper(3, 2));
        assert_eq!(ranges(&exchange), [(0, 12, 3)]);
        assert_eq!(exchange.keepers.len(), 3);
    }

    #[test]
    fn each_split_has_a_keeper() {
        for splits in 1..40 {
            for workers in 1..9 {
                let mut exchange = Exchange::default();
                let all: Vec<Keeper> =
                    (1..=workers).map(|worker| keeper(worker, worker % 3)).collect();
                exchange.cut(splits, |_| true, all, keeper(1, 1));
                let mut next = 0;
                for (from, to, _) in ranges(&exchange) {
                    assert!(from == next && from < to, "{splits} splits, {workers} workers");
                    next = to;
                }
                assert_eq!(next, splits, "{workers} workers");
            }
        }
    }
}
