//! A result as it was computed: chunk by chunk, in memory or in a file.

use super::Tensor;
use super::piece::Piece;
use super::scratch::ScratchFile;
use super::window::{Cells, Head, Windows, number, scatter};
use crate::error::Error;
use arrow::buffer::{Buffer, MutableBuffer};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tessera_exec::chunk::{Chunk, fill_masked};
use tessera_exec::error::Error as StageError;
use tessera_exec::pool::{Pool, PooledBuf};
use tessera_exec::quota::Charge;
use tessera_exec::store::{FinishedChunk, Resident};
use tessera_frontend::Labels;
use tessera_planner::grid::Grid;
use tessera_planner::region::Region;

/// A labelled tensor whose cells are where the query left them. Those in memory stay charged to the pool's quota.
#[derive(Debug, Clone)]
pub struct Chunked {
    pub(crate) labels: Labels,
    pub(crate) grid: Grid,
    pub(crate) chunks: Chunks,
    pub(crate) pool: Arc<Pool>,
}

/// The chunks of a tensor, in row-major order of its grid.
#[derive(Debug, Clone)]
pub(crate) enum Chunks {
    /// In memory; they may be spilled.
    Resident(Arc<Resident>),
    /// In a file, with the offset of each chunk: its cells, then a validity byte for each if the tensor is nullable.
    File(Arc<ScratchFile>, Vec<u64>),
    /// In a file as one piece, at this offset: the cells, then a validity byte for each if the tensor is nullable.
    Dense(Arc<ScratchFile>, u64),
    /// In memory, in one piece.
    Piece(Arc<Piece>),
}

impl Chunked {
    /// The cells in one piece. A tensor of one chunk in memory is not copied.
    ///
    /// # Errors
    /// `memory_exceeded` if the quota has no room for the copy.
    pub fn whole(self) -> Result<Tensor, Error> {
        let (data, valid) = match &self.chunks {
            Chunks::Resident(array) if let Some(chunk) = only_chunk(array) => {
                let valid = match self.labels.nullable {
                    true => Some(chunk.held(1).map_err(Error::stage)?),
                    false => None,
                };
                (chunk.held(0).map_err(Error::stage)?, valid)
            }
            Chunks::Piece(piece) => (piece.held(0), piece.valid.as_ref().map(|_| piece.held(1))),
            Chunks::Resident(_) | Chunks::File(..) | Chunks::Dense(..) => {
                let charge = self.pool.quota().account().reserve(self.memory_bytes());
                let charge = charge.map_err(Error::stage)?;
                let cells = self.window(&Region::whole(&self.grid.shape()))?;
                let charge = Arc::new(charge);
                (held(cells.data, &charge), cells.valid.map(|v| held(v, &charge)))
            }
        };
        let l = self.labels;
        let whole = Tensor::new(l.name, l.dtype, l.dims, self.grid, data, valid, l.attrs)?;
        Ok(whole.in_dataset(l.dataset, l.is_coordinate))
    }

    /// The cells in memory of the caller's own, and a validity byte for each if any cell is masked. Masked floats are NaN,
    /// masked datetimes NaT. A piece that no other answer has is not copied; chunks are freed as they are copied, unless
    /// another answer has them. So the tensor is in memory once; then it has no cells any more.
    ///
    /// # Errors
    /// `memory_exceeded` if the quota has no room for the cells that are not freed; a file that cannot be read.
    pub fn take_cells(&mut self) -> Result<(PooledBuf, Option<PooledBuf>), Error> {
        if let Chunks::Piece(piece) = &mut self.chunks
            && let Some(piece) = Arc::get_mut(piece)
        {
            piece.charge = None;
            let data = std::mem::replace(&mut piece.data, self.pool.take(0));
            return Ok((data, piece.valid.take().filter(|_| piece.is_masked)));
        }
        let n = self.grid.shape().iter().product::<u64>() as usize;
        let sole = match &self.chunks {
            Chunks::Resident(array) if Arc::strong_count(array) == 1 => Some(array),
            _ => None,
        };
        let charge = if sole.is_some() { 0 } else { self.memory_bytes() };
        let _charge = self.pool.quota().account().reserve(charge).map_err(Error::stage)?;
        let take = |n| self.pool.try_take(n).map_err(|e| Error::stage(StageError::from(e)));
        let mut data = take(n * self.labels.dtype.size())?;
        let mut valid = self.labels.nullable.then(|| take(n)).transpose()?;
        let (cells, mut mask) = (data.as_mut_slice(), valid.as_mut().map(PooledBuf::as_mut_slice));
        let whole = Region::whole(&self.grid.shape());
        match sole {
            None => self.fill(&whole, cells, mask.as_deref_mut())?,
            Some(array) => {
                for number in 0..self.grid.count() {
                    self.part(&self.grid.unravel(number), &whole, &mut |field, common, from| {
                        self.put(field, from, common, &whole, cells, mask.as_deref_mut());
                    })?;
                    drop(array.take(number));
                }
            }
        }
        let valid = valid.filter(|valid| valid.as_slice().contains(&0));
        if let Some(valid) = &valid {
            fill_masked(self.labels.dtype, data.as_mut_slice(), valid.as_slice());
        }
        Ok((data, valid))
    }

