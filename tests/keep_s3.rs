//! The warehouse and COPY on S3: the binary against a real server over HTTP.

use crate::common::tessera;
use crate::s3::{KEY, S3, SECRET};
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

struct Server(S3);

fn server() -> Server {
    Server(S3::start())
}

impl Server {
    fn tessera(&self, sql: &str, secret: &str) -> Output {
        tessera()
            .envs(self.0.environment(Some((KEY, secret))))
            .args(["--warehouse", "s3://bkt/wh", "query", "--format", "csv", sql])
            .output()
            .unwrap()
    }

    fn run(&self, sql: &str) -> String {
        let out = self.tessera(sql, SECRET);
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    fn fails(&self, sql: &str) -> String {
        let out = self.tessera(sql, SECRET);
        assert_eq!(out.status.code(), Some(1), "{sql}");
        String::from_utf8(out.stderr).unwrap()
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.path(key)
    }

    /// Objects below a key: the server keeps directories that are empty.
    fn count(&self, key: &str) -> usize {
        fn below(at: &std::path::Path) -> usize {
            let Ok(list) = fs::read_dir(at) else { return 0 };
            let each = |e: std::io::Result<fs::DirEntry>| {
                let path = e.unwrap().path();
                if path.is_dir() { below(&path) } else { 1 }
            };
            list.map(each).sum()
        }
        below(&self.path(key))
    }
}

#[test]
fn the_warehouse_may_be_a_bucket() {
    let s = server();
    s.run("CREATE TENSOR x AS SELECT random_normal([100, 40], seed => 42, chunks => [50, 40], dims => ['row', 'col']) AS x");
    // Each call is a process of its own, so it reads only stored state.
    let here = s.run("SELECT sum(random_normal([100, 40], seed => 42, chunks => [50, 40])) AS s");
    let there = s.run("SELECT sum(x) AS s FROM x");
    let number = |t: &str| t.lines().last().unwrap().parse::<f64>().unwrap();
    assert!((number(&here) - number(&there)).abs() < 1e-9, "{here} {there}");
    assert!(s.fails("CREATE TENSOR x AS SELECT 1").contains("already_exists"));
    s.run("CREATE OR REPLACE TENSOR x AS SELECT x * 0 + 1 AS x FROM x");
    assert_eq!(number(&s.run("SELECT sum(x) AS s FROM x")), 4000.0);
    s.run("CREATE VIEW v AS SELECT x + 1 AS y FROM x; CREATE EXTERNAL TABLE air STORED AS ZARR LOCATION 'tests/data/cf/air.zarr'");
    assert_eq!(number(&s.run("SELECT sum(y) AS s FROM v")), 8000.0);
    let shown = s.run("SHOW TENSORS");
    // The stored path of a file does not depend on the directory in which it is read.
    let air = std::env::current_dir().unwrap().join("tests/data/cf/air.zarr");
    let air = format!("air,external zarr,{}", air.display());
    for part in ["x,tensor,s3://bkt/wh/data/", "v,view,", &air] {
        assert!(shown.contains(part), "{shown}");
    }
    s.run("DROP VIEW v; DROP TENSOR x; DROP TABLE air");
    assert_eq!((s.count("wh/catalog"), s.count("wh/data")), (0, 0));
}

#[test]
fn query_22_writes_shards() {
    let s = server();
    let query =
        "SELECT rechunk(t2m, time => 10, lat => 2, lon => 3) AS t2m FROM 'tests/data/cf/air.zarr'";
    let copy = format!(
        "COPY ({query}) TO 's3://bkt/out.zarr' STORED AS ZARR OPTIONS (zarr_format 3, codec 'zstd:5', shards '[20, 4, 6]'"
    );
    s.run(&format!("{copy})"));
    let sum = |from: &str| {
        s.run(&format!("SELECT count(t2m) AS n, min(t2m) AS lo, max(t2m) AS hi FROM {from}"))
    };
    assert_eq!(sum("'s3://bkt/out.zarr'"), sum("'tests/data/cf/air.zarr'"));
    let meta: serde_json::Value =
        serde_json::from_slice(&fs::read(s.path("out.zarr/t2m/zarr.json")).unwrap()).unwrap();
    assert_eq!(meta["codecs"][0]["configuration"]["codecs"][1]["configuration"]["level"], 5);
    assert!(s.fails(&format!("{copy})")).contains("already_exists"));
    s.run(&format!("{copy}, overwrite true)"));
    assert_eq!(sum("'s3://bkt/out.zarr'"), sum("'tests/data/cf/air.zarr'"));
}

#[test]
fn streams_become_objects() {
    let s = server();
    let query = "SELECT t2m FROM 'tests/data/cf/air.zarr'";
    for format in
        ["NPY", "NPZ", "NETCDF", "TIFF", "SAFETENSORS", "CSV", "NDJSON", "ARROW", "PARQUET"]
    {
        let to = format!("t.{}", format.to_lowercase());
        s.run(&format!("COPY ({query}) TO 's3://bkt/{to}' STORED AS {format}"));
        assert!(s.path(&to).is_file(), "{to}");
        assert!(
            s.fails(&format!("COPY ({query}) TO 's3://bkt/{to}' STORED AS {format}"))
                .contains("already_exists")
        );
    }
    assert_eq!(
        s.run("SELECT min(t2m, skipna => true) AS lo FROM 's3://bkt/t.npz'"),
        s.run("SELECT min(t2m) AS lo FROM 'tests/data/cf/air.zarr'")
    );
    for of in ["netcdf", "safetensors"] {
        assert_eq!(
            s.run(&format!("SELECT max(t2m, skipna => true) AS hi FROM 's3://bkt/t.{of}'")),
            s.run("SELECT max(t2m) AS hi FROM 'tests/data/cf/air.zarr'")
        );
    }
    // Several parts of 16 MiB, put together at the end.
    s.run("COPY (SELECT arange(6000000) AS x) TO 's3://bkt/big.npy' STORED AS NPY");
    assert_eq!(fs::metadata(s.path("big.npy")).unwrap().len(), 128 + 48_000_000);
    assert_eq!(
        s.run("SELECT sum(x) AS s FROM read_npy('s3://bkt/big.npy') AS x").lines().last(),
        Some("17999997000000")
    );
}

#[test]
fn refusals_come_in_time_and_keep_secrets() {
    let s = server();
    let begin = Instant::now();
    for sql in [
        "CREATE TENSOR x AS SELECT arange(3) AS x",
        "COPY (SELECT arange(3) AS x) TO 's3://bkt/x.zarr' STORED AS ZARR",
        "COPY (SELECT arange(3) AS x) TO 's3://bkt/x.npy' STORED AS NPY",
    ] {
        let out = s.tessera(sql, "not-the-secret");
        let told = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{told}");
        assert!(told.contains("permission_denied") && !told.contains("not-the-secret"), "{told}");
    }
    let free = format!("127.0.0.1:{}", crate::cluster::free_port());
    let told = s.fails(&format!(
        "COPY (SELECT arange(3) AS x) TO 's3://bkt/x.zarr' STORED AS ZARR OPTIONS ('aws.endpoint' 'http://{free}')"
    ));
    assert!(told.contains("unreachable") || told.contains("storage_timeout"), "{told}");
    assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", begin.elapsed());
    assert_eq!(s.count(""), 0);
}
