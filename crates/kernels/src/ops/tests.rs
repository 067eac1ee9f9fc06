#![allow(
    clippy::unwrap_used,
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "tests"
)]
//! Results of operations, compared with NumPy 2.4, at every level.

mod near;
mod one;
mod two;

use super::*;
use tessera_planner::dtype::DType;
use tessera_planner::program::ScalarOp as S;

/// Runs an operation on up to 64 cells at every level and asserts equal bits.
fn run<A: Copy + Default, R: Copy + Default + std::fmt::Debug>(
    op: TileOp,
    arg: DType,
    to: DType,
    args: &[&[A]],
) -> Vec<R> {
    let tiles: Vec<[A; N]> = args
        .iter()
        .map(|v| {
            let mut t = [A::default(); N];
            t[..v.len()].copy_from_slice(v);
            t
        })
        .collect();
    let bytes = |r: &[R; N]| {
        // SAFETY: plain numbers as bytes.
        unsafe { std::slice::from_raw_parts(r.as_ptr().cast::<u8>(), size_of::<[R; N]>()) }.to_vec()
    };
    let mut all: Vec<[R; N]> = Vec::new();
    for l in Level::available() {
        let (f, imm) = pick(op, arg, to, l).unwrap();
        let mut d = [R::default(); N];
        let p = |i: usize| tiles[i.min(tiles.len() - 1)].as_ptr().cast::<u8>();
        // SAFETY: tiles of N cells of the operation's types.
        unsafe { f(d.as_mut_ptr().cast(), p(0), p(1), p(2), imm, 1) };
        all.push(d);
    }
    for d in &all {
        assert_eq!(bytes(&all[0]), bytes(d), "{op:?} {arg}: {:?} {d:?}", all[0]);
    }
    all[0][..args[0].len()].to_vec()
}

fn ulps(a: f64, b: f64) -> u64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return u64::from(a.to_bits() != b.to_bits() && a == 0.0);
    }
    let order = |x: f64| {
        let b = x.to_bits() as i64;
        if b < 0 { i64::MIN - b } else { b }
    };
    order(a).abs_diff(order(b))
}

const I: [i8; 12] = [7, -7, 7, -7, 0, 5, -128, -128, 127, -5, 1, 100];
const J: [i8; 12] = [2, 2, -2, -2, 3, 0, -1, 3, 2, 7, -9, 8];

#[test]
fn functions_of_integers() {
    let two: &[(S, &[i8])] = &[
        (S::Add, &[9, -5, 5, -9, 3, 5, 127, -125, -127, 2, -8, 108]),
        (S::Sub, &[5, -9, 9, -5, -3, 5, -127, 125, 125, -12, 10, 92]),
        (S::Mul, &[14, -14, -14, 14, 0, 0, -128, -128, -2, -35, -9, 32]),
        (S::FloorDiv, &[3, -4, -4, 3, 0, 0, -128, -43, 63, -1, -1, 12]),
        (S::Rem, &[1, 1, -1, -1, 0, 0, 0, 1, 1, 2, -8, 4]),
        (S::Fmod, &[1, -1, 1, -1, 0, 0, 0, -2, 1, -5, 1, 4]),
        (S::And, &[2, 0, 6, -8, 0, 0, -128, 0, 2, 3, 1, 0]),
        (S::Or, &[7, -5, -1, -1, 3, 5, -1, -125, 127, -1, -9, 108]),
        (S::Xor, &[5, -5, -7, 7, 3, 5, 127, -125, 125, -4, -10, 108]),
        (S::ShiftLeft, &[28, -28, 0, 0, 0, 5, 0, 0, -4, -128, 0, 0]),
        (S::ShiftRight, &[1, -2, 0, -1, 0, 5, -1, -16, 31, -1, 0, 0]),
        (S::Minimum, &[2, -7, -2, -7, 0, 0, -128, -128, 2, -5, -9, 8]),
        (S::Maximum, &[7, 2, 7, -2, 3, 5, -1, 3, 127, 7, 1, 100]),
    ];
    let one: &[(S, &[i8])] = &[
        (S::Neg, &[-7, 7, -7, 7, 0, -5, -128, -128, -127, 5, -1, -100]),
        (S::Abs, &[7, 7, 7, 7, 0, 5, -128, -128, 127, 5, 1, 100]),
        (S::Sign, &[1, -1, 1, -1, 0, 1, -1, -1, 1, -1, 1, 1]),
        (S::Not, &[-8, 6, -8, 6, -1, -6, 127, 127, -128, 4, -2, -101]),
    ];
    let d = DType::Int8;
    for (op, want) in two {
        assert_eq!(run::<i8, i8>(TileOp::Scalar(*op), d, d, &[&I, &J]), *want, "{op:?}");
    }
    for (op, want) in one {
        assert_eq!(run::<i8, i8>(TileOp::Scalar(*op), d, d, &[&I]), *want, "{op:?}");
    }
}

#[test]
fn casts_truncate_saturate_and_wrap() {
    let x = [3.9f64, -3.9, 300.0, -1e300, f64::NAN, f64::INFINITY, 0.0];
    let f = DType::Float64;
    let cast = TileOp::Scalar(S::Cast);
    assert_eq!(run::<f64, i8>(cast, f, DType::Int8, &[&x]), [3, -3, 127, -128, 0, 127, 0]);
    assert_eq!(run::<f64, u64>(cast, f, DType::UInt64, &[&x])[..3], [3, 0, 300]);
    assert_eq!(run::<f64, u8>(cast, f, DType::Bool, &[&x]), [1, 1, 1, 1, 1, 1, 0]);
    // numpy: np.array([300, -1, 128], 'i4').astype('i1') is [44, -1, -128]
    let i = [300i32, -1, 128];
    assert_eq!(run::<i32, i8>(cast, DType::Int32, DType::Int8, &[&i]), [44, -1, -128]);
    assert_eq!(run::<i32, u64>(cast, DType::Int32, DType::UInt64, &[&i])[1], u64::MAX);
    assert_eq!(run::<u8, i64>(cast, DType::Bool, DType::Int64, &[&[1, 0]]), [1, 0]);
}

#[test]
fn random_cells_are_the_same_everywhere() {
    let apart: Vec<i64> = (0..64).map(|i| i * 1_000_003 - 5).collect();
    let in_turn: Vec<i64> = (-5..59).collect();
    for op in [S::RandomUniform { seed: 42 }, S::RandomNormal { seed: 42 }] {
        for cells in [&apart, &in_turn] {
            // `run` compares the levels.
            let a: Vec<f64> = run(TileOp::Scalar(op), DType::Int64, DType::Float64, &[cells]);
            assert!(a.iter().all(|x| x.is_finite()));
            assert!((1..64).all(|i| a[i] != a[i - 1]));
        }
    }
}

#[test]
fn parts_of_dates_are_those_of_the_planner() {
    let day = 86_400_000_000i64;
    // 2021-01-03 was day 18630 of the epoch: a Sunday in ISO week 53.
    let t = [18_630 * day + 3_600_000_000, -day];
    for (part, want) in [
        (DatePart::Year, [2021, 1969]),
        (DatePart::Month, [1, 12]),
        (DatePart::Week, [53, 1]),
        (DatePart::DayOfWeek, [6, 2]),
        (DatePart::Hour, [1, 0]),
        (DatePart::Season, [0, 0]),
    ] {
        let d = DType::Datetime(Calendar::Standard);
        let got: Vec<i64> = run(TileOp::Scalar(S::DatePart(part)), d, DType::Int64, &[&t]);
        assert_eq!(got, want, "{part:?}");
    }
}
