//! The columns of a tree of joins, and the expansion of its conditions.

use datafusion::common::DFSchemaRef;
use datafusion::sql::planner::{ParserOptions, SqlToRel};
use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    BinaryOperator, Cte, Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName,
    ObjectNamePart, Query, SelectItem, SetExpr, Spanned, Statement, TableFactor, TableWithJoins,
    With,
};

use super::super::names::{call, constraint, constraint_mut, name_of};
use super::super::{context, error};
use super::{Pass, asof, names};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::scope::innermost;

#[derive(Clone)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) expr: Expr,
    /// True if it merges several columns of that name.
    pub(super) is_merged: bool,
}

/// True if a tree of joins has a `USING`, `NATURAL` or `ASOF` join.
pub(super) fn merges(from: &TableWithJoins) -> bool {
    let nested = |factor: &TableFactor| match factor {
        TableFactor::NestedJoin { table_with_joins, .. } => merges(table_with_joins),
        _ => false,
    };
    nested(&from.relation)
        || from.joins.iter().any(|join| {
            nested(&join.relation)
                || matches!(
                    constraint(&join.join_operator),
                    Some(JoinConstraint::Using(_) | JoinConstraint::Natural)
                )
                || matches!(&join.join_operator, JoinOperator::AsOf { .. })
        })
}

/// The side of a merged column.
enum Whose {
    Left,
    Right,
    Both,
}

/// The columns of a tree of joins; rewrites its conditions to ON.
pub(super) fn joined(from: &mut TableWithJoins, pass: &Pass<'_>) -> Result<Vec<Column>, Error> {
    let mut left = of_factor(&mut from.relation, pass)?;
    for join in &mut from.joins {
        let right = of_factor(&mut join.relation, pass)?;
        left = one_join(left, right, join)?;
    }
    Ok(left)
}

fn one_join(left: Vec<Column>, right: Vec<Column>, join: &mut Join) -> Result<Vec<Column>, Error> {
    use JoinOperator::*;
    let position = Position::of_span(join.relation.span());
    if let AsOf { match_condition, constraint } = &join.join_operator {
        let (operator, columns) = asof::joined(left, right, match_condition, constraint, position)?;
        join.join_operator = operator;
        return Ok(columns);
    }
    let (whose, sides) = match &join.join_operator {
        Right(_) | RightOuter(_) => (Whose::Right, (true, true)),
        FullOuter(_) => (Whose::Both, (true, true)),
        LeftSemi(_) | LeftAnti(_) | Semi(_) | Anti(_) => (Whose::Left, (true, false)),
        RightSemi(_) | RightAnti(_) => (Whose::Right, (false, true)),
        _ => (Whose::Left, (true, true)),
    };
    let Some(condition) = constraint_mut(&mut join.join_operator) else {
        return Ok(left.into_iter().chain(right).collect());
    };
    let shared: Vec<(String, Option<Position>)> = match condition {
        JoinConstraint::Using(columns) => {
            let named = |column: &ObjectName| -> Result<(String, Option<Position>), Error> {
                Ok((spelled(column, &left)?, Position::of_span(column.span()).or(position)))
            };
            columns.iter().map(named).collect::<Result<_, Error>>()?
        }
        // In the order of the left side, each once.
        JoinConstraint::Natural => {
            let is_there = |name: &str| right.iter().any(|c| c.name == name);
            let names = left.iter().map(|c| c.name.clone()).filter(|name| is_there(name));
            names.map(|name| (name, position)).collect()
        }
        JoinConstraint::On(on) => {
            // The columns that earlier joins merged.
            let merged = left.iter().chain(&right).filter(|c| c.is_merged);
            let merged = merged.map(|c| (c.name.clone(), c.expr.clone())).collect();
            names::replace_in(on, &merged);
            Vec::new()
        }
        JoinConstraint::None => Vec::new(),
    };
    let is_shared = !shared.is_empty();
    let mut on: Option<Expr> = None;
    let mut merged: Vec<(String, Expr)> = Vec::new();
    for (name, position) in shared {
        let l = of_side(&left, &name, position, "left")?;
        let r = of_side(&right, &name, position, "right")?;
        if merged.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let equal = binary(l.clone(), BinaryOperator::Eq, r.clone());
        on = Some(match on {
            None => equal,
            Some(on) => binary(on, BinaryOperator::And, equal),
        });
        let expr = match whose {
            Whose::Left => l,
            Whose::Right => r,
            Whose::Both => call("coalesce", vec![l, r]),
        };
        merged.push((name, expr));
    }
    match on {
        Some(on) => *condition = JoinConstraint::On(on),
        // Without a common column a natural join is a cross product.
        None if matches!(condition, JoinConstraint::Natural) => {
            join.join_operator = JoinOperator::CrossJoin(JoinConstraint::None);
        }
        None => {}
    }
    let of = |name: &str| merged.iter().find(|(known, _)| known == name);
    let mut out = Vec::new();
    for column in left.into_iter().filter(|_| sides.0) {
        out.push(match of(&column.name) {
            Some((_, expr)) => Column { expr: expr.clone(), is_merged: true, ..column },
            None => column,
        });
    }
    for column in right.into_iter().filter(|_| sides.1) {
        match of(&column.name) {
            Some(_) if is_shared && sides.0 => {}
            Some((_, expr)) => {
                out.push(Column { expr: expr.clone(), is_merged: true, ..column });
            }
            None => out.push(column),
        }
    }
    Ok(out)
}

