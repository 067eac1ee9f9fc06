//! Tangent, its inverse, and hyperbolic sine and cosine: branch-free, within 1 ulp.

use super::poly::{expm1_parts, over_sum, quarter_turns};
use super::{exp_f64, sin_cos_parts};
use std::f64::consts::FRAC_PI_4;

/// Rounding error of π/2.
const FRAC_PI_2_LOW: f64 = 6.123_233_995_736_766e-17;

/// Tangent; anything for |x| beyond [`CIRCULAR_LIMIT`](super::poly::CIRCULAR_LIMIT).
#[inline(always)]
pub(crate) fn tan(x: f64) -> f64 {
    let (r, r_low, q) = quarter_turns(x);
    let ((s, s_low), (c, c_low)) = sin_cos_parts(r, r_low);
    let odd = q & 1 == 1;
    let (n, n_low) = if odd { (-c, -c_low) } else { (s, s_low) };
    let (d, d_low) = if odd { (s, s_low) } else { (c, c_low) };
    let inverse = 1.0 / d;
    let y = n * inverse;
    let y = ((-y).mul_add(d, n) + (-y).mul_add(d_low, n_low)).mul_add(inverse, y);
    if x == 0.0 { x } else { y }
}

/// Inverse tangent of t + t_low for t in [0, 1]: eighths of a turn, the distance from them, and its rounding error.
///
/// atan t = t - t z P(z) with z = t²; above tan(π/8) it is π/4 + atan((t - 1) / (t + 1)).
#[inline(always)]
fn arctan_unit(t: f64, t_low: f64) -> (f64, f64, f64) {
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
    // Rounding errors of the sum and the difference, and t_low.
    let n_low = if far { t - (n + 1.0) } else { 0.0 } + t_low;
    let d_low = if far { (t - (d - 1.0)) + t_low } else { 0.0 };
    let inverse = 1.0 / d;
    let r = n * inverse;
    let r_low = ((-r).mul_add(d, n) + (-r).mul_add(d_low, n_low)) * inverse;
    let z = r * r;
    let z2 = z * z;
    let z4 = z2 * z2;
    let p = |i: usize| C[i + 1].mul_add(z, C[i]);
    let q = |i: usize| p(i + 2).mul_add(z2, p(i));
    let poly = q(8).mul_add(z4, q(4)).mul_add(z4, q(0));
    // The derivative 1 / (1 + z) is approximately 1 - z.
    let low = (-z).mul_add(r_low, r_low);
    (f64::from(u8::from(far)), r, (r * z).mul_add(-poly, low))
}

/// `eighths` π/4 + sign (r + low), rounded once except for negligible terms.
#[inline(always)]
fn angle(eighths: f64, sign: f64, r: f64, low: f64) -> f64 {
    let base = eighths * FRAC_PI_4;
    let base_low = eighths.mul_add(FRAC_PI_4, -base) + eighths * (0.5 * FRAC_PI_2_LOW);
    base + sign.mul_add(r, sign.mul_add(low, base_low))
}

/// Inverse tangent.
#[inline(always)]
pub(crate) fn arctan(x: f64) -> f64 {
    let a = x.abs();
    let far = a > 1.0;
    let inverse = 1.0 / a;
    let rest = (-inverse).mul_add(a, 1.0) * inverse;
    // NaN for an infinity.
    let rest = if far && rest.abs() < 1e-16 { rest } else { 0.0 };
    let (eighths, r, low) = arctan_unit(if far { inverse } else { a }, rest);
    let (eighths, sign) = if far { (2.0 - eighths, -1.0) } else { (eighths, 1.0) };
    angle(eighths, sign, r, low).copysign(x)
}

/// Angle of the point (x, y), with the signs of C99.
#[inline(always)]
pub(crate) fn arctan2(y: f64, x: f64) -> f64 {
    let (a, b) = (x.abs(), y.abs());
    let steep = b > a;
    let (n, d) = if steep { (a, b) } else { (b, a) };
    let t = n / d;
    // NaN for two zeros and for two infinities, in the quotient and in its rounding error.
    let rest = (-t).mul_add(d, n) / d;
    let rest = if rest.abs() < 1e-16 { rest } else { 0.0 };
    let t = if n == 0.0 { 0.0 } else { t };
    let t = if n == f64::INFINITY { 1.0 } else { t };
    let (eighths, r, low) = arctan_unit(t, rest);
    let (eighths, sign) = if steep { (2.0 - eighths, -1.0) } else { (eighths, 1.0) };
    let back = x.is_sign_negative();
    let (eighths, sign) = if back { (4.0 - eighths, -sign) } else { (eighths, sign) };
    let r = angle(eighths, sign, r, low).copysign(y);
    if x.is_nan() || y.is_nan() { f64::NAN } else { r }
}

/// If e^x overflows, e^x / 2 is computed as e^(x/2) times e^(x/2) / 2.
#[inline(always)]
fn beyond(a: f64) -> f64 {
    let w = exp_f64(0.5 * a);
    (0.5 * w) * w
}

/// Hyperbolic sine.
#[inline(always)]
pub(crate) fn sinh(x: f64) -> f64 {
    let a = x.abs();
    let (t, low) = expm1_parts(a);
    let (q, q_low) = over_sum(t, low, 1.0);
    let s = t + q;
    let y = 0.5 * (s + (((t - s) + q) + (low + q_low)));
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
