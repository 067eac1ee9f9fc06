//! NetCDF's classic format: a header, then the cells of each variable, contiguous and big-endian.
//!
//! 1. [`File::new`] names dimensions and variables as Zarr's writer does. It reads cells in advance only if their
//!    values decide their form: the fill value of masked cells, the unit in which times are whole.
//! 2. The header has the offset of each variable, so that the file is written sequentially, window by window.
//!
//! The version is CDF-2, which every reader knows, unless a variable has a type or a size that only CDF-5 has.
//!
//! | cells | in the file |
//! |---|---|
//! | `bool` | `byte` and the attribute `dtype = "bool"`, as xarray writes it; without the attribute if cells are masked |
//! | `uint8` | `byte` and `_Unsigned = "true"`; `ubyte` in CDF-5 |
//! | datetimes | `int` of days to seconds if these are whole and fit, `double` of seconds if exact, else `int64` |
//! | texts | `char` with one more dimension, UTF-8, padded with zeros |
//!
//! # Source
//! "The NetCDF Classic Format Specification" (Unidata, NetCDF-C 4.9, appendix B), the CDF-5 specification of PnetCDF, CF
//! Conventions 1.11.

mod attributes;
mod header;
mod times;

use super::fill::{self, WINDOW_CELLS};
use super::writer::output;
use crate::answer::{Head, Windows, windows};
use crate::error::Error;
use attributes::{Attribute, Attributes};
use header::{Dimension, Kind};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::Write;
use tessera_frontend::Labels;
use tessera_frontend::labels::identifiers;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, DimLabel, Texts};
use tessera_planner::dtype::DType;
use tessera_planner::region::cells;
use tessera_planner::scalar::Scalar;
use tessera_storage::sink::{Item, Shards, cf};
use tessera_storage::source::swap_bytes;
use times::{Code, Facts};

const FORMAT: &str = "netcdf";

/// The conventions of a dataset that names none.
const CONVENTIONS: &str = "CF-1.11";

/// Upper bound on the bytes of a variable in CDF-2.
const VARIABLE_BYTES_MAX: u64 = u32::MAX as u64 - 3;

/// A variable: the labels of a dimension, or a tensor.
struct Variable<'a> {
    name: String,
    /// Positions of its dimensions in the file's list.
    dims: Vec<usize>,
    kind: Kind,
    attrs: Attrs,
    /// The value of masked cells, in the type that is stored.
    fill: Option<Scalar>,
    /// Bytes of all cells, without padding.
    bytes: u64,
    cells: Source<'a>,
}

/// The source of a variable's cells.
enum Source<'a> {
    /// In memory, as they are in the file.
    Labels(Vec<u8>),
    Texts(PaddedTexts),
    /// Of a tensor, with the form of datetimes.
    Tensor(&'a dyn Windows, Option<Code>),
}

/// Texts, each of which has as many bytes in the file as the longest one.
struct PaddedTexts {
    texts: Texts,
    /// The text that marks missing texts.
    missing: Option<String>,
    width: usize,
}

struct File<'a> {
    attrs: Attrs,
    dims: Vec<Dimension>,
    variables: Vec<Variable<'a>>,
}

/// Writes tensors as the variables of one dataset.
pub(super) fn write(tensors: &[&dyn Windows], out: &mut dyn Write) -> Result<(), Error> {
    let file = File::new(&fill::variables(tensors), out)?;
    let is_wide = file.is_wide();
    let attrs = attributes::of(&file.attrs, is_wide);
    let variables: Vec<header::Variable<'_>> =
        file.variables.iter().map(|v| v.described(is_wide)).collect();
    out.write_all(&header::encode(is_wide, &file.dims, &attrs, &variables)).map_err(output)?;
    for v in &file.variables {
        v.write(out)?;
        let pad = v.bytes.next_multiple_of(4) - v.bytes;
        out.write_all(&[0; 4][..pad as usize]).map_err(output)?;
    }
    Ok(())
}

