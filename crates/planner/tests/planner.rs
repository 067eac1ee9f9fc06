//! Plans of small graphs: what they look like, and that both directions of tiling agree.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::build::Builder;
use tessera_planner::catalog::SourceRef;
use tessera_planner::config::Config;
use tessera_planner::cost::cost;
use tessera_planner::dtype::DType;
use tessera_planner::factor::Factor;
use tessera_planner::grid::Grid;
use tessera_planner::ir::{AxisReduce, Groups, NodeId, ScanKind};
use tessera_planner::lookup::LookupKind;
use tessera_planner::optimize::Rooted;
use tessera_planner::plan::{OutputRef, Stage, StageId, Task};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Region;
use tessera_planner::scalar::Scalar;
use tessera_planner::sort::{QuantileMethod, Quantiles, SortOrder, SortWhat};
use tessera_planner::tile::{Tiling, for_each_index};
use tessera_planner::window::Frame;
use tessera_planner::{compile, explain};

#[path = "planner/keys.rs"]
mod keys;
#[path = "planner/place.rs"]
mod place;
#[path = "planner/reach.rs"]
mod reach;

fn source(name: &str, shape: &[u64], chunk: &[u64]) -> Arc<SourceRef> {
    Arc::new(SourceRef {
        url: name.into(),
        path: String::new(),
        dtype: DType::Float64,
        shape: shape.into(),
        grid: Grid::regular(shape, chunk),
        nullable: false,
        version: None,
        plain: false,
    })
}

fn tiny() -> Config {
    Config { chunk_bytes_target: 8 * 16, ..Config::default() }
}

fn plan(b: Builder, roots: &[NodeId]) -> Tiling {
    let config = b.config.clone();
    compile(Rooted { graph: b.graph, roots: roots.to_vec() }, &config, &mut |_, _| {}).unwrap()
}

#[test]
fn a_part_of_a_graph_holds_the_nodes_that_its_root_needs() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[10], &[5])).unwrap();
    let y = b.load(source("y", &[10], &[5])).unwrap();
    let double = b.map(ScalarOp::Add, &[x, x]).unwrap();
    let both = b.map(ScalarOp::Mul, &[double, y]).unwrap();
    for root in [x, double, both] {
        let whole = Rooted { graph: b.graph.clone(), roots: vec![root] };
        assert_eq!(Rooted::of(&b.graph, root), whole.pruned());
    }
}

#[test]
fn standardise_passes_twice_over_its_source() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[10_000, 1000], &[1000, 1000])).unwrap();
    let mean = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
    let var = b.reduce_axes(x, ReduceKind::Var { ddof: 0 }, &[0]).unwrap();
    let std = b.map(ScalarOp::Sqrt, &[var]).unwrap();
    let d = b.map(ScalarOp::Sub, &[x, mean]).unwrap();
    let z = b.map(ScalarOp::Div, &[d, std]).unwrap();
    insta::assert_snapshot!(explain::plan(&plan(b, &[z])));
}

#[test]
fn half_of_a_product_with_its_own_transpose_is_copied() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[3000, 1500], &[1000, 1500])).unwrap();
    let mean = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
    let d = b.map(ScalarOp::Sub, &[x, mean]).unwrap();
    let turned = b.transpose(d, &[1, 0]).unwrap();
    let product = b.contract(turned, d).unwrap();
    insta::assert_snapshot!(explain::plan(&plan(b, &[product])));
}

#[test]
fn a_slice_reads_only_its_box() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[10_000, 1000], &[1000, 1000])).unwrap();
    let two = b.constant(Scalar::f64(2.0)).unwrap();
    let y = b.map(ScalarOp::Mul, &[x, two]).unwrap();
    let s = b.slice(y, 0, 2500, -1, 3).unwrap();
    let s = b.index(s, 1, 7).unwrap();
    insta::assert_snapshot!(explain::plan(&plan(b, &[s])));
}

