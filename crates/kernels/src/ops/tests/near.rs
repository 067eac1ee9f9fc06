//! Functions that vectorise, against those of `libm`.

use super::*;

/// The largest error of a function against `libm`'s (itself within 1 ulp) over many arguments.
#[test]
fn fast_functions_are_within_four_ulp() {
    let mut random = crate::noise(0x9e37_79b9_7f4a_7c15);
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
    let mut random = crate::noise(0x2545_f491_4f6c_dd1d);
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
