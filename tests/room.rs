//! No room: statements that cannot write say so with path and numbers, leave nothing, and the server goes on.
//!
//! Twice: with a limit on the length of files (`ulimit -f`), which works everywhere, and on a file system of a few
//! megabytes of its own where the machine lets a user have one.

use crate::common::{files, names};
use crate::http::Server;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A server that has little room in its directories.
struct Small {
    server: Server,
    directory: tempfile::TempDir,
    /// The root of the file systems that it sees.
    root: PathBuf,
}

/// A shell that runs `prepare`, then the server with directories below `{dir}`.
fn small(around: &[&str], prepare: &str) -> Small {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let script = format!(
        "{}; mkdir -p {dir}/spill {dir}/output && exec {} --warehouse {dir}/warehouse --spill-dir {dir}/spill \
         --spill-limit 1GiB --memory-limit 64MiB --threads 2 \
         serve --no-token --allow-read '*' --allow-write '*' --listen 127.0.0.1:0",
        prepare.replace("{dir}", &dir.to_string()),
        env!("CARGO_BIN_EXE_tessera"),
    );
    let mut command = match around {
        [] => Command::new("sh"),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg("sh");
            command
        }
    };
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(["-c", &script]).stdin(Stdio::null());
    let server = Server::spawn(command);
    let root = PathBuf::from(format!("/proc/{}/root", server.id()));
    Small { server, directory, root }
}

impl Small {
    fn path(&self, name: &str) -> PathBuf {
        let own = self.directory.path().join(name);
        self.root.join(own.strip_prefix("/").unwrap())
    }

    fn ask(&self, sql: &str) -> (u16, Value) {
        let reply = self.server.ask("POST", "/v1/query?format=json", "", sql.as_bytes());
        (reply.status, reply.json())
    }

    fn put(&self, bytes: usize) -> (u16, Value) {
        let n = bytes / 8;
        let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({n},), }}");
        let mut npy = b"\x93NUMPY\x01\x00".to_vec();
        npy.extend_from_slice(&118u16.to_le_bytes());
        npy.extend_from_slice(header.as_bytes());
        npy.resize(127, b' ');
        npy.push(b'\n');
        npy.resize(128 + 8 * n, 1);
        let kind = "Content-Type: application/x-npy\r\n";
        let reply = self.server.ask("PUT", "/v1/tensors/up", kind, &npy);
        (reply.status, reply.json())
    }

    /// The statement is refused for want of room, nothing is left of it, and the next one works.
    fn is_refused(&self, what: &str, (status, body): (u16, Value), codes: &[&str]) {
        let error = &body["error"];
        assert_eq!((status, &error["class"]), (413, &Value::from("limit")), "{what}: {body}");
        let code = error["code"].as_str().unwrap();
        assert!(codes.contains(&code), "{what}: {body}");
        let message = error["message"].as_str().unwrap();
        let dir = self.directory.path().display().to_string();
        assert!(message.contains(&dir) && message.contains("bytes"), "{what}: {message}");
        assert!(error["hint"].is_string(), "{what}: {body}");
        let start = Instant::now();
        loop {
            let left: Vec<PathBuf> = files(&self.path("spill"))
                .into_iter()
                .chain(files(&self.path("output")))
                .chain(files(&self.path("warehouse/data")))
                .filter(|f| !f.ends_with("lock"))
                .collect();
            let output = names(&self.path("output"));
            let catalog = names(&self.path("warehouse/catalog"));
            if left.is_empty() && output.is_empty() && catalog.is_empty() {
                break;
            }
            let waited = start.elapsed() < Duration::from_secs(60);
            assert!(waited, "{what}: {left:?} {output:?} {catalog:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let (status, body) = self.ask("SELECT sum(arange(5)) AS s");
        assert_eq!(status, 200, "{what}: {body}");
    }

    fn refuses_everything(&self) {
        // The first chunks fit, being all alike; the last do not.
        let x = "where(arange(2000000) < 1000000, 1.0, random_uniform([2000000], seed => 1)) AS x";
        self.is_refused(
            "CREATE TENSOR",
            self.ask(&format!("CREATE TENSOR t AS SELECT {x}")),
            &["no_space"],
        );
        // Streams are written when the result is complete. The result is small: a large one would itself wait on disk.
        let few = "random_uniform([110000], seed => 1) AS x";
        for format in
            ["ZARR", "NPY", "NPZ", "NETCDF", "SAFETENSORS", "PARQUET", "CSV", "NDJSON", "ARROW"]
        {
            let x = if format == "ZARR" { x } else { few };
            let to = self.directory.path().join("output").join(format);
            let sql = format!("COPY (SELECT {x}) TO '{}' STORED AS {format}", to.display());
            self.is_refused(&sql, self.ask(&sql), &["no_space"]);
        }
        // More than memory holds, so it has to wait on disk: a result, chunks on the way, rows that are sorted.
        let wide =
            "random_normal([4000, 2500], seed => 2, chunks => [4000, 100], dims => ['r', 'c'])";
        let rows = "random_normal([1000, 1200], seed => 2, dims => ['r', 'c'])";
        for sql in [
            format!("SELECT {wide} AS x"),
            format!(
                "SET tessera.lift = 'off'; SELECT r, c, x FROM (SELECT {rows} AS x) ORDER BY x"
            ),
        ] {
            self.is_refused(&sql, self.ask(&sql), &["scratch_full", "result_storage"]);
        }
        self.is_refused("an upload", self.put(8 << 20), &["result_storage", "no_space"]);
    }
}

#[test]
fn without_room_for_a_file_statements_report_it_and_the_server_continues() {
    // Blocks of 512 or 1024 bytes, as the shell has it. Ignoring the signal makes the write fail instead.
    let s = small(&[], "trap '' XFSZ; ulimit -f 600");
    s.refuses_everything();
}

#[test]
fn on_a_full_file_system_statements_report_it_and_the_server_continues() {
    let around = ["unshare", "--user", "--map-root-user", "--mount"];
    let mount = "mount -t tmpfs -o size=6m tmpfs {dir} && head -c 5900000 /dev/zero > {dir}/filler";
    let probe = tempfile::tempdir().unwrap();
    let script = mount.replace("{dir}", &probe.path().display().to_string());
    let works = Command::new(around[0]).args(&around[1..]).args(["sh", "-c", &script]).output();
    if !works.is_ok_and(|o| o.status.success()) {
        // Mounting is not permitted on this machine: the other test covers it.
        return;
    }
    let s = small(&around, mount);
    s.refuses_everything();
}
