//! Reductions over any axes compared with loops over cells.

use super::{buffer, bytes_mut, bytes_of, field, lcg, run};
use crate::combine;
use crate::fused::*;
use tessera_planner::ir::{AxisReduce, Groups};
use tessera_planner::plan::FusedOutput;
use tessera_planner::program::{Arg, Program, ScalarOp as S};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

/// All reductions of an array of `shape` through random strides, compared with a loop over cells.
fn reduce_case(shape: &[u64], how: &[u8], nullable: bool, dtype: DType) {
    let n: u64 = shape.iter().product();
    let rank = shape.len();
    // The region starts at 1 on each axis of a larger stage.
    let stage: Vec<u64> = shape.iter().map(|x| x + 3).collect();
    let region = Region::at(&vec![1; rank], shape);
    let axes: Vec<AxisReduce> = how
        .iter()
        .enumerate()
        .map(|(a, h)| match h {
            0 => AxisReduce::Keep,
            1 => AxisReduce::All,
            _ => AxisReduce::Group(Groups {
                codes: (0..stage[a]).map(|i| (i * 7 % 3) as u32).collect::<Vec<_>>().into(),
                count: 3,
            }),
        })
        .collect();
    let mut r = lcg(n + u64::from(nullable));
    let cells: Vec<i32> = (0..n).map(|_| (r() * 20.0) as i32 - 10).collect();
    let valid: Vec<u8> = (0..n).map(|_| u8::from(r() < 0.7)).collect();
    // Stored transposed, so that the inner axis is strided.
    let mut strides = vec![0i64; rank];
    let mut s = 1;
    for a in 0..rank {
        strides[a] = s;
        s *= shape[a] as i64;
    }
    let at = |i: usize, step: &[i64]| {
        let (mut i, mut o) = (i as u64, 0i64);
        for a in (0..rank).rev() {
            o += (i % shape[a]) as i64 * step[a];
            i /= shape[a];
        }
        o as usize
    };
    let mut moved = vec![0f64; n as usize];
    for (i, c) in cells.iter().enumerate() {
        moved[at(i, &strides)] = f64::from(*c);
    }
    let row: Vec<i64> = tessera_planner::region::strides(shape).to_vec();
    let mut p = Program { inputs: vec![DType::Float64, DType::Bool], insts: vec![] };
    let v = p.push(S::Cast, dtype, &[Arg::Input(0)]);
    let kinds: Vec<ReduceKind> = [
        ReduceKind::Sum,
        ReduceKind::Prod,
        ReduceKind::Mean,
        ReduceKind::Var { ddof: 1 },
        ReduceKind::Min,
        ReduceKind::Max,
        ReduceKind::MinTotal,
        ReduceKind::MaxTotal,
        ReduceKind::Count,
        ReduceKind::ArgMin,
        ReduceKind::ArgMax,
    ]
    .into_iter()
    .filter(|k| k.result(dtype).is_some())
    .collect();
    let mask = nullable.then_some(Arg::Input(1));
    let fused = Fused {
        batch: None,
        program: p,
        inputs: vec![field(0), field(1)],
        outputs: kinds
            .iter()
            .map(|k| FusedOutput::Reduce {
                kind: *k,
                axes: axes.iter().cloned().collect(),
                value: v,
                valid: mask,
            })
            .collect(),
    };
    let ins = [
        StridedInput {
            bytes: bytes_of(&moved),
            offset: 0,
            strides: &strides,
            dtype: DType::Float64,
        },
        StridedInput { bytes: &valid, offset: 0, strides: &row, dtype: DType::Bool },
    ];
    let out = run(&fused, &region, &stage, &ins).unwrap();
    // By hand: the cells of each output cell, with their positions over the reduced axes of the stage.
    let out_shape: Vec<usize> = axes
        .iter()
        .enumerate()
        .map(|(a, r)| match r {
            AxisReduce::Keep => shape[a] as usize,
            AxisReduce::All => 1,
            AxisReduce::Group(_) => 3,
        })
        .collect();
    let outs: usize = out_shape.iter().product();
    let mut lists: Vec<Vec<(f64, i64)>> = vec![vec![]; outs];
    for i in 0..n as usize {
        if nullable && valid[i] == 0 {
            continue;
        }
        let (mut rest, mut o, mut pos) = (i as u64, 0usize, 0i64);
        let mut index = vec![0u64; rank];
        for a in (0..rank).rev() {
            index[a] = rest % shape[a];
            rest /= shape[a];
        }
        for a in 0..rank {
            let absolute = index[a] + 1;
            let place = match &axes[a] {
                AxisReduce::Keep => index[a] as usize,
                AxisReduce::All => 0,
                AxisReduce::Group(g) => g.codes[absolute as usize] as usize,
            };
            o = o * out_shape[a] + place;
            if !matches!(axes[a], AxisReduce::Keep) {
                pos = pos * stage[a] as i64 + absolute as i64;
            }
        }
        lists[o].push((f64::from(cells[i]), pos));
    }
    for (k, state) in kinds.iter().zip(&out) {
        let result = k.result(dtype).unwrap();
        let fields: Vec<&[u8]> = state.iter().map(|f| bytes_of(f)).collect();
        let masks = k.nullable(nullable);
        let (mut value, mut ok) = (buffer(outs * result.size()), vec![7u8; outs]);
        let value_bytes = &mut bytes_mut(&mut value)[..outs * result.size()];
        combine::finish(*k, dtype, nullable, &fields, value_bytes, masks.then_some(&mut ok[..]))
            .unwrap();
        for (o, list) in lists.iter().enumerate() {
            let s = result.size();
            let got = Scalar::from_le_bytes(result, &bytes_of(&value)[o * s..(o + 1) * s]);
            if masks {
                assert_eq!(ok[o] == 0, list.is_empty(), "{k} {shape:?} {how:?} cell {o}");
                if list.is_empty() {
                    continue;
                }
            }
            let c = list.len() as f64;
            let sum: f64 = list.iter().map(|x| x.0).sum();
            let first = |best: f64| list.iter().find(|x| x.0 == best).map_or(-1, |x| x.1) as f64;
            let min = list.iter().map(|x| x.0).fold(f64::INFINITY, f64::min);
            let max = list.iter().map(|x| x.0).fold(f64::NEG_INFINITY, f64::max);
            let want = match k {
                ReduceKind::Sum => sum,
                ReduceKind::Prod if dtype.is_float() => list.iter().map(|x| x.0).product(),
                ReduceKind::Prod => {
                    list.iter().fold(1i64, |p, x| p.wrapping_mul(x.0 as i64)) as f64
                }
                ReduceKind::Mean => sum / c,
                ReduceKind::Var { .. } if list.is_empty() => f64::NAN,
                ReduceKind::Var { .. } => {
                    list.iter().map(|x| (x.0 - sum / c).powi(2)).sum::<f64>() / (c - 1.0)
                }
                ReduceKind::Count => c,
                _ if list.is_empty() => continue,
                ReduceKind::Min | ReduceKind::MinTotal => min,
                ReduceKind::Max | ReduceKind::MaxTotal => max,
                ReduceKind::ArgMin => first(min),
                _ => first(max),
            };
            let got = got.as_f64();
            let near = got == want
                || (got.is_nan() && want.is_nan())
                || (dtype.is_float() && (got - want).abs() <= 1e-6 * want.abs() + 1e-12);
            assert!(near, "{k} {shape:?} {how:?} {nullable} {dtype} cell {o}: {got} {want}");
        }
    }
}

#[test]
fn reductions_of_any_axes_are_those_of_a_loop() {
    let shapes: &[&[u64]] =
        &[&[1], &[5], &[70], &[200], &[3, 70], &[70, 3], &[5, 4, 33], &[4, 1, 40], &[2, 3, 4, 5]];
    for shape in shapes {
        let rank = shape.len() as u32;
        for code in 0..3u32.pow(rank) {
            let how: Vec<u8> = (0..rank).map(|a| (code / 3u32.pow(a) % 3) as u8).collect();
            for nullable in [false, true] {
                reduce_case(shape, &how, nullable, DType::Float64);
                if code % 2 == 0 {
                    reduce_case(shape, &how, nullable, DType::Int16);
                    reduce_case(shape, &how, nullable, DType::Float32);
                    reduce_case(shape, &how, nullable, DType::Int64);
                }
            }
        }
    }
}
