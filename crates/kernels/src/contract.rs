//! Blocks of matrix products.
//!
//! `c[m, n] (+)= a[m, k] @ b[k, n]` for one block, on the caller's thread. Floats use [`gemm`]; small products and
//! those with vectors use [`small`]; without a fused multiply-add all use faer. Integers wrap, in [`small`].

mod gemm;
mod small;

use super::copy::Strided;
use super::{KernelError, Level, unsupported};
use faer::linalg::matmul::matmul;
use faer::traits::math_utils::one;
use faer::{Accum, MatMut, MatRef, Par};
use tessera_planner::dtype::DType;

/// Lengths of a block's axes.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Rows of the left side.
    pub m: usize,
    /// Columns of the right side.
    pub n: usize,
    /// Length of the summed axis.
    pub k: usize,
}

/// Destination of a block.
#[derive(Debug)]
pub struct Target<'a> {
    /// Memory whose first cell is the block's first cell.
    pub c: &'a mut [u8],
    /// Row stride in cells.
    pub c_row: usize,
    /// True if products are added to the existing cells.
    pub add: bool,
}

/// Bytes of scratch that [`contract`] needs for this block, or for any block with shorter axes.
pub fn room(dtype: DType, block: Block) -> usize {
    match dtype {
        DType::Float64 => gemm::room::<f64>(Level::detect(), block),
        DType::Float32 => gemm::room::<f32>(Level::detect(), block),
        _ => 0,
    }
}

/// Multiplies a block.
///
/// `a` and `b` have two strides each: rows, columns. `room` has the number of bytes that [`room()`] returns.
///
/// # Errors
/// [`KernelError::Buffer`] if a side does not hold its block or the scratch is too small, [`KernelError::Unsupported`]
/// for types without a product.
pub fn contract(
    dtype: DType,
    block: Block,
    a: Strided<'_>,
    b: Strided<'_>,
    to: Target<'_>,
    room: &mut [u8],
) -> Result<(), KernelError> {
    let size = dtype.size();
    holds("cells of the left side", a, size, block.m, block.k)?;
    holds("cells of the right side", b, size, block.k, block.n)?;
    if block.m == 0 || block.n == 0 {
        return Ok(());
    }
    let needed = (block.m - 1) * to.c_row + block.n;
    let cells = to.c.len() / size;
    if cells < needed || to.c_row < block.n || to.c.as_ptr().align_offset(size) != 0 {
        return Err(KernelError::Buffer {
            what: "cells of a product",
            got: cells as u64,
            expected: needed as u64,
        });
    }
    match dtype {
        DType::Float64 => float::<f64>(Level::detect(), block, a, b, to, room)?,
        DType::Float32 => float::<f32>(Level::detect(), block, a, b, to, room)?,
        DType::Int8 => wrapping::<i8>(block, a, b, to),
        DType::UInt8 => wrapping::<u8>(block, a, b, to),
        DType::Int16 => wrapping::<i16>(block, a, b, to),
        DType::UInt16 => wrapping::<u16>(block, a, b, to),
        DType::Int32 => wrapping::<i32>(block, a, b, to),
        DType::UInt32 => wrapping::<u32>(block, a, b, to),
        DType::Int64 => wrapping::<i64>(block, a, b, to),
        DType::UInt64 => wrapping::<u64>(block, a, b, to),
        other => return Err(unsupported("matmul", other)),
    }
    Ok(())
}

/// Rows of the blocks on the diagonal of a symmetric product; these blocks are computed in full.
const DIAGONAL: usize = 128;

