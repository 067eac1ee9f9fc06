//! Plans that are short of memory.

use super::*;

#[test]
fn plans_that_barely_fit_finish_on_any_number_of_threads() {
    // Depth-first order of a binary tree of 2^8 leaves of 800 bytes holds a chunk for each of 7 levels, and two leaves
    // and the chunk made of them. One byte less is too little.
    let plan = tree(8, 100);
    for threads in [1, 2, 4] {
        let b = bench(threads, 800 * 10);
        let sink = Arc::new(Collect::default());
        let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
        outcome.result.unwrap();
        check(&plan, &sink);
        assert!(outcome.stats.peak_bytes <= 800 * 10);
        b.is_empty();

        let b = bench(threads, 800 * 10 - 1);
        let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &Arc::new(Collect::default()));
        let error = outcome.result.unwrap_err();
        assert_eq!((error.code(), error.class().name()), ("memory_exceeded", "limit"));
        assert!(error.hint().is_some());
        let Error::MemoryExceeded { limit_bytes, used_bytes, worst } = &error else { panic!() };
        assert_eq!((*limit_bytes, *used_bytes), (7999, 7200));
        assert_eq!((worst[0].stage.as_str(), worst[0].peak_bytes), ("sum 1", 800));
        assert_eq!(outcome.stats.states.live(), 0);
        b.is_empty();
    }
}

#[test]
fn an_operand_larger_than_the_quota_fails_before_anything_runs() {
    let mut toy = Toy::default();
    let load = toy.load(4, 10);
    let big = toy.stage(1, 10, Box::new(move |_| (0..4).map(|n| (load, n)).collect()));
    toy.stages[big as usize].scratch = 1 << 20;
    toy.results = vec![out(big, 0)];
    let plan = toy.count();
    let b = bench(2, 1 << 20);
    let runner = Arc::new(ToyRunner::new(&plan));
    let error = b.run(&plan, runner.clone(), &Arc::new(Collect::default())).result.unwrap_err();
    assert_eq!(
        error.to_string(),
        "out of memory: 0 of 1048576 bytes are in use; sum 1 [0] needs 1048656 bytes in addition to 0 bytes of inputs"
    );
    assert_eq!(runner.ran.load(SeqCst), 0);
    b.is_empty();
}

#[test]
fn fetches_ahead_are_bounded_by_their_bytes() {
    let mut toy = Toy::default();
    let load = toy.load(32, 10);
    toy.stages[load as usize].scratch = 100 << 20;
    let sum = toy.stage(1, 10, Box::new(move |_| (0..32).map(|n| (load, n)).collect()));
    toy.results = vec![out(sum, 0)];
    let plan = toy.count();
    let (b, sink) = (bench(2, 64 << 30), Arc::new(Collect::default()));
    let runner = Arc::new(ToyRunner { fetch: Some(Arc::new(|_| Ok(()))), ..ToyRunner::new(&plan) });
    let outcome = b.run(&plan, runner, &sink);
    outcome.result.unwrap();
    check(&plan, &sink);
    // Six loads are more than 512 MiB; the limit would hold all 32.
    let peak = outcome.stats.peak_bytes;
    assert!((500 << 20..700 << 20).contains(&peak), "{peak}");
    b.is_empty();
}

#[test]
fn a_shared_load_is_dropped_and_read_again() {
    // Two passes over 64 loads, one after the other, with room for few of them.
    let mut toy = Toy::default();
    let load = toy.load(64, 100);
    let chain = |toy: &mut Toy, at: u32| {
        toy.stage(
            64,
            1,
            Box::new(move |n| {
                let mut reads = vec![(load, n)];
                reads.extend(n.checked_sub(1).map(|p| (at, p)));
                reads
            }),
        )
    };
    let first = chain(&mut toy, 1);
    let second = chain(&mut toy, 2);
    let last = toy.stage(1, 1, Box::new(move |_| vec![(first, 63), (second, 63)]));
    toy.results = vec![out(last, 0)];
    let plan = toy.count();
    for (quota, again) in [(1 << 20, false), (800 * 10, true)] {
        let (b, sink) = (bench(1, quota), Arc::new(Collect::default()));
        let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
        outcome.result.unwrap();
        check(&plan, &sink);
        let stats = outcome.stats;
        assert_eq!(stats.evictions > 0 && stats.reruns > 0, again, "{stats:?}");
        assert_eq!(stats.reads, 64 + stats.reruns);
        assert_eq!(stats.restarts, 0);
        b.is_empty();
    }
}

