//! A part of a plan: some of its operands, from chunks that are there.
//!
//! ```text
//!   plan      load ▸ fused ▸ partial ▸ combine          there: what others made; it is fetched from the shelf
//!   order            fused ▸ partial                     told: runs, with all that it reads and that is not there
//! ```
//! An [`Order`] is the plan as the scheduler of one machine sees it when it is told some operands only. Each of them is a
//! result, though nobody takes it: whatever runs is shown to the [`Shelf`], which keeps what others want.
//!
//! Invariants: what an order gives does not depend on what is there; a chunk that turns out not to be is made.

use crate::chunk::Chunk;
use crate::durable::format;
use crate::error::Error;
use crate::pool::Pool;
use crate::schedule::{Sink, Tiling};
use crate::store::FinishedChunk;
use bytes::Bytes;
use futures::future::BoxFuture;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::recover::{Bitmap, Recovery};
use tessera_planner::region::{Dims, Region};
use tessera_planner::tile;

/// The most operands of an order: they are counted one by one.
pub const OPERANDS_MAX: u64 = 1 << 24;

/// Where chunks of a plan are that are loaded instead of being made, and what is shown those that are made.
pub trait Shelf: Send + Sync + Debug {
    /// Brings the chunks of an operand, which have `bytes` bytes; `None` if they cannot be had, so that they are made.
    /// Errors of class `retry` are tried again a bounded number of times.
    fn fetch(
        &self,
        stage: StageId,
        number: u64,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Option<Found>, Error>>;

    /// Looks at the chunks that an operand made, on the thread that made them.
    fn made(&self, stage: StageId, number: u64, chunks: &[Arc<Chunk>]);

    /// Bytes that it fetched from elsewhere.
    fn fetched_bytes(&self) -> u64;
}

/// The chunks of an operand, one for each of its outputs.
#[derive(Debug)]
pub enum Found {
    /// In this process.
    Here(SmallVec<[FinishedChunk; 1]>),
    /// What [`encode`] made of them elsewhere.
    Object(Bytes),
}

impl Found {
    /// The chunks; `None` if they are not what was kept.
    pub(crate) fn chunks(
        self,
        (stage, number): (StageId, u64),
        shapes: &[Dims],
        pool: &Arc<Pool>,
        read_back: &AtomicU64,
    ) -> Option<Vec<Chunk>> {
        let reason = match self {
            Found::Here(held) => {
                let chunks = held.iter().map(|h| match h {
                    FinishedChunk::Memory(chunk) => Ok(Chunk::shared(chunk)),
                    FinishedChunk::File(file) => file.load(pool, read_back),
                });
                match chunks.collect::<Result<Vec<_>, Error>>() {
                    Ok(chunks) => return Some(chunks),
                    Err(error) => error.to_string(),
                }
            }
            Found::Object(object) => {
                match format::decode(&object, &stage_name(stage), number, shapes, pool) {
                    Ok((chunks, _)) => return Some(chunks),
                    Err(reason) => reason,
                }
            }
        };
        let stage = stage.0;
        tracing::warn!(stage, number, reason, "a chunk cannot be used: it is computed again");
        None
    }
}

/// The chunks of an operand as one object, in parts, without a copy of the cells. It carries checksums.
pub fn encode(stage: StageId, number: u64, chunks: &[Arc<Chunk>]) -> Vec<Bytes> {
    format::encode(&stage_name(stage), number, 0, chunks)
}

/// What an object of so many bytes of cells has at most.
pub fn object_bytes_max(bytes: u64) -> u64 {
    bytes.saturating_add(format::HEADER_BYTES_MAX)
}

fn stage_name(stage: StageId) -> impl Display {
    format!("stage {}", stage.0)
}

/// What workers did for a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// For each stage, operands that ran, and seconds of threads.
    pub stages: Vec<(u64, f64)>,
    /// Requests to storage.
    pub requests: u64,
    /// Bytes that came from storage.
    pub bytes_read: u64,
    /// Bytes of chunks that workers fetched from other parties.
    pub bytes_moved: u64,
    /// Bytes of these that the server passed on between workers that do not reach each other.
    pub bytes_relayed: u64,
    /// Bytes that the placement expects them to fetch from each other.
    pub bytes_expected: u64,
    /// Orders that ran to their end.
    pub orders: u64,
    /// Workers that were given orders at first.
    pub workers: u64,
    /// Workers that were lost meanwhile.
    pub lost: u64,
    /// Operands whose chunks were lost and that were told again.
    pub again: u64,
    /// Orders that another worker ran too, as they took long.
    pub copies: u64,
    /// Chunks written to files for want of memory.
    pub spills: u64,
    /// Their bytes.
    pub bytes_spilled: u64,
    /// What each worker did, by number.
    pub each: BTreeMap<u32, OfWorker>,
}

