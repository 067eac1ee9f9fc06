//! Graphs, labels and errors of tensor blocks over a small catalog.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod errors;
mod fixture;
mod graphs;
mod labels;
