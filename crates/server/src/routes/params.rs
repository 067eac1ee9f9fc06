//! `params` of a statement: values in place of `?`, `$1` and `$name`.

use crate::error::Error;
use serde_json::Value;
use tessera_frontend::parameters::{self, Parameter, Parameters};

/// Parameters at most.
const PARAMETERS_MAX: usize = 10_000;

/// The script with its parameters in place: a list for `?` and `$1`, an object for `$name`.
pub(super) fn bind(sql: &str, params: Option<&Value>) -> Result<String, Error> {
    let refuse = |reason: String| Error::Request { reason };
    let parameters = match params {
        None | Some(Value::Null) => return Ok(sql.into()),
        Some(Value::Array(values)) if values.len() <= PARAMETERS_MAX => Parameters::Positional(
            values
                .iter()
                .enumerate()
                .map(|(i, v)| one(&(i + 1).to_string(), v))
                .collect::<Result<_, _>>()?,
        ),
        Some(Value::Object(values)) if values.len() <= PARAMETERS_MAX => Parameters::Named(
            values
                .iter()
                .map(|(k, v)| Ok((k.clone(), one(k, v)?)))
                .collect::<Result<_, Error>>()?,
        ),
        Some(Value::Array(_) | Value::Object(_)) => {
            return Err(refuse(format!("`params` has more than {PARAMETERS_MAX} values")));
        }
        Some(_) => return Err(refuse("`params` is neither a list nor an object".into())),
    };
    parameters::bind(sql, &parameters).map_err(Error::stage)
}

fn one(name: &str, value: &Value) -> Result<Parameter, Error> {
    Ok(match value {
        Value::Null => Parameter::Null,
        Value::Bool(b) => Parameter::Bool(*b),
        Value::Number(n) => Parameter::Number(n.to_string()),
        Value::String(s) => Parameter::Text(s.clone()),
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
