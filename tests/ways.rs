//! The binary as a user runs it: command line, files, HTTP, Ctrl-C.

use crate::common::{SERVE, tessera, until};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn query(sql: &str, flags: &[&str]) -> Output {
    let warehouse = tempfile::tempdir().unwrap();
    tessera()
        .arg("--warehouse")
        .arg(warehouse.path())
        .arg("query")
        .arg(sql)
        .args(flags)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn each_run_that_is_measured_does_its_work() {
    let dir = tempfile::tempdir().unwrap();
    let (warehouse, to) = (dir.path().join("warehouse"), dir.path().join("out.npy"));
    let copy = format!("COPY (SELECT arange(3) AS r) TO '{}' STORED AS NPY", to.display());
    let bench = |sql: &str| {
        let mut command = tessera();
        command.arg("--warehouse").arg(&warehouse).args(["bench", "-n", "2", sql]);
        command.output().unwrap()
    };
    // The warm-up writes the file, so the first run that is measured finds it.
    let out = bench(&copy);
    assert!(text(&out.stderr).contains("error[already_exists]"), "{}", text(&out.stderr));
    let out = bench(&format!("{copy} OPTIONS (overwrite true)"));
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn the_quickstart_answers() {
    let warehouse = tempfile::tempdir().unwrap();
    let out = tessera()
        .arg("--warehouse")
        .arg(warehouse.path())
        .args(["query", "-f", "sql/quickstart.sql"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    // NumPy's, in float64: mean 284.48224043820056; mean of each time step from 284.58657638365963 on.
    for part in [
        "284.48224",
        "284.58658",
        "284.53827",
        "286.37371910",
        "surface: tensor",
        "weighted  float32",
    ] {
        assert!(shown.contains(part), "{part} is missing in\n{shown}");
    }
}

#[test]
fn formats_follow_the_interfaces() {
    let sql = "SELECT arange(6)::float64[1:5] AS x";
    let json: serde_json::Value =
        serde_json::from_slice(&query(sql, &["--format", "json"]).stdout).unwrap();
    let x = &json["tensors"][0];
    assert_eq!(x["name"], "x");
    assert_eq!(x["dtype"], "float64");
    assert_eq!(x["shape"], serde_json::json!([4]));
    assert_eq!(x["data"], serde_json::json!([1.0, 2.0, 3.0, 4.0]));
    // np.save of the same array: the magic, version 1.0, a header, then the cells.
    let npy = query(sql, &["--format", "npy"]).stdout;
    assert_eq!(&npy[..8], b"\x93NUMPY\x01\x00");
    assert!(text(&npy).contains("'descr': '<f8', 'fortran_order': False, 'shape': (4,)"));
    let cells: Vec<u8> = [1.0f64, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(npy[npy.len() - 32..], cells);
    let csv = text(&query(sql, &["--format", "csv"]).stdout);
    assert_eq!(csv, "dim_0,x\n0,1.0\n1,2.0\n2,3.0\n3,4.0\n");
    let null =
        |format: &str| text(&query("SELECT NULL AS s, 1 AS n", &["--format", format]).stdout);
    assert!(null("json").contains("\"rows\":[[null,1]]"), "{}", null("json"));
    assert_eq!(null("ndjson"), "{\"s\":null,\"n\":1}\n");
    assert_eq!(null("csv"), "s,n\n,1\n");
}

#[test]
fn statements_without_results_succeed_in_every_format() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.npy");
    let path = file.display().to_string();
    for flags in [&["--format", "npy"][..], &["--format", "arrow"], &["-o", &path]] {
        let out = query("CREATE TENSOR t AS SELECT arange(3) AS x", flags);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(0), 0), "{}", text(&out.stderr));
        let told = text(&out.stderr);
        assert!(told.contains("created tensor t"), "{told}");
        assert_eq!(told.contains("is not written"), flags[0] == "-o", "{told}");
    }
    assert!(!file.exists());
    // With a result it is that, and nothing is said.
    let out = query("CREATE TENSOR t AS SELECT arange(3) AS x; SELECT x FROM t", &["-o", &path]);
    assert_eq!((out.status.code(), &*text(&out.stderr)), (Some(0), ""));
    assert!(file.exists());
}

#[test]
fn the_configuration_that_is_shown_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let config = |arguments: &[&str]| {
        let out = tessera().args(arguments).arg("config").env_remove("TESSERA_TOKEN").output();
        let out = out.unwrap();
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let file = dir.path().join("t.toml");
    let (status, shown, _) = config(&["--threads", "3", "--spill-limit", "1GiB"]);
    std::fs::write(&file, &shown).unwrap();
    let (again, from_file, told) = config(&["--config", file.to_str().unwrap()]);
    assert_eq!((status, again), (Some(0), Some(0)), "{told}");
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|l| l.rsplit_once('#').unwrap().0.trim().to_string()).collect()
    };
    assert_eq!(values(&from_file), values(&shown));
    assert!(shown.contains("# token (none)"), "{shown}");
    let (status, _, told) = config(&["--log", "bogus"]);
    assert_eq!(status, Some(2));
    assert!(told.contains("`bogus` is not a level"), "{told}");
    let out = tessera().args(["query", "-f", "no/such/file.sql"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}

#[test]
fn errors_name_the_place_and_the_exit_status() {
    let out = query("SELECT nope FROM 'tests/data/cf/air.zarr'", &[]);
    assert_eq!(out.status.code(), Some(1));
    let shown = text(&out.stderr);
    assert!(shown.starts_with("error[unknown_name]: unknown name `nope`\n"), "{shown}");
    assert!(shown.contains("       ^^^^"), "{shown}");
    assert_eq!(query("SELECT 1", &["--format", "nonsense"]).status.code(), Some(2));
    assert_eq!(tessera().arg("--nonsense").output().unwrap().status.code(), Some(2));
}

#[test]
fn hostile_text_gives_one_clear_error() {
    let parens = format!("SELECT {}1{}", "(".repeat(10_000), ")".repeat(10_000));
    let started = Instant::now();
    let out = query(&parens, &[]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("error[nesting_too_deep]"), "{}", text(&out.stderr));
    assert!(started.elapsed() < Duration::from_secs(60));
    // More cells than there is memory for: refused before anything is computed.
    let out = query("SELECT zeros([1000000, 1000000]) + 1", &[]);
    assert!(text(&out.stderr).starts_with("error[memory_exceeded]"), "{}", text(&out.stderr));
}

#[test]
fn the_limit_holds_for_work_that_cannot_fit() {
    // A decomposition has the whole matrix and more in one operand.
    let sql = "SELECT max(svd(random_uniform([1000, 1000], seed => 1)).s)";
    let out = query(sql, &["--memory-limit", "16MiB"]);
    assert_eq!(out.status.code(), Some(1));
    let shown = text(&out.stderr);
    assert!(shown.starts_with("error[memory_exceeded]"), "{shown}");
    assert!(shown.contains("svd") && shown.contains("hint:"), "{shown}");
    // The product is needed until its mean is known. 32 MiB do not hold its 128 MB, so it waits on disk.
    let sql = "SELECT sum(x - mean(x)), max(x) FROM (SELECT random_uniform([4000, 100], seed => 1) @ random_uniform([100, 4000], seed => 2) AS x)";
    let answer = |flags: &[&str]| {
        let out = query(sql, flags);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    assert_eq!(answer(&["--memory-limit", "32MiB"]), answer(&["--memory-limit", "1GiB"]));
    // And where the disk does not hold it either, that is said.
    let out = query(sql, &["--memory-limit", "32MiB", "--spill-limit", "8MiB"]);
    let shown = text(&out.stderr);
    assert!(shown.starts_with("error[scratch_full]") && shown.contains("hint:"), "{shown}");
    // A plan that streams: 800 MB computed on the fly.
    let out = query(
        "SELECT count(sqrt(arange(100000000)::float64)) AS n",
        &["--memory-limit", "64MiB", "--format", "csv"],
    );
    assert_eq!(text(&out.stdout), "n\n100000000\n", "{}", text(&out.stderr));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_query_at_once() {
    let child = tessera()
        .args(["query", "SELECT sum(sin(arange(1000000000000)::float64))"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Before it catches the signal, that ends it as it ends any process.
    let is_caught = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).unwrap();
        let interrupt = 1 << (nix::sys::signal::Signal::SIGINT as u32 - 1);
        u64::from_str_radix(caught.trim(), 16).unwrap() & interrupt != 0
    };
    until("it catches the signal", Duration::from_secs(60), is_caught);
    std::thread::sleep(Duration::from_millis(1000));
    let signalled = Instant::now();
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    assert!(signalled.elapsed() < Duration::from_secs(30), "{:?}", signalled.elapsed());
}

/// A server on a port of its own; ended when the test is over.
struct Server {
    child: Child,
    address: String,
    _warehouse: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let warehouse = tempfile::tempdir().unwrap();
        let mut child = tessera()
            .arg("--warehouse")
            .arg(warehouse.path())
            .args(SERVE)
            .args(["--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let address = line.split("http://").nth(1).unwrap().split(' ').next().unwrap().to_string();
        // The rest of its messages must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address, _warehouse: warehouse }
    }

    /// Status and body of a request.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = text(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn the_server_answers_and_survives_bad_input() {
    let server = Server::start();
    assert_eq!(server.ask("GET", "/healthz", "").0, 200);
    let (status, body) = server.ask("POST", "/v1/query?format=json", "SELECT sum(arange(5)) AS s");
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"data\":10"), "{body}");
    let many = "(".repeat(5000);
    for (sql, code) in [
        ("SELEC 1", "syntax"),
        ("SELECT nope FROM 'tests/data/cf/air.zarr'", "unknown_name"),
        ("SELECT x FROM '/no/such/file.zarr'", "not_found"),
        ("SELECT sum(t2m, axis => 'nope') FROM 'tests/data/cf/air.zarr'", "unknown_name"),
        ("SELECT 'a' + ones([2])", "dtype_mismatch"),
        ("SELECT ones([2]) + ones([3])", "shape_mismatch"),
        ("SELECT sum(x) FROM 'tests/data/bad/no_metadata.zarr'", "not_an_array"),
        ("\u{0}", ""),
        (many.as_str(), ""),
    ] {
        let (status, body) = server.ask("POST", "/v1/query?format=json", sql);
        assert!((400..500).contains(&status), "{sql}: {status} {body}");
        let json: serde_json::Value =
            serde_json::from_str(body.trim()).unwrap_or_else(|e| panic!("{sql}: {e} in {body}"));
        if !code.is_empty() {
            assert_eq!(json["error"]["code"], code, "{sql}: {body}");
        }
    }
    assert_eq!(server.ask("GET", "/healthz", "").0, 200);
    let (status, body) = server.ask(
        "POST",
        "/v1/query?format=csv",
        "SELECT count(*) AS n FROM 'tests/data/cf/air.zarr'",
    );
    assert_eq!(status, 200, "{body}");
}

#[cfg(unix)]
#[test]
fn a_file_beyond_the_limit_of_the_shell_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let script = "ulimit -f 64; exec \"$0\" --warehouse \"$1/w\" query -o \"$1/x.csv\" \"$2\"";
    let out = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_tessera")])
        .arg(dir.path())
        .arg("SELECT arange(100000) AS x")
        .output()
        .unwrap();
    let told = text(&out.stderr);
    assert!(out.status.code() == Some(1) && told.contains("error[no_space]"), "{told}");
    let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| name == "w"), "{told}");
}
