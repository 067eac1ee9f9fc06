//! Chunks of finished statements that a later one may read: those computed from arrays that never change.
//!
//! A chunk is named by the [key](tessera_planner::key) of its stage and its number, so that any plan with the same stage
//! finds it. The cache is bounded; the stage that was least recently used is dropped first. When memory is short, the
//! scheduler drops chunks of the cache before it spills any.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tessera_exec::store::{FinishedChunk, Resident, Store};
use tessera_planner::key::StageKey;
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::recover::Bitmap;
use tessera_planner::tile::Tiling;
use tessera_storage::lock;

/// Stages of more operands are not cached: the cache has a place for each operand.
const OPERANDS_MAX: u64 = 1 << 16;

/// A bounded cache of chunks in memory.
#[derive(Debug)]
pub(crate) struct ChunkCache {
    store: Arc<Store>,
    limit: u64,
    stages: Mutex<Stages>,
}

#[derive(Debug, Default)]
struct Stages {
    by_key: BTreeMap<StageKey, CachedStage>,
    /// Bytes of all chunks, including chunks that were dropped since the last count.
    bytes: u64,
    uses: u64,
}

/// The chunks of a stage: an array for each of its outputs.
#[derive(Debug)]
struct CachedStage {
    outputs: Vec<Arc<Resident>>,
    operands: Bitmap,
    last_use: u64,
}

impl CachedStage {
    fn bytes(&self) -> u64 {
        self.outputs.iter().map(|o| o.bytes()).sum()
    }

    /// The operands whose chunks are all present.
    fn present(&self) -> Bitmap {
        let is_present = |n: &u64| self.outputs.iter().all(|o| o.has(*n));
        self.operands.iter().filter(is_present).collect()
    }
}

impl ChunkCache {
    /// Creates a cache of at most `limit` bytes; 0 turns it off. Without a store that can drop chunks it is off too.
    pub(crate) fn new(store: Arc<Store>, limit: u64) -> Self {
        let limit = if store.is_on() { limit } else { 0 };
        ChunkCache { store, limit, stages: Mutex::default() }
    }

    /// Adds the chunks of operands of one stage. Chunks in files are dropped.
    pub(crate) fn put(
        &self,
        key: StageKey,
        (tiling, stage): (&Tiling, StageId),
        operands: Vec<(u64, Vec<FinishedChunk>)>,
    ) {
        if self.limit == 0 || tiling.plan().stage(stage).grid.count() > OPERANDS_MAX {
            return;
        }
        let stages = &mut *lock(&self.stages);
        stages.uses += 1;
        let cached = stages.by_key.entry(key).or_insert_with(|| {
            let outputs = 0..tiling.plan().stage(stage).outputs.len() as u32;
            let outputs = outputs.map(|output| {
                let of = OutputRef { stage, output };
                let array = Resident::cache(tiling.plan().output(of).grid.clone());
                self.store.adopt(&array);
                array
            });
            CachedStage { outputs: outputs.collect(), operands: Bitmap::default(), last_use: 0 }
        });
        cached.last_use = stages.uses;
        for (number, chunks) in operands {
            let bytes: u64 = chunks.iter().map(FinishedChunk::bytes).sum();
            let in_memory = chunks.iter().all(|c| matches!(c, FinishedChunk::Memory(_)));
            if !in_memory || bytes > self.limit {
                continue;
            }
            for (output, chunk) in cached.outputs.iter().zip(chunks) {
                output.put_held(number, chunk);
            }
            if cached.operands.insert(number) {
                stages.bytes += bytes;
            }
        }
        stages.shrink_to(self.limit);
    }

    /// The operands of a stage whose chunks are present.
    pub(crate) fn operands(&self, key: &StageKey) -> Bitmap {
        lock(&self.stages).by_key.get(key).map(CachedStage::present).unwrap_or_default()
    }

    /// Removes and returns all chunks of a stage, by operand.
    pub(crate) fn take(&self, key: &StageKey) -> Vec<(u64, Vec<FinishedChunk>)> {
        let stages = &mut *lock(&self.stages);
        let Some(cached) = stages.by_key.remove(key) else { return Vec::new() };
        let numbers = cached.operands.iter();
        let chunks = numbers.filter_map(|number| {
            let chunks: Option<Vec<_>> = cached.outputs.iter().map(|o| o.take(number)).collect();
            Some((number, chunks?))
        });
        let chunks = chunks.collect();
        stages.count();
        chunks
    }

    /// Number of operands, and the bytes of their chunks.
    pub(crate) fn figures(&self) -> (u64, u64) {
        let stages = &mut *lock(&self.stages);
        stages.count();
        (stages.by_key.values().map(|s| s.operands.len()).sum(), stages.bytes)
    }
}

impl Stages {
    /// Forgets chunks that were dropped since the last count.
    fn count(&mut self) {
        self.by_key.values_mut().for_each(|s| s.operands = s.present());
        self.by_key.retain(|_, s| !s.operands.is_empty());
        self.bytes = self.by_key.values().map(CachedStage::bytes).sum();
    }

    /// Drops the stages that were least recently used, then chunks of the last one.
    fn shrink_to(&mut self, limit: u64) {
        if self.bytes <= limit {
            return;
        }
        self.count();
        while self.bytes > limit && self.by_key.len() > 1 {
            let oldest = self.by_key.iter().min_by_key(|(_, s)| s.last_use).map(|(k, _)| *k);
            let Some(stage) = oldest.and_then(|key| self.by_key.remove(&key)) else { return };
            self.bytes = self.bytes.saturating_sub(stage.bytes());
        }
        let Some(last) = self.by_key.values_mut().next() else { return };
        for number in last.operands.iter().collect::<Vec<_>>() {
            if self.bytes <= limit {
                return;
            }
            let dropped = last.outputs.iter().filter_map(|o| o.take(number));
            let bytes: u64 = dropped.map(|chunk| chunk.bytes()).sum();
            self.bytes = self.bytes.saturating_sub(bytes);
            last.operands.remove(number);
        }
    }
}
