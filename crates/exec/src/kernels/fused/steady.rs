#![expect(unsafe_code, reason = "tiles are passed by pointer; each block says why it is sound")]
//! The loop over tiles where nothing but addresses changes.
//!
//! ```text
//!   row of 1250 cells:   | 19 tiles, one steady stretch | a tile that two rows share | …
//! ```
//! A tile of a cheap program takes less time than finding out where it lies. So feeds, stores and reductions are asked
//! once how many tiles they go on evenly, and these run with addresses that only move on.

use super::compile::{Check, Ins};
use super::feed::{Feed, Steady};
use super::run::{Reduction, Store};
use super::walk::Run;
use crate::kernels::KernelError;
use crate::kernels::ops::{IotaFn, N};
use crate::kernels::partial::PieceFn;

/// How far ahead of a tile its inputs are fetched.
const PREFETCH_BYTES: usize = 4096;

/// What runs for each tile.
pub(super) struct Loop {
    pub(super) code: Vec<Ins>,
    pub(super) fetch: Fetch,
    /// Writes an index's tile.
    pub(super) count: IotaFn,
    /// Where each slot's tile lies. As long as the program has slots: instructions name no others.
    pub(super) ptr: Vec<*mut u8>,
}

/// A part of a reduction that goes on evenly.
struct Even {
    f: PieceFn,
    /// Reduction and part.
    of: (usize, usize),
    values: usize,
    valid: Option<usize>,
    out: usize,
    position: i64,
}

impl Loop {
    /// Runs the operations of one tile.
    #[inline]
    pub(super) fn tile(&self) {
        let ptr = self.ptr.as_ptr();
        let mut done = 0;
        for (i, end) in self.code.iter().zip(&self.fetch.ends) {
            for (slot, offset) in &self.fetch.lines[done..*end] {
                // SAFETY: fetched slots are slots.
                prefetch(unsafe { *ptr.add(*slot) }.wrapping_add(*offset));
            }
            done = *end;
            // SAFETY: every slot points to N aligned cells: a buffer of its own, or memory that was checked; a
            // destination is no source; instructions name slots of the program only.
            unsafe {
                let at = |s: u16| *ptr.add(s as usize);
                (i.f)(at(i.d), at(i.a), at(i.b), at(i.c), i.imm);
            }
        }
        // A program without operations only feeds reductions.
        for (slot, offset) in &self.fetch.lines[done..] {
            prefetch(self.ptr[*slot].wrapping_add(*offset));
        }
    }

    /// Runs up to `most` whole tiles from cell `p` on as long as everything goes on evenly; how many it ran.
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
        if tiles < 2 {
            return Ok(0);
        }
        // Slots that move, with their steps in bytes; indices with their values.
        let mut moves: Vec<(usize, usize)> = Vec::with_capacity(feeds.len() + stores.len());
        let mut counts: Vec<(usize, i64, i64)> = Vec::new();
        for (slot, feed) in feeds.iter_mut() {
            let (n, steady) = feed.steady();
            tiles = tiles.min(n);
            if tiles < 2 {
                return Ok(0);
            }
            match steady {
                Steady::Still(at) => self.ptr[*slot] = at.cast_mut(),
                Steady::Moves(at, step) => {
                    self.ptr[*slot] = at.cast_mut();
                    moves.push((*slot, step));
                }
                Steady::Counts(at, first, step) => {
                    self.ptr[*slot] = at.cast_mut();
                    counts.push((*slot, first, step));
                }
            }
        }
        for s in stores {
            self.ptr[s.slot] = s.base.wrapping_add(p * s.size);
            moves.push((s.slot, N * s.size));
        }
        let mut even = even_parts(reductions);
        for _ in 0..tiles {
            for (slot, value, step) in &mut counts {
                // SAFETY: an index has a tile buffer of N cells of 8 aligned bytes.
                unsafe { (self.count)(self.ptr[*slot], *value, *step) };
                *value = value.wrapping_add(step.wrapping_mul(N as i64));
            }
            self.tile();
            if !checks.is_empty() {
                check(checks, &self.ptr, N)?;
            }
            for e in &mut even {
                let piece = &mut reductions[e.of.0].parts[e.of.1].piece;
                piece.values = self.ptr[e.values];
                piece.valid = e.valid.map_or(std::ptr::null(), |v| self.ptr[v].cast_const());
                // SAFETY: fields and lanes were given at the start for this state, the walk stays in it, and the
                // tiles are valid.
                unsafe { (e.f)(piece) };
                piece.out += e.out;
                piece.position = piece.position.wrapping_add(e.position);
            }
            for (slot, step) in &moves {
                self.ptr[*slot] = self.ptr[*slot].wrapping_add(*step);
            }
        }
        for (_, feed) in feeds.iter_mut() {
            feed.skip(tiles);
        }
        for r in reductions.iter_mut() {
            r.walk.advance(tiles * N as u64);
        }
        Ok(tiles as usize)
    }
}

/// The parts of all reductions, their pieces set to whole tiles from the current cell on.
fn even_parts(reductions: &mut [Reduction]) -> Vec<Even> {
    let mut even = Vec::new();
    for (k, r) in reductions.iter_mut().enumerate() {
        let kept = r.walk.run() == Run::Kept;
        let (out, (position, step)) = (r.walk.out(), r.walk.position());
        for (j, part) in r.parts.iter_mut().enumerate() {
            let piece = &mut part.piece;
            (piece.out, piece.from, piece.to) = (out, 0, N);
            (piece.position, piece.step) = (position, step);
            piece.codes = std::ptr::null();
            let (mut f, mut values, mut valid) = (part.fns.lanes, part.value, part.valid);
            if kept {
                f = part.fns.row;
            } else if let (Some((a, b)), Some(product)) = (part.product, part.fns.lanes_mul) {
                (f, values, valid) = (product, a, Some(b));
            }
            even.push(Even {
                f,
                of: (k, j),
                values,
                valid,
                out: if kept { N } else { 0 },
                position: step.wrapping_mul(N as i64),
            });
        }
    }
    even
}

/// Refuses a tile in which a check's `bool` is true for one of the first `n` cells.
pub(super) fn check(checks: &[Check], ptr: &[*mut u8], n: usize) -> Result<(), KernelError> {
    for c in checks {
        // SAFETY: the slot is a tile of N bytes that the code has written.
        let bad = unsafe { std::slice::from_raw_parts(ptr[c.slot as usize], n) };
        if bad.iter().any(|b| *b != 0) {
            return Err(c.error.clone());
        }
    }
    Ok(())
}

/// Fetches ahead what the next tiles read in place, spread over the operations of a tile: a burst of loads would
/// stall on the few misses that a core can have outstanding.
pub(super) struct Fetch {
    /// (slot, bytes from the tile's start).
    lines: Vec<(usize, usize)>,
    /// For each operation the end of its part of the lines.
    ends: Vec<usize>,
}

impl Fetch {
    pub(super) fn new(feeds: &[(usize, Feed)], steps: usize) -> Fetch {
        let mut lines = Vec::new();
        for (slot, feed) in feeds {
            if let Some(size) = feed.in_place() {
                lines.extend((0..size).map(|l| (*slot, PREFETCH_BYTES + l * 64)));
            }
        }
        let ends = (1..=steps).map(|k| lines.len() * k / steps).collect();
        Fetch { lines, ends }
    }
}

#[inline]
fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address does nothing that can be seen.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
