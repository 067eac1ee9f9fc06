#![expect(unsafe_code, reason = "vectors are accessed by pointer; blocks say why this is sound")]
//! Sorting keys with vectors: a quicksort with branch-free partitioning, and a sorting network for few keys.
//!
//! ```text
//!   keys      7 2 9 4 │ 1 8 3 6    a vector, and its lanes that are below the pivot 5
//!   lanes     2 4 7 9              those first, by a permutation from a table of bit masks
//!   stored    2 4 . . ─▶      ◀─ . . 7 9    whole vector at both ends of the free space
//! ```
//! Few keys are the columns of eight vectors, which 19 comparisons of whole vectors sort. Transposed, each column is a
//! run, and runs are merged by comparing one with the reverse of the other (bitonic merges).
//!
//! # Source
//! S. Gueron and V. Krasnov, "Fast quicksort implementation using AVX instructions", 2016, for partitioning by
//! permutations; B. Bramas, "A novel hybrid quicksort algorithm vectorized using AVX-512", 2017, for partitioning in
//! place from both ends; K. E. Batcher, "Sorting networks and their applications", 1968.

mod avx2;

use super::order::Wanted;
use avx2::{Eight, Four};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Vectors of a network.
const ROWS: usize = 8;
/// Upper bound on the keys that are partitioned through a buffer.
const NEAR: usize = 1024;
/// Keys of that buffer: a whole vector may be stored at its end.
const ROOM: usize = NEAR + ROWS;
/// Vectors between two decisions about which end to read from.
const UNROLL: usize = 8;

/// Vector operations on keys.
///
/// # Safety
/// Functions with pointers read or write a vector there, or `n` keys; all require AVX2.
trait Lanes {
    type Key: Copy + Ord + Default;
    type Vector: Copy;
    /// Keys per vector.
    const LANES: usize;
    const MAX: Self::Key;
    unsafe fn load(from: *const Self::Key) -> Self::Vector;
    unsafe fn store(to: *mut Self::Key, v: Self::Vector);
    /// Loads `n` keys, fewer than a vector; the other lanes get the greatest key.
    unsafe fn load_first(from: *const Self::Key, n: usize) -> Self::Vector;
    unsafe fn store_first(to: *mut Self::Key, v: Self::Vector, n: usize);
    unsafe fn splat(key: Self::Key) -> Self::Vector;
    /// The lesser and the greater keys of each lane.
    unsafe fn pair(a: Self::Vector, b: Self::Vector) -> [Self::Vector; 2];
    /// One bit per lane, set if the lane is less than the pivot.
    unsafe fn below(v: Self::Vector, pivot: Self::Vector) -> usize;
    /// The lanes whose bit is set, followed by the others.
    unsafe fn first(v: Self::Vector, bits: usize) -> Self::Vector;
    unsafe fn reverse(v: Self::Vector) -> Self::Vector;
    /// Sorts keys that rise at most once and fall at most once.
    unsafe fn bitonic(v: Self::Vector) -> Self::Vector;
    /// Transposes: each column becomes a run of adjacent lanes and vectors.
    unsafe fn turn(v: [Self::Vector; ROWS]) -> [Self::Vector; ROWS];
    /// The next greater key, if there is one.
    fn next(key: Self::Key) -> Option<Self::Key>;
}

/// Sorts keys as far as `wanted`.
///
/// # Safety
/// The machine has AVX2.
pub(super) unsafe fn place_u32(keys: &mut [u32], wanted: Wanted<'_>) {
    // SAFETY: the caller checked that the machine has AVX2.
    unsafe { place::<Eight>(keys, wanted) }
}

/// Sorts keys as far as `wanted`.
///
/// # Safety
/// The machine has AVX2.
pub(super) unsafe fn place_u64(keys: &mut [u64], wanted: Wanted<'_>) {
    // SAFETY: the caller checked that the machine has AVX2.
    unsafe { place::<Four>(keys, wanted) }
}

