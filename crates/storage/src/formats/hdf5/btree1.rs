//! Nodes of version 1 B-trees.
//!
//! # Source
//! HDF5 File Format Specification 3.0, III.A.1.

use crate::formats::hdf5::file::File;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;

/// Upper bound on the depth of a tree.
const DEPTH_MAX: u8 = 32;

/// The depth of a node, the number of its entries, and the entries: a key and a child in `entry` bytes. `above` is the
/// depth of the node that leads to it.
pub(super) fn node<'f>(
    file: &File<'f>,
    address: u64,
    kind: u8,
    above: Option<u8>,
    entry: u64,
) -> Result<(u8, u16, Reader<'f>), Fault> {
    let mut r = file.block(address, 8, b"TREE")?;
    let (at, is, depth, count) = (r.offset(), r.u8()?, r.u8()?, r.u16()?);
    if is != kind || depth > DEPTH_MAX || above.is_some_and(|d| d != depth + 1) {
        return Err(Fault::bad(at, format!("a node of kind {is} at level {depth}")));
    }
    let start = address + 8 + 2 * file.sizes.offset as u64;
    Ok((depth, count, file.reader(start, u64::from(count) * entry)?))
}
