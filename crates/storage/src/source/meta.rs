//! Validated metadata of one array: its numbers need no further checks.

use crate::source::cells::Raw;
use crate::source::codecs::{Chain, Codecs};
use crate::source::error::SourceError;
use crate::source::fills;
use crate::source::taken::{self, Taken};
use serde_json::Value;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tessera_planner::catalog::{Attrs, parse_json};
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, RANK_MAX, cells};
use zarrs::array::codec::CodecChain;
use zarrs::array::{Array, ArrayCreateError, ArrayMetadata};
use zarrs::metadata_ext::codec::sharding::{ShardingCodecConfiguration, ShardingIndexLocation};

/// Upper bound on the decoded bytes of a chunk.
pub(crate) const CHUNK_BYTES_MAX: u64 = 2 << 30;

/// Upper bound on the inner chunks of a shard: its index has 16 bytes for each.
const SHARD_CHUNKS_MAX: u64 = 1 << 24;

/// One array as its metadata describe it.
#[derive(Debug)]
pub(crate) struct ArrayMeta {
    /// Length of each axis.
    pub(crate) shape: Dims,
    /// Shape of the unit of decoding: a stored chunk, or an inner chunk of a shard.
    pub(crate) unit: Dims,
    /// The stored type of the cells.
    pub(crate) raw: Raw,
    /// Codecs that are decoded here instead of in zarrs.
    pub(crate) taken: Taken,
    /// Zarr v2's `fill_value` if it marks missing cells: it is not null, and `_ARRAY_DIMENSIONS` says that the array is
    /// xarray's. That of another array is the value of absent chunks, no more.
    pub(crate) fill_v2: Option<Value>,
    /// Attributes without `_ARRAY_DIMENSIONS`.
    pub(crate) attrs: Attrs,
    /// Names of attributes that are `float32`.
    pub(crate) narrow: Vec<String>,
    /// Names of the dimensions; a name that occurs twice counts as none.
    pub(crate) dims: Vec<Option<Arc<str>>>,
    /// Zarr's keys, type and codecs; none of an array in a file of another format.
    pub(crate) zarr: Option<Array<()>>,
    /// The cell of absent chunks, in the type of [`ArrayMeta::dtype`].
    pub(crate) fill: Vec<u8>,
    pub(crate) codecs: Codecs,
    /// Layout of units in shards.
    pub(crate) shard: Option<Shard>,
}

/// The layout of a shard.
///
/// # Source
/// Zarr v3, `sharding_indexed` codec, version 1.0.
#[derive(Debug)]
pub(crate) struct Shard {
    /// Units of a shard along each axis.
    pub(crate) counts: Dims,
    pub(crate) index_chain: CodecChain,
    pub(crate) index_bytes: u64,
    /// True if the index is at the end of the shard, false if at the start.
    pub(crate) at_end: bool,
}

impl ArrayMeta {
    /// True if a decoded chunk has its cells in their form in memory.
    pub(crate) fn is_in_memory_order(&self) -> bool {
        self.raw.is_verbatim() && self.taken.steps.is_none()
    }

    /// The type that readers return; texts have none.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match &self.taken.steps {
            Some((steps, _)) => Some(steps.dtype),
            None => self.raw.dtype(),
        }
    }

    /// Converts decoded cells to the type of [`ArrayMeta::dtype`]; the error describes the damage.
    pub(crate) fn finish<'a>(&self, cells: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>, String> {
        match &self.taken.steps {
            Some((steps, _)) => steps.undo(cells, &self.unit),
            None => Ok(self.raw.convert(cells)),
        }
    }

    /// True if a stored chunk has its cells in their form in memory.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_in_memory_order() && self.codecs.is_raw()
    }
}

/// The array that errors name.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) array: &'a str,
    /// Its metadata document.
    pub(crate) path: &'a str,
}

