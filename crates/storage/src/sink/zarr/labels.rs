//! Names and labels of a store's arrays, in CF's notation.
//!
//! # Source
//! CF Conventions 1.11, sections 2.5.1 and 4.4; xarray 2026 for the decoding.

use super::document::Cells;
use super::{Item, Layout};
use crate::sink::SinkError;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, NAT, Texts};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::scalar::Scalar;
use tessera_planner::time::DAY_US;

/// Attribute of an array: positions of its unnamed dimensions. xarray requires a name for each, so they are called
/// `dim_0`, …; Tessera reads them as unnamed again.
pub const UNNAMED_KEY: &str = "tessera_unnamed_dims";

/// Attribute of an array: the name of the `bool` array that is true where a cell is not masked. It is set if every
/// candidate for the fill value is the value of a valid cell.
pub(crate) const VALID_KEY: &str = "tessera_valid";

/// Attribute of an array, and of a dataset: names of coordinates that are not the labels of a dimension.
pub const COORDINATES_KEY: &str = "coordinates";

/// Attribute of an array of the warehouse: true for a coordinate that is not the labels of a dimension. There it is
/// data as any other array, and a coordinate again where the dataset is copied.
pub(crate) const ROLE_KEY: &str = "tessera_coordinate";

/// Attribute of texts: the text that marks missing ones. In NetCDF `_FillValue` is one letter, and xarray reads no
/// `_FillValue` of Zarr's texts.
pub const MISSING_KEY: &str = "missing_value";

/// Upper bound on the bytes of a name.
const NAME_BYTES_MAX: usize = 200;

/// Attributes that describe the encoding of cells. A result's cells are plain values, so those of its sources would
/// be wrong.
const ENCODING: [&str; 16] = [
    "_FillValue",
    "missing_value",
    "scale_factor",
    "add_offset",
    "valid_min",
    "valid_max",
    "valid_range",
    "_Unsigned",
    "_Encoding",
    COORDINATES_KEY,
    "calendar",
    "dtype",
    "_ARRAY_DIMENSIONS",
    UNNAMED_KEY,
    VALID_KEY,
    ROLE_KEY,
];

/// Attributes of a dataset that describe how it is stored: by the netCDF library, and as the levels of an image in
/// OME-Zarr.
const STORAGE: [&str; 9] = [
    COORDINATES_KEY,
    "_NCProperties",
    "_nc3_strict",
    "ome",
    "multiscales",
    "omero",
    "image-label",
    "plate",
    "well",
];

/// Attributes that name other variables.
const LINKS: [&str; 3] = ["bounds", "climatology", "grid_mapping"];

/// The stored names of a tensor's dimensions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Axes {
    /// A name for each dimension.
    pub dims: Vec<String>,
    /// Dimensions with a generated name.
    pub unnamed: Vec<usize>,
}

/// Names of coordinates that are not the labels of a dimension, as CF's attribute `coordinates` has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Linked {
    /// The coordinates of each item.
    pub items: Vec<Option<String>>,
    /// The coordinates of the dataset, which no item has.
    pub dataset: Option<String>,
}

impl Linked {
    /// No item names a coordinate.
    pub fn none(items: &[Item]) -> Self {
        Linked { items: vec![None; items.len()], dataset: None }
    }
}

/// Coordinates of dimensions, by their names.
pub type Coords = BTreeMap<String, Arc<Coord>>;

/// A coordinate, or texts beside the coordinates, as an array.
#[derive(Debug)]
pub(super) struct Labels {
    pub(super) name: String,
    /// Its dimension; none for a text without one.
    pub(super) dims: Vec<String>,
    pub(super) cells: Cells,
    pub(super) len: u64,
    /// Little-endian cells; for texts, UTF-8 and the offset of each.
    pub(super) bytes: Vec<u8>,
    pub(super) offsets: Vec<usize>,
    pub(super) attrs: Attrs,
}

