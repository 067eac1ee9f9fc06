//! Statements that need more memory or time than a small server has: each ends with an error of its own, and the server
//! answers other statements in the meantime.

use crate::common::{Hold, until};
use crate::http::Server;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// Upper bound on the memory of the process: 1.25 times the limit, 200 MiB, and the additional code of a debug build.
const ROOM: u64 = 80 * MIB + 200 * MIB + if cfg!(debug_assertions) { 40 * MIB } else { 0 };

/// A server with as little memory as there can be.
fn small() -> Server {
    Server::start(&["--memory-limit", "64MiB", "--threads", "2"], &[])
}

/// The code of the error that a statement ends with; `ok` if it has an answer.
fn code(server: &Server, sql: &str) -> String {
    let reply = server.ask("POST", "/v1/query?format=json", "", sql.as_bytes());
    // 503: it took its time.
    assert!(reply.status < 500 || reply.status == 503, "{sql:.200}: {}", reply.text());
    match reply.status {
        200 => "ok".to_string(),
        _ => reply.json()["error"]["code"].as_str().unwrap().to_string(),
    }
}

/// CTEs of which each takes its column twice from the one before.
fn chain(first: &str, step: &str, last: &str) -> String {
    chain_of(27, first, step, last)
}

fn chain_of(steps: usize, first: &str, step: &str, last: &str) -> String {
    let all: String =
        (1..=steps).map(|i| format!(", a{i} AS (SELECT {step} FROM a{})", i - 1)).collect();
    format!("WITH a0 AS ({first}){all} SELECT {last} FROM a{steps}")
}

