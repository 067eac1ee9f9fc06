#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Counts of valid cells: `values` is validity, the state one `i64`.

use super::{Fns, Piece, PieceFn, nothing};
use crate::level::{Level, leveled};
use crate::ops::N;

#[inline(always)]
unsafe fn count_seq<M: Marker>(p: &Piece) {
    // SAFETY: the piece has values up to `to`.
    let v = unsafe { std::slice::from_raw_parts(p.values.add(p.from), p.to - p.from) };
    // A piece has fewer tiles than a byte can count.
    let mut lanes = [0u8; N];
    let (tiles, rest) = v.as_chunks::<N>();
    for tile in tiles {
        for i in 0..N {
            lanes[i] = lanes[i].wrapping_add(tile[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = lane.wrapping_add(*x);
    }
    let n = lanes.iter().fold(0u16, |s, x| s.wrapping_add(u16::from(*x)));
    // SAFETY: `out` is a cell of the field.
    unsafe { *p.fields[0].cast::<i64>().add(p.out) += i64::from(n) };
}
#[inline(always)]
unsafe fn count_row<M: Marker>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; the piece has as many values.
    let (s, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.add(p.from), n),
        )
    };
    for (s, v) in s.iter_mut().zip(v) {
        *s += i64::from(*v);
    }
}
unsafe fn count_group(p: &Piece) {
    for i in p.from..p.to {
        // SAFETY: codes were checked to be below the number of groups.
        unsafe {
            let s = p.fields[0].cast::<i64>().add(p.out + *p.codes.add(i - p.from) as usize);
            *s += i64::from(*p.values.add(i));
        }
    }
}
pub(super) unsafe fn count_init(p: &Piece) {
    // SAFETY: `from..to` are cells of the field.
    unsafe {
        std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.from), p.to - p.from)
            .fill(0);
    }
}
/// Lets functions without a type parameter use `leveled!`.
trait Marker {}
struct Plain;
impl Marker for Plain {}
leveled!(pick_count_seq, count_seq<M: Marker>(p: &Piece) as PieceFn);
leveled!(pick_count_row, count_row<M: Marker>(p: &Piece) as PieceFn);

/// A separate part that counts valid cells.
pub(crate) fn count(l: Level) -> Fns {
    Fns {
        lanes: pick_count_seq::<Plain>(l),
        seq: pick_count_seq::<Plain>(l),
        row: pick_count_row::<Plain>(l),
        rows: None,
        lines: None,
        by_tiles: false,
        has_positions: false,
        group: count_group,
        fold: nothing,
        init: count_init,
        reset: nothing,
        tails: None,
        is_sum: false,
        with_sum: None,
        uses_lanes: false,
    }
}
