//! Plans that are larger than memory.

use super::random::plan as random_plan;
use super::*;
use proptest::prelude::*;
use std::io::Write;

/// Every chunk of the result reads a part of every load.
fn rechunk(rows: u64, columns: u64, cells: u64, parts: bool) -> Arc<Toy> {
    let mut toy = Toy::default();
    let load = toy.load(rows, cells);
    let s = toy.stage(columns, cells, Box::new(move |_| (0..rows).map(|n| (load, n)).collect()));
    toy.results = vec![out(s, 0)];
    // Counting the readers of a million chunks takes longer than the test.
    toy.stages[0].readers = Box::new(move |_, _| columns);
    let made = &mut toy.stages[s as usize];
    (made.parts, made.depth, made.readers) = (parts, 1, Box::new(|_, _| 0));
    Arc::new(toy)
}

/// Peak of one operand with all its inputs: no plan can run with less.
fn narrowest(plan: &Toy) -> u64 {
    let of = |s: u32, n: u64| {
        let bytes = |r: &(OutputRef, u64)| plan.stages[r.0.stage.0 as usize].cells * 8;
        let inputs: u64 = plan.all_reads(s, n).iter().map(bytes).sum();
        plan.peak(StageId(s), &[n]) + inputs
    };
    let all = (0..plan.stages.len() as u32)
        .flat_map(|s| (0..plan.stages[s as usize].count).map(move |n| (s, n)));
    all.map(|(s, n)| of(s, n)).max().unwrap_or(0)
}

#[test]
fn a_rechunk_of_ten_times_the_memory_reads_its_source_once() {
    // 80 chunks of 64 KiB, of which 8 fit.
    let plan = rechunk(80, 20, 8 << 10, true);
    for threads in [1, 2, 4] {
        let (b, sink) = (spilling(threads, 512 << 10, 1 << 30), Arc::new(Collect::default()));
        let stats = {
            let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
            outcome.result.unwrap();
            outcome.stats
        };
        check(&plan, &sink);
        assert_eq!((stats.reads, stats.reruns, stats.restarts), (80, 0, 0));
        assert!((72..=80).contains(&stats.spills), "{}", stats.spills);
        assert_eq!(stats.bytes_spilled, stats.spills * (64 << 10));
        // Each operand reads a block of each file and no more.
        assert!(stats.bytes_read_back >= 20 * 72 * 4096 / 2, "{}", stats.bytes_read_back);
        assert!(stats.bytes_read_back <= 20 * 80 * 4096, "{}", stats.bytes_read_back);
        assert!(stats.peak_bytes <= 512 << 10);
        b.is_empty();
        assert_eq!(b.runtime.store().figures().spilled_bytes, stats.bytes_spilled);
        let parent = b.scratch.as_ref().unwrap().path().to_owned();
        let scratch = b.scratch;
        drop(b.runtime);
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 0, "the directory is gone");
        drop(scratch);
    }
}

#[test]
fn what_fits_is_not_spilled() {
    let plan = rechunk(16, 8, 1000, true);
    let (b, sink) = (spilling(2, 1 << 20, 1 << 30), Arc::new(Collect::default()));
    let stats = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink).stats;
    check(&plan, &sink);
    assert_eq!((stats.spills, stats.bytes_read_back, stats.evictions), (0, 0, 0));
    let parent = b.scratch.as_ref().unwrap().path();
    assert_eq!(std::fs::read_dir(parent).unwrap().count(), 0, "not even a directory is made");
}

#[test]
fn one_byte_less_than_one_operand_needs_fails() {
    let plan = rechunk(8, 5, 100, false);
    let least = narrowest(&plan);
    assert_eq!(least, 800 * 9);
    for threads in [1, 3] {
        let (b, sink) = (spilling(threads, least, 1 << 30), Arc::new(Collect::default()));
        b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink).result.unwrap();
        check(&plan, &sink);
        b.is_empty();
        let b = spilling(threads, least - 1, 1 << 30);
        let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &Arc::default());
        assert_eq!(outcome.result.unwrap_err().code(), "memory_exceeded");
        assert_eq!(outcome.stats.states.live(), 0);
        b.is_empty();
    }
}

