//! The scheduler: it runs a plan lazily, depth-first, within a budget of bytes.
//!
//! The life of one operand:
//! 1. [`walk`] finds it on the way depth-first from a chunk of a result (UNSCHEDULED). Its inputs are found next, those
//!    furthest from the sources first; each retains its place in memory as long as a known operand waits for it.
//! 2. When its last input is available, it joins the [`ready`] queue (READY): older root first, deeper first, smaller
//!    output first.
//! 3. A thread takes it when its whole peak fits the quota (RUNNING). A load first fetches on tokio, without a thread.
//! 4. Its outputs are retained until their last reader is done (FINISHED → FREED); chunks of results go to the
//!    [`Sink`].
//!
//! Loaded chunks that no known operand waits for are evicted when memory is short and read again on demand. If nothing
//! runs and nothing fits, finished chunks are spilled, those needed last first ([`spill`]); then an operand fits if its
//! peak and its inputs do. If spilling is off, the work computed ahead is dropped and the plan continues one operand at
//! a time, in plain depth-first order, which needs the least memory. It fails only if that does not fit either. So
//! whether a plan can run does not depend on the number of threads.
//!
//! When a plan with stored chunks ([`crate::durable`]) runs again, an operand whose chunks are stored is a load: it
//! reads nothing, and operands that only it read are never found. If its chunks turn out to be missing, the operand
//! returns to UNSCHEDULED, with all its inputs.
//!
//! Invariants: no list of a stage's operands is ever made; an operand never waits for memory while it runs; results do
//! not depend on the order of arrival; the scheduler does not know what an operand computes.

use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::durable::Did;
use crate::error::Error;
use crate::operand::StateCounts;
use crate::order::Totals;
use crate::pool::{Pool, PooledBuf};
use crate::store::FinishedChunk;
use futures::future::BoxFuture;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::region::Region;
use tessera_storage::lock;
use tessera_storage::sink::ZarrWriter;

pub(crate) mod admit;
pub(crate) mod core;
pub(crate) mod job;
pub(crate) mod miss;
pub(crate) mod ranges;
pub(crate) mod ready;
pub(crate) mod spill;
pub(crate) mod table;
pub(crate) mod walk;

/// The scheduler's view of a plan. All methods are pure functions.
pub trait Tiling: Send + Sync {
    /// Number of stages.
    fn stages(&self) -> usize;
    /// The outputs that are the results.
    fn results(&self) -> &[OutputRef];
    /// Returns the first requested chunk of a result whose number is at least `from`. All chunks are requested,
    /// except by an [order](crate::order::Order).
    fn next_wanted(&self, _result: usize, from: u64) -> Option<u64> {
        Some(from)
    }
    /// The operands of a stage, as the chunks of a grid.
    fn grid(&self, stage: StageId) -> &Grid;
    /// Number of outputs of a stage.
    fn outputs(&self, stage: StageId) -> usize;
    /// The cells of an output; as many chunks along each axis as the stage's grid.
    fn output_grid(&self, of: OutputRef) -> &Grid;
    /// A name of the stage, for errors and statistics.
    fn name(&self, stage: StageId) -> String;
    /// Calls `f` with each chunk that an operand reads, once.
    fn reads(&self, stage: StageId, index: &[u64], f: &mut dyn FnMut(OutputRef, ChunkIndex));
    /// Upper bound on the number of chunks that an operand reads.
    fn read_count(&self, stage: StageId, index: &[u64]) -> u64;
    /// Number of operands that read a chunk, over all stages; saturates.
    fn readers(&self, of: OutputRef, index: &[u64]) -> u64;
    /// Bytes that an operand needs in addition to its inputs: assembled inputs, scratch, outputs.
    fn peak(&self, stage: StageId, index: &[u64]) -> u64;
    /// Bytes of an operand's outputs.
    fn output_bytes(&self, stage: StageId, index: &[u64]) -> u64;
    /// Distance of a stage from the sources.
    fn depth(&self, stage: StageId) -> u32;
    /// True for loads: their chunks may be evicted and read again.
    fn is_rereadable(&self, stage: StageId) -> bool;
    /// Bytes, in addition to the peak and [`crate::store::Spilled::staging`], that an operand needs to read spilled
    /// chunks of `from` in parts ([`Inputs::held`]). `None` if spilled chunks are to be loaded whole.
    fn parts(&self, _stage: StageId, _index: &[u64], _from: OutputRef) -> Option<u64> {
        None
    }
    /// True if each reader of a stage's chunks needs only a small part of a chunk.
    fn is_read_in_parts(&self, _stage: StageId) -> bool {
        false
    }
}

/// Fetched but not yet decoded data of a load.
pub type Prepared = Box<dyn Any + Send>;

