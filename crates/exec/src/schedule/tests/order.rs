//! Number of chunks that a reduction over many chunks holds at a time.
//!
//! ```text
//!   a path of the tree      ■ ■ ▢        of each incomplete node, the available inputs: at most its fan less one;
//!                               ╲        the path continues below the missing input
//!                             ■ ■ ▢
//!                                 ╲
//!                                 ■ ■ ■ ─▶ ▢     at its foot the last input, and the chunk made of all
//! ```
//! So a depth-first walk holds at most `Σ (fan − 1) + 2` chunks over the levels of the tree: its *depth*, counted in
//! chunks. In a binary tree that is its levels and two, which is one more than the number of its stages. Each thread is
//! on its own path, so all of them together hold no more than threads × depth. If reads complete out of order, a thread
//! takes an available one rather than wait for the next in order: this adds at most the number of concurrent reads.

use super::*;
use crate::task::{Origin, PlanRunner, Sources};
use tessera_planner::build::Builder;
use tessera_planner::compile;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::dtype::DType;
use tessera_planner::optimize::Rooted;
use tessera_planner::plan::Access;
use tessera_planner::reduce::ReduceKind;
use tessera_storage::source::{Options, Stores, open};

const CHUNKS: u64 = 10_000;
/// Operands of up to 256 KiB are handed out several at a time. This much scratch makes them larger.
const NOT_SMALL: u64 = 512 << 10;
/// Upper bound on the small operands that a thread takes at a time.
const BATCH: u64 = 32;

/// A tree over loads, each node of which reads up to `fan` chunks, and its depth in chunks.
fn reduction(fan: u64, scratch: u64) -> (Arc<Toy>, u64) {
    let mut toy = Toy::default();
    let (mut below, mut count, mut depth) = (toy.load(CHUNKS, 10), CHUNKS, 2);
    while count > 1 {
        let (from, chunks) = (below, count);
        let reads = move |n: u64| {
            (n * fan..((n + 1) * fan).min(chunks)).map(|i| (from, i)).collect::<Vec<_>>()
        };
        depth += fan.min(count) - 1;
        count = count.div_ceil(fan);
        below = toy.stage(count, 10, Box::new(reads));
        toy.stages[below as usize].depth = below;
    }
    toy.stages.iter_mut().for_each(|s| s.scratch = scratch);
    toy.stages[below as usize].readers = Box::new(|_, _| 0);
    toy.results = vec![out(below, 0)];
    (Arc::new(toy), depth)
}

/// Runs a plan whose operands take different times, in a different order each time, and returns the peak number of
/// chunks held. With `fetch` the loads are read, and complete in any order.
fn most(plan: &Arc<Toy>, threads: usize, fetch: bool) -> u64 {
    let b = bench(threads, 1 << 30);
    let turn = Arc::new(AtomicU64::new(threads as u64));
    let late = move |n: u64| {
        let h = turn.fetch_add(n | 1, SeqCst).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58;
        if h == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        Ok(())
    };
    let late = Arc::new(late);
    let slow = late.clone();
    let runner = Arc::new(ToyRunner {
        before: Box::new(move |_, n, _| slow(n)),
        fetch: fetch.then_some(late as _),
        ..ToyRunner::new(plan)
    });
    let sink = Arc::new(Collect::default());
    let outcome = b.run(plan, runner, &sink);
    outcome.result.unwrap();
    check(plan, &sink);
    b.is_empty();
    assert_eq!(outcome.stats.reads, CHUNKS);
    outcome.stats.max_live_chunks
}

#[test]
fn a_reduction_of_ten_thousand_chunks_holds_a_path_for_each_thread() {
    for fan in [2, 16] {
        let (plan, depth) = reduction(fan, NOT_SMALL);
        // The levels of the tree: 10,000, 5000, …, 1, and 10,000, 625, 40, 3, 1.
        assert_eq!(depth, if fan == 2 { 14 + 2 } else { 15 + 15 + 15 + 2 + 2 });
        for threads in [1, 2, 4, 8] {
            for fetch in [false, true] {
                let ahead = if fetch { Config::default().fetches_max as u64 } else { 0 };
                let (most, bound) = (most(&plan, threads, fetch), threads as u64 * depth + ahead);
                assert!(most <= bound, "fan {fan}, {threads} threads, {fetch}: {most} of {bound}");
            }
        }
    }
}

