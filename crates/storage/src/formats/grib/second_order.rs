//! Second-order packing of edition 1 in its general extended form.
//!
//! # Source
//! ECMWF, GRIBEX: "general extended second-order packing", with spatial differences of order 1 to 3 and rows in
//! alternating directions; the layout is that of ecCodes' definition `grib1/data.grid_second_order`.

use super::complex::signed;
use super::decode::Cell;
use super::octets::Octets;
use super::unpack::{Bits, Scale};

/// The parameters of section 4.
#[derive(Debug)]
pub(super) struct Packed {
    groups: u64,
    /// Bits of the references, widths and lengths of groups, and of the first numbers.
    bits: [u8; 4],
    order: u8,
    /// Points of a row, if every other one is reversed.
    row: Option<usize>,
    /// Offset of the first numbers in the section.
    start: usize,
}

impl Packed {
    pub(super) fn read(o: Octets<'_>, shape: Option<[usize; 2]>) -> Result<Packed, String> {
        let flags = o.u8(14)?;
        if flags & 0x78 != 0x18 {
            return Err("second-order packing of this form is not supported".into());
        }
        let order = flags & 3;
        let (width, start) = if order > 0 { (o.u8(26)?, 26) } else { (0, 25) };
        let row = match (flags & 4, shape) {
            (0, _) => None,
            (_, Some([nx, _])) => Some(nx),
            (_, None) => return Err("alternating rows of a reduced grid are not supported".into()),
        };
        let groups = o.uint(17, 2)? + 65_536 * o.uint(21, 1)?;
        let bits = [o.u8(11)?, o.u8(22)?, o.u8(23)?, width];
        Ok(Packed { groups, bits, order, row, start })
    }

    /// Unpacks the values of a section 4.
    pub(super) fn unpack(
        &self,
        section: &[u8],
        scale: Scale,
        cells: &mut [Cell],
    ) -> Result<(), String> {
        let [reference_bits, width_bits, length_bits, first_bits] = self.bits;
        let order = usize::from(self.order);
        if self.groups > cells.len() as u64 || order > cells.len() {
            return Err(format!("{} groups of {} numbers", self.groups, cells.len()));
        }
        let mut all = Bits::new(section.get(self.start..).unwrap_or_default());
        let mut numbers = vec![0i64; cells.len()];
        let mut bias = 0;
        if order > 0 {
            all.check(order as u64 + 1, first_bits)?;
            numbers[..order].iter_mut().for_each(|v| *v = all.next(first_bits) as i64);
            bias = signed(all.next(first_bits), first_bits);
            all.align();
        }
        let mut list = |bits: u8| -> Result<Bits<'_>, String> {
            all.check(self.groups, bits)?;
            let list = all;
            all.skip(self.groups, bits);
            all.align();
            Ok(list)
        };
        let (mut widths, mut lengths) = (list(width_bits)?, list(length_bits)?);
        let mut references = list(reference_bits)?;
        let mut at = order;
        for _ in 0..self.groups {
            let (width, length) = (widths.next(width_bits), lengths.next(length_bits));
            let reference = references.next(reference_bits);
            let part = usize::try_from(length).ok();
            let part = part.and_then(|n| numbers.get_mut(at..at.checked_add(n)?));
            let part = part.ok_or("groups have more numbers than there are values")?;
            at += part.len();
            let width = u8::try_from(width).map_err(|_| format!("a group of {width} bits"))?;
            all.check(length, width)?;
            part.iter_mut().for_each(|v| *v = reference.wrapping_add(all.next(width)) as i64);
        }
        if at != numbers.len() {
            return Err(format!("groups of {at} numbers, expected {}", numbers.len()));
        }
        sum_up(&mut numbers, order, bias);
        cells.iter_mut().zip(numbers).for_each(|(cell, x)| *cell = scale.cell(x as f64));
        if let Some(row) = self.row {
            cells.chunks_exact_mut(row.max(1)).skip(1).step_by(2).for_each(<[Cell]>::reverse);
        }
        Ok(())
    }
}

/// Adds differences of an order. The first numbers are values, not differences.
fn sum_up(numbers: &mut [i64], order: usize, bias: i64) {
    if order == 0 {
        return;
    }
    // The last number, and its differences of rising order.
    let mut last = [0i64; 3];
    for (i, v) in numbers.iter_mut().enumerate() {
        if i >= order {
            let mut d = v.wrapping_add(bias);
            for l in last[..order].iter_mut().rev() {
                d = d.wrapping_add(*l);
                *l = d;
            }
            *v = d;
            continue;
        }
        let mut d = *v;
        for l in last.iter_mut().take(i + 1) {
            (d, *l) = (d.wrapping_sub(*l), d);
        }
    }
}
