//! Tensor syntax, which blocks of cells do not have.

use sqlparser::ast::{Expr, FunctionArg, FunctionArguments, Ident};
use tessera_frontend::ast;
use tessera_frontend::error::{Error, Position};

use super::super::functions::STRUCT_INSERT;
use super::Relations;
use super::ours::STRUCT_PACK;

impl Relations<'_> {
    /// The error for an expression of the tensor surface.
    pub(super) fn refuse(&self, expr: &Expr) -> Option<Error> {
        let wrong = |what: String, position| {
            Some(Error::Cells {
                code: "wrong_surface",
                message: format!(
                    "{what} belongs to the tensor surface, and {} makes this a cell block",
                    self.because
                ),
                position,
                hint: Some(
                    "put the tensor part into a subquery: `FROM (SELECT … AS name FROM x)`"
                        .to_string(),
                ),
            })
        };
        if let Some(subscript) = ast::subscript(expr) {
            return wrong("a subscript".to_string(), Position::of_span(subscript.span));
        }
        let Expr::Function(function) = expr else { return None };
        let name = ast::function_name(expr)?;
        if ast::tensor_of(function).is_some() {
            return Some(Error::Cells {
                code: "wrong_surface",
                message: format!(
                    "tensor(…) returns a tensor, but {} makes this a cell block, whose expressions refer to single cells",
                    self.because
                ),
                position: Position::of_span(name.span),
                hint: Some(
                    "join its rows by their labels: `FROM x JOIN (SELECT …) t USING (dim)`; one value is `(SELECT …)` without tensor; or compute with it in a tensor block inside: `FROM (SELECT v - tensor(SELECT …) AS d FROM x)`"
                        .to_string(),
                ),
            });
        }
        if name.value == "matmul" {
            let what = if span_is_operator(name) { "`@`" } else { "matmul" };
            return wrong(what.to_string(), Position::of_span(name.span));
        }
        let takes_names = |own: &str| name.value.eq_ignore_ascii_case(own);
        if ![STRUCT_PACK, STRUCT_INSERT].into_iter().any(takes_names)
            && let FunctionArguments::List(list) = &function.args
            && list.args.iter().any(|arg| matches!(arg, FunctionArg::Named { .. }))
        {
            return wrong(
                format!("the call of {name} with named arguments"),
                Position::of_span(name.span),
            );
        }
        None
    }
}

/// True if a call represents an operator of one character.
pub(super) fn span_is_operator(name: &Ident) -> bool {
    let span = name.span;
    span.start.line == span.end.line
        && span.end.column.saturating_sub(span.start.column) <= 1
        && span.start.line > 0
}

/// The error for a block of rows where one of tensors is read.
pub(super) fn are_rows(name: &Ident) -> Error {
    Error::Cells {
        code: "wrong_surface",
        message: format!("`{name}` already consists of rows"),
        position: Position::of_span(name.span),
        hint: Some(format!("write FROM {name}")),
    }
}
