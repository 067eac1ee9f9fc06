//! Coordinates: raw cells of a 1-d variable become labels, on the way that the plan would take for tensors.

use tessera_planner::catalog::{CoordValues, Decode};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// The labels in `cells` (native-endian, of type `dtype`), decoded; `None` if no labels can be made: a bool, a number
/// beyond `int64`, a moment that is missing.
///
/// Missing numbers are NaN, and integers with a missing one become `float64`, as in xarray.
pub(crate) fn labels(cells: &[u8], dtype: DType, decode: &Decode) -> Option<CoordValues> {
    let raw: Vec<Scalar> = cells
        .chunks_exact(dtype.size())
        .map(|c| {
            let mut le = [0u8; 8];
            le[..c.len()].copy_from_slice(c);
            if cfg!(target_endian = "big") {
                le[..c.len()].reverse();
            }
            Scalar::from_le_bytes(dtype, &le[..c.len()])
        })
        .collect();
    let missing = |s: &Scalar| is_missing(s, decode);
    if let DType::Datetime(calendar) = dtype {
        let all: Option<_> = raw.iter().map(|s| (!missing(s)).then(|| s.bits() as i64)).collect();
        return Some(CoordValues::Time(calendar, all?));
    }
    if let Some(t) = decode.time {
        let all: Option<_> = raw
            .iter()
            .map(|s| {
                if missing(s) {
                    return None;
                }
                if dtype.is_float() || decode.unpack.is_some() {
                    let us = (unpacked(s, decode) * t.unit_us as f64).round_ties_even();
                    (us.abs() < 9e18).then(|| (us as i64).checked_add(t.origin_us))?
                } else {
                    i64::try_from(s.as_i128())
                        .ok()?
                        .checked_mul(t.unit_us)?
                        .checked_add(t.origin_us)
                }
            })
            .collect();
        return Some(CoordValues::Time(t.calendar, all?));
    }
    if dtype == DType::Bool {
        return None;
    }
    if dtype.is_integer() && decode.unpack.is_none() && !raw.iter().any(missing) {
        let all: Option<_> = raw.iter().map(|s| i64::try_from(s.as_i128()).ok()).collect();
        return Some(CoordValues::Int(dtype, all?));
    }
    let result = match decode.unpack {
        Some(u) => u.dtype,
        None if dtype == DType::Float32 => DType::Float32,
        None => DType::Float64,
    };
    let value = |s: &Scalar| if missing(s) { f64::NAN } else { unpacked(s, decode) };
    Some(CoordValues::Float(result, raw.iter().map(value).collect()))
}

fn is_missing(s: &Scalar, decode: &Decode) -> bool {
    let v = s.as_f64();
    let equal = |m: &Scalar| {
        if s.dtype().is_float() {
            v == m.as_f64() || (v.is_nan() && m.as_f64().is_nan())
        } else {
            s.as_i128() == m.as_i128()
        }
    };
    let below = |a: &Scalar, b: &Scalar| {
        if a.dtype().is_float() { a.as_f64() < b.as_f64() } else { a.as_i128() < b.as_i128() }
    };
    decode.missing.iter().any(equal)
        || decode.valid_min.is_some_and(|m| below(s, &m))
        || decode.valid_max.is_some_and(|m| below(&m, s))
}

fn unpacked(s: &Scalar, decode: &Decode) -> f64 {
    match decode.unpack {
        None => s.as_f64(),
        Some(u) if u.dtype == DType::Float32 => {
            f64::from(s.as_f64() as f32 * u.scale as f32 + u.offset as f32)
        }
        Some(u) => s.as_f64() * u.scale + u.offset,
    }
}
