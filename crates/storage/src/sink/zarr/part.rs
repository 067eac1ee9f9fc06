//! Writes chunks of a store that another process owns.

use super::array::{Array, Object, Objects, array_of};
use super::share::{PartEntry, Place, SharedOutput, destination, layout};
use super::uploads::Uploads;
use super::{Item, Layout, Shards, encode, labels};
use crate::lock;
use crate::manifest::number_of;
use crate::sink::budget::Budget;
use crate::sink::destination::Destination;
use crate::sink::{Memory, SinkError};
use crate::source::Stores;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tessera_planner::catalog::{Attrs, DimLabel};
use tessera_planner::region::Region;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

/// Encodes and stores chunks of a store that another process owns.
#[derive(Debug)]
pub struct PartWriter {
    id: String,
    /// Prefix of the names of local chunks that are being written.
    name: String,
    next: AtomicU64,
    display: String,
    /// The root of the store; for an output of a bucket whose name is used again, that of its parts.
    destination: Destination,
    arrays: Vec<Array>,
    budget: Budget,
    io: Handle,
    closed: AtomicBool,
    bytes: AtomicU64,
}

/// The chunks of one order: they count once [`PartBatch::finish`] returns them.
#[derive(Debug)]
pub struct PartBatch {
    writer: Arc<PartWriter>,
    uploads: Uploads,
    entries: Mutex<Vec<PartEntry>>,
}

/// The objects of one chunk, to be stored with [`PartBatch::put`].
#[derive(Debug)]
pub struct EncodedPart {
    result: usize,
    number: u64,
    objects: Objects,
    /// Memory for the objects.
    permit: OwnedSemaphorePermit,
}

impl PartWriter {
    /// Opens a store that another process shares. Fails unless this process sees the same storage and may write there.
    /// `threads` is the number of chunks encoded concurrently, if memory allows.
    ///
    /// # Errors
    /// Errors of the storage, too little memory for the buffers.
    pub async fn open(
        shared: &SharedOutput,
        stores: &Stores,
        quota: &Arc<dyn Memory>,
        io: &Handle,
        threads: usize,
    ) -> Result<Arc<Self>, SinkError> {
        let layout = layout(shared)?;
        let (mut arrays, mut peak, mut chunk_bytes) = (Vec::new(), 0, 0);
        for array in &shared.arrays {
            let array = opened(array, &layout)?;
            let is_sharded = array.document.inner.is_some();
            let valid = array.valid.as_ref().map_or(0, |v| v.encoder.peak(is_sharded));
            peak = peak.max(array.encoder.peak(is_sharded) + valid);
            chunk_bytes = chunk_bytes.max(array.encoder.bytes());
            arrays.push(array);
        }
        let root = destination(shared, stores)?;
        root.find_parts(&shared.id).await?;
        let destination = match &shared.place {
            Place::Bucket { unique: false, .. } => root.of_parts(&shared.id),
            _ => root,
        };
        Ok(Arc::new(PartWriter {
            id: shared.id.clone(),
            name: uuid::Uuid::new_v4().simple().to_string(),
            next: AtomicU64::new(0),
            display: shared.display.clone(),
            destination,
            arrays,
            budget: Budget::new(quota, chunk_bytes, peak, threads)?,
            io: io.clone(),
            closed: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
        }))
    }

    /// Begins a batch of chunks.
    pub fn batch(self: &Arc<Self>) -> Arc<PartBatch> {
        let (uploads, entries) = Default::default();
        Arc::new(PartBatch { writer: self.clone(), uploads, entries })
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Rejects further chunks.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
        self.budget.close();
    }
}

