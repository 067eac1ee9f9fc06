//! Names and types of the columns of CSV files.
//!
//! DataFusion infers them as well, but takes each quote for a delimiter, also the one in `5" pipe`.

use super::names::Names;
use crate::rows::{CsvLines, Marks, Nulls, State, Whole, has_long_number, is_of_minutes};
use arrow::array::{AsArray, RecordBatch};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use datafusion::error::{DataFusionError, Result};
use futures::TryStreamExt;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::io::Cursor;
use std::sync::Arc;

/// Bytes that are examined together: whole rows, of which the longest may have more.
const PART_BYTES: usize = 1 << 20;

/// Upper bound on the bytes of a row that is examined: an unclosed quote makes the rest of the file one row.
const ROW_BYTES_MAX: usize = 64 << 20;

/// The layout of CSV files.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) marks: Marks,
    pub(super) has_header: bool,
    /// Number of rows that determine the types.
    pub(super) sample_rows: usize,
    pub(super) nulls: Nulls,
}

/// The columns of a file, as far as they are inferred.
struct Columns {
    fields: Vec<(String, DataType)>,
    rows: usize,
}

impl Layout {
    /// The columns of files in their order, by their first rows; `shown` is the name of a file in messages.
    ///
    /// # Errors
    /// The errors of the storage; [`DataFusionError::Plan`] for a row with more or fewer fields than the others.
    pub(super) async fn columns(
        &self,
        store: &dyn ObjectStore,
        files: &[ObjectMeta],
        shown: impl Fn(&ObjectMeta) -> String,
    ) -> Result<SchemaRef> {
        let mut columns = Columns { fields: Vec::new(), rows: 0 };
        for file in files {
            if columns.rows < self.sample_rows {
                self.add_file(store, file, &shown(file), &mut columns).await?;
            }
        }
        // A column without a value may have one later.
        let of = |of: DataType| if of == DataType::Null { DataType::Utf8 } else { of };
        let mut names = Names::default();
        let fields = columns.fields.into_iter();
        let fields = fields.map(|(name, dtype)| Field::new(names.free(name), of(dtype), true));
        Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
    }

    async fn add_file(
        &self,
        store: &dyn ObjectStore,
        file: &ObjectMeta,
        shown: &str,
        columns: &mut Columns,
    ) -> Result<()> {
        let mut bytes = store.get(&file.location).await?.into_stream();
        // `part` begins with a row.
        let (mut part, mut line, mut has_header) = (Vec::new(), 1, self.has_header);
        while columns.rows < self.sample_rows {
            let more = bytes.try_next().await?;
            part.extend_from_slice(more.as_deref().unwrap_or_default());
            let end = match more {
                None => part.len(),
                Some(_) if part.len() < PART_BYTES => continue,
                Some(_) => self.marks.last_line_end(State::Start, &part).unwrap_or(0),
            };
            if more.is_none() && self.marks.behind(State::Start, &part) == State::Within {
                return Err(self.not_closed(shown, line, part));
            }
            if end > 0 {
                self.add_rows(&part[..end], has_header, columns)
                    .map_err(|e| placed(shown, line, &e))?;
                line += memchr::memchr_iter(b'\n', &part[..end]).count();
                part.drain(..end);
                has_header = false;
            }
            if more.is_none() {
                break;
            }
            if part.len() > ROW_BYTES_MAX {
                return Err(DataFusionError::Plan(format!(
                    "`{shown}`, line {line}: a row has more than {ROW_BYTES_MAX} bytes; a quote may not be closed"
                )));
            }
        }
        Ok(())
    }

    /// The error of a file whose last bytes, from this line, end within quotes.
    fn not_closed(&self, shown: &str, line: usize, part: Vec<u8>) -> DataFusionError {
        let mut lines = CsvLines::of(self.marks.delimiter, self.marks.quote);
        lines.next(&part.into());
        let line = lines.open_in().map_or(line as u64, |within| line as u64 + within - 1);
        DataFusionError::Plan(format!(
            "`{shown}`, line {line}: a quote that opens there is not closed; \
             `read_csv('…', quote => '|')` reads files whose quotes are part of their texts"
        ))
    }

