//! Resource limits of a runtime.

use crate::chunk::ipc::Compression;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Resource limits of a runtime. They do not change the bits of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Threads that compute; at least 1.
    pub threads: usize,
    /// Upper bound on the bytes of all statements together.
    pub quota_bytes_max: u64,
    /// Upper bound on the bytes of freed buffers that are retained for reuse. They are freed before a reservation
    /// fails.
    pub pool_bytes_max: u64,
    /// Parent of the directory for spilled chunks; the system's directory for temporary files if not given.
    pub spill_dir: Option<PathBuf>,
    /// Disk space for spilled chunks, in bytes; 0 disables spilling.
    pub spill_bytes_max: u64,
    /// Upper bound on concurrent reads from sources, for each statement.
    pub fetches_max: usize,
    /// Number of retries of an operand after an error of class `retry`.
    pub retries_max: u32,
    /// Backoff before the first retry; it doubles each time.
    pub retry_backoff_ms: u64,
    /// Time that a statement waits for memory that clients hold before it fails.
    pub stall_timeout_ms: u64,
    /// Number of source chunks retained although no known operand reads them.
    pub idle_chunks_max: usize,
    /// How chunks that are sent or stored are compressed.
    pub compression: Compression,
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
            compression: Compression::None,
        }
    }
}
