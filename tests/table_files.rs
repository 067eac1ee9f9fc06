//! Tables of files as people have them: directories, patterns, lists, `key=value` directories, compressed text, types
//! that the first rows do not show.

use crate::common::Place;
use arrow::array::{ArrayRef, Float64Array};
use arrow::ipc::writer::FileWriter;
use arrow::record_batch::RecordBatch;
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const GZIP: &[u8] = &[
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 203, 76, 209, 169, 224, 50, 212, 49, 210, 51, 229, 50, 214,
    49, 225, 2, 0, 52, 254, 108, 178, 15, 0, 0, 0,
];
const BZIP2: &[u8] = &[
    66, 90, 104, 57, 49, 65, 89, 38, 83, 89, 179, 49, 69, 70, 0, 0, 6, 217, 128, 0, 16, 0, 5, 62,
    0, 4, 32, 0, 64, 32, 0, 49, 0, 211, 77, 4, 13, 6, 71, 19, 133, 45, 49, 11, 128, 241, 119, 36,
    83, 133, 9, 11, 51, 20, 84, 96,
];
const ZSTD: &[u8] = &[
    40, 181, 47, 253, 32, 15, 121, 0, 0, 105, 100, 44, 120, 10, 49, 44, 50, 46, 53, 10, 51, 44, 52,
    10,
];

pub(crate) fn put(place: &Place, name: &str, bytes: impl AsRef<[u8]>) {
    let at = place.path("output").join(name);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, bytes).unwrap();
}

/// Runs a statement with `@` for the directory of the files.
pub(crate) fn lines(place: &Place, sql: &str) -> Result<Vec<String>, String> {
    place.lines(&sql.replace('@', &place.path("output").display().to_string()))
}

