//! Requests for parts of one object.
//!
//! ```text
//!   parts     ##   ### #         ##        #        neighbours are one request if the gap costs less than another one;
//!   requests  [########]         []        []       where gaps are most of it, requests are bounded and made in turns
//! ```

use std::ops::Range;

/// Largest gap between two parts of an object that is read with them instead of splitting the request.
pub(super) const GAP_BYTES_MAX: u64 = 64 << 10;

/// Upper bound on a request whose gaps are copied out, unless a part is longer.
pub(super) const SPARSE_BYTES_MAX: u64 = 4 << 20;

/// Gaps of less than this in all are not worth a copy.
const SPARSE_BYTES_MIN: u64 = 1 << 20;

/// Requests at a time whose gaps are copied out.
const SPARSE_REQUESTS: usize = 4;

/// Ranges to request.
pub(super) struct Requests {
    /// In rising order of their ends.
    pub(super) ranges: Vec<Range<u64>>,
    /// Number of ranges that are requested at a time.
    pub(super) at_once: usize,
    /// True if most of the bytes are gaps: the parts are copied, so that the gaps are not held.
    pub(super) is_sparse: bool,
}

impl Requests {
    /// The requests for `parts`, which are in order.
    pub(super) fn of<'a>(parts: impl Iterator<Item = &'a Range<u64>> + Clone) -> Requests {
        let length = |r: &Range<u64>| r.end - r.start;
        let wanted: u64 = parts.clone().map(length).sum();
        let ranges = merged(parts.clone(), u64::MAX);
        let read: u64 = ranges.iter().map(length).sum();
        match is_sparse(wanted, read.saturating_sub(wanted)) {
            true => {
                let ranges = merged(parts, SPARSE_BYTES_MAX);
                Requests { ranges, at_once: SPARSE_REQUESTS, is_sparse: true }
            }
            false => Requests { at_once: ranges.len().max(1), ranges, is_sparse: false },
        }
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
        assert_eq!((of.at_once, of.is_sparse), (2, false));
        let none = Requests::of([].iter());
        assert_eq!((none.ranges.len(), none.at_once), (0, 1));
    }

    #[test]
    fn records_that_lie_far_apart_are_requested_in_bounded_parts() {
        // 1,000 records of 8 bytes, one in 60,000: 70 of them are in 4 MiB.
        let parts: Vec<Range<u64>> = (0..1_000).map(|i| i * 60_000..i * 60_000 + 8).collect();
        let of = Requests::of(parts.iter());
        assert!(of.is_sparse && of.at_once < of.ranges.len());
        assert_eq!(of.ranges.len(), 1_000usize.div_ceil(70));
        assert!(of.ranges.iter().all(|r| r.end - r.start <= SPARSE_BYTES_MAX));
        assert_eq!(of.ranges[1].start, 70 * 60_000);
    }
}
