//! Light statements, which neither read nor compute much: a server with a full queue runs them too.

use sqlparser::ast::{Expr, Query, SelectItem, SetExpr};
use tessera_frontend::statement::Show;
use tessera_frontend::surface::{self, Names, Reason, RelationKind};
use tessera_frontend::walk::walk;
use tessera_frontend::{Statement, functions};

/// Upper bound on concurrent light statements.
pub(super) const LIGHT_MAX: usize = 64;

/// True if a script has only light statements: settings, running queries, cancels, and SELECT of literal values.
pub(super) fn is_light(sql: &str) -> bool {
    let Ok(parsed) = tessera_frontend::parse(sql) else { return false };
    !parsed.is_empty()
        && parsed.iter().all(|p| match &p.statement {
            Statement::Query(query) => is_value(query),
            Statement::Set { .. } | Statement::Cancel { .. } => true,
            Statement::Show(show) => matches!(
                show,
                Show::Queries | Show::Workers | Show::All | Show::Variable(_) | Show::Functions
            ),
            _ => false,
        })
}

/// `SELECT 1 + 1`: a block without relations, subqueries and whole tensors.
fn is_value(query: &Query) -> bool {
    let SetExpr::Select(select) = &*query.body else { return false };
    let items = select.projection.iter().all(|item| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
            !has_subquery(expr)
        }
        _ => false,
    });
    query.with.is_none()
        && select.from.is_empty()
        && items
        && surface::decide(query, &NoCatalog).reason == Reason::NoFrom
}

fn has_subquery(expr: &Expr) -> bool {
    use sqlparser::ast::Visitor;
    use std::ops::ControlFlow;
    struct Search;
    impl Visitor for Search {
        type Break = ();

        fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }
    tessera_frontend::limits::with_stack(|| walk(expr, &mut Search).is_break())
}

struct NoCatalog;

impl Names for NoCatalog {
    fn relation(&self, _: &sqlparser::ast::ObjectName) -> RelationKind {
        RelationKind::Tensor
    }

    fn is_tensor_function(&self, name: &str) -> bool {
        functions::is_tensor_function(name)
    }
}

#[cfg(test)]
mod tests {
    use super::is_light;

    #[test]
    fn statements_that_read_or_compute_wait() {
        for sql in ["SELECT 1+1", "SET tessera.lift = 'off'; SHOW QUERIES", "CANCEL QUERY 'x'"] {
            assert!(is_light(sql), "{sql}");
        }
        for sql in [
            "",
            "SELECT",
            "SELECT ones([10000, 10000])",
            "SELECT (SELECT count(*) FROM x)",
            "SELECT a FROM a",
            "SELECT 1 UNION SELECT 2",
            "WITH a AS (SELECT 1) SELECT 2",
            "DROP TENSOR x",
            "SELECT 1; SELECT a FROM a",
        ] {
            assert!(!is_light(sql), "{sql}");
        }
    }
}
