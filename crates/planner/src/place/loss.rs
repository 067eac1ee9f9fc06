//! Lost workers: their operands go to the others, and no other operand moves. Added workers: all remaining operands are
//! distributed again.
//!
//! ```text
//!   aaaaaaa bbbbbbb ccccccc        b is lost        aaaaaaa aaaaccc ccccccc
//! ```
//! Every run of a lost worker is handed out in pieces, first to its neighbours in the order, which are close to its
//! inputs and readers. Each remaining worker gets as much as brings it to its share of the stage. Chunks that survived
//! stay in place, so that [`crate::recover`] finds them.

use super::order::{Layout, share};
use super::{Placement, Worker, eligible};
use crate::plan::StageId;
use crate::tile::Tiling;

impl Placement {
    /// Returns the placement without the `lost` workers; the others keep their numbers. With `runs`, operands that do
    /// not run are not counted: a worker with less left to do gets more of the lost operands. Without it the time does
    /// not grow with operands.
    ///
    /// Each remaining worker then has at most its share of a stage, rounded up, or its operands from before.
    ///
    /// # Errors
    /// [`crate::error::Error::Range`] if no worker with threads is left.
    pub fn without(
        &self,
        tiling: &Tiling,
        lost: &[u32],
        runs: Option<&dyn Fn(StageId, u64) -> bool>,
    ) -> Result<Placement, crate::error::Error> {
        let mut workers = self.workers.clone();
        for &w in lost {
            if let Some(worker) = workers.get_mut(w as usize) {
                worker.threads = 0;
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
            // Number of operands that run in the places `begin..end`.
            let runs_in = |begin: u64, end: u64| match runs {
                None => end - begin,
                Some(runs) => {
                    let mut n = 0;
                    for part in layout.order.boxes(&counts, begin, end) {
                        layout.within(&part, &mut |index| {
                            n += u64::from(runs(id, grid.ravel(index)));
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
                // The neighbour before comes first, the one after last, the others between.
                let mut takers: Vec<u32> = Vec::new();
                takers.extend(before.filter(|w| among.contains(w)));
                takers.extend(
                    among.iter().copied().filter(|w| Some(*w) != before && Some(*w) != after),
                );
                takers.extend(after.filter(|w| Some(*w) != before && among.contains(w)));
                let mut left = runs_in(begin, run.end);
                // The neighbours' shares are filled before those of the workers between them.
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
                        false => advance(&runs_in, place, run.end, gets[t], runs.is_none()),
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

    /// Returns the placement on other workers; workers that remain keep their numbers. The operands of each stage that
    /// still run are shared in the stage's order, in proportion to threads. Workers without threads get nothing.
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
            // At least one worker is always eligible.
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

/// The place that follows `n` running operands from `begin`.
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

/// Number of `lost` operands that each worker gets, so that no worker exceeds its share of all, rounded up, unless it
/// did before. The sum is `lost`.
fn missing(lost: u64, has: &[u64], among: &[u32], workers: &[Worker]) -> Vec<u64> {
    let threads = |w: u32| u128::from(workers[w as usize].threads);
    let all: u128 = among.iter().map(|&w| threads(w)).sum::<u128>().max(1);
    let total = u128::from(lost) + among.iter().map(|&w| u128::from(has[w as usize])).sum::<u128>();
    let mut wanted = vec![0u64; has.len()];
    let mut rest = lost;
    // First up to the share rounded down, then, largest deficit first, up to the share rounded up.
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
