//! The access rules of a server's statements: each door to files, buckets and other servers, with allowed and refused
//! statements.

use crate::common::{binary, until};
use crate::http::Server;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Directories `open`, which is read, `out`, which is written, and `shut`; and a warehouse.
struct World {
    directory: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let world = World { directory: tempfile::tempdir().unwrap() };
        for name in ["open/tables", "shut/tables", "out"] {
            fs::create_dir_all(world.directory.path().join(name)).unwrap();
        }
        for root in ["open", "shut"] {
            world.cli(&format!(
                "COPY (SELECT arange(6) + 1 AS x) TO '{0}/a.npy' STORED AS NPY; \
                 COPY (SELECT arange(6) + 1 AS x) TO '{0}/a.zarr' STORED AS ZARR OPTIONS (chunks '[2]')",
                world.at(root)
            ));
            fs::write(world.path(&format!("{root}/tables/t.csv")), "k,v\n1,10\n2,11\n").unwrap();
        }
        let link = |to: &str, name: &str| symlink(to, world.path(name)).unwrap();
        link("../shut/a.npy", "open/link.npy");
        link("../shut", "open/link");
        link("../shut", "out/link");
        link("a.npy", "open/same.npy");
        // A store and a table of which one file is elsewhere.
        world.cli(&format!(
            "COPY (SELECT arange(6) AS x) TO '{}' STORED AS ZARR OPTIONS (chunks '[2]')",
            world.at("open/leak.zarr")
        ));
        fs::remove_file(world.path("open/leak.zarr/x/c/1")).unwrap();
        link("../../../../shut/a.zarr/x/c/1", "open/leak.zarr/x/c/1");
        fs::create_dir(world.path("open/leaks")).unwrap();
        fs::write(world.path("open/leaks/a.csv"), "k,v\n1,10\n").unwrap();
        link("../../shut/tables/t.csv", "open/leaks/b.csv");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs a statement on the command line, which may access everything.
    fn try_cli(&self, sql: &str) -> Output {
        let mut command = Command::new(binary());
        command.stdin(Stdio::null()).arg("--warehouse").arg(self.path("warehouse"));
        command.args(["query", "--format", "csv", sql]).output().unwrap()
    }

