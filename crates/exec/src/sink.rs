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
use tessera_storage::sink::{Memory, Outputs, PartBatch, Promise, Reserved, SinkError, ZarrWriter};

/// Encodes a chunk and stores its objects. Its memory is released before they wait for the store.
fn write<E>(
    chunk: Arc<Chunk>,
    encode: impl FnOnce(&[u64], &[&[u8]]) -> Result<Option<E>, SinkError>,
    put: impl FnOnce(E) -> Result<(), SinkError>,
) -> Result<(), Error> {
    let fields: SmallVec<[&[u8]; 2]> =
        chunk.fields().iter().map(|f| f.buffer().as_slice()).collect();
    let encoded = encode(chunk.shape(), &fields)?;
    drop(fields);
    drop(chunk);
    Ok(encoded.map_or(Ok(()), put)?)
}

impl Sink for ZarrWriter {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let encode =
            |shape: &[u64], fields: &[&[u8]]| self.encode(result, &index, &region, shape, fields);
        write(chunk, encode, |encoded| self.put(encoded))
    }

    fn drains(&self) -> bool {
        true
    }

    fn store(self: Arc<Self>) -> Option<Arc<ZarrWriter>> {
        Some(self)
    }
}

/// The chunks that an [order](crate::order::Order) writes to an output of another process. Results of the order that
/// are not results of the plan are not written.
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
        let encode =
            |shape: &[u64], fields: &[&[u8]]| self.encode(result, &index, &region, shape, fields);
        write(chunk, encode, |encoded| self.put(encoded))
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
                tracing::debug!(output = %staging.display(), "an output has no entry that would remove it after a crash: {e}");
                None
            }
        }
    }
}
