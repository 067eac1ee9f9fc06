//! Tessera storage: reads and writes arrays in files and buckets.
//!
//! The life of a stored array:
//! 1. [`source::open`] reads the metadata below a URL and returns a dataset to bind, with a reader for each array.
//!    [`source::Stores`] has the access rules of statements, connections, retries and the versions of objects.
//! 2. [`source::ArrayReader::fetch`] fetches the encoded bytes of the chunks that a region touches, and
//!    [`source::ArrayReader::decode`] decodes them to cells on the caller's thread.
//! 3. A result is written to a [`sink::Target`]: [`sink::ZarrWriter`] encodes chunks as they are computed, a
//!    [`sink::ObjectWriter`] takes a stream of bytes. Until it is finished a result has no name; the next process
//!    removes the incomplete outputs of a killed one ([`sink::Promise`], [`sink::Leftover`]).
//! 4. A store of a warehouse has a [`manifest`] of its files, against which reads are verified. Documents of a
//!    warehouse are in a [`sink::Folder`].
//!
//! Memory and the directory of the process belong to the caller of the writers: [`sink::Memory`], [`sink::Outputs`].
//! Tests make the steps of writing fail, or the process die, with [`fail`].
//!
//! Invariants: storage does not know plans, operands or SQL; writers never hold an array whole; tokio does I/O only.

mod disk;
pub mod fail;
pub mod formats;
pub mod manifest;
mod mutex;
pub mod sink;
pub mod source;
pub mod thrift;

pub use disk::warn_unless_removed;
pub use mutex::lock;

#[cfg(test)]
#[path = "../../../tests/s3.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "a server that all tests share")]
mod served;

#[cfg(test)]
#[path = "../../../tests/clouds/mod.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "servers that all tests share")]
mod clouds;
