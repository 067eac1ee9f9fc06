//! CF conventions: attributes become [`Decode`].
//!
//! # Source
//! CF Conventions 1.11, sections 2.5.1, 4.4 and 8.1; where they leave room, xarray 2026.

use crate::source::cells::Raw;
use crate::source::error::SourceError;
use crate::source::moments::CfTimes;
use crate::source::references::base64;
use crate::source::time_units;
use serde_json::Value;
use tessera_planner::catalog::{Attrs, Decode, Unpack, as_float};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// A variable decoded by CF.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// The cells' type: that of the file, or its unsigned twin if the attributes say so.
    pub(crate) dtype: DType,
    pub(crate) decode: Decode,
    /// Time units, if the cells are datetimes.
    pub(crate) times: Option<CfTimes>,
    pub(crate) attrs: Attrs,
}

/// Decodes the attributes of the variable `array`, whose raw cells are `dtype`. `fill_v2` is Zarr v2's `fill_value`,
/// which xarray reads as a `_FillValue`; `narrow` has the names of attributes that are `float32`.
pub(crate) fn decode(
    array: &str,
    mut dtype: DType,
    mut attrs: Attrs,
    fill_v2: Option<&Value>,
    narrow: &[String],
) -> Result<Decoded, SourceError> {
    let stored = dtype;
    let bad = |attribute: &str, value: &Value| SourceError::Attribute {
        array: array.into(),
        attribute: attribute.into(),
        reason: format!("{value} is not a value of dtype {stored}"),
    };
    let mut out = Decode::default();
    let mut times = None;
    if dtype.is_datetime() {
        // NaT is the one missing value of datetime64.
        out.missing.push(Scalar::from_le_bytes(dtype, &i64::MIN.to_le_bytes()));
    }
    if let Some(flag) = attrs.get("_Unsigned").and_then(Value::as_str) {
        let twin = match (flag.to_ascii_lowercase().as_str(), dtype) {
            ("true", DType::Int8) => Some(DType::UInt8),
            ("true", DType::Int16) => Some(DType::UInt16),
            ("true", DType::Int32) => Some(DType::UInt32),
            ("true", DType::Int64) => Some(DType::UInt64),
            ("false", DType::UInt8) => Some(DType::Int8),
            _ => None,
        };
        if let Some(twin) = twin {
            dtype = twin;
            attrs.remove("_Unsigned");
        }
    }
    if dtype.is_numeric() {
        for key in ["_FillValue", "missing_value"] {
            // As in xarray, a text marks no number, not even `-9999`. It stays an attribute.
            let values = attrs.get(key).map_or(&[][..], items);
            let numbers: Vec<Number> = values.iter().filter_map(marker).collect();
            if !numbers.is_empty() {
                attrs.remove(key);
            }
            for n in numbers {
                push(
                    &mut out.missing,
                    n.exact(stored).map(|s| s.cast(dtype)).or_else(|| n.exact(dtype)),
                );
            }
        }
        if let Some(n) = fill_v2.and_then(number) {
            push(&mut out.missing, n.exact(stored).map(|s| s.cast(dtype)));
        }
        valid_range(&mut attrs, (stored, dtype), &mut out);
        let mut factor = |key: &str| -> Result<Option<f64>, SourceError> {
            let Some(v) = attrs.remove(key) else { return Ok(None) };
            let n = match items(&v) {
                [one] => number(one),
                _ => None,
            };
            n.map(|n| Some(n.as_f64())).ok_or_else(|| bad(key, &v))
        };
        let (scale, offset) = (factor("scale_factor")?, factor("add_offset")?);
        if scale.is_some() || offset.is_some() {
            // As in xarray, cells are unpacked to the type of the factors. Factors in JSON are float64. `float32` is
            // not used for integers of 32 bits, which do not fit, nor with an offset alone, which may be large.
            let is_narrow = |key: &str| narrow.iter().any(|n| n == key);
            let is_wide = offset.is_some()
                && (scale.is_none()
                    || !is_narrow("add_offset")
                    || stored.size() == 4 && !stored.is_float());
            let dtype = match is_narrow("scale_factor") && !is_wide {
                true => DType::Float32,
                false => DType::Float64,
            };
            out.unpack =
                Some(Unpack { dtype, scale: scale.unwrap_or(1.0), offset: offset.unwrap_or(0.0) });
        }
        if let Some(units) = attrs.get("units").and_then(Value::as_str).map(str::to_string)
            && time_units::is_time(&units)
        {
            let calendar = attrs.get("calendar").and_then(Value::as_str);
            let (time, is_mixed) = time_units::parse(&units, calendar)
                .map_err(|reason| SourceError::TimeUnits { array: array.into(), reason })?;
            // xarray reads these as NaT, in addition to the declared missing values.
            match dtype {
                d if d.is_float() => push(&mut out.missing, Some(Scalar::from_f64(d, f64::NAN))),
                DType::Int64 => push(&mut out.missing, Some(Scalar::i64(i64::MIN))),
                _ => {}
            }
            out.time = Some(time);
            times = Some(CfTimes { decode: out.clone(), units: time, text: units, is_mixed });
            attrs.remove("units");
            attrs.remove("calendar");
        }
    }
    Ok(Decoded { dtype, decode: out, times, attrs })
}

