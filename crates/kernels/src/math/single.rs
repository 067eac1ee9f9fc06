//! Functions of `float32` in `float32` arithmetic: branch-free, as accurate as NumPy's or within 4 ulp.

use super::{LN2_HI_F32, LN2_LO_F32, exp_f32, log_f32, log_parts_f32, log_special_f32, split};
use std::f32::consts::{FRAC_PI_2, LN_2, LOG2_E, LOG10_E};

const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number
/// Rounding error of π/2.
const FRAC_PI_2_LOW: f32 = -4.371_139e-8;

/// 2^(k/2) and 2^(k - k/2) for the k in the low bits of `t` (a whole number plus [`MAGIC`]), |k| < 254.
#[inline(always)]
fn pow2_halves(t: f32) -> (f32, f32) {
    let k = t.to_bits().wrapping_add(256) & 0x1ff; // k + 256
    let h = k >> 1; // k / 2 + 128
    let s1 = f32::from_bits(h.wrapping_sub(1) << 23);
    let s2 = f32::from_bits(k.wrapping_sub(h).wrapping_sub(1) << 23);
    (s1, s2)
}

/// Largest |x| for which [`sin`] and [`cos`] reduce their argument accurately enough.
pub(super) const CIRCULAR_LIMIT: f64 = 65_536.0;

/// x - k π/2, its rounding error, and k, for |x| up to [`CIRCULAR_LIMIT`].
///
/// The first difference is exact: both are multiples of 2^-24, and it is less than 1.
#[inline(always)]
fn quarter_turns(x: f32) -> (f32, f32, u32) {
    const LOW: f32 = -1.715_124_5e-15;
    let t = x.mul_add(std::f32::consts::FRAC_2_PI, MAGIC);
    let k = t - MAGIC;
    let high = (-k).mul_add(FRAC_PI_2, x);
    let p = -k * FRAC_PI_2_LOW;
    let r = high + p;
    // Rounding error of the sum, whichever part is the larger, and that of the product.
    let back = r - high;
    let rest = (high - (r - back)) + (p - back);
    let low = rest + (-k).mul_add(LOW, (-k).mul_add(FRAC_PI_2_LOW, -p));
    (r, low, t.to_bits())
}

/// Sine and cosine of r + r_low, |r| <= π/4.
#[inline(always)]
fn sin_cos_kernel(r: f32, r_low: f32) -> (f32, f32) {
    const S: [f32; 3] = [-0.166_666_55, 0.008_332_172, -0.000_195_164_8];
    const C: [f32; 3] = [0.041_666_646, -0.001_388_736, 2.443_753_3e-5];
    let z = r * r;
    let s = S[2].mul_add(z, S[1]).mul_add(z, S[0]);
    let c = C[2].mul_add(z, C[1]).mul_add(z, C[0]);
    // 1 - z/2 loses its low bits; they are added back separately.
    let h = 0.5 * z;
    let w = 1.0 - h;
    let sine = r + (r * z).mul_add(s, r_low * w);
    let cosine = w + (z * z).mul_add(c, (-r).mul_add(r_low, (1.0 - w) - h));
    (sine, cosine)
}

/// Negates `y` if the second bit of a count of quarter turns is set.
#[inline(always)]
fn signed(y: f32, quarters: u32) -> f32 {
    f32::from_bits(y.to_bits() ^ ((quarters & 2) << 30))
}

/// Sine; anything for |x| beyond [`CIRCULAR_LIMIT`].
#[inline(always)]
pub(super) fn sin(x: f32) -> f32 {
    let (r, low, q) = quarter_turns(x);
    let (s, c) = sin_cos_kernel(r, low);
    let y = signed(if q & 1 == 1 { c } else { s }, q);
    if x == 0.0 { x } else { y }
}

/// Cosine; anything for |x| beyond [`CIRCULAR_LIMIT`].
#[inline(always)]
pub(super) fn cos(x: f32) -> f32 {
    let (r, low, q) = quarter_turns(x);
    let (s, c) = sin_cos_kernel(r, low);
    signed(if q & 1 == 1 { s } else { c }, q.wrapping_add(1))
}

