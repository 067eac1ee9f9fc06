//! The inverse DCT of 8 x 8 coefficients, in integers.
//!
//! # Source
//! Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (ICASSP 1989), with
//! the constants and roundings of libjpeg's `jidctint.c`: 13 bits of a constant, 2 more bits between the passes.

use std::num::Wrapping;

/// Coefficients of damaged files may overflow.
type Int = Wrapping<i32>;

const CONST_BITS: usize = 13;
const PASS_BITS: usize = 2;

/// A constant with [`CONST_BITS`] bits after the point.
const fn fixed(v: f64) -> Int {
    Wrapping((v * (1 << CONST_BITS) as f64 + 0.5) as i32)
}

const C0_298: Int = fixed(0.298_631_336);
const C0_390: Int = fixed(0.390_180_644);
const C0_541: Int = fixed(0.541_196_100);
const C0_765: Int = fixed(0.765_366_865);
const C0_899: Int = fixed(0.899_976_223);
const C1_175: Int = fixed(1.175_875_602);
const C1_501: Int = fixed(1.501_321_110);
const C1_847: Int = fixed(1.847_759_065);
const C1_961: Int = fixed(1.961_570_560);
const C2_053: Int = fixed(2.053_119_869);
const C2_562: Int = fixed(2.562_915_447);
const C3_072: Int = fixed(3.072_711_026);

/// Transforms eight numbers; `shift` bits of the result are rounded off.
fn line(v: [Int; 8], shift: usize) -> [Int; 8] {
    let z1 = (v[2] + v[6]) * C0_541;
    let (a, b) = (z1 - v[6] * C1_847, z1 + v[2] * C0_765);
    let (c, d) = ((v[0] + v[4]) << CONST_BITS, (v[0] - v[4]) << CONST_BITS);
    let even = [c + b, d + a, d - a, c - b];
    let (z1, z2, z3, z4) = (v[7] + v[1], v[5] + v[3], v[7] + v[3], v[5] + v[1]);
    let z5 = (z3 + z4) * C1_175;
    let (z1, z2) = (z1 * C0_899, z2 * C2_562);
    let (z3, z4) = (z5 - z3 * C1_961, z5 - z4 * C0_390);
    let odd = [
        v[1] * C1_501 - z1 + z4,
        v[3] * C3_072 - z2 + z3,
        v[5] * C2_053 - z2 + z4,
        v[7] * C0_298 - z1 + z3,
    ];
    let half = Wrapping(1 << (shift - 1));
    std::array::from_fn(|i| match i {
        0..4 => (even[i] + odd[i] + half) >> shift,
        _ => (even[7 - i] - odd[7 - i] + half) >> shift,
    })
}

/// Writes the samples of a block to rows of `stride` bytes.
pub(super) fn inverse(block: &[i32; 64], out: &mut [u8], stride: usize) {
    let mut columns = [[Wrapping(0); 8]; 8];
    for (x, column) in columns.iter_mut().enumerate() {
        let v = std::array::from_fn(|y| Wrapping(block[y * 8 + x]));
        *column = line(v, CONST_BITS - PASS_BITS);
    }
    for (y, row) in out.chunks_mut(stride).take(8).enumerate() {
        let v = line(std::array::from_fn(|x| columns[x][y]), CONST_BITS + PASS_BITS + 3);
        for (to, v) in row.iter_mut().zip(v) {
            *to = (v.0.saturating_add(128)).clamp(0, 255) as u8;
        }
    }
}
