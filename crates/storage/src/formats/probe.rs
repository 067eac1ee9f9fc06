//! Reads all of a file in memory, for tests with damaged files.

use crate::formats::view::{Fault, View};
use crate::formats::{Cells, FORMATS, Format};
use crate::manifest::index_of;
use tessera_planner::region::Dims;

/// Upper bound on the groups that are read.
const GROUPS_MAX: usize = 100;

/// Upper bound on the chunks of an array that are decoded.
const CHUNKS_MAX: u64 = 64;

/// Upper bound on the bytes of a chunk that is decoded.
const CHUNK_BYTES_MAX: u64 = 1 << 20;

/// Parses a file in the format that it looks like: all of its groups and the places of chunks. Decodes the first
/// chunks. Returns the number of arrays that were found.
///
/// # Errors
/// The reason why the file is not valid; `None` if it looks like no known format.
pub fn probe(bytes: &[u8]) -> Result<usize, Option<String>> {
    let len = bytes.len() as u64;
    all(*FORMATS.iter().find(|f| f.is(bytes, len)).ok_or(None)?, bytes)
}

/// [`probe`] of a file as the format with this name in SQL, whatever its content looks like.
///
/// # Errors
/// The reason why the file is not valid; `None` if there is no such format.
pub fn probe_as(name: &str, bytes: &[u8]) -> Result<usize, Option<String>> {
    all(*FORMATS.iter().find(|f| f.keys().contains(&name)).ok_or(None)?, bytes)
}

fn all(format: &dyn Format, bytes: &[u8]) -> Result<usize, Option<String>> {
    let file = View::whole(bytes);
    let mut groups = vec![String::new()];
    let (mut arrays, mut seen) = (0, 0);
    while let Some(group) = groups.pop().filter(|_| seen < GROUPS_MAX) {
        seen += 1;
        arrays += read(format, &file, &group, &mut groups).map_err(|f| Some(format!("{f:?}")))?;
    }
    Ok(arrays)
}

fn read(
    format: &dyn Format,
    file: &View<'_>,
    group: &str,
    groups: &mut Vec<String>,
) -> Result<usize, Fault> {
    let Some(found) = format.read(file, group)? else { return Ok(0) };
    // Links of a damaged file may form a ring.
    if group.split('/').count() < 8 {
        let path = |name: &String| match group.is_empty() {
            true => name.clone(),
            false => format!("{group}/{name}"),
        };
        groups.extend(found.groups.iter().take(GROUPS_MAX).map(path));
    }
    for array in found.arrays.values().flatten() {
        let Cells::Chunks(chunks) = &array.cells else { continue };
        let size = chunks.unit.iter().try_fold(array.raw.size(), |n, d| n.checked_mul(*d));
        let units = first_units(&array.shape, &chunks.unit);
        // A damaged chunk is an error of its own: the next ones are read.
        let Ok(places) = chunks.index.find(file, &units) else { continue };
        for place in places.into_iter().flatten() {
            let Ok(stored) = file.read(place.offset, place.bytes) else { continue };
            if let Some(size) = size.filter(|n| *n <= CHUNK_BYTES_MAX) {
                let mut out = vec![0; size as usize];
                let _damaged = chunks.filters.decode_to(&stored, place.skipped, &mut out);
            }
        }
    }
    Ok(found.arrays.len())
}

/// The first chunks of an array, row-major.
fn first_units(shape: &[u64], unit: &[u64]) -> Vec<Dims> {
    if shape.len() != unit.len() || unit.contains(&0) || shape.contains(&0) {
        return Vec::new();
    }
    let counts: Dims = shape.iter().zip(unit).map(|(n, u)| n.div_ceil(*u)).collect();
    let all = counts.iter().fold(1u64, |n, c| n.saturating_mul(*c));
    (0..all.min(CHUNKS_MAX)).map(|i| index_of(&counts, i)).collect()
}