/// What one worker did for a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfWorker {
    /// Orders that ran to their end.
    pub orders: u64,
    /// Operands that ran.
    pub operands: u64,
    /// Seconds of threads.
    pub seconds: f64,
    /// The most bytes that an order held at a time.
    pub peak_bytes: u64,
    /// Bytes of chunks that it fetched from others.
    pub bytes_moved: u64,
}

/// How a plan is run with a shelf.
#[derive(Debug)]
pub struct Shelved {
    /// The shelf.
    pub shelf: Arc<dyn Shelf>,
    /// What is on it, or can be fetched by it.
    pub recovery: Recovery,
}

/// A plan that is told some of its operands.
pub struct Order {
    tiling: Arc<tile::Tiling>,
    /// An output of each stage that is told operands, and those.
    results: Vec<OutputRef>,
    told: Vec<Bitmap>,
    /// Operands of the order that read a chunk.
    readers: HashMap<(OutputRef, u64), u64>,
    /// Operands that run, by stage.
    runs: Vec<Bitmap>,
    operands: u64,
}

impl Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("operands", &self.operands).finish_non_exhaustive()
    }
}

impl Order {
    /// The operands `told`, by stage, where the chunks of others are `there`. Takes time and memory that grow with the
    /// operands that run and with their reads.
    ///
    /// # Errors
    /// A stage or an operand that the plan does not have; more than 2^24 operands that would run.
    pub fn new(
        tiling: Arc<tile::Tiling>,
        told: Vec<(StageId, Bitmap)>,
        there: &[Bitmap],
    ) -> Result<Self, Error> {
        let plan = tiling.plan().clone();
        let mut met: Vec<Bitmap> = vec![Bitmap::default(); plan.stages.len()];
        let mut open: Vec<(StageId, u64)> = Vec::new();
        for (stage, numbers) in &told {
            let count = plan.stages.get(stage.0 as usize).map_or(0, |s| s.grid.count());
            for number in numbers.iter() {
                if number >= count {
                    let what = format!("operand {number} of {stage:?}, which has {count}");
                    return Err(Error::Broken { what });
                }
                if met[stage.0 as usize].insert(number) {
                    open.push((*stage, number));
                }
            }
        }
        let is_there = |s: StageId, n| there.get(s.0 as usize).is_some_and(|set| set.contains(n));
        let mut readers: HashMap<(OutputRef, u64), u64> = HashMap::new();
        let mut operands = 0;
        while let Some((stage, number)) = open.pop() {
            operands += 1;
            if operands > OPERANDS_MAX {
                return Err(Error::TooManyChunks { stage: Tiling::name(&*tiling, stage) });
            }
            let index = plan.stage(stage).grid.unravel(number);
            tiling.reads(stage, &index, &mut |from, at| {
                let n = plan.stage(from.stage).grid.ravel(&at);
                *readers.entry((from, n)).or_default() += 1;
                if !is_there(from.stage, n) && met[from.stage.0 as usize].insert(n) {
                    open.push((from.stage, n));
                }
            });
        }
        let (stages, told): (Vec<StageId>, Vec<Bitmap>) = told.into_iter().unzip();
        let results = stages.into_iter().map(|stage| OutputRef { stage, output: 0 }).collect();
        Ok(Order { tiling, results, told, readers, runs: met, operands })
    }