/// Runs operands.
pub trait TaskRunner: Send + Sync {
    /// Returns the I/O that precedes an operand, to be awaited on tokio; `None` if the operand has no such I/O. The I/O
    /// uses memory of the operand's peak. Errors of class `retry` repeat it a bounded number of times.
    fn prepare(
        &self,
        stage: StageId,
        index: &[u64],
    ) -> Option<BoxFuture<'static, Result<Prepared, Error>>>;

    /// Called once all operands have run; fails if the data they read turn out invalid.
    fn check_read(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the number of requests to storage by its operands so far, and the bytes received.
    fn requests(&self) -> (u64, u64) {
        (0, 0)
    }

    /// True if operands of a stage read memory that is neither theirs nor an input's, or need more than their peak:
    /// [`TaskRunner::pin`] is called.
    fn pins(&self, _stage: StageId) -> bool {
        false
    }

    /// Pins the memory that an operand reads in addition to its inputs, until it runs. Returns the bytes that it
    /// needs in addition to its peak, and the `prepared` argument of `run`. Called by the scheduler, so it does not
    /// wait.
    fn pin(&self, _stage: StageId, _index: &[u64]) -> (u64, Option<Prepared>) {
        (0, None)
    }

    /// True if loads of a stage may have I/O to do. Such loads start ahead of the threads, several at a time; a load
    /// that only computes is run when its chunk is wanted.
    fn fetches(&self, _stage: StageId) -> bool {
        true
    }

    /// Computes the operand's chunks, one for each output of its stage, on a thread of the runtime. It polls
    /// `cx.cancel` between blocks of work.
    fn run(
        &self,
        stage: StageId,
        index: &[u64],
        inputs: &Inputs,
        prepared: Option<Prepared>,
        cx: &TaskContext<'_>,
    ) -> Result<Vec<Chunk>, Error>;
}

/// Receiver of the results.
pub trait Sink: Send + Sync {
    /// Takes chunk `index` of a result, whose cells are `region`. Called once for each chunk, in no fixed order and by
    /// several threads. The chunk's bytes count against the quota until the sink drops it. A call that blocks keeps a
    /// thread; an error cancels the plan.
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error>;

    /// Memory of the sink in which a chunk's cells (field 0) may be made, with NaN or NaT where cells are masked; `None` if
    /// it has none for this chunk. The sink may get the chunk with its cells elsewhere.
    fn place(&self, _result: usize, _index: &[u64]) -> Option<PooledBuf> {
        None
    }

    /// True if the sink drops chunks while the plan still runs, so that a plan short of memory should wait for it.
    /// False for a sink that collects all chunks: the plan then fails at once when they do not fit.
    fn drains(&self) -> bool {
        false
    }

    /// The store to which other processes may write chunks of the results instead of this sink.
    fn store(self: Arc<Self>) -> Option<Arc<ZarrWriter>> {
        None
    }

    /// True if a call may wait for a disk, a network or a reader. A plan with such a sink is not run on the thread
    /// that starts it.
    fn waits(&self) -> bool {
        true
    }
}

/// Resources of a running operand.
#[derive(Debug)]
pub struct TaskContext<'a> {
    /// The buffer pool.
    pub pool: &'a Arc<Pool>,
    /// Bytes reserved for the operand: the planner's peak. Live buffers stay below it at any time.
    pub reserved: u64,
    /// Polled between blocks of work.
    pub cancel: &'a CancelToken,
    /// Counts the bytes read from spill files.
    pub read_back: &'a AtomicU64,
    /// Memory for the cells of outputs, by the number of the output.
    pub places: Mutex<SmallVec<[(u32, PooledBuf); 1]>>,
}

impl TaskContext<'_> {
    /// Returns a buffer with unspecified, initialised contents.
    pub fn buffer(&self, bytes: usize) -> PooledBuf {
        self.pool.take(bytes)
    }

    /// True if the cells of an output have a place in the result.
    pub fn has_place(&self, output: u32) -> bool {
        let places = lock(&self.places);
        places.iter().any(|(o, _)| *o == output)
    }

    /// Like [`TaskContext::buffer`], for the cells of an output. If the sink has a place for them in the result, the
    /// buffer is that place.
    pub fn cells(&self, output: u32, bytes: usize) -> PooledBuf {
        let mut places = lock(&self.places);
        match places.iter().position(|(o, place)| *o == output && place.len() == bytes) {
            Some(i) => places.swap_remove(i).1,
            None => self.buffer(bytes),
        }
    }
}

