//! Tessera storage: arrays in files and buckets, and the way back.
//!
//! The life of a stored array:
//! 1. [`source::open`] reads the metadata below a URL and gives a dataset to bind, with a reader for each array. What
//!    statements may touch, connections, retries and the versions of objects are those of [`source::Stores`].
//! 2. [`source::ArrayReader::fetch`] brings the encoded bytes of the chunks that a region touches, and
//!    [`source::ArrayReader::decode`] makes cells of them on the caller's thread.
//! 3. A result is written to a [`sink::Target`]: [`sink::ZarrWriter`] encodes chunks as they are computed, a
//!    [`sink::ObjectWriter`] takes a stream of bytes. Until it is finished a result has no name; what a killed process
//!    leaves is removed by the next one ([`sink::Promise`], [`sink::Leftover`]).
//! 4. A store of a warehouse has a [`manifest`] of its files, and reading holds them to it. Documents of a warehouse are
//!    in a [`sink::Folder`].
//!
//! Memory and the directory of the process belong to whoever runs the writers: [`sink::Memory`], [`sink::Outputs`].
//! Tests make the steps of writing fail, or the process die, with [`fail`].
//!
//! Invariants: storage does not know plans, operands or SQL; writers never hold an array whole; tokio does I/O only.

mod disk;
pub mod fail;
pub mod manifest;
pub mod sink;
pub mod source;

#[cfg(test)]
#[path = "../../../tests/s3.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    reason = "a server for tests, which those of whole statements share"
)]
mod served;
