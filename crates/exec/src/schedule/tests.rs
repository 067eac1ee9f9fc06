//! The scheduler on toy plans, whose chunks are integers that depend on all that was read.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::config::Config;
use crate::operand::State;
use crate::quota::Quota;
use crate::run::{How, Runtime};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

mod durable;
mod failures;
mod figures;
mod memory;
mod order;
mod random;
mod spill;

type Reads = Box<dyn Fn(u64) -> Vec<(u32, u64)> + Send + Sync>;

/// A stage of a toy plan: chunks in a row, each of `cells` `int64`.
struct ToyStage {
    count: u64,
    cells: u64,
    outputs: u32,
    scratch: u64,
    load: bool,
    /// Operands read what they need of chunks in files.
    parts: bool,
    depth: u32,
    /// Stage and number of the chunks that an operand reads (of output `number % outputs`).
    reads: Reads,
    /// Readers of a chunk.
    readers: Box<dyn Fn(u32, u64) -> u64 + Send + Sync>,
    grid: Grid,
}

#[derive(Default)]
struct Toy {
    stages: Vec<ToyStage>,
    results: Vec<OutputRef>,
    /// How often the plan fails to name a stage.
    nameless: AtomicU64,
}

fn out(stage: u32, output: u32) -> OutputRef {
    OutputRef { stage: StageId(stage), output }
}

impl Toy {
    fn stage(&mut self, count: u64, cells: u64, reads: Reads) -> u32 {
        self.stages.push(ToyStage {
            count,
            cells,
            outputs: 1,
            scratch: 0,
            load: false,
            parts: false,
            depth: 0,
            reads,
            readers: Box::new(|_, _| 1),
            grid: Grid::regular(&[count * cells], &[cells]),
        });
        (self.stages.len() - 1) as u32
    }

    fn load(&mut self, count: u64, cells: u64) -> u32 {
        let s = self.stage(count, cells, Box::new(|_| vec![]));
        self.stages[s as usize].load = true;
        s
    }

    /// Counts readers one by one and finds depths: for plans that are small.
    fn count(mut self) -> Arc<Self> {
        for s in 0..self.stages.len() {
            let mut readers: BTreeMap<(u32, u64), u64> = BTreeMap::new();
            for (i, t) in self.stages.iter().enumerate() {
                for n in 0..t.count {
                    for r in self.all_reads(i as u32, n) {
                        if r.0.stage.0 as usize == s {
                            *readers.entry((r.0.output, r.1)).or_default() += 1;
                        }
                    }
                }
            }
            let mut depth = 0;
            for n in 0..self.stages[s].count {
                for r in self.all_reads(s as u32, n) {
                    let below = r.0.stage.0 as usize;
                    depth = depth.max(1 + if below == s { 0 } else { self.stages[below].depth });
                }
            }
            self.stages[s].depth = depth;
            self.stages[s].readers =
                Box::new(move |o, n| readers.get(&(o, n)).copied().unwrap_or(0));
        }
        Arc::new(self)
    }

    fn all_reads(&self, stage: u32, n: u64) -> Vec<(OutputRef, u64)> {
        let with = |(s, n): (u32, u64)| {
            (out(s, (n % u64::from(self.stages[s as usize].outputs)) as u32), n)
        };
        (self.stages[stage as usize].reads)(n).into_iter().map(with).collect()
    }

    /// What a chunk's first cell holds, without the scheduler.
    fn value(&self, of: OutputRef, n: u64, memo: &mut BTreeMap<(u32, u64), i64>) -> i64 {
        let s = of.stage.0;
        let sum = match memo.get(&(s, n)) {
            Some(&v) => v,
            None => {
                let mut v = seed(s, n);
                for (i, (r, m)) in self.all_reads(s, n).into_iter().enumerate() {
                    v = mix(v, i, self.value(r, m, memo));
                }
                memo.insert((s, n), v);
                v
            }
        };
        sum.wrapping_add(i64::from(of.output))
    }
}

