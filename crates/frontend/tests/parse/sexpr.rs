//! Compact rendering of what was parsed, as S-expressions.

use sqlparser::ast::{
    Array, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Query, Select, SelectItem,
    SetExpr, TableFactor, UnaryOperator, Value,
};
use tessera_frontend::ast::{
    Axis, Relation, Selection, Slice, bracket_dim, call, field, relation, subscript,
};
use tessera_frontend::statement::{CreateTensor, Explain, Literal, Setting};
use tessera_frontend::{Statement, parse};

/// The only statement of `sql`, rendered.
pub(crate) fn statement_of(sql: &str) -> String {
    match parse(sql) {
        Ok(parsed) => parsed.iter().map(|p| statement(&p.statement)).collect::<Vec<_>>().join("\n"),
        Err(error) => error.render(sql),
    }
}

/// The expression `text`, rendered.
pub(crate) fn expr_of(text: &str) -> String {
    let sql = format!("SELECT {text} FROM t");
    match parse(&sql) {
        Ok(parsed) => match &parsed[0].statement {
            Statement::Query(query) => match &*query.body {
                SetExpr::Select(select) => {
                    select.projection.iter().map(item).collect::<Vec<_>>().join(" ")
                }
                other => other.to_string(),
            },
            other => statement(other),
        },
        Err(error) => error.render(&sql),
    }
}

pub(crate) fn statement(statement: &Statement) -> String {
    match statement {
        Statement::Query(query) => self::query(query),
        Statement::CreateTensor(CreateTensor { name, or_replace, if_not_exists, temp, query }) => {
            let flags =
                flags(&[("replace", *or_replace), ("keep", *if_not_exists), ("temp", *temp)]);
            format!("(create-tensor {name}{flags}\n{})", indent(&self::query(query)))
        }
        Statement::CreateExternal(create) => {
            let flags = flags(&[("replace", create.or_replace), ("keep", create.if_not_exists)]);
            format!(
                "(create-external {:?} {}{flags} {} {}{})",
                create.kind,
                create.name,
                create.format,
                literal(&create.location),
                options(&create.options)
            )
        }
        Statement::CreateView(create) => {
            let flags = flags(&[("replace", create.or_replace), ("keep", create.if_not_exists)]);
            format!("(create-view {}{flags}\n{})", create.name, indent(&query(&create.query)))
        }
        Statement::Copy(copy) => format!(
            "(copy {} {}{}\n{})",
            literal(&copy.url),
            copy.format.as_ref().map_or("-".to_string(), ToString::to_string),
            options(&copy.options),
            indent(&query(&copy.query))
        ),
        Statement::Insert(insert) => {
            format!("(insert {}\n{})", insert.name, indent(&query(&insert.query)))
        }
        Statement::Drop(drop) => {
            format!("(drop {:?} {}{})", drop.kind, drop.name, flags(&[("maybe", drop.if_exists)]))
        }
        Statement::Explain(Explain { analyze, verbose, format, statement }) => {
            let flags = flags(&[("analyze", *analyze), ("verbose", *verbose)]);
            format!("(explain {format:?}{flags}\n{})", indent(&self::statement(statement)))
        }
        Statement::Cancel { id } => format!("(cancel {})", literal(id)),
        Statement::Set { name, value } => format!("(set {} {})", literal(name), literal(value)),
        Statement::Show(show) => match show {
            tessera_frontend::statement::Show::Variable(name) => {
                format!("(show {})", literal(name))
            }
            show => format!("(show {show:?})"),
        },
        Statement::Summarize(q) => format!("(summarize\n{})", indent(&query(q))),
        Statement::Describe(described) => match described {
            tessera_frontend::statement::Described::Name(name) => format!("(describe {name})"),
            tessera_frontend::statement::Described::Url(url) => {
                format!("(describe {})", literal(url))
            }
            tessera_frontend::statement::Described::Query(q) => {
                format!("(describe\n{})", indent(&query(q)))
            }
        },
    }
}

