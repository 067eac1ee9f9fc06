//! Removes parts of an array's metadata before zarrs parses them: codecs that it does not have or computes otherwise,
//! types that it does not have, extensions that may be ignored.

use crate::source::cells::Raw;
use crate::source::cf;
use crate::source::coords::native_bytes;
use crate::source::error::SourceError;
use crate::source::meta::Who;
use crate::source::steps::{self, Steps};
use crate::source::tail::{self, Tail};
use serde_json::{Map, Value};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// Removed codecs, which are decoded here.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// Codecs of bytes, after all other codecs.
    pub(crate) tail: Tail,
    /// The conversion of stored cells, and the cell value of absent chunks.
    pub(crate) steps: Option<(Steps, Vec<u8>)>,
    /// The type of texts that are stored as numbers.
    pub(crate) codes: Option<Raw>,
    /// True if codecs of cells were removed, also codecs that change nothing when they are undone.
    pub(crate) has_filters: bool,
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
/// The first extension that a reader must understand: any extension that is not marked as optional.
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

/// Like [`extensions_of_array`], for a group.
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
    if let Some(at) = tail::position(list) {
        taken.tail = tail_of(who, &list.split_off(at))?;
    }
    tail::spell_out(list, raw.size());
    // zarrs rounds nothing when it undoes `bitround`, and an append needs the codec.
    let count = steps::count(list);
    let is_bitround = |codec: &Value| steps::misplaced(std::slice::from_ref(codec)).is_none();
    let first: Vec<Value> = match list[..count].iter().all(is_bitround) {
        true => Vec::new(),
        false => list.drain(..count).collect(),
    };
    check_rest(who, list)?;
    taken.has_filters = !first.is_empty();
    if let Some(steps) = steps_of(who, &first, raw, &raw.numpy_name(), false)? {
        let fill = fill_cell(who, doc.get("fill_value"), steps.dtype)?;
        let stored = match &steps.stored {
            Raw::Half => "float16".to_string(),
            raw => raw.dtype().map_or_else(String::new, DType::name),
        };
        doc.insert("data_type".into(), stored.into());
        doc.insert("fill_value".into(), no_fill(&steps));
        taken.steps = Some((steps, fill));
    }
    Ok(taken)
}

/// Like [`take_v3`], from Zarr v2's metadata of an array of NumPy's type `dtype`.
pub(crate) fn take_v2(
    who: Who<'_>,
    doc: &mut Map<String, Value>,
    (raw, dtype): (&Raw, &str),
    rank: usize,
) -> Result<Taken, SourceError> {
    if let Raw::Bytes { len } = raw {
        doc.insert("dtype".into(), format!("|V{len}").into());
        doc.insert("fill_value".into(), vec![0; *len as usize].into());
    }
    let mut taken = Taken::default();
    let is_fortran = doc.get("order").and_then(Value::as_str) == Some("F") && rank > 1;
    let mut list = match doc.get("filters") {
        Some(Value::Array(filters)) => filters.clone(),
        _ => Vec::new(),
    };
    if let Some((codes, name)) = categories(who, &list, raw)? {
        let is_none = |f: &Value| f.is_null() || f.as_str() == Some("") || f.as_i64() == Some(0);
        if let Some(fill) = doc.get("fill_value").filter(|f| !is_none(f)) {
            return Err(who.unsupported(format!("codec `categorize` with the fill value {fill}")));
        }
        list.remove(0);
        doc.insert("dtype".into(), name.into());
        doc.insert("fill_value".into(), 0.into());
        taken.codes = Some(codes);
    }
    let filters = list.len();
    list.extend(doc.get("compressor").filter(|c| !c.is_null()).cloned());
    // zarrs takes `blosc` as the compressor alone.
    let is_blosc = |f: &Value| f.get("id").and_then(Value::as_str) == Some("blosc");
    let blosc = list[..filters].iter().position(is_blosc);
    if let Some(at) = tail::position(&list).into_iter().chain(blosc).min() {
        taken.tail = tail_of(who, &list.split_off(at))?;
        doc.insert("compressor".into(), Value::Null);
    }
    list.truncate(filters);
    let first: Vec<Value> = list.drain(..steps::count(&list)).collect();
    check_rest(who, &list)?;
    taken.has_filters = !first.is_empty() || taken.codes.is_some();
    if taken.has_filters || !taken.tail.is_empty() {
        let rest = if list.is_empty() { Value::Null } else { list.into() };
        doc.insert("filters".into(), rest);
    }
    if let Some(steps) = steps_of(who, &first, raw, dtype, is_fortran)? {
        let fill = fill_cell(who, doc.get("fill_value"), steps.dtype)?;
        doc.insert("dtype".into(), steps.name.clone().into());
        doc.insert("fill_value".into(), no_fill(&steps));
        // Filters see cells in the order in which they are stored; so zarrs leaves it to the steps.
        doc.insert("order".into(), "C".into());
        taken.steps = Some((steps, fill));
    }
    Ok(taken)
}

