//! Chunks that references define, each a part of a file: neighbours in a file are read with one request.
//!
//! ```text
//!   references   t/0 ▶ a.nc 4096..9000    t/1 ▶ a.nc 9000..13000    t/2 ▶ b.nc 4096..9000
//!   requests     a.nc 4096..13000                                   b.nc 4096..9000
//! ```

use super::ranges::Requests;
use super::{CONCURRENT_MAX, Chunked};
use crate::source::error::SourceError;
use crate::source::reader::{ArrayReader, Piece};
use crate::source::references::Referred;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::ops::Range;
use tessera_planner::region::Dims;

/// Chunks that are read at once.
#[derive(Debug, PartialEq, Eq)]
struct Stretch {
    range: Range<u64>,
    /// The numbers of the chunks; a single one is read as an object.
    chunks: Vec<usize>,
    is_sparse: bool,
}

impl Chunked {
    pub(super) async fn fetch_referred(
        &self,
        reader: &ArrayReader,
        units: Vec<Dims>,
    ) -> Result<Vec<Piece>, SourceError> {
        let keys: Vec<String> = units.iter().map(|at| self.key(at)).collect();
        let places = reader.store.referred(&keys).await?;
        let of = places.iter().map(|place| place.as_ref().map(|p| (p.url(), &p.range)));
        let stretches = stretches(of, self.encoded_max());
        let read: Vec<Vec<(usize, Option<Bytes>)>> = stream::iter(stretches)
            .map(|stretch| self.fetch_stretch(reader, (&units, &places), stretch))
            .buffered(CONCURRENT_MAX)
            .try_collect()
            .await?;
        let mut all: Vec<Option<Bytes>> = vec![None; units.len()];
        for (i, bytes) in read.into_iter().flatten() {
            all[i] = bytes;
        }
        let pieces = units.into_iter().zip(all);
        Ok(pieces.map(|(at, bytes)| Piece { bytes, ..Piece::at(at) }).collect())
    }

    async fn fetch_stretch(
        &self,
        reader: &ArrayReader,
        (units, places): (&[Dims], &[Option<Referred>]),
        Stretch { range, chunks, is_sparse }: Stretch,
    ) -> Result<Vec<(usize, Option<Bytes>)>, SourceError> {
        let several: &[usize] = if chunks.len() > 1 { &chunks } else { &[] };
        let object = |&i: &usize| Some((self.key(&units[i]), places[i].as_ref()?.range.clone()));
        let objects: Vec<(String, Range<u64>)> = several.iter().filter_map(object).collect();
        let read = match several.first().and_then(|&i| places[i].as_ref()) {
            Some(first) => reader.store.stretch(first, &range, &objects).await,
            None => Ok(None),
        };
        let all = match read {
            // The file ends before a chunk, which is the one to name.
            Err(SourceError::Damaged { .. }) => None,
            read => read?,
        };
        let mut out = Vec::with_capacity(chunks.len());
        for i in chunks {
            let part = all.as_ref().zip(places[i].as_ref()).and_then(|(all, place)| {
                let (start, end) = (place.range.start - range.start, place.range.end - range.start);
                let part = all.get(start as usize..end as usize)?;
                Some(match is_sparse && part.len() < all.len() {
                    true => Bytes::copy_from_slice(part),
                    false => all.slice_ref(part),
                })
            });
            let bytes = match part {
                Some(part) => Some(part),
                None => self.get(reader, &units[i]).await?,
            };
            out.push((i, bytes));
        }
        Ok(out)
    }
}

/// Joins the parts of each file that are close together, of at most `limit` bytes each. `places` are files and parts;
/// `None` for chunks that are no part of a file.
fn stretches<'a>(
    places: impl Iterator<Item = Option<(&'a str, &'a Range<u64>)>>,
    limit: u64,
) -> Vec<Stretch> {
    let mut files: BTreeMap<&str, Vec<(&Range<u64>, usize)>> = BTreeMap::new();
    let mut out = Vec::new();
    for (i, place) in places.enumerate() {
        let part = place.filter(|(_, r)| (1..=limit).contains(&r.end.saturating_sub(r.start)));
        match part {
            Some((file, range)) => files.entry(file).or_default().push((range, i)),
            None => out.push(Stretch { range: 0..0, chunks: vec![i], is_sparse: false }),
        }
    }
    for mut parts in files.into_values() {
        parts.sort_by_key(|(r, i)| (r.start, r.end, *i));
        let Requests { ranges, is_sparse } = Requests::of(parts.iter().map(|(r, _)| *r));
        let first = out.len();
        let empty = |range| Stretch { range, chunks: Vec::new(), is_sparse };
        out.extend(ranges.into_iter().map(empty));
        let stretches = &mut out[first..];
        for (r, i) in parts {
            let k = stretches.partition_point(|s| s.range.end < r.end);
            stretches[k].chunks.push(i);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_file_are_one_stretch() {
        let (near, next, far) = (100..200, 200..260, 1_000_000..1_000_100);
        let (long, empty) = (260..5_000, 260..260);
        let places = [
            Some(("a", &next)),
            Some(("b", &near)),
            None,
            Some(("a", &far)),
            Some(("a", &near)),
            Some(("a", &long)),
            Some(("a", &empty)),
            Some(("a", &near)),
        ];
        let found = stretches(places.into_iter(), 4_000);
        let of = |range: Range<u64>, chunks: &[usize]| Stretch {
            range,
            chunks: chunks.to_vec(),
            is_sparse: false,
        };
        let want = [
            of(0..0, &[2]),
            of(0..0, &[5]),
            of(0..0, &[6]),
            of(100..260, &[4, 7, 0]),
            of(far.clone(), &[3]),
            of(near.clone(), &[1]),
        ];
        assert_eq!(found, want);
        assert!(stretches(std::iter::empty(), 1).is_empty());
    }
}
