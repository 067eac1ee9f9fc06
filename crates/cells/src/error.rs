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
                    let otherwise = Box::new(match error.find_root() {
                        DataFusionError::ResourcesExhausted(message) => memory(message.clone()),
                        _ => Error::caused(error.to_string(), &error),
                    });
                    Error::Shared { error, otherwise }
                }
            },
            // Our files report errors to code that only knows errors of files.
            DataFusionError::IoError(e) => match e.downcast::<ExecError>() {
                Ok(ours) => Error::Inner(Box::new(ours)),
                Err(e) => {
                    let other = DataFusionError::IoError(e);
                    Error::caused(other.strip_backtrace(), &other)
                }
            },
            DataFusionError::ResourcesExhausted(message) => memory(message),
            other => Error::caused(other.strip_backtrace(), &other),
        }
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
}
