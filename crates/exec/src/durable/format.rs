//! The object of one operand: all chunks that it makes.
//!
//! ```text
//!   "tessera chunk 1\n" │ length of the header, u32 LE │ its CRC-32, u32 LE │ header, JSON │ fields, one after another
//! ```
//! The header has the operand, the time that it took to compute, and the type and the CRC-32 of each field. Fields are
//! stored as in memory (little-endian; on a big-endian machine the first line differs).

use crate::chunk::{Chunk, Field};
use crate::pool::Pool;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt::Display;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, cells};

/// The first line, with the version of the format.
const MAGIC: &[u8; 16] = match cfg!(target_endian = "little") {
    true => b"tessera chunk 1\n",
    false => b"TESSERA CHUNK 1\n",
};
const FRONT: usize = 24;
/// Upper bound on the bytes of a header: that of three outputs of three fields has some 700 bytes.
pub(crate) const HEADER_BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    key: String,
    number: u64,
    nanos: u64,
    outputs: SmallVec<[Output; 1]>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Output {
    shape: Dims,
    /// Type and CRC-32 of each field.
    fields: SmallVec<[(DType, u32); 2]>,
}

/// A field's bytes, with the chunk that owns them and is charged for them.
struct Cells(Arc<Chunk>, usize);

impl AsRef<[u8]> for Cells {
    fn as_ref(&self) -> &[u8] {
        self.0.fields().get(self.1).map_or(&[], |f| f.buffer().as_slice())
    }
}

/// Encodes the object in parts, without a copy of the cells.
pub(crate) fn encode(
    key: &impl Display,
    number: u64,
    nanos: u64,
    chunks: &[Arc<Chunk>],
) -> Vec<Bytes> {
    let output = |chunk: &Arc<Chunk>| Output {
        shape: chunk.shape().into(),
        fields: chunk.fields().iter().map(|f| (f.dtype(), crc32fast::hash(f.buffer()))).collect(),
    };
    let outputs = chunks.iter().map(output).collect();
    let header = Header { key: key.to_string(), number, nanos, outputs };
    // Numbers and names of types always have a JSON form. An object without one would be rejected on read.
    let header = serde_json::to_vec(&header).unwrap_or_default();
    let mut front = Vec::with_capacity(FRONT + header.len());
    front.extend(MAGIC);
    front.extend((header.len() as u32).to_le_bytes());
    front.extend(crc32fast::hash(&header).to_le_bytes());
    front.extend(header);
    let cells = chunks.iter().flat_map(|chunk| {
        let fields = 0..chunk.fields().len();
        fields.map(|f| Bytes::from_owner(Cells(chunk.clone(), f)))
    });
    std::iter::once(front.into()).chain(cells).collect()
}

/// Returns the chunks of an operand, and the nanoseconds that it took; `shapes` are the expected chunk shapes.
///
/// # Errors
/// The reason why the object is invalid: it belongs to another operand, is truncated, or is corrupt.
pub(crate) fn decode(
    object: &[u8],
    key: &impl Display,
    number: u64,
    shapes: &[Dims],
    pool: &Arc<Pool>,
) -> Result<(Vec<Chunk>, u64), String> {
    let (front, rest) = object.split_at_checked(FRONT).ok_or("it has no header")?;
    if !front.starts_with(MAGIC) {
        return Err("it does not begin as a chunk of this version does".into());
    }
    let word =
        |at: usize| u32::from_le_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
    let (header, mut rest) =
        rest.split_at_checked(word(16) as usize).ok_or("its header is cut off")?;
    if crc32fast::hash(header) != word(20) {
        return Err("the checksum of its header does not hold".into());
    }
    let header: Header = serde_json::from_slice(header).map_err(|e| e.to_string())?;
    if header.key != key.to_string() || header.number != number {
        return Err(format!("it is chunk {} of {}", header.number, header.key));
    }
    if !header.outputs.iter().map(|o| &o.shape).eq(shapes) {
        return Err("its chunks have other shapes".into());
    }
    let mut chunks = Vec::with_capacity(header.outputs.len());
    for output in &header.outputs {
        let mut fields: SmallVec<[Field; 2]> = SmallVec::new();
        for &(dtype, crc) in &output.fields {
            let len = cells(&output.shape).unwrap_or(u64::MAX).saturating_mul(dtype.size() as u64);
            let (bytes, after) =
                rest.split_at_checked(len as usize).ok_or("its cells are cut off")?;
            rest = after;
            if crc32fast::hash(bytes) != crc {
                return Err("the checksum of its cells does not hold".into());
            }
            let mut buffer = pool.take(bytes.len());
            buffer.as_mut_slice().copy_from_slice(bytes);
            fields.push(Field::from_pooled(dtype, buffer).map_err(|e| e.to_string())?);
        }
        chunks.push(Chunk::new(&output.shape, fields).map_err(|e| e.to_string())?);
    }
    match rest.is_empty() {
        true => Ok((chunks, header.nanos)),
        false => Err(format!("{} bytes follow its cells", rest.len())),
    }
}
