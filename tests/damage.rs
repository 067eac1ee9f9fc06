//! Damage: files of a warehouse that differ from the written ones, and sources that vanish while they are read. An
//! answer is never wrong: either the right one, or an error that names the file.

use crate::common::{Place, Random, SERVE, files, number};
use crate::http::Server;
use crate::restart;
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tessera_engine::answer::{Answer, Cell};

/// The contents of the warehouse that is damaged at random: several types, chunks that are all fill value, masks of
/// both kinds, labels that are numbers, texts and moments, a scalar, views.
const MADE: [&str; 8] = [
    "CREATE TENSOR a AS SELECT rechunk(reshape(arange(48)::float64, [6, 8], dims => ['y', 'x']), y => 2, x => 4) AS a",
    "CREATE TENSOR b AS SELECT rechunk(where(arange(40) >= 20, arange(40), 0), dim_0 => 10)::int32 AS b",
    "CREATE TENSOR m AS SELECT rechunk(where(arange(30) % 7 = 0, NULL, arange(30)), dim_0 => 8)::float32 AS m",
    "CREATE TENSOR f AS SELECT rechunk(where(arange(30) % 5 = 0, NULL, arange(30) % 2 = 0), dim_0 => 10) AS f",
    "CREATE TENSOR u AS SELECT where(arange(300) % 7 = 0, NULL, arange(300) % 256)::uint8 AS u",
    "CREATE TENSOR t AS SELECT t2m FROM 'tests/data/cf/air.zarr'",
    "CREATE TENSOR s AS SELECT 42 AS s",
    "CREATE VIEW v AS SELECT 2 * a AS w FROM a",
];

/// Questions whose answers are known otherwise: sums of integers.
const KNOWN: [(&str, f64); 5] = [
    ("SELECT sum(a) AS s FROM a", 1128.0),
    ("SELECT sum(b) AS s FROM b", 590.0),
    // 0, 7, 14, 21 and 28 are masked.
    ("SELECT sum(m) AS s FROM m", 365.0),
    ("SELECT sum(w) AS s FROM v", 2256.0),
    ("SELECT s FROM s", 42.0),
];

/// Queries for all cells with their labels, so that exchanged cells are noticed.
const WHOLE: [&str; 11] = [
    "SELECT a FROM a",
    "SELECT b FROM b",
    "SELECT m FROM m",
    "SELECT f FROM f",
    "SELECT u FROM u",
    "SELECT t2m FROM t",
    "SELECT w FROM v",
    "SELECT s FROM s",
    // Rows take another way.
    "SELECT y, x, a FROM a WHERE a > 5",
    "SELECT lat, avg(t2m) AS mean, count(*) AS n FROM t GROUP BY lat ORDER BY lat",
    "SELECT count(*) AS n FROM m WHERE m > 3",
];

/// The kinds of damage to files.
#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip,
    Truncate,
    Remove,
    Swap,
    Copy,
}

/// All files of a warehouse, to be put back.
struct Saved(Vec<(PathBuf, Vec<u8>)>);

impl Saved {
    fn of(warehouse: &Path) -> Saved {
        let mut all = files(warehouse);
        all.retain(|f| f.extension().is_none_or(|e| e != "lock"));
        all.sort();
        Saved(all.into_iter().map(|f| (f.clone(), fs::read(f).unwrap())).collect())
    }

    fn put_back(&self, which: &[usize]) {
        for (file, bytes) in which.iter().map(|&i| &self.0[i]) {
            fs::write(file, bytes).unwrap();
        }
    }

    /// Does a random damage and returns the files that differ from the originals.
    fn damage(&self, random: &mut Random) -> (Damage, Vec<usize>) {
        loop {
            let mut draw = |n: usize| (random.next() % n as u64) as usize;
            let (one, other) = (draw(self.0.len()), draw(self.0.len()));
            let ((path, bytes), (other_path, other_bytes)) = (&self.0[one], &self.0[other]);
            let kinds =
                [Damage::Flip, Damage::Truncate, Damage::Remove, Damage::Swap, Damage::Copy];
            let kind = kinds[draw(kinds.len())];
            match kind {
                Damage::Flip | Damage::Truncate if bytes.is_empty() => continue,
                Damage::Swap | Damage::Copy if bytes == other_bytes => continue,
                Damage::Flip => {
                    let (mut bytes, bit) = (bytes.clone(), draw(bytes.len() * 8));
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    fs::write(path, bytes).unwrap();
                }
                Damage::Truncate => fs::write(path, &bytes[..draw(bytes.len())]).unwrap(),
                Damage::Remove => fs::remove_file(path).unwrap(),
                Damage::Swap => {
                    fs::write(path, other_bytes).unwrap();
                    fs::write(other_path, bytes).unwrap();
                    return (kind, vec![one, other]);
                }
                Damage::Copy => fs::write(path, other_bytes).unwrap(),
            }
            return (kind, vec![one]);
        }
    }
}

