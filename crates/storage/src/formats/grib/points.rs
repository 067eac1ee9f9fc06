//! Latitudes and longitudes of points, in degrees.

use super::grid::{Corners, Grid, Kind, Plane};
use super::map::Map;
use std::f64::consts::PI;

/// Upper bound on the Gaussian number: the finest models in use have 8000.
const GAUSSIAN_MAX: u32 = 10_000;

/// Latitudes of the rows and longitudes of the points in a row, if they are the same in all rows; the error is the
/// reason why they are not known.
pub(super) fn axes(grid: &Grid) -> Option<Result<[Vec<f64>; 2], String>> {
    let [nx, ny] = grid.shape?;
    let axes = match &grid.kind {
        Kind::LatLon(c) => Ok([rows(c, ny), columns(c, nx)]),
        Kind::Gaussian(n, c) => gaussian(*n, c, ny).map(|rows| [rows, columns(c, nx)]),
        _ => return None,
    };
    Some(axes)
}

/// Steps of work that [`axes`] takes, about as long as that for a number each.
pub(super) fn cost(grid: &Grid) -> u64 {
    match (grid.shape, &grid.kind) {
        (Some([nx, ny]), Kind::Gaussian(n, _)) => {
            nx.saturating_add(ny.saturating_mul(1 + u64::from(*n) / 8))
        }
        (Some([nx, ny]), _) => nx.saturating_add(ny),
        (None, _) => 0,
    }
}

/// True if [`each`] knows the points of a grid.
pub(super) fn are_known(grid: &Grid) -> bool {
    match &grid.kind {
        Kind::Reduced(n, c, lengths) if *n > 0 => {
            (1..=GAUSSIAN_MAX).contains(n)
                && lengths.len() as u64 <= 2 * u64::from(*n)
                && reduced_count(*n, c, lengths) == grid.count
        }
        Kind::Reduced(_, _, lengths) => {
            lengths.iter().map(|n| u64::from(*n)).sum::<u64>() == grid.count
        }
        Kind::Rotated(n, ..) => *n <= GAUSSIAN_MAX,
        Kind::Plane(plane) => Map::new(plane).is_some(),
        _ => false,
    }
}

/// Calls `put` with the latitude and longitude of each point, row by row.
pub(super) fn each(grid: &Grid, mut put: impl FnMut(f64, f64)) -> Result<(), String> {
    match (&grid.kind, grid.shape) {
        (Kind::Reduced(n, c, lengths), _) => reduced(*n, c, lengths, put),
        (Kind::Rotated(n, c, pole), Some([nx, ny])) => {
            let latitudes = if *n == 0 { rows(c, ny) } else { gaussian(*n, c, ny)? };
            let longitudes = columns(c, nx);
            let (st, ct) = (90.0 + pole.latitude).to_radians().sin_cos();
            let (so, co) = pole.longitude.to_radians().sin_cos();
            for latitude in &latitudes {
                let (z, r) = latitude.to_radians().sin_cos();
                for longitude in &longitudes {
                    let (y, x) = longitude.to_radians().sin_cos();
                    let (x, y) = (x * r, y * r);
                    // Turned about the y axis, then about the axis of the earth.
                    let (x, z) = (ct * x - st * z, st * x + ct * z);
                    let (x, y) = (co * x - so * y, so * x + co * y);
                    let longitude = y.atan2(x).to_degrees() - pole.angle;
                    put(z.clamp(-1.0, 1.0).asin().to_degrees(), longitude);
                }
            }
            Ok(())
        }
        (Kind::Plane(plane), Some(shape)) => on_plane(plane, shape, put),
        _ => Err("the points of this grid are not known".into()),
    }
}

fn on_plane(
    plane: &Plane,
    [nx, ny]: [u64; 2],
    mut put: impl FnMut(f64, f64),
) -> Result<(), String> {
    let map = Map::new(plane).ok_or("the projection has no points")?;
    let [x, y] = map.forward(plane.first);
    for j in 0..ny {
        for i in 0..nx {
            let at = [x + i as f64 * plane.steps[0], y + j as f64 * plane.steps[1]];
            let [latitude, longitude] = map.inverse(at);
            put(latitude, normal(longitude));
        }
    }
    Ok(())
}

