//! Arrow Flight between the parties: authentication, calls and failures.
//!
//! ```text
//!   DoAction(kind, body) ─▶ message, …         dropping the stream cancels the rest on the other side
//!   DoGet(ticket)        ─▶ schema, batch, …   the chunks of an operand; any client of Flight can read them
//! ```
//! Every call carries the secret and the version of the protocol ([`Credentials`]). Without TLS only loopback addresses
//! are bound and called.

mod client;
mod credentials;
mod reason;
mod resolve;
mod server;

pub use client::Peers;
pub use credentials::{Credentials, Security};
pub(crate) use reason::Unreached;
pub use server::{Answers, Object, Server, Service};

use reason::unreachable;
use thiserror::Error;
use tonic::{Code, Status};

/// Version of the protocol: of the messages in [`crate::wire`], the plans in them, and the chunks. Increment it with any
/// change to a type that is sent, its field order and its variants included: most messages do not describe themselves, so
/// a party of the previous version would misread them. A test has a snapshot of the types.
pub const PROTOCOL: u32 = 14;
/// Header with the version.
const PROTOCOL_HEADER: &str = "tessera-protocol";
/// Upper bound on a message in bytes: a plan with its constants.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Flow control window of one stream in bytes.
const STREAM_WINDOW: u32 = 8 << 20;
/// Flow control window of one connection in bytes.
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Interval of HTTP/2 keepalive pings, and their timeout.
const ALIVE: std::time::Duration = std::time::Duration::from_secs(2);

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// No connection, or it broke: the other party is dead, slow or unreachable.
    #[error("no answer: {0}")]
    Unreachable(String),
    /// The secret or the certificate is wrong.
    #[error("refused: {0}")]
    Denied(String),
    /// The object does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// An error of the other party.
    #[error("{0}")]
    Failed(String),
    /// A message violates the protocol.
    #[error("{0}")]
    Broken(String),
}

impl Fault {
    /// The reason, without a word about its kind.
    pub fn reason(&self) -> &str {
        let (Fault::Unreachable(reason)
        | Fault::Denied(reason)
        | Fault::NotFound(reason)
        | Fault::Failed(reason)
        | Fault::Broken(reason)) = self;
        reason
    }
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
            // A connection that breaks in the middle is reported with many codes.
            _ => unreachable(&status),
        }
    }
}

#[cfg(test)]
mod tests;
