//! Attributes.
//!
//! # Source
//! HDF5 File Format Specification 3.0, IV.A.2.m and v.

use crate::formats::hdf5::datatype::{Class, Type};
use crate::formats::hdf5::file::File;
use crate::formats::hdf5::fractal::Heap;
use crate::formats::hdf5::header::{self, Header, kind};
use crate::formats::hdf5::heap;
use crate::formats::hdf5::messages::Space;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use crate::source::cells::Raw;
use serde_json::Value;
use tessera_planner::catalog::Attrs;
use tessera_planner::dtype::DType;

/// Attributes that describe dimensions, and others of the library itself.
const HIDDEN: [&str; 10] = [
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "DIMENSION_LABELS",
    "_Netcdf4Dimid",
    "_Netcdf4Coordinates",
    "_NCProperties",
    "_nc3_strict",
    "_NCCOPY",
];

/// An attribute as it is stored.
#[derive(Debug)]
pub(super) struct Attribute {
    pub(super) name: String,
    of: Type,
    bytes: Vec<u8>,
    at: u64,
}

/// All attributes of an object.
pub(super) fn read(file: &File<'_>, header: &Header) -> Result<Vec<Attribute>, Fault> {
    let mut out = Vec::new();
    for m in header.all(kind::ATTRIBUTE) {
        out.push(Attribute::parse(file, &mut m.open(file)?)?);
    }
    if let Some(m) = header.get(kind::ATTRIBUTE_INFO)
        && let Some((heap, records)) =
            Heap::listed(file, &mut m.open(file)?, "an attribute info", 2, 8)?
    {
        for (record, at) in records {
            let mut r = Reader::new(record, at, false);
            let id = r.bytes(8)?.to_vec();
            // Its flags are those of a message: it may be shared.
            let is_shared = r.u8()? & 2 != 0;
            let mut r = match is_shared {
                true => header::in_heap(file, &id, kind::ATTRIBUTE)?,
                false => Reader::new(heap.get(file, &id)?, at, false),
            };
            out.push(Attribute::parse(file, &mut r)?);
        }
    }
    Ok(out)
}

/// Attributes as they are reported: values by name, and the names of the attributes that are `float32`.
pub(super) fn report(file: &File<'_>, all: &[Attribute]) -> Result<(Attrs, Vec<String>), Fault> {
    let (mut attrs, mut narrow) = <(Attrs, Vec<String>)>::default();
    let shown = all.iter().filter(|a| !HIDDEN.contains(&a.name.as_str()));
    for (a, value) in file.each(shown, |a| Ok((a, a.value(file)?)))? {
        let Some(value) = value else { continue };
        if matches!(&a.of.class, Class::Float { raw: Some(Raw::Plain(DType::Float32)), .. }) {
            narrow.push(a.name.clone());
        }
        attrs.insert(a.name.clone(), value);
    }
    Ok((attrs, narrow))
}

impl Attribute {
    fn parse(file: &File<'_>, r: &mut Reader<'_>) -> Result<Attribute, Fault> {
        let at = r.offset();
        let (version, flags) = (r.u8()?, r.u8()?);
        if !(1..=3).contains(&version) {
            return Err(Fault::bad(at, format!("an attribute of version {version}")));
        }
        let (name, of, space) = (r.u16()?.into(), r.u16()?.into(), r.u16()?.into());
        r.skip(if version == 3 { 1 } else { 0 })?;
        let mut part = |n: usize| -> Result<Reader<'static>, Fault> {
            let at = r.offset();
            let bytes = r.bytes(n)?.to_vec();
            r.skip(if version == 1 { n.next_multiple_of(8) - n } else { 0 })?;
            Ok(Reader::new(bytes, at, false))
        };
        let mut name = part(name)?;
        let (mut of, mut space) = (part(of)?, part(space)?);
        if version > 1 && flags & 1 != 0 {
            of = header::shared(file, &mut of, kind::DATATYPE)?;
        }
        if version > 1 && flags & 2 != 0 {
            space = header::shared(file, &mut space, kind::DATASPACE)?;
        }
        let name = name.bytes(name.left())?;
        let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_string();
        let (of, space) = (Type::parse(&mut of)?, Space::parse(&mut space, &file.sizes)?);
        let bytes = space.cells().and_then(|n| n.checked_mul(of.size));
        let bytes = bytes.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let at = r.offset();
        Ok(Attribute { name, of, bytes: r.bytes(bytes)?.to_vec(), at })
    }

    /// Its value; `None` if it is of a type that has no value in JSON.
    fn value(&self, file: &File<'_>) -> Result<Option<Value>, Fault> {
        let is_text = matches!(self.of.class, Class::Text { .. } | Class::AnyText);
        if self.bytes.is_empty() {
            return Ok(Some(if is_text { "".into() } else { Value::Array(Vec::new()) }));
        }
        let mut all = Vec::new();
        // Arrays within are listed as those of several axes are.
        let mut of = &self.of;
        while let Class::Array(inner, _) = &of.class {
            of = inner;
        }
        if of.size == 0 {
            return Ok(None);
        }
        if of.class == Class::AnyText {
            all = self.texts(file, of)?.into_iter().map(Value::String).collect();
        } else {
            for v in self.bytes.chunks_exact(of.size as usize) {
                let Some(value) = of.value(v) else { return Ok(None) };
                all.push(value);
            }
        }
        Ok(Some(if all.len() == 1 { all.remove(0) } else { Value::Array(all) }))
    }

    fn texts(&self, file: &File<'_>, of: &Type) -> Result<Vec<String>, Fault> {
        heap::will_read(file, &self.bytes);
        let values = self.bytes.chunks_exact(of.size as usize);
        file.each(values, |v| heap::text(file, v, self.at))
    }

    /// Its text, or the texts of an array.
    pub(super) fn as_texts(&self, file: &File<'_>) -> Result<Vec<String>, Fault> {
        match self.of.class {
            Class::AnyText if self.of.size == 8 + file.sizes.offset as u64 => {
                self.texts(file, &self.of)
            }
            Class::Text { pad } if self.of.size > 0 => {
                Ok(self.bytes.chunks_exact(self.of.size as usize).map(|v| pad.text(v)).collect())
            }
            _ => Ok(Vec::new()),
        }
    }

    pub(super) fn as_integers(&self) -> Vec<i128> {
        self.bytes
            .chunks_exact(self.of.size.max(1) as usize)
            .filter_map(|v| self.of.integer(v))
            .collect()
    }

    /// The first address in each of its lists of objects; `None` for empty ones.
    pub(super) fn as_objects(&self, file: &File<'_>) -> Result<Vec<Option<u64>>, Fault> {
        let is_list = matches!(&self.of.class, Class::List(of) if of.class == Class::Object);
        if !is_list {
            return Ok(Vec::new());
        }
        heap::will_read(file, &self.bytes);
        file.each(self.bytes.chunks_exact(self.of.size as usize), |v| {
            let (_, Some((heap, index))) = heap::value(file, v, self.at)? else { return Ok(None) };
            let Some(bytes) = heap.get(index) else { return Ok(None) };
            file.sizes.address(&mut Reader::new(bytes, self.at, false))
        })
    }
}
