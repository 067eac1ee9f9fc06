//! A result in one piece of memory, which the threads that compute its chunks fill.
//!
//! If the cells of each chunk are consecutive in the result, an operand computes its chunk in the memory of the result.
//! Other chunks are copied to their places.

use super::window::{number, runs, scatter, windows};
use arrow::buffer::Buffer;
use bytes::Bytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tessera_exec::chunk::{Chunk, fill_masked};
use tessera_exec::error::Error;
use tessera_exec::pool::{Pool, PooledBuf, SharedBuf};
use tessera_exec::quota::Charge;
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::Region;

/// Bytes of the parts that threads lock.
const BAND_BYTES: u64 = 1 << 20;
/// Upper bound on the parts of a tensor.
const BANDS_MAX: u64 = 4096;

/// The cells of a tensor in row-major order, and a validity byte for each if cells may be masked. Masked floats are NaN,
/// masked datetimes NaT.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(super) data: PooledBuf,
    pub(super) valid: Option<PooledBuf>,
    /// Is a cell masked?
    pub(super) is_masked: bool,
    /// Released when the memory gets another owner.
    pub(super) charge: Option<Charge>,
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        (self.data.len() + self.valid.as_ref().map_or(0, PooledBuf::len)) as u64
    }

    /// Bytes of the cells (field 0) or of their validity, without a copy. They keep the piece alive.
    pub(super) fn held(self: &Arc<Self>, field: usize) -> Buffer {
        struct FieldBytes(Arc<Piece>, usize);
        impl AsRef<[u8]> for FieldBytes {
            fn as_ref(&self) -> &[u8] {
                match (self.1, &self.0.valid) {
                    (0, _) => self.0.data.as_slice(),
                    (_, valid) => valid.as_ref().map_or(&[], PooledBuf::as_slice),
                }
            }
        }
        Buffer::from(Bytes::from_owner(FieldBytes(self.clone(), field)))
    }
}

/// A piece whose chunks are still computed.
#[derive(Debug)]
pub(crate) struct Filling {
    grid: Grid,
    dtype: DType,
    /// The boxes that threads lock, in row-major order, each with the number of its first cell.
    bands: Vec<(u64, Region)>,
    /// Is each chunk a band?
    is_by_chunk: bool,
    data: SharedBuf,
    valid: Option<SharedBuf>,
    charge: Mutex<Option<Charge>>,
    is_masked: AtomicBool,
    /// Cells that have not come.
    missing: AtomicU64,
}

impl Filling {
    /// Bytes of a tensor in one piece.
    pub(crate) fn bytes(grid: &Grid, dtype: DType, nullable: bool) -> u64 {
        let cell = dtype.size() as u64 + u64::from(nullable);
        grid.shape().iter().product::<u64>().saturating_mul(cell)
    }

    /// A piece without cells, for which `charge` was reserved.
    ///
    /// # Errors
    /// The system refuses memory.
    pub(crate) fn new(
        grid: Grid,
        dtype: DType,
        nullable: bool,
        pool: &Arc<Pool>,
        charge: Charge,
    ) -> Result<Self, Error> {
        let shape = grid.shape();
        let cells: u64 = shape.iter().product();
        let is_by_chunk = grid.count() <= BANDS_MAX && is_in_runs(&grid);
        let mut first = 0;
        let numbered = |region: Region| {
            let start = first;
            first += region.cells();
            (start, region)
        };
        let bands: Vec<(u64, Region)> = if is_by_chunk {
            (0..grid.count()).map(|n| grid.region(&grid.unravel(n))).map(numbered).collect()
        } else {
            let band = (BAND_BYTES / dtype.size() as u64).max(cells.div_ceil(BANDS_MAX));
            windows(&shape, band).map(numbered).collect()
        };
        let shared = |size: usize| {
            let ends = bands.iter().map(|(start, region)| (start + region.cells()) as usize * size);
            Ok::<_, Error>(SharedBuf::new(pool.try_take(cells as usize * size)?, ends))
        };
        Ok(Filling {
            dtype,
            data: shared(dtype.size())?,
            valid: nullable.then(|| shared(1)).transpose()?,
            charge: Mutex::new(Some(charge)),
            is_masked: AtomicBool::new(false),
            missing: AtomicU64::new(cells),
            bands,
            is_by_chunk,
            grid,
        })
    }

    /// The memory of a chunk's cells; `None` if these do not follow each other in the result.
    pub(crate) fn place(&self, index: &[u64]) -> Option<PooledBuf> {
        let band = self.grid.ravel(self.own_index(index)) as usize;
        if self.is_by_chunk { self.data.lend(band) } else { None }
    }

