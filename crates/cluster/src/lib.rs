//! More than one machine: a server that assigns work, and workers that run it.
//!
//! ```text
//!   statement ─▶ place (planner) ─▶ orders ──Flight──▶ worker: its part of the plan, by the scheduler of one machine
//!                     ▲                                  │ chunks for others stay on its shelf, to be fetched
//!                     └── a worker is lost: recover ◀────┘
//! ```
//! The life of a statement's plan, led by [`Drive`]:
//! 1. `tessera_planner::place` assigns each operand to a worker, and gives each worker its orders, in steps.
//! 2. A [`Worker`] gets the plan and opens its sources. For an order it runs a part of the plan
//!    ([`tessera_exec::order`]): the assigned operands, with their inputs that are not available. It fetches available
//!    chunks from the parties that have them, and retains its own on a shelf for others.
//! 3. When the chunks of the results are available, the server runs the plan itself: it only loads these.
//! 4. Workers that cannot reach each other fetch each other's chunks through the server, which reaches all of them.
//! 5. If a worker is lost, its chunks are lost too. The rest of the plan is a pure function of the available chunks
//!    (`tessera_planner::recover`); the other workers are assigned that. So a failure costs time and changes no bit.
//!
//! Rows have no chunks: a task of rows is a stream of batches that its reader asks for ([`RowsPlan`]). If its worker is
//! lost, the task runs again elsewhere, and batches that had arrived are skipped. If a query has many groups, workers
//! keep rows by parts of the keys, and tasks read these parts from each other's workers.

mod backlog;
mod cache;
mod drive;
pub mod net;
mod reach;
pub mod registry;
mod rows;
mod server;
mod shelf;
pub mod wire;
mod worker;
mod worker_slots;

pub use backlog::Waiting;
pub use drive::{Drive, DriveOptions, Expected, Identity};
pub use net::PROTOCOL;
pub use rows::{RowsLost, RowsOfWorker, RowsPlan, RowsTotals};
pub use server::{Cluster, Home};
pub use tessera_planner::key::KERNELS;
pub use worker::{Ended, Joining, RowsLoad, RowsRunner, Worker, ask_rows, is_to_be_ended};

/// Workers that tests and the benchmark simulate use the crate by its name.
#[cfg(test)]
extern crate self as tessera_cluster;
#[cfg(test)]
mod tests;
