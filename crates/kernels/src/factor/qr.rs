//! QR by Householder reflections, recursing over halves of the columns.
//!
//! The product of the reflections of some columns is `H = I - V T Vᵀ` with `T` upper triangular. The left half is
//! factored, its `Hᵀ` applied to the right half by matrix products, then the right half is factored:
//!
//! ```text
//!   |1      |      r r|r r       V stores its ones and zeros, so that all products are plain ones;
//!   |v 1    |        r|r r       R is moved out while V is computed.
//!   |v v  A |
//!   |v v    |      T = |T1  -T1 (V1ᵀ V2) T2|
//! ```
//!
//! # Source
//! Elmroth, Gustavson: Applying recursion to serial and parallel QR factorization (2000); LAPACK's `larfg` and `larft`.

use super::{Problem, Real, Refusal, rows_of, short, take, wanted};
use crate::KernelError;
use faer::linalg::matmul::matmul;
use faer::prelude::{Reborrow, ReborrowMut};
use faer::{Accum, MatMut, MatRef, Par};
use num_traits::Float;
use tessera_planner::factor::Factor;

/// Columns that are reflected one by one.
const PANEL: usize = 8;

/// A factored matrix: its reflections, R by columns, and scratch of the size of R.
struct Reflected<'a, T> {
    v: MatMut<'a, T>,
    t: MatMut<'a, T>,
    r: &'a mut [T],
    spare: &'a mut [T],
}

/// The sign that makes a diagonal cell of R nonnegative.
fn sign<T: Real>(diagonal: T) -> T {
    if diagonal < T::zero() { -T::one() } else { T::one() }
}

/// Factors a matrix with at least one row and column in its working memory.
fn reflected<'a, T: Real>(p: &mut Problem<'a, T>) -> Result<Reflected<'a, T>, Refusal> {
    let (m, n) = (p.a.rows, p.a.columns);
    let k = m.min(n);
    let mut work = std::mem::take(&mut p.work);
    let v = take(&mut work, m * n)?;
    p.a.columns_into(v)?;
    let cells = take(&mut work, k * n)?;
    cells.fill(T::zero());
    let t = take(&mut work, k * k)?;
    t.fill(T::zero());
    let spare = take(&mut work, k * n)?;
    let (factored, rest) = v.split_at_mut(m * k);
    let mut v = MatMut::from_column_major_slice_mut(factored, m, k);
    let mut r = MatMut::from_column_major_slice_mut(cells, k, n);
    let mut t = MatMut::from_column_major_slice_mut(t, k, k);
    recurse(v.rb_mut(), 0, t.rb_mut(), r.rb_mut().subcols_mut(0, k), spare, p.cancelled)?;
    if n > k {
        let rest = MatMut::from_column_major_slice_mut(rest, m, n - k);
        apply(v.rb(), t.rb(), 0, rest, r.subcols_mut(k, n - k), spare);
    }
    Ok(Reflected { v, t, r: cells, spare })
}

/// Writes `q x` for the rows `x` of a block; a block with few rows uses only as many rows of `x`.
pub(super) fn apply_blocks<T: Real>(
    p: &mut Problem<'_, T>,
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let (m, n) = (p.a.rows, p.a.columns);
    let k = m.min(n);
    let (Some(x), [out]) = (p.c, outputs) else {
        return Err(short("sides of a product", 1, 2).into());
    };
    x.check()?;
    if x.rows < k || x.columns > n {
        return Err(short("rows of the right side", x.rows, k).into());
    }
    out.fill(T::zero());
    if k == 0 || x.columns == 0 {
        return Ok(());
    }
    let Reflected { v, t, r, spare } = reflected(p)?;
    // q x = (S x) - V (T (V₀ᵀ (S x))), where V₀ are the first k rows of V.
    let cells = k * x.columns;
    let (first, second) = (&mut r[..], &mut spare[..cells]);
    let mut out = rows_of(out, m, x.columns)?;
    for i in 0..k {
        let s = sign(first[i * k + i]);
        for j in 0..x.columns {
            let cell = s * x.at(i, j);
            second[j * k + i] = cell;
            out[(i, j)] = cell;
        }
    }
    let mut first = MatMut::from_column_major_slice_mut(&mut first[..cells], k, x.columns);
    let mut second = MatMut::from_column_major_slice_mut(second, k, x.columns);
    let (v, one) = (v.rb(), T::one());
    let top = v.subrows(0, k).transpose();
    matmul(first.rb_mut(), Accum::Replace, top, second.rb(), one, Par::Seq);
    matmul(second.rb_mut(), Accum::Replace, t.rb(), first.rb(), one, Par::Seq);
    matmul(out, Accum::Add, v, second.rb(), -one, Par::Seq);
    Ok(())
}