#[test]
fn a_thin_slice_is_as_many_operands_as_its_chunks_are_worth() {
    let mut b = Builder::new(Config::default());
    // Chunks of 4 MB, of which the slice needs 40 bytes each: two of them are read at a time.
    let x = b.load(source("x", &[1000, 1000, 100], &[5, 1000, 100])).unwrap();
    let s = b.index(x, 1, 7).unwrap();
    let s = b.index(s, 1, 11).unwrap();
    let told = explain::plan(&plan(b, &[s]));
    assert!(told.contains("100 operands"), "{told}");
    // Small chunks are still read together.
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[1000, 10, 10], &[1, 10, 10])).unwrap();
    let s = b.index(x, 1, 7).unwrap();
    let told = explain::plan(&plan(b, &[s]));
    assert!(told.contains("1 operand"), "{told}");
}

#[test]
fn generators_take_the_new_shape() {
    let mut b = Builder::new(Config::default());
    let n = b.iota(&[1_500_000_000], None).unwrap();
    let x = b.cast(n, DType::Float64).unwrap();
    let x = b.reshape(x, &[150_000, 10_000]).unwrap();
    let x = b.map(ScalarOp::Sqrt, &[x]).unwrap();
    let m = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
    insta::assert_snapshot!(explain::plan(&plan(b, &[m])));
}

#[test]
fn windows_read_their_neighbours_and_counts_meet_in_a_tree() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[10_000, 1000], &[1000, 1000])).unwrap();
    let week = Frame { before: 6, after: 0 };
    let w = b.window(x, 0, week, ReduceKind::Mean, 1).unwrap();
    let q = Quantiles::new(&[0.5], QuantileMethod::Linear);
    let m = b.quantile(w, 0, q).unwrap();
    let edges = b.iota(&[11], None).unwrap();
    let edges = b.cast(edges, DType::Float64).unwrap();
    let codes = b.lookup(m, &[edges], LookupKind::Bins).unwrap();
    let counts = b.bin(codes, None, 10, false).unwrap();
    insta::assert_snapshot!(explain::plan(&plan(b, &[counts])));
}

#[test]
fn a_plan_does_not_grow_with_its_chunks() {
    let stages = |rows: u64| {
        let mut b = Builder::new(Config::default());
        let x = b.load(source("x", &[rows, 1024], &[1024, 1024])).unwrap();
        let y = b.map(ScalarOp::Exp, &[x]).unwrap();
        let m = b.reduce_axes(y, ReduceKind::Mean, &[0, 1]).unwrap();
        let t = plan(b, &[m]);
        (t.plan().stages.len(), t.plan().stages[0].grid.count())
    };
    assert_eq!(stages(10 * 1024).1, 10);
    let (large, chunks) = stages(1_000_000_000 * 1024);
    assert_eq!(chunks, 1_000_000_000);
    // The combining tree is logarithmic: 16^8 > 10^9.
    assert_eq!(large, 10);
}

#[test]
fn small_chunks_share_an_operand() {
    let operands = |batch_cells: Option<u64>| {
        let mut b = Builder::new(Config { batch_cells, ..Config::default() });
        let n = b.iota(&[10_000_000], Some(&[100])).unwrap();
        let x = b.cast(n, DType::Float64).unwrap();
        let m = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
        let t = plan(b, &[m]);
        let text = explain::plan(&t);
        (cost(&t).operands, text.contains("chunks [10000000/100], 256 an operand"))
    };
    assert_eq!(operands(Some(0)), (100_000 + 6_250 + 391 + 25 + 2 + 1, false));
    assert_eq!(operands(Some(128 << 10)), (391 + 25 + 2 + 1, true));
    assert_eq!(operands(None), (391 + 25 + 2 + 1, true));
}

