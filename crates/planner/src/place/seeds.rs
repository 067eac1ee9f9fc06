//! The rules of Mars: the baseline of the split.
//!
//! 1. *Initial operands* read nothing. A worker's quota of them is in proportion to its threads.
//! 2. From an initial operand without a worker, a search follows the graph's edges in both directions. Initial operands
//!    that it meets go to the worker, until its quota is full or the search has met more operands than the average per
//!    worker. Then follow the next worker, the one with the largest remaining quota, and the next start, as long as
//!    there is one.
//! 3. Any later operand goes to the worker with most bytes of its input; of several, to the one with the least work.
//!
//! Rules are applied operand by operand: time and memory grow with operands and reads.
//!
//! # Source
//! "How to execute Mars in a distributed manner", sections "Allocating an initial worker" (a depth-first search) and
//! "Selection policy for workers"; numbers for each worker, and a search that is breadth-first, as in
//! `mars/scheduler/analyzer.py` of Mars at 03ea640 (`_calc_worker_assign_limits`, `_assign_by_bfs`). Random choices of
//! Mars are made by number here, and the load of a worker is work by [`crate::cost`], where Mars asks its workers.

use super::order::{Layout, Order};
use super::traffic::is_everywhere;
use super::{Placement, Worker};
use crate::cost::chunk_ns;
use crate::plan::StageId;
use crate::tile::Tiling;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Search for initial operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Search {
    /// Depth-first, as in the description of Mars.
    Depth,
    /// Breadth-first, as in the code of Mars.
    Breadth,
}

const NOBODY: u32 = u32::MAX;

/// The operands of a plan except those of constants, numbered consecutively.
struct Graph {
    /// Number of the first operand of each stage.
    first: Vec<usize>,
    /// For each operand the offset of its reads in `reads`.
    begin: Vec<usize>,
    reads: Vec<(u32, u64)>,
    /// For each operand the offset of its readers in `readers`.
    begin_readers: Vec<usize>,
    readers: Vec<u32>,
}

impl Graph {
    fn of(tiling: &Tiling) -> Self {
        let plan = tiling.plan();
        let (mut first, mut total) = (Vec::with_capacity(plan.stages.len()), 0);
        for stage in &plan.stages {
            first.push(total);
            total += stage.grid.count() as usize;
        }
        let (mut begin, mut reads) = (Vec::with_capacity(total + 1), Vec::new());
        for (id, stage) in (0..).map(StageId).zip(&plan.stages) {
            for number in 0..stage.grid.count() {
                begin.push(reads.len());
                tiling.reads(id, &stage.grid.unravel(number), &mut |from, at| {
                    if !is_everywhere(tiling, from.stage) {
                        let output = plan.output(from);
                        let of = first[from.stage.0 as usize]
                            + plan.stage(from.stage).grid.ravel(&at) as usize;
                        let bytes = output.grid.region(&at).cells() * output.cell_bytes() as u64;
                        reads.push((of as u32, bytes));
                    }
                });
            }
        }
        begin.push(reads.len());
        let mut begin_readers = vec![0; total + 1];
        reads.iter().for_each(|&(of, _)| begin_readers[of as usize + 1] += 1);
        for i in 0..total {
            begin_readers[i + 1] += begin_readers[i];
        }
        let (mut next, mut readers) = (begin_readers.clone(), vec![0; reads.len()]);
        for operand in 0..total {
            for &(of, _) in &reads[begin[operand]..begin[operand + 1]] {
                readers[next[of as usize]] = operand as u32;
                next[of as usize] += 1;
            }
        }
        Graph { first, begin, reads, begin_readers, readers }
    }

    fn len(&self) -> usize {
        self.begin.len() - 1
    }

    fn reads(&self, operand: usize) -> &[(u32, u64)] {
        &self.reads[self.begin[operand]..self.begin[operand + 1]]
    }

    fn readers(&self, operand: usize) -> &[u32] {
        &self.readers[self.begin_readers[operand]..self.begin_readers[operand + 1]]
    }
}

