//! CSV files and their ranges, which are read at the same time.
//!
//! ```text
//!   split 0           split 1          split 2
//!   1,a⏎2,"b │ c⏎d"⏎3,e⏎4, │ f⏎5,g⏎
//!   rows 1 2  rows 3 4         row 5
//! ```
//! A range has the rows that begin in it. The reader of a split holds its bytes and computes the end state for each
//! state of a reader at its start ([`quotes`]); the state in which a split begins follows from those of the splits
//! before it. Arrow's decoder then reads the rows of the split from memory. Text that the decoder would silently
//! misread is repaired before ([`lines`]); times are converted behind it ([`moments`]).

mod errors;
mod lines;
mod moments;
mod nulls;
mod quotes;
#[cfg(test)]
mod tests;

pub(super) use errors::{at_row, at_row_behind, bad_row, behind, has_row};
pub(crate) use lines::CsvLines;
pub(crate) use moments::is_of_minutes;
pub(crate) use nulls::Nulls;
pub(crate) use quotes::{Marks, State};

use super::memory::charged_bytes;
use super::opened::{Open, Opened, Scan};
use arrow::array::RecordBatch;
use arrow::csv::ReaderBuilder;
use bytes::Bytes;
use datafusion::datasource::file_format::csv::CsvDecoder;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileGroup, FileOpenFuture, FileOpener, FileSource,
};
use datafusion::error::{DataFusionError, Result};
use datafusion_datasource::decoder::{DecoderDeserializer, deserialize_stream};
use datafusion_datasource::projection::ProjectionOpener;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use moments::Moments;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use quotes::Ends;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tessera_exec::quota::Account;
use tokio::sync::OnceCell;

/// Bytes behind a range that are read first to find the end of its last row.
const MORE_BYTES: u64 = 64 << 10;
/// Upper bound on the bytes that are read next.
const MORE_BYTES_MAX: u64 = 8 << 20;

/// Opens CSV files of which some may be cut into ranges.
pub(super) struct CsvRanges(Arc<Ranges>);

struct Ranges {
    /// Has the options of the files.
    csv: CsvSource,
    nulls: Nulls,
    marks: Marks,
    cuts: Cuts,
    account: Option<Arc<Account>>,
}

struct Cuts(BTreeMap<Path, BTreeMap<u64, FileRange>>);

struct FileRange {
    range: Range<u64>,
    ends: OnceCell<Ends>,
}

/// True for a reader whose files can be cut: where a row may begin follows from quotes alone.
pub(super) fn can_be_cut(source: &Arc<dyn FileSource>) -> bool {
    let is_whole = source.downcast_ref::<Opened>().is_none_or(Opened::is_whole);
    plain(source).downcast_ref::<CsvSource>().is_some_and(|csv| {
        is_whole && csv.escape().is_none() && csv.comment().is_none() && csv.terminator().is_none()
    })
}

/// DataFusion's reader, also of one that is wrapped by [`CsvRanges`].
pub(super) fn plain(source: &Arc<dyn FileSource>) -> &Arc<dyn FileSource> {
    source.downcast_ref::<Opened>().map_or(source, Opened::inner)
}

/// The number of a file's first row in errors of its reader: Arrow counts from 0, and a header is a row for it.
pub(super) fn first_row(source: &Arc<dyn FileSource>) -> usize {
    usize::from(plain(source).downcast_ref::<CsvSource>().is_none_or(CsvSource::has_header))
}

impl CsvRanges {
    /// Opens files that are cut into `groups`; `None` if they cannot be.
    pub(super) fn new(
        inner: &Arc<dyn FileSource>,
        groups: &[FileGroup],
        nulls: Nulls,
        account: Option<Arc<Account>>,
    ) -> Option<Self> {
        let csv = inner.downcast_ref::<CsvSource>().filter(|_| can_be_cut(inner))?;
        let marks = Marks { delimiter: csv.delimiter(), quote: csv.quote() };
        let mut cuts: BTreeMap<Path, BTreeMap<u64, FileRange>> = BTreeMap::new();
        for file in groups.iter().flat_map(FileGroup::iter) {
            if let Some(range) = range_of(file) {
                let of_file = cuts.entry(file.object_meta.location.clone()).or_default();
                of_file.insert(range.start, FileRange { range, ends: OnceCell::new() });
            }
        }
        let csv = csv.clone();
        let cuts = Cuts(cuts);
        Some(CsvRanges(Arc::new(Ranges { csv, nulls, marks, cuts, account })))
    }

