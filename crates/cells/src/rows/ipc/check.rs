//! Validates a message's metadata against the available bytes.

use super::said;
use arrow::ipc::{Block, MessageHeader, RecordBatch, root_as_message};
use datafusion::error::{DataFusionError, Result};
use std::ops::Range;

/// Maximum rows beyond the number of bytes of a batch: columns of only NULL have no bytes.
const ROWS_OF_NOTHING: u64 = 1 << 20;

/// The location of a message that lies within the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageSpan {
    start: u64,
    head: u64,
    pub(super) length: u64,
}

impl MessageSpan {
    pub(super) fn new(start: u64, head: u64, body: i64, size: u64) -> Result<MessageSpan> {
        let length = u64::try_from(body).ok().and_then(|body| body.checked_add(head));
        let end = length.and_then(|length| length.checked_add(start));
        match (length, end) {
            (Some(length), Some(end)) if end <= size => Ok(MessageSpan { start, head, length }),
            _ => Err(said(format!(
                "a message at byte {start} would have a body of {body} bytes, and the file has {size}"
            ))),
        }
    }

    /// Reads a block of the footer of a file of `size` bytes.
    pub(super) fn of(block: &Block, size: u64) -> Result<MessageSpan> {
        let (start, head) = (block.offset(), block.metaDataLength());
        match (u64::try_from(start), u64::try_from(head)) {
            (Ok(start), Ok(head)) if head >= 8 => {
                MessageSpan::new(start, head, block.bodyLength(), size)
            }
            _ => Err(said(format!("the footer lists a message of {head} bytes at byte {start}"))),
        }
    }

    pub(super) fn range(self) -> Range<u64> {
        self.start..self.start + self.length
    }

    pub(super) fn block(self) -> Block {
        let body = self.length - self.head;
        Block::new(self.start as i64, self.head as i32, body as i64)
    }
}

/// Fails if a batch would have more bytes than the limit.
pub(super) fn fits(what: &str, bytes: u64, limit: u64) -> Result<()> {
    match bytes <= limit {
        true => Ok(()),
        false => Err(DataFusionError::ResourcesExhausted(format!(
            "{what} of an Arrow file has {bytes} bytes, and at most {limit} are read at a time"
        ))),
    }
}

/// The metadata of a message: the bytes after its length prefix.
pub(super) fn told(bytes: &[u8]) -> &[u8] {
    let prefix = if bytes.starts_with(&[0xff; 4]) { 8 } else { 4 };
    bytes.get(prefix..).unwrap_or_default()
}

pub(super) struct Batch {
    pub(super) dictionary: Option<i64>,
    pub(super) is_delta: bool,
    /// Bytes that it unpacks to; 0 if it is not compressed.
    pub(super) unpacked: u64,
}

pub(super) fn message(bytes: &[u8], place: MessageSpan, limit: u64) -> Result<Batch> {
    let at = place.start;
    let (head, body) = match bytes.split_at_checked(place.head as usize) {
        Some(parts) => parts,
        None => return Err(said(format!("the message at byte {at} is cut off"))),
    };
    let message =
        root_as_message(told(head)).map_err(|e| said(format!("the message at byte {at}: {e}")))?;
    let dictionary = message.header_as_dictionary_batch();
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => dictionary.and_then(|d| d.data()),
        other => return Err(said(format!("the message at byte {at} is {other:?}, no batch"))),
    };
    let batch = batch.ok_or_else(|| said(format!("the batch at byte {at} is missing")))?;
    let bytes = buffers(&batch, body, at)?;
    fits("a batch", bytes, limit)?;
    let most = bytes.saturating_mul(8).saturating_add(ROWS_OF_NOTHING);
    let lengths = batch.nodes().into_iter().flatten().map(|node| node.length());
    for rows in lengths.chain([batch.length()]) {
        if u64::try_from(rows).is_ok_and(|rows| rows <= most) {
            continue;
        }
        let reason = format!("the batch at byte {at} would have {rows} rows in {bytes} bytes");
        return Err(said(reason));
    }
    Ok(Batch {
        dictionary: dictionary.map(|dictionary| dictionary.id()),
        is_delta: dictionary.is_some_and(|dictionary| dictionary.isDelta()),
        unpacked: if batch.compression().is_some() { bytes } else { 0 },
    })
}

/// The bytes of a batch after decompression.
fn buffers(batch: &RecordBatch<'_>, body: &[u8], at: u64) -> Result<u64> {
    let is_packed = batch.compression().is_some();
    let mut all = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let (offset, length) = (buffer.offset(), buffer.length());
        let part = match (usize::try_from(offset), usize::try_from(length)) {
            (Ok(offset), Ok(length)) => body.get(offset..).and_then(|from| from.get(..length)),
            _ => None,
        };
        let Some(part) = part else {
            return Err(said(format!(
                "a buffer of the batch at byte {at} would be {length} bytes from {offset} on, and there are {}",
                body.len()
            )));
        };
        // A compressed buffer begins with its length; -1: not compressed.
        let unpacked = match part.first_chunk::<8>() {
            Some(length) if is_packed => i64::from_le_bytes(*length),
            _ => -1,
        };
        let bytes = match u64::try_from(unpacked) {
            Ok(bytes) => bytes,
            Err(_) if unpacked == -1 => part.len() as u64,
            Err(_) => {
                let reason =
                    format!("a buffer of the batch at byte {at} would have {unpacked} bytes");
                return Err(said(reason));
            }
        };
        all = all.saturating_add(bytes);
    }
    Ok(all)
}
