//! What server and workers tell each other: JSON, but for chunks.

use serde::{Deserialize, Serialize};

/// A worker introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Its name: the host's, the port it listens on, or what the user said.
    pub name: String,
    /// Where it answers: `host:port`.
    pub address: String,
    /// Threads that compute.
    pub threads: u32,
    /// Its memory limit.
    pub memory_bytes: u64,
    /// Number of its process.
    pub pid: u32,
    /// Drawn when the process started: a worker that comes back is another one.
    pub incarnation: u64,
    /// Version of the program; server and workers have the same.
    pub version: String,
}

/// The server's answer to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The worker's number; never used twice by a server.
    pub worker: u32,
    /// Milliseconds from one [`Beat`] to the next.
    pub beat_ms: u64,
}

/// What a worker says of itself from time to time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Its number.
    pub worker: u32,
    /// Its incarnation.
    pub incarnation: u64,
    /// True while it hands over what it has, to leave.
    pub draining: bool,
    /// What it does and did.
    pub load: Load,
}

/// What a worker does and did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Orders that run.
    pub orders: u64,
    /// Operands that were run since the start.
    pub operands: u64,
    /// Bytes of memory that are charged.
    pub used_bytes: u64,
    /// Chunks on the shelf, for others.
    pub chunks: u64,
    /// Bytes of these in memory, and in files.
    pub chunk_bytes: u64,
    /// Bytes of these in files.
    pub spilled_bytes: u64,
    /// Bytes of chunks that were fetched from others since the start.
    pub fetched_bytes: u64,
    /// Bytes of chunks that others fetched since the start.
    pub served_bytes: u64,
}

/// The server's answer to a [`Beat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Go on.
    Go,
    /// The server does not know this worker (any more): forget all statements and join again.
    Join,
    /// Finish and start again as a new process.
    Restart,
}
