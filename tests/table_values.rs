//! Values of tables of files: values that the first rows do not show, missing ones, and errors of rows.

use crate::common::Place;
use crate::table_files::{fails, is, put};
use std::fmt::Write as _;

/// The schema of a file from pyarrow: `a` and `b`, both required.
const TWO_COLUMNS: &str = "\
    504152311504152015244c15041500120000103c0100000000000000020000000000000015001506150a2c150415\
    10150615061c18080200000000000000180801000000000000001600280802000000000000001808010000000000\
    0000111100000003080103021504152015244c15041500120000103c030000000000000004000000000000001500\
    1506150a2c15041510150615061c1808040000000000000018080300000000000000160028080400000000000000\
    18080300000000000000111100000003080103021504193c35001806736368656d61150400150425001801610015\
    042500180162001604191c192c26001c15041935000610191801611502160416c00116c801264826081c18080200\
    0000000000001808010000000000000016002808020000000000000018080100000000000000111100192c150415\
    0015020015001510150200000026001c15041935000610191801621502160416c00116c80126900226d0011c1808\
    04000000000000001808030000000000000016002808040000000000000018080300000000000000111100192c15\
    0415001502001500151015020000001680031604260816900300191c180c4152524f573a736368656d6118ec012f\
    2f2f2f2f36674141414151414141414141414b41417741426741464141674143674141414141424241414d414141\
    41434141494141414142414149414141414241414141414941414142454141414142414141414e542f2f2f384141\
    414143454141414142514141414145414141414141414141414541414142694141414178502f2f2f774141414146\
    41414141414541415541416741414141484141774141414151414241414141414141414143454141414142774141\
    41414541414141414141414141454141414268414141414341414d41416741427741494141414141414141415541\
    414141413d001820706172717565742d6370702d6172726f772076657273696f6e2032362e302e31192c1c00001c\
    0000001702000050415231\
    ";
/// Only `a`.
const ONE_COLUMN: &str = "\
    504152311504151015144c15021500120000081c050000000000000015001506150a2c15021510150615061c1808\
    05000000000000001808050000000000000016002808050000000000000018080500000000000000111100000003\
    080102001504192c35001806736368656d6115020015042500180161001602191c191c26001c1504193500061019\
    1801611502160216b00116b801263826081c18080500000000000000180805000000000000001600280805000000\
    0000000018080500000000000000111100192c1504150015020015001510150200000016b0011602260816b80100\
    191c180c4152524f573a736368656d6118ac012f2f2f2f2f33674141414151414141414141414b41417741426741\
    464141674143674141414141424241414d4141414143414149414141414241414941414141424141414141454141\
    41415541414141454141554141674141414148414177414141415141424141414141414141414345414141414277\
    414141414541414141414141414141454141414268414141414341414d4141674142774149414141414141414141\
    5541414141413d001820706172717565742d6370702d6172726f772076657273696f6e2032362e302e31191c1c00\
    00006e01000050415231\
    ";

/// A file from DuckDB: `a` is 1 and `iv` 4 months and 4 days.
const INTERVAL: &str = "\
    5041523115001508150c2c15021500150615060000040c0100000015001518151c2c150215001506150600000c2c\
    0400000004000000000000001502193c3500180d6475636b64625f736368656d6115040015022500180161252200\
    150e1518150018026976252a001602191c192c26001c15021915001918016115021602162a162e26083c18040100\
    00001804010000001600280401000000180401000000111100191c15001500150200000026001c150e1915001918\
    02697615021602163a163e2636491c150015001502000000166416022608166c00191c181c6475636b64622e696e\
    74657276616c5f626c6f6f6d5f66696c746572180d6e6f726d616c697a65642d76310018284475636b4442207665\
    7273696f6e2076322e302e3120286275696c64203864373831313465393029192c1c00001c000000020100005041\
    5231\
    ";

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

#[test]
fn a_required_column_is_null_where_a_file_lacks_it() {
    let place = Place::open(&[]);
    put(&place, "req/1.parquet", bytes_of(TWO_COLUMNS));
    put(&place, "req/2.parquet", bytes_of(ONE_COLUMN));
    is(&place, "SELECT count(*) AS n FROM '@/req/*.parquet' t WHERE b IS NULL", &["1"]);
    is(&place, "SELECT a, b FROM '@/req/*.parquet' t ORDER BY a", &["1 3", "2 4", "5 NULL"]);
}

#[test]
fn times_keep_fractions_that_the_first_rows_do_not_have() {
    let place = Place::open(&[]);
    let mut text = "id,t\n".to_string();
    (0..20_500).for_each(|id| writeln!(text, "{id},2020-01-01 00:00:00").unwrap());
    text.push_str("20500,2020-01-01 00:00:01.123456\n");
    put(&place, "late.csv", &text);
    // The options are those of DataFusion's own look at types.
    put(&place, "also.csv", &text);
    for from in ["'@/late.csv'", "read_csv('@/also.csv', comment => '#')"] {
        let sql = format!("SELECT CAST(max(t) AS VARCHAR) AS s FROM {from} t");
        is(&place, &sql, &["2020-01-01T00:00:01.123456"]);
        let sql =
            format!("SELECT id FROM {from} t WHERE t > TIMESTAMP '2020-01-01 00:00:01.123455'");
        is(&place, &sql, &["20500"]);
    }
}

