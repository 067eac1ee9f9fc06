//! Scatters rows from blocks to the chunks of a grid.
//!
//! A band, with as many chunks as fit into a share of the memory, is filled in one pass over the rows.
//! If there are several bands, the chunks that each block touches are computed first, so that rows that arrive
//! nearly in the order of the result are read about twice in all.

use super::blocks::Blocks;
use std::ops::Range;
use std::sync::Arc;
use tessera_exec::chunk::{Chunk, Field};
use tessera_exec::error::Error;
use tessera_exec::pool::PooledBuf;
use tessera_exec::quota::Charge;
use tessera_exec::select::Room;
use tessera_exec::store::Resident;
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;

/// A band takes at most the memory limit divided by this, unless one chunk is larger.
const SHARE: u64 = 8;

/// Values of a cell's validity while chunks are filled.
const NO_ROW: u8 = 0;
const VALUE: u8 = 1;
const NULL: u8 = 2;

pub(super) struct Placing<'a> {
    pub(super) blocks: &'a Blocks,
    /// For each key, the position of a code among the labels; empty if rows are counted.
    pub(super) ranks: &'a [Vec<u32>],
    pub(super) column: usize,
    pub(super) dtype: DType,
    pub(super) nullable: bool,
    pub(super) grid: &'a Grid,
    pub(super) room: &'a Room,
    pub(super) cancelled: &'a dyn Fn() -> bool,
    /// Builds the error for two rows at one position.
    pub(super) twice: &'a dyn Fn(&[u64]) -> Error,
}

struct CellPosition {
    chunk: u64,
    cell: usize,
}

/// Called for each row of a block with its number in the block, its target, and its position along each axis.
type Visit<'a> = dyn FnMut(usize, CellPosition, &[u64]) -> Result<(), Error> + 'a;

impl Placing<'_> {
    /// Builds the array of the column.
    ///
    /// # Errors
    /// Two rows at one position; no room for a chunk; [`Error::Cancelled`].
    pub(super) fn run(&self) -> Result<Arc<Resident>, Error> {
        let array = self.room.array(self.grid.clone())?;
        let count = self.grid.count();
        let (mut first, mut touched) = (0, None);
        while first < count {
            let (charge, band) = self.band(first, count)?;
            if band != (0..count) && touched.is_none() {
                touched = Some(self.touched()?);
            }
            self.fill(&band, charge, touched.as_deref(), &array)?;
            first = band.end;
        }
        Ok(array)
    }

    fn bytes_of(&self, chunk: u64) -> u64 {
        let cells = self.grid.region(&self.grid.unravel(chunk)).cells();
        cells * (self.dtype.size() as u64 + 1)
    }

    /// The next chunks to fill in one pass, and their memory charge.
    fn band(&self, first: u64, count: u64) -> Result<(Charge, Range<u64>), Error> {
        let mut budget = self.room.quota.limit() / SHARE;
        loop {
            let (mut end, mut sum) = (first, 0u64);
            while end < count && (end == first || sum + self.bytes_of(end) <= budget) {
                sum += self.bytes_of(end);
                end += 1;
            }
            match self.room.reserve(sum) {
                Ok(charge) => return Ok((charge, first..end)),
                Err(e) if end == first + 1 => return Err(e),
                Err(_) => budget /= 2,
            }
        }
    }

    /// The first and the last chunk that each block of rows touches.
    fn touched(&self) -> Result<Vec<Range<u64>>, Error> {
        let mut buffer = Vec::new();
        let mut all = Vec::with_capacity(self.blocks.len());
        for block in 0..self.blocks.len() {
            let (mut first, mut end) = (u64::MAX, 0);
            self.each(block, &mut buffer, &mut |_, place, _| {
                (first, end) = (first.min(place.chunk), end.max(place.chunk + 1));
                Ok(())
            })?;
            all.push(first..end);
        }
        Ok(all)
    }

    fn each(&self, block: usize, buffer: &mut Vec<u8>, f: &mut Visit<'_>) -> Result<(), Error> {
        if (self.cancelled)() {
            return Err(Error::Cancelled);
        }
        let (start, rows) = self.blocks.span(block);
        let codes = self.blocks.codes(block, buffer)?;
        let mut at = vec![0u64; self.grid.axes.len()];
        for row in 0..rows {
            if self.ranks.is_empty() {
                at[0] = start + row as u64;
            }
            for (k, (ranks, to)) in self.ranks.iter().zip(&mut at).enumerate() {
                let from = 4 * (k * rows + row);
                let mut code = [0; 4];
                code.copy_from_slice(&codes[from..from + 4]);
                *to = u64::from(ranks[u32::from_le_bytes(code) as usize]);
            }
            let (mut chunk, mut cell) = (0u64, 0u64);
            for (axis, &p) in self.grid.axes.iter().zip(&at) {
                let of = axis.find(p);
                let (start, end) = axis.interval(of);
                chunk = chunk * axis.count() + of;
                cell = cell * (end - start) + (p - start);
            }
            f(row, CellPosition { chunk, cell: cell as usize }, &at)?;
        }
        Ok(())
    }

    fn fill(
        &self,
        band: &Range<u64>,
        mut charge: Charge,
        touched: Option<&[Range<u64>]>,
        array: &Resident,
    ) -> Result<(), Error> {
        let (size, pool) = (self.dtype.size(), &self.room.pool);
        let mut chunks: Vec<[PooledBuf; 2]> = band
            .clone()
            .map(|n| {
                let n = self.grid.region(&self.grid.unravel(n)).cells() as usize;
                [pool.take_zeroed(n * size), pool.take_zeroed(n)]
            })
            .collect();
        let (mut codes, mut cells) = (Vec::new(), Vec::new());
        for block in 0..self.blocks.len() {
            let outside = |r: &Range<u64>| r.end <= band.start || band.end <= r.start;
            if touched.is_some_and(|t| outside(&t[block])) {
                continue;
            }
            let (values, valid) = self.blocks.column(block, self.column, &mut cells)?;
            self.each(block, &mut codes, &mut |row, place, at| {
                if !band.contains(&place.chunk) {
                    return Ok(());
                }
                let [data, seen] = &mut chunks[(place.chunk - band.start) as usize];
                let seen = &mut seen.as_mut_slice()[place.cell];
                if *seen != NO_ROW {
                    return Err((self.twice)(at));
                }
                *seen = if valid[row] == 0 { NULL } else { VALUE };
                let to = place.cell * size..(place.cell + 1) * size;
                data.as_mut_slice()[to].copy_from_slice(&values[row * size..(row + 1) * size]);
                Ok(())
            })?;
        }
        for (n, [data, mut seen]) in band.clone().zip(chunks) {
            let shape = self.grid.region(&self.grid.unravel(n)).shape();
            let mut fields = vec![Field::from_pooled(self.dtype, data)?];
            if self.nullable {
                seen.as_mut_slice().iter_mut().for_each(|s| *s = u8::from(*s == VALUE));
                fields.push(Field::from_pooled(DType::Bool, seen)?);
            }
            let mut chunk = Chunk::new(&shape, fields)?;
            chunk.charge(charge.split(chunk.bytes().min(charge.bytes())));
            self.room.put(array, n, Arc::new(chunk))?;
        }
        Ok(())
    }
}
