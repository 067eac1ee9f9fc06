//! Datatypes.
//!
//! # Source
//! HDF5 File Format Specification 3.0, IV.A.2.d.

use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use crate::source::cells::Raw;
use serde_json::Value;
use std::fmt;
use tessera_planner::dtype::DType;

/// Upper bound on types within types.
const DEPTH_MAX: usize = 16;

/// A type of cells or of an attribute's values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Type {
    /// Bytes of a value.
    pub(super) size: u64,
    pub(super) class: Class,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Class {
    Integer {
        signed: bool,
        big: bool,
        /// The lowest bit that counts, and the number of bits that do.
        bits: (u32, u32),
    },
    Float {
        raw: Option<Raw>,
        big: bool,
    },
    /// Texts of a fixed length.
    Text {
        pad: Pad,
    },
    /// Texts of any length.
    AnyText,
    Enum {
        base: Box<Type>,
        members: Vec<(String, i128)>,
    },
    /// The address of an object.
    Object,
    /// A list of any length.
    List(Box<Type>),
    Array(Box<Type>, Vec<u64>),
    Compound(Vec<(String, u64, Type)>),
    /// Any other one, by its name.
    Other(String),
}

/// The bytes behind a text that is shorter than its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pad {
    /// Zero, and then anything.
    End,
    Zeros,
    Spaces,
}

impl Type {
    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Type, Fault> {
        Type::nested(r, 0)
    }

    fn nested(r: &mut Reader<'_>, depth: usize) -> Result<Type, Fault> {
        let at = r.offset();
        if depth > DEPTH_MAX {
            return Err(Fault::bad(at, format!("types within more than {DEPTH_MAX} types")));
        }
        let head = r.u8()?;
        let (class, version) = (head & 15, head >> 4);
        let flags = r.uint(3)?;
        let size = u64::from(r.u32()?);
        if size == 0 && class != 3 {
            return Err(Fault::bad(at, "a type of 0 bytes"));
        }
        let is_big = flags & 1 == 1;
        let class = match class {
            0 | 4 => {
                let bits = (r.u16()?.into(), r.u16()?.into());
                Class::Integer { signed: class == 0 && flags & 8 != 0, big: is_big, bits }
            }
            1 => float(r, size, flags)?,
            2 => {
                r.skip(2)?;
                Class::Other("time".into())
            }
            3 => Class::Text {
                pad: match flags & 15 {
                    0 => Pad::End,
                    1 => Pad::Zeros,
                    _ => Pad::Spaces,
                },
            },
            5 => {
                let tag = r.bytes((flags & 0xff) as usize)?;
                let tag = String::from_utf8_lossy(tag).trim_end_matches('\0').to_string();
                Class::Other(format!("opaque of {size} bytes (`{tag}`)"))
            }
            6 => Class::Compound(members(r, version, size, (flags & 0xffff) as usize, depth)?),
            7 if flags & 15 == 0 => Class::Object,
            7 => Class::Other("reference".into()),
            8 => enumeration(r, version, (flags & 0xffff) as usize, depth)?,
            9 => {
                let base = Type::nested(r, depth + 1)?;
                if flags & 15 == 1 { Class::AnyText } else { Class::List(Box::new(base)) }
            }
            10 => {
                let rank = r.u8()?;
                r.skip(if version < 3 { 3 } else { 0 })?;
                let lens = (0..rank).map(|_| r.u32().map(u64::from)).collect::<Result<_, _>>()?;
                r.skip(if version < 3 { 4 * usize::from(rank) } else { 0 })?;
                Class::Array(Box::new(Type::nested(r, depth + 1)?), lens)
            }
            11 => Class::Other(format!("complex of {}", Type::nested(r, depth + 1)?)),
            n => return Err(Fault::bad(at, format!("the class {n} of a type is not known"))),
        };
        Ok(Type { size, class })
    }

