#![expect(unsafe_code, reason = "functions for a level of instructions are unsafe to call")]
//! Reductions of the cells around each cell.
//!
//! The axis is cut into blocks of the window's width, counted from its first cell. A window lies in at most two blocks,
//! so its value is that of the end of one block joined with the start of the next:
//!
//! ```text
//!   blocks of 4      |a b c d|e f g h|
//!   window of f          [c d|e f]           = suffix(c) ∘ prefix(f)
//! ```
//! Each cell is joined three times, whatever the width, and lines that lie side by side are joined together: states of a
//! strip of them stay in the caches. Nothing is ever subtracted, so no digits cancel, NaN and
//! infinities stay within the windows that see them, and the bits are the same for every chunking.
//!
//! # Source
//! M. van Herk, "A fast algorithm for local minimum and maximum filters on rectangular and octagonal kernels", 1992;
//! it holds for every associative operation.

mod fold;

use super::combine::Cell;
use super::elem::Kind;
use super::level::leveled;
use super::{KernelError, Level, unsupported};
use fold::{
    Average, Counting, Every, FloatProd, FloatSum, Fold, Greatest, IntProd, IntSum, Least,
    LeastTotal, Spread,
};
use smallvec::SmallVec;
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::strides;
use tessera_planner::window::{Frame, lanes};

/// What windows are computed of.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    /// Lengths of the output.
    pub shape: &'a [u64],
    /// The axis.
    pub axis: usize,
    /// Which positions a cell sees.
    pub frame: Frame,
    /// Fewest cells that are not masked.
    pub min_count: u64,
    /// Length of the whole axis.
    pub len: u64,
    /// Position of the output's first cell along the axis.
    pub first: u64,
    /// Which vector instructions run; the bits are the same.
    pub level: Level,
}

/// What windows see: boxes that follow one another along the axis and lie alike.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The boxes, at least one.
    pub parts: &'a [Part<'a>],
    /// Elements from one position to the next, for each axis.
    pub strides: &'a [i64],
}

/// One of the boxes that windows see.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Position of its first cell along the axis. All boxes together have every position of `[0, len)` that is seen.
    pub first: u64,
    /// The memory, native-endian.
    pub bytes: &'a [u8],
    /// Validity, lying likewise: of every box, or of none.
    pub valid: Option<&'a [u8]>,
    /// Element of the first cell.
    pub offset: i64,
}

