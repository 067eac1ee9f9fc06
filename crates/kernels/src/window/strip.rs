//! Windows over several lines at once.

use super::fold::Fold;
use super::{Job, Windows};
use crate::combine::Cell;

/// State of several lines.
pub(super) struct Strip<'s, 'a, F: Fold> {
    pub(super) job: &'s mut Job<'a>,
    /// Elements from a part's first cell to the first cell of each line.
    pub(super) from: &'s [i64],
    /// Start of each line's results.
    pub(super) to: &'s [usize],
    /// Cells between consecutive results of a line.
    pub(super) to_step: usize,
    /// True if the lines are adjacent.
    pub(super) together: bool,
    /// For each cell of a block the state of the block's end from that cell on, line by line.
    pub(super) suffix: &'s mut [F::State],
    /// The states of the start of the next block.
    pub(super) prefix: &'s mut [F::State],
    /// Number of unmasked cells in the windows: per line, or one for all lines without masks.
    pub(super) counts: &'s mut [u64],
    pub(super) fits: bool,
    pub(super) cancelled: bool,
}

/// Computes the windows of the lines of a strip.
#[inline(always)]
pub(super) unsafe fn strip<F: Fold>(fold: &F, s: &mut Strip<'_, '_, F>) {
    let Windows { shape, axis, frame, len, first, .. } = s.job.w;
    let (n, width, before, after) = (len as i64, frame.width(), frame.before, frame.after);
    let (start, end) = (first as i64, (first + shape[axis]) as i64);
    let lines = s.from.len();
    let inside = |p: i64| (0..n).contains(&p);
    // The window of the cell before `start`: the first step adds one cell and removes none.
    s.counts.fill(0);
    for p in (start - before)..(start + after) {
        if inside(p) {
            s.count(p, 1);
        }
    }
    let mut i = start;
    while i < end {
        if (s.job.cancelled)() {
            s.cancelled = true;
            return;
        }
        let low = i - before;
        let next = (low.div_euclid(width) + 1) * width;
        // The ends of the block, from its last cell back to the first that is needed.
        let mut later: Option<usize> = None;
        for p in (low..next).rev() {
            let at = (p - low) as usize * lines;
            if inside(p) {
                s.grow(fold, p, at, later);
            } else if let Some(later) = later {
                s.suffix.copy_within(later..later + lines, at);
            } else {
                s.suffix[at..at + lines].fill(fold.identity());
            }
            later = Some(at);
        }
        // The start of the next block, extended cell by cell.
        s.prefix.fill(fold.identity());
        for p in next..(i + after) {
            if inside(p) {
                s.join(fold, p);
            }
        }
        let stop = end.min(i + (next - low));
        for j in i..stop {
            let (oldest, newest) = (j - before, j + after);
            let entering = inside(newest).then_some(newest);
            if let Some(p) = entering {
                s.count(p, 1);
            }
            let entering = entering.filter(|p| *p >= next);
            s.finish(fold, (oldest - low) as usize * lines, (j - start) as usize, entering);
            if inside(oldest) {
                s.count(oldest, -1);
            }
        }
        i = stop;
    }
}