    fn cli(&self, sql: &str) {
        let out = self.try_cli(sql);
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn serve(&self, more: &[&str]) -> Server {
        let mut command = Command::new(binary());
        command.stdin(Stdio::null()).current_dir(self.directory.path());
        command.arg("--warehouse").arg(self.path("warehouse"));
        command.args(["serve", "--no-token", "--listen", "127.0.0.1:0"]);
        command.args(["--allow-read", &self.at("open"), "--allow-write", &self.at("out")]);
        command.args(more);
        Server::spawn(command)
    }

    /// The names of the world in a statement.
    fn sql(&self, text: &str) -> String {
        text.replace('~', &self.directory.path().display().to_string())
    }
}

fn ask(s: &Server, sql: &str) -> (u16, String, String) {
    let r = s.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
    match r.status {
        200 => (200, String::new(), r.text()),
        status => {
            let error = r.json()["error"].clone();
            (status, error["code"].as_str().unwrap().to_string(), error.to_string())
        }
    }
}

fn allowed(s: &Server, world: &World, sql: &str) -> String {
    let (status, _, text) = ask(s, &world.sql(sql));
    assert_eq!(status, 200, "{sql}: {text}");
    text
}

fn refused(s: &Server, world: &World, sql: &str) -> String {
    let (status, code, text) = ask(s, &world.sql(sql));
    assert_eq!((status, code.as_str()), (403, "not_allowed"), "{sql}: {text}");
    text
}

#[test]
fn each_door_for_reading_has_the_same_lock() {
    let world = World::new();
    let s = world.serve(&[]);
    // Sums are NumPy's: numpy.arange(1, 7).sum() and 10 + 11.
    for (sql, answer) in [
        ("SELECT sum(x) AS s FROM '~/ROOT/a.npy' AS x", "s\n21\n"),
        ("SELECT sum(x) AS s FROM 'file://~/ROOT/a.zarr'", "s\n21\n"),
        ("SELECT sum(x) AS s FROM read_zarr('~/ROOT/a.zarr')", "s\n21\n"),
        ("SELECT count(*) AS n FROM CELLS('~/ROOT/a.zarr')", "n\n6\n"),
        ("SELECT sum(v) AS s FROM '~/ROOT/tables/t.csv'", "s\n21\n"),
        ("SELECT sum(v) AS s FROM read_csv('~/ROOT/tables/t.csv')", "s\n21\n"),
        ("SELECT sum(v) AS s FROM read_csv('~/ROOT/tables/')", "s\n21\n"),
        ("WITH a AS (SELECT x FROM '~/ROOT/a.zarr') SELECT sum(x) AS s FROM a", "s\n21\n"),
        ("SELECT (SELECT max(v) FROM '~/ROOT/tables/t.csv') AS m", "m\n11\n"),
        (
            "CREATE VIEW v_ROOT AS SELECT x FROM '~/ROOT/a.zarr'; SELECT sum(x) AS s FROM v_ROOT",
            "s\n21\n",
        ),
        (
            "CREATE EXTERNAL TABLE e_ROOT STORED AS ZARR LOCATION '~/ROOT/a.zarr'; \
             SELECT sum(x) AS s FROM e_ROOT",
            "s\n21\n",
        ),
        (
            "CREATE EXTERNAL TABLE c_ROOT STORED AS CSV LOCATION '~/ROOT/tables/t.csv'; \
             SELECT sum(v) AS s FROM c_ROOT",
            "s\n21\n",
        ),
        (
            "CREATE TENSOR t_ROOT AS SELECT x FROM '~/ROOT/a.zarr'; SELECT sum(x) AS s FROM t_ROOT",
            "s\n21\n",
        ),
        ("COPY (SELECT x FROM '~/ROOT/a.zarr') TO '~/out/ROOT.npy' STORED AS NPY", ""),
        ("DESCRIBE '~/ROOT/a.zarr'", ""),
        ("EXPLAIN SELECT sum(x) FROM '~/ROOT/a.zarr'", ""),
    ] {
        let text = allowed(&s, &world, &sql.replace("ROOT", "open"));
        assert!(text.ends_with(answer), "{sql}: {text}");
        let told = refused(&s, &world, &sql.replace("ROOT", "shut"));
        assert!(told.contains("--allow-read") && told.contains(&world.at("open")), "{told}");
    }
    // A missing file is reported like an existing one.
    for path in ["shut/none.npy", "shut/none.zarr", "shut/none.csv", "none"] {
        refused(&s, &world, &format!("SELECT * FROM '~/{path}'"));
    }
    // Relative paths begin at the server's directory.
    assert_eq!(allowed(&s, &world, "SELECT sum(x) AS s FROM 'open/a.zarr'"), "s\n21\n");
    refused(&s, &world, "SELECT sum(x) AS s FROM 'shut/a.zarr'");
    refused(&s, &world, "SELECT * FROM '/etc/passwd'");
    refused(&s, &world, "SELECT * FROM read_csv('/etc/passwd')");
    // The command line is its user's.
    world.cli(&world.sql("SELECT sum(x) FROM '~/shut/a.zarr'"));
}

#[test]
fn links_dots_and_groups_lead_nowhere_else() {
    let world = World::new();
    let s = world.serve(&[]);
    for sql in [
        "SELECT sum(x) FROM '~/open/link.npy' AS x",
        "SELECT sum(x) FROM '~/open/link/a.zarr'",
        "SELECT sum(x) FROM '~/open/../shut/a.zarr'",
        "SELECT sum(x) FROM '~/open/none/../../shut/a.zarr'",
        "SELECT sum(x) FROM 'file://~/open/%2e%2e/shut/a.zarr'",
        "SELECT sum(x) FROM '~/open/leak.zarr'",
        "SELECT sum(v) FROM read_csv('~/open/leaks/')",
        "SELECT sum(v) FROM '~/open/link/tables/t.csv'",
        "SELECT sum(v) FROM '~/open/*/t.csv'",
        "SELECT sum(v) FROM '~/*/tables/t.csv'",
    ] {
        let (status, code, text) = ask(&s, &world.sql(sql));
        match code.as_str() {
            "not_allowed" => assert_eq!(status, 403, "{sql}"),
            // A pattern is a name like others.
            _ => assert!(sql.contains("open/*") && code == "not_found", "{sql}: {text}"),
        }
    }
    let (_, code, text) =
        ask(&s, &world.sql("SELECT sum(x) FROM '~/open/a.zarr#../../shut/a.zarr'"));
    assert_eq!(code, "bad_url", "{text}");
    assert_eq!(allowed(&s, &world, "SELECT sum(x) AS s FROM '~/open/same.npy' AS x"), "s\n21\n");
}

#[test]
fn definitions_of_others_follow_the_same_rules() {
    let world = World::new();
    world.cli(&world.sql(
        "CREATE VIEW leak AS SELECT x FROM '~/shut/a.zarr'; \
         CREATE VIEW above AS SELECT x + 1 AS y FROM leak; \
         CREATE EXTERNAL TABLE rows STORED AS CSV LOCATION '~/shut/tables/t.csv'; \
         CREATE EXTERNAL TABLE cells STORED AS ZARR LOCATION '~/shut/a.zarr'",
    ));
    let s = world.serve(&[]);
    for sql in [
        "SELECT sum(x) FROM leak",
        "SELECT sum(y) FROM above",
        "SELECT sum(v) FROM rows",
        "SELECT sum(x) FROM cells",
        "CREATE VIEW mine AS SELECT x FROM leak",
    ] {
        refused(&s, &world, sql);
    }
    let r = s.get("/v1/tensors/leak");
    assert_eq!((r.status, r.json()["error"]["code"].as_str()), (403, Some("not_allowed")));
    drop(s);
    // The flags of the server decide.
    let s = world.serve(&["--allow-read", &world.at("shut")]);
    assert_eq!(allowed(&s, &world, "SELECT sum(y) AS s FROM above"), "s\n27\n");
    assert_eq!(allowed(&s, &world, "SELECT sum(v) AS s FROM rows"), "s\n21\n");
}

#[test]
fn copies_go_where_they_may() {
    let world = World::new();
    let s = world.serve(&[]);
    let copy = |to: &str, format: &str| {
        format!("COPY (SELECT arange(3) AS x) TO '{to}' STORED AS {format}")
    };
    for to in ["~/shut/x", "~/open/x", "~/x", "~/out/../shut/x", "~/out/link/x", "/tmp/x"] {
        for format in ["NPY", "ZARR", "CSV"] {
            let told = refused(&s, &world, &copy(to, format));
            let hint = told.split("may be written").nth(1).unwrap();
            assert!(hint.contains("--allow-write") && !hint.contains(&world.at("open")), "{told}");
        }
    }
    assert!(!world.path("shut/x").exists());
    for format in ["NPY", "ZARR", "PARQUET"] {
        allowed(&s, &world, &copy(&format!("~/out/x.{}", format.to_lowercase()), format));
    }
    // Outputs may be read, and so may the files of the warehouse.
    assert_eq!(allowed(&s, &world, "SELECT sum(x) AS s FROM '~/out/x.zarr'"), "s\n3\n");
    allowed(&s, &world, &copy("~/warehouse/files/x.npy", "NPY"));
    let sum = "SELECT sum(x) AS s FROM '~/warehouse/files/x.npy' AS x";
    assert_eq!(allowed(&s, &world, sum), "s\n3\n");
}

#[test]
fn of_the_warehouse_statements_see_tensors_and_files_only() {
    let world = World::new();
    world.cli(&world.sql(
        "CREATE EXTERNAL TABLE b STORED AS ZARR LOCATION '~/open/a.zarr' \
         OPTIONS ('aws.secret_access_key' 'TOPSECRET')",
    ));
    // Also if all is allowed.
    for more in [&[][..], &["--allow-read", "*", "--allow-write", "*"]] {
        let s = world.serve(more);
        let told = refused(&s, &world, "SELECT * FROM read_json('~/warehouse/catalog/b.json')");
        assert!(!told.contains("TOPSECRET"), "{told}");
        for sql in [
            "SELECT * FROM read_json('~/warehouse/catalog/')",
            "SELECT * FROM read_json('~/warehouse/statements/')",
            "SELECT * FROM read_json('~/warehouse/epochs/')",
            "SELECT * FROM read_json('~/open/../warehouse/catalog/b.json')",
            "COPY (SELECT 'x' AS name) TO '~/warehouse/catalog/evil.json' STORED AS NDJSON",
            "COPY (SELECT arange(3) AS x) TO '~/warehouse/data/evil.zarr' STORED AS ZARR",
            "COPY (SELECT arange(3) AS x) TO '~/warehouse' STORED AS ZARR OPTIONS (overwrite true)",
        ] {
            refused(&s, &world, sql);
        }
        if !more.is_empty() {
            // A listing from above meets a private directory.
            let (_, code, text) = ask(&s, &world.sql("SELECT * FROM read_json('~/')"));
            assert!(["not_allowed", "not_a_table"].contains(&code.as_str()), "{text}");
            assert!(!text.contains("TOPSECRET"));
        }
    }
}

/// A server of HTTP that answers each request by its path, and counts connections.
struct Web {
    port: u16,
    met: Arc<AtomicUsize>,
}

impl Web {
    fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let met = Arc::new(AtomicUsize::new(0));
        let (count, answer) = (met.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = answer.clone();
                std::thread::spawn(move || serve_one(stream.unwrap(), &*answer));
            }
        });
        Web { port, met }
    }

    fn met(&self) -> usize {
        self.met.load(Ordering::SeqCst)
    }
}

