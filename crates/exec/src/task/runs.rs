//! Lines that are longer than a chunk: their sorted runs, and merging them.
//!
//! An operand that makes a part of a sorted line reads the index of the line's runs, which locates its cells in each
//! run ([`sort::Line`]), and then just these cells, in memory or in files. So it needs as much memory as it makes
//! cells, however long the line is.

use super::Operand;
use super::copy::Cells;
use super::gather::gather_input;
use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::pool::PooledBuf;
use crate::store::FinishedChunk;
use arrow::datatypes::ArrowNativeType;
use tessera_kernels::Plain;
use tessera_kernels::sort::{self, Key, KeysMut, Line, Parts, Pieces, RunsOut};
use tessera_planner::dtype::DType;
use tessera_planner::grid::{AxisGrid, ChunkIndex, Grid};
use tessera_planner::plan::OutputRef;
use tessera_planner::region::{Dims, Region, strides};
use tessera_planner::runs::Runs;
use tessera_planner::sort::{Quantiles, SortOrder, SortWhat};
use tessera_planner::tile::for_each_index;

/// Sorts each line of a chunk, and makes the index of the runs.
pub(super) fn sort(op: &Operand<'_>, runs: Runs, order: SortOrder) -> Result<Vec<Chunk>, Error> {
    let seen = gather_input(op, 0)?;
    let shape = op.stage.grid.region(op.index).shape();
    let axis = shape.len() - 1;
    let input = seen.lines(&shape, axis)?;
    let (mut made, mut index) = (op.buffers(0), op.buffers(1));
    let dtype = op.stage.outputs[0].fields[0];
    let (Some((keys, rest)), Some(heads)) = (made.split_first_mut(), index.first_mut()) else {
        return Err(Error::Broken { what: "runs have keys and an index".into() });
    };
    let out = RunsOut {
        kept: op.stage.outputs[0].grid.region(op.index).len(axis),
        keys: match dtype.size() {
            1 => KeysMut::U8(keys.typed_mut()),
            2 => KeysMut::U16(keys.typed_mut()),
            4 => KeysMut::U32(keys.typed_mut()),
            _ => KeysMut::U64(keys.typed_mut()),
        },
        positions: rest.first_mut().map(PooledBuf::typed_mut),
        every: runs.every,
        marked: runs.marked,
        index: heads.typed_mut(),
    };
    sort::runs(input, order, out, &op.cancelled())?;
    drop(seen);
    Ok(vec![op.chunk(0, made)?, op.chunk(1, index)?])
}

/// Merges the cells of some ranks of each line, or their positions.
pub(super) fn merge(
    op: &Operand<'_>,
    axis: usize,
    runs: Runs,
    order: SortOrder,
    dtype: DType,
) -> Result<Vec<Chunk>, Error> {
    let from = Source::new(op, axis)?;
    let mut out = op.buffers(0);
    let positions = runs.what == SortWhat::Positions;
    let (value, valid) = out.split_at_mut(1);
    let (value, mut valid) = (&mut value[0], valid.first_mut().map(|b| b.as_mut_slice()));
    let region = op.stage.grid.region(op.index);
    let (first, last) = (region.start[axis], region.end[axis]);
    from.lines(&region, |at, to, step| {
        let index = from.index(at)?;
        let line = Line::new(index.typed(), from.lengths(), runs.every)?;
        let (keyed, masked) = (line.keyed(), line.masked());
        // The masked cells and the others, each a range of ranks.
        let (keyed_at, masked_at) = if order.masked_first { (masked, 0) } else { (0, keyed) };
        let ranks = |start: u64, count: u64| {
            let inside = |rank: u64| rank.clamp(start, start + count) - start;
            (inside(first), inside(last))
        };
        let (lo, hi) = ranks(keyed_at, keyed);
        let start = to + (keyed_at + lo).saturating_sub(first) as usize * step;
        if let Some(valid) = valid.as_deref_mut() {
            (0..(hi - lo) as usize).for_each(|i| valid[start + i * step] = 1);
        }
        let parts = line.parts(lo, hi);
        let wanted = (parts.skip as usize, (hi - lo) as usize);
        if hi > lo && positions {
            from.positions(at, &parts, wanted, value.typed_mut(), (start, step))?;
        } else if hi > lo {
            let to = (value.as_mut_slice(), (start, step));
            from.sorted(at, &parts, wanted, (dtype, order), to)?;
        }
        let (lo, hi) = ranks(masked_at, masked);
        let start = to + (masked_at + lo).saturating_sub(first) as usize * step;
        if hi > lo && positions {
            from.masked(at, &line.masked_parts(lo, hi), value.typed_mut(), (start, step))?;
        } else if hi > lo {
            let (size, cells) = (dtype.size(), value.as_mut_slice());
            let places = (0..(hi - lo) as usize).map(|i| start + i * step);
            places.for_each(|p| cells[p * size..][..size].fill(0));
            let places = (0..(hi - lo) as usize).map(|i| start + i * step);
            if let Some(valid) = valid.as_deref_mut() {
                places.for_each(|p| valid[p] = 0);
            }
        }
        Ok(())
    })?;
    Ok(vec![op.chunk(0, out)?])
}

