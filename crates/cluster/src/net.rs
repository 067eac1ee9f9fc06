//! Flight between the parties.
