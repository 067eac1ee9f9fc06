//! Datasets: from the messages of a header to an array.

use crate::formats::filters::Filters;
use crate::formats::hdf5::attributes::{self, Attribute};
use crate::formats::hdf5::bits::Widen;
use crate::formats::hdf5::chunks::{Chunks, Contiguous};
use crate::formats::hdf5::datatype::{Class, Type};
use crate::formats::hdf5::dims::{self, Lengths, Part};
use crate::formats::hdf5::file::File;
use crate::formats::hdf5::header::{Header, kind};
use crate::formats::hdf5::messages::{self, Chunked, Index, Layout, Space, UNLIMITED};
use crate::formats::hdf5::pipeline::{self, Pipeline};
use crate::formats::hdf5::texts;
use crate::formats::view::Fault;
use crate::formats::{Cells, FileArray, FileChunks, Unreadable, Why};
use crate::source::cells::Raw;
use crate::source::texts::REFUSED;
use serde_json::Value;
use std::sync::Arc;
use tessera_planner::catalog::Attrs;
use tessera_planner::region::{Dims, RANK_MAX};

/// Cells of a chunk of an array that has no chunks: it was never written, or its integers are widened.
const CHUNK_CELLS: u64 = 1 << 20;

/// Upper bound on the bytes of a text of a fixed length.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// A dataset.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) address: u64,
    pub(super) header: Header,
    pub(super) attrs: Vec<Attribute>,
    pub(super) part: Part,
}

type Names = Vec<Option<Arc<str>>>;

/// The reason of a fault that concerns one array only.
pub(super) fn reason<T>(found: Result<T, Fault>) -> Result<Result<T, Why>, Fault> {
    match found {
        Err(Fault::Bad { at, reason }) => Ok(Err(Why::Bad(format!("{reason} (at byte {at})")))),
        Err(Fault::Unsupported(what)) => Ok(Err(Why::Unsupported(what))),
        Err(other) => Err(other),
        Ok(found) => Ok(Ok(found)),
    }
}

impl Object {
    pub(super) fn read(file: &File<'_>, address: u64, header: Header) -> Result<Object, Fault> {
        let attrs = attributes::read(file, &header)?;
        let part = dims::part(file, &attrs)?;
        Ok(Object { address, header, attrs, part })
    }

