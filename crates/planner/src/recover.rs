//! What is left to do of a plan when some of its chunks are there already.
//!
//! A failure is a cache miss: whatever failed (a statement, a server, a worker), the plan is run again, the chunks that
//! survived are loaded and the others made again from what they are made of, bit for bit the same.
//!
//! ```text
//!   pass 1   the operands that do not run   available ones; then, downwards, those that only such operands read
//!   pass 2   the chunks that are loaded     available ones that a result or an operand that runs asks for
//! ```
//! So a chunk that is there is never made again, and one that is not is made exactly if a result needs it. What is
//! kept of it grows with the chunks that are available and what lies below them, not with the plan: where nothing is
//! available, everything runs and nothing is written down.
//!
//! # Source
//! The two passes are those by which Mars reassigns states after a worker was lost (operands whose data are lost and
//! their successors, then the predecessors of these that have no data), looked at from the other side: of a plan of
//! 10^9 chunks the few that are there are listed, not the many that are lost.

use crate::plan::{OutputRef, StageId};
use crate::tile::Tiling;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Who reads what in a plan. An operand is named by its stage and its row-major number there.
pub trait Lineage {
    /// Number of stages.
    fn stages(&self) -> usize;
    /// The outputs that are the answer.
    fn results(&self) -> &[OutputRef];
    /// Number of outputs of a stage.
    fn outputs(&self, stage: StageId) -> u32;
    /// Calls `f` with each chunk that an operand reads, once.
    fn reads(&self, stage: StageId, number: u64, f: &mut dyn FnMut(OutputRef, u64));
    /// Operands that read a chunk, over all stages; saturates.
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

/// A set of operands of one stage: a bitmap without the words that are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bitmap {
    words: BTreeMap<u64, u64>,
}

impl Bitmap {
    /// Adds a number; false if it was there.
    pub fn insert(&mut self, n: u64) -> bool {
        let word = self.words.entry(n / 64).or_default();
        let before = *word;
        *word |= 1 << (n % 64);
        *word != before
    }

    /// Takes a number out; false if it was not there.
    pub fn remove(&mut self, n: u64) -> bool {
        let Some(word) = self.words.get_mut(&(n / 64)) else { return false };
        let before = *word;
        *word &= !(1 << (n % 64));
        let was = *word != before;
        if *word == 0 {
            self.words.remove(&(n / 64));
        }
        was
    }

    /// True if the number is in it.
    pub fn contains(&self, n: u64) -> bool {
        self.words.get(&(n / 64)).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// The first number of it that is not below `n`.
    pub fn first_from(&self, n: u64) -> Option<u64> {
        let (&at, &word) = self.words.range(n / 64..).find(|&(&at, &word)| {
            let below = if at == n / 64 { n % 64 } else { 0 };
            word >> below != 0
        })?;
        let below = if at == n / 64 { n % 64 } else { 0 };
        Some(at * 64 + below + u64::from((word >> below).trailing_zeros()))
    }

    /// Adds all numbers of another set.
    pub fn extend(&mut self, other: &Bitmap) {
        for (&at, &word) in &other.words {
            *self.words.entry(at).or_default() |= word;
        }
    }

    /// How many numbers are in it.
    pub fn len(&self) -> u64 {
        self.words.values().map(|w| u64::from(w.count_ones())).sum()
    }

    /// True if none is.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().flat_map(|(&at, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }
}

impl FromIterator<u64> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut all = Bitmap::default();
        numbers.into_iter().for_each(|n| {
            all.insert(n);
        });
        all
    }
}

/// What became of one stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Part {
    /// Operands whose chunks are there.
    there: Bitmap,
    /// Operands that nobody asks for any more, whether their chunks are there or not.
    skip: Bitmap,
    /// For a number and an output, the readers of the chunk that do not run.
    absent: BTreeMap<(u64, u32), u64>,
}

/// What is left to do of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    parts: Vec<Part>,
    /// True once a chunk was not there after all: anything may be asked for again.
    lost: bool,
}

