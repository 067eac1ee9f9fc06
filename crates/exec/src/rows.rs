//! The answers of a task of rows: `cells` writes and reads them, and `cluster` carries them.
//!
//! ```text
//!   first byte   0 piece of a batch · 1 last piece of one batch · 2 RowsRuns · 3 RowsDone · 4 the stage is unknown
//!                5 RowsPart, before the batches of a part that a worker keeps for another one, or of its samples
//! ```

use serde::{Deserialize, Serialize};

/// First byte of a piece of a batch, of which more follow.
pub const ROWS_PIECE: u8 = 0;
/// First byte of the last piece of one batch.
pub const ROWS_BATCH: u8 = 1;
/// First byte of a [`RowsRuns`] in postcard.
pub const ROWS_RUNS: u8 = 2;
/// First byte of a [`RowsDone`] in postcard: the only proof that a task has ended.
pub const ROWS_DONE: u8 = 3;
/// The only byte of the answer of a worker that does not know the stage and got no plan.
pub const ROWS_LACKS: u8 = 4;

/// First byte of a [`RowsPart`] in postcard.
pub const ROWS_PART: u8 = 5;

/// Code of the error of a task whose worker does not get the rows that another worker keeps. The hint is the address of
/// the other worker.
pub const ROWS_HOLDER_LOST: &str = "holder_lost";

/// Code of the error of a worker that cannot run a task because other versions of the libraries compute its rows.
pub const ROWS_REFUSED: &str = "refused";

/// Upper bound on the bytes of one batch, which its reader holds until its last piece has arrived.
pub const ROWS_BATCH_BYTES_MAX: usize = 256 << 20;

/// The rows of a part that a worker keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsPart {
    /// Rows.
    pub rows: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Rows of the parts before that this worker keeps.
    pub before: u64,
    /// The bits that the hashes of their keys choose, if parts have whole keys: few bits are few keys.
    pub key_bits: u64,
}

/// The progress of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsRuns {
    /// Rows computed.
    pub rows: u64,
    /// Seconds since it started.
    pub seconds: f64,
}

/// The end of a task that sent all of its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RowsDone {
    /// Rows sent.
    pub rows: u64,
    /// Batches sent.
    pub batches: u64,
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Largest memory of the stage, in bytes, that the task saw after one of its batches.
    pub peak_bytes: u64,
}
