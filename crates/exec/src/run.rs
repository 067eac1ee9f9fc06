//! The runtime: threads, memory and I/O for all statements.
//!
//! The threads run the scheduler: each takes the lock, reports its finished operands, takes the next ones and
//! releases the lock. There is no driver thread to wait for, and a thread without work sleeps.

mod here;
mod running;
mod threads;

pub use running::{Running, Watch};

use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::chunk::ipc::Message;
use crate::config::Config;
use crate::durable::Stored;
use crate::error::Error;
use crate::order::{Shelved, encode};
use crate::pool::Pool;
use crate::quota::Quota;
use crate::schedule::admit::Limits;
use crate::schedule::core::Core;
use crate::schedule::job::{Job, Statement};
use crate::schedule::{Inputs, Sink, TaskContext, TaskRunner, Tiling};
use crate::store::{Spilled, Store};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use tessera_planner::plan::StageId;
use threads::spot;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Options of a run.
#[derive(Default)]
pub struct How {
    /// Stored chunks, which are loaded, and the stages whose computed chunks are written.
    pub stored: Option<Stored>,
    /// Chunks available in other processes, for a plan that several processes run. If it is set, chunks are loaded only
    /// through it, and `stored` only selects the chunks that are written.
    pub shelved: Option<Shelved>,
    /// Set for a plan that [is small](tessera_planner::cost::is_small) with a sink that does not wait: the calling
    /// thread runs it as far as possible without waiting, most often to its end.
    pub here: bool,
    /// Upper bound on the threads that compute its operands concurrently; `None` for all.
    pub threads: Option<usize>,
    /// The statement's own budget, [within](Quota::within) that of the runtime; `None` to use the runtime's.
    pub budget: Option<Arc<Quota>>,
}

/// Time that threads have to return when the runtime ends.
const GRACE: Duration = Duration::from_secs(2);

/// Threads, buffers and a budget, for any number of concurrent statements. Dropping it cancels running statements and
/// waits for its threads. Threads in a block of work of more than two seconds are not awaited; they end by
/// themselves.
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
            // The waiting thread also polls every few milliseconds, as this call may come before it sleeps.
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

    /// The buffer pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.shared.pool
    }

    /// The spill store.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// Operands that threads have run, over all statements.
    pub fn operands(&self) -> u64 {
        self.shared.operands.load(Ordering::Relaxed)
    }

    /// Number of plans that run or wait for memory.
    pub fn plans(&self) -> usize {
        self.shared.lock().plans()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The runtime of reads of storage, and of connections.
    pub fn io(&self) -> &Handle {
        &self.shared.io
    }

    /// Loads a spilled chunk on this thread, outside of a plan; `None` if memory is short.
    pub fn bring_back(&self, file: &Arc<Spilled>) -> Option<Result<Arc<Chunk>, Error>> {
        let mut room = self.shared.quota.account().try_reserve(file.bytes() + file.staging())?;
        let read = AtomicU64::new(0);
        Some(file.load(&self.shared.pool, &read).map(|mut chunk| {
            chunk.charge(room.split(chunk.bytes()));
            Arc::new(chunk)
        }))
    }

    /// Runs an operand that reads no chunks on this thread, outside of a plan; `None` if memory is short.
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
            places: Mutex::default(),
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

    /// Encodes the chunks of an operand, or the chunk of one output, for another party.
    ///
    /// # Errors
    /// Errors of [`encode`].
    pub fn encode(
        &self,
        plan: &dyn Tiling,
        operand: (StageId, u64),
        chunks: &[Arc<Chunk>],
        output: Option<u32>,
    ) -> Result<Vec<Message>, Error> {
        encode(plan, operand, chunks, output, self.shared.config.compression)
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

    /// Starts a plan with options. With [`How::here`] it returns once the calling thread cannot go on.
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
        let recovery = there.or(recovery).unwrap_or_default();
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
            // A dropped receiver does not need the outcome.
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
                        shared.with(|core, after| core.fail(id, Error::Cancelled, after));
                    }
                    _ = wait => {}
                }
            });
        }
        Ok(Running { shared: self.shared.clone(), id, token, outcome, runner })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.with(|core, after| {
            core.shutdown = true;
            core.fail_all(after);
        });
        self.shared.wake.notify_all();
        // A block of work can take long: shutdown does not wait for one whose result is no longer needed.
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && self.threads.iter().any(|t| !t.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (over, left): (Vec<_>, Vec<_>) =
            self.threads.drain(..).partition(std::thread::JoinHandle::is_finished);
        for thread in over {
            // Panics of operands are caught. The panic hook has reported a panic that ended the thread.
            let _ = thread.join();
        }
        // Tasks on tokio may hold the other references for a moment longer.
        self.shared.store.close(!left.is_empty());
    }
}
