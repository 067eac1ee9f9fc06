//! Tessera frontend.
