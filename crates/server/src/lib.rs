//! Tessera server.