    /// The cells of any box, window by window.
    pub(crate) fn cells(&self, region: &Region) -> Result<Cells, Error> {
        let shape = self.grid.shape();
        let is_whole = |a: &usize| region.start[*a] == 0 && region.end[*a] == shape[*a];
        let inner = (0..shape.len()).rev().take_while(is_whole).count();
        // A run of consecutive cells covers the axes that the box spans, and one more.
        let outer = shape.len().saturating_sub(inner + 1);
        let rows = Region { start: region.start[..outer].into(), end: region.end[..outer].into() };
        if rows.cells() == 1 {
            return self.window(region);
        }
        let mut data = MutableBuffer::new(region.cells() as usize * self.labels.dtype.size());
        let mut valid = self.labels.nullable.then(|| MutableBuffer::new(region.cells() as usize));
        let mut run = region.clone();
        for i in 0..rows.cells() {
            let mut rest = i;
            for a in (0..outer).rev() {
                run.start[a] = rows.start[a] + rest % rows.len(a);
                run.end[a] = run.start[a] + 1;
                rest /= rows.len(a);
            }
            let cells = self.window(&run)?;
            data.extend_from_slice(&cells.data);
            if let (Some(to), Some(from)) = (&mut valid, &cells.valid) {
                to.extend_from_slice(from);
            }
        }
        let dtype = self.labels.dtype;
        Ok(Cells { dtype, data: data.into(), valid: valid.map(Into::into) })
    }

    /// Copies a window to `data`, and its validity to `valid`.
    fn fill(
        &self,
        region: &Region,
        data: &mut [u8],
        mut valid: Option<&mut [u8]>,
    ) -> Result<(), Error> {
        if let Chunks::Piece(piece) = &self.chunks {
            let (first, size) =
                (number(&region.start, &self.grid.shape()), self.labels.dtype.size());
            let first = first as usize;
            data.copy_from_slice(&piece.data.as_slice()[first * size..][..data.len()]);
            if let (Some(to), Some(from)) = (valid, &piece.valid) {
                to.copy_from_slice(&from.as_slice()[first..][..to.len()]);
            }
            return Ok(());
        }
        if let Chunks::Dense(file, start) = &self.chunks {
            let (shape, size) = (self.grid.shape(), self.labels.dtype.size() as u64);
            let first = number(&region.start, &shape);
            file.read_at(start + first * size, data)?;
            if let Some(valid) = valid {
                let all: u64 = shape.iter().product();
                file.read_at(start + all * size + first, valid)?;
            }
            return Ok(());
        }
        let touched = self.grid.overlapping(region);
        let counts = touched.shape();
        let mut index = touched.start.clone();
        for _ in 0..counts.iter().product::<u64>() {
            self.part(&index, region, &mut |field, common, cells| {
                self.put(field, cells, common, region, data, valid.as_deref_mut());
            })?;
            for a in (0..index.len()).rev() {
                index[a] += 1;
                if index[a] < touched.end[a] {
                    break;
                }
                index[a] = touched.start[a];
            }
        }
        Ok(())
    }

