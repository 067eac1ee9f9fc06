#![allow(
    clippy::unwrap_used,
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "tests"
)]
//! Values of operations, as NumPy 2.4 gives them, at every level.

use super::*;
use tessera_planner::program::ScalarOp as S;

/// Runs an operation on up to 64 cells at every level and insists on the same bits.
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

const A: [f64; 12] =
    [7.5, -7.5, 7.5, -7.5, 0.0, -0.0, 5.0, f64::INFINITY, f64::NAN, 3.0, -1.0, 6.0];
const B: [f64; 12] =
    [2.0, 2.0, -2.0, -2.0, 2.0, 2.0, 0.0, 2.0, 1.0, f64::INFINITY, f64::INFINITY, 0.1];
const X: [f64; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.5,
    -2.5,
    0.5,
    1e-310,
    1e+308,
    f64::INFINITY,
    -f64::INFINITY,
    f64::NAN,
    0.1,
    -0.3,
    20.5,
    1000000.0,
];
const I: [i8; 12] = [7, -7, 7, -7, 0, 5, -128, -128, 127, -5, 1, 100];
const J: [i8; 12] = [2, 2, -2, -2, 3, 0, -1, 3, 2, 7, -9, 8];

#[test]
fn functions_of_two_floats() {
    let cases: &[(S, &[f64])] = &[
        (
            S::FloorDiv,
            &[3.0, -4.0, -4.0, 3.0, 0.0, -0.0, f64::INFINITY, f64::NAN, f64::NAN, 0.0, -1.0, 59.0],
        ),
        (
            S::Rem,
            &[
                1.5,
                0.5,
                -0.5,
                -1.5,
                0.0,
                0.0,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                3.0,
                f64::INFINITY,
                0.09999999999999967,
            ],
        ),
        (
            S::Fmod,
            &[
                1.5,
                -1.5,
                1.5,
                -1.5,
                0.0,
                -0.0,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                3.0,
                -1.0,
                0.09999999999999967,
            ],
        ),
        (S::Minimum, &[2.0, -7.5, -2.0, -7.5, 0.0, -0.0, 0.0, 2.0, f64::NAN, 3.0, -1.0, 0.1]),
        (
            S::Maximum,
            &[
                7.5,
                2.0,
                7.5,
                -2.0,
                2.0,
                2.0,
                5.0,
                f64::INFINITY,
                f64::NAN,
                f64::INFINITY,
                f64::INFINITY,
                6.0,
            ],
        ),
        (S::Fmin, &[2.0, -7.5, -2.0, -7.5, 0.0, -0.0, 0.0, 2.0, 1.0, 3.0, -1.0, 0.1]),
        (
            S::Fmax,
            &[
                7.5,
                2.0,
                7.5,
                -2.0,
                2.0,
                2.0,
                5.0,
                f64::INFINITY,
                1.0,
                f64::INFINITY,
                f64::INFINITY,
                6.0,
            ],
        ),
        (
            S::Copysign,
            &[7.5, 7.5, -7.5, -7.5, 0.0, 0.0, 5.0, f64::INFINITY, f64::NAN, 3.0, 1.0, 6.0],
        ),
        (
            S::Nextafter,
            &[
                7.499999999999999,
                -7.499999999999999,
                7.499999999999999,
                -7.499999999999999,
                5e-324,
                5e-324,
                4.999999999999999,
                1.7976931348623157e+308,
                f64::NAN,
                3.0000000000000004,
                -0.9999999999999999,
                5.999999999999999,
            ],
        ),
        (
            S::Hypot,
            &[
                7.762087348130012,
                7.762087348130012,
                7.762087348130012,
                7.762087348130012,
                2.0,
                2.0,
                5.0,
                f64::INFINITY,
                f64::NAN,
                f64::INFINITY,
                f64::INFINITY,
                6.000833275470999,
            ],
        ),
        (
            S::Arctan2,
            &[
                1.3101939350475558,
                -1.3101939350475558,
                1.8313987185422376,
                -1.8313987185422376,
                0.0,
                -0.0,
                1.5707963267948966,
                1.5707963267948966,
                f64::NAN,
                0.0,
                -0.0,
                1.554131203080956,
            ],
        ),
        (
            S::Logaddexp,
            &[
                7.504078443270571,
                2.0000748490286293,
                7.500074849028629,
                -1.9959215567294293,
                2.1269280110429727,
                2.1269280110429727,
                5.006715348489118,
                f64::INFINITY,
                f64::NAN,
                f64::INFINITY,
                f64::INFINITY,
                6.002735699378536,
            ],
        ),
        (
            S::Pow,
            &[
                56.25,
                56.25,
                0.017777777777777778,
                0.017777777777777778,
                0.0,
                0.0,
                1.0,
                f64::INFINITY,
                f64::NAN,
                f64::INFINITY,
                1.0,
                1.1962311988513155,
            ],
        ),
        (
            S::Div,
            &[
                3.75,
                -3.75,
                -3.75,
                3.75,
                0.0,
                -0.0,
                f64::INFINITY,
                f64::INFINITY,
                f64::NAN,
                0.0,
                -0.0,
                60.0,
            ],
        ),
    ];
    let d = DType::Float64;
    for (op, want) in cases {
        let got: Vec<f64> = run(TileOp::Scalar(*op), d, d, &[&A, &B]);
        for i in 0..A.len() {
            let exact = ulps(got[i], want[i])
                <= if matches!(op, S::Logaddexp | S::Hypot | S::Arctan2 | S::Pow) { 1 } else { 0 };
            assert!(exact, "{op:?}({}, {}) is {}, not {}", A[i], B[i], got[i], want[i]);
        }
    }
}

