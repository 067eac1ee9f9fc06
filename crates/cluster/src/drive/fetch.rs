//! Chunks of the results, fetched from the workers that have them.

use super::{DURABLE, Drive};
use crate::net::Fault;
use crate::shelf::{IDLE, ticket};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tessera_exec::chunk::Chunk;
use tessera_exec::error::Error;
use tessera_exec::order::{Found, Shelf, object_bytes_max};
use tessera_planner::plan::StageId;
use tessera_storage::lock;

/// Upper bound on attempts to fetch a chunk.
const HOLDERS_MAX: u32 = 7;

impl Drive {
    /// Fetches a chunk from a worker that has it.
    async fn fetch(&self, stage: StageId, number: u64, bytes: u64) -> Result<Option<Found>, Error> {
        for _ in 0..HOLDERS_MAX {
            let worker = lock(&self.holders).holder(stage, number);
            if let (Some(DURABLE), Some(stored)) = (worker, &self.stored) {
                if let Some(found) = stored.fetch(stage, number, bytes).await {
                    return Ok(Some(found));
                }
                lock(&self.holders).remove(DURABLE, stage, number);
                self.run().await?;
                continue;
            }
            let member = worker.and_then(|w| self.cluster.registry().member(w));
            if let Some(member) = member.filter(|m| m.state.is_here()) {
                let address = &member.hello.address;
                let ticket = ticket(&self.id, stage, number);
                let limit = object_bytes_max(bytes);
                match self.cluster.peers().object(address, ticket, limit, IDLE).await {
                    Ok(object) => return Ok(Some(Found::Object(object))),
                    Err(Fault::Unreachable(reason)) => {
                        self.cluster.is_gone(member.number, address, &reason).await;
                    }
                    Err(fault) => {
                        tracing::warn!(address, %fault, "a chunk is not where it was");
                        lock(&self.holders).remove(member.number, stage, number);
                    }
                }
            } else if worker.is_none() && !self.is_result(stage) {
                return Ok(None);
            }
            // The first caller has the chunk recomputed; the others find it available.
            self.run().await?;
        }
        let party = format!("operand {number} of stage {}", stage.0);
        Err(Error::PartyLost { party, reason: "each worker that had its chunks was lost".into() })
    }

    fn is_result(&self, stage: StageId) -> bool {
        self.tiling.plan().results.iter().any(|r| r.stage == stage)
    }
}

/// Loads the results on the server.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) drive: Arc<Drive>,
    pub(super) fetched: Arc<AtomicU64>,
}

impl Shelf for Loading {
    fn fetch(
        &self,
        stage: StageId,
        number: u64,
        bytes: u64,
    ) -> BoxFuture<'static, Result<Option<Found>, Error>> {
        let (drive, fetched) = (self.drive.clone(), self.fetched.clone());
        async move {
            let found = drive.fetch(stage, number, bytes).await?;
            if let Some(Found::Object(object)) = &found {
                fetched.fetch_add(object.len() as u64, Relaxed);
                drive.count(|t| t.bytes_home += object.len() as u64);
            }
            Ok(found)
        }
        .boxed()
    }

    fn made(&self, _: StageId, _: u64, _: &[Arc<Chunk>]) {}

    fn fetched_bytes(&self) -> u64 {
        self.fetched.load(Relaxed)
    }
}