    /// Copies the cells of a field in a box to their places in `region`.
    fn put(
        &self,
        field: usize,
        cells: &[u8],
        part: &Region,
        region: &Region,
        data: &mut [u8],
        valid: Option<&mut [u8]>,
    ) {
        match (field, valid) {
            (0, _) => scatter(cells, part, region, self.labels.dtype.size(), data),
            (_, Some(valid)) => scatter(cells, part, region, 1, valid),
            _ => {}
        }
    }

    /// Bytes of all cells and their masks, in one piece.
    fn memory_bytes(&self) -> u64 {
        let cell = self.labels.dtype.size() as u64 + u64::from(self.labels.nullable);
        self.grid.shape().iter().product::<u64>().saturating_mul(cell)
    }

    /// Bytes that the tensor holds in memory, and on disk.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        match &self.chunks {
            Chunks::Resident(array) => array.places(),
            Chunks::Piece(piece) => (piece.bytes(), 0),
            Chunks::File(..) | Chunks::Dense(..) => (0, self.memory_bytes()),
        }
    }

    /// Calls `put` with the cells that a chunk shares with a window, for each field: the field, the common box, its
    /// cells.
    fn part(
        &self,
        index: &[u64],
        window: &Region,
        put: &mut dyn FnMut(usize, &Region, &[u8]),
    ) -> Result<(), Error> {
        let own = self.grid.region(index);
        let common = match own.intersect(window) {
            Some(common) => common,
            None if own.rank() == 0 => own.clone(),
            None => return Ok(()),
        };
        // A window has single positions, then a range, then whole axes, so the cells it shares with a chunk are one run
        // in the window.
        let offset: Vec<u64> = common.start.iter().zip(&own.start).map(|(c, o)| c - o).collect();
        let first = number(&offset, &own.shape());
        let n = common.cells();
        let chunk_number = self.grid.ravel(index) as usize;
        let sizes = [self.labels.dtype.size(), 1];
        let fields = 1 + usize::from(self.labels.nullable);
        match &self.chunks {
            Chunks::Resident(array) => match array.held(chunk_number as u64).ok_or_else(missing)? {
                FinishedChunk::Memory(chunk) => {
                    for (f, &size) in sizes.iter().enumerate().take(fields) {
                        let bytes = chunk.field(f).map_err(Error::stage)?.buffer().as_slice();
                        let (from, to) = (first as usize * size, (first + n) as usize * size);
                        put(f, &common, bytes.get(from..to).ok_or_else(missing)?);
                    }
                }
                FinishedChunk::File(file) => {
                    let read = AtomicU64::new(0);
                    let mut reader = file.reader(&read).map_err(Error::stage)?;
                    let mut buffer = Vec::new();
                    for (f, &size) in sizes.iter().enumerate().take(fields) {
                        buffer.resize(n as usize * size, 0);
                        let from: (i64, &[i64]) = (first as i64, &[1]);
                        let copied = reader.copy(f, &[n], from, &mut buffer, (0, &[1]));
                        copied.map_err(Error::stage)?;
                        put(f, &common, &buffer);
                    }
                }
            },
            Chunks::File(file, starts) => {
                let start = *starts.get(chunk_number).ok_or_else(missing)?;
                let mut at = start;
                let mut buffer = Vec::new();
                for (f, &size) in sizes.iter().enumerate().take(fields) {
                    buffer.resize(n as usize * size, 0);
                    file.read_at(at + first * size as u64, &mut buffer)?;
                    put(f, &common, &buffer);
                    at += own.cells() * size as u64;
                }
            }
            // Windows of a tensor in one piece are read without chunks.
            Chunks::Dense(..) | Chunks::Piece(_) => return Err(missing()),
        }
        Ok(())
    }
}

