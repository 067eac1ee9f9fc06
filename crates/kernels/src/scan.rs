//! Running sums, products and extremes along an axis.
//!
//! Strictly from the first to the last cell, in the result's type: the bits are those of a plain loop, whatever the
//! chunks. A masked cell is skipped and stays masked; the running value is stored beneath its mask, so that the last
//! slice of a chunk is all that the next one needs.

use super::combine::Cell;
use super::copy::{self, Strided, copy_box};
use super::elem::{self, Elem};
use super::{KernelError, unsupported};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ScanKind;
use tessera_planner::region::{self, strides};

/// Input and output of a scan.
#[derive(Debug)]
pub struct Scan<'a> {
    /// Shape of the box of cells.
    pub shape: &'a [u64],
    /// Axis of the scan.
    pub axis: usize,
    /// Input cells.
    pub from: Strided<'a>,
    /// Output cells: dense and row-major, of the same type.
    pub value: &'a mut [u8],
    /// Dense validity, one byte per cell.
    pub valid: Option<&'a [u8]>,
    /// The running value of the previous chunk: its last slice along the axis (`shape` with length 1 there) after its
    /// own scan, including masked cells.
    pub carry: Option<&'a [u8]>,
}

/// Scans cells along an axis.
///
/// # Errors
/// [`KernelError::Overflow`] if an integer sum does not fit, [`KernelError::Cancelled`],
/// [`KernelError::Unsupported`] for types without the operation, [`KernelError::Buffer`] for buffers that do not fit.
pub fn scan(
    kind: ScanKind,
    dtype: DType,
    scan: Scan<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let (shape, axis, size) = (scan.shape, scan.axis, dtype.size());
    let outer: usize = shape[..axis].iter().product::<u64>() as usize;
    let len = shape[axis] as usize;
    let inner: usize = shape[axis + 1..].iter().product::<u64>() as usize;
    let cells = outer * len * inner;
    let expect = |what, got: usize, expected: usize| {
        if got < expected {
            return Err(KernelError::Buffer { what, got: got as u64, expected: expected as u64 });
        }
        Ok(())
    };
    expect("axes to scan", scan.from.strides.len(), shape.len())?;
    expect("cells to scan", scan.value.len() / size, cells)?;
    if let Some(v) = scan.valid {
        expect("bytes of validity", v.len(), cells)?;
    }
    if let Some(c) = scan.carry {
        expect("cells of the carry", c.len() / size, outer * inner)?;
    }
    if cells == 0 {
        return Ok(());
    }
    let held = scan.from.bytes.len() / size;
    copy::check("cells to scan", shape, held, scan.from.offset, scan.from.strides)?;
    // One position of the axis is a row of `inner` cells.
    let rest = (&shape[axis + 1..], &scan.from.strides[axis + 1..]);
    let contiguous = rest.1 == &strides(rest.0)[..];
    let job = Job { outer, len, inner, contiguous, cancelled };
    macro_rules! fold {
        ($identity:expr, $step:expr) => {
            job.run(size, scan, $identity, $step)
        };
    }
    macro_rules! int {
        ($t:ty) => {
            match kind {
                ScanKind::Sum => fold!(0 as $t, |a: $t, b: $t| a.overflowing_add(b)),
                ScanKind::Prod => fold!(1 as $t, |a: $t, b: $t| (a.wrapping_mul(b), false)),
                ScanKind::Min => fold!(<$t>::MAX, |a: $t, b: $t| (a.min(b), false)),
                ScanKind::Max => fold!(<$t>::MIN, |a: $t, b: $t| (a.max(b), false)),
                ScanKind::Last | ScanKind::Decay { .. } => Err(unsupported("scan", dtype)),
            }
        };
    }
    macro_rules! float {
        ($t:ty) => {
            match kind {
                ScanKind::Sum => fold!(0 as $t, |a: $t, b: $t| (a + b, false)),
                ScanKind::Prod => fold!(1 as $t, |a: $t, b: $t| (a * b, false)),
                ScanKind::Decay { factor } => {
                    let factor = f64::from_bits(factor) as $t;
                    fold!(0 as $t, move |a: $t, b: $t| (a * factor + b, false))
                }
                ScanKind::Last => Err(unsupported("scan", dtype)),
                // NaN propagates, from either side.
                ScanKind::Min => fold!(<$t>::INFINITY, |a: $t, b: $t| (elem::minimum(a, b), false)),
                ScanKind::Max => {
                    fold!(<$t>::NEG_INFINITY, |a: $t, b: $t| (elem::maximum(a, b), false))
                }
            }
        };
    }
    let fits = match dtype {
        DType::Bool | DType::UInt8 => int!(u8),
        DType::Int8 => int!(i8),
        DType::Int16 => int!(i16),
        DType::UInt16 => int!(u16),
        DType::Int32 => int!(i32),
        DType::UInt32 => int!(u32),
        DType::UInt64 => int!(u64),
        DType::Int64 | DType::Datetime(_) => int!(i64),
        DType::Float32 => float!(f32),
        DType::Float64 => float!(f64),
    }?;
    if fits { Ok(()) } else { Err(KernelError::Overflow { operation: "cumsum".into(), dtype }) }
}

