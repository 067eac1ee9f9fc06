//! Calls with arguments of types that the function does not take.
//!
//! DataFusion reports them with every signature that it tried, under its own name of the function, and without a position.

use std::fmt;

use datafusion::common::DataFusionError;
use datafusion::execution::SessionState;
use tessera_frontend::error::{Error, Position};

use crate::error::plain;

/// A call in the text of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// The function as written.
    pub(crate) written: String,
    /// The function that is planned: `date_part` for `month(t)`.
    pub(crate) planned: String,
    pub(crate) position: Position,
}

/// An error of the arguments of a call, which [`placed`] gives the position of the call.
#[derive(Debug)]
pub(crate) struct InCall {
    /// The function that is planned.
    pub(crate) function: String,
    /// The error, without a position.
    pub(crate) error: Error,
}

impl fmt::Display for InCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for InCall {}

/// DataFusion's words before and after the function and the types of its arguments.
const BEFORE: &str = "No function matches the given name and argument types '";
const AFTER: &str = ")'. You might";

/// The function and the types of its arguments in a message of DataFusion.
fn refused(message: &str) -> Option<(&str, Vec<&str>)> {
    let Some((_, rest)) = message.split_once(BEFORE) else { return first_refused(message) };
    let (call, _) = rest.split_once(AFTER)?;
    let (name, types) = call.split_once('(')?;
    Some((name, apart(types)))
}

/// As [`refused`], for a message that names only the argument at fault.
fn first_refused(message: &str) -> Option<(&str, Vec<&str>)> {
    let (before, after) = message.split_once("' failed to match any signature")?;
    let name = before.rsplit('\'').next()?;
    let (_, received) = after.split_once("received ")?;
    let of = received.split([' ', ',', '.', '\n']).next()?;
    Some((name, vec![of]))
}

