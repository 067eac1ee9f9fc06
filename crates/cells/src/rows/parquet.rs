//! Charges pages of Parquet files to the memory budget.
//!
//! ```text
//!   row group   │ page │ page │ … │      held as stored until its rows are read
//!                   └▶ unpacked          one page of a column at a time, and its dictionary
//! ```
//! DataFusion's reader counts neither. Here the stored bytes are charged before they are fetched. Before they are
//! unpacked, two more sizes are charged: the unpacked size of the pages of a batch according to their headers, as a
//! megabyte may unpack to two gigabytes; and a batch of the longest text of a dictionary, as each row gets a copy of
//! its text. The charge lives as long as the bytes, also where arrays share them.
//!
//! Source of the format: the Thrift definition of `PageHeader` (parquet.thrift of Apache Parquet).

use super::memory::charged_bytes;
use super::thrift::Compact;
use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{ParquetFileReaderFactory, ParquetSource};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::basic::Type;
use parquet::column::page::{Page, PageReader};
use parquet::errors::{ParquetError, Result as Read};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use tessera_exec::quota::{Account, Charge, Quota};

/// Wraps the source so that its readers charge their memory to the budget.
pub(super) fn charged(
    source: &ParquetSource,
    quota: &Arc<Quota>,
    batch_rows: usize,
) -> Option<ParquetSource> {
    let inner = source.parquet_file_reader_factory()?.clone();
    let readers = ChargedReaders { inner, account: quota.account(), batch_rows };
    Some(source.clone().with_parquet_file_reader_factory(Arc::new(readers)))
}

#[derive(Debug)]
struct ChargedReaders {
    inner: Arc<dyn ParquetFileReaderFactory>,
    account: Arc<Account>,
    batch_rows: usize,
}

impl ParquetFileReaderFactory for ChargedReaders {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let inner = self.inner.create_reader(partition, file, metadata_size_hint, metrics)?;
        let (account, batch_rows) = (self.account.clone(), self.batch_rows as u64);
        let (metadata, dictionaries) = (None, HashMap::new());
        Ok(Box::new(ChargedReader { inner, account, batch_rows, metadata, dictionaries }))
    }
}

struct ChargedReader {
    inner: Box<dyn AsyncFileReader + Send>,
    account: Arc<Account>,
    batch_rows: u64,
    metadata: Option<Arc<ParquetMetaData>>,
    /// Row group and column of texts with a dictionary, by its offset.
    dictionaries: HashMap<u64, (usize, usize)>,
}

impl ChargedReader {
    /// Charges the memory for unpacking a column's pages.
    fn charge_unpacked(&self, start: u64, pages: &Bytes) -> Read<Charge> {
        let mut charge = reserve(&self.account, batch_bytes(pages, self.batch_rows))?;
        // The dictionary is charged before it is unpacked here.
        if let (Some(&(group, column)), Some(all)) = (self.dictionaries.get(&start), &self.metadata)
        {
            let column = all.row_group(group).column(column);
            let texts = longest_text(column, start, pages).saturating_mul(self.batch_rows);
            charge.join(reserve(&self.account, texts)?);
        }
        Ok(charge)
    }
}

