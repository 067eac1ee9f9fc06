//! Indices of chunks. Only the part of an index that leads to the wanted chunks is read.
//!
//! # Source
//! HDF5 File Format Specification 3.0, III.A.1, III.A.2, VII; `H5Dbtree.c`, `H5Dnone.c`, `H5Dsingle.c`.

use crate::formats::hdf5::arrays;
use crate::formats::hdf5::btree1;
use crate::formats::hdf5::btree2::Tree;
use crate::formats::hdf5::file::{File, Sizes};
use crate::formats::hdf5::messages::Index;
use crate::formats::numbers::Reader;
use crate::formats::view::{Fault, View};
use crate::formats::{ChunkIndex, Place};
use std::cmp::Ordering;
use tessera_planner::region::Dims;

/// Bytes of a node that are announced before it is read.
const NODE_BYTES: u64 = 8192;

/// The chunks of a dataset.
#[derive(Debug)]
pub(super) struct Chunks {
    pub(super) sizes: Sizes,
    pub(super) index: Index,
    /// Address of the index; `None` if no chunk was written.
    pub(super) address: Option<u64>,
    /// The stored lengths.
    pub(super) shape: Dims,
    /// The greatest lengths that the axes may have.
    pub(super) max: Vec<u64>,
    pub(super) unit: Dims,
    /// Bytes of a chunk without filters.
    pub(super) bytes: u64,
    pub(super) is_filtered: bool,
    /// True if chunks that reach beyond the array are stored without filters.
    pub(super) is_edge_raw: bool,
    /// Moves the bits of masks: filters that HDF5 does not list come first.
    pub(super) shift: u32,
}

/// Chunks of cells that are contiguous in the file. Along an axis they have one cell, unless they have all of each axis
/// after it.
#[derive(Debug)]
pub(super) struct Contiguous {
    /// Offset of the first cell in the file.
    pub(super) offset: u64,
    pub(super) shape: Dims,
    pub(super) unit: Dims,
    /// Bytes of a cell.
    pub(super) size: u64,
}

impl ChunkIndex for Contiguous {
    fn find(&self, _: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        let place = |at: &Dims| {
            let (mut first, mut cells) = (0u64, 1u64);
            for ((i, unit), n) in at.iter().zip(&self.unit).zip(&self.shape) {
                let start = i.checked_mul(*unit)?;
                first = first.checked_mul(*n)?.checked_add(start)?;
                cells = cells.checked_mul((*unit).min(n.saturating_sub(start)))?;
            }
            let offset = first.checked_mul(self.size)?.checked_add(self.offset)?;
            Some(Place { offset, bytes: cells.checked_mul(self.size)?, skipped: 0 })
        };
        let beyond = || Fault::bad(self.offset, "cells beyond 2^64 bytes");
        units.iter().map(|at| place(at).map(Some).ok_or_else(beyond)).collect()
    }

    fn gap(&self) -> Option<u64> {
        Some(0)
    }
}

impl ChunkIndex for Chunks {
    fn find(&self, view: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        let Some(address) = self.address else { return Ok(vec![None; units.len()]) };
        let file = File::new(view, self.sizes);
        // The array may be longer than its stored part.
        let mut order: Vec<usize> = (0..units.len()).filter(|i| self.has(&units[*i])).collect();
        order.sort_by(|a, b| units[*a].cmp(&units[*b]));
        let sorted: Vec<&Dims> = order.iter().map(|i| &units[*i]).collect();
        let found = match self.index {
            Index::BTree1 => self.in_btree1(&file, address, &sorted)?,
            Index::BTree2 => self.in_btree2(&file, address, &sorted)?,
            Index::Single(of) => {
                let (bytes, skipped) = of.unwrap_or((self.bytes, 0));
                let place = Place { offset: address, bytes, skipped };
                let is = |at: &&Dims| at.iter().all(|i| *i == 0);
                sorted.iter().map(|at| is(at).then(|| place.clone())).collect()
            }
            Index::Implicit => {
                let place = |at: &&Dims| {
                    let offset = self.number(at, None)?.checked_mul(self.bytes)?;
                    let offset = offset.checked_add(address)?;
                    Some(Place { offset, bytes: self.bytes, skipped: 0 })
                };
                sorted.iter().map(place).collect()
            }
            Index::FixedArray => arrays::fixed(self, &file, address, &sorted)?,
            Index::ExtensibleArray => arrays::extensible(self, &file, address, &sorted)?,
        };
        let mut out = vec![None; units.len()];
        for ((i, at), place) in order.iter().zip(&sorted).zip(found) {
            let Some(mut place) = place else { continue };
            place.offset = file.offset(place.offset)?;
            place.skipped = match self.is_edge_raw && self.is_edge(at) {
                true => u32::MAX,
                false => place.skipped << self.shift,
            };
            out[*i] = Some(place);
        }
        Ok(out)
    }

