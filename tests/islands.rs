//! Statements of several islands: their EXPLAIN, their memory, and their errors.

use futures::StreamExt;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::session::{Host, Session};
use tessera_engine::{Engine, Handle};

const CASES: &str = "CREATE EXTERNAL TABLE cases STORED AS ZARR LOCATION 'tests/data/cases.zarr'; ";
const ERA5: &str = "CREATE EXTERNAL TABLE era5 STORED AS ZARR LOCATION 'tests/data/cf/air.zarr'; ";

struct World {
    runtime: tokio::runtime::Runtime,
    host: Arc<Host>,
    session: Session,
    _warehouse: tempfile::TempDir,
}

fn world(memory: &str) -> World {
    let warehouse = tempfile::tempdir().unwrap();
    let flags = [
        ("warehouse", warehouse.path().to_string_lossy().to_string()),
        ("threads", "2".to_string()),
        ("memory-limit", memory.to_string()),
    ];
    let config = Config::load(&flags.into_iter().collect(), [], None).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let host = Host::open(config, runtime.handle().clone()).unwrap();
    World { runtime, session: Session::of(host.clone()), host, _warehouse: warehouse }
}

impl World {
    /// The last reply of a script.
    fn run(&self, sql: &str) -> Result<Reply, Error> {
        let replies: Vec<_> =
            self.runtime.block_on(async { self.session.run(sql, Handle::new()).collect().await });
        replies.into_iter().last().unwrap()
    }

    fn text(&self, sql: &str) -> String {
        match self.run(sql).unwrap().answer {
            Answer::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    fn code(&self, sql: &str) -> String {
        self.run(sql).and_then(Reply::whole).unwrap_err().code().to_string()
    }

    /// The only cell of the only tensor.
    fn cell(&self, sql: &str) -> String {
        match self.run(sql).and_then(Reply::whole).unwrap().answer {
            Answer::Tensors(t) if t.len() == 1 && t[0].len() == 1 => t[0].scalar(0).to_string(),
            other => panic!("not one cell: {other:?}"),
        }
    }
}

#[test]
fn explain_shows_which_parts_run_first_and_which_wait() {
    let w = world("256MiB");
    let sql = "SELECT x[x > 2] - mean(x[x > 2]) FROM cases";
    let text = w.text(&format!("{CASES}EXPLAIN {sql}"));
    assert!(text.contains("island 1 (tensor) at 1:"), "{text}");
    assert!(text.contains("waits for nothing"), "{text}");
    assert!(text.contains("result: waits for island 1; its shapes are known"), "{text}");
    let text = w.text(&format!("EXPLAIN ANALYZE {sql}"));
    assert_eq!(text.matches("\nisland ").count(), 1, "one computation runs once: {text}");
    assert!(text.contains("result: waits for island 1"), "{text}");
    let nested = "SELECT tensor(SELECT count(*) AS n FROM (SELECT x[x > 2] AS w FROM cases) WHERE w > 4) + 1 AS n";
    let text = w.text(&format!("EXPLAIN ANALYZE {nested}"));
    assert!(text.contains("island 1 (tensor)"), "{text}");
    assert!(text.contains("island 2 (cell)"), "{text}");
    assert!(text.contains("waits for island 1\n"), "{text}");
    assert!(text.contains("result: waits for islands 1 and 2"), "{text}");
}

#[test]
fn a_block_that_stays_dense_is_no_island_and_builds_no_row() {
    let w = world("256MiB");
    let sql = "SELECT [month], [lat], avg(t2m) AS clim FROM (SELECT *, month(time) AS month FROM era5) GROUP BY month, lat";
    let text = w.text(&format!("{ERA5}EXPLAIN ANALYZE {sql}"));
    assert!(text.starts_with("surface: cell (the item [month])"), "{text}");
    assert!(!text.contains("island") && !text.contains("rows of cells"), "{text}");
    let text = w.text(&format!("SET tessera.lift = 'off'; EXPLAIN ANALYZE {sql}"));
    assert!(text.contains("island 1 (cell)") && text.contains("2800 rows of cells"), "{text}");
}

#[test]
fn memory_of_islands_is_counted_and_released() {
    let w = world("64MiB");
    let quota = w.host.runtime().quota().clone();
    for sql in [
        "SELECT sum(x[x > 0]) AS s FROM cases",
        "SELECT sum(unique(i)) AS s FROM cases",
        "SELECT sum(tensor(SELECT x FROM cases WHERE x > 0)) AS s FROM cases",
        "SELECT take(v, [99]) AS s, x[x > 0] FROM cases",
        "SELECT x[x > 0] + 'text' AS s FROM cases",
    ] {
        let _ = w.run(&format!("{}{sql}", CASES.replace("CREATE", "CREATE OR REPLACE")));
        assert_eq!(quota.used(), 0, "{sql}");
    }
    // Threads may still hold memory of their last block of work.
    let settled = || {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while quota.used() > 0 && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        quota.used()
    };
    // 122 MiB of cells are more than the limit: they go to files.
    let large = "SELECT count(r[r > 0.0]) AS n FROM (SELECT random([16000000], seed => 1) AS r)";
    assert_eq!(w.cell(large), "16000000");
    assert_eq!(settled(), 0);
    assert_eq!(w.cell("SELECT sum(r[r > 2.0]) AS s FROM (SELECT random([4000000]) AS r)"), "0.0");
}

#[test]
fn lowering_again_draws_the_same_numbers() {
    let w = world("256MiB");
    // Without a seed one is drawn for the statement: the island and the rest must see the same tensor.
    let sql = "WITH a AS (SELECT random([1000]) AS r) \
               SELECT sum(r[r > 0.5]) - sum(where(r > 0.5, r, 0.0)) AS gap FROM a";
    let gap: f64 = w.cell(sql).parse().unwrap();
    assert!(gap.abs() < 1e-9, "{gap}");
    let one = w.cell("SELECT sum(random([10])) AS s");
    assert_ne!(one, w.cell("SELECT sum(random([10])) AS s"), "statements draw different seeds");
    let twice = "SELECT sum(random([10])) - sum(random([10])) AS s";
    assert_ne!(w.cell(twice), "0.0", "two calls draw different numbers");
}

#[test]
fn surfaces_nest_deeply_without_doubling() {
    let w = world("256MiB");
    let mut sql = format!("{ERA5}WITH c0 AS (SELECT t2m AS v FROM era5)");
    for k in 0..20 {
        let (a, b, c) = (2 * k, 2 * k + 1, 2 * k + 2);
        sql += &format!(
            ", c{b} AS (SELECT [lat], avg(v) AS v FROM c{a} GROUP BY lat), c{c} AS (SELECT v + 0 AS v FROM c{b})"
        );
    }
    let mean: f64 = w.cell(&format!("{sql} SELECT mean(v) AS m FROM c40")).parse().unwrap();
    let plain = "SELECT mean(mean(t2m, axis => ['time', 'lon'])) AS m FROM era5";
    let plain: f64 = w.cell(plain).parse().unwrap();
    assert!((mean - plain).abs() < 1e-9, "{mean} {plain}");
    let nested = |depth: usize| {
        let (open, close) =
            ("tensor(SELECT max(".repeat(depth), ") AS y FROM cases)".repeat(depth));
        format!("SELECT {open}x{close} AS y FROM cases")
    };
    w.run(CASES).unwrap();
    assert_eq!(w.cell(&nested(30)), w.cell("SELECT max(x) AS y FROM cases"));
    assert_eq!(w.code(&nested(400)), "nesting_too_deep");
}

/// A bucket of one object over plain HTTP: HEAD, GET with a range, and an empty listing.
fn bucket(key: &'static str, body: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let body = body.clone();
            std::thread::spawn(move || serve(stream, key, &body));
        }
    });
    port
}

