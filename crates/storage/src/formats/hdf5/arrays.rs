//! Fixed and extensible arrays: indices of chunks by their number.
//!
//! ```text
//!   fixed       FAHD ─▶ FADB  entries, or pages of entries
//!   extensible  EAHD ─▶ EAIB  first entries
//!                         ├─▶ EADB  entries
//!                         └─▶ EASB ─▶ EADB  pages of entries
//! ```
//!
//! # Source
//! HDF5 File Format Specification 3.0, VII.C and VII.D; `H5EAhdr.c` and `H5EA.c` for the numbers of blocks.

use crate::formats::Place;
use crate::formats::hdf5::chunks::Chunks;
use crate::formats::hdf5::file::{File, version};
use crate::formats::hdf5::messages::UNLIMITED;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use tessera_planner::region::Dims;

/// A page or block of entries.
struct Entries {
    address: u64,
    /// Bytes before the entries, and of all of it.
    before: u64,
    bytes: u64,
    signature: Option<&'static [u8; 4]>,
}

/// Finds chunks in a fixed array.
pub(super) fn fixed(
    chunks: &Chunks,
    file: &File<'_>,
    address: u64,
    units: &[&Dims],
) -> Result<Vec<Option<Place>>, Fault> {
    let (o, l) = (file.sizes.offset as u64, file.sizes.length as u64);
    let at = file.offset(address)?;
    let mut r = file.checked(address, 12 + o + l, b"FAHD")?;
    let entry = head(&mut r, "a fixed array", chunks)?;
    let page_bits = r.u8()?;
    let count = file.sizes.length(&mut r)?;
    let Some(block) = file.sizes.address(&mut r)? else { return Ok(vec![None; units.len()]) };
    let too_large = || Fault::bad(at, format!("an array of {count} entries"));
    let page = 1u64.checked_shl(page_bits.into()).filter(|n| *n < 1 << 32).unwrap_or(1 << 32);
    let is_paged = count > page;
    let start = 6 + o;
    let pages = count.div_ceil(page);
    file.each(units, |unit| {
        let Some(number) = chunks.number(unit, None).filter(|n| *n < count) else {
            return Ok(None);
        };
        let entries = |n: u64, more: u64| n.checked_mul(entry)?.checked_add(more);
        if !is_paged {
            let bytes = entries(count, start + 4).ok_or_else(too_large)?;
            let of = Entries { address: block, before: start, bytes, signature: Some(b"FADB") };
            return of.get(chunks, file, number, entry);
        }
        let prefix = start + pages.div_ceil(8);
        let head = file.checked_once(block, prefix + 4, Some(b"FADB"))?;
        let (i, within) = (number / page, number % page);
        if !bit(&head[start as usize..], i) {
            return Ok(None);
        }
        let whole = entries(page, 4).ok_or_else(too_large)?;
        let bytes = entries(page.min(count - i * page), 4).ok_or_else(too_large)?;
        let first =
            i.checked_mul(whole).and_then(|n| n.checked_add(prefix + 4)?.checked_add(block));
        let of =
            Entries { address: first.ok_or_else(too_large)?, before: 0, bytes, signature: None };
        of.get(chunks, file, within, entry)
    })
}

/// The parameters of an extensible array.
struct Shape {
    entry: u64,
    /// Bytes of the offset of a block.
    offset_bytes: u64,
    /// Entries in the index block.
    first: u64,
    /// Entries of the smallest block.
    least: u64,
    /// Blocks of blocks whose blocks the index block lists.
    inline: u32,
    /// All of them.
    blocks: u32,
    /// Blocks that the index block lists.
    listed: u64,
    page: u64,
    index: u64,
}

/// Finds chunks in an extensible array.
pub(super) fn extensible(
    chunks: &Chunks,
    file: &File<'_>,
    address: u64,
    units: &[&Dims],
) -> Result<Vec<Option<Place>>, Fault> {
    let (o, l) = (file.sizes.offset as u64, file.sizes.length as u64);
    let at = file.offset(address)?;
    let mut r = file.checked(address, 16 + 6 * l + o, b"EAHD")?;
    let entry = head(&mut r, "an extensible array", chunks)?;
    let (bits, first, least, pointers) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
    let page_bits = r.u8()?;
    r.skip(6 * file.sizes.length)?;
    let Some(index) = file.sizes.address(&mut r)? else { return Ok(vec![None; units.len()]) };
    let is_sound = (1..=64).contains(&bits)
        && least.is_power_of_two()
        && pointers.is_power_of_two()
        && pointers > 1
        && page_bits < 32
        && least.ilog2() < bits.into();
    if !is_sound {
        let reason = format!("an array of 2^{bits} entries, {least} in a block, {pointers} blocks");
        return Err(Fault::bad(at, reason));
    }
    let shape = Shape {
        entry,
        offset_bytes: u64::from(bits).div_ceil(8),
        first: first.into(),
        least: least.into(),
        inline: 2 * pointers.ilog2(),
        blocks: 1 + u32::from(bits) - least.ilog2(),
        listed: 2 * (u64::from(pointers) - 1),
        page: 1 << page_bits,
        index,
    };
    if shape.inline > shape.blocks {
        return Err(Fault::bad(at, format!("{} blocks of {}", shape.inline, shape.blocks)));
    }
    // The axis without a bound is the slowest one.
    let slowest = chunks.max.iter().position(|n| *n == UNLIMITED);
    file.each(units, |unit| {
        let number = chunks.number(unit, slowest);
        let number = number.ok_or_else(|| Fault::bad(at, "a chunk has a number beyond 2^64"))?;
        shape.find(chunks, file, number)
    })
}

