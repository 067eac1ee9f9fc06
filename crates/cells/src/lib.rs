//! Tessera's cells.

pub mod lift;
pub mod rows;
mod stack;
mod stand_in;

pub use stand_in::stand_in;
