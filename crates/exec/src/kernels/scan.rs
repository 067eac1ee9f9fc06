//! Running sums, products and extremes along an axis.
//!
//! Strictly from the first to the last cell, in the result's type: the bits are those of a plain loop, whatever the
//! chunks. A masked cell is skipped and stays masked; the running value is kept beneath its mask, so that the last slice
//! of a chunk is all that the next one needs.

use super::{KernelError, unsupported};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ScanKind;

/// Scans the dense row-major cells `value` of `shape` in place along `axis`.
///
/// `valid` has one byte a cell. `carry` is the running value of the chunk before: its last slice along the axis
/// (`shape` with length 1 there), after its own scan, masked cells included; its first field alone is read.
///
/// # Errors
/// [`KernelError::Overflow`] if an integer sum does not fit, [`KernelError::Cancelled`],
/// [`KernelError::Unsupported`] for types without the operation, [`KernelError::Buffer`] for buffers that do not fit.
#[expect(clippy::too_many_arguments, reason = "a kernel: everything it needs, nothing it holds")]
pub fn scan(
    kind: ScanKind,
    dtype: DType,
    shape: &[u64],
    axis: usize,
    value: &mut [u8],
    valid: Option<&mut [u8]>,
    carry: Option<&[&[u8]]>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
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
    expect("cells to scan", value.len() / dtype.size(), cells)?;
    if let Some(v) = &valid {
        expect("bytes of validity", v.len(), cells)?;
    }
    let carry = match carry.and_then(|c| c.first()) {
        Some(c) => {
            expect("cells of the carry", c.len() / dtype.size(), outer * inner)?;
            Some(*c)
        }
        None => None,
    };
    let job = Job { outer, len, inner, valid: valid.as_deref(), carry, cancelled };
    macro_rules! int {
        ($t:ty) => {
            match kind {
                ScanKind::Sum => {
                    job.run(value, 0 as $t, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        a.checked_add(b)
                    })
                }
                ScanKind::Prod => {
                    job.run(value, 1 as $t, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        Some(a.wrapping_mul(b))
                    })
                }
                ScanKind::Min => {
                    job.run(value, <$t>::MAX, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        Some(a.min(b))
                    })
                }
                ScanKind::Max => {
                    job.run(value, <$t>::MIN, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        Some(a.max(b))
                    })
                }
                ScanKind::Last | ScanKind::Decay { .. } => None,
            }
        };
    }
    macro_rules! float {
        ($t:ty) => {
            match kind {
                ScanKind::Sum => {
                    job.run(value, 0 as $t, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        Some(a + b)
                    })
                }
                ScanKind::Prod => {
                    job.run(value, 1 as $t, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        Some(a * b)
                    })
                }
                ScanKind::Decay { factor } => {
                    let factor = f64::from_bits(factor) as $t;
                    job.run(value, 0 as $t, <$t>::from_ne_bytes, <$t>::to_ne_bytes, |a, b| {
                        Some(a * factor + b)
                    })
                }
                ScanKind::Last => None,
                // NaN stays, from whichever side it comes.
                ScanKind::Min => job.run(
                    value,
                    <$t>::INFINITY,
                    <$t>::from_ne_bytes,
                    <$t>::to_ne_bytes,
                    |a, b| Some(if a < b || a.is_nan() { a } else { b }),
                ),
                ScanKind::Max => job.run(
                    value,
                    <$t>::NEG_INFINITY,
                    <$t>::from_ne_bytes,
                    <$t>::to_ne_bytes,
                    |a, b| Some(if a > b || a.is_nan() { a } else { b }),
                ),
            }
        };
    }
    let done = match dtype {
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
    };
    match done {
        Some(true) => Ok(()),
        Some(false) => Err(KernelError::Cancelled),
        None if matches!(kind, ScanKind::Sum) => {
            Err(KernelError::Overflow { operation: "cumsum".into(), dtype })
        }
        None => Err(unsupported("scan", dtype)),
    }
}

/// What a scan goes over.
struct Job<'a> {
    /// Cells before the axis.
    outer: usize,
    /// Cells along it.
    len: usize,
    /// Cells after it.
    inner: usize,
    valid: Option<&'a [u8]>,
    carry: Option<&'a [u8]>,
    cancelled: &'a dyn Fn() -> bool,
}

impl Job<'_> {
    /// `Some(true)` when done, `Some(false)` when cancelled, `None` when `step` had no value.
    fn run<T: Copy, const N: usize>(
        &self,
        value: &mut [u8],
        identity: T,
        read: fn([u8; N]) -> T,
        write: fn(T) -> [u8; N],
        step: impl Fn(T, T) -> Option<T>,
    ) -> Option<bool> {
        let get = |b: &[u8], i: usize| {
            let mut cell = [0; N];
            cell.copy_from_slice(&b[i * N..(i + 1) * N]);
            read(cell)
        };
        for o in 0..self.outer {
            for l in 0..self.len {
                if (o * self.len + l).is_multiple_of(1024) && (self.cancelled)() {
                    return Some(false);
                }
                let row = (o * self.len + l) * self.inner;
                for i in 0..self.inner {
                    let at = row + i;
                    let before = match (l, self.carry) {
                        (0, None) => identity,
                        (0, Some(c)) => get(c, o * self.inner + i),
                        _ => get(value, at - self.inner),
                    };
                    let masked = self.valid.is_some_and(|v| v[at] == 0);
                    let now = if masked { before } else { step(before, get(value, at))? };
                    value[at * N..(at + 1) * N].copy_from_slice(&write(now));
                }
            }
        }
        Some(true)
    }
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
        let mut value = bytes(v);
        let carry = carry.map(bytes);
        let carry: Option<Vec<&[u8]>> = carry.as_ref().map(|c| vec![c.as_slice()]);
        scan(kind, DType::Float64, shape, axis, &mut value, valid, carry.as_deref(), &|| false)
            .unwrap();
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
        let mut v: Vec<u8> = [i64::MAX, 1].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let e = scan(ScanKind::Sum, DType::Int64, &[2], 0, &mut v, None, None, &|| false);
        assert!(matches!(e, Err(KernelError::Overflow { .. })));
    }
}
