//! Writes Zarr v3 and v2: each chunk of a running plan becomes one object, encoded on the thread that computed it.
//!
//! A masked cell is stored as a fill value (`_FillValue`; NaN for floats). Only the end of the plan shows if a valid
//! cell has that value, too. So where a chunk has masked cells, a second array marks the valid cells. If no valid cell
//! has the fill value, that array is removed. Otherwise the attribute [`VALID_KEY`] names it, and no fill value is
//! declared. Either way the cells read back are the cells that were computed.

mod array;
mod codec;
mod document;
mod encode;
mod labels;
mod layout;
mod listed;
mod part;
mod share;
mod uploads;

pub use codec::Codec;
pub(super) use encode::encoded;
pub(crate) use labels::{ROLE_KEY, VALID_KEY};
pub use layout::{Layout, Shards};
pub use part::{EncodedPart, PartBatch, PartWriter};
pub use share::{Other, PartEntry, SharedOutput};

use super::budget::Budget;
use super::destination::Destination;
use super::target::{Publish, Target, Written};
use super::{Host, SinkError};
use crate::fail;
use crate::manifest::{ManifestRef, Seal, Stored, number_of};
use array::{Array, Object, Objects, array_of, coordinate};
use bytes::Bytes;
use document::{ArrayDocument, Cells};
use encode::Encoder;
use listed::Listed;
use share::Sharing;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use tessera_planner::catalog::{Attrs, CoordValues, DimLabel, TextColumn, Texts};
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, Region};
use tessera_planner::scalar::Scalar;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use uploads::Uploads;

/// Names, labels and attributes of a dataset in CF's notation, for every format that has them.
pub mod cf {
    pub use super::encode::meets;
    pub use super::labels::{
        Axes, COORDINATES_KEY, Coords, Linked, MISSING_KEY, UNITS, UNNAMED_KEY, fill_value, kept,
        linked, missing_text, names, of_dataset, shared, time_attrs,
    };
}

/// Labels in one object of a coordinate.
const LABELS_OBJECT: u64 = 1 << 20;

/// One tensor of a result to be written, or one array of texts.
#[derive(Debug, Clone)]
pub struct Item {
    /// Name of the array.
    pub name: String,
    /// Type of its cells; of texts it means nothing.
    pub dtype: DType,
    /// True if cells can be masked.
    pub nullable: bool,
    /// Names and labels of its dimensions.
    pub dims: Vec<DimLabel>,
    /// Length of each axis.
    pub shape: Dims,
    /// Attributes, without those that describe the encoding of cells.
    pub attrs: Attrs,
    /// True for a coordinate of other items that is not the labels of a dimension.
    pub is_coordinate: bool,
    /// Chunks and shards; the plan computes the tensor on the grid [`Shards::grid`].
    pub chunks: Shards,
    /// Its cells, if they are texts: along its only dimension, or one. These items follow all tensors.
    pub texts: Option<Texts>,
}

impl Item {
    /// The item of texts; `None` for a column of anything else.
    pub fn of_texts(of: &TextColumn) -> Option<Item> {
        let CoordValues::Text(texts) = &of.coord.values else { return None };
        let dims: Vec<DimLabel> = of
            .dim()
            .map(|dim| DimLabel { name: Some(dim.clone()), coord: None })
            .into_iter()
            .collect();
        let shape: Dims = dims.iter().map(|_| texts.len() as u64).collect();
        Some(Item {
            name: of.coord.name.to_string(),
            dtype: DType::UInt8,
            nullable: false,
            dims,
            chunks: Shards { chunks: shape.clone(), shards: None },
            shape,
            attrs: of.coord.attrs.clone(),
            is_coordinate: of.is_coordinate,
            texts: Some(texts.clone()),
        })
    }
}

/// The objects of one chunk, to be stored with [`ZarrWriter::put`]. While it exists the writer is not closed.
#[derive(Debug)]
pub struct Encoded<'a> {
    objects: Objects,
    /// Memory for the objects.
    permit: OwnedSemaphorePermit,
    _closed: RwLockReadGuard<'a, bool>,
}

