//! Running sums, products and extremes along an axis, strictly from the first to the last cell.

use super::elem::{self, Elem};
use super::{KernelError, unsupported};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ScanKind;

/// Scans a dense row-major chunk of `shape` along `axis`.
///
/// `input`, `output` and the carry have cells of `dtype`, which is the result's type ([`Sum`](ScanKind::Sum) and
/// `Prod` of integers come in as `int64` or `uint64`). `valid` is the input's validity: masked cells are skipped and
/// stay masked, and the caller passes validity on unchanged. `carry` holds the last slice of the chunk before: one running
/// value for each cell of the shape with that axis 1 long. In a masked output cell stands the running value so far
/// (the identity before the first valid one), so that the last slice of a chunk is the carry of the next even where it
/// is masked. NaN stays once met, in extremes too.
///
/// # Errors
/// [`KernelError::Overflow`] for a running integer sum beyond 64 bits, [`KernelError::Buffer`] for slices that do not
/// fit the shape, [`KernelError::Unsupported`] for sums of types that have none.
#[expect(
    clippy::too_many_arguments,
    reason = "a scan is said by its kind, its shape and its four buffers"
)]
pub fn scan(
    kind: ScanKind,
    dtype: DType,
    shape: &[u64],
    axis: usize,
    input: &[u8],
    valid: Option<&[u8]>,
    carry: Option<&[u8]>,
    output: &mut [u8],
) -> Result<(), KernelError> {
    let fits = |what, got: usize, expected: usize| {
        if got >= expected {
            return Ok(());
        }
        Err(KernelError::Buffer { what, got: got as u64, expected: expected as u64 })
    };
    fits("axes of a scan", shape.len(), axis + 1)?;
    let outer = shape[..axis].iter().product::<u64>() as usize;
    let len = shape[axis] as usize;
    let inner = shape[axis + 1..].iter().product::<u64>() as usize;
    let (cells, size) = (outer * len * inner, dtype.size());
    fits("bytes of a scan's input", input.len(), cells * size)?;
    fits("bytes of a scan's output", output.len(), cells * size)?;
    if let Some(v) = valid {
        fits("bytes of a scan's validity", v.len(), cells)?;
    }
    if let Some(c) = &carry {
        fits("bytes of a scan's carry", c.len(), outer * inner * size)?;
    }
    let frame = Frame { outer, len, inner, valid, carry };
    macro_rules! go {
        ($t:ty, $id:expr, $f:expr) => {{
            const S: usize = size_of::<$t>();
            let read = |b: &[u8], i: usize| {
                let mut x = [0; S];
                x.copy_from_slice(&b[i * S..(i + 1) * S]);
                <$t>::from_ne_bytes(x)
            };
            let write = |b: &mut [u8], i: usize, v: $t| {
                b[i * S..(i + 1) * S].copy_from_slice(&v.to_ne_bytes());
            };
            frame.run(input, output, $id, read, write, $f)
        }};
    }
    macro_rules! ordered {
        ($id:ident, $f:ident) => {
            match dtype {
                DType::Bool => {
                    let id = u8::from(kind == ScanKind::Min);
                    go!(u8, id, |a, b| Some(elem::$f::<u8>(a, b)))
                }
                DType::UInt8 => go!(u8, u8::$id(), |a, b| Some(elem::$f::<u8>(a, b))),
                DType::UInt16 => go!(u16, u16::$id(), |a, b| Some(elem::$f::<u16>(a, b))),
                DType::UInt32 => go!(u32, u32::$id(), |a, b| Some(elem::$f::<u32>(a, b))),
                DType::UInt64 => go!(u64, u64::$id(), |a, b| Some(elem::$f::<u64>(a, b))),
                DType::Int8 => go!(i8, i8::$id(), |a, b| Some(elem::$f::<i8>(a, b))),
                DType::Int16 => go!(i16, i16::$id(), |a, b| Some(elem::$f::<i16>(a, b))),
                DType::Int32 => go!(i32, i32::$id(), |a, b| Some(elem::$f::<i32>(a, b))),
                DType::Int64 | DType::Datetime(_) => {
                    go!(i64, i64::$id(), |a, b| Some(elem::$f::<i64>(a, b)))
                }
                DType::Float32 => go!(f32, f32::$id(), |a, b| Some(elem::$f::<f32>(a, b))),
                DType::Float64 => go!(f64, f64::$id(), |a, b| Some(elem::$f::<f64>(a, b))),
            }
        };
    }
    let overflow = || KernelError::Overflow { operation: "cumsum".into(), dtype };
    match (kind, dtype) {
        (ScanKind::Sum, DType::Int64) => go!(i64, 0, i64::checked_add).ok_or_else(overflow),
        (ScanKind::Sum, DType::UInt64) => go!(u64, 0, u64::checked_add).ok_or_else(overflow),
        (ScanKind::Sum, DType::Float32) => go!(f32, 0.0, |a, b| Some(a + b)).ok_or_else(overflow),
        (ScanKind::Sum, DType::Float64) => go!(f64, 0.0, |a, b| Some(a + b)).ok_or_else(overflow),
        (ScanKind::Prod, DType::Int64 | DType::UInt64) => {
            go!(u64, 1, |a: u64, b| Some(a.wrapping_mul(b))).ok_or_else(overflow)
        }
        (ScanKind::Prod, DType::Float32) => go!(f32, 1.0, |a, b| Some(a * b)).ok_or_else(overflow),
        (ScanKind::Prod, DType::Float64) => go!(f64, 1.0, |a, b| Some(a * b)).ok_or_else(overflow),
        (ScanKind::Sum, _) => Err(unsupported("cumsum", dtype)),
        (ScanKind::Prod, _) => Err(unsupported("cumprod", dtype)),
        (ScanKind::Min, _) => ordered!(top, minimum).ok_or_else(overflow),
        (ScanKind::Max, _) => ordered!(bottom, maximum).ok_or_else(overflow),
    }
}

