//! Merging runs of keys into cells, one block at a time.
//!
//! ```text
//!   run 0    1 2 2 5 │ 6 7 │ 9        cut at keys of a sample of all runs,
//!   run 1    3 3 4   │     │ 8 8 9    which are the least keys of the blocks
//!   run 2    2 4     │ 5 7 │ 9
//!   block    1 2 2 2 3 3 4 4 5        sorted in a cache, and written as cells
//! ```

use super::key::{Key, Keyed, by_cell, cell, other_size};
use super::order::{Wanted, place};
use super::zeros::{Zeros, same};
use crate::KernelError;
use tessera_planner::dtype::DType;
use tessera_planner::runs::Blocks;
use tessera_planner::sort::SortOrder;

/// Parts of runs of keys, by key size.
#[derive(Debug)]
pub enum Pieces<'a> {
    /// Of 8 bits.
    U8(Vec<&'a [u8]>),
    /// Of 16 bits.
    U16(Vec<&'a [u16]>),
    /// Of 32 bits.
    U32(Vec<&'a [u32]>),
    /// Of 64 bits.
    U64(Vec<&'a [u64]>),
}

/// Writes the cells of type `dtype` with the ranks `skip..skip + count` among the keys of runs, to every `step`-th
/// place from `start` on. Zeros keep the order of the runs and the order in them.
///
/// # Errors
/// [`KernelError::Cancelled`]; [`KernelError::Buffer`] if there are too few keys, or keys of another size.
pub fn merge_cells(
    dtype: DType,
    runs: &Pieces<'_>,
    wanted: (usize, usize),
    order: SortOrder,
    out: &mut [u8],
    to: (usize, usize),
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    macro_rules! run {
        ($t:ident, $width:ident) => {
            match runs {
                Pieces::$width(runs) => {
                    merged(runs, wanted, <$t as Keyed>::ZEROS, cancelled, |first, keys| {
                        write::<$t>(keys, order, out, (to.0 + first * to.1, to.1));
                    })
                }
                _ => Err(other_size(dtype)),
            }
        };
    }
    by_cell!(dtype, run)
}

/// Writes the cells of keys from one place on, at a fixed step.
fn write<T: Keyed>(
    keys: &[T::Key],
    order: SortOrder,
    out: &mut [u8],
    (start, step): (usize, usize),
) {
    if step == 1 {
        let bytes = &mut out[start * size_of::<T>()..(start + keys.len()) * size_of::<T>()];
        for (to, key) in bytes.chunks_exact_mut(size_of::<T>()).zip(keys) {
            cell::<T>(*key, order).write(to, 0);
        }
        return;
    }
    for (i, key) in keys.iter().enumerate() {
        cell::<T>(*key, order).write(out, start + i * step);
    }
}

/// Beginning of a block.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Bound<K> {
    /// Before the first of equal keys.
    At(K),
    /// After the last of equal keys.
    After(K),
}

impl<K: Key> Bound<K> {
    /// Number of keys of a run before the bound. If there are few, few keys are compared.
    fn before(self, run: &[K], zeros: Option<Zeros<K>>) -> usize {
        let is_before = |k: &K| match self {
            Bound::At(key) => same(zeros, *k) < key,
            Bound::After(key) => same(zeros, *k) <= key,
        };
        let mut within = 8;
        while run.get(within).is_some_and(is_before) {
            within *= 4;
        }
        run[..run.len().min(within)].partition_point(is_before)
    }
}

/// Writes the zeros of pieces of runs into their sorted keys, in the order of the pieces.
fn zeros_in_order<K: Key>(zeros: Zeros<K>, pieces: &[&[K]], sorted: &mut [K]) {
    if let Some(places) = zeros.mixed(sorted, sorted.len()) {
        let from = pieces.iter().flat_map(|piece| &piece[zeros.places(piece)]);
        sorted[places].iter_mut().zip(from).for_each(|(to, key)| *to = *key);
    }
}

/// Calls `emit` with the keys of some ranks among those of runs, in sorted order. Arguments: the rank of the first key,
/// and consecutive keys.
fn merged<K: Key>(
    runs: &[&[K]],
    (skip, count): (usize, usize),
    zeros: Option<Zeros<K>>,
    cancelled: &dyn Fn() -> bool,
    mut emit: impl FnMut(usize, &[K]),
) -> Result<(), KernelError> {
    let cells: usize = runs.iter().map(|run| run.len()).sum();
    if cells < skip + count {
        let (got, expected) = (cells as u64, (skip + count) as u64);
        return Err(KernelError::Buffer { what: "cells of runs", got, expected });
    }
    let blocks = Blocks::of(runs.len() as u64);
    let every = blocks.every as usize;
    let mut sample: Vec<K> = Vec::with_capacity(cells / every + runs.len());
    let of_sample = |key: &K| same(zeros, *key);
    runs.iter().for_each(|run| sample.extend(run.iter().step_by(every).map(of_sample)));
    sample.sort_unstable();
    let mut bounds = sample.iter().step_by((blocks.cells as usize / every).max(1)).skip(1);
    let mut together: Vec<K> = Vec::with_capacity(cells.min(blocks.longest() as usize));
    let mut rest: Vec<&[K]> = runs.to_vec();
    let mut pieces: Vec<&[K]> = Vec::with_capacity(runs.len());
    // Number of cells emitted or skipped, and the bound at which they end.
    let (mut done, mut last) = (0, None);
    while done < skip + count {
        if cancelled() {
            return Err(KernelError::Cancelled);
        }
        // With many equal keys a bound may repeat: such keys form a block of their own, of any size.
        let after = |key: &K| match last {
            Some(Bound::At(before)) if before == *key => Some(Bound::After(*key)),
            Some(Bound::After(before)) if before == *key => None,
            _ => Some(Bound::At(*key)),
        };
        let bound = bounds.find_map(after);
        pieces.clear();
        for run in &mut rest {
            let here = bound.map_or(run.len(), |bound| bound.before(run, zeros));
            let (piece, after) = run.split_at(here);
            *run = after;
            if !piece.is_empty() {
                pieces.push(piece);
            }
        }
        last = bound;
        let here = done..done + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        done = here.end;
        if here.end <= skip {
            continue;
        }
        let mut give = |first: usize, keys: &[K]| {
            let from = skip.saturating_sub(first).min(keys.len());
            let to = (skip + count).saturating_sub(first).min(keys.len());
            if from < to {
                emit(first + from - skip, &keys[from..to]);
            }
        };
        let ends = pieces.iter().fold((!K::default(), K::default()), |(least, most), piece| {
            let ends = (piece[0], piece[piece.len() - 1]);
            (least.min(ends.0), most.max(ends.1))
        });
        if pieces.len() == 1 || ends.0 == ends.1 {
            let mut first = here.start;
            for piece in &pieces {
                give(first, piece);
                first += piece.len();
            }
        } else {
            together.clear();
            pieces.iter().for_each(|piece| together.extend_from_slice(piece));
            place(&mut together, Wanted::All);
            if let Some(zeros) = zeros {
                zeros_in_order(zeros, &pieces, &mut together);
            }
            give(here.start, &together);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::sort::key::ordered;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
        #[test]
        fn runs_are_merged(
            lengths in prop::collection::vec(0usize..3000, 1..40),
            seed in any::<u64>(), bits in 0u32..64, skip in 0usize..20000, count in 0usize..20000,
        ) {
            // Few bits give many equal keys.
            let mut state = seed;
            let mut key = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state ^ state >> 29) >> bits
            };
            let mut runs: Vec<Vec<u64>> =
                lengths.iter().map(|&n| (0..n).map(|_| key()).collect()).collect();
            runs.iter_mut().for_each(|run| run.sort());
            let mut want: Vec<u64> = runs.concat();
            want.sort();
            let skip = skip.min(want.len());
            let count = count.min(want.len() - skip);
            let runs: Vec<&[u64]> = runs.iter().map(Vec::as_slice).collect();
            let mut got = Vec::new();
            merged(&runs, (skip, count), None, &|| false, |first, keys| {
                assert_eq!(first, got.len());
                got.extend_from_slice(keys);
            })
            .unwrap();
            prop_assert_eq!(&got[..], &want[skip..skip + count]);
            prop_assert!(merged(&runs, (skip, want.len() + 1 - skip), None, &|| false, |_, _| ()).is_err());
        }
    }

    #[test]
    fn merging_ends_when_it_is_cancelled() {
        let cancelled = merged(&[&[1u64, 2][..]], (0, 2), None, &|| true, |_, _| ());
        assert!(matches!(cancelled, Err(KernelError::Cancelled)));
    }

    #[test]
    fn zeros_keep_the_order_of_the_runs() {
        let mut state = 7u64;
        let mut cell = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            [0.0, -0.0, -1.5, 2.0, 0.0, -0.0, -0.0, 7.0][(state >> 61) as usize]
        };
        let runs: Vec<Vec<f64>> = (1..40).map(|n| (0..n * 70).map(|_| cell()).collect()).collect();
        for descending in [false, true] {
            let order = SortOrder { descending, ..SortOrder::default() };
            // The standard library's stable sort, to which -0.0 and 0.0 are equal.
            let stable = |mut cells: Vec<f64>| {
                cells.sort_by(|a, b| {
                    let order = a.partial_cmp(b).unwrap();
                    if descending { order.reverse() } else { order }
                });
                cells
            };
            let want = stable(runs.concat());
            let keys: Vec<Vec<u64>> = runs
                .iter()
                .map(|run| stable(run.clone()).iter().map(|c| ordered(c.key(), order)).collect())
                .collect();
            for (skip, count) in [(0, want.len()), (want.len() / 3, want.len() / 2), (9, 1)] {
                let pieces = Pieces::U64(keys.iter().map(Vec::as_slice).collect());
                let mut out = vec![0; 8 * count];
                let (to, dtype) = ((0, 1), DType::Float64);
                merge_cells(dtype, &pieces, (skip, count), order, &mut out, to, &|| false).unwrap();
                for (i, cell) in want[skip..skip + count].iter().enumerate() {
                    assert_eq!(out[8 * i..8 * i + 8], cell.to_ne_bytes(), "{order} {i}");
                }
            }
        }
    }

    #[test]
    fn keys_are_cells_and_back() {
        for order in [
            SortOrder::default(),
            SortOrder { descending: true, ..SortOrder::default() },
            SortOrder { descending: true, nan_first: true, masked_first: false },
        ] {
            let cells = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 2.0, f64::INFINITY, f64::NAN];
            let keys = cells.map(|c| ordered(c.key(), order));
            for step in [1, 3] {
                let mut bytes = vec![0; 8 * 30];
                write::<f64>(&keys, order, &mut bytes, (2, step));
                for (i, c) in cells.iter().enumerate() {
                    let at = (2 + i * step) * 8;
                    assert_eq!(bytes[at..at + 8], c.to_ne_bytes());
                }
            }
        }
    }
}
