//! Parameters of a script, given as JSON over HTTP or on the command line.

use crate::error::Error;
use serde_json::Value;
use std::collections::BTreeMap;
use tessera_frontend::parameters::{self, Parameter, Parameters};

/// Upper bound on the parameters of a script.
const PARAMETERS_MAX: usize = 10_000;

/// Are lists values?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lists {
    Taken,
    Refused,
}

/// Binds the parameters of a script: a list for `?` and `$1`, an object for `$name`.
///
/// # Errors
/// Values that cannot be parameters, and errors of [`parameters::bind`].
pub fn bind(sql: &str, params: Option<&Value>) -> Result<String, Error> {
    bind_with(sql, params, Lists::Refused)
}

fn bind_with(sql: &str, params: Option<&Value>, lists: Lists) -> Result<String, Error> {
    let refuse = |reason: String| Error::Request { reason };
    let parameters = match params {
        None | Some(Value::Null) => return Ok(sql.into()),
        Some(Value::Array(values)) if values.len() <= PARAMETERS_MAX => Parameters::Positional(
            values
                .iter()
                .enumerate()
                .map(|(i, v)| one(&(i + 1).to_string(), v, lists))
                .collect::<Result<_, _>>()?,
        ),
        Some(Value::Object(values)) if values.len() <= PARAMETERS_MAX => Parameters::Named(
            values
                .iter()
                .map(|(k, v)| Ok((k.clone(), one(k, v, lists)?)))
                .collect::<Result<_, Error>>()?,
        ),
        Some(Value::Array(_) | Value::Object(_)) => {
            return Err(refuse(format!("`params` has more than {PARAMETERS_MAX} values")));
        }
        Some(_) => return Err(refuse("`params` is neither a list nor an object".into())),
    };
    parameters::bind(sql, &parameters).map_err(Error::stage)
}

/// Binds the values of `--param NAME=VALUE`. A value is JSON, or else a text. Names that are the numbers from 1 on are
/// for `?` and `$1`.
///
/// # Errors
/// `usage` for a parameter without a name or given twice, and those of [`bind`].
pub fn bind_given(sql: &str, given: &[String]) -> Result<String, Error> {
    if given.is_empty() {
        return Ok(sql.into());
    }
    let usage = |reason: String| Error::Usage {
        reason,
        hint: Some("write `--param k=3` for `$k`, `--param 1=3` for `$1` and the first `?`".into()),
    };
    let mut values = BTreeMap::new();
    for text in given {
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(usage(format!("the parameter `{text}` has no name")));
        };
        let value = match serde_json::from_str::<Value>(value) {
            Ok(json) if !json.is_object() => json,
            _ => Value::String(value.to_string()),
        };
        if values.insert(name.to_string(), value).is_some() {
            return Err(usage(format!("the parameter `{name}` is given twice")));
        }
    }
    let numbered: Vec<Value> =
        (1..=values.len()).map_while(|n| values.get(&n.to_string()).cloned()).collect();
    let values = match numbered.len() == values.len() {
        true => Value::Array(numbered),
        false => Value::Object(values.into_iter().collect()),
    };
    bind_with(sql, Some(&values), Lists::Taken)
}

fn one(name: &str, value: &Value, lists: Lists) -> Result<Parameter, Error> {
    Ok(match value {
        Value::Null => Parameter::Null,
        Value::Bool(b) => Parameter::Bool(*b),
        Value::Number(n) => Parameter::Number(n.to_string()),
        Value::String(s) => Parameter::Text(s.clone()),
        Value::Array(values) if lists == Lists::Taken => {
            let values = values.iter().map(|v| one(name, v, lists));
            Parameter::List(values.collect::<Result<_, _>>()?)
        }
        Value::Array(_) | Value::Object(_) => {
            return Err(Error::Request {
                reason: format!(
                    "parameter `{name}` is a {}; parameters are numbers, texts, true, false or null",
                    if value.is_array() { "list" } else { "object" }
                ),
            });
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::bind_given;

    fn given(sql: &str, values: &[&str]) -> Result<String, String> {
        let values: Vec<String> = values.iter().map(|v| (*v).to_string()).collect();
        bind_given(sql, &values).map_err(|e| e.to_string())
    }

    #[test]
    fn values_are_json_or_text() {
        for (value, literal) in [
            ("3", "3"),
            ("-0.5", "(-0.5)"),
            ("2020-01", "'2020-01'"),
            ("\"3\"", "'3'"),
            ("it's", "'it''s'"),
            ("a=b", "'a=b'"),
            ("", "''"),
            ("null", "NULL"),
            ("true", "TRUE"),
            ("[50, 60.5]", "[50, 60.5]"),
            ("{\"a\":1}", "'{\"a\":1}'"),
        ] {
            assert_eq!(
                given("SELECT $k", &[&format!("k={value}")]).unwrap(),
                format!("SELECT {literal}")
            );
        }
        assert_eq!(given("SELECT ?, ?", &["2=b", "1=a"]).unwrap(), "SELECT 'a', 'b'");
        assert_eq!(given("SELECT $2, $1", &["2=b", "1=a"]).unwrap(), "SELECT 'b', 'a'");
        assert_eq!(given("SELECT 1", &[]).unwrap(), "SELECT 1");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(given("SELECT $k", &["k"]).unwrap_err(), "the parameter `k` has no name");
        assert_eq!(given("SELECT $k", &["=3"]).unwrap_err(), "the parameter `=3` has no name");
        let twice = given("SELECT $k", &["k=1", "k=2"]).unwrap_err();
        assert_eq!(twice, "the parameter `k` is given twice");
        assert!(given("SELECT $k", &["j=1"]).is_err());
        assert!(given("SELECT 1", &["j=1"]).is_err());
    }
}
