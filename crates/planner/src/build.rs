//! Checked constructors: the only way to put nodes into a graph.
//!
//! Each derives shape, type, mask and logical grid, or says what does not fit.

mod factor;
mod lines;
mod tables;

pub use factor::Svd;

use crate::catalog::{Decode, SourceRef};
use crate::config::Config;
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::{AxisGrid, Grid, JOINED_RESIDENT};
use crate::ir::{AxisReduce, ConstArray, Contraction, Graph, MapOp, Node, NodeId, Op, ScanKind};
use crate::program::ScalarOp;
use crate::reduce::ReduceKind;
use crate::region::{Dims, RANK_MAX, Region, cells};
use crate::scalar::Scalar;
use crate::view::{AxisView, View};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// Cells that become one where axes are reduced, if they are as many everywhere: no axis has groups.
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
    /// The configuration that grids follow.
    pub config: Config,
    /// Bytes of the positions that the plan lists.
    listed_bytes: u64,
}

type Result<T> = std::result::Result<T, Error>;

impl Builder {
    /// An empty graph.
    pub fn new(config: Config) -> Self {
        Builder { graph: Graph::new(), config, listed_bytes: 0 }
    }

    /// The node with that number.
    pub fn node(&self, id: NodeId) -> &Node {
        self.graph.node(id)
    }

    /// Lengths of a node, copied.
    pub fn shape(&self, id: NodeId) -> Dims {
        self.node(id).shape.clone()
    }

    /// Type of a node.
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

    /// The grid for a shape without chunks of its own.
    fn auto_grid(&self, shape: &[u64], dtype: DType) -> Grid {
        Grid::auto(shape, dtype.size(), self.config.chunk_bytes_target)
    }

    /// Raw cells of a stored array: `[shape of the source]`.
    pub fn load(&mut self, source: Arc<SourceRef>) -> Result<NodeId> {
        let region = Region::whole(&source.shape);
        self.load_region(source, region)
    }

    /// Raw cells of a box of a stored array; the box lies within it. Small source chunks are grouped towards the
    /// configured size, which is that of the chunks and not of what the box has of them.
    pub fn load_region(&mut self, source: Arc<SourceRef>, region: Region) -> Result<NodeId> {
        let slice = source.grid.slice(&region);
        // Of a tensor in memory nothing is decoded.
        let stored = (!source.is_resident()).then_some(&source.grid);
        let grid = slice.grouped(stored, source.dtype.size(), self.config.chunk_bytes_target);
        let (shape, dtype, nullable) = (region.shape(), source.dtype, source.nullable);
        self.push(Op::Load { source, region }, &[], shape, dtype, nullable, grid)
    }

    /// Values of a raw array by its decoding rules: masks, then unpacking or time.
    pub fn decode(&mut self, raw: NodeId, decode: &Decode) -> Result<NodeId> {
        let dtype = self.dtype(raw);
        let mut keep: Option<NodeId> = None;
        let mut require = |b: &mut Builder, cond: NodeId| -> Result<()> {
            keep = Some(match keep {
                None => cond,
                Some(k) => b.map(ScalarOp::And, &[k, cond])?,
            });
            Ok(())
        };
        for m in &decode.missing {
            if dtype.is_float() && m.as_f64().is_nan() {
                let nan = self.map(ScalarOp::IsNan, &[raw])?;
                let ok = self.map(ScalarOp::Not, &[nan])?;
                require(self, ok)?;
            } else {
                let m = self.constant(m.cast(dtype))?;
                let ok = self.map(ScalarOp::Ne, &[raw, m])?;
                require(self, ok)?;
            }
        }
        for (bound, beyond) in [(decode.valid_min, ScalarOp::Lt), (decode.valid_max, ScalarOp::Gt)]
        {
            if let Some(v) = bound {
                let v = self.constant(v.cast(dtype))?;
                // NaN is a value: it is beyond no bound.
                let out = self.map(beyond, &[raw, v])?;
                let ok = self.map(ScalarOp::Not, &[out])?;
                require(self, ok)?;
            }
        }
        if let Some(valid) = &decode.valid {
            let ok = self.load(valid.clone())?;
            require(self, ok)?;
        }
        let mut value = raw;
        if let Some(u) = decode.unpack {
            value = self.cast(value, u.dtype)?;
            if u.scale != 1.0 {
                let s = self.constant(Scalar::from_f64(u.dtype, u.scale))?;
                value = self.map(ScalarOp::Mul, &[value, s])?;
            }
            if u.offset != 0.0 {
                let o = self.constant(Scalar::from_f64(u.dtype, u.offset))?;
                value = self.map(ScalarOp::Add, &[value, o])?;
            }
        }
        if let Some(t) = decode.time {
            // Whole units are exact integer work; fractions are rounded to the microsecond. Readers refuse values that
            // give no moment, so nothing overflows here.
            let us = if self.dtype(value).is_float() {
                let v = self.cast(value, DType::Float64)?;
                let unit = self.constant(Scalar::f64(t.unit_ns as f64 / 1000.0))?;
                let v = self.map(ScalarOp::Mul, &[v, unit])?;
                let v = self.map(ScalarOp::Rint, &[v])?;
                self.cast(v, DType::Int64)?
            } else {
                let v = self.cast(value, DType::Int64)?;
                match t.unit_ns {
                    1 => {
                        let unit = self.constant(Scalar::i64(1000))?;
                        self.map(ScalarOp::FloorDiv, &[v, unit])?
                    }
                    ns => {
                        let unit = self.constant(Scalar::i64(ns / 1000))?;
                        self.map(ScalarOp::Mul, &[v, unit])?
                    }
                }
            };
            let origin = self.constant(Scalar::i64(t.origin_us))?;
            let us = self.map(ScalarOp::Add, &[us, origin])?;
            value = self.cast(us, DType::Datetime(t.calendar))?;
        }
        match keep {
            None => Ok(value),
            Some(k) => self.map_op(MapOp::Mask, &[value, k]),
        }
    }

