//! Constructors of elementwise nodes, with their types, masks and shapes.

use super::{Builder, Result};
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::Grid;
use crate::ir::{MapOp, NodeId, Op};
use crate::program::ScalarOp;
use crate::region::{Dims, cells};
use smallvec::SmallVec;

impl Builder {
    /// An elementwise operation on values of one type (see [`ScalarOp`]); shapes broadcast.
    ///
    /// # Errors
    /// [`Error::DTypes`], [`Error::Shapes`] if the shapes do not broadcast.
    pub fn map(&mut self, op: ScalarOp, inputs: &[NodeId]) -> Result<NodeId> {
        self.map_op(MapOp::Scalar(op), inputs)
    }

    /// An elementwise operation; shapes broadcast.
    ///
    /// # Errors
    /// [`Error::DTypes`], [`Error::Shapes`] if the shapes do not broadcast.
    pub fn map_op(&mut self, op: MapOp, inputs: &[NodeId]) -> Result<NodeId> {
        let dtypes: Vec<DType> = inputs.iter().map(|&i| self.dtype(i)).collect();
        let dtype = map_dtype(op, &dtypes)
            .ok_or_else(|| Error::DTypes { operation: map_name(op), dtypes: dtypes.clone() })?;
        self.map_typed(op, dtype, inputs)
    }

    /// Converts the input to a type; returns the input itself if it has that type.
    ///
    /// # Errors
    /// [`Error::DTypes`] for types without a conversion.
    pub fn cast(&mut self, input: NodeId, dtype: DType) -> Result<NodeId> {
        let from = self.dtype(input);
        if from == dtype {
            return Ok(input);
        }
        let ok = match (from, dtype) {
            (DType::Datetime(_), DType::Datetime(_)) => false,
            (DType::Datetime(_), d) | (d, DType::Datetime(_)) => d == DType::Int64,
            _ => true,
        };
        if !ok {
            return Err(Error::DTypes { operation: "cast".into(), dtypes: vec![from, dtype] });
        }
        self.map_typed(MapOp::Scalar(ScalarOp::Cast), dtype, &[input])
    }

    fn map_typed(&mut self, op: MapOp, dtype: DType, inputs: &[NodeId]) -> Result<NodeId> {
        let shapes: Vec<Dims> = inputs.iter().map(|&i| self.shape(i)).collect();
        let shape = broadcast_shapes(&map_name(op), &shapes)?;
        let wide: SmallVec<[NodeId; 3]> =
            inputs.iter().map(|&i| self.broadcast_to(i, &shape)).collect::<Result<_>>()?;
        let nullable =
            map_nullable(op, &wide.iter().map(|&i| self.node(i).nullable).collect::<Vec<_>>());
        let grid = self.meet_grids(&wide, dtype);
        self.push(Op::Map(op), &wide, shape, dtype, nullable, grid)
    }

    /// The grid of an elementwise node, from its inputs of one shape: that of the input with the most distinct cells (a
    /// repeated input has few), the first of equals.
    pub(super) fn meet_grids(&self, inputs: &[NodeId], dtype: DType) -> Grid {
        let mut best: Option<(u64, NodeId)> = None;
        for &i in inputs {
            let own = self.own_cells(i);
            if best.is_none_or(|(n, _)| own > n) {
                best = Some((own, i));
            }
        }
        match best {
            Some((_, i)) => self.node(i).grid.clone(),
            None => self.auto_grid(&[], dtype),
        }
    }

    /// Number of distinct cells of a node: for a view that repeats, those of its input.
    fn own_cells(&self, id: NodeId) -> u64 {
        let node = self.node(id);
        let n = cells(&node.shape).unwrap_or(u64::MAX);
        match node.op {
            Op::View(_) => n.min(self.own_cells(node.inputs[0])),
            _ => n,
        }
    }
}

/// The common shape of several: trailing axes are aligned and must be equal or 1.
///
/// # Errors
/// [`Error::Shapes`] for lengths that differ and are not 1.
pub fn broadcast_shapes(operation: &str, shapes: &[Dims]) -> Result<Dims> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out: Dims = SmallVec::from_elem(1, rank);
    for s in shapes {
        for (i, &n) in s.iter().rev().enumerate() {
            let o = &mut out[rank - 1 - i];
            if *o == 1 {
                *o = n;
            } else if n != 1 && n != *o {
                return Err(Error::Shapes {
                    operation: operation.into(),
                    shapes_: shapes.iter().map(|s| s.to_vec()).collect(),
                    hint: Some(format!(
                        "lengths {} and {n} do not broadcast; axes meet from the last one back",
                        *o
                    )),
                });
            }
        }
    }
    Ok(out)
}

/// Type of an elementwise result; `None` if the operation is not defined for the arguments.
pub(crate) fn map_dtype(op: MapOp, d: &[DType]) -> Option<DType> {
    use ScalarOp::*;
    let same = d.windows(2).all(|w| w[0] == w[1]);
    let first = *d.first()?;
    match op {
        MapOp::Mask => (d.len() == 2 && d[1] == DType::Bool).then_some(first),
        MapOp::IsValid => (d.len() == 1).then_some(DType::Bool),
        MapOp::Coalesce => (d.len() == 2 && same).then_some(first),
        MapOp::KleeneAnd | MapOp::KleeneOr => {
            (d.len() == 2 && same && first == DType::Bool).then_some(first)
        }
        MapOp::Scalar(s) => {
            if d.len() != s.arity() {
                return None;
            }
            match s {
                Where => (first == DType::Bool && d[1] == d[2]).then(|| d[1]),
                Cast => None,
                DatePart(_) => first.is_datetime().then_some(DType::Int64),
                RandomUniform { .. } | RandomNormal { .. } => {
                    (first == DType::Int64).then_some(DType::Float64)
                }
                Eq | Ne | Lt | Le | Gt | Ge => same.then_some(DType::Bool),
                IsNan | IsInf | IsFinite => first.is_float().then_some(DType::Bool),
                SignBit => (first.is_float() || first.is_signed()).then_some(DType::Bool),
                Minimum | Maximum => same.then_some(first),
                And | Or | Xor => {
                    (same && (first == DType::Bool || first.is_integer())).then_some(first)
                }
                Not => (first == DType::Bool || first.is_integer()).then_some(first),
                ShiftLeft | ShiftRight | TruncDiv | TruncRem => {
                    (same && first.is_integer()).then_some(first)
                }
                Add | Mul => {
                    (same && (first.is_numeric() || first == DType::Bool)).then_some(first)
                }
                Sub | FloorDiv | Rem | Fmod | Pow => (same && first.is_numeric()).then_some(first),
                Neg | Abs | Sign => first.is_numeric().then_some(first),
                _ => (same && first.is_float()).then_some(first),
            }
        }
    }
}

/// True if an elementwise result can be masked.
pub(crate) fn map_nullable(op: MapOp, inputs: &[bool]) -> bool {
    match op {
        MapOp::Mask => true,
        MapOp::IsValid => false,
        MapOp::Coalesce => inputs.iter().all(|&n| n),
        _ => inputs.iter().any(|&n| n),
    }
}

fn map_name(op: MapOp) -> String {
    match op {
        MapOp::Scalar(s) => s.name(),
        MapOp::Mask => "mask".into(),
        MapOp::IsValid => "is not null".into(),
        MapOp::Coalesce => "coalesce".into(),
        MapOp::KleeneAnd => "and".into(),
        MapOp::KleeneOr => "or".into(),
    }
}
