//! The bytes of a file: superblock, addresses, budget and checksums.

use crate::formats::hdf5::groups::Links;
use crate::formats::hdf5::heap::Collection;
use crate::formats::numbers::Reader;
use crate::formats::view::{Fault, PAGE, View};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The first bytes of a superblock.
const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";

/// Offset of the last place that is searched for a superblock.
const LAST_PLACE: u64 = 1 << 15;

/// Reads that are allowed for any file, besides those for its length.
const READS_MIN: u64 = 20_000;

/// Bytes that may be read of any file, besides those for its length.
const BYTES_MIN: u64 = 8 << 20;

/// How often a byte of a file may be read.
const BYTES_FACTOR: u64 = 16;

/// Sizes of numbers in a file, and where addresses begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Offset of address 0.
    pub(super) base: u64,
    /// Bytes of an address.
    pub(super) offset: usize,
    /// Bytes of a length.
    pub(super) length: usize,
}

impl Sizes {
    /// An address; `None` if it is undefined.
    pub(super) fn address(&self, r: &mut Reader<'_>) -> Result<Option<u64>, Fault> {
        let v = r.uint(self.offset)?;
        Ok((v != u64::MAX >> (64 - 8 * self.offset)).then_some(v))
    }

    /// An address that must be defined.
    pub(super) fn defined(&self, r: &mut Reader<'_>) -> Result<u64, Fault> {
        let at = r.offset();
        self.address(r)?.ok_or_else(|| Fault::bad(at, "an address is undefined"))
    }

    pub(super) fn length(&self, r: &mut Reader<'_>) -> Result<u64, Fault> {
        r.uint(self.length)
    }
}

/// A verified block without its checksum.
pub(super) type Block<'f> = Rc<Cow<'f, [u8]>>;

/// A file while its metadata are parsed.
pub(super) struct File<'f> {
    pub(super) view: &'f View<'f>,
    pub(super) sizes: Sizes,
    reads: Cell<u64>,
    bytes: Cell<u64>,
    /// Collections of the global heap, by address.
    pub(super) collections: RefCell<BTreeMap<u64, Rc<Collection<'f>>>>,
    /// Links of groups, by address.
    pub(super) links: RefCell<BTreeMap<u64, Rc<Links>>>,
    /// Verified blocks, by address and length.
    blocks: RefCell<BTreeMap<(u64, u64), Block<'f>>>,
    /// Address of the superblock's extension.
    pub(super) extension: Option<u64>,
}

/// The contents of a superblock.
pub(super) struct Superblock {
    pub(super) sizes: Sizes,
    /// Address of the header of the root group.
    root: u64,
    extension: Option<u64>,
}

/// True if a file begins with `head`, or has a superblock after a block of the user.
pub(super) fn has_signature(head: &[u8]) -> bool {
    places(head.len() as u64).any(|at| head[at as usize..].starts_with(&SIGNATURE))
}

/// Offsets at which a superblock may be in a file of `len` bytes.
fn places(len: u64) -> impl Iterator<Item = u64> {
    std::iter::once(0)
        .chain((9..).map(|i| 1u64 << i).take_while(|at| *at <= LAST_PLACE))
        .filter(move |at| at + 8 <= len)
}

impl<'f> File<'f> {
    /// Reads the superblock. Returns the address of the root group, too.
    pub(super) fn open(view: &'f View<'f>) -> Result<(File<'f>, u64), Fault> {
        for at in places(view.len()) {
            if *view.read(at, 8)? == SIGNATURE {
                let found = superblock(view, at)?;
                let mut file = File::new(view, found.sizes);
                file.extension = found.extension;
                return Ok((file, found.root));
            }
        }
        Err(Fault::bad(0, "no superblock found"))
    }

