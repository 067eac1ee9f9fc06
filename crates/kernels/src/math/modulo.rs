//! Exact remainders of floats.
//!
//! The quotient x / y, rounded and then truncated to an integer q, is correct or one too large, as rounding never
//! crosses an integer. So x - q y is a multiple of the last place of y or of x and no larger than y: one fused
//! operation computes it exactly, as does adding y once if it is negative. Quotients with more digits than the float
//! type use the digit-by-digit method of the C library.

use super::{Fun2, PlainFun2};
use crate::elem::Elem;

/// The remainder with the sign of the dividend (C's and NumPy's `fmod`), that with the sign of the divisor (Python's
/// and NumPy's `%`), and the matching `//` of Python.
macro_rules! remainders {
    ($($name:ident $elem:ident $plain:ident;)*) => { $(
        pub(crate) struct $name;
        impl Fun2 for $name {
            #[inline(always)] fn f32(x: f32, y: f32) -> f32 { Elem::$elem(x, y) }
            #[inline(always)] fn f64(x: f64, y: f64) -> f64 { Elem::$elem(x, y) }
        }
        impl PlainFun2 for $name {
            #[inline(always)] fn is_plain_f32(x: f32, y: f32) -> bool { single::is_plain(x, y) }
            #[inline(always)] fn is_plain_f64(x: f64, y: f64) -> bool { double::is_plain(x, y) }
            #[inline(always)] fn plain_f32(x: f32, y: f32) -> f32 { single::$plain(x, y) }
            #[inline(always)] fn plain_f64(x: f64, y: f64) -> f64 { double::$plain(x, y) }
        }
    )* };
}
remainders! {
    Fmod fmod fmod;
    Rem rem rem;
    FloorDivide floor_div floor_divide;
}

macro_rules! widths {
    ($($module:ident $t:ident;)*) => { $(
        pub(crate) mod $module {
            /// True if the quotient is finite and loses no digit when truncated. Then `y` is neither 0 nor infinite.
            #[inline(always)]
            pub(super) fn is_plain(x: $t, y: $t) -> bool {
                // Not short-circuited: a branch per cell would not vectorise. Comparisons with NaN are false.
                ((x / y).abs() < (1u64 << ($t::MANTISSA_DIGITS - 1)) as $t) & (y.abs() < $t::INFINITY)
            }
            #[inline(always)]
            pub(super) fn fmod(x: $t, y: $t) -> $t {
                let (a, b) = (x.abs(), y.abs());
                let r = (-(a / b).trunc()).mul_add(b, a);
                let r = if r < 0.0 { r + b } else { r };
                r.copysign(x)
            }
            #[inline(always)]
            pub(super) fn rem(x: $t, y: $t) -> $t {
                floored(fmod(x, y), y)
            }
            #[inline(always)]
            pub(super) fn floor_divide(x: $t, y: $t) -> $t {
                quotient(x, y, fmod(x, y))
            }
            /// The remainder with the sign of the divisor, from the one with the sign of the dividend.
            #[inline(always)]
            pub(crate) fn floored(m: $t, y: $t) -> $t {
                let moved = if (y < 0.0) != (m < 0.0) { m + y } else { m };
                if m == 0.0 { (0.0 as $t).copysign(y) } else { moved }
            }
            /// The quotient rounded down, as in CPython and NumPy: exact because it uses the remainder `m`, which has
            /// the sign of the dividend.
            #[inline(always)]
            pub(crate) fn quotient(x: $t, y: $t, m: $t) -> $t {
                let q = (x - m) / y;
                let q = if (m != 0.0) & ((y < 0.0) != (m < 0.0)) { q - 1.0 } else { q };
                let f = q.floor();
                let f = if q - f > 0.5 { f + 1.0 } else { f };
                if q == 0.0 { (0.0 as $t).copysign(x / y) } else { f }
            }
        }
    )* };
}
widths! {
    single f32;
    double f64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise;

    fn check<F: PlainFun2>(x: f64, y: f64) -> bool {
        let plain = F::is_plain_f64(x, y);
        if plain {
            let (got, want) = (F::plain_f64(x, y), F::f64(x, y));
            assert_eq!(got.to_bits(), want.to_bits(), "{x:e} {y:e}: {got:e}, {want:e}");
        }
        let (x, y) = (x as f32, y as f32);
        if F::is_plain_f32(x, y) {
            let (got, want) = (F::plain_f32(x, y), F::f32(x, y));
            assert_eq!(got.to_bits(), want.to_bits(), "{x:e} {y:e}: {got:e}, {want:e}");
        }
        plain
    }

    #[test]
    fn plain_remainders_are_those_of_the_c_library() {
        let mut next = noise(0x9e37_79b9_7f4a_7c15);
        let mut plain = 0;
        let mut both = |x: f64, y: f64| {
            for (x, y) in [(x, y), (-x, y), (x, -y), (-x, -y)] {
                check::<Rem>(x, y);
                check::<FloorDivide>(x, y);
                plain += u32::from(check::<Fmod>(x, y));
            }
        };
        for _ in 0..200_000 {
            // Any magnitude, and quotients near an integer.
            let (x, y) = (f64::from_bits(next()), f64::from_bits(next()));
            both(x, y);
            let (a, b) = ((next() >> 40) as f64, (next() >> 50) as f64 + 1.0);
            both(a * 0.1, b * 0.3);
            let y = f64::from_bits((next() >> 12) | 0x3ff0_0000_0000_0000);
            let x = (y * (next() >> 20) as f64).next_up();
            both(x, y);
            both(x.next_down().next_down(), y);
            // Among the smallest numbers.
            both(f64::from_bits(next() >> 20), f64::from_bits(next() >> 30));
        }
        for x in [0.0, 1.0, 7.5, f64::INFINITY, f64::NAN, f64::MAX, 5e-324] {
            for y in [0.0, 0.1, 2.5, f64::INFINITY, f64::NAN, f64::MAX, 5e-324] {
                both(x, y);
            }
        }
        assert!(plain > 2_000_000, "{plain}");
    }
}
