//! Random numbers as a pure function of seed and cell number.
//!
//! # Source
//! Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
//! SC'11; it passes TestU01's BigCrush. The counter is (low and high half of the block's number, stream kind, 0), the
//! key is the seed. The 128 bits of a block give the numbers of two cells: two uniform ones of 53 bits, or both of Box
//! and Muller's normal ones (the cosine first). Of each eight cells the first four have the first numbers of four
//! blocks, the others the second ones, so that vectors of blocks are vectors of cells.

use super::math;
use super::ops::N;

/// One block of Philox4x32-10.
///
/// The 32-bit words are stored in 64 bits, the width of their products: vectors need no conversion.
#[inline(always)]
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
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
fn words(block: u64, seed: u64, kind: u32) -> (u64, u64) {
    let counter = [block as u32, (block >> 32) as u32, kind, 0];
    let [w0, w1, w2, w3] = philox(counter, [seed as u32, (seed >> 32) as u32]).map(u64::from);
    (w1 << 32 | w0, w3 << 32 | w2)
}

/// Converts 53 bits to a float in [0, 2^53) by its bits, which vectorises everywhere.
#[inline(always)]
fn to_float(bits53: u64) -> f64 {
    let high = f64::from_bits((bits53 >> 32) | 0x4530_0000_0000_0000)
        - 19_342_813_113_834_066_795_298_816.0;
    let low =
        f64::from_bits((bits53 & 0xffff_ffff) | 0x4330_0000_0000_0000) - 4_503_599_627_370_496.0;
    high + low
}

const STEP: f64 = 1.0 / 9_007_199_254_740_992.0; // 2^-53

pub(crate) trait Distribution {
    /// Two uniform numbers of a block.
    fn draw(block: u64, seed: u64) -> (f64, f64);
    /// Transforms them into the numbers of the block's two cells.
    fn shape(drawn: (f64, f64)) -> (f64, f64);

    /// Returns the number of one cell.
    #[inline(always)]
    fn of(cell: i64, seed: u64) -> f64 {
        let (first, second) = Self::shape(Self::draw(((cell >> 3 << 2) | (cell & 3)) as u64, seed));
        if cell & 4 == 0 { first } else { second }
    }

    /// Writes the numbers of a tile's cells; if the cells are consecutive, each block is drawn once.
    #[inline(always)]
    fn fill(to: &mut [f64; N], cells: &[i64; N], seed: u64) {
        let start = cells[0];
        let mut differ = 0;
        for (i, cell) in cells.iter().enumerate() {
            differ |= cell ^ start.wrapping_add(i as i64);
        }
        if differ != 0 {
            for (to, cell) in to.iter_mut().zip(cells) {
                *to = Self::of(*cell, seed);
            }
            return;
        }
        let skip = (start & 7) as usize;
        let blocks = if skip == 0 { N / 2 } else { N / 2 + 4 };
        // One loop for each step: a single loop would not have enough registers.
        let (mut first, mut second) = ([0.0; N / 2 + 4], [0.0; N / 2 + 4]);
        for i in 0..blocks {
            (first[i], second[i]) =
                Self::draw((start >> 3 << 2).wrapping_add(i as i64) as u64, seed);
        }
        for (first, second) in first[..blocks].iter_mut().zip(&mut second[..blocks]) {
            (*first, *second) = Self::shape((*first, *second));
        }
        let halves = first.chunks_exact(4).zip(second.chunks_exact(4));
        if skip == 0 {
            for (to, (first, second)) in to.chunks_exact_mut(8).zip(halves) {
                to[..4].copy_from_slice(first);
                to[4..].copy_from_slice(second);
            }
        } else {
            let mut all = [0.0; N + 8];
            for (to, (first, second)) in all.chunks_exact_mut(8).zip(halves) {
                to[..4].copy_from_slice(first);
                to[4..].copy_from_slice(second);
            }
            to.copy_from_slice(&all[skip..skip + N]);
        }
    }
}

