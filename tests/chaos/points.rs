//! Each fail-point once: the server dies there, or the device is full there.

use super::world::{World, own_binary};
use super::{each, number, total};
use crate::common::Random;
use crate::s3::S3;
use serde_json::json;
use std::time::{Duration, Instant};

/// Statements that together reach every fail-point. All except `once` may run again.
const STEPS: [(&str, &str); 8] = [
    ("create", "CREATE OR REPLACE TENSOR t AS SELECT rechunk(arange(6000), chunks => [3000]) AS v"),
    (
        "zarr",
        "COPY (SELECT arange(5) AS v) TO '{out}x.zarr' STORED AS ZARR OPTIONS (overwrite true)",
    ),
    ("npy", "COPY (SELECT arange(5) AS v) TO '{out}x.npy' STORED AS NPY OPTIONS (overwrite true)"),
    ("once", "COPY (SELECT arange(5) AS v) TO '{out}once.zarr' STORED AS ZARR"),
    ("drop", "CREATE OR REPLACE TENSOR u AS SELECT arange(5) AS v; DROP TENSOR u"),
    (
        "durable",
        "SET tessera.durability = 'all'; SELECT sum(cumsum(rechunk(arange(9000), chunks => [3000]))) AS s",
    ),
    (
        "spill",
        "CREATE OR REPLACE TENSOR w AS SELECT rechunk(reshape(arange(6250000), [2500, 2500]), chunks => [100, 2500]) AS v; \
         CREATE OR REPLACE TENSOR s AS SELECT rechunk(v + 1, chunks => [2500, 50]) AS v FROM w",
    ),
    (
        "grow",
        "COPY (SELECT rename(arange(5), dim_0 => 'd') AS v) TO '{out}x.grown.zarr' STORED AS ZARR OPTIONS (overwrite true); \
         COPY (SELECT rename(arange(5), dim_0 => 'd') AS v) TO '{out}x.grown.zarr' STORED AS ZARR OPTIONS (append 'd')",
    ),
];

/// Places that a warehouse in a bucket reaches too, where nothing is renamed.
const REMOTE: [&str; 7] = [
    "zarr.object",
    "zarr.metadata",
    "catalog.put",
    "catalog.stored",
    "catalog.removed",
    "statements.stored",
    "data.marks_removed",
];

/// A server that dies at a place.
struct Case {
    world: World,
    name: String,
}

#[test]
fn a_server_that_dies_at_any_step_leaves_nothing_half_done() {
    // A few in the suite, all of them in a long run.
    let is_long = number("TESSERA_CHAOS_RUNS").is_some();
    let mut r = Random(number("TESSERA_CHAOS_SEED").unwrap_or(20_261_122));
    let mut some = |mut names: Vec<String>, few: usize| {
        let first = r.next() as usize % names.len();
        names.rotate_left(first);
        names.truncate(if is_long { names.len() } else { few });
        names
    };
    let places = some(tessera_storage::fail::names(), 4).into_iter().map(|name| (name, false));
    let remote = some(REMOTE.map(String::from).to_vec(), 1).into_iter().map(|name| (name, true));
    let cases: Vec<(String, bool)> = places.chain(remote).collect();
    each("points", &cases, |(name, remote)| {
        let s3 = remote.then(S3::start);
        Case { world: World::new(own_binary(), s3), name: name.clone() }.run();
    });
}

impl Case {
    fn steps(&self) -> Vec<(&'static str, String)> {
        let out = self.world.output("");
        let (spills, forgets) = (self.name.starts_with("spill"), self.forgets());
        STEPS
            .into_iter()
            // A statement that the server forgot runs again when it is submitted again.
            .filter(|(step, _)| (*step != "spill" || spills) && (*step != "once" || !forgets))
            // In a bucket an append waits for the lock of an append that was killed.
            .filter(|(step, _)| *step != "grow" || !out.starts_with("s3:"))
            .map(|(step, sql)| (step, sql.replace("{out}", &out)))
            .collect()
    }

    /// True for fail-points that are reached when statements are forgotten and the cells that they read are removed.
    fn forgets(&self) -> bool {
        ["statements.remove", "data."].iter().any(|begin| self.name.starts_with(begin))
    }

