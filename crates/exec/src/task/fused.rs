//! Fused programs, and combining their states.

use super::Operand;
use super::batch::Climb;
use super::gather::{Gathered, Seen, gather_input};
use super::masks::{Programs, Variant};
use super::pieces::Pieces;
use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::pool::PooledBuf;
use smallvec::SmallVec;
use std::cell::RefCell;
use tessera_kernels::KernelError;
use tessera_kernels::combine::{self, Merged, Part};
use tessera_kernels::copy::Stores;
use tessera_kernels::fused::{OutputFields, Scratch, StridedInput, run_once};
use tessera_planner::dtype::DType;
use tessera_planner::ir::AxisReduce;
use tessera_planner::plan::{Fused, FusedInput, FusedOutput, Spans};
use tessera_planner::program::Arg;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::{Region, strides};
use tessera_planner::scalar::Scalar;

thread_local! {
    /// Registers and accumulators of the thread: allocated once, not once per operand.
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Runs the program of an operand: the variant without masks if none of its cells is masked.
pub(super) fn run(op: &Operand<'_>, programs: &Programs) -> Result<Vec<Chunk>, Error> {
    let variant = programs.of(op)?;
    match program(op, &variant) {
        Err(Error::Kernel { fault: KernelError::Masked { operation, .. }, .. }) => {
            Err(masked(op, &variant, operation))
        }
        done => done,
    }
}

fn program(op: &Operand<'_>, variant: &Variant) -> Result<Vec<Chunk>, Error> {
    let Variant { fused, compiled, .. } = variant;
    if let Some(pieces) = Pieces::find(op, fused)? {
        let mut buffers = stored(op, variant);
        let mut outputs = fields(op, &mut buffers);
        SCRATCH.with(|scratch| {
            pieces.run(op, fused, compiled, &mut outputs, &mut scratch.borrow_mut())
        })?;
        drop((outputs, pieces));
        return buffers.into_iter().enumerate().map(|(o, b)| op.chunk(o, b)).collect();
    }
    let region = op.stage.grid.region(op.index);
    let seen = seen(op)?;
    if let Some(same) = passed_on(fused, &seen, &region) {
        return same.into_iter().enumerate().map(|(o, f)| op.chunk_of(o, vec![f])).collect();
    }
    let inputs = strided(fused, &seen)?;
    if let Some(batch) = &fused.batch {
        let climb = Climb::new(op, batch, compiled, &fused.outputs, inputs)?;
        return SCRATCH.with(|scratch| climb.run(&mut scratch.borrow_mut()));
    }
    let mut buffers = stored(op, variant);
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
    let made = buffers.into_iter().zip(&fused.outputs).enumerate();
    made.map(|(o, (b, of))| {
        let chunk = op.chunk(o, b)?;
        Ok(match of {
            FusedOutput::Store { value: Arg::Const(c), .. } => chunk.only(*c),
            _ => chunk,
        })
    })
    .collect()
}

/// The stage's inputs as strided views of the operand's cells.
fn seen(op: &Operand<'_>) -> Result<Vec<Seen>, Error> {
    (0..op.stage.inputs.len()).map(|k| gather_input(op, k)).collect()
}

fn strided<'s>(fused: &Fused, seen: &'s [Seen]) -> Result<Vec<StridedInput<'s>>, Error> {
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
    Ok(inputs)
}

/// Returns the results if each of them is an unchanged chunk that is read: then nothing is computed, and they share its
/// memory. Both are charged in full, since either may be dropped before the other.
fn passed_on(fused: &Fused, seen: &[Seen], region: &Region) -> Option<Vec<Field>> {
    let shape = region.shape();
    let dense = strides(&shape);
    let one = |o: &FusedOutput| {
        let (value, valid) = match o {
            FusedOutput::Store { value, valid } => (value, *valid),
            FusedOutput::Certain { value, valid, .. } => (value, Some(*valid)),
            FusedOutput::Reduce { .. } => return None,
        };
        let Arg::Input(i) = value else { return None };
        let FusedInput::Field { input, field: 0 } = fused.inputs.get(*i as usize)? else {
            return None;
        };
        let s = seen.get(*input as usize)?;
        let Gathered::Place(chunk) = &s.data else { return None };
        let lies = |a: usize| shape[a] == 1 || s.steps[a] == dense[a];
        let is_whole = s.offset == 0
            && chunk.cells() == region.cells()
            && (0..shape.len()).all(lies)
            && valid.is_none_or(|v| v == Arg::Const(Scalar::bool(true)));
        let field = chunk.fields().first().filter(|_| is_whole)?;
        (Some(field.dtype()) == fused.program.inputs.get(*i as usize).copied())
            .then(|| field.clone())
    };
    fused.outputs.iter().map(one).collect()
}

/// The error of an operand that met masked cells where there must be none, with their number.
fn masked(op: &Operand<'_>, variant: &Variant, operation: String) -> Error {
    match count_masked(op, variant, &operation) {
        Ok(e) | Err(e) => e,
    }
}

fn count_masked(op: &Operand<'_>, variant: &Variant, operation: &str) -> Result<Error, Error> {
    let region = op.stage.grid.region(op.index);
    let of = |o: &FusedOutput| match o {
        FusedOutput::Certain { value, valid, .. } => Some((*value, *valid)),
        _ => None,
    };
    let Some((value, valid)) = variant.fused.outputs.iter().find_map(of) else {
        return Err(Error::Broken { what: format!("{operation} has no cells to count") });
    };
    let axes = SmallVec::from_elem(AxisReduce::All, region.rank());
    let count = FusedOutput::Reduce { kind: ReduceKind::Count, axes, value, valid: Some(valid) };
    let counting = Fused { outputs: vec![count], batch: None, ..variant.fused.clone() };
    let seen = seen(op)?;
    let inputs = strided(&counting, &seen)?;
    let mut state = op.cx.buffer(8);
    let fields = vec![state.as_mut_slice()];
    let mut outputs = [OutputFields { fields, stream: false }];
    run_once(&counting, &region, &op.stage.grid.shape(), &inputs, &mut outputs)?;
    let there = state.typed::<i64>().first().copied().unwrap_or(0).max(0) as u64;
    let cells = region.cells();
    let (masked, at) = (cells.saturating_sub(there), region.to_string());
    let operation = operation.to_string();
    Ok(KernelError::Masked { operation, masked, cells, at }.into())
}

fn stored(op: &Operand<'_>, variant: &Variant) -> Vec<Vec<PooledBuf>> {
    variant.unmasked.iter().enumerate().map(|(o, unmasked)| op.buffers_if(o, !unmasked)).collect()
}

/// The outputs as kernel arguments.
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
