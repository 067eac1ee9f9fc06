//! `regexp_extract_all(s, pattern[, group[, options]])` and `regexp_split_to_array(s, pattern[, options])`: all matches of
//! a pattern, and the parts of a text between them, as in DuckDB.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::ScalarUDF;
use regex::Regex;

use super::OfArrays;
use super::extract::{Pattern, taken};
use super::hashes::is_text;

const ALL: &str = "regexp_extract_all";
const SPLIT: &str = "regexp_split_to_array";

/// The functions, whose lists may be far larger than their texts.
pub(super) fn functions() -> [ScalarUDF; 2] {
    let lists = DataType::new_list(DataType::Utf8, true);
    let all = OfArrays::taking(ALL, taken, lists.clone(), extracted);
    let split = OfArrays::taking(SPLIT, taken_by_split, lists, split)
        .alias("string_split_regex")
        .alias("str_split_regex");
    let about = "All matches of a pattern, or a group of each, as a list.";
    let syntax = "regexp_extract_all(s, pattern[, group[, options]])";
    [
        all.documented(syntax, about).udf(),
        split
            .documented(
                "regexp_split_to_array(s, pattern[, options])",
                "The parts of a text between the matches of a pattern, as a list.",
            )
            .udf(),
    ]
}

fn taken_by_split(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    let (pair, options) = types.split_at(types.len().min(2));
    match options {
        [] => taken(name, pair),
        [of] if is_text(of) || of.is_null() => {
            let mut all = taken(name, pair)?;
            all.push(DataType::Utf8);
            Ok(all)
        }
        _ => plan_err!("`{name}` takes a text, a pattern and options, which are a text"),
    }
}

/// The pattern of a row, which is that of the row before if its text is the same.
fn pattern_of<'a>(
    function: &str,
    known: Option<Pattern<'a>>,
    text: &'a str,
    flags: &'a str,
) -> Result<Pattern<'a>> {
    match known {
        Some(same) if same.is(text, flags) => Ok(same),
        _ => Pattern::new(function, text, flags),
    }
}

/// The text of a row, or an empty one for NULL and without the argument.
fn text_of(arrays: &[ArrayRef], argument: usize, row: usize) -> &str {
    match arrays.get(argument).map(|texts| texts.as_string::<i32>()) {
        Some(texts) if texts.is_valid(row) => texts.value(row),
        _ => "",
    }
}

fn extracted(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [texts, patterns, more @ ..] = arrays else {
        return exec_err!("`{ALL}` takes a text and a pattern");
    };
    let (texts, patterns) = (texts.as_string::<i32>(), patterns.as_string::<i32>());
    let groups = more.first().map(|groups| groups.as_primitive::<Int64Type>());
    let mut out = ListBuilder::new(StringBuilder::new());
    let mut known = None;
    for row in 0..texts.len() {
        let has_group = groups.is_none_or(|groups| groups.is_valid(row));
        if texts.is_null(row) || patterns.is_null(row) || !has_group {
            out.append_null();
            continue;
        }
        let flags = text_of(arrays, 3, row);
        let pattern = pattern_of(ALL, known.take(), patterns.value(row), flags)?;
        let group = groups.map_or(0, |groups| groups.value(row));
        let last = pattern.regex.captures_len() as i64 - 1;
        if group > last {
            return exec_err!("`{ALL}`: the pattern has {last} groups, and the group is {group}");
        }
        let text = texts.value(row);
        // A negative group has no match.
        match usize::try_from(group) {
            Ok(0) => {
                let found = pattern.regex.find_iter(text);
                found.for_each(|found| out.values().append_value(found.as_str()));
            }
            Ok(group) => {
                for found in pattern.regex.captures_iter(text) {
                    out.values().append_option(found.get(group).map(|part| part.as_str()));
                }
            }
            Err(_) => {}
        }
        out.append(true);
        known = Some(pattern);
    }
    Ok(Arc::new(out.finish()))
}

fn split(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [texts, patterns, ..] = arrays else {
        return exec_err!("`{SPLIT}` takes a text and a pattern");
    };
    let (texts, patterns) = (texts.as_string::<i32>(), patterns.as_string::<i32>());
    let mut out = ListBuilder::new(StringBuilder::new());
    let mut known = None;
    for row in 0..texts.len() {
        if texts.is_null(row) {
            out.append_null();
            continue;
        }
        let text = texts.value(row);
        if patterns.is_null(row) {
            out.values().append_value(text);
        } else {
            let flags = text_of(arrays, 2, row);
            let pattern = pattern_of(SPLIT, known.take(), patterns.value(row), flags)?;
            parts(text, &pattern.regex, |part| out.values().append_value(part));
            known = Some(pattern);
        }
        out.append(true);
    }
    Ok(Arc::new(out.finish()))
}

/// The parts between matches. A match is looked for in the rest behind the one before; one of no characters at the start
/// of the rest ends behind the next character.
fn parts<'t>(text: &'t str, pattern: &Regex, mut each: impl FnMut(&'t str)) {
    let mut rest = text;
    while !rest.is_empty()
        && let Some(found) = pattern.find(rest)
    {
        let mut part = found.range();
        if part.end == 0 {
            let next = rest.chars().next().map_or(0, char::len_utf8);
            if next == rest.len() {
                break;
            }
            part = next..next;
        }
        each(&rest[..part.start]);
        rest = &rest[part.end..];
    }
    each(rest);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Int64Array, StringArray};

    /// The parts are those of DuckDB.
    #[test]
    fn texts_are_split_at_matches() {
        for (text, pattern, want) in [
            ("a1b22c", "[0-9]+", "a|b|c"),
            ("abc", "", "a|b|c"),
            ("abc", "x*", "a|b|c"),
            ("xabx", "x*", "|a|b||"),
            ("", "x", ""),
            ("1a1", "1", "|a|"),
            ("äö", "", "ä|ö"),
            ("ab", "$", "ab|"),
            ("ab", "b*", "a||"),
        ] {
            let mut got = Vec::new();
            parts(text, &Regex::new(pattern).unwrap(), |part| got.push(part));
            assert_eq!(got.join("|"), want, "{text} {pattern}");
        }
    }

    #[test]
    fn all_matches_and_their_groups() {
        let of = |text: &str, pattern: &str, group: i64| {
            let texts: Vec<ArrayRef> = vec![
                Arc::new(StringArray::from(vec![text])),
                Arc::new(StringArray::from(vec![pattern])),
                Arc::new(Int64Array::from(vec![group])),
            ];
            let lists = extracted(&texts)?;
            let list = lists.as_list::<i32>().value(0);
            let words = list.as_string::<i32>().iter();
            Ok::<_, datafusion::common::DataFusionError>(
                words.map(|word| word.unwrap_or("NULL").to_string()).collect::<Vec<_>>().join("|"),
            )
        };
        assert_eq!(of("abacad", "a.", 0).unwrap(), "ab|ac|ad");
        assert_eq!(of("abacad", "a(.)", 1).unwrap(), "b|c|d");
        assert_eq!(of("abacad", "(a)(z)?", 2).unwrap(), "NULL|NULL|NULL");
        assert_eq!(of("abc", "x*", 0).unwrap(), "|||");
        assert_eq!(of("abc", "a", -1).unwrap(), "");
        assert!(of("abc", "a", 1).is_err() && of("abc", "(", 0).is_err());
    }
}
