#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
//! Accuracy of float functions against `testdata/accuracy`, at every level.
//!
//! `sql/make_accuracy.py` makes the tables and describes their format.

use super::tests::{dense, run_at, typed};
use super::*;
use std::path::PathBuf;
use tessera_planner::plan::{FusedInput, FusedOutput};
use tessera_planner::program::{Arg, Program, ScalarOp as S};

/// Functions with tables.
const FUNCTIONS: &[(&str, S)] = &[
    ("exp", S::Exp),
    ("exp2", S::Exp2),
    ("expm1", S::Expm1),
    ("log", S::Log),
    ("log2", S::Log2),
    ("log10", S::Log10),
    ("log1p", S::Log1p),
    ("sin", S::Sin),
    ("cos", S::Cos),
    ("tan", S::Tan),
    ("arcsin", S::Arcsin),
    ("arccos", S::Arccos),
    ("arctan", S::Arctan),
    ("sinh", S::Sinh),
    ("cosh", S::Cosh),
    ("tanh", S::Tanh),
    ("arcsinh", S::Arcsinh),
    ("arccosh", S::Arccosh),
    ("arctanh", S::Arctanh),
    ("sqrt", S::Sqrt),
    ("cbrt", S::Cbrt),
    ("erf", S::Erf),
    ("erfc", S::Erfc),
    ("power", S::Pow),
    ("arctan2", S::Arctan2),
    ("hypot", S::Hypot),
];

/// `float64` functions that are less accurate than NumPy's, which are within 1: their bounds.
const BEHIND: &[(&str, f64)] = &[("arcsinh", 1.5), ("arccosh", 1.5), ("arctanh", 1.5)];

/// A float type with tables.
trait Float: Copy + std::fmt::Debug {
    const DTYPE: DType;
    fn read(bytes: &[u8]) -> Self;
    fn wide(self) -> f64;
    /// Distance to the next float away from zero; for the greatest float to the next toward zero.
    fn unit(self) -> f64;
    /// The bits, with all NaN equal.
    fn bits(self) -> u64;
}

macro_rules! float {
    ($t:ident, $dtype:expr) => {
        impl Float for $t {
            const DTYPE: DType = $dtype;
            fn read(bytes: &[u8]) -> Self {
                $t::from_le_bytes(bytes.try_into().unwrap())
            }
            fn wide(self) -> f64 {
                self.into()
            }
            fn unit(self) -> f64 {
                let x = self.abs().min($t::MAX.next_down());
                (x.next_up() - x).into()
            }
            fn bits(self) -> u64 {
                if self.is_nan() { $t::NAN.to_bits().into() } else { self.to_bits().into() }
            }
        }
    };
}
float!(f32, DType::Float32);
float!(f64, DType::Float64);

/// Arguments, results and the distance of the exact results from them; `None` if the result has to match bit for bit.
struct Table<T> {
    arguments: Vec<Vec<T>>,
    values: Vec<T>,
    rests: Vec<Option<f64>>,
    /// Error bound in units in the last place.
    bound: f64,
}

fn table<T: Float>(name: &str, arity: usize) -> Table<T> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/accuracy");
    let file = format!("{name}.{}", T::DTYPE.name());
    let bytes = std::fs::read(directory.join(&file)).unwrap();
    let bounds = std::fs::read_to_string(directory.join("bounds.txt")).unwrap();
    let line = bounds.lines().find(|l| l.starts_with(&format!("{file} "))).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let size = size_of::<T>();
    let rows: Vec<&[u8]> = bytes.chunks_exact((arity + 1) * size + 1).collect();
    assert_eq!(rows.len(), words[1].parse::<usize>().unwrap(), "{file}");
    let column = |i: usize| rows.iter().map(|r| T::read(&r[i * size..(i + 1) * size])).collect();
    Table {
        arguments: (0..arity).map(column).collect(),
        values: column(arity),
        rests: rows
            .iter()
            .map(|r| match r[r.len() - 1] as i8 {
                -128 => None,
                rest => Some(f64::from(rest) / 128.0),
            })
            .collect(),
        bound: words[2].parse().unwrap(),
    }
}

