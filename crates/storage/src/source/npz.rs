//! NumPy's archives: `.npz`, a ZIP of `.npy` members.
//!
//! Uncompressed members are read in place; compressed ones are unpacked into memory when the archive is opened,
//! within a limit. The CRC-32 of a compressed or small member is checked when the archive is opened, that of another
//! one by the reader that reads its last part; a reader that reads parts of it does not check them.
//!
//! # Source
//! PKWARE APPNOTE.TXT 6.3, sections 4.3 and 4.5.3; only what `numpy.savez` writes is read.

use crate::source::Opened;
use crate::source::codecs::bounded;
use crate::source::error::SourceError;
use crate::source::location::Location;
use crate::source::meta::Who;
use crate::source::npy::{HEADER_BYTES_MAX, Header, variable};
use crate::source::store::Store;
use crate::source::sum::Sum;
use crate::source::variables::unreadable;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tessera_planner::catalog::Dataset;

/// Upper bound on the unpacked bytes of all compressed members.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Upper bound on the bytes of the directory at the end.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;

/// One member as the directory describes it.
struct Member {
    name: String,
    method: u16,
    packed: u64,
    unpacked: u64,
    /// CRC-32 of the unpacked bytes.
    crc: u32,
    /// Offset of the local header.
    at: u64,
}

/// Opens the location as an `.npz` if it is a file; `None` if it is something else.
pub(crate) async fn open(
    store: &Store,
    location: &Location,
) -> Result<Option<Opened>, SourceError> {
    if !location.group.is_empty() || !location.display.to_ascii_lowercase().ends_with(".npz") {
        return Ok(None);
    }
    // Cells are read from the version of the archive whose directory is read here.
    let opening = &store.opening();
    let Some((len, version)) = opening.head("").await? else { return Ok(None) };
    let stem = location.stem();
    let who = Who { array: &stem, path: &location.display };
    let mut opened = Opened {
        dataset: Dataset { name: stem.clone(), ..Dataset::default() },
        readers: Vec::new(),
        unsupported: BTreeMap::new(),
        groups: Vec::new(),
        label: None,
        read: Vec::new(),
    };
    let mut room = UNPACKED_BYTES_MAX;
    for member in directory(opening, who, len).await? {
        let Some(name) = member.name.strip_suffix(".npy") else { continue };
        let path = format!("{}!{}", location.display, member.name);
        let who = Who { array: name, path: &path };
        match read_member(opening, who, &member, len, &mut room).await {
            Ok((header, flat)) => {
                let (v, r) = variable(store, name, name, header, flat, version.clone());
                opened.dataset.variables.push(v);
                opened.readers.push(Arc::new(r));
            }
            Err(
                e @ (SourceError::Metadata { .. }
                | SourceError::UnsupportedDType { .. }
                | SourceError::Unsupported { .. }
                | SourceError::ObjectTooLarge { .. }),
            ) => {
                opened.unsupported.insert(name.to_string(), e);
            }
            Err(e) => return Err(e),
        }
    }
    let why = opened.unsupported.iter();
    opened.dataset.unreadable = why.map(|(n, e)| Arc::new(unreadable(n, e, None))).collect();
    opened.dataset.variables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Some(opened))
}

async fn read_member(
    store: &Store,
    who: Who<'_>,
    member: &Member,
    len: u64,
    room: &mut u64,
) -> Result<(Header, crate::source::flat::Flat), SourceError> {
    // The local header repeats the name and has extra fields of its own length.
    let local = part(store, who, member.at..member.at.saturating_add(30), len).await?;
    if !local.starts_with(b"PK\x03\x04") {
        return Err(who.bad("the archive's directory points to no member"));
    }
    let skip = u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
    let start = member.at + 30 + skip;
    let end = start.checked_add(member.packed).filter(|&e| e <= len);
    let end = end.ok_or_else(|| who.bad("the member ends beyond the archive"))?;
    match member.method {
        0 => {
            let head = part(store, who, start..end.min(start + HEADER_BYTES_MAX + 12), len).await?;
            let header = Header::parse(who, &head)?;
            header.check_len(who, member.packed)?;
            if head.len() as u64 == end - start && crc32fast::hash(&head) != member.crc {
                return Err(who.bad("its checksum is wrong: the member is damaged"));
            }
            let mut flat = header.flat("", start);
            let before = head.get(..(flat.offset - start) as usize).unwrap_or_default();
            flat.sum = Some(Arc::new(Sum::new(before, flat.offset..end, member.crc)));
            Ok((header, flat))
        }
        8 => {
            if member.unpacked > *room {
                return Err(SourceError::ObjectTooLarge {
                    what: who.path.to_string(),
                    bytes: member.unpacked,
                    limit: *room,
                });
            }
            // Deflate expands no input by much.
            if member.packed > member.unpacked + member.unpacked / 1000 + 65_536 {
                let (packed, unpacked) = (member.packed, member.unpacked);
                return Err(who.bad(format!("{packed} packed bytes of {unpacked}")));
            }
            let packed = part(store, who, start..end, len).await?;
            let inflated = flate2::read::DeflateDecoder::new(&*packed);
            let content = bounded("deflate", inflated, member.unpacked).map_err(|e| who.bad(e))?;
            if crc32fast::hash(&content) != member.crc {
                return Err(who.bad("its checksum is wrong: the member is damaged"));
            }
            *room -= content.len() as u64;
            let header = Header::parse(who, &content)?;
            header.check_len(who, content.len() as u64)?;
            let mut flat = header.flat("", 0);
            flat.memory = Some(Bytes::from(content.into_owned()));
            Ok((header, flat))
        }
        other => Err(SourceError::Unsupported {
            array: who.array.to_string(),
            what: format!("ZIP compression method {other}"),
        }),
    }
}

