//! A dataset from the arrays of a group: which are data, which are labels.

use crate::sink::{UNNAMED_KEY, VALID_KEY};
use crate::source::Opened;
use crate::source::ahead::Ahead;
use crate::source::cf;
use crate::source::chunked::Chunked;
use crate::source::coords::labels;
use crate::source::error::SourceError;
use crate::source::location::{Location, Options};
use crate::source::reader::{ArrayReader, Layout};
use crate::source::store::Store;
use crate::source::zarr::{Found, Node};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, Dataset, Decode, SourceRef, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, Region};

/// Labels of the longest coordinate that is read at bind.
const LABELS_MAX: u64 = 16 << 20;

/// Coordinates read at the same time.
const CONCURRENT_MAX: usize = 8;

/// One array with its reader, and its attributes decoded.
struct Entry {
    variable: Variable,
    reader: Arc<ArrayReader>,
    /// Its cells are texts: it can be a coordinate and nothing else.
    is_text: bool,
    /// Names in the attributes `coordinates`, `bounds`, `climatology` and `grid_mapping`.
    refers: Vec<String>,
}

/// Makes a dataset of what [`crate::source::zarr::find`] found.
pub(crate) async fn assemble(
    store: &Store,
    location: &Location,
    options: &Options,
    found: Found,
) -> Result<Opened, SourceError> {
    let mut unsupported = BTreeMap::new();
    let mut entries = Vec::new();
    let (mut attrs, groups) = match found {
        Found::Array(node) => {
            // Alone, an array that cannot be read is the error itself.
            entries.push(entry(store, &location.stem(), *node, options)?);
            if let Some(e) = entries.first().filter(|e| e.is_text) {
                return Err(text_error(&e.variable.name));
            }
            (Attrs::new(), Vec::new())
        }
        Found::Group { arrays, groups, attrs } => {
            for (name, node) in arrays {
                match node.and_then(|n| entry(store, &name, n, options)) {
                    Ok(e) => entries.push(e),
                    // A misread time axis would give wrong labels: that is no array to leave out.
                    Err(e @ (SourceError::TimeUnits { .. } | SourceError::Attribute { .. })) => {
                        return Err(e);
                    }
                    Err(e) => {
                        unsupported.insert(name, e);
                    }
                }
            }
            (attrs, groups)
        }
    };
    let masks = match options.decode_cf {
        true => attach_masks(&mut entries)?,
        false => Vec::new(),
    };
    check_dims(&entries)?;
    let mut named: BTreeSet<String> = entries.iter().flat_map(|e| e.refers.clone()).collect();
    if options.decode_cf
        && let Some(Value::String(s)) = attrs.get("coordinates")
    {
        named.extend(s.split_whitespace().map(str::to_string));
        attrs.remove("coordinates");
    }
    let mut dataset = Dataset { name: location.stem(), attrs, ..Dataset::default() };
    let mut readers = masks;
    let single = entries.len() == 1;
    let split: Vec<(Entry, Option<Coord>, bool)> = stream::iter(entries)
        .map(|e| {
            let dims: Vec<_> = e.variable.dims.iter().flatten().collect();
            let is_index = dims.len() == 1 && *dims[0] == e.variable.name;
            let is_label =
                is_index || named.contains(&*e.variable.name) || dims.contains(&&e.variable.name);
            async move {
                // Bounds and other companions have more axes than labels can have.
                let coord = match is_label && !single && e.variable.dims.len() == 1 {
                    true => coordinate(&e).await?,
                    false => None,
                };
                Ok::<_, SourceError>((e, coord, is_label && !single))
            }
        })
        .buffered(CONCURRENT_MAX)
        .try_collect()
        .await?;
    for (e, coord, is_label) in split {
        match coord {
            Some(c) => dataset.coords.push(Arc::new(c)),
            None if e.is_text => {
                unsupported.insert(e.variable.name.to_string(), text_error(&e.variable.name));
            }
            None => {
                readers.push(e.reader);
                match is_label {
                    true => dataset.auxiliary.push(e.variable),
                    false => dataset.variables.push(e.variable),
                }
            }
        }
    }
    Ok(Opened { dataset, readers, unsupported, groups, read: Vec::new() })
}