pub(super) fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

/// The name of a USING column in the left side's spelling.
pub(super) fn spelled(column: &ObjectName, left: &[Column]) -> Result<String, Error> {
    let [ObjectNamePart::Identifier(ident)] = column.0.as_slice() else {
        return Err(Error::Cells {
            code: "plan_error",
            message: format!("USING takes names of columns, and `{column}` is not one"),
            position: Position::of_span(column.span()),
            hint: Some("write ON with a condition".to_string()),
        });
    };
    if left.iter().any(|c| c.name == ident.value) {
        return Ok(ident.value.clone());
    }
    let near: Vec<&Column> =
        left.iter().filter(|c| c.name.eq_ignore_ascii_case(&ident.value)).collect();
    match near.as_slice() {
        [one] => Ok(one.name.clone()),
        _ => Ok(ident.value.clone()),
    }
}

/// The only column of that name on one side of a join.
pub(super) fn of_side(
    columns: &[Column],
    name: &str,
    position: Option<Position>,
    side: &str,
) -> Result<Expr, Error> {
    one(columns, name, position).map_err(|error| match error {
        Error::UnknownName { name, candidates, .. } => Error::Cells {
            code: "unknown_name",
            message: format!("the {side} side of the join has no column `{name}`"),
            position,
            hint: Some(match candidates.first() {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!(
                    "USING needs a column of one name on both sides; otherwise write `ON a.{name} = b.other`"
                ),
            }),
        },
        other => other,
    })
}

/// The only column of that name.
fn one(columns: &[Column], name: &str, position: Option<Position>) -> Result<Expr, Error> {
    let mut same = columns.iter().filter(|c| c.name == name);
    match (same.next(), same.next()) {
        (Some(column), None) => Ok(column.expr.clone()),
        (None, _) => {
            let names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
            let near = tessera_frontend::error::nearest(name, &names).map(String::from);
            let candidates = near.into_iter().collect();
            Err(Error::UnknownName { kind: "column", name: name.into(), candidates, position })
        }
        _ => Err(Error::Cells {
            code: "ambiguous_name",
            message: format!(
                "`{name}` is ambiguous: several columns of one side of the join have this name"
            ),
            position,
            hint: Some("write ON with a condition".to_string()),
        }),
    }
}

fn of_factor(factor: &mut TableFactor, pass: &Pass<'_>) -> Result<Vec<Column>, Error> {
    if let TableFactor::NestedJoin { table_with_joins, alias: None } = factor {
        return joined(table_with_joins, pass);
    }
    let qualifier = match factor {
        TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. }
        | TableFactor::UNNEST { alias: Some(alias), .. }
        | TableFactor::NestedJoin { alias: Some(alias), .. } => Some(alias.name.clone()),
        TableFactor::Table { name, .. } => name.0.last().and_then(|p| p.as_ident()).cloned(),
        _ => None,
    };
    let names = pass.columns(factor)?;
    Ok(names
        .into_iter()
        .map(|name| {
            let own = Ident::with_quote('"', name.clone());
            let expr = match &qualifier {
                Some(qualifier) => Expr::CompoundIdentifier(vec![qualifier.clone(), own]),
                None => Expr::Identifier(own),
            };
            Column { name, expr, is_merged: false }
        })
        .collect())
}