/// The types of a list, which may have commas of their own.
fn apart(types: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in types.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(types[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(types[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// The name of a type of Arrow in this dialect.
pub(crate) fn spoken(arrow: &str) -> String {
    match arrow.split(['(', ' ']).next().unwrap_or(arrow) {
        "Utf8" | "LargeUtf8" | "Utf8View" => "text".to_string(),
        "Boolean" => "bool".to_string(),
        "LargeList" | "FixedSizeList" => "list".to_string(),
        "Null" => "NULL".to_string(),
        decimal if decimal.starts_with("Decimal") => "decimal".to_string(),
        other => other.to_ascii_lowercase(),
    }
}

/// The error for a call that fits no signature; `None` for other messages.
pub(super) fn error(message: &str, position: Option<Position>) -> Option<Error> {
    let (name, types) = refused(message)?;
    // A function that checks its arguments itself says what is wrong.
    let own = message.split_once("user-defined coercion failed with: ");
    let own = own.and_then(|(_, reason)| reason.split(". No function matches").next());
    let own = own.map(|reason| plain(reason.lines().next().unwrap_or_default()));
    let words: Vec<String> = types.iter().map(|one| spoken(one)).collect();
    let message = match (own, words.as_slice()) {
        (Some(reason), _) => reason.trim_end_matches('.').to_string(),
        (None, []) => format!("`{name}` needs an argument"),
        (None, [count]) if count.bytes().all(|b| b.is_ascii_digit()) => {
            format!("`{name}` does not take {count} arguments")
        }
        (None, [one]) => format!("`{name}` is not defined for {one}"),
        (None, [first @ .., last]) => {
            format!("`{name}` is not defined for {} and {last}", first.join(", "))
        }
    };
    let hint = hint(name, &words);
    Some(Error::Cells { code: "type_error", message, position, hint })
}

/// Aggregates of one column.
const AGGREGATES: [&str; 12] = [
    "avg",
    "bool_and",
    "bool_or",
    "max",
    "median",
    "min",
    "stddev",
    "stddev_pop",
    "sum",
    "var",
    "var_pop",
    "var_samp",
];

fn hint(name: &str, types: &[String]) -> Option<String> {
    let has = |word: &str| types.iter().any(|known| known == word);
    let is_aggregate = AGGREGATES.contains(&name);
    Some(match (name, types) {
        (_, [_, _, ..]) if is_aggregate => format!(
            "over rows, `{name}` takes one column, and GROUP BY names the dimensions that remain; `{name}(x, 'time')` reduces a tensor, in a block without WHERE, GROUP BY and other clauses of rows"
        ),
        (_, [one]) if is_aggregate && one == "bool" => {
            format!("convert it: `{name}(x::int)` takes 1 for true and 0 for false")
        }
        (_, [one]) if is_aggregate && one == "text" => {
            format!("convert it: `{name}(x::double)`, or `{name}(try_cast(x AS double))`, which leaves out what is not a number")
        }
        ("date_trunc" | "date_part", _) => {
            "it takes times: `to_timestamp(seconds)` and `x::timestamp` make them".into()
        }
        ("date_bin", _) => {
            "it takes timestamps: `to_timestamp(seconds)` and `x::timestamp` make them; times of other calendars have `date_trunc('month', t)`, `year(t)`, `month(t)`, `day(t)`"
                .into()
        }
        ("array_element", _) => {
            "a subscript of rows selects from a list: `li[1]` is its first value; a tensor has subscripts in a block of its own: `FROM (SELECT x[0] AS name FROM x)`"
                .into()
        }
        _ if has("text") => "convert texts with `x::double`, `x::int`, `x::timestamp`".into(),
        _ => return None,
    })
}

/// The function that an error of DataFusion is about.
pub(crate) fn name_in(error: &DataFusionError) -> Option<String> {
    if let DataFusionError::External(inner) = error.find_root()
        && let Some(call) = inner.downcast_ref::<InCall>()
    {
        return Some(call.function.clone());
    }
    let text = error.to_string();
    refused(&text).map(|(name, _)| name.to_string())
}

/// Adds the position of the only call of a function, and its name as written.
pub(crate) fn placed(
    error: Error,
    name: Option<&str>,
    calls: &[Call],
    state: &SessionState,
) -> Error {
    let (Some(name), Error::Cells { message, position: None, hint, .. }) = (name, &error) else {
        return error;
    };
    let is_meant = |call: &&Call| {
        let word = call.planned.to_ascii_lowercase();
        let scalar = || state.scalar_functions().get(&word).map(|f| f.name().to_string());
        let aggregate = || state.aggregate_functions().get(&word).map(|f| f.name().to_string());
        word == name || scalar().or_else(aggregate).is_some_and(|own| own == name)
    };
    let mut found = calls.iter().filter(is_meant);
    let (Some(call), None) = (found.next(), found.next()) else { return error };
    let written = |text: &str| text.replace(&format!("`{name}"), &format!("`{}", call.written));
    Error::Cells {
        code: error.code(),
        message: written(message),
        position: Some(call.position),
        hint: hint.as_deref().map(written),
    }
}

#[cfg(test)]
mod tests {
    use super::{apart, refused, spoken};

    #[test]
    fn types_of_a_call_are_read() {
        let text = "Function 'f' expects 1 arguments but received 2. No function matches the given name and argument types 'f(Struct(\"a\": Int64, \"b\": Utf8), FixedSizeList(2 x Float32, field: 'x'))'. You might need to add explicit type casts.\n\tCandidate functions:";
        let (name, types) = refused(text).unwrap_or_default();
        assert_eq!((name, types.len()), ("f", 2));
        let words: Vec<String> = types.iter().map(|one| spoken(one)).collect();
        assert_eq!(words, ["struct", "list"]);
        assert!(apart("").is_empty());
        let text = "Function 'sum' failed to match any signature, errors: Function 'sum' expects Decimal but received Boolean,x";
        assert_eq!(refused(text), Some(("sum", vec!["Boolean"])));
        assert_eq!(refused("something else"), None);
    }
}
