//! More than one machine: a server that hands out work, and workers that do it.
//!
//! ```text
//!   statement ─▶ place (planner) ─▶ orders ──Flight──▶ worker: its part of the plan, by the scheduler of one machine
//!                     ▲                                  │ chunks that others read stay on its shelf
//!                     └── a worker is lost: what is there, what is left ◀──┘ and are fetched from there
//! ```
//! The life of a statement's plan, as [`Drive`] leads it:
//! 1. `tessera_planner::place` gives each operand a worker, and tells each worker what it is to make, in steps.
//! 2. A [`Worker`] knows the plan and opens its sources. For an order it runs a part of the plan
//!    ([`tessera_exec::order`]): what it is told, with all that this reads and that is not there. It fetches chunks that
//!    are there from whoever has them, and keeps its own on a shelf for others.
//! 3. When the chunks of the results are there, the server runs the plan itself: it loads those, and that is all.
//! 4. Workers that do not reach each other have each other's chunks by the server, which reaches all of them.
//! 5. If a worker is lost, so are the chunks that it had. What is left of the plan is a pure function of what is there
//!    (`tessera_planner::recover`); the others are told that. So a failure costs time and changes no bit.

mod drive;
pub mod net;
mod reach;
pub mod registry;
mod server;
mod shelf;
pub mod wire;
mod worker;
mod worker_slots;

pub use drive::{Drive, Expected};
pub use server::{Cluster, Home};
pub use worker::{Ended, Joining, Worker, is_to_be_ended};

#[cfg(test)]
mod tests;
