//! The directory of a ZIP archive.
//!
//! ```text
//!   local header │ member │ local header │ member │ … │ directory │ 64-bit end record and its locator │ end record
//! ```
//!
//! # Source
//! PKWARE APPNOTE.TXT 6.3, sections 4.3 and 4.5.3.

use crate::source::error::SourceError;
use crate::source::store::Store;
use bytes::Bytes;
use std::ops::Range;

/// Bytes at the end of an archive that are read first: the directory of few members is among them.
const TAIL_BYTES: u64 = 256 << 10;

/// Bytes of the end record, without its comment of up to 64 KiB.
const END_BYTES: usize = 22;

/// Bytes of a local header, without the name and the extra fields.
pub(super) const LOCAL_BYTES: u64 = 30;

/// Members that are stored as they are.
pub(super) const STORED: u16 = 0;

/// Members that are compressed by deflate.
pub(super) const DEFLATED: u16 = 8;

/// Why an archive cannot be read.
pub(super) enum Fault {
    Bad(String),
    Source(SourceError),
}

impl From<SourceError> for Fault {
    fn from(e: SourceError) -> Self {
        Fault::Source(e)
    }
}

/// One member as the directory describes it.
pub(super) struct Member<'a> {
    pub(super) name: &'a [u8],
    pub(super) is_encrypted: bool,
    pub(super) method: u16,
    pub(super) packed: u64,
    pub(super) unpacked: u64,
    /// CRC-32 of the unpacked bytes.
    pub(super) crc: u32,
    /// Offset of the local header.
    pub(super) at: u64,
    /// Bytes of the extra fields in the directory; the local header has its own.
    pub(super) extra: u64,
}

/// The members of an archive. Of those with one name only the last one is listed: writers that cannot replace a
/// member append another one.
pub(super) struct Directory {
    table: Bytes,
    /// Offsets of the entries in the table, by their names.
    order: Vec<u32>,
}

impl Directory {
    /// Reads the directory of the archive that is the object of `store` and has `len` bytes.
    pub(super) async fn read(store: &Store, len: u64, limit: u64) -> Result<Directory, Fault> {
        let tail_at = len.saturating_sub(TAIL_BYTES);
        let tail = part(store, tail_at..len, len).await?;
        let searched = tail.len().saturating_sub(END_BYTES + 65_535);
        let is_end = |i: &usize| i + END_BYTES + usize::from(u16_at(&tail, i + 20)) <= tail.len();
        let end = tail[searched..]
            .windows(4)
            .rposition(|w| w == b"PK\x05\x06")
            .map(|i| i + searched)
            .filter(is_end)
            .ok_or_else(|| Fault::Bad("it is not a ZIP archive, or its end is missing".into()))?;
        let (mut count, mut size, mut at) = (
            u64::from(u16_at(&tail, end + 10)),
            u64::from(u32_at(&tail, end + 12)),
            u64::from(u32_at(&tail, end + 16)),
        );
        let cut = async |range: Range<u64>| match range.start.checked_sub(tail_at) {
            Some(from) if range.end <= len && range.start <= range.end => {
                let to = from + (range.end - range.start);
                Ok(tail.slice(from as usize..to as usize))
            }
            _ => part(store, range, len).await,
        };
        if let Some(locator) = end.checked_sub(20)
            && tail[locator..].starts_with(b"PK\x06\x07")
        {
            let from = u64_at(&tail, locator + 8);
            let wide = cut(from..from.saturating_add(56)).await?;
            if !wide.starts_with(b"PK\x06\x06") {
                return Err(Fault::Bad("its 64-bit end record is missing".into()));
            }
            (count, size, at) = (u64_at(&wide, 32), u64_at(&wide, 40), u64_at(&wide, 48));
        }
        if size > limit.min(u32::MAX.into()) {
            return Err(Fault::Bad(format!(
                "its directory has {size} bytes, at most {limit} are read"
            )));
        }
        Directory::parse(cut(at..at.saturating_add(size)).await?, count)
    }

    fn parse(table: Bytes, count: u64) -> Result<Directory, Fault> {
        let mut order = Vec::new();
        let mut at = 0usize;
        for _ in 0..count {
            let damaged = || Fault::Bad("its directory is damaged".into());
            let (_, end) = entry(&table, at).ok_or_else(damaged)?;
            order.push(u32::try_from(at).map_err(|_| damaged())?);
            at = end;
        }
        let name =
            |at: u32| entry(&table, at as usize).map(|(member, _)| member.name).unwrap_or_default();
        order.sort_by(|&a, &b| name(a).cmp(name(b)).then(a.cmp(&b)));
        let mut last: Vec<u32> = Vec::with_capacity(order.len());
        for at in order {
            match last.last_mut() {
                Some(before) if name(*before) == name(at) => *before = at,
                _ => last.push(at),
            }
        }
        Ok(Directory { table, order: last })
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.table.len() + 4 * self.order.len()
    }

    /// The members, by name, each with a number for [`Directory::member`].
    pub(super) fn members(&self) -> impl Iterator<Item = (u32, Member<'_>)> {
        self.order.iter().filter_map(|&at| Some((at, self.member(at)?)))
    }

