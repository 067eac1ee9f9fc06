//! A worker's knowledge of the chunks of other parties: the log of the server, as far as orders brought it.

use crate::net::Fault;
use crate::wire::{News, STORAGE, THE_SERVER, There, from_postcard};
use std::collections::BTreeMap;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;

/// The chunks of a plan that parties have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Number of the log.
    log: u64,
    /// Number of entries that are known.
    entries: u64,
    /// For each stage the parties in the order of the log, storage last.
    parties: BTreeMap<StageId, Vec<(String, Bitmap)>>,
}

impl View {
    /// Adds the news of an order. `stages` is the number of stages of the plan, and `server` the server's address.
    /// Returns false if entries before the news are missing, so that the server has to send all of them.
    pub(crate) fn hear(&mut self, news: &News, stages: usize, server: &str) -> Result<bool, Fault> {
        if news.log < self.log {
            // A later order, which knew more, has overtaken this one.
            return Ok(true);
        }
        if news.log > self.log {
            if news.first > 0 {
                return Ok(false);
            }
            *self = View { log: news.log, ..View::default() };
        }
        let Some(known) = self.entries.checked_sub(news.first) else { return Ok(false) };
        for entry in news.entries.iter().skip(known as usize) {
            let there: There = from_postcard(entry)?;
            self.add(there, stages, server)?;
            self.entries += 1;
        }
        Ok(true)
    }

    fn add(&mut self, there: There, stages: usize, server: &str) -> Result<(), Fault> {
        let address = if there.address == THE_SERVER { server } else { &there.address };
        for (stage, operands) in &there.operands {
            if stage.0 as usize >= stages {
                return Err(Fault::Broken(format!("stage {} of {stages}", stage.0)));
            }
            let parties = self.parties.entry(*stage).or_default();
            match parties.iter_mut().find(|(known, _)| known == address) {
                Some((_, has)) => has.extend(operands),
                None => {
                    let is_last = parties.last().is_some_and(|(last, _)| last == STORAGE);
                    let at = parties.len() - usize::from(is_last);
                    parties.insert(at, (address.into(), operands.clone()));
                }
            }
        }
        Ok(())
    }

    /// Adds the operands whose chunks any party has, by stage.
    pub(crate) fn add_to(&self, there: &mut [Bitmap]) {
        for (stage, parties) in &self.parties {
            if let Some(there) = there.get_mut(stage.0 as usize) {
                parties.iter().for_each(|(_, operands)| there.extend(operands));
            }
        }
    }

    /// The addresses of the parties that have the chunks of an operand.
    pub(crate) fn holders(&self, stage: StageId, operand: u64) -> Vec<String> {
        let parties = self.parties.get(&stage).into_iter().flatten();
        parties.filter(|(_, has)| has.contains(operand)).map(|(at, _)| at.clone()).collect()
    }
}
