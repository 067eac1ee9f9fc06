//! Reading sources.

use super::{Operand, Origin, Resident, gather};
use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::schedule::Prepared;
use crate::store::FinishedChunk;
use arrow::buffer::Buffer;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use tessera_planner::catalog::SourceRef;
use tessera_planner::dtype::DType;
use tessera_planner::plan::Task;
use tessera_planner::region::Region;
use tessera_planner::tile::{for_each_index, resident_chunk};
use tessera_storage::source::{ArrayReader, Counters, Fetched};

/// The asynchronous half of a read.
pub(super) fn fetch(
    reader: Arc<ArrayReader>,
    region: Region,
    counters: Arc<Counters>,
) -> BoxFuture<'static, Result<Prepared, Error>> {
    let read = async move {
        let fetched = reader.fetch(&region).await?;
        Ok(Box::new(fetched) as Prepared)
    };
    counters.of(read).boxed()
}

/// A field over bytes of the plan, copied once for alignment.
pub(super) fn constant(dtype: DType, bytes: &[u8]) -> Result<Field, Error> {
    Field::new(dtype, Buffer::from_slice_ref(bytes))
}

pub(super) fn run(
    op: &Operand<'_>,
    origin: &Origin,
    prepared: Option<Prepared>,
) -> Result<Vec<Chunk>, Error> {
    let region = op.tiling.load_region(op.id, op.index);
    match origin {
        Origin::Stored(reader) => {
            let fetched = match prepared {
                Some(p) => *p.downcast::<Fetched>().map_err(|_| Error::Broken {
                    what: "a read was prepared by somebody else".into(),
                })?,
                // Local files are read without waiting, so the future is ready at its first poll.
                None => reader.fetch(&region).now_or_never().ok_or_else(|| Error::Broken {
                    what: format!("the read of {region} of a local file waits"),
                })??,
            };
            op.cx.cancel.check()?;
            let mut buffers = op.buffers(0);
            let out = buffers[0].as_mut_slice();
            let is_without_nan = reader.decode_and_look(fetched, &region, out)?;
            let chunk = op.chunk(0, buffers)?;
            Ok(vec![if is_without_nan { chunk.without_nan() } else { chunk }])
        }
        Origin::Resident(array) => resident(op, array, &region, prepared),
        Origin::Lent(array) => {
            let mut buffers = op.buffers(0);
            array.store(&region, buffers[0].as_mut_slice(), op.stores(0))?;
            Ok(vec![op.chunk(0, buffers)?])
        }
    }
}

/// Bytes that decoding chunks of up to `unit` bytes needs in addition to the peak. The peak counts only the part of a
/// chunk within the array, but a chunk that ends beyond the array is decoded whole. Two such buffers are held between
/// two codecs.
pub(super) fn beyond(source: &SourceRef, unit: u64, region: &Region) -> u64 {
    if region.is_empty() {
        return 0;
    }
    let (grid, size) = (&source.grid, source.dtype.size());
    let stored = grid.cells(&grid.overlapping(region)).cells().saturating_mul(size as u64);
    let planned = grid.chunk_bytes_max(size).min(stored);
    unit.saturating_sub(planned).saturating_mul(2)
}

/// The chunks of an array outside of the plan that a load reads, as they were when the load was admitted.
pub(super) struct Pinned(Vec<(Region, FinishedChunk)>);

/// Pins the chunks that a load reads, and returns the bytes, in addition to the peak, that loading them needs.
pub(super) fn pin(source: &SourceRef, array: &Resident, region: &Region) -> (u64, Pinned) {
    let mut chunks = Vec::new();
    for_each_index(&array.grid.overlapping(region), &mut |index| {
        if let Some(held) = array.held(array.grid.ravel(index)) {
            chunks.push((array.grid.region(index), held));
        }
    });
    let whole = resident_chunk(source, region).is_some();
    let of = |held: &FinishedChunk| match held {
        FinishedChunk::Memory(_) => 0,
        FinishedChunk::File(file) if whole => file.bytes(),
        FinishedChunk::File(file) => file.staging(),
    };
    (chunks.iter().map(|(_, h)| of(h)).max().unwrap_or(0), Pinned(chunks))
}

/// Reads a box of an array outside of the plan: the chunk itself where it is exactly one and an operand reads it, else a
/// copy.
fn resident(
    op: &Operand<'_>,
    array: &Resident,
    region: &Region,
    prepared: Option<Prepared>,
) -> Result<Vec<Chunk>, Error> {
    let Task::Load { source, .. } = &op.stage.task else {
        return Err(Error::Broken { what: "a read of a stage that loads nothing".into() });
    };
    let Pinned(chunks) = match prepared {
        Some(p) => *p
            .downcast::<Pinned>()
            .map_err(|_| Error::Broken { what: "a read was prepared by somebody else".into() })?,
        // A retry of a failed read.
        None => pin(source, array, region).1,
    };
    let wanted = array.grid.overlapping(region).cells();
    if chunks.len() as u64 != wanted {
        let what = format!("{} of {wanted} chunks of a tensor in memory", chunks.len());
        return Err(Error::Broken { what });
    }
    if resident_chunk(source, region).is_some()
        && let [(_, held)] = &chunks[..]
        // In its place in the result a chunk is written as one.
        && !(op.cx.has_place(0) && matches!(held, FinishedChunk::Memory(_)))
    {
        let chunk = match held {
            FinishedChunk::Memory(chunk) => Chunk::shared(chunk),
            FinishedChunk::File(file) => file.load(op.cx.pool, op.cx.read_back)?,
        };
        return Ok(vec![chunk.first_fields(op.stage.outputs[0].fields.len())]);
    }
    let mut buffers = op.buffers(0);
    for (from, held) in &chunks {
        op.cx.cancel.check()?;
        gather::copy_held(held, from, region, &mut buffers, op.stores(0), op.cx)?;
    }
    Ok(vec![op.chunk(0, buffers)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_planner::grid::Grid;
    use tessera_planner::region::Dims;

    fn days(shape: [u64; 2]) -> SourceRef {
        SourceRef {
            url: "days".into(),
            path: String::new(),
            dtype: DType::Float32,
            shape: Dims::from_slice(&shape),
            grid: Grid::regular(&shape, &[31, 1_000]),
            nullable: false,
            version: None,
            plain: false,
        }
    }

    #[test]
    fn chunks_that_end_beyond_the_array_are_reserved_whole() {
        let unit = 31 * 1_000 * 4;
        let need = |source: &SourceRef, from: [u64; 2], len: [u64; 2]| {
            beyond(source, unit, &Region::at(&from, &len))
        };
        let year = days([365, 1_000]);
        assert_eq!(need(&year, [0, 0], [31, 1_000]), 0);
        assert_eq!(need(&year, [310, 5], [55, 10]), 0, "a whole chunk is planned");
        // 24 days of 31 at the end.
        assert_eq!(need(&year, [341, 0], [24, 1_000]), 2 * 7 * 4_000);
        // An array that is shorter than a chunk along both axes.
        let small = days([3, 10]);
        assert_eq!(need(&small, [0, 0], [3, 10]), 2 * (unit - 120));
        assert_eq!(beyond(&small, 0, &Region::at(&[0, 0], &[3, 10])), 0);
    }
}
