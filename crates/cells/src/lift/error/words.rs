//! Messages of DataFusion's planning in the words of this project.
//!
//! A message has the types and numbers of one case between words that are always the same.

use datafusion::common::Diagnostic;

use tessera_frontend::error::{Error, Position};

use super::calls::{apart, split_outside_brackets};
use super::place;
use crate::error::spoken;

/// The reworded error for a message; `None` for unknown messages.
pub(super) fn error(message: &str, position: Option<Position>) -> Option<Error> {
    let (code, message, hint) = operation(message)
        .or_else(|| clause(message))
        .or_else(|| rows_of_sides(message))
        .or_else(|| condition(message))
        .or_else(|| subquery(message))
        .or_else(|| argument(message))?;
    let hint = Some(hint.to_string());
    Some(Error::Cells { code, message, position, hint })
}

/// A code, a message and a hint.
type Words = (&'static str, String, &'static str);

/// The error for a diagnostic whose notes have the numbers.
pub(super) fn of_diagnostic(diagnostic: &Diagnostic) -> Option<Error> {
    let kind = diagnostic.message.strip_suffix(" queries have different number of columns")?;
    let [left, right] = diagnostic.notes.as_slice() else { return None };
    let count = |text: &str| -> Option<usize> {
        text.strip_prefix("this side has ")?.strip_suffix(" fields")?.parse().ok()
    };
    let (message, hint) = of_counts(kind, count(&left.message)?, count(&right.message)?);
    Some(
        Error::cells("plan_error", message, right.span.or(diagnostic.span).map(place))
            .with_hint(hint.to_string()),
    )
}

fn of_counts(kind: &str, left: usize, right: usize) -> (String, &'static str) {
    let message = format!(
        "the sides of {kind} must have the same number of columns: the left one has {left}, the right one {right}"
    );
    (message, "`NULL AS name` is a column without values")
}

/// The text between two others; `None` if the message does not begin and end with them.
fn between<'a>(message: &'a str, before: &str, after: &str) -> Option<&'a str> {
    message.strip_prefix(before)?.strip_suffix(after)
}

/// The words of a text that are separated by spaces outside of brackets: types have spaces of their own.
fn split(text: &str) -> Vec<&str> {
    split_outside_brackets(text, ' ').into_iter().filter(|word| !word.is_empty()).collect()
}

/// Operators between types that they do not take.
fn operation(message: &str) -> Option<Words> {
    const BEFORE: [&str; 11] = [
        "Cannot coerce arithmetic expression ",
        "Cannot get result type for arithmetic operation ",
        "Cannot get result type for decimal operation ",
        "Cannot get result type for temporal operation ",
        "Cannot infer common argument type for AtAt operation ",
        "Cannot infer common argument type for comparison operation ",
        "Cannot infer common argument type for logical boolean operation ",
        "Cannot infer common argument type for operation ",
        "Cannot infer common argument type for regex operation ",
        "Cannot infer common string type for string concat operation ",
        "Cannot infer common type for bitwise operation ",
    ];
    if let Some(text) = BEFORE.iter().find_map(|before| message.strip_prefix(before)) {
        // The rest is the reason in Arrow's words.
        let text = text.strip_suffix(" to valid types").unwrap_or(text);
        let text = text.split(": ").next().unwrap_or(text);
        let words = split(text);
        let [left, operator @ .., right] = words.as_slice() else { return None };
        return Some(of_operator(&operator.join(" "), left, right));
    }
    if let Some(text) = between(message, "There isn't a common type to coerce ", " expression") {
        let (types, operator) = text.rsplit_once(" in ")?;
        let (left, right) = types.split_once(" and ")?;
        return Some(of_operator(operator, left, right));
    }
    if let Some((_, text)) = message.split_once("Failed to coerce types ") {
        let (types, _) = text.split_once(" in BETWEEN expression")?;
        let (left, right) = types.split_once(" and ")?;
        return Some(of_operator("BETWEEN", left, right));
    }
    if let Some(text) = message.strip_prefix("expr type ") {
        let (types, place) = text.rsplit_once(" in ")?;
        let (left, right) = types.split_once(" can't cast to ")?;
        let operator = if place == "InSubquery" { "IN" } else { "ANY` or `ALL" };
        return Some(of_operator(operator, left, right));
    }
    if let Some(of) =
        message.strip_prefix("Unary operator 'NOT' requires a boolean expression, got ")
    {
        let message = format!("`NOT` is not defined for {}", spoken(of));
        return Some(("type_error", message, "compare first: `NOT (x > 0)`"));
    }
    let sign = message.strip_prefix("Unary operator '").and_then(|rest| rest.chars().next());
    if let (Some(sign @ ('+' | '-')), true) = (sign, message.contains("' only supports ")) {
        let message = format!("the sign `{sign}` is not defined for a value of this type");
        return Some(("type_error", message, SIGNED));
    }
    if message.starts_with("Negation only supports ") {
        let message = "the sign `-` is not defined for a value of this type".to_string();
        return Some(("type_error", message, SIGNED));
    }
    of_case(message)
}