    /// The type of cells, and true if they are big-endian. The error is the name of a type that tensors cannot have.
    pub(super) fn cells(&self) -> Result<(Raw, bool), String> {
        use DType::*;
        let raw = match &self.class {
            // Integers of fewer bits than their bytes have are widened as they are read.
            Class::Integer { signed, big, .. } if self.bits_of_integer().is_some() => {
                let dtype = match (self.size, signed) {
                    (1, true) => Int8,
                    (2, true) => Int16,
                    (4, true) => Int32,
                    (8, true) => Int64,
                    (1, false) => UInt8,
                    (2, false) => UInt16,
                    (4, false) => UInt32,
                    _ => UInt64,
                };
                (Raw::Plain(dtype), *big)
            }
            Class::Float { raw: Some(raw), big } => (raw.clone(), *big),
            Class::Enum { .. } if self.is_bool() => (Raw::Plain(Bool), false),
            Class::Enum { base, .. } => return base.cells().map_err(|_| self.to_string()),
            Class::Text { .. } if self.size > 0 => (Raw::Bytes { len: self.size }, false),
            Class::AnyText => (Raw::Utf8, false),
            _ => return Err(self.to_string()),
        };
        Ok(raw)
    }

    /// Offset and number of the bits of an integer type that cells can have.
    pub(super) fn bits_of_integer(&self) -> Option<(u32, u32)> {
        let Class::Integer { bits, .. } = &self.class else { return None };
        let all = match self.size {
            1 | 2 | 4 | 8 => 8 * self.size as u32,
            _ => return None,
        };
        (bits.1 > 0 && bits.0 + bits.1 <= all).then_some(*bits)
    }

    /// True for h5py's and netCDF's type of truth values.
    pub(super) fn is_bool(&self) -> bool {
        let Class::Enum { base, members } = &self.class else { return false };
        let is = |i: usize, name: &str| {
            members.get(i).is_some_and(|(n, v)| n.eq_ignore_ascii_case(name) && *v == i as i128)
        };
        base.size == 1 && members.len() == 2 && is(0, "FALSE") && is(1, "TRUE")
    }

    /// A value as JSON; `None` for types that JSON cannot have. `bytes` has `size` bytes.
    pub(super) fn value(&self, bytes: &[u8]) -> Option<Value> {
        Some(match &self.class {
            Class::Integer { .. } => {
                let v = self.integer(bytes)?;
                match i64::try_from(v) {
                    Ok(v) => v.into(),
                    Err(_) => u64::try_from(v).ok()?.into(),
                }
            }
            Class::Float { raw: Some(raw), big } => {
                let mut cell = bytes.to_vec();
                if *big == cfg!(target_endian = "little") {
                    cell.reverse();
                }
                let cell = raw.convert(cell.into());
                let v = match cell.len() {
                    4 => f64::from(f32::from_ne_bytes(*cell.first_chunk()?)),
                    _ => f64::from_ne_bytes(*cell.first_chunk()?),
                };
                tessera_planner::catalog::float(v)
            }
            Class::Enum { .. } if self.is_bool() => (bytes != [0]).into(),
            Class::Enum { base, .. } => base.value(bytes)?,
            Class::Text { pad } => pad.text(bytes).into(),
            _ => return None,
        })
    }

    pub(super) fn integer(&self, bytes: &[u8]) -> Option<i128> {
        let Class::Integer { signed, big, bits: (low, count) } = self.class else { return None };
        self.bits_of_integer()?;
        let push = |v: u64, b: &u8| v << 8 | u64::from(*b);
        let all = if big { bytes.iter().fold(0, push) } else { bytes.iter().rev().fold(0, push) };
        let unused = 64 - count;
        let v = all << (unused - low);
        Some(if signed { (v as i64 >> unused).into() } else { (v >> unused).into() })
    }
}

impl Pad {
    pub(super) fn text(self, bytes: &[u8]) -> String {
        let end = match self {
            Pad::End => bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()),
            Pad::Zeros => bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1),
            Pad::Spaces => bytes.iter().rposition(|&b| b != b' ').map_or(0, |last| last + 1),
        };
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

