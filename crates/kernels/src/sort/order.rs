//! Sorting keys, completely or only at some places.

use super::key::Key;

/// The places at which keys have to be in sorted position. Every other key lies between the sorted keys of the adjacent
/// wanted places.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// All places.
    All,
    /// The first `n` places.
    First(usize),
    /// The multiples of a number.
    Multiples(usize),
    /// These places, ascending.
    Places(&'a [usize]),
}

impl Wanted<'_> {
    /// True if one of the places `from..to` is wanted and keys there can be out of place.
    #[inline]
    pub(crate) fn some(self, from: usize, to: usize) -> bool {
        let place = match self {
            Wanted::All => from,
            Wanted::First(n) if from < n => from,
            Wanted::First(_) => to,
            Wanted::Multiples(every) => from.next_multiple_of(every.max(1)),
            Wanted::Places(places) => {
                places.get(places.partition_point(|&p| p < from)).copied().unwrap_or(to)
            }
        };
        place < to && to - from > 1
    }
}

/// Sorts keys as far as `wanted`; detects sorted and reversed keys first.
pub(super) fn arrange<K: Key>(keys: &mut [K], wanted: Wanted<'_>) {
    if keys.is_sorted() {
        return;
    }
    if keys.is_sorted_by(|a, b| a >= b) {
        keys.reverse();
        return;
    }
    place(keys, wanted);
}

/// Sorts keys as far as `wanted`.
pub(super) fn place<K: Key>(keys: &mut [K], wanted: Wanted<'_>) {
    if !K::place(keys, wanted) {
        plain(keys, wanted);
    }
}

/// Like [`place`], without vectors.
fn plain<K: Ord>(keys: &mut [K], wanted: Wanted<'_>) {
    match wanted {
        Wanted::All => keys.sort_unstable(),
        Wanted::First(n) => first_sorted(keys, n),
        Wanted::Multiples(_) | Wanted::Places(_) => halves(keys, 0, wanted),
    }
}

/// Like [`plain`], for keys that start at place `from`.
fn halves<K: Ord>(keys: &mut [K], from: usize, wanted: Wanted<'_>) {
    // So few are sorted as fast as partitioned.
    const FEW: usize = 64;
    if !wanted.some(from, from + keys.len()) {
        return;
    }
    if keys.len() <= FEW {
        keys.sort_unstable();
        return;
    }
    let middle = keys.len() / 2;
    let (less, _, more) = keys.select_nth_unstable(middle);
    halves(less, from, wanted);
    halves(more, from + middle + 1, wanted);
}

/// Moves the least `n` keys to the front, sorted.
pub(super) fn first_sorted<K: Ord>(keys: &mut [K], n: usize) {
    if n == 0 {
        return;
    }
    if n < keys.len() {
        keys.select_nth_unstable(n - 1);
        keys[..n].sort_unstable();
    } else {
        keys.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<K: Key + std::fmt::Debug>(cells: &[u64], wanted: Wanted<'_>) {
        let keys: Vec<K> = cells.iter().map(|k| K::narrow(*k)).collect();
        let mut want = keys.clone();
        want.sort();
        let is_wanted = |i: usize| match wanted {
            Wanted::All => true,
            Wanted::First(n) => i < n,
            Wanted::Multiples(every) => i.is_multiple_of(every),
            Wanted::Places(places) => places.contains(&i),
        };
        let mut plainly = keys.clone();
        plain(&mut plainly, wanted);
        let mut placed = keys.clone();
        place(&mut placed, wanted);
        let mut arranged = keys;
        arrange(&mut arranged, wanted);
        for mut got in [plainly, placed, arranged] {
            let mut from = 0;
            for i in 0..=got.len() {
                if i == got.len() || is_wanted(i) {
                    got[from..i].sort();
                    assert_eq!(got[from..i], want[from..i], "{wanted:?}");
                    from = i + 1;
                    assert!(i == got.len() || got[i] == want[i], "{i} {wanted:?}");
                }
            }
        }
    }

    fn check_all(cells: &[u64], wanted: Wanted<'_>) {
        check::<u8>(cells, wanted);
        check::<u16>(cells, wanted);
        check::<u32>(cells, wanted);
        check::<u64>(cells, wanted);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        #[test]
        fn keys_come_to_the_places_that_are_wanted(
            seed in any::<u64>(), n in 0usize..9000, bits in 0u32..64, near in 0u32..64,
            every in 1usize..3000, places in prop::collection::btree_set(0usize..9000, 0..12),
        ) {
            // Few bits give many equal keys; outliers crowd the other keys into few places.
            let mut state = seed;
            let cells: Vec<u64> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let key = (state ^ state >> 29) >> bits;
                    if state >> 60 > 0 { key >> near } else { key }
                })
                .collect();
            let places: Vec<usize> = places.into_iter().collect();
            for wanted in [
                Wanted::All,
                Wanted::First(every),
                Wanted::Multiples(every),
                Wanted::Places(&places),
            ] {
                check_all(&cells, wanted);
            }
        }
    }

    #[test]
    fn few_keys_of_every_number_come_in_order() {
        for n in 0..300u64 {
            let scattered = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31);
            let cells: Vec<u64> = (0..n).map(scattered).collect();
            check_all(&cells, Wanted::All);
            // Vectors are padded with the greatest key.
            let ends: Vec<u64> =
                cells.iter().map(|k| if k % 3 == 0 { u64::MAX } else { k % 2 }).collect();
            check_all(&ends, Wanted::All);
        }
    }

    #[test]
    fn keys_that_stand_in_order_or_in_patterns_come_in_order() {
        let rising: Vec<u64> = (0..10_000).map(|k| k * k).collect();
        let falling: Vec<u64> = rising.iter().rev().copied().collect();
        let there_and_back: Vec<u64> = rising.iter().chain(&falling).copied().collect();
        let saw: Vec<u64> = (0..20_000).map(|k| (k % 64) << 40).collect();
        for cells in [rising, falling, there_and_back, saw] {
            check_all(&cells, Wanted::All);
            check_all(&cells, Wanted::Multiples(100));
        }
    }
}
