//! Kept results as a user keeps them: CREATE TENSOR, views, COPY; read back through the same engine.
//! `tests/check_kept.py` reads the same stores with xarray and zarr-python.

use futures::StreamExt;
use std::fs;
use std::path::{Path, PathBuf};
use tessera_engine::answer::{Answer, Cell, Reply, Tensor};
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::session::{Host, Session};
use tessera_engine::{Engine, Handle};
use tessera_planner::dtype::DType;

/// A session over a warehouse of its own, and a directory for files.
struct Place {
    runtime: tokio::runtime::Runtime,
    session: Session,
    host: std::sync::Arc<Host>,
    directory: tempfile::TempDir,
}

fn place() -> Place {
    limited("1GiB")
}

fn limited(memory: &str) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let warehouse = directory.path().join("warehouse").to_string_lossy().to_string();
    let flags = [
        ("warehouse", warehouse),
        ("threads", "2".to_string()),
        ("memory-limit", memory.to_string()),
    ];
    let config = Config::load(&flags.into_iter().collect(), [], None).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let host = Host::open(config, runtime.handle().clone()).unwrap();
    let session = Session::of(host.clone());
    Place { runtime, session, host, directory }
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn run_with(&self, sql: &str, cancel: Handle) -> Result<Vec<Reply>, Error> {
        let replies: Vec<_> =
            self.runtime.block_on(async { self.session.run(sql, cancel).collect().await });
        replies.into_iter().collect()
    }

    fn run(&self, sql: &str) -> Vec<Reply> {
        self.run_with(sql, Handle::new()).unwrap_or_else(|e| panic!("{sql}: {}", e.render(sql)))
    }

    fn fails(&self, sql: &str) -> Error {
        self.run_with(sql, Handle::new()).err().unwrap_or_else(|| panic!("{sql} succeeded"))
    }

    fn tensors(&self, sql: &str) -> Vec<Tensor> {
        match self.run(sql).pop().unwrap().whole().unwrap().answer {
            Answer::Tensors(t) => t,
            other => panic!("{sql}: {other:?}"),
        }
    }

    /// Names in a directory, including hidden ones.
    fn names(&self, at: &str) -> Vec<String> {
        let Ok(list) = fs::read_dir(self.path(at)) else { return Vec::new() };
        let mut names: Vec<String> =
            list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Two results are the same to the bit: type, names, labels, attributes, masks, cells.
fn same(a: &Tensor, b: &Tensor) {
    assert_eq!((a.dtype(), a.shape()), (b.dtype(), b.shape()), "{}", a.name());
    assert_eq!(a.dims(), b.dims(), "{}", a.name());
    assert_eq!(a.attrs(), b.attrs(), "{}", a.name());
    for i in 0..a.len() {
        assert_eq!(a.is_masked(i), b.is_masked(i), "{} at {i}", a.name());
        if !a.is_masked(i) {
            // A NaN is any NaN; everything else agrees in its bits.
            let (x, y) = (a.scalar(i), b.scalar(i));
            let nan = x.dtype().is_float() && x.as_f64().is_nan() && y.as_f64().is_nan();
            assert!(nan || x == y, "{} at {i}: {x:?} is not {y:?}", a.name());
        }
    }
}

/// Queries whose results have every type, masks of every kind, labels and calendars, no cell and no dimension.
const QUERIES: [&str; 13] = [
    "SELECT t_bool, t_i1, t_i2, t_i4, t_i8, t_u1, t_u2, t_u4, t_u8, t_f4, t_f8 FROM 'tests/data/cases.zarr'",
    "SELECT m, mn, mi, mcol, n, n32, allnan, allnull FROM 'tests/data/cases.zarr'",
    "SELECT where(c, b, NULL) AS mb, where(c, i, NULL) AS mi FROM 'tests/data/cases.zarr'",
    "SELECT z, z1, zi, s, sb, si FROM 'tests/data/cases.zarr'",
    "SELECT t2m, precip FROM 'tests/data/cf/air.zarr'",
    "SELECT t2m - mean(t2m, axis => 'time') AS anomaly FROM 'tests/data/cf/air.zarr'",
    "SELECT * FROM 'tests/data/cf/noleap.zarr'",
    "SELECT * FROM 'tests/data/cf/day360.zarr'",
    "SELECT x[::-1, 1:5] AS x, transpose(x) AS xt FROM 'tests/data/cases.zarr'",
    "SELECT where(arange(300) % 7 = 0, NULL, arange(300) % 256)::uint8 AS every_byte",
    "SELECT [1.5, NULL, 2.5] AS f",
    // One chunk of three has a masked cell.
    "SELECT rechunk(where(arange(30) = 7, NULL, arange(30) % 2 = 0), dim_0 => 10) AS few",
    "SELECT 42 + arange(0) AS nothing, full([], 3.5) AS one",
];

#[test]
fn tensors_come_back_to_the_bit() {
    let p = place();
    for (k, query) in QUERIES.iter().enumerate() {
        // A star is one table in a cell block; the tensor surface names its variables.
        if query.contains('*') {
            continue;
        }
        let wanted = p.tensors(query);
        p.run(&format!("CREATE TENSOR kept{k} AS {query}"));
        for w in &wanted {
            let got = p.tensors(&format!("SELECT \"{}\" FROM kept{k}", w.name()));
            same(w, &got[0]);
        }
        for (c, codec) in
            ["none", "zstd:5", "gzip:1", "blosc:lz4:5", "blosc:zstd:3"].iter().enumerate()
        {
            for format in [2, 3] {
                let to = p.shown(&format!("copy{k}_{c}_{format}.zarr"));
                p.run(&format!(
                    "COPY ({query}) TO '{to}' STORED AS ZARR OPTIONS (zarr_format {format}, codec '{codec}')"
                ));
                for w in &wanted {
                    let got = p.tensors(&format!("SELECT \"{}\" FROM '{to}'", w.name()));
                    same(w, &got[0]);
                }
            }
        }
    }
    assert!(p.names("").iter().all(|n| !n.starts_with('.')), "{:?}", p.names(""));
}

#[test]
fn netcdf_and_safetensors_hold_the_same_cells() {
    let p = place();
    let mut refused = Vec::new();
    for (k, query) in QUERIES.iter().enumerate().filter(|(_, query)| !query.contains('*')) {
        let wanted = p.tensors(query);
        for format in ["NETCDF", "SAFETENSORS"] {
            let to = p.shown(&format!("copy{k}.{format}"));
            let copy = format!("COPY ({query}) TO '{to}' STORED AS {format}");
            if let Err(e) = p.run_with(&copy, Handle::new()) {
                assert_eq!(e.code(), "format", "{query}: {e}");
                refused.push((k, format));
                continue;
            }
            for w in &wanted {
                let got = p.tensors(&format!("SELECT \"{}\" FROM '{to}'", w.name()));
                alike(w, &got[0], format == "NETCDF");
            }
        }
    }
    // Masked cells that are no floats, in safetensors; several empty dimensions, in NetCDF.
    let want = [(1, "SAFETENSORS"), (2, "SAFETENSORS"), (9, "SAFETENSORS"), (11, "SAFETENSORS")];
    refused.retain(|of| *of != (3, "NETCDF"));
    assert_eq!(refused, want);
    assert!(p.names("").iter().all(|n| !n.starts_with('.')), "{:?}", p.names(""));
}

/// Like `same`, but masked truth values are numbers in NetCDF, and safetensors have cells alone, NaN where masked.
fn alike(a: &Tensor, b: &Tensor, is_netcdf: bool) {
    let name = a.name();
    assert_eq!(a.shape(), b.shape(), "{name}");
    if is_netcdf {
        assert_eq!((a.dims(), a.attrs()), (b.dims(), b.attrs()), "{name}");
    }
    let is_number = a.dtype() == DType::Bool && is_netcdf && (0..a.len()).any(|i| a.is_masked(i));
    assert_eq!(b.dtype(), if is_number { DType::Int8 } else { a.dtype() }, "{name}");
    for i in 0..a.len() {
        let nan = |t: &Tensor| t.dtype().is_float() && t.scalar(i).as_f64().is_nan();
        if a.is_masked(i) {
            assert!(b.is_masked(i) || !is_netcdf && nan(b), "{name} at {i}");
            continue;
        }
        assert!(!b.is_masked(i), "{name} at {i}");
        assert!(nan(a) && nan(b) || a.scalar(i).bits() == b.scalar(i).bits(), "{name} at {i}");
    }
}

#[test]
fn chunks_and_shards_are_as_asked() {
    let p = place();
    let to = p.shown("out.zarr");
    let query =
        "SELECT rechunk(t2m, time => 5, lat => 2, lon => 3) AS t2m FROM 'tests/data/cf/air.zarr'";
    p.run(&format!(
        "COPY ({query}) TO '{to}' STORED AS ZARR OPTIONS (zarr_format 3, codec 'zstd:5', shards '[10, 4, 6]')"
    ));
    let meta: serde_json::Value =
        serde_json::from_slice(&fs::read(p.path("out.zarr/t2m/zarr.json")).unwrap()).unwrap();
    assert_eq!(meta["codecs"][0]["name"], "sharding_indexed");
    assert_eq!(meta["codecs"][0]["configuration"]["chunk_shape"], serde_json::json!([5, 2, 3]));
    assert_eq!(meta["chunk_grid"]["configuration"]["chunk_shape"][0], 10);
    same(&p.tensors(query)[0], &p.tensors(&format!("SELECT t2m FROM '{to}'"))[0]);
    for (options, part) in [
        ("shards '[10, 3, 6]'", "not a multiple"),
        ("shards '[10, 4]'", "2 lengths"),
        ("chunks '[0, 1, 1]'", "length of 0"),
        ("zarr_format 2, shards '[10, 4, 6]'", "no shards"),
    ] {
        let e = p.fails(&format!("COPY ({query}) TO '{to}2' STORED AS ZARR OPTIONS ({options})"));
        assert_eq!(e.code(), "invalid_option", "{e}");
        assert!(e.to_string().contains(part), "{e}");
    }
    assert!(!p.path("out.zarr2").exists());
}

#[test]
fn streams_are_whole_files() {
    let p = place();
    let query = "SELECT t2m FROM 'tests/data/cf/air.zarr'";
    let wanted = p.tensors(query);
    for format in
        ["NPY", "NPZ", "NETCDF", "TIFF", "SAFETENSORS", "CSV", "NDJSON", "ARROW", "PARQUET"]
    {
        let to = p.shown(&format!("t.{}", format.to_lowercase()));
        p.run(&format!("COPY ({query}) TO '{to}' STORED AS {format}"));
        if format == "NPZ" {
            let got = p.tensors(&format!("SELECT t2m FROM '{to}'"));
            assert_eq!(got[0].shape(), wanted[0].shape());
        }
    }
    // One line for each cell, and the header.
    let cells: u64 = wanted[0].shape().iter().product();
    assert_eq!(fs::read_to_string(p.path("t.csv")).unwrap().lines().count() as u64, cells + 1);
    assert_eq!(fs::read_to_string(p.path("t.ndjson")).unwrap().lines().count() as u64, cells);
    let to = p.shown("rows.csv");
    p.run(&format!("COPY (SELECT lat, count(*) AS n FROM 'tests/data/cf/air.zarr' GROUP BY lat) TO '{to}' STORED AS CSV"));
    let lines = fs::read_to_string(&to).unwrap();
    assert!(lines.starts_with("lat,n\n"), "{lines}");
    // A result that a format cannot hold leaves no file.
    let e = p.fails(&format!("COPY (SELECT lat, count(*) AS n, max(t2m) AS m FROM 'tests/data/cf/air.zarr' GROUP BY lat) TO '{to}.npy' STORED AS NPY"));
    assert_eq!(e.code(), "format", "{e}");
    assert!(!p.path("rows.csv.npy").exists());
    assert!(p.names("").iter().all(|n| !n.starts_with('.')), "{:?}", p.names(""));
}

#[test]
fn existing_outputs_stay_unless_overwriting_is_requested() {
    let p = place();
    for format in ["ZARR", "NPY"] {
        let to = p.shown(&format!("x.{format}"));
        p.run(&format!("COPY (SELECT arange(3) AS x) TO '{to}' STORED AS {format}"));
        let e = p.fails(&format!("COPY (SELECT arange(4) AS x) TO '{to}' STORED AS {format}"));
        assert_eq!((e.code(), e.exit_status()), ("already_exists", 1));
        p.run(&format!(
            "COPY (SELECT arange(5) AS x) TO '{to}' STORED AS {format} OPTIONS (overwrite true)"
        ));
    }
    assert_eq!(p.tensors(&format!("SELECT x FROM '{}'", p.shown("x.ZARR")))[0].len(), 5);
    // A directory that is no store must not be replaced.
    fs::create_dir(p.path("mine")).unwrap();
    fs::write(p.path("mine/thesis.txt"), "years of work").unwrap();
    let e = p.fails(&format!(
        "COPY (SELECT arange(5) AS x) TO '{}' STORED AS ZARR OPTIONS (overwrite true)",
        p.shown("mine")
    ));
    assert_eq!(e.code(), "already_exists", "{e}");
    assert_eq!(fs::read_to_string(p.path("mine/thesis.txt")).unwrap(), "years of work");
    let e = p.fails("COPY (SELECT arange(5) AS x) TO '/nowhere/at/all/x.npy' STORED AS NPY");
    assert_eq!(e.code(), "not_found", "{e}");
    let e = p.fails("COPY (SELECT arange(5) AS x) TO 'http://localhost/x.npy' STORED AS NPY");
    assert_eq!(e.code(), "unsupported", "{e}");
    // /proc refuses new directories, even from root.
    let e = p.fails("COPY (SELECT arange(5) AS x) TO '/proc/x.zarr' STORED AS ZARR");
    assert!(["not_found", "permission_denied", "storage_error"].contains(&e.code()), "{e}");
}

#[test]
fn wrong_options_and_formats_tell_the_way() {
    let p = place();
    let to = p.shown("x.zarr");
    for (tail, part) in [
        (format!("'{to}' STORED AS ZAR"), "ZARR"),
        (format!("'{to}' STORED AS XLSX"), "PARQUET"),
        (format!("'{to}' STORED AS ZARR OPTIONS (shard '[1]')"), "shards"),
        (format!("'{to}' STORED AS ZARR OPTIONS (overwrit true)"), "overwrite"),
        (format!("'{to}' STORED AS ZARR OPTIONS (overwrite maybe)"), "true or false"),
        (format!("'{to}' STORED AS ZARR OPTIONS (chunks 'many')"), "'[365, 90, 90]'"),
        (format!("'{to}' STORED AS ZARR OPTIONS (zarr_format 4)"), "2 or 3"),
        (format!("'{to}' STORED AS ZARR OPTIONS (codec 'zip')"), "zstd"),
        (format!("'{to}' STORED AS NPY OPTIONS (chunks '[1]')"), "ZARR"),
        (format!("'{to}' STORED AS NETCDF OPTIONS (crs 'EPSG:4326')"), "TIFF"),
        (format!("'{to}' STORED AS TIFF OPTIONS (crs 'there')"), "EPSG"),
        (format!("'{to}' STORED AS TIFF OPTIONS (dtype 'f16')"), "SAFETENSORS"),
        (format!("'{to}' STORED AS SAFETENSORS OPTIONS (dtype 'int4')"), "bf16"),
        (format!("'{to}' STORED AS SAFETENSORS OPTIONS ('metadat.a' 'b')"), "dtype"),
    ] {
        let e = p.fails(&format!("COPY (SELECT arange(3) AS x) TO {tail}"));
        let hint = e.hint().unwrap_or_default();
        assert!(hint.contains(part), "{tail}: {e}: {hint}");
        assert_eq!(e.class(), tessera_engine::error::Class::User);
    }
    for (query, code) in [
        ("SELECT arange(3) AS x, arange(4) AS x", "duplicate_name"),
        ("SELECT arange(3) AS \"a/b\"", "name_conflict"),
        ("SELECT time[0:3], t2m FROM 'tests/data/cf/air.zarr'", "name_conflict"),
        ("SELECT t2m, t2m[lat => 1:2] AS u FROM 'tests/data/cf/air.zarr'", "name_conflict"),
    ] {
        let e = p.fails(&format!("COPY ({query}) TO '{to}' STORED AS ZARR"));
        // The last one is an error of labels before it is one of names, if there is nothing in the slice.
        assert!(e.code() == code || query.contains("lat =>"), "{query}: {} {e}", e.code());
    }
    assert!(!p.path("x.zarr").exists());
    assert!(p.names("").iter().all(|n| !n.starts_with('.')), "{:?}", p.names(""));
}

#[test]
fn the_catalog_is_durable_and_ordered() {
    let p = place();
    p.run("CREATE TENSOR x AS SELECT arange(10)");
    assert_eq!(p.fails("CREATE TENSOR x AS SELECT 1").code(), "already_exists");
    p.run("CREATE TENSOR IF NOT EXISTS x AS SELECT 1");
    assert_eq!(p.names("warehouse/data").len(), 1);
    // A tensor is read while it is replaced. Then its old cells are removed.
    p.run("CREATE OR REPLACE TENSOR x AS SELECT x + 1 AS x FROM x");
    assert_eq!(p.tensors("SELECT sum(x) AS s FROM x")[0].cell(0), Cell::Int(55));
    assert_eq!(p.names("warehouse/data").len(), 1);
    // Another session, and another process as far as anybody can see.
    let again = Session::of(p.host.clone());
    let replies: Vec<_> = p
        .runtime
        .block_on(async { again.run("SELECT sum(x) FROM x", Handle::new()).collect().await });
    assert!(replies[0].is_ok());
    p.run("CREATE VIEW twice AS\n  SELECT 2 * x AS y FROM x; -- with its comment");
    p.run("CREATE OR REPLACE VIEW four AS SELECT 2 * y AS z FROM twice");
    assert_eq!(p.tensors("SELECT sum(z) AS s FROM four")[0].cell(0), Cell::Int(220));
    assert_eq!(p.fails("CREATE OR REPLACE VIEW twice AS SELECT z FROM four").code(), "cyclic_view");
    assert_eq!(p.fails("CREATE VIEW me AS SELECT * FROM me").code(), "cyclic_view");
    assert_eq!(p.fails("DROP TENSOR four").code(), "wrong_kind");
    assert_eq!(p.fails("DROP VIEW x").code(), "wrong_kind");
    assert_eq!(p.fails("DROP VIEW fuor").code(), "unknown_name");
    p.run("DROP VIEW IF EXISTS fuor; DROP VIEW four; DROP VIEW twice; DROP TENSOR x");
    assert!(p.names("warehouse/data").is_empty());
    assert!(p.names("warehouse/catalog").is_empty());
    // An entry of a later version is refused, and can be dropped.
    fs::write(p.path("warehouse/catalog/new.json"), r#"{"format_version": 99, "name": "new"}"#)
        .unwrap();
    let e = p.fails("SELECT * FROM new");
    assert_eq!(e.code(), "invalid_definition", "{e}");
    p.run("DROP TABLE new");
    assert!(p.names("warehouse/catalog").is_empty());
}

#[test]
fn a_warehouse_of_another_format_is_refused() {
    let p = place();
    fs::create_dir_all(p.path("warehouse")).unwrap();
    fs::write(p.path("warehouse/warehouse.json"), r#"{"format_version": 2}"#).unwrap();
    let e = p.fails("CREATE TENSOR x AS SELECT arange(3)");
    assert_eq!(e.code(), "invalid_definition", "{e}");
    assert!(p.names("warehouse/catalog").is_empty() && p.names("warehouse/data").is_empty());
}

#[test]
fn a_tensor_dropped_while_it_is_read_is_an_error_and_never_zeros() {
    let p = place();
    // All ones in chunks that are zeros where they are absent.
    p.run("CREATE TENSOR x AS SELECT ones([64, 64], chunks => [8, 8]) AS x");
    let data = p.path("warehouse/data");
    let store = fs::read_dir(&data).unwrap().next().unwrap().unwrap().path();
    // Lost chunks are not read as fill values while the tensor exists.
    fs::remove_dir_all(store.join("x/c/3")).unwrap();
    let e = p.fails("SELECT sum(x) AS s FROM x");
    assert!(e.code() == "corrupt" && e.to_string().contains("x/c/3/"), "{e}");
    let p = std::sync::Arc::new(p);
    let reader = {
        let p = p.clone();
        std::thread::spawn(move || {
            let mut wrong = 0;
            for _ in 0..50 {
                match p.run_with("SELECT sum(y) AS s FROM y", Handle::new()) {
                    Ok(mut r) => match r.pop().unwrap().whole().unwrap().answer {
                        Answer::Tensors(t) => {
                            wrong += usize::from(t[0].cell(0) != Cell::F64(4096.0))
                        }
                        other => panic!("{other:?}"),
                    },
                    Err(e) => assert!(
                        [
                            "unknown_name",
                            "source_changed",
                            "not_found",
                            "not_an_array",
                            "invalid_metadata"
                        ]
                        .contains(&e.code()),
                        "{} {e}",
                        e.code()
                    ),
                }
            }
            wrong
        })
    };
    for _ in 0..20 {
        p.run("CREATE OR REPLACE TENSOR y AS SELECT ones([64, 64], chunks => [8, 8]) AS y; DROP TENSOR y");
    }
    assert_eq!(reader.join().unwrap(), 0);
}

#[test]
fn a_cancel_in_the_middle_leaves_nothing() {
    let p = limited("256MiB");
    let before = p.host.runtime().quota().used();
    for (statement, at) in [
        (
            "CREATE TENSOR big AS SELECT random_normal([20000, 4000], seed => 1, chunks => [500, 500])",
            "warehouse/data",
        ),
        (
            "COPY (SELECT random_normal([20000, 4000], seed => 1, chunks => [500, 500]) AS big) TO '{}' STORED AS ZARR",
            "",
        ),
    ] {
        let sql = statement.replace("{}", &p.shown("big.zarr"));
        for wait_ms in [0, 30, 150, 400] {
            let cancel = Handle::new();
            let fire = cancel.clone();
            let timer = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(wait_ms));
                fire.cancel();
            });
            let e = p.run_with(&sql, cancel).expect_err("640 MB take longer than that");
            timer.join().unwrap();
            assert_eq!(e.code(), "cancelled", "{e}");
            let left: Vec<String> = p.names(at).into_iter().filter(|n| n != "warehouse").collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
    assert!(p.names("warehouse/catalog").is_empty());
    // Threads release the memory of their last block of work after it ends.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while p.host.runtime().quota().used() > before {
        assert!(std::time::Instant::now() < deadline, "{} bytes", p.host.runtime().quota().used());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn more_than_the_memory_limit_is_written() {
    let p = limited("64MiB");
    // 256 MB, in chunks of 8 MB, written as chunks of another shape.
    p.run("CREATE TENSOR big AS SELECT random_normal([4000, 8000], seed => 1, chunks => [1000, 1000]) AS big");
    let to = p.shown("re.zarr");
    p.run(&format!(
        "COPY (SELECT big FROM big) TO '{to}' STORED AS ZARR OPTIONS (chunks '[100, 8000]')"
    ));
    let sum = |from: &str| p.tensors(&format!("SELECT min(big) AS s FROM {from}"))[0].cell(0);
    assert_eq!(sum("big"), sum(&format!("'{to}'")));
    assert!(Path::new(&to).join("big/c/39/0").exists());
}
