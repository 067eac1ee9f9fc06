//! Window functions after WHERE on values: absent rows have no numbers.
//!
//! ```text
//! keep            1 0 1 1 0 1
//! row_number      1 . 2 3 . 4      a running count of present rows
//! lag(v)          . . a c . d      the value before, filled forward over absent rows
//! running sum     absent cells are masked
//! ```
//! A frame of a number of rows would have to count rows whose positions are unknown before the query runs.

use datafusion::logical_expr::Expr;
use tessera_planner::build::Builder;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, MapOp, NodeId, ScanKind};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::super::super::lower::{Reason, refused};
use super::super::super::relation::Relation;
use super::super::{Dense, gather};
use super::frame::Span;
use super::line::Line;
use super::{is_null, running_count, steps, which};

/// Maximum offset of lag and lead, which fill forward once per step.
const STEPS_MAX: i64 = 8;

/// The reason why a frame of a number of rows has no dense form here.
pub(super) fn between() -> Reason {
    "WHERE on values leaves out rows between those of OVER".to_string()
}

impl Dense<'_> {
    /// The number of each row among the present ones.
    pub(super) fn numbered_of(
        &mut self,
        input: &Relation,
        line: &Line,
        name: &str,
        keep: NodeId,
    ) -> Result<NodeId, Reason> {
        let keep = self.along(input, line, keep)?;
        let axis = line.axis;
        line.each(&mut self.b, &[keep], |b, nodes| {
            let one = b.constant(Scalar::i64(1)).map_err(refused)?;
            let there = b.map_op(MapOp::Mask, &[one, nodes[0]]).map_err(refused)?;
            let number = running_count(b, there, axis)?;
            if !matches!(name, "percent_rank" | "cume_dist") {
                return b.cast(number, DType::UInt64).map_err(refused);
            }
            let how: Vec<AxisReduce> = (0..b.node(there).shape.len())
                .map(|a| if a == axis { AxisReduce::All } else { AxisReduce::Keep })
                .collect();
            let rows = b.reduce(there, ReduceKind::Count, &how).map_err(refused)?;
            let rows = b.cast(rows, DType::Float64).map_err(refused)?;
            let number = b.cast(number, DType::Float64).map_err(refused)?;
            if name == "cume_dist" {
                return b.map(ScalarOp::Div, &[number, rows]).map_err(refused);
            }
            // (number - 1) / (rows - 1), and 0 for a single row.
            let one = b.constant(Scalar::f64(1.0)).map_err(refused)?;
            let before = b.map(ScalarOp::Sub, &[number, one]).map_err(refused)?;
            let others = b.map(ScalarOp::Sub, &[rows, one]).map_err(refused)?;
            let others = b.map(ScalarOp::Maximum, &[others, one]).map_err(refused)?;
            b.map(ScalarOp::Div, &[before, others]).map_err(refused)
        })
    }

    /// lag and lead over the present rows.
    pub(super) fn shifted_of(
        &mut self,
        input: &Relation,
        line: &Line,
        name: &str,
        args: &[Expr],
        keep: NodeId,
    ) -> Result<NodeId, Reason> {
        let Some(arg) = args.first() else { return Err(format!("{name} of nothing")) };
        let by = steps(name, args)?;
        if by.abs() > STEPS_MAX || args.get(2).is_some_and(|d| !is_null(d)) {
            return Err(between());
        }
        let node = self.argument(input, line, arg)?;
        let keep = self.along(input, line, keep)?;
        let axis = line.axis;
        line.each(&mut self.b, &[node, keep], |b, nodes| {
            let turn =
                |b: &mut Builder, node| if by > 0 { reversed(b, node, axis) } else { Ok(node) };
            let (node, keep) = (turn(b, nodes[0])?, turn(b, nodes[1])?);
            let mut value = Filled::of(b, node)?;
            for _ in 0..by.abs() {
                value = value.before(b, keep, axis)?;
            }
            let out = value.node(b)?;
            turn(b, out)
        })
    }

    /// The first or the n-th present row, as seen from the rows after it.
    pub(super) fn nth_of(
        &mut self,
        input: &Relation,
        line: &Line,
        span: Span,
        name: &str,
        args: &[Expr],
        keep: NodeId,
    ) -> Result<NodeId, Reason> {
        let Some(arg) = args.first() else { return Err(format!("{name} of nothing")) };
        let n = which(name, args)?;
        if span != Span::Running {
            return Err(between());
        }
        let node = self.argument(input, line, arg)?;
        if name == "last_value" {
            return Ok(node);
        }
        let keep = self.along(input, line, keep)?;
        let axis = line.axis;
        line.each(&mut self.b, &[node, keep], |b, nodes| {
            let one = b.constant(Scalar::i64(1)).map_err(refused)?;
            let there = b.map_op(MapOp::Mask, &[one, nodes[1]]).map_err(refused)?;
            let number = running_count(b, there, axis)?;
            let wanted = b.constant(Scalar::i64(n)).map_err(refused)?;
            let is_it = b.map(ScalarOp::Eq, &[number, wanted]).map_err(refused)?;
            let is_it = b.map(ScalarOp::And, &[is_it, nodes[1]]).map_err(refused)?;
            Filled::of(b, nodes[0])?.onward(b, is_it, axis)?.node(b)
        })
    }
}

