//! Several small chunks of the logical grid in one operand.
//!
//! The operand goes depth-first through the levels of the combining tree that it climbs: each chunk is reduced to a
//! state by itself, and the states of a fan are merged in row-major order, exactly as operands of `Combine` would.

use super::Operand;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::pool::PooledBuf;
use smallvec::SmallVec;
use tessera_kernels::combine;
use tessera_kernels::fused::{Compiled, OutputFields, Scratch, StridedInput};
use tessera_planner::dtype::DType;
use tessera_planner::plan::{Batch, FusedOutput};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::{Dims, Region};
use tessera_planner::tile::for_each_index;

/// A reduction: the arguments of `combine`, and the bytes of one state in each field.
struct Reduction {
    kind: ReduceKind,
    dtype: DType,
    nullable: bool,
    bytes: SmallVec<[usize; 4]>,
}

/// States of one level in progress: for each output and field, room for a fan of states.
type Level = Vec<Vec<PooledBuf>>;

/// The walk of one operand through its chunks.
pub(super) struct Climb<'a, 'b> {
    op: &'a Operand<'b>,
    batch: &'a Batch,
    compiled: &'a Compiled,
    reductions: Vec<Reduction>,
    /// The program's inputs, as strided views from the operand's first cell on.
    inputs: Vec<StridedInput<'a>>,
    offsets: Vec<i64>,
    start: Dims,
    shape: Dims,
    levels: Vec<Level>,
}

impl<'a, 'b> Climb<'a, 'b> {
    /// Prepares the walk; the inputs are views relative to the first cell of the operand's region.
    pub(super) fn new(
        op: &'a Operand<'b>,
        batch: &'a Batch,
        compiled: &'a Compiled,
        outputs: &[FusedOutput],
        inputs: Vec<StridedInput<'a>>,
    ) -> Result<Self, Error> {
        let mut reductions = Vec::with_capacity(outputs.len());
        for ((output, made), of) in outputs.iter().zip(&op.stage.outputs).zip(&batch.reduced) {
            let FusedOutput::Reduce { kind, .. } = output else {
                return Err(Error::Broken { what: "a batch stores cells".into() });
            };
            let cells = made.grid.region(op.index).cells() as usize;
            let bytes = made.fields.iter().map(|d| d.size() * cells).collect();
            let (dtype, nullable) = *of;
            reductions.push(Reduction { kind: *kind, dtype, nullable, bytes });
        }
        let levels = batch.fans.iter().map(|fan| {
            let several = fan.iter().product::<u64>() as usize;
            let room = |r: &Reduction| {
                r.bytes.iter().map(|b| op.cx.buffer(b * several)).collect::<Vec<_>>()
            };
            reductions.iter().map(room).collect()
        });
        Ok(Climb {
            levels: levels.collect(),
            offsets: inputs.iter().map(|i| i.offset).collect(),
            start: op.stage.grid.region(op.index).start,
            shape: op.stage.grid.shape(),
            op,
            batch,
            compiled,
            reductions,
            inputs,
        })
    }

    /// Returns the operand's chunks: one state for each output.
    pub(super) fn run(mut self, scratch: &mut Scratch) -> Result<Vec<Chunk>, Error> {
        let mut buffers: Vec<Vec<PooledBuf>> =
            (0..self.reductions.len()).map(|o| self.op.buffers(o)).collect();
        let mut out: Vec<OutputFields<'_>> = buffers
            .iter_mut()
            .map(|b| OutputFields {
                fields: b.iter_mut().map(PooledBuf::as_mut_slice).collect(),
                stream: false,
            })
            .collect();
        let top = self.batch.fans.len();
        self.node(top, self.op.index, &mut out, scratch)?;
        drop(out);
        buffers.into_iter().enumerate().map(|(o, b)| self.op.chunk(o, b)).collect()
    }

    /// Computes the states of chunk `index` of a level; the chunks of level 0 are those of the logical grid.
    fn node(
        &mut self,
        level: usize,
        index: &[u64],
        out: &mut [OutputFields<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let Some(below) = level.checked_sub(1) else { return self.leaf(index, out, scratch) };
        let fan = &self.batch.fans[below];
        let mut children = Region::at(index, &Dims::from_elem(1, index.len()));
        for (a, &f) in fan.iter().enumerate() {
            let step: u64 = self.batch.fans[..below].iter().map(|f| f[a]).product();
            let count = self.batch.grid.axes[a].count().div_ceil(step);
            children.start[a] = index[a] * f;
            children.end[a] = (children.start[a] + f).min(count);
        }
        let mut room = std::mem::take(&mut self.levels[below]);
        let mut several = 0;
        let mut result = Ok(());
        for_each_index(&children, &mut |child| {
            if result.is_ok() {
                let mut slot = slots(&mut room, &self.reductions, several);
                result = self.node(below, child, &mut slot, scratch);
                several += 1;
            }
        });
        result?;
        for ((r, fields), out) in self.reductions.iter().zip(&room).zip(out) {
            let states: SmallVec<[SmallVec<[&[u8]; 4]>; 16]> = (0..several)
                .map(|i| {
                    let fields = fields.iter().zip(&r.bytes);
                    fields.map(|(b, &n)| &b.as_slice()[i * n..(i + 1) * n]).collect()
                })
                .collect();
            let parts: SmallVec<[&[&[u8]]; 16]> = states.iter().map(|s| s.as_slice()).collect();
            combine::combine(r.kind, r.dtype, r.nullable, &parts, &mut out.fields)?;
        }
        self.levels[below] = room;
        Ok(())
    }

    fn leaf(
        &mut self,
        index: &[u64],
        out: &mut [OutputFields<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let region = self.batch.grid.region(index);
        for (input, offset) in self.inputs.iter_mut().zip(&self.offsets) {
            let moved = region.start.iter().zip(&self.start).map(|(a, b)| (a - b) as i64);
            input.offset = offset + moved.zip(input.strides).map(|(n, s)| n * s).sum::<i64>();
        }
        let cancelled = self.op.cancelled();
        self.compiled.run(&region, &self.shape, &self.inputs, out, scratch, &cancelled)?;
        Ok(())
    }
}

/// Room for the state of one child in each field of each output.
fn slots<'r>(
    room: &'r mut [Vec<PooledBuf>],
    reductions: &[Reduction],
    child: usize,
) -> SmallVec<[OutputFields<'r>; 4]> {
    room.iter_mut()
        .zip(reductions)
        .map(|(fields, r)| OutputFields {
            fields: fields
                .iter_mut()
                .zip(&r.bytes)
                .map(|(b, &n)| &mut b.as_mut_slice()[child * n..(child + 1) * n])
                .collect(),
            stream: false,
        })
        .collect()
}
