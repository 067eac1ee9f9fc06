//! The references of `tests/data/formats/references`, on a disk and over networks, against the cells in `.npy`.

use super::table::{Row, Table};
use super::*;
use crate::clouds::web::{Manners, Web};
use crate::served::{KEY, S3, SECRET};
use crate::source::tests::{run, stores};
use crate::source::{ArrayReader, open};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;
use tessera_planner::region::Region;

/// Tables of five rows, and odd ones.
const RECORDS: &str = "references/records.refs";
const ODD: &str = "references/odd.refs";

fn data(name: &str) -> String {
    format!("{}/../../tests/data/formats/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn opened(url: &str, options: &[(&str, &str)], stores: &Stores) -> Opened {
    run(open(url, &Options::parse(options.iter().copied()).unwrap(), stores)).unwrap()
}

fn fault(url: &str, options: &[(&str, &str)]) -> SourceError {
    run(open(url, &Options::parse(options.iter().copied()).unwrap(), &stores())).unwrap_err()
}

fn reader<'a>(opened: &'a Opened, name: &str) -> &'a ArrayReader {
    opened.readers.iter().find(|r| r.source().path.ends_with(name)).unwrap()
}

fn cells(reader: &ArrayReader) -> Vec<u8> {
    run(reader.read(&Region::whole(&reader.source().shape))).unwrap()
}

/// The cells of an `.npy`.
fn npy(name: &str) -> Vec<u8> {
    let opened = opened(&data(name), &[], &stores());
    cells(&opened.readers[0])
}

/// The files below a directory of the samples, by their names.
fn files(below: &str) -> Vec<String> {
    fn walk(at: &FilePath, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => walk(&path, out),
                false => out.push(path),
            }
        }
    }
    let mut out = Vec::new();
    walk(FilePath::new(&data(below)), &mut out);
    out.sort();
    let root = data("");
    out.iter().map(|p| p.to_str().unwrap().strip_prefix(&root).unwrap().to_string()).collect()
}

/// All samples and the files that they refer to.
fn all() -> Vec<String> {
    let mut out = files("references");
    out.push("netcdf/records.nc".into());
    out
}

fn check_odd(root: &str, stores: &Stores) {
    let raw = [("decode_cf", "false")];
    let odd = opened(&format!("{root}/{ODD}"), &raw, stores);
    assert_eq!(odd.groups, ["deep"]);
    assert_eq!(cells(reader(&odd, "v")), npy("references/odd.refs.5.npy"));
    let deep = opened(&format!("{root}/{ODD}#deep"), &raw, stores);
    for (name, file) in [("rows", 6), ("point", 7), ("nothing", 8)] {
        let want = npy(&format!("references/odd.refs.{file}.npy"));
        assert_eq!(cells(reader(&deep, name)), want, "{name}");
    }
}

fn check_records(root: &str, stores: &Stores) {
    let tables = opened(&format!("{root}/{RECORDS}"), &[], stores);
    let document = opened(&format!("{root}/references/records.json"), &[], stores);
    let shown = |opened: &Opened| format!("{:?}", opened.dataset.coords);
    assert_eq!(shown(&tables), shown(&document));
    assert_eq!(tables.readers.len(), document.readers.len());
    for r in &document.readers {
        assert_eq!(cells(reader(&tables, &r.source().path)), cells(r), "{}", r.source().path);
    }
    assert_eq!(cells(reader(&tables, "pr")), npy("references/records.refs.2.npy"));
}

#[test]
fn tables_have_the_cells_of_the_document() {
    let root = data("");
    check_records(root.trim_end_matches('/'), &stores());
    check_odd(root.trim_end_matches('/'), &stores());
    let named = opened(&data(RECORDS), &[("format", "references")], &stores());
    assert_eq!(cells(reader(&named, "pr")), npy("references/records.refs.2.npy"));
    let e = fault(&data(RECORDS), &[("format", "zarr")]);
    assert!(e.code() == "not_an_array" && e.to_string().contains("not zarr"), "{e}");
    let zarr = data("../colpex.v2.zarr");
    let e = fault(&zarr, &[("format", "references")]);
    assert!(e.code() == "not_an_array" && e.to_string().contains("not references"), "{e}");
    let e = fault(&format!("{}#nowhere", data(RECORDS)), &[]);
    assert_eq!(e.code(), "not_found", "{e}");
}

