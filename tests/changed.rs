//! Sources that change: while a statement reads them, and between a statement and its next run.

use crate::common::{files, names, tessera};
use crate::http::Server;
use crate::restart::{Place, accepted, end, result, submit, until};
use crate::s3::{KEY, S3, SECRET};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Writes an array of `int8` without codecs: rows of `columns` cells, `rows` of them to a chunk.
fn array(at: &Path, chunks: u64, rows: u64, columns: u64) {
    fs::create_dir_all(at).unwrap();
    let (shape, chunk) = ([chunks * rows, columns], [rows, columns]);
    let document = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"int8","chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{chunk:?}}}}},"chunk_key_encoding":{{"name":"default"}},"fill_value":0,"codecs":[{{"name":"bytes"}}]}}"#
    );
    fs::write(at.join("zarr.json"), document).unwrap();
    for n in 0..chunks {
        let cells: Vec<u8> = (0..rows * columns).map(|i| ((i + n) % 100) as u8).collect();
        write(&at.join(format!("c/{n}/0")), &cells);
    }
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    // Clocks of file systems tick slowly, and each change is to be a moment of its own.
    static SECONDS: AtomicU64 = AtomicU64::new(1_000_000);
    let since = Duration::from_secs(SECONDS.fetch_add(1, Relaxed));
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + since).unwrap();
}

/// Changes the last byte.
fn change(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    write(path, &bytes);
}

fn query(s3: &S3, sql: &str) -> Output {
    let warehouse = s3.directory.path().join("wh");
    tessera()
        .envs(s3.environment(Some((KEY, SECRET))))
        .arg("--warehouse")
        .arg(warehouse)
        .args(["query", "--format", "csv", sql])
        .output()
        .unwrap()
}

#[test]
fn a_statement_fails_if_an_object_changes_while_it_reads() {
    let cases = [
        // The position runs first, and reads all that the rest reads again.
        ("a.zarr/c/0/0", "SELECT a[0, argmax(a[0, :])] AS m FROM 's3://bkt/a.zarr'"),
        ("t.csv", "SELECT count(*) AS n FROM 's3://bkt/t.csv'"),
        ("t.ndjson", "SELECT count(*) AS n FROM 's3://bkt/t.ndjson'"),
        ("t.parquet", "SELECT sum(lat0) AS n FROM 's3://bkt/t.parquet'"),
    ];
    for (key, sql) in cases {
        // The number of the read before which the object changes: 0 for none.
        let run = |at: u64| {
            let reads = std::sync::Arc::new(AtomicU64::new(0));
            let (counted, place) = (reads.clone(), std::sync::Arc::new(std::sync::OnceLock::new()));
            let file: std::sync::Arc<std::sync::OnceLock<std::path::PathBuf>> = place.clone();
            let s3 = S3::failing(move |_, line| {
                if line.starts_with(&format!("GET /bkt/{key}"))
                    && counted.fetch_add(1, Relaxed) + 1 == at
                    && let Some(file) = file.get()
                {
                    change(file);
                }
                None
            });
            place.set(s3.path(key)).unwrap();
            array(&s3.path("a.zarr"), 1, 2, 50);
            for ending in ["csv", "ndjson", "parquet"] {
                let bytes = fs::read(format!("tests/data/tables/regions.{ending}")).unwrap();
                write(&s3.path(&format!("t.{ending}")), &bytes);
            }
            (query(&s3, sql), reads.load(Relaxed), s3.refused())
        };
        let (out, reads, refused) = run(0);
        assert_eq!(refused, 0, "{sql}");
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(reads >= 2, "{sql}: {reads} reads");
        let (out, _, refused) = run(reads);
        assert!(refused > 0, "{sql}: the version that was read was not asked for");
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{sql}: {told}");
        let parts = ["source_changed", &format!("s3://bkt/{key}"), "run the statement again"];
        assert!(parts.iter().all(|part| told.contains(part)), "{sql}: {told}");
    }
}

/// The code of the error in place of a result.
fn code(s: &Server, id: &str) -> Value {
    end(s, id);
    let r = s.get(&format!("/v1/statements/{id}/result?format=json"));
    assert!(r.status >= 400, "{}", r.text());
    r.json()["error"]["code"].clone()
}

