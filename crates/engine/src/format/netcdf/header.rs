//! The header of a file.
//!
//! ```text
//!   CDF\x02  numrecs │ dimensions │ attributes │ variables: name, dimensions, attributes, type, bytes, offset
//! ```
//! Counts have four bytes in CDF-2 and eight in CDF-5, offsets have eight. Names, texts and values are padded with zeros
//! to multiples of four bytes.

use super::attributes::{Attribute, Attributes};
use tessera_planner::dtype::DType;

/// A type of the format, with its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Byte = 1,
    Char = 2,
    Short = 3,
    Int = 4,
    Float = 5,
    Double = 6,
    UByte = 7,
    UShort = 8,
    UInt = 9,
    Int64 = 10,
    UInt64 = 11,
}

const DIMENSIONS: u32 = 0xa;
const VARIABLES: u32 = 0xb;
const ATTRIBUTES: u32 = 0xc;

#[derive(Debug)]
pub(super) struct Dimension {
    pub(super) name: String,
    /// 0: the record dimension, of no records.
    pub(super) len: u64,
}

#[derive(Debug)]
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    /// Positions in the list of dimensions.
    pub(super) dims: &'a [usize],
    pub(super) attrs: Attributes,
    pub(super) kind: Kind,
}

impl Kind {
    /// The type of cells; a `bool` is a byte, a datetime counts in 64 bits.
    pub(super) fn of(dtype: DType) -> Kind {
        match dtype {
            DType::Bool | DType::Int8 => Kind::Byte,
            DType::UInt8 => Kind::UByte,
            DType::Int16 => Kind::Short,
            DType::UInt16 => Kind::UShort,
            DType::Int32 => Kind::Int,
            DType::UInt32 => Kind::UInt,
            DType::Int64 | DType::Datetime(_) => Kind::Int64,
            DType::UInt64 => Kind::UInt64,
            DType::Float32 => Kind::Float,
            DType::Float64 => Kind::Double,
        }
    }

    /// True if only CDF-5 has the type, and CDF-2 no other form of it.
    pub(super) fn is_wide(self) -> bool {
        matches!(self, Kind::UShort | Kind::UInt | Kind::Int64 | Kind::UInt64)
    }

    pub(super) fn size(self) -> usize {
        match self {
            Kind::Byte | Kind::Char | Kind::UByte => 1,
            Kind::Short | Kind::UShort => 2,
            Kind::Int | Kind::Float | Kind::UInt => 4,
            Kind::Double | Kind::Int64 | Kind::UInt64 => 8,
        }
    }
}

/// The whole header. Cells of variables follow it in their order, each padded to four bytes. Those with records have
/// none, and begin behind all others, where readers check that they do not overlap.
pub(super) fn encode(
    is_wide: bool,
    dims: &[Dimension],
    attrs: &Attributes,
    variables: &[Variable<'_>],
) -> Vec<u8> {
    // Offsets have one size, so the length of the header does not depend on them.
    let mut offsets = vec![0; variables.len()];
    let blank = Encoder::new(is_wide).whole(dims, attrs, variables, &offsets);
    let mut at = blank.len() as u64;
    for has_records in [false, true] {
        let of = |v: &Variable<'_>| v.dims.first().is_some_and(|d| dims[*d].len == 0);
        for (offset, v) in offsets.iter_mut().zip(variables).filter(|(_, v)| of(v) == has_records) {
            *offset = at;
            at = at.saturating_add(record_bytes(dims, v).next_multiple_of(4));
        }
    }
    Encoder::new(is_wide).whole(dims, attrs, variables, &offsets)
}

struct Encoder {
    is_wide: bool,
    out: Vec<u8>,
}

impl Encoder {
    fn new(is_wide: bool) -> Self {
        let version = if is_wide { 5 } else { 2 };
        Encoder { is_wide, out: vec![b'C', b'D', b'F', version] }
    }

    fn whole(
        mut self,
        dims: &[Dimension],
        attrs: &Attributes,
        variables: &[Variable<'_>],
        offsets: &[u64],
    ) -> Vec<u8> {
        // Number of records.
        self.count(0);
        self.list(DIMENSIONS, dims.len());
        for d in dims {
            self.name(&d.name);
            self.count(d.len);
        }
        self.attributes(attrs);
        self.list(VARIABLES, variables.len());
        for (v, offset) in variables.iter().zip(offsets) {
            self.name(v.name);
            self.count(v.dims.len() as u64);
            v.dims.iter().for_each(|d| self.count(*d as u64));
            self.attributes(&v.attrs);
            self.word(v.kind as u32);
            self.count(record_bytes(dims, v).next_multiple_of(4));
            self.out.extend(offset.to_be_bytes());
        }
        self.out
    }

    fn word(&mut self, v: u32) {
        self.out.extend(v.to_be_bytes());
    }

    fn count(&mut self, n: u64) {
        if self.is_wide { self.out.extend(n.to_be_bytes()) } else { self.word(n as u32) }
    }

    /// The beginning of a list; an empty one has no tag.
    fn list(&mut self, tag: u32, len: usize) {
        self.word(if len == 0 { 0 } else { tag });
        self.count(len as u64);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    fn name(&mut self, name: &str) {
        self.count(name.len() as u64);
        self.padded(name.as_bytes());
    }

    fn attributes(&mut self, attrs: &Attributes) {
        self.list(ATTRIBUTES, attrs.len());
        for (name, value) in attrs {
            self.name(name);
            let (kind, bytes) = match value {
                Attribute::Text(text) => (Kind::Char, text.as_bytes()),
                Attribute::Numbers(kind, bytes) => (*kind, bytes.as_slice()),
            };
            self.word(kind as u32);
            self.count((bytes.len() / kind.size()) as u64);
            self.padded(bytes);
        }
    }
}

/// Bytes of a variable, or of one of its records.
fn record_bytes(dims: &[Dimension], v: &Variable<'_>) -> u64 {
    let lens = v.dims.iter().map(|d| dims[*d].len).filter(|len| *len > 0);
    lens.fold(v.kind.size() as u64, u64::saturating_mul)
}