#[test]
fn no_statement_takes_memory_that_nobody_counts() {
    let server = small();
    let many = "(SELECT arange(4000000000) AS x)";
    let script = "SELECT 1;".repeat(300_000);
    // CTEs that see themselves are not made once.
    let doubling: String = (1..=12)
        .map(|i| format!(", a{i} AS (SELECT l.x FROM a{0} l JOIN a{0} r ON l.x = r.x)", i - 1))
        .collect();
    let doubling = format!("WITH RECURSIVE a0 AS (SELECT 1 AS x){doubling}");
    let keys: Vec<String> = (1..3000).map(|i| format!("x % {i}")).collect();
    let statements = [
        // Labels that are positions are not written out.
        (format!("SELECT * FROM {many} LIMIT 1"), "ok"),
        (format!("EXPLAIN SELECT * FROM {many} LIMIT 1"), "ok"),
        (format!("DESCRIBE SELECT * FROM {many} LIMIT 1"), "ok"),
        (format!("SELECT dim_0, x FROM {many} WHERE dim_0 BETWEEN 17 AND 19 AND x > 17"), "ok"),
        (format!("SELECT x FROM {many} WHERE dim_0 = 3999999999"), "ok"),
        (format!("CREATE VIEW v AS SELECT x FROM {many}"), "ok"),
        (format!("SELECT count(*) FROM {many} WHERE dim_0 % 2 = 1"), "memory_exceeded"),
        // Functions of rows whose results are far larger than their arguments.
        ("SELECT lpad(t, 2147483647, 'y') FROM (VALUES ('x')) AS v(t)".into(), "memory_exceeded"),
        ("SELECT max(repeat('x', 200000000 + x)) FROM CELLS(arange(4)) AS t(i, x)".into(), "memory_exceeded"),
        ("SELECT array_length(array_repeat(1, 1000000000))".into(), "memory_exceeded"),
        ("SELECT array_length(array_resize([1], 1000000000, 0)) FROM (VALUES (1)) v(a)".into(), "memory_exceeded"),
        ("SELECT array_length(range(1000000000))".into(), "memory_exceeded"),
        ("SELECT array_length(generate_series(1, 1000000000, 1))".into(), "memory_exceeded"),
        ("SELECT replace(repeat('x', 1000000), 'x', repeat('y', 1000000)) FROM (VALUES (1)) v(a)".into(), "memory_exceeded"),
        ("SELECT length(a || a || a) FROM (SELECT repeat('x', 6000000) AS a FROM (VALUES (1)) v(b)) q".into(), "memory_exceeded"),
        ("SELECT lpad(t, 5, 'y'), repeat(t, 3), range(3) FROM (VALUES ('x')) AS v(t)".into(), "ok"),
        // First rows that do not fit in memory are sorted together with the others.
        ("SELECT sum(x) FROM (SELECT x FROM (SELECT arange(1500000) AS x) ORDER BY x % 1000003 LIMIT 500000) q".into(), "ok"),
        // Facts about chunks, and positions that a plan lists, take memory, too.
        (chain_of(20, "SELECT arange(10) AS x", "concat([x, x]) AS x", "sum(x)"), "ok"),
        (chain_of(16, "SELECT arange(10) AS x", "stack([x, x]) AS x", "sum(x)"), "ok"),
        (chain_of(20, "SELECT arange(10) AS x", "repeat(x, 2) AS x", "sum(x)"), "memory_exceeded"),
        (chain_of(20, "SELECT arange(10) AS x", "tile(x, [2]) AS x", "sum(x)"), "memory_exceeded"),
        ("CREATE TEMP TENSOR k AS SELECT rechunk(arange(3000000), [1]) AS x".into(), "memory_exceeded"),
        // Lists without cells are written one by one.
        ("SELECT zeros([100000000, 0])".into(), "ok"),
        // A list of all chunks of a matrix that is factored whole.
        ("EXPLAIN (FORMAT json) SELECT inv(eye(10000000))".into(), "ok"),
        ("SELECT sum(inv(eye(10000000)))".into(), "memory_exceeded"),
        // Constants that are written out for each row.
        ("SELECT max(length(s)) FROM (SELECT repeat('x', 1000000) AS s FROM CELLS(arange(1000)) AS t(i, x)) q".into(), "ok"),
        ("SELECT max(repeat('x', 1000000)) OVER (ORDER BY x) FROM CELLS(arange(1000)) AS t(i, x)".into(), "memory_exceeded"),
        ("SELECT max(repeat('x', 1000000)) OVER (PARTITION BY x) FROM CELLS(arange(1000)) AS t(i, x)".into(), "memory_exceeded"),
        ("SELECT count(*) FROM (SELECT x, s, count(*) FROM (SELECT x, repeat('x', 100000) || x AS s FROM CELLS(arange(3000)) AS t(i, x)) q GROUP BY x, s) r".into(), "ok"),
        ("SELECT array_agg(range(20000)) FROM CELLS(arange(1000)) AS t(i, x)".into(), "memory_exceeded"),
        // Scripts and queries of too many parts.
        (format!("SELECT x FROM CELLS(arange(9)) AS t(i, x) ORDER BY {}", keys.join(", ")), "too_complex"),
        (chain("SELECT 'ab' AS x", "x || x AS x", "length(x)"), "too_complex"),
        (chain("SELECT n AS x FROM (VALUES (1)) v(n)", "make_array(x, x) AS x", "array_length(x)"), "too_complex"),
        (chain("SELECT n AS x FROM (VALUES (1)) v(n)", "named_struct('a', x, 'b', x) AS x", "count(x)"), "too_complex"),
        ("WITH RECURSIVE w AS (SELECT i0 FROM (SELECT (SELECT 3) AS i0, arange(4) AS y) AS a WHERE i0 > 1 UNION ALL \
          SELECT i0 FROM (SELECT (SELECT max(i0) FROM w) AS i0) q WHERE i0 > 1) SELECT i0 FROM w".into(), "nesting_too_deep"),
        (script, "too_complex"),
        ("SELECT 1;".repeat(20_000), "too_complex"),
        (format!("SELECT sum([{}1])", "1.5,".repeat(1_000_000)), "too_complex"),
        (format!("{doubling} SELECT count(*) FROM a12"), "too_complex"),
    ];
    for (sql, expected) in &statements {
        assert_eq!(code(&server, sql), *expected, "{sql:.200}");
        assert_eq!(code(&server, "SELECT 1"), "ok", "after {sql:.200}");
        let most = server.resident_most();
        assert!(most <= ROOM, "{} MiB after {sql:.200}", most / MIB);
    }
    assert!(server.get("/v1/tensors/v").status < 500);
}

