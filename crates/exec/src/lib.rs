//! Tessera exec.

pub mod kernels;
