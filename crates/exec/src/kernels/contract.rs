#![expect(unsafe_code, reason = "matrices are handed to faer by pointer; bounds are checked first")]
//! Matrix products of blocks: `c += a @ b`.
//!
//! Floats go through `faer` on one thread; integers wrap. Unlike everything else here the bits of a float product
//! depend on the machine's vector width, because `faer` sums along k in blocks of its own and with fused
//! multiply-adds; on one machine they depend on shapes and strides alone.

use super::elem::{Elem, Kind};
use super::{KernelError, unsupported};
use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use tessera_planner::dtype::DType;

/// A matrix in memory: element `offset + i * row + j * column` is at row `i`, column `j`.
#[derive(Debug, Clone, Copy)]
pub struct Matrix {
    /// Element at row 0, column 0.
    pub offset: i64,
    /// Elements from one row to the next; may be 0 or negative for sources.
    pub row: i64,
    /// Elements from one column to the next.
    pub column: i64,
}

impl Matrix {
    /// Row-major with `columns` columns, from the first element on.
    pub fn row_major(columns: u64) -> Matrix {
        Matrix { offset: 0, row: columns as i64, column: 1 }
    }

    fn check(&self, bytes: &[u8], size: usize, shape: [u64; 2]) -> Result<(), KernelError> {
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (s, n) in [(self.row, shape[0]), (self.column, shape[1])] {
            let reach = i128::from(s) * (i128::from(n) - 1);
            if reach < 0 { low += reach } else { high += reach }
        }
        let cells = bytes.len() / size;
        if low < 0 || high >= cells as i128 {
            return Err(KernelError::Buffer {
                what: "cells of a matrix",
                got: cells as u64,
                expected: u64::try_from(high.max(0) + 1).unwrap_or(u64::MAX),
            });
        }
        if bytes.as_ptr().align_offset(size) != 0 {
            return Err(KernelError::Buffer {
                what: "alignment of a matrix",
                got: 1,
                expected: size as u64,
            });
        }
        Ok(())
    }
}

