#![expect(unsafe_code, reason = "tiles are passed by pointer; each block says why it is sound")]
//! The loop over tiles in which only addresses change.
//!
//! ```text
//!   row of 1250 cells:   | 19 tiles, one steady stretch: blocks of 8, 8 and 3 | a tile that two rows share | …
//! ```
//! For a cheap program, locating a tile and calling its operations takes longer than computing it. So feeds, stores and
//! reductions report once how many tiles they continue evenly. These run in blocks, each operation over all tiles of a
//! block, with addresses that only advance. The loop does not prefetch: the processor detects the few streams itself,
//! and prefetching the next block during the current one took a fifth more time on Zen 3. Some of the reductions do
//! ([`ahead`](crate::stream::ahead)).

use super::compile::{Check, Ins};
use super::feed::{Feed, Steady};
use super::run::{Reduction, Store};
use super::walk::Run;
use crate::KernelError;
use crate::ops::{IotaFn, N, TILES};
use crate::partial::{Piece, PieceFn};
use crate::stream::StreamFn;

/// The operations that run for each tile.
pub(super) struct Loop {
    pub(super) code: Vec<Ins>,
    /// Address of each slot's tile. Has an entry per slot of the program: instructions refer to no others.
    pub(super) ptr: Vec<*mut u8>,
    /// Number of tiles of a block, at most [`TILES`].
    block: usize,
    /// Lists of a stretch, reused for the next one.
    stretch: Stretch,
}

/// Addresses and values that change from tile to tile of a stretch.
#[derive(Default)]
struct Stretch {
    /// Slots that move, with their steps in bytes per tile.
    moves: Vec<(usize, usize)>,
    /// Slots of indices, the functions that write them, their values and increments.
    counts: Vec<(usize, IotaFn, i64, i64)>,
    /// Stores past the caches: the function, the tile's slot, the destination, bytes per tile.
    streams: Vec<(StreamFn, usize, *mut u8, usize)>,
    /// Parts of reductions.
    even: Vec<Even>,
}

/// A part of a reduction that continues evenly: steps are per tile.
struct Even {
    f: PieceFn,
    piece: Piece,
    values: usize,
    valid: Option<usize>,
    out: usize,
    position: i64,
}

impl Loop {
    /// Creates a loop over tiles at the addresses `ptr`.
    pub(super) fn new(code: Vec<Ins>, ptr: Vec<*mut u8>, block: usize) -> Loop {
        Loop { code, ptr, block: block.clamp(1, TILES), stretch: Stretch::default() }
    }

    /// Runs the operations of one tile.
    #[inline]
    pub(super) fn tile(&self) {
        // SAFETY: every slot points to at least one tile.
        unsafe { self.tiles_at(&self.ptr, 1) };
    }

    /// Number of tiles, of `tiles`, that can run together: constants are repeated for at most a block.
    pub(super) fn most(&self, tiles: usize) -> usize {
        tiles.min(self.block)
    }

    /// Runs the operations of some tiles.
    ///
    /// # Safety
    /// Every slot points to `tiles` tiles: those of inputs and stores in their memory, those of the program in buffers
    /// with room for [`Loop::most`] tiles.
    #[inline]
    pub(super) unsafe fn tiles_at(&self, ptr: &[*mut u8], tiles: usize) {
        let ptr = ptr.as_ptr();
        for i in &self.code {
            // SAFETY: every slot points to aligned cells: a buffer of its own, or checked memory; a destination is no
            // source; instructions refer only to slots of the program; the caller gives no more tiles than slots have
            // room for.
            unsafe {
                let at = |s: u16| *ptr.add(s as usize);
                (i.f)(at(i.d), at(i.a), at(i.b), at(i.c), i.imm, tiles);
            }
        }
    }