#[test]
fn a_collecting_receiver_fails_at_once_and_a_draining_one_is_awaited() {
    let mut toy = Toy::default();
    let load = toy.load(32, 100);
    let map = toy.stage(32, 100, Box::new(move |n| vec![(load, n)]));
    toy.results = vec![out(map, 0)];
    let plan = toy.count();
    let b = bench(2, 800 * 12);

    let collects = Arc::new(Collect { keep: Some(Mutex::default()), ..Collect::default() });
    let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &collects);
    assert_eq!(outcome.result.unwrap_err().code(), "memory_exceeded");
    let held = collects.keep.as_ref().unwrap().lock().unwrap().len() as u64;
    assert_eq!(b.quota().used(), held * 800, "what a client holds stays charged");
    drop(collects);
    b.is_empty();

    let drains =
        Arc::new(Collect { keep: Some(Mutex::default()), drains: true, ..Collect::default() });
    let client = drains.clone();
    let reader = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < 32 {
            std::thread::sleep(Duration::from_millis(5));
            seen += usize::from(client.keep.as_ref().unwrap().lock().unwrap().pop().is_some());
        }
    });
    b.run(&plan, Arc::new(ToyRunner::new(&plan)), &drains).result.unwrap();
    reader.join().unwrap();
    check(&plan, &drains);
    b.is_empty();

    // A sink that claims to drain and does not is awaited only for the stall time-out.
    let stuck =
        Arc::new(Collect { keep: Some(Mutex::default()), drains: true, ..Collect::default() });
    let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &stuck);
    assert_eq!(outcome.result.unwrap_err().code(), "memory_exceeded");
    drop(stuck);
    b.is_empty();
}

#[test]
fn statements_that_block_each_other_all_finish() {
    // Each needs all of the memory at its narrowest.
    let plan = tree(8, 100);
    let b = bench(2, 800 * 10);
    let token = CancelToken::new();
    for _ in 0..5 {
        let sinks: Vec<_> = (0..4).map(|_| Arc::new(Collect::default())).collect();
        let running: Vec<_> = sinks
            .iter()
            .map(|s| {
                let runner = Arc::new(ToyRunner::new(&plan));
                b.runtime.start(plan.clone(), runner, s.clone(), &token).unwrap()
            })
            .collect();
        for (r, sink) in running.into_iter().zip(&sinks) {
            r.wait().result.unwrap();
            check(&plan, sink);
        }
        b.is_empty();
    }
}

#[test]
fn a_broadcast_value_survives_a_restart() {
    // x - mean(x) with so little memory that the loads are read twice and one chunk at a time.
    let mut toy = Toy::default();
    let load = toy.load(64, 100);
    let part = toy.stage(64, 1, Box::new(move |n| vec![(load, n)]));
    let mean = toy.stage(1, 1, Box::new(move |_| (0..64).map(|n| (part, n)).collect()));
    let sub = toy.stage(64, 100, Box::new(move |n| vec![(load, n), (mean, 0)]));
    toy.results = vec![out(sub, 0)];
    let plan = toy.count();
    for quota in [1 << 20, 800 * 8, 800 * 3, 800 * 2 + 8] {
        let (b, sink) = (bench(2, quota), Arc::new(Collect::default()));
        let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
        outcome.result.unwrap_or_else(|e| panic!("{quota}: {e}"));
        check(&plan, &sink);
        b.is_empty();
    }
}
