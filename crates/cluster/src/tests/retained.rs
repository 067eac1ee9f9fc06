//! Chunks that workers retain of plans that are over.

use super::*;

/// Waits for two heartbeats of each worker: the second one was sent after this call began.
async fn heard(bench: &Bench) {
    for _ in 0..2 {
        let since = Instant::now();
        while bench.cluster.registry().alive().iter().any(|m| m.heard <= since) {
            assert!(since.elapsed() < PATIENCE, "{:?}", bench.cluster.registry());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_never_change_serve_the_next_plan() {
    let bench = Bench::new(2).await;
    let operands = |totals: &Totals| totals.stages.iter().map(|(n, _)| n).sum::<u64>();
    for (name, t) in plans() {
        let (_, first) = bench.both(&t, &Sources::default()).await;
        let has_forgotten = |loads: &[Load]| {
            loads.iter().all(|l| l.chunks == 0) && loads.iter().any(|l| l.retained > 0)
        };
        // A heartbeat from before this plan may already show this state.
        heard(&bench).await;
        loads(&bench, name, has_forgotten).await;
        let (_, second) = bench.both(&t, &Sources::default()).await;
        assert!(second.retained > 0, "{name}: {second:?}");
        assert!(operands(&second) < operands(&first), "{name}: {second:?} after {first:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrays_in_memory_without_a_version_leave_no_chunks() {
    let bench = Bench::new(2).await;
    let mut retained = Vec::new();
    for version in [None, Some("of these cells".into())] {
        let mut sources = Sources::default();
        let source = resident(&bench, &mut sources, version).await;
        let t = plan(512, |b| {
            let x = b.load(source.into()).unwrap();
            let s = b.scan(x, ScanKind::Sum, 0).unwrap();
            vec![b.reduce_axes(s, ReduceKind::Max, &[0]).unwrap()]
        });
        bench.both(&t, &sources).await;
        let has_forgotten = |loads: &[Load]| loads.iter().all(|l| l.chunks == 0);
        heard(&bench).await;
        loads(&bench, "forgotten", has_forgotten).await;
        let (_, second) = bench.both(&t, &sources).await;
        retained.push(second.retained > 0);
    }
    assert_eq!(retained, [false, true]);
}
