//! Errors of tables and of rows.
//!
//! DataFusion's operators wrap errors of this project, sometimes for several readers. [`Error`] preserves their types.

mod types;

pub use types::{column_type, type_name};
pub(crate) use types::{spoken, spoken_in, spoken_in_casts};

use crate::rows::BoxError;
use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use tessera_exec::error::{Error as ExecError, ErrorReport};
use tessera_planner::error::{Class, causes_through_io, with_causes};
use tessera_storage::source::{SourceError, passing};

/// Why a table could not be opened, or rows could not be planned or computed.
#[derive(Debug)]
pub enum Error {
    /// An error of this project that DataFusion passed on: from a scan's runner, exec or the frontend.
    Inner(BoxError),
    /// An error that several operators share.
    Shared {
        /// The shared error. An error of this project may be among its sources.
        error: Arc<dyn StdError + Send + Sync>,
        /// The error to report if no error of this project is among the sources.
        otherwise: Box<Error>,
    },
    /// An error of storage.
    Storage(SourceError),
    /// An error of DataFusion.
    Rows {
        /// DataFusion's message.
        message: String,
        /// True if it ran out of memory.
        memory: bool,
    },
    /// A file that is not a table of its format.
    Table {
        /// Its URL, without parts that may be secret.
        url: String,
        /// The format.
        format: &'static str,
        /// DataFusion's message.
        reason: String,
    },
    /// Timeout while the columns of a table were read.
    Timeout {
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// The threads for rows cannot be started.
    Threads(io::Error),
}

impl Error {
    /// The error of storage among the causes of an error, else its message.
    pub fn caused(message: String, error: &(dyn StdError + 'static)) -> Self {
        match passing(error) {
            Some(storage) => Error::Storage(storage),
            None => Error::Rows { message: worded(plain(&message)), memory: false },
        }
    }
}

impl Error {
    /// The report of the error: its code, its class, its message with the causes, and what to do. A server and a worker
    /// report the same error in the same words.
    pub fn report(&self) -> ErrorReport {
        match self {
            Error::Inner(inner) => match of_ours(&**inner) {
                Some(report) => report,
                None => Error::caused(inner.to_string(), &**inner).report(),
            },
            Error::Shared { error, otherwise } => {
                ours_among(&**error).unwrap_or_else(|| otherwise.report())
            }
            Error::Storage(error) => of_storage(error),
            Error::Rows { message, memory } => {
                let kind = RowsErrorKind::of(message, *memory);
                ErrorReport {
                    may_fit: kind.may_fit(),
                    ..report(kind.code(), kind.class(), message.clone(), kind.hint())
                }
            }
            Error::Table { url, format, reason } => report(
                NOT_A_TABLE,
                Class::User,
                format!("`{url}` cannot be read as {format}: {}", table_reason(reason)),
                Some(table_hint(format)),
            ),
            Error::Timeout { limit_s } => {
                let message = format!("the query took longer than {limit_s} s and was cancelled");
                report("timeout", Class::Limit, message, None)
            }
            Error::Threads(error) => {
                let message = format!("cannot start threads for rows: {error}");
                report("io", Class::Internal, message, None)
            }
        }
    }
}

/// Prefixes that name the failed stage in messages of DataFusion and Arrow. Error codes already name the stage.
const STAGES: [&str; 9] = [
    "Execution error: ",
    "Error during planning: ",
    "External error: ",
    "Arrow error: ",
    "Ipc error: ",
    "Parquet argument error: ",
    "Parquet error: ",
    "Invalid argument error: ",
    "This feature is not implemented: ",
];

/// Removes the prefix for the failed stage from a message.
pub(crate) fn plain(message: &str) -> &str {
    let mut text = message;
    while let Some(rest) = STAGES.iter().find_map(|stage| text.strip_prefix(stage)) {
        text = rest;
    }
    // The text after Arrow's prefix is a whole sentence.
    match text.strip_prefix("Cast error: ") {
        Some(rest) if rest.starts_with("Can't cast value ") => rest,
        _ => text,
    }
}

/// Rewords a message of Arrow or DataFusion about a value; other messages are unchanged.
pub(crate) fn worded(message: &str) -> String {
    if message == "Divide by zero error" {
        return "an integer was divided by zero".to_string();
    }
    if message == "Scalar subquery returned more than one row" {
        return "a scalar subquery returned more than one row".to_string();
    }
    conversion(message).unwrap_or_else(|| spoken_in(message))
}

/// The message for a value that does not convert to a type, from Arrow's.
pub(crate) fn conversion(message: &str) -> Option<String> {
    let text = message.strip_prefix("Cast error: ").unwrap_or(message);
    if let Some(text) = text.strip_prefix("Can't cast value ") {
        let (value, to) = text.rsplit_once(" to type ")?;
        return Some(format!("{value} is out of range of {}", spoken_in_casts(to)));
    }
    let unsupported = text.strip_prefix("Unsupported CAST from ");
    let casting = || text.strip_prefix("Casting from ")?.strip_suffix(" not supported");
    if let Some(types) = unsupported.or_else(casting) {
        let (from, to) = types.split_once(" to ")?;
        return Some(format!(
            "cannot convert {} to {}",
            spoken_in_casts(from),
            spoken_in_casts(to)
        ));
    }
    if let Some(text) = text.strip_prefix("Cannot cast to ")
        && let Some((to, value)) = text.split_once(". Overflowing on ")
    {
        return Some(format!("{value} is out of range of {}", spoken_in_casts(to)));
    }
    for (bound, last) in
        [(" is too large to store in a ", "Max"), (" is too small to store in a ", "Min")]
    {
        let text = text.strip_prefix("Invalid argument error: ").unwrap_or(text);
        if let Some((value, text)) = text.split_once(bound)
            && let Some((_, text)) = text.split_once(" of precision ")
            && let Some((digits, most)) = text.split_once(&format!(". {last} is "))
        {
            return Some(format!(
                "{value} is out of range of a decimal of {digits} digits, up to {most}"
            ));
        }
    }
    if let Some(text) = text.strip_prefix("Parser error: Error parsing timestamp from '") {
        let (value, _) = text.rsplit_once("': ")?;
        return Some(format!("cannot convert '{value}' to timestamp"));
    }
    let (value, to) = text.strip_prefix("Cannot cast string '")?.rsplit_once("' to value of ")?;
    let to = to.strip_suffix(" type").unwrap_or(to);
    Some(format!("cannot convert '{value}' to {}", spoken_in_casts(to)))
}

/// Why a file is not a table of its format, from DataFusion's message.
pub fn table_reason(message: &str) -> &str {
    let text = plain(message);
    match text.starts_with("No files found at ") {
        true => "the directory has no files of this format",
        false => text,
    }
}

/// The code of a file that is not a table of its format.
pub const NOT_A_TABLE: &str = "not_a_table";

/// What to do about a file that is not a table of its format.
pub fn table_hint(format: &str) -> &'static str {
    match format {
        "NDJSON" => "the file must contain one JSON object per line, or be one array of objects",
        _ => {
            "if the file name does not show the format, use read_parquet, read_csv, read_json or read_arrow"
        }
    }
}

/// The cause of an error of DataFusion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsErrorKind {
    /// It ran out of memory.
    Memory,
    /// An integer was divided by 0.
    ZeroDivision,
    /// A value did not convert to another type.
    Conversion,
    /// A number is outside of the range of another type.
    Range,
    /// A scalar subquery has several rows.
    SeveralRows,
    /// Anything else.
    Other,
}

