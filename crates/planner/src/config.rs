//! The numbers that shape plans.

use serde::{Deserialize, Serialize};

/// Settings that plans depend on besides the query. [`Config::chunk_bytes_target`] is part of the logical grid's
/// contract: the same target gives the same bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Target size of a chunk in bytes, where neither a source nor `chunks =>` sets one.
    pub chunk_bytes_target: u64,
    /// Cells that an operand of a reduction processes together if its chunks are smaller: 0 for one chunk per operand,
    /// `None` to decide by cost. It changes no bit.
    pub batch_cells: Option<u64>,
    /// Bytes of files that the operating system caches, so that repeated small reads are cheap. It changes no bit.
    pub cached_bytes: u64,
    /// Upper bound on the bytes of position lists in a plan. It changes no bit.
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