    fn add_rows(
        &self,
        bytes: &[u8],
        has_header: bool,
        columns: &mut Columns,
    ) -> std::result::Result<(), ArrowError> {
        let left = self.sample_rows - columns.rows;
        let format = self.format().with_header(has_header);
        let (schema, rows) = format.infer_schema(Cursor::new(bytes), Some(left))?;
        let schema = self.with_minutes(schema, &format, bytes, left);
        let schema = with_unsigned(schema, format, bytes, left);
        columns.rows += rows;
        if columns.fields.is_empty() {
            let fields = schema.fields().iter();
            columns.fields =
                fields.map(|field| (field.name().clone(), field.data_type().clone())).collect();
            return Ok(());
        }
        let (known, found) = (columns.fields.len(), schema.fields().len());
        if known != found {
            return Err(ArrowError::CsvError(format!("expected {known} fields, got {found}")));
        }
        for ((_, known), field) in columns.fields.iter_mut().zip(schema.fields()) {
            let of = std::mem::replace(known, DataType::Null);
            *known = of_both(of, field.data_type().clone());
        }
        Ok(())
    }

    /// The schema with timestamps for times without seconds: for these Arrow infers texts.
    fn with_minutes(&self, schema: Schema, format: &Format, bytes: &[u8], rows: usize) -> Schema {
        let is_text = |field: &Arc<Field>| *field.data_type() == DataType::Utf8;
        if !schema.fields().iter().any(is_text) {
            return schema;
        }
        let Some(with_seconds) = self.with_seconds(bytes) else { return schema };
        match format.infer_schema(Cursor::new(with_seconds), Some(rows)) {
            Ok((found, _)) if found.fields().len() == schema.fields().len() => {
                let of = |(field, found): (&Arc<Field>, &Arc<Field>)| match found.data_type() {
                    DataType::Timestamp(..) if is_text(field) => {
                        Arc::new(field.as_ref().clone().with_data_type(found.data_type().clone()))
                    }
                    _ => field.clone(),
                };
                Schema::new(schema.fields().iter().zip(found.fields()).map(of).collect::<Vec<_>>())
            }
            _ => schema,
        }
    }

    /// The rows with seconds in fields that are times without them; `None` if there are none.
    fn with_seconds(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let Marks { delimiter, quote } = self.marks;
        let is_end =
            |byte: Option<&u8>| byte.is_none_or(|b| [delimiter, quote, b'\n', b'\r'].contains(b));
        let (mut out, mut from) = (Vec::new(), 0);
        for colon in memchr::memchr_iter(b':', bytes).filter(|colon| *colon >= 13) {
            let (start, end) = (colon - 13, colon + 3);
            let is_field = is_end(start.checked_sub(1).and_then(|before| bytes.get(before)))
                && bytes.get(start..end).is_some_and(is_of_minutes)
                && is_end(bytes.get(end));
            if is_field {
                out.extend_from_slice(&bytes[from..end]);
                out.extend_from_slice(b":00");
                from = end;
            }
        }
        (from > 0).then(|| {
            out.extend_from_slice(&bytes[from..]);
            out
        })
    }

    /// Reads the header line of a file.
    pub(super) fn format(&self) -> Format {
        let format =
            Format::default().with_delimiter(self.marks.delimiter).with_quote(self.marks.quote);
        match self.nulls.regex() {
            Some(nulls) => format.with_null_regex(nulls.clone()),
            None => format,
        }
    }
}