#[test]
fn tables_of_a_bucket_have_the_same_cells() {
    let server = S3::start();
    for name in all() {
        let to = server.path(&name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(data(&name), to).unwrap();
    }
    let environment = server.environment(Some((KEY, SECRET)));
    let stores = Stores::with_environment(Duration::from_secs(30), environment);
    check_records("s3://bkt", &stores);
    check_odd("s3://bkt", &stores);
}

fn web() -> Web {
    let web = Web::start(Manners::default());
    for name in all() {
        web.put(&name, &std::fs::read(data(&name)).unwrap());
    }
    web
}

#[test]
fn only_tables_of_touched_chunks_are_fetched() {
    let (web, stores) = (web(), stores());
    check_odd(web.url("").trim_end_matches('/'), &stores);
    let opened = opened(&web.url(RECORDS), &[], &stores);
    let pr = reader(&opened, "pr");
    let asked = |start: u64, n: u64| {
        web.server.take_seen();
        run(pr.read(&Region::at(&[start, 0, 0], &[n, 7, 9]))).unwrap();
        let seen = web.server.take_seen();
        let tables: Vec<_> = seen.iter().filter(|s| s.contains(".parq")).cloned().collect();
        (tables, seen.len())
    };
    // One table, one part of the file.
    let (tables, requests) = asked(7, 1);
    assert!(tables.len() == 1 && tables[0].contains("pr/refs.1.parq"), "{tables:?}");
    assert_eq!(requests, 2);
    // The table is cached.
    assert_eq!(asked(9, 1), (Vec::new(), 1));
    // Concurrent requests for the chunks 10 and 11 read their table once.
    let (tables, _) = asked(8, 4);
    assert!(tables.len() == 1 && tables[0].contains("pr/refs.2.parq"), "{tables:?}");
    // A dataset that is opened again has the same tables, until its document changes.
    let again = |stores: &Stores| {
        web.server.take_seen();
        let opened = run(open(&web.url(RECORDS), &Options::default(), stores)).unwrap();
        run(reader(&opened, "pr").read(&Region::at(&[7, 0, 0], &[1, 7, 9]))).unwrap();
        web.server.take_seen().iter().filter(|s| s.contains("pr/refs")).count()
    };
    assert_eq!(again(&stores), 0);
    let document = std::fs::read(data(&format!("{RECORDS}/.zmetadata"))).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    web.put(&format!("{RECORDS}/.zmetadata"), &document);
    assert_eq!(again(&stores), 1);
}

/// A document with an array of 12 bytes in chunks of two.
fn bytes_in(parts: serde_json::Value) -> String {
    let array = serde_json::json!({
        "zarr_format": 2, "shape": [12], "chunks": [2], "dtype": "|u1", "compressor": null,
        "filters": null, "fill_value": 0, "order": "C"
    });
    let mut document = serde_json::json!({".zgroup": {"zarr_format": 2}, "v/.zarray": array});
    let refs = document.as_object_mut().unwrap();
    refs.extend(parts.as_object().unwrap().clone());
    document.to_string()
}

#[test]
fn neighbours_in_a_file_are_read_with_one_request() {
    let (web, stores) = (Web::start(Manners::default()), stores());
    let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    web.put("parts.bin", &bytes);
    web.put("other.bin", &bytes[..100]);
    let document = bytes_in(serde_json::json!({
        "v/0": ["parts.bin", 10, 2],
        "v/1": ["parts.bin", 12, 2],
        "v/2": ["parts.bin", 200_000, 2],
        "v/3": ["other.bin", 50, 2],
        "v/5": ["parts.bin", 7, 2],
    }));
    web.put("refs.json", document.as_bytes());
    let opened = opened(&web.url("refs.json"), &[], &stores);
    let v = reader(&opened, "v");
    web.server.take_seen();
    // 200,000 is 204 more than a multiple of 251.
    assert_eq!(cells(v), [10, 11, 12, 13, 204, 205, 50, 51, 0, 0, 7, 8]);
    let seen = web.server.take_seen();
    let of = |name: &str| seen.iter().filter(|s| s.contains(name)).count();
    assert_eq!((seen.len(), of("parts.bin"), of("other.bin")), (3, 2, 1), "{seen:?}");
    // A chunk alone.
    assert_eq!(run(v.read(&Region::at(&[2], &[2]))).unwrap(), [12, 13]);
    assert_eq!(web.server.take_seen().len(), 1);
}

#[test]
fn a_neighbour_that_the_file_lacks_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("parts.bin"), [7; 13]).unwrap();
    let parts = serde_json::json!({"v/0": ["parts.bin", 10, 2], "v/1": ["parts.bin", 12, 2]});
    std::fs::write(at("refs.json"), bytes_in(parts)).unwrap();
    let opened = opened(&at("refs.json"), &[], &stores());
    let v = reader(&opened, "v");
    assert_eq!(run(v.read(&Region::at(&[0], &[2]))).unwrap(), [7, 7]);
    let e = run(v.read(&Region::at(&[0], &[4]))).unwrap_err().to_string();
    assert!(e.contains("the reference `v/1`") && e.contains("the file has 13"), "{e}");
}

/// A copy of the odd tables on which the test works.
fn copied() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    for name in files("references") {
        let to = directory.path().join(&name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(data(&name), to).unwrap();
    }
    let at = directory.path().join(ODD).display().to_string();
    (directory, at)
}

