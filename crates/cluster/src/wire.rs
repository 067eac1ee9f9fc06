//! What server and workers tell each other: JSON, but for chunks.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tessera_exec::error::Told;
use tessera_exec::task::SourceLocation;
use tessera_planner::catalog::SourceRef;
use tessera_planner::plan::{Plan, StageId};
use tessera_planner::recover::Bitmap;

/// The address of the server, among those of parties that have chunks: a worker knows where it joined.
pub const THE_SERVER: &str = "server";

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
    /// Drawn by the process that looks after it, if there is one, when it started this one.
    pub supervisor: Option<u64>,
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
    /// Addresses of parties that it does not reach, though the server does.
    pub apart: Vec<String>,
}

/// Whoever looks after a worker asks what the worker itself may not hear any more.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Watch {
    /// The number of [`Hello::supervisor`].
    pub supervisor: u64,
}

/// The server's answer to a [`Beat`], and to a [`Watch`]: then to start again is to end the worker first.
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

/// A plan that a worker is to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlanMessage {
    /// Its name; orders and tickets say it.
    pub id: String,
    /// The plan.
    pub plan: Arc<Plan>,
    /// Where the stored arrays are that it names.
    pub sources: Vec<(SourceRef, SourceLocation)>,
}

/// What a worker is told to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderMessage {
    /// The plan.
    pub plan: String,
    /// The operands, by stage.
    pub run: Vec<(StageId, Bitmap)>,
    /// Operands whose chunks stay on the shelf if they are made on the way, by stage.
    pub hold: Vec<(StageId, Bitmap)>,
    /// Chunks that are there.
    pub there: Vec<There>,
    /// The most threads that compute; all of the worker's if none.
    pub threads: Option<usize>,
}

/// Operands whose chunks a party has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct There {
    /// The stage.
    pub stage: StageId,
    /// Where the party answers.
    pub address: String,
    /// The operands.
    pub operands: Bitmap,
}

/// How an order ended.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// What went wrong.
    pub error: Option<Told>,
    /// For each stage, operands that ran, and seconds of threads.
    pub stages: Vec<(u64, f64)>,
    /// Requests to storage.
    pub requests: u64,
    /// Bytes that came from storage.
    pub bytes_read: u64,
    /// Bytes of chunks that were fetched from other parties.
    pub bytes_moved: u64,
    /// Bytes of these that the server passed on, as the way to the other party is cut.
    pub bytes_relayed: u64,
    /// The most bytes that the order held at a time.
    pub peak_bytes: u64,
    /// Chunks written to files for want of memory.
    pub spills: u64,
    /// Their bytes.
    pub bytes_spilled: u64,
}

/// What a worker says of an order while it runs; the last is its end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It runs: operands that ran until now, and seconds of threads, for each stage.
    Runs(Vec<(u64, f64)>),
    /// It is over.
    Done(Box<Done>),
}

/// A chunk's operand, as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkTicket {
    /// The plan.
    pub plan: String,
    /// The stage.
    pub stage: StageId,
    /// The operand.
    pub number: u64,
    /// Where the worker is that has it, if the server is to pass it on; else the party that is asked has it.
    pub at: Option<String>,
}

/// A plan that nobody needs any more.
#[derive(Debug, Serialize, Deserialize)]
pub struct Forget {
    /// Its name.
    pub plan: String,
}
