//! NetCDF's classic formats: CDF-1, CDF-2 (64-bit offsets) and CDF-5 (64-bit data).
//!
//! ```text
//!   CDF\x01  numrecs  dimensions  attributes  variables   cells of fixed variables   record 0  record 1  …
//!                                              name, dims, attributes, type, begin    a b c     a b c
//! ```
//! A fixed variable is contiguous. A variable along the record dimension has one chunk in each record.
//!
//! # Source
//! "The NetCDF Classic Format Specification" (Unidata, NetCDF-C 4.9, appendix B) and the CDF-5 specification of
//! PnetCDF.

use crate::formats::filters::Filters;
use crate::formats::numbers::Reader;
use crate::formats::view::{Fault, View};
use crate::formats::{Cells, FileArray, FileChunks, Format, Group, Strided, Unreadable, Why};
use crate::source::cells::Raw;
use serde_json::Value;
use std::sync::Arc;
use tessera_planner::catalog::{Attrs, float};
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, RANK_MAX};

/// Upper bound on the bytes of a header.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Bytes of the header that are looked at first.
const HEADER_BYTES_MIN: u64 = 64 << 10;

/// Value of `numrecs` of a file that is being written.
const STREAMING: [u64; 2] = [u32::MAX as u64, u64::MAX];

/// See the module.
pub(crate) struct NetCdf;

impl Format for NetCdf {
    fn name(&self) -> &'static str {
        "NetCDF classic"
    }

    fn keys(&self) -> &'static [&'static str] {
        &["netcdf"]
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["nc", "nc3", "cdf", "netcdf"]
    }

    fn is(&self, head: &[u8], _: u64) -> bool {
        matches!(head, [b'C', b'D', b'F', 1 | 2 | 5, ..])
    }

    fn read(&self, file: &View<'_>, group: &str) -> Result<Option<Group>, Fault> {
        if !group.is_empty() {
            return Ok(None);
        }
        // The header does not say how long it is.
        let mut bytes = HEADER_BYTES_MIN;
        loop {
            let all = file.len().min(bytes);
            let head = Reader::of(file, 0, all, true)?;
            match Header::parse(head) {
                // The header ends beyond the bytes that were read.
                Err(Fault::Bad { at, .. }) if all < file.len() && at + 8 >= all / 2 => {
                    if bytes >= HEADER_BYTES_MAX {
                        let reason = format!("a header of more than {HEADER_BYTES_MAX} bytes");
                        return Err(Fault::bad(at, reason));
                    }
                    bytes *= 4;
                }
                parsed => return Ok(Some(parsed?.group(file.len())?)),
            }
        }
    }
}

/// A parsed header.
struct Header {
    /// Number of records; `None` if the file was being written.
    records: Option<u64>,
    dims: Vec<Dim>,
    attrs: Attributes,
    variables: Vec<Variable>,
}

struct Dim {
    name: Arc<str>,
    /// 0: the record dimension.
    len: u64,
}

/// Attributes, and the names of the attributes that are `float32`.
type Attributes = (Attrs, Vec<String>);

struct Variable {
    name: String,
    dims: Vec<usize>,
    attrs: Attributes,
    kind: ExternalType,
    begin: u64,
    /// Offset of its entry in the header.
    at: u64,
}

/// An external type.
#[derive(Clone, Copy, PartialEq)]
enum ExternalType {
    Char,
    Number(DType),
}

impl ExternalType {
    fn parse(code: u32, is_wide: bool, at: u64) -> Result<ExternalType, Fault> {
        use DType::*;
        Ok(ExternalType::Number(match code {
            1 => Int8,
            2 => return Ok(ExternalType::Char),
            3 => Int16,
            4 => Int32,
            5 => Float32,
            6 => Float64,
            7 if is_wide => UInt8,
            8 if is_wide => UInt16,
            9 if is_wide => UInt32,
            10 if is_wide => Int64,
            11 if is_wide => UInt64,
            _ => return Err(Fault::bad(at, format!("the type code {code} is not known"))),
        }))
    }

    fn size(self) -> u64 {
        match self {
            ExternalType::Char => 1,
            ExternalType::Number(d) => d.size() as u64,
        }
    }
}

/// Numbers of a header: their sizes depend on the version.
struct Parser<'a> {
    numbers: Reader<'a>,
    /// Bytes of a count.
    count: usize,
    /// Bytes of an offset.
    offset: usize,
}