#[test]
fn finished_results_of_sources_that_changed_are_not_given_as_if_nothing_had_been() {
    let p = Place::new();
    let at = |name: &str| p.directory.path().join(name);
    array(&at("few.zarr"), 3, 1, 4);
    array(&at("many.zarr"), 600, 1, 4);
    array(&at("kept.zarr"), 3, 1, 4);
    for ending in ["csv", "ndjson", "parquet"] {
        let bytes = fs::read(format!("tests/data/tables/regions.{ending}")).unwrap();
        write(&at(&format!("t.{ending}")), &bytes);
    }
    write(&at("folder/one.csv"), b"n\n1\n");
    write(&at("npy/x.npy"), &fs::read("tests/data/npy/i4.npy").unwrap());
    let rows = |name: &str| format!("SELECT count(*) AS n FROM '{}'", at(name).display());
    let sum =
        |array: &str, name: &str| format!("SELECT sum({array}) AS s FROM '{}'", at(name).display());
    let folder = format!("SELECT sum(n) AS n FROM read_csv('{}/')", at("folder").display());
    let sources = [
        (sum("few", "few.zarr"), at("few.zarr/c/1/0")),
        (sum("many", "many.zarr"), at("many.zarr/c/599/0")),
        (sum("x", "npy/x.npy"), at("npy/x.npy")),
        (rows("t.csv"), at("t.csv")),
        (rows("t.ndjson"), at("t.ndjson")),
        (rows("t.parquet"), at("t.parquet")),
        (folder.clone(), at("folder/one.csv")),
    ];
    let s = p.serve();
    let session = s.ask("POST", "/v1/sessions", "", b"").json()["id"].as_str().unwrap().to_string();
    let header = format!("Tessera-Session: {session}\r\n");
    let temps: Vec<String> = ["few", "many"]
        .iter()
        .map(|name| {
            let made = sum(name, &format!("{name}.zarr"));
            end(&s, &accepted(&s, &header, &format!("CREATE TEMP TENSOR t_{name} AS {made}")));
            accepted(&s, &header, &format!("SELECT s FROM t_{name}"))
        })
        .collect();
    let ids: Vec<String> = sources.iter().map(|(sql, _)| submit(&s, sql)).collect();
    let kept = [submit(&s, &sum("kept", "kept.zarr")), submit(&s, &folder)];
    let all = ids.iter().chain(&temps).chain(&kept);
    let before: Vec<String> = all.clone().map(|id| result(&s, id)).collect();
    // While the objects do not change, their cells do not change.
    drop(s);
    let s = p.serve();
    let again: Vec<String> = all.map(|id| result(&s, id)).collect();
    assert_eq!(again, before);
    drop(s);
    sources.iter().for_each(|(_, path)| change(path));
    let s = p.serve();
    for (id, (sql, _)) in ids.iter().zip(&sources) {
        assert_eq!(code(&s, id), "source_changed", "{sql}");
    }
    for id in &temps {
        assert_eq!(code(&s, id), "source_changed");
    }
    assert_eq!(result(&s, &kept[0]), before[before.len() - 2]);
    assert_eq!(code(&s, &kept[1]), "source_changed");
}

#[test]
fn a_folder_of_tables_is_listed_by_each_statement() {
    let p = Place::new();
    let folder = p.directory.path().join("folder");
    write(&folder.join("one.csv"), b"n\n1\n");
    let s = p.serve();
    let sql = format!("SELECT sum(n) AS n FROM read_csv('{}/')", folder.display());
    let sum = || result(&s, &submit(&s, &sql));
    let one = sum();
    write(&folder.join("two.csv"), b"n\n20\n");
    let both = sum();
    assert!(one.contains("[[1]]") && both.contains("[[21]]"), "{one} {both}");
    fs::remove_file(folder.join("one.csv")).unwrap();
    assert!(sum().contains("[[20]]"));
}

#[test]
fn a_killed_statement_resumes_only_with_the_versions_that_it_had_read() {
    let p = Place::new();
    let source = p.directory.path().join("a.zarr");
    array(&source, 100, 10, 30_000);
    let random = "random_normal([1000, 30000], seed => 3, chunks => [10, 30000])";
    let sql = format!("SELECT sum(median(a * {random}, 1)) AS s FROM '{}'", source.display());
    for is_changed in [false, true] {
        // Slow enough to be killed in the middle.
        let s = p.serve_with(&[("TESSERA_FAIL", "operand.fused=sleep")]);
        let id = submit(&s, &format!("SET tessera.durability = 'all'; {sql}"));
        let kept = p.warehouse().join("statements").join(&id);
        // Each is that of an operand, which reads several chunks of the source.
        let chunks = || {
            let mut all = match kept.join("chunks").exists() {
                true => files(&kept.join("chunks")),
                false => Vec::new(),
            };
            all.retain(|f| f.extension().is_some_and(|e| e == "chunk"));
            all
        };
        until("some chunks are kept", || {
            let status = s.get(&format!("/v1/statements/{id}")).json();
            assert_ne!(status["state"], "FINISHED", "the machine is too fast for this test");
            chunks().len() >= 2
        });
        drop(s);
        assert!(!names(&kept.join("reads")).is_empty());
        // Chunks are lost, and have to be recomputed.
        for chunk in chunks().iter().skip(1) {
            fs::remove_file(chunk).unwrap();
        }
        if is_changed {
            (0..100).for_each(|n| change(&source.join(format!("c/{n}/0"))));
        }
        let s = p.serve();
        let status = end(&s, &id);
        match is_changed {
            false => assert_eq!(status["state"], "FINISHED", "{status}"),
            true => assert_eq!(status["error"]["code"], "source_changed", "{status}"),
        }
        until("what it kept is gone", || !kept.exists());
    }
}
