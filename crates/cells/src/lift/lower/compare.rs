//! Comparisons of cells. Zeros are equal, and NaN is equal to itself and above all numbers, as in PostgreSQL, DuckDB
//! and the row path ([`super::super::nan`]).

use datafusion::logical_expr::{Expr, Operator};
use tessera_planner::ir::{MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{Lower, Lowered};

impl Lower<'_> {
    /// `left op right` for two values of one type: `bool`, NULL if either is.
    pub(super) fn compare(&mut self, op: Operator, left: &Expr, right: &Expr) -> Lowered {
        let (l, r) = (self.expr(left)?, self.expr(right)?);
        if self.b.dtype(l) != self.b.dtype(r) {
            return Err(format!("`{left} {op} {right}` compares different types"));
        }
        self.compare_nodes(op, l, r)
    }

    /// True if two values of one type are equal, or both NULL; never NULL itself.
    pub(super) fn same(&mut self, left: &Expr, right: &Expr) -> Lowered {
        let equal = self.compare(Operator::Eq, left, right)?;
        let (l, r) = (self.expr(left)?, self.expr(right)?);
        let no = self.constant(Scalar::bool(false))?;
        let equal = self.map_op(MapOp::Coalesce, &[equal, no])?;
        let (l, r) = (self.map_op(MapOp::IsValid, &[l])?, self.map_op(MapOp::IsValid, &[r])?);
        let any = self.map(ScalarOp::Or, &[l, r])?;
        let none = self.map(ScalarOp::Not, &[any])?;
        self.map(ScalarOp::Or, &[equal, none])
    }

    pub(super) fn compare_nodes(&mut self, op: Operator, l: NodeId, r: NodeId) -> Lowered {
        let plain = match op {
            Operator::Eq => ScalarOp::Eq,
            Operator::NotEq => ScalarOp::Ne,
            Operator::Lt => ScalarOp::Lt,
            Operator::LtEq => ScalarOp::Le,
            Operator::Gt => ScalarOp::Gt,
            Operator::GtEq => ScalarOp::Ge,
            op => return Err(format!("the operator {op} has no dense form")),
        };
        let as_numbers = self.map(plain, &[l, r])?;
        if !self.b.dtype(l).is_float() {
            return Ok(as_numbers);
        }
        // Without NaN the IR's comparison is exact. NaN is above all numbers, and equal to itself.
        let (nan_l, nan_r) = (self.may_be_nan(l)?, self.may_be_nan(r)?);
        let not = |lower: &mut Self, x| lower.map(ScalarOp::Not, &[x]);
        let nans = match (op, nan_l, nan_r) {
            (_, None, None) => return Ok(as_numbers),
            (Operator::Eq, Some(l), Some(r)) => self.map(ScalarOp::And, &[l, r])?,
            // The IR's `!=` is already true for NaN.
            (Operator::NotEq, Some(l), Some(r)) => {
                let both = self.map(ScalarOp::And, &[l, r])?;
                let differ = not(self, both)?;
                return self.map(ScalarOp::And, &[as_numbers, differ]);
            }
            (Operator::Gt, Some(l), Some(r)) => {
                let number = not(self, r)?;
                self.map(ScalarOp::And, &[l, number])?
            }
            (Operator::Lt, Some(l), Some(r)) => {
                let number = not(self, l)?;
                self.map(ScalarOp::And, &[r, number])?
            }
            (Operator::Gt | Operator::GtEq, Some(l), _) => l,
            (Operator::Lt | Operator::LtEq, _, Some(r)) => r,
            _ => return Ok(as_numbers),
        };
        self.map(ScalarOp::Or, &[as_numbers, nans])
    }

    /// The cells that are NaN; `None` for a literal number.
    fn may_be_nan(&mut self, x: NodeId) -> Result<Option<NodeId>, String> {
        let number = self.b.graph.scalar(x).flatten().is_some_and(|s| !s.as_f64().is_nan());
        if number { Ok(None) } else { self.map(ScalarOp::IsNan, &[x]).map(Some) }
    }
}
