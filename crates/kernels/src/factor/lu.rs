//! Triangular factors: LU with partial pivoting, Cholesky, and the solvers based on them.
//!
//! LU recurses over halves of the columns: the left half is factored, the right half solved and updated with it, then
//! the rest of the right half is factored. As in LAPACK, the pivot is the first cell of the largest magnitude, and a
//! column whose cells are all 0 is skipped: its pivot is 0.

use super::{MatrixFault, Problem, Real, Refusal, rows_of, short, take, wanted};
use crate::KernelError;
use faer::linalg::cholesky::llt::factor as llt;
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve as solve_by;
use faer::prelude::{Reborrow, ReborrowMut};
use faer::{Accum, MatMut, MatRef, Par};
use num_traits::Float;

/// Columns that are eliminated one by one.
const PANEL: usize = 8;

/// A factored matrix: L (without its unit diagonal) and U in one matrix, and for each row the row it was exchanged
/// with.
struct Lu<'a, T> {
    packed: MatMut<'a, T>,
    pivots: &'a mut [T],
}

/// Writes `p`, `l` and `u`.
pub(super) fn parts<T: Real>(
    p: &mut Problem<'_, T>,
    parts: &[usize],
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let (m, n) = (p.a.rows, p.a.columns);
    let k = m.min(n);
    let lu = factored(p)?;
    for out in outputs.iter_mut() {
        out.fill(T::zero());
    }
    if let Some(out) = wanted(0, parts, outputs) {
        let mut matrix = rows_of(out, m, m)?;
        // Row i of the permuted matrix is row from(i) of the given one, so a = p l u with p[from(i), i] = 1.
        let mut from: Vec<usize> = (0..m).collect();
        for i in 0..k {
            from.swap(i, index(lu.pivots[i]));
        }
        for (i, &row) in from.iter().enumerate() {
            matrix[(row, i)] = T::one();
        }
    }
    if let Some(out) = wanted(1, parts, outputs) {
        let mut l = rows_of(out, m, k)?;
        for j in 0..k {
            l[(j, j)] = T::one();
            for i in j + 1..m {
                l[(i, j)] = lu.packed[(i, j)];
            }
        }
    }
    if let Some(out) = wanted(2, parts, outputs) {
        let mut u = rows_of(out, k, n)?;
        for j in 0..n {
            for i in 0..k.min(j + 1) {
                u[(i, j)] = lu.packed[(i, j)];
            }
        }
    }
    Ok(())
}

/// Writes `det`, `sign` and `logabsdet`.
pub(super) fn determinant<T: Real>(
    p: &mut Problem<'_, T>,
    parts: &[usize],
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let n = p.a.rows;
    let lu = factored(p)?;
    let (mut det, mut sign, mut log) = (T::one(), T::one(), T::zero());
    for i in 0..n {
        let pivot = lu.packed[(i, i)];
        let exchanged = index(lu.pivots[i]) != i;
        det = if exchanged { -det } else { det } * pivot;
        if exchanged {
            sign = -sign;
        }
        sign = match () {
            () if pivot == T::zero() => T::zero(),
            () if pivot < T::zero() => -sign,
            () if Float::is_nan(pivot) => pivot,
            () => sign,
        };
        log += Float::ln(Float::abs(pivot));
    }
    for (part, value) in [(0, det), (1, sign), (2, log)] {
        if let Some(out) = wanted(part, parts, outputs) {
            out.fill(value);
        }
    }
    Ok(())
}

/// Writes `x` of `a x = c`, or the inverse without `c`.
pub(super) fn solve<T: Real>(
    p: &mut Problem<'_, T>,
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let n = p.a.rows;
    let c = p.c;
    let lu = factored(p)?;
    if (0..n).any(|i| lu.packed[(i, i)] == T::zero()) {
        return Err(MatrixFault::Singular.into());
    }
    let [out] = outputs else { return Err(short("outputs of a solution", 0, 1).into()) };
    let columns = c.map_or(n, |c| c.columns);
    let mut x = rows_of(out, n, columns)?;
    match c {
        Some(c) => {
            c.check()?;
            for i in 0..n {
                for j in 0..columns {
                    x[(i, j)] = c.at(i, j);
                }
            }
        }
        None => {
            x.fill(T::zero());
            for i in 0..n {
                x[(i, i)] = T::one();
            }
        }
    }
    exchange(x.rb_mut(), lu.pivots);
    let packed = lu.packed.rb();
    solve_by::solve_unit_lower_triangular_in_place(packed, x.rb_mut(), Par::Seq);
    solve_by::solve_upper_triangular_in_place(packed, x, Par::Seq);
    Ok(())
}

/// Writes `x` of `a x = c` for a triangular `a`.
pub(super) fn triangular<T: Real>(
    p: &mut Problem<'_, T>,
    lower: bool,
    unit: bool,
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let n = p.a.rows;
    let (Some(c), [out]) = (p.c, outputs) else {
        return Err(short("sides of an equation", 1, 2).into());
    };
    let mut work = std::mem::take(&mut p.work);
    let a = take(&mut work, n * n)?;
    p.a.columns_into(a)?;
    let a = MatRef::from_column_major_slice(a, n, n);
    if !unit && (0..n).any(|i| a[(i, i)] == T::zero()) {
        return Err(MatrixFault::Singular.into());
    }
    c.check()?;
    let mut x = rows_of(out, n, c.columns)?;
    for i in 0..n {
        for j in 0..c.columns {
            x[(i, j)] = c.at(i, j);
        }
    }
    match (lower, unit) {
        (true, false) => solve_by::solve_lower_triangular_in_place(a, x, Par::Seq),
        (true, true) => solve_by::solve_unit_lower_triangular_in_place(a, x, Par::Seq),
        (false, false) => solve_by::solve_upper_triangular_in_place(a, x, Par::Seq),
        (false, true) => solve_by::solve_unit_upper_triangular_in_place(a, x, Par::Seq),
    }
    Ok(())
}

