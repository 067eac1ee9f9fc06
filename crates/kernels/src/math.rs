//! Functions of floats: the same bits on every machine and at every [`Level`](super::Level).
//!
//! The common functions are branch-free polynomials that vectorise. They use explicit `mul_add`, so that every level
//! rounds alike. The others are those of the `libm` crate, which is plain Rust: a system's own library differs between
//! machines.

mod circle;
mod erf;
mod inverse;
pub(crate) mod modulo;
mod poly;
mod power;
mod root;
mod single;

pub(crate) use modulo::{FloorDivide, Fmod, Rem};

/// A function of one float.
pub(crate) trait Fun {
    /// True if the functions below vectorise.
    const FAST: bool = false;
    /// Magnitude of the argument above which (and for NaN) the `far` functions apply.
    const LIMIT: Option<f64> = None;
    /// Magnitude above which `f32` does not apply; up to [`Fun::LIMIT`] `f64` does.
    const LIMIT_F32: Option<f64> = None;
    fn f32(x: f32) -> f32;
    fn f64(x: f64) -> f64;
    fn far_f32(x: f32) -> f32 {
        Self::f32(x)
    }
    fn far_f64(x: f64) -> f64 {
        Self::f64(x)
    }
}

/// A function of two floats.
pub(crate) trait Fun2 {
    fn f32(x: f32, y: f32) -> f32;
    fn f64(x: f64, y: f64) -> f64;
}

/// A function of two floats with a cheaper form for plain (unexceptional) arguments.
pub(crate) trait PlainFun2: Fun2 {
    fn is_plain_f32(x: f32, y: f32) -> bool;
    fn is_plain_f64(x: f64, y: f64) -> bool;
    /// The bits of [`Fun2::f32`] for plain arguments.
    fn plain_f32(x: f32, y: f32) -> f32;
    /// The bits of [`Fun2::f64`] for plain arguments.
    fn plain_f64(x: f64, y: f64) -> f64;
}

macro_rules! funs {
    ($($name:ident $f32:path, $f64:path;)*) => { $(
        pub(crate) struct $name;
        impl Fun for $name {
            #[inline(always)] fn f32(x: f32) -> f32 { $f32(x) }
            #[inline(always)] fn f64(x: f64) -> f64 { $f64(x) }
        }
    )* };
}
funs! {
    Arcsinh libm::asinhf, libm::asinh;
    Arccosh arccosh_f32, arccosh_f64;
    Arctanh libm::atanhf, libm::atanh;
}

/// Functions that vectorise; without an own `f32` form, that of `f64` is rounded.
macro_rules! fast {
    ($($name:ident $f32:expr, $f64:path;)*) => { $(
        pub(crate) struct $name;
        impl Fun for $name {
            const FAST: bool = true;
            #[inline(always)] fn f32(x: f32) -> f32 { ($f32)(x) }
            #[inline(always)] fn f64(x: f64) -> f64 { $f64(x) }
        }
    )* };
}
fast! {
    Exp exp_f32, exp_f64;
    Log log_f32, log_f64;
    Exp2 single::exp2, poly::exp2;
    Expm1 single::expm1, poly::expm1;
    Log2 single::log2, poly::log2;
    Log1p single::log1p, poly::log1p;
    Tanh single::tanh, poly::tanh;
    Log10 single::log10, power::log10;
    Arctan single::arctan, circle::arctan;
    Arcsin |x| inverse::arcsin(f64::from(x)) as f32, inverse::arcsin;
    Arccos |x| inverse::arccos(f64::from(x)) as f32, inverse::arccos;
    Cbrt |x| root::cbrt(f64::from(x)) as f32, root::cbrt;
    Erf erf::erf_f32, erf::erf;
    Erfc |x| erf::erfc(f64::from(x)) as f32, erf::erfc;
    Sinh single::sinh, circle::sinh;
    Cosh single::cosh, circle::cosh;
}
macro_rules! circular {
    ($($name:ident $f32:path, $f64:path, $far32:path, $far64:path;)*) => { $(
        pub(crate) struct $name;
        impl Fun for $name {
            const FAST: bool = true;
            const LIMIT: Option<f64> = Some(poly::CIRCULAR_LIMIT);
            const LIMIT_F32: Option<f64> = Some(single::CIRCULAR_LIMIT);
            #[inline(always)] fn f32(x: f32) -> f32 { $f32(x) }
            #[inline(always)] fn f64(x: f64) -> f64 { $f64(x) }
            fn far_f32(x: f32) -> f32 { $far32(x) }
            fn far_f64(x: f64) -> f64 { $far64(x) }
        }
    )* };
}
circular! {
    Sin single::sin, poly::sin, libm::sinf, libm::sin;
    Cos single::cos, poly::cos, libm::cosf, libm::cos;
    Tan single::tan, circle::tan, libm::tanf, libm::tan;
}

