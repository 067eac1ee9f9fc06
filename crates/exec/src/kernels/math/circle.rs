//! Tangent, its inverse, and hyperbolic sine and cosine: branch-free, within 3 ulp.

use super::exp_f64;
use super::poly::{expm1, quarter_turns};
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// What π/2 rounds away.
const FRAC_PI_2_LOW: f64 = 6.123_233_995_736_766e-17;

/// Tangent; anything for |x| beyond [`CIRCULAR_LIMIT`](super::poly::CIRCULAR_LIMIT).
#[inline(always)]
pub(crate) fn tan(x: f64) -> f64 {
    let (s, c, q) = quarter_turns(x);
    let odd = q & 1 == 1;
    let (n, d) = if odd { (-c, s) } else { (s, c) };
    let y = n / d;
    if x == 0.0 { x } else { y }
}

/// Inverse tangent of t in [0, 1], or of a quotient that was reduced to |t| < tan(π/8).
///
/// atan t = t - t z P(z) with z = t²; above tan(π/8) it is π/4 + atan((t - 1) / (t + 1)).
#[inline(always)]
fn arctan_unit(t: f64) -> f64 {
    const C: [f64; 12] = [
        0.3333333333333333,
        -0.19999999999999804,
        0.14285714285659779,
        -0.11111111105150588,
        0.09090908753259112,
        -0.07692296368042296,
        0.0666642476020052,
        -0.05878927554473807,
        0.05230443640686948,
        -0.045515447340221615,
        0.03456931506332609,
        -0.016284375050043393,
    ];
    let far = t > 0.414_213_562_373_095_03;
    let (n, d) = if far { (t - 1.0, t + 1.0) } else { (t, 1.0) };
    let (base, base_low) = if far { (FRAC_PI_4, 0.5 * FRAC_PI_2_LOW) } else { (0.0, 0.0) };
    let r = n / d;
    let z = r * r;
    let z2 = z * z;
    let z4 = z2 * z2;
    let p = |i: usize| C[i + 1].mul_add(z, C[i]);
    let q = |i: usize| p(i + 2).mul_add(z2, p(i));
    let poly = q(8).mul_add(z4, q(4)).mul_add(z4, q(0));
    base + (r + (r * z).mul_add(-poly, base_low))
}

/// Inverse tangent.
#[inline(always)]
pub(crate) fn arctan(x: f64) -> f64 {
    let a = x.abs();
    let far = a > 1.0;
    let y = arctan_unit(if far { 1.0 / a } else { a });
    let y = if far { (FRAC_PI_2 - y) + FRAC_PI_2_LOW } else { y };
    y.copysign(x)
}

/// Angle of the point (x, y), with the signs of C99.
#[inline(always)]
pub(crate) fn arctan2(y: f64, x: f64) -> f64 {
    let (a, b) = (x.abs(), y.abs());
    let steep = b > a;
    let (n, d) = if steep { (a, b) } else { (b, a) };
    let t = n / d;
    // Of two zeros and of two infinities the quotient is not a number.
    let t = if n == 0.0 { 0.0 } else { t };
    let t = if n == f64::INFINITY { 1.0 } else { t };
    let r = arctan_unit(t);
    let r = if steep { (FRAC_PI_2 - r) + FRAC_PI_2_LOW } else { r };
    let r = if x.is_sign_negative() { (PI - r) + 2.0 * FRAC_PI_2_LOW } else { r };
    let r = r.copysign(y);
    if x.is_nan() || y.is_nan() { f64::NAN } else { r }
}

/// Where e^x overflows, its half is the square of e^(x/2) and that half.
#[inline(always)]
fn beyond(a: f64) -> f64 {
    let w = exp_f64(0.5 * a);
    (0.5 * w) * w
}

/// Hyperbolic sine.
#[inline(always)]
pub(crate) fn sinh(x: f64) -> f64 {
    let a = x.abs();
    let t = expm1(a);
    let y = 0.5 * (t + t / (t + 1.0));
    let y = if a > 709.0 { beyond(a) } else { y };
    y.copysign(x)
}

/// Hyperbolic cosine.
#[inline(always)]
pub(crate) fn cosh(x: f64) -> f64 {
    let a = x.abs();
    let t = exp_f64(a);
    let y = 0.5f64.mul_add(t, 0.5 / t);
    if a > 709.0 { beyond(a) } else { y }
}