fn serve_one(mut stream: TcpStream, answer: &dyn Fn(&str) -> String) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let answer = answer(path);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = if method == "HEAD" { "" } else { body };
    let _ = write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}");
}

fn ok(body: &str) -> String {
    format!(
        "200 OK\r\nContent-Length: {}\r\nETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n{body}",
        body.len()
    )
}

fn moved(to: &str) -> String {
    format!("302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")
}

const TABLE: &str = "k,v\n1,10\n2,11\n";

#[test]
fn other_servers_are_not_asked_unless_they_are_allowed() {
    let world = World::new();
    let inner = Web::start(|_| ok(TABLE));
    let (secret, own) = (inner.port, Arc::new(AtomicUsize::new(0)));
    let port = own.clone();
    let public = Web::start(move |path| match path.split('?').next().unwrap() {
        "/public/t.csv" | "/public/there.csv" => ok(TABLE),
        "/public/away.csv" => moved(&format!("http://127.0.0.1:{secret}/t.csv")),
        "/public/inside.csv" => {
            moved(&format!("http://127.0.0.1:{}/private.csv", port.load(Ordering::SeqCst)))
        }
        "/public/on.csv" => moved("/public/there.csv"),
        "/private.csv" => ok(TABLE),
        _ => "404 Not Found\r\nContent-Length: 0\r\n\r\n".into(),
    });
    own.store(usize::from(public.port), Ordering::SeqCst);
    let prefix = format!("http://127.0.0.1:{}/public/", public.port);
    let s = world.serve(&["--allow-read", &prefix, "--allow-read", "s3://bucket"]);
    let sum = |url: &str| format!("SELECT sum(v) AS s FROM read_csv('{url}')");
    assert_eq!(allowed(&s, &world, &sum(&format!("{prefix}t.csv"))), "s\n21\n");
    assert_eq!(allowed(&s, &world, &sum(&format!("{prefix}on.csv"))), "s\n21\n");
    let met = public.met();
    for url in [
        format!("http://127.0.0.1:{}/private.csv", public.port),
        format!("http://127.0.0.1:{}/publicx/t.csv", public.port),
        format!("http://127.0.0.1:{}/public/../private.csv", public.port),
        format!("http://localhost:{}/public/t.csv", public.port),
        format!("http://127.0.0.1:{secret}/t.csv"),
    ] {
        refused(&s, &world, &sum(&url));
        refused(&s, &world, &format!("SELECT * FROM '{url}.zarr'"));
    }
    assert_eq!((public.met(), inner.met()), (met, 0), "nobody was asked");
    // A redirect is followed only to a location that may be read.
    for name in ["away.csv", "inside.csv"] {
        refused(&s, &world, &sum(&format!("{prefix}{name}")));
    }
    assert_eq!(inner.met(), 0, "it was led there, and did not go");
    // Nor does an endpoint lead anywhere, although the bucket of that name may be read.
    let endpoint = format!("http://127.0.0.1:{secret}");
    for sql in [
        format!(
            "CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION 's3://bucket/x.zarr' \
             OPTIONS ('aws.endpoint' '{endpoint}', 'aws.allow_http' 'true')"
        ),
        format!(
            "CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 's3://bucket/x.csv' \
             OPTIONS ('aws.endpoint' '{endpoint}', 'aws.allow_http' 'true')"
        ),
        format!(
            "COPY (SELECT arange(3) AS x) TO 's3://bucket/x.zarr' STORED AS ZARR \
             OPTIONS ('aws.endpoint' '{endpoint}', 'aws.allow_http' 'true')"
        ),
    ] {
        refused(&s, &world, &sql);
    }
    let (_, code, text) = ask(
        &s,
        "CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION 's3://bucket/x.zarr' \
         OPTIONS ('aws.region' 'x.evil.example/')",
    );
    assert_eq!(code, "unknown_option", "{text}");
    assert_eq!(inner.met(), 0);
}

