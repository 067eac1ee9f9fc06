//! Values that must be known while binding: positions, labels, masks and keys of groups.
//!
//! Only literals, coordinates and exact elementwise arithmetic on them are evaluated. Values that
//! depend on stored data or on a reduction are unknown here.

use std::collections::BTreeMap;
use std::rc::Rc;

use tessera_planner::dtype::DType;
use tessera_planner::ir::{Graph, MapOp, NodeId, Op};
use tessera_planner::program::ScalarOp;
use tessera_planner::region::{cells, strides};
use tessera_planner::scalar::Scalar;

/// Maximum cells that are evaluated: a coordinate of some million labels fits.
const CELLS_MAX: u64 = 8 << 20;

type Cells = Rc<Vec<Option<Scalar>>>;

/// The cells of a node in row-major order, with `None` for masked ones. Returns `None` if they are not
/// known while binding.
pub(crate) fn evaluate(graph: &Graph, node: NodeId) -> Option<Cells> {
    Evaluation { graph, known: BTreeMap::new() }.node(node)
}

struct Evaluation<'a> {
    graph: &'a Graph,
    known: BTreeMap<NodeId, Cells>,
}

impl Evaluation<'_> {
    fn node(&mut self, id: NodeId) -> Option<Cells> {
        if let Some(known) = self.known.get(&id) {
            return Some(known.clone());
        }
        let result = stacker::maybe_grow(super::RED_ZONE, super::STACK, || self.compute(id))?;
        self.known.insert(id, result.clone());
        Some(result)
    }

    fn compute(&mut self, id: NodeId) -> Option<Cells> {
        let node = self.graph.node(id);
        let count = cells(&node.shape).filter(|&n| n <= CELLS_MAX)? as usize;
        Some(match &node.op {
            Op::Const(array) => Rc::new((0..count).map(|i| array.get(i)).collect()),
            Op::Iota => Rc::new((0..count).map(|i| Some(Scalar::i64(i as i64))).collect()),
            Op::Reshape | Op::Rechunk => self.node(node.inputs[0])?,
            Op::View(view) => {
                let from = self.graph.node(node.inputs[0]);
                // For a broadcast input only its own cells are computed.
                let input = self.node(node.inputs[0])?;
                let (to_strides, from_strides) = (strides(&node.shape), strides(&from.shape));
                let read = |i: usize| {
                    let mut at = 0i64;
                    for (d, axis) in view.axes.iter().enumerate() {
                        let out = axis.axis.map_or(0, |o| {
                            (i as i64 / to_strides[o]) % node.shape[o].max(1) as i64
                        });
                        at += (axis.start + axis.step * out) * from_strides[d];
                    }
                    input[at as usize]
                };
                Rc::new((0..count).map(read).collect())
            }
            Op::Map(op) => {
                let inputs: Vec<Cells> =
                    node.inputs.iter().map(|&i| self.node(i)).collect::<Option<_>>()?;
                let mut out = Vec::with_capacity(count);
                for i in 0..count {
                    let args: Vec<Option<Scalar>> = inputs.iter().map(|cells| cells[i]).collect();
                    out.push(apply(*op, node.dtype, &args)?);
                }
                Rc::new(out)
            }
            _ => return None,
        })
    }
}

fn apply(op: MapOp, dtype: DType, args: &[Option<Scalar>]) -> Option<Option<Scalar>> {
    let truth = |v: Option<Scalar>| v.map(|v| v.as_i128() != 0);
    let answer = |v: Option<bool>| Some(v.map(Scalar::bool));
    match op {
        MapOp::Mask => Some(args[0].filter(|_| truth(args[1]) == Some(true))),
        MapOp::IsValid => answer(Some(args[0].is_some())),
        MapOp::Coalesce => Some(args[0].or(args[1])),
        MapOp::KleeneAnd => answer(match (truth(args[0]), truth(args[1])) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        }),
        MapOp::KleeneOr => answer(match (truth(args[0]), truth(args[1])) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }),
        MapOp::Scalar(ScalarOp::Where) => match truth(args[0]) {
            None => Some(None),
            Some(true) => Some(args[1]),
            Some(false) => Some(args[2]),
        },
        MapOp::Scalar(op) => match args.iter().copied().collect::<Option<Vec<Scalar>>>() {
            None => Some(None),
            Some(args) => scalar(op, dtype, &args).map(Some),
        },
    }
}

