//! Singular values and eigenvalues, by faer.

use super::{MatrixFault, Problem, Real, Refusal, rows_of, short, take, wanted};
use faer::diag::DiagMut;
use faer::dyn_stack::MemStack;
use faer::linalg::evd::self_adjoint_evd;
use faer::linalg::svd::svd as faer_svd;
use faer::prelude::{Reborrow, ReborrowMut};
use faer::{MatMut, MatRef, Par};
use num_traits::Float;
use std::mem::MaybeUninit;

/// Writes `u`, `s` and `vh` of a square matrix.
pub(super) fn svd<T: Real>(
    p: &mut Problem<'_, T>,
    parts: &[usize],
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let n = p.a.rows;
    if n == 0 {
        return Ok(());
    }
    let vectors = parts.contains(&0) || parts.contains(&2);
    let mut work = std::mem::take(&mut p.work);
    let a = take(&mut work, n * n)?;
    p.a.columns_into(a)?;
    let scale = scaled(a)?;
    let s = take(&mut work, n)?;
    let sides = if vectors { n * n } else { 0 };
    let (u, v) = (take(&mut work, sides)?, take(&mut work, sides)?);
    let columns = if vectors { n } else { 0 };
    let mut u = MatMut::from_column_major_slice_mut(u, n, columns);
    let mut v = MatMut::from_column_major_slice_mut(v, n, columns);
    let both = vectors.then(|| (u.rb_mut(), v.rb_mut())).unzip();
    faer_svd(
        MatRef::from_column_major_slice(a, n, n),
        DiagMut::from_slice_mut(s),
        both.0,
        both.1,
        Par::Seq,
        stack(work),
        Default::default(),
    )
    .map_err(|_| MatrixFault::NoConvergence)?;
    if let Some(out) = wanted(1, parts, outputs) {
        values(out, s, scale)?;
    }
    if !vectors {
        return Ok(());
    }
    let signs = |j: usize| sign_of(v.rb(), j);
    if let Some(out) = wanted(0, parts, outputs) {
        let mut to = rows_of(out, n, n)?;
        for j in 0..n {
            let sign = signs(j);
            for i in 0..n {
                to[(i, j)] = sign * u[(i, j)];
            }
        }
    }
    if let Some(out) = wanted(2, parts, outputs) {
        let mut to = rows_of(out, n, n)?;
        for i in 0..n {
            let sign = signs(i);
            for j in 0..n {
                to[(i, j)] = sign * v[(j, i)];
            }
        }
    }
    Ok(())
}

/// Writes `w` and `v` of a symmetric matrix, of which one triangle is read.
pub(super) fn eigh<T: Real>(
    p: &mut Problem<'_, T>,
    lower: bool,
    parts: &[usize],
    outputs: &mut [&mut [T]],
) -> Result<(), Refusal> {
    let n = p.a.rows;
    if n == 0 {
        return Ok(());
    }
    let vectors = parts.contains(&1);
    let mut work = std::mem::take(&mut p.work);
    let a = take(&mut work, n * n)?;
    let mut given = p.a;
    if !lower {
        given.steps.swap(0, 1);
    }
    given.columns_into(a)?;
    // The triangle that is not read may hold anything.
    for j in 0..n {
        a[j * n..j * n + j].fill(T::zero());
    }
    let scale = scaled(a)?;
    let w = take(&mut work, n)?;
    let v = take(&mut work, if vectors { n * n } else { 0 })?;
    let mut v = MatMut::from_column_major_slice_mut(v, n, if vectors { n } else { 0 });
    self_adjoint_evd(
        MatRef::from_column_major_slice(a, n, n),
        DiagMut::from_slice_mut(w),
        vectors.then(|| v.rb_mut()),
        Par::Seq,
        stack(work),
        Default::default(),
    )
    .map_err(|_| MatrixFault::NoConvergence)?;
    if let Some(out) = wanted(0, parts, outputs) {
        values(out, w, scale)?;
    }
    if let Some(out) = wanted(1, parts, outputs) {
        let mut to = rows_of(out, n, n)?;
        for j in 0..n {
            let sign = sign_of(v.rb(), j);
            for i in 0..n {
                to[(i, j)] = sign * v[(i, j)];
            }
        }
    }
    Ok(())
}

/// Bytes of stack that a singular value decomposition (with vectors) and an eigenvalue decomposition may use.
#[cfg(test)]
pub(super) fn stack_bytes<T: Real>(n: usize) -> (usize, usize) {
    use faer::linalg::{evd, svd};
    let side = svd::ComputeSvdVectors::Thin;
    let s = svd::svd_scratch::<T>(n, n, side, side, Par::Seq, Default::default());
    let e = evd::self_adjoint_evd_scratch::<T>(
        n,
        evd::ComputeEigenvectors::Yes,
        Par::Seq,
        Default::default(),
    );
    (s.unaligned_bytes_required(), e.unaligned_bytes_required())
}

/// The rest of the working memory as faer's stack.
pub(super) fn stack<T: Real>(work: &mut [T]) -> &mut MemStack {
    let bytes = size_of_val(work);
    // SAFETY: the memory is that of `work`, borrowed mutably for the lifetime of the stack, and initialised. No code
    // reads it as `T` afterwards without writing it first, and any bits are a valid `T` (a plain float).
    #[expect(unsafe_code, reason = "faer's stack is memory of no type")]
    let memory = unsafe {
        std::slice::from_raw_parts_mut(work.as_mut_ptr().cast::<MaybeUninit<u8>>(), bytes)
    };
    MemStack::new(memory)
}

/// Scales the matrix by a power of two if squares of its cells would overflow or underflow. Returns two factors that
/// scale values back.
fn scaled<T: Real>(a: &mut [T]) -> Result<(T, T), MatrixFault> {
    if !a.iter().all(|x| Float::is_finite(*x)) {
        return Err(MatrixFault::NotFinite);
    }
    let most = a.iter().fold(T::zero(), |m, x| if Float::abs(*x) > m { Float::abs(*x) } else { m });
    // Half of the exponent, twice: the whole power of two may be out of range for the type.
    let exponent = Float::log2(most).to_i32().unwrap_or(0);
    if most == T::zero() || exponent.abs() < (if size_of::<T>() == 4 { 40 } else { 400 }) {
        return Ok((T::one(), T::one()));
    }
    let two = T::one() + T::one();
    let (first, second) = (exponent / 2, exponent - exponent / 2);
    let (down, again) = (Float::powi(two, -first), Float::powi(two, -second));
    for x in a.iter_mut() {
        *x = *x * down * again;
    }
    Ok((Float::powi(two, first), Float::powi(two, second)))
}

fn values<T: Real>(out: &mut [T], values: &[T], scale: (T, T)) -> Result<(), Refusal> {
    if out.len() != values.len() {
        return Err(short("values", out.len(), values.len()).into());
    }
    for (to, v) in out.iter_mut().zip(values) {
        *to = *v * scale.0 * scale.1;
    }
    Ok(())
}

/// -1 if the cell of the largest magnitude of a column (the first of equals) is negative, else 1.
fn sign_of<T: Real>(v: MatRef<'_, T>, j: usize) -> T {
    let mut most = T::zero();
    for i in 0..v.nrows() {
        if Float::abs(v[(i, j)]) > Float::abs(most) {
            most = v[(i, j)];
        }
    }
    if most < T::zero() { -T::one() } else { T::one() }
}
