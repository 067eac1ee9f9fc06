//! The functions over rows, for SHOW FUNCTIONS: names, arguments and descriptions as the session has them.

use std::collections::BTreeMap;

use datafusion::execution::SessionState;
use datafusion::logical_expr::Documentation;
use tessera_frontend::error::Error;

use super::names::{RENAMED, WRITTEN};
use crate::rows::RowsState;

/// A function that cell blocks and tables have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsFunction {
    /// Its name.
    pub name: String,
    /// `scalar`, `aggregate`, `window` and `table`: a function may be several of them.
    pub kinds: Vec<&'static str>,
    /// A call with its arguments.
    pub signature: String,
    /// A sentence about its result; empty if nothing describes it.
    pub about: String,
}

/// Aggregates that are rewritten to others.
const AGGREGATES: [(&str, &str, &str); 8] = [
    ("arg_max", "arg_max(x, y[, n])", "The x of the row with the greatest y, or a list of n."),
    ("arg_min", "arg_min(x, y[, n])", "The x of the row with the smallest y, or a list of n."),
    ("count_if", "count_if(condition)", "The number of rows for which a condition is true."),
    ("countif", "countif(condition)", "The same as `count_if`."),
    ("group_concat", "group_concat(s[, separator])", "The same as `string_agg`."),
    ("listagg", "listagg(s[, separator])", "The same as `string_agg`."),
    ("max_by", "max_by(x, y[, n])", "The same as `arg_max`."),
    ("min_by", "min_by(x, y[, n])", "The same as `arg_min`."),
];

/// Functions that are rewritten to others.
const SCALARS: [(&str, &str, &str); 11] = [
    ("century", "century(t)", "The century of a time: 2001 to 2100 are those of the 21st."),
    ("date_add", "date_add(t, interval)", "A time moved by an interval."),
    ("dayofmonth", "dayofmonth(t)", "The same as `day`."),
    ("decade", "decade(t)", "The year of a time divided by 10."),
    ("if", "if(condition, x, y)", "x where a condition is true, otherwise y."),
    ("isodow", "isodow(t)", "Day of the week, Monday is 1 and Sunday 7."),
    ("isoyear", "isoyear(t)", "The year of the ISO week of a time."),
    (
        "millennium",
        "millennium(t)",
        "The millennium of a time: 2001 to 3000 are those of the third.",
    ),
    (
        "regexp_full_match",
        "regexp_full_match(s, pattern)",
        "True if a constant pattern matches all of a text.",
    ),
    ("weekday", "weekday(t)", "Day of the week, Sunday is 0 and Saturday 6."),
    ("xor", "xor(x, y)", "Bitwise exclusive or of integers."),
];

/// Functions of FROM.
const TABLES: [(&str, &str, &str); 7] = [
    (
        "generate_series",
        "generate_series(start, stop[, step])",
        "Integers, or times by an INTERVAL, up to their stop.",
    ),
    (
        "range",
        "range(start, stop[, step])",
        "Integers, or times by an INTERVAL, that end before their stop.",
    ),
    ("read_arrow", "read_arrow('file')", "The rows of Arrow files."),
    ("read_csv", "read_csv('file', header => true, delimiter => ',')", "The rows of CSV files."),
    ("read_json", "read_json('file')", "The rows of files with JSON objects."),
    ("read_parquet", "read_parquet('file')", "The rows of Parquet files."),
    (
        "unnest",
        "unnest(list)",
        "The elements of a list, in FROM also of a column of a relation before it.",
    ),
];

impl RowsState {
    /// The functions that cell blocks and tables have, by name.
    ///
    /// # Errors
    /// DataFusion's state cannot be made.
    pub fn functions(&self) -> Result<Vec<RowsFunction>, Error> {
        Ok(functions(self.get()?))
    }
}