impl<'a> File<'a> {
    fn new(tensors: &[&'a dyn Windows], out: &mut dyn Write) -> Result<Self, Error> {
        let of = tensors.first().map(|t| t.head().dataset.clone()).unwrap_or_default();
        let mut items = items(tensors);
        items.extend(of.texts.iter().filter_map(Item::of_texts));
        let (axes, coords) = cf::shared(&items).map_err(Error::stage)?;
        let mut dims: Vec<Dimension> = Vec::new();
        for (axes, item) in axes.iter().zip(&items) {
            for (name, &len) in axes.dims.iter().zip(&item.shape) {
                if !dims.iter().any(|d| d.name == *name) {
                    dims.push(Dimension { name: name.clone(), len });
                }
            }
        }
        items
            .iter()
            .map(|i| i.name.as_str())
            .chain(dims.iter().map(|d| d.name.as_str()))
            .try_for_each(check_name)?;
        check_empty(&dims, axes.iter().map(|a| &a.dims))?;
        let names = cf::names(&items, &coords);
        let linked = cf::linked(&items, &axes);
        let mut attrs = cf::of_dataset(&of.attrs, &linked);
        attrs.entry("Conventions".into()).or_insert_with(|| CONVENTIONS.into());
        let mut variables = Vec::new();
        for at in 0..dims.len() {
            if let Some(coord) = coords.get(&dims[at].name) {
                variables.push(Variable::of_labels(at, coord, &names, &mut dims));
            }
        }
        // Texts follow the tensors.
        let tensors = tensors.iter().copied().map(Some).chain(std::iter::repeat(None));
        for (((item, tensor), axes), coordinates) in
            items.into_iter().zip(tensors).zip(axes).zip(linked.items)
        {
            let place = |name: &String| dims.iter().position(|d| d.name == *name);
            let places = axes.dims.iter().filter_map(place).collect();
            let mut v = match (tensor, &item.texts) {
                (Some(tensor), _) => Variable::of_tensor(item.name, places, tensor, &names, out)?,
                (None, Some(texts)) => {
                    let attrs = cf::kept(&item.attrs, None, &names);
                    let texts = PaddedTexts::new(texts, cf::missing_text(texts));
                    Variable::of_texts(item.name, places, texts, attrs, &mut dims)
                }
                (None, None) => continue,
            };
            if let Some(coordinates) = coordinates {
                v.attrs.insert(cf::COORDINATES_KEY.into(), coordinates.into());
            }
            if !axes.unnamed.is_empty() {
                v.attrs.insert(cf::UNNAMED_KEY.into(), json!(axes.unnamed));
            }
            variables.push(v);
        }
        Ok(File { attrs, dims, variables })
    }

    /// True if only CDF-5 can hold it.
    fn is_wide(&self) -> bool {
        self.dims.iter().any(|d| d.len > i32::MAX as u64)
            || self.variables.iter().any(|v| v.kind.is_wide() || v.bytes > VARIABLE_BYTES_MAX)
    }
}

/// The tensors as Zarr's writer names them.
fn items(tensors: &[&dyn Windows]) -> Vec<Item> {
    let heads: Vec<Head<'_>> = tensors.iter().map(|t| t.head()).collect();
    let bare = |h: &Head<'_>| Labels {
        name: h.name.into(),
        named: h.named,
        dims: Vec::new(),
        shape: Vec::new(),
        dtype: h.dtype,
        nullable: h.nullable,
        attrs: Attrs::new(),
        is_coordinate: h.is_coordinate,
        dataset: h.dataset.clone(),
    };
    let names = identifiers(&heads.iter().map(bare).collect::<Vec<_>>());
    let item = |(h, name): (&Head<'_>, String)| Item {
        dims: match h.dims {
            // A tensor that is only labels is the variable of its dimension.
            [dim] if dim.name.as_deref() == Some(name.as_str()) => {
                vec![DimLabel { name: dim.name.clone(), coord: None }]
            }
            dims => dims.to_vec(),
        },
        name,
        dtype: h.dtype,
        nullable: h.nullable,
        shape: h.shape(),
        attrs: Attrs::new(),
        is_coordinate: h.is_coordinate,
        chunks: Shards { chunks: h.shape(), shards: None },
        texts: None,
    };
    heads.iter().zip(names).map(item).collect()
}

/// Checks that the netCDF library would create a variable or dimension of that name.
///
/// # Source
/// `NC_check_name` of netCDF-C 4.9. Names that it refuses for other reasons are names in no store.
fn check_name(name: &str) -> Result<(), Error> {
    let begins = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || c == '_';
    if name.starts_with(begins) && !name.ends_with(' ') {
        return Ok(());
    }
    Err(Error::Format {
        format: FORMAT,
        reason: format!(
            "`{name}` cannot be a name: a name must begin with a letter, a digit or `_`, and must not end with a space"
        ),
        hint: Some(
            "give it another name with AS, a dimension with `rename(x, \"…\" => 'd')`".into(),
        ),
    })
}