    fn required(&self, file: &File<'_>, kind: u16, what: &str) -> Result<Required<'_>, Fault> {
        let m = self.header.get(kind);
        let m = m.ok_or_else(|| Fault::bad(self.address, format!("a dataset has no {what}")))?;
        m.open(file)
    }

    pub(super) fn space(&self, file: &File<'_>) -> Result<Space, Fault> {
        Space::parse(&mut self.required(file, kind::DATASPACE, "dataspace")?, &file.sizes)
    }

    fn datatype(&self, file: &File<'_>) -> Result<Type, Fault> {
        Type::parse(&mut self.required(file, kind::DATATYPE, "datatype")?)
    }

    fn layout(&self, file: &File<'_>) -> Result<Layout, Fault> {
        Layout::parse(&mut self.required(file, kind::LAYOUT, "layout")?, &file.sizes)
    }

    fn pipeline(&self, file: &File<'_>) -> Result<Pipeline, Fault> {
        match self.header.get(kind::PIPELINE) {
            Some(m) => pipeline::list(&mut m.open(file)?),
            None => Ok(Pipeline::default()),
        }
    }

    /// The cell of chunks that were not written.
    fn fill(&self, file: &File<'_>, size: u64) -> Result<Vec<u8>, Fault> {
        let new = self.header.get(kind::FILL).map(|m| (m, false));
        let found = new.or_else(|| self.header.get(kind::OLD_FILL).map(|m| (m, true)));
        let found = match found {
            Some((m, is_old)) => messages::fill(&mut m.open(file)?, is_old)?,
            None => None,
        };
        match found {
            None => Ok(vec![0; usize::try_from(size).unwrap_or(0)]),
            Some(fill) if fill.len() as u64 == size => Ok(fill),
            Some(fill) => {
                let reason = format!("a fill value of {} bytes, a cell has {size}", fill.len());
                Err(Fault::bad(self.address, reason))
            }
        }
    }

    /// True if its dimensions are those of scales, as netCDF-4's are.
    pub(super) fn is_scaled(&self) -> bool {
        self.part != Part::Along || dims::attribute(&self.attrs, "DIMENSION_LIST").is_some()
    }

    /// The array, with the names of its dimensions and the lengths of those without a bound.
    pub(super) fn array(
        &self,
        file: &File<'_>,
        names: impl FnOnce(usize) -> Result<Names, Fault>,
        lengths: &Lengths,
    ) -> Result<Result<FileArray, Unreadable>, Fault> {
        let none = |why| Ok(Err(Unreadable { why, dims: Vec::new(), attrs: Attrs::new() }));
        let said = reason(attributes::report(file, &self.attrs))?;
        let (mut attrs, narrow) = match said {
            Ok(said) => said,
            Err(why) => return none(why),
        };
        let mut space = match reason(self.space(file))? {
            Ok(space) => space,
            Err(why) => return none(why),
        };
        let (names, why) = match reason(names(space.shape.len()))? {
            Ok(names) => (names, None),
            Err(why) => (vec![None; space.shape.len()], Some(why)),
        };
        let stored = space.shape.clone();
        for ((len, max), name) in space.shape.iter_mut().zip(&space.max).zip(&names) {
            if let Some(n) = name.as_ref().and_then(|name| lengths.get(name))
                && *max == UNLIMITED
                && self.is_scaled()
            {
                *len = (*len).max(*n);
            }
        }
        let known = names.iter().cloned().zip(space.shape.iter().copied()).collect();
        let fail = |why, attrs| Ok(Err(Unreadable { why, dims: known, attrs }));
        if let Some(why) = why {
            return fail(why, attrs);
        }
        let of = match reason(self.datatype(file))? {
            Ok(of) => of,
            Err(why) => return fail(why, attrs),
        };
        add_flags(&of, &mut attrs);
        match self.made(file, of, (space, stored), names)? {
            Ok(array) => Ok(Ok(FileArray { attrs, narrow, ..array })),
            Err(why) => fail(why, attrs),
        }
    }

    fn made(
        &self,
        file: &File<'_>,
        of: Type,
        (space, stored): (Space, Vec<u64>),
        names: Names,
    ) -> Result<Result<FileArray, Why>, Fault> {
        if space.is_null {
            return Ok(Err(Why::Unsupported("an array without cells (null dataspace)".into())));
        }
        if space.shape.len() > RANK_MAX {
            let rank = space.shape.len();
            return Ok(Err(Why::Unsupported(format!("an array of {rank} axes"))));
        }
        if self.header.get(kind::EXTERNAL).is_some() {
            return Ok(Err(Why::Unsupported("HDF5 cells in external files".into())));
        }
        let (raw, is_big) = match of.cells() {
            Ok(found) => found,
            Err(name) => return Ok(Err(Why::DType(name))),
        };
        if raw.dtype().is_none() && of.size > TEXT_BYTES_MAX {
            return Ok(Err(Why::DType(format!("string of {} bytes", of.size))));
        }
        let data = Data { file, object: self, of, space, stored };
        let made = match raw {
            // Texts of any length are read with the metadata: no more than can be addressed.
            Raw::Utf8 if names.len() < 2 && names.iter().all(Option::is_some) => {
                reason(data.texts(names))?
            }
            Raw::Utf8 => Ok(Err(Why::DType(REFUSED.into()))),
            Raw::Bytes { len: 1 } if !names.is_empty() => reason(data.letters(names))?,
            raw => reason(data.cells().map(|made| made.map(|cells| (raw, names, cells))))?,
        };
        Ok(made.and_then(|made| made).map(|(raw, dims, cells)| {
            let shape = data.space.shape[..dims.len()].into();
            let (attrs, narrow) = (Attrs::new(), Vec::new());
            FileArray { shape, dims, raw, big_endian: is_big, attrs, narrow, cells }
        }))
    }
}

type Required<'m> = crate::formats::numbers::Reader<'m>;

/// The names of an enumeration become CF's flags.
fn add_flags(of: &Type, attrs: &mut Attrs) {
    let Class::Enum { members, .. } = &of.class else { return };
    if of.is_bool() || attrs.contains_key("flag_values") || attrs.contains_key("flag_meanings") {
        return;
    }
    let value = |v: i128| i64::try_from(v).map_or_else(|_| (v as u64).into(), Value::from);
    let values = members.iter().map(|(_, v)| value(*v)).collect();
    let meanings: Vec<String> = members
        .iter()
        .map(|(name, _)| name.split_whitespace().collect::<Vec<_>>().join("_"))
        .collect();
    attrs.insert("flag_values".into(), Value::Array(values));
    attrs.insert("flag_meanings".into(), meanings.join(" ").into());
}

/// The cells of a dataset.
pub(super) struct Data<'a, 'f> {
    pub(super) file: &'a File<'f>,
    object: &'a Object,
    pub(super) of: Type,
    pub(super) space: Space,
    /// The lengths in the file, which are shorter if cells at the end were not written.
    stored: Vec<u64>,
}

/// An array's type, dimensions and cells.
type Made = Result<(Raw, Names, Cells), Why>;

impl Data<'_, '_> {
    /// Texts of any length.
    fn texts(&self, names: Names) -> Result<Made, Fault> {
        let texts = match self.cells()? {
            Ok(cells) => texts::of_any_length(self, &cells)?,
            Err(why) => return Ok(Err(why)),
        };
        Ok(texts.map(|texts| (Raw::Utf8, names, Cells::Texts(texts))))
    }

