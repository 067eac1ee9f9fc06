//! Derivatives along a dimension: `gradient`.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::ir::NodeId;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::{Spacing, real, spacing};
use crate::error::Error;
use crate::functions::Bound;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail};

/// The cells along the axis of a derivative, and their distances.
struct Line {
    x: NodeId,
    axis: usize,
    n: u64,
    dtype: DType,
    /// The distances between neighbours in the shape of the cells, or the common distance.
    steps: NodeId,
    /// True if the distances differ.
    uneven: bool,
    span: Span,
}

pub(super) fn gradient(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = real(l, a, "x")?;
    let shape = l.b.shape(t.node);
    let axis = match a.axis(l, &t, "axis")? {
        Some(axis) => axis,
        None if shape.len() == 1 => 0,
        None => return fail(a.invalid("`axis`", "must be given"), a.span),
    };
    let order = a.int(l, "edge_order")?.unwrap_or(1);
    if !(1..=2).contains(&order) {
        return a.refuse("edge_order", format!("is {order}; it must be 1 or 2"));
    }
    let n = shape[axis];
    if i128::from(n) < order + 1 {
        return Err(PlanError::Range {
            what: format!("gradient: length of `{}`", t.dim_name(axis)),
            value: n.to_string(),
            expected: format!("at least {} for edges of order {order}", order + 1),
        })
        .at(a.span);
    }
    let dtype = l.b.dtype(t.node);
    let how = spacing(l, a, "spacing", (axis, shape.len(), n), dtype)?;
    let line = Line::new(l, t.node, axis, how, a.span)?;
    let edge = |l: &mut Lowerer<'_, '_>, at_end: bool| match order {
        1 => line.difference(l, at_end),
        _ => line.parabola(l, at_end),
    };
    let mut parts: Vec<NodeId> = Vec::with_capacity(3);
    parts.push(edge(l, false)?);
    if n > 2 {
        parts.push(line.inner(l)?);
    }
    parts.push(edge(l, true)?);
    let node = l.b.concat(&parts, axis).at(a.span)?;
    Ok(Value::Tensor(Tensor::new(node, t.dims)))
}

impl Line {
    fn new(
        l: &mut Lowerer<'_, '_>,
        x: NodeId,
        axis: usize,
        how: Spacing,
        span: Span,
    ) -> Result<Self, Error> {
        let (n, dtype) = (l.b.shape(x)[axis], l.b.dtype(x));
        let (steps, uneven) = match how {
            Spacing::Even(h) => (l.b.constant(Scalar::from_f64(dtype, h)).at(span)?, false),
            Spacing::At(at) => {
                let upper = l.b.slice(at, axis, 1, 1, n - 1).at(span)?;
                let lower = l.b.slice(at, axis, 0, 1, n - 1).at(span)?;
                (l.b.map(ScalarOp::Sub, &[upper, lower]).at(span)?, true)
            }
        };
        Ok(Line { x, axis, n, dtype, steps, uneven, span })
    }

    fn cut(
        &self,
        l: &mut Lowerer<'_, '_>,
        x: NodeId,
        from: u64,
        len: u64,
    ) -> Result<NodeId, Error> {
        l.b.slice(x, self.axis, from as i64, 1, len).at(self.span)
    }

    fn two(
        &self,
        l: &mut Lowerer<'_, '_>,
        op: ScalarOp,
        x: NodeId,
        y: NodeId,
    ) -> Result<NodeId, Error> {
        l.b.map(op, &[x, y]).at(self.span)
    }

    fn number(&self, l: &mut Lowerer<'_, '_>, v: f64) -> Result<NodeId, Error> {
        l.b.constant(Scalar::from_f64(self.dtype, v)).at(self.span)
    }

    /// `len` distances, starting at cell `from`.
    fn step(&self, l: &mut Lowerer<'_, '_>, from: u64, len: u64) -> Result<NodeId, Error> {
        if self.uneven { self.cut(l, self.steps, from, len) } else { Ok(self.steps) }
    }

