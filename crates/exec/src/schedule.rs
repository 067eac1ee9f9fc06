//! How a plan runs: lazily, depth-first, within a budget of bytes.
//!
//! The life of one operand:
//! 1. [`walk`] finds it as it goes depth-first from a chunk of a result (UNSCHEDULED). Its inputs are found next,
//!    those furthest from the sources first; each holds a place in memory as long as something known waits for it.
//! 2. When its last input is there, it joins the [`ready`] queue (READY): older root first, deeper first, smaller
//!    output first.
//! 3. A thread takes it when its whole peak fits the quota (RUNNING). A load first fetches on tokio, without a thread.
//! 4. Its outputs are kept until their last reader is done (FINISHED → FREED); chunks of results go to the [`Sink`].
//!
//! Loaded chunks that nothing known waits for are dropped when memory is short and read again on demand. If nothing
//! runs and nothing fits, finished chunks go to files, those needed last first ([`spill`]); then an operand fits if its
//! peak and its inputs do. Without a place for files, what the plan has computed ahead is given up and the plan goes on
//! one operand at a time, in plain depth-first order, which needs the least memory; only if that does not fit either,
//! it fails. So whether a plan can run does not depend on the number of threads.
//!
//! Of a plan whose chunks are kept ([`crate::durable`]) and that runs again, an operand whose chunks are there is a load:
//! it reads nothing, and those that only it read are never found. If its chunks cannot be had after all, the operand is
//! put back to where it was found, with all that it reads.
//!
//! Invariants: no list of a stage's operands is ever made; an operand never waits for memory while it runs; results
//! do not depend on the order of arrival; nothing here knows what an operand computes.

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
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::region::Region;

pub(crate) mod admit;
pub(crate) mod core;
pub(crate) mod job;
pub(crate) mod miss;
pub(crate) mod ranges;
pub(crate) mod ready;
pub(crate) mod spill;
pub(crate) mod table;
pub(crate) mod walk;

/// What the scheduler asks of a plan. All answers are pure functions.
pub trait Tiling: Send + Sync {
    /// Number of stages.
    fn stages(&self) -> usize;
    /// The outputs that are the answer.
    fn results(&self) -> &[OutputRef];
    /// The first chunk of a result, not below a number, that is asked for. All are, but by an
    /// [order](crate::order::Order).
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
    /// At most how many chunks an operand reads.
    fn read_count(&self, stage: StageId, index: &[u64]) -> u64;
    /// Operands that read a chunk, over all stages; saturates.
    fn readers(&self, of: OutputRef, index: &[u64]) -> u64;
    /// Bytes that an operand needs beside its inputs: assembled inputs, scratch, outputs.
    fn peak(&self, stage: StageId, index: &[u64]) -> u64;
    /// Bytes of an operand's outputs.
    fn output_bytes(&self, stage: StageId, index: &[u64]) -> u64;
    /// Distance of a stage from the sources.
    fn depth(&self, stage: StageId) -> u32;
    /// True for loads: their chunks may be dropped and read again.
    fn is_rereadable(&self, stage: StageId) -> bool;
    /// Bytes beside the peak and [`crate::store::Spilled::staging`] that an operand needs to read chunks of `from` if they are
    /// in files and it reads what it needs of them ([`Inputs::held`]). `None` if they are to be brought back whole.
    fn parts(&self, _stage: StageId, _index: &[u64], _from: OutputRef) -> Option<u64> {
        None
    }
    /// True if readers of a stage's chunks need but a small part of a chunk each.
    fn is_read_in_parts(&self, _stage: StageId) -> bool {
        false
    }
}

/// What a load fetched and has not decoded yet.
pub type Prepared = Box<dyn Any + Send>;

/// What an operand does.
pub trait TaskRunner: Send + Sync {
    /// The I/O that precedes an operand, to be awaited on tokio; `None` if there is none. It uses memory of the
    /// operand's peak. Errors of class `retry` make it run again, a bounded number of times.
    fn prepare(
        &self,
        stage: StageId,
        index: &[u64],
    ) -> Option<BoxFuture<'static, Result<Prepared, Error>>>;

    /// Asked once all operands have run: an error if what they read was not to be believed.
    fn check_read(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Requests to storage that its operands made until now, and the bytes that came.
    fn requests(&self) -> (u64, u64) {
        (0, 0)
    }

    /// True if operands of a stage read memory that is neither theirs nor an input's: [`TaskRunner::pin`] is called.
    fn pins(&self, _stage: StageId) -> bool {
        false
    }

    /// Keeps what an operand reads beside its inputs where it is, until it runs: bytes that it needs beside its peak,
    /// and what `run` gets as `prepared`. Called by the scheduler, so it does not wait.
    fn pin(&self, _stage: StageId, _index: &[u64]) -> (u64, Option<Prepared>) {
        (0, None)
    }

    /// True if loads of a stage may have I/O to do. Those are started ahead of the threads, several at a time; a load
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

/// Who takes the results.
pub trait Sink: Send + Sync {
    /// Takes chunk `index` of a result, whose cells are `region`. Called once for each chunk, in no fixed order and by
    /// several threads. The chunk's bytes count against the quota until the sink lets it go. A call that blocks keeps
    /// a thread; an error cancels the plan.
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error>;

    /// True if the sink lets chunks go while the plan still runs, so that a plan short of memory should wait for it.
    /// A sink that collects all chunks says false: the plan then fails at once when they do not fit.
    fn drains(&self) -> bool {
        false
    }

    /// True if a call may wait for something: a disk, a network, a reader. A plan with such a sink is not run on the
    /// thread that starts it.
    fn waits(&self) -> bool {
        true
    }
}

/// What a running operand may use.
#[derive(Debug)]
pub struct TaskContext<'a> {
    /// Where buffers come from.
    pub pool: &'a Arc<Pool>,
    /// Bytes reserved for the operand: the planner's peak. Buffers that are alive at a time stay below it.
    pub reserved: u64,
    /// Polled between blocks of work.
    pub cancel: &'a CancelToken,
    /// Counts the bytes that are read of spilled chunks.
    pub read_back: &'a AtomicU64,
}

impl TaskContext<'_> {
    /// A buffer with unspecified, initialised contents.
    pub fn buffer(&self, bytes: usize) -> PooledBuf {
        self.pool.take(bytes)
    }
}

