//! Operations on tiles: for each operation, type and level the function that runs it.
#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]

mod pick;

use super::elem::{self, CastTo, Elem, Float, Int};
use super::level::{Level, leveled};
use super::math;
use super::random::{Distribution, Normal, Uniform};
use tessera_planner::dtype::Calendar;
use tessera_planner::program::ScalarOp;
use tessera_planner::time::DatePart;

pub(crate) use pick::pick;

/// Cells of a tile.
pub(crate) const N: usize = 64;

/// Upper bound on the tiles per call of an operation.
pub(crate) const TILES: usize = 8;

/// An operation on contiguous tiles: destination, up to three sources, a parameter, and the number of tiles.
///
/// # Safety
/// All pointers are aligned for their types and valid for [`N`] cells per tile; the destination overlaps no source.
pub(crate) type OpFn = unsafe fn(*mut u8, *const u8, *const u8, *const u8, u64, usize);

/// Writes tiles of an index: the first value, the increment, and the number of tiles.
///
/// # Safety
/// The pointer is aligned and valid for [`N`] cells per tile.
pub(crate) type IotaFn = unsafe fn(*mut u8, i64, i64, usize);

/// An operation on tiles: an operation of the program, or one that compilation merges from several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TileOp {
    /// The operation of the program.
    Scalar(ScalarOp),
    /// `a * b + c` with two roundings.
    MulAdd,
    /// `a * b - c` with two roundings.
    MulSub,
    /// `c - a * b` with two roundings.
    NegMulAdd,
    /// `(a - b) / c` with two roundings: the division overlaps with loads.
    SubDiv,
    /// `a * a + b * b` with three roundings.
    SquareSum,
    /// `sqrt(a * a + b * b)` with four roundings.
    Norm,
    /// `exp(-a)`.
    ExpNeg,
    /// A polynomial of `a` by Horner's rule, with two roundings per step. The cells of `b` are this many coefficients,
    /// highest power first.
    Poly(usize),
    /// An operation with this constant as the second argument.
    Right(ScalarOp, u64),
    /// An operation with this constant as the first argument.
    Left(ScalarOp, u64),
    Copy,
    /// `bool` of an integer: true if it is 0.
    IsZero,
    /// `bool` of an integer: true if it is negative.
    IsNegative,
}

/// Returns the cells of some tiles.
///
/// # Safety
/// The contract of [`OpFn`].
#[inline(always)]
unsafe fn cells<'a, A>(from: *const u8, tiles: usize) -> &'a [A] {
    // SAFETY: by the contract of [`OpFn`] the caller passes `N * tiles` aligned cells that are not written during the
    // call.
    unsafe { std::slice::from_raw_parts(from.cast(), N * tiles) }
}

/// Returns the cells of some tiles mutably.
///
/// # Safety
/// The contract of [`OpFn`].
#[inline(always)]
unsafe fn cells_mut<'a, A>(to: *mut u8, tiles: usize) -> &'a mut [A] {
    // SAFETY: by the contract of [`OpFn`] the caller gives `N * tiles` aligned cells without other references.
    unsafe { std::slice::from_raw_parts_mut(to.cast(), N * tiles) }
}

/// A function of one cell.
trait Op1<A, R> {
    fn f(a: A) -> R;
}
/// A function of two cells.
trait Op2<A, R> {
    fn f(a: A, b: A) -> R;
}
/// A function of three cells.
trait Op3<A> {
    fn f(a: A, b: A, c: A) -> A;
}

/// Defines the body of an [`OpFn`] by its parameters, and the function that picks it for a level.
macro_rules! op {
    ($pick:ident, $body:ident<$($g:ident: $bound:path),*>,
     |$d:pat_param, $a:pat_param, $b:pat_param, $c:pat_param, $imm:pat_param, $tiles:pat_param| $do:block) => {
        #[inline(always)]
        unsafe fn $body<$($g: $bound),*>(
            $d: *mut u8, $a: *const u8, $b: *const u8, $c: *const u8, $imm: u64, $tiles: usize,
        ) $do
        leveled!($pick, $body<$($g: $bound),*>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);
    };
}

op!(op1, body1<O: Op1<A, R>, A: Copy, R: Copy>, |d, a, _, _, _, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a) = unsafe { (cells_mut::<R>(d, tiles), cells::<A>(a, tiles)) };
    for (d, a) in d.iter_mut().zip(a) {
        *d = O::f(*a);
    }
});

