//! The planner: the meaning of a query, and the plan that computes it.
//!
//! It turns whole-tensor expressions into a plan of chunk operands. A plan is a plain value whose size does not depend
//! on the number of chunks. The life of `SELECT (x - mean(x, 0)) / std(x, 0) FROM x`:
//!
//! 1. [`build::Builder`] makes nodes of the [`ir`]: `Load x`, `Reduce(mean)`, `Reduce(var)`, `Map(sub)`, … each with
//!    shape, type, mask and logical grid.
//! 2. [`optimize::optimize`] runs the passes in [`optimize::PASSES`]: constants fold, slices sink into `Load`, equal
//!    nodes become one. [`verify`] checks the graph after each.
//! 3. [`fuse::fuse`] turns it into a [`plan::Plan`]: `Load x` → `Fused` (partial mean and variance in one pass) →
//!    `Combine` (the tree) → `Fused` (subtract, divide, store). Elementwise nodes never become stages of their own.
//! 4. [`tile::Tiling`] reports for any operand the chunks it reads, the readers of its chunk and the bytes it needs.
//!
//! [`compile`] runs these steps; [`explain`] prints each of them, [`cost`] and [`estimate`] predict the resources of a
//! plan. [`key`] identifies the output of a stage so that it is found again after a failure; [`recover`] computes the
//! work that remains. [`place`] assigns operands to workers, cuts the plan into phases and counts the bytes moved
//! between workers.
//!
//! Invariants: no I/O, no clock, no threads, no tokio, no DataFusion. Everything is a pure function of its arguments.
//! The structures that decide bits (grids, trees, orders) depend only on the query, the sources' grids and [`config`].

pub mod build;
pub mod catalog;
pub mod config;
pub mod cost;
pub mod dtype;
pub mod durable;
pub mod error;
pub mod estimate;
pub mod explain;
pub mod factor;
pub mod fuse;
pub mod grid;
pub mod interrupt;
pub mod ir;
pub mod key;
pub mod lookup;
pub mod optimize;
pub mod place;
pub mod plan;
pub mod program;
pub mod recover;
pub mod reduce;
pub mod region;
pub mod runs;
pub mod scalar;
pub mod sort;
pub mod tile;
pub mod time;
pub mod verify;
pub mod view;
pub mod window;

use std::sync::Arc;

/// Compiles a graph into a plan that is ready to run. `trace` sees the graph after each pass that changed it.
///
/// # Errors
/// [`error::Error::Broken`] if a pass broke the graph, [`error::Error::Stopped`] if planning was stopped
/// ([`interrupt`]).
pub fn compile(
    start: optimize::Rooted,
    config: &config::Config,
    trace: &mut dyn FnMut(&'static str, &optimize::Rooted),
) -> Result<tile::Tiling, error::Error> {
    let optimized = optimize::optimize(start, config, trace)?;
    let plan = fuse::fuse(&optimized, config)?;
    Ok(tile::Tiling::new(Arc::new(plan)))
}