/// Planning that takes hours: no position fulfils the condition, and all of them are looked at.
const ENDLESS: &str =
    "SELECT count(*) FROM (SELECT arange(4000000000000) AS x) WHERE dim_0 % 7 = 8";

/// A join of 10^12 pairs.
const PAIRS: &str = "SELECT count(*) FROM (SELECT arange(1000000) AS x) a, (SELECT arange(1000000) AS y) b \
                     WHERE sin(a.x) > 2 + cos(b.y)";

fn submit(server: &Server, sql: &str) -> String {
    let reply = server.submit(&json!({"sql": sql, "wait_ms": 0})).json();
    reply["id"].as_str().unwrap().to_string()
}

fn state(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/statements/{id}")).json()["state"].clone()
}

#[test]
fn planning_is_stopped_and_keeps_nobody_from_work() {
    is_stopped(ENDLESS, "PLANNING");
}

#[test]
fn joins_of_all_pairs_are_stopped_and_keep_nobody_from_work() {
    is_stopped(PAIRS, "RUNNING");
}

/// Statements that take hours are stopped soon, and other statements are answered in the meantime. The bounds leave
/// room for a busy machine.
fn is_stopped(endless: &str, doing: &str) {
    let server = small();
    let ids: Vec<String> = (0..2).map(|_| submit(&server, endless)).collect();
    let begun = Instant::now();
    while ids.iter().any(|id| state(&server, id) != doing) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", state(&server, &ids[0]));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..3 {
        let begun = Instant::now();
        assert_eq!(server.get("/healthz").status, 200);
        assert_eq!(code(&server, "SELECT 1"), "ok");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    for id in &ids {
        assert_eq!(state(&server, id), doing);
        let begun = Instant::now();
        let stopped = server.ask("DELETE", &format!("/v1/statements/{id}"), "", b"");
        assert!(stopped.status < 300, "{}", stopped.text());
        let is_over = || state(&server, id) == "CANCELLED";
        while !is_over() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{}", state(&server, id));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    // By its own time too.
    let begun = Instant::now();
    let late = code(&server, &format!("SET tessera.query_timeout = 1; {endless}"));
    assert_eq!(late, "timeout");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[cfg(unix)]
#[test]
fn a_server_that_is_planning_ends_on_request() {
    let mut server = small();
    submit(&server, ENDLESS);
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    let id = nix::unistd::Pid::from_raw(server.id() as i32);
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
    server.wait();
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
}

/// Clients that begin large bodies and hold them back: the server keeps a few, refuses the others, and has the memory
/// for statements.
#[test]
fn bodies_that_are_held_back_have_a_room_of_their_own() {
    let server = small();
    let head = "POST /v1/query HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000000\r\n\r\n";
    let body = vec![b' '; 3_900_000];
    let mut held = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        client.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        client.write_all(head.as_bytes()).unwrap();
        // The server may disconnect a refused client in the middle of the body.
        let sent = client.write_all(&body);
        let mut answer = [0; 12];
        match client.read(&mut answer) {
            Ok(n) if n > 0 => {
                assert_eq!(&answer, b"HTTP/1.1 429");
                refused += 1;
            }
            _ if sent.is_err() => refused += 1,
            _ => held.push(client),
        }
        assert_eq!(code(&server, "SELECT 1"), "ok");
    }
    let most = server.resident_most();
    assert!(most <= ROOM, "{} MiB", most / MIB);
    // Some hear of it later than they were asked above.
    let begun = Instant::now();
    while refused <= 50 {
        let before = held.len();
        held.retain_mut(|client| {
            let mut answer = [0; 12];
            !matches!(client.read(&mut answer), Ok(n) if n > 0 && &answer == b"HTTP/1.1 429")
        });
        refused += before - held.len();
        assert!(begun.elapsed() < Duration::from_secs(10), "{refused} of 100 were refused");
    }
    // Clients that disconnect leave their room to others.
    drop(held);
    let large = format!("SELECT 1 {}", " ".repeat(300_000));
    until("room", Duration::from_secs(60), || code(&server, &large) == "ok");
}

/// A CTE that saw itself while its own subqueries were planned was planned for ever, and the process ended.
#[test]
fn a_cte_does_not_see_itself() {
    let server = small();
    let asked = |sql: &str| {
        let reply = server.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
        assert_eq!(reply.status, 200, "{sql}: {}", reply.text());
        reply.text().split_whitespace().skip(1).map(String::from).collect::<Vec<_>>()
    };
    let inner = "SELECT i0 FROM (SELECT (SELECT 3) AS i0, arange(4) AS y) AS a WHERE i0 > 1";
    assert_eq!(asked(&format!("WITH w AS ({inner}) SELECT i0 FROM w WHERE i0 > 2")), ["3"; 1]);
    let later = format!(
        "WITH v AS (SELECT 1 AS one FROM (VALUES (1)) t(n)), w AS ({inner}), u AS (SELECT i0 + one AS s FROM w, v) SELECT s FROM u"
    );
    assert_eq!(asked(&later), ["4"]);
    let counted = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM (SELECT n FROM r) q WHERE n < 4) SELECT sum(n) AS s FROM r";
    assert_eq!(asked(counted), ["10"]);
}

