//! The metadata documents of a store that grows.

use super::super::folder::{Folder, Version};
use crate::sink::SinkError;
use crate::source::cf;
use crate::source::meta::{ArrayMeta, Who, json_object};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tessera_planner::catalog::{Coord, PythonJson, SourceRef, Variable};
use tessera_planner::grid::Grid;

/// The list of appends in the root's document: a member of `consolidated_metadata`, or of `.zmetadata`. Readers of Zarr
/// ignore it; a program that rewrites these metadata drops it.
const APPENDS: &str = "tessera_appends";

/// Upper bound on the appends in the list; the oldest are dropped.
const APPENDS_MAX: usize = 64;

pub(super) type Stored = (Bytes, Version);

/// An append that was committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Committed {
    mark: String,
    dim: String,
    /// Cells along the dimension before.
    before: u64,
}

/// The documents of a group, as they were read, and then as they will be.
#[derive(Debug)]
pub(super) struct Documents {
    /// Zarr format, 2 or 3.
    format: u8,
    /// `zarr.json`, or `.zmetadata`.
    root: Map<String, Value>,
    /// `zarr.json`, or `.zarray`, of each array.
    arrays: BTreeMap<String, Map<String, Value>>,
    /// `.zattrs` of each array.
    attrs: BTreeMap<String, Map<String, Value>>,
    /// True if the store has consolidated metadata.
    is_consolidated: bool,
    /// The last appends, the latest at the end.
    appends: Vec<Committed>,
}

fn unsupported(reason: String) -> SinkError {
    SinkError::Option { option: "append", reason, hint: Some("write a new store with COPY".into()) }
}

impl Documents {
    /// Reads the documents of the store. Also returns, as it is stored, the document that a commit replaces; `None` if
    /// it does not exist.
    pub(super) async fn read(folder: &Folder) -> Result<(Documents, Option<Stored>), SinkError> {
        let parse = |key: &str, bytes: &[u8]| {
            let path = folder.url(key);
            json_object(Who { array: "", path: &path }, bytes).map_err(SinkError::Source)
        };
        let (mut arrays, mut attrs) = (BTreeMap::new(), BTreeMap::new());
        if let Some((bytes, version)) = folder.get_version("zarr.json").await? {
            let root = parse("zarr.json", &bytes)?;
            if root.get("node_type").and_then(Value::as_str) != Some("group") {
                return Err(unsupported("the store is one array without a group".into()));
            }
            let nodes = consolidated(&root).cloned();
            let is_consolidated = nodes.is_some();
            let is_group = |doc: &Map<String, Value>| {
                doc.get("node_type").and_then(Value::as_str) == Some("group")
            };
            match nodes {
                Some(nodes) => {
                    for (name, doc) in nodes {
                        if let (Value::Object(doc), false) = (doc, name.contains('/')) {
                            arrays.insert(name, doc);
                        }
                    }
                    arrays.retain(|_, doc| !is_group(doc));
                }
                None => {
                    for name in folder.stores("").await? {
                        let key = format!("{name}/zarr.json");
                        let Some(bytes) = folder.get(&key).await? else { continue };
                        let doc = parse(&key, &bytes)?;
                        if is_group(&doc) {
                            return Err(unsupported(format!(
                                "the store has groups (`{name}`) and no consolidated metadata"
                            )));
                        }
                        arrays.insert(name, doc);
                    }
                }
            }
            let appends = listed(root.get("consolidated_metadata").and_then(|c| c.get(APPENDS)));
            let documents = Documents { format: 3, root, arrays, attrs, is_consolidated, appends };
            return Ok((documents, Some((bytes, version))));
        }
        if let Some((bytes, version)) = folder.get_version(".zmetadata").await? {
            let root = parse(".zmetadata", &bytes)?;
            let nodes =
                root.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
            for (key, doc) in nodes {
                let Value::Object(doc) = doc else { continue };
                match key.split_once('/') {
                    Some((name, ".zarray")) => drop(arrays.insert(name.to_string(), doc)),
                    Some((name, ".zattrs")) => drop(attrs.insert(name.to_string(), doc)),
                    _ => {}
                }
            }
            let appends = listed(root.get(APPENDS));
            let documents =
                Documents { format: 2, root, arrays, attrs, is_consolidated: true, appends };
            return Ok((documents, Some((bytes, version))));
        }
        let Some(group) = folder.get(".zgroup").await? else {
            return Err(unsupported(format!("`{}` is not a Zarr group", folder.display())));
        };
        let mut nodes = Map::new();
        nodes.insert(".zgroup".into(), Value::Object(parse(".zgroup", &group)?));
        if let Some(own) = folder.get(".zattrs").await? {
            nodes.insert(".zattrs".into(), Value::Object(parse(".zattrs", &own)?));
        }
        for name in folder.stores("").await? {
            let (key, attrs_key) = (format!("{name}/.zarray"), format!("{name}/.zattrs"));
            let Some(bytes) = folder.get(&key).await? else {
                return Err(unsupported(format!(
                    "the store has groups (`{name}`) and no consolidated metadata"
                )));
            };
            arrays.insert(name.clone(), parse(&key, &bytes)?);
            if let Some(bytes) = folder.get(&attrs_key).await? {
                let own = parse(&attrs_key, &bytes)?;
                nodes.insert(attrs_key, Value::Object(own.clone()));
                attrs.insert(name, own);
            }
        }
        let mut root = Map::new();
        root.insert("zarr_consolidated_format".into(), 1.into());
        root.insert("metadata".into(), Value::Object(nodes));
        let (is_consolidated, appends) = (false, Vec::new());
        let documents = Documents { format: 2, root, arrays, attrs, is_consolidated, appends };
        Ok((documents, None))
    }