    pub(super) fn new(view: &'f View<'f>, sizes: Sizes) -> File<'f> {
        File {
            view,
            sizes,
            reads: Cell::new(0),
            bytes: Cell::new(0),
            collections: RefCell::default(),
            links: RefCell::default(),
            blocks: RefCell::default(),
            extension: None,
        }
    }

    /// The offset of an address in the file.
    pub(super) fn offset(&self, address: u64) -> Result<u64, Fault> {
        let (base, len) = (self.sizes.base, self.view.len());
        base.checked_add(address).filter(|at| *at <= len).ok_or_else(|| {
            let reason = format!("data begin beyond its end ({len} bytes): it may be cut off");
            Fault::bad(base.saturating_add(address), reason)
        })
    }

    /// The bytes at an address.
    pub(super) fn read(&self, address: u64, bytes: u64) -> Result<Cow<'f, [u8]>, Fault> {
        let at = self.offset(address)?;
        let (reads, all) = (self.reads.get() + 1, self.bytes.get().saturating_add(bytes));
        let len = self.view.len();
        if reads > READS_MIN + len / 8
            || all > BYTES_MIN.saturating_add(len.saturating_mul(BYTES_FACTOR))
        {
            let reason = format!("metadata of {all} bytes in {reads} parts are more than it has");
            return Err(Fault::bad(at, reason));
        }
        self.reads.set(reads);
        self.bytes.set(all);
        self.view.read(at, bytes)
    }

    /// Numbers at an address.
    pub(super) fn reader(&self, address: u64, bytes: u64) -> Result<Reader<'f>, Fault> {
        let bytes = self.read(address, bytes)?;
        Ok(Reader::new(bytes, self.offset(address)?, false))
    }

    /// Numbers of a block of `bytes` bytes that begins with `signature`, which is skipped.
    pub(super) fn block(
        &self,
        address: u64,
        bytes: u64,
        signature: &[u8; 4],
    ) -> Result<Reader<'f>, Fault> {
        let mut r = self.reader(address, bytes)?;
        expect(&mut r, signature)?;
        Ok(r)
    }

    /// Like [`File::block`], for a block that ends with a checksum.
    pub(super) fn checked(
        &self,
        address: u64,
        bytes: u64,
        signature: &[u8; 4],
    ) -> Result<Reader<'f>, Fault> {
        let all = self.read(address, bytes)?;
        let at = self.offset(address)?;
        let mut r = Reader::new(verified(all, at)?, at, false);
        expect(&mut r, signature)?;
        Ok(r)
    }

    /// The bytes before the checksum of a block, which is read and verified once.
    pub(super) fn checked_once(
        &self,
        address: u64,
        bytes: u64,
        signature: Option<&[u8; 4]>,
    ) -> Result<Block<'f>, Fault> {
        if let Some(known) = self.blocks.borrow().get(&(address, bytes)) {
            return Ok(known.clone());
        }
        let at = self.offset(address)?;
        let all = verified(self.read(address, bytes)?, at)?;
        if let Some(signature) = signature {
            expect(&mut Reader::new(&all[..], at, false), signature)?;
        }
        let all = Rc::new(all);
        self.blocks.borrow_mut().insert((address, bytes), all.clone());
        Ok(all)
    }

    /// Says that this block is read next.
    pub(super) fn will_read(&self, address: u64, bytes: u64) {
        if let Ok(at) = self.offset(address) {
            self.view.will_read(at, bytes);
        }
    }

    /// Applies `f` to all items. What is missing for one does not stop the others, so that it is fetched together.
    pub(super) fn each<T, U>(
        &self,
        items: impl IntoIterator<Item = T>,
        mut f: impl FnMut(T) -> Result<U, Fault>,
    ) -> Result<Vec<U>, Fault> {
        let (mut out, mut missing, mut seen) = (Vec::new(), None, BTreeSet::new());
        for item in items {
            match f(item) {
                Err(Fault::Missing(range)) => {
                    if seen.insert(range.start / PAGE) {
                        self.view.will_read(range.start, range.end - range.start);
                    }
                    missing.get_or_insert(range);
                }
                done => out.push(done?),
            }
        }
        missing.map_or(Ok(out), |range| Err(Fault::Missing(range)))
    }
}

/// The version of a structure, which must be `version`.
pub(super) fn version(r: &mut Reader<'_>, what: &str, version: u8) -> Result<(), Fault> {
    let (at, is) = (r.offset(), r.u8()?);
    match is == version {
        true => Ok(()),
        false => Err(Fault::bad(at, format!("{what} of version {is}, expected {version}"))),
    }
}

fn expect(r: &mut Reader<'_>, signature: &[u8; 4]) -> Result<(), Fault> {
    let at = r.offset();
    let is = r.bytes(4)?;
    if is != signature {
        let (is, want) = (is.escape_ascii(), signature.escape_ascii());
        return Err(Fault::bad(at, format!("the signature is `{is}`, expected `{want}`")));
    }
    Ok(())
}

