//! The values of a `PIVOT` that does not list them. A first query finds them, and they become its list:
//!
//! ```text
//! PIVOT t ON k USING sum(v)
//!   ⇐  SELECT DISTINCT k::text AS v FROM t WHERE k IS NOT NULL ORDER BY 1 LIMIT 2001
//!   ⇒  PIVOT t ON k::text IN ('a', 'b') USING sum(v)
//! ```
//! Of several columns, `PIVOT t ON k, j`, one after another gets its list. As texts, values of all types are columns, are compared, and have an order that does not depend on the rows.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Cte, Expr, ExprWithAlias, FunctionArg, FunctionArgExpr, FunctionArguments, PivotValueSource,
    Query, SelectItem, Spanned, TableFactor, Value, Visitor, VisitorMut,
};

use crate::ast;
use crate::clauses::{self, COLUMNS_MAX};
use crate::derived::relation_of;
use crate::error::{Error, Position};
use crate::limits;
use crate::scope::{self, Scope};
use crate::statement::Statement;
use crate::walk::{walk, walk_mut};

/// The query of the values of the first PIVOT of a statement that does not list them, with those inside others first;
/// `None` if all list them. Its only column is text.
///
/// # Errors
/// None in practice: the text around the column is fixed.
pub fn unlisted(statement: &Statement) -> Result<Option<Query>, Error> {
    match statement.query() {
        // The search copies CTEs.
        Some(query) if walk(query, &mut HasUnlisted).is_break() => {
            limits::with_stack(|| values_of_first(query))
        }
        _ => Ok(None),
    }
}

fn values_of_first(query: &Query) -> Result<Option<Query>, Error> {
    let mut search = Search { scope: Scope::default(), waiting: Vec::new() };
    let found = match walk(query, &mut search) {
        ControlFlow::Break(found) => found,
        ControlFlow::Continue(()) => return Ok(None),
    };
    let (table, column) = *found;
    let limit = COLUMNS_MAX + 1;
    let text =
        format!("SELECT DISTINCT x::text AS v FROM y WHERE x IS NOT NULL ORDER BY 1 LIMIT {limit}");
    if let Some(mut values) = crate::query_of(&text)?
        && let Some(select) = scope::innermost_mut(&mut values)
    {
        let _ = walk_mut(&mut select.projection, &mut Put(&column));
        let _ = walk_mut(&mut select.selection, &mut Put(&column));
        if let Some(place) = relation_of(select) {
            *place = table;
        }
        return Ok(Some(search.scope.close(&values)));
    }
    Err(Error::syntax("PIVOT needs a list of values", Position::of_span(column.span())))
}

/// Gives the PIVOT that [`unlisted`] finds a list of values.
///
/// # Errors
/// `too_complex` beyond 2000 columns.
pub fn list(statement: &mut Statement, values: Vec<String>) -> Result<(), Error> {
    let Some(query) = statement.query_mut() else { return Ok(()) };
    limits::with_stack(|| match walk_mut(query, &mut List { values }) {
        ControlFlow::Break(result) => *result,
        ControlFlow::Continue(()) => Ok(()),
    })
}

/// The relation of a PIVOT, and its first column without a list of values.
fn parts(factor: &TableFactor) -> Option<(&TableFactor, &Expr)> {
    let TableFactor::Pivot { table, value_column, value_source: PivotValueSource::Any(_), .. } =
        factor
    else {
        return None;
    };
    let column = value_column.first()?;
    let unlisted = match ast::pivot_columns(column) {
        Some(several) => several.into_iter().find(|of| ast::pivot_list(of).is_none())?,
        None => column,
    };
    Some((table, unlisted))
}

/// The first of several columns that has no list of values; `None` for a PIVOT on one column.
fn unlisted_of_several(column: &mut Expr) -> Option<&mut Expr> {
    ast::pivot_columns(column)?;
    let Expr::Function(several) = column else { return None };
    let FunctionArguments::List(list) = &mut several.args else { return None };
    list.args.iter_mut().find_map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(of)) => {
            ast::pivot_list(of).is_none().then_some(of)
        }
        _ => None,
    })
}

/// Stops at a PIVOT without a list of values.
struct HasUnlisted;

