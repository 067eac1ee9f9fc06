//! Runs a storing operand in pieces where its inputs have other chunk boundaries.
//!
//! ```text
//!   operand      |o o o o o o o o|
//!   input 0      |0 0 0 0 0 0 0 0|        one chunk: read in place
//!   input 1    |1 1|2 2 2 2|3 3 3 3|      three chunks, shifted by a cell
//!   pieces       |_|_ _ _ _|_ _ _|        each input in place in each of them
//! ```
//! Stored cells do not depend on each other, so a program computes the same bits piece by piece; this saves copying the
//! chunks together first.

use super::Operand;
use super::gather::{Gathered, Seen, gather, lie};
use crate::error::Error;
use crate::store::FinishedChunk;
use tessera_kernels::fused::{Compiled, OutputFields, Scratch, StridedInput};
use tessera_planner::plan::{Access, Fused, FusedInput, FusedOutput};
use tessera_planner::region::Region;
use tessera_planner::view::View;

/// Smallest average number of cells per piece: below that, copying together is cheaper.
const PIECE_CELLS: u64 = 4096;

pub(super) struct Pieces {
    region: Region,
    /// The axis that is cut. Axes before it have one position, so each piece is contiguous in the result.
    axis: usize,
    /// Starts of the pieces along the axis, and its end.
    cuts: Vec<u64>,
    /// For each input its chunks, by their positions along the axis; an input that is not cut is the same for all
    /// pieces.
    inputs: Vec<Vec<PieceInput>>,
}

/// The cells of an input from some position on.
pub(super) struct PieceInput {
    pub(super) from: u64,
    pub(super) seen: Seen,
}

impl Pieces {
    /// Returns the pieces of an operand; `None` where its inputs lie in one chunk each, or are cut along several
    /// axes.
    pub(super) fn find(op: &Operand<'_>, fused: &Fused) -> Result<Option<Pieces>, Error> {
        let region = op.stage.grid.region(op.index);
        let stores = |o: &FusedOutput| !matches!(o, FusedOutput::Reduce { .. });
        if fused.batch.is_some() || !fused.outputs.iter().all(stores) || region.is_empty() {
            return Ok(None);
        }
        let Some(axis) = (0..region.rank()).find(|&a| region.len(a) > 1) else { return Ok(None) };
        let mut cuts = vec![region.start[axis], region.end[axis]];
        let mut inputs = Vec::with_capacity(op.stage.inputs.len());
        for (k, input) in op.stage.inputs.iter().enumerate() {
            let Access::View(view) = &input.access else { return Ok(None) };
            let Some(places) = places(op, k, view, &region, axis)? else { return Ok(None) };
            cuts.extend(places.iter().skip(1).map(|p| p.from));
            inputs.push(places);
        }
        cuts.sort_unstable();
        cuts.dedup();
        let several = cuts.len() as u64 - 1;
        if several < 2 || region.cells() / several < PIECE_CELLS {
            return Ok(None);
        }
        // Inputs that are not cut are gathered once the cuts of the others are known to work.
        for (k, (input, places)) in op.stage.inputs.iter().zip(&mut inputs).enumerate() {
            if let (Access::View(view), true) = (&input.access, places.is_empty()) {
                places.push(PieceInput { from: region.start[axis], seen: gather(op, k, view)? });
            }
        }
        Ok(Some(Pieces { region, axis, cuts, inputs }))
    }

    /// Runs the program on all pieces; the outputs are those of the whole operand.
    pub(super) fn run(
        &self,
        op: &Operand<'_>,
        fused: &Fused,
        compiled: &Compiled,
        outputs: &mut [OutputFields<'_>],
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let shape = op.stage.grid.shape();
        let cancelled = op.cancelled();
        let row = self.region.cells() / self.region.len(self.axis);
        for cut in self.cuts.windows(2) {
            let mut region = self.region.clone();
            (region.start[self.axis], region.end[self.axis]) = (cut[0], cut[1]);
            let mut inputs = Vec::with_capacity(fused.inputs.len());
            for input in &fused.inputs {
                let FusedInput::Field { input, field } = input else { continue };
                let places = &self.inputs[*input as usize];
                let here = places.partition_point(|p| p.from <= cut[0]).max(1) - 1;
                let PieceInput { from, seen } = &places[here];
                let moved = (cut[0] - from) as i64 * seen.steps[self.axis];
                inputs.push(StridedInput {
                    bytes: seen.bytes(*field as usize)?,
                    offset: seen.offset + moved,
                    strides: &seen.steps,
                    dtype: seen.dtype(*field as usize)?,
                });
            }
            let first = ((cut[0] - self.region.start[self.axis]) * row) as usize;
            let cells = ((cut[1] - cut[0]) * row) as usize;
            let mut parts: Vec<OutputFields<'_>> = outputs
                .iter_mut()
                .zip(&op.stage.outputs)
                .map(|(o, made)| {
                    let fields = o.fields.iter_mut().zip(&made.fields);
                    let part = fields
                        .map(|(bytes, d)| &mut bytes[first * d.size()..(first + cells) * d.size()]);
                    OutputFields { fields: part.collect(), stream: o.stream }
                })
                .collect();
            compiled.run(&region, &shape, &inputs, &mut parts, scratch, &cancelled)?;
        }
        Ok(())
    }
}

/// Positions of input `k` along the axis: empty if one chunk holds it all (it is gathered), `None` if it is cut along
/// another axis or is in a file.
pub(super) fn places(
    op: &Operand<'_>,
    k: usize,
    view: &View,
    region: &Region,
    axis: usize,
) -> Result<Option<Vec<PieceInput>>, Error> {
    let input = &op.stage.inputs[k];
    let output = op.plan().output(input.from);
    let pieces = op.tiling.pieces(op.id, op.index, k);
    if pieces.len() < 2 {
        return Ok(Some(Vec::new()));
    }
    let shape = op.stage.grid.shape();
    let mut places = Vec::with_capacity(pieces.len());
    for piece in &pieces {
        let held = output.grid.region(piece);
        let Some(part) = view.preimage(&held, &shape).intersect(region) else { return Ok(None) };
        let across = (0..region.rank())
            .any(|a| a != axis && (part.start[a], part.end[a]) != (region.start[a], region.end[a]));
        let FinishedChunk::Memory(chunk) = op.inputs.held(input.from, piece)? else {
            return Ok(None);
        };
        if across {
            return Ok(None);
        }
        let (offset, steps) = lie(view, &part, &held);
        let unmasked = output.fields.len() < 2 || chunk.is_unmasked();
        let data = Gathered::Place(chunk.clone());
        let seen = Seen { data, fields: output.fields.clone(), unmasked, offset, steps };
        places.push(PieceInput { from: part.start[axis], seen });
    }
    places.sort_by_key(|p| p.from);
    Ok(Some(places))
}
