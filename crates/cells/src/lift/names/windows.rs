//! Named windows, written out where they are used.
//!
//! ```text
//! sum(v) OVER (w ROWS 2 PRECEDING) … WINDOW w AS (PARTITION BY k ORDER BY id)
//!   ⇒  sum(v) OVER (PARTITION BY k ORDER BY id ROWS 2 PRECEDING)
//! ```
//! DataFusion does not read the name in parentheses. As in the standard, a window that starts from another one has its
//! PARTITION BY, and its ORDER BY unless that one has none; only `OVER w` without parentheses has its frame, too.
//!
//! On the way, IGNORE NULLS of a function's arguments is moved to the function.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArguments, Ident,
    NamedWindowDefinition, NamedWindowExpr, NullTreatment, OrderBy, OrderByExpr, Select, Value,
    VisitorMut, WindowSpec, WindowType,
};
use tessera_frontend::ast;
use tessera_frontend::error::{Error, Position, nearest};
use tessera_frontend::walk::walk_mut;

use super::super::functions::excluding;
use super::super::markers::FRAME;
use super::super::parts::{Parts, Written};
use super::frames;
use crate::walk::counts_queries;

/// Writes out the windows of a block's items and of QUALIFY.
///
/// # Errors
/// `unknown_name`, `duplicate_name`, `syntax`, `plan_error`; `too_complex` if too much is written out.
pub(super) fn expand(select: &mut Select, written: &mut Written) -> Result<(), Error> {
    let windows = Windows::of(select)?;
    let mut calls = Calls { windows: &windows, written, queries: 0 };
    let walked = match walk_mut(&mut select.projection, &mut calls) {
        ControlFlow::Continue(()) => walk_mut(&mut select.qualify, &mut calls),
        broken => broken,
    };
    match walked {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Writes out the windows of a block in the ORDER BY of its query.
pub(super) fn expand_keys(
    order: &mut OrderBy,
    select: &Select,
    written: &mut Written,
) -> Result<(), Error> {
    let windows = Windows::of(select)?;
    let mut calls = Calls { windows: &windows, written, queries: 0 };
    match walk_mut(order, &mut calls) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// A window that has a name, without another one inside.
struct KnownWindow {
    name: Ident,
    spec: WindowSpec,
    size: Parts,
}

struct Windows(Vec<KnownWindow>);

impl Windows {
    fn of(select: &Select) -> Result<Self, Error> {
        let mut windows = Windows(Vec::new());
        for NamedWindowDefinition(name, window) in &select.named_window {
            if windows.0.iter().any(|known| known.name.value == name.value) {
                return Err(Error::Cells {
                    code: "duplicate_name",
                    message: format!("two windows are called `{}`", name.value),
                    position: Position::of_span(name.span),
                    hint: Some("give one of them another name".to_string()),
                });
            }
            let spec = match window {
                NamedWindowExpr::NamedWindow(other) => windows.find(other)?.spec.clone(),
                NamedWindowExpr::WindowSpec(spec) => windows.whole(spec.clone())?,
            };
            let size = size(&spec);
            windows.0.push(KnownWindow { name: name.clone(), spec, size });
        }
        Ok(windows)
    }

    fn find(&self, name: &Ident) -> Result<&KnownWindow, Error> {
        let is_near = |known: &&KnownWindow| known.name.value.eq_ignore_ascii_case(&name.value);
        let exact = self.0.iter().find(|known| known.name.value == name.value);
        exact.or_else(|| self.0.iter().find(is_near)).ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|known| known.name.value.as_str()).collect();
            let candidates = match nearest(&name.value, &names) {
                Some(near) => vec![near.to_string()],
                None => names.into_iter().map(String::from).collect(),
            };
            let position = Position::of_span(name.span);
            Error::UnknownName { kind: "window", name: name.value.clone(), candidates, position }
        })
    }

    fn whole(&self, mut spec: WindowSpec) -> Result<WindowSpec, Error> {
        let Some(name) = spec.window_name.take() else { return Ok(spec) };
        let base = &self.find(&name)?.spec;
        let refused = |what: &str, hint: String| Error::Syntax {
            message: format!("a window that starts from `{}` {what}", name.value),
            position: Position::of_span(name.span),
            hint: Some(hint),
        };
        let apart = || format!("write all of the window, without `{}`", name.value);
        if base.window_frame.is_some() {
            let hint = format!(
                "write `OVER {}` without parentheses, or define it without its frame",
                name.value
            );
            return Err(refused("cannot take over its frame", hint));
        }
        let is_excluded = |key: &Expr| ast::exclusion(key).is_some();
        let (excluded, own): (Vec<Expr>, Vec<Expr>) =
            std::mem::take(&mut spec.partition_by).into_iter().partition(is_excluded);
        if !own.is_empty() {
            return Err(refused("has its PARTITION BY and cannot have another one", apart()));
        }
        if !spec.order_by.is_empty() && !base.order_by.is_empty() {
            return Err(refused("has its ORDER BY and cannot have another one", apart()));
        }
        spec.partition_by = base.partition_by.iter().cloned().chain(excluded).collect();
        if spec.order_by.is_empty() {
            spec.order_by.clone_from(&base.order_by);
        }
        Ok(spec)
    }
}