const SIGNED: &str = "convert it to a signed number: `-(x::bigint)`, `-(x::double)`";

fn of_operator(operator: &str, left: &str, right: &str) -> Words {
    let (left, right) = (spoken(left), spoken(right));
    let has = |word: &str| left == word || right == word;
    let is_time = |name: &str| {
        ["timestamp", "date", "time", "interval"].iter().any(|of| name.starts_with(of))
    };
    let hint = match operator {
        "AND" | "OR" => "both sides are conditions: `x > 0 AND y > 0`",
        "||" | "LIKE" | "ILIKE" | "~" | "~*" | "!~" | "!~*" => "convert with `x::text`",
        _ if has("text") => "convert the text: `x::double`, `x::int`, `x::timestamp`",
        _ if is_time(&left) || is_time(&right) => {
            "`time + INTERVAL '1 day'` shifts a time, `epoch(time)` is its seconds"
        }
        _ if has("bool") => "convert the condition: `(x > 0)::int`",
        _ => "convert one side to the type of the other one: `x::double`, `x::text`",
    };
    let operator = if operator == "BIT_XOR" { "xor" } else { operator };
    let message = format!("`{operator}` is not defined for {left} and {right}");
    ("type_error", message, hint)
}

/// Values of CASE and lists of IN without a common type.
fn of_case(message: &str) -> Option<Words> {
    let types = |text: &str| -> Vec<String> { apart(text).into_iter().map(spoken).collect() };
    let listed = |types: Vec<String>| types.join(", ");
    if let Some(text) =
        between(message, "Failed to coerce case (", ") to common types in CASE WHEN expression")
    {
        let (case, when) = text.split_once(") and when (")?;
        let message = format!(
            "CASE cannot compare {} with {}: they have no common type",
            spoken(case),
            listed(types(when))
        );
        return Some(("type_error", message, "convert one of them, as in `CASE x::text WHEN 'a'`"));
    }
    if let Some(text) = message
        .strip_prefix("Failed to coerce then (")
        .and_then(|text| text.strip_suffix(" to common types in CASE WHEN expression"))
    {
        let (then, otherwise) = text.split_once(") and else (")?;
        let mut all: Vec<String> = types(then);
        let otherwise = otherwise.trim_end_matches(')');
        if otherwise != "None" {
            all.push(spoken(otherwise));
        }
        let message = format!("the values of CASE have no common type: {}", listed(all));
        return Some(("type_error", message, "convert them to one type: `THEN x::text`"));
    }
    let text = message.strip_prefix("Can not find compatible types to compare ")?;
    let (of, list) = text.split_once(" with [")?;
    let message = format!(
        "`IN` cannot compare {} with {}: they have no common type",
        spoken(of),
        listed(types(list.trim_end_matches(']')))
    );
    Some(("type_error", message, "convert one side: `x::text IN ('1', '2')`"))
}

