//! Servers that are killed at random moments, again and again, under a mix of statements: acknowledged statements end
//! with the right bits, dropped tensors stay dropped, and no leftovers remain.
//!
//! A run has a seed, which it prints when it fails: `TESSERA_CHAOS_SEED` replays it, `TESSERA_CHAOS_RUNS` asks for more
//! of them, `TESSERA_CHAOS_JOBS` at a time, with the servers of `TESSERA_TEST_BINARY` (a release build);
//! `TESSERA_CHAOS_SHOW` (with `--nocapture`) shows what the servers log.

mod late;
mod points;
pub(crate) mod work;
pub(crate) mod world;

use crate::common::{Random, binary, number, until};
use crate::s3::S3;
use serde_json::{Value, json};
use std::fmt::{Debug, Write as _};
use std::panic::AssertUnwindSafe;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};
use world::{Figures, PATIENCE, World};

/// Clients that ask at the same time.
const CLIENTS: u64 = 2;
/// Stories that each client runs, one after the other.
const STORIES: u64 = 3;
/// Takes a while.
const LONG: &str = "sum(sin(arange(2000000)::float64))";

/// The state that must hold at the end.
#[derive(Default)]
struct Expected {
    /// Statements that are finished, with their answers.
    results: Vec<(String, String)>,
    /// Statements that were stopped.
    cancelled: Vec<String>,
    /// Tensors that exist, with the sum of their cells.
    tensors: Vec<(String, i64)>,
    /// Tensors whose outcome is unknown: whole, or not at all.
    doubtful: Vec<(String, i64)>,
    /// Files of the output.
    outputs: Vec<String>,
}

/// The name of a tensor's cells: uploads are named like their tensor.
fn cells(tensor: &str) -> &str {
    if tensor.starts_with("upload") { tensor } else { "v" }
}

/// One client's life.
struct Client<'a> {
    world: &'a World,
    expected: &'a Mutex<Expected>,
    random: Random,
    /// Makes names.
    number: u64,
}

#[test]
fn what_was_acknowledged_survives_in_a_directory() {
    several(false, 2);
}

#[test]
fn what_was_acknowledged_survives_in_a_bucket_that_fails() {
    several(true, 1);
}

fn several(remote: bool, least: u64) {
    let first = number("TESSERA_CHAOS_SEED").unwrap_or(20_261_122);
    let end = first + number("TESSERA_CHAOS_RUNS").unwrap_or(least);
    let kind = if remote { "bucket" } else { "directory" };
    let figures = Mutex::new(Figures::default());
    each(kind, &(first..end).collect::<Vec<u64>>(), |seed| {
        let of_run = run(*seed, remote);
        figures.lock().unwrap().add(of_run);
    });
    println!("chaos: {kind}: {:?}", figures.lock().unwrap());
}

/// Runs `one` for each of `all`, `TESSERA_CHAOS_JOBS` at a time. All failures are reported at the end.
fn each<T: Debug + Sync>(what: &str, all: &[T], one: impl Fn(&T) + Sync) {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..number("TESSERA_CHAOS_JOBS").unwrap_or(1) {
            scope.spawn(|| {
                while let Some(this) = all.get(next.fetch_add(1, Relaxed)) {
                    let began = Instant::now();
                    println!("chaos: {what}: {this:?} begins");
                    let done = std::panic::catch_unwind(AssertUnwindSafe(|| one(this)));
                    let took = began.elapsed().as_secs_f64();
                    let end = if done.is_ok() { "is as it should be" } else { "FAILED" };
                    println!("chaos: {what}: {this:?} {end}, {took:.1} s");
                    done.unwrap_or_else(|_| failed.lock().unwrap().push(this));
                }
            });
        }
    });
    println!("chaos: {what}: {} in {:.0} s", all.len(), began.elapsed().as_secs_f64());
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{what}: {} of {} failed: {failed:?}", failed.len(), all.len());
}

fn run(seed: u64, remote: bool) -> Figures {
    let world = World::new(binary(), remote.then(|| S3::random(seed, 0.1)));
    assert!(world.start(&[]));
    let expected = Mutex::new(Expected::default());
    let mut random = Random(seed);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|c| {
                let random = Random(random.next());
                let mut client =
                    Client { world: &world, expected: &expected, random, number: c * 1000 };
                scope.spawn(move || (0..STORIES).for_each(|_| client.story()))
            })
            .collect();
        // A statement that was killed with four servers is taken for the reason.
        let kills = 1 + random.next() % 3;
        world.torment(&mut random, kills, || clients.iter().all(|c| c.is_finished()));
        for client in clients {
            if let Err(e) = client.join() {
                std::panic::resume_unwind(e);
            }
        }
    });
    // One more time, with everything at its end.
    world.kill();
    assert!(world.start(&[]));
    let expected = expected.into_inner().unwrap();
    expected.is_so(&world);
    assert!(!remote || world.figures().faults > 0);
    let mut outputs = expected.outputs;
    outputs.sort();
    world.is_clean(&outputs);
    world.figures()
}

