//! Queries around blocks, and subqueries that replace parts of a block.

use sqlparser::ast::{Query, Select, SetExpr, TableAlias, TableFactor, TableWithJoins};

use crate::scope;

/// `(select) alias`.
pub fn derived(select: Select, alias: Option<TableAlias>) -> TableFactor {
    let subquery = Box::new(query(SetExpr::Select(Box::new(select))));
    TableFactor::Derived { lateral: false, subquery, alias, sample: None }
}

/// A query without clauses around its body.
pub fn query(body: SetExpr) -> Query {
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

/// The relation of the innermost block.
pub(crate) fn relation_of(select: &mut Select) -> Option<&mut TableFactor> {
    match &mut select.from.first_mut()?.relation {
        TableFactor::Derived { subquery, .. } => relation_of(scope::innermost_mut(subquery)?),
        relation => Some(relation),
    }
}

/// `SELECT * FROM from`.
pub fn all_of(from: TableWithJoins) -> Option<Select> {
    let mut query = crate::query_of("SELECT * FROM x").ok()??;
    let select = scope::innermost_mut(&mut query)?;
    select.from = vec![from];
    Some(select.clone())
}