/// A longitude from 0 to 360.
fn normal(longitude: f64) -> f64 {
    match longitude {
        v if v < 0.0 => v + 360.0,
        v if v > 360.0 => v - 360.0,
        v => v,
    }
}

/// Latitudes with equal steps. They are sums, as in the reference implementation, whose last bits they have.
fn rows(c: &Corners, n: u64) -> Vec<f64> {
    let ([first, _], [last, _]) = (c.first, c.last);
    let steps = n.saturating_sub(1).max(1) as f64;
    let sign = if c.is_northward { 1.0 } else { -1.0 };
    let step = c.row_step.map_or((last - first) / steps, |step| sign * step);
    summed(first, step, last, n)
}

/// Longitudes with equal steps, as [`rows`].
fn columns(c: &Corners, n: u64) -> Vec<f64> {
    let ([_, mut first], [_, mut last]) = (c.first, c.last);
    let steps = n.saturating_sub(1).max(1) as f64;
    let mut step = match c.is_westward {
        true if first > last => (last - first) / steps,
        true => (last - first - 360.0) / steps,
        false if last > first => (last - first) / steps,
        false => (last + 360.0 - first) / steps,
    };
    if n < 2 {
        step = 0.0;
    }
    // Labels rise across the meridian: from below 0, as in the reference implementation.
    if !c.is_westward && first + (n as f64 - 1.0) * step > 360.0 + 1e-9 {
        first -= 360.0;
    }
    // The last label is taken where the steps end, on this side of the sphere or one turn further.
    let end = first + step * (n as f64 - 1.0);
    last = [last, last - 360.0, last + 360.0]
        .into_iter()
        .fold(last, |a, b| if (b - end).abs() < (a - end).abs() { b } else { a });
    summed(first, step, last, n)
}

/// `n` sums of steps; the last one is `last`, if it is the place where the steps lead.
fn summed(first: f64, step: f64, last: f64, n: u64) -> Vec<f64> {
    let end = first + step * (n as f64 - 1.0);
    let (step, leads) = match (end - last).abs() <= step.abs() * 0.5 {
        true => (step, true),
        false if n > 1 && last.is_finite() => ((last - first) / (n as f64 - 1.0), true),
        false => (step, false),
    };
    let mut out = Vec::with_capacity(n as usize);
    let mut at = first;
    for _ in 0..n {
        out.push(at);
        at += step;
    }
    if let Some(v) = out.last_mut().filter(|_| leads) {
        *v = last;
    }
    out
}

/// `count` Gaussian latitudes from the first corner on.
fn gaussian(n: u32, c: &Corners, count: u64) -> Result<Vec<f64>, String> {
    let start = gaussian_index(n, c.first[0])?;
    let at = |i: u64| match c.is_northward {
        false => Some(start + i).filter(|i| *i < 2 * u64::from(n)),
        true => start.checked_sub(i),
    };
    if count == 0 || at(count - 1).is_none() {
        return Err(format!("{count} rows of a Gaussian grid with N = {n} from {}", c.first[0]));
    }
    // Each parallel of the north is one of the south.
    let mut known = vec![f64::NAN; n as usize];
    let last = 2 * u64::from(n) - 1;
    let mut latitude = |i: u64| {
        let north = &mut known[i.min(last - i) as usize];
        if north.is_nan() {
            *north = gaussian_latitude(n, i.min(last - i));
        }
        if i <= last / 2 { *north } else { -*north }
    };
    Ok((0..count).filter_map(at).map(&mut latitude).collect())
}

/// Index from the north of the Gaussian latitude at `latitude`, which is rounded.
fn gaussian_index(n: u32, latitude: f64) -> Result<u64, String> {
    if !(1..=GAUSSIAN_MAX).contains(&n) {
        return Err(format!("a Gaussian grid with N = {n}"));
    }
    let last = 2 * u64::from(n) - 1;
    let guess = (90.0 - latitude) / 180.0 * (2.0 * f64::from(n) + 0.5) - 0.75;
    let guess = guess.round().clamp(0.0, last as f64) as u64;
    let near = guess.saturating_sub(1)..=(guess + 1).min(last);
    let off = |i: &u64| (gaussian_latitude(n, *i) - latitude).abs();
    let best = near.min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0);
    // A few models write the first latitude with two decimals.
    match off(&best) < 0.01_f64.max(9.0 / f64::from(n)) {
        true => Ok(best),
        false => Err(format!("{latitude} is not a Gaussian latitude of N = {n}")),
    }
}

