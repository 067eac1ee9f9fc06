//! Inputs as strided views: in place where one chunk holds the cells, else copied together.

use super::Operand;
use super::copy::Cells;
use crate::chunk::{Chunk, Condition, Element, Field, all_valid};
use crate::error::Error;
use crate::pool::PooledBuf;
use crate::schedule::TaskContext;
use crate::store::FinishedChunk;
use smallvec::SmallVec;
use std::sync::Arc;
use tessera_kernels::Plain;
use tessera_kernels::copy::{Stores, Strided};
use tessera_kernels::sort::LinesIn;
use tessera_planner::dtype::DType;
use tessera_planner::plan::Access;
use tessera_planner::region::{Region, strides};
use tessera_planner::view::View;

/// Steps along axes, in elements.
pub(super) type Steps = SmallVec<[i64; 6]>;

/// The cells of an input that an operand sees through a view.
pub(super) enum Gathered {
    /// In one chunk.
    Place(Arc<Chunk>),
    /// Copied together, one buffer a field; the mask may be a shared one instead.
    Copied(Vec<PooledBuf>, Option<Field>),
    /// Nothing is read because there are no cells.
    Nothing,
}

/// A gathered input: the memory and the layout of the operand's cells in it.
pub(super) struct Seen {
    pub(super) data: Gathered,
    pub(super) fields: SmallVec<[DType; 4]>,
    /// True if no cell of the input chunks is masked.
    pub(super) unmasked: bool,
    /// Element of the operand's first cell.
    pub(super) offset: i64,
    /// Elements for one step along each axis of the operand.
    pub(super) steps: Steps,
}

impl Seen {
    pub(super) fn bytes(&self, field: usize) -> Result<&[u8], Error> {
        match &self.data {
            Gathered::Place(chunk) => Ok(chunk.field(field)?.buffer().as_slice()),
            Gathered::Copied(buffers, shared) => buffers
                .get(field)
                .map(|b| b.as_slice())
                .or_else(|| shared.as_ref().map(|f| f.buffer().as_slice()))
                .ok_or_else(|| Error::Broken { what: format!("an input has no field {field}") }),
            Gathered::Nothing => Ok(&[]),
        }
    }

    /// The cells of a field, as they lie.
    pub(super) fn strided(&self, field: usize) -> Result<Strided<'_>, Error> {
        Ok(Strided { bytes: self.bytes(field)?, offset: self.offset, strides: &self.steps })
    }

    /// The validity, if one of the cells is masked.
    pub(super) fn validity(&self) -> Result<Option<&[u8]>, Error> {
        if self.fields() > 1 && !self.unmasked { Ok(Some(self.bytes(1)?)) } else { Ok(None) }
    }

    /// The lines along an axis of a box of the cells.
    pub(super) fn lines<'a>(&'a self, shape: &'a [u64], axis: usize) -> Result<LinesIn<'a>, Error> {
        let (value, valid) = (self.strided(0)?, self.validity()?);
        Ok(LinesIn { shape, axis, dtype: self.dtype(0)?, value, valid })
    }

    pub(super) fn fields(&self) -> usize {
        self.fields.len()
    }

    /// The values of the first field.
    pub(super) fn values<T: Element + Plain>(&self) -> Result<&[T], Error> {
        match &self.data {
            Gathered::Place(chunk) => chunk.field(0)?.values::<T>(),
            Gathered::Copied(buffers, _) if self.dtype(0)? == T::DTYPE => {
                Ok(buffers.first().map_or(&[], |b| b.typed::<T>()))
            }
            Gathered::Copied(..) => Err(Error::Broken { what: format!("{} was read", T::DTYPE) }),
            Gathered::Nothing => Ok(&[]),
        }
    }

    pub(super) fn dtype(&self, field: usize) -> Result<DType, Error> {
        let known = self.fields.get(field).copied();
        known.ok_or_else(|| Error::Broken { what: format!("an input has no field {field}") })
    }
}

/// Layout of the cells of `region` in a dense box `held` of the input, seen through `view`: the element of the first
/// cell and the steps along the axes of `region`.
pub(super) fn lie(view: &View, region: &Region, held: &Region) -> (i64, Steps) {
    let mut steps: Steps = SmallVec::from_elem(0, region.rank());
    let mut offset = 0;
    for (d, (a, s)) in view.axes.iter().zip(strides(&held.shape())).enumerate() {
        let mut first = a.start;
        if let Some(o) = a.axis {
            first += a.step * region.start[o] as i64;
            steps[o] += a.step * s;
        }
        offset += (first - held.start[d] as i64) * s;
    }
    (offset, steps)
}

