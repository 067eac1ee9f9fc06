//! Subqueries that replace parts of a block.

use sqlparser::ast::{Query, Select, SetExpr, TableAlias, TableFactor, TableWithJoins};

use tessera_frontend::scope;

/// `(select) alias`.
pub(super) fn derived(select: Select, alias: Option<TableAlias>) -> TableFactor {
    let query = Query {
        with: None,
        body: Box::new(SetExpr::Select(Box::new(select))),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: vec![],
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: vec![],
    };
    TableFactor::Derived { lateral: false, subquery: Box::new(query), alias, sample: None }
}

/// `SELECT * FROM from`.
pub(super) fn all_of(from: TableWithJoins) -> Option<Select> {
    let template = tessera_frontend::parse("SELECT * FROM x").ok()?.into_iter().next()?;
    let tessera_frontend::Statement::Query(mut query) = template.statement else { return None };
    let select = scope::innermost_mut(&mut query)?;
    select.from = vec![from];
    Some(select.clone())
}
