//! Parsing through the public interface: snapshots, precedence, errors and hardness.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod errors;
mod hardness;
mod precedence;
mod queries;
mod sexpr;
mod statements;
