//! Kernels alone on one thread, with bytes a second: `cargo bench -p tessera-exec [-- NAME]`.
//!
//! The cells of an operand are used, 8 MiB of them, so the figures are those of the second and third cache, not of
//! memory. `benches/` of the repository measures whole statements.
#![allow(missing_docs, clippy::unwrap_used, reason = "benchmarks")]
#![expect(unsafe_code, reason = "numbers are seen as bytes")]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use tessera_kernels::contract::{Block, Target, contract, room};
use tessera_kernels::copy::{Strided, copy_box};
use tessera_kernels::fused::{OutputFields, Scratch, StridedInput, compile_at};
use tessera_kernels::scan::{Scan, scan};
use tessera_kernels::window::{Input, Part, Windows, window};
use tessera_kernels::{Level, sort};
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, ScanKind};
use tessera_planner::plan::{Fused, FusedInput, FusedOutput};
use tessera_planner::program::{Arg, Program, ScalarOp};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Region;
use tessera_planner::scalar::Scalar;
use tessera_planner::sort::{SortOrder, SortWhat};
use tessera_planner::window::Frame;

const CELLS: usize = 1 << 20;
const SIDE: usize = 1 << 10;

fn main() {
    divan::main();
}

fn never() -> bool {
    false
}

/// Numbers in (0, 1) without order.
fn cells(n: usize) -> Vec<f64> {
    let mut state = 1u64;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        })
        .collect()
}

fn bytes(v: &[f64]) -> &[u8] {
    // SAFETY: plain numbers as bytes.
    unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), size_of_val(v)) }
}

fn bytes_mut(v: &mut [f64]) -> &mut [u8] {
    // SAFETY: plain numbers as bytes; every pattern of bits is one.
    unsafe { std::slice::from_raw_parts_mut(v.as_mut_ptr().cast(), size_of_val(v)) }
}

/// A program of float64 over `inputs` tensors of `SIDE` × `SIDE`, and what becomes of its value.
fn fused(
    inputs: u32,
    make: impl Fn(&mut Program) -> Arg,
    out: impl Fn(Arg) -> FusedOutput,
) -> Fused {
    let mut program = Program { inputs: vec![DType::Float64; inputs as usize], insts: vec![] };
    let value = make(&mut program);
    let inputs = (0..inputs).map(|input| FusedInput::Field { input, field: 0 }).collect();
    Fused { program, inputs, outputs: vec![out(value)], batch: None }
}

fn kept(value: Arg) -> FusedOutput {
    FusedOutput::Store { value, valid: None }
}

fn summed(axes: [AxisReduce; 2]) -> impl Fn(Arg) -> FusedOutput {
    move |value| FusedOutput::Reduce {
        kind: ReduceKind::Sum,
        axes: axes.iter().cloned().collect(),
        value,
        valid: None,
    }
}

fn apply(op: ScalarOp) -> impl Fn(&mut Program) -> Arg {
    move |p| p.push(op, DType::Float64, &[Arg::Input(0)])
}

/// Runs a program over whole inputs into a buffer of a store's size, which is large enough for every state.
fn run(b: Bencher<'_, '_>, level: Level, f: &Fused) {
    let shape = [SIDE as u64, SIDE as u64];
    let data: Vec<Vec<f64>> = f.program.inputs.iter().map(|_| cells(CELLS)).collect();
    let inputs: Vec<_> = data
        .iter()
        .map(|d| StridedInput {
            bytes: bytes(d),
            offset: 0,
            strides: &[SIDE as i64, 1],
            dtype: DType::Float64,
        })
        .collect();
    let compiled = compile_at(f, 2, level).unwrap();
    let mut out = vec![0.0; CELLS];
    let mut rest = vec![0.0; CELLS];
    let mut scratch = Scratch::new();
    let reduced = match &f.outputs[0] {
        FusedOutput::Store { .. } | FusedOutput::Certain { .. } => None,
        FusedOutput::Reduce { axes, .. } => Some(axes.clone()),
    };
    let n = match &reduced {
        None => CELLS,
        Some(axes) => axes.iter().filter(|a| matches!(a, AxisReduce::Keep)).map(|_| SIDE).product(),
    };
    let written = if reduced.is_none() { CELLS * 8 } else { 0 };
    b.counter(BytesCount::new(CELLS * 8 * data.len() + written)).bench_local(|| {
        let mut fields = vec![&mut bytes_mut(&mut out)[..n * 8]];
        if reduced.is_some() {
            fields.push(&mut bytes_mut(&mut rest)[..n * 8]);
            fields.truncate(ReduceKind::Sum.state(DType::Float64, false).len());
        }
        let region = Region::whole(&shape);
        let mut outputs = [OutputFields { fields, stream: false }];
        compiled.run(&region, &shape, &inputs, &mut outputs, &mut scratch, &never).unwrap();
    });
}

