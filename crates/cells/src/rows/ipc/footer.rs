//! The footers of files, which the readers of their ranges share.

use super::check::{self, MessageSpan};
use super::{AHEAD_BYTES, HEAD_BYTES_MAX, IpcFile, MAGIC, said};
use crate::tables::names;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{MetadataVersion, convert, root_as_footer};
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use object_store::path::Path;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tessera_exec::quota::Charge;
use tokio::sync::OnceCell;

/// The two forms of files.
pub(super) enum Form {
    Listed(Footer),
    Stream,
}

impl Form {
    pub(super) fn footer(&self) -> Option<&Footer> {
        match self {
            Form::Listed(footer) => Some(footer),
            Form::Stream => None,
        }
    }
}

/// The footers of files that are open. The last reader of a file drops its footer.
#[derive(Default)]
pub(super) struct Footers(Mutex<BTreeMap<Path, Weak<OnceCell<Form>>>>);

impl Footers {
    /// The form of a file, which its first reader determines.
    pub(super) fn of(&self, file: &Path) -> Arc<OnceCell<Form>> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(form) = open.get(file).and_then(Weak::upgrade) {
            return form;
        }
        open.retain(|_, form| form.strong_count() > 0);
        let form = Arc::new(OnceCell::new());
        open.insert(file.clone(), Arc::downgrade(&form));
        form
    }
}

/// A footer: the schema, and where dictionaries and batches are.
pub(super) struct Footer {
    schema: SchemaRef,
    version: MetadataVersion,
    dictionaries: Vec<MessageSpan>,
    batches: Vec<MessageSpan>,
    /// True if the batches follow each other in the file as they do in the footer.
    is_in_order: bool,
    /// The dictionaries as they are stored.
    stored: OnceCell<Vec<Bytes>>,
    /// Charges the memory of the footer.
    _charge: Option<Charge>,
}

impl Footer {
    pub(super) async fn read(file: &IpcFile) -> Result<Self> {
        let size = file.meta.size;
        let tail = match size {
            20.. => file.read(size - 10..size).await?,
            _ => return Err(said("the file is too short")),
        };
        let length = match tail.split_first_chunk::<4>() {
            Some((length, MAGIC)) => i32::from_le_bytes(*length),
            _ => return Err(said("the file does not end as an Arrow file")),
        };
        let length = u64::try_from(length).ok().filter(|l| (1..=size - 18).contains(l));
        let Some(length) = length else {
            return Err(said(format!("the footer does not fit into the file's {size} bytes")));
        };
        check::fits("the footer", length, HEAD_BYTES_MAX)?;
        let bytes = file.read(size - 10 - length..size - 10).await?;
        let footer = root_as_footer(&bytes).map_err(|e| said(format!("the footer: {e}")))?;
        let schema = footer.schema().ok_or_else(|| said("the footer has no schema"))?;
        let schema = Arc::new(names::distinct(&convert::fb_to_schema(schema)));
        // A block has as many bytes here as in the file.
        let charge = file.reserve("the footer", length)?;
        let dictionaries = footer.dictionaries().into_iter().flatten();
        let dictionaries = dictionaries.map(|b| MessageSpan::of(b, size)).collect::<Result<_>>()?;
        let batches = footer.recordBatches().into_iter().flatten();
        let batches: Vec<_> = batches.map(|b| MessageSpan::of(b, size)).collect::<Result<_>>()?;
        Ok(Footer {
            schema,
            version: footer.version(),
            dictionaries,
            is_in_order: batches.is_sorted_by_key(|batch| batch.range().start),
            batches,
            stored: OnceCell::new(),
            _charge: charge,
        })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// A decoder that knows no dictionaries yet.
    pub(super) fn decoder(&self) -> FileDecoder {
        FileDecoder::new(self.schema.clone(), self.version)
    }

    /// The numbers of the batches that begin within `bytes`. Batches in another order than that of the footer all belong
    /// to the range that begins the file.
    pub(super) fn batches_within(&self, bytes: Option<Range<u64>>) -> Range<usize> {
        let all = 0..self.batches.len();
        let Some(bytes) = bytes else { return all };
        let before = |end| self.batches.partition_point(|batch| batch.range().start < end);
        match self.is_in_order {
            true => before(bytes.start)..before(bytes.end),
            false if bytes.start == 0 => all,
            false => 0..0,
        }
    }

    /// The end of the last of these batches that is read together with the bytes at `from`.
    pub(super) fn read_to(&self, from: u64, next: Range<usize>) -> u64 {
        let together = from..=from.saturating_add(AHEAD_BYTES);
        let ends = next.filter_map(|number| self.batch(number)).map(|batch| batch.range().end);
        ends.take_while(|end| together.contains(end)).last().unwrap_or(from)
    }

    pub(super) fn batch(&self, number: usize) -> Option<MessageSpan> {
        self.batches.get(number).copied()
    }

    /// The dictionaries of the file, which is read once.
    pub(super) async fn dictionaries(&self, file: &IpcFile) -> Result<Vec<(MessageSpan, Bytes)>> {
        let read = || async {
            let all = self.dictionaries.iter().map(|d| d.length).fold(0, u64::saturating_add);
            check::fits("dictionaries", all, file.limit)?;
            let mut stored = Vec::with_capacity(self.dictionaries.len());
            for place in &self.dictionaries {
                stored.push(file.read(place.range()).await?);
            }
            Ok::<_, DataFusionError>(stored)
        };
        let stored = self.stored.get_or_try_init(read).await?;
        Ok(self.dictionaries.iter().copied().zip(stored.iter().cloned()).collect())
    }
}
