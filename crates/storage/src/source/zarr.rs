//! Finds the arrays of a Zarr store: one array, a group, consolidated metadata or a listing.

use crate::source::error::SourceError;
use crate::source::found::{Arrays, Found, Node, Place, Unread};
use crate::source::meta::{ArrayMeta, Who, json_object};
use crate::source::ngff;
use crate::source::references;
use crate::source::scope::{self, Scope};
use crate::source::store::Store;
use crate::source::taken::extensions_of_group;
use crate::source::versions;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::Attrs;

/// Upper bound on the metadata documents read concurrently.
const CONCURRENT_MAX: usize = 16;

/// Metadata documents of one node.
enum Document {
    V3(Map<String, Value>),
    V2 {
        array: Map<String, Value>,
        attrs: Option<Value>,
    },
    /// A document that is not metadata.
    Other(Value),
}

/// Finds the node `group` of the store (its root if empty); `None` if there is no Zarr metadata.
pub(crate) async fn find(store: &Store, group: &str) -> Result<Option<Found>, SourceError> {
    if !group.is_empty() {
        check_name(store, group)?;
        // The root's consolidated metadata cover all groups, also where listing is not possible.
        let found = match document(store, "zarr.json").await? {
            Some(doc) => inline(store, &doc, "", group)?,
            None => consolidated(store, "", group).await?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    if let Some(doc) = document(store, &key(group, "zarr.json")).await? {
        let shown = store.show(&key(group, "zarr.json"));
        let who = Who { array: name_of(store, group), path: &shown };
        return match doc.get("node_type").and_then(Value::as_str) {
            Some("group") => {
                extensions_of_group(who, &doc)?;
                match inline(store, &doc, group, "")? {
                    Some(found) => Ok(Some(found)),
                    None => listed(store, group, attributes(&doc)).await.map(Some),
                }
            }
            Some("array") | None => {
                let own = key(group, "zarr.json");
                node(who, &own, group, Document::V3(doc)).map(|n| Some(Found::Array(Box::new(n))))
            }
            Some(other) => {
                Err(who.bad(format!("`node_type` is `{other}`, expected array or group")))
            }
        };
    }
    if let Some(found) = consolidated(store, group, "").await? {
        return Ok(Some(found));
    }
    if let Some(doc) = document(store, &key(group, ".zarray")).await? {
        let shown = store.show(&key(group, ".zarray"));
        let attrs = document(store, &key(group, ".zattrs")).await?.map(Value::Object);
        let who = Who { array: name_of(store, group), path: &shown };
        let own = key(group, ".zarray");
        let n = node(who, &own, group, Document::V2 { array: doc, attrs })?;
        return Ok(Some(Found::Array(Box::new(n))));
    }
    if document(store, &key(group, ".zgroup")).await?.is_some() {
        let attrs = document(store, &key(group, ".zattrs")).await?;
        let attrs = attrs.map(|a| a.into_iter().collect()).unwrap_or_default();
        return listed(store, group, attrs).await.map(Some);
    }
    Ok(None)
}

/// Finds the node `group` in the metadata consolidated in the `zarr.json` of the group `base`, if there are any.
fn inline(
    store: &Store,
    doc: &Map<String, Value>,
    base: &str,
    group: &str,
) -> Result<Option<Found>, SourceError> {
    let nodes = doc.get("consolidated_metadata").and_then(|c| c.get("metadata"));
    let Some(nodes) = nodes.and_then(Value::as_object) else { return Ok(None) };
    let v3_key = key(base, "zarr.json");
    let is = |node: &Map<String, Value>, kind: &str| {
        node.get("node_type").and_then(Value::as_str) == Some(kind)
    };
    let attrs = match group.is_empty() {
        true => attributes(doc),
        false => match nodes.get(group).and_then(Value::as_object) {
            Some(found) if is(found, "array") => {
                let shown = store.show(&v3_key);
                let who = Who { array: name_of(store, group), path: &shown };
                let n = node(who, &v3_key, &key(base, group), Document::V3(found.clone()))?;
                return Ok(Some(Found::Array(Box::new(n))));
            }
            Some(found) => attributes(found),
            None => return Ok(None),
        },
    };
    let mut documents = BTreeMap::new();
    let mut groups = Vec::new();
    for (path, found) in nodes {
        let Some(name) = child_of(path, group) else { continue };
        match found {
            Value::Object(found) if is(found, "group") => groups.push(name),
            Value::Object(found) => {
                documents.insert(name, Document::V3(found.clone()));
            }
            other => {
                documents.insert(name, Document::Other(other.clone()));
            }
        }
    }
    Ok(Some(group_of(store, &v3_key, &key(base, group), documents, groups, attrs)))
}

/// Finds the node `group` in the `.zmetadata` of the group `base`, if there is one.
async fn consolidated(
    store: &Store,
    base: &str,
    group: &str,
) -> Result<Option<Found>, SourceError> {
    let v2_key = key(base, ".zmetadata");
    let Some(mut doc) = document(store, &v2_key).await? else { return Ok(None) };
    if base.is_empty() && references::is_document(&doc) {
        return Ok(Some(Found::References(doc)));
    }
    let Some(Value::Object(mut nodes)) = doc.remove("metadata") else { return Ok(None) };
    let attrs_of = |path: &str| nodes.get(&key(path, ".zattrs")).cloned();
    if let Some(Value::Object(array)) = nodes.get(&key(group, ".zarray")) {
        let shown = store.show(&v2_key);
        let who = Who { array: name_of(store, group), path: &shown };
        let n = Document::V2 { array: array.clone(), attrs: attrs_of(group) };
        let n = node(who, &v2_key, &key(base, group), n)?;
        return Ok(Some(Found::Array(Box::new(n))));
    }
    if !group.is_empty() && !nodes.contains_key(&key(group, ".zgroup")) {
        return Ok(None);
    }
    let attrs = match attrs_of(group) {
        Some(Value::Object(a)) => a.into_iter().collect(),
        _ => Attrs::new(),
    };
    let mut documents = BTreeMap::new();
    let mut groups = Vec::new();
    let paths: Vec<String> = nodes.keys().cloned().collect();
    for path in paths {
        let Some((node, file)) = path.rsplit_once('/') else { continue };
        let Some(name) = child_of(node, group) else { continue };
        if file == ".zgroup" {
            groups.push(name);
        } else if file == ".zarray" {
            let document = match nodes.remove(&path) {
                Some(Value::Object(array)) => {
                    Document::V2 { array, attrs: nodes.remove(&key(node, ".zattrs")) }
                }
                other => Document::Other(other.unwrap_or_default()),
            };
            documents.insert(name, document);
        }
    }
    Ok(Some(group_of(store, &v2_key, &key(base, group), documents, groups, attrs)))
}

/// A directory's name, its documents (or their error) if it is an array, and true if it is a group.
type Looked = (String, Option<Result<Document, SourceError>>, bool);

/// A group without consolidated metadata: its directories are listed and inspected.
async fn listed(store: &Store, group: &str, attrs: Attrs) -> Result<Found, SourceError> {
    let directories = match (store.list(group).await, ngff::names(&attrs)) {
        (Ok(listing), _) => listing.directories,
        // A web server has no listing, a public bucket may refuse it, and an image names its levels.
        (Err(e), names) if !names.is_empty() && (is_web(store) || is_refused(&e)) => names,
        (Err(e), _) => return Err(e),
    };
    let (arrays, groups) = looked(store, group, directories).await?;
    Ok(Found::Group { arrays, groups, attrs })
}

/// The arrays and groups of these names directly in a group.
async fn looked(
    store: &Store,
    group: &str,
    names: Vec<String>,
) -> Result<(Arrays, Vec<String>), SourceError> {
    let looked: Vec<Looked> = stream::iter(names)
        .map(|name| async move {
            let at = key(group, &name);
            match look(store, &at).await {
                Ok(Look::Array(d)) => Ok((name, Some(Ok(d)), false)),
                Ok(Look::Group) => Ok((name, None, true)),
                Ok(Look::Nothing) => Ok((name, None, false)),
                // Damaged metadata make one array unusable; a failure of the storage affects all of them.
                Err(e @ SourceError::Metadata { .. }) => Ok((name, Some(Err(e)), false)),
                Err(e) => Err(e),
            }
        })
        .buffered(CONCURRENT_MAX)
        .try_collect()
        .await?;
    let mut arrays = Arrays::new();
    let mut groups = Vec::new();
    for (name, document, is_group) in looked {
        if is_group {
            groups.push(name);
        } else if let Some(document) = document {
            let at = key(group, &name);
            let made = document.map_err(Unread::from).and_then(|d| {
                let file = if matches!(d, Document::V3(_)) { "zarr.json" } else { ".zarray" };
                let own = key(&at, file);
                member(Who { array: &name, path: &store.show(&own) }, &own, &at, d)
            });
            arrays.insert(name, made);
        }
    }
    Ok((arrays, groups))
}

/// Adds to the arrays of a group the coordinates that groups above it have for its dimensions, as [`Scope`] says.
pub(crate) async fn inherit(
    store: &Store,
    group: &str,
    arrays: &mut Arrays,
) -> Result<(), SourceError> {
    let mut scope = Scope::of(arrays);
    if group.is_empty() || scope.is_complete() {
        return Ok(());
    }
    let root = document(store, "zarr.json").await?;
    for above in scope::above(group) {
        let found = match &root {
            Some(doc) => inline(store, doc, "", above)?,
            None => consolidated(store, "", above).await?,
        };
        let found = match found {
            Some(Found::Group { arrays, .. }) => arrays,
            Some(_) => continue,
            None => {
                let mut names = scope.names();
                names.retain(|name| is_name(name) && !name.contains('/'));
                looked(store, above, names).await?.0
            }
        };
        scope.take(found, arrays);
        if scope.is_complete() {
            break;
        }
    }
    Ok(())
}

enum Look {
    Array(Document),
    Group,
    Nothing,
}

async fn look(store: &Store, at: &str) -> Result<Look, SourceError> {
    if let Some(doc) = document(store, &key(at, "zarr.json")).await? {
        return Ok(match doc.get("node_type").and_then(Value::as_str) {
            Some("group") => Look::Group,
            _ => Look::Array(Document::V3(doc)),
        });
    }
    if let Some(array) = document(store, &key(at, ".zarray")).await? {
        let attrs = document(store, &key(at, ".zattrs")).await?.map(Value::Object);
        return Ok(Look::Array(Document::V2 { array, attrs }));
    }
    Ok(match document(store, &key(at, ".zgroup")).await? {
        Some(_) => Look::Group,
        None => Look::Nothing,
    })
}

fn group_of(
    store: &Store,
    document_key: &str,
    at: &str,
    documents: BTreeMap<String, Document>,
    mut groups: Vec<String>,
    attrs: Attrs,
) -> Found {
    groups.sort();
    let shown = store.show(document_key);
    let arrays = documents
        .into_iter()
        .map(|(name, d)| {
            let who = Who { array: &name, path: &shown };
            let made = member(who, document_key, &key(at, &name), d);
            (name, made)
        })
        .collect();
    Found::Group { arrays, groups, attrs }
}

fn member(who: Who<'_>, key: &str, at: &str, document: Document) -> Result<Node, Unread> {
    let (mut attrs, shape, names) = match &document {
        Document::V3(doc) => (attributes(doc), doc.get("shape"), doc.get("dimension_names")),
        Document::V2 { array, attrs } => {
            let attrs = attrs.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
            (attrs.into_iter().collect(), array.get("shape"), None)
        }
        Document::Other(_) => (Attrs::new(), None, None),
    };
    let own = attrs.remove("_ARRAY_DIMENSIONS");
    let list = |v: Option<&Value>| v.and_then(Value::as_array).cloned().unwrap_or_default();
    let (lengths, names) = (list(shape), list(names.or(own.as_ref())));
    let dim = |(n, name): (&Value, &Value)| Some((name.as_str().map(Arc::from), n.as_u64()?));
    let dims: Option<Vec<_>> = lengths.iter().zip(&names).map(dim).collect();
    let dims = dims.filter(|dims| dims.len() == lengths.len()).unwrap_or_default();
    node(who, key, at, document).map_err(|error| Unread { error, attrs, dims })
}

/// Parses an array's metadata, which were read from the object `key`.
fn node(who: Who<'_>, key: &str, at: &str, document: Document) -> Result<Node, SourceError> {
    let version = digest(&document);
    let meta = match document {
        Document::V3(doc) => ArrayMeta::parse_v3(who, doc)?,
        Document::V2 { array, attrs } => ArrayMeta::parse_v2(who, array, attrs.as_ref())?,
        Document::Other(_) => return Err(who.bad("it is not a JSON object")),
    };
    let place = Place::Zarr { document: key.to_string() };
    Ok(Node { key: at.to_string(), meta, version: Some(version), place })
}

/// A digest of metadata: of their JSON.
fn digest(document: &Document) -> String {
    let text = match document {
        Document::V3(doc) => Value::Object(doc.clone()).to_string(),
        Document::V2 { array, attrs } => {
            format!("{}{}", Value::Object(array.clone()), attrs.clone().unwrap_or_default())
        }
        Document::Other(value) => value.to_string(),
    };
    versions::digest(text.as_bytes())
}

async fn document(store: &Store, key: &str) -> Result<Option<Map<String, Value>>, SourceError> {
    let Some(bytes) = store.document(key).await? else { return Ok(None) };
    let shown = store.show(key);
    let at = key.rsplit_once('/').map_or("", |(at, _)| at);
    json_object(Who { array: name_of(store, at), path: &shown }, &bytes).map(Some)
}

fn is_web(store: &Store) -> bool {
    ["http://", "https://"].iter().any(|scheme| store.root().starts_with(scheme))
}

fn is_refused(e: &SourceError) -> bool {
    e.code() == "permission_denied"
}

/// The attributes of a group; `None` if it has no document of them.
pub(crate) async fn attributes_of(
    store: &Store,
    group: &str,
    is_v3: bool,
) -> Result<Option<Attrs>, SourceError> {
    Ok(match is_v3 {
        true => document(store, &key(group, "zarr.json")).await?.as_ref().map(attributes),
        false => {
            let attrs = document(store, &key(group, ".zattrs")).await?;
            attrs.map(|attrs| attrs.into_iter().collect())
        }
    })
}

fn attributes(doc: &Map<String, Value>) -> Attrs {
    match doc.get("attributes") {
        Some(Value::Object(a)) => a.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
        _ => Attrs::new(),
    }
}

pub(crate) fn key(at: &str, name: &str) -> String {
    match (at.is_empty(), name.is_empty()) {
        (true, _) => name.to_string(),
        (_, true) => at.to_string(),
        _ => format!("{at}/{name}"),
    }
}

/// The last part of a key, or of the store's own URL.
fn name_of<'a>(store: &'a Store, at: &'a str) -> &'a str {
    let path = if at.is_empty() { store.root() } else { at };
    path.rsplit('/').next().unwrap_or(path)
}

/// The name of `path` if it lies directly in `group`; a path that leaves its directory is not a name.
fn child_of(path: &str, group: &str) -> Option<String> {
    let rest = if group.is_empty() { path } else { path.strip_prefix(group)?.strip_prefix('/')? };
    (is_name(rest) && !rest.contains('/')).then(|| rest.to_string())
}

/// True for a path whose parts are all names.
pub(crate) fn is_name(path: &str) -> bool {
    !path.split('/').any(|p| p.is_empty() || p == "." || p == "..")
}

fn check_name(store: &Store, group: &str) -> Result<(), SourceError> {
    if is_name(group) {
        return Ok(());
    }
    Err(SourceError::BadUrl {
        url: format!("{}#{group}", store.root()),
        reason: "a group's path has parts that are no names".into(),
    })
}
