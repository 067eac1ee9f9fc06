//! Assembles a dataset from the arrays of a group: data, labels and others.

use crate::sink::cf::{COORDINATES_KEY, UNNAMED_KEY};
use crate::sink::{ROLE_KEY, VALID_KEY};
use crate::source::Opened;
use crate::source::cells::Raw;
use crate::source::cf;
use crate::source::coords::{label_of_grib, labels};
use crate::source::error::SourceError;
use crate::source::found::{Found, Node, Unread};
use crate::source::location::{Location, Options};
use crate::source::meta::ArrayMeta;
use crate::source::moments::{CfTimes, Moments};
use crate::source::reader::ArrayReader;
use crate::source::store::Store;
use crate::source::texts;
use crate::source::time_units::is_time;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_planner::catalog::{
    Attrs, Coord, CoordValues, Dataset, Decode, NoLabels, SourceRef, Texts, Unreadable, Variable,
};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::region::Region;
use tessera_planner::scalar::Scalar;

/// Upper bound on the labels of a coordinate that is read at bind.
pub(crate) const LABELS_MAX: u64 = 16 << 20;

/// Upper bound on the coordinates read concurrently.
const CONCURRENT_MAX: usize = 8;

/// One array with its reader, and its attributes decoded.
struct Entry {
    variable: Variable,
    reader: Arc<ArrayReader>,
    /// True if its cells are texts, which are read at bind as the labels of a coordinate are.
    is_text: bool,
    /// Texts that mark missing cells.
    markers: Vec<String>,
    /// Time units, if CF's attributes declare them.
    times: Option<CfTimes>,
    /// The time axis of which it is the bounds.
    bounds_of: Option<String>,
    /// True for data of the warehouse that is a coordinate in copies.
    is_coordinate: bool,
}

/// Arrays that cannot be read, by name.
type Unsupported = BTreeMap<String, SourceError>;

/// Assembles a dataset from the findings of a reader of metadata.
///
/// An array that cannot be read is an error when a query uses it, and so are the labels of its dimension.
pub(crate) async fn assemble(
    store: &Store,
    location: &Location,
    options: &Options,
    found: Found,
) -> Result<Opened, SourceError> {
    let mut unsupported = Unsupported::new();
    let mut entries = Vec::new();
    let (mut named, mut dims) = (BTreeSet::new(), BTreeMap::new());
    let mut coordinates = BTreeSet::new();
    let (attrs, groups) = match found {
        Found::Array(node) => {
            let e = entry(store, &location.stem(), *node, options, None)?;
            texts::check_alone(&e.variable, e.is_text)?;
            entries.push(e);
            (Attrs::new(), Vec::new())
        }
        Found::Group { arrays, groups, mut attrs } => {
            let axes = if options.decode_cf { bounded_axes(&arrays) } else { BTreeMap::new() };
            if options.decode_cf {
                let of_all = arrays.values().flat_map(|n| words(attrs_of(n), COORDINATES_KEY));
                coordinates = of_all.chain(words(&attrs, COORDINATES_KEY)).collect();
                named = companions(&arrays);
                named.extend(coordinates.iter().cloned());
                attrs.remove(COORDINATES_KEY);
            }
            for (name, node) in arrays {
                let known = dims_of(&node);
                let made = node.map_err(|n| n.error);
                match made.and_then(|n| entry(store, &name, n, options, axes.get(&name))) {
                    Ok(e) => entries.push(e),
                    Err(e) => {
                        unsupported.insert(name.clone(), e);
                    }
                }
                dims.insert(name, known);
            }
            (attrs, groups)
        }
        Found::References(_) => {
            let what = location.display.clone();
            return Err(SourceError::OtherFormat { what, format: "zarr".into() });
        }
    };
    let mut readers = match options.decode_cf {
        true => attach_masks(&mut entries, &mut unsupported),
        false => Vec::new(),
    };
    check_dims(&entries)?;
    let label = match &options.concat {
        Some(dim) => scalar_label(&entries, dim).await?,
        None => None,
    };
    let mut dataset = Dataset { name: location.stem(), attrs, ..Dataset::default() };
    let single = entries.len() == 1 && unsupported.is_empty();
    let lengths = lengths(&entries);
    let read = roles(entries, &named, single).await?;
    let mut unlabelled = Unsupported::new();
    let mut others = Vec::new();
    for (e, role) in read {
        let name = &e.variable.name;
        let is_named = !matches!(role, Role::Data) && coordinates.contains(&**name);
        if e.is_coordinate || is_named {
            dataset.coordinates.insert(name.clone());
        }
        match role {
            Role::Labels(coord) => dataset.coords.push(Arc::new(coord)),
            Role::Scalar(coord) => dataset.scalars.push(Arc::new(coord)),
            Role::Unreadable(error) => {
                unsupported.insert(e.variable.name.to_string(), error);
            }
            Role::Companion(why) => {
                unlabelled.extend(why.map(|why| (e.variable.name.to_string(), why)));
                others.push((e, true));
            }
            Role::Data => others.push((e, false)),
        }
    }
    for (e, is_companion) in others {
        let e = in_calendar_of_axis(e, &dataset.coords);
        readers.push(e.reader);
        match is_companion {
            true => dataset.auxiliary.push(e.variable),
            false => dataset.variables.push(e.variable),
        }
    }
    dataset.unreadable = unsupported
        .iter()
        .map(|(name, error)| Arc::new(unreadable(name, error, dims.get(name).map(Vec::as_slice))))
        .collect();
    // Positions are no substitute for labels that exist and cannot be read.
    let unread = without_labels(&dataset, lengths, &unlabelled, &dims, single);
    dataset.coords.extend(unread);
    dataset.coords.sort_by(|a, b| a.name.cmp(&b.name));
    dataset.scalars.sort_by(|a, b| a.name.cmp(&b.name));
    dataset.groups = groups.clone();
    Ok(Opened { dataset, readers, unsupported, groups, label, read: Vec::new() })
}