fn float(r: &mut Reader<'_>, size: u64, flags: u64) -> Result<Class, Fault> {
    let (offset, precision) = (r.u16()?, r.u16()?);
    let (exponent, mantissa) = ((r.u8()?, r.u8()?), (r.u8()?, r.u8()?));
    let (bias, sign, is_normal) = (r.u32()?, flags >> 8 & 0xff, flags >> 4 & 3 == 2);
    let raw = match (size, sign, exponent, mantissa, bias) {
        (1, 7, (3, 4), (0, 3), 7) => Some(Raw::E4M3),
        (1, 7, (2, 5), (0, 2), 15) => Some(Raw::E5M2),
        (2, 15, (10, 5), (0, 10), 15) => Some(Raw::Half),
        (2, 15, (7, 8), (0, 7), 127) => Some(Raw::Brain),
        (4, 31, (23, 8), (0, 23), 127) => Some(Raw::Plain(DType::Float32)),
        (8, 63, (52, 11), (0, 52), 1023) => Some(Raw::Plain(DType::Float64)),
        _ => None,
    };
    let raw = raw.filter(|_| {
        is_normal && offset == 0 && u64::from(precision) == 8 * size && flags & 0x40 == 0
    });
    Ok(match raw {
        None => Class::Other(format!("float of {precision} bits in {size} bytes")),
        raw => Class::Float { raw, big: flags & 1 == 1 },
    })
}

/// A name that ends with a zero; before version 3 it is padded to a multiple of 8 bytes.
fn name(r: &mut Reader<'_>, version: u8) -> Result<String, Fault> {
    let mut out = Vec::new();
    loop {
        match r.u8()? {
            0 => break,
            b => out.push(b),
        }
    }
    if version < 3 {
        let read = out.len() + 1;
        r.skip(read.next_multiple_of(8) - read)?;
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn members(
    r: &mut Reader<'_>,
    version: u8,
    size: u64,
    count: usize,
    depth: usize,
) -> Result<Vec<(String, u64, Type)>, Fault> {
    let mut out = Vec::new();
    for _ in 0..count {
        let name = name(r, version)?;
        let width = if version < 3 { 4 } else { super::file::bytes_for(size) };
        let offset = r.uint(width)?;
        let mut lens = Vec::new();
        if version == 1 {
            let rank = r.u8()?.min(4);
            r.skip(11)?;
            for i in 0..4 {
                let n = r.u32()?;
                if i < rank {
                    lens.push(n.into());
                }
            }
        }
        let mut of = Type::nested(r, depth + 1)?;
        if !lens.is_empty() {
            of = Type { size: of.size, class: Class::Array(Box::new(of), lens) };
        }
        out.push((name, offset, of));
    }
    Ok(out)
}

fn enumeration(
    r: &mut Reader<'_>,
    version: u8,
    count: usize,
    depth: usize,
) -> Result<Class, Fault> {
    let base = Type::nested(r, depth + 1)?;
    let names = (0..count).map(|_| name(r, version)).collect::<Result<Vec<_>, _>>()?;
    let mut members = Vec::new();
    for name in names {
        let at = r.offset();
        let value = base.integer(r.bytes(base.size as usize)?);
        let value = value.ok_or_else(|| Fault::bad(at, format!("an enum of {base}")))?;
        members.push((name, value));
    }
    Ok(Class::Enum { base: Box::new(base), members })
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.class {
            Class::Integer { signed, bits, .. } => {
                let sign = if *signed { "int" } else { "uint" };
                match u64::from(bits.1) == 8 * self.size {
                    true => write!(f, "{sign}{}", bits.1),
                    false => write!(f, "{sign}{} in {} bytes", bits.1, self.size),
                }
            }
            Class::Float { raw, .. } => match raw {
                Some(Raw::Brain) => f.write_str("bfloat16"),
                _ => write!(f, "float{}", 8 * self.size),
            },
            Class::Text { .. } | Class::AnyText => f.write_str("string"),
            Class::Enum { base, .. } => write!(f, "enum of {base}"),
            Class::Object => f.write_str("reference"),
            Class::List(base) => write!(f, "list of {base} of any length"),
            Class::Array(base, lens) => write!(f, "array {lens:?} of {base}"),
            Class::Compound(members) => {
                f.write_str("compound {")?;
                for (i, (name, _, of)) in members.iter().take(8).enumerate() {
                    write!(f, "{}{name}: {of}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str(if members.len() > 8 { ", …}" } else { "}" })
            }
            Class::Other(name) => f.write_str(name),
        }
    }
}