#[test]
fn long_lines_are_sorted_in_runs() {
    let sorted = |shape: &[u64], chunk: &[u64], axis, limit, config: Config| {
        let mut b = Builder::new(config);
        let x = b.load(source("x", shape, chunk)).unwrap();
        let order = SortOrder::default();
        let s = b.sort(x, axis, SortWhat::Positions, order, limit).unwrap();
        let q = Quantiles::new(&[0.1, 0.5], QuantileMethod::Linear);
        let q = b.quantile(x, axis, q).unwrap();
        plan(b, &[s, q])
    };
    // A line of ten chunks has as many stages as one of a million, and its operands need little less memory.
    let few = sorted(&[10 << 20], &[1 << 20], 0, None, Config::default());
    let many = sorted(&[1 << 40], &[1 << 20], 0, None, Config::default());
    assert_eq!(few.plan().stages.len(), 5, "{}", explain::plan(&few));
    let merge = |t: &Tiling| {
        let is_merge = |s: &Stage| matches!(s.task, Task::Merge { .. });
        let at = t.plan().stages.iter().position(is_merge).unwrap();
        (t.plan().stages[at].grid.count(), t.peak(StageId(at as u32), &[0]))
    };
    let ((short, least), (long, most)) = (merge(&few), merge(&many));
    assert_eq!((short, long), (10, 1 << 20));
    // A line of 8 TiB has runs of 8 GiB, of which each operand reads 1,024 parts.
    assert!(least < 30 << 20 && most < 2 << 30, "{least} {most}");
    // Either axis, with short first chunks and adjacent lines, the whole result or only its beginning.
    for (shape, chunk) in [([7u64, 60], [2u64, 9]), ([60, 7], [50, 3]), ([1, 300], [1, 7])] {
        for axis in [0, 1] {
            for limit in [None, Some(3), Some(40)] {
                check_tiling(&sorted(&shape, &chunk, axis, limit, tiny()));
            }
        }
    }
}

#[test]
fn several_reductions_are_one_pass() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[4096], &[1024])).unwrap();
    let roots: Vec<NodeId> = [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::Var { ddof: 1 }]
        .into_iter()
        .map(|k| b.reduce_axes(x, k, &[0]).unwrap())
        .collect();
    let t = plan(b, &roots);
    assert_eq!(t.plan().stages[1].outputs.len(), 3);
    assert_eq!(t.plan().stages.len(), 5, "{}", explain::plan(&t));
}

/// All operands of a plan read chunks; the number of readers that a chunk is said to have is the number that read it.
fn check_tiling(t: &Tiling) {
    let mut read: BTreeMap<(OutputRef, Vec<u64>), u64> = BTreeMap::new();
    for (i, s) in t.plan().stages.iter().enumerate() {
        let id = StageId(i as u32);
        for_each_index(&Region::whole(&s.grid.counts()), &mut |index| {
            let mut seen = Vec::new();
            t.reads(id, index, &mut |from, chunk| {
                assert!(t.plan().output(from).grid.counts().iter().zip(&chunk).all(|(n, c)| c < n));
                assert!(!seen.contains(&(from, chunk.to_vec())), "read twice");
                seen.push((from, chunk.to_vec()));
            });
            for key in seen {
                *read.entry(key).or_default() += 1;
            }
        });
        for o in &s.outputs {
            assert_eq!(
                o.grid.counts(),
                s.grid.counts(),
                "output chunks are operands: {}",
                explain::plan(t)
            );
        }
    }
    for (i, s) in t.plan().stages.iter().enumerate() {
        for output in 0..s.outputs.len() as u32 {
            let of = OutputRef { stage: StageId(i as u32), output };
            for_each_index(&Region::whole(&s.grid.counts()), &mut |index| {
                let want = read.get(&(of, index.to_vec())).copied().unwrap_or(0);
                assert_eq!(t.readers(of, index), want, "{of:?} {index:?}\n{}", explain::plan(t));
            });
        }
    }
}

fn factors(t: &Tiling) -> Vec<String> {
    let stages = t.plan().stages.iter();
    let names = stages.filter_map(|s| match &s.task {
        Task::Factor { kind, parts, .. } => Some(format!("{kind} {parts:?} × {}", s.grid.count())),
        _ => None,
    });
    names.collect()
}