/// Coordinates for dimensions whose labels exist and cannot be read.
fn without_labels(
    dataset: &Dataset,
    lengths: BTreeMap<String, u64>,
    unlabelled: &Unsupported,
    dims: &BTreeMap<String, Vec<NamedLength>>,
    single: bool,
) -> Vec<Arc<Coord>> {
    let mut coords = Vec::new();
    for (dim, len) in lengths {
        let known = dataset.unreadable.iter().find(|u| *u.name == *dim).cloned();
        // A variable of that name along another dimension labels neither.
        let other = || {
            let is = |v: &Variable| *v.name == *dim && v.dims.len() == 1;
            let reason = "it is not along the dimension of its name".to_string();
            let error = SourceError::NoLabels { array: dim.clone(), reason };
            (!single && dataset.variables.iter().any(is)).then_some(error)
        };
        let why = known.or_else(|| {
            let error = unlabelled.get(&dim).cloned().or_else(other)?;
            Some(Arc::new(unreadable(&dim, &error, dims.get(&dim).map(Vec::as_slice))))
        });
        if let Some(of) = why {
            let (name, values) = (Arc::from(dim), NoLabels::new(of, len as usize));
            coords.push(Arc::new(Coord {
                dim: Arc::clone(&name),
                name,
                values: CoordValues::Unreadable(values),
                attrs: Attrs::new(),
            }));
        }
    }
    coords
}

/// Role of an array in its dataset.
enum Role {
    /// Cells that span rows.
    Data,
    Labels(Coord),
    /// A text without a dimension.
    Scalar(Coord),
    /// Accessible by name; with the reason if it should label its dimension and does not.
    Companion(Option<SourceError>),
    /// Cannot be read.
    Unreadable(SourceError),
}

/// Returns the role of each array. `named` are the arrays that others refer to as theirs. A single array is data; texts
/// are a coordinate, whichever array refers to them.
async fn roles(
    entries: Vec<Entry>,
    named: &BTreeSet<String>,
    single: bool,
) -> Result<Vec<(Entry, Role)>, SourceError> {
    let dims = entries.iter().flat_map(|e| e.variable.dims.iter().flatten().cloned());
    let (dims, room) = (dims.collect::<BTreeSet<Arc<str>>>(), &texts::Room::default());
    stream::iter(entries)
        .map(|e| {
            let name = &e.variable.name;
            let is_along = e.variable.dims.iter().flatten().any(|dim| dim == name);
            let is_label = !single && (named.contains(&**name) || is_along);
            // A text variable would hide the positions of the dimension with its name.
            let is_other = e.is_text && !is_along && dims.contains(name);
            async move {
                let role = match is_label || e.is_text {
                    _ if is_other => Role::Unreadable(texts::refused(&e.variable.name)),
                    true => role(&e, room).await?,
                    false => Role::Data,
                };
                Ok::<_, SourceError>((e, role))
            }
        })
        .buffered(CONCURRENT_MAX)
        .try_collect()
        .await
}