    /// Letters: the last axis is the length of texts.
    fn letters(&self, mut names: Names) -> Result<Made, Fault> {
        names.pop();
        let len = self.space.shape.last().copied().unwrap_or(1);
        if len > TEXT_BYTES_MAX {
            return Ok(Err(Why::DType(format!("string of {len} bytes"))));
        }
        let raw = Raw::Bytes { len: len.max(1) };
        let cells = match self.cells()? {
            Ok(cells) => cells,
            Err(why) => return Ok(Err(why)),
        };
        Ok(match cells {
            Cells::Chunks(mut chunks) if chunks.unit.last() == Some(&len) => {
                chunks.unit.pop();
                chunks.fill = chunks.fill.repeat(len as usize);
                chunks.index = Arc::new(texts::Whole(chunks.index));
                Ok((raw, names, Cells::Chunks(chunks)))
            }
            Cells::Chunks(_) if names.len() == 1 => {
                let texts = texts::of_letters(self, &cells, len)?;
                texts.map(|texts| (Raw::Utf8, names, Cells::Texts(texts)))
            }
            Cells::Chunks(_) => Err(Why::DType(REFUSED.into())),
            // Texts of no letters.
            Cells::Flat(_) if len == 0 => {
                let n = self.space.shape[..names.len()]
                    .iter()
                    .try_fold(1, |n: u64, d| n.checked_mul(*d));
                match n.filter(|n| *n <= texts::TEXTS_MAX) {
                    Some(n) => Ok((raw, names, Cells::Inline(vec![0; n as usize].into()))),
                    None => Err(Why::DType("string of 0 bytes".into())),
                }
            }
            cells => Ok((raw, names, cells)),
        })
    }