#[test]
fn functions_of_one_float() {
    let cases: &[(S, &[f64])] = &[
        (
            S::Sqrt,
            &[
                0.0,
                -0.0,
                1.0,
                f64::NAN,
                1.5811388300841898,
                f64::NAN,
                0.7071067811865476,
                9.999999999999986e-156,
                1e+154,
                f64::INFINITY,
                f64::NAN,
                f64::NAN,
                0.31622776601683794,
                f64::NAN,
                4.527692569068709,
                1000.0,
            ],
        ),
        (
            S::Cbrt,
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                1.3572088082974534,
                -1.3572088082974534,
                0.7937005259840998,
                4.641588833612774e-104,
                4.641588833612779e+102,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                0.4641588833612779,
                -0.6694329500821695,
                2.736851837399214,
                100.0,
            ],
        ),
        (
            S::Exp,
            &[
                1.0,
                1.0,
                2.718281828459045,
                0.36787944117144233,
                12.182493960703473,
                0.0820849986238988,
                1.6487212707001282,
                1.0,
                f64::INFINITY,
                f64::INFINITY,
                0.0,
                f64::NAN,
                1.1051709180756477,
                0.7408182206817179,
                799902177.4755054,
                f64::INFINITY,
            ],
        ),
        (
            S::Exp2,
            &[
                1.0,
                1.0,
                2.0,
                0.5,
                5.656854249492381,
                0.1767766952966369,
                1.4142135623730951,
                1.0,
                f64::INFINITY,
                f64::INFINITY,
                0.0,
                f64::NAN,
                1.0717734625362931,
                0.8122523963562356,
                1482910.4003789306,
                f64::INFINITY,
            ],
        ),
        (
            S::Expm1,
            &[
                0.0,
                -0.0,
                1.7182818284590453,
                -0.6321205588285577,
                11.182493960703473,
                -0.9179150013761012,
                0.6487212707001282,
                1e-310,
                f64::INFINITY,
                f64::INFINITY,
                -1.0,
                f64::NAN,
                0.10517091807564763,
                -0.2591817793182821,
                799902176.4755054,
                f64::INFINITY,
            ],
        ),
        (
            S::Log,
            &[
                -f64::INFINITY,
                -f64::INFINITY,
                0.0,
                f64::NAN,
                0.9162907318741551,
                f64::NAN,
                -0.6931471805599453,
                -713.8013788281542,
                709.1962086421661,
                f64::INFINITY,
                f64::NAN,
                f64::NAN,
                -2.3025850929940455,
                f64::NAN,
                3.0204248861443626,
                13.815510557964274,
            ],
        ),
        (
            S::Log2,
            &[
                -f64::INFINITY,
                -f64::INFINITY,
                0.0,
                f64::NAN,
                1.3219280948873624,
                f64::NAN,
                -1.0,
                -1029.7977094150824,
                1023.1538532253076,
                f64::INFINITY,
                f64::NAN,
                f64::NAN,
                -3.321928094887362,
                f64::NAN,
                4.357552004618084,
                19.931568569324174,
            ],
        ),
        (
            S::Log10,
            &[
                -f64::INFINITY,
                -f64::INFINITY,
                0.0,
                f64::NAN,
                0.3979400086720376,
                f64::NAN,
                -0.3010299956639812,
                -310.0,
                308.0,
                f64::INFINITY,
                f64::NAN,
                f64::NAN,
                -1.0,
                f64::NAN,
                1.3117538610557542,
                6.0,
            ],
        ),
        (
            S::Log1p,
            &[
                0.0,
                -0.0,
                0.6931471805599453,
                -f64::INFINITY,
                1.252762968495368,
                f64::NAN,
                0.4054651081081644,
                1e-310,
                709.1962086421661,
                f64::INFINITY,
                f64::NAN,
                f64::NAN,
                0.09531017980432487,
                -0.35667494393873234,
                3.068052935133617,
                13.815511557963774,
            ],
        ),
        (
            S::Sin,
            &[
                0.0,
                -0.0,
                0.8414709848078965,
                -0.8414709848078965,
                0.5984721441039565,
                -0.5984721441039565,
                0.479425538604203,
                1e-310,
                0.4533964905016491,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                0.09983341664682815,
                -0.29552020666133955,
                0.9968297942787993,
                -0.34999350217129294,
            ],
        ),
        (
            S::Cos,
            &[
                1.0,
                1.0,
                0.5403023058681398,
                0.5403023058681398,
                -0.8011436155469337,
                -0.8011436155469337,
                0.8775825618903728,
                1.0,
                -0.8913089376870335,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                0.9950041652780258,
                0.955336489125606,
                -0.07956356727854007,
                0.9367521275331447,
            ],
        ),
        (
            S::Tan,
            &[
                0.0,
                -0.0,
                1.5574077246549023,
                -1.5574077246549023,
                -0.7470222972386603,
                0.7470222972386603,
                0.5463024898437905,
                1e-310,
                -0.5086861259107568,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                0.10033467208545055,
                -0.3093362496096232,
                -12.528721729997956,
                -0.373624453987599,
            ],
        ),
        (
            S::Arcsin,
            &[
                0.0,
                -0.0,
                1.5707963267948966,
                -1.5707963267948966,
                f64::NAN,
                f64::NAN,
                0.5235987755982989,
                1e-310,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                0.1001674211615598,
                -0.30469265401539747,
                f64::NAN,
                f64::NAN,
            ],
        ),
        (
            S::Arccos,
            &[
                1.5707963267948966,
                1.5707963267948966,
                0.0,
                3.141592653589793,
                f64::NAN,
                f64::NAN,
                1.0471975511965976,
                1.5707963267948966,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                1.4706289056333368,
                1.8754889808102941,
                f64::NAN,
                f64::NAN,
            ],
        ),
        (
            S::Arctan,
            &[
                0.0,
                -0.0,
                0.7853981633974483,
                -0.7853981633974483,
                1.1902899496825317,
                -1.1902899496825317,
                0.4636476090008061,
                1e-310,
                1.5707963267948966,
                1.5707963267948966,
                -1.5707963267948966,
                f64::NAN,
                0.09966865249116204,
                -0.2914567944778671,
                1.522054475484965,
                1.5707953267948966,
            ],
        ),
        (
            S::Sinh,
            &[
                0.0,
                -0.0,
                1.1752011936438014,
                -1.1752011936438014,
                6.0502044810397875,
                -6.0502044810397875,
                0.5210953054937474,
                1e-310,
                f64::INFINITY,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                0.10016675001984403,
                -0.3045202934471426,
                399951088.7377527,
                f64::INFINITY,
            ],
        ),
        (
            S::Cosh,
            &[
                1.0,
                1.0,
                1.5430806348152437,
                1.5430806348152437,
                6.132289479663686,
                6.132289479663686,
                1.1276259652063807,
                1.0,
                f64::INFINITY,
                f64::INFINITY,
                f64::INFINITY,
                f64::NAN,
                1.0050041680558035,
                1.0453385141288605,
                399951088.7377527,
                f64::INFINITY,
            ],
        ),
        (
            S::Tanh,
            &[
                0.0,
                -0.0,
                0.7615941559557649,
                -0.7615941559557649,
                0.9866142981514303,
                -0.9866142981514303,
                0.46211715726000974,
                1e-310,
                1.0,
                1.0,
                -1.0,
                f64::NAN,
                0.09966799462495582,
                -0.2913126124515909,
                1.0,
                1.0,
            ],
        ),
        (
            S::Arcsinh,
            &[
                0.0,
                -0.0,
                0.881373587019543,
                -0.881373587019543,
                1.6472311463710958,
                -1.6472311463710958,
                0.48121182505960347,
                1e-310,
                709.889355822726,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                0.09983407889920756,
                -0.29567304756342244,
                3.714166420572117,
                14.50865773852447,
            ],
        ),
        (
            S::Arccosh,
            &[
                f64::NAN,
                f64::NAN,
                0.0,
                f64::NAN,
                1.566799236972411,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                709.889355822726,
                f64::INFINITY,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                3.7129766511733946,
                14.508657738523969,
            ],
        ),
        (
            S::Arctanh,
            &[
                0.0,
                -0.0,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                f64::NAN,
                0.5493061443340549,
                1e-310,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                f64::NAN,
                0.10033534773107558,
                -0.3095196042031117,
                f64::NAN,
                f64::NAN,
            ],
        ),
        (
            S::Floor,
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                2.0,
                -3.0,
                0.0,
                0.0,
                1e+308,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                0.0,
                -1.0,
                20.0,
                1000000.0,
            ],
        ),
        (
            S::Ceil,
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                3.0,
                -2.0,
                1.0,
                1.0,
                1e+308,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                1.0,
                -0.0,
                21.0,
                1000000.0,
            ],
        ),
        (
            S::Trunc,
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                2.0,
                -2.0,
                0.0,
                0.0,
                1e+308,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                0.0,
                -0.0,
                20.0,
                1000000.0,
            ],
        ),
        (
            S::Rint,
            &[
                0.0,
                -0.0,
                1.0,
                -1.0,
                2.0,
                -2.0,
                0.0,
                0.0,
                1e+308,
                f64::INFINITY,
                -f64::INFINITY,
                f64::NAN,
                0.0,
                -0.0,
                20.0,
                1000000.0,
            ],
        ),
        (
            S::Sign,
            &[
                0.0,
                0.0,
                1.0,
                -1.0,
                1.0,
                -1.0,
                1.0,
                1.0,
                1.0,
                1.0,
                -1.0,
                f64::NAN,
                1.0,
                -1.0,
                1.0,
                1.0,
            ],
        ),
    ];
    for (op, want) in cases {
        let d = DType::Float64;
        let got: Vec<f64> = run(TileOp::Scalar(*op), d, d, &[&X]);
        let d = DType::Float32;
        let narrow: Vec<f32> = X.iter().map(|x| *x as f32).collect();
        let got32: Vec<f32> = run(TileOp::Scalar(*op), d, d, &[&narrow]);
        for i in 0..X.len() {
            assert!(
                ulps(got[i], want[i]) <= 4,
                "{op:?}({}) is {:e}, not {:e}",
                X[i],
                got[i],
                want[i]
            );
            // Arguments that f32 holds.
            if f64::from(narrow[i]) == X[i] && want[i].abs() < 1e38 {
                let near = (f64::from(got32[i]) - want[i]).abs() <= 2.4e-7 * want[i].abs();
                assert!(near, "{op:?}({}f32) is {:e}, not {:e}", X[i], got32[i], want[i]);
            }
        }
    }
}

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

