//! Elementwise calls of the tensor surface in a cell block.
//!
//! | written | becomes |
//! |---|---|
//! | `clip(x, 0, 1)` | `clip('clip(x0, 0, 1)', x)`: see [`super::super::functions`] |
//! | `~x` | `bitwise_not(x)`, likewise |
//! | `isnull(x)`, `notnull(x)` | `x IS NULL`, `x IS NOT NULL` |
//! | `isin(x, [1, 2])` | `x IN (1, 2)` |
//! | `digitize(x, [0, 5])` | the number of edges that are not above x: `digitize('astype(NOT (x0 < 0), …) + …', x)` |
//! | `searchsorted([0, 5], x)` | the number of edges below x, likewise |
//!
//! Runs before the arguments, which are columns of the call, are rewritten.

use sqlparser::ast::{Expr, Ident, ObjectNamePart, UnaryOperator, Value};
use tessera_frontend::ast::{self, Call};
use tessera_frontend::columns;

use super::super::functions::{EDGES_MAX, is_elementwise};

/// The replacement of such a call; `None` for other expressions.
pub(super) fn rewritten(expr: &Expr) -> Option<Expr> {
    if let Expr::UnaryOp { op: UnaryOperator::BitwiseNot, expr: x } = expr {
        let inverted = super::call("bitwise_not", vec![(**x).clone()]);
        return Some(rewritten(&inverted).unwrap_or(inverted));
    }
    let call = ast::call(expr)?;
    let name = call.name.value.to_ascii_lowercase();
    match name.as_str() {
        "isnull" | "notnull" => {
            let [x] = arguments(&call, ["x"])?;
            let x = Box::new(x?.clone());
            Some(if name == "isnull" { Expr::IsNull(x) } else { Expr::IsNotNull(x) })
        }
        "isin" => {
            let [x, values, invert] = arguments(&call, ["x", "values", "invert"])?;
            let (expr, list) = (Box::new(x?.clone()), list(values?)?.to_vec());
            Some(Expr::InList { expr, list, negated: flag(invert)? })
        }
        "digitize" => {
            let [x, bins, right] = arguments(&call, ["x", "bins", "right"])?;
            let text = bin(list(bins?)?, flag(right)?)?;
            Some(of_text(&call, text, vec![x?.clone()]))
        }
        "searchsorted" => {
            let [edges, x, side] = arguments(&call, ["a", "v", "side"])?;
            let is_left = match side {
                None => true,
                Some(Expr::Value(side)) => match &side.value {
                    Value::SingleQuotedString(side) if side == "left" => true,
                    Value::SingleQuotedString(side) if side == "right" => false,
                    _ => return None,
                },
                Some(_) => return None,
            };
            let edges = list(edges?)?;
            let text = bin(edges, is_left).filter(|_| rises(edges) == Some(true))?;
            Some(of_text(&call, text, vec![x?.clone()]))
        }
        _ if is_elementwise(&name) => {
            let (text, columns) = columns::apart(expr)?;
            Some(of_text(&call, text, columns))
        }
        _ => None,
    }
}

/// The arguments of a call by their parameters; `None` if one does not belong to a parameter.
fn arguments<'a, const N: usize>(
    call: &Call<'a>,
    parameters: [&str; N],
) -> Option<[Option<&'a Expr>; N]> {
    let mut found = [None; N];
    for (at, &argument) in call.positional.iter().enumerate() {
        *found.get_mut(at)? = Some(argument);
    }
    for &(name, argument) in &call.named {
        let at = parameters.iter().position(|known| known.eq_ignore_ascii_case(&name.value))?;
        if found[at].replace(argument).is_some() {
            return None;
        }
    }
    Some(found)
}

/// The items of a list that is not empty.
fn list(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::Array(array) if !array.elem.is_empty() => Some(array.elem.as_slice()),
        _ => None,
    }
}

/// `true` or `false`; `false` without an argument.
fn flag(expr: Option<&Expr>) -> Option<bool> {
    match expr {
        None => Some(false),
        Some(Expr::Value(value)) => match value.value {
            Value::Boolean(value) => Some(value),
            _ => None,
        },
        Some(_) => None,
    }
}

/// A number of the query.
fn number(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse().ok(),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => number(expr).map(|v| -v),
        _ => None,
    }
}

/// True if the edges rise, false if they fall; `None` if they do neither or are not numbers.
fn rises(edges: &[Expr]) -> Option<bool> {
    let edges: Vec<f64> = edges.iter().map(number).collect::<Option<_>>()?;
    if edges.windows(2).all(|w| w[0] <= w[1]) {
        return Some(true);
    }
    edges.windows(2).all(|w| w[0] >= w[1]).then_some(false)
}

/// The number of the bin of `x0` between edges, as an expression of tensors; `right` closes bins at their upper edge.
/// NaN is above all edges.
fn bin(edges: &[Expr], right: bool) -> Option<String> {
    if edges.len() > EDGES_MAX {
        return None;
    }
    let (before, op) = match (rises(edges)?, right) {
        (true, false) => ("NOT ", "<"),
        (true, true) => ("NOT ", "<="),
        (false, false) => ("", "<"),
        (false, true) => ("", "<="),
    };
    let one = |edge: &Expr| format!("astype({before}(x0 {op} {edge}), 'int64')");
    Some(edges.iter().map(one).collect::<Vec<_>>().join(" + "))
}

/// The call of a function of rows with that text, at the position of the call.
fn of_text(call: &Call<'_>, text: String, columns: Vec<Expr>) -> Expr {
    let text = Expr::Value(Value::SingleQuotedString(text).into());
    let name = call.name.value.to_ascii_lowercase();
    let mut new = super::call(&name, std::iter::once(text).chain(columns).collect());
    if let Expr::Function(function) = &mut new
        && let Some(ObjectNamePart::Identifier(own)) = function.name.0.first_mut()
    {
        *own = Ident::with_span(call.name.span, name);
    }
    new
}
