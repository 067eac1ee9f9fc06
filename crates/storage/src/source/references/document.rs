//! References in a JSON document.
//!
//! # Source
//! The kerchunk specification of references, versions 0 and 1. Templates are names in braces; generated references are
//! refused.

use super::part::{Directory, File, Reference, inline};
use crate::source::error::SourceError;
use crate::source::location::{Location, Options};
use crate::source::store::Stores;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a document is not read.
pub(super) enum Unfit {
    Bad(String),
    Unsupported(String),
    Source(SourceError),
}

/// The references of a document by their keys; `None` if it has none.
pub(super) fn parse(
    mut document: Map<String, Value>,
    location: &Location,
    options: &Options,
    stores: &Stores,
) -> Result<Option<BTreeMap<String, Reference>>, Unfit> {
    let is_v1 = document.contains_key("version") || document.contains_key("refs");
    if document.get("gen").and_then(Value::as_array).is_some_and(|g| !g.is_empty()) {
        return Err(Unfit::Unsupported("generated references (`gen`)".into()));
    }
    let templates = match document.remove("templates") {
        Some(Value::Object(templates)) => templates,
        _ => Map::new(),
    };
    let refs = match (is_v1, document.remove("refs")) {
        (true, Some(Value::Object(refs))) => refs,
        (true, _) => return Err(Unfit::Bad("`refs` is missing or not an object".into())),
        (false, _) => document,
    };
    let is_zarr = |k: &str| {
        k.ends_with(".zgroup")
            || k.ends_with(".zarray")
            || k.ends_with(".zmetadata")
            || k.ends_with("zarr.json")
    };
    if !refs.keys().any(|k| is_zarr(k)) {
        return Ok(None);
    }
    let directory = Directory::of(location);
    let mut files: BTreeMap<String, Arc<File>> = BTreeMap::new();
    let mut of = BTreeMap::new();
    for (key, value) in refs {
        let bad = |reason: &str| Unfit::Bad(format!("the reference `{key}` {reason}"));
        let made = match value {
            Value::String(text) => {
                Reference::Inline(inline(text.as_bytes()).ok_or_else(|| bad("is not base64"))?)
            }
            Value::Array(parts) => {
                let url = parts.first().and_then(Value::as_str);
                let url = url.ok_or_else(|| bad("names no file"))?;
                let url = filled(url, &templates)
                    .ok_or_else(|| bad("has a template that is not a name in braces"))?;
                let range = match (parts.get(1).map(Value::as_u64), parts.get(2).map(Value::as_u64))
                {
                    (None, None) => None,
                    (Some(Some(start)), Some(Some(n))) => {
                        let end = start.checked_add(n);
                        Some(start..end.ok_or_else(|| bad("ends beyond 2^64"))?)
                    }
                    _ => return Err(bad("is not `[url, offset, length]`")),
                };
                let file = match files.get(&url) {
                    Some(file) => file.clone(),
                    None => {
                        let file = File::at(&url, &directory, options, stores);
                        let file = Arc::new(file.map_err(Unfit::Source)?);
                        files.insert(url, file.clone());
                        file
                    }
                };
                Reference::Part { file, range }
            }
            // kerchunk writes metadata as objects, too.
            Value::Object(_) => Reference::Inline(value.to_string().into()),
            _ => return Err(bad("is neither a text nor a list")),
        };
        of.insert(key, made);
    }
    Ok(Some(of))
}

/// A URL with its templates filled in; `None` if one is unknown or takes arguments.
fn filled(url: &str, templates: &Map<String, Value>) -> Option<String> {
    let mut out = String::new();
    let mut rest = url;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}")?;
        out.push_str(before);
        out.push_str(templates.get(name.trim())?.as_str()?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn templates_are_names_in_braces() {
        let templates = serde_json::json!({"u": "s3://b/x.nc"});
        let templates = templates.as_object().unwrap();
        assert_eq!(filled("{{u}}", templates).unwrap(), "s3://b/x.nc");
        assert_eq!(filled("{{ u }}?a", templates).unwrap(), "s3://b/x.nc?a");
        assert_eq!(filled("plain", templates).unwrap(), "plain");
        assert_eq!(filled("{{f(c='x')}}", templates), None);
    }
}
