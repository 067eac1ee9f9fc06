//! Packed numbers become cells.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, data representation and data templates; the order of operations is that of ecCodes,
//! so that cells have the last bits of the reference implementation's.

use super::complex::Complex;
use super::decode::{Cell, Packed};
use super::second_order;
use super::{jpeg, png};
use crate::formats::aec::Aec;

/// The cell of a missing value.
pub(super) const MISSING: Cell = f32::NAN.to_ne_bytes();

/// Most bits of a number: they fit eight bytes from any bit of the first byte on.
const BITS_MAX: u8 = 57;

/// The values of numbers `x`: `(x * binary + reference) * decimal`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub(super) reference: f64,
    pub(super) binary: f64,
    pub(super) decimal: f64,
}

/// How numbers are packed.
pub(super) enum Form<'a> {
    /// Unsigned numbers of this many bits.
    Simple(u8),
    /// The same, and the values are `exp(value) - shift`.
    Logarithm {
        bits: u8,
        shift: f64,
    },
    /// IEEE floats of this many bytes.
    Floats(usize),
    Complex(Complex),
    Second(second_order::Packed),
    Jpeg(u8),
    Png(u8),
    Ccsds {
        bits: u8,
        flags: u8,
        block: u8,
        interval: u16,
    },
    /// Runs of one of some levels, in big-endian numbers; level 0 is missing.
    Runs {
        bits: u8,
        most: u16,
        levels: &'a [u8],
    },
    /// No values.
    Missing,
}

impl Scale {
    pub(super) const NONE: Scale = Scale { reference: 0.0, binary: 1.0, decimal: 1.0 };

    pub(super) fn value(self, x: f64) -> f64 {
        (x * self.binary + self.reference) * self.decimal
    }

    pub(super) fn cell(self, x: f64) -> Cell {
        (self.value(x) as f32).to_ne_bytes()
    }
}

impl Form<'_> {
    /// True if all values are equal and need no data.
    pub(super) fn is_constant(&self) -> bool {
        match self {
            Form::Simple(bits)
            | Form::Logarithm { bits, .. }
            | Form::Jpeg(bits)
            | Form::Png(bits)
            | Form::Ccsds { bits, .. } => *bits == 0,
            Form::Complex(complex) => complex.is_constant(),
            Form::Missing => true,
            _ => false,
        }
    }
}

/// Writes the coded values, of which there are as many as `cells`.
pub(super) fn values(packed: &Packed<'_>, cells: &mut [Cell]) -> Result<(), String> {
    let Packed { scale, data, .. } = *packed;
    if cells.is_empty() {
        return Ok(());
    }
    if packed.form.is_constant() {
        // The reference is the value: the decimal factor does not count, in the reference implementation either.
        let value = match packed.form {
            Form::Missing => f64::NAN,
            Form::Logarithm { shift, .. } => scale.reference.exp() - shift,
            _ => scale.reference,
        };
        cells.fill((value as f32).to_ne_bytes());
        return Ok(());
    }
    match &packed.form {
        Form::Simple(bits) => simple(data, *bits, cells, |x| scale.cell(x)),
        Form::Logarithm { bits, shift } => {
            simple(data, *bits, cells, |x| ((scale.value(x).exp() - shift) as f32).to_ne_bytes())
        }
        Form::Floats(4) => {
            let all = data.as_chunks::<4>().0;
            put(cells, all.len(), all.iter().map(|b| u32::from_be_bytes(*b).to_ne_bytes()))
        }
        Form::Floats(_) => {
            let all = data.as_chunks::<8>().0;
            let cell = |b: &[u8; 8]| (f64::from_be_bytes(*b) as f32).to_ne_bytes();
            put(cells, all.len(), all.iter().map(cell))
        }
        Form::Complex(complex) => complex.unpack(data, scale, cells),
        Form::Second(second) => second.unpack(data, scale, cells),
        Form::Jpeg(_) => jpeg::unpack(data, scale, cells),
        Form::Png(bits) => png::unpack(data, *bits, scale, cells),
        Form::Ccsds { bits, flags, block, interval } => {
            let coder = Aec {
                bits: u32::from(*bits),
                block: usize::from(*block),
                interval: usize::from(*interval),
                is_signed: flags & 1 != 0,
                is_predicted: flags & 8 != 0,
                is_restricted: flags & 16 != 0,
                is_padded: flags & 32 != 0,
            };
            let numbers = coder.decode(data, cells.len())?;
            put(cells, numbers.len(), numbers.iter().map(|x| scale.cell(f64::from(*x))))
        }
        Form::Runs { bits, most, levels } => runs(data, *bits, *most, levels, scale, cells),
        Form::Missing => Ok(()),
    }
}

