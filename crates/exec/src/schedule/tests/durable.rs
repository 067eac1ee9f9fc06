//! Plans that run again after they were stopped.

use super::random::plan as random_plan;
use super::*;
use crate::durable::{Did, Durable, DurableStore, Stored};
use crate::faulty::{Fault, Faulty};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tessera_planner::durable::Durability;
use tessera_planner::key::StageKey;
use tessera_storage::sink::Folder;
use tessera_storage::source::{Options, Stores};

/// A store in a directory that is removed with it.
struct Kept {
    directory: tempfile::TempDir,
    store: Arc<DurableStore>,
}

fn stores() -> Stores {
    Stores::with_environment(Duration::from_secs(5), [])
}

fn kept(limit: u64) -> Kept {
    let directory = tempfile::tempdir().unwrap();
    let url = directory.path().to_str().unwrap();
    let folder = Folder::open(url, &Options::default(), &stores()).unwrap();
    Kept { store: DurableStore::new(folder, limit), directory }
}

impl Kept {
    fn statement(&self, ran_before: bool) -> Arc<Durable> {
        let durable = Durable::new(&self.store, "one", Durability::All, ran_before);
        durable.begin();
        durable
    }

    /// Objects of the statement: the operand and the file.
    fn files(&self) -> BTreeMap<(u32, u64), PathBuf> {
        let below = self.directory.path().join("one/chunks");
        let list = |at: &Path| -> Vec<PathBuf> {
            let all = std::fs::read_dir(at).into_iter().flatten();
            all.map(|e| e.unwrap().path()).collect()
        };
        let mut files = BTreeMap::new();
        for stage in list(&below) {
            for file in list(&stage) {
                let number = file.file_stem().unwrap().to_str().unwrap().parse().unwrap();
                let is_key = |s: &u32| stage.ends_with(format!("0-{}", key(*s)));
                let stage = (0..20).find(is_key).unwrap();
                files.insert((stage, number), file);
            }
        }
        files
    }
}

fn key(stage: u32) -> StageKey {
    StageKey::of(&("toy", stage)).unwrap()
}

/// The outcome of a run, and the operands that were computed.
struct Ran {
    outcome: Outcome,
    computed: BTreeMap<(u32, u64), u64>,
    did: Did,
}

impl Bench {
    fn stored(&self, durable: &Arc<Durable>, plan: &Arc<Toy>) -> Option<Stored> {
        let keys = (0..plan.stages.len() as u32).map(|s| Some(key(s))).collect();
        let picks: Vec<bool> = plan.stages.iter().map(|s| !s.load).collect();
        self._io.block_on(durable.plan_of(plan.clone(), keys, &picks))
    }

    /// Runs a plan whose computed chunks are stored, until operand number `stop` begins and all before it are
    /// written. Nothing may be left in memory.
    fn run_kept(
        &self,
        durable: &Arc<Durable>,
        plan: &Arc<Toy>,
        sink: &Arc<Collect>,
        stop: u64,
    ) -> Ran {
        let computed = Arc::new(Mutex::new(BTreeMap::new()));
        let (seen, token) = (computed.clone(), CancelToken::new());
        let (stopper, begun, writing) = (token.clone(), AtomicU64::new(0), durable.clone());
        let runner = ToyRunner::hooked(plan, move |stage, n, _| {
            if begun.fetch_add(1, SeqCst) >= stop {
                written(&writing);
                stopper.cancel();
            }
            *seen.lock().unwrap().entry((stage.0, n)).or_default() += 1;
            Ok(())
        });
        let stored = self.stored(durable, plan);
        let running = self
            .runtime
            .start_as(plan.clone(), runner, sink.clone(), &token, How { stored, ..How::default() })
            .unwrap();
        let outcome = running.wait();
        if stop == u64::MAX {
            written(durable);
        }
        self._io.block_on(durable.close());
        assert_eq!(outcome.stats.states.live(), 0);
        self.is_empty();
        let computed = computed.lock().unwrap().clone();
        Ran { outcome, computed, did: durable.did() }
    }
}