fn clause(message: &str) -> Option<Words> {
    let items = |count: &str| match count {
        "1" => "the query has 1 item".to_string(),
        count => format!("the query has {count} items"),
    };
    if let Some(text) = message.strip_prefix("Order by column out of bounds, specified: ") {
        let (number, count) = text.split_once(", max: ")?;
        let message = format!("ORDER BY {number} is out of range: {}", items(count));
        return Some(("plan_error", message, COUNTED));
    }
    if message.starts_with("Order by index starts at 1") {
        return Some((
            "plan_error",
            "ORDER BY 0 is out of range: items count from 1".to_string(),
            COUNTED,
        ));
    }
    if let Some(text) = message.strip_prefix("Cannot find column with position ") {
        let (number, count) = text.split_once(" in SELECT clause. Valid columns: 1 to ")?;
        let message = format!("GROUP BY {number} is out of range: {}", items(count));
        return Some(("plan_error", message, COUNTED));
    }
    for name in ["LIMIT", "OFFSET"] {
        let Some(text) = message.strip_prefix(name) else { continue };
        let Some(text) = text.strip_prefix(" must be >=") else { continue };
        let message = format!("{name} must not be negative, and is {}", text.split('\'').nth(1)?);
        return Some(("plan_error", message, "write 0 or a positive number, or omit the clause"));
    }
    if let Some(text) = message.strip_prefix("Expected ") {
        let (name, of) = text.split_once(" to be an integer or null, but got ")?;
        let message = format!("{name} must be an integer, not {}", spoken(of));
        return Some(("type_error", message, "write an integer: `LIMIT 10`"));
    }
    if message.starts_with("SELECT * with no tables specified") {
        let message = "`*` needs FROM: it stands for the columns of the relations there";
        return Some(("plan_error", message.to_string(), "write `SELECT * FROM name`"));
    }
    if message.starts_with("QUALIFY clause requires window functions") {
        let message = "QUALIFY needs a function with OVER, and the block has none";
        return Some((
            "plan_error",
            message.to_string(),
            "filter rows with WHERE, groups with HAVING",
        ));
    }
    if message.starts_with("SELECT DISTINCT ON expressions must match") {
        let message = "ORDER BY must begin with the expressions of DISTINCT ON";
        return Some((
            "plan_error",
            message.to_string(),
            "`SELECT DISTINCT ON (k) * FROM t ORDER BY k, time DESC` has the last row of each k",
        ));
    }
    None
}

const COUNTED: &str = "a number refers to an item, counted from 1; to use a column that is not an item, write its name";

/// Sides of set operations that do not fit each other.
fn rows_of_sides(message: &str) -> Option<Words> {
    if let Some(text) =
        between(message, "UNION queries have different number of columns: left has ", " columns")
        && let Some((left, right)) = text.split_once(" columns whereas right has ")
    {
        let (message, hint) = of_counts("UNION", left.parse().ok()?, right.parse().ok()?);
        return Some(("plan_error", message, hint));
    }
    let text =
        message.strip_prefix("Incompatible inputs for Union: Previous inputs were of type ")?;
    let (left, text) = text.split_once(", but got incompatible type ")?;
    let (right, column) = text.split_once(" on column '")?;
    let message = format!(
        "column `{}` of UNION has no common type: {} and {}",
        column.trim_end_matches('\''),
        spoken(left),
        spoken(right)
    );
    Some(("type_error", message, "convert one side to the type of the other one: `x::text`"))
}

fn condition(message: &str) -> Option<Words> {
    if message.starts_with("Aggregate functions are not allowed in the WHERE clause") {
        let message =
            "WHERE cannot contain an aggregate: it selects rows before they are aggregated";
        return Some((
            "plan_error",
            message.to_string(),
            "a condition on groups is HAVING: `GROUP BY k HAVING avg(v) > 1`; over all rows write `WHERE v > (SELECT avg(v) FROM t)`",
        ));
    }
    if let Some(text) = message.strip_prefix("HAVING clause references: ") {
        let first = text.split(' ').next().unwrap_or_default();
        let is_name = first.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
        let refers = match is_name {
            true => format!("HAVING refers to `{first}`, and the block"),
            false => "HAVING is a condition on groups, and the block".to_string(),
        };
        let message = format!("{refers} has neither GROUP BY nor an aggregate");
        return Some(("not_grouped", message, "filter rows with WHERE, and groups with HAVING"));
    }
    let nested = [
        ("Aggregate function calls cannot be nested: '", "an aggregate"),
        ("Aggregate function calls cannot contain window function calls: '", "an aggregate"),
        ("Window function calls cannot be nested: '", "a function with OVER"),
    ];
    for (before, outer) in nested {
        if message.starts_with(before) {
            let inner = match before.contains("indow") {
                true => "a function with OVER",
                false => "an aggregate",
            };
            let message = format!("the argument of {outer} cannot contain {inner}");
            return Some((
                "plan_error",
                message,
                "compute the inner one in a subquery: `SELECT sum(m) FROM (SELECT k, avg(v) AS m FROM t GROUP BY k)`",
            ));
        }
    }
    let of = match message.strip_prefix("Cannot create filter with non-boolean predicate '") {
        Some(text) => text.rsplit_once("' returning ")?.1,
        None => message.split_once(" must be boolean type, but got ")?.1,
    };
    let message = format!("a condition must be of type bool, not {}", spoken(of));
    Some(("type_error", message, "compare it: `x > 0`, `x <> ''`, `x IS NOT NULL`"))
}

