//! Parameters of a script: values for `?`, `$1` and `$name`, substituted as literals before parsing.

use crate::error::{Error, Position};
use crate::tokens;
use sqlparser::tokenizer::Token;
use std::collections::BTreeMap;

/// A parameter's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// `NULL`
    Null,
    /// `TRUE` or `FALSE`
    Bool(bool),
    /// A number as JSON writes it: `-1`, `0.5`, `1e300`.
    Number(String),
    /// A text.
    Text(String),
    /// `[1, 2]`
    List(Vec<Parameter>),
}

/// The values of a script.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameters {
    /// For `?`, in order, or `$1`, `$2`, ….
    Positional(Vec<Parameter>),
    /// For `$name`.
    Named(BTreeMap<String, Parameter>),
}

impl Parameter {
    /// The literal. A negative number is parenthesized, as `2 -?` would otherwise become a comment.
    fn literal(&self) -> String {
        match self {
            Parameter::Null => "NULL".into(),
            Parameter::Bool(b) => if *b { "TRUE" } else { "FALSE" }.into(),
            Parameter::Number(n) if n.starts_with('-') => format!("({n})"),
            Parameter::Number(n) => n.clone(),
            Parameter::Text(t) => format!("'{}'", t.replace('\'', "''")),
            Parameter::List(values) => {
                let values: Vec<String> = values.iter().map(Parameter::literal).collect();
                format!("[{}]", values.join(", "))
            }
        }
    }
}

/// The error for a placeholder of a script without values, or for one that is no parameter: `@a`, `:a`.
pub fn missing(name: &str, position: Option<Position>) -> Error {
    if !name.starts_with(['$', '?']) {
        let hint = Some("parameters are written `$name`, `$1` or `?`".into());
        let construct = format!("the variable `{name}`");
        return Error::Unsupported { construct, position, hint };
    }
    Error::Syntax {
        message: format!("the parameter `{name}` has no value"),
        position,
        hint: Some(format!(
            "`--param {}=…` gives it one on the command line, `params` in a request",
            name.strip_prefix('$').unwrap_or("1")
        )),
    }
}

/// Replaces the script's parameters with literals. Placeholders in quotes or comments are ignored.
///
/// # Errors
/// [`Error::Token`] for a script that cannot be split into tokens, [`Error::Syntax`] for a parameter without a value, a
/// value without a placeholder, or `?` together with `$1`.
pub fn bind(script: &str, parameters: &Parameters) -> Result<String, Error> {
    let refuse = |message: String, position: Option<Position>, hint: &str| Error::Syntax {
        message,
        position,
        hint: Some(hint.to_string()),
    };
    let mut out = String::with_capacity(script.len());
    let mut copied = 0;
    let (mut marks, mut numbers) = (0usize, false);
    let mut used = std::collections::BTreeSet::new();
    for (token, span, bytes) in tokens::placed(script)? {
        let Token::Placeholder(name) = token else { continue };
        let position = Position::of_span(span);
        let key = match name.strip_prefix('$') {
            Some(key) => {
                numbers |= key.bytes().all(|b| b.is_ascii_digit());
                key.to_string()
            }
            None if name == "?" => {
                marks += 1;
                marks.to_string()
            }
            None => {
                return Err(refuse(
                    format!("`{name}` is not a parameter"),
                    position,
                    "write `?`, `$1` or `$name`",
                ));
            }
        };
        if marks > 0 && numbers {
            return Err(refuse(
                "the script mixes `?` and `$1`".into(),
                position,
                "use one of them",
            ));
        }
        let value = match parameters {
            Parameters::Positional(values) => {
                key.parse::<usize>().ok().and_then(|n| values.get(n.checked_sub(1)?))
            }
            Parameters::Named(values) => values.get(&key),
        };
        let Some(value) = value else {
            return Err(refuse(
                match name.as_str() {
                    "?" => format!("the parameter `?` number {key} has no value"),
                    _ => format!("the parameter `{name}` has no value"),
                },
                position,
                "`params` is a list for `?` and `$1`, an object for `$name`; on the command line `--param name=value`",
            ));
        };
        used.insert(key);
        out.push_str(&script[copied..bytes.start]);
        out.push_str(&value.literal());
        copied = bytes.end;
    }
    out.push_str(&script[copied..]);
    let unused = match parameters {
        Parameters::Positional(v) => {
            (1..=v.len()).map(|i| i.to_string()).find(|k| !used.contains(k))
        }
        Parameters::Named(v) => v.keys().find(|k| !used.contains(*k)).cloned(),
    };
    match unused {
        Some(key) => Err(refuse(
            match parameters {
                Parameters::Positional(_) => {
                    format!("the script does not use value {key} of `params`")
                }
                Parameters::Named(_) => {
                    format!("the script does not use `{key}` of `params`: it has no `${key}`")
                }
            },
            None,
            "use each value in the script: `?`, `$1` or `$name`",
        )),
        None => Ok(out),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn numbers(values: &[&str]) -> Parameters {
        Parameters::Positional(values.iter().map(|v| Parameter::Number((*v).into())).collect())
    }

    #[test]
    fn values_replace_placeholders() {
        assert_eq!(
            bind("SELECT ? -? -- ?\n, '?', \"$1\"", &numbers(&["1", "-2"])).unwrap(),
            "SELECT 1 -(-2) -- ?\n, '?', \"$1\""
        );
        assert_eq!(
            bind("SELECT $2, é, $1, $2", &numbers(&["1", "2"])).unwrap(),
            "SELECT 2, é, 1, 2"
        );
        let named = Parameters::Named(BTreeMap::from([
            ("who".into(), Parameter::Text("it's; DROP".into())),
            ("no".into(), Parameter::Null),
        ]));
        assert_eq!(bind("SELECT $who, $no", &named).unwrap(), "SELECT 'it''s; DROP', NULL");
        let list = Parameter::List(vec![
            Parameter::Number("-1".into()),
            Parameter::List(vec![Parameter::Text("a'b".into())]),
        ]);
        let list = Parameters::Positional(vec![list]);
        assert_eq!(bind("SELECT x[t => ?]", &list).unwrap(), "SELECT x[t => [(-1), ['a''b']]]");
    }

    #[test]
    fn parameters_that_do_not_match_are_refused() {
        for (sql, values) in [
            ("SELECT ?", &[][..]),
            ("SELECT ?", &["1", "2"]),
            ("SELECT ?, $1", &["1"]),
            ("SELECT $0", &["1"]),
            ("SELECT $a", &["1"]),
            ("SELECT 'open", &["1"]),
        ] {
            assert!(bind(sql, &numbers(values)).is_err(), "{sql}");
        }
        let told =
            |sql: &str, values: &[&str]| bind(sql, &numbers(values)).unwrap_err().to_string();
        assert_eq!(told("SELECT ?, ?", &["1"]), "the parameter `?` number 2 has no value");
        assert_eq!(told("SELECT $3", &["1"]), "the parameter `$3` has no value");
        assert_eq!(told("SELECT ?", &["1", "2"]), "the script does not use value 2 of `params`");
    }
}
