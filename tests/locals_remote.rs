//! Arrays and tables of a program that uses a server: they are sent with its statements.

use crate::common::{Flow, carry, until};
use crate::http::{Reply as Answered, Server};
use crate::locals::{array, column, layouts, named, numbers, rows};
use arrow::buffer::Buffer;
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tessera_engine::answer::Reply;
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer};
use tessera_engine::locals::{Local, LocalArray, Locals};
use tessera_engine::{Engine, Handle};
use tessera_planner::catalog::{Attrs, Coord, CoordValues};
use tessera_planner::dtype::{Calendar, DType};
use tessera_server::client::Remote;

const PATIENCE: Duration = Duration::from_secs(60);
const NATIVE: &str = "application/vnd.tessera.answer";
const ARROW: &str = "application/vnd.apache.arrow.stream";

/// A client, with a directory for the answers that it receives.
struct Client {
    runtime: tokio::runtime::Runtime,
    remote: Remote,
    _directory: tempfile::TempDir,
}

impl Client {
    fn of(urls: &str) -> Client {
        let directory = tempfile::tempdir().unwrap();
        let flags = [
            ("spill-dir", directory.path().to_string_lossy().to_string()),
            ("memory-limit", "64MiB".to_string()),
        ];
        let config = Config::load(&flags.into_iter().collect(), [], None).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let remote = Remote::new(urls, None, &config).unwrap();
        Client { runtime, remote, _directory: directory }
    }

    fn run(&self, sql: &str, locals: &Locals) -> Result<Reply, Error> {
        self.run_as(sql, Handle::reading(locals.clone()))
    }

    fn run_as(&self, sql: &str, handle: Handle) -> Result<Reply, Error> {
        let replies = async { self.remote.run(sql, handle).collect::<Vec<_>>().await };
        self.runtime.block_on(replies).pop().unwrap()
    }

    fn csv(&self, sql: &str, locals: &Locals) -> String {
        let reply = self.run(sql, locals).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut writer = Writer::new(Format::Csv, Options::default(), Vec::new()).unwrap();
        writer.push(reply).unwrap();
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }
}

fn url(s: &Server) -> String {
    format!("http://{}", s.address())
}

/// Nothing of uploads is left: at most one session, that of the client, and no bytes in memory and on disk.
fn is_quiet(s: &Server) {
    holds_nothing(s, 1.0);
}

