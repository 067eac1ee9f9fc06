//! Keys in order, or in order at some places only.
//!
//! Keys go to buckets, each of which is put in order in a cache. They are read again where they come from, so that there
//! is no second copy of them.

use super::buckets::{BUCKETS, Source, spread};
use super::key::Key;
use super::leading::Room;
use crate::pool::PooledBuf;
use tessera_planner::runs::BUCKET_SHARE;

/// Fewer keys are put in order at once.
const FEW: usize = 4 << 10;
/// Most marks of a bucket that are found one after the other.
const MARKS: usize = 16;

/// Puts keys, which are those of `source`, in order. With `marks` only the cells at its multiples stand where they would
/// in order; each of the others stands between the two that it lies between. `buffer` gives room to work in: a byte a
/// key.
pub(super) fn order<K: Key>(
    keys: &mut [K],
    marks: Option<usize>,
    source: &impl Source<K>,
    buffer: &dyn Fn(usize) -> PooledBuf,
) {
    if keys.is_sorted() {
        return;
    }
    if keys.is_sorted_by(|a, b| a >= b) {
        keys.reverse();
        return;
    }
    if keys.len() <= FEW {
        let mut room = Room::new(FEW);
        let ends = bounds(keys);
        let sorted = room.order(&[&*keys], ends);
        keys.copy_from_slice(sorted);
        return;
    }
    let ends = {
        let mut numbers = buffer(keys.len());
        spread(keys, source, numbers.as_mut_slice())
    };
    match marks {
        Some(every) if every > 1 => mark(keys, every, ends),
        _ => in_buckets(keys, ends),
    }
}

/// The least and the greatest key of some.
fn bounds<K: Key>(keys: &[K]) -> (K, K) {
    let (mut least, mut most) = (!K::default(), K::default());
    for &k in keys {
        least = least.min(k);
        most = most.max(k);
    }
    (least, most)
}

/// Puts the keys of each bucket in order.
fn in_buckets<K: Key>(keys: &mut [K], ends: [usize; BUCKETS]) {
    // Beyond its share a bucket is sorted by comparisons.
    let most = keys.len() / BUCKET_SHARE as usize;
    let mut room = Room::new(most);
    let mut from = 0;
    for to in ends {
        let part = &mut keys[from..to];
        if part.len() > most {
            part.sort_unstable();
        } else {
            let bounds = bounds(part);
            let sorted = room.order(&[&*part], bounds);
            part.copy_from_slice(sorted);
        }
        from = to;
    }
}

/// Brings the keys at multiples of `every` to their places within their buckets.
fn mark<K: Key>(keys: &mut [K], every: usize, ends: [usize; BUCKETS]) {
    let mut from = 0usize;
    for to in ends {
        let marks = (from.div_ceil(every) * every..to).step_by(every);
        let part = &mut keys[from..to];
        if marks.len() > MARKS {
            part.sort_unstable();
        } else {
            let mut done = 0;
            for m in marks {
                part[done..].select_nth_unstable(m - from - done);
                done = m - from + 1;
            }
        }
        from = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;
    use crate::quota::Quota;
    use proptest::prelude::*;

    impl<K: Key> Source<K> for Vec<K> {
        fn each(&self, f: impl FnMut(K)) {
            self.iter().copied().for_each(f);
        }
    }

    fn check<K: Key + std::fmt::Debug>(cells: &[u64], every: usize) {
        let pool = Pool::new(Quota::new(1 << 30), 0);
        let buffer = |n| pool.take(n);
        let keys: Vec<K> = cells.iter().map(|k| K::narrow(*k)).collect();
        let mut want = keys.clone();
        want.sort();
        let mut got = keys.clone();
        order(&mut got, None, &keys, &buffer);
        assert_eq!(got, want);
        let mut got = keys.clone();
        order(&mut got, Some(every), &keys, &buffer);
        for (got, want) in got.chunks_mut(every).zip(want.chunks(every)) {
            assert_eq!(got[0], want[0]);
            got.sort();
            assert_eq!(got, want);
        }
    }

    fn check_all(cells: &[u64], every: usize) {
        check::<u8>(cells, every);
        check::<u16>(cells, every);
        check::<u32>(cells, every);
        check::<u64>(cells, every);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        #[test]
        fn keys_come_in_order_and_to_their_marks(
            seed in any::<u64>(), n in 0usize..19000, bits in 0u32..64, near in 0u32..64,
            every in 1usize..3000,
        ) {
            // Few bits have many equal keys; some keys far from all others crowd those in few places.
            let mut state = seed;
            let cells: Vec<u64> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let key = (state ^ state >> 29) >> bits;
                    if state >> 60 > 0 { key >> near } else { key }
                })
                .collect();
            check_all(&cells, every);
        }
    }

    #[test]
    fn keys_that_stand_in_order_stay() {
        let rising: Vec<u64> = (0..10_000).map(|k| k * k).collect();
        let falling: Vec<u64> = rising.iter().rev().copied().collect();
        for cells in [rising, falling] {
            check::<u64>(&cells, 100);
        }
    }
}