    /// Runs up to `most` whole tiles from cell `p` on, as long as everything continues evenly; returns their number.
    pub(super) fn steady(
        &mut self,
        most: usize,
        feeds: &mut [(usize, Feed)],
        stores: &[Store],
        p: usize,
        reductions: &mut [Reduction],
        checks: &[Check],
    ) -> Result<usize, KernelError> {
        let mut tiles = most as u64;
        for r in reductions.iter() {
            tiles = tiles.min(r.walk.steady());
        }
        if tiles == 0 {
            return Ok(0);
        }
        let mut s = std::mem::take(&mut self.stretch);
        s.clear();
        for (slot, feed) in feeds.iter_mut() {
            let (n, steady) = feed.steady();
            tiles = tiles.min(n);
            if tiles == 0 {
                self.stretch = s;
                return Ok(0);
            }
            match steady {
                Steady::Still(at) => self.ptr[*slot] = at.cast_mut(),
                Steady::Moves(at, step) => {
                    self.ptr[*slot] = at.cast_mut();
                    s.moves.push((*slot, step));
                }
                Steady::Counts(at, f, first, step) => {
                    self.ptr[*slot] = at.cast_mut();
                    s.counts.push((*slot, f, first, step));
                }
            }
        }
        for store in stores {
            let at = store.base.wrapping_add(p * store.size);
            match store.stream {
                Some(f) => {
                    self.ptr[store.slot] = store.buffer;
                    s.streams.push((f, store.slot, at, N * store.size));
                }
                None => {
                    self.ptr[store.slot] = at;
                    s.moves.push((store.slot, N * store.size));
                }
            }
        }
        even_parts(reductions, &mut s.even);
        let done = self.stretch(tiles, &mut s, checks);
        self.stretch = s;
        done?;
        for (_, feed) in feeds.iter_mut() {
            feed.skip(tiles);
        }
        for r in reductions.iter_mut() {
            if r.walk.advance(tiles * N as u64) {
                r.ended();
            }
        }
        Ok(tiles as usize)
    }

    fn stretch(
        &mut self,
        tiles: u64,
        s: &mut Stretch,
        checks: &[Check],
    ) -> Result<(), KernelError> {
        let mut left = tiles as usize;
        while left > 0 {
            let k = left.min(self.block);
            left -= k;
            let cells = k * N;
            for (slot, f, value, step) in &mut s.counts {
                // SAFETY: the buffer of an index has TILES tiles of 8 aligned bytes per cell.
                unsafe { f(self.ptr[*slot], *value, *step, k) };
                *value = value.wrapping_add(step.wrapping_mul(cells as i64));
            }
            // SAFETY: inputs and stores continue for this many tiles, and buffers have room for a block.
            unsafe { self.tiles_at(&self.ptr, k) };
            if !checks.is_empty() {
                check(checks, &self.ptr, cells)?;
            }
            for e in &mut s.even {
                e.piece.values = self.ptr[e.values];
                e.piece.valid = e.valid.map_or(std::ptr::null(), |v| self.ptr[v].cast_const());
                e.piece.to = cells;
                // SAFETY: fields and lanes are those that were checked for this state, the walk stays within it, and
                // the tiles are valid.
                unsafe { (e.f)(&e.piece) };
                e.piece.out += e.out * k;
                e.piece.position = e.piece.position.wrapping_add(e.position.wrapping_mul(k as i64));
            }
            for (f, slot, at, bytes) in &mut s.streams {
                // SAFETY: the output has room for these tiles and is aligned to a cache line, as tiles and their
                // buffers are.
                unsafe { f(*at, self.ptr[*slot], *bytes * k) };
                *at = at.wrapping_add(*bytes * k);
            }
            for (slot, step) in &s.moves {
                self.ptr[*slot] = self.ptr[*slot].wrapping_add(*step * k);
            }
        }
        Ok(())
    }
}

impl Stretch {
    fn clear(&mut self) {
        self.moves.clear();
        self.counts.clear();
        self.streams.clear();
        self.even.clear();
    }
}

/// The parts of all reductions, their pieces set to whole tiles from the current cell on.
fn even_parts(reductions: &[Reduction], even: &mut Vec<Even>) {
    for r in reductions {
        let kept = r.walk.run() == Run::Kept;
        let (position, step) = r.walk.position();
        for part in &r.parts {
            let mut piece = part.piece;
            (piece.out, piece.from, piece.to) = (r.walk.out(), 0, N);
            (piece.position, piece.step) = (position, step);
            piece.codes = std::ptr::null();
            let (f, values, valid) = part.enters(kept);
            even.push(Even {
                f,
                piece,
                values,
                valid,
                out: if kept { N } else { 0 },
                position: step.wrapping_mul(N as i64),
            });
        }
    }
}

/// Rejects a tile in which a check's `bool` is true for one of the first `n` cells.
pub(super) fn check(checks: &[Check], ptr: &[*mut u8], n: usize) -> Result<(), KernelError> {
    for c in checks {
        // SAFETY: the slot has n bytes that the code has written.
        let bad = unsafe { std::slice::from_raw_parts(ptr[c.slot as usize], n) };
        if bad.iter().any(|b| *b != 0) {
            return Err(c.error.clone());
        }
    }
    Ok(())
}
