//! Stable sorts of numbers by their bits.
//!
//! ```text
//! bits in which some keys differ    0000 0010 0000 0000 0110 1000
//!                                   ─ 2nd ─┘        └─ 1st ──┘
//! ```
//! A digit begins at the lowest differing bit that is in no other. Entries are put in order of their first digit, then
//! of the second, and so on; each step keeps the order of equal digits.

use std::ops::{BitOrAssign, BitXor};

/// Bits of a digit. With 8, the 256 places that are written to take 16 KiB, half of a small L1 cache. 11 bits have 2048
/// places of 128 KiB: each write misses that cache, and only one step in three or four is saved.
const BITS: u32 = 8;
const DIGITS: usize = 1 << BITS;

/// Below this many entries the steps over the digits' counts cost more than comparisons.
const SMALL: usize = 256;

/// A number with digits.
pub(super) trait Radix:
    Copy + Default + Ord + BitOrAssign + BitXor<Output = Self> + Into<u128>
{
    fn digit(self, shift: u32) -> u8;
}

impl Radix for u64 {
    fn digit(self, shift: u32) -> u8 {
        (self >> shift) as u8
    }
}

impl Radix for u128 {
    fn digit(self, shift: u32) -> u8 {
        (self >> shift) as u8
    }
}

/// Sorts entries by their keys; those with equal keys keep their order.
pub(super) fn sort<K: Radix, P: Copy + Default>(entries: &mut Vec<(K, P)>) {
    let Some(&(first, _)) = entries.first() else { return };
    let (mut last, mut differing, mut descents) = (first, K::default(), 0_usize);
    for &(key, _) in entries.iter() {
        descents += usize::from(key < last);
        differing |= key ^ first;
        last = key;
    }
    if descents == 0 {
        return;
    }
    let shifts = shifts(differing.into());
    // The standard sort has a level for each time that the ascending runs double. A step here costs about two of them.
    let steps_max = descents.ilog2().div_ceil(2) as usize + 1;
    if !(SMALL..u32::MAX as usize).contains(&entries.len()) || shifts.len() > steps_max {
        entries.sort_by_key(|&(key, _)| key);
        return;
    }
    let mut counts = vec![[0_u32; DIGITS]; shifts.len()];
    for &(key, _) in entries.iter() {
        for (counts, &shift) in counts.iter_mut().zip(&shifts) {
            counts[usize::from(key.digit(shift))] += 1;
        }
    }
    let mut other = vec![(K::default(), P::default()); entries.len()];
    for (counts, &shift) in counts.iter_mut().zip(&shifts) {
        step(entries, &mut other, counts, shift);
        std::mem::swap(entries, &mut other);
    }
}

/// Copies entries in order of a digit, of which `counts` has the number of entries for each value.
fn step<K: Radix, P: Copy>(
    from: &[(K, P)],
    to: &mut [(K, P)],
    counts: &mut [u32; DIGITS],
    shift: u32,
) {
    let mut next = 0;
    for count in counts.iter_mut() {
        let start = next;
        next += *count;
        *count = start;
    }
    for entry in from {
        let at = &mut counts[usize::from(entry.0.digit(shift))];
        to[*at as usize] = *entry;
        *at += 1;
    }
}

/// The shifts of digits that cover all of these bits. Each digit begins with one of them.
fn shifts(mut bits: u128) -> Vec<u32> {
    let mut shifts = Vec::new();
    while bits != 0 {
        let shift = bits.trailing_zeros();
        shifts.push(shift);
        bits &= !((DIGITS as u128 - 1) << shift);
    }
    shifts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of an entry, from its number, the number of entries and a random number.
    type Key = fn(u128, u128, u128) -> u128;

    /// Multiplier of a generator of random numbers.
    const FACTOR: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

    /// The upper 64 bits of each are its keys of 64 bits.
    const KEYS: [(&str, Key); 13] = [
        ("random", |_, _, r| r),
        ("all equal", |_, _, _| 7 << 70),
        ("sorted", |i, _, _| i << 64),
        ("reversed", |i, n, _| (n - i) << 64),
        ("one byte at the top", |_, _, r| r >> 120 << 120),
        ("the first bit", |_, _, r| r >> 127 << 127),
        ("one byte at the bottom", |_, _, r| r & (0xff << 64 | 0xff)),
        ("two bits with a gap", |_, _, r| r & (0b101 << 67 | 0b11 << 100)),
        ("bits of both halves", |_, _, r| r & (0xffff_ffff << 48)),
        ("20 bits", |_, _, r| r & (0xf_ffff << 66)),
        ("20 runs", |i, n, _| (i % (n / 20 + 1)) << 64),
        ("two runs", |i, n, _| (i % (n / 2 + 1)) << 64),
        ("one descent", |i, n, _| if i + 1 == n { 0 } else { i << 64 }),
    ];

    fn check<K: Radix>(keys: Vec<K>, name: &str) {
        let mut entries: Vec<(K, u32)> = keys.into_iter().zip(0..).collect();
        let mut expected = entries.clone();
        expected.sort();
        sort(&mut entries);
        assert!(entries == expected, "{name}, {} entries", entries.len());
    }

    #[test]
    fn entries_are_sorted_and_equal_keys_keep_their_order() {
        let mut state = 1_u128;
        for n in [0, 1, 2, 255, 256, 257, 1000, 70_000] {
            for (name, key) in KEYS {
                let mut random = || {
                    state = state.wrapping_mul(FACTOR).wrapping_add(1);
                    state.rotate_left(64)
                };
                let keys: Vec<u128> = (0..n).map(|i| key(i, n, random())).collect();
                check(keys.iter().map(|&key| (key >> 64) as u64).collect(), name);
                check(keys, name);
            }
        }
    }

    #[test]
    fn digits_hold_all_bits_that_differ() {
        assert!(shifts(0).is_empty());
        assert_eq!(shifts(0b1_0000_1000), [3]);
        assert_eq!(shifts(0b1_0000_0000_1000), [3, 12]);
        assert_eq!(shifts(1 << 127 | 1), [0, 127]);
        assert_eq!(shifts(u128::MAX).len(), 16);
    }
}
