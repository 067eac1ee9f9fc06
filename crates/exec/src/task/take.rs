//! Cells at listed positions of an axis, from chunks in memory.
//!
//! ```text
//!   positions  7 0 3 …      chunks  |0 1 2 3|4 5 6 7|      each position has a row of cells, which lies in one chunk
//! ```
//! The rows are copied in the order of the positions: the target is written once from its first cell to its last,
//! however many chunks the positions jump between. Rows that follow each other, as those of a box across 0°, are copied
//! as one.

use super::Operand;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::pool::PooledBuf;
use crate::store::FinishedChunk;
use std::sync::Arc;
use tessera_kernels::Level;
use tessera_kernels::copy::Stores;
use tessera_kernels::stream;
use tessera_planner::grid::AxisGrid;

/// Smallest row, in bytes, that is worth storing past the caches: its ends are stored plainly.
const PAST_MIN: usize = 16 * stream::LINE;

/// Rows between two checks for cancellation.
const CANCEL_ROWS: usize = 1 << 16;

/// Up to this number of runs are found once, for all positions of the axes before: they fit into the nearest cache.
const RUNS_MAX: usize = 512;

/// Fills the operand's chunk with input `k`, whose cells are taken along `axis`. Returns `false`, with nothing done,
/// if a chunk is in a file or rows are not contiguous.
pub(super) fn rows(
    op: &Operand<'_>,
    k: usize,
    axis: usize,
    positions: &[u64],
    buffers: &mut [PooledBuf],
    stores: Stores,
) -> Result<bool, Error> {
    let region = op.stage.grid.region(op.index);
    let from = op.stage.inputs[k].from;
    let grid = &op.plan().output(from).grid;
    let along = grid.axes[axis];
    let mut chunks: Vec<Option<Arc<Chunk>>> = vec![None; along.count() as usize];
    for piece in op.tiling.pieces(op.id, op.index, k) {
        let held = grid.region(&piece);
        let whole = (0..held.rank())
            .all(|a| a == axis || (held.start[a], held.end[a]) == (region.start[a], region.end[a]));
        match op.inputs.held(from, &piece)? {
            FinishedChunk::Memory(chunk) if whole => {
                chunks[piece[axis] as usize] = Some(chunk.clone())
            }
            _ => return Ok(false),
        }
    }
    let shape = region.shape();
    let outer = shape[..axis].iter().product::<u64>() as usize;
    let inner = shape[axis + 1..].iter().product::<u64>() as usize;
    let taken = &positions[region.start[axis] as usize..region.end[axis] as usize];
    let fields = chunks.iter().flatten().next().map_or(0, |c| c.fields().len());
    for (f, buffer) in buffers.iter_mut().enumerate() {
        if f >= fields {
            buffer.as_mut_slice().fill(1);
            continue;
        }
        let size = op.stage.outputs[0].fields[f].size();
        let mut sources: Vec<&[u8]> = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            sources.push(match chunk {
                Some(chunk) => chunk.field(f)?.buffer().as_slice(),
                None => &[],
            });
        }
        let past = match stores {
            Stores::Past if inner * size >= PAST_MIN => stream::copy(Level::detect()),
            _ => None,
        };
        let rows = Rows { along, sources: &sources, taken, outer, row: inner * size };
        let cancelled = op.cancelled();
        let to = buffer.as_mut_slice();
        let plain = |to: &mut [u8], from: &[u8]| to.copy_from_slice(from);
        let done = match (rows.row, past) {
            (_, Some(past)) => {
                let done = rows.copy::<0>(to, &cancelled, |to, from| stream::store(past, to, from));
                stream::fence();
                done
            }
            (1, None) => rows.copy::<1>(to, &cancelled, plain),
            (2, None) => rows.copy::<2>(to, &cancelled, plain),
            (4, None) => rows.copy::<4>(to, &cancelled, plain),
            (8, None) => rows.copy::<8>(to, &cancelled, plain),
            _ => rows.copy::<0>(to, &cancelled, plain),
        };
        if !done {
            op.cx.cancel.check()?;
        }
    }
    Ok(true)
}

/// Positions of one chunk that follow each other.
struct Run {
    chunk: usize,
    /// Number of positions of the chunk.
    len: usize,
    first: usize,
    count: usize,
}

/// The rows of one field.
struct Rows<'a> {
    along: AxisGrid,
    /// The chunks along the axis; chunks without taken rows are empty.
    sources: &'a [&'a [u8]],
    taken: &'a [u64],
    /// Number of positions of the axes before.
    outer: usize,
    row: usize,
}

impl Rows<'_> {
    /// Copies rows of `N` bytes (of any length if that is 0) to their positions; `false` if cancelled.
    #[inline(always)]
    fn copy<const N: usize>(
        &self,
        to: &mut [u8],
        cancelled: &dyn Fn() -> bool,
        put: impl Fn(&mut [u8], &[u8]),
    ) -> bool {
        match self.runs() {
            Some(runs) => self.copy_runs::<N>(&runs, to, cancelled, put),
            None => self.copy_rows::<N>(to, cancelled, put),
        }
    }

    /// The taken positions as runs; `None` if these are too many.
    fn runs(&self) -> Option<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for &p in self.taken {
            let chunk = self.along.find(p);
            let (start, end) = self.along.interval(chunk);
            let (chunk, len, first) =
                (chunk as usize, (end - start) as usize, (p - start) as usize);
            if let Some(run) = runs.last_mut()
                && run.chunk == chunk
                && run.first + run.count == first
            {
                run.count += 1;
            } else if runs.len() == RUNS_MAX {
                return None;
            } else {
                runs.push(Run { chunk, len, first, count: 1 });
            }
        }
        Some(runs)
    }

    #[inline(always)]
    fn copy_runs<const N: usize>(
        &self,
        runs: &[Run],
        mut to: &mut [u8],
        cancelled: &dyn Fn() -> bool,
        put: impl Fn(&mut [u8], &[u8]),
    ) -> bool {
        let row = if N == 0 { self.row } else { N };
        let mut unchecked = CANCEL_ROWS;
        for o in 0..self.outer {
            if unchecked >= CANCEL_ROWS {
                if cancelled() {
                    return false;
                }
                unchecked = 0;
            }
            unchecked += self.taken.len();
            for run in runs {
                let (these, rest) = std::mem::take(&mut to).split_at_mut(run.count * row);
                to = rest;
                let from = &self.sources[run.chunk][(o * run.len + run.first) * row..];
                match run.count {
                    // Its length is known to the compiler.
                    1 => put(&mut these[..row], &from[..row]),
                    n => put(these, &from[..n * row]),
                }
            }
        }
        true
    }

    #[inline(always)]
    fn copy_rows<const N: usize>(
        &self,
        to: &mut [u8],
        cancelled: &dyn Fn() -> bool,
        put: impl Fn(&mut [u8], &[u8]),
    ) -> bool {
        let row = if N == 0 { self.row } else { N };
        let mut targets = to.chunks_exact_mut(row.max(1));
        for o in 0..self.outer {
            for part in self.taken.chunks(CANCEL_ROWS) {
                if cancelled() {
                    return false;
                }
                for (&p, to) in part.iter().zip(&mut targets) {
                    let chunk = self.along.find(p);
                    let (start, end) = self.along.interval(chunk);
                    let at = (o as u64 * (end - start) + (p - start)) as usize * row;
                    put(to, &self.sources[chunk as usize][at..at + row]);
                }
            }
        }
        true
    }
}
