//! The parties that have chunks of a plan, and the part of this list that each worker knows.
//!
//! ```text
//!   log    server has … ▪ worker 2 has … ▪ worker 1 has … ▪ worker 3 has …     an entry when an order is done
//!               worker 1 knows ─▶│                 │◀─ worker 2 knows          an order brings the rest
//! ```
//! A log only grows. If chunks are lost, a new log begins with the remaining chunks, and each worker gets all of it
//! with its next order.

use super::{DURABLE, Has, SERVER};
use crate::net::Fault;
use crate::wire::{News, There, from_postcard, to_postcard};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;

/// The parties that have chunks.
pub(super) struct Holders {
    stages: usize,
    parties: BTreeMap<u32, Party>,
    /// Number of the current log.
    number: u64,
    log: Vec<Arc<[u8]>>,
    /// True if a new log has to begin: chunks of this one were lost.
    is_outdated: bool,
    /// Number of entries that each worker got.
    told: BTreeMap<u32, u64>,
}

struct Party {
    address: String,
    has: Has,
}

/// A moment in the life of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    log: u64,
    entries: usize,
}

impl Holders {
    /// No party has anything yet.
    pub(super) fn new(stages: usize) -> Self {
        Holders {
            stages,
            parties: BTreeMap::new(),
            number: 1,
            log: Vec::new(),
            is_outdated: false,
            told: BTreeMap::new(),
        }
    }

    /// Adds chunks that a party has.
    pub(super) fn add(
        &mut self,
        number: u32,
        address: &str,
        operands: Vec<(StageId, Bitmap)>,
    ) -> Result<(), Fault> {
        let stages = self.stages;
        let none = || Party { address: address.into(), has: vec![Bitmap::default(); stages] };
        let party = self.parties.entry(number).or_insert_with(none);
        for (stage, numbers) in &operands {
            if let Some(has) = party.has.get_mut(stage.0 as usize) {
                has.extend(numbers);
            }
        }
        self.write(There { address: address.into(), operands })
    }

    fn write(&mut self, there: There) -> Result<(), Fault> {
        if !there.operands.is_empty() {
            self.log.push(to_postcard(&there)?.to_vec().into());
        }
        Ok(())
    }

    /// Removes the parties that are not present any more, and returns the chunks that each of them had.
    pub(super) fn lose(&mut self, is_here: impl Fn(u32) -> bool) -> Vec<Has> {
        let gone: Vec<u32> = self.parties.keys().copied().filter(|n| !is_here(*n)).collect();
        self.is_outdated |= !gone.is_empty();
        gone.iter().filter_map(|n| self.parties.remove(n)).map(|party| party.has).collect()
    }

    /// Removes all chunks of a party.
    pub(super) fn clear(&mut self, number: u32) {
        self.is_outdated |= self.parties.remove(&number).is_some();
    }

    /// Removes the chunks of an operand, which a party lacks after all.
    pub(super) fn remove(&mut self, number: u32, stage: StageId, operand: u64) {
        let has = self.parties.get_mut(&number).and_then(|p| p.has.get_mut(stage.0 as usize));
        self.is_outdated |= has.is_some_and(|has| has.remove(operand));
    }

    /// The operands whose chunks a party has.
    pub(super) fn of(&self, number: u32) -> Option<&Has> {
        self.parties.get(&number).map(|party| &party.has)
    }

    /// The operands whose chunks each party has.
    pub(super) fn parties(&self) -> impl Iterator<Item = (u32, &Has)> {
        self.parties.iter().map(|(number, party)| (*number, &party.has))
    }

    /// The operands whose chunks each worker has. What is removed of them stays in the log: nothing reads it.
    pub(super) fn workers(&mut self) -> impl Iterator<Item = (u32, &mut Has)> {
        let workers = self.parties.iter_mut().filter(|(number, _)| !is_permanent(**number));
        workers.map(|(number, party)| (*number, &mut party.has))
    }

    /// The operands whose chunks any party has.
    pub(super) fn all(&self) -> Has {
        let mut all = vec![Bitmap::default(); self.stages];
        for party in self.parties.values() {
            all.iter_mut().zip(&party.has).for_each(|(all, has)| all.extend(has));
        }
        all
    }

    /// A party other than the server that has the chunks of an operand; storage last.
    pub(super) fn holder(&self, stage: StageId, operand: u64) -> Option<u32> {
        let has_it = |party: &Party| {
            party.has.get(stage.0 as usize).is_some_and(|operands| operands.contains(operand))
        };
        let mut parties = self.parties.iter().filter(|(number, _)| **number != SERVER);
        parties.find(|(_, party)| has_it(party)).map(|(number, _)| *number)
    }

    /// The news that a worker gets with its next order: the entries since the one before, or the `whole` log.
    pub(super) fn news(&mut self, worker: u32, whole: bool) -> Result<(News, Moment), Fault> {
        if std::mem::take(&mut self.is_outdated) {
            self.number += 1;
            self.log.clear();
            self.told.clear();
            let all: Vec<There> = self.parties.values().map(Party::there).collect();
            all.into_iter().try_for_each(|there| self.write(there))?;
        }
        let told = self.told.entry(worker).or_default();
        let first = if whole { 0 } else { *told };
        *told = self.log.len() as u64;
        let entries = self.log[first as usize..].to_vec();
        let news = News { log: self.number, first, entries };
        Ok((news, Moment { log: self.number, entries: self.log.len() }))
    }

    /// The operands whose chunks any party had at a moment; now, if another log was begun since.
    pub(super) fn all_at(&self, moment: Moment) -> Result<Has, Fault> {
        if moment.log != self.number {
            return Ok(self.all());
        }
        let mut all = vec![Bitmap::default(); self.stages];
        for entry in self.log.iter().take(moment.entries) {
            let there: There = from_postcard(entry)?;
            for (stage, numbers) in &there.operands {
                if let Some(all) = all.get_mut(stage.0 as usize) {
                    all.extend(numbers);
                }
            }
        }
        Ok(all)
    }
}

impl Party {
    fn there(&self) -> There {
        let some = (0..).map(StageId).zip(&self.has).filter(|(_, has)| !has.is_empty());
        let operands = some.map(|(stage, has)| (stage, has.clone())).collect();
        There { address: self.address.clone(), operands }
    }
}

/// True for parties that are not workers.
pub(super) fn is_permanent(number: u32) -> bool {
    matches!(number, SERVER | DURABLE)
}

#[cfg(test)]
mod tests;