/// A plan that keeps a thread busy until it is cancelled, with next to no memory.
fn endless() -> Arc<Toy> {
    let mut toy = Toy::default();
    let load = toy.load(1_000_000_000, 1000);
    toy.stage(1_000_000_000, 1000, Box::new(move |n| vec![(load, n)]));
    toy.stages[1].depth = 1;
    toy.stages[1].readers = Box::new(|_, _| 0);
    toy.results = vec![out(1, 0)];
    Arc::new(toy)
}

#[test]
fn a_statement_keeps_to_its_own_budget_while_others_run() {
    let busy = endless();
    let plan = rechunk(80, 20, 8 << 10, true);
    let wide = rechunk(8, 5, 100, false);
    let watchdog = watchdog();
    for spill in [1 << 30, 0] {
        let b = spilling(2, 64 << 20, spill);
        let hooked = ToyRunner::hooked(&busy, |_, _, _| {
            std::thread::sleep(Duration::from_micros(200));
            Ok(())
        });
        let first =
            b.runtime.start(busy.clone(), hooked, Arc::new(Collect::default()), &watchdog).unwrap();
        let run = |plan: &Arc<Toy>, bytes: u64| {
            let sink = Arc::new(Collect::default());
            let budget = b.quota().within(bytes);
            let how = How { budget: Some(budget.clone()), ..How::default() };
            let runner = Arc::new(ToyRunner::new(plan));
            let running = b.runtime.start_as(plan.clone(), runner, sink.clone(), &watchdog, how);
            let outcome = running.unwrap().wait();
            if outcome.result.is_ok() {
                check(plan, &sink);
            }
            assert!(budget.peak() <= bytes, "{budget:?}");
            outcome
        };
        // The whole memory would hold it; its budget holds a tenth.
        if spill > 0 {
            let outcome = run(&plan, 512 << 10);
            outcome.result.unwrap();
            assert!(outcome.stats.spills >= 72, "{}", outcome.stats.spills);
            assert_eq!((outcome.stats.restarts, outcome.stats.reruns), (0, 0));
        }
        let least = narrowest(&wide);
        run(&wide, least).result.unwrap();
        // The plan fails although other plans run endlessly. Its error reports the limit of its budget.
        let error = run(&wide, least - 1).result.unwrap_err();
        let Error::MemoryExceeded { limit_bytes, .. } = &error else { panic!("{error}") };
        assert_eq!(*limit_bytes, least - 1);
        first.cancel();
        assert_eq!(first.wait().result.unwrap_err().code(), "cancelled");
        b.is_empty();
    }
}

#[test]
fn two_rechunks_at_once_share_memory_and_disk() {
    let plans = [rechunk(60, 10, 8 << 10, true), rechunk(50, 30, 8 << 10, true)];
    let b = spilling(2, 512 << 10, 1 << 30);
    let token = CancelToken::new();
    let sinks = [Arc::new(Collect::default()), Arc::new(Collect::default())];
    let start = |i: usize| {
        let runner = Arc::new(ToyRunner::new(&plans[i]));
        b.runtime.start(plans[i].clone(), runner, sinks[i].clone(), &token).unwrap()
    };
    for (i, running) in [start(0), start(1)].into_iter().enumerate() {
        let outcome = running.wait();
        outcome.result.unwrap();
        check(&plans[i], &sinks[i]);
        assert_eq!((outcome.stats.restarts, outcome.stats.reruns), (0, 0));
    }
    assert!(b.quota().peak() <= 512 << 10);
    b.is_empty();
}