fn holds_nothing(s: &Server, sessions: f64) {
    let start = Instant::now();
    loop {
        let names = ["tessera_sessions", "tessera_quota_used_bytes", "tessera_spill_used_bytes"];
        let left = names.map(|name| s.metric(name));
        if left[0] <= sessions && left[1..] == [0.0, 0.0] {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "sessions, bytes in memory, on disk: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn session(s: &Server) -> String {
    s.ask("POST", "/v1/sessions", "", b"").json()["id"].as_str().unwrap().to_string()
}

/// Uploads to a session.
fn put(s: &Server, session: &str, path: &str, kind: &str, body: &[u8]) -> Answered {
    let headers = format!("Tessera-Session: {session}\r\nContent-Type: {kind}\r\n");
    s.ask("PUT", &format!("/v1/tensors/{path}"), &headers, body)
}

fn sent(local: &Local) -> Vec<u8> {
    let mut bytes = Vec::new();
    local.send(&mut bytes).unwrap();
    if let Some(told) = local.sent_bytes().unwrap() {
        assert_eq!(told, bytes.len() as u64);
    }
    bytes
}

/// A dataset with two arrays, one of them masked, labels of all kinds, and attributes.
fn dataset() -> Local {
    let m = numbers(12);
    let coord = |name: &str, dim: &str, values| Coord {
        name: name.into(),
        dim: dim.into(),
        values,
        attrs: [("units".to_string(), json!("degrees"))].into_iter().collect(),
    };
    // np.datetime64('2020-01-01') and the days after it.
    let days = [0, 1, 2].map(|day| 1_577_836_800_000_000 + day * 86_400_000_000i64);
    let towns = ["Oslo", "Rome", "Bern", "Wien"].map(String::from);
    let coords = vec![
        coord("time", "time", CoordValues::Time(Calendar::Standard, days.into())),
        coord("id", "id", CoordValues::Int(DType::Int64, [1, 2, 3, 4].into())),
        coord("height", "id", CoordValues::Float(DType::Float64, [0.5, 1.5, 2.5, 3.5].into())),
        coord("town", "town", CoordValues::Text(towns.into())),
    ];
    let of = |name: &str, dims: [&str; 2], shape, strides| LocalArray {
        name: name.into(),
        dims: dims.map(|d| Some(d.to_string())).into(),
        attrs: [("long_name".to_string(), json!("air"))].into_iter().collect(),
        ..array(&m, shape, strides, 0)
    };
    let mut t = of("t", ["time", "id"], [3, 4], [4, 1]);
    // np.ma.masked_where(m.reshape(3, 4) == 0, …): its first cell.
    t.valid = Some(Buffer::from_vec((0..12).map(|i| u8::from(i != 0)).collect::<Vec<u8>>()));
    let u = of("u", ["town", "time"], [4, 3], [1, 4]);
    let attrs = [("title".to_string(), json!("both"))].into_iter().collect();
    Local::dataset("air", vec![t, u], coords, attrs).unwrap()
}

#[test]
fn arrays_of_any_layout_are_sent() {
    let s = Server::start(&["--memory-limit", "64MiB"], &[]);
    let c = Client::of(&url(&s));
    let m = numbers(12);
    for (what, local, want) in layouts(&m) {
        let x = named("x", vec![local], Vec::new());
        assert_eq!(column(&c.csv("SELECT sum(x, 1) AS s FROM x", &x)).join(" "), want, "{what}");
    }
    let x = named("x", vec![array(&m, [3, 4], [4, 1], 0)], Vec::new());
    // x = m.reshape(3, 4); ((x - x.mean(0)) / x.std(0)).ravel()
    let want = [
        -0.9805806756909202,
        -1.0342244694284488,
        -1.0690449676496976,
        -1.0075824941093396,
        -0.3922322702763681,
        -0.31822291367029193,
        -0.26726124191242434,
        1.3631998449714593,
        1.372812945967288,
        1.352447383098741,
        1.336306209562122,
        -0.3556173508621198,
    ];
    let got = column(&c.csv("SELECT (x - mean(x, 0)) / std(x, 0) AS z FROM x", &x));
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got.parse::<f64>().unwrap() - want).abs() < 1e-12, "{got} {want}");
    }
    // A name in other letters, and in quotes; EXPLAIN and DESCRIBE send it too.
    let x = named("My x", vec![array(&m, [3, 4], [4, 1], 0)], Vec::new());
    assert_eq!(c.csv("SELECT sum(x) AS s FROM \"my X\"", &x), "s\n405.0\n");
    assert!(c.csv("DESCRIBE \"My x\"", &x).contains("float64"));
    assert!(c.run("EXPLAIN SELECT sum(x) FROM \"My x\"", &x).is_ok());
    is_quiet(&s);
}

#[test]
fn an_array_of_many_chunks_goes_through_a_small_server() {
    let s = Server::start(&["--memory-limit", "64MiB"], &[]);
    let c = Client::of(&url(&s));
    // x = (np.arange(16384 * 1024) % 1009.0).reshape(16384, 1024), 128 MiB
    let (rows, columns) = (16_384u64, 1024u64);
    let m = Buffer::from_vec((0..rows * columns).map(|i| (i % 1009) as f64).collect::<Vec<f64>>());
    let by_rows = named("x", vec![array(&m, [rows, columns], [columns as i64, 1], 0)], Vec::new());
    let sql = "SELECT sum(x) AS s, max(abs(x - mean(x, 0))) AS m FROM x";
    assert_eq!(c.csv(sql, &by_rows), "s,m\n8455591950.0,504.5335693359375\n");
    let by_columns =
        named("x", vec![array(&m, [columns, rows], [1, columns as i64], 0)], Vec::new());
    let want = ["8248941.0", "8249181.0", "8249421.0", "8249661.0", "8248892.0"];
    assert_eq!(column(&c.csv("SELECT sum(x, 1)[0:5] AS s FROM x", &by_columns)), want);
    assert!(s.resident_most() < 500 << 20, "{}", s.resident_most());
    is_quiet(&s);
    // Memory is not enough, and there is no room on disk.
    let s = Server::start(&["--memory-limit", "64MiB", "--spill-limit", "100MiB"], &[]);
    let c = Client::of(&url(&s));
    let told = c.run("SELECT sum(x) AS s FROM x", &by_rows).unwrap_err();
    assert_eq!(told.code(), "request_too_large", "{told}");
    is_quiet(&s);
}

