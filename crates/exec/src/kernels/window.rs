//! Reductions of the cells around each cell.
//!
//! The axis is cut into blocks of the window's width, counted from its first cell. A window lies in at most two blocks,
//! so its value is that of the end of one block joined with the start of the next:
//!
//! ```text
//!   blocks of 4      |a b c d|e f g h|
//!   window of f          [c d|e f]           = suffix(c) ∘ prefix(f)
//! ```
//! Each cell is joined three times, whatever the width. Nothing is ever subtracted, so no digits cancel, NaN and
//! infinities stay within the windows that see them, and the bits are the same for every chunking.
//!
//! # Source
//! M. van Herk, "A fast algorithm for local minimum and maximum filters on rectangular and octagonal kernels", 1992;
//! it holds for every associative operation.

mod fold;

use super::combine::Cell;
use super::copy::Strided;
use super::elem::Kind;
use super::{KernelError, unsupported};
use fold::{
    Average, Counting, Every, FloatProd, FloatSum, Fold, Greatest, IntProd, IntSum, Least,
    LeastTotal, Spread,
};
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::strides;
use tessera_planner::window::{Frame, LANES};

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
    /// Position of the input's first cell along the axis; the input has every position of `[0, len)` that is seen.
    pub seen: u64,
}

/// Computes the windows of a box of cells. `value` is the input, whose cells are at
/// `offset + Σ strides[a] * p[a]` (`p` along the axis counted from `seen`); `valid` is its validity, lying likewise.
/// `out` and `out_valid` are dense.
///
/// # Errors
/// [`KernelError::Overflow`] if an integer sum does not fit 64 bits, [`KernelError::Cancelled`],
/// [`KernelError::Unsupported`] for a kind that is not defined for the type, [`KernelError::Buffer`] for buffers that do
/// not fit.
#[expect(clippy::too_many_arguments, reason = "a kernel: everything it needs, nothing it holds")]
pub fn window(
    kind: ReduceKind,
    dtype: DType,
    windows: Windows<'_>,
    value: Strided<'_>,
    valid: Option<&[u8]>,
    out: &mut [u8],
    out_valid: Option<&mut [u8]>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    use ReduceKind::*;
    let result = kind.result(dtype).ok_or_else(|| unsupported(kind.name(), dtype))?;
    let job = Job::new(windows, value, valid, dtype.size(), result, out, out_valid, cancelled)?;
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
        ArgMin | ArgMax | Add => Err(unsupported(kind.name(), dtype)),
    }
}