unsafe fn place<V: Lanes>(keys: &mut [V::Key], wanted: Wanted<'_>) {
    // Not set: short lines are sorted by the million.
    let mut room = MaybeUninit::<[V::Key; ROOM]>::uninit();
    let room = room.as_mut_ptr().cast::<V::Key>();
    // More than twice as many splits as equal halves need mean bad luck, or an adversarial input.
    let splits = 2 * (usize::BITS - keys.len().leading_zeros()) + 4;
    // SAFETY: the keys are borrowed mutably, the buffer has its full length and is written before it is read, and the
    // machine has AVX2.
    unsafe { quick::<V>(keys.as_mut_ptr(), (0, keys.len()), room, wanted, splits) }
}

/// Sorts the keys `from..to` as far as `wanted`.
///
/// # Safety
/// The caller owns these keys, and the [`ROOM`] keys of the buffer, for writing; the machine has AVX2.
#[target_feature(enable = "avx2,popcnt")]
unsafe fn quick<V: Lanes>(
    keys: *mut V::Key,
    (mut from, to): (usize, usize),
    room: *mut V::Key,
    wanted: Wanted<'_>,
    mut splits: u32,
) {
    while wanted.some(from, to) {
        let n = to - from;
        // SAFETY: the caller gives the keys up to `to`: there are n from `from` on.
        let low = unsafe {
            let here = keys.add(from);
            if n <= ROWS * V::LANES {
                few::<V>(here, n);
                return;
            }
            if splits == 0 {
                std::slice::from_raw_parts_mut(here, n).sort_unstable();
                return;
            }
            splits -= 1;
            let pivot = pivot::<V>(here, n, room);
            let low = split::<V>(here, n, pivot, room);
            if low == 0 {
                // The pivot is the least key: keys equal to it are sorted once they are first.
                let Some(next) = V::next(pivot) else { return };
                from += split::<V>(here, n, next, room);
                continue;
            }
            low
        };
        let at = from + low;
        // SAFETY: the keys from `from` to `at` are a part of those that the caller gave, on a machine with AVX2.
        unsafe { quick::<V>(keys, (from, at), room, wanted, splits) };
        from = at;
    }
}

/// Returns a key near the median, estimated from a sample.
///
/// # Safety
/// There are n keys, more than a network sorts; the machine has AVX2.
#[inline(always)]
unsafe fn pivot<V: Lanes>(keys: *const V::Key, n: usize, room: *mut V::Key) -> V::Key {
    let sample = ROWS * V::LANES;
    if n > NEAR {
        // Distances are uneven: even ones would sample a periodic line at the same phase.
        let step = n / sample;
        // SAFETY: places are below sample * step, which is at most n; the buffer has as many keys as the sample.
        unsafe {
            for i in 0..sample {
                *room.add(i) = *keys.add(i * step + i.wrapping_mul(0x9E37_79B1) % step);
            }
            few::<V>(room, sample);
            return *room.add(sample / 2);
        }
    }
    let mut middles = [V::Key::default(); 3];
    for (third, m) in middles.iter_mut().enumerate() {
        let at = n / 16 + third * (3 * n / 10);
        // SAFETY: the last place is below 0.92 n.
        let [a, b, c] = unsafe { [*keys.add(at), *keys.add(at + n / 8), *keys.add(at + n / 4)] };
        *m = middle(a, b, c);
    }
    middle(middles[0], middles[1], middles[2])
}

fn middle<K: Ord>(a: K, b: K, c: K) -> K {
    let (a, b) = if a < b { (a, b) } else { (b, a) };
    a.max(b.min(c))
}

/// Moves the keys below the pivot to the front; returns their number.
///
/// # Safety
/// There are n keys, more than a network sorts; the machine has AVX2.
#[inline(always)]
unsafe fn split<V: Lanes>(keys: *mut V::Key, n: usize, pivot: V::Key, room: *mut V::Key) -> usize {
    // SAFETY: there are n keys, more than a network sorts, on a machine with AVX2.
    unsafe {
        if n <= NEAR {
            split_near::<V>(keys, n, pivot, room)
        } else {
            split_far::<V>(keys, n, pivot)
        }
    }
}

