//! `SUMMARIZE`: a row for each column of a query.
//!
//! ```text
//! SELECT unnest(make_array('a', 'b')) AS column_name, unnest(make_array(min_0, min_1)) AS min, …
//! FROM (SELECT min(a)::text AS min_0, min(b)::text AS min_1, … FROM (query))
//! ```
//! So all columns are aggregated in one pass over the rows of the query.

use std::fmt::Write;

use sqlparser::ast::{Query, TableFactor};

use crate::derived::relation_of;
use crate::error::Error;
use crate::scope;

/// Maximum columns of a summary: the time to plan it grows with the square of their number.
const COLUMNS_MAX: usize = 250;

/// A column that is summarized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summarized {
    /// Its name.
    pub name: String,
    /// Its type, as the result shows it.
    pub dtype: String,
    /// The kind of its values.
    pub values: Values,
}

/// The kind of a column's values, which decides its aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Numbers have all aggregates.
    Numbers,
    /// Times have no standard deviation.
    Times,
    /// Texts and others have extremes, and are counted.
    Ordered,
    /// Values without a text: only NULLs are counted.
    Unordered,
}

/// The columns of the result that aggregates fill.
const AGGREGATES: [&str; 8] = ["min", "max", "approx_unique", "avg", "std", "q25", "q50", "q75"];

/// `SELECT * FROM (query)`.
///
/// # Errors
/// None in practice: the text around the query is fixed.
pub fn all_of(query: &Query) -> Result<Query, Error> {
    around("SELECT * FROM x", query)
}

/// The query whose rows describe the columns of `query`.
///
/// # Errors
/// `too_complex` beyond 250 columns.
pub fn summary(query: &Query, columns: &[Summarized]) -> Result<Query, Error> {
    if columns.len() > COLUMNS_MAX {
        let count = columns.len();
        return Err(Error::TooComplex {
            what: format!(
                "SUMMARIZE of {count} columns (`SUMMARIZE SELECT a, b FROM …` names some)"
            ),
            limit: COLUMNS_MAX,
            position: None,
        });
    }
    let mut inner = "SELECT count(*) AS n".to_string();
    for (i, column) in columns.iter().enumerate() {
        let name = format!("\"{}\"", column.name.replace('"', "\"\""));
        for aggregate in AGGREGATES {
            let value = value(aggregate, &name, column.values);
            // Writing to a String cannot fail.
            let _ = write!(inner, ", {value} AS {aggregate}_{i}");
        }
        let nulls = format!("100.0 * (count(*) - count({name})) / nullif(count(*), 0)");
        let _ = write!(inner, ", ({nulls})::decimal(9, 2) AS nulls_{i}");
    }
    let list = |of: &dyn Fn(usize, &Summarized) -> String| {
        let values: Vec<String> = columns.iter().enumerate().map(|(i, c)| of(i, c)).collect();
        format!("unnest(make_array({}))", values.join(", "))
    };
    let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let mut items = vec![
        format!("{} AS column_name", list(&|_, column| text(&column.name))),
        format!("{} AS column_type", list(&|_, column| text(&column.dtype))),
    ];
    for aggregate in AGGREGATES {
        items.push(format!("{} AS {aggregate}", list(&|i, _| format!("{aggregate}_{i}"))));
    }
    items.push(format!("{} AS \"count\"", list(&|_, _| "n".to_string())));
    items.push(format!("{} AS null_percentage", list(&|i, _| format!("nulls_{i}"))));
    around(&format!("SELECT {} FROM ({inner} FROM x)", items.join(", ")), query)
}

/// An aggregate of a column, as text.
fn value(aggregate: &str, name: &str, values: Values) -> String {
    let is_number = values == Values::Numbers;
    let has_mean = is_number || values == Values::Times;
    let number = if is_number { format!("{name}::double") } else { name.to_string() };
    let quantile = |part: &str| format!("quantile_cont({number}, {part})::text");
    match aggregate {
        "min" | "max" if values != Values::Unordered => format!("{aggregate}({name})::text"),
        "approx_unique" if values != Values::Unordered => format!("count(DISTINCT {name})"),
        "approx_unique" => "NULL::bigint".to_string(),
        "avg" if has_mean => format!("avg({number})::text"),
        "std" if is_number => format!("stddev({number})::text"),
        "q25" if has_mean => quantile("0.25"),
        "q50" if has_mean => quantile("0.5"),
        "q75" if has_mean => quantile("0.75"),
        _ => "NULL::text".to_string(),
    }
}

/// A query with `query` in place of its relation `x`.
fn around(text: &str, query: &Query) -> Result<Query, Error> {
    if let Some(mut outer) = crate::query_of(text)?
        && let Some(select) = scope::innermost_mut(&mut outer)
        && let Some(place) = relation_of(select)
    {
        let subquery = Box::new(query.clone());
        *place = TableFactor::Derived { lateral: false, subquery, alias: None, sample: None };
        return Ok(*outer);
    }
    Err(Error::syntax("the query cannot be summarized", None))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn names_are_quoted_and_types_decide_the_aggregates() {
        let query = crate::query_of("SELECT 1").unwrap().unwrap();
        assert_eq!(all_of(&query).unwrap().to_string(), "SELECT * FROM (SELECT 1)");
        let column = |values| Summarized { name: "a\"'".into(), dtype: "int64".into(), values };
        let of = |values| summary(&query, &[column(values)]).unwrap().to_string();
        let text = of(Values::Numbers);
        assert!(text.contains("min(\"a\"\"'\")") && text.contains("'a\"'''"), "{text}");
        assert!(text.contains("avg(") && text.ends_with("FROM (SELECT 1))"), "{text}");
        assert!(!of(Values::Times).contains("stddev") && !of(Values::Ordered).contains("avg("));
        assert!(!of(Values::Unordered).contains("max("));
        let many = vec![column(Values::Ordered); COLUMNS_MAX + 1];
        assert_eq!(summary(&query, &many).unwrap_err().code(), "too_complex");
    }
}
