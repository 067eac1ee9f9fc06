//! Grids of both editions.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, grid definition templates and flag tables 3.3 and 3.4.

use serde_json::{Value, json};

/// A grid of points.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Grid {
    /// Its type, as the reference implementation names it.
    pub(super) name: &'static str,
    /// Points along a row, and rows; `None` if rows differ in length or the grid has no rows.
    pub(super) shape: Option<[u64; 2]>,
    /// Points.
    pub(super) count: u64,
    pub(super) order: Order,
    pub(super) kind: Kind,
}

/// How rows follow each other in the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Order {
    /// True if points along a column are adjacent.
    pub(super) is_by_column: bool,
    /// True if every other row, or column, is reversed.
    pub(super) is_alternating: bool,
}

/// The places of the points.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Equal steps of latitude and longitude.
    LatLon(Corners),
    /// Gaussian latitudes, with this number between a pole and the equator; longitudes with equal steps.
    Gaussian(u32, Corners),
    /// The same, with a number of points for each row.
    Reduced(u32, Corners, Vec<u32>),
    /// Latitudes and longitudes of a rotated sphere; the Gaussian number is 0 for equal steps of latitude.
    Rotated(u32, Corners, Pole),
    Plane(Plane),
    /// An unknown kind.
    Other,
}

/// The first and the last point, in degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Corners {
    /// Latitude and longitude.
    pub(super) first: [f64; 2],
    pub(super) last: [f64; 2],
    /// Distance of rows, if it is given.
    pub(super) row_step: Option<f64>,
    /// Distance of points in a row, if it is given.
    pub(super) step: Option<f64>,
    /// True if longitudes fall along a row.
    pub(super) is_westward: bool,
    /// True if latitudes rise from row to row.
    pub(super) is_northward: bool,
}

/// The southern pole of a rotated sphere, in degrees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pole {
    pub(super) latitude: f64,
    pub(super) longitude: f64,
    pub(super) angle: f64,
}

/// A grid on a map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plane {
    pub(super) projection: Projection,
    /// Latitude and longitude of the first point, in degrees.
    pub(super) first: [f64; 2],
    /// Metres from point to point, to the west or south if negative.
    pub(super) steps: [f64; 2],
    /// Latitude at which they are these metres, and the longitude parallel to the y axis, in degrees.
    pub(super) origin: [f64; 2],
    /// Half axes of the earth, in metres.
    pub(super) earth: [f64; 2],
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Projection {
    Mercator,
    /// True if the projection is centred at the south pole.
    Polar(bool),
    /// The latitudes at which the cone cuts the sphere, in degrees.
    Lambert([f64; 2]),
}

impl Grid {
    /// A grid of rows of equal length; the error says that they do not fit the number of points.
    pub(super) fn rows(
        name: &'static str,
        shape: [u64; 2],
        count: u64,
        flags: u8,
        kind: Kind,
    ) -> Result<Grid, String> {
        let [nx, ny] = shape;
        if nx.checked_mul(ny) != Some(count) || count == 0 {
            return Err(format!("a grid of {nx} by {ny} points, {count} are declared"));
        }
        if flags & 0x0f != 0 {
            return Err(format!("scanning mode {flags:#010b} with shifted rows"));
        }
        let order = Order { is_by_column: flags & 0x20 != 0, is_alternating: flags & 0x10 != 0 };
        Ok(Grid { name, shape: Some(shape), count, order, kind })
    }

    /// A grid whose points have no rows of equal length.
    pub(super) fn line(name: &'static str, count: u64, kind: Kind) -> Grid {
        Grid { name, shape: None, count, order: Order::default(), kind }
    }

    /// Names of its dimensions.
    pub(super) fn dims(&self) -> &'static [&'static str] {
        match (&self.kind, self.shape) {
            (_, None) => &["values"],
            (Kind::LatLon(_) | Kind::Gaussian(..), _) => &["latitude", "longitude"],
            _ => &["y", "x"],
        }
    }

    /// Its keys in the reference implementation.
    pub(super) fn attrs(&self) -> Vec<(&'static str, Value)> {
        let mut out =
            vec![("GRIB_gridType", json!(self.name)), ("GRIB_numberOfPoints", json!(self.count))];
        if let Some([nx, ny]) = self.shape {
            out.extend([("GRIB_Nx", json!(nx)), ("GRIB_Ny", json!(ny))]);
        }
        let corners = |out: &mut Vec<(&'static str, Value)>, c: &Corners| {
            out.extend([
                ("GRIB_latitudeOfFirstGridPointInDegrees", json!(c.first[0])),
                ("GRIB_longitudeOfFirstGridPointInDegrees", json!(c.first[1])),
                ("GRIB_latitudeOfLastGridPointInDegrees", json!(c.last[0])),
                ("GRIB_longitudeOfLastGridPointInDegrees", json!(c.last[1])),
                ("GRIB_iScansNegatively", json!(u8::from(c.is_westward))),
                ("GRIB_jScansPositively", json!(u8::from(c.is_northward))),
            ]);
            out.extend(c.step.map(|v| ("GRIB_iDirectionIncrementInDegrees", json!(v))));
            out.extend(c.row_step.map(|v| ("GRIB_jDirectionIncrementInDegrees", json!(v))));
        };
        match &self.kind {
            Kind::LatLon(c) => corners(&mut out, c),
            Kind::Gaussian(n, c) | Kind::Reduced(n, c, _) => {
                out.push(("GRIB_N", json!(n)));
                corners(&mut out, c);
            }
            Kind::Rotated(n, c, pole) => {
                if *n > 0 {
                    out.push(("GRIB_N", json!(n)));
                }
                corners(&mut out, c);
                out.extend([
                    ("GRIB_latitudeOfSouthernPoleInDegrees", json!(pole.latitude)),
                    ("GRIB_longitudeOfSouthernPoleInDegrees", json!(pole.longitude)),
                    ("GRIB_angleOfRotationInDegrees", json!(pole.angle)),
                ]);
            }
            Kind::Plane(p) => plane(&mut out, p),
            Kind::Other => {}
        }
        out
    }
}

fn plane(out: &mut Vec<(&'static str, Value)>, p: &Plane) {
    out.extend([
        ("GRIB_latitudeOfFirstGridPointInDegrees", json!(p.first[0])),
        ("GRIB_longitudeOfFirstGridPointInDegrees", json!(p.first[1])),
        ("GRIB_DxInMetres", json!(p.steps[0].abs())),
        ("GRIB_DyInMetres", json!(p.steps[1].abs())),
        ("GRIB_iScansNegatively", json!(u8::from(p.steps[0] < 0.0))),
        ("GRIB_jScansPositively", json!(u8::from(p.steps[1] > 0.0))),
        ("GRIB_LaDInDegrees", json!(p.origin[0])),
        ("earth_semi_major_axis", json!(p.earth[0])),
        ("earth_semi_minor_axis", json!(p.earth[1])),
    ]);
    match p.projection {
        Projection::Mercator => {
            out.push(("GRIB_orientationOfTheGridInDegrees", json!(p.origin[1])));
        }
        Projection::Polar(is_south) => out.extend([
            ("GRIB_orientationOfTheGridInDegrees", json!(p.origin[1])),
            ("GRIB_projectionCentreFlag", json!(if is_south { 128 } else { 0 })),
        ]),
        Projection::Lambert([a, b]) => out.extend([
            ("GRIB_LoVInDegrees", json!(p.origin[1])),
            ("GRIB_Latin1InDegrees", json!(a)),
            ("GRIB_Latin2InDegrees", json!(b)),
        ]),
    }
}