/// Order statistics of each line.
pub(super) fn select(
    op: &Operand<'_>,
    axis: usize,
    runs: Runs,
    quantiles: &Quantiles,
) -> Result<Vec<Chunk>, Error> {
    let from = Source::new(op, axis)?;
    let dtype = op.stage.outputs[0].fields[0];
    let mut out = op.buffers(0);
    let (value, valid) = out.split_at_mut(1);
    let (value, mut valid) = (value[0].as_mut_slice(), valid.first_mut().map(|b| b.as_mut_slice()));
    from.lines(&op.stage.grid.region(op.index), |at, to, step| {
        let index = from.index(at)?;
        let line = Line::new(index.typed(), from.lengths(), runs.every)?;
        let (keyed, numbers) = (line.keyed(), line.numbers());
        for (i, q) in quantiles.probabilities().enumerate() {
            let place = to + i * step;
            if let Some(valid) = valid.as_deref_mut() {
                valid[place] = u8::from(keyed > 0);
            }
            if numbers == 0 || numbers < keyed {
                sort::between(dtype, None, 0.0, value, place);
                if keyed == 0 && valid.is_some() {
                    value[place * dtype.size()..][..dtype.size()].fill(0);
                }
                continue;
            }
            let (low, t) = quantiles.method.place(numbers, q);
            let count = if t > 0.0 { 2 } else { 1 };
            let parts = line.parts(low, low + count);
            let mut cells = from.gather(at, &parts, 0)?;
            let (skip, count) = (parts.skip as usize, count as usize);
            let keys = match dtype.size() {
                1 => sort::neighbours::<u8>(cells.typed_mut(), skip, count),
                2 => sort::neighbours::<u16>(cells.typed_mut(), skip, count),
                4 => sort::neighbours::<u32>(cells.typed_mut(), skip, count),
                _ => sort::neighbours::<u64>(cells.typed_mut(), skip, count),
            };
            sort::between(dtype, Some(keys?), t, value, place);
        }
        Ok(())
    })?;
    Ok(vec![op.chunk(0, out)?])
}

/// The runs that an operand reads.
struct Source<'a> {
    op: &'a Operand<'a>,
    axis: usize,
    runs: OutputRef,
    /// Grids of the unsorted chunks, of the runs and of the indices; lines lie along the last axis.
    cells: &'a Grid,
    kept: &'a Grid,
    indices: &'a Grid,
}

impl<'a> Source<'a> {
    fn new(op: &'a Operand<'a>, axis: usize) -> Result<Self, Error> {
        let [runs, index] = &op.stage.inputs[..] else {
            return Err(Error::Broken { what: "runs are read with their index".into() });
        };
        let plan = op.plan();
        Ok(Source {
            op,
            axis,
            runs: runs.from,
            cells: &plan.stage(runs.from.stage).grid,
            kept: &plan.output(runs.from).grid,
            indices: &plan.output(index.from).grid,
        })
    }

