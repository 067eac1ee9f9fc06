#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::cancel::CancelToken;
use crate::chunk::ipc::Compression;
use crate::config::Config;
use crate::run::{How, Runtime};
use crate::schedule::Sink;
use crate::task::{PlanRunner, Sources};
use futures::FutureExt;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use tessera_planner::build::Builder;
use tessera_planner::compile;
use tessera_planner::dtype::DType;
use tessera_planner::ir::ScanKind;
use tessera_planner::optimize::Rooted;
use tessera_planner::plan::Task;
use tessera_planner::reduce::ReduceKind;

type Made = HashMap<(StageId, u64), Vec<Arc<Chunk>>>;

/// A shelf of one process: the chunks made, and the number of fetches.
#[derive(Debug, Default)]
struct Own {
    made: Mutex<Made>,
    asked: AtomicU64,
    /// True if chunks are returned in encoded form.
    sent: bool,
    /// True if no chunk is available.
    empty: bool,
}

/// An object as it arrives.
fn sent(number: (StageId, u64), chunks: &[Arc<Chunk>]) -> Bytes {
    let messages = encode(&*plan(), number, chunks, None, Compression::None).unwrap();
    messages.into_iter().flat_map(Message::parts).collect::<Vec<_>>().concat().into()
}

impl Shelf for Own {
    fn fetch(
        &self,
        stage: StageId,
        number: u64,
        _: u64,
    ) -> BoxFuture<'static, Result<Option<Found>, Error>> {
        self.asked.fetch_add(1, Relaxed);
        let made = self.made.lock().unwrap();
        let found =
            made.get(&(stage, number)).filter(|_| !self.empty).map(|chunks| match self.sent {
                true => Found::Object(sent((stage, number), chunks)),
                false => Found::Here(chunks.iter().cloned().map(FinishedChunk::Memory).collect()),
            });
        std::future::ready(Ok(found)).boxed()
    }

    fn made(&self, stage: StageId, number: u64, chunks: &[Arc<Chunk>]) {
        let before = self.made.lock().unwrap().insert((stage, number), chunks.to_vec());
        assert!(before.is_none(), "operand {number} of {stage:?} was made twice");
    }

    fn fetched_bytes(&self) -> u64 {
        0
    }
}

#[derive(Debug, Default)]
struct One(Mutex<Vec<f64>>);

impl Sink for One {
    fn chunk(&self, _: usize, _: ChunkIndex, _: Region, chunk: Arc<Chunk>) -> Result<(), Error> {
        *self.0.lock().unwrap() = chunk.field(0)?.values::<f64>()?.to_vec();
        Ok(())
    }
}

fn plan() -> Arc<tile::Tiling> {
    let config = tessera_planner::config::Config {
        chunk_bytes_target: 256,
        batch_cells: Some(0),
        ..Default::default()
    };
    let mut b = Builder::new(config.clone());
    let n = b.iota(&[4096], Some(&[32])).unwrap();
    let n = b.cast(n, DType::Float64).unwrap();
    let sum = b.reduce_axes(n, ReduceKind::Sum, &[0]).unwrap();
    let rooted = Rooted { graph: b.graph, roots: vec![sum] };
    Arc::new(compile(rooted, &config, &mut |_, _| {}).unwrap())
}

#[test]
fn parts_make_the_whole() {
    for (sent, empty) in [(false, false), (true, false), (false, true)] {
        let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let io = io.unwrap();
        let config = Config { threads: 2, ..Config::default() };
        let runtime = Runtime::new(config, io.handle().clone()).unwrap();
        let t = plan();
        let runner = Arc::new(PlanRunner::new(t.clone(), &Sources::default()).unwrap());
        let stages = t.plan().stages.len();
        // The first stage in two orders, each assigned half of it; then all the rest.
        let first = StageId(0);
        assert!(matches!(t.plan().stage(first).task, Task::Fused(_)));
        let count = t.plan().stage(first).grid.count();
        assert_eq!(count, 128);
        let shelf = Arc::new(Own { sent, empty, ..Own::default() });
        let run = |told: Vec<(StageId, Bitmap)>, there: Vec<Bitmap>, shelf: &Arc<Own>| {
            let order = Order::new(t.clone(), told, &there).unwrap();
            let operands = order.operands();
            let recovery = Recovery::loading(there);
            let shelved = Some(Shelved { shelf: shelf.clone(), recovery });
            let how = How { shelved, ..How::default() };
            let running = runtime
                .start_as(
                    Arc::new(order),
                    runner.clone(),
                    Arc::new(Discard),
                    &CancelToken::new(),
                    how,
                )
                .unwrap();
            let outcome = running.wait();
            outcome.result.unwrap();
            assert_eq!(runtime.plans(), 0);
            (operands, outcome.stats)
        };
        let none = vec![Bitmap::default(); stages];
        for half in [0..count / 2, count / 2..count] {
            let n = half.end - half.start;
            let (operands, stats) = run(vec![(first, half.collect())], none.clone(), &shelf);
            assert_eq!((operands, stats.stages[0].operands), (n, n));
        }
        assert_eq!(shelf.made.lock().unwrap().len() as u64, count);
        let mut there = none.clone();
        there[0] = (0..count).collect();
        let last = t.plan().results[0].stage;
        // An order over available chunks loads them; if they turn out to be missing, it makes them.
        if empty {
            shelf.made.lock().unwrap().clear();
        }
        let (_, stats) = run(vec![(last, std::iter::once(0).collect())], there.clone(), &shelf);
        assert_eq!(shelf.asked.load(Relaxed), count);
        assert_eq!(stats.stages[0].operands, if empty { count } else { 0 });
        // The whole plan, with its result available.
        let sink = Arc::new(One::default());
        there[last.0 as usize].insert(0);
        let how = How {
            shelved: Some(Shelved {
                shelf: Arc::new(Own {
                    made: Mutex::new(shelf.made.lock().unwrap().clone()),
                    sent,
                    ..Own::default()
                }),
                recovery: tessera_planner::recover::recover(&*t, &there),
            }),
            ..How::default()
        };
        let running =
            runtime.start_as(t.clone(), runner, sink.clone(), &CancelToken::new(), how).unwrap();
        let outcome = running.wait();
        outcome.result.unwrap();
        assert_eq!(*sink.0.lock().unwrap(), [4095.0 * 2048.0]);
        assert!(outcome.stats.stages.iter().all(|s| s.operands == 0), "{:?}", outcome.stats.stages);
        drop(shelf);
        // A thread may not yet have dropped the statement.
        let since = std::time::Instant::now();
        while runtime.quota().used() > 0 {
            assert!(since.elapsed().as_secs() < 10, "{} bytes are left", runtime.quota().used());
            std::thread::yield_now();
        }
    }
}