async fn part(
    store: &Store,
    who: Who<'_>,
    range: Range<u64>,
    len: u64,
) -> Result<Bytes, SourceError> {
    if range.end > len {
        return Err(who.bad("the archive ends early"));
    }
    let want = range.end - range.start;
    let parts = store.get_ranges("", std::slice::from_ref(&range)).await?;
    let bytes = parts.and_then(|mut p| p.pop()).unwrap_or_default();
    if bytes.len() as u64 != want {
        return Err(SourceError::Changed { what: who.path.to_string() });
    }
    Ok(bytes)
}

async fn directory(store: &Store, who: Who<'_>, len: u64) -> Result<Vec<Member>, SourceError> {
    // The end record has 22 bytes and a comment of up to 64 KiB; the locator of its 64-bit twin may precede it.
    let tail_at = len.saturating_sub(22 + 65_535 + 20);
    let tail = part(store, who, tail_at..len, len).await?;
    let end = tail
        .windows(4)
        .rposition(|w| w == b"PK\x05\x06")
        .filter(|&i| i + 22 <= tail.len())
        .ok_or_else(|| who.bad("it is no ZIP archive, or its end is missing"))?;
    let (mut count, mut size, mut at) = (
        u64::from(u16_at(&tail, end + 10)),
        u64::from(u32_at(&tail, end + 12)),
        u64::from(u32_at(&tail, end + 16)),
    );
    if let Some(locator) = end.checked_sub(20)
        && tail[locator..].starts_with(b"PK\x06\x07")
    {
        let from = u64_at(&tail, locator + 8);
        let wide = part(store, who, from..from.saturating_add(56), len).await?;
        if !wide.starts_with(b"PK\x06\x06") {
            return Err(who.bad("its 64-bit end record is missing"));
        }
        (count, size, at) = (u64_at(&wide, 32), u64_at(&wide, 40), u64_at(&wide, 48));
    }
    if size > DIRECTORY_BYTES_MAX {
        return Err(who.bad(format!("its directory has {size} bytes")));
    }
    let table = part(store, who, at..at.saturating_add(size), len).await?;
    let mut out = Vec::new();
    let mut i = 0;
    for _ in 0..count {
        let damaged = || who.bad("its directory is damaged");
        let entry = table.get(i..i + 46).filter(|e| e.starts_with(b"PK\x01\x02"));
        let entry = entry.ok_or_else(damaged)?;
        let (name_len, extra_len, comment_len) = (
            usize::from(u16_at(entry, 28)),
            usize::from(u16_at(entry, 30)),
            usize::from(u16_at(entry, 32)),
        );
        let name = table.get(i + 46..i + 46 + name_len).ok_or_else(damaged)?;
        let extra_at = i + 46 + name_len;
        let extra = table.get(extra_at..extra_at + extra_len).ok_or_else(damaged)?;
        let mut numbers = [
            u64::from(u32_at(entry, 24)),
            u64::from(u32_at(entry, 20)),
            u64::from(u32_at(entry, 42)),
        ];
        widen(extra, &mut numbers);
        out.push(Member {
            name: String::from_utf8_lossy(name).into_owned(),
            method: u16_at(entry, 10),
            crc: u32_at(entry, 16),
            unpacked: numbers[0],
            packed: numbers[1],
            at: numbers[2],
        });
        i = extra_at + extra_len + comment_len;
    }
    Ok(out)
}

/// Replaces numbers that exceed 32 bits by those of the extra field 1, which has them in this order.
fn widen(mut extra: &[u8], numbers: &mut [u64; 3]) {
    while extra.len() >= 4 {
        let (id, n) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(field) = extra.get(4..4 + n) else { return };
        if id == 1 {
            let mut values = field.as_chunks::<8>().0.iter();
            for number in numbers.iter_mut().filter(|v| **v == u64::from(u32::MAX)) {
                if let Some(v) = values.next() {
                    *number = u64::from_le_bytes(*v);
                }
            }
        }
        extra = &extra[4 + n..];
    }
}

/// Little-endian numbers; bytes beyond the end are zeros, which every caller rejects.
fn u16_at(b: &[u8], i: usize) -> u16 {
    u64_at(b, i) as u16
}

fn u32_at(b: &[u8], i: usize) -> u32 {
    u64_at(b, i) as u32
}

fn u64_at(b: &[u8], i: usize) -> u64 {
    (0..8).fold(0, |n, k| n | u64::from(b.get(i + k).copied().unwrap_or(0)) << (8 * k))
}