fn size(spec: &WindowSpec) -> Parts {
    let orders = spec.order_by.iter().map(|key| &key.expr);
    let keys = spec.partition_by.iter().chain(orders);
    keys.fold(Parts::default(), |sum, key| {
        let Parts { count, depth } = Parts::of(key, &BTreeMap::new());
        Parts { count: sum.count.saturating_add(count), depth: sum.depth.max(depth) }
    })
}

/// Writes out the windows of calls.
struct Calls<'a> {
    windows: &'a Windows,
    written: &'a mut Written,
    /// Number of open queries, whose blocks have windows of their own.
    queries: usize,
}

impl Calls<'_> {
    fn one(&mut self, expr: &mut Expr) -> Result<(), Error> {
        let Expr::Function(function) = &mut *expr else { return Ok(()) };
        take_nulls(function);
        let named = match &function.over {
            Some(WindowType::NamedWindow(name)) => {
                let known = self.windows.find(name)?;
                Some((known.spec.clone(), known.size))
            }
            Some(WindowType::WindowSpec(spec)) => match &spec.window_name {
                Some(name) => {
                    Some((self.windows.whole(spec.clone())?, self.windows.find(name)?.size))
                }
                None => None,
            },
            None => return Ok(()),
        };
        let spec = match (&named, &function.over) {
            (Some((spec, _)), _) | (None, Some(WindowType::WindowSpec(spec))) => Some(spec),
            _ => None,
        };
        if let Some(frame) = spec.and_then(|spec| spec.window_frame.as_ref()) {
            frames::check(frame)?;
        }
        if let Some((_, size)) = &named {
            self.written.add(*size, expr)?;
        }
        if let Expr::Function(function) = expr {
            if let Some((spec, _)) = named {
                function.over = Some(WindowType::WindowSpec(spec));
            }
            mark(function);
        }
        Ok(())
    }
}

/// Moves IGNORE NULLS to the function from a call at the end of its arguments, to which the parser gives it:
/// `first_value(coalesce(x, y) IGNORE NULLS)`.
fn take_nulls(function: &mut Function) {
    let FunctionArguments::List(list) = &mut function.args else { return };
    let last = match (list.clauses.last_mut(), list.args.last_mut()) {
        (Some(FunctionArgumentClause::OrderBy(keys)), _) => {
            keys.last_mut().map(|key| &mut key.expr)
        }
        (None, Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)))) => Some(arg),
        _ => None,
    };
    if let Some(nulls) = last.and_then(nulls_of) {
        list.clauses.push(FunctionArgumentClause::IgnoreOrRespectNulls(nulls));
    }
}

/// Takes the treatment of NULL from the call at the end of an expression.
fn nulls_of(expr: &mut Expr) -> Option<NullTreatment> {
    match expr {
        Expr::Function(call) if call.over.is_none() => call.null_treatment.take(),
        Expr::BinaryOp { right, .. } => nulls_of(right),
        Expr::UnaryOp { expr, .. } => nulls_of(expr),
        _ => None,
    }
}

/// Moves EXCLUDE of the frame and the order of the arguments, which DataFusion's planner cannot read, to a marker among
/// the partition keys. See [`excluding`].
fn mark(function: &mut Function) {
    let Some(WindowType::WindowSpec(spec)) = &mut function.over else { return };
    let at = spec.partition_by.iter().position(|key| ast::exclusion(key).is_some());
    let excluded = at.map(|at| spec.partition_by.remove(at));
    let excluded = excluded.as_ref().and_then(ast::exclusion).unwrap_or_default().to_string();
    let mut keys = Vec::new();
    if let FunctionArguments::List(list) = &mut function.args {
        list.clauses.retain_mut(|clause| match clause {
            FunctionArgumentClause::OrderBy(order) => {
                keys.append(order);
                false
            }
            _ => true,
        });
    }
    if excluded.is_empty() && keys.is_empty() {
        return;
    }
    let option = |key: &OrderByExpr| {
        let is_ascending = key.options.asc.unwrap_or(true);
        let is_null_first = key.options.nulls_first.unwrap_or(!is_ascending);
        excluding::option(is_ascending, is_null_first)
    };
    let options: String = keys.iter().map(option).collect();
    let texts = [excluded, options].map(|text| Expr::Value(Value::SingleQuotedString(text).into()));
    let args = texts.into_iter().chain(keys.into_iter().map(|key| key.expr)).collect();
    spec.partition_by.push(super::call(FRAME, args));
}

