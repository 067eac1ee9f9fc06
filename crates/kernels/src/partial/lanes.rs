//! Lanes of a reduction to one value, and the compensated summation of those of sums.
//!
//! A lane of a long run adds thousands of cells, and each addition rounds: after 10^6 cells of 0.1 a sum of 64 such
//! lanes has a relative error of 2 * 10^-13. So after 32 tiles the lanes are added to totals with their rounding errors
//! (compensated summation), and start again. A lane is carried over after each 32 of *its* cells, wherever in a tile
//! the run began: the sum does not depend on whether a run begins at a tile boundary.
//!
//! # Source
//! T. Ogita, S. M. Rump, S. Oishi, "Accurate sum and dot product", 2005, algorithm 4.4 (Sum2), here over blocks.

use super::mono::Mono;
use crate::ops::N;

/// Tiles after which lanes are carried over. With 32 a sum is as accurate as NumPy's pairwise summation.
pub(super) const CARRY_TILES: usize = 32;

/// Bytes of the lanes of any reduction, in whole cache lines.
pub(crate) const LANES_BYTES: usize = size_of::<Lanes<f64>>().next_multiple_of(64);

/// The lanes of a run. Reductions that are not carried over use only [`now`](Lanes::now).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Lanes<S> {
    /// Accumulated cells since lanes were last carried over.
    pub(super) now: [S; N],
    /// Totals that were carried over, rounded.
    total: [S; N],
    /// Rounding errors of the totals.
    lost: [S; N],
    /// Number of tiles from which the run has accumulated cells.
    tiles: usize,
    /// First cell of the run in its tile.
    first: usize,
}

impl<S: Copy> Lanes<S> {
    /// Lanes without cells.
    #[inline(always)]
    pub(super) fn empty<M: Mono<S = S>>() -> Self {
        let none = [M::id(); N];
        Lanes { now: none, total: none, lost: none, tiles: 0, first: 0 }
    }

    /// Resets the lanes.
    #[inline(always)]
    pub(super) fn clear<M: Mono<S = S>>(&mut self) {
        self.now = [M::id(); N];
        if M::CARRIED {
            if self.tiles >= CARRY_TILES {
                (self.total, self.lost) = (self.now, self.now);
            }
            (self.tiles, self.first) = (0, 0);
        }
    }

    /// Number of whole tiles up to the next carry.
    #[inline(always)]
    pub(super) fn room<M: Mono<S = S>>(&self) -> usize {
        if !M::CARRIED {
            return usize::MAX;
        }
        match self.tiles % CARRY_TILES {
            // Lanes before the run's first cell have one tile less.
            0 if self.first > 0 && self.tiles > 0 => 1,
            met => CARRY_TILES - met,
        }
    }

    /// Splits off as many tiles as the lanes may accumulate before the next [`passed`](Self::passed).
    #[inline(always)]
    pub(super) fn some<'a, M: Mono<S = S>, T>(&self, tiles: &mut &'a [T]) -> Option<&'a [T]> {
        if tiles.is_empty() {
            return None;
        }
        let (some, left) = tiles.split_at(self.room::<M>().min(tiles.len()));
        *tiles = left;
        Some(some)
    }

    /// Records that whole tiles were accumulated, at most [`room`](Self::room).
    #[inline(always)]
    pub(super) fn passed<M: Mono<S = S>>(&mut self, tiles: usize) {
        if !M::CARRIED {
            return;
        }
        self.tiles += tiles;
        match self.tiles % CARRY_TILES {
            0 if self.first == 0 => self.carry::<M>(0, N),
            0 => self.carry::<M>(self.first, N),
            1 if self.tiles > 1 => self.carry::<M>(0, self.first),
            _ => {}
        }
    }

    /// Records that a part of a tile was accumulated, which begins at cell `from` of it.
    #[inline(always)]
    pub(super) fn passed_part<M: Mono<S = S>>(&mut self, from: usize) {
        if M::CARRIED {
            if self.tiles == 0 {
                self.first = from;
            }
            self.passed::<M>(1);
        }
    }

    #[inline(always)]
    fn carry<M: Mono<S = S>>(&mut self, from: usize, to: usize) {
        for i in from..to {
            let (total, lost) = M::carry(self.total[i], self.now[i]);
            self.total[i] = total;
            self.lost[i] = M::join(self.lost[i], lost);
            self.now[i] = M::id();
        }
    }

    /// The lanes with all accumulated cells.
    #[inline(always)]
    pub(super) fn all<M: Mono<S = S>>(&mut self) -> [S; N] {
        if M::CARRIED && self.tiles >= CARRY_TILES {
            self.carry::<M>(0, N);
            for i in 0..N {
                self.now[i] = M::carried(self.total[i], self.lost[i]);
            }
        }
        self.now
    }
}
