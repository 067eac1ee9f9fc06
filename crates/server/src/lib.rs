//! HTTP and the command line: adapters over [`tessera_engine`].
//!
//! The life of a request, here `POST /v1/statements` to `tessera serve`:
//!
//! 1. [`cli`] opened a [`tessera_engine::session::Host`] and a [`routes::Server`] on it. If the configuration has no
//!    token, the server made one (`token`), which clients of the same user find.
//! 2. [`routes`] takes the connection, checks the head and the token, reads the body, and finds the session.
//! 3. Its registry enters the statement into a bounded queue, writes it into the journal before it is acknowledged, and
//!    passes it to [`tessera_engine::Engine::run`] when a place is free.
//! 4. The answer stays in the registry until its client has read it. A [`tessera_engine::format::Writer`] turns it into
//!    the bytes of the response; an error becomes a JSON body and a status.
//!
//! The life of `tessera query "SELECT mean(sst, 0) FROM 'sst.zarr'" --format json`:
//!
//! 1. [`cli`] reads the command line and loads the configuration.
//! 2. The engine is a session of this process or, with `--connect`, a remote server ([`client`]).
//! 3. The same writer prints the answer to stdout or to a file; an error goes to stderr and becomes the exit status.
//!
//! Invariants: statements are bound, planned and run by the engine alone; nothing here computes cells.

pub mod cli;
pub mod client;
pub mod routes;
mod token;