impl VisitorMut for Calls<'_> {
    type Break = Error;

    counts_queries!(queries);

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if self.queries > 0 {
            return ControlFlow::Continue(());
        }
        match self.one(expr) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_frontend::scope;

    fn expanded(call: &str, windows: &str) -> Result<String, Error> {
        let sql = format!("SELECT {call} FROM t WINDOW {windows}");
        let mut query = tessera_frontend::query_of(&sql).unwrap().unwrap();
        let select = scope::innermost_mut(&mut query).unwrap();
        expand(select, &mut Written::default())?;
        Ok(select.projection[0].to_string())
    }

    #[test]
    fn named_windows_are_expanded() {
        let windows = "w AS (PARTITION BY k), v AS (w ORDER BY i), f AS (v ROWS 2 PRECEDING)";
        for (call, want) in [
            ("sum(x) OVER w", "sum(x) OVER (PARTITION BY k)"),
            ("sum(x) OVER (W)", "sum(x) OVER (PARTITION BY k)"),
            ("sum(x) OVER (w ORDER BY j)", "sum(x) OVER (PARTITION BY k ORDER BY j)"),
            (
                "sum(x) OVER (v ROWS 1 PRECEDING)",
                "sum(x) OVER (PARTITION BY k ORDER BY i ROWS 1 PRECEDING)",
            ),
            ("sum(x) OVER f", "sum(x) OVER (PARTITION BY k ORDER BY i ROWS 2 PRECEDING)"),
            ("1 + sum(x) OVER ()", "1 + sum(x) OVER ()"),
            (
                "sum(x) OVER (v ROWS 1 PRECEDING EXCLUDE TIES)",
                "sum(x) OVER (PARTITION BY k, tessera_frame('TIES', '') ORDER BY i ROWS 1 PRECEDING)",
            ),
            (
                "list(x ORDER BY y DESC, z) OVER (ORDER BY i)",
                "list(x) OVER (PARTITION BY tessera_frame('', 'Za', y, z) ORDER BY i)",
            ),
            ("(SELECT sum(y) OVER w FROM u)", "(SELECT sum(y) OVER w FROM u)"),
            (
                "first_value(-abs(x) IGNORE NULLS) OVER w",
                "first_value(-abs(x) IGNORE NULLS) OVER (PARTITION BY k)",
            ),
        ] {
            assert_eq!(expanded(call, windows).unwrap(), want);
        }
    }

    #[test]
    fn windows_that_do_not_fit_are_errors() {
        let windows = "w AS (PARTITION BY k ORDER BY i), f AS (w ROWS 2 PRECEDING)";
        for (call, windows, code, column) in [
            ("sum(x) OVER (nosuch ROWS 2 PRECEDING)", windows, "unknown_name", 21),
            ("sum(x) OVER nosuch", windows, "unknown_name", 20),
            ("sum(x) OVER (w PARTITION BY j)", windows, "syntax", 21),
            ("sum(x) OVER (w ORDER BY j)", windows, "syntax", 21),
            ("sum(x) OVER (f)", windows, "syntax", 21),
            ("x", "w AS (ORDER BY i), w AS (ORDER BY j)", "duplicate_name", 43),
            ("x", "w AS (v), v AS (ORDER BY j)", "unknown_name", 30),
        ] {
            let error = expanded(call, windows).unwrap_err();
            assert_eq!(error.code(), code, "{call}");
            let position = error.position().unwrap();
            assert_eq!(position.column, column, "{call}");
        }
    }

    #[test]
    fn expansions_are_bounded() {
        let keys = vec!["k"; 1000].join(", ");
        let calls = vec!["sum(x) OVER w"; 500].join(", ");
        let error = expanded(&calls, &format!("w AS (PARTITION BY {keys})")).unwrap_err();
        assert_eq!(error.code(), "too_complex");
    }
}
