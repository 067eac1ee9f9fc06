//! Times in CSV, also those without seconds, which Arrow's reader refuses: `2020-01-01 00:15`.
//!
//! It reads columns of times as texts. Arrow's cast, which has the parser of the reader, converts them, with seconds.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use std::borrow::Cow;
use std::sync::Arc;

/// True for a day of the calendar, an hour and a minute.
pub(crate) fn is_of_minutes(text: &[u8]) -> bool {
    const SHAPE: &[u8; 16] = b"dddd-dd-dd dd:dd";
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'd' => byte.is_ascii_digit(),
        b' ' => matches!(byte, b' ' | b'T'),
        mark => byte == mark,
    };
    text.len() == SHAPE.len()
        && text.iter().zip(SHAPE).all(fits)
        && is_date(&text[..10])
        && text[11..13] < b"24"[..]
        && text[14..16] < b"60"[..]
}

/// True if the month of a year has such a day, such as `2020-02-29`.
fn is_date(digits: &[u8]) -> bool {
    let number = |range: std::ops::Range<usize>| {
        digits[range].iter().fold(0u32, |number, digit| number * 10 + u32::from(digit - b'0'))
    };
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    (1..=days).contains(&day)
}

fn is_moment(field: &Field) -> bool {
    matches!(field.data_type(), DataType::Timestamp(_, _))
}

/// The schema for Arrow's reader: with texts in place of times.
pub(super) fn as_texts(schema: &Schema) -> SchemaRef {
    let of = |field: &Arc<Field>| match is_moment(field) {
        true => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
        false => field.clone(),
    };
    let fields: Vec<Arc<Field>> = schema.fields().iter().map(of).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Converts the batches of a reader.
pub(super) struct Moments {
    schema: SchemaRef,
    /// The positions of the columns in the file.
    places: Vec<usize>,
    /// The reader's number of the next row.
    row: usize,
}

impl Moments {
    /// Converts columns that are read as [`as_texts`] to those of `schema`; `row` is the number of the first row.
    pub(super) fn new(schema: SchemaRef, places: Vec<usize>, row: usize) -> Self {
        Moments { schema, places, row }
    }

    /// # Errors
    /// [`ArrowError::ParseError`], in the words of Arrow's reader, with the row of a text that is no time.
    pub(super) fn converted(&mut self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let first = self.row;
        self.row += batch.num_rows();
        if !self.schema.fields().iter().any(|field| is_moment(field)) {
            return Ok(batch);
        }
        let fields = self.schema.fields().iter().zip(&self.places);
        let convert = |(texts, (field, place)): (&ArrayRef, (&Arc<Field>, &usize))| {
            if !is_moment(field) {
                return Ok(texts.clone());
            }
            let dtype = field.data_type();
            let times = cast(&with_seconds(texts), dtype)?;
            let is_wrong = |row: &usize| times.is_null(*row) && texts.is_valid(*row);
            if times.null_count() > texts.null_count()
                && let Some(row) = (0..texts.len()).find(is_wrong)
            {
                let (value, line) = (texts.as_string::<i32>().value(row), first + row);
                return Err(ArrowError::ParseError(format!(
                    "Error while parsing value '{value}' as type '{dtype}' for column {place} at line {line}."
                )));
            }
            Ok(times)
        };
        let columns = batch.columns().iter().zip(fields).map(convert);
        let columns = columns.collect::<Result<Vec<ArrayRef>, ArrowError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
    }
}

fn with_seconds(column: &ArrayRef) -> ArrayRef {
    let texts = column.as_string::<i32>();
    if !texts.iter().flatten().any(|text| is_of_minutes(text.as_bytes())) {
        return column.clone();
    }
    let padded = |text| match is_of_minutes(str::as_bytes(text)) {
        true => Cow::Owned(format!("{text}:00")),
        false => Cow::Borrowed(text),
    };
    Arc::new(texts.iter().map(|text| text.map(padded)).collect::<StringArray>())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::{TimeUnit, TimestampMicrosecondType};

    #[test]
    fn times_may_have_no_seconds() {
        for (text, is) in [
            ("2020-01-01 00:15", true),
            ("2020-01-01T23:59", true),
            ("2020-02-29 00:15", true),
            ("2000-02-29 00:15", true),
            ("1900-02-29 00:15", false),
            ("2020-02-30 00:15", false),
            ("2020-04-31 00:15", false),
            ("2020-13-01 00:15", false),
            ("2020-00-01 00:15", false),
            ("2020-01-00 00:15", false),
            ("2020-01-01 24:00", false),
            ("2020-01-01 00:60", false),
            ("2020-01-01 00:1x", false),
            ("2020-01-01_00:15", false),
            ("2020-01-01 00:15Z", false),
            ("2020-01-01", false),
        ] {
            assert_eq!(is_of_minutes(text.as_bytes()), is, "{text}");
        }
    }

    #[test]
    fn columns_of_times_are_converted() {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        let schema = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Utf8, true),
            Field::new("t", time, true),
        ]));
        let batch = |times: Vec<Option<&str>>| {
            let notes = StringArray::from_iter_values(times.iter().map(|_| "2020-01-01 00:15"));
            let columns: Vec<ArrayRef> = vec![Arc::new(notes), Arc::new(StringArray::from(times))];
            RecordBatch::try_new(as_texts(&schema), columns).unwrap()
        };
        let mut moments = Moments::new(schema.clone(), vec![2, 5], 1);
        let texts = vec![Some("1970-01-01 00:15"), None, Some("1970-01-01T00:15:00.5")];
        let converted = moments.converted(batch(texts)).unwrap();
        assert_eq!(converted.schema(), schema);
        assert_eq!(converted.column(0).as_string::<i32>().value(2), "2020-01-01 00:15");
        let times = converted.column(1).as_primitive::<TimestampMicrosecondType>();
        assert_eq!(times.iter().collect::<Vec<_>>(), [Some(900_000_000), None, Some(900_500_000)]);
        // The first of these rows is the fourth, and the header is one for the reader.
        let error = moments.converted(batch(vec![None, Some("noon")])).unwrap_err().to_string();
        assert!(
            error.contains("value 'noon' as type 'Timestamp(µs)' for column 5 at line 5."),
            "{error}"
        );
    }
}