impl Windows for Chunked {
    fn head(&self) -> Head<'_> {
        let l = &self.labels;
        Head {
            name: &l.name,
            named: l.named,
            dtype: l.dtype,
            dims: &l.dims,
            grid: &self.grid,
            nullable: l.nullable,
            attrs: &l.attrs,
            is_coordinate: l.is_coordinate,
            dataset: &l.dataset,
        }
    }

    fn window(&self, region: &Region) -> Result<Cells, Error> {
        let (dtype, n) = (self.labels.dtype, region.cells() as usize);
        let (first, size) = (number(&region.start, &self.grid.shape()) as usize, dtype.size());
        let part = |held: Buffer, size: usize| held.slice_with_length(first * size, n * size);
        match &self.chunks {
            Chunks::Resident(array) if let Some(chunk) = only_chunk(array) => {
                let held = |field| chunk.held(field).map_err(Error::stage);
                let valid = self.labels.nullable.then(|| held(1)).transpose()?;
                let valid = valid.map(|valid| part(valid, 1));
                return Ok(Cells { dtype, data: part(held(0)?, size), valid });
            }
            Chunks::Piece(piece) => {
                let valid = piece.valid.as_ref().map(|_| part(piece.held(1), 1));
                return Ok(Cells { dtype, data: part(piece.held(0), size), valid });
            }
            _ => {}
        }
        let mut data = MutableBuffer::from_len_zeroed(n * dtype.size());
        let mut valid = self.labels.nullable.then(|| MutableBuffer::from_len_zeroed(n));
        self.fill(region, &mut data, valid.as_deref_mut())?;
        Ok(Cells { dtype, data: data.into(), valid: valid.map(Into::into) })
    }

    fn has_chunks(&self) -> bool {
        match &self.chunks {
            Chunks::Resident(array) => only_chunk(array).is_none(),
            Chunks::File(..) => true,
            Chunks::Dense(..) | Chunks::Piece(_) => false,
        }
    }
}

/// The chunk of a single-chunk array, if it is in memory.
fn only_chunk(array: &Resident) -> Option<Arc<Chunk>> {
    match (array.grid.count(), array.held(0)) {
        (1, Some(FinishedChunk::Memory(chunk))) => Some(chunk),
        _ => None,
    }
}

/// A buffer that holds a charge while it lives.
fn held(buffer: Buffer, charge: &Arc<Charge>) -> Buffer {
    struct ChargedBytes(Buffer, Arc<Charge>);
    impl AsRef<[u8]> for ChargedBytes {
        fn as_ref(&self) -> &[u8] {
            debug_assert!(self.1.bytes() >= self.0.len() as u64);
            &self.0
        }
    }
    Buffer::from(Bytes::from_owner(ChargedBytes(buffer, charge.clone())))
}

