//! Reads a region of a stored array in two steps: `fetch` fetches bytes, `decode` decodes them to cells.

use crate::source::ahead::Ahead;
use crate::source::chunked::Chunked;
use crate::source::cut::CutsOf;
use crate::source::error::SourceError;
use crate::source::flat::Flat;
use crate::source::joined::Joined;
use crate::source::moments::Moments;
use crate::source::rests::Rests;
use crate::source::store::Store;
use crate::source::versions::Versions;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tessera_planner::catalog::SourceRef;
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, Region};

/// A reader of one stored array. Cheap to share, holds no cells.
#[derive(Debug)]
pub struct ArrayReader {
    pub(crate) source: SourceRef,
    pub(crate) name: String,
    pub(crate) store: Store,
    pub(crate) layout: Layout,
    pub(crate) ahead: Ahead,
    /// Time units, if the cells are datetimes.
    pub(crate) moments: Option<Arc<Moments>>,
    /// The document that absent chunks depend on.
    pub(crate) rests: Rests,
}

/// Layout of cells in objects.
#[derive(Debug)]
pub(crate) enum Layout {
    /// Encoded chunks, one object each or several in a shard.
    Chunked(Box<Chunked>),
    /// Contiguous raw cells.
    Flat(Flat),
    Texts(Arc<[String]>),
    /// Arrays one after another.
    Joined(Joined),
}

/// Encoded bytes of a region: the output of [`ArrayReader::fetch`] and the input of [`ArrayReader::decode`].
#[derive(Debug, Default)]
pub struct Fetched {
    pub(crate) pieces: Vec<Piece>,
    bytes: u64,
    /// True if `decode` reads the chunks itself: they are local files.
    pub(crate) later: bool,
    /// The cells of the parts of a joined array.
    pub(crate) parts: Vec<Fetched>,
}

/// Bytes of one chunk, or of one stretch of a flat file.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Index of the chunk; the first cell of the stretch.
    pub(crate) at: Dims,
    /// Cells of the stretch along each axis, in the file's order; empty for chunks.
    pub(crate) len: Dims,
    /// `None` if the chunk is absent, or if `decode` reads the chunk or stretch itself.
    pub(crate) bytes: Option<Bytes>,
    /// Range of a chunk in its shard or file, for `decode` to read; `None` if it is absent or an object of its own.
    pub(crate) range: Option<Range<u64>>,
    /// Codecs that were not applied to the chunk: see [`crate::formats::Place`].
    pub(crate) skipped: u32,
}

impl Piece {
    /// A chunk or stretch without its bytes.
    pub(crate) fn at(at: Dims) -> Piece {
        Piece { at, len: Dims::new(), bytes: None, range: None, skipped: 0 }
    }
}

impl Fetched {
    pub(crate) fn new(pieces: Vec<Piece>) -> Self {
        let bytes = pieces.iter().filter_map(|p| p.bytes.as_ref()).map(|b| b.len() as u64).sum();
        Fetched { pieces, bytes, ..Fetched::default() }
    }

    pub(crate) fn joined(parts: Vec<Fetched>) -> Self {
        let bytes = parts.iter().map(Fetched::bytes).sum();
        Fetched { bytes, parts, ..Fetched::default() }
    }

    /// Bytes held: at most the [`ArrayReader::estimate`], except for chunks that their codecs enlarged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl ArrayReader {
    /// The array that it reads.
    pub fn source(&self) -> &SourceRef {
        &self.source
    }

    /// True if it reads local files: `fetch` then works without waiting, on the caller's thread.
    pub fn is_local(&self) -> bool {
        match &self.layout {
            Layout::Joined(j) => j.is_local(),
            _ => self.store.is_local(),
        }
    }