#[test]
fn a_large_statement_does_not_starve_a_small_one() {
    // The large one continues until the small one is over; if that never happens, the watchdog ends the test.
    let large = rechunk(40, 1_000_000, 8 << 10, true);
    let small = rechunk(3, 4, 8 << 10, false);
    let b = spilling(2, 512 << 10, 1 << 30);
    let watchdog = watchdog();
    let runner = Arc::new(ToyRunner::new(&large));
    let first =
        b.runtime.start(large.clone(), runner, Arc::new(Collect::default()), &watchdog).unwrap();
    while b.runtime.store().figures().files < 30 {
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..20 {
        let sink = Arc::new(Collect::default());
        let runner = Arc::new(ToyRunner::new(&small));
        b.runtime
            .start(small.clone(), runner, sink.clone(), &watchdog)
            .unwrap()
            .wait()
            .result
            .unwrap();
        check(&small, &sink);
    }
    first.cancel();
    assert_eq!(first.wait().result.unwrap_err().code(), "cancelled");
    b.is_empty();
}

#[test]
fn small_statements_do_not_starve_a_large_one() {
    // One operand that needs nearly all memory, while two threads are kept busy by a plan of operands that always fit.
    let small = endless();
    let large = rechunk(4, 3, 30_000, false);
    let b = spilling(2, narrowest(&large) + 1000, 1 << 30);
    let watchdog = watchdog();
    let hooked = ToyRunner::hooked(&small, |_, _, _| {
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    });
    let first =
        b.runtime.start(small.clone(), hooked, Arc::new(Collect::default()), &watchdog).unwrap();
    let sink = Arc::new(Collect::default());
    let runner = Arc::new(ToyRunner::new(&large));
    let second = b.runtime.start(large.clone(), runner, sink.clone(), &watchdog).unwrap();
    second.wait().result.unwrap();
    check(&large, &sink);
    first.cancel();
    assert_eq!(first.wait().result.unwrap_err().code(), "cancelled");
    b.is_empty();
}

#[test]
fn a_full_disk_is_reported_with_its_numbers_and_no_file_is_left() {
    let plan = rechunk(80, 20, 8 << 10, true);
    let b = spilling(2, 512 << 10, 1 << 20);
    let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &Arc::default());
    let error = outcome.result.unwrap_err();
    assert_eq!((error.code(), error.class().name()), ("scratch_full", "limit"));
    let Error::ScratchFull { limit_bytes, used_bytes, wanted_bytes, .. } = error else { panic!() };
    assert_eq!(limit_bytes, 1 << 20);
    assert!(used_bytes <= limit_bytes && used_bytes + wanted_bytes > limit_bytes);
    b.is_empty();
    // The remaining memory serves the next statement.
    let plan = rechunk(16, 4, 8 << 10, true);
    let sink = Arc::new(Collect::default());
    b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink).result.unwrap();
    check(&plan, &sink);
    b.is_empty();
}

#[test]
fn a_missing_directory_is_reported() {
    let plan = rechunk(80, 20, 8 << 10, true);
    let mut b = spilling(2, 512 << 10, 1 << 30);
    b.scratch = None;
    let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &Arc::default());
    assert_eq!(outcome.result.unwrap_err().code(), "scratch_unusable");
    b.is_empty();
}

/// Damage to the file of a spilled chunk.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Flipped,
    CutOff,
    Removed,
}

/// Damages at most `most` existing files.
fn spoil(scratch: &std::path::Path, loss: Loss, most: usize) {
    let below = |at: &std::path::Path| -> Vec<std::path::PathBuf> {
        let mut all: Vec<_> =
            std::fs::read_dir(at).into_iter().flatten().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    };
    let files = below(scratch).into_iter().flat_map(|directory| below(&directory));
    for file in files.filter(|f| f.extension().is_some_and(|e| e == "chunk")).take(most) {
        // A file that is removed at the same moment has no readers. Writing would bring it back for good.
        let Ok(mut bytes) = std::fs::read(&file) else { continue };
        let again = |bytes: &[u8]| {
            let opened = std::fs::OpenOptions::new().write(true).truncate(true).open(&file);
            opened.and_then(|mut file| file.write_all(bytes))
        };
        let _ = match loss {
            Loss::Flipped => {
                if let Some(first) = bytes.first_mut() {
                    *first ^= 1;
                }
                again(&bytes)
            }
            Loss::CutOff => again(&bytes[..bytes.len() / 2]),
            Loss::Removed => std::fs::remove_file(&file),
        };
    }
}

/// Chunks that are computed from loads and read several times: all of them in parts, or four whole.
fn computed(parts: bool) -> Arc<Toy> {
    let (rows, cells) = (40, 8 << 10);
    let mut toy = Toy::default();
    let load = toy.load(rows, cells);
    let made = toy.stage(rows, cells, Box::new(move |n| vec![(load, n)]));
    let all = move |_| (0..rows).map(|n| (made, n)).collect();
    let four = move |n| (0..4).map(|i| (made, (3 * n + 7 * i) % rows)).collect();
    let s = toy.stage(30, cells, if parts { Box::new(all) } else { Box::new(four) });
    toy.stages[s as usize].parts = parts;
    toy.results = vec![out(s, 0)];
    toy.count()
}