struct Frame<'a> {
    outer: usize,
    len: usize,
    inner: usize,
    valid: Option<&'a [u8]>,
    carry: Option<&'a [u8]>,
}

impl Frame<'_> {
    /// `None` where `f` has no value for a valid cell.
    #[inline(always)]
    fn run<T: Copy>(
        &self,
        input: &[u8],
        output: &mut [u8],
        identity: T,
        read: impl Fn(&[u8], usize) -> T,
        write: impl Fn(&mut [u8], usize, T),
        f: impl Fn(T, T) -> Option<T>,
    ) -> Option<()> {
        let keep = |i: usize| self.valid.is_none_or(|v| v[i] != 0);
        for o in 0..self.outer {
            if self.inner == 1 {
                // One running value, in a register.
                let mut s = self.carry.map_or(identity, |c| read(c, o));
                for i in o * self.len..(o + 1) * self.len {
                    if keep(i) {
                        s = f(s, read(input, i))?;
                    }
                    write(output, i, s);
                }
                continue;
            }
            // A row of running values: the row before.
            for k in 0..self.len {
                let row = (o * self.len + k) * self.inner;
                for j in 0..self.inner {
                    let s = if k > 0 {
                        read(output, row - self.inner + j)
                    } else {
                        self.carry.map_or(identity, |c| read(c, o * self.inner + j))
                    };
                    let v = if keep(row + j) { f(s, read(input, row + j))? } else { s };
                    write(output, row + j, v);
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn bytes<T: Copy, const S: usize>(v: &[T], f: impl Fn(T) -> [u8; S]) -> Vec<u8> {
        v.iter().flat_map(|x| f(*x)).collect()
    }

    #[test]
    fn chunks_with_a_carry_scan_as_the_whole() {
        // numpy.cumsum([[1, 2, 3], [10, 20, 30], [100, 200, 300], [-1, -2, -3]], axis=0) and axis=1.
        let x = [1i64, 2, 3, 10, 20, 30, 100, 200, 300, -1, -2, -3];
        let down = [1i64, 2, 3, 11, 22, 33, 111, 222, 333, 110, 220, 330];
        let across = [1i64, 3, 6, 10, 30, 60, 100, 300, 600, -1, -3, -6];
        let x = bytes(&x, i64::to_ne_bytes);
        let mut out = vec![0; 96];
        let (k, d) = (ScanKind::Sum, DType::Int64);
        scan(k, d, &[4, 3], 1, &x, None, None, &mut out).unwrap();
        assert_eq!(out, bytes(&across, i64::to_ne_bytes));
        let (first, second) = out.split_at_mut(48);
        scan(k, d, &[2, 3], 0, &x[..48], None, None, first).unwrap();
        scan(k, d, &[2, 3], 0, &x[48..], None, Some(&first[24..]), second).unwrap();
        assert_eq!(out, bytes(&down, i64::to_ne_bytes));
    }

    #[test]
    fn masked_cells_are_skipped_and_nan_stays() {
        // numpy.maximum.accumulate([1, nan, 3]) is [1, nan, nan]; with the nan masked it is [1, -, 3].
        let x = bytes(&[1.0f64, f64::NAN, 3.0], f64::to_ne_bytes);
        let mut out = vec![0; 24];
        let max = ScanKind::Max;
        scan(max, DType::Float64, &[3], 0, &x, None, None, &mut out).unwrap();
        assert!(f64::from_ne_bytes(out[16..].try_into().unwrap()).is_nan());
        scan(max, DType::Float64, &[3], 0, &x, Some(&[1, 0, 1]), None, &mut out).unwrap();
        assert_eq!(out[16..], 3.0f64.to_ne_bytes());
        assert_eq!(out[8..16], 1.0f64.to_ne_bytes());
    }

    #[test]
    fn a_sum_beyond_its_type_is_an_error() {
        let x = bytes(&[i64::MAX, 1], i64::to_ne_bytes);
        let mut out = vec![0; 16];
        let k = ScanKind::Sum;
        let e = scan(k, DType::Int64, &[2], 0, &x, None, None, &mut out);
        assert!(matches!(e, Err(KernelError::Overflow { .. })));
        assert!(scan(k, DType::Int64, &[2], 0, &x, Some(&[1, 0]), None, &mut out).is_ok());
    }
}