/// A dimension of length 0 is stored as the record dimension, of which there is one, the first of its variables.
fn check_empty<'d>(
    dims: &[Dimension],
    mut variables: impl Iterator<Item = &'d Vec<String>>,
) -> Result<(), Error> {
    let mut empty = dims.iter().filter(|d| d.len == 0);
    let Some(first) = empty.next() else { return Ok(()) };
    let is_first = |dims: &Vec<String>| dims.iter().skip(1).all(|name| *name != first.name);
    if empty.next().is_none() && variables.all(is_first) {
        return Ok(());
    }
    let reason = format!(
        "`{}` has length 0, which only one dimension can have, as the first of its variables",
        first.name
    );
    Err(Error::format(FORMAT, reason, "write ZARR"))
}

impl<'a> Variable<'a> {
    /// The labels of the dimension at `at`.
    fn of_labels(
        at: usize,
        coord: &Coord,
        names: &BTreeSet<String>,
        dims: &mut Vec<Dimension>,
    ) -> Self {
        let name = dims[at].name.clone();
        let places = vec![at];
        let mut attrs = cf::kept(&coord.attrs, coord.values.dtype(), names);
        let mut fill = None;
        let (kind, cells) = match &coord.values {
            CoordValues::Int(d, v) => {
                mark(*d, false, &mut attrs);
                let mut cells: Vec<u8> =
                    v.iter().flat_map(|x| x.to_le_bytes().into_iter().take(d.size())).collect();
                swap_bytes(&mut cells, d.size());
                (Kind::of(*d), cells)
            }
            CoordValues::Float(DType::Float32, v) => {
                (Kind::Float, v.iter().flat_map(|&x| (x as f32).to_be_bytes()).collect())
            }
            CoordValues::Float(_, v) => {
                (Kind::Double, v.iter().flat_map(|x| x.to_be_bytes()).collect())
            }
            CoordValues::Time(calendar, v) => {
                let mut facts = Facts::default();
                v.iter().for_each(|&t| facts.see(t));
                let code = facts.code(*calendar);
                attrs.extend(code.attrs());
                fill = facts.has_missing().then(|| code.fill());
                let mut cells = Vec::new();
                v.iter().for_each(|&t| code.put(t, &mut cells));
                (Kind::of(code.stored()), cells)
            }
            CoordValues::Text(v) => {
                let texts = PaddedTexts::new(v, None);
                return Variable::of_texts(name, places, texts, attrs, dims);
            }
            // Refused before.
            CoordValues::Unreadable(_) => (Kind::Byte, Vec::new()),
        };
        let bytes = cells.len() as u64;
        Variable { name, dims: places, kind, attrs, fill, bytes, cells: Source::Labels(cells) }
    }

    /// Texts along the dimensions at `places`, of which there is one or none.
    fn of_texts(
        name: String,
        mut places: Vec<usize>,
        texts: PaddedTexts,
        mut attrs: Attrs,
        dims: &mut Vec<Dimension>,
    ) -> Self {
        // By CF a grid mapping consists of its attributes. Its value is one letter without a meaning.
        let is_container = attrs.contains_key("grid_mapping_name");
        if is_container && places.is_empty() && texts.texts.options().all(|text| text == Some("")) {
            let (kind, cells) = (Kind::Char, Source::Labels(vec![0]));
            return Variable { name, dims: places, kind, attrs, fill: None, bytes: 1, cells };
        }
        places.push(letters(texts.width as u64, dims));
        if let Some(missing) = &texts.missing {
            attrs.insert(cf::MISSING_KEY.into(), missing.as_str().into());
        }
        attrs.insert("_Encoding".into(), "utf-8".into());
        let bytes = (texts.width as u64).saturating_mul(texts.texts.len() as u64);
        let cells = Source::Texts(texts);
        Variable { name, dims: places, kind: Kind::Char, attrs, fill: None, bytes, cells }
    }