/// `c[n, n] (+)= a[n, k] @ transpose(a)` of floats, mostly without the cells above the diagonal, which [`mirror`]
/// fills.
///
/// Half of the products are skipped, in blocks that are as large as possible.
///
/// # Errors
/// The errors of [`contract`].
pub fn contract_with_itself(
    dtype: DType,
    (n, k): (usize, usize),
    a: Strided<'_>,
    to: Target<'_>,
    room: &mut [u8],
) -> Result<(), KernelError> {
    let turned: [i64; 2] = match a.strides {
        [rows, columns] => [*columns, *rows],
        _ => [0; 2],
    };
    let from = |row: usize| a.offset + row as i64 * turned[1];
    if n <= DIAGONAL {
        let b = Strided { strides: &turned, ..a };
        return contract(dtype, Block { m: n, n, k }, a, b, to, room);
    }
    let half = (n / 2).next_multiple_of(DIAGONAL / 2).min(n);
    let below = Strided { offset: from(half), ..a };
    let beside = Strided { strides: &turned, ..a };
    let Target { c, c_row, add } = to;
    contract_with_itself(dtype, (half, k), a, Target { c: &mut *c, c_row, add }, room)?;
    let lower = c.len().min(half * c_row * dtype.size());
    let lower = &mut c[lower..];
    let to = Target { c: &mut *lower, c_row, add };
    contract(dtype, Block { m: n - half, n: half, k }, below, beside, to, room)?;
    let corner = lower.len().min(half * dtype.size());
    let to = Target { c: &mut lower[corner..], c_row, add };
    contract_with_itself(dtype, (n - half, k), below, to, room)
}

/// Copies the cells below the diagonal of a dense square matrix of `n` rows to their mirrored places above it.
pub fn mirror(size: usize, n: usize, c: &mut [u8]) {
    match size {
        4 => mirrored::<4>(n, c),
        _ => mirrored::<8>(n, c),
    }
}

fn mirrored<const N: usize>(n: usize, c: &mut [u8]) {
    // Squares that fit in the first-level cache.
    const EDGE: usize = 32;
    let cells = c.as_chunks_mut::<N>().0;
    for i0 in (0..n).step_by(EDGE) {
        for j0 in (0..=i0).step_by(EDGE) {
            for i in i0..n.min(i0 + EDGE) {
                for j in j0..i.min(j0 + EDGE) {
                    cells[j * n + i] = cells[i * n + j];
                }
            }
        }
    }
}

fn holds(
    what: &'static str,
    v: Strided<'_>,
    size: usize,
    rows: usize,
    columns: usize,
) -> Result<(), KernelError> {
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let [r, c] = v.strides else {
        return Err(KernelError::Buffer {
            what: "strides of a matrix",
            got: v.strides.len() as u64,
            expected: 2,
        });
    };
    let (mut low, mut high) = (i128::from(v.offset), i128::from(v.offset));
    for (n, s) in [(rows, *r), (columns, *c)] {
        let reach = (n as i128 - 1) * i128::from(s);
        if reach < 0 { low += reach } else { high += reach }
    }
    let cells = v.bytes.len() / size;
    if low < 0 || high >= cells as i128 || v.bytes.as_ptr().align_offset(size) != 0 {
        return Err(KernelError::Buffer {
            what,
            got: cells as u64,
            expected: high.max(0) as u64 + 1,
        });
    }
    Ok(())
}