#[test]
fn small_operands_hold_a_batch_more_for_each_thread() {
    // The inputs and outputs of a batch of operands are held until the whole batch is done.
    for fan in [2, 16] {
        let (plan, depth) = reduction(fan, 0);
        for threads in [1, 2, 4] {
            for fetch in [false, true] {
                let most = most(&plan, threads, fetch);
                let bound = threads as u64 * (depth + 3 * BATCH);
                assert!(most <= bound, "fan {fan}, {threads} threads, {fetch}: {most} of {bound}");
            }
        }
    }
}

#[derive(Default)]
struct Sum(Mutex<f64>);

impl Sink for Sum {
    fn chunk(&self, _: usize, _: ChunkIndex, _: Region, chunk: Arc<Chunk>) -> Result<(), Error> {
        *self.0.lock().unwrap() = chunk.field(0)?.values::<f64>()?[0];
        Ok(())
    }
}

/// The sum of the numbers below 100,000 in chunks of ten, generated or read from files, and the depth of its tree.
fn sum_of_chunks(
    stored: Option<&std::path::Path>,
) -> (Arc<tessera_planner::tile::Tiling>, Sources, u64) {
    let config = PlanConfig { chunk_bytes_target: 80, batch_cells: Some(0), ..Default::default() };
    let mut b = Builder::new(config.clone());
    let mut sources = Sources::default();
    let x = match stored {
        None => {
            let n = b.iota(&[CHUNKS * 10], Some(&[10])).unwrap();
            b.cast(n, DType::Float64).unwrap()
        }
        Some(at) => {
            let document = format!(
                r#"{{"zarr_format":2,"shape":[{}],"chunks":[10],"dtype":"<f8","fill_value":0,"order":"C","compressor":null,"filters":null}}"#,
                CHUNKS * 10
            );
            std::fs::write(at.join(".zarray"), document).unwrap();
            for chunk in 0..CHUNKS {
                let cells = (chunk * 10..chunk * 10 + 10).flat_map(|n| (n as f64).to_le_bytes());
                std::fs::write(at.join(chunk.to_string()), cells.collect::<Vec<u8>>()).unwrap();
            }
            let stores = Stores::with_environment(Duration::from_secs(30), []);
            let options = Options::default();
            let open = open(at.to_str().unwrap(), &options, &stores);
            let opened = futures::executor::block_on(open).unwrap();
            let source = opened.dataset.variables[0].source.clone();
            sources.add(source.clone(), Origin::Stored(opened.readers[0].clone()));
            b.load(Arc::new(source)).unwrap()
        }
    };
    let sum = b.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
    let rooted = Rooted { graph: b.graph, roots: vec![sum] };
    let tiling = Arc::new(compile(rooted, &config, &mut |_, _| {}).unwrap());
    let mut depth = 2 + u64::from(stored.is_some());
    for stage in &tiling.plan().stages {
        for input in &stage.inputs {
            if let Access::Fan(fan) = &input.access {
                depth += fan.iter().product::<u64>() - 1;
            }
        }
    }
    (tiling, sources, depth)
}

#[test]
fn sums_of_ten_thousand_chunks_do_so_too() {
    let files = tempfile::tempdir().unwrap();
    for stored in [None, Some(files.path())] {
        let (tiling, sources, depth) = sum_of_chunks(stored);
        for threads in [1, 2, 4] {
            let b = bench(threads, 1 << 30);
            let runner = Arc::new(PlanRunner::new(tiling.clone(), &sources).unwrap());
            let sink = Arc::new(Sum::default());
            let token = CancelToken::new();
            let running = b.runtime.start(tiling.clone(), runner, sink.clone(), &token).unwrap();
            let outcome = running.wait();
            outcome.result.unwrap();
            assert_eq!(*sink.0.lock().unwrap(), 99_999.0 * 100_000.0 / 2.0);
            let operands: Vec<u64> = outcome.stats.stages.iter().map(|s| s.operands).collect();
            assert_eq!(operands.iter().max(), Some(&CHUNKS), "{operands:?}");
            // These operands are small.
            let bound = threads as u64 * (depth + 3 * BATCH);
            let most = outcome.stats.max_live_chunks;
            assert!(most <= bound, "{threads} threads, {operands:?}: {most} of {bound}");
        }
    }
}
