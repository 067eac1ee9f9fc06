//! The value at a place in the order of the values of a group, and the next one.
//!
//! ```text
//! parts of a group     5 1 9   4 2 8 5   7 3 6
//! first bits           1 2 3: three values    4 5 5 6 7: five    8 9: two
//! place 4              is the second place among the five, which are copied
//! ```
//! Values of a large group are counted by the first 16 bits of their keys, where they are. Only those that have the first
//! bits of the result are copied and compared. If these are most of all values, they are counted by the next 16 bits
//! before.

use super::{Value, neighbours};
use crate::rows::go_on;
use datafusion::common::Result;

/// Values of a group from which on they are counted. Fewer are copied at once.
pub(super) const LARGE: usize = 1 << 16;

/// Bits of a key by which values are counted at a time, and how many numbers these are.
const DIGIT_BITS: u32 = 16;
const DIGITS: usize = 1 << DIGIT_BITS;

/// The part of all values that is copied at most.
pub(super) const COPIED_SHARE: usize = 4;

/// Values that are examined before those that are wanted are copied.
const TILE: usize = 1 << 10;

/// Selects values by their places, group after group in the same memory.
#[derive(Debug, Default)]
pub(super) struct Selected<V> {
    copies: Vec<V>,
    counts: Vec<u32>,
}

impl<V: Value> Selected<V> {
    /// The value at a place in the order of all values, which has to exist, and the next one.
    ///
    /// # Errors
    /// The statement is stopped.
    pub(super) fn at(&mut self, parts: &[&[V]], place: usize) -> Result<(V, Option<V>)> {
        let count: usize = parts.iter().map(|part| part.len()).sum();
        if V::HAS_KEYS && (LARGE..=u32::MAX as usize).contains(&count) {
            return self.counted(parts, count, place);
        }
        self.copies.clear();
        parts.iter().for_each(|part| self.copies.extend_from_slice(part));
        Ok(neighbours(&mut self.copies, place))
    }

    fn counted(
        &mut self,
        parts: &[&[V]],
        count: usize,
        mut place: usize,
    ) -> Result<(V, Option<V>)> {
        // The first bits of the key that is searched for, and how many bits follow them.
        let (mut first, mut shift) = (0, u64::BITS);
        loop {
            shift -= DIGIT_BITS;
            self.count(parts, first, shift)?;
            let (digit, before) = self.digit_at(place);
            let within = self.counts[digit] as usize;
            first = (first << DIGIT_BITS) | digit as u64;
            place -= before;
            if place + 1 == within {
                // The next value has other first bits.
                return around(parts, first, shift);
            }
            if shift == 0 {
                // The next value is an equal one.
                return Ok((V::of_key(first), Some(V::of_key(first))));
            }
            if within <= count / COPIED_SHARE {
                self.copy(parts, first, shift)?;
                return Ok(neighbours(&mut self.copies, place));
            }
        }
    }

    /// Counts the values whose keys begin with `first` by the bits that follow, which end before `shift` others.
    fn count(&mut self, parts: &[&[V]], first: u64, shift: u32) -> Result<()> {
        self.counts.clear();
        self.counts.resize(DIGITS, 0);
        let counts = &mut self.counts[..DIGITS];
        for part in parts {
            go_on()?;
            for value in part.iter() {
                let bits = value.key() >> shift;
                if bits >> DIGIT_BITS == first {
                    counts[bits as usize % DIGITS] += 1;
                }
            }
        }
        Ok(())
    }

    /// The bits of the counted value at a place, and how many counted values have smaller ones.
    fn digit_at(&self, place: usize) -> (usize, usize) {
        let (mut digit, mut before) = (0, 0);
        while digit + 1 < DIGITS && before + self.counts[digit] as usize <= place {
            before += self.counts[digit] as usize;
            digit += 1;
        }
        (digit, before)
    }

    /// Copies the values whose keys begin with `first`, before `shift` other bits.
    fn copy(&mut self, parts: &[&[V]], first: u64, shift: u32) -> Result<()> {
        self.copies.clear();
        let mut tile = [V::default(); TILE];
        for part in parts {
            go_on()?;
            for values in part.chunks(TILE) {
                // Without a branch, which would often be mispredicted.
                let mut len = 0;
                for &value in values {
                    tile[len] = value;
                    len += usize::from(value.key() >> shift == first);
                }
                self.copies.extend_from_slice(&tile[..len]);
            }
        }
        Ok(())
    }
}