/// A checked call.
struct Job<'a> {
    w: Windows<'a>,
    value: Strided<'a>,
    valid: Option<&'a [u8]>,
    result: DType,
    out: &'a mut [u8],
    out_valid: Option<&'a mut [u8]>,
    cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Job<'a> {
    #[expect(clippy::too_many_arguments, reason = "the kernel's arguments, checked")]
    fn new(
        w: Windows<'a>,
        value: Strided<'a>,
        valid: Option<&'a [u8]>,
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
        expect("axes of windows", value.strides.len() as u64, w.shape.len() as u64)?;
        let last = w.first + w.shape[w.axis];
        let (lo, hi) = w.frame.reads(w.first, last, w.len);
        if cells > 0 && lo < hi {
            expect("first position that windows see", lo, w.seen)?;
            let (mut low, mut high) = (i128::from(value.offset), i128::from(value.offset));
            for (a, &n) in w.shape.iter().enumerate() {
                let n = if a == w.axis { hi - w.seen } else { n };
                let reach = (i128::from(n) - 1) * i128::from(value.strides[a]);
                if reach < 0 { low += reach } else { high += reach }
            }
            let held = valid.map_or(usize::MAX, <[u8]>::len).min(value.bytes.len() / size);
            if low < 0 || high >= held as i128 {
                let expected = high.max(0) as u64 + 1;
                return Err(KernelError::Buffer {
                    what: "cells that windows see",
                    got: held as u64,
                    expected,
                });
            }
        }
        Ok(Job { w, value, valid, result, out, out_valid, cancelled })
    }

    fn run<F: Fold>(mut self, fold: &F) -> Result<(), KernelError> {
        let Windows { shape, axis, frame, .. } = self.w;
        if shape.contains(&0) {
            return Ok(());
        }
        let dense = strides(shape);
        let lines: usize =
            (0..shape.len()).filter(|&a| a != axis).map(|a| shape[a] as usize).product();
        // Where a line starts, in the input and in the output.
        let place = |line: usize, from: &[i64], base: i64| {
            let (mut rest, mut at) = (line as u64, base);
            for a in (0..shape.len()).rev().filter(|&a| a != axis) {
                at += (rest % shape[a]) as i64 * from[a];
                rest /= shape[a];
            }
            at
        };
        let (value, block) = (self.value, frame.width() as usize);
        let input = |line: usize| place(line, value.strides, value.offset);
        let output = |line: usize| place(line, &dense, 0) as usize;
        let mut line = 0;
        if lines >= LANES {
            let mut suffix = vec![[fold.identity(); LANES]; block];
            while line + LANES <= lines {
                let from = std::array::from_fn(|l| input(line + l));
                let to = std::array::from_fn(|l| output(line + l));
                self.lanes(fold, from, to, dense[axis] as usize, &mut suffix)?;
                line += LANES;
            }
        }
        let mut suffix = vec![[fold.identity(); 1]; block];
        for line in line..lines {
            self.lanes(fold, [input(line)], [output(line)], dense[axis] as usize, &mut suffix)?;
        }
        Ok(())
    }

    /// Goes through `L` lines; `suffix` holds the states of the ends of one block.
    fn lanes<F: Fold, const L: usize>(
        &mut self,
        fold: &F,
        from: [i64; L],
        to: [usize; L],
        step: usize,
        suffix: &mut [[F::State; L]],
    ) -> Result<(), KernelError> {
        let Windows { shape, axis, frame, len, first, min_count, .. } = self.w;
        let (n, width, before, after) = (len as i64, frame.width(), frame.before, frame.after);
        let (start, end) = (first as i64, (first + shape[axis]) as i64);
        let row = Rows {
            value: self.value,
            valid: self.valid,
            seen: self.w.seen as i64,
            step: self.value.strides[axis],
            from,
            together: (1..L).all(|l| from[l] == from[0] + l as i64),
        };
        let identity = [fold.identity(); L];
        let inside = |p: i64| (0..n).contains(&p);
        // Cells that are not masked in the window of the cell before `start`'s: the first step adds one and takes none.
        let mut counts = [0u64; L];
        for p in (start - before)..(start + after) {
            if inside(p) {
                row.count(p, &mut counts, 1);
            }
        }
        let mut i = start;
        while i < end {
            if (self.cancelled)() {
                return Err(KernelError::Cancelled);
            }
            let low = i - before;
            let next = (low.div_euclid(width) + 1) * width;
            // The ends of the block, from its last cell back to the first that is needed.
            let mut state = identity;
            for p in (low..next).rev() {
                if inside(p) {
                    let cells = row.states(fold, p);
                    for l in 0..L {
                        state[l] = fold.join(cells[l], state[l]);
                    }
                }
                suffix[(p - low) as usize] = state;
            }
            // The start of the next block, grown cell by cell.
            let mut prefix = identity;
            for p in next..(i + after) {
                if inside(p) {
                    let cells = row.states(fold, p);
                    for l in 0..L {
                        prefix[l] = fold.join(prefix[l], cells[l]);
                    }
                }
            }
            let stop = end.min(i + (next - low));
            for j in i..stop {
                let (oldest, newest) = (j - before, j + after);
                if inside(newest) {
                    row.count(newest, &mut counts, 1);
                    if newest >= next {
                        let cells = row.states(fold, newest);
                        for l in 0..L {
                            prefix[l] = fold.join(prefix[l], cells[l]);
                        }
                    }
                }
                let ends = &suffix[(oldest - low) as usize];
                for l in 0..L {
                    let at = to[l] + (j - start) as usize * step;
                    let enough = counts[l] >= min_count;
                    let value = match enough {
                        true => fold.finish(fold.join(ends[l], prefix[l]), counts[l]),
                        false => Some(F::Out::default()),
                    };
                    match value {
                        Some(v) => v.write(self.out, at),
                        None => {
                            return Err(KernelError::Overflow {
                                operation: "rolling sum".into(),
                                dtype: self.result,
                            });
                        }
                    }
                    if let Some(valid) = self.out_valid.as_deref_mut() {
                        valid[at] = u8::from(enough);
                    }
                }
                if inside(oldest) {
                    row.count(oldest, &mut counts, -1);
                }
            }
            i = stop;
        }
        Ok(())
    }
}