fn flags(flags: &[(&str, bool)]) -> String {
    flags.iter().filter(|(_, on)| *on).map(|(name, _)| format!(" :{name}")).collect()
}

fn literal(literal: &Literal) -> String {
    if literal.quoted { format!("'{}'", literal.text) } else { literal.text.clone() }
}

fn options(options: &[Setting]) -> String {
    options.iter().map(|o| format!(" ({} {})", literal(&o.key), literal(&o.value))).collect()
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

pub(crate) fn query(query: &Query) -> String {
    let mut lines = Vec::new();
    for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
        lines.push(format!("(with {}\n{})", cte.alias.name, indent(&self::query(&cte.query))));
    }
    lines.push(match &*query.body {
        SetExpr::Select(select) => self::select(select),
        SetExpr::Query(inner) => self::query(inner),
        other => format!("«{other}»"),
    });
    if let Some(order_by) = &query.order_by {
        lines.push(format!("«{order_by}»"));
    }
    if let Some(limit) = &query.limit_clause {
        lines.push(format!("«{}»", limit.to_string().trim()));
    }
    lines.join("\n")
}

fn select(select: &Select) -> String {
    let mut lines: Vec<String> =
        select.projection.iter().map(|i| format!("(item {})", item(i))).collect();
    for from in &select.from {
        lines.push(format!("(from {})", factor(&from.relation)));
        for join in &from.joins {
            lines.push(format!("(join {} {})", factor(&join.relation), constraint(join)));
        }
    }
    if let Some(condition) = &select.selection {
        lines.push(format!("(where {})", expr(condition)));
    }
    if let sqlparser::ast::GroupByExpr::Expressions(keys, _) = &select.group_by
        && !keys.is_empty()
    {
        let keys: Vec<String> = keys.iter().map(expr).collect();
        lines.push(format!("(group-by {})", keys.join(" ")));
    }
    if let Some(condition) = &select.having {
        lines.push(format!("(having {})", expr(condition)));
    }
    format!("(select\n{})", indent(&lines.join("\n")))
}

fn constraint(join: &sqlparser::ast::Join) -> String {
    use sqlparser::ast::{JoinConstraint, JoinOperator};
    match &join.join_operator {
        JoinOperator::Join(JoinConstraint::On(on))
        | JoinOperator::Inner(JoinConstraint::On(on)) => {
            format!("(on {})", expr(on))
        }
        JoinOperator::Join(JoinConstraint::Using(names)) => {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            format!("(using {})", names.join(" "))
        }
        other => format!("{other:?}"),
    }
}

fn factor(factor: &TableFactor) -> String {
    let aliased = |text: String, alias: Option<&sqlparser::ast::Ident>| match alias {
        Some(alias) => format!("{text} as {alias}"),
        None => text,
    };
    match relation(factor) {
        Relation::Name { name, alias } => aliased(name.to_string(), alias),
        Relation::Url { url, alias } => aliased(format!("(url {url})"), alias),
        Relation::Cells { expr: cells, alias, .. } => {
            aliased(format!("(cells {})", expr(cells)), alias)
        }
        Relation::Function { name, args, alias } => {
            let args: Vec<String> = args.iter().map(arg).collect();
            aliased(format!("({name} {})", args.join(" ")), alias)
        }
        Relation::Subquery { query, alias } => {
            aliased(format!("(\n{})", indent(&self::query(query))), alias.map(|alias| &alias.name))
        }
        Relation::Other(other) => format!("«{other}»"),
    }
}

fn item(item: &SelectItem) -> String {
    if let Some((dim, alias)) = bracket_dim(item) {
        return match alias {
            Some(alias) => format!("(dim {dim}) as {alias}"),
            None => format!("(dim {dim})"),
        };
    }
    match item {
        SelectItem::UnnamedExpr(expr) => self::expr(expr),
        SelectItem::ExprWithAlias { expr, alias } => format!("{} as {alias}", self::expr(expr)),
        other => format!("«{other}»"),
    }
}

