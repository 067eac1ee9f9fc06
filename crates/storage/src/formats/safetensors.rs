//! Safetensors: a JSON header and the cells of each tensor, contiguous.
//!
//! # Source
//! <https://github.com/huggingface/safetensors>, README, "Format".

use crate::formats::view::{Fault, PAGE, View};
use crate::formats::{Cells, FileArray, Format, Group, Unreadable, Why};
use crate::source::cells::Raw;
use serde_json::{Map, Value};
use tessera_planner::catalog::Attrs;
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, RANK_MAX};

/// Upper bound on the bytes of a header, which is that of the reference implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// See the module.
pub(crate) struct Safetensors;

impl Format for Safetensors {
    fn name(&self) -> &'static str {
        "safetensors"
    }

    fn keys(&self) -> &'static [&'static str] {
        &["safetensors"]
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["safetensors"]
    }

    fn is(&self, head: &[u8], len: u64) -> bool {
        let Some((n, rest)) = head.split_first_chunk::<8>() else { return false };
        let n = u64::from_le_bytes(*n);
        (2..=HEADER_BYTES_MAX).contains(&n)
            && n <= len - 8
            && rest.first() == Some(&b'{')
            // A header that is here whole is an object of objects.
            && (n > PAGE - 8 || header(&rest[..n as usize]).is_some())
    }

    fn read(&self, file: &View<'_>, group: &str) -> Result<Option<Group>, Fault> {
        if !group.is_empty() {
            return Ok(None);
        }
        let n = file.read(0, 8)?;
        let n = n.first_chunk().map_or(0, |n| u64::from_le_bytes(*n));
        if n > HEADER_BYTES_MAX {
            let reason = format!("a header of {n} bytes, at most {HEADER_BYTES_MAX} are read");
            return Err(Fault::bad(0, reason));
        }
        let text = file.read(8, n)?;
        let mut all = header(&text)
            .ok_or_else(|| Fault::bad(8, "the header is not a JSON object of objects"))?;
        let mut out = Group::default();
        if let Some(Value::Object(attrs)) = all.remove("__metadata__") {
            out.attrs = attrs.into_iter().collect();
        }
        let data = n + 8;
        for (name, tensor) in all {
            let made = array(&tensor, data, file.len());
            out.arrays.insert(name, made);
        }
        Ok(Some(out))
    }
}

fn header(text: &[u8]) -> Option<Map<String, Value>> {
    let all: Map<String, Value> = serde_json::from_slice(text).ok()?;
    all.values().all(Value::is_object).then_some(all)
}

/// A tensor of the header; cells begin at the offset `data` of the file.
fn array(tensor: &Value, data: u64, len: u64) -> Result<FileArray, Unreadable> {
    let fail = |why| Unreadable { why, dims: Vec::new(), attrs: Attrs::new() };
    let bad = |reason: String| fail(Why::Bad(reason));
    let dtype = tensor.get("dtype").and_then(Value::as_str).unwrap_or_default();
    let numbers = |key: &str| -> Option<Dims> {
        tensor.get(key)?.as_array()?.iter().map(Value::as_u64).collect()
    };
    let shape = numbers("shape").ok_or_else(|| bad("`shape` is not a list of lengths".into()))?;
    let offsets = numbers("data_offsets").filter(|o| o.len() == 2);
    let offsets = offsets.ok_or_else(|| bad("`data_offsets` is not a pair of offsets".into()))?;
    let raw = raw(dtype).ok_or_else(|| fail(Why::DType(dtype.into())))?;
    if shape.len() > RANK_MAX {
        return Err(fail(Why::Unsupported(format!("an array of {} axes", shape.len()))));
    }
    let bytes = shape.iter().try_fold(raw.size(), |n, &d| n.checked_mul(d));
    let end = offsets[1].checked_add(data);
    if bytes.is_none() || offsets[1].checked_sub(offsets[0]) != bytes || end.is_none_or(|e| e > len)
    {
        return Err(bad(format!(
            "`data_offsets` are {} and {}, the shape has {} bytes, and {} follow the header",
            offsets[0],
            offsets[1],
            bytes.map_or_else(|| "more than 2^64".into(), |b| b.to_string()),
            len - data.min(len)
        )));
    }
    let (dims, cells) = (vec![None; shape.len()], Cells::Flat(data + offsets[0]));
    Ok(FileArray::new(dims, shape, raw, Attrs::new(), cells))
}

fn raw(dtype: &str) -> Option<Raw> {
    use DType::*;
    Some(match dtype {
        "BOOL" => Raw::Plain(Bool),
        "I8" => Raw::Plain(Int8),
        "I16" => Raw::Plain(Int16),
        "I32" => Raw::Plain(Int32),
        "I64" => Raw::Plain(Int64),
        "U8" => Raw::Plain(UInt8),
        "U16" => Raw::Plain(UInt16),
        "U32" => Raw::Plain(UInt32),
        "U64" => Raw::Plain(UInt64),
        "F16" => Raw::Half,
        "BF16" => Raw::Brain,
        "F8_E4M3" => Raw::E4M3,
        "F8_E5M2" => Raw::E5M2,
        "F32" => Raw::Plain(Float32),
        "F64" => Raw::Plain(Float64),
        _ => return None,
    })
}
