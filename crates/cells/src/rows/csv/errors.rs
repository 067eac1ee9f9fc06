//! Errors of rows that do not fit the columns of their file, of CSV and NDJSON.

use crate::error::spoken;
use datafusion::arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use tessera_storage::source::SourceError;

/// Separates an error in a range from the position of the range's first byte.
const BEHIND: &str = " behind byte ";

/// Precedes the number of a row in an error of a reader of JSON.
const AT_ROW: &str = "at row ";

/// Adds the number of the row to an error of JSON.
pub(in crate::rows) fn at_row(row: u64, what: &str) -> String {
    format!("{AT_ROW}{row}: {what}")
}

/// As [`at_row`], in a range that begins at the byte `first`; an error with a row is unchanged.
pub(in crate::rows) fn at_row_behind(first: u64, row: u64, what: &str) -> String {
    let (row, what) = match what.strip_prefix(AT_ROW).and_then(|rest| rest.split_once(": ")) {
        Some((row, what)) => (row.to_string(), what),
        None => (row.to_string(), what),
    };
    match first {
        0 => format!("{AT_ROW}{row}: {what}"),
        _ => format!("{AT_ROW}{row}{BEHIND}{first}: {what}"),
    }
}

/// True if an error names a row.
pub(in crate::rows) fn has_row(what: &str) -> bool {
    what.starts_with(AT_ROW)
}

/// The error of a reader that counts rows from a byte of the file; `one` is its number of the first row.
pub(in crate::rows) fn behind(first: u64, one: usize, error: DataFusionError) -> DataFusionError {
    let DataFusionError::ArrowError(e, _) = &error else { return error };
    let text = |text: &String| format!("{text}{BEHIND}{first}:{one}");
    let is_of_row = |what: &str| parts_of(what, one).is_some();
    let of_range = match &**e {
        ArrowError::ParseError(what) if first > 0 && is_of_row(what) => {
            ArrowError::ParseError(text(what))
        }
        ArrowError::CsvError(what) if first > 0 && is_of_row(what) => {
            ArrowError::CsvError(text(what))
        }
        _ => return error,
    };
    DataFusionError::ArrowError(Box::new(of_range), None)
}

/// The error of a row, parsed from the message of Arrow's CSV reader, whose words the reader of NDJSON uses too; `None`
/// for other errors. `one` is the reader's number of the first row, unless [`behind`] has added another one.
pub(in crate::rows) fn bad_row(
    path: &str,
    one: usize,
    error: &DataFusionError,
) -> Option<SourceError> {
    let DataFusionError::ArrowError(e, _) = error else { return None };
    let what = match &**e {
        ArrowError::ParseError(what) | ArrowError::CsvError(what) => what,
        ArrowError::JsonError(what) => return bad_object(path, what),
        _ => return None,
    };
    let (what, behind, one) = match what.rsplit_once(BEHIND) {
        Some((what, range)) => {
            let (first, one) = range.split_once(':')?;
            (what, format!("{BEHIND}{first}"), one.parse().ok()?)
        }
        None => (what.as_str(), String::new(), one),
    };
    let (row, column, reason, hint) = parts_of(what, one)?;
    let (path, place) = (path.to_string(), format!("{row}{behind}{column}"));
    Some(SourceError::BadRow { path, place, reason, hint: Some(hint.into()) })
}

/// The error of a row whose parts are not those of the columns; `None` for a text that is no JSON.
fn bad_object(path: &str, what: &str) -> Option<SourceError> {
    let (place, what) = what.strip_prefix(AT_ROW)?.split_once(": ")?;
    let (mut fields, mut what) = (Vec::new(), what);
    while let Some(rest) = what.strip_prefix("whilst decoding field '") {
        let (field, rest) = rest.split_once("': ")?;
        fields.push(field);
        what = rest;
    }
    let of_field = match fields.is_empty() {
        true => String::new(),
        false => format!(", `{}`", fields.join(".")),
    };
    let key =
        what.strip_prefix("column '").and_then(|rest| rest.strip_suffix("' missing from schema"));
    let (reason, decides) = match key {
        Some(key) => (format!("none of the first rows has its key `{key}`"), "the columns"),
        None if what.starts_with("expected ") || what.starts_with("failed to parse ") => {
            (what.to_string(), "the types of columns")
        }
        None => return None,
    };
    let (path, place) = (path.to_string(), format!("row {place}{of_field}"));
    let hint = format!(
        "the first rows decide on {decides}: `read_json('…', sample_size => -1)` looks at all rows"
    );
    Some(SourceError::BadRow { path, place, reason, hint: Some(hint) })
}

/// Row, column, reason and remedy.
type Parts = (String, String, String, &'static str);

fn parts_of(what: &str, one: usize) -> Option<Parts> {
    not_of_type(what, one).or_else(|| of_other_length(what)).or_else(|| open_at_end(what))
}

/// Precedes the line of a quote that is not closed.
const NOT_CLOSED: &str = "a quote is not closed that opens in line ";

/// The error of a file that ends within quotes, which open in `line`.
pub(super) fn not_closed(line: u64) -> ArrowError {
    ArrowError::CsvError(format!("{NOT_CLOSED}{line}"))
}

fn open_at_end(what: &str) -> Option<Parts> {
    let line = what.strip_prefix(NOT_CLOSED)?;
    let reason = "a quote that opens there is not closed".to_string();
    let hint = "`read_csv('…', quote => '|')` reads files whose quotes are part of their texts";
    Some((format!("line {line}"), String::new(), reason, hint))
}

/// `Error while parsing value 'x' as type 'Int64' for column 0 at line 3. Row data: …`
fn not_of_type(what: &str, one: usize) -> Option<Parts> {
    let rest = what.strip_prefix("Error while parsing value '")?;
    let (value, rest) = rest.split_once("' as type '")?;
    let (dtype, rest) = rest.split_once("' for column ")?;
    let (column, rest) = rest.split_once(" at line ")?;
    let line = rest.split_once('.').map_or(rest, |(line, _)| line);
    let column = format!(", column {}", column.parse::<usize>().ok()? + 1);
    let reason = format!("`{value}` cannot be read as {}", spoken(dtype));
    let hint = "the first rows decide on the types of columns: `sample_size => -1` looks at all \
                rows, and `all_varchar => true` reads the columns of a CSV file as texts";
    let row = line.parse::<usize>().ok()? + 1 - one;
    Some((format!("row {row}"), column, reason, hint))
}

/// `incorrect number of fields for line 3, expected 3 got 5`
fn of_other_length(what: &str) -> Option<Parts> {
    let rest = what.strip_prefix("incorrect number of fields for line ")?;
    let (line, rest) = rest.split_once(", expected ")?;
    let (expected, got) = rest.split_once(" got ")?;
    let reason = format!("it has {got} fields, and the first line has {expected}");
    let hint = "a text with delimiters needs quotes; `read_csv('…', delimiter => ';', quote => '|')` \
                reads files with other ones";
    Some((format!("line {line}"), String::new(), reason, hint))
}
