//! Tessera repl.
