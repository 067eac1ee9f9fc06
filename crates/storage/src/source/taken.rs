//! Removes parts of an array's metadata before zarrs parses them: codecs that it does not have or computes otherwise,
//! types that it does not have, extensions that may be ignored.

use crate::source::cells::Raw;
use crate::source::cf;
use crate::source::error::SourceError;
use crate::source::meta::Who;
use crate::source::scaled::{Scaled, is_scaled};
use serde_json::{Map, Value};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// Removed codecs, which are decoded here.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// True if chunks are compressed by numcodecs' LZ4, after all other codecs.
    pub(crate) lz4: bool,
    /// The conversion of stored numbers, and the cell value of absent chunks.
    pub(crate) scaled: Option<(Scaled, Vec<u8>)>,
}

/// Top-level keys of Zarr v3's array metadata.
const ARRAY_KEYS: [&str; 11] = [
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "dimension_names",
    "storage_transformers",
];

/// Top-level keys of Zarr v3's group metadata.
const GROUP_KEYS: [&str; 4] = ["zarr_format", "node_type", "attributes", "consolidated_metadata"];

/// Removes extensions that a reader may ignore from the metadata of an array.
///
/// # Errors
/// The first extension that a reader must understand: every one that is not marked as optional.
///
/// # Source
/// Zarr v3.1, "Extension points": an unknown key is an error, unless it is an object with `must_understand` false.
pub(crate) fn extensions_of_array(
    who: Who<'_>,
    doc: &mut Map<String, Value>,
) -> Result<(), SourceError> {
    extensions(who, doc, &ARRAY_KEYS)?;
    if let Some(Value::Array(all)) = doc.get_mut("storage_transformers") {
        if let Some(one) = all.iter().find(|t| !is_optional(t)) {
            let name = one.get("name").or(Some(one)).and_then(Value::as_str).unwrap_or("?");
            return Err(who.unsupported(format!("storage transformer `{name}`")));
        }
        all.clear();
    }
    Ok(())
}

/// As [`extensions_of_array`], of a group.
pub(crate) fn extensions_of_group(
    who: Who<'_>,
    doc: &Map<String, Value>,
) -> Result<(), SourceError> {
    extensions(who, &mut doc.clone(), &GROUP_KEYS)
}

fn extensions(
    who: Who<'_>,
    doc: &mut Map<String, Value>,
    known: &[&str],
) -> Result<(), SourceError> {
    let unknown = |(key, value): (&String, &Value)| !known.contains(&&**key) && !is_optional(value);
    if let Some((key, _)) = doc.iter().find(|&(k, v)| unknown((k, v))) {
        return Err(who.unsupported(format!("extension `{key}`, which must be understood,")));
    }
    doc.retain(|key, _| known.contains(&&**key));
    Ok(())
}

fn is_optional(extension: &Value) -> bool {
    extension.get("must_understand") == Some(&Value::Bool(false))
}

/// Removes codecs and types from Zarr v3's metadata of an array of `raw`.
pub(crate) fn take_v3(
    who: Who<'_>,
    doc: &mut Map<String, Value>,
    raw: &Raw,
) -> Result<Taken, SourceError> {
    if let Raw::Bytes { len } = raw {
        doc.insert("data_type".into(), format!("r{}", len * 8).into());
        doc.insert("fill_value".into(), vec![0; *len as usize].into());
    }
    let mut taken = Taken::default();
    let Some(list) = innermost(doc) else { return Ok(taken) };
    let named = |codec: &Value, names: &[&str]| {
        let name = codec.get("name").or(Some(codec)).and_then(Value::as_str);
        name.is_some_and(|n| names.contains(&n))
    };
    if list.last().is_some_and(|c| named(c, &["numcodecs.lz4", "lz4"])) {
        list.pop();
        taken.lz4 = true;
    }
    if let Some(codec) = take_scaled(who, list)? {
        let config = codec.get("configuration").cloned().unwrap_or_default();
        let scaled = scaled(who, &config, raw)?;
        let fill = fill_cell(who, doc.get("fill_value"), scaled.dtype)?;
        let stored = match &scaled.stored {
            Raw::Half => "float16".to_string(),
            raw => raw.dtype().map_or_else(String::new, DType::name),
        };
        doc.insert("data_type".into(), stored.into());
        doc.insert("fill_value".into(), 0.into());
        taken.scaled = Some((scaled, fill));
    }
    Ok(taken)
}

/// As [`take_v3`], from Zarr v2's metadata.
pub(crate) fn take_v2(
    who: Who<'_>,
    doc: &mut Map<String, Value>,
    raw: &Raw,
) -> Result<Taken, SourceError> {
    if let Raw::Bytes { len } = raw {
        doc.insert("dtype".into(), format!("|V{len}").into());
        doc.insert("fill_value".into(), vec![0; *len as usize].into());
    }
    let mut taken = Taken::default();
    if doc.get("compressor").and_then(|c| c.get("id")).and_then(Value::as_str) == Some("lz4") {
        doc.insert("compressor".into(), Value::Null);
        taken.lz4 = true;
    }
    let Some(Value::Array(filters)) = doc.get_mut("filters") else { return Ok(taken) };
    if let Some(codec) = take_scaled(who, filters)? {
        if filters.is_empty() {
            doc.insert("filters".into(), Value::Null);
        }
        let scaled = scaled(who, &codec, raw)?;
        let fill = fill_cell(who, doc.get("fill_value"), scaled.dtype)?;
        doc.insert("dtype".into(), scaled.name.clone().into());
        doc.insert("fill_value".into(), 0.into());
        taken.scaled = Some((scaled, fill));
    }
    Ok(taken)
}

/// The codecs of the unit of decoding: those of a chunk, or of an inner chunk of a shard.
fn innermost(doc: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    let list = doc.get_mut("codecs")?.as_array_mut()?;
    let is_shard = |c: &Value| c.get("name").and_then(Value::as_str) == Some("sharding_indexed");
    match list.len() == 1 && list.iter().any(is_shard) {
        true => list[0].get_mut("configuration")?.get_mut("codecs")?.as_array_mut(),
        false => Some(list),
    }
}

/// Removes the codec if it is the first one.
fn take_scaled(who: Who<'_>, list: &mut Vec<Value>) -> Result<Option<Value>, SourceError> {
    match list.iter().position(is_scaled) {
        None => Ok(None),
        Some(0) if !list[1..].iter().any(is_scaled) => Ok(Some(list.remove(0))),
        Some(_) => Err(who.unsupported("codec `fixedscaleoffset` behind other filters")),
    }
}

fn scaled(who: Who<'_>, config: &Value, raw: &Raw) -> Result<Scaled, SourceError> {
    let Some((config, dtype)) = config.as_object().zip(raw.dtype()) else {
        return Err(who.bad("codec `fixedscaleoffset` has no configuration"));
    };
    Scaled::parse(config, dtype)
        .map_err(|reason| who.unsupported(format!("codec `fixedscaleoffset`: {reason}; it")))
}

fn fill_cell(who: Who<'_>, value: Option<&Value>, dtype: DType) -> Result<Vec<u8>, SourceError> {
    let fill = match value {
        None | Some(Value::Null) => Scalar::zero(dtype),
        Some(v) => cf::fill(v, dtype).ok_or_else(|| who.bad(format!("`fill_value` is {v}")))?,
    };
    let mut cell = fill.to_le_bytes()[..dtype.size()].to_vec();
    if cfg!(target_endian = "big") {
        cell.reverse();
    }
    Ok(cell)
}