/// Finds what is left to do of a plan of which the chunks of some operands (for each stage, by number) are there. An
/// operand counts as available only if all chunks that it makes are. What it takes grows with the reads of what does
/// not run.
pub fn recover(plan: &impl Lineage, available: &[Bitmap]) -> Recovery {
    if available.iter().all(Bitmap::is_empty) {
        return Recovery::default();
    }
    let is_available =
        |s: StageId, n: u64| available.get(s.0 as usize).is_some_and(|set| set.contains(n));
    let mut is_result = vec![false; plan.stages()];
    plan.results().iter().for_each(|r| is_result[r.stage.0 as usize] = true);
    let mut parts = vec![Part::default(); plan.stages()];
    let unread = |parts: &[Part], s: StageId, n: u64| {
        (0..plan.outputs(s)).all(|output| {
            let absent = parts[s.0 as usize].absent.get(&(n, output)).copied().unwrap_or(0);
            absent >= plan.readers(OutputRef { stage: s, output }, n)
        })
    };
    let mut idle: Vec<(StageId, u64)> = Vec::new();
    for (stage, set) in (0..).map(StageId).zip(available) {
        for number in set.iter() {
            idle.push((stage, number));
            // One at a time, so that the list of what is to be looked at stays short.
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
    for Part { skip, absent, .. } in &mut parts {
        absent.retain(|&(n, _), _| !skip.contains(n));
    }
    Recovery { parts, lost: false }
}

/// The operands that a plan's results are made of, for each stage: a slice may leave some without a reader that runs.
/// Takes time that grows with operands and reads.
pub fn wanted(plan: &impl Lineage, grids: &[u64]) -> Vec<Bitmap> {
    let mut all = vec![Bitmap::default(); plan.stages()];
    let mut open: Vec<(StageId, u64)> = Vec::new();
    for result in plan.results() {
        let s = result.stage.0 as usize;
        open.extend((0..grids[s]).filter(|n| all[s].insert(*n)).map(|n| (result.stage, n)));
        while let Some((stage, number)) = open.pop() {
            plan.reads(stage, number, &mut |from, n| {
                if all[from.stage.0 as usize].insert(n) {
                    open.push((from.stage, n));
                }
            });
        }
    }
    all
}

impl Recovery {
    /// For whoever runs some operands of a plan, and counts their readers: the chunks of the operands `there` are
    /// loaded.
    pub fn loading(there: Vec<Bitmap>) -> Self {
        let part = |there| Part { there, ..Part::default() };
        Recovery { parts: there.into_iter().map(part).collect(), lost: false }
    }

    fn part(&self, stage: StageId) -> Option<&Part> {
        self.parts.get(stage.0 as usize)
    }

    /// True if the operand's chunks are loaded instead of being made.
    pub fn loads(&self, stage: StageId, number: u64) -> bool {
        let loads = |p: &Part| p.there.contains(number) && self.asks(p, number);
        self.part(stage).is_some_and(loads)
    }

    /// True if the operand runs, as far as a result asks for it at all.
    pub fn runs(&self, stage: StageId, number: u64) -> bool {
        let runs = |p: &Part| !p.there.contains(number) && self.asks(p, number);
        self.part(stage).is_none_or(runs)
    }

    fn asks(&self, part: &Part, number: u64) -> bool {
        self.lost || !part.skip.contains(number)
    }

    /// How many of a chunk's readers do not run; the chunk is one that is loaded or made.
    pub fn absent(&self, of: OutputRef, number: u64) -> u64 {
        let part = self.part(of.stage);
        part.and_then(|p| p.absent.get(&(number, of.output))).copied().unwrap_or(0)
    }

    /// The chunks of an operand turned out not to be there: it runs, and so may what nobody asked for until now. Counts
    /// of [`Recovery::absent`] stay as they are, and do not hold any more.
    pub fn lose(&mut self, stage: StageId, number: u64) {
        self.lost = true;
        if let Some(part) = self.parts.get_mut(stage.0 as usize) {
            part.there.remove(number);
        }
    }
}

#[cfg(test)]
mod tests;
