//! Errors of running a plan.

use crate::pool::NoMemory;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use tessera_kernels::KernelError;
use tessera_planner::error::{Class, with_causes};
use tessera_planner::region::Region;
use tessera_storage::sink::SinkError;
use tessera_storage::source::SourceError;
use thiserror::Error;

/// Part of the names of stages on a matrix that is not cut: its operand does not shrink with the chunks.
pub(crate) const WHOLE: &str = "whole matrix";

/// An operand and its memory demand, as an error names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Name of the stage.
    pub stage: String,
    /// Position of the operand in its stage.
    pub index: Vec<u64>,
    /// Bytes that it needs in addition to its inputs.
    pub peak_bytes: u64,
    /// Bytes of its inputs, which stay in memory while it runs.
    pub input_bytes: u64,
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:?} needs {} bytes in addition to {} bytes of inputs",
            self.stage, self.index, self.peak_bytes, self.input_bytes
        )
    }
}

/// The operand in which a kernel failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// Name of the stage.
    pub stage: String,
    /// Position of the operand in its stage.
    pub index: Vec<u64>,
    /// Number of operands of the stage along each axis.
    pub counts: Vec<u64>,
    /// The cells of the stage's grid that it covers.
    pub region: Region,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells = self.region.start.iter().zip(&self.region.end);
        let cells: Vec<String> = cells.map(|(a, b)| format!("{a}:{b}")).collect();
        write!(
            f,
            "raised in operand `{}`, chunk {:?} of {:?}, cells [{}]",
            self.stage,
            self.index,
            self.counts,
            cells.join(", ")
        )
    }
}

impl std::error::Error for Spot {}

/// An error of running a plan.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum Error {
    /// A fault that the planner's arithmetic found.
    #[error(transparent)]
    Plan(#[from] tessera_planner::error::Error),
    /// No ready operand fits into the rest of the quota, and nothing can be evicted.
    #[error("out of memory: {used_bytes} of {limit_bytes} bytes are in use; {}", demands(worst))]
    MemoryExceeded {
        limit_bytes: u64,
        used_bytes: u64,
        /// The operands with the largest demand, the largest first.
        worst: Vec<Demand>,
    },
    #[error("a result needs {}, and the memory limit is {}", bytes(*result_bytes), bytes(*limit_bytes))]
    ResultTooLarge {
        /// Bytes of the result, with the memory held in addition to it.
        result_bytes: u64,
        limit_bytes: u64,
    },
    /// A result that is too large to wait for its reader in memory, and for which there is no scratch space.
    #[error(
        "a result of {} is too large to hold until it is read: results may use {} of memory and {} of scratch space",
        bytes(*result_bytes), bytes(*memory_bytes), bytes(*scratch_bytes)
    )]
    NoPlace { result_bytes: u64, memory_bytes: u64, scratch_bytes: u64 },
    /// Memory outside of plans that other statements hold at the moment.
    #[error(
        "out of memory: {} more needed by a statement that holds {}; {} of {} are in use",
        bytes(*wanted_bytes), bytes(*own_bytes), bytes(*used_bytes), bytes(*limit_bytes)
    )]
    MemoryTaken {
        wanted_bytes: u64,
        /// Bytes that the requester already holds.
        own_bytes: u64,
        used_bytes: u64,
        limit_bytes: u64,
    },
    /// Chunks to spill do not fit on disk.
    #[error(
        "out of scratch space: {used_bytes} of {limit_bytes} bytes are in use in {}{}: {reason}",
        directory.display(),
        wanted(*wanted_bytes)
    )]
    ScratchFull {
        directory: PathBuf,
        limit_bytes: u64,
        used_bytes: u64,
        /// Bytes of the next file; 0 if they were granted and the disk refused them.
        wanted_bytes: u64,
        reason: String,
    },
    #[error("cannot spill chunks to {}: {reason}", directory.display())]
    ScratchUnusable { directory: PathBuf, reason: String },
    #[error("a spilled chunk is corrupt: {} is not what was written", file.display())]
    ScratchCorrupt { file: PathBuf },
    /// A kernel failed: a value outside an operation's domain, an overflow.
    #[error("{fault}")]
    Kernel {
        fault: KernelError,
        /// The operand that ran it; `None` until the error leaves the operand.
        #[source]
        operand: Option<Box<Spot>>,
    },
    /// A source could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A result could not be written.
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("the statement was cancelled")]
    Cancelled,
    #[error("stage {stage} has more than 2^63 chunks")]
    TooManyChunks { stage: String },
    /// So many chunks that their bookkeeping takes too much memory.
    #[error(
        "too many small chunks: {chunks} at a time need {} of bookkeeping (limit {})",
        bytes(*bytes_), bytes(*limit_bytes)
    )]
    ChunkNotes { chunks: u64, bytes_: u64, limit_bytes: u64 },
    /// A result in more chunks than can be listed.
    #[error("the result has too many chunks: {chunks} (limit {limit})")]
    ResultChunks { chunks: u64, limit: u64 },
    #[error("the receiver of the result disconnected: {reason}")]
    ReceiverGone { reason: String },
    /// Rows that do not make a tensor.
    #[error("{message}")]
    Rows {
        /// `duplicate_key`, `null_key` or `dtype_mismatch`.
        code: &'static str,
        message: String,
        hint: Option<String>,
    },
    /// An error that another process reported for an operand that it ran.
    #[error("{0}")]
    Reported(Box<ErrorReport>),
    /// A process that holds chunks, or was assigned to make them, does not respond; others may.
    #[error("{party} does not respond: {reason}")]
    PartyLost { party: String, reason: String },
    /// The system refused memory for an operand, though the quota had room.
    #[error("out of memory: the system refused {} more for {operand}", bytes(*wanted_bytes))]
    MemoryRefused { operand: String, wanted_bytes: u64 },
    #[error("{operand} panicked: {message}")]
    Panicked { operand: String, message: String },
    /// An internal invariant is violated.
    #[error("{what}")]
    Broken { what: String },
}

