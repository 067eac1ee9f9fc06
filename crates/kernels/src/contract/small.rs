#![expect(unsafe_code, reason = "kernels read matrices by pointers and steps")]
//! Products whose cells are used too rarely to be packed: with a vector, and of small matrices; and those of integers.
//!
//! The kernels of floats are compiled for machines with fused multiply-add; elsewhere [`product`] returns false.
//! Integers wrap, so that every order of additions gives the same: [`wrapping`] adds products of a few columns of the
//! left side and rows of the right one.

use super::{Block, Strided, Target};
use crate::Level;
use crate::level::leveled;
use std::mem::MaybeUninit;

/// Columns and rows of a small product that are summed at a time, if the product has this many.
const COLUMNS: usize = 16;
const ROWS: usize = 4;
/// Longest sum and largest number of multiplications of a small product: beyond them packing pays off.
const DEPTH: usize = 64;
/// Summed cells of integers at a time, and rows of a copied panel at most: it stays in the first-level cache.
const DEEP: usize = 128;
const _: () = assert!(DEPTH <= DEEP);
const SMALL: usize = 32 * 32 * 32;
/// Number of partial sums of a row.
const LANES: usize = 32;
/// Cells of a column that stay in the first-level cache while columns are accumulated.
const ROWS_AT_A_TIME: usize = 1024;

/// A float type, or an integer type that wraps.
pub(super) trait Real: Copy + 'static {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    /// `self * a + b`; of floats, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
}
macro_rules! real {
    ($($t:ident)*) => { $(
        impl Real for $t {
            const ZERO: $t = 0.0;
            #[inline(always)]
            fn plus(self, other: $t) -> $t { self + other }
            #[inline(always)]
            fn mul_add(self, a: $t, b: $t) -> $t { $t::mul_add(self, a, b) }
        }
    )* };
}
real! { f32 f64 }
macro_rules! integers {
    ($($t:ident)*) => { $(
        impl Real for $t {
            const ZERO: $t = 0;
            #[inline(always)]
            fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
            #[inline(always)]
            fn mul_add(self, a: $t, b: $t) -> $t { self.wrapping_mul(a).wrapping_add(b) }
        }
    )* };
}
integers! { i8 u8 i16 u16 i32 u32 i64 u64 }

/// A matrix: the address of its first cell, and its strides.
#[derive(Clone, Copy)]
struct Matrix<T> {
    at: *const T,
    row: isize,
    column: isize,
}

impl<T> Matrix<T> {
    fn of(v: &Strided<'_>) -> Matrix<T> {
        let at = v.bytes.as_ptr().cast::<T>().wrapping_offset(v.offset as isize);
        Matrix { at, row: v.strides[0] as isize, column: v.strides[1] as isize }
    }

    fn turned(self) -> Matrix<T> {
        Matrix { at: self.at, row: self.column, column: self.row }
    }
}

/// `c (+)= a @ b`; rows of `c` are `c_row` cells apart.
struct Job<T> {
    block: Block,
    a: Matrix<T>,
    b: Matrix<T>,
    c: *mut T,
    c_row: usize,
    add: bool,
}

type Run<T> = unsafe fn(&Job<T>);

/// The kernel of a product with a vector, and the product as it takes it; `None` for others and where neither side
/// lies as it has to.
fn with_vector<T: Real>(level: Level, job: &Job<T>) -> Option<(Run<T>, Job<T>)> {
    let Block { m, n, k } = job.block;
    let (matrix, vector, length) = if n == 1 && job.c_row == 1 && job.b.row == 1 {
        (job.a, job.b, m)
    } else if m == 1 && job.a.column == 1 {
        // A row times a matrix is the transposed matrix times a column.
        (job.b.turned(), job.a.turned(), n)
    } else {
        return None;
    };
    let run: Run<T> = match (matrix.row, matrix.column) {
        (_, 1) => pick_rows(level),
        (1, _) => pick_columns(level),
        _ => return None,
    };
    let block = Block { m: length, n: 1, k };
    Some((run, Job { block, a: matrix, b: vector, ..*job }))
}

/// Computes the product of integers, with at least one product per cell.
///
/// # Safety
/// The contract of [`product`].
pub(super) unsafe fn wrapping<T: Real>(
    block: Block,
    a: &Strided<'_>,
    b: &Strided<'_>,
    to: &mut Target<'_>,
) {
    let level = Level::detect();
    let c = to.c.as_mut_ptr().cast();
    let (left, right) = (Matrix::<T>::of(a), Matrix::<T>::of(b));
    let whole = Job { block, a: left, b: right, c, c_row: to.c_row, add: to.add };
    if let Some((run, job)) = with_vector(level, &whole) {
        // SAFETY: the caller gives sides and a target of the block's extents; the machine has the level.
        unsafe { run(&job) };
        return;
    }
    let run: Run<T> = pick_small(level);
    for k in (0..block.k).step_by(DEEP) {
        let moved =
            |m: Matrix<T>, step: isize| Matrix { at: m.at.wrapping_offset(k as isize * step), ..m };
        let job = Job {
            block: Block { k: DEEP.min(block.k - k), ..block },
            a: moved(left, left.column),
            b: moved(right, right.row),
            add: to.add || k > 0,
            ..whole
        };
        // SAFETY: as above, of the columns of the left side and the rows of the right one from `k` on.
        unsafe { run(&job) };
    }
}