    /// An array that the plan holds, as one chunk.
    pub fn array(&mut self, value: ConstArray) -> Result<NodeId> {
        let (shape, dtype, nullable) = (value.shape.clone(), value.dtype, value.valid.is_some());
        let grid = Grid::single(&shape);
        self.push(Op::Const(value), &[], shape, dtype, nullable, grid)
    }

    /// One value, 0-d.
    pub fn constant(&mut self, value: Scalar) -> Result<NodeId> {
        self.array(ConstArray::new(value.dtype(), &[], &[Some(value)]))
    }

    /// A masked 0-d value of a type.
    pub fn null(&mut self, dtype: DType) -> Result<NodeId> {
        self.array(ConstArray::new(dtype, &[], &[None]))
    }

    /// A value repeated over a shape, in chunks of the lengths `chunks` if given.
    pub fn full(
        &mut self,
        value: Option<Scalar>,
        dtype: DType,
        shape: &[u64],
        chunks: Option<&[u64]>,
    ) -> Result<NodeId> {
        let one = match value {
            Some(v) => self.constant(v.cast(dtype))?,
            None => self.null(dtype)?,
        };
        let id = self.broadcast_to(one, shape)?;
        match chunks {
            Some(c) => self.rechunk(id, c),
            None => Ok(id),
        }
    }

    /// Row-major numbers of the cells of a shape: `int64`, in chunks of the lengths `chunks` if given.
    pub fn iota(&mut self, shape: &[u64], chunks: Option<&[u64]>) -> Result<NodeId> {
        let grid = match chunks {
            Some(c) => checked_chunks(shape, c)?,
            None => self.auto_grid(shape, DType::Int64),
        };
        self.push(Op::Iota, &[], shape.into(), DType::Int64, false, grid)
    }

    /// An elementwise operation on values of one type (see [`ScalarOp`]); shapes broadcast by trailing position.
    pub fn map(&mut self, op: ScalarOp, inputs: &[NodeId]) -> Result<NodeId> {
        self.map_op(MapOp::Scalar(op), inputs)
    }

    /// An elementwise operation; shapes broadcast by trailing position.
    pub fn map_op(&mut self, op: MapOp, inputs: &[NodeId]) -> Result<NodeId> {
        let dtypes: Vec<DType> = inputs.iter().map(|&i| self.dtype(i)).collect();
        let dtype = map_dtype(op, &dtypes)
            .ok_or_else(|| Error::DTypes { operation: map_name(op), dtypes: dtypes.clone() })?;
        self.map_typed(op, dtype, inputs)
    }

    /// The input converted to a type; itself if it has it.
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

