//! Metadata documents of arrays and groups.
//!
//! # Source
//! Zarr v3 core specification, with the codecs `bytes`, `sharding_indexed`, `crc32c` and `vlen-utf8`, and zarr-python's
//! inline consolidated metadata; Zarr v2 specification, with xarray's `_ARRAY_DIMENSIONS`.

use super::Codec;
use crate::source::meta::{ArrayMeta, Who};
use serde_json::{Map, Value, json};
use tessera_planner::catalog::{Attrs, PythonJson};
use tessera_planner::dtype::DType;
use tessera_planner::region::Dims;

/// Type of stored cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cells {
    /// Numbers and truth values; datetimes are stored as `int64`.
    Number(DType),
    /// Texts of at most that many characters.
    Text(usize),
}

impl Cells {
    /// Bytes of a cell before compression, for Blosc.
    fn size(self) -> usize {
        match self {
            Cells::Number(d) => d.size(),
            Cells::Text(_) => 1,
        }
    }

    fn v3(self) -> String {
        match self {
            Cells::Text(_) => "string".into(),
            Cells::Number(DType::Datetime(_)) => DType::Int64.name(),
            Cells::Number(d) => d.name(),
        }
    }

    fn v2(self) -> String {
        use DType::*;
        match self {
            Cells::Text(chars) => format!("<U{}", chars.max(1)),
            Cells::Number(Bool) => "|b1".into(),
            Cells::Number(Int8) => "|i1".into(),
            Cells::Number(UInt8) => "|u1".into(),
            Cells::Number(d) if d.is_float() => format!("<f{}", d.size()),
            Cells::Number(d) if d.is_unsigned() => format!("<u{}", d.size()),
            Cells::Number(d) => format!("<i{}", d.size()),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct ArrayDocument {
    pub(super) name: String,
    /// Zarr format, 2 or 3.
    pub(super) format: u8,
    pub(super) shape: Dims,
    /// Lengths of an object.
    pub(super) object: Dims,
    /// Lengths of a chunk, if an object is a shard of several.
    pub(super) inner: Option<Dims>,
    pub(super) cells: Cells,
    /// Value of absent chunks and of cells beyond the end; null in Zarr v2 for no such value.
    pub(super) fill: Value,
    pub(super) codec: Codec,
    /// True if chunks end with their CRC-32C; only in Zarr v3.
    pub(super) checked: bool,
    pub(super) dims: Vec<String>,
    pub(super) attrs: Attrs,
}

impl ArrayDocument {
    /// Returns the document, and for Zarr v2 that of the attributes.
    pub(super) fn documents(&self) -> (Map<String, Value>, Option<Map<String, Value>>) {
        let size = self.cells.size();
        let mut attrs: Map<String, Value> =
            self.attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        let (shape, object) = (self.shape.as_slice(), self.object.as_slice());
        if self.format == 2 {
            attrs.insert("_ARRAY_DIMENSIONS".into(), self.dims.clone().into());
            let document = json!({
                "zarr_format": 2, "shape": shape, "chunks": object, "dtype": self.cells.v2(),
                "compressor": self.codec.v2(size), "fill_value": self.fill, "order": "C",
                "filters": null, "dimension_separator": ".",
            });
            return (object_of(document), Some(attrs));
        }
        let mut chain = vec![match self.cells {
            Cells::Text(_) => json!({"name": "vlen-utf8"}),
            Cells::Number(d) if d.size() == 1 => json!({"name": "bytes"}),
            Cells::Number(_) => json!({"name": "bytes", "configuration": {"endian": "little"}}),
        }];
        chain.extend(self.codec.v3(size));
        if self.checked {
            chain.push(json!({"name": "crc32c"}));
        }
        if let Some(inner) = &self.inner {
            chain = vec![json!({"name": "sharding_indexed", "configuration": {
                "chunk_shape": inner.as_slice(),
                "codecs": chain,
                "index_codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"},
                ],
                "index_location": "end",
            }})];
        }
        let document = json!({
            "zarr_format": 3, "node_type": "array", "shape": shape,
            "data_type": self.cells.v3(),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": object}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": self.fill, "codecs": chain, "attributes": attrs,
            "dimension_names": self.dims, "storage_transformers": [],
        });
        (object_of(document), None)
    }

    /// Parses the document with our own reader, so that nothing is written that it rejects.
    pub(super) fn checked(&self) -> Result<ArrayMeta, crate::source::SourceError> {
        let (document, attrs) = self.documents();
        let who = Who { array: &self.name, path: &self.name };
        match attrs {
            None => ArrayMeta::parse_v3(who, document),
            Some(a) => ArrayMeta::parse_v2(who, document, Some(&Value::Object(a))),
        }
    }

    /// Number of objects along each axis.
    pub(super) fn grid(&self) -> Dims {
        self.shape.iter().zip(&self.object).map(|(n, each)| n.div_ceil((*each).max(1))).collect()
    }

    /// The key of an object, below the array's name.
    pub(super) fn key(&self, index: &[u64]) -> String {
        let parts: Vec<String> = index.iter().map(u64::to_string).collect();
        match (self.format, parts.is_empty()) {
            (2, true) => format!("{}/0", self.name),
            (2, false) => format!("{}/{}", self.name, parts.join(".")),
            (_, true) => format!("{}/c", self.name),
            (_, false) => format!("{}/c/{}", self.name, parts.join("/")),
        }
    }
}

/// All metadata of a store in the order of writing: that of the group last.
pub(super) fn store(
    format: u8,
    attrs: &Attrs,
    arrays: &[&ArrayDocument],
) -> Vec<(String, Vec<u8>)> {
    let attrs: Map<String, Value> = attrs.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut out = Vec::new();
    let mut nodes = Map::new();
    let mut sorted: Vec<_> = arrays.to_vec();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    for array in sorted {
        let (document, own) = array.documents();
        let (document, name) = (Value::Object(document), &array.name);
        match own {
            None => {
                out.push((format!("{name}/zarr.json"), text(&document)));
                nodes.insert(name.clone(), document);
            }
            Some(own) => {
                let own = Value::Object(own);
                for (file, value) in [(".zarray", document), (".zattrs", own)] {
                    out.push((format!("{name}/{file}"), text(&value)));
                    nodes.insert(format!("{name}/{file}"), value);
                }
            }
        }
    }
    if format == 2 {
        let (group, attrs) = (json!({"zarr_format": 2}), Value::Object(attrs));
        nodes.insert(".zgroup".into(), group.clone());
        nodes.insert(".zattrs".into(), attrs.clone());
        out.push((".zattrs".into(), text(&attrs)));
        let all = json!({"zarr_consolidated_format": 1, "metadata": nodes});
        out.push((".zmetadata".into(), text(&all)));
        out.push((".zgroup".into(), text(&group)));
    } else {
        let root = json!({
            "zarr_format": 3, "node_type": "group", "attributes": attrs,
            "consolidated_metadata":
                {"kind": "inline", "must_understand": false, "metadata": nodes},
        });
        out.push(("zarr.json".into(), text(&root)));
    }
    out
}

/// As in zarr-python: NaN and infinities in attributes are Python's words, which readers in Python take as floats.
fn text(value: &Value) -> Vec<u8> {
    format!("{:#}", PythonJson(value)).into_bytes()
}

fn object_of(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