/// Computes the windows of a box of cells. Those of a part of the input are at `offset + Σ strides[a] * p[a]`, with `p`
/// along the axis counted from the part's first position. `out` and `out_valid` are dense.
///
/// # Errors
/// [`KernelError::Overflow`] if an integer sum does not fit 64 bits, [`KernelError::Cancelled`],
/// [`KernelError::Unsupported`] for a kind that is not defined for the type, [`KernelError::Buffer`] for buffers that do
/// not fit.
pub fn window(
    kind: ReduceKind,
    dtype: DType,
    windows: Windows<'_>,
    input: Input<'_>,
    out: &mut [u8],
    out_valid: Option<&mut [u8]>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    use ReduceKind::*;
    let result = kind.result(dtype).ok_or_else(|| unsupported(kind.name(), dtype))?;
    let job = Job::new(windows, input, dtype.size(), result, out, out_valid, cancelled)?;
    macro_rules! by_type {
        ($make:ident) => {
            match Kind::of(dtype) {
                Kind::Bool | Kind::U8 => $make!(u8),
                Kind::I8 => $make!(i8),
                Kind::I16 => $make!(i16),
                Kind::I32 => $make!(i32),
                Kind::I64 => $make!(i64),
                Kind::U16 => $make!(u16),
                Kind::U32 => $make!(u32),
                Kind::U64 => $make!(u64),
                Kind::F32 => $make!(f32),
                Kind::F64 => $make!(f64),
            }
        };
    }
    macro_rules! floats {
        ($fold:ident) => {
            match dtype {
                DType::Float32 => job.run(&$fold::<f32>::default()),
                DType::Float64 => job.run(&$fold::<f64>::default()),
                _ => Err(unsupported(kind.name(), dtype)),
            }
        };
    }
    macro_rules! sum {
        (f32) => {
            job.run(&FloatSum::<f32>::default())
        };
        (f64) => {
            job.run(&FloatSum::<f64>::default())
        };
        ($t:ident) => {
            if result == DType::UInt64 {
                job.run(&IntSum::<$t, u64>::default())
            } else {
                job.run(&IntSum::<$t, i64>::default())
            }
        };
    }
    macro_rules! prod {
        (f32) => {
            job.run(&FloatProd::<f32>::default())
        };
        (f64) => {
            job.run(&FloatProd::<f64>::default())
        };
        ($t:ident) => {
            job.run(&IntProd::<$t>::default())
        };
    }
    macro_rules! extreme {
        ($fold:ident) => {{
            macro_rules! one {
                ($t:ident) => {
                    job.run(&$fold::<$t>::default())
                };
            }
            by_type!(one)
        }};
    }
    match kind {
        Sum => by_type!(sum),
        Prod => by_type!(prod),
        Mean => floats!(Average),
        Var { ddof } => match dtype {
            DType::Float32 => job.run(&Spread::<f32>::new(ddof)),
            DType::Float64 => job.run(&Spread::<f64>::new(ddof)),
            _ => Err(unsupported(kind.name(), dtype)),
        },
        Min => extreme!(Least),
        // Where NaN is the greatest it wins, as it does where it propagates.
        Max | MaxTotal => extreme!(Greatest),
        MinTotal => extreme!(LeastTotal),
        Any => job.run(&Greatest::<u8>::default()),
        All => job.run(&Every),
        Count => job.run(&Counting),
        // The cells of a window are counted one by one.
        MeanOf(_) | ArgMin | ArgMax | Add => Err(unsupported(kind.name(), dtype)),
    }
}