/// Keys below the pivot remain, the others go through the buffer.
///
/// # Safety
/// The contract of [`split`]; the buffer has room for n keys and one more vector.
#[inline(always)]
unsafe fn split_near<V: Lanes>(
    keys: *mut V::Key,
    n: usize,
    pivot: V::Key,
    room: *mut V::Key,
) -> usize {
    let all = (1 << V::LANES) - 1;
    let (mut low, mut high, mut at) = (0, 0, 0);
    // SAFETY: stores among the keys never pass the keys already read; the buffer has room for n keys and one vector.
    unsafe {
        let p = V::splat(pivot);
        while at + V::LANES <= n {
            let v = V::load(keys.add(at));
            let bits = V::below(v, p);
            V::store(keys.add(low), V::first(v, bits));
            V::store(room.add(high), V::first(v, !bits & all));
            let below = bits.count_ones() as usize;
            low += below;
            high += V::LANES - below;
            at += V::LANES;
        }
        if at < n {
            let some = (1 << (n - at)) - 1;
            let v = V::load_first(keys.add(at), n - at);
            let bits = V::below(v, p) & some;
            let below = bits.count_ones() as usize;
            V::store_first(keys.add(low), V::first(v, bits), below);
            V::store(room.add(high), V::first(v, !bits & some));
            low += below;
        }
        let (high, mut at) = (n - low, 0);
        while at + V::LANES <= high {
            V::store(keys.add(low + at), V::load(room.add(at)));
            at += V::LANES;
        }
        if at < high {
            let rest = V::load_first(room.add(at), high - at);
            V::store_first(keys.add(low + at), rest, high - at);
        }
    }
    low
}

/// Partitions in place: keys are read at the end with less free space, and stored at both ends.
///
/// # Safety
/// The contract of [`split`]; there are at least two groups of keys.
#[inline(always)]
unsafe fn split_far<V: Lanes>(keys: *mut V::Key, n: usize, pivot: V::Key) -> usize {
    let group = UNROLL * V::LANES;
    let whole = n / group * group;
    let mut free = Free { low: 0, high: whole };
    // SAFETY: two groups are held in registers, so two groups are free before each read, and one of them is at the end
    // that is not read from; of each read at most a group is stored at either end.
    unsafe {
        let p = V::splat(pivot);
        let (first, last) = (load_group::<V>(keys), load_group::<V>(keys.add(whole - group)));
        let (mut left, mut right) = (group, whole - group);
        while left < right {
            // By arithmetic: the processor would mispredict a branch half of the time.
            let lower = usize::from(left - free.low <= free.high - right).wrapping_neg();
            right -= group & !lower;
            let at = (left & lower) | (right & !lower);
            left += group & lower;
            let v = load_group::<V>(keys.add(at));
            // The address may lie beyond the keys, where a prefetch has no effect.
            _mm_prefetch(keys.wrapping_add(left + 8 * group).cast(), _MM_HINT_T0);
            _mm_prefetch(keys.wrapping_add(right).wrapping_sub(9 * group).cast(), _MM_HINT_T0);
            store_group::<V>(v, p, keys, &mut free);
        }
        store_group::<V>(first, p, keys, &mut free);
        store_group::<V>(last, p, keys, &mut free);
        let mut low = free.low;
        for at in whole..n {
            let key = *keys.add(at);
            if key < pivot {
                *keys.add(at) = *keys.add(low);
                *keys.add(low) = key;
                low += 1;
            }
        }
        low
    }
}

/// The place of the next keys below the pivot, and the end of the space for the other keys.
struct Free {
    low: usize,
    high: usize,
}

/// # Safety
/// The contract of [`Lanes`], for `UNROLL` vectors.
#[inline(always)]
unsafe fn load_group<V: Lanes>(from: *const V::Key) -> [V::Vector; UNROLL] {
    // SAFETY: there are `UNROLL` vectors of keys. A loop, as a closure would be compiled for the baseline.
    unsafe {
        let mut v = [V::load(from); UNROLL];
        for (i, v) in v.iter_mut().enumerate() {
            *v = V::load(from.add(i * V::LANES));
        }
        v
    }
}

