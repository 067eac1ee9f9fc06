//! Sorts of lines larger than memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::cancel::CancelToken;
use crate::chunk::Chunk;
use crate::config::Config as ExecConfig;
use crate::error::Error;
use crate::run::{Running, Runtime};
use crate::schedule::{Outcome, Sink};
use crate::task::{PlanRunner, Sources};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tessera_planner::build::Builder;
use tessera_planner::compile;
use tessera_planner::config::Config;
use tessera_planner::dtype::DType;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::ir::NodeId;
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;
use tessera_planner::region::Region;
use tessera_planner::scalar::Scalar;
use tessera_planner::sort::{QuantileMethod, Quantiles, SortOrder, SortWhat};
use tessera_planner::tile::Tiling;

/// A runtime with this memory, and its resources.
struct Bench {
    runtime: Runtime,
    _io: tokio::runtime::Runtime,
    _scratch: tempfile::TempDir,
}

fn bench(limit: u64) -> Bench {
    let scratch = tempfile::tempdir().unwrap();
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let io = io.unwrap();
    let config = ExecConfig {
        threads: 2,
        quota_bytes_max: limit,
        pool_bytes_max: limit,
        spill_dir: Some(scratch.path().into()),
        spill_bytes_max: 8 << 30,
        ..ExecConfig::default()
    };
    Bench {
        runtime: Runtime::new(config, io.handle().clone()).unwrap(),
        _io: io,
        _scratch: scratch,
    }
}

impl Bench {
    fn start(&self, tiling: &Arc<Tiling>, sink: &Arc<dyn Sink>, token: &CancelToken) -> Running {
        let runner = Arc::new(PlanRunner::new(tiling.clone(), &Sources::default()).unwrap());
        self.runtime.start(tiling.clone(), runner, sink.clone(), token).unwrap()
    }

    fn run(&self, tiling: &Arc<Tiling>, sink: Arc<dyn Sink>) -> Outcome {
        self.start(tiling, &sink, &CancelToken::new()).wait()
    }

