//! Many concurrent statements that together need far more memory than exists: all end with the right answers, the
//! process stays near its limit, and a trivial statement is answered in the meantime.

use crate::common::{SERVE, binary, number};
use crate::http::Server;
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The longest that all of it may take before a test calls it lost.
const PATIENCE: Duration = Duration::from_secs(1200);

struct Load {
    statements: u64,
    /// Numbers that each one sorts, of 8 bytes.
    n: u64,
    limit: u64,
}

/// Observations of a run.
struct Seen {
    /// Bytes that the statements have to hold at once: a merge begins when all runs of a sort exist.
    needed: u64,
    /// Bytes that they had at their peaks, each alone and with room.
    peaks: u64,
    /// The most that was resident.
    resident: u64,
    /// How long trivial statements took, in order.
    trivial: Vec<Duration>,
}

impl Load {
    /// The numbers from 0 in another order, and `k` added to each; sorted, each is `k` more than its position.
    fn sql(&self, k: u64) -> String {
        let n = self.n;
        format!("SELECT sum(abs(sort((arange({n}) * 7919) % {n} + {k}) - arange({n}))) AS s")
    }

    fn answer(&self, k: u64) -> u64 {
        k * self.n
    }

    fn server(&self, directory: &tempfile::TempDir, limit: u64) -> Server {
        let mut command = Command::new(binary());
        command
            .stdin(Stdio::null())
            .arg("--warehouse")
            .arg(directory.path().join("warehouse"))
            .arg("--spill-dir")
            .arg(directory.path())
            .args(["--memory-limit", &limit.to_string()])
            .env("TESSERA_MAX_QUERIES", self.statements.to_string())
            .args(SERVE)
            .args(["--listen", "127.0.0.1:0"]);
        Server::spawn(command)
    }

    fn run(&self) -> Seen {
        let directory = tempfile::tempdir().unwrap();
        // The memory that each one needs, alone and with room. The numbers that are added do not change it.
        let roomy = self.server(&directory, 16 * self.n * 8);
        let sql = format!("EXPLAIN ANALYZE (FORMAT json) {}", self.sql(0));
        let shown = roomy.ask("POST", "/v1/query?format=json", "", sql.as_bytes());
        let json = shown.json();
        let peak = json["measured"]["peak_bytes"].as_u64();
        let peak = peak.unwrap_or_else(|| panic!("{}", shown.text()));
        assert!(peak >= self.n * 8, "{peak} bytes: all runs are held at once");
        drop(roomy);

        let server = self.server(&directory, self.limit);
        let start = Instant::now();
        let ids: Vec<String> = (0..self.statements)
            .map(|k| {
                let told = server.submit(&json!({"sql": self.sql(k), "wait_ms": 0})).json();
                told["id"].as_str().unwrap_or_else(|| panic!("{told}")).to_string()
            })
            .collect();
        let (over, trivial) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let asked = Instant::now();
                    let r = server.ask("POST", "/v1/query?format=csv", "", b"SELECT 1 + 1 AS two");
                    trivial.lock().unwrap().push(asked.elapsed());
                    assert_eq!(
                        (r.status, r.text().lines().last()),
                        (200, Some("2")),
                        "{}",
                        r.text()
                    );
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for (k, id) in ids.iter().enumerate() {
                    self.ends(&server, id, k as u64, start);
                }
            }));
            over.store(true, Relaxed);
            if let Err(e) = ended {
                std::panic::resume_unwind(e);
            }
        });
        let mut trivial = trivial.into_inner().unwrap();
        trivial.sort();
        let (needed, peaks) = (self.n * 8 * self.statements, peak * self.statements);
        Seen { needed, peaks, resident: server.resident_most(), trivial }
    }

    fn ends(&self, server: &Server, id: &str, k: u64, start: Instant) {
        loop {
            let status = server.get(&format!("/v1/statements/{id}?wait_ms=2000")).json();
            match status["state"].as_str() {
                Some("FINISHED") => break,
                Some("QUEUED" | "PLANNING" | "RUNNING") => {}
                _ => panic!("{status}"),
            }
            assert!(start.elapsed() < PATIENCE, "{status}");
        }
        let result = server.get(&format!("/v1/statements/{id}/result?format=json")).json();
        assert_eq!(result["tensors"][0]["data"], Value::from(self.answer(k)), "{result}");
    }
}

#[test]
fn several_statements_share_little_memory() {
    let load = Load { statements: 12, n: 1_200_000, limit: 32 * MIB };
    let seen = load.run();
    assert!(seen.needed >= 3 * load.limit, "{} bytes are needed", seen.needed);
    assert!(seen.resident <= load.limit * 5 / 4 + 200 * MIB, "{} bytes", seen.resident);
    assert!(!seen.trivial.is_empty());
}

#[test]
#[ignore = "takes minutes; docs/testing.md has the command"]
fn sixty_four_statements_that_need_twenty_times_the_memory_all_finish() {
    let limit = number("TESSERA_CROWD_MIB").unwrap_or(256) * MIB;
    let load = Load { statements: 64, n: 11_000_000, limit };
    let start = Instant::now();
    let seen = load.run();
    let took = start.elapsed().as_secs_f64();
    let times = seen.needed as f64 / limit as f64;
    let p99 = seen.trivial[seen.trivial.len() * 99 / 100];
    println!(
        "many statements: {} bytes needed, {times:.1} x the limit ({:.1} x at their peaks); {} MiB resident at most; {} trivial statements, median \
         {:?}, p99 {p99:?}, slowest {:?}; {took:.0} s",
        seen.needed,
        seen.peaks as f64 / limit as f64,
        seen.resident / MIB,
        seen.trivial.len(),
        seen.trivial[seen.trivial.len() / 2],
        seen.trivial[seen.trivial.len() - 1],
    );
    assert!(seen.needed >= 20 * limit);
    assert!(seen.resident <= limit * 5 / 4 + 200 * MIB);
    assert!(seen.trivial.len() >= 200);
    // The bound of the issue. It holds for this long run alone, which is not part of the suite.
    assert!(p99 < Duration::from_secs(1));
}
