//! Computes the remaining work of a plan when some of its chunks are available.
//!
//! A failure is a cache miss. Whatever failed (a statement, a server, a worker), the plan runs again: chunks that
//! survived are loaded, and the others are recomputed with the same bits.
//!
//! ```text
//!   pass 1   the operands that do not run   available ones; then, downwards, those that only such operands read
//!   pass 2   the chunks that are loaded     available ones that a result or a running operand needs
//! ```
//! So an available chunk is never recomputed, and a missing one is recomputed exactly if a result needs it. The size of
//! a [`Recovery`] grows with the available chunks and their inputs, not with the plan: if nothing is available,
//! everything runs and nothing is stored.
//!
//! # Source
//! The two passes are those by which Mars reassigns states after the loss of a worker (operands whose data are lost and
//! their successors, then predecessors of these that have no data), but inverted: of a plan of 10^9 chunks the few
//! available ones are listed, not the many lost ones.

mod bitmap;
mod reach;

pub use bitmap::Bitmap;
pub use reach::{Reached, reached};

use crate::plan::{OutputRef, StageId};
use crate::tile::Tiling;
use std::collections::BTreeMap;

/// The dependencies of a plan. A stage and a row-major number in the stage identify an operand.
pub trait Lineage {
    /// Number of stages.
    fn stages(&self) -> usize;
    /// Outputs that are the results.
    fn results(&self) -> &[OutputRef];
    /// Number of outputs of a stage.
    fn outputs(&self, stage: StageId) -> u32;
    /// Calls `f` once with each chunk that an operand reads.
    fn reads(&self, stage: StageId, number: u64, f: &mut dyn FnMut(OutputRef, u64));
    /// Number of operands that read a chunk, over all stages; saturates.
    fn readers(&self, of: OutputRef, number: u64) -> u64;
}

impl Lineage for Tiling {
    fn stages(&self) -> usize {
        self.plan().stages.len()
    }

    fn results(&self) -> &[OutputRef] {
        &self.plan().results
    }

    fn outputs(&self, stage: StageId) -> u32 {
        self.plan().stage(stage).outputs.len() as u32
    }

    fn reads(&self, stage: StageId, number: u64, f: &mut dyn FnMut(OutputRef, u64)) {
        let index = self.plan().stage(stage).grid.unravel(number);
        Tiling::reads(self, stage, &index, &mut |from, at| {
            f(from, self.plan().stage(from.stage).grid.ravel(&at));
        });
    }

    fn readers(&self, of: OutputRef, number: u64) -> u64 {
        Tiling::readers(self, of, &self.plan().stage(of.stage).grid.unravel(number))
    }
}

/// State of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct StagePart {
    /// Operands whose chunks are available.
    there: Bitmap,
    /// Operands whose chunks are no longer needed, available or not.
    skip: Bitmap,
    /// For an operand and an output, the number of the chunk's readers that do not run.
    absent: BTreeMap<(u64, u32), u64>,
}

/// The remaining work of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    parts: Vec<StagePart>,
    /// True once an available chunk turned out to be lost: any chunk may be needed again.
    lost: bool,
    /// True if no operand that runs has inputs.
    only: bool,
}

/// Computes the remaining work of a plan, given the available operands (by number, for each stage). An operand counts
/// as available only if all of its chunks are. Time and memory grow with the reads of the operands that do not run.
pub fn recover(plan: &impl Lineage, available: &[Bitmap]) -> Recovery {
    if available.iter().all(Bitmap::is_empty) {
        return Recovery::default();
    }
    let is_available =
        |s: StageId, n: u64| available.get(s.0 as usize).is_some_and(|set| set.contains(n));
    let mut is_result = vec![false; plan.stages()];
    plan.results().iter().for_each(|r| is_result[r.stage.0 as usize] = true);
    let mut parts = vec![StagePart::default(); plan.stages()];
    let unread = |parts: &[StagePart], s: StageId, n: u64| {
        (0..plan.outputs(s)).all(|output| {
            let absent = parts[s.0 as usize].absent.get(&(n, output)).copied().unwrap_or(0);
            absent >= plan.readers(OutputRef { stage: s, output }, n)
        })
    };
    let mut idle: Vec<(StageId, u64)> = Vec::new();
    for (stage, set) in (0..).map(StageId).zip(available) {
        for number in set.iter() {
            idle.push((stage, number));
            // One at a time, so that the worklist stays short.
            while let Some((stage, number)) = idle.pop() {
                plan.reads(stage, number, &mut |from, n| {
                    let s = from.stage;
                    *parts[s.0 as usize].absent.entry((n, from.output)).or_default() += 1;
                    if !is_available(s, n)
                        && !is_result[s.0 as usize]
                        && unread(&parts, s, n)
                        && parts[s.0 as usize].skip.insert(n)
                    {
                        idle.push((s, n));
                    }
                });
            }
        }
    }
    for (stage, set) in (0..).map(StageId).zip(available) {
        let s = stage.0 as usize;
        for n in set.iter() {
            if !is_result[s] && unread(&parts, stage, n) {
                parts[s].skip.insert(n);
            }
        }
        parts[s].there = set.clone();
    }
    for StagePart { skip, absent, .. } in &mut parts {
        absent.retain(|&(n, _), _| !skip.contains(n));
    }
    Recovery { parts, ..Recovery::default() }
}

impl Recovery {
    /// Recovery for a caller that runs some operands of a plan and counts their readers itself: the chunks of the
    /// operands `there` are loaded.
    pub fn loading(there: Vec<Bitmap>) -> Self {
        let part = |there| StagePart { there, ..StagePart::default() };
        Recovery { parts: there.into_iter().map(part).collect(), ..Recovery::default() }
    }

    /// Recovery for a caller that wants results of which all chunks are available, except those without inputs. No
    /// chunk has a reader then. Takes no time.
    pub fn only(there: Vec<Bitmap>) -> Self {
        Recovery { only: true, ..Recovery::loading(there) }
    }

    fn part(&self, stage: StageId) -> Option<&StagePart> {
        self.parts.get(stage.0 as usize)
    }

    /// True if the operand's chunks are loaded instead of computed.
    pub fn loads(&self, stage: StageId, number: u64) -> bool {
        let loads = |p: &StagePart| p.there.contains(number) && self.asks(p, number);
        self.part(stage).is_some_and(loads)
    }

    /// True if the operand runs, provided that a result needs it at all.
    pub fn runs(&self, stage: StageId, number: u64) -> bool {
        let runs = |p: &StagePart| !p.there.contains(number) && self.asks(p, number);
        self.part(stage).is_none_or(runs)
    }

    fn asks(&self, part: &StagePart, number: u64) -> bool {
        self.lost || !part.skip.contains(number)
    }

    /// Number of a chunk's readers that do not run; the chunk is one that is loaded or computed.
    pub fn absent(&self, of: OutputRef, number: u64) -> u64 {
        if self.only {
            return u64::MAX;
        }
        let part = self.part(of.stage);
        part.and_then(|p| p.absent.get(&(number, of.output))).copied().unwrap_or(0)
    }

    /// Marks the chunks of an operand as lost: it runs, and so may operands that were not needed until now. Counts of
    /// [`Recovery::absent`] do not change and are no longer valid.
    pub fn lose(&mut self, stage: StageId, number: u64) {
        self.lost = true;
        if let Some(part) = self.parts.get_mut(stage.0 as usize) {
            part.there.remove(number);
        }
    }
}

#[cfg(test)]
mod tests;