    /// The index of a chunk along the axes of the tensor. A product's index has more: last axes of length 1, one for
    /// each summed axis.
    fn own_index<'a>(&self, index: &'a [u64]) -> &'a [u64] {
        &index[..self.grid.axes.len().min(index.len())]
    }

    /// Copies a chunk to its place, unless it was made there.
    pub(crate) fn put<'a>(&self, index: &[u64], chunk: &'a Chunk) -> Result<(), Error> {
        let index = self.own_index(index);
        let own = self.grid.region(index);
        let shape = self.grid.shape();
        let field = |i: usize| chunk.field(i).map(|f| f.buffer().as_slice());
        let (data, valid) = (field(0)?, self.valid.as_ref().map(|_| field(1)).transpose()?);
        let in_place = self.is_by_chunk && self.data.holds(self.grid.ravel(index) as usize, data);
        let last: Vec<u64> = own.end.iter().map(|end| end.saturating_sub(1)).collect();
        let band_of = |cell: &[u64]| {
            let cell = number(cell, &shape);
            self.bands.partition_point(|(start, _)| *start <= cell).saturating_sub(1)
        };
        let (from, to) = (band_of(&own.start), band_of(&last) + 1);
        // Chunks beside each other share all their bands: their threads begin at different ones.
        let turn = self.grid.ravel(index) as usize % (to - from).max(1);
        for band in (from + turn..to).chain(from..from + turn) {
            let Some((_, region)) = self.bands.get(band) else { break };
            let Some(common) = own.intersect(region) else { continue };
            // A band has single positions, then a range, then whole axes, so these cells are one run of the chunk.
            let offset: Vec<u64> =
                common.start.iter().zip(&own.start).map(|(c, o)| c - o).collect();
            let first = number(&offset, &own.shape()) as usize;
            let n = common.cells() as usize;
            let part = |cells: &'a [u8], size: usize| {
                cells.get(first * size..(first + n) * size).ok_or_else(|| Error::Broken {
                    what: "a chunk of a result is too short".into(),
                })
            };
            let size = self.dtype.size();
            let data = part(data, size)?;
            let valid = valid.map(|valid| part(valid, 1)).transpose()?;
            let masked = valid.filter(|valid| valid.contains(&0));
            // A chunk that was computed in place already has NaN in its masked cells.
            let mut written = in_place
                || self.data.write(band, |to| {
                    scatter(data, &common, region, size, to);
                    if let Some(valid) = masked {
                        runs(&common, region, &mut |cell, at, n| {
                            fill_masked(
                                self.dtype,
                                &mut to[at * size..][..n * size],
                                &valid[cell..][..n],
                            );
                        });
                    }
                });
            if let (Some(valid), Some(into)) = (valid, &self.valid) {
                written &= into.write(band, |to| scatter(valid, &common, region, 1, to));
            }
            if written {
                self.missing.fetch_sub(n as u64, Relaxed);
            }
            if masked.is_some() {
                self.is_masked.store(true, Relaxed);
            }
        }
        Ok(())
    }

    /// The piece.
    ///
    /// # Errors
    /// Cells are missing, the piece was taken before, or another owner still holds a chunk: an internal error.
    pub(crate) fn finish(&self) -> Result<Piece, Error> {
        if self.missing.load(Relaxed) != 0 {
            return Err(Error::Broken { what: "cells of a result are missing".into() });
        }
        let in_use =
            || Error::Broken { what: "a chunk of a result is in use after its end".into() };
        let data = self.data.take().ok_or_else(in_use)?;
        let valid = self.valid.as_ref().map(|v| v.take().ok_or_else(in_use)).transpose()?;
        let charge = self.charge.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(Piece { data, valid, is_masked: self.is_masked.load(Relaxed), charge })
    }
}