    /// Writers append chunks in their order.
    fn gap(&self) -> Option<u64> {
        Some(0)
    }
}

impl Chunks {
    /// True if a chunk begins within the stored lengths.
    fn has(&self, at: &Dims) -> bool {
        let mut axes = at.iter().zip(&self.unit).zip(&self.shape);
        axes.all(|((i, u), n)| i.saturating_mul(*u) < *n)
    }

    /// True if a chunk reaches beyond the array.
    fn is_edge(&self, at: &Dims) -> bool {
        let mut axes = at.iter().zip(&self.unit).zip(&self.shape);
        axes.any(|((i, u), n)| i.saturating_add(1).saturating_mul(*u) > *n)
    }

    /// The number of a chunk among those of an array of the greatest lengths, row-major with `slowest` first.
    pub(super) fn number(&self, at: &Dims, slowest: Option<usize>) -> Option<u64> {
        let axes = slowest.into_iter().chain((0..at.len()).filter(|a| Some(*a) != slowest));
        axes.enumerate().try_fold(0u64, |n, (k, a)| {
            let count = if k == 0 { 1 } else { self.max[a].div_ceil(self.unit[a]) };
            n.checked_mul(count)?.checked_add(at[a])
        })
    }

    /// The place in an entry of an index: address, and with filters bytes and mask.
    pub(super) fn entry(
        &self,
        sizes: &Sizes,
        r: &mut Reader<'_>,
        bytes: usize,
    ) -> Result<Option<Place>, Fault> {
        let at = r.offset();
        let address = sizes.address(r)?;
        let (mut len, mut skipped) = (self.bytes, 0);
        if self.is_filtered {
            match bytes.checked_sub(sizes.offset + 4) {
                Some(width @ 1..=8) => len = r.uint(width)?,
                _ => return Err(Fault::bad(at, format!("an entry of {bytes} bytes"))),
            }
            skipped = r.u32()?;
        } else if bytes != sizes.offset {
            return Err(Fault::bad(at, format!("an entry of {bytes} bytes")));
        }
        Ok(address.map(|offset| Place { offset, bytes: len, skipped }))
    }

    fn in_btree2(
        &self,
        file: &File<'_>,
        address: u64,
        units: &[&Dims],
    ) -> Result<Vec<Option<Place>>, Fault> {
        let tree = Tree::read(file, address)?;
        let at = file.offset(address)?;
        let kind = if self.is_filtered { 11 } else { 10 };
        let record = tree.record_bytes as usize;
        let Some(entry) = record.checked_sub(8 * self.unit.len()).filter(|_| tree.kind == kind)
        else {
            let reason = format!("an index of kind {} with {record} bytes a chunk", tree.kind);
            return Err(Fault::bad(at, reason));
        };
        let numbers = |bytes: &[u8]| {
            let (numbers, _) = bytes.get(entry..).unwrap_or_default().as_chunks::<8>();
            numbers.iter().map(|n| u64::from_le_bytes(*n)).collect::<Dims>()
        };
        let compare = |key: &&Dims, record: &[u8]| (*key).cmp(&numbers(record));
        let found = tree.find(file, units, &compare)?;
        let place = |found: Option<(Vec<u8>, u64)>| match found {
            None => Ok(None),
            Some((bytes, at)) => self.entry(&file.sizes, &mut Reader::new(bytes, at, false), entry),
        };
        found.into_iter().map(place).collect()
    }