macro_rules! funs2 {
    ($($name:ident $f32:expr, $f64:path;)*) => { $(
        pub(crate) struct $name;
        impl Fun2 for $name {
            #[inline(always)] fn f32(x: f32, y: f32) -> f32 { ($f32)(x, y) }
            #[inline(always)] fn f64(x: f64, y: f64) -> f64 { $f64(x, y) }
        }
    )* };
}
funs2! {
    Pow single::pow, power::pow;
    Arctan2 single::arctan2, circle::arctan2;
    Hypot root::hypot_f32, root::hypot;
    Logaddexp logaddexp_f32, logaddexp_f64;
}

impl PlainFun2 for Pow {
    #[inline(always)]
    fn is_plain_f32(x: f32, y: f32) -> bool {
        // Not short-circuited: a branch per cell would not vectorise.
        (x > 0.0) & (x < f32::INFINITY) & (y.abs() < f32::INFINITY)
    }
    #[inline(always)]
    fn is_plain_f64(x: f64, y: f64) -> bool {
        (x > 0.0) & (x < f64::INFINITY) & (y.abs() < f64::INFINITY)
    }
    #[inline(always)]
    fn plain_f32(x: f32, y: f32) -> f32 {
        single::pow_plain(x, y)
    }
    #[inline(always)]
    fn plain_f64(x: f64, y: f64) -> f64 {
        power::pow_plain(x, y)
    }
}

/// NaN below 1, where `libm` returns numbers.
fn arccosh_f64(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

fn arccosh_f32(x: f32) -> f32 {
    if x < 1.0 { f32::NAN } else { libm::acoshf(x) }
}

/// log(e^x + e^y) without overflow; the larger if both are the same infinity.
fn logaddexp_f64(x: f64, y: f64) -> f64 {
    if x == y {
        return x + std::f64::consts::LN_2;
    }
    let d = x - y;
    if d > 0.0 {
        x + libm::log1p(libm::exp(-d))
    } else if d <= 0.0 {
        y + libm::log1p(libm::exp(d))
    } else {
        d
    }
}

fn logaddexp_f32(x: f32, y: f32) -> f32 {
    logaddexp_f64(f64::from(x), f64::from(y)) as f32
}

const LN2_HI: f64 = 6.931_471_803_691_238e-1; // 32 low bits zero: k * LN2_HI is exact
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
const LN2_HI_F32: f32 = 6.931_457_5e-1;
const LN2_LO_F32: f32 = 1.428_606_8e-6;

/// e^x within 1 ulp; overflow, gradual underflow, infinities and NaN as in IEEE 754.
///
/// x = k ln 2 + r, |r| <= ln 2 / 2, e^r by a polynomial, 2^k in two factors so that it over- and underflows once.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to a whole number
    // A NaN fails both comparisons and so passes through.
    let x = if x > 710.0 { 710.0 } else { x };
    let x = if x < -750.0 { -750.0 } else { x };
    let t = x.mul_add(std::f64::consts::LOG2_E, MAGIC);
    let k = t - MAGIC;
    let r = (-k).mul_add(LN2_HI, x);
    let r = (-k).mul_add(LN2_LO, r);
    let p = exp_reduced(r);
    let (s1, s2) = pow2_halves_f64(t);
    (p * s1) * s2
}

/// e^r for |r| <= ln 2 / 2.
#[inline(always)]
fn exp_reduced(r: f64) -> f64 {
    const C: [f64; 11] = [
        0.5,
        0.1666666666666667,
        0.04166666666666667,
        0.00833333333332607,
        0.0013888888888883703,
        0.00019841269875048905,
        2.480158732571076e-5,
        2.755725511097889e-6,
        2.755727343657049e-7,
        2.510533724466521e-8,
        2.091477283224809e-9,
    ];
    let r2 = r * r;
    let r4 = r2 * r2;
    let p01 = C[1].mul_add(r, C[0]);
    let p23 = C[3].mul_add(r, C[2]);
    let p45 = C[5].mul_add(r, C[4]);
    let p67 = C[7].mul_add(r, C[6]);
    let p89 = C[10].mul_add(r2, C[9].mul_add(r, C[8]));
    let q0 = p23.mul_add(r2, p01);
    let q1 = p67.mul_add(r2, p45);
    let q1 = p89.mul_add(r4, q1);
    let q = q1.mul_add(r4, q0);
    1.0 + r2.mul_add(q, r)
}