impl Parser<'_> {
    fn count(&mut self) -> Result<u64, Fault> {
        self.numbers.uint(self.count)
    }

    fn name(&mut self) -> Result<String, Fault> {
        let (at, n) = (self.numbers.offset(), self.count()?);
        let bytes = self.padded(n)?;
        String::from_utf8(bytes).map_err(|_| Fault::bad(at, "a name is not UTF-8"))
    }

    /// `n` bytes, which are followed by zeros up to a multiple of 4.
    fn padded(&mut self, n: u64) -> Result<Vec<u8>, Fault> {
        let n = usize::try_from(n).unwrap_or(usize::MAX);
        let bytes = self.numbers.bytes(n)?.to_vec();
        // The last value of a file may lack its padding.
        let pad = (n.next_multiple_of(4) - n).min(self.numbers.left());
        self.numbers.skip(pad)?;
        Ok(bytes)
    }

    /// The number of items of a list with this tag. An item has at least `least` bytes.
    fn list(&mut self, tag: u32, least: usize) -> Result<usize, Fault> {
        let at = self.numbers.offset();
        let (is, n) = (self.numbers.u32()?, self.count()?);
        if is != tag && (is, n) != (0, 0) {
            return Err(Fault::bad(at, format!("a list's tag is {is:#x}, expected {tag:#x}")));
        }
        match usize::try_from(n) {
            Ok(n) if n.saturating_mul(least) <= self.numbers.left() => Ok(n),
            _ => Err(Fault::bad(
                at,
                format!("a list of {n} items, {} bytes follow", self.numbers.left()),
            )),
        }
    }

    fn attributes(&mut self) -> Result<Attributes, Fault> {
        let (mut attrs, mut narrow) = Attributes::default();
        for _ in 0..self.list(0xc, 12)? {
            let name = self.name()?;
            let at = self.numbers.offset();
            let kind = ExternalType::parse(self.numbers.u32()?, self.count == 8, at)?;
            let n = self.count()?;
            let bytes = n
                .checked_mul(kind.size())
                .ok_or_else(|| Fault::bad(at, format!("an attribute of {n} values")))?;
            let bytes = self.padded(bytes)?;
            if kind == ExternalType::Number(DType::Float32) {
                narrow.push(name.clone());
            }
            attrs.insert(name, value(kind, &bytes));
        }
        Ok((attrs, narrow))
    }
}

/// The value of an attribute: a text, a number, or a list of numbers.
fn value(kind: ExternalType, bytes: &[u8]) -> Value {
    let number = |c: &[u8]| -> Value {
        let wide = c.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
        match kind {
            ExternalType::Number(DType::Int8) => (wide as i8).into(),
            ExternalType::Number(DType::Int16) => (wide as i16).into(),
            ExternalType::Number(DType::Int32) => (wide as i32).into(),
            ExternalType::Number(DType::Int64) => (wide as i64).into(),
            ExternalType::Number(DType::Float32) => float(f64::from(f32::from_bits(wide as u32))),
            ExternalType::Number(DType::Float64) => float(f64::from_bits(wide)),
            _ => wide.into(),
        }
    };
    if kind == ExternalType::Char {
        let text = String::from_utf8_lossy(bytes);
        return text.trim_end_matches('\0').into();
    }
    let mut all: Vec<Value> = bytes.chunks_exact(kind.size() as usize).map(number).collect();
    match all.len() {
        1 => all.remove(0),
        _ => Value::Array(all),
    }
}

impl Header {
    fn parse(mut numbers: Reader<'_>) -> Result<Header, Fault> {
        numbers.skip(3)?;
        let (count, offset) = match numbers.u8()? {
            1 => (4, 4),
            2 => (4, 8),
            _ => (8, 8),
        };
        let mut p = Parser { numbers, count, offset };
        let records = Some(p.count()?).filter(|n| *n != STREAMING[usize::from(count == 8)]);
        let mut dims = Vec::new();
        for _ in 0..p.list(0xa, 2 * count)? {
            dims.push(Dim { name: p.name()?.into(), len: p.count()? });
        }
        let attrs = p.attributes()?;
        let mut variables = Vec::new();
        for _ in 0..p.list(0xb, 4 * count)? {
            variables.push(Variable::parse(&mut p, dims.len())?);
        }
        Ok(Header { records, dims, attrs, variables })
    }

    /// The arrays of a file of `len` bytes.
    fn group(self, len: u64) -> Result<Group, Fault> {
        let is_record = |v: &&Variable| v.dims.first().is_some_and(|d| self.dims[*d].len == 0);
        let padded = |v: &Variable| self.bytes_of_record(v).map(|n| n.next_multiple_of(4));
        let of_records: Vec<&Variable> = self.variables.iter().filter(is_record).collect();
        let too_large = |v: &Variable| Fault::bad(v.at, "a record of more than 2^63 bytes");
        let step = match of_records[..] {
            // A variable that has the records for itself is not padded.
            [only] => self.bytes_of_record(only).ok_or_else(|| too_large(only))?,
            _ => {
                let add = |n: u64, v: &&Variable| {
                    padded(v).and_then(|b| n.checked_add(b)).ok_or_else(|| too_large(v))
                };
                of_records.iter().try_fold(0, add)?
            }
        };
        let first = of_records.iter().map(|v| v.begin).min();
        let records = self
            .records
            .unwrap_or_else(|| first.map_or(0, |first| len.saturating_sub(first) / step.max(1)));
        let mut out = Group { attrs: self.attrs.0.clone(), ..Group::default() };
        for v in &self.variables {
            let made = self.array(v, (records, step), len);
            out.arrays.insert(v.name.clone(), made);
        }
        Ok(out)
    }

