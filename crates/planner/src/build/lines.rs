//! Constructors of nodes over whole lines: windows, sorts, quantiles.

use super::{Builder, Result};
use crate::dtype::DType;
use crate::error::Error;
use crate::grid::AxisGrid;
use crate::ir::{NodeId, Op};
use crate::reduce::ReduceKind;
use crate::runs;
use crate::sort::{Quantiles, SortOrder, SortWhat};
use crate::window::{Frame, is_windowed};

impl Builder {
    /// A reduction over the window `frame` around each cell along an axis; see [`Op::Window`]. If the frame is longer
    /// than a chunk, the input is first cut into longer ones.
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::DTypes`], [`Error::Range`] for a bad frame or `min_count`.
    pub fn window(
        &mut self,
        input: NodeId,
        axis: usize,
        frame: Frame,
        kind: ReduceKind,
        min_count: u64,
    ) -> Result<NodeId> {
        self.check_axis("rolling", input, axis)?;
        let dtype = self.dtype(input);
        let result = kind.result(dtype).filter(|_| is_windowed(kind)).ok_or_else(|| {
            Error::DTypes { operation: format!("rolling {}", kind.name()), dtypes: vec![dtype] }
        })?;
        if let ReduceKind::Quantile(bits) = kind {
            check_probability(f64::from_bits(bits))?;
        }
        let len = self.node(input).shape[axis];
        // The axis has no cells beyond its ends, so clipping changes no window, and the width stays in range.
        let frame = frame.clipped(len);
        if frame.width() < 1 {
            return Err(Error::Range {
                what: "rolling: window".into(),
                value: format!("{} before to {} after", frame.before, frame.after),
                expected: "its end not before its start".into(),
            });
        }
        let needed = match kind {
            ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Count => min_count,
            ReduceKind::Any | ReduceKind::All => min_count,
            _ => min_count.max(1),
        };
        let input = self.with_chunk(input, axis, frame.width() as u64)?;
        let node = self.node(input);
        let nullable = if node.nullable { needed > 0 } else { frame.count_min(len) < needed };
        let (shape, grid) = (node.shape.clone(), node.grid.clone());
        let op = Op::Window { axis, frame, kind, min_count: needed };
        self.push(op, &[input], shape, result, nullable, grid)
    }

    /// The cells of each line along an axis in sorted order, or their positions (`int64`), limited to the first
    /// `limit`. Lines are moved into one chunk. Lines that are longer than a chunk are cut into runs, and the output
    /// has several chunks ([`crate::runs`]).
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::DTypes`].
    pub fn sort(
        &mut self,
        input: NodeId,
        axis: usize,
        what: SortWhat,
        order: SortOrder,
        limit: Option<u64>,
    ) -> Result<NodeId> {
        self.check_axis("sort", input, axis)?;
        let input = match limit {
            // No cell has to be sorted.
            Some(0) => self.slice(input, axis, 0, 1, 0)?,
            _ => input,
        };
        let len = self.node(input).shape[axis];
        let (input, room) = self.in_lines(input, axis, what)?;
        let node = self.node(input);
        let (mut shape, mut grid) = (node.shape.clone(), node.grid.clone());
        let limit = limit.filter(|&k| k < len);
        let kept = limit.unwrap_or(len);
        shape[axis] = kept;
        if grid.axes[axis].count() > 1 {
            grid.axes = runs::merged_axes(&grid.axes, axis, kept, room);
        } else {
            grid.axes[axis] = AxisGrid::regular(kept, kept);
        }
        let (dtype, nullable) = match what {
            SortWhat::Values => (node.dtype, node.nullable),
            SortWhat::Positions => (DType::Int64, false),
        };
        self.push(Op::Sort { axis, what, order, limit }, &[input], shape, dtype, nullable, grid)
    }

    /// Order statistics of each line along an axis; the axis gets one position per probability. Lines are moved into
    /// one chunk, or into runs if they are longer. Methods that interpolate require floats.
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::DTypes`], [`Error::Range`] for a probability outside of 0 to 1, [`Error::Empty`] for an
    /// axis without cells.
    pub fn quantile(&mut self, input: NodeId, axis: usize, quantiles: Quantiles) -> Result<NodeId> {
        self.check_axis("quantile", input, axis)?;
        let node = self.node(input);
        let (from, len) = (node.dtype, node.shape[axis]);
        let dtype = quantiles
            .result(from)
            .ok_or_else(|| Error::DTypes { operation: "quantile".into(), dtypes: vec![from] })?;
        quantiles.probabilities().try_for_each(check_probability)?;
        if len == 0 && !dtype.is_float() {
            return Err(Error::Empty { operation: "quantile".into(), axis });
        }
        let (input, _) = self.in_lines(input, axis, SortWhat::Values)?;
        let node = self.node(input);
        let (mut shape, mut grid, nullable) =
            (node.shape.clone(), node.grid.clone(), node.nullable);
        shape[axis] = quantiles.bits.len() as u64;
        grid.axes[axis] = AxisGrid::regular(shape[axis], shape[axis]);
        self.push(Op::Quantile { axis, quantiles }, &[input], shape, dtype, nullable, grid)
    }

    /// Returns the input in chunks of whole lines along an axis, or of runs of lines that are longer than a chunk of
    /// the configured size; and the number of cells of such a chunk.
    fn in_lines(&mut self, input: NodeId, axis: usize, what: SortWhat) -> Result<(NodeId, u64)> {
        let node = self.node(input);
        let len = node.shape[axis];
        let cell = runs::cell_bytes(what, node.dtype);
        let room = (self.config.chunk_bytes_target / cell).max(1);
        if len <= room {
            return Ok((self.with_chunk(input, axis, len)?, room));
        }
        let chunks = runs::run_chunks(&node.grid.axes, axis, room);
        if node.grid.axes.iter().zip(&chunks).all(|(a, &c)| a.chunk == c) {
            return Ok((input, room));
        }
        Ok((self.rechunk(input, &chunks)?, room))
    }

    /// Returns the input in chunks of at least `least` cells along an axis. Chunks that have to grow get shorter along
    /// the other axes, so that their bytes stay near the configured size.
    fn with_chunk(&mut self, input: NodeId, axis: usize, least: u64) -> Result<NodeId> {
        let node = self.node(input);
        let along = node.grid.axes[axis];
        let least = least.min(along.len);
        // A whole line is one chunk: chunks as long as the line may still leave a short first one.
        if along.count() == 1 || (least < along.len && along.chunk >= least) {
            return Ok(input);
        }
        let mut chunks: Vec<u64> = node.grid.axes.iter().map(|a| a.chunk).collect();
        chunks[axis] = least;
        let room = self.config.chunk_bytes_target / node.dtype.size() as u64;
        let cells = |c: &[u64]| c.iter().fold(1u128, |n, &d| n.saturating_mul(u128::from(d)));
        while cells(&chunks) > u128::from(room) && runs::halve_other(&mut chunks, axis) {}
        self.rechunk(input, &chunks)
    }

    fn check_axis(&self, operation: &str, input: NodeId, axis: usize) -> Result<()> {
        let rank = self.node(input).shape.len();
        if axis < rank {
            return Ok(());
        }
        Err(Error::Axis { operation: operation.into(), axis: axis as i64, rank })
    }
}

fn check_probability(q: f64) -> Result<()> {
    if (0.0..=1.0).contains(&q) {
        return Ok(());
    }
    Err(Error::Range {
        what: "quantile: probability".into(),
        value: q.to_string(),
        expected: "0 to 1".into(),
    })
}