    /// The member of that number.
    pub(super) fn member(&self, number: u32) -> Option<Member<'_>> {
        entry(&self.table, number as usize).map(|(member, _)| member)
    }

    fn name(&self, number: u32) -> &[u8] {
        self.member(number).map(|member| member.name).unwrap_or_default()
    }

    /// The number of the member of that name.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let found = self.order.binary_search_by(|&at| self.name(at).cmp(name.as_bytes()));
        found.ok().map(|i| self.order[i])
    }

    /// The names of directories and the numbers of members directly below `prefix`, which is empty or ends with a
    /// slash.
    pub(super) fn below(&self, prefix: &str) -> (Vec<String>, Vec<u32>) {
        let (mut directories, mut members) = (Vec::new(), Vec::new());
        let mut i = self.order.partition_point(|&at| self.name(at) < prefix.as_bytes());
        while let Some(&at) = self.order.get(i) {
            let name = self.name(at);
            let Some(rest) = name.strip_prefix(prefix.as_bytes()) else { break };
            i += 1;
            match rest.iter().position(|b| *b == b'/') {
                Some(0) => {}
                Some(slash) => {
                    let directory = &name[..prefix.len() + slash];
                    directories.push(String::from_utf8_lossy(&rest[..slash]).into_owned());
                    // The byte after the slash ends the names below the directory.
                    let after = [directory, &b"0"[..]].concat();
                    i += self.order[i..].partition_point(|&at| self.name(at) < &after[..]);
                }
                None if rest.is_empty() => {}
                None => members.push(at),
            }
        }
        (directories, members)
    }
}

/// Offset of a member's bytes from its local header, of which `local` are the first bytes.
pub(super) fn begin(local: &[u8]) -> Result<u64, String> {
    if (local.len() as u64) < LOCAL_BYTES || !local.starts_with(b"PK\x03\x04") {
        return Err("the archive's directory points to no member".into());
    }
    // The local header repeats the name and has extra fields of its own length.
    Ok(LOCAL_BYTES + u64::from(u16_at(local, 26)) + u64::from(u16_at(local, 28)))
}

/// Reads a part of an archive of `len` bytes.
pub(super) async fn part(store: &Store, range: Range<u64>, len: u64) -> Result<Bytes, Fault> {
    if range.end > len || range.start > range.end {
        return Err(Fault::Bad("the archive ends early".into()));
    }
    let want = range.end - range.start;
    let parts = store.get_ranges("", std::slice::from_ref(&range)).await?;
    let bytes = parts.and_then(|mut p| p.pop()).unwrap_or_default();
    if bytes.len() as u64 != want {
        return Err(SourceError::Changed { what: store.root().to_string() }.into());
    }
    Ok(bytes)
}

/// The entry at an offset of the directory, and the offset after it.
fn entry(table: &[u8], at: usize) -> Option<(Member<'_>, usize)> {
    let fixed = table.get(at..at.checked_add(46)?).filter(|e| e.starts_with(b"PK\x01\x02"))?;
    let length = |i| usize::from(u16_at(fixed, i));
    let extra_at = at + 46 + length(28);
    let comment_at = extra_at + length(30);
    let name = table.get(at + 46..extra_at)?;
    let extra = table.get(extra_at..comment_at)?;
    let mut numbers =
        [u64::from(u32_at(fixed, 24)), u64::from(u32_at(fixed, 20)), u64::from(u32_at(fixed, 42))];
    widen(extra, &mut numbers);
    let member = Member {
        name,
        is_encrypted: u16_at(fixed, 8) & 1 == 1,
        method: u16_at(fixed, 10),
        crc: u32_at(fixed, 16),
        unpacked: numbers[0],
        packed: numbers[1],
        at: numbers[2],
        extra: extra.len() as u64,
    };
    Some((member, comment_at + length(32)))
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The directory entry of a member of `at` bytes whose local header is at `at`.
    fn listed(name: &str, at: u32) -> Vec<u8> {
        let mut out = vec![0; 46];
        out[..4].copy_from_slice(b"PK\x01\x02");
        out[20..24].copy_from_slice(&at.to_le_bytes());
        out[24..28].copy_from_slice(&at.to_le_bytes());
        out[28..30].copy_from_slice(&(name.len() as u16).to_le_bytes());
        out[42..46].copy_from_slice(&at.to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out
    }

    fn directory(names: &[&str]) -> Directory {
        let table: Vec<u8> = (1..).zip(names).flat_map(|(at, name)| listed(name, at)).collect();
        Directory::parse(table.into(), names.len() as u64).ok().unwrap()
    }

    #[test]
    fn the_last_member_of_a_name_counts() {
        let d =
            directory(&["v/c/0", "zarr.json", "v/zarr.json", "zarr.json", "v.txt", "zarr.json"]);
        let at = |name: &str| d.find(name).and_then(|number| d.member(number)).map(|m| m.at);
        assert_eq!((at("zarr.json"), at("v/c/0"), at("v/c")), (Some(6), Some(1), None));
        assert_eq!(d.members().count(), 4);
        let (directories, members) = d.below("");
        assert_eq!(directories, ["v"]);
        let name = |number: &u32| d.member(*number).map(|m| m.name.to_vec());
        let names: Vec<_> = members.iter().filter_map(name).collect();
        assert_eq!(names, [b"v.txt".to_vec(), b"zarr.json".to_vec()]);
        assert_eq!((d.below("v/").0, d.below("w/").0.len()), (vec!["c".to_string()], 0));
    }

    #[test]
    fn damage_is_an_error() {
        let table = [listed("a", 1), listed("b/c", 2)].concat();
        for cut in 0..table.len() {
            assert!(Directory::parse(table[..cut].to_vec().into(), 2).is_err(), "{cut}");
        }
        assert!(Directory::parse(table.clone().into(), 3).is_err());
        for at in 0..table.len() {
            for bit in 0..8 {
                let mut flipped = table.clone();
                flipped[at] ^= 1 << bit;
                if let Ok(d) = Directory::parse(flipped.into(), 2) {
                    let _ = (d.find("a"), d.below(""), d.below("b/"), d.bytes());
                }
            }
        }
        assert!(begin(b"PK\x03\x04").is_err() && begin(&[0; 30]).is_err());
    }
}
