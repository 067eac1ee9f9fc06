//! Ranges of CSV files, which are read at the same time.
//!
//! ```text
//!   split 0           split 1          split 2
//!   1,a⏎2,"b │ c⏎d"⏎3,e⏎4, │ f⏎5,g⏎
//!   rows 1 2  rows 3 4         row 5
//! ```
//! A range has the rows that begin in it. The reader of a split holds its bytes and computes where each state of a
//! reader leads to ([`quotes`]); the state in which a split begins follows from those of the splits before it. DataFusion
//! then reads the rows of the split from memory.

mod errors;
mod held;
mod quotes;
#[cfg(test)]
mod tests;

pub(super) use errors::{at_row, at_row_behind, bad_row, behind, has_row};
pub(crate) use quotes::{Marks, State};

use super::memory::charged_bytes;
use super::opened::{Open, Opened, Scan};
use bytes::Bytes;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{
    CsvSource, FileGroup, FileOpenFuture, FileOpener, FileSource,
};
use datafusion::error::{DataFusionError, Result};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use held::Held;
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

/// Opens CSV files of which some are cut into ranges.
pub(super) struct CsvRanges(Arc<Ranges>);

struct Ranges {
    marks: Marks,
    cuts: Cuts,
    /// Counts the bytes of ranges.
    account: Option<Arc<Account>>,
}

/// The ranges of each file.
struct Cuts(BTreeMap<Path, BTreeMap<u64, Cut>>);

/// A range of a file.
struct Cut {
    range: Range<u64>,
    ends: OnceCell<Ends>,
}

/// True for a reader whose files can be cut: where a row may begin follows from quotes alone.
pub(super) fn can_be_cut(source: &Arc<dyn FileSource>) -> bool {
    source.downcast_ref::<CsvSource>().is_some_and(|csv| {
        csv.escape().is_none() && csv.comment().is_none() && csv.terminator().is_none()
    })
}

/// The number of a file's first row in errors of its reader: Arrow counts from 0, and a header is a row for it.
pub(super) fn first_row(source: &Arc<dyn FileSource>) -> usize {
    let source = source.downcast_ref::<Opened>().map_or(source, Opened::inner);
    usize::from(source.downcast_ref::<CsvSource>().is_none_or(CsvSource::has_header))
}

impl CsvRanges {
    /// Opens files that are cut into `groups`; `None` if they cannot be.
    pub(super) fn new(
        inner: &Arc<dyn FileSource>,
        groups: &[FileGroup],
        account: Option<Arc<Account>>,
    ) -> Option<Self> {
        let csv = inner.downcast_ref::<CsvSource>().filter(|_| can_be_cut(inner))?;
        let marks = Marks { delimiter: csv.delimiter(), quote: csv.quote() };
        let mut cuts: BTreeMap<Path, BTreeMap<u64, Cut>> = BTreeMap::new();
        for file in groups.iter().flat_map(FileGroup::iter) {
            if let Some(range) = range_of(file) {
                let of_file = cuts.entry(file.object_meta.location.clone()).or_default();
                of_file.insert(range.start, Cut { range, ends: OnceCell::new() });
            }
        }
        Some(CsvRanges(Arc::new(Ranges { marks, cuts: Cuts(cuts), account })))
    }
}

fn range_of(file: &PartitionedFile) -> Option<Range<u64>> {
    let range = file.range.as_ref()?;
    Some(u64::try_from(range.start).ok()?..u64::try_from(range.end).ok()?)
}

impl Open for CsvRanges {
    fn opener(&self, scan: Scan) -> Result<Arc<dyn FileOpener>> {
        let Scan { store, config, partition, .. } = &scan;
        let whole = scan.inner.create_file_opener(store.clone(), config, *partition)?;
        Ok(Arc::new(Opener { whole, reader: Reader { scan, ranges: self.0.clone() } }))
    }
}

struct Opener {
    /// Opens files that are not cut.
    whole: Arc<dyn FileOpener>,
    reader: Reader,
}

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        match range_of(&file) {
            None => self.whole.open(file),
            Some(range) => Ok(self.reader.clone().open(file, range).boxed()),
        }
    }
}

#[derive(Clone)]
struct Reader {
    scan: Scan,
    ranges: Arc<Ranges>,
}

impl Reader {
    /// The rows that begin in the range.
    async fn open(
        self,
        file: PartitionedFile,
        range: Range<u64>,
    ) -> Result<stream::BoxStream<'static, Result<arrow::array::RecordBatch>>> {
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
        // DataFusion's reader looks for a line break before the first row.
        let mut parts = Vec::new();
        if first > 0 {
            parts.push(Bytes::from_static(b"\n"));
        }
        parts.push(own.slice(skipped..));
        let is_whole = ends.of(state) == State::Start && own.last() == Some(&b'\n');
        let end = match is_whole {
            true => range.end,
            false => self.read_row_end(&file, range.end, ends.of(state), &mut parts).await?,
        };
        let held = Held { file: file.object_meta.clone(), first: first.saturating_sub(1), parts };
        let rows = file.with_range(first as i64, end as i64);
        let Scan { inner, config, partition, .. } = &self.scan;
        let inner = inner.create_file_opener(Arc::new(held), config, *partition)?;
        let rows = inner.open(rows)?.await?;
        // Behind the first range there is no header, and the reader counts rows from 0.
        Ok(rows.map_err(move |e| behind(first, 0, e)).boxed())
    }

    /// The reader's state where the range begins, and the one behind it for each state.
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

    /// Reads on to the end of a row that goes on at `from`. Returns the position of its end.
    async fn read_row_end(
        &self,
        file: &PartitionedFile,
        from: u64,
        mut state: State,
        parts: &mut Vec<Bytes>,
    ) -> Result<u64> {
        let (at, size, marks) =
            (&file.object_meta.location, file.object_meta.size, self.ranges.marks);
        let (mut from, mut length) = (from, MORE_BYTES);
        while from < size {
            let more = self.read(at, from..(from + length).min(size)).await?;
            if let Some(end) = marks.line_end(state, &more) {
                parts.push(more.slice(..end));
                return Ok(from + end as u64);
            }
            state = marks.behind(state, &more);
            from += more.len() as u64;
            length = (length * 2).min(MORE_BYTES_MAX);
            parts.push(more);
        }
        Ok(size)
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