/// Writes the parts `q` and `r`, or `r` alone for a block. That `r` may have more rows than the factor; they are zeros.
pub(super) fn run<T: Real>(
    p: &mut Problem<'_, T>,
    parts: &[usize],
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let (m, n) = (p.a.rows, p.a.columns);
    let k = m.min(n);
    for out in outputs.iter_mut() {
        out.fill(T::zero());
    }
    if k == 0 {
        return Ok(());
    }
    let (of_q, of_r) = match p.kind {
        Factor::QrBlocks { .. } => (None, 0),
        _ => (Some(0), 1),
    };
    let Reflected { v, t, r, spare } = reflected(p)?;
    let r = MatRef::from_column_major_slice(r, k, n);

    if let Some(out) = wanted(of_r, parts, outputs) {
        if out.len() < k * n {
            return Err(short("cells of r", out.len(), k * n).into());
        }
        for i in 0..k {
            let s = sign(r[(i, i)]);
            for j in i..n {
                out[i * n + j] = s * r[(i, j)];
            }
        }
    }
    if let Some(out) = of_q.and_then(|part| wanted(part, parts, outputs)) {
        // Q = S - V (T V₀ᵀ S), where V₀ are the first k rows of V.
        let mut product = MatMut::from_column_major_slice_mut(&mut spare[..k * k], k, k);
        let (v, one) = (v.rb(), T::one());
        let top = v.subrows(0, k).transpose();
        matmul(product.rb_mut(), Accum::Replace, t.rb(), top, one, Par::Seq);
        let mut q = rows_of(out, m, k)?;
        for j in 0..k {
            let s = sign(r[(j, j)]);
            q[(j, j)] = s;
            for i in 0..k {
                product[(i, j)] = s * product[(i, j)];
            }
        }
        matmul(q, Accum::Add, v, product.rb(), -one, Par::Seq);
    }
    Ok(())
}

/// Factors the columns `v`; `top` is their first row that is not in R yet.
fn recurse<T: Real>(
    v: MatMut<'_, T>,
    top: usize,
    t: MatMut<'_, T>,
    r: MatMut<'_, T>,
    spare: &mut [T],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), Refusal> {
    let (mut v, mut t, mut r) = (v, t, r);
    let n = v.ncols();
    if n <= PANEL {
        panel(v, top, t, r);
        return Ok(());
    }
    if cancelled() {
        return Err(KernelError::Cancelled.into());
    }
    let half = n / 2;
    let (mut left, mut right) = v.rb_mut().split_at_col_mut(half);
    let (mut t11, mut t12, _, mut t22) = t.rb_mut().split_at_mut(half, half);
    let (r_left, mut r_right) = r.rb_mut().split_at_col_mut(half);
    recurse(left.rb_mut(), top, t11.rb_mut(), r_left, spare, cancelled)?;
    apply(left.rb(), t11.rb(), top, right.rb_mut(), r_right.rb_mut(), spare);
    recurse(right.rb_mut(), top + half, t22.rb_mut(), r_right, spare, cancelled)?;
    // V2 is zero above its own first row.
    let own = top + half;
    let rows = left.nrows() - own;
    let mut product =
        MatMut::from_column_major_slice_mut(&mut spare[..half * (n - half)], half, n - half);
    let (v1, v2) = (left.rb().subrows(own, rows), right.rb().subrows(own, rows));
    let one = T::one();
    matmul(product.rb_mut(), Accum::Replace, v1.transpose(), v2, one, Par::Seq);
    matmul(t12.rb_mut(), Accum::Replace, t11.rb(), product.rb(), one, Par::Seq);
    matmul(product.rb_mut(), Accum::Replace, t12.rb(), t22.rb(), -one, Par::Seq);
    t12.copy_from(product.rb());
    Ok(())
}

/// Applies `Hᵀ = I - V Tᵀ Vᵀ` to columns, and moves their finished rows to R.
fn apply<T: Real>(
    v: MatRef<'_, T>,
    t: MatRef<'_, T>,
    top: usize,
    to: MatMut<'_, T>,
    r: MatMut<'_, T>,
    spare: &mut [T],
) {
    let (mut to, mut r) = (to, r);
    let (k, n) = (v.ncols(), to.ncols());
    let rows = v.nrows() - top;
    let v = v.subrows(top, rows);
    // The rows of R are not written yet: they hold Vᵀ A first.
    let mut r = r.rb_mut().subrows_mut(top, k);
    let mut product = MatMut::from_column_major_slice_mut(&mut spare[..k * n], k, n);
    let mut below = to.rb_mut().subrows_mut(top, rows);
    let one = T::one();
    matmul(r.rb_mut(), Accum::Replace, v.transpose(), below.rb(), one, Par::Seq);
    matmul(product.rb_mut(), Accum::Replace, t.transpose(), r.rb(), one, Par::Seq);
    matmul(below.rb_mut(), Accum::Add, v, product.rb(), -one, Par::Seq);
    let mut finished = below.subrows_mut(0, k);
    r.copy_from(finished.rb());
    finished.fill(T::zero());
}