fn seed(stage: u32, n: u64) -> i64 {
    i64::from(stage) * 1_000_003 + n as i64
}

fn mix(v: i64, i: usize, input: i64) -> i64 {
    v.wrapping_mul(31).wrapping_add(input.wrapping_mul(i as i64 + 7))
}

impl Tiling for Toy {
    fn stages(&self) -> usize {
        self.stages.len()
    }
    fn results(&self) -> &[OutputRef] {
        &self.results
    }
    fn grid(&self, stage: StageId) -> &Grid {
        &self.stages[stage.0 as usize].grid
    }
    fn outputs(&self, stage: StageId) -> usize {
        self.stages[stage.0 as usize].outputs as usize
    }
    fn output_grid(&self, of: OutputRef) -> &Grid {
        self.grid(of.stage)
    }
    fn name(&self, stage: StageId) -> String {
        let fault = self.nameless.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
        assert!(fault.is_err(), "no name");
        let kind = if self.stages[stage.0 as usize].load { "load" } else { "sum" };
        format!("{kind} {}", stage.0)
    }
    fn reads(&self, stage: StageId, index: &[u64], f: &mut dyn FnMut(OutputRef, ChunkIndex)) {
        for (r, n) in self.all_reads(stage.0, index[0]) {
            f(r, SmallVec::from_slice(&[n]));
        }
    }
    fn read_count(&self, stage: StageId, index: &[u64]) -> u64 {
        self.all_reads(stage.0, index[0]).len() as u64
    }
    fn readers(&self, of: OutputRef, index: &[u64]) -> u64 {
        (self.stages[of.stage.0 as usize].readers)(of.output, index[0])
    }
    fn peak(&self, stage: StageId, index: &[u64]) -> u64 {
        self.output_bytes(stage, index) + self.stages[stage.0 as usize].scratch
    }
    fn output_bytes(&self, stage: StageId, _: &[u64]) -> u64 {
        let s = &self.stages[stage.0 as usize];
        s.cells * 8 * u64::from(s.outputs)
    }
    fn depth(&self, stage: StageId) -> u32 {
        self.stages[stage.0 as usize].depth
    }
    fn is_rereadable(&self, stage: StageId) -> bool {
        self.stages[stage.0 as usize].load
    }
    fn parts(&self, stage: StageId, _: &[u64], _: OutputRef) -> Option<u64> {
        self.stages[stage.0 as usize].parts.then_some(0)
    }
    fn is_read_in_parts(&self, _: StageId) -> bool {
        self.stages.iter().any(|s| s.parts)
    }
}

type Hook = Box<dyn Fn(StageId, u64, &CancelToken) -> Result<(), Error> + Send + Sync>;

type Fetch = dyn Fn(u64) -> Result<(), Error> + Send + Sync;
type OnChunk = dyn Fn(usize, u64) -> Result<(), Error> + Send + Sync;

struct ToyRunner {
    plan: Arc<Toy>,
    /// Called before an operand computes.
    before: Hook,
    /// Called when a load fetches; without it loads do no I/O.
    fetch: Option<Arc<Fetch>>,
    ran: AtomicU64,
}

impl ToyRunner {
    fn new(plan: &Arc<Toy>) -> Self {
        ToyRunner {
            plan: plan.clone(),
            before: Box::new(|_, _, _| Ok(())),
            fetch: None,
            ran: AtomicU64::new(0),
        }
    }

    fn hooked(
        plan: &Arc<Toy>,
        before: impl Fn(StageId, u64, &CancelToken) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(ToyRunner { before: Box::new(before), ..ToyRunner::new(plan) })
    }
}

