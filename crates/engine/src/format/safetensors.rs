//! Safetensors: a JSON header, then the cells of each tensor.
//!
//! ```text
//!   length of the header, 8 bytes │ {"x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, …}  │ cells of x │ …
//! ```
//! Tensors are in the order of the reference implementation, so that a file has the same bytes as one of it: wide types
//! first, then by name. The header is padded with spaces to a multiple of eight bytes.
//!
//! # Source
//! <https://github.com/huggingface/safetensors>, README, "Format", and `safetensors/src/tensor.rs` (0.8).

use super::fill::WINDOW_CELLS;
use super::writer::{Options, output};
use super::{fill, npy};
use crate::answer::{Windows, windows};
use crate::error::Error;
use half::{bf16, f16};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use tessera_planner::dtype::DType;

const FORMAT: &str = "safetensors";

/// Upper bound on the bytes of a header, which is that of the reference implementation.
const HEADER_BYTES_MAX: usize = 100_000_000;

/// A narrow type that floats are rounded to, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl Narrow {
    /// Parses `f16` or `bf16`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "f16" | "float16" => Some(Narrow::F16),
            "bf16" | "bfloat16" => Some(Narrow::Bf16),
            _ => None,
        }
    }

    fn bytes(self, v: f64) -> [u8; 2] {
        match self {
            Narrow::F16 => f16::from_f64(v).to_le_bytes(),
            Narrow::Bf16 => bf16::from_f64(v).to_le_bytes(),
        }
    }
}

/// One tensor of a file.
struct TensorEntry<'a> {
    name: &'a str,
    tensor: &'a dyn Windows,
    code: &'static str,
    /// Position of the type in the reference's order.
    order: u8,
    narrow: Option<Narrow>,
    bytes: u64,
}

/// Writes all tensors.
pub(super) fn write(
    tensors: &[&dyn Windows],
    o: &Options,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut entries: Vec<TensorEntry<'_>> =
        tensors.iter().map(|t| TensorEntry::new(*t, o.narrow)).collect::<Result<_, _>>()?;
    let mut names = BTreeSet::new();
    if let Some(twice) = entries.iter().find(|e| !names.insert(e.name)) {
        return Err(refused(
            format!("two tensors are called `{}`", twice.name),
            "give each a name with AS",
        ));
    }
    entries.sort_by(|a, b| b.order.cmp(&a.order).then_with(|| a.name.cmp(b.name)));
    for entry in &entries {
        npy::check_masks(FORMAT, entry.tensor, out)?;
    }
    let header = header(&entries, o)?;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(output)?;
    out.write_all(&header).map_err(output)?;
    entries.iter().try_for_each(|e| e.write(out))
}

fn header(entries: &[TensorEntry<'_>], o: &Options) -> Result<Vec<u8>, Error> {
    let mut all = Map::new();
    if !o.metadata.is_empty() {
        all.insert("__metadata__".into(), json!(o.metadata));
    }
    let mut at = 0u64;
    for e in entries {
        let end = at + e.bytes;
        let shape = Value::from(e.tensor.head().shape().to_vec());
        let tensor = json!({"dtype": e.code, "shape": shape, "data_offsets": [at, end]});
        all.insert(e.name.into(), tensor);
        at = end;
    }
    let mut text = Value::Object(all).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() > HEADER_BYTES_MAX {
        let reason = format!("its header has {} bytes (limit {HEADER_BYTES_MAX})", text.len());
        return Err(refused(reason, "write fewer tensors, or several files"));
    }
    Ok(text)
}

impl<'a> TensorEntry<'a> {
    fn new(tensor: &'a dyn Windows, narrow: Option<Narrow>) -> Result<Self, Error> {
        use DType::*;
        let head = tensor.head();
        let narrow = narrow.filter(|_| head.dtype.is_float());
        let (order, code) = match (head.dtype, narrow) {
            (Bool, _) => (0, "BOOL"),
            (UInt8, _) => (1, "U8"),
            (Int8, _) => (2, "I8"),
            (Int16, _) => (3, "I16"),
            (UInt16, _) => (4, "U16"),
            (_, Some(Narrow::F16)) => (5, "F16"),
            (_, Some(Narrow::Bf16)) => (6, "BF16"),
            (Int32, _) => (7, "I32"),
            (UInt32, _) => (8, "U32"),
            (Float32, _) => (9, "F32"),
            (Float64, _) => (10, "F64"),
            (Int64, _) => (11, "I64"),
            (UInt64, _) => (12, "U64"),
            (Datetime(_), _) => {
                return Err(refused(
                    format!("`{}` is a datetime", head.name),
                    "cast it to int64, which counts microseconds since 1970",
                ));
            }
        };
        if head.name == "__metadata__" {
            let reason = format!("`{}` cannot be the name of a tensor", head.name);
            return Err(refused(reason, "give it another name with AS"));
        }
        let size = if narrow.is_some() { 2 } else { head.dtype.size() as u64 };
        Ok(TensorEntry { name: head.name, tensor, code, order, narrow, bytes: head.cells() * size })
    }

    fn write(&self, out: &mut dyn Write) -> Result<(), Error> {
        let dtype = self.tensor.head().dtype;
        for window in windows(&self.tensor.head().shape(), WINDOW_CELLS) {
            let cells = self.tensor.window(&window)?;
            let bytes = npy::filled(FORMAT, dtype, &cells.data, cells.valid.as_deref())?;
            let bytes = match self.narrow {
                None => bytes,
                Some(to) => fill::floats(dtype, &bytes).flat_map(|v| to.bytes(v)).collect(),
            };
            out.write_all(&bytes).map_err(output)?;
        }
        Ok(())
    }
}

fn refused(reason: String, hint: &str) -> Error {
    Error::format(FORMAT, reason, hint)
}
