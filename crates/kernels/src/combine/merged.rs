//! Merging, block by block, of states that hold different cells.

use super::{BLOCK, Cell, State, cells, check, fields, finish, merge};
use crate::KernelError;
use crate::elem::{Elem, MachineType};
use crate::partial::all;
use smallvec::SmallVec;
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;

/// A state that holds a range of positions of the result along one axis.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Fields of the state: `[outer, len, inner]`.
    pub state: &'a State<'a>,
    /// The first position.
    pub first: usize,
    /// Number of positions.
    pub len: usize,
}

/// Destination of a merge.
#[derive(Debug)]
pub enum Merged<'a> {
    /// The fields of a state.
    State(SmallVec<[&'a mut [u8]; 4]>),
    /// Values, as [`finish`] writes them.
    Value {
        /// Cells.
        value: &'a mut [u8],
        /// Validity, if the cells can be masked.
        valid: Option<&'a mut [u8]>,
    },
}

/// Merges the states `parts` (in row-major order of the fan) into `out`, of `(outer, len, inner)` cells.
///
/// As [`combine`](super::combine()), for states that hold ranges of the positions along an axis. Each cell is merged
/// from the parts that hold it; a cell that no part holds gets the state of no cell. Only the result is held as a
/// whole.
///
/// # Errors
/// The errors of [`combine`](super::combine()) and [`finish`].
pub fn merged(
    kind: ReduceKind,
    dtype: DType,
    nullable: bool,
    parts: &[Part<'_>],
    (outer, len, inner): (usize, usize, usize),
    mut out: Merged<'_>,
) -> Result<(), KernelError> {
    let types = check(kind, dtype, nullable)?;
    for p in parts {
        let beyond = p.first + p.len > len;
        fields(&types, p.state.iter().map(|f| f.len()), p.state.len(), outer * p.len * inner)?;
        if beyond {
            let (got, expected) = ((p.first + p.len) as u64, len as u64);
            return Err(KernelError::Buffer { what: "groups of a state", got, expected });
        }
    }
    let total = outer * len * inner;
    let masks = kind.nullable(nullable);
    match &out {
        Merged::State(out) => fields(&types, out.iter().map(|f| f.len()), out.len(), total)?,
        Merged::Value { value, valid } => {
            let result = kind.result(dtype).map_or(0, |d| cells(value.len(), d));
            let known = valid.as_ref().map_or(if masks { 0 } else { total }, |v| v.len());
            if result.min(known) < total {
                let (got, expected) = (result.min(known) as u64, total as u64);
                return Err(KernelError::Buffer { what: "cells of merged states", got, expected });
            }
        }
    }
    let none = identity(kind, dtype, types.len());
    let mut cuts: Vec<usize> = vec![0, len];
    cuts.extend(parts.iter().flat_map(|p| [p.first, p.first + p.len]));
    cuts.sort_unstable();
    cuts.dedup();
    let mut block: SmallVec<[Vec<u8>; 4]> =
        types.iter().map(|d| vec![0; BLOCK.min(total) * d.size()]).collect();
    let mut having: Vec<&Part<'_>> = Vec::with_capacity(parts.len());
    for o in 0..outer {
        for cut in cuts.windows(2) {
            let (from, to) = (cut[0], cut[1]);
            having.clear();
            having.extend(parts.iter().filter(|p| p.first <= from && to <= p.first + p.len));
            for start in (0..(to - from) * inner).step_by(BLOCK) {
                let n = BLOCK.min((to - from) * inner - start);
                let begin = (o * len + from) * inner + start;
                let mut state: SmallVec<[&mut [u8]; 4]> =
                    block.iter_mut().zip(&types).map(|(b, d)| &mut b[..n * d.size()]).collect();
                let place = |p: &Part<'_>| (o * p.len + from - p.first) * inner + start;
                let Some((first, rest)) = having.split_first() else {
                    for ((s, d), cell) in state.iter_mut().zip(&types).zip(&none) {
                        s.chunks_exact_mut(d.size())
                            .for_each(|s| s.copy_from_slice(&cell[..d.size()]));
                    }
                    emit(kind, dtype, nullable, &state, begin, &types, &mut out)?;
                    continue;
                };
                for ((s, f), d) in state.iter_mut().zip(first.state).zip(&types) {
                    let at = place(first) * d.size();
                    s.copy_from_slice(&f[at..at + n * d.size()]);
                }
                for p in rest {
                    let at = place(p);
                    let part: SmallVec<[&[u8]; 4]> = p
                        .state
                        .iter()
                        .zip(&types)
                        .map(|(f, d)| &f[at * d.size()..(at + n) * d.size()])
                        .collect();
                    merge(kind, dtype, &types, &part, &mut state, n);
                }
                emit(kind, dtype, nullable, &state, begin, &types, &mut out)?;
            }
        }
    }
    Ok(())
}

/// Writes the cells of a merged block, starting at cell `at`.
fn emit(
    kind: ReduceKind,
    dtype: DType,
    nullable: bool,
    state: &[&mut [u8]],
    at: usize,
    types: &[DType],
    out: &mut Merged<'_>,
) -> Result<(), KernelError> {
    match out {
        Merged::State(fields) => {
            for ((to, s), d) in fields.iter_mut().zip(state).zip(types) {
                to[at * d.size()..][..s.len()].copy_from_slice(s);
            }
            Ok(())
        }
        Merged::Value { value, valid } => {
            let n = cells(state[0].len(), types[0]);
            let size = kind.result(dtype).map_or(1, |d| d.size());
            let state: SmallVec<[&[u8]; 4]> = state.iter().map(|s| &**s).collect();
            let value = &mut value[at * size..(at + n) * size];
            let valid = valid.as_deref_mut().map(|v| &mut v[at..at + n]);
            finish(kind, dtype, nullable, &state, value, valid)
        }
    }
}

/// The identity state: the bytes of each field, in the first places.
fn identity(kind: ReduceKind, dtype: DType, fields: usize) -> SmallVec<[[u8; 8]; 4]> {
    use ReduceKind::*;
    fn bytes<T: Cell>(cell: T) -> [u8; 8] {
        let mut b = [0; 8];
        cell.write(&mut b, 0);
        b
    }
    let k = MachineType::of(dtype);
    let least = || match k {
        MachineType::Bool => bytes(0u8),
        _ => all!(k, T => bytes(<T as Elem>::bottom())),
    };
    let greatest = || match k {
        MachineType::Bool => bytes(1u8),
        _ => all!(k, T => bytes(<T as Elem>::top())),
    };
    let value = match kind {
        Sum | Mean | MeanOf(_) | Var { .. } | Count | Any | Add | Quantile(_) => bytes(0u64),
        Prod if dtype.is_float() => bytes(1f64),
        Prod => bytes(1u64),
        All => bytes(1u8),
        MinTotal if k == MachineType::F32 => bytes(f32::NAN),
        MinTotal if k == MachineType::F64 => bytes(f64::NAN),
        Min | MinTotal | ArgMin => greatest(),
        Max | MaxTotal | ArgMax => least(),
    };
    let second = if matches!(kind, ArgMin | ArgMax) { bytes(-1i64) } else { [0; 8] };
    [value, second].into_iter().chain(std::iter::repeat([0; 8])).take(fields).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const KINDS: [ReduceKind; 14] = [
        ReduceKind::Sum,
        ReduceKind::Prod,
        ReduceKind::Mean,
        ReduceKind::MeanOf(1),
        ReduceKind::Var { ddof: 1 },
        ReduceKind::Min,
        ReduceKind::Max,
        ReduceKind::MinTotal,
        ReduceKind::MaxTotal,
        ReduceKind::Any,
        ReduceKind::All,
        ReduceKind::Count,
        ReduceKind::ArgMin,
        ReduceKind::ArgMax,
    ];

    /// The identity state changes no state of one cell, for each kind and type.
    #[test]
    fn the_state_of_no_cell_adds_nothing() {
        for dtype in [DType::Float64, DType::Float32, DType::Int16, DType::UInt64, DType::Bool] {
            for kind in KINDS.into_iter().filter(|k| k.result(dtype).is_some()) {
                let types = kind.state(dtype, true);
                let none = identity(kind, dtype, types.len());
                let state: Vec<Vec<u8>> = types
                    .iter()
                    .map(|d| {
                        let mut b = vec![0; d.size()];
                        b[0] = 1;
                        b
                    })
                    .collect();
                let fields: Vec<&[u8]> = state.iter().map(|f| &f[..]).collect();
                let zip = none.iter().zip(&types);
                let mut got: Vec<Vec<u8>> = zip.map(|(n, d)| n[..d.size()].to_vec()).collect();
                let mut out: Vec<&mut [u8]> = got.iter_mut().map(|f| &mut f[..]).collect();
                merge(kind, dtype, &types, &fields, &mut out, 1);
                assert_eq!(got, state, "{kind} {dtype}");
            }
        }
    }

    /// Sums and counts of groups; two parts share one group and no part holds the last but one.
    #[test]
    fn spans_meet_where_they_overlap() {
        let state = |sums: &[f64]| -> [Vec<u8>; 2] {
            let bytes = |v: &[f64]| v.iter().flat_map(|x| x.to_ne_bytes()).collect();
            [bytes(sums), sums.iter().flat_map(|_| 1i64.to_ne_bytes()).collect()]
        };
        // [outer 2, groups, inner 2]
        let a = state(&[1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]);
        let b = state(&[5.0, 6.0, 7.0, 8.0, 50.0, 60.0, 70.0, 80.0]);
        let c = state(&[9.0, 9.5, 90.0, 95.0]);
        let fields =
            |s: &'static [Vec<u8>; 2]| -> Vec<&'static [u8]> { s.iter().map(|f| &f[..]).collect() };
        let (a, b, c) = (
            fields(Box::leak(Box::new(a))),
            fields(Box::leak(Box::new(b))),
            fields(Box::leak(Box::new(c))),
        );
        let parts = [
            Part { state: &a, first: 0, len: 2 },
            Part { state: &b, first: 1, len: 2 },
            Part { state: &c, first: 4, len: 1 },
        ];
        let mut value = vec![0; 2 * 5 * 2 * 8];
        let mut valid = vec![7; 2 * 5 * 2];
        let out = Merged::Value { value: &mut value, valid: Some(&mut valid) };
        merged(ReduceKind::Mean, DType::Float64, true, &parts, (2, 5, 2), out).unwrap();
        let got: Vec<f64> = (0..20).map(|i| f64::read(&value, i)).collect();
        let half = [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 0.0, 0.0, 9.0, 9.5];
        let want: Vec<f64> = half.iter().copied().chain(half.iter().map(|x| x * 10.0)).collect();
        assert_eq!(got, want);
        let known = [1, 1, 1, 1, 1, 1, 0, 0, 1, 1];
        assert_eq!(valid, [known, known].concat());
    }
}
