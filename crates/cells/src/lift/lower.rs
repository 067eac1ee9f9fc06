//! Lowers SQL expressions over cells to IR with exactly DataFusion's semantics, or refuses them.
//!
//! Every node has the rank of the table; its length along an axis is 1 where it does not depend on it. Expressions of
//! one dimension are evaluated by DataFusion over the labels and become constants, so they may call any function.
//! Expressions without an exact equivalent (casts that may fail, division by a possible 0, text) are refused with a
//! reason, and DataFusion computes the rows.

mod compare;
mod functions;

use std::fmt;

use arrow::array::ArrayRef;
use datafusion::common::ScalarValue;
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Between, Case, Cast, InList};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use tessera_planner::build::Builder;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error;
use tessera_planner::ir::{MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::along::Along;
use super::dense::bound;
use super::functions::parts;
use super::labels::{Kept, constant};
use super::relation::{Column, Relation};
use super::table::dtype_of;
use crate::type_name;

/// The reason why an expression is not dense, as the end of a sentence that begins with "rows, because".
pub(crate) type Reason = String;
type Lowered = Result<NodeId, Reason>;

pub(crate) struct Lower<'a> {
    pub(crate) b: &'a mut Builder,
    pub(crate) relation: &'a Relation,
    pub(crate) state: &'a SessionState,
}

/// Converts an error of the planner's constructors to a reason.
pub(crate) fn refused(error: Error) -> Reason {
    error.to_string()
}