    /// The grid that an elementwise node takes from its inputs of one shape: that of the input that brings the most
    /// cells of its own (a repeated one brings few), the first of equals.
    fn meet_grids(&self, inputs: &[NodeId], dtype: DType) -> Grid {
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

    /// Cells that stand behind a node: for a view that repeats, those of its input.
    fn own_cells(&self, id: NodeId) -> u64 {
        let node = self.node(id);
        let n = cells(&node.shape).unwrap_or(u64::MAX);
        match node.op {
            Op::View(_) => n.min(self.own_cells(node.inputs[0])),
            _ => n,
        }
    }

    /// Other positions of the input: `shape` is what the view gives. Every position read lies within the input.
    pub fn view(&mut self, input: NodeId, view: View, shape: &[u64]) -> Result<NodeId> {
        // A view of a view is one view.
        let (input, view) = match &self.node(input).op {
            Op::View(inner) => (self.node(input).inputs[0], view.then(inner)),
            _ => (input, view),
        };
        let node = self.node(input);
        if view.is_identity() && node.shape[..] == *shape {
            return Ok(input);
        }
        let (dtype, nullable) = (node.dtype, node.nullable);
        let grid = self.view_grid(&view, &node.grid, shape, dtype);
        self.push(Op::View(view), &[input], shape.into(), dtype, nullable, grid)
    }

    /// Axes that the view moves keep the input's cuts; those that it repeats are cut to the configured size.
    fn view_grid(&self, view: &View, input: &Grid, shape: &[u64], dtype: DType) -> Grid {
        let known = view.grid(input, shape);
        let fixed =
            known.iter().flatten().fold(dtype.size() as u64, |n, a| n.saturating_mul(a.chunk));
        let free: Dims =
            (0..shape.len()).map(|a| if known[a].is_none() { shape[a] } else { 1 }).collect();
        let auto = Grid::auto(&free, 1, (self.config.chunk_bytes_target / fixed.max(1)).max(1));
        Grid { axes: (0..shape.len()).map(|a| known[a].unwrap_or(auto.axes[a])).collect() }
    }

    /// The input repeated to a shape, by trailing position.
    pub fn broadcast_to(&mut self, input: NodeId, shape: &[u64]) -> Result<NodeId> {
        let from = self.shape(input);
        if from[..] == *shape {
            return Ok(input);
        }
        let fits = from.len() <= shape.len()
            && from.iter().rev().zip(shape.iter().rev()).all(|(&n, &m)| n == m || n == 1);
        if !fits {
            return Err(Error::Shapes {
                operation: "broadcast_to".into(),
                shapes_: vec![from.to_vec(), shape.to_vec()],
                hint: Some("axes meet from the last one back; they must be equal or 1".into()),
            });
        }
        self.view(input, View::broadcast(&from, shape), shape)
    }

    /// Axes in another order: axis `a` of the result is axis `order[a]` of the input.
    pub fn transpose(&mut self, input: NodeId, order: &[usize]) -> Result<NodeId> {
        let from = self.shape(input);
        let mut seen = vec![false; from.len()];
        for &a in order {
            if a >= from.len() || std::mem::replace(&mut seen[a], true) {
                return Err(Error::Range {
                    what: "transpose: axes".into(),
                    value: format!("{order:?}"),
                    expected: format!("each of 0 to {} once", from.len().saturating_sub(1)),
                });
            }
        }
        if order.len() != from.len() {
            return Err(Error::Range {
                what: "transpose: number of axes".into(),
                value: order.len().to_string(),
                expected: format!("{} for this tensor", from.len()),
            });
        }
        let mut view = View::identity(from.len());
        for (to, &a) in order.iter().enumerate() {
            view.axes[a].axis = Some(to);
        }
        let shape: Dims = order.iter().map(|&a| from[a]).collect();
        self.view(input, view, &shape)
    }

    /// A new axis of length 1 before `axis` (which may be the rank).
    pub fn expand_dims(&mut self, input: NodeId, axis: usize) -> Result<NodeId> {
        let mut shape = self.shape(input);
        if axis > shape.len() {
            return Err(Error::Axis {
                operation: "expand_dims".into(),
                axis: axis as i64,
                rank: shape.len(),
            });
        }
        let mut view = View::identity(shape.len());
        for v in &mut view.axes {
            v.axis = v.axis.map(|a| if a >= axis { a + 1 } else { a });
        }
        shape.insert(axis, 1);
        self.view(input, view, &shape)
    }

    /// Axes of length 1 dropped.
    pub fn squeeze(&mut self, input: NodeId, axes: &[usize]) -> Result<NodeId> {
        let from = self.shape(input);
        let (mut view, mut shape) = (View { axes: smallvec![] }, Dims::new());
        for (a, &n) in from.iter().enumerate() {
            if axes.contains(&a) {
                if n != 1 {
                    return Err(Error::Shapes {
                        operation: "squeeze".into(),
                        shapes_: vec![from.to_vec()],
                        hint: Some(format!(
                            "axis {a} has length {n}; only axes of length 1 can be dropped"
                        )),
                    });
                }
                view.axes.push(AxisView { axis: None, start: 0, step: 1 });
            } else {
                view.axes.push(AxisView { axis: Some(shape.len()), start: 0, step: 1 });
                shape.push(n);
            }
        }
        self.view(input, view, &shape)
    }

    /// Positions `start, start + step, …` (`len` of them) along an axis; all lie within it, `step` is not 0.
    pub fn slice(
        &mut self,
        input: NodeId,
        axis: usize,
        start: i64,
        step: i64,
        len: u64,
    ) -> Result<NodeId> {
        let mut shape = self.shape(input);
        let mut view = View::identity(shape.len());
        view.axes[axis] =
            AxisView { axis: Some(axis), start: if len == 0 { 0 } else { start }, step };
        shape[axis] = len;
        self.view(input, view, &shape)
    }

    /// One position along an axis, which goes; `position` lies within it.
    pub fn index(&mut self, input: NodeId, axis: usize, position: u64) -> Result<NodeId> {
        let one = self.slice(input, axis, position as i64, 1, 1)?;
        self.squeeze(one, &[axis])
    }

    /// The same cells in row-major order under another shape.
    pub fn reshape(&mut self, input: NodeId, shape: &[u64]) -> Result<NodeId> {
        let from = self.shape(input);
        if from[..] == *shape {
            return Ok(input);
        }
        if cells(&from) != cells(shape) {
            return Err(Error::Shapes {
                operation: "reshape".into(),
                shapes_: vec![from.to_vec(), shape.to_vec()],
                hint: Some(format!(
                    "{} cells do not fill {}",
                    cells(&from).map_or("too many".into(), |n| n.to_string()),
                    cells(shape).map_or("a shape that large".into(), |n| n.to_string())
                )),
            });
        }
        let node = self.node(input);
        let (dtype, nullable) = (node.dtype, node.nullable);
        let grid = leading_grid(shape, dtype, self.config.chunk_bytes_target);
        self.push(Op::Reshape, &[input], shape.into(), dtype, nullable, grid)
    }

    /// The inputs one after the other along an axis; they agree in type and in all other lengths.
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
        // The cuts of the largest input, regular from the start.
        let mut grid = self.meet_grids(inputs, dtype);
        grid.axes[axis] = self.joined(&grid, axis, shape[axis], dtype);
        let nullable = inputs.iter().any(|&i| self.node(i).nullable);
        self.push(Op::Concat { axis }, inputs, shape, dtype, nullable, grid)
    }