/// The chunks that an operand reads.
#[derive(Default)]
pub struct Inputs {
    /// Output, row-major number of the chunk, chunk.
    chunks: SmallVec<[(OutputRef, u64, FinishedChunk); 2]>,
    tiling: Option<Arc<dyn Tiling>>,
    /// True if there are enough chunks that they were sorted to be searched.
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

    /// A chunk by its place; an error if the operand's reads do not name it, or if it is in a file because
    /// [`Tiling::parts`] says that the operand reads parts of it.
    pub fn get(&self, from: OutputRef, index: &[u64]) -> Result<&Arc<Chunk>, Error> {
        match self.held(from, index)? {
            FinishedChunk::Memory(chunk) => Ok(chunk),
            FinishedChunk::File(_) => Err(Error::Broken {
                what: format!("chunk {index:?} of {from:?} is in a file and is read as a whole"),
            }),
        }
    }

    /// A chunk by its place, in memory or in a file.
    pub fn held(&self, from: OutputRef, index: &[u64]) -> Result<&FinishedChunk, Error> {
        let number = self.tiling.as_ref().map_or(0, |t| t.grid(from.stage).ravel(index));
        let found = if self.sorted {
            self.chunks.binary_search_by_key(&(from, number), |c| (c.0, c.1)).ok()
        } else {
            self.chunks.iter().position(|c| c.1 == number && c.0 == from)
        };
        found.map(|i| &self.chunks[i].2).ok_or_else(|| Error::Broken {
            what: format!("chunk {index:?} of {from:?} is no declared input"),
        })
    }

    /// All chunks with their row-major numbers, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (OutputRef, u64, &FinishedChunk)> {
        self.chunks.iter().map(|(r, n, c)| (*r, *n, c))
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// True if nothing is read.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

/// What a run did.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// Operands by state.
    pub states: StateCounts,
    /// The most operands that the scheduler knew at a time.
    pub max_live_operands: u64,
    /// The most chunks that it held at a time.
    pub max_live_chunks: u64,
    /// The most bytes that the statement held at a time, reservations included.
    pub peak_bytes: u64,
    /// Loads that ran.
    pub reads: u64,
    /// Bytes of the chunks that they made.
    pub bytes_read: u64,
    /// Requests to storage that they took: reads of objects, or of parts of objects.
    pub requests: u64,
    /// Bytes that came from storage, encoded as they are there.
    pub bytes_fetched: u64,
    /// Operands that ran again as their chunk had been dropped.
    pub reruns: u64,
    /// Chunks dropped for want of memory.
    pub evictions: u64,
    /// Operands tried again after an error of class `retry`.
    pub retries: u64,
    /// Chunks written to files for want of memory.
    pub spills: u64,
    /// Their bytes.
    pub bytes_spilled: u64,
    /// Bytes of them that were read again.
    pub bytes_read_back: u64,
    /// Spilled chunks that were made again, as their files were not what was written.
    pub spill_misses: u64,
    /// How often work was given up to go on with less memory.
    pub restarts: u64,
    /// What was kept and used again, for all plans of the statement until now.
    pub durable: Did,
    /// What workers of a cluster did; the stages and the reads of storage have it too.
    pub elsewhere: Option<Box<Totals>>,
    /// Time on threads for each stage, in the plan's order.
    pub stages: Vec<StageStats>,
}

impl Stats {
    /// Adds what workers did.
    pub fn add(&mut self, totals: Totals) {
        for (stage, (operands, seconds)) in self.stages.iter_mut().zip(&totals.stages) {
            stage.operands += operands;
            stage.seconds += seconds;
        }
        self.requests += totals.requests;
        self.bytes_fetched += totals.bytes_read;
        self.spills += totals.spills;
        self.bytes_spilled += totals.bytes_spilled;
        self.elsewhere = Some(Box::new(totals));
    }
}

/// How a run ended, and what it did until then.
#[derive(Debug)]
pub struct Outcome {
    /// The first error, if there was one.
    pub result: Result<(), Error>,
    /// What was done.
    pub stats: Stats,
}

/// What the operands of a stage took.
#[derive(Debug, Clone, Default)]
pub struct StageStats {
    /// Name of the stage.
    pub name: String,
    /// Operands that ran.
    pub operands: u64,
    /// Seconds on threads, over all of them.
    pub seconds: f64,
}

#[cfg(test)]
mod tests;
