#![allow(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "numbers are seen as bytes")]
//! Whole programs, at every level.

mod reduce;

use super::*;
use tessera_planner::ir::{AxisReduce, Groups};
use tessera_planner::plan::{FusedInput, FusedOutput};
use tessera_planner::program::{Arg, Program, ScalarOp as S};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

/// Bytes aligned for every type.
pub(super) fn buffer(bytes: usize) -> Vec<u64> {
    vec![0xdead_beef_dead_beef; bytes.div_ceil(8)]
}
pub(super) fn bytes_of<T: Copy>(v: &[T]) -> &[u8] {
    // SAFETY: plain numbers as bytes.
    unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), size_of_val(v)) }
}
fn bytes_mut(v: &mut [u64]) -> &mut [u8] {
    // SAFETY: plain numbers as bytes.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), size_of_val(v)) }
}
pub(super) fn typed<T: Copy>(v: &[u64], n: usize) -> Vec<T> {
    assert!(n * size_of::<T>() <= v.len() * 8);
    // SAFETY: enough bytes, aligned for 8.
    unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), n) }.to_vec()
}

/// Runs at a level; returns the fields of the outputs.
pub(super) fn run_at(
    level: Level,
    fused: &Fused,
    region: &Region,
    stage: &[u64],
    inputs: &[StridedInput<'_>],
) -> Result<Vec<Vec<Vec<u64>>>, KernelError> {
    let c = compile_at(fused, stage.len(), level)?;
    let mut bufs: Vec<Vec<Vec<u64>>> = Vec::new();
    for o in &fused.outputs {
        bufs.push(match o {
            FusedOutput::Store { value, valid } => {
                let n = region.cells() as usize;
                let mut f = vec![buffer(n * fused.program.dtype(*value).size())];
                if valid.is_some() {
                    f.push(buffer(n));
                }
                f
            }
            FusedOutput::Certain { value, .. } => {
                vec![buffer(region.cells() as usize * fused.program.dtype(*value).size())]
            }
            FusedOutput::Reduce { kind, axes, value, valid } => {
                let n: u64 = axes
                    .iter()
                    .enumerate()
                    .map(|(a, r)| match r {
                        AxisReduce::Keep => region.len(a),
                        AxisReduce::All => 1,
                        AxisReduce::Group(g) => u64::from(g.count),
                    })
                    .product();
                let state = kind.state(fused.program.dtype(*value), valid.is_some());
                state.iter().map(|d| buffer(n as usize * d.size())).collect()
            }
        });
    }
    let mut outs: Vec<OutputFields<'_>> = bufs
        .iter_mut()
        .map(|f| OutputFields {
            fields: f.iter_mut().map(|b| bytes_mut(b)).collect(),
            stream: true,
        })
        .collect();
    c.run(region, stage, inputs, &mut outs, &mut Scratch::new(), &|| false)?;
    Ok(bufs)
}

/// Runs at every level and asserts equal bits.
pub(super) fn run(
    fused: &Fused,
    region: &Region,
    stage: &[u64],
    inputs: &[StridedInput<'_>],
) -> Result<Vec<Vec<Vec<u64>>>, KernelError> {
    let mut all: Vec<_> =
        Level::available().into_iter().map(|l| run_at(l, fused, region, stage, inputs)).collect();
    let first = all.remove(0);
    for other in all {
        assert_eq!(first, other);
    }
    first
}

pub(super) fn field(i: u32) -> FusedInput {
    FusedInput::Field { input: i, field: 0 }
}

pub(super) fn dense<'a, T: Copy>(v: &'a [T], strides: &'a [i64], dtype: DType) -> StridedInput<'a> {
    StridedInput { bytes: bytes_of(v), offset: 0, strides, dtype }
}

/// sum(sqrt(a*a + b*b) * exp(-c)), and the value itself stored.
pub(super) fn bench_program(store: bool) -> Fused {
    let f = DType::Float64;
    let mut p = Program { inputs: vec![f; 3], insts: vec![] };
    let (a, b, c) = (Arg::Input(0), Arg::Input(1), Arg::Input(2));
    let aa = p.push(S::Mul, f, &[a, a]);
    let bb = p.push(S::Mul, f, &[b, b]);
    let s = p.push(S::Add, f, &[aa, bb]);
    let s = p.push(S::Sqrt, f, &[s]);
    let n = p.push(S::Neg, f, &[c]);
    let e = p.push(S::Exp, f, &[n]);
    let v = p.push(S::Mul, f, &[s, e]);
    let mut outputs = vec![FusedOutput::Reduce {
        kind: ReduceKind::Sum,
        axes: [AxisReduce::All].into_iter().collect(),
        value: v,
        valid: None,
    }];
    if store {
        outputs.push(FusedOutput::Store { value: v, valid: None });
    }
    Fused { program: p, inputs: (0..3).map(field).collect(), outputs, batch: None }
}

pub(super) fn lcg(seed: u64) -> impl FnMut() -> f64 {
    let mut s = seed;
    move || {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (s >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[test]
fn a_difference_that_is_divided_is_rounded_twice() {
    let f = DType::Float64;
    let mut p = Program { inputs: vec![f; 3], insts: vec![] };
    let (a, b, c) = (Arg::Input(0), Arg::Input(1), Arg::Input(2));
    let d = p.push(S::Sub, f, &[a, b]);
    let v = p.push(S::Div, f, &[d, c]);
    let outputs = vec![FusedOutput::Store { value: v, valid: None }];
    let fused = Fused { program: p, inputs: (0..3).map(field).collect(), outputs, batch: None };
    for n in [1u64, 63, 64, 200, 1000] {
        let mut next = lcg(n);
        let mut line = || (0..n).map(|_| next() - 0.5).collect::<Vec<f64>>();
        let (x, m, mut s) = (line(), line(), line());
        // Zeros of both signs, an infinity and NaN are divisors too.
        for (at, odd) in [0.0, -0.0, f64::INFINITY, f64::NAN].into_iter().enumerate() {
            s[(at * 7) % n as usize] = odd;
        }
        let at = [1i64];
        let inputs = [dense(&x, &at, f), dense(&m, &at, f), dense(&s, &at, f)];
        let got = run(&fused, &Region::whole(&[n]), &[n], &inputs).unwrap();
        let got: Vec<u64> =
            typed::<f64>(&got[0][0], n as usize).iter().map(|v| v.to_bits()).collect();
        let want: Vec<u64> = (0..n as usize).map(|i| ((x[i] - m[i]) / s[i]).to_bits()).collect();
        assert_eq!(got, want, "{n}");
    }
}

#[test]
fn the_sum_is_the_sum_of_the_cells() {
    for n in [0u64, 1, 31, 63, 64, 65, 640, 1000] {
        let mut r = lcg(n);
        let mut make = || (0..n).map(|_| r() * 4.0 - 2.0).collect::<Vec<f64>>();
        let (a, b, c) = (make(), make(), make());
        let ins = [
            dense(&a, &[1], DType::Float64),
            dense(&b, &[1], DType::Float64),
            dense(&c, &[1], DType::Float64),
        ];
        let out = run(&bench_program(true), &Region::whole(&[n]), &[n], &ins).unwrap();
        let only = run(&bench_program(false), &Region::whole(&[n]), &[n], &ins).unwrap();
        assert_eq!(out[0], only[0], "what else is computed does not change the bits");
        let cells: Vec<f64> = typed(&out[1][0], n as usize);
        let mut want = 0.0;
        for i in 0..n as usize {
            let x = (a[i] * a[i] + b[i] * b[i]).sqrt() * (-c[i]).exp();
            assert!((cells[i] - x).abs() <= 4e-16 * x.abs(), "{} {x}", cells[i]);
            want += x;
        }
        let got = typed::<f64>(&out[0][0], 1)[0];
        assert!((got - want).abs() <= 1e-13 * want.abs(), "{got} {want}");
    }
}

#[test]
fn division_by_zero_is_an_error_only_where_it_is_needed() {
    let i = DType::Int32;
    let mut p = Program { inputs: vec![i, i, DType::Bool], insts: vec![] };
    let q = p.push(S::TruncDiv, i, &[Arg::Input(0), Arg::Input(1)]);
    let zero = Arg::Const(Scalar::zero(i));
    let safe = p.push(S::Ne, DType::Bool, &[Arg::Input(1), zero]);
    let guarded = p.push(S::Where, i, &[safe, q, zero]);
    let (a, b, m) = ([7i32, -7, 5], [2i32, 2, 0], [1u8, 1, 0]);
    let ins = [dense(&a, &[1], i), dense(&b, &[1], i), dense(&m, &[1], DType::Bool)];
    let go = |value, valid| {
        let fused = Fused {
            batch: None,
            program: p.clone(),
            inputs: (0..3).map(field).collect(),
            outputs: vec![FusedOutput::Store { value, valid }],
        };
        run(&fused, &Region::whole(&[3]), &[3], &ins)
    };
    assert!(matches!(go(q, None), Err(KernelError::Domain { .. })));
    let masked = go(q, Some(Arg::Input(2))).unwrap();
    assert_eq!(typed::<i32>(&masked[0][0], 2), [3, -3]);
    assert_eq!(typed::<i32>(&go(guarded, None).unwrap()[0][0], 3), [3, -3, 0]);
    // The same for a sum of the value.
    let sum = |value, valid| {
        let fused = Fused {
            batch: None,
            program: p.clone(),
            inputs: (0..3).map(field).collect(),
            outputs: vec![FusedOutput::Reduce {
                kind: ReduceKind::Sum,
                axes: [AxisReduce::All].into_iter().collect(),
                value,
                valid,
            }],
        };
        run(&fused, &Region::whole(&[3]), &[3], &ins)
    };
    assert!(sum(q, None).is_err());
    assert_eq!(typed::<i64>(&sum(q, Some(Arg::Input(2))).unwrap()[0][0], 1), [0]);
}

#[test]
fn indices_count_over_the_stage() {
    let p = Program { inputs: vec![DType::Int64], insts: vec![] };
    let fused = Fused {
        batch: None,
        program: p,
        inputs: vec![FusedInput::Index { offset: 5, strides: [100, -1].into_iter().collect() }],
        outputs: vec![FusedOutput::Store { value: Arg::Input(0), valid: None }],
    };
    let region = Region::at(&[2, 3], &[3, 50]);
    let got: Vec<i64> = typed(&run(&fused, &region, &[10, 60], &[]).unwrap()[0][0], 150);
    for (k, g) in got.iter().enumerate() {
        let (i, j) = (2 + k as i64 / 50, 3 + k as i64 % 50);
        assert_eq!(*g, 5 + 100 * i - j);
    }
}

#[test]
fn views_that_leave_their_memory_are_refused() {
    let a = [1.0f64; 10];
    let fused = bench_program(false);
    for (offset, stride) in [(1, 1), (0, 2), (0, -1), (-1, 1)] {
        let i =
            StridedInput { bytes: bytes_of(&a), offset, strides: &[stride], dtype: DType::Float64 };
        let e = run(&fused, &Region::whole(&[10]), &[10], &[i, i, i]);
        assert!(matches!(e, Err(KernelError::Buffer { .. })), "{offset} {stride}");
    }
}

#[test]
fn a_running_program_can_be_stopped() {
    let a = [1.0f64; 100];
    let c = compile(&bench_program(false), 1).unwrap();
    let i = dense(&a, &[1], DType::Float64);
    let mut state = buffer(8);
    let mut out = [OutputFields { fields: vec![bytes_mut(&mut state)], stream: false }];
    let region = Region::whole(&[100]);
    let e = c.run(&region, &[100], &[i, i, i], &mut out, &mut Scratch::new(), &|| true);
    assert_eq!(e, Err(KernelError::Cancelled));
}

#[test]
fn a_variance_far_from_zero_keeps_its_digits() {
    // np.var(1e9 + np.arange(1000) % 7) is that of np.arange(1000) % 7: 3.9949909999999993.
    let x: Vec<f64> = (0..1000).map(|i| 1e9 + f64::from(i % 7)).collect();
    let fused = |axes: Vec<AxisReduce>| Fused {
        batch: None,
        program: Program { inputs: vec![DType::Float64], insts: vec![] },
        inputs: vec![field(0)],
        outputs: vec![FusedOutput::Reduce {
            kind: ReduceKind::Var { ddof: 0 },
            axes: axes.into_iter().collect(),
            value: Arg::Input(0),
            valid: None,
        }],
    };
    let whole = fused(vec![AxisReduce::All]);
    let ins = [dense(&x, &[1], DType::Float64)];
    let s = &run(&whole, &Region::whole(&[1000]), &[1000], &ins).unwrap()[0];
    let got = typed::<f64>(&s[3], 1)[0] / 1000.0;
    let want = 3.9949909999999993;
    assert!((got - want).abs() < 1e-14, "{got}");
    let ins = [dense(&x, &[1, 0], DType::Float64)];
    let outer = fused(vec![AxisReduce::All, AxisReduce::Keep]);
    let s = &run(&outer, &Region::whole(&[1000, 3]), &[1000, 3], &ins).unwrap()[0];
    let got = typed::<f64>(&s[3], 3)[2] / 1000.0;
    assert!((got - want).abs() < 1e-14, "{got}");
}

/// A view with its axes in any order in memory, some of them reversed: a transpose, in panels and without.
#[test]
fn transposed_inputs_are_read_in_place() {
    let f = DType::Float32;
    let mut p = Program { inputs: vec![f; 2], insts: vec![] };
    let v = p.push(S::Add, f, &[Arg::Input(0), Arg::Input(1)]);
    let fused = Fused {
        batch: None,
        program: p,
        inputs: (0..2).map(field).collect(),
        outputs: vec![FusedOutput::Store { value: v, valid: None }],
    };
    let shapes: [&[u64]; 7] =
        [&[1, 1], &[3, 5], &[64, 64], &[100, 70], &[7, 1300], &[5, 33, 40], &[9, 2, 3, 31]];
    for shape in shapes {
        let rank = shape.len();
        let n: u64 = shape.iter().product();
        let strides = tessera_planner::region::strides(shape);
        let a: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
        // One extra cell at the front, and each order of axes of the inner input.
        let b: Vec<f32> = (0..=n).map(|i| (i * 31 % 1009) as f32).collect();
        for turn in 0..rank {
            for backward in [false, true] {
                let (mut steps, mut step, mut offset) = (vec![0i64; rank], 1i64, 1i64);
                for k in 0..rank {
                    let axis = (turn + k) % rank;
                    let length = shape[axis] as i64;
                    let back = backward && k % 2 == 1;
                    steps[axis] = if back { -step } else { step };
                    if back {
                        offset += step * (length - 1);
                    }
                    step *= length;
                }
                for skew in [0, 1] {
                    // Bytes that are not aligned for the type.
                    let mut bytes = vec![0u8; skew];
                    bytes.extend_from_slice(bytes_of(&b));
                    let turned =
                        StridedInput { bytes: &bytes[skew..], offset, strides: &steps, dtype: f };
                    let region = Region::whole(shape);
                    let got = run(&fused, &region, shape, &[dense(&a, &strides, f), turned]);
                    let got: Vec<f32> = typed(&got.unwrap()[0][0], n as usize);
                    let mut i = 0;
                    tessera_planner::tile::for_each_index(&region, &mut |at| {
                        let from: i64 = at.iter().zip(&steps).map(|(p, s)| *p as i64 * s).sum();
                        assert_eq!(got[i], a[i] + b[(offset + from) as usize], "{shape:?} {at:?}");
                        i += 1;
                    });
                }
            }
        }
    }
}

/// Long rows compared with pieces of the same rows alone.
#[test]
fn long_rows_give_the_bits_of_short_ones() {
    let (rows, planes, columns) = (11u64, 3u64, 2500u64);
    let f = DType::Float64;
    let p = Program { inputs: vec![f], insts: vec![] };
    let mut r = lcg(5);
    let x: Vec<f64> = (0..rows * planes * columns).map(|_| r() * 4.0 - 1.0).collect();
    let codes: std::sync::Arc<[u32]> = (0..rows as u32).map(|i| i * 7 % 3).collect();
    for group in [false, true] {
        let outer = match group {
            true => AxisReduce::Group(Groups { codes: codes.clone(), count: 3 }),
            false => AxisReduce::All,
        };
        for kind in
            [ReduceKind::Mean, ReduceKind::Var { ddof: 0 }, ReduceKind::Max, ReduceKind::ArgMin]
        {
            let axes = [outer.clone(), AxisReduce::Keep, AxisReduce::Keep];
            let output = FusedOutput::Reduce {
                kind,
                axes: axes.into_iter().collect(),
                value: Arg::Input(0),
                valid: None,
            };
            let fused = Fused {
                program: p.clone(),
                inputs: vec![field(0)],
                outputs: vec![output],
                batch: None,
            };
            let strides = [(planes * columns) as i64, columns as i64, 1];
            let stage = [rows, planes, columns];
            let all = Region::whole(&stage);
            let long = run(&fused, &all, &stage, &[dense(&x, &strides, f)]).unwrap();
            let states = if group { 3 } else { 1 };
            let size = long[0][0].len() as u64 / states / planes / columns;
            assert_eq!(size, 1);
            for plane in 0..planes {
                for from in (0..columns).step_by(50) {
                    let mut part = all.clone();
                    (part.start[1], part.end[1]) = (plane, plane + 1);
                    (part.start[2], part.end[2]) = (from, from + 50);
                    let input = StridedInput {
                        offset: (plane * columns + from) as i64,
                        ..dense(&x, &strides, f)
                    };
                    let short = run(&fused, &part, &stage, &[input]).unwrap();
                    for (long, short) in long[0].iter().zip(&short[0]) {
                        for s in 0..states {
                            let at = ((s * planes + plane) * columns + from) as usize;
                            let own = (s * 50) as usize;
                            assert_eq!(long[at..at + 50], short[own..own + 50], "{kind}");
                        }
                    }
                }
            }
        }
    }
}

/// A mean next to a sum of the same cells shares its field, and a variance next to both has its own.
#[test]
fn shared_parts_are_those_of_programs_alone() {
    let f = DType::Float64;
    let p = Program { inputs: vec![f, DType::Bool], insts: vec![] };
    let mut r = lcg(9);
    let x: Vec<f64> = (0..1000).map(|_| r() * 1e3 + 1e6).collect();
    let ok: Vec<u8> = (0..1000).map(|i| u8::from(i % 7 != 2)).collect();
    let ins = [dense(&x, &[1], f), dense(&ok, &[1], DType::Bool)];
    for valid in [None, Some(Arg::Input(1))] {
        let output = |kind| FusedOutput::Reduce {
            kind,
            axes: [AxisReduce::All].into_iter().collect(),
            value: Arg::Input(0),
            valid,
        };
        let kinds = [
            ReduceKind::Sum,
            ReduceKind::Mean,
            ReduceKind::Var { ddof: 0 },
            ReduceKind::Count,
            ReduceKind::Var { ddof: 1 },
        ];
        let program = |kinds: &[ReduceKind]| Fused {
            batch: None,
            program: p.clone(),
            inputs: (0..2).map(field).collect(),
            outputs: kinds.iter().map(|k| output(*k)).collect(),
        };
        let region = Region::whole(&[1000]);
        let together = run(&program(&kinds), &region, &[1000], &ins).unwrap();
        for (kind, together) in kinds.iter().zip(together) {
            let alone = run(&program(&[*kind]), &region, &[1000], &ins).unwrap();
            assert_eq!(alone[0], together, "{kind}");
            if let ReduceKind::Var { ddof: 0 } = kind {
                let kept = x.iter().zip(&ok).filter(|(_, ok)| valid.is_none() || **ok != 0);
                let kept: Vec<f64> = kept.map(|x| *x.0).collect();
                let n = kept.len() as f64;
                let mean = kept.iter().sum::<f64>() / n;
                let m2: f64 = kept.iter().map(|v| (v - mean).powi(2)).sum();
                let got: Vec<f64> = typed(&together[3], 1);
                assert!((got[0] - m2).abs() < 1e-11 * m2, "{} {m2}", got[0]);
            }
        }
    }
}
