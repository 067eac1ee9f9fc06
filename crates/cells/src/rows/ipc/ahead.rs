//! Reads consecutive messages, with read-ahead.

use super::check::{self, MessageSpan};
use super::{AHEAD_BYTES, HEAD_BYTES_MAX, IpcFile, said};
use crate::tables::names;
use arrow::datatypes::SchemaRef;
use arrow::ipc::{MetadataVersion, convert, root_as_message};
use bytes::Bytes;
use datafusion::error::Result;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a file that were read last.
#[derive(Default)]
pub(super) struct Ahead {
    /// Offset of the next message of a stream.
    at: u64,
    /// The bytes from offset `start`.
    bytes: Bytes,
    start: u64,
}

impl Ahead {
    /// The schema at the beginning of a stream.
    pub(super) async fn schema(&mut self, file: &IpcFile) -> Result<(SchemaRef, MetadataVersion)> {
        let Some((_, bytes)) = self.message(file, HEAD_BYTES_MAX).await? else {
            return Err(said("the file has no schema"));
        };
        let message =
            root_as_message(check::told(&bytes)).map_err(|e| said(format!("the schema: {e}")))?;
        let schema =
            message.header_as_schema().ok_or_else(|| said("the file begins with no schema"))?;
        Ok((Arc::new(names::distinct(&convert::fb_to_schema(schema))), message.version()))
    }

    /// The next message of a stream, with its location; `None` at the end.
    pub(super) async fn message(
        &mut self,
        file: &IpcFile,
        limit: u64,
    ) -> Result<Option<(MessageSpan, Bytes)>> {
        let size = file.meta.size;
        if size - self.at < 4 {
            return Ok(None);
        }
        let to = size.min(self.at.saturating_add(AHEAD_BYTES));
        let head = self.get(file, self.at..size.min(self.at + 8), || to).await?;
        // Files from before 2019 lack the marker before the length.
        let (prefix, length) = match (&head[..4], head.get(4..8)) {
            ([0xff, 0xff, 0xff, 0xff], Some(length)) => (8, length),
            ([0xff, 0xff, 0xff, 0xff], None) => return Ok(None),
            (length, _) => (4, length),
        };
        let length = length.try_into().map_or(0, i32::from_le_bytes);
        let left = size - self.at - prefix;
        let length = match u64::try_from(length) {
            Ok(0) => return Ok(None),
            Ok(length) if length <= left => length,
            _ => {
                let reason = format!("a message at byte {} would have {length} bytes", self.at);
                return Err(said(reason));
            }
        };
        check::fits("a message", length, HEAD_BYTES_MAX)?;
        let told = self.get(file, self.at..self.at + prefix + length, || to).await?;
        let message = root_as_message(check::told(&told))
            .map_err(|e| said(format!("a message at byte {}: {e}", self.at)))?;
        let place = MessageSpan::new(self.at, prefix + length, message.bodyLength(), size)?;
        check::fits("a batch", place.length, limit)?;
        let bytes = self.get(file, place.range(), || to).await?;
        self.at += place.length;
        Ok(Some((place, bytes)))
    }

    /// The bytes of a range; those up to `to` are read with them.
    pub(super) async fn get(
        &mut self,
        file: &IpcFile,
        range: Range<u64>,
        to: impl FnOnce() -> u64,
    ) -> Result<Bytes> {
        let end = self.start + self.bytes.len() as u64;
        if range.start < self.start || range.end > end {
            // Released first: both might not fit into the budget.
            self.bytes = Bytes::new();
            self.bytes = file.read(range.start..range.end.max(to())).await?;
            self.start = range.start;
        }
        let from = (range.start - self.start) as usize;
        let to = from + (range.end - range.start) as usize;
        match to <= self.bytes.len() {
            true => Ok(self.bytes.slice(from..to)),
            false => Err(said("the file ends in the middle of a message")),
        }
    }
}
