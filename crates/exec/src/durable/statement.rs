//! The chunks of one statement: the stored ones, and the queue of writes.

use super::reads::Reads;
use super::stored::{Kept, Stored};
use super::{Counters, Did, DurableStore, chunks_of};
use crate::schedule::Tiling;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use tessera_planner::durable::{Durability, picks};
use tessera_planner::grid::ChunkIndex;
use tessera_planner::key::{Keys, StageKey};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::recover::{Bitmap, Lineage, recover};
use tessera_storage::sink::SinkError;
use tessera_storage::source::Noted;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OnceCell, Semaphore};

/// Upper bound on concurrent writes of a statement.
const WRITES_MAX: usize = 8;
/// Upper bound on objects that are being written or queued.
const QUEUE_MAX: u64 = 1024;
/// Consecutive failed writes after which writing stops.
const FAILURES_MAX: u64 = 8;

/// Upper bound on the bytes of a statement's record.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// A statement whose chunks several processes store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shared {
    /// Where: a path or URL.
    pub folder: String,
    /// The statement.
    pub statement: String,
    /// Selects the chunks.
    pub policy: Durability,
    /// The running part of the statement.
    pub part: usize,
    /// The versions that its earlier runs have read.
    pub versions: Vec<Noted>,
    /// Upper bound on the bytes that each process stores.
    pub limit_bytes: u64,
}

/// A statement whose chunks are stored, for all plans that are run for it.
#[derive(Debug)]
pub struct Durable {
    pub(super) store: Arc<DurableStore>,
    pub(super) statement: String,
    /// The object versions that its chunks depend on.
    pub(super) reads: Reads,
    policy: Durability,
    ran_before: bool,
    /// Chunks of earlier runs: numbers of operands, by their part and the key of their stage.
    there: OnceCell<BTreeMap<String, Bitmap>>,
    /// True while chunks are written: not before [`Durable::begin`], nor after [`Durable::close`].
    open: AtomicBool,
    failures: AtomicU64,
    queued: AtomicU64,
    queued_bytes: AtomicU64,
    permits: Semaphore,
    ended: Notify,
    counters: Counters,
}