    /// The cuts of an axis of `len` cells that is copied from one of this grid: of as many of its chunks as are worth it.
    fn joined(&self, grid: &Grid, axis: usize, len: u64, dtype: DType) -> AxisGrid {
        let worth = self.config.chunk_bytes_target / JOINED_RESIDENT;
        let times = (worth / grid.chunk_bytes_max(dtype.size()).max(1)).max(1);
        AxisGrid::regular(len, grid.axes[axis].chunk.saturating_mul(times))
    }

    /// Bytes of the positions that the plan lists once there are `count` more.
    ///
    /// # Errors
    /// [`Error::Lists`] if it may not list so many.
    pub fn list_bytes(&self, count: u64) -> Result<u64> {
        let bytes = self.listed_bytes.saturating_add(count.saturating_mul(8));
        let limit_bytes = self.config.list_bytes_max;
        if bytes > limit_bytes { Err(Error::Lists { bytes, limit_bytes }) } else { Ok(bytes) }
    }

    /// Positions along an axis in any order, each below its length.
    pub fn take(&mut self, input: NodeId, axis: usize, positions: Arc<[u64]>) -> Result<NodeId> {
        let mut shape = self.shape(input);
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
        shape[axis] = positions.len() as u64;
        let node = self.node(input);
        let (dtype, nullable) = (node.dtype, node.nullable);
        let mut grid = node.grid.clone();
        grid.axes[axis] = self.joined(&grid, axis, shape[axis], dtype);
        self.listed_bytes = self.list_bytes(positions.len() as u64)?;
        self.push(Op::Take { axis, positions }, &[input], shape, dtype, nullable, grid)
    }