    /// Fetches the encoded bytes of exactly the stored chunks that `region` touches. Of local files only indices of
    /// shards are fetched: `decode` reads into reused memory, or straight into place.
    pub async fn fetch(&self, region: &Region) -> Result<Fetched, SourceError> {
        self.check(region)?;
        if region.is_empty() {
            return Ok(Fetched::default());
        }
        let pieces = match &self.layout {
            Layout::Chunked(c) if self.is_local() => {
                let pieces = c.list(self, region).await?;
                return Ok(Fetched { pieces, later: true, ..Fetched::default() });
            }
            Layout::Chunked(c) => c.fetch(self, region).await?,
            Layout::Flat(f) => f.fetch(self, region).await?,
            Layout::Joined(j) => return j.fetch(region).await,
            Layout::Texts(_) => return Err(self.internal("it has texts, no numbers")),
        };
        if let Layout::Chunked(c) = &self.layout
            && !c.is_listed()
            && pieces.iter().any(|p| p.bytes.is_none())
        {
            self.rests.meets();
            self.store.check_there().await?;
        }
        Ok(Fetched::new(pieces))
    }

    /// Writes the cells of `region` to `out`, dense, row-major, native-endian, of the type `source().dtype`, on the
    /// caller's thread. `fetched` is the result of [`ArrayReader::fetch`] for the same region.
    ///
    /// Absent chunks are the fill value, if [`ArrayReader::check_absent`] succeeds afterwards. An invalid time of a
    /// datetime variable is an error that names it. `out` has exactly `region.cells() * dtype.size()` bytes; on an
    /// error its content is undefined.
    pub fn decode(
        &self,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        self.decode_and_look(fetched, region, out)?;
        Ok(())
    }

    /// Like [`ArrayReader::decode`]. True if the cells are floats and none is NaN; false if one may be: only some codecs
    /// have the cells in the cache, where a look costs little.
    pub fn decode_and_look(
        &self,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        self.check(region)?;
        let want = region.cells() as usize * self.source.dtype.size();
        if out.len() != want {
            return Err(self.internal(format!("{} bytes for {region}, expected {want}", out.len())));
        }
        if want == 0 {
            return Ok(false);
        }
        let is_without_nan = match &self.layout {
            Layout::Chunked(c) => c.decode(self, fetched, region, out)?,
            Layout::Flat(f) => f.decode(self, fetched, region, out).map(|()| false)?,
            Layout::Joined(j) => j.decode(self.source.dtype, fetched, region, out)?,
            Layout::Texts(_) => return Err(self.internal("it has texts, no numbers")),
        };
        if let Some(moments) = &self.moments {
            moments
                .finish(self.source.dtype, out)
                .map_err(|reason| SourceError::TimeValue { array: self.name.clone(), reason })?;
        }
        Ok(is_without_nan)
    }

    /// Checks, once everything is read, that the chunks found absent were never written.
    ///
    /// # Errors
    /// [`SourceError::Changed`] if the array has changed since it was opened.
    pub async fn check_absent(&self) -> Result<(), SourceError> {
        match &self.layout {
            Layout::Joined(j) => j.check_absent().await,
            _ => self.rests.check(&self.store, &self.source.path).await,
        }
    }

    /// True if a chunk was absent, so that [`ArrayReader::check_absent`] has work.
    pub fn has_absent(&self) -> bool {
        match &self.layout {
            Layout::Joined(j) => j.has_absent(),
            _ => self.rests.asks(),
        }
    }

    /// A reader of an array of a store.
    pub(crate) fn new(source: SourceRef, name: &str, store: Store, layout: Layout) -> ArrayReader {
        let (name, ahead, rests) = (name.to_string(), Ahead::default(), Rests::default());
        ArrayReader { source, name, store, layout, ahead, moments: None, rests }
    }

    /// The same reader for a statement with the earlier reads `versions`.
    pub(crate) fn read_for(&self, versions: &Arc<Versions>) -> ArrayReader {
        let mut fresh = self.fresh();
        fresh.layout = match fresh.layout {
            Layout::Joined(j) => Layout::Joined(j.read_for(Some(versions))),
            other => other,
        };
        ArrayReader { store: self.store.read_for(versions), ..fresh }
    }

    /// The same reader as part of a joined array.
    pub(crate) fn sharing(mut self, cuts: CutsOf) -> ArrayReader {
        self.layout = match self.layout {
            Layout::Chunked(c) => Layout::Chunked(Box::new(c.sharing(cuts))),
            other => other,
        };
        self
    }

    /// The same reader, whose reads are noted for the cache of opened datasets.
    pub(crate) fn opening(&self) -> ArrayReader {
        ArrayReader { store: self.store.opening(), ..self.fresh() }
    }

