//! `TABLESAMPLE`. Each row has a number from 0 to 1 that follows from its place in the relation and the seed, so a sample
//! with a seed has the same rows on any number of threads and workers.

use std::fmt;

use sqlparser::ast::{
    Expr, Ident, Select, Spanned, TableAlias, TableFactor, TableSample, TableSampleKind,
    TableSampleUnit, Value,
};
use sqlparser::tokenizer::Span;

use crate::ast::{self, Relation};
use crate::derived::{derived, relation_of};
use crate::error::{BindError, Error, Position};
use crate::scope;

/// The function of a row's number and a seed; no text can produce its name.
pub const DRAW: &str = "tessera_draw";

/// The subquery that replaces a relation with `TABLESAMPLE`; `None` for other relations.
///
/// # Errors
/// `unsupported` for samples that are neither a part nor a number of rows, `invalid_argument` for such numbers.
pub(super) fn rewritten(factor: &mut TableFactor) -> Result<Option<TableFactor>, Error> {
    let span = factor.span();
    let (TableFactor::Table { sample, .. } | TableFactor::Derived { sample, .. }) = factor else {
        return Ok(None);
    };
    let mut select = match &*sample {
        Some(TableSampleKind::BeforeTableAlias(it) | TableSampleKind::AfterTableAlias(it)) => {
            match block(it, span)? {
                Some(select) => select,
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    *sample = None;
    let alias = name_of(factor).map(|name| TableAlias {
        explicit: true,
        name,
        columns: Vec::new(),
        at: None,
    });
    let Some(place) = relation_of(&mut select) else { return Ok(None) };
    *place = factor.clone();
    Ok(Some(derived(select, alias)))
}

/// The name that a block uses for a relation.
fn name_of(factor: &TableFactor) -> Option<Ident> {
    match factor {
        TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. } => Some(alias.name.clone()),
        other => match ast::relation(other) {
            Relation::Name { name, .. } => name.0.last()?.as_ident().cloned(),
            _ => None,
        },
    }
}

/// A block that keeps a sample of the relation `x`.
fn block(sample: &TableSample, span: Span) -> Result<Option<Select>, Error> {
    let TableSample { name: method, quantity: Some(quantity), bucket: None, offset: None, .. } =
        sample
    else {
        return Err(Error::unsupported("TABLESAMPLE of buckets", Position::of_span(span))
            .with_hint("write `TABLESAMPLE (10 PERCENT)` or `TABLESAMPLE (10 ROWS)`"));
    };
    let refused = |what: &dyn fmt::Display, reason: &str| Error::Bind {
        error: BindError::InvalidArgument {
            function: "TABLESAMPLE".into(),
            argument: format!("`{what}`"),
            reason: reason.into(),
        },
        position: Position::of_span(span),
    };
    let seed = match &sample.seed {
        Some(seed) => match &seed.value.value {
            Value::Number(text, _) if text.parse::<i64>().is_ok() => text.clone(),
            _ => return Err(refused(&seed.value, "must be an integer")),
        },
        // Fixed for the statement, but different for each of its samples.
        None => format!("epoch_us(now()) + {}", span.start.line * 100_000 + span.start.column),
    };
    let number = match &quantity.value {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    // As in the standard, a method takes percents; as in DuckDB, a number without one is of rows.
    let is_part = match &quantity.unit {
        Some(unit) => *unit == TableSampleUnit::Percent,
        None => method.is_some(),
    };
    let text = if is_part {
        let is_percent = |text: &String| text.parse().is_ok_and(|p| (0.0..=100.0).contains(&p));
        let Some(percent) = number.filter(is_percent) else {
            return Err(refused(&quantity.value, "must be a number from 0 to 100"));
        };
        format!("SELECT * FROM x QUALIFY {DRAW}(row_number() OVER (), {seed}) * 100 < {percent}")
    } else {
        let Some(rows) = number.filter(|text| text.parse::<u32>().is_ok()) else {
            return Err(refused(&quantity.value, "must be a number of rows of at most 32 bits"));
        };
        // The last window puts the rows back into their order.
        format!(
            "SELECT * EXCLUDE (tessera_row, tessera_place) FROM (SELECT *, row_number() OVER (ORDER BY {DRAW}(tessera_row, {seed}), tessera_row) AS tessera_place FROM (SELECT *, row_number() OVER () AS tessera_row FROM x) tessera_rows) tessera_places WHERE tessera_place <= {rows} QUALIFY row_number() OVER (ORDER BY tessera_row) > 0"
        )
    };
    let mut query = crate::query_of(&text)?;
    Ok(query.as_deref_mut().and_then(scope::innermost_mut).cloned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use crate::error::Error;

    fn of(text: &str) -> Result<String, Error> {
        Ok(crate::query_of(&format!("SELECT * FROM {text}"))?.unwrap().to_string())
    }

    #[test]
    fn samples_are_conditions_on_numbers_of_rows() {
        let part = "SELECT * FROM (SELECT * FROM t QUALIFY tessera_draw(row_number() OVER (), 5) * 100 < 12.5) AS t";
        for text in [
            "t TABLESAMPLE 12.5 PERCENT REPEATABLE (5)",
            "t TABLESAMPLE BERNOULLI (12.5) REPEATABLE (5)",
        ] {
            assert_eq!(of(text).unwrap(), part, "{text}");
        }
        let rows = of("t AS u TABLESAMPLE (10 ROWS)").unwrap();
        assert!(rows.contains("<= 10 ") && rows.contains("FROM t AS u) "), "{rows}");
        assert!(rows.ends_with(") > 0) AS u"), "{rows}");
        assert_eq!(of("t AS u TABLESAMPLE 10").unwrap(), rows);
        assert!(of("(SELECT * FROM t) q TABLESAMPLE (10 ROWS)").unwrap().ends_with(") AS q"));
        for text in [
            "t TABLESAMPLE 101 PERCENT",
            "t TABLESAMPLE (1.5 ROWS)",
            "t TABLESAMPLE (n ROWS)",
            "t TABLESAMPLE (1 ROWS) REPEATABLE (0.5)",
            "t TABLESAMPLE (BUCKET 1 OUT OF 10)",
        ] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
