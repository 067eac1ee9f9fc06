//! The runtime: threads, memory and I/O for all statements.
//!
//! Threads are the scheduler: each takes the lock, says what it finished, takes the next operands and lets go. There
//! is no driver to wait for, and a thread without work sleeps.

mod here;

use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::config::Config;
use crate::durable::Stored;
use crate::error::{Error, Spot};
use crate::operand::StateCounts;
use crate::order::{Found, Shelved};
use crate::pool::Pool;
use crate::quota::Quota;
use crate::schedule::admit::{Limits, Work};
use crate::schedule::core::{After, Core, Finished};
use crate::schedule::job::{Job, Statement};
use crate::schedule::spill::{Spill, SpillDone};
use crate::schedule::table::Key;
use crate::schedule::{Inputs, Outcome, Sink, Stats, TaskContext, TaskRunner, Tiling};
use crate::store::{Held, Spilled, Store};
use bytes::Bytes;
use futures::FutureExt;
use smallvec::SmallVec;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::region::Dims;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The part of the quota that chunks may hold which wait to be kept.
const KEEPING: u64 = 8;

/// How a plan is run.
#[derive(Default)]
pub struct How {
    /// What is there of it and what is kept: chunks that are there are loaded, and those that are computed are written.
    pub stored: Option<Stored>,
    /// What is there of it in other processes, where it is one that several work at. Not together with `stored`.
    pub shelved: Option<Shelved>,
    /// For a plan that [is small](tessera_planner::cost::is_small) with a sink that does not wait: it is run on the
    /// thread that starts it as far as it goes without waiting, most often to its end.
    pub here: bool,
    /// The most threads that compute its operands at a time; `None` for all.
    pub threads: Option<usize>,
    /// The statement's own budget, [within](Quota::within) that of the runtime; `None` if it may take what there is.
    pub budget: Option<Arc<Quota>>,
}

/// What threads have to come back when the runtime ends.
const GRACE: Duration = Duration::from_secs(2);

/// Threads, buffers and a budget, for any number of statements at a time. Dropping it cancels what runs and waits for
/// its threads, but for those that are in a block of work of more than two seconds: they end by themselves.
pub struct Runtime {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    core: Mutex<Core>,
    wake: Condvar,
    /// True while a statement waits for memory that clients hold.
    starved: Arc<AtomicBool>,
    config: Config,
    quota: Arc<Quota>,
    pool: Arc<Pool>,
    store: Arc<Store>,
    io: Handle,
    next_statement: AtomicU64,
    operands: AtomicU64,
}

/// A statement that runs. Dropping it cancels the statement.
pub struct Running {
    shared: Arc<Shared>,
    id: u64,
    token: CancelToken,
    outcome: oneshot::Receiver<Outcome>,
    runner: Arc<dyn TaskRunner>,
}