/// The largest error of a function against `libm`'s (itself within 1 ulp) over many arguments.
#[test]
fn fast_functions_are_within_four_ulp() {
    let mut s = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        s
    };
    type F = fn(f64) -> f64;
    let cases: [(S, F, f64, f64); 14] = [
        (S::Exp, libm::exp, -746.0, 711.0),
        (S::Exp2, libm::exp2, -1080.0, 1030.0),
        (S::Expm1, libm::expm1, -40.0, 711.0),
        (S::Log, libm::log, 0.0, 4.0),
        (S::Log2, libm::log2, 0.0, 4.0),
        (S::Log1p, libm::log1p, -1.0, 3.0),
        (S::Sin, libm::sin, -70_000.0, 70_000.0),
        (S::Cos, libm::cos, -70_000.0, 70_000.0),
        (S::Tanh, libm::tanh, -25.0, 25.0),
        (S::Log10, libm::log10, 0.0, 4.0),
        (S::Tan, libm::tan, -70_000.0, 70_000.0),
        (S::Arctan, libm::atan, -8.0, 8.0),
        (S::Sinh, libm::sinh, -711.0, 711.0),
        (S::Cosh, libm::cosh, -711.0, 711.0),
    ];
    for (op, f, low, high) in cases {
        let mut worst = (0, 0.0);
        for round in 0..600 {
            let x: Vec<f64> = (0..N)
                .map(|_| {
                    let r = random();
                    match round % 3 {
                        0 => low + (high - low) * ((r >> 11) as f64 / (1u64 << 53) as f64),
                        1 => ((r >> 11) as f64 / (1u64 << 53) as f64) - 0.5,
                        // Any bits at all: subnormals, infinities, NaN.
                        _ => f64::from_bits(r),
                    }
                })
                .collect();
            let d = DType::Float64;
            let got: Vec<f64> = run(TileOp::Scalar(op), d, d, &[&x]);
            for (x, g) in x.iter().zip(got) {
                let e = ulps(g, f(*x));
                if e > worst.0 {
                    worst = (e, *x);
                }
            }
        }
        assert!(worst.0 <= 4, "{op:?}: {} ulp at {:e}", worst.0, worst.1);
    }
}