/// Aggregates accept an ORDER BY that they do not need.
#[test]
fn aggregates_take_an_order() {
    let server = small();
    let sql = "SELECT i % 2 AS k, avg(x ORDER BY i) AS a, sum(x ORDER BY x DESC) AS s, stddev(x ORDER BY i) AS d \
               FROM CELLS(arange(8)) AS t(i, x) GROUP BY i % 2 ORDER BY k";
    let reply = server.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
    // numpy.std([0, 2, 4, 6], ddof=1)
    let lines = "k,a,s,d\n0,3.0,12,2.581988897471611\n1,4.0,16,2.581988897471611";
    assert_eq!(reply.text().trim(), lines);
}

/// The time of the server's own settings reaches planning and joins as that of a session does.
#[test]
fn the_time_of_a_server_is_over_everywhere() {
    let server = Server::start(
        &["--memory-limit", "64MiB", "--threads", "2"],
        &[("TESSERA_QUERY_TIMEOUT", "1")],
    );
    for sql in [ENDLESS, PAIRS] {
        let begun = Instant::now();
        assert_eq!(code(&server, sql), "timeout", "{sql}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{sql}: {:?}", begun.elapsed());
    }
}

/// Small steps, each of which reads the previous one twice; a call that cannot be interrupted.
#[test]
fn functions_that_put_together_are_bounded_together() {
    let server = small();
    let mut sql = "WITH a0 AS (SELECT 'ab' || x AS a FROM CELLS(arange(2)) AS t(i, x))".to_string();
    for i in 1..30 {
        sql += &format!(", a{i} AS (SELECT encode(a, 'hex') AS a FROM a{})", i - 1);
    }
    sql += " SELECT length(a) FROM a29";
    assert_eq!(code(&server, &sql), "memory_exceeded");
    for call in [
        "levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
        "array_has_all(range(100000), range(100000))",
        "strpos(repeat('a', 3000000), repeat('a', 300000) || 'b')",
    ] {
        let sql = format!("SELECT {call} FROM (VALUES (1)) v(a)");
        assert_eq!(code(&server, &sql), "too_complex", "{call}");
    }
    let few = "SELECT levenshtein('kitten', 'sitting'), array_has_all(make_array(1, 2), make_array(2)), \
               strpos('abc', 'c') FROM (VALUES (1)) v(a)";
    let reply = server.ask("POST", "/v1/query?format=csv", "", few.as_bytes());
    assert!(reply.text().trim().ends_with("\n3,true,3"), "{}", reply.text());
    let most = server.resident_most();
    assert!(most <= ROOM, "{} MiB", most / MIB);
}

