//! Calls with arguments of types that the function does not take.
//!
//! DataFusion reports them with every signature that it tried, under its own name of the function, and without a position.

use std::fmt;

use datafusion::common::DataFusionError;
use datafusion::execution::SessionState;
use tessera_frontend::error::{Error, Position};

use super::super::functions::top_call;
use super::super::names::{FLOOR_DIVIDE, POWER, TOP_MAX, TOP_MIN};
use super::super::operators::{SHIFT_LEFT, SHIFT_RIGHT};
use crate::error::plain;
pub(crate) use crate::error::spoken;

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
    let received = after.split("received ").skip(1);
    let words: Vec<&str> =
        received.filter_map(|part| part.split([' ', ',', '.', '\n']).next()).collect();
    // Of several signatures some have another number of arguments.
    let is_type = |word: &&&str| !word.bytes().all(|b| b.is_ascii_digit());
    let of = words.iter().find(is_type).or(words.first())?;
    Some((name, vec![*of]))
}

/// As [`refused`], for a message without the types of all arguments.
fn alone(message: &str) -> Option<(&str, Vec<&str>)> {
    if let Some(name) = message.strip_suffix("' does not support zero arguments") {
        return Some((name.strip_prefix('\'')?, Vec::new()));
    }
    let (name, rest) = message.strip_prefix("Function '")?.split_once("' ")?;
    if rest.starts_with("user-defined coercion failed with: ") {
        return Some((name, Vec::new()));
    }
    let rest = rest.strip_prefix("expects ").or_else(|| rest.strip_prefix("requires "))?;
    let (_, received) = rest.split_once("but received ")?;
    let of = received.split([' ', ',', '.', '\n']).next()?;
    Some((name, vec![of]))
}

/// Splits a list of types, whose names may contain commas.
pub(super) fn apart(types: &str) -> Vec<&str> {
    split_outside_brackets(types, ',')
        .into_iter()
        .map(str::trim)
        .filter(|of| !of.is_empty())
        .collect()
}

/// The parts of a text between separators outside of brackets.
pub(super) fn split_outside_brackets(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            c if c == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The operator for which a function is planned; other functions have their own names.
fn operator(function: &str) -> &str {
    match function {
        FLOOR_DIVIDE => "//",
        POWER => "^",
        SHIFT_LEFT => "<<",
        SHIFT_RIGHT => ">>",
        other => other,
    }
}

/// The number of arguments that the only signature of a function has, and that of a call.
fn counts(message: &str) -> Option<(&str, &str)> {
    if message.contains("failed to match any signature") {
        return None;
    }
    let mut parts = message.split(" arguments but received ");
    let (Some(before), Some(after), None) = (parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let expected = before.rsplit(' ').next().filter(is_number)?;
    let received = after.split(|c: char| !c.is_ascii_digit()).next().filter(is_number)?;
    Some((expected, received))
}

/// The error for a call that fits no signature; `None` for other messages.
pub(super) fn error(message: &str, position: Option<Position>) -> Option<Error> {
    let listed = refused(message);
    let is_listed = listed.is_some();
    let (planned, types) = listed.or_else(|| alone(message))?;
    let name = operator(planned);
    if let Some((expected, received)) = counts(message)
        && expected != received
        && !(is_listed && AGGREGATES.contains(&name))
    {
        let arguments = if expected == "1" { "argument" } else { "arguments" };
        return Some(Error::Cells {
            code: "argument_count",
            message: format!("`{name}` takes {expected} {arguments}, not {received}"),
            position,
            hint: Some("`SHOW FUNCTIONS` lists the functions with their arguments".to_string()),
        });
    }
    let takes_text = message.contains("' requires String") || message.contains("' expects String");
    // A function that checks its arguments itself says what is wrong.
    let own = message.split_once("user-defined coercion failed with: ");
    let own = own.and_then(|(_, reason)| reason.split(". No function matches").next());
    let own = own.map(|reason| plain(reason.lines().next().unwrap_or_default()));
    let have_no_type = own.is_some_and(|reason| {
        ["Fail to find the coerced type", "Failed to unify argument types"]
            .iter()
            .any(|words| reason.starts_with(words))
    });
    let words: Vec<String> = types.iter().map(|one| spoken(one)).collect();
    let message = match (own, words.as_slice()) {
        (Some(_), []) if have_no_type => format!("the arguments of `{name}` have no common type"),
        (Some(_), types) if have_no_type => {
            format!("the arguments of `{name}` have no common type: {}", types.join(", "))
        }
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
    let hint = hint(name, &words).or_else(|| match (takes_text, have_no_type) {
        (true, _) => Some(format!("convert the argument: `{name}(x::text)`")),
        (false, true) => Some("convert them to one type: `x::text`, `x::double`".to_string()),
        (false, false) => None,
    });
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
            format!("convert it: `{name}(x::int)` counts true as 1 and false as 0")
        }
        (_, [one]) if is_aggregate && one == "text" => {
            format!("convert it: `{name}(x::double)`, or `{name}(try_cast(x AS double))`, which leaves out what is not a number")
        }
        (TOP_MAX | TOP_MIN, [columns @ .., _]) => top_call(name == TOP_MAX, columns.len()).1,
        ("format" | "printf", [first, ..]) if first != "text" => {
            format!("the first argument is the format, the values follow: `{name}('…', x)`")
        }
        ("format" | "printf", _) => {
            format!("`x::text` is the text of any value: `{name}('…', x::text)`")
        }
        ("date_trunc" | "date_part", _) => {
            "convert to a time: `to_timestamp(seconds)` or `x::timestamp`".into()
        }
        ("date_bin", _) => {
            "convert to a timestamp: `to_timestamp(seconds)` or `x::timestamp`; times of other calendars have `date_trunc('month', t)`, `year(t)`, `month(t)`, `day(t)`"
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
    refused(&text).or_else(|| alone(&text)).map(|(name, _)| name.to_string())
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
    use super::{alone, apart, counts, refused, spoken};

    #[test]
    fn types_of_a_call_are_read() {
        let text = "Function 'f' expects 1 arguments but received 2. No function matches the given name and argument types 'f(Struct(\"a\": Int64, \"b\": Utf8), FixedSizeList(2 x Float32, field: 'x'))'. You might need to add explicit type casts.\n\tCandidate functions:";
        let (name, types) = refused(text).unwrap_or_default();
        assert_eq!((name, types.len()), ("f", 2));
        assert_eq!(counts(text), Some(("1", "2")));
        let words: Vec<String> = types.iter().map(|one| spoken(one)).collect();
        assert_eq!(words, ["struct", "list"]);
        assert!(apart("").is_empty());
        let text = "Function 'sum' failed to match any signature, errors: Function 'sum' expects Decimal but received Boolean,x";
        assert_eq!(refused(text), Some(("sum", vec!["Boolean"])));
        assert_eq!(refused("something else"), None);
        let text = "Function 'lower' expects 1 arguments but received 2";
        assert_eq!((alone(text), counts(text)), (Some(("lower", vec!["2"])), Some(("1", "2"))));
        let text = "'lower' does not support zero arguments";
        assert_eq!(alone(text), Some(("lower", vec![])));
        let text = "Function 'round' failed to match any signature, errors: Function 'round' expects 2 arguments but received 1,Function 'round' requires Float64, but received String (DataType: Utf8).";
        assert_eq!((refused(text), counts(text)), (Some(("round", vec!["String"])), None));
        let text = "Function 'lower' requires String, but received Int64 (DataType: Int64).";
        assert_eq!(alone(text), Some(("lower", vec!["Int64"])));
    }
}
