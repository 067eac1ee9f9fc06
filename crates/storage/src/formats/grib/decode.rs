//! Decodes the data of a field.
//!
//! ```text
//!   sections ─▶ coded values ─▶ a value for each point, NaN where the bitmap has none ─▶ rows from the first to the last
//! ```

use super::complex::Complex;
use super::grid::{Grid, Order};
use super::octets::{Octets, power};
use super::second_order;
use super::unpack::{self, Form, Scale};
use crate::formats::filters::Filter;
use std::borrow::Cow;

/// A cell as it is stored in memory.
pub(super) type Cell = [u8; 4];

/// The codec of a field: `float32` cells, from the bytes of the file that [`super::fields::Field`] names.
#[derive(Debug)]
pub(super) struct Decoder {
    pub(super) edition: u8,
    /// Points along a row, and rows.
    shape: Option<[usize; 2]>,
    count: usize,
    order: Order,
}

impl Decoder {
    pub(super) fn new(edition: u8, grid: &Grid) -> Decoder {
        let shape = grid.shape.map(|s| s.map(|n| n as usize));
        Decoder { edition, shape, count: grid.count as usize, order: grid.order }
    }
}

impl Filter for Decoder {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let n = self.count.checked_mul(size_of::<Cell>()).filter(|n| *n <= limit);
        let mut out = vec![0; n.ok_or_else(|| format!("a field of {} points", self.count))?];
        self.undo_to(&bytes, &mut out)?;
        Ok(Cow::Owned(out))
    }

    fn undo_to(&self, bytes: &[u8], out: &mut [u8]) -> Result<bool, String> {
        let (cells, rest) = out.as_chunks_mut::<4>();
        if cells.len() != self.count || !rest.is_empty() {
            return Err(format!("{} points, expected {}", cells.len(), self.count));
        }
        let packed = match self.edition {
            1 => edition1(bytes, self.shape)?,
            _ => edition2(bytes)?,
        };
        packed.unpack(cells)?;
        if let Some(shape) = self.shape {
            arrange(cells, shape, self.order);
        }
        Ok(true)
    }
}

/// The data of a field.
pub(super) struct Packed<'a> {
    pub(super) scale: Scale,
    pub(super) form: Form<'a>,
    /// Number of coded values, if it is declared.
    pub(super) coded: Option<u64>,
    pub(super) bitmap: Option<&'a [u8]>,
    pub(super) data: &'a [u8],
}

impl Packed<'_> {
    /// Writes the values of all points.
    fn unpack(&self, cells: &mut [Cell]) -> Result<(), String> {
        let coded = self.coded.filter(|_| !self.form.is_constant());
        let Some(bitmap) = self.bitmap else {
            if let Some(n) = coded.filter(|n| *n != cells.len() as u64) {
                return Err(format!("{n} values for {} points", cells.len()));
            }
            return unpack::values(self, cells);
        };
        let ones = bits(bitmap, cells.len())?;
        if let Some(n) = coded.filter(|n| *n != ones as u64) {
            return Err(format!("{n} values, the bitmap has {ones} points"));
        }
        let first = cells.len() - ones;
        unpack::values(self, &mut cells[first..])?;
        // Values only move towards the start, so values that follow are not overwritten.
        let mut next = first;
        for i in 0..cells.len() {
            cells[i] = match bitmap[i / 8] >> (7 - i % 8) & 1 {
                0 => unpack::MISSING,
                _ => {
                    next += 1;
                    cells[next - 1]
                }
            };
        }
        Ok(())
    }
}

/// The number of bits that are set among the first `n`.
fn bits(bitmap: &[u8], n: usize) -> Result<usize, String> {
    let all = bitmap.get(..n.div_ceil(8));
    let all = all.ok_or_else(|| format!("a bitmap of {} bytes for {n} points", bitmap.len()))?;
    let ones: usize = all.iter().map(|b| b.count_ones() as usize).sum();
    let beyond = match (n % 8, all.last()) {
        (1.., Some(last)) => (last & (0xff >> (n % 8))).count_ones() as usize,
        _ => 0,
    };
    Ok(ones - beyond)
}

/// Moves points into rows from the first to the last one.
fn arrange(cells: &mut [Cell], [nx, ny]: [usize; 2], order: Order) {
    let line = if order.is_by_column { ny } else { nx };
    if order.is_alternating {
        cells.chunks_exact_mut(line.max(1)).skip(1).step_by(2).for_each(<[Cell]>::reverse);
    }
    if order.is_by_column {
        let columns = cells.to_vec();
        for (j, row) in cells.chunks_exact_mut(nx.max(1)).enumerate() {
            for (i, cell) in row.iter_mut().enumerate() {
                *cell = columns[i * ny + j];
            }
        }
    }
}

