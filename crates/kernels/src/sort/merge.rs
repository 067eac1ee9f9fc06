//! Merging runs: selects the required part of each run, and merges their cells.

use super::key::{Key, Keyed};
use crate::KernelError;
use crate::elem::MachineType;
use crate::partial::all;
use tessera_planner::dtype::DType;
use tessera_planner::runs::INDEX_HEAD;

/// Cells between two polls for cancellation.
const POLL: usize = 1 << 16;

/// The runs of one line, from their index.
#[derive(Debug)]
pub struct Line<'a> {
    every: u64,
    runs: Vec<SortedRun<'a>>,
}

#[derive(Debug, Clone, Copy)]
struct SortedRun<'a> {
    /// Number of cells of the run, of its unmasked cells, and of its numbers (neither masked nor NaN).
    cells: u64,
    keyed: u64,
    numbers: u64,
    /// Every `every`-th key.
    samples: &'a [u64],
}

/// Parts of runs that contain some consecutive cells of the sorted line.
#[derive(Debug, Default)]
pub struct Parts {
    /// First cell, and one past the last cell, in each run.
    pub runs: Vec<(u64, u64)>,
    /// Number of cells in the parts before the first requested one.
    pub skip: u64,
}

impl Parts {
    /// Number of cells in all parts.
    pub fn cells(&self) -> u64 {
        self.runs.iter().map(|(from, to)| to - from).sum()
    }
}

impl<'a> Line<'a> {
    /// Reads the concatenated indices of runs with the given numbers of cells.
    ///
    /// # Errors
    /// [`KernelError::Buffer`] if the index does not match such runs.
    pub fn new(
        mut index: &'a [u64],
        runs: impl Iterator<Item = u64>,
        every: u64,
    ) -> Result<Self, KernelError> {
        let mut line = Line { every: every.max(1), runs: Vec::with_capacity(runs.size_hint().0) };
        for cells in runs {
            let samples = cells.div_ceil(line.every) as usize;
            let short = |got: usize| {
                let expected = samples as u64 + INDEX_HEAD;
                KernelError::Buffer { what: "index of a run", got: got as u64, expected }
            };
            let [keyed, numbers, rest @ ..] = index else { return Err(short(index.len())) };
            if rest.len() < samples || *keyed > cells || numbers > keyed {
                return Err(short(rest.len()));
            }
            let (here, rest) = rest.split_at(samples);
            let (keyed, numbers) = (*keyed, *numbers);
            // Masked cells have no key.
            let samples = &here[..keyed.div_ceil(line.every) as usize];
            line.runs.push(SortedRun { cells, keyed, numbers, samples });
            index = rest;
        }
        Ok(line)
    }

    /// Number of unmasked cells.
    pub fn keyed(&self) -> u64 {
        self.runs.iter().map(|r| r.keyed).sum()
    }

    /// Number of cells that are neither masked nor NaN.
    pub fn numbers(&self) -> u64 {
        self.runs.iter().map(|r| r.numbers).sum()
    }

    /// Number of masked cells.
    pub fn masked(&self) -> u64 {
        self.runs.iter().map(|r| r.cells - r.keyed).sum()
    }

    /// The part of each run that may contain cells of the ranks `[from, to)` among the unmasked ones.
    ///
    /// # Source
    /// The bounds are those of [`tessera_planner::runs::merged_cells`].
    pub fn parts(&self, from: u64, to: u64) -> Parts {
        let samples: Vec<&[u64]> = self.runs.iter().map(|r| r.samples).collect();
        let all: u64 = samples.iter().map(|s| s.len() as u64).sum();
        let (every, count) = (self.every, self.runs.len() as u64);
        // At most `from` cells are less than sample `below` of the index; at least `to` are less than sample `above`.
        let below = split(&samples, (from / every).min(all));
        let above = (to + count * (every - 1)).div_ceil(every);
        let above = (above < all).then(|| split(&samples, above));
        let mut parts = Parts { runs: Vec::with_capacity(self.runs.len()), skip: from };
        for (i, run) in self.runs.iter().enumerate() {
            let lo = below[i].saturating_sub(1) * every;
            let hi = above.as_ref().map_or(run.keyed, |a| (a[i] * every).min(run.keyed));
            parts.runs.push((lo, hi.max(lo)));
            parts.skip -= lo;
        }
        parts
    }

    /// The part of each run that contains the masked cells of the ranks `[from, to)` among the masked ones, without any
    /// other cell.
    pub fn masked_parts(&self, from: u64, to: u64) -> Parts {
        let mut before = 0;
        let part = |run: &SortedRun<'_>| {
            let masked = run.cells - run.keyed;
            let inside = |rank: u64| rank.clamp(before, before + masked) - before + run.keyed;
            let part = (inside(from), inside(to));
            before += masked;
            part
        };
        Parts { runs: self.runs.iter().map(part).collect(), skip: 0 }
    }
}