/// The output of `tessera check`, and the number of damaged files.
fn checked(p: &Place) -> (String, u64) {
    let mut out = Vec::new();
    let config = p.host.config().clone();
    let damaged = p.runtime.block_on(tessera_engine::session::check(&config, &mut out)).unwrap();
    (String::from_utf8(out).unwrap(), damaged)
}

fn scalar(p: &Place, sql: &str) -> f64 {
    match p.run(sql).pop().unwrap().whole().unwrap().answer {
        Answer::Tensors(t) => match t[0].cell(0) {
            Cell::F64(v) => v,
            Cell::F32(v) => v.into(),
            Cell::Int(v) => v as f64,
            other => panic!("{sql}: {other:?}"),
        },
        other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn random_damages_of_a_warehouse_never_give_a_wrong_value() {
    let p = Place::open(&[]);
    MADE.iter().for_each(|sql| drop(p.run(sql)));
    for (sql, known) in KNOWN {
        assert_eq!(scalar(&p, sql), known, "{sql}");
    }
    let asked: Vec<&str> = KNOWN.iter().map(|k| k.0).chain(WHOLE).collect();
    let right: Vec<Vec<String>> = asked.iter().map(|sql| p.lines(sql).unwrap()).collect();
    let warehouse = p.path("warehouse");
    let saved = Saved::of(&warehouse);
    let (told, damaged) = checked(&p);
    assert_eq!(damaged, 0, "{told}");
    let seed = number("TESSERA_SEED").unwrap_or(26);
    let count = number("TESSERA_DAMAGES").unwrap_or(100);
    let mut random = Random(seed);
    let (mut found, mut harmless) = (0, 0);
    for n in 0..count {
        let (kind, which) = saved.damage(&mut random);
        let names: Vec<String> = which
            .iter()
            .map(|&i| saved.0[i].0.strip_prefix(&warehouse).unwrap().display().to_string())
            .collect();
        let what = format!("damage {n} of seed {seed}: {kind:?} of {names:?}");
        let mut fails = 0;
        for (sql, right) in asked.iter().zip(&right) {
            match p.lines(sql) {
                Ok(lines) => assert_eq!(&lines, right, "{what}: {sql}"),
                Err(e) => {
                    fails += 1;
                    // If the file of a definition is removed, its name is unknown. The stem of the file is the name.
                    let is_lost = |name: &String| {
                        let stem =
                            name.strip_prefix("catalog/").and_then(|n| n.strip_suffix(".json"));
                        let is_gone = matches!(kind, Damage::Remove);
                        stem.is_some_and(|s| {
                            is_gone
                                && e.starts_with("unknown_name")
                                && e.contains(&format!("`{s}`"))
                        })
                    };
                    let is_named =
                        names.iter().any(|name| e.contains(name.as_str()) || is_lost(name));
                    assert!(is_named, "{what}: {sql}: {e}");
                }
            }
        }
        let (told, damaged) = checked(&p);
        let is_listed = names.iter().any(|name| told.contains(name.as_str())) && damaged > 0;
        // Damage to cells and their lists is always found. If a definition is removed, only its cells are left.
        if names.iter().any(|name| name.starts_with("data/")) {
            assert!(is_listed, "{what}: {told}");
        }
        let is_left = told.contains("no definition names it");
        assert!(
            fails == 0 || is_listed || is_left || names[0].ends_with("v.json"),
            "{what}: {told}"
        );
        found += u64::from(fails > 0);
        harmless += u64::from(fails == 0);
        saved.put_back(&which);
    }
    println!(
        "{count} damages of seed {seed}: {found} told by questions, {harmless} of no effect on these"
    );
    let after: Vec<Vec<String>> = asked.iter().map(|sql| p.lines(sql).unwrap()).collect();
    assert_eq!(after, right);
    assert_eq!(checked(&p).1, 0);
}

#[test]
fn tensors_of_earlier_versions_stay_readable() {
    let p = Place::open(&[]);
    p.run("CREATE TENSOR x AS SELECT rechunk(arange(12)::float64, dim_0 => 3) AS x");
    let data = p.path("warehouse/data/old.zarr");
    let to = data.display();
    p.run(&format!(
        "COPY (SELECT rechunk(where(arange(12) < 9, arange(12), 0)::float64, dim_0 => 3) AS y) TO '{to}' STORED AS ZARR"
    ));
    fs::write(
        p.path("warehouse/catalog/old.json"),
        r#"{"format_version": 1, "name": "old", "kind": "tensor", "data": "data/old.zarr"}"#,
    )
    .unwrap();
    // Neither has the chunk checksums, nor is it known which there are.
    assert!(!fs::read_to_string(data.join("y/zarr.json")).unwrap().contains("crc32c"));
    assert_eq!(scalar(&p, "SELECT sum(y) AS s FROM old"), 36.0);
    let (told, damaged) = checked(&p);
    assert!(damaged == 0 && told.contains("written by an earlier version"), "{told}");
    // A file that does not decode is damaged, whatever its version.
    let chunk = data.join("y/c/1");
    let whole = fs::read(&chunk).unwrap();
    fs::write(&chunk, &whole[..whole.len() - 3]).unwrap();
    let e = p.lines("SELECT sum(y) AS s FROM old").unwrap_err();
    assert!(e.starts_with("corrupt: ") && e.contains("data/old.zarr/y/c/1"), "{e}");
    let (told, damaged) = checked(&p);
    assert!(damaged == 1 && told.contains("data/old.zarr/y/c/1"), "{told}");
    assert_eq!(scalar(&p, "SELECT sum(x) AS s FROM x"), 66.0);
}

#[test]
fn damaged_tensors_can_be_dropped_and_created_again() {
    let p = Place::open(&[]);
    for damaged in ["catalog", "data"] {
        p.run("CREATE OR REPLACE TENSOR x AS SELECT rechunk(arange(12)::float64, dim_0 => 3) AS x");
        for file in files(&p.path("warehouse").join(damaged)) {
            let mut bytes = fs::read(&file).unwrap();
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            fs::write(&file, bytes).unwrap();
        }
        let e = p.lines("SELECT sum(x) AS s FROM x").unwrap_err();
        assert!(e.starts_with("corrupt: "), "{e}");
        p.run("DROP TENSOR x");
        let e = p.lines("SELECT sum(x) AS s FROM x").unwrap_err();
        assert!(e.starts_with("unknown_name: "), "{e}");
    }
}

fn tessera(place: &restart::Place, words: &[&str]) -> Output {
    crate::common::tessera().arg("--warehouse").arg(place.warehouse()).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Cells of the only tensor of a warehouse.
fn store(warehouse: &Path) -> PathBuf {
    let names = crate::common::names(&warehouse.join("data"));
    let store = names.iter().find(|n| n.ends_with(".zarr")).unwrap();
    warehouse.join("data").join(store)
}

const X: &str = "CREATE TENSOR x AS SELECT rechunk(arange(40)::float64, dim_0 => 10) AS x";

#[test]
fn a_lost_chunk_is_an_error_for_every_reader() {
    let p = restart::Place::new();
    let out = tessera(&p, &["query", X]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let chunk = store(&p.warehouse()).join("x/c/3");
    let kept = fs::read(&chunk).unwrap();
    let s = p.serve();
    let sum = || s.submit(&json!({"sql": "SELECT sum(x) AS s FROM x", "format": "json"}));
    let r = sum();
    assert!(r.status == 200 && r.text().contains("780"), "{}", r.text());
    fs::remove_file(&chunk).unwrap();
    let r = sum();
    let error = r.json()["error"].clone();
    assert_eq!(
        (r.status, &error["code"], &error["class"]),
        (500, &json!("corrupt"), &json!("internal"))
    );
    let told = error["message"].as_str().unwrap();
    let parts = [chunk.to_str().unwrap(), "expected", "bytes with CRC-32C", "found no such file"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    assert!(error["hint"].as_str().unwrap().contains("tessera check"), "{error}");
    // Statements that do not read it return the same as before.
    let r = s.submit(&json!({"sql": "SELECT sum(x[:30]) AS s FROM x", "format": "json"}));
    assert!(r.status == 200 && r.text().contains("435"), "{}", r.text());
    drop(s);
    let out = tessera(&p, &["query", "SELECT sum(x) AS s FROM x"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).starts_with("error[corrupt]: "), "{}", text(&out.stderr));
    let out = tessera(&p, &["check"]);
    let told = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{told}");
    assert!(told.contains(chunk.to_str().unwrap()) && told.contains(": 1 damaged"), "{told}");
    fs::write(&chunk, kept).unwrap();
    let out = tessera(&p, &["check"]);
    let told = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{told}");
    // Cells and their lists are read.
    assert!(told.contains("1 tensors, ") && told.contains(": 0 damaged"), "{told}");
    // A warehouse that does not exist is not an undamaged one.
    let nowhere = p.directory.path().join("nowhere");
    let out = tessera(&p, &["check", "--warehouse", nowhere.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("not_found"), "{}", text(&out.stderr));
}

#[test]
fn a_bucket_is_checked_too() {
    let s3 = S3::start();
    let tessera = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_tessera"))
            .stdin(Stdio::null())
            .envs(s3.environment(Some((KEY, SECRET))))
            .args(["--warehouse", "s3://bkt/wh"])
            .args(words)
            .output()
            .unwrap()
    };
    let out = tessera(&["query", X]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let out = tessera(&["check"]);
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    let store = store(&s3.path("wh"));
    let (one, other) = (store.join("x/c/1"), store.join("x/c/2"));
    let (was, is) = (fs::read(&one).unwrap(), fs::read(&other).unwrap());
    let name = store.file_name().unwrap().to_str().unwrap();
    let url = |n: u32| format!("s3://bkt/wh/data/{name}/x/c/{n}");
    type Change<'a> = &'a dyn Fn();
    let changes: [(Change<'_>, u32); 3] = [
        (&|| fs::remove_file(&one).unwrap(), 1),
        (&|| fs::write(&one, &was[..was.len() - 1]).unwrap(), 1),
        // Both are whole, and each in the other's place.
        (
            &|| {
                fs::write(&one, &is).unwrap();
                fs::write(&other, &was).unwrap();
            },
            2,
        ),
    ];
    for (change, count) in changes {
        change();
        let out = tessera(&["query", "SELECT sum(x * x) AS s FROM x"]);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{told}");
        assert!(
            told.contains("error[corrupt]") && (told.contains(&url(1)) || told.contains(&url(2))),
            "{told}"
        );
        let out = tessera(&["check"]);
        let told = text(&out.stdout);
        assert_eq!(out.status.code(), Some(1), "{told}");
        assert!(told.contains(&url(1)) && told.contains(&format!(": {count} damaged")), "{told}");
        fs::write(&one, &was).unwrap();
        fs::write(&other, &is).unwrap();
    }
    assert_eq!(tessera(&["check"]).status.code(), Some(0));
}

/// Writes an external array of `int8`: 24 chunks of 100 ones, whose fill value is 0 where they are absent.
fn ones(at: &Path) {
    fs::create_dir_all(at.join("x/c")).unwrap();
    fs::write(at.join("zarr.json"), r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#)
        .unwrap();
    let document = r#"{"zarr_format":3,"node_type":"array","shape":[2400],"data_type":"int8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[100]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes"}]}"#;
    fs::write(at.join("x/zarr.json"), document).unwrap();
    (0..24).for_each(|n| fs::write(at.join(format!("x/c/{n}")), [1; 100]).unwrap());
}

#[test]
fn a_directory_that_vanishes_in_mid_statement_is_not_taken_for_fill_values() {
    let p = restart::Place::new();
    let at = p.directory.path().join("a.zarr");
    let sql = format!(
        "SET tessera.chunk_bytes_target = 100; SET tessera.batch_cells = 0; SELECT sum(x) AS s FROM '{}'",
        at.display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command
        .stdin(Stdio::null())
        .arg("--warehouse")
        .arg(p.warehouse())
        .args(SERVE)
        .args(["--listen", "127.0.0.1:0", "--threads", "1"])
        // Each chunk takes 100 ms: 2.4 s in all.
        .env("TESSERA_FAIL", "operand.fused=sleep");
    let s = Server::spawn(command);
    let chunk_read = |id: &str| {
        restart::until("some chunks are read", || {
            let status = s.get(&format!("/v1/statements/{id}")).json();
            assert_ne!(status["state"], "FINISHED", "{status}");
            status["progress"]["bytes_read"].as_u64().is_some_and(|n| n > 200)
        });
    };
    type Change<'a> = &'a dyn Fn();
    let vanishes: Change<'_> = &|| fs::remove_dir_all(&at).unwrap();
    // `to_zarr(mode="w")` does the same: it writes the same metadata again, and no chunk yet.
    let anew: Change<'_> = &|| {
        fs::remove_dir_all(&at).unwrap();
        ones(&at);
        fs::remove_dir_all(at.join("x/c")).unwrap();
    };
    for change in [vanishes, anew] {
        ones(&at);
        let id = restart::submit(&s, &sql);
        chunk_read(&id);
        change();
        let status = restart::end(&s, &id);
        assert_eq!(status["error"]["code"], "source_changed", "{status}");
        let told = status["error"]["message"].as_str().unwrap();
        assert!(told.contains(&format!("{}/x", at.display())), "{told}");
    }
    // Chunks that never were are the fill value.
    let _ = fs::remove_dir_all(&at);
    ones(&at);
    (0..24)
        .filter(|n| n % 20 != 0)
        .for_each(|n| fs::remove_file(at.join(format!("x/c/{n}"))).unwrap());
    let result = restart::result(&s, &restart::submit(&s, &sql));
    assert!(result.contains("200"), "{result}");
}

#[test]
fn a_prefix_that_vanishes_in_mid_statement_is_not_taken_for_fill_values() {
    // The number of the chunk whose request removes all there is, and how.
    type Vanish = fn(&Path);
    let all: Vanish = |at| fs::remove_dir_all(at).unwrap();
    // `aws s3 rm --recursive` does the same: it removes objects by name, an array's metadata after its chunks.
    let by_name: Vanish = |at| {
        fs::remove_dir_all(at.join("x/c")).unwrap();
        let at = at.to_path_buf();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            fs::remove_dir_all(at).unwrap();
        });
    };
    for (number, vanish) in [(None, all), (Some(3), all), (Some(16), by_name)] {
        let place: Arc<OnceLock<PathBuf>> = Arc::default();
        let (file, times) = (place.clone(), AtomicU64::new(0));
        let s3 = S3::failing(move |_, line| {
            // Later reads are delayed, so that a statement ends after the last object is removed.
            let is_after = times.load(Relaxed) > 0;
            if let Some(n) = number
                && line.starts_with(&format!("GET /bkt/a.zarr/x/c/{n} "))
                && times.fetch_add(1, Relaxed) == 0
            {
                vanish(file.get().unwrap());
            }
            (is_after && number == Some(16)).then_some(crate::s3::Fault::Late)
        });
        ones(&s3.path("a.zarr"));
        place.set(s3.path("a.zarr")).unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_tessera"))
            .stdin(Stdio::null())
            .envs(s3.environment(Some((KEY, SECRET))))
            .arg("--warehouse")
            .arg(s3.directory.path().join("wh"))
            .args(["query", "--format", "csv", "SELECT sum(x) AS s FROM 's3://bkt/a.zarr'"])
            .output()
            .unwrap();
        let told = text(&out.stderr);
        match number {
            None => assert!(text(&out.stdout).contains("2400"), "{told}"),
            Some(_) => {
                assert_eq!(out.status.code(), Some(1), "{told}{}", text(&out.stdout));
                assert!(
                    told.contains("source_changed") && told.contains("s3://bkt/a.zarr/x"),
                    "{told}"
                );
            }
        }
    }
}

#[test]
fn a_damaged_record_is_no_other_statement() {
    let p = restart::Place::new();
    let s = p.serve();
    let sql = "SELECT sum(arange(100)) AS s";
    let id = restart::submit(&s, sql);
    let before = restart::result(&s, &id);
    assert!(before.contains("4950"), "{before}");
    drop(s);
    let record = p.warehouse().join(format!("statements/{id}.json"));
    let kept = fs::read(&record).unwrap();
    // Another number in the text of the statement: a record that is whole but for this.
    let at = text(&kept).find("arange(100)").unwrap() + "arange(".len();
    let mut bad = kept.clone();
    bad[at] = b'2';
    fs::write(&record, bad).unwrap();
    let out = tessera(&p, &["check"]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
    assert!(text(&out.stdout).contains(&format!("statements/{id}.json")), "{}", text(&out.stdout));
    let s = p.serve();
    let r = s.get(&format!("/v1/statements/{id}/result?format=json"));
    assert_eq!(r.status, 404, "{}", r.text());
    drop(s);
    fs::write(&record, kept).unwrap();
    let s = p.serve();
    let again: Value = serde_json::from_str(&restart::result(&s, &id)).unwrap();
    assert_eq!(again, serde_json::from_str::<Value>(&before).unwrap());
}
