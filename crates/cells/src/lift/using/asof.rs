//! `ASOF JOIN`: the condition becomes the argument of `tessera_asof`, which [`asof`](super::super::asof) replaces in
//! the plan.
//!
//! ```text
//! FROM t ASOF JOIN q USING (k, ts)
//!   ⇒  FROM t JOIN q ON tessera_asof(t.k = q.k AND t.ts >= q.ts)
//! ```
//! The last column of `USING` is the one in which rows are near, and the merged columns are the left side's.

use sqlparser::ast::{BinaryOperator, Expr, JoinConstraint, JoinOperator, Spanned};
use tessera_frontend::asof::Asof;
use tessera_frontend::error::{Error, Position};

use super::super::markers::ASOF;
use super::super::names::call;
use super::Merged;
use super::columns::{Column, binary, of_side, spelled};
use super::names::replace_in;

/// The join that DataFusion plans, and its columns. `position` is that of the right side.
pub(super) fn joined(
    left: Vec<Column>,
    right: Vec<Column>,
    match_condition: &Expr,
    constraint: &JoinConstraint,
    position: Option<Position>,
) -> Result<(JoinOperator, Vec<Column>), Error> {
    let asof = Asof::of(match_condition);
    // The columns that earlier joins merged.
    let known = left.iter().chain(&right).filter(|column| column.is_merged);
    let known: Merged = known.map(|column| (column.name.clone(), column.expr.clone())).collect();
    let written = |condition: &Expr| {
        let mut condition = condition.clone();
        replace_in(&mut condition, &known);
        condition
    };
    let mut parts = Vec::new();
    let mut merged: Vec<String> = Vec::new();
    if let Asof::AllBy(condition) = asof {
        parts.push(written(condition));
    }
    match constraint {
        JoinConstraint::On(condition) => parts.push(written(condition)),
        JoinConstraint::Using(columns) => {
            for (at, column) in columns.iter().enumerate() {
                let name = spelled(column, &left)?;
                let position = Position::of_span(column.span()).or(position);
                let l = of_side(&left, &name, position, "left")?;
                let r = of_side(&right, &name, position, "right")?;
                let is_last = at + 1 == columns.len();
                let op = match asof {
                    Asof::Matched | Asof::All if is_last => BinaryOperator::GtEq,
                    _ => BinaryOperator::Eq,
                };
                parts.push(binary(l, op, r));
                merged.push(name);
            }
        }
        JoinConstraint::Natural | JoinConstraint::None => {}
    }
    let Some(condition) = parts.into_iter().reduce(|a, b| binary(a, BinaryOperator::And, b)) else {
        return Err(Error::unsupported("ASOF JOIN without a condition", position)
            .with_hint("write `ASOF JOIN q ON t.k = q.k AND t.ts >= q.ts`"));
    };
    let on = JoinConstraint::On(call(ASOF, vec![condition]));
    let operator = match asof {
        Asof::Matched => JoinOperator::Inner(on),
        Asof::All | Asof::AllBy(_) => JoinOperator::LeftOuter(on),
    };
    let is_shared = |column: &Column| merged.contains(&column.name);
    let left = left.into_iter().map(|column| {
        let is_merged = column.is_merged || is_shared(&column);
        Column { is_merged, ..column }
    });
    let right = right.into_iter().filter(|column| !is_shared(column));
    Ok((operator, left.chain(right).collect()))
}
