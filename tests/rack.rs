//! Faults of several workers at once: a rack that restarts, a connection between workers that is cut, a worker that is
//! stopped, a worker that cannot get the memory that it was promised.

use crate::cluster::{Cluster, failing, free_port, lost_after, never_fails, signal};
use crate::common::{Flow, Hold, carry, until};
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP};
use nix::unistd::Pid;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// A statement that all workers work on at the same time.
const LONG: &str = "SELECT sum(sin(x) * cos(x)) AS s FROM (SELECT random_uniform([20000000], seed => 1, \
    chunks => [500000]) AS x) t";

/// A statement for which workers have to exchange chunks.
const SORT: &str = "SELECT sum(sort(rechunk(transpose(sort(x, axis => 1)), chunks => [20, 240]), axis => 1)[:, 0]) \
    AS s FROM (SELECT random_normal([240, 240], seed => 1, chunks => [20, 240]) AS x) t";

/// Starts workers that are held up in their operands.
fn start_held(cluster: &mut Cluster, workers: usize, hold: &Hold) {
    let join = cluster.join.clone();
    (0..workers).for_each(|_| cluster.start_worker_at(&join, &[], &hold.at("operand.fused")));
}

#[test]
fn a_rack_that_restarts_is_no_poison() {
    if never_fails() {
        return;
    }
    // A worker that is only slow is not to be counted as lost.
    let mut cluster = Cluster::start_in(lost_after(5), 0);
    let hold = Hold::new(&cluster.path(""));
    start_held(&mut cluster, 3, &hold);
    cluster.wait_for(3);
    let want = cluster.alone(LONG);
    let http = cluster.http();
    let asked = std::thread::spawn(move || crate::cluster::query_at(&http, LONG));
    for is_last in [false, true] {
        cluster.until_some_work(1, || asked.is_finished());
        cluster.workers.iter().for_each(|worker| signal(worker, SIGKILL));
        cluster.workers.clear();
        cluster.wait_for(0);
        if is_last {
            hold.let_go();
        }
        start_held(&mut cluster, 3, &hold);
    }
    let got = asked.join().unwrap();
    assert_eq!((got.status, &got.body), (200, &want));
    let events = cluster.events();
    assert_eq!(events.iter().filter(|kind| *kind == "lost").count(), 6, "{events:?}");
    assert!(!events.contains(&"poison".to_owned()), "{events:?}");
    assert!(events.contains(&"waiting".to_owned()), "{events:?}");
    cluster.wait_for(3);
    cluster.is_quiet("what is left on workers");
}

#[test]
fn a_statement_that_kills_the_only_worker_is_poison() {
    let Some(mut cluster) = failing(0, 0, "") else { return };
    cluster.start_supervised("operand.sort=abort");
    cluster.wait_for(1);
    let got = cluster.query(SORT);
    assert_eq!(got.code(), "poison", "{}", got.body);
    assert!(got.body.contains("3 workers died"), "{}", got.body);
    cluster.wait_for(1);
}

#[test]
fn nobody_is_waited_for_longer_than_is_said() {
    if never_fails() {
        return;
    }
    let environment = vec![("TESSERA_WORKER_WAIT".to_owned(), "1".to_owned())];
    let mut cluster = Cluster::start_in(environment, 0);
    let hold = Hold::new(&cluster.path(""));
    start_held(&mut cluster, 2, &hold);
    cluster.wait_for(2);
    let http = cluster.http();
    let asked = std::thread::spawn(move || crate::cluster::query_at(&http, LONG));
    cluster.until_some_work(2, || asked.is_finished());
    cluster.workers.iter().for_each(|worker| signal(worker, SIGKILL));
    cluster.workers.clear();
    let since = Instant::now();
    let got = asked.join().unwrap();
    assert_eq!((got.status, &*got.code()), (503, "worker_lost"), "{}", got.body);
    assert!(got.body.contains("none came for 1 s"), "{}", got.body);
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

/// The treatment of processes that a gate stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bar {
    /// Their connections are closed.
    Closed,
    /// Nothing comes through: a firewall that drops.
    Silent,
}

