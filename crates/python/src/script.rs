//! The statements of a script, before it runs.

use crate::error::exception;
use pyo3::prelude::*;
use tessera_engine::error::Error;
use tessera_engine::parameters;
use tessera_frontend::bind::{RelationRef, dotted};
use tessera_frontend::statement::Described;
use tessera_frontend::surface::{self, RelationKind};
use tessera_frontend::{Parsed, Statement};

/// A statement: its kind, its text, the names of the relations that it reads, as they are written, and true if its
/// result is tensors, unless a relation by name is rows.
type ParsedStatement = (&'static str, String, Vec<String>, bool);

/// Parses a script with its parameters, a JSON document. Kinds are `query` (which changes nothing), `info` (`SHOW`,
/// `DESCRIBE`, `EXPLAIN`) and `change`.
#[pyfunction]
#[pyo3(signature = (sql, params=None))]
pub(crate) fn parse(
    py: Python<'_>,
    sql: &str,
    params: Option<&str>,
) -> PyResult<(String, Vec<ParsedStatement>)> {
    let text = bound(sql, params).map_err(|e| exception(py, &e, sql))?;
    let described = tessera_frontend::parse(&text)
        .and_then(|parsed| parsed.iter().map(describe).collect::<Result<Vec<_>, _>>())
        .map_err(|e| exception(py, &Error::stage(e), &text))?;
    Ok((text, described))
}

fn bound(sql: &str, params: Option<&str>) -> Result<String, Error> {
    let params = params.map(serde_json::from_str).transpose();
    let params = params.map_err(|e| Error::Request { reason: format!("parameters: {e}") })?;
    parameters::bind(sql, params.as_ref())
}

fn describe(parsed: &Parsed) -> Result<ParsedStatement, tessera_frontend::Error> {
    let kind = match &parsed.statement {
        Statement::Query(_) => "query",
        Statement::Explain(_)
        | Statement::Show(_)
        | Statement::Describe(_)
        | Statement::Summarize(_) => "info",
        _ => "change",
    };
    let mut names = Vec::new();
    if let Some(query) = parsed.statement.query() {
        for relation in tessera_frontend::relations(query)? {
            match relation {
                RelationRef::Name(name) if !names.contains(&name) => names.push(name),
                _ => {}
            }
        }
    }
    if let Statement::Describe(Described::Name(name)) = &parsed.statement {
        names.push(dotted(name));
    }
    let is_tensors = match &parsed.statement {
        Statement::Query(query) => surface::kind_of_text(query) == RelationKind::Tensor,
        _ => false,
    };
    Ok((kind, parsed.text.clone(), names, is_tensors))
}