/// The role of an array that is a coordinate or belongs to one.
async fn role(e: &Entry, room: &texts::Room) -> Result<Role, SourceError> {
    let v = &e.variable;
    if v.dims.len() != 1 && !e.is_text {
        // Bounds and other companions have more axes than labels can have.
        let reason = format!("it has {} dimensions, so it labels none", v.dims.len());
        let none = SourceError::NoLabels { array: v.name.to_string(), reason };
        return Ok(Role::Companion(Some(none)));
    }
    match coordinate(e, room).await {
        Ok(Some(coord)) if v.dims.is_empty() => Ok(Role::Scalar(coord)),
        Ok(Some(coord)) => Ok(Role::Labels(coord)),
        // Texts have no form but labels.
        Ok(None) if e.is_text => Ok(Role::Unreadable(texts::refused(&v.name))),
        Ok(None) => Ok(Role::Companion(None)),
        Err(why @ SourceError::NoLabels { .. }) if e.is_text => Ok(Role::Unreadable(why)),
        Err(e @ SourceError::NoLabels { .. }) => Ok(Role::Companion(Some(e))),
        // Faults of the array itself; failures of the storage are errors.
        Err(
            e @ (SourceError::Chunk { .. }
            | SourceError::Corrupt { .. }
            | SourceError::Metadata { .. }
            | SourceError::Unsupported { .. }
            | SourceError::UnsupportedDType { .. }
            | SourceError::TimeValue { .. }
            | SourceError::ObjectTooLarge { .. }),
        ) => Ok(Role::Unreadable(e)),
        Err(e) => Err(e),
    }
}

fn lengths(entries: &[Entry]) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for e in entries {
        let dims = e.variable.dims.iter().zip(&e.variable.source.shape);
        out.extend(dims.filter_map(|(d, n)| Some((d.as_ref()?.to_string(), *n))));
    }
    out
}

/// Names and lengths of an array's dimensions, as far as they are known.
pub(crate) fn dims_of(node: &Result<Node, Unread>) -> Vec<(Option<Arc<str>>, u64)> {
    match node {
        Ok(n) => n.meta.dims.iter().cloned().zip(n.meta.shape.iter().copied()).collect(),
        Err(n) => n.dims.clone(),
    }
}

fn attrs_of(node: &Result<Node, Unread>) -> &Attrs {
    match node {
        Ok(n) => &n.meta.attrs,
        Err(n) => &n.attrs,
    }
}

/// The names that an attribute lists, of `a: x b: y` each of them.
fn words(attrs: &Attrs, key: &str) -> Vec<String> {
    let text = attrs.get(key).and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().map(|word| word.trim_end_matches(':').to_string()).collect()
}

/// Names of arrays that belong to others, by CF, and are no coordinates: bounds, grid mappings, and the terms of a
/// formula's bounds.
fn companions(arrays: &BTreeMap<String, Result<Node, Unread>>) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for node in arrays.values() {
        let attrs = attrs_of(node);
        out.extend(words(attrs, "grid_mapping"));
        for key in ["bounds", "climatology"] {
            for bounds in words(attrs, key) {
                // `a: a_bnds ps: ps` beside `a: a ps: ps`: a term that is the same for both is data.
                let own = words(attrs, "formula_terms");
                let terms = arrays.get(&bounds).map(|b| words(attrs_of(b), "formula_terms"));
                out.extend(terms.into_iter().flatten().filter(|term| !own.contains(term)));
                out.insert(bounds);
            }
        }
    }
    out
}

/// A dimension's name, if it has one, and its length.
type NamedLength = (Option<Arc<str>>, u64);

/// An array that cannot be read, with its error.
pub(crate) fn unreadable(
    name: &str,
    error: &SourceError,
    dims: Option<&[NamedLength]>,
) -> Unreadable {
    Unreadable {
        name: name.into(),
        dims: dims.unwrap_or_default().to_vec(),
        code: error.code(),
        reason: error.to_string(),
        hint: error.hint(),
    }
}

/// A time axis with bounds: the attributes that its bounds inherit, as in CF and xarray.
struct BoundedAxis {
    name: String,
    units: Value,
    calendar: Option<Value>,
}

/// Time axes by the names of their bounds.
fn bounded_axes(arrays: &BTreeMap<String, Result<Node, Unread>>) -> BTreeMap<String, BoundedAxis> {
    let mut out = BTreeMap::new();
    for (name, node) in arrays {
        let attrs = attrs_of(node);
        let Some(units) = attrs.get("units").filter(|u| u.as_str().is_some_and(is_time)) else {
            continue;
        };
        for key in ["bounds", "climatology"] {
            if let Some(Value::String(bounds)) = attrs.get(key) {
                let calendar = attrs.get("calendar").cloned();
                let axis = BoundedAxis { name: name.clone(), units: units.clone(), calendar };
                out.insert(bounds.trim().to_string(), axis);
            }
        }
    }
    out
}