    /// Calls `f` with the position of each line of a region among all lines, the element of its first cell in the chunk
    /// of that region, and the step to the next one.
    fn lines(
        &self,
        region: &Region,
        mut f: impl FnMut(&[u64], usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let steps = strides(&region.shape());
        let mut starts = region.clone();
        starts.end[self.axis] = starts.start[self.axis] + 1;
        if region.len(self.axis) == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        for_each_index(&starts, &mut |at| {
            if result.is_ok() {
                let to: i64 =
                    (0..at.len()).map(|a| (at[a] - starts.start[a]) as i64 * steps[a]).sum();
                let others = (0..at.len()).filter(|&a| a != self.axis);
                let line: Dims = others.map(|a| at[a]).collect();
                let go = self.op.cx.cancel.check();
                result = go.and_then(|()| f(&line, to as usize, steps[self.axis] as usize));
            }
        });
        result
    }

    fn last(grid: &Grid) -> AxisGrid {
        grid.axes[grid.rank() - 1]
    }

    /// Number of cells of each run of a line.
    fn lengths(&self) -> impl Iterator<Item = u64> + use<> {
        let axis = Self::last(self.kept);
        (0..axis.count()).map(move |i| {
            let (start, end) = axis.interval(i);
            end - start
        })
    }

    /// The chunk that holds run `i` of the line at `at`, and the number of the line in that chunk.
    fn place(&self, at: &[u64], i: u64) -> (ChunkIndex, u64) {
        let mut chunk: ChunkIndex = ChunkIndex::new();
        let mut number = 0;
        for (p, axis) in at.iter().zip(&self.kept.axes) {
            let here = axis.find(*p);
            let (start, end) = axis.interval(here);
            number = number * (end - start) + (p - start);
            chunk.push(here);
        }
        chunk.push(i);
        (chunk, number)
    }

    /// Copies cells `[from, to)` of run `i` of a line into a buffer.
    fn read(
        &self,
        (at, i): (&[u64], u64),
        (output, field): (u32, usize),
        (from, to): (u64, u64),
        buffer: &mut [u8],
        place: usize,
    ) -> Result<(), Error> {
        self.op.cx.cancel.check()?;
        let (chunk, number) = self.place(at, i);
        let grid = if output == 0 { self.kept } else { self.indices };
        let (start, end) = Self::last(grid).interval(i);
        let of = OutputRef { stage: self.runs.stage, output };
        let first = number * (end - start) + from;
        let mut cells = Cells::new(self.op.inputs.held(of, &chunk)?, self.op.cx)?;
        cells.run(field, first as usize, (to - from) as usize, buffer, place)
    }

    /// Reads the index of all runs of a line.
    fn index(&self, at: &[u64]) -> Result<PooledBuf, Error> {
        let axis = Self::last(self.indices);
        let mut index = self.op.cx.buffer(axis.len as usize * 8);
        for i in 0..axis.count() {
            let (start, end) = axis.interval(i);
            self.read((at, i), (1, 0), (0, end - start), index.as_mut_slice(), start as usize)?;
        }
        Ok(index)
    }

    /// Copies a field of parts of runs into one buffer.
    fn gather(&self, at: &[u64], parts: &Parts, field: usize) -> Result<PooledBuf, Error> {
        let size = self.op.plan().output(self.runs).fields[field].size();
        let mut buffer = self.op.cx.buffer(parts.cells() as usize * size);
        let mut place = 0;
        for (i, &(from, to)) in (0..).zip(&parts.runs) {
            if from < to {
                self.read((at, i), (0, field), (from, to), buffer.as_mut_slice(), place)?;
                place += (to - from) as usize;
            }
        }
        Ok(buffer)
    }

    /// Reads a field of parts of runs: in place if in memory, copied if in files.
    fn parts<'p>(&self, at: &[u64], parts: &'p Parts, field: usize) -> Result<Read<'a, 'p>, Error> {
        let size = self.op.plan().output(self.runs).fields[field].size();
        let all = (0..).zip(&parts.runs).filter(|(_, (from, to))| from < to);
        let (mut chunks, mut copied) = (Vec::with_capacity(parts.runs.len()), 0);
        for (i, &(from, to)) in all.clone() {
            let (chunk, number) = self.place(at, i);
            let held = match self.op.inputs.held(self.runs, &chunk)? {
                FinishedChunk::Memory(chunk) => {
                    let (start, end) = Self::last(self.kept).interval(i);
                    Some((chunk.field(field)?, (number * (end - start) + from) as usize))
                }
                FinishedChunk::File(_) => None,
            };
            if held.is_none() {
                copied += (to - from) as usize;
            }
            chunks.push(held);
        }
        let mut buffer = self.op.cx.buffer(copied * size);
        let mut place = 0;
        for ((i, &(from, to)), _) in all.zip(&chunks).filter(|(_, held)| held.is_none()) {
            self.read((at, i), (0, field), (from, to), buffer.as_mut_slice(), place)?;
            place += (to - from) as usize;
        }
        Ok(Read { parts, chunks, buffer })
    }