    fn of_tensor(
        name: String,
        dims: Vec<usize>,
        tensor: &'a dyn Windows,
        names: &BTreeSet<String>,
        out: &mut dyn Write,
    ) -> Result<Self, Error> {
        let head = tensor.head();
        let mut attrs = cf::kept(head.attrs, Some(head.dtype), names);
        let (stored, fill, times) = match head.dtype {
            DType::Datetime(calendar) => {
                let facts = Facts::of(tensor, out)?;
                let code = facts.code(calendar);
                attrs.extend(code.attrs());
                (code.stored(), facts.has_missing().then(|| code.fill()), Some(code))
            }
            DType::Bool => {
                let fill = fill::choose(FORMAT, DType::Bool, &[tensor], out)?;
                // No truth value is −127.
                (DType::Bool, fill.and(cf::fill_value(DType::Int8)), None)
            }
            dtype => (dtype, fill::choose(FORMAT, dtype, &[tensor], out)?, None),
        };
        mark(stored, fill.is_some(), &mut attrs);
        let kind = Kind::of(stored);
        let bytes = cells(&head.shape()).and_then(|n| n.checked_mul(kind.size() as u64));
        let bytes = bytes.filter(|n| *n < 1 << 62).ok_or_else(|| Error::Internal {
            what: format!("`{name}` has more than 2^62 bytes"),
        })?;
        Ok(Variable { name, dims, kind, attrs, fill, bytes, cells: Source::Tensor(tensor, times) })
    }

    fn described(&self, is_wide: bool) -> header::Variable<'_> {
        let mut attrs: Attributes = attributes::of(&self.attrs, is_wide);
        let kind = match (self.kind, is_wide) {
            (Kind::UByte, false) => {
                attrs.insert("_Unsigned".into(), Attribute::Text("true".into()));
                Kind::Byte
            }
            (kind, _) => kind,
        };
        if let Some(fill) = self.fill {
            attrs.insert("_FillValue".into(), attributes::typed(kind, fill));
        }
        header::Variable { name: &self.name, dims: &self.dims, attrs, kind }
    }

    fn write(&self, out: &mut dyn Write) -> Result<(), Error> {
        let (tensor, times) = match &self.cells {
            Source::Labels(bytes) => return out.write_all(bytes).map_err(output),
            Source::Texts(texts) => return texts.write(out),
            Source::Tensor(tensor, times) => (tensor, times),
        };
        let size = self.kind.size();
        for window in windows(&tensor.head().shape(), WINDOW_CELLS) {
            let cells = tensor.window(&window)?;
            let valid = cells.valid.as_deref();
            let bytes = match times {
                Some(code) => code.cells(&cells.data, valid),
                None => {
                    let mut bytes = cells.data.to_vec();
                    if let (Some(valid), Some(fill)) = (valid, self.fill) {
                        fill::put(&mut bytes, size, valid, fill);
                    }
                    swap_bytes(&mut bytes, size);
                    bytes
                }
            };
            out.write_all(&bytes).map_err(output)?;
        }
        Ok(())
    }
}

impl PaddedTexts {
    fn new(texts: &Texts, missing: Option<String>) -> Self {
        let padded = PaddedTexts { texts: texts.clone(), missing, width: 1 };
        let longest = padded.stored().map(str::len).max().unwrap_or(0);
        PaddedTexts { width: longest.max(1), ..padded }
    }

    /// The texts as they are stored.
    fn stored(&self) -> impl Iterator<Item = &str> {
        let texts = self.texts.iter().zip(self.texts.options());
        texts.map(move |(own, text)| text.or(self.missing.as_deref()).unwrap_or(own))
    }

    /// Writes the texts in UTF-8, padded with zeros: one after the other, because one long text makes all of them long.
    fn write(&self, out: &mut dyn Write) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for text in self.stored() {
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(bytes.len() + self.width - text.len(), 0);
            if bytes.len() as u64 >= WINDOW_CELLS {
                out.write_all(&bytes).map_err(output)?;
                bytes.clear();
            }
        }
        out.write_all(&bytes).map_err(output)
    }
}

/// The dimension of texts of `len` bytes.
fn letters(len: u64, dims: &mut Vec<Dimension>) -> usize {
    let mut name = format!("string{len}");
    loop {
        match dims.iter().position(|d| d.name == name) {
            Some(at) if dims[at].len == len => return at,
            Some(_) => name.push('_'),
            None => {
                dims.push(Dimension { name, len });
                return dims.len() - 1;
            }
        }
    }
}

/// Marks truth values, as xarray does. It would read a masked one as true, so these stay numbers.
fn mark(dtype: DType, is_masked: bool, attrs: &mut Attrs) {
    if dtype == DType::Bool && !is_masked {
        attrs.insert("dtype".into(), "bool".into());
    }
}

#[cfg(test)]
mod tests;