/// Factors a few columns, one reflection after the other.
fn panel<T: Real>(v: MatMut<'_, T>, top: usize, t: MatMut<'_, T>, r: MatMut<'_, T>) {
    let (mut v, mut t, mut r) = (v, t, r);
    let n = v.ncols();
    for j in 0..n {
        let row = top + j;
        let (mut done, mut open) = v.rb_mut().split_at_col_mut(j + 1);
        let mut column = done.rb_mut().col_mut(j);
        for i in top..row {
            r[(i, j)] = column[i];
            column[i] = T::zero();
        }
        let Some(cells) = column.try_as_col_major_mut() else { return };
        let cells = &mut cells.as_slice_mut()[row..];
        let (tau, beta) = reflection(cells);
        r[(row, j)] = beta;
        let cells = &*cells;
        for l in 0..open.ncols() {
            let Some(other) = open.rb_mut().col_mut(l).try_as_col_major_mut() else { return };
            let other = &mut other.as_slice_mut()[row..];
            let by = tau * dot(cells, other);
            for (x, v) in other.iter_mut().zip(cells) {
                *x -= by * *v;
            }
        }
        // The new column of T: -tau T (Vᵀ v).
        let done = done.rb();
        let before: [T; PANEL] = std::array::from_fn(|i| {
            let earlier = (i < j).then(|| done.col(i).try_as_col_major()).flatten();
            earlier.map_or(T::zero(), |c| dot(&c.as_slice()[row..], cells_of(done, j, row)))
        });
        for i in 0..j {
            let product = (i..j).fold(T::zero(), |sum, l| sum + t[(i, l)] * before[l]);
            t[(i, j)] = -tau * product;
        }
        t[(j, j)] = tau;
    }
}

/// The cells of a column starting at a row.
fn cells_of<T: Real>(v: MatRef<'_, T>, j: usize, row: usize) -> &[T] {
    v.col(j).try_as_col_major().map_or(&[], |c| &c.as_slice()[row..])
}

/// Overwrites a column with the vector `v` (its first cell 1) such that `(I - tau v vᵀ) x = (beta, 0, …)`.
fn reflection<T: Real>(x: &mut [T]) -> (T, T) {
    let Some((first, rest)) = x.split_first_mut() else { return (T::zero(), T::zero()) };
    let alpha = *first;
    let length = norm(rest);
    *first = T::one();
    if length == T::zero() {
        return (T::zero(), alpha);
    }
    let size = Float::hypot(alpha, length);
    let beta = if alpha < T::zero() { size } else { -size };
    let tau = (beta - alpha) / beta;
    let by = alpha - beta;
    for x in rest {
        *x /= by;
    }
    (tau, beta)
}

/// Euclidean norm of a vector; squares neither overflow nor underflow.
fn norm<T: Real>(x: &[T]) -> T {
    let most = x.iter().fold(T::zero(), |m, v| if Float::abs(*v) > m { Float::abs(*v) } else { m });
    let safe = Float::sqrt(<T as Float>::max_value()) / T::from(1u32 << 20).unwrap_or_else(T::one);
    if most == T::zero() || (most < safe && most > T::one() / safe) {
        return Float::sqrt(dot(x, x));
    }
    let sum = x.iter().fold(T::zero(), |sum, v| {
        let part = *v / most;
        sum + part * part
    });
    most * Float::sqrt(sum)
}

/// Scalar product in 8 partial sums, which are added in a fixed order.
fn dot<T: Real>(x: &[T], y: &[T]) -> T {
    let mut sums = [T::zero(); 8];
    let (xs, ys) = (x.chunks_exact(8), y.chunks_exact(8));
    let rest =
        xs.remainder().iter().zip(ys.remainder()).fold(T::zero(), |sum, (a, b)| sum + *a * *b);
    for (a, b) in xs.zip(ys) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let pairs = [sums[0] + sums[4], sums[1] + sums[5], sums[2] + sums[6], sums[3] + sums[7]];
    ((pairs[0] + pairs[2]) + (pairs[1] + pairs[3])) + rest
}