op!(op2, body2<O: Op2<A, R>, A: Copy, R: Copy>, |d, a, b, _, _, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a, b) =
        unsafe { (cells_mut::<R>(d, tiles), cells::<A>(a, tiles), cells::<A>(b, tiles)) };
    for ((d, a), b) in d.iter_mut().zip(a).zip(b) {
        *d = O::f(*a, *b);
    }
});

op!(op3, body3<O: Op3<A>, A: Copy>, |d, a, b, c, _, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a, b, c) = unsafe {
        (cells_mut::<A>(d, tiles), cells::<A>(a, tiles), cells::<A>(b, tiles), cells::<A>(c, tiles))
    };
    for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) {
        *d = O::f(*a, *b, *c);
    }
});

op!(op_right, body_right<O: Op2<A, R>, A: Elem, R: Copy>, |d, a, _, _, constant, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a) = unsafe { (cells_mut::<R>(d, tiles), cells::<A>(a, tiles)) };
    let b = A::from_word(constant);
    for (d, a) in d.iter_mut().zip(a) {
        *d = O::f(*a, b);
    }
});

op!(op_left, body_left<O: Op2<A, R>, A: Elem, R: Copy>, |d, b, _, _, constant, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, b) = unsafe { (cells_mut::<R>(d, tiles), cells::<A>(b, tiles)) };
    let a = A::from_word(constant);
    for (d, b) in d.iter_mut().zip(b) {
        *d = O::f(a, *b);
    }
});

/// Cells of a polynomial that stay in registers from one coefficient to the next.
const HELD: usize = 16;

