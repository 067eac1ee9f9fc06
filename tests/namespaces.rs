//! A server and three workers in network namespaces of their own. Packets between them take 20 ms, one in a hundred is
//! lost, and links are cut in one direction or both, while processes are killed, stopped or asked to leave.
//!
//! The test needs root, `ip` and `/dev/net/tun`:
//! `TESSERA_NETWORK_RUNS=100 cargo test --test tests namespaces:: -- --ignored --nocapture`;
//! `TESSERA_SEED=… TESSERA_NETWORK_RUNS=1` repeats one of its runs.

mod router;

use crate::chaos::work::{Work, logs};
use crate::chaos::world::{Reply, asked_at, but_for_epochs, left_below};
use crate::cluster::{Cluster, STATEMENTS, environment_of, signal};
use crate::common::{Random, certified_for, names, number};
use nix::sys::signal::Signal::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use router::{Network, PARTIES, address};
use serde_json::json;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// The longest that a statement may take, whatever happens.
const PATIENCE: Duration = Duration::from_secs(240);
/// The longest that a server may take for an answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The address at which the server listens for workers.
const JOIN: &str = "10.77.0.1:50050";
/// Concurrent clients, and below, the statements of each, one after the other.
const CLIENTS: u64 = 2;
const ASKS: u64 = 3;

/// Statements in which workers exchange megabytes.
const LONG: [&str; 2] = [
    "SELECT sum(sort(rechunk(transpose(sort(x, axis => 1)), chunks => [20, 480]), axis => 1)[:, 0]) AS s FROM (SELECT random_normal([480, 480], seed => 1, chunks => [20, 480]) AS x) t",
    "SELECT max(cumsum(cumsum(x, 0), 1), 0)[0:5] AS s FROM (SELECT random_normal([800, 800], seed => 6, chunks => [100, 80]) AS x) t",
];

/// An action on processes, or on the links between parties; party 0 is the server.
#[derive(Debug, Clone, Copy)]
enum Action {
    Cut(usize, usize),
    Mend(usize, usize),
    /// SIGKILL of a worker.
    Kill(usize),
    Stop(usize),
    Resume(usize),
    /// SIGTERM.
    Leave(usize),
    /// The server dies and comes back.
    Server,
}

