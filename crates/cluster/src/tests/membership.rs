//! Workers that leave or die in the middle of a statement, and workers of other versions.

use super::*;
use crate::net::Peers;
use crate::wire::{Hello, Version, Welcome};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_worker_hands_over_chunks_that_are_still_needed() {
    let mut handed_over = 0;
    for (name, t) in plans() {
        let mut bench = Bench::new(3).await;
        let alone = run(&bench.own, &t, &Sources::default(), None).await.unwrap();
        let drive = bench.drive(&t, &Sources::default());
        let shelved = drive.prepare(&t).await.unwrap();
        let before = drive.totals();
        // All results lie on workers, and the statement has not read them yet. Two of three workers leave.
        let leaving: Vec<u32> = before.each.keys().copied().take(2).collect();
        for (end, _) in bench.workers.drain(..2) {
            end.cancel();
        }
        let asked = Instant::now();
        bench.wait_for(1).await;
        let is_gone = |state| matches!(state, WorkerState::Left);
        let gone = || bench.cluster.registry().all().iter().filter(|m| is_gone(m.state)).count();
        while gone() < 2 {
            // The workers leave before the statement ends.
            assert!(asked.elapsed() < PATIENCE, "{name}: {leaving:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let all = run(&bench.own, &t, &Sources::default(), Some(shelved)).await;
        assert!(all.unwrap() == alone, "{name}: other bits");
        let after = drive.totals();
        assert_eq!((after.lost, after.again), (0, 0), "{name}: {after:?}");
        let ran = |totals: &Totals| totals.stages.iter().map(|s| s.0).collect::<Vec<u64>>();
        assert_eq!(ran(&after), ran(&before), "{name}: an operand ran again");
        let events = bench.cluster.registry().events();
        let handed = events.iter().filter(|e| e.kind == "handed_over").count();
        assert_eq!(handed > 0, after.handed_over > 0, "{name}");
        handed_over += after.handed_over;
    }
    // The worker that stays may have made all results of one plan, but not of all.
    assert!(handed_over > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_goes_on_while_workers_leave_and_come() {
    // The last one hands its chunks over when another one has come.
    let t = plans().remove(4).1;
    let mut bench = Bench::new(1).await;
    let alone = run(&bench.own, &t, &Sources::default(), None).await.unwrap();
    let drive = bench.drive(&t, &Sources::default());
    let shelved = drive.prepare(&t).await.unwrap();
    bench.workers[0].0.cancel();
    bench.wait_for(0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(bench.cluster.registry().is_here(1), "it waits");
    bench.start(MEMORY);
    let (_, ended) = bench.workers.remove(0);
    let ended = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), crate::Ended::Left);
    let all = run(&bench.own, &t, &Sources::default(), Some(shelved)).await;
    assert!(all.unwrap() == alone);
    let totals = drive.totals();
    assert_eq!((totals.lost, totals.again), (0, 0), "{totals:?}");
    assert!(totals.handed_over > 0, "{totals:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_the_place_of_one_that_died_is_another_one() {
    let mut bench = Bench::new(0).await;
    let at = bench.cluster.address();
    // A worker with several servers joins again when its server does not respond. No server listens at the second
    // address.
    bench.start_for(MEMORY, "1", vec![at.to_string(), "127.0.0.1:1".into()]);
    bench.wait_for(1).await;
    let t = plans().remove(4).1;
    let drive = |bench: &Bench, is_again| {
        let versions = Versions::new(false);
        let statement = Some(("s".into(), 0));
        let identity = Identity { statement, is_again, shares: false, versions };
        let options = DriveOptions { threads: None, stored: None, output: None, identity };
        let home: Home = Arc::new(|_, _, _| None);
        Drive::new(&bench.cluster, &t, &Sources::default(), options, home).unwrap().unwrap()
    };
    // The server dies before it reports that the plan is over.
    let first = drive(&bench, false);
    let _shelved = first.prepare(&t).await.unwrap();
    loads(&bench, "chunks", |loads| loads.iter().any(|l| l.chunks > 0)).await;
    bench.cluster.close().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let limits = bench.cluster.registry().limits();
    let next = Cluster::open(at, limits, &bench.credentials, "1").await.unwrap();
    let former = std::mem::replace(&mut bench.cluster, next);
    bench.wait_for(1).await;
    let numbers =
        [&former, &bench.cluster].map(|cluster| cluster.registry().all().last().unwrap().number);
    assert_eq!(numbers, [1, 1]);
    // The chunks are not those of a plan that runs, but serve the statement when it runs again.
    let is_parked = |loads: &[Load]| loads.iter().all(|l| (l.chunks, l.retained > 0) == (0, true));
    loads(&bench, "a parked plan", is_parked).await;
    let second = drive(&bench, true);
    let _shelved = second.prepare(&t).await.unwrap();
    assert!(second.totals().retained > 0, "{:?}", second.totals());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_the_program_may_differ_within_a_protocol() {
    let mut bench = Bench::new(1).await;
    bench.start_version(MEMORY, "2");
    bench.wait_for(2).await;
    let (_, totals) = bench.both(&plans()[1].1, &Sources::default()).await;
    assert_eq!(totals.workers, 2, "{totals:?}");
    let alive = bench.cluster.registry().alive();
    let versions: Vec<&str> = alive.iter().map(|m| m.hello.version.program.as_str()).collect();
    assert_eq!(versions, ["1", "2"]);
    // Another protocol or other kernels: refused, whatever the version of the program is.
    let peers = Peers::new(&bench.credentials);
    let server = bench.cluster.address().to_string();
    let (ours, within) = (Version::of("1"), Duration::from_secs(5));
    for (protocol, kernels) in
        [(ours.protocol + 1, ours.kernels), (ours.protocol, ours.kernels - 1)]
    {
        let version = Version { program: "1".into(), protocol, kernels };
        let hello = Hello { version: version.clone(), incarnation: 7, ..alive[0].hello.clone() };
        let refused: Result<Welcome, Fault> = peers.call(&server, "join", &hello, within).await;
        let told = refused.unwrap_err().to_string();
        for part in [&version.to_string(), &ours.to_string(), "the same kernels"] {
            assert!(told.contains(part), "no `{part}` in `{told}`");
        }
    }
    assert_eq!(bench.cluster.registry().alive().len(), 2);
    let events = bench.cluster.registry().events();
    assert_eq!(events.iter().filter(|e| e.kind == "refused").count(), 2, "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_die_cost_time_only() {
    for (name, t) in plans() {
        let mut bench = Bench::with_timeout(3, Duration::from_millis(1500)).await;
        let alone = run(&bench.own, &t, &Sources::default(), None).await.unwrap();
        let drive = bench.drive(&t, &Sources::default());
        // One dies when some chunks are available, the other when all are.
        let prepared = tokio::spawn({
            let (drive, t) = (drive.clone(), t.clone());
            async move { drive.prepare(&t).await }
        });
        bench.kill(0);
        let shelved = prepared.await.unwrap().unwrap();
        bench.kill(1);
        let all = run(&bench.own, &t, &Sources::default(), Some(shelved)).await;
        assert!(all.unwrap() == alone, "{name}: other bits");
        let states: Vec<WorkerState> =
            bench.cluster.registry().all().iter().map(|m| m.state).collect();
        assert!(states.contains(&WorkerState::Alive), "{states:?}");
    }
}
