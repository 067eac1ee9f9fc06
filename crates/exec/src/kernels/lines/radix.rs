//! Keys in order by their digits, or in order at some places only.

use super::key::Key;

/// Fewer keys are sorted by comparisons.
const FEW: usize = 1 << 10;
/// Most digits by which sorting is faster than by comparisons.
const DIGITS_MAX: usize = 5;
const DIGIT: u32 = 8;
const VALUES: usize = 1 << DIGIT;

/// Puts keys in order. With `marks` only the cells at its multiples stand where they would in order; each of the others
/// stands between the two that it lies between. `scratch` is room to work in.
pub(super) fn order<K: Key>(keys: &mut [K], marks: Option<usize>, scratch: &mut Vec<K>) {
    match marks {
        Some(every) if every > 1 && size_of::<K>() == 8 && keys.len() >= 2 * FEW => {
            mark(keys, every, scratch);
        }
        // As much room again as wide keys have would be missing for chunks, which then were spilled before their turn.
        None if size_of::<K>() == 8 => keys.sort_unstable(),
        _ => sort(keys, scratch),
    }
}

/// Puts keys in order.
pub(super) fn sort<K: Key>(keys: &mut [K], scratch: &mut Vec<K>) {
    if keys.len() < FEW || u32::try_from(keys.len()).is_err() {
        keys.sort_unstable();
        return;
    }
    // Digits that are the same everywhere are left out.
    let (some, all) = keys.iter().fold((0, u64::MAX), |(some, all), k| {
        let k = k.wide();
        (some | k, all & k)
    });
    let differs = |d: &u32| (some ^ all) >> (d * DIGIT) & (VALUES as u64 - 1) != 0;
    let digits: Vec<u32> = (0..size_of::<K>() as u32).filter(differs).collect();
    if digits.len() > DIGITS_MAX {
        keys.sort_unstable();
        return;
    }
    scratch.clear();
    scratch.resize(keys.len(), K::default());
    let (mut from, mut to) = (&mut *keys, &mut scratch[..]);
    for d in &digits {
        by_digit(from, to, d * DIGIT);
        (from, to) = (to, from);
    }
    if digits.len() % 2 == 1 {
        keys.copy_from_slice(scratch);
    }
}

/// Copies keys in the order of one digit, those with the same in theirs.
fn by_digit<K: Key>(from: &[K], to: &mut [K], shift: u32) {
    let digit = |k: &K| (k.wide() >> shift) as usize % VALUES;
    let mut places = [0u32; VALUES];
    from.iter().for_each(|k| places[digit(k)] += 1);
    let mut first = 0;
    for p in &mut places {
        (*p, first) = (first, first + *p);
    }
    for k in from {
        let place = &mut places[digit(k)];
        to[*place as usize] = *k;
        *place += 1;
    }
}

/// Keys of a sample for each bucket.
const SAMPLES: usize = 16;

/// Brings the keys at multiples of `every` to their places, and the others between them: buckets by a sample, and a
/// choice within those that hold such a place.
///
/// # Source
/// P. Sanders and S. Winkel, "Super Scalar Sample Sort", 2004, for the search without branches.
fn mark<K: Key>(keys: &mut [K], every: usize, scratch: &mut Vec<K>) {
    let n = keys.len();
    let mut sample: Vec<K> =
        (0..VALUES * SAMPLES).map(|i| keys[i * (n / (VALUES * SAMPLES)).max(1) % n]).collect();
    sample.sort_unstable();
    // A search tree of the bounds between buckets: node `i` has the children `2 i` and `2 i + 1`.
    let mut tree = [K::default(); VALUES];
    for (i, node) in tree.iter_mut().enumerate().skip(1) {
        let level = i.ilog2();
        let within = 2 * (i - (1 << level)) + 1;
        *node = sample[(VALUES >> (level + 1)) * within * SAMPLES];
    }
    let bucket = |key: K| {
        let mut node = 1;
        for _ in 0..DIGIT {
            node = 2 * node + usize::from(tree[node % VALUES] <= key);
        }
        (node % VALUES) as u8
    };
    let mut places = [0usize; VALUES];
    let numbers: Vec<u8> = keys.iter().map(|k| bucket(*k)).collect();
    numbers.iter().for_each(|b| places[usize::from(*b)] += 1);
    let mut first = 0;
    for p in &mut places {
        (*p, first) = (first, first + *p);
    }
    scratch.clear();
    scratch.resize(n, K::default());
    for (key, b) in keys.iter().zip(&numbers) {
        let place = &mut places[usize::from(*b)];
        scratch[*place] = *key;
        *place += 1;
    }
    keys.copy_from_slice(scratch);
    let mut from = 0usize;
    for to in places {
        let marks = (from.div_ceil(every) * every..to).step_by(every);
        let part = &mut keys[from..to];
        if marks.len() > SAMPLES {
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
    use proptest::prelude::*;

    fn check<K: Key + std::fmt::Debug>(cells: &[u64], every: usize) {
        let keys: Vec<K> = cells.iter().map(|k| K::narrow(*k)).collect();
        let mut want = keys.clone();
        want.sort();
        let (mut got, mut scratch) = (keys.clone(), Vec::new());
        order(&mut got, None, &mut scratch);
        assert_eq!(got, want);
        let mut got = keys;
        order(&mut got, Some(every), &mut scratch);
        for (got, want) in got.chunks_mut(every).zip(want.chunks(every)) {
            assert_eq!(got[0], want[0]);
            got.sort();
            assert_eq!(got, want);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        #[test]
        fn keys_come_in_order_and_to_their_marks(
            seed in any::<u64>(), n in 0usize..9000, bits in 0u32..64, every in 1usize..3000,
        ) {
            // Few bits have many equal keys.
            let mut state = seed;
            let cells: Vec<u64> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state ^ state >> 29) >> bits
                })
                .collect();
            check::<u8>(&cells, every);
            check::<u16>(&cells, every);
            check::<u32>(&cells, every);
            check::<u64>(&cells, every);
        }
    }
}
