//! Converts DataFusion's and the planner's errors to the frontend's.

mod calls;
mod counterparts;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, SchemaError};
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};

use tessera_frontend::error::{Error, Position, nearest};
use tessera_frontend::functions::functions;

use crate::error::{RowsErrorKind, conversion, plain, spoken_in};
pub(crate) use calls::{Call, InCall, name_in, placed, spoken};

pub(crate) fn planner(error: tessera_planner::error::Error) -> Error {
    Error::Cells {
        code: error.code(),
        message: error.to_string(),
        position: None,
        hint: error.hint(),
    }
}

/// Converts an error of DataFusion's planning. An error of this project that it wraps is returned unchanged.
pub(crate) fn plan(error: DataFusionError) -> Error {
    let mut position = None;
    read(error, &mut position)
}

/// Rejects correlated subqueries that the optimiser could not rewrite to joins.
pub(crate) fn correlated(logical: &LogicalPlan) -> Result<(), Error> {
    first_subquery(logical, |e, inner, _| {
        let is_value = matches!(e, Expr::ScalarSubquery(_));
        (!inner.outer_ref_columns.is_empty()).then(|| of_outside(is_value, inner))
    })
}

/// Rejects subqueries of an optimised plan that cannot be executed: the optimiser could not rewrite them to joins.
pub(crate) fn remaining(logical: &LogicalPlan) -> Result<(), Error> {
    correlated(logical)?;
    lateral(logical)?;
    first_subquery(logical, |e, inner, node| {
        if matches!(e, Expr::ScalarSubquery(_)) {
            return None;
        }
        let (construct, hint) = match node {
            LogicalPlan::Join(_) => (
                "EXISTS, IN, ANY or ALL over a subquery in the condition of an outer join",
                "join a subquery whose WHERE has the condition: `LEFT JOIN (SELECT * FROM b WHERE k IN (SELECT …)) b ON …`",
            ),
            _ => (
                "EXISTS, IN, ANY or ALL over a subquery at this place",
                "use it in WHERE, or as an item of a subquery: `FROM (SELECT *, k IN (SELECT …) AS found FROM a)`",
            ),
        };
        let (construct, hint) = (construct.to_string(), Some(hint.to_string()));
        Some(Error::Unsupported { construct, position: inner.spans.first().map(place), hint })
    })
}