    fn cells(&self) -> Result<Result<Cells, Why>, Fault> {
        let (file, of, shape) = (self.file, &self.of, &self.space.shape);
        let bytes = self.space.cells().and_then(|n| n.checked_mul(of.size));
        let Some(bytes) = bytes else {
            return Ok(Err(Why::Bad(format!("the lengths {shape:?} have more than 2^63 bytes"))));
        };
        let layout = self.object.layout(file)?;
        // Integers with fewer bits than their bytes need a step, after the filters if there are any.
        let bits = of.bits_of_integer().filter(|bits| *bits != (0, 8 * of.size as u32));
        let is_enum_of_less = matches!(&of.class, Class::Enum { base, .. }
            if base.bits_of_integer().is_some_and(|b| b != (0, 8 * base.size as u32)));
        if is_enum_of_less {
            return Ok(Err(Why::DType(of.to_string())));
        }
        let pipeline = self.object.pipeline(file)?;
        let chunks = match layout {
            Layout::Virtual => {
                return Ok(Err(Why::Unsupported("HDF5 virtual dataset".into())));
            }
            _ if bytes == 0 => return Ok(Ok(Cells::Flat(0))),
            Layout::Compact(mut all) => {
                if all.len() as u64 > bytes {
                    all.truncate(bytes as usize);
                }
                if let Some(widen) = self.widen(bits, 0) {
                    widen.apply(&mut all);
                }
                return Ok(Ok(Cells::Inline(all.into())));
            }
            Layout::Contiguous(Some(address)) => {
                let offset = file.offset(address)?;
                return Ok(Ok(match bits {
                    None => Cells::Flat(offset),
                    Some(_) => self.widened(offset, bits),
                }));
            }
            Layout::Contiguous(None) => {
                let (unit, index) = (rows(shape), Index::Implicit);
                Chunked { unit, index, address: None, is_edge_raw: false }
            }
            Layout::Chunked(chunks) => chunks,
        };
        if chunks.unit.len() != shape.len() {
            let reason = format!("chunks {:?} of an array {shape:?}", chunks.unit);
            return Ok(Err(Why::Bad(reason)));
        }
        self.chunked(chunks, &pipeline, bits)
    }

    /// The step that makes integers of `bits` those of all their bytes.
    fn widen(&self, bits: Option<(u32, u32)>, least_bytes: u64) -> Option<Widen> {
        let (Some(bits), Class::Integer { signed, big, .. }) = (bits, &self.of.class) else {
            return None;
        };
        let (size, least_bytes) = (self.of.size as usize, least_bytes as usize);
        Some(Widen { size, is_big: *big, is_signed: *signed, bits, least_bytes })
    }

    /// Contiguous integers of fewer bits than their bytes have.
    fn widened(&self, offset: u64, bits: Option<(u32, u32)>) -> Cells {
        let size = self.of.size;
        let unit = rows(&self.space.shape);
        let bytes = unit.iter().fold(size, |n, d| n.saturating_mul(*d));
        let swapped = if matches!(self.of.cells(), Ok((_, true))) { size as usize } else { 0 };
        let mut filters = Filters::new(Vec::new(), bytes, swapped);
        if let Some(widen) = self.widen(bits, bytes) {
            filters = filters.after(Arc::new(widen));
        }
        let shape = self.space.shape.iter().copied().collect();
        let index = Arc::new(Contiguous { offset, shape, unit: unit.clone(), size });
        Cells::Chunks(FileChunks { unit, filters, fill: vec![0; size as usize], index })
    }

    fn chunked(
        &self,
        chunks: Chunked,
        pipeline: &Pipeline,
        bits: Option<(u32, u32)>,
    ) -> Result<Result<Cells, Why>, Fault> {
        let (file, of) = (self.file, &self.of);
        let Chunked { unit, index, address, is_edge_raw } = chunks;
        let bytes = unit.iter().fold(of.size, |n, d| n.saturating_mul(*d));
        let swapped = match of.cells() {
            Ok((raw, true)) if raw.dtype().is_some() => of.size as usize,
            _ => 0,
        };
        let mut filters: Filters = match pipeline.filters(bytes, swapped) {
            Ok(filters) => filters,
            Err(what) => return Ok(Err(Why::Unsupported(what))),
        };
        let mut fill = self.object.fill(file, of.size)?;
        if let Some(widen) = self.widen(bits, 0) {
            widen.apply(&mut fill);
            filters = filters.after(Arc::new(widen));
        }
        let index = Chunks {
            sizes: file.sizes,
            index,
            address,
            shape: self.stored.iter().copied().collect(),
            max: self.space.max.clone(),
            unit: unit.clone(),
            bytes,
            is_filtered: !pipeline.is_empty(),
            is_edge_raw,
            shift: u32::from(bits.is_some()),
        };
        Ok(Ok(Cells::Chunks(FileChunks { unit, filters, fill, index: Arc::new(index) })))
    }
}

/// Lengths of chunks that are contiguous in row-major order.
fn rows(shape: &[u64]) -> Dims {
    let mut left = CHUNK_CELLS;
    let axes = shape.iter().rev().map(|n| {
        let here = left.min(*n).max(1);
        left /= here;
        here
    });
    let mut unit: Dims = axes.collect();
    unit.reverse();
    unit
}
