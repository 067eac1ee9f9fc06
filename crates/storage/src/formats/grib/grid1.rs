//! Section 2 of edition 1.
//!
//! # Source
//! WMO Manual on Codes, annex II to the Technical Regulations, FM 92 GRIB edition 1, section 2.

use super::grid::{Corners, Grid, Kind, Plane, Pole, Projection};
use super::octets::Octets;
use super::points;

/// Flags of the scanning mode that exist (table 8): no alternating rows.
const SCANNING: u8 = 0xe0;

/// Reads a grid; the error is the reason why fields on it cannot be read.
pub(super) fn parse(section: &[u8]) -> Result<Grid, String> {
    let o = Octets(section);
    let kind = o.u8(6)?;
    match kind {
        0 | 4 | 10 | 14 => spherical(o, kind),
        1 => {
            let steps = [o.int(29, 3)?, o.int(32, 3)?];
            plane(o, "mercator", Projection::Mercator, [milli(o, 24)?, 0.0], steps)
        }
        3 => {
            let projection = Projection::Lambert([milli(o, 29)?, milli(o, 32)?]);
            let (latin, steps) = (milli(o, 29)?, [o.int(21, 3)?, o.int(24, 3)?]);
            plane(o, "lambert", projection, [latin, milli(o, 18)?], steps)
        }
        5 => {
            let is_south = o.u8(27)? & 0x80 != 0;
            let latitude = if is_south { -60.0 } else { 60.0 };
            let (name, steps) = ("polar_stereographic", [o.int(21, 3)?, o.int(24, 3)?]);
            plane(o, name, Projection::Polar(is_south), [latitude, milli(o, 18)?], steps)
        }
        90 => rows(o, "space_view", Kind::Other),
        50 | 60 | 70 | 80 => Err(format!("spherical harmonics (data representation {kind})")),
        _ => Err(format!("data representation {kind} (table 6)")),
    }
}

fn milli(o: Octets<'_>, at: usize) -> Result<f64, String> {
    Ok(o.int(at, 3)? as f64 / 1e3)
}

fn rows(o: Octets<'_>, name: &'static str, kind: Kind) -> Result<Grid, String> {
    let (nx, ny) = (o.uint(7, 2)?, o.uint(9, 2)?);
    Grid::rows(name, [nx, ny], nx * ny, o.u8(28)? & SCANNING, kind)
}

fn spherical(o: Octets<'_>, kind: u8) -> Result<Grid, String> {
    let (is_gaussian, flags) = (kind % 10 == 4, o.u8(28)? & SCANNING);
    // Both distances are given, or neither.
    let step = |at| -> Result<Option<f64>, String> {
        let v = o.present(at, 2)?.filter(|_| o.u8(17).is_ok_and(|f| f & 0x80 != 0));
        Ok(v.map(|v| v as f64 / 1e3))
    };
    let corners = Corners {
        first: [milli(o, 11)?, milli(o, 14)?],
        last: [milli(o, 18)?, milli(o, 21)?],
        row_step: if is_gaussian { None } else { step(26)? },
        step: step(24)?,
        is_westward: flags & 0x80 != 0,
        is_northward: flags & 0x40 != 0,
    };
    let n = if is_gaussian { o.uint(26, 2)? as u32 } else { 0 };
    let Some(nx) = o.present(7, 2)? else {
        if kind >= 10 {
            return Err("a reduced grid on a rotated sphere".into());
        }
        let lengths = lengths(o)?;
        let count = match is_gaussian {
            true => points::reduced_count(n, &corners, &lengths),
            false => lengths.iter().map(|n| u64::from(*n)).sum(),
        };
        if count == 0 {
            return Err("a grid without points".into());
        }
        let name = if is_gaussian { "reduced_gg" } else { "reduced_ll" };
        return Ok(Grid::line(name, count, Kind::Reduced(n, corners, lengths)));
    };
    let pole = || -> Result<Pole, String> {
        Ok(Pole { latitude: milli(o, 33)?, longitude: milli(o, 36)?, angle: o.ibm(39)? })
    };
    let (name, kind) = match kind {
        0 => ("regular_ll", Kind::LatLon(corners)),
        4 => ("regular_gg", Kind::Gaussian(n, corners)),
        10 => ("rotated_ll", Kind::Rotated(0, corners, pole()?)),
        _ => ("rotated_gg", Kind::Rotated(n, corners, pole()?)),
    };
    let ny = o.uint(9, 2)?;
    Grid::rows(name, [nx, ny], nx * ny, flags, kind)
}

/// Points in each row: after the vertical coordinates.
fn lengths(o: Octets<'_>) -> Result<Vec<u32>, String> {
    let (vertical, at) = (usize::from(o.u8(4)?), usize::from(o.u8(5)?));
    let ny = usize::from(o.u16(9)?);
    let start = (at + 4 * vertical).checked_sub(1).filter(|_| at < 255);
    let bytes = start.and_then(|at| o.0.get(at..at + 2 * ny));
    let bytes = bytes.ok_or_else(|| format!("a list of {ny} lengths of rows is too short"))?;
    Ok(bytes.as_chunks::<2>().0.iter().map(|b| u16::from_be_bytes(*b).into()).collect())
}

fn plane(
    o: Octets<'_>,
    name: &'static str,
    projection: Projection,
    origin: [f64; 2],
    steps: [i64; 2],
) -> Result<Grid, String> {
    let flags = o.u8(28)?;
    let sign = |v: i64, is_back: bool| if is_back { -(v as f64) } else { v as f64 };
    let plane = Plane {
        projection,
        first: [milli(o, 11)?, milli(o, 14)?],
        steps: [sign(steps[0], flags & 0x80 != 0), sign(steps[1], flags & 0x40 == 0)],
        origin,
        earth: match o.u8(17)? & 0x40 {
            0 => [6_367_470.0; 2],
            _ => [6_378_160.0, 6_356_775.0],
        },
    };
    rows(o, name, Kind::Plane(plane))
}
