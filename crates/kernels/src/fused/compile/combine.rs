//! Merges operations whose results have no other reader; roundings do not change.

use super::{Body, Node, Out, TailOf, Val};
use crate::ops::{N, TileOp};
use crate::partial::{Comparison, Tail};
use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp as S;
use tessera_planner::scalar::Scalar;

impl Body {
    pub(super) fn roots(&self, outs: &[Out]) -> Vec<Val> {
        let mut roots: Vec<Val> = self.checks.iter().map(|c| c.0).collect();
        for o in outs {
            match o {
                Out::Store { value, valid } => roots.extend([*value].into_iter().chain(*valid)),
                Out::Reduce { parts, .. } => {
                    for p in parts {
                        roots.extend([p.value].into_iter().chain(p.valid));
                    }
                }
            }
        }
        roots
    }

    /// Number of live nodes and roots that read each node; 0 for a dead node.
    pub(super) fn uses(&self, outs: &[Out]) -> Vec<u32> {
        let mut uses = vec![0u32; self.nodes.len()];
        for r in self.roots(outs) {
            if let Val::Node(i) = r {
                uses[i] += 1;
            }
        }
        for i in (0..self.nodes.len()).rev() {
            if uses[i] > 0 {
                for a in &self.nodes[i].args {
                    if let Val::Node(j) = a {
                        uses[*j] += 1;
                    }
                }
            }
        }
        uses
    }

    /// Merges operations.
    pub(super) fn combine(&mut self, outs: &mut [Out]) {
        let uses = self.uses(outs);
        for i in 0..self.nodes.len() {
            if !self.nodes[i].dtype.is_float() || uses[i] == 0 {
                continue;
            }
            let joined = self.poly(i, &uses).or_else(|| self.joined(i, &uses));
            if let Some((op, args)) = joined {
                let dtype = self.nodes[i].dtype;
                self.nodes[i] = Node { op, arg: dtype, dtype, args };
            }
        }
        self.tails(outs);
        for i in 0..self.nodes.len() {
            self.constant_argument(i);
        }
    }

    /// The node behind an argument, if only one node reads it.
    fn own(&self, v: Val, uses: &[u32]) -> Option<&Node> {
        match v {
            Val::Node(j) if uses[j] == 1 => Some(&self.nodes[j]),
            _ => None,
        }
    }