/// Number of the first `rank` of all keys in each of some sorted lists; of equal keys those of the earlier list come
/// first. `rank` is at most the number of keys.
fn split(lists: &[&[u64]], rank: u64) -> Vec<u64> {
    let mut lo = vec![0usize; lists.len()];
    let mut hi: Vec<usize> = lists.iter().map(|l| l.len()).collect();
    let mut middles: Vec<(u64, usize, usize)> = Vec::with_capacity(lists.len());
    loop {
        middles.clear();
        let mut left = 0;
        for (i, list) in lists.iter().enumerate() {
            if lo[i] < hi[i] {
                let middle = (lo[i] + hi[i]) / 2;
                middles.push((list[middle], i, middle));
                left += hi[i] - lo[i];
            }
        }
        // The median of the middles, weighted by the rest of each list: a quarter of the rest lies on either side of
        // it.
        middles.sort_unstable();
        let mut weight = 0;
        let pivot = middles.iter().find(|(_, i, _)| {
            weight += hi[*i] - lo[*i];
            weight * 2 >= left
        });
        let Some(&(key, list, at)) = pivot else {
            return lo.into_iter().map(|n| n as u64).collect();
        };
        let place = |i: usize, lo: usize, hi: usize| match i.cmp(&list) {
            std::cmp::Ordering::Equal => at,
            std::cmp::Ordering::Less => lo + lists[i][lo..hi].partition_point(|k| *k <= key),
            std::cmp::Ordering::Greater => lo + lists[i][lo..hi].partition_point(|k| *k < key),
        };
        let places: Vec<usize> = (0..lists.len()).map(|i| place(i, lo[i], hi[i])).collect();
        if (places.iter().sum::<usize>() as u64) < rank {
            lo = places;
            lo[list] += 1;
        } else {
            hi = places;
        }
    }
}

/// Returns the keys of rank `skip` and of the next rank (the same key again if `count` is 1); reorders `keys`.
///
/// # Errors
/// [`KernelError::Buffer`] if there are too few keys.
pub fn neighbours<K: Key>(
    keys: &mut [K],
    skip: usize,
    count: usize,
) -> Result<[u64; 2], KernelError> {
    if keys.len() < skip + count {
        let (got, expected) = (keys.len() as u64, (skip + count) as u64);
        return Err(KernelError::Buffer { what: "cells of runs", got, expected });
    }
    let (_, key, rest) = keys.select_nth_unstable(skip);
    let key = key.wide();
    let next = if count > 1 { rest.iter().min().map(|k| k.wide()) } else { None };
    Ok([key, next.unwrap_or(key)])
}

/// Calls `emit` with the cells of some ranks among the parts' cells, in sorted order. Arguments: the number of the
/// cell, its key, the part and the place in it. Of equal keys those of the earlier part come first.
///
/// # Errors
/// [`KernelError::Cancelled`]; [`KernelError::Buffer`] if there are too few cells.
pub fn merge<K: Key>(
    parts: &[&[K]],
    (skip, count): (usize, usize),
    cancelled: &dyn Fn() -> bool,
    mut emit: impl FnMut(usize, K, usize, usize),
) -> Result<(), KernelError> {
    let cells: usize = parts.iter().map(|p| p.len()).sum();
    if cells < skip + count {
        let (got, expected) = (cells as u64, (skip + count) as u64);
        return Err(KernelError::Buffer { what: "cells of runs", got, expected });
    }
    let mut tree = Tree::new(parts);
    for i in 0..skip + count {
        if i.is_multiple_of(POLL) && cancelled() {
            return Err(KernelError::Cancelled);
        }
        let (key, part, at) = tree.next(parts);
        if let Some(to) = i.checked_sub(skip) {
            emit(to, key, part, at);
        }
    }
    Ok(())
}

/// A loser tree over the first cells of the parts: each inner node holds the loser of its match.
struct Tree {
    losers: Vec<u128>,
    winner: u128,
    /// Current place in each part.
    at: Vec<usize>,
}

/// An exhausted part, after every key.
const OVER: u128 = u128::MAX;

impl Tree {
    fn new<K: Key>(parts: &[&[K]]) -> Self {
        let leaves = parts.len().next_power_of_two();
        let mut winners = vec![OVER; 2 * leaves];
        for (i, part) in parts.iter().enumerate() {
            winners[leaves + i] = entry(part, 0, i);
        }
        let mut losers = vec![OVER; leaves];
        for node in (1..leaves).rev() {
            let (a, b) = (winners[2 * node], winners[2 * node + 1]);
            (winners[node], losers[node]) = (a.min(b), a.max(b));
        }
        Tree { losers, winner: winners[1], at: vec![0; parts.len()] }
    }

