//! The planner: what a query means, and what has to run to answer it.
//!
//! It turns whole-tensor expressions into a plan of chunk operands. A plan is a plain value whose size does not depend
//! on the number of chunks. The life of `SELECT (x - mean(x, 0)) / std(x, 0) FROM x`:
//!
//! 1. [`build::Builder`] makes nodes of the [`ir`]: `Load x`, `Reduce(mean)`, `Reduce(var)`, `Map(sub)`, … each with
//!    shape, type, mask and logical grid.
//!
//! Invariants: no I/O, no clock, no threads, no tokio, no DataFusion. Everything is a pure function of its arguments,
//! and what decides bits (grids, trees, orders) depends on nothing but the query, the sources' grids and [`config`].

pub mod build;
pub mod catalog;
pub mod config;
pub mod dtype;
pub mod error;
pub mod fuse;
pub mod grid;
pub mod ir;
pub mod optimize;
pub mod plan;
pub mod program;
pub mod reduce;
pub mod region;
pub mod scalar;
pub mod tile;
pub mod time;
pub mod verify;
pub mod view;
