//! Object headers: the messages that describe a group, a dataset or a type.
//!
//! # Source
//! HDF5 File Format Specification 3.0, IV.A.

use crate::formats::hdf5::file::{File, verified, version};
use crate::formats::hdf5::fractal::Heap;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Kinds of messages.
pub(super) mod kind {
    pub(crate) const DATASPACE: u16 = 1;
    pub(crate) const LINK_INFO: u16 = 2;
    pub(crate) const DATATYPE: u16 = 3;
    pub(crate) const OLD_FILL: u16 = 4;
    pub(crate) const FILL: u16 = 5;
    pub(crate) const LINK: u16 = 6;
    pub(crate) const EXTERNAL: u16 = 7;
    pub(crate) const LAYOUT: u16 = 8;
    pub(crate) const GROUP_INFO: u16 = 10;
    pub(crate) const PIPELINE: u16 = 11;
    pub(crate) const ATTRIBUTE: u16 = 12;
    pub(crate) const SHARED_TABLE: u16 = 15;
    pub(crate) const CONTINUATION: u16 = 16;
    pub(crate) const SYMBOLS: u16 = 17;
    pub(crate) const ATTRIBUTE_INFO: u16 = 21;
}

/// Upper bound on the messages of an object.
const MESSAGES_MAX: usize = 1 << 17;

/// Upper bound on the blocks of a header.
const BLOCKS_MAX: usize = 4096;

#[derive(Debug, Clone)]
pub(super) struct Message {
    kind: u16,
    /// True if it says where the message is.
    is_shared: bool,
    bytes: Vec<u8>,
    /// Its offset in the file.
    at: u64,
}

impl Message {
    fn reader(&self) -> Reader<'_> {
        Reader::new(&self.bytes[..], self.at, false)
    }

    /// The numbers of the message, wherever they are stored.
    pub(super) fn open<'m>(&'m self, file: &File<'_>) -> Result<Reader<'m>, Fault> {
        if self.is_shared { shared(file, &mut self.reader(), self.kind) } else { Ok(self.reader()) }
    }
}

/// The messages of an object.
#[derive(Debug, Default)]
pub(super) struct Header {
    messages: Vec<Message>,
}

/// A part of a header that is not read yet.
struct Block {
    address: u64,
    bytes: u64,
}

impl Header {
    pub(super) fn read(file: &File<'_>, address: u64) -> Result<Header, Fault> {
        let start = file.read(address, 4)?;
        match *start {
            [b'O', b'H', b'D', b'R'] => Header::read_v2(file, address),
            [1, ..] => Header::read_v1(file, address),
            [v, ..] => {
                let reason = format!("an object header of version {v}, expected 1 or 2");
                Err(Fault::bad(file.offset(address)?, reason))
            }
            [] => Err(Fault::bad(file.offset(address)?, "an object header is empty")),
        }
    }

    /// The first message of a kind.
    pub(super) fn get(&self, kind: u16) -> Option<&Message> {
        self.all(kind).next()
    }

    pub(super) fn all(&self, kind: u16) -> impl Iterator<Item = &Message> {
        self.messages.iter().filter(move |m| m.kind == kind)
    }

    fn read_v1(file: &File<'_>, address: u64) -> Result<Header, Fault> {
        let mut r = file.reader(address, 12)?;
        r.skip(2)?;
        let count = r.u16()?;
        r.skip(4)?;
        let bytes = r.u32()?.into();
        let mut out = Header::default();
        let mut left = count.into();
        out.read_blocks(file, Block { address: address + 16, bytes }, |out, block| {
            let r = file.reader(block.address, block.bytes)?;
            out.take_v1(r, &mut left)
        })?;
        Ok(out)
    }

    fn read_v2(file: &File<'_>, address: u64) -> Result<Header, Fault> {
        let mut r = file.reader(address, 6)?;
        r.skip(4)?;
        version(&mut r, "an object header", 2)?;
        let flags = r.u8()?;
        let width = 1 << (flags & 3);
        let skipped =
            6 + if flags & 0x20 == 0 { 0 } else { 16 } + if flags & 0x10 == 0 { 0 } else { 4 };
        let bytes = file.reader(address + skipped, width)?.uint(width as usize)?;
        let prefix = skipped + width;
        let ordered = flags & 4 != 0;
        let mut out = Header::default();
        let first = Block { address, bytes: bytes.saturating_add(prefix + 4) };
        out.read_blocks(file, first, |out, block| {
            let is_first = block.address == address;
            let at = file.offset(block.address)?;
            let mut r =
                Reader::new(verified(file.read(block.address, block.bytes)?, at)?, at, false);
            let (skip, want) = if is_first { (prefix, b"OHDR") } else { (4, b"OCHK") };
            let is = r.bytes(skip as usize)?;
            if !is.starts_with(want) {
                return Err(Fault::bad(at, "a block of a header lacks its signature"));
            }
            out.take_v2(r, ordered)
        })?;
        Ok(out)
    }

