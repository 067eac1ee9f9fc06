//! The engine: where the stages of a query meet. Text comes in, answers and formatted bytes come out.
//!
//! The life of a statement:
//!
//! 1. [`config`] joins defaults, file, environment and flags. A [`session::Host`] opens with that configuration:
//!    threads, memory, connections and the warehouse. Each user has a [`session::Session`] on it.
//! 2. [`parameters`] puts values into the script. A caller makes a [`Handle`] and passes both to [`Engine::run`].
//! 3. [`session`] opens what the statement reads, binds and plans it, waits for admission and runs its plans. The
//!    [`statement`] reports states and progress, and stops when its handle is cancelled.
//! 4. If a server accepted the statement, the [`journal`] stores what it was bound to before the statement changes
//!    anything durable. Documents begin with a checksum (`sealed`); the secrets in them are encrypted (`secrets`).
//! 5. The answer is an [`answer::Reply`]. Its cells stay in the chunks in which they were computed, in memory or in
//!    files.
//! 6. A [`format::Writer`] turns replies into bytes; an [`error::Error`] becomes text, JSON and a status.
//!
//! Invariants: the engine does not know how a statement arrives or where its answer goes, so it contains no HTTP and no
//! command line; the code that computes cells is below it.

pub mod answer;
pub mod config;
mod engine;
pub mod error;
pub mod format;
pub mod journal;
pub mod locals;
pub mod parameters;
mod rows_runner;
mod sealed;
mod secrets;
pub mod session;
pub mod statement;

pub use engine::{Engine, Replies};
pub use rows_runner::rows_runner;
pub use statement::Handle;
pub use tessera_frontend::error::nearest;
pub use tessera_frontend::is_complete;
pub use tessera_planner::explain::bytes as readable_bytes;