    fn joined(&self, i: usize, uses: &[u32]) -> Option<(TileOp, Vec<Val>)> {
        let n = &self.nodes[i];
        let own = |v: Val| self.own(v, uses);
        let product = |v: Val| own(v).filter(|m| m.op == TileOp::Scalar(S::Mul));
        Some(match n.op {
            TileOp::Scalar(S::Add) => match (product(n.args[0]), product(n.args[1])) {
                (Some(x), Some(y)) if x.args[0] == x.args[1] && y.args[0] == y.args[1] => {
                    (TileOp::SquareSum, vec![x.args[0], y.args[0]])
                }
                (Some(x), _) => (TileOp::MulAdd, vec![x.args[0], x.args[1], n.args[1]]),
                (_, Some(y)) => (TileOp::MulAdd, vec![y.args[0], y.args[1], n.args[0]]),
                _ => return None,
            },
            TileOp::Scalar(S::Sub) => match (product(n.args[0]), product(n.args[1])) {
                (Some(x), _) => (TileOp::MulSub, vec![x.args[0], x.args[1], n.args[1]]),
                (_, Some(y)) => (TileOp::NegMulAdd, vec![y.args[0], y.args[1], n.args[0]]),
                _ => return None,
            },
            TileOp::Scalar(S::Div) => match own(n.args[0]) {
                Some(x) if x.op == TileOp::Scalar(S::Sub) => {
                    (TileOp::SubDiv, vec![x.args[0], x.args[1], n.args[1]])
                }
                _ => return None,
            },
            TileOp::Scalar(S::Sqrt) => match own(n.args[0]) {
                Some(x) if x.op == TileOp::SquareSum => (TileOp::Norm, x.args.clone()),
                _ => return None,
            },
            TileOp::Scalar(S::Exp) => match own(n.args[0]) {
                Some(x) if x.op == TileOp::Scalar(S::Neg) => (TileOp::ExpNeg, x.args.clone()),
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Recognises a step of Horner's rule, `y * x + c` with a constant c: the first step if y is a constant too, a
    /// further one if y is such a polynomial of the same x.
    fn poly(&mut self, i: usize, uses: &[u32]) -> Option<(TileOp, Vec<Val>)> {
        let n = &self.nodes[i];
        let (add, args) = match n.op {
            TileOp::Scalar(op @ (S::Add | S::Sub)) => (op == S::Add, [n.args[0], n.args[1]]),
            _ => return None,
        };
        // The product and the constant: y - c = y + -c, c - y = -y + c, with the same roundings.
        let (product, c, turned) = match (self.known(args[0]), self.known(args[1])) {
            (None, Some(c)) => (args[0], if add { c } else { negated(c) }, false),
            (Some(c), None) => (args[1], c, !add),
            _ => return None,
        };
        let m = self.own(product, uses).filter(|m| m.op == TileOp::Scalar(S::Mul))?;
        let (p, q) = (m.args[0], m.args[1]);
        let first = |y: Val, x: Val| {
            let y = self.known(y)?;
            self.known(x).is_none().then(|| (x, vec![y]))
        };
        let further = |y: Val, x: Val| {
            let y = self.own(y, uses).filter(|y| matches!(y.op, TileOp::Poly(_)))?;
            let Val::Table(t) = y.args[1] else { return None };
            (y.args[0] == x && self.tables[t].len() < N).then(|| (x, self.tables[t].clone()))
        };
        let (x, mut table) = first(p, q)
            .or_else(|| first(q, p))
            .or_else(|| further(p, q))
            .or_else(|| further(q, p))?;
        if turned {
            table.iter_mut().for_each(|c| *c = negated(*c));
        }
        table.push(c);
        let several = table.len();
        self.tables.push(table);
        Some((TileOp::Poly(several), vec![x, Val::Table(self.tables.len() - 1)]))
    }

    /// Fuses the last operations of values without other readers into sums and extremes.
    fn tails(&self, outs: &mut [Out]) {
        let uses = self.uses(outs);
        for o in outs {
            let Out::Reduce { parts, .. } = o else { continue };
            for p in parts {
                if p.fns.tails.is_some() {
                    p.tail = self.tail(p.value, &uses);
                }
            }
        }
    }

    fn tail(&self, value: Val, uses: &[u32]) -> Option<TailOf> {
        let Val::Node(i) = value else { return None };
        let n = self.own(value, uses)?;
        let of = |tail, value, beside, parameter, more: Option<usize>| {
            let instead = [i].into_iter().chain(more).collect();
            Some(TailOf { tail, instead, value, beside, parameter })
        };
        let difference = |v: Val, readers: u32| match v {
            Val::Node(j) if uses[j] == readers => {
                let d = &self.nodes[j];
                (d.op == TileOp::Scalar(S::Sub)).then(|| (j, d.args[0], d.args[1]))
            }
            _ => None,
        };
        match n.op {
            TileOp::Scalar(S::Mul) => {
                let (a, b) = (n.args[0], n.args[1]);
                match difference(a, 2).filter(|_| a == b) {
                    Some((j, a, b)) => of(Tail::SquaredDifference, a, b, 0, Some(j)),
                    None => of(Tail::Product, a, b, 0, None),
                }
            }
            TileOp::Scalar(S::Abs) => {
                let (j, a, b) = difference(n.args[0], 1)?;
                of(Tail::AbsoluteDifference, a, b, 0, Some(j))
            }
            // The other value of the tail is 0, not -0.
            TileOp::Scalar(S::Where) if self.known(n.args[2])?.bits() == 0 => {
                let (condition, value) = (n.args[0], n.args[1]);
                match self.comparison(condition, n.dtype, uses) {
                    Some((c, x, k)) => {
                        let Val::Node(j) = condition else { return None };
                        of(Tail::Chosen(c), value, x, k.bits(), Some(j))
                    }
                    None => of(Tail::Masked, value, condition, 0, None),
                }
            }
            TileOp::Scalar(S::Sqrt) if n.arg == n.dtype => {
                of(Tail::Root, n.args[0], n.args[0], 0, None)
            }
            _ => None,
        }
    }

    /// Returns the comparison of a value with a constant, if the condition is one and has no other reader.
    fn comparison(
        &self,
        condition: Val,
        dtype: DType,
        uses: &[u32],
    ) -> Option<(Comparison, Val, Scalar)> {
        let n = self.own(condition, uses).filter(|n| n.arg == dtype)?;
        let TileOp::Scalar(op) = n.op else { return None };
        let (op, x, k) = match (self.known(n.args[0]), self.known(*n.args.get(1)?)) {
            (None, Some(k)) => (op, n.args[0], k),
            (Some(k), None) => (mirrored(op)?, n.args[1], k),
            _ => return None,
        };
        let c = match op {
            S::Eq => Comparison::Eq,
            S::Ne => Comparison::Ne,
            S::Lt => Comparison::Lt,
            S::Le => Comparison::Le,
            S::Gt => Comparison::Gt,
            S::Ge => Comparison::Ge,
            _ => return None,
        };
        Some((c, x, k))
    }

    /// Moves a constant argument into the operation, so that it needs no register.
    fn constant_argument(&mut self, i: usize) {
        let n = &self.nodes[i];
        let (TileOp::Scalar(op), [a, b]) = (n.op, &n.args[..]) else { return };
        let (op, x) = match (self.known(*a), self.known(*b)) {
            (None, Some(k)) => (TileOp::Right(op, k.bits()), *a),
            (Some(k), None) => match op {
                S::Add | S::Mul => (TileOp::Right(op, k.bits()), *b),
                _ => match mirrored(op) {
                    Some(op) => (TileOp::Right(op, k.bits()), *b),
                    None => (TileOp::Left(op, k.bits()), *b),
                },
            },
            _ => return,
        };
        if crate::ops::pick(op, n.arg, n.dtype, self.level).is_some() {
            let (n, args) = (&mut self.nodes[i], vec![x]);
            (n.op, n.args) = (op, args);
        }
    }
}

/// The comparison with its sides exchanged.
fn mirrored(op: S) -> Option<S> {
    Some(match op {
        S::Eq => S::Eq,
        S::Ne => S::Ne,
        S::Lt => S::Gt,
        S::Le => S::Ge,
        S::Gt => S::Lt,
        S::Ge => S::Le,
        _ => return None,
    })
}

/// A float with the other sign.
fn negated(c: Scalar) -> Scalar {
    Scalar::from_f64(c.dtype(), -c.as_f64())
}