/// Writes the results of one plan as one group.
#[derive(Debug)]
pub struct ZarrWriter {
    destination: Destination,
    publish: Publish,
    display: String,
    layout: Layout,
    attrs: Attrs,
    arrays: Vec<Array>,
    coords: Vec<labels::Labels>,
    budget: Budget,
    io: Handle,
    /// True if files are on the device before the store has its name.
    durable: bool,
    /// True once no more chunks are accepted: finished or aborted.
    closed: RwLock<bool>,
    /// True once the output must not be removed.
    kept: AtomicBool,
    uploads: Uploads,
    objects: AtomicU64,
    bytes: AtomicU64,
    /// The objects of each array, for the manifest.
    listed: Listed,
    /// Chunks that other processes write.
    sharing: Sharing,
}

impl ZarrWriter {
    /// Creates a writer to `target`; nothing exists under its name until [`ZarrWriter::finish`], except below an S3
    /// prefix.
    ///
    /// `overwrite` replaces an existing store (below S3 it is removed now). `in_place` writes under the final name,
    /// for names that nothing refers to yet; then, and for S3, the group's metadata are written last. `durable` waits
    /// for the device. `attrs` are those of the dataset.
    ///
    /// # Errors
    /// A target that cannot be written, names or labels that conflict, too little memory for the buffers.
    pub async fn create(
        target: &Target,
        items: Vec<Item>,
        attrs: Attrs,
        layout: Layout,
        (overwrite, in_place, durable): (bool, bool, bool),
        host: &Host,
    ) -> Result<Arc<ZarrWriter>, SinkError> {
        // In the warehouse each tensor of a dataset is data.
        let (axes, mut coords) = labels::resolve(&items, !layout.listed)?;
        let mut taken: BTreeSet<String> = items
            .iter()
            .map(|i| i.name.clone())
            .chain(coords.iter().map(|c| c.name.clone()))
            .collect();
        let linked = match layout.listed {
            true => labels::Linked::none(&items),
            false => labels::linked(&items, &axes),
        };
        let attrs = labels::of_dataset(&attrs, &linked);
        let mut arrays = Vec::with_capacity(items.len());
        let (mut peak, mut chunk_bytes) = (0, 0);
        for ((item, axes), coordinates) in items.into_iter().zip(axes).zip(linked.items) {
            let is_coordinate = item.is_coordinate;
            if let Some(texts) = &item.texts {
                let mut of = labels::of_texts(&item, texts, axes, &taken, layout.listed);
                labels::link(&mut of.attrs, coordinates, is_coordinate, &layout);
                coords.push(of);
                continue;
            }
            let mut array = Array::new(item, axes, &layout, &mut taken)?;
            labels::link(&mut array.document.attrs, coordinates, is_coordinate, &layout);
            let sharded = layout.shards.is_some();
            let valid = array.valid.as_ref().map_or(0, |v| v.encoder.peak(sharded));
            peak = peak.max(array.encoder.peak(sharded) + valid);
            chunk_bytes = chunk_bytes.max(array.encoder.bytes());
            arrays.push(array);
        }
        let budget = Budget::new(&host.quota, chunk_bytes, peak, host.threads)?;
        let sharing = Sharing::new(target, in_place, arrays.len());
        let (destination, publish) = target.stage(overwrite, in_place, host).await?;
        Ok(Arc::new(ZarrWriter {
            destination,
            publish,
            display: target.display().into(),
            layout,
            attrs,
            arrays,
            coords,
            budget,
            io: host.io.clone(),
            durable,
            closed: RwLock::new(false),
            kept: AtomicBool::new(false),
            uploads: Uploads::default(),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            listed: Listed::default(),
            sharing,
        }))
    }

    /// Writes labels and metadata and gives the store its name. Called once, after the plan has succeeded.
    ///
    /// # Errors
    /// Errors of the storage; after an error [`ZarrWriter::abort`] removes the output.
    pub async fn finish(&self) -> Result<Written, SinkError> {
        self.finished().await.map_err(|e| e.after(self.bytes.load(Relaxed)))
    }