/// The greatest of the values whose keys begin with at most `first`, before `shift` other bits, and the smallest of the
/// others.
fn around<V: Value>(parts: &[&[V]], first: u64, shift: u32) -> Result<(V, Option<V>)> {
    let (mut lower, mut upper, mut others) = (0u64, u64::MAX, 0usize);
    for part in parts {
        go_on()?;
        for value in part.iter() {
            let key = value.key();
            let is_lower = key >> shift <= first;
            lower = lower.max(if is_lower { key } else { 0 });
            upper = upper.min(if is_lower { u64::MAX } else { key });
            others += usize::from(!is_lower);
        }
    }
    Ok((V::of_key(lower), (others > 0).then(|| V::of_key(upper))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Compares values at some places with those of the standard library's sort.
    fn check<V: Value>(values: &[V]) {
        let mut sorted = values.to_vec();
        sorted.sort_by(V::order);
        let parts = [&values[..11_000], &[], &values[11_000..11_001], &values[11_001..]];
        let mut selected = Selected::default();
        let last = values.len() - 1;
        for place in [0, 1, last / 4, last / 3, last / 2, last / 2 + 1, last - 1, last] {
            let (lower, upper) = selected.at(&parts, place).unwrap();
            assert_eq!(lower.key(), sorted[place].key(), "{place}");
            assert_eq!(upper.map(V::key), sorted.get(place + 1).map(|v| v.key()), "{place}");
        }
    }

    #[test]
    fn places_of_many_values_are_those_of_a_sort() {
        let numbers = |of: fn(u64) -> f64| (0..LARGE as u64 + 5001).map(of).collect::<Vec<_>>();
        let bits = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
        let few = [f64::INFINITY, -0.0, 0.0, f64::NAN, -f64::NAN, f64::NEG_INFINITY, 1.5, 1.5];
        // Any bits, and those of all NaN.
        check(&(0..LARGE as u64 + 5001).map(|i| f64::from_bits(bits(i))).collect::<Vec<_>>());
        check(&(0..LARGE as u64 + 5001).map(|i| bits(i) as i64).collect::<Vec<_>>());
        check(&(0..LARGE + 5001).map(|i| few[i * 7 % 8]).collect::<Vec<_>>());
        // Values that differ in their middle, in their last bits, by their signs, or not at all.
        check(&numbers(|i| 1000.0 + (i * 7919 % 100_003) as f64 * 1e-6));
        check(&numbers(|i| f64::from_bits(1.5f64.to_bits() + i * 7919 % 50)));
        check(&numbers(|i| if i % 2 == 0 { 0.0 } else { -0.0 }));
        check(&numbers(|i| if i % 3 == 0 { 1.0 } else { 2.0 }));
        check(&numbers(|_| 0.125));
    }

    fn found<V: Value>(values: &[V], places: &[(usize, V, Option<V>)]) {
        for &(place, lower, upper) in places {
            let parts = [values];
            assert_eq!(Selected::default().at(&parts, place).unwrap(), (lower, upper), "{place}");
        }
    }

    /// Expected values from NumPy.
    #[test]
    fn integers_are_found() {
        let values: Vec<i64> =
            (0..200_000).map(|i| i * 7919 % 100_003 * 1_000_003 - 50_000_000_000).collect();
        found(
            &values,
            &[
                (0, -50_000_000_000, Some(-50_000_000_000)),
                (99_999, -850_003, Some(150_000)),
                (150_000, 25_001_225_003, Some(25_002_225_006)),
                (199_999, 50_002_300_006, None),
            ],
        );
    }

    #[test]
    fn few_values_are_found() {
        found(&[3.0], &[(0, 3.0, None)]);
        found(&[3.0, -0.5], &[(0, -0.5, Some(3.0)), (1, 3.0, None)]);
        let keys = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-310, 2.0, f64::INFINITY].map(f64::key);
        assert!(keys.is_sorted_by(|a, b| a < b));
        for value in [0.0, -0.0, 1.5, -1.5, f64::NEG_INFINITY, f64::NAN, -f64::NAN] {
            assert_eq!(f64::of_key(value.key()).to_bits(), value.to_bits());
        }
        for value in [0, 1, -1, i64::MIN, i64::MAX] {
            assert_eq!(i64::of_key(value.key()), value);
        }
    }
}
