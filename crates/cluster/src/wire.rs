//! Messages between server and workers.
//!
//! Plans, orders and what workers say of them are [postcard](to_postcard): they grow with a plan, and the types on both sides
//! are the same, because server and workers have the same [`PROTOCOL`]. Chunks are Arrow IPC. Everything else is JSON:
//! tickets, because any client of Flight writes them, and messages of a few numbers. [Tasks of rows](RowsOrder) have
//! answers of their own.

mod rows;

pub use rows::{RowsAsk, RowsHolder, RowsName, RowsOrder};

use crate::net::{Fault, PROTOCOL};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::sync::Arc;
use tessera_exec::durable::{Did, Shared};
use tessera_exec::error::ErrorReport;
use tessera_exec::operand::StateCounts;
use tessera_exec::task::SourceLocation;
use tessera_planner::catalog::SourceRef;
use tessera_planner::key::{KERNELS, StageKey};
use tessera_planner::plan::{Plan, StageId};
use tessera_planner::recover::Bitmap;
use tessera_storage::sink::{PartEntry, SharedOutput};
use tessera_storage::source::Noted;

/// The server's address in lists of parties that have chunks: a worker knows where it joined.
pub const THE_SERVER: &str = "server";
/// The address of durable chunks in lists of holders.
pub const STORAGE: &str = "storage";

/// The versions that can work together, for messages.
pub(crate) const GO_TOGETHER: &str = "server and workers need the same cluster protocol and the same kernels \
    (`tessera --version` reports both), the version of the program may differ";

/// The versions of a party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Version of the program. It may differ between parties.
    pub program: String,
    /// Version of the protocol between the parties.
    pub protocol: u32,
    /// Version of the kernels: the bits of results.
    pub kernels: u32,
}

impl Version {
    /// The versions of this party.
    pub fn of(program: &str) -> Self {
        Version { program: program.into(), protocol: PROTOCOL, kernels: KERNELS }
    }

    /// True if two parties may work on one statement: they understand each other, and compute the same bits.
    pub fn goes_with(&self, other: &Version) -> bool {
        (self.protocol, self.kernels) == (other.protocol, other.kernels)
    }
}

impl Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { program, protocol, kernels } = self;
        write!(f, "{program} (cluster protocol {protocol}, kernels {kernels})")
    }
}

/// The introduction of a worker that joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The name of the worker: the host and the port it listens on, or as configured.
    pub name: String,
    /// The address it listens on: `host:port`.
    pub address: String,
    /// Threads that compute.
    pub threads: u32,
    /// Its memory limit in bytes.
    pub memory_bytes: u64,
    /// Its process id.
    pub pid: u32,
    /// Random number of the process: a worker that restarts is another one.
    pub incarnation: u64,
    /// Its versions.
    pub version: Version,
    /// Random number that its supervisor, if it has one, drew when it started this process.
    pub supervisor: Option<u64>,
}

/// The server's response to a [`Hello`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The worker's number; a server never reuses it.
    pub worker: u32,
    /// Random number of the server process. It differs from the number of the next server at the same address.
    pub server: u64,
    /// Milliseconds between heartbeats.
    pub beat_ms: u64,
}

/// A heartbeat of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// The number of the worker.
    pub worker: u32,
    /// See [`Hello::incarnation`].
    pub incarnation: u64,
    /// True while the worker drains.
    pub draining: bool,
    /// Its current load and its counters.
    pub load: Load,
}

/// The current load and the counters of a worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Running orders.
    pub orders: u64,
    /// Operands run since the start.
    pub operands: u64,
    /// Bytes charged to its memory quota.
    pub used_bytes: u64,
    /// Chunks on the shelf.
    pub chunks: u64,
    /// Bytes of these in memory and in files.
    pub chunk_bytes: u64,
    /// Bytes of these in files.
    pub spilled_bytes: u64,
    /// Bytes of chunks fetched from others since the start.
    pub fetched_bytes: u64,
    /// Bytes of chunks that others fetched since the start.
    pub served_bytes: u64,
    /// Bytes of outputs written since the start.
    #[serde(default)]
    pub written_bytes: u64,
    /// Operands of plans that are over whose chunks it retains.
    #[serde(default)]
    pub retained: u64,
    /// Bytes of these chunks.
    #[serde(default)]
    pub retained_bytes: u64,
    /// Operands of plans whose chunks were retained from earlier ones, since the start.
    #[serde(default)]
    pub reused: u64,
    /// Running tasks of rows.
    #[serde(default)]
    pub row_tasks: u64,
    /// Tasks of rows that ended well since the start.
    #[serde(default)]
    pub row_tasks_done: u64,
    /// Rows that tasks sent since the start.
    #[serde(default)]
    pub rows_sent: u64,
    /// Bytes of these rows.
    #[serde(default)]
    pub row_bytes: u64,
    /// Addresses of parties that it cannot reach, though the server can.
    pub apart: Vec<String>,
}

/// A supervisor asks on behalf of its worker, which may not respond any more.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Watch {
    /// The number in [`Hello::supervisor`].
    pub supervisor: u64,
}

/// The server's response to a [`Beat`] or a [`Watch`]; to a supervisor, `Restart` means to end the worker first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Continue.
    Go,
    /// The worker is unknown, or lost: forget all statements and join again.
    Join,
    /// Finish and restart as a new process.
    Restart,
}

/// Sends a plan to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanMessage {
    /// The id of the plan in orders and tickets.
    pub id: String,
    /// The plan.
    pub plan: Arc<Plan>,
    /// Locations of the stored arrays that it names.
    pub sources: Vec<(SourceRef, SourceLocation)>,
    /// The store of chunks that outlive the worker, and the selection of these chunks.
    pub durable: Option<Shared>,
    /// Selects the chunks of earlier plans that this one uses, and its chunks that later plans may use.
    pub reuse: Reuse,
    /// The store that the chunks of its results are written to, if workers write them.
    pub output: Option<SharedOutput>,
}