    /// Merges cells in order: `(skip, count)` selects the parts' cells, `(start, step)` their target positions.
    fn sorted(
        &self,
        at: &[u64],
        parts: &Parts,
        wanted: (usize, usize),
        (dtype, order): (DType, SortOrder),
        (out, to): (&mut [u8], (usize, usize)),
    ) -> Result<(), Error> {
        let read = self.parts(at, parts, 0)?;
        let runs = match dtype.size() {
            1 => Pieces::U8(read.pieces()),
            2 => Pieces::U16(read.pieces()),
            4 => Pieces::U32(read.pieces()),
            _ => Pieces::U64(read.pieces()),
        };
        Ok(sort::merge_cells(dtype, &runs, wanted, order, out, to, &self.op.cancelled())?)
    }

    /// Positions in the order of the keys.
    fn positions(
        &self,
        at: &[u64],
        parts: &Parts,
        wanted: (usize, usize),
        to: &mut [i64],
        (start, step): (usize, usize),
    ) -> Result<(), Error> {
        let read = self.parts(at, parts, 1)?;
        let positions = read.pieces::<u32>();
        let axis = Self::last(self.cells);
        let firsts: Vec<u64> = (0..axis.count()).map(|i| axis.interval(i).0).collect();
        macro_rules! run {
            ($t:ident) => {
                self.merged::<$t>(at, parts, wanted, |i, _, run, place| {
                    let position = firsts[run] + u64::from(positions[run][place]);
                    to[start + i * step] = position as i64;
                })
            };
        }
        match self.op.plan().output(self.runs).fields[0].size() {
            1 => run!(u8),
            2 => run!(u16),
            4 => run!(u32),
            _ => run!(u64),
        }
    }

    /// Positions of masked cells, in the order of the runs.
    fn masked(
        &self,
        at: &[u64],
        parts: &Parts,
        to: &mut [i64],
        (start, step): (usize, usize),
    ) -> Result<(), Error> {
        let read = self.parts(at, parts, 1)?;
        let axis = Self::last(self.cells);
        let runs = (0..).zip(read.pieces::<u32>());
        let all = runs.flat_map(|(i, p)| {
            let first = axis.interval(i).0;
            p.iter().map(move |&p| (first + u64::from(p)) as i64)
        });
        for (i, position) in all.enumerate() {
            to[start + i * step] = position;
        }
        Ok(())
    }

    fn merged<K: Key + ArrowNativeType>(
        &self,
        at: &[u64],
        parts: &Parts,
        wanted: (usize, usize),
        emit: impl FnMut(usize, K, usize, usize),
    ) -> Result<(), Error> {
        let read = self.parts(at, parts, 0)?;
        let keys = read.pieces::<K>();
        Ok(sort::merge(&keys, wanted, &self.op.cancelled(), emit)?)
    }
}

/// A field of parts of runs.
struct Read<'a, 'p> {
    parts: &'p Parts,
    /// For each part that is not empty, its field and first cell if it is in memory.
    chunks: Vec<Option<(&'a Field, usize)>>,
    /// The other parts, one after the other.
    buffer: PooledBuf,
}

impl Read<'_, '_> {
    /// The cells of each part.
    fn pieces<T: Plain + ArrowNativeType>(&self) -> Vec<&[T]> {
        let (mut chunks, mut rest) = (self.chunks.iter(), self.buffer.typed::<T>());
        let piece = |&(from, to): &(u64, u64)| {
            let len = (to.saturating_sub(from)) as usize;
            let held = if len == 0 { None } else { chunks.next().copied().flatten() };
            match held {
                Some((field, first)) => &field.buffer().typed_data::<T>()[first..first + len],
                None => {
                    let (here, after) = rest.split_at(len);
                    rest = after;
                    here
                }
            }
        };
        self.parts.runs.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests;
