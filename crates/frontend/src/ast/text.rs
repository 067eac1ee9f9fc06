//! Source text of expressions, which names items without an alias.

use crate::walk::walk_mut;
use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Ident, VisitorMut, WindowType};

use super::{Axis, Selection, Slice};

/// Maximum characters of a derived name.
const LENGTH_MAX: usize = 200;

/// The text of an expression in the dialect's syntax; `None` if it is too long for a name.
pub fn text(expr: &Expr) -> Option<String> {
    let mut expr = expr.clone();
    // Bottom-up: the children are text by the time their parent is visited.
    let _ = walk_mut(&mut expr, &mut Spell);
    let text = expr.to_string();
    (text.chars().count() <= LENGTH_MAX).then_some(text)
}

struct Spell;

impl VisitorMut for Spell {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some(text) = subscript(expr).or_else(|| operator(expr)).or_else(|| framed(expr)) {
            // An unquoted identifier is printed verbatim.
            *expr = Expr::Identifier(Ident::new(text));
        }
        ControlFlow::Continue(())
    }
}

/// `a[0:10, lat => 5]`
fn subscript(expr: &Expr) -> Option<String> {
    let subscript = super::subscript(expr)?;
    let axes: Vec<String> = subscript
        .axes
        .iter()
        .map(|axis| match axis {
            Axis::Index(index) => index.to_string(),
            Axis::Slice(of) => slice(of),
            Axis::Ellipsis(_) => "...".to_string(),
            Axis::NewAxis(_) => "NEWAXIS".to_string(),
            Axis::Named { dim, selection: Selection::Index(label) } => format!("{dim} => {label}"),
            Axis::Named { dim, selection: Selection::Slice(of) } => {
                format!("{dim} => {}", slice(of))
            }
        })
        .collect();
    Some(format!("{}[{}]", subscript.base, axes.join(", ")))
}

fn slice(of: &Slice<'_>) -> String {
    let bound = |bound: Option<&Expr>| bound.map(ToString::to_string).unwrap_or_default();
    let mut text = format!("{}:{}", bound(of.lo), bound(of.hi));
    if of.step.is_some() {
        text.push_str(&format!(":{}", bound(of.step)));
    }
    text
}

/// `a @ b` and `a ^ b`, which the parser represents as calls.
fn operator(expr: &Expr) -> Option<String> {
    let call = super::call(expr)?;
    let sign = match call.name.value.as_str() {
        "matmul" => "@",
        "power" => "^",
        _ => return None,
    };
    let span = call.name.span;
    let is_sign = span.start.line > 0
        && span.start.line == span.end.line
        && span.end.column.saturating_sub(span.start.column) <= 1;
    match call.positional.as_slice() {
        [left, right] if is_sign && call.named.is_empty() => Some(format!("{left} {sign} {right}")),
        _ => None,
    }
}

/// `sum(x) OVER (… EXCLUDE TIES)`
fn framed(expr: &Expr) -> Option<String> {
    let Expr::Function(function) = expr else { return None };
    let Some(WindowType::WindowSpec(spec)) = &function.over else { return None };
    let excluded = spec.partition_by.iter().find_map(super::exclusion)?;
    let mut shown = function.clone();
    if let Some(WindowType::WindowSpec(spec)) = &mut shown.over {
        spec.partition_by.retain(|key| super::exclusion(key).is_none());
    }
    let shown = shown.to_string();
    Some(format!("{} EXCLUDE {excluded})", shown.strip_suffix(')')?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::text;
    use sqlparser::ast::SelectItem;

    #[test]
    fn expressions_are_named_by_their_text() {
        for written in [
            "mean(t2m, axis => 'time')",
            "a[0:10, :, ::-1]",
            "a[-1, ..., NEWAXIS]",
            "t2m[time => '2020-01':'2020-02', lat => 60:30:2][0]",
            "x - mean(x[0:3], 0)",
            "a @ b ^ 2 + power(c, 2)",
            "(a + b) // 2",
            "[1, 2]",
            "qr(a)",
            "tensor(SELECT lat, max(v[0:1]) FROM x GROUP BY lat)",
            "sum(x) OVER (PARTITION BY k ORDER BY i ROWS 2 PRECEDING EXCLUDE TIES)",
        ] {
            let query = crate::query_of(&format!("SELECT {written} FROM a")).unwrap().unwrap();
            let select = crate::scope::innermost(&query).unwrap();
            let SelectItem::UnnamedExpr(expr) = &select.projection[0] else { panic!("{written}") };
            assert_eq!(text(expr).unwrap(), written);
        }
        let long = format!("SELECT {} FROM a", ["a"; 200].join(" + "));
        let query = crate::query_of(&long).unwrap().unwrap();
        let select = crate::scope::innermost(&query).unwrap();
        let SelectItem::UnnamedExpr(expr) = &select.projection[0] else { panic!("no item") };
        assert_eq!(text(expr), None);
    }
}