impl Durable {
    /// Creates the state of a statement. `statement` is unique in the store: letters, digits, `-` and `_`. If it
    /// `ran_before`, stored chunks are looked up and writing starts at once; otherwise [`Durable::begin`] starts it.
    pub fn new(
        store: &Arc<DurableStore>,
        statement: &str,
        policy: Durability,
        ran_before: bool,
    ) -> Arc<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let named = !statement.is_empty() && statement.bytes().all(plain);
        if !named {
            tracing::warn!(
                statement,
                "its id cannot be the name of a directory: its chunks are not stored"
            );
        }
        Arc::new(Durable {
            store: store.clone(),
            statement: statement.into(),
            reads: Reads::default(),
            policy: if named { policy } else { Durability::None },
            ran_before,
            there: OnceCell::new(),
            open: AtomicBool::new(ran_before),
            failures: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            permits: Semaphore::new(WRITES_MAX),
            ended: Notify::new(),
            counters: Counters::default(),
        })
    }

    /// Counters of the statement so far.
    pub fn did(&self) -> Did {
        self.counters.snapshot()
    }

    /// Selects the stages of a plan to store and looks up its stored chunks, before the plan starts. `None` if there
    /// are neither. Chunks that cannot be listed count as missing.
    pub async fn plan(
        self: &Arc<Self>,
        tiling: &Arc<tessera_planner::tile::Tiling>,
    ) -> Option<Stored> {
        if self.policy == Durability::None {
            return None;
        }
        let keys = Keys::of(tiling.plan());
        let stages = tiling.plan().stages.len() as u32;
        let keys = (0..stages).map(|s| keys.stage(StageId(s))).collect();
        self.plan_of(tiling.clone(), keys, &picks(tiling, self.policy)).await
    }

    /// Like [`Durable::plan`], for a plan with these keys and picks of its stages.
    pub(crate) async fn plan_of(
        self: &Arc<Self>,
        tiling: Arc<dyn Tiling>,
        keys: Vec<Option<StageKey>>,
        picks: &[bool],
    ) -> Option<Stored> {
        let part = self.reads.part();
        let mut available = vec![Bitmap::default(); keys.len()];
        if self.ran_before {
            let there = self.there.get_or_init(|| self.list()).await;
            available = found(there, part, &keys, &*tiling);
        }
        let there = available.iter().any(|set| !set.is_empty());
        let picks: Vec<Option<StageKey>> =
            keys.iter().zip(picks).map(|(key, pick)| key.filter(|_| *pick)).collect();
        if !there && picks.iter().all(Option::is_none) {
            return None;
        }
        let recovery = match there {
            // The time grows with the number of stored chunks.
            true => tokio::task::spawn_blocking(move || recover(&Of(&*tiling), &available))
                .await
                .ok()?,
            false => Default::default(),
        };
        Some(Stored { kept: Kept { durable: self.clone(), part, keys, picks }, recovery })
    }

    /// The operands of each stage of a plan whose chunks are stored now, by any process.
    pub(super) async fn find(
        &self,
        part: usize,
        keys: &[Option<StageKey>],
        tiling: &dyn Tiling,
    ) -> Vec<Bitmap> {
        found(&self.list().await, part, keys, tiling)
    }

    /// The parameters with which another process stores chunks of the statement too.
    pub fn shared(&self) -> Shared {
        let store = &self.store;
        let (part, versions) = self.reads.now();
        // Stored chunks belong to these versions. Without stored chunks each process reads the current versions, as
        // without durable chunks.
        let versions = if self.ran_before { versions } else { Vec::new() };
        Shared {
            folder: store.folder.absolute(),
            statement: self.statement.clone(),
            policy: self.policy,
            part,
            versions,
            limit_bytes: store.limit.saturating_sub(store.bytes()),
        }
    }

    /// True once chunks are written, until [`Durable::close`].
    pub fn is_open(&self) -> bool {
        self.open.load(SeqCst)
    }

    /// True if this process stored nothing for the statement yet and an earlier run may have.
    pub fn ran_before(&self) -> bool {
        self.ran_before
    }

    /// Adds the counters of another process for the statement.
    pub fn add(&self, did: &Did) {
        self.count(|c| &c.written, did.written);
        self.count(|c| &c.bytes_written, did.bytes_written);
        self.count(|c| &c.skipped, did.skipped);
        self.count(|c| &c.failed, did.failed);
        self.count(|c| &c.reused, did.reused);
        self.count(|c| &c.bytes_reused, did.bytes_reused);
        self.count(|c| &c.nanos_reused, (did.seconds_reused * 1e9) as u64);
        self.count(|c| &c.corrupt, did.corrupt);
    }

    /// While this lives, another process may write chunks: [`Durable::close`] waits for it.
    pub fn other(self: &Arc<Self>) -> impl Send + use<> {
        self.queued.fetch_add(1, SeqCst);
        Queued { durable: self.clone(), bytes: 0 }
    }

    /// True if the store has the record of the statement: other processes see the same storage.
    pub async fn has_record(&self) -> bool {
        let record = format!("{}.json", self.statement);
        matches!(self.store.folder.get_up_to(&record, RECORD_BYTES_MAX).await, Ok(Some(_)))
    }

    /// Starts writing chunks: from now on the statement is rerun after a restart.
    pub fn begin(&self) {
        self.open.store(true, SeqCst);
    }

    /// Stops writing: queued objects are dropped. Returns when the writes in progress have ended.
    pub async fn close(&self) {
        self.open.store(false, SeqCst);
        self.written().await;
    }

    /// Waits until the queue of writes is empty.
    pub async fn written(&self) {
        loop {
            let ended = self.ended.notified();
            if !self.is_writing() {
                return;
            }
            ended.await;
        }
    }

    /// True while the queue of writes holds chunks.
    pub(crate) fn is_writing(&self) -> bool {
        self.queued.load(SeqCst) > 0
    }

    async fn list(&self) -> BTreeMap<String, Bitmap> {
        let mut there: BTreeMap<String, Bitmap> = BTreeMap::new();
        let listed = match self.store.folder.list_below(&chunks_of(&self.statement)).await {
            Ok(listed) => listed,
            Err(error) => {
                let statement = &self.statement;
                tracing::warn!(statement, %error, "its chunks cannot be listed: they are computed again");
                return there;
            }
        };
        self.store.found(&self.statement, listed.iter().map(|(_, size)| size).sum());
        for (name, _) in listed {
            if let Some((key, number)) = name.split_once('/')
                && let Some(number) = number.strip_suffix(".chunk").and_then(|n| n.parse().ok())
            {
                there.entry(key.into()).or_default().insert(number);
            }
        }
        there
    }

    pub(super) fn object(&self, part: usize, key: StageKey, number: u64) -> String {
        format!("{}/{part}-{key}/{number}.chunk", chunks_of(&self.statement))
    }

    /// Increments a counter of the statement and of the store.
    pub(super) fn count(&self, of: impl Fn(&Counters) -> &AtomicU64, by: u64) {
        of(&self.counters).fetch_add(by, Relaxed);
        of(&self.store.counters).fetch_add(by, Relaxed);
    }

    pub(super) async fn get(&self, object: &str, limit: u64) -> Result<Option<Bytes>, SinkError> {
        self.store.folder.get_up_to(object, limit).await
    }

    /// Reserves a place in the queue of writes for `bytes` bytes of chunks. At most `room` bytes may wait; a single
    /// object may in any case.
    pub(super) fn queue(self: &Arc<Self>, bytes: u64, room: u64) -> Option<Queued> {
        if !self.open.load(SeqCst) {
            return None;
        }
        let queued = Queued { durable: self.clone(), bytes };
        let before = self.queued.fetch_add(1, SeqCst);
        let bytes_before = self.queued_bytes.fetch_add(bytes, SeqCst);
        let fits = before == 0 || (before < QUEUE_MAX && bytes_before + bytes <= room);
        fits.then_some(queued)
    }

    /// Writes an object in the background.
    pub(super) fn put(
        self: &Arc<Self>,
        io: &Handle,
        queued: Queued,
        object: String,
        parts: Vec<Bytes>,
    ) {
        let durable = self.clone();
        io.spawn(async move {
            durable.write(&object, parts, queued.bytes).await;
            // The chunks are dropped before anybody is notified that nothing is being written.
            drop(queued);
        });
    }

    async fn write(&self, object: &str, parts: Vec<Bytes>, chunk_bytes: u64) {
        let Ok(_permit) = self.permits.acquire().await else { return };
        if !self.open.load(SeqCst) {
            return;
        }
        if !self.reads.are_known() {
            return self.count(|c| &c.skipped, 1);
        }
        let size = parts.iter().map(|p| p.len() as u64).sum();
        if !self.store.take(&self.statement, size) {
            return self.count(|c| &c.skipped, 1);
        }
        let written = match self.keep_reads().await {
            Ok(()) => self.store.folder.put_parts(object, parts).await,
            failed => failed,
        };
        match written {
            Ok(()) => {
                self.failures.store(0, Relaxed);
                self.count(|c| &c.written, 1);
                self.count(|c| &c.bytes_written, chunk_bytes);
            }
            Err(error) => {
                self.store.give(&self.statement, size);
                self.count(|c| &c.failed, 1);
                let failures = self.failures.fetch_add(1, Relaxed) + 1;
                let full = matches!(error, SinkError::NoSpace { .. });
                let statement = &self.statement;
                if full || failures >= FAILURES_MAX {
                    self.open.store(false, SeqCst);
                    tracing::warn!(statement, %error, "no more of its chunks are stored");
                } else {
                    tracing::warn!(statement, %error, "a chunk is not stored");
                }
            }
        }
    }
}

