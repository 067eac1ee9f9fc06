//! Lambdas of an element and its number, as lambdas of pairs.
//!
//! | written | becomes |
//! |---|---|
//! | `list_transform(l, (x, i) -> x + i)` | `array_transform(tessera_numbered(l), p -> p.1 + p.2)` |
//! | `list_filter(l, (x, i) -> i > 1)` | `array_transform(array_filter(tessera_numbered(l), p -> p.2 > 1), p -> p.1)` |

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, Ident, LambdaFunction, LambdaFunctionParameter, LambdaSyntax,
    OneOrManyWithParens, Value, VisitorMut,
};
use tessera_frontend::walk::walk_mut;

use super::super::aggregates::{arguments, with};
use super::call;
use crate::lift::functions::{NUMBERED, PAIR};

/// The replacement of a call; `None` for other calls.
pub(super) fn rewritten(function: &Function) -> Option<Expr> {
    let is_filter = match function.name.to_string().to_lowercase().as_str() {
        "list_transform" | "array_transform" | "list_apply" | "array_apply" => false,
        "list_filter" | "array_filter" => true,
        _ => return None,
    };
    let args = arguments(function)?;
    let [list, Expr::Lambda(lambda)] = args.as_slice() else { return None };
    let [element, number] = &*lambda.params else { return None };
    let (element, number) = (&element.name.value, &number.name.value);
    // No text without quotes has this name, and lambdas with the same parameters inside hide these.
    let pair = Ident::with_quote('"', format!("{element} {number}"));
    let mut body = lambda.body.clone();
    let names = [element.as_str(), number.as_str()];
    let _ = walk_mut(&mut *body, &mut Parameters { names, pair: &pair, hidden: Vec::new() });
    let of_pair = |body: Box<Expr>| {
        let parameter = LambdaFunctionParameter { name: pair.clone(), data_type: None };
        Expr::Lambda(LambdaFunction {
            params: OneOrManyWithParens::One(parameter),
            body,
            syntax: LambdaSyntax::Arrow,
        })
    };
    let numbered = call(NUMBERED, vec![list.clone()]);
    let (list, body) = match is_filter {
        true => {
            let found = call("array_filter", vec![numbered, of_pair(body)]);
            (found, Box::new(part(&pair, 0)))
        }
        false => (numbered, body),
    };
    Some(Expr::Function(with(function, "array_transform", vec![list, of_pair(body)])))
}

/// The element or the number of a pair.
fn part(pair: &Ident, at: usize) -> Expr {
    let name = Expr::Value(Value::SingleQuotedString(PAIR[at].to_string()).into());
    call("get_field", vec![Expr::Identifier(pair.clone()), name])
}

/// Replaces the parameters in the body of their lambda.
struct Parameters<'a> {
    names: [&'a str; 2],
    pair: &'a Ident,
    /// The parameters of the open lambdas inside.
    hidden: Vec<Vec<String>>,
}

impl VisitorMut for Parameters<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Lambda(lambda) = expr {
            self.hidden.push(lambda.params.iter().map(|own| own.name.value.clone()).collect());
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Lambda(_) => {
                self.hidden.pop();
            }
            Expr::Identifier(name) => {
                let is_called = |own: &str| own.eq_ignore_ascii_case(&name.value);
                let is_hidden = self.hidden.iter().flatten().any(|own| is_called(own));
                let at = self.names.iter().position(|own| is_called(own));
                if let Some(at) = at.filter(|_| !is_hidden) {
                    *expr = part(self.pair, at);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
