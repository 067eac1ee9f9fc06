//! Powers and the logarithm to base 10: branch-free, on logarithms with more digits than a float.

use super::{LN2_HI, LN2_LO, exp_reduced, log_parts, log_special, pow2_halves_f64, split};

const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to a whole number

/// Sum of two numbers, the larger first, and its rounding error.
#[inline(always)]
fn sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    (s, (a - s) + b)
}

/// Product of two numbers, and its rounding error.
#[inline(always)]
fn product(a: f64, b: f64) -> (f64, f64) {
    let p = a * b;
    (p, a.mul_add(b, -p))
}

/// Logarithm of a positive finite number in two parts, with a relative error of some 2^-65.
///
/// x = 2^k (1 + f), s = f / (2 + f), log(1 + f) = 2 s (1 + s²/3 + s⁴/5 + …). s, its square and the term of s² are
/// computed in two parts. The later terms need one part; they are the minimax polynomial for s² up to 0.0295 (2^-66).
#[inline(always)]
fn log_twice(x: f64) -> (f64, f64) {
    const THIRD: (f64, f64) = (0.3333333333333333, 1.850371707708594e-17);
    const C: [f64; 8] = [
        0.2,
        0.142_857_142_857_146_82,
        0.111_111_111_108_279_43,
        0.090_909_091_676_964_01,
        0.076_922_974_812_592_15,
        0.066_674_023_469_236_55,
        0.058_531_181_697_456_03,
        0.058_615_893_119_382_59,
    ];
    let (k, f) = split(x);
    // 2 + f in two parts, and the quotient with the remainder of the division.
    let (u, u_low) = sum(2.0, f);
    let inverse = 1.0 / u;
    let s = f * inverse;
    let s_low = (-s).mul_add(u_low, (-s).mul_add(u, f)) * inverse;
    let (z, z_low) = product(s, s);
    let z_low = (2.0 * s).mul_add(s_low, z_low);
    let z2 = z * z;
    let p = |i: usize| C[i + 1].mul_add(z, C[i]);
    let low = p(2).mul_add(z2, p(0));
    let high = p(6).mul_add(z2, p(4));
    let q = z2 * high.mul_add(z2 * z2, low);
    let (t, t_low) = product(z, THIRD.0);
    let t_low = z.mul_add(THIRD.1, z_low.mul_add(THIRD.0, t_low));
    let (e, e_low) = sum(t, q);
    let e_low = e_low + t_low;
    let (m, m_low) = product(s, e);
    let m_low = s.mul_add(e_low, s_low.mul_add(e, m_low));
    let (l, l_low) = sum(s, m);
    let l_low = l_low + (m_low + s_low);
    let (h, h_low) = sum(k * LN2_HI, 2.0 * l);
    (h, h_low + k.mul_add(LN2_LO, 2.0 * l_low))
}

/// a to the power y within 1 ulp, for positive finite a and finite y.
#[inline(always)]
pub(crate) fn pow_plain(a: f64, y: f64) -> f64 {
    let (h, l) = log_twice(a);
    let (p, p_low) = product(y, h);
    let p_low = y.mul_add(l, p_low);
    // A NaN fails the comparisons and so passes through.
    let c = if p > 710.0 { 710.0 } else { p };
    let c = if c < -750.0 { -750.0 } else { c };
    let p_low = if c == p { p_low } else { 0.0 };
    let t = c.mul_add(std::f64::consts::LOG2_E, MAGIC);
    let k = t - MAGIC;
    let r = (-k).mul_add(LN2_HI, c);
    let r = (-k).mul_add(LN2_LO, r) + p_low;
    let (s1, s2) = pow2_halves_f64(t);
    (exp_reduced(r) * s1) * s2
}

/// x to the power y within 1 ulp, with the special values of C99.
#[inline(always)]
pub(crate) fn pow(x: f64, y: f64) -> f64 {
    const WHOLE: f64 = 4_503_599_627_370_496.0; // 2^52: from here on all floats are whole numbers
    let a = x.abs();
    let m = pow_plain(a, y);
    // The logarithm above is not valid for 0, infinity and NaN.
    let grows = y > 0.0;
    let m = if a == 0.0 { if grows { 0.0 } else { f64::INFINITY } } else { m };
    let m = if a == f64::INFINITY { if grows { f64::INFINITY } else { 0.0 } } else { m };
    let m = if a == 1.0 { 1.0 } else { m };
    // The sign: for integer y its parity decides; for other y a negative base has no power.
    let b = y.abs();
    let rounded = b + WHOLE;
    let whole = b >= WHOLE || rounded - WHOLE == b;
    let digit = if b < WHOLE { rounded.to_bits() } else { b.to_bits() };
    let odd = whole && b < 2.0 * WHOLE && digit & 1 == 1;
    let m = if odd && x.is_sign_negative() { -m } else { m };
    let m = if x < 0.0 && a != f64::INFINITY && !whole { f64::NAN } else { m };
    let m = if x.is_nan() || y.is_nan() { f64::NAN } else { m };
    if y == 0.0 || x == 1.0 { 1.0 } else { m }
}

/// Logarithm to base 10 within 1 ulp; exact for powers of ten.
///
/// # Source
/// The split of FreeBSD's `e_log10.c`: the factor and the first terms in two parts each.
#[inline(always)]
pub(crate) fn log10(x: f64) -> f64 {
    const FACTOR: (f64, f64) = (4.342_944_818_781_689e-1, 2.508_294_671_164_527_5e-11);
    const LOG10_2: (f64, f64) = (3.010_299_956_636_117_7e-1, 3.694_239_077_158_931e-13);
    let (k, f, y) = log_parts(x);
    let (s, s_low) = sum(f, y);
    // The upper half of the digits; its product with the upper part of the factor is exact.
    let high = f64::from_bits(s.to_bits() & 0xffff_ffff_0000_0000);
    let low = (s - high) + s_low;
    let product = high * FACTOR.0;
    let rest = low.mul_add(FACTOR.0, s.mul_add(FACTOR.1, k * LOG10_2.1));
    let (w, w_low) = sum(k * LOG10_2.0, product);
    // If k is 0 the product is the larger term.
    log_special(x, w + (w_low + rest))
}