/// Layout of a scan.
struct Job<'a> {
    /// Product of the lengths before the axis.
    outer: usize,
    /// Length of the axis.
    len: usize,
    /// Product of the lengths after the axis.
    inner: usize,
    /// True if the cells after the axis are contiguous.
    contiguous: bool,
    cancelled: &'a dyn Fn() -> bool,
}

/// Cells between two polls for cancellation.
const CANCEL_CELLS: usize = 1 << 16;

impl Job<'_> {
    /// Returns true if no step overflowed. `step` returns the new value and whether it overflowed.
    fn run<T: Cell + Elem>(
        &self,
        size: usize,
        scan: Scan<'_>,
        identity: T,
        step: impl Fn(T, T) -> (T, bool) + Copy,
    ) -> Result<bool, KernelError> {
        let Scan { shape, axis, from, value, valid, carry } = scan;
        let (row, strides) = (self.inner * size, from.strides);
        let along = strides[axis];
        let mut lost = false;
        for o in 0..self.outer {
            let (mut rest, mut first) = (o as u64, from.offset);
            for a in (0..axis).rev() {
                first += (rest % shape[a]) as i64 * strides[a];
                rest /= shape[a];
            }
            let block = &mut value[o * self.len * row..(o + 1) * self.len * row];
            let valid = valid.map(|v| &v[o * self.len * self.inner..]);
            let before = carry.map(|c| &c[o * row..(o + 1) * row]);
            if self.inner == 1 && valid.is_none() {
                let mut run = before.map_or(identity, |c| T::read(c, 0));
                lost |= self.line(from.bytes, first, along, block, &mut run, step)?;
                continue;
            }
            for l in 0..self.len {
                if (o * self.len + l).is_multiple_of((CANCEL_CELLS / self.inner).max(1))
                    && (self.cancelled)()
                {
                    return Err(KernelError::Cancelled);
                }
                let (done, now) = block.split_at_mut(l * row);
                let (now, at) = (&mut now[..row], first + l as i64 * along);
                let source =
                    Strided { bytes: from.bytes, offset: at, strides: &strides[axis + 1..] };
                let cells = match self.contiguous {
                    true => &from.bytes[at as usize * size..at as usize * size + row],
                    false => {
                        let inner = &shape[axis + 1..];
                        let dense = region::strides(inner);
                        copy_box(size, inner, source, now, 0, &dense)?;
                        &[]
                    }
                };
                let before = match l {
                    0 => before,
                    _ => Some(&done[(l - 1) * row..]),
                };
                let valid = valid.map(|v| &v[l * self.inner..(l + 1) * self.inner]);
                lost |= line_by_line(cells, now, before, valid, identity, step);
            }
        }
        Ok(!lost)
    }

    /// Scans a single line.
    fn line<T: Cell + Elem>(
        &self,
        bytes: &[u8],
        first: i64,
        along: i64,
        out: &mut [u8],
        run: &mut T,
        step: impl Fn(T, T) -> (T, bool) + Copy,
    ) -> Result<bool, KernelError> {
        let size = size_of::<T>();
        let mut lost = false;
        for (part, out) in out.chunks_mut(CANCEL_CELLS * size).enumerate() {
            if (self.cancelled)() {
                return Err(KernelError::Cancelled);
            }
            let start = part * CANCEL_CELLS;
            let mut put = |o: &mut [u8], cell: T| {
                let (now, over) = step(*run, cell);
                *run = now;
                lost |= over;
                now.write(o, 0);
            };
            if along == 1 {
                let at = (first as usize + start) * size;
                let cells = bytes[at..at + out.len()].chunks_exact(size);
                out.chunks_exact_mut(size).zip(cells).for_each(|(o, c)| put(o, T::read(c, 0)));
            } else {
                for (i, o) in out.chunks_exact_mut(size).enumerate() {
                    put(o, T::read(bytes, (first + (start + i) as i64 * along) as usize));
                }
            }
        }
        Ok(lost)
    }
}

