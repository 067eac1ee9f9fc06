//! Chunks as Arrow IPC: the form in which workers exchange them, and in which they are stored for a run after a
//! failure.
//!
//! ```text
//!   stream of output 0 │ stream of output 1 │ … │ "tsr2" │ CRC-32 of all before, u32 LE
//! ```
//! An object has the chunks of one operand, each as a stream of the [IPC format]: a schema, record batches of at most
//! [`BATCH_BYTES`], and the end of the stream. Columns are the fields of the chunk, rows are its cells in row-major
//! order. `bool` is one byte a cell (`arrow.bool8`). The schema's metadata names the operand and says where the cells
//! are; metadata of a column is its dtype. Cells are encoded and decoded without a conversion, whatever their bits. The
//! columns of batches are [compressed](Compression) if so configured.
//!
//! | metadata | example |
//! |---|---|
//! | `tessera.stage` | `stage 3`, or the key of the stage |
//! | `tessera.operand`, `tessera.output` | `17`, `0` |
//! | `tessera.origin`, `tessera.shape` | `[0, 512]`, `[128, 512]` |
//! | `tessera.nanos` | nanoseconds that the operand took, `0` if they are not known |
//! | `tessera.dtype` of a column | `datetime64[us, noleap]` |
//!
//! [IPC format]: https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format

use super::{Chunk, Field, arrow_type, column};
use crate::error::Error;
use crate::pool::{Pool, PooledBuf};
use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer;
use arrow::datatypes::{self as types, DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::read_record_batch;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use arrow_ipc::{CompressionType, root_as_message};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, cells};

/// Upper bound on the cells of a record batch in bytes.
pub const BATCH_BYTES: u64 = 2 << 20;
/// Rows of a batch are a multiple of this, so that only the columns of the last batch need padding.
const ROWS: u64 = 64;
/// Begins the checksum, with the version of the format.
const SEAL: &[u8; 4] = b"tsr2";
const SEAL_BYTES: usize = 8;
/// Begins a message, before the length of its header.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Level of zstd: the fastest of the usual ones.
const ZSTD_LEVEL: i32 = 1;

/// How the columns of chunks are compressed. Whoever reads a chunk finds the codec in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all: a chunk is encoded without a copy.
    #[default]
    None,
    /// LZ4 frames.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// All of them.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    fn options(self) -> Result<IpcWriteOptions, ArrowError> {
        let (codec, level) = match self {
            Compression::None => (None, None),
            Compression::Lz4 => (Some(CompressionType::LZ4_FRAME), None),
            Compression::Zstd => (Some(CompressionType::ZSTD), Some(ZSTD_LEVEL)),
        };
        let options = IpcWriteOptions::default().try_with_compression(codec)?;
        options.try_with_compression_level(level)
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Compression::ALL.into_iter().find(|c| c.name() == text.trim());
        found.ok_or_else(|| format!("`{text}` is not one of `none`, `lz4` and `zstd`"))
    }
}

/// A message of an object.
#[derive(Debug, Clone)]
pub struct Message {
    /// The flatbuffer that describes the message.
    pub header: Bytes,
    /// The columns of a record batch, with their padding.
    pub body: Vec<Bytes>,
    /// Bytes of the object between this message and the next: the end of a stream, the checksum.
    pub after: Bytes,
}

impl Message {
    /// The bytes before the header of a message.
    pub fn prefix(header: &[u8]) -> [u8; 8] {
        let mut prefix = [0; 8];
        prefix[..4].copy_from_slice(&CONTINUATION);
        prefix[4..].copy_from_slice(&(header.len() as u32).to_le_bytes());
        prefix
    }

    /// The message as it is in the object, in parts.
    pub fn parts(self) -> impl Iterator<Item = Bytes> {
        let prefix = Bytes::copy_from_slice(&Message::prefix(&self.header));
        [prefix, self.header].into_iter().chain(self.body).chain([self.after])
    }

    /// Size in the object.
    pub fn bytes(&self) -> u64 {
        let body: usize = self.body.iter().map(Bytes::len).sum();
        (8 + self.header.len() + body + self.after.len()) as u64
    }
}