impl RowsErrorKind {
    /// The kind of an error with that message; `memory` if it ran out of memory.
    pub fn of(message: &str, memory: bool) -> Self {
        match memory {
            true => Self::Memory,
            // Only the message identifies Arrow's error.
            false if message.to_ascii_lowercase().contains("divide by zero") => Self::ZeroDivision,
            false if message.contains("an integer was divided by zero") => Self::ZeroDivision,
            false if message.contains("Cannot cast ") || message.contains("cannot convert '") => {
                Self::Conversion
            }
            false if message.contains("Can't cast value ") => Self::Range,
            false if message.contains(" is out of range of ") => Self::Range,
            false if message.contains("a scalar subquery returned ") => Self::SeveralRows,
            false => Self::Other,
        }
    }

    /// A short, stable, machine-readable name.
    pub fn code(self) -> &'static str {
        match self {
            Self::Memory => "memory_exceeded",
            Self::ZeroDivision => "division_by_zero",
            Self::Conversion | Self::Range | Self::SeveralRows | Self::Other => "execution",
        }
    }

    /// The party that has to act on the error.
    pub fn class(self) -> Class {
        match self {
            Self::Memory => Class::Limit,
            Self::ZeroDivision
            | Self::Conversion
            | Self::Range
            | Self::SeveralRows
            | Self::Other => Class::User,
        }
    }

    /// How to fix it, if known.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::Memory => {
                Some("ask for fewer rows (LIMIT, WHERE, GROUP BY), or raise --memory-limit")
            }
            Self::ZeroDivision => Some(
                "`nullif(divisor, 0)` makes the result NULL, `x::double` makes it infinity or NaN",
            ),
            Self::Conversion => {
                Some("`try_cast(x AS type)` returns NULL for values that do not convert")
            }
            Self::Range => Some(
                "`try_cast(x AS type)` returns NULL for values out of range; a `uint64` next to a signed number becomes `int64`: write the number as `10::uint64`, or convert with `x::double`",
            ),
            Self::SeveralRows => Some(
                "aggregate it, as in `(SELECT max(v) FROM b)`, or select one row: `(SELECT v FROM b ORDER BY time DESC LIMIT 1)`",
            ),
            Self::Other => None,
        }
    }

    /// True if the statement may succeed while no other statement uses memory: its budget for rows is a part of the
    /// memory limit.
    pub fn may_fit(self) -> bool {
        self == Self::Memory
    }
}

