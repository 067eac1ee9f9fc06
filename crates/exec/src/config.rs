//! The numbers that bound a runtime.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a runtime may use. None of it changes the bits of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Threads that compute; at least 1.
    pub threads: usize,
    /// Bytes that all statements together may hold.
    pub quota_bytes_max: u64,
    /// Bytes of freed buffers that are kept for the next operand. They are given up before a reservation fails.
    pub pool_bytes_max: u64,
    /// Where a directory for spilled chunks is made; the system's directory for temporary files if not given.
    pub spill_dir: Option<PathBuf>,
    /// Bytes that spilled chunks may take there; 0 keeps all chunks in memory.
    pub spill_bytes_max: u64,
    /// Reads from sources under way at a time, for each statement.
    pub fetches_max: usize,
    /// How often an operand is run again after an error of class `retry`.
    pub retries_max: u32,
    /// Wait before the first retry; it doubles each time.
    pub retry_backoff_ms: u64,
    /// How long a statement waits for memory that clients hold before it fails.
    pub stall_timeout_ms: u64,
    /// Source chunks that are kept although nothing that is known asks for them.
    pub idle_chunks_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            quota_bytes_max: 2 << 30,
            pool_bytes_max: 512 << 20,
            spill_dir: None,
            spill_bytes_max: 0,
            fetches_max: 32,
            retries_max: 3,
            retry_backoff_ms: 50,
            stall_timeout_ms: 30_000,
            idle_chunks_max: 1 << 16,
        }
    }
}