/// A way to an address on which some processes are stopped.
struct Gate {
    address: String,
    barred: Arc<Mutex<(Bar, Vec<u32>)>>,
    is_gone: Arc<std::sync::atomic::AtomicBool>,
}

impl Gate {
    fn new(to: String) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let barred = Arc::new(Mutex::new((Bar::Closed, Vec::new())));
        let is_gone = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (watched, gone) = (barred.clone(), is_gone.clone());
        std::thread::spawn(move || {
            while !gone.load(std::sync::atomic::Ordering::SeqCst) {
                let Ok((near, from)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let Ok(far) = TcpStream::connect(&to) else { continue };
                near.set_nonblocking(false).unwrap();
                let socket = socket(from.port(), address.port());
                let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (a, b) in [(near, far), (ends.1, ends.0)] {
                    let (watched, socket) = (watched.clone(), socket.clone());
                    std::thread::spawn(move || carry(a, b, || verdict(&watched, &socket)));
                }
            }
        });
        Gate { address: address.to_string(), barred, is_gone }
    }

    fn bar(&self, how: Bar, whom: &[u32]) {
        *self.barred.lock().unwrap() = (how, whom.to_vec());
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.is_gone.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// The name of the socket that goes from a port of this machine to another one.
fn socket(from: u16, to: u16) -> String {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |field: Option<&str>| {
        let hex = field.and_then(|f| f.rsplit_once(':')).map(|(_, port)| port);
        hex.and_then(|hex| u16::from_str_radix(hex, 16).ok())
    };
    let inode = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let ends = (port(fields.next()), port(fields.next()));
        (ends == (Some(from), Some(to))).then(|| fields.nth(6).unwrap_or_default().to_owned())
    });
    format!("socket:[{}]", inode.unwrap_or_default())
}

/// The treatment of the bytes of a socket.
fn verdict(barred: &Mutex<(Bar, Vec<u32>)>, socket: &str) -> Flow {
    let (how, whom) = barred.lock().unwrap().clone();
    let is_of = |pid: &u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut names = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        names.any(|name| name.to_str() == Some(socket))
    };
    match how {
        _ if !whom.iter().any(is_of) => Flow::On,
        Bar::Closed => Flow::End,
        Bar::Silent => Flow::Wait,
    }
}

#[test]
fn workers_that_do_not_reach_each_other_have_the_server() {
    let mut cluster = Cluster::start(0);
    let join = cluster.join.clone();
    let gates = [free_port(), free_port()].map(|port| {
        let gate = Gate::new(format!("127.0.0.1:{port}"));
        let listen = format!("127.0.0.1:{port}");
        cluster.start_worker_at(&join, &["--listen", &listen, "--advertise", &gate.address], "");
        gate
    });
    cluster.wait_for(2);
    let pids: Vec<u32> = cluster.workers.iter().map(|w| w.child.id()).collect();
    let want = cluster.alone(SORT);
    let explain = format!("EXPLAIN ANALYZE {SORT}");
    let lacks = |cluster: &Cluster| {
        let all = cluster.alive();
        all.iter().filter(|w| w["apart"].as_array().is_some_and(|a| !a.is_empty())).count()
    };
    // One direction closed, then both silent, as by a firewall that drops packets.
    for (how, ways) in [(Bar::Closed, 1), (Bar::Silent, 2)] {
        let barred = [&pids[1..2], if ways == 2 { &pids[..1] } else { &[] }];
        gates.iter().zip(barred).for_each(|(gate, whom)| gate.bar(how, whom));
        let since = Instant::now();
        let got = cluster.query(SORT);
        assert_eq!((got.status, &got.body), (200, &want), "{how:?}");
        // A route that is cut costs some six seconds: for each worker once, at the same time.
        assert!(since.elapsed() < Duration::from_secs(20), "{how:?}: {:?}", since.elapsed());
        // Once it is known it costs nothing.
        let since = Instant::now();
        let told = cluster.query(&explain).body;
        assert!(told.contains("passed on by the server"), "{told}");
        assert!(told.contains(" 0 lost"), "{told}");
        assert!(since.elapsed() < Duration::from_secs(5), "{how:?}: {:?}", since.elapsed());
        until("who does not reach whom is told", PATIENCE, || lacks(&cluster) == ways);
        let shown = cluster.query("SHOW WORKERS").body;
        assert!(shown.contains("it does not reach worker "), "{shown}");
        assert!(cluster.events().contains(&"apart".to_owned()), "{:?}", cluster.events());
        gates.iter().for_each(|gate| gate.bar(how, &[]));
        until("they reach each other again", PATIENCE, || lacks(&cluster) == 0);
        let told = cluster.query(&explain).body;
        assert!(!told.contains("passed on by the server"), "{told}");
    }
    assert_eq!(cluster.alive().len(), 2);
    cluster.is_quiet("what is left on workers");
}