impl PartBatch {
    /// Encodes a chunk like [`ZarrWriter::encode`](super::ZarrWriter::encode).
    ///
    /// # Errors
    /// The first failure of the batch, [`SinkError::Cancelled`] once the writer is closed.
    pub fn encode(
        &self,
        result: usize,
        index: &[u64],
        region: &Region,
        shape: &[u64],
        fields: &[&[u8]],
    ) -> Result<Option<EncodedPart>, SinkError> {
        let writer = &*self.writer;
        if let Some(e) = self.uploads.failed() {
            return Err(e.after(writer.bytes()));
        }
        let array = array_of(&writer.arrays, result, &writer.display)?;
        if region.is_empty() {
            return Ok(None);
        }
        let permit = writer.io.block_on(writer.budget.take()).ok_or(SinkError::Cancelled)?;
        let objects = array.encode(index, shape, fields)?;
        let number = number_of(&array.document.grid(), index);
        Ok(Some(EncodedPart { result, number, objects, permit }))
    }

    /// Stores a chunk whose cells the caller has dropped.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn put(&self, encoded: EncodedPart) -> Result<(), SinkError> {
        let EncodedPart { result, number, objects, permit } = encoded;
        let entry = PartEntry {
            result: result as u32,
            number,
            cells: objects.cells.as_ref().map(|object| object.seal),
            valid: objects.valid.as_ref().map(|object| object.seal),
            masked: objects.facts.masked,
            collides: objects.facts.collides,
        };
        let stored = objects.store(permit, |object, permit| self.store(object, permit));
        stored.map_err(|e| e.after(self.writer.bytes()))?;
        if !entry.is_empty() {
            lock(&self.entries).push(entry);
        }
        Ok(())
    }

    /// Stores an object: a local one now, another one in the background, where it holds its part of the budget.
    fn store(&self, object: Object, permit: Option<OwnedSemaphorePermit>) -> Result<(), SinkError> {
        let writer = &self.writer;
        let Object { key, mut bytes, .. } = object;
        if writer.closed.load(Relaxed) {
            return Err(SinkError::Cancelled);
        }
        let size = bytes.len() as u64;
        if writer.destination.is_local() {
            let part =
                format!("{}/{}-{}", writer.id, writer.name, writer.next.fetch_add(1, Relaxed));
            writer.destination.put_part(&part, &key, &bytes)?;
            writer.bytes.fetch_add(size, Relaxed);
            encode::again(bytes);
            return Ok(());
        }
        // While it waits it takes no more memory than its part of the budget.
        bytes.shrink_to_fit();
        let to = writer.clone();
        let upload = async move {
            let stored = to.destination.put(&key, Bytes::from(bytes), false).await;
            to.bytes.fetch_add(if stored.is_ok() { size } else { 0 }, Relaxed);
            drop(permit);
            stored
        };
        self.uploads.start(&writer.io, &writer.display, upload);
        Ok(())
    }

    /// Waits until all chunks are stored, and returns the entries for their owner.
    ///
    /// # Errors
    /// The first failure of the batch.
    pub async fn finish(&self) -> Result<Vec<PartEntry>, SinkError> {
        let drained = self.uploads.drain(&self.writer.display).await;
        drained.map_err(|e| e.after(self.writer.bytes()))?;
        Ok(std::mem::take(&mut *lock(&self.entries)))
    }

    /// True if chunks of this result are written.
    pub fn has(&self, result: usize) -> bool {
        result < self.writer.arrays.len()
    }
}

/// The array of a shared store, without the metadata that only its owner writes: names of dimensions, labels,
/// attributes.
fn opened(shared: &super::share::SharedArray, layout: &Layout) -> Result<Array, SinkError> {
    let dims = (0..shared.shape.len()).map(|a| format!("dim_{a}")).collect();
    let item = Item {
        name: shared.name.clone(),
        dtype: shared.dtype,
        nullable: shared.valid.is_some(),
        dims: vec![DimLabel { name: None, coord: None }; shared.shape.len()],
        shape: shared.shape.clone(),
        attrs: Attrs::new(),
        is_coordinate: false,
        chunks: Shards { chunks: shared.chunks.clone(), shards: shared.shards.clone() },
        texts: None,
    };
    let axes = labels::Axes { dims, unnamed: Vec::new() };
    let mut array = Array::new(item, axes, layout, &mut BTreeSet::new())?;
    if let (Some(valid), Some(name)) = (&mut array.valid, &shared.valid) {
        valid.document.name = name.clone();
    }
    Ok(array)
}