impl Pass<'_> {
    /// The CTEs in scope; an inner CTE shadows outer ones of its name.
    fn ctes(&self) -> Vec<Cte> {
        let mut out: Vec<Cte> = Vec::new();
        for level in &self.levels {
            let mut known = level.ctes.clone();
            // A recursive query that is being visited has the columns of its first part.
            if let (true, Some(own)) = (level.is_recursive, level.waiting.front())
                && let SetExpr::SetOperation { left, .. } = &*own.query.body
            {
                let mut own = own.clone();
                own.query.body = left.clone();
                known.push(own);
            }
            for cte in known {
                out.retain(|outer| outer.alias.name.value != cte.alias.name.value);
                out.push(cte);
            }
        }
        out
    }

    fn columns(&self, factor: &TableFactor) -> Result<Vec<String>, Error> {
        if let TableFactor::Table { name, alias, .. } = factor
            && let [ObjectNamePart::Identifier(ident)] = name.0.as_slice()
            && let Some(table) = self.prepared.tables.get(&ident.value)
            && alias.as_ref().is_none_or(|alias| alias.columns.is_empty())
        {
            return Ok(table.schema().fields().iter().map(|f| f.name().clone()).collect());
        }
        if let Some(names) = written(factor) {
            return Ok(names);
        }
        let Some(query) = select_all(factor) else {
            let message = "a relation could not be written as a query".to_string();
            return Err(Error::Cells { code: "internal", message, position: None, hint: None });
        };
        self.names(query)
    }

    /// The names of the columns of a query without WITH.
    pub(super) fn names(&self, query: Query) -> Result<Vec<String>, Error> {
        let schema = self.schema(query)?;
        Ok(schema.fields().iter().map(|f| f.name().clone()).collect())
    }

    /// The columns of a query without WITH.
    pub(super) fn schema(&self, mut query: Query) -> Result<DFSchemaRef, Error> {
        let cte_tables = self.ctes();
        if !cte_tables.is_empty() {
            query.with =
                Some(With { with_token: AttachedToken::empty(), recursive: false, cte_tables });
        }
        let context =
            context::Context::new(self.state, &self.prepared.tables, &self.prepared.texts);
        let options = ParserOptions::from(&self.state.config_options().sql_parser);
        let planner = SqlToRel::new_with_options(&context, options);
        let plan = planner
            .sql_statement_to_plan(Statement::Query(Box::new(query)))
            .map_err(error::plan)?;
        Ok(plan.schema().clone())
    }
}

/// The column names of a relation that may refer to earlier relations, and so cannot be planned alone; `None` if the
/// text does not name all columns.
fn written(factor: &TableFactor) -> Option<Vec<String>> {
    let (alias, query) = match factor {
        TableFactor::UNNEST { alias, .. } => (alias, None),
        TableFactor::Derived { lateral: true, alias, subquery, .. } => (alias, Some(subquery)),
        _ => return None,
    };
    if let Some(alias) = alias.as_ref().filter(|alias| !alias.columns.is_empty()) {
        return Some(alias.columns.iter().map(|column| column.name.value.clone()).collect());
    }
    let items = innermost(query?)?.projection.iter();
    items.map(|item| Some(name_of(item)?.value.clone())).collect()
}

/// `SELECT * FROM relation`.
fn select_all(factor: &TableFactor) -> Option<Query> {
    let mut query = tessera_frontend::query_of("SELECT * FROM y").ok()??;
    let SetExpr::Select(block) = &mut *query.body else { return None };
    debug_assert!(matches!(block.projection.as_slice(), [SelectItem::Wildcard(_)]));
    block.from.first_mut()?.relation = factor.clone();
    Some(*query)
}
