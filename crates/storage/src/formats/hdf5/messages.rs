//! Messages of datasets: shape, fill value, layout.
//!
//! # Source
//! HDF5 File Format Specification 3.0, IV.A.2.b, f, g and i.

use crate::formats::hdf5::file::Sizes;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use tessera_planner::region::Dims;

/// The length of an axis that grows without a bound.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// Lengths of axes.
#[derive(Debug, Clone, Default)]
pub(super) struct Space {
    pub(super) shape: Vec<u64>,
    /// The greatest lengths that they may have.
    pub(super) max: Vec<u64>,
    /// True if it has no cells.
    pub(super) is_null: bool,
}

impl Space {
    pub(super) fn parse(r: &mut Reader<'_>, sizes: &Sizes) -> Result<Space, Fault> {
        let at = r.offset();
        let (version, rank, flags) = (r.u8()?, r.u8()?, r.u8()?);
        let is_null = match version {
            1 => {
                r.skip(5)?;
                false
            }
            2 => r.u8()? == 2,
            v => return Err(Fault::bad(at, format!("a dataspace of version {v}"))),
        };
        let mut lens = || (0..rank).map(|_| sizes.length(r)).collect::<Result<Vec<u64>, Fault>>();
        let shape = lens()?;
        let unlimited = UNLIMITED >> (64 - 8 * sizes.length);
        let max = match flags & 1 {
            1 => lens()?.into_iter().map(|n| if n == unlimited { UNLIMITED } else { n }).collect(),
            _ => shape.clone(),
        };
        if max.iter().zip(&shape).any(|(max, n)| max < n) {
            return Err(Fault::bad(at, format!("lengths {shape:?} beyond their maxima {max:?}")));
        }
        Ok(Space { shape, max, is_null })
    }

    /// Number of cells; `None` if it has more than 2^63.
    pub(super) fn cells(&self) -> Option<u64> {
        if self.is_null {
            return Some(0);
        }
        self.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).filter(|n| *n < 1 << 63)
    }
}

/// The value of cells that were not written; `None` if it is the default.
pub(super) fn fill(r: &mut Reader<'_>, is_old: bool) -> Result<Option<Vec<u8>>, Fault> {
    let at = r.offset();
    let has_value = if is_old {
        true
    } else {
        match r.u8()? {
            1 => {
                r.skip(3)?;
                true
            }
            2 => {
                r.skip(2)?;
                r.u8()? == 1
            }
            3 => r.u8()? & 0x20 != 0,
            v => return Err(Fault::bad(at, format!("a fill value of version {v}"))),
        }
    };
    if !has_value {
        return Ok(None);
    }
    match r.uint(4.min(r.left()))? {
        0 => Ok(None),
        // Minus one: it is undefined.
        0xffff_ffff => Ok(None),
        n => Ok(Some(r.bytes(n as usize)?.to_vec())),
    }
}

/// The place of the cells of a dataset.
#[derive(Debug)]
pub(super) enum Layout {
    /// In the message.
    Compact(Vec<u8>),
    /// Contiguous; nowhere if they were not written.
    Contiguous(Option<u64>),
    Chunked(Chunked),
    Virtual,
}

#[derive(Debug)]
pub(super) struct Chunked {
    /// Cells along each axis.
    pub(super) unit: Dims,
    pub(super) index: Index,
    /// Address of the index; `None` if no chunk was written.
    pub(super) address: Option<u64>,
    /// True if chunks that reach beyond the array are stored without filters.
    pub(super) is_edge_raw: bool,
}

/// How the chunks are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Index {
    BTree1,
    /// With its bytes and mask if there are filters.
    Single(Option<(u64, u32)>),
    Implicit,
    FixedArray,
    ExtensibleArray,
    BTree2,
}

impl Layout {
    pub(super) fn parse(r: &mut Reader<'_>, sizes: &Sizes) -> Result<Layout, Fault> {
        let at = r.offset();
        match r.u8()? {
            1 | 2 => Layout::parse_old(r, sizes),
            version @ 3..=5 => match r.u8()? {
                0 => {
                    let n = r.u16()?;
                    Ok(Layout::Compact(r.bytes(n.into())?.to_vec()))
                }
                1 => Ok(Layout::Contiguous(sizes.address(r)?)),
                2 if version == 3 => {
                    let rank = r.u8()?.into();
                    let address = sizes.address(r)?;
                    let unit = lengths(r, rank, 4)?;
                    let index = Index::BTree1;
                    Ok(Layout::Chunked(Chunked { unit, index, address, is_edge_raw: false }))
                }
                2 => Layout::parse_chunked(r, sizes),
                3 => Ok(Layout::Virtual),
                n => Err(Fault::bad(at, format!("a layout of class {n}"))),
            },
            v => Err(Fault::bad(at, format!("a layout of version {v}"))),
        }
    }

    fn parse_old(r: &mut Reader<'_>, sizes: &Sizes) -> Result<Layout, Fault> {
        let (rank, at, class) = (usize::from(r.u8()?), r.offset(), r.u8()?);
        r.skip(5)?;
        let address = if class == 0 { None } else { sizes.address(r)? };
        match class {
            0 => {
                r.skip(4 * rank)?;
                let n = r.u32()?;
                Ok(Layout::Compact(r.bytes(n as usize)?.to_vec()))
            }
            1 => Ok(Layout::Contiguous(address)),
            2 => {
                let (unit, index) = (lengths(r, rank, 4)?, Index::BTree1);
                Ok(Layout::Chunked(Chunked { unit, index, address, is_edge_raw: false }))
            }
            n => Err(Fault::bad(at, format!("a layout of class {n}"))),
        }
    }

    fn parse_chunked(r: &mut Reader<'_>, sizes: &Sizes) -> Result<Layout, Fault> {
        let (flags, rank, at) = (r.u8()?, r.u8()?.into(), r.offset());
        let width = r.u8()?.into();
        if !(1..=8).contains(&width) {
            return Err(Fault::bad(at, format!("lengths of {width} bytes")));
        }
        let unit = lengths(r, rank, width)?;
        let at = r.offset();
        let (index, more) = match r.u8()? {
            1 if flags & 2 != 0 => (Index::Single(Some((sizes.length(r)?, r.u32()?))), 0),
            1 => (Index::Single(None), 0),
            2 => (Index::Implicit, 0),
            3 => (Index::FixedArray, 1),
            4 => (Index::ExtensibleArray, 5),
            5 => (Index::BTree2, 6),
            n => return Err(Fault::bad(at, format!("an index of chunks of kind {n}"))),
        };
        r.skip(more)?;
        let address = sizes.address(r)?;
        Ok(Layout::Chunked(Chunked { unit, index, address, is_edge_raw: flags & 1 != 0 }))
    }
}

/// Lengths of a chunk. The last of `rank` is the size of a cell.
fn lengths(r: &mut Reader<'_>, rank: usize, width: usize) -> Result<Dims, Fault> {
    let at = r.offset();
    let Some(axes) = rank.checked_sub(1) else {
        return Err(Fault::bad(at, "a chunk without lengths"));
    };
    let unit = (0..axes).map(|_| r.uint(width)).collect::<Result<Dims, Fault>>()?;
    r.skip(width)?;
    match unit.contains(&0) {
        true => Err(Fault::bad(at, format!("a chunk with lengths {unit:?}"))),
        false => Ok(unit),
    }
}
