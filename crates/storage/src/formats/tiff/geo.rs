//! The georeference of an image: its affine transform, its coordinate reference system, the labels of its axes.
//!
//! # Source
//! OGC GeoTIFF 1.1 (19-008r4). Where GeoTIFF leaves room, the rules and the order of operations are those of GDAL (the
//! transform) and rioxarray (the labels), so that labels are equal to the last bit.

use super::ifd::Ifd;
use super::tags;
use crate::formats::view::{Fault, View};
use bytes::Bytes;
use serde_json::Value;
use tessera_planner::catalog::Attrs;

/// Upper bound on the labels of an axis.
const LABELS_MAX: u64 = 16 << 20;

/// A longer axis has no more labels than the file has bytes: the lists of its tiles have more.
const LABELS_MIN: u64 = 1 << 16;

/// Upper bound on the numbers of the key directory.
const KEYS_MAX: u64 = 4 * 1024;

/// Keys of the key directory.
mod key {
    pub(super) const MODEL: u64 = 1024;
    pub(super) const RASTER: u64 = 1025;
    pub(super) const CITATION: u64 = 1026;
    pub(super) const GEODETIC: u64 = 2048;
    pub(super) const GEODETIC_CITATION: u64 = 2049;
    pub(super) const PROJECTED: u64 = 3072;
    pub(super) const PROJECTED_CITATION: u64 = 3073;
    pub(super) const LINEAR_UNITS: u64 = 3076;
    pub(super) const VERTICAL: u64 = 4096;
}

/// The coordinates of pixels.
#[derive(Debug, Clone)]
pub(super) struct Geo {
    /// `x = a column + b row + c`, `y = d column + e row + f`, from the corner of the first pixel; `None` if the file
    /// has control points instead.
    transform: Option<[f64; 6]>,
    /// Its authority and code, or its name.
    crs: Option<String>,
    is_projected: bool,
    is_geographic: bool,
    /// The unit of length is the metre.
    is_metric: bool,
    /// `Area` or `Point`, if the file says it.
    area_or_point: Option<&'static str>,
}

impl Geo {
    pub(super) fn read(file: &View<'_>, ifd: &Ifd<'_>) -> Result<Geo, Fault> {
        let keys = GeoKeys::read(file, ifd)?;
        let raster = keys.number(key::RASTER);
        let tie = ifd.floats(file, tags::TIE_POINTS, 7)?;
        let scale = ifd.floats(file, tags::PIXEL_SCALE, 3)?;
        let matrix = ifd.floats(file, tags::TRANSFORMATION, 16)?;
        let mut transform = match (&scale[..], &tie[..], &matrix[..]) {
            ([a, e, ..], [i, j, _, x, y, _, ..], _) if *a != 0.0 && *e != 0.0 => {
                let e = -e.abs();
                Some([*a, 0.0, x - i * a, 0.0, e, y - j * e])
            }
            (_, _, [a, b, _, c, d, e, _, f, ..]) if matrix.len() == 16 => {
                Some([*a, *b, *c, *d, *e, *f])
            }
            (_, [], _) => Some([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]),
            _ => None,
        };
        let is_placed = !scale.is_empty() || !matrix.is_empty();
        // The centre of the first pixel was given.
        if let (Some([a, b, c, d, e, f]), Some(2), true) = (&mut transform, raster, is_placed) {
            *c -= *a * 0.5 + *b * 0.5;
            *f -= *d * 0.5 + *e * 0.5;
        }
        Ok(Geo {
            transform,
            crs: keys.crs(),
            is_projected: keys.number(key::MODEL) == Some(1),
            is_geographic: keys.number(key::MODEL) == Some(2),
            is_metric: keys.number(key::LINEAR_UNITS) == Some(9001),
            area_or_point: match raster {
                Some(1) => Some("Area"),
                Some(2) => Some("Point"),
                _ => None,
            },
        })
    }

    /// The same place in pixels of an overview, which are larger by these factors.
    pub(super) fn overview(&self, x: f64, y: f64) -> Geo {
        let transform = self.transform.map(|[a, b, c, d, e, f]| [a * x, b * y, c, d * x, e * y, f]);
        Geo { transform, ..self.clone() }
    }