/// Uniform in [0, 1), a multiple of 2^-53.
pub(crate) struct Uniform;

impl Distribution for Uniform {
    #[inline(always)]
    fn draw(block: u64, seed: u64) -> (f64, f64) {
        let (a, b) = words(block, seed, 0);
        (to_float(a >> 11) * STEP, to_float(b >> 11) * STEP)
    }

    #[inline(always)]
    fn shape(drawn: (f64, f64)) -> (f64, f64) {
        drawn
    }
}

/// Standard normal.
pub(crate) struct Normal;

impl Distribution for Normal {
    /// One number in (0, 1], so that its logarithm is finite, and one in [0, 1).
    #[inline(always)]
    fn draw(block: u64, seed: u64) -> (f64, f64) {
        let (a, b) = words(block, seed, 1);
        ((to_float(a >> 11) + 1.0) * STEP, to_float(b >> 11) * STEP)
    }

    #[inline(always)]
    fn shape((u, turns): (f64, f64)) -> (f64, f64) {
        let r = (-2.0 * math::log_f64(u)).sqrt();
        let (sine, cosine) = math::sin_cos_turns(turns);
        (r * cosine, r * sine)
    }
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
    fn random_cells_depend_only_on_their_position() {
        for start in [0, 1, 2, 4, 7, 8, 64, (1 << 40) - 3, (1 << 40) + 16] {
            let in_turn: [i64; N] = std::array::from_fn(|i| start + i as i64);
            let mut apart = in_turn;
            apart.swap(3, 9);
            for cells in [in_turn, apart] {
                let (mut uniform, mut normal) = ([0.0; N], [0.0; N]);
                Uniform::fill(&mut uniform, &cells, 5);
                Normal::fill(&mut normal, &cells, 5);
                for (i, cell) in cells.iter().enumerate() {
                    // Words of the block by position, and Box and Muller's numbers by the library's functions.
                    let (b, half) = ((cell / 8 * 4 + cell % 4) as u64, cell / 4 % 2);
                    let bits = |kind, half: usize| {
                        let w = philox([b as u32, (b >> 32) as u32, kind, 0], [5, 0]);
                        (u64::from(w[2 * half + 1]) << 32 | u64::from(w[2 * half])) >> 11
                    };
                    assert_eq!(uniform[i], bits(0, half as usize) as f64 / 2f64.powi(53));
                    let u = (bits(1, 0) + 1) as f64 / 2f64.powi(53);
                    let angle = std::f64::consts::TAU * (bits(1, 1) as f64 / 2f64.powi(53));
                    let turn = if half == 0 { angle.cos() } else { angle.sin() };
                    let want = (-2.0 * u.ln()).sqrt() * turn;
                    assert!((normal[i] - want).abs() < 1e-13, "{cell}: {} {want}", normal[i]);
                }
            }
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let n = 200_000i64;
        let mean = |f: &dyn Fn(i64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        let (uniform, normal) = (|cell| Uniform::of(cell, 7), |cell| Normal::of(cell, 7));
        // Standard errors are below 0.004 for all of these.
        assert!((mean(&uniform) - 0.5).abs() < 0.004);
        assert!((mean(&|i| uniform(i).powi(2)) - 1.0 / 3.0).abs() < 0.004);
        assert!(mean(&normal).abs() < 0.012);
        assert!((mean(&|i| normal(i).powi(2)) - 1.0).abs() < 0.02);
        assert!((mean(&|i| normal(i).powi(4)) - 3.0).abs() < 0.1);
        // The two cells of a block are independent.
        assert!(mean(&|i| (uniform(i) - 0.5) * (uniform(i + 4) - 0.5)).abs() < 0.001);
        assert!(mean(&|i| normal(i) * normal(i + 4)).abs() < 0.012);
        assert!(mean(&|i| (normal(i).powi(2) - 1.0) * (normal(i + 4).powi(2) - 1.0)).abs() < 0.025);
        assert!((0..n).all(|i| (0.0..1.0).contains(&uniform(i))));
    }
}
