//! Maps cells in row-major order to the cells of a state.

use crate::KernelError;
use crate::ops::N;
use crate::partial::LANE_RUN;
use std::ops::Mul;
use std::sync::Arc;
use tessera_planner::ir::AxisReduce;
use tessera_planner::region::Region;

/// Effect of a reduction on a run of cells along the inner axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// Reduced to one cell, in lanes if the run is long.
    Reduced {
        /// True if the run is long enough for lanes.
        lanes: bool,
    },
    Kept,
    /// Accumulated by group.
    Grouped,
}

#[derive(Debug, Clone)]
struct Axis {
    run: Run,
    len: u64,
    /// Cells of the state per position (or group).
    out: usize,
    /// Increment of the position over the reduced axes.
    position: i64,
    /// Groups of the positions, and the start of this region among them.
    codes: Option<(Arc<[u32]>, usize)>,
}

/// The state cell of the next cell.
#[derive(Debug, Clone)]
pub(super) struct Walk {
    axes: Vec<Axis>,
    at: Vec<u64>,
    /// State cell of the current inner run.
    base: usize,
    /// Position of the current inner run's first cell.
    position: i64,
    pub(super) cells: usize,
    /// Axes of the state.
    shape: Vec<usize>,
}

impl Walk {
    /// `positions`: whether positions are needed; then reduced axes that are not whole are not merged.
    pub(super) fn new(
        axes: &[AxisReduce],
        region: &Region,
        stage_shape: &[u64],
        positions: bool,
    ) -> Result<Walk, KernelError> {
        let rank = axes.len();
        let shape: Vec<usize> = (0..rank)
            .map(|a| match &axes[a] {
                AxisReduce::Keep => region.len(a) as usize,
                AxisReduce::All => 1,
                AxisReduce::Group(g) => g.count as usize,
            })
            .collect();
        let mut w = Walk {
            axes: Vec::new(),
            at: Vec::new(),
            base: 0,
            position: 0,
            cells: shape.iter().product(),
            shape,
        };
        let (mut out, mut step) = (1usize, 1i64);
        for a in (0..rank).rev() {
            let len = region.len(a);
            let (run, axis_out, position, codes) = match &axes[a] {
                AxisReduce::Keep => (Run::Kept, out, 0, None),
                AxisReduce::All => (Run::Reduced { lanes: false }, 0, step, None),
                AxisReduce::Group(g) => {
                    let range = region.start[a] as usize..region.end[a] as usize;
                    let Some(codes) = g.codes.get(range) else {
                        return Err(KernelError::Buffer {
                            what: "group codes",
                            got: g.codes.len() as u64,
                            expected: region.end[a],
                        });
                    };
                    if let Some(bad) = codes.iter().find(|c| **c >= g.count) {
                        return Err(KernelError::Buffer {
                            what: "groups",
                            got: u64::from(g.count),
                            expected: u64::from(*bad) + 1,
                        });
                    }
                    let codes = Some((g.codes.clone(), region.start[a] as usize));
                    (Run::Grouped, out, step, codes)
                }
            };
            w.position = w.position.wrapping_add(position.wrapping_mul(region.start[a] as i64));
            if run != Run::Kept {
                step = step.wrapping_mul(stage_shape[a].max(1) as i64);
            }
            out = out.saturating_mul(w.shape[a].max(1));
            // A single position moves nothing (a single grouped one has the group at its start, though).
            if len == 1 && run != Run::Grouped {
                continue;
            }
            if let Some(inner) = w.axes.last_mut()
                && inner.run == run
                && run != Run::Grouped
            {
                let even = inner.position.wrapping_mul(inner.len as i64) == position;
                if run == Run::Kept || !positions || even {
                    inner.len *= len;
                    continue;
                }
            }
            w.axes.push(Axis { run, len, out: axis_out, position, codes });
        }
        w.axes.reverse();
        if w.axes.is_empty() {
            let run = Run::Reduced { lanes: false };
            w.axes.push(Axis { run, len: 1, out: 0, position: 0, codes: None });
        }
        if let Some(l) = w.axes.last_mut()
            && l.run == (Run::Reduced { lanes: false })
            && l.len >= LANE_RUN
        {
            l.run = Run::Reduced { lanes: true };
        }
        w.at = vec![0; w.axes.len()];
        if !region.is_empty() {
            w.base = (0..w.axes.len() - 1).map(|a| w.group(a)).sum();
        }
        Ok(w)
    }

