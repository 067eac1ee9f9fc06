//! Tessera exec: runs plans.
//!
//! The life of a plan:
//! 1. [`run::Runtime::start`] enters it into the scheduler.
//! 2. The threads of the runtime walk it depth-first from its results and find operands ([`schedule`]).
//! 3. An operand that has its inputs and its memory ([`quota`]) runs through a [`schedule::TaskRunner`], which fills
//!    buffers of the [`pool`] and gives [`chunk`]s.
//! 4. Chunks of results go to a [`schedule::Sink`]; others are freed after their last reader.
//!
//! Invariants: exec does not know the frontend; an operand's memory is reserved before it runs; tokio does I/O only.

pub mod cancel;
pub mod chunk;
pub mod config;
pub mod error;
pub mod operand;
pub mod pool;
pub mod quota;
pub mod run;
pub mod schedule;