/// Looks at a statement without keeping it or the runtime alive.
#[derive(Clone)]
pub struct Watch {
    shared: Weak<Shared>,
    id: u64,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Watch {
    /// What the statement did until now; `None` when it is over. It takes the scheduler's lock for a moment: ask some
    /// times a second, not for each operand.
    pub fn stats(&self) -> Option<Stats> {
        self.shared.upgrade()?.lock().stats(self.id)
    }
}

impl Runtime {
    /// Starts the threads; I/O runs on the given tokio runtime, which has its timers enabled.
    pub fn new(config: Config, io: Handle) -> Result<Self, Error> {
        let threads = config.threads.max(1);
        let quota = Quota::new(config.quota_bytes_max);
        let pool = Pool::new(quota.clone(), config.pool_bytes_max);
        let fetches = config.fetches_max.max(1);
        let parent = config.spill_dir.clone().unwrap_or_else(std::env::temp_dir);
        let store = Store::open(&parent, config.spill_bytes_max);
        let limits =
            Limits { threads, fetches, quota: quota.clone(), store: store.clone(), claim: None };
        let stall_timeout = Duration::from_millis(config.stall_timeout_ms);
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(limits, config.retries_max, stall_timeout)),
            wake: Condvar::new(),
            starved: Arc::default(),
            config,
            quota: quota.clone(),
            pool,
            store,
            io,
            next_statement: AtomicU64::new(1),
            operands: AtomicU64::new(0),
        });
        let (weak, starved) = (Arc::downgrade(&shared), shared.starved.clone());
        quota.set_released(Box::new(move |()| {
            // The thread that waits also looks by itself every few milliseconds, as this may come before it sleeps.
            if starved.load(Ordering::Relaxed)
                && let Some(shared) = weak.upgrade()
            {
                shared.wake.notify_all();
            }
        }));
        let mut runtime = Runtime { shared, threads: Vec::with_capacity(threads) };
        for i in 0..threads {
            let shared = runtime.shared.clone();
            let thread = std::thread::Builder::new()
                .name(format!("tessera-{i}"))
                .spawn(move || shared.work())
                .map_err(|e| Error::Broken {
                    what: format!("a thread could not be started: {e}"),
                })?;
            runtime.threads.push(thread);
        }
        Ok(runtime)
    }

    /// The budget.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.shared.quota
    }

    /// Where buffers come from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// Where chunks are spilled to.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// Operands that threads have run, over all statements.
    pub fn operands(&self) -> u64 {
        self.shared.operands.load(Ordering::Relaxed)
    }

    /// Plans that run or wait for memory.
    pub fn plans(&self) -> usize {
        self.shared.lock().plans()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Brings a spilled chunk back on this thread, for somebody else than a plan; `None` if there is no memory for it.
    pub fn bring_back(&self, file: &Arc<Spilled>) -> Option<Result<Arc<Chunk>, Error>> {
        let mut room = self.shared.quota.account().try_reserve(file.bytes() + file.staging())?;
        let read = AtomicU64::new(0);
        Some(file.load(&self.shared.pool, &read).map(|mut chunk| {
            chunk.charge(room.split(chunk.bytes()));
            Arc::new(chunk)
        }))
    }

    /// Runs an operand that reads no chunks on this thread, for somebody else than a plan; `None` if there is no memory
    /// for it.
    pub fn load_here(
        &self,
        plan: &dyn Tiling,
        runner: &dyn TaskRunner,
        stage: StageId,
        number: u64,
    ) -> Option<Result<Vec<Arc<Chunk>>, Error>> {
        let index = plan.grid(stage).unravel(number);
        let (more, prepared) = match runner.pins(stage) {
            true => runner.pin(stage, &index),
            false => (0, None),
        };
        let need = plan.peak(stage, &index).saturating_add(more);
        let mut room = self.shared.quota.account().try_reserve(need)?;
        let (cancel, read_back) = (CancelToken::new(), AtomicU64::new(0));
        let cx = TaskContext {
            pool: &self.shared.pool,
            reserved: room.bytes(),
            cancel: &cancel,
            read_back: &read_back,
        };
        let run = || runner.run(stage, &index, &Inputs::default(), prepared, &cx);
        let made = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|p| Err(Error::of_panic(plan.name(stage), p.as_ref())));
        let made = made.map_err(|e| e.met_in(|| spot(plan, stage, &index)));
        Some(made.map(|chunks| {
            let charged = chunks.into_iter().map(|mut chunk| {
                if !chunk.is_shared() {
                    chunk.charge(room.split(chunk.bytes()));
                }
                Arc::new(chunk)
            });
            charged.collect()
        }))
    }

    /// Starts a plan and returns at once.
    pub fn start(
        &self,
        plan: Arc<dyn Tiling>,
        runner: Arc<dyn TaskRunner>,
        sink: Arc<dyn Sink>,
        cancel: &CancelToken,
    ) -> Result<Running, Error> {
        self.start_as(plan, runner, sink, cancel, How::default())
    }

    /// Starts a plan in the given way and returns as soon as that allows.
    pub fn start_as(
        &self,
        plan: Arc<dyn Tiling>,
        runner: Arc<dyn TaskRunner>,
        sink: Arc<dyn Sink>,
        cancel: &CancelToken,
        how: How,
    ) -> Result<Running, Error> {
        cancel.check()?;
        let How { stored, shelved, here, threads, budget } = how;
        let (kept, recovery) = stored.map(|s| (s.kept, s.recovery)).unzip();
        let (shelf, there) = shelved.map(|s| (s.shelf, s.recovery)).unzip();
        let recovery = recovery.or(there).unwrap_or_default();
        let id = self.shared.next_statement.fetch_add(1, Ordering::Relaxed);
        let token = cancel.child();
        let account = budget.as_ref().unwrap_or(&self.shared.quota).account();
        let (sender, outcome) = oneshot::channel();
        // The watcher ends with the statement: `ended` is dropped when the outcome is sent.
        let (ended, wait) = oneshot::channel::<()>();
        let statement = Statement {
            id,
            tiling: plan,
            runner: runner.clone(),
            sink,
            token: token.clone(),
            account,
            read_back: AtomicU64::new(0),
            kept,
            shelf,
            threads: threads.unwrap_or(self.shared.config.threads).max(1),
        };
        let done = Box::new(move |outcome| {
            drop(ended);
            // A receiver that is gone did not want to know.
            let _ = sender.send(outcome);
        });
        let (idle_max, spills) = (self.shared.config.idle_chunks_max, self.shared.store.is_on());
        let job = Job::new(statement, recovery, done, idle_max, spills)?;
        self.shared.lock().add(job);
        if !(here && self.shared.help(id)) {
            self.shared.wake.notify_one();
            let (shared, watched) = (self.shared.clone(), token.clone());
            self.shared.io.spawn(async move {
                tokio::select! {
                    () = watched.cancelled() => {
                        shared.with(|core, after| core.fail(id, watched.error(), after));
                    }
                    _ = wait => {}
                }
            });
        }
        Ok(Running { shared: self.shared.clone(), id, token, outcome, runner })
    }

    /// Runs a plan and waits for its end; not to be called on a tokio thread.
    pub fn run(
        &self,
        plan: Arc<dyn Tiling>,
        runner: Arc<dyn TaskRunner>,
        sink: Arc<dyn Sink>,
        cancel: &CancelToken,
    ) -> Result<Stats, Error> {
        let outcome = self.start(plan, runner, sink, cancel)?.wait();
        outcome.result.map(|()| outcome.stats)
    }

    /// Runs a plan; dropping the future cancels it.
    pub async fn run_async(
        &self,
        plan: Arc<dyn Tiling>,
        runner: Arc<dyn TaskRunner>,
        sink: Arc<dyn Sink>,
        cancel: &CancelToken,
    ) -> Result<Stats, Error> {
        let outcome = self.start(plan, runner, sink, cancel)?.outcome().await;
        outcome.result.map(|()| outcome.stats)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.with(|core, after| {
            core.shutdown = true;
            core.fail_all(after);
        });
        self.shared.wake.notify_all();
        // A block of work can take long: whoever ends does not wait for one that nobody wants any more.
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && self.threads.iter().any(|t| !t.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (over, left): (Vec<_>, Vec<_>) =
            self.threads.drain(..).partition(std::thread::JoinHandle::is_finished);
        for thread in over {
            // A thread's panics are fenced; one that got through was reported by the panic hook.
            let _ = thread.join();
        }
        // Tasks on tokio may hold the rest of it for a moment longer.
        self.shared.store.close(!left.is_empty());
    }
}

