//! Resolves names qualified by a relation, if the relation's columns are known.
//!
//! DataFusion reads `l.lab` as a field of a column `l` if the relation `l` has no column `lab`; this module
//! decides the meaning.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tessera_frontend::walk::walk_mut;

use arrow::datatypes::DataType;
use datafusion::logical_expr::TableSource;
use sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, TableFactor, TableWithJoins, VisitMut,
    VisitorMut,
};

use tessera_frontend::error::{Error, Position, nearest};

pub(super) struct Known {
    name: String,
    columns: Vec<String>,
    lower: BTreeSet<String>,
    records: Vec<String>,
    /// Alternative names of columns, and the columns.
    also: Vec<(Arc<str>, Arc<str>)>,
}

impl Known {
    /// The relation called `name` in a block; `also` has alternative names of its columns.
    pub(super) fn new(
        name: String,
        source: &dyn TableSource,
        mut also: Vec<(Arc<str>, Arc<str>)>,
    ) -> Self {
        let schema = source.schema();
        let columns: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
        let is_record = |t: &DataType| matches!(t, DataType::Struct(_) | DataType::Map(..));
        let records = schema.fields().iter().filter(|f| is_record(f.data_type()));
        let records = records.map(|f| f.name().clone()).collect();
        let lower = columns.iter().map(|column| column.to_ascii_lowercase()).collect();
        let exact: BTreeSet<&str> = columns.iter().map(String::as_str).collect();
        also.retain(|(other, _)| !exact.contains(&**other));
        Known { name, columns, lower, records, also }
    }

    /// A relation whose first column has the elements of lists, which may be records; `function` is another name of it.
    pub(super) fn of_elements(name: &str, columns: Vec<String>, function: &str) -> Self {
        let records: Vec<String> = columns.iter().take(1).cloned().collect();
        let also = records.iter().map(|own| (Arc::from(function), Arc::from(own.as_str())));
        let mut also: Vec<(Arc<str>, Arc<str>)> = also.collect();
        also.retain(|(other, own)| !other.eq_ignore_ascii_case(own));
        let lower = columns.iter().map(|column| column.to_ascii_lowercase()).collect();
        Known { name: name.to_string(), columns, lower, records, also }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The column with that alternative name.
    fn other(&self, name: &str) -> Option<&str> {
        let found = self.also.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, own)| &**own)
    }

    fn has(&self, column: &str) -> bool {
        self.lower.contains(&column.to_ascii_lowercase())
    }
}

/// Adds aliases to items that use an alternative name of a column, so that they keep it.
pub(super) fn keep_names(select: &mut Select, known: &[Known]) {
    if known.iter().all(|relation| relation.also.is_empty()) {
        return;
    }
    for item in &mut select.projection {
        let SelectItem::UnnamedExpr(expr) = item else { continue };
        let name = match &*expr {
            Expr::Identifier(name) => name,
            Expr::CompoundIdentifier(parts) => match parts.last() {
                Some(name) => name,
                None => continue,
            },
            _ => continue,
        };
        let alias = Ident::with_quote('"', name.value.clone());
        let is_other = |relation: &Known| relation.other(&name.value).is_some();
        if known.iter().any(is_other) {
            let expr = std::mem::replace(expr, tessera_frontend::ast::null());
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
    }
}

/// Replaces alternative names by columns in a part of a block.
///
/// # Errors
/// `unknown_name` for `relation.column` without such a column.
pub(super) fn resolve<T: VisitMut>(part: &mut T, known: &[Known]) -> ControlFlow<Error> {
    if known.is_empty() {
        return ControlFlow::Continue(());
    }
    walk_mut(part, &mut Resolve { known, inner: Vec::new() })
}

struct Resolve<'a> {
    known: &'a [Known],
    /// For each open inner query, the relations that it defines itself.
    inner: Vec<BTreeSet<String>>,
}