fn functions(state: &SessionState) -> Vec<RowsFunction> {
    let mut all = All::default();
    for (name, f) in sorted(state.scalar_functions()) {
        all.add("scalar", name, f.name(), f.documentation());
    }
    for (name, f) in sorted(state.higher_order_functions()) {
        all.add("scalar", name, f.name(), f.documentation());
    }
    for (name, f) in sorted(state.aggregate_functions()) {
        all.add("aggregate", name, f.name(), f.documentation());
    }
    for (name, f) in sorted(state.window_functions()) {
        all.add("window", name, f.name(), f.documentation());
    }
    for (kind, functions) in
        [("scalar", &SCALARS[..]), ("aggregate", &AGGREGATES), ("table", &TABLES)]
    {
        for (name, signature, about) in functions {
            all.insert(kind, name, signature.to_string(), about.to_string());
        }
    }
    for (ours, own) in RENAMED {
        let Some(known) = all.0.get(own).cloned() else { continue };
        for kind in known.kinds {
            let signature = known.signature.replacen(own, ours, 1);
            all.insert(kind, ours, signature, format!("The same as `{own}`."));
        }
    }
    for (name, signature, about) in WRITTEN {
        all.0.remove(name);
        all.insert("scalar", name, signature.to_string(), about.to_string());
    }
    all.0.into_values().collect()
}

fn sorted<T>(functions: &std::collections::HashMap<String, T>) -> Vec<(&String, &T)> {
    let mut all: Vec<(&String, &T)> = functions.iter().collect();
    all.sort_by_key(|(name, _)| *name);
    all
}

#[derive(Default)]
struct All(BTreeMap<String, RowsFunction>);

impl All {
    /// Adds a function that is called `name`, and `own` by itself.
    fn add(
        &mut self,
        kind: &'static str,
        name: &str,
        own: &str,
        documentation: Option<&Documentation>,
    ) {
        let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_word || name.starts_with("tessera_") {
            return;
        }
        let signature = match documentation {
            Some(known) => line(&known.syntax_example).replacen(own, name, 1),
            None => format!("{name}(…)"),
        };
        let about = match documentation {
            _ if name != own => format!("The same as `{own}`."),
            Some(known) => sentence(&known.description),
            None => String::new(),
        };
        self.insert(kind, name, signature, about);
    }

    fn insert(&mut self, kind: &'static str, name: &str, signature: String, about: String) {
        match self.0.get_mut(name) {
            Some(known) => known.kinds.push(kind),
            None => {
                let (kinds, own) = (vec![kind], name.to_string());
                let function = RowsFunction { name: own, kinds, signature, about };
                self.0.insert(name.to_string(), function);
            }
        }
    }
}

fn line(text: &str) -> String {
    text.trim().lines().next().unwrap_or_default().trim().to_string()
}

/// The first sentence, with its full stop.
fn sentence(text: &str) -> String {
    let line = line(text);
    let end = line.find(". ").unwrap_or(line.len());
    let first = line[..end].trim_end_matches(['.', ':']);
    if first.is_empty() { String::new() } else { format!("{first}.") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::lift::session_state;

    #[test]
    fn functions_over_rows_are_listed_with_their_arguments() {
        let all = functions(&session_state(1 << 30).unwrap());
        let of = |name: &str| all.iter().find(|f| f.name == name).unwrap();
        for (name, kinds, signature) in [
            ("md5", &["scalar"][..], "md5(s)"),
            ("regexp_extract", &["scalar"], "regexp_extract(s, pattern[, group[, options]])"),
            ("mode", &["aggregate"], "mode(x)"),
            ("date_diff", &["scalar"], "date_diff(part, a, b)"),
            ("to_days", &["scalar"], "to_days(n)"),
            ("unnest", &["table"], "unnest(list)"),
            ("list_sum", &["scalar"], "list_sum(list)"),
            ("list_first", &["scalar"], "list_first(list)"),
            ("length", &["scalar"], "length(x)"),
        ] {
            let found = of(name);
            assert_eq!((&found.kinds[..], found.signature.as_str()), (kinds, signature));
            assert!(found.about.ends_with('.'), "{found:?}");
        }
        assert_eq!(of("range").kinds, ["scalar", "table"]);
        assert_eq!(of("row_number").kinds, ["window"]);
        assert_eq!(of("quantile_disc").about, "The same as `percentile_disc`.");
        assert_eq!(of("list").about, "The same as `array_agg`.");
        for name in ["sum", "avg", "min", "stddev", "date_part", "string_agg", "concat"] {
            assert!(!of(name).about.is_empty(), "{name}");
        }
        assert!(all.is_sorted_by(|a, b| a.name < b.name));
        assert!(all.iter().all(|f| !f.name.starts_with("tessera")));
    }
}
