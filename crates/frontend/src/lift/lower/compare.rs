//! Comparisons as Arrow's kernels make them: floats in IEEE 754's total order.
//!
//! ```text
//! -NaN < -inf < … < -0.0 < 0.0 < … < inf < NaN
//! ```
//! NaNs of one sign are equal here whatever their payload is.
//!
//! # Source
//! IEEE 754-2019, section 5.10, restricted to what Arrow's `cmp` kernels do.

use datafusion::logical_expr::{Expr, Operator};
use tessera_planner::ir::{MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{Lower, Lowered};

impl Lower<'_> {
    /// `left op right` for two values of one type: `bool`, NULL where either is.
    pub(super) fn compare(&mut self, op: Operator, left: &Expr, right: &Expr) -> Lowered {
        let (l, r) = (self.expr(left)?, self.expr(right)?);
        if self.b.dtype(l) != self.b.dtype(r) {
            return Err(format!("`{left} {op} {right}` compares different types"));
        }
        self.compare_nodes(op, l, r)
    }

    /// Are two values of one type equal, or both NULL? Never NULL itself.
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
        if !self.b.dtype(l).is_float() {
            return self.map(plain, &[l, r]);
        }
        let is_plain_number = |lower: &Self, n| {
            lower
                .b
                .graph
                .scalar(n)
                .flatten()
                .is_some_and(|s| s.as_f64().is_finite() && s.as_f64() != 0.0)
        };
        if is_plain_number(self, r) {
            return self.with_number(op, plain, l, r);
        }
        match op {
            Operator::Eq => self.total_eq(l, r),
            Operator::NotEq => {
                let same = self.total_eq(l, r)?;
                self.map(ScalarOp::Not, &[same])
            }
            Operator::Lt => self.total_lt(l, r),
            Operator::Gt => self.total_lt(r, l),
            Operator::LtEq => {
                let above = self.total_lt(r, l)?;
                self.map(ScalarOp::Not, &[above])
            }
            _ => {
                let below = self.total_lt(l, r)?;
                self.map(ScalarOp::Not, &[below])
            }
        }
    }

    /// Against a finite number that is not 0 only NaN needs care.
    fn with_number(&mut self, op: Operator, plain: ScalarOp, l: NodeId, r: NodeId) -> Lowered {
        let as_number = self.map(plain, &[l, r])?;
        if matches!(op, Operator::Eq | Operator::NotEq) {
            return Ok(as_number);
        }
        let (low, high) = self.nans(l)?;
        let nan = if matches!(op, Operator::Lt | Operator::LtEq) { low } else { high };
        self.map(ScalarOp::Or, &[as_number, nan])
    }

    /// Is it a NaN with a sign; is it one without.
    fn nans(&mut self, x: NodeId) -> Result<(NodeId, NodeId), String> {
        let nan = self.map(ScalarOp::IsNan, &[x])?;
        let sign = self.map(ScalarOp::SignBit, &[x])?;
        let plus = self.map(ScalarOp::Not, &[sign])?;
        Ok((self.map(ScalarOp::And, &[nan, sign])?, self.map(ScalarOp::And, &[nan, plus])?))
    }

    fn total_eq(&mut self, l: NodeId, r: NodeId) -> Lowered {
        let numbers = self.map(ScalarOp::Eq, &[l, r])?;
        let (nl, nr) = (self.map(ScalarOp::IsNan, &[l])?, self.map(ScalarOp::IsNan, &[r])?);
        let nans = self.map(ScalarOp::And, &[nl, nr])?;
        let (sl, sr) = (self.map(ScalarOp::SignBit, &[l])?, self.map(ScalarOp::SignBit, &[r])?);
        let signs = self.map(ScalarOp::Eq, &[sl, sr])?;
        let values = self.map(ScalarOp::Or, &[numbers, nans])?;
        self.map(ScalarOp::And, &[values, signs])
    }

    fn total_lt(&mut self, l: NodeId, r: NodeId) -> Lowered {
        let numbers = self.map(ScalarOp::Lt, &[l, r])?;
        // -0.0 before 0.0.
        let equal = self.map(ScalarOp::Eq, &[l, r])?;
        let (sl, sr) = (self.map(ScalarOp::SignBit, &[l])?, self.map(ScalarOp::SignBit, &[r])?);
        let plus = self.map(ScalarOp::Not, &[sr])?;
        let zeros = self.map(ScalarOp::And, &[sl, plus])?;
        let zeros = self.map(ScalarOp::And, &[equal, zeros])?;
        let ((low_l, high_l), (low_r, high_r)) = (self.nans(l)?, self.nans(r)?);
        // NaN is the greatest, -NaN the least; two of one kind are equal.
        let not_high_l = self.map(ScalarOp::Not, &[high_l])?;
        let not_low_r = self.map(ScalarOp::Not, &[low_r])?;
        let below_nan = self.map(ScalarOp::And, &[high_r, not_high_l])?;
        let above_nan = self.map(ScalarOp::And, &[low_l, not_low_r])?;
        let nans = self.map(ScalarOp::Or, &[below_nan, above_nan])?;
        let rest = self.map(ScalarOp::Or, &[zeros, nans])?;
        self.map(ScalarOp::Or, &[numbers, rest])
    }
}