    /// The same reader without state of earlier reads.
    pub(crate) fn fresh(&self) -> ArrayReader {
        let layout = match &self.layout {
            Layout::Chunked(c) => Layout::Chunked(Box::new(c.fresh())),
            Layout::Flat(f) => Layout::Flat(f.fresh()),
            Layout::Texts(texts) => Layout::Texts(texts.clone()),
            Layout::Joined(j) => Layout::Joined(j.read_for(None)),
        };
        ArrayReader {
            source: self.source.clone(),
            name: self.name.clone(),
            store: self.store.clone(),
            layout,
            ahead: Ahead::default(),
            moments: self.moments.clone(),
            rests: self.rests.fresh(),
        }
    }

    /// Bytes that reading `region` needs in addition to its result: held by `fetch`, and scratch of `decode`.
    pub fn estimate(&self, region: &Region) -> u64 {
        match &self.layout {
            Layout::Chunked(c) => c.estimate(self, region),
            Layout::Flat(f) => f.estimate(self, region),
            Layout::Texts(_) => 0,
            Layout::Joined(j) => j.estimate(self.source.dtype, region),
        }
    }

    /// Bytes of the largest chunk that is decoded as a whole. It may be longer than the array. 0 if cells are read as they
    /// are wanted.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes_of(false)
    }

    /// Like [`ArrayReader::unit_bytes`]. `is_part` is true for a part of a joined array, which may hold chunks whole.
    fn unit_bytes_of(&self, is_part: bool) -> u64 {
        match &self.layout {
            Layout::Chunked(_) if self.source.plain => 0,
            Layout::Chunked(c) => c.unit_bytes(self, is_part),
            Layout::Flat(_) | Layout::Texts(_) => 0,
            Layout::Joined(j) => j.readers().map(|r| r.unit_bytes_of(true)).max().unwrap_or(0),
        }
    }

    /// Number of requests to storage for reading the boxes of `grid`, which begins at `origin` of the array, each by
    /// itself and once: an object, or a stretch of one, is a request. Of local files each read is one.
    pub fn requests(&self, grid: &Grid, origin: &[u64]) -> u64 {
        match &self.layout {
            Layout::Chunked(c) => c.requests(&self.store, &self.source, grid, origin),
            Layout::Flat(f) => f.requests(self, grid, origin),
            Layout::Texts(_) => 0,
            Layout::Joined(j) => j.requests(grid, origin),
        }
    }

    /// Fetches and decodes at once: for coordinates, read at bind.
    pub(crate) async fn read(&self, region: &Region) -> Result<Vec<u8>, SourceError> {
        let fetched = self.fetch(region).await?;
        let mut out = vec![0u8; region.cells() as usize * self.source.dtype.size()];
        self.decode(fetched, region, &mut out)?;
        self.check_absent().await?;
        Ok(out)
    }

    /// Reads the texts of an array of texts with one dimension or none.
    pub(crate) async fn texts(&self, region: &Region) -> Result<Vec<String>, SourceError> {
        match &self.layout {
            Layout::Chunked(c) => c.texts(self, region).await,
            Layout::Flat(f) => f.texts(self, region).await,
            Layout::Joined(_) => Err(self.internal("texts are not joined")),
            Layout::Texts(texts) => {
                let (start, end) = (region.start.first(), region.end.first());
                let range = start.zip(end).map_or(0..1, |(s, e)| *s as usize..*e as usize);
                let part = texts.get(range);
                part.map(<[String]>::to_vec)
                    .ok_or_else(|| self.internal(format!("{region} of {} texts", texts.len())))
            }
        }
    }

    pub(crate) fn internal(&self, reason: impl Into<String>) -> SourceError {
        SourceError::Internal { array: self.name.clone(), reason: reason.into() }
    }

    fn check(&self, region: &Region) -> Result<(), SourceError> {
        if region.rank() != self.source.shape.len()
            || !Region::whole(&self.source.shape).contains(region)
        {
            return Err(
                self.internal(format!("the region {region} is not inside {:?}", self.source.shape))
            );
        }
        Ok(())
    }
}