    fn run(&self) {
        let Case { world, name } = self;
        assert!(world.start(&[]));
        // The first entry of a warehouse makes its mark, the others find something to replace.
        if !name.starts_with("warehouse.json") {
            for (step, sql) in &self.steps()[..3] {
                world.run(sql, &format!("before {step}"));
            }
        }
        world.kill();
        self.dies();
        assert!(world.start(&[]));
        for (step, sql) in self.steps() {
            world.run(&sql, step);
        }
        let sum = |what: &str, item: &str| {
            total(&world.run(&format!("SELECT sum({item}) AS s FROM {what}"), what).1)
        };
        let spills = name.starts_with("spill");
        let tensors: &[&str] = if spills { &["s", "t", "w"] } else { &["t"] };
        assert_eq!(world.tensors(), tensors, "{name}");
        assert_eq!(sum("t", "v"), 5999 * 3000, "{name}");
        if spills {
            assert_eq!(sum("s", "v"), 6_250_001 * 3_125_000, "{name}");
        }
        if self.steps().iter().any(|(step, _)| *step == "grow") {
            assert_eq!(sum(&format!("'{}'", world.output("x.grown.zarr")), "v"), 20, "{name}");
        }
        for (output, item) in [("x.zarr", "v"), ("x.npy", "x"), ("once.zarr", "v")] {
            if output != "once.zarr" || !self.forgets() {
                assert_eq!(sum(&format!("'{}'", world.output(output)), item), 10, "{name}");
            }
        }
        let is_output =
            |f: &String| ["output/x.", "output/once."].iter().any(|begin| f.starts_with(begin));
        let outputs: Vec<String> = world.left().into_iter().filter(is_output).collect();
        world.is_clean(&outputs);
    }

    /// Asks a server for everything until it dies.
    fn dies(&self) {
        let Case { world, name } = self;
        let ttl = if self.forgets() { "1" } else { "900" };
        let fails = format!("{name}=abort@1");
        if !world.start(&[("TESSERA_FAIL", &fails), ("TESSERA_RESULT_TTL", ttl)]) {
            return;
        }
        for (step, sql) in self.steps() {
            let body = json!({"sql": sql, "request_id": step, "wait_ms": 60_000}).to_string();
            if !self.answers(body.as_bytes()) {
                break;
            }
        }
        let start = Instant::now();
        while !world.is_dead() {
            assert!(start.elapsed() < Duration::from_secs(10), "nothing came to `{name}`");
            std::thread::sleep(Duration::from_millis(10));
        }
        world.kill();
    }
}

impl Case {
    /// Submits a statement; false if the server died of it.
    fn answers(&self, body: &[u8]) -> bool {
        loop {
            match self.world.try_ask("POST", "/v1/statements", "", body) {
                // The server is recovering statements accepted before its restart.
                Some(reply) if reply.code() == "starting" => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                reply => return reply.is_some(),
            }
        }
    }
}

#[test]
fn a_full_device_is_reported_and_the_server_continues() {
    for (name, step, code) in [
        ("statements.put", "create", "no_space"),
        ("zarr.object", "create", "no_space"),
        ("zarr.metadata", "create", "no_space"),
        ("catalog.put", "create", "no_space"),
        ("catalog.stored", "create", "no_space"),
        ("file.write", "npy", "no_space"),
        ("spill.write", "spill", "scratch_full"),
    ] {
        let world = World::new(own_binary(), None);
        assert!(world.start(&[("TESSERA_FAIL", &format!("{name}=enospc"))]));
        // The server answers 503 until it knows the statements that were accepted before.
        assert_eq!(world.get("/readyz").status, 200);
        let (_, sql) = STEPS.into_iter().find(|(s, _)| *s == step).unwrap();
        let sql = sql.replace("{out}", &world.output(""));
        let body = json!({"sql": sql, "request_id": step, "wait_ms": 60_000}).to_string();
        let reply = world.try_ask("POST", "/v1/statements", "", body.as_bytes()).unwrap();
        let error = &reply.json()["error"];
        assert_eq!((reply.status, reply.code().as_str()), (413, code), "{name}: {}", reply.text());
        assert_eq!(error["class"], "limit", "{name}: {error}");
        // The statement leaves nothing, and other statements have their answers.
        let tensors: &[&str] = if step == "spill" { &["w"] } else { &[] };
        assert_eq!(world.tensors(), tensors, "{name}");
        let body = json!({"sql": "SELECT sum(arange(5)) AS s"}).to_string();
        let reply = world.try_ask("POST", "/v1/statements", "", body.as_bytes()).unwrap();
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        world.is_clean(&[]);
    }
}

#[test]
fn an_unknown_fail_point_is_refused_at_the_start() {
    let world = World::new(own_binary(), None);
    for bad in ["catalog.putt=abort", "catalog.put", "catalog.put=abort@0", "catalog.put=die"] {
        assert!(!world.start(&[("TESSERA_FAIL", bad)]), "{bad}");
    }
}