impl Lower<'_> {
    fn rank(&self) -> usize {
        self.relation.kept.len()
    }

    /// Lowers the expression to a node of the table's rank.
    pub(crate) fn expr(&mut self, expr: &Expr) -> Lowered {
        let on = self
            .relation
            .dependence(expr)
            .ok_or_else(|| format!("`{expr}` is known only while it runs"))?;
        if !on.cells && on.labels.len() <= 1 {
            return self.label(expr, on.labels.first().copied());
        }
        match expr {
            Expr::Alias(a) => self.expr(&a.expr),
            Expr::Column(c) => self.column(c),
            Expr::BinaryExpr(e) => self.binary(e),
            Expr::Not(e) => {
                let e = self.boolean(e)?;
                self.map(ScalarOp::Not, &[e])
            }
            Expr::Negative(e) => {
                let e = self.expr(e)?;
                self.map(ScalarOp::Neg, &[e])
            }
            Expr::IsNotNull(e) => {
                let e = self.expr(e)?;
                self.map_op(MapOp::IsValid, &[e])
            }
            Expr::IsNull(e) => {
                let e = self.expr(e)?;
                let valid = self.map_op(MapOp::IsValid, &[e])?;
                self.map(ScalarOp::Not, &[valid])
            }
            Expr::IsTrue(e) => self.is_true(e),
            Expr::IsNotTrue(e) => {
                let e = self.is_true(e)?;
                self.map(ScalarOp::Not, &[e])
            }
            Expr::IsFalse(e) => self.is_true(&Expr::Not(e.clone())),
            Expr::IsNotFalse(e) => {
                let e = self.is_true(&Expr::Not(e.clone()))?;
                self.map(ScalarOp::Not, &[e])
            }
            Expr::Between(Between { expr, negated, low, high }) => {
                let inside = self.compare(Operator::GtEq, expr, low)?;
                let below = self.compare(Operator::LtEq, expr, high)?;
                let both = self.map_op(MapOp::KleeneAnd, &[inside, below])?;
                if *negated { self.map(ScalarOp::Not, &[both]) } else { Ok(both) }
            }
            Expr::InList(InList { expr, list, negated }) if list.len() <= 64 => {
                let mut any: Option<NodeId> = None;
                for item in list {
                    let same = self.compare(Operator::Eq, expr, item)?;
                    any = Some(match any {
                        None => same,
                        Some(any) => self.map_op(MapOp::KleeneOr, &[any, same])?,
                    });
                }
                let any = any.ok_or_else(|| "IN of an empty list".to_string())?;
                if *negated { self.map(ScalarOp::Not, &[any]) } else { Ok(any) }
            }
            Expr::Case(case) => self.case(case),
            Expr::Cast(Cast { expr, field }) => {
                let to = dtype_of(field.data_type()).ok_or_else(|| {
                    format!("a cast to {} has no dense form", type_name(field.data_type()))
                })?;
                let from = self.expr(expr)?;
                self.cast(from, to)
            }
            Expr::ScalarFunction(f) => match parts(f) {
                Some((text, columns)) => self.elementwise(text, columns),
                None => self.function(f.name(), &f.args),
            },
            other => Err(format!("`{other}` has no dense form")),
        }
    }

    pub(crate) fn boolean(&mut self, expr: &Expr) -> Lowered {
        // A bare NULL has no type.
        if let Expr::Literal(ScalarValue::Null, _) = expr {
            return self.b.null(DType::Bool).map_err(refused);
        }
        let node = self.expr(expr)?;
        if self.b.dtype(node) != DType::Bool {
            return Err(format!("`{expr}` is not a condition"));
        }
        Ok(node)
    }

    /// The condition with NULL as false.
    pub(crate) fn is_true(&mut self, expr: &Expr) -> Lowered {
        let node = self.boolean(expr)?;
        if !self.b.node(node).nullable {
            return Ok(node);
        }
        let no = self.constant(Scalar::bool(false))?;
        self.map_op(MapOp::Coalesce, &[node, no])
    }

    pub(crate) fn map(&mut self, op: ScalarOp, inputs: &[NodeId]) -> Lowered {
        self.b.map(op, inputs).map_err(refused)
    }

    pub(crate) fn map_op(&mut self, op: MapOp, inputs: &[NodeId]) -> Lowered {
        self.b.map_op(op, inputs).map_err(refused)
    }

    pub(crate) fn constant(&mut self, value: Scalar) -> Lowered {
        let one = self.b.constant(value).map_err(refused)?;
        let shape = vec![1; self.rank()];
        self.b.broadcast_to(one, &shape).map_err(refused)
    }

    fn label(&mut self, expr: &Expr, axis: Option<usize>) -> Lowered {
        if let Expr::Column(column) = expr
            && let (Some(axis), Some(Column::Label { values, .. })) =
                (axis, self.relation.column(column))
        {
            let kept = values.kept(&self.relation.kept[axis]).map_err(|e| e.strip_backtrace())?;
            if let Along::Positions { start, len } = kept {
                return self.positions(axis, start, len);
            }
        }
        let values =
            self.relation.evaluate(expr, axis, self.state).map_err(|e| e.strip_backtrace())?;
        self.labels(expr, axis, &values)
    }

    /// `start`, `start + 1`, … along an axis, in one chunk like materialized labels.
    fn positions(&mut self, axis: usize, start: u64, len: u64) -> Lowered {
        let mut shape = vec![1; self.rank()];
        shape[axis] = len;
        let counted = self.b.iota(&shape, Some(&shape)).map_err(refused)?;
        if start == 0 {
            return Ok(counted);
        }
        let start = self.constant(Scalar::i64(start as i64))?;
        self.map(ScalarOp::Add, &[counted, start])
    }

    /// Labels at the kept positions of an axis, or one value.
    fn labels(
        &mut self,
        what: &dyn fmt::Display,
        axis: Option<usize>,
        values: &ArrayRef,
    ) -> Lowered {
        let mut shape = vec![1; self.rank()];
        if let Some(a) = axis {
            shape[a] = values.len() as u64;
        }
        let constant = constant(values, &shape).ok_or_else(|| {
            format!("`{what}` is {}, which tensors cannot contain", type_name(values.data_type()))
        })?;
        self.b.array(constant).map_err(refused)
    }

    /// The labels of an axis, NULL where the join found no match.
    pub(crate) fn met(
        &mut self,
        what: &dyn fmt::Display,
        axis: usize,
        values: &ArrayRef,
        met: NodeId,
    ) -> Lowered {
        let values = self.relation.kept[axis].apply(values).map_err(|e| e.strip_backtrace())?;
        let labels = self.labels(what, Some(axis), &values)?;
        self.map_op(MapOp::Mask, &[labels, met])
    }

    fn column(&mut self, column: &datafusion::common::Column) -> Lowered {
        match self.relation.column(column) {
            Some(Column::Label { axis, .. }) => {
                self.label(&Expr::Column(column.clone()), Some(*axis))
            }
            Some(Column::Cells(node)) => Ok(*node),
            Some(Column::Met { axis, values, met }) => self.met(column, *axis, values, *met),
            Some(Column::Refused(reason)) => Err(reason.clone()),
            None => Err(format!("`{column}` comes from an outer query")),
        }
    }

    fn binary(&mut self, e: &BinaryExpr) -> Lowered {
        use Operator::*;
        match e.op {
            And | Or => {
                let op = if e.op == And { MapOp::KleeneAnd } else { MapOp::KleeneOr };
                let (l, r) = (self.boolean(&e.left)?, self.boolean(&e.right)?);
                self.map_op(op, &[l, r])
            }
            Eq | NotEq | Lt | LtEq | Gt | GtEq => self.compare(e.op, &e.left, &e.right),
            IsDistinctFrom => {
                let same = self.same(&e.left, &e.right)?;
                self.map(ScalarOp::Not, &[same])
            }
            IsNotDistinctFrom => self.same(&e.left, &e.right),
            Plus | Minus | Multiply | Divide | Modulo => self.arithmetic(e),
            BitwiseAnd | BitwiseOr | BitwiseXor => {
                let op = match e.op {
                    BitwiseAnd => ScalarOp::And,
                    BitwiseOr => ScalarOp::Or,
                    _ => ScalarOp::Xor,
                };
                let (l, r) = (self.expr(&e.left)?, self.expr(&e.right)?);
                self.map(op, &[l, r])
            }
            op => Err(format!("the operator {op} has no dense form")),
        }
    }

    fn arithmetic(&mut self, e: &BinaryExpr) -> Lowered {
        let (l, r) = (self.expr(&e.left)?, self.expr(&e.right)?);
        let dtype = self.b.dtype(l);
        if dtype != self.b.dtype(r) || !dtype.is_numeric() {
            return Err(format!("`{} {} {}` mixes types", e.left, e.op, e.right));
        }
        let op = match e.op {
            Operator::Plus => ScalarOp::Add,
            Operator::Minus => ScalarOp::Sub,
            Operator::Multiply => ScalarOp::Mul,
            Operator::Divide if dtype.is_float() => ScalarOp::Div,
            Operator::Modulo if dtype.is_float() => ScalarOp::Fmod,
            _ => {
                // An integer division may fail for a row that SQL would not have evaluated (under CASE, WHERE or a
                // mask), so only divisors that cannot fail are dense.
                let safe = |s: Scalar| s.as_i128() != 0 && s.as_i128() != -1;
                if !self.b.graph.scalar(r).flatten().is_some_and(safe) {
                    return Err(format!("the integer division by `{}` may fail", e.right));
                }
                if e.op == Operator::Divide { ScalarOp::TruncDiv } else { ScalarOp::TruncRem }
            }
        };
        self.map(op, &[l, r])
    }

    /// A cast that cannot fail; any other is refused.
    pub(crate) fn cast(&mut self, node: NodeId, to: DType) -> Lowered {
        let from = self.b.dtype(node);
        let is_wider = match (from, to) {
            _ if from == to => true,
            (DType::Bool, to) => to.is_numeric(),
            (from, DType::Bool) => from.is_numeric(),
            (from, to) if to.is_float() => from.is_numeric(),
            (DType::Datetime(_), DType::Int64) => true,
            (from, to) if from.is_integer() && to.is_integer() => from.promote(to) == Some(to),
            _ => false,
        };
        // True if all values are known to fit.
        let fits = || {
            let least = if to.is_integer() { 128f64.powi(to.size() as i32) } else { 0.0 };
            from.is_integer() && bound(self.b, node).is_some_and(|known| known < least)
        };
        let is_safe = is_wider || (to == DType::Int64 && fits());
        if !is_safe {
            return Err(format!("a cast from {from} to {to} may fail"));
        }
        self.b.cast(node, to).map_err(refused)
    }

    fn case(&mut self, case: &Case) -> Lowered {
        let mut arms = Vec::new();
        for (when, then) in &case.when_then_expr {
            let is_met = match &case.expr {
                None => self.is_true(when)?,
                Some(base) => {
                    let same =
                        Expr::BinaryExpr(BinaryExpr::new(base.clone(), Operator::Eq, when.clone()));
                    self.is_true(&same)?
                }
            };
            arms.push((is_met, self.value(then)?));
        }
        let mut otherwise = match &case.else_expr {
            Some(e) => self.value(e)?,
            None => None,
        };
        let known = arms.iter().map(|(_, v)| *v).chain([otherwise]).flatten().next();
        let dtype = self.b.dtype(known.ok_or_else(|| "CASE of NULLs only".to_string())?);
        for (is_met, value) in arms.into_iter().rev() {
            let value = self.value_or_null(value, dtype)?;
            let rest = self.value_or_null(otherwise, dtype)?;
            otherwise = Some(self.map(ScalarOp::Where, &[is_met, value, rest])?);
        }
        self.value_or_null(otherwise, dtype)
    }

    /// Lowers a branch; `None` for a NULL, which takes the type of the others.
    fn value(&mut self, expr: &Expr) -> Result<Option<NodeId>, Reason> {
        match expr {
            Expr::Literal(v, _) if v.is_null() => Ok(None),
            Expr::Cast(Cast { expr, .. }) if matches!(&**expr, Expr::Literal(v, _) if v.is_null()) => {
                Ok(None)
            }
            _ => self.expr(expr).map(Some),
        }
    }

    fn value_or_null(&mut self, value: Option<NodeId>, dtype: DType) -> Lowered {
        match value {
            Some(v) if self.b.dtype(v) == dtype => Ok(v),
            Some(_) => Err("the branches of CASE differ in type".to_string()),
            None => {
                let null = self.b.null(dtype).map_err(refused)?;
                let shape = vec![1; self.rank()];
                self.b.broadcast_to(null, &shape).map_err(refused)
            }
        }
    }
}

/// Slices a variable to the kept positions and transposes its axes to those of the table.
pub(crate) fn place(
    b: &mut Builder,
    mut node: NodeId,
    axes: &[usize],
    kept: &[Kept],
) -> Result<NodeId, Error> {
    for (d, &a) in axes.iter().enumerate() {
        node = match &kept[a] {
            Kept::Range { start, len } => b.slice(node, d, *start as i64, 1, *len)?,
            Kept::Take(p) => b.take(node, d, p.clone())?,
        };
    }
    let mut order: Vec<usize> = (0..axes.len()).collect();
    order.sort_by_key(|&d| axes[d]);
    node = b.transpose(node, &order)?;
    for a in 0..kept.len() {
        if !axes.contains(&a) {
            node = b.expand_dims(node, a)?;
        }
    }
    Ok(node)
}