#[test]
fn all_parts_of_a_factorisation_are_one_stage() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[30, 30], &[10, 10])).unwrap();
    let svd = b.svd(x, None).unwrap();
    let t = plan(b.clone(), &[svd.u, svd.s, svd.vh]);
    assert_eq!(factors(&t), ["svd [0, 1, 2] × 1"]);
    check_tiling(&t);
    // The nine chunks of x are put together, and what the decomposition takes is part of the peak.
    let is_factor = |s: &Stage| matches!(s.task, Task::Factor { .. });
    let id = StageId(t.plan().stages.iter().position(is_factor).unwrap() as u32);
    assert!(t.peak(id, &[0, 0]) >= 8 * (900 + Factor::Svd.work_cells(30, 30)));
    // Vectors that no result needs are not computed.
    assert_eq!(factors(&plan(b, &[svd.s])), ["svd [1] × 1"]);
}

#[test]
fn tall_matrices_are_factored_in_blocks() {
    let mut b = Builder::new(tiny());
    let x = b.load(source("x", &[100, 2], &[9, 2])).unwrap();
    let (q, r) = b.qr(x).unwrap();
    let t = plan(b.clone(), &[q, r]);
    // Blocks of 8 rows or a multiple of the source's 9; their 2 × 2 triangles are stacked, and so on.
    assert_eq!(
        factors(&t),
        [
            "qr of blocks of 8 rows [0] × 13",
            "qr of blocks of 8 rows [0] × 4",
            "qr [0, 1] × 1",
            "product of q in blocks of 8 rows [0] × 4",
            "product of q in blocks of 8 rows [0] × 13",
        ]
    );
    check_tiling(&t);
    let svd = b.svd(x, Some(1)).unwrap();
    let t = plan(b.clone(), &[svd.u, svd.s, svd.vh]);
    check_tiling(&t);
    // Without vectors no `q` is made.
    let values = plan(b, &[svd.s]);
    assert_eq!(
        factors(&values),
        [
            "qr of blocks of 8 rows [0] × 13",
            "qr of blocks of 8 rows [0] × 4",
            "qr [1] × 1",
            "svd [1] × 1"
        ]
    );
}

#[test]
fn stacks_keep_their_cuts_until_they_are_too_large() {
    let mut b = Builder::new(Config { chunk_bytes_target: 8 * 16 * 4, ..Config::default() });
    let x = b.load(source("x", &[100, 4, 4], &[2, 2, 2])).unwrap();
    let c = b.load(source("c", &[100, 4, 3], &[7, 4, 3])).unwrap();
    let x = b.factor(Factor::Solve, 0, &[x, c]).unwrap();
    assert_eq!(b.shape(x)[..], [100, 4, 1, 3]);
    let t = plan(b, &[x]);
    check_tiling(&t);
}

#[test]
fn inputs_that_cannot_be_factored_are_refused() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[3, 4], &[3, 4])).unwrap();
    let v = b.load(source("v", &[3], &[3])).unwrap();
    assert_eq!(b.factor(Factor::Inv, 0, &[x]).unwrap_err().code(), "shape_mismatch");
    assert_eq!(b.svd(v, None).unwrap_err().code(), "shape_mismatch");
    let whole = b.cast(x, DType::Int32).unwrap();
    assert_eq!(b.qr(whole).unwrap_err().code(), "dtype_mismatch");
    let none = b.full(None, DType::Float64, &[3, 3], None).unwrap();
    assert_eq!(b.factor(Factor::Det, 0, &[none]).unwrap_err().code(), "masked_input");
}

