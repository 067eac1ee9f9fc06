//! Tiles of a raster and of its overviews.
//!
//! ```text
//!   raster        overview 1     overview 2      A tile is made of the four tiles that it shrinks, so the tree of
//!   a b c         abde  cf                       tiles is walked once, depth first: memory holds one tile of each
//!   d e f         gh    i         …              level.
//!   g h i
//! ```
//! A cell of an overview is the mean of four floats without those that are masked or NaN, or the first of four integers.

use super::tile::encode;
use super::{FORMAT, Raster, refused};
use crate::answer::scratch::{Scratch, ScratchFile};
use crate::error::Error;
use crate::format::writer::output;
use std::io::Write;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// Longest side of a tile in cells, and of the smallest overview.
pub(super) const TILE: u64 = 512;
/// Sides of tiles are multiples of this.
const TILE_STEP: u64 = 16;

/// Upper bound on the bytes of encoded tiles in memory, without a directory for them.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// An encoded tile in the spill.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stored {
    pub(super) at: u64,
    pub(super) bytes: u32,
}

/// The raster, or one of its overviews.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) height: u64,
    pub(super) width: u64,
    /// Number of tiles along both axes.
    down: u64,
    across: u64,
    /// Row-major in each band.
    pub(super) tiles: Vec<Stored>,
}

/// Height and width of the tiles of a raster, and of its overviews.
pub(super) fn tile_shape(height: u64, width: u64) -> (u64, u64) {
    let side = |n: u64| n.next_multiple_of(TILE_STEP).min(TILE);
    (side(height), side(width))
}

/// Height and width of the raster and of its overviews.
pub(super) fn level_shapes(height: u64, width: u64) -> Vec<(u64, u64)> {
    let halved =
        |(h, w): &(u64, u64)| (*h > TILE || *w > TILE).then(|| (h.div_ceil(2), w.div_ceil(2)));
    std::iter::successors(Some((height, width)), halved).collect()
}

/// Encodes the tiles of all levels, the raster first. `out` is only flushed: an output that was cancelled fails.
pub(super) fn build(
    raster: &Raster<'_>,
    nodata: Option<Scalar>,
    spill: &mut Spill,
    out: &mut dyn Write,
) -> Result<Vec<Level>, Error> {
    let tile = tile_shape(raster.height, raster.width);
    let level = |(height, width): (u64, u64)| {
        let (down, across) = (height.div_ceil(tile.0), width.div_ceil(tile.1));
        let count = raster.bands.len() as u64 * down * across;
        Level { height, width, down, across, tiles: vec![Stored::default(); count as usize] }
    };
    let levels: Vec<Level> =
        level_shapes(raster.height, raster.width).into_iter().map(level).collect();
    let top = levels.len() - 1;
    let mut builder = Builder { raster, nodata, tile, levels, spill, out };
    for band in 0..raster.bands.len() {
        let root = builder.make(top, band, 0, 0)?;
        builder.store(top, band, (0, 0), root)?;
    }
    Ok(builder.levels)
}

struct Builder<'a, 'r> {
    raster: &'a Raster<'r>,
    nodata: Option<Scalar>,
    /// Height and width of a tile.
    tile: (u64, u64),
    levels: Vec<Level>,
    spill: &'a mut Spill,
    out: &'a mut dyn Write,
}

impl Builder<'_, '_> {
    /// Makes the cells of a tile, and stores all tiles below it.
    fn make(&mut self, level: usize, band: usize, y: u64, x: u64) -> Result<Vec<u8>, Error> {
        let Some(below) = level.checked_sub(1) else { return self.read(band, y, x) };
        let mut cells = self.blank();
        for (dy, dx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (y, x) = (2 * y + dy, 2 * x + dx);
            if y >= self.levels[below].down || x >= self.levels[below].across {
                continue;
            }
            let part = self.make(below, band, y, x)?;
            self.shrink(&part, self.extent(below, y, x), &mut cells, (dy, dx));
            self.store(below, band, (y, x), part)?;
        }
        Ok(cells)
    }

    /// Cells of a tile without any.
    fn blank(&self) -> Vec<u8> {
        let fill = self.nodata.unwrap_or(Scalar::zero(self.raster.dtype)).to_le_bytes();
        fill[..self.raster.dtype.size()].repeat((self.tile.0 * self.tile.1) as usize)
    }

    /// Height and width of the part of its level that a tile shows.
    fn extent(&self, level: usize, y: u64, x: u64) -> (u64, u64) {
        let of = &self.levels[level];
        let left = |n: u64, at: u64, side: u64| (n - at * side).min(side);
        (left(of.height, y, self.tile.0), left(of.width, x, self.tile.1))
    }