pub(crate) fn expr(expr: &Expr) -> String {
    if let Some(subscript) = subscript(expr) {
        let axes: Vec<String> = subscript.axes.iter().map(axis).collect();
        return format!("(at {} {})", self::expr(subscript.base), axes.join(" "));
    }
    if let Some((base, fields)) = field(expr) {
        let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
        return format!("(field {} {})", self::expr(base), fields.join("."));
    }
    if let Some(call) = call(expr) {
        let mut parts = vec![call.name.to_string()];
        parts.extend(call.positional.iter().map(|e| self::expr(e)));
        parts.extend(call.named.iter().map(|(name, e)| format!("{name}={}", self::expr(e))));
        return format!("({})", parts.join(" "));
    }
    match expr {
        Expr::Identifier(ident) => ident.to_string(),
        Expr::CompoundIdentifier(parts) => {
            parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
        }
        Expr::Value(value) => match &value.value {
            Value::Null => "NULL".to_string(),
            value => value.to_string(),
        },
        Expr::Nested(inner) => self::expr(inner),
        Expr::Array(Array { elem, .. }) => {
            format!("[{}]", elem.iter().map(self::expr).collect::<Vec<_>>().join(" "))
        }
        Expr::BinaryOp { left, op, right } => {
            format!("({op} {} {})", self::expr(left), self::expr(right))
        }
        Expr::UnaryOp { op, expr } => match op {
            UnaryOperator::Minus => format!("(neg {})", self::expr(expr)),
            op => format!("({op} {})", self::expr(expr)),
        },
        Expr::IsDistinctFrom(a, b) => format!("(distinct {} {})", self::expr(a), self::expr(b)),
        Expr::IsNotDistinctFrom(a, b) => format!("(same {} {})", self::expr(a), self::expr(b)),
        Expr::Cast { expr, data_type, .. } => format!("(cast {} {data_type})", self::expr(expr)),
        Expr::Between { expr, low, high, .. } => {
            format!("(between {} {} {})", self::expr(expr), self::expr(low), self::expr(high))
        }
        Expr::Lambda(lambda) => format!("(fn {} {})", lambda.params, self::expr(&lambda.body)),
        Expr::Function(function) => {
            let args = match &function.args {
                FunctionArguments::List(list) => list.args.iter().map(arg).collect::<Vec<_>>(),
                FunctionArguments::Subquery(query) => vec![self::query(query)],
                FunctionArguments::None => vec![],
            };
            let over = match &function.over {
                Some(over) => format!(" «OVER {over}»"),
                None => String::new(),
            };
            format!("({} {}{over})", function.name, args.join(" "))
        }
        other => format!("«{other}»"),
    }
}

fn arg(arg: &FunctionArg) -> String {
    match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self::expr(expr),
        FunctionArg::Named { name, arg: FunctionArgExpr::Expr(expr), .. } => {
            format!("{name}={}", self::expr(expr))
        }
        other => other.to_string(),
    }
}

fn axis(axis: &Axis<'_>) -> String {
    match axis {
        Axis::Index(expr) => self::expr(expr),
        Axis::Slice(slice) => self::slice(slice),
        Axis::Ellipsis(_) => "...".to_string(),
        Axis::NewAxis(_) => "newaxis".to_string(),
        Axis::Named { dim, selection: Selection::Index(expr) } => {
            format!("{dim}={}", self::expr(expr))
        }
        Axis::Named { dim, selection: Selection::Slice(slice) } => {
            format!("{dim}={}", self::slice(slice))
        }
    }
}

fn slice(slice: &Slice<'_>) -> String {
    let bound = |bound: Option<&Expr>| bound.map_or_else(|| "_".to_string(), self::expr);
    format!("{}:{}:{}", bound(slice.lo), bound(slice.hi), bound(slice.step))
}