/// Sets the calendar of bounds to the calendar found for their axis.
fn in_calendar_of_axis(mut e: Entry, coords: &[Arc<Coord>]) -> Entry {
    let Some(axis) = &e.bounds_of else { return e };
    let axis = coords.iter().find(|c| *c.name == **axis);
    let (Some(CoordValues::Time(Calendar::Mixed, _)), Some(times), Some(units)) =
        (axis.map(|c| &c.values), &mut e.times, &mut e.variable.decode.time)
    else {
        return e;
    };
    units.calendar = Calendar::Mixed;
    (times.units.calendar, times.is_mixed) = (Calendar::Mixed, false);
    let moments = Some(Arc::new(Moments::Cf(Box::new(times.clone()))));
    e.reader = Arc::new(ArrayReader { moments, ..e.reader.fresh() });
    e
}

/// Joins variables with their validity arrays, which are then no variables themselves.
fn attach_masks(entries: &mut Vec<Entry>, unsupported: &mut Unsupported) -> Vec<Arc<ArrayReader>> {
    let (mut taken, mut alone) = (BTreeSet::new(), BTreeSet::new());
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
        let array = entries[i].variable.name.to_string();
        let Some(k) = found else {
            let reason = format!("no array `{name}` of bool has its shape");
            let error = SourceError::Attribute {
                array: array.clone(),
                attribute: VALID_KEY.into(),
                reason,
            };
            unsupported.insert(array, error);
            alone.insert(i);
            continue;
        };
        let valid = entries[k].variable.source.clone();
        entries[i].variable.decode.valid = Some(Arc::new(valid));
        taken.insert(k);
    }
    let mut readers = Vec::with_capacity(taken.len());
    for k in (0..entries.len()).rev() {
        if taken.contains(&k) {
            readers.push(entries.remove(k).reader);
        } else if alone.contains(&k) {
            entries.remove(k);
        }
    }
    readers
}

fn entry(
    store: &Store,
    name: &str,
    mut node: Node,
    options: &Options,
    axis: Option<&BoundedAxis>,
) -> Result<Entry, SourceError> {
    let meta = &node.meta;
    let is_text = meta.dtype().is_none();
    let markers = if is_text && options.decode_cf { texts::markers(meta) } else { Vec::new() };
    let dtype = meta.dtype().unwrap_or(DType::UInt8);
    let mut attrs = meta.attrs.clone();
    if let Some(axis) = axis.filter(|axis| axis.name != name) {
        let units = attrs.entry("units".into()).or_insert_with(|| axis.units.clone());
        if units.as_str().is_some_and(is_time)
            && let Some(calendar) = &axis.calendar
        {
            attrs.entry("calendar".into()).or_insert_with(|| calendar.clone());
        }
    }
    if options.decode_cf {
        attrs.remove(COORDINATES_KEY);
    }
    let is_coordinate = attrs.remove(ROLE_KEY).is_some();
    let (mut dtype, mut decode, times, mut attrs) = if options.decode_cf && !is_text {
        let d = cf::decode(name, dtype, attrs, meta.fill_v2.as_ref(), &meta.narrow)?;
        (d.dtype, d.decode, d.times, d.attrs)
    } else {
        (dtype, Decode::default(), None, attrs)
    };
    if options.decode_cf && is_truth(&node.meta, &decode, &attrs) {
        attrs.remove("dtype");
        dtype = DType::Bool;
        node.meta.raw = Raw::Plain(dtype);
        let fill = Cow::Owned(std::mem::take(&mut node.meta.fill));
        node.meta.fill = node.meta.raw.convert(fill).into_owned();
    }
    let meta = &node.meta;
    if let (Some((key, units)), true) = (cf::span_units(&meta.raw), options.decode_cf) {
        let nat = Scalar::i64(i64::MIN);
        if !decode.missing.contains(&nat) {
            decode.missing.push(nat);
        }
        attrs.entry(key).or_insert(units);
    }
    let source = SourceRef {
        url: store.root().to_string(),
        path: node.key.clone(),
        dtype,
        shape: meta.shape.clone(),
        grid: node.grid(),
        nullable: false,
        version: node.version.clone(),
        plain: store.is_local() && node.is_plain() && meta.raw.size() as usize == dtype.size(),
    };
    let mut dims = meta.dims.clone();
    let unnamed = match attrs.get(UNNAMED_KEY) {
        Some(Value::Array(list)) => list.as_slice(),
        // NetCDF has no lists of one number.
        Some(one) => std::slice::from_ref(one),
        None => &[],
    };
    for axis in unnamed.iter().filter_map(Value::as_u64) {
        if let Some(d) = dims.get_mut(axis as usize) {
            *d = None;
        }
    }
    let attrs: Attrs = attrs.into_iter().filter(|(k, _)| k != UNNAMED_KEY).collect();
    let moments = match &times {
        Some(times) => Some(Arc::new(Moments::Cf(Box::new(times.clone())))),
        None => Moments::native(&meta.raw).map(Arc::new),
    };
    let (layout, rests) = node.layout(store);
    let reader = ArrayReader::new(source.clone(), name, store.clone(), layout);
    let reader = ArrayReader { moments, rests, ..reader };
    let variable = Variable { name: name.into(), dims, source, decode, attrs };
    let (reader, bounds_of) = (Arc::new(reader), axis.map(|axis| axis.name.clone()));
    Ok(Entry { variable, reader, is_text, markers, times, bounds_of, is_coordinate })
}

