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

/// Maximum columns of a PIVOT on several columns, and of one whose values a query finds: the time to plan it grows with
/// the square of their number.
pub(crate) const COLUMNS_MAX: usize = 2000;

/// The subquery that replaces a `PIVOT` or an `UNPIVOT`; `None` for other relations, and for a `PIVOT` whose values a
/// query finds ([`crate::pivots`]), which is none of those that are stored.
///
/// # Errors
/// `unsupported` for values of a subquery, and for rows of values; `too_complex` beyond 2000 columns; `syntax` for an
/// UNPIVOT of lists of different lengths.
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
            let keys = keys(default_on_null.as_ref(), span)?;
            let Some(columns) = listed(value_column, value_source, is_stored, span)? else {
                return Ok(None);
            };
            let each = aggregate_functions.len();
            let count = columns.iter().fold(each, |all, of| all.saturating_mul(of.values.len()));
            if columns.len() > 1 && count > COLUMNS_MAX {
                return Err(Error::TooComplex {
                    what: format!("PIVOT on several columns makes {count} columns"),
                    limit: COLUMNS_MAX,
                    position: Position::of_span(span),
                });
            }
            let mut items: Vec<SelectItem> = match keys {
                Some(keys) => {
                    keys.into_iter().map(|k| SelectItem::UnnamedExpr(k.clone())).collect()
                }
                None => vec![rest(aggregate_functions, &columns)],
            };
            items.extend(pivoted(aggregate_functions, &columns));
            let Some(mut select) = block(items, (**table).clone()) else { return Ok(None) };
            select.group_by = GroupByExpr::All(Vec::new());
            Ok(Some(derived(select, alias.clone())))
        }
        TableFactor::Unpivot { table, value, name, columns, null_inclusion, alias } => {
            let values = values_of(value, columns, span)?;
            let items = unpivoted(&values, name, columns);
            let Some(inner) = block(items, (**table).clone()) else { return Ok(None) };
            if *null_inclusion == Some(NullInclusion::IncludeNulls) {
                return Ok(Some(derived(inner, alias.clone())));
            }
            let all = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
            let Some(mut outer) = block(all, derived(inner, None)) else { return Ok(None) };
            let known = values.into_iter();
            let known = known.map(|value| Expr::IsNotNull(Box::new(Expr::Identifier(value))));
            outer.selection = known.reduce(both);
            Ok(Some(derived(outer, alias.clone())))
        }
        _ => Ok(None),
    }
}

/// The columns of `GROUP BY` of a PIVOT.
fn keys(default_on_null: Option<&Expr>, span: Span) -> Result<Option<Vec<&Expr>>, Error> {
    let Some(default) = default_on_null else { return Ok(None) };
    match ast::pivot_keys(default) {
        Some(keys) if keys.is_empty() => {
            let message = "GROUP BY of PIVOT names no columns";
            Err(Error::syntax(message, Position::of_span(span)))
        }
        Some(keys) => Ok(Some(keys)),
        None => Err(unsupported("DEFAULT ON NULL", span, "use coalesce on the columns")),
    }
}

/// A column of a PIVOT with the values that become columns, and their names.
struct Listed<'a> {
    column: &'a Expr,
    values: Vec<(String, &'a Expr)>,
}

impl Listed<'_> {
    /// The name of each value, and the condition that the column has it.
    fn conditions(&self) -> Vec<(String, Expr)> {
        let values = self.values.iter();
        values.map(|(name, value)| (name.clone(), is(self.column, value))).collect()
    }
}

/// The columns of a PIVOT; `None` if a query has to find the values of one.
fn listed<'a>(
    columns: &'a [Expr],
    values: &'a PivotValueSource,
    is_stored: bool,
    span: Span,
) -> Result<Option<Vec<Listed<'a>>>, Error> {
    let [column] = columns else {
        let hint = "write `PIVOT … ON a, b` for a column of each combination, or name a text in a subquery: `a || '_' || b AS k`";
        return Err(unsupported("PIVOT … FOR (a, b)", span, hint));
    };
    match values {
        PivotValueSource::List(values) => {
            let name = |value: &ExprWithAlias| match &value.alias {
                Some(alias) => alias.value.clone(),
                None => shown(&value.expr),
            };
            let values = values.iter().map(|value| (name(value), &value.expr)).collect();
            Ok(Some(vec![Listed { column, values }]))
        }
        PivotValueSource::Any(order) if !order.is_empty() => {
            let hint = "list the values in this order: `FOR k IN ('b', 'a')`";
            Err(unsupported("ORDER BY of the values of PIVOT", span, hint))
        }
        PivotValueSource::Any(_) => {
            let of = |column| {
                let (column, values) = ast::pivot_list(column)?;
                let values = values.iter().map(|value| (shown(value), value)).collect();
                Some(Listed { column, values })
            };
            let several = ast::pivot_columns(column);
            let all = several.and_then(|all| all.into_iter().map(of).collect::<Option<Vec<_>>>());
            if all.is_none() && is_stored {
                let hint = "list the values, of which each becomes a column: `ON k IN ('a', 'b')`";
                let what = "PIVOT without a list of values in a view, TEMP TENSOR or INSERT";
                return Err(unsupported(what, span, hint));
            }
            Ok(all)
        }
        PivotValueSource::Subquery(_) => {
            let hint = "list the values, as in `PIVOT (sum(v) FOR k IN ('a', 'b'))`, or write `PIVOT … ON k USING sum(v)` for all";
            Err(unsupported("PIVOT with values of a query", span, hint))
        }
    }
}

