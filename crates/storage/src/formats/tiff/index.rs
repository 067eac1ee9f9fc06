//! The places of the segments of an image. Only the needed parts of the lists of offsets and lengths are read.

use super::ifd::{Part, Values};
use super::image::{Image, Layout};
use super::segment::{Codec, Segment};
use crate::formats::filters::{Filter, Filters};
use crate::formats::view::{Fault, View};
use crate::formats::{ChunkIndex, Place};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::region::Dims;

/// The segments of an image, or of several images of one layout.
#[derive(Debug)]
pub(super) struct Segments {
    lists: Vec<Lists>,
    layout: Layout,
}

/// Offsets and lengths of the segments of an image.
#[derive(Debug)]
struct Lists {
    offsets: Values,
    lengths: Option<Values>,
}

/// A chunk that is looked for.
struct Wanted {
    /// Its index in the lists.
    i: u64,
    /// Its position in the result.
    to: usize,
    /// True if it is the last one of a column.
    is_last: bool,
}

impl Segments {
    /// The segments of images that have this layout.
    pub(super) fn new(images: &[Image], layout: Layout) -> Segments {
        let lists = images.iter().map(|i| Lists { offsets: i.offsets, lengths: i.lengths });
        Segments { lists: lists.collect(), layout }
    }
}

impl Layout {
    /// The last segment of a column, if it has fewer rows.
    fn last(&self) -> Option<Segment> {
        let rows = self.last_rows? as usize;
        Some(Segment { rows, ..self.segment.clone() })
    }

    /// The codecs of a chunk: that of a segment with all rows, and that of the last one of a column.
    pub(super) fn filters(&self) -> Filters {
        let s = &self.segment;
        let bytes = s.unit_bytes().unwrap_or(0) as u64;
        if s.is_plain() && self.last_rows.is_none() {
            let swapped = if s.big_endian { s.size } else { 0 };
            return Filters::new(Vec::new(), bytes, swapped);
        }
        let forms = std::iter::once(s.clone()).chain(self.last());
        Filters::new(forms.map(|s| Arc::new(s) as Arc<dyn Filter>).collect(), bytes, 0)
    }

    /// Filters that are not applied to a segment.
    fn skipped(&self, is_last: bool) -> u32 {
        match (self.last_rows, is_last) {
            (None, _) => 0,
            (_, false) => 0b10,
            (_, true) => 0b01,
        }
    }
}

/// Bytes of a segment that is not compressed.
fn stored(segment: &Segment) -> Option<u64> {
    segment.bytes().filter(|_| segment.codec == Codec::None).map(|n| n as u64)
}

impl ChunkIndex for Segments {
    fn find(&self, file: &View<'_>, units: &[Dims]) -> Result<Vec<Option<Place>>, Fault> {
        let Layout { down, across, is_planar, .. } = self.layout;
        let mut by_image: BTreeMap<usize, Vec<Wanted>> = BTreeMap::new();
        for (to, at) in units.iter().enumerate() {
            let [page @ .., band, y, x] = &at[..] else { continue };
            let plane = if is_planar { *band } else { 0 };
            let wanted = Wanted { i: (plane * down + y) * across + x, to, is_last: y + 1 == down };
            let page = page.first().copied().unwrap_or(0) as usize;
            by_image.entry(page).or_default().push(wanted);
        }
        let whole = stored(&self.layout.segment);
        let last = self.layout.last().map_or(whole, |s| stored(&s));
        let mut lists = Vec::new();
        for (page, wanted) in by_image {
            let Some(Lists { offsets, lengths }) = self.lists.get(page) else { continue };
            let indices: Vec<u64> = wanted.iter().map(|w| w.i).collect();
            let offsets = Numbers::new(*offsets, &indices, file);
            let lengths = lengths.map(|l| Numbers::new(l, &indices, file));
            lists.push((wanted, offsets, lengths));
        }
        let mut found = vec![None; units.len()];
        for (wanted, offsets, lengths) in lists {
            let offsets = offsets.read(file)?;
            let lengths = lengths.map(|l| l.read(file)).transpose()?;
            for Wanted { i, to, is_last } in wanted {
                let offset = number(&offsets, i);
                let stored = if is_last { last } else { whole };
                let bytes = match (&lengths, stored) {
                    // Writers may pad the last strip.
                    (Some(lengths), Some(stored)) => number(lengths, i).min(stored),
                    (Some(lengths), None) => number(lengths, i),
                    (None, stored) => stored.unwrap_or(0),
                };
                let skipped = self.layout.skipped(is_last);
                found[to] = (offset > 0 && bytes > 0).then_some(Place { offset, bytes, skipped });
            }
        }
        Ok(found)
    }

    fn gap(&self) -> Option<u64> {
        Some(0)
    }
}

/// Numbers of a list that will be read.
struct Numbers(Vec<Part>);

impl Numbers {
    fn new(list: Values, indices: &[u64], file: &View<'_>) -> Numbers {
        let mut sorted = indices.to_vec();
        sorted.sort_unstable();
        let parts = list.parts(&sorted);
        parts.iter().for_each(|part| part.announce(file));
        Numbers(parts)
    }

    /// The numbers, by the index of the first of each part.
    fn read(self, file: &View<'_>) -> Result<BTreeMap<u64, Vec<u64>>, Fault> {
        self.0.into_iter().map(|part| Ok((part.first(), part.read(file)?))).collect()
    }
}

/// A number of a list; 0 if it was not read.
fn number(parts: &BTreeMap<u64, Vec<u64>>, i: u64) -> u64 {
    let part = parts.range(..=i).next_back();
    part.and_then(|(first, all)| all.get((i - first) as usize)).copied().unwrap_or(0)
}
