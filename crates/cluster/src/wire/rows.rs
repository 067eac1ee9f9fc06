//! Messages of tasks of rows.
//!
//! ```text
//!   server ─ RowsOrder ─▶ worker ─ answers (tessera_exec::rows) ─▶ server
//!                           └─ RowsAsk ─▶ another worker ─ answers ─▶ worker
//! ```
//! The contents of batches, plans and headers are known only to the code that computes rows. A server only has to know
//! where a batch ends and how many there are, so that it can continue after the loss of a worker.

use bytes::Bytes;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Sends a task of rows to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsOrder {
    /// Random number of the statement's rows.
    pub query: [u8; 16],
    /// The stage; all of its tasks share one plan.
    pub stage: u32,
    /// The number of the task in its stage.
    pub task: u32,
    /// The request, without the plan.
    #[serde(with = "one")]
    pub header: Bytes,
    /// The plan of the stage, for a worker that does not know it.
    #[serde(with = "optional")]
    pub plan: Option<Bytes>,
    /// The workers that keep the rows that the tasks of the stage read by parts, in the order of the splits.
    pub holders: Vec<RowsHolder>,
}

/// A worker that keeps the rows of some splits for the tasks of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsHolder {
    /// The first split.
    pub from: u32,
    /// The split after the last one.
    pub to: u32,
    /// The address of the worker; `None` for the worker that gets the task.
    pub address: Option<String>,
}

/// Asks a worker for a part of the rows that it keeps, or is to compute and keep, or for samples of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsAsk {
    /// See [`RowsOrder::query`].
    pub query: [u8; 16],
    /// The stage.
    pub stage: u32,
    /// The first split.
    pub from: u32,
    /// The split after the last one.
    pub to: u32,
    /// The part; `None` asks for samples of the rows, by which the bounds between parts are chosen.
    pub part: Option<u32>,
    /// See [`RowsOrder::header`].
    #[serde(with = "one")]
    pub header: Bytes,
    /// See [`RowsOrder::plan`].
    #[serde(with = "optional")]
    pub plan: Option<Bytes>,
    /// The bounds between parts, if there are any, for a worker that does not know them.
    #[serde(with = "optional")]
    pub bounds: Option<Bytes>,
}

/// Names the rows of a statement that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsName {
    /// See [`RowsOrder::query`].
    pub query: [u8; 16],
}

/// Bytes as one value: without this they would be a list of numbers.
struct Raw(Bytes);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;

        impl Visitor<'_> for Read {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Raw, E> {
                Ok(Raw(Bytes::copy_from_slice(bytes)))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Raw, E> {
                Ok(Raw(bytes.into()))
            }
        }

        from.deserialize_byte_buf(Read)
    }
}

mod one {
    use super::Raw;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        Raw(bytes.clone()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        Ok(Raw::deserialize(from)?.0)
    }
}

mod optional {
    use super::Raw;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Raw).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Raw>::deserialize(from)?.map(|raw| raw.0))
    }
}
