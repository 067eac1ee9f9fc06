#![allow(clippy::unwrap_used, reason = "tests")]
//! Merged operations compared with the same operations one after the other.

use super::tests::{dense, run, typed};
use super::*;
use std::rc::Rc;
use tessera_planner::ir::AxisReduce;
use tessera_planner::plan::{FusedInput, FusedOutput};
use tessera_planner::program::{Arg, Program, ScalarOp as S};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

/// Numbers of all kinds, including special ones.
fn cells(n: usize, k: usize) -> Vec<f64> {
    const SPECIAL: [f64; 6] = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.5];
    (0..n)
        .map(|i| match (i * k) % 97 {
            s @ 0..6 if n > 500 => SPECIAL[s],
            x => x as f64 / 48.0 - 1.0,
        })
        .collect()
}

/// A program over inputs of one type, with outputs of its value.
fn program(
    dtypes: &[DType],
    make: impl Fn(&mut Program) -> Arg,
    outputs: impl Fn(Arg) -> Vec<FusedOutput>,
) -> Fused {
    let mut program = Program { inputs: dtypes.to_vec(), insts: vec![] };
    let value = make(&mut program);
    let inputs =
        (0..dtypes.len() as u32).map(|input| FusedInput::Field { input, field: 0 }).collect();
    Fused { program, inputs, outputs: outputs(value), batch: None }
}

fn stored(value: Arg) -> Vec<FusedOutput> {
    vec![FusedOutput::Store { value, valid: None }]
}

/// Pushes a value's instructions.
type Make = Rc<dyn Fn(&mut Program) -> Arg>;

/// The values that can be fused into sums and extremes, from the inputs 0 and 1.
fn values(dtype: DType) -> Vec<Make> {
    let (a, b) = (Arg::Input(0), Arg::Input(1));
    let constant = move |x| Arg::Const(Scalar::from_f64(dtype, x));
    let mut all: Vec<Make> = vec![
        Rc::new(move |p| p.push(S::Mul, dtype, &[a, b])),
        Rc::new(move |p| p.push(S::Mul, dtype, &[a, a])),
        Rc::new(move |p| {
            let r = p.push(S::Neg, dtype, &[a]);
            p.push(S::Mul, dtype, &[r, r])
        }),
        Rc::new(move |p| {
            let r = p.push(S::Neg, dtype, &[a]);
            p.push(S::Abs, dtype, &[r])
        }),
        Rc::new(move |p| {
            let d = p.push(S::Sub, dtype, &[a, b]);
            p.push(S::Mul, dtype, &[d, d])
        }),
        Rc::new(move |p| {
            let d = p.push(S::Sub, dtype, &[a, b]);
            p.push(S::Abs, dtype, &[d])
        }),
        Rc::new(move |p| p.push(S::Sqrt, dtype, &[a])),
        Rc::new(move |p| {
            let r = p.push(S::Add, dtype, &[a, b]);
            p.push(S::Sqrt, dtype, &[r])
        }),
        // A condition that is not a comparison with a constant.
        Rc::new(move |p| {
            let c = p.push(S::Lt, DType::Bool, &[a, b]);
            p.push(S::Where, dtype, &[c, b, constant(0.0)])
        }),
        // -0 is not the neutral value there.
        Rc::new(move |p| {
            let c = p.push(S::Lt, DType::Bool, &[a, constant(0.5)]);
            p.push(S::Where, dtype, &[c, b, constant(-0.0)])
        }),
    ];
    for op in [S::Eq, S::Ne, S::Lt, S::Le, S::Gt, S::Ge] {
        for left in [false, true] {
            all.push(Rc::new(move |p| {
                let args = if left { [constant(0.5), a] } else { [a, constant(0.5)] };
                let c = p.push(op, DType::Bool, &args);
                p.push(S::Where, dtype, &[c, b, constant(0.0)])
            }));
        }
    }
    all
}