op!(op_poly, body_poly<A: Float>, |d, a, b, _, several, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`]; the parameter is the number of coefficients, at most one
    // tile.
    let (d, a, coefficients) = unsafe {
        (cells_mut::<A>(d, tiles), cells::<A>(a, tiles), &cells::<A>(b, 1)[..several as usize])
    };
    let Some((first, rest)) = coefficients.split_first() else { return };
    for (d, x) in d.as_chunks_mut::<HELD>().0.iter_mut().zip(a.as_chunks::<HELD>().0) {
        let mut y = [*first; HELD];
        for c in rest {
            for i in 0..HELD {
                y[i] = y[i].mul(x[i]).add(*c);
            }
        }
        *d = y;
    }
});

/// Cell type of an index.
trait Index: Copy {
    /// Writes the numbers `first + i * step`.
    fn fill(to: &mut [Self], first: i64, step: i64);
}
impl Index for i64 {
    #[inline(always)]
    fn fill(to: &mut [i64], first: i64, step: i64) {
        for (i, to) in to.iter_mut().enumerate() {
            *to = first.wrapping_add(step.wrapping_mul(i as i64));
        }
    }
}
impl Index for f64 {
    #[inline(always)]
    fn fill(to: &mut [f64], first: i64, step: i64) {
        // While all intermediate numbers are exact, floats count as integers do. Few machines convert vectors of
        // integers.
        const EXACT: u64 = 1 << 52;
        let exact = |x: Option<i64>| x.is_some_and(|x| x.unsigned_abs() <= EXACT);
        let last = step.checked_mul(to.len() as i64);
        if exact(Some(first)) && exact(last) && exact(last.map(|x| first.wrapping_add(x))) {
            // Sums of integers: exact in any order.
            let (first, step) = (first as f64, step as f64);
            let mut next = [first; 8];
            for (i, next) in next.iter_mut().enumerate() {
                *next += step * i as u32 as f64;
            }
            for to in to.chunks_exact_mut(8) {
                for (to, next) in to.iter_mut().zip(&mut next) {
                    *to = *next;
                    *next += 8.0 * step;
                }
            }
        } else {
            for (i, to) in to.iter_mut().enumerate() {
                *to = first.wrapping_add(step.wrapping_mul(i as i64)) as f64;
            }
        }
    }
}

#[inline(always)]
unsafe fn body_iota<T: Index>(d: *mut u8, first: i64, step: i64, tiles: usize) {
    // SAFETY: the caller upholds the contract of [`IotaFn`].
    T::fill(unsafe { cells_mut::<T>(d, tiles) }, first, step);
}
leveled!(pick_iota, body_iota<T: Index>(d: *mut u8, first: i64, step: i64, tiles: usize) as IotaFn);

/// Returns the function that writes indices at a level, as integers or as floats (converted by `as`).
pub(crate) fn iota(floats: bool, level: Level) -> IotaFn {
    if floats { pick_iota::<f64>(level) } else { pick_iota::<i64>(level) }
}

// A function with another form for large arguments: such cells are recomputed.
op!(op_fun, body_fun<F: math::Fun, A: Float>, |d, a, _, _, _, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a) = unsafe { (cells_mut::<A>(d, tiles), cells::<A>(a, tiles)) };
    for (d, a) in d.iter_mut().zip(a) {
        *d = a.fun::<F>();
    }
    let (Some(near), Some(limit)) = (A::limit::<F>(), F::LIMIT) else { return };
    if !any_beyond(a, near) {
        return;
    }
    if near < limit {
        for (d, a) in d.iter_mut().zip(a) {
            let by_f64 = a.fun_f64::<F>();
            *d = if a.is_beyond(near) { by_f64 } else { *d };
        }
        if !any_beyond(a, limit) {
            return;
        }
    }
    for (d, a) in d.iter_mut().zip(a) {
        if a.is_beyond(limit) {
            *d = a.far::<F>();
        }
    }
});

#[inline(always)]
fn any_beyond<A: Float>(a: &[A], limit: f64) -> bool {
    let mut any = false;
    for a in a {
        any |= a.is_beyond(limit);
    }
    any
}

// A function that is cheaper for plain arguments, for tiles that have no others.
op!(op_plain, body_plain<F: math::PlainFun2, A: Float>, |d, a, b, _, _, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a, b) =
        unsafe { (cells_mut::<A>(d, tiles), cells::<A>(a, tiles), cells::<A>(b, tiles)) };
    let sources = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
    for (d, (a, b)) in d.as_chunks_mut::<N>().0.iter_mut().zip(sources) {
        let mut plain = true;
        for (a, b) in a.iter().zip(b) {
            plain &= a.is_plain::<F>(*b);
        }
        if plain {
            for ((d, a), b) in d.iter_mut().zip(a).zip(b) {
                *d = a.plain::<F>(*b);
            }
        } else {
            for ((d, a), b) in d.iter_mut().zip(a).zip(b) {
                *d = a.fun2::<F>(*b);
            }
        }
    }
});

/// Cells as their bits.
trait Word: Int + From<bool> {}
impl<T: Int + From<bool>> Word for T {}

op!(op_where, body_where<A: Word>, |d, a, b, c, _, tiles| {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a, b, c) = unsafe {
        (
            cells_mut::<A>(d, tiles),
            cells::<u8>(a, tiles),
            cells::<A>(b, tiles),
            cells::<A>(c, tiles),
        )
    };
    for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) {
        // By bits, so that both branches are loaded: a select of addresses becomes a gather.
        let mask = A::default().sub(A::from(*a != 0));
        *d = b.and(mask).or(c.and(mask.not()));
    }
});

op!(op_random, body_random<R: Distribution>, |d, a, _, _, seed, tiles| {
    for t in 0..tiles {
        // SAFETY: the caller upholds the contract of [`OpFn`].
        let (d, a) = unsafe { (&mut *d.cast::<[f64; N]>().add(t), &*a.cast::<[i64; N]>().add(t)) };
        R::fill(d, a, seed);
    }
});

const CALENDARS: [Calendar; 6] = Calendar::ALL;
const PARTS: [DatePart; 11] = [
    DatePart::Year,
    DatePart::Quarter,
    DatePart::Month,
    DatePart::Week,
    DatePart::Day,
    DatePart::DayOfYear,
    DatePart::DayOfWeek,
    DatePart::Hour,
    DatePart::Minute,
    DatePart::Second,
    DatePart::Season,
];

unsafe fn date_part(d: *mut u8, a: *const u8, _: *const u8, _: *const u8, imm: u64, tiles: usize) {
    // SAFETY: the caller upholds the contract of [`OpFn`].
    let (d, a) = unsafe { (cells_mut::<i64>(d, tiles), cells::<i64>(a, tiles)) };
    let part = PARTS[(imm & 15) as usize % PARTS.len()];
    let calendar = CALENDARS[(imm >> 4) as usize % CALENDARS.len()];
    for (d, a) in d.iter_mut().zip(a) {
        *d = part.of(*a, calendar);
    }
}

/// Defines an operation as a type: `unary!(Neg: Elem => T, |a| a.neg())`.
macro_rules! unary {
    ($($name:ident: $bound:ident => $r:ty, |$a:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: $bound> Op1<T, $r> for $name {
            #[inline(always)]
            fn f($a: T) -> $r { $e }
        }
    )* };
}
macro_rules! binary {
    ($($name:ident: $bound:ident => $r:ty, |$a:ident, $b:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: $bound> Op2<T, $r> for $name {
            #[inline(always)]
            fn f($a: T, $b: T) -> $r { $e }
        }
    )* };
}
macro_rules! ternary {
    ($($name:ident: $bound:ident, |$a:ident, $b:ident, $c:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: $bound> Op3<T> for $name {
            #[inline(always)]
            fn f($a: T, $b: T, $c: T) -> T { $e }
        }
    )* };
}
unary! {
    Neg: Elem => T, |a| a.neg();
    Abs: Elem => T, |a| a.abs();
    Sign: Elem => T, |a| a.sign();
    Sqrt: Float => T, |a| a.sqrt();
    ExpNeg: Float => T, |a| a.neg().exp();
    Floor: Float => T, |a| a.floor();
    Ceil: Float => T, |a| a.ceil();
    Trunc: Float => T, |a| a.trunc();
    Rint: Float => T, |a| a.rint();
    Not: Int => T, |a| a.not();
    IsNan: Elem => u8, |a| u8::from(a.is_nan());
    IsInf: Float => u8, |a| u8::from(a.is_inf());
    IsFinite: Float => u8, |a| u8::from(!a.is_inf() && !a.is_nan());
    SignBit: Elem => u8, |a| u8::from(a.sign_bit());
    IsZero: Elem => u8, |a| u8::from(a == T::default());
    NonZero: Elem => u8, |a| u8::from(a != T::default());
    IsNegative: Int => u8, |a| u8::from(a.negative());
    Same: Copy => T, |a| a;
}
binary! {
    Add: Elem => T, |a, b| a.add(b);
    Sub: Elem => T, |a, b| a.sub(b);
    Mul: Elem => T, |a, b| a.mul(b);
    Div: Float => T, |a, b| a.div(b);
    FloorDiv: Elem => T, |a, b| a.floor_div(b);
    Rem: Elem => T, |a, b| a.rem(b);
    Fmod: Elem => T, |a, b| a.fmod(b);
    TruncDiv: Int => T, |a, b| a.trunc_div(b);
    IntPow: Int => T, |a, b| a.pow(b);
    Minimum: Elem => T, |a, b| elem::minimum(a, b);
    Maximum: Elem => T, |a, b| elem::maximum(a, b);
    Fmin: Elem => T, |a, b| elem::fmin(a, b);
    Fmax: Elem => T, |a, b| elem::fmax(a, b);
    Copysign: Float => T, |a, b| a.copysign(b);
    Nextafter: Float => T, |a, b| a.nextafter(b);
    And: Int => T, |a, b| a.and(b);
    Or: Int => T, |a, b| a.or(b);
    Xor: Int => T, |a, b| a.xor(b);
    Shl: Int => T, |a, b| a.shl(b);
    Shr: Int => T, |a, b| a.shr(b);
    Eq: Elem => u8, |a, b| u8::from(a == b);
    Ne: Elem => u8, |a, b| u8::from(a != b);
    Lt: Elem => u8, |a, b| u8::from(a < b);
    Le: Elem => u8, |a, b| u8::from(a <= b);
    Gt: Elem => u8, |a, b| u8::from(a > b);
    Ge: Elem => u8, |a, b| u8::from(a >= b);
    SquareSum: Float => T, |a, b| a.mul(a).add(b.mul(b));
    Norm: Float => T, |a, b| a.mul(a).add(b.mul(b)).sqrt();
}
ternary! {
    MulAdd: Float, |a, b, c| a.mul(b).add(c);
    MulSub: Float, |a, b, c| a.mul(b).sub(c);
    NegMulAdd: Float, |a, b, c| c.sub(a.mul(b));
    SubDiv: Float, |a, b, c| a.sub(b).div(c);
}
struct Fun2<F>(F);
impl<T: Float, F: math::Fun2> Op2<T, T> for Fun2<F> {
    #[inline(always)]
    fn f(a: T, b: T) -> T {
        a.fun2::<F>(b)
    }
}
/// Logical not of a byte that is 0 or 1.
struct NotBool;
impl Op1<u8, u8> for NotBool {
    #[inline(always)]
    fn f(a: u8) -> u8 {
        a ^ 1
    }
}
struct Cast;
impl<A: CastTo<R>, R> Op1<A, R> for Cast {
    #[inline(always)]
    fn f(a: A) -> R {
        a.cast()
    }
}

#[cfg(test)]
mod tests;