#[test]
fn keys_behind_the_first_rows_are_errors() {
    let place = Place::open(&[]);
    let mut text = String::new();
    (0..30_000)
        .for_each(|i| writeln!(text, "{{\"a\": {i}, \"o\": {{\"x\": 1}}, \"s\": \"b\"}}").unwrap());
    put(&place, "top.ndjson", format!("{text}{{\"a\": 1, \"y\": 2}}\n"));
    put(&place, "inner.ndjson", format!("{text}{{\"o\": {{\"z\": 2}}}}\n"));
    for (file, key) in [("top", "y"), ("inner", "z")] {
        let (key, name) = (format!("its key `{key}`"), format!("{file}.ndjson`, row "));
        // Also where the query reads some columns.
        for items in ["*", "sum(a) AS s", "max(s) AS m, sum(o.x) AS x"] {
            let sql = format!("SELECT {items} FROM '@/{file}.ndjson' t");
            fails(&place, &sql, &["bad_row", &name, &key]);
        }
        let all = format!("read_json('@/{file}.ndjson', sample_size => -1)");
        is(&place, &format!("SELECT count(s) AS s, count(*) AS n FROM {all} t"), &["30000 30001"]);
    }
    let z = "SELECT sum(o.z) AS z FROM read_json('@/inner.ndjson', sample_size => -1) t";
    is(&place, z, &["2"]);
    // A range says where it begins.
    place.run("SET tessera.chunk_bytes_target = '64KiB'");
    let sum = "SELECT sum(a) AS s FROM '@/top.ndjson' t";
    fails(&place, sum, &["bad_row", " behind byte ", "its key `y`"]);
}

#[test]
fn errors_of_json_name_the_file_and_the_row() {
    let place = Place::open(&[]);
    put(&place, "cut.ndjson", "{\"a\": 1}\n{\"a\": \n{\"a\": 3}\n");
    fails(&place, "SELECT * FROM '@/cut.ndjson' t", &["not_a_table", "`cut.ndjson`, row 2: "]);
    put(&place, "types.ndjson", "{\"a\": 1}\n\n{\"a\": {\"b\": 1}}\n");
    fails(&place, "SELECT * FROM '@/types.ndjson' t", &["not_a_table", "`types.ndjson`, row 2: "]);
    let both = "SELECT * FROM read_json(['@/one.ndjson', '@/types.ndjson']) t";
    put(&place, "one.ndjson", "{\"a\": 1}\n{\"a\": 2}");
    fails(&place, both, &["not_a_table", "`types.ndjson`, row 2: "]);
    let mut text = String::new();
    (0..30_000).for_each(|i| writeln!(text, "{{\"a\": \"{i}\", \"l\": [1]}}").unwrap());
    put(&place, "later.ndjson", format!("{text}{{\"a\": \"x\", \"l\": {{\"b\": 1}}}}\n"));
    let sql = "SELECT * FROM '@/later.ndjson' t";
    fails(&place, sql, &["bad_row", "later.ndjson`, row 30001, `l`: expected "]);
    put(&place, "broken.ndjson", format!("{text}{{\"a\" \"x\"}}\n"));
    fails(&place, "SELECT * FROM '@/broken.ndjson' t", &["broken.ndjson", "at row 30001: "]);
}

/// DuckDB and, with `skip_blank_lines=False`, pandas read the same.
#[test]
fn blank_lines_of_one_column_are_rows_without_a_value() {
    let place = Place::open(&[]);
    let count = |from: &str, want: &str| {
        is(
            &place,
            &format!("SELECT count(*) AS n, count(b) AS b, sum(b) AS s FROM {from} t"),
            &[want],
        );
    };
    put(&place, "a.csv", "b\n1\n\n3\n");
    count("'@/a.csv'", "3 2 4");
    put(&place, "end.csv", "\nb\r\n1\r\n\r\n3\r\n\r\n");
    count("'@/end.csv'", "4 2 4");
    put(&place, "bare.csv", "1\n\n3");
    let bare =
        "SELECT count(*) AS n, sum(column_1) AS s FROM read_csv('@/bare.csv', header => false) t";
    is(&place, bare, &["3 4"]);
    put(&place, "odd.csv", "b\n1\n# no row\n\n3\n");
    count("read_csv('@/odd.csv', comment => '#')", "3 2 4");
    // Of several columns a blank line is no row.
    put(&place, "two.csv", "b,c\n1,2\n\n3,4\n");
    count("'@/two.csv'", "2 2 4");
    // In ranges, wherever they begin.
    let mut text = "b\n".to_string();
    (0..60_000).for_each(|i| match i % 3 {
        0 => text.push('\n'),
        _ => writeln!(text, "{i}").unwrap(),
    });
    put(&place, "large.csv", &text);
    for target in ["64KiB", "8MiB"] {
        place.run(&format!("SET tessera.chunk_bytes_target = '{target}'"));
        count("'@/large.csv'", "60000 40000 1200000000");
    }
    // Outputs of COPY are read back.
    let copy = format!(
        "COPY (SELECT b FROM '{}' t) TO '{}'",
        place.shown("large.csv"),
        place.shown("copied.csv")
    );
    place.run(&copy);
    count("'@/copied.csv'", "60000 40000 1200000000");
}