/// Sets the bounds of valid cells. Bounds have the type `stored`, like fill values: -2 of bytes that are unsigned is
/// 254. As in netCDF4, a bound that is no number, or NaN, has no effect and stays an attribute. If one bound of a range
/// of floats is NaN, the other one still counts; ranges of integers have no NaN.
fn valid_range(attrs: &mut Attrs, (stored, dtype): (DType, DType), out: &mut Decode) {
    let bound = |v: &Value| {
        let n = number(v).filter(|n| !n.as_f64().is_nan())?;
        let twin = n.exact(stored).filter(|_| stored != dtype).map(|s| s.cast(dtype));
        Some(twin.map_or(n, |s| Number::Whole(s.as_i128())))
    };
    if let Some([lo, hi]) = attrs.get("valid_range").map(items)
        && number(lo).is_some()
        && number(hi).is_some()
    {
        let (lo, hi) = (bound(lo), bound(hi));
        let is_range = match dtype.is_float() {
            true => lo.is_some() || hi.is_some(),
            false => lo.is_some() && hi.is_some(),
        };
        if is_range {
            out.valid_min = lo.map(|lo| lo.ceil(dtype));
            out.valid_max = hi.map(|hi| hi.floor(dtype));
            attrs.remove("valid_range");
        }
    }
    if let Some(lo) = attrs.get("valid_min").and_then(bound) {
        out.valid_min = Some(lo.ceil(dtype));
        attrs.remove("valid_min");
    }
    if let Some(hi) = attrs.get("valid_max").and_then(bound) {
        out.valid_max = Some(hi.floor(dtype));
        attrs.remove("valid_max");
    }
}

/// A `fill_value` of Zarr as a cell; `None` if it is not a value of that type.
pub(crate) fn fill(value: &Value, dtype: DType) -> Option<Scalar> {
    number(value)?.exact(dtype)
}

/// The attribute `units` of a `timedelta64`, whose cells are integers here: `nanoseconds`, `15 minutes`.
pub(crate) fn span_units(raw: &Raw) -> Option<(String, Value)> {
    let Raw::Span { unit, count } = raw else { return None };
    let text = if *count == 1 { unit.to_string() } else { format!("{count} {unit}") };
    Some(("units".into(), text.into()))
}

fn push(missing: &mut Vec<Scalar>, value: Option<Scalar>) {
    // A value that the type cannot hold marks no cell.
    if let Some(v) = value
        && !missing.contains(&v)
    {
        missing.push(v);
    }
}

/// A list's items, or the one value.
fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(v) => v,
        v => std::slice::from_ref(v),
    }
}

/// A number of an attribute: an integer or a float.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Whole(i128),
    Float(f64),
}

impl Number {
    fn as_f64(self) -> f64 {
        match self {
            Number::Whole(v) => v as f64,
            Number::Float(v) => v,
        }
    }

    /// The number in `dtype`: rounded for floats; `None` if an integer type cannot hold it.
    fn exact(self, dtype: DType) -> Option<Scalar> {
        if dtype.is_float() {
            return Some(Scalar::from_f64(dtype, self.as_f64()));
        }
        let whole = match self {
            Number::Whole(v) => v,
            Number::Float(v) if v.fract() == 0.0 && v.abs() < 1e30 => v as i128,
            Number::Float(_) => return None,
        };
        Scalar::from_i128(dtype, whole)
    }

    /// The least value of `dtype` that is not below the number, clamped to the type's range.
    fn ceil(self, dtype: DType) -> Scalar {
        match self {
            Number::Float(v) => {
                Scalar::from_f64(dtype, if dtype.is_float() { v } else { v.ceil() })
            }
            Number::Whole(v) => clamp(dtype, v),
        }
    }

