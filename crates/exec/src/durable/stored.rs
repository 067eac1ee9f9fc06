//! Durable chunks of one plan: lookups of the scheduler while it runs.

use super::statement::Durable;
use crate::chunk::Chunk;
use crate::chunk::ipc::{self, Compression, Message};
use crate::order::Found;
use crate::pool::Pool;
use crate::schedule::Tiling;
use bytes::Bytes;
use std::sync::Arc;
use tessera_planner::key::StageKey;
use tessera_planner::plan::StageId;
use tessera_planner::recover::{Bitmap, Recovery};
use tessera_planner::region::Dims;
use tokio::runtime::Handle;

/// The stored chunks of a plan and the stages to store: passed to rerun it ([`crate::run::Runtime::start_as`]).
#[derive(Debug)]
pub struct Stored {
    pub(crate) kept: Kept,
    pub(crate) recovery: Recovery,
}

impl Stored {
    /// The same stages of another run, which loads nothing by itself.
    pub fn again(&self) -> Stored {
        Stored { kept: self.kept.clone(), recovery: Recovery::default() }
    }

    /// The statement whose chunks these are.
    pub fn durable(&self) -> &Arc<Durable> {
        &self.kept.durable
    }

    /// The operands of each stage whose chunks are stored now.
    pub async fn find(&self, tiling: &dyn Tiling) -> Vec<Bitmap> {
        let stages = self.kept.keys.len().min(tiling.stages());
        self.kept.durable.find(self.kept.part, &self.kept.keys[..stages], tiling).await
    }

    /// Fetches the chunks of an operand, which have `bytes` bytes; `None` if they cannot be read.
    pub async fn fetch(self: &Arc<Self>, stage: StageId, number: u64, bytes: u64) -> Option<Found> {
        let object = self.kept.fetch(stage, number, bytes).await?;
        Some(Found::Stored { object, stored: self.clone() })
    }
}

/// The place that chunks of a plan are loaded from and written to.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(super) durable: Arc<Durable>,
    /// Number of its part of the statement.
    pub(super) part: usize,
    pub(super) keys: Vec<Option<StageKey>>,
    /// Key of each stage whose chunks are written.
    pub(super) picks: Vec<Option<StageKey>>,
}

/// Memory that an operand needs to load chunks of `output_bytes` bytes: the object, and the chunks.
pub(crate) fn loading_bytes(output_bytes: u64) -> u64 {
    output_bytes.saturating_mul(2)
}

impl Kept {
    pub(crate) fn durable(&self) -> &Arc<Durable> {
        &self.durable
    }

    /// Fetches the object of an operand whose chunks have `bytes` bytes; `None` if it is not available.
    pub(crate) async fn fetch(&self, stage: StageId, number: u64, bytes: u64) -> Option<Bytes> {
        let object = self.durable.object(self.part, self.key(stage)?, number);
        let got = self.durable.get(&object, ipc::object_bytes_max(bytes)).await;
        let reason = match got {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => "it is not there any more".to_string(),
            Err(error) => error.to_string(),
        };
        self.missed(&object, &reason);
        None
    }

    /// Decodes the chunks of an object; `None` if it is corrupt.
    pub(crate) fn load(
        &self,
        object: &Bytes,
        stage: StageId,
        number: u64,
        shapes: &[Dims],
        pool: &Arc<Pool>,
    ) -> Option<Vec<Chunk>> {
        let key = self.key(stage)?;
        match ipc::decode(object, &key, number, shapes, pool) {
            Ok((chunks, nanos)) => {
                self.durable.count(|c| &c.reused, 1);
                self.durable.count(|c| &c.bytes_reused, chunks.iter().map(Chunk::bytes).sum());
                self.durable.count(|c| &c.nanos_reused, nanos);
                Some(chunks)
            }
            Err(reason) => {
                self.missed(&self.durable.object(self.part, key, number), &reason);
                None
            }
        }
    }

    /// Queues the chunks of an operand to be written, if its stage is selected and at most `room` bytes wait.
    /// `origins` are the indexes of their first cells.
    pub(crate) fn keep(
        &self,
        io: &Handle,
        (stage, number): (StageId, u64),
        (chunks, origins): (&[Arc<Chunk>], &dyn Fn() -> Vec<Dims>),
        (nanos, compression): (u64, Compression),
        room: u64,
    ) {
        let Some(key) = self.picks.get(stage.0 as usize).copied().flatten() else { return };
        let bytes = chunks.iter().map(|c| c.bytes()).sum();
        match self.durable.queue(bytes, room) {
            Some(queued) => {
                match ipc::encode(
                    &key,
                    number,
                    nanos,
                    compression,
                    (0..).zip(chunks.iter().zip(&origins())),
                ) {
                    Ok(messages) => {
                        let parts = messages.into_iter().flat_map(Message::parts).collect();
                        let object = self.durable.object(self.part, key, number);
                        self.durable.put(io, queued, object, parts);
                    }
                    Err(error) => {
                        self.durable.count(|c| &c.failed, 1);
                        tracing::warn!(%error, "a chunk is not stored");
                    }
                }
            }
            None => self.durable.count(|c| &c.skipped, 1),
        }
    }

    fn key(&self, stage: StageId) -> Option<StageKey> {
        self.keys.get(stage.0 as usize).copied().flatten()
    }

    fn missed(&self, object: &str, reason: &str) {
        self.durable.count(|c| &c.corrupt, 1);
        tracing::warn!(object, reason, "a stored chunk cannot be used: it is computed again");
    }
}