pub(crate) fn is(place: &Place, sql: &str, want: &[&str]) {
    let got = lines(place, sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
    assert_eq!(got, want, "{sql}");
}

pub(crate) fn fails(place: &Place, sql: &str, parts: &[&str]) {
    let got = lines(place, sql).unwrap_err();
    assert!(parts.iter().all(|part| got.contains(part)), "{sql}: {got}");
}

#[test]
fn directories_patterns_and_lists_are_tables() {
    let place = Place::open(&[]);
    put(&place, "t/a.csv", "id,x\n1,1.5\n");
    put(&place, "t/b.csv", "id,x\n2,2.5\n");
    put(&place, "t/sub/deep/c.csv", "id,x\n3,3.5\n");
    put(&place, "t/d.txt", "no table");
    put(&place, "written/a.csv", "id,x\n5,5.5\n");
    put(&place, "written/_SUCCESS.csv", "no table either");
    put(&place, "u.csv", "id,x\n4,4.5\n");
    for (from, want) in [
        ("read_csv('@/t')", "3 7.5"),
        ("read_csv('@/t/')", "3 7.5"),
        ("read_csv('@/written')", "1 5.5"),
        ("'@/t/*.csv'", "2 4.0"),
        ("read_csv('@/t/?.csv')", "2 4.0"),
        ("'@/t/**/[a-c].csv'", "3 7.5"),
        ("read_csv(['@/t/a.csv', '@/u.csv'])", "2 6.0"),
        ("['@/t/b.csv', '@/t/sub/deep/c.csv']", "2 6.0"),
        ("read_csv(['@/t/[ab].csv', '@/u.csv'])", "3 8.5"),
    ] {
        is(&place, &format!("SELECT count(*) AS n, sum(x) AS s FROM {from} AS t"), &[want]);
    }
    is(&place, "SELECT id FROM '@/t/**/*.csv' t WHERE id > 0", &["1", "2", "3"]);
    fails(&place, "SELECT * FROM '@/t/*.parquet' t", &["not_found", "*.parquet"]);
    fails(
        &place,
        "SELECT * FROM read_parquet('@/t') t",
        &["not_a_table", "no files of `.parquet`"],
    );
    // Columns are read by position.
    put(&place, "mixed/a.csv", "id,x\n1,2\n");
    put(&place, "mixed/b.csv", "x,id\n7,8\n");
    let parts = ["not_a_table", "`b.csv` has x, id, and the first file has id, x"];
    fails(&place, "SELECT * FROM read_csv('@/mixed') t", &parts);
}

#[test]
fn directories_with_keys_are_columns() {
    let place = Place::open(&[]);
    for (year, month, x) in [(2020, 1, 1), (2020, 2, 2), (2021, 1, 4)] {
        put(&place, &format!("h/year={year}/month={month:02}/a.csv"), format!("x\n{x}\n"));
        put(&place, &format!("day/d={year}-{month:02}-05/k=k{month}/a.csv"), format!("x\n{x}\n"));
    }
    let by_year = "SELECT year, sum(x) AS s FROM read_csv('@/h') t GROUP BY year ORDER BY year";
    is(&place, by_year, &["2020 3", "2021 4"]);
    is(&place, "SELECT month, x FROM '@/h/year=2020/*/*.csv' t WHERE year = 2020", &["1 1", "2 2"]);
    is(&place, "SELECT x, year + 1 AS y FROM read_csv('@/h/year=2021') t WHERE x > 0", &["4 2022"]);
    is(
        &place,
        "SELECT CAST(d + INTERVAL '1 day' AS VARCHAR) AS s, k FROM read_csv('@/day') t WHERE d >= DATE '2020-02-01' ORDER BY d",
        &["2020-02-06 k2", "2021-01-06 k1"],
    );
    // A column of the files has their values.
    put(&place, "own/k=1/a.csv", "k\n7\n");
    is(&place, "SELECT k FROM read_csv('@/own') t WHERE k > 0", &["7"]);
}

#[test]
fn columns_of_one_name_have_numbers() {
    let place = Place::open(&[]);
    put(&place, "two.csv", "a,a,b\n1,2,3\n4,5,6\n");
    is(&place, "SELECT * FROM '@/two.csv' t ORDER BY a DESC", &["4 5 6", "1 2 3"]);
    is(&place, "SELECT a_1, b, a FROM '@/two.csv' t WHERE a_1 > 2", &["5 6 4"]);
}

#[test]
fn text_may_be_compressed() {
    let place = Place::open(&[]);
    for (ending, bytes) in [("gz", GZIP), ("bz2", BZIP2), ("zst", ZSTD)] {
        put(&place, &format!("a.csv.{ending}"), bytes);
        let sql = format!("SELECT count(*) AS n, sum(x) AS s FROM '@/a.csv.{ending}' t");
        is(&place, &sql, &["2 6.5"]);
        put(&place, "cut.csv", []);
        put(&place, &format!("cut.csv.{ending}"), &bytes[..bytes.len() / 2]);
        fails(&place, &sql.replace("a.csv", "cut.csv"), &["compressed data"]);
    }
    put(&place, "a.csv.xz", "?");
    fails(&place, "SELECT * FROM '@/a.csv.xz' t", &["not_a_table", "xz"]);
}

/// Files that are large enough to be cut are read whole: here streams that follow each other, each with a header.
#[test]
fn compressed_text_is_not_cut() {
    let place = Place::open(&[]);
    for (ending, bytes) in [("gz", GZIP), ("zst", ZSTD)] {
        let count = (1 << 20) / bytes.len() + 1;
        for name in ["a", "b"] {
            put(&place, &format!("{ending}/{name}.csv.{ending}"), bytes.repeat(count));
        }
        for (table, files) in [(format!("{ending}/a.csv.{ending}"), 1), (ending.to_string(), 2)] {
            let from = format!("FROM read_csv('@/{table}', header => false) t");
            let sql = format!("SELECT count(*) AS n, count(DISTINCT column_2) AS d {from}");
            is(&place, &sql, &[&format!("{} 3", 3 * count * files)]);
            is(&place, &format!("SELECT column_1 {from} LIMIT 2"), &["id", "1"]);
        }
    }
}

#[test]
fn types_that_the_first_rows_do_not_show() {
    let place = Place::open(&[]);
    // Nothing in the first rows: texts.
    let mut text = "a,b\n".to_string();
    (0..30_000).for_each(|i| writeln!(text, ",{i}").unwrap());
    text.push_str("7.5,30000\n");
    put(&place, "empty.csv", &text);
    is(
        &place,
        "SELECT count(a) AS n, max(a) AS a, count(*) AS r FROM '@/empty.csv' t",
        &["1 7.5 30001"],
    );
    // Integers in the first rows.
    let mut text = "a,b\n".to_string();
    (0..30_000).for_each(|i| writeln!(text, "{i},x").unwrap());
    text.push_str("7.5,y\n");
    put(&place, "later.csv", &text);
    let sum = "SELECT sum(a) AS s FROM '@/later.csv' t";
    fails(&place, sum, &["later.csv`, row 30001", "column 1: `7.5` cannot be read as int64"]);
    // Without a header the first row is the first line.
    put(&place, "bare.csv", text.trim_start_matches("a,b\n"));
    let sum = "SELECT sum(column_1) AS s FROM read_csv('@/bare.csv', header => false) t";
    fails(&place, sum, &["bare.csv`, row 30001", "column 1: `7.5` cannot be read as int64"]);
}

#[test]
fn rows_that_do_not_fit_are_named() {
    let place = Place::open(&[]);
    put(&place, "short.csv", "a,b,c\n1,2,3\n4,5\n");
    fails(&place, "SELECT * FROM '@/short.csv' t", &["short.csv", "line"]);
    put(&place, "odd.csv", "a;b\n1;'x;y'\n# no row\n2;z\n");
    is(
        &place,
        "SELECT b FROM read_csv('@/odd.csv', delimiter => ';', quote => '''', comment => '#') t WHERE a > 0",
        &["x;y", "z"],
    );
    put(&place, "odd.tsv", "a\tb\n1\tx y\n");
    is(&place, "SELECT b FROM '@/odd.tsv' t WHERE a = 1", &["x y"]);
    let parts = ["unknown option", "header, delimiter, quote"];
    fails(&place, "SELECT * FROM read_csv('@/odd.csv', decode_cf => true) t", &parts);
    // The name of a directory says nothing of a format.
    put(&place, "exp.json/x.csv", "a\n1\n");
    is(&place, "SELECT a FROM '@/exp.json/x.csv' t WHERE a > 0", &["1"]);
}

#[test]
fn arrow_files_are_read_in_ranges_of_their_batches() {
    let place = Place::open(&[]);
    let copy = |name: &str| {
        format!(
            "COPY (SELECT dim_0 AS i, dim_0 % 7 AS g, v FROM t WHERE dim_0 >= 0) TO '{}'",
            place.shown(name)
        )
    };
    let copies = [copy("a.arrow"), copy("a.parquet")].join("; ");
    place.run(&format!(
        "CREATE TEMP TENSOR t AS SELECT random_normal([100000], seed => 3) AS v; {copies}"
    ));
    // Under the name of a stream, a file is not cut.
    fs::copy(place.shown("a.arrow"), place.shown("whole.arrows")).unwrap();
    place.run("SET tessera.chunk_bytes_target = '64KiB'");
    let explained = |name: &str| {
        lines(&place, &format!("EXPLAIN SELECT sum(i) AS s FROM '@/{name}'")).unwrap().join("\n")
    };
    assert!(explained("a.arrow").contains("DataSourceExec: "), "{}", explained("a.arrow"));
    let whole = explained("whole.arrows");
    assert!(!whole.contains("DataSourceExec: "), "{whole}");
    is(
        &place,
        "SELECT count(*) AS n, sum(i) AS s, max(i) AS m FROM '@/a.arrow'",
        &["100000 4999950000 99999"],
    );
    for sql in [
        "SELECT i, v FROM ? WHERE v > 2.5",
        "SELECT g, count(*) AS n, max(v) AS m FROM ? GROUP BY g ORDER BY g",
        "SELECT i FROM ? ORDER BY v DESC LIMIT 20",
    ] {
        let of = |name: &str| lines(&place, &sql.replace('?', &format!("'@/{name}'"))).unwrap();
        assert_eq!(of("a.arrow"), of("a.parquet"), "{sql}");
        assert_eq!(of("a.arrow"), of("whole.arrows"), "{sql}");
    }
}

/// An Arrow file with columns of floats.
fn arrow(columns: &[(&str, [f64; 4])]) -> Vec<u8> {
    let columns = columns.iter().map(|(name, values)| {
        let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        (*name, values)
    });
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn arrow_files_have_their_columns_in_any_order() {
    let place = Place::open(&[]);
    let (ones, halves) = ([1.0, 2.0, 3.0, 4.0], [0.5, 1.5, 2.5, 3.5]);
    put(&place, "a.arrow", arrow(&[("x", ones), ("y", halves)]));
    put(&place, "b.arrow", arrow(&[("y", [10.0; 4]), ("x", halves)]));
    put(&place, "c.arrow", arrow(&[("x", [7.0; 4])]));
    let two = "read_arrow(['@/a.arrow', '@/b.arrow'])";
    is(&place, &format!("SELECT sum(x) AS x, sum(y) AS y FROM {two} t"), &["18.0 48.0"]);
    is(
        &place,
        &format!("SELECT x, y FROM {two} t WHERE x < 1.75"),
        &["1.0 0.5", "0.5 10.0", "1.5 10.0"],
    );
    // A column that a file lacks is NULL there.
    let three = "read_arrow(['@/a.arrow', '@/b.arrow', '@/c.arrow'])";
    is(
        &place,
        &format!("SELECT count(*) AS n, count(y) AS c, sum(x) AS x, sum(y) AS y FROM {three} t"),
        &["12 8 46.0 48.0"],
    );
    is(&place, &format!("SELECT x FROM {three} t WHERE y IS NULL"), &["7.0"; 4]);
    is(&place, &format!("SELECT max(y) AS m, count(y) AS c FROM {three} t"), &["10.0 8"]);
}

/// The form of `json.dumps` and `DataFrame.to_json(orient='records')`.
#[test]
fn json_files_may_be_one_array() {
    let place = Place::open(&[]);
    put(&place, "a.json", "[{\"id\":1,\"x\":1.5,\"s\":\"a,]\"},{\"id\":2,\"x\":null,\"s\":\"b\"}]");
    put(&place, "b.json", "\u{feff}[\n  {\n    \"id\": 3,\n    \"x\": 2\n  },\n  {\"id\": 4}\n]\n");
    put(&place, "c.ndjson", "\u{feff}{\"id\":5,\"x\":7}\n\n{\"id\":6}");
    is(&place, "SELECT id, x, s FROM '@/a.json' t", &["1 1.5 a,]", "2 NULL b"]);
    is(&place, "SELECT sum(id) AS i, sum(x) AS x FROM '@/b.json' t", &["7 2"]);
    is(&place, "SELECT id, x FROM '@/c.ndjson' t", &["5 7", "6 NULL"]);
    // The types are those of all files: 1.5 and 2 are floats.
    let of_all = "read_json(['@/a.json', '@/b.json', '@/c.ndjson'])";
    is(&place, &format!("SELECT sum(id) AS i, sum(x) AS x FROM {of_all} t"), &["21 10.5"]);
    // A file that is large enough for several ranges.
    let rows: Vec<String> = (0..200_000).map(|id| format!("{{\"id\": {id}, \"v\": 1}}")).collect();
    put(&place, "large.json", format!("[{}]", rows.join(", ")));
    is(
        &place,
        "SELECT count(*) AS n, sum(id) AS i, sum(v) AS v FROM '@/large.json' t",
        &["200000 19999900000 200000"],
    );
    put(&place, "cut.json", format!("[{}", rows.join(", ")));
    fails(&place, "SELECT sum(id) FROM '@/cut.json' t", &["cut.json", "ends at byte", "array"]);
    put(&place, "numbers.json", "[1, 2]");
    fails(
        &place,
        "SELECT * FROM '@/numbers.json' t",
        &["not_a_table", "`1` at byte 1 instead of an object or `]`"],
    );
}

#[test]
fn parquet_has_the_calendar_of_times() {
    let place = Place::open(&[]);
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cf");
    let copy = |calendar: &str, name: &str| {
        fs::create_dir_all(place.path("output").join("two")).unwrap();
        let block = format!("SELECT time, x, v FROM CELLS('{data}/{calendar}.zarr') WHERE x = 1");
        lines(&place, &format!("COPY ({block}) TO '@/{name}'")).unwrap();
    };
    for name in ["a.parquet", "two/a.parquet"] {
        copy("noleap", name);
    }
    copy("day360", "two/b.parquet");
    for from in ["'@/a.parquet'", "read_parquet(['@/a.parquet', '@/two/a.parquet'])"] {
        let times = ["2001-12-13T00:00:00", "2001-12-23T00:00:00", "2002-01-02T00:00:00"];
        let sql =
            format!("SELECT DISTINCT time FROM {from} WHERE time >= '2001-12-10' ORDER BY time");
        is(&place, &sql, &times);
        let sql = format!(
            "SELECT year(time) AS y, max(date_trunc('month', time)) AS m FROM {from} GROUP BY 1 ORDER BY 1"
        );
        let want =
            ["2000 2000-12-01T00:00:00", "2001 2001-12-01T00:00:00", "2002 2002-01-01T00:00:00"];
        is(&place, &sql, &want);
    }
    let parts =
        ["`time`", "the calendar noleap in", "a.parquet", "the calendar 360_day in", "b.parquet"];
    fails(&place, "SELECT * FROM read_parquet('@/two') t", &parts);
}

#[test]
fn the_end_of_a_file_is_not_that_of_an_earlier_one() {
    let place = Place::open(&[]);
    let at = |name: &str| place.path("output").join(name);
    for (name, first) in [("a.parquet", 1), ("b.parquet", 7)] {
        let rows = format!("SELECT x FROM range({first}, {}) t(x)", first + 3);
        lines(&place, &format!("COPY ({rows}) TO '@/{name}'")).unwrap();
        let file = fs::File::options().write(true).open(at(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    }
    assert_eq!(
        fs::metadata(at("a.parquet")).unwrap().len(),
        fs::metadata(at("b.parquet")).unwrap().len()
    );
    let large = "SELECT x FROM '@/a.parquet' t WHERE x > 5 ORDER BY x";
    is(&place, large, &[]);
    // Another file of the same size and time: its inode differs.
    fs::rename(at("b.parquet"), at("a.parquet")).unwrap();
    is(&place, large, &["7", "8", "9"]);
}