/// Waits until nothing is being written.
fn written(durable: &Durable) {
    for _ in 0..20_000 {
        if !durable.is_writing() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("writing does not end");
}

/// The operands that the second run may compute: the inputs of the results, with nothing below stored chunks.
fn needed(plan: &Toy, there: &BTreeSet<(u32, u64)>) -> BTreeSet<(u32, u64)> {
    let (mut found, mut next) = (BTreeSet::new(), Vec::new());
    for r in &plan.results {
        let s = r.stage.0;
        next.extend((0..plan.stages[s as usize].count).map(|n| (s, n)));
    }
    while let Some((s, n)) = next.pop() {
        if !there.contains(&(s, n)) && found.insert((s, n)) {
            next.extend(plan.all_reads(s, n).into_iter().map(|(r, n)| (r.stage.0, n)));
        }
    }
    found
}

#[test]
fn a_run_after_a_stop_computes_what_is_not_there() {
    let plan = tree(9, 1000);
    let kept = kept(1 << 30);
    let b = bench(2, 1 << 26);
    let first = b.run_kept(&kept.statement(false), &plan, &Arc::default(), 500);
    assert_eq!(first.outcome.result.unwrap_err().code(), "cancelled");
    assert!(first.did.written > 50 && first.did.reused == 0, "{:?}", first.did);
    let files = kept.files();
    assert_eq!(files.len() as u64, first.did.written);
    let there: BTreeSet<(u32, u64)> = files.into_keys().collect();
    let sink = Arc::new(Collect::default());
    let second = b.run_kept(&kept.statement(true), &plan, &sink, u64::MAX);
    second.outcome.result.unwrap();
    check(&plan, &sink);
    // Exactly the lost operands, each once; no acknowledged chunk is computed again.
    let computed: BTreeSet<(u32, u64)> = second.computed.keys().copied().collect();
    assert_eq!(computed, needed(&plan, &there));
    assert!(second.computed.values().all(|&times| times == 1));
    assert!(second.did.reused > 0 && second.did.reused <= first.did.written);
    assert!(second.did.seconds_reused > 0.0 && second.did.bytes_reused == second.did.reused * 8000);
    assert_eq!((second.did.corrupt, second.did.failed), (0, 0));
    // A third run loads the result and nothing else.
    let sink = Arc::new(Collect::default());
    let third = b.run_kept(&kept.statement(true), &plan, &sink, u64::MAX);
    third.outcome.result.unwrap();
    check(&plan, &sink);
    assert_eq!((third.computed.len(), third.did.reused), (0, 1));
    assert_eq!(third.outcome.stats.stages[9].operands, 0);
    b._io.block_on(kept.store.remove("one")).unwrap();
    assert_eq!((kept.store.bytes(), kept.files().len()), (0, 0));
}

#[test]
fn a_new_statement_does_not_look_for_chunks() {
    let (plan, kept, b) = (tree(4, 10), kept(1 << 30), bench(1, 1 << 20));
    b.run_kept(&kept.statement(false), &plan, &Arc::default(), u64::MAX).outcome.result.unwrap();
    let ran = b.run_kept(&kept.statement(false), &plan, &Arc::default(), u64::MAX);
    assert_eq!((ran.did.reused, ran.computed.len()), (0, 31));
    let other = Durable::new(&kept.store, "other", Durability::All, true);
    assert_eq!(b.run_kept(&other, &plan, &Arc::default(), u64::MAX).did.reused, 0);
}

#[test]
fn inputs_of_loaded_operands_alone_are_not_held() {
    // Two maps over the same loads, which are expensive: one map is stored, so each load has a single reader left.
    let mut toy = Toy::default();
    let load = toy.load(400, 1000);
    let a = toy.stage(400, 10, Box::new(move |n| vec![(load, n)]));
    let z = toy.stage(400, 10, Box::new(move |n| vec![(load, n), (a, n)]));
    toy.results = vec![out(z, 0)];
    let plan = toy.count();
    let (kept, b) = (kept(1 << 30), bench(1, 1 << 26));
    b.run_kept(&kept.statement(false), &plan, &Arc::default(), u64::MAX).outcome.result.unwrap();
    for (_, file) in kept.files().into_iter().filter(|((s, _), _)| *s == z) {
        std::fs::remove_file(file).unwrap();
    }
    let sink = Arc::new(Collect::default());
    let ran = b.run_kept(&kept.statement(true), &plan, &sink, u64::MAX);
    ran.outcome.result.unwrap();
    check(&plan, &sink);
    assert_eq!((ran.did.reused, ran.computed.len()), (400, 800));
    let live = ran.outcome.stats.max_live_chunks;
    assert!(live < 200, "{live} chunks are held at a time");
}

#[test]
fn a_corrupt_chunk_is_recomputed() {
    let plan = tree(6, 100);
    let (kept, b) = (kept(1 << 30), bench(2, 1 << 22));
    b.run_kept(&kept.statement(false), &plan, &Arc::default(), u64::MAX).outcome.result.unwrap();
    // The root is removed, the chunks below it are damaged, each in another way.
    let files = kept.files();
    std::fs::remove_file(&files[&(6, 0)]).unwrap();
    let spoil = |operand: (u32, u64), f: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(&files[&operand]).unwrap();
        f(&mut bytes);
        std::fs::write(&files[&operand], bytes).unwrap();
    };
    let last = |b: &mut Vec<u8>| *b.last_mut().unwrap() ^= 1;
    spoil((5, 0), &last);
    spoil((5, 1), &|b| b.truncate(b.len() - 1));
    spoil((4, 0), &|b| b.clear());
    spoil((4, 1), &|b| b.truncate(20));
    spoil((4, 2), &|b| b[40] ^= 1);
    spoil((4, 3), &|b| b.push(0));
    std::fs::copy(&files[&(3, 1)], &files[&(3, 0)]).unwrap();
    let sink = Arc::new(Collect::default());
    let ran = b.run_kept(&kept.statement(true), &plan, &sink, u64::MAX);
    ran.outcome.result.unwrap();
    check(&plan, &sink);
    assert_eq!(ran.did.corrupt, 7);
    let computed: Vec<(u32, u64)> = ran.computed.keys().copied().collect();
    let lost = [(4, 0), (4, 1), (4, 2), (4, 3), (5, 0), (5, 1), (6, 0)];
    assert_eq!(computed.iter().filter(|o| o.0 >= 4).copied().collect::<Vec<_>>(), lost);
    // Of the third level all were stored but one, which had the contents of another.
    assert_eq!(computed.iter().filter(|o| o.0 == 3).count(), 1);
    // Recomputed chunks were written again.
    let ran = b.run_kept(&kept.statement(true), &plan, &Arc::default(), u64::MAX);
    assert_eq!((ran.did.reused, ran.did.corrupt, ran.computed.len()), (1, 0, 0));
}