#[test]
fn labels_masks_and_attributes_arrive() {
    let s = Server::start(&[], &[]);
    let c = Client::of(&url(&s));
    let air: Locals = [("air".to_string(), dataset())].into_iter().collect();
    let csv = |sql: &str| c.csv(sql, &air);
    // t = np.ma.masked_where(m.reshape(3, 4) == 0, m.reshape(3, 4)); t[:, :2].mean(1)
    let got = csv("SELECT time, avg(t) AS a FROM air WHERE id < 3 GROUP BY time ORDER BY time");
    let want =
        "time,a\n2020-01-01T00:00:00,1.0\n2020-01-02T00:00:00,20.5\n2020-01-03T00:00:00,72.5\n";
    assert_eq!(got.replace(".000000", ""), want);
    assert_eq!(csv("SELECT t[time => '2020-01-02', id => 4] AS a FROM air"), "a\n49.0\n");
    // m.reshape(3, 4).T[1, 2]: the town Rome on the third day.
    assert_eq!(csv("SELECT u[town => 'Rome', time => '2020-01-03'] AS a FROM air"), "a\n81.0\n");
    // m.reshape(3, 4)[:, np.array([0.5, 1.5, 2.5, 3.5]) > 2].sum()
    assert_eq!(csv("SELECT sum(t) AS a FROM air WHERE height > 2"), "a\n218.0\n");
    // np.ma.count(t), u.sum()
    assert_eq!(csv("SELECT count(t) AS n, sum(u) AS s FROM air"), "n,s\n11,405.0\n");
    let told = csv("DESCRIBE air");
    for part in ["long_name: air", "units: degrees", "masked", "town=4", "time=3"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    is_quiet(&s);
}

#[test]
fn tables_are_sent_and_names_of_the_catalog_go_first() {
    let s = Server::start(&[], &[]);
    let c = Client::of(&url(&s));
    let none = Locals::default();
    let both = Local::table(rows().schema(), vec![rows(), rows()]).unwrap();
    let x = Local::dataset("x", vec![array(&numbers(4), [2, 2], [2, 1], 0)], vec![], Attrs::new());
    let locals: Locals = [("t".into(), both), ("x".into(), x.unwrap())].into_iter().collect();
    let sql = "SELECT city, sum(n) AS n, sum(v) AS v FROM t GROUP BY city ORDER BY city";
    assert_eq!(c.csv(sql, &locals), "city,n,v\nOslo,8,5.0\nRome,4,\n");
    assert_eq!(c.csv("SELECT sum(x) AS s FROM x", &locals), "s\n14.0\n");
    // A tensor that takes the name of an array is made of it, and goes first from then on.
    c.run("CREATE TENSOR x AS SELECT x * 2 AS x FROM x", &locals).unwrap();
    assert_eq!(c.csv("SELECT sum(x) AS s FROM x", &locals), "s\n28.0\n");
    assert_eq!(c.csv("SELECT sum(x) AS s FROM x", &none), "s\n28.0\n");
    // So does one of the client's session, in the same script too.
    c.run("DROP TENSOR x; SET tessera.spread = 'none'", &locals).unwrap();
    let script = "SELECT sum(x) AS s FROM x; CREATE TEMP TENSOR x AS SELECT sum(x) AS x FROM x; \
        SELECT x + 1 AS s FROM x";
    assert_eq!(c.csv(script, &locals), "s\n15.0\n");
    assert_eq!(c.csv("SELECT x + 2 AS s FROM x", &locals), "s\n16.0\n");
    c.run("DROP TENSOR x", &none).unwrap();
    // Errors stand where the client wrote the name, and leave nothing.
    let told = c.run("SELECT 1;\nSELECT y FROM x", &locals).unwrap_err();
    let place = told.position().unwrap();
    assert_eq!((told.code(), place.line, place.column), ("unknown_name", 2, 8));
    let told = c.run("SELECT x FROM xs", &locals).unwrap_err();
    assert_eq!(told.code(), "unknown_name");
    let told = c.run("SELECT sum(x) FROM x", &none).unwrap_err();
    assert_eq!(told.code(), "unknown_name");
    is_quiet(&s);
    // Two scripts at the same time have their own arrays.
    let of = |k: usize| named("x", vec![array(&numbers(4 + k), [2, 2], [2, 1], k as i64)], vec![]);
    // [(np.arange(8)**2 % 101)[k:k + 4].sum() for k in range(4)]
    let want = ["14", "30", "54", "86"];
    std::thread::scope(|scope| {
        for (k, want) in want.iter().enumerate() {
            let (c, x) = (&c, of(k));
            scope.spawn(move || {
                for _ in 0..5 {
                    assert_eq!(c.csv("SELECT sum(x) AS s FROM x", &x), format!("s\n{want}.0\n"));
                }
            });
        }
    });
    is_quiet(&s);
}

#[test]
fn uploads_become_temp_tensors_and_tables_of_a_session() {
    let s = Server::start(&[], &[]);
    let id = session(&s);
    let csv = |session: &str, sql: &str| {
        let headers = format!("Tessera-Session: {session}\r\n");
        s.ask("POST", "/v1/query?format=csv", &headers, sql.as_bytes()).text()
    };
    let r = put(&s, &id, "air?temp=true", NATIVE, &sent(&dataset()));
    assert_eq!((r.status, &r.json()["ok"]), (201, &json!("created temp tensor air")));
    let arrow = of_rows(&rows());
    let r = put(&s, &id, "rows?temp=true", ARROW, &arrow);
    assert_eq!((r.status, &r.json()["ok"]), (201, &json!("created temp table rows")));
    let r =
        put(&s, &id, "by_n?temp=true&dims=n", ARROW, &of_rows(&rows().project(&[1, 2]).unwrap()));
    assert_eq!(r.status, 201, "{}", r.text());
    let r = put(&s, &id, "up?temp=true", "application/x-npy", &npy_of(&[1.0, 2.5]));
    assert_eq!(r.status, 201, "{}", r.text());
    assert_eq!(csv(&id, "SELECT count(t) AS n FROM air"), "n\n11\n");
    assert_eq!(csv(&id, "SELECT sum(n) AS n FROM rows"), "n\n6\n");
    assert_eq!(csv(&id, "SELECT v[n => 3] AS v FROM by_n"), "v\n2.0\n");
    let told = csv(&id, "SHOW TENSORS");
    for part in ["air,temp tensor", "rows,temp table", "by_n,temp tensor", "up,temp tensor"] {
        assert!(told.contains(part), "{told}");
    }
    // Another session has none of them; a statement of another one may be lent them.
    assert!(csv(&session(&s), "SELECT count(t) AS n FROM air").contains("unknown_name"));
    let lent = json!({"sql": "SELECT count(t) AS n FROM air", "locals": id, "format": "csv"});
    let status = s.submit(&lent).json();
    assert_eq!(status["result"], "n\n11\n");
    // Its answer would stay for a while.
    let statement = format!("/v1/statements/{}", status["id"].as_str().unwrap());
    assert_eq!(s.ask("DELETE", &statement, "", b"").status, 200);
    let gone = json!({"sql": "SELECT 1", "locals": "nope"});
    let r = s.submit(&gone);
    assert_eq!((r.status, &r.json()["error"]["code"]), (503, &json!("uploads_gone")));
    // One upload replaces another, and is dropped as any temp tensor.
    let x = Local::dataset("x", vec![array(&numbers(4), [2, 2], [2, 1], 0)], vec![], Attrs::new());
    assert_eq!(put(&s, &id, "air?temp=true", NATIVE, &sent(&x.unwrap())).status, 201);
    assert_eq!(csv(&id, "SELECT sum(x) AS s FROM air"), "s\n14.0\n");
    let headers = format!("Tessera-Session: {id}\r\n");
    for name in ["air", "rows", "by_n", "up"] {
        assert_eq!(s.ask("DELETE", &format!("/v1/tensors/{name}"), &headers, b"").status, 200);
    }
    holds_nothing(&s, 2.0);
}

/// An Arrow stream.
fn of_rows(batch: &RecordBatch) -> Vec<u8> {
    let mut arrow = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    arrow.write(batch).unwrap();
    arrow.finish().unwrap();
    arrow.into_inner().unwrap()
}

/// An `.npy` file.
fn npy_of(cells: &[f64]) -> Vec<u8> {
    let header =
        format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}\n", cells.len());
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend_from_slice(&(header.len() as u16).to_le_bytes());
    npy.extend_from_slice(header.as_bytes());
    npy.extend(cells.iter().flat_map(|c| c.to_le_bytes()));
    npy
}

