//! Workers that are gone: what they had goes to the others, and nothing else moves. Workers that came: all that is left
//! to do is shared out anew.
//!
//! ```text
//!   aaaaaaa bbbbbbb ccccccc        b is lost        aaaaaaa aaaaccc ccccccc
//! ```
//! Every run of a lost worker is handed out in pieces, to the neighbours in the order first, as what they read and who
//! reads it is close; each of the others gets as much as brings it to its share of the stage. Chunks that survived stay
//! where they are, so that [`crate::recover`] finds them there.

use super::order::{Layout, share};
use super::{Placement, Worker, eligible};
use crate::plan::StageId;
use crate::recover::Recovery;
use crate::tile::Tiling;

impl Placement {
    /// The placement without some workers, which keep their numbers. With a `recovery`, what does not run is not
    /// counted: a worker that has less to do than others gets more of what was lost. Without one it takes no time that
    /// grows with operands.
    ///
    /// Of a stage each of those that are left then has at most its share, rounded up, or what it had before.
    ///
    /// # Errors
    /// [`crate::error::Error::Range`] if no worker with threads is left.
    pub fn without(
        &self,
        tiling: &Tiling,
        lost: &[u32],
        recovery: Option<&Recovery>,
    ) -> Result<Placement, crate::error::Error> {
        let mut workers = self.workers.clone();
        for &w in lost {
            if let Some(worker) = workers.get_mut(w as usize) {
                worker.threads = 0;
                worker.near.clear();
            }
        }
        some_are_left(&workers)?;
        let mut layouts = Vec::with_capacity(self.layouts.len());
        for (id, layout) in (0..).map(StageId).zip(&self.layouts) {
            let is_lost = |w: u32| workers[w as usize].threads == 0;
            if layout.runs.iter().all(|r| !is_lost(r.worker)) {
                layouts.push(layout.clone());
                continue;
            }
            let grid = &tiling.plan().stage(id).grid;
            let counts = grid.counts();
            // Operands that run among the places of a run; all of them count where there is no recovery.
            let runs_in = |begin: u64, end: u64| match recovery {
                None => end - begin,
                Some(recovery) => {
                    let mut n = 0;
                    for part in layout.order.boxes(&counts, begin, end) {
                        layout.within(&part, &mut |index| {
                            n += u64::from(recovery.runs(id, grid.ravel(index)));
                        });
                    }
                    n
                }
            };
            let mut has = vec![0u64; workers.len()];
            let mut lost = 0;
            for (begin, run) in layout.parts() {
                let n = runs_in(begin, run.end);
                if is_lost(run.worker) {
                    lost += n;
                } else {
                    has[run.worker as usize] += n;
                }
            }
            let among = eligible(tiling, id, &workers);
            let mut wanted = missing(lost, &has, &among, &workers);
            let mut new = Layout { order: layout.order.clone(), runs: Vec::new() };
            for (at, (begin, run)) in layout.parts().enumerate() {
                if !is_lost(run.worker) {
                    new.push(run.worker, run.end - begin);
                    continue;
                }
                let before =
                    layout.runs[..at].iter().rev().map(|r| r.worker).find(|w| !is_lost(*w));
                let after = layout.runs[at..].iter().map(|r| r.worker).find(|w| !is_lost(*w));
                // The neighbour before begins, the one after ends, the others lie between.
                let mut takers: Vec<u32> = Vec::new();
                takers.extend(before.filter(|w| among.contains(w)));
                takers.extend(
                    among.iter().copied().filter(|w| Some(*w) != before && Some(*w) != after),
                );
                takers.extend(after.filter(|w| Some(*w) != before && among.contains(w)));
                let mut left = runs_in(begin, run.end);
                // What the neighbours want goes before what those between want.
                let mut gets = vec![0u64; takers.len()];
                let ends = [
                    takers.iter().position(|w| Some(*w) == before),
                    takers.iter().position(|w| Some(*w) == after),
                ];
                for t in ends.into_iter().flatten().chain(0..takers.len()) {
                    let want = &mut wanted[takers[t] as usize];
                    let get = (*want).min(left);
                    gets[t] += get;
                    *want -= get;
                    left -= get;
                }
                let mut place = begin;
                for (t, &worker) in takers.iter().enumerate() {
                    let is_last = gets[t + 1..].iter().all(|g| *g == 0);
                    let end = match is_last {
                        true => run.end,
                        false => advance(&runs_in, place, run.end, gets[t], recovery.is_none()),
                    };
                    new.push(worker, end - place);
                    place = end;
                    if is_last {
                        break;
                    }
                }
            }
            layouts.push(new);
        }
        Ok(Placement { workers, layouts, again: self.again.clone() })
    }

