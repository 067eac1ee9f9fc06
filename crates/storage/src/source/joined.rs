//! An array whose cells are those of arrays in several datasets, one after another along an axis.
//!
//! ```text
//!   parts     2019.nc     2020.nc      2021.nc
//!           |.........|..........|.........|          a region is read from the parts that it touches
//!                  |## region ##|
//! ```

use crate::lock;
use crate::source::boxes::{copy_box, copy_strided};
use crate::source::coords::{is_missing, native_bytes, scalars, unpacked};
use crate::source::cut::{Cuts, CutsOf};
use crate::source::error::SourceError;
use crate::source::moments::{CfTimes, Moments};
use crate::source::reader::{ArrayReader, Fetched, Layout};
use crate::source::unpack::{at_least, forget_large};
use crate::source::versions::Versions;
use futures::{StreamExt, TryStreamExt, stream};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tessera_planner::catalog::{Decode, NAT};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, Region, strides};

/// Upper bound on the parts that are read concurrently for one region.
const CONCURRENT_MAX: usize = 16;

thread_local! {
    /// The raw cells of a part that the thread decodes.
    static RAW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The parts of an array.
#[derive(Debug)]
pub(crate) struct Joined {
    /// The axis along which they are joined.
    pub(crate) axis: usize,
    /// True if the parts do not have the axis: each is one cell of it.
    pub(crate) is_new: bool,
    pub(crate) parts: Arc<[Part]>,
    /// Versions that the statement has read so far.
    versions: Option<Arc<Versions>>,
    /// The parts that were read, for the statement.
    opened: Mutex<BTreeMap<usize, Arc<ArrayReader>>>,
    /// Chunks that two regions share, for the statement.
    cuts: Arc<Cuts>,
}

#[derive(Debug)]
pub(crate) struct Part {
    /// Its first cell along the axis.
    pub(crate) start: u64,
    /// Its cells along the axis.
    pub(crate) len: u64,
    /// The axis of the part for each axis of the array that it has, if these are in another order.
    pub(crate) order: Option<Vec<usize>>,
    pub(crate) cells: PartCells,
}

impl Part {
    /// True if no cell has to be decoded with others.
    pub(crate) fn is_flat(&self) -> bool {
        match &self.cells {
            PartCells::Same(r) | PartCells::Decoded(r, _) => matches!(r.layout, Layout::Flat(_)),
            PartCells::Absent(_) => true,
        }
    }

    /// Values of the axes of the array, in the order of those of the part.
    fn turn<T: Copy>(&self, values: &mut [T]) {
        let Some(order) = &self.order else { return };
        let own = values.to_vec();
        for (value, &axis) in own.into_iter().zip(order) {
            values[axis] = value;
        }
    }
}

/// Source of a part's cells.
#[derive(Debug)]
pub(crate) enum PartCells {
    /// The cells as another reader returns them.
    Same(Arc<ArrayReader>),
    /// Decoded by the part's own attributes: to floats, NaN where they are missing, to datetimes, or to wider integers.
    Decoded(Arc<ArrayReader>, Arc<Decode>),
    /// The dataset has no such array: this cell everywhere.
    Absent(Vec<u8>),
}

impl Joined {
    pub(crate) fn new(axis: usize, is_new: bool, parts: Vec<Part>) -> Joined {
        let (parts, opened, cuts) = (parts.into(), Mutex::default(), Arc::default());
        Joined { axis, is_new, parts, versions: None, opened, cuts }
    }

    /// The same array for a statement with the earlier reads `versions`.
    pub(crate) fn read_for(&self, versions: Option<&Arc<Versions>>) -> Joined {
        Joined {
            axis: self.axis,
            is_new: self.is_new,
            parts: self.parts.clone(),
            versions: versions.or(self.versions.as_ref()).cloned(),
            opened: Mutex::default(),
            cuts: Arc::default(),
        }
    }

    /// True if all parts are local files.
    pub(crate) fn is_local(&self) -> bool {
        self.readers().all(ArrayReader::is_local)
    }

    pub(crate) fn readers(&self) -> impl Iterator<Item = &ArrayReader> {
        self.parts.iter().filter_map(|p| match &p.cells {
            PartCells::Same(r) | PartCells::Decoded(r, _) => Some(&**r),
            PartCells::Absent(_) => None,
        })
    }

    /// The reader of part `i` for this statement.
    fn reader(&self, i: usize) -> Option<Arc<ArrayReader>> {
        let (PartCells::Same(r) | PartCells::Decoded(r, _)) = &self.parts[i].cells else {
            return None;
        };
        let Some(versions) = &self.versions else { return Some(r.clone()) };
        let mut opened = lock(&self.opened);
        let open =
            || Arc::new(r.read_for(versions).sharing(CutsOf { cuts: self.cuts.clone(), part: i }));
        Some(opened.entry(i).or_insert_with(open).clone())
    }

    /// The parts that a region touches, each with its part of the region, in the array and in the part.
    fn touched(&self, region: &Region) -> impl Iterator<Item = (usize, Region, Region)> {
        let (axis, is_new) = (self.axis, self.is_new);
        let (start, end) = (region.start[axis], region.end[axis]);
        let first = self.parts.partition_point(|p| p.start + p.len <= start);
        let parts = self.parts.iter().enumerate().skip(first);
        parts.take_while(move |(_, p)| p.start < end).filter_map(move |(i, p)| {
            let mut whole = region.clone();
            whole.start[axis] = start.max(p.start);
            whole.end[axis] = end.min(p.start + p.len);
            if whole.is_empty() {
                return None;
            }
            let mut own = whole.clone();
            if is_new {
                own.start.remove(axis);
                own.end.remove(axis);
            } else {
                own.start[axis] -= p.start;
                own.end[axis] -= p.start;
            }
            p.turn(&mut own.start);
            p.turn(&mut own.end);
            Some((i, whole, own))
        })
    }

    pub(crate) async fn fetch(&self, region: &Region) -> Result<Fetched, SourceError> {
        let parts: Vec<Fetched> = stream::iter(self.touched(region).collect::<Vec<_>>())
            .map(|(i, _, own)| async move {
                match self.reader(i) {
                    Some(reader) => Box::pin(reader.fetch(&own)).await,
                    None => Ok(Fetched::default()),
                }
            })
            .buffered(CONCURRENT_MAX)
            .try_collect()
            .await?;
        Ok(Fetched::joined(parts))
    }

    /// See [`ArrayReader::decode_and_look`].
    pub(crate) fn decode(
        &self,
        dtype: DType,
        fetched: Fetched,
        region: &Region,
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        let size = dtype.size();
        let shape = region.shape();
        let mut is_without_nan = true;
        for ((i, whole, own), fetched) in self.touched(region).zip(fetched.parts) {
            let at = whole.relative_to(&region.start);
            let bytes = whole.cells() as usize * size;
            // Rows of the first axis are contiguous in the result.
            if self.axis == 0 {
                let row = bytes / whole.len(0) as usize;
                let from = at.start[0] as usize * row;
                let out = &mut out[from..from + bytes];
                is_without_nan &= self.decode_part(i, dtype, (fetched, &own), out)?;
                continue;
            }
            let mut cells = vec![0; bytes];
            is_without_nan &= self.decode_part(i, dtype, (fetched, &own), &mut cells)?;
            let len = whole.shape();
            let zeros = vec![0; len.len()];
            copy_box(&cells, (&len, &zeros), out, (&shape, &at.start), &len, size);
        }
        Ok(is_without_nan)
    }

    /// Decodes the cells of a part, in the order of the axes of the array.
    fn decode_part(
        &self,
        i: usize,
        dtype: DType,
        (fetched, region): (Fetched, &Region),
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        let Some(order) = &self.parts[i].order else {
            return self.decode_own(i, dtype, (fetched, region), out);
        };
        let mut cells = vec![0; out.len()];
        let is_without_nan = self.decode_own(i, dtype, (fetched, region), &mut cells)?;
        let shape = region.shape();
        let (own, turned): (_, Dims) = (strides(&shape), order.iter().map(|&a| shape[a]).collect());
        let from: Vec<i64> = order.iter().map(|&a| own[a]).collect();
        let done = copy_strided((&cells, &from), (out, &strides(&turned)), &turned, dtype.size());
        done.map_err(|reason| SourceError::Internal { array: format!("part {i}"), reason })?;
        Ok(is_without_nan)
    }

    /// Decodes the cells of a part as they lie in it.
    fn decode_own(
        &self,
        i: usize,
        dtype: DType,
        (fetched, region): (Fetched, &Region),
        out: &mut [u8],
    ) -> Result<bool, SourceError> {
        match (&self.parts[i].cells, self.reader(i)) {
            (PartCells::Decoded(_, decode), Some(reader)) => {
                // A part may be a joined array, which needs memory of its own.
                let mut kept = RAW.take();
                let cells =
                    at_least(&mut kept, region.cells() as usize * reader.source.dtype.size());
                let done = reader.decode(fetched, region, cells);
                let done = done.and_then(|()| decoded(&reader, decode, cells, dtype, out));
                forget_large(&mut kept);
                RAW.set(kept);
                done.map(|()| false)
            }
            (PartCells::Same(_), Some(reader)) => reader.decode_and_look(fetched, region, out),
            (PartCells::Absent(cell), _) => {
                out.chunks_exact_mut(cell.len().max(1)).for_each(|c| c.copy_from_slice(cell));
                Ok(false)
            }
            (_, None) => Ok(false),
        }
    }

    /// Checks the absent chunks of all parts that were read.
    pub(crate) async fn check_absent(&self) -> Result<(), SourceError> {
        for reader in self.asking() {
            Box::pin(reader.check_absent()).await?;
        }
        Ok(())
    }

    /// True if a chunk of a part was absent.
    pub(crate) fn has_absent(&self) -> bool {
        !self.asking().is_empty()
    }

    fn asking(&self) -> Vec<Arc<ArrayReader>> {
        let opened = lock(&self.opened);
        opened.values().filter(|r| r.has_absent()).cloned().collect()
    }

    pub(crate) fn estimate(&self, dtype: DType, region: &Region) -> u64 {
        let mut sum = 0u64;
        for (i, whole, own) in self.touched(region) {
            let cells = whole.cells().saturating_mul(dtype.size() as u64);
            let (reader, own_cells) = match &self.parts[i].cells {
                PartCells::Same(r) => (r, 0),
                PartCells::Decoded(r, _) => {
                    (r, whole.cells().saturating_mul(r.source().dtype.size() as u64))
                }
                PartCells::Absent(_) => continue,
            };
            let copied = if self.axis == 0 { 0 } else { cells };
            let turned = if self.parts[i].order.is_none() { 0 } else { cells };
            let need = reader.estimate(&own).saturating_add(own_cells);
            let need = need.saturating_add(copied).saturating_add(turned);
            // Local files are read one after another.
            sum = if reader.is_local() { sum.max(need) } else { sum.saturating_add(need) };
        }
        sum
    }

    pub(crate) fn requests(&self, grid: &Grid, origin: &[u64]) -> u64 {
        let mut sum = 0u64;
        for (i, p) in self.parts.iter().enumerate() {
            let (PartCells::Same(reader) | PartCells::Decoded(reader, _)) = &self.parts[i].cells
            else {
                continue;
            };
            // The cells of the grid along the axis that are in this part.
            let first = origin[self.axis];
            let along = grid.axes[self.axis];
            let (low, high) = (p.start.max(first), (p.start + p.len).min(first + along.len));
            if low >= high {
                continue;
            }
            let (mut grid, mut origin) = (grid.clone(), origin.to_vec());
            if self.is_new {
                grid.axes.remove(self.axis);
                origin.remove(self.axis);
            } else {
                grid.axes[self.axis] = along.slice(low - first, high - first);
                origin[self.axis] = low - p.start;
            }
            p.turn(&mut grid.axes);
            p.turn(&mut origin);
            sum = sum.saturating_add(reader.requests(&grid, &origin));
        }
        sum
    }
}

/// Decodes the raw cells of a part to cells of type `dtype`.
fn decoded(
    reader: &ArrayReader,
    decode: &Decode,
    cells: &[u8],
    dtype: DType,
    out: &mut [u8],
) -> Result<(), SourceError> {
    let from = reader.source.dtype;
    if dtype.is_datetime() {
        let times = match reader.moments.as_deref() {
            Some(Moments::Cf(times)) => Some(&**times),
            _ => None,
        };
        let failed = |reason| SourceError::TimeValue { array: reader.name.clone(), reason };
        return micros(cells, from, decode, times, out).map_err(failed);
    }
    match dtype {
        DType::Float32 => undo(cells, from, decode, out, |v| (v as f32).to_ne_bytes()),
        DType::Float64 => undo(cells, from, decode, out, f64::to_ne_bytes),
        _ => widen(cells, from, dtype, out),
    }
    Ok(())
}

/// Decodes raw cells to microseconds, NaT where they are missing. `times` has the units of numbers.
fn micros(
    cells: &[u8],
    from: DType,
    decode: &Decode,
    times: Option<&CfTimes>,
    out: &mut [u8],
) -> Result<(), String> {
    for (s, o) in scalars(cells, from).zip(out.as_chunks_mut::<8>().0) {
        let us = match times {
            Some(times) => times.micros(&s)?.unwrap_or(NAT),
            None if is_missing(&s, decode) => NAT,
            None => s.bits() as i64,
        };
        *o = us.to_ne_bytes();
    }
    Ok(())
}

/// Converts integers to the integer type `to`, which has all their values.
fn widen(cells: &[u8], from: DType, to: DType, out: &mut [u8]) {
    for (s, o) in scalars(cells, from).zip(out.chunks_exact_mut(to.size())) {
        o.copy_from_slice(&native_bytes(s.cast(to))[..to.size()]);
    }
}

/// Decodes raw cells to floats, of which `put` makes the bytes, in one pass.
fn undo<const N: usize>(
    cells: &[u8],
    from: DType,
    decode: &Decode,
    out: &mut [u8],
    put: impl Fn(f64) -> [u8; N],
) {
    let out = out.as_chunks_mut::<N>().0;
    // All values of these types are exact in float64.
    macro_rules! exact {
        ($t:ty) => {{
            let (cells, _) = cells.as_chunks::<{ size_of::<$t>() }>();
            undo_exact(cells.iter().map(|c| f64::from(<$t>::from_ne_bytes(*c))), decode, out, put)
        }};
    }
    match from {
        DType::Int8 => exact!(i8),
        DType::UInt8 => exact!(u8),
        DType::Int16 => exact!(i16),
        DType::UInt16 => exact!(u16),
        DType::Int32 => exact!(i32),
        DType::UInt32 => exact!(u32),
        DType::Float32 => exact!(f32),
        DType::Float64 => exact!(f64),
        _ => {
            for (s, o) in scalars(cells, from).zip(out) {
                *o = put(if is_missing(&s, decode) { f64::NAN } else { unpacked(&s, decode) });
            }
        }
    }
}

/// Undoes like [`undo`], for values that are exact.
fn undo_exact<const N: usize>(
    cells: impl Iterator<Item = f64>,
    decode: &Decode,
    out: &mut [[u8; N]],
    put: impl Fn(f64) -> [u8; N],
) {
    let missing: Vec<f64> = decode.missing.iter().map(|m| m.as_f64()).collect();
    // Mostly there is one. NaN equals no value.
    let (first, others) = match missing.split_first() {
        Some((first, others)) => (*first, others),
        None => (f64::NAN, &[][..]),
    };
    let low = decode.valid_min.map_or(f64::NEG_INFINITY, |m| m.as_f64());
    let high = decode.valid_max.map_or(f64::INFINITY, |m| m.as_f64());
    let is_missing =
        |v: f64| v < low || v > high || v == first || !others.is_empty() && others.contains(&v);
    let value = |raw: f64, v: f64| put(if is_missing(raw) { f64::NAN } else { v });
    let cells = cells.zip(out);
    match decode.unpack {
        None => cells.for_each(|(v, o)| *o = value(v, v)),
        Some(u) if u.dtype == DType::Float32 => {
            let (scale, offset) = (u.scale as f32, u.offset as f32);
            cells.for_each(|(v, o)| *o = value(v, f64::from(v as f32 * scale + offset)));
        }
        Some(u) => cells.for_each(|(v, o)| *o = value(v, v * u.scale + u.offset)),
    }
}
