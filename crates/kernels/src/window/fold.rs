//! The operations of windows: associative, each with its identity.

use crate::combine::Cell;
use crate::elem::{Elem, fmin, maximum, minimum};
use crate::partial::{Moments, chan};
use std::marker::PhantomData;

/// An associative operation.
pub(super) trait Fold {
    /// Cell type.
    type In: Cell + Default;
    /// State of several cells.
    type State: Copy;
    /// Result type.
    type Out: Cell + Default;
    /// State of no cells.
    fn identity(&self) -> Self::State;
    /// State of one cell.
    fn one(&self, v: Self::In) -> Self::State;
    /// State of two adjacent ranges.
    fn join(&self, a: Self::State, b: Self::State) -> Self::State;
    /// Result of `n` cells; `None` if it overflows its type.
    fn finish(&self, s: Self::State, n: u64) -> Option<Self::Out>;
}

/// A float that is computed with in `f64`.
pub(super) trait Real: Cell + Default {
    fn wide(self) -> f64;
    fn narrow(v: f64) -> Self;
}
macro_rules! reals {
    ($($t:ident)*) => { $(
        impl Real for $t {
            #[inline(always)] fn wide(self) -> f64 { self as f64 }
            #[inline(always)] fn narrow(v: f64) -> Self { v as $t }
        }
    )* };
}
reals! { f32 f64 }

/// Implements [`Fold`]: the types of cells, state and result, then the functions in the trait's order.
macro_rules! fold {
    (
        [$($generics:tt)*] $name:ty => $in:ty, $state:ty, $out:ty;
        $identity:expr, |$v:ident| $one:expr, |$a:ident, $b:ident| $join:expr, |$s:ident, $n:pat_param| $finish:expr
    ) => {
        impl<$($generics)*> Fold for $name {
            type In = $in;
            type State = $state;
            type Out = $out;
            #[inline(always)] fn identity(&self) -> $state { $identity }
            #[inline(always)] fn one(&self, $v: $in) -> $state { $one }
            #[inline(always)] fn join(&self, $a: $state, $b: $state) -> $state { $join }
            #[inline(always)] fn finish(&self, $s: $state, $n: u64) -> Option<$out> { $finish }
        }
    };
}

macro_rules! real_fold {
    ($name:ident, $identity:expr, |$a:ident, $b:ident| $join:expr, |$s:ident, $n:pat_param| $finish:expr) => {
        #[derive(Default)]
        pub(super) struct $name<T>(PhantomData<T>);
        fold! {
            [T: Real] $name<T> => T, f64, T;
            $identity, |v| v.wide(), |$a, $b| $join, |$s, $n| Some(T::narrow($finish))
        }
    };
}
// -0.0 is the identity of the sum: -0.0 + x is x for every x.
real_fold!(FloatSum, -0.0, |a, b| a + b, |s, n| if n == 0 { 0.0 } else { s });
real_fold!(FloatProd, 1.0, |a, b| a * b, |s, _| s);
real_fold!(Average, -0.0, |a, b| a + b, |s, n| quotient(s, n as f64));

/// s / n for an integer n, by the reciprocal, which cells with the same n share: a vector of divisions takes as long as
/// the rest of the window.
///
/// The reciprocal has two parts, and the product with both has a relative error below 2^-100 before the last sum rounds
/// it. No such quotient is that near to the midpoint of two floats: s would have more than 53 bits. So the result is
/// that of the division, unless it is less than 2^-900; there it can be the adjacent float.
#[inline(always)]
fn quotient(s: f64, n: f64) -> f64 {
    let high = 1.0 / n;
    let low = (-n).mul_add(high, 1.0) * high;
    let q = s * high;
    let rest = s.mul_add(low, s.mul_add(high, -q));
    // Nothing is added to a zero, which keeps its sign, nor to an infinity, whose remainder is NaN.
    if rest.abs() > 0.0 { q + rest } else { q }
}