impl Shape {
    fn find(&self, chunks: &Chunks, file: &File<'_>, number: u64) -> Result<Option<Place>, Fault> {
        let o = file.sizes.offset as u64;
        let start = 6 + o;
        let lists = start + self.first * self.entry;
        let bytes = lists + (self.listed + u64::from(self.blocks - self.inline)) * o + 4;
        let index = file.checked_once(self.index, bytes, Some(b"EAIB"))?;
        if number < self.first {
            let signature = Some(b"EAIB");
            let of = Entries { address: self.index, before: start, bytes, signature };
            return of.get(chunks, file, number, self.entry);
        }
        let pointer = |of: &[u8], at: u64| {
            let bytes = of.get(at as usize..).unwrap_or_default();
            file.sizes.address(&mut Reader::new(bytes, self.index, false))
        };
        let number = number - self.first;
        // Block `b` of blocks has 2^b times the entries of the smallest one.
        let b = (number / self.least).saturating_add(1).ilog2();
        if b >= self.blocks {
            return Ok(None);
        }
        let within = number - ((1u64 << b) - 1) * self.least;
        let count = self.least << b.div_ceil(2);
        let (i, within) = (within / count, within % count);
        let data = |address, is_paged: bool| {
            let before = start + self.offset_bytes;
            let bytes = before + if is_paged { 0 } else { count * self.entry } + 4;
            Entries { address, before, bytes, signature: Some(b"EADB") }
        };
        if b < self.inline {
            // Blocks before those of `b`: 1 + 1 + 2 + 2 + 4 + 4 + …
            let before: u64 = (0..b).map(|b| 1u64 << (b / 2)).sum();
            let Some(block) = pointer(&index, lists + (before + i) * o)? else { return Ok(None) };
            return data(block, false).get(chunks, file, within, self.entry);
        }
        let at = lists + (self.listed + u64::from(b - self.inline)) * o;
        let Some(block) = pointer(&index, at)? else { return Ok(None) };
        let blocks = 1u64 << (b / 2);
        let is_paged = count > self.page;
        let pages = if is_paged { count / self.page } else { 0 };
        let start_of_list = start + self.offset_bytes + blocks.saturating_mul(pages.div_ceil(8));
        let bytes = blocks.saturating_mul(o).saturating_add(start_of_list).saturating_add(4);
        let list = file.checked_once(block, bytes, Some(b"EASB"))?;
        let Some(address) = pointer(&list, start_of_list + i * o)? else { return Ok(None) };
        let of = data(address, is_paged);
        if !is_paged {
            return of.get(chunks, file, within, self.entry);
        }
        let page = within / self.page;
        if !bit(&list[(start + self.offset_bytes) as usize..], i * pages + page) {
            return Ok(None);
        }
        let bytes = self.page * self.entry + 4;
        let of = Entries {
            address: of.address.saturating_add(of.bytes).saturating_add(page.saturating_mul(bytes)),
            before: 0,
            bytes,
            signature: None,
        };
        of.get(chunks, file, within % self.page, self.entry)
    }
}

impl Entries {
    fn get(
        &self,
        chunks: &Chunks,
        file: &File<'_>,
        i: u64,
        entry: u64,
    ) -> Result<Option<Place>, Fault> {
        let all = file.checked_once(self.address, self.bytes, self.signature)?;
        let start = self.before + i * entry;
        let bytes = all.get(start as usize..(start + entry) as usize).unwrap_or_default();
        let mut r = Reader::new(bytes, file.offset(self.address)? + start, false);
        chunks.entry(&file.sizes, &mut r, entry as usize)
    }
}

/// Reads the version and the kind of entries; returns the bytes of an entry.
fn head(r: &mut Reader<'_>, what: &str, chunks: &Chunks) -> Result<u64, Fault> {
    version(r, what, 0)?;
    let (at, kind) = (r.offset(), r.u8()?);
    if kind != u8::from(chunks.is_filtered) {
        return Err(Fault::bad(at, format!("{what} of kind {kind}")));
    }
    Ok(r.u8()?.into())
}

/// A bit; the first one is the highest of its byte.
fn bit(bytes: &[u8], i: u64) -> bool {
    let byte = usize::try_from(i / 8).ok().and_then(|i| bytes.get(i));
    byte.is_some_and(|b| b >> (7 - i % 8) & 1 == 1)
}
