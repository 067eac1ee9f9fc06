//! One table of references in Parquet: a row for each chunk.
//!
//! # Source
//! fsspec's `LazyReferenceMapper`, which defines the form: columns `path`, `offset`, `size` and `raw`. A table without
//! inline bytes may lack `raw`, one with nothing else has only that. `parquet.thrift` of Apache Parquet for the header of
//! a page.

use super::part::inline;
use crate::thrift::Compact;
use bytes::Bytes;
use parquet::basic::Type;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Upper bound on the unpacked bytes of a table.
const TABLE_BYTES_MAX: u64 = 256 << 20;

/// The row of a chunk.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Row {
    /// The chunk was never written.
    Absent,
    Inline(Bytes),
    /// A part of a file; all of it without a range.
    Part {
        path: Arc<str>,
        range: Option<Range<u64>>,
    },
}

/// The rows of a table. Paths occur once: thousands of chunks are parts of one file.
#[derive(Debug)]
pub(super) struct Table {
    paths: Vec<Arc<str>>,
    parts: Vec<PathRange>,
    /// Inline bytes by row.
    raws: BTreeMap<usize, Bytes>,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct PathRange {
    /// Its index, or `NO_PATH`.
    path: u32,
    offset: u64,
    size: u64,
}

const NO_PATH: u32 = u32::MAX;

impl Table {
    /// Parses a table of at most `rows_max` rows; the error describes the expected form.
    pub(super) fn parse(file: Bytes, rows_max: u64) -> Result<Table, String> {
        // The crate's decoders trust some numbers of a file.
        catch_unwind(AssertUnwindSafe(|| read(file, rows_max)))
            .unwrap_or_else(|_| Err("it is not valid Parquet: a page cannot be decoded".into()))
    }

    /// The row of a chunk; `None` beyond the last one.
    pub(super) fn row(&self, i: usize) -> Option<Row> {
        let part = self.parts.get(i)?;
        Some(match (self.raws.get(&i), self.paths.get(part.path as usize)) {
            (Some(raw), _) => Row::Inline(raw.clone()),
            (None, None) => Row::Absent,
            (None, Some(path)) => {
                let is_whole = part.offset == 0 && part.size == 0;
                let range = (!is_whole).then(|| part.offset..part.offset + part.size);
                Row::Part { path: path.clone(), range }
            }
        })
    }

