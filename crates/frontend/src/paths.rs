//! Rewrites paths in the text of a stored query, which may be read from another directory.

use crate::walk::walk;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{Expr, FunctionArg, FunctionArgExpr, TableFactor, Value, Visitor};
use sqlparser::tokenizer::{Location, Span, Token};

use crate::ast::{self, Relation};
use crate::error::Error;
use crate::{Statement, limits, tokens};

/// Returns the text of a query with paths and URLs in `FROM` replaced. `replace` returns `None` to leave one unchanged.
///
/// # Errors
/// The errors of the parser.
pub fn replaced(text: &str, replace: &dyn Fn(&str) -> Option<String>) -> Result<String, Error> {
    let mut places = PathStarts(BTreeSet::new());
    for parsed in crate::parse(text)? {
        if let Statement::Query(query) = &parsed.statement {
            limits::with_stack(|| {
                let _ = walk(query, &mut places);
            });
        }
    }
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    for (token, span, bytes) in tokens::placed(text)? {
        let Token::SingleQuotedString(url) = &token else { continue };
        if !places.0.contains(&key(span.start)) {
            continue;
        }
        let Some(new) = replace(url) else { continue };
        out.push_str(&text[copied..bytes.start]);
        out.push_str(&format!("'{}'", new.replace('\'', "''")));
        copied = bytes.end;
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

fn key(at: Location) -> (u64, u64) {
    (at.line, at.column)
}

/// Start positions of paths and URLs.
struct PathStarts(BTreeSet<(u64, u64)>);

impl PathStarts {
    fn add(&mut self, span: Span) {
        self.0.insert(key(span.start));
    }
}

impl Visitor for PathStarts {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match ast::relation(factor) {
            Relation::Url { url, .. } => self.add(url.span),
            Relation::Function { name, args, .. }
                if name.to_string().to_ascii_lowercase().starts_with("read_") =>
            {
                if let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))) = args.first() {
                    self.literal(expr);
                }
            }
            Relation::Cells { expr, .. } => self.literal(expr),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl PathStarts {
    fn literal(&mut self, expr: &Expr) {
        match expr {
            Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)) => {
                self.add(value.span);
            }
            Expr::Nested(inner) => self.literal(inner),
            Expr::Array(list) => list.elem.iter().for_each(|one| self.literal(one)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::replaced;

    #[test]
    fn only_sources_are_paths() {
        let absolute = |url: &str| (!url.contains("://")).then(|| format!("/d/{url}"));
        for (text, wanted) in [
            (
                "SELECT 'a.zarr' AS x, é FROM 'a.zarr' a JOIN 's3://b/c.zarr' USING (lat) WHERE x = 'a.zarr'",
                "SELECT 'a.zarr' AS x, é FROM '/d/a.zarr' a JOIN 's3://b/c.zarr' USING (lat) WHERE x = 'a.zarr'",
            ),
            (
                "WITH a AS (SELECT v FROM read_zarr('it''s.zarr', decode_cf => false)) SELECT v[t => 'x'] FROM a",
                "WITH a AS (SELECT v FROM read_zarr('/d/it''s.zarr', decode_cf => false)) SELECT v[t => 'x'] FROM a",
            ),
            (
                "SELECT count(*) FROM CELLS('a.zarr')\n WHERE v > (SELECT max(v) FROM 'b.npy')",
                "SELECT count(*) FROM CELLS('/d/a.zarr')\n WHERE v > (SELECT max(v) FROM '/d/b.npy')",
            ),
        ] {
            assert_eq!(replaced(text, &absolute).unwrap(), wanted);
        }
    }
}