/// An error as another process reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// Its stable name.
    pub code: String,
    /// Class of the error: the party that has to act.
    pub class: Class,
    /// The message, with its causes.
    pub message: String,
    /// The remedy.
    pub hint: Option<String>,
    /// True if the refused memory is available once nothing else uses it.
    pub may_fit: bool,
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<&Error> for ErrorReport {
    fn from(error: &Error) -> Self {
        ErrorReport {
            code: error.code().into(),
            class: error.class(),
            message: with_causes(error),
            hint: error.hint(),
            may_fit: error.may_fit(),
        }
    }
}

impl From<KernelError> for Error {
    fn from(e: KernelError) -> Self {
        match e {
            KernelError::Cancelled => Error::Cancelled,
            fault => Error::Kernel { fault, operand: None },
        }
    }
}

impl Error {
    /// Converts the panic of an operand to an error.
    pub fn of_panic(operand: String, payload: &(dyn std::any::Any + Send)) -> Self {
        match payload.downcast_ref::<NoMemory>() {
            Some(NoMemory { bytes }) => {
                Error::MemoryRefused { operand, wanted_bytes: *bytes as u64 }
            }
            None => Error::Panicked { operand, message: panic_message(payload) },
        }
    }

    /// An error with a code of its own, which is not for want of memory.
    pub fn reported(code: &str, class: Class, message: String, hint: Option<String>) -> Self {
        let report = ErrorReport { code: code.into(), class, message, hint, may_fit: false };
        Error::Reported(Box::new(report))
    }

    /// Adds the failed operand to a kernel's error.
    pub(crate) fn met_in(self, spot: impl FnOnce() -> Spot) -> Self {
        match self {
            Error::Kernel { fault, operand: None } => {
                Error::Kernel { fault, operand: Some(Box::new(spot())) }
            }
            other => other,
        }
    }

    /// Stable name for programs.
    pub fn code(&self) -> &str {
        match self {
            Error::Plan(e) => e.code(),
            Error::Reported(report) => &report.code,
            Error::PartyLost { .. } => "worker_lost",
            Error::MemoryExceeded { .. }
            | Error::ResultTooLarge { .. }
            | Error::NoPlace { .. }
            | Error::MemoryTaken { .. }
            | Error::ChunkNotes { .. }
            | Error::MemoryRefused { .. } => "memory_exceeded",
            Error::ScratchFull { .. } => "scratch_full",
            Error::ScratchUnusable { .. } => "scratch_unusable",
            Error::ScratchCorrupt { .. } => "scratch_corrupt",
            Error::Kernel { fault, .. } => fault.code(),
            Error::Source(e) => e.code(),
            Error::Sink(e) => e.code(),
            Error::Cancelled => "cancelled",
            Error::TooManyChunks { .. } | Error::ResultChunks { .. } => "too_large",
            Error::ReceiverGone { .. } => "receiver_gone",
            Error::Rows { code, .. } => code,
            Error::Panicked { .. } | Error::Broken { .. } => "internal",
        }
    }