/// Arguments of functions, of LIKE and of OVER, and rows of VALUES.
fn argument(message: &str) -> Option<Words> {
    if let Some(frame) = message.strip_prefix("Invalid window frame: ") {
        let message = match frame {
            "end bound cannot be UNBOUNDED PRECEDING" => {
                "a frame cannot end with UNBOUNDED PRECEDING"
            }
            "start bound cannot be UNBOUNDED FOLLOWING" => {
                "a frame cannot begin with UNBOUNDED FOLLOWING"
            }
            frame if frame.starts_with("frame offsets for ") => {
                "the offsets of a frame must be integers from 0 up"
            }
            _ => "a frame must begin before its end",
        };
        let hint = "`ROWS BETWEEN 2 PRECEDING AND CURRENT ROW` has three rows";
        return Some(("plan_error", message.to_string(), hint));
    }
    if let Some(text) = message.strip_prefix("Inconsistent data length across values list: got ") {
        let (count, text) = text.split_once(" values in row ")?;
        let (row, expected) = text.split_once(" but expected ")?;
        let row = row.parse::<usize>().ok()?.checked_add(1)?;
        let message = format!(
            "the rows of VALUES must have the same number of values: the first one has {expected}, row {row} has {count}"
        );
        return Some(("plan_error", message, "`NULL` is a value, too"));
    }
    if let Some(types) = message.strip_prefix("Cannot automatically convert ") {
        let (from, to) = types.split_once(" to ")?;
        let message = format!("cannot convert {} to {} here", spoken(from), spoken(to));
        return Some(("type_error", message, "`x * INTERVAL '1 day'` is an interval of x days"));
    }
    if let Some(text) = message.strip_prefix("Invalid escape character in ") {
        let (_, got) = text.split_once(", got ")?;
        let message = format!("ESCAPE is one character, not {got}");
        return Some(("plan_error", message, "write `s LIKE '50!%' ESCAPE '!'`"));
    }
    if message.starts_with("unnest() can only be applied to ") {
        let message = "`unnest` is defined for lists and structs".to_string();
        return Some((
            "type_error",
            message,
            "`unnest(string_to_array(s, ','))` has a row for each part",
        ));
    }
    if message.starts_with("unnest() requires exactly one ") {
        let message = "`unnest` takes 1 argument".to_string();
        return Some(("argument_count", message, "write several items: `unnest(a), unnest(b)`"));
    }
    if message.contains(" to grouping function is not in grouping columns") {
        let message = "the argument of `grouping` must be a key of GROUP BY".to_string();
        return Some(("not_grouped", message, "write `grouping(k) … GROUP BY ROLLUP (k)`"));
    }
    None
}

/// Subqueries with several columns.
fn subquery(message: &str) -> Option<Words> {
    const ONE: &str = "select one of them; conditions on several columns are `EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND …)`";
    let columns = message
        .strip_prefix("Too many columns! The subquery should only return one column: ")
        .or_else(|| {
            message
                .split_once("should only return one column, but found ")
                .and_then(|(_, text)| text.split_once(": "))
                .map(|(_, names)| names)
        })?;
    let names: Vec<&str> = columns.split(", ").collect();
    // DataFusion qualifies them with names that the text may not have.
    let last = |name: &&str| format!("`{}`", name.rsplit('.').next().unwrap_or(name));
    let shown: Vec<String> = names.iter().take(NAMES_MAX).map(last).collect();
    let more = if names.len() > NAMES_MAX { ", …" } else { "" };
    let message = format!(
        "a subquery in an expression has one column, and this one has {}: {}{more}",
        names.len(),
        shown.join(", ")
    );
    Some(("plan_error", message, ONE))
}

