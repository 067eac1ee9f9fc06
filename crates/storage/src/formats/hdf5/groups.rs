//! Groups: the links in them, and paths along links.
//!
//! # Source
//! HDF5 File Format Specification 3.0, III.A.1, III.B, III.C and IV.A.2.c, e, s.

use crate::formats::hdf5::btree1;
use crate::formats::hdf5::file::{File, version};
use crate::formats::hdf5::fractal::Heap;
use crate::formats::hdf5::header::{Header, kind};
use crate::formats::hdf5::heap::Names;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Upper bound on soft links that lead to soft links.
const HOPS_MAX: usize = 16;

/// Bytes of a header that are announced before it is read.
pub(super) const HEADER_BYTES: u64 = 1024;

/// Links of a group, by name.
pub(super) type Links = BTreeMap<String, Link>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Link {
    /// To the header at an address.
    Hard(u64),
    /// To a path.
    Soft(String),
    /// To another file.
    External(String),
    /// Of a kind of the user.
    Other(u8),
}

/// The object that a path leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Object(u64),
    Nothing,
    /// Something that is not followed, in words.
    Refused(String),
}

/// The links of a group.
pub(super) fn links(file: &File<'_>, address: u64) -> Result<Rc<Links>, Fault> {
    if let Some(known) = file.links.borrow().get(&address) {
        return Ok(known.clone());
    }
    let header = Header::read(file, address)?;
    let mut out = Links::new();
    if let Some(m) = header.get(kind::SYMBOLS) {
        let mut r = m.open(file)?;
        symbols(file, file.sizes.defined(&mut r)?, file.sizes.defined(&mut r)?, &mut out)?;
    }
    for m in header.all(kind::LINK) {
        let (name, link) = parse(file, &mut m.open(file)?)?;
        out.insert(name, link);
    }
    if let Some(m) = header.get(kind::LINK_INFO)
        && let Some((heap, records)) = Heap::listed(file, &mut m.open(file)?, "a link info", 8, 5)?
    {
        for (record, at) in records {
            let id = record.get(4..).ok_or_else(|| Fault::bad(at, "a record is too short"))?;
            let (name, link) = parse(file, &mut Reader::new(heap.get(file, id)?, at, false))?;
            out.insert(name, link);
        }
    }
    let out = Rc::new(out);
    file.links.borrow_mut().insert(address, out.clone());
    Ok(out)
}

/// True if an object is a group.
pub(super) fn is_group(header: &Header) -> bool {
    [kind::SYMBOLS, kind::LINK_INFO, kind::GROUP_INFO].iter().any(|k| header.get(*k).is_some())
}

/// Follows a path from the group at `from`; an absolute one begins at `root`.
pub(super) fn follow(file: &File<'_>, root: u64, from: u64, path: &str) -> Result<Target, Fault> {
    follow_within(file, root, from, path, HOPS_MAX)
}

/// The object that a link of the group at `from` leads to.
pub(super) fn target(file: &File<'_>, root: u64, from: u64, link: &Link) -> Result<Target, Fault> {
    target_within(file, root, from, link, HOPS_MAX)
}

fn target_within(
    file: &File<'_>,
    root: u64,
    from: u64,
    link: &Link,
    hops: usize,
) -> Result<Target, Fault> {
    Ok(match link {
        Link::Hard(address) => Target::Object(*address),
        Link::Soft(_) if hops == 0 => {
            Target::Refused(format!("more than {HOPS_MAX} links to links"))
        }
        Link::Soft(path) => follow_within(file, root, from, path, hops - 1)?,
        Link::External(what) => Target::Refused(format!("a link to another file ({what})")),
        Link::Other(n) => Target::Refused(format!("a link of kind {n}")),
    })
}

fn follow_within(
    file: &File<'_>,
    root: u64,
    from: u64,
    path: &str,
    hops: usize,
) -> Result<Target, Fault> {
    let mut at = if path.starts_with('/') { root } else { from };
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        let all = links(file, at)?;
        let Some(link) = all.get(name) else { return Ok(Target::Nothing) };
        match target_within(file, root, at, link, hops)? {
            Target::Object(next) => at = next,
            other => return Ok(other),
        }
    }
    Ok(Target::Object(at))
}

/// The links of an old group: a B-tree of nodes of symbols, whose names are in a heap.
fn symbols(file: &File<'_>, tree: u64, heap: u64, out: &mut Links) -> Result<(), Fault> {
    let l = file.sizes.length;
    file.will_read(tree, 1024);
    let names = Names::read(file, heap)?;
    let mut level = vec![(tree, None)];
    let mut seen = BTreeSet::new();
    while !level.is_empty() {
        level.iter().for_each(|(address, _)| file.will_read(*address, 1024));
        let found = file.each(&level, |(address, depth)| match depth {
            Some(0) => table(file, *address, &names, out).map(|()| Vec::new()),
            _ => {
                let entry = (l + file.sizes.offset) as u64;
                let (here, count, mut r) = btree1::node(file, *address, 0, *depth, entry)?;
                let child = |_| {
                    r.skip(l)?;
                    Ok((file.sizes.defined(&mut r)?, Some(here)))
                };
                (0..count).map(child).collect()
            }
        })?;
        level = found.into_iter().flatten().collect();
        for (address, _) in &level {
            if !seen.insert(*address) {
                return Err(Fault::bad(file.offset(*address)?, "a node is twice in a B-tree"));
            }
        }
    }
    Ok(())
}

/// The links of one node of symbols.
fn table(file: &File<'_>, address: u64, names: &Names<'_>, out: &mut Links) -> Result<(), Fault> {
    let o = file.sizes.offset;
    let mut r = file.block(address, 8, b"SNOD")?;
    version(&mut r, "a node of symbols", 1)?;
    r.skip(1)?;
    let count = r.u16()?;
    let mut r = file.reader(address + 8, u64::from(count) * (2 * o as u64 + 24))?;
    for _ in 0..count {
        let name = names.get(r.uint(o)?)?;
        let object = file.sizes.address(&mut r)?;
        let kind = r.u32()?;
        r.skip(4)?;
        let path = r.u32()?;
        r.skip(12)?;
        let link = match (kind, object) {
            (2, _) => Link::Soft(names.get(path.into())?),
            (_, Some(object)) => Link::Hard(object),
            (n, None) => Link::Other(n as u8),
        };
        out.insert(name, link);
    }
    Ok(())
}

fn parse(file: &File<'_>, r: &mut Reader<'_>) -> Result<(String, Link), Fault> {
    version(r, "a link", 1)?;
    let flags = r.u8()?;
    let kind = if flags & 8 != 0 { r.u8()? } else { 0 };
    r.skip(if flags & 4 != 0 { 8 } else { 0 })?;
    r.skip(if flags & 16 != 0 { 1 } else { 0 })?;
    let n = r.uint(1 << (flags & 3))?;
    let name = text(r, n)?;
    let link = match kind {
        0 => Link::Hard(file.sizes.defined(r)?),
        1 => {
            let n = r.u16()?.into();
            Link::Soft(text(r, n)?)
        }
        64 => {
            let n = r.u16()?.into();
            let all = text(r, n)?;
            let parts: Vec<&str> = all.trim_start_matches('\0').split('\0').take(2).collect();
            Link::External(parts.join(":"))
        }
        n => Link::Other(n),
    };
    Ok((name, link))
}

fn text(r: &mut Reader<'_>, n: u64) -> Result<String, Fault> {
    let bytes = r.bytes(usize::try_from(n).unwrap_or(usize::MAX))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
