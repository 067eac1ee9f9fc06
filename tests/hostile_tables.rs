//! Files of tables that say more of themselves than is true: each is refused, soon, by an error that names it, and the
//! server answers others.

mod parquet;

use crate::http::Server;
use arrow::array::{ArrayRef, Int64Array};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use arrow::record_batch::RecordBatch;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn batch() -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    RecordBatch::try_from_iter([("n", column)]).unwrap()
}

fn listed() -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    writer.write(&batch()).unwrap();
    writer.into_inner().unwrap()
}

fn streamed() -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    writer.write(&batch()).unwrap();
    writer.into_inner().unwrap()
}

/// The bytes, with `length` in every place that holds the length of a body.
fn with_body(mut bytes: Vec<u8>, length: i64) -> Vec<u8> {
    let (own, other) = (8000i64.to_le_bytes(), length.to_le_bytes());
    let places: Vec<usize> = (0..bytes.len() - 8).filter(|&i| bytes[i..i + 8] == own).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&i| bytes[i..i + 8].copy_from_slice(&other));
    bytes
}

/// A Parquet file whose footer states this number of row groups.
fn groups(count: &[u8]) -> Vec<u8> {
    // version: 1; schema: a structure with its name and no children; num_rows: 0; row_groups: a list of structures.
    let mut footer = vec![0x15, 2, 0x19, 0x1c, 0x48, 1, b'm', 0x15, 0, 0, 0x16, 0, 0x19, 0xfc];
    footer.extend_from_slice(count);
    footer.push(0);
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", footer.as_slice(), &length, b"PAR1"].concat()
}

/// A page whose header differs from its chunk's.
fn spoilt_pages() -> Vec<u8> {
    let mut bytes = fs::read("tests/data/tables/stations.parquet").unwrap();
    bytes[4..200].fill(0xff);
    bytes
}

fn write(below: &Path, name: &str, bytes: &[u8]) -> String {
    let at = below.join(name);
    fs::write(&at, bytes).unwrap();
    at.display().to_string()
}

#[test]
fn sizes_declared_by_files_are_not_trusted() {
    let server = Server::start(&["--memory-limit", "64MiB", "--threads", "2"], &[]);
    let directory = tempfile::tempdir().unwrap();
    let below = directory.path();
    let huge = [0xff, 0xff, 0xff, 0xff, 7];
    let cases = [
        ("listed.arrow", with_body(listed(), 1 << 60), "not_a_table"),
        ("negative.arrow", with_body(listed(), -1), "not_a_table"),
        ("streamed.arrow", with_body(streamed(), 1 << 60), "corrupt_file"),
        ("two.arrow", with_body(streamed(), i32::MAX.into()), "corrupt_file"),
        ("groups.parquet", groups(&huge), "corrupt_file"),
        ("pages.parquet", spoilt_pages(), "corrupt_file"),
    ];
    for (name, bytes, code) in cases {
        let at = write(below, name, &bytes);
        let begun = Instant::now();
        let sql = format!("SELECT * FROM '{at}'");
        let reply = server.ask("POST", "/v1/query?format=json", "", sql.as_bytes());
        let error = &reply.json()["error"];
        assert_eq!((reply.status, error["code"].as_str()), (400, Some(code)), "{name}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{at}`")), "{name}: {message}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {:?}", begun.elapsed());
    }
    let reply = server.ask("POST", "/v1/query?format=csv", "", b"SELECT 1 AS x");
    assert_eq!(reply.text().trim(), "x\n1");
    // A file of one batch is bounded, too.
    let most = server.resident_most();
    assert!(most < 280 << 20, "{most}");
}

/// Before, a page of 12 MB took 270 MB, and 20,000 rows of a file of 200 kB took 1.7 GB.
#[test]
fn unpacked_bytes_are_counted() {
    let server = Server::start(&["--memory-limit", "64MiB", "--threads", "2"], &[]);
    let directory = tempfile::tempdir().unwrap();
    let ask = |sql: &str| {
        let reply = server.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
        (reply.status, reply.text().trim().to_string())
    };
    let at = write(directory.path(), "zeros.parquet", &parquet::page_of_zeros(1 << 20));
    let (_, text) = ask(&format!("SELECT count(*) AS n, sum(v + 1) AS s FROM '{at}'"));
    assert_eq!(text, "n,s\n1048576,1048576");
    let at = write(directory.path(), "more_zeros.parquet", &parquet::page_of_zeros(32 << 20));
    let (status, text) = ask(&format!("SELECT count(*) AS n, sum(v + 1) AS s FROM '{at}'"));
    assert_eq!(status, 413, "{text}");
    assert!(text.contains(&format!("`{at}`")) && text.contains("memory_exceeded"), "{text}");
    let at =
        write(directory.path(), "text.parquet", &parquet::text_again_and_again(200_000, 20_000));
    let expressions =
        ["max(length(v || 'a'))", "count(DISTINCT v)", "count(*) FILTER (WHERE v > 'x')"];
    for expression in expressions {
        let (status, text) = ask(&format!("SELECT {expression} AS n FROM '{at}'"));
        assert_eq!(status, 413, "{expression}: {text}");
        assert!(text.contains(&format!("`{at}`")) && text.contains("memory_exceeded"), "{text}");
    }
    let few = parquet::text_again_and_again(100, 20_000);
    let at = write(directory.path(), "few.parquet", &few);
    let (_, text) = ask(&format!("SELECT max(length(v || 'a')) AS n FROM '{at}'"));
    assert_eq!(text, "n\n101");
    let most = server.resident_most();
    assert!(most < 320 << 20, "{} MiB", most >> 20);
}

#[test]
fn whole_files_of_both_forms_are_read() {
    let server = Server::start(&["--memory-limit", "64MiB", "--threads", "2"], &[]);
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in [("listed.arrow", listed()), ("streamed.arrow", streamed())] {
        let at = write(directory.path(), name, &bytes);
        let sql =
            format!("SELECT count(*) AS c, sum(n) AS s, max(n + 1) AS m FROM '{at}' WHERE n > 9");
        let reply = server.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
        assert_eq!(reply.text().trim(), "c,s,m\n990,499455,1000", "{name}");
    }
}

/// Before, room for 8,192 rows was made for each file: 1,100 files of 400 columns took a minute.
#[test]
fn many_small_files_of_many_columns_are_read_soon() {
    let server = Server::start(&["--memory-limit", "64MiB", "--threads", "2"], &[]);
    let directory = tempfile::tempdir().unwrap();
    let columns = 400;
    let names: Vec<String> = (0..columns).map(|i| format!("c{i}")).collect();
    for file in 0..1100 {
        let row: Vec<String> = (0..columns).map(|i| (i + file).to_string()).collect();
        let text = format!("{}\n{}\n", names.join(","), row.join(","));
        fs::write(directory.path().join(format!("{file:04}.csv")), text).unwrap();
    }
    let begun = Instant::now();
    let sql = format!(
        "SELECT count(*) AS n, sum(c0) AS s, sum(c399) AS t FROM read_csv('{}/')",
        directory.path().display()
    );
    let reply = server.ask("POST", "/v1/query?format=csv", "", sql.as_bytes());
    let (first, last) = (1099 * 1100 / 2, 1099 * 1100 / 2 + 399 * 1100);
    assert_eq!(reply.text().trim(), format!("n,s,t\n1100,{first},{last}"));
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
}