    /// A reduction; reduced axes stay with length 1 (one position a group for [`AxisReduce::Group`]).
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
        // A group without a cell, or the mean of nothing, must not pass for a value.
        let nullable = kind.nullable(null_in);
        self.push(Op::Reduce { kind, axes: axes.into() }, &[input], shape, result, nullable, grid)
    }

    /// A reduction of whole axes.
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

    /// A running reduction. Sums and products of `bool` and narrow integers widen to 64 bits.
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

    /// Matrix product `[b.., m, k] @ [b.., k, n]`; both of rank 2 or more, of one numeric type, leading axes equal.
    /// Products with a masked factor are skipped; a cell all of whose products are is masked.
    pub fn contract(&mut self, lhs: NodeId, rhs: NodeId) -> Result<NodeId> {
        let (l, r) = (self.node(lhs), self.node(rhs));
        let mismatch = |hint: String| Error::Shapes {
            operation: "matmul".into(),
            shapes_: vec![l.shape.to_vec(), r.shape.to_vec()],
            hint: Some(hint),
        };
        let rank = l.shape.len();
        if rank < 2 || r.shape.len() != rank || l.shape[..rank - 2] != r.shape[..rank - 2] {
            return Err(mismatch(
                "both sides need the same leading dimensions and at least two".into(),
            ));
        }
        if l.shape[rank - 1] != r.shape[rank - 2] {
            return Err(mismatch(format!(
                "the last length of the left side ({}) must be the second-to-last of the right ({})",
                l.shape[rank - 1],
                r.shape[rank - 2]
            )));
        }
        self.contract_axes(lhs, rhs, Contraction::MATRICES)
    }

    /// Product over several axes, `[b.., m.., k..] @ [b.., k.., n..]` → `[b.., m.., n..]`, of one numeric type. Masks as
    /// [`Builder::contract`].
    pub fn contract_axes(&mut self, lhs: NodeId, rhs: NodeId, axes: Contraction) -> Result<NodeId> {
        let (l, r) = (self.node(lhs), self.node(rhs));
        let Contraction { rows, columns, summed } = axes;
        let stack = l.shape.len().checked_sub(rows + summed);
        let fits = |stack: &usize| {
            rows.min(columns) > 0
                && r.shape.len() == stack + summed + columns
                && l.shape[..*stack] == r.shape[..*stack]
                && l.shape[stack + rows..] == r.shape[*stack..stack + summed]
        };
        let Some(stack) = stack.filter(fits) else {
            return Err(Error::Shapes {
                operation: "a product".into(),
                shapes_: vec![l.shape.to_vec(), r.shape.to_vec()],
                hint: Some(format!(
                    "the last {summed} lengths of the left side must be those of the right before its last {columns}, and each side has axes of its own"
                )),
            });
        };
        if l.dtype != r.dtype || !l.dtype.is_numeric() {
            return Err(Error::DTypes {
                operation: "matmul".into(),
                dtypes: vec![l.dtype, r.dtype],
            });
        }
        if l.nullable || r.nullable {
            return self.contract_masked(lhs, rhs, axes);
        }
        let (left, right) = (stack + rows, stack + summed);
        let mut shape = Dims::from_slice(&l.shape[..left]);
        shape.extend_from_slice(&r.shape[right..]);
        let dtype = l.dtype;
        let mut cuts: SmallVec<[AxisGrid; 6]> = l.grid.axes[..left].into();
        cuts.extend_from_slice(&r.grid.axes[right..]);
        let (m, n) = cuts[stack..].split_at_mut(rows);
        block(m, product_block(dtype));
        block(n, product_block(dtype));
        let grid = Grid { axes: cuts };
        self.push(Op::Contract(axes), &[lhs, rhs], shape, dtype, false, grid)
    }

    /// A product that skips masked cells: they count as 0, and a second product counts what was not skipped.
    fn contract_masked(&mut self, lhs: NodeId, rhs: NodeId, axes: Contraction) -> Result<NodeId> {
        let (mut values, mut counts) = (Vec::new(), Vec::new());
        for side in [lhs, rhs] {
            let zero = self.constant(Scalar::zero(self.dtype(side)))?;
            values.push(self.map_op(MapOp::Coalesce, &[side, zero])?);
            let valid = self.map_op(MapOp::IsValid, &[side])?;
            counts.push(self.cast(valid, DType::Float32)?);
        }
        let value = self.contract_axes(values[0], values[1], axes)?;
        let count = self.contract_axes(counts[0], counts[1], axes)?;
        let zero = self.constant(Scalar::zero(DType::Float32))?;
        let any = self.map(ScalarOp::Gt, &[count, zero])?;
        self.map_op(MapOp::Mask, &[value, any])
    }

    /// The input's cells for an operation that has no answer for masked ones; see [`Op::Certain`]. The input itself if
    /// it cannot be masked.
    pub fn certain(&mut self, input: NodeId, operation: &str) -> Result<NodeId> {
        let node = self.node(input);
        if !node.nullable {
            return Ok(input);
        }
        let (shape, dtype, grid) = (node.shape.clone(), node.dtype, node.grid.clone());
        let op = Op::Certain { operation: operation.into() };
        self.push(op, &[input], shape, dtype, false, grid)
    }

    /// The same cells on the grid with chunks of the lengths `chunks`. It stays a node even where the input has that
    /// grid now: passes may give the input another one.
    pub fn rechunk(&mut self, input: NodeId, chunks: &[u64]) -> Result<NodeId> {
        let node = self.node(input);
        let grid = checked_chunks(&node.shape, chunks)?;
        let (shape, dtype, nullable) = (node.shape.clone(), node.dtype, node.nullable);
        self.push(Op::Rechunk, &[input], shape, dtype, nullable, grid)
    }
}