    /// The greatest value of `dtype` that is not above the number, clamped to the type's range.
    fn floor(self, dtype: DType) -> Scalar {
        match self {
            Number::Float(v) => {
                Scalar::from_f64(dtype, if dtype.is_float() { v } else { v.floor() })
            }
            Number::Whole(v) => clamp(dtype, v),
        }
    }
}

fn clamp(dtype: DType, v: i128) -> Scalar {
    // Casts from floats saturate, and 64 bits beyond 2^53 occur only with exact values.
    Scalar::from_i128(dtype, v).unwrap_or_else(|| Scalar::from_f64(dtype, v as f64))
}

/// A number, NaN or an infinity; `"NaN"`, `"Infinity"`, `"-Infinity"`; xarray's base64 of a little-endian `float64`; or
/// a text that is a number.
fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(v), _, _) => Some(Number::Whole(v.into())),
            (_, Some(v), _) => Some(Number::Whole(v.into())),
            (_, _, v) => v.map(Number::Float),
        },
        Value::Bool(b) => Some(Number::Whole((*b).into())),
        Value::String(s) => marker(value).or_else(|| s.parse().ok().map(Number::Float)),
        other => as_float(other).map(Number::Float),
    }
}

/// A value that marks missing cells. A text counts only if xarray writes it into Zarr's metadata for a float.
fn marker(value: &Value) -> Option<Number> {
    let Value::String(text) = value else { return number(value) };
    let v = match text.as_str() {
        "NaN" | "nan" => f64::NAN,
        "Infinity" | "inf" => f64::INFINITY,
        "-Infinity" | "-inf" => f64::NEG_INFINITY,
        text => base64_f64(text)?,
    };
    Some(Number::Float(v))
}

/// Eight bytes in base64: eleven digits and one `=`.
fn base64_f64(text: &str) -> Option<f64> {
    let digits = text.strip_suffix('=').filter(|d| d.len() == 11 && !d.contains(['-', '_']))?;
    Some(f64::from_le_bytes(base64(digits.as_bytes())?.try_into().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;
    use tessera_planner::catalog::float;

    fn decoded(dtype: DType, attrs: &[(&str, Value)]) -> Decoded {
        let attrs = attrs.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        decode("v", dtype, attrs, None, &[]).unwrap()
    }

    #[test]
    fn markers_that_are_no_numbers_have_no_effect_and_stay() {
        // xarray and netCDF4 read all cells of these.
        let texts = [
            ("missing_value", json!("N/A")),
            ("_FillValue", json!("-9999")),
            ("valid_range", json!("0, 100")),
            ("valid_min", json!("none")),
            ("valid_max", float(f64::NAN)),
        ];
        for dtype in [DType::Float32, DType::Int16] {
            let of = decoded(dtype, &texts);
            assert_eq!(of.decode, Decode::default(), "{dtype}");
            assert_eq!(of.attrs.len(), 5, "{dtype}");
        }
        let of = decoded(DType::Int16, &[("valid_range", json!([0, 1, 2]))]);
        assert!(of.decode.is_identity() && of.attrs.contains_key("valid_range"));
        // netCDF4 1.7 masks -1 of [-1, 1] in float32 with [0, NaN], and nothing in int16.
        let half = [("valid_range", json!([0, float(f64::NAN)]))];
        let of = decoded(DType::Float32, &half);
        assert_eq!(of.decode.valid_min, Some(Scalar::from_f64(DType::Float32, 0.0)));
        assert!(of.decode.valid_max.is_none() && of.attrs.is_empty());
        assert_eq!(decoded(DType::Int16, &half).attrs.len(), 1);
        // One of several values is a number.
        let of = decoded(DType::Float32, &[("missing_value", json!(["a", 3]))]);
        assert_eq!(of.decode.missing, [Scalar::from_f64(DType::Float32, 3.0)]);
        let bounds = [("valid_min", float(f64::NEG_INFINITY)), ("valid_max", json!(9))];
        let of = decoded(DType::Float64, &bounds);
        assert_eq!(of.decode.valid_max, Some(Scalar::from_f64(DType::Float64, 9.0)));
        let least = of.decode.valid_min.map(|v| v.as_f64());
        assert!(least == Some(f64::NEG_INFINITY) && of.attrs.is_empty());
        // A factor is needed to read a cell.
        let attrs = [("scale_factor".to_string(), json!("x"))].into();
        let e = decode("v", DType::Int16, attrs, None, &[]).unwrap_err();
        assert_eq!(e.code(), "invalid_metadata");
    }
}
