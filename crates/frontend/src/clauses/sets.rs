//! `CUBE` and `ROLLUP` whose items are several columns in parentheses.

use sqlparser::ast::{Expr, Spanned};

use crate::error::{Error, Position};

/// Upper bound on the items of such a CUBE: its sets are 2 to that power.
const CUBE_MAX: usize = 12;

/// Writes such a key of GROUP BY as GROUPING SETS.
///
/// # Errors
/// `too_complex` for a CUBE of more items.
pub(super) fn expand(key: &mut Expr) -> Result<(), Error> {
    let (items, is_cube) = match &*key {
        Expr::Cube(items) => (items, true),
        Expr::Rollup(items) => (items, false),
        _ => return Ok(()),
    };
    if items.iter().all(|item| item.len() == 1) {
        return Ok(());
    }
    let count = items.len();
    if is_cube && count > CUBE_MAX {
        return Err(Error::TooComplex {
            what: format!("CUBE has {count} items"),
            limit: CUBE_MAX,
            position: Position::of_span(key.span()),
        });
    }
    let set = |is_in: &dyn Fn(usize) -> bool| {
        let mut set: Vec<Expr> = Vec::new();
        let chosen = items.iter().enumerate().filter(|(at, _)| is_in(*at));
        for column in chosen.flat_map(|(_, item)| item) {
            if !set.contains(column) {
                set.push(column.clone());
            }
        }
        set
    };
    let sets = match is_cube {
        true => (0..1u32 << count)
            .rev()
            .map(|chosen| set(&|at| (chosen >> (count - 1 - at)) & 1 == 1))
            .collect(),
        false => (0..=count).rev().map(|first| set(&|at| at < first)).collect(),
    };
    *key = Expr::GroupingSets(sets);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    #[test]
    fn items_of_several_columns_become_sets() {
        for (written, want) in [
            ("ROLLUP ((a, b), c)", "GROUPING SETS ((a, b, c), (a, b), ())"),
            ("CUBE ((a, b), c)", "GROUPING SETS ((a, b, c), (a, b), (c), ())"),
            ("CUBE ((a, b), (b, c))", "GROUPING SETS ((a, b, c), (a, b), (b, c), ())"),
            ("CUBE (a, c)", "CUBE (a, c)"),
        ] {
            let query = crate::query_of(&format!("SELECT 1 FROM t GROUP BY {written}"));
            let text = query.unwrap().unwrap().to_string();
            assert!(text.ends_with(&format!("GROUP BY {want}")), "{text}");
        }
        let long = format!("SELECT 1 FROM t GROUP BY CUBE ((a, b){})", ", c".repeat(12));
        assert!(crate::parse(&long).is_err());
    }
}
