#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Positions of the least or greatest value.

use super::{Fns, LinesFn, Piece, PieceFn, nothing};
use crate::elem::{self, Elem};
use crate::level::{Level, leveled};
use crate::ops::N;

/// Running best values that stay in registers.
const BESIDE: usize = 32;

/// Preference of argmin or argmax between two values.
pub(crate) trait Best {
    /// True if `v` beats `s`; of two NaNs, or of two equal values, neither beats the other.
    fn beats<T: Elem>(v: T, s: T) -> bool;
    fn join<T: Elem>(a: T, b: T) -> T;
    fn worst<T: Elem>() -> T;
}
macro_rules! best {
    ($($name:ident $beats:tt $join:path, $worst:ident;)*) => { $(
        pub(crate) struct $name;
        impl Best for $name {
            #[inline(always)] fn beats<T: Elem>(v: T, s: T) -> bool { v $beats s || (v.is_nan() && !s.is_nan()) }
            #[inline(always)] fn join<T: Elem>(a: T, b: T) -> T { $join(a, b) }
            #[inline(always)] fn worst<T: Elem>() -> T { T::$worst() }
        }
    )* };
}
best! {
    Lowest < elem::minimum, top;
    Highest > elem::maximum, bottom;
}
#[inline(always)]
unsafe fn arg_seq<B: Best, T: Elem>(p: &Piece) {
    // SAFETY: `out` is a cell of both fields; the piece has `to` values.
    let (v, best, at) = unsafe {
        (
            std::slice::from_raw_parts(p.values.cast::<T>(), p.to),
            &mut *p.fields[0].cast::<T>().add(p.out),
            &mut *p.fields[1].cast::<i64>().add(p.out),
        )
    };
    if p.is_whole() && (*at >= 0 || p.valid.is_null()) {
        // The common case needs no search: nothing in the piece beats the current best. Masked cells hold the worst
        // value.
        let (tiles, _) = v.as_chunks::<N>();
        let mut x = [B::worst(); BESIDE];
        for part in tiles.as_flattened().as_chunks::<BESIDE>().0 {
            for i in 0..BESIDE {
                x[i] = B::join(x[i], part[i]);
            }
        }
        let mut w = BESIDE / 2;
        while w > 0 {
            for i in 0..w {
                x[i] = B::join(x[i], x[i + w]);
            }
            w /= 2;
        }
        if *at >= 0 && !B::beats(x[0], *best) {
            return;
        }
        if p.valid.is_null() {
            // The first cell that nothing beats: all others in the piece are no better.
            let same = |c: &T| *c == x[0] || c.is_nan();
            let tile = tiles.iter().position(|t| t.iter().fold(false, |any, c| any | same(c)));
            let within = tile.and_then(|t| tiles[t].iter().position(same));
            if let (Some(t), Some(i)) = (tile, within) {
                *best = tiles[t][i];
                *at = p.position + p.step * (t * N + i) as i64;
            }
            return;
        }
    }
    for (i, &v) in v.iter().enumerate().skip(p.from) {
        // SAFETY: validity, if present, has as many cells.
        let valid = p.valid.is_null() || unsafe { *p.valid.add(i) } != 0;
        if valid && (*at < 0 || B::beats(v, *best)) {
            *best = v;
            *at = p.position + p.step * (i - p.from) as i64;
        }
    }
}
#[inline(always)]
unsafe fn arg_row<B: Best, T: Elem>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; there are n values; fields do not overlap.
    let (best, at, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<T>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.cast::<T>().add(p.from), n),
        )
    };
    for i in 0..n {
        // SAFETY: validity, if present, has as many cells.
        let valid = p.valid.is_null() || unsafe { *p.valid.add(p.from + i) } != 0;
        let take = valid & ((at[i] < 0) | B::beats(v[i], best[i]));
        best[i] = if take { v[i] } else { best[i] };
        at[i] = if take { p.position } else { at[i] };
    }
}
/// Whole runs, of which each has the piece's positions: the best value of a run, then the first cell that has it.
#[inline(always)]
unsafe fn arg_lines<B: Best, T: Elem>(p: &Piece, len: usize, many: usize) {
    // SAFETY: the piece's values are those of all runs; `out` is the first of as many cells of both fields, which do
    // not overlap.
    let (values, best, at) = unsafe {
        (
            std::slice::from_raw_parts(p.values.cast::<T>(), len * many),
            std::slice::from_raw_parts_mut(p.fields[0].cast::<T>().add(p.out), many),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.out), many),
        )
    };
    for ((line, best), at) in values.chunks_exact(len).zip(best).zip(at) {
        let (parts, rest) = line.as_chunks::<BESIDE>();
        let mut x = [B::worst::<T>(); BESIDE];
        for part in parts {
            for (x, v) in x.iter_mut().zip(part) {
                *x = B::join(*x, *v);
            }
        }
        for (x, v) in x.iter_mut().zip(rest) {
            *x = B::join(*x, *v);
        }
        let mut half = BESIDE / 2;
        while half > 0 {
            for i in 0..half {
                x[i] = B::join(x[i], x[i + half]);
            }
            half /= 2;
        }
        if *at >= 0 && !B::beats(x[0], *best) {
            continue;
        }
        // The first cell that nothing beats.
        let same = |c: &T| *c == x[0] || c.is_nan();
        let block = parts.iter().position(|t| t.iter().fold(false, |any, c| any | same(c)));
        let first = match block {
            Some(b) => parts[b].iter().position(same).map(|i| b * BESIDE + i),
            None => rest.iter().position(same).map(|i| parts.len() * BESIDE + i),
        };
        if let Some(i) = first {
            *best = line[i];
            *at = p.position + p.step * i as i64;
        }
    }
}
unsafe fn arg_group<B: Best, T: Elem>(p: &Piece) {
    for i in p.from..p.to {
        let mut one = *p;
        // SAFETY: codes were checked to be below the number of groups.
        one.out = p.out + unsafe { *p.codes.add(i - p.from) } as usize;
        (one.from, one.to) = (i, i + 1);
        one.position = p.position + p.step * (i - p.from) as i64;
        // SAFETY: a piece of one cell.
        unsafe { arg_seq::<B, T>(&one) }
    }
}
unsafe fn arg_init<B: Best, T: Elem>(p: &Piece) {
    // SAFETY: `from..to` are cells of both fields.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<T>().add(p.from), p.to - p.from)
            .fill(B::worst());
        std::slice::from_raw_parts_mut(p.fields[1].cast::<i64>().add(p.from), p.to - p.from)
            .fill(-1);
    }
}
leveled!(pick_arg_seq, arg_seq<B: Best, T: Elem>(p: &Piece) as PieceFn);
leveled!(pick_arg_lines, arg_lines<B: Best, T: Elem>(p: &Piece, len: usize, many: usize) as LinesFn);
leveled!(pick_arg_row, arg_row<B: Best, T: Elem>(p: &Piece) as PieceFn);

/// The functions of an argmin or argmax.
pub(super) fn arg<B: Best, T: Elem>(l: Level) -> Fns {
    Fns {
        lanes: pick_arg_seq::<B, T>(l),
        seq: pick_arg_seq::<B, T>(l),
        row: pick_arg_row::<B, T>(l),
        rows: None,
        lines: Some(pick_arg_lines::<B, T>(l)),
        by_tiles: false,
        has_positions: true,
        group: arg_group::<B, T>,
        fold: nothing,
        init: arg_init::<B, T>,
        reset: nothing,
        tails: None,
        is_sum: false,
        with_sum: None,
        uses_lanes: false,
    }
}
