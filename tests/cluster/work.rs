//! The work of a statement on several workers: copies, workers that join, leave or are lost, and fetched chunks.

use super::{Cluster, PATIENCE, failing_in, lost_after, never_fails, patient, query_at, signal};
use crate::common::{Hold, until};
use serde_json::Value;
use std::time::{Duration, Instant};

/// 120 operands, and ten that put their results together.
const FUSED: &str = "SELECT sum(sin(x)) AS s FROM (SELECT random_uniform([12000000], seed => 1, \
    chunks => [100000]) AS x) t";

#[test]
fn workers_report_progress_while_they_run() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start_in(patient(), 0);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    // Each worker has half of the 120 operands. One worker stops in the middle. So does the other one if it runs the
    // operands of the first instead.
    for n in [40, 100] {
        let fail = format!("{}@{n}", hold.at("operand.fused"));
        cluster.start_worker_at(&join, &[], &fail);
    }
    cluster.wait_for(2);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| cluster.query(FUSED));
        let is_told = || {
            let shown = cluster.ask("POST", "/v1/query?format=json", "SHOW QUERIES").unwrap().body;
            shown.contains(" of 130\"") && !shown.contains("\"0 of 130\"")
        };
        until("progress is told", PATIENCE, || asked.is_finished() || is_told());
        // And the states of operands on workers.
        let are_counted = || {
            let all = cluster.ask("GET", "/v1/statements", "").unwrap().json();
            let mut all = all["statements"].as_array().unwrap().iter();
            let count = |s: &Value, state| s["progress"]["operands"]["states"][state].as_u64();
            all.any(|s| count(s, "RUNNING") > Some(0) && count(s, "FREED") > Some(0))
        };
        until("states are counted", PATIENCE, || asked.is_finished() || are_counted());
        assert!(!asked.is_finished(), "nobody let it end");
        hold.let_go();
        assert_eq!(asked.join().unwrap().status, 200);
    });
}

#[test]
fn what_takes_long_is_run_by_others_too() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start_in(lost_after(5), 2);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    cluster.start_worker_at(&join, &[], &hold.at("operand.fused"));
    cluster.wait_for(3);
    let want = cluster.alone(FUSED);
    let copied = || cluster.events().iter().filter(|kind| *kind == "copied").count();
    // A third of the operands never end on the worker that has them.
    let answer = |sql: &str| {
        let before = copied();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.query(sql));
            until("it runs elsewhere", PATIENCE, || asked.is_finished() || copied() > before);
            // The operand that combines all others may be placed on the worker that is held.
            hold.let_go();
            asked.join().unwrap()
        })
    };
    let got = answer(FUSED);
    assert_eq!((got.status, got.body), (200, want));
    assert!(copied() > 0, "{:?}", cluster.events());
    hold.close();
    let told = answer(&format!("EXPLAIN ANALYZE {FUSED}")).body;
    assert!(told.contains(" orders copied") && !told.contains(" 0 orders copied"), "{told}");
    cluster.is_quiet("what copies left");
}

#[test]
fn a_worker_that_joins_in_the_middle_gets_work() {
    if never_fails() {
        return;
    }
    let mut cluster = Cluster::start_in(lost_after(5), 0);
    let (hold, join) = (Hold::new(&cluster.path("")), cluster.join.clone());
    // In the first of several steps.
    let fail = format!("{}@10", hold.at("operand.fused"));
    (0..2).for_each(|_| cluster.start_worker_at(&join, &[], &fail));
    cluster.wait_for(2);
    let sql = "SELECT sum((x - mean(x, 0)) / std(x, 0), 1)[0:600:100] AS s FROM (SELECT random_normal([600, 1600], seed => 2, chunks => [100, 100]) AS x) t";
    let want = cluster.alone(sql);
    let http = cluster.http();
    let asked = std::thread::spawn(move || query_at(&http, sql));
    cluster.until_some_work(2, || asked.is_finished());
    cluster.start_worker(&[]);
    cluster.wait_for(3);
    hold.let_go();
    let got = asked.join().unwrap();
    assert_eq!((got.status, got.body), (200, want));
    let late = cluster.workers[2].name.clone();
    until("who came has worked", PATIENCE, || {
        let alive = cluster.alive();
        alive.iter().any(|w| w["name"] == *late && w["operands"].as_u64().unwrap() > 0)
    });
}

#[test]
fn what_a_lost_worker_had_is_made_again_and_nothing_else() {
    // Lines are sorted twice, and each line of the second sort needs all lines of the first. A worker has eight of the
    // first 24 blocks. It dies at the fourth block of the second sort, when the others still need its blocks of the
    // first.
    let sql = "SELECT sum(sort(rechunk(transpose(sort(x, axis => 1)), chunks => [20, 480]), axis => 1)[:, 0]) AS s FROM (SELECT random_normal([480, 480], seed => 1, chunks => [20, 480]) AS x) t";
    let (_, want, calm) = Cluster::start_in(patient(), 3).watched(sql).unwrap();
    assert_eq!((calm.workers, calm.lost, calm.again), (3, 0, 0), "{calm:?}");
    let fails = failing_in(lost_after(5), "128MiB", 2, 1, "operand.sort=abort@12");
    let Some(cluster) = fails else { return };
    let (state, answer, ran) = cluster.watched(sql).unwrap();
    assert_eq!((&*state, &answer), ("FINISHED", &want));
    assert_eq!(ran.lost, 1, "{ran:?}");
    assert!(ran.again > 0, "{ran:?}");
    ran.is_bounded(&calm, 1, false);
    for (stage, (ran_now, calm_now)) in ran.stages.iter().zip(&calm.stages).enumerate() {
        // Of each stage a third was lost at most. Both others make it again if their orders needed it at that moment.
        let most = calm_now + 2 * (calm_now.div_ceil(3) + 1);
        assert!(*ran_now <= most, "stage {stage}: {ran_now} of {calm_now}; {ran:?} {calm:?}");
    }
    cluster.is_quiet("what is left on workers");
}

