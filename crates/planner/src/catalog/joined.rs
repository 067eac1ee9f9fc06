//! Labels of several lists, one list after the other.

use super::{CoordValues, NoLabels, Texts, Unreadable};
use crate::dtype::DType;
use std::sync::Arc;

impl CoordValues {
    /// Several lists of labels, one after the other. Numbers get their common type in NumPy, as in `xarray.concat`. If
    /// some labels cannot be read, neither can those of the whole.
    ///
    /// # Errors
    /// The types of two lists that have no common one, such as texts and numbers, or times of two calendars.
    pub fn joined(parts: &[&CoordValues]) -> Result<CoordValues, [String; 2]> {
        if let Some(of) = parts.iter().find_map(|part| part.unreadable()) {
            // A new `Arc` makes the labels differ from those of any other tensor, as their values are unknown.
            let of = Arc::new(Unreadable::clone(of));
            let len = parts.iter().map(|part| part.len()).sum();
            return Ok(CoordValues::Unreadable(NoLabels::new(of, len)));
        }
        let whole = || -> Arc<[i64]> {
            parts.iter().flat_map(|part| whole_numbers(part)).copied().collect()
        };
        Ok(match common_type(parts)? {
            None => {
                let texts = parts.iter().filter_map(|part| match part {
                    CoordValues::Text(texts) => Some(texts),
                    _ => None,
                });
                CoordValues::Text(Texts::joined(&texts.collect::<Vec<_>>()))
            }
            Some(DType::Datetime(calendar)) => CoordValues::Time(calendar, whole()),
            Some(dtype) if dtype.is_float() => {
                CoordValues::Float(dtype, parts.iter().flat_map(|part| floats(part)).collect())
            }
            Some(dtype) => CoordValues::Int(dtype, whole()),
        })
    }
}

/// The common type of labels, as `numpy.result_type`; `None` for texts.
fn common_type(parts: &[&CoordValues]) -> Result<Option<DType>, [String; 2]> {
    let Some(first) = parts.first() else { return Ok(None) };
    let is_odd = |part: &&&CoordValues| match (first.dtype(), part.dtype()) {
        (Some(a), Some(b)) => a.promote(b).is_none(),
        (a, b) => a != b,
    };
    if let Some(odd) = parts.iter().find(is_odd) {
        let name = |of: &CoordValues| of.dtype().map_or_else(|| "text".into(), DType::name);
        return Err([name(first), name(odd)]);
    }
    // NumPy's order: int16, uint16 and float32 are float32, though int16 and uint16 are int32.
    let types = || parts.iter().filter_map(|part| part.dtype());
    let ordered = types().filter(|d| d.is_float()).chain(types().filter(|d| !d.is_float()));
    Ok(ordered.reduce(|a, b| a.promote(b).unwrap_or(a)))
}

/// Integers and times, as they are stored.
fn whole_numbers(labels: &CoordValues) -> &[i64] {
    match labels {
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => v,
        _ => &[],
    }
}

/// Numbers as floats.
fn floats(labels: &CoordValues) -> Vec<f64> {
    match labels {
        CoordValues::Int(d, v) => v.iter().map(|x| CoordValues::integer(*d, *x) as f64).collect(),
        CoordValues::Float(_, v) => v.to_vec(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Calendar;
    use crate::dtype::DType::*;

    /// The types and values of `xarray.concat`.
    #[test]
    fn concatenated_labels_have_the_common_type() {
        let int = |d, v: &[i64]| CoordValues::Int(d, v.into());
        let float = |d, v: &[f64]| CoordValues::Float(d, v.into());
        let wide = (2u64.pow(63) + 5) as i64;
        let tenth = f64::from(0.1f32);
        for (parts, want) in [
            (vec![int(Int32, &[1, 2]), int(Int64, &[1 << 40])], int(Int64, &[1, 2, 1 << 40])),
            (vec![int(UInt64, &[wide]), int(UInt32, &[1])], int(UInt64, &[wide, 1])),
            (
                vec![int(UInt64, &[wide]), int(Int64, &[-1])],
                float(Float64, &[9_223_372_036_854_775_808.0, -1.0]),
            ),
            (vec![float(Float32, &[tenth]), float(Float64, &[0.1])], float(Float64, &[tenth, 0.1])),
            (vec![int(Int32, &[1, 2]), float(Float64, &[0.5])], float(Float64, &[1.0, 2.0, 0.5])),
            (vec![int(Int16, &[1]), float(Float32, &[0.5])], float(Float32, &[1.0, 0.5])),
            (vec![int(Int32, &[1]), float(Float32, &[tenth])], float(Float64, &[1.0, tenth])),
            (
                vec![int(Int16, &[1]), int(UInt16, &[2]), float(Float32, &[0.5])],
                float(Float32, &[1.0, 2.0, 0.5]),
            ),
        ] {
            assert_eq!(
                CoordValues::joined(&parts.iter().collect::<Vec<_>>()),
                Ok(want),
                "{parts:?}"
            );
        }
    }

    #[test]
    fn labels_without_a_common_type_are_named() {
        let texts = CoordValues::Text(["a".to_string()].into());
        let one = CoordValues::Int(Int32, [1].into());
        let time = CoordValues::Time(Calendar::Standard, [1].into());
        let other = CoordValues::Time(Calendar::NoLeap, [1].into());
        for (parts, want) in [
            ([&texts, &one], ["text", "int32"]),
            ([&one, &texts], ["int32", "text"]),
            ([&one, &time], ["int32", "datetime64[us]"]),
            ([&time, &other], ["datetime64[us]", "datetime64[us, noleap]"]),
        ] {
            assert_eq!(CoordValues::joined(&parts), Err(want.map(String::from)));
        }
        assert_eq!(CoordValues::joined(&[&texts, &texts]).map(|labels| labels.len()), Ok(2));
    }
}
