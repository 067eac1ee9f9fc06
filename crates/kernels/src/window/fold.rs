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
impl Real for f32 {
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn narrow(v: f64) -> Self {
        v as f32
    }
}
impl Real for f64 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
    #[inline(always)]
    fn narrow(v: f64) -> Self {
        v
    }
}

macro_rules! real_fold {
    ($(#[$doc:meta])* $name:ident, $identity:expr, $join:expr, $finish:expr) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name<T>(PhantomData<T>);
        impl<T: Real> Fold for $name<T> {
            type In = T;
            type State = f64;
            type Out = T;
            #[inline(always)]
            fn identity(&self) -> f64 {
                $identity
            }
            #[inline(always)]
            fn one(&self, v: T) -> f64 {
                v.wide()
            }
            #[inline(always)]
            fn join(&self, a: f64, b: f64) -> f64 {
                $join(a, b)
            }
            #[inline(always)]
            fn finish(&self, s: f64, n: u64) -> Option<T> {
                Some(T::narrow($finish(s, n)))
            }
        }
    };
}
// -0.0 is the identity of the sum: -0.0 + x is x for every x.
real_fold!(FloatSum, -0.0, |a: f64, b: f64| a + b, |s: f64, n: u64| if n == 0 { 0.0 } else { s });
real_fold!(FloatProd, 1.0, |a: f64, b: f64| a * b, |s: f64, _| s);
real_fold!(Average, -0.0, |a: f64, b: f64| a + b, |s: f64, n: u64| quotient(s, n as f64));

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
impl<T: Cell + Default + Into<i128>, R: Cell + Default + TryFrom<i128>> Fold for IntSum<T, R> {
    type In = T;
    type State = i128;
    type Out = R;
    #[inline(always)]
    fn identity(&self) -> i128 {
        0
    }
    #[inline(always)]
    fn one(&self, v: T) -> i128 {
        v.into()
    }
    #[inline(always)]
    fn join(&self, a: i128, b: i128) -> i128 {
        // 2^63 cells of 64 bits fit.
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn finish(&self, s: i128, _: u64) -> Option<R> {
        R::try_from(s).ok()
    }
}

/// Products modulo 2^64, as NumPy's: signed and unsigned have the same bits.
#[derive(Default)]
pub(super) struct IntProd<T>(PhantomData<T>);
impl<T: Cell + Default + Into<i128>> Fold for IntProd<T> {
    type In = T;
    type State = u64;
    type Out = u64;
    #[inline(always)]
    fn identity(&self) -> u64 {
        1
    }
    #[inline(always)]
    fn one(&self, v: T) -> u64 {
        v.into() as u64
    }
    #[inline(always)]
    fn join(&self, a: u64, b: u64) -> u64 {
        a.wrapping_mul(b)
    }
    #[inline(always)]
    fn finish(&self, s: u64, _: u64) -> Option<u64> {
        Some(s)
    }
}

macro_rules! extreme {
    ($(#[$doc:meta])* $name:ident, $identity:expr, $join:ident) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name<T>(PhantomData<T>);
        impl<T: Cell + Extremes> Fold for $name<T> {
            type In = T;
            type State = T;
            type Out = T;
            #[inline(always)]
            fn identity(&self) -> T {
                $identity
            }
            #[inline(always)]
            fn one(&self, v: T) -> T {
                v
            }
            #[inline(always)]
            fn join(&self, a: T, b: T) -> T {
                $join(a, b)
            }
            #[inline(always)]
            fn finish(&self, s: T, _: u64) -> Option<T> {
                Some(s)
            }
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
    ($($t:ident)*) => { $( impl Extremes for $t { fn greatest() -> $t { $t::top() } } )* };
}
extremes! { u8 i8 u16 i16 u32 i32 u64 i64 }
impl Extremes for f32 {
    #[inline(always)]
    fn greatest() -> f32 {
        f32::NAN
    }
}
impl Extremes for f64 {
    #[inline(always)]
    fn greatest() -> f64 {
        f64::NAN
    }
}

/// True if all `bool`s are true.
pub(super) struct Every;
impl Fold for Every {
    type In = u8;
    type State = u8;
    type Out = u8;
    #[inline(always)]
    fn identity(&self) -> u8 {
        1
    }
    #[inline(always)]
    fn one(&self, v: u8) -> u8 {
        v
    }
    #[inline(always)]
    fn join(&self, a: u8, b: u8) -> u8 {
        a & b
    }
    #[inline(always)]
    fn finish(&self, s: u8, _: u64) -> Option<u8> {
        Some(s)
    }
}

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
