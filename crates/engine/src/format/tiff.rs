//! Cloud-optimized GeoTIFF: tiles and overviews that a reader fetches one by one.
//!
//! ```text
//!   header, ghost area │ IFD of the raster, IFDs of its overviews │ tiles of the smallest overview │ … │ of the raster
//! ```
//! 1. [`Raster::new`] takes items over `[y, x]` or `[band, y, x]` as bands.
//! 2. [`pyramid::build`] cuts tiles, computes overviews from them and encodes all into a spill. The header precedes
//!    the tiles and has their sizes, which are only known afterwards.
//! 3. [`layout::encode`] places the tiles; they are copied behind it, overviews first.
//!
//! Tiles are compressed by deflate after a predictor, which is lossless. Bands are stored one after another.
//!
//! # Source
//! TIFF 6.0 and its Technical Note 3 (floating-point predictor), BigTIFF, OGC GeoTIFF 1.1, and "Cloud Optimized GeoTIFF"
//! of GDAL's documentation for the ghost area and what surrounds each tile.

mod epsg;
mod geo;
mod layout;
mod pyramid;
mod tile;

pub use geo::Crs;

use super::fill;
use super::writer::{Options, output};
use crate::answer::{Head, Windows};
use crate::error::Error;
use geo::Geo;
use pyramid::Spill;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use tessera_planner::catalog::PythonJson;
use tessera_planner::dtype::DType;
use tessera_planner::region::Region;
use tessera_storage::sink::cf;

const FORMAT: &str = "tiff";

/// Upper bound on the number of bands.
const BANDS_MAX: u64 = u16::MAX as u64;

/// Upper bound on the length of an axis: readers count in 32 bits with a sign.
const LENGTH_MAX: u64 = i32::MAX as u64;

/// One band: a tensor over `[y, x]`, or one position of a tensor over `[band, y, x]`.
struct Band<'a> {
    tensor: &'a dyn Windows,
    position: Option<u64>,
}

/// The image that is written.
struct Raster<'a> {
    bands: Vec<Band<'a>>,
    height: u64,
    width: u64,
    /// Type of the samples; truth values are bytes.
    dtype: DType,
    geo: Geo,
    /// GDAL's metadata as XML: names and attributes of the bands.
    metadata: String,
}

/// Writes tensors as the bands of one raster.
pub(super) fn write(
    tensors: &[&dyn Windows],
    o: &Options,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let tensors = fill::variables(tensors);
    let raster = Raster::new(&tensors, o.crs)?;
    let nodata = fill::choose(FORMAT, raster.dtype, &tensors, out)?;
    let mut spill = Spill::new(o.scratch.as_ref())?;
    let levels = pyramid::build(&raster, nodata, &mut spill, out)?;
    out.write_all(&layout::encode(&raster, &levels, nodata)).map_err(output)?;
    let mut encoded = Vec::new();
    for tile in levels.iter().rev().flat_map(|level| &level.tiles) {
        encoded.resize(tile.bytes as usize, 0);
        spill.read(tile.at, &mut encoded)?;
        let last = encoded.last_chunk::<4>().copied().unwrap_or_default();
        for part in [&tile.bytes.to_le_bytes()[..], &encoded, &last] {
            out.write_all(part).map_err(output)?;
        }
    }
    Ok(())
}

/// Memory for the tiles that are held at a time.
pub(super) fn working_bytes(tensors: &[&dyn Windows]) -> u64 {
    let of = |t: &&dyn Windows| {
        let head = t.head();
        let shape = head.shape();
        let [.., height, width] = shape[..] else { return 0 };
        let tile = pyramid::tile_shape(height, width);
        let levels = pyramid::level_shapes(height, width).len() as u64;
        // A tile of each level, a copy for the predictor, and the encoded tile.
        tile.0 * tile.1 * head.dtype.size() as u64 * (levels + 2)
    };
    tensors.iter().map(of).max().unwrap_or(0)
}

impl<'a> Raster<'a> {
    fn new(tensors: &[&'a dyn Windows], crs: Option<Crs>) -> Result<Self, Error> {
        let Some(first) = tensors.first().map(|t| t.head()) else {
            return Err(refused("the result has no tensor".into(), "select one"));
        };
        let mut bands = Vec::new();
        for t in tensors {
            let head = t.head();
            check(&head, &first)?;
            match head.shape()[..] {
                [count, _, _] if bands.len() as u64 + count <= BANDS_MAX => {
                    let band = |n| Band { tensor: *t, position: Some(n) };
                    bands.extend((0..count).map(band));
                }
                [_, _] if (bands.len() as u64) < BANDS_MAX => {
                    bands.push(Band { tensor: *t, position: None });
                }
                _ => {
                    let reason = format!("it would have more than {BANDS_MAX} bands");
                    return Err(refused(reason, "write several files"));
                }
            }
        }
        let shape = first.shape();
        let [.., height, width] = shape[..] else { return Err(no_raster(&first)) };
        let dtype = match first.dtype {
            DType::Bool => DType::UInt8,
            other => other,
        };
        let axes = &first.dims[first.dims.len() - 2..];
        let geo = Geo::new(axes, first.attrs, crs)?;
        let metadata = metadata(&bands, tensors.len() == 1);
        Ok(Raster { bands, height, width, dtype, geo, metadata })
    }
}

impl Band<'_> {
    /// A part of the band as a region of its tensor.
    fn region(&self, start: [u64; 2], shape: [u64; 2]) -> Region {
        match self.position {
            None => Region::at(&start, &shape),
            Some(n) => Region::at(&[n, start[0], start[1]], &[1, shape[0], shape[1]]),
        }
    }