/// The operands of each stage among stored chunks.
fn found(
    there: &BTreeMap<String, Bitmap>,
    part: usize,
    keys: &[Option<StageKey>],
    tiling: &dyn Tiling,
) -> Vec<Bitmap> {
    let of = |(stage, key): (u32, &Option<StageKey>)| {
        let count = tiling.grid(StageId(stage)).count();
        let numbers = key.and_then(|key| there.get(&format!("{part}-{key}")));
        numbers.map(|numbers| numbers.iter().filter(|n| *n < count).collect()).unwrap_or_default()
    };
    (0..).zip(keys).map(of).collect()
}

/// A place in the queue of writes.
#[derive(Debug)]
pub(super) struct Queued {
    durable: Arc<Durable>,
    bytes: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.durable.queued_bytes.fetch_sub(self.bytes, SeqCst);
        self.durable.queued.fetch_sub(1, SeqCst);
        self.durable.ended.notify_waiters();
    }
}

/// A plan as [`recover`] reads it.
struct Of<'a>(&'a dyn Tiling);

impl Lineage for Of<'_> {
    fn stages(&self) -> usize {
        self.0.stages()
    }

    fn results(&self) -> &[OutputRef] {
        self.0.results()
    }

    fn outputs(&self, stage: StageId) -> u32 {
        self.0.outputs(stage) as u32
    }

    fn reads(&self, stage: StageId, number: u64, f: &mut dyn FnMut(OutputRef, u64)) {
        let index = self.0.grid(stage).unravel(number);
        self.0.reads(stage, &index, &mut |from: OutputRef, at: ChunkIndex| {
            f(from, self.0.grid(from.stage).ravel(&at));
        });
    }

    fn readers(&self, of: OutputRef, number: u64) -> u64 {
        self.0.readers(of, &self.0.grid(of.stage).unravel(number))
    }
}