/// Upper bound on the size of an object of `bytes` of cells.
pub(crate) fn object_bytes_max(bytes: u64) -> u64 {
    // A batch has a header of some 200 bytes for each column, an output a schema of some 600.
    bytes.saturating_add(bytes / 1024).saturating_add(1 << 20)
}

/// The type of a column: one byte a cell for `bool`.
fn stored_type(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Int8,
        dtype => arrow_type(dtype),
    }
}

/// The columns of a chunk whose fields have these dtypes: `value`, `valid` if cells can be masked, or the parts of an
/// aggregate.
pub fn schema(dtypes: &[DType], metadata: HashMap<String, String>) -> Schema {
    let names: Vec<String> = match dtypes {
        [_] => vec!["value".into()],
        [_, DType::Bool] => vec!["value".into(), "valid".into()],
        _ => (0..dtypes.len()).map(|part| format!("part_{part}")).collect(),
    };
    let fields = dtypes.iter().zip(names).map(|(dtype, name)| {
        let mut of = HashMap::from([("tessera.dtype".to_owned(), dtype.to_string())]);
        if *dtype == DType::Bool {
            of.insert("ARROW:extension:name".into(), "arrow.bool8".into());
            of.insert("ARROW:extension:metadata".into(), String::new());
        }
        types::Field::new(name, stored_type(*dtype), false).with_metadata(of)
    });
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), metadata)
}

/// Encodes chunks of an operand as one object, without a copy of the cells unless they are compressed. `stage` names its
/// stage; each chunk comes with the number of its output and the index of its first cell.
///
/// # Errors
/// [`Error::Broken`] if Arrow refuses the schema.
pub(crate) fn encode<'a>(
    stage: &impl Display,
    number: u64,
    nanos: u64,
    compression: Compression,
    chunks: impl IntoIterator<Item = (u32, (&'a Arc<Chunk>, &'a Dims))>,
) -> Result<Vec<Message>, Error> {
    let broken = |e: ArrowError| Error::Broken { what: format!("a chunk as Arrow IPC: {e}") };
    let mut messages: Vec<Message> = Vec::new();
    for (output, (chunk, origin)) in chunks {
        let metadata = [
            ("tessera.stage", stage.to_string()),
            ("tessera.operand", number.to_string()),
            ("tessera.output", output.to_string()),
            ("tessera.origin", format!("{:?}", &**origin)),
            ("tessera.shape", format!("{:?}", chunk.shape())),
            ("tessera.nanos", nanos.to_string()),
        ];
        let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let dtypes: Vec<DType> = chunk.fields().iter().map(Field::dtype).collect();
        messages.extend(stream(chunk, schema(&dtypes, metadata), compression).map_err(broken)?);
    }
    let parts = messages.iter().cloned().flat_map(Message::parts);
    let mut crc = crc32fast::Hasher::new();
    parts.for_each(|part| crc.update(&part));
    if let Some(last) = messages.last_mut() {
        let seal = [&SEAL[..], &crc.finalize().to_le_bytes()[..]].concat();
        last.after = [&last.after[..], &seal[..]].concat().into();
    }
    Ok(messages)
}

