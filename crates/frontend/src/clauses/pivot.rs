//! `PIVOT` and `UNPIVOT`.

use std::collections::BTreeSet;

use sqlparser::ast::helpers::attached_token::AttachedToken;
use sqlparser::ast::{
    BinaryOperator, ExcludeSelectItem, Expr, ExprWithAlias, GroupByExpr, Ident, NullInclusion,
    ObjectName, PivotValueSource, Select, SelectItem, Spanned, TableFactor, TableWithJoins, Value,
    WildcardAdditionalOptions,
};
use sqlparser::tokenizer::Span;

use crate::ast::{self, marker};
use crate::derived::{all_of, derived};
use crate::error::{Error, Position};
use crate::surface::walk::find;
use crate::walk::column_names;

/// The subquery that replaces a `PIVOT` or an `UNPIVOT`; `None` for other relations, and for a `PIVOT` whose values a
/// query finds ([`crate::pivots`]), which is none of those that are stored.
///
/// # Errors
/// `unsupported` for values of a subquery, and for several columns at once.
pub(super) fn rewritten(
    factor: &TableFactor,
    is_stored: bool,
) -> Result<Option<TableFactor>, Error> {
    let span = factor.span();
    match factor {
        TableFactor::Pivot {
            table,
            aggregate_functions,
            value_column,
            value_source,
            default_on_null,
            alias,
        } => {
            let keys = match default_on_null {
                Some(default) => match ast::pivot_keys(default) {
                    Some(keys) if keys.is_empty() => {
                        let message = "GROUP BY of PIVOT names no columns";
                        return Err(Error::syntax(message, Position::of_span(span)));
                    }
                    Some(keys) => Some(keys),
                    None => {
                        let hint = "use coalesce on the columns";
                        return Err(unsupported("DEFAULT ON NULL", span, hint));
                    }
                },
                None => None,
            };
            let [column] = value_column.as_slice() else {
                let hint = "name a text of them in a subquery: `a || '_' || b AS k`";
                return Err(unsupported("PIVOT … FOR several columns", span, hint));
            };
            let values = match value_source {
                PivotValueSource::List(values) => values,
                PivotValueSource::Any(order) if !order.is_empty() => {
                    let hint = "list the values in this order: `FOR k IN ('b', 'a')`";
                    return Err(unsupported("ORDER BY of the values of PIVOT", span, hint));
                }
                PivotValueSource::Any(_) if is_stored => {
                    let hint =
                        "list the values, of which each becomes a column: `ON k IN ('a', 'b')`";
                    let what = "PIVOT without a list of values in a view, TEMP TENSOR or INSERT";
                    return Err(unsupported(what, span, hint));
                }
                PivotValueSource::Any(_) => return Ok(None),
                PivotValueSource::Subquery(_) => {
                    let hint = "list the values, as in `PIVOT (sum(v) FOR k IN ('a', 'b'))`, or write `PIVOT … ON k USING sum(v)` for all";
                    return Err(unsupported("PIVOT with values of a query", span, hint));
                }
            };
            let mut items: Vec<SelectItem> = match keys {
                Some(keys) => {
                    keys.into_iter().map(|k| SelectItem::UnnamedExpr(k.clone())).collect()
                }
                None => vec![rest(aggregate_functions, column)],
            };
            items.extend(pivoted(aggregate_functions, column, values));
            let Some(mut select) = block(items, (**table).clone()) else { return Ok(None) };
            select.group_by = GroupByExpr::All(Vec::new());
            Ok(Some(derived(select, alias.clone())))
        }
        TableFactor::Unpivot { table, value, name, columns, null_inclusion, alias } => {
            let Expr::Identifier(value) = value else {
                let hint = "unpivot one column of values, and join the results";
                return Err(unsupported("UNPIVOT into several columns", span, hint));
            };
            let is_renamed = |of: &&ExprWithAlias| has_columns(of) && of.alias.is_some();
            if let Some(of) = columns.iter().find(is_renamed) {
                let hint = "rename the columns in a subquery: `* RENAME (a AS b)`";
                return Err(unsupported("a name for COLUMNS in UNPIVOT", of.expr.span(), hint));
            }
            let items = unpivoted(value, name, columns);
            let Some(inner) = block(items, (**table).clone()) else { return Ok(None) };
            if *null_inclusion == Some(NullInclusion::IncludeNulls) {
                return Ok(Some(derived(inner, alias.clone())));
            }
            let all = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
            let Some(mut outer) = block(all, derived(inner, None)) else { return Ok(None) };
            outer.selection = Some(Expr::IsNotNull(Box::new(Expr::Identifier(value.clone()))));
            Ok(Some(derived(outer, alias.clone())))
        }
        _ => Ok(None),
    }
}

fn unsupported(construct: &str, span: Span, hint: &str) -> Error {
    Error::unsupported(construct.to_string(), Position::of_span(span)).with_hint(hint.to_string())
}