    /// Checks that nothing is charged and no files are left, once threads have dropped their last bytes.
    fn is_empty(&self) {
        for _ in 0..2000 {
            let files = self.runtime.store().figures();
            if self.runtime.quota().used() == 0 && (files.files, files.bytes) == (0, 0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{} bytes, {:?}", self.runtime.quota().used(), self.runtime.store().figures());
    }
}

/// Chunks of `target` bytes of cells that hold each number below `2^bits` once, scattered.
fn scattered(bits: u32, target: u64) -> (Builder, NodeId) {
    let mut b = Builder::new(Config { chunk_bytes_target: target, ..Config::default() });
    let n = b.iota(&[1 << bits], None).unwrap();
    // An odd factor permutes the numbers modulo a power of two.
    let factor = b.constant(Scalar::i64(0x9E37_79B9_7F4A_7C15_u64 as i64)).unwrap();
    let mask = b.constant(Scalar::i64((1 << bits) - 1)).unwrap();
    let x = b.map(ScalarOp::Mul, &[n, factor]).unwrap();
    let x = b.map(ScalarOp::And, &[x, mask]).unwrap();
    (b, x)
}

fn plan(b: &Builder, root: NodeId) -> Arc<Tiling> {
    let rooted = Rooted { graph: b.graph.clone(), roots: vec![root] };
    Arc::new(compile(rooted, &b.config, &mut |_, _| {}).unwrap())
}

/// Checks cells and drops them.
struct Check<F>(F, AtomicU64);

impl<F: Fn(u64, i64) -> bool + Send + Sync> Sink for Check<F> {
    fn chunk(
        &self,
        _: usize,
        _: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let cells = chunk.field(0)?.values::<i64>()?;
        for (place, &cell) in (region.start[0]..).zip(cells) {
            assert!((self.0)(place, cell), "{cell} at {place}");
        }
        self.1.fetch_add(cells.len() as u64, SeqCst);
        Ok(())
    }

    fn drains(&self) -> bool {
        true
    }
}

fn in_order() -> Arc<Check<impl Fn(u64, i64) -> bool + Send + Sync>> {
    Arc::new(Check(|place, cell| place as i64 == cell, AtomicU64::new(0)))
}

#[test]
fn ten_times_the_memory_is_sorted() {
    // 32 MiB in 3 MiB.
    let (mut b, x) = scattered(22, 256 << 10);
    let sorted = b.sort(x, 0, SortWhat::Values, SortOrder::default(), None).unwrap();
    let (bench, sink) = (bench(3 << 20), in_order());
    let outcome = bench.run(&plan(&b, sorted), sink.clone());
    outcome.result.unwrap();
    assert_eq!(sink.1.load(SeqCst), 1 << 22);
    let stats = outcome.stats;
    assert!(stats.peak_bytes <= 3 << 20);
    assert_eq!((stats.restarts, stats.reruns), (0, 0));
    // Chunks that do not fit are written once; so are some of the cells to be sorted, as there is room for twelve
    // chunks and sorting one takes half as much again.
    assert!(stats.bytes_spilled >= 28 << 20 && stats.bytes_spilled <= 48 << 20, "{stats:?}");
    // Each part is read once, with the blocks and the cells around it; parts are short here.
    assert!(stats.bytes_read_back <= 160 << 20, "{stats:?}");
    bench.is_empty();
}

#[test]
fn two_sorts_at_once_share_memory() {
    let bench = bench(2 << 20);
    let (mut b, x) = scattered(21, 128 << 10);
    let down = SortOrder { descending: true, ..SortOrder::default() };
    let sorted = b.sort(x, 0, SortWhat::Values, SortOrder::default(), None).unwrap();
    let places = b.sort(x, 0, SortWhat::Positions, down, None).unwrap();
    let (sorted, places) = (plan(&b, sorted), plan(&b, places));
    // The original position of each number.
    let mask = (1i64 << 21) - 1;
    let number = move |at: i64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) & mask;
    let second =
        Arc::new(Check(move |place, at| number(at) == mask - place as i64, AtomicU64::new(0)));
    let first = in_order();
    let token = CancelToken::new();
    let sinks: [Arc<dyn Sink>; 2] = [first.clone(), second.clone()];
    let running =
        [bench.start(&sorted, &sinks[0], &token), bench.start(&places, &sinks[1], &token)];
    for r in running {
        r.wait().result.unwrap();
    }
    assert_eq!((first.1.load(SeqCst), second.1.load(SeqCst)), (1 << 21, 1 << 21));
    assert!(bench.runtime.quota().peak() <= 2 << 20);
    bench.is_empty();
}

#[test]
fn the_middle_and_the_top_are_found_in_little_memory() {
    // 16 MiB in 2 MiB.
    let bench = bench(2 << 20);
    let (mut b, x) = scattered(21, 128 << 10);
    let q = Quantiles::new(&[0.0, 0.25, 0.5, 1.0], QuantileMethod::Higher);
    let middle = b.quantile(x, 0, q).unwrap();
    let want = [0i64, 1 << 19, 1 << 20, (1 << 21) - 1];
    let sink = Arc::new(Check(move |place, cell| want[place as usize] == cell, AtomicU64::new(0)));
    bench.run(&plan(&b, middle), sink.clone()).result.unwrap();
    assert_eq!(sink.1.load(SeqCst), 4);
    bench.is_empty();
    // No run has more cells than requested, so nothing is spilled.
    let down = SortOrder { descending: true, ..SortOrder::default() };
    let top = b.sort(x, 0, SortWhat::Values, down, Some(100)).unwrap();
    let last = (1i64 << 21) - 1;
    let sink = Arc::new(Check(move |place, cell| cell == last - place as i64, AtomicU64::new(0)));
    let outcome = bench.run(&plan(&b, top), sink.clone());
    outcome.result.unwrap();
    assert_eq!((sink.1.load(SeqCst), outcome.stats.bytes_spilled), (100, 0));
    bench.is_empty();
}

#[test]
fn cancels_at_any_moment_leave_nothing() {
    let bench = bench(1 << 20);
    let (mut b, x) = scattered(18, 32 << 10);
    let sorted = b.sort(x, 0, SortWhat::Positions, SortOrder::default(), None).unwrap();
    let sorted = plan(&b, sorted);
    let whole = {
        let begun = std::time::Instant::now();
        let all: Arc<dyn Sink> = Arc::new(Check(|_, _| true, AtomicU64::new(0)));
        let outcome = bench.run(&sorted, all);
        outcome.result.unwrap();
        assert!(outcome.stats.spills > 0);
        begun.elapsed().as_micros() as u64
    };
    let (mut random, mut early) = (7u64, 0);
    for _ in 0..60 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let sink: Arc<dyn Sink> = Arc::new(Check(|_, _| true, AtomicU64::new(0)));
        let token = CancelToken::new();
        let running = bench.start(&sorted, &sink, &token);
        std::thread::sleep(Duration::from_micros((random >> 33) % whole));
        token.cancel();
        let outcome = running.wait();
        early += u32::from(outcome.result.is_err());
        assert_eq!(outcome.stats.states.live(), 0);
        bench.is_empty();
    }
    assert!(early > 10, "{early}");
}

/// The bytes of all fields of a result, by places.
#[derive(Default)]
struct Collect(Mutex<Vec<(u64, Vec<Vec<u8>>)>>);

