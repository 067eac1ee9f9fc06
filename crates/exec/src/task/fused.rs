//! Fused programs and the combining of their states.

use super::Operand;
use super::batch::Climb;
use super::gather::{Seen, gather};
use super::pieces::Pieces;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::kernels::combine::{self, Merged, Part};
use crate::kernels::copy::Stores;
use crate::kernels::fused::{Compiled, OutputFields, Scratch, StridedInput};
use crate::pool::PooledBuf;
use std::cell::RefCell;
use tessera_planner::dtype::DType;
use tessera_planner::plan::{Access, Fused, FusedInput, Spans};
use tessera_planner::reduce::ReduceKind;

thread_local! {
    /// Registers and accumulators of the thread: allocated once, not once an operand.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

pub(super) fn run(
    op: &Operand<'_>,
    fused: &Fused,
    compiled: &Compiled,
) -> Result<Vec<Chunk>, Error> {
    if let Some(pieces) = Pieces::find(op, fused)? {
        let mut buffers = stored(op);
        let mut outputs = fields(op, &mut buffers);
        SCRATCH.with(|scratch| {
            pieces.run(op, fused, compiled, &mut outputs, &mut scratch.borrow_mut())
        })?;
        drop((outputs, pieces));
        return buffers.into_iter().enumerate().map(|(o, b)| op.chunk(o, b)).collect();
    }
    let region = op.stage.grid.region(op.index);
    let seen: Vec<Seen> = op
        .stage
        .inputs
        .iter()
        .enumerate()
        .map(|(k, input)| match &input.access {
            Access::View(view) => gather(op, k, view),
            other => Err(Error::Broken { what: format!("a fused program reads by {other:?}") }),
        })
        .collect::<Result<_, _>>()?;
    let mut inputs = Vec::with_capacity(fused.inputs.len());
    for input in &fused.inputs {
        if let FusedInput::Field { input, field } = input {
            let s = &seen[*input as usize];
            let field = *field as usize;
            inputs.push(StridedInput {
                bytes: s.bytes(field)?,
                offset: s.offset,
                strides: &s.steps,
                dtype: s.dtype(field)?,
            });
        }
    }
    if let Some(batch) = &fused.batch {
        let climb = Climb::new(op, batch, compiled, &fused.outputs, inputs)?;
        return SCRATCH.with(|scratch| climb.run(&mut scratch.borrow_mut()));
    }
    let mut buffers = stored(op);
    let mut outputs = fields(op, &mut buffers);
    let cancelled = op.cancelled();
    SCRATCH.with(|scratch| {
        let mut scratch = scratch.borrow_mut();
        compiled.run(
            &region,
            &op.stage.grid.shape(),
            &inputs,
            &mut outputs,
            &mut scratch,
            &cancelled,
        )
    })?;
    drop(outputs);
    buffers.into_iter().enumerate().map(|(o, b)| op.chunk(o, b)).collect()
}

/// Buffers for all outputs.
fn stored(op: &Operand<'_>) -> Vec<Vec<PooledBuf>> {
    (0..op.stage.outputs.len()).map(|o| op.buffers(o)).collect()
}

/// The outputs as the kernel takes them.
fn fields<'b>(op: &Operand<'_>, buffers: &'b mut [Vec<PooledBuf>]) -> Vec<OutputFields<'b>> {
    let one = |(o, fields): (usize, &'b mut Vec<PooledBuf>)| OutputFields {
        fields: fields.iter_mut().map(|b| b.as_mut_slice()).collect(),
        stream: op.stores(o) == Stores::Past,
    };
    buffers.iter_mut().enumerate().map(one).collect()
}

/// Combines the states of a fan in row-major order, and finishes them at the root.
pub(super) fn combine(
    op: &Operand<'_>,
    (kind, dtype, nullable): (ReduceKind, DType, bool),
    finish: bool,
    spans: Option<&Spans>,
) -> Result<Vec<Chunk>, Error> {
    let from = op.stage.inputs[0].from;
    let pieces = op.tiling.pieces(op.id, op.index, 0);
    let chunks = pieces.iter().map(|p| op.inputs.get(from, p)).collect::<Result<Vec<_>, _>>()?;
    let states: Vec<Vec<&[u8]>> =
        chunks.iter().map(|c| c.fields().iter().map(|f| f.buffer().as_slice()).collect()).collect();
    // All states have the same cells, or spans of the groups along an axis.
    let whole = (1, 1, op.stage.grid.region(op.index).cells() as usize);
    let shape = op.stage.outputs[0].grid.region(op.index).shape();
    let cells = |axes: &[u64]| axes.iter().product::<u64>() as usize;
    let extent = spans.map_or(whole, |s| {
        (cells(&shape[..s.axis]), shape[s.axis] as usize, cells(&shape[s.axis + 1..]))
    });
    let below = &op.plan().output(from).grid;
    let parts: Vec<Part<'_>> = states
        .iter()
        .zip(&pieces)
        .map(|(state, at)| match spans {
            None => Part { state, first: 0, len: 1 },
            Some(s) => Part {
                state,
                first: (s.below[at[s.axis] as usize] - s.here[op.index[s.axis] as usize]) as usize,
                len: below.region(at).len(s.axis) as usize,
            },
        })
        .collect();
    let mut buffers = op.buffers(0);
    let out = match (finish, &mut buffers[..]) {
        (true, [value, valid @ ..]) => Merged::Value {
            value: value.as_mut_slice(),
            valid: valid.first_mut().map(|b| b.as_mut_slice()),
        },
        (_, fields) => Merged::State(fields.iter_mut().map(|b| b.as_mut_slice()).collect()),
    };
    combine::merged(kind, dtype, nullable, &parts, extent, out)?;
    Ok(vec![op.chunk(0, buffers)?])
}