#[test]
fn a_worker_that_leaves_in_the_middle_hands_over_and_nothing_is_recomputed() {
    // As above, each line of the second sort needs all lines of the first. Each sort takes a tenth of a second longer,
    // so that the worker leaves while the others sort the chunks that they fetch from it.
    let sql = "SELECT sum(sort(rechunk(transpose(sort(x, axis => 1)), chunks => [20, 480]), axis => 1)[:, 0]) AS s FROM (SELECT random_normal([480, 480], seed => 1, chunks => [20, 480]) AS x) t";
    let fails = failing_in(patient(), "128MiB", 0, 3, "operand.sort=sleep");
    let Some(mut cluster) = fails else { return };
    let (_, want, calm) = cluster.watched(sql).unwrap();
    assert_eq!((calm.workers, calm.lost, calm.again), (3, 0, 0), "{calm:?}");
    let (state, answer, ran) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| cluster.watched(sql).unwrap());
        // The first half of the operands are the first sorts.
        let is_half_done = || {
            let all = cluster.ask("GET", "/v1/statements", "").unwrap().json();
            let mut all = all["statements"].as_array().unwrap().iter();
            all.any(|s| {
                let of = |what: &str| s["progress"]["operands"][what].as_u64().unwrap_or(0);
                s["state"] == "RUNNING" && of("total") > 0 && 2 * of("done") >= of("total")
            })
        };
        until("half is done", PATIENCE, || asked.is_finished() || is_half_done());
        signal(&cluster.workers[0], nix::sys::signal::Signal::SIGTERM);
        asked.join().unwrap()
    });
    assert_eq!((&*state, &answer), ("FINISHED", &want));
    assert_eq!((ran.lost, ran.again), (0, 0), "{ran:?}");
    assert!(ran.handed_over > 0, "{ran:?}; {:?}", cluster.events());
    // The worker left without waiting for its 30 s.
    let left = Instant::now();
    assert!(cluster.workers.remove(0).child.wait().unwrap().success());
    assert!(left.elapsed() < Duration::from_secs(15), "{:?}", left.elapsed());
    for kind in ["draining", "handed_over", "left"] {
        assert!(cluster.events().contains(&kind.to_owned()), "{:?}", cluster.events());
    }
    assert!(!cluster.events().contains(&"lost".to_owned()), "{:?}", cluster.events());
    cluster.is_quiet("what is left on workers");
}

#[test]
fn work_that_waits_for_workers_is_measured() {
    let fails = failing_in(patient(), "128MiB", 0, 1, "operand.fused=sleep");
    let Some(cluster) = fails else { return };
    let metric = |name: &str| -> f64 {
        let metrics = cluster.ask("GET", "/metrics", "").unwrap().body;
        let line = metrics.lines().find_map(|l| l.strip_prefix(&format!("tessera_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    };
    let waiting = || {
        ["operands", "seconds", "operand_seconds_total"]
            .map(|n| metric(&format!("cluster_waiting_{n}")))
    };
    assert_eq!(waiting(), [0.0; 3]);
    // Sixty operands of a tenth of a second and more, on one thread.
    let sql = "SELECT sum(sin(x)) AS s FROM (SELECT random_uniform([6000000], seed => 1, chunks => [100000]) AS x) t";
    let (early, late) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| cluster.query(sql));
        until("operands wait", PATIENCE, || waiting()[0] > 0.0);
        let early = waiting();
        std::thread::sleep(Duration::from_millis(1500));
        let late = waiting();
        assert_eq!(asked.join().unwrap().status, 200);
        (early, late)
    });
    assert!(early[0] <= 200.0 && late[0] < early[0], "{early:?} {late:?}");
    // By now it is known how long operands take.
    let each = late[1] / late[0];
    assert!(each > 0.05 && each < 10.0, "{each} s; {late:?}");
    assert!(late[2] > early[2], "{early:?} {late:?}");
    let idle = waiting();
    assert_eq!(idle[..2], [0.0; 2]);
    assert!(idle[2] >= late[2], "{idle:?} {late:?}");
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(waiting(), idle, "what is over does not wait");
    assert_eq!(cluster.told()["waiting_operands"], 0);
}

#[test]
fn chunks_are_compressed_by_choice() {
    let sql = "SELECT max(x * transpose(x)) AS s FROM (SELECT cumsum(reshape(arange(1000000), [1000, 1000]), 1) AS x) t";
    let sql = format!("SET tessera.chunk_bytes_target = '64KiB'; {sql}");
    let mut all = Vec::new();
    for codec in ["none", "lz4", "zstd"] {
        let environment = vec![("TESSERA_CHUNK_COMPRESSION".into(), codec.into())];
        let cluster = Cluster::start_in(environment, 2);
        let got = cluster.query(&sql);
        assert_eq!((got.status, &got.body), (200, &cluster.alone(&sql)), "{codec}");
        let count =
            |what: &str| -> u64 { cluster.alive().iter().map(|w| w[what].as_u64().unwrap()).sum() };
        cluster.is_heard();
        // Half of the chunks of 8 MB are fetched, whatever they have on the wire.
        assert!(count("fetched_bytes") > 4_000_000, "{codec}: {:#?}", cluster.alive());
        all.push(count("served_bytes"));
    }
    assert!(all[0] > 4_000_000 && all[1..].iter().all(|n| *n < all[0] * 3 / 4), "{all:?}");
}