/// True if the cells of each chunk are consecutive in the tensor, and chunks follow each other by number: all axes
/// before the last one that is cut are cut into single positions.
fn is_in_runs(grid: &Grid) -> bool {
    let shape = grid.shape();
    let cut = grid.axes.iter().rposition(|axis| axis.count() > 1).unwrap_or(0);
    grid.axes.iter().zip(&shape).take(cut).all(|(axis, len)| axis.count() == *len)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_exec::chunk::Field;
    use tessera_exec::quota::Quota;

    /// Cells that are their numbers, each seventh masked.
    fn chunk(grid: &Grid, index: &[u64]) -> Chunk {
        let own = grid.region(index);
        let whole = grid.shape();
        let cells = (0..own.cells()).map(|n| {
            let (mut rest, mut cell) = (n, own.start.clone());
            for a in (0..cell.len()).rev() {
                cell[a] += rest % own.len(a);
                rest /= own.len(a);
            }
            number(&cell, &whole) as f64
        });
        let cells: Vec<f64> = cells.collect();
        let valid = cells.iter().map(|n| u8::from(n % 7.0 != 0.0)).collect();
        let fields = [
            Field::from_vec(DType::Float64, cells).unwrap(),
            Field::from_vec(DType::Bool, valid).unwrap(),
        ];
        Chunk::new(&own.shape(), fields).unwrap()
    }

    #[test]
    fn chunks_of_several_threads_make_one_piece() {
        let quota = Quota::new(64 << 20);
        let pool = Pool::new(quota.clone(), 0);
        // The second has several bands for a chunk and several chunks for a band.
        for (shape, chunks) in [
            (&[5, 7][..], &[2, 3][..]),
            (&[3, 700, 300], &[2, 33, 300]),
            (&[300_000], &[1000]),
            (&[2, 200_000], &[2, 7000]),
            (&[4, 1], &[1, 1]),
        ] {
            let grid = Grid::regular(shape, chunks);
            let charge =
                quota.account().reserve(Filling::bytes(&grid, DType::Float64, true)).unwrap();
            let filling = Filling::new(grid.clone(), DType::Float64, true, &pool, charge).unwrap();
            let next = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        loop {
                            let n = next.fetch_add(1, Relaxed);
                            if n >= grid.count() {
                                break;
                            }
                            let index = grid.unravel(n);
                            filling.put(&index, &chunk(&grid, &index)).unwrap();
                        }
                    });
                }
            });
            let cells: u64 = shape.iter().product();
            let piece = Arc::new(filling.finish().unwrap());
            let is_right = |(i, v): (usize, &f64)| {
                if i % 7 == 0 { v.is_nan() } else { *v == i as f64 }
            };
            assert!(piece.data.typed::<f64>().iter().enumerate().all(is_right), "{shape:?}");
            assert!(piece.is_masked);
            let valid = piece.held(1);
            assert!(valid.iter().enumerate().all(|(i, v)| (i % 7 != 0) == (*v != 0)), "{shape:?}");
            assert_eq!((quota.used(), piece.bytes()), (cells * 9, cells * 9));
            assert_eq!(piece.held(0).len() as u64, cells * 8);
        }
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn chunks_that_are_runs_are_made_in_their_places() {
        let quota = Quota::new(64 << 20);
        let pool = Pool::new(quota.clone(), 0);
        for (shape, chunks, runs) in [
            (&[5, 7][..], &[2, 7][..], true),
            (&[3, 70, 30], &[1, 33, 30], true),
            (&[3, 1, 70, 30], &[1, 1, 1, 30], true),
            (&[1000], &[33], true),
            (&[3, 70, 30], &[2, 33, 30], false),
            (&[3, 70, 30], &[1, 33, 20], false),
            (&[2, 7], &[2, 3], false),
        ] {
            let grid = Grid::regular(shape, chunks);
            let cells: u64 = shape.iter().product();
            let charge = quota.account().nothing();
            let filling = Filling::new(grid.clone(), DType::Int32, false, &pool, charge).unwrap();
            for n in 0..grid.count() {
                let index = grid.unravel(n);
                let numbers = chunk(&grid, &index);
                let cells = numbers.field(0).unwrap().values::<f64>().unwrap().iter();
                let cells: Vec<i32> = cells.map(|cell| *cell as i32).collect();
                // The index of a product.
                let index: Vec<u64> = index.iter().copied().chain([0]).collect();
                let place = filling.place(&index);
                assert_eq!(place.is_some(), runs, "{shape:?} {chunks:?}");
                // Each third is made elsewhere.
                let field = match place.filter(|_| n % 3 != 2) {
                    Some(mut place) => {
                        place.typed_mut::<i32>().copy_from_slice(&cells);
                        Field::from_pooled(DType::Int32, place).unwrap()
                    }
                    None => Field::from_vec(DType::Int32, cells).unwrap(),
                };
                let own = grid.region(&grid.unravel(n)).shape();
                filling.put(&index, &Chunk::new(&own, [field]).unwrap()).unwrap();
            }
            let piece = filling.finish().unwrap();
            let is_right = |(i, v): (usize, &i32)| *v == i as i32;
            assert_eq!(piece.data.len() as u64, cells * 4);
            assert!(piece.data.typed().iter().enumerate().all(is_right), "{shape:?} {chunks:?}");
        }
    }

    #[test]
    fn a_piece_without_a_chunk_is_an_error() {
        let quota = Quota::new(1 << 20);
        let pool = Pool::new(quota.clone(), 0);
        let grid = Grid::regular(&[4], &[2]);
        let filling =
            Filling::new(grid.clone(), DType::Float64, true, &pool, quota.account().nothing())
                .unwrap();
        filling.put(&grid.unravel(1), &chunk(&grid, &grid.unravel(1))).unwrap();
        assert_eq!(filling.finish().unwrap_err().code(), "internal");
        let short = Chunk::from_vec(&[1], vec![7.0f64]).unwrap();
        assert!(filling.put(&grid.unravel(0), &short).is_err());
    }
}