impl Labels {
    /// Iterates over a range of the texts.
    pub(super) fn texts(&self, of: std::ops::Range<u64>) -> impl Iterator<Item = &str> {
        of.filter_map(|i| {
            let (a, b) = (*self.offsets.get(i as usize)?, *self.offsets.get(i as usize + 1)?);
            std::str::from_utf8(self.bytes.get(a..b)?).ok()
        })
    }
}

/// Returns the names of dimensions for each item, and the coordinates of all. If `is_linked` is true, attributes may
/// name other variables.
///
/// # Errors
/// The errors of [`shared`].
pub(super) fn resolve(
    items: &[Item],
    is_linked: bool,
) -> Result<(Vec<Axes>, Vec<Labels>), SinkError> {
    let (axes, coords) = shared(items)?;
    let written = if is_linked { names(items, &coords) } else { BTreeSet::new() };
    Ok((axes, coords.into_iter().filter_map(|(name, c)| labels(name, &c, &written)).collect()))
}

/// The names of all variables of a dataset.
pub fn names(items: &[Item], coords: &Coords) -> BTreeSet<String> {
    items.iter().map(|i| i.name.clone()).chain(coords.keys().cloned()).collect()
}

/// Returns the names of dimensions for each item of a dataset, and the coordinates of all.
///
/// # Errors
/// Two items of one name, labels or lengths that differ on one dimension, a variable named as a coordinate.
pub fn shared(items: &[Item]) -> Result<(Vec<Axes>, Coords), SinkError> {
    let conflict = |reason: String, hint: &str| SinkError::Names { reason, hint: hint.into() };
    let mut lengths: BTreeMap<String, u64> = BTreeMap::new();
    let mut coords = Coords::new();
    let mut names = BTreeSet::new();
    for item in items {
        check_name(&item.name, Of::Array)?;
        if !names.insert(&item.name) {
            return Err(conflict(
                format!("two results are called `{}`", item.name),
                "give each a name with AS",
            ));
        }
        for (d, &len) in item.dims.iter().zip(&item.shape) {
            let Some(name) = &d.name else { continue };
            check_name(name, Of::Dimension)?;
            let seen = *lengths.entry(name.to_string()).or_insert(len);
            if seen != len {
                return Err(conflict(
                    format!("dimension `{name}` has length {seen}, and {len} in `{}`", item.name),
                    "keep them as two tensors",
                ));
            }
            let Some(coord) = &d.coord else { continue };
            if let Some(of) = coord.values.unreadable() {
                return Err(conflict(
                    format!("the labels of `{name}` cannot be read: {}", of.reason),
                    "keep a result without the dimension, or select one position of it",
                ));
            }
            match coords.get(&**name) {
                None => drop(coords.insert(name.to_string(), coord.clone())),
                Some(known) if Arc::ptr_eq(known, coord) || known.values == coord.values => {}
                Some(_) => {
                    return Err(conflict(
                        format!("results have different labels on `{name}`"),
                        "keep them as two tensors",
                    ));
                }
            }
        }
    }
    for item in items {
        if coords.contains_key(&item.name) {
            return Err(conflict(
                format!("a result and the coordinate of a dimension are called `{}`", item.name),
                "give the result another name with AS",
            ));
        }
    }
    let mut axes = Vec::with_capacity(items.len());
    for item in items {
        let mut of = Axes::default();
        for (a, (d, &len)) in item.dims.iter().zip(&item.shape).enumerate() {
            let own = d.name.as_ref().map(|n| n.to_string()).filter(|n| !of.dims.contains(n));
            let name = own.unwrap_or_else(|| {
                of.unnamed.push(a);
                let free = |n: &String| {
                    !of.dims.contains(n)
                        && !coords.contains_key(n)
                        && lengths.get(n).is_none_or(|&l| l == len)
                };
                let plain = format!("dim_{a}");
                let mut names = std::iter::once(plain.clone())
                    .chain((0u64..).map(|k| format!("{}_{plain}{}", item.name, suffix(k))));
                names.find(free).unwrap_or(plain)
            });
            lengths.insert(name.clone(), len);
            of.dims.push(name);
        }
        axes.push(of);
    }
    Ok((axes, coords))
}

