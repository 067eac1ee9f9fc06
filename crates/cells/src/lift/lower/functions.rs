//! Functions with the same meaning in SQL and as an operation of the IR.

use datafusion::logical_expr::{Expr, Operator};
use tessera_planner::dtype::DType;
use tessera_planner::ir::{MapOp, NodeId};
use tessera_planner::program::ScalarOp;

use super::super::functions::IN_CALENDAR;
use super::super::names::{FLOOR_DIVIDE, POWER};
use super::super::operators::{SHIFT_LEFT, SHIFT_RIGHT};
use super::{Lower, Lowered, refused};

/// Functions of one float with the same meaning.
const OF_ONE: [(&str, ScalarOp); 23] = [
    ("sqrt", ScalarOp::Sqrt),
    ("cbrt", ScalarOp::Cbrt),
    ("exp", ScalarOp::Exp),
    ("ln", ScalarOp::Log),
    ("log2", ScalarOp::Log2),
    ("log10", ScalarOp::Log10),
    // SQL's `log` of one argument has base 10.
    ("log", ScalarOp::Log10),
    ("sin", ScalarOp::Sin),
    ("cos", ScalarOp::Cos),
    ("tan", ScalarOp::Tan),
    ("asin", ScalarOp::Arcsin),
    ("acos", ScalarOp::Arccos),
    ("atan", ScalarOp::Arctan),
    ("sinh", ScalarOp::Sinh),
    ("cosh", ScalarOp::Cosh),
    ("tanh", ScalarOp::Tanh),
    ("asinh", ScalarOp::Arcsinh),
    ("acosh", ScalarOp::Arccosh),
    ("atanh", ScalarOp::Arctanh),
    ("abs", ScalarOp::Abs),
    ("floor", ScalarOp::Floor),
    ("ceil", ScalarOp::Ceil),
    ("isnan", ScalarOp::IsNan),
];

impl Lower<'_> {
    /// Lowers a call of an elementwise function of tensors: its text, and its columns.
    pub(super) fn elementwise(&mut self, text: &str, columns: &[Expr]) -> Lowered {
        let nodes =
            columns.iter().map(|c| self.expr(c)).collect::<Result<Vec<NodeId>, String>>()?;
        let node = tessera_frontend::columns::lower(text, self.b, &nodes);
        let node = node.map_err(|error| error.to_string())?;
        if self.b.node(node).shape.len() == self.rank() {
            return Ok(node);
        }
        let shape = vec![1; self.rank()];
        self.b.broadcast_to(node, &shape).map_err(refused)
    }

    pub(super) fn function(&mut self, name: &str, args: &[Expr]) -> Lowered {
        let nodes = args.iter().map(|a| self.expr(a)).collect::<Result<Vec<NodeId>, String>>()?;
        let all_float = |lower: &Self| {
            nodes.iter().all(|&n| lower.b.dtype(n).is_float())
                && nodes.windows(2).all(|w| lower.b.dtype(w[0]) == lower.b.dtype(w[1]))
        };
        if let [x] = nodes.as_slice()
            && all_float(self)
            && let Some((_, op)) = OF_ONE.iter().find(|(n, _)| *n == name)
        {
            return self.map(*op, &[*x]);
        }
        match (name, nodes.as_slice()) {
            // Times of other calendars are `int64` here.
            (IN_CALENDAR, [x]) => Ok(*x),
            ("trunc", [x]) if all_float(self) => self.map(ScalarOp::Trunc, &[*x]),
            ("power" | POWER, [x, y]) if all_float(self) => self.map(ScalarOp::Pow, &[*x, *y]),
            (SHIFT_LEFT | SHIFT_RIGHT, [x, y])
                if self.b.dtype(*x).is_integer() && self.b.dtype(*x) == self.b.dtype(*y) =>
            {
                let is_left = name == SHIFT_LEFT;
                let op = if is_left { ScalarOp::ShiftLeft } else { ScalarOp::ShiftRight };
                self.map(op, &[*x, *y])
            }
            ("atan2", [x, y]) if all_float(self) => self.map(ScalarOp::Arctan2, &[*x, *y]),
            (FLOOR_DIVIDE, [x, y]) if all_float(self) => {
                let quotient = self.map(ScalarOp::Div, &[*x, *y])?;
                self.map(ScalarOp::Floor, &[quotient])
            }
            ("nullif", [x, y]) if self.b.dtype(*x) == self.b.dtype(*y) => {
                let same = self.compare_nodes(Operator::Eq, *x, *y)?;
                let no = self.constant(tessera_planner::scalar::Scalar::bool(false))?;
                let same = self.map_op(MapOp::Coalesce, &[same, no])?;
                let keep = self.map(ScalarOp::Not, &[same])?;
                self.map_op(MapOp::Mask, &[*x, keep])
            }
            ("coalesce", [first, rest @ ..])
                if rest.iter().all(|&n| self.b.dtype(n) == self.b.dtype(*first)) =>
            {
                let mut out = *nodes.last().unwrap_or(first);
                for &n in nodes.iter().rev().skip(1) {
                    out = self.map_op(MapOp::Coalesce, &[n, out])?;
                }
                Ok(out)
            }
            _ => {
                let types: Vec<String> =
                    nodes.iter().map(|&n| DType::name(self.b.dtype(n))).collect();
                Err(format!("`{name}` of {} has no dense form", types.join(", ")))
            }
        }
    }
}