#[divan::bench(args = Level::available())]
fn sum_of_roots_and_exp(b: Bencher<'_, '_>, level: Level) {
    let make = |p: &mut Program| {
        let f = DType::Float64;
        let (x, y, z) = (Arg::Input(0), Arg::Input(1), Arg::Input(2));
        let xx = p.push(ScalarOp::Mul, f, &[x, x]);
        let yy = p.push(ScalarOp::Mul, f, &[y, y]);
        let s = p.push(ScalarOp::Add, f, &[xx, yy]);
        let s = p.push(ScalarOp::Sqrt, f, &[s]);
        let n = p.push(ScalarOp::Neg, f, &[z]);
        let e = p.push(ScalarOp::Exp, f, &[n]);
        p.push(ScalarOp::Mul, f, &[s, e])
    };
    run(b, level, &fused(3, make, summed([AxisReduce::All, AxisReduce::All])));
}

#[divan::bench(args = Level::available())]
fn multiply_and_add_kept(b: Bencher<'_, '_>, level: Level) {
    let make = |p: &mut Program| {
        let xy = p.push(ScalarOp::Mul, DType::Float64, &[Arg::Input(0), Arg::Input(1)]);
        p.push(ScalarOp::Add, DType::Float64, &[xy, Arg::Input(2)])
    };
    run(b, level, &fused(3, make, kept));
}

/// Programs whose operations cost less than what they pass on.
#[divan::bench(args = ["products", "differences", "choices", "choices of two", "polynomial"])]
fn cheap(b: Bencher<'_, '_>, what: &str) {
    let f = DType::Float64;
    let (x, y) = (Arg::Input(0), Arg::Input(1));
    let k = |v: f64| Arg::Const(Scalar::f64(v));
    let make = |p: &mut Program| match what {
        "products" => p.push(ScalarOp::Mul, f, &[x, y]),
        "differences" => {
            let d = p.push(ScalarOp::Sub, f, &[x, y]);
            p.push(ScalarOp::Mul, f, &[d, d])
        }
        "choices" => {
            let c = p.push(ScalarOp::Gt, DType::Bool, &[x, k(0.5)]);
            p.push(ScalarOp::Where, f, &[c, y, k(0.0)])
        }
        "choices of two" => {
            let c = p.push(ScalarOp::Gt, DType::Bool, &[x, y]);
            p.push(ScalarOp::Where, f, &[c, y, k(0.0)])
        }
        _ => {
            let first = p.push(ScalarOp::Mul, f, &[k(0.5), x]);
            [-1.25, 2.0, -0.75].into_iter().fold(first, |y, c| {
                let y = p.push(ScalarOp::Add, f, &[y, k(c)]);
                p.push(ScalarOp::Mul, f, &[y, x])
            })
        }
    };
    let inputs = if what == "polynomial" { 1 } else { 2 };
    match what {
        "polynomial" => run(b, Level::detect(), &fused(inputs, make, kept)),
        _ => run(
            b,
            Level::detect(),
            &fused(inputs, make, summed([AxisReduce::All, AxisReduce::All])),
        ),
    }
}

#[divan::bench(args = ["all", "rows", "columns"])]
fn sum(b: Bencher<'_, '_>, over: &str) {
    let axes = match over {
        "all" => [AxisReduce::All, AxisReduce::All],
        "rows" => [AxisReduce::All, AxisReduce::Keep],
        _ => [AxisReduce::Keep, AxisReduce::All],
    };
    run(b, Level::detect(), &fused(1, |_| Arg::Input(0), summed(axes)));
}

#[divan::bench(args = [
    ScalarOp::Exp, ScalarOp::Log, ScalarOp::Sin, ScalarOp::Cos, ScalarOp::Tanh, ScalarOp::Sqrt,
    ScalarOp::Expm1, ScalarOp::Log1p, ScalarOp::Tan, ScalarOp::Arctan, ScalarOp::Cbrt, ScalarOp::Erf,
])]
fn function(b: Bencher<'_, '_>, op: ScalarOp) {
    run(b, Level::detect(), &fused(1, apply(op), kept));
}

#[divan::bench]
fn power(b: Bencher<'_, '_>) {
    let make =
        |p: &mut Program| p.push(ScalarOp::Pow, DType::Float64, &[Arg::Input(0), Arg::Input(1)]);
    run(b, Level::detect(), &fused(2, make, kept));
}