impl Visitor for HasUnlisted {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match parts(factor) {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}

/// Finds the relation and the column, and the CTEs that they see.
struct Search {
    scope: Scope,
    /// For each open query its CTEs that are not visited yet.
    waiting: Vec<VecDeque<Cte>>,
}

impl Visitor for Search {
    type Break = Box<(TableFactor, Expr)>;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Self::Break> {
        self.scope.enter(query.with.as_ref());
        let ctes = query.with.iter().flat_map(|with| &with.cte_tables);
        self.waiting.push(ctes.cloned().collect());
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &Query) -> ControlFlow<Self::Break> {
        self.scope.leave();
        self.waiting.pop();
        // The queries of WITH are visited before all others.
        if let Some(cte) = self.waiting.last_mut().and_then(VecDeque::pop_front) {
            self.scope.define(&cte);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Self::Break> {
        match parts(factor) {
            Some((table, column)) => ControlFlow::Break(Box::new((table.clone(), column.clone()))),
            None => ControlFlow::Continue(()),
        }
    }
}

/// Replaces the name `x` by a column.
struct Put<'a>(&'a Expr);

impl VisitorMut for Put<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Identifier(name) if name.value == "x") {
            *expr = match self.0 {
                Expr::Nested(_) => self.0.clone(),
                column => Expr::Nested(Box::new(column.clone())),
            };
        }
        ControlFlow::Continue(())
    }
}

struct List {
    values: Vec<String>,
}