/// Joins variables with the arrays that say which of their cells are valid, which are then no variables themselves.
fn attach_masks(entries: &mut Vec<Entry>) -> Result<Vec<Arc<ArrayReader>>, SourceError> {
    let mut taken = BTreeSet::new();
    for i in 0..entries.len() {
        let Some(Value::String(name)) = entries[i].variable.attrs.remove(VALID_KEY) else {
            continue;
        };
        let shape = &entries[i].variable.source.shape;
        let found = entries.iter().position(|e| {
            *e.variable.name == *name
                && e.variable.source.dtype == DType::Bool
                && e.variable.source.shape == *shape
        });
        let Some(k) = found else {
            return Err(SourceError::Attribute {
                array: entries[i].variable.name.to_string(),
                attribute: VALID_KEY.into(),
                reason: format!("there is no array `{name}` of bool with its shape"),
            });
        };
        let valid = entries[k].variable.source.clone();
        entries[i].variable.decode.valid = Some(Arc::new(valid));
        taken.insert(k);
    }
    let mut readers = Vec::with_capacity(taken.len());
    for k in taken.into_iter().rev() {
        readers.push(entries.remove(k).reader);
    }
    Ok(readers)
}

fn text_error(name: &str) -> SourceError {
    SourceError::UnsupportedDType {
        array: name.to_string(),
        dtype: "string (but as a 1-d coordinate)".into(),
    }
}

fn entry(store: &Store, name: &str, node: Node, options: &Options) -> Result<Entry, SourceError> {
    let Node { key, meta, version } = node;
    let is_text = meta.raw.dtype().is_none();
    let dtype = meta.raw.dtype().unwrap_or(DType::UInt8);
    let mut attrs = meta.attrs.clone();
    let mut refers = Vec::new();
    if options.decode_cf {
        for key in ["coordinates", "bounds", "climatology", "grid_mapping"] {
            if let Some(Value::String(s)) = attrs.get(key) {
                refers.extend(s.split_whitespace().map(|w| w.trim_end_matches(':').to_string()));
            }
        }
        attrs.remove("coordinates");
    }
    let (dtype, decode, attrs) = if options.decode_cf && !is_text {
        let d = cf::decode(name, dtype, attrs, meta.fill_v2.as_ref())?;
        (d.dtype, d.decode, d.attrs)
    } else {
        (dtype, Decode::default(), attrs)
    };
    let source = SourceRef {
        url: store.root().to_string(),
        path: key.clone(),
        dtype,
        shape: meta.shape.clone(),
        grid: Grid::regular(&meta.shape, &meta.unit),
        nullable: false,
        version: Some(version),
        plain: store.is_local() && meta.is_plain() && meta.raw.size() as usize == dtype.size(),
    };
    let mut dims = meta.dims.clone();
    if let Some(Value::Array(unnamed)) = attrs.get(UNNAMED_KEY) {
        for axis in unnamed.iter().filter_map(Value::as_u64) {
            if let Some(d) = dims.get_mut(axis as usize) {
                *d = None;
            }
        }
    }
    let attrs: Attrs = attrs.into_iter().filter(|(k, _)| k != UNNAMED_KEY).collect();
    let reader = ArrayReader {
        source: source.clone(),
        name: name.to_string(),
        store: store.clone(),
        layout: Layout::Chunked(Box::new(Chunked::new(meta, key))),
        ahead: Ahead::default(),
    };
    let variable = Variable { name: name.into(), dims, source, decode, attrs };
    Ok(Entry { variable, reader: Arc::new(reader), is_text, refers })
}

/// One length for each name of a dimension.
fn check_dims(entries: &[Entry]) -> Result<(), SourceError> {
    let mut lengths: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for e in entries {
        for (dim, &len) in e.variable.dims.iter().zip(&e.variable.source.shape) {
            let Some(dim) = dim else { continue };
            let (seen, by) = *lengths.entry(dim).or_insert((len, &e.variable.name));
            if seen != len {
                return Err(SourceError::DimConflict {
                    dim: dim.to_string(),
                    a: by.to_string(),
                    a_len: seen,
                    b: e.variable.name.to_string(),
                    b_len: len,
                });
            }
        }
    }
    Ok(())
}

/// The labels of a 1-d variable, read; `None` if they are too many or are none.
async fn coordinate(e: &Entry) -> Result<Option<Coord>, SourceError> {
    let v = &e.variable;
    let (Some(Some(dim)), Some(&len)) = (v.dims.first(), v.source.shape.first()) else {
        return Ok(None);
    };
    if len > LABELS_MAX {
        return Ok(None);
    }
    let (region, reader) = (Region::whole(&Dims::from_slice(&[len])), e.reader.opening());
    let values = if e.is_text {
        let Layout::Chunked(chunked) = &reader.layout else { return Ok(None) };
        let texts = chunked.texts(&reader, &region).await?;
        Some(CoordValues::Text(texts.into()))
    } else {
        labels(&reader.read(&region).await?, v.source.dtype, &v.decode)
    };
    Ok(values.map(|values| Coord {
        name: v.name.clone(),
        dim: dim.clone(),
        values,
        attrs: v.attrs.clone(),
    }))
}
