//! Texts that are read with the metadata: labels of a dimension, or texts beside them.

use crate::formats::hdf5::datatype::Pad;
use crate::formats::hdf5::heap;
use crate::formats::hdf5::objects::Data;
use crate::formats::view::{Fault, View};
use crate::formats::{Cells, ChunkIndex, FileChunks, Place, Why};
use std::sync::Arc;
use tessera_planner::region::Dims;

/// Upper bound on the texts of an array.
pub(super) const TEXTS_MAX: u64 = 1 << 20;

/// Upper bound on the bytes of texts that are read with the metadata.
const TEXT_BYTES_MAX: u64 = 64 << 20;

type Texts = Result<Arc<[String]>, Why>;

/// Chunks of texts in a file that has chunks of letters: one axis more, along which there is one chunk.
#[derive(Debug)]
pub(super) struct Whole(pub(super) Arc<dyn ChunkIndex>);

impl ChunkIndex for Whole {
    fn find(&self, file: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        let of_letters = |at: &Dims| at.iter().copied().chain([0]).collect();
        self.0.find(file, &units.iter().map(of_letters).collect::<Vec<Dims>>())
    }
}

/// The texts of a 1-d array of references into the global heap.
pub(super) fn of_any_length(data: &Data<'_, '_>, cells: &Cells) -> Result<Texts, Fault> {
    let file = data.file;
    let stored = match stored(data, cells)? {
        Ok(stored) => stored,
        Err(why) => return Ok(Err(why)),
    };
    heap::will_read(file, &stored);
    let mut left = TEXT_BYTES_MAX;
    let texts = file.each(stored.chunks_exact(data.of.size.max(1) as usize), |value| {
        let text = heap::text(file, value, file.sizes.base)?;
        left = left.checked_sub(text.len() as u64).ok_or_else(|| {
            Fault::unsupported(format!("texts of more than {TEXT_BYTES_MAX} bytes"))
        })?;
        Ok(text)
    })?;
    Ok(Ok(texts.into()))
}

/// The texts of `len` letters each.
pub(super) fn of_letters(data: &Data<'_, '_>, cells: &Cells, len: u64) -> Result<Texts, Fault> {
    let stored = stored(data, cells)?;
    Ok(stored
        .map(|all| all.chunks_exact(len.max(1) as usize).map(|t| Pad::Zeros.text(t)).collect()))
}

/// All cells of an array, row-major, as the file stores them after its filters.
fn stored(data: &Data<'_, '_>, cells: &Cells) -> Result<Result<Vec<u8>, Why>, Fault> {
    let (file, shape, size) = (data.file, &data.space.shape, data.of.size);
    let count = data.space.cells().unwrap_or(u64::MAX);
    let bytes = count.saturating_mul(size);
    if count / shape.last().copied().filter(|_| shape.len() > 1).unwrap_or(1).max(1) > TEXTS_MAX
        || bytes > TEXT_BYTES_MAX
    {
        let what = format!("{count} texts or letters, at most {TEXTS_MAX} are read");
        return Ok(Err(Why::Unsupported(what)));
    }
    Ok(Ok(match cells {
        Cells::Flat(_) if bytes == 0 => Vec::new(),
        Cells::Flat(offset) => file.read(offset - file.sizes.base, bytes)?.into_owned(),
        Cells::Inline(all) if all.len() as u64 == bytes => all.to_vec(),
        Cells::Chunks(chunks) => return of_chunks(data, chunks, bytes as usize),
        _ => return Ok(Err(Why::Bad("its cells have the wrong number of bytes".into()))),
    }))
}

fn of_chunks(
    data: &Data<'_, '_>,
    chunks: &FileChunks,
    bytes: usize,
) -> Result<Result<Vec<u8>, Why>, Fault> {
    let (file, shape, size) = (data.file, &data.space.shape, data.of.size as usize);
    let unit_bytes = chunks.unit.iter().fold(size as u64, |n, d| n.saturating_mul(*d));
    if unit_bytes > TEXT_BYTES_MAX {
        return Ok(Err(Why::Unsupported(format!("chunks of texts of {unit_bytes} bytes"))));
    }
    let counts: Dims = shape.iter().zip(&chunks.unit).map(|(n, u)| n.div_ceil(*u)).collect();
    let all = counts.iter().fold(1u64, |n, c| n.saturating_mul(*c));
    let units: Vec<Dims> = (0..all).map(|i| at(i, &counts)).collect();
    let places = chunks.index.find(file.view, &units)?;
    places.iter().flatten().for_each(|p| file.view.will_read(p.offset, p.bytes));
    let mut out = chunks.fill.repeat(bytes / size.max(1));
    let present = units.iter().zip(&places).filter_map(|(at, p)| Some((at, p.as_ref()?)));
    let decoded = file.each(present, |(at, place)| {
        let Some(address) = place.offset.checked_sub(file.sizes.base) else {
            return Err(Fault::bad(place.offset, "a chunk before the file"));
        };
        let stored = file.read(address, place.bytes)?;
        let cells = chunks.filters.decode(&stored, place.skipped);
        put(
            &mut out,
            shape,
            &cells.map_err(|e| Fault::bad(place.offset, e))?,
            at,
            &chunks.unit,
            size,
        );
        Ok(())
    });
    decoded.map(|_| Ok(out))
}

/// The index of chunk `i`, row-major.
fn at(mut i: u64, counts: &Dims) -> Dims {
    let mut out: Dims = counts.iter().map(|_| 0).collect();
    for (a, n) in counts.iter().enumerate().rev() {
        out[a] = i % n;
        i /= n;
    }
    out
}

/// Copies the cells of a chunk into the array, row by row.
fn put(out: &mut [u8], shape: &[u64], cells: &[u8], at: &Dims, unit: &Dims, size: usize) {
    let Some(last) = unit.len().checked_sub(1) else { return };
    let rows: u64 = unit[..last].iter().product();
    let start = at[last] * unit[last];
    let row = unit[last] as usize * size;
    let len = (unit[last].min(shape[last].saturating_sub(start))) as usize * size;
    for r in 0..rows {
        let (mut rest, mut to, mut step, mut is_in) = (r, start, shape[last], true);
        for a in (0..last).rev() {
            let i = at[a] * unit[a] + rest % unit[a];
            rest /= unit[a];
            is_in &= i < shape[a];
            to += i * step;
            step *= shape[a];
        }
        let (from, to) = (r as usize * row, to as usize * size);
        if let (true, Some(from), Some(to)) =
            (is_in, cells.get(from..from + len), out.get_mut(to..to + len))
        {
            to.copy_from_slice(from);
        }
    }
}