/// Tangent; anything for |x| beyond [`CIRCULAR_LIMIT`].
#[inline(always)]
pub(super) fn tan(x: f32) -> f32 {
    let (r, low, q) = quarter_turns(x);
    let (s, c) = sin_cos_kernel(r, low);
    let odd = q & 1 == 1;
    let y = if odd { -c } else { s } / if odd { s } else { c };
    if x == 0.0 { x } else { y }
}

/// Inverse tangent of t + t_low for t in [0, 1], as t and the difference from t.
#[inline(always)]
fn arctan_unit(t: f32, t_low: f32) -> (f32, f32) {
    const C: [f32; 9] = [
        -0.333_333_02,
        0.199_986_28,
        -0.142_651_2,
        0.109_568_61,
        -0.084_171_98,
        0.058_192_927,
        -0.031_411_346,
        0.011_039_091,
        -0.001_821_204_4,
    ];
    let z = t * t;
    let mut poly = C[8];
    for c in C[..8].iter().rev() {
        poly = poly.mul_add(z, *c);
    }
    // The derivative is approximately 1 - z/2, accurate enough for the rounding error of the division.
    (t, (t * z).mul_add(poly, (-0.5 * z).mul_add(t_low, t_low)))
}

/// `quarters` π/2 plus (t + u), or minus if `less`.
#[inline(always)]
fn angle(quarters: f32, less: bool, (t, u): (f32, f32)) -> f32 {
    let (base, base_low) = (quarters * FRAC_PI_2, quarters * FRAC_PI_2_LOW);
    let (t, u) = if less { (-t, -u) } else { (t, u) };
    let sum = base + t;
    sum + (((base - sum) + t) + (u + base_low))
}

/// Inverse tangent; for |x| above 1 it is π/2 minus that of 1/|x|.
#[inline(always)]
pub(super) fn arctan(x: f32) -> f32 {
    let a = x.abs();
    let far = a > 1.0;
    let inverse = 1.0 / a;
    let rest = (-inverse).mul_add(a, 1.0) * inverse;
    // NaN for an infinity.
    let rest = if far && rest.abs() < 1e-6 { rest } else { 0.0 };
    let near = arctan_unit(if far { inverse } else { a }, rest);
    angle(if far { 1.0 } else { 0.0 }, far, near).copysign(x)
}

/// Angle of the point (x, y), with the signs of C99.
#[inline(always)]
pub(super) fn arctan2(y: f32, x: f32) -> f32 {
    let (a, b) = (x.abs(), y.abs());
    let steep = b > a;
    let (n, d) = if steep { (a, b) } else { (b, a) };
    let t = n / d;
    // NaN for two zeros and for two infinities, in the quotient and in its rounding error.
    let rest = (-t).mul_add(d, n) / d;
    let rest = if rest.abs() < 1e-6 { rest } else { 0.0 };
    let diagonal = n == f32::INFINITY;
    let t = if n == 0.0 || diagonal { 0.0 } else { t };
    let quarters = if steep { 1.0 } else { 0.0 };
    let quarters = if diagonal { 0.5 } else { quarters };
    let back = x.is_sign_negative();
    let quarters = if back { 2.0 - quarters } else { quarters };
    let r = angle(quarters, steep != back, arctan_unit(t, rest)).copysign(y);
    if x.is_nan() || y.is_nan() { f32::NAN } else { r }
}

/// log(1 + f) times a factor in two parts, in two parts.
#[inline(always)]
fn scaled_log(f: f32, poly: f32, factor: (f32, f32)) -> (f32, f32) {
    let y = (f * (f * f)).mul_add(poly, -0.5 * f * f);
    let s = f + y;
    let s_low = (f - s) + y;
    let t = s * factor.0;
    (t, s.mul_add(factor.0, -t) + s.mul_add(factor.1, s_low * factor.0))
}