    /// Class of the error: the party that has to act.
    pub fn class(&self) -> Class {
        match self {
            Error::Plan(e) => e.class(),
            Error::Reported(report) => report.class,
            Error::Kernel { fault, .. } => fault.class(),
            Error::Source(e) => e.class(),
            Error::Sink(e) => e.class(),
            Error::MemoryExceeded { .. }
            | Error::ResultTooLarge { .. }
            | Error::NoPlace { .. }
            | Error::MemoryTaken { .. }
            | Error::MemoryRefused { .. }
            | Error::ChunkNotes { .. }
            | Error::ScratchFull { .. }
            | Error::TooManyChunks { .. }
            | Error::ResultChunks { .. } => Class::Limit,
            Error::Cancelled
            | Error::ReceiverGone { .. }
            | Error::Rows { .. }
            | Error::ScratchUnusable { .. } => Class::User,
            Error::PartyLost { .. } | Error::ScratchCorrupt { .. } => Class::Retry,
            Error::Panicked { .. } | Error::Broken { .. } => Class::Internal,
        }
    }

    /// True if the refused memory is available once nothing else uses it: a retry alone may succeed.
    pub fn may_fit(&self) -> bool {
        match self {
            Error::MemoryTaken { .. } | Error::MemoryRefused { .. } => true,
            Error::Reported(report) => report.may_fit,
            Error::MemoryExceeded { limit_bytes, worst, .. } => {
                worst.iter().all(|d| d.peak_bytes.saturating_add(d.input_bytes) <= *limit_bytes)
            }
            Error::Sink(e) => e.may_fit(),
            _ => false,
        }
    }

    /// The remedy, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Error::Plan(e) => e.hint(),
            Error::Reported(report) => report.hint.clone(),
            Error::PartyLost { .. } => Some("try again later; `SHOW WORKERS` lists the workers".into()),
            Error::MemoryExceeded { worst, .. }
                if worst.iter().any(|demand| demand.stage.contains(WHOLE)) =>
            {
                Some(
                    "a matrix is factored whole, smaller chunks do not help: use float32 or fewer \
                     columns, ask for fewer parts, or give it more memory (`--memory-limit`, `SET tessera.query_memory_limit`)"
                        .into(),
                )
            }
            Error::ChunkNotes { .. } => Some(
                "use larger chunks (`SET tessera.chunk_bytes_target`, `rechunk`, `chunks =>`), or give it more memory \
                 (`--memory-limit`, `SET tessera.query_memory_limit`)"
                    .into(),
            ),
            Error::MemoryExceeded { .. } => Some(
                "use smaller chunks (`SET tessera.chunk_bytes_target`, `chunks =>`), or give it more \
                 memory (`--memory-limit`, `SET tessera.query_memory_limit`)"
                    .into(),
            ),
            Error::ResultTooLarge { .. } | Error::MemoryTaken { .. } => {
                Some("ask for a slice or a reduction, or raise `--memory-limit` or the session's `tessera.query_memory_limit`".into())
            }
            Error::MemoryRefused { .. } => Some(
                "lower --memory-limit to what the process may have, or let it have more (`ulimit -v`)".into(),
            ),
            Error::NoPlace { .. } => Some(
                "ask for a slice or a reduction, write it with COPY, or raise --spill-limit or --memory-limit".into(),
            ),
            Error::ScratchFull { .. } => Some(
                "raise --spill-limit or --memory-limit, or put --spill-dir on a larger disk".into(),
            ),
            Error::ScratchUnusable { .. } => {
                Some("give a directory that can be written to as --spill-dir".into())
            }
            Error::ScratchCorrupt { .. } => {
                Some("try again; if it happens again, the disk of --spill-dir is at fault".into())
            }
            Error::Kernel { fault, .. } => fault.hint(),
            Error::Source(e) => e.hint(),
            Error::Sink(e) => e.hint(),
            Error::TooManyChunks { .. } | Error::ResultChunks { .. } => {
                Some("use larger chunks".into())
            }
            Error::Panicked { .. } | Error::Broken { .. } => {
                Some("this is a fault in Tessera; please report the query".into())
            }
            Error::Rows { hint, .. } => hint.clone(),
            Error::Cancelled | Error::ReceiverGone { .. } => None,
        }
    }
}

fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(s), _) => (*s).to_owned(),
        (_, Some(s)) => s.clone(),
        _ => "no message".to_owned(),
    }
}

/// `1.2 MiB (1296115 bytes)`: two different numbers look different.
fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} bytes"),
        _ => format!("{} ({n} bytes)", tessera_planner::explain::bytes(n)),
    }
}

fn wanted(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        n => format!(", and {n} more are wanted"),
    }
}

fn demands(worst: &[Demand]) -> String {
    worst.iter().map(Demand::to_string).collect::<Vec<_>>().join("; ")
}
