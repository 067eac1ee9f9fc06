//! Chunks that outlive their plan on a worker.
//!
//! ```text
//!   the statement is over            chunks that never change ─▶ cache, for any later statement
//!   the last reader of a chunk ran   the same, for this chunk
//!   the server disconnected          plan, chunks and versions are parked: the server that takes the statement over
//!                                    asks for them, by the keys of the stages
//! ```
//! Chunks of a parked plan depend on the versions that this worker has read. A later run of the statement gets them only
//! if it is bound to these versions.

use super::Worker;
use super::plans::{Known, Plans};
use crate::wire::{PlanMessage, Retained, RetainedQuery, Reuse, Unread};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tessera_planner::key::{Keys, StageKey};
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tessera_storage::lock;
use tessera_storage::source::{Noted, Versions};

/// How long chunks of a parked plan wait for a server. Longer than a server waits for workers by default.
const PARKED: Duration = Duration::from_secs(300);
/// Objects that an earlier run may have read for its chunks to be used again.
const VERSIONS_MAX: usize = 1 << 17;

/// The part of a plan that decides which chunks it shares with others.
pub(super) struct Sharing {
    pub(super) statement: Option<(String, usize)>,
    lasting: Bitmap,
    keys: Keys,
    versions: Arc<Versions>,
}

/// A plan whose server disconnected.
pub(super) struct Parked {
    known: Arc<Known>,
    since: Instant,
}

impl Sharing {
    pub(super) fn new(message: &PlanMessage, versions: Arc<Versions>) -> Self {
        let Reuse { statement, lasting, .. } = message.reuse.clone();
        Sharing { statement, lasting, keys: Keys::of(&message.plan), versions }
    }

    /// The key of a stage whose cells never change.
    fn lasting(&self, stage: StageId) -> Option<StageKey> {
        self.keys.stage(stage).filter(|_| self.lasting.contains(u64::from(stage.0)))
    }
}

impl Parked {
    /// The chunks of a stage, by its key.
    fn operands(&self, key: StageKey) -> Option<(StageId, Bitmap)> {
        let (stage, _) = self.known.sharing.keys.keyed().find(|(_, of)| *of == key)?;
        self.known.kept.operands().into_iter().find(|(of, _)| *of == stage)
    }

    fn versions(&self) -> Vec<Noted> {
        self.known.sharing.versions.all()
    }

    fn is_of(&self, statement: &Option<(String, usize)>) -> bool {
        statement.is_some() && self.known.sharing.statement == *statement
    }
}

impl Worker {
    /// Parks all plans, because the server that sent them disconnected. Rows are dropped: another server has no use for
    /// them.
    pub(super) fn park(&self) {
        self.rows.drop_all();
        let plans: Vec<Arc<Known>> = {
            let mut plans = lock(&self.plans);
            plans.parks += 1;
            std::mem::take(&mut plans.known).into_values().collect()
        };
        // The next server writes to an output of its own.
        plans.iter().for_each(|known| known.close());
        let (own, others): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|known| known.sharing.statement.is_some());
        others.iter().for_each(|known| self.retire(known));
        let since = Instant::now();
        let parked = own.into_iter().map(|known| Parked { known, since });
        lock(&self.plans).parked.extend(parked);
    }

    /// Drops parked plans that no server asked for, except chunks that never change.
    pub(super) fn drop_parked(&self) {
        let old: Vec<Parked> = {
            let Plans { parked, .. } = &mut *lock(&self.plans);
            let (old, young) =
                std::mem::take(parked).into_iter().partition(|p| p.since.elapsed() > PARKED);
            *parked = young;
            old
        };
        old.iter().for_each(|parked| self.retire(&parked.known));
    }

    /// Caches the chunks of a plan that never change.
    pub(super) fn retire(&self, known: &Known) {
        for (stage, numbers) in known.kept.operands() {
            self.release(known, stage, &numbers);
        }
    }

    /// Removes chunks that no operand of their plan reads any more.
    pub(super) fn free(&self, known: &Known, unread: &Unread) {
        for (stage, numbers) in &unread.operands {
            self.release(known, *stage, numbers);
        }
    }

    fn release(&self, known: &Known, stage: StageId, numbers: &Bitmap) {
        let chunks = known.kept.take(stage, numbers);
        if let Some(key) = known.sharing.lasting(stage) {
            self.cache.put(key, (&known.tiling, stage), chunks);
        }
    }

    /// The chunks that are retained of the plans that are over.
    pub(super) fn retained(&self, query: &RetainedQuery) -> Retained {
        let mut retained = Retained::default();
        let plans = lock(&self.plans);
        let mut versions: BTreeMap<u64, u64> = BTreeMap::new();
        for (stage, key, lasts) in &query.stages {
            if *lasts {
                retained.lasting.push((*stage, self.cache.operands(key)));
            }
            for parked in plans.parked.iter().filter(|p| p.is_of(&query.statement)) {
                if let Some((_, numbers)) = parked.operands(*key) {
                    retained.own.push((*stage, numbers));
                    versions.extend(parked.versions());
                }
            }
        }
        retained.lasting.retain(|(_, numbers)| !numbers.is_empty());
        if versions.len() > VERSIONS_MAX {
            retained.own.clear();
            versions.clear();
        }
        retained.versions = versions.into_iter().collect();
        retained
    }

    /// Operands of plans that are over whose chunks are retained, and the bytes of these.
    pub(super) fn retained_figures(&self) -> (u64, u64) {
        let plans = lock(&self.plans);
        let parked = plans.parked.iter().map(|p| p.known.kept.figures());
        parked.fold(self.cache.figures(), |(operands, bytes), (chunks, memory, files)| {
            (operands + chunks, bytes + memory + files)
        })
    }

    /// Gives a plan the chunks that are retained for it.
    pub(super) fn claim(&self, known: &Known, reuse: &Reuse) {
        let mut reused = 0;
        let bound: BTreeMap<u64, u64> = reuse.versions.iter().copied().collect();
        let is_bound = |p: &Parked| {
            p.versions().iter().all(|(object, version)| bound.get(object) == Some(version))
        };
        let parked: Vec<Parked> = {
            let Plans { parked, .. } = &mut *lock(&self.plans);
            let (mine, others) = std::mem::take(parked)
                .into_iter()
                .partition(|p| p.is_of(&known.sharing.statement) && is_bound(p));
            *parked = others;
            mine
        };
        for (stage, key) in known.sharing.keys.keyed() {
            let own = parked.iter().filter_map(|p| {
                let (of, numbers) = p.operands(key)?;
                Some(p.known.kept.take(of, &numbers))
            });
            let mut chunks: Vec<_> = own.flatten().collect();
            if known.sharing.lasting(stage).is_some() {
                chunks.extend(self.cache.take(&key));
            }
            reused += chunks.len() as u64;
            for (number, chunks) in chunks {
                known.kept.put_held(stage, number, chunks);
            }
        }
        self.reused.fetch_add(reused, Relaxed);
    }
}