/// Sections 5 to 7 of edition 2, and sections before them of which one has the bitmap.
fn edition2(bytes: &[u8]) -> Result<Packed<'_>, String> {
    let (mut five, mut bitmap, mut has_bitmap, mut data) = (None, None, false, None);
    let mut rest = bytes;
    while !rest.is_empty() {
        let head = Octets(rest);
        let (len, number) = (head.uint(1, 4)? as usize, head.u8(5)?);
        if len < 5 || len > rest.len() {
            return Err(format!("section {number} of {len} bytes, {} are left", rest.len()));
        }
        let (section, after) = rest.split_at(len);
        rest = after;
        match number {
            5 => five = Some(Octets(section)),
            6 => match Octets(section).u8(6)? {
                0 => (bitmap, has_bitmap) = (Some(&section[6..]), true),
                254 => has_bitmap = true,
                255 => has_bitmap = false,
                n => return Err(format!("the predefined bitmap {n} is not known")),
            },
            7 => data = Some(&section[5..]),
            _ => {}
        }
    }
    let five = five.ok_or("no section 5")?;
    let bitmap = match has_bitmap {
        true => Some(bitmap.ok_or("no bitmap before the one that refers to it")?),
        false => None,
    };
    let (scale, form) = representation(five)?;
    let data = data.ok_or("no section 7")?;
    Ok(Packed { scale, form, coded: Some(five.uint(6, 4)?), bitmap, data })
}

/// The data representation of section 5.
fn representation(o: Octets<'_>) -> Result<(Scale, Form<'_>), String> {
    let template = o.u16(10)?;
    match template {
        4 => {
            let form = match o.u8(12)? {
                1 => Form::Floats(4),
                2 => Form::Floats(8),
                n => return Err(format!("floats of precision {n} (code table 5.7)")),
            };
            return Ok((Scale::NONE, form));
        }
        200 => {
            let decimal = o.int(17, 1)?;
            let count = usize::from(o.u16(15)?);
            let levels = o.0.get(17..17 + 2 * count).ok_or("a list of levels is too short")?;
            let scale = Scale { decimal: power(10.0, -decimal), ..Scale::NONE };
            return Ok((scale, Form::Runs { bits: o.u8(12)?, most: o.u16(13)?, levels }));
        }
        _ => {}
    }
    let scale = Scale {
        reference: o.ieee(12)?,
        binary: power(2.0, o.int(16, 2)?),
        decimal: power(10.0, -o.int(18, 2)?),
    };
    let bits = o.u8(20)?;
    let form = match template {
        0 => Form::Simple(bits),
        2 => Form::Complex(Complex::read(o, false)?),
        3 => Form::Complex(Complex::read(o, true)?),
        40 | 40_000 => Form::Jpeg(bits),
        41 | 40_010 => Form::Png(bits),
        42 => Form::Ccsds { bits, flags: o.u8(22)?, block: o.u8(23)?, interval: o.u16(24)? },
        61 => Form::Logarithm { bits, shift: o.ieee(21)? },
        n => return Err(format!("data representation template 5.{n} is not supported")),
    };
    Ok((scale, form))
}

/// Sections 1 to 4 of edition 1.
fn edition1(bytes: &[u8], shape: Option<[usize; 2]>) -> Result<Packed<'_>, String> {
    let mut rest = bytes;
    let mut next = |is_last: bool| -> Result<&[u8], String> {
        let len = Octets(rest).uint(1, 3)? as usize;
        // The last section of a large message has no length of its own.
        let len = if is_last { rest.len() } else { len };
        let parts = rest.split_at_checked(len).filter(|_| len > 3);
        let (section, after) =
            parts.ok_or_else(|| format!("a section of {len} bytes, {} are left", rest.len()))?;
        rest = after;
        Ok(section)
    };
    let product = Octets(next(false)?);
    let flags = product.u8(8)?;
    if flags & 0x80 != 0 {
        next(false)?;
    }
    let bitmap = match flags & 0x40 {
        0 => None,
        _ => {
            let section = Octets(next(false)?);
            let predefined = section.u16(5)?;
            if predefined != 0 {
                return Err(format!("the predefined bitmap {predefined} is not known"));
            }
            section.0.get(6..)
        }
    };
    let section = next(true)?;
    let o = Octets(section);
    let binary = o.int(5, 2)?;
    let scale = Scale {
        reference: o.ibm(7)?,
        binary: power(2.0, binary),
        decimal: power(10.0, -product.int(27, 2)?),
    };
    let (flags, bits) = (o.u8(4)?, o.u8(11)?);
    if binary == -32_767 {
        return Ok(Packed { scale, form: Form::Missing, coded: None, bitmap: None, data: &[] });
    }
    if flags & 0x80 != 0 {
        return Err("spherical harmonics are not supported".into());
    }
    if flags & 0x40 != 0 {
        let form = Form::Second(second_order::Packed::read(o, shape)?);
        return Ok(Packed { scale, form, coded: None, bitmap, data: section });
    }
    if flags & 0x10 != 0 {
        return Err("a matrix of values at each point is not supported".into());
    }
    let data = section.get(11..).unwrap_or_default();
    Ok(Packed { scale, form: Form::Simple(bits), coded: None, bitmap, data })
}