    /// Opens files that are not cut; `None` for another format.
    pub(super) fn whole(inner: &Arc<dyn FileSource>, nulls: &Nulls) -> Option<Self> {
        let csv = inner.downcast_ref::<CsvSource>()?.clone();
        let marks = Marks { delimiter: csv.delimiter(), quote: csv.quote() };
        let (cuts, nulls) = (Cuts(BTreeMap::new()), nulls.clone());
        Some(CsvRanges(Arc::new(Ranges { csv, nulls, marks, cuts, account: None })))
    }
}

fn range_of(file: &PartitionedFile) -> Option<Range<u64>> {
    let range = file.range.as_ref()?;
    Some(u64::try_from(range.start).ok()?..u64::try_from(range.end).ok()?)
}

impl Open for CsvRanges {
    fn opener(&self, scan: Scan) -> Result<Arc<dyn FileOpener>> {
        let files = scan.inner.table_schema().file_schema().clone();
        let split = scan.split();
        let (ranges, columns) = (self.0.clone(), split.file_indices.clone());
        let opener = Opener(Reader { scan, ranges, columns });
        ProjectionOpener::try_new(split, Arc::new(opener), &files)
    }

    fn is_whole(&self) -> bool {
        self.0.cuts.0.is_empty()
    }
}

struct Opener(Reader);

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let reader = self.0.clone();
        Ok(match range_of(&file) {
            None => reader.whole(file).boxed(),
            Some(range) => reader.open(file, range).boxed(),
        })
    }
}

type Parts<T> = BoxStream<'static, Result<T>>;

#[derive(Clone)]
struct Reader {
    scan: Scan,
    ranges: Arc<Ranges>,
    /// The positions of the columns that are read.
    columns: Vec<usize>,
}

impl Reader {
    async fn whole(self, file: PartitionedFile) -> Result<Parts<RecordBatch>> {
        let bytes = self.scan.store.get(&file.object_meta.location).await?.into_stream();
        let csv = &self.ranges.csv;
        let lines = CsvLines::new(csv, csv.has_header());
        let bytes = lines::checked(lines, bytes.map_err(DataFusionError::from).boxed());
        self.rows(csv.has_header(), bytes)
    }

    /// The rows of bytes that begin with a row, or with the header.
    fn rows(&self, has_header: bool, bytes: Parts<Bytes>) -> Result<Parts<RecordBatch>> {
        let csv = &self.ranges.csv;
        let schema = csv.table_schema().file_schema();
        let read = Arc::new(schema.project(&self.columns)?);
        let mut moments = Moments::new(read, self.columns.clone(), usize::from(has_header));
        let mut builder = ReaderBuilder::new(moments::as_texts(schema))
            .with_delimiter(csv.delimiter())
            .with_quote(csv.quote())
            .with_header(has_header)
            .with_truncated_rows(csv.truncate_rows())
            .with_batch_size(self.scan.batch_rows)
            .with_projection(self.columns.clone());
        if let Some(nulls) = self.ranges.nulls.regex() {
            builder = builder.with_null_regex(nulls.clone());
        }
        if let Some(escape) = csv.escape() {
            builder = builder.with_escape(escape);
        }
        if let Some(comment) = csv.comment() {
            builder = builder.with_comment(comment);
        }
        let decoder = DecoderDeserializer::new(CsvDecoder::new(builder.build_decoder()));
        let batches = deserialize_stream(bytes.fuse(), decoder);
        let batches = batches.map(move |batch| moments.converted(batch?));
        Ok(batches.map_err(DataFusionError::from).boxed())
    }