/// A checked call.
struct Job<'a> {
    w: Windows<'a>,
    input: Input<'a>,
    /// True if cells can be masked.
    masks: bool,
    result: DType,
    out: &'a mut [u8],
    out_valid: Option<&'a mut [u8]>,
    cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Job<'a> {
    fn new(
        w: Windows<'a>,
        input: Input<'a>,
        size: usize,
        result: DType,
        out: &'a mut [u8],
        out_valid: Option<&'a mut [u8]>,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, KernelError> {
        let cells = w.shape.iter().product::<u64>();
        let expect = |what, got: u64, expected: u64| match got < expected {
            true => Err(KernelError::Buffer { what, got, expected }),
            false => Ok(()),
        };
        expect("cells of windows", (out.len() / result.size()) as u64, cells)?;
        if let Some(v) = &out_valid {
            expect("validity of windows", v.len() as u64, cells)?;
        }
        expect("axes of windows", input.strides.len() as u64, w.shape.len() as u64)?;
        expect("parts of what windows see", input.parts.len() as u64, 1)?;
        let masks = input.parts[0].valid.is_some();
        let last = w.first + w.shape[w.axis];
        let (lo, hi) = w.frame.reads(w.first, last, w.len);
        if cells > 0 && lo < hi {
            expect("first position that windows see", lo, input.parts[0].first)?;
            for (k, part) in input.parts.iter().enumerate() {
                let end = input.parts.get(k + 1).map_or(hi, |next| next.first.min(hi));
                let (mut low, mut high) = (i128::from(part.offset), i128::from(part.offset));
                for (a, &n) in w.shape.iter().enumerate() {
                    let n = if a == w.axis { end.saturating_sub(part.first) } else { n };
                    let reach = (i128::from(n) - 1) * i128::from(input.strides[a]);
                    if reach < 0 { low += reach } else { high += reach }
                }
                let known = if masks { part.valid.map_or(0, <[u8]>::len) } else { usize::MAX };
                let held = known.min(part.bytes.len() / size);
                if end > part.first && (low < 0 || high >= held as i128) {
                    let expected = high.max(0) as u64 + 1;
                    return Err(KernelError::Buffer {
                        what: "cells that windows see",
                        got: held as u64,
                        expected,
                    });
                }
            }
        }
        Ok(Job { w, input, masks, result, out, out_valid, cancelled })
    }

    fn run<F: Fold>(mut self, fold: &F) -> Result<(), KernelError> {
        let Windows { shape, axis, frame, .. } = self.w;
        if shape.contains(&0) {
            return Ok(());
        }
        let dense = strides(shape);
        // Lines that lie side by side in the input and in the output.
        let (mut row, mut merged) = (1u64, shape.len());
        while merged > axis + 1 && self.input.strides[merged - 1] == row as i64 {
            merged -= 1;
            row *= shape[merged];
        }
        let others: SmallVec<[usize; 6]> = (0..merged).filter(|&a| a != axis).collect();
        let apart: u64 = others.iter().map(|&a| shape[a]).product();
        // Where a line starts, in a part of the input and in the output.
        let place = |line: u64, from: &[i64]| {
            let (mut rest, mut at) = (line / row, (line % row) as i64);
            for &a in others.iter().rev() {
                at += (rest % shape[a]) as i64 * from[a];
                rest /= shape[a];
            }
            at
        };
        let block = frame.width() as usize;
        let width = lanes(block as u64) as u64;
        // A strip goes through lines of one row, or through the same cell of several rows.
        let (strips, within) = if row > 1 { (apart, row) } else { (1, apart) };
        let widest = width.min(within) as usize;
        let mut suffix = vec![fold.identity(); block * widest];
        let mut prefix = vec![fold.identity(); widest];
        let mut counts = vec![0u64; if self.masks { widest } else { 1 }];
        let (mut from, mut to) = (Vec::with_capacity(widest), Vec::with_capacity(widest));
        let level = self.w.level;
        for strip in 0..strips {
            for first in (0..within).step_by(width as usize) {
                let lines = strip * within + first..strip * within + within.min(first + width);
                from.clear();
                to.clear();
                from.extend(lines.clone().map(|l| place(l, self.input.strides)));
                to.extend(lines.map(|l| place(l, &dense) as usize));
                let n = from.len();
                let mut strip = Strip {
                    job: &mut self,
                    from: &from,
                    to: &to,
                    to_step: dense[axis] as usize,
                    together: row > 1 || n == 1,
                    suffix: &mut suffix[..block * n],
                    prefix: &mut prefix[..n],
                    counts: &mut counts,
                    fits: true,
                    cancelled: false,
                };
                // SAFETY: the level is one that the machine has.
                unsafe { pick_strip::<F>(level.supported())(fold, &mut strip) };
                if strip.cancelled {
                    return Err(KernelError::Cancelled);
                }
                if !strip.fits {
                    let operation = "rolling sum".into();
                    return Err(KernelError::Overflow { operation, dtype: self.result });
                }
            }
        }
        Ok(())
    }
}

/// Several lines on their way.
struct Strip<'s, 'a, F: Fold> {
    job: &'s mut Job<'a>,
    /// Elements from a part's first cell to the first one of each line.
    from: &'s [i64],
    /// Where each line's results start.
    to: &'s [usize],
    /// Cells from one result of a line to the next.
    to_step: usize,
    /// True if the lines lie side by side.
    together: bool,
    /// For each cell of a block the states of its end, line by line.
    suffix: &'s mut [F::State],
    /// The states of the start of the next block.
    prefix: &'s mut [F::State],
    /// Cells of the windows that are not masked: of each line, or of all where nothing is masked.
    counts: &'s mut [u64],
    fits: bool,
    cancelled: bool,
}

type StripFn<F> = unsafe fn(&F, &mut Strip<'_, '_, F>);
leveled!(pick_strip, strip<F: Fold>(fold: &F, s: &mut Strip<'_, '_, F>) as StripFn<F>);