/// A random tensor expression of rank 2 over small sources.
fn expression(b: &mut Builder, choices: &[u8], chunk: (u64, u64)) -> NodeId {
    let x = b.load(source("x", &[7, 9], &[chunk.0, chunk.1])).unwrap();
    let y = b.load(source("y", &[7, 9], &[chunk.1, chunk.0])).unwrap();
    let mut v = x;
    for &c in choices {
        let shape = b.shape(v);
        v = match c % 17 {
            0 => b.map(ScalarOp::Exp, &[v]).unwrap(),
            1 => b.transpose(v, &[1, 0]).unwrap(),
            2 if shape[0] > 2 => {
                b.slice(v, 0, shape[0] as i64 - 1, -2, shape[0].div_ceil(2)).unwrap()
            }
            3 => {
                let m = b.reduce_axes(v, ReduceKind::Mean, &[0]).unwrap();
                b.map(ScalarOp::Sub, &[v, m]).unwrap()
            }
            4 if shape[1] > 1 => {
                let a = b.slice(v, 1, 1, 1, shape[1] - 1).unwrap();
                let z = b.slice(v, 1, 0, 1, shape[1] - 1).unwrap();
                b.map(ScalarOp::Sub, &[a, z]).unwrap()
            }
            5 => b.concat(&[v, v], 0).unwrap(),
            6 => b.scan(v, ScanKind::Sum, 1).unwrap(),
            7 => {
                let n = shape[0] * shape[1];
                let flat = b.reshape(v, &[n]).unwrap();
                b.reshape(flat, &[shape[1], shape[0]]).unwrap()
            }
            8 => {
                let t = b.transpose(v, &[1, 0]).unwrap();
                b.contract(v, t).unwrap()
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
            11 if shape[..] == [7, 9] => b.map(ScalarOp::Add, &[v, y]).unwrap(),
            12 => {
                let frame = Frame { before: i64::from(c / 17) - 4, after: i64::from(c % 3) + 4 };
                b.window(v, usize::from(c / 17 % 2), frame, ReduceKind::Mean, 2).unwrap()
            }
            13 => {
                let limit = (c / 34 % 2 == 1).then_some(2);
                let order = SortOrder::default();
                b.sort(v, usize::from(c / 17 % 2), SortWhat::Values, order, limit).unwrap()
            }
            14 => {
                let q = Quantiles::new(&[0.1, 0.5, 0.9], QuantileMethod::Linear);
                b.quantile(v, usize::from(c / 17 % 2), q).unwrap()
            }
            15 => {
                let row = b.index(v, 0, 0).unwrap();
                let place = b.lookup(v, &[row], LookupKind::Left).unwrap();
                b.cast(place, DType::Float64).unwrap()
            }
            16 => {
                let codes = b.cast(v, DType::Int64).unwrap();
                let sums = b.bin(codes, Some(v), 3, false).unwrap();
                b.map(ScalarOp::Sqrt, &[sums]).unwrap()
            }
            _ => b.rechunk(v, &[2, 3]).unwrap(),
        };
    }
    v
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn counted_readers_equal_actual_readers(choices in proptest::collection::vec(any::<u8>(), 1..5), a in 1u64..8, c in 1u64..10) {
        // One chunk for each operand, a few, as many as exist.
        for batch_cells in [Some(0), Some(12), None] {
            let mut b = Builder::new(Config { batch_cells, ..tiny() });
            let root = expression(&mut b, &choices, (a, c));
            let shape = b.shape(root);
            prop_assume!(shape.iter().product::<u64>() < 400);
            let t = plan(b, &[root]);
            check_tiling(&t);
        }
    }
}

#[test]
fn nodes_that_are_shared_are_planned_once() {
    // x = x * x + x, sixty times: a node has 2^60 ways to the source.
    let config = Config::default();
    let mut b = Builder::new(config.clone());
    let mut x = b.iota(&[100], None).unwrap();
    x = b.cast(x, DType::Float64).unwrap();
    for _ in 0..60 {
        let square = b.map(ScalarOp::Mul, &[x, x]).unwrap();
        x = b.map(ScalarOp::Add, &[square, x]).unwrap();
    }
    let x = b.reshape(x, &[10, 10]).unwrap();
    let t = compile(Rooted { graph: b.graph, roots: vec![x] }, &config, &mut |_, _| {}).unwrap();
    let Some(Stage { task: Task::Fused(f), .. }) = t.plan().stages.first() else {
        panic!("{}", explain::plan(&t));
    };
    assert!(f.program.insts.len() < 130, "{}", f.program.insts.len());
}

#[test]
fn tensors_without_cells_have_few_chunks() {
    let t = Grid::auto(&[0, 1 << 40, 1 << 20], 8, 8 << 20);
    assert!(t.count() <= 1 << 18, "{}", t.count());
    assert_eq!(tessera_planner::region::cells(&[0, u64::MAX]), None);
    assert_eq!(Region::at(&[0, 0, 0], &[1 << 40, 1 << 40, 0]).cells(), 0);
}
