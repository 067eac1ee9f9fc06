//! UNNEST in FROM, and series over columns of the relations before them, which are UNNEST over the list of the function.
//!
//! | written | becomes |
//! |---|---|
//! | `t, unnest(t.list)` | `t, UNNEST(t.list) AS unnest(unnest)` |
//! | `t, LATERAL unnest(t.list) u` | `t, UNNEST(t.list) AS u(u)` |
//! | `t, range(t.n) r(i)` | `t, UNNEST(range(t.n)) AS r(i)` |
//! | `unnest(l) WITH ORDINALITY u(x, i)` | `UNNEST(l, generate_series(1, array_length(l))) AS u(x, i)` |
//!
//! An alias without column names is also the name of the column. So is the name of the function: `u.u` and `u.unnest`.
//! [`super::super::unnested`] joins the rows.

use std::ops::ControlFlow;
use tessera_frontend::walk::walk;

use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, Ident, ObjectName, TableAlias, TableAliasColumnDef,
    TableFactor, Value, Visitor,
};

use super::Relations;
use super::known::Known;
use super::ours::call;

/// A relation with a row for each element of a list.
pub(super) struct Unnested {
    /// Its name.
    relation: Ident,
    column: Ident,
    /// The column with the numbers of the elements.
    ordinality: Option<Ident>,
    function: &'static str,
    pub(super) list: Expr,
}

impl Unnested {
    /// The relation, if it becomes UNNEST.
    pub(super) fn of(factor: &TableFactor) -> Option<Self> {
        let ((function, list), alias, is_numbered) = match factor {
            TableFactor::UNNEST {
                alias, array_exprs, with_offset: false, with_ordinality, ..
            } => match array_exprs.as_slice() {
                [list] => (("unnest", list.clone()), alias, *with_ordinality),
                _ => return None,
            },
            TableFactor::Function { name, args, with_ordinality, alias, .. } => {
                (list_of(name, args, true)?, alias, *with_ordinality)
            }
            TableFactor::Table { name, args: Some(args), with_ordinality, alias, .. } => {
                (list_of(name, &args.args, *with_ordinality)?, alias, *with_ordinality)
            }
            _ => return None,
        };
        let relation = match alias {
            Some(alias) => alias.name.clone(),
            None => Ident::new(function),
        };
        let columns = alias.as_ref().map_or(&[][..], |alias| alias.columns.as_slice());
        let (column, number) = match columns {
            [] => (relation.clone(), None),
            [one] => (one.name.clone(), None),
            [one, number] if is_numbered => (one.name.clone(), Some(number.name.clone())),
            _ => return None,
        };
        let ordinality = is_numbered.then(|| number.unwrap_or_else(|| Ident::new("ordinality")));
        Some(Unnested { relation, column, ordinality, function, list })
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &Ident> {
        std::iter::once(&self.column).chain(&self.ordinality)
    }

    /// The relation as the block's names see it.
    fn known(&self) -> Known {
        let columns = self.columns().map(|column| column.value.clone()).collect();
        Known::of_elements(&self.relation.value, columns, self.function)
    }

    fn into_factor(self) -> TableFactor {
        let named = |name: &Ident| TableAliasColumnDef { name: name.clone(), data_type: None };
        let columns = self.columns().map(named).collect();
        let numbers = self.ordinality.map(|_| {
            let one = Expr::Value(Value::Number("1".to_string(), false).into());
            call("generate_series", vec![one, call("array_length", vec![self.list.clone()])])
        });
        TableFactor::UNNEST {
            alias: Some(TableAlias { explicit: true, name: self.relation, columns, at: None }),
            array_exprs: std::iter::once(self.list).chain(numbers).collect(),
            with_offset: false,
            with_offset_alias: None,
            with_ordinality: false,
        }
    }
}

impl Relations<'_> {
    /// Replaces a relation of the elements of lists by UNNEST with its names; returns false for all other relations.
    pub(super) fn unnest(&mut self, factor: &mut TableFactor) -> bool {
        let Some(unnested) = Unnested::of(factor) else { return false };
        let names = std::iter::once(&unnested.relation).chain(unnested.columns());
        self.names.extend(names.map(|name| name.value.clone()));
        if let Some(block) = self.blocks.last_mut() {
            block.known.push(unnested.known());
        }
        *factor = unnested.into_factor();
        true
    }
}

/// The list that a call in FROM has as rows. A series `is_list` if it is lateral or numbered, or if it names columns:
/// others need no list.
fn list_of(name: &ObjectName, args: &[FunctionArg], is_list: bool) -> Option<(&'static str, Expr)> {
    let all = args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    });
    let mut all: Vec<Expr> = all.collect::<Option<_>>()?;
    let function = match name.to_string().to_ascii_lowercase().as_str() {
        "unnest" if all.len() == 1 => return Some(("unnest", all.pop()?)),
        "generate_series" => "generate_series",
        "range" => "range",
        _ => return None,
    };
    let is_list = is_list || all.iter().any(names_columns);
    is_list.then(|| (function, call(function, all)))
}

/// True if an expression has a name or a subquery in it.
pub(super) fn names_columns(expr: &Expr) -> bool {
    struct Names;
    impl Visitor for Names {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            let is_name = matches!(
                expr,
                Expr::Identifier(_)
                    | Expr::CompoundIdentifier(_)
                    | Expr::Subquery(_)
                    | Expr::Exists { .. }
                    | Expr::InSubquery { .. }
            );
            if is_name { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    walk(expr, &mut Names).is_break()
}