/// Rows, and columns, that a block of a product aims at. Measured at 4096: in float32 512 rows took 0.73 s and 2048 by
/// 2048 cells 0.66 s, as the right side is packed less often; float64 gains nothing from more than 1024.
fn product_block(dtype: DType) -> u64 {
    (8 << 10) / dtype.size().max(4) as u64
}

/// Joins and cuts chunks along the axes of one side, so that blocks of them come near `aim` cells.
fn block(axes: &mut [AxisGrid], mut aim: u64) {
    for (i, axis) in axes.iter_mut().rev().enumerate() {
        // An uneven axis that is the only one stays as it is; beside others its chunks may be too many cells.
        let even = axis.first == axis.chunk;
        *axis = if i == 0 || even { blocked(*axis, aim) } else { cut(*axis, aim) };
        aim = (aim / axis.longest().max(1)).max(1);
    }
}

/// An uneven axis with its chunks cut to come near a length.
fn cut(axis: AxisGrid, aim: u64) -> AxisGrid {
    if axis.chunk <= aim {
        return axis;
    }
    let chunk = axis.chunk.div_ceil(axis.chunk.div_ceil(aim));
    let first = match axis.first % chunk {
        0 => chunk,
        rest => rest,
    };
    AxisGrid { len: axis.len, first, chunk }
}

/// Chunks joined, or cut, to come near a length. Uneven grids stay as they are.
fn blocked(axis: AxisGrid, aim: u64) -> AxisGrid {
    if axis.first != axis.chunk || axis.chunk == 0 {
        return axis;
    }
    let chunk = if axis.chunk > aim {
        axis.chunk.div_ceil(axis.chunk.div_ceil(aim))
    } else {
        aim / axis.chunk * axis.chunk
    };
    AxisGrid::regular(axis.len, chunk.min(axis.len.max(1)))
}

/// A regular grid from chunk lengths that a user gave.
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

/// Chunks that are runs of the row-major order: trailing axes whole, the first that does not fit is cut, those before
/// it have chunks of 1.
fn leading_grid(shape: &[u64], dtype: DType, target: u64) -> Grid {
    let mut room = (target / dtype.size() as u64).max(1);
    let mut chunk: Dims = SmallVec::from_elem(1, shape.len());
    for a in (0..shape.len()).rev() {
        let n = shape[a].max(1);
        chunk[a] = n.min(room);
        room /= chunk[a];
        if chunk[a] < n {
            break;
        }
    }
    Grid::regular(shape, &chunk)
}

/// The shape in which several meet: trailing axes, equal or 1.
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

/// Type of an elementwise result, or `None` where the operation is not defined for the arguments.
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

/// Can an elementwise result be masked?
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
