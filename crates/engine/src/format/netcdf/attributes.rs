//! Attributes: from JSON to the types of the file.

use super::header::Kind;
use serde_json::Value;
use std::collections::BTreeMap;
use tessera_planner::catalog::{Attrs, PythonJson, as_float, float_word};
use tessera_planner::scalar::Scalar;

/// Attributes of the file or of a variable, by name.
pub(super) type Attributes = BTreeMap<String, Attribute>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attribute {
    Text(String),
    /// Numbers of one type, big-endian.
    Numbers(Kind, Vec<u8>),
}

/// Attributes as the file has them. What is neither text nor numbers becomes its JSON text; null is left out.
pub(super) fn of(attrs: &Attrs, is_wide: bool) -> Attributes {
    let clean = |c: char| if c == '/' || c.is_control() { '_' } else { c };
    let named = attrs.iter().filter(|(name, _)| !name.is_empty());
    named
        .filter_map(|(name, v)| Some((name.chars().map(clean).collect(), value(v, is_wide)?)))
        .collect()
}

fn value(v: &Value, is_wide: bool) -> Option<Attribute> {
    Some(match v {
        Value::Null => return None,
        Value::String(text) => Attribute::Text(text.clone()),
        Value::Bool(b) => Attribute::Numbers(Kind::Byte, vec![u8::from(*b)]),
        Value::Number(_) => numbers(std::slice::from_ref(v), is_wide),
        Value::Object(_) if float_word(v).is_some() => numbers(std::slice::from_ref(v), is_wide),
        Value::Array(list) if !list.is_empty() && list.iter().all(|v| as_float(v).is_some()) => {
            numbers(list, is_wide)
        }
        Value::Array(_) | Value::Object(_) => Attribute::Text(PythonJson(v).to_string()),
    })
}

/// The narrowest type that holds all: `int`, in CDF-5 `int64`, else `double`.
fn numbers(list: &[Value], is_wide: bool) -> Attribute {
    let whole: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
    match whole {
        Some(v) if v.iter().all(|n| i32::try_from(*n).is_ok()) => Attribute::Numbers(
            Kind::Int,
            v.iter().flat_map(|n| (*n as i32).to_be_bytes()).collect(),
        ),
        Some(v) if is_wide => {
            Attribute::Numbers(Kind::Int64, v.iter().flat_map(|n| n.to_be_bytes()).collect())
        }
        _ => {
            let floats = list.iter().filter_map(as_float);
            Attribute::Numbers(Kind::Double, floats.flat_map(f64::to_be_bytes).collect())
        }
    }
}

/// A value of the type of its variable.
pub(super) fn typed(kind: Kind, v: Scalar) -> Attribute {
    let mut bytes = v.to_le_bytes()[..kind.size()].to_vec();
    bytes.reverse();
    Attribute::Numbers(kind, bytes)
}