fn report(code: &str, class: Class, message: String, hint: Option<&str>) -> ErrorReport {
    ErrorReport { code: code.into(), class, message, hint: hint.map(Into::into), may_fit: false }
}

/// The report of an error of this project; `None` for others.
fn of_ours(error: &(dyn StdError + 'static)) -> Option<ErrorReport> {
    if let Some(ours) = error.downcast_ref::<ExecError>() {
        return Some(ErrorReport::from(ours));
    }
    if let Some(ours) = error.downcast_ref::<tessera_frontend::Error>() {
        let report = report(ours.code(), ours.class(), with_causes(ours), None);
        return Some(ErrorReport { hint: ours.hint(), ..report });
    }
    error.downcast_ref::<SourceError>().map(of_storage)
}

/// The report of the first error of exec or of the frontend among an error and its causes.
fn ours_among(error: &(dyn StdError + 'static)) -> Option<ErrorReport> {
    let is_ours =
        |e: &&(dyn StdError + 'static)| e.is::<ExecError>() || e.is::<tessera_frontend::Error>();
    causes_through_io(error).find(is_ours).and_then(of_ours)
}

fn of_storage(error: &SourceError) -> ErrorReport {
    let report = report(error.code(), error.class(), with_causes(error), None);
    ErrorReport { hint: error.hint(), ..report }
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        let memory = |message| Error::Rows { message, memory: true };
        match error {
            DataFusionError::External(inner) => match inner.downcast::<DataFusionError>() {
                Ok(nested) => Error::from(*nested),
                Err(inner) => Error::Inner(inner),
            },
            DataFusionError::Context(_, inner) => Error::from(*inner),
            DataFusionError::ArrowError(e, _) => match *e {
                ArrowError::ExternalError(inner) => Error::from(DataFusionError::External(inner)),
                ArrowError::IoError(_, e) if e.get_ref().is_some_and(|e| e.is::<ExecError>()) => {
                    Error::from(DataFusionError::IoError(e))
                }
                other => Error::caused(other.to_string(), &other),
            },
            DataFusionError::Shared(e) => match Arc::try_unwrap(e) {
                Ok(e) => Error::from(e),
                Err(error) => {
                    let otherwise = Box::new(match exhausted(error.find_root()) {
                        Some(message) => memory(message),
                        None => Error::caused(error.to_string(), &error),
                    });
                    Error::Shared { error, otherwise }
                }
            },
            // Files of this project return their errors through interfaces that only take `io::Error`.
            DataFusionError::IoError(e) => match e.downcast::<ExecError>() {
                Ok(ours) => Error::Inner(Box::new(ours)),
                Err(e) => {
                    let other = DataFusionError::IoError(e);
                    Error::caused(other.strip_backtrace(), &other)
                }
            },
            other => match exhausted(&other) {
                Some(message) => memory(message),
                None => Error::caused(other.strip_backtrace(), &other),
            },
        }
    }
}

/// What did not fit into memory; `None` for other errors.
fn exhausted(error: &DataFusionError) -> Option<String> {
    match error {
        DataFusionError::ResourcesExhausted(message) => Some(message.clone()),
        // DataFusion's join of all pairs reads a side again to spill it.
        DataFusionError::Internal(message) if message.starts_with("Left side produced no data") => {
            Some("a side of a join without `=` does not fit".to_string())
        }
        _ => None,
    }
}

impl From<tessera_frontend::Error> for Error {
    fn from(error: tessera_frontend::Error) -> Self {
        Error::Inner(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "tests")]
    use super::*;

    #[test]
    fn errors_of_this_project_keep_their_types() {
        let ours = || DataFusionError::External(Box::new(ExecError::Cancelled));
        for error in [
            ours(),
            ours().context("reading"),
            DataFusionError::External(Box::new(ours())),
            DataFusionError::from(ArrowError::ExternalError(Box::new(ExecError::Cancelled))),
            DataFusionError::IoError(io::Error::other(ExecError::Cancelled)),
            DataFusionError::Shared(Arc::new(ours())),
        ] {
            let Error::Inner(inner) = Error::from(error) else { panic!("another error") };
            assert!(inner.is::<ExecError>(), "{inner}");
        }
        let full = || DataFusionError::ResourcesExhausted("all in use".into());
        let held = Arc::new(full());
        let shared = Error::from(DataFusionError::Shared(held.clone()));
        let Error::Shared { otherwise, .. } = shared else { panic!("{shared:?}") };
        for error in [Error::from(full()), *otherwise] {
            let is_memory =
                matches!(&error, Error::Rows { message, memory: true } if message == "all in use");
            assert!(is_memory, "{error:?}");
        }
        let other = Error::from(DataFusionError::Execution("no such row".into()));
        assert!(matches!(other, Error::Rows { memory: false, .. }), "{other:?}");
    }

    #[test]
    fn messages_lose_the_stages_of_other_projects() {
        assert_eq!(plain("Execution error: Error during planning: x: y"), "x: y");
        assert_eq!(plain("Parquet error: Parquet error: too short"), "too short");
        assert_eq!(plain("no such row"), "no such row");
        let range = "Can't cast value 300 to type Int8";
        assert_eq!(plain(&format!("Arrow error: Cast error: {range}")), range);
        assert_eq!(worded(range), "300 is out of range of tinyint");
        let text = "Cast error: Cannot cast string 'it's' to value of Float64 type";
        assert_eq!(worded(text), "cannot convert 'it's' to double");
        let text = "Cast error: Cannot cast string 'a' to value of Date32 type";
        assert_eq!(worded(text), "cannot convert 'a' to date");
        let text = "Cast error: Casting from Date32 to Time64(ns) not supported";
        assert_eq!(worded(text), "cannot convert date to time");
        let text = "Cast error: Cannot cast to Decimal128(5, 2). Overflowing on 123456.0";
        assert_eq!(worded(text), "123456.0 is out of range of decimal(5, 2)");
        let text = "12345.67 is too large to store in a Decimal128 of precision 5. Max is 999.99";
        let told = "12345.67 is out of range of a decimal of 5 digits, up to 999.99";
        assert_eq!(worded(text), told);
        let time = "Parser error: Error parsing timestamp from 'a': error parsing date";
        assert_eq!(worded(time), "cannot convert 'a' to timestamp");
        assert_eq!(worded("Divide by zero error"), "an integer was divided by zero");
        let none = "Error during planning: No files found at table-0:///d/. Cannot infer";
        assert_eq!(table_reason(none), "the directory has no files of this format");
    }

    #[test]
    fn reports_have_the_codes_of_their_errors() {
        let of = |error: DataFusionError| {
            let report = Error::from(error).report();
            (report.code, report.class, report.may_fit)
        };
        let full = || DataFusionError::ResourcesExhausted("all in use".into());
        assert_eq!(of(full()), ("memory_exceeded".into(), Class::Limit, true));
        let held = Arc::new(full());
        let shared = DataFusionError::Shared(held.clone());
        assert_eq!(of(shared), ("memory_exceeded".into(), Class::Limit, true));
        let zero = DataFusionError::from(ArrowError::DivideByZero);
        assert_eq!(of(zero), ("division_by_zero".into(), Class::User, false));
        let cast = ArrowError::CastError("Cannot cast string 'a' to value of Int32 type".into());
        let report = Error::from(DataFusionError::from(cast)).report();
        assert!(report.hint.is_some_and(|hint| hint.contains("try_cast")));
        let range = "Can't cast value 14258550447278476378 to type Int64";
        let report =
            Error::from(DataFusionError::from(ArrowError::CastError(range.into()))).report();
        assert!(report.hint.is_some_and(|hint| hint.contains("10::uint64")));
        let other = DataFusionError::Execution("no such row".into());
        assert_eq!(of(other), ("execution".into(), Class::User, false));
        let ours = || ExecError::Broken { what: "on purpose".into() };
        let expected = ErrorReport::from(&ours());
        for error in [
            DataFusionError::External(Box::new(ours())),
            DataFusionError::Shared(Arc::new(DataFusionError::External(Box::new(ours())))),
        ] {
            assert_eq!(Error::from(error).report(), expected);
        }
        let nested = Arc::new(DataFusionError::External(Box::new(ours())));
        let error = DataFusionError::Shared(nested.clone());
        assert_eq!(Error::from(error).report(), expected);
        let changed = SourceError::Changed { what: "a.parquet".into() };
        let report = Error::from(DataFusionError::External(Box::new(changed.clone()))).report();
        assert_eq!((report.code.as_str(), report.class), (changed.code(), changed.class()));
        let cells = tessera_frontend::Error::cells("integer_overflow", "sum", None)
            .with_hint("sum `x::double` instead");
        let report = Error::from(cells).report();
        assert_eq!(report.code, "integer_overflow");
        assert_eq!(report.hint.as_deref(), Some("sum `x::double` instead"));
    }
}