    /// Finds chunks in a B-tree of version 1. A key is a chunk's bytes, mask and first cell.
    fn in_btree1(
        &self,
        file: &File<'_>,
        address: u64,
        units: &[&Dims],
    ) -> Result<Vec<Option<Place>>, Fault> {
        let mut out = vec![None; units.len()];
        let mut level = vec![(address, None, 0..units.len())];
        while !level.is_empty() {
            level.iter().for_each(|(address, _, _)| file.will_read(*address, NODE_BYTES));
            let nodes =
                file.each(&level, |(address, above, _)| self.node(file, *address, *above))?;
            let mut next = Vec::new();
            for ((_, _, range), node) in level.into_iter().zip(nodes) {
                let mut start = range.start;
                for (k, child) in node.children.iter().enumerate() {
                    if node.depth == 0 {
                        while start < range.end && *units[start] < child.first {
                            start += 1;
                        }
                        while start < range.end && *units[start] == child.first {
                            let (bytes, skipped) = (child.bytes.into(), child.skipped);
                            out[start] = Some(Place { offset: child.address, bytes, skipped });
                            start += 1;
                        }
                        continue;
                    }
                    let mut end = start;
                    let after = node.children.get(k + 1).map(|c| &c.first);
                    while end < range.end && after.is_none_or(|after| *units[end] < *after) {
                        end += 1;
                    }
                    if start < end {
                        next.push((child.address, Some(node.depth), start..end));
                    }
                    start = end;
                }
            }
            level = next;
        }
        Ok(out)
    }

    fn node(&self, file: &File<'_>, address: u64, above: Option<u8>) -> Result<Node, Fault> {
        let entry = 16 + 8 * self.unit.len() as u64 + file.sizes.offset as u64;
        let (depth, count, mut r) = btree1::node(file, address, 1, above, entry)?;
        let mut children = Vec::new();
        for _ in 0..count {
            let (bytes, skipped) = (r.u32()?, r.u32()?);
            let at = r.offset();
            let mut first = Dims::new();
            for unit in &self.unit {
                let cell = r.u64()?;
                if cell % unit != 0 {
                    let reason = format!("a chunk at cell {cell}, chunks have {unit}");
                    return Err(Fault::bad(at, reason));
                }
                first.push(cell / unit);
            }
            r.skip(8)?;
            children.push(Child { bytes, skipped, first, address: file.sizes.defined(&mut r)? });
        }
        let is_sorted = children.is_sorted_by(|a, b| a.first.cmp(&b.first) == Ordering::Less);
        match is_sorted {
            true => Ok(Node { depth, children }),
            false => {
                let at = file.offset(address)?;
                Err(Fault::bad(at, "the chunks of a node are not sorted"))
            }
        }
    }
}

/// A node of a B-tree of version 1.
struct Node {
    depth: u8,
    children: Vec<Child>,
}

struct Child {
    bytes: u32,
    skipped: u32,
    /// The first chunk at or below it.
    first: Dims,
    address: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn contiguous_cells_are_chunks() {
        let chunks = |shape: &[u64], unit: &[u64]| Contiguous {
            offset: 100,
            shape: shape.into(),
            unit: unit.into(),
            size: 2,
        };
        let find = |chunks: &Contiguous, at: &[u64]| {
            let found = chunks.find(&View::whole(&[]), &[at.into()]).unwrap().remove(0).unwrap();
            (found.offset, found.bytes)
        };
        let rows = chunks(&[5, 7], &[2, 7]);
        assert_eq!((find(&rows, &[0, 0]), find(&rows, &[1, 0])), ((100, 28), (128, 28)));
        assert_eq!(find(&rows, &[2, 0]), (156, 14));
        let within = chunks(&[2, 5, 7], &[1, 2, 7]);
        assert_eq!(find(&within, &[1, 2, 0]), (100 + 2 * (35 + 28), 14));
        assert_eq!(find(&chunks(&[], &[]), &[]), (100, 2));
        assert!(rows.find(&View::whole(&[]), &[[u64::MAX, 0].as_slice().into()]).is_err());
    }
}