/// The bytes before a checksum, which is verified. `at` is their offset.
pub(super) fn verified(mut all: Cow<'_, [u8]>, at: u64) -> Result<Cow<'_, [u8]>, Fault> {
    let Some((payload, want)) = all.split_last_chunk::<4>() else {
        return Err(Fault::bad(at, "a block is too short for its checksum"));
    };
    let (is, want, n) = (checksum(payload), u32::from_le_bytes(*want), payload.len());
    if is != want && !is_lenient() {
        let reason = format!("the checksum of {n} bytes is {is:08x}, expected {want:08x}");
        return Err(Fault::bad(at, reason));
    }
    match &mut all {
        Cow::Borrowed(all) => *all = &all[..n],
        Cow::Owned(all) => all.truncate(n),
    }
    Ok(all)
}

#[cfg(not(test))]
fn is_lenient() -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static LENIENT: Cell<bool> = const { Cell::new(false) };
}

#[cfg(test)]
fn is_lenient() -> bool {
    LENIENT.get()
}

/// Runs `f` with all checksums accepted, so that tests reach the code behind them.
#[cfg(test)]
pub(super) fn lenient(f: impl FnOnce()) {
    LENIENT.set(true);
    f();
    LENIENT.set(false);
}

fn superblock(view: &View<'_>, at: u64) -> Result<Superblock, Fault> {
    let mut r = Reader::new(view.read_up_to(at, 160)?, at, false);
    r.skip(8)?;
    let v = r.u8()?;
    let size = |r: &mut Reader<'_>| -> Result<usize, Fault> {
        match (r.offset(), r.u8()?) {
            (_, n @ (2 | 4 | 8)) => Ok(n.into()),
            (at, n) => Err(Fault::bad(at, format!("addresses or lengths of {n} bytes"))),
        }
    };
    match v {
        0 | 1 => {
            r.skip(4)?;
            let sizes = Sizes { base: at, offset: size(&mut r)?, length: size(&mut r)? };
            r.skip(if v == 0 { 9 } else { 13 })?;
            // Base, free space, end of file, driver; then the entry of the root group.
            r.skip(4 * sizes.offset)?;
            r.skip(sizes.offset)?;
            Ok(Superblock { sizes, root: sizes.defined(&mut r)?, extension: None })
        }
        2 | 3 => {
            let sizes = Sizes { base: at, offset: size(&mut r)?, length: size(&mut r)? };
            let all = 12 + 4 * sizes.offset as u64;
            verified(view.read(at, all + 4)?, at)?;
            r.skip(1 + sizes.offset)?;
            let extension = sizes.address(&mut r)?;
            sizes.address(&mut r)?;
            Ok(Superblock { sizes, root: sizes.defined(&mut r)?, extension })
        }
        v => Err(Fault::unsupported(format!("HDF5 superblock of version {v}"))),
    }
}

/// The number of bytes for numbers up to `max`.
pub(super) fn bytes_for(max: u64) -> usize {
    (max.max(1).ilog2() / 8 + 1) as usize
}

pub(super) fn checksum(bytes: &[u8]) -> u32 {
    lookup3(bytes, 0)
}

/// # Source
/// Bob Jenkins (2006), lookup3.c, `hashlittle` with the initial value `seed`.
pub(crate) fn lookup3(bytes: &[u8], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let word = |w: &[u8]| w.iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
    let whole = bytes.len().saturating_sub(1) / 12 * 12;
    let (body, tail) = bytes.split_at(whole);
    for part in body.chunks_exact(12) {
        a = a.wrapping_add(word(&part[..4]));
        b = b.wrapping_add(word(&part[4..8]));
        c = c.wrapping_add(word(&part[8..]));
        for (x, y, z, bits) in [(0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8)].into_iter().chain([
            (0, 2, 1, 16),
            (1, 0, 2, 19),
            (2, 1, 0, 4),
        ]) {
            let mut v = [a, b, c];
            v[x] = v[x].wrapping_sub(v[y]) ^ v[y].rotate_left(bits);
            v[y] = v[y].wrapping_add(v[z]);
            [a, b, c] = v;
        }
    }
    if tail.is_empty() {
        return c;
    }
    let part = |i: usize| word(&tail[(4 * i).min(tail.len())..(4 * i + 4).min(tail.len())]);
    a = a.wrapping_add(part(0));
    b = b.wrapping_add(part(1));
    c = c.wrapping_add(part(2));
    for (x, y, bits) in
        [(2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)]
    {
        let mut v: [u32; 3] = [a, b, c];
        v[x] = (v[x] ^ v[y]).wrapping_sub(v[y].rotate_left(bits));
        [a, b, c] = v;
    }
    c
}
