#![expect(unsafe_code, reason = "kernels read and write matrices by pointers and steps")]
//! Products of floats whose cells are used often enough to be worth packing.
//!
//! ```text
//!             ┌──24──┬──────┬──┐ ┐
//!   right     │▒▒▒▒▒▒│      │  │ DEPTH rows, packed: panel after panel, each row by row,
//!             └──────┴──────┴──┘ ┘ as many panels as stay in the second-level cache
//! 8 │▒▒▒▒▒▒│  │  ▓▓  │      │  │   a tile of the result is accumulated in registers: a column of a
//!   ├──────┤  ├──────┼──────┼──┤   panel of the left side times a row of one of the right side,
//!   │      │  │      │      │  │   one after the other, and then added to the result's cells
//!   └──────┘  └──────┴──────┴──┘
//!    left, packed: panels of 8 rows, each column by column
//! ```
//! A cell is the sum of products in the order of `k`: fused multiply-adds from 0 on over [`DEPTH`] of them, and such
//! sums are added in order. So its bits depend only on its row and column, neither on the machine's vectors nor on the
//! other cells of the block.
//!
//! # Source
//! K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", 2008; F. G. Van Zee and R. van de
//! Geijn, "BLIS: a framework for rapidly instantiating BLAS functionality", 2015.

use super::{Block, Strided, Target};
use crate::copy::copy_box;
use crate::{KernelError, Level};
use smallvec::SmallVec;
use tessera_planner::tile::{PRODUCT_DEPTH as DEPTH, PRODUCT_LEFT as LEFT};

/// Upper bound on the registers of a row of a tile.
const WIDTH: usize = 3;
/// Bytes of the left side that are packed at a time if the right side is packed once: they stay in the second-level
/// cache.
const LEFT_NEAR: usize = 128 << 10;
/// Upper bound on the uses of a cell for which packing does not pay off.
const FEW: usize = 256;
/// Strides that are multiples of this map to few sets of the first-level cache.
const PAGE: i64 = 4096;

/// A float type with kernels.
pub(super) trait Float: Copy + 'static {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    /// Returns the kernels of a level; `None` without a fused multiply-add.
    fn kernels(level: Level) -> Option<Kernels<Self>>;
}

/// Kernels of a level.
#[derive(Clone, Copy)]
pub(super) struct Kernels<T: 'static> {
    /// Cells per register.
    lanes: usize,
    /// Rows of the largest tile, and registers per row.
    rows: usize,
    width: usize,
    /// Number of panels of the right side that stay in the second-level cache.
    panels: usize,
    /// Tile kernels by registers per row, then by rows.
    tiles: [&'static [TileFn<T>]; WIDTH],
}

type TileFn<T> = unsafe fn(&Tile<T>);

/// `c (+)= a @ b` for a tile. `a` and `c` have as many rows as the kernel; `b` has as many columns, of which `c` has
/// the first `columns`. Rows of `c` and columns of `b` are dense.
struct Tile<T> {
    k: usize,
    a: *const T,
    /// Strides of `a` in cells: between rows, and along the summed axis.
    a_row: isize,
    a_step: isize,
    b: *const T,
    b_step: isize,
    c: *mut T,
    c_row: isize,
    columns: usize,
    add: bool,
}

/// A vector register of floats.
///
/// # Safety
/// The machine has the registers; pointers are valid for the cells that are read or written.
trait Register: Copy {
    type Cell: Float;
    const LANES: usize;
    unsafe fn zero() -> Self;
    unsafe fn repeat(from: *const Self::Cell) -> Self;
    unsafe fn load(from: *const Self::Cell) -> Self;
    unsafe fn store(self, to: *mut Self::Cell);
    unsafe fn plus(self, other: Self) -> Self;
    /// `self * a + b`, rounded once.
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    unsafe fn fetch(at: *const Self::Cell);
}

/// Upper bound on the cells of a row of a tile.
const CELLS: usize = 16 * WIDTH;