fn stream(
    chunk: &Arc<Chunk>,
    schema: Schema,
    compression: Compression,
) -> Result<Vec<Message>, ArrowError> {
    let of_memory = |e: Error| ArrowError::MemoryError(e.to_string());
    let row: u64 = chunk.fields().iter().map(|f| f.dtype.size() as u64).sum();
    let step = (BATCH_BYTES / row.max(1) / ROWS * ROWS).max(ROWS) as usize;
    let all = chunk.cells() as usize;
    let held = (0..chunk.fields().len()).map(|f| chunk.held(f).map_err(of_memory));
    let held = held.collect::<Result<SmallVec<[Buffer; 2]>, _>>()?;
    let mut encoder = StreamEncoder::try_new_with_options(&schema, compression.options()?)?;
    let schema = Arc::new(schema);
    let mut buffers = Vec::new();
    for first in (0..all).step_by(step) {
        let rows = step.min(all - first);
        let columns = chunk.fields().iter().zip(&held);
        let columns = columns.map(|(field, held)| {
            column(stored_type(field.dtype), held.clone(), first..first + rows, None)
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema.clone(), columns, &options)?;
        buffers.extend(encoder.encode(&batch)?);
    }
    buffers.extend(encoder.finish()?);
    messages(buffers)
}

/// Parts the buffers of a stream into its messages.
fn messages(buffers: Vec<Buffer>) -> Result<Vec<Message>, ArrowError> {
    let cut = || ArrowError::IpcError("the encoder cut a message".into());
    let mut buffers = buffers.into_iter();
    let mut take = |mut bytes: usize| -> Result<Vec<Bytes>, ArrowError> {
        let mut parts = Vec::new();
        while bytes > 0 {
            let part = buffers.next().filter(|part| part.len() <= bytes).ok_or_else(cut)?;
            bytes -= part.len();
            parts.push(Bytes::from_owner(Owned(part)));
        }
        Ok(parts)
    };
    let mut messages: Vec<Message> = Vec::new();
    loop {
        let prefix = take(8)?.concat();
        let length = prefix.last_chunk::<4>().map_or(0, |n| u32::from_le_bytes(*n));
        if length == 0 {
            if let Some(last) = messages.last_mut() {
                last.after = prefix.into();
            }
            return Ok(messages);
        }
        let header = Bytes::from(take(length as usize)?.concat());
        let message = root_as_message(&header).map_err(|e| ArrowError::IpcError(e.to_string()))?;
        let body = take(message.bodyLength() as usize)?;
        messages.push(Message { header, body, after: Bytes::new() });
    }
}

/// A buffer that owns its bytes, as [`Bytes`] wants it.
struct Owned(Buffer);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Returns the chunks of an operand, and the nanoseconds that it took; `shapes` are the expected chunk shapes.
///
/// # Errors
/// The reason why the object is invalid: it belongs to another operand, is truncated, or is corrupt.
pub(crate) fn decode(
    object: &Bytes,
    stage: &impl Display,
    number: u64,
    shapes: &[Dims],
    pool: &Arc<Pool>,
) -> Result<(Vec<Chunk>, u64), String> {
    // Nothing is read before the checksum holds.
    let at = object.len().checked_sub(SEAL_BYTES).ok_or("it is cut off")?;
    let (streams, seal) = (object.slice(..at), object.slice(at..));
    if !seal.starts_with(SEAL) {
        return Err("it does not end as a chunk of this version does".into());
    }
    if seal[SEAL.len()..] != crc32fast::hash(&streams).to_le_bytes() {
        return Err("its checksum does not hold".into());
    }
    let mut rest = Buffer::from(streams);
    let mut chunks = Vec::with_capacity(shapes.len());
    let mut nanos = 0;
    for (output, shape) in shapes.iter().enumerate() {
        let schema = next_schema(&mut rest)?;
        let of = |key: &str| schema.metadata.get(key).map_or("", String::as_str);
        let (is_of, is_number) = (of("tessera.stage"), of("tessera.operand"));
        if is_of != stage.to_string() || is_number != number.to_string() {
            return Err(format!("it is chunk {is_number} of {is_of}"));
        }
        if of("tessera.output") != output.to_string()
            || of("tessera.shape") != format!("{:?}", &**shape)
        {
            return Err("its chunks have other shapes".into());
        }
        nanos = of("tessera.nanos").parse().map_err(|_| "its time is not a number")?;
        let mut columns = columns(&schema, shape, pool)?;
        // Padding is at most 64 bytes.
        let most = columns.iter().map(|c| c.buffer.len() as u64).max().unwrap_or(0) + 64;
        while let Some(batch) = next_batch(&mut rest, &schema, most)? {
            for (column, array) in columns.iter_mut().zip(batch.columns()) {
                column.append(array)?;
            }
        }
        let fields = columns.into_iter().map(Column::finish);
        let fields = fields.collect::<Result<SmallVec<[Field; 2]>, String>>()?;
        chunks.push(Chunk::new(shape, fields).map_err(|e| e.to_string())?);
    }
    match rest.is_empty() {
        true => Ok((chunks, nanos)),
        false => Err(format!("{} bytes follow its cells", rest.len())),
    }
}

/// Takes the first `bytes` bytes.
fn take(rest: &mut Buffer, bytes: usize) -> Result<Buffer, String> {
    if bytes > rest.len() {
        return Err("it is cut off".into());
    }
    let part = rest.slice_with_length(0, bytes);
    rest.advance(bytes);
    Ok(part)
}

/// The header of the next message; `None` at the end of a stream.
fn next_header(rest: &mut Buffer) -> Result<Option<Buffer>, String> {
    let prefix = take(rest, 8)?;
    let length = prefix.strip_prefix(&CONTINUATION).and_then(|n| n.first_chunk::<4>());
    let length = u32::from_le_bytes(*length.ok_or("a message does not begin as Arrow's do")?);
    match length {
        0 => Ok(None),
        length => take(rest, length as usize).map(Some),
    }
}

fn next_schema(rest: &mut Buffer) -> Result<SchemaRef, String> {
    let header = next_header(rest)?.ok_or("it has no schema")?;
    let message = root_as_message(&header).map_err(|e| e.to_string())?;
    let schema = message.header_as_schema().ok_or("it has too few outputs")?;
    Ok(Arc::new(fb_to_schema(schema)))
}

/// The next batch, whose buffers have at most `most` bytes each; `None` at the end of a stream.
fn next_batch(
    rest: &mut Buffer,
    schema: &SchemaRef,
    most: u64,
) -> Result<Option<RecordBatch>, String> {
    let Some(header) = next_header(rest)? else { return Ok(None) };
    let message = root_as_message(&header).map_err(|e| e.to_string())?;
    let body = usize::try_from(message.bodyLength()).map_err(|e| e.to_string())?;
    let body = take(rest, body)?;
    let batch = message.header_as_record_batch().ok_or("a message is not a batch")?;
    let version = message.version();
    if batch.compression().is_some() {
        // Arrow allocates the length that a buffer claims to have.
        for buffer in batch.buffers().into_iter().flatten() {
            let at = usize::try_from(buffer.offset()).unwrap_or(usize::MAX);
            let claimed = body.get(at..).and_then(|from| from.first_chunk::<8>());
            let claimed = claimed.map_or(0, |n| i64::from_le_bytes(*n));
            if buffer.length() > 0 && claimed > most.cast_signed() {
                return Err(format!("a buffer claims to have {claimed} bytes"));
            }
        }
    }
    read_record_batch(&body, batch, schema.clone(), &HashMap::new(), None, &version)
        .map(Some)
        .map_err(|e| e.to_string())
}

/// A field that is filled batch by batch.
struct Column {
    dtype: DType,
    buffer: PooledBuf,
    filled: usize,
}

fn columns(schema: &Schema, shape: &[u64], pool: &Arc<Pool>) -> Result<Vec<Column>, String> {
    let column = |field: &Arc<types::Field>| {
        let dtype = field.metadata().get("tessera.dtype").and_then(|name| DType::parse(name));
        let dtype = dtype.ok_or_else(|| format!("column `{}` has no dtype", field.name()))?;
        if stored_type(dtype) != *field.data_type() {
            return Err(format!("{} is not stored as {}", field.data_type(), dtype));
        }
        let bytes = cells(shape).and_then(|n| n.checked_mul(dtype.size() as u64));
        let buffer = pool.take(bytes.ok_or("its shape has too many cells")? as usize);
        Ok(Column { dtype, buffer, filled: 0 })
    };
    schema.fields().iter().map(column).collect()
}

impl Column {
    fn append(&mut self, array: &ArrayRef) -> Result<(), String> {
        let data = array.to_data();
        let size = self.dtype.size();
        let (first, bytes) = (data.offset() * size, data.len() * size);
        let from = data.buffers().first().and_then(|b| b.get(first..first + bytes));
        let to = self.buffer.as_mut_slice().get_mut(self.filled..self.filled + bytes);
        match (from, to) {
            (Some(from), Some(to)) if data.null_count() == 0 => to.copy_from_slice(from),
            _ => return Err("it has more cells than its shape".into()),
        }
        self.filled += bytes;
        Ok(())
    }

    fn finish(self) -> Result<Field, String> {
        match self.filled == self.buffer.len() {
            true => Field::from_pooled(self.dtype, self.buffer).map_err(|e| e.to_string()),
            false => Err("it has fewer cells than its shape".into()),
        }
    }
}
