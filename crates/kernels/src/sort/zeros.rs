//! Zeros: -0.0 and 0.0 are equal, but have two keys.
//!
//! ```text
//!   cells            3  0 -0 -1 -0        what is sorted as keys has -0 before 0:
//!   keys in order   -1 -0 -0  0  3
//!   sorted          -1  0 -0 -0  3        the zeros are then written again, in the order of the cells
//! ```
//! So sorted cells have the bits of the cells at sorted positions, as in a stable sort of NumPy. Only lines with both
//! zeros are read again.

use super::key::Key;
use std::ops::Range;

/// The keys of the two zeros of a float type. They are neighbours, and the same two in a descending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Zeros<K> {
    /// The lesser key: that of -0.0 in an ascending order.
    pub(super) less: K,
    /// The greater key.
    pub(super) more: K,
}

impl<K: Key> Zeros<K> {
    /// One key for both zeros; other keys are unchanged.
    #[inline(always)]
    pub(super) fn same(self, key: K) -> K {
        if key == self.less { self.more } else { key }
    }

    /// True for the key of a zero.
    #[inline(always)]
    pub(super) fn has(self, key: K) -> bool {
        key == self.less || key == self.more
    }

    /// The places of zeros in keys that are sorted but for the order of zeros.
    pub(super) fn places(self, keys: &[K]) -> Range<usize> {
        keys.partition_point(|k| *k < self.less)..keys.partition_point(|k| *k <= self.more)
    }

    /// The places of zeros among the first `sorted` keys if their order may be another one than that of the cells; the
    /// keys are in order, those of zeros too.
    pub(super) fn mixed(self, keys: &[K], sorted: usize) -> Option<Range<usize>> {
        let ordered = &keys[..sorted];
        // Most lines have one sign.
        if *ordered.first()? > self.more || *ordered.last()? < self.less {
            return None;
        }
        let places = self.places(ordered);
        let (first, last) = (keys.get(places.start)?, keys.get(places.end.checked_sub(1)?)?);
        // If the sorted keys end with zeros, further zeros may follow behind them.
        let is_cut = places.end == sorted && sorted < keys.len();
        (!places.is_empty() && (first != last || is_cut)).then_some(places)
    }
}

/// One key for all keys that are equal as cells.
#[inline(always)]
pub(super) fn same<K: Key>(zeros: Option<Zeros<K>>, key: K) -> K {
    zeros.map_or(key, |z| z.same(key))
}
