//! Tessera exec.