/// The chunks that a sink took: result and number.
#[derive(Debug, Default)]
struct Took(Mutex<Vec<(usize, u64)>>);

impl Sink for Took {
    fn chunk(&self, of: usize, index: ChunkIndex, _: Region, _: Arc<Chunk>) -> Result<(), Error> {
        self.0.lock().unwrap().push((of, index[0]));
        Ok(())
    }
}

#[test]
fn a_sink_takes_the_assigned_chunks_of_the_results_of_the_plan() {
    let config = tessera_planner::config::Config { batch_cells: Some(0), ..Default::default() };
    let mut b = Builder::new(config.clone());
    let n = b.iota(&[320], Some(&[32])).unwrap();
    let n = b.cast(n, DType::Float64).unwrap();
    let sum = b.scan(n, ScanKind::Sum, 0).unwrap();
    // The second result is that of the fourth, and the third one is of another stage.
    let rooted = Rooted { graph: b.graph, roots: vec![n, sum, n, sum] };
    let t = Arc::new(compile(rooted, &config, &mut |_, _| {}).unwrap());
    let results = t.plan().results.clone();
    let (first, last) = (results[0].stage, results[1].stage);
    assert_eq!((results[2], results[3]), (results[0], results[1]));
    assert!(first != last);
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let io = io.unwrap();
    let config = Config { threads: 2, ..Config::default() };
    let runtime = Runtime::new(config, io.handle().clone()).unwrap();
    let runner = Arc::new(PlanRunner::new(t.clone(), &Sources::default()).unwrap());
    let run = |assigned: Vec<(StageId, Bitmap)>, there: Vec<Bitmap>, shelf: &Arc<Own>| {
        let order = Order::new(t.clone(), assigned, &there).unwrap();
        let recovery = Recovery::loading(there);
        let shelved = Some(Shelved { shelf: shelf.clone(), recovery });
        let (how, sink) = (How { shelved, ..How::default() }, Arc::new(Took::default()));
        let cancel = CancelToken::new();
        let running =
            runtime.start_as(Arc::new(order), runner.clone(), sink.clone(), &cancel, how).unwrap();
        let outcome = running.wait();
        outcome.result.unwrap();
        let mut took = sink.0.lock().unwrap().clone();
        took.sort_unstable();
        (took, outcome.stats.stages.iter().map(|s| s.operands).sum::<u64>())
    };
    let none = vec![Bitmap::default(); t.plan().stages.len()];
    let shelf = Arc::new(Own::default());
    let (took, _) = run(vec![(last, [4, 7].into_iter().collect())], none.clone(), &shelf);
    assert_eq!(took, [(1, 4), (1, 7), (3, 4), (3, 7)]);
    // An available operand is loaded, and nothing below it runs.
    let mut there = none.clone();
    there[last.0 as usize].insert(4);
    let shelf =
        Arc::new(Own { made: Mutex::new(shelf.made.lock().unwrap().clone()), ..Own::default() });
    let (took, ran) = run(vec![(last, [4].into_iter().collect())], there, &shelf);
    assert_eq!((took, ran), (vec![(1, 4), (3, 4)], 0));
    // An order without operands ends.
    let shelf = Arc::new(Own::default());
    assert_eq!(run(Vec::new(), none, &shelf), (Vec::new(), 0));
}

#[test]
fn only_stages_that_no_stage_reads_are_results_alone() {
    let t = plan();
    assert_eq!(only_results(&t), BTreeSet::from([t.plan().results[0].stage]));
    let config = tessera_planner::config::Config { batch_cells: Some(0), ..Default::default() };
    let mut b = Builder::new(config.clone());
    let n = b.iota(&[320], Some(&[32])).unwrap();
    let sums = b.scan(n, ScanKind::Sum, 0).unwrap();
    let most = b.reduce_axes(sums, ReduceKind::Max, &[0]).unwrap();
    let rooted = Rooted { graph: b.graph, roots: vec![sums, most] };
    let t = compile(rooted, &config, &mut |_, _| {}).unwrap();
    assert_eq!(only_results(&t), BTreeSet::from([t.plan().results[1].stage]));
}

#[test]
fn operands_that_a_plan_lacks_cannot_be_assigned() {
    let t = plan();
    let none = vec![Bitmap::default(); t.plan().stages.len()];
    for (stage, number) in [(StageId(0), 128), (StageId(99), 0)] {
        let told = vec![(stage, std::iter::once(number).collect())];
        assert_eq!(Order::new(t.clone(), told, &none).unwrap_err().code(), "internal");
    }
}
