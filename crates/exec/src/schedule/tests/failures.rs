//! Plans that are stopped, and operands that fail.

use super::*;

#[test]
fn cancel_at_any_moment_leaves_nothing() {
    let plan = tree(10, 100);
    let b = bench(2, 1 << 20);
    let mut early = 0;
    for i in 0..200u64 {
        let token = CancelToken::new();
        let stop = token.clone();
        let at = i * i % 2200;
        let ran = AtomicU64::new(0);
        let runner = Arc::new(ToyRunner {
            before: Box::new(move |_, _, cancel| {
                if ran.fetch_add(1, SeqCst) == at {
                    stop.cancel();
                    assert!(cancel.is_cancelled());
                }
                Ok(())
            }),
            fetch: (i % 2 == 0).then(|| Arc::new(|_| Ok(())) as _),
            ..ToyRunner::new(&plan)
        });
        let sink = Arc::new(Collect::default());
        let outcome = b.runtime.start(plan.clone(), runner, sink.clone(), &token).unwrap().wait();
        let states = &outcome.stats.states;
        assert_eq!(states.live(), 0, "{i}");
        match outcome.result {
            Ok(()) => check(&plan, &sink),
            Err(e) => {
                early += 1;
                assert_eq!(e.code(), "cancelled");
                assert_eq!(
                    states.entered(OperandState::Cancelling),
                    states.now(OperandState::Cancelled)
                );
            }
        }
        b.is_empty();
    }
    assert!(early > 100, "{early}");
}

#[test]
fn a_cancelled_statement_does_not_start_and_dropping_one_cancels_it() {
    let plan = tree(20, 10);
    let b = bench(2, 1 << 20);
    let token = CancelToken::new();
    token.cancel();
    let runner = || Arc::new(ToyRunner::new(&plan));
    let sink = || Arc::new(Collect::default());
    let error = b.runtime.start(plan.clone(), runner(), sink(), &token).err().unwrap();
    assert_eq!(error.code(), "cancelled");

    drop(b.runtime.start(plan.clone(), runner(), sink(), &CancelToken::new()).unwrap());
    b.is_empty();

    // A runtime that ends cancels its statements.
    let running = b.runtime.start(plan.clone(), runner(), sink(), &CancelToken::new()).unwrap();
    drop(b);
    assert_eq!(running.wait().result.unwrap_err().code(), "cancelled");
}

#[test]
fn a_panic_is_an_error_that_names_the_operand() {
    let plan = tree(6, 10);
    let b = bench(2, 1 << 20);
    let runner = ToyRunner::hooked(&plan, |stage, n, _| {
        assert!((stage.0, n) != (3, 5), "a fault");
        Ok(())
    });
    let outcome = b.run(&plan, runner, &Arc::new(Collect::default()));
    let error = outcome.result.unwrap_err();
    assert_eq!(error.to_string(), "sum 3 [5] panicked: a fault");
    assert_eq!((error.code(), error.class().name()), ("internal", "internal"));
    // The operand, and the known operands that would have read it, up to the root.
    assert_eq!(outcome.stats.states.now(OperandState::Fatal), 4);
    assert_eq!(outcome.stats.states.live(), 0);
    b.is_empty();
    // The threads live on.
    let sink = Arc::new(Collect::default());
    b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink).result.unwrap();
    check(&plan, &sink);

    // Panics of a fetch, and of the plan's own arithmetic.
    let runner = Arc::new(ToyRunner {
        fetch: Some(Arc::new(|n| {
            assert!(n != 7, "no such chunk");
            Ok(())
        })),
        ..ToyRunner::new(&plan)
    });
    let error = b.run(&plan, runner, &Arc::new(Collect::default())).result.unwrap_err();
    assert_eq!(error.to_string(), "load 0 [7] panicked: no such chunk");
    let mut toy = Toy::default();
    toy.stage(9, 1, Box::new(|n| if n == 3 { panic!("bad tiling") } else { vec![] }));
    toy.stages[0].readers = Box::new(|_, _| 0);
    toy.results = vec![out(0, 0)];
    let plan = Arc::new(toy);
    let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &Arc::new(Collect::default()));
    assert_eq!(outcome.result.unwrap_err().to_string(), "the scheduler panicked: bad tiling");
    b.is_empty();
}

