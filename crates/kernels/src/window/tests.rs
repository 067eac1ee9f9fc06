//! Windows compared with plain loops.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::combine::Cell;

fn bytes(v: &[f64]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

/// Windows of a 1-d array in two halves, like two chunks; `None` is masked.
fn rolling(kind: ReduceKind, v: &[Option<f64>], frame: Frame, min: u64) -> Vec<Option<f64>> {
    let level = Level::detect();
    let value = bytes(&v.iter().map(|x| x.unwrap_or(1e300)).collect::<Vec<_>>());
    let valid: Vec<u8> = v.iter().map(|x| u8::from(x.is_some())).collect();
    let len = v.len() as u64;
    let mut all = Vec::new();
    for (first, end) in [(0, len / 2), (len / 2, len)] {
        let n = (end - first) as usize;
        let (mut out, mut ok) = (vec![0; n * 8], vec![9; n]);
        let shape = [end - first];
        let w = Windows { shape: &shape, axis: 0, frame, min_count: min, len, first, level };
        // The line is cut into several chunks.
        let cuts = [0, len / 3, len / 3 + 2];
        let parts = cuts.map(|first| {
            let bytes = &value[first as usize * 8..];
            Part { first, bytes, valid: Some(&valid[first as usize..]), offset: 0 }
        });
        let input = Input { parts: &parts, strides: &[1] };
        window(kind, DType::Float64, w, input, &mut out, Some(&mut ok), &|| false).unwrap();
        for (i, &valid) in ok.iter().enumerate() {
            let cell = match kind {
                ReduceKind::Count => i64::read(&out, i) as f64,
                _ => f64::read(&out, i),
            };
            all.push((valid == 1).then_some(cell));
        }
    }
    all
}

#[test]
fn windows_are_those_of_plain_loops() {
    let v: Vec<Option<f64>> =
        (0..23).map(|i| (i % 5 != 3).then_some(f64::from((i * 37 + 11) % 17) - 4.0)).collect();
    for (before, after) in [(0, 0), (2, 0), (3, 3), (0, 5), (-2, 4), (5, -2), (30, 30), (22, 0)] {
        let frame = Frame { before, after };
        for min in [1, 3] {
            for i in 0..v.len() {
                let (lo, hi) = frame.reads(i as u64, i as u64 + 1, 23);
                let w: Vec<f64> = v[lo as usize..hi as usize].iter().flatten().copied().collect();
                let enough = w.len() as u64 >= min;
                let n = w.len() as f64;
                let mean = w.iter().sum::<f64>() / n;
                let var = w.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let least = w.iter().copied().fold(f64::INFINITY, f64::min);
                let cases = [
                    (ReduceKind::Sum, w.iter().sum()),
                    (ReduceKind::Mean, mean),
                    (ReduceKind::Var { ddof: 0 }, var),
                    (ReduceKind::Min, least),
                    (ReduceKind::Count, n),
                ];
                for (kind, want) in cases {
                    let got = rolling(kind, &v, frame, min)[i];
                    match got {
                        Some(g) => assert!(
                            enough && (g - want).abs() < 1e-9,
                            "{kind} {frame:?} at {i}: {g}, expected {want}"
                        ),
                        None => assert!(!enough, "{kind} {frame:?} at {i} is masked"),
                    }
                }
            }
        }
    }
}

/// Sums of all magnitudes and signs, divided by each number of cells, compared with one division.
#[test]
fn means_are_rounded_once() {
    let mut state = 7u64;
    let mut cells: Vec<f64> = (0..4000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let exponent = (state >> 13) % 1200 + 400;
            f64::from_bits((state >> 12) | (exponent << 52) | (state << 63))
        })
        .collect();
    cells.extend([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 49.0, 3.0]);
    let fold = fold::Average::<f64>::default();
    for n in (1..200).chain([365, 1000, 4095, 65_537, 1 << 40]) {
        for x in &cells {
            let (got, want) = (fold.finish(*x, n).unwrap(), x / n as f64);
            let both_nan = got.is_nan() && want.is_nan();
            assert!(both_nan || got.to_bits() == want.to_bits(), "{x} / {n}: {got}");
        }
    }
}

#[test]
fn nan_stays_within_its_windows() {
    let mut v: Vec<Option<f64>> = (0..12).map(|i| Some(f64::from(i))).collect();
    v[5] = Some(f64::NAN);
    let frame = Frame { before: 2, after: 0 };
    for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Min, ReduceKind::Var { ddof: 1 }] {
        for (i, c) in rolling(kind, &v, frame, 2).iter().enumerate().skip(1) {
            assert_eq!(c.unwrap().is_nan(), (5..8).contains(&i), "{kind} at {i}");
        }
    }
    // NaN is the greatest value in SQL's order.
    let total = rolling(ReduceKind::MinTotal, &v, frame, 1);
    assert_eq!(total[7], Some(6.0));
}

