#![expect(unsafe_code, reason = "functions for a level of instructions are unsafe to call")]
//! Reductions over a window around each cell.
//!
//! The axis is cut into blocks of the window's width, starting at its first cell. A window lies in at most two blocks,
//! so its value is that of the end of one block joined with that of the start of the next:
//!
//! ```text
//!   blocks of 4      |a b c d|e f g h|
//!   window of f          [c d|e f]           = suffix(c) ∘ prefix(f)
//! ```
//! Each cell is joined three times, whatever the width. Adjacent lines are joined together: the states of a strip of
//! lines stay in the caches. Nothing is ever subtracted, so no digits cancel, NaN and infinities affect only the
//! windows that contain them, and the bits are the same for every chunking.
//!
//! Quantiles are no such operation: their windows stay sorted while they move (`sorted`).
//!
//! # Source
//! M. van Herk, "A fast algorithm for local minimum and maximum filters on rectangular and octagonal kernels", 1992;
//! it holds for every associative operation.

mod fold;
mod sorted;
mod strip;

use super::elem::MachineType;
use super::level::leveled;
use super::{KernelError, Level, unsupported};
use fold::{
    Average, Counting, Every, FloatProd, FloatSum, Fold, Greatest, IntProd, IntSum, Least,
    LeastTotal, Spread,
};
use smallvec::SmallVec;
use strip::{Strip, strip};
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::strides;
use tessera_planner::window::{Frame, lanes};

/// Parameters of a window reduction.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    /// Shape of the output.
    pub shape: &'a [u64],
    /// Axis of the windows.
    pub axis: usize,
    /// Extent of the window.
    pub frame: Frame,
    /// Smallest number of unmasked cells in a window whose result is not masked.
    pub min_count: u64,
    /// Length of the whole axis.
    pub len: u64,
    /// Position of the output's first cell along the axis.
    pub first: u64,
    /// Vector instructions to use; the bits are the same.
    pub level: Level,
}

/// Input of the windows: boxes that are adjacent along the axis and have the same strides.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The boxes, at least one.
    pub parts: &'a [Part<'a>],
    /// Elements per step along each axis.
    pub strides: &'a [i64],
}

/// One box of the input.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Position of its first cell along the axis. The boxes cover every position of `[0, len)` that a window contains.
    pub first: u64,
    /// The memory of the box, native-endian.
    pub bytes: &'a [u8],
    /// Validity with the same layout: for every box, or for none.
    pub valid: Option<&'a [u8]>,
    /// Element index of the first cell.
    pub offset: i64,
}

/// Computes the windows of a box of cells. Cells of an input part are at `offset + Σ strides[a] * p[a]`, with `p` along
/// the axis relative to the part's first position. `out` and `out_valid` are dense.
///
/// # Errors
/// [`KernelError::Overflow`] if an integer sum does not fit in 64 bits, [`KernelError::Cancelled`],
/// [`KernelError::Unsupported`] for a kind that is not defined for the type, [`KernelError::Buffer`] for buffers that
/// do not fit.
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
            match MachineType::of(dtype) {
                MachineType::Bool | MachineType::U8 => $make!(u8),
                MachineType::I8 => $make!(i8),
                MachineType::I16 => $make!(i16),
                MachineType::I32 => $make!(i32),
                MachineType::I64 => $make!(i64),
                MachineType::U16 => $make!(u16),
                MachineType::U32 => $make!(u32),
                MachineType::U64 => $make!(u64),
                MachineType::F32 => $make!(f32),
                MachineType::F64 => $make!(f64),
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
        // NaN as the greatest value wins, as NaN that propagates does.
        Max | MaxTotal => extreme!(Greatest),
        MinTotal => extreme!(LeastTotal),
        Any => job.run(&Greatest::<u8>::default()),
        All => job.run(&Every),
        Count => job.run(&Counting),
        Quantile(q) => match dtype {
            DType::Float32 => sorted::quantiles::<f32>(job, f64::from_bits(q)),
            DType::Float64 => sorted::quantiles::<f64>(job, f64::from_bits(q)),
            _ => Err(unsupported(kind.name(), dtype)),
        },
        // Means count the cells of each window.
        MeanOf(_) | ArgMin | ArgMax | Add => Err(unsupported(kind.name(), dtype)),
    }
}

type StripFn<F> = unsafe fn(&F, &mut Strip<'_, '_, F>);
leveled!(pick_strip, strip<F: Fold>(fold: &F, s: &mut Strip<'_, '_, F>) as StripFn<F>);

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

    /// Returns the part of the input that contains a position, and the elements from its beginning to there.
    #[inline(always)]
    fn part(&self, p: i64) -> (&'a Part<'a>, i64) {
        let parts = self.input.parts;
        let mut part = &parts[0];
        for next in &parts[1..] {
            if next.first as i64 > p {
                break;
            }
            part = next;
        }
        let step = self.input.strides[self.w.axis];
        (part, part.offset + (p - part.first as i64) * step)
    }

    fn run<F: Fold>(mut self, fold: &F) -> Result<(), KernelError> {
        let Windows { shape, axis, frame, .. } = self.w;
        if shape.contains(&0) {
            return Ok(());
        }
        let dense = strides(shape);
        // Lines that are adjacent in the input and in the output.
        let (mut row, mut merged) = (1u64, shape.len());
        while merged > axis + 1 && self.input.strides[merged - 1] == row as i64 {
            merged -= 1;
            row *= shape[merged];
        }
        let others: SmallVec<[usize; 6]> = (0..merged).filter(|&a| a != axis).collect();
        let apart: u64 = others.iter().map(|&a| shape[a]).product();
        // Start of a line, in a part of the input and in the output.
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
        // A strip covers lines of one row, or the same cell of several rows.
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
                // SAFETY: `supported` returns a level that this machine has.
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

#[cfg(test)]
mod tests;