    /// Bytes of a variable in one record, or in all if it is fixed.
    fn bytes_of_record(&self, v: &Variable) -> Option<u64> {
        let fixed = v.dims.iter().map(|d| self.dims[*d].len).enumerate();
        let lens = fixed.filter(|(i, n)| *i > 0 || *n > 0).map(|(_, n)| n);
        lens.into_iter().try_fold(v.kind.size(), u64::checked_mul).filter(|n| *n < 1 << 62)
    }

    fn array(
        &self,
        v: &Variable,
        (records, step): (u64, u64),
        len: u64,
    ) -> Result<FileArray, Unreadable> {
        let is_record = v.dims.first().is_some_and(|d| self.dims[*d].len == 0);
        let length = |d: &usize| if self.dims[*d].len == 0 { records } else { self.dims[*d].len };
        let mut shape: Dims = v.dims.iter().map(length).collect();
        let mut dims: Vec<Option<Arc<str>>> =
            v.dims.iter().map(|d| Some(self.dims[*d].name.clone())).collect();
        let known: Vec<_> = dims.iter().cloned().zip(shape.iter().copied()).collect();
        let attrs = v.attrs.0.clone();
        let fail = |why| Unreadable { why, dims: known.clone(), attrs: attrs.clone() };
        if shape.len() > RANK_MAX {
            return Err(fail(Why::Unsupported(format!("an array of {} axes", shape.len()))));
        }
        if v.dims.iter().skip(1).any(|d| self.dims[*d].len == 0) {
            return Err(fail(Why::Bad("the record dimension is not the first one".into())));
        }
        let raw = match v.kind {
            ExternalType::Number(dtype) => Raw::Plain(dtype),
            // The last axis of letters is the length of the texts.
            ExternalType::Char => {
                dims.pop();
                Raw::Bytes { len: shape.pop().unwrap_or(1).max(1) }
            }
        };
        let cells = if is_record && !dims.is_empty() {
            let Some(bytes) = self.bytes_of_record(v) else {
                return Err(fail(Why::Bad("a record has more than 2^63 bytes".into())));
            };
            let end = records.checked_sub(1).map_or(Some(0), |last| {
                last.checked_mul(step)?.checked_add(v.begin)?.checked_add(bytes)
            });
            if end.is_none_or(|end| end > len) {
                return Err(fail(Why::Bad(format!(
                    "{records} records of {bytes} bytes, the first at byte {}, end beyond the file's {len} bytes",
                    v.begin
                ))));
            }
            let mut unit = shape.clone();
            unit[0] = 1;
            let swapped = if raw.dtype().is_some() { raw.size() as usize } else { 0 };
            if unit.contains(&0) || records == 0 {
                Cells::Flat(0)
            } else {
                Cells::Chunks(FileChunks {
                    unit,
                    filters: Filters::new(Vec::new(), bytes, swapped),
                    fill: vec![0; raw.size() as usize],
                    index: Arc::new(Strided { first: v.begin, step, bytes }),
                })
            }
        } else {
            Cells::Flat(v.begin)
        };
        let (attrs, narrow) = v.attrs.clone();
        Ok(FileArray { shape, dims, raw, big_endian: true, attrs, narrow, cells })
    }
}

impl Variable {
    fn parse(p: &mut Parser<'_>, dims_known: usize) -> Result<Variable, Fault> {
        let at = p.numbers.offset();
        let name = p.name()?;
        let rank = p.count()?;
        let mut dims = Vec::new();
        for _ in 0..rank {
            let (at, d) = (p.numbers.offset(), p.count()?);
            match usize::try_from(d) {
                Ok(d) if d < dims_known => dims.push(d),
                _ => {
                    let reason = format!("`{name}` is along dimension {d} of {dims_known}");
                    return Err(Fault::bad(at, reason));
                }
            }
        }
        let attrs = p.attributes()?;
        let kind_at = p.numbers.offset();
        let kind = ExternalType::parse(p.numbers.u32()?, p.count == 8, kind_at)?;
        // Its size, which is wrong for large variables, follows from its shape.
        p.count()?;
        let begin = p.numbers.uint(p.offset)?;
        Ok(Variable { name, dims, attrs, kind, begin, at })
    }
}