/// The type of texts that the first filter stores as numbers, and NumPy's name of the type of the numbers.
///
/// # Source
/// numcodecs 0.16, `numcodecs.categorize`.
fn categories(
    who: Who<'_>,
    list: &[Value],
    raw: &Raw,
) -> Result<Option<(Raw, String)>, SourceError> {
    let is_this = |codec: &&Value| codec.get("id").and_then(Value::as_str) == Some("categorize");
    let Some(codec) = list.first().filter(is_this) else { return Ok(None) };
    if !matches!(raw, Raw::Utf32 { .. } | Raw::Utf8) {
        return Err(who.unsupported("codec `categorize` of cells that are no texts"));
    }
    let bad = |reason: &str| who.bad(format!("codec `categorize`: {reason}"));
    let labels = codec.get("labels").and_then(Value::as_array);
    let texts = |all: &Vec<Value>| {
        all.iter().map(|label| label.as_str().map(str::to_string)).collect::<Option<Vec<_>>>()
    };
    let labels = labels.and_then(texts).ok_or_else(|| bad("`labels` is not a list of texts"))?;
    let name = codec.get("astype").and_then(Value::as_str).unwrap_or("|u1");
    match steps::numpy_type(name) {
        Some((Raw::Plain(code), name)) if code.is_integer() => {
            Ok(Some((Raw::Codes { code, labels: labels.into() }, name)))
        }
        _ => Err(bad(&format!("`astype` is `{name}`, which is no type of integers"))),
    }
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

fn tail_of(who: Who<'_>, list: &[Value]) -> Result<Tail, SourceError> {
    tail::parse(list).map_err(|what| who.unsupported(what))
}

/// Checks that no codec is left that is undone here.
fn check_rest(who: Who<'_>, list: &[Value]) -> Result<(), SourceError> {
    match steps::misplaced(list) {
        Some(name) => Err(who.unsupported(format!("codec `{name}` behind other filters"))),
        None => Ok(()),
    }
}

fn steps_of(
    who: Who<'_>,
    list: &[Value],
    raw: &Raw,
    name: &str,
    is_fortran: bool,
) -> Result<Option<Steps>, SourceError> {
    match list.is_empty() {
        true => Ok(None),
        false => {
            Steps::parse(list, raw, name, is_fortran).map_err(|reason| who.unsupported(reason))
        }
    }
}

/// A fill value of the stored type: absent chunks have that of the array.
fn no_fill(steps: &Steps) -> Value {
    match steps.stored {
        Raw::Plain(DType::Bool) => false.into(),
        _ => 0.into(),
    }
}

fn fill_cell(who: Who<'_>, value: Option<&Value>, dtype: DType) -> Result<Vec<u8>, SourceError> {
    let fill = match value {
        None | Some(Value::Null) => Scalar::zero(dtype),
        Some(v) => cf::fill(v, dtype).ok_or_else(|| who.bad(format!("`fill_value` is {v}")))?,
    };
    Ok(native_bytes(fill)[..dtype.size()].to_vec())
}