#[expect(unsafe_code, reason = "kernels and faer take matrices as pointers and strides")]
fn float<T: faer::traits::ComplexField + gemm::Float + small::Real>(
    level: Level,
    block: Block,
    a: Strided<'_>,
    b: Strided<'_>,
    mut to: Target<'_>,
    room: &mut [u8],
) -> Result<(), KernelError> {
    // SAFETY: the machine has the level; `holds` proved that every cell of both blocks lies in its memory, aligned for T;
    // the caller guarantees that `c` holds the target's rows, aligned.
    if block.k > 0 && unsafe { small::product::<T>(level, block, &a, &b, &mut to) } {
        return Ok(());
    }
    if let Some(kernels) = T::kernels(level).filter(|_| block.k > 0) {
        // SAFETY: as above; the kernels are those of this machine's level.
        return unsafe { gemm::product::<T>(&kernels, block, (&a, &b), &mut to, room) };
    }
    let matrix = |v: Strided<'_>| {
        (
            v.bytes.as_ptr().cast::<T>().wrapping_offset(v.offset as isize),
            v.strides[0] as isize,
            v.strides[1] as isize,
        )
    };
    let ((ap, ar, ac), (bp, br, bc)) = (matrix(a), matrix(b));
    // SAFETY: `holds` proved that every cell of both blocks lies in its memory, aligned for T (a plain float); the
    // caller guarantees that `c` holds the target's rows; it is borrowed mutably, so it overlaps neither side.
    let (a, b, c) = unsafe {
        (
            MatRef::from_raw_parts(ap, block.m, block.k, ar, ac),
            MatRef::from_raw_parts(bp, block.k, block.n, br, bc),
            MatMut::from_raw_parts_mut(
                to.c.as_mut_ptr().cast::<T>(),
                block.m,
                block.n,
                to.c_row as isize,
                1,
            ),
        )
    };
    let beta = if to.add { Accum::Add } else { Accum::Replace };
    matmul(c, beta, a, b, one::<T>(), Par::Seq);
    Ok(())
}

