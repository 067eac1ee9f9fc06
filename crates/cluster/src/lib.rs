//! More than one machine: a server that hands out work, and workers that do it.
//!
//! ```text
//!   statement ─▶ place (planner) ─▶ orders ──Flight──▶ worker: its part of the plan, by the scheduler of one machine
//!                     ▲                                  │ chunks that others read stay on its shelf
//!                     └── a worker is lost: what is there, what is left ◀──┘ and are fetched from there
//! ```

pub mod net;
pub mod registry;
pub mod wire;