impl<'a, F: Fold> Strip<'_, 'a, F> {
    /// Returns the cells of all lines at a position, if they are adjacent and not masked.
    #[inline(always)]
    fn row(&self, p: i64) -> Option<&'a [u8]> {
        if !self.together || self.job.masks {
            return None;
        }
        let size = size_of::<F::In>();
        let (part, moved) = self.job.part(p);
        let at = (self.from[0] + moved) as usize;
        Some(&part.bytes[at * size..(at + self.from.len()) * size])
    }

    /// Writes the block ends at a position: the cells there joined with the ends of the next position, `later`. Masked
    /// cells contribute nothing.
    #[inline(always)]
    fn grow(&mut self, fold: &F, p: i64, at: usize, later: Option<usize>) {
        let lines = self.from.len();
        let Some(row) = self.row(p) else {
            match later {
                Some(later) => self.suffix.copy_within(later..later + lines, at),
                None => self.suffix[at..at + lines].fill(fold.identity()),
            }
            let (part, moved) = self.job.part(p);
            let (bytes, valid) = (part.bytes, part.valid);
            for (state, from) in self.suffix[at..at + lines].iter_mut().zip(self.from) {
                let at = (from + moved) as usize;
                if valid.is_none_or(|v| v[at] != 0) {
                    *state = fold.join(fold.one(F::In::read(bytes, at)), *state);
                }
            }
            return;
        };
        let cells = row.chunks_exact(size_of::<F::In>());
        match later {
            Some(later) => {
                // The later ends follow in memory.
                let (here, behind) = self.suffix.split_at_mut(later);
                let here = here[at..at + lines].iter_mut();
                for ((state, cell), later) in here.zip(cells).zip(&behind[..lines]) {
                    *state = fold.join(fold.one(F::In::read(cell, 0)), *later);
                }
            }
            None => {
                for (state, cell) in self.suffix[at..at + lines].iter_mut().zip(cells) {
                    *state = fold.join(fold.one(F::In::read(cell, 0)), fold.identity());
                }
            }
        }
    }

    /// Joins the prefix with the cells at a position. Masked cells contribute nothing.
    #[inline(always)]
    fn join(&mut self, fold: &F, p: i64) {
        if let Some(row) = self.row(p) {
            let cells = row.chunks_exact(size_of::<F::In>());
            for (state, cell) in self.prefix.iter_mut().zip(cells) {
                *state = fold.join(*state, fold.one(F::In::read(cell, 0)));
            }
            return;
        }
        let (part, moved) = self.job.part(p);
        let (bytes, valid) = (part.bytes, part.valid);
        for (state, from) in self.prefix.iter_mut().zip(self.from) {
            let at = (from + moved) as usize;
            if valid.is_none_or(|v| v[at] != 0) {
                *state = fold.join(*state, fold.one(F::In::read(bytes, at)));
            }
        }
    }

    /// Writes the results at a position of the output from the suffix at `at` and the prefix. The cells at `entering`,
    /// if any, are joined to the prefix first.
    #[inline(always)]
    pub(super) fn finish(&mut self, fold: &F, at: usize, position: usize, entering: Option<i64>) {
        let (size, lines) = (size_of::<F::Out>(), self.from.len());
        let (min, moved) = (self.job.w.min_count, position * self.to_step);
        if self.together && !self.job.masks {
            let (to, count) = (self.to[0] + moved, self.counts[0]);
            if let Some(valid) = self.job.out_valid.as_deref_mut() {
                valid[to..to + lines].fill(u8::from(count >= min));
            }
            let row = entering.and_then(|p| self.row(p));
            let out = self.job.out[to * size..(to + lines) * size].chunks_exact_mut(size);
            let ends = &self.suffix[at..at + lines];
            let mut fits = true;
            match row {
                Some(row) if count >= min => {
                    let cells = row.chunks_exact(size_of::<F::In>());
                    let states = self.prefix.iter_mut().zip(ends).zip(cells);
                    for (o, ((start, end), cell)) in out.zip(states) {
                        *start = fold.join(*start, fold.one(F::In::read(cell, 0)));
                        let value = fold.finish(fold.join(*end, *start), count);
                        fits &= value.is_some();
                        value.unwrap_or_default().write(o, 0);
                    }
                }
                None if count >= min => {
                    for (o, (start, end)) in out.zip(self.prefix.iter().zip(ends)) {
                        let value = fold.finish(fold.join(*end, *start), count);
                        fits &= value.is_some();
                        value.unwrap_or_default().write(o, 0);
                    }
                }
                _ => {
                    out.for_each(|o| F::Out::default().write(o, 0));
                    if let Some(p) = entering {
                        self.join(fold, p);
                    }
                }
            }
            self.fits &= fits;
            return;
        }
        if let Some(p) = entering {
            self.join(fold, p);
        }
        let ends = &self.suffix[at..at + lines];
        let states = ends.iter().zip(&*self.prefix);
        let mut fits = true;
        let uneven = self.counts.len() > 1;
        for (l, (to, (end, start))) in self.to.iter().zip(states).enumerate() {
            let (to, count) = (to + moved, self.counts[if uneven { l } else { 0 }]);
            let value = match count >= min {
                true => fold.finish(fold.join(*end, *start), count),
                false => Some(F::Out::default()),
            };
            fits &= value.is_some();
            value.unwrap_or_default().write(self.job.out, to);
            if let Some(valid) = self.job.out_valid.as_deref_mut() {
                valid[to] = u8::from(count >= min);
            }
        }
        self.fits &= fits;
    }

    /// Adds the unmasked cells at a position to the counts (`by` 1), or subtracts them (-1).
    #[inline(always)]
    fn count(&mut self, p: i64, by: i64) {
        if !self.job.masks {
            self.counts[0] = self.counts[0].wrapping_add_signed(by);
            return;
        }
        let (part, moved) = self.job.part(p);
        let valid = part.valid.unwrap_or_default();
        for (c, from) in self.counts.iter_mut().zip(self.from) {
            let valid = valid[(from + moved) as usize] != 0;
            *c = c.wrapping_add_signed(by * i64::from(valid));
        }
    }
}
