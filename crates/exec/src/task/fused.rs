//! Fused programs and the combining of their states.

use super::Operand;
use super::batch::Climb;
use super::gather::{Seen, gather};
use super::pieces::Pieces;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::kernels::combine;
use crate::kernels::fused::{Compiled, OutputFields, Scratch, StridedInput};
use crate::pool::PooledBuf;
use std::cell::RefCell;
use tessera_planner::dtype::DType;
use tessera_planner::plan::{Access, Fused, FusedInput, OutputRef};
use tessera_planner::reduce::ReduceKind;

/// Least bytes of a chunk that is stored past the caches.
const STREAM_MIN: u64 = 1 << 20;

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
        stream: streams(op, o),
    };
    buffers.iter_mut().enumerate().map(one).collect()
}

/// True if an output's chunk is better stored past the caches: it fills a good part of one, and no operand reads it.
fn streams(op: &Operand<'_>, output: usize) -> bool {
    let o = &op.stage.outputs[output];
    let bytes = o.grid.region(op.index).cells() * o.fields[0].size() as u64;
    let of = OutputRef { stage: op.id, output: output as u32 };
    bytes >= STREAM_MIN && op.tiling.readers(of, op.index) == 0
}

/// Combines the states of a fan in row-major order, and finishes them at the root.
pub(super) fn combine(
    op: &Operand<'_>,
    kind: ReduceKind,
    dtype: DType,
    nullable: bool,
    finish: bool,
) -> Result<Vec<Chunk>, Error> {
    let from = op.stage.inputs[0].from;
    let pieces = op.tiling.pieces(op.id, op.index, 0);
    let chunks = pieces.iter().map(|p| op.inputs.get(from, p)).collect::<Result<Vec<_>, _>>()?;
    let states: Vec<Vec<&[u8]>> =
        chunks.iter().map(|c| c.fields().iter().map(|f| f.buffer().as_slice()).collect()).collect();
    let parts: Vec<&[&[u8]]> = states.iter().map(|s| s.as_slice()).collect();
    let mut buffers = op.buffers(0);
    if !finish {
        let mut out: Vec<&mut [u8]> = buffers.iter_mut().map(|b| b.as_mut_slice()).collect();
        combine::combine(kind, dtype, nullable, &parts, &mut out)?;
        return Ok(vec![op.chunk(0, buffers)?]);
    }
    let (value, valid) = buffers.split_at_mut(1);
    let value = value[0].as_mut_slice();
    let valid = valid.first_mut().map(|b| b.as_mut_slice());
    if let [one] = parts[..] {
        combine::finish(kind, dtype, nullable, one, value, valid)?;
        return Ok(vec![op.chunk(0, buffers)?]);
    }
    let cells = chunks.first().map_or(0, |c| c.cells()) as usize;
    let mut merged: Vec<PooledBuf> =
        kind.state(dtype, nullable).iter().map(|d| op.cx.buffer(cells * d.size())).collect();
    let mut out: Vec<&mut [u8]> = merged.iter_mut().map(|b| b.as_mut_slice()).collect();
    combine::combine(kind, dtype, nullable, &parts, &mut out)?;
    let state: Vec<&[u8]> = merged.iter().map(|b| b.as_slice()).collect();
    combine::finish(kind, dtype, nullable, &state, value, valid)?;
    Ok(vec![op.chunk(0, buffers)?])
}
