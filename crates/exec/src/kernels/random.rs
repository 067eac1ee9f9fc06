//! Random numbers that are a pure function of seed and cell number.
//!
//! # Source
//! Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
//! SC'11; it passes TestU01's BigCrush. The counter is (low and high half of the cell number, stream kind, 0), the key
//! the seed. Normal values are Box and Muller's cosine branch.

use super::math;

/// One block of Philox4x32-10.
///
/// The words of 32 bits stand in 64 bits, where their products come about: vectors need no conversion between the two.
#[inline(always)]
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const LOW: u64 = 0xffff_ffff;
    let [mut c0, mut c1, mut c2, mut c3] = counter.map(u64::from);
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = c0 * 0xd251_1f53;
        let p1 = c2 * 0xcd9e_8d57;
        c0 = (p1 >> 32) ^ c1 ^ u64::from(k0);
        c2 = (p0 >> 32) ^ c3 ^ u64::from(k1);
        c1 = p1 & LOW;
        c3 = p0 & LOW;
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [c0 as u32, c1 as u32, c2 as u32, c3 as u32]
}

#[inline(always)]
fn words(cell: i64, seed: u64, kind: u32) -> (u64, u64) {
    let c = cell as u64;
    let w = philox([c as u32, (c >> 32) as u32, kind, 0], [seed as u32, (seed >> 32) as u32]);
    let [w0, w1, w2, w3] = w.map(u64::from);
    (w1 << 32 | w0, w3 << 32 | w2)
}

/// 53 bits as a float in [0, 2^53): by its bits, which vectorises everywhere.
#[inline(always)]
fn to_float(bits53: u64) -> f64 {
    let high = f64::from_bits((bits53 >> 32) | 0x4530_0000_0000_0000)
        - 19_342_813_113_834_066_795_298_816.0;
    let low =
        f64::from_bits((bits53 & 0xffff_ffff) | 0x4330_0000_0000_0000) - 4_503_599_627_370_496.0;
    high + low
}

const STEP: f64 = 1.0 / 9_007_199_254_740_992.0; // 2^-53

/// Uniform in [0, 1), a multiple of 2^-53.
#[inline(always)]
pub(crate) fn uniform(cell: i64, seed: u64) -> f64 {
    to_float(words(cell, seed, 0).0 >> 11) * STEP
}

/// Two independent uniform numbers: one in (0, 1], so that its logarithm is finite, and one in [0, 1).
#[inline(always)]
pub(crate) fn pair(cell: i64, seed: u64) -> (f64, f64) {
    let (a, b) = words(cell, seed, 1);
    ((to_float(a >> 11) + 1.0) * STEP, to_float(b >> 11) * STEP)
}

/// A standard normal number of a pair of uniform ones.
#[inline(always)]
pub(crate) fn normal_of(u: f64, turns: f64) -> f64 {
    (-2.0 * math::log_f64(u)).sqrt() * math::cos_turns(turns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_vectors() {
        // kat_vectors of the authors' Random123 1.14.
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (c, k, want) in cases {
            assert_eq!(philox(c, k), want);
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let n = 200_000i64;
        let mean = |f: &dyn Fn(f64) -> f64, g: fn(i64, u64) -> f64| {
            (0..n).map(|i| f(g(i, 7))).sum::<f64>() / n as f64
        };
        let normal = |cell, seed| {
            let (u, turns) = pair(cell, seed);
            normal_of(u, turns)
        };
        // Standard errors are below 0.004 for all of these.
        assert!((mean(&|x| x, uniform) - 0.5).abs() < 0.004);
        assert!((mean(&|x| x * x, uniform) - 1.0 / 3.0).abs() < 0.004);
        assert!(mean(&|x| x, normal).abs() < 0.012);
        assert!((mean(&|x| x * x, normal) - 1.0).abs() < 0.02);
        assert!((mean(&|x| x * x * x * x, normal) - 3.0).abs() < 0.1);
        assert!((0..n).all(|i| (0.0..1.0).contains(&uniform(i, 1))));
    }
}
