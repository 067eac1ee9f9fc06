//! Work of the runtime's threads and fetches.

use super::Shared;
use crate::chunk::Chunk;
use crate::error::{Error, Spot};
use crate::order::Found;
use crate::pool::PooledBuf;
use crate::schedule::admit::Work;
use crate::schedule::core::{After, Core, Finished};
use crate::schedule::spill::{Spill, SpillDone};
use crate::schedule::table::OperandKey;
use crate::schedule::{Inputs, TaskContext, Tiling};
use crate::store::FinishedChunk;
use bytes::Bytes;
use futures::FutureExt;
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::region::Dims;

/// Chunks in the queue of durable writes may hold one part in this many of the quota.
const KEEPING: u64 = 8;

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Core> {
        // Panics under the lock are fenced for each statement, so the state is sound.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The main loop of a thread.
    pub(super) fn work(self: &Arc<Self>) {
        let (mut batch, mut finished) = (Vec::new(), Vec::new());
        let (mut spill, mut spilled) = (None, None);
        let mut after = After::default();
        let mut core = self.lock();
        loop {
            core.complete(&mut finished, &mut after);
            if let Some(done) = spilled.take() {
                core.spilled(done, &mut after);
            }
            let mut wait = None;
            if after.is_empty() {
                wait = core.pick(&mut batch, &mut spill, &mut after);
            }
            if !after.is_empty() || !batch.is_empty() || spill.is_some() {
                let more = core.has_more();
                let settles = !after.is_empty();
                core.settling += usize::from(settles);
                drop(core);
                if more {
                    self.wake.notify_one();
                }
                self.settle(std::mem::take(&mut after));
                let works = !batch.is_empty() || spill.is_some();
                if settles && works {
                    self.lock().settling -= 1;
                }
                let settles = settles && !works;
                spilled = spill.take().map(|s| self.spill(s));
                for work in batch.drain(..) {
                    self.begin(work, &mut finished);
                }
                core = self.lock();
                core.settling -= usize::from(settles);
                continue;
            }
            if core.shutdown && core.is_idle() {
                return;
            }
            let (time, starved) = wait.map_or_else(Default::default, |w| (w.time, w.starved));
            self.starved.store(starved, Ordering::Relaxed);
            core = self.wake.wait_timeout(core, time).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Changes the scheduler's state from outside its threads, and wakes one of them.
    pub(super) fn with(self: &Arc<Self>, f: impl FnOnce(&mut Core, &mut After)) {
        let mut after = After::default();
        {
            let mut core = self.lock();
            f(&mut core, &mut after);
            core.settling += 1;
        }
        self.settle(after);
        self.lock().settling -= 1;
        self.wake.notify_one();
    }

    /// Runs deferred work that must not happen under the lock.
    pub(super) fn settle(self: &Arc<Self>, after: After) {
        // The end of a statement may unblock statements that were parked behind it.
        let over = !after.over.is_empty();
        drop(after.trash);
        for work in after.again {
            let wait =
                self.config.retry_backoff_ms.saturating_mul(1 << (work.attempts - 1).min(16));
            self.fetch(work, Duration::from_millis(wait));
        }
        for (done, outcome) in after.over {
            if let Some(done) = done {
                done(outcome);
            }
        }
        if over && self.lock().has_others() {
            self.wake.notify_all();
        }
    }

    /// Starts an operand: on this thread, or on tokio if it has to fetch first.
    pub(super) fn begin(self: &Arc<Self>, work: Work, finished: &mut Vec<Finished>) {
        if work.fetch {
            self.fetch(work, Duration::ZERO)
        } else {
            self.operands.fetch_add(1, Ordering::Relaxed);
            finished.push(self.compute(work))
        }
    }

    /// Fetches in the background; then the operand waits for a thread.
    fn fetch(self: &Arc<Self>, work: Work, delay: Duration) {
        let mut guard = Fetch { shared: self.clone(), work: Some(work) };
        self.io.spawn(async move {
            let Some(work) = &guard.work else { return };
            let (statement, key, stored) = (work.statement.clone(), work.key, work.stored);
            let fetch = async {
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                let index = statement.tiling.grid(key.stage).unravel(key.number);
                if stored && let Some(shelf) = &statement.shelf {
                    let bytes = statement.tiling.output_bytes(key.stage, &index);
                    let found = shelf.fetch(key.stage, key.number, bytes).await?;
                    return Ok(found.map(|f| Box::new(f) as crate::schedule::Prepared));
                }
                if stored && let Some(kept) = &statement.kept {
                    let bytes = statement.tiling.output_bytes(key.stage, &index);
                    let object = kept.fetch(key.stage, key.number, bytes).await;
                    return Ok(object.map(|o| Box::new(o) as crate::schedule::Prepared));
                }
                match statement.runner.prepare(key.stage, &index) {
                    Some(future) => future.await.map(Some),
                    None => Ok(None),
                }
            };
            let result = tokio::select! {
                result = AssertUnwindSafe(fetch).catch_unwind() => {
                    result.unwrap_or_else(|p| Err(statement.panicked(key, p.as_ref())))
                }
                () = statement.token.cancelled() => Err(Error::Cancelled),
            };
            guard.end(result);
        });
    }

    /// Runs an operand and delivers its results.
    fn compute(&self, mut work: Work) -> Finished {
        let started = Instant::now();
        let run = catch_unwind(AssertUnwindSafe(|| self.run(&mut work)));
        let result = run.unwrap_or_else(|p| Err(work.statement.panicked(work.key, p.as_ref())));
        let statement = work.statement.id;
        let nanos = started.elapsed().as_nanos() as u64;
        if let (Ok(Some(chunks)), Some(kept), false) = (&result, &work.statement.kept, work.stored)
        {
            let operand = (work.key.stage, work.key.number);
            let room = work.statement.account.quota().limit() / KEEPING;
            let tiling = &*work.statement.tiling;
            let origins = || crate::order::origins(tiling, operand.0, operand.1);
            let how = (nanos, self.config.compression);
            kept.keep(&self.io, operand, (chunks, &origins), how, room);
        }
        if let (Ok(Some(chunks)), Some(shelf)) = (&result, &work.statement.shelf) {
            match work.stored {
                true => shelf.loaded(work.key.stage, work.key.number, chunks),
                false => shelf.made(work.key.stage, work.key.number, chunks),
            }
        }
        let (slot, fetch, frees) = (work.slot, work.fetch, work.frees);
        let again = result.is_err().then(|| Box::new(work));
        Finished { statement, slot, result, nanos, fetch, frees, again }
    }

    /// Writes a chunk to a spill file.
    fn spill(&self, spill: Spill) -> SpillDone {
        let Spill { victim, chunk, space } = spill;
        let write = catch_unwind(AssertUnwindSafe(|| self.store.write(&chunk, space)));
        let result = write
            .unwrap_or_else(|p| Err(Error::of_panic("spilling a chunk".to_owned(), p.as_ref())));
        SpillDone { victim, chunk, result }
    }

    /// Loads spilled inputs that the operand does not read in parts; their bytes are reserved.
    fn bring_back(&self, work: &mut Work, index: &[u64]) -> Result<(), Error> {
        let statement = &work.statement;
        for (from, _, held) in &mut work.inputs {
            let FinishedChunk::File(file) = held else { continue };
            if statement.tiling.parts(work.key.stage, index, *from).is_none() {
                statement.token.check()?;
                let mut chunk = file.load(&self.pool, &statement.read_back)?;
                chunk.charge(work.reservation.split(chunk.bytes()));
                *held = FinishedChunk::Memory(Arc::new(chunk));
            }
        }
        Ok(())
    }

    /// Makes or loads the chunks of an operand, charges and delivers them; `None` if they were to be loaded and are not
    /// available.
    fn run(&self, work: &mut Work) -> Result<Option<SmallVec<[Arc<Chunk>; 1]>>, Error> {
        work.statement.token.check()?;
        let index = work.statement.tiling.grid(work.key.stage).unravel(work.key.number);
        let chunks = match work.stored {
            true => self.load(work, &index),
            false => Some(self.make(work, &index)?),
        };
        let Some(chunks) = chunks else { return Ok(None) };
        let (stage, tiling) = (work.key.stage, &work.statement.tiling);
        let mut shared: SmallVec<[Arc<Chunk>; 1]> = SmallVec::new();
        for mut chunk in chunks {
            if !chunk.is_shared() {
                chunk.charge(work.reservation.split(chunk.bytes()));
            }
            shared.push(Arc::new(chunk));
        }
        for &(result, output) in &work.deliver {
            let of = OutputRef { stage, output };
            let region = tiling.output_grid(of).region(&index);
            let chunk = shared[output as usize].clone();
            let sink = &work.statement.sink;
            if let Err(e) = sink.chunk(result as usize, index.clone(), region, chunk) {
                // A sink retries by itself: it must not receive a chunk twice.
                work.attempts = u32::MAX;
                return Err(e);
            }
        }
        Ok(Some(shared))
    }

    /// Decodes the chunks of the fetched object.
    fn load(&self, work: &mut Work, index: &[u64]) -> Option<Vec<Chunk>> {
        let (statement, OperandKey { stage, number }) = (&work.statement, work.key);
        let prepared = work.prepared.take()?;
        let shapes: Vec<Dims> = (0..statement.tiling.outputs(stage) as u32)
            .map(|output| OutputRef { stage, output })
            .map(|of| statement.tiling.output_grid(of).region(index).shape())
            .collect();
        if statement.shelf.is_some() {
            let found = prepared.downcast::<Found>().ok()?;
            return found.chunks((stage, number), &shapes, &self.pool, &statement.read_back);
        }
        let object = prepared.downcast::<Bytes>().ok()?;
        statement.kept.as_ref()?.load(&object, stage, number, &shapes, &self.pool)
    }

    fn make(&self, work: &mut Work, index: &[u64]) -> Result<Vec<Chunk>, Error> {
        self.bring_back(work, index)?;
        let statement = &work.statement;
        let (stage, tiling) = (work.key.stage, &statement.tiling);
        let cx = TaskContext {
            pool: &self.pool,
            reserved: work.reservation.bytes(),
            cancel: &statement.token,
            read_back: &statement.read_back,
            places: Mutex::new(places(work, index)),
        };
        let inputs = match work.inputs.is_empty() {
            true => Inputs::default(),
            false => Inputs::new(tiling.clone(), work.inputs.clone()),
        };
        let made = statement.runner.run(stage, index, &inputs, work.prepared.take(), &cx);
        let chunks = made.map_err(|e| e.met_in(|| spot(&**tiling, stage, index)))?;
        if chunks.len() != tiling.outputs(stage) {
            let what = format!(
                "{} made {} chunks instead of {}",
                statement.name(work.key),
                chunks.len(),
                tiling.outputs(stage)
            );
            return Err(Error::Broken { what });
        }
        Ok(chunks)
    }
}

/// Memory of the sink for those chunks of an operand that only the sink receives.
fn places(work: &Work, index: &[u64]) -> SmallVec<[(u32, PooledBuf); 1]> {
    let statement = &work.statement;
    if statement.kept.is_some() || statement.shelf.is_some() {
        return SmallVec::new();
    }
    let stage = work.key.stage;
    let is_for_one = |output: u32| {
        work.deliver.iter().filter(|(_, o)| *o == output).count() == 1
            && statement.tiling.readers(OutputRef { stage, output }, index) == 0
    };
    let of_one = work.deliver.iter().filter(|(_, output)| is_for_one(*output));
    let place = |&(result, output): &(u32, u32)| {
        Some((output, statement.sink.place(result as usize, index)?))
    };
    of_one.filter_map(place).collect()
}

/// Names an operand for an error of its kernel.
pub(super) fn spot(tiling: &dyn Tiling, stage: StageId, index: &[u64]) -> Spot {
    let grid = tiling.grid(stage);
    Spot {
        stage: tiling.name(stage),
        index: index.to_vec(),
        counts: grid.axes.iter().map(|axis| axis.count()).collect(),
        region: grid.region(index),
    }
}

/// A fetch in progress. If tokio drops it, as when its runtime ends, the operand fails instead of hanging.
struct Fetch {
    shared: Arc<Shared>,
    work: Option<Work>,
}

impl Fetch {
    fn end(&mut self, result: Result<Option<crate::schedule::Prepared>, Error>) {
        let Some(mut work) = self.work.take() else { return };
        match result {
            Ok(prepared) => {
                work.prepared = prepared;
                self.shared.with(|core, after| core.fetched(work, after));
            }
            Err(error) => {
                let (statement, slot, fetch) = (work.statement.id, work.slot, work.fetch);
                let again = Some(Box::new(work));
                let result = Err(error);
                let f = Finished { statement, slot, result, nanos: 0, fetch, frees: false, again };
                self.shared.with(|core, after| core.complete(&mut vec![f], after));
            }
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let what = "the I/O runtime ended while a statement was reading".to_owned();
        self.end(Err(Error::Broken { what }));
    }
}
