//! The numbers that shape plans.

use serde::{Deserialize, Serialize};

/// What plans depend on besides the query. All of it is part of the logical grid's contract: the same configuration
/// gives the same bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Bytes that a chunk aims at where no source and no `chunks =>` says otherwise.
    pub chunk_bytes_target: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { chunk_bytes_target: 8 << 20 }
    }
}