#[test]
fn a_restart_kills_what_does_not_answer() {
    let mut cluster = Cluster::start(0);
    (0..2).for_each(|_| cluster.start_supervised(""));
    cluster.wait_for(2);
    let pids = |cluster: &Cluster| -> Vec<i64> {
        cluster.alive().iter().map(|w| w["pid"].as_i64().unwrap()).collect()
    };
    let before = pids(&cluster);
    let stopped = Pid::from_raw(before[0] as i32);
    let is_there = || nix::sys::signal::kill(stopped, None).is_ok();
    // One worker is stopped before it can learn of the restart; the other one learns of it.
    nix::sys::signal::kill(stopped, SIGSTOP).unwrap();
    let told = cluster.ask("POST", "/v1/cluster/restart", "").unwrap();
    assert_eq!(told.json()["restarted"], 2, "{}", told.body);
    let is_new = || {
        let now = pids(&cluster);
        now.len() == 2 && now.iter().all(|p| !before.contains(p))
    };
    let since = Instant::now();
    while !is_new() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
    }
    let done = is_new();
    if !done {
        // Even if the test fails, no stopped process may remain.
        let _ = nix::sys::signal::kill(stopped, SIGCONT);
    }
    assert!(done, "{:?} {:?}", pids(&cluster), cluster.events());
    until("the process that stood still is gone", PATIENCE, || !is_there());
    assert!(cluster.events().contains(&"killed".to_owned()), "{:?}", cluster.events());
    let got = cluster.query(SORT);
    assert_eq!((got.status, got.body), (200, cluster.alone(SORT)));
}

#[test]
fn a_worker_that_cannot_get_its_memory_reports_it() {
    // Of a debug build the program alone is some hundred MiB.
    let mut cluster = Cluster::start(1);
    let pid = cluster.alive()[0]["pid"].clone();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mapped = status.lines().find_map(|l| l.strip_prefix("VmSize:")).unwrap();
    let mapped: u64 = mapped.trim().trim_end_matches(" kB").parse().unwrap();
    cluster.workers.clear();
    cluster.wait_for(0);
    cluster.start_narrow(mapped + (512 << 10), "2GiB");
    cluster.wait_for(1);
    let pid = cluster.alive()[0]["pid"].clone();
    // As one operand, this needs more than half of the remaining address space, or more than all of it.
    let large = "SELECT det(x) AS s FROM (SELECT random_normal([6000, 6000], seed => 1) AS x) t";
    let got = cluster.query(large);
    assert_eq!((got.status, &*got.code()), (413, "memory_exceeded"), "{}", got.body);
    // Many small ones have their turn, one after the other.
    let small = "SELECT sum(sin(x)) AS s FROM (SELECT random_normal([4000000], seed => 1, chunks => [250000]) AS x) t";
    for sql in [small, SORT] {
        let got = cluster.query(sql);
        assert_eq!((got.status, got.body), (200, cluster.alone(sql)));
    }
    assert_eq!(cluster.alive()[0]["pid"], pid, "{:?}", cluster.events());
    cluster.is_quiet("what is left on the worker");
}
