//! `tessera query --connect`.

use super::{ENDLESS, Server, until};
use crate::common::tessera;
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn a_remote_server_answers_like_a_local_session() {
    let s = Server::start(&[], &[]);
    let embedded = |arguments: &[&str]| {
        let warehouse = tempfile::tempdir().unwrap();
        tessera()
            .arg("--warehouse")
            .arg(warehouse.path())
            .arg("query")
            .args(arguments)
            .output()
            .unwrap()
    };
    let scripts = [
        "SELECT t2m FROM 'tests/data/cf/air.zarr'",
        "CREATE TEMP TENSOR m AS SELECT mean(t2m, axis => 'time') AS m FROM 'tests/data/cf/air.zarr'; SELECT m - 270 AS d FROM m",
        "SELECT lat, count(*) AS n, avg(t2m) AS a FROM 'tests/data/cf/air.zarr' GROUP BY lat ORDER BY lat",
        "SELECT zeros([0, 3]) AS e",
        "SELECT 1.5 AS x",
        "EXPLAIN SELECT sum(arange(10))",
        "SHOW FUNCTIONS",
    ];
    for script in scripts {
        for format in [
            "table",
            "json",
            "ndjson",
            "csv",
            "arrow",
            "npy",
            "npz",
            "netcdf",
            "tiff",
            "safetensors",
        ] {
            let (here, there) =
                (embedded(&[script, "--format", format]), s.query(&[script, "--format", format]));
            assert_eq!(
                here.status.code(),
                there.status.code(),
                "{script} {format}: {}",
                String::from_utf8_lossy(&there.stderr)
            );
            assert!(here.stdout == there.stdout, "{script} as {format}");
            assert_eq!(
                String::from_utf8_lossy(&here.stderr),
                String::from_utf8_lossy(&there.stderr)
            );
        }
    }
    for bad in [
        "SELEC 1",
        "SELECT 1;\n SELECT nope FROM 'tests/data/cf/air.zarr'",
        "SELECT ones([2]) + ones([3])",
    ] {
        let (here, there) = (embedded(&[bad]), s.query(&[bad]));
        assert_eq!(String::from_utf8_lossy(&here.stderr), String::from_utf8_lossy(&there.stderr));
        assert_eq!((here.status.code(), there.status.code()), (Some(1), Some(1)));
    }
    // Sessions of calls that are over are gone.
    assert_eq!(s.metric("tessera_sessions"), 0.0);
    assert_eq!(s.metric("tessera_result_bytes{place=\"memory\"}"), 0.0);
    let nobody =
        tessera().args(["query", "SELECT 1", "--connect", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(3), "{}", String::from_utf8_lossy(&nobody.stderr));
    let shell = tessera().args(["--connect", "http://127.0.0.1:9"]).output().unwrap();
    assert_eq!(shell.status.code(), Some(3));
    let odd = tessera().args(["query", "SELECT 1", "--connect", "ftp://x"]).output().unwrap();
    assert_eq!(odd.status.code(), Some(2));
}

#[test]
fn ctrl_c_cancels_at_the_server() {
    let s = Server::start(&[], &[]);
    let url = format!("http://{}", s.address);
    let child = tessera()
        .args(["query", ENDLESS, "--connect", &url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("it runs there", || s.metric("tessera_statements_running") == 1.0);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
    until("it ended there", || s.metric("tessera_statements_running") == 0.0);
    assert_eq!(s.metric("tessera_statements_total{state=\"CANCELLED\"}"), 1.0);
    // If the terminal closes or the process is ended, nothing keeps running on the server, nor for a shell. Under
    // `nohup`, children of these tests ignore the first signal.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1;
    let hang_up = if ignored { "-TERM" } else { "-HUP" };
    for (signal, shell) in [(hang_up, false), ("-TERM", false), ("-TERM", true)] {
        let mut command = tessera();
        match shell {
            true => command.args(["--connect", &url]).stdin(Stdio::piped()),
            false => command.args(["query", ENDLESS, "--connect", &url]),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if shell {
            let text = format!("{ENDLESS};\n");
            child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        }
        until("it runs there", || s.metric("tessera_statements_running") > 0.0);
        let id = child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert!(!child.wait_with_output().unwrap().status.success());
        until("it ended there", || s.metric("tessera_statements_running") == 0.0);
    }
}

#[test]
fn tokens_are_asked_for_and_sent() {
    let s = Server::start(&[], &[("TESSERA_TOKEN", "secret-7")]);
    assert_eq!(s.get("/v1/statements").status, 401);
    assert_eq!(s.get("/metrics").status, 401);
    assert_eq!(s.get("/healthz").status, 200);
    assert_eq!(s.get("/openapi.json").json()["openapi"], "3.1.0");
    let without = s.query(&["SELECT 1"]);
    assert_eq!(without.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&without.stderr).starts_with("error[unauthorized]"));
    let with = s.query(&["SELECT 1 AS x", "--format", "csv", "--token", "secret-7"]);
    assert_eq!(String::from_utf8_lossy(&with.stdout), "x\n1\n");
}
