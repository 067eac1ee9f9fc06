//! Fields of structs, and lists, where DataFusion does not find the columns in them.
//!
//! | written | becomes |
//! |---|---|
//! | `x -> x.b` | `x -> get_field(x, 'b')` |
//! | `t, unnest(t.st.r) u(x)`, `(SELECT … t.st.r …)` | `get_field(t.st, 'r')` for `t.st.r` |
//! | `t, unnest([t.a, 3]) u(x)` | `make_array(t.a, 3)` for `[t.a, 3]` |
//! | `f(x).b`, `(t.st).a`, `{'a': 1}.a` | `get_field(f(x), 'b')`, `get_field((t.st), 'a')`, `get_field({'a': 1}, 'a')` |

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use sqlparser::ast::{Array, Expr, Ident, LambdaFunction, Select, TableFactor, Value, VisitorMut};
use tessera_frontend::ast;
use tessera_frontend::walk::walk_mut;

use super::ours::call;
use super::unnested::names_columns;
use crate::walk::counts_queries;

/// Rewrites the fields of a lambda's parameters in its body.
pub(super) fn of_parameters(lambda: &mut LambdaFunction) {
    let names = lambda.params.iter().map(|parameter| parameter.name.value.to_lowercase());
    let mut fields = Fields { names: names.collect(), parts: 1, inside: 1, apart: 0 };
    let _ = walk_mut(&mut *lambda.body, &mut fields);
}

/// Rewrites the fields of a block's relations in its subqueries, and in the lists of its FROM.
pub(super) fn of_relations(select: &mut Select) {
    let factors = select.from.iter().flat_map(|from| {
        std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation))
    });
    let names: BTreeSet<String> = factors.filter_map(name).collect();
    if !names.is_empty() {
        let _ = walk_mut(select, &mut Fields { names, parts: 2, inside: 0, apart: 0 });
    }
}

/// A list of elements that name columns, as a call; `None` for other lists.
pub(super) fn of_list(list: &mut Array) -> Option<Expr> {
    let has_names = list.elem.iter().any(names_columns);
    has_names.then(|| call("make_array", std::mem::take(&mut list.elem)))
}

/// The fields of a value that is not a name, as calls; `None` for other expressions.
pub(in crate::lift) fn of_value(expr: &Expr) -> Option<Expr> {
    let (value, fields) = ast::field(expr)?;
    Some(fields.into_iter().cloned().fold(value.clone(), field))
}

fn field(value: Expr, name: Ident) -> Expr {
    call("get_field", vec![value, Expr::Value(Value::SingleQuotedString(name.value).into())])
}

/// The name of a relation, in lower case.
fn name(factor: &TableFactor) -> Option<String> {
    let name = match factor {
        TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. }
        | TableFactor::NestedJoin { alias: Some(alias), .. }
        | TableFactor::UNNEST { alias: Some(alias), .. }
        | TableFactor::Function { alias: Some(alias), .. } => &alias.name,
        TableFactor::Table { name, .. } => name.0.last()?.as_ident()?,
        _ => return None,
    };
    Some(name.value.to_lowercase())
}

struct Fields {
    names: BTreeSet<String>,
    /// How many parts the name of a column has.
    parts: usize,
    /// Number of open subqueries and lists, in which fields are rewritten.
    inside: usize,
    /// Number of open subqueries that do not see the columns.
    apart: usize,
}

impl VisitorMut for Fields {
    type Break = ();

    counts_queries!(inside);

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Derived { lateral: false, .. } => self.apart += 1,
            TableFactor::Derived { .. } | TableFactor::NestedJoin { .. } => {}
            _ => self.inside += 1,
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Derived { lateral: false, .. } => self.apart -= 1,
            TableFactor::Derived { .. } | TableFactor::NestedJoin { .. } => {}
            _ => self.inside -= 1,
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.inside == 0 || self.apart > 0 {
            return ControlFlow::Continue(());
        }
        let Expr::CompoundIdentifier(parts) = expr else { return ControlFlow::Continue(()) };
        let is_field = parts.len() > self.parts
            && parts.first().is_some_and(|part| self.names.contains(&part.value.to_lowercase()));
        if !is_field {
            return ControlFlow::Continue(());
        }
        let fields = parts.split_off(self.parts);
        let value = match parts.as_slice() {
            [parameter] => Expr::Identifier(parameter.clone()),
            _ => Expr::CompoundIdentifier(std::mem::take(parts)),
        };
        *expr = fields.into_iter().fold(value, field);
        ControlFlow::Continue(())
    }
}