fn missing() -> Error {
    Error::Internal { what: "a chunk of a result is missing".into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::super::scratch::Scratch;
    use super::super::window::windows;
    use super::*;
    use tessera_exec::chunk::Field;
    use tessera_exec::quota::Quota;
    use tessera_exec::store::Store;
    use tessera_planner::catalog::DimLabel;
    use tessera_planner::dtype::DType;

    /// `[5, 7]` cells that are their numbers, in chunks of `[2, 3]`, each seventh masked.
    fn chunks(grid: &Grid) -> Vec<Arc<Chunk>> {
        (0..grid.count())
            .map(|n| {
                let r = grid.region(&grid.unravel(n));
                let (mut cells, mut valid) = (Vec::new(), Vec::new());
                for y in r.start[0]..r.end[0] {
                    for x in r.start[1]..r.end[1] {
                        cells.push((y * 7 + x) as i32);
                        valid.push(u8::from((y * 7 + x) % 7 != 0));
                    }
                }
                let fields = [
                    Field::from_vec(DType::Int32, cells).unwrap(),
                    Field::from_vec(DType::Bool, valid).unwrap(),
                ];
                Arc::new(Chunk::new(&r.shape(), fields).unwrap())
            })
            .collect()
    }

    fn chunked(grid: &Grid, chunks: Chunks, quota_bytes: u64) -> Chunked {
        let pool = Pool::new(Quota::new(quota_bytes), 0);
        let none = DimLabel { name: None, coord: None };
        Chunked {
            labels: Labels {
                name: "x".into(),
                named: true,
                dims: vec![none.clone(), none],
                shape: vec![5, 7],
                dtype: DType::Int32,
                nullable: true,
                attrs: Default::default(),
                is_coordinate: false,
                dataset: Default::default(),
            },
            grid: grid.clone(),
            chunks,
            pool,
        }
    }

    #[test]
    fn windows_are_the_same_from_memory_and_from_a_file() {
        let grid = Grid::regular(&[5, 7], &[2, 3]);
        let memory = chunks(&grid);
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(Scratch::new(Store::open(dir.path(), 1 << 20)).file().unwrap());
        let starts = memory
            .iter()
            .map(|c| {
                let field = |i| c.field(i).unwrap().buffer().as_slice();
                file.append(&[field(0), field(1)]).unwrap()
            })
            .collect();
        // Every second chunk of the array was spilled.
        let store = Store::open(dir.path(), 1 << 20);
        let array = Resident::new(grid.clone(), memory);
        for n in (0..grid.count()).step_by(2) {
            let Some(FinishedChunk::Memory(chunk)) = array.held(n) else {
                panic!("{n} is not here")
            };
            let space = store.reserve(&chunk).unwrap();
            array.put_held(n, FinishedChunk::File(store.write(&chunk, space).unwrap()));
        }
        let all = [
            chunked(&grid, Chunks::Resident(Resident::new(grid.clone(), chunks(&grid))), 1 << 20),
            chunked(&grid, Chunks::Resident(array), 1 << 20),
            chunked(&grid, Chunks::File(file, starts), 1 << 20),
        ];
        for c in all {
            for cells_max in [1, 3, 7, 15, 100] {
                let mut at = 0;
                for w in windows(&[5, 7], cells_max) {
                    let cells = c.window(&w).unwrap();
                    assert_eq!(cells.len() as u64, w.cells());
                    let numbers: Vec<i32> = cells.data.typed_data::<i32>().to_vec();
                    let want: Vec<i32> = (at..at + cells.len() as i32).collect();
                    assert_eq!(numbers, want);
                    let valid = cells.valid.clone().unwrap();
                    assert!(
                        numbers.iter().zip(valid.iter()).all(|(n, v)| (n % 7 != 0) == (*v != 0))
                    );
                    at += cells.len() as i32;
                }
            }
            let quota = c.pool.quota().clone();
            let (own, valid) = c.clone().take_cells().unwrap();
            let whole = c.whole().unwrap();
            assert_eq!(own.as_slice(), whole.data().as_slice());
            assert_eq!(valid.unwrap().as_slice(), whole.valid().unwrap().as_slice());
            assert_eq!(whole.data().typed_data::<i32>(), (0..35).collect::<Vec<_>>());
            assert_eq!(quota.used(), 175);
            drop(whole);
            assert_eq!(quota.used(), 0);
        }
    }

    #[test]
    fn boxes_are_the_same_from_one_chunk_and_from_many() {
        for grid in [Grid::regular(&[5, 7], &[2, 3]), Grid::single(&[5, 7])] {
            let c = chunked(
                &grid,
                Chunks::Resident(Resident::new(grid.clone(), chunks(&grid))),
                1 << 20,
            );
            for (start, end, want) in [
                ([1, 2], [4, 4], vec![9, 10, 16, 17, 23, 24]),
                ([4, 0], [5, 7], (28..35).collect()),
                ([0, 6], [2, 7], vec![6, 13]),
            ] {
                let region = Region { start: start.as_slice().into(), end: end.as_slice().into() };
                let cells = c.cells(&region).unwrap();
                assert_eq!(cells.data.typed_data::<i32>(), want);
                let valid: Vec<u8> = want.iter().map(|n| u8::from(n % 7 != 0)).collect();
                assert_eq!(cells.valid.unwrap().as_slice(), valid);
            }
        }
    }

    #[test]
    fn a_whole_that_does_not_fit_is_refused() {
        let grid = Grid::regular(&[5, 7], &[2, 3]);
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(Scratch::new(Store::open(dir.path(), 1 << 20)).file().unwrap());
        let c = chunked(&grid, Chunks::File(file, vec![0; 9]), 174);
        assert_eq!(c.whole().unwrap_err().code(), "memory_exceeded");
    }
}
