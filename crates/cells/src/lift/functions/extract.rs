//! `regexp_extract(s, pattern[, group[, options]])`: the first match of a pattern, or a group of it, as in DuckDB.
//!
//! Without a match, and for a group that takes no part in it or does not exist, the result is the empty text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::ScalarUDF;
use regex::{Regex, RegexBuilder};

use super::OfArrays;
use super::hashes::is_text;
use crate::lift::error::spoken;

const NAME: &str = "regexp_extract";

pub(super) fn function() -> ScalarUDF {
    let syntax = "regexp_extract(s, pattern[, group[, options]])";
    let about = "The first match of a pattern, or a group of it; '' without a match. Options: 'i' ignores case, 's' lets a dot match a new line.";
    OfArrays::taking(NAME, taken, DataType::Utf8, extracted).documented(syntax, about).udf()
}

pub(super) fn taken(name: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    let wanted = [DataType::Utf8, DataType::Utf8, DataType::Int64, DataType::Utf8];
    if !(2..=4).contains(&types.len()) {
        return plan_err!("`{name}` takes a text, a pattern, a group and options");
    }
    for (at, (of, want)) in types.iter().zip(&wanted).enumerate() {
        let fits = match want {
            DataType::Int64 => of.is_integer(),
            _ => is_text(of),
        };
        if !fits && !of.is_null() {
            let (number, wanted) = (at + 1, if at == 2 { "an integer" } else { "a text" });
            let of = spoken(&of.to_string());
            return plan_err!("argument {number} of `{name}` must be {wanted}, not {of}");
        }
    }
    Ok(wanted[..types.len()].to_vec())
}

fn extracted(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [texts, patterns, more @ ..] = arrays else {
        return exec_err!("`{NAME}` takes a text and a pattern");
    };
    let (texts, patterns) = (texts.as_string::<i32>(), patterns.as_string::<i32>());
    let groups = more.first().map(|groups| groups.as_primitive::<Int64Type>());
    let options = more.get(1).map(|options| options.as_string::<i32>());
    let mut out = StringBuilder::new();
    let mut known: Option<Pattern<'_>> = None;
    for row in 0..texts.len() {
        if texts.is_null(row) || patterns.is_null(row) {
            out.append_null();
            continue;
        }
        let flags = match &options {
            Some(options) if options.is_valid(row) => options.value(row),
            _ => "",
        };
        let pattern = match known.take() {
            Some(same) if same.is(patterns.value(row), flags) => same,
            _ => Pattern::new(NAME, patterns.value(row), flags)?,
        };
        let group = match &groups {
            Some(groups) if groups.is_null(row) => None,
            Some(groups) => Some(groups.value(row)),
            None => Some(0),
        };
        out.append_value(pattern.part(texts.value(row), group)?);
        known = Some(pattern);
    }
    Ok(Arc::new(out.finish()))
}

/// A pattern with its options.
pub(super) struct Pattern<'a> {
    text: &'a str,
    flags: &'a str,
    pub(super) regex: Regex,
}

impl<'a> Pattern<'a> {
    /// The pattern of a call of `function`.
    pub(super) fn new(function: &str, text: &'a str, flags: &'a str) -> Result<Self> {
        let mut builder = RegexBuilder::new(text);
        for flag in flags.chars() {
            match flag {
                'c' => builder.case_insensitive(false),
                'i' => builder.case_insensitive(true),
                's' => builder.dot_matches_new_line(true),
                other => {
                    return exec_err!(
                        "`{function}` has no option '{other}'; its options are 'c', 'i' and 's'"
                    );
                }
            };
        }
        match builder.build() {
            Ok(regex) => Ok(Pattern { text, flags, regex }),
            Err(e) => {
                let shown = e.to_string();
                let reason = shown.lines().last().unwrap_or_default();
                let reason = reason.trim_start_matches("error: ");
                exec_err!("`{function}`: the pattern '{text}' cannot be read: {reason}")
            }
        }
    }

    /// True if this is the pattern of that text and those options.
    pub(super) fn is(&self, text: &str, flags: &str) -> bool {
        self.text == text && self.flags == flags
    }

    /// The group of the first match; without a group, nothing.
    fn part<'t>(&self, text: &'t str, group: Option<i64>) -> Result<&'t str> {
        let Some(group) = group else { return Ok("") };
        if group == 0 {
            return Ok(self.regex.find(text).map_or("", |found| found.as_str()));
        }
        let Ok(group) = usize::try_from(group) else {
            return exec_err!("`{NAME}`: the group {group} is negative");
        };
        let found = self.regex.captures(text).and_then(|found| found.get(group));
        Ok(found.map_or("", |part| part.as_str()))
    }
}