/// The Gaussian latitude of index `i` from the north: the arcsine of a root of the Legendre polynomial of degree 2 `n`.
///
/// # Source
/// Newton's method from the asymptotic root of Abramowitz and Stegun, 22.16.6.
pub(super) fn gaussian_latitude(n: u32, i: u64) -> f64 {
    let degree = 2 * u64::from(n);
    let north = i.min(degree - 1 - i);
    let mut root = (PI * (north as f64 + 0.75) / (degree as f64 + 0.5)).cos();
    for _ in 0..10 {
        let (mut last, mut value) = (1.0, root);
        for k in 2..=degree {
            let k = k as f64;
            (last, value) = (value, ((2.0 * k - 1.0) * root * value - (k - 1.0) * last) / k);
        }
        let slope = degree as f64 * (last - root * value) / (1.0 - root * root);
        let step = value / slope;
        root -= step;
        if step.abs() < 1e-14 {
            break;
        }
    }
    root.asin().to_degrees() * if i == north { 1.0 } else { -1.0 }
}

/// The first point of a row and the number of points in it that lie between the first and last longitude.
fn reduced_row(c: &Corners, points: u32, is_global: bool) -> (u64, u64) {
    if is_global || points == 0 {
        return (0, points.into());
    }
    // In millionths of a degree, so that no point is lost to rounding.
    let turn = 360_000_000i128;
    let micro = |v: f64| ((v * 1e6).round() as i128).rem_euclid(turn);
    let (west, mut east) = (micro(c.first[1]), micro(c.last[1]));
    if east < west {
        east += turn;
    }
    let n = i128::from(points);
    let first = (west * n + turn - 1).div_euclid(turn);
    let last = (east * n).div_euclid(turn);
    (first as u64, (last - first + 1).clamp(0, n) as u64)
}

/// True if a reduced Gaussian grid covers the sphere.
fn is_global(n: u32, c: &Corners, lengths: &[u32]) -> bool {
    let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
    let delta = 360.0 / f64::from(longest);
    lengths.len() as u64 == 2 * u64::from(n)
        && c.first[1] == 0.0
        && (c.last[1].rem_euclid(360.0) - (360.0 - delta)).abs() <= delta + 1e-3
}

/// Points of a reduced Gaussian grid.
pub(super) fn reduced_count(n: u32, c: &Corners, lengths: &[u32]) -> u64 {
    let is_global = is_global(n, c, lengths);
    lengths.iter().map(|points| reduced_row(c, *points, is_global).1).sum()
}

fn reduced(
    n: u32,
    c: &Corners,
    lengths: &[u32],
    mut put: impl FnMut(f64, f64),
) -> Result<(), String> {
    let count = lengths.len() as u64;
    let latitudes = if n == 0 { rows(c, count) } else { gaussian(n, c, count)? };
    let is_global = is_global(n, c, lengths);
    let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
    for (latitude, points) in latitudes.into_iter().zip(lengths) {
        if n == 0 {
            let (first, last) = (c.first[1], c.last[1]);
            let n = f64::from(*points);
            // All around, or from the first to the last longitude.
            let step = match 360.0 - (last - first).abs() < 720.0 / f64::from(longest) {
                true => 360.0 / n,
                false => (last - first).rem_euclid(360.0) / (n - 1.0).max(1.0),
            };
            summed(first, step, f64::NAN, u64::from(*points))
                .into_iter()
                .for_each(|v| put(latitude, v));
            continue;
        }
        let (first, count) = reduced_row(c, *points, is_global);
        for i in first..first + count {
            put(latitude, normal(i as f64 * 360.0 / f64::from(*points)));
        }
    }
    Ok(())
}
