//! Random faults of workers and of the server while statements run.
//!
//! The short run is a part of the suite; `TESSERA_CLUSTER_RUNS=300 cargo test --release --test tests cluster::chaos --
//! --nocapture` is the long one, and `TESSERA_SEED=… TESSERA_CLUSTER_RUNS=1` plays one of its runs again.

use super::wires::{CUT, HELD, OPEN};
use super::{Cluster, STATEMENTS, signal, timed};
use crate::cluster_rows;
use crate::common::{Random, number};
use std::time::{Duration, Instant};

/// A fault of a worker.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    /// The worker is stopped for this number of milliseconds, then continues.
    Stop(u64),
    /// Asked to leave.
    Leave,
    /// Its connections are cut for this number of milliseconds.
    Cut(u64),
    /// No bytes pass its connections for this number of milliseconds.
    Hold(u64),
    /// The server dies and comes back.
    Server,
}

/// Statements of tensors, and some of rows.
fn statements(cluster: &Cluster) -> Vec<String> {
    let table = cluster_rows::files(cluster);
    let rows = cluster_rows::statements(&table).into_iter().take(3);
    STATEMENTS.map(String::from).into_iter().chain(rows).collect()
}

/// Runs statements on three workers, and has something happen in the middle.
fn chaos_run(seed: u64) -> String {
    use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
    let mut random = Random(seed);
    let mut cluster = Cluster::start(2);
    let wires = cluster.start_wired_worker();
    cluster.wait_for(3);
    let statements = statements(&cluster);
    let want: Vec<_> = statements.iter().map(|sql| timed(&cluster, sql)).collect();
    let faults = 1 + usize::from(random.unit() < 0.34);
    let mut told = Vec::new();
    for _ in 0..faults {
        let fault = match random.next() % 12 {
            0..=4 => Fault::Kill,
            5 | 6 => Fault::Stop(random.next() % 4000),
            7 => Fault::Leave,
            8 => Fault::Cut(random.next() % 4000),
            9 | 10 => Fault::Hold(random.next() % 4000),
            _ => Fault::Server,
        };
        let at = (random.next() % statements.len() as u64) as usize;
        let (_, answer, calm) = cluster.watched(&statements[at]).unwrap();
        // In the middle, most often.
        let wait = want[at].1.mul_f64(1.2 * random.unit());
        let mut victim = (random.next() % cluster.workers.len() as u64) as usize;
        if let Fault::Cut(_) | Fault::Hold(_) = fault {
            // If it was killed before, its wires lead nowhere, and nothing happens.
            victim = cluster.workers.iter().position(|w| w.name == "w3").unwrap_or(victim);
        }
        told.push(format!("{fault:?} of {} after {wait:?}", cluster.workers[victim].name));
        let begun = Instant::now();
        let mut end = String::new();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| cluster.watched(&statements[at]));
            std::thread::sleep(wait);
            let worker = &cluster.workers[victim];
            match fault {
                Fault::Kill => signal(worker, SIGKILL),
                Fault::Leave => signal(worker, SIGTERM),
                Fault::Stop(ms) => {
                    signal(worker, SIGSTOP);
                    std::thread::sleep(Duration::from_millis(ms));
                    signal(worker, SIGCONT);
                }
                Fault::Server => {
                    signal(cluster.server.as_ref().unwrap(), SIGKILL);
                }
                Fault::Cut(ms) | Fault::Hold(ms) => {
                    let state = if matches!(fault, Fault::Cut(_)) { CUT } else { HELD };
                    wires.iter().for_each(|w| w.set(state));
                    std::thread::sleep(Duration::from_millis(ms));
                    wires.iter().for_each(|w| w.set(OPEN));
                }
            }
            let reply = asked.join().unwrap();
            match (fault, reply) {
                (Fault::Server, _) => {}
                (_, Ok((state, body, ran))) => {
                    assert_eq!((&*state, &body), ("FINISHED", &answer), "{}", statements[at]);
                    let comes_back = !matches!(fault, Fault::Kill | Fault::Leave);
                    ran.is_bounded(&calm, 1, comes_back);
                    end = format!("{state}, {} of {} again", ran.again, calm.operands());
                }
                (_, Err(e)) => panic!("{}: {e}", statements[at]),
            }
        });
        told.push(format!("{end} in {:.1} s", begun.elapsed().as_secs_f64()));
        match fault {
            Fault::Kill | Fault::Leave => {
                let _ = cluster.workers.remove(victim).child.wait();
                cluster.start_worker(&[]);
            }
            Fault::Stop(_) | Fault::Cut(_) | Fault::Hold(_) => {}
            Fault::Server => {
                cluster.server = None;
                cluster.start_server();
            }
        }
        cluster.wait_for(3);
        // Everything is as it should be at once.
        let got = cluster.query(&statements[0]);
        assert_eq!((got.status, &got.body), (200, &want[0].0), "afterwards");
        cluster.is_quiet("what is left on workers");
    }
    told.join(", ")
}

#[test]
fn chaos() {
    let seed = number("TESSERA_SEED").unwrap_or(20_261_123);
    let runs = number("TESSERA_CLUSTER_RUNS").unwrap_or(3);
    for run in 0..runs {
        let seed = seed + run;
        println!("cluster: TESSERA_SEED={seed} TESSERA_CLUSTER_RUNS=1");
        let told = chaos_run(seed);
        println!("cluster: {told}");
    }
}
