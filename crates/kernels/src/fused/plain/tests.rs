//! Reductions of cells where they lie compared with tiles.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::super::tests::{bytes_of, dense, field, lcg, run, typed};
use crate::fused::{Fused, StridedInput};
use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, Groups};
use tessera_planner::plan::FusedOutput;
use tessera_planner::program::{Arg, Program};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::{Region, strides};
use tessera_planner::scalar::Scalar;

/// Reductions of each kind together and alone, of cells in place and of the same cells shifted by one byte, which
/// go through tiles.
fn case(shape: &[u64], how: &[u8], dtype: DType, cells: &[u8]) {
    let axes: Vec<AxisReduce> = how
        .iter()
        .zip(shape)
        .map(|(h, n)| match h {
            0 => AxisReduce::Keep,
            1 => AxisReduce::All,
            _ => AxisReduce::Group(Groups {
                codes: (0..*n).map(|i| (i / 3 % 4) as u32).collect::<Vec<_>>().into(),
                count: 4,
            }),
        })
        .collect();
    let kinds = [
        ReduceKind::Sum,
        ReduceKind::MeanOf(3),
        ReduceKind::Prod,
        ReduceKind::Min,
        ReduceKind::MaxTotal,
        ReduceKind::Var { ddof: 0 },
        ReduceKind::ArgMax,
    ];
    let mut shifted = vec![0; cells.len() + 9];
    // No type of more than one byte is aligned there.
    let odd = 1 + shifted.as_ptr().align_offset(8);
    shifted[odd..odd + cells.len()].copy_from_slice(cells);
    let step = strides(shape);
    let input = |bytes| StridedInput { bytes, offset: 0, strides: &step, dtype };
    let known: Vec<ReduceKind> = kinds.into_iter().filter(|k| k.result(dtype).is_some()).collect();
    // Without a variance and positions, which take other paths, and all of them.
    let without = &known[..known.iter().position(|k| k.name() == "var").unwrap_or(4).min(5)];
    for kinds in known.chunks(1).chain([without, &known]) {
        let output = |k: &ReduceKind| FusedOutput::Reduce {
            kind: *k,
            axes: axes.iter().cloned().collect(),
            value: Arg::Input(0),
            valid: None,
        };
        let fused = Fused {
            program: Program { inputs: vec![dtype], insts: vec![] },
            inputs: vec![field(0)],
            outputs: kinds.iter().map(output).collect(),
            batch: None,
        };
        let region = Region::whole(shape);
        let there = run(&fused, &region, shape, &[input(cells)]).unwrap();
        let tiles = run(&fused, &region, shape, &[input(&shifted[odd..])]).unwrap();
        assert_eq!(there, tiles, "{kinds:?} {dtype} {shape:?} {how:?}");
    }
}

#[test]
fn constants_beside_cells_are_counted_too() {
    let cells: Vec<f64> = (0..300).map(f64::from).collect();
    let two = Arg::Const(Scalar::from_f64(DType::Float64, 2.0));
    let output = |value| FusedOutput::Reduce {
        kind: ReduceKind::Sum,
        axes: [AxisReduce::All, AxisReduce::All].into_iter().collect(),
        value,
        valid: None,
    };
    let fused = Fused {
        program: Program { inputs: vec![DType::Float64], insts: vec![] },
        inputs: vec![field(0)],
        outputs: vec![output(Arg::Input(0)), output(two)],
        batch: None,
    };
    let input = dense(&cells, &[100, 1], DType::Float64);
    let out = run(&fused, &Region::whole(&[3, 100]), &[3, 100], &[input]).unwrap();
    let sums = [&out[0][0], &out[1][0]].map(|f| typed::<f64>(f, 1)[0]);
    assert_eq!(sums, [299.0 * 150.0, 600.0]);
}