    /// The derivative at an end as a one-sided difference of two cells.
    fn difference(&self, l: &mut Lowerer<'_, '_>, at_end: bool) -> Result<NodeId, Error> {
        let n = self.n;
        let (low, high) = if at_end { (n - 2, n - 1) } else { (0, 1) };
        let (p, q) = (self.cut(l, self.x, low, 1)?, self.cut(l, self.x, high, 1)?);
        let d = self.two(l, ScalarOp::Sub, q, p)?;
        let h = self.step(l, low, 1)?;
        self.two(l, ScalarOp::Div, d, h)
    }

    /// The derivative at an end of a parabola through the outermost three cells: a, b, c from the edge inward.
    fn parabola(&self, l: &mut Lowerer<'_, '_>, at_end: bool) -> Result<NodeId, Error> {
        let (x, n) = (self.x, self.n);
        let [a, b] = if at_end { [n - 1, n - 2] } else { [0, 1] };
        let (c, h1, h2) = match at_end {
            true => (n - 3, self.step(l, n - 2, 1)?, self.step(l, n - 3, 1)?),
            false => (2, self.step(l, 0, 1)?, self.step(l, 1, 1)?),
        };
        let sum = self.two(l, ScalarOp::Add, h1, h2)?;
        let double = self.two(l, ScalarOp::Add, h1, sum)?;
        let product = self.two(l, ScalarOp::Mul, h1, sum)?;
        let first = self.two(l, ScalarOp::Div, double, product)?;
        let inner = self.two(l, ScalarOp::Mul, h1, h2)?;
        let second = self.two(l, ScalarOp::Div, sum, inner)?;
        let outer = self.two(l, ScalarOp::Mul, h2, sum)?;
        let third = self.two(l, ScalarOp::Div, h1, outer)?;
        let (ya, yb, yc) = (self.cut(l, x, a, 1)?, self.cut(l, x, b, 1)?, self.cut(l, x, c, 1)?);
        let fa = self.two(l, ScalarOp::Mul, first, ya)?;
        let fb = self.two(l, ScalarOp::Mul, second, yb)?;
        let fc = self.two(l, ScalarOp::Mul, third, yc)?;
        // The parabola's derivative points toward the edge at the end, away from it at the start.
        let less = self.two(l, ScalarOp::Sub, fa, fb)?;
        let sum = self.two(l, ScalarOp::Add, less, fc)?;
        if at_end { Ok(sum) } else { l.b.map(ScalarOp::Neg, &[sum]).at(self.span) }
    }

    /// The derivatives at interior cells, by central differences.
    fn inner(&self, l: &mut Lowerer<'_, '_>) -> Result<NodeId, Error> {
        let (x, n) = (self.x, self.n);
        let upper = self.cut(l, x, 2, n - 2)?;
        let lower = self.cut(l, x, 0, n - 2)?;
        if !self.uneven {
            let d = self.two(l, ScalarOp::Sub, upper, lower)?;
            let two_steps = self.number(l, 2.0)?;
            let h = self.two(l, ScalarOp::Mul, two_steps, self.steps)?;
            return self.two(l, ScalarOp::Div, d, h);
        }
        let (hs, hd) = (self.step(l, 0, n - 2)?, self.step(l, 1, n - 2)?);
        let sum = self.two(l, ScalarOp::Add, hs, hd)?;
        let outer = self.two(l, ScalarOp::Mul, hs, sum)?;
        let first = self.two(l, ScalarOp::Div, hd, outer)?;
        let difference = self.two(l, ScalarOp::Sub, hd, hs)?;
        let product = self.two(l, ScalarOp::Mul, hs, hd)?;
        let second = self.two(l, ScalarOp::Div, difference, product)?;
        let outer = self.two(l, ScalarOp::Mul, hd, sum)?;
        let third = self.two(l, ScalarOp::Div, hs, outer)?;
        let middle = self.cut(l, x, 1, n - 2)?;
        let low = self.two(l, ScalarOp::Mul, first, lower)?;
        let mid = self.two(l, ScalarOp::Mul, second, middle)?;
        let high = self.two(l, ScalarOp::Mul, third, upper)?;
        let sum = self.two(l, ScalarOp::Sub, mid, low)?;
        self.two(l, ScalarOp::Add, sum, high)
    }
}