/// # Safety
/// The space of as many keys is free.
#[inline(always)]
unsafe fn store_group<V: Lanes>(
    v: [V::Vector; UNROLL],
    pivot: V::Vector,
    keys: *mut V::Key,
    free: &mut Free,
) {
    for v in v {
        // SAFETY: `UNROLL` vectors of keys are free. If only one vector is free, both stores have the same address.
        unsafe {
            let bits = V::below(v, pivot);
            let sorted = V::first(v, bits);
            V::store(keys.add(free.low), sorted);
            V::store(keys.add(free.high - V::LANES), sorted);
            let below = bits.count_ones() as usize;
            free.low += below;
            free.high -= V::LANES - below;
        }
    }
}

/// Compares pairs of vectors; the lesser keys go first.
macro_rules! pairs {
    ($v:ident: $(($a:literal, $b:literal))*) => {
        $( [$v[$a], $v[$b]] = V::pair($v[$a], $v[$b]); )*
    };
}

/// Compares the vectors of a run with the reverse of another's: the lesser keys go to the first, and both are bitonic.
macro_rules! meet {
    ($v:ident: $(($a:literal, $b:literal: $from:literal))*) => {{
        let before = $v;
        $( [$v[$a], $v[$b]] = V::pair(before[$a], V::reverse(before[$from])); )*
    }};
}

/// Expands to a statement for each vector of a network, with literal indices: arrays with variable indices would be in
/// memory.
macro_rules! rows {
    ($each:ident) => { $each!(0 1 2 3 4 5 6 7) };
}

/// Sorts at most [`ROWS`] vectors of keys.
///
/// # Safety
/// There are n keys; the machine has AVX2.
#[inline(always)]
unsafe fn few<V: Lanes>(keys: *mut V::Key, n: usize) {
    // SAFETY: there are n keys, and the masks exclude memory beyond them; the machine has AVX2.
    unsafe {
        let mut v = [V::splat(V::MAX); ROWS];
        macro_rules! load {
            ($($i:literal)*) => { $(
                let at = $i * V::LANES;
                if n >= at + V::LANES {
                    v[$i] = V::load(keys.add(at));
                } else if n > at {
                    v[$i] = V::load_first(keys.add(at), n - at);
                }
            )* };
        }
        macro_rules! bitonic {
            ($($i:literal)*) => { $( v[$i] = V::bitonic(v[$i]); )* };
        }
        macro_rules! store {
            ($($i:literal)*) => { $(
                let at = $i * V::LANES;
                if n >= at + V::LANES {
                    V::store(keys.add(at), v[$i]);
                } else if n > at {
                    V::store_first(keys.add(at), v[$i], n - at);
                }
            )* };
        }
        rows!(load);
        pairs!(v: (0, 2) (1, 3) (4, 6) (5, 7) (0, 4) (1, 5) (2, 6) (3, 7) (0, 1) (2, 3));
        pairs!(v: (4, 5) (6, 7) (2, 4) (3, 5) (1, 4) (3, 6) (1, 2) (3, 4) (5, 6));
        v = V::turn(v);
        if V::LANES == ROWS {
            // Runs of one vector.
            meet!(v: (0, 1: 1) (2, 3: 3) (4, 5: 5) (6, 7: 7));
            rows!(bitonic);
        }
        meet!(v: (0, 2: 3) (1, 3: 2) (4, 6: 7) (5, 7: 6));
        pairs!(v: (0, 1) (2, 3) (4, 5) (6, 7));
        rows!(bitonic);
        meet!(v: (0, 4: 7) (1, 5: 6) (2, 6: 5) (3, 7: 4));
        pairs!(v: (0, 2) (1, 3) (4, 6) (5, 7) (0, 1) (2, 3) (4, 5) (6, 7));
        rows!(bitonic);
        rows!(store);
    }
}