/// The input of `L` lines.
struct Rows<'a, const L: usize> {
    value: Strided<'a>,
    valid: Option<&'a [u8]>,
    /// Position of the input's first cell along the axis.
    seen: i64,
    /// Elements for one step along the axis.
    step: i64,
    /// Element of each line's first cell.
    from: [i64; L],
    /// True if the lines lie side by side.
    together: bool,
}

impl<const L: usize> Rows<'_, L> {
    /// The states of the cells at a position; masked ones are nothing.
    #[inline(always)]
    fn states<F: Fold>(&self, fold: &F, p: i64) -> [F::State; L] {
        let moved = (p - self.seen) * self.step;
        let mut out = [fold.identity(); L];
        if self.together {
            let size = size_of::<F::In>();
            let first = (self.from[0] + moved) as usize;
            let cells = &self.value.bytes[first * size..(first + L) * size];
            for (l, o) in out.iter_mut().enumerate() {
                *o = fold.one(F::In::read(cells, l));
            }
        } else {
            for (l, o) in out.iter_mut().enumerate() {
                *o = fold.one(F::In::read(self.value.bytes, (self.from[l] + moved) as usize));
            }
        }
        if let Some(valid) = self.valid {
            for (l, o) in out.iter_mut().enumerate() {
                if valid[(self.from[l] + moved) as usize] == 0 {
                    *o = fold.identity();
                }
            }
        }
        out
    }

    /// Adds the cells at a position that are not masked to the counts (`by` 1), or takes them off (-1).
    #[inline(always)]
    fn count(&self, p: i64, counts: &mut [u64; L], by: i64) {
        let moved = (p - self.seen) * self.step;
        for (l, c) in counts.iter_mut().enumerate() {
            let valid = self.valid.is_none_or(|v| v[(self.from[l] + moved) as usize] != 0);
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
        let value = bytes(&v.iter().map(|x| x.unwrap_or(1e300)).collect::<Vec<_>>());
        let valid: Vec<u8> = v.iter().map(|x| u8::from(x.is_some())).collect();
        let len = v.len() as u64;
        let mut all = Vec::new();
        for (first, end) in [(0, len / 2), (len / 2, len)] {
            let n = (end - first) as usize;
            let (mut out, mut ok) = (vec![0; n * 8], vec![9; n]);
            let shape = [end - first];
            let w = Windows { shape: &shape, axis: 0, frame, min_count: min, len, first, seen: 0 };
            let input = Strided { bytes: &value, offset: 0, strides: &[1] };
            window(kind, DType::Float64, w, input, Some(&valid), &mut out, Some(&mut ok), &|| {
                false
            })
            .unwrap();
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
        let w = Windows { shape: &[3], axis: 0, frame, min_count: 1, len: 3, first: 0, seen: 0 };
        let input = Strided { bytes: &v, offset: 0, strides: &[1] };
        let mut out = [0; 24];
        let e = window(ReduceKind::Sum, DType::Int64, w, input, None, &mut out, None, &|| false);
        assert!(matches!(e, Err(KernelError::Overflow { .. })));
        let short =
            Windows { len: 9, shape: &[3], axis: 0, frame, min_count: 1, first: 5, seen: 5 };
        let e =
            window(ReduceKind::Sum, DType::Int64, short, input, None, &mut out, None, &|| false);
        assert!(matches!(e, Err(KernelError::Buffer { .. })));
    }
}