/// The chunks that an operand reads.
#[derive(Default)]
pub struct Inputs {
    /// Output, row-major number of the chunk, chunk.
    chunks: SmallVec<[(OutputRef, u64, FinishedChunk); 2]>,
    tiling: Option<Arc<dyn Tiling>>,
    /// True if the number of chunks is large enough to sort them for binary search.
    sorted: bool,
}

impl Inputs {
    pub(crate) fn new(
        tiling: Arc<dyn Tiling>,
        mut chunks: SmallVec<[(OutputRef, u64, FinishedChunk); 2]>,
    ) -> Self {
        let sorted = chunks.len() > 8;
        if sorted {
            chunks.sort_unstable_by_key(|c| (c.0, c.1));
        }
        Inputs { chunks, tiling: Some(tiling), sorted }
    }

    /// Returns a chunk by its index; fails if the operand's reads do not name it, or if it is in a file because
    /// [`Tiling::parts`] says that the operand reads parts of it.
    pub fn get(&self, from: OutputRef, index: &[u64]) -> Result<&Arc<Chunk>, Error> {
        match self.held(from, index)? {
            FinishedChunk::Memory(chunk) => Ok(chunk),
            FinishedChunk::File(_) => Err(Error::Broken {
                what: format!("chunk {index:?} of {from:?} is in a file and is read as a whole"),
            }),
        }
    }

    /// Returns a chunk by its index, in memory or in a file.
    pub fn held(&self, from: OutputRef, index: &[u64]) -> Result<&FinishedChunk, Error> {
        let number = self.tiling.as_ref().map_or(0, |t| t.grid(from.stage).ravel(index));
        let found = if self.sorted {
            self.chunks.binary_search_by_key(&(from, number), |c| (c.0, c.1)).ok()
        } else {
            self.chunks.iter().position(|c| c.1 == number && c.0 == from)
        };
        found.map(|i| &self.chunks[i].2).ok_or_else(|| Error::Broken {
            what: format!("chunk {index:?} of {from:?} is not a declared input"),
        })
    }

    /// Iterates over all chunks with their row-major numbers, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (OutputRef, u64, &FinishedChunk)> {
        self.chunks.iter().map(|(r, n, c)| (*r, *n, c))
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// True if the operand reads no chunk.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

/// Statistics of a run.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Operands by state.
    pub states: StateCounts,
    /// Peak number of operands known to the scheduler.
    pub max_live_operands: u64,
    /// Peak number of chunks held by the scheduler.
    pub max_live_chunks: u64,
    /// Peak bytes of the statement, reservations included.
    pub peak_bytes: u64,
    /// Loads that ran.
    pub reads: u64,
    /// Bytes of the chunks that loads made.
    pub bytes_read: u64,
    /// Requests to storage by loads: reads of objects, or of parts of objects.
    pub requests: u64,
    /// Encoded bytes received from storage.
    pub bytes_fetched: u64,
    /// Operands that ran again because their chunk had been evicted.
    pub reruns: u64,
    /// Chunks evicted for want of memory.
    pub evictions: u64,
    /// Operands retried after an error of class `retry`.
    pub retries: u64,
    /// Chunks spilled to files for want of memory.
    pub spills: u64,
    /// Bytes of the spilled chunks.
    pub bytes_spilled: u64,
    /// Spilled bytes that were read again.
    pub bytes_read_back: u64,
    /// Spilled chunks that were recomputed because their files were corrupt.
    pub spill_misses: u64,
    /// Number of times work was dropped to continue with less memory.
    pub restarts: u64,
    /// Durable chunks written and reused, for all plans of the statement so far.
    pub durable: Did,
    /// Counters of a cluster's workers, which the stages and the storage counters include.
    pub elsewhere: Option<Box<Totals>>,
    /// Thread time of each stage, in the plan's order.
    pub stages: Vec<StageStats>,
}

impl Stats {
    /// Adds the counters of workers.
    pub fn add(&mut self, totals: Totals) {
        for (stage, (operands, seconds)) in self.stages.iter_mut().zip(&totals.stages) {
            stage.operands += operands;
            stage.seconds += seconds;
        }
        self.states.add(&totals.states);
        self.requests += totals.requests;
        self.bytes_fetched += totals.bytes_read;
        self.spills += totals.spills;
        self.bytes_spilled += totals.bytes_spilled;
        self.elsewhere = Some(Box::new(totals));
    }
}

/// The result and the statistics of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The first error, if any.
    pub result: Result<(), Error>,
    /// The statistics, up to the end or the error.
    pub stats: Stats,
}

/// Operands and thread time of a stage.
#[derive(Debug, Clone, Default)]
pub struct StageStats {
    /// Name of the stage.
    pub name: String,
    /// Operands that ran.
    pub operands: u64,
    /// Thread-seconds, over all of them.
    pub seconds: f64,
}

#[cfg(test)]
mod tests;
