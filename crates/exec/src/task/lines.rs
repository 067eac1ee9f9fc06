//! Tasks that run along lines: windows, sorts, quantiles.

use super::Operand;
use super::gather::{gather_input, gather_region};
use super::pieces::{PieceInput, places};
use crate::chunk::Chunk;
use crate::error::Error;
use tessera_kernels::Level;
use tessera_kernels::sort::{self, LinesOut};
use tessera_kernels::window::{Input, Part, Windows, window};
use tessera_planner::plan::{Access, Task};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Region;
use tessera_planner::tile::window_region;
use tessera_planner::view::View;
use tessera_planner::window::Frame;

/// Windows around the operand's cells.
pub(super) fn rolling(
    op: &Operand<'_>,
    axis: usize,
    frame: Frame,
    kind: ReduceKind,
    min_count: u64,
) -> Result<Vec<Chunk>, Error> {
    let region = op.stage.grid.region(op.index);
    let whole = op.stage.grid.shape();
    let wide = window_region(&region, axis, frame, &whole);
    let Access::Window { view, .. } = &op.stage.inputs[0].access else {
        return Err(Error::Broken { what: "a window reads its input through a frame".into() });
    };
    let seen = in_parts(op, view, &wide, axis)?;
    let dtype = seen[0].seen.dtype(0)?;
    let shape = region.shape();
    let windows = Windows {
        shape: &shape,
        axis,
        frame,
        min_count,
        len: whole[axis],
        first: region.start[axis],
        level: Level::detect(),
    };
    // All boxes have a mask, or none has.
    let unmasked = seen.iter().all(|p| p.seen.unmasked);
    let parts = seen.iter().map(|p| part(p, unmasked)).collect::<Result<Vec<_>, Error>>()?;
    let input = Input { parts: &parts, strides: &seen[0].seen.steps };
    let all_valid = unmasked && frame.count_min(whole[axis]) >= min_count.max(1);
    let mut buffers = op.buffers_if(0, !all_valid);
    let (out, valid) = buffers.split_at_mut(1);
    window(
        kind,
        dtype,
        windows,
        input,
        out[0].as_mut_slice(),
        valid.first_mut().map(|b| b.as_mut_slice()),
        &op.cancelled(),
    )?;
    Ok(vec![op.chunk(0, buffers)?])
}

/// Gathers the input of windows: in place, in parts along the axis, if it is cut along that axis alone and the parts
/// have equal strides; else copied together.
fn in_parts(
    op: &Operand<'_>,
    view: &View,
    wide: &Region,
    axis: usize,
) -> Result<Vec<PieceInput>, Error> {
    if let Some(parts) = places(op, 0, view, wide, axis)?
        && let Some((first, others)) = parts.split_first()
        && others.iter().all(|p| p.seen.steps == first.seen.steps)
    {
        return Ok(parts);
    }
    Ok(vec![PieceInput { from: wide.start[axis], seen: gather_region(op, 0, view, wide)? }])
}

fn part(p: &PieceInput, unmasked: bool) -> Result<Part<'_>, Error> {
    let masked = !unmasked && p.seen.fields() > 1;
    let valid = if masked { Some(p.seen.bytes(1)?) } else { None };
    Ok(Part { first: p.from, bytes: p.seen.bytes(0)?, valid, offset: p.seen.offset })
}

/// Sorts whole lines, or computes their quantiles.
pub(super) fn ordered(op: &Operand<'_>) -> Result<Vec<Chunk>, Error> {
    let seen = gather_input(op, 0)?;
    let shape = op.stage.grid.region(op.index).shape();
    let axis = match &op.stage.task {
        Task::Sort { axis, .. } | Task::Quantile { axis, .. } => *axis,
        task => return Err(Error::Broken { what: format!("{task:?} does not order lines") }),
    };
    // A line without cells has no quantile.
    let all_valid = seen.unmasked && shape[axis] > 0;
    let mut buffers = op.buffers_if(0, !all_valid);
    let (value, valid) = buffers.split_at_mut(1);
    let out = LinesOut {
        kept: op.stage.outputs[0].grid.axes[axis].len,
        value: value[0].as_mut_slice(),
        valid: valid.first_mut().map(|b| b.as_mut_slice()),
    };
    let input = seen.lines(&shape, axis)?;
    match &op.stage.task {
        Task::Sort { what, order, .. } => {
            sort::sort(input, *what, *order, out, &op.cancelled())?;
        }
        Task::Quantile { quantiles, .. } => {
            sort::quantile(input, quantiles, out, &op.cancelled())?;
        }
        _ => {}
    }
    drop(seen);
    Ok(vec![op.chunk(0, buffers)?])
}
