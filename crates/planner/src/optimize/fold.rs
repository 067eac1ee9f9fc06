//! Constant folding: elementwise operations on constants, and a few identities.
//!
//! Only operations whose result is exact (or correctly rounded by every machine) are evaluated here. `exp` of a
//! constant is left to the kernels, so that its bits are theirs.

use super::rebuild;
use crate::build::Builder;
use crate::dtype::DType;
use crate::error::Error;
use crate::ir::{MapOp, Node, NodeId, Op};
use crate::program::ScalarOp;
use crate::scalar::Scalar;

pub(super) fn rewrite(b: &mut Builder, node: &Node, inputs: &[NodeId]) -> Result<NodeId, Error> {
    let Op::Map(op) = &node.op else { return rebuild(b, node, inputs) };
    let values: Option<Vec<Option<Scalar>>> = inputs.iter().map(|&i| b.graph.scalar(i)).collect();
    if let Some(result) = values.and_then(|v| evaluate(*op, node.dtype, &v)) {
        return b.full(result, node.dtype, &node.shape, None);
    }
    match op {
        // A constant condition selects its branch.
        MapOp::Scalar(ScalarOp::Where) => match b.graph.scalar(inputs[0]) {
            Some(Some(c)) => return Ok(if c.as_i128() != 0 { inputs[1] } else { inputs[2] }),
            _ => return rebuild(b, node, inputs),
        },
        MapOp::IsValid if !b.node(inputs[0]).nullable => {
            return b.full(Some(Scalar::bool(true)), DType::Bool, &node.shape, None);
        }
        MapOp::Coalesce if !b.node(inputs[0]).nullable => return Ok(inputs[0]),
        _ => {}
    }
    rebuild(b, node, inputs)
}

/// Evaluates an operation on constants (an inner `None` is a masked value); `None` if it is not evaluated here.
fn evaluate(op: MapOp, dtype: DType, v: &[Option<Scalar>]) -> Option<Option<Scalar>> {
    match op {
        MapOp::IsValid => return Some(Some(Scalar::bool(v[0].is_some()))),
        MapOp::Coalesce => return Some(v[0].or(v[1])),
        MapOp::Mask => return Some(v[0].filter(|_| v[1].is_some_and(|k| k.as_i128() != 0))),
        MapOp::KleeneAnd | MapOp::KleeneOr => return None,
        MapOp::Scalar(ScalarOp::Where) => {
            return Some(v[0].and_then(|c| if c.as_i128() != 0 { v[1] } else { v[2] }));
        }
        MapOp::Scalar(_) => {}
    }
    let MapOp::Scalar(op) = op else { return None };
    let Some(v) = v.iter().copied().collect::<Option<Vec<Scalar>>>() else { return Some(None) };
    let of = v[0].dtype();
    if op == ScalarOp::Cast {
        // Casts that NumPy leaves undefined are left to the kernels.
        let tame = !of.is_float() || dtype.is_float() || v[0].as_f64().abs() < 2f64.powi(31);
        return tame.then(|| Some(v[0].cast(dtype)));
    }
    let result = if of.is_float() {
        let x = v[0].as_f64();
        let y = v.get(1).map_or(0.0, |s| s.as_f64());
        let value = match op {
            ScalarOp::Neg => -x,
            ScalarOp::Abs => x.abs(),
            ScalarOp::Floor => x.floor(),
            ScalarOp::Ceil => x.ceil(),
            ScalarOp::Trunc => x.trunc(),
            ScalarOp::Eq => return Some(Some(Scalar::bool(x == y))),
            ScalarOp::Ne => return Some(Some(Scalar::bool(x != y))),
            ScalarOp::Lt => return Some(Some(Scalar::bool(x < y))),
            ScalarOp::Le => return Some(Some(Scalar::bool(x <= y))),
            ScalarOp::Gt => return Some(Some(Scalar::bool(x > y))),
            ScalarOp::Ge => return Some(Some(Scalar::bool(x >= y))),
            ScalarOp::IsNan => return Some(Some(Scalar::bool(x.is_nan()))),
            // float32 arithmetic through float64 rounds twice. For + - * / and sqrt of two float32 values the result is
            // the same; other operations are not listed here.
            ScalarOp::Add => x + y,
            ScalarOp::Sub => x - y,
            ScalarOp::Mul => x * y,
            ScalarOp::Div => x / y,
            ScalarOp::Sqrt => x.sqrt(),
            _ => return None,
        };
        Scalar::from_f64(dtype, value)
    } else if of.is_integer() {
        let (x, y) = (v[0].as_i128(), v.get(1).map_or(0, |s| s.as_i128()));
        let value = match op {
            ScalarOp::Neg => -x,
            ScalarOp::Abs => x.abs(),
            ScalarOp::Add => x + y,
            ScalarOp::Sub => x - y,
            ScalarOp::Mul => x.checked_mul(y)?,
            ScalarOp::FloorDiv if y != 0 => {
                x.div_euclid(y) - i128::from(y < 0 && x.rem_euclid(y) != 0)
            }
            ScalarOp::Eq => return Some(Some(Scalar::bool(x == y))),
            ScalarOp::Ne => return Some(Some(Scalar::bool(x != y))),
            ScalarOp::Lt => return Some(Some(Scalar::bool(x < y))),
            ScalarOp::Le => return Some(Some(Scalar::bool(x <= y))),
            ScalarOp::Gt => return Some(Some(Scalar::bool(x > y))),
            ScalarOp::Ge => return Some(Some(Scalar::bool(x >= y))),
            _ => return None,
        };
        // A result that wraps is left to the kernels.
        Scalar::from_i128(dtype, value)?
    } else if of == DType::Bool {
        let (x, y) = (v[0].as_i128() != 0, v.get(1).is_some_and(|s| s.as_i128() != 0));
        match op {
            ScalarOp::And | ScalarOp::Mul => Scalar::bool(x && y),
            ScalarOp::Or | ScalarOp::Add => Scalar::bool(x || y),
            ScalarOp::Not => Scalar::bool(!x),
            _ => return None,
        }
    } else {
        return None;
    };
    Some(Some(result))
}