/// Applies the function to the cells; asserts that every level gives the same bits.
fn apply<T: Float>(op: S, arguments: &[&[T]]) -> Vec<T> {
    let n = arguments[0].len();
    let mut program = Program { inputs: vec![T::DTYPE; arguments.len()], insts: vec![] };
    let args: Vec<Arg> = (0..arguments.len()).map(|i| Arg::Input(i as u32)).collect();
    let value = program.push(op, T::DTYPE, &args);
    let fused = Fused {
        program,
        inputs: (0..arguments.len())
            .map(|i| FusedInput::Field { input: i as u32, field: 0 })
            .collect(),
        outputs: vec![FusedOutput::Store { value, valid: None }],
        batch: None,
    };
    let inputs: Vec<_> = arguments.iter().map(|a| dense(a, &[1], T::DTYPE)).collect();
    let region = Region::whole(&[n as u64]);
    let mut levels = Level::available().into_iter().map(|level| {
        let out = run_at(level, &fused, &region, &[n as u64], &inputs).unwrap();
        typed::<T>(&out[0][0], n)
    });
    let first = levels.next().unwrap();
    for other in levels {
        for (i, (a, b)) in first.iter().zip(&other).enumerate() {
            let x: Vec<T> = arguments.iter().map(|a| a[i]).collect();
            assert_eq!(a.bits(), b.bits(), "{op:?} of {x:?} is {a:?} and {b:?}");
        }
    }
    first
}

/// Returns a description of the first fault of a function, or its largest error.
fn faults<T: Float>(name: &str, op: S, arity: usize) -> Result<f64, String> {
    let t = table::<T>(name, arity);
    let whole: Vec<&[T]> = t.arguments.iter().map(Vec::as_slice).collect();
    let got = apply(op, &whole);
    // The bits do not depend on how cells are cut into chunks.
    for (from, to) in [(0, 1), (1, 66), (3, got.len() - 1)] {
        let part: Vec<&[T]> = whole.iter().map(|a| &a[from..to]).collect();
        for (i, one) in apply(op, &part).into_iter().enumerate() {
            if one.bits() != got[from + i].bits() {
                return Err(format!("{name}: another result at {} of {from}..{to}", from + i));
            }
        }
    }
    let behind = BEHIND.iter().find(|b| b.0 == name && T::DTYPE == DType::Float64);
    let bound = behind.map_or(t.bound, |b| b.1);
    let (mut worst, mut wrong, mut first) = (0.0f64, 0, String::new());
    let told = t.values.iter().zip(&t.rests);
    for (i, (&ours, (&value, rest))) in got.iter().zip(told).enumerate() {
        let error = match rest {
            None if ours.bits() == value.bits() => 0.0,
            None => f64::INFINITY,
            Some(rest) => ((ours.wide() - value.wide()) / value.unit() - rest).abs(),
        };
        worst = worst.max(error);
        if error.is_nan() || error > bound {
            wrong += 1;
            if first.is_empty() {
                let x: Vec<T> = whole.iter().map(|a| a[i]).collect();
                first = format!("of {x:?} is {ours:?}, not {value:?} ({error:.2} units)");
            }
        }
    }
    let file = format!("{name}.{}", T::DTYPE.name());
    match wrong {
        0 => Ok(worst),
        n => Err(format!(
            "{file}: {n} of {} beyond {} units, worst {worst:.2}; {first}",
            got.len(),
            t.bound
        )),
    }
}

#[test]
fn functions_are_within_their_bounds_at_every_level() {
    let mut wrong = Vec::new();
    for &(name, op) in FUNCTIONS {
        for found in [faults::<f64>(name, op, op.arity()), faults::<f32>(name, op, op.arity())] {
            wrong.extend(found.err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