    /// Operands that run, if all that was said to be there is.
    pub fn operands(&self) -> u64 {
        self.operands
    }

    /// Operands that run, by stage.
    pub fn runs(&self) -> &[Bitmap] {
        &self.runs
    }

    /// Operands whose chunks are loaded, in no order.
    pub fn loads(&self) -> impl Iterator<Item = (StageId, u64)> + '_ {
        let read = self.readers.keys().map(|(of, number)| (of.stage, *number));
        let loaded: BTreeSet<(StageId, u64)> =
            read.filter(|(stage, n)| !self.runs[stage.0 as usize].contains(*n)).collect();
        loaded.into_iter()
    }

    /// For each stage, how many operands there are of it in all: what is told of a plan that runs.
    pub fn tiling(&self) -> &Arc<tile::Tiling> {
        &self.tiling
    }
}

impl Tiling for Order {
    fn stages(&self) -> usize {
        Tiling::stages(&*self.tiling)
    }

    fn results(&self) -> &[OutputRef] {
        &self.results
    }

    fn next_wanted(&self, result: usize, from: u64) -> Option<u64> {
        self.told.get(result)?.first_from(from)
    }

    fn grid(&self, stage: StageId) -> &Grid {
        Tiling::grid(&*self.tiling, stage)
    }

    fn outputs(&self, stage: StageId) -> usize {
        Tiling::outputs(&*self.tiling, stage)
    }

    fn output_grid(&self, of: OutputRef) -> &Grid {
        Tiling::output_grid(&*self.tiling, of)
    }

    fn name(&self, stage: StageId) -> String {
        Tiling::name(&*self.tiling, stage)
    }

    fn reads(&self, stage: StageId, index: &[u64], f: &mut dyn FnMut(OutputRef, ChunkIndex)) {
        Tiling::reads(&*self.tiling, stage, index, f);
    }

    fn read_count(&self, stage: StageId, index: &[u64]) -> u64 {
        Tiling::read_count(&*self.tiling, stage, index)
    }

    fn readers(&self, of: OutputRef, index: &[u64]) -> u64 {
        let number = Tiling::grid(&*self.tiling, of.stage).ravel(index);
        self.readers.get(&(of, number)).copied().unwrap_or(0)
    }

    fn peak(&self, stage: StageId, index: &[u64]) -> u64 {
        Tiling::peak(&*self.tiling, stage, index)
    }

    fn output_bytes(&self, stage: StageId, index: &[u64]) -> u64 {
        Tiling::output_bytes(&*self.tiling, stage, index)
    }

    fn depth(&self, stage: StageId) -> u32 {
        Tiling::depth(&*self.tiling, stage)
    }

    fn is_rereadable(&self, stage: StageId) -> bool {
        Tiling::is_rereadable(&*self.tiling, stage)
    }

    fn parts(&self, stage: StageId, index: &[u64], from: OutputRef) -> Option<u64> {
        Tiling::parts(&*self.tiling, stage, index, from)
    }

    fn is_read_in_parts(&self, stage: StageId) -> bool {
        Tiling::is_read_in_parts(&*self.tiling, stage)
    }
}

/// Takes the operands that an order is told: the shelf has seen them.
#[derive(Debug)]
pub struct Seen;

impl Sink for Seen {
    fn chunk(&self, _: usize, _: ChunkIndex, _: Region, _: Arc<Chunk>) -> Result<(), Error> {
        Ok(())
    }

    fn drains(&self) -> bool {
        true
    }

    fn waits(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