/// `c = a @ b`, or `c += a @ b` if `accumulate`; `a` is `[m, k]`, `b` is `[k, n]` and `c` is `[m, n]`, all of `dtype`
/// (a number; integers wrap) and aligned for it. The cells of `c` are distinct. Of `k = 0` a product is zero.
///
/// # Errors
/// [`KernelError::Buffer`] where a matrix leaves its memory or is not aligned, [`KernelError::Unsupported`] for types
/// that do not multiply.
#[expect(clippy::too_many_arguments, reason = "three matrices with their layouts")]
pub fn contract(
    dtype: DType,
    [m, n, k]: [u64; 3],
    a: &[u8],
    a_at: Matrix,
    b: &[u8],
    b_at: Matrix,
    c: &mut [u8],
    c_at: Matrix,
    accumulate: bool,
) -> Result<(), KernelError> {
    if !dtype.is_numeric() {
        return Err(unsupported("matmul", dtype));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let size = dtype.size();
    if k > 0 {
        a_at.check(a, size, [m, k])?;
        b_at.check(b, size, [k, n])?;
    }
    c_at.check(c, size, [m, n])?;
    // Addresses are only formed, not followed, where k is 0.
    let at = |p: *const u8, o: i64| p.wrapping_offset((o * size as i64) as isize);
    let (pa, pb) = (at(a.as_ptr(), a_at.offset), at(b.as_ptr(), b_at.offset));
    let pc = c.as_mut_ptr().wrapping_offset((c_at.offset * size as i64) as isize);
    let (m, n, k) = (m as usize, n as usize, k as usize);
    macro_rules! float {
        ($t:ty) => {{
            let (ra, ca) = (a_at.row as isize, a_at.column as isize);
            let (rb, cb) = (b_at.row as isize, b_at.column as isize);
            let (rc, cc) = (c_at.row as isize, c_at.column as isize);
            let l = MatRef::from_raw_parts(pa.cast::<$t>(), m, k, ra, ca);
            let r = MatRef::from_raw_parts(pb.cast::<$t>(), k, n, rb, cb);
            let out = MatMut::from_raw_parts_mut(pc.cast::<$t>(), m, n, rc, cc);
            let beta = if accumulate { Accum::Add } else { Accum::Replace };
            matmul(out, beta, l, r, 1.0, Par::Seq);
        }};
    }
    // SAFETY: every element of the three matrices was checked to lie in aligned memory; `c` is borrowed mutably and so
    // overlaps neither source.
    unsafe {
        match Kind::of(dtype) {
            Kind::F32 => float!(f32),
            Kind::F64 => float!(f64),
            Kind::I8 | Kind::U8 => {
                integer::<u8>([m, n, k], pa, a_at, pb, b_at, pc, c_at, accumulate)
            }
            Kind::I16 | Kind::U16 => {
                integer::<u16>([m, n, k], pa, a_at, pb, b_at, pc, c_at, accumulate);
            }
            Kind::I32 | Kind::U32 => {
                integer::<u32>([m, n, k], pa, a_at, pb, b_at, pc, c_at, accumulate);
            }
            _ => integer::<u64>([m, n, k], pa, a_at, pb, b_at, pc, c_at, accumulate),
        }
    }
    Ok(())
}

/// # Safety
/// All elements of the matrices are in aligned memory.
#[expect(clippy::too_many_arguments, reason = "three matrices with their layouts")]
unsafe fn integer<T: Elem>(
    [m, n, k]: [usize; 3],
    a: *const u8,
    a_at: Matrix,
    b: *const u8,
    b_at: Matrix,
    c: *mut u8,
    c_at: Matrix,
    accumulate: bool,
) {
    let (a, b, c) = (a.cast::<T>(), b.cast::<T>(), c.cast::<T>());
    let place = |x: Matrix, i: usize, j: usize| (i as i64 * x.row + j as i64 * x.column) as isize;
    // SAFETY: the caller's promise.
    unsafe {
        if !accumulate {
            for i in 0..m {
                for j in 0..n {
                    *c.offset(place(c_at, i, j)) = T::default();
                }
            }
        }
        // Rows of b are added to rows of c; blocks of k and n keep the rows of b in the cache.
        const B: usize = 128;
        for k0 in (0..k).step_by(B) {
            for j0 in (0..n).step_by(B * 4) {
                let j1 = (j0 + B * 4).min(n);
                for i in 0..m {
                    for p in k0..(k0 + B).min(k) {
                        let x = *a.offset(place(a_at, i, p));
                        if b_at.column == 1 && c_at.column == 1 {
                            let rb =
                                std::slice::from_raw_parts(b.offset(place(b_at, p, j0)), j1 - j0);
                            let rc = std::slice::from_raw_parts_mut(
                                c.offset(place(c_at, i, j0)),
                                j1 - j0,
                            );
                            for (c, b) in rc.iter_mut().zip(rb) {
                                *c = c.add(x.mul(*b));
                            }
                        } else {
                            for j in j0..j1 {
                                let to = c.offset(place(c_at, i, j));
                                *to = (*to).add(x.mul(*b.offset(place(b_at, p, j))));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `out += part`, cell by cell, in `dtype` (integers wrap): merges the products of blocks of k. Call it in the order of
/// the blocks.
///
/// # Errors
/// [`KernelError::Buffer`] where `part` is shorter than `out`, [`KernelError::Unsupported`] for types that do not add.
pub fn combine_add(dtype: DType, out: &mut [u8], part: &[u8]) -> Result<(), KernelError> {
    if !dtype.is_numeric() {
        return Err(unsupported("matmul", dtype));
    }
    if part.len() < out.len() {
        return Err(KernelError::Buffer {
            what: "bytes of a partial product",
            got: part.len() as u64,
            expected: out.len() as u64,
        });
    }
    macro_rules! go {
        ($t:ty) => {{
            const S: usize = size_of::<$t>();
            for (o, p) in out.as_chunks_mut::<S>().0.iter_mut().zip(part.as_chunks::<S>().0) {
                *o = Elem::add(<$t>::from_ne_bytes(*o), <$t>::from_ne_bytes(*p)).to_ne_bytes();
            }
        }};
    }
    match Kind::of(dtype) {
        Kind::F32 => go!(f32),
        Kind::F64 => go!(f64),
        Kind::I8 | Kind::U8 => go!(u8),
        Kind::I16 | Kind::U16 => go!(u16),
        Kind::I32 | Kind::U32 => go!(u32),
        _ => go!(u64),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn bytes<T>(v: &[T]) -> &[u8] {
        // SAFETY: plain numbers as bytes.
        unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), size_of_val(v)) }
    }
    fn bytes_mut<T>(v: &mut [T]) -> &mut [u8] {
        // SAFETY: plain numbers as bytes.
        unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), size_of_val(v)) }
    }

    /// Small whole numbers, whose products are exact in every type; `b` is read transposed and backward.
    macro_rules! case {
        ($t:ty, $dtype:expr) => {{
            let (m, n, k) = (5usize, 7usize, 9usize);
            let a: Vec<$t> = (0..m * k).map(|i| (i % 5) as $t).collect();
            let b: Vec<$t> = (0..n * k).map(|i| (i % 3) as $t).collect();
            let mut c: Vec<$t> = vec![2 as $t; m * n];
            let b_at = Matrix { offset: (n * k - 1) as i64, row: -1, column: -(k as i64) };
            contract(
                $dtype,
                [m as u64, n as u64, k as u64],
                bytes(&a),
                Matrix::row_major(k as u64),
                bytes(&b),
                b_at,
                bytes_mut(&mut c),
                Matrix::row_major(n as u64),
                true,
            )
            .unwrap();
            for i in 0..m {
                for j in 0..n {
                    let want: usize =
                        (0..k).map(|p| (i * k + p) % 5 * ((n * k - 1 - j * k - p) % 3)).sum();
                    assert_eq!(c[i * n + j] as usize, want + 2, "{}", $dtype);
                }
            }
            let twice: Vec<$t> = c.iter().map(|x| x + x).collect();
            let once = c.clone();
            combine_add($dtype, bytes_mut(&mut c), bytes(&once)).unwrap();
            assert_eq!(c, twice);
        }};
    }

    #[test]
    fn products_add_to_what_is_there() {
        case!(f64, DType::Float64);
        case!(f32, DType::Float32);
        case!(i64, DType::Int64);
        case!(u16, DType::UInt16);
        case!(i32, DType::Int32);
    }

    #[test]
    fn integers_wrap_and_nothing_is_zero() {
        // numpy: np.array([[100]], 'i1') @ np.array([[2]], 'i1') is [[-56]]
        let mut c = [5i8];
        let x = Matrix::row_major(1);
        contract(DType::Int8, [1, 1, 1], &[100], x, &[2], x, bytes_mut(&mut c), x, false).unwrap();
        assert_eq!(c, [-56]);
        contract(DType::Int8, [1, 1, 0], &[], x, &[], x, bytes_mut(&mut c), x, false).unwrap();
        assert_eq!(c, [0]);
        let mut d = [5.0f64];
        contract(DType::Float64, [1, 1, 0], &[], x, &[], x, bytes_mut(&mut d), x, false).unwrap();
        assert_eq!(d, [0.0]);
        assert!(
            contract(DType::Int8, [1, 1, 2], &[1], x, &[2], x, bytes_mut(&mut c), x, false)
                .is_err()
        );
    }
}