    /// The name of the item, and the label of the band.
    fn description(&self) -> String {
        let head = self.tensor.head();
        match (self.position, head.dims.first()) {
            (Some(n), Some(dim)) if dim.coord.is_some() => {
                let name = dim.name.as_deref().unwrap_or("band");
                format!("{} {name}={}", head.name, head.label(0, n as usize).text())
            }
            _ => head.name.into(),
        }
    }
}

/// Checks that a tensor can be bands beside `first`.
fn check(head: &Head<'_>, first: &Head<'_>) -> Result<(), Error> {
    let axes = |h: &Head<'_>| h.dims.len().checked_sub(2).map(|n| n..h.dims.len());
    let (Some(own), Some(other), 2 | 3) = (axes(head), axes(first), head.dims.len()) else {
        return Err(no_raster(head));
    };
    let (own_shape, other_shape) = (head.shape(), first.shape());
    if head.dims[own.clone()] != first.dims[other.clone()]
        || own_shape[own.clone()] != other_shape[other]
    {
        let reason = format!("`{}` and `{}` lie on different grids", first.name, head.name);
        return Err(refused(reason, "select one of them"));
    }
    if head.dtype != first.dtype {
        let types = format!("`{}` is {}, `{}` is", first.name, first.dtype, head.name);
        let reason = format!("{types} {}: its bands have one type", head.dtype);
        return Err(refused(reason, "cast them to one type"));
    }
    if head.dtype.is_datetime() {
        let reason = format!("`{}` is a datetime", head.name);
        return Err(refused(reason, "cast it to int64, which counts microseconds since 1970"));
    }
    if let Some(len) = own_shape.iter().find(|len| !(1..=LENGTH_MAX).contains(len)) {
        let reason = format!("`{}` has an axis of length {len}", head.name);
        return Err(refused(reason, "write ZARR"));
    }
    geo::check_axes(&head.dims[own])
}

fn no_raster(head: &Head<'_>) -> Error {
    let reason = format!(
        "`{}` has {} dimensions, and a raster has [y, x] or [band, y, x]",
        head.name,
        head.dims.len()
    );
    refused(reason, "select a position of the others, or write NETCDF")
}

fn refused(reason: String, hint: &str) -> Error {
    Error::format(FORMAT, reason, hint)
}

/// Names, units and attributes, as GDAL reads them from its tag. With one item they are those of the file.
fn metadata(bands: &[Band<'_>], is_one: bool) -> String {
    let mut xml = String::from("<GDALMetadata>\n");
    let mut item = |name: &str, sample: Option<usize>, role: &str, text: &str| {
        let sample = sample.map_or(String::new(), |n| format!(" sample=\"{n}\""));
        let role = if role.is_empty() { String::new() } else { format!(" role=\"{role}\"") };
        let (name, text) = (escaped(name), escaped(text));
        // Writing to a text cannot fail.
        let _ = writeln!(xml, "  <Item name=\"{name}\"{sample}{role}>{text}</Item>");
    };
    let attributes = |band: &Band<'_>| {
        let head = band.tensor.head();
        let kept = cf::kept(head.attrs, Some(head.dtype), &BTreeSet::new());
        kept.into_iter().filter(|(name, _)| !geo::KEYS.contains(&name.as_str()))
    };
    if let Some(band) = bands.first().filter(|_| is_one) {
        for (name, value) in attributes(band) {
            item(&name, None, "", &text(&value));
        }
    }
    for (n, band) in bands.iter().enumerate() {
        item("DESCRIPTION", Some(n), "description", &band.description());
        for (name, value) in attributes(band) {
            if name == "units" {
                item("UNITTYPE", Some(n), "unittype", &text(&value));
            } else if !is_one {
                item(&name, Some(n), "", &text(&value));
            }
        }
    }
    xml + "</GDALMetadata>\n"
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => PythonJson(other).to_string(),
    }
}

/// Text of XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() && c != '\n' && c != '\t' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
