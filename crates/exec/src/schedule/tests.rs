//! The scheduler on toy plans, whose chunks are integers that depend on all their inputs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::config::Config;
use crate::operand::OperandState;
use crate::quota::Quota;
use crate::run::{How, Runtime};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tessera_storage::source::SourceError;
use toy::{Collect, Fetch, Toy, ToyRunner, out};

mod durable;
mod failures;
mod figures;
mod memory;
mod order;
mod random;
mod spill;
mod toy;

/// A runtime for tests, with the tokio runtime that it needs.
struct Bench {
    runtime: Runtime,
    _io: tokio::runtime::Runtime,
    scratch: Option<tempfile::TempDir>,
}

fn bench(threads: usize, quota_bytes_max: u64) -> Bench {
    spilling(threads, quota_bytes_max, 0)
}

/// A runtime that may spill up to `spill_bytes_max` bytes.
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

/// A token that ends a test which would not end: it is cancelled after a minute.
fn watchdog() -> CancelToken {
    let token = CancelToken::new();
    let late = token.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(60));
        late.cancel();
    });
    token
}

/// An error that may not repeat.
fn unavailable() -> Error {
    let (what, reason) = ("x".into(), "503".into());
    Error::Source(SourceError::Unreachable { what, reason })
}

impl Bench {
    fn run(&self, plan: &Arc<Toy>, runner: Arc<ToyRunner>, sink: &Arc<Collect>) -> Outcome {
        let token = CancelToken::new();
        self.runtime.start(plan.clone(), runner, sink.clone(), &token).unwrap().wait()
    }

    fn quota(&self) -> &Arc<Quota> {
        self.runtime.quota()
    }

    /// Waits until threads that are past the end of a statement have dropped their last bytes.
    fn is_empty(&self) {
        for _ in 0..20_000 {
            let files = self.runtime.store().figures();
            if self.quota().used() == 0 && files.files == 0 && files.bytes == 0 {
                return self.has_no_files();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let files = self.runtime.store().figures();
        panic!("{} bytes are still charged, {files:?}", self.quota().used());
    }

    /// Counts the files themselves: only the lock may exist.
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
    assert_eq!(stats.states.now(OperandState::Freed), 8191);
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
    // Two maps over the same loads, and a reduction of one of them that is a result before it.
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
            // Every seventh operand fails once, and is then retried.
            let failed = Mutex::new(std::collections::BTreeSet::new());
            let mut runner = ToyRunner::new(&plan);
            runner.before = Box::new(move |stage, n, _| {
                peak.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_micros(20));
                inside.fetch_sub(1, SeqCst);
                match n % 7 == 0 && failed.lock().unwrap().insert((stage.0, n)) {
                    true => Err(unavailable()),
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
