//! Forms of a `fill_value` that zarr-python accepts and zarrs does not: `0.0` of integers, `"3"`, `"nan"`, a bare `NaN`,
//! `0` of truth values.

use crate::source::cells::Raw;
use serde_json::{Map, Value};
use tessera_planner::catalog::float_word;
use tessera_planner::dtype::DType;

/// Integers of larger magnitude are not exact as floats.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Rewrites the fill value of an array of `raw` in the form of its type. A value that does not fit the type stays
/// unchanged.
pub(crate) fn spell_out(doc: &mut Map<String, Value>, raw: &Raw) {
    if let Some(word) = doc.get("fill_value").and_then(float_word) {
        doc.insert("fill_value".into(), word.into());
    }
    let Some(value) = doc.get("fill_value") else { return };
    let plain = match raw {
        Raw::Plain(DType::Bool) => value.as_f64().and_then(|v| match v {
            0.0 => Some(Value::Bool(false)),
            1.0 => Some(Value::Bool(true)),
            _ => None,
        }),
        Raw::Plain(dtype) if dtype.is_integer() => whole(value),
        Raw::Plain(_) | Raw::Half => value.as_str().and_then(float),
        _ => None,
    };
    if let Some(plain) = plain {
        doc.insert("fill_value".into(), plain);
    }
}

fn whole(value: &Value) -> Option<Value> {
    match value {
        Value::Number(n) if n.is_f64() => {
            let v = n.as_f64().filter(|v| v.fract() == 0.0 && v.abs() <= EXACT)?;
            Some((v as i64).into())
        }
        Value::String(s) => match (s.parse::<i64>(), s.parse::<u64>()) {
            (Ok(v), _) => Some(v.into()),
            (_, Ok(v)) => Some(v.into()),
            _ => None,
        },
        _ => None,
    }
}

fn float(text: &str) -> Option<Value> {
    match text.parse::<f64>().ok()? {
        v if v.is_nan() => Some("NaN".into()),
        f64::INFINITY => Some("Infinity".into()),
        f64::NEG_INFINITY => Some("-Infinity".into()),
        v => Some(v.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fill_values_are_of_their_type() {
        let int = Raw::Plain(DType::Int32);
        let float = Raw::Plain(DType::Float32);
        let bool = Raw::Plain(DType::Bool);
        for (raw, value, want) in [
            (&int, json!(-3.0), json!(-3)),
            (&int, json!("18446744073709551615"), json!(u64::MAX)),
            (&int, json!(1.5), json!(1.5)),
            (&int, json!("NaN"), json!("NaN")),
            (&int, json!(7), json!(7)),
            (&float, json!("3.5"), json!(3.5)),
            (&float, json!("nan"), json!("NaN")),
            (&float, json!("-Infinity"), json!("-Infinity")),
            (&float, tessera_planner::catalog::float(f64::INFINITY), json!("Infinity")),
            (&int, tessera_planner::catalog::float(f64::NAN), json!("NaN")),
            (&float, json!("0x7fc00000"), json!("0x7fc00000")),
            (&float, json!(1), json!(1)),
            (&bool, json!(0), json!(false)),
            (&bool, json!(1.0), json!(true)),
            (&bool, json!(2), json!(2)),
            (&Raw::Utf8, json!("3"), json!("3")),
        ] {
            let mut doc = Map::from_iter([("fill_value".to_string(), value.clone())]);
            spell_out(&mut doc, raw);
            assert_eq!(doc["fill_value"], want, "{raw:?}: {value}");
        }
    }
}