#[test]
fn a_reduction_that_does_the_last_operations_gives_the_bits_of_one_that_reads_them() {
    for shape in
        [vec![7u64], vec![63], vec![64], vec![1000], vec![3, 300], vec![20, 40], vec![9, 5]]
    {
        let n = shape.iter().product::<u64>() as usize;
        let strides: Vec<i64> = tessera_planner::region::strides(&shape).to_vec();
        let (a, b) = (cells(n, 7), cells(n, 11));
        let single = |v: &[f64]| v.iter().map(|x| *x as f32).collect::<Vec<f32>>();
        let (a4, b4) = (single(&a), single(&b));
        for dtype in [DType::Float64, DType::Float32] {
            let inputs = match dtype {
                DType::Float64 => [dense(&a, &strides, dtype), dense(&b, &strides, dtype)],
                _ => [dense(&a4, &strides, dtype), dense(&b4, &strides, dtype)],
            };
            for keep in [None, Some(0), Some(shape.len() - 1)] {
                let mut axes: Vec<AxisReduce> = shape.iter().map(|_| AxisReduce::All).collect();
                if let Some(axis) = keep {
                    axes[axis] = AxisReduce::Keep;
                }
                let reduce = |kind, value| FusedOutput::Reduce {
                    kind,
                    axes: axes.iter().cloned().collect(),
                    value,
                    valid: None,
                };
                let kinds = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min];
                let cases = values(dtype).into_iter().flat_map(|m| kinds.map(|k| (m.clone(), k)));
                for (make, kind) in cases {
                    let state = |value| reduce(kind, value);
                    let alone = program(&[dtype; 2], &*make, |v| vec![state(v)]);
                    // A value that is also stored is computed before it is read.
                    let beside = program(&[dtype; 2], &*make, |v| {
                        vec![state(v), FusedOutput::Store { value: v, valid: None }]
                    });
                    let region = Region::whole(&shape);
                    let got = run(&alone, &region, &shape, &inputs).unwrap();
                    let want = run(&beside, &region, &shape, &inputs).unwrap();
                    let value = |s: &[Vec<Vec<u64>>]| {
                        let words = &s[0][0];
                        let cells: Vec<f64> = if kind == ReduceKind::Sum || dtype == DType::Float64
                        {
                            typed(words, words.len())
                        } else {
                            let single: Vec<f32> = typed(words, 2 * words.len());
                            single.into_iter().map(f64::from).collect()
                        };
                        let bits = |x: f64| if x.is_nan() { f64::NAN } else { x }.to_bits();
                        cells.into_iter().map(bits).collect::<Vec<_>>()
                    };
                    assert_eq!(value(&got), value(&want), "{kind:?} {shape:?} {:?}", alone.program);
                    // So is a stored value that is read in place.
                    let plain = program(&[dtype], |_| Arg::Input(0), |v| vec![state(v)]);
                    let cells = [dense(&want[1][0], &strides, dtype)];
                    let read = run(&plain, &region, &shape, &cells).unwrap();
                    assert_eq!(
                        value(&read),
                        value(&want),
                        "{kind:?} {shape:?} {:?}",
                        alone.program
                    );
                }
            }
        }
    }
}

#[test]
fn a_masked_sum_is_that_of_the_valid_cells() {
    // As in NumPy: b[a > 0.5].sum() of integers, and their number.
    let n = 1000u64;
    let a: Vec<f64> = (0..n).map(|i| (i % 10) as f64 / 10.0).collect();
    let b: Vec<f64> = (0..n).map(|i| if i % 10 == 3 { f64::NAN } else { i as f64 }).collect();
    let f = DType::Float64;
    let zero = Arg::Const(Scalar::f64(0.0));
    let mut p = Program { inputs: vec![f; 2], insts: vec![] };
    let c = p.push(S::Gt, DType::Bool, &[Arg::Input(0), Arg::Const(Scalar::f64(0.5))]);
    // The instructions of `where(a > 0.5, b, NULL)`.
    let value = p.push(S::Where, f, &[c, Arg::Input(1), zero]);
    let (yes, no) = (Arg::Const(Scalar::bool(true)), Arg::Const(Scalar::bool(false)));
    let valid = p.push(S::Where, DType::Bool, &[c, yes, no]);
    let reduce = |kind| FusedOutput::Reduce {
        kind,
        axes: [AxisReduce::All].into_iter().collect(),
        value,
        valid: Some(valid),
    };
    let outputs = vec![reduce(ReduceKind::Sum), reduce(ReduceKind::Max)];
    let inputs = (0..2).map(|input| FusedInput::Field { input, field: 0 }).collect();
    let fused = Fused { program: p, inputs, outputs, batch: None };
    let ins = [dense(&a, &[1], f), dense(&b, &[1], f)];
    let out = run(&fused, &Region::whole(&[n]), &[n], &ins).unwrap();
    assert_eq!(typed::<f64>(&out[0][0], 1)[0], 201_000.0);
    assert_eq!(typed::<i64>(&out[0][1], 1)[0], 400);
    assert_eq!(typed::<f64>(&out[1][0], 1)[0], 999.0);
}

