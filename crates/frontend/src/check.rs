//! Rejects syntax that sqlparser accepts but no later stage implements.
//!
//! Silently ignoring a clause would be a wrong answer. Clauses that DataFusion rejects are not
//! repeated here, unless the tensor surface would ignore them.

use crate::walk::walk;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, ObjectName, OrderByKind, Query, Select, SetExpr, Spanned, TableAlias, TableFactor,
    Visitor,
};
use sqlparser::tokenizer::Span;

use crate::ast;
use crate::error::{Error, Position};
use crate::limits;
use crate::statement::Statement;
use crate::surface::has_star;

/// Checks the query of a statement.
///
/// # Errors
/// [`Error::Unsupported`] with the first refused construct.
pub(crate) fn statement(statement: &Statement) -> Result<(), Error> {
    let Some(query) = statement.query() else { return Ok(()) };
    match walk(query, &mut Refuse { ctes: 0 }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(*error),
    }
}

/// Maximum CTEs of one statement. Each is processed with all CTEs that it sees.
const CTES_MAX: usize = 500;

struct Refuse {
    ctes: usize,
}

type Flow = ControlFlow<Box<Error>>;

/// True for the functions in FROM whose rows are elements of a list, which have numbers.
fn has_elements(name: &ObjectName) -> bool {
    let name = name.to_string().to_ascii_lowercase();
    matches!(name.as_str(), "unnest" | "range" | "generate_series")
}

fn refuse(condition: bool, construct: &str, span: Span, hint: &str) -> Flow {
    if !condition {
        return ControlFlow::Continue(());
    }
    ControlFlow::Break(Box::new(Error::Unsupported {
        construct: construct.to_string(),
        position: Position::of_span(span),
        hint: (!hint.is_empty()).then(|| hint.to_string()),
    }))
}

impl Visitor for Refuse {
    type Break = Box<Error>;

    fn pre_visit_query(&mut self, query: &Query) -> Flow {
        let span = query.body.span();
        if let Some(with) = &query.with {
            self.ctes += with.cte_tables.len();
            if self.ctes > CTES_MAX {
                return ControlFlow::Break(Box::new(Error::TooComplex {
                    what: format!("the statement has {} CTEs", self.ctes),
                    limit: CTES_MAX,
                    position: Position::of_span(with.with_token.0.span),
                }));
            }
        }
        if let Some(order_by) = &query.order_by
            && let OrderByKind::Expressions(keys) = &order_by.kind
            && let Err(error) = limits::check_keys(keys.len(), keys.first().map(Spanned::span))
        {
            return ControlFlow::Break(Box::new(error));
        }
        refuse(!query.locks.is_empty(), "FOR UPDATE", span, "queries never lock")?;
        let dml = matches!(
            *query.body,
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_)
        );
        refuse(dml, "a statement that changes data inside a query", span, "")
    }

    fn pre_visit_select(&mut self, select: &Select) -> Flow {
        let span = select.span();
        refuse(select.into.is_some(), "SELECT INTO", span, "use CREATE TENSOR name AS SELECT …")?;
        refuse(select.top.is_some(), "TOP", span, "use LIMIT")?;
        refuse(!select.lateral_views.is_empty(), "LATERAL VIEW", span, "")?;
        refuse(!select.cluster_by.is_empty(), "CLUSTER BY", span, "")?;
        refuse(!select.distribute_by.is_empty(), "DISTRIBUTE BY", span, "")?;
        refuse(!select.sort_by.is_empty(), "SORT BY", span, "use ORDER BY")?;
        refuse(select.value_table_mode.is_some(), "SELECT AS VALUE", span, "")
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> Flow {
        if let TableFactor::Table {
            json_path,
            name,
            partitions,
            with_hints,
            alias,
            sample,
            version,
            index_hints,
            with_ordinality,
            args,
        } = factor
        {
            let hint = "subscript it in the select list, or write FROM CELLS(name[…])";
            refuse(json_path.is_some(), "a subscript on a relation", name.span(), hint)?;
            let at = alias.as_ref().and_then(|alias: &TableAlias| alias.at.as_ref());
            let span = at.map_or_else(Span::empty, |at| at.span);
            refuse(at.is_some(), "AT after an alias", span, "")?;
            refuse(!partitions.is_empty(), "PARTITION in FROM", name.span(), "")?;
            refuse(!with_hints.is_empty(), "table hints", name.span(), "")?;
            refuse(!index_hints.is_empty(), "index hints", name.span(), "")?;
            refuse(version.is_some(), "a version of a relation", name.span(), "")?;
            let is_numbered = *with_ordinality && !(args.is_some() && has_elements(name));
            refuse(is_numbered, "WITH ORDINALITY", name.span(), "use row_number() OVER ()")?;
            let hint = "filter by positions or labels, as in `WHERE dim % 10 = 0`";
            refuse(sample.is_some(), "TABLESAMPLE", name.span(), hint)?;
        }
        if let TableFactor::Derived { sample: Some(_), subquery, .. } = factor {
            refuse(true, "TABLESAMPLE", subquery.span(), "")?;
        }
        if let TableFactor::Derived { alias: Some(TableAlias { at: Some(at), .. }), .. } = factor {
            refuse(true, "AT after an alias", at.span, "")?;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> Flow {
        refuse(matches!(expr, Expr::OuterJoin(_)), "(+)", expr.span(), "use LEFT JOIN")?;
        match expr {
            Expr::Function(function) if has_star(function) => {
                let name = function.name.to_string().to_lowercase();
                let hint = format!(
                    "write `{name}(COLUMNS(*))`, or name the columns: `{name}(a), {name}(b)`"
                );
                let takes_star = name == "count" || ast::columns(expr).is_some();
                refuse(!takes_star, &format!("{name}(*)"), expr.span(), &hint)
            }
            _ => ControlFlow::Continue(()),
        }
    }
}