/// Computes the product of floats if this module handles it; else returns false.
///
/// # Safety
/// The machine has the level. All cells of both sides lie in their memory, aligned for `T`; `to` holds the target's rows.
pub(super) unsafe fn product<T: Real>(
    level: Level,
    block: Block,
    a: &Strided<'_>,
    b: &Strided<'_>,
    to: &mut Target<'_>,
) -> bool {
    if level == Level::Baseline {
        return false;
    }
    let (left, right) = (Matrix::<T>::of(a), Matrix::<T>::of(b));
    let c = to.c.as_mut_ptr().cast();
    let whole = Job { block, a: left, b: right, c, c_row: to.c_row, add: to.add };
    let Block { m, n, k } = block;
    let is_vector = (n == 1 && to.c_row == 1 && right.row == 1) || (m == 1 && left.column == 1);
    let (run, job): (Run<T>, Job<T>) = match with_vector(level, &whole) {
        Some(found) => found,
        None if !is_vector && k <= DEPTH && m * n * k <= SMALL => (pick_small(level), whole),
        None => return false,
    };
    // SAFETY: the caller gives sides and a target of the block's extents; the machine has the level.
    unsafe { run(&job) };
    true
}

/// A matrix with contiguous rows times a contiguous vector: a sum over each row, in [`LANES`] parts.
#[inline(always)]
unsafe fn rows<T: Real>(job: &Job<T>) {
    let Block { m, k, .. } = job.block;
    for i in 0..m {
        // SAFETY: row `i` and the vector have `k` cells, the target `m`.
        let (row, x, to) = unsafe {
            (
                std::slice::from_raw_parts(job.a.at.offset(i as isize * job.a.row), k),
                std::slice::from_raw_parts(job.b.at, k),
                &mut *job.c.add(i),
            )
        };
        let ((row, row_rest), (x, x_rest)) = (row.as_chunks::<LANES>(), x.as_chunks::<LANES>());
        let mut parts = [T::ZERO; LANES];
        for (p, q) in row.iter().zip(x) {
            for ((s, p), q) in parts.iter_mut().zip(p).zip(q) {
                *s = p.mul_add(*q, *s);
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (low, high) = parts.split_at_mut(half);
            for (l, h) in low.iter_mut().zip(high.iter()) {
                *l = l.plus(*h);
            }
            half /= 2;
        }
        let sum = row_rest.iter().zip(x_rest).fold(parts[0], |s, (p, q)| p.mul_add(*q, s));
        *to = if job.add { to.plus(sum) } else { sum };
    }
}

/// A matrix with contiguous columns times a contiguous vector: columns are accumulated four at a time.
#[inline(always)]
unsafe fn columns<T: Real>(job: &Job<T>) {
    let Block { m, k, .. } = job.block;
    // SAFETY: the vector has `k` cells.
    let x = unsafe { std::slice::from_raw_parts(job.b.at, k) };
    let mut from = 0;
    while from < m {
        let len = ROWS_AT_A_TIME.min(m - from);
        // SAFETY: each column has `m` cells, as has the target, which overlaps no side.
        let column = |l: usize| unsafe {
            let at = job.a.at.offset(l as isize * job.a.column).add(from);
            std::slice::from_raw_parts(at, len)
        };
        // SAFETY: as above.
        let to = unsafe { std::slice::from_raw_parts_mut(job.c.add(from), len) };
        if !job.add {
            to.fill(T::ZERO);
        }
        let (fours, rest) = x.as_chunks::<4>();
        for (f, x) in fours.iter().enumerate() {
            let [c0, c1, c2, c3] = std::array::from_fn(|l| column(f * 4 + l));
            for ((((t, c0), c1), c2), c3) in to.iter_mut().zip(c0).zip(c1).zip(c2).zip(c3) {
                let s = c1.mul_add(x[1], c0.mul_add(x[0], *t));
                *t = c3.mul_add(x[3], c2.mul_add(x[2], s));
            }
        }
        for (l, x) in rest.iter().enumerate() {
            let c = column(fours.len() * 4 + l);
            for (t, c) in to.iter_mut().zip(c) {
                *t = c.mul_add(*x, *t);
            }
        }
        from += len;
    }
}

/// A product of at most [`DEEP`] summed cells: panels of the right side's columns times a few rows of the left side.
/// Padding columns are discarded.
#[inline(always)]
unsafe fn small<T: Real>(job: &Job<T>) {
    let n = job.block.n;
    let mut column = 0;
    while column < n {
        // SAFETY: from `column` on there are as many columns of the right side and of the target, or one panel of
        // the width at most.
        unsafe {
            match n - column {
                0..=4 => columns_at::<T, 4>(job, column, n - column),
                5..=8 => columns_at::<T, 8>(job, column, n - column),
                rest => columns_at::<T, COLUMNS>(job, column, rest.min(COLUMNS)),
            }
        }
        column += COLUMNS;
    }
}

/// `width` columns from `column` on, at most `C`.
#[inline(always)]
unsafe fn columns_at<T: Real, const C: usize>(job: &Job<T>, column: usize, width: usize) {
    let at = job.b.at.wrapping_offset(column as isize * job.b.column);
    if width == C && job.b.column == 1 {
        // SAFETY: whole rows of the panel lie in the right side.
        unsafe { panel_product::<T, C>(job, Panel { at, row: job.b.row }, column, width) };
    } else {
        // SAFETY: `width` columns from `column` on are cells of the right side.
        unsafe { copied_panel::<T, C>(job, at, column, width) };
    }
}

/// A few whole rows of cells with a row stride of `row` cells.
#[derive(Clone, Copy)]
struct Panel<T> {
    at: *const T,
    row: isize,
}

/// A panel whose rows are not contiguous in memory, or are shorter: it is copied.
#[inline(always)]
unsafe fn copied_panel<T: Real, const C: usize>(
    job: &Job<T>,
    at: *const T,
    column: usize,
    width: usize,
) {
    // Only the rows that are read are set: a stack may have many small products.
    let mut panel = [MaybeUninit::<[T; C]>::uninit(); DEEP];
    for (l, line) in panel.iter_mut().enumerate().take(job.block.k) {
        let mut cells = [T::ZERO; C];
        for (c, cell) in cells.iter_mut().enumerate().take(width) {
            // SAFETY: a cell of row `l` of the right side.
            *cell = unsafe { *at.offset(l as isize * job.b.row + c as isize * job.b.column) };
        }
        line.write(cells);
    }
    let here = Panel { at: panel.as_ptr().cast(), row: C as isize };
    // SAFETY: the panel has `k` rows that are set.
    unsafe { panel_product::<T, C>(job, here, column, width) }
}

/// All rows of the left side times a panel.
#[inline(always)]
unsafe fn panel_product<T: Real, const C: usize>(
    job: &Job<T>,
    panel: Panel<T>,
    column: usize,
    width: usize,
) {
    let m = job.block.m;
    let mut row = 0;
    while row < m {
        // SAFETY: some rows from `row` on, `width` columns from `column` on.
        unsafe {
            if m - row >= ROWS {
                strip::<T, ROWS, C>(job, panel, row, column, width);
                row += ROWS;
            } else {
                strip::<T, 1, C>(job, panel, row, column, width);
                row += 1;
            }
        }
    }
}

/// `R` rows of a small product.
#[inline(always)]
unsafe fn strip<T: Real, const R: usize, const C: usize>(
    job: &Job<T>,
    panel: Panel<T>,
    row: usize,
    column: usize,
    width: usize,
) {
    let mut sums = [[T::ZERO; C]; R];
    for l in 0..job.block.k {
        // SAFETY: a whole row of the panel.
        let line = unsafe { &*panel.at.offset(l as isize * panel.row).cast::<[T; C]>() };
        for (r, sum) in sums.iter_mut().enumerate() {
            let at = (row + r) as isize * job.a.row + l as isize * job.a.column;
            // SAFETY: a cell of the left side.
            let x = unsafe { *job.a.at.offset(at) };
            for (s, b) in sum.iter_mut().zip(line) {
                *s = x.mul_add(*b, *s);
            }
        }
    }
    for (r, sum) in sums.iter().enumerate() {
        // SAFETY: `width` cells of a row of the target.
        let to = unsafe {
            std::slice::from_raw_parts_mut(job.c.add((row + r) * job.c_row + column), width)
        };
        for (t, s) in to.iter_mut().zip(sum) {
            *t = if job.add { t.plus(*s) } else { *s };
        }
    }
}

leveled!(pick_rows, rows<T: Real>(job: &Job<T>) as unsafe fn(&Job<T>));
leveled!(pick_columns, columns<T: Real>(job: &Job<T>) as unsafe fn(&Job<T>));
leveled!(pick_small, small<T: Real>(job: &Job<T>) as unsafe fn(&Job<T>));