/// Computes one exact operation; `None` for operations whose bits the kernels define.
fn scalar(op: ScalarOp, dtype: DType, args: &[Scalar]) -> Option<Scalar> {
    let of = args[0].dtype();
    match op {
        ScalarOp::Cast => return Some(args[0].cast(dtype)),
        ScalarOp::DatePart(part) => {
            let DType::Datetime(calendar) = of else { return None };
            return Some(Scalar::i64(part.of(args[0].as_i128() as i64, calendar)));
        }
        _ => {}
    }
    if of.is_float() {
        let (x, y) = (args[0].as_f64(), args.get(1).map_or(0.0, |s| s.as_f64()));
        let value = match op {
            ScalarOp::Neg => -x,
            ScalarOp::Abs => x.abs(),
            ScalarOp::Floor => x.floor(),
            ScalarOp::Ceil => x.ceil(),
            ScalarOp::Trunc => x.trunc(),
            ScalarOp::Rint => x.round_ties_even(),
            ScalarOp::Add => x + y,
            ScalarOp::Sub => x - y,
            ScalarOp::Mul => x * y,
            ScalarOp::Div => x / y,
            ScalarOp::Minimum => {
                if x.is_nan() || x < y {
                    x
                } else {
                    y
                }
            }
            ScalarOp::Maximum => {
                if x.is_nan() || x > y {
                    x
                } else {
                    y
                }
            }
            ScalarOp::FloorDiv => {
                // As in Python: the remainder with the divisor's sign is subtracted first.
                let r = x % y;
                let q = (x - r) / y;
                if r != 0.0 && (r < 0.0) != (y < 0.0) { (q - 1.0).round() } else { q.round() }
            }
            ScalarOp::Rem => {
                let r = x % y;
                if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r }
            }
            ScalarOp::IsNan => return Some(Scalar::bool(x.is_nan())),
            ScalarOp::IsInf => return Some(Scalar::bool(x.is_infinite())),
            ScalarOp::IsFinite => return Some(Scalar::bool(x.is_finite())),
            _ => return compare(op, x.partial_cmp(&y)).map(Scalar::bool),
        };
        return Some(Scalar::from_f64(dtype, value));
    }
    let (x, y) = (args[0].as_i128(), args.get(1).map_or(0, |s| s.as_i128()));
    if of == DType::Bool {
        let value = match op {
            ScalarOp::And | ScalarOp::Mul => x & y,
            ScalarOp::Or | ScalarOp::Add => x | y,
            ScalarOp::Xor => x ^ y,
            ScalarOp::Not => 1 - x,
            _ => return compare(op, Some(x.cmp(&y))).map(Scalar::bool),
        };
        return Some(Scalar::bool(value != 0));
    }
    let value = match op {
        ScalarOp::Neg => -x,
        ScalarOp::Abs => x.abs(),
        ScalarOp::Sign => x.signum(),
        ScalarOp::Add => x + y,
        ScalarOp::Sub => x - y,
        ScalarOp::Mul => x.checked_mul(y)?,
        ScalarOp::FloorDiv if y != 0 => x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0),
        ScalarOp::Rem if y != 0 => {
            let r = x % y;
            if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
        }
        ScalarOp::Minimum => x.min(y),
        ScalarOp::Maximum => x.max(y),
        ScalarOp::And => x & y,
        ScalarOp::Or => x | y,
        ScalarOp::Xor => x ^ y,
        _ => return compare(op, Some(x.cmp(&y))).map(Scalar::bool),
    };
    // Overflow is left to the kernels, which wrap.
    Scalar::from_i128(dtype, value)
}

fn compare(op: ScalarOp, order: Option<std::cmp::Ordering>) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    Some(match op {
        ScalarOp::Eq => order == Some(Equal),
        ScalarOp::Ne => order != Some(Equal),
        ScalarOp::Lt => order == Some(Less),
        ScalarOp::Le => matches!(order, Some(Less | Equal)),
        ScalarOp::Gt => order == Some(Greater),
        ScalarOp::Ge => matches!(order, Some(Greater | Equal)),
        _ => return None,
    })
}