/// Scans one position of adjacent lines: `now` becomes `before` stepped by `cells`, or by its own content if there are
/// no `cells`. Returns true if a step overflowed.
#[inline(always)]
fn line_by_line<T: Cell + Elem>(
    cells: &[u8],
    now: &mut [u8],
    before: Option<&[u8]>,
    valid: Option<&[u8]>,
    identity: T,
    step: impl Fn(T, T) -> (T, bool) + Copy,
) -> bool {
    let size = size_of::<T>();
    let mut lost = false;
    if !cells.is_empty()
        && valid.is_none()
        && let Some(before) = before
    {
        let cells = cells.chunks_exact(size).zip(before.chunks_exact(size));
        for (o, (c, b)) in now.chunks_exact_mut(size).zip(cells) {
            let (v, over) = step(T::read(b, 0), T::read(c, 0));
            lost |= over;
            v.write(o, 0);
        }
        return lost;
    }
    for (i, o) in now.chunks_exact_mut(size).enumerate() {
        let cell = if cells.is_empty() { T::read(o, 0) } else { T::read(cells, i) };
        let before = before.map_or(identity, |b| T::read(b, i));
        let (v, over) = step(before, cell);
        // A masked cell makes no step.
        let taken = valid.is_none_or(|v| v[i] != 0);
        lost |= over & taken;
        if taken { v } else { before }.write(o, 0);
    }
    lost
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn run(
        kind: ScanKind,
        shape: &[u64],
        axis: usize,
        v: &[f64],
        valid: Option<&mut [u8]>,
        carry: Option<&[f64]>,
    ) -> Vec<f64> {
        let bytes = |v: &[f64]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
        let (cells, carry) = (bytes(v), carry.map(bytes));
        let dense = strides(shape);
        let from = Strided { bytes: &cells, offset: 0, strides: &dense };
        let mut value = vec![7; cells.len()];
        let (valid, carry) = (valid.as_deref(), carry.as_deref());
        let job = Scan { shape, axis, from, value: &mut value, valid, carry };
        scan(kind, DType::Float64, job, &|| false).unwrap();
        // The same cells with their axes reversed in memory.
        let (mut turned, mut other, mut step) = (vec![0i64; shape.len()], vec![7; cells.len()], 1);
        for (t, n) in turned.iter_mut().zip(shape) {
            (*t, step) = (step, step * *n as i64);
        }
        let mut back = vec![0; cells.len()];
        copy_box(8, shape, from, &mut back, 0, &turned).unwrap();
        let from = Strided { bytes: &back, offset: 0, strides: &turned };
        let job = Scan { shape, axis, from, value: &mut other, valid, carry };
        scan(kind, DType::Float64, job, &|| false).unwrap();
        assert_eq!(value, other);
        value.chunks_exact(8).map(|b| f64::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    #[test]
    fn axes_carries_and_masks() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        // np.cumsum(x.reshape(2, 3), 0) and (…, 1)
        assert_eq!(run(ScanKind::Sum, &[2, 3], 0, &x, None, None), [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]);
        assert_eq!(run(ScanKind::Sum, &[2, 3], 1, &x, None, None), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
        assert_eq!(
            run(ScanKind::Sum, &[2, 3], 1, &x, None, Some(&[10.0, 20.0])),
            [11.0, 13.0, 16.0, 24.0, 29.0, 35.0]
        );
        let mut valid = [1, 0, 1, 0, 1, 1];
        // np.ma.cumsum skips masked cells; beneath the mask is the running value.
        assert_eq!(
            run(ScanKind::Sum, &[6], 0, &x, Some(&mut valid), None),
            [1.0, 1.0, 4.0, 4.0, 9.0, 15.0]
        );
        let y = [2.0, f64::NAN, 1.0];
        let least = run(ScanKind::Min, &[3], 0, &y, None, None);
        assert!(least[0] == 2.0 && least[1].is_nan() && least[2].is_nan());
    }

    #[test]
    fn integer_sums_do_not_wrap() {
        let v: Vec<u8> = [i64::MAX, 1].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let sum = |valid: Option<&[u8]>| {
            let (mut value, from) = (vec![0; 16], Strided { bytes: &v, offset: 0, strides: &[1] });
            let job = Scan { shape: &[2], axis: 0, from, value: &mut value, valid, carry: None };
            scan(ScanKind::Sum, DType::Int64, job, &|| false)
        };
        assert!(sum(Some(&[1, 0])).is_ok(), "a masked cell is not added");
        let e = sum(None);
        assert!(matches!(e, Err(KernelError::Overflow { .. })));
    }
}