/// The most columns that a message names.
const NAMES_MAX: usize = 5;

/// True if a search may find a better position for an error.
pub(crate) fn is_rough(error: &Error) -> bool {
    let Error::Cells { code: "type_error", message, .. } = error else { return false };
    // The diagnostics of operators cover the columns among their operands.
    let mut chars = message.chars();
    chars.next() == Some('`') && chars.next().is_some_and(|c| !c.is_lowercase())
}

#[cfg(test)]
mod tests {
    use super::{error, split};

    #[test]
    fn words_are_split_outside_of_brackets() {
        assert_eq!(split("Decimal128(10, 2) IS DISTINCT FROM Utf8").len(), 5);
        assert_eq!(split("List(nullable Int64) = Int64"), ["List(nullable Int64)", "=", "Int64"]);
    }

    #[test]
    fn messages_have_types_and_numbers() {
        for (message, told) in [
            (
                "Cannot coerce arithmetic expression Utf8 + Float32 to valid types",
                "`+` is not defined for text and float32",
            ),
            (
                "Cannot infer common type for bitwise operation Utf8 BIT_XOR Int64",
                "`xor` is not defined for text and int64",
            ),
            (
                "Cannot get result type for temporal operation Timestamp(µs) + Timestamp(µs): Invalid argument error: no",
                "`+` is not defined for timestamp and timestamp",
            ),
            (
                "Cannot infer common argument type for comparison operation Boolean IS DISTINCT FROM List(Int64)",
                "`IS DISTINCT FROM` is not defined for bool and list",
            ),
            (
                "Cannot infer common argument type for comparison operation Date32 = Decimal128(10, 2)",
                "`=` is not defined for date and decimal(10, 2)",
            ),
            (
                "There isn't a common type to coerce Int64 and Utf8 in LIKE expression",
                "`LIKE` is not defined for int64 and text",
            ),
            (
                "Failed to coerce then (Int64, Boolean) and else (Utf8) to common types in CASE WHEN expression",
                "the values of CASE have no common type: int64, bool, text",
            ),
            (
                "Can not find compatible types to compare Decimal128(10, 2) with [Date32, Utf8]",
                "`IN` cannot compare decimal(10, 2) with date, text: they have no common type",
            ),
            (
                "Order by column out of bounds, specified: 5, max: 2",
                "ORDER BY 5 is out of range: the query has 2 items",
            ),
            (
                "Cannot find column with position 7 in SELECT clause. Valid columns: 1 to 1",
                "GROUP BY 7 is out of range: the query has 1 item",
            ),
            (
                "Unary operator '-' only supports signed numeric, interval and timestamp types",
                "the sign `-` is not defined for a value of this type",
            ),
            (
                "HAVING clause references: Int64(1) must appear in the GROUP BY clause",
                "HAVING is a condition on groups, and the block has neither GROUP BY nor an aggregate",
            ),
            ("LIMIT must be >= 0, '-1' was provided", "LIMIT must not be negative, and is -1"),
            ("OFFSET must be >=0, '-2' was provided", "OFFSET must not be negative, and is -2"),
            (
                "Expected LIMIT to be an integer or null, but got Utf8",
                "LIMIT must be an integer, not text",
            ),
            (
                "Too many columns! The subquery should only return one column: b.x, b.y",
                "a subquery in an expression has one column, and this one has 2: `x`, `y`",
            ),
            (
                "InSubquery should only return one column, but found 2: b.x, b.y",
                "a subquery in an expression has one column, and this one has 2: `x`, `y`",
            ),
            (
                "Inconsistent data length across values list: got 1 values in row 1 but expected 2",
                "the rows of VALUES must have the same number of values: the first one has 2, row 2 has 1",
            ),
            (
                "Cannot automatically convert Int64 to Interval(MonthDayNano)",
                "cannot convert int64 to interval here",
            ),
            (
                "Cannot create filter with non-boolean predicate 't.a' returning Int64",
                "a condition must be of type bool, not int64",
            ),
        ] {
            let found = error(message, None).map(|error| error.to_string());
            assert_eq!(found.as_deref(), Some(told), "{message}");
        }
        assert!(error("something else", None).is_none());
    }
}