#[test]
fn a_chunk_that_goes_while_the_plan_runs_is_computed_again() {
    let plan = tree(6, 100);
    let (kept, b) = (kept(1 << 30), bench(2, 1 << 22));
    b.run_kept(&kept.statement(false), &plan, &Arc::default(), u64::MAX).outcome.result.unwrap();
    let durable = kept.statement(true);
    let stored = b.stored(&durable, &plan);
    b._io.block_on(kept.store.remove("one")).unwrap();
    let (sink, runner) = (Arc::new(Collect::default()), Arc::new(ToyRunner::new(&plan)));
    let token = CancelToken::new();
    let running = b.runtime.start_as(
        plan.clone(),
        runner,
        sink.clone(),
        &token,
        How { stored, here: true, ..How::default() },
    );
    running.unwrap().wait().result.unwrap();
    check(&plan, &sink);
    b._io.block_on(durable.close());
    // Every listed chunk is missing.
    assert_eq!((durable.did().corrupt, durable.did().reused), (63, 0));
    b.is_empty();
}

#[test]
fn nothing_of_a_write_fails_a_statement() {
    let plan = tree(7, 100);
    for fault in [Fault::NoSpace, Fault::Unavailable, Fault::LostAnswer] {
        let (stores, bucket) = (stores(), Faulty::new(fault, 20));
        stores.serve("bucket", bucket.clone());
        let folder = Folder::open("s3://bucket/kept", &Options::default(), &stores).unwrap();
        let store = DurableStore::new(folder, 1 << 30);
        let b = bench(2, 1 << 22);
        let sink = Arc::new(Collect::default());
        let durable = Durable::new(&store, "one", Durability::All, false);
        durable.begin();
        let ran = b.run_kept(&durable, &plan, &sink, u64::MAX);
        ran.outcome.result.unwrap();
        check(&plan, &sink);
        assert_eq!(ran.did.written, 20);
        // A full store is not tried again; a failing one is given up after some time. Writes in progress may still
        // fail.
        let most = if fault == Fault::NoSpace { 8 } else { 16 };
        assert!((1..=most).contains(&ran.did.failed), "{fault:?}: {:?}", ran.did);
        assert!(bucket.writes() <= 20 + most);
        // The chunks that were stored can be used.
        let again = Durable::new(&store, "one", Durability::All, true);
        let ran = b.run_kept(&again, &plan, &Arc::default(), u64::MAX);
        ran.outcome.result.unwrap();
        assert!(ran.did.reused > 0 && ran.did.corrupt == 0, "{fault:?}: {:?}", ran.did);
    }
}

