//! Checked constructors: the only way to add nodes to a graph.
//!
//! Each constructor derives shape, type, mask and logical grid, or returns an error.

mod factor;
mod lines;
mod maps;
mod products;
mod sources;
mod tables;
mod views;

pub use factor::Svd;
pub use maps::broadcast_shapes;
pub(crate) use maps::{map_dtype, map_nullable};

use crate::config::Config;
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::{AxisGrid, Grid, JOINED_RESIDENT};
use crate::ir::{AxisReduce, Graph, Node, NodeId, Op, ScanKind};
use crate::reduce::ReduceKind;
use crate::region::{Dims, RANK_MAX, cells};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Number of cells that are reduced to one, if it is the same for every result: no axis has groups.
pub(crate) fn whole(shape: &[u64], axes: &[AxisReduce]) -> Option<u64> {
    let is_grouped = axes.iter().any(|a| matches!(a, AxisReduce::Group(_)));
    let reduced = shape.iter().zip(axes).filter(|(_, how)| **how == AxisReduce::All);
    let reduced: Dims = reduced.map(|(&len, _)| len).collect();
    cells(&reduced).filter(|_| !is_grouped)
}

/// Builds a graph under a configuration.
#[derive(Debug, Clone, Default)]
pub struct Builder {
    /// The graph so far.
    pub graph: Graph,
    /// Configuration of grids.
    pub config: Config,
    /// Bytes of the position lists in the plan.
    listed_bytes: u64,
}

type Result<T> = std::result::Result<T, Error>;

impl Builder {
    /// Returns a builder with an empty graph.
    pub fn new(config: Config) -> Self {
        Builder { graph: Graph::new(), config, listed_bytes: 0 }
    }

    /// Returns the node `id`.
    pub fn node(&self, id: NodeId) -> &Node {
        self.graph.node(id)
    }

    /// Returns a copy of a node's shape.
    pub fn shape(&self, id: NodeId) -> Dims {
        self.node(id).shape.clone()
    }

    /// Element type of a node.
    pub fn dtype(&self, id: NodeId) -> DType {
        self.node(id).dtype
    }

    fn push(
        &mut self,
        op: Op,
        inputs: &[NodeId],
        shape: Dims,
        dtype: DType,
        nullable: bool,
        grid: Grid,
    ) -> Result<NodeId> {
        if shape.len() > RANK_MAX {
            return Err(Error::Range {
                what: "number of dimensions".into(),
                value: shape.len().to_string(),
                expected: format!("at most {RANK_MAX}"),
            });
        }
        match cells(&shape).and_then(|n| n.checked_mul(dtype.size() as u64)) {
            Some(_) => {}
            None => return Err(Error::TooLarge { shape: shape.to_vec() }),
        }
        Ok(self.graph.push(Node { op, inputs: inputs.into(), shape, dtype, nullable, grid }))
    }

    /// The grid of a shape without chunks of its own.
    fn auto_grid(&self, shape: &[u64], dtype: DType) -> Grid {
        Grid::auto(shape, dtype.size(), self.config.chunk_bytes_target)
    }

    /// Concatenates the inputs along an axis; they agree in type and in all other lengths.
    ///
    /// # Errors
    /// [`Error::Shapes`] and [`Error::DTypes`] if the inputs do not agree, [`Error::Axis`], [`Error::Range`] for no
    /// inputs, [`Error::TooLarge`].
    pub fn concat(&mut self, inputs: &[NodeId], axis: usize) -> Result<NodeId> {
        let shapes: Vec<Dims> = inputs.iter().map(|&i| self.shape(i)).collect();
        let mismatch = || Error::Shapes {
            operation: "concat".into(),
            shapes_: shapes.iter().map(|s| s.to_vec()).collect(),
            hint: Some(format!("all lengths but that of axis {axis} must agree")),
        };
        let Some(first) = shapes.first() else {
            return Err(Error::Range {
                what: "concat: number of tensors".into(),
                value: "0".into(),
                expected: "at least 1".into(),
            });
        };
        if axis >= first.len() {
            return Err(Error::Axis {
                operation: "concat".into(),
                axis: axis as i64,
                rank: first.len(),
            });
        }
        let mut shape = first.clone();
        shape[axis] = 0;
        for s in &shapes {
            if s.len() != first.len() || (0..s.len()).any(|a| a != axis && s[a] != first[a]) {
                return Err(mismatch());
            }
            shape[axis] = shape[axis]
                .checked_add(s[axis])
                .ok_or_else(|| Error::TooLarge { shape: first.to_vec() })?;
        }
        let dtypes: Vec<DType> = inputs.iter().map(|&i| self.dtype(i)).collect();
        let dtype = dtypes[0];
        if dtypes.iter().any(|&d| d != dtype) {
            return Err(Error::DTypes { operation: "concat".into(), dtypes });
        }
        // The cuts of the largest input, regular from the first cell on.
        let mut grid = self.meet_grids(inputs, dtype);
        grid.axes[axis] = self.joined(&grid, axis, shape[axis], dtype);
        let nullable = inputs.iter().any(|&i| self.node(i).nullable);
        self.push(Op::Concat { axis }, inputs, shape, dtype, nullable, grid)
    }