pub(super) fn place(tiling: &Tiling, workers: &[Worker], search: Search) -> Placement {
    let plan = tiling.plan();
    let graph = Graph::of(tiling);
    let is_graph = |s: usize| !is_everywhere(tiling, StageId(s as u32));
    let initial: Vec<usize> = (0..plan.stages.len())
        .filter(|&s| is_graph(s))
        .flat_map(|s| graph.first[s]..graph.first[s] + plan.stages[s].grid.count() as usize)
        .filter(|&operand| graph.reads(operand).is_empty())
        .collect();
    let mut home = first_homes(&graph, &initial, workers, search);
    let alive: Vec<usize> = (0..workers.len()).filter(|&w| workers[w].threads > 0).collect();
    // Nanoseconds of work assigned to each worker.
    let mut busy = vec![0.0f64; workers.len()];
    for (s, stage) in plan.stages.iter().enumerate() {
        let ns = chunk_ns(tiling, stage);
        for operand in graph.first[s]..graph.first[s] + stage.grid.count() as usize {
            if home[operand] == NOBODY && is_graph(s) {
                let mut here = vec![0u64; workers.len()];
                for &(of, bytes) in graph.reads(operand) {
                    if home[of as usize] != NOBODY {
                        here[home[of as usize] as usize] += bytes;
                    }
                }
                let less = |a: &&usize, b: &&usize| {
                    let more = Reverse(here[**a]).cmp(&Reverse(here[**b]));
                    more.then(busy[**a].total_cmp(&busy[**b])).then(a.cmp(b))
                };
                home[operand] = alive.iter().min_by(less).map_or(0, |&w| w as u32);
            }
            if home[operand] == NOBODY {
                home[operand] = alive.first().map_or(0, |&w| w as u32);
            } else {
                let w = home[operand] as usize;
                busy[w] += ns / f64::from(workers[w].threads.max(1));
            }
        }
    }
    let layout = |(s, stage): (usize, &crate::plan::Stage)| {
        let of = &home[graph.first[s]..graph.first[s] + stage.grid.count() as usize];
        Layout::new(Order::row_major(stage.grid.rank()), of.iter().map(|&w| (w, 1)))
    };
    let layouts = plan.stages.iter().enumerate().map(layout).collect();
    Placement { workers: workers.to_vec(), layouts, again: vec![false; plan.stages.len()] }
}

/// Workers of the initial operands; `NOBODY` for all others.
fn first_homes(graph: &Graph, initial: &[usize], workers: &[Worker], search: Search) -> Vec<u32> {
    let mut home = vec![NOBODY; graph.len()];
    let mut is_initial = vec![false; graph.len()];
    initial.iter().for_each(|&i| is_initial[i] = true);
    let mut quota = quotas(initial.len() as u64, workers);
    let alive = workers.iter().filter(|w| w.threads > 0).count().max(1);
    let average = graph.len() as f64 / alive as f64;
    let mut met_by = vec![u32::MAX; graph.len()];
    let mut starts = initial.iter().copied();
    for turn in 0.. {
        let most = (0..workers.len()).max_by_key(|&w| (quota[w], Reverse(w)));
        let Some(worker) = most.filter(|&w| quota[w] > 0) else { break };
        let Some(start) = starts.find(|&s| home[s] == NOBODY) else { break };
        let (mut next, mut met) = (VecDeque::from([start]), 0u64);
        while let Some(operand) = match search {
            Search::Depth => next.pop_back(),
            Search::Breadth => next.pop_front(),
        } {
            if std::mem::replace(&mut met_by[operand], turn) == turn {
                continue;
            }
            if home[operand] == NOBODY {
                met += 1;
                if is_initial[operand] {
                    home[operand] = worker as u32;
                    quota[worker] -= 1;
                }
                if met as f64 >= average || quota[worker] == 0 {
                    break;
                }
            }
            let beside = graph.reads(operand).iter().map(|&(of, _)| of);
            let beside = beside.chain(graph.readers(operand).iter().copied());
            let unmet = beside.map(|o| o as usize).filter(|&o| met_by[o] != turn);
            match search {
                // The first of them is visited next.
                Search::Depth => {
                    unmet.collect::<Vec<_>>().into_iter().rev().for_each(|o| next.push_back(o))
                }
                Search::Breadth => unmet.for_each(|o| next.push_back(o)),
            }
        }
    }
    home
}

/// Quota of initial operands of each worker: in proportion to its threads; the remainder goes to the workers with most
/// threads.
fn quotas(initial: u64, workers: &[Worker]) -> Vec<u64> {
    let threads: u64 = workers.iter().map(|w| u64::from(w.threads)).sum::<u64>().max(1);
    let part = |w: &Worker| super::order::share(initial, u64::from(w.threads), threads);
    let mut quota: Vec<u64> = workers.iter().map(part).collect();
    let mut order: Vec<usize> = (0..workers.len()).filter(|&w| workers[w].threads > 0).collect();
    order.sort_by_key(|&w| Reverse(workers[w].threads));
    let rest = initial - quota.iter().sum::<u64>();
    order.iter().cycle().take(rest as usize).for_each(|&w| quota[w] += 1);
    quota
}