fn suffix(k: u64) -> String {
    if k == 0 { String::new() } else { format!("_{k}") }
}

/// The coordinates of each item: those that lie along some of its dimensions. Coordinates have no coordinates
/// themselves, and coordinates alone are data.
///
/// # Source
/// `_encode_coordinates` of xarray 2026, for its default `decode_coords`.
pub fn linked(items: &[Item], axes: &[Axes]) -> Linked {
    let is_index = |item: &Item, axes: &Axes| axes.dims.contains(&item.name);
    let mut coordinates: Vec<(&str, &Axes)> = Vec::new();
    for (item, axes) in items.iter().zip(axes) {
        // A name with a space would be read as two.
        let is_word = !item.name.contains(char::is_whitespace);
        if item.is_coordinate && is_word && !is_index(item, axes) {
            coordinates.push((&item.name, axes));
        }
    }
    if coordinates.len() == items.len() {
        return Linked::none(items);
    }
    coordinates.sort_by_key(|(name, _)| *name);
    let joined = |names: Vec<&str>| (!names.is_empty()).then(|| names.join(" "));
    let mut named = BTreeSet::new();
    let mut out = Linked::default();
    for (item, axes) in items.iter().zip(axes) {
        let has_none =
            is_index(item, axes) || coordinates.iter().any(|(name, _)| *name == item.name);
        let lies_along = |of: &Axes| !has_none && of.dims.iter().all(|dim| axes.dims.contains(dim));
        let own = coordinates.iter().filter(|(_, of)| lies_along(of));
        let own: Vec<&str> = own.map(|(name, _)| *name).collect();
        named.extend(own.iter().copied());
        out.items.push(joined(own));
    }
    let rest = coordinates.iter().map(|(name, _)| *name).filter(|name| !named.contains(name));
    out.dataset = joined(rest.collect());
    out
}

/// Attributes of a dataset that stay valid for a copy, and the names of coordinates that no item has.
pub fn of_dataset(attrs: &Attrs, linked: &Linked) -> Attrs {
    let own = attrs.iter().filter(|(key, _)| !STORAGE.contains(&key.as_str()));
    let mut out: Attrs = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    if let Some(names) = &linked.dataset {
        out.insert(COORDINATES_KEY.into(), names.as_str().into());
    }
    out
}

/// The object that a name belongs to.
#[derive(Clone, Copy)]
enum Of {
    Array,
    Dimension,
}