#[test]
fn integer_sums_that_do_not_fit_are_errors() {
    let v: Vec<u8> = [i64::MAX, 1, -1].iter().flat_map(|x| x.to_ne_bytes()).collect();
    let frame = Frame { before: 1, after: 0 };
    let w = Windows {
        shape: &[3],
        axis: 0,
        frame,
        min_count: 1,
        len: 3,
        first: 0,
        level: Level::Baseline,
    };
    let part = Part { first: 0, bytes: &v, valid: None, offset: 0 };
    let mut out = [0; 24];
    let input = Input { parts: &[part], strides: &[1] };
    let e = window(ReduceKind::Sum, DType::Int64, w, input, &mut out, None, &|| false);
    assert!(matches!(e, Err(KernelError::Overflow { .. })));
    let short = Windows { len: 9, first: 5, ..w };
    let late = Input { parts: &[Part { first: 5, ..part }], strides: &[1] };
    let e = window(ReduceKind::Sum, DType::Int64, short, late, &mut out, None, &|| false);
    assert!(matches!(e, Err(KernelError::Buffer { .. })));
    // Two cells of the first part, and fewer cells of the second one than the windows contain.
    let parts = [part, Part { first: 2, bytes: &v[16..20], ..part }];
    let cut = Input { parts: &parts, strides: &[1] };
    let e = window(ReduceKind::Sum, DType::Int64, w, cut, &mut out, None, &|| false);
    assert!(matches!(e, Err(KernelError::Buffer { .. })));
}

/// Strips of many lines, adjacent and apart, compared with single lines at every level.
#[test]
fn strips_are_their_lines() {
    let (n, m) = (23u64, 1100u64);
    let cells: Vec<f64> =
        (0..n * m).map(|i| ((i * 2_654_435_761) % 9973) as f64 / 7.0 - 600.0).collect();
    let (value, frame) = (bytes(&cells), Frame { before: 3, after: 2 });
    let valid: Vec<u8> = (0..n * m).map(|i| u8::from(i % 11 != 3)).collect();
    for masked in [None, Some(&valid[..])] {
        for kind in [ReduceKind::Mean, ReduceKind::Max, ReduceKind::Var { ddof: 0 }] {
            // The same lines: contiguous along the last axis, or a row apart.
            for (shape, axis, step, apart) in [([n, m], 0, m as i64, 1), ([m, n], 1, m as i64, 1)] {
                let strides = if axis == 0 { [step, apart] } else { [apart, step] };
                let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
                for level in Level::available() {
                    let w = Windows {
                        shape: &shape,
                        axis,
                        frame,
                        min_count: 2,
                        len: n,
                        first: 0,
                        level,
                    };
                    // In one part, or in two where these are laid out so.
                    let part = |first: u64| Part {
                        first,
                        bytes: &value,
                        valid: masked,
                        offset: first as i64 * strides[axis],
                    };
                    let parts = [part(0), part(9)];
                    let many = if level == Level::Baseline { 1 } else { 2 };
                    let input = Input { parts: &parts[..many], strides: &strides };
                    let (mut out, mut ok) = (vec![1; cells.len() * 8], vec![1; cells.len()]);
                    let d = DType::Float64;
                    window(kind, d, w, input, &mut out, Some(&mut ok), &|| false).unwrap();
                    all.push((out, ok));
                }
                assert!(all.iter().all(|x| *x == all[0]), "{kind} {shape:?}");
                for line in [0, 1, 511, 512, 1099] {
                    let own: Vec<Option<f64>> = (0..n)
                        .map(|p| (p * m + line) as usize)
                        .map(|at| masked.is_none_or(|v| v[at] != 0).then(|| cells[at]))
                        .collect();
                    for (p, want) in rolling(kind, &own, frame, 2).into_iter().enumerate() {
                        let p = p as u64;
                        let at = if axis == 0 { p * m + line } else { line * n + p } as usize;
                        let got = (all[0].1[at] == 1).then(|| f64::read(&all[0].0, at));
                        let bits = |x: Option<f64>| x.map(f64::to_bits);
                        assert_eq!(bits(got), bits(want), "{kind} {shape:?} line {line} at {p}");
                    }
                }
            }
        }
    }
}
