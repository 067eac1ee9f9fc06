//! Map projections of the ellipsoid.
//!
//! # Source
//! J. P. Snyder, "Map projections: a working manual", USGS professional paper 1395 (1987): chapters 7, 15 and 21.

use super::grid::{Plane, Projection};
use std::f64::consts::{FRAC_PI_2, PI};

/// A projection with its constants; x and y are metres.
#[derive(Debug)]
pub(super) struct Map {
    eccentricity: f64,
    /// Longitude parallel to the y axis.
    centre: f64,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// Metres for a radian of longitude.
    Mercator(f64),
    /// Exponent, metres from the apex for `t = 1`, and from there to the origin of y; the sign of the pole. A polar
    /// projection is the cone of exponent 1.
    Cone { n: f64, radius: f64, sign: f64 },
}

impl Map {
    /// `None` if the latitudes define no map.
    pub(super) fn new(plane: &Plane) -> Option<Map> {
        let [axis, minor] = plane.earth;
        let ratio = minor / axis;
        let eccentricity = (1.0 - ratio * ratio).max(0.0).sqrt();
        let e = eccentricity;
        let latitude = plane.origin[0].to_radians();
        let form = match plane.projection {
            Projection::Mercator => Form::Mercator(axis * m(e, latitude)),
            Projection::Polar(is_south) => {
                let sign = if is_south { -1.0 } else { 1.0 };
                let true_scale = latitude.abs();
                // At the pole itself the scale is the limit of `m / t`.
                let radius = match (FRAC_PI_2 - true_scale).abs() < 1e-10 {
                    true => 2.0 * axis / ((1.0 + e).powf(1.0 + e) * (1.0 - e).powf(1.0 - e)).sqrt(),
                    false => axis * m(e, true_scale) / t(e, true_scale),
                };
                Form::Cone { n: 1.0, radius, sign }
            }
            Projection::Lambert([a, b]) => {
                let (a, b) = (a.to_radians(), b.to_radians());
                let n = match (a - b).abs() < 1e-10 {
                    true => a.sin(),
                    false => (m(e, a) / m(e, b)).ln() / (t(e, a) / t(e, b)).ln(),
                };
                Form::Cone { n, radius: axis * m(e, a) / (n * t(e, a).powf(n)), sign: 1.0 }
            }
        };
        let scale = match form {
            Form::Mercator(scale) => scale,
            Form::Cone { n, radius, .. } => radius * n,
        };
        let is_valid = axis > 0.0 && ratio > 0.0 && scale.is_finite() && scale.abs() > 1e-3;
        let centre = plane.origin[1].to_radians();
        is_valid.then_some(Map { eccentricity, centre, form })
    }

    /// Metres of a latitude and longitude in degrees; of a cone, from its apex.
    pub(super) fn forward(&self, [latitude, longitude]: [f64; 2]) -> [f64; 2] {
        let latitude = latitude.to_radians();
        let east = turned(longitude.to_radians() - self.centre);
        match self.form {
            Form::Mercator(scale) => [scale * east, -scale * t(self.eccentricity, latitude).ln()],
            Form::Cone { n, radius, sign } => {
                let rho = radius * t(self.eccentricity, sign * latitude).powf(n);
                let angle = n * east;
                [rho * angle.sin(), -sign * rho * angle.cos()]
            }
        }
    }

    /// Latitude and longitude, in degrees, of metres.
    pub(super) fn inverse(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let (latitude, east) = match self.form {
            Form::Mercator(scale) => (latitude(self.eccentricity, (-y / scale).exp()), x / scale),
            Form::Cone { n, radius, sign } => {
                let (x, y) = if n < 0.0 { (-x, -y) } else { (x, y) };
                let rho = x.hypot(y).copysign(n);
                let t = (rho / radius).powf(1.0 / n);
                let east = if rho == 0.0 { 0.0 } else { x.atan2(-sign * y) / n };
                (sign * latitude(self.eccentricity, t), east)
            }
        };
        [latitude.to_degrees(), turned(self.centre + east).to_degrees()]
    }
}

/// An angle from -π to π.
fn turned(angle: f64) -> f64 {
    match angle {
        a if a > PI => a - 2.0 * PI,
        a if a < -PI => a + 2.0 * PI,
        a => a,
    }
}

/// Radius of a parallel in half axes (14-15).
fn m(e: f64, latitude: f64) -> f64 {
    latitude.cos() / (1.0 - (e * latitude.sin()).powi(2)).sqrt()
}

/// (15-9).
fn t(e: f64, latitude: f64) -> f64 {
    let s = e * latitude.sin();
    ((FRAC_PI_2 - latitude) / 2.0).tan() / ((1.0 - s) / (1.0 + s)).powf(e / 2.0)
}

/// The latitude of `t` (7-9).
fn latitude(e: f64, t: f64) -> f64 {
    let mut latitude = FRAC_PI_2 - 2.0 * t.atan();
    for _ in 0..15 {
        let s = e * latitude.sin();
        let next = FRAC_PI_2 - 2.0 * (t * ((1.0 - s) / (1.0 + s)).powf(e / 2.0)).atan();
        let is_done = (next - latitude).abs() < 1e-14;
        latitude = next;
        if is_done {
            break;
        }
    }
    latitude
}
