//! Any chunking, same answer: random expressions through passes, fusion, tiling, scheduler and kernels, beside the
//! plain evaluator of `naive`, which sees whole arrays and shares no code with exec.

use crate::naive::{Cell, Whole, evaluate};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};
use tessera_exec::cancel::CancelToken;
use tessera_exec::chunk::{Chunk, Field, dense};
use tessera_exec::config::Config as ExecConfig;
use tessera_exec::run::Runtime;
use tessera_exec::schedule::Sink;
use tessera_exec::task::{Origin, PlanRunner, Resident, Sources};
use tessera_planner::build::Builder;
use tessera_planner::catalog::SourceRef;
use tessera_planner::compile;
use tessera_planner::config::Config;
use tessera_planner::dtype::DType;
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::ir::{AxisReduce, Contraction, Groups, MapOp, NodeId, ScanKind};
use tessera_planner::lookup::LookupKind;
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Region;
use tessera_planner::scalar::Scalar;
use tessera_planner::sort::{QuantileMethod, Quantiles, SortOrder, SortWhat};
use tessera_planner::window::Frame;

/// An array in memory with masked cells, in chunks.
fn array(url: &str, shape: &[u64], chunk: &[u64], seed: u64) -> (SourceRef, Origin, Whole) {
    let grid = Grid::regular(shape, chunk);
    let n: u64 = shape.iter().product();
    // Small whole numbers over 4: sums and products of a few are exact, so every order of additions agrees.
    let cell = |i: u64| -> Cell {
        let h = (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (!h.is_multiple_of(7)).then_some((h % 33) as f64 / 4.0 - 4.0)
    };
    let cells: Vec<Cell> = (0..n).map(cell).collect();
    let whole =
        Whole { shape: shape.iter().map(|&n| n as usize).collect(), dtype: DType::Float64, cells };
    let chunks = (0..grid.count())
        .map(|i| {
            let region = grid.region(&grid.unravel(i));
            let (mut values, mut valid) = (vec![], vec![]);
            tessera_planner::tile::for_each_index(&region, &mut |p| {
                let at = p.iter().zip(shape).fold(0, |n, (&p, &d)| n * d + p) as usize;
                values.push(whole.cells[at].unwrap_or(f64::NAN));
                valid.push(u8::from(whole.cells[at].is_some()));
            });
            let fields = [
                Field::from_vec(DType::Float64, values).unwrap(),
                Field::from_vec(DType::Bool, valid).unwrap(),
            ];
            Arc::new(Chunk::new(&region.shape(), fields).unwrap())
        })
        .collect();
    let source = SourceRef {
        url: format!("temp:{url}"),
        path: String::new(),
        dtype: DType::Float64,
        shape: shape.into(),
        grid: grid.clone(),
        nullable: true,
        version: None,
        plain: false,
    };
    (source, Origin::Resident(Resident::new(grid, chunks)), whole)
}

struct Keep(Mutex<Vec<Option<Arc<Chunk>>>>, Grid);

impl Sink for Keep {
    fn chunk(
        &self,
        _: usize,
        index: ChunkIndex,
        _: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), tessera_exec::error::Error> {
        self.0.lock().unwrap()[self.1.ravel(&index) as usize] = Some(chunk);
        Ok(())
    }
}

/// The value on a grid of 2^-20, whose lines lie where no value is.
///
/// Means and variances may differ in the last bit with the order of additions. Rounding to the grid makes values equal
/// that are equal on paper, so that sorts have one answer.
fn settled(b: &mut Builder, v: NodeId) -> NodeId {
    let [up, aside, down] = [f64::from(1 << 20), 0.37, 1.0 / f64::from(1 << 20)]
        .map(|c| b.constant(Scalar::f64(c)).unwrap());
    let v = b.map(ScalarOp::Mul, &[v, up]).unwrap();
    let v = b.map(ScalarOp::Add, &[v, aside]).unwrap();
    let v = b.map(ScalarOp::Floor, &[v]).unwrap();
    b.map(ScalarOp::Mul, &[v, down]).unwrap()
}

/// A random expression of rank 2.
fn expression(b: &mut Builder, x: NodeId, y: NodeId, choices: &[u8]) -> NodeId {
    let (mut v, mut exact) = (x, true);
    for &c in choices {
        // Comparisons and counts need equal cells, not nearly equal ones.
        if !exact && matches!(c % 24, 8 | 13 | 18 | 20 | 21) {
            (v, exact) = (settled(b, v), true);
        }
        exact &= !matches!(c % 24, 12 | 14 | 16 | 19);
        let shape = b.shape(v);
        v = match c % 24 {
            0 => b.map(ScalarOp::Abs, &[v]).unwrap(),
            1 => b.transpose(v, &[1, 0]).unwrap(),
            2 if shape[0] > 2 => {
                b.slice(v, 0, shape[0] as i64 - 1, -2, shape[0].div_ceil(2)).unwrap()
            }
            3 => {
                let m = b.reduce_axes(v, ReduceKind::Max, &[0]).unwrap();
                b.map(ScalarOp::Sub, &[v, m]).unwrap()
            }
            4 if shape[1] > 1 => {
                let a = b.slice(v, 1, 1, 1, shape[1] - 1).unwrap();
                let z = b.slice(v, 1, 0, 1, shape[1] - 1).unwrap();
                b.map(ScalarOp::Sub, &[a, z]).unwrap()
            }
            5 => b.concat(&[v, v], 0).unwrap(),
            6 => b.scan(v, ScanKind::Sum, (c / 24 % 2) as usize).unwrap(),
            7 => {
                let flat = b.reshape(v, &[shape[0] * shape[1]]).unwrap();
                b.reshape(flat, &[shape[1], shape[0]]).unwrap()
            }
            8 => {
                let half = b.constant(Scalar::f64(0.25)).unwrap();
                let zero = b.constant(Scalar::f64(0.0)).unwrap();
                let t = b.map(ScalarOp::Gt, &[v, zero]).unwrap();
                let t = b.map_op(MapOp::Mask, &[half, t]).unwrap();
                let t = b.transpose(t, &[1, 0]).unwrap();
                match c / 24 % 3 {
                    0 => b.contract(v, t).unwrap(),
                    // A cube with a plane, over both axes of the plane.
                    1 => {
                        let (wide, plane) = (b.expand_dims(v, 2), b.expand_dims(t, 0));
                        let cube = b.map(ScalarOp::Sub, &[wide.unwrap(), plane.unwrap()]).unwrap();
                        let t = b.expand_dims(t, 2).unwrap();
                        let axes = Contraction { summed: 2, ..Contraction::MATRICES };
                        b.contract_axes(cube, t, axes).unwrap()
                    }
                    // With a cube that has two axes of its own.
                    _ => {
                        let t = b.expand_dims(t, 1).unwrap();
                        let axes = Contraction { columns: 2, ..Contraction::MATRICES };
                        let product = b.contract_axes(v, t, axes).unwrap();
                        b.squeeze(product, &[1]).unwrap()
                    }
                }
            }
            9 => {
                let positions: Vec<u64> = (0..shape[0]).map(|i| (i * 5 + 2) % shape[0]).collect();
                b.take(v, 0, positions.into()).unwrap()
            }
            10 => {
                let codes: Arc<[u32]> = (0..shape[0]).map(|i| (i % 2) as u32).collect();
                let count = codes.iter().max().unwrap() + 1;
                let axes = [AxisReduce::Group(Groups { codes, count }), AxisReduce::Keep];
                b.reduce(v, ReduceKind::Sum, &axes).unwrap()
            }
            11 if shape == b.shape(y) => b.map(ScalarOp::Add, &[v, y]).unwrap(),
            12 => {
                let m = b.reduce_axes(v, ReduceKind::Mean, &[1]).unwrap();
                b.map(ScalarOp::Minimum, &[v, m]).unwrap()
            }
            13 => {
                let m = b.reduce_axes(v, ReduceKind::ArgMax, &[0]).unwrap();
                let m = b.cast(m, DType::Float64).unwrap();
                b.map_op(MapOp::Coalesce, &[v, m]).unwrap()
            }
            14 => b.reduce_axes(v, ReduceKind::Var { ddof: 0 }, &[0]).unwrap(),
            15 => {
                let n = b.reduce_axes(v, ReduceKind::Count, &[0, 1]).unwrap();
                let n = b.cast(n, DType::Float64).unwrap();
                b.map(ScalarOp::Add, &[v, n]).unwrap()
            }
            16 => {
                let frame = Frame { before: i64::from(c / 24) - 3, after: i64::from(c % 4) + 3 };
                let kinds = [ReduceKind::Mean, ReduceKind::Max, ReduceKind::Var { ddof: 1 }];
                let kind = kinds[usize::from(c / 24) % 3];
                b.window(v, usize::from(c % 2), frame, kind, u64::from(c % 3)).unwrap()
            }
            17 => {
                let order = SortOrder { descending: c / 24 % 2 == 1, ..SortOrder::default() };
                let limit = (c / 48 % 2 == 1).then_some(3);
                b.sort(v, usize::from(c / 96 % 2), SortWhat::Values, order, limit).unwrap()
            }
            18 => {
                let order = SortOrder { masked_first: c / 24 % 2 == 1, ..SortOrder::default() };
                let p =
                    b.sort(v, usize::from(c / 48 % 2), SortWhat::Positions, order, None).unwrap();
                b.cast(p, DType::Float64).unwrap()
            }
            19 => {
                let q = Quantiles::new(&[0.3, 0.5, 1.0], QuantileMethod::Linear);
                b.quantile(v, usize::from(c / 24 % 2), q).unwrap()
            }
            20 => {
                // Each cell's place among the sorted cells of the last row.
                let row = b.index(v, 0, shape[0] - 1).unwrap();
                let order = SortOrder::default();
                let row = b.sort(row, 0, SortWhat::Values, order, None).unwrap();
                let kinds = [LookupKind::Left, LookupKind::Right, LookupKind::Contains];
                let place = b.lookup(v, &[row], kinds[usize::from(c / 24) % 3]).unwrap();
                b.cast(place, DType::Float64).unwrap()
            }
            21 => {
                let codes = b.cast(v, DType::Int64).unwrap();
                let weights = (c / 24 % 2 == 1).then_some(v);
                let sums = b.bin(codes, weights, 4, false).unwrap();
                b.cast(sums, DType::Float64).unwrap()
            }
            22 => {
                let factor = 0.5f64.to_bits();
                let kind =
                    if c / 24 % 2 == 1 { ScanKind::Last } else { ScanKind::Decay { factor } };
                b.scan(v, kind, usize::from(c / 48 % 2)).unwrap()
            }
            _ => b.rechunk(v, &[2, 3]).unwrap(),
        };
    }
    v
}

fn answer(b: Builder, root: NodeId, sources: &Sources, threads: usize) -> Vec<Option<u64>> {
    let (config, rank) = (b.config.clone(), b.shape(root).len());
    let tiling =
        compile(Rooted { graph: b.graph, roots: vec![root] }, &config, &mut |_, _| {}).unwrap();
    let tiling = Arc::new(tiling);
    let io =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let exec = ExecConfig { threads, quota_bytes_max: 256 << 20, ..ExecConfig::default() };
    let runtime = Runtime::new(exec, io.handle().clone()).unwrap();
    let mut grid = tiling.plan().output(tiling.plan().results[0]).grid.clone();
    let sink = Arc::new(Keep(Mutex::new(vec![None; grid.count() as usize]), grid.clone()));
    let runner = Arc::new(PlanRunner::new(tiling, sources).unwrap());
    let tiling = runner.tiling().clone();
    let running = runtime.start(tiling, runner, sink.clone(), &CancelToken::new()).unwrap();
    running.wait().result.unwrap();
    // A product has an axis more for each that it summed.
    grid.axes.truncate(rank);
    let chunks: Vec<Arc<Chunk>> =
        std::mem::take(&mut *sink.0.lock().unwrap()).into_iter().map(|c| c.unwrap()).collect();
    let whole = dense(&grid, chunks, runtime.pool(), runtime.quota()).unwrap();
    let values = whole.field(0).unwrap().values::<f64>().unwrap();
    let valid = whole.fields().get(1).map(|f| f.values::<u8>().unwrap());
    values
        .iter()
        .enumerate()
        .map(|(i, v)| valid.is_none_or(|m| m[i] != 0).then_some(v.to_bits()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_chunking_gives_the_whole_arrays_answer(
        choices in proptest::collection::vec(any::<u8>(), 1..5),
        a in 1u64..8,
        c in 1u64..10,
        target in prop_oneof![Just(8u64), Just(64), Just(8 << 20)],
    ) {
        let (xs, xo, xw) = array("x", &[7, 9], &[a, c], 1);
        let (ys, yo, yw) = array("y", &[7, 9], &[c, a], 100);
        let mut b = Builder::new(Config { chunk_bytes_target: target, ..Config::default() });
        let x = b.load(Arc::new(xs.clone())).unwrap();
        let y = b.load(Arc::new(ys.clone())).unwrap();
        let root = expression(&mut b, x, y, &choices);
        let cells: u64 = b.shape(root).iter().product();
        prop_assume!(cells < 600);
        let want = evaluate(&b.graph, &[root], &|url| if url == "temp:x" { xw.clone() } else { yw.clone() });
        let mut sources = Sources::default();
        sources.add(xs, xo);
        sources.add(ys, yo);
        // Small chunks share an operand; the bits are those of one chunk an operand.
        let (mut alone, mut few) = (b.clone(), b.clone());
        (alone.config.batch_cells, few.config.batch_cells) = (Some(0), Some(12));
        let one = answer(alone, root, &sources, 1);
        let two = answer(b, root, &sources, 2);
        prop_assert_eq!(&one, &two, "the bits depend on threads or batches");
        prop_assert_eq!(&one, &answer(few, root, &sources, 2), "the bits depend on batches");
        prop_assert_eq!(one.len(), want[0].cells.len());
        for (i, (got, want)) in one.iter().zip(&want[0].cells).enumerate() {
            let got = got.map(f64::from_bits);
            let close = match (got, want) {
                (None, None) => true,
                (Some(g), Some(w)) => (g.is_nan() && w.is_nan()) || (g - w).abs() <= 1e-9 * w.abs().max(1.0),
                _ => false,
            };
            prop_assert!(close, "cell {}: {:?}, evaluator {:?}", i, got, want);
        }
    }
}

#[test]
fn a_product_with_its_own_transpose_is_symmetric_and_that_of_loops() {
    let (n, k) = (1040, 520);
    let cell = |i: u64| (i % 1009) as i64 - 504;
    let mut b = Builder::new(Config::default());
    let [several, middle] = [1009, 504].map(|c| b.constant(Scalar::i64(c)).unwrap());
    let v = b.iota(&[n, k], None).unwrap();
    let v = b.map(ScalarOp::Rem, &[v, several]).unwrap();
    let v = b.map(ScalarOp::Sub, &[v, middle]).unwrap();
    let v = b.cast(v, DType::Float64).unwrap();
    let turned = b.transpose(v, &[1, 0]).unwrap();
    let product = b.contract(v, turned).unwrap();
    let [one, two] = [1, 2].map(|t| answer(b.clone(), product, &Sources::default(), t));
    assert_eq!(one, two, "the bits depend on threads");
    let at = |i: u64, j: u64| f64::from_bits(one[(i * n + j) as usize].unwrap());
    for i in (0..n).step_by(23) {
        for j in (0..n).step_by(29) {
            // Whole numbers below 2^28: every order of additions is exact.
            let want: i64 = (0..k).map(|l| cell(i * k + l) * cell(j * k + l)).sum();
            assert_eq!((at(i, j), at(j, i)), (want as f64, want as f64), "{i} {j}");
        }
    }
    assert!((0..n).all(|i| (0..i).all(|j| at(i, j).to_bits() == at(j, i).to_bits())));
}

#[test]
fn products_in_strips_are_those_of_loops() {
    // Whole numbers, so that every order of additions is exact.
    let cell = |i: u64| (i * 37 % 101) as i64 - 50;
    let cells = |b: &mut Builder, shape: &[u64], chunk: &[u64]| {
        let [many, times, middle] = [101, 37, 50].map(|c| b.constant(Scalar::i64(c)).unwrap());
        let v = b.iota(shape, Some(chunk)).unwrap();
        let v = b.map(ScalarOp::Mul, &[v, times]).unwrap();
        let v = b.map(ScalarOp::Rem, &[v, many]).unwrap();
        let v = b.map(ScalarOp::Sub, &[v, middle]).unwrap();
        b.cast(v, DType::Float64).unwrap()
    };
    let same = |product: Vec<Option<u64>>, step: usize, want: &dyn Fn(u64) -> i64| {
        for i in (0..product.len()).step_by(step) {
            let got = f64::from_bits(product[i].unwrap());
            assert_eq!(got, want(i as u64) as f64, "{i}");
        }
    };
    // Rows of a whole page, in several chunks: on some machines they are copied apart first.
    let (m, n, k) = (70, 512, 600);
    let mut b = Builder::new(Config::default());
    let (x, y) = (cells(&mut b, &[m, k], &[40, 600]), cells(&mut b, &[k, n], &[300, 512]));
    let product = b.contract(x, y).unwrap();
    same(answer(b, product, &Sources::default(), 2), 17, &|i| {
        (0..k).map(|l| cell(i / n * k + l) * cell(l * n + i % n)).sum()
    });
    // Over two axes, more cells than a strip has, in chunks that cut both; with a stack, and with a vector.
    let (s, m, [k0, k1]) = (2, 3, [40, 50]);
    for n in [1, 5] {
        let mut b = Builder::new(Config::default());
        let x = cells(&mut b, &[s, m, k0, k1], &[1, 2, 15, 30]);
        let y = cells(&mut b, &[s, k0, k1, n], &[2, 40, 20, 3]);
        let axes = Contraction { summed: 2, ..Contraction::MATRICES };
        let product = b.contract_axes(x, y, axes).unwrap();
        let [one, two] = [1, 2].map(|t| answer(b.clone(), product, &Sources::default(), t));
        assert_eq!(one, two, "the bits depend on threads");
        same(one, 1, &|i| {
            let (row, column) = (i / n, i % n);
            let k = k0 * k1;
            let at = |l: u64| (row / m * k + l) * n + column;
            (0..k).map(|l| cell(row * k + l) * cell(at(l))).sum()
        });
    }
}