/// Logarithm to base 2; exact for powers of two.
#[inline(always)]
pub(super) fn log2(x: f32) -> f32 {
    const FACTOR: (f32, f32) = (LOG2_E, 1.925_963e-8);
    let (k, f, poly) = log_parts_f32(x);
    let (t, t_low) = scaled_log(f, poly, FACTOR);
    let w = k + t;
    log_special_f32(x, w + (((k - w) + t) + t_low))
}

/// Logarithm to base 10.
#[inline(always)]
pub(super) fn log10(x: f32) -> f32 {
    const FACTOR: (f32, f32) = (LOG10_E, -1.010_305e-8);
    /// The upper part has 12 bits: its product with k is exact.
    const LOG10_2: (f32, f32) = (0.301_025_4, 4.605_039e-6);
    let (k, f, poly) = log_parts_f32(x);
    let (t, t_low) = scaled_log(f, poly, FACTOR);
    let whole = k * LOG10_2.0;
    let w = whole + t;
    let low = k.mul_add(LOG10_2.1, t_low);
    log_special_f32(x, w + (((whole - w) + t) + low))
}

/// log(1 + x), corrected for the rounding error of 1 + x.
#[inline(always)]
pub(super) fn log1p(x: f32) -> f32 {
    let u = 1.0 + x;
    let y = log_f32(u) + (x - (u - 1.0)) / u;
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    if x == 0.0 { x } else { y }
}

/// e^r - 1 for |r| <= ln 2 / 2.
#[inline(always)]
fn expm1_reduced(r: f32) -> f32 {
    const C: [f32; 6] =
        [0.5, 0.166_666_67, 0.041_666_355, 0.008_333_273, 0.001_394_110_3, 0.000_199_143_02];
    let r2 = r * r;
    let p = |i: usize| C[i + 1].mul_add(r, C[i]);
    let q = p(4).mul_add(r2, p(2)).mul_add(r2, p(0));
    r2.mul_add(q, r)
}

/// e^x - 1 for x up to 88, if the sign of zero does not matter.
#[inline(always)]
fn expm1_near(x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -20.0 { -20.0 } else { x };
    let t = x.mul_add(LOG2_E, MAGIC);
    let k = t - MAGIC;
    let r = (-k).mul_add(LN2_LO_F32, (-k).mul_add(LN2_HI_F32, x));
    let (s1, s2) = pow2_halves(t);
    // 1 / s2 is a power of two: negate its exponent.
    let inverse = f32::from_bits(0x7f00_0000u32.wrapping_sub(s2.to_bits()));
    expm1_reduced(r).mul_add(s1, s1 - inverse) * s2
}

/// e^x - 1.
#[inline(always)]
pub(super) fn expm1(x: f32) -> f32 {
    let y = expm1_near(x);
    if x == 0.0 || x.is_nan() { x } else { y }
}

/// 2^x.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    const C: [f32; 5] =
        [0.240_226_5, 0.055_503_614, 0.009_618_022_5, 0.001_339_055_1, 0.000_154_719_73];
    let x = if x > 129.0 { 129.0 } else { x };
    let x = if x < -151.0 { -151.0 } else { x };
    let t = x + MAGIC;
    let r = x - (t - MAGIC);
    let r2 = r * r;
    let p = |i: usize| C[i + 1].mul_add(r, C[i]);
    let q = C[4].mul_add(r2, p(2)).mul_add(r2, p(0));
    let y = 1.0 + r.mul_add(LN_2, r2 * q);
    let (s1, s2) = pow2_halves(t);
    (y * s1) * s2
}

/// Hyperbolic tangent, from e^2|x| - 1.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 10.0 { 10.0 } else { a };
    let t = expm1_near(a + a);
    (t / (t + 2.0)).copysign(x)
}

/// If e^x overflows, e^x / 2 is computed as e^(x/2) times e^(x/2) / 2.
#[inline(always)]
fn beyond(a: f32) -> f32 {
    let w = exp_f32(0.5 * a);
    (0.5 * w) * w
}

/// Hyperbolic sine.
#[inline(always)]
pub(super) fn sinh(x: f32) -> f32 {
    let a = x.abs();
    let t = expm1_near(a);
    let y = 0.5 * (t + t / (t + 1.0));
    let y = if a > 88.0 { beyond(a) } else { y };
    y.copysign(x)
}