#[test]
fn broken_tables_are_named() {
    let (_directory, at) = copied();
    let read = || {
        let opened = opened(&at, &[], &stores());
        let v = reader(&opened, "v");
        run(v.read(&Region::whole(&v.source().shape))).unwrap_err()
    };
    let table = format!("{at}/v/refs.0.parq");
    let bytes = std::fs::read(&table).unwrap();
    std::fs::write(&table, &bytes[..bytes.len() / 2]).unwrap();
    let e = read();
    assert!(e.code() == "corrupt_file" && e.to_string().contains("v/refs.0.parq"), "{e}");
    assert!(e.to_string().contains("not valid Parquet"), "{e}");
    // Columns of another table.
    let other = std::fs::read(data("../formats/references/lacking.parq")).unwrap();
    std::fs::write(&table, other).unwrap();
    let e = read();
    assert!(e.to_string().contains("`path`, `offset`, `size` and `raw`"), "{e}");
    let document = std::fs::read_to_string(format!("{at}/.zmetadata")).unwrap();
    let sized = |size: &str| {
        let text = document.replace("\"record_size\":4", &format!("\"record_size\":{size}"));
        std::fs::write(format!("{at}/.zmetadata"), text).unwrap();
    };
    std::fs::write(&table, &bytes).unwrap();
    sized("3");
    let e = read();
    assert!(e.to_string().contains("4 rows") && e.to_string().contains("is 3"), "{e}");
    // The sixth chunk is in row 5 of the first table now.
    sized("6");
    let e = read();
    assert!(e.to_string().contains("it has 4 rows, expected one for `v/2."), "{e}");
    for size in ["0", "-1", "\"4\"", "null", "99999999999"] {
        sized(size);
        let e = fault(&at, &[]);
        assert!(e.code() == "corrupt_file" && e.to_string().contains(".zmetadata"), "{size}: {e}");
        assert!(e.to_string().contains("expected 1 to"), "{size}: {e}");
    }
    // A file that is not there.
    sized("4");
    std::fs::remove_file(format!("{at}/../whole.bin")).unwrap();
    let e = read();
    assert!(e.code() == "not_found" && e.to_string().contains("whole.bin"), "{e}");
}

#[test]
fn rows_are_those_of_fsspec() {
    let parsed = |name: &str, max| {
        Table::parse(std::fs::read(data(&format!("{ODD}/{name}"))).unwrap().into(), max)
    };
    let rows = parsed("deep/rows/refs.0.parq", 4).unwrap();
    let part =
        |start: u64| Row::Part { path: "../parts.bin".into(), range: Some(start..start + 32) };
    assert_eq!(rows.row(0), Some(part(4)));
    assert_eq!((rows.row(1), rows.row(3)), (Some(Row::Absent), Some(part(100))));
    assert_eq!((rows.row(4), rows.rows()), (None, 4));
    let v = parsed("v/refs.0.parq", 4).unwrap();
    assert_eq!(v.row(0), Some(Row::Part { path: "../whole.bin".into(), range: None }));
    assert!(matches!(v.row(2), Some(Row::Inline(b)) if b.len() == 32));
    assert!(v.bytes() < 1000);
    assert!(parsed("v/refs.0.parq", 3).unwrap_err().contains("4 rows"));
}

#[test]
fn sizes_that_a_table_claims_are_checked() {
    let file = std::fs::read(data(&format!("{ODD}/v/refs.0.parq"))).unwrap();
    let parse = |file: Vec<u8>| Table::parse(file.into(), 4).unwrap_err();
    // A footer that has a list of 2^31 - 1 structures in its field 2.
    let footer = [0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 7, 0, 0];
    let mut long = b"PAR1".to_vec();
    long.extend(footer);
    long.extend((footer.len() as u32).to_le_bytes());
    long.extend(b"PAR1");
    let e = parse(long);
    assert!(e.contains("longer than what is left"), "{e}");
    // A first page that unpacks to 2^30 bytes: field 1 is its kind, field 2 its unpacked size.
    assert_eq!(file[4..6], [0x15, 0], "a data page");
    assert_eq!(file[6], 0x15);
    let end = 7 + file[7..].iter().position(|b| *b < 0x80).unwrap();
    let mut large = file[..7].to_vec();
    large.extend([0x80, 0x80, 0x80, 0x80, 8]);
    large.extend(&file[end + 1..]);
    let e = parse(large);
    assert!(e.contains("at most 268435456 are read"), "{e}");
    let mut claimed = file.clone();
    let n = claimed.len();
    claimed[n - 8..n - 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(parse(claimed).contains("longer than the file"));
}

#[test]
fn damaged_tables_are_errors_or_tables() {
    let mut state = 30u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for name in files("references").iter().filter(|n| n.ends_with(".parq")) {
        let file = std::fs::read(data(name)).unwrap();
        for i in 0..200 {
            let mut broken = file.clone();
            match i % 4 {
                0 => broken.truncate(random(file.len())),
                _ => (0..=i % 3).for_each(|_| broken[random(file.len())] = random(256) as u8),
            }
            if let Ok(table) = Table::parse(broken.into(), 5) {
                assert!(table.rows() <= 5);
                (0..5).for_each(|i| drop(table.row(i)));
            }
        }
    }
}