/// Computes a tile of `R` rows and `N` registers per row.
#[inline(always)]
unsafe fn tile<V: Register, const R: usize, const N: usize>(t: &Tile<V::Cell>) {
    let whole = t.columns == N * V::LANES;
    // SAFETY: the tile's pointers are valid for all accesses: `k` columns of `R` cells and rows of `N` registers are
    // read; `R` rows of `columns` cells are the target's.
    unsafe {
        let row = |r: usize| t.c.wrapping_offset(r as isize * t.c_row);
        if whole {
            for r in 0..R {
                for j in 0..N {
                    V::fetch(row(r).wrapping_add(j * V::LANES));
                }
                V::fetch(row(r).wrapping_add(N * V::LANES - 1));
            }
        }
        let mut sums = [[V::zero(); N]; R];
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.k {
            let right: [V; N] = std::array::from_fn(|j| V::load(b.add(j * V::LANES)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let left = V::repeat(a.wrapping_offset(r as isize * t.a_row));
                for (s, right) in sums.iter_mut().zip(right) {
                    *s = left.mul_add(right, *s);
                }
            }
            a = a.wrapping_offset(t.a_step);
            b = b.wrapping_offset(t.b_step);
        }
        if whole {
            for (r, sums) in sums.iter().enumerate() {
                for (j, s) in sums.iter().enumerate() {
                    let to = row(r).add(j * V::LANES);
                    let s = if t.add { V::load(to).plus(*s) } else { *s };
                    s.store(to);
                }
            }
            return;
        }
        let mut cells = [V::Cell::ZERO; CELLS];
        for (r, sums) in sums.iter().enumerate() {
            for (j, s) in sums.iter().enumerate() {
                s.store(cells.as_mut_ptr().add(j * V::LANES));
            }
            for (j, s) in cells.iter().take(t.columns).enumerate() {
                let to = row(r).add(j);
                *to = if t.add { (*to).plus(*s) } else { *s };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")]
    unsafe fn avx512<V: Register, const R: usize, const N: usize>(t: &Tile<V::Cell>) {
        // SAFETY: the caller gives a tile whose pointers are valid for its rows and columns, on a machine with these
        // features.
        unsafe { tile::<V, R, N>(t) }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<V: Register, const R: usize, const N: usize>(t: &Tile<V::Cell>) {
        // SAFETY: the caller gives a tile whose pointers are valid for its rows and columns, on a machine with these
        // features.
        unsafe { tile::<V, R, N>(t) }
    }

    macro_rules! register {
        ($v:ident $t:ident $lanes:literal $zero:ident $repeat:expr, $load:ident $store:ident $plus:ident $mul_add:ident) => {
            impl Register for $v {
                type Cell = $t;
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn zero() -> $v {
                    // SAFETY: the caller checked that the machine has the register's features.
                    unsafe { $zero() }
                }
                #[inline(always)]
                unsafe fn repeat(from: *const $t) -> $v {
                    // SAFETY: the caller gives a readable cell, on a machine with the register's features.
                    unsafe { $repeat(*from) }
                }
                #[inline(always)]
                unsafe fn load(from: *const $t) -> $v {
                    // SAFETY: the caller gives `LANES` readable cells, on a machine with the register's features.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $t) {
                    // SAFETY: the caller gives `LANES` writable cells, on a machine with the register's features.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn plus(self, other: $v) -> $v {
                    // SAFETY: the caller checked that the machine has the register's features.
                    unsafe { $plus(self, other) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, a: $v, b: $v) -> $v {
                    // SAFETY: the caller checked that the machine has the register's features.
                    unsafe { $mul_add(self, a, b) }
                }
                #[inline(always)]
                unsafe fn fetch(at: *const $t) {
                    // SAFETY: a prefetch cannot fault.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
            }
        };
    }
    register!(__m512d f64 8 _mm512_setzero_pd _mm512_set1_pd, _mm512_loadu_pd _mm512_storeu_pd _mm512_add_pd _mm512_fmadd_pd);
    register!(__m512 f32 16 _mm512_setzero_ps _mm512_set1_ps, _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_fmadd_ps);
    register!(__m256d f64 4 _mm256_setzero_pd _mm256_set1_pd, _mm256_loadu_pd _mm256_storeu_pd _mm256_add_pd _mm256_fmadd_pd);
    register!(__m256 f32 8 _mm256_setzero_ps _mm256_set1_ps, _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_fmadd_ps);

    macro_rules! tiles {
        ($at:ident $v:ident $n:literal: $($r:literal)*) => { &[$($at::<$v, $r, $n>),*] };
    }
    macro_rules! kernels {
        ($name:ident $t:ident $long:ident $short:ident) => {
            pub(super) fn $name(level: Level) -> Option<Kernels<$t>> {
                match level {
                    Level::Avx512 => Some(Kernels {
                        lanes: $long::LANES,
                        rows: 8,
                        width: 3,
                        panels: 8,
                        tiles: [
                            tiles!(avx512 $long 1: 1 2 3 4 5 6 7 8),
                            tiles!(avx512 $long 2: 1 2 3 4 5 6 7 8),
                            tiles!(avx512 $long 3: 1 2 3 4 5 6 7 8),
                        ],
                    }),
                    Level::Avx2 => Some(Kernels {
                        lanes: $short::LANES,
                        rows: 6,
                        width: 2,
                        panels: 12,
                        tiles: [
                            tiles!(avx2 $short 1: 1 2 3 4 5 6),
                            tiles!(avx2 $short 2: 1 2 3 4 5 6),
                            &[],
                        ],
                    }),
                    Level::Baseline => None,
                }
            }
        };
    }
    kernels! { double f64 __m512d __m256d }
    kernels! { single f32 __m512 __m256 }
}

macro_rules! floats {
    ($($t:ident $kernels:ident;)*) => { $(
        impl Float for $t {
            const ZERO: $t = 0.0;
            fn plus(self, other: $t) -> $t {
                self + other
            }
            #[cfg(target_arch = "x86_64")]
            fn kernels(level: Level) -> Option<Kernels<$t>> {
                x86::$kernels(level)
            }
            #[cfg(not(target_arch = "x86_64"))]
            fn kernels(_: Level) -> Option<Kernels<$t>> {
                None
            }
        }
    )* };
}
floats! { f64 double; f32 single; }

/// Bytes of scratch that [`product`] packs into.
pub(super) fn room<T: Float>(level: Level, block: Block) -> usize {
    T::kernels(level).map_or(0, |kernels| Cut::of(&kernels, block).cells * size_of::<T>())
}

/// Blocking of a product.
struct Cut {
    /// Rows of the left side, and columns of the right side, that are packed at a time.
    rows: usize,
    columns: usize,
    /// Cells of the packed left side, and of both packed sides.
    left: usize,
    cells: usize,
}

impl Cut {
    fn of<T: Float>(kernels: &Kernels<T>, Block { m, n, k }: Block) -> Cut {
        let depth = k.min(DEPTH);
        let columns = kernels.panels * kernels.width * kernels.lanes;
        let bytes = if n <= columns { LEFT_NEAR } else { LEFT };
        let rows = (bytes / (DEPTH * size_of::<T>())).next_multiple_of(kernels.rows);
        let left = m.min(rows).next_multiple_of(kernels.rows) * depth;
        let right = n.min(columns).next_multiple_of(kernels.lanes) * depth;
        Cut { rows, columns, left, cells: left + right }
    }
}

/// A side of the product in its memory: the first cell, the stride across rows or columns, and that along the summed
/// axis.
#[derive(Clone, Copy)]
struct Side<'a> {
    bytes: &'a [u8],
    offset: i64,
    across: i64,
    along: i64,
}

impl Side<'_> {
    fn from(&self, across: usize, along: usize) -> Self {
        let moved = across as i64 * self.across + along as i64 * self.along;
        Side { offset: self.offset + moved, ..*self }
    }

    fn at<T>(&self) -> *const T {
        self.bytes.as_ptr().cast::<T>().wrapping_offset(self.offset as isize)
    }

    /// True if packing does not pay off. Each cell is used `uses` times.
    fn stays(&self, size: usize, uses: usize) -> bool {
        // Strides of whole pages map to few sets of the caches.
        let crowded = self.along != 0 && (self.along * size as i64) % PAGE == 0;
        uses <= FEW && !crowded
    }

    /// Packs `across` cells of each of `along` steps into panels of `width` cells, step by step. The last panel has the
    /// remaining cells, but the same stride.
    fn pack(
        &self,
        size: usize,
        across: usize,
        along: usize,
        width: usize,
        to: &mut [u8],
    ) -> Result<(), KernelError> {
        let (panels, rest) = (across / width, across % width);
        let (row, panel) = (width as i64, (width * along) as i64);
        // Cells are read in memory order.
        let mut axes = [(along, self.along, row), (panels, row * self.across, panel)];
        if self.along.abs() < self.across.abs() {
            axes.reverse();
        }
        let [(n0, from0, to0), (n1, from1, to1)] = axes;
        let strides = [from0, from1, self.across];
        let from = Strided { bytes: self.bytes, offset: self.offset, strides: &strides };
        copy_box(size, &[n0 as u64, n1 as u64, width as u64], from, to, 0, &[to0, to1, 1])?;
        let strides = [self.along, self.across];
        let offset = self.offset + panels as i64 * row * self.across;
        let from = Strided { bytes: self.bytes, offset, strides: &strides };
        copy_box(size, &[along as u64, rest as u64], from, to, panels as i64 * panel, &[row, 1])
    }
}

/// A panel of the right side: its first column, its number of registers, its address and its row stride.
struct Panel<T> {
    column: usize,
    width: usize,
    at: *const T,
    step: isize,
}

/// `c (+)= a @ b`, with at least one product per cell. `room` has the size that [`room()`] returns.
///
/// # Errors
/// [`KernelError::Buffer`] if the scratch is too small.
///
/// # Safety
/// The machine has the kernels. All cells of both sides lie in their memory, aligned for `T`, as is `room`; `to` holds
/// the target's rows.
pub(super) unsafe fn product<T: Float>(
    kernels: &Kernels<T>,
    block: Block,
    (a, b): (&Strided<'_>, &Strided<'_>),
    to: &mut Target<'_>,
    room: &mut [u8],
) -> Result<(), KernelError> {
    let Block { m, n, k } = block;
    let (size, tall) = (size_of::<T>(), kernels.rows);
    let cut = Cut::of(kernels, block);
    if room.len() < cut.cells * size || room.as_ptr().align_offset(size) != 0 {
        return Err(KernelError::Buffer {
            what: "bytes of the room of a product",
            got: room.len() as u64,
            expected: (cut.cells * size) as u64,
        });
    }
    let (left, right) = room.split_at_mut(cut.left * size);
    let a = Side { bytes: a.bytes, offset: a.offset, across: a.strides[0], along: a.strides[1] };
    let b = Side { bytes: b.bytes, offset: b.offset, across: b.strides[1], along: b.strides[0] };
    let c = to.c.as_mut_ptr().cast::<T>();
    let a_stays = a.stays(size, n);
    let (mut packed, mut panels) = (None, SmallVec::new());
    for k0 in (0..k).step_by(DEPTH) {
        let depth = DEPTH.min(k - k0);
        for i0 in (0..m).step_by(cut.rows) {
            let rows = cut.rows.min(m - i0);
            let a = a.from(i0, k0);
            if !a_stays {
                a.pack(size, rows, depth, tall, left)?;
            }
            for j0 in (0..n).step_by(cut.columns) {
                let columns = cut.columns.min(n - j0);
                if packed != Some((k0, j0)) {
                    panels = right_panels(kernels, b.from(j0, k0), (m, columns, depth), right)?;
                    packed = Some((k0, j0));
                }
                for i in (0..rows).step_by(tall) {
                    let (from, a_row, a_step) = match a_stays {
                        true => (a.from(i, 0).at(), a.across as isize, a.along as isize),
                        false => {
                            (left.as_ptr().cast::<T>().wrapping_add(i * depth), 1, tall as isize)
                        }
                    };
                    for p in &panels {
                        let high = tall.min(rows - i);
                        let tile = Tile {
                            k: depth,
                            a: from,
                            a_row,
                            a_step,
                            b: p.at,
                            b_step: p.step,
                            c: c.wrapping_add((i0 + i) * to.c_row + j0 + p.column),
                            c_row: to.c_row as isize,
                            columns: (p.width * kernels.lanes).min(columns - p.column),
                            add: to.add || k0 > 0,
                        };
                        // SAFETY: both sides are packed or valid in place, where the registers of a panel may hold cells
                        // beyond its columns, but none beyond the side's memory; the caller gives a target of the
                        // product's rows and columns.
                        unsafe { kernels.tiles[p.width - 1][high - 1](&tile) };
                    }
                }
            }
        }
    }
    Ok(())
}

/// Panels for some columns of the right side, which is multiplied by `m` rows. A panel stays in place if its cells are
/// contiguous in rows and that costs less; the last one is read beyond its columns then, into the next row, unless the
/// memory ends there.
fn right_panels<T: Float>(
    kernels: &Kernels<T>,
    b: Side<'_>,
    (m, columns, depth): (usize, usize, usize),
    room: &mut [u8],
) -> Result<SmallVec<[Panel<T>; 16]>, KernelError> {
    let (size, lanes) = (size_of::<T>(), kernels.lanes);
    let b_stays = b.across == 1 && b.stays(size, m);
    let mut cuts: SmallVec<[(usize, usize); 16]> = SmallVec::new();
    let (mut column, mut registers) = (0, columns.div_ceil(lanes));
    while registers > 0 {
        // Two and two are better than three and one.
        let width = if registers == 4 { 2 } else { kernels.width.min(registers) };
        cuts.push((column, width));
        column += width * lanes;
        registers -= width;
    }
    let is_whole = |&(column, width): &(usize, usize)| columns - column >= width * lanes;
    let is_readable = |&(column, width): &(usize, usize)| {
        let rows = (depth as i64 - 1) * b.along;
        let last = b.offset + rows.max(0) + (column + width * lanes) as i64 - 1;
        last < (b.bytes.len() / size) as i64
    };
    let stays = |cut: &(usize, usize)| b_stays && (is_whole(cut) || is_readable(cut));
    // Panels of full width are packed together.
    let full = |cut: &&(usize, usize)| cut.1 == kernels.width && is_whole(cut) && !b_stays;
    let alike = cuts.iter().take_while(full).count();
    b.pack(size, alike * kernels.width * lanes, depth, kernels.width * lanes, room)?;
    for &(column, width) in cuts[alike..].iter().filter(|cut| !stays(cut)) {
        let wide = width * lanes;
        let packed = &mut room[column * depth * size..(column + wide) * depth * size];
        packed.fill(0);
        b.from(column, 0).pack(size, wide.min(columns - column), depth, wide, packed)?;
    }
    let panel = |cut: &(usize, usize)| {
        let &(column, width) = cut;
        let (at, step) = match stays(cut) {
            true => (b.from(column, 0).at(), b.along as isize),
            false => {
                (room.as_ptr().cast::<T>().wrapping_add(column * depth), (width * lanes) as isize)
            }
        };
        Panel { column, width, at, step }
    };
    Ok(cuts.iter().map(panel).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::noise;
    use tessera_planner::tile::PRODUCT_RIGHT;

    fn bytes<T: Copy, const N: usize>(v: &[T], of: fn(T) -> [u8; N]) -> Vec<u8> {
        v.iter().flat_map(|x| of(*x)).collect()
    }

    macro_rules! defined {
        ($($name:ident $t:ident)*) => { $(
            #[test]
            fn $name() {
                let mut random = noise(0x2545_f491_4f6c_dd1d);
                let mut cells = |n: usize| -> Vec<$t> {
                    let one = |r: u64| (r >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
                    (0..n).map(|_| one(random()) as $t).collect()
                };
                // Sizes around registers, tiles, panels, blocks of the right side, packed parts of the left side, and
                // DEPTH; sides that stay in place, and strides of whole pages.
                let shapes = [
                    (1, 1, 1),
                    (5, 4, 3),
                    (6, 8, 256),
                    (8, 24, 257),
                    (13, 31, 600),
                    (7, 200, 513),
                    (300, 5, 40),
                    (290, 9, 300),
                    (9, 290, 300),
                    (270, 411, 70),
                    (1100, 270, 9),
                    (270, 512, 270),
                ];
                for (m, n, k) in shapes {
                    let block = Block { m, n, k };
                    let (a, b, before) = (cells(m * k), cells(k * n), cells(m * n));
                    // The definition: fused multiply-adds in the order of `k`, DEPTH of them at a time.
                    let mut want = before.clone();
                    for (i, cell) in want.iter_mut().enumerate() {
                        for k0 in (0..k).step_by(DEPTH) {
                            let one = |s: $t, l: usize| a[i / n * k + l].mul_add(b[l * n + i % n], s);
                            *cell += (k0..k.min(k0 + DEPTH)).fold(0.0, one);
                        }
                    }
                    let bytes = |v: &[$t]| bytes(v, $t::to_ne_bytes);
                    let turned = |v: &[$t], rows: usize, columns: usize| -> Vec<$t> {
                        (0..v.len()).map(|i| v[i % rows * columns + i / rows]).collect()
                    };
                    let left = [(bytes(&a), [k as i64, 1]), (bytes(&turned(&a, m, k)), [1, m as i64])];
                    let right = [(bytes(&b), [n as i64, 1]), (bytes(&turned(&b, k, n)), [1, k as i64])];
                    for level in Level::available() {
                        let Some(kernels) = $t::kernels(level) else { continue };
                        let mut room = vec![0xff; room::<$t>(level, block)];
                        let packed = Cut::of(&kernels, block).left * size_of::<$t>();
                        assert!(room.len() - packed <= PRODUCT_RIGHT);
                        for (l, r) in left.iter().flat_map(|l| right.iter().map(move |r| (l, r))) {
                            let side = |bytes, strides| Strided { bytes, offset: 0, strides };
                            let (l, r) = (side(&l.0, &l.1), side(&r.0, &r.1));
                            let mut out = bytes(&before);
                            let mut to = Target { c: &mut out, c_row: n, add: true };
                            // SAFETY: the level is available, and all sides are dense.
                            unsafe { product(&kernels, block, (&l, &r), &mut to, &mut room).unwrap() };
                            let (l, r) = (l.strides, r.strides);
                            assert!(out == bytes(&want), "{level:?} {block:?} {l:?} {r:?}");
                        }
                    }
                }
            }
        )* };
    }
    defined! {
        every_level_and_layout_gives_the_bits_of_the_definition f64
        every_level_and_layout_gives_the_bits_of_the_definition_in_single f32
    }

    #[test]
    fn less_room_is_refused() {
        let Some(kernels) = f64::kernels(Level::detect()) else { return };
        let block = Block { m: 4, n: 4, k: 4 };
        let cells = bytes(&[1.0f64; 16], f64::to_ne_bytes);
        let side = Strided { bytes: &cells, offset: 0, strides: &[4, 1] };
        let mut out = cells.clone();
        let mut to = Target { c: &mut out, c_row: 4, add: false };
        let mut room = vec![0; room::<f64>(Level::detect(), block) - 1];
        // SAFETY: the machine has its own level, and all sides are dense.
        let refused = unsafe { product(&kernels, block, (&side, &side), &mut to, &mut room) };
        assert!(matches!(refused, Err(KernelError::Buffer { .. })));
    }
}