/// True if bytes are truth values: xarray marks them so in formats that have no such type. Those with missing values
/// stay numbers.
fn is_truth(meta: &ArrayMeta, decode: &Decode, attrs: &Attrs) -> bool {
    attrs.get("dtype").and_then(Value::as_str) == Some("bool")
        && decode.is_identity()
        && meta.taken.steps.is_none()
        && matches!(meta.raw, Raw::Plain(DType::Int8 | DType::UInt8))
}

/// Checks that all dimensions of one name have one length.
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

/// Reads the labels of a 1-d variable, or a text without a dimension; `None` if its dimension has no name.
async fn coordinate(e: &Entry, room: &texts::Room) -> Result<Option<Coord>, SourceError> {
    let v = &e.variable;
    let (dim, len) = match (&v.dims[..], &v.source.shape[..]) {
        ([Some(dim)], [len]) => (dim, *len),
        ([], []) => (&v.name, 1),
        _ => return Ok(None),
    };
    let no_labels = |reason| SourceError::NoLabels { array: v.name.to_string(), reason };
    if len > LABELS_MAX {
        return Err(no_labels(format!("it has {len} labels, and at most {LABELS_MAX} are read")));
    }
    if e.is_text {
        room.take(&v.name, len)?;
    }
    let values = label_values(e).await?;
    if let CoordValues::Text(texts) = &values {
        room.letters(&v.name, texts)?;
    }
    Ok(Some(Coord { name: v.name.clone(), dim: dim.clone(), values, attrs: v.attrs.clone() }))
}

/// The value of the scalar called `dim`, which is an attribute in GRIB; `None` if no such scalar exists, or if an array
/// has a dimension of that name.
async fn scalar_label(entries: &[Entry], dim: &str) -> Result<Option<CoordValues>, SourceError> {
    if entries.iter().flat_map(|e| e.variable.dims.iter().flatten()).any(|d| **d == *dim) {
        return Ok(None);
    }
    match entries.iter().find(|e| *e.variable.name == *dim && e.variable.dims.is_empty()) {
        Some(e) => label_values(e).await.map(Some),
        None => Ok(label_of_grib(entries.iter().map(|e| &e.variable.attrs), dim)),
    }
}

/// Reads all cells of an array as labels.
async fn label_values(e: &Entry) -> Result<CoordValues, SourceError> {
    let (v, reader) = (&e.variable, e.reader.opening());
    let region = Region::whole(&v.source.shape);
    if e.is_text {
        // By CF a grid mapping consists of its attributes: its one letter means nothing, and is not worth a request.
        let is_container = v.dims.is_empty() && v.attrs.contains_key("grid_mapping_name");
        let texts = if is_container { vec![String::new()] } else { reader.texts(&region).await? };
        // Labels of a dimension are never missing, whatever their text.
        let is_index = v.dims.first().is_some_and(|dim| dim.as_ref() == Some(&v.name));
        let is_missing = |text: &str| !is_index && e.markers.iter().any(|marker| marker == text);
        return Ok(CoordValues::Text(Texts::marked(texts, is_missing)));
    }
    // Dates before the reform of 1582 are checked with the labels, which may have them.
    let moments = reader.moments.clone().filter(|m| !matches!(**m, Moments::Cf(_)));
    let reader = ArrayReader { moments, ..reader };
    let cells = reader.read(&region).await?;
    let made = labels(&cells, v.source.dtype, &v.decode, e.times.as_ref());
    made.map_err(|reason| match e.times {
        Some(_) => SourceError::TimeValue { array: v.name.to_string(), reason },
        None => SourceError::NoLabels { array: v.name.to_string(), reason },
    })
}
