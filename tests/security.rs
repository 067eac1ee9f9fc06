//! The promises of docs/security.md, cell by cell: tokens that servers make, TLS, the brake on wrong tokens, and the
//! traces of secrets on disk.

use crate::common::{Certified, binary};
use crate::s3::{KEY, S3, SECRET};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

mod edges;

/// A directory for a server and its clients, which have no other state.
struct World {
    directory: tempfile::TempDir,
}

/// A running server, and the lines that it printed at its start.
struct Running {
    child: Child,
    address: String,
    told: Vec<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl World {
    fn new() -> World {
        World { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn command(&self) -> Command {
        let mut command = Command::new(binary());
        command.stdin(Stdio::null()).env("XDG_RUNTIME_DIR", self.path("run"));
        command.env_remove("TESSERA_TOKEN").arg("--warehouse").arg(self.path("warehouse"));
        command
    }

    /// Starts a server; the error has the lines that it printed if it ended.
    fn try_serve(
        &self,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Running, String> {
        let mut command = self.command();
        command.args(arguments).envs(environment.iter().copied());
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut told = Vec::new();
        let address = loop {
            match lines.next() {
                None => {
                    child.wait().unwrap();
                    return Err(told.join("\n"));
                }
                Some(line) => told.push(line.unwrap()),
            }
            if let Some(line) = told.last().filter(|l| l.starts_with("listening on ")) {
                break line.split("://").nth(1).unwrap().split(' ').next().unwrap().to_string();
            }
        };
        // The lines about a token follow the line about listening.
        let tokens = told.last().unwrap().contains("with a token");
        if tokens && !environment.iter().any(|(k, _)| *k == "TESSERA_TOKEN") {
            told.extend(lines.by_ref().take(3).map(Result::unwrap));
        }
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Running { child, address, told })
    }

    fn serve(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Running {
        let all = [arguments, &["--listen", "127.0.0.1:0"]].concat();
        self.try_serve(&all, environment).unwrap_or_else(|told| panic!("{told}"))
    }

    fn query(&self, more: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.command();
        command.args(["query", "--format", "csv"]).args(more);
        command.envs(environment.iter().copied()).output().unwrap()
    }
}

impl Running {
    /// Status, head and body of the response to these bytes.
    fn raw(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server may refuse the head before all bytes are sent.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        (head[9..12].parse().unwrap(), head.to_ascii_lowercase(), body.to_string())
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String, String) {
        let host = match headers.contains("Host: ") {
            true => String::new(),
            false => format!("Host: {}\r\n", self.address),
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    fn status(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> u16 {
        self.ask(method, path, headers, body).0
    }
}

fn code(body: &str) -> String {
    let v: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body:?}"));
    assert!(v["error"]["class"].is_string() && v["error"]["message"].is_string(), "{body}");
    v["error"]["code"].as_str().unwrap().to_string()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// The rows of the table of the page that begins with that cell, without their first two lines.
fn table(first: &str) -> Vec<Vec<String>> {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md")).unwrap();
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split('|').map(|c| c.trim().to_string()).collect()
    };
    let rows: Vec<_> = page
        .lines()
        .skip_while(|l| !l.starts_with(&format!("| {first} |")))
        .take_while(|l| l.starts_with('|'))
        .skip(2)
        .map(cells)
        .collect();
    assert!(rows.len() > 4, "the table of `{first}` is not there");
    rows
}

#[test]
fn routes_require_the_documented_rights() {
    let (world, another) = (World::new(), World::new());
    let locked = world.serve(&["serve"], &[("TESSERA_TOKEN", "right")]);
    let open = another.serve(&["serve", "--no-token"], &[]);
    let npy = {
        let out = world.at("x.npy");
        let sql = format!("COPY (SELECT arange(3) AS x) TO '{out}' STORED AS NPY");
        assert!(world.query(&[&sql], &[]).status.success());
        fs::read(&out).unwrap()
    };
    let right = "Authorization: Bearer right\r\n";
    let other = "Origin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n";
    for row in table("who asks") {
        let (s, variants): (&Running, Vec<String>) = match row[0].as_str() {
            "with the token" => (&locked, vec![right.into()]),
            "with the token, from a page of another site" => (
                &locked,
                vec![format!("{right}{other}"), format!("{right}Sec-Fetch-Site: cross-site\r\n")],
            ),
            "with a wrong token" => (
                &locked,
                vec![
                    "Authorization: Bearer wrong\r\n".into(),
                    "Authorization: Basic right\r\n".into(),
                ],
            ),
            "without a token" => (&locked, vec![String::new()]),
            "of a server without a token: this machine" => (
                &open,
                vec![String::new(), "Host: localhost:1\r\n".into(), "Host: [::1]\r\n".into()],
            ),
            "of a server without a token: a page of another site" => (
                &open,
                vec![
                    other.into(),
                    "Origin: http://evil.example\r\n".into(),
                    "Origin: null\r\n".into(),
                    "Sec-Fetch-Site: cross-site\r\n".into(),
                ],
            ),
            "of a server without a token: a page of another port" => (
                &open,
                vec![
                    "Origin: http://127.0.0.1:1\r\n".into(),
                    "Sec-Fetch-Site: same-site\r\n".into(),
                ],
            ),
            "of a server without a token: another name for this machine" => (
                &open,
                vec!["Host: evil.example\r\n".into(), "Host: 127.0.0.1.evil.example\r\n".into()],
            ),
            unknown => panic!("nobody tries `{unknown}`"),
        };
        let calls: [&[(&str, &str, &[u8])]; 5] = [
            &[("GET", "/healthz", b""), ("GET", "/readyz", b""), ("GET", "/openapi.json", b"")],
            &[
                ("POST", "/v1/query?format=csv", b"SELECT 1 AS a"),
                ("POST", "/v1/statements", b"{\"sql\": \"SELECT 1 AS a\"}"),
                ("GET", "/v1/statements", b""),
                ("POST", "/v1/sessions", b""),
            ],
            &[("GET", "/v1/tensors", b"")],
            &[("PUT", "/v1/tensors/x", &npy), ("DELETE", "/v1/tensors/x", b"")],
            &[("GET", "/metrics", b""), ("GET", "/v1/cluster", b"")],
        ];
        assert_eq!(row.len(), 1 + calls.len());
        for headers in &variants {
            for (cell, calls) in row[1..].iter().zip(calls) {
                for (method, path, body) in calls {
                    // A wrong one in between would be counted.
                    if cell == "401" && !headers.is_empty() {
                        assert_eq!(s.status("GET", "/v1/tensors", right, b""), 200);
                    }
                    let (status, _, answer) = s.ask(method, path, headers, body);
                    let wanted = match cell.as_str() {
                        "yes" => (200..300).contains(&status),
                        refused => status.to_string() == *refused,
                    };
                    assert!(wanted, "{}: {headers:?} {method} {path}: {status} {answer}", row[0]);
                    if status >= 400 {
                        let wanted = if status == 401 { "unauthorized" } else { "forbidden" };
                        assert_eq!(code(&answer), wanted);
                    }
                }
            }
        }
    }
}

#[test]
fn where_a_server_listens() {
    let world = World::new();
    certified(&world, "ours");
    for row in table("`--listen`") {
        let bare = |cell: &str| cell.trim_matches('`').to_string();
        let flags = bare(&row[1]);
        let flags: Vec<String> = flags
            .split_whitespace()
            .map(|word| match word {
                "C" => world.at("ours.certificate.pem"),
                "K" => world.at("ours.key.pem"),
                word => word.to_string(),
            })
            .collect();
        let listen = bare(&row[0]);
        let mut arguments = vec!["serve", "--listen", &listen];
        arguments.extend(flags.iter().map(String::as_str));
        match world.try_serve(&arguments, &[]) {
            Ok(s) => {
                assert_eq!(row[2], "yes", "{row:?} starts: {:?}", s.told);
                let is_secure = flags.iter().any(|f| f == "--certificate");
                let scheme = if is_secure { "https" } else { "http" };
                assert!(
                    s.told[0].starts_with(&format!("listening on {scheme}://")),
                    "{:?}",
                    s.told
                );
            }
            Err(told) => {
                assert_eq!(row[2], "no", "{row:?} does not start: {told}");
                assert!(
                    told.contains("error[open_listen]") && told.contains("--insecure"),
                    "{told}"
                );
            }
        }
    }
}

/// A server on the network without a token is one for everybody, by whatever name.
#[test]
fn a_server_with_no_token_and_insecure_answers_everyone() {
    let world = World::new();
    let s = world
        .try_serve(&["serve", "--listen", "0.0.0.0:0", "--no-token", "--insecure"], &[])
        .unwrap_or_else(|told| panic!("{told}"));
    assert!(s.told[0].contains("for everybody, without a token"), "{:?}", s.told);
    let ask = |headers: &str| s.status("POST", "/v1/query?format=csv", headers, b"SELECT 1 AS a");
    assert_eq!(ask("Host: any.example:8080\r\n"), 200);
    assert_eq!(ask("Host: any.example\r\nOrigin: http://evil.example\r\n"), 403);
}

#[test]
fn statements_access_only_the_documented_places() {
    let world = World::new();
    for name in ["read", "write", "shut"] {
        fs::create_dir(world.path(name)).unwrap();
        let sql = format!(
            "COPY (SELECT arange(4) AS x) TO '{}/x.npy' STORED AS NPY; CREATE OR REPLACE TENSOR t AS SELECT arange(4) AS x",
            world.at(name)
        );
        assert!(world.query(&[&sql], &[]).status.success());
    }
    for name in ["read", "write"] {
        symlink(world.path("shut/x.npy"), world.path(name).join("file.npy")).unwrap();
        symlink(world.path("shut"), world.path(name).join("directory")).unwrap();
    }
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nETag: \"1\"\r\n\
                  Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close\r\n\r\nx\n1\n2\n3\n";
    let web = web(answer);
    let s3 = S3::start();
    let allowed = format!("http://{web}/open/");
    let mut environment = s3.environment(Some((KEY, SECRET)));
    environment
        .push(("TESSERA_ALLOW_READ".into(), format!("{},{allowed},s3://bkt", world.at("read"))));
    environment.push(("TESSERA_ALLOW_WRITE".into(), world.at("write")));
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let s = world.serve(&["serve", "--no-token"], &environment);
    let cells = world.at("warehouse/data");
    let cells = fs::read_dir(cells).unwrap().map(|e| e.unwrap().path());
    let cells = cells.into_iter().find(|p| p.extension().is_some_and(|e| e == "zarr")).unwrap();
    let read = |path: &str| vec![format!("SELECT sum(x) AS s FROM '{path}' AS x")];
    let rows = |path: &str| vec![format!("SELECT count(*) AS n FROM read_csv('{path}')")];
    let json = |path: String| format!("SELECT count(*) AS n FROM read_json('{path}')");
    let write = |directory: &str| {
        let to = world.at(directory);
        vec![
            format!("COPY (SELECT arange(3) AS x) TO '{to}/ID.npy' STORED AS NPY"),
            format!("COPY (SELECT arange(3) AS x) TO '{to}/ID.zarr' STORED AS ZARR"),
        ]
    };
    let at = |name: &str| world.at(name);
    let endpoint = format!("OPTIONS ('aws.endpoint' 'http://{web}', 'aws.allow_http' 'true')");
    let mut number = 0;
    for row in table("what") {
        // Statements that read such a thing, and that write it.
        let (reads, writes): (Vec<String>, Vec<String>) = match row[0].as_str() {
            "tensors of the warehouse, by name" => (
                vec!["SELECT sum(x) AS s FROM t".into()],
                vec!["CREATE OR REPLACE TENSOR other AS SELECT arange(3) AS x".into()],
            ),
            "`files/` in the warehouse" => {
                let own = at("warehouse/files/own.npy");
                fs::copy(world.path("shut/x.npy"), &own).unwrap();
                (read(&own), write("warehouse/files"))
            }
            "`data/` in the warehouse" => (
                vec![format!("SELECT sum(x) AS s FROM '{}'", cells.display())],
                write("warehouse/data"),
            ),
            "the rest of the warehouse: catalog, records, keys" => (
                vec![json(at("warehouse/catalog/t.json")), json(at("warehouse/warehouse.json"))],
                write("warehouse/catalog"),
            ),
            "below `--allow-read`" => (read(&at("read/x.npy")), write("read")),
            "below `--allow-write`" => (read(&at("write/x.npy")), write("write")),
            "a link there that leads out of it" => (
                [read(&at("read/file.npy")), read(&at("write/directory/x.npy"))].concat(),
                [write("read/directory"), write("write/directory")].concat(),
            ),
            "anything else" => {
                ([read(&at("shut/x.npy")), read(&at("read/../shut/x.npy"))].concat(), write("shut"))
            }
            // Nothing is written over HTTP: `unsupported`, whatever the rules.
            "a URL below one that is allowed" => (rows(&format!("{allowed}x.csv")), Vec::new()),
            "another URL" => (rows(&format!("http://{web}/opener/x.csv")), Vec::new()),
            "an allowed bucket at an endpoint that is not" => (
                vec![format!(
                    "CREATE OR REPLACE EXTERNAL TABLE e STORED AS CSV LOCATION 's3://bkt/x.csv' {endpoint}"
                )],
                vec![format!(
                    "COPY (SELECT arange(3) AS x) TO 's3://bkt/ID.npy' STORED AS NPY {endpoint}"
                )],
            ),
            unknown => panic!("nobody tries `{unknown}`"),
        };
        for (cell, statements) in [(&row[1], &reads), (&row[2], &writes)] {
            for sql in statements {
                number += 1;
                let sql = sql.replace("ID", &format!("s{number}"));
                let (status, _, body) = s.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
                match cell.as_str() {
                    "yes" => assert_eq!(status, 200, "{}: {sql}: {body}", row[0]),
                    "no" => {
                        assert_eq!(status, 403, "{}: {sql}: {body}", row[0]);
                        assert_eq!(code(&body), "not_allowed", "{sql}");
                    }
                    other => panic!("`{other}` is neither"),
                }
            }
        }
        assert_eq!(row[3], "yes");
        for sql in reads.iter().chain(&writes) {
            number += 1;
            let sql = sql.replace("ID", &format!("c{number}"));
            let out = world.query(&[&sql], &[]);
            let told = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(!told.contains("not_allowed"), "{sql}: {told}");
            // Files below the catalog's directory must not be read as its entries.
            let _ = fs::remove_file(world.path("warehouse/catalog").join(format!("c{number}.npy")));
        }
    }
}

/// A server that answers everything so; where it listens.
fn web(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read(&mut byte) {
                        Ok(1) => head.push(byte[0]),
                        _ => return,
                    }
                }
                let bare = answer.split_inclusive("\r\n\r\n").next().unwrap();
                let is_head = head.starts_with(b"HEAD");
                let _ = stream.write_all(if is_head { bare } else { answer }.as_bytes());
            });
        }
    });
    address
}

/// An authority, and a certificate of it for this machine: `NAME.authority.pem`, `NAME.certificate.pem`, `NAME.key.pem`.
fn certified(world: &World, name: &str) {
    let Certified { certificate, key, authority } = crate::common::certified();
    let files = [("certificate", certificate), ("key", key), ("authority", authority)];
    for (what, pem) in files {
        fs::write(world.path(&format!("{name}.{what}.pem")), pem).unwrap();
    }
}
