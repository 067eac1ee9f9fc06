//! The checks of operations that reject arguments.

use super::{Body, Node, Out, Val};
use crate::KernelError;
use crate::ops::TileOp;
use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp;

/// The cells in which a value is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Never,
    Where(Val),
    Always,
}

impl Body {
    /// Adds the checks of operations that reject arguments, each limited to the cells whose value is needed.
    pub(super) fn guard(&mut self, outs: &[Out]) {
        let risky = |n: &Node| match n.op {
            TileOp::Scalar(ScalarOp::TruncDiv | ScalarOp::TruncRem) => true,
            TileOp::Scalar(ScalarOp::Pow) => n.arg.is_signed(),
            _ => false,
        };
        // True for a node that can reject arguments, or above one that can.
        let mut reaches = vec![false; self.nodes.len()];
        for (i, n) in self.nodes.iter().enumerate() {
            reaches[i] =
                risky(n) || n.args.iter().any(|a| matches!(a, Val::Node(j) if reaches[*j]));
        }
        if !reaches.contains(&true) {
            return;
        }
        let count = self.nodes.len();
        let mut need = vec![Need::Never; count];
        for o in outs {
            let (values, valid): (Vec<Val>, Option<Val>) = match o {
                Out::Store { value, valid } => (vec![*value], *valid),
                // In other reductions a `where` replaced masked values by the identity, which limits the need by
                // itself.
                Out::Reduce { parts, .. } => {
                    for p in parts {
                        let needed = p.valid.map_or(Need::Always, Need::Where);
                        self.require(&mut need, &reaches, p.value, needed);
                        if let Some(v) = p.valid {
                            self.require(&mut need, &reaches, v, Need::Always);
                        }
                    }
                    continue;
                }
            };
            for v in values {
                self.require(&mut need, &reaches, v, valid.map_or(Need::Always, Need::Where));
            }
            if let Some(v) = valid {
                self.require(&mut need, &reaches, v, Need::Always);
            }
        }
        for i in (0..count).rev() {
            if need[i] == Need::Never || !reaches[i] {
                continue;
            }
            let node = self.nodes[i].clone();
            for (j, a) in node.args.iter().enumerate() {
                let mut n = need[i];
                if node.op == TileOp::Scalar(ScalarOp::Where) && j > 0 {
                    let taken = if j == 1 {
                        node.args[0]
                    } else {
                        self.scalar(ScalarOp::Not, DType::Bool, vec![node.args[0]])
                    };
                    n = match n {
                        Need::Where(v) => {
                            Need::Where(self.scalar(ScalarOp::And, DType::Bool, vec![v, taken]))
                        }
                        _ => Need::Where(taken),
                    };
                }
                self.require(&mut need, &reaches, *a, n);
            }
            if !risky(&node) {
                continue;
            }
            let TileOp::Scalar(op) = node.op else { continue };
            let (test, reason) = match op {
                ScalarOp::Pow => (TileOp::IsNegative, "a negative exponent"),
                _ => (TileOp::IsZero, "division by zero"),
            };
            if let Val::Const(c) = node.args[1] {
                let x = self.consts[c].as_i128();
                if (op == ScalarOp::Pow && x >= 0) || (op != ScalarOp::Pow && x != 0) {
                    continue;
                }
            }
            let mut bad = self.push(test, DType::Bool, vec![node.args[1]]);
            if let Need::Where(v) = need[i] {
                bad = self.scalar(ScalarOp::And, DType::Bool, vec![bad, v]);
            }
            let error = KernelError::Domain { operation: op.name(), dtype: node.arg, reason };
            self.checks.push((bad, error));
        }
    }

    fn require(&mut self, need: &mut [Need], reaches: &[bool], v: Val, n: Need) {
        let Val::Node(i) = v else { return };
        if i >= need.len() || !reaches[i] {
            return;
        }
        need[i] = match (need[i], n) {
            (Need::Never, n) | (n, Need::Never) => n,
            (Need::Where(a), Need::Where(b)) if a == b => n,
            (Need::Where(a), Need::Where(b)) => {
                Need::Where(self.scalar(ScalarOp::Or, DType::Bool, vec![a, b]))
            }
            _ => Need::Always,
        };
    }
}