#[test]
fn fast_functions_of_two_are_within_two_ulp() {
    let mut s = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        s
    };
    let unit = |r: u64| (r >> 11) as f64 / (1u64 << 53) as f64;
    type F = fn(f64, f64) -> f64;
    let cases: [(S, F); 2] = [(S::Pow, libm::pow), (S::Arctan2, libm::atan2)];
    let special = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, 1e300, -1e-300, 9e15, 4.5e15 + 1.0];
    let odd = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MIN_POSITIVE / 8.0];
    let special: Vec<f64> = special.into_iter().chain(odd).collect();
    for (op, f) in cases {
        let mut worst = (0, 0.0, 0.0);
        for round in 0..1200usize {
            let mut x: Vec<f64> = Vec::new();
            let mut y: Vec<f64> = Vec::new();
            for i in 0..N {
                let (r, q) = (random(), random());
                let (a, b) = match round % 4 {
                    0 => (unit(r) * 3.0, unit(q) * 40.0 - 20.0),
                    // Near 1, where a large exponent shows what the logarithm lacks.
                    1 => (1.0 + (unit(r) - 0.5) * 1e-3, (unit(q) - 0.5) * 1.4e6),
                    2 => (f64::from_bits(r), f64::from_bits(q)),
                    _ => {
                        let k = (round / 4 * N + i) % (special.len() * special.len());
                        (special[k / special.len()], special[k % special.len()])
                    }
                };
                x.push(a);
                y.push(b);
            }
            let d = DType::Float64;
            let got: Vec<f64> = run(TileOp::Scalar(op), d, d, &[&x, &y]);
            for i in 0..N {
                let e = ulps(got[i], f(x[i], y[i]));
                if e > worst.0 {
                    worst = (e, x[i], y[i]);
                }
            }
        }
        assert!(worst.0 <= 2, "{op:?}: {} ulp at {:e}, {:e}", worst.0, worst.1, worst.2);
    }
}

#[test]
fn logarithms_of_powers_of_ten_are_whole() {
    for k in -300i32..=300 {
        let x = format!("1e{k}").parse::<f64>().unwrap_or(f64::NAN);
        let d = DType::Float64;
        let got: Vec<f64> = run(TileOp::Scalar(S::Log10), d, d, &[&[x; N]]);
        assert_eq!(got[0], f64::from(k));
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
    let cells: Vec<i64> = (0..64).map(|i| i * 1_000_003 - 5).collect();
    for op in [S::RandomUniform { seed: 42 }, S::RandomNormal { seed: 42 }] {
        // `run` compares the levels.
        let a: Vec<f64> = run(TileOp::Scalar(op), DType::Int64, DType::Float64, &[&cells]);
        assert!(a.iter().all(|x| x.is_finite()));
        assert!((1..64).all(|i| a[i] != a[i - 1]));
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