    /// The key of the document that a commit replaces.
    pub(super) fn root_key(&self) -> &'static str {
        if self.format == 3 { "zarr.json" } else { ".zmetadata" }
    }

    /// True if the store had no consolidated metadata: then the root's document has to be written before the arrays
    /// change.
    pub(super) fn consolidate(&mut self) -> bool {
        !std::mem::replace(&mut self.is_consolidated, true)
    }

    /// True if the append of that mark was committed.
    pub(super) fn has_append(&self, mark: &str) -> bool {
        self.appends.iter().any(|one| one.mark == mark)
    }

    /// True if an append along the dimension is listed that began after `before` cells.
    pub(super) fn has_append_at(&self, dim: &str, before: u64) -> bool {
        self.appends.iter().any(|one| one.dim == dim && one.before == before)
    }

    /// Lists an append.
    pub(super) fn add_append(&mut self, mark: &str, dim: &str, before: u64) {
        let old = (self.appends.len() + 1).saturating_sub(APPENDS_MAX);
        self.appends.drain(..old);
        self.appends.push(Committed { mark: mark.into(), dim: dim.into(), before });
    }

    /// The root's document with those of all arrays.
    pub(super) fn root(&self) -> Vec<u8> {
        let mut root = self.root.clone();
        let appends = json!(self.appends);
        let suffix = if self.format == 3 { "" } else { "/.zarray" };
        let mut nodes = match self.format {
            3 => consolidated(&root).cloned().unwrap_or_default(),
            _ => root.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default(),
        };
        for (name, doc) in &self.arrays {
            nodes.insert(format!("{name}{suffix}"), Value::Object(doc.clone()));
        }
        match self.format {
            3 => {
                let kind = json!({
                    "kind": "inline", "must_understand": false, "metadata": nodes, APPENDS: appends
                });
                root.insert("consolidated_metadata".into(), kind);
            }
            _ => {
                root.insert("metadata".into(), Value::Object(nodes));
                root.insert(APPENDS.into(), appends);
            }
        }
        PythonJson(&Value::Object(root)).to_string().into_bytes()
    }

    /// Key and text of an array's own document.
    pub(super) fn array(&self, name: &str) -> Option<(String, Vec<u8>)> {
        let file = if self.format == 3 { "zarr.json" } else { ".zarray" };
        let doc = Value::Object(self.arrays.get(name)?.clone());
        Some((format!("{name}/{file}"), PythonJson(&doc).to_string().into_bytes()))
    }

    pub(super) fn set_shape(&mut self, name: &str, shape: &[u64]) {
        if let Some(doc) = self.arrays.get_mut(name) {
            doc.insert("shape".into(), shape.into());
        }
    }

    /// The parsed metadata of an array.
    pub(super) fn meta(&self, name: &str) -> Result<ArrayMeta, SinkError> {
        let who = Who { array: name, path: name };
        let doc = self.arrays.get(name).cloned().ok_or_else(|| SinkError::Internal {
            what: name.into(),
            reason: "it has no metadata".into(),
        })?;
        let meta = match self.format {
            3 => ArrayMeta::parse_v3(who, doc),
            _ => {
                let attrs = self.attrs.get(name).cloned().map(Value::Object);
                ArrayMeta::parse_v2(who, doc, attrs.as_ref())
            }
        };
        meta.map_err(SinkError::Source)
    }

    /// A coordinate that is not the labels of its dimension, as an array; `None` for texts.
    pub(super) fn beside(&self, coord: &Coord) -> Result<Option<Variable>, SinkError> {
        let meta = self.meta(&coord.name)?;
        let Some(stored) = meta.dtype() else { return Ok(None) };
        let attrs = meta.attrs.clone();
        let read = cf::decode(&coord.name, stored, attrs, meta.fill_v2.as_ref(), &meta.narrow);
        let read = read.map_err(SinkError::Source)?;
        let source = SourceRef {
            url: String::new(),
            path: coord.name.to_string(),
            dtype: read.dtype,
            grid: Grid::regular(&meta.shape, &meta.unit),
            shape: meta.shape,
            nullable: false,
            version: None,
            plain: false,
        };
        let (name, dims) = (coord.name.clone(), vec![Some(coord.dim.clone())]);
        Ok(Some(Variable { name, dims, source, decode: read.decode, attrs: read.attrs }))
    }
}

/// The list of appends. One of another form is not ours.
fn listed(list: Option<&Value>) -> Vec<Committed> {
    list.and_then(|list| Vec::deserialize(list).ok()).unwrap_or_default()
}

fn consolidated(root: &Map<String, Value>) -> Option<&Map<String, Value>> {
    root.get("consolidated_metadata")?.get("metadata")?.as_object()
}