/// A nullable value as a value and a flag, so that filling forward distinguishes NULL from an absent row.
struct Filled {
    value: NodeId,
    is_value: Option<NodeId>,
}

impl Filled {
    fn of(b: &mut Builder, node: NodeId) -> Result<Self, Reason> {
        if !b.node(node).nullable {
            return Ok(Filled { value: node, is_value: None });
        }
        let is_value = b.map_op(MapOp::IsValid, &[node]).map_err(refused)?;
        let zero = b.constant(Scalar::zero(b.dtype(node))).map_err(refused)?;
        let value = b.map_op(MapOp::Coalesce, &[node, zero]).map_err(refused)?;
        Ok(Filled { value, is_value: Some(is_value) })
    }

    /// Fills forward from the last row so far for which `marked` is true.
    fn onward(self, b: &mut Builder, marked: NodeId, axis: usize) -> Result<Self, Reason> {
        let mut fill = |node| {
            let node = b.map_op(MapOp::Mask, &[node, marked]).map_err(refused)?;
            b.scan(node, ScanKind::Last, axis).map_err(refused)
        };
        let is_value = match self.is_value {
            Some(node) => Some(fill(node)?),
            None => None,
        };
        Ok(Filled { value: fill(self.value)?, is_value })
    }

    /// The value at the previous row for which `keep` is true.
    fn before(self, b: &mut Builder, keep: NodeId, axis: usize) -> Result<Self, Reason> {
        let filled = self.onward(b, keep, axis)?;
        let mut shift = |node| {
            let len = b.node(node).shape[axis];
            let from: Vec<Option<u64>> = (0..len).map(|p| p.checked_sub(1)).collect();
            gather(b, node, axis, &from)
        };
        let is_value = match filled.is_value {
            Some(node) => Some(shift(node)?),
            None => None,
        };
        Ok(Filled { value: shift(filled.value)?, is_value })
    }

    fn node(self, b: &mut Builder) -> Result<NodeId, Reason> {
        match self.is_value {
            Some(is_value) => b.map_op(MapOp::Mask, &[self.value, is_value]).map_err(refused),
            None => Ok(self.value),
        }
    }
}

fn reversed(b: &mut Builder, node: NodeId, axis: usize) -> Result<NodeId, Reason> {
    let len = b.node(node).shape[axis];
    let order: Vec<Option<u64>> = (0..len).rev().map(Some).collect();
    gather(b, node, axis, &order)
}