/// Variance: count, mean and sum of squared deviations.
pub(super) struct Spread<T> {
    ddof: u32,
    of: PhantomData<T>,
}
impl<T> Spread<T> {
    pub(super) fn new(ddof: u32) -> Self {
        Spread { ddof, of: PhantomData }
    }
}
impl<T: Real> Fold for Spread<T> {
    type In = T;
    type State = Moments;
    type Out = T;
    #[inline(always)]
    fn identity(&self) -> Self::State {
        (0, 0.0, 0.0, 0.0)
    }
    #[inline(always)]
    fn one(&self, v: T) -> Self::State {
        // Deviations of NaN and of infinities are NaN.
        let v = v.wide();
        (1, v, 0.0, if v.is_finite() { 0.0 } else { f64::NAN })
    }
    #[inline(always)]
    fn join(&self, a: Self::State, b: Self::State) -> Self::State {
        chan(a, b)
    }
    #[inline(always)]
    fn finish(&self, s: Self::State, n: u64) -> Option<T> {
        // NumPy clamps the divisor at 0.
        let divisor = (n as i64 - i64::from(self.ddof)).max(0) as f64;
        Some(T::narrow(s.3 / divisor))
    }
}

/// Exact integer sums.
pub(super) struct IntSum<T, R>(PhantomData<(T, R)>);
impl<T, R> Default for IntSum<T, R> {
    fn default() -> Self {
        IntSum(PhantomData)
    }
}
fold! {
    [T: Cell + Default + Into<i128>, R: Cell + Default + TryFrom<i128>] IntSum<T, R> => T, i128, R;
    // 2^63 cells of 64 bits fit.
    0, |v| v.into(), |a, b| a.wrapping_add(b), |s, _| R::try_from(s).ok()
}

/// Products modulo 2^64, as NumPy's: signed and unsigned have the same bits.
#[derive(Default)]
pub(super) struct IntProd<T>(PhantomData<T>);
fold! {
    [T: Cell + Default + Into<i128>] IntProd<T> => T, u64, u64;
    1, |v| v.into() as u64, |a, b| a.wrapping_mul(b), |s, _| Some(s)
}

macro_rules! extreme {
    ($name:ident, $identity:expr, $join:ident) => {
        #[derive(Default)]
        pub(super) struct $name<T>(PhantomData<T>);
        fold! {
            [T: Cell + Extremes] $name<T> => T, T, T;
            $identity, |v| v, |a, b| $join(a, b), |s, _| Some(s)
        }
    };
}
extreme!(Least, T::top(), minimum);
extreme!(Greatest, T::bottom(), maximum);
// NaN is greater than all numbers: it is the result of a window without numbers.
extreme!(LeastTotal, T::greatest(), fmin);

/// Cells with an order in which NaN, if the type has it, is the greatest.
pub(super) trait Extremes: Elem {
    fn greatest() -> Self;
}
macro_rules! extremes {
    ($($t:ident $greatest:ident)*) => { $(
        impl Extremes for $t {
            #[inline(always)] fn greatest() -> $t { $t::$greatest }
        }
    )* };
}
extremes! { u8 MAX i8 MAX u16 MAX i16 MAX u32 MAX i32 MAX u64 MAX i64 MAX f32 NAN f64 NAN }

/// True if all `bool`s are true.
pub(super) struct Every;
fold! { [] Every => u8, u8, u8; 1, |v| v, |a, b| a & b, |s, _| Some(s) }

/// Only the count.
pub(super) struct Counting;
impl Fold for Counting {
    type In = u8;
    type State = ();
    type Out = i64;
    #[inline(always)]
    fn identity(&self) {}
    #[inline(always)]
    fn one(&self, _: u8) {}
    #[inline(always)]
    fn join(&self, (): (), (): ()) {}
    #[inline(always)]
    fn finish(&self, (): (), n: u64) -> Option<i64> {
        Some(n as i64)
    }
}
