//! The native module of the Python package: `tessera_sql._native`.
//!
//! The life of a statement:
//!
//! 1. `python/tessera_sql` parses the script with [`mod@script`], which names the relations that it reads. Those that
//!    are objects of the caller become [`locals::Local`]s, whose memory stays the caller's.
//! 2. [`engine::Engine`] is a session of this process or a client of a server. It runs the script on its own threads
//!    while the interpreter is detached, checks for signals 20 times a second, and reports the progress.
//! 3. The answers are [`answer::Reply`]s. Cells leave through the buffer protocol, rows through Arrow's C interface.
//! 4. An error becomes an exception of `tessera_sql` ([`mod@error`]).
//!
//! When the process forks, the threads wait ([`mod@fork`]).
//!
//! Invariants: threads of the engine call no Python, except to release memory that Python lent. What a person sees (names
//! in frames, relations, xarray) is Python's part.

mod answer;
mod columns;
mod engine;
mod error;
mod fork;
mod locals;
mod log;
mod memory;
mod script;

/// The native part of `tessera_sql`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::answer::{Reader, Reply, Rows, Tensor};
    #[pymodule_export]
    use super::engine::Engine;
    #[pymodule_export]
    use super::fork::{Held, forked, hold};
    #[pymodule_export]
    use super::locals::{Local, dataset, stored, table};
    #[pymodule_export]
    use super::log::{log_level, take_log};
    #[pymodule_export]
    use super::memory::Memory;
    #[pymodule_export]
    use super::script::parse;
}