/// Checks that a name can be the name of a directory.
fn check_name(name: &str, of: Of) -> Result<(), SinkError> {
    let reserved = ["zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata", ".", ".."];
    let why = if name.is_empty() {
        "it has no letters".to_string()
    } else if name.len() > NAME_BYTES_MAX {
        format!("it has {} bytes (limit {NAME_BYTES_MAX})", name.len())
    } else if name.starts_with("__") {
        "names that begin with `__` are reserved".into()
    } else if name.contains(|c: char| c == '/' || c == '\\' || c.is_control()) {
        "it has a slash, a backslash or a control character".into()
    } else if reserved.contains(&name) {
        "files have this name".into()
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
    let (what, hint) = match of {
        Of::Array => ("an array", "give it another name with AS".to_string()),
        Of::Dimension => {
            let quoted = shown.replace('"', "\"\"");
            ("a dimension", format!("rename it: `rename(x, \"{quoted}\" => 'd')`"))
        }
    };
    let reason = format!("`{shown}` cannot be the name of {what}: {why}");
    Err(SinkError::Names { reason, hint })
}

/// Attributes that stay valid for decoded values. Those that name other variables do if all of these are in `written`.
pub fn kept(attrs: &Attrs, dtype: Option<DType>, written: &BTreeSet<String>) -> Attrs {
    // `crs` or `crs: x y`.
    let is_written = |word: &str| written.contains(word.trim_end_matches(':'));
    let is_time =
        |v: &Value| v.as_str().is_some_and(|s| s.to_ascii_lowercase().contains(" since "));
    let stays = |k: &str, v: &Value| match k {
        // A number in units of time would be read as a datetime; a datetime gets its own units.
        "units" => !is_time(v) && !dtype.is_some_and(DType::is_datetime),
        // So xarray marks numbers that are spans of time.
        "dtype" => v.as_str().is_some_and(|s| s.starts_with("timedelta64[")),
        _ if LINKS.contains(&k) => {
            v.as_str().is_some_and(|names| names.split_whitespace().all(is_written))
        }
        _ => !ENCODING.contains(&k),
    };
    attrs.iter().filter(|(k, v)| stays(k, v)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// `units` and `calendar` of datetimes counted in microseconds, or in a larger unit.
pub fn time_attrs(calendar: Calendar, unit: &str) -> [(String, Value); 2] {
    let name = match calendar {
        // The calendar has no Julian part before 1582; `gregorian` has.
        Calendar::Standard => "proleptic_gregorian",
        other => other.name(),
    };
    [
        ("units".into(), format!("{unit} since 1970-01-01 00:00:00").into()),
        ("calendar".into(), name.into()),
    ]
}

/// The value stored for masked cells; `None` for `bool`, which has no unused value.
///
/// # Source
/// NaN for floats, as in xarray; NaT for datetimes; netCDF-C's default fill values (`netcdf.h`) for integers.
pub fn fill_value(dtype: DType) -> Option<Scalar> {
    use DType::*;
    let whole = |v: i128| Scalar::from_i128(dtype, v);
    match dtype {
        Bool => None,
        Float32 | Float64 => Some(Scalar::from_f64(dtype, f64::NAN)),
        Datetime(_) => whole(i64::MIN.into()),
        Int8 => whole(-127),
        UInt8 => whole(255),
        Int16 => whole(-32_767),
        UInt16 => whole(65_535),
        Int32 => whole(-2_147_483_647),
        UInt32 => whole(4_294_967_295),
        Int64 => whole(-9_223_372_036_854_775_806),
        UInt64 => whole(18_446_744_073_709_551_614),
    }
}

/// A value as Zarr's `fill_value`.
pub(super) fn fill_json(value: Scalar) -> Value {
    match value.dtype() {
        DType::Bool => (value.bits() != 0).into(),
        d if d.is_float() => match value.as_f64() {
            v if v.is_nan() => "NaN".into(),
            v => json!(v),
        },
        DType::UInt64 => value.bits().into(),
        _ => (value.as_i128() as i64).into(),
    }
}

/// A value as the attribute `_FillValue` of Zarr v3: xarray writes floats as base64 of a little-endian `float64`.
pub(super) fn fill_attribute(value: Scalar) -> Value {
    if value.dtype().is_float() { base64_f64(value.as_f64()).into() } else { fill_json(value) }
}

fn base64_f64(value: f64) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // 64 bits are ten digits and two thirds of one: two bits of padding.
    let bits = u128::from(u64::from_be_bytes(value.to_le_bytes())) << 2;
    let digit = |i: u32| DIGITS[(bits >> (6 * (10 - i)) & 63) as usize] as char;
    (0..11).map(digit).chain(['=']).collect()
}

/// Units of time and their microseconds, the coarsest first.
pub const UNITS: [(&str, i64); 6] = [
    ("days", DAY_US),
    ("hours", 3_600_000_000),
    ("minutes", 60_000_000),
    ("seconds", 1_000_000),
    ("milliseconds", 1000),
    ("microseconds", 1),
];

/// Returns the labels in their stored form; `None` if they cannot be read, which is rejected earlier.
fn labels(name: String, coord: &Coord, written: &BTreeSet<String>) -> Option<Labels> {
    let mut attrs = kept(&coord.attrs, coord.values.dtype(), written);
    let dims = vec![name.clone()];
    let (cells, bytes) = match &coord.values {
        CoordValues::Int(d, v) => (*d, v.iter().flat_map(|&x| raw(*d, x)).collect()),
        CoordValues::Float(DType::Float32, v) => {
            (DType::Float32, v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect())
        }
        CoordValues::Float(_, v) => {
            (DType::Float64, v.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        CoordValues::Time(calendar, v) => {
            let divides = |u: &&(&str, i64)| v.iter().all(|&t| t == NAT || t % u.1 == 0);
            let (unit, us) = UNITS.iter().find(divides).copied().unwrap_or(("microseconds", 1));
            attrs.extend(time_attrs(*calendar, unit));
            if v.contains(&NAT) {
                attrs.insert("_FillValue".into(), NAT.into());
            }
            let count = |&t: &i64| if t == NAT { NAT } else { t / us };
            (DType::Int64, v.iter().flat_map(|t| count(t).to_le_bytes()).collect())
        }
        CoordValues::Text(v) => {
            return Some(texts(name, dims, v, attrs));
        }
        CoordValues::Unreadable(_) => return None,
    };
    let (len, cells) = (coord.values.len() as u64, Cells::Number(cells));
    Some(Labels { name, dims, cells, len, bytes, offsets: Vec::new(), attrs })
}

/// Texts in their stored form.
fn texts(name: String, dims: Vec<String>, texts: &[String], attrs: Attrs) -> Labels {
    let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
    for text in texts {
        bytes.extend_from_slice(text.as_bytes());
        offsets.push(bytes.len());
    }
    let longest = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let (len, cells) = (texts.len() as u64, Cells::Text(longest));
    Labels { name, dims, cells, len, bytes, offsets, attrs }
}

/// An item of texts, in its stored form. `written`: the names of all arrays; in the warehouse (`is_listed`) attributes
/// name none of them.
pub(super) fn of_texts(
    item: &Item,
    cells: &Texts,
    axes: Axes,
    written: &BTreeSet<String>,
    is_listed: bool,
) -> Labels {
    let none = BTreeSet::new();
    let mut attrs = kept(&item.attrs, None, if is_listed { &none } else { written });
    let (stored, missing) = stored_texts(cells);
    attrs.extend(missing.map(|text| (MISSING_KEY.to_string(), text.into())));
    texts(item.name.clone(), axes.dims, &stored, attrs)
}

/// Texts as they are stored, and the text that marks missing ones, if any are missing ([`missing_text`]).
fn stored_texts(texts: &Texts) -> (Cow<'_, [String]>, Option<String>) {
    let Some(marker) = missing_text(texts) else { return (Cow::Borrowed(&texts[..]), None) };
    let stored = texts.options().map(|text| text.unwrap_or(&marker).to_string());
    (Cow::Owned(stored.collect()), Some(marker))
}

/// The text that marks missing ones, if any are missing: the text of their source, else `NULL`, or `NULL_`, … if that
/// is another text of the array.
pub fn missing_text(texts: &Texts) -> Option<String> {
    let mut missing = (0..texts.len()).filter(|&i| texts.is_missing(i)).map(|i| &texts[i]);
    let own = missing.next()?;
    let known: BTreeSet<&str> = texts.options().flatten().collect();
    // Formats of letters have no empty text that marks others as missing.
    let is_kept = !own.is_empty() && !known.contains(own.as_str()) && missing.all(|m| m == own);
    let mut marker = if is_kept { own.clone() } else { "NULL".to_string() };
    while known.contains(marker.as_str()) {
        marker.push('_');
    }
    Some(marker)
}

/// Notes in the attributes of an array the names of its coordinates, and in the warehouse that it is one.
pub(super) fn link(attrs: &mut Attrs, coordinates: Option<String>, is_one: bool, layout: &Layout) {
    if let Some(coordinates) = coordinates {
        attrs.insert(COORDINATES_KEY.into(), coordinates.into());
    }
    if is_one && layout.listed {
        attrs.insert(ROLE_KEY.into(), true.into());
    }
}

/// The little-endian bytes of an integer label; a `uint64` is stored by its bits.
fn raw(dtype: DType, v: i64) -> impl Iterator<Item = u8> {
    v.to_le_bytes().into_iter().take(dtype.size())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_planner::catalog::DimLabel;

    #[test]
    fn links_stay_if_their_targets_are_written() {
        let links = [("bounds", "lat_bnds"), ("grid_mapping", "crs: lat lon"), ("units", "m")];
        let attrs: Attrs = links.map(|(k, v)| (k.to_string(), Value::from(v))).into();
        let keys = |written: &[&str]| {
            let written: BTreeSet<String> = written.iter().map(|name| name.to_string()).collect();
            kept(&attrs, None, &written).into_keys().collect::<Vec<_>>()
        };
        assert_eq!(keys(&["lat", "lon", "crs"]), ["grid_mapping", "units"]);
        assert_eq!(keys(&["lat", "lat_bnds", "crs"]), ["bounds", "units"]);
    }

    fn item(name: &str, dims: &[&str], is_coordinate: bool) -> (Item, Axes) {
        let dims: Vec<String> = dims.iter().map(|dim| dim.to_string()).collect();
        let shape: tessera_planner::region::Dims = dims.iter().map(|_| 2).collect();
        let label = |dim: &String| DimLabel { name: Some(Arc::from(dim.as_str())), coord: None };
        let item = Item {
            name: name.into(),
            dtype: DType::Int8,
            nullable: false,
            dims: dims.iter().map(label).collect(),
            chunks: crate::sink::Shards { chunks: shape.clone(), shards: None },
            shape,
            attrs: Attrs::new(),
            is_coordinate,
            texts: None,
        };
        (item, Axes { dims, unnamed: Vec::new() })
    }

    #[test]
    fn coordinates_are_named_as_xarray_does() {
        let all = [
            item("t", &["time", "y", "x"], false),
            item("lat", &["y", "x"], true),
            item("height", &[], true),
            item("area name", &["y"], true),
            item("crs", &[], false),
            item("station", &["station"], true),
            item("lon", &["z", "x"], true),
        ];
        let (items, axes): (Vec<Item>, Vec<Axes>) = all.into_iter().unzip();
        let found = linked(&items, &axes);
        let names: Vec<Option<&str>> = found.items.iter().map(Option::as_deref).collect();
        // `Dataset.to_zarr` writes the same for this dataset, and warns of the space.
        let height = Some("height");
        assert_eq!(names, [Some("height lat"), None, None, height, height, None, None]);
        assert_eq!(found.dataset.as_deref(), Some("lon"));
        let attrs: Attrs = [("title", "x"), ("coordinates", "a"), ("_NCProperties", "b")]
            .map(|(key, value)| (key.to_string(), Value::from(value)))
            .into();
        let kept = of_dataset(&attrs, &found);
        assert_eq!(
            kept.into_iter().collect::<Vec<_>>(),
            [
                ("coordinates".to_string(), Value::from("lon")),
                ("title".to_string(), Value::from("x")),
            ]
        );
        // Coordinates alone are data.
        assert_eq!(linked(&items[1..3], &axes[1..3]), Linked::none(&items[1..3]));
    }

    #[test]
    fn names_that_cannot_be_stored_are_refused() {
        let refused = |name: &str, dims: &[&str]| match shared(&[item(name, dims, false).0]) {
            Err(SinkError::Names { reason, hint }) => format!("{reason} / {hint}"),
            other => format!("{other:?}"),
        };
        assert_eq!(
            refused("a/b", &["x"]),
            "`a/b` cannot be the name of an array: it has a slash, a backslash or a control \
             character / give it another name with AS"
        );
        assert_eq!(
            refused("a", &["__x"]),
            "`__x` cannot be the name of a dimension: names that begin with `__` are reserved / \
             rename it: `rename(x, \"__x\" => 'd')`"
        );
        assert!(refused("zarr.json", &[]).contains("files have this name"));
        assert!(refused(&"é".repeat(101), &[]).contains("it has 202 bytes (limit 200)"));
    }

    #[test]
    fn fill_values_are_written_as_xarray_does() {
        // base64.b64encode(struct.pack("<d", x)) for NaN, 1.5 and 9.96921e36.
        assert_eq!(base64_f64(f64::NAN), "AAAAAAAA+H8=");
        assert_eq!(base64_f64(1.5), "AAAAAAAA+D8=");
        assert_eq!(base64_f64(-9999.0), "AAAAAICHw8A=");
    }
}