/// The schema with `uint64` for numbers that need it: for these Arrow infers texts, which have another order.
fn with_unsigned(schema: Schema, format: Format, bytes: &[u8], rows: usize) -> Schema {
    let is_text = |field: &Arc<Field>| *field.data_type() == DataType::Utf8;
    if !has_long_number(bytes) || !schema.fields().iter().any(is_text) {
        return schema;
    }
    let text = |field: &Arc<Field>| Field::new(field.name(), DataType::Utf8, true);
    let texts = Schema::new(schema.fields().iter().map(text).collect::<Vec<_>>());
    let reader = ReaderBuilder::new(Arc::new(texts)).with_format(format).build(Cursor::new(bytes));
    let Ok(reader) = reader else { return schema };
    let mut columns: Vec<Whole> = schema.fields().iter().map(|_| Whole::default()).collect();
    let mut left = rows;
    for batch in reader {
        // The rows of an error have been read without one before, as other types.
        let Ok(batch) = batch else { return schema };
        let first = batch.slice(0, left.min(batch.num_rows()));
        add_numbers(&first, &mut columns);
        left -= first.num_rows();
        if left == 0 {
            break;
        }
    }
    let of = |(field, column): (&Arc<Field>, &Whole)| match is_text(field) && column.is_unsigned() {
        true => Arc::new(field.as_ref().clone().with_data_type(DataType::UInt64)),
        false => field.clone(),
    };
    Schema::new(schema.fields().iter().zip(&columns).map(of).collect::<Vec<_>>())
}

fn add_numbers(texts: &RecordBatch, columns: &mut [Whole]) {
    for (texts, column) in texts.columns().iter().zip(columns) {
        for text in texts.as_string::<i32>().iter().flatten() {
            column.add(text.parse().ok());
        }
    }
}

/// A type for the values of both.
fn of_both(a: DataType, b: DataType) -> DataType {
    use DataType::{Date32, Float64, Int64, Null, Timestamp, Utf8};
    match (a, b) {
        (a, b) if a == b => a,
        (Null, other) | (other, Null) => other,
        (Int64, Float64) | (Float64, Int64) => Float64,
        (Date32, Timestamp(unit, None)) | (Timestamp(unit, None), Date32) => Timestamp(unit, None),
        (Timestamp(a, None), Timestamp(b, None)) => {
            let order = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond];
            let coarse = order.into_iter().find(|unit| *unit == a || *unit == b);
            Timestamp(if coarse == Some(a) { b } else { a }, None)
        }
        _ => Utf8,
    }
}