#[test]
fn a_spilled_chunk_that_is_lost_is_made_again() {
    for loss in [Loss::Flipped, Loss::CutOff, Loss::Removed] {
        for (parts, threads) in [(true, 1), (true, 3), (false, 1), (false, 3)] {
            let (plan, what) = (computed(parts), format!("{loss:?} {parts} {threads}"));
            let b = spilling(threads, 768 << 10, 1 << 30);
            let scratch = b.scratch.as_ref().unwrap().path().to_owned();
            let ran = AtomicU64::new(0);
            let runner = ToyRunner::hooked(&plan, move |stage, _, _| {
                if stage == StageId(2) && ran.fetch_add(1, SeqCst) == 10 {
                    spoil(&scratch, loss, 5);
                }
                Ok(())
            });
            let sink = Arc::new(Collect::default());
            let outcome = b.run(&plan, runner, &sink);
            outcome.result.unwrap_or_else(|e| panic!("{what}: {e}"));
            check(&plan, &sink);
            let stats = outcome.stats;
            assert!((1..=5).contains(&stats.spill_misses), "{what}: {}", stats.spill_misses);
            assert!(stats.reruns >= stats.spill_misses, "{what}");
            assert!(b.runtime.store().figures().corrupt >= stats.spill_misses, "{what}");
            assert_eq!(stats.states.live(), 0);
            b.is_empty();
        }
    }
}

#[test]
fn a_disk_that_stores_nothing_is_reported() {
    let plan = computed(true);
    let b = spilling(2, 768 << 10, 1 << 30);
    let scratch = b.scratch.as_ref().unwrap().path().to_owned();
    let runner = ToyRunner::hooked(&plan, move |_, _, _| {
        // Two flips of a bit would mend a file.
        spoil(&scratch, Loss::CutOff, usize::MAX);
        Ok(())
    });
    let outcome = b.run(&plan, runner, &Arc::default());
    assert_eq!(outcome.result.unwrap_err().code(), "scratch_corrupt");
    assert_eq!((outcome.stats.spill_misses, outcome.stats.states.live()), (64, 0));
    b.is_empty();
}

#[test]
fn one_of_two_plans_gives_way_if_the_disk_holds_only_one() {
    let plan = rechunk(60, 10, 8 << 10, true);
    // Spilled, one of them takes 52 files and more.
    let b = spilling(2, 512 << 10, 70 * (66 << 10));
    let token = CancelToken::new();
    let sinks = [Arc::new(Collect::default()), Arc::new(Collect::default())];
    let running = [0, 1].map(|i| {
        let runner = Arc::new(ToyRunner::new(&plan));
        b.runtime.start(plan.clone(), runner, sinks[i].clone(), &token).unwrap()
    });
    for (running, sink) in running.into_iter().zip(&sinks) {
        running.wait().result.unwrap();
        check(&plan, sink);
    }
    b.is_empty();
}

