//! Errors of tables and of rows.
//!
//! DataFusion's operators pass errors of this project on, some of them to several readers. They keep their types.

use crate::rows::BoxError;
use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use tessera_exec::error::Error as ExecError;
use tessera_storage::source::{SourceError, passing};

/// Why a table could not be opened, or rows could not be planned or computed.
#[derive(Debug)]
pub enum Error {
    /// An error that DataFusion passed on in its own type: of a scan's runner, of exec, of the frontend.
    Inner(BoxError),
    /// An error that several operators share.
    Shared {
        /// The error, which may have one in its own type among its sources.
        error: Arc<dyn StdError + Send + Sync>,
        /// The error to report if it has not.
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
            None => Error::Rows { message, memory: false },
        }
    }
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::External(inner) => match inner.downcast::<DataFusionError>() {
                Ok(nested) => Error::from(*nested),
                Err(inner) => Error::Inner(inner),
            },
            DataFusionError::Context(_, inner) => Error::from(*inner),
            DataFusionError::ArrowError(e, _) => Error::from(*e),
            DataFusionError::Shared(e) => match Arc::try_unwrap(e) {
                Ok(e) => Error::from(e),
                Err(error) => {
                    let otherwise = Box::new(match error.find_root() {
                        DataFusionError::ResourcesExhausted(message) => out_of_memory(message),
                        _ => Error::caused(error.to_string(), &error),
                    });
                    Error::Shared { error, otherwise }
                }
            },
            // Our files report errors to code that only knows errors of files.
            DataFusionError::IoError(e) => match e.downcast::<ExecError>() {
                Ok(ours) => Error::Inner(Box::new(ours)),
                Err(e) => other(&DataFusionError::IoError(e)),
            },
            DataFusionError::ResourcesExhausted(message) => out_of_memory(&message),
            error => other(&error),
        }
    }
}

fn out_of_memory(message: &str) -> Error {
    Error::Rows { message: message.to_string(), memory: true }
}

fn other(error: &DataFusionError) -> Error {
    Error::caused(error.strip_backtrace(), error)
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        let error = match error {
            ArrowError::ExternalError(inner) => {
                return Error::from(DataFusionError::External(inner));
            }
            ArrowError::IoError(message, e) => match e.downcast::<ExecError>() {
                Ok(ours) => return Error::Inner(Box::new(ours)),
                Err(e) => ArrowError::IoError(message, e),
            },
            error => error,
        };
        Error::caused(error.to_string(), &error)
    }
}

impl From<SourceError> for Error {
    fn from(error: SourceError) -> Self {
        Error::Storage(error)
    }
}

impl From<tessera_frontend::Error> for Error {
    fn from(error: tessera_frontend::Error) -> Self {
        Error::Inner(Box::new(error))
    }
}
