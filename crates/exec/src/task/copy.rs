//! Tasks that move cells: copies and scans.

use super::Operand;
use super::gather::{copy_held, gather_input, holds, lie};
use super::take;
use crate::chunk::{Chunk, Condition};
use crate::error::Error;
use crate::pool::PooledBuf;
use crate::schedule::TaskContext;
use crate::store::{FinishedChunk, Reader};
use smallvec::SmallVec;
use tessera_kernels::copy::{self, Stores, Strided};
use tessera_kernels::fill::fill;
use tessera_kernels::scan::{self as kernel, Scan};
use tessera_planner::dtype::DType;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::ir::ScanKind;
use tessera_planner::plan::Access;
use tessera_planner::region::{Dims, Region, cells, strides};
use tessera_planner::tile::{for_each_index, part_region};
use tessera_planner::view::View;

/// Fills the operand's chunk from its inputs.
pub(super) fn run(op: &Operand<'_>) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let mut buffers = op.buffers_if(0, any_masked(op)?);
    let masked = buffers.len() > 1;
    let stores = op.stores(0);
    for (k, input) in op.stage.inputs.iter().enumerate() {
        if let Access::Take { axis, positions } = &input.access
            && take::rows(op, k, *axis, positions, &mut buffers, stores)?
        {
            continue;
        }
        let grid = &op.plan().output(input.from).grid;
        for piece in op.tiling.pieces(op.id, op.index, k) {
            op.cx.cancel.check()?;
            let mut chunk = Cells::new(op.inputs.held(input.from, &piece)?, op.cx)?;
            let held = grid.region(&piece);
            let mut to = Target { region: &region, buffers: &mut buffers, masked, stores };
            match &input.access {
                Access::Part { part, view } => to.part(&mut chunk, &held, part, view)?,
                Access::Take { axis, positions } => to.take(&mut chunk, &held, *axis, positions)?,
                Access::Reshape(from) => {
                    to.reshape(&mut chunk, &held, from, &op.stage.grid.shape())?
                }
                other => return Err(Error::Broken { what: format!("a copy reads by {other:?}") }),
            }
        }
    }
    Ok(vec![op.chunk(0, buffers)?])
}