/// Hyperbolic cosine.
#[inline(always)]
pub(super) fn cosh(x: f32) -> f32 {
    let a = x.abs();
    let t = exp_f32(a);
    let y = 0.5f32.mul_add(t, 0.5 / t);
    if a > 88.0 { beyond(a) } else { y }
}

/// a to the power y within 1 ulp, for positive finite a and finite y.
///
/// The logarithm and the exponential are computed in `float64`, to the accuracy that `float32` needs.
#[inline(always)]
pub(super) fn pow_plain(a: f32, y: f32) -> f32 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    const LOG: [f64; 12] = [
        -0.500_000_000_145_686_1,
        0.333_333_340_914_475_75,
        -0.249_999_963_932_157_37,
        0.199_998_933_005_135_12,
        -0.166_668_325_783_616_73,
        0.142_906_898_289_661_35,
        -0.124_997_876_094_162_48,
        0.110_094_901_765_121,
        -0.099_008_360_581_132_66,
        0.099_943_773_744_311_58,
        -0.099_808_293_577_481_87,
        0.055_112_143_673_515_31,
    ];
    const EXP: [f64; 6] = [
        0.500_000_007_832_570_1,
        0.166_666_668_617_499_26,
        0.041_666_268_507_949_08,
        0.008_333_264_105_827_654,
        0.001_394_617_665_264_517_2,
        0.000_199_185_244_883_712_3,
    ];
    let (k, f) = split(f64::from(a));
    let f2 = f * f;
    let f4 = f2 * f2;
    let p = |i: usize| LOG[i + 1].mul_add(f, LOG[i]);
    let q = |i: usize| p(i + 2).mul_add(f2, p(i));
    let log = q(8).mul_add(f4, q(4)).mul_add(f4, q(0)).mul_add(f2, f);
    let c = k.mul_add(std::f64::consts::LN_2, log) * f64::from(y);
    // A NaN fails the comparisons and so passes through.
    let c = if c > 100.0 { 100.0 } else { c };
    let c = if c < -150.0 { -150.0 } else { c };
    let t = c.mul_add(std::f64::consts::LOG2_E, MAGIC);
    let r = (MAGIC - t).mul_add(std::f64::consts::LN_2, c);
    let r2 = r * r;
    let p = |i: usize| EXP[i + 1].mul_add(r, EXP[i]);
    let e = p(4).mul_add(r2, p(2)).mul_add(r2, p(0)).mul_add(r2, r);
    let scale = f64::from_bits(t.to_bits().wrapping_add(1023) << 52);
    e.mul_add(scale, scale) as f32
}

/// x to the power y within 1 ulp, with the special values of C99.
#[inline(always)]
pub(super) fn pow(x: f32, y: f32) -> f32 {
    let a = x.abs();
    let m = pow_plain(a, y);
    // The logarithm above is not valid for 0, infinity and NaN.
    let grows = y > 0.0;
    let m = if a == 0.0 { if grows { 0.0 } else { f32::INFINITY } } else { m };
    let m = if a == f32::INFINITY { if grows { f32::INFINITY } else { 0.0 } } else { m };
    let m = if a == 1.0 { 1.0 } else { m };
    // The sign: for integer y its parity decides; for other y a negative base has no power.
    const WHOLE: f32 = 8_388_608.0; // 2^23: from here on all floats are whole numbers
    let b = y.abs();
    let rounded = b + WHOLE;
    let whole = b >= WHOLE || rounded - WHOLE == b;
    let digit = if b < WHOLE { rounded.to_bits() } else { b.to_bits() };
    let odd = whole && b < 2.0 * WHOLE && digit & 1 == 1;
    let m = if odd && x.is_sign_negative() { -m } else { m };
    let m = if x < 0.0 && a != f32::INFINITY && !whole { f32::NAN } else { m };
    let m = if x.is_nan() || y.is_nan() { f32::NAN } else { m };
    if y == 0.0 || x == 1.0 { 1.0 } else { m }
}