#[test]
fn transient_errors_are_retried_a_bounded_number_of_times() {
    let plan = tree(5, 10);
    let b = bench(2, 1 << 20);
    let flaky = |failures: u64| {
        let left = Arc::new(AtomicU64::new(failures));
        Arc::new(ToyRunner {
            fetch: Some(Arc::new(move |n| {
                let fails =
                    n == 9 && left.fetch_update(SeqCst, SeqCst, |l| l.checked_sub(1)).is_ok();
                if fails { Err(unavailable()) } else { Ok(()) }
            })),
            ..ToyRunner::new(&plan)
        })
    };
    let sink = Arc::new(Collect::default());
    let outcome = b.run(&plan, flaky(3), &sink);
    outcome.result.unwrap();
    check(&plan, &sink);
    assert_eq!(outcome.stats.retries, 3);
    let outcome = b.run(&plan, flaky(4), &Arc::new(Collect::default()));
    assert_eq!(outcome.result.unwrap_err().code(), "unreachable");
    assert_eq!(outcome.stats.retries, 3);
    b.is_empty();

    // An error of the decoder, on a thread, runs the fetch again as well.
    let fetched = Arc::new(AtomicU64::new(0));
    let (count, failed) = (fetched.clone(), AtomicU64::new(0));
    let runner = Arc::new(ToyRunner {
        before: Box::new(move |stage, n, _| {
            if (stage.0, n) == (0, 4) && failed.fetch_add(1, SeqCst) == 0 {
                return Err(unavailable());
            }
            Ok(())
        }),
        fetch: Some(Arc::new(move |_| {
            count.fetch_add(1, SeqCst);
            Ok(())
        })),
        ..ToyRunner::new(&plan)
    });
    let sink = Arc::new(Collect::default());
    b.run(&plan, runner, &sink).result.unwrap();
    check(&plan, &sink);
    assert_eq!(fetched.load(SeqCst), 33);
    b.is_empty();
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let b = bench(1, 1 << 20);
    // An operand that reads itself can never start.
    let mut toy = Toy::default();
    toy.stage(2, 1, Box::new(|n| vec![(0, 1 - n)]));
    toy.results = vec![out(0, 0)];
    let plan = Arc::new(toy);
    let error = b
        .run(&plan, Arc::new(ToyRunner::new(&plan)), &Arc::new(Collect::default()))
        .result
        .unwrap_err();
    assert_eq!(error.to_string(), "2 operands wait for each other");
    // A result that does not exist.
    let mut toy = Toy::default();
    toy.load(2, 1);
    toy.results = vec![out(0, 1)];
    let plan = Arc::new(toy);
    let runner = Arc::new(ToyRunner::new(&plan));
    let sink = Arc::new(Collect::default());
    let started = b.runtime.start(plan.clone(), runner, sink, &CancelToken::new());
    assert_eq!(started.err().unwrap().code(), "internal");
}

#[test]
fn a_panic_where_all_statements_are_looked_at_ends_one_of_them() {
    // A finished plan is asked for the names of its stages; a plan that does not fit is asked before it fails.
    let (fits, large) = (tree(6, 10), tree(6, 1000));
    for (plan, faults) in [(&fits, 1), (&large, 1), (&large, 2), (&large, 100)] {
        let b = bench(2, 20_000);
        let watchdog = watchdog();
        let quiet = tree(9, 10);
        let sink = Arc::new(Collect::default());
        let runner = Arc::new(ToyRunner::new(&quiet));
        let beside = b.runtime.start(quiet.clone(), runner, sink.clone(), &watchdog).unwrap();
        plan.nameless.store(faults, SeqCst);
        let faulty = b.runtime.start(
            plan.clone(),
            Arc::new(ToyRunner::new(plan)),
            Arc::new(Collect::default()),
            &watchdog,
        );
        let error = faulty.unwrap().wait().result.unwrap_err();
        assert_eq!(error.to_string(), "the scheduler panicked: no name");
        assert_eq!(error.class().name(), "internal");
        beside.wait().result.unwrap();
        check(&quiet, &sink);
        plan.nameless.store(0, SeqCst);
        b.is_empty();
        assert_eq!(b.runtime.plans(), 0);
        // The threads live on.
        let sink = Arc::new(Collect::default());
        b.run(&fits, Arc::new(ToyRunner::new(&fits)), &sink).result.unwrap();
        check(&fits, &sink);
    }
}