impl TaskRunner for ToyRunner {
    fn prepare(
        &self,
        _: StageId,
        index: &[u64],
    ) -> Option<BoxFuture<'static, Result<Prepared, Error>>> {
        let (fetch, n) = (self.fetch.clone()?, index[0]);
        Some(Box::pin(async move {
            tokio::time::sleep(Duration::from_micros(50)).await;
            fetch(n)?;
            Ok(Box::new(n) as Prepared)
        }))
    }

    fn fetches(&self, _: StageId) -> bool {
        self.fetch.is_some()
    }

    fn run(
        &self,
        stage: StageId,
        index: &[u64],
        inputs: &Inputs,
        prepared: Option<Prepared>,
        cx: &TaskContext<'_>,
    ) -> Result<Vec<Chunk>, Error> {
        (self.before)(stage, index[0], cx.cancel)?;
        self.ran.fetch_add(1, SeqCst);
        let info = &self.plan.stages[stage.0 as usize];
        if info.load && self.fetch.is_some() {
            assert_eq!(prepared.unwrap().downcast_ref::<u64>(), Some(&index[0]));
        }
        let mut v = seed(stage.0, index[0]);
        for (i, (r, n)) in self.plan.all_reads(stage.0, index[0]).into_iter().enumerate() {
            let cell = match inputs.held(r, &[n])? {
                Held::Memory(chunk) => chunk.field(0)?.values::<i64>()?[0],
                Held::File(file) => {
                    assert!(info.parts, "brought back, as the stage reads it whole");
                    let mut cell = [0u8; 8];
                    let reader = file.reader(cx.read_back);
                    reader?.copy(0, &[1], (0, &[1]), &mut cell, (0, &[1]))?;
                    i64::from_ne_bytes(cell)
                }
            };
            v = mix(v, i, cell);
        }
        (0..info.outputs)
            .map(|o| {
                let mut buffer = cx.buffer(info.cells as usize * 8);
                buffer.typed_mut::<i64>().fill(v.wrapping_add(i64::from(o)));
                let dtype = tessera_planner::dtype::DType::Int64;
                Chunk::new(&[info.cells], [crate::chunk::Field::from_pooled(dtype, buffer)?])
            })
            .collect()
    }
}

/// Collects first cells, and the chunks themselves if asked to.
#[derive(Default)]
struct Collect {
    values: Mutex<BTreeMap<(usize, u64), i64>>,
    keep: Option<Mutex<Vec<Arc<Chunk>>>>,
    drains: bool,
    on_chunk: Option<Box<OnChunk>>,
}

impl Sink for Collect {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        assert_eq!(region.shape().as_slice(), chunk.shape());
        if let Some(f) = &self.on_chunk {
            f(result, index[0])?;
        }
        let value = chunk.field(0)?.values::<i64>()?[0];
        let before = self.values.lock().unwrap().insert((result, index[0]), value);
        assert_eq!(before, None, "each chunk comes once");
        if let Some(keep) = &self.keep {
            keep.lock().unwrap().push(chunk);
        }
        Ok(())
    }

    fn drains(&self) -> bool {
        self.drains
    }
}

/// A runtime for tests, with the tokio runtime that it needs.
struct Bench {
    runtime: Runtime,
    _io: tokio::runtime::Runtime,
    scratch: Option<tempfile::TempDir>,
}

fn bench(threads: usize, quota_bytes_max: u64) -> Bench {
    spilling(threads, quota_bytes_max, 0)
}

/// One that may spill so many bytes.
fn spilling(threads: usize, quota_bytes_max: u64, spill_bytes_max: u64) -> Bench {
    let scratch = (spill_bytes_max > 0).then(|| tempfile::tempdir().unwrap());
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let io = io.unwrap();
    let config = Config {
        threads,
        quota_bytes_max,
        retry_backoff_ms: 1,
        stall_timeout_ms: 200,
        spill_dir: scratch.as_ref().map(|d| d.path().into()),
        spill_bytes_max,
        ..Config::default()
    };
    Bench { runtime: Runtime::new(config, io.handle().clone()).unwrap(), _io: io, scratch }
}

impl Bench {
    fn run(&self, plan: &Arc<Toy>, runner: Arc<ToyRunner>, sink: &Arc<Collect>) -> Outcome {
        let token = CancelToken::new();
        self.runtime.start(plan.clone(), runner, sink.clone(), &token).unwrap().wait()
    }

    fn quota(&self) -> &Arc<Quota> {
        self.runtime.quota()
    }

