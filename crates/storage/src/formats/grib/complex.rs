//! Complex packing, with differences between neighbours or without: numbers in groups, each with a reference, a width
//! and a length of its own.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, data representation templates 5.2 and 5.3, data templates 7.2 and 7.3.

use super::decode::Cell;
use super::octets::Octets;
use super::unpack::{Bits, MISSING, Scale};

/// A number that is missing.
const NONE: i64 = i64::MAX;

/// The parameters of the groups.
#[derive(Debug)]
pub(super) struct Complex {
    /// Bits of the reference of a group.
    bits: u8,
    /// 1: the highest number of a group is missing; 2: and so is the one before.
    missing: u8,
    groups: u32,
    width: u8,
    width_bits: u8,
    length: u32,
    length_step: u8,
    length_bits: u8,
    last_length: u32,
    /// Order of the differences, 0 for none, and bytes of each of the first numbers.
    order: u8,
    first_bytes: u8,
}

impl Complex {
    pub(super) fn read(o: Octets<'_>, has_differences: bool) -> Result<Complex, String> {
        let (order, first_bytes) = if has_differences { (o.u8(48)?, o.u8(49)?) } else { (0, 0) };
        let out = Complex {
            bits: o.u8(20)?,
            missing: o.u8(23)?,
            groups: o.uint(32, 4)? as u32,
            width: o.u8(36)?,
            width_bits: o.u8(37)?,
            length: o.uint(38, 4)? as u32,
            length_step: o.u8(42)?,
            last_length: o.uint(43, 4)? as u32,
            length_bits: o.u8(47)?,
            order,
            first_bytes,
        };
        match out.order > 2 || out.first_bytes > 7 || out.missing > 2 {
            true => Err(format!(
                "differences of order {order} with {first_bytes} bytes, missing values {}",
                out.missing
            )),
            false => Ok(out),
        }
    }

    pub(super) fn is_constant(&self) -> bool {
        self.groups == 0
    }

    pub(super) fn unpack(
        &self,
        data: &[u8],
        scale: Scale,
        cells: &mut [Cell],
    ) -> Result<(), String> {
        let mut numbers = vec![0; cells.len()];
        self.numbers(data, &mut numbers)?;
        for (cell, x) in cells.iter_mut().zip(numbers) {
            *cell = if x == NONE { MISSING } else { scale.cell(x as f64) };
        }
        Ok(())
    }

    fn numbers(&self, data: &[u8], out: &mut [i64]) -> Result<(), String> {
        let groups = u64::from(self.groups);
        // A group without numbers has no purpose, and there could be billions of them.
        if groups > out.len() as u64 {
            return Err(format!("{groups} groups of {} numbers", out.len()));
        }
        let mut all = Bits::new(data);
        let bytes = self.first_bytes * 8;
        let mut first = [0u64; 2];
        let mut bias = 0;
        if self.order > 0 {
            all.check(u64::from(self.order) + 1, bytes)?;
            first.iter_mut().take(self.order.into()).for_each(|v| *v = all.next(bytes));
            bias = signed(all.next(bytes), bytes);
        }
        // The references, widths and lengths of groups are three lists, each from a byte on.
        let mut list = |bits: u8| -> Result<Bits<'_>, String> {
            all.check(groups, bits)?;
            let list = all;
            all.skip(groups, bits);
            all.align();
            Ok(list)
        };
        let mut references = list(self.bits)?;
        let mut widths = list(self.width_bits)?;
        let mut lengths = list(self.length_bits)?;
        let mut at = 0usize;
        for group in 0..groups {
            let reference = references.next(self.bits);
            let width = u64::from(self.width) + widths.next(self.width_bits);
            let length = lengths.next(self.length_bits);
            let length = match group + 1 == groups {
                true => u64::from(self.last_length),
                false => length
                    .saturating_mul(self.length_step.into())
                    .saturating_add(self.length.into()),
            };
            let part =
                usize::try_from(length).ok().and_then(|n| out.get_mut(at..at.checked_add(n)?));
            let part = part.ok_or("groups have more numbers than there are values")?;
            at += part.len();
            let width = u8::try_from(width).map_err(|_| format!("a group of {width} bits"))?;
            all.check(length, width)?;
            self.group(&mut all, reference, width, part);
        }
        if at != out.len() {
            return Err(format!("groups of {at} numbers, expected {}", out.len()));
        }
        self.sum_up(out, first, bias);
        Ok(())
    }

    /// Reads the numbers of a group.
    fn group(&self, all: &mut Bits<'_>, reference: u64, width: u8, out: &mut [i64]) {
        let highest = |bits: u8| (1u64 << bits).wrapping_sub(1);
        let missing = u64::from(self.missing);
        // A group without bits is missing if its reference is one of the highest.
        if width == 0 {
            let is_missing = missing > 0
                && (0..missing).any(|i| reference == highest(self.bits).wrapping_sub(i));
            out.fill(if is_missing { NONE } else { reference as i64 });
            return;
        }
        let high = highest(width);
        for v in out {
            let x = all.next(width);
            let is_missing = missing > 0 && (x == high || (missing > 1 && x + 1 == high));
            *v = if is_missing { NONE } else { (reference + x) as i64 };
        }
    }

    /// Adds the differences of the numbers that are not missing.
    fn sum_up(&self, numbers: &mut [i64], first: [u64; 2], bias: i64) {
        let present = numbers.iter_mut().filter(|v| **v != NONE);
        match self.order {
            1 => {
                let mut last = first[0] as i64;
                for (i, v) in present.enumerate() {
                    if i > 0 {
                        last = last.wrapping_add(*v).wrapping_add(bias);
                    }
                    *v = last;
                }
            }
            2 => {
                let [mut before, mut last] = first.map(|v| v as i64);
                for (i, v) in present.enumerate() {
                    match i {
                        0 => *v = before,
                        1 => *v = last,
                        _ => {
                            let next = last.wrapping_mul(2).wrapping_sub(before);
                            let next = next.wrapping_add(*v).wrapping_add(bias);
                            (before, last) = (last, next);
                            *v = next;
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

/// A number of `bits` bits of which the highest is its sign.
pub(super) fn signed(v: u64, bits: u8) -> i64 {
    if bits == 0 {
        return 0;
    }
    let sign = 1u64 << (bits - 1);
    if v & sign == 0 { v as i64 } else { -((v & !sign) as i64) }
}