impl Expected {
    fn is_so(&self, world: &World) {
        for (id, result) in &self.results {
            assert_eq!(&world.result(id), result, "{id}");
        }
        for id in &self.cancelled {
            assert_eq!(world.end(id)["state"], "CANCELLED", "{id}");
        }
        let there = world.tensors();
        for (name, _) in &self.tensors {
            assert!(there.contains(name), "{name} was acknowledged, and is not among {there:?}");
        }
        for name in &there {
            let known = self.tensors.iter().chain(&self.doubtful).find(|(n, _)| n == name);
            let (_, sum) = known.unwrap_or_else(|| panic!("{name} was dropped, and is there"));
            assert_eq!(
                total(
                    &world
                        .run(
                            &format!("SELECT sum({}) AS s FROM {name}", cells(name)),
                            &format!("sum of {name}")
                        )
                        .1
                ),
                *sum
            );
        }
    }
}

impl Client<'_> {
    fn story(&mut self) {
        self.number += 1;
        match self.random.next() % 11 {
            0 => self.long(),
            10 => self.cancelled(),
            1 => self.script(),
            2 => self.drawn(),
            3 => self.session(),
            4 => self.upload(),
            5 => self.spill(),
            6 => self.read_and_drop(),
            7 | 8 => self.tensor(),
            _ => self.copy(),
        }
    }

    fn name(&self, what: &str) -> String {
        format!("{what}{}", self.number)
    }

    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(self.random.next() % 300));
    }

    /// Runs it to its good end; the answer stays.
    fn keeps(&mut self, sql: &str, what: &str) -> String {
        let (id, result) = self.world.run(sql, &format!("{} {what}", self.number));
        self.stays(&id, &result);
        result
    }

    fn stays(&self, id: &str, result: &str) {
        self.expected.lock().unwrap().results.push((id.into(), result.into()));
    }

    fn is_there(&self, name: &str, sum: i64) {
        self.expected.lock().unwrap().tensors.push((name.into(), sum));
    }

    fn long(&mut self) {
        let sql = format!("SELECT {LONG} AS s");
        // Half of the statements store their chunks, and find them again.
        let result = match self.random.next() % 2 {
            0 => self.keeps(&sql, "long"),
            _ => self.keeps(&format!("SET tessera.durability = 'all'; {sql}"), "long"),
        };
        assert_eq!(result.lines().last(), reference(&sql).lines().last());
    }

    /// Stopped statements remain stopped.
    fn cancelled(&mut self) {
        let endless = "SELECT sum(sin(arange(1000000000000)::float64)) AS s";
        let id = self.world.submit(endless, &format!("{} endless", self.number));
        self.pause();
        let path = format!("/v1/statements/{id}");
        let is_over = || self.world.ask("DELETE", &path, "", b"").json()["state"] == "CANCELLED";
        until("an endless statement is cancelled", PATIENCE, is_over);
        self.expected.lock().unwrap().cancelled.push(id);
    }

    fn script(&mut self) {
        let name = self.name("script");
        let (cells, sum) = self.cells();
        let result = self.keeps(
            &format!(
                "CREATE TENSOR {name} AS SELECT {cells} AS v; SELECT sum(v) AS s FROM {name}; DROP TENSOR {name}"
            ),
            "script",
        );
        let lines: Vec<&str> = result.lines().collect();
        assert_eq!((lines.len(), total(lines[1])), (3, sum), "{result}");
    }

    /// Seeds are drawn once, however often the result is requested.
    fn drawn(&mut self) {
        let result = self.keeps("SELECT random_normal([5]) AS v", "drawn");
        self.pause();
        let again =
            self.world.submit("SELECT random_normal([5]) AS v", &format!("{} drawn", self.number));
        assert_eq!(self.world.result(&again), result);
    }

    /// A session ends with its server; its accepted statements do not.
    fn session(&mut self) {
        for attempt in 0.. {
            let session = self.world.ask("POST", "/v1/sessions", "", b"").json();
            let header = format!("Tessera-Session: {}\r\n", session["id"].as_str().unwrap());
            let ask = |sql: &str| {
                let name = format!("{} {sql} {attempt}", self.number);
                let body = json!({"sql": sql, "wait_ms": 0, "request_id": name}).to_string();
                let reply = self.world.ask("POST", "/v1/statements", &header, body.as_bytes());
                reply.json()["id"].as_str().map(String::from)
            };
            let temp = "CREATE TEMP TENSOR a AS SELECT random_normal([20000]) AS v";
            let Some(made) = ask(temp) else { continue };
            if self.world.end(&made)["state"] != "FINISHED" {
                continue;
            }
            let Some(id) = ask(&format!("SELECT sum(v) AS s, {LONG} AS l FROM a")) else {
                continue;
            };
            // The next server recreates the temp tensor from the records.
            let status = self.world.end(&id);
            if status["error"]["code"] == "unknown_name" {
                // The server that accepted the tensor was killed before the server that has the session.
                continue;
            }
            let result = self.world.result(&id);
            self.stays(&id, &result);
            return;
        }
    }

    fn upload(&mut self) {
        let name = self.name("upload");
        let n = 1000 + self.random.next() % 5000;
        let body = npy(n);
        let sum = (n * (n - 1) / 2) as i64;
        let path = format!("/v1/tensors/{name}");
        let kind = "Content-Type: application/x-npy\r\n";
        match self.world.try_ask("PUT", &path, kind, &body) {
            Some(r) if r.status == 201 => self.is_there(&name, sum),
            Some(r) if !matches!(r.status, 429 | 503) => panic!("{} {}", r.status, r.text()),
            _ => self.expected.lock().unwrap().doubtful.push((name.clone(), sum)),
        }
    }

    /// More than memory holds, each part of it needed for each result.
    fn spill(&mut self) {
        let (x, y) = (self.name("wide"), self.name("tall"));
        let n = 2500_i64;
        let sql = format!(
            "CREATE TENSOR {x} AS SELECT rechunk(reshape(arange({}), [{n}, {n}]), chunks => [100, {n}]) AS v;
             CREATE TENSOR {y} AS SELECT rechunk(v + 1, chunks => [{n}, 50]) AS v FROM {x}",
            n * n
        );
        self.keeps(&sql, "spill");
        let sum = n * n * (n * n - 1) / 2;
        self.is_there(&x, sum);
        self.is_there(&y, sum + n * n);
    }

    /// A statement reads the tensor as it was when the statement began.
    fn read_and_drop(&mut self) {
        let name = self.name("read");
        let (cells, sum) = self.cells();
        self.keeps(&format!("CREATE TENSOR {name} AS SELECT {cells} AS v"), "make");
        let read = format!("SELECT sum(v) AS s, {LONG} AS l FROM {name}");
        let id = self.world.submit(&read, &format!("{} read", self.number));
        let begun =
            |status: &Value| !matches!(status["state"].as_str(), Some("QUEUED" | "PLANNING"));
        while !begun(&self.world.get(&format!("/v1/statements/{id}")).json()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.keeps(&format!("DROP TENSOR {name}"), "drop");
        let result = self.world.result(&id);
        let v: Value = serde_json::from_str(&result).unwrap();
        assert_eq!(v["tensors"][0]["data"], sum, "{result}");
        self.stays(&id, &result);
    }

    /// A tensor is made; it may be replaced, and dropped.
    fn tensor(&mut self) {
        let name = self.name("t");
        let (cells, mut sum) = self.cells();
        self.keeps(&format!("CREATE TENSOR {name} AS SELECT {cells} AS v"), "create");
        let what = self.random.next() % 4;
        if what % 2 == 1 {
            self.pause();
            let (cells, other) = self.cells();
            let replace = format!("CREATE OR REPLACE TENSOR {name} AS SELECT {cells} AS v");
            self.keeps(&replace, "replace");
            sum = other;
        }
        let read = self.keeps(&format!("SELECT sum(v) AS s FROM {name}"), "read");
        assert_eq!(total(&read), sum);
        match what / 2 {
            0 => self.is_there(&name, sum),
            _ => drop(self.keeps(&format!("DROP TENSOR {name}"), "drop")),
        }
    }

    fn copy(&mut self) {
        let (cells, sum) = self.cells();
        let format = ["ZARR", "NPY"][self.random.next() as usize % 2];
        let name = format!("{}.{}", self.name("out"), format.to_lowercase());
        let to = self.world.output(&name);
        self.keeps(&format!("COPY (SELECT {cells} AS v) TO '{to}' STORED AS {format}"), "copy");
        // A file of one array is called as the file.
        let item = if format == "NPY" { self.name("out") } else { "v".into() };
        let read = self.keeps(&format!("SELECT sum({item}) AS s FROM '{to}'"), "read");
        assert_eq!(total(&read), sum);
        // The files of the output at this time.
        let prefix = format!("output/{name}");
        let all = self.world.left().into_iter().filter(|f| f.starts_with(&prefix));
        self.expected.lock().unwrap().outputs.extend(all);
    }

    /// Cells in several chunks, and their sum.
    fn cells(&mut self) -> (String, i64) {
        let (n, k) = (20_000 + self.random.next() % 20_000, self.random.next() % 1000);
        let sum = (n * (n - 1) / 2 + n * k) as i64;
        (format!("rechunk(arange({n}) + {k}, chunks => [3000])"), sum)
    }
}

/// The one number of an answer.
fn total(result: &str) -> i64 {
    let v: Value = serde_json::from_str(result).unwrap_or_else(|e| panic!("{e}: {result}"));
    v["tensors"][0]["data"].as_i64().unwrap_or_else(|| panic!("{result}"))
}

/// `arange(n)` as a file.
fn npy(n: u64) -> Vec<u8> {
    let mut header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({n},), }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.write_char('\n').unwrap();
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    (0..n as i64).for_each(|i| out.extend(i.to_le_bytes()));
    out
}

/// The answer of a process that is not killed.
fn reference(sql: &str) -> &'static str {
    static ANSWER: OnceLock<String> = OnceLock::new();
    ANSWER.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let out = Command::new(binary())
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .args(["query", "--format", "json", sql])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    })
}
