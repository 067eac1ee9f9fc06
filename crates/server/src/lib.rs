//! The server crate: everything between an answer and a person.
//!
//! The life of `tessera query "SELECT mean(sst, 0) FROM 'sst.zarr'" --format json`:
//!
//! 1. [`cli`] reads the command line, [`config`] joins it with defaults, file and environment.
//! 2. An [`engine::Engine`] runs the text and gives one [`answer::Reply`] for each statement.
//!    A [`statement::Handle`] tells how far it is, and stops it.
//! 3. A [`format::Writer`] turns replies into bytes; an [`error::Error`] becomes text, JSON and a status.
//!
//! `tessera serve` does the same over HTTP ([`routes`]); [`client`] is such a server as an engine.
//!
//! Invariants: nothing below knows how an answer is shown; nothing here computes cells.

pub mod answer;
pub mod cli;
pub mod client;
pub mod config;
pub mod engine;
pub mod error;
pub mod format;
mod journal;
mod parameters;
pub mod routes;
mod sealed;
mod secrets;
pub mod session;
pub mod statement;
mod token;
mod workers;

pub use tessera_frontend::error::nearest;
pub use tessera_frontend::is_complete;
pub use tessera_planner::explain::bytes as readable_bytes;
