#![expect(unsafe_code, reason = "cells are typed by pointer casts; blocks say why they are sound")]
//! Partial states: the state of a reduction over one region.
//!
//! A reduction sees the cells of its region as a row-major sequence in tiles of 64. Its axes (without those of length
//! 1, and with adjacent axes of one class merged) end in an *inner run*. The class of that axis determines how the
//! cells of a run are accumulated:
//!
//! ```text
//!   kept      cell i of the run goes to output cell base + i           in the order of the rows
//!   reduced   cell number c of the run adds to lane c mod 64;          at the end of the run the lanes are folded
//!             runs of less than 32 cells add straight to the state     (i += i + 32, i += i + 16, …) into the state
//!   grouped   cell i goes to output cell base + code[i]                in order
//! ```
//! Lanes of sums of `float64` are carried over into compensated totals ([`mod@lanes`]). So the order is a function of
//! the region's shape and the reduced axes alone. Sums of integers are exact, so their order does not matter. A
//! variance has 16 lanes of its own, numbered by the tiles, which are merged into the state in blocks; its short runs
//! take two passes and are then merged.

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

/// Length of the shortest reduced run that is accumulated in lanes.
pub(crate) const LANE_RUN: u64 = 32;

/// Cells of a tile, or of several contiguous whole tiles, that are accumulated into a state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Fields of the state, as whole arrays.
    pub(crate) fields: [*mut u8; 4],
    /// Output cell of the first cell of the piece (of the whole piece if the run is reduced).
    pub(crate) out: usize,
    /// Values of the first tile.
    pub(crate) values: *const u8,
    /// Validity of the first tile, or null; for a [`Tail`] the companion values.
    pub(crate) valid: *const u8,
    /// Bits of a tail's parameter.
    pub(crate) parameter: u64,
    /// First cell of the piece in its tile.
    pub(crate) from: usize,
    /// One past the last cell: at most [`N`], or the end of a whole tile if `from` is 0.
    pub(crate) to: usize,
    /// Memory of the lanes: [`LANES_BYTES`].
    pub(crate) lanes: *mut u8,
    /// Groups of the piece's cells.
    pub(crate) codes: *const u32,
    /// Position (for argmin and argmax) of the piece's first cell.
    pub(crate) position: i64,
    /// Increment of the position per cell.
    pub(crate) step: i64,
}

impl Piece {
    /// True if the piece consists of whole tiles.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.from == 0 && self.to.is_multiple_of(N)
    }
}

/// Accumulates a piece into a state.
///
/// # Safety
/// The pointers are those of a reducer that was checked against its buffers.
pub(crate) type PieceFn = unsafe fn(&Piece);

/// Accumulates several kept rows into the same cells of a state, one row after the other: any number of cells, none of
/// them masked. The piece holds the cells of the state.
///
/// # Safety
/// The contract of [`PieceFn`]; every pointer is valid for the values of the piece's cells.
pub(crate) type RowsFn = unsafe fn(&Piece, &[*const u8]);

/// Accumulates contiguous reduced runs of one length into contiguous cells of a state. The runs are whole and none of
/// their cells is masked. Arguments: the piece, the length of a run, and the number of runs. The piece begins at the
/// first run's place in its tile, for reductions that depend on it.
///
/// # Safety
/// The contract of [`PieceFn`]; the piece's values are those of all runs.
pub(crate) type LinesFn = unsafe fn(&Piece, usize, usize);

/// As `lanes` of a variance (the first piece) and of a sum of floats (the second), which read the same cells.
///
/// # Safety
/// The contract of [`PieceFn`].
pub(crate) type PairFn = unsafe fn(&Piece, &Piece);

/// The functions that accumulate cells into one part of a state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fns {
    /// A reduced run, in lanes; equal to `seq` if lanes are not used.
    pub(crate) lanes: PieceFn,
    /// A reduced run, directly into the state.
    pub(crate) seq: PieceFn,
    /// A kept run.
    pub(crate) row: PieceFn,
    /// Several kept runs, if that pays off.
    pub(crate) rows: Option<RowsFn>,
    /// Whole reduced runs that are read in place, without tiles.
    pub(crate) lines: Option<LinesFn>,
    /// True if lanes are numbered by the region's tiles instead of from the first cell of a run.
    pub(crate) by_tiles: bool,
    /// True if the state has positions.
    pub(crate) has_positions: bool,
    pub(crate) group: PieceFn,
    /// Folds the lanes into the state and resets them; the piece begins at the run's place in its tile.
    pub(crate) fold: PieceFn,
    /// Sets cells `from..to` of the state to the identity (no limit of [`N`]).
    pub(crate) init: PieceFn,
    /// Sets the lanes to the identity.
    pub(crate) reset: PieceFn,
    /// `lanes` and `row` with the last operations of the program fused in.
    pub(crate) tails: Option<TailFn>,
    /// True for a sum of floats whose input type is that of the values.
    pub(crate) is_sum: bool,
    /// `lanes` of a variance that also computes such a sum.
    pub(crate) with_sum: Option<PairFn>,
    /// True if `lanes` uses lanes, so that `fold` has to run.
    pub(crate) uses_lanes: bool,
}

/// Cells of a row that stay in registers while several rows are accumulated.
const HELD: usize = 16;

/// For reductions without lanes.
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

/// A separate part that records whether any cell is valid: its cells are validity, the state one `bool`.
pub(crate) fn met(l: Level) -> Fns {
    mono::<GreatestBool>(l)
}

/// Returns the functions of a reduction over cells of type `dtype`, and the type of values that they accept. The count
/// of a nullable reduction is a separate part ([`mod@count`], or [`met`]), as is that of a mean. `None` if the
/// reduction is not defined for the type.
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
        // NaN as the greatest value and NaN that propagates are equivalent here.
        Max | MaxTotal if k == MachineType::F32 => (tailed::<Greatest<f32>>(l), dtype),
        Max | MaxTotal if k == MachineType::F64 => (tailed::<Greatest<f64>>(l), dtype),
        Max | MaxTotal => (all!(k, T => mono::<Greatest<T>>(l)), dtype),
        // Blocks of contractions add, windows have quantiles; no program reduces with them.
        Any | All | Add | Quantile(_) => return None,
        Count => (count(l), DType::Bool),
        ArgMin => (all!(k, T => arg::<Lowest, T>(l)), dtype),
        ArgMax => (all!(k, T => arg::<Highest, T>(l)), dtype),
    })
}
