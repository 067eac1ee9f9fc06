//! Decodes a tile or strip: bits in order, compression, predictor, byte order, one plane per band.
//!
//! ```text
//!   bytes ─▶ bit order ─▶ codec ─▶ rows of (a b c)(a b c)… ─▶ predictor, byte order ─▶ a a … b b … c c …
//! ```

use super::{codecs, jpeg, lzw};
use crate::formats::filters::Filter;
use crate::source::cells::swap_bytes;
use crate::source::unpack::{at_least, forget_large};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// A decoded segment whose cells are not yet in place.
    static PIXELS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A compression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Codec {
    None,
    Lzw,
    Deflate,
    PackBits,
    Zstd,
    /// With the tables that all segments share; three components may be YCbCr and become RGB.
    Jpeg {
        tables: Arc<[u8]>,
        is_ycc: bool,
    },
}

/// A transformation of rows before compression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Predictor {
    None,
    /// Differences from the pixel to the left.
    Horizontal,
    /// Differences of bytes, where all first bytes of the floats of a row precede all second ones.
    Float,
}

/// The form of a tile or strip.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Segment {
    pub(super) codec: Codec,
    pub(super) predictor: Predictor,
    /// True if the lowest bit of a byte comes first.
    pub(super) is_reversed: bool,
    pub(super) big_endian: bool,
    /// Bits of a cell in the file.
    pub(super) bits: u32,
    /// Bytes of a decoded cell.
    pub(super) size: usize,
    /// Cells of a pixel.
    pub(super) samples: usize,
    /// Pixels of a row.
    pub(super) width: usize,
    pub(super) rows: usize,
    /// Rows of a chunk: more than those of a strip that the end of the image cuts.
    pub(super) unit_rows: usize,
}

impl Segment {
    /// True if a stored segment has its cells in the order of a chunk, if not in its byte order.
    pub(super) fn is_plain(&self) -> bool {
        self.codec == Codec::None
            && self.predictor == Predictor::None
            && self.samples == 1
            && self.is_whole()
            && !self.is_reversed
    }

    /// True if cells have as many bits in the file as in memory.
    fn is_whole(&self) -> bool {
        self.bits as usize == self.size * 8
    }

    /// Bytes of a row before compression.
    fn row(&self) -> Option<usize> {
        let bits = self.width.checked_mul(self.samples)?.checked_mul(self.bits as usize)?;
        Some(bits.div_ceil(8))
    }

    /// Bytes before compression.
    pub(super) fn bytes(&self) -> Option<usize> {
        self.row()?.checked_mul(self.rows)
    }

    /// Bytes of a decoded chunk.
    pub(super) fn unit_bytes(&self) -> Option<usize> {
        let pixels = self.width.checked_mul(self.unit_rows)?;
        pixels.checked_mul(self.samples)?.checked_mul(self.size)
    }

    /// Decompresses to `out`, which has the length of [`Segment::bytes`].
    fn unpack(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
        match &self.codec {
            Codec::None => codecs::copy(bytes, out),
            Codec::Lzw => lzw::decode(bytes, out),
            Codec::Deflate => codecs::inflate(bytes, out),
            Codec::PackBits => codecs::packbits(bytes, out),
            Codec::Zstd => codecs::zstd(bytes, out),
            Codec::Jpeg { tables, is_ycc } => {
                let form = jpeg::Form {
                    width: self.width,
                    rows: self.rows,
                    rows_max: self.unit_rows,
                    components: self.samples,
                    is_ycc: *is_ycc,
                };
                jpeg::decode(tables, bytes, form, out)
            }
        }
    }

    /// Undoes the predictor and the byte order of rows of whole cells.
    fn settle(&self, pixels: &mut [u8]) {
        let is_swapped = self.big_endian != cfg!(target_endian = "big");
        let row = self.row().unwrap_or(0).max(1);
        if self.predictor == Predictor::Float {
            let mut planes = vec![0; row];
            for cells in pixels.chunks_exact_mut(row) {
                planes.copy_from_slice(cells);
                unite_floats(&mut planes, cells, self.size, self.samples);
            }
            return;
        }
        if is_swapped {
            swap_bytes(pixels, self.size);
        }
        if self.predictor == Predictor::Horizontal {
            for cells in pixels.chunks_exact_mut(row) {
                match self.size {
                    1 => add_up::<1>(cells, self.samples, |a, b| [a[0].wrapping_add(b[0])]),
                    2 => add_up(cells, self.samples, |a, b| {
                        u16::from_ne_bytes(a).wrapping_add(u16::from_ne_bytes(b)).to_ne_bytes()
                    }),
                    4 => add_up(cells, self.samples, |a, b| {
                        u32::from_ne_bytes(a).wrapping_add(u32::from_ne_bytes(b)).to_ne_bytes()
                    }),
                    _ => add_up(cells, self.samples, |a, b| {
                        u64::from_ne_bytes(a).wrapping_add(u64::from_ne_bytes(b)).to_ne_bytes()
                    }),
                }
            }
        }
    }

