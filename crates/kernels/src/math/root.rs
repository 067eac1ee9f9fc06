//! Cube roots and lengths: branch-free, within 1 ulp.

/// Cube root.
///
/// x = 2^3q m with m in [1, 8): a polynomial for the inverse root, one step of third order, then a correction by the
/// error of the root's cube.
#[inline(always)]
pub(super) fn cbrt(x: f64) -> f64 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52: adding it rounds to a whole number
    const THIRD: f64 = 1.0 / 3.0;
    /// m^(-1/3) for m in [1, 2), within 7e-6.
    const C: [f64; 6] = [
        1.7776471684890054,
        -1.5540274077106597,
        1.2271496200207155,
        -0.5865141615889806,
        0.15224956438221762,
        -0.016511679091286462,
    ];
    let a = x.abs();
    let subnormal = a < f64::MIN_POSITIVE;
    let a = if subnormal { a * 18_014_398_509_481_984.0 } else { a }; // 2^54
    // A third of the bias, and of the exponent of the scaling of subnormals.
    let bias: u64 = if subnormal { 341 + 18 } else { 341 };
    let e = f64::from_bits((a.to_bits() >> 52) | 0x4330_0000_0000_0000) - 4_503_599_627_370_496.0;
    let m = f64::from_bits((a.to_bits() & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    // A third of the exponent, rounded down.
    let t = (e - 1.0).mul_add(THIRD, MAGIC);
    let r = (-3.0f64).mul_add(t - MAGIC, e);
    let m2 = m * m;
    let p = |i: usize| C[i + 1].mul_add(m, C[i]);
    let z = p(4).mul_add(m2, p(2)).mul_add(m2, p(0));
    let (double, root) = if r == 2.0 { (4.0, 0.6299605249474366) } else { (1.0, 1.0) };
    let (double, root) = if r == 1.0 { (2.0, 0.7937005259840998) } else { (double, root) };
    let (m, z) = (m * double, z * root);
    let off = (-(m * z)).mul_add(z * z, 1.0);
    let z = (z * off).mul_add((2.0 / 9.0f64).mul_add(off, THIRD), z);
    let z2 = z * z;
    let y = m * z2;
    let square = y * y;
    let off = (-square).mul_add(y, m) - y.mul_add(y, -square) * y;
    let y = (off * THIRD).mul_add(z2, y);
    let scale = f64::from_bits(t.to_bits().wrapping_add(1023 - bias) << 52);
    let y = (y * scale).copysign(x);
    if x == 0.0 || x.is_nan() || a == f64::INFINITY { x } else { y }
}

/// √(x² + y²) without overflow; infinite if either is, even if the other is NaN.
#[inline(always)]
pub(super) fn hypot(x: f64, y: f64) -> f64 {
    const LARGE: f64 = 3.273390607896142e150; // 2^500
    const SCALE: f64 = 4.149515568880993e180; // 2^600
    let (a, b) = (x.abs(), y.abs());
    let (a, b) = if a < b { (b, a) } else { (a, b) };
    let (by, back) = if a > LARGE { (1.0 / SCALE, SCALE) } else { (1.0, 1.0) };
    let (by, back) = if a < 1.0 / LARGE { (SCALE, 1.0 / SCALE) } else { (by, back) };
    let (a, b) = (a * by, b * by);
    let (p, q) = (a * a, b * b);
    let s = p + q;
    let s_low = ((p - s) + q) + (a.mul_add(a, -p) + b.mul_add(b, -q));
    let root = s.sqrt();
    let rest = ((-root).mul_add(root, s) + s_low) / (2.0 * root);
    // NaN for 0.
    let rest = if root == 0.0 { 0.0 } else { rest };
    let length = (root + rest) * back;
    let infinite = x.abs() == f64::INFINITY || y.abs() == f64::INFINITY;
    if infinite { f64::INFINITY } else { length }
}

/// √(x² + y²): the squares are exact in `float64`.
#[inline(always)]
pub(super) fn hypot_f32(x: f32, y: f32) -> f32 {
    let (a, b) = (f64::from(x), f64::from(y));
    let length = a.mul_add(a, b * b).sqrt() as f32;
    let infinite = x.abs() == f32::INFINITY || y.abs() == f32::INFINITY;
    if infinite { f32::INFINITY } else { length }
}
