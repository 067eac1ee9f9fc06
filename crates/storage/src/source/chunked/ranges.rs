//! Requests for parts of one object.
//!
//! ```text
//!   parts     ##   ### #         ##        #        neighbours are one request if the gap costs less than another one;
//!   requests  [########]         []        []       where gaps are most of it, requests are shorter and made in turns
//! ```

use std::ops::Range;

/// Largest gap between two parts of an object that is read with them instead of splitting the request.
pub(super) const GAP_BYTES_MAX: u64 = 64 << 10;

/// Upper bound on a request for several parts: a longer one may exceed the time of a request, and several are faster.
pub(super) const MERGED_BYTES_MAX: u64 = 64 << 20;

/// Upper bound on a request whose gaps are copied out, unless a part is longer.
pub(super) const SPARSE_BYTES_MAX: u64 = 4 << 20;

/// Gaps of less than this in all are not worth a copy.
const SPARSE_BYTES_MIN: u64 = 1 << 20;

/// Upper bound on the bytes that are requested at a time where gaps are copied out, unless a part is longer.
const SPARSE_TURN_BYTES: u64 = 16 << 20;

/// Ranges to request.
pub(super) struct Requests {
    /// In rising order of their ends.
    pub(super) ranges: Vec<Range<u64>>,
    /// True if most of the bytes are gaps: the parts are copied, so that the gaps are not held.
    pub(super) is_sparse: bool,
}

impl Requests {
    /// The requests for `parts`, which are in order.
    pub(super) fn of<'a>(parts: impl Iterator<Item = &'a Range<u64>> + Clone) -> Requests {
        let length = |r: &Range<u64>| r.end - r.start;
        let wanted: u64 = parts.clone().map(length).sum();
        let ranges = merged(parts.clone(), MERGED_BYTES_MAX);
        let read: u64 = ranges.iter().map(length).sum();
        match is_sparse(wanted, read.saturating_sub(wanted)) {
            true => Requests { ranges: merged(parts, SPARSE_BYTES_MAX), is_sparse: true },
            false => Requests { ranges, is_sparse: false },
        }
    }

    /// The ranges that are requested at a time: all, or as many as bound the gaps that are held. Small ones are many.
    pub(super) fn turns(&self) -> Vec<&[Range<u64>]> {
        let most = if self.is_sparse { SPARSE_TURN_BYTES } else { u64::MAX };
        let (mut out, mut rest) = (Vec::new(), &self.ranges[..]);
        while !rest.is_empty() {
            let mut sum = 0u64;
            let fits = |r: &&Range<u64>| {
                sum = sum.saturating_add(r.end - r.start);
                sum <= most
            };
            let (turn, next) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            out.push(turn);
            rest = next;
        }
        out
    }
}

/// True if the gaps among parts are not to be held with them.
pub(super) fn is_sparse(wanted: u64, gaps: u64) -> bool {
    gaps > wanted.saturating_add(SPARSE_BYTES_MIN)
}

fn merged<'a>(parts: impl Iterator<Item = &'a Range<u64>>, most: u64) -> Vec<Range<u64>> {
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in parts {
        match out.last_mut() {
            Some(last) if r.end <= last.end => {}
            Some(last)
                if r.start <= last.end.saturating_add(GAP_BYTES_MAX)
                    && r.end - last.start <= most =>
            {
                last.end = r.end;
            }
            _ => out.push(r.clone()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_gaps_are_read_with_their_neighbours() {
        let parts = [0..10, 10..20, 15..18, 1_000..1_010, 100_000..100_001];
        let of = Requests::of(parts.iter());
        assert_eq!(of.ranges, [0..1_010, 100_000..100_001]);
        assert!(!of.is_sparse);
        assert_eq!(of.turns(), [&of.ranges[..]]);
        let none = Requests::of([].iter());
        assert!(none.ranges.is_empty() && none.turns().is_empty());
    }

    #[test]
    fn requests_for_many_parts_are_bounded() {
        const PART: u64 = 24 << 20;
        let parts: Vec<Range<u64>> = (0..5).map(|i| i * PART..(i + 1) * PART).collect();
        let of = Requests::of(parts.iter());
        assert_eq!(of.ranges, [0..2 * PART, 2 * PART..4 * PART, 4 * PART..5 * PART]);
        // A range within another one, and a range that begins before the previous one ends.
        let long = 0..MERGED_BYTES_MAX + 1;
        let of = Requests::of([long.clone(), 10..20, 30..MERGED_BYTES_MAX + 40].iter());
        assert_eq!(of.ranges, [long, 30..MERGED_BYTES_MAX + 40]);
        assert!(!of.is_sparse);
    }

    #[test]
    fn records_that_lie_far_apart_are_requested_in_bounded_parts() {
        // 1,000 records of 8 bytes, one in 60,000: 70 of them are in 4 MiB.
        let parts: Vec<Range<u64>> = (0..1_000).map(|i| i * 60_000..i * 60_000 + 8).collect();
        let of = Requests::of(parts.iter());
        assert!(of.is_sparse);
        assert_eq!(of.ranges.len(), 1_000usize.div_ceil(70));
        assert!(of.ranges.iter().all(|r| r.end - r.start <= SPARSE_BYTES_MAX));
        assert_eq!(of.ranges[1].start, 70 * 60_000);
        // 4 of 4,140,008 bytes are in 16 MiB, and the last ones.
        let turns: Vec<usize> = of.turns().iter().map(|turn| turn.len()).collect();
        assert_eq!(turns, [4, 4, 4, 3]);
    }

    #[test]
    fn small_requests_are_not_held_up_by_sparse_ones() {
        // 100 records that lie close, then 1,000 that lie further apart than a gap is read.
        let close = (0..100).map(|i| i * 60_000);
        let apart = (100..1_100).map(|i| i * 100_000);
        let parts: Vec<Range<u64>> = close.chain(apart).map(|at| at..at + 8).collect();
        let of = Requests::of(parts.iter());
        assert!(of.is_sparse);
        assert_eq!((of.ranges.len(), of.turns().len()), (1_002, 1));
    }

    #[test]
    fn a_part_that_is_longer_than_a_turn_is_one() {
        let records = (1..1_000).map(|i| SPARSE_TURN_BYTES + i * 60_000).map(|at| at..at + 8);
        let parts: Vec<Range<u64>> =
            std::iter::once(0..SPARSE_TURN_BYTES + 1).chain(records).collect();
        let of = Requests::of(parts.iter());
        assert!(of.is_sparse);
        assert_eq!(of.turns()[0], &parts[..1]);
        assert_eq!(of.turns().concat(), of.ranges);
    }
}