/// All columns that the aggregates and `FOR` do not use.
fn rest(calls: &[ExprWithAlias], column: &Expr) -> SelectItem {
    let mut used = column_names(column);
    calls.iter().for_each(|call| used.extend(column_names(&call.expr)));
    all_but(used.into_iter().map(Ident::new))
}

/// The aggregates for each value.
fn pivoted(calls: &[ExprWithAlias], column: &Expr, values: &[ExprWithAlias]) -> Vec<SelectItem> {
    let mut items = Vec::new();
    for value in values {
        let of = match &value.alias {
            Some(alias) => alias.value.clone(),
            None => shown(&value.expr),
        };
        for call in calls {
            let name = match &call.alias {
                Some(alias) => format!("{of}_{}", alias.value),
                None if calls.len() == 1 => of.clone(),
                None => {
                    let text = ast::text(&call.expr).unwrap_or_else(|| call.expr.to_string());
                    format!("{of}_{text}")
                }
            };
            items.push(SelectItem::ExprWithAlias {
                expr: filtered(&call.expr, is(column, &value.expr)),
                alias: Ident::with_quote('"', name),
            });
        }
    }
    items
}

/// All columns but some, the names of these, and their values.
fn unpivoted(value: &Ident, name: &Ident, columns: &[ExprWithAlias]) -> Vec<SelectItem> {
    let all: BTreeSet<String> =
        columns.iter().flat_map(|column| column_names(&column.expr)).collect();
    let named = |column: &ExprWithAlias| {
        if has_columns(column) {
            return on_columns(marker::NAMES, column);
        }
        let name = match &column.alias {
            Some(alias) => alias.value.clone(),
            None => column_names(&column.expr).into_iter().next().unwrap_or_default(),
        };
        Expr::Value(Value::SingleQuotedString(name).into())
    };
    let list = |values: Vec<Expr>| call("unnest", vec![call("make_array", values)]);
    let names = list(columns.iter().map(named).collect());
    let cells = |column: &ExprWithAlias| match has_columns(column) {
        true => on_columns(marker::SPREAD, column),
        false => column.expr.clone(),
    };
    let values = list(columns.iter().map(cells).collect());
    let rest = match columns.iter().find(|column| has_columns(column)) {
        Some(first) => {
            let used = columns.iter().map(|column| marker::positional(column.expr.clone()));
            let name = marker::name(marker::OTHERS, first.expr.span());
            SelectItem::UnnamedExpr(marker::call(name, used.collect()))
        }
        None => all_but(all.into_iter().map(Ident::new)),
    };
    vec![
        rest,
        SelectItem::ExprWithAlias { expr: names, alias: name.clone() },
        SelectItem::ExprWithAlias { expr: values, alias: value.clone() },
    ]
}

fn has_columns(column: &ExprWithAlias) -> bool {
    find(&column.expr, &|expr| ast::columns(expr).map(|_| ())).is_some()
}

/// What a call makes of the columns that COLUMNS stands for.
fn on_columns(name: &str, column: &ExprWithAlias) -> Expr {
    let name = marker::name(name, column.expr.span());
    marker::call(name, vec![marker::positional(column.expr.clone())])
}

/// `* EXCLUDE (…)`.
fn all_but(names: impl Iterator<Item = Ident>) -> SelectItem {
    let names: Vec<ObjectName> = names.map(|name| ObjectName::from(vec![name])).collect();
    SelectItem::Wildcard(WildcardAdditionalOptions {
        opt_exclude: (!names.is_empty()).then_some(ExcludeSelectItem::Multiple(names)),
        ..WildcardAdditionalOptions::default()
    })
}

fn shown(value: &Expr) -> String {
    match value {
        Expr::Value(literal) => match &literal.value {
            Value::SingleQuotedString(text) | Value::Number(text, _) => text.clone(),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

/// The condition that a column has a value.
fn is(column: &Expr, value: &Expr) -> Expr {
    match value {
        Expr::Value(literal) if literal.value == Value::Null => {
            Expr::IsNull(Box::new(column.clone()))
        }
        value => Expr::BinaryOp {
            left: Box::new(column.clone()),
            op: BinaryOperator::Eq,
            right: Box::new(value.clone()),
        },
    }
}

/// The aggregate over the rows that fulfil a condition.
fn filtered(aggregate: &Expr, condition: Expr) -> Expr {
    let mut aggregate = aggregate.clone();
    if let Expr::Function(function) = &mut aggregate {
        let condition = match function.filter.take() {
            Some(own) => {
                Expr::BinaryOp { left: own, op: BinaryOperator::And, right: Box::new(condition) }
            }
            None => condition,
        };
        function.filter = Some(Box::new(condition));
    }
    aggregate
}

fn call(name: &str, args: Vec<Expr>) -> Expr {
    marker::call(Ident::new(name), args.into_iter().map(marker::positional).collect())
}

/// `SELECT items FROM relation`.
fn block(items: Vec<SelectItem>, relation: TableFactor) -> Option<Select> {
    let mut select = all_of(TableWithJoins { relation, joins: Vec::new() })?;
    select.select_token = AttachedToken::empty();
    select.projection = items;
    Some(select)
}