    pub(super) fn rows(&self) -> usize {
        self.parts.len()
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn no_parquet(e: ParquetError) -> String {
    format!("it is not valid Parquet: {e}")
}

fn read(file: Bytes, rows_max: u64) -> Result<Table, String> {
    check_footer(&file)?;
    let reader = SerializedFileReader::new(file.clone()).map_err(no_parquet)?;
    let (schema, groups) =
        (reader.metadata().file_metadata().schema_descr(), reader.num_row_groups());
    let column = |name: &str| schema.columns().iter().position(|c| c.path().string() == name);
    let (path, offset, size, raw) =
        (column("path"), column("offset"), column("size"), column("raw"));
    let parts = match (path, offset, size) {
        (Some(path), Some(offset), Some(size)) => Some((path, offset, size)),
        (None, None, None) if raw.is_some() => None,
        _ => {
            let names: Vec<_> = schema.columns().iter().map(|c| c.path().string()).collect();
            let names = names.join("`, `");
            return Err(format!(
                "its columns are `{names}`, expected `path`, `offset`, `size` and `raw`"
            ));
        }
    };
    let (mut rows, mut unpacked) = (0u64, 0u64);
    for group in reader.metadata().row_groups() {
        rows = rows.saturating_add(u64::try_from(group.num_rows()).unwrap_or(u64::MAX));
        for i in [path, offset, size, raw].into_iter().flatten() {
            let pages = group.columns().get(i).and_then(|column| {
                let (start, bytes) = column.byte_range();
                file.get(usize::try_from(start).ok()?..usize::try_from(start + bytes).ok()?)
            });
            let pages = pages.ok_or("it is not valid Parquet: a column is outside of the file")?;
            unpacked = unpacked.saturating_add(unpacked_bytes(pages));
        }
    }
    if rows > rows_max {
        return Err(format!("it has {rows} rows, and `record_size` is {rows_max}"));
    }
    if unpacked > TABLE_BYTES_MAX {
        return Err(format!("it unpacks to {unpacked} bytes, at most {TABLE_BYTES_MAX} are read"));
    }
    let mut made = Made::default();
    for g in 0..groups {
        let group = reader.get_row_group(g).map_err(no_parquet)?;
        let n = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        let paths = match parts {
            Some((path, offset, size)) => {
                let paths = texts(&*group, path, n)?;
                let (offsets, sizes) = (numbers(&*group, offset, n)?, numbers(&*group, size, n)?);
                Some((paths, offsets, sizes))
            }
            None => None,
        };
        let raws = raw.map(|raw| texts(&*group, raw, n)).transpose()?;
        made.add(n, paths, raws)?;
    }
    Ok(made.table())
}

/// Checks the lists in the footer, for whose elements the crate allocates memory.
fn check_footer(file: &[u8]) -> Result<(), String> {
    let wrong = |reason: &str| format!("it is not valid Parquet: its footer: {reason}");
    let Some((rest, end)) = file.split_last_chunk::<8>() else {
        return Err(wrong("it is cut off"));
    };
    let length = u32::from_le_bytes([end[0], end[1], end[2], end[3]]) as usize;
    let footer = rest.len().checked_sub(length).and_then(|at| rest.get(at..));
    // The crate reports another format, and an encrypted file.
    match (footer, &end[4..]) {
        (Some(footer), b"PAR1") => Compact::new(footer).structure(&mut |_, _| {}).map_err(wrong),
        (None, b"PAR1") => Err(wrong("it is longer than the file")),
        _ => Ok(()),
    }
}

/// Unpacked bytes of the pages of a column by their headers. The crate reports a header that is invalid.
fn unpacked_bytes(pages: &[u8]) -> u64 {
    let (mut all, mut rest) = (0u64, pages);
    while !rest.is_empty() {
        let (mut unpacked, mut stored) = (0, 0);
        let mut header = Compact::new(rest);
        let read = header.structure(&mut |path, value| match path {
            [2] => unpacked = value,
            [3] => stored = value,
            _ => {}
        });
        let (Ok(()), Ok(unpacked), Ok(stored)) =
            (read, u64::try_from(unpacked), usize::try_from(stored))
        else {
            break;
        };
        all = all.saturating_add(unpacked);
        let Some(next) = header.rest().get(stored..) else { break };
        rest = next;
    }
    all
}

#[derive(Default)]
struct Made {
    paths: Vec<Arc<str>>,
    known: HashMap<Vec<u8>, u32>,
    parts: Vec<PathRange>,
    raws: BTreeMap<usize, Bytes>,
}

type Texts = Vec<Option<ByteArray>>;

impl Made {
    /// Adds the rows of a group.
    fn add(
        &mut self,
        rows: usize,
        parts: Option<(Texts, Vec<u64>, Vec<u64>)>,
        raws: Option<Texts>,
    ) -> Result<(), String> {
        let first = self.parts.len();
        let none = PathRange { path: NO_PATH, offset: 0, size: 0 };
        self.parts.resize(first + rows, none);
        let (paths, offsets, sizes) = parts.unwrap_or_default();
        for (i, ((path, offset), size)) in paths.iter().zip(offsets).zip(sizes).enumerate() {
            let Some(path) = path else { continue };
            let row = first + i;
            let path =
                self.path(path).ok_or_else(|| format!("`path` of row {row} is not UTF-8"))?;
            if offset.checked_add(size).is_none() {
                return Err(format!("the part in row {row} ends beyond 2^64"));
            }
            self.parts[row] = PathRange { path, offset, size };
        }
        for (i, raw) in raws.into_iter().flatten().enumerate() {
            let Some(raw) = raw else { continue };
            let row = first + i;
            let bytes = match raw.data().starts_with(b"base64:") {
                true => {
                    inline(raw.data()).ok_or_else(|| format!("`raw` of row {row} is not base64"))?
                }
                false => Bytes::from_owner(raw),
            };
            self.raws.insert(row, bytes);
        }
        Ok(())
    }

    fn path(&mut self, path: &ByteArray) -> Option<u32> {
        if let Some(i) = self.known.get(path.data()) {
            return Some(*i);
        }
        let text = std::str::from_utf8(path.data()).ok()?;
        let i = u32::try_from(self.paths.len()).ok()?;
        self.paths.push(text.into());
        self.known.insert(path.data().to_vec(), i);
        Some(i)
    }

    fn table(self) -> Table {
        let texts: usize = self.paths.iter().map(|p| p.len() + size_of::<Arc<str>>()).sum();
        let raws: usize = self.raws.values().map(|r| r.len() + 2 * size_of::<Bytes>()).sum();
        let bytes = texts + raws + self.parts.len() * size_of::<PathRange>();
        let Made { paths, parts, raws, .. } = self;
        Table { paths, parts, raws, bytes }
    }
}

fn texts(group: &dyn RowGroupReader, i: usize, rows: usize) -> Result<Texts, String> {
    match kind(group, i) {
        Type::BYTE_ARRAY => cells::<ByteArrayType>(group, i, rows),
        other => Err(wrong(group, i, other, "texts or bytes")),
    }
}

/// The numbers of a column, with 0 for null.
fn numbers(group: &dyn RowGroupReader, i: usize, rows: usize) -> Result<Vec<u64>, String> {
    let cells: Vec<i64> = match kind(group, i) {
        Type::INT64 => {
            let cells = cells::<Int64Type>(group, i, rows)?;
            cells.into_iter().map(|v| v.unwrap_or(0)).collect()
        }
        Type::INT32 => {
            let cells = cells::<Int32Type>(group, i, rows)?;
            cells.into_iter().map(|v| v.map_or(0, i64::from)).collect()
        }
        other => return Err(wrong(group, i, other, "integers")),
    };
    let number = |v: i64| {
        let what = || format!("`{}` has {v}, expected a number from 0", name(group, i));
        u64::try_from(v).map_err(|_| what())
    };
    cells.into_iter().map(number).collect()
}

fn kind(group: &dyn RowGroupReader, i: usize) -> Type {
    group.metadata().column(i).column_type()
}

fn name(group: &dyn RowGroupReader, i: usize) -> String {
    group.metadata().column(i).column_path().string()
}

fn wrong(group: &dyn RowGroupReader, i: usize, found: Type, expected: &str) -> String {
    format!("its column `{}` is {found}, expected {expected}", name(group, i))
}

/// The cells of a column, which is no list.
fn cells<T: DataType>(
    group: &dyn RowGroupReader,
    i: usize,
    rows: usize,
) -> Result<Vec<Option<T::T>>, String> {
    let column = group.metadata().column(i).column_descr_ptr();
    let (level, is_list) = (column.max_def_level(), column.max_rep_level() > 0);
    if is_list {
        return Err(format!("its column `{}` has lists", name(group, i)));
    }
    let mut reader = get_typed_column_reader::<T>(group.get_column_reader(i).map_err(no_parquet)?);
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let (read, _, _) =
        reader.read_records(rows, Some(&mut levels), None, &mut values).map_err(no_parquet)?;
    if read != rows {
        let name = name(group, i);
        return Err(format!("its column `{name}` has {read} rows, the table {rows}"));
    }
    if level == 0 {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut values = values.into_iter();
    Ok(levels.iter().map(|l| if *l == level { values.next() } else { None }).collect())
}
