//! Subqueries that replace parts of a block.

use sqlparser::ast::{Query, Select, SetExpr, TableAlias, TableFactor, TableWithJoins};

use tessera_frontend::scope;

/// `(select) alias`.
pub(super) fn derived(select: Select, alias: Option<TableAlias>) -> TableFactor {
    let subquery = Box::new(query(SetExpr::Select(Box::new(select))));
    TableFactor::Derived { lateral: false, subquery, alias, sample: None }
}

/// A query without clauses around its body.
pub(in crate::lift) fn query(body: SetExpr) -> Query {
    Query {
        with: None,
        body: Box::new(body),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: vec![],
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: vec![],
    }
}

/// `SELECT * FROM from`.
pub(in crate::lift) fn all_of(from: TableWithJoins) -> Option<Select> {
    let template = tessera_frontend::parse("SELECT * FROM x").ok()?.into_iter().next()?;
    let tessera_frontend::Statement::Query(mut query) = template.statement else { return None };
    let select = scope::innermost_mut(&mut query)?;
    select.from = vec![from];
    Some(select.clone())
}
