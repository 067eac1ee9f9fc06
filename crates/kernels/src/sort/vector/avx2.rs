//! AVX2 vectors of eight 32-bit keys and of four 64-bit keys.

use super::{Lanes, ROWS};
use std::arch::x86_64::*;

/// Keys of 32 bits.
pub(super) struct Eight;

/// Keys of 64 bits. In vectors their top bit is flipped, as AVX2 compares 64-bit lanes only as signed integers.
pub(super) struct Four;

/// The permutation that moves the lanes whose bit is set to the front, as 32-bit lanes; four lanes are 64-bit ones.
const fn permutation(bits: usize, lanes: usize) -> [u8; 8] {
    let width = 8 / lanes;
    let mut order = [0; 8];
    let (mut at, mut i) = (0, 0);
    while i < 2 * lanes {
        let lane = i % lanes;
        if (bits >> lane & 1 == 1) == (i < lanes) {
            let mut part = 0;
            while part < width {
                order[at] = (lane * width + part) as u8;
                at += 1;
                part += 1;
            }
        }
        i += 1;
    }
    order
}

static FIRST_OF_EIGHT: [[u8; 8]; 256] = {
    let mut all = [[0; 8]; 256];
    let mut bits = 0;
    while bits < all.len() {
        all[bits] = permutation(bits, 8);
        bits += 1;
    }
    all
};

static FIRST_OF_FOUR: [[u8; 8]; 16] = {
    let mut all = [[0; 8]; 16];
    let mut bits = 0;
    while bits < all.len() {
        all[bits] = permutation(bits, 4);
        bits += 1;
    }
    all
};