#[test]
fn cells_in_place_give_the_bits_of_tiles() {
    // Lanes of sums are carried over in those of 2100 cells and more, wherever in a tile a run begins.
    let shapes: [&[u64]; 8] = [
        &[9000],
        &[7, 125],
        &[3, 5, 125],
        &[2, 11, 3, 4],
        &[21, 200],
        &[5, 1, 31],
        &[3, 2100],
        &[2, 4133],
    ];
    for shape in shapes {
        let n: u64 = shape.iter().product();
        let mut r = lcg(n);
        let f: Vec<f64> = (0..n).map(|_| r() * 4.0 - 2.0).collect();
        let single: Vec<f32> = f.iter().map(|x| *x as f32).collect();
        let wide: Vec<i64> = f.iter().map(|x| (x * 4e18) as i64).collect();
        let half: Vec<i32> = f.iter().map(|x| (x * 1e9) as i32).collect();
        let narrow: Vec<i8> = f.iter().map(|x| (x * 64.0) as i8).collect();
        for number in 0..3u32.pow(shape.len() as u32) {
            let how: Vec<u8> =
                (0..shape.len() as u32).map(|a| (number / 3u32.pow(a) % 3) as u8).collect();
            case(shape, &how, DType::Float64, bytes_of(&f));
            case(shape, &how, DType::Float32, bytes_of(&single));
            case(shape, &how, DType::Int64, bytes_of(&wide));
            case(shape, &how, DType::UInt64, bytes_of(&wide));
            case(shape, &how, DType::Int32, bytes_of(&half));
            case(shape, &how, DType::Int8, bytes_of(&narrow));
        }
    }
}

/// The first cell that no other beats: NaN beats numbers, as in NumPy.
fn first_best(cells: &[f64], least: bool) -> usize {
    let beats = |v: f64, s: f64| {
        let better = if least { v < s } else { v > s };
        better || (v.is_nan() && !s.is_nan())
    };
    (0..cells.len()).fold(0, |best, i| if beats(cells[i], cells[best]) { i } else { best })
}

#[test]
fn positions_are_those_of_the_first_best_cells() {
    // Around the cells that are compared beside each other, and lines that are processed in blocks.
    let shapes: [(u64, u64); 7] =
        [(6, 1), (9, 31), (9, 32), (7, 125), (3, 200), (2, 4133), (2, 66_000)];
    for (rows, columns) in shapes {
        let (step, width) = ([columns as i64, 1], columns as usize);
        // A part of its stage: positions are those of the stage.
        let (stage, region) = ([rows + 2, columns + 5], Region::at(&[1, 3], &[rows, columns]));
        let position = |i: usize| {
            let (row, column) = (i as u64 / columns, i as u64 % columns);
            ((row + 1) * stage[1] + column + 3) as i64
        };
        let mut r = lcg(columns);
        // Ties, zeros of both signs, and NaN in some lines.
        let one = |i: u64| match (r() * 12.0) as u32 {
            0 => -0.0,
            1 => 0.0,
            2 if i / columns % 3 == 1 => f64::NAN,
            n => f64::from(n % 3),
        };
        let cells: Vec<f64> = (0..rows * columns).map(one).collect();
        let lines: Vec<&[f64]> = cells.chunks(width).collect();
        let both = [ReduceKind::ArgMin, ReduceKind::ArgMax];
        for kinds in both.chunks(1).chain([&both[..]]) {
            for how in [AxisReduce::Keep, AxisReduce::All] {
                let output = |kind: &ReduceKind| FusedOutput::Reduce {
                    kind: *kind,
                    axes: [how.clone(), AxisReduce::All].into_iter().collect(),
                    value: Arg::Input(0),
                    valid: None,
                };
                let fused = Fused {
                    program: Program { inputs: vec![DType::Float64], insts: vec![] },
                    inputs: vec![field(0)],
                    outputs: kinds.iter().map(output).collect(),
                    batch: None,
                };
                let input = dense(&cells, &step, DType::Float64);
                let out = run(&fused, &region, &stage, &[input]).unwrap();
                for (kind, fields) in kinds.iter().zip(&out) {
                    let least = *kind == ReduceKind::ArgMin;
                    let (best, want): (Vec<usize>, Vec<i64>) = match how {
                        AxisReduce::Keep => (0..lines.len())
                            .map(|l| {
                                let at = first_best(lines[l], least);
                                (l * width + at, at as i64 + 3)
                            })
                            .unzip(),
                        _ => {
                            let at = first_best(&cells, least);
                            (vec![at], vec![position(at)])
                        }
                    };
                    assert_eq!(
                        typed::<i64>(&fields[1], want.len()),
                        want,
                        "{kind} {rows} {columns}"
                    );
                    let bits: Vec<u64> = best.iter().map(|i| cells[*i].to_bits()).collect();
                    assert_eq!(
                        typed::<u64>(&fields[0], bits.len()),
                        bits,
                        "{kind} {rows} {columns}"
                    );
                }
            }
        }
    }
}