#[test]
fn a_thousand_cancels_leave_nothing() {
    let plans = [rechunk(40, 12, 2000, true), rechunk(20, 12, 2000, false)];
    // Room for the 20 inputs of an operand of the second and a few more, and for reading parts.
    let b = spilling(2, 400_000, 1 << 30);
    let (mut early, mut spilled) = (0, 0);
    let mut random = 1u64;
    for i in 0..1000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let plan = &plans[i % 2];
        let token = CancelToken::new();
        let (stop, at, ran) = (token.clone(), (random >> 33) % 30, AtomicU64::new(0));
        let runner = Arc::new(ToyRunner {
            before: Box::new(move |_, _, _| {
                if ran.fetch_add(1, SeqCst) == at {
                    stop.cancel();
                }
                Ok(())
            }),
            fetch: (i % 3 == 0).then(|| Arc::new(|_| Ok(())) as _),
            ..ToyRunner::new(plan)
        });
        let other = &plans[1 - i % 2];
        let (quiet, sink) = (Arc::new(ToyRunner::new(other)), Arc::new(Collect::default()));
        let beside = b.runtime.start(other.clone(), quiet, sink.clone(), &CancelToken::new());
        let running =
            b.runtime.start(plan.clone(), runner, Arc::new(Collect::default()), &token).unwrap();
        if i % 5 == 0 {
            // From outside, at a random moment rather than at an operand.
            std::thread::sleep(Duration::from_micros((random >> 40) % 2000));
            running.cancel();
        }
        let outcome = running.wait();
        assert_eq!(outcome.stats.states.live(), 0);
        spilled += outcome.stats.spills;
        early += u64::from(outcome.result.is_err());
        // The other one is not disturbed, or is dropped on the way as well.
        if i % 4 == 0 {
            beside.unwrap().wait().result.unwrap();
            check(other, &sink);
        } else {
            drop(beside);
        }
        b.is_empty();
    }
    assert!(early > 800 && spilled > 1000, "{early} {spilled}");
    assert_eq!(b.quota().overrun(), 0);
    b.runtime.pool().trim(0);
    assert_eq!(b.quota().cached(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// With scratch space, every plan runs in the memory that its widest operand needs, also several concurrently.
    #[test]
    fn memory_that_barely_fits_one_operand_is_enough(
        shapes in prop::collection::vec(
            prop::collection::vec((1u64..12, 1u32..3, any::<bool>(), any::<u64>()), 1..7), 1..4),
        results in any::<u64>(),
        threads in 1usize..4,
        fetch in any::<bool>(),
        budgets in prop::collection::vec(any::<bool>(), 4),
        plenty in any::<bool>(),
    ) {
        let plans: Vec<_> = shapes.iter().map(|s| random_plan(s, results)).collect();
        let quota = plans.iter().map(|p| narrowest(p)).max().unwrap_or(0);
        let quota = if plenty { quota * 8 } else { quota };
        let b = spilling(threads, quota, 1 << 30);
        let token = CancelToken::new();
        // Some have a budget of only their widest operand.
        let budgets: Vec<_> = plans.iter().zip(budgets)
            .map(|(p, own)| own.then(|| b.quota().within(narrowest(p)))).collect();
        let running: Vec<_> = plans.iter().zip(&budgets).map(|(plan, budget)| {
            let runner = Arc::new(ToyRunner {
                fetch: fetch.then(|| Arc::new(|_| Ok(())) as _),
                ..ToyRunner::new(plan)
            });
            let sink = Arc::new(Collect::default());
            let how = How { budget: budget.clone(), ..How::default() };
            (b.runtime.start_as(plan.clone(), runner, sink.clone(), &token, how).unwrap(), sink)
        }).collect();
        for ((running, sink), plan) in running.into_iter().zip(&plans) {
            let outcome = running.wait();
            if let Err(e) = outcome.result {
                return Err(TestCaseError::fail(format!("{quota}: {e}")));
            }
            check(plan, &sink);
            prop_assert_eq!((outcome.stats.restarts, outcome.stats.states.live()), (0, 0));
        }
        prop_assert!(b.quota().peak() <= quota);
        b.is_empty();
        for budget in budgets.iter().flatten() {
            prop_assert!(budget.peak() <= budget.limit() && budget.used() == 0, "{:?}", budget);
        }
        prop_assert_eq!(b.quota().overrun(), 0);
    }

    /// Whichever spilled chunks are lost, and when: the chunks of the result are the same.
    #[test]
    fn losses_change_nothing(
        shape in prop::collection::vec((1u64..12, 1u32..3, any::<bool>(), any::<u64>()), 1..7),
        results in any::<u64>(),
        threads in 1usize..4,
        loss in prop::sample::select(vec![Loss::Flipped, Loss::CutOff, Loss::Removed]),
        moments in prop::collection::btree_set(0u64..60, 1..4),
    ) {
        let plan = random_plan(&shape, results);
        let b = spilling(threads, narrowest(&plan), 1 << 30);
        let scratch = b.scratch.as_ref().unwrap().path().to_owned();
        let ran = AtomicU64::new(0);
        let runner = ToyRunner::hooked(&plan, move |_, _, _| {
            if moments.contains(&ran.fetch_add(1, SeqCst)) {
                spoil(&scratch, loss, 20);
            }
            Ok(())
        });
        let sink = Arc::new(Collect::default());
        let outcome = b.run(&plan, runner, &sink);
        if let Err(e) = outcome.result {
            return Err(TestCaseError::fail(format!("{loss:?}: {e}")));
        }
        check(&plan, &sink);
        prop_assert_eq!(outcome.stats.states.live(), 0);
        b.is_empty();
        prop_assert_eq!(b.quota().overrun(), 0);
    }
}