#[test]
fn uploads_that_are_no_datasets_are_refused() {
    let s = Server::start(&[], &[]);
    let id = session(&s);
    let body = sent(&dataset());
    let refused = |r: Answered, status: u16, part: &str| {
        let told = r.json()["error"]["message"].as_str().unwrap().to_string();
        assert_eq!((r.status, told.contains(part)), (status, true), "{part}: {}", r.text());
    };
    let temp = "x?temp=true";
    refused(put(&s, &id, "x", NATIVE, &body), 400, "is for `temp=true`");
    refused(put(&s, &id, "x?temp=yes", NATIVE, &body), 400, "`temp` is `true` or `false`");
    refused(put(&s, &id, "x?temp=true&dims=a", NATIVE, &body), 400, "`dims` is for Arrow");
    refused(put(&s, &id, temp, "text/csv", &body), 400, "not `text/csv`");
    refused(put(&s, &id, temp, "application/x-npy", &body), 400, "does not begin as an .npy file");
    refused(put(&s, "nope", temp, NATIVE, &body), 404, "nope");
    let kind = format!("Content-Type: {NATIVE}\r\n");
    refused(s.ask("PUT", "/v1/tensors/x?temp=true", &kind, &body), 400, "needs a session");
    // Rows, and answers that are neither.
    let of = |sql: &str| {
        let r = s.ask("POST", "/v1/query?format=tessera", "", sql.as_bytes());
        assert_eq!(r.status, 200);
        r.bytes()
    };
    refused(put(&s, &id, temp, NATIVE, &of("SELECT 1 AS a FROM CELLS(arange(2))")), 400, "rows");
    refused(put(&s, &id, temp, NATIVE, &of("EXPLAIN SELECT 1")), 400, "neither tensors nor");
    // Tensors of an answer are a dataset.
    let answer = of("SELECT arange(5) AS a, arange(5) * 2 AS b");
    assert_eq!(put(&s, &id, "made?temp=true", NATIVE, &answer).status, 201);
    // Cut anywhere, and too long.
    for end in (0..body.len()).step_by(7).chain([body.len() - 1]) {
        let r = put(&s, &id, temp, NATIVE, &body[..end]);
        assert_eq!(r.status, 400, "{end}: {}", r.text());
    }
    refused(put(&s, &id, temp, NATIVE, &[&body[..], b"x"].concat()), 400, "1 bytes follow");
    // Headers with false statements.
    let length = u32::from_le_bytes(body[8..12].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&body[12..12 + length]).unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut header = header.clone();
        change(&mut header["answer"]["dataset"]);
        let header = header.to_string();
        let head = (header.len() as u32).to_le_bytes();
        [&body[..8], &head, header.as_bytes(), &body[12 + length..]].concat()
    };
    assert_eq!(put(&s, &id, temp, NATIVE, &with(&|_| ())).status, 201);
    let far = json!(1u64 << 60);
    for (part, bad) in [
        ("no sound grid", with(&|d| d["arrays"][0]["grid"]["axes"][0]["len"] = far.clone())),
        ("no sound grid", with(&|d| d["arrays"][0]["dims"] = json!([]))),
        ("is not a dtype", with(&|d| d["arrays"][0]["dtype"] = json!("float31"))),
        ("labels are missing", with(&|d| d["coords"][1]["values"]["int"][1] = far.clone())),
        ("labels for an axis", with(&|d| d["coords"][1]["values"]["int"][1] = json!(3))),
        ("cannot be float64", with(&|d| d["coords"][1]["values"]["int"][0] = json!("float64"))),
        ("have the name `u`", with(&|d| d["arrays"][0]["name"] = json!("u"))),
        ("no array", with(&|d| d["arrays"] = json!([]))),
        ("has lengths", with(&|d| d["arrays"][1]["dims"][0]["name"] = json!("time"))),
        ("cells of `u` are missing", with(&|d| d["arrays"][1]["nullable"] = json!(true))),
        ("its header", with(&|d| d["arrays"] = json!(7))),
    ] {
        refused(put(&s, &id, temp, NATIVE, &bad), 400, part);
    }
    // Any damage: refused or another dataset, and the server lives.
    for at in (0..12 + length).step_by(11) {
        let mut damaged = body.clone();
        damaged[at] ^= 0x15;
        let r = put(&s, &id, temp, NATIVE, &damaged);
        assert!(r.status < 500, "{at}: {}", r.text());
    }
    assert_eq!(s.ask("DELETE", &format!("/v1/sessions/{id}"), "", b"").status, 200);
    is_quiet(&s);
}

