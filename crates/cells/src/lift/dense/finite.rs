//! Upper bounds on the magnitude of a node's cells, known without running it.
//!
//! The type bounds stored integers, and so values computed from them: a packed variable, decoded to floats,
//! is always finite. Stored floats have no bound.

use tessera_planner::build::Builder;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{MapOp, NodeId, Op};
use tessera_planner::program::ScalarOp;

/// Upper bound on the magnitude of a node's unmasked cells, if they are all finite.
pub(crate) fn bound(b: &Builder, node: NodeId) -> Option<f64> {
    walk(b, node, &mut 256)
}

fn walk(b: &Builder, id: NodeId, steps: &mut u32) -> Option<f64> {
    *steps = steps.checked_sub(1)?;
    let node = b.node(id);
    let of_type = of_dtype(node.dtype);
    let mut inputs = Vec::new();
    let is_followed = matches!(
        node.op,
        Op::View(_) | Op::Reshape | Op::Rechunk | Op::Take { .. } | Op::Concat { .. } | Op::Map(_)
    );
    if is_followed {
        inputs.extend(node.inputs.iter().map(|&input| walk(b, input, steps)));
    }
    let largest = || inputs.iter().try_fold(0.0, |m: f64, known| known.map(|v| m.max(v)));
    let value = match &node.op {
        Op::Const(array) => (0..array.len())
            .filter_map(|i| array.get(i))
            .map(|v| v.as_f64().abs())
            .try_fold(0.0, |m: f64, v| v.is_finite().then(|| m.max(v))),
        Op::View(_) | Op::Reshape | Op::Rechunk | Op::Take { .. } | Op::Concat { .. } => largest(),
        Op::Map(MapOp::Mask) => inputs.first().copied().flatten(),
        Op::Map(MapOp::Coalesce) => largest(),
        Op::Map(MapOp::Scalar(op)) => match (op, inputs.as_slice()) {
            (ScalarOp::Cast | ScalarOp::Neg | ScalarOp::Abs, [x]) => *x,
            (ScalarOp::Add | ScalarOp::Sub, [Some(x), Some(y)]) => Some(x + y),
            (ScalarOp::Mul, [Some(x), Some(y)]) => Some(x * y),
            (ScalarOp::Where, [_, Some(x), Some(y)]) => Some(x.max(*y)),
            _ => None,
        },
        _ => None,
    };
    // Rounding may increase it a little, and a value beyond the type's range is infinite.
    let fits = match node.dtype {
        DType::Float32 => 3e38,
        _ => 1e300,
    };
    let value = value.map(|v| v * (1.0 + 1e-6)).filter(|v| *v < fits);
    match (value, of_type) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn of_dtype(dtype: DType) -> Option<f64> {
    match dtype {
        DType::Bool => Some(1.0),
        dtype if dtype.is_integer() => Some(256f64.powi(dtype.size() as i32)),
        _ => None,
    }
}
