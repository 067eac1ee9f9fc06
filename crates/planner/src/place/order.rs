//! Orders of a stage's operands, and the assignment of parts of an order to workers.
//!
//! ```text
//!   order [0, 1]        order [1, 0]        order [0, 1] in 2 panels
//!    0  1  2  3          0  4  8 12          0  2  4  6
//!    4  5  6  7          1  5  9 13          1  3  5  7
//!    8  9 10 11          2  6 10 14          8 10 12 14
//!   12 13 14 15          3  7 11 15          9 11 13 15
//! ```
//! A worker has runs of the order. So four workers of one run each get rows, columns or squares, balanced to one
//! operand, and the operands of each form a few boxes, however many operands there are.

use crate::region::{Dims, Region};
use crate::tile::cut;
use serde::{Deserialize, Serialize};
use smallvec::{SmallVec, smallvec};

/// An order of the operands of a grid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Order {
    /// All axes, slowest first.
    pub axes: SmallVec<[usize; 6]>,
    /// Number of parts of nearly equal size into which the first axis is cut. Panels are traversed one after the other;
    /// within one the second axis is the slowest. 1 for no panels.
    pub panels: u64,
}

impl Order {
    /// The order of the operands' row-major numbers.
    pub fn row_major(rank: usize) -> Self {
        Order { axes: (0..rank).collect(), panels: 1 }
    }

    /// `first` are the slowest axes; the others follow in ascending order.
    pub fn by(rank: usize, first: &[usize], panels: u64) -> Self {
        let rest = (0..rank).filter(|a| !first.contains(a));
        let panels = if first.len() < 2 { 1 } else { panels.max(1) };
        Order { axes: first.iter().copied().chain(rest).collect(), panels }
    }

    /// The interval `[begin, end)` of panel `number` along the first axis.
    fn panel(&self, counts: &[u64], number: u64) -> (u64, u64) {
        let Some(&axis) = self.axes.first() else { return (0, 1) };
        let at = |p: u64| share(counts[axis], p, self.panels);
        (at(number), at(number + 1))
    }

    /// Axes within a panel, slowest first.
    fn inner(&self) -> SmallVec<[usize; 6]> {
        let mut axes = self.axes.clone();
        if self.panels > 1 {
            axes.swap(0, 1);
        }
        axes
    }

    /// Returns the place of an operand in the order.
    pub fn position(&self, counts: &[u64], index: &[u64]) -> u64 {
        let Some(&first) = self.axes.first() else { return 0 };
        let mut number = 0;
        if self.panels > 1 {
            // The last panel that begins at or before the index; empty panels are skipped.
            number = (u128::from(index[first]) * u128::from(self.panels)
                / u128::from(counts[first].max(1))) as u64;
            while self.panel(counts, number).1 <= index[first] {
                number += 1;
            }
        }
        let (lo, hi) = self.panel(counts, number);
        let beside: u64 =
            counts.iter().enumerate().filter(|(a, _)| *a != first).map(|(_, n)| n).product();
        let within = self.inner().iter().fold(0, |n, &a| match a == first {
            true => n * (hi - lo) + (index[a] - lo),
            false => n * counts[a] + index[a],
        });
        lo * beside + within
    }

    /// Returns the operands at the places `[start, end)` as disjoint boxes in their order.
    pub fn boxes(&self, counts: &[u64], start: u64, end: u64) -> Vec<Region> {
        let mut out = Vec::new();
        if start >= end {
            return out;
        }
        let Some(&first) = self.axes.first() else {
            return vec![Region { start: Dims::new(), end: Dims::new() }];
        };
        let beside: u64 =
            counts.iter().enumerate().filter(|(a, _)| *a != first).map(|(_, n)| n).product();
        let inner = self.inner();
        for number in 0..self.panels {
            let (lo, hi) = self.panel(counts, number);
            let (from, to) = (start.max(lo * beside), end.min(hi * beside));
            if from >= to {
                continue;
            }
            let mut whole = Region::whole(counts);
            (whole.start[first], whole.end[first]) = (lo, hi);
            cut(&inner, &whole, from - lo * beside, to - lo * beside, &mut out);
        }
        out
    }
}

/// `n * part / parts`, rounded down.
pub(super) fn share(n: u64, part: u64, parts: u64) -> u64 {
    (u128::from(n) * u128::from(part) / u128::from(parts.max(1))) as u64
}

/// Consecutive places of an order that one worker has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// One past the last place; the first place is the end of the previous run.
    pub end: u64,
    /// Index of the worker.
    pub worker: u32,
}

/// The worker of each operand of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The order of the operands.
    pub order: Order,
    /// Runs of the order. No run is empty, adjacent runs have different workers, and the last run ends with the
    /// operands.
    pub runs: Vec<Run>,
}

impl Layout {
    /// Builds a layout from workers in the order of the places, each with its number of operands.
    pub(super) fn new(order: Order, parts: impl IntoIterator<Item = (u32, u64)>) -> Self {
        let mut layout = Layout { order, runs: Vec::new() };
        parts.into_iter().for_each(|(worker, n)| layout.push(worker, n));
        layout
    }

    pub(super) fn push(&mut self, worker: u32, n: u64) {
        let begin = self.runs.last().map_or(0, |r| r.end);
        match self.runs.last_mut() {
            _ if n == 0 => {}
            Some(last) if last.worker == worker => last.end += n,
            _ => self.runs.push(Run { end: begin + n, worker }),
        }
    }

    /// The worker of an operand.
    pub fn worker(&self, counts: &[u64], index: &[u64]) -> u32 {
        let place = self.order.position(counts, index);
        let run = self.runs.partition_point(|r| r.end <= place);
        self.runs.get(run).map_or(0, |r| r.worker)
    }

    /// The runs with their first places.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, Run)> + '_ {
        let begins = std::iter::once(0).chain(self.runs.iter().map(|r| r.end));
        begins.zip(self.runs.iter().copied())
    }

    /// Number of operands of each of `workers` workers.
    pub fn counts(&self, workers: usize) -> Vec<u64> {
        let mut all = vec![0; workers];
        for (begin, run) in self.parts() {
            all[run.worker as usize] += run.end - begin;
        }
        all
    }

    /// The operands of each worker as disjoint boxes.
    pub fn boxes(&self, counts: &[u64], workers: usize) -> Vec<Vec<Region>> {
        let mut all = vec![Vec::new(); workers];
        for (begin, run) in self.parts() {
            all[run.worker as usize].extend(self.order.boxes(counts, begin, run.end));
        }
        all
    }

    /// Calls `f` with each operand and its worker, in order.
    pub(super) fn each(&self, counts: &[u64], f: &mut dyn FnMut(&[u64], u32)) {
        for (begin, run) in self.parts() {
            for part in self.order.boxes(counts, begin, run.end) {
                self.within(&part, &mut |index| f(index, run.worker));
            }
        }
    }

    /// Calls `f` with each operand of a box from [`Order::boxes`], in order.
    pub(super) fn within(&self, part: &Region, f: &mut dyn FnMut(&[u64])) {
        let axes = self.order.inner();
        let lens: Dims = axes.iter().map(|&a| part.len(a)).collect();
        let mut index: Dims = smallvec![0; part.rank()];
        crate::tile::for_each_index(&Region::whole(&lens), &mut |at| {
            for (&a, &i) in axes.iter().zip(at) {
                index[a] = part.start[a] + i;
            }
            f(&index);
        });
    }
}