    /// Reads the blocks of a header with `take`, which returns the ones that follow.
    fn read_blocks(
        &mut self,
        file: &File<'_>,
        first: Block,
        mut take: impl FnMut(&mut Header, &Block) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (mut blocks, mut seen) = (vec![first], BTreeSet::new());
        while let Some(block) = blocks.pop() {
            let at = file.offset(block.address)?;
            if !seen.insert(block.address) || seen.len() > BLOCKS_MAX {
                return Err(Fault::bad(at, "the blocks of a header form a ring"));
            }
            let before = self.messages.len();
            take(self, &block)?;
            if self.messages.len() > MESSAGES_MAX {
                return Err(Fault::bad(
                    at,
                    format!("a header of more than {MESSAGES_MAX} messages"),
                ));
            }
            for m in self.messages[before..].iter().filter(|m| m.kind == kind::CONTINUATION).rev() {
                let mut r = m.reader();
                let (address, bytes) = (file.sizes.defined(&mut r)?, file.sizes.length(&mut r)?);
                file.will_read(address, bytes);
                blocks.push(Block { address, bytes });
            }
        }
        Ok(())
    }

    fn take_v1(&mut self, mut r: Reader<'_>, left: &mut u32) -> Result<(), Fault> {
        while r.left() >= 8 && *left > 0 {
            let (kind, bytes, flags) = (r.u16()?, r.u16()?, r.u8()?);
            r.skip(3)?;
            *left -= 1;
            self.push(&mut r, kind, bytes, flags)?;
        }
        Ok(())
    }

    fn take_v2(&mut self, mut r: Reader<'_>, ordered: bool) -> Result<(), Fault> {
        let head = if ordered { 6 } else { 4 };
        // A rest that is too short for a message is a gap.
        while r.left() >= head {
            let (kind, bytes, flags) = (r.u8()?, r.u16()?, r.u8()?);
            r.skip(head - 4)?;
            self.push(&mut r, kind.into(), bytes, flags)?;
        }
        Ok(())
    }

    fn push(&mut self, r: &mut Reader<'_>, kind: u16, bytes: u16, flags: u8) -> Result<(), Fault> {
        let at = r.offset();
        let bytes = r.bytes(bytes.into())?;
        // Padding, times and comments are not needed.
        if matches!(kind, 1..=8 | 10..=12 | 15..=17 | 21) {
            let bytes = bytes.to_vec();
            self.messages.push(Message { kind, is_shared: flags & 2 != 0, bytes, at });
        }
        Ok(())
    }
}

/// A message that is stored elsewhere: in the header of another object, or in the heap of shared messages.
pub(super) fn shared<'m>(
    file: &File<'_>,
    r: &mut Reader<'_>,
    kind: u16,
) -> Result<Reader<'m>, Fault> {
    let at = r.offset();
    let (version, how) = (r.u8()?, r.u8()?);
    let address = match (version, how) {
        (1, _) => {
            r.skip(6 + file.sizes.length)?;
            file.sizes.defined(r)?
        }
        (2, _) | (3, 2) => file.sizes.defined(r)?,
        (3, 1) => return in_heap(file, r.bytes(8)?, kind),
        _ => {
            return Err(Fault::bad(
                at,
                format!("a shared message of version {version}, kind {how}"),
            ));
        }
    };
    let header = Header::read(file, address)?;
    match header.messages.into_iter().find(|m| m.kind == kind && !m.is_shared) {
        Some(Message { bytes, at, .. }) => Ok(Reader::new(Cow::Owned(bytes), at, false)),
        None => {
            Err(Fault::bad(at, format!("the object at {address} has no message of kind {kind}")))
        }
    }
}

/// A message in the heap of shared messages, which the extension of the superblock leads to.
pub(super) fn in_heap<'m>(file: &File<'_>, id: &[u8], kind: u16) -> Result<Reader<'m>, Fault> {
    let none = || Fault::bad(file.sizes.base, "it has no table of shared messages");
    let extension = Header::read(file, file.extension.ok_or_else(none)?)?;
    let mut r = extension.get(kind::SHARED_TABLE).ok_or_else(none)?.reader();
    version(&mut r, "a table of shared messages", 0)?;
    let (address, count) = (file.sizes.defined(&mut r)?, u64::from(r.u8()?));
    let entry = 14 + 2 * file.sizes.offset as u64;
    let mut r = file.checked(address, 8 + count * entry, b"SMTB")?;
    for _ in 0..count {
        r.skip(2)?;
        let kinds = r.u16()?;
        r.skip(10)?;
        file.sizes.address(&mut r)?;
        let heap = file.sizes.address(&mut r)?;
        if let (true, Some(heap)) = (kinds >> kind.min(15) & 1 == 1, heap) {
            let at = file.offset(heap)?;
            let bytes = Heap::read(file, heap)?.get(file, id)?;
            return Ok(Reader::new(Cow::Owned(bytes), at, false));
        }
    }
    Err(none())
}
