//! Heaps of names (local) and of values of any length (global).
//!
//! # Source
//! HDF5 File Format Specification 3.0, III.D and III.E.

use crate::formats::hdf5::file::{File, version};
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// A heap of texts that end with a zero.
pub(super) struct Names<'f> {
    bytes: Cow<'f, [u8]>,
    at: u64,
}

impl<'f> Names<'f> {
    pub(super) fn read(file: &File<'f>, address: u64) -> Result<Names<'f>, Fault> {
        let head = 8 + 2 * file.sizes.length + file.sizes.offset;
        let mut r = file.block(address, head as u64, b"HEAP")?;
        version(&mut r, "a local heap", 0)?;
        r.skip(3)?;
        let bytes = file.sizes.length(&mut r)?;
        r.skip(file.sizes.length)?;
        let data = file.sizes.defined(&mut r)?;
        Ok(Names { bytes: file.read(data, bytes)?, at: file.offset(data)? })
    }

    /// The text at an offset of the heap.
    pub(super) fn get(&self, offset: u64) -> Result<String, Fault> {
        let rest = usize::try_from(offset).ok().and_then(|n| self.bytes.get(n..));
        let text = rest.and_then(|rest| Some(&rest[..rest.iter().position(|&b| b == 0)?]));
        let text = text.ok_or_else(|| {
            let reason =
                format!("no text at byte {offset} of a heap of {} bytes", self.bytes.len());
            Fault::bad(self.at, reason)
        })?;
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}

/// A collection of the global heap.
pub(super) struct Collection<'f> {
    bytes: Cow<'f, [u8]>,
    objects: BTreeMap<u16, Range<usize>>,
}

impl Collection<'_> {
    pub(super) fn get(&self, index: u32) -> Option<&[u8]> {
        let range = self.objects.get(&u16::try_from(index).ok()?)?;
        Some(&self.bytes[range.clone()])
    }
}

/// Reads a collection, once.
pub(super) fn collection<'f>(file: &File<'f>, address: u64) -> Result<Rc<Collection<'f>>, Fault> {
    if let Some(known) = file.collections.borrow().get(&address) {
        return Ok(known.clone());
    }
    let head = 8 + file.sizes.length;
    let mut r = file.block(address, head as u64, b"GCOL")?;
    version(&mut r, "a collection of the global heap", 1)?;
    r.skip(3)?;
    let all = file.sizes.length(&mut r)?;
    let (bytes, at) = (file.read(address, all)?, file.offset(address)?);
    let mut objects = BTreeMap::new();
    let mut r = Reader::new(bytes.clone(), at, false);
    r.skip(head)?;
    while r.left() >= head {
        let index = r.u16()?;
        r.skip(6)?;
        let start = (r.offset() - at) as usize + file.sizes.length;
        let len = usize::try_from(file.sizes.length(&mut r)?).unwrap_or(usize::MAX);
        // Object 0 is the free space at the end.
        if index == 0 {
            break;
        }
        r.skip(len)?;
        objects.insert(index, start..start + len);
        r.skip((len.next_multiple_of(8) - len).min(r.left()))?;
    }
    let out = Rc::new(Collection { bytes, objects });
    file.collections.borrow_mut().insert(address, out.clone());
    Ok(out)
}

/// The collection and the number in it of an object.
pub(super) type Object<'f> = (Rc<Collection<'f>>, u32);

/// A value of any length: the number of items and their object. Empty values may be nowhere.
pub(super) fn value<'f>(
    file: &File<'f>,
    bytes: &[u8],
    at: u64,
) -> Result<(u64, Option<Object<'f>>), Fault> {
    let mut r = Reader::new(bytes, at, false);
    let count = r.u32()?.into();
    let address = file.sizes.address(&mut r)?.filter(|a| *a != 0);
    let index = r.u32()?;
    match address {
        Some(address) if count > 0 => Ok((count, Some((collection(file, address)?, index)))),
        _ => Ok((0, None)),
    }
}

/// Announces the collections of all values of `bytes`.
pub(super) fn will_read(file: &File<'_>, bytes: &[u8]) {
    let width = 8 + file.sizes.offset;
    let mut last = None;
    for v in bytes.chunks_exact(width) {
        let mut r = Reader::new(&v[4..], 0, false);
        if let Ok(Some(address)) = file.sizes.address(&mut r)
            && address != 0
            && last != Some(address)
        {
            last = Some(address);
            if !file.collections.borrow().contains_key(&address) {
                file.will_read(address, 4096);
            }
        }
    }
}

/// The text of a value of any length.
pub(super) fn text(file: &File<'_>, bytes: &[u8], at: u64) -> Result<String, Fault> {
    let (count, Some((heap, index))) = value(file, bytes, at)? else { return Ok(String::new()) };
    let text = heap.get(index).and_then(|t| t.get(..usize::try_from(count).ok()?));
    let text = text.ok_or_else(|| {
        Fault::bad(at, format!("no text of {count} bytes found at object {index} of its heap"))
    })?;
    // A text may end with the zero of C.
    Ok(String::from_utf8_lossy(text).trim_end_matches('\0').to_string())
}