/// Writes the lower triangle `l` of `a = l lᵀ`.
pub(super) fn cholesky<T: Real>(
    p: &mut Problem<'_, T>,
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let n = p.a.rows;
    let [out] = outputs else { return Err(short("outputs of cholesky", 0, 1).into()) };
    let mut work = std::mem::take(&mut p.work);
    let a = take(&mut work, n * n)?;
    p.a.columns_into(a)?;
    let mut a = MatMut::from_column_major_slice_mut(a, n, n);
    let stack = super::spectral::stack(work);
    llt::cholesky_in_place(
        a.rb_mut(),
        llt::LltRegularization::default(),
        Par::Seq,
        stack,
        Default::default(),
    )
    .map_err(|_| MatrixFault::NotPositiveDefinite)?;
    // The factorisation accepts a NaN pivot as positive.
    if !(0..n).all(|i| a[(i, i)] > T::zero()) {
        return Err(MatrixFault::NotPositiveDefinite.into());
    }
    let mut l = rows_of(out, n, n)?;
    for i in 0..n {
        for j in 0..n {
            l[(i, j)] = if j <= i { a[(i, j)] } else { T::zero() };
        }
    }
    Ok(())
}

/// Returns the factored matrix of a problem, in its working memory.
fn factored<'a, T: Real>(p: &mut Problem<'a, T>) -> Result<Lu<'a, T>, Refusal> {
    let (m, n) = (p.a.rows, p.a.columns);
    let mut work = std::mem::take(&mut p.work);
    let cells = take(&mut work, m * n)?;
    p.a.columns_into(cells)?;
    let pivots = take(&mut work, m.min(n))?;
    let mut packed = MatMut::from_column_major_slice_mut(cells, m, n);
    eliminate(packed.rb_mut(), pivots, p.cancelled)?;
    Ok(Lu { packed, pivots })
}

/// Pivots are stored as cells of the matrix's type; more rows than that type counts exactly are rejected.
fn index<T: Real>(pivot: T) -> usize {
    pivot.to_usize().unwrap_or(0)
}

/// Exchanges rows, from first to last.
fn exchange<T: Real>(a: MatMut<'_, T>, pivots: &[T]) {
    let mut a = a;
    // Column by column: if there are many, each is contiguous in memory.
    for column in 0..a.ncols() {
        for (i, &pivot) in pivots.iter().enumerate() {
            let j = index(pivot);
            if i != j {
                let kept = a[(i, column)];
                a[(i, column)] = a[(j, column)];
                a[(j, column)] = kept;
            }
        }
    }
}

fn swap_rows<T: Real>(a: MatMut<'_, T>, i: usize, j: usize) {
    let mut a = a;
    if i != j {
        for column in 0..a.ncols() {
            let kept = a[(i, column)];
            a[(i, column)] = a[(j, column)];
            a[(j, column)] = kept;
        }
    }
}

fn eliminate<T: Real>(
    a: MatMut<'_, T>,
    pivots: &mut [T],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), Refusal> {
    let mut a = a;
    let (m, n) = (a.nrows(), a.ncols());
    let k = m.min(n);
    if k == 0 {
        return Ok(());
    }
    if T::from(m - 1).and_then(|x: T| x.to_usize()) != Some(m - 1) {
        return Err(short("rows that the type counts", 1 << 24, m).into());
    }
    if cancelled() {
        return Err(KernelError::Cancelled.into());
    }
    if n <= PANEL {
        panel(a, pivots);
        return Ok(());
    }
    let half = if n > m { m } else { n / 2 };
    let (mut left, mut right) = a.rb_mut().split_at_col_mut(half);
    let (first, second) = pivots.split_at_mut(half);
    eliminate(left.rb_mut(), first, cancelled)?;
    exchange(right.rb_mut(), first);
    let (l11, l21) = left.rb().split_at_row(half);
    let (mut a12, mut a22) = right.split_at_row_mut(half);
    solve_by::solve_unit_lower_triangular_in_place(l11, a12.rb_mut(), Par::Seq);
    if m > half {
        matmul(a22.rb_mut(), Accum::Add, l21, a12.rb(), -T::one(), Par::Seq);
        eliminate(a22, second, cancelled)?;
        exchange(left.subrows_mut(half, m - half), second);
        let offset = T::from(half).unwrap_or_else(T::zero);
        for pivot in second {
            *pivot += offset;
        }
    }
    Ok(())
}

fn panel<T: Real>(a: MatMut<'_, T>, pivots: &mut [T]) {
    let mut a = a;
    let (m, n) = (a.nrows(), a.ncols());
    for j in 0..m.min(n) {
        let mut at = j;
        for i in j + 1..m {
            if Float::abs(a[(i, j)]) > Float::abs(a[(at, j)]) {
                at = i;
            }
        }
        pivots[j] = T::from(at).unwrap_or_else(T::zero);
        swap_rows(a.rb_mut(), j, at);
        let pivot = a[(j, j)];
        if pivot == T::zero() {
            continue;
        }
        for i in j + 1..m {
            a[(i, j)] /= pivot;
        }
        for l in j + 1..n {
            let by = a[(j, l)];
            for i in j + 1..m {
                let part = a[(i, j)] * by;
                a[(i, l)] -= part;
            }
        }
    }
}