/// 2^(k/2) and 2^(k - k/2) for the k in the low bits of `t` (a whole number plus 1.5 * 2^52), |k| < 2046.
#[inline(always)]
fn pow2_halves_f64(t: f64) -> (f64, f64) {
    let k = t.to_bits().wrapping_add(2048) & 0xfff; // k + 2048
    let h = k >> 1; // k / 2 + 1024
    let s1 = f64::from_bits(h.wrapping_sub(1) << 52);
    let s2 = f64::from_bits(k.wrapping_sub(h).wrapping_sub(1) << 52);
    (s1, s2)
}

/// e^x of `f32` within 1 ulp, as [`exp_f64`].
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23
    const C: [f32; 6] = [0.5, 0.16666667, 0.041666463, 0.008333311, 0.0013933881, 0.00019891247];
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let t = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let k = t - MAGIC;
    let r = (-k).mul_add(LN2_HI_F32, x);
    let r = (-k).mul_add(LN2_LO_F32, r);
    let r2 = r * r;
    let q = C[5].mul_add(r, C[4]);
    let q = q.mul_add(r, C[3]);
    let q = q.mul_add(r, C[2]);
    let q = q.mul_add(r, C[1]);
    let q = q.mul_add(r, C[0]);
    let p = 1.0 + r2.mul_add(q, r);
    let kb = t.to_bits().wrapping_add(256) & 0x1ff; // k + 256
    let h = kb >> 1;
    let s1 = f32::from_bits(h.wrapping_sub(1) << 23);
    let s2 = f32::from_bits(kb.wrapping_sub(h).wrapping_sub(1) << 23);
    (p * s1) * s2
}

/// Natural logarithm within 1 ulp.
#[inline(always)]
pub(crate) fn log_f64(x: f64) -> f64 {
    let (k, f, y) = log_parts(x);
    let y = k.mul_add(LN2_HI, f + k.mul_add(LN2_LO, y));
    log_special(x, y)
}

/// log x = k ln 2 + y.
#[inline(always)]
fn log_reduced(x: f64) -> (f64, f64) {
    let (k, f, y) = log_parts(x);
    (k, f + y)
}