    /// A tile of the raster.
    fn read(&mut self, band: usize, y: u64, x: u64) -> Result<Vec<u8>, Error> {
        let size = self.raster.dtype.size();
        let (height, width) = self.extent(0, y, x);
        let (y, x) = (y * self.tile.0, x * self.tile.1);
        let row = self.tile.1 as usize * size;
        let band = &self.raster.bands[band];
        let mut tile = self.blank();
        // Windows of a tensor are rows, or parts of one.
        let rows = if width == self.raster.width { height } else { 1 };
        for at in (0..height).step_by(rows as usize) {
            let cells = band.tensor.window(&band.region([y + at, x], [rows, width]))?;
            let masked = cells.valid.as_deref();
            let all = cells.data.chunks_exact(width as usize * size).enumerate();
            for (n, from) in all {
                let to = &mut tile[(at as usize + n) * row..][..from.len()];
                to.copy_from_slice(from);
                if let (Some(valid), Some(nodata)) = (masked, self.nodata) {
                    let valid = &valid[n * width as usize..][..width as usize];
                    crate::format::fill::put(to, size, valid, nodata);
                }
            }
        }
        Ok(tile)
    }

    /// Shrinks a tile into a quarter of the tile above it.
    fn shrink(
        &self,
        part: &[u8],
        (height, width): (u64, u64),
        to: &mut [u8],
        (dy, dx): (u64, u64),
    ) {
        let size = self.raster.dtype.size();
        let row = self.tile.1 as usize;
        let first = (dy * self.tile.0 / 2) as usize * row + (dx * self.tile.1 / 2) as usize;
        let mean = mean_of(self.raster.dtype, self.nodata);
        let (height, width) = (height as usize, width as usize);
        for y in 0..height.div_ceil(2) {
            for x in 0..width.div_ceil(2) {
                let at = |dy: usize, dx: usize| {
                    let (y, x) = (2 * y + dy, 2 * x + dx);
                    (y < height && x < width).then(|| &part[(y * row + x) * size..][..size])
                };
                let to = &mut to[(first + y * row + x) * size..][..size];
                match (&mean, at(0, 0)) {
                    (Some(mean), _) => {
                        mean([at(0, 0), at(0, 1), at(1, 0), at(1, 1)], to);
                    }
                    (None, Some(cell)) => to.copy_from_slice(cell),
                    (None, None) => {}
                }
            }
        }
    }

    fn store(
        &mut self,
        level: usize,
        band: usize,
        (y, x): (u64, u64),
        cells: Vec<u8>,
    ) -> Result<(), Error> {
        let encoded = encode(self.raster.dtype, self.tile.1 as usize, cells).map_err(output)?;
        let bytes = u32::try_from(encoded.len())
            .map_err(|_| Error::Internal { what: format!("a tile of {} bytes", encoded.len()) })?;
        let at = self.spill.append(&encoded)?;
        let of = &mut self.levels[level];
        let number = (band as u64 * of.down + y) * of.across + x;
        of.tiles[number as usize] = Stored { at, bytes };
        self.out.flush().map_err(output)
    }
}

/// Writes the mean of up to four floats; `None` for other types.
type Mean = Box<dyn Fn([Option<&[u8]>; 4], &mut [u8])>;

fn mean_of(dtype: DType, nodata: Option<Scalar>) -> Option<Mean> {
    if !dtype.is_float() {
        return None;
    }
    let is_data = move |v: &f64| !v.is_nan() && nodata.is_none_or(|n| n.as_f64() != *v);
    let none = nodata.unwrap_or(Scalar::from_f64(dtype, f64::NAN));
    Some(Box::new(move |cells, to| {
        let value = |cell: &[u8]| Scalar::from_le_bytes(dtype, cell).as_f64();
        let data = cells.into_iter().flatten().map(value).filter(is_data);
        let (sum, n) = data.fold((0.0, 0u8), |(sum, n), v| (sum + v, n + 1));
        let mean = match n {
            0 => none,
            n => Scalar::from_f64(dtype, sum / f64::from(n)),
        };
        to.copy_from_slice(&mean.to_le_bytes()[..to.len()]);
    }))
}

/// Encoded tiles in the order in which they are made.
pub(super) enum Spill {
    File(ScratchFile),
    Memory(Vec<u8>),
}

impl Spill {
    /// In a file of a directory, if there is one.
    pub(super) fn new(scratch: Option<&Arc<Scratch>>) -> Result<Self, Error> {
        Ok(match scratch {
            Some(scratch) => Spill::File(scratch.file()?),
            None => Spill::Memory(Vec::new()),
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        match self {
            Spill::File(file) => file.append(&[bytes]),
            Spill::Memory(all) if all.len() + bytes.len() > MEMORY_BYTES_MAX => Err(refused(
                format!("its tiles have more than {MEMORY_BYTES_MAX} bytes"),
                "write it with COPY … STORED AS TIFF",
            )),
            Spill::Memory(all) => {
                all.extend_from_slice(bytes);
                Ok((all.len() - bytes.len()) as u64)
            }
        }
    }

    pub(super) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), Error> {
        match self {
            Spill::File(file) => file.read_at(at, to),
            Spill::Memory(all) => {
                let from = all.get(at as usize..).and_then(|rest| rest.get(..to.len()));
                let from = from.ok_or_else(|| Error::Internal {
                    what: format!("a tile of a {FORMAT} is missing"),
                })?;
                to.copy_from_slice(from);
                Ok(())
            }
        }
    }
}
