//! The numbers that shape plans.

use serde::{Deserialize, Serialize};

/// What plans depend on besides the query. [`Config::chunk_bytes_target`] is part of the logical grid's contract: the
/// same gives the same bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Bytes that a chunk aims at where no source and no `chunks =>` says otherwise.
    pub chunk_bytes_target: u64,
    /// Cells that an operand of a reduction takes together if its chunks are smaller than that: 0 for one chunk an
    /// operand, `None` for as many as are worth it by their cost. It changes no bit.
    pub batch_cells: Option<u64>,
    /// Bytes of files that the system keeps in its memory, so that they may be read in small pieces again and again.
    /// It changes no bit.
    pub cached_bytes: u64,
    /// Bytes of the lists of positions that a plan may hold. It changes no bit.
    pub list_bytes_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            chunk_bytes_target: 8 << 20,
            batch_cells: None,
            cached_bytes: 1 << 30,
            list_bytes_max: u64::MAX,
        }
    }
}
