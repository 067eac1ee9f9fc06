//! Coordinates: raw cells of a 1-d variable become labels, decoded as the plan decodes tensors.

use crate::source::moments::CfTimes;
use serde_json::Value;
use tessera_planner::catalog::{Attrs, CoordValues, Decode, NAT};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::scalar::Scalar;
use tessera_planner::time::{REFORM_US, parse_period};

/// Decodes the labels in `cells` (native-endian, of type `dtype`). `times` has their time units.
///
/// Missing numbers are NaN, and integers with a missing one become `float64`, as in xarray; missing datetimes are
/// [`NAT`]. Datetimes of CF's calendar `standard` are in [`Calendar::Mixed`] if one is before the reform of 1582.
///
/// # Errors
/// The reason why the cells are not labels: they are of `bool`, or a number is not a datetime.
pub(crate) fn labels(
    cells: &[u8],
    dtype: DType,
    decode: &Decode,
    times: Option<&CfTimes>,
) -> Result<CoordValues, String> {
    let missing = |s: &Scalar| is_missing(s, decode);
    if let DType::Datetime(calendar) = dtype {
        let us = scalars(cells, dtype).map(|s| if missing(&s) { NAT } else { s.bits() as i64 });
        return Ok(CoordValues::Time(calendar, us.collect()));
    }
    if let Some(times) = times {
        let us: Vec<i64> = scalars(cells, dtype)
            .map(|s| times.micros(&s).map(|us| us.unwrap_or(NAT)))
            .collect::<Result<_, String>>()?;
        let is_old = times.is_mixed && us.iter().any(|&us| us != NAT && us < REFORM_US);
        let calendar = if is_old { Calendar::Mixed } else { times.units.calendar };
        return Ok(CoordValues::Time(calendar, us.into()));
    }
    if dtype == DType::Bool {
        return Err("its values are of type bool, which labels nothing".into());
    }
    if dtype.is_integer() && decode.unpack.is_none() && !scalars(cells, dtype).any(|s| missing(&s))
    {
        // A label of uint64 is the int64 of the same bits.
        let all = scalars(cells, dtype).map(|s| s.as_i128() as i64);
        return Ok(CoordValues::Int(dtype, all.collect()));
    }
    let result = match decode.unpack {
        Some(u) => u.dtype,
        None if dtype == DType::Float32 => DType::Float32,
        None => DType::Float64,
    };
    let value = |s: Scalar| if missing(&s) { f64::NAN } else { unpacked(&s, decode) };
    Ok(CoordValues::Float(result, scalars(cells, dtype).map(value).collect()))
}

/// The label along `dim` that attributes of all variables of a GRIB file have; `None` if it is not one.
pub(crate) fn label_of_grib<'a>(
    variables: impl Iterator<Item = &'a Attrs>,
    dim: &str,
) -> Option<CoordValues> {
    let mut all = variables.filter(|attrs| is_grib(attrs)).map(|attrs| attrs.get(dim));
    let first = all.next()??;
    if all.any(|other| other != Some(first)) {
        return None;
    }
    match (first, dim) {
        (Value::String(text), "time" | "valid_time") => {
            let (us, _) = parse_period(text, Calendar::Standard)?;
            Some(CoordValues::Time(Calendar::Standard, [us].into()))
        }
        (Value::Number(n), "number") => Some(CoordValues::Int(DType::Int64, [n.as_i64()?].into())),
        (Value::Number(n), _) => Some(CoordValues::Float(DType::Float64, [n.as_f64()?].into())),
        _ => None,
    }
}

/// True for the attributes of a variable of a GRIB file.
pub(crate) fn is_grib(attrs: &Attrs) -> bool {
    attrs.contains_key("GRIB_shortName")
}

pub(crate) fn scalars(cells: &[u8], dtype: DType) -> impl Iterator<Item = Scalar> {
    cells.chunks_exact(dtype.size()).map(move |c| {
        let mut le = [0u8; 8];
        le[..c.len()].copy_from_slice(c);
        if cfg!(target_endian = "big") {
            le[..c.len()].reverse();
        }
        Scalar::from_le_bytes(dtype, &le[..c.len()])
    })
}

/// The bytes of a value in memory, in the first `dtype.size()` places.
pub(crate) fn native_bytes(value: Scalar) -> [u8; 8] {
    let mut bytes = value.to_le_bytes();
    if cfg!(target_endian = "big") {
        bytes[..value.dtype().size()].reverse();
    }
    bytes
}

pub(crate) fn is_missing(s: &Scalar, decode: &Decode) -> bool {
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

/// Applies CF's factor and offset to a raw cell.
pub(crate) fn unpacked(s: &Scalar, decode: &Decode) -> f64 {
    match decode.unpack {
        None => s.as_f64(),
        Some(u) if u.dtype == DType::Float32 => {
            f64::from(s.as_f64() as f32 * u.scale as f32 + u.offset as f32)
        }
        Some(u) => s.as_f64() * u.scale + u.offset,
    }
}