/// Writes `n` cells; the error says that there are too few.
fn put(cells: &mut [Cell], n: usize, values: impl Iterator<Item = Cell>) -> Result<(), String> {
    if n < cells.len() {
        return Err(format!("data of {n} values, expected {}", cells.len()));
    }
    cells.iter_mut().zip(values).for_each(|(cell, value)| *cell = value);
    Ok(())
}

/// Reads big-endian numbers of any number of bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: u64,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Bits { bytes, at: 0 }
    }

    /// Checks that `count` numbers of `bits` bits follow.
    pub(super) fn check(&self, count: u64, bits: u8) -> Result<(), String> {
        if bits > BITS_MAX {
            return Err(format!("numbers of {bits} bits"));
        }
        let (need, have) = (
            count.saturating_mul(bits.into()),
            (self.bytes.len() as u64 * 8).saturating_sub(self.at),
        );
        if need > have { Err(format!("data of {have} bits, expected {need}")) } else { Ok(()) }
    }

    /// The next number, which [`Bits::check`] found.
    pub(super) fn next(&mut self, bits: u8) -> u64 {
        if bits == 0 {
            return 0;
        }
        let byte = (self.at / 8) as usize;
        let word = match self.bytes.get(byte..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(word) => u64::from_be_bytes(*word),
            None => {
                let mut word = [0; 8];
                let rest = self.bytes.get(byte..).unwrap_or_default();
                word[..rest.len()].copy_from_slice(rest);
                u64::from_be_bytes(word)
            }
        };
        let out = word << (self.at % 8) >> (64 - bits);
        self.at += u64::from(bits);
        out
    }

    /// Passes numbers, which [`Bits::check`] found.
    pub(super) fn skip(&mut self, count: u64, bits: u8) {
        self.at += count * u64::from(bits);
    }

    /// To the beginning of the next byte.
    pub(super) fn align(&mut self) {
        self.at = self.at.next_multiple_of(8);
    }
}

fn simple(
    data: &[u8],
    bits: u8,
    cells: &mut [Cell],
    cell: impl Fn(f64) -> Cell,
) -> Result<(), String> {
    let mut numbers = Bits::new(data);
    numbers.check(cells.len() as u64, bits)?;
    match bits {
        8 => cells.iter_mut().zip(data).for_each(|(c, b)| *c = cell(f64::from(*b))),
        16 => {
            let all = data.as_chunks::<2>().0;
            let number = |b: &[u8; 2]| f64::from(u16::from_be_bytes(*b));
            cells.iter_mut().zip(all).for_each(|(c, b)| *c = cell(number(b)));
        }
        _ => cells.iter_mut().for_each(|c| *c = cell(numbers.next(bits) as f64)),
    }
    Ok(())
}

/// Runs of levels: a level, and then the digits of the length of its run, lowest first, each above the most level.
fn runs(
    data: &[u8],
    bits: u8,
    most: u16,
    levels: &[u8],
    scale: Scale,
    cells: &mut [Cell],
) -> Result<(), String> {
    let count = data.len() as u64 * 8 / u64::from(bits.max(1));
    if count == 0 || most == 0 {
        cells.fill(MISSING);
        return Ok(());
    }
    let mut numbers = Bits::new(data);
    numbers.check(count, bits)?;
    let most = u64::from(most);
    let base = (1u64 << bits.min(32)).saturating_sub(1 + most);
    if base == 0 {
        return Err(format!("levels to {most} in {bits} bits"));
    }
    let levels = levels.as_chunks::<2>().0;
    let level = |i: u64| match i {
        0 => Ok(MISSING),
        i => {
            let v = levels.get(i as usize - 1).map(|b| f64::from(u16::from_be_bytes(*b)));
            v.map(|v| scale.cell(v)).ok_or_else(|| format!("no such level: {i}"))
        }
    };
    let (mut filled, mut read) = (0, 0);
    let mut next = (read < count).then(|| numbers.next(bits));
    read += 1;
    while let Some(v) = next.filter(|_| filled < cells.len()) {
        let cell = level(v).and_then(|cell| match v > most {
            true => Err(format!("a level {v}, at most {most} are declared")),
            false => Ok(cell),
        })?;
        let (mut run, mut factor) = (1u64, 1u64);
        next = loop {
            let digit = (read < count).then(|| numbers.next(bits));
            read += 1;
            match digit {
                Some(d) if d > most => {
                    run = run.saturating_add(factor.saturating_mul(d - most - 1));
                    factor = factor.saturating_mul(base);
                }
                other => break other,
            }
        };
        let end = filled.saturating_add(usize::try_from(run).unwrap_or(usize::MAX));
        let part = cells.get_mut(filled..end);
        part.ok_or("runs have more values than there are points")?.fill(cell);
        filled = end;
    }
    match filled == cells.len() {
        true => Ok(()),
        false => Err(format!("runs of {filled} values, expected {}", cells.len())),
    }
}
