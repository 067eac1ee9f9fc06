//! Constructors of nodes that look cells up in tables, or accumulate them by code.

use super::{Builder, Result};
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::{AxisGrid, Grid};
use crate::ir::{MapOp, NodeId, Op};
use crate::lookup::LookupKind;
use crate::region::Dims;
use crate::scalar::Scalar;

impl Builder {
    /// Positions of cells in sorted 1-d tables of the cells' type; see [`LookupKind`]. Each table is moved into one
    /// chunk.
    ///
    /// # Errors
    /// [`Error::DTypes`], [`Error::Shapes`] for tables that are not 1-d, [`Error::Range`].
    pub fn lookup(&mut self, input: NodeId, tables: &[NodeId], kind: LookupKind) -> Result<NodeId> {
        let mut dtypes = vec![self.dtype(input)];
        dtypes.extend(tables.iter().map(|&t| self.dtype(t)));
        let same = dtypes.iter().all(|d| *d == dtypes[0]);
        let Some(dtype) = kind.result(dtypes[0]).filter(|_| same) else {
            return Err(Error::DTypes { operation: kind.name().into(), dtypes });
        };
        let shapes: Vec<Vec<u64>> = tables.iter().map(|&t| self.shape(t).to_vec()).collect();
        let one = |s: &Vec<u64>| s.len() == 1 && *s == shapes[0];
        if tables.len() != kind.tables() || !shapes.iter().all(one) {
            return Err(Error::Shapes {
                operation: kind.name().into(),
                shapes_: shapes,
                hint: Some("tables have one dimension, and one length".into()),
            });
        }
        let least = if kind == LookupKind::Bins { 2 } else { 1 };
        let length = shapes[0][0];
        if length < least {
            let shape = self.shape(input);
            return match kind {
                LookupKind::Left | LookupKind::Right | LookupKind::Contains => {
                    let nothing = self.full(Some(Scalar::zero(dtype)), dtype, &shape, None)?;
                    if !self.node(input).nullable {
                        return Ok(nothing);
                    }
                    let valid = self.map_op(MapOp::IsValid, &[input])?;
                    self.map_op(MapOp::Mask, &[nothing, valid])
                }
                _ => Err(Error::Range {
                    what: format!("{}: length of the table", kind.name()),
                    value: length.to_string(),
                    expected: format!("at least {least}"),
                }),
            };
        }
        let mut inputs = vec![input];
        for &table in tables {
            let cut = self.node(table).grid.axes[0].count() > 1;
            inputs.push(if cut { self.rechunk(table, &[length])? } else { table });
        }
        let node = self.node(input);
        let (shape, nullable, grid) = (node.shape.clone(), node.nullable, node.grid.clone());
        self.push(Op::Lookup { kind }, &inputs, shape, dtype, nullable, grid)
    }

    /// For each code from 0 on the number of its cells (`int64`), or the sum of their weights (`float64`): `[1, .., 1,
    /// count]`, of the rank of the codes, at least 1. Codes are `int64`; weights are converted and have the codes'
    /// shape. Masked cells are skipped; a code out of range is an error if `strict`, else skipped.
    ///
    /// # Errors
    /// [`Error::DTypes`], [`Error::Shapes`].
    pub fn bin(
        &mut self,
        codes: NodeId,
        weights: Option<NodeId>,
        count: u64,
        strict: bool,
    ) -> Result<NodeId> {
        if self.dtype(codes) != DType::Int64 {
            return Err(Error::DTypes {
                operation: "bincount".into(),
                dtypes: vec![self.dtype(codes)],
            });
        }
        let mut inputs = vec![codes];
        if let Some(w) = weights {
            let w = self.cast(w, DType::Float64)?;
            inputs.push(w);
        }
        if let [c, w] = inputs[..]
            && self.shape(c) != self.shape(w)
        {
            return Err(Error::Shapes {
                operation: "bincount".into(),
                shapes_: vec![self.shape(c).to_vec(), self.shape(w).to_vec()],
                hint: Some("each cell has one weight".into()),
            });
        }
        let dtype = if inputs.len() > 1 { DType::Float64 } else { DType::Int64 };
        let rank = self.shape(codes).len();
        if rank == 0 {
            for i in &mut inputs {
                *i = self.expand_dims(*i, 0)?;
            }
        }
        let mut shape = Dims::from_elem(1, rank.max(1));
        if let Some(last) = shape.last_mut() {
            *last = count;
        }
        if count == 0 {
            return self.full(Some(Scalar::zero(dtype)), dtype, &shape, None);
        }
        let axes = shape.iter().map(|&n| AxisGrid::regular(n, n)).collect();
        self.push(Op::Bin { count, strict }, &inputs, shape, dtype, false, Grid { axes })
    }
}
