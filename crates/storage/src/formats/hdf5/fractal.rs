//! Fractal heaps: the links and attributes of objects with many of them.
//!
//! ```text
//!   header ─▶ direct block, or indirect block ─▶ rows of `width` blocks: 2 of the first size, then twice the one before
//! ```
//!
//! # Source
//! HDF5 File Format Specification 3.0, III.G.

use crate::formats::filters::Filters;
use crate::formats::hdf5::btree2::{self, Record};
use crate::formats::hdf5::file::{Block, File, bytes_for, checksum, version};
use crate::formats::hdf5::pipeline;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Upper bound on indirect blocks within indirect blocks.
const DEPTH_MAX: usize = 64;

/// Upper bound on the size of a block.
const BLOCK_BYTES_MAX: u64 = 1 << 31;

/// Upper bound on an object.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

pub(super) struct Heap<'f> {
    /// Offset of its header.
    at: u64,
    /// Bytes of offsets and lengths in the ids of objects.
    widths: (usize, usize),
    /// Bytes of an offset in blocks.
    block_offset: usize,
    has_checksums: bool,
    is_filtered: bool,
    id_bytes: u64,
    /// The tree of objects that are too large for blocks.
    huge: Option<u64>,
    table_width: u64,
    first_bytes: u64,
    direct_max: u64,
    /// The root block with the bytes it has if it is encoded, and its number of rows: 0 for a direct block.
    root: Option<Child>,
    rows: u64,
    filters: Option<Filters>,
    /// Direct blocks that were read, by offset in the heap.
    blocks: RefCell<BTreeMap<u64, Block<'f>>>,
    indirect: RefCell<BTreeMap<u64, Rc<Vec<Option<Child>>>>>,
}

/// A block below another one.
#[derive(Debug, Clone, Copy)]
struct Child {
    address: u64,
    /// Encoded bytes and the filters that were not applied.
    encoded: Option<(u64, u32)>,
}

impl<'f> Heap<'f> {
    /// The heap of an object's many links or attributes, and the records of the tree of this kind with their names;
    /// `None` if there are few. `info` has both addresses, perhaps after a number of `order_bytes` bytes.
    pub(super) fn listed(
        file: &File<'f>,
        info: &mut Reader<'_>,
        what: &str,
        order_bytes: usize,
        kind: u8,
    ) -> Result<Option<(Heap<'f>, Vec<Record>)>, Fault> {
        version(info, what, 0)?;
        let flags = info.u8()?;
        info.skip(if flags & 1 != 0 { order_bytes } else { 0 })?;
        let (heap, tree) = (file.sizes.address(info)?, file.sizes.address(info)?);
        let (Some(heap), Some(tree)) = (heap, tree) else { return Ok(None) };
        file.will_read(tree, 64);
        Ok(Some((Heap::read(file, heap)?, btree2::records(file, tree, &[kind])?)))
    }

