//! Repairs lines of CSV that Arrow's reader would misread.
//!
//! The reader skips blank lines, which in a file of one column are rows whose value is NULL: they get a pair of quotes.
//! It reads the text behind an unclosed quote as one value: that becomes an error.

use super::errors::not_closed;
use arrow::error::ArrowError;
use bytes::Bytes;
use datafusion::datasource::physical_plan::CsvSource;
use datafusion::error::{DataFusionError, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::future::ready;

/// The state between two bytes, as in the crate `csv-core`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Row,
    /// At the start of a field other than the first.
    Field,
    Outside,
    Within,
    /// Behind an escape within quotes.
    Escaped,
    Quote,
    Comment,
}

/// Bytes from the beginning of a row to the end of the file.
#[derive(Debug)]
pub(crate) struct CsvLines {
    delimiter: u8,
    quote: u8,
    escape: Option<u8>,
    comment: Option<u8>,
    is_one_column: bool,
    /// True before the header line.
    is_header: bool,
    at: At,
    /// Behind `\r`, which has ended a row.
    is_return: bool,
    line: u64,
    /// The line of the last quote that opens a field.
    opened: u64,
}

impl CsvLines {
    /// `has_header`: the first row is the header.
    pub(super) fn new(csv: &CsvSource, has_header: bool) -> Self {
        let columns = csv_columns(csv);
        CsvLines {
            escape: csv.escape(),
            comment: csv.comment(),
            is_one_column: columns == 1,
            is_header: has_header,
            ..Self::of(csv.delimiter(), csv.quote())
        }
    }

    /// Lines of several columns.
    pub(crate) fn of(delimiter: u8, quote: u8) -> Self {
        CsvLines {
            delimiter,
            quote,
            escape: None,
            comment: None,
            is_one_column: false,
            is_header: false,
            at: At::Row,
            is_return: false,
            line: 1,
            opened: 0,
        }
    }

    /// Returns the next bytes in the form that Arrow's reader needs.
    pub(crate) fn next(&mut self, bytes: &Bytes) -> Bytes {
        let mut blank = Vec::new();
        for (i, &byte) in bytes.iter().enumerate() {
            if self.step(byte) {
                blank.push(i);
            }
        }
        if !self.is_one_column || blank.is_empty() {
            return bytes.clone();
        }
        let mut all = Vec::with_capacity(bytes.len() + 2 * blank.len());
        let mut from = 0;
        for end in blank {
            all.extend_from_slice(&bytes[from..end]);
            all.extend_from_slice(&[self.quote, self.quote]);
            from = end;
        }
        all.extend_from_slice(&bytes[from..]);
        all.into()
    }

    /// True if the byte ends a blank line that is a row.
    fn step(&mut self, byte: u8) -> bool {
        let is_end = matches!(byte, b'\n' | b'\r');
        let is_second = byte == b'\n' && self.is_return;
        let is_row = self.at == At::Row;
        let of_field = match byte {
            _ if is_end => At::Row,
            _ if byte == self.delimiter => At::Field,
            _ => At::Outside,
        };
        self.at = match self.at {
            At::Row if !is_end && self.comment == Some(byte) => At::Comment,
            At::Row | At::Field if byte == self.quote => {
                self.opened = self.line;
                At::Within
            }
            At::Row | At::Field | At::Outside => of_field,
            At::Within if byte == self.quote => At::Quote,
            At::Within if self.escape == Some(byte) => At::Escaped,
            At::Within | At::Escaped => At::Within,
            At::Quote if byte == self.quote => At::Within,
            At::Quote => of_field,
            At::Comment if byte == b'\n' => At::Row,
            At::Comment => At::Comment,
        };
        self.line += u64::from(byte == b'\n');
        self.is_return = byte == b'\r' && self.at == At::Row;
        let is_blank = is_row && is_end && !is_second && !self.is_header;
        if is_row && !is_end && self.at != At::Comment {
            self.is_header = false;
        }
        is_blank
    }