    /// Puts the cells of pixels in planes, one for each sample.
    fn spread(&self, pixels: &[u8], out: &mut [u8]) {
        match (self.is_whole(), self.size) {
            (false, 1) => self.spread_bits::<1>(pixels, out, |v| [v as u8]),
            (false, 2) => self.spread_bits(pixels, out, |v| (v as u16).to_ne_bytes()),
            (false, _) => self.spread_bits(pixels, out, u32::to_ne_bytes),
            (true, 1) => self.spread_cells::<1>(pixels, out),
            (true, 2) => self.spread_cells::<2>(pixels, out),
            (true, 4) => self.spread_cells::<4>(pixels, out),
            (true, _) => self.spread_cells::<8>(pixels, out),
        }
    }

    fn spread_cells<const N: usize>(&self, pixels: &[u8], out: &mut [u8]) {
        let (from, to) = (pixels.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
        let (count, plane) = (self.width * self.rows, self.width * self.unit_rows);
        for (s, to) in to.chunks_exact_mut(plane).enumerate() {
            let of_band = from.iter().skip(s).step_by(self.samples);
            to[..count].iter_mut().zip(of_band).for_each(|(to, from)| *to = *from);
        }
    }

    /// Like [`Segment::spread_cells`], for cells of fewer bits than their bytes have, the highest bit first. Rows begin
    /// with a byte.
    fn spread_bits<const N: usize>(
        &self,
        pixels: &[u8],
        out: &mut [u8],
        cell: impl Fn(u32) -> [u8; N],
    ) {
        let (to, plane) = (out.as_chunks_mut::<N>().0, self.width * self.unit_rows);
        let mask = (1u64 << self.bits) - 1;
        for (y, row) in pixels.chunks_exact(self.row().unwrap_or(0).max(1)).enumerate() {
            let (mut bytes, mut held, mut count) = (row.iter(), 0u64, 0);
            for x in 0..self.width {
                for s in 0..self.samples {
                    while count < self.bits {
                        held = held << 8 | u64::from(bytes.next().copied().unwrap_or(0));
                        count += 8;
                    }
                    count -= self.bits;
                    let v = held >> count & mask;
                    to[s * plane + y * self.width + x] = cell(v as u32);
                }
            }
        }
    }
}

impl Filter for Segment {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let n = self.unit_bytes().filter(|n| *n <= limit);
        let n = n.ok_or_else(|| format!("its cells have more than {limit} bytes"))?;
        let mut out = vec![0; n];
        self.undo_to(&bytes, &mut out)?;
        Ok(Cow::Owned(out))
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        let (Some(n), Some(all)) = (self.bytes(), self.unit_bytes()) else {
            return Err("it has more than 2^63 bytes".into());
        };
        if out.len() != all {
            return Err(format!("its cells have {all} bytes, expected {}", out.len()));
        }
        let bytes = match self.is_reversed && !matches!(self.codec, Codec::Jpeg { .. }) {
            true => Cow::Owned(bytes.iter().map(|b| b.reverse_bits()).collect()),
            false => Cow::Borrowed(bytes),
        };
        if self.rows < self.unit_rows {
            out.fill(0);
        }
        if self.samples == 1 && self.is_whole() {
            let cells = &mut out[..n];
            self.unpack(&bytes, cells)?;
            self.settle(cells);
            return Ok(true);
        }
        PIXELS.with_borrow_mut(|kept| {
            let pixels = at_least(kept, n);
            let done = self.unpack(&bytes, pixels).map(|()| {
                match self.bits {
                    _ if self.is_whole() => self.settle(pixels),
                    // libtiff, so GDAL, turns the bytes of these, as of whole cells, but of no other number of bits.
                    24 if self.big_endian => {
                        pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|cell| cell.reverse());
                    }
                    _ => {}
                }
                self.spread(pixels, out);
            });
            forget_large(kept);
            done.map(|()| true)
        })
    }
}

/// Adds to each cell of `N` bytes the one `step` cells before it.
fn add_up<const N: usize>(row: &mut [u8], step: usize, add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let cells = row.as_chunks_mut::<N>().0;
    for i in step..cells.len() {
        cells[i] = add(cells[i], cells[i - step]);
    }
}

/// Makes floats of a row of differences of their bytes, the highest bytes of all floats first.
fn unite_floats(planes: &mut [u8], cells: &mut [u8], size: usize, samples: usize) {
    for i in samples..planes.len() {
        planes[i] = planes[i].wrapping_add(planes[i - samples]);
    }
    let count = cells.len() / size;
    for (i, cell) in cells.chunks_exact_mut(size).enumerate() {
        for (b, byte) in cell.iter_mut().enumerate() {
            let plane = if cfg!(target_endian = "big") { b } else { size - 1 - b };
            *byte = planes[plane * count + i];
        }
    }
}