#[divan::bench]
fn transpose(b: Bencher<'_, '_>) {
    let (from, mut to) = (cells(CELLS), vec![0.0; CELLS]);
    let shape = [SIDE as u64, SIDE as u64];
    b.counter(BytesCount::new(16 * CELLS)).bench_local(|| {
        let from = Strided { bytes: bytes(&from), offset: 0, strides: &[1, SIDE as i64] };
        copy_box(8, &shape, from, bytes_mut(&mut to), 0, &[SIDE as i64, 1]).unwrap();
    });
}

#[divan::bench(args = [0, 1])]
fn running_sum(b: Bencher<'_, '_>, axis: usize) {
    let (from, mut to) = (cells(CELLS), vec![0.0; CELLS]);
    let shape = [SIDE as u64, SIDE as u64];
    b.counter(BytesCount::new(16 * CELLS)).bench_local(|| {
        let from = Strided { bytes: bytes(&from), offset: 0, strides: &[SIDE as i64, 1] };
        let value = bytes_mut(&mut to);
        let what = Scan { shape: &shape, axis, from, value, valid: None, carry: None };
        scan(ScanKind::Sum, DType::Float64, what, &never).unwrap();
    });
}

#[divan::bench(args = [1, 0])]
fn sort(b: Bencher<'_, '_>, axis: usize) {
    let (data, mut out) = (cells(CELLS), vec![0.0; CELLS]);
    let shape = [SIDE as u64, SIDE as u64];
    b.counter(ItemsCount::new(CELLS)).bench_local(|| {
        let input = sort::LinesIn {
            shape: &shape,
            axis,
            dtype: DType::Float64,
            value: Strided { bytes: bytes(&data), offset: 0, strides: &[SIDE as i64, 1] },
            valid: None,
        };
        let value = bytes_mut(&mut out);
        let out = sort::LinesOut { kept: SIDE as u64, value, valid: None };
        sort::sort(input, SortWhat::Values, SortOrder::default(), out, &never).unwrap();
    });
}

/// Items are multiplications with their additions: twice as many floating-point operations.
#[divan::bench(args = [16, 128, 1024])]
fn product(b: Bencher<'_, '_>, n: usize) {
    let (left, right, mut out) = (cells(n * n), cells(n * n), vec![0.0; n * n]);
    let strides = [n as i64, 1];
    let block = Block { m: n, n, k: n };
    let mut room = vec![0; room(DType::Float64, block)];
    b.counter(ItemsCount::new(n * n * n)).bench_local(|| {
        let side = |v| Strided { bytes: bytes(v), offset: 0, strides: &strides };
        let to = Target { c: bytes_mut(&mut out), c_row: n, add: false };
        contract(DType::Float64, block, side(&left), side(&right), to, &mut room).unwrap();
    });
}

/// Items are multiplications with their additions, of `int64`.
#[divan::bench(args = [16, 128, 1024])]
fn product_of_integers(b: Bencher<'_, '_>, n: usize) {
    // The bits of floats are integers like others.
    let (left, right, mut out) = (cells(n * n), cells(n * n), vec![0.0; n * n]);
    let strides = [n as i64, 1];
    let block = Block { m: n, n, k: n };
    b.counter(ItemsCount::new(n * n * n)).bench_local(|| {
        let side = |v| Strided { bytes: bytes(v), offset: 0, strides: &strides };
        let to = Target { c: bytes_mut(&mut out), c_row: n, add: false };
        contract(DType::Int64, block, side(&left), side(&right), to, &mut []).unwrap();
    });
}

/// Items are windows along the first axis.
#[divan::bench(args = [7, 91, 1001])]
fn rolling_median(b: Bencher<'_, '_>, width: i64) {
    let (data, mut out) = (cells(CELLS), vec![0.0; CELLS]);
    let shape = [SIDE as u64; 2];
    let windows = Windows {
        shape: &shape,
        axis: 0,
        frame: Frame { before: width - 1, after: 0 },
        min_count: 1,
        len: SIDE as u64,
        first: 0,
        level: Level::detect(),
    };
    let kind = ReduceKind::Quantile(0.5f64.to_bits());
    b.counter(ItemsCount::new(CELLS)).bench_local(|| {
        let parts = [Part { first: 0, bytes: bytes(&data), valid: None, offset: 0 }];
        let input = Input { parts: &parts, strides: &[SIDE as i64, 1] };
        let to = bytes_mut(&mut out);
        window(kind, DType::Float64, windows, input, to, None, &never).unwrap();
    });
}