#[test]
fn the_limit_holds() {
    let plan = tree(6, 1000);
    let (kept, b) = (kept(100 << 10), bench(2, 1 << 22));
    let sink = Arc::new(Collect::default());
    let ran = b.run_kept(&kept.statement(false), &plan, &sink, u64::MAX);
    ran.outcome.result.unwrap();
    check(&plan, &sink);
    let size = |f: PathBuf| f.metadata().unwrap().len();
    let bytes: u64 = kept.files().into_values().map(size).sum();
    assert_eq!(bytes, kept.store.bytes());
    assert!((90 << 10..=100 << 10).contains(&bytes), "{bytes}");
    assert_eq!(ran.did.written + ran.did.skipped, 63);
}

#[test]
fn runs_of_a_statement_at_the_same_time_do_not_disturb_each_other() {
    let plan = tree(8, 100);
    let (kept, b) = (kept(1 << 30), bench(2, 1 << 22));
    b.run_kept(&kept.statement(false), &plan, &Arc::default(), 200).outcome.result.unwrap_err();
    let durables = [kept.statement(true), kept.statement(true)];
    let sinks = [Arc::new(Collect::default()), Arc::new(Collect::default())];
    let token = CancelToken::new();
    let started: Vec<_> = durables
        .iter()
        .zip(&sinks)
        .map(|(durable, sink)| {
            let (stored, runner) = (b.stored(durable, &plan), Arc::new(ToyRunner::new(&plan)));
            let start = &b.runtime;
            start
                .start_as(
                    plan.clone(),
                    runner,
                    sink.clone(),
                    &token,
                    How { stored, ..How::default() },
                )
                .unwrap()
        })
        .collect();
    for (running, sink) in started.into_iter().zip(&sinks) {
        running.wait().result.unwrap();
        check(&plan, sink);
    }
    for durable in &durables {
        written(durable);
        b._io.block_on(durable.close());
        assert_eq!((durable.did().corrupt, durable.did().failed), (0, 0));
    }
    b.is_empty();
    // Every name belongs to a whole object.
    assert!(kept.files().contains_key(&(8, 0)));
}

#[test]
fn chunks_that_are_too_large_to_be_loaded_are_computed() {
    // A chunk of 8,000 bytes from one of 80: it can be made in 10,000 bytes, but not loaded.
    let mut toy = Toy::default();
    let load = toy.load(4, 10);
    let map = toy.stage(4, 1000, Box::new(move |n| vec![(load, n)]));
    toy.results = vec![out(map, 0)];
    let (plan, kept) = (toy.count(), kept(1 << 30));
    for (quota, reused) in [(1 << 20, 0), (1 << 20, 4), (10_000, 0)] {
        let (b, sink) = (bench(1, quota), Arc::new(Collect::default()));
        let ran = b.run_kept(&kept.statement(true), &plan, &sink, u64::MAX);
        ran.outcome.result.unwrap();
        check(&plan, &sink);
        assert_eq!((ran.did.reused, ran.did.corrupt), (reused, 0));
        assert!(b.quota().peak() <= quota);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_plan_goes_on_where_it_was_stopped(
        shape in prop::collection::vec((1u64..12, 1u32..3, any::<bool>(), any::<u64>()), 1..7),
        results in any::<u64>(),
        threads in 1usize..4,
        stops in prop::collection::vec(0u64..60, 1..4),
        spoil in any::<u64>(),
    ) {
        let plan = random_plan(&shape, results);
        let (kept, b) = (kept(1 << 30), bench(threads, 1 << 20));
        for (i, &stop) in stops.iter().enumerate() {
            b.run_kept(&kept.statement(i > 0), &plan, &Arc::default(), stop);
        }
        let files = kept.files();
        let is_spoilt = |o: &(u32, u64)| spoil % 2 == 0 && spoil >> ((o.1 + u64::from(o.0)) % 60) & 7 == 0;
        for (operand, file) in &files {
            if is_spoilt(operand) {
                std::fs::write(file, b"nothing").unwrap();
            }
        }
        let good: BTreeSet<(u32, u64)> = files.into_keys().filter(|o| !is_spoilt(o)).collect();
        let sink = Arc::new(Collect::default());
        let last = b.run_kept(&kept.statement(true), &plan, &sink, u64::MAX);
        prop_assert!(last.outcome.result.is_ok(), "{:?}", last.outcome.result);
        check(&plan, &sink);
        for operand in last.computed.keys() {
            prop_assert!(!good.contains(operand), "{:?} was there", operand);
        }
        if spoil % 2 == 1 {
            let computed: BTreeSet<(u32, u64)> = last.computed.keys().copied().collect();
            prop_assert_eq!(computed, needed(&plan, &good));
        }
    }
}
