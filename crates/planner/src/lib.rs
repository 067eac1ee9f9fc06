//! Tessera planner.