/// Masks: the eight from `8 - n` on select the first n lanes.
static MASKS: [u32; 16] = [!0, !0, !0, !0, !0, !0, !0, !0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The mask of the first `lanes` 32-bit lanes, at most eight.
#[inline(always)]
unsafe fn mask(lanes: usize) -> __m256i {
    debug_assert!(lanes <= 8);
    // SAFETY: eight masks from there on are in the array.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - lanes).cast()) }
}

/// Permutes 32-bit lanes by a table entry.
#[inline(always)]
unsafe fn permuted(v: __m256i, order: &[u8; 8]) -> __m256i {
    // SAFETY: the entry has eight bytes.
    unsafe {
        let order = _mm256_cvtepu8_epi32(_mm_loadl_epi64(order.as_ptr().cast()));
        _mm256_permutevar8x32_epi32(v, order)
    }
}

impl Lanes for Eight {
    type Key = u32;
    type Vector = __m256i;
    const LANES: usize = 8;
    const MAX: u32 = u32::MAX;
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m256i {
        // SAFETY: `from` is valid for a vector, here and below, by the contract of [`Lanes`].
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, v: __m256i) {
        // SAFETY: see `load`.
        unsafe { _mm256_storeu_si256(to.cast(), v) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const u32, n: usize) -> __m256i {
        // SAFETY: see `load`; lanes without a mask are not read.
        unsafe {
            let mask = mask(n);
            let others = _mm256_xor_si256(mask, _mm256_set1_epi32(-1));
            _mm256_or_si256(_mm256_maskload_epi32(from.cast(), mask), others)
        }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut u32, v: __m256i, n: usize) {
        // SAFETY: see `load`; lanes without a mask are not written.
        unsafe { _mm256_maskstore_epi32(to.cast(), mask(n), v) }
    }
    #[inline(always)]
    unsafe fn splat(key: u32) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { _mm256_set1_epi32(key as i32) }
    }
    #[inline(always)]
    unsafe fn pair(a: __m256i, b: __m256i) -> [__m256i; 2] {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { [_mm256_min_epu32(a, b), _mm256_max_epu32(a, b)] }
    }
    #[inline(always)]
    unsafe fn below(v: __m256i, pivot: __m256i) -> usize {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe {
            let not = _mm256_cmpeq_epi32(_mm256_max_epu32(v, pivot), v);
            (_mm256_movemask_ps(_mm256_castsi256_ps(not)) ^ 0xff) as usize
        }
    }
    #[inline(always)]
    unsafe fn first(v: __m256i, bits: usize) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { permuted(v, &FIRST_OF_EIGHT[bits & 0xff]) }
    }
    #[inline(always)]
    unsafe fn reverse(v: __m256i) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)) }
    }
    #[inline(always)]
    unsafe fn bitonic(v: __m256i) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`]. Lanes are compared with those 4, 2 and 1 lanes
        // away.
        unsafe {
            let [less, more] = Self::pair(v, _mm256_permute2x128_si256(v, v, 1));
            let v = _mm256_blend_epi32(less, more, 0b1111_0000);
            let [less, more] = Self::pair(v, _mm256_shuffle_epi32(v, 0b01_00_11_10));
            let v = _mm256_blend_epi32(less, more, 0b1100_1100);
            let [less, more] = Self::pair(v, _mm256_shuffle_epi32(v, 0b10_11_00_01));
            _mm256_blend_epi32(less, more, 0b1010_1010)
        }
    }
    #[inline(always)]
    unsafe fn turn(v: [__m256i; ROWS]) -> [__m256i; ROWS] {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe {
            let (a, b) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
            let (c, d) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
            let (e, f) = (_mm256_unpacklo_epi32(v[4], v[5]), _mm256_unpackhi_epi32(v[4], v[5]));
            let (g, h) = (_mm256_unpacklo_epi32(v[6], v[7]), _mm256_unpackhi_epi32(v[6], v[7]));
            let first = Four::turned([a, c, e, g]);
            let second = Four::turned([b, d, f, h]);
            [first[0], first[1], second[0], second[1], first[2], first[3], second[2], second[3]]
        }
    }
    fn next(key: u32) -> Option<u32> {
        key.checked_add(1)
    }
}

impl Four {
    /// Transposes four vectors of four lanes.
    #[inline(always)]
    unsafe fn turned(v: [__m256i; 4]) -> [__m256i; 4] {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe {
            let (a, b) = (_mm256_unpacklo_epi64(v[0], v[1]), _mm256_unpackhi_epi64(v[0], v[1]));
            let (c, d) = (_mm256_unpacklo_epi64(v[2], v[3]), _mm256_unpackhi_epi64(v[2], v[3]));
            [
                _mm256_permute2x128_si256(a, c, 0x20),
                _mm256_permute2x128_si256(b, d, 0x20),
                _mm256_permute2x128_si256(a, c, 0x31),
                _mm256_permute2x128_si256(b, d, 0x31),
            ]
        }
    }

    /// Flips the top bit of all lanes.
    #[inline(always)]
    unsafe fn flip(v: __m256i) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { _mm256_xor_si256(v, _mm256_set1_epi64x(i64::MIN)) }
    }
}

impl Lanes for Four {
    type Key = u64;
    type Vector = __m256i;
    const LANES: usize = 4;
    const MAX: u64 = u64::MAX;
    #[inline(always)]
    unsafe fn load(from: *const u64) -> __m256i {
        // SAFETY: `from` is valid for a vector, here and below, by the contract of [`Lanes`].
        unsafe { Self::flip(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u64, v: __m256i) {
        // SAFETY: see `load`.
        unsafe { _mm256_storeu_si256(to.cast(), Self::flip(v)) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const u64, n: usize) -> __m256i {
        // SAFETY: see `load`; lanes without a mask are not read.
        unsafe {
            let mask = mask(2 * n);
            let others = _mm256_xor_si256(mask, _mm256_set1_epi32(-1));
            Self::flip(_mm256_or_si256(_mm256_maskload_epi64(from.cast(), mask), others))
        }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut u64, v: __m256i, n: usize) {
        // SAFETY: see `load`; lanes without a mask are not written.
        unsafe { _mm256_maskstore_epi64(to.cast(), mask(2 * n), Self::flip(v)) }
    }
    #[inline(always)]
    unsafe fn splat(key: u64) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { Self::flip(_mm256_set1_epi64x(key as i64)) }
    }
    #[inline(always)]
    unsafe fn pair(a: __m256i, b: __m256i) -> [__m256i; 2] {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe {
            let swap = _mm256_castsi256_pd(_mm256_cmpgt_epi64(a, b));
            let (a, b) = (_mm256_castsi256_pd(a), _mm256_castsi256_pd(b));
            let (less, more) = (_mm256_blendv_pd(a, b, swap), _mm256_blendv_pd(b, a, swap));
            [_mm256_castpd_si256(less), _mm256_castpd_si256(more)]
        }
    }
    #[inline(always)]
    unsafe fn below(v: __m256i, pivot: __m256i) -> usize {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(pivot, v))) as usize }
    }
    #[inline(always)]
    unsafe fn first(v: __m256i, bits: usize) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { permuted(v, &FIRST_OF_FOUR[bits & 0xf]) }
    }
    #[inline(always)]
    unsafe fn reverse(v: __m256i) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`].
        unsafe { _mm256_permute4x64_epi64(v, 0b00_01_10_11) }
    }
    #[inline(always)]
    unsafe fn bitonic(v: __m256i) -> __m256i {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`]. Lanes are compared with those 2 and 1 lanes away.
        unsafe {
            let [less, more] = Self::pair(v, _mm256_permute4x64_epi64(v, 0b01_00_11_10));
            let v = _mm256_blend_epi32(less, more, 0b1111_0000);
            let [less, more] = Self::pair(v, _mm256_shuffle_epi32(v, 0b01_00_11_10));
            _mm256_blend_epi32(less, more, 0b1100_1100)
        }
    }
    #[inline(always)]
    unsafe fn turn(v: [__m256i; ROWS]) -> [__m256i; ROWS] {
        // SAFETY: the machine has AVX2, by the contract of [`Lanes`]. A column's run is an upper-half and a lower-half
        // vector.
        unsafe {
            let upper = Self::turned([v[0], v[1], v[2], v[3]]);
            let lower = Self::turned([v[4], v[5], v[6], v[7]]);
            [upper[0], lower[0], upper[1], lower[1], upper[2], lower[2], upper[3], lower[3]]
        }
    }
    fn next(key: u64) -> Option<u64> {
        key.checked_add(1)
    }
}