    async fn finished(&self) -> Result<Written, SinkError> {
        self.uploads.drain(&self.display).await?;
        self.take_parts().await?;
        let mut documents: Vec<&ArrayDocument> = Vec::new();
        let described: Vec<ArrayDocument> = self.arrays.iter().map(Array::described).collect();
        for (array, document) in self.arrays.iter().zip(&described) {
            documents.push(document);
            let Some(valid) = &array.valid else { continue };
            match array.keeps_valid() {
                true => documents.push(&valid.document),
                false if valid.written.load(Relaxed) => {
                    self.destination.remove_all(&valid.document.name).await?;
                }
                false => {}
            }
        }
        let coords: Vec<ArrayDocument> =
            self.coords.iter().map(|c| coordinate(c, &self.layout)).collect();
        for (labels, document) in self.coords.iter().zip(&coords) {
            self.write_labels(labels, document).await?;
        }
        documents.extend(&coords);
        fail::point("zarr.metadata").map_err(|e| SinkError::io(self.display.as_str(), &e))?;
        let texts = document::store(self.layout.format, &self.attrs, &documents);
        // Before the metadata, which make it a store.
        let manifest = match self.layout.listed {
            true => Some(self.write_manifest(&documents, &texts).await?),
            false => None,
        };
        for (key, text) in texts {
            self.count(text.len());
            self.destination.put(&key, text.into(), self.durable).await?;
        }
        self.publish.publish(&self.display, self.durable)?;
        self.kept.store(true, Relaxed);
        self.close();
        let (objects, bytes) = (self.objects.load(Relaxed), self.bytes.load(Relaxed));
        Ok(Written { objects, bytes, manifest })
    }

    async fn write_manifest(
        &self,
        documents: &[&ArrayDocument],
        texts: &[(String, Vec<u8>)],
    ) -> Result<ManifestRef, SinkError> {
        let made = self.listed.manifest(documents, texts);
        let (list, contents) =
            made.map_err(|reason| SinkError::Internal { what: self.display.clone(), reason })?;
        self.count(contents.len());
        self.destination.put(list.file(), contents.into(), self.durable).await?;
        Ok(list)
    }

    /// Adds an object to the manifest, if the store is to have one.
    fn list(&self, document: &ArrayDocument, number: u64, seal: Seal) -> Result<(), SinkError> {
        if !self.layout.listed {
            return Ok(());
        }
        let stored = Stored::new(number, seal).ok_or_else(|| SinkError::Internal {
            what: self.destination.show(&document.name),
            reason: format!("a chunk of {} bytes", seal.bytes),
        })?;
        self.listed.add(&document.name, [stored]);
        Ok(())
    }

    /// Stops writing and removes the output. Does nothing after [`ZarrWriter::finish`].
    ///
    /// # Errors
    /// The files that could not be removed.
    pub async fn abort(self: &Arc<Self>) -> Result<(), SinkError> {
        if self.kept.load(Relaxed) {
            return Ok(());
        }
        self.budget.close();
        // Threads may still be encoding: this waits for them on a thread that may block.
        let closing = self.clone();
        let closed = self.io.spawn_blocking(move || closing.close()).await;
        closed.map_err(|e| SinkError::Internal {
            what: self.display.clone(),
            reason: e.to_string(),
        })?;
        self.uploads.take().shutdown().await;
        self.kept.store(true, Relaxed);
        self.close_parts().await;
        self.destination.remove_all("").await
    }

    /// Rejects further chunks, and waits for chunks that are being written.
    fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn count(&self, bytes: usize) {
        self.objects.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Stores an object: a local one now, another one in the background, where it holds its part of the budget.
    fn store(&self, object: Object, permit: Option<OwnedSemaphorePermit>) -> Result<(), SinkError> {
        let Object { key, mut bytes, .. } = object;
        if self.destination.is_local() {
            self.destination.put_local(&key, &bytes, self.durable)?;
            self.count(bytes.len());
            encode::again(bytes);
            return Ok(());
        }
        self.count(bytes.len());
        // While it waits it takes no more memory than its part of the budget.
        bytes.shrink_to_fit();
        let destination = self.destination.clone();
        let upload = async move {
            let stored = destination.put(&key, Bytes::from(bytes), false).await;
            drop(permit);
            stored
        };
        self.uploads.start(&self.io, &self.display, upload);
        Ok(())
    }

    /// Encodes the chunk `index` of a result, on the caller's thread, once there is memory for it. `fields` are the
    /// bytes of its cells and, if cells can be masked, one byte a cell that is 0 where the cell is masked. `None` if
    /// `region` is empty.
    ///
    /// # Errors
    /// The first failure of the writer, [`SinkError::Cancelled`] once it is closed.
    pub fn encode(
        &self,
        result: usize,
        index: &[u64],
        region: &Region,
        shape: &[u64],
        fields: &[&[u8]],
    ) -> Result<Option<Encoded<'_>>, SinkError> {
        let encoded = self.encoded(result, index, region, shape, fields);
        encoded.map_err(|e| e.after(self.bytes.load(Relaxed)))
    }