impl Running {
    /// Asks the statement to stop; its end comes soon after.
    pub fn cancel(&self) {
        self.token.cancel();
    }

    /// Operands by state; `None` when it is over.
    pub fn progress(&self) -> Option<StateCounts> {
        self.shared.lock().counts(self.id)
    }

    /// A look at the statement that may outlive it.
    pub fn watch(&self) -> Watch {
        Watch { shared: Arc::downgrade(&self.shared), id: self.id }
    }

    /// Waits for the end; not to be called on a tokio thread.
    pub fn wait(mut self) -> Outcome {
        let (_, closed) = oneshot::channel();
        let outcome = std::mem::replace(&mut self.outcome, closed);
        let outcome = outcome.blocking_recv().unwrap_or_else(|_| gone());
        self.shared.io.block_on(self.believed(outcome))
    }

    /// Waits for the end.
    pub async fn outcome(mut self) -> Outcome {
        let outcome = (&mut self.outcome).await.unwrap_or_else(|_| gone());
        self.believed(outcome).await
    }

    /// An end that is well only if what was read is to be believed now that all is read.
    async fn believed(&self, mut outcome: Outcome) -> Outcome {
        if outcome.result.is_ok() {
            outcome.result = self.runner.check_read().await;
        }
        outcome
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

fn gone() -> Outcome {
    let what = "a statement ended without an outcome".to_owned();
    Outcome { result: Err(Error::Broken { what }), stats: Stats::default() }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Core> {
        // Panics under the lock are fenced for each statement, so the state is sound.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread.
    fn work(self: &Arc<Self>) {
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

    /// Changes the scheduler's state from outside its threads, and has one of them look at it.
    fn with(self: &Arc<Self>, f: impl FnOnce(&mut Core, &mut After)) {
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

    /// Does what must not happen under the lock.
    fn settle(self: &Arc<Self>, after: After) {
        // The end of a statement may let others go on that were parked behind it.
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
    fn begin(self: &Arc<Self>, work: Work, finished: &mut Vec<Finished>) {
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
                () = statement.token.cancelled() => Err(statement.token.error()),
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
            kept.keep(&self.io, operand, chunks, nanos, room);
        }
        if let (Ok(Some(chunks)), Some(shelf), false) =
            (&result, &work.statement.shelf, work.stored)
        {
            shelf.made(work.key.stage, work.key.number, chunks);
        }
        let (slot, fetch, frees) = (work.slot, work.fetch, work.frees);
        let again = result.is_err().then(|| Box::new(work));
        Finished { statement, slot, result, nanos, fetch, frees, again }
    }

    /// Writes a chunk to a file.
    fn spill(&self, spill: Spill) -> SpillDone {
        let Spill { victim, chunk, space } = spill;
        let write = catch_unwind(AssertUnwindSafe(|| self.store.write(&chunk, space)));
        let result = write
            .unwrap_or_else(|p| Err(Error::of_panic("spilling a chunk".to_owned(), p.as_ref())));
        SpillDone { victim, chunk, result }
    }

    /// Brings inputs back from files that the operand does not read in parts; their bytes are reserved.
    fn bring_back(&self, work: &mut Work, index: &[u64]) -> Result<(), Error> {
        let statement = &work.statement;
        for (from, _, held) in &mut work.inputs {
            let Held::File(file) = held else { continue };
            if statement.tiling.parts(work.key.stage, index, *from).is_none() {
                statement.token.check()?;
                let mut chunk = file.load(&self.pool, &statement.read_back)?;
                chunk.charge(work.reservation.split(chunk.bytes()));
                *held = Held::Memory(Arc::new(chunk));
            }
        }
        Ok(())
    }

    /// The chunks of an operand, made or loaded, charged and delivered; `None` if they were to be loaded and cannot be.
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
                // A sink tries again by itself: it must not be given a chunk twice.
                work.attempts = u32::MAX;
                return Err(e);
            }
        }
        Ok(Some(shared))
    }

    /// The chunks in the object that was fetched.
    fn load(&self, work: &mut Work, index: &[u64]) -> Option<Vec<Chunk>> {
        let (statement, Key { stage, number }) = (&work.statement, work.key);
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

/// An operand as an error of its kernel names it.
fn spot(tiling: &dyn Tiling, stage: StageId, index: &[u64]) -> Spot {
    let grid = tiling.grid(stage);
    Spot {
        stage: tiling.name(stage),
        index: index.to_vec(),
        counts: grid.axes.iter().map(|axis| axis.count()).collect(),
        region: grid.region(index),
    }
}

/// A fetch under way. If tokio drops it, as when its runtime ends, the operand fails instead of hanging.
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