    /// Waits until threads that are past the end of a statement have let go of their last bytes.
    fn is_empty(&self) {
        for _ in 0..2000 {
            let files = self.runtime.store().figures();
            if self.quota().used() == 0 && files.files == 0 && files.bytes == 0 {
                return self.has_no_files();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let files = self.runtime.store().figures();
        panic!("{} bytes are still charged, {files:?}", self.quota().used());
    }

    /// Counts the files themselves: all that may be there is the lock.
    fn has_no_files(&self) {
        for dir in self.scratch.iter().flat_map(|d| std::fs::read_dir(d.path()).unwrap()) {
            let left: Vec<_> = std::fs::read_dir(dir.unwrap().path()).unwrap().collect();
            assert_eq!(left.len(), 1, "{left:?}");
        }
    }
}

/// Checks all delivered values against direct evaluation.
fn check(plan: &Toy, sink: &Collect) {
    let mut memo = BTreeMap::new();
    let mut want = BTreeMap::new();
    for (r, &of) in plan.results.iter().enumerate() {
        for n in 0..plan.stages[of.stage.0 as usize].count {
            want.insert((r, n), plan.value(of, n, &mut memo));
        }
    }
    assert_eq!(*sink.values.lock().unwrap(), want);
}

/// A binary tree over `2^levels` loads of `cells`; the result is its root.
fn tree(levels: u32, cells: u64) -> Arc<Toy> {
    let mut toy = Toy::default();
    toy.load(1 << levels, cells);
    for level in 1..=levels {
        let below = level - 1;
        let s = toy.stage(
            1 << (levels - level),
            cells,
            Box::new(move |n| vec![(below, 2 * n), (below, 2 * n + 1)]),
        );
        toy.stages[s as usize].depth = level;
    }
    toy.results = vec![out(levels, 0)];
    let root = levels;
    toy.stages[root as usize].readers = Box::new(|_, _| 0);
    Arc::new(toy)
}

#[test]
fn a_tree_reduction_holds_few_chunks() {
    let plan = tree(12, 100);
    let (b, sink) = (bench(1, 1 << 30), Arc::new(Collect::default()));
    let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
    outcome.result.unwrap();
    check(&plan, &sink);
    // Plain depth-first order holds 13 and one; a thread takes up to 32 small operands at a time.
    let stats = outcome.stats;
    assert!(stats.max_live_chunks <= 14 + 32, "{}", stats.max_live_chunks);
    assert!(stats.max_live_operands < 300, "{}", stats.max_live_operands);
    assert_eq!((stats.reads, stats.bytes_read), (4096, 4096 * 800));
    assert_eq!(stats.states.now(State::Freed), 8191);
    assert_eq!((stats.states.live(), stats.evictions, stats.restarts), (0, 0, 0));
    assert_eq!(stats.stages[12].operands, 1);
    b.is_empty();

    // With operands that are not small, one is taken at a time.
    let plan = tree(9, 40_000);
    let sink = Arc::new(Collect::default());
    let stats = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink).stats;
    check(&plan, &sink);
    assert!(stats.max_live_chunks <= 11, "{}", stats.max_live_chunks);
}

#[test]
fn a_huge_plan_starts_at_once_and_holds_little() {
    // 10^9 chunks of a map over loads: the first chunks arrive, then the receiver has enough.
    let mut toy = Toy::default();
    let load = toy.load(1_000_000_000, 10);
    toy.stage(1_000_000_000, 10, Box::new(move |n| vec![(load, n)]));
    toy.stages[1].depth = 1;
    toy.stages[1].readers = Box::new(|_, _| 0);
    toy.results = vec![out(1, 0)];
    let plan = Arc::new(toy);
    let b = bench(2, 1 << 20);
    let seen = Arc::new(AtomicU64::new(0));
    let counter = seen.clone();
    let sink = Arc::new(Collect {
        on_chunk: Some(Box::new(move |_, n| {
            assert!(n < 10_000, "in row-major order, nearly: {n}");
            if counter.fetch_add(1, SeqCst) >= 1000 {
                return Err(Error::ReceiverGone { reason: "enough".into() });
            }
            Ok(())
        })),
        ..Collect::default()
    });
    let runner = Arc::new(ToyRunner::new(&plan));
    let outcome = b.run(&plan, runner.clone(), &sink);
    assert_eq!(outcome.result.unwrap_err().code(), "receiver_gone");
    assert!(outcome.stats.max_live_operands < 1000, "{}", outcome.stats.max_live_operands);
    assert!(runner.ran.load(SeqCst) < 4000);
    assert_eq!(outcome.stats.states.live(), 0);
    b.is_empty();

    // A reduction of 2^30 chunks: the walk below one root is as lazy.
    let plan = tree(30, 10);
    let token = CancelToken::new();
    let stop = token.clone();
    let runner = ToyRunner::hooked(&plan, move |stage, n, _| {
        if stage.0 == 10 && n == 2 {
            stop.cancel();
        }
        Ok(())
    });
    let sink = Arc::new(Collect::default());
    let outcome = b.runtime.start(plan.clone(), runner, sink, &token).unwrap().wait();
    assert_eq!(outcome.result.unwrap_err().code(), "cancelled");
    assert!(outcome.stats.max_live_operands < 1000, "{}", outcome.stats.max_live_operands);
    assert!(outcome.stats.max_live_chunks < 200, "{}", outcome.stats.max_live_chunks);
    b.is_empty();
}

#[test]
fn results_that_share_chunks_share_the_work() {
    // Two maps over the same loads, and a reduction of one of them asked for before it.
    let mut toy = Toy::default();
    let load = toy.load(64, 10);
    let a = toy.stage(64, 10, Box::new(move |n| vec![(load, n)]));
    let b = toy.stage(64, 10, Box::new(move |n| vec![(load, n), (load, 63 - n)]));
    let sum = toy.stage(1, 1, Box::new(move |_| (0..64).map(|n| (a, n)).collect()));
    toy.results = vec![out(sum, 0), out(a, 0), out(b, 0), out(a, 0)];
    let plan = toy.count();
    for threads in [1, 2, 5] {
        let (b, sink) = (bench(threads, 1 << 20), Arc::new(Collect::default()));
        let runner = Arc::new(ToyRunner::new(&plan));
        let outcome = b.run(&plan, runner.clone(), &sink);
        outcome.result.unwrap();
        check(&plan, &sink);
        assert_eq!(runner.ran.load(SeqCst), 64 * 3 + 1, "each operand runs once");
        b.is_empty();
    }
}

#[test]
fn a_plan_keeps_to_its_threads() {
    for fetches in [false, true] {
        for (threads, quota) in [(1, 1 << 20), (2, 1 << 20), (1, 80 * 12), (3, 80 * 12)] {
            let mut toy = Toy::default();
            let load = toy.load(300, 10);
            let map = toy.stage(300, 10, Box::new(move |n| vec![(load, n)]));
            let sum =
                toy.stage(30, 10, Box::new(move |n| (0..10).map(|i| (map, n * 10 + i)).collect()));
            toy.results = vec![out(sum, 0)];
            let plan = toy.count();
            let (b, sink) = (bench(4, quota), Arc::new(Collect::default()));
            let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let (inside, peak) = (now.clone(), most.clone());
            // Every seventh operand fails once, and is then tried again.
            let failed = Mutex::new(std::collections::BTreeSet::new());
            let mut runner = ToyRunner::new(&plan);
            runner.before = Box::new(move |stage, n, _| {
                peak.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_micros(20));
                inside.fetch_sub(1, SeqCst);
                match n % 7 == 0 && failed.lock().unwrap().insert((stage.0, n)) {
                    true => {
                        Err(Error::SourceUnavailable { what: "x".into(), reason: "503".into() })
                    }
                    false => Ok(()),
                }
            });
            runner.fetch = fetches.then(|| Arc::new(|_| Ok(())) as Arc<Fetch>);
            let how = How { threads: Some(threads), ..How::default() };
            let token = CancelToken::new();
            let running =
                b.runtime.start_as(plan.clone(), Arc::new(runner), sink.clone(), &token, how);
            running.unwrap().wait().result.unwrap();
            check(&plan, &sink);
            let most = most.load(SeqCst);
            assert!((1..=threads as u64).contains(&most), "{most} of {threads} threads");
            b.is_empty();
        }
    }
}