impl Resolve<'_> {
    fn is_hidden(&self, relation: &str) -> bool {
        let name = relation.to_lowercase();
        self.inner.iter().any(|names| names.contains(&name))
    }

    fn qualified(&self, relation: &Ident, column: &mut Ident) -> Option<Error> {
        let mut called = self.known.iter().filter(|known| known.is_called(&relation.value));
        let (Some(known), None) = (called.next(), called.next()) else { return None };
        if self.is_hidden(&relation.value) || known.has(&column.value) {
            return None;
        }
        if let Some(own) = known.other(&column.value) {
            column.value = own.to_string();
            return None;
        }
        // A field of a column with the relation's name.
        let is_record = |known: &Known| {
            known.records.iter().any(|record| record.eq_ignore_ascii_case(&relation.value))
        };
        if self.known.iter().any(is_record) {
            return None;
        }
        let words: Vec<&str> = known.columns.iter().map(String::as_str).collect();
        let near = nearest(&column.value, &words);
        let near = near.map_or(words, |near| vec![near]).into_iter();
        Some(Error::UnknownName {
            kind: "column",
            name: format!("{}.{}", relation.value, column.value),
            candidates: near.map(|near| format!("{}.{near}", relation.value)).collect(),
            position: Position::of_span(column.span),
        })
    }

    /// Replaces a name without a relation; the new one has the relation if several have such a column.
    fn alone(&self, column: &mut Ident) -> Option<Expr> {
        if !self.inner.is_empty() || self.known.iter().any(|known| known.has(&column.value)) {
            return None;
        }
        let other = |known: &Known| known.other(&column.value).map(str::to_string);
        let mut found = self.known.iter().filter_map(|known| Some((known, other(known)?)));
        let (Some((relation, own)), None) = (found.next(), found.next()) else { return None };
        let is_unique = self.known.iter().filter(|known| known.has(&own)).count() == 1;
        column.value = own;
        if is_unique {
            return None;
        }
        let (value, span) = (relation.name.clone(), column.span);
        let relation = Ident { value, quote_style: Some('"'), span };
        Some(Expr::CompoundIdentifier(vec![relation, column.clone()]))
    }
}

impl VisitorMut for Resolve<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let mut names = BTreeSet::new();
        blocks(&query.body, &mut |block| {
            block.from.iter().for_each(|from| relations(from, &mut names));
        });
        self.inner.push(names);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.inner.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match expr {
            Expr::Identifier(column) => {
                if let Some(qualified) = self.alone(column) {
                    *expr = qualified;
                }
            }
            Expr::CompoundIdentifier(parts) => {
                if let [relation, column] = parts.as_mut_slice()
                    && let Some(error) = self.qualified(relation, column)
                {
                    return ControlFlow::Break(error);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn blocks(body: &SetExpr, f: &mut dyn FnMut(&Select)) {
    match body {
        SetExpr::Select(select) => f(select),
        SetExpr::Query(inner) => blocks(&inner.body, f),
        SetExpr::SetOperation { left, right, .. } => {
            blocks(left, f);
            blocks(right, f);
        }
        _ => {}
    }
}

/// The names of relations, in lower case.
fn relations(from: &TableWithJoins, out: &mut BTreeSet<String>) {
    for factor in std::iter::once(&from.relation).chain(from.joins.iter().map(|j| &j.relation)) {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias: None } => {
                relations(table_with_joins, out);
            }
            TableFactor::Table { name, alias, .. } => {
                let own = name.0.last().and_then(|part| part.as_ident());
                let name = alias.as_ref().map(|alias| &alias.name).or(own);
                out.extend(name.map(|name| name.value.to_lowercase()));
            }
            TableFactor::Derived { alias: Some(alias), .. }
            | TableFactor::UNNEST { alias: Some(alias), .. }
            | TableFactor::NestedJoin { alias: Some(alias), .. } => {
                out.insert(alias.name.value.to_lowercase());
            }
            _ => {}
        }
    }
}
