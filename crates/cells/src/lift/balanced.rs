//! Long chains of OR, as trees of little depth.
//!
//! ```text
//! ((a OR b) OR c) OR d   ⇒   (a OR b) OR (c OR d)
//! ```
//! The parser nests a chain to the left. For each OR, DataFusion's analyser computes the type, and its simplifier the
//! hash, of all operands on its left, so the time grows with the square of the length. The operands keep their order,
//! and OR is associative, also with NULL.

use std::ops::ControlFlow;

use sqlparser::ast::{BinaryOperator, Expr, Query, Statement, VisitorMut};
use tessera_frontend::ast::null;
use tessera_frontend::walk::walk_mut;

/// Minimum operands of a chain that becomes a tree.
const OPERANDS_MIN: usize = 32;

/// The statement of a query, with its chains balanced.
pub(super) fn statement(mut query: Query) -> Statement {
    let _ = walk_mut(&mut query, &mut Chains);
    Statement::Query(Box::new(query))
}

struct Chains;

impl VisitorMut for Chains {
    type Break = ();

    /// Before its operands: those of a tree are chains of a few.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if operands(expr) >= OPERANDS_MIN {
            let chain = std::mem::replace(expr, null());
            *expr = balanced(chain);
        }
        ControlFlow::Continue(())
    }
}

/// Number of operands of a chain, 1 for any other expression.
fn operands(mut expr: &Expr) -> usize {
    let mut operands = 1;
    while let Expr::BinaryOp { left, op: BinaryOperator::Or, .. } = expr {
        operands += 1;
        expr = left;
    }
    operands
}

fn balanced(mut chain: Expr) -> Expr {
    // From the last operand to the second one.
    let mut rest = Vec::new();
    while let Expr::BinaryOp { left, op: BinaryOperator::Or, right } = chain {
        rest.push(*right);
        chain = *left;
    }
    let mut level = vec![chain];
    level.extend(rest.into_iter().rev());
    while level.len() > 1 {
        let mut above = Vec::with_capacity(level.len().div_ceil(2));
        let mut operands = level.into_iter();
        while let Some(left) = operands.next() {
            above.push(match operands.next() {
                Some(right) => or(left, right),
                None => left,
            });
        }
        level = above;
    }
    level.pop().unwrap_or_else(null)
}

fn or(left: Expr, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::Or, right: Box::new(right) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    fn depth(expr: &Expr) -> usize {
        match expr {
            Expr::BinaryOp { left, op: BinaryOperator::Or, right } => {
                1 + depth(left).max(depth(right))
            }
            _ => 0,
        }
    }

    #[test]
    fn chains_become_trees_of_the_same_text() {
        for (operands, want) in [(31, 30), (32, 5), (33, 6), (300, 9)] {
            let terms: Vec<String> =
                (0..operands).map(|i| format!("a = {i} AND b > {i}")).collect();
            let sql = format!("SELECT a FROM t WHERE {}", terms.join(" OR "));
            let query = tessera_frontend::query_of(&sql).unwrap().unwrap();
            let Statement::Query(query) = statement(*query) else { panic!("no query") };
            assert_eq!(query.to_string(), sql);
            let block = tessera_frontend::scope::innermost(&query).unwrap();
            assert_eq!(depth(block.selection.as_ref().unwrap()), want, "{operands} operands");
        }
    }
}
