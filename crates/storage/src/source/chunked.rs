//! Arrays in encoded chunks.
//!
//! ```text
//!   region ─▶ chunks it touches ─▶ objects, or parts of shards and files ─▶ codecs ─▶ cells copied into the region
//! ```

mod place;
mod ranges;
mod referred;
mod requests;

use crate::formats::ChunkIndex;
use crate::formats::view::{Pages, View};
use crate::lock;
use crate::manifest::{Chunks, Seal};
use crate::source::codecs;
use crate::source::cut::CutsOf;
use crate::source::error::SourceError;
use crate::source::meta::{ArrayMeta, CHUNK_BYTES_MAX, Shard, index_shape, show};
use crate::source::reader::{ArrayReader, Piece};
use crate::source::store::Store;
use crate::source::texts;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use ranges::{GAP_BYTES_MAX, Requests};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tessera_planner::region::{Dims, Region};
use tessera_planner::tile::for_each_index;
use zarrs::array::{FillValue, data_type};

/// Upper bound on the chunks fetched concurrently for one region.
const CONCURRENT_MAX: usize = 16;

/// Upper bound on the bytes of cached shard indices of one array.
const INDEX_CACHE_BYTES_MAX: usize = 32 << 20;

/// Offset and length of each unit of a shard, row-major; both `u64::MAX` if it is absent.
type ShardIndex = Arc<Vec<[u64; 2]>>;

/// A chunk's range in the object that holds it, and the codecs that were not applied to it; `None` if it is absent.
type Part = Option<(Range<u64>, u32)>;

/// A reader's state of one array.
#[derive(Debug)]
pub(crate) struct Chunked {
    meta: Arc<ArrayMeta>,
    /// Key of the array in its store, empty if the store is the array; or key of the file that holds its chunks.
    prefix: String,
    /// The chunks in the file, if one file holds them all.
    file: Option<InFile>,
    /// The chunks listed in the manifest, if the store has one.
    listed: Option<Arc<Chunks>>,
    /// Cached indices of shards; `None` for absent shards.
    indices: Mutex<BTreeMap<Dims, Option<ShardIndex>>>,
    /// If the array is part of a joined one: chunks that a region has read in part stay here for the next region.
    cuts: Option<CutsOf>,
}

/// The chunks of an array in one file.
#[derive(Debug, Clone)]
pub(crate) struct InFile {
    pub(crate) pages: Arc<Pages>,
    pub(crate) index: Arc<dyn ChunkIndex>,
}

impl Chunked {
    /// An array whose chunks are parts of a file.
    pub(crate) fn in_file(meta: ArrayMeta, file: InFile) -> Self {
        let prefix = file.pages.key().to_string();
        let (file, indices) = (Some(file), Mutex::default());
        Chunked { meta: Arc::new(meta), prefix, file, listed: None, indices, cuts: None }
    }

    /// An array of Zarr.
    pub(crate) fn new(meta: ArrayMeta, prefix: String, store: &Store) -> Self {
        let listed = store.manifest().map(|m| m.arrays.get(&prefix).cloned().unwrap_or_default());
        // Chunks of a shard have no files of their own; a warehouse has no shards.
        let listed = listed.filter(|_| meta.shard.is_none());
        let (meta, indices) = (Arc::new(meta), Mutex::default());
        Chunked { meta, prefix, file: None, listed, indices, cuts: None }
    }

    /// The same array, whose chunks are shared by several regions of a joined array.
    pub(crate) fn sharing(self, cuts: CutsOf) -> Chunked {
        Chunked { cuts: Some(cuts), ..self }
    }

