//! COLUMNS as several arguments of one call, and the columns that it leaves.
//!
//! | written | becomes, over `t(a, b, c)` |
//! |---|---|
//! | `coalesce(*COLUMNS('a\|b'), 0)` | `coalesce(t.a, t.b, 0)` |
//! | `t UNPIVOT (v FOR n IN (COLUMNS('a\|b')))` | `SELECT t.c, unnest(make_array('a', 'b')) AS n, unnest(make_array(t.a, t.b)) AS v FROM t` |

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, SelectItem, Spanned, Value,
    VisitorMut,
};
use tessera_frontend::ast::{self, Spread};
use tessera_frontend::error::{Error, Position};
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::{column_names, walk_mut};

use super::super::Pass;
use super::super::columns::Column;
use super::super::names::named;
use super::{Chosen, OWN_NAME, called, has_columns, of_relation};
use crate::walk::counts_queries;

impl Pass<'_> {
    /// The items that an item with COLUMNS stands for.
    ///
    /// # Errors
    /// The errors of [`Pass::expand`].
    pub(super) fn items_of(
        &self,
        expr: &Expr,
        alias: &Ident,
        all: &[Column],
    ) -> Result<Vec<SelectItem>, Error> {
        if let Some((Spread::Others, args)) = ast::spread(expr) {
            return self.others(args, all);
        }
        let is_column = ast::columns(expr).is_some() && alias.value == OWN_NAME;
        let expr = self.unpacked(expr, all)?;
        if !has_columns(&expr) {
            let alias = match alias.value == OWN_NAME {
                true => ast::text(&expr).map(|text| Ident::with_quote('"', text)),
                false => Some(alias.clone()),
            };
            return Ok(vec![match alias {
                Some(alias) => SelectItem::ExprWithAlias { expr, alias },
                None => SelectItem::UnnamedExpr(expr),
            }]);
        }
        let chosen = self.chosen_in(&expr, all)?;
        let item = |of: Chosen| match is_column {
            true => of.item(),
            false => SelectItem::ExprWithAlias { expr: of.put(&expr), alias: of.alias(alias) },
        };
        match is_column {
            true => chosen.iter().try_for_each(|of| self.count(&of.column.expr, 1))?,
            false => self.count(&expr, chosen.len())?,
        }
        Ok(chosen.into_iter().map(item).collect())
    }

    /// The columns that neither COLUMNS nor a name among the arguments stands for.
    fn others(&self, args: &[FunctionArg], all: &[Column]) -> Result<Vec<SelectItem>, Error> {
        let everything = of_relation(all, None);
        let mut used: BTreeSet<String> = BTreeSet::new();
        for arg in args {
            let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = arg else { continue };
            if has_columns(expr) {
                let chosen = self.chosen_in(expr, all)?;
                used.extend(chosen.iter().map(|of| of.column.expr.to_string()));
                continue;
            }
            for name in column_names(expr) {
                let found = called(&everything, &[Ident::with_span(expr.span(), name)])?;
                used.extend(found.into_iter().map(|at| everything[at].column.expr.to_string()));
            }
        }
        let rest = everything.into_iter().map(|of| of.column);
        let rest = rest.filter(|column| !used.contains(&column.expr.to_string()));
        Ok(rest.map(|column| named(column.expr, &column.name)).collect())
    }

    /// An expression with the columns of each `*COLUMNS(…)` as arguments.
    ///
    /// # Errors
    /// `unsupported` where it is no argument of a function; those of [`Pass::expand`].
    pub(super) fn unpacked(&self, expr: &Expr, all: &[Column]) -> Result<Expr, Error> {
        let mut expr = expr.clone();
        if let ControlFlow::Break(error) =
            walk_mut(&mut expr, &mut Unpack { pass: self, all, depth: 0 })
        {
            return Err(error);
        }
        let left = |expr: &Expr| ast::spread(expr).map(|_| expr.span());
        match find(&expr, &left) {
            None => Ok(expr),
            Some(span) => Err(Error::Unsupported {
                construct: "`*COLUMNS(…)` outside of the arguments of a function".to_string(),
                position: Position::of_span(span),
                hint: Some("write `COLUMNS(…)` for an item of each column".to_string()),
            }),
        }
    }

    /// The arguments that one argument stands for; `None` if it stands for itself.
    fn arguments(
        &self,
        arg: &FunctionArg,
        all: &[Column],
    ) -> Result<Option<Vec<FunctionArg>>, Error> {
        let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = arg else { return Ok(None) };
        let Some((spread, [FunctionArg::Unnamed(FunctionArgExpr::Expr(inner))])) =
            ast::spread(expr)
        else {
            return Ok(None);
        };
        let value = |of: &Chosen| match spread {
            Spread::Names => {
                let name = of.name.as_ref().map_or(&of.column.name, |name| &name.value);
                Expr::Value(Value::SingleQuotedString(name.clone()).into())
            }
            _ => of.put(inner),
        };
        let chosen = self.chosen_in(inner, all)?;
        self.count(inner, chosen.len())?;
        let values = chosen.iter().map(value);
        let values = values.map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value)));
        Ok(Some(values.collect()))
    }
}

struct Unpack<'p, 'a> {
    pass: &'p Pass<'a>,
    all: &'p [Column],
    /// Number of enclosing subqueries, whose columns are their own.
    depth: usize,
}

impl VisitorMut for Unpack<'_, '_> {
    type Break = Error;

    counts_queries!(depth);

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if let Expr::Function(function) = expr
            && let FunctionArguments::List(list) = &mut function.args
            && self.depth == 0
        {
            for arg in std::mem::take(&mut list.args) {
                match self.pass.arguments(&arg, self.all) {
                    Ok(Some(args)) => list.args.extend(args),
                    Ok(None) => list.args.push(arg),
                    Err(error) => return ControlFlow::Break(error),
                }
            }
        }
        ControlFlow::Continue(())
    }
}