    /// First state cell of the current group of an axis; 0 for other axes.
    fn group(&self, a: usize) -> usize {
        let axis = &self.axes[a];
        match &axis.codes {
            Some((codes, start)) => {
                codes.get(start + self.at[a] as usize).map_or(0, |c| *c as usize * axis.out)
            }
            None => 0,
        }
    }

    fn last(&self) -> usize {
        self.axes.len() - 1
    }

    pub(super) fn run(&self) -> Run {
        self.axes[self.last()].run
    }

    /// Number of cells of a kept run.
    pub(super) fn kept_run(&self) -> Option<u64> {
        (self.run() == Run::Kept).then(|| self.axes[self.last()].len)
    }

    /// Number of cells of a run.
    pub(super) fn run_len(&self) -> u64 {
        self.axes[self.last()].len
    }

    /// Number of contiguous reduced runs with contiguous cells of the state; 1 if no runs are contiguous.
    pub(super) fn lines(&self) -> u64 {
        match (self.run(), self.axes.iter().rev().nth(1)) {
            (Run::Reduced { .. }, Some(a)) if a.run == Run::Kept => a.len,
            _ => 1,
        }
    }

    /// True if both walks have the same runs in the same layout.
    pub(super) fn goes_with(&self, other: &Walk) -> bool {
        let same = |(a, b): (&Axis, &Axis)| {
            (a.run, a.len, a.out, a.position) == (b.run, b.len, b.out, b.position)
                && match (&a.codes, &b.codes) {
                    (None, None) => true,
                    (Some((a, x)), Some((b, y))) => Arc::ptr_eq(a, b) && x == y,
                    _ => false,
                }
        };
        self.axes.len() == other.axes.len()
            && self.position == other.position
            && self.axes.iter().zip(&other.axes).all(same)
    }

    /// Number of cells left in the current run.
    pub(super) fn left(&self) -> u64 {
        self.axes[self.last()].len - self.at[self.last()]
    }

    /// Number of whole tiles from here on, evenly spaced, before the run ends.
    pub(super) fn steady(&self) -> u64 {
        match self.run() {
            Run::Reduced { lanes: true } | Run::Kept => self.left() / N as u64,
            Run::Reduced { lanes: false } | Run::Grouped => 0,
        }
    }

    /// State cell of the current cell (of the whole run if it is reduced or grouped).
    pub(super) fn out(&self) -> usize {
        match self.run() {
            Run::Kept => self.base + self.at[self.last()] as usize,
            _ => self.base,
        }
    }

    /// Position of the current cell, and the increment to the next.
    pub(super) fn position(&self) -> (i64, i64) {
        let l = &self.axes[self.last()];
        let at = self.at[self.last()] as i64;
        (self.position.wrapping_add(l.position.wrapping_mul(at)), l.position)
    }

    /// Groups of the current and the following cells of the run; empty without groups.
    pub(super) fn codes(&self) -> &[u32] {
        match &self.axes[self.last()].codes {
            Some((c, start)) => c.get(start + self.at[self.last()] as usize..).unwrap_or(&[]),
            None => &[],
        }
    }

    /// Advances by `n` cells, at most to the end of the run; returns true if it ended.
    pub(super) fn advance(&mut self, n: u64) -> bool {
        let last = self.last();
        self.at[last] += n;
        self.at[last] == self.axes[last].len
    }