fn serve(stream: TcpStream, key: &str, body: &[u8]) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut out = stream;
    loop {
        let Some(Ok(request)) = lines.next() else { return };
        let mut range = None;
        for line in lines.by_ref().map_while(Result::ok).take_while(|l| !l.is_empty()) {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                let (from, to) = value.split_once('-').unwrap();
                let len = body.len();
                range = Some(match (from.parse::<usize>(), to.parse::<usize>()) {
                    (Ok(from), Ok(to)) => from..(to + 1).min(len),
                    (Ok(from), Err(_)) => from..len,
                    (Err(_), Ok(last)) => len - last.min(len)..len,
                    _ => 0..len,
                });
            }
        }
        let path = request.split(' ').nth(1).unwrap_or_default().to_string();
        let (status, part, whole) = if path.contains("list-type=2") {
            let xml = "<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>";
            ("200 OK", xml.as_bytes().to_vec(), None)
        } else if !path.ends_with(key) {
            ("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>".to_vec(), None)
        } else {
            match range {
                Some(r) => {
                    let of = format!("bytes {}-{}/{}", r.start, r.end - 1, body.len());
                    ("206 Partial Content", body[r].to_vec(), Some(of))
                }
                None => ("200 OK", body.to_vec(), None),
            }
        };
        let range = whole.map_or_else(String::new, |r| format!("Content-Range: {r}\r\n"));
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{range}ETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
            part.len()
        );
        let is_head = request.starts_with("HEAD");
        let sent = out.write_all(head.as_bytes());
        if sent.and_then(|()| if is_head { Ok(()) } else { out.write_all(&part) }).is_err() {
            return;
        }
    }
}

#[test]
fn tables_of_a_bucket_are_joined_with_tensors() {
    let body = std::fs::read("tests/data/tables/regions.parquet").unwrap();
    let port = bucket("/b/tables/regions.parquet", body);
    let w = world("256MiB");
    let options = format!(
        "OPTIONS ('aws.endpoint' 'http://127.0.0.1:{port}', 'aws.allow_http' 'true', 'aws.anonymous' 'true')"
    );
    let create = |name: &str, key: &str| {
        format!(
            "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION 's3://b/tables/{key}' {options}"
        )
    };
    w.run(&format!("{ERA5}{}", create("regions", "regions.parquet"))).unwrap();
    let joined = "FROM era5 e JOIN {} r ON e.lat BETWEEN r.lat0 AND r.lat1 AND e.lon BETWEEN r.lon0 AND r.lon1";
    let count = |table: &str| {
        let from = joined.replace("{}", table);
        w.cell(&format!("SELECT tensor(SELECT count(*) AS n {from}) AS n"))
    };
    let here = count("read_parquet('tests/data/tables/regions.parquet')");
    assert_eq!(count("regions"), here);
    assert_ne!(here, "0");
    assert_eq!(w.code(&create("gone", "nope.parquet")), "not_found");
}