    pub(super) fn read(file: &File<'f>, address: u64) -> Result<Heap<'f>, Fault> {
        let (o, l) = (file.sizes.offset, file.sizes.length);
        let at = file.offset(address)?;
        // The length of a header depends on its filters.
        let mut r = file.block(address, 9, b"FRHP")?;
        version(&mut r, "a fractal heap", 0)?;
        let (id_bytes, filter_bytes) = (r.u16()?, r.u16()?);
        let more = if filter_bytes == 0 { 0 } else { l as u64 + 4 + u64::from(filter_bytes) };
        let bytes = 26 + 3 * o as u64 + 12 * l as u64 + more;
        let mut r = file.checked(address, bytes, b"FRHP")?;
        r.skip(5)?;
        let flags = r.u8()?;
        let object_max = r.u32()?;
        r.skip(l)?;
        let huge = file.sizes.address(&mut r)?;
        r.skip(l + o + 8 * l)?;
        let table_width = r.u16()?.into();
        let (first_bytes, direct_max) = (file.sizes.length(&mut r)?, file.sizes.length(&mut r)?);
        let index_bits = r.u16()?;
        r.skip(2)?;
        let root = file.sizes.address(&mut r)?;
        let rows = r.u16()?.into();
        let mut encoded = None;
        let mut filters = None;
        let is_sound = first_bytes.is_power_of_two()
            && direct_max.is_power_of_two()
            && (first_bytes..=BLOCK_BYTES_MAX).contains(&direct_max)
            && (1..=64).contains(&index_bits)
            && table_width > 0;
        if !is_sound {
            let reason = format!(
                "a heap of {index_bits} bits with blocks of {first_bytes} to {direct_max} bytes"
            );
            return Err(Fault::bad(at, reason));
        }
        if filter_bytes > 0 {
            encoded = Some((file.sizes.length(&mut r)?, r.u32()?));
            filters =
                Some(pipeline::list(&mut r)?.filters(direct_max, 0).map_err(Fault::unsupported)?);
        }
        let by_max = (direct_max.ilog2() as usize).div_ceil(8);
        Ok(Heap {
            at,
            widths: (usize::from(index_bits).div_ceil(8), by_max.min(bytes_for(object_max.into()))),
            block_offset: usize::from(index_bits).div_ceil(8),
            has_checksums: flags & 2 != 0,
            is_filtered: filters.is_some(),
            id_bytes: id_bytes.into(),
            huge,
            table_width,
            first_bytes,
            direct_max,
            root: root.map(|address| Child { address, encoded: encoded.filter(|_| rows == 0) }),
            rows,
            filters,
            blocks: RefCell::default(),
            indirect: RefCell::default(),
        })
    }

    /// The object of an id.
    pub(super) fn get(&self, file: &File<'f>, id: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut r = Reader::new(id, self.at, false);
        let first = r.u8()?;
        match first >> 4 & 3 {
            0 => {
                let (offset, len) = (r.uint(self.widths.0)?, r.uint(self.widths.1)?);
                self.managed(file, offset, len)
            }
            1 => self.huge(file, &mut r),
            2 => {
                let long = self.id_bytes > 17;
                let mut len = usize::from(first & 15);
                if long {
                    len = len << 8 | usize::from(r.u8()?);
                }
                Ok(r.bytes(len + 1)?.to_vec())
            }
            n => Err(Fault::bad(self.at, format!("an object of kind {n}"))),
        }
    }

    fn managed(&self, file: &File<'f>, offset: u64, len: u64) -> Result<Vec<u8>, Fault> {
        let none = || Fault::bad(self.at, format!("the heap has no block for byte {offset}"));
        let (mut child, mut rows) = (self.root.ok_or_else(none)?, self.rows);
        // Of the block in the heap, and of the object in the block.
        let (mut start, mut bytes) = (0u64, self.first_bytes);
        for _ in 0..DEPTH_MAX {
            if rows == 0 {
                let block = self.direct(file, child, start, bytes)?;
                let at = usize::try_from(offset - start).map_err(|_| none())?;
                let end = usize::try_from(len).ok().and_then(|n| at.checked_add(n));
                let found = end.and_then(|end| block.get(at..end)).ok_or_else(none)?;
                return Ok(found.to_vec());
            }
            let children = self.children(file, child, rows)?;
            let line = self.first_bytes.checked_mul(self.table_width).ok_or_else(none)?;
            let within = offset - start;
            let row = if within < line { 0 } else { u64::from((within / line).ilog2()) + 1 };
            let size = self.row_bytes(row).ok_or_else(none)?;
            let first = if row == 0 { 0 } else { line << (row - 1) };
            let column = (within - first) / size;
            let i = row.checked_mul(self.table_width).and_then(|n| n.checked_add(column));
            let i = i.and_then(|i| usize::try_from(i).ok()).ok_or_else(none)?;
            child = children.get(i).copied().flatten().ok_or_else(none)?;
            start += first + column * size;
            bytes = size;
            // A block of blocks that has `size` bytes.
            rows = match size > self.direct_max {
                true => u64::from((size / line.max(1)).max(1).ilog2()) + 1,
                false => 0,
            };
        }
        Err(Fault::bad(self.at, format!("more than {DEPTH_MAX} blocks within blocks")))
    }

    /// Bytes of a block of a row.
    fn row_bytes(&self, row: u64) -> Option<u64> {
        let shift = u32::try_from(row.saturating_sub(1)).ok().filter(|n| *n < 63)?;
        self.first_bytes.checked_mul(1 << shift)
    }

    fn children(
        &self,
        file: &File<'f>,
        of: Child,
        rows: u64,
    ) -> Result<Rc<Vec<Option<Child>>>, Fault> {
        if let Some(known) = self.indirect.borrow().get(&of.address) {
            return Ok(known.clone());
        }
        let (o, l) = (file.sizes.offset as u64, file.sizes.length as u64);
        let direct_rows = u64::from(self.direct_max.ilog2() - self.first_bytes.ilog2()) + 2;
        let direct = rows.min(direct_rows) * self.table_width;
        let other = rows.saturating_sub(direct_rows) * self.table_width;
        let wide = if self.is_filtered { o + l + 4 } else { o };
        let bytes = 9 + o + self.block_offset as u64 + direct * wide + other * o;
        let mut r = file.checked(of.address, bytes, b"FHIB")?;
        version(&mut r, "an indirect block", 0)?;
        r.skip(file.sizes.offset + self.block_offset)?;
        let mut out = Vec::new();
        for i in 0..direct + other {
            let address = file.sizes.address(&mut r)?;
            let encoded = match self.is_filtered && i < direct {
                true => Some((file.sizes.length(&mut r)?, r.u32()?)),
                false => None,
            };
            out.push(address.map(|address| Child { address, encoded }));
        }
        let out = Rc::new(out);
        self.indirect.borrow_mut().insert(of.address, out.clone());
        Ok(out)
    }

    fn direct(
        &self,
        file: &File<'f>,
        of: Child,
        start: u64,
        bytes: u64,
    ) -> Result<Block<'f>, Fault> {
        if let Some(known) = self.blocks.borrow().get(&start) {
            return Ok(known.clone());
        }
        let at = file.offset(of.address)?;
        let block = match (&self.filters, of.encoded) {
            (Some(filters), Some((encoded, skipped))) => {
                let stored = file.read(of.address, encoded)?;
                let decoded = filters.resized(bytes).decode(&stored, skipped);
                Cow::Owned(decoded.map_err(|e| Fault::bad(at, e))?.into_owned())
            }
            _ => file.read(of.address, bytes)?,
        };
        let check = 5 + file.sizes.offset + self.block_offset;
        let prefix = check + if self.has_checksums { 4 } else { 0 };
        if !block.starts_with(b"FHDB") || block.len() < prefix {
            return Err(Fault::bad(at, "a block of a heap lacks its signature"));
        }
        if self.has_checksums {
            let mut zeroed = block.to_vec();
            let want: &mut [u8] = &mut zeroed[check..prefix];
            let told = want.iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
            want.fill(0);
            let is = checksum(&zeroed);
            if is != told {
                let reason = format!("the checksum of a block is {is:08x}, expected {told:08x}");
                return Err(Fault::bad(at, reason));
            }
        }
        let out = Rc::new(block);
        self.blocks.borrow_mut().insert(start, out.clone());
        Ok(out)
    }