#[test]
fn uploads_and_tensors_need_no_rule() {
    let world = World::new();
    let s = world.serve(&[]);
    let npy = fs::read(world.path("open/a.npy")).unwrap();
    let r = s.ask("PUT", "/v1/tensors/up", "", &npy);
    assert_eq!(r.status, 201, "{}", r.text());
    assert_eq!(allowed(&s, &world, "SELECT sum(up) AS s FROM up"), "s\n21\n");
}

#[test]
fn rules_come_from_files_and_the_environment() {
    let world = World::new();
    let file = world.path("tessera.toml");
    fs::write(&file, format!("[allowed-paths]\nread = [{:?}]\n", world.at("shut"))).unwrap();
    let s = world.serve(&["--config", &file.display().to_string()]);
    // A flag comes before the file.
    refused(&s, &world, "SELECT sum(x) FROM '~/shut/a.zarr'");
    drop(s);
    let start = |environment: &[(&str, &str)]| {
        let config = file.display().to_string();
        Server::start_as(&["serve", "--no-token", "--config", &config], environment)
    };
    let s = start(&[]);
    assert_eq!(allowed(&s, &world, "SELECT sum(x) AS s FROM '~/shut/a.zarr'"), "s\n21\n");
    refused(&s, &world, "SELECT sum(x) FROM '~/open/a.zarr'");
    refused(&s, &world, "COPY (SELECT arange(3) AS x) TO '~/shut/x.npy' STORED AS NPY");
    drop(s);
    let both = format!("{}, {}", world.at("open"), world.at("out"));
    let s = start(&[("TESSERA_ALLOW_READ", &both)]);
    assert_eq!(allowed(&s, &world, "SELECT sum(x) AS s FROM '~/open/a.zarr'"), "s\n21\n");
    refused(&s, &world, "SELECT sum(x) FROM '~/shut/a.zarr'");
    // The rules hold for the command line too, if they are set.
    let mut command = Command::new(binary());
    command.env("TESSERA_ALLOW_READ", &both).arg("--warehouse").arg(world.path("w"));
    let sql = world.sql("SELECT sum(x) FROM '~/shut/a.zarr'");
    let out = command.args(["query", &sql]).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && told.contains("error[not_allowed]"), "{told}");
}

