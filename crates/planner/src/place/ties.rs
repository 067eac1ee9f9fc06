//! Assigns the parts of a placement to workers that are equal.
//!
//! ```text
//!   parts      0  1  2  3          of workers with as many threads and as much memory: any of them may have any part
//!   by hash    c  a  d  b          the order of their ranks, as long as their loads are equal
//!   by load    a, b idle; c, d busy: the parts with more work go to a and b
//! ```
//! A rank is a hash of the worker's name and of the largest array that the plan reads or makes of nothing. So a plan has
//! the same places when it runs again, plans over one array have the same places, and other arrays have others. If a
//! worker joins or leaves, the ranks of the others among themselves stay.
//!
//! # Source
//! Rendezvous hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.

use super::order::Layout;
use super::{Placement, Worker};
use crate::cost::chunk_ns;
use crate::key::StageKey;
use crate::plan::{Stage, Task};
use crate::tile::Tiling;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Returns the placement with its parts exchanged between equal workers.
pub(super) fn untie(tiling: &Tiling, placement: Placement) -> Placement {
    let Placement { workers, layouts, again } = placement;
    let mut equal: BTreeMap<(u32, u64), Vec<usize>> = BTreeMap::new();
    for (w, worker) in workers.iter().enumerate().filter(|(_, worker)| worker.threads > 0) {
        equal.entry((worker.threads, worker.memory_bytes)).or_default().push(w);
    }
    let (work, name) = (work(tiling, &layouts, workers.len()), name(tiling));
    let mut worker_of: Vec<u32> = (0..workers.len() as u32).collect();
    for mut parts in equal.into_values().filter(|parts| parts.len() > 1) {
        let load = |w: &usize| workers[*w].load;
        let mut takers: Vec<usize> = parts.clone();
        takers.sort_by_cached_key(|w| (load(w), rank(&name, &workers[*w])));
        if parts.iter().any(|w| load(w) != load(&parts[0])) {
            parts.sort_by_key(|w| (Reverse(work[*w]), *w));
        }
        parts.iter().zip(takers).for_each(|(part, taker)| worker_of[*part] = taker as u32);
    }
    let exchanged = |layout: Layout| {
        let mut layout = layout;
        layout.runs.iter_mut().for_each(|run| run.worker = worker_of[run.worker as usize]);
        layout
    };
    Placement { workers, layouts: layouts.into_iter().map(exchanged).collect(), again }
}

/// Nanoseconds of work of each part.
fn work(tiling: &Tiling, layouts: &[Layout], workers: usize) -> Vec<u64> {
    let mut work = vec![0u64; workers];
    for (stage, layout) in tiling.plan().stages.iter().zip(layouts) {
        let ns = chunk_ns(tiling, stage) as u64;
        for (work, n) in work.iter_mut().zip(layout.counts(workers)) {
            *work = work.saturating_add(ns.saturating_mul(n));
        }
    }
    work
}

/// A name for the largest array that a plan begins with.
fn name(tiling: &Tiling) -> Option<StageKey> {
    let cells = |s: &Stage| crate::region::cells(&s.grid.shape()).unwrap_or(u64::MAX);
    let stages = tiling.plan().stages.iter().filter(|s| s.inputs.is_empty());
    let stage = stages.rev().max_by_key(|s| cells(s))?;
    match &stage.task {
        Task::Load { source, origin: _ } => StageKey::of(&(&source.url, &source.path)),
        task => StageKey::of(&(task, &stage.grid)),
    }
}

/// The rank of a worker; the lowest is first.
fn rank(name: &Option<StageKey>, worker: &Worker) -> Option<StageKey> {
    StageKey::of(&(name.map(|name| name.to_string()), &worker.name))
}