/// The columns of values that an UNPIVOT makes of columns, or of lists of columns of the same length.
fn values_of(value: &Expr, columns: &[ExprWithAlias], span: Span) -> Result<Vec<Ident>, Error> {
    let name = |value: &Expr| match value {
        Expr::Identifier(name) => Some(name.clone()),
        _ => None,
    };
    let Some(values) = parts(value).iter().map(name).collect::<Option<Vec<Ident>>>() else {
        let message = "UNPIVOT needs names for the columns of values: `(v, w) FOR n IN (…)`";
        return Err(Error::syntax(message, Position::of_span(value.span())));
    };
    for column in columns {
        let of = column.expr.span();
        if has_columns(column) && column.alias.is_some() {
            let hint = "rename the columns in a subquery: `* RENAME (a AS b)`";
            return Err(unsupported("a name for COLUMNS in UNPIVOT", of, hint));
        }
        if has_columns(column) && (values.len() > 1 || parts(&column.expr).len() > 1) {
            let hint = "name the columns of each list: `ON (a, b), (c, d)`";
            return Err(unsupported("COLUMNS in lists of UNPIVOT", of, hint));
        }
        let count = parts(&column.expr).len();
        if count != values.len() {
            let message = format!(
                "UNPIVOT makes {} columns of values, and `{}` has {count} columns",
                values.len(),
                column.expr
            );
            return Err(Error::syntax(message, Position::of_span(of).or(Position::of_span(span))));
        }
    }
    Ok(values)
}

/// The expressions of a list in parentheses, or the one expression.
fn parts(expr: &Expr) -> &[Expr] {
    match expr {
        Expr::Tuple(parts) => parts,
        one => std::slice::from_ref(one),
    }
}

fn unsupported(construct: &str, span: Span, hint: &str) -> Error {
    Error::unsupported(construct.to_string(), Position::of_span(span)).with_hint(hint.to_string())
}

/// All columns that the aggregates and the PIVOT do not use.
fn rest(calls: &[ExprWithAlias], columns: &[Listed<'_>]) -> SelectItem {
    let mut used = BTreeSet::new();
    columns.iter().for_each(|of| used.extend(column_names(of.column)));
    calls.iter().for_each(|call| used.extend(column_names(&call.expr)));
    all_but(used.into_iter().map(Ident::new))
}

/// The aggregates for each combination of values.
fn pivoted(calls: &[ExprWithAlias], columns: &[Listed<'_>]) -> Vec<SelectItem> {
    let all = columns.iter().map(Listed::conditions);
    let combined = all.reduce(|all, more| {
        let with_each = |(name, condition): &(String, Expr)| -> Vec<(String, Expr)> {
            let more = more.iter();
            more.map(|(of, own)| (format!("{name}_{of}"), both(condition.clone(), own.clone())))
                .collect()
        };
        all.iter().flat_map(with_each).collect()
    });
    let mut items = Vec::new();
    for (of, condition) in combined.unwrap_or_default() {
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
                expr: filtered(&call.expr, condition.clone()),
                alias: Ident::with_quote('"', name),
            });
        }
    }
    items
}

/// All columns but some, the names of these or of their lists, and their values.
fn unpivoted(values: &[Ident], name: &Ident, columns: &[ExprWithAlias]) -> Vec<SelectItem> {
    let all: BTreeSet<String> =
        columns.iter().flat_map(|column| column_names(&column.expr)).collect();
    let named = |column: &ExprWithAlias| {
        if has_columns(column) {
            return on_columns(marker::NAMES, column);
        }
        let own = |part: &Expr| column_names(part).into_iter().next().unwrap_or_default();
        let name = match &column.alias {
            Some(alias) => alias.value.clone(),
            None => parts(&column.expr).iter().map(own).collect::<Vec<_>>().join("_"),
        };
        Expr::Value(Value::SingleQuotedString(name).into())
    };
    let list = |values: Vec<Expr>| call("unnest", vec![call("make_array", values)]);
    let names = list(columns.iter().map(named).collect());
    let rest = match columns.iter().find(|column| has_columns(column)) {
        Some(first) => {
            let used = columns.iter().map(|column| marker::positional(column.expr.clone()));
            let name = marker::name(marker::OTHERS, first.expr.span());
            SelectItem::UnnamedExpr(marker::call(name, used.collect()))
        }
        None => all_but(all.into_iter().map(Ident::new)),
    };
    let mut items = vec![rest, SelectItem::ExprWithAlias { expr: names, alias: name.clone() }];
    for (at, value) in values.iter().enumerate() {
        let cells = columns.iter().filter_map(|column| match has_columns(column) {
            true => Some(on_columns(marker::SPREAD, column)),
            false => parts(&column.expr).get(at).cloned(),
        });
        let expr = list(cells.collect());
        items.push(SelectItem::ExprWithAlias { expr, alias: value.clone() });
    }
    items
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

fn both(one: Expr, other: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(one), op: BinaryOperator::And, right: Box::new(other) }
}

/// The aggregate over the rows that fulfil a condition.
fn filtered(aggregate: &Expr, condition: Expr) -> Expr {
    let mut aggregate = aggregate.clone();
    if let Expr::Function(function) = &mut aggregate {
        let condition = match function.filter.take() {
            Some(own) => both(*own, condition),
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
