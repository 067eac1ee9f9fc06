//! Tessera exec: runs plans.
//!
//! The life of a plan:
//! 1. [`tessera_storage::source::open`] returned the dataset that the query was bound to, and a reader for each array.
//! 2. [`run::Runtime::start`] enters the plan into the scheduler.
//! 3. The threads of the runtime walk it depth-first from its results and find operands ([`schedule`]).
//! 4. An operand that has its inputs and its memory ([`quota`]) runs: [`task::PlanRunner`] views its inputs, takes
//!    buffers from the [`pool`], calls a kernel ([`tessera_kernels`]) and returns [`chunk`]s.
//! 5. Chunks of results go to a [`schedule::Sink`]; others are freed after their last reader. When memory is short,
//!    the chunks needed last are spilled to files ([`store`]). Chunks that are expensive to recompute are stored for a
//!    run after a failure ([`durable`]).
//! 6. On a worker of a cluster the same threads run a part of a plan ([`order`]); chunks of other parts are fetched.
//!
//! Outside of plans, [`columns`] runs elementwise functions over columns of rows.
//!
//! Invariants: exec does not know the frontend, file formats or object stores; an operand's memory is reserved before
//! it runs; tokio does I/O only.

pub mod cancel;
pub mod chunk;
pub mod columns;
pub mod config;
pub mod distinct;
pub mod durable;
pub mod error;
pub mod heap;
pub mod operand;
pub mod order;
pub mod pool;
pub mod quota;
pub mod rows;
pub mod run;
pub mod schedule;
pub mod select;
mod sink;
pub mod store;
pub mod task;

#[cfg(test)]
#[path = "../../storage/src/sink/tests/faulty.rs"]
#[allow(dead_code, reason = "a bucket for tests, which those of storage share")]
mod faulty;