#[test]
fn polynomials_round_after_each_operation() {
    let f = DType::Float64;
    let n = 777u64;
    let a = cells(n as usize, 7);
    let k = |x: f64| Arg::Const(Scalar::f64(x));
    let make = |p: &mut Program| {
        let x = Arg::Input(0);
        let y = p.push(S::Mul, f, &[k(0.1), x]);
        let y = p.push(S::Sub, f, &[y, k(1.3)]);
        let y = p.push(S::Mul, f, &[y, x]);
        let y = p.push(S::Sub, f, &[k(2.7), y]);
        let y = p.push(S::Mul, f, &[x, y]);
        p.push(S::Add, f, &[k(0.9), y])
    };
    let fused = program(&[f], make, stored);
    let out = run(&fused, &Region::whole(&[n]), &[n], &[dense(&a, &[1], f)]).unwrap();
    for (x, got) in a.iter().zip(typed::<f64>(&out[0][0], n as usize)) {
        let want = (2.7 - (0.1 * x - 1.3) * x) * x + 0.9;
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{x}");
    }
}

#[test]
fn constants_may_stand_on_either_side() {
    let f = DType::Float64;
    let n = 777u64;
    let a = cells(n as usize, 7);
    type Plain = fn(f64, f64) -> f64;
    let operations: [(S, Plain); 10] = [
        (S::Add, |x, y| x + y),
        (S::Sub, |x, y| x - y),
        (S::Mul, |x, y| x * y),
        (S::Div, |x, y| x / y),
        (S::Eq, |x, y| f64::from(u8::from(x == y))),
        (S::Ne, |x, y| f64::from(u8::from(x != y))),
        (S::Lt, |x, y| f64::from(u8::from(x < y))),
        (S::Le, |x, y| f64::from(u8::from(x <= y))),
        (S::Gt, |x, y| f64::from(u8::from(x > y))),
        (S::Ge, |x, y| f64::from(u8::from(x >= y))),
    ];
    for (op, plain) in operations {
        for left in [false, true] {
            let k = Arg::Const(Scalar::f64(0.5));
            let make = |p: &mut Program| {
                let args = if left { [k, Arg::Input(0)] } else { [Arg::Input(0), k] };
                let v = p.push(op, if op.is_predicate() { DType::Bool } else { f }, &args);
                if op.is_predicate() { p.push(S::Cast, f, &[v]) } else { v }
            };
            let fused = program(&[f], make, stored);
            let out = run(&fused, &Region::whole(&[n]), &[n], &[dense(&a, &[1], f)]).unwrap();
            for (x, got) in a.iter().zip(typed::<f64>(&out[0][0], n as usize)) {
                let want = if left { plain(0.5, *x) } else { plain(*x, 0.5) };
                let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                assert!(same, "{op:?} {x} left {left}: {got} {want}");
            }
        }
    }
}

#[test]
fn indices_as_floats_are_the_integers_rounded() {
    // Beyond 2^53 floats skip integers; beyond 2^63 integers wrap.
    for offset in [0, -500, (1 << 52) - 300, (1 << 53) - 300, i64::MAX - 300, i64::MIN + 1] {
        for step in [1i64, -3, 0, 1 << 43, i64::MAX / 100] {
            let f = DType::Float64;
            let mut program = Program { inputs: vec![DType::Int64], insts: vec![] };
            let value = program.push(S::Cast, f, &[Arg::Input(0)]);
            let inputs =
                vec![FusedInput::Index { offset, strides: [1000, step].into_iter().collect() }];
            let outputs = vec![FusedOutput::Store { value, valid: None }];
            let fused = Fused { program, inputs, outputs, batch: None };
            let shape = [3u64, 333];
            let out = run(&fused, &Region::whole(&shape), &shape, &[]).unwrap();
            for (i, got) in typed::<f64>(&out[0][0], 999).into_iter().enumerate() {
                let (row, column) = (i as i64 / 333, i as i64 % 333);
                let want = offset.wrapping_add(row * 1000).wrapping_add(step.wrapping_mul(column));
                assert_eq!(got.to_bits(), (want as f64).to_bits(), "{offset} {step} {i}");
            }
        }
    }
}
