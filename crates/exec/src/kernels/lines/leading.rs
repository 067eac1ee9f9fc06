//! Keys that fit a cache, in order by the leading bits in which they differ.
//!
//! ```text
//!   keys      41c7 4102 4195 41c2    hexadecimal; they differ from the least by 00c5 0000 0093 00c0
//!   places       6    0    4    6    leading bits of the difference, more values than there are keys
//!   counted   4102 4195 41c7 41c2    in the order of their places
//!   in order  4102 4195 41c2 41c7    the few that share one
//! ```

use super::key::Key;

/// Fewer keys are sorted by comparisons.
const FEW: usize = 24;
/// Places for each key: most are alone on theirs.
const PLACES: usize = 2;
/// Keys that share a place and are compared with their neighbours; more of them are sorted.
const NEAR: u16 = 12;

/// Room to put keys in order.
#[derive(Debug)]
pub(super) struct Room<K> {
    most: usize,
    keys: Vec<K>,
    counts: Vec<u16>,
}

impl<K: Key> Room<K> {
    /// Room for at most so many keys; others are sorted by comparisons.
    pub(super) fn new(most: usize) -> Self {
        Room { most: most.min(u16::MAX as usize), keys: Vec::new(), counts: Vec::new() }
    }

    /// Keys between `least` and `most` in order.
    pub(super) fn order<'a>(&'a mut self, from: &[&[K]], (least, most): (K, K)) -> &'a [K] {
        let n: usize = from.iter().map(|part| part.len()).sum();
        if n < FEW || n > self.most {
            self.keys.clear();
            from.iter().for_each(|part| self.keys.extend_from_slice(part));
            self.keys.sort_unstable();
            return &self.keys;
        }
        let least = least.wide();
        let range = most.wide() - least;
        // The greatest difference has a place below twice as many as there are keys, rounded up.
        let bits = u64::BITS - range.leading_zeros();
        let shift = bits.saturating_sub((n * PLACES).next_power_of_two().ilog2());
        let place = |k: K| ((k.wide() - least) >> shift) as usize;
        let places = (range >> shift) as usize + 1;
        self.counts.clear();
        self.counts.resize(places, 0);
        let counts = &mut self.counts[..];
        for part in from {
            for &k in *part {
                counts[place(k)] += 1;
            }
        }
        if shift == 0 && places * 4 < n {
            // Keys with a place are equal.
            self.keys.clear();
            for (p, &count) in counts.iter().enumerate() {
                let key = K::narrow(least + p as u64);
                self.keys.resize(self.keys.len() + usize::from(count), key);
            }
            return &self.keys;
        }
        let (mut first, mut crowded) = (0, 0);
        for count in counts.iter_mut() {
            crowded = crowded.max(*count);
            (*count, first) = (first, first + *count);
        }
        if self.keys.len() < n {
            self.keys.resize(n, K::default());
        }
        let keys = &mut self.keys[..n];
        for part in from {
            for &k in *part {
                let at = &mut counts[place(k)];
                keys[usize::from(*at)] = k;
                *at += 1;
            }
        }
        if shift == 0 {
            return keys;
        }
        if crowded > NEAR {
            let mut first = 0;
            for &end in counts.iter() {
                if end - first > NEAR {
                    keys[usize::from(first)..usize::from(end)].sort_unstable();
                }
                first = end;
            }
        }
        insert(keys);
        keys
    }
}

/// Puts keys in order of which each is near its place.
fn insert<K: Key>(keys: &mut [K]) {
    for i in 1..keys.len() {
        let key = keys[i];
        let mut at = i;
        while at > 0 && key < keys[at - 1] {
            keys[at] = keys[at - 1];
            at -= 1;
        }
        if at < i {
            keys[at] = key;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Numbers without order, below `2^bits`.
    fn scattered(n: u64, bits: u32) -> Vec<u64> {
        let hash = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
        (0..n).map(|i| hash(hash(i)) >> (64 - bits)).collect()
    }

    #[test]
    fn keys_come_in_order() {
        let mut room = Room::new(4000);
        // More than there is room for; few; equal ones, and many that crowd one place beside a single far one.
        for n in [5000, 3, 100, 4000] {
            for bits in [1, 7, 30, 64] {
                for far in [None, Some(1 << 63), Some(u64::MAX)] {
                    let mut keys = scattered(n, bits);
                    keys.extend(far);
                    let (a, b) = keys.split_at(keys.len() / 3);
                    let bounds = (keys.iter().min(), keys.iter().max());
                    let bounds = (*bounds.0.unwrap(), *bounds.1.unwrap());
                    let got = room.order(&[a, &[], b], bounds).to_vec();
                    keys.sort();
                    assert!(got == keys, "{n} {bits} {far:?}");
                }
            }
        }
    }
}