#[expect(unsafe_code, reason = "kernels take matrices as pointers and strides")]
fn wrapping<T: small::Real>(block: Block, a: Strided<'_>, b: Strided<'_>, mut to: Target<'_>) {
    if block.k > 0 {
        // SAFETY: `holds` proved that every cell of both blocks lies in its memory, aligned for T; `contract` that `c`
        // holds the target's rows, aligned.
        return unsafe { small::wrapping::<T>(block, &a, &b, &mut to) };
    }
    if !to.add {
        let size = size_of::<T>();
        for row in to.c.chunks_mut(to.c_row * size).take(block.m) {
            row[..block.n * size].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn products_of_strided_blocks_are_those_of_loops() {
        let (m, n, k) = (13, 7, 29);
        let value = |i: usize| ((i * 37 + 11) % 101) as f64 / 8.0 - 6.0;
        let a: Vec<f64> = (0..m * k).map(value).collect();
        let b: Vec<f64> = (0..k * n).map(|i| value(i + 5)).collect();
        let bytes = |v: &[f64]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
        // `a` is stored transposed, `b` reversed along its rows.
        let at: Vec<f64> = (0..k * m).map(|i| a[(i % m) * k + i / m]).collect();
        let back: Vec<f64> = (0..k * n).map(|i| b[(k - 1 - i / n) * n + i % n]).collect();
        let (at, back) = (bytes(&at), bytes(&back));
        let mut room = vec![0; room(DType::Float64, Block { m, n, k })];
        let mut c = vec![0f64; m * n];
        for add in [false, true] {
            let mut out = bytes(&c);
            contract(
                DType::Float64,
                Block { m, n, k },
                Strided { bytes: &at, offset: 0, strides: &[1, m as i64] },
                Strided { bytes: &back, offset: ((k - 1) * n) as i64, strides: &[-(n as i64), 1] },
                Target { c: &mut out, c_row: n, add },
                &mut room,
            )
            .unwrap();
            c = out.chunks_exact(8).map(|b| f64::from_ne_bytes(b.try_into().unwrap())).collect();
            let times = if add { 2.0 } else { 1.0 };
            for i in 0..m {
                for j in 0..n {
                    // All values are multiples of 1/64 below 2^20, so every order of additions is exact.
                    let want: f64 = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                    assert_eq!(c[i * n + j], want * times);
                }
            }
        }
    }

    #[test]
    fn small_products_and_those_with_vectors_are_those_of_loops() {
        let value = |i: usize| ((i * 37 + 11) % 101) as f32 / 8.0 - 6.0;
        let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
        let lengths = [1, 2, 4, 7, 16, 17, 33, 70];
        let all = lengths.iter().flat_map(|&m| lengths.map(|n| (m, n)));
        for (m, n, k) in all.flat_map(|(m, n)| [1, 5, 31, 64, 100].map(|k| (m, n, k))) {
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (0..k * n).map(|i| value(i + 5)).collect();
            let at: Vec<f32> = (0..k * m).map(|i| a[(i % m) * k + i / m]).collect();
            let bt: Vec<f32> = (0..k * n).map(|i| b[(i % k) * n + i / k]).collect();
            let (m_step, n_step, k_step) = (m as i64, n as i64, k as i64);
            let left = [(bytes(&a), [k_step, 1]), (bytes(&at), [1, m_step])];
            let right = [(bytes(&b), [n_step, 1]), (bytes(&bt), [1, k_step])];
            for ((left, ls), (right, rs)) in
                left.iter().flat_map(|l| right.iter().map(move |r| (l, r)))
            {
                let mut out = vec![0u8; m * n * 4];
                for add in [false, true] {
                    let side = |bytes, strides| Strided { bytes, offset: 0, strides };
                    let (l, r) = (side(left, ls), side(right, rs));
                    let (block, to) = (Block { m, n, k }, Target { c: &mut out, c_row: n, add });
                    let mut room = vec![0; room(DType::Float32, block)];
                    contract(DType::Float32, block, l, r, to, &mut room).unwrap();
                }
                for (i, cell) in out.chunks_exact(4).enumerate() {
                    // All values are multiples of 1/64 below 2^18, so every order of additions is exact.
                    let want: f32 = (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum();
                    let got = f32::from_ne_bytes(cell.try_into().unwrap());
                    assert_eq!(got, want * 2.0, "{m} {n} {k} {i}");
                }
            }
        }
    }

    #[test]
    fn products_of_matrices_with_their_own_transposes_are_symmetric_and_those_of_loops() {
        let value = |i: usize| ((i * 37 + 11) % 101) as f64 / 8.0 - 6.0;
        for (n, k) in [(1, 3), (100, 7), (129, 40), (200, 64), (411, 33)] {
            let a: Vec<f64> = (0..n * k).map(value).collect();
            let at: Vec<f64> = (0..k * n).map(|i| a[(i % n) * k + i / n]).collect();
            let bytes = |v: &[f64]| v.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
            let stored = [(bytes(&a), [k as i64, 1]), (bytes(&at), [1, n as i64])];
            for (a_bytes, strides) in stored {
                let side = Strided { bytes: &a_bytes, offset: 0, strides: &strides };
                // Cells that are not written would remain NaN.
                let mut out = bytes(&vec![f64::NAN; n * n]);
                let mut room = vec![0; room(DType::Float64, Block { m: n, n, k })];
                for add in [false, true] {
                    let to = Target { c: &mut out, c_row: n, add };
                    contract_with_itself(DType::Float64, (n, k), side, to, &mut room).unwrap();
                }
                mirror(8, n, &mut out);
                for (i, cell) in out.chunks_exact(8).enumerate() {
                    // All values are multiples of 1/64 below 2^20, so every order of additions is exact.
                    let want: f64 = (0..k).map(|l| a[i / n * k + l] * a[i % n * k + l]).sum();
                    let got = f64::from_ne_bytes(cell.try_into().unwrap());
                    assert_eq!(got, want * 2.0, "{n} {k} {i}");
                }
            }
        }
        // A side that is too short for its cells is rejected, even by one cell.
        let short = vec![0; 200 * 8 - 8];
        let side = Strided { bytes: &short, offset: 0, strides: &[1, 1] };
        let mut out = vec![0; 200 * 200 * 8];
        let to = Target { c: &mut out, c_row: 200, add: false };
        let refused = contract_with_itself(DType::Float64, (200, 1), side, to, &mut []);
        assert!(matches!(refused, Err(KernelError::Buffer { .. })));
    }

    macro_rules! wrapping_sums {
        ($($name:ident $t:ident $dtype:ident)*) => { $(
            #[test]
            fn $name() {
                let mut random = crate::noise(0x9e37_79b9_7f4a_7c15);
                // With vectors, around panels and strips, and around the number of rows of a panel.
                let shapes = [
                    (1, 1, 1), (1, 9, 300), (9, 1, 300), (1, 40, 129), (5, 17, 129), (6, 33, 40), (30, 70, 257), (3, 2, 0),
                ];
                for (m, n, k) in shapes {
                    let mut cells = |n: usize| -> Vec<$t> { (0..n).map(|_| random() as $t).collect() };
                    let (a, b, before) = (cells(m * k), cells(k * n), cells(m * n));
                    let bytes =
                        |v: &[$t]| -> Vec<u8> { v.iter().flat_map(|x| x.to_ne_bytes()).collect() };
                    let turned = |v: &[$t], rows: usize, columns: usize| -> Vec<$t> {
                        (0..v.len()).map(|i| v[i % rows * columns + i / rows]).collect()
                    };
                    let sums: Vec<$t> = (0..m * n)
                        .map(|i| {
                            let product = |l: usize| a[i / n * k + l].wrapping_mul(b[l * n + i % n]);
                            (0..k).fold(0, |s: $t, l| s.wrapping_add(product(l)))
                        })
                        .collect();
                    let left = [(bytes(&a), [k as i64, 1]), (bytes(&turned(&a, m, k)), [1, m as i64])];
                    let right = [(bytes(&b), [n as i64, 1]), (bytes(&turned(&b, k, n)), [1, k as i64])];
                    for (l, r) in left.iter().flat_map(|l| right.iter().map(move |r| (l, r))) {
                        let side = |bytes, strides| Strided { bytes, offset: 0, strides };
                        let (l, r) = (side(&l.0, &l.1), side(&r.0, &r.1));
                        // Rows of the target that are adjacent, and with cells between them that stay as they are.
                        for (add, c_row) in [false, true].into_iter().flat_map(|add| [(add, n), (add, n + 3)]) {
                            let apart = |rows: &[$t]| -> Vec<$t> {
                                rows.chunks(n).flat_map(|row| [row, &[77; 3][..c_row - n]].concat()).collect()
                            };
                            let mut out = bytes(&apart(&before));
                            let to = Target { c: &mut out, c_row, add };
                            contract(DType::$dtype, Block { m, n, k }, l, r, to, &mut []).unwrap();
                            let want: Vec<$t> = sums
                                .iter()
                                .zip(&before)
                                .map(|(s, b)| if add { s.wrapping_add(*b) } else { *s })
                                .collect();
                            let (l, r) = (l.strides, r.strides);
                            assert_eq!(out, bytes(&apart(&want)), "{m} {n} {k} {l:?} {r:?} {add} {c_row}");
                        }
                    }
                }
            }
        )* };
    }
    wrapping_sums! {
        products_of_int8_are_those_of_loops i8 Int8
        products_of_uint8_are_those_of_loops u8 UInt8
        products_of_int16_are_those_of_loops i16 Int16
        products_of_uint16_are_those_of_loops u16 UInt16
        products_of_int32_are_those_of_loops i32 Int32
        products_of_uint32_are_those_of_loops u32 UInt32
        products_of_int64_are_those_of_loops i64 Int64
        products_of_uint64_are_those_of_loops u64 UInt64
    }

    #[test]
    fn integers_wrap() {
        let mut c = [0u8; 1];
        let a = Strided { bytes: &[100, 100], offset: 0, strides: &[2, 1] };
        let b = Strided { bytes: &[2, 2], offset: 0, strides: &[1, 1] };
        let to = Target { c: &mut c, c_row: 1, add: false };
        contract(DType::Int8, Block { m: 1, n: 1, k: 2 }, a, b, to, &mut []).unwrap();
        // NumPy: (np.int8([[100, 100]]) @ np.int8([[2], [2]]))[0, 0] is -112.
        assert_eq!(c[0] as i8, -112);
    }
}
