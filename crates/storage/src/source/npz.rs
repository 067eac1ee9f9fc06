//! NumPy's archives: `.npz`, a ZIP of `.npy` members.
//!
//! Uncompressed members are read in place; compressed ones are unpacked into memory when the archive is opened,
//! within a limit. The CRC-32 of a compressed or small member is checked when the archive is opened, that of another
//! one by the reader that reads its last part; a reader that reads parts of it does not check them.
//!
//! # Source
//! [`crate::source::zip`]; only the form of `numpy.savez` is read.

use crate::source::Opened;
use crate::source::codecs::bounded;
use crate::source::error::SourceError;
use crate::source::location::Location;
use crate::source::meta::Who;
use crate::source::npy::{HEADER_BYTES_MAX, Header, variable};
use crate::source::store::Store;
use crate::source::sum::Sum;
use crate::source::variables::unreadable;
use crate::source::zip::{DEFLATED, Directory, Fault, LOCAL_BYTES, Member, STORED, begin, part};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tessera_planner::catalog::Dataset;

/// Upper bound on the unpacked bytes of all compressed members.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Upper bound on the bytes of the directory at the end.
const DIRECTORY_BYTES_MAX: u64 = 16 << 20;

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
        ..Opened::default()
    };
    let mut room = UNPACKED_BYTES_MAX;
    let directory = Directory::read(opening, len, DIRECTORY_BYTES_MAX).await;
    let directory = directory.map_err(|fault| failed(who, fault))?;
    for (_, member) in directory.members() {
        let full = String::from_utf8_lossy(member.name);
        let Some(name) = full.strip_suffix(".npy") else { continue };
        let path = format!("{}!{full}", location.display);
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
    member: &Member<'_>,
    len: u64,
    room: &mut u64,
) -> Result<(Header, crate::source::flat::Flat), SourceError> {
    let part =
        async |range: Range<u64>| part(store, range, len).await.map_err(|fault| failed(who, fault));
    let local = part(member.at..member.at.saturating_add(LOCAL_BYTES)).await?;
    let start = member.at + begin(&local).map_err(|reason| who.bad(reason))?;
    let end = start.checked_add(member.packed).filter(|&e| e <= len);
    let end = end.ok_or_else(|| who.bad("the member ends beyond the archive"))?;
    if member.is_encrypted {
        return Err(who.unsupported("an encrypted member of a ZIP archive"));
    }
    match member.method {
        STORED => {
            let head = part(start..end.min(start + HEADER_BYTES_MAX + 12)).await?;
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
        DEFLATED => {
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
            let packed = part(start..end).await?;
            let inflated = flate2::read::DeflateDecoder::new(&*packed);
            let content = bounded("deflate", inflated, member.unpacked).map_err(|e| who.bad(e))?;
            if crc32fast::hash(&content) != member.crc {
                return Err(who.bad("its checksum is wrong: the member is damaged"));
            }
            *room -= content.len() as u64;
            let header = Header::parse(who, &content)?;
            header.check_len(who, content.len() as u64)?;
            let mut flat = header.flat("", 0);
            flat.memory = Some(Bytes::from(content));
            Ok((header, flat))
        }
        other => Err(SourceError::Unsupported {
            array: who.array.to_string(),
            what: format!("ZIP compression method {other}"),
        }),
    }
}

fn failed(who: Who<'_>, fault: Fault) -> SourceError {
    match fault {
        Fault::Bad(reason) => who.bad(reason),
        Fault::Source(e) => e,
    }
}
