//! Spans: states that hold only the groups that occur in their chunk.
//!
//! ```text
//!   months of days   0 0 0 1 1 │ 1 2 2 3 3 │ 3 4 4 4 5      codes along time, cut into chunks
//!   states           0 1 . .   │ . 1 2 3   │ . . 3 4 5      groups that occur in each chunk
//!   held             0 1 2     │   1 2 3   │     3 4 5      the same number in each: the longest span
//! ```
//! A state has a cell for each group and each cell of the other axes, so that holding all groups in every chunk would
//! take many times the memory of the result. Groups that do not occur in a chunk add nothing, so the choice changes no
//! bit.

use crate::grid::{AxisGrid, Grid};
use crate::ir::{AxisReduce, Groups};
use crate::plan::{FusedOutput, Output, Spans};
use std::sync::Arc;

/// The groups of each chunk of states along an axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Span {
    pub(super) axis: usize,
    /// The first group of each chunk.
    first: Vec<u64>,
    /// Number of groups in a chunk, and in all.
    len: u64,
    count: u64,
}

impl Span {
    /// The spans of codes that are cut by a grid; `None` if they save less than half.
    fn of(grid: &AxisGrid, groups: &Groups) -> Option<Span> {
        let count = u64::from(groups.count);
        let mut span = Span { axis: 0, first: Vec::new(), len: 1, count };
        for i in 0..grid.count() {
            let (start, end) = grid.interval(i);
            let codes = groups.codes.get(start as usize..end as usize)?;
            let (least, greatest) = (*codes.iter().min()?, *codes.iter().max()?);
            span.first.push(u64::from(least));
            span.len = span.len.max(u64::from(greatest - least) + 1);
        }
        if span.len * 2 > count {
            return None;
        }
        span.first.iter_mut().for_each(|f| *f = (*f).min(count - span.len));
        Some(span)
    }

    /// The codes of each chunk, relative to its first group.
    fn codes(&self, grid: &AxisGrid, groups: &Groups) -> Groups {
        let mut codes = Vec::with_capacity(groups.codes.len());
        for (i, first) in (0..).zip(&self.first) {
            let (start, end) = grid.interval(i);
            let here = &groups.codes[start as usize..end as usize];
            codes.extend(here.iter().map(|c| c - *first as u32));
        }
        Groups { codes: codes.into(), count: self.len as u32 }
    }

    /// Moves up one level of the combining tree, where `fan` chunks are combined, and cuts `above` into the span's
    /// states.
    pub(super) fn climb(&mut self, fan: u64, above: &mut Grid) -> Spans {
        let below: Arc<[u64]> = self.first.as_slice().into();
        let ends = |s: &[u64]| Some((*s.iter().min()?, *s.iter().max()?));
        let met: Vec<(u64, u64)> =
            self.first.chunks(fan.max(1) as usize).filter_map(ends).collect();
        self.len += met.iter().map(|(least, greatest)| greatest - least).max().unwrap_or(0);
        if met.len() == 1 {
            // The root also has the groups that occur in no chunk.
            self.len = self.count;
        }
        self.first = met.iter().map(|(least, _)| (*least).min(self.count - self.len)).collect();
        let chunks = self.first.len() as u64;
        above.axes[self.axis] = AxisGrid::regular(chunks * self.len, self.len);
        Spans { axis: self.axis, below, here: self.first.as_slice().into() }
    }
}

/// Spans, and the codes relative to them.
type Narrowed = (Span, Groups);

/// Narrows the states of reductions with one axis of groups each, if that pays off.
pub(super) fn narrow(
    grid: &Grid,
    fused: &mut [FusedOutput],
    outputs: &mut [Output],
) -> Vec<Option<Span>> {
    // Reductions by the same codes still share them.
    let mut known: Vec<(Arc<[u32]>, Option<Narrowed>)> = Vec::new();
    let mut one = |fused: &mut FusedOutput, output: &mut Output| {
        let FusedOutput::Reduce { axes, .. } = fused else { return None };
        let mut grouped = axes.iter().enumerate().filter_map(|(a, r)| match r {
            AxisReduce::Group(groups) => Some((a, groups.clone())),
            _ => None,
        });
        let (Some((axis, groups)), None) = (grouped.next(), grouped.next()) else { return None };
        let cut = &grid.axes[axis];
        let at = known.iter().position(|(codes, _)| Arc::ptr_eq(codes, &groups.codes));
        let at = at.unwrap_or_else(|| {
            let span = Span::of(cut, &groups).map(|span| {
                let codes = span.codes(cut, &groups);
                (Span { axis, ..span }, codes)
            });
            known.push((groups.codes.clone(), span));
            known.len() - 1
        });
        let (span, codes) = known[at].1.clone().filter(|(s, _)| s.axis == axis)?;
        axes[axis] = AxisReduce::Group(codes);
        output.grid.axes[axis] = AxisGrid::regular(cut.count() * span.len, span.len);
        Some(span)
    };
    fused.iter_mut().zip(outputs).map(|(f, o)| one(f, o)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn spans_cover_the_chunks_that_they_meet() {
        let codes: Vec<u32> = (0..3650).map(|day| day / 30).collect();
        let groups = Groups { count: codes[3649] + 1, codes: codes.clone().into() };
        let grid = AxisGrid { len: 3650, first: 100, chunk: 365 };
        let mut span = Span::of(&grid, &groups).unwrap();
        let narrowed = span.codes(&grid, &groups);
        assert_eq!(u64::from(narrowed.count), span.len);
        assert!(span.len <= 14);
        for i in 0..grid.count() {
            let (start, end) = grid.interval(i);
            let days = start as usize..end as usize;
            for (&own, &code) in narrowed.codes[days.clone()].iter().zip(&codes[days]) {
                assert_eq!(span.first[i as usize] + u64::from(own), u64::from(code));
                assert!(own < narrowed.count);
            }
        }
        // Up the tree, every state holds the groups of its inputs, and the last one all groups.
        for fan in [4, 3] {
            let (below, len) = (span.first.clone(), span.len);
            let mut above = Grid { axes: smallvec![AxisGrid::regular(1, 1)] };
            let spans = span.climb(fan, &mut above);
            assert_eq!((&spans.below[..], &spans.here[..]), (&below[..], &span.first[..]));
            for (i, first) in below.iter().enumerate() {
                let here = spans.here[i / fan as usize];
                assert!(here <= *first && first + len <= here + span.len);
            }
            assert_eq!(above.axes[0].longest(), span.len);
        }
        assert_eq!((span.first, span.len), (vec![0], span.count));
    }

    #[test]
    fn codes_that_every_chunk_meets_stay() {
        let grid = AxisGrid::regular(120, 10);
        let months = |n: u32| Groups { codes: (0..120).map(|i| i % n).collect(), count: n };
        assert_eq!(Span::of(&grid, &months(12)), None);
    }
}