    /// The rows that begin in the range.
    async fn open(self, file: PartitionedFile, range: Range<u64>) -> Result<Parts<RecordBatch>> {
        let (at, marks) = (&file.object_meta.location, self.ranges.marks);
        // With the byte before it: a row begins behind a line break.
        let before = range.start.min(1);
        let bytes = self.read(at, range.start - before..range.end).await?;
        let own = bytes.slice(before as usize..);
        let (state, ends) = self.state_before(at, &range, &own).await?;
        let is_line = range.start == 0 || bytes[0] == b'\n';
        let skipped = match state == State::Start && is_line {
            true => Some(0),
            false => marks.line_end(state, &own),
        };
        let Some(skipped) = skipped.filter(|skipped| *skipped < own.len()) else {
            return Ok(stream::empty().boxed());
        };
        let first = range.start + skipped as u64;
        let mut parts = vec![own.slice(skipped..)];
        let is_whole = ends.of(state) == State::Start && own.last() == Some(&b'\n');
        if !is_whole {
            let end = self.read_row_end(&file, range.end, ends.of(state), &mut parts).await;
            end.map_err(|e| behind(first, 0, e))?;
        }
        let csv = &self.ranges.csv;
        // Behind the first range there is no header, and the reader counts rows from 0.
        let has_header = first == 0 && csv.has_header();
        if lines::csv_columns(csv) == 1 {
            let mut lines = CsvLines::new(csv, has_header);
            parts.iter_mut().for_each(|part| *part = lines.next(part));
        }
        let rows = self.rows(has_header, stream::iter(parts.into_iter().map(Ok)).boxed())?;
        Ok(rows.map_err(move |e| behind(first, 0, e)).boxed())
    }

    /// The reader's state at the start of the range, and at its end for each state at the start.
    async fn state_before(
        &self,
        at: &Path,
        range: &Range<u64>,
        own: &[u8],
    ) -> Result<(State, Ends)> {
        let marks = self.ranges.marks;
        let cuts = self.ranges.cuts.0.get(at);
        let ends = match cuts.and_then(|cuts| cuts.get(&range.start)) {
            Some(cut) => *cut.ends.get_or_init(|| async { marks.ends(own) }).await,
            None => marks.ends(own),
        };
        let mut state = State::Start;
        for cut in cuts.iter().flat_map(|cuts| cuts.range(..range.start)).map(|(_, cut)| cut) {
            // Most often its own reader has computed it, or is about to.
            let read = || async { self.read(at, cut.range.clone()).await.map(|b| marks.ends(&b)) };
            state = cut.ends.get_or_try_init(read).await?.of(state);
        }
        Ok((state, ends))
    }

    /// Reads on to the end of a row that continues at `from`. `parts` begin with a row.
    ///
    /// # Errors
    /// The errors of the store; a file that ends within quotes.
    async fn read_row_end(
        &self,
        file: &PartitionedFile,
        from: u64,
        mut state: State,
        parts: &mut Vec<Bytes>,
    ) -> Result<()> {
        let (at, size, marks) =
            (&file.object_meta.location, file.object_meta.size, self.ranges.marks);
        let (mut from, mut length) = (from, MORE_BYTES);
        while from < size {
            let more = self.read(at, from..(from + length).min(size)).await?;
            if let Some(end) = marks.line_end(state, &more) {
                parts.push(more.slice(..end));
                return Ok(());
            }
            state = marks.behind(state, &more);
            from += more.len() as u64;
            length = (length * 2).min(MORE_BYTES_MAX);
            parts.push(more);
        }
        if state != State::Within {
            return Ok(());
        }
        let mut lines = CsvLines::new(&self.ranges.csv, false);
        parts.iter().for_each(|part| drop(lines.next(part)));
        lines.end().map_err(|e| DataFusionError::ArrowError(Box::new(e), None))
    }

    /// Reads bytes, which are counted for as long as they live.
    async fn read(&self, at: &Path, range: Range<u64>) -> Result<Bytes> {
        let count = range.end.saturating_sub(range.start);
        let charge = self.ranges.account.as_ref().map(|account| {
            account.try_reserve(count).ok_or_else(|| {
                let (used, limit) = (account.quota().used(), account.quota().limit());
                DataFusionError::ResourcesExhausted(format!(
                    "reading a part of a CSV file needs {count} bytes of memory, and {used} of {limit} are in use"
                ))
            })
        });
        let charge = charge.transpose()?;
        let bytes = self.scan.store.get_range(at, range).await?;
        Ok(match charge {
            Some(charge) => charged_bytes(bytes, charge),
            None => bytes,
        })
    }
}
