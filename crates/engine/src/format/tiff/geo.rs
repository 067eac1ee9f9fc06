//! The georeference of a raster: from the labels of its axes, and a coordinate reference system.

use super::epsg::is_geographic;
use super::layout::Entry;
use super::refused;
use crate::error::Error;
use serde_json::Value;
use tessera_planner::catalog::{Attrs, CoordValues, DimLabel};
use tessera_planner::dtype::DType;

/// Names of axes, in lower case.
const X_NAMES: [&str; 5] = ["x", "lon", "longitude", "easting", "projection_x_coordinate"];
const Y_NAMES: [&str; 5] = ["y", "lat", "latitude", "northing", "projection_y_coordinate"];

/// Attributes that name a coordinate reference system, the first that is set.
pub(super) const KEYS: [&str; 4] = ["crs", "epsg", "crs_wkt", "spatial_ref"];

/// How far a label may be from where it would be on a regular axis, in steps.
const TOLERANCE: f64 = 1e-3;
const TOLERANCE_F32: f64 = 1e-2;

/// A coordinate reference system: an EPSG code, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crs(Option<u16>);

impl Crs {
    /// Parses `EPSG:4326`, `urn:ogc:def:crs:EPSG::4326`, `OGC:CRS84`, a number, WKT that ends with its EPSG code, or
    /// `none`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let upper = text.to_ascii_uppercase();
        if upper == "NONE" {
            return Some(Crs(None));
        }
        if ["OGC:CRS84", "CRS84", "URN:OGC:DEF:CRS:OGC:1.3:CRS84"].contains(&upper.as_str()) {
            return Some(Crs(Some(4326)));
        }
        let code = match upper.rsplit_once(':') {
            Some((authority, code)) => authority.contains("EPSG").then_some(code)?,
            None => code_of_wkt(&upper).unwrap_or(&upper),
        };
        code.parse().ok().filter(|code| *code > 0).map(|code| Crs(Some(code)))
    }
}

/// The code in `…, ID["EPSG",4326]]` or `…, AUTHORITY["EPSG","4326"]]`, that of the whole system.
fn code_of_wkt(upper: &str) -> Option<&str> {
    let inner = upper.strip_suffix("]]")?;
    let (_, last) = inner.rsplit_once('[')?;
    let (authority, code) = last.split_once(',')?;
    (authority.trim().trim_matches('"') == "EPSG").then(|| code.trim().trim_matches('"'))
}

/// The place of a raster.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Geo {
    /// The corner of the first cell and the step to the next, for x and for y.
    axes: Option<[(f64, f64); 2]>,
    code: Option<u16>,
}

impl Geo {
    /// `axes` are y and x; `crs` is the system, otherwise the attributes name it.
    pub(super) fn new(axes: &[DimLabel], attrs: &Attrs, crs: Option<Crs>) -> Result<Self, Error> {
        let crs = match crs {
            Some(crs) => Some(crs),
            None => of_attributes(attrs)?,
        };
        let axis = |names: &[&str], dim: Option<&DimLabel>| {
            let dim = dim.filter(|d| is_named(d, names))?;
            steps(&dim.coord.as_ref()?.values)
        };
        let x = axis(&X_NAMES, axes.last());
        let y = axis(&Y_NAMES, axes.first());
        Ok(Geo { axes: x.zip(y).map(|(x, y)| [x, y]), code: crs.and_then(|crs| crs.0) })
    }

    /// The entries of the raster's IFD.
    pub(super) fn entries(&self) -> Vec<Entry> {
        let mut out = Vec::new();
        if let Some([(x, dx), (y, dy)]) = self.axes {
            if dx > 0.0 && dy < 0.0 {
                out.push(Entry::doubles(33550, &[dx, -dy, 0.0]));
                out.push(Entry::doubles(33922, &[0.0, 0.0, 0.0, x, y, 0.0]));
            } else {
                let rows =
                    [dx, 0.0, 0.0, x, 0.0, dy, 0.0, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0];
                out.push(Entry::doubles(34264, &rows));
            }
        }
        // Keys in ascending order; cells are areas, not points.
        let mut keys: Vec<(u16, u16)> = vec![(1025, 1)];
        match self.code {
            Some(code) if is_geographic(code) => keys.extend([(1024, 2), (2048, code)]),
            Some(code) => keys.extend([(1024, 1), (3072, code)]),
            None => {}
        }
        if self.axes.is_some() || self.code.is_some() {
            keys.sort_unstable();
            let mut shorts = vec![1, 1, 0, keys.len() as u16];
            shorts.extend(keys.iter().flat_map(|(key, value)| [*key, 0, 1, *value]));
            out.push(Entry::shorts(34735, &shorts));
        }
        out
    }
}

