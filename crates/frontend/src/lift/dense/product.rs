//! `sum(a.v * b.v)` over a join as a contraction.
//!
//! ```text
//! sum(a.v * b.v) GROUP BY i, k      a.v [i, j, 1] · b.v [1, j, k]  ⇒  a.v [i, j] @ b.v [j, k]
//! ```
//! Only of `float64` without NULLs and without a filter on values: a masked factor skips its product, and 0 in its place
//! would meet infinities; a product of narrower types is rounded before it is added.

use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use tessera_planner::dtype::DType;
use tessera_planner::ir::NodeId;

use super::super::lower::{Reason, refused};
use super::aggregate::{Fate, Reduction};

impl Reduction<'_> {
    /// The sum of a product as a contraction, if it is one.
    pub(super) fn product(&mut self, arg: &Expr) -> Result<Option<NodeId>, Reason> {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) = arg else {
            return Ok(None);
        };
        if self.keep.is_some() {
            return Ok(None);
        }
        let (l, r) = (self.lower.expr(left)?, self.lower.expr(right)?);
        for side in [l, r] {
            let node = self.lower.b.node(side);
            if node.dtype != DType::Float64 || node.nullable {
                return Ok(None);
            }
        }
        // Which axes are whose.
        let (mut batch, mut rows, mut inner, mut columns) = (vec![], vec![], vec![], vec![]);
        for a in 0..self.shape.len() {
            let own = [l, r].map(|n| self.lower.b.node(n).shape[a] > 1);
            match (own, &self.fates[a]) {
                ([false, false], _) if self.shape[a] == 1 => {}
                ([true, true], Fate::Keep) => batch.push(a),
                ([true, true], Fate::All) => inner.push(a),
                ([true, false], Fate::Keep) => rows.push(a),
                ([false, true], Fate::Keep) => columns.push(a),
                // A group of positions, or a sum over an axis of one side alone.
                _ => return Ok(None),
            }
        }
        if rows.is_empty() || columns.is_empty() || inner.is_empty() {
            return Ok(None);
        }
        let l = self.folded(l, [&batch, &rows, &inner])?;
        let r = self.folded(r, [&batch, &inner, &columns])?;
        let b = &mut *self.lower.b;
        let out = b.contract(l, r).map_err(refused)?;
        // Back to one axis each, in the order of the relation.
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
        Ok(Some(out))
    }

    /// The node with the axes of each list as one.
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