/// The clock of a machine that says 1963: DataFusion's panics.
#[cfg(target_os = "linux")]
#[test]
fn a_clock_before_1970_is_an_error_of_rows_alone() {
    const CLOCK: &str = "#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
  long failed = syscall(SYS_clock_gettime, id, t);
  if (!failed && id == CLOCK_REALTIME) t->tv_sec = -204332958, t->tv_nsec = 0;
  return failed;
}";
    let directory = tempfile::tempdir().unwrap();
    let (source, library) = (directory.path().join("clock.c"), directory.path().join("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    // Whoever builds this has the compiler that links it.
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(built.success());
    let ask = |sql: &str| {
        let asked = std::process::Command::new(env!("CARGO_BIN_EXE_tessera"))
            .args(["query", "--format", "csv", sql])
            .env("LD_PRELOAD", &library)
            .env("TESSERA_WAREHOUSE", directory.path().join("warehouse"))
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (asked.status.code(), text(&asked.stdout), text(&asked.stderr))
    };
    let (status, _, told) = ask("SELECT now() AS t, x FROM CELLS(arange(1)) AS c(i, x)");
    assert_eq!(status, Some(1), "{told}");
    assert!(told.starts_with("error[clock]"), "{told}");
    let (status, answer, told) = ask("SELECT sum(arange(5)) AS s");
    assert_eq!((status, answer.trim()), (Some(0), "s\n10"), "{told}");
}

/// DataFusion plans such a join for hours, and never yields while it plans.
#[test]
fn the_time_limit_ends_planning_that_never_yields() {
    let server = small();
    let tables: Vec<String> = (0..600).map(|i| format!("(VALUES (1)) v{i}(a{i})")).collect();
    let join = format!("SELECT count(*) FROM {}", tables.join(", "));
    let begun = Instant::now();
    assert_eq!(code(&server, &format!("SET tessera.query_timeout = 1; {join}")), "timeout");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(code(&server, "SELECT 1"), "ok");
}

/// An aggregate of an aggregate takes all groups of the other one in one poll, and spills between them.
#[test]
fn aggregates_that_spill_give_their_memory_back_when_they_are_stopped() {
    let server = small();
    let groups = "SELECT count(*) FROM (SELECT a.i, b.x FROM CELLS(arange(60)) AS a(i, v) \
                  CROSS JOIN (SELECT arange(100000000) AS x) b GROUP BY ROLLUP (a.i, b.x))";
    assert_eq!(code(&server, &format!("SET tessera.query_timeout = 2; {groups}")), "timeout");
    let begun = Instant::now();
    assert_eq!(
        code(&server, "SELECT x FROM CELLS(random_normal([100000], seed => 1)) AS t(i, x)"),
        "ok"
    );
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// CTEs and views that read the one before twice are planned and run once each.
#[test]
fn exponentially_repeated_parts_are_computed_once() {
    let server = small();
    let answer = |sql: &str| {
        let begun = Instant::now();
        let reply = server.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
        // Work that doubles with each of these steps would take longer than any time-out.
        assert!(begun.elapsed() < Duration::from_secs(50), "{sql:.200}: {:?}", begun.elapsed());
        reply.text().lines().last().unwrap_or_default().to_string()
    };
    let steps = |n: usize, step: &dyn Fn(usize) -> String| -> String {
        (1..=n).map(|i| format!(", a{i} AS ({})", step(i - 1))).collect()
    };
    let joins = steps(400, &|i| format!("SELECT l.x FROM a{i} l JOIN a{i} r ON l.x = r.x"));
    let cells = "WITH a0 AS (SELECT x FROM CELLS(arange(4)) AS t(i, x))";
    assert_eq!(answer(&format!("{cells}{joins} SELECT count(*) FROM a400")), "4");
    assert_eq!(answer(&format!("{cells}{joins} SELECT sum(l.x) FROM a399 l, a400 r")), "24");
    let sums = steps(25, &|i| format!("SELECT (SELECT x FROM a{i}) + (SELECT x FROM a{i}) AS x"));
    assert_eq!(answer(&format!("WITH a0 AS (SELECT 1 AS x){sums} SELECT x FROM a25")), "33554432");
    let unions = steps(12, &|i| format!("SELECT x FROM a{i} UNION ALL SELECT x + 1 FROM a{i}"));
    assert_eq!(answer(&format!("{cells}{unions} SELECT count(*) FROM a12")), "16384");
    let mut script = "CREATE VIEW v0 AS SELECT x FROM CELLS(arange(4)) AS t(i, x)".to_string();
    for i in 0..25 {
        script +=
            &format!("; CREATE VIEW v{} AS SELECT l.x FROM v{i} l JOIN v{i} r ON l.x = r.x", i + 1);
    }
    assert_eq!(code(&server, &script), "ok");
    assert_eq!(answer("SELECT sum(x) FROM v25 WHERE x > 1"), "5");
    // An error inside of rows that have several readers is reported unchanged.
    let failing = steps(12, &|i| format!("SELECT l.x FROM a{i} l JOIN a{i} r ON l.x = r.x"));
    let first = "WITH a0 AS (SELECT array_length(range(1000000000 + x)) AS x FROM CELLS(arange(4)) AS t(i, x))";
    assert_eq!(
        code(&server, &format!("{first}{failing} SELECT count(*) FROM a12")),
        "memory_exceeded"
    );
    let many = steps(24, &|i| format!("SELECT x FROM a{i} UNION ALL SELECT x + 1 FROM a{i}"));
    let little = Server::start(&["--memory-limit", "64MiB", "--spill-limit", "8MiB"], &[]);
    let sql = format!("{cells}{many} SELECT count(*) FROM a24");
    assert_eq!(code(&little, &sql), "scratch_full");
    let wide = "WITH a0 AS (SELECT x FROM CELLS(arange(3000)) AS t(i, x))";
    let pairs = steps(12, &|i| format!("SELECT l.x + r.x AS x FROM a{i} l, a{i} r"));
    let begun = Instant::now();
    let sql = format!("SET tessera.query_timeout = 2; {wide}{pairs} SELECT count(*) FROM a12");
    assert_eq!(code(&server, &sql), "timeout");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let most = server.resident_most();
    assert!(most <= ROOM, "{} MiB", most / MIB);
}

/// The checks of DataFusion's planner take three times as long for each level of nesting.
#[test]
fn subqueries_in_expressions_are_bounded() {
    let server = small();
    let nested = |levels| format!("SELECT {}1{}", "(SELECT ".repeat(levels), ")".repeat(levels));
    for levels in [16, 24, 97] {
        let begun = Instant::now();
        assert_eq!(code(&server, &nested(levels)), "too_complex", "{levels}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{levels}: {:?}", begun.elapsed());
    }
    assert_eq!(code(&server, &nested(10)), "ok");
}

/// A disk that takes seconds to write delays only the statements that write.
#[test]
fn a_busy_disk_stops_nobody_else() {
    let directory = tempfile::tempdir().unwrap();
    let hold = Hold::new(directory.path());
    let busy = hold.at("catalog.stored");
    let environment = [("TESSERA_FAIL", &*busy), ("TOKIO_WORKER_THREADS", "2")];
    let server = Server::start(&["--threads", "2"], &environment);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|i| format!("CREATE TENSOR x{i} AS SELECT arange(100000) + {i} AS x"))
            .map(|sql| json!({"sql": sql, "wait_ms": 60_000}))
            .map(|body| scope.spawn(|| server.submit(&{ body }).json()))
            .collect();
        let (begun, mut asked) = (Instant::now(), 0);
        while asked < 10 || begun.elapsed() < Duration::from_secs(3) {
            assert_eq!(server.get("/healthz").status, 200);
            assert_eq!(code(&server, "SELECT 1"), "ok");
            asked += 1;
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(writers.iter().all(|w| !w.is_finished()), "the disk was not busy");
        hold.let_go();
        for writer in writers {
            let end = writer.join().unwrap();
            assert_eq!(end["state"], "FINISHED", "{end}");
        }
    });
}
