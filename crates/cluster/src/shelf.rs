//! The shelf: chunks of one plan that a worker retains for others, and chunks that it fetches from others.

use crate::net::Fault;
use crate::reach::{Reach, Way};
use crate::wire::{ChunkTicket, STORAGE};
use crate::worker::View;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tessera_exec::chunk::Chunk;
use tessera_exec::durable::Stored;
use tessera_exec::error::Error;
use tessera_exec::order::{Found, Shelf, object_bytes_max};
use tessera_exec::store::{FinishedChunk, Resident, Store};
use tessera_planner::plan::{OutputRef, StageId};
use tessera_planner::recover::Bitmap;
use tessera_planner::tile::Tiling;
use tessera_storage::lock;

/// Timeout between pieces of a chunk.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// The chunks of a plan on this worker. They may be spilled when memory is short.
#[derive(Debug)]
pub(crate) struct Kept {
    tiling: Arc<Tiling>,
    store: Arc<Store>,
    arrays: Mutex<BTreeMap<StageId, Array>>,
}

/// The chunks of a stage: an array for each of its outputs.
#[derive(Debug)]
struct Array {
    outputs: Vec<Arc<Resident>>,
    operands: Bitmap,
}

impl Kept {
    pub(crate) fn new(tiling: Arc<Tiling>, store: Arc<Store>) -> Self {
        Kept { tiling, store, arrays: Mutex::default() }
    }

    pub(crate) fn tiling(&self) -> &Arc<Tiling> {
        &self.tiling
    }

    fn put(&self, stage: StageId, number: u64, chunks: &[Arc<Chunk>]) {
        let chunks = chunks.iter().map(|chunk| FinishedChunk::Memory(chunk.clone()));
        self.put_held(stage, number, chunks);
    }

    /// Adds the chunks of an operand, in memory or spilled.
    pub(crate) fn put_held(
        &self,
        stage: StageId,
        number: u64,
        chunks: impl IntoIterator<Item = FinishedChunk>,
    ) {
        let mut arrays = lock(&self.arrays);
        let array = arrays.entry(stage).or_insert_with(|| {
            let outputs = 0..self.tiling.plan().stage(stage).outputs.len() as u32;
            let outputs = outputs.map(|output| {
                let of = OutputRef { stage, output };
                let array = Resident::empty(self.tiling.plan().output(of).grid.clone());
                self.store.adopt(&array);
                array
            });
            Array { outputs: outputs.collect(), operands: Bitmap::default() }
        });
        for (output, chunk) in array.outputs.iter().zip(chunks) {
            output.put_held(number, chunk);
        }
        array.operands.insert(number);
    }

    /// Removes and returns the chunks of operands of a stage.
    pub(crate) fn take(&self, stage: StageId, numbers: &Bitmap) -> Vec<(u64, Vec<FinishedChunk>)> {
        let mut arrays = lock(&self.arrays);
        let Some(array) = arrays.get_mut(&stage) else { return Vec::new() };
        let present = numbers.iter().filter(|number| array.operands.remove(*number));
        let present: Vec<u64> = present.collect();
        let chunks = present.into_iter().filter_map(|number| {
            let chunks: Option<Vec<_>> = array.outputs.iter().map(|o| o.take(number)).collect();
            Some((number, chunks?))
        });
        chunks.collect()
    }

    /// The chunks of an operand, in memory or spilled.
    pub(crate) fn held(&self, stage: StageId, number: u64) -> Option<Vec<FinishedChunk>> {
        let outputs = {
            let arrays = lock(&self.arrays);
            let array = arrays.get(&stage).filter(|a| a.operands.contains(number))?;
            array.outputs.clone()
        };
        outputs.iter().map(|o| o.held(number)).collect()
    }

    /// The operands whose chunks are on the shelf.
    pub(crate) fn operands(&self) -> Vec<(StageId, Bitmap)> {
        lock(&self.arrays).iter().map(|(s, a)| (*s, a.operands.clone())).collect()
    }

    /// Number of chunks, their bytes in memory, and their bytes in files.
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        let outputs: Vec<(u64, Vec<Arc<Resident>>)> =
            lock(&self.arrays).values().map(|a| (a.operands.len(), a.outputs.clone())).collect();
        outputs.iter().fold((0, 0, 0), |(n, memory, files), (operands, outputs)| {
            let places = outputs.iter().map(|o| o.places());
            let (m, f) = places.fold((0, 0), |(m, f), place| (m + place.0, f + place.1));
            (n + operands * outputs.len() as u64, memory + m, files + f)
        })
    }
}

