//! `sum(a.v * b.v)` over a join as a contraction.
//!
//! ```text
//! sum(a.v * b.v) GROUP BY i, k      a.v [i, j, 1] · b.v [1, j, k]  ⇒  a.v [i, j] @ b.v [j, k]
//! ```
//! * For `float64`; and for narrower floats and integers that `widen` cast, so that no product is rounded.
//! * For integers if every sum is exact as a float: no partial sum exceeds 2^53.
//! * With NULLs if the other side is finite: a masked factor becomes 0, and 0 times an infinity would be NaN.
//! * Under WHERE and FILTER if their condition depends on one side: it masks that side.
//!
//! Any other sum of products, and one over boxes, is a reduction over all cells of the join: dense too, but slower.

use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use tessera_planner::dtype::DType;
use tessera_planner::ir::{MapOp, NodeId};

use super::super::lower::{Reason, refused};
use super::aggregate::{Fate, Reduction};
use super::finite::bound;

/// Integers up to this one are exact in a `float64`.
const EXACT: f64 = (1u64 << 53) as f64;

impl Reduction<'_> {
    /// The sum of a product over the rows for which a condition (`bool` without NULLs) is true, as a contraction if
    /// possible.
    pub(super) fn product(
        &mut self,
        arg: &Expr,
        own: Option<NodeId>,
    ) -> Result<Option<NodeId>, Reason> {
        if self.split.is_some() {
            return Ok(None);
        }
        let mut arg = arg;
        while let Expr::Alias(alias) = arg {
            arg = &alias.expr;
        }
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) = arg else {
            return Ok(None);
        };
        let (mut l, mut r) = (self.lower.expr(left)?, self.lower.expr(right)?);
        let dtype = self.lower.b.dtype(l);
        if dtype != self.lower.b.dtype(r) || !(dtype == DType::Float64 || dtype.is_integer()) {
            return Ok(None);
        }
        let shape = |this: &Self, n| this.lower.b.shape(n);
        for condition in [self.keep, own].into_iter().flatten() {
            let on = shape(self, condition);
            let within = |side: &[u64]| on.iter().zip(side).all(|(&c, &s)| c == 1 || s > 1);
            if within(&shape(self, l)) {
                l = self.lower.map_op(MapOp::Mask, &[l, condition])?;
            } else if within(&shape(self, r)) {
                r = self.lower.map_op(MapOp::Mask, &[r, condition])?;
            } else {
                return Ok(None);
            }
        }
        let (of_l, of_r) = (bound(self.lower.b, l), bound(self.lower.b, r));
        let is_masked = |n| self.lower.b.node(n).nullable;
        if (is_masked(l) && of_r.is_none()) || (is_masked(r) && of_l.is_none()) {
            return Ok(None);
        }
        // Classifies the axes by side.
        let (mut batch, mut rows, mut inner, mut columns) = (vec![], vec![], vec![], vec![]);
        for a in 0..self.shape.len() {
            let own = [l, r].map(|n| self.lower.b.node(n).shape[a] > 1);
            match (own, &self.fates[a]) {
                ([false, false], _) if self.shape[a] == 1 => {}
                ([true, true], Fate::Keep) => batch.push(a),
                ([true, true], Fate::All) => inner.push(a),
                ([true, false], Fate::Keep) => rows.push(a),
                ([false, true], Fate::Keep) => columns.push(a),
                // A group of positions, or a sum over an axis of only one side.
                _ => return Ok(None),
            }
        }
        if rows.is_empty() || columns.is_empty() || inner.is_empty() {
            return Ok(None);
        }
        let terms = inner.iter().map(|&a| self.shape[a] as f64).product::<f64>();
        if dtype.is_integer() {
            match (of_l, of_r) {
                (Some(x), Some(y)) if x * y * terms <= EXACT => {
                    l = self.lower.b.cast(l, DType::Float64).map_err(refused)?;
                    r = self.lower.b.cast(r, DType::Float64).map_err(refused)?;
                }
                _ => return Ok(None),
            }
        }
        let l = self.folded(l, [&batch, &rows, &inner])?;
        let r = self.folded(r, [&batch, &inner, &columns])?;
        let b = &mut *self.lower.b;
        let out = b.contract(l, r).map_err(refused)?;
        // Splits the result into one axis each, in the order of the relation.
        let order: Vec<usize> = batch.iter().chain(&rows).chain(&columns).copied().collect();
        let lengths: Vec<u64> = order.iter().map(|&a| self.shape[a]).collect();
        let out = b.reshape(out, &lengths).map_err(refused)?;
        let mut back: Vec<usize> = (0..order.len()).collect();
        back.sort_by_key(|&i| order[i]);
        let mut out = b.transpose(out, &back).map_err(refused)?;
        for a in 0..self.shape.len() {
            if !order.contains(&a) {
                out = b.expand_dims(out, a).map_err(refused)?;
            }
        }
        self.lower.b.cast(out, dtype).map(Some).map_err(refused)
    }

    /// The node with the axes of each list merged into one.
    fn folded(&mut self, node: NodeId, lists: [&Vec<usize>; 3]) -> Result<NodeId, Reason> {
        let mut order: Vec<usize> = lists.iter().flat_map(|l| l.iter().copied()).collect();
        let lengths: Vec<u64> =
            lists.iter().map(|l| l.iter().map(|&a| self.shape[a]).product()).collect();
        order.extend((0..self.shape.len()).filter(|a| !lists.iter().any(|l| l.contains(a))));
        let b = &mut *self.lower.b;
        let node = b.transpose(node, &order).map_err(refused)?;
        b.reshape(node, &lengths).map_err(refused)
    }
}
