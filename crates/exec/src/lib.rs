//! Tessera exec.

pub mod source;