#[derive(Debug)]
pub(crate) struct OrderShelf {
    pub(crate) plan: String,
    pub(crate) kept: Arc<Kept>,
    pub(crate) reach: Arc<Reach>,
    /// Chunks that outlive workers.
    pub(crate) stored: Option<Arc<Stored>>,
    /// Chunks of other parties.
    pub(crate) view: Arc<View>,
    /// The assigned operands.
    pub(crate) run: BTreeMap<StageId, Bitmap>,
    /// Operands whose chunks are retained if they are made.
    pub(crate) hold: BTreeMap<StageId, Bitmap>,
    /// Stages whose chunks are written to the output of the plan, and that no stage reads.
    pub(crate) written: BTreeSet<StageId>,
    pub(crate) server: Option<String>,
    pub(crate) fetched: Arc<AtomicU64>,
    /// Bytes of `fetched` that the server relayed.
    pub(crate) relayed: Arc<AtomicU64>,
    /// Bytes fetched by all orders.
    pub(crate) fetched_by_all: Arc<AtomicU64>,
}

impl Shelf for OrderShelf {
    fn fetch(
        &self,
        stage: StageId,
        number: u64,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Option<Found>, Error>> {
        if let Some(held) = self.kept.held(stage, number) {
            return std::future::ready(Ok(Some(Found::Here(held.into())))).boxed();
        }
        let parties = self.view.holders(stage, number);
        let ticket = ChunkTicket { plan: self.plan.clone(), stage, number, output: None, at: None };
        let (reach, server) = (self.reach.clone(), self.server.clone());
        let (fetched, by_all) = (self.fetched.clone(), self.fetched_by_all.clone());
        let (relayed, stored) = (self.relayed.clone(), self.stored.clone());
        async move {
            let mut lost = None;
            for party in parties {
                if party == STORAGE {
                    // A chunk that cannot be read is computed here.
                    let Some(stored) = &stored else { continue };
                    match stored.fetch(stage, number, bytes).await {
                        Some(found) => return Ok(Some(found)),
                        None => continue,
                    }
                }
                let limit = object_bytes_max(bytes);
                match reach.object(&party, &ticket, limit, server.as_deref()).await {
                    Ok((object, way)) => {
                        if way == Way::ByServer {
                            relayed.fetch_add(bytes, Relaxed);
                        }
                        // Loads from the server's memory are not moves between workers.
                        if Some(&party) != server.as_ref() {
                            fetched.fetch_add(bytes, Relaxed);
                        }
                        by_all.fetch_add(bytes, Relaxed);
                        return Ok(Some(Found::Object(object)));
                    }
                    // The party no longer has the chunk: it is computed here.
                    Err(Fault::NotFound(what)) => {
                        tracing::warn!(party, what, "a chunk is not where it was said to be");
                    }
                    Err(fault) => {
                        lost = Some(Error::PartyLost { party, reason: fault.to_string() })
                    }
                }
            }
            lost.map_or(Ok(None), Err)
        }
        .boxed()
    }

    fn made(&self, stage: StageId, number: u64, chunks: &[Arc<Chunk>]) {
        let is_in = |all: &BTreeMap<StageId, Bitmap>| {
            all.get(&stage).is_some_and(|operands| operands.contains(number))
        };
        if !self.written.contains(&stage) && (is_in(&self.run) || is_in(&self.hold)) {
            self.kept.put(stage, number, chunks);
        }
    }

    fn loaded(&self, stage: StageId, number: u64, chunks: &[Arc<Chunk>]) {
        // An assigned operand whose chunks another worker had, which is about to leave.
        let is_assigned = self.run.get(&stage).is_some_and(|run| run.contains(number));
        if is_assigned && !self.written.contains(&stage) && self.kept.held(stage, number).is_none()
        {
            self.kept.put(stage, number, chunks);
        }
    }

    fn fetched_bytes(&self) -> u64 {
        self.fetched.load(Relaxed)
    }
}

/// The ticket of an operand's chunks, encoded.
pub(crate) fn ticket(plan: &str, stage: StageId, number: u64) -> Bytes {
    written(&ChunkTicket { plan: plan.into(), stage, number, output: None, at: None })
}

/// Encodes a ticket.
pub(crate) fn written(ticket: &ChunkTicket) -> Bytes {
    // Names and numbers always have a JSON form; an empty ticket is refused as unreadable.
    serde_json::to_vec(ticket).unwrap_or_default().into()
}