    fn encoded(
        &self,
        result: usize,
        index: &[u64],
        region: &Region,
        shape: &[u64],
        fields: &[&[u8]],
    ) -> Result<Option<Encoded<'_>>, SinkError> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(SinkError::Cancelled);
        }
        if let Some(e) = self.uploads.failed() {
            return Err(e);
        }
        let array = array_of(&self.arrays, result, &self.display)?;
        if region.is_empty() {
            return Ok(None);
        }
        let permit = self.io.block_on(self.budget.take()).ok_or(SinkError::Cancelled)?;
        let objects = array.encode(index, shape, fields)?;
        array.note(objects.facts);
        let valid = array.valid.as_ref().map(|v| &v.document);
        let of = [(Some(&array.document), &objects.cells), (valid, &objects.valid)];
        for (document, object) in of {
            if let (Some(document), Some(object)) = (document, object) {
                self.list(document, object.number, object.seal)?;
            }
        }
        Ok(Some(Encoded { objects, permit, _closed: closed }))
    }

    /// Stores a chunk whose cells the caller has dropped: while it waits for the store it takes no more memory than its
    /// objects.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn put(&self, encoded: Encoded<'_>) -> Result<(), SinkError> {
        let Encoded { objects, permit, _closed } = encoded;
        let stored = objects.store(permit, |object, permit| self.store(object, permit));
        stored.map_err(|e| e.after(self.bytes.load(Relaxed)))
    }

    /// Writes the objects of a coordinate.
    async fn write_labels(
        &self,
        labels: &labels::Labels,
        document: &ArrayDocument,
    ) -> Result<(), SinkError> {
        let encoder = Encoder::new(document)?;
        let object = document.object.first().copied().unwrap_or(1);
        for (i, start) in (0..labels.len).step_by(object as usize).enumerate() {
            // A text without a dimension is the one object of an array without axes.
            let place = [i as u64];
            let index = &place[..document.shape.len()];
            let end = (start + object).min(labels.len);
            let encoded = match labels.cells {
                Cells::Number(d) => {
                    let size = d.size();
                    let cells = &labels.bytes[start as usize * size..end as usize * size];
                    let cut = encoder.cut(cells, None, &[end - start], Scalar::zero(d), None)?;
                    encoder.encode(cut.bytes)?
                }
                Cells::Text(chars) if document.format == 2 => {
                    // Zarr v2 has texts of one length, in UTF-32.
                    let width = chars.max(1) * 4;
                    let mut cells = vec![0u8; width * object as usize];
                    for (text, cell) in labels.texts(start..end).zip(cells.chunks_exact_mut(width))
                    {
                        for (c, to) in text.chars().zip(cell.chunks_exact_mut(4)) {
                            to.copy_from_slice(&u32::from(c).to_le_bytes());
                        }
                    }
                    encoder.encode(cells.into())?
                }
                Cells::Text(_) => {
                    let mut offsets = labels.offsets[start as usize..=end as usize].to_vec();
                    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
                    offsets.iter_mut().for_each(|o| *o -= first);
                    // A chunk is stored whole: it is padded with empty texts.
                    offsets.resize(object as usize + 1, last - first);
                    encoder.encode_texts(&labels.bytes[first..last], offsets)?
                }
            };
            self.count(encoded.len());
            let number = number_of(&document.grid(), index);
            self.list(document, number, Seal::of_chunk(&encoded))?;
            let key = document.key(index);
            self.destination.put(&key, encoded.into(), self.durable).await?;
        }
        Ok(())
    }
}

impl Drop for ZarrWriter {
    /// A writer that was neither finished nor aborted leaves nothing: its statement was dropped.
    fn drop(&mut self) {
        if *self.kept.get_mut() {
            return;
        }
        let destination = self.destination.clone();
        if let Destination::Local { root, .. } = &destination {
            let removed = destination.fence_parts().and_then(|()| {
                super::destination::remove_tree(root).map_err(|e| SinkError::io(&*self.display, &e))
            });
            if let Err(e) = removed {
                tracing::warn!(target = %self.display, error = %e, "an unfinished store could not be removed");
            }
            return;
        }
        let (uploads, others) = (self.uploads.take(), self.sharing.others.clone());
        self.io.spawn(async move {
            let mut uploads = uploads;
            uploads.shutdown().await;
            others.ended().await;
            if let Err(e) = destination.remove_all("").await {
                tracing::warn!(error = %e, "an unfinished store could not be removed");
            }
        });
    }
}