    /// An object with a place of its own in the file.
    fn huge(&self, file: &File<'f>, r: &mut Reader<'_>) -> Result<Vec<u8>, Fault> {
        let (o, l) = (file.sizes.offset as u64, file.sizes.length as u64);
        let direct = o + l + if self.is_filtered { 4 + l } else { 0 };
        let mut decoded = 0;
        let child = if self.id_bytes > direct {
            let (address, len) = (file.sizes.defined(r)?, file.sizes.length(r)?);
            let mut skipped = 0;
            if self.is_filtered {
                (skipped, decoded) = (r.u32()?, file.sizes.length(r)?);
            }
            Child { address, encoded: Some((len, skipped)) }
        } else {
            let width = usize::try_from(self.id_bytes.saturating_sub(1)).unwrap_or(0).min(8);
            let key = r.uint(width)?;
            let tree = self.huge.ok_or_else(|| Fault::bad(self.at, "it has no large objects"))?;
            let mut found = None;
            for (record, at) in btree2::records(file, tree, &[1, 2])? {
                let mut r = Reader::new(record, at, false);
                let (address, len) = (file.sizes.defined(&mut r)?, file.sizes.length(&mut r)?);
                let mut skipped = 0;
                let mut size = 0;
                if self.is_filtered {
                    (skipped, size) = (r.u32()?, file.sizes.length(&mut r)?);
                }
                if file.sizes.length(&mut r)? == key {
                    decoded = size;
                    found = Some(Child { address, encoded: Some((len, skipped)) });
                    break;
                }
            }
            found.ok_or_else(|| Fault::bad(self.at, format!("it has no large object {key}")))?
        };
        let at = file.offset(child.address)?;
        let (len, skipped) = child.encoded.unwrap_or_default();
        if len.max(decoded) > OBJECT_BYTES_MAX {
            let reason = format!("an object of {len} bytes, at most {OBJECT_BYTES_MAX} are read");
            return Err(Fault::bad(at, reason));
        }
        let stored = file.read(child.address, len)?;
        match &self.filters {
            None => Ok(stored.into_owned()),
            Some(filters) => {
                let out = filters.resized(decoded).decode(&stored, skipped);
                out.map(Cow::into_owned).map_err(|e| Fault::bad(at, e))
            }
        }
    }
}