/// Refuses axes that are x and y, in that order.
pub(super) fn check_axes(axes: &[DimLabel]) -> Result<(), Error> {
    let [first, last] = axes else { return Ok(()) };
    if is_named(first, &X_NAMES) && is_named(last, &Y_NAMES) {
        let name = |d: &DimLabel| d.name.as_deref().unwrap_or_default().to_string();
        let reason = format!("its rows would run along `{}`, not `{}`", name(last), name(first));
        return Err(refused(reason, "transpose it: the last dimension of a raster is x"));
    }
    Ok(())
}

fn is_named(dim: &DimLabel, names: &[&str]) -> bool {
    dim.name.as_ref().is_some_and(|name| names.contains(&name.to_ascii_lowercase().as_str()))
}

fn of_attributes(attrs: &Attrs) -> Result<Option<Crs>, Error> {
    let Some((key, value)) = KEYS.iter().find_map(|key| Some((key, attrs.get(*key)?))) else {
        return Ok(None);
    };
    let crs = match value {
        Value::String(text) => Crs::parse(text),
        other => Crs::parse(&other.to_string()),
    };
    crs.map(Some).ok_or_else(|| {
        let shown: String = value.to_string().chars().take(80).collect();
        let reason = format!("its attribute `{key}` has no EPSG code: {shown}");
        refused(reason, "write OPTIONS (crs 'EPSG:4326'), or (crs 'none')")
    })
}

/// The corner of the first cell and the step to the next, if labels are the centres of equal cells.
fn steps(values: &CoordValues) -> Option<(f64, f64)> {
    let (labels, tolerance): (Vec<f64>, f64) = match values {
        CoordValues::Float(DType::Float32, v) => (v.to_vec(), TOLERANCE_F32),
        CoordValues::Float(_, v) => (v.to_vec(), TOLERANCE),
        CoordValues::Int(d, v) => {
            (v.iter().map(|&n| CoordValues::integer(*d, n) as f64).collect(), TOLERANCE)
        }
        _ => return None,
    };
    let ([first, .., last], n) = (&labels[..], labels.len()) else { return None };
    let step = (last - first) / (n - 1) as f64;
    let is_near =
        |(i, v): (usize, &f64)| (v - (first + step * i as f64)).abs() <= tolerance * step.abs();
    let is_regular = step != 0.0 && step.is_finite() && labels.iter().enumerate().all(is_near);
    is_regular.then(|| (first - step / 2.0, step))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn systems_are_found_by_their_codes() {
        let code = |text: &str| Crs::parse(text).map(|crs| crs.0);
        for text in ["EPSG:4326", "epsg:4326", " 4326", "urn:ogc:def:crs:EPSG::4326", "OGC:CRS84"] {
            assert_eq!(code(text), Some(Some(4326)), "{text}");
        }
        assert_eq!(code("None"), Some(None));
        let wkt = "PROJCS[\"UTM 32\",GEOGCS[\"WGS 84\",AUTHORITY[\"EPSG\",\"4326\"]],AUTHORITY[\"EPSG\",\"32632\"]]";
        assert_eq!(code(wkt), Some(Some(32632)));
        assert_eq!(code("GEOGCRS[\"WGS 84\",ID[\"EPSG\",4326]]"), Some(Some(4326)));
        for text in ["", "+proj=longlat", "EPSG:", "ESRI:54009", "70000", "0", "GEOGCS[\"a\"]"] {
            assert_eq!(code(text), None, "{text}");
        }
        // Of pyproj 3.7.2.
        let geographic = [4326, 4258, 4269, 7844, 9000, 3819, 4087, 3857, 32632, 4217, 20046, 2000];
        let want = [true, true, true, true, true, true, false, false, false, false, true, false];
        assert_eq!(geographic.map(is_geographic), want);
    }

    #[test]
    fn labels_place_a_raster_if_they_are_regular() {
        let float = |v: &[f64]| CoordValues::Float(DType::Float64, v.into());
        assert_eq!(steps(&float(&[10.0, 10.5, 11.0])), Some((9.75, 0.5)));
        assert_eq!(steps(&float(&[2.0, 1.0])), Some((2.5, -1.0)));
        assert_eq!(steps(&CoordValues::Int(DType::Int32, [0, 10, 20].into())), Some((-5.0, 10.0)));
        for bad in [&[][..], &[1.0], &[1.0, 1.0], &[0.0, 1.0, 3.0], &[0.0, f64::NAN, 2.0]] {
            assert_eq!(steps(&float(bad)), None, "{bad:?}");
        }
        // Tenths of a degree as float32.
        let narrow = (0..3600).map(|i| f64::from(i as f32 * 0.1)).collect();
        let (start, step) = steps(&CoordValues::Float(DType::Float32, narrow)).unwrap();
        assert!((start + 0.05).abs() < 1e-6 && (step - 0.1).abs() < 1e-6, "{start} {step}");
    }
}
