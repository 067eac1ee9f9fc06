//! Branch-free functions built on the exponential, the logarithm and the kernels of sine and cosine: within 3 ulp.

use super::{LN2_HI, LN2_LO, log_f64, pow2_halves_f64, sin_cos_parts};

const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to a whole number

/// e^x - 1.
#[inline(always)]
pub(crate) fn expm1(x: f64) -> f64 {
    let (y, low) = expm1_parts(x);
    // Preserves the sign of zero, and that of NaN, one of whose parts has the other sign.
    if x == 0.0 || x.is_nan() { x } else { y + low }
}

/// e^x - 1 and its rounding error: e^r - 1 by a polynomial, then 2^k (e^r - 1) + (2^k - 1) with 2^k in two factors.
#[inline(always)]
pub(super) fn expm1_parts(x0: f64) -> (f64, f64) {
    const C: [f64; 11] = [
        0.16666666666666666,
        0.04166666666666667,
        0.008333333333333333,
        0.0013888888888883711,
        0.0001984126984126639,
        2.480158732567746e-5,
        2.755731924004356e-6,
        2.755727347871858e-7,
        2.505207789275738e-8,
        2.09147553258932e-9,
        1.608437344642417e-10,
    ];
    let x = if x0 > 710.0 { 710.0 } else { x0 };
    let x = if x < -50.0 { -50.0 } else { x };
    let t = x.mul_add(std::f64::consts::LOG2_E, MAGIC);
    let k = t - MAGIC;
    let whole = (-k).mul_add(LN2_HI, x);
    let r = (-k).mul_add(LN2_LO, whole);
    let r_low = (-k).mul_add(LN2_LO, whole - r);
    let r2 = r * r;
    let r4 = r2 * r2;
    let p = |i: usize| C[i + 1].mul_add(r, C[i]);
    let low = p(2).mul_add(r2, p(0));
    let mid = p(6).mul_add(r2, p(4));
    let high = C[10].mul_add(r2, p(8));
    let q = high.mul_add(r4, mid).mul_add(r4, low);
    let curve = q.mul_add(r, 0.5);
    let p = r2.mul_add(curve, r);
    let p_low = r2.mul_add(curve, r - p) + r_low;
    let (s1, s2) = pow2_halves_f64(t);
    // 1 / s2 is a power of two: negate its exponent.
    let inverse = f64::from_bits(0x7fe0_0000_0000_0000u64.wrapping_sub(s2.to_bits()));
    let ones = s1 - inverse;
    let ones_low = (s1 - ones) - inverse;
    let y = p.mul_add(s1, ones);
    let low = p.mul_add(s1, ones - y) + p_low.mul_add(s1, ones_low);
    (y * s2, low * s2)
}

/// (t + low) / (t + low + d) for t ≥ 0 and d > 0, and its rounding error.
#[inline(always)]
pub(super) fn over_sum(t: f64, low: f64, d: f64) -> (f64, f64) {
    let sum = t + d;
    // The larger of the two first.
    let (large, small) = if t > d { (t, d) } else { (d, t) };
    let sum_low = ((large - sum) + small) + low;
    let inverse = 1.0 / sum;
    let q = t * inverse;
    let rest = (-q).mul_add(sum, t) + (-q).mul_add(sum_low, low);
    (q, rest * inverse)
}

/// 2^x.
#[inline(always)]
pub(crate) fn exp2(x: f64) -> f64 {
    let x = if x > 1025.0 { 1025.0 } else { x };
    let x = if x < -1080.0 { -1080.0 } else { x };
    let t = x + MAGIC;
    let r = (x - (t - MAGIC)) * std::f64::consts::LN_2;
    let p = super::exp_reduced(r);
    let (s1, s2) = pow2_halves_f64(t);
    (p * s1) * s2
}

/// log(1 + x), corrected for the rounding error of 1 + x.
#[inline(always)]
pub(crate) fn log1p(x: f64) -> f64 {
    let u = 1.0 + x;
    let y = log_f64(u) + (x - (u - 1.0)) / u;
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == -1.0 { f64::NEG_INFINITY } else { y };
    if x == 0.0 { x } else { y }
}

/// Logarithm to base 2; exact for powers of two.
#[inline(always)]
pub(crate) fn log2(x: f64) -> f64 {
    let (k, y) = super::log_reduced(x);
    let y = y.mul_add(std::f64::consts::LOG2_E, k);
    super::log_special(x, y)
}

/// Hyperbolic tangent, from e^2|x| - 1.
#[inline(always)]
pub(crate) fn tanh(x: f64) -> f64 {
    let a = x.abs();
    let a = if a > 22.0 { 22.0 } else { a };
    let (t, low) = expm1_parts(a + a);
    let (q, q_low) = over_sum(t, low, 2.0);
    (q + q_low).copysign(x)
}

/// Largest |x| for which [`sin`] and [`cos`] reduce their argument accurately enough: 2^40.
pub(crate) const CIRCULAR_LIMIT: f64 = 1_099_511_627_776.0;

/// x - k π/2, its rounding error, and k, for |x| up to [`CIRCULAR_LIMIT`].
///
/// π/2 is split into three parts, some 160 bits, and only the last difference is rounded:
///
/// * `high` is a multiple of 2^-53 below 1, as x and k `HIGH` are multiples of that if k is not 0,
/// * k `MID` is `p` plus the rounding error of `p`,
/// * `high - p` is `r` plus the rounding error of `r`: of the two terms either the first is the larger, or it is a
///   multiple of the last place of the second, which lies below 2^-13.
///
/// So `r` may be as near to 0 as a float of that size is to a multiple of π/2, some 2^-60.
#[inline(always)]
pub(super) fn quarter_turns(x: f64) -> (f64, f64, u64) {
    const HIGH: f64 = std::f64::consts::FRAC_PI_2;
    const MID: f64 = 6.123233995736766e-17;
    const LOW: f64 = -1.4973849048591833e-33;
    let t = x.mul_add(std::f64::consts::FRAC_2_PI, MAGIC);
    let k = t - MAGIC;
    let high = (-k).mul_add(HIGH, x);
    let p = k * MID;
    let r = high - p;
    let low = ((high - r) - p) - k.mul_add(LOW, k.mul_add(MID, -p));
    (r, low, t.to_bits())
}

/// Sine; anything for |x| beyond [`CIRCULAR_LIMIT`].
#[inline(always)]
pub(crate) fn sin(x: f64) -> f64 {
    let (r, r_low, q) = quarter_turns(x);
    let ((s, _), (c, _)) = sin_cos_parts(r, r_low);
    let y = if q & 1 == 1 { c } else { s };
    let y = if q & 2 == 2 { -y } else { y };
    if x == 0.0 { x } else { y }
}

/// Cosine; anything for |x| beyond [`CIRCULAR_LIMIT`].
#[inline(always)]
pub(crate) fn cos(x: f64) -> f64 {
    let (r, r_low, q) = quarter_turns(x);
    let ((s, _), (c, _)) = sin_cos_parts(r, r_low);
    let y = if q & 1 == 1 { s } else { c };
    if q.wrapping_add(1) & 2 == 2 { -y } else { y }
}