/// Carries the connections of a client to a server, and pauses while `waits` is true.
fn proxy(to: String, waits: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for from in listener.incoming().flatten() {
            let there = TcpStream::connect(&to).unwrap();
            let (back, again) = (there.try_clone().unwrap(), from.try_clone().unwrap());
            let waits = waits.clone();
            let flow = move || if waits.load(Ordering::Relaxed) { Flow::Wait } else { Flow::On };
            std::thread::spawn(move || carry(from, there, flow));
            std::thread::spawn(move || carry(back, again, || Flow::On));
        }
    });
    at
}

#[test]
fn a_script_that_is_cancelled_during_an_upload_leaves_nothing() {
    let s = Server::start(&[], &[]);
    let waits = Arc::new(AtomicBool::new(false));
    let c = Client::of(&proxy(s.address().into(), waits.clone()));
    // Columns of a large array, which are copied piece by piece.
    let m = Buffer::from_vec(vec![1.0f64; 32 << 20]);
    let x = named("x", vec![array(&m, [4096, 8192], [1, 4096], 0)], Vec::new());
    let handle = Handle::reading(x);
    let cancel = handle.clone();
    let received = s.metric("tessera_received_bytes_total");
    let (waits, at) = (&waits, &s);
    let took = std::thread::scope(|scope| {
        let cancels = scope.spawn(move || {
            until("the upload has begun", PATIENCE, || {
                at.metric("tessera_received_bytes_total") > received
            });
            waits.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(200));
            let start = Instant::now();
            cancel.cancel();
            start
        });
        let told = c.run_as("SELECT sum(x) FROM x", handle).unwrap_err();
        assert_eq!(told.code(), "cancelled", "{told}");
        cancels.join().unwrap().elapsed()
    });
    assert!(took < Duration::from_secs(20), "{took:?}");
    waits.store(false, Ordering::Relaxed);
    is_quiet(&s);
}