impl VisitorMut for List {
    type Break = Box<Result<(), Error>>;

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Self::Break> {
        if parts(factor).is_none() {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(Box::new(self.listed(factor)))
    }
}

impl List {
    fn listed(&mut self, factor: &mut TableFactor) -> Result<(), Error> {
        let span = factor.span();
        let TableFactor::Pivot { aggregate_functions, value_column, value_source, .. } = factor
        else {
            return Ok(());
        };
        let Some(column) = value_column.first_mut() else { return Ok(()) };
        let known = ast::pivot_columns(column).unwrap_or_default().into_iter();
        let known = known.filter_map(ast::pivot_list).map(|(_, list)| list.len().max(1));
        let each = known.fold(aggregate_functions.len().max(1), usize::saturating_mul);
        let is_one = ast::pivot_columns(column).is_none();
        let column = match is_one {
            true => column,
            false => match unlisted_of_several(column) {
                Some(column) => column,
                None => return Ok(()),
            },
        };
        if self.values.len().saturating_mul(each) > COLUMNS_MAX {
            let max = COLUMNS_MAX / each;
            let of_each = match each {
                1 => String::new(),
                many => format!(", of which each makes {many} columns"),
            };
            return Err(Error::TooComplex {
                what: format!(
                    "`{column}` of PIVOT has more than {max} values{of_each} (`ON {column} IN (…)` lists some)"
                ),
                limit: COLUMNS_MAX,
                position: Position::of_span(column.span()).or(Position::of_span(span)),
            });
        }
        if let Some(mut query) = crate::query_of("SELECT x::text")?
            && let Some(select) = scope::innermost_mut(&mut query)
            && let Some(SelectItem::UnnamedExpr(mut text)) = select.projection.pop()
        {
            let _ = walk_mut(&mut text, &mut Put(column));
            *column = text;
        }
        let value = |value| Expr::Value(Value::SingleQuotedString(value).into());
        let values = std::mem::take(&mut self.values).into_iter().map(value);
        if is_one {
            let values = values.map(|expr| ExprWithAlias { expr, alias: None }).collect();
            *value_source = PivotValueSource::List(values);
        } else {
            let of = Box::new(std::mem::replace(column, ast::null()));
            *column = Expr::InList { expr: of, list: values.collect(), negated: false };
        }
        clauses::list_pivot(factor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn values_that_a_query_finds_become_a_list() {
        let parsed = |text: &str| crate::parse(text).map(|mut all| all.remove(0).statement);
        let mut statement = parsed(
            "WITH c AS (FROM t), d AS (PIVOT c ON k % 2 USING sum(v) GROUP BY g) FROM d, (PIVOT d ON g)",
        )
        .unwrap();
        let query = unlisted(&statement).unwrap().unwrap().to_string();
        assert!(query.starts_with("WITH c AS (SELECT * FROM t) "), "{query}");
        assert!(
            query.contains(
                "SELECT DISTINCT (k % 2)::TEXT AS v FROM c WHERE (k % 2) IS NOT NULL ORDER BY 1 LIMIT 2001"
            ),
            "{query}"
        );
        list(&mut statement, vec!["0".into(), "1".into()]).unwrap();
        let second = unlisted(&statement).unwrap().unwrap().to_string();
        assert!(second.contains("FILTER (WHERE (k % 2)::TEXT = '0') AS \"0\""), "{second}");
        assert!(second.contains("FROM d WHERE (g) IS NOT NULL"), "{second}");
        list(&mut statement, vec!["x".into()]).unwrap();
        assert_eq!(unlisted(&statement).unwrap(), None);
        let mut many = parsed("PIVOT t ON k").unwrap();
        let values = |count: usize| -> Vec<String> { (0..count).map(|n| n.to_string()).collect() };
        assert_eq!(list(&mut many, values(COLUMNS_MAX + 1)).unwrap_err().code(), "too_complex");
        let mut of_two = parsed("PIVOT t ON k USING sum(v), max(v)").unwrap();
        let limit = COLUMNS_MAX / 2;
        assert_eq!(list(&mut of_two, values(limit + 1)).unwrap_err().code(), "too_complex");
        list(&mut of_two, values(limit)).unwrap();
        assert_eq!(unlisted(&of_two).unwrap(), None);
        for column in ["k > 1", "(k > 1)", "(k) + 1", "k.a", "k IS NULL", "NOT k"] {
            let statement = parsed(&format!("PIVOT t ON {column} USING sum(v)")).unwrap();
            assert!(unlisted(&statement).unwrap().is_some(), "{column}");
        }
        assert_eq!(parsed("PIVOT t ON (k, j)").unwrap_err().code(), "unsupported");
        for stored in [
            "CREATE VIEW w AS PIVOT t ON k",
            "CREATE VIEW w AS PIVOT t ON k IN (1), j",
            "CREATE TEMP TENSOR w AS SELECT * FROM (PIVOT t ON k)",
            "INSERT INTO w SELECT * FROM (PIVOT t ON k)",
        ] {
            assert_eq!(parsed(stored).unwrap_err().code(), "unsupported", "{stored}");
        }
    }

    #[test]
    fn each_of_several_columns_gets_a_list() {
        let parsed = |text: &str| crate::parse(text).map(|mut all| all.remove(0).statement);
        let mut statement =
            parsed("PIVOT t ON k, j IN (1, 2), (i) + 1 USING sum(v) GROUP BY g").unwrap();
        for (column, values) in [("k", vec!["a", "b"]), ("(i) + 1", vec!["x"])] {
            let query = unlisted(&statement).unwrap().unwrap().to_string();
            assert!(
                query.contains(&format!("SELECT DISTINCT ({column})::TEXT AS v FROM t")),
                "{query}"
            );
            list(&mut statement, values.into_iter().map(String::from).collect()).unwrap();
        }
        assert_eq!(unlisted(&statement).unwrap(), None);
        let text = statement.query().unwrap().to_string();
        for name in ["a_1_x", "a_2_x", "b_1_x", "b_2_x"] {
            assert!(text.contains(&format!("AS \"{name}\"")), "{text}");
        }
        assert!(text.contains("(k)::TEXT = 'b' AND j = 2 AND ((i) + 1)::TEXT = 'x'"), "{text}");
        let mut many = parsed("PIVOT t ON k, j IN (1, 2)").unwrap();
        let values = (0..=COLUMNS_MAX / 2).map(|n| n.to_string()).collect();
        assert_eq!(list(&mut many, values).unwrap_err().code(), "too_complex");
        let written: Vec<String> = (0..45).map(|n| n.to_string()).collect();
        let written = written.join(", ");
        let many = parsed(&format!("PIVOT t ON k IN ({written}), j IN ({written})"));
        assert_eq!(many.unwrap_err().code(), "too_complex");
        let lists = parsed("UNPIVOT t ON (a, b) AS x, (c, d) INTO NAME n VALUE v, w").unwrap();
        let lists = lists.query().unwrap().to_string();
        assert!(lists.contains("make_array('x', 'c_d')"), "{lists}");
        assert!(lists.contains("make_array(b, d)) AS w"), "{lists}");
        assert!(lists.contains("WHERE v IS NOT NULL AND w IS NOT NULL"), "{lists}");
        for wrong in ["(a, b), c INTO NAME n VALUE v, w", "a, b INTO NAME n VALUE v, w", "(a, b)"] {
            assert_eq!(parsed(&format!("UNPIVOT t ON {wrong}")).unwrap_err().code(), "syntax");
        }
    }
}