    /// Removes and returns the first cell; there must be one.
    #[inline(always)]
    fn next<K: Key>(&mut self, parts: &[&[K]]) -> (K, usize, usize) {
        let (key, part) = ((self.winner >> 32) as u64, self.winner as u32 as usize);
        let at = self.at[part];
        self.at[part] = at + 1;
        let mut new = entry(parts[part], at + 1, part);
        let mut node = (self.losers.len() + part) / 2;
        while node > 0 {
            let old = self.losers[node];
            self.losers[node] = old.max(new);
            new = old.min(new);
            node /= 2;
        }
        self.winner = new;
        (K::narrow(key), part, at)
    }
}

/// A key and the number of its part, which breaks ties.
#[inline(always)]
fn entry<K: Key>(part: &[K], at: usize, number: usize) -> u128 {
    part.get(at).map_or(OVER, |k| u128::from(k.wide()) << 32 | number as u128)
}

/// Writes the interpolation at the fraction `t` between the numbers of two keys as a cell; NaN without keys.
pub fn between(dtype: DType, keys: Option<[u64; 2]>, t: f64, to: &mut [u8], at: usize) {
    fn write<T: Keyed>(keys: Option<[u64; 2]>, t: f64, to: &mut [u8], at: usize) {
        let cell = match keys.map(|k| k.map(|k| T::of(T::Key::narrow(k)))) {
            Some([a, b]) => T::between(a, b, t),
            None => T::nan(),
        };
        cell.write(to, at);
    }
    all!(MachineType::of(dtype), T => write::<T>(keys, t, to, at));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;
    use tessera_planner::runs::merged_cells;

    /// The index of a run.
    fn index(run: &[u64], every: usize) -> Vec<u64> {
        let n = run.len() as u64;
        [n, n].into_iter().chain(run.iter().step_by(every).copied()).collect()
    }

    #[test]
    fn between_zeros_is_the_positive_one() {
        let mut cell = [1; 8];
        let keys = [-0.0f64, 0.0].map(|zero| zero.key().unwrap());
        between(DType::Float64, Some(keys), 0.5, &mut cell, 0);
        assert_eq!(cell, 0.0f64.to_le_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
        #[test]
        fn parts_cover_the_merged_cells(
            mut runs in prop::collection::vec(prop::collection::vec(0u64..40, 0..30), 1..20),
            spread in 1u64..1000, every in 1usize..7, from in 0u64..600, count in 0u64..50,
        ) {
            // Narrow ranges give many ties, wide ones few.
            runs.iter_mut().for_each(|r| {
                r.iter_mut().for_each(|k| *k = (*k * 7919) % spread);
                r.sort_unstable();
            });
            let mut all: Vec<(u64, usize, usize)> = Vec::new();
            for (i, r) in runs.iter().enumerate() {
                all.extend(r.iter().enumerate().map(|(at, k)| (*k, i, at)));
            }
            all.sort_unstable();
            let total = all.len() as u64;
            let (from, to) = (from.min(total), (from + count).min(total));
            let flat: Vec<u64> = runs.iter().flat_map(|r| index(r, every)).collect();
            let lengths = runs.iter().map(|r| r.len() as u64);
            let line = Line::new(&flat, lengths, every as u64).unwrap();
            prop_assert_eq!((line.keyed(), line.numbers(), line.masked()), (total, total, 0));
            let parts = line.parts(from, to);
            let most = merged_cells(to - from, runs.len() as u64, every as u64);
            prop_assert!(parts.cells() <= most, "{} of {most}", parts.cells());
            let cut: Vec<&[u64]> = runs
                .iter()
                .zip(&parts.runs)
                .map(|(r, &(lo, hi))| &r[lo as usize..hi as usize])
                .collect();
            let mut got = Vec::new();
            merge(&cut, (parts.skip as usize, (to - from) as usize), &|| false, |i, key, run, at| {
                assert_eq!(i, got.len());
                got.push((key, run, at + parts.runs[run].0 as usize));
            })
            .unwrap();
            prop_assert_eq!(&got[..], &all[from as usize..to as usize]);
        }

        #[test]
        fn splits_are_exact(
            mut lists in prop::collection::vec(prop::collection::vec(0u64..30, 0..20), 0..12),
            rank in 0u64..240,
        ) {
            lists.iter_mut().for_each(|l| l.sort_unstable());
            let mut all: Vec<(u64, usize)> = Vec::new();
            for (i, l) in lists.iter().enumerate() {
                all.extend(l.iter().map(|k| (*k, i)));
            }
            all.sort();
            let rank = rank.min(all.len() as u64);
            let mut want = vec![0; lists.len()];
            all[..rank as usize].iter().for_each(|(_, i)| want[*i] += 1);
            let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(split(&lists, rank), want);
        }
    }

    #[test]
    fn an_index_of_other_runs_is_refused() {
        let flat = index(&[1, 2, 3], 2);
        assert!(Line::new(&flat, [3u64].into_iter(), 2).is_ok());
        assert!(Line::new(&flat, [9u64].into_iter(), 2).is_err());
        assert!(Line::new(&flat, [2u64].into_iter(), 2).is_err());
        assert!(Line::new(&flat, [3u64, 1].into_iter(), 2).is_err());
    }
}
