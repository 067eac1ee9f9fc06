//! Connects writers of [`tessera_storage::sink`] to a running plan: its chunks, its budget, and a record of incomplete
//! outputs.

use crate::chunk::Chunk;
use crate::error::Error;
use crate::quota::Quota;
use crate::schedule::Sink;
use crate::store::Store;
use smallvec::SmallVec;
use std::path::Path;
use std::sync::Arc;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::region::Region;
use tessera_storage::sink::{Memory, Outputs, PartBatch, Promise, Reserved, ZarrWriter};

impl Sink for ZarrWriter {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let fields: SmallVec<[&[u8]; 2]> =
            chunk.fields().iter().map(|f| f.buffer().as_slice()).collect();
        let encoded = self.encode(result, &index, &region, chunk.shape(), &fields)?;
        // Its memory is released before its objects wait for the store.
        drop(fields);
        drop(chunk);
        Ok(encoded.map_or(Ok(()), |encoded| self.put(encoded))?)
    }

    fn drains(&self) -> bool {
        true
    }

    fn store(self: Arc<Self>) -> Option<Arc<ZarrWriter>> {
        Some(self)
    }
}

/// The chunks that an [order](crate::order::Order) writes to an output of another process. Results of the order that
/// are none of the plan are not written.
impl Sink for PartBatch {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        if !self.has(result) {
            return Ok(());
        }
        let fields: SmallVec<[&[u8]; 2]> =
            chunk.fields().iter().map(|f| f.buffer().as_slice()).collect();
        let encoded = self.encode(result, &index, &region, chunk.shape(), &fields)?;
        // Its memory is released before its objects wait for the store.
        drop(fields);
        drop(chunk);
        Ok(encoded.map_or(Ok(()), |encoded| self.put(encoded))?)
    }

    fn drains(&self) -> bool {
        true
    }
}

impl Memory for Quota {
    fn limit(&self) -> u64 {
        self.limit()
    }

    fn used(&self) -> u64 {
        self.used()
    }

    fn try_reserve(self: Arc<Self>, bytes: u64) -> Option<Reserved> {
        Some(Box::new(self.account().try_reserve(bytes)?))
    }
}

impl Outputs for Store {
    fn promise(&self, staging: &Path, to: &Path) -> Option<Promise> {
        let promised = self.directory().and_then(|directory| {
            let promise =
                Promise::new(directory.path(), self.number(), directory.clone(), staging, to);
            promise.map_err(|e| self.io(&e))
        });
        match promised {
            Ok(promise) => Some(promise),
            Err(e) => {
                tracing::debug!(output = %staging.display(), "nothing tells of an output: {e}");
                None
            }
        }
    }
}