/// The error with the file and the line in it; `first` is the line that Arrow counts from.
fn placed(shown: &str, first: usize, error: &ArrowError) -> DataFusionError {
    let text = match error {
        ArrowError::CsvError(text) | ArrowError::ParseError(text) => text.clone(),
        other => other.to_string(),
    };
    let lengths = "Encountered unequal lengths between records on CSV file. Expected ";
    let parts = text.strip_prefix(lengths).and_then(|rest| {
        let (expected, rest) = rest.split_once(" records, found ")?;
        let (found, line) = rest.split_once(" records at line ")?;
        Some((expected, found, line.parse::<usize>().ok()?))
    });
    DataFusionError::Plan(match parts {
        Some((expected, found, line)) => {
            let line = first + line - 1;
            format!("`{shown}`, line {line}: it has {found} fields, and {expected} were expected")
        }
        None => format!("`{shown}`, from line {first}: {text}"),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use std::fmt::Write as _;

    async fn columns(text: &str, sample_rows: usize) -> Result<String> {
        let store = InMemory::new();
        let at = Path::from("a.csv");
        store.put(&at, text.to_string().into()).await.unwrap();
        let file = store.head(&at).await.unwrap();
        let marks = Marks { delimiter: b',', quote: b'"' };
        let nulls = Nulls::default();
        let layout = Layout { marks, has_header: true, sample_rows, nulls };
        let schema = layout.columns(&store, &[file], |file| file.location.to_string()).await?;
        let fields = schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type()));
        Ok(fields.collect::<Vec<_>>().join(", "))
    }

    #[tokio::test]
    async fn types_follow_from_all_rows_of_the_sample() {
        // More than a part, with quotes that are no marks and line breaks within others.
        let mut text = "id,when,size,note\n".to_string();
        for id in 0..60_000 {
            let size = if id < 50_000 { "" } else { "2.5" };
            writeln!(text, "{id},2020-01-0{},{size},\"two\nlines\" and 5\" more", 1 + id % 9)
                .unwrap();
        }
        text.push_str("7,2020-01-01T12:00:00,3,x\n");
        let all = columns(&text, usize::MAX).await.unwrap();
        assert_eq!(all, "id Int64, when Timestamp(s), size Float64, note Utf8");
        let some = columns(&text, 20_000).await.unwrap();
        assert_eq!(some, "id Int64, when Date32, size Utf8, note Utf8");
        assert_eq!(columns("a,b\n", 9).await.unwrap(), "a Utf8, b Utf8");
        assert_eq!(columns("a,b\n1,2", 9).await.unwrap(), "a Int64, b Int64");
        assert_eq!(columns("a,b\n1,x\n2.5,3", 9).await.unwrap(), "a Float64, b Utf8");
        assert_eq!(columns("", 9).await.unwrap(), "");
    }

    /// The types of DuckDB's `read_csv`.
    #[tokio::test]
    async fn times_may_have_no_seconds() {
        for (text, want) in [
            ("t\n2020-01-01 00:15\n", "t Timestamp(s)"),
            ("t,b\n\"2020-01-01T00:15\",x\n,2020-01-01 00:15\n", "t Timestamp(s), b Utf8"),
            ("a,t\n1,2020-01-01 00:15\n2,2020-01-01 00:15:30.5", "a Int64, t Timestamp(ms)"),
            ("a,t\n1,2020-01-01 00:15\n2,2020-01-02", "a Int64, t Timestamp(s)"),
            ("t\n2020-01-01 00:15\nnoon\n", "t Utf8"),
            ("t\n2020-01-01 00:60\n", "t Utf8"),
            ("t\n2020-02-30 00:15\n", "t Utf8"),
            ("t\nat 2020-01-01 00:15\n", "t Utf8"),
        ] {
            assert_eq!(columns(text, 9).await.unwrap(), want, "{text}");
        }
    }

    #[tokio::test]
    async fn numbers_beyond_int64_are_unsigned_if_all_are() {
        for (text, want) in [
            ("a\n18446744073709551615\n1\n", "a UInt64"),
            ("a,b\n,x\n9223372036854775808,\"9223372036854775808\"\n", "a UInt64, b Utf8"),
            ("a\n18446744073709551615\n-1\n", "a Utf8"),
            ("a\n18446744073709551616\n1\n", "a Utf8"),
            ("a\n9223372036854775807\n-1\n", "a Int64"),
            ("a,b\nx,1111111111111111111\n", "a Utf8, b Int64"),
        ] {
            assert_eq!(columns(text, 9).await.unwrap(), want, "{text}");
        }
        let some = columns("a\n18446744073709551615\nx\n", 1).await.unwrap();
        assert_eq!(some, "a UInt64");
    }

    #[tokio::test]
    async fn no_two_columns_have_one_name() {
        for (header, want) in [
            ("a,a,b", ["a", "a_1", "b"]),
            ("a,a,a", ["a", "a_1", "a_2"]),
            ("a,a,a_1", ["a", "a_1", "a_1_1"]),
            ("a,a_1,a", ["a", "a_1", "a_2"]),
            ("a,A,a", ["a", "A", "a_1"]),
        ] {
            let found = columns(&format!("{header}\n1,2,3\n"), 9).await.unwrap();
            let want = want.map(|name| format!("{name} Int64"));
            assert_eq!(found, want.join(", "), "{header}");
        }
    }

    #[tokio::test]
    async fn a_quote_that_is_not_closed_does_not_fill_the_memory() {
        let text = format!("a,b\n1,2\n3,\"{}", "x\n".repeat(ROW_BYTES_MAX / 2 + PART_BYTES));
        let error = columns(&text, usize::MAX).await.unwrap_err().to_string();
        assert!(error.contains("`a.csv`, line 3: a row has more than"), "{error}");
    }

    #[tokio::test]
    async fn rows_of_other_lengths_are_named() {
        let mut text = "a,b\n".to_string();
        (0..200_000).for_each(|i| writeln!(text, "{i},{i}").unwrap());
        text.push_str("1,2,3\n");
        let error = columns(&text, usize::MAX).await.unwrap_err().to_string();
        assert!(error.contains("`a.csv`, line 200002: it has 3 fields, and 2"), "{error}");
    }
}