/// True if an input chunk has a masked cell.
fn any_masked(op: &Operand<'_>) -> Result<bool, Error> {
    if op.stage.outputs[0].fields.len() < 2 {
        return Ok(false);
    }
    for (k, input) in op.stage.inputs.iter().enumerate() {
        if op.plan().output(input.from).fields.len() < 2 {
            continue;
        }
        for piece in op.tiling.pieces(op.id, op.index, k) {
            if !holds(op.inputs.held(input.from, &piece)?, Condition::Unmasked) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// A chunk to copy cells from, in memory or in a file.
pub(super) enum Cells<'a> {
    Memory(&'a Chunk),
    File(Reader<'a>),
}

impl<'a> Cells<'a> {
    pub(super) fn new(held: &'a FinishedChunk, cx: &'a TaskContext<'_>) -> Result<Self, Error> {
        Ok(match held {
            FinishedChunk::Memory(chunk) => Cells::Memory(chunk),
            FinishedChunk::File(file) => Cells::File(file.reader(cx.read_back)?),
        })
    }

    pub(super) fn fields(&self) -> SmallVec<[DType; 2]> {
        match self {
            Cells::Memory(chunk) => chunk.fields().iter().map(|f| f.dtype()).collect(),
            Cells::File(reader) => reader.fields().into(),
        }
    }

    /// Copies cells of a field, as [`copy::store_box`] does.
    pub(super) fn copy(
        &mut self,
        field: usize,
        shape: &[u64],
        (offset, strides): (i64, &[i64]),
        to: &mut [u8],
        at: (i64, &[i64]),
        stores: Stores,
    ) -> Result<(), Error> {
        match self {
            Cells::Memory(chunk) => {
                let field = chunk.field(field)?;
                let from = Strided { bytes: field.buffer().as_slice(), offset, strides };
                Ok(copy::store_box(field.dtype().size(), shape, from, to, at, stores)?)
            }
            Cells::File(reader) => reader.copy(field, shape, (offset, strides), to, at),
        }
    }
}

impl Cells<'_> {
    /// Copies contiguous cells of a field.
    pub(super) fn run(
        &mut self,
        field: usize,
        from: usize,
        count: usize,
        to: &mut [u8],
        at: usize,
    ) -> Result<(), Error> {
        match self {
            Cells::Memory(chunk) => {
                let field = chunk.field(field)?;
                let size = field.dtype().size();
                let bytes = &field.buffer().as_slice()[from * size..(from + count) * size];
                to[at * size..(at + count) * size].copy_from_slice(bytes);
                Ok(())
            }
            Cells::File(reader) => {
                let (from, at) = ((from as i64, &[1][..]), (at as i64, &[1][..]));
                reader.copy(field, &[count as u64], from, to, at)
            }
        }
    }
}

/// The chunk being filled.
struct Target<'a> {
    /// Its cells.
    region: &'a Region,
    buffers: &'a mut [PooledBuf],
    /// True if it has a validity field, which an input without masks fills with true.
    masked: bool,
    stores: Stores,
}

impl Target<'_> {
    /// Copies the cells `to`, which see the chunk that holds `held` through `view`, relative to `origin`.
    fn copy(
        &mut self,
        chunk: &mut Cells<'_>,
        held: &Region,
        to: &Region,
        view: &View,
        origin: &[u64],
    ) -> Result<(), Error> {
        let seen = to.relative_to(origin);
        let (source, source_steps) = lie(view, &seen, held);
        let (target, target_steps) = lie(&View::identity(to.rank()), to, self.region);
        let shape = to.shape();
        let fields = chunk.fields().len();
        for (field, buffer) in self.buffers.iter_mut().enumerate().take(fields) {
            let (from, to) = ((source, &source_steps[..]), (target, &target_steps[..]));
            chunk.copy(field, &shape, from, buffer.as_mut_slice(), to, self.stores)?;
        }
        if self.masked && fields == 1 {
            let zero: Dims = Dims::from_elem(0, shape.len());
            let still: Vec<i64> = zero.iter().map(|_| 0).collect();
            let yes = Strided { bytes: &[1], offset: 0, strides: &still };
            copy::copy_box(1, &shape, yes, self.buffers[1].as_mut_slice(), target, &target_steps)?;
        }
        Ok(())
    }

    fn part(
        &mut self,
        chunk: &mut Cells<'_>,
        held: &Region,
        part: &Region,
        view: &View,
    ) -> Result<(), Error> {
        let Some(wanted) = part_region(self.region, part) else { return Ok(()) };
        // Exactly the cells whose position lies in the chunk.
        let readers = view.preimage(held, &part.shape());
        match readers.intersect(&wanted) {
            Some(to) => self.copy(chunk, held, &to.moved_by(&part.start), view, &part.start),
            None => Ok(()),
        }
    }

    fn take(
        &mut self,
        chunk: &mut Cells<'_>,
        held: &Region,
        axis: usize,
        positions: &[u64],
    ) -> Result<(), Error> {
        let inside = |p: u64| (held.start[axis]..held.end[axis]).contains(&p);
        let (mut o, end) = (self.region.start[axis], self.region.end[axis]);
        let mut common = self.region.clone();
        let origin = Dims::from_elem(0, common.rank());
        for a in 0..common.rank() {
            if a != axis {
                common.start[a] = common.start[a].max(held.start[a]);
                common.end[a] = common.end[a].min(held.end[a]);
            }
        }
        while o < end {
            let p = positions[o as usize];
            if !inside(p) {
                o += 1;
                continue;
            }
            // A run of consecutive positions is one box.
            let mut n = 1;
            while o + n < end && positions[(o + n) as usize] == p + n && inside(p + n) {
                n += 1;
            }
            let mut to = common.clone();
            to.start[axis] = o;
            to.end[axis] = o + n;
            let mut view = View::identity(to.rank());
            view.axes[axis].start = p as i64 - o as i64;
            self.copy(chunk, held, &to, &view, &origin)?;
            o += n;
        }
        Ok(())
    }

    /// Copies the rows of the chunk that lie in the target's run of the row-major order.
    fn reshape(
        &mut self,
        chunk: &mut Cells<'_>,
        held: &Region,
        from: &[u64],
        to: &[u64],
    ) -> Result<(), Error> {
        let ravel =
            |shape: &[u64], at: &[u64]| shape.iter().zip(at).fold(0u64, |n, (d, p)| n * d + p);
        let first = ravel(to, &self.region.start);
        let n = cells(&self.region.shape()).unwrap_or(0);
        // Rows of the chunk: its last axis, or its single cell.
        let rank = held.rank();
        let mut rows = held.clone();
        let row = if rank == 0 { 1 } else { held.len(rank - 1) };
        if rank > 0 {
            rows.end[rank - 1] = rows.start[rank - 1] + 1;
        }
        let held_shape = held.shape();
        let steps = strides(&held_shape);
        let fields = chunk.fields();
        let (buffers, masked) = (&mut *self.buffers, self.masked);
        let mut result = Ok(());
        for_each_index(&rows, &mut |at| {
            let start = ravel(from, at);
            let (lo, hi) = (start.max(first), (start + row).min(first + n));
            if lo >= hi || result.is_err() {
                return;
            }
            let inside: i64 = (0..rank).map(|a| (at[a] - held.start[a]) as i64 * steps[a]).sum();
            let source = inside as usize + (lo - start) as usize;
            let (target, count) = ((lo - first) as usize, (hi - lo) as usize);
            // An all-true mask is not copied, so `buffers` may be shorter than `fields`.
            for (f, b) in buffers.iter_mut().enumerate().take(fields.len()) {
                result = chunk.run(f, source, count, b.as_mut_slice(), target);
                if result.is_err() {
                    return;
                }
            }
            if masked && fields.len() == 1 {
                buffers[1].as_mut_slice()[target..target + count].fill(1);
            }
        });
        result
    }
}

/// A running reduction of the operand's cells, continued from the previous chunk.
pub(super) fn scan(op: &Operand<'_>, kind: ScanKind, axis: usize) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let shape = region.shape();
    let seen = gather_input(op, 0)?;
    let mut buffers = op.buffers_if(0, !seen.unmasked);
    let dense = strides(&shape);
    let place = |f: usize, buffer: &mut PooledBuf| -> Result<(), Error> {
        let size = seen.dtype(f)?.size();
        Ok(copy::copy_box(size, &shape, seen.strided(f)?, buffer.as_mut_slice(), 0, &dense)?)
    };
    let carry = match op.tiling.pieces(op.id, op.index, 1).first() {
        Some(previous) => Some(last_slice(op, previous, axis)?),
        None => None,
    };
    let dtype = op.stage.outputs[0].fields[0];
    let cancelled = op.cancelled();
    let (value, valid) = buffers.split_at_mut(1);
    if let Some(valid) = valid.first_mut() {
        place(1, valid)?;
    }
    if kind == ScanKind::Last && valid.is_empty() {
        // Nothing to fill.
        place(0, &mut value[0])?;
    } else if let (ScanKind::Last, Some(valid)) = (kind, valid.first_mut()) {
        place(0, &mut value[0])?;
        let carry = match carry.as_deref() {
            Some([v, ok]) => Some((v.as_slice(), ok.as_slice())),
            _ => None,
        };
        let value = value[0].as_mut_slice();
        fill(dtype.size(), &shape, axis, value, valid.as_mut_slice(), carry, &cancelled)?;
    } else {
        let job = Scan {
            shape: &shape,
            axis,
            from: seen.strided(0)?,
            value: value[0].as_mut_slice(),
            valid: valid.first().map(|b| b.as_slice()),
            carry: carry.as_ref().and_then(|c| c.first()).map(|b| b.as_slice()),
        };
        kernel::scan(kind, dtype, job, &cancelled)?;
    }
    drop(seen);
    Ok(vec![op.chunk(0, buffers)?])
}

/// The last position along an axis of the previous chunk of this stage, dense.
fn last_slice(
    op: &Operand<'_>,
    previous: &ChunkIndex,
    axis: usize,
) -> Result<Vec<PooledBuf>, Error> {
    let chunk = op.inputs.held(op.stage.inputs[1].from, previous)?;
    let held = op.stage.outputs[0].grid.region(previous);
    let mut last = held.clone();
    last.start[axis] = last.end[axis] - 1;
    let mut buffers: Vec<PooledBuf> = op.stage.outputs[0]
        .fields
        .iter()
        .map(|d| op.cx.buffer(last.cells() as usize * d.size()))
        .collect();
    copy_held(chunk, &held, &last, &mut buffers, Stores::Plain, op.cx)?;
    Ok(buffers)
}