    /// True if a manifest or the file lists the existing chunks.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed.is_some() || self.file.is_some()
    }

    /// True if an object holds many chunks.
    fn is_in_parts(&self) -> bool {
        self.meta.shard.is_some() || self.file.is_some()
    }

    /// True if a chunk is known to have no file.
    fn is_absent(&self, at: &[u64]) -> bool {
        self.listed.as_ref().is_some_and(|chunks| chunks.get(at).is_none())
    }

    /// The seal of a chunk that has a file, if it is known.
    fn seal(&self, at: &[u64]) -> Option<Seal> {
        self.listed.as_ref()?.get(at)
    }

    /// Verifies the bytes of a chunk and returns those to decode.
    fn opened<'a>(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        bytes: &'a [u8],
    ) -> Result<&'a [u8], SourceError> {
        match self.seal(at) {
            Some(seal) => {
                seal.open(bytes).map_err(|found| reader.store.corrupt(&self.key(at), seal, found))
            }
            None => {
                self.meta.codecs.opened(bytes).map_err(|reason| self.damaged(reader, at, reason))
            }
        }
    }

    /// The error for a missing chunk that the manifest lists.
    async fn lost(&self, reader: &ArrayReader, at: &Dims, seal: Seal) -> SourceError {
        match reader.store.check_there().await {
            Err(gone) => gone,
            Ok(()) => reader.store.corrupt(&self.key(at), seal, "no such file".into()),
        }
    }

    /// The same array, without cached indices.
    pub(crate) fn fresh(&self) -> Chunked {
        Chunked {
            meta: self.meta.clone(),
            prefix: self.prefix.clone(),
            file: self.file.clone(),
            listed: self.listed.clone(),
            indices: Mutex::default(),
            cuts: self.cuts.clone(),
        }
    }

    pub(crate) async fn fetch(
        &self,
        reader: &ArrayReader,
        region: &Region,
    ) -> Result<Vec<Piece>, SourceError> {
        let units = indices(&self.units(region));
        reader.store.counters().chunks.fetch_add(units.len() as u64, Ordering::Relaxed);
        if !self.is_in_parts() {
            if units.len() > 1 && reader.store.is_referred() {
                return self.fetch_referred(reader, units).await;
            }
            return stream::iter(units)
                .map(|at| async move {
                    let bytes = match self.is_absent(&at) {
                        true => None,
                        false => self.get(reader, &at).await?,
                    };
                    Ok(Piece { bytes, ..Piece::at(at) })
                })
                .buffered(CONCURRENT_MAX)
                .try_collect()
                .await;
        }
        let parts: Vec<Vec<Piece>> = stream::iter(self.by_object(units))
            .map(|(of, units)| self.fetch_parts(reader, of, units))
            .buffered(CONCURRENT_MAX)
            .try_collect()
            .await?;
        Ok(parts.into_iter().flatten().collect())
    }

    /// Lists the chunks of a local array that `region` touches, unread, with their ranges in shards.
    pub(crate) async fn list(
        &self,
        reader: &ArrayReader,
        region: &Region,
    ) -> Result<Vec<Piece>, SourceError> {
        let units = indices(&self.units(region));
        reader.store.counters().chunks.fetch_add(units.len() as u64, Ordering::Relaxed);
        if !self.is_in_parts() {
            return Ok(units.into_iter().map(Piece::at).collect());
        }
        let mut out = Vec::with_capacity(units.len());
        for (of, units) in self.by_object(units) {
            let parts = self.parts(reader, &of, &units).await?;
            out.extend(units.into_iter().zip(parts).map(|(at, part)| Piece {
                skipped: part.as_ref().map_or(0, |(_, skipped)| *skipped),
                range: part.map(|(range, _)| range),
                ..Piece::at(at)
            }));
        }
        Ok(out)
    }

    /// Groups units by the objects that hold them: shards, or the one file.
    fn by_object(&self, units: Vec<Dims>) -> BTreeMap<Dims, Vec<Dims>> {
        match &self.meta.shard {
            Some(shard) => by_shard(shard, units),
            None => BTreeMap::from([(Dims::new(), units)]),
        }
    }

    /// Returns the parts of the object `of` that hold `units`.
    async fn parts(
        &self,
        reader: &ArrayReader,
        of: &Dims,
        units: &[Dims],
    ) -> Result<Vec<Part>, SourceError> {
        if let Some(file) = &self.file {
            let find = |view: &View<'_>| file.index.find(view, units);
            let places = file.pages.look_up(&reader.store, find).await?;
            let parts = units.iter().zip(places).map(|(at, place)| {
                let Some(p) = place else { return Ok(None) };
                let end = self.checked_end(reader, at, p.offset, p.bytes)?;
                Ok(Some((p.offset..end, p.skipped)))
            });
            return parts.collect();
        }
        let Some(shard) = &self.meta.shard else {
            return Err(reader.internal("its chunks are objects"));
        };
        match self.index(reader, shard, of).await? {
            None => Ok(vec![None; units.len()]),
            Some(index) => units.iter().map(|at| self.range(reader, shard, &index, at)).collect(),
        }
    }

    /// Returns the object of a chunk; `None` if it does not exist and no manifest lists it.
    async fn get(&self, reader: &ArrayReader, at: &Dims) -> Result<Option<Bytes>, SourceError> {
        let (key, limit) = (self.key(at), self.encoded_max());
        let got = reader.store.get(&key, limit).await;
        match (got, self.seal(at)) {
            (Ok(None), Some(seal)) => Err(self.lost(reader, at, seal).await),
            (Err(SourceError::ObjectTooLarge { bytes, .. }), Some(seal)) => {
                Err(reader.store.corrupt(&key, seal, format!("{bytes} bytes")))
            }
            (got, _) => got,
        }
    }

    /// Upper bound on the encoded size of a chunk. Codecs may enlarge it, but not by much; `float32` cells may be stored
    /// as wider floats, with a bitmap of the cells that are not missing.
    fn encoded_max(&self) -> u64 {
        self.meta.unit_bytes().saturating_mul(3).clamp(1 << 20, CHUNK_BYTES_MAX * 2)
    }

    async fn fetch_parts(
        &self,
        reader: &ArrayReader,
        of: Dims,
        units: Vec<Dims>,
    ) -> Result<Vec<Piece>, SourceError> {
        let found = self.parts(reader, &of, &units).await?;
        let key = self.key_of_object(&of);
        let mut present: Vec<(Dims, Range<u64>, u32)> = Vec::new();
        let mut out = Vec::with_capacity(units.len());
        for (at, part) in units.into_iter().zip(found) {
            match part {
                None => out.push(Piece::at(at)),
                Some((range, skipped)) => present.push((at, range, skipped)),
            }
        }
        // Neighbours in the file are read with one request.
        present.sort_by_key(|(_, r, _)| (r.start, r.end));
        let requests = Requests::of(present.iter().map(|(_, r, _)| r));
        let mut present = present.into_iter().peekable();
        for merged in requests.turns() {
            let parts = reader
                .store
                .get_ranges(&key, merged)
                .await?
                .ok_or_else(|| SourceError::Changed { what: reader.store.show(&key) })?;
            let end = merged.last().map_or(0, |last| last.end);
            while let Some((at, r, skipped)) = present.next_if(|(_, r, _)| r.end <= end) {
                let i = merged.partition_point(|m| m.end < r.end);
                let (start, end) =
                    ((r.start - merged[i].start) as usize, (r.end - merged[i].start) as usize);
                let Some(part) = parts[i].get(start..end) else {
                    let got = merged[i].start + parts[i].len() as u64;
                    let reason = format!(
                        "the index says bytes {} to {}, the object ends at {got} or before",
                        r.start, r.end
                    );
                    return Err(self.damaged(reader, &at, reason));
                };
                // A part without gaps is as long as its request.
                let bytes = match requests.is_sparse && part.len() < parts[i].len() {
                    true => Bytes::copy_from_slice(part),
                    false => parts[i].slice(start..end),
                };
                out.push(Piece { bytes: Some(bytes), skipped, ..Piece::at(at) });
            }
        }
        Ok(out)
    }

    /// Returns the range of a unit in its shard, `None` if it is absent.
    fn range(
        &self,
        reader: &ArrayReader,
        shard: &Shard,
        index: &ShardIndex,
        at: &Dims,
    ) -> Result<Part, SourceError> {
        let local = at.iter().zip(&shard.counts).fold(0, |n, (i, c)| n * c + i % c);
        let [offset, length] = index[local as usize];
        if (offset, length) == (u64::MAX, u64::MAX) {
            return Ok(None);
        }
        let end = self.checked_end(reader, at, offset, length)?;
        Ok(Some((offset..end, 0)))
    }

    /// Returns the end of a chunk of `bytes` bytes, if they are no more than a chunk may have.
    fn checked_end(
        &self,
        reader: &ArrayReader,
        at: &Dims,
        offset: u64,
        bytes: u64,
    ) -> Result<u64, SourceError> {
        let limit = self.encoded_max();
        offset.checked_add(bytes).filter(|_| bytes <= limit).ok_or_else(|| {
            self.damaged(reader, at, format!("the index says {bytes} bytes at {offset}"))
        })
    }

    /// Returns the index of a shard, `None` if the shard is absent.
    async fn index(
        &self,
        reader: &ArrayReader,
        shard: &Shard,
        of: &Dims,
    ) -> Result<Option<ShardIndex>, SourceError> {
        let cached = lock(&self.indices).get(of).cloned();
        if let Some(index) = cached {
            return Ok(index);
        }
        let key = self.key(of);
        let n = shard.index_bytes;
        let bytes = if shard.at_end {
            reader.store.get_suffix(&key, n).await?
        } else {
            let parts = reader.store.get_ranges(&key, std::slice::from_ref(&(0..n))).await?;
            parts.and_then(|mut p| p.pop())
        };
        let index = match bytes {
            None => None,
            Some(bytes) => Some(self.decode_index(reader, shard, of, &bytes)?),
        };
        let mut indices = lock(&self.indices);
        let each: usize = shard.counts.iter().product::<u64>() as usize * 16;
        if indices.len().saturating_mul(each) > INDEX_CACHE_BYTES_MAX {
            indices.clear();
        }
        indices.insert(of.clone(), index.clone());
        Ok(index)
    }

    fn decode_index(
        &self,
        reader: &ArrayReader,
        shard: &Shard,
        of: &Dims,
        bytes: &Bytes,
    ) -> Result<ShardIndex, SourceError> {
        let damaged = |reason: String| SourceError::Chunk {
            array: reader.name.clone(),
            chunk: show(of),
            path: reader.store.show(&self.key(of)),
            reason: format!("the shard's index: {reason}"),
        };
        if bytes.len() as u64 != shard.index_bytes {
            return Err(damaged(format!("{} bytes, expected {}", bytes.len(), shard.index_bytes)));
        }
        let cells = codecs::run(
            &shard.index_chain,
            Cow::Borrowed(bytes),
            &index_shape(&shard.counts),
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
        )
        .and_then(|cells| cells.into_fixed().map_err(|e| e.to_string()))
        .map_err(damaged)?;
        let number = |c: &[u8; 8]| u64::from_ne_bytes(*c);
        let pairs: Vec<[u64; 2]> = cells
            .as_chunks::<8>()
            .0
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[a, b]| [number(a), number(b)])
            .collect();
        if pairs.len() as u64 != shard.counts.iter().product::<u64>() {
            return Err(damaged(format!("{} entries", pairs.len())));
        }
        Ok(Arc::new(pairs))
    }

    /// Bytes of a decoded chunk, as it is stored or in the reader's type, whichever are more. Those after the last cell of
    /// the array do not count if they are not decoded. `is_part`: of a joined array, which may keep chunks whole.
    pub(crate) fn unit_bytes(&self, reader: &ArrayReader, is_part: bool) -> u64 {
        let cell = self.meta.raw.size().max(reader.source.dtype.size() as u64);
        let (mut all, mut last) = (1u64, 0u64);
        for (&unit, &len) in self.meta.unit.iter().zip(&reader.source.shape) {
            all = all.saturating_mul(unit);
            last = last.saturating_mul(unit).saturating_add(unit.min(len).saturating_sub(1));
        }
        // Chunks of remote files are fetched whole. Near the end, zstd decodes all of a chunk.
        let is_short = reader.is_local()
            && !is_part
            && self.meta.is_in_memory_order()
            && self.meta.codecs.is_from_begin()
            && last < all - all / 8;
        cell.saturating_mul(if is_short { last + 1 } else { all })
    }

    pub(crate) fn estimate(&self, reader: &ArrayReader, region: &Region) -> u64 {
        if region.is_empty() {
            return 0;
        }
        let cells = self.meta.unit.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        let raw = self.meta.unit_bytes();
        let same = self.meta.raw.size() as usize == reader.source.dtype.size();
        let converted = match same && self.meta.taken.steps.is_none() {
            true => 0,
            false => cells.saturating_mul(reader.source.dtype.size() as u64),
        };
        let shape = region.shape();
        if reader.source.plain && reader.source.lines(&shape).is_alone() {
            return reader.source.window(&shape);
        }
        // Encoded chunks are at most as long as decoded ones (and a header), of which local ones are read one by one;
        // two decoded ones are held while a codec that is not the last one works.
        let is_in_parts = self.is_in_parts() || reader.store.is_referred();
        let (count, gap) = match (reader.is_local(), is_in_parts) {
            (true, _) => (1, 0),
            (false, false) => (self.units(region).cells(), 0),
            (false, true) => (self.units(region).cells(), GAP_BYTES_MAX),
        };
        let encoded = count.saturating_mul(raw.saturating_add(64 + gap));
        encoded.saturating_add(raw.saturating_mul(2)).saturating_add(converted)
    }

    /// The units that a region touches, as a box of indices.
    fn units(&self, region: &Region) -> Region {
        let unit = &self.meta.unit;
        Region {
            start: region.start.iter().zip(unit).map(|(s, n)| s / n).collect(),
            end: region.end.iter().zip(unit).map(|(e, n)| e.div_ceil(*n)).collect(),
        }
    }

    fn key(&self, stored: &[u64]) -> String {
        let Some(zarr) = &self.meta.zarr else { return self.prefix.clone() };
        let key = zarr.chunk_key(stored);
        match self.prefix.is_empty() {
            true => key.as_str().to_string(),
            false => format!("{}/{}", self.prefix, key.as_str()),
        }
    }

    fn damaged(&self, reader: &ArrayReader, at: &Dims, reason: String) -> SourceError {
        if reader.store.is_of_warehouse() {
            return SourceError::Corrupt {
                path: reader.store.show(&self.object(at)),
                expected: format!("chunk {} of `{}`", show(at), reader.name),
                found: reason,
            };
        }
        SourceError::Chunk {
            array: reader.name.clone(),
            chunk: show(at),
            path: reader.store.show(&self.object(at)),
            reason,
        }
    }

    /// Key of a shard, or of the one file.
    fn key_of_object(&self, of: &Dims) -> String {
        match &self.file {
            Some(file) => file.pages.key().to_string(),
            None => self.key(of),
        }
    }

    /// Key of the object that holds a unit.
    fn object(&self, at: &Dims) -> String {
        match &self.meta.shard {
            Some(s) => self.key(&at.iter().zip(&s.counts).map(|(i, n)| i / n).collect::<Dims>()),
            None => self.key(at),
        }
    }

    /// Reads all texts of an array of texts with one dimension or none, in order.
    pub(crate) async fn texts(
        &self,
        reader: &ArrayReader,
        region: &Region,
    ) -> Result<Vec<String>, SourceError> {
        let (mut out, mut sum) = (Vec::new(), 0);
        let mut pieces = self.fetch(reader, region).await?;
        // The texts of one object follow its order, absent ones first.
        pieces.sort_by(|a, b| a.at.cmp(&b.at));
        for Piece { at, bytes, skipped, .. } in pieces {
            if bytes.is_none() && !self.is_listed() {
                reader.rests.meets();
            }
            let unit = self.meta.unit.first().copied().unwrap_or(1);
            let from = at.first().map_or(0, |i| i * unit);
            let len = (region.end.first().copied().unwrap_or(1) - from).min(unit) as usize;
            let cells = match bytes {
                None => {
                    let fill = texts::fill(&self.meta)
                        .map_err(|reason| self.damaged(reader, &at, reason))?;
                    let more = texts::bytes_of(len as u64, fill.len() as u64);
                    texts::check(&reader.name, sum + more)?;
                    vec![fill; len]
                }
                Some(b) => {
                    let b = self.opened(reader, &at, &b)?;
                    let decoded = self.meta.codecs.decode(b, skipped);
                    decoded
                        .and_then(|b| texts::of_chunk(&self.meta.raw, b))
                        .map_err(|reason| self.damaged(reader, &at, reason))?
                }
            };
            sum += texts::bytes(&cells);
            texts::check(&reader.name, sum)?;
            out.extend(cells.into_iter().take(len));
        }
        reader.check_absent().await?;
        Ok(out)
    }
}

/// Groups units by the shards that hold them.
fn by_shard(shard: &Shard, units: Vec<Dims>) -> BTreeMap<Dims, Vec<Dims>> {
    let mut out: BTreeMap<Dims, Vec<Dims>> = BTreeMap::new();
    for at in units {
        let of = at.iter().zip(&shard.counts).map(|(i, n)| i / n).collect();
        out.entry(of).or_default().push(at);
    }
    out
}

/// The indices of a box, row-major.
pub(crate) fn indices(of: &Region) -> Vec<Dims> {
    let mut out = Vec::with_capacity(of.cells() as usize);
    for_each_index(of, &mut |at| out.push(at.into()));
    out
}
