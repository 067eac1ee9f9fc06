//! NumPy's `.npz`: a zip archive of stored `.npy` files, one for each tensor.
//!
//! # Source
//! PKWARE APPNOTE 6.3.10: local headers (4.3.7), central directory (4.3.12 to 4.3.16), Zip64 (4.5.3).

use super::{npy, writer::output};
use crate::answer::{Head, Windows};
use crate::error::Error;
use std::collections::BTreeSet;
use std::io::{self, Write};

/// The earliest date of zip: archives of the same arrays are identical.
const DATE_1980: [u8; 4] = [0, 0, 0x21, 0];
/// "Stored" members with Zip64 sizes.
const VERSION: u16 = 45;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;

struct Member {
    name: String,
    bytes: u64,
    crc: u32,
    offset: u64,
}

/// Upper bound on the bytes of a name: a member is called so, with `.npy`.
const NAME_BYTES_MAX: usize = 65_000;
/// Upper bound on the characters of a name that is the text of an expression.
const TEXT_MAX: usize = 1000;

/// Writes the archive.
pub(super) fn write(tensors: &[&dyn Windows], out: &mut dyn Write) -> Result<(), Error> {
    let mut out = Counted { out, bytes: 0 };
    let mut members: Vec<Member> = Vec::new();
    let names = names(&tensors.iter().map(|t| t.head()).collect::<Vec<_>>())?;
    // Refuse before the first byte is written.
    tensors.iter().try_for_each(|t| npy::check(*t, &mut out))?;
    for (&t, name) in tensors.iter().zip(names) {
        let name = format!("{name}.npy");
        // Zip needs length and checksum in front of the data, so the cells are read twice.
        let mut check = Check { crc: crc32fast::Hasher::new(), bytes: 0 };
        npy::write(t, &mut check)?;
        let m = Member { name, bytes: check.bytes, crc: check.crc.finalize(), offset: out.bytes };
        local_header(&m, &mut out).map_err(output)?;
        npy::write(t, &mut out)?;
        members.push(m);
    }
    directory(&members, &mut out).map_err(output)
}

/// The names of the tensors, as NumPy has them, also with slashes. A tensor without a name is called as its text,
/// without slashes; a number follows if another one is called so.
fn names(heads: &[Head<'_>]) -> Result<Vec<String>, Error> {
    let mut taken = BTreeSet::new();
    for head in heads.iter().filter(|head| head.named) {
        check_name(head.name)?;
        if !taken.insert(head.name.to_string()) {
            return Err(refused(format!("two tensors are called `{}`", head.name)));
        }
    }
    let unique = |head: &Head<'_>| {
        if head.named {
            return head.name.to_string();
        }
        let plain = |c: char| if matches!(c, '/' | '\\') || c.is_control() { '_' } else { c };
        let own: String = head.name.chars().take(TEXT_MAX).map(plain).collect();
        let (mut name, mut number) = (own.clone(), 1);
        while !taken.insert(name.clone()) {
            name = format!("{own}_{number}");
            number += 1;
        }
        name
    };
    Ok(heads.iter().map(unique).collect())
}

/// Refuses a name that no archive has, or that would be unpacked outside of its directory.
fn check_name(name: &str) -> Result<(), Error> {
    let is_path = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let why = if name.len() > NAME_BYTES_MAX {
        format!("it has {} bytes (limit {NAME_BYTES_MAX})", name.len())
    } else if !is_path {
        "it is not a path within a directory".into()
    } else if name.contains(|c: char| c == '\\' || c.is_control()) {
        "it has a backslash or a control character".into()
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(TEXT_MAX).collect();
    Err(refused(format!("`{shown}` cannot be the name of a member: {why}")))
}

fn refused(reason: String) -> Error {
    let hint = Some("give each tensor a name of its own with AS".into());
    Error::Format { format: "npz", reason, hint }
}

fn local_header(m: &Member, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"PK\x03\x04")?;
    common(m, out)?;
    out.write_all(&20u16.to_le_bytes())?;
    out.write_all(m.name.as_bytes())?;
    // Zip64 extra field: length, stored length.
    out.write_all(&[1, 0, 16, 0])?;
    out.write_all(&m.bytes.to_le_bytes())?;
    out.write_all(&m.bytes.to_le_bytes())
}

/// The fields that local headers and directory entries share, up to the name's length.
fn common(m: &Member, out: &mut dyn Write) -> io::Result<()> {
    let name_bytes = u16::try_from(m.name.len())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a name beyond 65535 bytes"))?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&FLAGS.to_le_bytes())?;
    out.write_all(&0u16.to_le_bytes())?;
    out.write_all(&DATE_1980)?;
    out.write_all(&m.crc.to_le_bytes())?;
    // Both lengths are in the Zip64 field.
    out.write_all(&[0xff; 8])?;
    out.write_all(&name_bytes.to_le_bytes())
}

fn directory(members: &[Member], out: &mut Counted<'_>) -> io::Result<()> {
    let start = out.bytes;
    for m in members {
        out.write_all(b"PK\x01\x02")?;
        out.write_all(&VERSION.to_le_bytes())?;
        common(m, out)?;
        out.write_all(&28u16.to_le_bytes())?;
        // No comment, disk 0, no attributes; the offset is in the Zip64 field.
        out.write_all(&[0; 10])?;
        out.write_all(&[0xff; 4])?;
        out.write_all(m.name.as_bytes())?;
        out.write_all(&[1, 0, 24, 0])?;
        for v in [m.bytes, m.bytes, m.offset] {
            out.write_all(&v.to_le_bytes())?;
        }
    }
    let end = out.bytes;
    let count = members.len() as u64;
    out.write_all(b"PK\x06\x06")?;
    out.write_all(&44u64.to_le_bytes())?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&[0; 8])?;
    for v in [count, count, end - start, start] {
        out.write_all(&v.to_le_bytes())?;
    }
    out.write_all(b"PK\x06\x07\0\0\0\0")?;
    out.write_all(&end.to_le_bytes())?;
    out.write_all(&1u32.to_le_bytes())?;
    // The old end record refers to the new one by being full of ones.
    out.write_all(b"PK\x05\x06\0\0\0\0")?;
    out.write_all(&[0xff; 12])?;
    out.write_all(&[0, 0])
}

/// Computes the size and the checksum of an output without writing it.
struct Check {
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl Write for Check {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.crc.update(buf);
        self.bytes += buf.len() as u64;
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts the bytes written.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.out.write(buf)?;
        self.bytes += n as u64;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