/// Rejects columns of other relations in LATERAL that the optimiser could not make conditions of a join.
fn lateral(logical: &LogicalPlan) -> Result<(), Error> {
    let (mut found, mut has_elements) = (None, false);
    let walk = logical.each_of_all(|node| {
        has_elements |=
            matches!(node, LogicalPlan::Unnest(_)) && !node.all_out_ref_exprs().is_empty();
        node.each_expr(|expr| {
            expr.each(|e| {
                if let Expr::OuterReferenceColumn(_, column) = e {
                    found = Some(column.clone());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    walk.map_err(plan)?;
    let Some(column) = found else { return Ok(()) };
    let hint = if has_elements {
        "join the elements: `SELECT t.id, sum(x) FROM t, unnest(t.l) u(x) GROUP BY t.id`; `array_has(t.l, x)` finds one"
    } else {
        "use it in a WHERE without GROUP BY, DISTINCT or LIMIT around it: `FROM a, LATERAL (SELECT b.v FROM b WHERE b.k = a.k) c`; the latest row of each is `FROM a ASOF JOIN b ON a.k = b.k AND a.time >= b.time`"
    };
    Err(Error::Unsupported {
        construct: format!(
            "`{}` of another relation in a LATERAL subquery{} of this form",
            column.flat_name(),
            if has_elements { ", or one over elements of lists," } else { "" }
        ),
        position: column.spans().first().map(place),
        hint: Some(hint.to_string()),
    })
}

/// The hint for a scalar subquery with several rows.
const ONE_OF_ROWS: &str = "aggregate it: `(SELECT first_value(b.v ORDER BY b.time DESC) FROM b WHERE b.k = a.k)` is the value of the last row, `max(b.v)` the greatest one";

const VALUE_OUTSIDE: &str = "a correlated scalar subquery";

/// True if a plan or a part of it is limited.
fn has_limit(plan: &LogicalPlan) -> bool {
    let is_limited = |node: &LogicalPlan| match node {
        LogicalPlan::Limit(_) => true,
        // The optimizer's form of a limit.
        LogicalPlan::Sort(sort) => sort.fetch.is_some(),
        _ => false,
    };
    plan.any(|node| Ok(is_limited(node))).unwrap_or(false)
}

/// The error for a correlated subquery; `is_value` for a scalar one.
pub(super) fn of_outside(is_value: bool, inner: &Subquery) -> Error {
    let (construct, hint) = match is_value {
        true if has_limit(&inner.subquery) => {
            ("LIMIT in a correlated scalar subquery", ONE_OF_ROWS)
        }
        true => (
            "a correlated scalar subquery with other conditions than `column = outer column`",
            "name an expression in a derived table, as in `FROM (SELECT *, k + 1 AS k1 FROM b) c WHERE c.k1 = a.k`; or join and aggregate: `SELECT a.x, count(b.x) FROM a LEFT JOIN b ON b.x < a.x GROUP BY a.x`",
        ),
        false => (
            "EXISTS, IN, ANY or ALL over a correlated subquery of this form",
            "use that column in a WHERE without GROUP BY, DISTINCT or UNION around it; or join: `FROM a SEMI JOIN (SELECT max(v) AS m FROM b GROUP BY k) c ON c.m = a.x`",
        ),
    };
    let (construct, hint) = (construct.to_string(), Some(hint.to_string()));
    Error::Unsupported { construct, position: inner.spans.first().map(place), hint }
}

/// The first error of `check` for a subquery in an expression of a plan's node.
fn first_subquery(
    logical: &LogicalPlan,
    check: impl Fn(&Expr, &Subquery, &LogicalPlan) -> Option<Error>,
) -> Result<(), Error> {
    let mut found: Option<Error> = None;
    let walk = logical.each_of_all(|node| {
        node.each_expr(|expr| {
            expr.each(|e| {
                let inner = match e {
                    Expr::ScalarSubquery(inner) => inner,
                    Expr::Exists(exists) => &exists.subquery,
                    Expr::InSubquery(list) => &list.subquery,
                    Expr::SetComparison(comparison) => &comparison.subquery,
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                found = found.take().or_else(|| check(e, inner, node));
                Ok(match found {
                    Some(_) => TreeNodeRecursion::Stop,
                    None => TreeNodeRecursion::Continue,
                })
            })
        })
    });
    walk.map_err(plan)?;
    found.map_or(Ok(()), Err)
}

/// True for an error about names, which were resolved before: a subquery could not become a join.
pub(crate) fn is_of_names(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::SchemaError(..) => true,
        DataFusionError::Plan(message) => message.contains("require unique expression names"),
        _ => false,
    }
}

/// Adds a hint for an unknown column that is a variable along other dimensions.
pub(crate) fn near(error: Error, variables: &BTreeSet<String>) -> Error {
    match error {
        Error::UnknownName { kind: "column", name, mut candidates, position }
            if candidates.len() != 1 =>
        {
            let words: Vec<&str> = variables.iter().map(String::as_str).collect();
            let last = name.rsplit('.').next().unwrap_or(&name);
            match nearest(last, &words) {
                Some(near) => candidates = vec![near.to_string()],
                None => {
                    let missing = variables.iter().filter(|v| !candidates.contains(v));
                    let missing: Vec<String> = missing.cloned().collect();
                    candidates.extend(missing);
                }
            }
            Error::UnknownName { kind: "column", name, candidates, position }
        }
        other => other,
    }
}

/// Adds a hint for an unknown column that has the name of an item.
pub(crate) fn of_alias(error: Error, aliases: &BTreeSet<String>) -> Error {
    match error {
        Error::UnknownName { kind: "column", name, position, .. } if aliases.contains(&name) => {
            Error::cells("unknown_name", format!("unknown column `{name}`"), position)
                .with_hint(format!("`{name}` is the alias of an item, which cannot be used here: write its expression, or name it in a subquery: `FROM (SELECT … AS {name} FROM …)`"))
        }
        other => other,
    }
}

/// Adds the position of a text that does not convert to another type.
pub(crate) fn of_text(error: Error, texts: &BTreeMap<String, Position>) -> Error {
    let Error::Cells { code: "type_error", message, position, hint: None } = &error else {
        return error;
    };
    let of_text = message.strip_prefix("cannot convert '");
    let Some((text, _)) = of_text.and_then(|rest| rest.rsplit_once("' to ")) else {
        return error;
    };
    Error::cells("type_error", message.clone(), position.or_else(|| texts.get(text).copied()))
        .with_hint("compare with a value of that type, or convert the other side with `::text`; `try_cast(x AS type)` returns NULL for values that do not convert")
}

/// True for an error of planning that names no place, or only a part of it.
pub(crate) fn wants_position(error: &Error) -> bool {
    let is_of_planning = match error {
        // A column that is not grouped may come from a `*`, and have no position.
        Error::Cells { code: "not_grouped", message, .. } => message.starts_with("HAVING "),
        _ => matches!(
            error.code(),
            "argument_count"
                | "dtype_mismatch"
                | "invalid_argument"
                | "plan_error"
                | "type_error"
                | "unknown_name"
                | "unsupported"
        ),
    };
    is_of_planning && (error.position().is_none() || words::is_rough(error))
}

/// Adds a hint for an unknown function that exists on the tensor surface.
pub(crate) fn of_surface(error: Error, because: &str) -> Error {
    let Error::UnknownName { kind: "function", name, position, .. } = &error else { return error };
    if !functions().iter().any(|row| row.name.eq_ignore_ascii_case(name)) {
        return error;
    }
    let over = ["cumsum", "cumprod", "diff", "shift", "rolling", "ffill"];
    let hint = if over.contains(&name.to_ascii_lowercase().as_str()) {
        "along a dimension write it with OVER, as in `sum(v) OVER (PARTITION BY lat, lon ORDER BY time)`; or put it into a subquery: `FROM (SELECT … AS name FROM x)`"
    } else {
        "put the tensor part into a subquery: `FROM (SELECT … AS name FROM x)`"
    };
    Error::Cells {
        code: "wrong_surface",
        message: format!(
            "the function {name} belongs to the tensor surface, and {because} makes this a cell block"
        ),
        position: *position,
        hint: Some(hint.to_string()),
    }
}

fn read(error: DataFusionError, position: &mut Option<Position>) -> Error {
    match error {
        DataFusionError::Diagnostic(diagnostic, inner) => {
            if let Some(error) = words::of_diagnostic(&diagnostic) {
                return error;
            }
            if let Some(span) = diagnostic.span {
                *position = Some(place(span));
            }
            read(*inner, position)
        }
        DataFusionError::Context(_, inner) => read(*inner, position),
        DataFusionError::Collection(mut errors) if !errors.is_empty() => {
            read(errors.remove(0), position)
        }
        DataFusionError::External(inner) => match inner.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(other) => match other.downcast::<InCall>() {
                Ok(call) => Error::Cells {
                    code: call.error.code(),
                    message: call.error.to_string(),
                    position: *position,
                    hint: call.error.hint(),
                },
                Err(other) => {
                    failed("plan_error", plain(&other.to_string()).to_string(), *position)
                }
            },
        },
        DataFusionError::SchemaError(inner, _) => schema(*inner, *position),
        DataFusionError::NotImplemented(message) => not_implemented(&message, *position),
        DataFusionError::Plan(message) => message_of_plan(&message, *position),
        DataFusionError::Internal(message) if message.contains("failed to match any signature") => {
            message_of_plan(&message, *position)
        }
        DataFusionError::ArrowError(error, _) => of_value(&error.to_string(), *position),
        other => message_of_plan(plain(&other.strip_backtrace()), *position),
    }
}

/// The error for a constant that Arrow could not compute.
fn of_value(message: &str, position: Option<Position>) -> Error {
    let cast = message.strip_prefix("Cast error: ");
    let converted = conversion(message);
    let code = if cast.is_some() || converted.is_some() { "type_error" } else { "plan_error" };
    let message = converted.unwrap_or_else(|| sentence(cast.unwrap_or(message)));
    let hint = match RowsErrorKind::of(&message, false) {
        RowsErrorKind::Range => RowsErrorKind::Range.hint().map(String::from),
        _ => None,
    };
    Error::Cells { code, message, position, hint }
}

fn schema(error: SchemaError, mut position: Option<Position>) -> Error {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            position = position.or_else(|| field.spans().first().map(place));
            let names: Vec<&str> = valid_fields.iter().map(|f| f.name.as_str()).collect();
            let elsewhere = valid_fields.iter().find(|known| known.name == field.name);
            let candidates = match (elsewhere, nearest(&field.name, &names)) {
                (Some(known), _) => vec![known.flat_name()],
                (None, Some(near)) => vec![near.to_string()],
                (None, None) => {
                    let mut seen = BTreeSet::new();
                    let new = names.iter().filter(|name| seen.insert(**name));
                    new.map(|name| (*name).to_string()).collect()
                }
            };
            Error::UnknownName { kind: "column", name: field.flat_name(), candidates, position }
        }
        SchemaError::AmbiguousReference { field } => {
            position = position.or_else(|| field.spans().first().map(place));
            Error::Cells {
                code: "ambiguous_name",
                message: format!("`{}` is ambiguous: several columns have this name", field.name),
                position,
                hint: Some(format!(
                    "write `relation.{}`; if a result has the name of a column, rename it with `AS`",
                    field.name
                )),
            }
        }
        SchemaError::DuplicateQualifiedField { qualifier, name } => Error::Cells {
            code: "duplicate_name",
            message: format!("two relations called `{qualifier}` have a column `{name}`"),
            position,
            hint: Some("give one of them another name, as in `FROM x AS a, x AS b`".to_string()),
        },
        SchemaError::DuplicateUnqualifiedField { name } => Error::Cells {
            code: "duplicate_name",
            message: format!("two columns are called `{name}`"),
            position,
            hint: Some("give one of them another name with `AS`".to_string()),
        },
    }
}

/// Functions that exist only with OVER.
const WINDOW: [&str; 9] = [
    "lag",
    "lead",
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "nth_value",
];

/// Aggregates that exist only as `arg_max(x, y)` and `arg_max(x, y, n)`, with FILTER or without.
const EXTREMES: [&str; 4] = ["arg_max", "arg_min", "max_by", "min_by"];

fn message_of_plan(message: &str, position: Option<Position>) -> Error {
    if let Some(rest) = message.strip_prefix("Invalid function '") {
        let mut parts = rest.split('\'');
        let name = parts.next().unwrap_or_default().to_string();
        if WINDOW.contains(&name.to_ascii_lowercase().as_str()) {
            return Error::Cells {
                code: "plan_error",
                message: format!("{name} needs an OVER clause, which orders the rows"),
                position,
                hint: Some(format!("write `{name}(…) OVER (ORDER BY …)`")),
            };
        }
        if EXTREMES.contains(&name.to_ascii_lowercase().as_str()) {
            return Error::Unsupported {
                construct: format!("`{name}` with DISTINCT or ORDER BY"),
                position,
                hint: counterparts::hint(&name),
            };
        }
        if let Some(hint) = counterparts::hint(&name) {
            return Error::cells("unknown_name", format!("unknown function `{name}`"), position)
                .with_hint(hint);
        }
        // DataFusion suggests a function however far its name is.
        let offered: Vec<&str> = parts.nth(1).into_iter().collect();
        let candidates = nearest(&name, &offered).map(str::to_string).into_iter().collect();
        return Error::UnknownName { kind: "function", name, candidates, position };
    }
    if message.contains("require unique expression names") {
        return Error::Cells {
            code: "duplicate_name",
            message: match message.split('"').nth(1) {
                Some(column) => format!("two columns are called `{column}`"),
                None => "two columns have the same name".to_string(),
            },
            position,
            hint: Some("give one of them another name with `AS`".to_string()),
        };
    }
    if let Some(error) = calls::error(message, position) {
        return error;
    }
    if let Some(error) = known_words(message, position).or_else(|| words::error(message, position))
    {
        return error;
    }
    if message.contains("GROUP BY") && message.contains("must ") {
        return Error::cells("not_grouped", not_grouped(message), position)
            .with_hint("add it to GROUP BY, or aggregate it with avg, min, max, …");
    }
    let lower = message.to_lowercase();
    let of_types = [
        "coerc",
        "type signature",
        "cannot infer common",
        "data type",
        "cannot cast",
        "takes a time, not ",
    ];
    let is_type = of_types.iter().any(|part| lower.contains(part));
    failed(if is_type { "type_error" } else { "plan_error" }, sentence(message), position)
}

/// Rewords messages of DataFusion.
fn known_words(message: &str, position: Option<Position>) -> Option<Error> {
    if let Some((_, rest)) = message.split_once("Cannot access field at argument ")
        && let Some((_, of)) = rest.split_once("type ")
        && let Some((of, _)) = of.split_once(" is not Struct")
    {
        return Some(
            Error::cells("type_error", format!("{} has no fields", calls::spoken(of)), position)
                .with_hint("structs and maps have fields: `st['a']`, `st.a`; to refer to an outer relation, give it an alias that no column here has"),
        );
    }
    if message.starts_with("Substring without for/from") {
        return Some(
            Error::cells("argument_count", "`substr` needs a text and a start", position)
                .with_hint(
                    "`substr(s, 2)` begins at the second character, `substr(s, 2, 3)` has three",
                ),
        );
    }
    let misplaced = [
        (
            "In/Exist/SetComparison subquery can only be used in",
            "EXISTS, IN, ANY or ALL over a subquery",
        ),
        ("Correlated scalar subquery can only be used in", VALUE_OUTSIDE),
        ("Correlated scalar subquery in the GROUP BY", VALUE_OUTSIDE),
    ];
    if let Some((_, what)) = misplaced.iter().find(|(start, _)| message.starts_with(start)) {
        let hint = "name it as an item of a subquery and use the name: `FROM (SELECT *, k IN (SELECT …) AS found FROM a) ORDER BY found`";
        return Some(
            Error::cells("unsupported", format!("{what} is not supported at this place"), position)
                .with_hint(hint),
        );
    }
    if message.starts_with("Correlated scalar subquery must be aggregated") {
        return Some(Error::Cells {
            code: "plan_error",
            message:
                "a correlated scalar subquery must be an aggregate: it may return several rows"
                    .into(),
            position,
            hint: Some(ONE_OF_ROWS.into()),
        });
    }
    if let Some(rest) = message.strip_prefix("Source table contains ")
        && let Some((columns, rest)) = rest.split_once(" columns but only ")
        && let Some((names, _)) = rest.split_once(' ')
    {
        return Some(Error::Cells {
            code: "plan_error",
            message: format!(
                "the relation has {columns} {}, and its alias names {names}",
                if columns == "1" { "column" } else { "columns" }
            ),
            position,
            hint: Some("name all of them, or none".to_string()),
        });
    }
    None
}

/// The error for syntax that DataFusion does not plan.
fn not_implemented(message: &str, position: Option<Position>) -> Error {
    if let Some(name) = message.strip_prefix("Unsupported SQL type ") {
        return Error::cells("unsupported", format!("unknown type `{name}`"), position)
            .with_hint("types are bool, tinyint, smallint, int, bigint, real, double, decimal(p, s), text, date, timestamp, interval, and NumPy's int8 to float64");
    }
    let Some(node) = message.strip_prefix("Unsupported ast node in sqltorel: ") else {
        return failed("unsupported", sentence(message), position);
    };
    // The node is printed as Rust: `AtTimeZone { timestamp: … }`.
    let mut construct = String::new();
    for c in node.chars().take_while(char::is_ascii_alphanumeric) {
        if c.is_ascii_uppercase() && !construct.is_empty() {
            construct.push(' ');
        }
        construct.push(c.to_ascii_uppercase());
    }
    Error::Unsupported { construct: format!("`{construct}`"), position, hint: None }
}

/// The ungrouped column, if the message quotes it.
fn not_grouped(message: &str) -> String {
    match message.split("olumn \"").nth(1).and_then(|rest| rest.split('"').next()) {
        Some(column) => format!("`{column}` is neither in GROUP BY nor in an aggregate"),
        None => sentence(message),
    }
}

fn failed(code: &'static str, message: String, position: Option<Position>) -> Error {
    Error::Cells { code, message, position, hint: None }
}

/// The first line of a message without its full stop, as one sentence. A printed parser tree is
/// cut off.
fn sentence(message: &str) -> String {
    let mut line = message.lines().next().unwrap_or_default();
    if ["Ident {", "Span(", "relation: "].iter().any(|part| line.contains(part))
        && let Some(end) = line.find(['(', '{', '['])
    {
        line = line[..end].trim_end();
    }
    spoken_in(line.trim_end_matches('.'))
}

pub(super) fn position_of(expr: &Expr) -> Option<Position> {
    let columns = expr.column_refs();
    let mut spans: Vec<_> = columns.iter().filter_map(|column| column.spans().first()).collect();
    spans.sort_by_key(|span| (span.start.line, span.start.column));
    spans.first().copied().map(place)
}

fn place(span: datafusion::common::Span) -> Position {
    let length = if span.start.line == span.end.line {
        span.end.column.saturating_sub(span.start.column).max(1)
    } else {
        0
    };
    Position { line: span.start.line, column: span.start.column, length }
}
