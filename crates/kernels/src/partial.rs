#![expect(
    unsafe_code,
    reason = "cells are typed by pointer casts; each block says why it is sound"
)]
//! Partial states: what a reduction keeps of one region.
//!
//! A reduction sees the cells of its region as a row-major sequence in tiles of 64. Its axes, with lengths of 1 left
//! out and neighbours of one class merged, end in an *inner run*; how the cells of a run enter the state depends on
//! the class of that axis:
//!
//! ```text
//!   kept      cell i of the run goes to output cell base + i           in the order of the rows
//!   reduced   cell number c of the run adds to lane c mod 64;          at the end of the run the lanes are folded
//!             runs of less than 32 cells add straight to the state     (i += i + 32, i += i + 16, …) into the state
//!   grouped   cell i goes to output cell base + code[i]                in order
//! ```
//! Lanes of sums of `float64` are carried over into totals that lose nothing ([`mod@lanes`]).
//! So the order is a function of the region's shape and the reduced axes, and of nothing else. Sums of integers are
//! exact, so that order does not matter there. A variance has 16 lanes of its own, numbered by the tiles, which enter the
//! state in blocks; its short runs are taken in two passes and merged.

mod best;
mod count;
mod lanes;
mod mono;
mod tail;
mod variance;
mod wide;

use super::elem::MachineType;
use super::level::Level;
use super::ops::N;
use best::arg;
use mono::{
    Greatest, GreatestBool, Least, LeastBool, LeastTotal, ProdFloat, ProdInt, mono, sum, tailed,
};
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;
use variance::var;
use wide::{Half, Narrow, Signed, Unsigned, wide};

pub(crate) use best::{Best, Highest, Lowest};
pub(crate) use count::count;
pub(crate) use lanes::LANES_BYTES;
pub(crate) use tail::{Comparison, Tail, TailFn, TailFns};
pub(crate) use variance::{Moments, chan};

/// Shortest reduced run that goes through the lanes.
pub(crate) const LANE_RUN: u64 = 32;

/// Cells of a tile, or of several whole ones that lie one after the other, on their way into a state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// The fields of the state, whole arrays.
    pub(crate) fields: [*mut u8; 4],
    /// Output cell of the first cell of the piece (of the whole piece where the run is reduced).
    pub(crate) out: usize,
    /// The first tile's values.
    pub(crate) values: *const u8,
    /// The first tile's validity, or null; what a [`Tail`] reads beside the values.
    pub(crate) valid: *const u8,
    /// The bits of a tail's parameter.
    pub(crate) parameter: u64,
    /// First cell of the piece in the tile.
    pub(crate) from: usize,
    /// One past its last cell: at most [`N`], or the end of a whole tile where `from` is 0.
    pub(crate) to: usize,
    /// Room for the lanes: [`LANES_BYTES`].
    pub(crate) lanes: *mut u8,
    /// Groups of the piece's cells.
    pub(crate) codes: *const u32,
    /// Position (for argmin and argmax) of the first cell of the piece.
    pub(crate) position: i64,
    /// Step of the position from cell to cell.
    pub(crate) step: i64,
}

impl Piece {
    /// True if these are whole tiles.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.from == 0 && self.to.is_multiple_of(N)
    }
}

/// Enters a piece into a state.
///
/// # Safety
/// The pointers are those of a reducer that was checked against its buffers.
pub(crate) type PieceFn = unsafe fn(&Piece);

/// Enters several kept rows into the same cells of a state, one row after the other: any number of cells, none of them
/// masked. The piece tells the cells.
///
/// # Safety
/// As of [`PieceFn`]; every pointer is good for the values of the piece's cells.
pub(crate) type RowsFn = unsafe fn(&Piece, &[*const u8]);

/// Enters reduced runs of one length, which lie one after the other, into cells of a state that do too: whole runs, none
/// of their cells masked. Length of a run, and number of runs. The piece begins where the first run does in its tile, for
/// those to which that matters.
///
/// # Safety
/// As of [`PieceFn`]; the piece's values are those of all runs.
pub(crate) type LinesFn = unsafe fn(&Piece, usize, usize);

/// As the lanes of a variance, the first piece, and of a sum of floats: both take in the same cells.
///
/// # Safety
/// As of [`PieceFn`].
pub(crate) type PairFn = unsafe fn(&Piece, &Piece);

/// How one part of a state takes in cells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fns {
    /// A reduced run, through the lanes; equal to `seq` where lanes are not used.
    pub(crate) lanes: PieceFn,
    /// A reduced run, straight into the state.
    pub(crate) seq: PieceFn,
    /// A kept run.
    pub(crate) row: PieceFn,
    /// Several kept runs, where that is worth it.
    pub(crate) rows: Option<RowsFn>,
    /// Whole reduced runs, where cells that lie in memory need not go there tile by tile.
    pub(crate) lines: Option<LinesFn>,
    /// True if lanes are numbered by the region's tiles, and not from the first cell of a run on.
    pub(crate) by_tiles: bool,
    /// A grouped run.
    pub(crate) group: PieceFn,
    /// Folds the lanes into the state and resets them; the piece begins where the run began in its tile.
    pub(crate) fold: PieceFn,
    /// Sets cells `from..to` of the state to the identity (no limit of [`N`]).
    pub(crate) init: PieceFn,
    /// Sets the lanes to the identity.
    pub(crate) reset: PieceFn,
    /// `lanes` and `row` that do the last operations themselves.
    pub(crate) tails: Option<TailFn>,
    /// True for a sum of floats of the values' own type.
    pub(crate) is_sum: bool,
    /// `lanes` of a variance that make such a sum too.
    pub(crate) with_sum: Option<PairFn>,
    /// True if `lanes` really uses lanes, and `fold` must run.
    pub(crate) uses_lanes: bool,
}

