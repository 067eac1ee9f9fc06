//! Arrow Flight between the parties: who may ask, and what becomes of answers that do not come.
//!
//! ```text
//!   DoAction(kind, JSON) ─▶ JSON, JSON, …      dropping the stream tells the other side that nobody wants the rest
//!   DoGet(ticket)        ─▶ piece, piece, …    of one object, whose size the first message tells
//! ```
//! Every call shows the secret and the version of the protocol, whatever it asks for ([`Credentials`]). Without TLS only
//! loopback addresses are bound and called.

mod client;
mod credentials;
mod server;

pub use client::Peers;
pub use credentials::{Credentials, Security};
pub use server::{Object, Server, Service};

use thiserror::Error;
use tonic::{Code, Status};

/// Version of what is said.
const PROTOCOL: &str = "1";
/// Header of the version.
const PROTOCOL_HEADER: &str = "tessera-protocol";
/// The largest piece of an object.
const PIECE_BYTES: usize = 2 << 20;
/// The largest message: a plan with the constants that stand in it.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// What one stream may have on its way.
const STREAM_WINDOW: u32 = 8 << 20;
/// What one connection may.
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Seconds between signs of life, and until one is missed.
const ALIVE: std::time::Duration = std::time::Duration::from_secs(2);

/// Why something could not be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// No connection, or none any more: the other party is dead, slow or far.
    #[error("no answer: {0}")]
    Unreachable(String),
    /// The secret or the certificate is not the right one.
    #[error("refused: {0}")]
    Denied(String),
    /// It is not there.
    #[error("not found: {0}")]
    NotFound(String),
    /// The other party's own words.
    #[error("{0}")]
    Failed(String),
    /// What was said is not of this protocol.
    #[error("{0}")]
    Broken(String),
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreachable(m) => Status::unavailable(m),
            Fault::Denied(m) => Status::unauthenticated(m),
            Fault::NotFound(m) => Status::not_found(m),
            Fault::Failed(m) => Status::aborted(m),
            Fault::Broken(m) => Status::failed_precondition(m),
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied => Fault::Denied(message),
            Code::NotFound => Fault::NotFound(message),
            Code::Aborted => Fault::Failed(message),
            Code::FailedPrecondition
            | Code::Unimplemented
            | Code::InvalidArgument
            | Code::OutOfRange
            | Code::ResourceExhausted => Fault::Broken(message),
            // A connection that ends in the middle is told in many ways.
            code => Fault::Unreachable(match message.is_empty() {
                true => code.to_string(),
                false => message,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