#[test]
fn a_scan_reads_its_own_stage() {
    // Each operand reads the chunk before its own; only the last is asked for.
    let mut toy = Toy::default();
    let load = toy.load(500, 10);
    let scan = toy.stage(
        500,
        10,
        Box::new(move |n| {
            let mut reads = vec![(load, n)];
            reads.extend(n.checked_sub(1).map(|p| (1, p)));
            reads
        }),
    );
    let last = toy.stage(1, 10, Box::new(move |_| vec![(scan, 499)]));
    toy.results = vec![out(last, 0)];
    let plan = toy.count();
    for quota in [1 << 20, 80 * 50, 80 * 3] {
        let (b, sink) = (bench(2, quota), Arc::new(Collect::default()));
        let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
        outcome.result.unwrap();
        check(&plan, &sink);
        assert!(outcome.stats.max_live_chunks <= quota / 80, "{}", outcome.stats.max_live_chunks);
        b.is_empty();
    }
}

#[test]
fn two_statements_take_turns() {
    // One thread and two long plans: neither gets ahead of the other by more than a batch or two.
    let long = || {
        let mut toy = Toy::default();
        let load = toy.load(3000, 100);
        let map = toy.stage(3000, 100, Box::new(move |n| vec![(load, n)]));
        toy.results = vec![out(map, 0)];
        toy.count()
    };
    let (a, z) = (long(), long());
    let b = bench(1, 1 << 26);
    let gate = Arc::new(Mutex::new(()));
    let order = Arc::new(Mutex::new(Vec::new()));
    let runner = |plan: &Arc<Toy>, who: u8| {
        let (gate, order) = (gate.clone(), order.clone());
        ToyRunner::hooked(plan, move |_, _, _| {
            drop(gate.lock().unwrap());
            order.lock().unwrap().push(who);
            Ok(())
        })
    };
    let closed = gate.lock().unwrap();
    let token = CancelToken::new();
    let sinks = [Arc::new(Collect::default()), Arc::new(Collect::default())];
    let first = b.runtime.start(a.clone(), runner(&a, 0), sinks[0].clone(), &token).unwrap();
    let second = b.runtime.start(z.clone(), runner(&z, 1), sinks[1].clone(), &token).unwrap();
    assert!(first.progress().is_some());
    drop(closed);
    first.wait().result.unwrap();
    second.wait().result.unwrap();
    check(&a, &sinks[0]);
    check(&z, &sinks[1]);
    let (mut lead, mut most) = (0i64, 0);
    for who in order.lock().unwrap().iter() {
        lead += if *who == 0 { 1 } else { -1 };
        most = most.max(lead.abs());
    }
    assert!(most <= 64, "{most}");
}

#[test]
fn fetches_overlap_and_come_back_in_any_order() {
    let plan = tree(8, 100);
    let b = bench(2, 1 << 20);
    let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (n, m) = (now.clone(), most.clone());
    let runner = Arc::new(ToyRunner {
        fetch: Some(Arc::new(move |_| {
            m.fetch_max(n.fetch_add(1, SeqCst) + 1, SeqCst);
            n.fetch_sub(1, SeqCst);
            Ok(())
        })),
        ..ToyRunner::new(&plan)
    });
    let sink = Arc::new(Collect::default());
    let stats = b.run(&plan, runner, &sink).stats;
    check(&plan, &sink);
    assert_eq!((stats.reads, stats.retries), (256, 0));
    assert!(stats.max_live_chunks <= 32 + 64 + 9, "{}", stats.max_live_chunks);
    b.is_empty();
}