    /// The placement with other workers, of whom those that were there keep their numbers: of each stage they share the
    /// operands that run, in the order that it had, as long as their threads are many. Those without threads get
    /// nothing.
    ///
    /// # Errors
    /// [`crate::error::Error::Range`] if no worker has a thread.
    pub fn among(
        &self,
        tiling: &Tiling,
        workers: Vec<Worker>,
        runs: &dyn Fn(StageId, u64) -> bool,
    ) -> Result<Placement, crate::error::Error> {
        some_are_left(&workers)?;
        let mut layouts = Vec::with_capacity(self.layouts.len());
        for (id, layout) in (0..).map(StageId).zip(&self.layouts) {
            let grid = &tiling.plan().stage(id).grid;
            let counts = grid.counts();
            let runs = |index: &[u64]| runs(id, grid.ravel(index));
            let mut left = 0;
            layout.each(&counts, &mut |index, _| left += u64::from(runs(index)));
            let among = eligible(tiling, id, &workers);
            let threads = |w: &u32| u64::from(workers[*w as usize].threads);
            let all: u64 = among.iter().map(threads).sum();
            let mut takers = among.iter().scan(0, |sum, w| {
                *sum += threads(w);
                Some((*w, share(left, *sum, all)))
            });
            // Somebody is always eligible.
            let (mut taker, mut until) = takers.next().unwrap_or((0, u64::MAX));
            let mut new = Layout { order: layout.order.clone(), runs: Vec::new() };
            let mut seen = 0;
            layout.each(&counts, &mut |index, _| {
                let runs = runs(index);
                while runs && seen == until {
                    let Some(next) = takers.next() else { break };
                    (taker, until) = next;
                }
                seen += u64::from(runs);
                new.push(taker, 1);
            });
            layouts.push(new);
        }
        Ok(Placement { workers, layouts, again: self.again.clone() })
    }
}

fn some_are_left(workers: &[Worker]) -> Result<(), crate::error::Error> {
    if workers.iter().any(|w| w.threads > 0) {
        return Ok(());
    }
    Err(crate::error::Error::Range {
        what: "workers that are left".into(),
        value: "0".into(),
        expected: "at least one has to run the plan".into(),
    })
}

/// The place from `begin` on before which `n` operands run.
fn advance(runs_in: &dyn Fn(u64, u64) -> u64, begin: u64, end: u64, n: u64, all: bool) -> u64 {
    if all {
        return begin + n;
    }
    let (mut place, mut left) = (begin, n);
    while left > 0 && place < end {
        left -= runs_in(place, place + 1);
        place += 1;
    }
    place
}

/// How many of `lost` operands each worker gets, so that nobody has more than its share of all, rounded up, who had
/// less before. The sum is `lost`.
fn missing(lost: u64, has: &[u64], among: &[u32], workers: &[Worker]) -> Vec<u64> {
    let threads = |w: u32| u128::from(workers[w as usize].threads);
    let all: u128 = among.iter().map(|&w| threads(w)).sum::<u128>().max(1);
    let total = u128::from(lost) + among.iter().map(|&w| u128::from(has[w as usize])).sum::<u128>();
    let mut wanted = vec![0u64; has.len()];
    let mut rest = lost;
    // First to the share rounded down, then, by what is missing most, to the share rounded up.
    for &w in among {
        let down = (total * threads(w) / all) as u64;
        let get = down.saturating_sub(has[w as usize]).min(rest);
        wanted[w as usize] = get;
        rest -= get;
    }
    let behind = |w: u32, wanted: &[u64]| {
        let now = u128::from(has[w as usize] + wanted[w as usize]);
        (total * threads(w)) as i128 - (now * all) as i128
    };
    while rest > 0 {
        let Some(&w) = among.iter().max_by_key(|&&w| (behind(w, &wanted), std::cmp::Reverse(w)))
        else {
            break;
        };
        wanted[w as usize] += 1;
        rest -= 1;
    }
    wanted
}