/// Goes through the lines of a strip.
#[inline(always)]
unsafe fn strip<F: Fold>(fold: &F, s: &mut Strip<'_, '_, F>) {
    let Windows { shape, axis, frame, len, first, .. } = s.job.w;
    let (n, width, before, after) = (len as i64, frame.width(), frame.before, frame.after);
    let (start, end) = (first as i64, (first + shape[axis]) as i64);
    let lines = s.from.len();
    let inside = |p: i64| (0..n).contains(&p);
    // The window of the cell before `start`: the first step adds one cell and takes none.
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
        // The start of the next block, grown cell by cell.
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
    /// The part of the input that has a position, and the elements from its beginning to there.
    #[inline(always)]
    fn part(&self, p: i64) -> (&'a Part<'a>, i64) {
        let parts = self.job.input.parts;
        let mut part = &parts[0];
        for next in &parts[1..] {
            if next.first as i64 > p {
                break;
            }
            part = next;
        }
        let step = self.job.input.strides[self.job.w.axis];
        (part, part.offset + (p - part.first as i64) * step)
    }

    /// The cells of all lines at a position, where these lie side by side and none is masked.
    #[inline(always)]
    fn row(&self, p: i64) -> Option<&'a [u8]> {
        if !self.together || self.job.masks {
            return None;
        }
        let size = size_of::<F::In>();
        let (part, moved) = self.part(p);
        let at = (self.from[0] + moved) as usize;
        Some(&part.bytes[at * size..(at + self.from.len()) * size])
    }

    /// Writes the ends of a block from a position on: its cells joined with the ends from the next position on, which
    /// are `later`. Masked cells are nothing.
    #[inline(always)]
    fn grow(&mut self, fold: &F, p: i64, at: usize, later: Option<usize>) {
        let lines = self.from.len();
        let Some(row) = self.row(p) else {
            match later {
                Some(later) => self.suffix.copy_within(later..later + lines, at),
                None => self.suffix[at..at + lines].fill(fold.identity()),
            }
            let (part, moved) = self.part(p);
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
                // The later ends lie behind.
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

    /// Joins the prefix with the cells at a position. Masked ones are nothing.
    #[inline(always)]
    fn join(&mut self, fold: &F, p: i64) {
        if let Some(row) = self.row(p) {
            let cells = row.chunks_exact(size_of::<F::In>());
            for (state, cell) in self.prefix.iter_mut().zip(cells) {
                *state = fold.join(*state, fold.one(F::In::read(cell, 0)));
            }
            return;
        }
        let (part, moved) = self.part(p);
        let (bytes, valid) = (part.bytes, part.valid);
        for (state, from) in self.prefix.iter_mut().zip(self.from) {
            let at = (from + moved) as usize;
            if valid.is_none_or(|v| v[at] != 0) {
                *state = fold.join(*state, fold.one(F::In::read(bytes, at)));
            }
        }
    }

    /// Writes the results at a position of the output, of the suffix at `at` and the prefix, which the cells at a
    /// position enter before, if any do.
    #[inline(always)]
    fn finish(&mut self, fold: &F, at: usize, position: usize, entering: Option<i64>) {
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

    /// Adds the cells at a position that are not masked to the counts (`by` 1), or takes them off (-1).
    #[inline(always)]
    fn count(&mut self, p: i64, by: i64) {
        if !self.job.masks {
            self.counts[0] = self.counts[0].wrapping_add_signed(by);
            return;
        }
        let (part, moved) = self.part(p);
        let valid = part.valid.unwrap_or_default();
        for (c, from) in self.counts.iter_mut().zip(self.from) {
            let valid = valid[(from + moved) as usize] != 0;
            *c = c.wrapping_add_signed(by * i64::from(valid));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn bytes(v: &[f64]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    /// Windows of a 1-d array, in two halves as two chunks would be; `None` is masked.
    fn rolling(kind: ReduceKind, v: &[Option<f64>], frame: Frame, min: u64) -> Vec<Option<f64>> {
        let level = Level::detect();
        let value = bytes(&v.iter().map(|x| x.unwrap_or(1e300)).collect::<Vec<_>>());
        let valid: Vec<u8> = v.iter().map(|x| u8::from(x.is_some())).collect();
        let len = v.len() as u64;
        let mut all = Vec::new();
        for (first, end) in [(0, len / 2), (len / 2, len)] {
            let n = (end - first) as usize;
            let (mut out, mut ok) = (vec![0; n * 8], vec![9; n]);
            let shape = [end - first];
            let w = Windows { shape: &shape, axis: 0, frame, min_count: min, len, first, level };
            // As several chunks hold it.
            let cuts = [0, len / 3, len / 3 + 2];
            let parts = cuts.map(|first| {
                let bytes = &value[first as usize * 8..];
                Part { first, bytes, valid: Some(&valid[first as usize..]), offset: 0 }
            });
            let input = Input { parts: &parts, strides: &[1] };
            window(kind, DType::Float64, w, input, &mut out, Some(&mut ok), &|| false).unwrap();
            for (i, &valid) in ok.iter().enumerate() {
                let cell = match kind {
                    ReduceKind::Count => i64::read(&out, i) as f64,
                    _ => f64::read(&out, i),
                };
                all.push((valid == 1).then_some(cell));
            }
        }
        all
    }

    #[test]
    fn windows_are_those_of_plain_loops() {
        let v: Vec<Option<f64>> =
            (0..23).map(|i| (i % 5 != 3).then_some(f64::from((i * 37 + 11) % 17) - 4.0)).collect();
        for (before, after) in [(0, 0), (2, 0), (3, 3), (0, 5), (-2, 4), (5, -2), (30, 30), (22, 0)]
        {
            let frame = Frame { before, after };
            for min in [1, 3] {
                for i in 0..v.len() {
                    let (lo, hi) = frame.reads(i as u64, i as u64 + 1, 23);
                    let w: Vec<f64> =
                        v[lo as usize..hi as usize].iter().flatten().copied().collect();
                    let enough = w.len() as u64 >= min;
                    let n = w.len() as f64;
                    let mean = w.iter().sum::<f64>() / n;
                    let var = w.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                    let least = w.iter().copied().fold(f64::INFINITY, f64::min);
                    let cases = [
                        (ReduceKind::Sum, w.iter().sum()),
                        (ReduceKind::Mean, mean),
                        (ReduceKind::Var { ddof: 0 }, var),
                        (ReduceKind::Min, least),
                        (ReduceKind::Count, n),
                    ];
                    for (kind, want) in cases {
                        let got = rolling(kind, &v, frame, min)[i];
                        match got {
                            Some(g) => assert!(
                                enough && (g - want).abs() < 1e-9,
                                "{kind} {frame:?} at {i}: {g}, expected {want}"
                            ),
                            None => assert!(!enough, "{kind} {frame:?} at {i} is masked"),
                        }
                    }
                }
            }
        }
    }

    /// Sums of neighbours at every size and of every sign, divided by each number of cells as one division does it.
    #[test]
    fn means_are_rounded_once() {
        let mut state = 7u64;
        let mut cells: Vec<f64> = (0..4000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let exponent = (state >> 13) % 1200 + 400;
                f64::from_bits((state >> 12) | (exponent << 52) | (state << 63))
            })
            .collect();
        cells.extend([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 49.0, 3.0]);
        let fold = fold::Average::<f64>::default();
        for n in (1..200).chain([365, 1000, 4095, 65_537, 1 << 40]) {
            for x in &cells {
                let (got, want) = (fold.finish(*x, n).unwrap(), x / n as f64);
                let both_nan = got.is_nan() && want.is_nan();
                assert!(both_nan || got.to_bits() == want.to_bits(), "{x} / {n}: {got}");
            }
        }
    }

    #[test]
    fn nan_stays_within_its_windows() {
        let mut v: Vec<Option<f64>> = (0..12).map(|i| Some(f64::from(i))).collect();
        v[5] = Some(f64::NAN);
        let frame = Frame { before: 2, after: 0 };
        for kind in
            [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Min, ReduceKind::Var { ddof: 1 }]
        {
            for (i, c) in rolling(kind, &v, frame, 2).iter().enumerate().skip(1) {
                assert_eq!(c.unwrap().is_nan(), (5..8).contains(&i), "{kind} at {i}");
            }
        }
        // NaN is the greatest in SQL's order.
        let total = rolling(ReduceKind::MinTotal, &v, frame, 1);
        assert_eq!(total[7], Some(6.0));
    }

    #[test]
    fn integer_sums_that_do_not_fit_are_errors() {
        let v: Vec<u8> = [i64::MAX, 1, -1].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let frame = Frame { before: 1, after: 0 };
        let w = Windows {
            shape: &[3],
            axis: 0,
            frame,
            min_count: 1,
            len: 3,
            first: 0,
            level: Level::Baseline,
        };
        let part = Part { first: 0, bytes: &v, valid: None, offset: 0 };
        let mut out = [0; 24];
        let input = Input { parts: &[part], strides: &[1] };
        let e = window(ReduceKind::Sum, DType::Int64, w, input, &mut out, None, &|| false);
        assert!(matches!(e, Err(KernelError::Overflow { .. })));
        let short = Windows { len: 9, first: 5, ..w };
        let late = Input { parts: &[Part { first: 5, ..part }], strides: &[1] };
        let e = window(ReduceKind::Sum, DType::Int64, short, late, &mut out, None, &|| false);
        assert!(matches!(e, Err(KernelError::Buffer { .. })));
        // Two cells of the first part, and of the second one fewer than are seen.
        let parts = [part, Part { first: 2, bytes: &v[16..20], ..part }];
        let cut = Input { parts: &parts, strides: &[1] };
        let e = window(ReduceKind::Sum, DType::Int64, w, cut, &mut out, None, &|| false);
        assert!(matches!(e, Err(KernelError::Buffer { .. })));
    }

    /// Strips of many lines, side by side and apart, on every level beside lines taken alone.
    #[test]
    fn strips_are_their_lines() {
        let (n, m) = (23u64, 1100u64);
        let cells: Vec<f64> =
            (0..n * m).map(|i| ((i * 2_654_435_761) % 9973) as f64 / 7.0 - 600.0).collect();
        let (value, frame) = (bytes(&cells), Frame { before: 3, after: 2 });
        let valid: Vec<u8> = (0..n * m).map(|i| u8::from(i % 11 != 3)).collect();
        for masked in [None, Some(&valid[..])] {
            for kind in [ReduceKind::Mean, ReduceKind::Max, ReduceKind::Var { ddof: 0 }] {
                // The same lines: contiguous along the last axis, or a row apart.
                for (shape, axis, step, apart) in
                    [([n, m], 0, m as i64, 1), ([m, n], 1, m as i64, 1)]
                {
                    let strides = if axis == 0 { [step, apart] } else { [apart, step] };
                    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
                    for level in Level::available() {
                        let w = Windows {
                            shape: &shape,
                            axis,
                            frame,
                            min_count: 2,
                            len: n,
                            first: 0,
                            level,
                        };
                        // In one part, or in two where these lie so.
                        let part = |first: u64| Part {
                            first,
                            bytes: &value,
                            valid: masked,
                            offset: first as i64 * strides[axis],
                        };
                        let parts = [part(0), part(9)];
                        let many = if level == Level::Baseline { 1 } else { 2 };
                        let input = Input { parts: &parts[..many], strides: &strides };
                        let (mut out, mut ok) = (vec![1; cells.len() * 8], vec![1; cells.len()]);
                        let d = DType::Float64;
                        window(kind, d, w, input, &mut out, Some(&mut ok), &|| false).unwrap();
                        all.push((out, ok));
                    }
                    assert!(all.iter().all(|x| *x == all[0]), "{kind} {shape:?}");
                    for line in [0, 1, 511, 512, 1099] {
                        let own: Vec<Option<f64>> = (0..n)
                            .map(|p| (p * m + line) as usize)
                            .map(|at| masked.is_none_or(|v| v[at] != 0).then(|| cells[at]))
                            .collect();
                        for (p, want) in rolling(kind, &own, frame, 2).into_iter().enumerate() {
                            let p = p as u64;
                            let at = if axis == 0 { p * m + line } else { line * n + p } as usize;
                            let got = (all[0].1[at] == 1).then(|| f64::read(&all[0].0, at));
                            let bits = |x: Option<f64>| x.map(f64::to_bits);
                            assert_eq!(
                                bits(got),
                                bits(want),
                                "{kind} {shape:?} line {line} at {p}"
                            );
                        }
                    }
                }
            }
        }
    }
}