/// A worker's response to a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Why it cannot write to the output of the plan.
    pub no_output: Option<String>,
}

/// Chunks of a plan that serve other plans too.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reuse {
    /// The journalled statement and the number of its part: a server that takes it over asks for its chunks.
    pub statement: Option<(String, usize)>,
    /// The stages whose cells never change: they depend on arrays of the warehouse and in memory alone.
    pub lasting: Bitmap,
    /// The versions of the objects that earlier runs of the statement have read.
    pub versions: Vec<Noted>,
}

/// Asks a worker for chunks that it retains of plans that are over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RetainedQuery {
    /// See [`Reuse::statement`].
    pub statement: Option<(String, usize)>,
    /// Stages with their keys, and whether their cells never change.
    pub stages: Vec<(StageId, StageKey, bool)>,
}

/// The chunks that a worker retains, by stage.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Retained {
    /// Chunks that never change.
    pub lasting: Vec<(StageId, Bitmap)>,
    /// Chunks of the same statement.
    pub own: Vec<(StageId, Bitmap)>,
    /// The versions that the worker had read for the chunks of the same statement.
    pub versions: Vec<Noted>,
}

/// Chunks that no operand reads any more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Unread {
    /// The id of the plan.
    pub plan: String,
    /// The operands, by stage.
    pub operands: Vec<(StageId, Bitmap)>,
}

/// Assigns an order to a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderMessage {
    /// The id of the plan.
    pub plan: String,
    /// The operands, by stage.
    pub run: Vec<(StageId, Bitmap)>,
    /// Operands whose chunks stay on the shelf if they are made on the way, by stage.
    pub hold: Vec<(StageId, Bitmap)>,
    /// Available chunks that the worker does not know of yet.
    pub news: News,
    /// True if durable chunks are to be written from now on.
    pub begun: bool,
    /// Upper bound on threads that compute; `None` allows all of the worker's.
    pub threads: Option<usize>,
    /// True if the worker writes chunks of results to the output of the plan, if it can.
    pub writes: bool,
}

/// A part of the log in which the server writes down which chunks of a plan become available.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// Number of the log. After a loss of chunks a new log has a higher number.
    pub log: u64,
    /// Number of entries before the first one here.
    pub first: u64,
    /// The entries, each an encoded [`There`].
    pub entries: Vec<Arc<[u8]>>,
}

/// Operands whose chunks a party has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct There {
    /// The address of the party.
    pub address: String,
    /// The operands, by stage.
    pub operands: Vec<(StageId, Bitmap)>,
}

/// The outcome of an order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// The error, if it failed.
    pub error: Option<ErrorReport>,
    /// The operands that ran, and the states at the end.
    pub progress: OrderProgress,
    /// Requests to storage.
    pub requests: u64,
    /// Bytes read from storage.
    pub bytes_read: u64,
    /// Bytes of chunks fetched from other parties.
    pub bytes_moved: u64,
    /// Bytes of these that the server relayed, because the route to the other party is cut.
    pub bytes_relayed: u64,
    /// Durable chunks that were written and loaded for the plan since the last order ended.
    pub durable: Did,
    /// Peak memory of the order in bytes.
    pub peak_bytes: u64,
    /// Chunks that were spilled because memory was short.
    pub spills: u64,
    /// Bytes of spilled chunks.
    pub bytes_spilled: u64,
    /// True if the assigned chunks of results were written to the output of the plan.
    pub wrote: bool,
    /// The chunks written, of the messages before this one.
    #[serde(skip)]
    pub parts: Vec<PartEntry>,
}

/// The progress of an order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderProgress {
    /// For each stage, operands that ran, and seconds of threads.
    pub stages: Vec<(u64, f64)>,
    /// Operands of the order by state.
    pub states: StateCounts,
}

/// A worker's progress messages of an order; the last is its end.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// The order has not begun: the worker lacks entries of the log before the entries of this message.
    Behind,
    /// The order runs.
    Runs(OrderProgress),
    /// Some of the chunks written to the output. They count if the order ends without an error.
    Wrote(Vec<PartEntry>),
    /// The order ended.
    Done(Box<Done>),
}

/// Requests the chunks of an operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkTicket {
    /// The id of the plan.
    pub plan: String,
    /// The stage.
    pub stage: StageId,
    /// The number of the operand.
    pub number: u64,
    /// The output whose chunk is wanted, as one Arrow stream; `None` for all of them, one stream after another.
    #[serde(default)]
    pub output: Option<u32>,
    /// The address of the worker that has it, if the server is to relay it; otherwise the called party has it.
    #[serde(default)]
    pub at: Option<String>,
}

/// Names a plan that is no longer needed, or whose durable chunks are to be written from now on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlanName {
    /// The id of the plan.
    pub plan: String,
}

/// Names plans: in a request all plans that a worker has, in the response those of them that the server does not run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanNames {
    /// The ids of the plans.
    pub plans: Vec<String>,
}

/// Encodes a message as postcard.
pub(crate) fn to_postcard(message: &impl Serialize) -> Result<Bytes, Fault> {
    let encoded = postcard::to_extend(message, Vec::new());
    encoded.map(Bytes::from).map_err(|e| Fault::Broken(format!("a message cannot be encoded: {e}")))
}

/// Decodes a message from postcard.
pub(crate) fn from_postcard<T: DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    postcard::from_bytes(body).map_err(|e| Fault::Broken(format!("a message cannot be read: {e}")))
}