impl AsyncFileReader for ChargedReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Read<Bytes>> {
        async move {
            let charge = reserve(&self.account, range.end.saturating_sub(range.start))?;
            let bytes = self.inner.get_bytes(range).await?;
            Ok(charged_bytes(bytes, charge))
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Read<Vec<Bytes>>> {
        async move {
            let stored = ranges.iter().map(|r| r.end.saturating_sub(r.start));
            let mut stored = reserve(&self.account, stored.fold(0, u64::saturating_add))?;
            let starts: Vec<u64> = ranges.iter().map(|r| r.start).collect();
            let fetched = self.inner.get_byte_ranges(ranges).await?;
            starts
                .into_iter()
                .zip(fetched)
                .map(|(start, bytes)| {
                    let unpacked = self.charge_unpacked(start, &bytes)?;
                    let mut charge = stored.split(bytes.len() as u64);
                    charge.join(unpacked);
                    Ok(charged_bytes(bytes, charge))
                })
                .collect()
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Read<Arc<ParquetMetaData>>> {
        async move {
            let metadata = self.inner.get_metadata(options).await?;
            let groups = metadata.row_groups().iter().enumerate();
            let columns = groups.flat_map(|(g, group)| {
                group.columns().iter().enumerate().map(move |(c, column)| ((g, c), column))
            });
            let texts = columns.filter(|(_, c)| c.column_type() == Type::BYTE_ARRAY);
            self.dictionaries = texts
                .filter_map(|(at, c)| Some((u64::try_from(c.dictionary_page_offset()?).ok()?, at)))
                .collect();
            self.metadata = Some(metadata.clone());
            Ok(metadata)
        }
        .boxed()
    }
}

fn reserve(account: &Arc<Account>, bytes: u64) -> Read<Charge> {
    account.try_reserve(bytes).ok_or_else(|| {
        let (used, limit) = (account.quota().used(), account.quota().limit());
        let what = format!(
            "reading a row group needs {bytes} bytes of memory, and {used} of {limit} are in use; write smaller row \
             groups and pages"
        );
        ParquetError::External(Box::new(DataFusionError::ResourcesExhausted(what)))
    })
}

/// Page type of a dictionary.
const DICTIONARY: i64 = 2;

/// Unpacked bytes of a column that are in memory at a time: dictionaries, and the pages of
/// `batch_rows` rows. Bytes that are not pages count as nothing; the reader reports the error.
fn batch_bytes(pages: &[u8], batch_rows: u64) -> u64 {
    let (mut dictionaries, mut most) = (0u64, 0u64);
    // Values and bytes of the last pages, which cover a batch's rows.
    let mut last: VecDeque<(u64, u64)> = VecDeque::new();
    let (mut values, mut bytes) = (0u64, 0u64);
    let mut rest = pages;
    while !rest.is_empty() {
        let (mut kind, mut unpacked, mut stored, mut count) = (0, 0, 0, 0);
        let mut header = Compact::new(rest);
        let read = header.structure(&mut |path, value| match path {
            [1] => kind = value,
            [2] => unpacked = value,
            [3] => stored = value,
            // Number of values, in both versions of data pages.
            [5 | 8, 1] => count = value,
            _ => {}
        });
        let (Ok(()), Ok(unpacked), Ok(stored), Ok(count)) =
            (read, u64::try_from(unpacked), usize::try_from(stored), u64::try_from(count))
        else {
            break;
        };
        if kind == DICTIONARY {
            dictionaries = dictionaries.saturating_add(unpacked);
        } else {
            last.push_back((count, unpacked));
            (values, bytes) = (values.saturating_add(count), bytes.saturating_add(unpacked));
            // A batch may have one row of the first page, and one of the last.
            while let Some(&(first, of_first)) = last.front()
                && last.len() > 1
                && values.saturating_sub(first).saturating_sub(count).saturating_add(2) > batch_rows
            {
                last.pop_front();
                values = values.saturating_sub(first);
                bytes = bytes.saturating_sub(of_first);
            }
            most = most.max(bytes);
        }
        let Some(next) = header.rest().get(stored..) else { break };
        rest = next;
    }
    dictionaries.saturating_add(most)
}

/// Bytes of the longest text of a column's dictionary, which is its first page; 0 for a dictionary that cannot be read:
/// the reader reports the error.
fn longest_text(column: &ColumnChunkMetaData, start: u64, pages: &Bytes) -> u64 {
    let at = Arc::new(At { start, bytes: pages.clone() });
    let first = SerializedPageReader::new(at, column, 0, None).and_then(|mut r| r.get_next_page());
    let Ok(Some(Page::DictionaryPage { buf, .. })) = first else { return 0 };
    let (mut longest, mut rest) = (0, &buf[..]);
    while let Some((length, texts)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length);
        let Some(next) = texts.get(length as usize..) else { break };
        longest = longest.max(length);
        rest = next;
    }
    longest.into()
}

/// Bytes of a file from an offset.
struct At {
    start: u64,
    bytes: Bytes,
}

impl At {
    fn from(&self, start: u64) -> Read<Bytes> {
        let at = start.checked_sub(self.start).filter(|at| *at <= self.bytes.len() as u64);
        let at = at.ok_or_else(|| ParquetError::EOF("a page outside of its column".into()))?;
        Ok(self.bytes.slice(at as usize..))
    }
}

impl Length for At {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for At {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Read<Reader<Bytes>> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Read<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(ParquetError::EOF("a page is cut off".into()));
        }
        Ok(bytes.slice(..length))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    #[test]
    fn page_headers_give_unpacked_sizes() {
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..20_000).map(|i| format!("text {}", i % 7))));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20_000));
        let batch = RecordBatch::try_from_iter([("t", texts), ("n", numbers)]).unwrap();
        let properties = WriterProperties::builder()
            .set_column_dictionary_enabled("n".into(), false)
            .set_data_page_row_count_limit(5_000)
            .set_write_batch_size(1_000)
            .build();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let file = Bytes::from(file);
        let reader = SerializedFileReader::new(file.clone()).unwrap();
        let group = reader.metadata().row_group(0);
        let of = |column: usize, rows| {
            let (at, length) = group.column(column).byte_range();
            batch_bytes(&file[at as usize..(at + length) as usize], rows)
        };
        // Four pages of 5,000 numbers: a row lies in one, a batch of 5,000 in two.
        assert!((40_000..41_000).contains(&of(1, 1)), "{}", of(1, 1));
        assert!((80_000..82_000).contains(&of(1, 5_000)), "{}", of(1, 5_000));
        assert!((160_000..164_000).contains(&of(1, 1 << 20)), "{}", of(1, 1 << 20));
        // Seven texts with their lengths, and 5,000 indices of three bits.
        assert!((70 + 5_000 * 3 / 8..4_000).contains(&of(0, 1)), "{}", of(0, 1));
        assert_eq!(batch_bytes(&[0xff; 100], 1), 0);
        assert_eq!(batch_bytes(&[], 1), 0);
        let (at, length) = group.column(0).byte_range();
        let pages = file.slice(at as usize..(at + length) as usize);
        assert_eq!(longest_text(group.column(0), at, &pages), 6);
        // Damaged dictionaries are left to the reader.
        assert_eq!(longest_text(group.column(0), at, &pages.slice(..20)), 0);
        assert_eq!(longest_text(group.column(0), at + 7, &pages), 0);
    }
}