/// Draws actions, with their times in milliseconds from the beginning of the statements.
fn draw(random: &mut Random) -> Vec<(u64, Action)> {
    let mut up_to = |most: usize| (random.next() % most as u64) as usize;
    let mut all = Vec::new();
    let mut victims = Vec::new();
    // Sometimes two things happen at once.
    for _ in 0..1 + usize::from(up_to(3) == 0) {
        let begin = up_to(3000) as u64;
        let a = 1 + up_to(PARTIES - 1);
        let b = 1 + (a + up_to(PARTIES - 2)) % (PARTIES - 1);
        let mut ways = match up_to(20) {
            0..=6 => vec![(a, b)],
            7 | 8 => vec![(a, 0)],
            9 | 10 => vec![(0, a)],
            11 | 12 => vec![(a, b), (b, a)],
            13 => (0..PARTIES).filter(|p| *p != a).flat_map(|p| [(a, p), (p, a)]).collect(),
            n if victims.contains(&a) => vec![(a, n % 2)],
            n => {
                victims.push(a);
                let pause = up_to(6000) as u64;
                all.extend(match n {
                    14 | 15 => vec![(begin, Action::Kill(a))],
                    16 | 17 => vec![(begin, Action::Stop(a)), (begin + pause, Action::Resume(a))],
                    18 => vec![(begin, Action::Leave(a))],
                    _ => vec![(begin, Action::Server)],
                });
                Vec::new()
            }
        };
        ways.retain(|(from, to)| from != to);
        let end = begin + up_to(10_000) as u64;
        for (from, to) in ways {
            all.extend([(begin, Action::Cut(from, to)), (end, Action::Mend(from, to))]);
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// A cluster whose parties are apart.
struct World {
    cluster: Cluster,
    /// The workers' parties, as `cluster.workers`.
    parties: Vec<usize>,
    _certificates: tempfile::TempDir,
}

impl World {
    fn start(network: &Network) -> World {
        let certificates = tempfile::tempdir().unwrap();
        let addresses: Vec<String> = (0..PARTIES).map(address).collect();
        let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut environment = environment_of(certified_for(&all), certificates.path(), "party");
        environment.push(("TESSERA_WORKER_TIMEOUT".into(), "5".into()));
        let cluster = Cluster::none_yet(None, environment, JOIN);
        std::fs::create_dir(cluster.path("output")).unwrap();
        let mut world = World { cluster, parties: Vec::new(), _certificates: certificates };
        world.cluster.start_server();
        (1..PARTIES).for_each(|party| world.start_worker(network, party));
        world.cluster.wait_for(PARTIES - 1);
        world
    }

    fn start_worker(&mut self, network: &Network, party: usize) {
        let by = ["ip", "netns", "exec", network.namespace(party)];
        let listen = format!("{}:0", address(party));
        self.cluster.start_worker_by(&by, &["--listen", &listen]);
        self.parties.push(party);
    }

    fn worker(&self, party: usize) -> usize {
        self.parties.iter().position(|p| *p == party).unwrap()
    }

    /// Performs the drawn actions.
    fn happens(&mut self, network: &Network, all: &[(u64, Action)], begun: Instant) -> String {
        let mut told = Vec::new();
        for (at, action) in all {
            std::thread::sleep(Duration::from_millis(*at).saturating_sub(begun.elapsed()));
            let worker = |party: usize| &self.cluster.workers[self.worker(party)];
            match *action {
                Action::Cut(from, to) => network.cut(from, to, true),
                Action::Mend(from, to) => network.cut(from, to, false),
                Action::Kill(party) => signal(worker(party), SIGKILL),
                Action::Leave(party) => signal(worker(party), SIGTERM),
                Action::Stop(party) => signal(worker(party), SIGSTOP),
                Action::Resume(party) => signal(worker(party), SIGCONT),
                Action::Server => {
                    self.cluster.kill_server();
                    self.cluster.start_server();
                }
            }
            told.push(format!("{action:?} at {:.1} s", begun.elapsed().as_secs_f64()));
        }
        // New workers replace those that died or left.
        for (_, action) in all {
            if let Action::Kill(party) | Action::Leave(party) = *action {
                let at = self.worker(party);
                self.parties.remove(at);
                let _ = self.cluster.workers.remove(at).child.wait();
                self.start_worker(network, party);
            }
        }
        told.join(", ")
    }

    /// Forgets all statements and drops all tensors, and ends all processes: then nothing is left but these outputs.
    fn is_clean(&mut self, outputs: &[String]) {
        let http = self.cluster.http();
        let told = ask(&http, "GET", "/v1/statements", b"").json();
        for s in told["statements"].as_array().unwrap() {
            ask(&http, "DELETE", &format!("/v1/statements/{}", s["id"].as_str().unwrap()), b"");
        }
        let told = ask(&http, "GET", "/v1/tensors", b"").json();
        for t in told["tensors"].as_array().unwrap() {
            ask(&http, "DELETE", &format!("/v1/tensors/{}", t["name"].as_str().unwrap()), b"");
        }
        self.cluster.kill_workers();
        self.cluster.kill_server();
        self.cluster.environment.push(("TESSERA_RESULT_TTL".into(), "1".into()));
        let root = self.cluster.path("");
        let left = || but_for_epochs(left_below(&root, &root));
        // One server forgets the statements; the next one finds that no entry names their cells.
        let is_forgotten = || !left().iter().any(|f| f.starts_with("warehouse/statements/"));
        let is_bare = || left().iter().all(|f| f.starts_with("output/"));
        for is_done in [&is_forgotten as &dyn Fn() -> bool, &is_bare] {
            self.cluster.start_server();
            let begun = Instant::now();
            while !is_done() {
                assert!(begun.elapsed() < PATIENCE, "left: {:#?}", left());
                std::thread::sleep(Duration::from_millis(20));
            }
            self.cluster.kill_server();
        }
        assert_eq!(names(&self.cluster.path("output")), outputs, "outputs");
    }
}

/// The reply of the server, as soon as it responds.
fn ask(http: &str, method: &str, path: &str, body: &[u8]) -> Reply {
    let begun = Instant::now();
    loop {
        match asked_at(http, ANSWER, method, path, "", body) {
            Some(reply) if !matches!(reply.status, 429 | 503) => return reply,
            reply => {
                assert!(begun.elapsed() < PATIENCE, "no answer: {method} {path}: {reply:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Runs a statement to its good end, under a name of its own: its id, and its answer.
fn finished(http: &str, sql: &str, name: &str) -> (String, String) {
    let body = json!({"sql": sql, "wait_ms": 0, "request_id": name}).to_string();
    let reply = ask(http, "POST", "/v1/statements", body.as_bytes());
    let v = reply.json();
    let id = v["id"].as_str().or(v["error"]["statement_id"].as_str());
    let id = id.unwrap_or_else(|| panic!("{sql}: {} {}", reply.status, reply.text())).to_string();
    let (begun, path) = (Instant::now(), format!("/v1/statements/{id}"));
    loop {
        let reply = ask(http, "GET", &format!("{path}?wait_ms=2000"), b"");
        assert_eq!(reply.status, 200, "{id} was acknowledged: {}", reply.text());
        let status = reply.json();
        let state = status["state"].as_str().unwrap_or_default();
        assert!(!matches!(state, "FAILED" | "CANCELLED"), "{sql}: {status}");
        if state == "FINISHED" {
            let reply = ask(http, "GET", &format!("{path}/result?format=json"), b"");
            if reply.status == 200 {
                return (id, reply.text());
            }
            // A server that was started since computes it again.
            assert_eq!(reply.code(), "not_finished", "{id}: {}", reply.text());
        }
        assert!(begun.elapsed() < PATIENCE, "{sql} hangs: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn run(seed: u64, network: &Network, world: &mut World) -> String {
    let mut random = Random(seed);
    let (mut done, mut told) = (Vec::new(), Vec::new());
    let http = world.cluster.http();
    for turn in 0..1 + u64::from(random.unit() < 0.34) {
        let all = draw(&mut random);
        let output = world.cluster.path("output");
        let mut works = Vec::new();
        for number in 0..CLIENTS * ASKS {
            let to = |name: &str| output.join(name).display().to_string();
            works.push(Work::draw(&mut random, turn * 100 + number, &LONG, to));
        }
        let begun = Instant::now();
        let of_client = |(c, works): (usize, &[Work])| {
            let one = |(n, work): (usize, &Work)| {
                let (id, result) = finished(&http, &work.sql, &format!("{turn} {c} {n}"));
                work.is_right(&result);
                (id, result)
            };
            let all: Vec<_> = works.iter().enumerate().map(one).collect();
            (all, format!("{:.1} s", begun.elapsed().as_secs_f64()))
        };
        let (happened, ends) = std::thread::scope(|scope| {
            let (of_client, shares) = (&of_client, works.chunks(ASKS as usize).enumerate());
            let clients: Vec<_> =
                shares.map(|share| scope.spawn(move || of_client(share))).collect();
            let happened = world.happens(network, &all, begun);
            let end = |client: std::thread::ScopedJoinHandle<'_, _>| {
                client.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
            };
            let ends: Vec<(Vec<(String, String)>, String)> = clients.into_iter().map(end).collect();
            (happened, ends)
        });
        let took: Vec<&str> = ends.iter().map(|(_, took)| &**took).collect();
        told.push(format!("{happened}; finished after {}", took.join(" and ")));
        let ends = ends.into_iter().flat_map(|(all, _)| all);
        done.extend(ends.zip(works).map(|((id, result), work)| (id, result, work)));
        network.mend();
        world.cluster.wait_for(PARTIES - 1);
        let got = world.cluster.query(STATEMENTS[0]);
        assert_eq!((got.status, got.body), (200, world.cluster.alone(STATEMENTS[0])), "afterwards");
        world.cluster.is_quiet("what is left on workers");
    }
    let mut outputs = Vec::new();
    for (id, result, work) in &done {
        let again = ask(&http, "GET", &format!("/v1/statements/{id}/result?format=json"), b"");
        assert_eq!((again.status, &again.text()), (200, result), "{id}: {}", work.sql);
        if let Some((read, want)) = work.reads() {
            let (_, got) = finished(&http, &read, &format!("read for {id}"));
            assert_eq!(got.lines().collect::<Vec<_>>(), want, "{}", work.sql);
        }
        work.output_is_right(&world.cluster.path("output"));
        outputs.extend(work.output().map(String::from));
    }
    outputs.sort();
    world.is_clean(&outputs);
    told.join("; ")
}

/// Makes a network, and runs in it.
fn apart(seed: u64) {
    let network = Network::new(seed);
    std::thread::scope(|scope| {
        let network = &network;
        let all = scope.spawn(move || {
            // The clients and the server are one party.
            network.enter(0);
            let begun = Instant::now();
            let mut world = World::start(network);
            let ran = AssertUnwindSafe(|| run(seed, network, &mut world));
            match std::panic::catch_unwind(ran) {
                Ok(told) => {
                    let took = begun.elapsed().as_secs_f64();
                    println!("network: {seed}: {told}; {}; {took:.0} s in all", network.told());
                }
                Err(e) => {
                    println!("network: {}", network.told());
                    println!("{}", logs(&world.cluster.path("logs")));
                    std::panic::resume_unwind(e);
                }
            }
        });
        all.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
    });
}

#[test]
#[ignore = "needs root, ip and /dev/net/tun; docs/testing.md has the command"]
fn statements_finish_in_a_network_that_is_slow_loses_packets_and_is_cut() {
    let first = number("TESSERA_SEED").unwrap_or(20_261_127);
    let mut failed = Vec::new();
    for seed in first..first + number("TESSERA_NETWORK_RUNS").unwrap_or(2) {
        println!("network: TESSERA_SEED={seed} TESSERA_NETWORK_RUNS=1");
        if std::panic::catch_unwind(|| apart(seed)).is_err() {
            println!("network: {seed} FAILED");
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?} failed");
}