impl Sink for Collect {
    fn chunk(
        &self,
        _: usize,
        _: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let fields = chunk.fields().iter().map(|f| f.buffer().as_slice().to_vec()).collect();
        self.0.lock().unwrap().push((region.start[0], fields));
        Ok(())
    }
}

impl Collect {
    fn bytes(&self) -> Vec<Vec<u8>> {
        let mut chunks = std::mem::take(&mut *self.0.lock().unwrap());
        chunks.sort();
        let count = chunks.first().map_or(0, |c| c.1.len());
        (0..count).map(|f| chunks.iter().flat_map(|c| c.1[f].clone()).collect()).collect()
    }
}

/// 997 cells of a type with many ties; with `masks` every seventh is masked; floats have NaN and both zeros.
fn ties(b: &mut Builder, dtype: DType, masks: bool) -> NodeId {
    let n = b.iota(&[997], None).unwrap();
    let modulus = |b: &mut Builder, v: NodeId, by: i64| {
        let by = b.constant(Scalar::i64(by)).unwrap();
        b.map(ScalarOp::Rem, &[v, by]).unwrap()
    };
    let h = b.map(ScalarOp::Mul, &[n, n]).unwrap();
    let h = modulus(b, h, 61);
    let shift = b.constant(Scalar::i64(if dtype.is_float() { 30 } else { 0 })).unwrap();
    let h = b.map(ScalarOp::Sub, &[h, shift]).unwrap();
    let mut x = b.cast(h, dtype).unwrap();
    if dtype.is_float() {
        // 0 / 0 is NaN; -0.0 is 0 times a negative number.
        let sign = modulus(b, n, 3);
        let one = b.constant(Scalar::i64(1)).unwrap();
        let sign = b.map(ScalarOp::Sub, &[sign, one]).unwrap();
        let sign = b.cast(sign, dtype).unwrap();
        let y = b.map(ScalarOp::Mul, &[x, sign]).unwrap();
        let d = modulus(b, n, 11);
        let d = b.cast(d, dtype).unwrap();
        let d = b.map(ScalarOp::Div, &[d, d]).unwrap();
        x = b.map(ScalarOp::Mul, &[y, d]).unwrap();
    }
    if masks {
        let m = modulus(b, n, 7);
        let zero = b.constant(Scalar::i64(0)).unwrap();
        let keep = b.map(ScalarOp::Ne, &[m, zero]).unwrap();
        x = b.map_op(tessera_planner::ir::MapOp::Mask, &[x, keep]).unwrap();
    }
    x
}

#[test]
fn runs_give_the_bits_of_whole_lines() {
    use DType::*;
    let bench = bench(32 << 20);
    let bits =
        |dtype: DType, masks: bool, target: u64, of: &dyn Fn(&mut Builder, NodeId) -> NodeId| {
            let mut b = Builder::new(Config { chunk_bytes_target: target, ..Config::default() });
            let x = ties(&mut b, dtype, masks);
            let root = of(&mut b, x);
            let sink = Arc::new(Collect::default());
            let outcome = bench.run(&plan(&b, root), sink.clone());
            outcome.result.unwrap();
            (sink.bytes(), outcome.stats.stages.iter().any(|s| s.name.contains("runs")))
        };
    let orders =
        [(false, false, false), (true, false, true), (true, true, false), (false, true, true)];
    for dtype in [Bool, Int8, UInt8, Int16, UInt16, Int32, UInt32, Int64, UInt64, Float32, Float64]
    {
        for masks in [false, true] {
            for (descending, nan_first, masked_first) in orders {
                let order = SortOrder { descending, nan_first, masked_first };
                for what in [SortWhat::Values, SortWhat::Positions] {
                    for limit in [None, Some(5), Some(300), Some(990)] {
                        let of = |b: &mut Builder, x| b.sort(x, 0, what, order, limit).unwrap();
                        let (want, whole) = bits(dtype, masks, 1 << 20, &of);
                        let (got, cut) = bits(dtype, masks, 500, &of);
                        assert_eq!((whole, cut), (false, dtype.size() > 0));
                        assert!(want == got, "{dtype} {masks} {order} {what:?} {limit:?}");
                    }
                }
            }
            let q = [0.0, 0.1, 0.5, 0.77, 1.0];
            let method =
                if dtype.is_float() { QuantileMethod::Linear } else { QuantileMethod::Nearest };
            let of = |b: &mut Builder, x| b.quantile(x, 0, Quantiles::new(&q, method)).unwrap();
            let (want, got) = (bits(dtype, masks, 1 << 20, &of), bits(dtype, masks, 500, &of));
            assert_eq!((want.1, got.1), (false, true));
            assert_eq!(want.0, got.0, "{dtype} {masks}");
        }
    }
}