    /// Adds the attributes of an image.
    pub(super) fn describe(&self, attrs: &mut Attrs) {
        if let Some(what) = self.area_or_point {
            attrs.insert("AREA_OR_POINT".into(), what.into());
        }
        if let Some(crs) = &self.crs {
            attrs.insert("crs".into(), crs.as_str().into());
        }
        if let Some(t) = self.transform {
            attrs.insert("transform".into(), t.to_vec().into());
        }
    }

    /// Labels of the centres of `count` columns, or rows; `None` if they depend on the other axis.
    pub(super) fn labels(&self, is_x: bool, count: u64, file_bytes: u64) -> Option<Bytes> {
        let [a, b, c, d, e, f] = self.transform.filter(|t| t[1] == 0.0 && t[3] == 0.0)?;
        let (step, first) = match is_x {
            true => (a, a * 0.5 + b * 0.5 + c),
            false => (e, d * 0.5 + e * 0.5 + f),
        };
        let is_fit = count <= file_bytes.clamp(LABELS_MIN, LABELS_MAX);
        is_fit.then(|| (0..count).flat_map(|i| (i as f64 * step + first).to_ne_bytes()).collect())
    }

    /// Attributes of the labels.
    pub(super) fn axis(&self, is_x: bool) -> Attrs {
        let (axis, direction) = if is_x { ("X", "longitude") } else { ("Y", "latitude") };
        let lower = axis.to_ascii_lowercase();
        let mut out = vec![("axis", Value::from(axis))];
        if self.is_geographic {
            let units = if is_x { "degrees_east" } else { "degrees_north" };
            out.push(("long_name", direction.into()));
            out.push(("standard_name", direction.into()));
            out.push(("units", units.into()));
        } else if self.is_projected {
            out.push(("long_name", format!("{lower} coordinate of projection").into()));
            out.push(("standard_name", format!("projection_{lower}_coordinate").into()));
            if self.is_metric {
                out.push(("units", "metre".into()));
            }
        }
        out.into_iter().map(|(k, v)| (k.to_string(), v)).collect()
    }
}

/// The key directory: lists of key, place, count, value.
struct GeoKeys {
    directory: Vec<u64>,
    texts: String,
}

impl GeoKeys {
    fn read(file: &View<'_>, ifd: &Ifd<'_>) -> Result<GeoKeys, Fault> {
        let directory = ifd.uints(file, tags::GEO_KEYS, KEYS_MAX)?;
        let texts = ifd.text(file, tags::GEO_TEXTS)?.unwrap_or_default();
        Ok(GeoKeys { directory, texts })
    }

    fn entry(&self, key: u64) -> Option<&[u64]> {
        let count = *self.directory.get(3)? as usize;
        let entries = self.directory.get(4..)?.chunks_exact(4).take(count);
        entries.into_iter().find(|e| e[0] == key)
    }

    fn number(&self, key: u64) -> Option<u64> {
        self.entry(key).filter(|e| e[1] == 0).map(|e| e[3])
    }

    fn text(&self, key: u64) -> Option<&str> {
        let e = self.entry(key).filter(|e| e[1] == u64::from(tags::GEO_TEXTS))?;
        let (start, count) = (e[3] as usize, e[2] as usize);
        let text = self.texts.get(start..start.checked_add(count)?.min(self.texts.len()))?;
        let text = text.trim_end_matches('|').trim();
        (!["", "unknown", "unnamed"].contains(&text)).then_some(text)
    }

    /// The code of the EPSG registry, or the name in the file.
    fn crs(&self) -> Option<String> {
        // Other codes are private or mean "user-defined".
        let code = |key| self.number(key).filter(|n| (1024..=32766).contains(n));
        let is_projected = self.number(key::MODEL) == Some(1);
        let horizontal =
            code(key::PROJECTED).or_else(|| code(key::GEODETIC).filter(|_| !is_projected));
        match (horizontal, code(key::VERTICAL)) {
            (Some(h), Some(v)) => Some(format!("EPSG:{h}+{v}")),
            (Some(h), None) => Some(format!("EPSG:{h}")),
            (None, _) => {
                let names = [key::PROJECTED_CITATION, key::CITATION, key::GEODETIC_CITATION];
                names.into_iter().find_map(|key| self.text(key)).map(str::to_string)
            }
        }
    }
}
