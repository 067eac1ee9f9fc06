//! Calls of elementwise functions over columns, for cell blocks.
//!
//! The call keeps its constants as text, and each other argument is a column:
//!
//! ```text
//!   clip(a + b, 0, 1.5)   ⇒   `clip(x0, 0, 1.5)` and the column a + b
//! ```
//! So a number has no type of its own, as in a tensor block, and one lowering decides types, masks and bits of both
//! surfaces.

use sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName,
    SelectItem, UnaryOperator, Value,
};
use tessera_planner::build::Builder;
use tessera_planner::ir::NodeId;

use crate::Statement;
use crate::ast;
use crate::error::{BindError, Error};
use crate::lower::over_columns;
use crate::scope::innermost_mut;

/// Constants as functions without arguments.
const CONSTANTS: [&str; 4] = ["e", "inf", "nan", "pi"];

/// The name of a column in the text of a call.
pub(crate) fn name(column: usize) -> String {
    format!("x{column}")
}

/// Splits a call into its text and its columns; `None` for an expression that is not a plain call.
pub fn apart(expr: &Expr) -> Option<(String, Vec<Expr>)> {
    let lower = ast::call(expr)?.name.value.to_ascii_lowercase();
    let Expr::Function(function) = expr else { return None };
    let mut function = function.clone();
    // Equal calls have equal texts.
    function.name = ObjectName::from(vec![Ident::new(lower)]);
    let mut columns = Vec::new();
    if let FunctionArguments::List(list) = &mut function.args {
        for arg in &mut list.args {
            let (FunctionArg::Unnamed(FunctionArgExpr::Expr(arg))
            | FunctionArg::Named { arg: FunctionArgExpr::Expr(arg), .. }) = arg
            else {
                return None;
            };
            if !is_constant(arg) {
                let column = Expr::Identifier(Ident::new(name(columns.len())));
                columns.push(std::mem::replace(arg, column));
            }
        }
    }
    Some((function.to_string(), columns))
}

/// True for a literal, a sum or product of literals, and a constant. Quotients are columns: those of integers truncate
/// in a cell block.
fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Value(value) => !matches!(value.value, Value::Placeholder(_)),
        Expr::Nested(inner)
        | Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr: inner } => {
            is_constant(inner)
        }
        Expr::BinaryOp {
            left,
            op: BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Multiply,
            right,
        } => is_constant(left) && is_constant(right),
        Expr::Function(_) => ast::call(expr).is_some_and(|call| {
            let name = &call.name.value;
            let is_bare = call.positional.is_empty() && call.named.is_empty();
            is_bare && CONSTANTS.iter().any(|known| known.eq_ignore_ascii_case(name))
        }),
        _ => false,
    }
}

/// Lowers the text of a call ([`apart`]) to a node. The columns are nodes of one rank, whose shapes broadcast.
///
/// # Errors
/// The errors of the function in a tensor block, without a position; `invalid_argument` for a column where the function
/// needs a constant.
pub fn lower(call: &str, b: &mut Builder, columns: &[NodeId]) -> Result<NodeId, Error> {
    let expr = parsed(call)?;
    over_columns(&expr, b, columns).map_err(|error| match error {
        Error::Waiting => Error::Bind {
            error: BindError::InvalidArgument {
                function: ast::function_name(&expr).map_or_else(String::new, |f| f.value.clone()),
                argument: "a column".into(),
                reason: "is given where a constant is required".into(),
            },
            position: None,
        },
        other => other.moved(None),
    })
}

fn parsed(call: &str) -> Result<Expr, Error> {
    let mut statements = crate::parse(&format!("SELECT {call}"))?;
    if let Some(Statement::Query(mut query)) = statements.pop().map(|parsed| parsed.statement)
        && let Some(select) = innermost_mut(&mut query)
        && let Some(SelectItem::UnnamedExpr(expr)) = select.projection.pop()
    {
        return Ok(expr);
    }
    Err(Error::unsupported(format!("the call `{call}` of columns"), None))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::config::Config;
    use tessera_planner::dtype::DType;
    use tessera_planner::scalar::Scalar;

    #[test]
    fn constants_stay_in_the_text() {
        for (call, text, columns) in [
            ("clip(a + b, -(1 + 2), 2 * pi())", "clip(x0, -(1 + 2), 2 * pi())", "a + b"),
            ("IsClose(a, b, rtol => 1e-3)", "isclose(x0, x1, rtol => 1e-3)", "a, b"),
            ("maximum(1 / 2, -inf())", "maximum(x0, -inf())", "1 / 2"),
            ("minimum(t, '2020-01-31')", "minimum(x0, '2020-01-31')", "t"),
            ("clip(x0, NULL, f(1))", "clip(x0, NULL, x1)", "x0, f(1)"),
        ] {
            let (got, rest) = apart(&parsed(call).unwrap()).unwrap();
            let rest: Vec<String> = rest.iter().map(ToString::to_string).collect();
            assert_eq!((got.as_str(), rest.join(", ").as_str()), (text, columns));
        }
        assert_eq!(apart(&parsed("a + 1").unwrap()), None);
    }

    #[test]
    fn literals_take_the_type_of_the_column() {
        let lowered = |call: &str, dtype| {
            let mut b = Builder::new(Config::default());
            let column = b.full(Some(Scalar::zero(dtype)), dtype, &[1], None).unwrap();
            lower(call, &mut b, &[column]).map(|node| b.dtype(node))
        };
        assert_eq!(lowered("clip(x0, 0, 1.5)", DType::Float32), Ok(DType::Float32));
        assert_eq!(lowered("clip(x0, 0, 1.5)", DType::Int16), Ok(DType::Float64));
        assert_eq!(lowered("hypot(x0, 3)", DType::Int16), Ok(DType::Float32));
        assert_eq!(lowered("isfinite(x0)", DType::Int8), Ok(DType::Bool));
        let error = lowered("reciprocal(x0)", DType::Int8).unwrap_err();
        assert_eq!((error.code(), error.position()), ("dtype_mismatch", None));
    }
}