impl Who<'_> {
    pub(crate) fn bad(&self, reason: impl Into<String>) -> SourceError {
        SourceError::Metadata {
            array: self.array.into(),
            path: self.path.into(),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(&self, what: impl Into<String>) -> SourceError {
        SourceError::Unsupported { array: self.array.into(), what: what.into() }
    }
}

/// Parses a JSON object, with Python's words for NaN and infinities; the parser bounds the nesting.
pub(crate) fn json_object(
    who: Who<'_>,
    bytes: &[u8],
) -> Result<serde_json::Map<String, Value>, SourceError> {
    match parse_json(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(who.bad("it is not a JSON object")),
        Err(e) => Err(who.bad(format!("it is not JSON: {e}"))),
    }
}

impl ArrayMeta {
    /// Parses Zarr v3: a `zarr.json` with `node_type` `array`.
    pub(crate) fn parse_v3(
        who: Who<'_>,
        mut doc: serde_json::Map<String, Value>,
    ) -> Result<ArrayMeta, SourceError> {
        check_format(who, &doc, 3)?;
        taken::extensions_of_array(who, &mut doc)?;
        let shape = lengths(who, &doc, "shape")?;
        let (grid_name, grid) = extension(&doc, "chunk_grid");
        if grid_name != "regular" {
            return Err(who.unsupported(format!("chunk grid `{grid_name}`")));
        }
        let stored = match grid {
            Some(g) => lengths(who, g, "chunk_shape")?,
            None => return Err(who.bad("`chunk_grid` has no `chunk_shape`")),
        };
        let (type_name, type_config) = extension(&doc, "data_type");
        let raw = raw_v3(&type_name, type_config).ok_or_else(|| SourceError::UnsupportedDType {
            array: who.array.into(),
            dtype: type_shown(&type_name, type_config),
        })?;
        fills::spell_out(&mut doc, &raw);
        let taken = taken::take_v3(who, &mut doc, &raw)?;
        let raw = taken.steps.as_ref().map_or(raw, |(steps, _)| steps.stored.clone());
        let names = match doc.get("dimension_names") {
            None | Some(Value::Null) => vec![None; shape.len()],
            Some(Value::Array(v)) => v.iter().map(|n| n.as_str().map(Arc::from)).collect(),
            Some(_) => return Err(who.bad("`dimension_names` is not a list")),
        };
        let attrs = attributes(who, doc.get("attributes"))?;
        let sharding = match doc.get("codecs").and_then(Value::as_array).map(Vec::as_slice) {
            Some([only])
                if only.get("name").and_then(Value::as_str) == Some("sharding_indexed") =>
            {
                Some(only.get("configuration").cloned().unwrap_or(Value::Null))
            }
            _ => None,
        };
        check_lengths(who, &shape, &stored)?;
        let dims = dim_names(who, &shape, names)?;
        let array = create(who, &type_name, Value::Object(doc), false)?;
        let (unit, chain, shard) = match sharding {
            None => (stored, array.codecs(), None),
            Some(config) => {
                let (unit, chain, shard) = parse_shard(who, &stored, config)?;
                (unit, chain, Some(shard))
            }
        };
        check_unit(who, &unit, &raw)?;
        let codecs = codecs(who, &array, &chain, &unit, &taken)?;
        let fill = fill(&taken, &raw, &array);
        Ok(ArrayMeta {
            shape,
            unit,
            raw,
            taken,
            fill_v2: None,
            attrs,
            narrow: Vec::new(),
            dims,
            zarr: Some(array),
            fill,
            codecs,
            shard,
        })
    }

    /// Parses Zarr v2: `.zarray` and the array's `.zattrs`.
    pub(crate) fn parse_v2(
        who: Who<'_>,
        mut doc: serde_json::Map<String, Value>,
        attrs: Option<&Value>,
    ) -> Result<ArrayMeta, SourceError> {
        check_format(who, &doc, 2)?;
        let shape = lengths(who, &doc, "shape")?;
        let unit = lengths(who, &doc, "chunks")?;
        check_lengths(who, &shape, &unit)?;
        let type_name = match doc.get("dtype") {
            Some(Value::String(s)) => s.clone(),
            Some(v) => v.to_string(),
            None => return Err(who.bad("`dtype` is missing")),
        };
        let has_filter = |id: &str| {
            doc.get("filters")
                .and_then(Value::as_array)
                .is_some_and(|f| f.iter().any(|f| f.get("id").and_then(Value::as_str) == Some(id)))
        };
        let raw = match Raw::parse_numpy(&type_name) {
            Some((raw, _)) => raw,
            None if type_name == "|O" && (has_filter("vlen-utf8") || has_filter("categorize")) => {
                Raw::Utf8
            }
            None => {
                return Err(SourceError::UnsupportedDType {
                    array: who.array.into(),
                    dtype: type_name,
                });
            }
        };
        fills::spell_out(&mut doc, &raw);
        let mut attrs = attributes(who, attrs)?;
        let names = attrs.remove("_ARRAY_DIMENSIONS").filter(|v| !v.is_null());
        let fill_v2 = doc.get("fill_value").filter(|v| names.is_some() && !v.is_null()).cloned();
        let names = match names {
            None => vec![None; shape.len()],
            Some(Value::Array(v)) => v.iter().map(|n| n.as_str().map(Arc::from)).collect(),
            Some(_) => return Err(who.bad("`_ARRAY_DIMENSIONS` is not a list")),
        };
        let dims = dim_names(who, &shape, names)?;
        doc.entry("fill_value").or_insert(Value::Null);
        doc.entry("compressor").or_insert(Value::Null);
        doc.entry("order").or_insert_with(|| "C".into());
        // zarrs supports `datetime64` only in Zarr v3: here its cells are plain integers.
        if let Raw::Time { .. } | Raw::Months { .. } | Raw::Span { .. } = raw {
            doc.insert("dtype".into(), format!("{}i8", &type_name[..1]).into());
            if doc.get("fill_value").and_then(Value::as_str) == Some("NaT") {
                doc.insert("fill_value".into(), i64::MIN.into());
            }
        }
        // zarrs has no default for these where the fill value is null.
        let default = match &raw {
            Raw::Time { .. } | Raw::Months { .. } | Raw::Span { .. } => Some(Value::from(i64::MIN)),
            Raw::Utf32 { .. } | Raw::Utf8 => Some(Value::from("")),
            _ => None,
        };
        if let (Some(default), Some(Value::Null)) = (default, doc.get("fill_value")) {
            doc.insert("fill_value".into(), default);
        }
        let taken = taken::take_v2(who, &mut doc, (&raw, &type_name), unit.len())?;
        let raw = taken.steps.as_ref().map_or(raw, |(steps, _)| steps.stored.clone());
        let raw = taken.codes.clone().unwrap_or(raw);
        check_unit(who, &unit, &raw)?;
        let array = create(who, &type_name, Value::Object(doc), true)?;
        let codecs = codecs(who, &array, &array.codecs(), &unit, &taken)?;
        let fill = fill(&taken, &raw, &array);
        Ok(ArrayMeta {
            shape,
            unit,
            raw,
            taken,
            fill_v2,
            attrs,
            narrow: Vec::new(),
            dims,
            zarr: Some(array),
            fill,
            codecs,
            shard: None,
        })
    }

    /// An array in a file of another format than Zarr, whose numbers the caller has checked.
    pub(crate) fn of_file(
        shape: Dims,
        unit: Dims,
        raw: Raw,
        dims: Vec<Option<Arc<str>>>,
        (attrs, narrow): (Attrs, Vec<String>),
        (codecs, fill): (Codecs, Vec<u8>),
    ) -> ArrayMeta {
        ArrayMeta {
            shape,
            unit,
            raw,
            taken: Taken::default(),
            fill_v2: None,
            attrs,
            narrow,
            dims,
            zarr: None,
            fill,
            codecs,
            shard: None,
        }
    }

    /// Bytes of the cells of a unit, each with the size of a stored one.
    pub(crate) fn unit_bytes(&self) -> u64 {
        self.unit.iter().fold(self.raw.size(), |n, &d| n.saturating_mul(d))
    }

    /// Bytes of a unit as the codecs decode it.
    pub(crate) fn decoded_bytes(&self) -> u64 {
        match &self.taken.steps {
            Some((steps, _)) if steps.is_packed() => steps.stored_cells(self.unit.iter().product()),
            _ => self.unit_bytes(),
        }
    }
}

/// Checks the size of a chunk. It is decoded whole, so it must not exceed what one operand may hold.
pub(crate) fn check_unit(who: Who<'_>, unit: &Dims, raw: &Raw) -> Result<(), SourceError> {
    let bytes = unit.iter().fold(u128::from(raw.size()), |n, &d| n.saturating_mul(u128::from(d)));
    if bytes > u128::from(CHUNK_BYTES_MAX) {
        return Err(SourceError::ChunkTooLarge {
            array: who.array.into(),
            chunk: show(unit),
            bytes: bytes.to_string(),
            limit: CHUNK_BYTES_MAX,
        });
    }
    Ok(())
}

fn codecs(
    who: Who<'_>,
    array: &Array<()>,
    chain: &CodecChain,
    unit: &Dims,
    taken: &Taken,
) -> Result<Codecs, SourceError> {
    let packed = match &taken.steps {
        Some((steps, _)) if steps.is_packed() => vec![steps.stored_cells(unit.iter().product())],
        _ => unit.to_vec(),
    };
    let (dtype, fill) = (array.data_type(), array.fill_value());
    Chain::new(chain, &packed, dtype, fill, CHUNK_BYTES_MAX, taken.tail.clone())
        .map(|chain| Codecs::Zarr(Box::new(chain)))
        .map_err(|reason| who.bad(format!("codecs: {reason}")))
}

/// The cell of absent chunks.
fn fill(taken: &Taken, raw: &Raw, array: &Array<()>) -> Vec<u8> {
    match &taken.steps {
        Some((_, fill)) => fill.clone(),
        None => raw.convert(Cow::Borrowed(array.fill_value().as_ne_bytes())).into_owned(),
    }
}

/// Formats lengths as `[2, 3]`.
pub(crate) fn show(dims: &[u64]) -> String {
    format!("[{}]", dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}

fn check_format(
    who: Who<'_>,
    doc: &serde_json::Map<String, Value>,
    want: u64,
) -> Result<(), SourceError> {
    match doc.get("zarr_format") {
        Some(v) if v.as_u64() == Some(want) => Ok(()),
        Some(v) => Err(who.bad(format!("`zarr_format` is {v}, expected {want}"))),
        None => Err(who.bad("`zarr_format` is missing")),
    }
}

/// Parses a list of lengths under `key`: integers from 0, no more than [`RANK_MAX`].
fn lengths(
    who: Who<'_>,
    doc: &serde_json::Map<String, Value>,
    key: &str,
) -> Result<Dims, SourceError> {
    let list = doc
        .get(key)
        .and_then(Value::as_array)
        .ok_or_else(|| who.bad(format!("`{key}` is missing or not a list")))?;
    if list.len() > RANK_MAX {
        return Err(
            who.bad(format!("`{key}` has {} axes, at most {RANK_MAX} are read", list.len()))
        );
    }
    list.iter()
        .map(|v| {
            v.as_u64().filter(|&n| n <= i64::MAX as u64).ok_or_else(|| {
                who.bad(format!("`{key}` has {v}, expected a whole number from 0 to 2^63 - 1"))
            })
        })
        .collect()
}

pub(crate) fn check_lengths(who: Who<'_>, shape: &Dims, chunk: &Dims) -> Result<(), SourceError> {
    if shape.len() != chunk.len() {
        return Err(who.bad(format!(
            "the shape {} has {} axes, the chunks {} have {}",
            show(shape),
            shape.len(),
            show(chunk),
            chunk.len()
        )));
    }
    if chunk.contains(&0) {
        return Err(who.bad(format!("the chunks {} have an axis of length 0", show(chunk))));
    }
    if cells(shape).is_none() {
        return Err(who.bad(format!("the shape {} has more than 2^63 cells", show(shape))));
    }
    Ok(())
}

pub(crate) fn dim_names(
    who: Who<'_>,
    shape: &Dims,
    names: Vec<Option<Arc<str>>>,
) -> Result<Vec<Option<Arc<str>>>, SourceError> {
    if names.len() != shape.len() {
        return Err(who.bad(format!("{} dimension names for {} axes", names.len(), shape.len())));
    }
    let twice = |n: &Arc<str>| names.iter().flatten().filter(|m| *m == n).count() > 1;
    Ok(names.iter().map(|n| n.clone().filter(|n| !n.is_empty() && !twice(n))).collect())
}

fn attributes(who: Who<'_>, value: Option<&Value>) -> Result<Attrs, SourceError> {
    match value {
        None | Some(Value::Null) => Ok(Attrs::new()),
        Some(Value::Object(map)) => Ok(map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()),
        Some(_) => Err(who.bad("the attributes are not a JSON object")),
    }
}

/// Name and configuration of an extension point, written as a string or as an object.
fn extension<'a>(
    doc: &'a serde_json::Map<String, Value>,
    key: &str,
) -> (String, Option<&'a serde_json::Map<String, Value>>) {
    match doc.get(key) {
        Some(Value::String(s)) => (s.clone(), None),
        Some(Value::Object(o)) => (
            o.get("name").and_then(Value::as_str).unwrap_or("").to_string(),
            o.get("configuration").and_then(Value::as_object),
        ),
        _ => (String::new(), None),
    }
}

fn raw_v3(name: &str, config: Option<&serde_json::Map<String, Value>>) -> Option<Raw> {
    let number = |key: &str| config.and_then(|c| c.get(key)).and_then(Value::as_u64);
    Some(match name {
        "float16" => Raw::Half,
        "numpy.datetime64" => {
            let unit = config.and_then(|c| c.get("unit")).and_then(Value::as_str)?;
            Raw::time(unit, i64::try_from(number("scale_factor").unwrap_or(1)).ok()?)?
        }
        "numpy.timedelta64" => {
            let unit = config.and_then(|c| c.get("unit")).and_then(Value::as_str)?;
            Raw::span(unit, i64::try_from(number("scale_factor").unwrap_or(1)).ok()?)?
        }
        "null_terminated_bytes" => {
            Raw::Bytes { len: number("length_bytes").filter(|&n| (1..1 << 20).contains(&n))? }
        }
        "string" => Raw::Utf8,
        "fixed_length_utf32" => Raw::Utf32 { chars: number("length_bytes")? / 4 },
        // The others have the names that they have in SQL, which has more names for them.
        _ => Raw::Plain(DType::parse(name).filter(|d| !d.is_datetime() && d.name() == name)?),
    })
}

/// A type in messages, with its unit: `numpy.datetime64[M]`.
fn type_shown(name: &str, config: Option<&serde_json::Map<String, Value>>) -> String {
    let unit = config.and_then(|c| c.get("unit")).and_then(Value::as_str);
    match unit {
        Some(unit) => format!("{name}[{unit}]"),
        None => name.to_string(),
    }
}

/// Passes validated metadata to zarrs, which implements the codecs.
fn create(who: Who<'_>, dtype: &str, doc: Value, v2: bool) -> Result<Array<()>, SourceError> {
    let metadata = if v2 {
        serde_json::from_value(doc).map(ArrayMetadata::V2)
    } else {
        serde_json::from_value(doc).map(ArrayMetadata::V3)
    };
    let metadata = metadata.map_err(|e| who.bad(e.to_string()))?;
    // zarrs panics on some contradictions; a panic means bad metadata.
    let made =
        catch_unwind(AssertUnwindSafe(|| Array::new_with_metadata(Arc::new(()), "/", metadata)));
    match made {
        Ok(Ok(array)) => Ok(array),
        Ok(Err(ArrayCreateError::DataTypeCreateError(_))) => {
            Err(SourceError::UnsupportedDType { array: who.array.into(), dtype: dtype.into() })
        }
        Ok(Err(ArrayCreateError::CodecsCreateError(e))) => Err(codec_error(who, &e.to_string())),
        Ok(Err(ArrayCreateError::UnsupportedZarrV2Array(e))) => Err(codec_error(who, &e)),
        Ok(Err(e)) => Err(who.bad(e.to_string())),
        Err(_) => Err(who.bad("its parts contradict each other")),
    }
}

fn codec_error(who: Who<'_>, text: &str) -> SourceError {
    if text.contains("not supported") || text.contains("unsupported") || text.contains("not found")
    {
        who.unsupported(text.trim_end_matches(" is not supported"))
    } else {
        who.bad(format!("codecs: {text}"))
    }
}

fn parse_shard(
    who: Who<'_>,
    stored: &Dims,
    config: Value,
) -> Result<(Dims, Arc<CodecChain>, Shard), SourceError> {
    let config: ShardingCodecConfiguration =
        serde_json::from_value(config).map_err(|e| who.bad(format!("sharding: {e}")))?;
    let ShardingCodecConfiguration::V1(config) = config else {
        return Err(who.unsupported("this version of sharding"));
    };
    let unit: Dims = config.chunk_shape.iter().map(|n| n.get()).collect();
    if unit.len() != stored.len() || stored.iter().zip(&unit).any(|(s, u)| s % u != 0) {
        return Err(who.bad(format!(
            "inner chunks {} do not divide shards {}",
            show(&unit),
            show(stored)
        )));
    }
    let counts: Dims = stored.iter().zip(&unit).map(|(s, u)| s / u).collect();
    let total = counts.iter().fold(1u128, |n, &c| n.saturating_mul(u128::from(c)));
    if total > u128::from(SHARD_CHUNKS_MAX) {
        return Err(who.bad(format!(
            "a shard has {total} inner chunks, at most {SHARD_CHUNKS_MAX} are read"
        )));
    }
    let chain = |m: &[_]| {
        catch_unwind(AssertUnwindSafe(|| CodecChain::from_metadata(m)))
            .map_err(|_| who.bad("codecs of the shard contradict each other"))?
            .map_err(|e| codec_error(who, &e.to_string()))
    };
    let (inner, index_chain) = (chain(&config.codecs)?, chain(&config.index_codecs)?);
    let index_bytes = index_bytes(who, &index_chain, &counts)?;
    let at_end = matches!(config.index_location, ShardingIndexLocation::End);
    Ok((unit, Arc::new(inner), Shard { counts, index_chain, index_bytes, at_end }))
}

/// The shape of a shard's index: `[.., 2]`.
pub(crate) fn index_shape(counts: &[u64]) -> Vec<NonZeroU64> {
    counts.iter().chain(&[2]).filter_map(|&n| NonZeroU64::new(n)).collect()
}

fn index_bytes(who: Who<'_>, chain: &CodecChain, counts: &Dims) -> Result<u64, SourceError> {
    use zarrs::array::codec::api::ArrayToBytesCodecTraits;
    use zarrs::array::{BytesRepresentation, FillValue, data_type};
    let encoded = catch_unwind(AssertUnwindSafe(|| {
        chain.encoded_representation(
            &index_shape(counts),
            &data_type::uint64(),
            &FillValue::from(u64::MAX),
        )
    }));
    match encoded {
        Ok(Ok(BytesRepresentation::FixedSize(n))) => Ok(n),
        Ok(Err(e)) => Err(who.bad(format!("index codecs: {e}"))),
        _ => Err(who.bad("the index codecs do not give a fixed size")),
    }
}
