//! Section 3 of edition 2.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, FM 92 GRIB edition 2, grid definition templates and code table 3.2.

use super::grid::{Corners, Grid, Kind, Plane, Pole, Projection};
use super::octets::{Octets, power};

/// Reads a grid; the error is the reason why fields on it cannot be read.
pub(super) fn parse(section: &[u8]) -> Result<Grid, String> {
    let o = Octets(section);
    let (count, template) = (o.uint(7, 4)?, o.u16(13)?);
    let corner =
        |nx_at| -> Result<[u64; 2], String> { Ok([o.uint(nx_at, 4)?, o.uint(nx_at + 4, 4)?]) };
    match template {
        0..=3 | 40..=43 => spherical(o, template, count),
        10 => {
            let flags = o.u8(60)?;
            let projection = Projection::Mercator;
            let (origin, steps) =
                ([micro(o, 48)?, micro(o, 61)?], [o.uint(65, 4)?, o.uint(69, 4)?]);
            let kind = plane(o, projection, origin, steps, flags)?;
            Grid::rows("mercator", corner(31)?, count, flags, kind)
        }
        20 | 30 => {
            let flags = o.u8(65)?;
            let (name, projection) = match template {
                20 => ("polar_stereographic", Projection::Polar(o.u8(64)? & 0x80 != 0)),
                _ => ("lambert", Projection::Lambert([micro(o, 66)?, micro(o, 70)?])),
            };
            let (origin, steps) =
                ([micro(o, 48)?, micro(o, 52)?], [o.uint(56, 4)?, o.uint(60, 4)?]);
            let kind = plane(o, projection, origin, steps, flags)?;
            Grid::rows(name, corner(31)?, count, flags, kind)
        }
        12 => Grid::rows("transverse_mercator", corner(31)?, count, o.u8(60)?, Kind::Other),
        31 => Grid::rows("albers", corner(31)?, count, o.u8(65)?, Kind::Other),
        90 => Grid::rows("space_view", corner(31)?, count, o.u8(64)?, Kind::Other),
        140 => {
            let name = "lambert_azimuthal_equal_area";
            Grid::rows(name, corner(31)?, count, o.u8(64)?, Kind::Other)
        }
        50..=53 | 60..=63 => {
            Err(format!("spectral coefficients (grid definition template 3.{template})"))
        }
        _ if count == 0 => Err("a grid without points".into()),
        101 => Ok(Grid::line("unstructured_grid", count, Kind::Other)),
        150 => Ok(Grid::line("healpix", count, Kind::Other)),
        _ => Ok(Grid::line("unknown", count, Kind::Other)),
    }
}

fn micro(o: Octets<'_>, at: usize) -> Result<f64, String> {
    Ok(o.int(at, 4)? as f64 / 1e6)
}

/// Grids along meridians and parallels.
fn spherical(o: Octets<'_>, template: u16, count: u64) -> Result<Grid, String> {
    let is_gaussian = template >= 40;
    let (nx, ny) = (o.present(31, 4)?, o.uint(35, 4)?);
    // Angles are in units of a part of the basic angle.
    let basic = match o.uint(39, 4)? {
        0 => 1.0,
        v => v as f64,
    };
    let parts = o.present(43, 4)?.filter(|v| *v > 0).unwrap_or(1_000_000) as f64;
    let angle = |at| -> Result<f64, String> { Ok(o.int(at, 4)? as f64 / parts * basic) };
    let step = |at, bit: u8| -> Result<Option<f64>, String> {
        let v = o.present(at, 4)?.filter(|_| o.u8(55).is_ok_and(|f| f & bit != 0));
        Ok(v.map(|v| v as f64 / parts * basic))
    };
    let flags = o.u8(72)?;
    let corners = Corners {
        first: [angle(47)?, angle(51)?],
        last: [angle(56)?, angle(60)?],
        row_step: if is_gaussian { None } else { step(68, 0x10)? },
        step: step(64, 0x20)?,
        is_westward: flags & 0x80 != 0,
        is_northward: flags & 0x40 != 0,
    };
    let n = if is_gaussian { o.uint(68, 4)? as u32 } else { 0 };
    let octets = usize::from(o.u8(11)?);
    if octets > 0 {
        // The list of points in rows is the end of the section.
        if !(1..=4).contains(&octets) || !template.is_multiple_of(40) {
            return Ok(Grid::line("reduced", count, Kind::Other));
        }
        let first = 73;
        let rows = usize::try_from(ny).ok().and_then(|n| n.checked_mul(octets));
        let bytes = rows.and_then(|n| o.0.get(first - 1..first - 1 + n));
        let bytes = bytes.ok_or_else(|| format!("a list of {ny} lengths of rows is too short"))?;
        let number = |b: &[u8]| b.iter().fold(0u32, |v, b| v << 8 | u32::from(*b));
        let rows = bytes.chunks_exact(octets).map(number).collect();
        let name = if is_gaussian { "reduced_gg" } else { "reduced_ll" };
        if count == 0 {
            return Err("a grid without points".into());
        }
        return Ok(Grid::line(name, count, Kind::Reduced(n, corners, rows)));
    }
    let nx = nx.ok_or("a grid without a number of points along a row")?;
    let pole = || -> Result<Pole, String> {
        Ok(Pole { latitude: micro(o, 73)?, longitude: micro(o, 77)?, angle: o.ieee(81)? })
    };
    let (name, kind) = match template {
        0 => ("regular_ll", Kind::LatLon(corners)),
        40 => ("regular_gg", Kind::Gaussian(n, corners)),
        1 => ("rotated_ll", Kind::Rotated(0, corners, pole()?)),
        41 => ("rotated_gg", Kind::Rotated(n, corners, pole()?)),
        2 => ("stretched_ll", Kind::Other),
        3 => ("stretched_rotated_ll", Kind::Other),
        42 => ("stretched_gg", Kind::Other),
        _ => ("stretched_rotated_gg", Kind::Other),
    };
    Grid::rows(name, [nx, ny], count, flags, kind)
}

fn plane(
    o: Octets<'_>,
    projection: Projection,
    origin: [f64; 2],
    steps: [u64; 2],
    flags: u8,
) -> Result<Kind, String> {
    let sign = |v: u64, is_back: bool| if is_back { -(v as f64) } else { v as f64 } / 1e3;
    let steps = [sign(steps[0], flags & 0x80 != 0), sign(steps[1], flags & 0x40 == 0)];
    let first = [micro(o, 39)?, micro(o, 43)?];
    Ok(Kind::Plane(Plane { projection, first, steps, origin, earth: earth(o)? }))
}

/// Half axes of the earth, by code table 3.2.
fn earth(o: Octets<'_>) -> Result<[f64; 2], String> {
    let axis = |at: usize, scale: f64| -> Result<f64, String> {
        let factor = o.present(at, 1)?.unwrap_or(0) as i64;
        Ok(o.uint(at + 1, 4)? as f64 / power(10.0, factor) * scale)
    };
    Ok(match o.u8(15)? {
        0 => [6_367_470.0; 2],
        1 => [axis(16, 1.0)?; 2],
        2 => [6_378_160.0, 6_356_775.0],
        3 => [axis(21, 1e3)?, axis(26, 1e3)?],
        4 | 5 => [6_378_137.0, 6_356_752.314],
        7 => [axis(21, 1.0)?, axis(26, 1.0)?],
        8 => [6_371_200.0; 2],
        9 => [6_377_563.396, 6_356_256.909],
        _ => [6_371_229.0; 2],
    })
}
