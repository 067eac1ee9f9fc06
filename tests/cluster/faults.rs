//! Workers that die, disks and stores that fail.

use super::{Cluster, PATIENCE, Party, STATEMENTS, alone, failing, failing_with, signal};
use crate::common::{number, until};
use crate::s3::{KEY, S3, SECRET};
use serde_json::Value;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

#[test]
fn a_statement_that_kills_workers_is_ended_and_no_other() {
    let Some(cluster) = failing(0, 5, "operand.sort=abort") else { return };
    let want = alone(&cluster);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut n = 0;
            while !is_over.load(SeqCst) || n < 4 {
                let (sql, (want, _)) = (STATEMENTS[n % 4], &want[n % 4]);
                let got = cluster.query(sql);
                assert_eq!((got.status, &got.body), (200, want), "{sql}");
                n += 1;
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let poison = cluster.query(
            "SELECT sort(x)[0] AS s FROM (SELECT random_normal([9000], seed => 1, chunks => [9000]) AS x) t",
        );
        is_over.store(true, SeqCst);
        assert!(poison.status >= 400, "{}", poison.body);
        assert_eq!(poison.code(), "poison", "{}", poison.body);
        assert!(poison.body.contains("3 workers died"), "{}", poison.body);
        others.join().unwrap();
    });
    assert_eq!(cluster.alive().len(), 2, "{}", cluster.told());
    assert!(cluster.events().contains(&"poison".to_owned()));
    cluster.is_quiet("what a poisonous statement left");
}

#[test]
fn a_statement_that_every_worker_dies_of_is_ended() {
    let Some(mut cluster) = failing(0, 0, "") else { return };
    (0..3).for_each(|_| cluster.start_supervised("operand.sort=abort"));
    cluster.wait_for(3);
    let sound = "SELECT sum(sin(x) * cos(x)) AS s FROM (SELECT random_uniform([30000000], seed => 1, chunks => [500000]) AS x) t";
    let want = cluster.alone(sound);
    let poison = "SELECT sum(sort(x, axis => 1)[:, 0]) AS s FROM (SELECT random_normal([960, 3000], seed => 1, chunks => [30, 3000]) AS x) t";
    let lost = |cluster: &Cluster| cluster.events().iter().filter(|kind| *kind == "lost").count();
    // By itself, and while all workers work for another statement too, which need not kill any more to be innocent.
    for beside in [false, true] {
        let before = lost(&cluster);
        std::thread::scope(|scope| {
            let other = beside.then(|| scope.spawn(|| cluster.query(sound)));
            std::thread::sleep(Duration::from_millis(400));
            let got = cluster.query(poison);
            assert_eq!(got.code(), "poison", "{}", got.body);
            assert!(got.body.contains(" workers died"), "{}", got.body);
            if let Some(other) = other {
                let got = other.join().unwrap();
                assert_eq!((got.status, &got.body), (200, &want));
            }
        });
        // All three at once may be a rack that restarts; two more are no accident.
        let died = lost(&cluster) - before;
        assert!((3..=7).contains(&died), "{died}: {:?}", cluster.events());
        cluster.wait_for(3);
    }
    cluster.is_quiet("what two poisonous statements left");
}

/// A query that needs more memory than three workers of 16 MiB have.
const LARGE: &str = "SELECT sum(abs(x + transpose(x))) AS s FROM (SELECT cumsum(random_uniform([3000, 3000], \
    seed => 5, chunks => [500, 500]), 1) AS x) t";

#[test]
fn disks_that_are_slow_or_full() {
    let all = [("spill.write=sleep", 1), ("spill.write=enospc", 1), ("spill.write=enospc", 3)];
    let mut want = None;
    for (fail, of) in all {
        let Some(cluster) = failing_with("16MiB", 3 - of, of, fail) else { return };
        let want = want.get_or_insert_with(|| cluster.alone(LARGE));
        let (is_over, mut spilled) = (AtomicBool::new(false), false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let got = cluster.query(LARGE);
                is_over.store(true, SeqCst);
                // A disk that is full ends the statement as it does on one machine, if it is needed.
                let is_right = got.status == 200 && got.body == *want && of < 3;
                let is_told = got.status >= 400
                    && fail.ends_with("enospc")
                    && got.code() == "scratch_full"
                    && got.body.contains("(worker ");
                assert!(is_right || is_told, "{fail} on {of}: {}", got.body);
            });
            while !is_over.load(SeqCst) {
                let bytes = |w: &Value| w["spilled_bytes"].as_u64().unwrap();
                spilled |= cluster.alive().iter().any(|w| bytes(w) > 0);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(spilled, of < 3, "{fail} on {of}");
        assert_eq!(cluster.query(STATEMENTS[1]).status, 200);
        cluster.is_quiet("what is left on workers");
    }
}

#[test]
fn a_store_that_fails_now_and_then_costs_time_only() {
    let s3 = S3::random(number("TESSERA_SEED").unwrap_or(20_261_123), 0.1);
    crate::slt::copy(std::path::Path::new("tests/data/cf"), &s3.path("cf"));
    let cluster = Cluster::start_in(s3.environment(Some((KEY, SECRET))), 3);
    for sql in [
        "SELECT mean(t2m, 0)[0, 0:4] AS m FROM 'AT/air.zarr'",
        "SELECT sum((precip - mean(precip, 0)) / std(precip, 0), 0)[0, 0:4] AS m FROM 'AT/air.zarr'",
        "SELECT max(precip + t2m, [1, 2])[0:4] AS m FROM 'AT/air.zarr'",
    ] {
        let want = cluster.alone(&sql.replace("AT", "tests/data/cf"));
        let got = cluster.query(&sql.replace("AT", "s3://bkt/cf"));
        assert_eq!((got.status, &got.body), (200, &want), "{sql}");
    }
    assert!(s3.faults() > 0);
    cluster.is_quiet("what is left on workers");
}

#[test]
fn a_supervisor_starts_what_dies() {
    let cluster = Cluster::start(0);
    let child = cluster
        .command()
        .args(["worker", "--scheduler", &cluster.join, "--name", "w"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut supervisor = Party { child, name: "supervisor".into() };
    cluster.wait_for(1);
    let pid = |cluster: &Cluster| cluster.alive()[0]["pid"].as_i64().unwrap() as i32;
    let first = pid(&cluster);
    assert_ne!(first, supervisor.child.id() as i32);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
    let is_another = |cluster: &Cluster, than: i32| {
        cluster.alive().first().is_some_and(|w| w["pid"].as_i64() != Some(than.into()))
    };
    until("another worker is there", PATIENCE, || is_another(&cluster, first));
    // By a call too.
    let second = pid(&cluster);
    let told = cluster.ask("POST", "/v1/cluster/restart", "").unwrap();
    assert_eq!(told.json()["restarted"], 1, "{}", told.body);
    until("one more is there", PATIENCE, || is_another(&cluster, second));
    signal(&supervisor, nix::sys::signal::Signal::SIGTERM);
    assert!(supervisor.child.wait().unwrap().success());
    cluster.wait_for(0);
    assert!(cluster.events().contains(&"left".to_owned()), "{:?}", cluster.events());
}