/// Replaces the values of a logarithm at 0, infinity, NaN and below 0.
#[inline(always)]
fn log_special(x: f64, y: f64) -> f64 {
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// x = 2^k (1 + f) with 1 + f in [√½, √2), and log(1 + f) - f by a polynomial in f, without a division.
#[inline(always)]
fn log_parts(x0: f64) -> (f64, f64, f64) {
    const C: [f64; 20] = [
        0.33333333333333337,
        -0.2499999999999993,
        0.19999999999993184,
        -0.1666666666669733,
        0.14285714287601134,
        -0.12499999997117374,
        0.11111110908975864,
        -0.0999999999475828,
        0.09090919914369915,
        -0.08333345154889092,
        0.07691987233619846,
        -0.07142229064679916,
        0.06671995744376115,
        -0.06265078835047307,
        0.05836980161982374,
        -0.053679156774410826,
        0.053716458312777646,
        -0.06130587992788277,
        0.05668198431045042,
        -0.025069094183570454,
    ];
    let (k, f) = split(x0);
    let f2 = f * f;
    let f4 = f2 * f2;
    let f8 = f4 * f4;
    let p = |i: usize| C[i + 1].mul_add(f, C[i]);
    let q = |i: usize| p(i + 2).mul_add(f2, p(i));
    let low = q(4).mul_add(f4, q(0));
    let mid = q(12).mul_add(f4, q(8));
    let poly = q(16).mul_add(f8, mid).mul_add(f8, low);
    // log(1 + f) = f + (f³ P(f) - f²/2).
    (k, f, (-0.5 * f).mul_add(f, (f * f2) * poly))
}

/// x = 2^k (1 + f) with 1 + f in [√½, √2), exactly, for a positive finite number.
#[inline(always)]
fn split(x0: f64) -> (f64, f64) {
    const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
    let subnormal = x0 < f64::MIN_POSITIVE;
    let x = if subnormal { x0 * 18_014_398_509_481_984.0 } else { x0 }; // 2^54
    let bias = if subnormal { 1023.0 + 54.0 } else { 1023.0 };
    let h = x.to_bits().wrapping_add(0x3ff0_0000_0000_0000 - SQRT_HALF);
    // The exponent becomes a float by its bits: no conversion instruction is needed.
    let k = f64::from_bits((h >> 52) | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + bias);
    let f = f64::from_bits((h & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF)) - 1.0;
    (k, f)
}

/// Natural logarithm of `f32` within 1 ulp, as [`log_f64`].
#[inline(always)]
pub(crate) fn log_f32(x: f32) -> f32 {
    let (k, f, poly) = log_parts_f32(x);
    let y = (f * (f * f)).mul_add(poly, k * LN2_LO_F32);
    let y = (-0.5 * f).mul_add(f, y);
    log_special_f32(x, k.mul_add(LN2_HI_F32, f + y))
}

/// Like [`log_special`].
#[inline(always)]
fn log_special_f32(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// x = 2^k (1 + f) as in [`log_parts`], and P(f): log(1 + f) = f + (f³ P(f) - f²/2).
#[inline(always)]
fn log_parts_f32(x0: f32) -> (f32, f32, f32) {
    const C: [f32; 9] = [
        0.3333333,
        -0.24999997,
        0.20000717,
        -0.16667807,
        0.14249007,
        -0.12425523,
        0.11685785,
        -0.11481212,
        0.06972519,
    ];
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let subnormal = x0 < f32::MIN_POSITIVE;
    let x = if subnormal { x0 * 33_554_432.0 } else { x0 }; // 2^25
    let bias = if subnormal { 127.0 + 25.0 } else { 127.0 };
    let h = x.to_bits().wrapping_add(0x3f80_0000 - SQRT_HALF);
    let k = f32::from_bits((h >> 23) | 0x4b00_0000) - (8_388_608.0 + bias);
    let f = f32::from_bits((h & 0x007f_ffff).wrapping_add(SQRT_HALF)) - 1.0;
    let mut poly = C[8];
    for c in C[..8].iter().rev() {
        poly = poly.mul_add(f, *c);
    }
    (k, f, poly)
}

/// Sine and cosine of 2πu for u in [0, 1), within 1e-15.
#[inline(always)]
pub(crate) fn sin_cos_turns(u: f64) -> (f64, f64) {
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let t = u.mul_add(4.0, MAGIC);
    let r = u.mul_add(4.0, -(t - MAGIC)) * std::f64::consts::FRAC_PI_2;
    let q = t.to_bits();
    let (s, c) = sin_cos_kernel(r);
    let (sine, cosine) = if q & 1 == 1 { (c, s) } else { (s, c) };
    let sine = if q & 2 == 2 { -sine } else { sine };
    (sine, if q.wrapping_add(1) & 2 == 2 { -cosine } else { cosine })
}

/// Sine and cosine of |r| <= π/4.
#[inline(always)]
pub(crate) fn sin_cos_kernel(r: f64) -> (f64, f64) {
    let (s, c, z) = sin_cos_series(r);
    // 1 - z/2 loses its low bits; they are added back separately.
    let h = 0.5 * z;
    let w = 1.0 - h;
    ((r * z).mul_add(s, r), w + (z * z).mul_add(c, (1.0 - w) - h))
}

/// Sine and cosine of r + r_low, |r| <= π/4, each with its rounding error.
#[inline(always)]
fn sin_cos_parts(r: f64, r_low: f64) -> ((f64, f64), (f64, f64)) {
    let (s, c, z) = sin_cos_series(r);
    let h = 0.5 * z;
    let w = 1.0 - h;
    let u = (r * z).mul_add(s, r_low * w);
    let sine = r + u;
    let rest = r.mul_add(r, -z).mul_add(-0.5, (1.0 - w) - h);
    let v = (z * z).mul_add(c, (-r).mul_add(r_low, rest));
    let cosine = w + v;
    ((sine, (r - sine) + u), (cosine, (w - cosine) + v))
}

/// (sin r - r) / r³, (cos r - 1 + z / 2) / z² and z = r².
#[inline(always)]
fn sin_cos_series(r: f64) -> (f64, f64, f64) {
    const S: [f64; 7] = [
        -0.16666666666666666,
        0.008333333333333331,
        -0.00019841269841265017,
        2.755731921930192e-6,
        -2.5052106219521895e-8,
        1.6058529572267877e-10,
        -7.586576588171073e-13,
    ];
    const C: [f64; 7] = [
        0.041666666666666664,
        -0.0013888888888888887,
        2.4801587301584618e-5,
        -2.7557319221382114e-7,
        2.087675578389404e-9,
        -1.1470459749675607e-11,
        4.745804889760674e-14,
    ];
    let z = r * r;
    let mut s = S[6];
    let mut c = C[6];
    for i in (0..6).rev() {
        s = s.mul_add(z, S[i]);
        c = c.mul_add(z, C[i]);
    }
    (s, c, z)
}