    pub(crate) fn end(&self) -> std::result::Result<(), ArrowError> {
        match self.at {
            At::Within | At::Escaped => Err(not_closed(self.opened)),
            _ => Ok(()),
        }
    }

    /// The line of a quote that is not closed.
    pub(crate) fn open_in(&self) -> Option<u64> {
        self.end().is_err().then_some(self.opened)
    }
}

/// The number of columns in the files.
pub(super) fn csv_columns(csv: &CsvSource) -> usize {
    use datafusion::datasource::physical_plan::FileSource as _;
    csv.table_schema().file_schema().fields().len()
}

/// The bytes in the form that Arrow's reader needs; the error of a file that ends within quotes comes last.
pub(super) fn checked(
    mut lines: CsvLines,
    bytes: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let end = stream::once(ready(Ok(None)));
    let bytes = bytes.map_ok(Some).chain(end).map(move |part| match part? {
        Some(bytes) => Ok(lines.next(&bytes)),
        None => match lines.end() {
            Ok(()) => Ok(Bytes::new()),
            Err(e) => Err(DataFusionError::ArrowError(Box::new(e), None)),
        },
    });
    bytes.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> CsvLines {
        CsvLines { is_one_column: true, ..CsvLines::of(b',', b'"') }
    }

    /// The text, also if it arrives byte by byte.
    fn tidy(lines: impl Fn() -> CsvLines, text: &str) -> (String, Option<u64>) {
        let (mut whole, mut cut) = (lines(), lines());
        let all = whole.next(&Bytes::copy_from_slice(text.as_bytes()));
        let parts = text.bytes().map(|byte| cut.next(&Bytes::from(vec![byte])));
        assert_eq!(all, parts.collect::<Vec<_>>().concat(), "{text:?}");
        assert_eq!(whole.open_in(), cut.open_in());
        (String::from_utf8_lossy(&all).into_owned(), whole.open_in())
    }

    #[test]
    fn blank_lines_of_one_column_are_rows() {
        for (text, want) in [
            ("", ""),
            ("1\n\n3\n", "1\n\"\"\n3\n"),
            ("1\n\n\n", "1\n\"\"\n\"\"\n"),
            ("\n1", "\"\"\n1"),
            ("1\r\n\r\n3\r\n", "1\r\n\"\"\r\n3\r\n"),
            ("1\r\r3", "1\r\"\"\r3"),
            ("\"a\n\nb\"\n\n", "\"a\n\nb\"\n\"\"\n"),
            (" \n\n", " \n\"\"\n"),
        ] {
            assert_eq!(tidy(lines, text), (want.to_string(), None), "{text:?}");
        }
        // Before a header there is no row, and a comment is none.
        let header = || CsvLines { is_header: true, comment: Some(b'#'), ..lines() };
        let text = "\n# c\n\na\n# d\n\n1\n";
        assert_eq!(tidy(header, text).0, "\n# c\n\na\n# d\n\"\"\n1\n");
        let several = || CsvLines::of(b',', b'"');
        assert_eq!(tidy(several, "a,b\n\n1,2\n").0, "a,b\n\n1,2\n");
    }

    #[test]
    fn quotes_that_are_not_closed_are_found() {
        let escaped = || CsvLines { escape: Some(b'\\'), ..lines() };
        for (text, line) in [
            ("a,b\n1,\"x\n2,y\n", Some(2)),
            ("a,\"b\n\"\n1,\"x", Some(3)),
            ("\"", Some(1)),
            ("a,\"b\"\n", None),
            ("a,\"b\"", None),
            ("5\" pipe\n", None),
            ("\"a\"\"", Some(1)),
        ] {
            assert_eq!(tidy(lines, text).1, line, "{text:?}");
        }
        assert_eq!(tidy(escaped, "\"a\\\"").1, Some(1));
        assert_eq!(tidy(escaped, "\"a\\\"b\"\n").1, None);
    }
}