/// Gathers the cells that the operand sees of input `k`, which it has to read through a view.
pub(super) fn gather_input(op: &Operand<'_>, k: usize) -> Result<Seen, Error> {
    match &op.stage.inputs[k].access {
        Access::View(view) => gather(op, k, view),
        other => Err(Error::Broken { what: format!("input {k} is read by {other:?}, not a view") }),
    }
}

/// Gathers the cells that the operand sees of input `k` through a view.
pub(super) fn gather(op: &Operand<'_>, k: usize, view: &View) -> Result<Seen, Error> {
    gather_region(op, k, view, &op.stage.grid.region(op.index))
}

/// Gathers the cells of input `k` that the cells of `region` see through a view. The tiling guarantees that the
/// operand reads exactly the chunks that hold them.
pub(super) fn gather_region(
    op: &Operand<'_>,
    k: usize,
    view: &View,
    region: &Region,
) -> Result<Seen, Error> {
    let input = &op.stage.inputs[k];
    let output = op.plan().output(input.from);
    let fields = output.fields.clone();
    let pieces = op.tiling.pieces(op.id, op.index, k);
    match &pieces[..] {
        [] => {
            let steps = SmallVec::from_elem(0, region.rank());
            Ok(Seen { data: Gathered::Nothing, fields, unmasked: true, offset: 0, steps })
        }
        [one] if let FinishedChunk::Memory(chunk) = op.inputs.held(input.from, one)? => {
            let (offset, steps) = lie(view, region, &output.grid.region(one));
            let unmasked = fields.len() < 2 || chunk.is_unmasked();
            Ok(Seen { data: Gathered::Place(chunk.clone()), fields, unmasked, offset, steps })
        }
        pieces => {
            let image = view.image(region);
            let cells = image.cells() as usize;
            let unmasked = fields.len() < 2
                || pieces.iter().try_fold(true, |all, piece| {
                    let held = op.inputs.held(input.from, piece)?;
                    Ok::<bool, Error>(all && holds(held, Condition::Unmasked))
                })?;
            // An all-true mask is not copied.
            let shared = if unmasked && fields.len() > 1 { all_valid(cells) } else { None };
            let copied = if shared.is_some() { 1 } else { fields.len() };
            let mut buffers: Vec<PooledBuf> =
                fields.iter().take(copied).map(|d| op.cx.buffer(cells * d.size())).collect();
            for piece in pieces {
                op.cx.cancel.check()?;
                let held = op.inputs.held(input.from, piece)?;
                let from = output.grid.region(piece);
                copy_held(held, &from, &image, &mut buffers, Stores::Plain, op.cx)?;
            }
            let (offset, steps) = lie(view, region, &image);
            let data = Gathered::Copied(buffers, shared);
            Ok(Seen { data, fields, unmasked, offset, steps })
        }
    }
}

/// True if a condition holds for all cells of a chunk. Of a chunk in a file only the mask is known.
pub(super) fn holds(held: &FinishedChunk, condition: Condition) -> bool {
    match held {
        FinishedChunk::Memory(chunk) => chunk.holds(condition),
        FinishedChunk::File(file) => condition == Condition::Unmasked && file.is_unmasked(),
    }
}

/// [`copy_common`] of a chunk in memory or in a file; only the necessary part of a file is read.
pub(super) fn copy_held(
    held: &FinishedChunk,
    from: &Region,
    to: &Region,
    buffers: &mut [PooledBuf],
    stores: Stores,
    cx: &TaskContext<'_>,
) -> Result<(), Error> {
    copy_cells(Cells::new(held, cx)?, from, to, buffers, stores)
}

/// Copies the cells that a chunk (which holds the box `from`) shares with the dense box `to`, field by field.
pub(crate) fn copy_common(
    chunk: &Chunk,
    from: &Region,
    to: &Region,
    buffers: &mut [PooledBuf],
    stores: Stores,
) -> Result<(), Error> {
    copy_cells(Cells::Memory(chunk), from, to, buffers, stores)
}

fn copy_cells(
    mut held: Cells<'_>,
    from: &Region,
    to: &Region,
    buffers: &mut [PooledBuf],
    stores: Stores,
) -> Result<(), Error> {
    let Some(common) = from.intersect(to).or_else(|| (from.rank() == 0).then(|| from.clone()))
    else {
        return Ok(());
    };
    let view = View::identity(common.rank());
    let (source, source_steps) = lie(&view, &common, from);
    let (target, target_steps) = lie(&view, &common, to);
    // There may be fewer buffers than fields: an all-true mask is not copied.
    let fields = held.fields().len();
    for (f, buffer) in buffers.iter_mut().enumerate().take(fields) {
        let (source, target) = ((source, &source_steps[..]), (target, &target_steps[..]));
        held.copy(f, &common.shape(), source, buffer.as_mut_slice(), target, stores)?;
    }
    Ok(())
}
