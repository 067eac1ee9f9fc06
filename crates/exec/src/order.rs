//! Orders: an order runs some operands of a plan, from chunks that are available.
//!
//! ```text
//!   plan      load ▸ fused ▸ partial ▸ combine          available: made by others; fetched from the shelf
//!   order            fused ▸ partial                     assigned: runs, with all its inputs that are not available
//! ```
//! An [`Order`] is the plan as the scheduler of one machine sees it when only some operands are assigned to it. Each of
//! them is a result of the order: the [`Shelf`] sees every operand that runs and retains what others read. The results
//! of the order begin with those of the plan, so that a sink may take their chunks.
//!
//! Invariants: the chunks of an order do not depend on which chunks are available; a chunk that turns out to be missing
//! is computed.

use crate::chunk::Chunk;
use crate::chunk::ipc::{self, Compression, Message};
use crate::durable::Stored;
use crate::error::Error;
use crate::operand::StateCounts;
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

/// Upper bound on the operands of an order: they are counted one by one.
pub const OPERANDS_MAX: u64 = 1 << 24;

/// Loads chunks of a plan that are available elsewhere, and receives the chunks that are computed here.
pub trait Shelf: Send + Sync + Debug {
    /// Fetches the chunks of an operand, which have `bytes` bytes; `None` if they are not available, so that they are
    /// made. Errors of class `retry` are retried a bounded number of times.
    fn fetch(
        &self,
        stage: StageId,
        number: u64,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Option<Found>, Error>>;

    /// Called with the chunks that an operand made, on the thread that made them.
    fn made(&self, stage: StageId, number: u64, chunks: &[Arc<Chunk>]);

    /// Called with the chunks that an operand loaded instead of making them.
    fn loaded(&self, _stage: StageId, _number: u64, _chunks: &[Arc<Chunk>]) {}

    /// Bytes fetched from other processes.
    fn fetched_bytes(&self) -> u64;
}

/// The chunks of an operand, one for each of its outputs.
#[derive(Debug)]
pub enum Found {
    /// Chunks in this process.
    Here(SmallVec<[FinishedChunk; 1]>),
    /// The output of [`encode`] in another process.
    Object(Bytes),
    /// An object of durable chunks.
    Stored {
        /// The object.
        object: Bytes,
        /// The store that the object was read from.
        stored: Arc<Stored>,
    },
}

impl Found {
    /// Returns the chunks; `None` if they are corrupt.
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
            Found::Stored { object, stored } => {
                return stored.kept.load(&object, stage, number, shapes, pool);
            }
            Found::Object(object) => {
                match ipc::decode(&object, &stage_name(stage), number, shapes, pool) {
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

/// Encodes the chunks of an operand, or the chunk of one output, as one object of [Arrow IPC](ipc).
///
/// # Errors
/// Errors of [`ipc`].
pub(crate) fn encode(
    tiling: &dyn Tiling,
    (stage, number): (StageId, u64),
    chunks: &[Arc<Chunk>],
    output: Option<u32>,
    compression: Compression,
) -> Result<Vec<Message>, Error> {
    let origins = origins(tiling, stage, number);
    let chunks = (0..).zip(chunks.iter().zip(&origins));
    let chunks = chunks.filter(|(of, _)| output.is_none_or(|output| output == *of));
    ipc::encode(&stage_name(stage), number, 0, compression, chunks)
}

/// Stages of a plan whose chunks are results and which no stage reads.
pub fn only_results(tiling: &tile::Tiling) -> BTreeSet<StageId> {
    let plan = tiling.plan();
    let read: BTreeSet<StageId> =
        plan.stages.iter().flat_map(|s| &s.inputs).map(|input| input.from.stage).collect();
    plan.results.iter().map(|of| of.stage).filter(|stage| !read.contains(stage)).collect()
}

/// The index of the first cell of each chunk of an operand.
pub(crate) fn origins(tiling: &dyn Tiling, stage: StageId, number: u64) -> Vec<Dims> {
    let index = tiling.grid(stage).unravel(number);
    let outputs = (0..tiling.outputs(stage) as u32).map(|output| OutputRef { stage, output });
    outputs.map(|of| tiling.output_grid(of).region(&index).start).collect()
}

/// Upper bound on the encoded size of `bytes` of cells.
pub fn object_bytes_max(bytes: u64) -> u64 {
    ipc::object_bytes_max(bytes)
}

fn stage_name(stage: StageId) -> impl Display {
    format!("stage {}", stage.0)
}

/// Counters of all workers for a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// For each stage, operands that ran, and thread-seconds.
    pub stages: Vec<(u64, f64)>,
    /// Operands of all orders by state. An order counts its assigned operands, and the chunks that it loads for them.
    pub states: StateCounts,
    /// Requests to storage.
    pub requests: u64,
    /// Bytes that came from storage.
    pub bytes_read: u64,
    /// Bytes of chunks that workers fetched from other parties.
    pub bytes_moved: u64,
    /// Bytes of chunks that the server fetched from workers.
    pub bytes_home: u64,
    /// Objects of the output that workers wrote.
    pub objects_written: u64,
    /// Bytes of these.
    pub bytes_written: u64,
    /// Workers that could not write to the output: the server wrote their chunks.
    pub no_output: u64,
    /// Part of `bytes_moved` that the server relayed between workers that do not reach each other.
    pub bytes_relayed: u64,
    /// Bytes that the placement expects workers to fetch from each other.
    pub bytes_expected: u64,
    /// Completed orders.
    pub orders: u64,
    /// Workers that were assigned orders at the start.
    pub workers: u64,
    /// Workers that were lost during the run.
    pub lost: u64,
    /// Operands whose chunks were lost and that were reassigned.
    pub again: u64,
    /// Operands whose chunks leaving workers handed over to others.
    pub handed_over: u64,
    /// Orders that a second worker ran too, because they took long.
    pub copies: u64,
    /// Operands whose chunks workers had retained from earlier plans.
    pub retained: u64,
    /// Chunks spilled to files for want of memory.
    pub spills: u64,
    /// Bytes of the spilled chunks.
    pub bytes_spilled: u64,
    /// Counters of each worker, by number.
    pub each: BTreeMap<u32, OfWorker>,
}

/// Counters of one worker for a plan.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfWorker {
    /// Completed orders.
    pub orders: u64,
    /// Operands that ran.
    pub operands: u64,
    /// Thread-seconds.
    pub seconds: f64,
    /// Peak bytes of an order.
    pub peak_bytes: u64,
    /// Bytes of chunks fetched from other parties.
    pub bytes_moved: u64,
}

/// How a plan is run with a shelf.
#[derive(Debug)]
pub struct Shelved {
    /// Fetches available chunks.
    pub shelf: Arc<dyn Shelf>,
    /// The chunks on the shelf, or that it can fetch.
    pub recovery: Recovery,
}

/// A plan of which some operands are assigned.
pub struct Order {
    tiling: Arc<tile::Tiling>,
    /// The results of the plan, then an output of each other stage with assigned operands; and the operands of each.
    results: Vec<OutputRef>,
    assigned: Vec<Bitmap>,
    /// Number of operands of the order that read a chunk.
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
    /// Creates an order of the operands `assigned`, by stage, where the chunks `there` are available. An assigned operand
    /// whose chunks are available is loaded. Takes time and memory that grow with the operands that run and with their
    /// reads.
    ///
    /// # Errors
    /// A stage or an operand that the plan does not have; more than 2^24 operands that would run.
    pub fn new(
        tiling: Arc<tile::Tiling>,
        assigned: Vec<(StageId, Bitmap)>,
        there: &[Bitmap],
    ) -> Result<Self, Error> {
        let plan = tiling.plan().clone();
        let is_there = |s: StageId, n| there.get(s.0 as usize).is_some_and(|set| set.contains(n));
        let mut met: Vec<Bitmap> = vec![Bitmap::default(); plan.stages.len()];
        let mut open: Vec<(StageId, u64)> = Vec::new();
        for (stage, numbers) in &assigned {
            let count = plan.stages.get(stage.0 as usize).map_or(0, |s| s.grid.count());
            for number in numbers.iter() {
                if number >= count {
                    let what = format!("operand {number} of {stage:?}, which has {count}");
                    return Err(Error::Broken { what });
                }
                // An available operand is loaded.
                if !is_there(*stage, number) && met[stage.0 as usize].insert(number) {
                    open.push((*stage, number));
                }
            }
        }
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
        let mut of_stages: BTreeMap<StageId, Bitmap> = BTreeMap::new();
        for (stage, numbers) in assigned {
            of_stages.entry(stage).or_default().extend(&numbers);
        }
        let mut results = plan.results.clone();
        let of_result = |of: &OutputRef| of_stages.get(&of.stage).cloned().unwrap_or_default();
        let mut assigned: Vec<Bitmap> = results.iter().map(of_result).collect();
        for (stage, numbers) in of_stages {
            if plan.results.iter().all(|of| of.stage != stage) {
                results.push(OutputRef { stage, output: 0 });
                assigned.push(numbers);
            }
        }
        Ok(Order { tiling, results, assigned, readers, runs: met, operands })
    }

    /// Number of operands that run if all chunks declared available are.
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

    /// The tiling of the whole plan.
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
        self.assigned.get(result)?.first_from(from)
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

/// Sink that drops every chunk: for orders, whose shelf has seen the chunks, and for plans that only run to be measured.
#[derive(Debug)]
pub struct Discard;

impl Sink for Discard {
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