    /// Number of runs from here on, at least one, that enter the same cells of the state and whose positions step
    /// evenly.
    pub(super) fn alike(&self) -> u64 {
        let Some(a) = self.last().checked_sub(1) else { return 1 };
        let (axis, at) = (&self.axes[a], self.at[a]);
        match (axis.run, &axis.codes) {
            (Run::Reduced { .. }, _) => axis.len - at,
            (Run::Grouped, Some((codes, start))) => {
                let from = start + at as usize;
                let left = &codes[from..from + (axis.len - at) as usize];
                left.iter().take_while(|c| **c == left[0]).count() as u64
            }
            _ => 1,
        }
    }

    /// Increment of the position between runs that are alike.
    pub(super) fn run_step(&self) -> i64 {
        self.last().checked_sub(1).map_or(0, |a| self.axes[a].position)
    }

    /// Moves past `many` runs that are alike.
    pub(super) fn next_alike(&mut self, many: u64) {
        if many > 1 {
            let a = self.last() - 1;
            self.at[a] += many - 1;
            let moved = self.axes[a].position.wrapping_mul(many as i64 - 1);
            self.position = self.position.wrapping_add(moved);
        }
        self.next_run();
    }

    /// Moves past the next runs: one, or all of [`Walk::lines`].
    pub(super) fn next_lines(&mut self, many: usize) {
        if many > 1 {
            let a = self.last() - 1;
            self.at[a] += many as u64 - 1;
            self.base += (many - 1) * self.axes[a].out;
        }
        self.next_run();
    }

    /// Moves to the next run.
    pub(super) fn next_run(&mut self) {
        let last = self.last();
        self.at[last] = 0;
        for a in (0..last).rev() {
            let codes = self.axes[a].codes.is_some();
            let before = if codes { self.group(a) } else { self.at[a] as usize * self.axes[a].out };
            self.base -= before;
            let back = self.axes[a].position.wrapping_mul(self.at[a] as i64);
            self.position = self.position.wrapping_sub(back);
            self.at[a] += 1;
            let done = self.at[a] == self.axes[a].len;
            if done {
                self.at[a] = 0;
            }
            let after = if codes { self.group(a) } else { self.at[a] as usize * self.axes[a].out };
            self.base += after;
            let ahead = self.axes[a].position.wrapping_mul(self.at[a] as i64);
            self.position = self.position.wrapping_add(ahead);
            if !done {
                return;
            }
        }
    }
}

/// Writes `of(n)` for each cell of a state, where n is the number of the region's cells that belong to it. `of` has to
/// be multiplicative: that of a product is the product of those of its factors.
pub(super) fn counts<T: Copy + Mul<Output = T>>(
    axes: &[AxisReduce],
    region: &Region,
    to: &mut [T],
    of: impl Fn(i64) -> T,
) {
    // The count of a cell is the product of the counts of its positions along each axis. The inner axes' products are
    // written first, and once for each position of the next axis.
    let mut done = 1;
    to.iter_mut().take(1).for_each(|n| *n = of(1));
    for (a, r) in axes.iter().enumerate().rev() {
        let brings: Vec<i64> = match r {
            AxisReduce::Keep => vec![1; region.len(a) as usize],
            AxisReduce::All => vec![region.len(a) as i64],
            AxisReduce::Group(g) => {
                let mut n = vec![0; g.count as usize];
                for c in &g.codes[region.start[a] as usize..region.end[a] as usize] {
                    n[*c as usize] += 1;
                }
                n
            }
        };
        let brings: Vec<T> = brings.into_iter().map(&of).collect();
        if done == 1 {
            let outer = to.first().copied().unwrap_or(of(1));
            to.iter_mut().zip(&brings).for_each(|(to, n)| *to = outer * *n);
            done = brings.len();
            continue;
        }
        let (first, rest) = to.split_at_mut(done.min(to.len()));
        for (block, n) in rest.chunks_exact_mut(done).zip(brings.iter().skip(1)) {
            block.iter_mut().zip(&*first).for_each(|(to, inner)| *to = *inner * *n);
        }
        match brings.first() {
            Some(n) => first.iter_mut().for_each(|to| *to = *to * *n),
            None => return,
        }
        done *= brings.len();
    }
}
