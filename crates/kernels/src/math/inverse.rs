//! Inverse sine and cosine: branch-free, within 1 ulp.

use std::f64::consts::{FRAC_PI_2, PI};

/// Rounding error of π/2.
const FRAC_PI_2_LOW: f64 = 6.123_233_995_736_766e-17;

/// (asin s - s) / s³ with z = s², for s up to 1/2.
#[inline(always)]
fn series(z: f64) -> f64 {
    const C: [f64; 13] = [
        0.16666666666666669,
        0.07499999999998433,
        0.04464285714635543,
        0.030381944138531247,
        0.02237217294214989,
        0.017352392720869973,
        0.013971212973552933,
        0.011479177415184906,
        0.01032281435018578,
        0.005457506718640358,
        0.01740087944269402,
        -0.014851887071247204,
        0.028757851367421566,
    ];
    let z2 = z * z;
    let z4 = z2 * z2;
    let p = |i: usize| C[i + 1].mul_add(z, C[i]);
    let q = |i: usize| p(i + 2).mul_add(z2, p(i));
    C[12].mul_add(z4, q(8)).mul_add(z4, q(4)).mul_add(z4, q(0))
}

/// Half the arc between 0 and an angle whose cosine is a, for a from 1/2 to 1: asin √((1 - a) / 2), in two parts.
#[inline(always)]
fn half_arc(a: f64) -> (f64, f64) {
    let z = 0.5 * (1.0 - a);
    let s = z.sqrt();
    // Rounding error of the root; NaN for 0.
    let rest = (-s).mul_add(s, z) / (2.0 * s);
    let rest = if s == 0.0 { 0.0 } else { rest };
    (s, (s * z).mul_add(series(z), rest))
}

/// Inverse sine; NaN for |x| > 1.
#[inline(always)]
pub(super) fn arcsin(x: f64) -> f64 {
    let a = x.abs();
    let z = a * a;
    let near = (a * z).mul_add(series(z), a);
    let (s, low) = half_arc(a);
    let w = FRAC_PI_2 - 2.0 * s;
    let far = w + (((FRAC_PI_2 - w) - 2.0 * s) + 2.0f64.mul_add(-low, FRAC_PI_2_LOW));
    (if a > 0.5 { far } else { near }).copysign(x)
}

/// Inverse cosine; NaN for |x| > 1.
#[inline(always)]
pub(super) fn arccos(x: f64) -> f64 {
    let a = x.abs();
    let z = x * x;
    let w = FRAC_PI_2 - x;
    let low = (-x * z).mul_add(series(z), FRAC_PI_2_LOW);
    let near = w + (((FRAC_PI_2 - w) - x) + low);
    let (s, low) = half_arc(a);
    let right = 2.0 * (s + low);
    let w = PI - 2.0 * s;
    let left = w + (((PI - w) - 2.0 * s) + 2.0 * (FRAC_PI_2_LOW - low));
    let far = if x > 0.0 { right } else { left };
    if a > 0.5 { far } else { near }
}