#[test]
fn quotes_that_are_not_closed_are_errors() {
    let place = Place::open(&[]);
    put(&place, "small.csv", "a,b\n1,x\n2,\"y\n3,z\n");
    let sql = "SELECT * FROM '@/small.csv' t";
    fails(&place, sql, &["not_a_table", "small.csv`, line 3: a quote", "not closed"]);
    is(&place, "SELECT b FROM read_csv('@/small.csv', quote => '|') t WHERE a = 2", &["\"y"]);
    let escape = "SELECT * FROM read_csv('@/small.csv', escape => '\\') t";
    fails(&place, escape, &["bad_row", "small.csv`, line 3: a quote", "not closed"]);
    // Behind the rows that decide on types.
    let mut text = "a,b\n".to_string();
    (0..1_000_000).for_each(|i| writeln!(text, "{i},x").unwrap());
    text.push_str("7,\"open\n");
    (0..1000).for_each(|i| writeln!(text, "{i},x").unwrap());
    put(&place, "large.csv", &text);
    for target in ["64KiB", "8MiB"] {
        place.run(&format!("SET tessera.chunk_bytes_target = '{target}'"));
        let sql = "SELECT sum(a) AS s FROM '@/large.csv' t";
        fails(
            &place,
            sql,
            &["bad_row", "large.csv`, line ", "a quote that opens there is not closed"],
        );
    }
}

/// The reader has no months in its type.
#[test]
fn intervals_of_parquet_are_refused_by_name() {
    let place = Place::open(&[]);
    put(&place, "iv.parquet", bytes_of(INTERVAL));
    is(&place, "SELECT a FROM '@/iv.parquet' t WHERE a > 0", &["1"]);
    is(&place, "SELECT count(*) AS n FROM '@/iv.parquet' t", &["1"]);
    for sql in [
        "SELECT * FROM '@/iv.parquet' t",
        "SELECT max(iv) AS m FROM '@/iv.parquet' t",
        "SELECT a FROM '@/iv.parquet' t WHERE iv > INTERVAL '1 day'",
    ] {
        fails(
            &place,
            sql,
            &["unsupported", "iv.parquet` cannot be read", "INTERVAL of column `iv`"],
        );
    }
}

/// DuckDB reads the same.
#[test]
fn directories_of_hive_may_say_null() {
    let place = Place::open(&[]);
    for (k, x) in [("1", 1), ("2", 2), ("__HIVE_DEFAULT_PARTITION__", 4)] {
        put(&place, &format!("h/d=2020-01-01/k={k}/a.csv"), format!("x\n{x}\n"));
    }
    put(&place, "t/s=__HIVE_DEFAULT_PARTITION__/a.csv", "x\n1\n");
    put(&place, "t/s=b/a.csv", "x\n2\n");
    let all = "SELECT k, x FROM read_csv('@/h') t ORDER BY x";
    is(&place, all, &["1 1", "2 2", "NULL 4"]);
    for (condition, want) in [
        ("k IS NULL", "4"),
        ("k IS NOT NULL", "3"),
        ("k + 1 = 3", "2"),
        ("k > 0 AND d = DATE '2020-01-01'", "3"),
        ("x > 1", "6"),
    ] {
        is(
            &place,
            &format!("SELECT sum(x) AS s FROM read_csv('@/h') t WHERE {condition}"),
            &[want],
        );
    }
    is(&place, "SELECT count(*) AS n, count(k) AS k FROM read_csv('@/h') t", &["3 2"]);
    is(&place, "SELECT sum(x) AS s FROM read_csv('@/t') t WHERE s IS NULL", &["1"]);
    is(&place, "SELECT x FROM read_csv('@/t') t WHERE s = 'b'", &["2"]);
    // A text that is no date stays a text.
    put(&place, "d/d=2020-13-01/a.csv", "x\n1\n");
    put(&place, "d/d=__HIVE_DEFAULT_PARTITION__/a.csv", "x\n2\n");
    let all = "SELECT d, x FROM read_csv('@/d') t ORDER BY x";
    is(&place, all, &["2020-13-01 1", "NULL 2"]);
}