#[cfg(unix)]
#[test]
fn uploads_are_sent_again_to_the_server_that_takes_over() {
    let world = crate::standby::World::new(false);
    let [live, standby] = world.pair(&[]);
    let c = Client::of(&format!("{},{}", url(&standby), url(&live)));
    let m = Buffer::from_vec((0..8_000_000).map(|i| (i % 1009) as f64).collect::<Vec<f64>>());
    let x = named("x", vec![array(&m, [4000, 2000], [2000, 1], 0)], Vec::new());
    assert_eq!(c.csv("SELECT sum(x) AS s FROM x", &x), "s\n4031883036.0\n");
    // Takes some seconds in a debug build.
    let slow = "sum(sin(x) * 0.0 + sin(x * 2) * 0.0 + sin(x * 3) * 0.0 + x)";
    let runs = |s: &Server| {
        let all = s.get("/v1/statements").json();
        let all = all["statements"].as_array().unwrap().clone();
        all.iter().any(|s| {
            s["sql"].as_str().is_some_and(|sql| sql.contains("sin")) && s["state"] == "RUNNING"
        })
    };
    let (done, failed) = std::thread::scope(|scope| {
        let asks = |sql: String| {
            let (c, x) = (&c, &x);
            scope.spawn(move || c.run(&sql, x).map(|r| r.whole().unwrap()))
        };
        let reads = asks(format!("SELECT {slow} AS s FROM x"));
        let makes = asks(format!("CREATE TENSOR made AS SELECT {slow} AS s FROM x"));
        until("both run", PATIENCE, || runs(&live));
        drop(live);
        (reads.join().unwrap(), makes.join().unwrap())
    });
    let done = done.unwrap();
    let tensors = done.answer.tensors().unwrap();
    let whole = tessera_planner::region::Region::whole(&[]);
    let cells = tensors[0].window(&whole).unwrap();
    assert_eq!(f64::from_le_bytes(cells.data.as_slice().try_into().unwrap()), 4031883036.0);
    // The change may have been made: the client decides. Unless it was sent after the takeover.
    if let Err(told) = failed {
        assert_eq!(told.code(), "uploads_gone", "{told}");
    }
    is_quiet(&standby);
}