    /// The cuts of an axis of `len` cells that is copied from chunks of `grid`: as many chunks are joined as pays off.
    fn joined(&self, grid: &Grid, axis: usize, len: u64, dtype: DType) -> AxisGrid {
        let worth = self.config.chunk_bytes_target / JOINED_RESIDENT;
        let times = (worth / grid.chunk_bytes_max(dtype.size()).max(1)).max(1);
        AxisGrid::regular(len, grid.axes[axis].chunk.saturating_mul(times))
    }

    /// Returns the bytes of the plan's position lists after adding `count` positions.
    ///
    /// # Errors
    /// [`Error::Lists`] if the lists would exceed the limit.
    pub fn list_bytes(&self, count: u64) -> Result<u64> {
        let bytes = self.listed_bytes.saturating_add(count.saturating_mul(8));
        let limit_bytes = self.config.list_bytes_max;
        if bytes > limit_bytes { Err(Error::Lists { bytes, limit_bytes }) } else { Ok(bytes) }
    }

    /// Takes listed positions along an axis, in any order, each below the axis's length.
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::Range`] for a position out of range, [`Error::Lists`] for too many positions.
    pub fn take(&mut self, input: NodeId, axis: usize, positions: Arc<[u64]>) -> Result<NodeId> {
        let shape = self.shape(input);
        if axis >= shape.len() {
            return Err(Error::Axis {
                operation: "take".into(),
                axis: axis as i64,
                rank: shape.len(),
            });
        }
        if let Some(&p) = positions.iter().find(|&&p| p >= shape[axis]) {
            return Err(Error::Range {
                what: "take: position".into(),
                value: p.to_string(),
                expected: format!("below {}", shape[axis]),
            });
        }
        self.taken(input, axis, positions)
    }

    /// Like [`Builder::take`], for positions that have been checked.
    pub(crate) fn taken(
        &mut self,
        input: NodeId,
        axis: usize,
        positions: Arc<[u64]>,
    ) -> Result<NodeId> {
        let mut shape = self.shape(input);
        shape[axis] = positions.len() as u64;
        let node = self.node(input);
        let (dtype, nullable) = (node.dtype, node.nullable);
        let mut grid = node.grid.clone();
        grid.axes[axis] = self.joined(&grid, axis, shape[axis], dtype);
        self.listed_bytes = self.list_bytes(positions.len() as u64)?;
        self.push(Op::Take { axis, positions }, &[input], shape, dtype, nullable, grid)
    }

    /// A reduction; reduced axes stay with length 1 (one position per group for [`AxisReduce::Group`]).
    ///
    /// # Errors
    /// [`Error::DTypes`], [`Error::Axis`], [`Error::Empty`] for a reduction without an identity over no cells,
    /// [`Error::Range`] for bad groups.
    pub fn reduce(
        &mut self,
        input: NodeId,
        kind: ReduceKind,
        axes: &[AxisReduce],
    ) -> Result<NodeId> {
        let node = self.node(input);
        let (dtype, null_in) = (node.dtype, node.nullable);
        let result = kind
            .result(dtype)
            .filter(|_| !matches!(kind, ReduceKind::Quantile(_)))
            .ok_or_else(|| Error::DTypes { operation: kind.name().into(), dtypes: vec![dtype] })?;
        let mut shape = node.shape.clone();
        let mut grid = node.grid.clone();
        if axes.len() != shape.len() {
            return Err(Error::Axis {
                operation: kind.name().into(),
                axis: axes.len() as i64,
                rank: shape.len(),
            });
        }
        for (a, r) in axes.iter().enumerate() {
            match r {
                AxisReduce::Keep => {}
                AxisReduce::All => {
                    if shape[a] == 0 && !kind.has_identity() && cells(&shape) == Some(0) {
                        return Err(Error::Empty { operation: kind.name().into(), axis: a });
                    }
                    shape[a] = 1;
                    grid.axes[a] = AxisGrid::regular(1, 1);
                }
                AxisReduce::Group(g) => {
                    if g.codes.len() as u64 != shape[a] || g.codes.iter().any(|&c| c >= g.count) {
                        return Err(Error::Range {
                            what: "groupby: labels".into(),
                            value: g.codes.len().to_string(),
                            expected: format!("one for each of the {} positions", shape[a]),
                        });
                    }
                    shape[a] = u64::from(g.count);
                    grid.axes[a] = AxisGrid::regular(shape[a], shape[a]);
                }
            }
        }
        let kind = match kind {
            ReduceKind::Mean if !null_in => {
                whole(&self.node(input).shape, axes).map_or(kind, ReduceKind::MeanOf)
            }
            kind => kind,
        };
        // An empty group, or the mean of no cells, must not look like a value.
        let nullable = kind.nullable(null_in);
        self.push(Op::Reduce { kind, axes: axes.into() }, &[input], shape, result, nullable, grid)
    }

    /// A reduction of whole axes.
    ///
    /// # Errors
    /// The errors of [`Builder::reduce`].
    pub fn reduce_axes(
        &mut self,
        input: NodeId,
        kind: ReduceKind,
        axes: &[usize],
    ) -> Result<NodeId> {
        let rank = self.node(input).shape.len();
        let mut how: SmallVec<[AxisReduce; 6]> = smallvec![AxisReduce::Keep; rank];
        for &a in axes {
            if a >= rank {
                return Err(Error::Axis { operation: kind.name().into(), axis: a as i64, rank });
            }
            how[a] = AxisReduce::All;
        }
        self.reduce(input, kind, &how)
    }

    /// A scan. Sums and products of `bool` and narrow integers widen to 64 bits.
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::DTypes`].
    pub fn scan(&mut self, input: NodeId, kind: ScanKind, axis: usize) -> Result<NodeId> {
        let rank = self.node(input).shape.len();
        if axis >= rank {
            return Err(Error::Axis { operation: scan_name(kind).into(), axis: axis as i64, rank });
        }
        let from = self.dtype(input);
        let dtype = match kind {
            ScanKind::Sum | ScanKind::Prod => ReduceKind::Sum.result(from).ok_or_else(|| {
                Error::DTypes { operation: scan_name(kind).into(), dtypes: vec![from] }
            })?,
            ScanKind::Min | ScanKind::Max | ScanKind::Last => from,
            ScanKind::Decay { .. } if from.is_float() => from,
            ScanKind::Decay { .. } => {
                let operation = scan_name(kind).into();
                return Err(Error::DTypes { operation, dtypes: vec![from] });
            }
        };
        if kind == ScanKind::Last && !self.node(input).nullable {
            // Nothing to fill.
            return Ok(input);
        }
        let input = self.cast(input, dtype)?;
        let node = self.node(input);
        let (shape, nullable, grid) = (node.shape.clone(), node.nullable, node.grid.clone());
        self.push(Op::Scan { kind, axis }, &[input], shape, dtype, nullable, grid)
    }

    /// The input's cells for an operation that is not defined for masked cells; see [`Op::Certain`]. Returns the input
    /// itself if it cannot be masked.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn certain(&mut self, input: NodeId, operation: &str) -> Result<NodeId> {
        let node = self.node(input);
        if !node.nullable {
            return Ok(input);
        }
        let (shape, dtype, grid) = (node.shape.clone(), node.dtype, node.grid.clone());
        let op = Op::Certain { operation: operation.into() };
        self.push(op, &[input], shape, dtype, false, grid)
    }

    /// The same cells on the grid with chunks of shape `chunks`. The node is added even if the input has that grid
    /// already: passes may give the input another one.
    ///
    /// # Errors
    /// [`Error::Range`] for a chunk of length 0, or if `chunks` has not one length per axis.
    pub fn rechunk(&mut self, input: NodeId, chunks: &[u64]) -> Result<NodeId> {
        let node = self.node(input);
        let grid = checked_chunks(&node.shape, chunks)?;
        let (shape, dtype, nullable) = (node.shape.clone(), node.dtype, node.nullable);
        self.push(Op::Rechunk, &[input], shape, dtype, nullable, grid)
    }
}

/// A regular grid from chunk lengths given by the user.
fn checked_chunks(shape: &[u64], chunks: &[u64]) -> Result<Grid> {
    if chunks.len() != shape.len() || (chunks.contains(&0)) {
        return Err(Error::Range {
            what: "chunks".into(),
            value: format!("{chunks:?}"),
            expected: format!("{} lengths, each at least 1", shape.len()),
        });
    }
    Ok(Grid::regular(shape, chunks))
}

fn scan_name(kind: ScanKind) -> &'static str {
    match kind {
        ScanKind::Sum => "cumsum",
        ScanKind::Prod => "cumprod",
        ScanKind::Min => "cummin",
        ScanKind::Max => "cummax",
        ScanKind::Last => "ffill",
        ScanKind::Decay { .. } => "ewm",
    }
}