/// Cells of a row that wait in registers while several rows enter them.
const HELD: usize = 16;

/// For what has no lanes.
unsafe fn nothing(_: &Piece) {}

macro_rules! all {
    ($k:expr, $T:ident => $e:expr) => {{
        macro_rules! arm {
            ($t:ty) => {{
                type $T = $t;
                $e
            }};
        }
        match $k {
            MachineType::Bool | MachineType::U8 => arm!(u8),
            MachineType::I8 => arm!(i8),
            MachineType::I16 => arm!(i16),
            MachineType::I32 => arm!(i32),
            MachineType::I64 => arm!(i64),
            MachineType::U16 => arm!(u16),
            MachineType::U32 => arm!(u32),
            MachineType::U64 => arm!(u64),
            MachineType::F32 => arm!(f32),
            MachineType::F64 => arm!(f64),
        }
    }};
}
pub(crate) use all;

/// Whether any cell is valid, as a part of its own: its cells are validity, the state one `bool`.
pub(crate) fn met(l: Level) -> Fns {
    mono::<GreatestBool>(l)
}

/// How a reduction of cells of type `dtype` takes them in, and the type in which it wants them. The count of a
/// nullable reduction is a part of its own ([`mod@count`], or [`met`]); so is that of a mean. `None` where it is not defined.
pub(crate) fn pick(kind: ReduceKind, dtype: DType, l: Level) -> Option<(Fns, DType)> {
    use ReduceKind::*;
    let k = MachineType::of(dtype);
    kind.result(dtype)?;
    Some(match kind {
        Sum | Mean | MeanOf(_) if dtype == DType::Float64 => (sum::<f64>(l), dtype),
        Sum | Mean | MeanOf(_) if dtype == DType::Float32 => (sum::<f32>(l), dtype),
        Sum if k == MachineType::U64 => (wide::<Unsigned>(l), DType::UInt64),
        Sum if k == MachineType::I64 => (wide::<Signed>(l), DType::Int64),
        Sum => match k {
            MachineType::Bool | MachineType::U8 => (wide::<Narrow<u8, u16>>(l), dtype),
            MachineType::I8 => (wide::<Narrow<i8, i16>>(l), dtype),
            MachineType::I16 => (wide::<Narrow<i16, i32>>(l), dtype),
            MachineType::I32 => (wide::<Half<i32>>(l), dtype),
            MachineType::U16 => (wide::<Narrow<u16, u32>>(l), dtype),
            MachineType::U32 => (wide::<Half<u32>>(l), dtype),
            _ => return None,
        },
        Mean | MeanOf(_) => return None,
        Prod if dtype == DType::Float64 => (mono::<ProdFloat<f64>>(l), dtype),
        Prod if dtype == DType::Float32 => (mono::<ProdFloat<f32>>(l), dtype),
        Prod => (mono::<ProdInt>(l), kind.result(dtype)?),
        Var { .. } if k == MachineType::F32 => (var::<f32>(l), dtype),
        Var { .. } => (var::<f64>(l), DType::Float64),
        Min | All if k == MachineType::Bool => (mono::<LeastBool>(l), dtype),
        Max | Any | MaxTotal if k == MachineType::Bool => (mono::<GreatestBool>(l), dtype),
        MinTotal if k == MachineType::Bool => (mono::<LeastBool>(l), dtype),
        MinTotal if k == MachineType::F32 => (mono::<LeastTotal<f32>>(l), dtype),
        MinTotal if k == MachineType::F64 => (mono::<LeastTotal<f64>>(l), dtype),
        Min if k == MachineType::F32 => (tailed::<Least<f32>>(l), dtype),
        Min if k == MachineType::F64 => (tailed::<Least<f64>>(l), dtype),
        Min | MinTotal => (all!(k, T => mono::<Least<T>>(l)), dtype),
        // NaN is the greatest and NaN propagates: the same thing.
        Max | MaxTotal if k == MachineType::F32 => (tailed::<Greatest<f32>>(l), dtype),
        Max | MaxTotal if k == MachineType::F64 => (tailed::<Greatest<f64>>(l), dtype),
        Max | MaxTotal => (all!(k, T => mono::<Greatest<T>>(l)), dtype),
        // Blocks of contractions add; no program reduces by it.
        Any | All | Add => return None,
        Count => (count(l), DType::Bool),
        ArgMin => (all!(k, T => arg::<Lowest, T>(l)), dtype),
        ArgMax => (all!(k, T => arg::<Highest, T>(l)), dtype),
    })
}