/// A process that is ended with the test.
struct Worker(std::process::Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

#[test]
fn workers_read_by_the_rules_of_the_server() {
    let world = World::new();
    let join = format!("127.0.0.1:{}", crate::cluster::free_port());
    let secret = world.at("cluster.secret");
    let mut command = Command::new(binary());
    command.stdin(Stdio::null()).env("TESSERA_CLUSTER_SECRET_FILE", &secret);
    command.arg("--warehouse").arg(world.path("warehouse"));
    command.args([
        "serve",
        "--no-token",
        "--listen",
        "127.0.0.1:0",
        "--allow-read",
        &world.at("open"),
    ]);
    command.args(["--cluster", "--cluster-listen", &join]);
    let s = Server::spawn(command);
    let mut command = Command::new(binary());
    command.stdin(Stdio::null()).stderr(Stdio::null()).env("TESSERA_CLUSTER_SECRET_FILE", &secret);
    command.args(["--memory-limit", "128MiB", "worker", "--scheduler", &join, "--no-supervisor"]);
    let _worker = Worker(command.spawn().unwrap());
    until("the worker is there", Duration::from_secs(60), || {
        ask(&s, "SHOW WORKERS").2.contains(",alive,")
    });
    let spread =
        |path: &str| format!("SET tessera.spread = 'all'; SELECT sum(x * 2) AS s FROM '~/{path}'");
    assert_eq!(allowed(&s, &world, &spread("open/a.zarr")), "s\n42\n");
    let orders = s.get("/v1/cluster").text();
    refused(&s, &world, &spread("open/leak.zarr"));
    assert_ne!(orders, s.get("/v1/cluster").text(), "the worker was told");
}
